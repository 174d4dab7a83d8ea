"""Conversions: between element types, and between an element's form in a register and in memory.

float16 and bfloat16 are bits in memory and float in registers: they are rounded where they are stored, cast or compared, and for
functions that jump (`relay.te.scalar.JUMPING`). bfloat16 is converted with integer operations;
float16 with the machine's instructions where it has them (F16C, AArch64) and with integer operations elsewhere.
"""

from __future__ import annotations

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import float_literal, mangled, vec
from relay.codegen.target import has, is_x86
from relay.codegen.values import Value, is_signed, memory_type, register_type
from relay.ir.types import dtype_bits, is_float

NARROW: frozenset[str] = frozenset({"float16", "bfloat16"})
# The class of subnormal numbers, as AVX-512 asks for it.
_SUBNORMAL = "32"


def held(value: bool | int | float, dtype: str) -> bool | int | float:
    """A number as the dtype holds it."""
    if dtype not in NARROW:
        return value
    # Few kernels have such a number; what imports NumPy takes twice as long to start.
    import numpy as np

    from relay.ir.dtypes import numpy_dtype

    with np.errstate(over="ignore"):
        return float(np.float32(value).astype(numpy_dtype(dtype)))


class Conversions:
    """Emits conversions through the arithmetic's builder."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.a = arithmetic
        self.b = arithmetic.b
        # Of what was rounded, by its text, the form in memory.
        self._rounded: dict[str, str] = {}
        self.native_half = not is_x86(arithmetic.target) or has(arithmetic.target, "f16c")

    def bits(self, value: Value, dtype: str) -> Value:
        """The bits of a number, a narrow one rounded to what its dtype holds, as those of another dtype."""
        lanes, text = value.lanes, value.text
        old = memory_type(value.dtype) if value.dtype in NARROW else register_type(value.dtype)
        if value.dtype == "bfloat16":
            whole = self.b.emit(f"bitcast {vec('float', lanes)} {text} to {vec('i32', lanes)}")
            text = self.b.emit(
                f"trunc {vec('i32', lanes)} {self._int('lshr', whole, 16, lanes)} to {vec('i16', lanes)}"
            )
        elif value.dtype == "float16":
            text = self.to_memory(text, value.dtype, lanes)
        if dtype in NARROW:
            return Value(self.from_memory(text, dtype, lanes), dtype, lanes)
        new = register_type(dtype)
        text = text if old == new else self.b.emit(f"bitcast {vec(old, lanes)} {text} to {vec(new, lanes)}")
        return Value(text, dtype, lanes)

    def cast(self, value: Value, dtype: str) -> Value:
        """Convert as `relay.te.scalar.Cast` says. A uniform or a vector stays one; a ramp becomes a vector."""
        source = value.dtype
        if source == dtype:
            return value
        if isinstance(value.const, bool | int) and not value.is_ramp:
            return self.a.constant(value.const, dtype)
        if value.is_ramp:
            value = self.a.spread(value, value.lanes)
        lanes, text = value.lanes, value.text
        old, new = register_type(source), register_type(dtype)
        from_, to, emit = vec(old, lanes), vec(new, lanes), self.b.emit
        if dtype == "bool":
            zero = self.a.splat(old, "0.0" if is_float(source) else "0", lanes)
            return Value(emit(f"{'fcmp une' if is_float(source) else 'icmp ne'} {from_} {text}, {zero}"), dtype, lanes)
        if is_float(dtype):
            if source == "bool":
                # A choice under a mask: LLVM would make integers of the mask, and floats of these.
                one, zero = self.a.splat(new, "1.0", lanes), self.a.splat(new, "0.0", lanes)
                return Value(emit(f"select {from_} {text}, {to} {one}, {to} {zero}"), dtype, lanes)
            if not is_float(source):
                signed = is_signed(source)
                text = emit(f"{'sitofp' if signed else 'uitofp'} {from_} {text} to {to}")
            elif old != new:
                text = emit(f"{'fpext' if new == 'double' else 'fptrunc'} {from_} {text} to {to}")
            made = Value(text, dtype, lanes)
            return self.rounded(made) if dtype in NARROW else made
        if is_float(source):
            if lanes > 1 and dtype_bits(dtype) >= 8:
                return Value(self._to_integers(text, old, dtype, lanes), dtype, lanes)
            name = f"llvm.{'fptosi' if is_signed(dtype) else 'fptoui'}.sat.{mangled(new, lanes)}.{mangled(old, lanes)}"
            return Value(self.b.call(name, to, (from_, text)), dtype, lanes)
        wide, narrow = dtype_bits(dtype), 1 if source == "bool" else dtype_bits(source)
        if wide < narrow:
            return Value(emit(f"trunc {from_} {text} to {to}"), dtype, lanes)
        if wide == narrow:
            return Value(text, dtype, lanes)
        extended = emit(f"{'sext' if is_signed(source) else 'zext'} {from_} {text} to {to}")
        return Value(extended, dtype, lanes)

    def rounded(self, value: Value) -> Value:
        """A narrow float as it would come back from memory."""
        memory = self.to_memory(value.text, value.dtype, value.lanes)
        text = self.from_memory(memory, value.dtype, value.lanes)
        self._rounded[text] = memory
        return Value(text, value.dtype, value.lanes)

    def _to_integers(self, text: str, element: str, dtype: str, lanes: int) -> str:
        """Vectors of floats or doubles, truncated; beyond the range its end, nan 0. LLVM makes single elements of what its operation for
        that does to vectors."""
        emit, bits, signed = self.b.emit, dtype_bits(dtype), is_signed(dtype)
        wide = f"i{max(bits, 32)}"
        type_, whole = vec(element, lanes), vec(wide, lanes)
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)

        def number(value: int) -> str:
            return self.a.splat(element, float_literal(float(value), element), lanes)

        def where(how: str, limit: str, value: str, other: str, of: str) -> str:
            return self.a.select_text(emit(f"fcmp {how} {type_} {text}, {limit}"), value, other, of, lanes)

        if bits <= (24 if element == "float" else 53):
            # Both ends are floats: what is beyond them is brought there before it is truncated.
            for how, end in (("ogt", most), ("olt", least)):
                text = where(how, number(end), number(end), text, type_)
            text = where("ord", number(0), text, number(0), type_)
            made = emit(f"{'fptosi' if signed or bits < 32 else 'fptoui'} {type_} {text} to {whole}")
            return made if bits >= 32 else emit(f"trunc {whole} {made} to {vec(f'i{bits}', lanes)}")
        inside = emit(f"fcmp oge {type_} {text}, {number(least)}")
        below = emit(f"fcmp olt {type_} {text}, {number(most + 1)}")
        both = emit(f"and {vec('i1', lanes)} {inside}, {below}")
        safe = self.a.select_text(both, text, number(0), type_, lanes)
        made = emit(f"{'fptosi' if signed else 'fptoui'} {type_} {safe} to {whole}")
        made = where("oge", number(most + 1), self.a.splat(wide, str(most), lanes), made, whole)
        if signed:
            made = where("olt", number(least), self.a.splat(wide, str(least), lanes), made, whole)
        return made

    def from_memory(self, text: str, dtype: str, lanes: int) -> str:
        """The register form of loaded elements (not of sub-byte ones)."""
        emit = self.b.emit
        if dtype == "bool":
            return emit(f"icmp ne {vec('i8', lanes)} {text}, {self.a.splat('i8', '0', lanes)}")
        if dtype == "bfloat16":
            wide = emit(f"zext {vec('i16', lanes)} {text} to {vec('i32', lanes)}")
            high = emit(f"shl {vec('i32', lanes)} {wide}, {self.a.splat('i32', '16', lanes)}")
            return emit(f"bitcast {vec('i32', lanes)} {high} to {vec('float', lanes)}")
        if dtype == "float16":
            return self._half_to_float(text, lanes)
        return text

    def to_memory(self, text: str, dtype: str, lanes: int) -> str:
        """The memory form of register elements (not of sub-byte ones)."""
        emit = self.b.emit
        if dtype in NARROW and text in self._rounded:
            return self._rounded[text]
        if dtype == "bool":
            return emit(f"zext {vec('i1', lanes)} {text} to {vec('i8', lanes)}")
        if dtype == "bfloat16":
            return self._float_to_brain(text, lanes)
        if dtype == "float16":
            return self._float_to_half(text, lanes)
        return text

    def _int(self, op: str, x: str, y: str | int, lanes: int) -> str:
        other = self.a.splat("i32", str(y), lanes) if isinstance(y, int) else y
        return self.b.emit(f"{op} {vec('i32', lanes)} {x}, {other}")

    def _pick(self, cond: str, x: str, y: str, lanes: int) -> str:
        return self.a.select_text(cond, x, y, vec("i32", lanes), lanes)

    def _float_to_brain(self, text: str, lanes: int) -> str:
        """Round to nearest even; a nan stays one (quiet). AVX512_BF16's instruction takes subnormal numbers for zero, whatever it is told:
        a vector with such a number goes by the branch of those without it."""
        if lanes != 16 or self.a.target.vector_bits != 512 or not has(self.a.target, "avx512bf16"):
            return self._rounded_bits(text, lanes)
        b, floats, shorts = self.b, vec("float", lanes), vec("i16", lanes)
        made = b.call("llvm.x86.avx512bf16.cvtneps2bf16.512", vec("bfloat", lanes), (floats, text))
        usual = b.emit(f"bitcast {vec('bfloat', lanes)} {made} to {shorts}")
        tiny = b.call("llvm.x86.avx512.fpclass.ps.512", vec("i1", lanes), (floats, text), ("i32", _SUBNORMAL))
        bits = b.emit(f"bitcast {vec('i1', lanes)} {tiny} to i{lanes}")
        some = b.emit(f"icmp ne i{lanes} {bits}, 0")
        rare, after, before = b.name("rare"), b.name("usual"), b.block
        b.seldom(some, rare, after)
        b.start(rare)
        others, end = self._rounded_bits(text, lanes), b.block
        b.jump(after)
        b.start(after)
        return b.phi(shorts, (usual, before), (others, end))

    def _rounded_bits(self, text: str, lanes: int) -> str:
        emit, word = self.b.emit, vec("i32", lanes)
        bits = emit(f"bitcast {vec('float', lanes)} {text} to {word}")
        high = self._int("lshr", bits, 16, lanes)
        odd = self._int("and", high, 1, lanes)
        rounded = self._int("lshr", self._int("add", self._int("add", bits, 0x7FFF, lanes), odd, lanes), 16, lanes)
        nan = emit(f"fcmp uno {vec('float', lanes)} {text}, {text}")
        chosen = self._pick(nan, self._int("or", high, 0x40, lanes), rounded, lanes)
        return emit(f"trunc {word} {chosen} to {vec('i16', lanes)}")

    def _half_to_float(self, text: str, lanes: int) -> str:
        emit, word, single = self.b.emit, vec("i32", lanes), vec("float", lanes)
        if self.native_half:
            half = emit(f"bitcast {vec('i16', lanes)} {text} to {vec('half', lanes)}")
            return emit(f"fpext {vec('half', lanes)} {half} to {single}")
        bits = emit(f"zext {vec('i16', lanes)} {text} to {word}")
        magnitude = self._int("and", bits, 0x7FFF, lanes)
        sign = self._int("shl", self._int("and", bits, 0x8000, lanes), 16, lanes)
        normal = self._int("add", self._int("shl", magnitude, 13, lanes), 112 << 23, lanes)
        special = emit(f"icmp uge {word} {magnitude}, {self.a.splat('i32', str(0x7C00), lanes)}")
        large = self._pick(special, self._int("add", normal, 112 << 23, lanes), normal, lanes)
        # A subnormal half is its bits times 2**-24, exact in float.
        scaled = emit(
            f"fmul {single} {emit(f'uitofp {word} {magnitude} to {single}')}, "
            f"{self.a.splat('float', float_literal(2.0**-24), lanes)}"
        )
        tiny = emit(f"icmp ult {word} {magnitude}, {self.a.splat('i32', str(0x400), lanes)}")
        small = emit(f"bitcast {single} {scaled} to {word}")
        chosen = self._pick(tiny, small, large, lanes)
        return emit(f"bitcast {word} {self._int('or', chosen, sign, lanes)} to {single}")

    def _float_to_half(self, text: str, lanes: int) -> str:
        emit, word, single = self.b.emit, vec("i32", lanes), vec("float", lanes)
        short = vec("i16", lanes)
        if self.native_half:
            half = emit(f"fptrunc {single} {text} to {vec('half', lanes)}")
            return emit(f"bitcast {vec('half', lanes)} {half} to {short}")
        bits = emit(f"bitcast {single} {text} to {word}")
        magnitude = self._int("and", bits, 0x7FFFFFFF, lanes)
        sign = self._int("and", self._int("lshr", bits, 16, lanes), 0x8000, lanes)
        odd = self._int("and", self._int("lshr", magnitude, 13, lanes), 1, lanes)
        biased = self._int("sub", self._int("add", magnitude, 0xFFF, lanes), 112 << 23, lanes)
        normal = self._int("lshr", self._int("add", biased, odd, lanes), 13, lanes)
        # 0.5 has its last bit at 2**-24, the unit of subnormal halves: adding it rounds there.
        positive = emit(f"bitcast {word} {magnitude} to {single}")
        shifted = emit(f"fadd {single} {positive}, {self.a.splat('float', '0.5', lanes)}")
        subnormal = self._int("sub", emit(f"bitcast {single} {shifted} to {word}"), 0x3F000000, lanes)

        def at_least(limit: int) -> str:
            return emit(f"icmp uge {word} {magnitude}, {self.a.splat('i32', str(limit), lanes)}")

        out = self._pick(at_least(0x38800000), normal, subnormal, lanes)
        out = self._pick(at_least(0x47800000), self.a.splat("i32", str(0x7C00), lanes), out, lanes)
        out = self._pick(at_least(0x7F800001), self.a.splat("i32", str(0x7E00), lanes), out, lanes)
        return emit(f"trunc {word} {self._int('or', out, sign, lanes)} to {short}")
