"""Sums of products of several tensors, as products of two after each other.

    y[i, j, f] = sum(a[s, i, c] * b[s, j, d] * w[c, d, f], (s, c, d))
    ->   t[i, c, j, d] = sum(a[s, i, c] * b[s, j, d], s);   y[i, j, f] = sum(t[i, c, j, d] * w[c, d, f], (c, d))

Which two factors come first is decided by how many products each way adds up, as for a chain of matrices: every sum that runs over
indices which only some of the factors have is made of these alone. Both steps are matrix products then, which a product of three
factors is not. Elements come out otherwise rounded, and no less exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations

from relay.ir.record import record
from relay.plan.graph import TeGraph
from relay.te.rewrite import result_of, rewritten
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, binary, chain, iteration_count, substitute, walk
from relay.te.tensor import Compute, Stage, float_sum

# Factors beyond which not all orders are compared.
_MOST_FACTORS = 5
# How many times as many products a sum has to add up as its steps, for these to be worth their memory. (What has as many as two steps in
# one pass has no matrix product.)
_GAIN = 1.5


@record(frozen=True, slots=True)
class _Factor:
    """An expression and the index variables that it moves with."""

    value: Scalar
    axes: frozenset[Axis]


@record(frozen=True, slots=True)
class _Step:
    """Two factors (of those left) made one, summed over what only they have."""

    pair: tuple[int, int]
    over: frozenset[Axis]
    axes: frozenset[Axis]


def factored(graph: TeGraph) -> TeGraph:
    """The graph with such sums in steps."""
    return replace(graph, outputs=rewritten(graph.outputs, _in_steps))


def is_cheaper_in_steps(stage: Stage, than: Stage) -> bool:
    """Whether one form of a sum is made in steps, with so much less work than another one that the steps are worth their memory."""
    one, other = _way(stage), _way(than)
    return one is not None and other is not None and bool(one.steps) and _GAIN * one.work <= other.work


@record(frozen=True, slots=True)
class _Way:
    """How a sum is made: the ``literals`` and the ``factors`` of its products, in ``steps`` or (of none) at once, with so much ``work``."""

    literals: list[Scalar]
    factors: list[_Factor]
    steps: list[_Step]
    work: int


def _way(stage: Stage) -> _Way | None:
    """The best way to make a sum; None of what is none of products of a few factors."""
    summed = float_sum(stage)
    if summed is None:
        return None
    stage, body = summed
    kept, over = frozenset(stage.axes), frozenset(body.axes)
    literals, factors = _factors(body.body, kept | over)
    if not 2 <= len(factors) <= _MOST_FACTORS:
        return None
    direct = (len(factors) - 1) * iteration_count(kept | over)
    if len(factors) > 2:
        steps = min(_orders([f.axes for f in factors], kept, over), key=lambda way: sum(map(_work, way)))
        work = sum(map(_work, steps))
        if direct >= _GAIN * work:
            return _Way(literals, factors, steps, work)
    return _Way(literals, factors, [], direct)


def _in_steps(stage: Stage) -> Stage:
    way = _way(stage)
    if way is None or not way.steps:
        return stage
    assert isinstance(stage, Compute)
    (body,) = stage.bodies
    assert isinstance(body, Reduce)
    literals, factors, steps = way.literals, way.factors, way.steps
    for step in steps[:-1]:
        one, other = (factors[n] for n in step.pair)
        if _last(one, other, stage.axes) > _last(other, one, stage.axes):
            one, other = other, one
        made = _Factor(_made(one, other, step), step.axes)
        factors = [f for n, f in enumerate(factors) if n not in step.pair] + [made]
    product = reduce(lambda a, b: binary("mul", a, b), [f.value for f in factors] + literals)
    left = tuple(a for a in body.axes if a in steps[-1].over)
    return Compute(stage.name, stage.axes, (Reduce("sum", left, product, body.dtype) if left else product,))


def _factors(product: Scalar, axes: frozenset[Axis]) -> tuple[list[Scalar], list[_Factor]]:
    """The factors that are literals, and the others: one that moves with no more than another does is a part of that one."""
    literals: list[Scalar] = []
    found: list[_Factor] = []
    for value in chain(product, "mul"):
        own = frozenset(n for n in walk(value) if isinstance(n, Axis)) & axes
        if isinstance(value, Const):
            literals.append(value)
        else:
            found.append(_Factor(value, own))
    out: list[_Factor] = []
    for factor in sorted(found, key=lambda f: -len(f.axes)):
        home = next((n for n, f in enumerate(out) if factor.axes <= f.axes), None)
        if home is None:
            out.append(factor)
        else:
            out[home] = _Factor(binary("mul", out[home].value, factor.value), out[home].axes)
    return literals, out


def _orders(factors: Sequence[frozenset[Axis]], kept: frozenset[Axis], over: frozenset[Axis]) -> list[list[_Step]]:
    """All ways to make one of the factors, two by two."""
    if len(factors) == 1:
        return [[]]
    out: list[list[_Step]] = []
    for pair in combinations(range(len(factors)), 2):
        rest = [f for n, f in enumerate(factors) if n not in pair]
        both = factors[pair[0]] | factors[pair[1]]
        own = frozenset(a for a in both & over if not any(a in f for f in rest))
        step = _Step(pair, own, both - own)
        out += [[step, *later] for later in _orders([*rest, step.axes], kept, over)]
    return out


def _work(step: _Step) -> int:
    """How many products a step adds up, and how many elements it keeps."""
    return iteration_count(step.axes | step.over) + iteration_count(step.axes)


def _last(one: _Factor, other: _Factor, axes: Sequence[Axis]) -> int:
    """The last of the result's axes that one of two factors moves with alone: along what is its column it is read last, too."""
    return max((n for n, a in enumerate(axes) if a in one.axes and a not in other.axes), default=-1)


def _made(one: _Factor, other: _Factor, step: _Step) -> Load:
    """The sum of the products of two factors: what belongs to both outermost, then the rows and the columns of a product."""
    shared = [a for a in _in_order(one) if a in other.axes and a in step.axes]
    rows = [a for a in _in_order(one) if a not in other.axes and a in step.axes]
    columns = [a for a in _in_order(other) if a not in one.axes and a in step.axes]
    axes = (*shared, *rows, *columns)
    own = {a: Axis(a.name, a.extent) for a in (*axes, *step.over)}
    moved: dict[Axis, Scalar] = {**own}
    value = substitute(binary("mul", one.value, other.value), moved)
    over = tuple(own[a] for a in _in_order(one) if a in step.over)
    over += tuple(own[a] for a in _in_order(other) if a in step.over and a not in one.axes)
    stage = Compute(
        "factor", tuple(own[a] for a in axes), (Reduce("sum", over, value, value.dtype) if over else value,)
    )
    return result_of(stage, 0)[axes]


def _in_order(factor: _Factor) -> list[Axis]:
    """The index variables of a factor, those first that it is read along first."""
    written = (n for n in reversed(walk(factor.value)) if isinstance(n, Axis))
    return [a for a in dict.fromkeys(written) if a in factor.axes]
