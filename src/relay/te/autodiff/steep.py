"""Which steps may have slopes that are infinite, or no numbers, of finite operands: what a program does not compute may have a cotangent
of 0, and 0 times such a slope is no 0.

A step alone may, or may not, by where its operands lie: ``sqrt(sum(x * x) + eps)`` and ``1 / (1 + exp(-abs(x)))`` are as flat as a product.
So a definition is gone through with bounds of what it computes, from those of its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from relay.ir.dim import dim_bounds
from relay.ir.record import record
from relay.ir.types import is_float
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Source,
    Unary,
    UnaryOp,
    walk,
)
from relay.te.tensor import Placeholder, Scan, Stage, Tensor, stage_bodies, stages

# Elementary functions that are finite everywhere, and so are their slopes.
_GENTLE: frozenset[UnaryOp] = frozenset(
    (
        "neg", "abs", "not", "floor", "ceil", "round", "trunc", "sin", "cos", "atan", "tanh", "erf", "sigmoid", "isnan",
        "isinf", "isfinite", "sign",
    )
)  # fmt: skip
# What is to be 0 no more has to be so far from it that the slopes of a quotient or of a root, and theirs, are no overflow; what is
# exponentiated has to be below a number that gives none.
_FAR, _EXPONENT = 1e-12, 10.0


@record(frozen=True, slots=True)
class Range:
    """Bounds of numbers, infinite where there is none."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def is_positive(self) -> bool:
        return self.low >= _FAR

    @property
    def has_zero(self) -> bool:
        return -_FAR < self.low < _FAR or -_FAR < self.high < _FAR or self.low < 0 < self.high

    def of(self, function: Callable[[float], float]) -> Range:
        """What a function that grows makes of it."""
        return Range(_at(function, self.low), _at(function, self.high))


ANYTHING = Range()


@record(frozen=True, slots=True)
class Survey:
    """Of a definition: whether a step of it is steep, and where the elements of its outputs lie."""

    steep: bool
    outputs: tuple[Range, ...]


def survey(outputs: Sequence[Tensor], operands: Callable[[Placeholder], tuple[object, Range]]) -> Survey:
    """Go through a definition. ``operands``: of each of its inputs, whose value it is (the same for two inputs that are one), and its
    bounds."""
    found = _Survey(operands)
    for stage in stages(outputs):
        found.stage(stage)
    return Survey(found.steep, tuple(found.ranges[t.stage][t.index] for t in outputs))


class _Survey:
    def __init__(self, operands: Callable[[Placeholder], tuple[object, Range]]) -> None:
        self.operands = operands
        self.ranges: dict[Stage, tuple[Range, ...]] = {}
        self.values: dict[Stage, object] = {}
        self.indices: set[Axis] = set()
        self.steep = False

    def stage(self, stage: Stage) -> None:
        if isinstance(stage, Placeholder):
            self.values[stage], given = self.operands(stage)
            self.ranges[stage] = (given,)
            return
        self.values[stage] = stage
        self.indices = {*stage.axes, *(a for b in stage_bodies(stage) if isinstance(b, Reduce) for a in b.axes)}
        ranges = tuple(map(self._body, stage_bodies(stage)))
        # (A recurrence's states are not bounded by one.)
        self.ranges[stage] = (ANYTHING,) if isinstance(stage, Scan) else ranges

    def _body(self, root: Scalar) -> Range:
        known: dict[int, Range] = {}
        for node in walk(root):
            known[id(node)] = self._range(node, known)
            self.steep = self.steep or (is_float(node.dtype) and self._is_steep(node, known))
        return known[id(root)]

    def _is_steep(self, node: Scalar, known: dict[int, Range]) -> bool:
        if isinstance(node, Unary):
            if node.op in _GENTLE:
                return False
            a = known[id(node.a)]
            match node.op:
                case "sqrt" | "rsqrt" | "log" | "log2" | "log10":
                    return not a.is_positive
                case "log1p":
                    return a.low < _FAR - 1
                case "exp" | "exp2" | "expm1":
                    return a.high > _EXPONENT
                case "sinh" | "cosh":
                    return a.high > _EXPONENT or a.low < -_EXPONENT
                case _:
                    return True
        if not isinstance(node, Binary):
            return False
        a, b = known[id(node.a)], known[id(node.b)]
        match node.op:
            case "div" | "mod" | "floordiv" | "truncdiv" | "truncmod":
                return b.has_zero
            case "pow":
                if b.low == b.high and b.low.is_integer():
                    return b.low < 0 and a.has_zero
                return not (a.is_positive and b.low == b.high)
            case "atan2":
                return not b.is_positive
            case _:
                return False

    def _range(self, node: Scalar, known: dict[int, Range]) -> Range:
        match node:
            case Const(value=value):
                return Range(float(value), float(value)) if math.isfinite(value) else ANYTHING
            case Size(dim=dim):
                low, high = dim_bounds(dim)
                return Range(-math.inf if low is None else low, math.inf if high is None else high)
            case Axis() if node in self.indices:
                return Range(0.0)
            case Load(source=Tensor(stage=stage, index=index)) if stage in self.ranges:
                return self.ranges[stage][index]
            case Cast(a=a):
                return known[id(a)] if is_float(node.dtype) else ANYTHING
            case Select(a=a, b=b):
                return _around((known[id(a)], known[id(b)]))
            case Unary(op=op, a=a):
                return _unary(op, known[id(a)])
            case Binary(op="mul", a=a, b=b) if self._same(a, b):
                return Range(0.0, max(_times(x, x) for x in (known[id(a)].low, known[id(a)].high)))
            case Binary(op=op, a=a, b=b):
                return _binary(op, known[id(a)], known[id(b)])
            case Reduce():
                return _reduced(node, known[id(node.body)])
            case _:
                return ANYTHING

    def _same(self, a: Scalar, b: Scalar) -> bool:
        """Whether two expressions are one number."""
        todo = [(a, b)]
        while todo:
            a, b = todo.pop()
            if a is b:
                continue
            match a, b:
                case Load(), Load() if len(a.indices) == len(b.indices) and self._value(a.source) == self._value(
                    b.source
                ):
                    todo += zip(a.indices, b.indices, strict=True)
                case (Cast(), Cast()) if a.dtype == b.dtype:
                    todo.append((a.a, b.a))
                case (Const(), Const()) if a.value == b.value:
                    pass
                case _:
                    return False
        return True

    def _value(self, source: Source) -> tuple[object, int]:
        return (self.values.get(source.stage), source.index) if isinstance(source, Tensor) else (source, 0)


def _unary(op: UnaryOp, a: Range) -> Range:
    match op:
        case "neg":
            return Range(-a.high, -a.low)
        case "abs":
            return a if a.low >= 0 else Range(0.0, max(-a.low, a.high))
        case "sin" | "cos" | "tanh" | "erf" | "sign":
            return Range(-1.0, 1.0)
        case "sigmoid":
            return Range(0.0, 1.0)
        case "cosh":
            return Range(1.0)
        case "exp":
            return a.of(math.exp)
        case "exp2":
            return a.of(lambda x: 2.0**x)
        case "expm1":
            return a.of(math.expm1)
        case "sqrt":
            return a.of(lambda x: math.sqrt(max(x, 0.0)))
        case "rsqrt":
            return Range(0.0, math.inf if a.low <= 0 else a.low**-0.5)
        case "log":
            return a.of(math.log)
        case "log1p":
            return a.of(math.log1p)
        case _:
            return ANYTHING


def _binary(op: str, a: Range, b: Range) -> Range:
    match op:
        case "add":
            return Range(a.low + b.low, a.high + b.high)
        case "sub":
            return Range(a.low - b.high, a.high - b.low)
        case "mul":
            return _around(Range(x, x) for x in (_times(x, y) for x, y in _ends(a, b)))
        case "div" if not b.has_zero:
            return _around(Range(x, x) for x in (_times(x, 1 / y) for x, y in _ends(a, b)))
        case "div" if a.low >= 0 and b.low >= 0:
            return Range(0.0)
        case "pow" if a.low >= 0:
            return Range(0.0)
        case "min":
            return Range(min(a.low, b.low), min(a.high, b.high))
        case "max":
            return Range(max(a.low, b.low), max(a.high, b.high))
        case _:
            return ANYTHING


def _reduced(node: Reduce, body: Range) -> Range:
    least, most = _terms(node)
    match node.kind:
        case "sum":
            low = _times(body.low, least if body.low >= 0 else most)
            return Range(low, _times(body.high, most if body.high >= 0 else least))
        case "prod" if body.low >= 0:
            return Range(0.0)
        case "max" | "min" if least >= 1:
            return body
        case _:
            return ANYTHING


def _terms(node: Reduce) -> tuple[float, float]:
    """How many terms a reduction has, at least and at most."""
    least = most = 1.0
    for axis in node.axes:
        low, high = dim_bounds(axis.extent)
        least, most = _times(least, max(low or 0, 0)), _times(most, math.inf if high is None else high)
    return least, most


def _around(ranges: Iterable[Range]) -> Range:
    found = [*ranges]
    return Range(min(r.low for r in found), max(r.high for r in found))


def _ends(a: Range, b: Range) -> Iterable[tuple[float, float]]:
    return product((a.low, a.high), (b.low, b.high))


def _times(a: float, b: float) -> float:
    """The product of two ends of ranges: an end that is infinite is none that is reached, so 0 times it is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def _at(function: Callable[[float], float], x: float) -> float:
    try:
        return function(x)
    except OverflowError:
        return math.inf
    except ValueError:  # of what has no logarithm
        return -math.inf
