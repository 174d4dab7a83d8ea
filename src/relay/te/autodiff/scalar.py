"""Derivatives of scalar expressions: the adjoints of what an expression reads (reverse), its tangent (forward).

Where a function is not differentiable one of its one-sided derivatives is taken, always so that the parts sum to what they
should: of two equal operands of ``min`` and ``max`` the second one counts (so that ``max(x, 0)`` has derivative 0 at 0), ``abs``
has derivative 0 at 0, and rounding has derivative 0 everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from relay.ir.types import is_float
from relay.te.autodiff.arithmetic import add, choose, converted, div, either, is_const, mul, neg, where_too
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Scalar,
    Select,
    Unary,
    binary,
    compare,
    unary,
    walk,
)


class NotDifferentiable(Exception):
    """An expression uses something that has no derivative rule; the message names it."""


def adjoints(root: Scalar, seed: Scalar, leaf: Callable[[Scalar], bool]) -> list[tuple[Scalar, Scalar]]:
    """What ``seed`` times the derivative of ``root`` with respect to each leaf is: (leaf, adjoint) pairs, reads of one tensor
    apart. ``leaf`` tells which loads and variables are wanted. An adjoint has the dtype in which the leaf is computed with: a
    16-bit element that is widened where it is read has a wide adjoint."""
    order = walk(root)
    wanted: set[int] = set()
    for node in order:
        if is_float(node.dtype) and (leaf(node) or any(id(k) in wanted for k in _operands(node))):
            wanted.add(id(node))
    if id(root) not in wanted:
        return []
    found: dict[int, Scalar | None] = {id(root): seed}
    out: list[tuple[Scalar, Scalar]] = []
    for node in reversed(order):
        adjoint = found.get(id(node))
        if adjoint is None or id(node) not in wanted:
            continue
        if leaf(node):
            out.append((node, adjoint))
            continue
        if isinstance(node, Cast) and leaf(node.a):
            out.append((node.a, adjoint))
            continue
        for operand, part in _parts(node, adjoint):
            if id(operand) in wanted and part is not None:
                found[id(operand)] = _together(found.get(id(operand)), part)
    return out


def tangent(root: Scalar, tangents: Callable[[Scalar], Scalar | None], memo: dict[int, Scalar | None]) -> Scalar | None:
    """The tangent of an expression, given those of its loads and variables; None where it is zero."""
    for node in walk(root):
        if id(node) in memo:
            continue
        value = tangents(node) if isinstance(node, Load | Axis) else None
        if isinstance(node, Select) and is_float(node.dtype):
            # Its own choice is made first: those within may read what it excludes.
            value = choose(node.cond, memo.get(id(node.a)), memo.get(id(node.b)), node.dtype)
        elif not isinstance(node, Load | Axis) and is_float(node.dtype):
            for n, operand in enumerate(_operands(node)):
                own = memo.get(id(operand))
                if own is not None:
                    # The derivative's transpose for one operand is the derivative itself: both multiply by one number. That of a
                    # conversion converts back, so the conversion itself is the transpose of the one back.
                    transposed = Cast(node, operand.dtype) if isinstance(node, Cast) else node
                    value = _together(value, _parts(transposed, own)[n][1])
        memo[id(node)] = value
    return memo[id(root)]


def _operands(node: Scalar) -> tuple[Scalar, ...]:
    """The operands whose value a derivative can pass through."""
    match node:
        case Unary() | Cast():
            return (node.a,)
        case Binary():
            return (node.a, node.b)
        case Select():
            return (node.a, node.b)
        case _:
            return ()


def _parts(node: Scalar, adjoint: Scalar) -> list[tuple[Scalar, Scalar | None]]:
    """The adjoint of each operand; None where it is zero.

    What an adjoint is zero without stays around everything that it is multiplied with: where a choice is not taken, what it
    would choose may read outside of a tensor, or not be a number.
    """
    chosen: list[tuple[Scalar, bool]] = []
    while isinstance(adjoint, Select) and (is_const(adjoint.b, 0) or is_const(adjoint.a, 0)):
        taken = is_const(adjoint.b, 0)
        chosen.append((adjoint.cond, taken))
        adjoint = adjoint.a if taken else adjoint.b
    bounds = _bounds(adjoint)
    if bounds is not None:
        chosen.append((bounds, True))
    parts = _local_parts(node, adjoint)
    return [(operand, _under(chosen, part)) for operand, part in parts]


def _together(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    """The sum of two parts of an adjoint, under the choices that both are under."""
    shared: list[tuple[Scalar, bool]] = []
    while isinstance(a, Select) and isinstance(b, Select) and a.cond is b.cond:
        taken = is_const(a.b, 0) and is_const(b.b, 0)
        if not taken and not (is_const(a.a, 0) and is_const(b.a, 0)):
            break
        shared.append((a.cond, taken))
        a, b = (a.a, b.a) if taken else (a.b, b.b)
    return _under(shared, add(a, b))


def _under(choices: Sequence[tuple[Scalar, bool]], value: Scalar | None) -> Scalar | None:
    """A value under choices, the outermost first: where each condition is what is said of it, and zero elsewhere."""
    for cond, taken in reversed(choices):
        if value is None:
            return None
        value = choose(cond, value, None, value.dtype) if taken else choose(cond, None, value, value.dtype)
    return value


def _bounds(adjoint: Scalar) -> Scalar | None:
    """The condition of indices that a sum is zero without, as every term is; None where one may always count."""
    found: Scalar | None = None
    todo = [adjoint]
    while todo:
        term = todo.pop()
        if isinstance(term, Binary) and term.op in ("add", "sub"):
            todo += (term.b, term.a)
            continue
        own: Scalar | None = None
        while isinstance(term, Select) and is_const(term.b, 0):
            if _is_of_indices(term.cond):
                own = term.cond if own is None else where_too(own, term.cond)
            term = term.a
        if own is None:
            return None
        found = own if found is None else either(found, own)
    return found


def _is_of_indices(cond: Scalar) -> bool:
    return all(not is_float(n.a.dtype) for n in walk(cond) if isinstance(n, Compare))


def _local_parts(node: Scalar, adjoint: Scalar) -> list[tuple[Scalar, Scalar | None]]:
    """The adjoint of each operand by the rule of the node alone."""
    match node:
        case Unary():
            rule = _UNARY.get(node.op)
            if rule is None:
                raise NotDifferentiable(f"{node.op} of {node.a.dtype} has no derivative")
            return [(node.a, rule(adjoint, node.a, node))]
        case Cast():
            return [(node.a, converted(adjoint, node.a.dtype) if is_float(node.a.dtype) else None)]
        case Select():
            # Of the adjoint's own dtype: it is wider than the choice where that is widened by what reads it.
            return [
                (node.a, choose(node.cond, adjoint, None, adjoint.dtype)),
                (node.b, choose(node.cond, None, adjoint, adjoint.dtype)),
            ]
        case Binary():
            return _binary_parts(node, adjoint)
        case _:
            return []


def _binary_parts(node: Binary, g: Scalar) -> list[tuple[Scalar, Scalar | None]]:
    a, b = node.a, node.b
    match node.op:
        case "add":
            return [(a, g), (b, g)]
        case "sub":
            return [(a, g), (b, neg(g))]
        case "mul":
            return [(a, mul(g, b)), (b, mul(g, a))]
        case "div":
            return [(a, div(g, b)), (b, neg(mul(div(g, b), node)))]
        case "min":
            first = compare("lt", a, b)
            return [(a, choose(first, g, None, g.dtype)), (b, choose(first, None, g, g.dtype))]
        case "max":
            first = compare("gt", a, b)
            return [(a, choose(first, g, None, g.dtype)), (b, choose(first, None, g, g.dtype))]
        case "pow":
            return [(a, _power_base(a, b, g)), (b, _power_exponent(a, node, g))]
        case "atan2":
            square = binary("add", binary("mul", a, a), binary("mul", b, b))
            return [(a, mul(g, div(b, square))), (b, neg(mul(g, div(a, square))))]
        case "floordiv" | "truncdiv":
            return [(a, None), (b, None)]
        case "mod" | "truncmod":
            whole = unary("floor" if node.op == "mod" else "trunc", binary("div", a, b))
            return [(a, g), (b, neg(mul(g, whole)))]
        case _:
            raise NotDifferentiable(f"{node.op} of {node.dtype} has no derivative")


def _power_base(a: Scalar, b: Scalar, g: Scalar) -> Scalar | None:
    """``b * a ** (b - 1)``, 0 for the exponent 0 whatever the base."""
    if isinstance(b, Const):
        if b.value == 0:
            return None
        if b.value == 1:
            return g
        below = b.value - 1
        power = a if below == 1 else binary("pow", a, Const(below, b.dtype))
        return mul(g, mul(power, b))
    slope = binary("mul", b, binary("pow", a, binary("sub", b, 1)))
    return mul(g, choose(compare("eq", b, 0), None, slope, b.dtype) or slope)


def _power_exponent(a: Scalar, node: Binary, g: Scalar) -> Scalar:
    """``a ** b * log(a)``, 0 for the base 0 (its limit where the power has one)."""
    log = choose(compare("eq", a, 0), None, unary("log", a), a.dtype)
    assert log is not None
    return mul(g, mul(node, log))


Rule = Callable[[Scalar, Scalar, Unary], Scalar | None]


def _c(value: float, like: Scalar) -> Const:
    return Const(value, like.dtype)


def _one_minus_square(x: Scalar) -> Scalar:
    return binary("sub", _c(1.0, x), binary("mul", x, x))


def _one_plus_square(x: Scalar) -> Scalar:
    return binary("add", binary("mul", x, x), _c(1.0, x))


# The adjoint of the operand from that of the result: of (adjoint, operand, result).
_UNARY: Mapping[str, Rule] = {
    "neg": lambda g, x, y: neg(g),
    "abs": lambda g, x, y: mul(g, unary("sign", x)),
    "floor": lambda g, x, y: None,
    "ceil": lambda g, x, y: None,
    "round": lambda g, x, y: None,
    "trunc": lambda g, x, y: None,
    "sign": lambda g, x, y: None,
    "sqrt": lambda g, x, y: div(mul(g, _c(0.5, x)), y),
    "rsqrt": lambda g, x, y: mul(mul(g, _c(-0.5, x)), binary("div", y, x)),
    "exp": lambda g, x, y: mul(g, y),
    "exp2": lambda g, x, y: mul(mul(g, y), _c(math.log(2), x)),
    "log": lambda g, x, y: div(g, x),
    "log2": lambda g, x, y: div(mul(g, _c(1 / math.log(2), x)), x),
    "log10": lambda g, x, y: div(mul(g, _c(1 / math.log(10), x)), x),
    "log1p": lambda g, x, y: div(g, binary("add", x, _c(1.0, x))),
    "expm1": lambda g, x, y: mul(g, binary("add", y, _c(1.0, x))),
    "sin": lambda g, x, y: mul(g, unary("cos", x)),
    "cos": lambda g, x, y: neg(mul(g, unary("sin", x))),
    "tan": lambda g, x, y: mul(g, _one_plus_square(y)),
    "asin": lambda g, x, y: mul(g, unary("rsqrt", _one_minus_square(x))),
    "acos": lambda g, x, y: neg(mul(g, unary("rsqrt", _one_minus_square(x)))),
    "atan": lambda g, x, y: div(g, _one_plus_square(x)),
    "sinh": lambda g, x, y: mul(g, unary("cosh", x)),
    "cosh": lambda g, x, y: mul(g, unary("sinh", x)),
    "tanh": lambda g, x, y: mul(g, _one_minus_square(y)),
    "erf": lambda g, x, y: mul(g, mul(unary("exp", neg(binary("mul", x, x))), _c(2 / math.sqrt(math.pi), x))),
    "sigmoid": lambda g, x, y: mul(g, mul(y, binary("sub", _c(1.0, x), y))),
}
