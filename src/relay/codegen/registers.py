"""Straight-line arithmetic written as Python expressions: registers of one lane count with overloaded operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import float_literal, vec
from relay.ir.record import record


@record(frozen=True, slots=True)
class Register:
    """A value of ``kit.lanes`` elements of LLVM type ``element``; numbers on the other side become constants of it."""

    kit: Kit
    text: str
    element: str

    def __add__(self, other: Register | float) -> Register:
        return self.kit.apply("add", self, other)

    def __sub__(self, other: Register | float) -> Register:
        return self.kit.apply("sub", self, other)

    def __rsub__(self, other: float) -> Register:
        return self.kit.apply("sub", self.kit.const(other, self.element), self)

    def __mul__(self, other: Register | float) -> Register:
        return self.kit.apply("mul", self, other)

    def __truediv__(self, other: Register | float) -> Register:
        return self.kit.apply("div", self, other)

    def __rtruediv__(self, other: float) -> Register:
        return self.kit.apply("div", self.kit.const(other, self.element), self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Register:
        return self.kit.instruction(f"fneg {self.type} {self.text}", self.element)

    def __and__(self, other: Register | int) -> Register:
        return self.kit.apply("and", self, other)

    def __or__(self, other: Register | int) -> Register:
        return self.kit.apply("or", self, other)

    def __xor__(self, other: Register | int) -> Register:
        return self.kit.apply("xor", self, other)

    def __lshift__(self, other: int) -> Register:
        return self.kit.apply("shl", self, other)

    def __rshift__(self, other: int) -> Register:
        """Arithmetic."""
        return self.kit.apply("ashr", self, other)

    def __lt__(self, other: Register | float) -> Register:
        return self.kit.compare("lt", self, other)

    def __le__(self, other: Register | float) -> Register:
        return self.kit.compare("le", self, other)

    def __gt__(self, other: Register | float) -> Register:
        return self.kit.compare("gt", self, other)

    def __ge__(self, other: Register | float) -> Register:
        return self.kit.compare("ge", self, other)

    def equals(self, other: Register | float) -> Register:
        return self.kit.compare("eq", self, other)

    @property
    def type(self) -> str:
        return vec(self.element, self.kit.lanes)

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double")


class Kit:
    """The operations on registers of one lane count."""

    def __init__(self, arithmetic: Arithmetic, lanes: int) -> None:
        self.a = arithmetic
        self.lanes = lanes

    def register(self, text: str, element: str) -> Register:
        return Register(self, text, element)

    def instruction(self, text: str, element: str) -> Register:
        return Register(self, self.a.b.emit(text), element)

    def const(self, value: float, element: str) -> Register:
        text = float_literal(float(value), element) if element in ("float", "double") else str(int(value))
        return Register(self, self.a.splat(element, text, self.lanes), element)

    def _other(self, x: Register, y: Register | float) -> Register:
        return y if isinstance(y, Register) else self.const(y, x.element)

    def apply(self, op: str, x: Register, y: Register | float) -> Register:
        name = f"f{op}" if x.is_float else op
        return self.instruction(f"{name} {x.type} {x.text}, {self._other(x, y).text}", x.element)

    def compare(self, op: str, x: Register, y: Register | float) -> Register:
        """Ordered: false when one is nan. Integers compare signed."""
        name = f"fcmp o{op}" if x.is_float else f"icmp {'' if op == 'eq' else 's'}{op}"
        return self.instruction(f"{name} {x.type} {x.text}, {self._other(x, y).text}", "i1")

    def below(self, x: Register, y: int) -> Register:
        """Of unsigned integers."""
        return self.instruction(f"icmp ult {x.type} {x.text}, {self.const(y, x.element).text}", "i1")

    def is_nan(self, x: Register) -> Register:
        return self.instruction(f"fcmp uno {x.type} {x.text}, {x.text}", "i1")

    def where(self, cond: Register, x: Register | float, y: Register | float) -> Register:
        known = x if isinstance(x, Register) else y
        assert isinstance(known, Register)
        a, b = self._other(known, x), self._other(known, y)
        return self.instruction(f"select {cond.type} {cond.text}, {a.type} {a.text}, {b.type} {b.text}", a.element)

    def fma(self, x: Register, y: Register | float, z: Register | float) -> Register:
        """``x * y + z``, fused where the machine can."""
        a, b = self._other(x, y), self._other(x, z)
        return Register(self, self.a.intrinsic("fmuladd", x.element, self.lanes, x.text, a.text, b.text), x.element)

    def at_most(self, x: Register, limit: float) -> Register:
        """x, or the limit where x is above it; nan stays."""
        return self.where(x > limit, limit, x)

    def polynomial(self, x: Register, coefficients: Sequence[float]) -> Register:
        """By Horner's rule, lowest power first."""
        total = self.const(coefficients[-1], x.element)
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, c)
        return total

    def abs(self, x: Register) -> Register:
        return Register(self, self.a.intrinsic("fabs", x.element, self.lanes, x.text), x.element)

    def sqrt(self, x: Register) -> Register:
        return Register(self, self.a.intrinsic("sqrt", x.element, self.lanes, x.text), x.element)

    def copysign(self, x: Register, sign: Register) -> Register:
        text = self.a.intrinsic("copysign", x.element, self.lanes, x.text, sign.text)
        return Register(self, text, x.element)

    def rounded(self, name: str, x: Register) -> Register:
        return Register(self, self.a.rounding(name, x.text, x.element, self.lanes), x.element)

    def bits(self, x: Register) -> Register:
        """The bits of a float as an integer."""
        element = "i32" if x.element == "float" else "i64"
        return self.instruction(f"bitcast {x.type} {x.text} to {vec(element, self.lanes)}", element)

    def from_bits(self, x: Register) -> Register:
        element = "float" if x.element == "i32" else "double"
        return self.instruction(f"bitcast {x.type} {x.text} to {vec(element, self.lanes)}", element)

    def to_float(self, x: Register, element: str) -> Register:
        """An integer as a float."""
        return self.instruction(f"sitofp {x.type} {x.text} to {vec(element, self.lanes)}", element)

    def widen(self, x: Register) -> Register:
        return self.instruction(f"fpext {x.type} {x.text} to {vec('double', self.lanes)}", "double")

    def narrow(self, x: Register) -> Register:
        return self.instruction(f"fptrunc {x.type} {x.text} to {vec('float', self.lanes)}", "float")

    def nearest(self, x: Register, factor: float = 1.0) -> Register:
        """The nearest whole number of ``x * factor``, where that is small; anything for nan."""
        magic = self.const(MAGIC[x.element], x.element)
        return (x + magic if factor == 1.0 else self.fma(x, factor, magic)) - magic

    def as_integer(self, whole: Register) -> Register:
        """A small whole float as an integer; anything for nan."""
        magic = self.const(MAGIC[whole.element], whole.element)
        return self.bits(whole + magic) - self.bits(magic)

    def any(self, mask: Register) -> str:
        """Whether a condition holds in any lane: an i1."""
        if self.lanes == 1:
            return mask.text
        return self.a.b.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", (mask.type, mask.text))

    def rarely(
        self, mask: Register, usual: Sequence[Register], instead: Callable[[], Sequence[Register]]
    ) -> tuple[Register, ...]:
        """``usual``, or what ``instead`` emits, on a branch out of the way, where the mask holds in any lane."""
        b = self.a.b
        rare, after = b.name("rare"), b.name("usual")
        before = b.block
        b.seldom(self.any(mask), rare, after)
        b.start(rare)
        others, end = instead(), b.block
        b.jump(after)
        b.start(after)
        merged = [(x, b.phi(x.type, (x.text, before), (y.text, end))) for x, y in zip(usual, others, strict=True)]
        return tuple(Register(self, text, x.element) for x, text in merged)

    def repeated(self, first: Register, step: Callable[[Register], tuple[Register, Register]]) -> Register:
        """``step`` of a value, and of its result again as long as the mask that comes with it holds in any lane."""
        b = self.a.b
        loop, done, before = b.name("again"), b.name("settled"), b.block
        value = b.local()
        b.jump(loop)
        b.start(loop)
        at = len(b.lines)
        result, mask = step(Register(self, value, first.element))
        end, more = b.block, self.any(mask)
        b.lines.insert(at, f"  {value} = phi {first.type} [ {first.text}, %{before} ], [ {result.text}, %{end} ]")
        b.branch(more, loop, done)
        b.start(done)
        return result

    @property
    def has_tables(self) -> bool:
        """Whether the machine looks up all lanes of a vector in tables of `TABLE` entries at once, takes numbers apart and approximates
        inverses: AVX-512."""
        target = self.a.target
        return target.vector_bits == 32 * TABLE and {"avx512f", "avx512dq"} <= set(target.features)

    @property
    def table_lanes(self) -> int:
        """The lanes of a vector of floats that the machine looks up in tables of as many entries: with AVX2 half of `TABLE`. 0 where it
        has no instruction for that."""
        if self.has_tables:
            return TABLE
        target = self.a.target
        return TABLE // 2 if target.vector_bits == 16 * TABLE and "avx2" in target.features else 0

    def widened(self, body: Callable[..., Register], *operands: Register) -> Register:
        """A function of floats, of a kit and registers, computed on vectors of `table_lanes`, whatever the lanes here."""
        lanes = self.table_lanes
        if self.lanes == lanes:
            return body(self, *operands)
        wide = Kit(self.a, lanes)
        if self.lanes == 1:
            y = body(wide, *(Register(wide, self.a.splat(x.element, x.text, lanes), x.element) for x in operands))
            return self.instruction(f"extractelement {y.type} {y.text}, i64 0", y.element)
        if self.lanes > lanes:
            half = Kit(self.a, self.lanes // 2)
            low, high = (
                half.widened(body, *(half.shuffled(x, None, range(first, first + half.lanes)) for x in operands))
                for first in (0, half.lanes)
            )
            return self.shuffled(low, high, range(self.lanes))
        order = [n % self.lanes for n in range(lanes)]
        y = body(wide, *(wide.shuffled(x, None, order) for x in operands))
        return self.shuffled(y, None, range(self.lanes))

    def in_doubles(self, body: Callable[..., Register], *operands: Register) -> Register:
        """A function of floats computed in doubles, a half of the lanes after the other, and rounded. Two lanes are a vector of doubles
        as they are, and a number of lanes that is odd has no halves."""
        if self.lanes <= 2 or self.lanes % 2:
            return self.narrow(body(self, *map(self.widen, operands)))
        half = Kit(self.a, self.lanes // 2)
        low, high = (
            half.narrow(
                body(half, *(half.widen(half.shuffled(x, None, range(first, first + half.lanes))) for x in operands))
            )
            for first in (0, half.lanes)
        )
        return self.shuffled(low, high, range(self.lanes))

    def shuffled(self, x: Register, y: Register | None, lanes: Sequence[int]) -> Register:
        """The lanes of two registers, those of the second behind those of the first, as one of this kit."""
        order = ", ".join(f"i32 {n}" for n in lanes)
        other = y.text if y else "poison"
        return self.instruction(
            f"shufflevector {x.type} {x.text}, {x.type} {other}, <{self.lanes} x i32> <{order}>", x.element
        )

    def looked_up(self, table: Sequence[float], index: Register) -> Register:
        """The entry of a table for each lane, which the low bits of an integer choose: of as many floats as there are `table_lanes`, or
        of `TABLE` doubles where it `has_tables`, for half as many lanes."""
        element, half = "float" if index.element == "i32" else "double", TABLE // 2
        type_ = vec(element, self.lanes)
        entries = [f"{element} {float_literal(v, element)}" for v in table]
        given = (index.type, index.text)
        if element == "double":
            low, high = ((type_, f"<{', '.join(part)}>") for part in (entries[:half], entries[half:]))
            return self._called("llvm.x86.avx512.vpermi2var.pd.512", element, low, given, high)
        whole = f"<{', '.join(entries)}>"
        if self.lanes == TABLE:
            return self._called("llvm.x86.avx512.permvar.sf.512", element, (type_, whole), given)
        # An instruction that takes the table from memory is, on Zen 3, half as fast as one that takes it from a register.
        loaded = self.a.b.emit(f'call {type_} asm sideeffect "", "=x,0"({type_} {whole})')
        return self._called("llvm.x86.avx2.permps", element, (type_, loaded), given)

    def _called(self, name: str, element: str, *arguments: tuple[str, str]) -> Register:
        return Register(self, self.a.b.call(name, vec(element, self.lanes), *arguments), element)

    def scales(self, x: Register) -> bool:
        """Whether the machine has an instruction for `scale`."""
        bits = self.lanes * (32 if x.element == "float" else 64)
        return bits in (128, 256, 512) and {"avx512f", "avx512vl"} <= set(self.a.target.features)

    def scale(self, x: Register, n: Register) -> Register | None:
        """``x * 2**n`` for whole n given as a float, rounded once; None where the machine has no instruction for it."""
        if not self.scales(x):
            return None
        bits = self.lanes * (32 if x.element == "float" else 64)
        kind, mask = "ps" if x.element == "float" else "pd", f"i{max(8, self.lanes)}"
        given = [(x.type, x.text), (x.type, n.text), (x.type, "zeroinitializer"), (mask, "-1")]
        rounding = [("i32", "4")] if bits == 512 else []  # as the machine is set
        name = f"llvm.x86.avx512.mask.scalef.{kind}.{bits}"
        return Register(self, self.a.b.call(name, x.type, *given, *rounding), x.element)

    def negative(self, x: Register, least: float, mask: Register) -> Register:
        """``-|x|``, at least ``least``, where the mask holds and x is no nan, elsewhere x; `TABLE` floats."""
        lanes = self.instruction(f"bitcast {mask.type} {mask.text} to i{TABLE}", f"i{TABLE}")
        smaller_below_0 = 2 | 3 << 2  # of two sizes, with the sign bit
        given = [(x.type, x.text), (x.type, self.const(least, x.element).text), ("i32", str(smaller_below_0))]
        given += [(x.type, x.text), (f"i{TABLE}", lanes.text), ("i32", "4")]
        return Register(self, self.a.b.call("llvm.x86.avx512.mask.range.ps.512", x.type, *given), x.element)

    def mantissa(self, x: Register) -> Register:
        """What ``|x|`` less its power of two is in [3/4, 3/2), of `TABLE` floats or half as many doubles: nan of negative numbers,
        of zeros and infinities 1 or -1."""
        kind, mask = _KIND[x.element]
        given = [(x.type, x.text), ("i32", "11"), (x.type, "zeroinitializer"), (mask, "-1"), ("i32", "4")]
        return Register(self, self.a.b.call(f"llvm.x86.avx512.mask.getmant.{kind}.512", x.type, *given), x.element)

    def exponent(self, x: Register) -> Register:
        """The exponent of ``|x|``, a whole number, of `TABLE` floats or half as many doubles: of zeros and infinities minus
        infinity and infinity."""
        kind, mask = _KIND[x.element]
        given = [(x.type, x.text), (x.type, "zeroinitializer"), (mask, "-1"), ("i32", "4")]
        return Register(self, self.a.b.call(f"llvm.x86.avx512.mask.getexp.{kind}.512", x.type, *given), x.element)

    def approximate_reciprocal(self, x: Register) -> Register:
        """``1 / x`` to 14 bits, of `TABLE` positive normal floats, where the machine has tables."""
        given = [(x.type, x.text), (x.type, "zeroinitializer"), ("i16", "-1")]
        return Register(self, self.a.b.call("llvm.x86.avx512.rcp14.ps.512", x.type, *given), x.element)

    def approximate_inverse_root(self, x: Register) -> Register:
        """``1 / sqrt(x)`` to 14 bits, of `TABLE` floats, subnormal ones too, where the machine has tables: infinity of zeros, 0 of
        infinity, nan of negative numbers."""
        given = [(x.type, x.text), (x.type, "zeroinitializer"), ("i16", "-1")]
        return Register(self, self.a.b.call("llvm.x86.avx512.rsqrt14.ps.512", x.type, *given), x.element)

    def zero_or_infinity(self, x: Register) -> Register:
        """Whether `TABLE` floats are zeros or infinity (above 0), where the machine has tables."""
        classes = 2 | 4 | 8  # 0, -0, infinity
        given = [(x.type, x.text), ("i32", str(classes))]
        return Register(self, self.a.b.call("llvm.x86.avx512.fpclass.ps.512", vec("i1", TABLE), *given), "i1")

    def two_product(self, x: Register, y: Register) -> tuple[Register, Register]:
        """The product and its rounding error (doubles), exactly: their sum is ``x * y``."""
        product = x * y
        if self.a.target.fma:
            text = self.a.intrinsic("fma", x.element, self.lanes, x.text, y.text, (-product).text)
            return product, Register(self, text, x.element)
        parts = []
        for v in (x, y):
            scaled = v * 134217729.0  # 2**27 + 1: splits a double into two halves whose products are exact
            high = scaled - (scaled - v)
            parts.append((high, v - high))
        (xh, xl), (yh, yl) = parts
        return product, xl * yl - (((product - xh * yh) - xl * yh) - xh * yl)


# 1.5 * 2**(mantissa bits): adding it rounds to integers.
MAGIC = {"float": 12582912.0, "double": 6755399441055744.0}
# Entries of a table that one instruction looks up.
TABLE = 16
# What instructions on whole vectors of 512 bits call their elements, and the type of their masks.
_KIND = {"float": ("ps", "i16"), "double": ("pd", "i8")}
INFINITY, NAN = math.inf, math.nan
