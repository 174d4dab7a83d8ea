"""Arithmetic on one element or on a vector of them: integer and float operations, comparisons, selections.

Integers wrap; ``floordiv`` and ``mod`` round towards minus infinity, ``truncdiv`` and ``truncmod`` towards
zero, and a division by zero gives 0 (never a trap); shifting by the width or more (or by a negative amount)
shifts everything out. Float ``min`` and ``max`` propagate nan.
"""

from __future__ import annotations

from math import gcd, nan

from relay.codegen.builder import Builder, float_literal, mangled, vec
from relay.codegen.ramps import divided
from relay.codegen.runs import combined
from relay.codegen.values import Value, is_signed, register_type
from relay.ir.types import dtype_bits, is_float
from relay.loop.target import Target
from relay.te.scalar import BinaryOp, CompareOp

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
# Index arithmetic on sizes, variables and small constants stays below 2**51 in magnitude, and by some of these not negative.
_NONNEG = frozenset(("add", "mul", "floordiv", "mod", "min", "max"))
_PLACED = frozenset((*_NONNEG, "sub", "truncdiv", "truncmod"))
_ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


class Arithmetic:
    """Emits operations through a builder. Results are as wide as the widest operand; uniform operands are spread."""

    def __init__(self, builder: Builder, target: Target) -> None:
        self.b = builder
        self.target = target
        self._indices: dict[int, Value] = {}
        # What indices are sums of, and those that are products of two numbers that are not known.
        self._sums: dict[str, tuple[Value, Value]] = {}
        self._products: set[str] = set()
        # Comparisons that hold for the first lanes and no other, and for how many (no more than all).
        self.first: dict[str, str] = {}

    # -- making values

    def constant(self, value: bool | int | float, dtype: str) -> Value:
        if is_float(dtype):
            return Value(float_literal(float(value), register_type(dtype)), dtype, const=float(value))
        if dtype == "bool":
            return Value("true" if value else "false", dtype, const=bool(value))
        bits = dtype_bits(dtype)
        number = int(value) & ((1 << bits) - 1)
        if is_signed(dtype) and number >> (bits - 1):
            number -= 1 << bits
        placed = abs(number) < 1 << 51
        return Value(
            str(number), dtype, const=number, multiple=abs(number), nonneg=placed and number >= 0, placed=placed
        )

    def index(self, value: int) -> Value:
        known = self._indices.get(value)
        if known is None:
            known = self._indices[value] = self.constant(value, "int64")
        return known

    def spread(self, value: Value, lanes: int) -> Value:
        """The value as a vector (of one lane: as a scalar)."""
        if value.lanes == lanes and not value.is_ramp:
            return value
        if value.is_ramp:
            base = self.spread(Value(value.text, value.dtype), lanes)
            steps = ", ".join(f"i64 {lane * value.stride}" for lane in range(lanes))
            text = self.b.emit(f"add {vec('i64', lanes)} {base.text}, <{steps}>")
            return Value(
                text, value.dtype, lanes, multiple=value.multiple, nonneg=value.nonneg, run=lanes, rise=value.stride,
                placed=value.placed,
            )  # fmt: skip
        assert value.lanes == 1, "vectors of one loop have one width"
        element = register_type(value.dtype)
        return Value(
            self.splat(element, value.text, lanes), value.dtype, lanes, nonneg=value.nonneg, placed=value.placed
        )

    def splat(self, element: str, text: str, lanes: int) -> str:
        if lanes == 1:
            return text
        if not text.startswith("%"):
            return f"splat ({element} {text})"
        type_ = vec(element, lanes)
        first = self.b.emit(f"insertelement {type_} poison, {element} {text}, i64 0")
        return self.b.emit(f"shufflevector {type_} {first}, {type_} poison, <{lanes} x i32> zeroinitializer")

    def together(self, *values: Value) -> tuple[int, list[str]]:
        """The common lane count and the operands' texts at that width."""
        lanes = max([v.lanes for v in values])
        return lanes, [v.text if v.lanes == lanes and not v.stride else self.spread(v, lanes).text for v in values]

    # -- operations

    def binary(self, op: BinaryOp, a: Value, b: Value) -> Value:
        """A binary operation; the float functions (remainders, floored quotients, powers) are in `relay.codegen.elementary`."""
        dtype = a.dtype
        if dtype == "int64":
            known = self._index(op, a, b)
            if known is not None:
                return known
        lanes, (x, y) = self.together(a, b)
        type_ = vec(register_type(dtype), lanes)
        if op in ("floordiv", "mod") and a.is_ramp and isinstance(b.const, int) and b.const > 1:
            quotients = divided(self, op, a, base_of(a), b.const)
            if quotients is not None:
                return quotients
        if is_float(dtype):
            if op in ("min", "max") and a.const is None and b.const is None:
                return self._either_nan(a, self.extreme(op, a, b))
            return Value(self._float(op, x, y, type_, dtype, lanes), dtype, lanes)
        if dtype == "bool":
            return Value(self._bool(op, x, y, type_), dtype, lanes)
        text = self._int(op, a, b, x, y, type_, dtype, lanes)
        nonneg = a.nonneg and b.nonneg and dtype == "int64" and op in _NONNEG
        placed = nonneg or (a.is_placed and b.is_placed and dtype == "int64" and op in _PLACED)
        if lanes == 1 and dtype == "int64":
            if op == "add":
                self._sums[text] = (a, b)
            elif op == "mul" and a.const is None and b.const is None:
                self._products.add(text)
        if lanes == 1 or dtype != "int64":
            multiple = _multiple(op, a, b) if lanes == 1 else 1
            return Value(text, dtype, lanes, multiple=multiple, nonneg=nonneg, placed=placed)
        runs = combined(op, a, b, lanes)
        return Value(
            text, dtype, lanes, multiple=runs.multiple, nonneg=nonneg, run=runs.length, rise=runs.rise, placed=placed
        )

    def staying(self, index: Value) -> tuple[Value, Value, Value] | None:
        """An index as what stays the same while a loop moves another part by distances that are not known, that part, and a number; None
        of other indices."""
        parts, number = self._sums.get(index.text), self.index(0)
        if parts is None:
            return None
        stays, moves = sorted(parts, key=lambda v: self.b.depth(v.text))
        inside = self._sums.get(moves.text)
        if inside is not None and inside[1].const is not None:
            moves, number = inside
        if self.b.depth(stays.text) == self.b.depth(moves.text):
            return None
        terms = [moves]
        for term in terms:
            terms += self._sums.get(term.text, ())
        return (stays, moves, number) if any(t.text in self._products for t in terms) else None

    def _index(self, op: BinaryOp, a: Value, b: Value) -> Value | None:
        """int64 operations on known numbers and ramps that need no vector (or no instruction at all)."""
        if isinstance(a.const, int) and isinstance(b.const, int):
            folded = _fold(op, a.const, b.const)
            return None if folded is None else self.index(folded)
        if op in ("add", "sub") and b.const == 0:
            return a
        if (op == "add" and a.const == 0) or (op == "mul" and a.const == 1):
            return b
        if op in ("mul", "floordiv", "truncdiv") and b.const == 1:
            return a
        if (op == "mul" and 0 in (a.const, b.const)) or (op == "mod" and b.const == 1):
            return self.index(0)
        if not (a.is_ramp or b.is_ramp) or (a.lanes > 1 and not a.is_ramp) or (b.lanes > 1 and not b.is_ramp):
            return None
        lanes = max(a.lanes, b.lanes)
        base_a, base_b = base_of(a), base_of(b)
        if op in ("add", "sub"):
            stride = a.stride + b.stride if op == "add" else a.stride - b.stride
            return with_stride(self.binary(op, base_a, base_b), stride, lanes)
        if op == "mul":
            ramp, factor = (a, b) if a.is_ramp else (b, a)
            if not isinstance(factor.const, int) or factor.is_ramp:
                return None
            return with_stride(self.binary("mul", base_of(ramp), factor), ramp.stride * factor.const, lanes)
        if op in ("floordiv", "mod") and isinstance(b.const, int) and b.const > 0 and a.stride > 0:
            # All lanes lie between two multiples of the divisor when the base is on a grid the ramp does not leave.
            divisor, grid = b.const, gcd(a.multiple, b.const)
            if (lanes - 1) * a.stride < grid:
                if op == "floordiv":
                    return self.binary("floordiv", base_a, b)
                return with_stride(self.binary("mod", base_a, b), a.stride, lanes)
            if a.stride % divisor == 0:
                if op == "mod":
                    return self.binary("mod", base_a, b)
                return with_stride(self.binary("floordiv", base_a, b), a.stride // divisor, lanes)
        return None

    def _float(self, op: BinaryOp, x: str, y: str, type_: str, dtype: str, lanes: int) -> str:
        emit = self.b.emit
        if op in _FLOAT_OPS:
            return emit(f"{_FLOAT_OPS[op]} {type_} {x}, {y}")
        match op:
            case "min" | "max":
                better = emit(f"fcmp {'ogt' if op == 'max' else 'olt'} {type_} {x}, {y}")
                one = self.select_text(better, x, y, type_, lanes)
                return self.select_text(emit(f"fcmp uno {type_} {x}, {x}"), x, one, type_, lanes)
            case "truncdiv":
                quotient = emit(f"fdiv {type_} {x}, {y}")
                return self.rounding("trunc", quotient, register_type(dtype), lanes)
            case _:
                raise AssertionError(f"{op} of {dtype} is not arithmetic of this module")

    def _bool(self, op: BinaryOp, x: str, y: str, type_: str) -> str:
        names = {"and": "and", "or": "or", "xor": "xor", "min": "and", "max": "or", "mul": "and", "add": "or"}
        if op == "sub":
            return self.b.emit(f"xor {type_} {x}, {y}")
        assert op in names, f"{op} of bool"
        return self.b.emit(f"{names[op]} {type_} {x}, {y}")

    def _int(self, op: BinaryOp, a: Value, b: Value, x: str, y: str, type_: str, dtype: str, lanes: int) -> str:
        emit, signed = self.b.emit, is_signed(dtype)
        if op in _INT_OPS:
            return emit(f"{_INT_OPS[op]} {type_} {x}, {y}")
        match op:
            case "min" | "max":
                name = f"{'s' if signed else 'u'}{op}"
                return self.intrinsic(name, register_type(dtype), lanes, x, y)
            case "floordiv" | "mod" | "truncdiv" | "truncmod" | "div":
                return self._divide(op, a, b, x, y, type_, dtype, lanes)
            case "shl" | "shr":
                return self._shift(op, x, y, type_, dtype, lanes)
            case "pow":
                return self._power(x, y, dtype, lanes)
            case _:
                raise AssertionError(f"{op} of {dtype}")

    def _divide(self, op: BinaryOp, a: Value, b: Value, x: str, y: str, type_: str, dtype: str, lanes: int) -> str:
        emit, element, divisor = self.b.emit, register_type(dtype), b.const if isinstance(b.const, int) else None
        signed = is_signed(dtype) and not (a.nonneg and b.nonneg)
        remainder = op in ("mod", "truncmod")
        floored = op in ("floordiv", "mod")
        if divisor == 0:
            return self.splat(element, "0", lanes)
        power = divisor is not None and divisor & (divisor - 1) == 0
        placed = a.is_placed and b.is_placed and dtype == "int64"
        safe, zero = y, ""
        if divisor in (None, -1):
            one = self.splat(element, "1", lanes)
            zero = emit(f"icmp eq {type_} {y}, {self.splat(element, '0', lanes)}")
            bad = zero
            if signed and not placed:
                least = self.splat(element, str(-(1 << (dtype_bits(dtype) - 1))), lanes)
                minimum = emit(f"icmp eq {type_} {x}, {least}")
                minus = emit(f"icmp eq {type_} {y}, {self.splat(element, '-1', lanes)}")
                over = emit(f"and {vec('i1', lanes)} {minimum}, {minus}")
                bad = emit(f"or {vec('i1', lanes)} {zero}, {over}")
            safe = self.select_text(bad, one, y, type_, lanes)
        if lanes > 1 and ((placed and not power) or (dtype_bits(dtype) < 64 and divisor is None)):
            result = self._divide_as_floats(remainder, floored and signed, x, safe, dtype, lanes)
        elif floored and signed and power and divisor is not None:
            shift = self.splat(element, str(divisor.bit_length() - 1), lanes)
            low = self.splat(element, str(divisor - 1), lanes)
            return emit(f"and {type_} {x}, {low}") if remainder else emit(f"ashr {type_} {x}, {shift}")
        elif lanes > 1 and dtype == "int64" and not power:
            result = self._divide_unless_large(remainder, floored, x, safe, lanes)
        else:
            result = self._divide_integers(remainder, floored, signed, x, safe, type_, element, lanes)
        return self.select_text(zero, self.splat(element, "0", lanes), result, type_, lanes) if zero else result

    def _divide_integers(
        self, remainder: bool, floored: bool, signed: bool, x: str, y: str, type_: str, element: str, lanes: int
    ) -> str:
        """By the machine's own division, each lane by itself. ``y`` is not 0, nor -1 where ``x`` is the least number."""
        emit, masks = self.b.emit, vec("i1", lanes)
        if not signed or not floored:
            return emit(f"{'s' if signed else 'u'}{'rem' if remainder else 'div'} {type_} {x}, {y}")
        rest = emit(f"srem {type_} {x}, {y}")
        nothing = self.splat(element, "0", lanes)
        crosses = emit(f"icmp slt {type_} {emit(f'xor {type_} {rest}, {y}')}, {nothing}")
        inexact = emit(f"icmp ne {type_} {rest}, {nothing}")
        adjust = emit(f"and {masks} {crosses}, {inexact}")
        if remainder:
            return self.select_text(adjust, emit(f"add {type_} {rest}, {y}"), rest, type_, lanes)
        quotient = emit(f"sdiv {type_} {x}, {y}")
        return emit(f"add {type_} {quotient}, {emit(f'sext {masks} {adjust} to {type_}')}")

    def _divide_unless_large(self, remainder: bool, floored: bool, x: str, y: str, lanes: int) -> str:
        """Vectors of numbers of 64 bits as floats, but where one has more of these than a mantissa."""
        emit, b, type_, masks = self.b.emit, self.b, vec("i64", lanes), vec("i1", lanes)
        moved, reach = (self.splat("i64", str(n), lanes) for n in (1 << 51, 1 << 52))
        large = [emit(f"icmp uge {type_} {emit(f'add {type_} {v}, {moved}')}, {reach}") for v in (x, y)]
        usual = self._divide_as_floats(remainder, floored, x, y, "int64", lanes)
        rare, after, before = b.name("rare"), b.name("usual"), b.block
        b.seldom(self.any_lane(emit(f"or {masks} {large[0]}, {large[1]}"), lanes), rare, after)
        b.start(rare)
        exact, end = self._divide_integers(remainder, floored, True, x, y, type_, "i64", lanes), b.block
        b.jump(after)
        b.start(after)
        return b.phi(type_, (usual, before), (exact, end))

    def _divide_as_floats(self, remainder: bool, floored: bool, x: str, y: str, dtype: str, lanes: int) -> str:
        """Vectors of integers that have fewer bits than a float's mantissa, in floats: no machine divides vectors of integers. A rounded
        quotient of such numbers never reaches the next integer, so its integer part is exact. ``y`` is not 0, nor -1 where ``x`` is the
        least number."""
        emit, bits, sign = self.b.emit, dtype_bits(dtype), "s" if is_signed(dtype) else "u"
        element = "float" if bits <= 16 else "double"
        integers, floats = vec(register_type(dtype), lanes), vec(element, lanes)
        # Without instructions for it, places become doubles and back by what they are in a mantissa whose last bit is 1.
        magic = bits == 64 and self.target.triple.startswith("x86_64") and "avx512dq" not in self.target.features
        by = self.splat("double", float_literal(1.5 * 2.0**52, "double"), lanes)
        number = self.splat("i64", str(0x4338 << 48), lanes)
        if magic:
            of = [emit(f"add {integers} {v}, {number}") for v in (x, y)]
            of = [emit(f"fsub {floats} {emit(f'bitcast {integers} {v} to {floats}')}, {by}") for v in of]
        else:
            of = [emit(f"{sign}itofp {integers} {v} to {floats}") for v in (x, y)]
        ratio = emit(f"fdiv {floats} {of[0]}, {of[1]}")
        if floored or magic:
            ratio = self.rounding("floor" if floored else "trunc", ratio, element, lanes)
        if magic:
            above = emit(f"fadd {floats} {ratio}, {by}")
            quotient = emit(f"sub {integers} {emit(f'bitcast {floats} {above} to {integers}')}, {number}")
        else:
            quotient = emit(f"fpto{sign}i {floats} {ratio} to {integers}")
        if not remainder:
            return quotient
        return emit(f"sub {integers} {x}, {emit(f'mul {integers} {quotient}, {y}')}")

    def _shift(self, op: BinaryOp, x: str, y: str, type_: str, dtype: str, lanes: int) -> str:
        emit, element, bits = self.b.emit, register_type(dtype), dtype_bits(dtype)
        inside = emit(f"icmp ult {type_} {y}, {self.splat(element, str(bits), lanes)}")
        if op == "shr" and is_signed(dtype):
            amount = self.select_text(inside, y, self.splat(element, str(bits - 1), lanes), type_, lanes)
            return emit(f"ashr {type_} {x}, {amount}")
        amount = self.select_text(inside, y, self.splat(element, "0", lanes), type_, lanes)
        shifted = emit(f"{'shl' if op == 'shl' else 'lshr'} {type_} {x}, {amount}")
        return self.select_text(inside, shifted, self.splat(element, "0", lanes), type_, lanes)

    def _power(self, x: str, y: str, dtype: str, lanes: int) -> str:
        """Integer power by squaring, a loop over the exponent's bits; a negative exponent gives 1/x truncated."""
        b, element, bits = self.b, register_type(dtype), dtype_bits(dtype)
        type_, mask = vec(element, lanes), vec("i1", lanes)
        one, zero = self.splat(element, "1", lanes), self.splat(element, "0", lanes)
        loop, done, before = b.name("pow"), b.name("powdone"), b.block
        b.jump(loop)
        b.start(loop)
        step, result, base, rest = (b.local() for _ in range(4))
        next_step, next_result, next_base, next_rest = (b.local() for _ in range(4))
        b.do(f"{step} = phi i32 [ 0, %{before} ], [ {next_step}, %{loop} ]")
        for name, first, following in ((result, one, next_result), (base, x, next_base), (rest, y, next_rest)):
            b.do(f"{name} = phi {type_} [ {first}, %{before} ], [ {following}, %{loop} ]")
        odd = b.emit(f"trunc {type_} {rest} to {mask}")
        product = b.emit(f"mul {type_} {result}, {base}")
        b.do(f"{next_result} = select {mask} {odd}, {type_} {product}, {type_} {result}")
        b.do(f"{next_base} = mul {type_} {base}, {base}")
        b.do(f"{next_rest} = lshr {type_} {rest}, {one}")
        b.do(f"{next_step} = add i32 {step}, 1")
        b.branch(b.emit(f"icmp ult i32 {next_step}, {bits}"), loop, done)
        b.start(done)
        if not is_signed(dtype):
            return next_result
        negative = b.emit(f"icmp slt {type_} {y}, {zero}")
        unit = b.emit(f"icmp eq {type_} {x}, {one}")
        minus = b.emit(f"icmp eq {type_} {x}, {self.splat(element, '-1', lanes)}")
        invertible = b.emit(f"or {mask} {unit}, {minus}")
        inverse = self.select_text(invertible, next_result, zero, type_, lanes)
        return self.select_text(negative, inverse, next_result, type_, lanes)

    def compare(self, op: CompareOp, a: Value, b: Value) -> Value:
        if isinstance(a.const, int) and isinstance(b.const, int) and a.dtype == "int64":
            return self.constant(_COMPARE[op](a.const, b.const), "bool")
        known = [_lanes_known(v, max(a.lanes, b.lanes)) for v in (a, b)]
        if known[0] and known[1]:
            # What is left of a vector of known length: a constant, or all lanes or none, so that code has no mask.
            bits = [_COMPARE[op](x, y) for x, y in zip(known[0], known[1], strict=True)]
            if len(set(bits)) == 1:
                return self.constant(bits[0], "bool")
            return Value(f"<{', '.join('i1 true' if bit else 'i1 false' for bit in bits)}>", "bool", len(bits))
        if (a.is_ramp or b.is_ramp) and all(v.is_placed and (v.is_ramp or v.is_uniform) for v in (a, b)):
            return self._compare_lanes(op, a, b)
        lanes, (x, y) = self.together(a, b)
        type_ = vec(register_type(a.dtype), lanes)
        if is_float(a.dtype):
            return Value(self.b.emit(f"fcmp {_ORDERED[op]} {type_} {x}, {y}"), "bool", lanes)
        sign = "" if op in ("eq", "ne") else "s" if is_signed(a.dtype) else "u"
        return Value(self.b.emit(f"icmp {sign}{op} {type_} {x}, {y}"), "bool", lanes)

    def _compare_lanes(self, op: CompareOp, a: Value, b: Value) -> Value:
        """Indices that steps from lane to lane are told apart by: how far the first lanes are from each other is one number, and lanes are
        compared in 32 bits, of which a register holds twice as many as of the indices. Indices that are ``placed`` have a difference."""
        lanes, step = max(a.lanes, b.lanes), a.stride - b.stride
        if step == 0:
            return self.compare(op, base_of(a), base_of(b))
        ends = 0, step * (lanes - 1)
        far = self.binary("sub", base_of(b), base_of(a))
        # What is further away is as far as the first that is beyond all lanes.
        far = self.binary("min", self.binary("max", far, self.index(min(ends) - 1)), self.index(max(ends) + 1))
        short = far.text if far.const is not None else self.b.emit(f"trunc i64 {far.text} to i32")
        steps = "<" + ", ".join(f"i32 {step * lane}" for lane in range(lanes)) + ">"
        sign = "" if op in ("eq", "ne") else "s"
        text = self.b.emit(f"icmp {sign}{op} {vec('i32', lanes)} {steps}, {self.splat('i32', short, lanes)}")
        if step == 1 and op == "lt":
            self.first[text] = self.binary("max", far, self.index(0)).text
        return Value(text, "bool", lanes)

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        """``a`` where ``cond``, else ``b``, without branches."""
        if cond.const is not None:
            return a if cond.const else b
        placed = a.is_placed and b.is_placed
        if cond.is_uniform and a.is_uniform and b.is_uniform:
            text = self.select_text(cond.text, a.text, b.text, register_type(a.dtype), 1)
            multiple = gcd(a.multiple, b.multiple)
            return Value(text, a.dtype, multiple=multiple, nonneg=a.nonneg and b.nonneg, placed=placed)
        nonneg = a.nonneg and b.nonneg
        lanes = max(cond.lanes, a.lanes, b.lanes)
        x, y = self.spread(a, lanes).text, self.spread(b, lanes).text
        type_ = vec(register_type(a.dtype), lanes)
        return Value(self.select_text(cond.text, x, y, type_, cond.lanes), a.dtype, lanes, nonneg=nonneg, placed=placed)

    def select_text(self, cond: str, x: str, y: str, type_: str, lanes: int) -> str:
        return self.b.emit(f"select {vec('i1', lanes)} {cond}, {type_} {x}, {type_} {y}")

    def intrinsic(self, name: str, element: str, lanes: int, *operands: str) -> str:
        """An LLVM intrinsic whose operands and result all have one type."""
        type_ = vec(element, lanes)
        extra = [("i1", "false")] if name == "abs" else []
        given = [(type_, v) for v in operands] + extra
        return self.b.call(f"llvm.{name}.{mangled(element, lanes)}", type_, *given)

    def rounding(self, name: str, x: str, element: str, lanes: int) -> str:
        """floor, ceil, trunc or roundeven. Machines with the instruction use it; others do it through integers."""
        from_baseline = self.target.triple.startswith("x86_64") and "sse4.1" not in self.target.features
        if not from_baseline:
            return self.intrinsic(name, element, lanes, x)
        type_ = vec(element, lanes)
        bits = 32 if element == "float" else 64
        integer = vec(f"i{bits}", lanes)
        emit = self.b.emit
        limit = float_literal(2.0 ** (23 if bits == 32 else 52), element)
        magnitude = self.intrinsic("fabs", element, lanes, x)
        small = emit(f"fcmp olt {type_} {magnitude}, {self.splat(element, limit, lanes)}")
        if name == "roundeven":
            # Adding and taking away the first float without fraction bits rounds to nearest even.
            big = self.splat(element, limit, lanes)
            rounded = emit(f"fsub {type_} {emit(f'fadd {type_} {magnitude}, {big}')}, {big}")
        else:
            safe = self.select_text(small, x, self.splat(element, "0.0", lanes), type_, lanes)
            rounded = emit(f"sitofp {integer} {emit(f'fptosi {type_} {safe} to {integer}')} to {type_}")
            if name != "trunc":
                one = self.splat(element, "1.0" if name == "ceil" else "-1.0", lanes)
                off = emit(f"fcmp {'olt' if name == 'ceil' else 'ogt'} {type_} {rounded}, {safe}")
                rounded = self.select_text(off, emit(f"fadd {type_} {rounded}, {one}"), rounded, type_, lanes)
            rounded = self.intrinsic("fabs", element, lanes, rounded)
        signed = self.intrinsic("copysign", element, lanes, rounded, x)
        return self.select_text(small, signed, x, type_, lanes)

    # -- reductions

    def any_lane(self, mask: str, lanes: int) -> str:
        return self.b.call(f"llvm.vector.reduce.or.v{lanes}i1", "i1", (vec("i1", lanes), mask))

    def _either_nan(self, x: Value, best: Value) -> Value:
        """What `extreme` gives, or nan where x is. Not x itself: both choices would be made by one comparison more, and none by the
        instruction for extremes."""
        lanes, (a, b) = self.together(x, best)
        type_ = vec(register_type(x.dtype), lanes)
        unordered = self.b.emit(f"fcmp uno {type_} {a}, {a}")
        none = self.splat(register_type(x.dtype), self.constant(nan, x.dtype).text, lanes)
        return Value(self.select_text(unordered, none, b, type_, lanes), x.dtype, lanes)

    def extreme(self, op: BinaryOp, x: Value, best: Value) -> Value:
        """The greater or lesser of two floats; ``best`` where x is nan: one instruction."""
        lanes, (a, b) = self.together(x, best)
        type_ = vec(register_type(x.dtype), lanes)
        better = self.b.emit(f"fcmp {'ogt' if op == 'max' else 'olt'} {type_} {a}, {b}")
        return Value(self.select_text(better, a, b, type_, lanes), x.dtype, lanes)

    def accumulated(self, op: BinaryOp, before: Value, more: Value) -> Value:
        """What there was before a reduction with the reduction's result, a sum of which began with 0 and so is no -0: adding
        it to 0 changes nothing."""
        if op != "add" or not is_float(more.dtype):
            return self.binary(op, before, more)
        lanes, (x, y) = self.together(before, more)
        return Value(self.b.emit(f"fadd nsz {vec(register_type(more.dtype), lanes)} {x}, {y}"), more.dtype, lanes)

    def identity(self, op: BinaryOp, dtype: str) -> Value:
        """The value that leaves the other operand as it is."""
        match op:
            case "add" | "or" | "xor":
                return self.constant(False if dtype == "bool" else 0, dtype)
            case "mul" | "and":
                if dtype == "bool":
                    return self.constant(True, dtype)
                return self.constant(1 if op == "mul" else -1, dtype)
            case "max" | "min":
                if is_float(dtype):
                    return self.constant(float("-inf") if op == "max" else float("inf"), dtype)
                if dtype == "bool":
                    return self.constant(op == "min", dtype)
                bits = dtype_bits(dtype)
                low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed(dtype) else (0, (1 << bits) - 1)
                return self.constant(low if op == "max" else high, dtype)
            case _:
                raise AssertionError(f"{op} does not reduce")


def base_of(value: Value) -> Value:
    """A ramp's value in lane 0; a uniform value itself."""
    if not value.is_ramp:
        return value
    const = None if value.text.startswith("%") else int(value.text)
    return Value(
        value.text, value.dtype, const=const, multiple=value.multiple, nonneg=value.nonneg, placed=value.placed
    )


def with_stride(base: Value, stride: int, lanes: int) -> Value:
    """The ramp from a base; the base itself when nothing changes from lane to lane."""
    if stride == 0:
        return base
    nonneg = base.nonneg and stride > 0
    return Value(base.text, base.dtype, lanes, stride, None, base.multiple, nonneg, placed=base.is_placed)


def _multiple(op: BinaryOp, a: Value, b: Value) -> int:
    if a.dtype != "int64":
        return 1
    if op in ("add", "sub", "min", "max"):
        return gcd(a.multiple, b.multiple)
    if op == "mul":
        return a.multiple * b.multiple
    if op == "mod":
        return gcd(a.multiple, b.multiple)
    return 1


def _fold(op: BinaryOp, a: int, b: int) -> int | None:
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // b if b else 0
        case "mod":
            return a % b if b else 0
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case _:
            return None


_COMPARE = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


def _lanes_known(value: Value, lanes: int) -> list[int]:
    """The index in every lane, where all are known numbers."""
    if value.dtype != "int64" or value.run != 1:
        return []
    if isinstance(value.const, int) and value.is_uniform:
        return [value.const] * lanes
    if value.is_ramp and value.text.lstrip("-").isdigit():
        return [int(value.text) + n * value.stride for n in range(lanes)]
    return []
