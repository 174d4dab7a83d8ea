"""The rules of `relay.loop.ir`, checked: what a kernel may say, so that code generation need not ask.

Every variable and buffer is bound where it is used; ranks and dtypes agree; register and stack buffers have
constant shapes; unrolled loops have constant extents; sizes are among the kernel's dims; inputs are not
written; the workspace sizes are what the allocations need; and a parallel or vectorized loop does not store
where its iterations would collide (a simple check: the place must move with the loop's variable, be local to an
iteration, or be a reduction in order).
"""

from __future__ import annotations

from typing import NoReturn

from relay.ir.dim import AnyDim, Dim, dim_bounds, dim_sub, dim_vars
from relay.ir.types import DTYPE_BITS, dtype_bits, is_float, is_integer
from relay.loop.errors import LoopError
from relay.loop.ir import (
    BLOCK_COLUMNS,
    BLOCK_DEPTH,
    MOST_BLOCK_ROWS,
    TURN,
    WORKERS,
    Alloc,
    Behind,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Shared,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.loop.walk import buffers_read, expressions, parts
from relay.loop.workspace import buffer_bytes, workspace_bytes
from relay.te.scalar import (
    FLOAT_ONLY,
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    always_read,
    children,
    walk,
)

# Threads have small stacks: what is larger belongs into the workspace.
MAX_STACK_BYTES = 128 << 10

_BITWISE = frozenset(("and", "or", "xor"))
_SHIFTS = frozenset(("shl", "shr"))


def verify(kernel: Kernel) -> None:
    """Raise LoopError for the first rule that a kernel breaks, naming the kernel and the place."""
    try:
        _Verifier(kernel).kernel()
    except LoopError as error:
        raise LoopError(f"in the kernel {kernel.name}: {error.message}", hint=error.hint) from None


def _fail(message: str) -> NoReturn:
    raise LoopError(message)


class _Verifier:
    def __init__(self, given: Kernel) -> None:
        self.given = given
        self.dims = frozenset(given.dims)
        self.inputs = frozenset(given.inputs)
        self.live: set[Buffer] = set()
        self.bound: set[Axis] = {TURN, WORKERS}
        # For every buffer and variable, how many loops surround where it was bound.
        self.loops: list[For] = []
        # How many loops, branches and switches around the place may leave it out.
        self.choices = 0
        # Of the branches and switches among them, the loop variables that decide.
        self.deciding: list[frozenset[Axis]] = []
        self.depth: dict[Buffer, int] = {}
        # For every variable, the loop variables that its value moves with.
        self.moves: dict[Axis, frozenset[Axis]] = {}

    def kernel(self) -> None:
        kernel = self.given
        operands = (*kernel.inputs, *kernel.outputs)
        if len(set(operands)) != len(operands):
            _fail("a buffer is two operands")
        if len(self.dims) != len(kernel.dims):
            _fail("a size is given twice")
        for buffer in operands:
            if buffer.scope != "operand":
                _fail(f"the operand {buffer.name} has the scope {buffer.scope}")
            self.buffer(buffer)
            self.live.add(buffer)
            self.depth[buffer] = 0
        for source, destination in kernel.in_place:
            if not (0 <= source < len(kernel.inputs) and 0 <= destination < len(kernel.outputs)):
                _fail(f"the in-place pair ({source}, {destination}) names no operands")
            if kernel.inputs[source].dtype != kernel.outputs[destination].dtype:
                _fail(f"the in-place pair ({source}, {destination}) has two dtypes")
        self.walk(kernel.body)
        self.streamed()
        shared, worker = workspace_bytes(kernel)
        for needed, stated, name in ((shared, kernel.shared_bytes, "shared"), (worker, kernel.worker_bytes, "worker")):
            lowest = dim_bounds(dim_sub(stated, needed))[0]
            if stated != needed and (lowest is None or lowest < 0):
                _fail(f"{name}_bytes is {stated} and the allocations need {needed}")

    def streamed(self) -> None:
        """What is written past the caches is not read back."""
        if not self.given.streamed:
            return
        read = buffers_read(self.given.body)
        for number in self.given.streamed:
            if not 0 <= number < len(self.given.outputs):
                _fail(f"the streamed output {number} does not exist")
            if self.given.outputs[number] in read:
                _fail(f"the streamed output {self.given.outputs[number].name} is read")

    def buffer(self, buffer: Buffer) -> None:
        if buffer.dtype not in DTYPE_BITS:
            _fail(f"the buffer {buffer.name} has the dtype {buffer.dtype}, which has no storage")
        for dim in buffer.shape:
            self.size(dim, f"the shape of {buffer.name}")
            if buffer.scope in ("register", "stack") and not isinstance(dim, int):
                _fail(f"the {buffer.scope} buffer {buffer.name} has the size {dim}, which is no number")
        if buffer.scope in ("register", "stack"):
            size = buffer_bytes(buffer)
            if isinstance(size, int) and size > MAX_STACK_BYTES:
                _fail(f"the {buffer.scope} buffer {buffer.name} has {size} bytes, more than {MAX_STACK_BYTES}")

    def size(self, dim: Dim, where: str) -> None:
        if isinstance(dim, AnyDim):
            _fail(f"{where} mentions the size `?`")
        unknown = [v.name for v in dim_vars(dim) if v not in self.dims]
        if unknown:
            _fail(f"{where} mentions the size {unknown[0]}, which is not among the kernel's dims")

    # -- statements

    def walk(self, root: Stmt) -> None:
        """Statements in order; what a statement binds is taken back after its body."""
        todo: list[tuple[Stmt, bool]] = [(root, False)]
        while todo:
            stmt, leaving = todo.pop()
            if leaving:
                self.leave(stmt)
                continue
            for expr in expressions(stmt):
                self.expression(expr)
            self.enter(stmt)
            if isinstance(stmt, For | LetScalar | Alloc | Branch | Switch):
                todo.append((stmt, True))
            todo.extend((part, False) for part in reversed(parts(stmt)))

    def leave(self, stmt: Stmt) -> None:
        match stmt:
            case For():
                self.bound.discard(stmt.var)
                self.loops.pop()
                self.choices -= _may_be_left_out(stmt)
            case Branch() | Switch():
                self.choices -= 1
                self.deciding.pop()
            case LetScalar():
                self.bound.discard(stmt.var)
            case Alloc():
                self.live.discard(stmt.buffer)
            case _:
                pass

    def enter(self, stmt: Stmt) -> None:
        match stmt:
            case For():
                self.loop(stmt)
            case LetScalar():
                if stmt.var.dtype != stmt.value.dtype:
                    _fail(f"the variable {stmt.var.name} is {stmt.var.dtype} and its value {stmt.value.dtype}")
                self.bind(stmt.var)
                self.moves[stmt.var] = self.movers(stmt.value)
            case Alloc():
                buffer = stmt.buffer
                if buffer.scope == "operand" or buffer in self.live:
                    _fail(f"the allocation of {buffer.name} is of an operand, or inside of its own")
                if buffer.scope == "workspace" and any(loop.kind == "parallel" for loop in self.loops):
                    _fail(f"the workspace buffer {buffer.name} is allocated in a parallel loop")
                self.buffer(buffer)
                self.live.add(buffer)
                self.depth[buffer] = len(self.loops)
            case Store():
                self.store(stmt)
            case Transpose():
                self.transpose(stmt)
            case BlockProduct():
                self.block_product(stmt)
            case Prefetch():
                self.prefetch(stmt)
            case Branch():
                if stmt.cond.dtype != "bool":
                    _fail(f"a branch is on {stmt.cond.dtype}")
                self.choices += 1
                self.deciding.append(self.movers(stmt.cond))
            case Switch():
                if not is_integer(stmt.value.dtype):
                    _fail(f"a switch is on {stmt.value.dtype}")
                self.choices += 1
                self.deciding.append(self.movers(stmt.value))
            case Fail():
                if not 0 < stmt.code < 1 << 31:
                    _fail(f"the error code {stmt.code} is not positive")
            case Seq():
                pass

    def bind(self, axis: Axis) -> None:
        if axis in self.bound:
            _fail(f"the variable {axis.name} is bound inside of its own scope")
        self.bound.add(axis)

    def loop(self, loop: For) -> None:
        if loop.extent.dtype != "int64" or loop.var.dtype != "int64":
            _fail(f"the loop over {loop.var.name} does not count in int64")
        constant = isinstance(loop.extent, Const) or (
            isinstance(loop.extent, Size) and isinstance(loop.extent.dim, int)
        )
        if loop.kind == "unrolled" and not constant:
            _fail(f"the unrolled loop over {loop.var.name} has no constant extent")
        if loop.grain < 1:
            _fail(f"the loop over {loop.var.name} has the grain {loop.grain}")
        self.bind(loop.var)
        self.moves[loop.var] = frozenset((loop.var,))
        self.loops.append(loop)
        self.choices += _may_be_left_out(loop)

    def store(self, store: Store) -> None:
        buffer = store.buffer
        if buffer not in self.live:
            _fail(f"the buffer {buffer.name} is written outside of its allocation")
        if buffer in self.inputs:
            _fail(f"the input {buffer.name} is written")
        if len(store.indices) != len(buffer.shape):
            _fail(f"{buffer.name} has rank {len(buffer.shape)} and is written with {len(store.indices)} indices")
        if store.value.dtype != buffer.dtype:
            _fail(f"{store.value.dtype} is written to {buffer.name}, which is {buffer.dtype}")
        self.written(buffer, store.indices)
        self.apart(buffer, frozenset().union(*(self.movers(i) for i in store.indices)))

    def transpose(self, stmt: Transpose) -> None:
        target, source = stmt.target, stmt.source
        for buffer in (target, source):
            if buffer not in self.live:
                _fail(f"{buffer.name} is transposed outside of its allocation")
            if len(buffer.shape) != 1:
                _fail(f"{buffer.name} has rank {len(buffer.shape)}: only flat buffers are transposed")
        if target is source or target in self.inputs:
            _fail(f"{source.name} is transposed into {target.name}, which is read only")
        if target.dtype != source.dtype:
            _fail(f"{source.dtype} is transposed into {target.name}, which is {target.dtype}")
        if any(e.dtype != "int64" for e in expressions(stmt)):
            _fail(f"the transposition of {source.name} is measured in something other than int64")
        self.written_by_block(target, stmt.to, "a transposition")

    def block_product(self, stmt: BlockProduct) -> None:
        target, left, right = stmt.target, stmt.left, stmt.right
        for buffer, rank, dtype in (
            (target, 1, "float32"),
            (left, 1, "bfloat16"),
            (right, len(stmt.panel) + 3, "bfloat16"),
        ):
            if buffer not in self.live:
                _fail(f"{buffer.name} is in a product of blocks outside of its allocation")
            if len(buffer.shape) != rank or buffer.dtype != dtype:
                _fail(
                    f"{buffer.name} has rank {len(buffer.shape)} and is {buffer.dtype}, in a product of blocks {rank} and {dtype}"
                )
        if target is left or target is right or target in self.inputs:
            _fail(f"a product of blocks is written to {target.name}, which is read only")
        pairs, columns, two = right.shape[-3:]
        if not isinstance(pairs, int) or not 0 < stmt.depth <= 2 * pairs or stmt.depth % BLOCK_DEPTH != 0:
            _fail(f"a product of blocks is {stmt.depth} deep, and {right.name} has {pairs} pairs")
        if not isinstance(columns, int) or columns % BLOCK_COLUMNS != 0 or two != 2:
            _fail(f"a panel of {right.name} has {columns} columns in groups of {two}")
        if isinstance(stmt.rows, Const) and not 0 < stmt.rows.value <= MOST_BLOCK_ROWS:
            _fail(f"a product of blocks has {stmt.rows.value} rows")
        if any(e.dtype != "int64" for e in stmt.measures):
            _fail(f"the product of blocks in {target.name} is measured in something other than int64")
        self.written(right, stmt.first)
        self.written_by_block(target, stmt.to, "a product of blocks")

    def written_by_block(self, target: Buffer, to: Scalar, what: str) -> None:
        for loop in self.loops[self.depth[target] :]:
            if loop.kind == "vectorized":
                _fail(f"{what} stands in the vectorized loop over {loop.var.name}")
        self.apart(target, self.movers(to))

    def apart(self, buffer: Buffer, moved: frozenset[Axis]) -> None:
        """Iterations of a parallel loop write at places that move with its variable, or what that decides writes one of them."""
        moved = moved.union(*self.deciding)
        for loop in self.loops[self.depth[buffer] :]:
            if loop.kind == "parallel" and loop.var not in moved:
                _fail(f"all iterations of the parallel loop over {loop.var.name} write {buffer.name} at one place")

    def prefetch(self, stmt: Prefetch) -> None:
        buffer = stmt.buffer
        if buffer not in self.live:
            _fail(f"{buffer.name} is prefetched outside of its allocation")
        if len(stmt.indices) != len(buffer.shape):
            _fail(f"{buffer.name} has rank {len(buffer.shape)} and is prefetched with {len(stmt.indices)} indices")
        if any(index.dtype != "int64" for index in stmt.indices):
            _fail(f"an index of {buffer.name} that is prefetched is not int64")

    def movers(self, root: Scalar) -> frozenset[Axis]:
        """The loop variables that an expression depends on; one that reads memory may depend on all of them."""
        found: set[Axis] = set()
        for node in walk(root):
            if isinstance(node, Axis):
                found |= self.moves.get(node, frozenset())
            elif isinstance(node, Load):
                found.update(loop.var for loop in self.loops)
        return frozenset(found)

    # -- expressions

    def expression(self, root: Scalar) -> None:
        outside: list[tuple[Load, str]] = []
        for node in walk(root):
            self.node(node)
            if isinstance(node, Load) and isinstance(node.source, Buffer):
                found = _outside(node.source, node.indices)
                if found is not None:
                    outside.append((node, found))
        if outside and not self.choices:  # what is not chosen, and what no iteration reads, may be anywhere
            always = {id(n) for n in always_read(root)}
            for load, found in outside:
                if id(load) in always:
                    _fail(found)

    def node(self, node: Scalar) -> None:
        kids = children(node)
        match node:
            case Const():
                if node.dtype not in DTYPE_BITS:
                    _fail(f"a constant has the dtype {node.dtype}")
            case Size():
                self.size(node.dim, "an expression")
            case Behind():
                if node.buffer not in self.live:
                    _fail(f"where {node.buffer.name} begins is asked outside of its allocation")
            case Shared():
                pairs = [(self.given.inputs[i], self.given.outputs[o]) for i, o in self.given.in_place]
                if (node.input, node.output) not in pairs:
                    _fail(
                        f"{node.input.name} and {node.output.name}, which never share memory, are asked whether they do"
                    )
            case Axis():
                if node not in self.bound:
                    _fail(f"the variable {node.name} is used outside of what binds it")
            case Load():
                if not isinstance(node.source, Buffer) or node.source not in self.live:
                    name = node.source.name if isinstance(node.source, Buffer) else "a tensor"
                    _fail(f"{name} is read outside of its allocation")
                if len(node.indices) != len(node.source.shape) or node.dtype != node.source.dtype:
                    _fail(f"{node.source.name} is read with the wrong rank or dtype")
                self.indices(node.source, node.indices)
            case Unary():
                if node.op in FLOAT_ONLY and not is_float(node.a.dtype):
                    _fail(f"{node.op} of {node.a.dtype}: it is a function of floats")
                expected = "bool" if node.op in ("isnan", "isinf", "isfinite") else node.a.dtype
                if node.dtype != expected or (node.op == "not" and is_float(node.a.dtype)):
                    _fail(f"{node.op} of {node.a.dtype} gives no {node.dtype}")
            case Binary():
                self.binary(node)
            case Compare():
                if node.a.dtype != node.b.dtype or node.dtype != "bool":
                    _fail(f"a comparison of {node.a.dtype} and {node.b.dtype}")
            case Select():
                if node.cond.dtype != "bool" or not node.a.dtype == node.b.dtype == node.dtype:
                    _fail(f"a select of {', '.join(k.dtype for k in kids)} as {node.dtype}")
            case Bits():
                if dtype_bits(node.dtype) != dtype_bits(node.a.dtype):
                    _fail(f"the bits of {node.a.dtype} are none of {node.dtype}")
            case Dot():
                wanted = "float32" if node.parts == "bf16" else "int32"
                if not node.a.dtype == node.b.dtype == node.dtype == wanted:
                    _fail(f"a dot of words that hold {node.parts} in {node.a.dtype} and {node.b.dtype} as {node.dtype}")
            case Cast():
                if node.dtype not in DTYPE_BITS:
                    _fail(f"a cast to {node.dtype}")
            case Reduce():
                _fail("a reduction stands in a loop nest: reductions are loops over an accumulator here")

    def binary(self, node: Binary) -> None:
        if not node.a.dtype == node.b.dtype == node.dtype:
            _fail(f"{node.op} of {node.a.dtype} and {node.b.dtype} as {node.dtype}")
        if is_float(node.dtype) and (node.op in _BITWISE or node.op in _SHIFTS):
            _fail(f"{node.op} of {node.dtype}")
        if node.dtype == "bool" and node.op not in ("and", "or", "xor", "min", "max", "mul", "add", "sub"):
            _fail(f"{node.op} of bool")
        if node.op == "atan2" and not is_float(node.dtype):
            _fail(f"atan2 of {node.dtype}: it is a function of floats")

    def indices(self, buffer: Buffer, indices: tuple[Scalar, ...]) -> None:
        for index in indices:
            if index.dtype != "int64":
                _fail(f"an index of {buffer.name} is {index.dtype}, not int64")

    def written(self, buffer: Buffer, indices: tuple[Scalar, ...]) -> None:
        self.indices(buffer, indices)
        outside = _outside(buffer, indices)
        if outside is not None:
            _fail(outside)


def _outside(buffer: Buffer, indices: tuple[Scalar, ...]) -> str | None:
    """What is wrong with a place of constant indices outside of a buffer."""
    for index, dim in zip(indices, buffer.shape, strict=True):
        if isinstance(index, Const) and isinstance(dim, int) and not 0 <= index.value < max(dim, 1):
            return f"the index {index.value} of {buffer.name} is outside of the size {dim}"
    return None


def _may_be_left_out(loop: For) -> bool:
    """Whether a loop may have no iteration."""
    return not isinstance(loop.extent, Const) or loop.extent.value < 1
