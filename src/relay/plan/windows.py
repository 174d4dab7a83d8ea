"""Sums over windows: which places of one operand count for an element, with which taps of the other.

    y[h, c] = sum(select(h - r + f is a multiple of s, and (h - r + f) / s a place, x[(h - r + f) / s, k] * w[r, k, c], 0), (r, k))

is a window of steps ``s``: whatever a definition has for index and guard, what both are everywhere says whether they are this. Where
sizes are not known, these are asked as polynomials, and the step is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relay.ir.dim import Dim, dim_add, dim_sub
from relay.ir.record import record
from relay.te.evaluate import evaluate
from relay.te.index import Indices
from relay.te.reach import where_any
from relay.te.scalar import (
    Axis,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    conjunction,
    conjuncts,
    guarded_factors,
    mentioned,
    select,
    substitute,
    walk,
)
from relay.te.tensor import Compute, Stage, Tensor, float_sum, stage_over

# Pairs of an element and a tap that are looked at.
_MOST_PAIRS = 1 << 16


@record(frozen=True, slots=True)
class Window:
    """An axis of the result and the taps that hit it: ``axis = step * place + tap - first``, for ``count`` taps and ``places`` places;
    ``at`` is the index of the sliding operand that is the place. ``turned``: taps count backwards."""

    axis: Axis
    tap: Axis
    at: int
    step: int
    first: int
    places: Dim
    turned: bool

    @property
    def count(self) -> int:
        assert isinstance(self.tap.extent, int)
        return self.tap.extent

    @property
    def size(self) -> Dim:
        return self.axis.extent

    @property
    def is_known(self) -> bool:
        """Whether its sizes are."""
        return isinstance(self.size, int) and isinstance(self.places, int)

    def hits(self) -> int:
        """How many pairs of place and tap there are that hit an element, of known sizes."""
        assert isinstance(self.size, int) and isinstance(self.places, int)
        at = (self.step * p + t - self.first for p in range(self.places) for t in range(self.count))
        return sum(0 <= h < self.size for h in at)


@record(frozen=True, slots=True, eq=False)
class WindowSum:
    """A sum of products of an operand that slides over places and one of taps. ``depth`` are the other axes summed over."""

    stage: Compute
    sliding: Load
    taps: Load
    windows: tuple[Window, ...]
    depth: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        """Of both operands, and of the sum."""
        return self.sliding.dtype

    @property
    def rows(self) -> list[Axis]:
        """The axes of the result but the windows' and those that only the taps move with."""
        own = mentioned(self.taps) - mentioned(self.sliding)
        return [a for a in self.stage.axes if a not in own and all(a is not w.axis for w in self.windows)]

    @property
    def shared(self) -> list[Axis]:
        """Those of the rows that the taps move with, too: there is a product for each."""
        return [a for a in self.rows if a in mentioned(self.taps)]

    @property
    def columns(self) -> list[Axis]:
        """The axes of the result that only the taps move with."""
        return [a for a in self.stage.axes if a in mentioned(self.taps) - mentioned(self.sliding)]

    @property
    def last(self) -> Axis:
        """The axis along which the result lies in memory."""
        return next((a for a in reversed(self.stage.axes) if a.extent != 1), self.stage.axes[-1])


def window_sum(stage: Stage) -> WindowSum | None:
    """See a stage as such a sum, which reads inside of its tensors and of which taps, depth and columns are known; None where it is
    none."""
    summed = float_sum(stage)
    if summed is None:
        return None
    stage, body = summed
    guard: list[Scalar] = []
    factors = _factors(body.body, guard)
    more = list(guard)
    within = [each for factor in factors for each in _within_borders(factor, more)]
    found = None if within == factors else _found(stage, body, within, more)
    return found or _found(stage, body, factors, guard)


def _found(stage: Compute, body: Reduce, factors: Sequence[Scalar], guard: Sequence[Scalar]) -> WindowSum | None:
    """The sum of products of these factors where a guard holds, if it is one over windows."""
    loads = [f for f in factors if isinstance(f, Load) and f.dtype == body.dtype]
    if len(factors) != 2 or len(loads) != 2:
        return None
    for sliding, taps in (loads, reversed(loads)):
        windows = _windows(stage, body, sliding, taps, guard)
        if windows:
            depth = tuple(a for a in body.axes if all(a is not w.tap for w in windows))
            found = WindowSum(stage, sliding, taps, windows, depth)
            if _is_product(found):
                return found
    return None


def _factors(product: Scalar, guard: list[Scalar]) -> list[Scalar]:
    """The factors of a product, the conditions under which it is not zero added to ``guard``."""
    conditions, operands = guarded_factors(product)
    guard += (c for condition in conditions for c in conjuncts(condition))
    return operands


def _within_borders(factor: Scalar, guard: list[Scalar]) -> list[Scalar]:
    """What a factor reads through stages that put borders of zeros around a tensor, where it is inside of these."""
    source = factor.source if isinstance(factor, Load) else None
    if not isinstance(factor, Load) or not isinstance(source, Tensor) or not isinstance(source.stage, Compute):
        return [factor]
    body = source.stage.bodies[source.index]
    if not isinstance(body, Select) or not isinstance(body.a, Load):
        return [factor]
    inside = substitute(body, dict(zip(source.stage.axes, factor.indices, strict=True)))
    return [each for f in _factors(inside, guard) for each in _within_borders(f, guard)]


def _windows(
    stage: Compute, body: Reduce, sliding: Load, taps: Load, guard: Sequence[Scalar]
) -> tuple[Window, ...] | None:
    """The windows of a sum in which the one operand slides and the other has the taps; None where anything but them is guarded, or moves
    with what they consist of."""
    out: list[Window] = []
    left = list(guard)
    for at, index in enumerate(sliding.indices):
        named = [a for a in mentioned(index) if a.extent != 1]
        own, over = [a for a in named if a in stage.axes], [a for a in named if a in body.axes]
        if len(own) != 1 or len(over) != 1 or len(named) != 2 or over[0] not in mentioned(taps):
            continue
        mine = [c for c in left if mentioned(c) <= {*own, *over}]
        left = [c for c in left if c not in mine]
        window = _window(own[0], over[0], at, index, mine, sliding.source.shape[at])
        if window is None:
            return None
        out.append(window)
    alone = {a for w in out for a in (w.axis, w.tap)}
    if left or len(alone) != 2 * len(out):
        return None
    others = mentioned(*(i for n, i in enumerate(sliding.indices) if all(n != w.at for w in out)))
    if others & alone or mentioned(taps) & {w.axis for w in out}:
        return None
    return tuple(out)


def _window(axis: Axis, tap: Axis, at: int, index: Scalar, guard: Sequence[Scalar], places: Dim) -> Window | None:
    """The window whose place is an index under a guard."""
    if not isinstance(tap.extent, int) or any(isinstance(n, Load) for c in (index, *guard) for n in walk(c)):
        return None
    if isinstance(axis.extent, int) and isinstance(places, int):
        return _counted(axis, tap, at, index, guard, places)
    return _proved(axis, tap, at, index, guard, places)


def _proved(axis: Axis, tap: Axis, at: int, index: Scalar, guard: Sequence[Scalar], places: Dim) -> Window | None:
    """The window of any size, if place, element and tap differ by a number, and what is asked is whether there is such a place."""
    assert isinstance(tap.extent, int)
    indices = Indices()
    # (Of nothing no element is asked for.)
    some = Axis(axis.name, where_any(axis.extent))
    index, *guard = (substitute(c, {axis: some}) for c in (index, *guard))
    place, element, own = indices.poly(index), indices.axis(some), indices.axis(tap)
    behind = dim_sub(place, element)
    turned = isinstance(dim_sub(behind, own), int)
    rest = dim_sub(behind, own) if turned else dim_add(behind, own)
    if not isinstance(rest, int):
        return None
    ends = place, dim_sub(dim_sub(places, 1), place)
    asked = [_asks(indices, condition) for condition in guard]
    if any(a is None or not (a in ends or _is_count(indices, a)) for a in asked):
        return None
    if not indices.within(place, places) and not all(e in asked or _is_count(indices, e) for e in ends):
        return None
    return Window(axis, tap, at, 1, rest + (tap.extent - 1 if turned else 0), places, turned)


def _asks(indices: Indices, condition: Scalar) -> Dim | None:
    """What a comparison asks to be no less than zero; None for other conditions."""
    match condition:
        case Compare("ge" | "gt" | "le" | "lt" as op, a, b) if a.dtype == "int64":
            more, less = (a, b) if op in ("ge", "gt") else (b, a)
            return dim_sub(dim_sub(indices.poly(more), indices.poly(less)), int(op in ("gt", "lt")))
        case _:
            return None


def _is_count(indices: Indices, d: Dim) -> bool:
    least = indices.bounds(d)[0]
    return least is not None and least >= 0


def _counted(axis: Axis, tap: Axis, at: int, index: Scalar, guard: Sequence[Scalar], places: int) -> Window | None:
    """The window of known sizes, whatever index and guard are written like."""
    assert isinstance(axis.extent, int) and isinstance(tap.extent, int)
    # What sizes that are not known say is not the same in every run.
    if any(isinstance(n, Size) for c in (index, *guard) for n in walk(c)):
        return None
    if axis.extent * tap.extent > _MOST_PAIRS:
        return None
    place, hit = _everywhere((axis, tap), index), np.ones((axis.extent, tap.extent), bool)
    if guard:
        hit = _everywhere((axis, tap), select(conjunction(guard), Const(1, "int64"), Const(0, "int64"))) > 0
    h, r = np.nonzero(hit)
    p = place[h, r]
    if p.size == 0 or p.min() < 0 or p.max() >= places or p.min() == p.max():
        return None
    low, high = int(p.argmin()), int(p.argmax())
    for turned, t in ((False, r), (True, tap.extent - 1 - r)):
        rest = h - t
        step, odd = divmod(int(rest[high] - rest[low]), int(p[high] - p[low]))
        if odd or step < 1:
            continue
        window = Window(axis, tap, at, step, step * int(p[low]) - int(rest[low]), places, turned)
        # Each pair that falls on an element must count for it.
        if np.array_equal(rest, step * p - window.first):
            return window if window.hits() == p.size else None
    return None


def _everywhere(axes: tuple[Axis, Axis], value: Scalar) -> npt.NDArray[np.int64]:
    """What an expression of two axes is at each index (others in it have one element)."""
    single: dict[Axis, Scalar] = {a: Const(0, "int64") for a in mentioned(value) - {*axes}}
    (found,) = evaluate(stage_over("at", axes, (substitute(value, single),)), {})
    return np.asarray(found, np.int64)


def _is_product(found: WindowSum) -> bool:
    """Whether the rest of a sum is a product of matrices, of known size but the rows, and reads inside of its tensors."""
    sliding, taps = mentioned(found.sliding), mentioned(found.taps)
    if not found.columns or not all(isinstance(a.extent, int) for a in (*found.depth, *found.columns)):
        return False
    if not all(a in sliding and a in taps for a in found.depth if a.extent != 1):
        return False
    indices = Indices()
    places = {w.at for w in found.windows}
    slides = enumerate(zip(found.sliding.indices, found.sliding.source.shape, strict=True))
    reads = [read for at, read in slides if at not in places]
    reads += zip(found.taps.indices, found.taps.source.shape, strict=True)
    return all(indices.within(indices.poly(i), size) for i, size in reads)
