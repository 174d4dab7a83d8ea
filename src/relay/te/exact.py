"""Definitions of which there is one result, bit by bit, however they are computed.

Integers wrap, comparisons, choices and copies round nothing, and IEEE 754 says how a sum, a product, a quotient and a root are
rounded: NumPy (`relay.te.evaluate`) and compiled code give the same bits. Elementary functions, and sums of floats in an order of
the schedule's choice, are each one's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import dim_evaluate, shape_size
from relay.ir.types import is_float
from relay.te.scalar import Axis, Binary, Bits, Cast, Compare, Const, Load, Reduce, Scalar, Select, Size, Unary, walk
from relay.te.tensor import Placeholder, Scan, Tensor, stage_bodies, stages

# On floats, what rounds (as IEEE 754 says), and what does not.
_ROUNDED = frozenset({"add", "sub", "mul", "div", "sqrt"})
_NOT_ROUNDED = frozenset({"neg", "abs", "floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "isfinite"})
# Whether the result is an element or its place, and not which of two equal zeros.
_CHOSEN = frozenset({"all", "any", "argmax", "argmin"})
_NARROW = frozenset({"float16", "bfloat16"})
# Elements that NumPy computes in the time that Python needs for a step of a recurrence.
_STEP = 1 << 8


def is_exact(outputs: Sequence[Tensor]) -> bool:
    """Whether all that compute a definition have to give the same bits (of nan: any of its)."""
    bodies = [(stage, body, walk(body)) for stage in stages(outputs) for body in stage_bodies(stage)]
    read = {
        id(n.source.stage)
        for *_, nodes in bodies
        for n in nodes
        if isinstance(n, Load) and isinstance(n.source, Tensor)
    }
    for stage, body, nodes in bodies:
        # Compiled code rounds a narrow float where it is stored, not after each operation.
        stored = set() if id(stage) in read else _stored(body)
        for node in nodes:
            if not _is_exact(node) or (_rounds(node) and node.dtype in _NARROW and id(node) not in stored):
                return False
            # What is added up along an axis may be added up in parts.
            if isinstance(stage, Scan) and _rounds(node):
                return False
    return True


def _stored(body: Scalar) -> set[int]:
    """The nodes whose values are elements of a tensor, and nothing else but the choice between them."""
    out: set[int] = set()
    todo = [body]
    while todo:
        node = todo.pop()
        if isinstance(node, Select):
            todo += [node.a, node.b]
        else:
            out.add(id(node))
    return out


def _rounds(node: Scalar) -> bool:
    return isinstance(node, Binary | Unary) and is_float(node.dtype) and node.op in _ROUNDED


def _is_exact(node: Scalar) -> bool:
    match node:
        case Const() | Size() | Axis() | Load() | Compare() | Select() | Bits():
            return True
        case Cast():
            # Wide numbers go to narrow floats by way of others, or at once.
            return node.dtype not in _NARROW or node.a.dtype in (*_NARROW, "float32", "bool", "int8", "uint8")
        case Unary():
            return not is_float(node.a.dtype) or node.op in _ROUNDED | _NOT_ROUNDED
        case Binary():
            return not is_float(node.dtype) or node.op in _ROUNDED
        case Reduce():
            return not is_float(node.body.dtype) or node.kind in _CHOSEN
        case _:
            return False


def work(outputs: Sequence[Tensor]) -> int:
    """How much NumPy has to do for a definition of known sizes: the elements that its stages compute, reduction variables counted,
    and what Python needs for each step of a recurrence, in elements."""
    total = 0
    for stage in stages(outputs):
        if not isinstance(stage, Placeholder):
            reduced = {a: a.extent for body in stage_bodies(stage) if isinstance(body, Reduce) for a in body.axes}
            total += dim_evaluate(shape_size((*stage.shape, *reduced.values())), {})
        if isinstance(stage, Scan):
            total += _STEP * dim_evaluate(stage.shape[stage.dim], {})
    return total
