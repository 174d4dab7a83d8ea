"""Steps of reductions, and of running ones: those whose value is read as it grows.

vectorized j < n { acc[0] = acc[0] + x[j] }                       a reduction
vectorized j < n { acc[0] = acc[0] + x[j]; y[j] = acc[0] }        a running one
"""

from __future__ import annotations

from relay.ir.types import is_float
from relay.loop.ir import Store
from relay.loop.walk import same
from relay.te.scalar import Binary, BinaryOp, Const, Load, Scalar, walk

REDUCING: frozenset[str] = frozenset({"add", "mul", "min", "max", "and", "or", "xor"})


def reduction_step(store: Store) -> tuple[BinaryOp, Load, Scalar] | None:
    """``acc[c] = acc[c] op f`` as (op, acc[c], f), the accumulator on either side."""
    value = store.value
    if not isinstance(value, Binary) or value.op not in REDUCING:
        return None
    for own, other in ((value.a, value.b), (value.b, value.a)):
        if (
            isinstance(own, Load)
            and own.source is store.buffer
            and all(same(i, j) for i, j in zip(own.indices, store.indices, strict=True))
        ):
            return value.op, own, other
    return None


def running_step(store: Store) -> tuple[BinaryOp, Load, Scalar] | None:
    """A step of a reduction into one element whose lanes may be combined before it is: what comes out differs by rounding at most.
    Products of floats are not: of some elements alone they may overflow where one after the other they do not. Narrow floats would
    be rounded to other numbers."""
    step = reduction_step(store)
    if step is None or not all(isinstance(i, Const) for i in store.indices):
        return None
    op, _, other = step
    if is_float(store.buffer.dtype) and (op == "mul" or store.buffer.dtype not in ("float32", "float64")):
        return None
    return None if any(isinstance(n, Load) and n.source is store.buffer for n in walk(other)) else step
