"""Elements of lines that are shorter than vectors, several lines as one.

    for i in N { y[i * n + j] = x[i * n + j] + b[j] }   ->   for g in N / S { y[g * S * n + w] = x[g * S * n + w] + bs[w] }

A line of three elements is a vector with work for three lanes. Lines that lie behind each other are one line but for what all of them
read alike (a bias), which is repeated on the stack, once for a block of lines. So many lines go together that these are whole vectors,
however long a line is.
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
    binary,
    compare,
    conjunction,
    extent_of,
    minimum,
    transform,
)

# Lines of up to so many elements are short, of at least so many that go together, and of a block.
_SHORT, _TOGETHER, _BLOCK = 32, 16, 1024
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
    if not isinstance(width, int) and not dear:
        return None  # a second way takes as long to compile as the first
    if (isinstance(width, int) and width > _SHORT) or (isinstance(lines, int) and lines < _LEAST):
        return None
    if isinstance(width, int) and width % lanes == 0:
        return None  # whole vectors as they are
    steps = [_steps(builder, poly, line, last) for poly in found.polys]
    if {line, last} & found.fixed or (0, 1) not in steps:
        return None
    if not all(_is_line(step, width) or step in ((0, 1), (0, 0)) for step in steps):
        return None
    body = element()
    loads = [n for n in nodes(body) if isinstance(n, Load)]
    if any(len(n.indices) != 1 or not isinstance(n.source, Buffer) for n in loads):
        return None
    bits = [dtype_bits(n.dtype) for n in loads]
    if min(bits) < 8:
        return None
    together = max(_TOGETHER, builder.target.lanes(min(bits)))
    most = width if isinstance(width, int) else _SHORT
    wide, time, lane = Axis("wide", dim_mul(width, together)), Axis("time", together), Axis("lane", width)
    size = extent_of(width)
    block, group = Axis("lines", ceil_div(lines, _BLOCK)), Axis("group", _BLOCK // together)
    start = binary("mul", Const(0, "int64") if block.extent == 1 else block, _BLOCK)
    begin = binary("add", start, binary("mul", group, together))

    repeated: dict[tuple[object, Dim], Buffer] = {}
    fills: list[Stmt] = []

    def read(node: Scalar) -> Scalar:
        """What all lines read alike is found repeated."""
        if not isinstance(node, Load):
            return node
        poly = builder.indices.poly(node.indices[0])
        if _steps(builder, poly, line, last) != (0, 1):
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
    groups = ceiling(minimum(_BLOCK, binary("sub", extent_of(lines), start)), Const(together, "int64"))
    loop = For(group, groups, looped(wide, count, inner))
    fill = For(time, minimum(together, extent_of(lines)), vectorized(lane, size, seq(fills)))
    whole = allocate(list(repeated.values()), seq([fill, loop]))
    # Few lines take no longer so than one by one, but where nobody knows how short they are.
    tests = [compare("le", size, _SHORT), compare("ge", extent_of(lines), _LEAST)]
    short = None if isinstance(width, int) else conjunction(tests)
    cost = dim_mul(width, work * _BLOCK) if not isinstance(lines, int) else dim_mul(width, work * min(lines, _BLOCK))
    return short, parallel_rows(builder, [*outer, block], cost, whole)


def _steps(builder: Builder, poly: Dim, line: Axis, last: Axis) -> tuple[Dim | None, Dim | None]:
    """How far elements lie apart from line to line, and in one."""
    return builder.indices.coefficient(poly, line), builder.indices.coefficient(poly, last)


def _is_line(steps: tuple[Dim | None, Dim | None], width: Dim) -> bool:
    return steps[1] == 1 and steps[0] == width
