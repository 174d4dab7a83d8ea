"""How many sums to make at once, and in what order, by what each of their multiply-adds reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING

from relay.ir.dim import AnyDim, Dim, Monomial
from relay.plan.space import accesses
from relay.te.scalar import Axis, Reduce

if TYPE_CHECKING:
    from relay.plan.row_members import Emitter
    from relay.plan.row_parts import MemberPlan

# So many sums at once along an axis at most, and along so many axes; along one of unknown length, what is left over of which has code of
# its own, and along one that is known to be short when it runs.
_MOST_STEPS, MOST_AXES, _STEPS_OF_ANY, _STEPS_OF_SHORT = 16, 2, 8, 4
# Taps of a window that are written out one after the other at most, so that what neighbouring sums have in common is read once; and the
# part of what sums read one by one that they may read together at most, to be made so.
MOST_TAPS, SHARED = 8, 0.75


def steps_and_tap(
    emitter: Emitter, plan: MemberPlan, value: Reduce, others: Sequence[Axis], vectors: int, line: Axis
) -> tuple[dict[Axis, int], Axis | None]:
    """How many sums to make at once along which axes, and which of the axes summed over to write out, if one makes them read much less."""
    steps = steps_of_sums(emitter, value, others, vectors, line)
    tap, least = None, SHARED * read_each(emitter, value, steps, {}, vectors, line)
    for axis in plan.reduced:
        if not isinstance(axis.extent, int) or not 1 < axis.extent <= MOST_TAPS:
            continue
        taps = {axis: axis.extent}
        found = steps_of_sums(emitter, value, others, vectors, line, taps)
        each = read_each(emitter, value, found, taps, vectors, line)
        if each < least:
            steps, tap, least = found, axis, each
    return steps, tap


def steps_of_sums(
    emitter: Emitter,
    value: Reduce,
    others: Sequence[Axis],
    vectors: int,
    line: Axis | None = None,
    unrolled: Mapping[Axis, int] | None = None,
) -> dict[Axis, int]:
    """How many sums to make at once along which of ``others``: those for which least is read, of all that registers hold. What does not
    move with the ``line``, if there is one, is read for all lanes at once. So many terms of a sum as are ``unrolled`` follow each other."""
    taps, registers = unrolled or {}, emitter.builder.target.vector_registers
    candidates: list[dict[Axis, int]] = [{}]
    for axis in others:
        if isinstance(axis.extent, int):
            even = [n for n in range(2, _MOST_STEPS + 1) if axis.extent % n == 0]
        else:
            even = [_STEPS_OF_SHORT if emitter.short else _STEPS_OF_ANY] if axis is others[-1] else []
        candidates += [{**c, axis: n} for c in candidates if len(c) < MOST_AXES for n in even]

    def held(steps: Mapping[Axis, int]) -> int:
        """What sums have in common, and is read once for all of them: along a line, where what is read most of goes by one by one
        (`in_order`), the others."""
        again = _places(emitter, value, {**steps, **taps}, line, True, again=True)
        return (
            reads_of(emitter, value, {**steps, **taps}, line, False)
            + sum(again)
            - (max(again, default=0) if line else 0)
        )

    def fits(steps: Mapping[Axis, int]) -> bool:
        return not steps or prod(steps.values()) * vectors + held(steps) + 2 <= registers

    def each(steps: Mapping[Axis, int]) -> tuple[float, int]:
        return read_each(emitter, value, steps, taps, vectors, line), -prod(steps.values())

    return min(filter(fits, candidates), key=each)


def read_each(
    emitter: Emitter,
    value: Reduce,
    steps: Mapping[Axis, int],
    taps: Mapping[Axis, int],
    vectors: int,
    line: Axis | None,
) -> float:
    """What is read for each multiply-add."""
    along, alike = (reads_of(emitter, value, {**steps, **taps}, line, moves) for moves in (True, False))
    return (along * vectors + alike) / (prod(steps.values()) * prod(taps.values()) * vectors)


def in_order(
    emitter: Emitter,
    value: Reduce,
    others: Sequence[Axis],
    ways: Sequence[tuple[int, ...]],
    tap: Axis | None,
    line: Axis,
) -> list[tuple[int, int]]:
    """The terms of several sums (at ``ways`` of places, by number, and of a tap that is written out) in such an order that what is read
    most of along the line is read for one term after the other, and no register holds it longer."""
    terms = list(product(range(len(ways)), range(tap.extent if tap is not None and isinstance(tap.extent, int) else 1)))
    indices, most, axes = emitter.builder.indices, list[tuple[int, ...]](), [*others, *([] if tap is None else [tap])]
    for poly in accesses(indices, [value.body], []).polys:
        strides = _strides([indices.coefficient(poly, a) for a in axes])
        if indices.coefficient(poly, line) != 0 and strides is not None:
            at = [_place(strides, (*ways[n], t)) for n, t in terms]
            most = max(most, at, key=lambda found: len(set(found)))
    return [terms[n] for n in sorted(range(len(terms)), key=lambda n: most[n])] if most else terms


def reads_of(
    emitter: Emitter, value: Reduce, steps: Mapping[Axis, int], line: Axis | None = None, along: bool = True
) -> int:
    """How many elements are read for so many steps along axes: of what moves with a ``line``, or does not."""
    return sum(_places(emitter, value, steps, line, along))


def _places(
    emitter: Emitter,
    value: Reduce,
    steps: Mapping[Axis, int],
    line: Axis | None,
    along: bool,
    again: bool = False,
) -> list[int]:
    """So many elements of each operand. ``again``: of what steps along several axes read more than once."""
    indices = emitter.builder.indices
    out: list[int] = []
    for poly in accesses(indices, [value.body], []).polys:
        if line is not None and (indices.coefficient(poly, line) != 0) != along:
            continue
        if line is None and not along:
            continue
        moves = [(c, n) for a, n in steps.items() if (c := indices.coefficient(poly, a)) != 0]
        places = prod(n for _, n in moves)
        strides = _strides([c for c, _ in moves])
        apart = places
        if strides is not None:
            apart = len({_place(strides, at) for at in product(*(range(n) for _, n in moves))})
        if apart < places or not again:
            out.append(apart)
    return out


def _strides(factors: Sequence[Dim | None]) -> list[tuple[int, ...]] | None:
    """Strides of which some are not known, as multiples of the products of sizes that they are sums of: what two places differ by is known
    in these. None where an axis has no stride."""
    terms: list[dict[Monomial, int]] = []
    for c in factors:
        if c is None or isinstance(c, AnyDim):
            return None
        terms.append({(): c} if isinstance(c, int) else dict(c.terms))
    monomials = list(dict.fromkeys(m for t in terms for m in t))
    return [tuple(t.get(m, 0) for m in monomials) for t in terms]


def _place(strides: Sequence[tuple[int, ...]], at: Sequence[int]) -> tuple[int, ...]:
    """Where so many steps of these strides lead to."""
    return tuple(sum(map(mul, along, at)) for along in zip(*strides, strict=True))
