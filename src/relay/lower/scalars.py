"""Primitives on single elements become instructions on unboxed scalars instead of kernels.

The instructions are read off the operators' expressions (`relay.te.scalar`): one for each operation, named after it. So whatever
operators are made of such operations have them, and the meaning is the kernels'. An element of a tensor is loaded by its number in
row-major order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relay import te
from relay.codegen.elementary import FLOAT_FUNCTIONS
from relay.executable.bytecode import BY_NAME
from relay.ir.dim import Dim, dim_mul, shape_size
from relay.ir.expr import Function
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type, dtype_bits, is_float, is_integer
from relay.lower.sizes import Sizes
from relay.plan import empty_axes
from relay.plan.checked_reads import read_outside
from relay.plan.graph import TeGraph, te_graph, tensor_key
from relay.te import numeric
from relay.te.numeric import literal
from relay.te.reach import all_read
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Scalar,
    Select,
    Size,
    Unary,
    children,
    substitute,
    transform,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Tensor

Array = npt.NDArray[Any]
# A kernel's call costs about as much as this many instructions.
_MOST_INSTRUCTIONS: Final = 24
ARITHMETIC: Final = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
)
_BITS: Final = frozenset(("and", "or", "xor", "shl", "shr", "not"))
_INTEGERS_ONLY: Final = frozenset(("shl", "shr", "mod", "truncmod", "truncdiv", "floordiv", "div", "pow"))


@record(frozen=True, slots=True, eq=False)
class ScalarCode:
    """What a primitive computes: an expression for each result, which loads elements of ``inputs`` only."""

    inputs: tuple[Tensor, ...]
    results: tuple[Scalar, ...]


def scalar_code(primitive: Function) -> ScalarCode | None:
    """The expressions of a primitive whose results are single elements, where they are few operations that have instructions.

    An instruction that loads an element asks whether its number is one of the tensor's: of several axes it does not see which is left.
    """
    if len(primitive.params) > _MOST_INSTRUCTIONS or not _gives_elements(primitive.ret_type):
        return None
    graph = te_graph(primitive)
    results = elements(graph, _MOST_INSTRUCTIONS)
    if any(len(t.shape) > 1 or not isinstance(t.stage, Placeholder) for t in read_outside(graph)):
        return None
    code = None if results is None else ScalarCode(graph.inputs, results)
    return code if code is not None and can_be_instructions(code) else None


def elements(graph: TeGraph, most: int, grid: tuple[Axis, ...] = ()) -> tuple[Scalar, ...] | None:
    """What a graph's results are, in terms of elements of its inputs alone, where these are single elements of no more operations, or have
    one for each place of a grid."""
    shape = tuple(a.extent for a in grid)
    if any(output.shape not in ((), shape) for output in graph.outputs):
        return None
    found = inlined(graph, most)
    if found is None:
        return None
    return tuple(substitute(body, dict(zip(axes, grid, strict=True))) if axes else body for axes, body in found)


def inlined(graph: TeGraph, most: int) -> list[tuple[tuple[Axis, ...], Scalar]] | None:
    """An element of each of a graph's results, with the axes that say which, in terms of elements of its inputs alone; None where one takes
    more operations, is made otherwise than by itself, or reads what the graph makes where that may have no element and the inputs have."""
    made: dict[tuple[int, int], tuple[tuple[Axis, ...], Scalar]] = {}

    def inline(node: Scalar) -> Scalar:
        if isinstance(node, Load) and isinstance(node.source, Tensor) and tensor_key(node.source) in made:
            axes, body = made[tensor_key(node.source)]
            return substitute(body, dict(zip(axes, node.indices, strict=True)))
        return node

    memo: dict[int, Scalar] = {}
    for stage in te.stages(graph.outputs):
        if isinstance(stage, Placeholder):
            continue
        if not isinstance(stage, Compute):
            return None
        for number, body in enumerate(stage.bodies):
            expression = transform(body, inline, memo)
            if _cost(expression) > most:
                return None
            made[id(stage), number] = stage.axes, expression
        for tensor, size in empty_axes.asked_by(stage):
            if tensor_key(tensor) in made and not _is_empty_with(made[tensor_key(tensor)][1], size):
                return None
    if any(tensor_key(output) not in made for output in graph.outputs):
        return None
    return [made[tensor_key(output)] for output in graph.outputs]


def _is_empty_with(expression: Scalar, size: Dim) -> bool:
    """Whether something that an expression reads in any case has no element wherever a size is zero: reading it fails then."""
    return any(empty_axes.vanishes_with(shape_size(n.source.shape), size) for n in all_read(expression))


def can_be_instructions(code: ScalarCode) -> bool:
    """Whether all that is computed has instructions."""
    nodes = {id(n): n for r in code.results for n in walk(r)}.values()
    return all(_has_instruction(n) for n in nodes) and not any(
        isinstance(n, Select) and _may_not_load(n) for n in nodes
    )


def _gives_elements(ty: Type | None) -> bool:
    """Whether results of this type may be single elements: all but those that are known to be others."""
    fields = ty.fields if isinstance(ty, TupleType) else (ty,)
    return not any(isinstance(t, TensorType) and t.shape != () for t in fields)


def _cost(expression: Scalar) -> int:
    return sum(not isinstance(n, Const | Size | Axis) for n in walk(expression))


def _has_instruction(node: Scalar) -> bool:
    match node:
        case Const() | Size():
            return node.dtype in ARITHMETIC
        case Load():
            return isinstance(node.source, Tensor) and dtype_bits(node.dtype) >= 8
        case Cast():
            return {node.a.dtype, node.dtype} <= ARITHMETIC
        case Unary(op=op) | Binary(op=op) | Compare(op=op):
            return has_operation(op, node.a.dtype)
        case Select():
            return True
        case _:
            return False


def has_operation(op: str, dtype: str) -> bool:
    """Whether the dtype has an operation of `relay.te.scalar` as an instruction, with the meaning that it has in kernels."""
    if dtype not in ARITHMETIC or opcode_of(op) not in BY_NAME:
        return False
    if is_float(dtype):
        return op not in FLOAT_FUNCTIONS and op not in _BITS
    return op != "sqrt" and (is_integer(dtype) or op not in _INTEGERS_ONLY)


def _may_not_load(node: Select) -> bool:
    """Whether a side loads an element of a tensor, which may exist only where the condition says so."""
    return any(isinstance(n, Load) and n.indices for side in (node.a, node.b) for n in walk(side))


def _fold(nodes: Sequence[Scalar], known: dict[int, Array]) -> None:
    """The values of indices made of constants and numeric sizes, by their ids (those that were said to lie in bounds)."""
    for node in nodes:
        operands = [known[id(k)] for k in children(node) if id(k) in known]
        match node:
            case Const():
                known[id(node)] = literal(node.value, node.dtype)
            case Size(dim=int() as size):
                known[id(node)] = literal(size, node.dtype)
            case Binary(dtype="int64") if len(operands) == 2:
                known[id(node)] = numeric.binary(node.op, operands[0], operands[1], node.dtype)
            case Cast(dtype="int64") if operands and is_integer(node.a.dtype):
                known[id(node)] = numeric.cast(operands[0], node.a.dtype, node.dtype)
            case _:
                pass


def opcode_of(operation: str) -> str:
    """The instruction of an operation of `relay.te.scalar`."""
    return f"Scalar{operation.capitalize()}"


def emit_scalars(
    code: ScalarCode, inputs: Sequence[int], register: Callable[[str], int], emit: Callable[..., None], sizes: Sizes
) -> list[int]:
    """Emit the instructions; the registers of the results. ``inputs``: the registers of the operands."""
    operands = {tensor_key(t): r for t, r in zip(code.inputs, inputs, strict=True)}
    done: dict[int, int] = {}
    known: dict[int, Array] = {}

    def result(dtype: str, opcode: str, *rest: int | str) -> int:
        out = register(dtype)
        emit(opcode, out, *rest)
        return out

    def element(node: Load) -> int:
        assert isinstance(node.source, Tensor)
        tensor = operands[tensor_key(node.source)]
        if not node.indices:
            return tensor
        at: int | None = None
        stride: Dim = 1
        for index, extent in reversed(list(zip(node.indices, node.source.shape, strict=True))):
            if not (id(index) in known and known[id(index)] == 0):
                part = done[id(index)]
                if stride != 1:
                    part = result("int64", "ScalarMul", "int64", part, sizes.register(stride))
                at = part if at is None else result("int64", "ScalarAdd", "int64", at, part)
            stride = dim_mul(stride, extent)
        return result(node.dtype, "ScalarLoad", node.dtype, tensor, sizes.register(0) if at is None else at)

    def visit(node: Scalar) -> int:
        if id(node) in known:
            return sizes.number(node.dtype, known[id(node)].item())
        kids = [done[id(k)] for k in children(node)]
        match node:
            case Size():
                return sizes.register(node.dim)
            case Load():
                return element(node)
            case Cast():
                return result(node.dtype, "ScalarCast", node.a.dtype, node.dtype, *kids)
            case Select():
                return result(node.dtype, "ScalarSelect", *kids)
            case Unary(op=op) | Binary(op=op) | Compare(op=op):
                return result(node.dtype, opcode_of(op), node.a.dtype, *kids)
            case _:
                raise AssertionError(f"{type(node).__name__} has no instruction")

    for root in code.results:
        nodes = walk(root)
        with np.errstate(all="ignore"):
            _fold(nodes, known)
        needed = {id(k) for n in nodes if id(n) not in known for k in children(n)} | {id(root)}
        for node in nodes:
            if id(node) in needed and id(node) not in done:
                done[id(node)] = visit(node)
    return [done[id(root)] for root in code.results]
