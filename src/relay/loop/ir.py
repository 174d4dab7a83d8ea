"""The loop-nest IR, on a page.

A kernel is a `Kernel`: buffers (its operands), dim variables (its int64 arguments) and a body of statements over
the scalar expressions of `relay.te.scalar`, whose `Load`s read `Buffer`s. Loops run from 0 to an extent and carry
how they run:

    serial      one after the other
    parallel    iterations are independent and may run on several threads, in chunks of ``grain``; of a parallel loop inside of another one
                they do where the outer one is a single chunk
    vectorized  iterations are independent (or reduce into a register buffer, see `relay.loop.running`) and become vector lanes; any extent:
                the rest of a division by the lane count runs masked or scalar
    unrolled    expanded at code generation (a constant extent)

`Alloc` scopes: ``register`` (constant shape, every index constant after unrolling and vectorising: lives in registers),
``stack`` (constant shape, small), ``worker`` (in the calling thread's slice of the workspace; shape may be
symbolic) and ``workspace`` (shared by the whole kernel; only outside parallel loops).
Nodes are frozen and compared by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal

from relay.ir.dim import Dim, DimVar
from relay.ir.record import record
from relay.te.scalar import Axis, Binary, Const, Scalar, Source, binary

# How many threads may take part, as a variable that is bound everywhere. For sharing out work only: no result may
# depend on it.
WORKERS = Axis("workers", 1 << 16)

# 0 and 1 from one call of the kernel to the next, a variable that is bound everywhere. For the order of independent parts only, as above.
TURN = Axis("turn", 2)

# Bytes of a cache line.
LINE_BYTES = 64

# Rows of a `BlockProduct` at most: two matrix registers. What it goes by along k, and along the columns.
MOST_BLOCK_ROWS, BLOCK_DEPTH, BLOCK_COLUMNS = 32, 32, 16

LoopKind = Literal["serial", "parallel", "vectorized", "unrolled"]
Scope = Literal["operand", "register", "stack", "worker", "workspace"]


@record(frozen=True, slots=True, eq=False)
class Buffer(Source):
    """Typed memory with a row-major shape. ``alignment`` is in bytes and a promise (operands from outside promise
    one element)."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    scope: Scope = "operand"
    alignment: int = 64


@record(frozen=True, slots=True, eq=False)
class Behind(Axis):
    """How many elements (below ``extent``, those of a line) behind a cache line a buffer begins, as a variable that is bound wherever
    the buffer is. For the order of memory accesses only: no result may depend on it."""

    buffer: Buffer = field(kw_only=True)


@record(frozen=True, slots=True, eq=False)
class Between(Axis):
    """A number that is found when the kernel runs, of which proofs need to know its ends alone. What is bound to it says them
    (`between`): it is ``low`` or more, and none of ``high`` is less."""

    low: int = field(kw_only=True)
    high: tuple[Scalar, ...] = field(kw_only=True)


def between(axis: Between, value: Scalar) -> tuple[Axis, Scalar]:
    """What is bound to such a number: a value, kept between its ends."""
    held = binary("max", value, axis.low)
    for end in axis.high:
        held = Binary("min", held, end, "int64")
    return axis, held


@record(frozen=True, slots=True, eq=False)
class Shared(Axis):
    """1 where an output was given the memory of an input (`Kernel.in_place`), else 0, as a variable that is bound everywhere: what is
    there already need not be written."""

    output: Buffer = field(kw_only=True)
    input: Buffer = field(kw_only=True)


@record(frozen=True, slots=True, eq=False)
class For:
    """``for var in 0..extent``. The extent is an int64 expression; var.extent is its dim where it has one."""

    var: Axis
    extent: Scalar
    body: Stmt
    kind: LoopKind = "serial"
    grain: int = 1


@record(frozen=True, slots=True, eq=False)
class Store:
    buffer: Buffer
    indices: tuple[Scalar, ...]
    value: Scalar


@record(frozen=True, slots=True, eq=False)
class Transpose:
    """Copy a block with its axes exchanged: ``target[to + j * pitch + i] = source[at + i * stride + j]`` for
    ``i < rows`` and ``j < columns``. Both buffers are flat, of one dtype and distinct; rows along memory become
    columns, by blocks in registers."""

    target: Buffer
    to: Scalar
    pitch: Scalar
    source: Buffer
    at: Scalar
    stride: Scalar
    rows: Scalar
    columns: Scalar


@record(frozen=True, slots=True, eq=False)
class BlockProduct:
    """A block of rows times a panel of columns, in matrix registers (`Target.has_matrix_registers`): for ``i < rows`` (1 to 32) and
    ``j < columns``, ``target[to + i * columns + j]`` is the sum over ``k < depth`` of
    ``left[at + i * stride + k] * right[(*panel, k // 2, j, k % 2)]``.

    Products of bfloat16 numbers are summed in float32, subnormal numbers are zeros, and for every 32 of k the even and the odd ones
    are summed apart. ``target`` and ``left`` are flat; ``depth`` is a multiple of 32, and ``columns``, of 16, is how many the panel has.
    ``ahead`` is where in the panel (in elements, counted from its first) lines begin that are asked for meanwhile, and how many of them for
    every 32 of k.
    """

    target: Buffer
    to: Scalar
    left: Buffer
    at: Scalar
    stride: Scalar
    right: Buffer
    panel: tuple[Scalar, ...]
    rows: Scalar
    depth: int
    ahead: tuple[Scalar, Scalar] | None = None

    @property
    def columns(self) -> int:
        """How many columns the panel has."""
        columns = self.right.shape[-2]
        assert isinstance(columns, int)
        return columns

    @property
    def first(self) -> tuple[Scalar, ...]:
        """Where the panel's first element is."""
        return (*self.panel, *[Const(0, "int64")] * 3)

    @property
    def measures(self) -> tuple[Scalar, ...]:
        """The expressions that it is measured in."""
        return (self.to, self.at, self.stride, self.rows, *self.panel, *(self.ahead or ()))

    def measured(self, given: Sequence[Scalar]) -> BlockProduct:
        """The same, measured in other expressions."""
        to, at, stride, rows, *rest = given
        panel, ahead = rest[: len(self.panel)], rest[len(self.panel) :]
        return replace(
            self,
            to=to,
            at=at,
            stride=stride,
            rows=rows,
            panel=tuple(panel),
            ahead=(ahead[0], ahead[1]) if ahead else None,
        )


@record(frozen=True, slots=True, eq=False)
class Prefetch:
    """Ask for the cache line of an element to be brought into the second-level cache, or the first (``level``): what is read next, or
    (``write``) written. Means nothing to results; the place may lie outside of the buffer, and then nothing is asked for. In a vectorized
    loop the line of a vector's first element is asked for."""

    buffer: Buffer
    indices: tuple[Scalar, ...]
    write: bool = False
    level: int = 2


@record(frozen=True, slots=True, eq=False)
class LetScalar:
    """Bind a scalar variable (an `Axis` of the value's dtype) for the body."""

    var: Axis
    value: Scalar
    body: Stmt


@record(frozen=True, slots=True, eq=False)
class Branch:
    """Run ``then`` where the boolean holds, else ``orelse``."""

    cond: Scalar
    then: Stmt
    orelse: Stmt | None = None


@record(frozen=True, slots=True, eq=False)
class Switch:
    """Run case number ``value`` (the residue dispatch of symbolic sizes); a value out of range runs nothing."""

    value: Scalar
    cases: tuple[Stmt, ...]


@record(frozen=True, slots=True, eq=False)
class Alloc:
    """The buffer exists (uninitialised) in the body."""

    buffer: Buffer
    body: Stmt


@record(frozen=True, slots=True, eq=False)
class Seq:
    stmts: tuple[Stmt, ...]


@record(frozen=True, slots=True, eq=False)
class Fail:
    """Return an error code from the kernel (an index out of its declared bounds): codes are in `relay.loop.errors`."""

    code: int


Stmt = For | Store | Transpose | BlockProduct | Prefetch | LetScalar | Branch | Switch | Alloc | Seq | Fail


@record(frozen=True, slots=True, eq=False)
class Kernel:
    """A compiled unit: ``inputs`` then ``outputs`` in the order of the kernel's buffers, ``dims`` in the order of
    its sizes.

    ``in_place`` pairs (input, output) may be given the same memory. ``shared_bytes`` and ``worker_bytes`` are what
    it needs of workspace: ``shared_bytes + workers * worker_bytes``, each a multiple of 64. ``streamed`` are the numbers of
    outputs that are written past the caches where they are large (`Target.streamed_bytes`): nothing here reads them.
    ``rows`` are how many elements a row of each of these has, where that is not known; 0 where it is or does not matter.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    dims: tuple[DimVar, ...]
    body: Stmt
    in_place: tuple[tuple[int, int], ...] = ()
    shared_bytes: Dim = 0
    worker_bytes: Dim = 0
    streamed: tuple[int, ...] = ()
    rows: tuple[Dim, ...] = ()
