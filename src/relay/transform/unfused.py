"""Attention that stays what it is spelled as, and why."""

from __future__ import annotations

from collections.abc import Callable

from relay.ir.expr import Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.transform.attention import AttentionFinder
from relay.transform.blocks import Forward, Scope, body_of, is_primitive
from relay.transform.matrix_products import matrix_products
from relay.transform.pattern import Definition
from relay.transform.uses import use_counts

# Operations that are looked at from a product back to another.
_MOST_STEPS = 64
_SOFTMAX = ("nn.softmax", "nn.log_softmax", "exp")


def unfused_attentions(module: Module, least: int = 0) -> list[tuple[str, str]]:
    """For each product in a module of typed blocks that a softmax of another product leads to, and that is no attention as
    `FuseAttention` with this ``least`` sees it: where it is, and why."""
    return [
        found for name, f in module.functions.items() if not is_primitive(f) for found in _unfused_in(name, f, least)
    ]


def _unfused_in(name: str, function: Function, least: int) -> list[tuple[str, str]]:
    uses = use_counts(body_of(function))
    found: dict[Var, tuple[str, str]] = {}

    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        finder = AttentionFinder(driver.definition, uses, least)
        whole = finder.attention(value)
        if whole is not None:  # of a product that is divided by the sum of its weights: the quotient
            for operand in _operands(value):
                if isinstance(operand, Var):
                    found.pop(operand, None)
        elif _between_products(value, driver.definition):
            where = f"@{name} at {value.span}" if value.span is not None else f"@{name}, %{var.name}"
            found[var] = where, finder.why or "its products are none of matrices that are given at run time"
        return value

    driver = Forward(visit)
    driver.function(function)
    return list(found.values())


def _between_products(value: Expr, definition: Definition) -> bool:
    """Whether a value is a product to which a softmax leads that is made of another product."""
    for product in matrix_products(value, definition):
        softmax = _reached(product.left, definition, _is_softmax)
        if softmax is not None and _reached(softmax, definition, _product(definition)) is not None:
            return True
    return False


def _is_softmax(value: Expr) -> bool:
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name in _SOFTMAX


def _product(definition: Definition) -> Callable[[Expr], bool]:
    return lambda value: bool(matrix_products(value, definition))


def _reached(e: Expr, definition: Definition, wanted: Callable[[Expr], bool]) -> Expr | None:
    """The first operation of a kind that some operations lead to from what computes a tensor, none of them a product."""
    todo = [definition(e)] if isinstance(e, Var) else [definition(a) for a in _operands(e) if isinstance(a, Var)]
    for _ in range(_MOST_STEPS):
        if not todo:
            break
        value = todo.pop(0)
        if wanted(value):
            return value
        if not matrix_products(value, definition):
            todo += [definition(a) for a in _operands(value) if isinstance(a, Var)]
    return None


def _operands(value: Expr) -> tuple[Expr, ...]:
    if isinstance(value, Tuple):
        return value.fields
    return value.args if isinstance(value, Call) and isinstance(value.fn, OpRef) else ()
