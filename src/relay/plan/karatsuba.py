"""Sums over windows with fewer products, where these are deep: Karatsuba's way to multiply polynomials.

A sum over the taps of a window (`relay.plan.windows`) is a product of polynomials for every remainder by the window's step: there are ``n``
taps ``w_b`` of that remainder, and the operand that slides is cut in blocks of ``n`` places ``x_a``. Of the ``n * n`` products
``x_a w_b`` those with ``a = b`` are made, and one for each two others, because ``x_a w_b + x_b w_a = (x_a + x_b)(w_a + w_b)
- x_a w_a - x_b w_b``. Two taps so take 3 products in place of 4, three 6 in place of 9, and windows of two axes the square of that.

What is multiplied are matrices, for each pair of ``a`` and ``b`` one, so the sums are made once: a stage of the places, one of the
taps, one of the products, and one that puts these together. Each costs memory and time, which has to be less than what multiplying
as many numbers takes. An element is made of the very places and taps that it is defined by, so what is not finite stays where it belongs
(though an infinity may come out as nan); it is rounded as a sum of all pairs of a block is, not only of those that count for it.
Where sizes are not known, what is made and what it saves are formulas of them, and the kernel asks whether it is worth it.
Sources: Karatsuba and Ofman (1962) on multiplication; Winograd (1980) on how many products polynomials take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod

from relay.ir.dim import (
    Dim,
    ceil_div,
    dim_add,
    dim_bounds,
    dim_floordiv,
    dim_mod,
    dim_mul,
    dim_sub,
    dim_vars,
    shape_size,
)
from relay.ir.dim_total import dim_evaluate_total, dim_typical
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.target import Target
from relay.plan.graph import TeGraph
from relay.plan.windows import Window, WindowSum, window_sum
from relay.te.interleave import interleaved
from relay.te.reach import where_any
from relay.te.rewrite import rewritten
from relay.te.scalar import (
    TRUE,
    Axis,
    Const,
    Load,
    Reduce,
    Scalar,
    binary,
    compare,
    conjunction,
    extent_of,
    iteration_count,
    mentioned,
    select,
    substitute,
)
from relay.te.tensor import Compute, Stage, Tensor, stage_over

# Taps of one remainder at most: more take ever more sums, and a pair of them ever less of what they are rounded by.
_MOST_TAPS = 3
# Windows at most: of three axes an element is made of up to 64 products (64 to 64 channels of 12 x 12 x 12, windows of 3: 1.84 ms in
# place of 1.90, but 18 seconds to compile in place of one).
_MOST_WINDOWS = 2
# What an element of the sums of places, of the sums of taps, and of the products takes beside its multiply-adds, in these: it is made,
# stored and read again (one thread, from the second-level cache: 0.18, 0.20 and 0.33 ns, a multiply-add 0.017).
_PLACES, _TAPS, _PRODUCTS = 12, 12, 20
# So many times as much has to be saved, in hundredths, and so many multiply-adds: four products in place of one take a second more to
# compile.
_GAIN, _LEAST = 105, 1 << 22
# Blocks at least, where it is not known how many there are: less code is made of products that have some rows.
_BLOCKS = 24
# The size for which it is asked whether sums of any size take fewer products.
_LARGE = 1 << 10
# Elements of the products and the sums of places at most, of a part that goes through all stages by itself (`relay.plan.outer_parts`):
# beyond that they are in memory.
_MOST_ELEMENTS = 1 << 21
# Vectors side by side in a product's tile.
_VECTORS = 4


@record(frozen=True, slots=True, eq=False)
class Fewer:
    """A graph with the sums made so that are faster so: all of them where ``holds``, a condition on sizes, and the same graph with those
    only that ``always`` are."""

    graph: TeGraph
    holds: Scalar
    always: TeGraph


def in_fewer_products(graph: TeGraph, target: Target) -> Fewer:
    """The graph with such sums made so, where that is faster."""
    conditions: list[Scalar] = []
    fewest: list[tuple[Dim, int]] = []

    def fewer(stage: Stage, sometimes: bool) -> Stage:
        found = window_sum(stage)
        if found is None or len(found.windows) > _MOST_WINDOWS:
            return stage
        asked = _is_worth_it(found)
        if asked is None or (asked and not sometimes):
            return stage
        if asked:
            counts = [shape_size(tuple(c.blocks for c in classes)) for classes in _classes(found)]
            own = shape_size(tuple(a.extent for a in found.rows if a not in found.shared))
            conditions.extend(asked)
            conditions.extend(compare("ge", extent_of(n), _BLOCKS) for n in counts)
            fewest.extend((d, _BLOCKS) for n in counts for d in (n, dim_mul(own, n)))
        return _fewer(found, target)

    outputs = rewritten(graph.outputs, lambda stage: fewer(stage, True))
    made = replace(graph, outputs=outputs, fewest=tuple(fewest))
    if not conditions:
        return Fewer(made, TRUE, made)
    always = replace(graph, outputs=rewritten(graph.outputs, lambda stage: fewer(stage, False)))
    return Fewer(made, conjunction(conditions), always)


@record(frozen=True, slots=True)
class _Class:
    """Of a window the elements ``step * u + remainder``, which are hit by ``taps`` (numbers of the window's): by the b-th of them at
    the place ``u + shift - b``."""

    window: Window
    remainder: int
    taps: range
    shift: int

    @property
    def blocks(self) -> Dim:
        return ceil_div(self.window.places, len(self.taps))

    @property
    def size(self) -> Dim:
        return ceil_div(dim_sub(self.window.size, self.remainder), self.window.step)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """What is multiplied: places alone (as pairs of themselves), then sums of two."""
        n = len(self.taps)
        return [*((a, a) for a in range(n)), *combinations(range(n), 2)]

    def terms(self, residue: int) -> list[tuple[int, int, int]]:
        """What elements so many places behind a block's first are made of: (sign, number of the pair, how many blocks before)."""
        n, pairs = len(self.taps), self.pairs
        out: list[tuple[int, int, int]] = []
        for power, before in ((residue, 0), (residue + n, 1)):
            signs: dict[int, int] = {}
            for a in range(max(0, power - n + 1), min(n, power + 1)):
                b = power - a
                if a == b:
                    signs[a] = signs.get(a, 0) + 1
                elif a < b:
                    signs[pairs.index((a, b))] = 1
                    for alone in (a, b):
                        signs[alone] = signs.get(alone, 0) - 1
            out += ((sign, number, before) for number, sign in sorted(signs.items(), key=lambda s: -s[1]))
        return out

    def block(self, u: Axis, before: int) -> tuple[Scalar, list[Scalar]]:
        """The block of an element, or one before it, and what has to hold for it to exist."""
        n = len(self.taps)
        block = binary("sub", binary("floordiv", binary("add", u, self.shift), n), before)
        conditions: list[Scalar] = []
        if self.shift // n - before < 0:
            conditions.append(compare("ge", block, 0))
        last = dim_sub(dim_floordiv(dim_add(where_any(self.size), self.shift - 1), n), before)
        most = dim_bounds(dim_sub(last, self.blocks))[1]
        if most is None or most >= 0:
            conditions.append(compare("lt", block, extent_of(self.blocks)))
        return block, conditions


def _classes(found: WindowSum) -> Iterator[tuple[_Class, ...]]:
    """The classes of elements that are hit by the same taps."""
    each: list[list[_Class]] = []
    for w in found.windows:
        ahead = [(r, r + w.first) for r in range(w.step)]
        own = (_Class(w, r, range(f % w.step, w.count, w.step), f // w.step) for r, f in ahead)
        each.append([c for c in own if c.taps and not (isinstance(c.size, int) and c.size <= 0)])
    return product(*each)


def _fewer(found: WindowSum, target: Target) -> Stage:
    """The sum, made of fewer products."""
    columns = _columns(found, _VECTORS * target.lanes(dtype_bits(found.dtype)))
    taps = _by_taps(found, columns)
    slid = _by_places(found)
    # Products are made with the columns of the taps side by side.
    axes = [*(a for a in found.stage.axes if a not in found.columns), *found.columns]
    number = {w.axis: n for n, w in enumerate(found.windows)}
    parts: list[tuple[list[int], Tensor]] = []
    for classes in _classes(found):
        remainders = [classes[number[a]].remainder if a in number else 0 for a in axes]
        parts.append((remainders, _class(found, classes, axes, columns, slid, taps)))
    steps = [found.windows[number[a]].step if a in number else 1 for a in axes]
    body = interleaved(axes, steps, parts, found.dtype)
    if found.last not in found.columns and len(parts) > 1:
        body = stage_over("elements", axes, (body,))[0][tuple(axes)]
    return Compute(found.stage.name, found.stage.axes, (body,))


def _is_worth_it(found: WindowSum) -> list[Scalar] | None:
    """What has to hold of sizes so that the products which are saved take longer than what is made for it; None where they do not."""
    known = all(w.is_known for w in found.windows)
    if not known and any(w.step != 1 for w in found.windows):
        return None

    def count(axes: Iterable[Axis]) -> Dim:
        return iteration_count(axes) if known else shape_size(tuple(a.extent for a in axes))

    def times(*counts: Dim) -> Dim:
        return shape_size(counts)

    rows, columns, depth = map(count, (found.rows, found.columns, found.depth))
    # (A product multiplies the border that windows reach into, too.)
    each = [times(w.size, w.count) if w.step == 1 else w.hits() for w in found.windows]
    before = times(*each, rows, columns, depth)
    after: Dim = 0
    places: Dim = 0
    products: Dim = 0
    weights: Dim = 0
    for classes in _classes(found):
        if any(len(c.taps) > _MOST_TAPS for c in classes):
            return None
        pairs, blocks = prod(len(c.pairs) for c in classes), times(*(c.blocks for c in classes))
        after = dim_add(after, times(pairs, blocks, rows, columns, depth))
        products = dim_add(products, times(pairs, blocks, rows, columns))
        if pairs > 1:
            places = dim_add(places, times(pairs, blocks, rows, depth))
        weights = dim_add(weights, times(pairs, count(found.shared), columns, depth))
    parts = max((count([a]) for a in found.rows), key=dim_typical, default=1)
    saved = dim_sub(before, after)
    costs = dim_add(dim_add(times(_PLACES, places), times(_TAPS, weights)), times(_PRODUCTS, products))
    gained = dim_sub(times(100, saved), times(_GAIN, costs))
    demands = [
        dim_sub(saved, _LEAST),
        gained,
        dim_sub(times(_MOST_ELEMENTS, parts), dim_add(products, places)),
    ]
    if any(isinstance(d, int) and d < 0 for d in demands) or _of_large(gained) < 0:
        return None
    return [compare("ge", extent_of(d), 0) for d in demands if not isinstance(d, int)]


def _of_large(d: Dim) -> int:
    """What a dim is where sizes that are not known are as large as ever counts."""
    return d if isinstance(d, int) else dim_evaluate_total(d, dict.fromkeys(dim_vars(d), _LARGE))


# -- the stages


@record(frozen=True, slots=True, eq=False)
class _Columns:
    """The columns of the products: those ``along`` memory are a panel of the taps, which has all that is summed over, and the ``across``
    ones count panels. An axis of the result may be ``split``: into (count, panel's part)."""

    across: tuple[Axis, ...]
    along: tuple[Axis, ...]
    split: Mapping[Axis, tuple[Axis, Axis]]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.across, *self.along)

    def place(self, axes: Sequence[Axis]) -> list[Scalar]:
        """The index of ``axes`` of the result among those of the columns."""
        at: list[Scalar] = []
        for axis in axes:
            if axis in self.split:
                inside = self.split[axis][1].extent
                at += (binary("floordiv", axis, inside), binary("mod", axis, inside))
            else:
                at.append(axis)
        return at

    def inside(self) -> dict[Axis, Scalar]:
        """What the result's axes are in terms of the columns'."""
        return {a: binary("add", binary("mul", n, part.extent), part) for a, (n, part) in self.split.items()}


def _columns(found: WindowSum, width: int) -> _Columns:
    """Panels as wide as a product's tiles, where columns can be cut so; else one of all of them."""
    across, along, size = list(found.columns), list[Axis](), 1
    split: dict[Axis, tuple[Axis, Axis]] = {}
    while across and size < width:
        axis = across.pop()
        assert isinstance(axis.extent, int)
        part = width // size
        if axis.extent > part and axis.extent % part == 0 and width % size == 0:
            split[axis] = Axis(f"{axis.name}o", axis.extent // part), Axis(f"{axis.name}i", part)
            across.append(split[axis][0])
            axis = split[axis][1]
        along.insert(0, axis)
        size = prod(a.extent for a in along if isinstance(a.extent, int))
    return _Columns(tuple(across), tuple(along), split) if size == width else _Columns((), tuple(found.columns), {})


def _by_taps(found: WindowSum, columns: _Columns) -> Tensor:
    """The operand of the taps as the products read it: taps, then what is shared, panels, what is summed over, a panel's columns."""
    axes = (*(w.tap for w in found.windows), *found.shared, *columns.across, *found.depth, *columns.along)
    return stage_over("taps", axes, (substitute(found.taps, columns.inside()),))[0]


@record(frozen=True, slots=True, eq=False)
class _Slid:
    """The operand that slides, over ``axes``: those of its rows, its ``places`` (by the windows' axes), and what is summed over."""

    tensor: Tensor
    axes: tuple[Axis, ...]
    places: Mapping[Axis, Axis]


def _by_places(found: WindowSum) -> _Slid:
    """The operand that slides as the products read it: what is summed over lies along memory."""
    places = {w.axis: Axis(w.axis.name, w.places) for w in found.windows}
    at = list(found.sliding.indices)
    for w in found.windows:
        at[w.at] = places[w.axis]
    axes: list[Axis] = []
    for index in at:
        own = (a for a in (*places.values(), *found.rows, *found.depth) if a in mentioned(index) and a not in axes)
        axes += own
    if mentioned(at[-1]).isdisjoint(found.depth):
        axes.sort(key=lambda a: a in found.depth)
    (made,) = stage_over("slides", axes, (Load(found.sliding.source, tuple(at), found.dtype),))
    return _Slid(made, tuple(axes), places)


def _class(
    found: WindowSum,
    classes: Sequence[_Class],
    axes: Sequence[Axis],
    columns: _Columns,
    slid: _Slid,
    taps: Tensor,
) -> Tensor:
    """The elements of a class, over ``axes`` of the result."""
    pairs = [Axis(f"t{n}", len(c.pairs)) for n, c in enumerate(classes)]
    blocks = {c.window.axis: Axis(c.window.axis.name, c.blocks) for c in classes}
    body = binary("mul", _places(slid, classes, pairs, blocks), _weights(found, classes, columns, pairs, taps))
    rows = [a for a in axes if a not in found.shared and a not in found.columns]
    whole = (*pairs, *found.shared, *(blocks.get(a, a) for a in rows), *columns.axes)
    (made,) = stage_over("products", whole, (Reduce("sum", found.depth, body, found.dtype),))
    own = {c.window.axis: Axis(c.window.axis.name, c.size) for c in classes}

    def read(numbers: Sequence[int], at: Sequence[Scalar]) -> Load:
        where = dict(zip(blocks, at, strict=True))
        return made[(*numbers, *found.shared, *(where.get(a, a) for a in rows), *columns.place(found.columns))]

    body = _together(classes, [own[c.window.axis] for c in classes], read, found.dtype)
    return stage_over("class", [own.get(a, a) for a in axes], (body,))[0]


def _places(slid: _Slid, classes: Sequence[_Class], pairs: Sequence[Axis], blocks: Mapping[Axis, Axis]) -> Load:
    """The sliding operand at the places of a block, and its sums of two of them, read at the product's index."""
    inside = {slid.places[axis]: block for axis, block in blocks.items()}

    def element(numbers: Sequence[Scalar]) -> Scalar:
        at: dict[Axis, Scalar] = {}
        conditions: list[Scalar] = []
        for c, number in zip(classes, numbers, strict=True):
            place, own = blocks[c.window.axis], slid.places[c.window.axis]
            at[own] = binary("add", binary("mul", place, len(c.taps)), number)
            if dim_mod(c.window.places, len(c.taps)) != 0:
                conditions.append(compare("lt", at[own], extent_of(c.window.places)))
        load = slid.tensor[tuple(at.get(a, a) for a in slid.axes)]
        return select(conjunction(conditions), load, Const(0.0, load.dtype)) if conditions else load

    axes = (*pairs, *(inside.get(a, a) for a in slid.axes))
    return stage_over("places", axes, (_sums(classes, pairs, element),))[0][axes]


def _weights(
    found: WindowSum, classes: Sequence[_Class], columns: _Columns, pairs: Sequence[Axis], taps: Tensor
) -> Load:
    """The taps of a class, and the sums of two of them, read at the product's index; they lie as ``taps`` do."""
    rest = (*found.shared, *columns.across, *found.depth, *columns.along)

    def element(numbers: Sequence[Scalar]) -> Scalar:
        at: list[Scalar] = []
        for c, number in zip(classes, numbers, strict=True):
            tap = binary("add", binary("mul", number, c.window.step), c.taps.start)
            at.append(binary("sub", c.window.count - 1, tap) if c.window.turned else tap)
        return taps[(*at, *rest)]

    axes = (*pairs, *rest)
    return stage_over("tap_sums", axes, (_sums(classes, pairs, element),))[0][axes]


def _sums(classes: Sequence[_Class], pairs: Sequence[Axis], element: Callable[[Sequence[Scalar]], Scalar]) -> Scalar:
    """Of each window a coefficient or the sum of two, as the pairs' numbers say: ``element`` is what coefficients have these numbers."""

    def inside(done: tuple[Scalar, ...]) -> Scalar:
        n = len(done)
        if n == len(classes):
            return element(done)
        several = classes[n].pairs
        first = inside((*done, _looked_up(pairs[n], [a for a, _ in several])))
        if len(several) == 1:
            return first
        second = inside((*done, _looked_up(pairs[n], [b for _, b in several])))
        two = compare("ge", pairs[n], len(classes[n].taps))
        return binary("add", first, select(two, second, Const(0.0, first.dtype)))

    return inside(())


def _looked_up(at: Axis, numbers: Sequence[int]) -> Scalar:
    """A number by its position."""
    if len(set(numbers)) == 1:
        return Const(numbers[0], "int64")
    same = next(n for n in range(len(numbers), 0, -1) if list(numbers[:n]) == list(range(n)))
    value: Scalar = at
    for n in range(same, len(numbers)):
        value = select(compare("eq", at, n), Const(numbers[n], "int64"), value)
    return value


def _together(
    classes: Sequence[_Class],
    axes: Sequence[Axis],
    read: Callable[[Sequence[int], Sequence[Scalar]], Load],
    dtype: str,
) -> Scalar:
    """An element of a class, of the products that it is made of (``read`` at numbers of pairs and at blocks)."""

    def inside(chosen: tuple[Sequence[tuple[int, int, int]], ...]) -> Scalar:
        if len(chosen) == len(classes):
            return total(chosen)
        c, axis = classes[len(chosen)], axes[len(chosen)]
        n = len(c.taps)
        residue = binary("mod", binary("add", axis, c.shift), n)
        value = inside((*chosen, c.terms(n - 1)))
        for number in reversed(range(n - 1)):
            value = select(compare("eq", residue, number), inside((*chosen, c.terms(number))), value)
        return value

    def total(chosen: Sequence[Sequence[tuple[int, int, int]]]) -> Scalar:
        value: Scalar | None = None
        for terms in product(*chosen):
            each, sign = one(terms), prod(s for s, _, _ in terms)
            value = each if value is None else binary("add" if sign > 0 else "sub", value, each)
        assert value is not None
        return value

    def one(terms: Sequence[tuple[int, int, int]]) -> Scalar:
        """One of the products, zero where there is no such block."""
        places = [c.block(a, before) for c, a, (_, _, before) in zip(classes, axes, terms, strict=True)]
        load = read([number for _, number, _ in terms], [block for block, _ in places])
        conditions = [c for _, needed in places for c in needed]
        return select(conjunction(conditions), load, Const(0.0, dtype)) if conditions else load

    return inside(())
