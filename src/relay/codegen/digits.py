"""Where an iteration is among axes that a loop goes through as one: counted on from iteration to iteration.

    for r in n { let i = r // (b * c); let rest = r - i * (b * c); let j = rest // c; let k = rest - j * c; ... }

takes a division for each axis in every iteration where sizes are not numbers. Quotients and remainders of the first iteration are computed
before the loop; those of each further one are those before it, of which the last one grows and those that are full begin anew.
"""

from __future__ import annotations

from relay.ir.record import record
from relay.loop.ir import Alloc, For, LetScalar, Stmt
from relay.loop.walk import same, statements
from relay.te.scalar import Axis, Binary, Const, Load, Scalar, walk


@record(frozen=True, slots=True, eq=False)
class Digit:
    """The quotient by a size, and what is left over, of a number that grows by one from iteration to iteration until it begins anew."""

    quotient: Axis
    rest: Axis
    size: Scalar


@record(frozen=True, slots=True, eq=False)
class Digits:
    """What a loop's body begins with: bindings of which some are ``digits`` (the first of ``number``, which grows by one, each further one
    of what the one before it left over), and the body behind them."""

    number: Axis
    bindings: tuple[LetScalar, ...]
    digits: tuple[Digit, ...]
    body: Stmt


def digits_of(loop: For) -> Digits | None:
    """None for a loop that divides its number by nothing of which the size is not known, and for tasks of register tiles: a few divisions
    are nothing beside these, which need all registers."""
    found: list[Digit] = []
    bindings: list[LetScalar] = []
    inside = {loop.var}
    number, counted, stmt = loop.var, loop.var, loop.body
    while isinstance(stmt, LetScalar):
        value, next_ = stmt.value, stmt.body
        if not found and isinstance(value, Binary) and value.op == "add" and number is loop.var:
            other = {value.a: value.b, value.b: value.a}.get(number)
            if other is None or not _stays(other, inside):
                break
            number = stmt.var
        elif value is number:
            number = stmt.var
        elif (size := _divisor(value, number)) is not None and _stays(size, inside):
            if not isinstance(next_, LetScalar) or not _is_rest(next_.value, number, stmt.var, size):
                break
            counted = counted if found else number
            found.append(Digit(stmt.var, next_.var, size))
            inside |= {stmt.var, next_.var}
            bindings.append(stmt)
            stmt, number = next_, next_.var
        else:
            break
        inside.add(stmt.var)
        bindings.append(stmt)
        stmt = stmt.body
    if all(isinstance(d.size, Const) for d in found) or _has_tiles(stmt):
        return None
    return Digits(counted, tuple(bindings), tuple(found), stmt)


def _has_tiles(body: Stmt) -> bool:
    return any(
        isinstance(s, Alloc) and s.buffer.scope == "register" and len(s.buffer.shape) > 1 for s in statements(body)
    )


def _divisor(value: Scalar, number: Axis) -> Scalar | None:
    divides = isinstance(value, Binary) and value.op == "floordiv" and value.a is number
    return value.b if divides and isinstance(value, Binary) else None


def _is_rest(value: Scalar, number: Axis, quotient: Axis, size: Scalar) -> bool:
    """Whether a value is ``number - quotient * size``."""
    if not isinstance(value, Binary) or value.op != "sub" or value.a is not number or not isinstance(value.b, Binary):
        return False
    product = value.b
    return product.op == "mul" and product.a is quotient and same(product.b, size)


def _stays(value: Scalar, inside: set[Axis]) -> bool:
    """Whether a value is the same in all iterations."""
    return not any(isinstance(n, Load) or (isinstance(n, Axis) and n in inside) for n in walk(value))
