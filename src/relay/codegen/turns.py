"""Quarter turns in numbers of any size.

What is left of a huge number depends on bits of 2/pi that lie as deep as its exponent is large, and on no others: those in
front of them count multiples of four quarter turns, those behind are too small to matter. So three words of 2/pi times the
mantissa, in integers, give the quadrant and 137 bits of the fraction (M. H. Payne, R. N. Hanek, Radian reduction for
trigonometric functions, SIGNUM Newsletter 18, 1983); no double comes nearer than 2**-62 to a multiple of pi/2. One function in
a module does it lane by lane; kernels call it where a vector has a huge number, which is rare.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from relay.codegen.builder import ModuleText, vec
from relay.codegen.registers import Kit, Register

# Numbers are reduced here from 2**19 on (the bias of a double's exponent is 1023).
_LEAST_EXPONENT: Final = 1023 + 19
_WORD: Final = (1 << 64) - 1
# One word of zeros in front of the binary point, then what the largest double needs: 1033 + 4 * 64 bits.
_WORDS: Final = 21
_NAME: Final = "quarter_turns"


@cache
def _pi(bits: int) -> int:
    """pi * 2**bits, rounded down, by Machin's formula."""
    guarded = bits + 32

    def arc_cotangent(n: int) -> int:
        term, total, k = (1 << guarded) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    return 4 * (4 * arc_cotangent(5) - arc_cotangent(239)) >> 32


def _two_over_pi() -> str:
    """The words of 2/pi, a word of zeros first, as an LLVM array."""
    bits = 64 * (_WORDS - 1)
    digits = (1 << (2 * bits + 65)) // _pi(bits + 64)
    words = [digits >> (64 * n) & _WORD for n in reversed(range(_WORDS))]
    return f"[{_WORDS} x i64] [" + ", ".join(f"i64 {w}" for w in words) + "]"


def reduced(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(r, n)`` for doubles of at least 2**19 in size, where finite: x is r and n quarter turns, ``|r| <= pi/4``. Of other
    lanes r is x and n is 0."""
    b = kit.a.b
    _define(b.module)
    integers = vec("i64", kit.lanes)
    rest, turns = b.alloca(x.type), b.alloca(integers)
    b.do(f"store {x.type} {x.text}, ptr {rest}, align 64")
    b.do(f"store {integers} zeroinitializer, ptr {turns}, align 64")
    b.do(f"call void @{_NAME}(ptr {rest}, ptr {turns}, i64 {kit.lanes})")
    return (
        kit.instruction(f"load {x.type}, ptr {rest}, align 64", "double"),
        kit.instruction(f"load {integers}, ptr {turns}, align 64", "i64"),
    )


def _define(module: ModuleText) -> None:
    if not module.lacks(_NAME):
        return
    constant = f"@{_NAME}.words = internal unnamed_addr constant {_two_over_pi()}, align 64"
    module.declare("llvm.fshl.i64", "i64", ("i64", "i64", "i64"))
    module.declare("llvm.ctlz.i128", "i128", ("i128", "i1"))
    half_pi = _pi(62)  # pi/2 * 2**63
    module.functions += [
        constant,
        f"""define internal void @{_NAME}(ptr noalias %rests, ptr noalias %turns, i64 %lanes) noinline #0 {{
entry:
  br label %lane
lane:
  %i = phi i64 [ 0, %entry ], [ %next, %following ]
  %rest = getelementptr double, ptr %rests, i64 %i
  %bits = load i64, ptr %rest, align 8
  %shifted = lshr i64 %bits, 52
  %exponent = and i64 %shifted, 2047
  %above = sub i64 %exponent, {_LEAST_EXPONENT}
  %huge = icmp ult i64 %above, {2047 - _LEAST_EXPONENT}
  br i1 %huge, label %reduce, label %following
reduce:
  %low = and i64 %bits, {(1 << 52) - 1}
  %mantissa = or i64 %low, {1 << 52}
  %position = sub i64 %exponent, {1075 - 62}
  %word = lshr i64 %position, 6
  %shift = and i64 %position, 63
  %p0 = getelementptr i64, ptr @{_NAME}.words, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %a0 = load i64, ptr %p0, align 8
  %a1 = load i64, ptr %p1, align 8
  %a2 = load i64, ptr %p2, align 8
  %a3 = load i64, ptr %p3, align 8
  %w0 = call i64 @llvm.fshl.i64(i64 %a0, i64 %a1, i64 %shift)
  %w1 = call i64 @llvm.fshl.i64(i64 %a1, i64 %a2, i64 %shift)
  %w2 = call i64 @llvm.fshl.i64(i64 %a2, i64 %a3, i64 %shift)
  %m = zext i64 %mantissa to i128
  %x1 = zext i64 %w1 to i128
  %x2 = zext i64 %w2 to i128
  %y0 = mul i64 %mantissa, %w0
  %y1 = mul i128 %m, %x1
  %y2 = mul i128 %m, %x2
  %carry = lshr i128 %y2, 64
  %y12 = add i128 %y1, %carry
  %high12 = lshr i128 %y12, 64
  %carried = trunc i128 %high12 to i64
  %z0 = add i64 %y0, %carried
  %z1 = trunc i128 %y12 to i64
  %z2 = trunc i128 %y2 to i64
  %whole = lshr i64 %z0, 62
  %f0 = call i64 @llvm.fshl.i64(i64 %z0, i64 %z1, i64 2)
  %f1 = call i64 @llvm.fshl.i64(i64 %z1, i64 %z2, i64 2)
  %over = icmp slt i64 %f0, 0
  %one = zext i1 %over to i64
  %n = add i64 %whole, %one
  %g0 = zext i64 %f0 to i128
  %g1 = zext i64 %f1 to i128
  %g = shl i128 %g0, 64
  %fraction = or i128 %g, %g1
  %back = sub i128 0, %fraction
  %size = select i1 %over, i128 %back, i128 %fraction
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %leading = and i128 %zeros, 127
  %normal = shl i128 %size, %leading
  %first = lshr i128 %normal, 64
  %product = mul i128 %first, {half_pi}
  %top = lshr i128 %product, 65
  %top64 = trunc i128 %top to i64
  %number = sitofp i64 %top64 to double
  %less = trunc i128 %leading to i64
  %power = sub i64 {1023 - 62}, %less
  %places = shl i64 %power, 52
  %scale = bitcast i64 %places to double
  %magnitude = fmul double %number, %scale
  %below = icmp slt i64 %bits, 0
  %negative = xor i1 %below, %over
  %minus = fneg double %magnitude
  %r = select i1 %negative, double %minus, double %magnitude
  %less_n = sub i64 0, %n
  %turned = select i1 %below, i64 %less_n, i64 %n
  %turn = getelementptr i64, ptr %turns, i64 %i
  store double %r, ptr %rest, align 8
  store i64 %turned, ptr %turn, align 8
  br label %following
following:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %lanes
  br i1 %more, label %lane, label %done
done:
  ret void
}}""",
    ]
