"""Sums of the products of what words hold (`te.scalar.Dot`), each added to what was summed up before by one instruction, or two.

Four bytes of either side are AVX512_VNNI's or AVX-VNNI's ``vpdpbusd``, whose first factors are unsigned and whose second ones are signed;
two integers of 16 bits ``vpdpwssd``, or ``pmaddwd`` and an addition; two bfloat16 numbers AVX512_BF16's ``dpbf16ps``, which rounds each sum
to nearest even and flushes subnormal numbers. Sums of integers wrap.
"""

from __future__ import annotations

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import vec
from relay.codegen.values import Value
from relay.te.scalar import Binary, Dot, Parts, Scalar

# Lanes of the instructions' registers.
_WIDTHS = (4, 8, 16)
# What adds up products of two integers of 16 bits in so many lanes.
_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def added(node: Scalar) -> tuple[Scalar, Dot] | None:
    """A sum as what there was before and the products that are added to it."""
    if not isinstance(node, Binary) or node.op != "add":
        return None
    if isinstance(node.b, Dot):
        return node.a, node.b
    return (node.b, node.a) if isinstance(node.a, Dot) else None


def dot(arith: Arithmetic, parts: Parts, total: Value, a: Value, b: Value) -> Value:
    """``total`` and the sum of the products of what the words ``a`` and ``b`` hold."""
    lanes, texts = arith.together(total, a, b)
    if parts == "s8u8":
        texts = [texts[0], texts[2], texts[1]]
    most = arith.target.vector_bits // 32
    element, count = _element(total.dtype), min(lanes, most)
    done = [
        _instruction(arith, parts, [_part(arith, t, element, lanes, first, count) for t in texts], count)
        for first in range(0, lanes, count)
    ]
    while len(done) > 1:
        pairs = zip(done[::2], done[1::2], strict=True)
        done = [arith.b.shuffled(vec(element, count), x, y, range(2 * count)) for x, y in pairs]
        count *= 2
    return Value(done[0], total.dtype, lanes)


def _instruction(arith: Arithmetic, parts: Parts, texts: list[str], lanes: int) -> str:
    """The sum in so many lanes, at most those of a register."""
    emit = arith.b.emit
    width = next(w for w in _WIDTHS if w >= lanes)
    element = "float" if parts == "bf16" else "i32"
    sums = vec(element, width)
    if lanes < width:
        texts = [_widened(arith, text, element, lanes, width) for text in texts]
    factor = {"s16": vec("i16", 2 * width), "bf16": vec("bfloat", 2 * width)}.get(parts, vec("i8", 4 * width))
    factors = [(factor, emit(f"bitcast {sums} {text} to {factor}")) for text in texts[1:]]
    bits = 32 * width
    if parts == "bf16":
        text = arith.b.call(f"llvm.x86.avx512bf16.dpbf16ps.{bits}", sums, (sums, texts[0]), *factors)
    elif arith.target.multiplies_words:
        kind = "vpdpwssd" if parts == "s16" else "vpdpbusd"
        text = arith.b.call(f"llvm.x86.avx512.{kind}.{bits}", sums, (sums, texts[0]), *factors)
    else:
        assert parts == "s16"
        text = emit(f"add {sums} {texts[0]}, {arith.b.call(_PAIRS[width], sums, *factors)}")
    if lanes == width:
        return text
    if lanes == 1:
        return emit(f"extractelement {sums} {text}, i64 0")
    return arith.b.lanes(text, sums, range(lanes))


def _part(arith: Arithmetic, text: str, element: str, lanes: int, first: int, count: int) -> str:
    """The lanes that one register takes, ``count`` from the first on."""
    if lanes == count:
        return text
    return arith.b.lanes(text, vec(element, lanes), range(first, first + count))


def _widened(arith: Arithmetic, text: str, element: str, lanes: int, width: int) -> str:
    """Lanes at the begin of a register, with zeros behind them."""
    if lanes == 1:
        return arith.b.emit(f"insertelement {vec(element, width)} zeroinitializer, {element} {text}, i64 0")
    return arith.b.shuffled(vec(element, lanes), text, "zeroinitializer", [min(n, lanes) for n in range(width)])


def _element(dtype: str) -> str:
    return "float" if dtype == "float32" else "i32"
