"""What schedules share: storage of tensors, loops with a sensible grain, statements that are made alike everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from relay.ir.dim import (
    Dim,
    ceil_div,
    dim_add,
    dim_bounds,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mul,
    shape_size,
)
from relay.ir.types import dtype_bits
from relay.loop.ir import WORKERS, Alloc, Between, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, between
from relay.loop.target import Target
from relay.plan.expand import Env, Expander, is_expensive
from relay.plan.graph import tensor_key
from relay.plan.jammed import jammed
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
    conjunction,
    extent_of,  # fmt: skip
    maximum,
    minimum,
    rebuild,
    select,
    walk,
    wrap,
)
from relay.te.tensor import Tensor

# Work below this many simple operations is not worth waking another thread for, and is no chunk of its own.
PARALLEL_COST = 32 << 10
# Of a product a thread's share may be less, if there are no more of them: whether that pays on the machine at hand is tried when the kernel
# runs (`runtime/src/region_trials.h`).
LEAST_SHARE = PARALLEL_COST // 4
# A thread may have so many times the iterations of an equal share (numerator and denominator) of so many threads.
_UNEVEN, _THREADS_COUNTED = (17, 16), 8
# So many chunks are enough for any number of threads.
_MANY_CHUNKS = 64
# Iterations that follow each other where to find out where each of them is takes a division.
_AT_ONCE = 4
# The longest lines that go through their loops together only to share what they read.
_LONGEST = 256
# A buffer up to this size lives on the stack of its thread, a larger one in the workspace.
STACK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(slots=True, eq=False)
class Builder:
    """State of planning one kernel. ``values`` are scalars that stand for tensors inside the innermost loop of a
    nest; ``weights`` says where packed constants are when it begins."""

    target: Target
    indices: Indices
    weights: Residence = Residence.PART
    storage: dict[tuple[int, int], Storage] = field(default_factory=dict)
    values: dict[tuple[int, int], Scalar] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    @property
    def weights_stay(self) -> bool:
        """Whether the second-level cache has all packed constants."""
        return self.weights in (Residence.WHOLE, Residence.NEAR)

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


def parallel(
    builder: Builder,
    extent: Dim,
    cost: Dim,
    body: Callable[[Axis], Stmt],
    name: str = "r",
    share: int = PARALLEL_COST,
) -> Stmt:
    """A loop whose iterations may run on several threads; ``cost`` of one iteration (simple operations) decides how
    many to a chunk. ``share``: the least work of a thread.

    A cost known only at run time is divided there: chunks of the computed size run in parallel, so a small problem
    stays serial.
    """
    var = Axis(name, extent)
    if extent == 1:
        return LetScalar(var, Const(0, "int64"), body(var))
    if isinstance(cost, int) and isinstance(extent, int):
        chunks, shares = (max(1, min(extent, extent * cost // least)) for least in (PARALLEL_COST, share))
        if shares == 1:
            return For(var, extent_of(extent), body(var))
        # Rounded down: more and smaller chunks can be shared out evenly, fewer and larger ones cannot.
        grain = extent // chunks
        if (chunks == shares or chunks >= _MANY_CHUNKS) and _is_even(extent, grain, chunks):
            return For(var, extent_of(extent), body(var), "parallel", grain)
        return _in_shares(var, extent, shares, chunks, body(var))
    if isinstance(cost, int):
        return For(var, extent_of(extent), body(var), "parallel", max(1, PARALLEL_COST // max(cost, 1)))
    # As many chunks of equal length as there is work for.
    many, per, chunk, inner = (Axis(hint, extent) for hint in ("many", "per", "chunk", "t"))
    whole = extent_of(extent)
    worth = chunks_of(Size(dim_mul(extent, cost)), share)
    start = binary("mul", chunk, per)
    count = minimum(per, binary("sub", whole, start))
    run = For(inner, count, LetScalar(var, binary("add", start, inner), body(var)))
    loop = For(chunk, ceiling(whole, per), run, "parallel", 1)
    return LetScalar(
        many, maximum(minimum(worth, whole), 1), LetScalar(per, maximum(binary("floordiv", whole, many), 1), loop)
    )


def chunks_of(work: Scalar, share: int) -> Scalar:
    """How many chunks work is worth: of `PARALLEL_COST`, or one for each thread that then has a ``share`` or more; perhaps none."""
    many = binary("floordiv", work, PARALLEL_COST)
    return many if share == PARALLEL_COST else maximum(many, minimum(WORKERS, binary("floordiv", work, share)))


def _is_even(extent: int, grain: int, chunks: int) -> bool:
    """Whether chunks of ``grain`` iterations, as many for one of several threads as for another, give each about as many iterations."""
    whole = -(-extent // grain)
    return all(
        -(-whole // threads) * grain <= -(-extent // threads) * _UNEVEN[0] // _UNEVEN[1]
        for threads in range(2, min(chunks, _THREADS_COUNTED) + 1)
    )


def _in_shares(var: Axis, extent: int, most: int, chunks: int, body: Stmt) -> Stmt:
    """Iterations in equal shares for ``most`` threads, or as many as there are, each cut into as many chunks: about ``chunks`` of them in
    all."""
    threads, share, pieces, per = (Axis(hint, extent + 1) for hint in ("threads", "share", "pieces", "per"))
    chunk, inner, of, begin = (Axis(hint, 2 * extent) for hint in ("chunk", "t", "of", "begin"))
    start = binary("add", binary("mul", of, share), begin)
    left = minimum(binary("sub", share, begin), binary("sub", extent, start))
    here = minimum(maximum(binary("add", start, inner), 0), extent - 1)  # which it is anyway: so it is seen
    run = For(inner, maximum(minimum(per, left), 0), LetScalar(var, here, body))
    place = bound([
        (of, binary("floordiv", chunk, pieces)),
        (begin, binary("mul", binary("sub", chunk, binary("mul", of, pieces)), per)),
    ], run)  # fmt: skip
    return bound([
        (threads, minimum(WORKERS, most)),
        (share, ceiling(Const(extent, "int64"), threads)),
        (pieces, select(compare("eq", threads, 1), Const(1, "int64"), ceiling(Const(chunks, "int64"), threads))),
        (per, ceiling(share, pieces)),
    ], For(chunk, binary("mul", threads, pieces), place, "parallel", 1))  # fmt: skip


def ceiling(a: Scalar, b: Scalar) -> Scalar:
    """``a / b`` rounded up, of non-negative ``a``."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(-(-int(a.value) // int(b.value)), "int64")
    return binary("floordiv", binary("add", a, binary("sub", b, 1)), b)


def parallel_rows(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt, share: int = PARALLEL_COST) -> Stmt:
    """One parallel loop over all the axes (in row-major order), which are bound to their values for the body."""
    live = [a for a in axes if a.extent != 1]
    if not live:
        return body
    if len(live) == 1:
        return parallel(builder, live[0].extent, cost, lambda r: LetScalar(live[0], r, body), share=share)
    total = shape_size(tuple(a.extent for a in live))
    return parallel(builder, total, cost, lambda r: bound(unflattened(live, r), body), share=share)


def parallel_lines(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt) -> Stmt:
    """The same for bodies that may be little: of several axes a few iterations along the last one follow each other where its extent
    is not known, because to find out where one of them is takes a division for each of the others. They go through their loops together
    where that gains something (`lines_together`)."""
    live = [a for a in axes if a.extent != 1]
    if not live or isinstance(live[-1].extent, int):
        return parallel_rows(builder, axes, cost, body)
    if len(live) > 1:
        return _in_groups(builder, live, cost, body, _jammed(builder, live[-1], body))
    together = _jammed(builder, live[-1], body, _LONGEST)
    if together is None or not together[2]:
        return parallel_rows(builder, axes, cost, body)
    return _in_groups(builder, live, cost, body, together)


def lines_together(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt) -> Stmt | None:
    """The same, a few iterations along the last axis together; None where they have nothing in common (`relay.plan.jammed`)."""
    live = [a for a in axes if a.extent != 1]
    if not live or (isinstance(live[-1].extent, int) and live[-1].extent < _AT_ONCE):
        return None
    together = _jammed(builder, live[-1], body)
    return None if together is None else _in_groups(builder, live, cost, body, together)


# The first of a few iterations that go together, what they do, and where that gains something.
_Jammed = tuple[Axis, Stmt, list[Scalar]]


def _jammed(builder: Builder, axis: Axis, body: Stmt, longest: int | None = None) -> _Jammed | None:
    first = Axis("first", axis.extent)
    places = [binary("add", first, n) for n in range(_AT_ONCE)]
    together = jammed(body, axis, places, builder.target.vector_registers, longest)
    return None if together is None else (first, *together)


def _in_groups(builder: Builder, live: Sequence[Axis], cost: Dim, body: Stmt, together: _Jammed | None) -> Stmt:
    """Iterations along the last axis a few at a time: together, if that is given, where there are as many."""
    last = live[-1]
    block, step = Axis(last.name + "b", ceil_div(last.extent, _AT_ONCE)), Axis(last.name + "s", _AT_ONCE)
    start = binary("mul", Const(0, "int64") if block.extent == 1 else block, _AT_ONCE)
    count = minimum(_AT_ONCE, binary("sub", extent_of(last.extent), start))
    group: Stmt = For(step, count, LetScalar(last, binary("add", start, step), body))
    if together is not None:
        first, whole, where = together
        if not isinstance(last.extent, int) or last.extent % _AT_ONCE:
            where = [*where, compare("le", binary("add", start, _AT_ONCE), extent_of(last.extent))]
        whole = LetScalar(first, start, whole)
        group = Branch(conjunction(where), whole, group) if where else whole
    return parallel_rows(builder, [*live[:-1], block], dim_mul(cost, dim_min(_AT_ONCE, last.extent)), group)


def parallel_tasks(
    axes: Sequence[Axis],
    counted: Sequence[tuple[Axis, Scalar]],
    work: Dim,
    body: Stmt,
    share: int = PARALLEL_COST,
) -> Stmt:
    """A parallel loop over axes and, inside of them, variables whose numbers are known when the kernel runs, all of which are bound for
    the body. Tasks that are too little for a thread, of ``work`` in all, follow each other."""
    live = [a for a in axes if a.extent != 1]
    outer: Dim = 1
    for axis in live:
        outer = dim_mul(outer, axis.extent)
    inner: Scalar = Const(1, "int64")
    for _, count in counted:
        inner = binary("mul", inner, count)
    whole, many, per = (Axis(name, 1 << 40) for name in ("whole", "many", "per"))
    chunk, step, task = Axis("chunk", 1 << 40), Axis("t", 1 << 40), Axis("task", 1 << 40)
    places: list[tuple[Axis, Scalar]] = []
    left: Scalar = task
    last = binary("sub", extent_of(outer), 1)
    for number, (variable, count) in enumerate(reversed(counted)):
        outermost = number == len(counted) - 1
        before = Between("before", 1 << 40, low=0, high=(last,)) if outermost else Axis("before", 1 << 40)
        value = binary("floordiv", left, count)
        places.append(between(before, value) if isinstance(before, Between) else (before, value))
        places.append((variable, binary("sub", left, binary("mul", before, count))))
        left = before
    if live:
        places.extend(unflattened(live, left))
    start = binary("mul", chunk, per)
    run = For(
        step,
        minimum(per, binary("sub", whole, start)),
        LetScalar(task, binary("add", start, step), bound(places, body)),
    )
    worth = chunks_of(extent_of(work), share)
    return bound([
        (whole, binary("mul", extent_of(outer), inner)),
        (many, maximum(minimum(worth, whole), 1)),
        (per, maximum(binary("floordiv", whole, many), 1)),
    ], For(chunk, ceiling(whole, per), run, "parallel", 1))  # fmt: skip


def unflattened(axes: Sequence[Axis], position: Scalar) -> list[tuple[Axis, Scalar]]:
    """The values of axes at a position in row-major order, as bindings one after the other."""
    left, bindings = position, list[tuple[Axis, Scalar]]()
    for n, axis in enumerate(axes[:-1]):
        size = shape_size(tuple(a.extent for a in axes[n + 1 :]))
        bindings.append((axis, binary("floordiv", left, extent_of(size))))
        rest = Axis("rest", size)
        bindings.append((rest, binary("sub", left, binary("mul", axis, extent_of(size)))))
        left = rest
    return [*bindings, (axes[-1], left)]


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
