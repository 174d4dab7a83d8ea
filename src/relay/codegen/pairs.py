"""Sums of two products as one instruction: ``acc + x0 * y0 + x1 * y1`` of bfloat16 neighbours, summed in float32.

The loop nest says it in ordinary terms: a store adds two products to an element of local memory, whose factors are
widened loads; ``x0`` and ``x1`` are neighbours in memory and the same in all lanes, ``y0`` and ``y1`` are neighbours for
every lane, and lanes follow each other. AVX512_BF16's ``dpbf16ps`` computes that. Products of bfloat16 numbers are
exact in float32; the instruction rounds each sum to nearest even and flushes denormals.
"""

from __future__ import annotations

from relay.codegen.target import has
from relay.ir.record import record
from relay.loop.ir import Buffer, Store
from relay.loop.target import Target
from relay.loop.walk import same
from relay.te.index import Indices
from relay.te.scalar import Binary, Cast, Const, Load, Scalar

DOT = "llvm.x86.avx512bf16.dpbf16ps.512"
LANES = 16


@record(frozen=True, slots=True, eq=False)
class PairStep:
    """``own + x * y`` over a pair: the first element's load on either side."""

    own: Load
    left: Load
    right: Load


def pair_step(store: Store, target: Target) -> PairStep | None:
    """A store as a step of a sum over pairs, where the target has the instruction."""
    if not has(target, "avx512bf16") or store.buffer.dtype != "float32":
        return None
    second = _sum(store.value)
    first = None if second is None else _sum(second[0])
    if first is None or second is None:
        return None
    own, (x0, y0), (x1, y1) = first[0], first[1], second[1]
    if not isinstance(own, Load) or own.source is not store.buffer:
        return None
    if not all(same(i, j) for i, j in zip(own.indices, store.indices, strict=True)):
        return None
    if x0.source is not x1.source or y0.source is not y1.source:
        return None
    return PairStep(own, x0, y0) if _follows(x0, x1) and _follows(y0, y1) else None


def _sum(value: Scalar) -> tuple[Scalar, tuple[Load, Load]] | None:
    """``rest + x * y`` of widened loads."""
    if not isinstance(value, Binary) or value.op != "add":
        return None
    product = value.b
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    factors = [_widened(f) for f in (product.a, product.b)]
    if factors[0] is None or factors[1] is None:
        return None
    return value.a, (factors[0], factors[1])


def _widened(value: Scalar) -> Load | None:
    if not isinstance(value, Cast) or value.dtype != "float32" or not isinstance(value.a, Load):
        return None
    load = value.a
    outside = isinstance(load.source, Buffer) and load.source.scope not in ("register", "stack")
    return load if outside and load.dtype == "bfloat16" else None


def _follows(a: Load, b: Load) -> bool:
    """Whether the second load is of the element behind the first's."""
    *outer, last = zip(a.indices, b.indices, strict=True)
    if not all(same(i, j) for i, j in outer):
        return False
    if isinstance(last[0], Const) and isinstance(last[1], Const):
        return last[1].value == last[0].value + 1
    indices = Indices()
    return indices.poly(Binary("sub", last[1], last[0], "int64")) == 1
