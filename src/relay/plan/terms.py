"""Sums of several products, as the sum of a matrix product of each.

    re[i, j] = sum(a[i, k] * b[k, j] - c[i, k] * d[k, j], k)
    ->   s[i, j] = sum(a[i, k] * b[k, j], k);   t[i, j] = sum(c[i, k] * d[k, j], k);   re[i, j] = s[i, j] - t[i, j]

What does not depend on what is summed over is multiplied with the sums, and products that are the same are made once: the gradient of a
polynomial of x with coefficients of its own for each pair is a product for each power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from relay.ir.record import record
from relay.loop.walk import same
from relay.plan.graph import TeGraph
from relay.plan.stages import contraction
from relay.te.rewrite import rewritten
from relay.te.scalar import Binary, Const, Load, Reduce, Scalar, Unary, binary, children, walk
from relay.te.tensor import Compute, Stage, float_sum, stage_over

# Terms of a sum at most, and products among them: each of these is a pass over its operands.
_TERMS, _PRODUCTS = 64, 16


@record(frozen=True, slots=True, eq=False)
class _Term:
    """``product``, times what is the same for all that is summed over (None: nothing)."""

    product: Scalar
    scale: Scalar | None


def term_by_term(graph: TeGraph, constants: frozenset[int]) -> TeGraph:
    """The graph with such sums taken apart. ``constants``: numbers of constant inputs."""
    ids = graph.stages_of(constants)
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _apart(stage, ids)))


def _apart(stage: Stage, constants: frozenset[int]) -> Stage:
    summed = float_sum(stage)
    if summed is None:
        return stage
    stage, body = summed
    if contraction(stage, constants) is not None:
        return stage
    # A factor that is a sum is one operand of a product, unless that makes none.
    return _by_terms(stage, _terms(body, False), constants) or _by_terms(stage, _terms(body, True), constants) or stage


def _by_terms(stage: Compute, terms: Sequence[_Term], constants: frozenset[int]) -> Stage | None:
    """The stage as a sum of the products of these terms; None where one of them is no matrix product, or there is one term as it is."""
    (body,) = stage.bodies
    assert isinstance(body, Reduce)
    if not terms or (len(terms) == 1 and terms[0].scale is None):
        return None
    products: list[Scalar] = []
    scales: list[list[Scalar | None]] = []
    for term in terms:
        known = next((n for n, product in enumerate(products) if same(product, term.product)), None)
        if known is None:
            products.append(term.product)
            scales.append([term.scale])
        else:
            scales[known].append(term.scale)
    sums = [Reduce("sum", body.axes, product, body.dtype) for product in products]
    apart = [Compute(stage.name, stage.axes, (each,)) for each in sums]
    if len(sums) > _PRODUCTS or any(contraction(each, constants) is None for each in apart):
        return None
    total: Scalar | None = None
    for each, factors in zip(sums, scales, strict=True):
        (made,) = stage_over(f"{stage.name}_term", stage.axes, (each,))
        here: Scalar = Load(made, stage.axes, body.dtype)
        if factors != [None]:
            one = Const(1.0, body.dtype)
            scale: Scalar = one if factors[0] is None else factors[0]
            for factor in factors[1:]:
                scale = binary("add", scale, one if factor is None else factor)
            here = binary("mul", here, scale)
        total = here if total is None else binary("add", total, here)
    assert total is not None
    return Compute(stage.name, stage.axes, (total,))


def _terms(body: Reduce, multiplied_out: bool) -> list[_Term]:
    """The terms of a sum in order; none where there are too many. ``multiplied_out``: factors are no sums."""
    varies: dict[int, bool] = {}
    for node in walk(body.body):
        varies[id(node)] = node in body.axes or any(varies[id(kid)] for kid in children(node))
    out: list[_Term] = []
    # Factors of a term that may be sums themselves, those that are not, and what is multiplied with the sum.
    todo: list[tuple[list[Scalar], list[Scalar], Scalar | None]] = [([body.body], [], None)]
    while todo:
        factors, taken, scale = todo.pop()
        if len(out) + len(todo) > _TERMS:
            return []
        if not factors:
            if not taken:
                return []
            out.append(_Term(reduce(lambda x, y: binary("mul", x, y), taken), scale))
            continue
        *rest, node = factors
        minus = Const(-1.0, body.dtype)
        if not varies[id(node)]:
            todo.append((rest, taken, _scaled(scale, node)))
            continue
        match node:
            case Binary(op="add" | "sub") if (taken or rest) and not multiplied_out:
                todo.append((rest, [*taken, node], scale))
            case Binary(op="add"):
                todo += [([*rest, node.b], taken, scale), ([*rest, node.a], taken, scale)]
            case Binary(op="sub"):
                todo += [([*rest, node.b], taken, _scaled(scale, minus)), ([*rest, node.a], taken, scale)]
            case Unary(op="neg"):
                todo.append(([*rest, node.a], taken, _scaled(scale, minus)))
            case Binary(op="mul"):
                todo.append(([*rest, node.b, node.a], taken, scale))
            case Binary(op="div") if not varies[id(node.b)]:
                inverse = binary("div", Const(1.0, body.dtype), node.b)
                todo.append(([*rest, node.a], taken, _scaled(scale, inverse)))
            case _:
                todo.append((rest, [*taken, node], scale))
    return out


def _scaled(scale: Scalar | None, factor: Scalar) -> Scalar:
    return factor if scale is None else binary("mul", scale, factor)
