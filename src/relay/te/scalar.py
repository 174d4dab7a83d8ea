"""Scalar expressions: what a tensor expression says about one element, and what a loop nest computes.

The same nodes serve two levels. In a tensor expression (`relay.te.tensor`) a `Load` reads a `te.Tensor`; in a loop nest
(`relay.loop.ir`) it reads a `Buffer`. Index arithmetic is int64. A `Dim` enters as `Size`. Every node knows its dtype.
Integer ``floordiv`` and ``mod`` round towards minus infinity, like dims do; ``truncdiv``/``truncmod`` towards zero, like C.
Nodes are frozen and compared by identity; trees may share (they are DAGs), so walk them with a memo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import reduce
from typing import Any, Literal

from relay.ir.dim import Dim, SymDim, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.record import record
from relay.ir.types import is_float

BinaryOp = Literal[
    "add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "truncmod", "min", "max",
    "and", "or", "xor", "shl", "shr", "pow", "atan2",
]  # fmt: skip
CompareOp = Literal["eq", "ne", "lt", "le", "gt", "ge"]
# Comparisons of which one side is a bound of the other, with both sides exchanged.
MIRRORED: Mapping[CompareOp, CompareOp] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
# Elementary functions. Code generation has one vectorised implementation of each with a stated error bound.
UnaryOp = Literal[
    "neg", "abs", "not", "floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10", "log1p",
    "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "sigmoid",
    "isnan", "isinf", "isfinite", "sign",
]  # fmt: skip
FLOAT_ONLY: frozenset[UnaryOp] = frozenset(
    (
        "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "sigmoid",
    )
)  # fmt: skip
# Functions of one operand that jump. For them, for comparisons and for casts to integers a narrow float is rounded to what its dtype
# holds, which other arithmetic leaves to where it is stored or cast: what is equal as the dtype holds it has to be equal.
JUMPING: frozenset[UnaryOp] = frozenset({"floor", "ceil", "round", "trunc", "sign"})
# What two words hold, whose products `Dot` adds up: the first one's elements and the other's.
Parts = Literal["s8u8", "u8s8", "s16", "bf16"]
ReduceKind = Literal["sum", "prod", "max", "min", "all", "any", "argmax", "argmin"]


# The largest whole exponent for which ``x ** n`` multiplies.
_MULTIPLIED = 16


class Operators:
    """Python operators on scalar expressions; numbers become constants of the other side's dtype."""

    __slots__ = ()
    __array_ufunc__ = None  # a NumPy number on the left leaves it to the expression, and NumPy's functions refuse it
    dtype: str

    def __add__(self, other: object) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: object) -> Scalar:
        return binary("add", other, self)

    def __sub__(self, other: object) -> Scalar:
        return binary("sub", self, other)

    def __rsub__(self, other: object) -> Scalar:
        return binary("sub", other, self)

    def __mul__(self, other: object) -> Scalar:
        return binary("mul", self, other)

    def __rmul__(self, other: object) -> Scalar:
        return binary("mul", other, self)

    def __truediv__(self, other: object) -> Scalar:
        return binary("div", self, other)

    def __rtruediv__(self, other: object) -> Scalar:
        return binary("div", other, self)

    def __floordiv__(self, other: object) -> Scalar:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Scalar:
        return binary("floordiv", other, self)

    def __mod__(self, other: object) -> Scalar:
        return binary("mod", self, other)

    def __rmod__(self, other: object) -> Scalar:
        return binary("mod", other, self)

    def __neg__(self) -> Scalar:
        return unary("neg", self)

    def __abs__(self) -> Scalar:
        return unary("abs", self)

    def __rpow__(self, other: object) -> Scalar:
        return binary("pow", other, self)

    def __pow__(self, other: object) -> Scalar:
        if not isinstance(other, int) or isinstance(other, bool) or not 1 <= other <= _MULTIPLIED:
            return binary("pow", self, other)
        out, square = None, wrap(self, self.dtype)
        while other:
            if other & 1:
                out = square if out is None else binary("mul", out, square)
            other >>= 1
            square = binary("mul", square, square) if other else square
        assert out is not None
        return out

    def __invert__(self) -> Scalar:
        return unary("not", self)

    def __lt__(self, other: object) -> Scalar:
        return compare("lt", self, other)

    def __le__(self, other: object) -> Scalar:
        return compare("le", self, other)

    def __gt__(self, other: object) -> Scalar:
        return compare("gt", self, other)

    def __ge__(self, other: object) -> Scalar:
        return compare("ge", self, other)

    def equal(self, other: object) -> Scalar:
        return compare("eq", self, other)

    def not_equal(self, other: object) -> Scalar:
        return compare("ne", self, other)

    def __and__(self, other: object) -> Scalar:
        return binary("and", self, other)

    def __rand__(self, other: object) -> Scalar:
        return binary("and", other, self)

    def __or__(self, other: object) -> Scalar:
        return binary("or", self, other)

    def __ror__(self, other: object) -> Scalar:
        return binary("or", other, self)

    def __xor__(self, other: object) -> Scalar:
        return binary("xor", self, other)

    def __rxor__(self, other: object) -> Scalar:
        return binary("xor", other, self)

    def __lshift__(self, other: object) -> Scalar:
        return binary("shl", self, other)

    def __rlshift__(self, other: object) -> Scalar:
        return binary("shl", other, self)

    def __rshift__(self, other: object) -> Scalar:
        return binary("shr", self, other)

    def __rrshift__(self, other: object) -> Scalar:
        return binary("shr", other, self)

    def astype(self, dtype: str) -> Scalar:
        return cast(self, dtype)

    def __bool__(self) -> bool:
        """Whether there is an expression: so for all but what Python's ``if``, ``and``, ``or`` and ``not`` would decide by."""
        if self.dtype == "bool" and not isinstance(self, Axis | Load):
            raise TypeError(
                "a condition on elements is not known when an operator is defined: te.select, &, | and ~ are made for it"
            )
        return True


@record(frozen=True, slots=True, eq=False)
class Const(Operators):
    """A literal. ``value`` is a Python bool, int or float (inf and nan included)."""

    value: bool | int | float
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Size(Operators):
    """The run-time value of a dimension, as int64."""

    dim: Dim
    dtype: str = "int64"


@record(frozen=True, slots=True, eq=False)
class Axis(Operators):
    """An index variable that runs over ``[0, extent)``; also the loop variables and scalar let-variables of loop nests."""

    name: str
    extent: Dim
    dtype: str = "int64"


@record(frozen=True, slots=True, eq=False)
class Named(Axis):
    """A scalar variable that holds a value: any number of its dtype, where an `Axis` is an index of a known range."""

    extent: Dim = field(default=1, init=False)


@record(frozen=True, slots=True, eq=False)
class Load(Operators):
    """One element of a tensor (te) or buffer (loop). ``indices`` has one int64 expression per axis."""

    source: Source
    indices: tuple[Scalar, ...]
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Unary(Operators):
    op: UnaryOp
    a: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Binary(Operators):
    """``and``/``or``/``xor`` are bitwise on integers and logical on bool; ``shr`` is arithmetic on signed types."""

    op: BinaryOp
    a: Scalar
    b: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Compare(Operators):
    op: CompareOp
    a: Scalar
    b: Scalar
    dtype: str = "bool"


@record(frozen=True, slots=True, eq=False)
class Select(Operators):
    """``a`` where ``cond``, else ``b``. Only the chosen side's loads need be in bounds (padding is written so)."""

    cond: Scalar
    a: Scalar
    b: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Cast(Operators):
    """Convert: float to integer truncates and saturates (nan becomes 0), integer to integer wraps, to bool is ``!= 0``."""

    a: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Bits(Operators):
    """The bits of an operand as those of another dtype, of the same width."""

    a: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Dot(Operators):
    """The sum of the products of what two words of 32 bits hold, the first in the lowest bits: four elements of 8 bits, signed or
    unsigned as ``parts`` says, or two of 16. Sums of integers are int32 and wrap, as their words are; words of bfloat16 numbers, and
    their sums, are float32."""

    parts: Parts
    a: Scalar
    b: Scalar
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Reduce(Operators):
    """A reduction over ``axes``; in a stage, only at the root of its body. ``argmax``/``argmin``: the first index along its axis."""

    kind: ReduceKind
    axes: tuple[Axis, ...]
    body: Scalar
    dtype: str


class Source:
    """What a Load reads: a te.Tensor or a loop Buffer."""

    __slots__ = ()
    shape: tuple[Dim, ...]


Scalar = Const | Size | Axis | Load | Unary | Binary | Compare | Select | Cast | Bits | Dot | Reduce
_NODES = (Const, Size, Axis, Load, Unary, Binary, Compare, Select, Cast, Bits, Dot, Reduce)

TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


def wrap(value: object, dtype: str) -> Scalar:
    """A scalar expression from an expression (kept), a number (a constant of ``dtype``) or a dim (a size)."""
    if isinstance(value, _NODES):
        return value
    if isinstance(value, SymDim):
        return cast(Size(value), dtype)
    if isinstance(value, bool | int | float):
        if dtype == "bool":
            return Const(bool(value), dtype)
        if isinstance(value, float) and not dtype.startswith(("float", "bfloat")) and not value.is_integer():
            raise TypeError(f"{value!r} is no {dtype}: te.cast converts what it is joined with")
        return Const(float(value) if dtype.startswith(("float", "bfloat")) else int(value), dtype)
    plain = _plain(value)
    if plain is not value:
        return wrap(plain, dtype)
    raise TypeError(f"not a number or an expression of one element, such as x[i]: {value!r}")


def _plain(value: object) -> object:
    """A number of NumPy's as one of Python's; anything else as it is. NumPy is imported for what is no number of Python's alone: a process
    that compiles kernels meets none, and importing it is half of what it takes to start."""
    if isinstance(value, bool | int | float):
        return value
    from numpy import generic

    return value.item() if isinstance(value, generic) else value


def extent_of(dim: Dim) -> Scalar:
    """A size as an index expression."""
    return Const(dim, "int64") if isinstance(dim, int) else Size(dim)


def mentioned(*roots: Scalar) -> set[Axis]:
    """The axes in expressions."""
    return {n for root in roots for n in walk(root) if isinstance(n, Axis)}


def mentioned_by_node(root: Scalar) -> dict[int, frozenset[Axis]]:
    """The axes in each node of an expression, by the node's id."""
    found: dict[int, frozenset[Axis]] = {}
    for node in walk(root):
        own = frozenset({node} if isinstance(node, Axis) else ())
        found[id(node)] = own.union(*(found[id(k)] for k in children(node)))
    return found


def iteration_count(axes: Iterable[Axis]) -> int:
    """How many iterations loops over axes have, where unknown sizes are what they may be."""
    return dim_typical(shape_size(tuple(a.extent for a in axes)))


def _pair(a: object, b: object) -> tuple[Scalar, Scalar]:
    if isinstance(a, _NODES):
        return a, wrap(b, a.dtype)
    if isinstance(b, _NODES):
        return wrap(a, b.dtype), b
    # Two numbers, such as te.select may choose between: of the kind that they are written in.
    both = [_plain(v) for v in (a, b)]
    dtype = "float32" if any(isinstance(v, float) for v in both) else "int64"
    if all(isinstance(v, bool) for v in both):
        dtype = "bool"
    return wrap(both[0], dtype), wrap(both[1], dtype)


def binary(op: BinaryOp, a: object, b: object) -> Scalar:
    """A binary operation on operands of one dtype (numbers adopt the other's). Raises TypeError when the dtypes differ."""
    x, y = _pair(a, b)
    if x.dtype != y.dtype:
        raise TypeError(f"{op} of {x.dtype} and {y.dtype}: cast one of them")
    # x + 0 is x only for integers: -0.0 + 0.0 is 0.0.
    neutral = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}.get(op)
    if (
        isinstance(y, Const)
        and not isinstance(y.value, bool)
        and y.value == neutral
        and x.dtype.startswith(("int", "uint"))
    ):
        return x
    if isinstance(x, Const) and op == "add" and x.value == 0 and x.dtype.startswith(("int", "uint")):
        return y
    return Binary(op, x, y, x.dtype)


def compare(op: CompareOp, a: object, b: object) -> Scalar:
    x, y = _pair(a, b)
    if x.dtype != y.dtype:
        raise TypeError(f"comparison of {x.dtype} and {y.dtype}: cast one of them")
    return Compare(op, x, y)


def unary(op: UnaryOp, a: Scalar | Operators) -> Scalar:
    """A function of one operand. Raises TypeError for a function of floats where that is none, and for what no dtype inverts."""
    x = wrap(a, "float32")
    if op in FLOAT_ONLY and not is_float(x.dtype):
        raise TypeError(f"{op} of {x.dtype}: it is a function of floats, cast it to one")
    if op == "not" and is_float(x.dtype):
        raise TypeError(f"not of {x.dtype}: it is for bool and integers")
    return Unary(op, x, "bool" if op in ("isnan", "isinf", "isfinite") else x.dtype)


def cast(a: Scalar | Operators, dtype: str) -> Scalar:
    x = wrap(a, dtype)
    return x if x.dtype == dtype else Cast(x, dtype)


def bits(a: Scalar, dtype: str) -> Scalar:
    """The bits of an operand as those of another dtype of the same width."""
    return a if a.dtype == dtype else Bits(a, dtype)


def select(cond: Scalar, a: object, b: object) -> Scalar:
    """``a`` where a condition holds, else ``b``. Raises TypeError where the condition is none, or the others' dtypes differ."""
    if isinstance(cond, bool):
        raise TypeError(
            f"te.select is given Python's {cond} as a condition: == and != compare expressions as objects, "
            ".equal and .not_equal what they say"
        )
    if not isinstance(cond, _NODES) or cond.dtype != "bool":
        found = f"one of {cond.dtype}" if isinstance(cond, _NODES) else repr(cond)
        raise TypeError(f"te.select chooses by a condition, found {found}: compare it with something")
    x, y = _pair(a, b)
    if x.dtype != y.dtype:
        raise TypeError(f"select of {x.dtype} and {y.dtype}: cast one of them")
    return Select(cond, x, y, x.dtype)


def minimum(a: object, b: object) -> Scalar:
    return binary("min", a, b)


def maximum(a: object, b: object) -> Scalar:
    return binary("max", a, b)


class _ByClass(dict[type, Callable[[Any], tuple[Scalar, ...]]]):
    """Found by the class of a node, or the class that it is derived from."""

    def __missing__(self, kind: type) -> Callable[[Any], tuple[Scalar, ...]]:
        if kind is object:
            raise TypeError("not a node of an expression")
        self[kind] = found = self[kind.__mro__[1]]
        return found


# Looked up, not matched: going over expressions is much of the time of making code.
_OPERANDS = _ByClass(
    {
        Const: lambda node: (),
        Size: lambda node: (),
        Axis: lambda node: (),
        Load: lambda node: node.indices,
        Unary: lambda node: (node.a,),
        Cast: lambda node: (node.a,),
        Bits: lambda node: (node.a,),
        Binary: lambda node: (node.a, node.b),
        Dot: lambda node: (node.a, node.b),
        Compare: lambda node: (node.a, node.b),
        Select: lambda node: (node.cond, node.a, node.b),
        Reduce: lambda node: (node.body,),
    }
)


def children(node: Scalar) -> tuple[Scalar, ...]:
    """The direct operands of a node."""
    return _OPERANDS[type(node)](node)


# The node of each kind over new operands; without an entry: of those that have none.
_OVER: dict[type, Callable[[Any, tuple[Scalar, ...]], Scalar]] = {
    Load: lambda node, new: Load(node.source, new, node.dtype),
    Unary: lambda node, new: Unary(node.op, new[0], node.dtype),
    Cast: lambda node, new: Cast(new[0], node.dtype),
    Bits: lambda node, new: Bits(new[0], node.dtype),
    Dot: lambda node, new: Dot(node.parts, new[0], new[1], node.dtype),
    Binary: lambda node, new: Binary(node.op, new[0], new[1], node.dtype),
    Compare: lambda node, new: Compare(node.op, new[0], new[1]),
    Select: lambda node, new: Select(new[0], new[1], new[2], node.dtype),
    Reduce: lambda node, new: Reduce(node.kind, node.axes, new[0], node.dtype),
}


def rebuild(node: Scalar, operands: tuple[Scalar, ...]) -> Scalar:
    """The node over new operands; the same object when they are the old ones."""
    # Nodes are compared by identity, and so are tuples of them.
    return node if operands == children(node) else _OVER[type(node)](node, operands)


def transform(root: Scalar, visit: Callable[[Scalar], Scalar], memo: dict[int, Scalar] | None = None) -> Scalar:
    """Rewrite bottom-up: ``visit`` is given each node over already rewritten operands and returns its replacement. Iterative."""
    done: dict[int, Scalar] = {} if memo is None else memo
    todo: list[Scalar | None] = [root]  # None: the operands of the node below it are done
    while todo:
        node = todo.pop()
        ready = node is None
        if node is None:
            node = todo.pop()
            assert node is not None
        if id(node) in done:
            continue
        operands = _OPERANDS[type(node)](node)
        if not operands:
            done[id(node)] = visit(node)
        elif ready:
            new = tuple([done[id(k)] for k in operands])
            done[id(node)] = visit(node if new == operands else _OVER[type(node)](node, new))
        else:
            todo += (node, None)
            todo += [k for k in operands if id(k) not in done]
    return done[id(root)]


def walk(root: Scalar, visited: set[int] | None = None) -> list[Scalar]:
    """Every node once, operands before users; of several expressions, none that has been ``visited`` (by identity) before."""
    operands_of = _OPERANDS
    if not operands_of[type(root)](root):
        return [root]  # most indices
    out: list[Scalar] = []
    seen: set[int] = set() if visited is None else visited
    todo: list[Any] = [root]  # None: the node below it comes next in the result
    take, give, see = todo.pop, out.append, seen.add
    while todo:
        node = take()
        if node is None:
            give(take())
        elif (number := id(node)) not in seen:
            see(number)
            operands = operands_of[type(node)](node)
            if operands:
                todo += (node, None, *operands)
            else:
                give(node)
    return out


def always_read(root: Scalar) -> list[Load]:
    """The loads that are evaluated whatever a select chooses, and none inside of an index."""
    out: dict[int, Load] = {}
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            out[id(node)] = node
        else:
            todo += [node.cond] if isinstance(node, Select) else reversed(children(node))
    return list(out.values())


def substitute(root: Scalar, mapping: dict[Axis, Scalar]) -> Scalar:
    """Replace index variables."""
    return transform(root, lambda n: mapping.get(n, n) if isinstance(n, Axis) else n) if mapping else root


def chain(root: Scalar, op: BinaryOp) -> list[Scalar]:
    """What an operation joins, and what it joins there in turn, in order: the terms of a sum, the factors of a product."""
    out: list[Scalar] = []
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, Binary) and node.op == op:
            todo += (node.b, node.a)
        else:
            out.append(node)
    return out


def sides(product: Binary, axis: Axis) -> tuple[Scalar, Scalar]:
    """A product as that of the factors that do not mention an axis and of those that do; as it is written where either are none."""
    apart: tuple[list[Scalar], list[Scalar]] = ([], [])
    for factor in chain(product, "mul"):
        apart[axis in walk(factor)].append(factor)
    if not all(apart):
        return product.a, product.b
    left, right = (reduce(lambda a, b: binary("mul", a, b), part) for part in apart)
    return left, right


def conjunction(conditions: Iterable[Scalar]) -> Scalar:
    """Whether all of some conditions hold."""
    return reduce(lambda a, b: binary("and", a, b), conditions)


def guarded_factors(product: Scalar) -> tuple[list[Scalar], list[Scalar]]:
    """The conditions under which a product is not zero, and what it is the product of where they hold."""
    conditions: list[Scalar] = []
    operands: list[Scalar] = []
    todo = [product]
    while todo:
        for factor in chain(todo.pop(), "mul"):
            if isinstance(factor, Select) and isinstance(factor.b, Const) and factor.b.value == 0:
                conditions.append(factor.cond)
                todo.append(factor.a)
            else:
                operands.append(factor)
    return conditions, operands


def conjuncts(cond: Scalar) -> list[Scalar]:
    """The conditions that must all hold for a boolean expression to hold, in order."""
    return chain(cond, "and")
