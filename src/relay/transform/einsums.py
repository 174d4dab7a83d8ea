"""Sums of products of several tensors become sums of products of two.

    einsum((a, b, c), "ij,jk,kl->il")   ->   t = einsum((a, b), "ij,jk->ik");  einsum((t, c), "ik,kl->il")

That is the order in which the operator does them. Apart they are products of matrices, which the middle end knows: equal ones are
made once (those of the gradients by all operands), those of one form share a kernel, and each is differentiated by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from relay.ir.expr import Binding, Block, Call, Expr, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import TupleType
from relay.op.contractions import Label, equation_labels
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, map_functions
from relay.transform.build import op_call, type_of
from relay.transform.matrix_products import is_sized, shape_of

# Letters of equations.
_LETTERS = [c for c in map(chr, range(ord("a"), 0x250)) if c.isalpha()]


@dataclass(frozen=True, slots=True)
class SplitEinsums(Pass):
    """Replace an `einsum` of several tensors by some of fewer each, cut behind each step that sums.

    Before: typed blocks; tensors of unknown sizes (``?``) are left alone. After: the same values. Steps that sum nothing stay with
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
    group, named = list(operands.fields[:1]), labels[:1]
    made: Sequence[Label] = labels[0]  # the axes of the product so far
    for n in range(1, len(labels)):
        group.append(operands.fields[n])
        named.append(labels[n])
        later = {x for own in labels[n + 1 :] for x in own} | set(result)
        both = dict.fromkeys((*made, *labels[n]))
        ends, summed = n == len(labels) - 1, any(x not in later for x in both)
        made = result if ends else _in_order([x for x in both if x in later])
        if not ends and not summed:
            continue
        if ends and not bindings:
            return value
        fields = Var("operands", None, TupleType(tuple(type_of(e) for e in group)))
        call = op_call("einsum", (fields,), {"equation": _equation(named, made)}, value.span)
        product = Var("product", None, call.ty)
        bindings += [Binding(fields, Tuple(tuple(group), fields.ty)), Binding(product, call)]
        group, named = [product], [list(made)]
    return Block(tuple(bindings), product, value.ty, value.span) if product.ty == value.ty else value


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
