"""Sums of products of several tensors become sums of products of two.

    einsum((a, b, c), "ij,jk,kl->il")   ->   t = einsum((a, b), "ij,jk->ik");  einsum((t, c), "ik,kl->il")

That is the order in which the operator does them, unless sizes are known and another order multiplies much less: all are compared, as for
a chain of matrices. Apart they are products of matrices, which the middle end knows: equal ones are
made once (those of the gradients by all operands), those of one form share a kernel, and each is differentiated by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import ClassVar, TypeGuard

from relay.ir.expr import Binding, Block, Call, Expr, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TupleType
from relay.op.contractions import Label, equation_labels
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, map_functions
from relay.transform.build import op_call, type_of
from relay.transform.matrix_products import is_sized, shape_of

# Letters of equations.
_LETTERS = [c for c in map(chr, range(ord("a"), 0x250)) if c.isalpha()]
# Operands beyond which not all orders are compared, and how many times as many products the operator's own order has to add up: another
# one is rounded otherwise.
_MOST, _GAIN = 7, 1.5

# An operand's number, or what is multiplied in one step.
_Step = int | tuple["_Step", "_Step"]


@record(frozen=True, slots=True)
class SplitEinsums(Pass):
    """Replace an `einsum` of several tensors by some of fewer each, cut behind each step that sums.

    Before: typed blocks; tensors of unknown sizes (``?``) are left alone. After: the same values, but for rounding where another order
    is much less work. Steps that sum nothing stay with
    what follows: what is between them would take memory and save no work.
    """

    name: ClassVar[str] = "split_einsums"

    def __call__(self, module: Module) -> Module:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            return _in_steps(value, driver.definition(value.args[0])) if _is_einsum(value) else value

        driver = Forward(visit)
        return map_functions(module, driver.function)


def _is_einsum(value: Expr) -> TypeGuard[Call]:
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name == "einsum"


def _in_steps(value: Call, operands: Expr) -> Expr:
    if not isinstance(operands, Tuple) or len(operands.fields) < 3 or not all(map(is_sized, (value, *operands.fields))):
        return value
    labels, result = equation_labels(str(value.attrs["equation"]), [len(shape_of(e) or ()) for e in operands.fields])
    bindings: list[Binding] = []

    def product(fields: Sequence[tuple[Expr, Sequence[Label]]], made: Sequence[Label]) -> Var:
        operands = Var("operands", None, TupleType(tuple(type_of(e) for e, _ in fields)))
        call = op_call("einsum", (operands,), {"equation": _equation([own for _, own in fields], made)}, value.span)
        out = Var("product", None, call.ty)
        bindings.extend((Binding(operands, Tuple(tuple(e for e, _ in fields), operands.ty)), Binding(out, call)))
        return out

    def factors(step: _Step) -> list[tuple[Expr, Sequence[Label]]]:
        """What a step stands for among the factors of a later one."""
        if isinstance(step, int):
            return [(operands.fields[step], labels[step])]
        fields = [field for part in step for field in factors(part)]
        inside = frozenset(_operands(step))
        made = _in_order(_left(inside, labels, result))
        if all(x in made for _, own in fields for x in own):
            return fields
        return [(product(fields, made), made)]

    first, second = _steps(labels, result, _sizes(operands.fields, labels))
    whole = product([*factors(first), *factors(second)], result)
    return Block(tuple(bindings), whole, value.ty, value.span) if len(bindings) > 2 and whole.ty == value.ty else value


def _sizes(operands: Sequence[Expr], labels: Sequence[Sequence[Label]]) -> dict[Label, int] | None:
    """The size of each axis; None where one is not a number, or is broadcast."""
    found: dict[Label, int] = {}
    for operand, own in zip(operands, labels, strict=True):
        for label, dim in zip(own, shape_of(operand) or (), strict=True):
            if not isinstance(label, str) or not isinstance(dim, int):
                return None
            found[label] = dim
    return found


def _steps(
    labels: Sequence[Sequence[Label]], result: Sequence[Label], sizes: Mapping[Label, int] | None
) -> tuple[_Step, _Step]:
    """In which order the operands are multiplied: from left to right, unless another one adds up much fewer products."""
    count = len(labels)
    own: tuple[_Step, _Step] = (0, 1)
    for n in range(2, count):
        own = (own, n)
    if sizes is None or count > _MOST:
        return own

    def work(a: frozenset[int], b: frozenset[int]) -> int:
        return math.prod(sizes[x] for x in {*_left(a, labels, result), *_left(b, labels, result)})

    best: dict[frozenset[int], tuple[int, _Step]] = {frozenset((n,)): (0, n) for n in range(count)}
    for many in range(2, count + 1):
        for chosen in combinations(range(count), many):
            every, ways = frozenset(chosen), []
            for part in (frozenset((chosen[0], *c)) for k in range(many - 1) for c in combinations(chosen[1:], k)):
                (before, a), (after, b) = best[part], best[every - part]
                ways.append((before + after + work(part, every - part), (a, b)))
            best[every] = min(ways, key=lambda way: way[0])
    least, found = best[frozenset(range(count))]
    mine = sum(work(frozenset(range(n)), frozenset((n,))) for n in range(1, count))
    return found if _GAIN * least <= mine and not isinstance(found, int) else own


def _operands(step: _Step) -> list[int]:
    return [step] if isinstance(step, int) else [n for part in step for n in _operands(part)]


def _left(inside: Iterable[int], labels: Sequence[Sequence[Label]], result: Sequence[Label]) -> list[Label]:
    """The axes of the product of some operands: others and the result have them too."""
    mine = set(inside)
    later = {x for n, own in enumerate(labels) if n not in mine for x in own} | set(result)
    return [x for x in dict.fromkeys(x for n in sorted(mine) for x in labels[n]) if x in later]


def _in_order(labels: Sequence[Label]) -> list[Label]:
    """The labels with those of an ellipsis, if there are any, first: as one ellipsis."""
    return sorted((x for x in labels if isinstance(x, int)), reverse=True) + [x for x in labels if isinstance(x, str)]


def _equation(operands: Sequence[Sequence[Label]], result: Sequence[Label]) -> str:
    """The equation with letters in the order of the alphabet, so that equal products are equal calls."""
    names = dict(
        zip(dict.fromkeys(x for labels in operands for x in labels if isinstance(x, str)), _LETTERS, strict=False)
    )

    def term(labels: Sequence[Label]) -> str:
        parts = ["..." if isinstance(x, int) else names[x] for x in labels]
        return "".join(p for n, p in enumerate(parts) if p != "..." or "..." not in parts[:n])

    return ",".join(map(term, operands)) + "->" + term(result)
