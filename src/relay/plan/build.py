"""What schedules share: storage of tensors, and statements that are made alike everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum

from relay.ir.dim import (
    Dim,
    dim_add,
    dim_bounds,
    dim_floordiv,
    dim_max,
    dim_mul,
    shape_size,
)
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Alloc, Buffer, For, LetScalar, Seq, Stmt, Store
from relay.loop.target import Target
from relay.loop.walk import again
from relay.plan.expand import Env, Expander, is_expensive
from relay.plan.graph import tensor_key
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Scalar,
    Select,
    Size,
    binary,
    children,
    compare,
    extent_of,  # fmt: skip
    rebuild,
    select,
    walk,
    wrap,
)
from relay.te.tensor import Tensor

# A buffer up to this size lives on the stack of its thread, a larger one in the workspace.
STACK_BYTES = 16 << 10


@record(frozen=True, slots=True, eq=False)
class Storage:
    """Where a tensor's elements are: ``buffer[offset + sum(index * stride)]``. Rows of a nest have stride 0 in its
    temporaries."""

    buffer: Buffer
    strides: tuple[Dim, ...]
    offset: Dim = 0


class Residence(Enum):
    """How much of a kernel's packed constants is from one call to the next where multiply-adds need not wait for it (in the second-level
    cache, or in the last one for processors that wait for memory alone): all, a part where they alone do not fill it too often, or nothing,
    because what other kernels read in between drives them out. ``NEAR``: all, and a part is in the first-level cache."""

    NEAR = "near"
    WHOLE = "whole"
    PART = "in part"
    NONE = "not at all"


@record(slots=True, eq=False)
class Builder:
    """State of planning one kernel. ``values`` are scalars that stand for tensors inside the innermost loop of a
    nest; ``weights`` says where packed constants are when it begins; ``fewest`` has what some dims are at least (`TeGraph`)."""

    target: Target
    indices: Indices
    weights: Residence = Residence.PART
    fewest: Mapping[Dim, int] = field(default_factory=dict)
    storage: dict[tuple[int, int], Storage] = field(default_factory=dict)
    values: dict[tuple[int, int], Scalar] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    @property
    def weights_stay(self) -> bool:
        """Whether the second-level cache has all packed constants."""
        return self.weights in (Residence.WHOLE, Residence.NEAR)

    def least(self, dim: Dim) -> int:
        """What a size is at least."""
        return max(self.fewest.get(dim, 0), dim_bounds(dim)[0] or 0)

    def fresh(self, hint: str) -> str:
        """A name that no other buffer of the kernel has."""
        n = self.names.get(hint, 0)
        self.names[hint] = n + 1
        return f"{hint}{n}" if n else hint

    def flat(self, where: Storage, index: Sequence[Scalar]) -> Scalar:
        """The position of an element in its buffer."""
        total = where.offset
        for i, stride in zip(index, where.strides, strict=True):
            if stride != 0:
                total = dim_add(total, dim_mul(self.indices.poly(i), stride))
        return self.indices.scalar(total)

    def read(self, tensor: Tensor, index: tuple[Scalar, ...]) -> Scalar:
        """The load of a tensor's element from where it is stored."""
        key = tensor_key(tensor)
        value = self.values.get(key)
        if value is not None:
            return value
        where = self.storage[key]
        return Load(where.buffer, (self.flat(where, index),), where.buffer.dtype)

    def evaluate(self, roots: Iterable[Scalar], env: Env) -> list[Scalar]:
        """Expressions of a stage as expressions over buffers and loop variables."""
        expander = Expander(self.indices, self.read)
        frame = expander.frame(env)
        return [expander.evaluate(r, frame) for r in roots]

    def lanes(self, dtypes: Iterable[str]) -> int:
        """Elements of the widest of these dtypes in a vector register."""
        return self.target.lanes(max((dtype_bits(d) for d in dtypes), default=32))


def row_major(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Strides in elements of a dense row-major shape. An axis of one element has stride 0: its only index is 0."""
    strides: list[Dim] = []
    step: Dim = 1
    for dim in reversed(shape):
        strides.append(0 if dim == 1 else step)
        step = dim_mul(step, dim)
    return tuple(reversed(strides))


def dense(name: str, shape: Sequence[Dim], dtype: str, scope: str = "operand", alignment: int = 64) -> Storage:
    """A dense tensor in a flat buffer of its own."""
    buffer = Buffer(name, (shape_size(tuple(shape)),), dtype, scope, alignment)  # type: ignore[arg-type]
    return Storage(buffer, row_major(shape))


def own_alignment(dtype: str) -> int:
    """The alignment of an element, in bytes."""
    return max(1, dtype_bits(dtype) // 8)


def operand(
    builder: Builder, tensor: Tensor, name: str, given: Buffer | None = None, alignment: int | None = None
) -> Buffer:
    """A kernel operand; nothing is promised of its alignment but an element's (or so much). ``given``: the buffer, if of this kind."""
    where = dense(name, tensor.shape, tensor.dtype, alignment=alignment or own_alignment(tensor.dtype))
    if given is not None and (given.dtype, given.alignment) == (where.buffer.dtype, where.buffer.alignment):
        where = replace(where, buffer=given)
    builder.storage[tensor_key(tensor)] = where
    return where.buffer


def temporary(name: str, size: Dim, dtype: str) -> Buffer:
    """A buffer private to a thread: a register for one element, the stack for little, else its slice of the
    workspace."""
    if size == 1:
        return Buffer(name, (1,), dtype, "register")
    if isinstance(size, int) and size * dtype_bits(dtype) <= 8 * STACK_BYTES:
        return Buffer(name, (size,), dtype, "stack")
    return Buffer(name, (size,), dtype, "worker")


def seq(stmts: Sequence[Stmt]) -> Stmt:
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def allocate(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        body = Alloc(buffer, body)
    return body


def bound(bindings: Sequence[tuple[Axis, Scalar]], body: Stmt) -> Stmt:
    """The body with variables bound, the first outermost."""
    for axis, value in reversed(bindings):
        body = LetScalar(axis, value, body)
    return body


def each_row(
    builder: Builder,
    first: Stmt,
    row: Scalar,
    height: int,
    known: Callable[[int], Mapping[Scalar, Scalar]] = lambda _: {},
) -> list[Stmt]:
    """What is made of each of ``height`` rows: the first, which binds ``row`` to its number, and others, in which it is that many more
    and ``known`` expressions are others. To find out where all that is read lies takes longer than to write it once more."""
    assert isinstance(first, LetScalar) and first.value is row

    def name(axis: Axis) -> Axis:
        return replace(axis, name=builder.fresh("e")) if isinstance(axis, Named) else replace(axis)

    rows: list[Stmt] = [first]
    for i in range(1, height):
        other = again(first, known(i), name)
        assert isinstance(other, LetScalar)
        rows.append(replace(other, value=binary("add", row, i)))
    return rows


def position(indices: Indices, index: Sequence[Scalar], shape: Sequence[Dim]) -> Dim:
    """Where an element of a dense tensor of a shape is."""
    total: Dim = 0
    for i, stride in zip(index, row_major(shape), strict=True):
        total = dim_add(total, dim_mul(indices.poly(i), stride))
    return total


def position_read(indices: Indices, load: Load) -> Dim:
    """Where what is read is in its tensor."""
    return position(indices, load.indices, load.source.shape)


def serial(axes: Sequence[Axis], body: Stmt) -> Stmt:
    """Nested serial loops over the axes, the last one innermost."""
    for axis in reversed(axes):
        if axis.extent != 1:
            body = For(axis, extent_of(axis.extent), body)
    return body


def unrolled(axis: Axis, extent: Scalar, times: int, body: Stmt) -> Stmt:
    """A serial loop of ``extent`` iterations that does ``times`` of them in one, and the rest one by one."""
    group, one = Axis(axis.name, dim_floordiv(axis.extent, times)), Axis("step", times)
    many = binary("floordiv", extent, times)
    here = binary("add", binary("mul", group, times), one)
    main = For(group, many, For(one, Const(times, "int64"), LetScalar(axis, here, body), "unrolled"))
    if isinstance(extent, Const) and extent.value % times == 0:
        return main
    done, rest = binary("mul", many, times), Axis(axis.name, times)
    left = LetScalar(axis, binary("add", done, rest), body)
    return seq([main, For(rest, binary("sub", extent, done), left)])


def vectorized(axis: Axis, extent: Scalar, body: Stmt) -> Stmt:
    """A vector loop; what does not depend on its variable and is worth it is computed before."""
    return hoisted(For(axis, extent, body, "vectorized"))


def ceiling(a: Scalar, b: Scalar) -> Scalar:
    """``a / b`` rounded up, of non-negative ``a``."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(-(-int(a.value) // int(b.value)), "int64")
    return binary("floordiv", binary("add", a, binary("sub", b, 1)), b)


# -- hoisting


def hoisted(loop: For) -> Stmt:
    """Compute what is invariant in a loop's straight-line body before the loop, where it is a load or dear.

    Only operands that are evaluated in every iteration are moved: nothing from the sides of a select, which may guard
    a load. Of a loop that may have no iteration nothing is read that is there only where it has one.
    """
    if isinstance(loop.extent, Const) and loop.extent.value < 1:
        return loop
    stmts = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,)
    if not all(isinstance(s, Store) for s in stmts):
        return loop
    stores = [s for s in stmts if isinstance(s, Store)]
    written = {id(s.buffer) for s in stores}
    lets: dict[int, tuple[Axis, Scalar]] = {}
    memo: dict[int, Scalar] = {}
    new: list[Stmt] = []
    for s in stores:
        varies = _varying(s.value, loop.var, written)
        value = _lift(s.value, varies, lets, memo)
        new.append(Store(s.buffer, s.indices, value))
    if not lets:
        return loop
    out: Stmt = For(loop.var, loop.extent, seq(new), loop.kind, loop.grain)
    some = _some(loop.extent)
    for var, value in reversed(lets.values()):
        if some is not None and not Indices().reads_inside(value):
            value = select(some, value, wrap(0, value.dtype))
        out = LetScalar(var, value, out)
    return out


def _some(extent: Scalar) -> Scalar | None:
    """The condition under which a loop over a size has an iteration; None for one that always has, such as over the elements of a block."""
    if not isinstance(extent, Size):
        return None
    least, _ = dim_bounds(extent.dim)
    return None if least is not None and least >= 1 else compare("gt", extent, 0)


def _varying(root: Scalar, var: Axis, written: set[int]) -> set[int]:
    """Ids of the nodes that depend on the variable or on what the loop writes."""
    out: set[int] = set()
    for node in walk(root):
        if (
            node is var
            or (isinstance(node, Load) and id(node.source) in written)
            or any(id(k) in out for k in children(node))
        ):
            out.add(id(node))
    return out


def _lift(root: Scalar, varies: set[int], lets: dict[int, tuple[Axis, Scalar]], memo: dict[int, Scalar]) -> Scalar:
    todo: list[Scalar] = [root]
    while todo:
        node = todo[-1]
        if id(node) in memo:
            todo.pop()
            continue
        if id(node) not in varies:
            memo[id(node)] = _named(node, lets) if _worth(node) else node
            todo.pop()
            continue
        inside = (node.cond,) if isinstance(node, Select) else () if isinstance(node, Load) else children(node)
        missing = [k for k in inside if id(k) not in memo]
        if missing:
            todo += missing
            continue
        kept = {id(k): memo[id(k)] for k in inside}
        memo[id(node)] = rebuild(node, tuple(kept.get(id(k), k) for k in children(node)))
        todo.pop()
    return memo[id(root)]


def _worth(node: Scalar) -> bool:
    return node.dtype != "int64" and (is_expensive(node) or any(isinstance(n, Load) for n in walk(node)))


def _named(node: Scalar, lets: dict[int, tuple[Axis, Scalar]]) -> Scalar:
    found = lets.get(id(node))
    if found is None:
        found = lets[id(node)] = (Named(f"v{len(lets)}", node.dtype), node)
    return found[0]


def total_cost(parts: Iterable[Dim]) -> Dim:
    total: Dim = 0
    for p in parts:
        total = dim_add(total, p)
    return total


def at_least_one(dim: Dim) -> Dim:
    return dim_max(dim, 1)
