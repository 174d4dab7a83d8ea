"""What expressions look like in Python: arithmetic makes calls, and `repr` is Relay text.

    y = (x - 1.0) * w @ v        # multiply(subtract(x, 1f), w) ...: %x - 1f in the text

Numbers and arrays become constants as everywhere: a Python float is float32, an int int32. Comparisons are calls by name
(``relay.op.less(x, y)``): ``a < b < c`` and ``==`` mean something else in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from relay.ir.diagnostics import RelayError

if TYPE_CHECKING:
    from relay.ir.expr import Call, Expr

# What stands beside an expression: an expression, a number or an array.
Operand = Any


class Notation:
    """Of every expression."""

    __slots__ = ()
    __array_ufunc__ = None  # an array on the left leaves it to the expression

    def __copy__(self) -> Notation:
        """Itself: expressions do not change, and variables are what they are by identity."""
        return self

    def __deepcopy__(self, memo: object) -> Notation:
        return self

    def __reduce__(self) -> NoReturn:
        raise RelayError(
            f"a {type(self).__name__} is a part of a program and is not pickled by itself",
            hint="pickle the module that it is in (relay.infer_type(function) makes one of a function), or keep its text, str(expression)",
        )

    def __add__(self, other: Operand) -> Call:
        return _applied("add", self, other)

    def __radd__(self, other: Operand) -> Call:
        return _applied("add", other, self)

    def __sub__(self, other: Operand) -> Call:
        return _applied("subtract", self, other)

    def __rsub__(self, other: Operand) -> Call:
        return _applied("subtract", other, self)

    def __mul__(self, other: Operand) -> Call:
        return _applied("multiply", self, other)

    def __rmul__(self, other: Operand) -> Call:
        return _applied("multiply", other, self)

    def __truediv__(self, other: Operand) -> Call:
        return _applied("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Call:
        return _applied("divide", other, self)

    def __pow__(self, other: Operand) -> Call:
        return _applied("power", self, other)

    def __rpow__(self, other: Operand) -> Call:
        return _applied("power", other, self)

    def __matmul__(self, other: Operand) -> Call:
        return _applied("nn.matmul", self, other)

    def __rmatmul__(self, other: Operand) -> Call:
        return _applied("nn.matmul", other, self)

    def __neg__(self) -> Call:
        return _applied("negative", self)

    def __repr__(self) -> str:
        """The text, with large constants only mentioned."""
        from relay.ir.printer import expr_text

        return expr_text(cast("Expr", self), complete=False).strip()


def _applied(name: str, *operands: Operand) -> Call:
    from relay.ir.constant import make_constant
    from relay.ir.expr import Call, OpRef

    args = tuple(x if isinstance(x, Notation) else make_constant(x) for x in operands)
    return Call(OpRef(name), cast("tuple[Expr, ...]", args))
