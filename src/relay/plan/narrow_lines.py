"""Elements of lines that are shorter than vectors, several lines as one.

    for i in N { y[i * n + j] = x[i * n + j] + b[j] }   ->   for g in N / S { y[g * S * n + w] = x[g * S * n + w] + bs[w] }

A line of three elements is a vector with work for three lanes. Lines that lie behind each other are one line but for what all of them
read alike (a bias), which is repeated on the stack, once for a block of lines. So many lines go together that these are whole vectors,
however long a line is.

    for i in N { y[i * n + j] = select(m[i], x[i * n + j], 0) }   ->   for w in N * n { y[w] = select(ms[w], x[w], 0) }

Where what a line reads once chooses between elements (a mask of rows), a branch for each line is predicted badly and stands for few:
what is read once is spread on the stack then, as often as a line has elements, and lines go together, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import Dim, ceil_div, dim_mul
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer, For, Stmt, Store
from relay.loop.walk import nodes, rewritten, with_values
from relay.plan.build import Builder, allocate, ceiling, seq, vectorized
from relay.plan.parallel import parallel_rows
from relay.plan.space import Accesses
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Scalar,
    Select,
    binary,
    compare,
    conjunction,
    extent_of,
    minimum,
    transform,
    walk,
)

# Lines of up to so many elements are short, of at least so many that go together, and of a block.
_SHORT, _TOGETHER, _BLOCK = 32, 16, 1024
# Elements of a block that a line's own are spread for: the first-level cache holds them, and what was stored is read only when it is there.
_SPREAD = 4096
# So many lines repay what is repeated.
_LEAST = 32


def narrow_lines(
    builder: Builder,
    axes: Sequence[Axis],
    found: Accesses,
    element: Callable[[], Stmt],
    work: int,
    looped: Callable[[Axis, Scalar, Stmt], Stmt],
    lanes: int,
    dear: bool,
) -> tuple[Scalar | None, Stmt] | None:
    """The loops of a nest whose last axis is short, several of its lines together, and on what condition (None: always). ``found``: what
    it accesses; ``element``: what is done for an element; ``looped``: a vector loop of so many ``lanes``; ``dear``: something dear is
    computed. None: lines do not lie behind each other, or are long."""
    *outer, line, last = axes
    width, lines = last.extent, line.extent
    if (isinstance(width, int) and width > _SHORT) or (isinstance(lines, int) and lines < _LEAST):
        return None
    steps = [_steps(builder, poly, line, last) for poly in found.polys]
    spreads, repeats = any(_is_spread(step) for step in steps), (0, 1) in steps
    if {line, last} & found.fixed or not (spreads or repeats):
        return None
    if not all(_is_line(step, width) or step in ((0, 1), (0, 0)) or _is_spread(step) for step in steps):
        return None
    if isinstance(width, int) and width % lanes == 0 and not spreads:
        return None  # whole vectors as they are
    body = element()
    if spreads and not any(_chooses(builder, n, line, last) for n in nodes(body)):
        return None  # one by one they are read as fast
    if not (isinstance(width, int) or dear or spreads):
        return None  # a second way takes as long to compile as the first
    loads = [n for n in nodes(body) if isinstance(n, Load)]
    if any(len(n.indices) != 1 or not isinstance(n.source, Buffer) for n in loads):
        return None
    bits = [dtype_bits(n.dtype) for n in loads]
    if min(bits) < 8:
        return None
    together = max(_TOGETHER, builder.target.lanes(min(bits)))
    most = width if isinstance(width, int) else _SHORT
    size = extent_of(width)
    held = max(_SPREAD // most // together, 1) * together if spreads else _BLOCK
    together = together if repeats else held
    wide, time, lane = Axis("wide", dim_mul(width, together)), Axis("time", together), Axis("lane", width)
    block, group = Axis("lines", ceil_div(lines, held)), Axis("group", held // together)
    start = binary("mul", Const(0, "int64") if block.extent == 1 else block, held)
    here = minimum(held, binary("sub", extent_of(lines), start))
    begin = binary("add", start, binary("mul", group, together))

    repeated: dict[tuple[object, Dim], Buffer] = {}
    spread: dict[tuple[object, Dim], Buffer] = {}
    fills: list[Stmt] = []
    spreading: list[Stmt] = []
    room = -(-most // lanes) * lanes
    own, past = Axis("own", held), Axis("lane", room)

    def read(node: Scalar) -> Scalar:
        """What all lines read alike is found repeated, and what a line reads once spread."""
        if not isinstance(node, Load):
            return node
        poly = builder.indices.poly(node.indices[0])
        step = _steps(builder, poly, line, last)
        if _is_spread(step):
            if (node.source, poly) not in spread:
                tile = Buffer(builder.fresh("spread"), (held * most + room,), node.dtype, "stack")
                spread[node.source, poly] = tile
                (value,) = builder.evaluate([node], {line: binary("add", start, own), last: Const(0, "int64")})
                spreading.append(Store(tile, (binary("add", binary("mul", own, size), past),), value))
            place = binary("add", binary("mul", binary("mul", group, together), size), wide)
            return Load(spread[node.source, poly], (place,), node.dtype)
        if step != (0, 1):
            return node
        if (node.source, poly) not in repeated:
            tile = Buffer(builder.fresh("repeated"), (together * most,), node.dtype, "stack")
            repeated[node.source, poly] = tile
            (value,) = builder.evaluate([node], {last: lane})
            place = binary("add", binary("mul", time, size), lane)
            fills.append(Store(tile, (place,), value))
        return Load(repeated[node.source, poly], (wide,), node.dtype)

    def placed(value: Scalar) -> Scalar:
        (out,) = builder.evaluate([transform(value, read)], {line: begin, last: wide})
        return out

    inner = rewritten(body, lambda stmt: with_values(stmt, placed))
    count = binary("mul", minimum(together, binary("sub", extent_of(lines), begin)), size)
    groups = ceiling(here, Const(together, "int64"))
    stmts: list[Stmt] = [For(group, groups, looped(wide, count, inner))]
    if spreading:
        # In whole vectors: the next line's are written over what is behind a line's.
        whole = binary("mul", ceiling(size, Const(lanes, "int64")), lanes)
        stmts.insert(0, For(own, here, vectorized(past, whole, seq(spreading))))
    if fills:
        stmts.insert(0, For(time, minimum(together, extent_of(lines)), vectorized(lane, size, seq(fills))))
    made = allocate([*repeated.values(), *spread.values()], seq(stmts))
    # Few lines take no longer so than one by one, but where nobody knows how short they are.
    tests = [compare("le", size, _SHORT), compare("ge", extent_of(lines), _LEAST)]
    short = None if isinstance(width, int) else conjunction(tests)
    cost = dim_mul(width, work * (min(lines, held) if isinstance(lines, int) else held))
    return short, parallel_rows(builder, [*outer, block], cost, made)


def _steps(builder: Builder, poly: Dim, line: Axis, last: Axis) -> tuple[Dim | None, Dim | None]:
    """How far elements lie apart from line to line, and in one."""
    return builder.indices.coefficient(poly, line), builder.indices.coefficient(poly, last)


def _is_spread(steps: tuple[Dim | None, Dim | None]) -> bool:
    """Whether a line reads one element, another one than the next line."""
    return steps[1] == 0 and steps[0] not in (0, None)


def _chooses(builder: Builder, node: object, line: Axis, last: Axis) -> bool:
    """Whether what a line reads once chooses between what is read for its elements."""
    if not isinstance(node, Select) or not any(isinstance(n, Load) for side in (node.a, node.b) for n in walk(side)):
        return False
    told = [n for n in walk(node.cond) if isinstance(n, Load) and len(n.indices) == 1]
    steps = [_steps(builder, builder.indices.poly(n.indices[0]), line, last) for n in told]
    return bool(steps) and all(_is_spread(step) for step in steps)


def _is_line(steps: tuple[Dim | None, Dim | None], width: Dim) -> bool:
    return steps[1] == 1 and steps[0] == width
