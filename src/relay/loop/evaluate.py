"""The meaning of a loop nest, slowly: one element at a time over NumPy arrays. Tests hold generated code to it.

Loops of every kind run in order. float16 and bfloat16 are computed as float32 and rounded when stored, cast or compared;
integer arithmetic wraps; the rules for divisions, shifts and conversions are those of `relay.te.scalar` and
`relay.codegen.arith`. Sub-byte dtypes are ml_dtypes arrays, one element each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

import numpy as np

from relay.ir.dim import DimVar, dim_evaluate
from relay.ir.dtypes import numpy_dtype
from relay.ir.types import dtype_bits, is_float
from relay.loop.errors import LoopError
from relay.loop.ir import (
    MOST_BLOCK_ROWS,
    TURN,
    WORKERS,
    Alloc,
    Behind,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Shared,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.te import numeric
from relay.te.scalar import (
    JUMPING,
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    children,
    walk,
)

Array = np.ndarray[Any, Any]
Number = bool | int | float


# How many elements behind a line buffers begin.
_BEHIND = 3


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


def evaluate(kernel: Kernel, arrays: Sequence[Array], dims: Mapping[DimVar, int] | None = None) -> int:
    """Run a kernel on arrays for its inputs and outputs (outputs are written). Returns its code: 0, or a `Fail`'s."""
    state = _State(dict(dims or {}))
    for buffer, array in zip((*kernel.inputs, *kernel.outputs), arrays, strict=True):
        shape = tuple(dim_evaluate(d, state.dims) for d in buffer.shape)
        if shape != array.shape or numpy_dtype(buffer.dtype) != array.dtype:
            raise LoopError(
                f"the operand {buffer.name} is {buffer.dtype}{list(shape)}, not {array.dtype}{list(array.shape)}"
            )
        state.arrays[buffer] = array
    try:
        with np.errstate(all="ignore"):
            state.run(kernel.body)
    except _Failed as failed:
        return failed.code
    return 0


class _State:
    def __init__(self, dims: dict[DimVar, int]) -> None:
        self.dims = dims
        self.arrays: dict[Buffer, Array] = {}
        self.axes: dict[Axis, Number] = {WORKERS: 3, TURN: 1}
        # The nodes of an expression in the order in which they are computed; None where selects decide which are.
        self._orders: dict[Scalar, list[Scalar] | None] = {}

    def run(self, stmt: Stmt) -> None:
        while True:
            match stmt:
                case Seq():
                    for part in stmt.stmts:
                        self.run(part)
                    return
                case For():
                    for index in range(int(self.value(stmt.extent))):
                        self.axes[stmt.var] = index
                        self.run(stmt.body)
                    return
                case Store():
                    value = self.value(stmt.value)
                    # float16 registers hold float32.
                    held = "float32" if self.is_wide(stmt.buffer) else stmt.buffer.dtype
                    self.arrays[stmt.buffer][self.place(stmt.buffer, stmt.indices)] = _stored(value, held)
                    return
                case Transpose():
                    self.transpose(stmt)
                    return
                case BlockProduct():
                    self.block_product(stmt)
                    return
                case Prefetch():
                    self.prefetch(stmt)
                    return
                case LetScalar():
                    self.axes[stmt.var] = self.value(stmt.value)
                    stmt = stmt.body
                case Alloc():
                    buffer = stmt.buffer
                    shape = tuple(dim_evaluate(d, self.dims) for d in buffer.shape)
                    # Memory of an allocation is uninitialised: a value nobody expects.
                    dtype = "float32" if self.is_wide(buffer) else buffer.dtype
                    self.arrays[buffer] = np.full(shape, 5, numpy_dtype(dtype))
                    stmt = stmt.body
                case Branch():
                    chosen = stmt.then if self.value(stmt.cond) else stmt.orelse
                    if chosen is None:
                        return
                    stmt = chosen
                case Switch():
                    value = int(self.value(stmt.value))
                    if not 0 <= value < len(stmt.cases):
                        return
                    stmt = stmt.cases[value]
                case Fail():
                    raise _Failed(stmt.code)
                case _:
                    assert_never(stmt)

    def prefetch(self, stmt: Prefetch) -> tuple[int, ...]:
        """Nothing happens there: the place only has to have a value."""
        return tuple(int(self.value(index)) for index in stmt.indices)

    def transpose(self, stmt: Transpose) -> None:
        parts = (stmt.to, stmt.pitch, stmt.at, stmt.stride, stmt.rows, stmt.columns)
        to, pitch, at, stride, rows, columns = (int(self.value(p)) for p in parts)
        target, source = self.arrays[stmt.target], self.arrays[stmt.source]
        for i in range(rows):
            for j in range(columns):
                there, here = to + j * pitch + i, at + i * stride + j
                if not (0 <= there < len(target) and 0 <= here < len(source)):
                    raise LoopError(f"a transpose of {stmt.source.name} to {stmt.target.name} leaves their shapes")
                target[there] = source[here]

    def block_product(self, stmt: BlockProduct) -> None:
        to, at, stride, rows, *panel = (int(self.value(s)) for s in stmt.measures)
        target, left, right = (self.arrays[b] for b in (stmt.target, stmt.left, stmt.right))
        panel = panel[: len(stmt.panel)]
        inside = all(0 <= n < size for n, size in zip(panel, right.shape, strict=False))
        if not inside or not 0 < rows <= MOST_BLOCK_ROWS or stmt.depth > 2 * right.shape[-3]:
            raise LoopError(f"a product of {rows} rows with the panel {panel} of {stmt.right.name}")
        pairs = right[tuple(panel)][: stmt.depth // 2].astype(np.float32)
        columns = stmt.columns
        factors = pairs.transpose(0, 2, 1).reshape(stmt.depth, columns)
        for i in range(rows):
            here, there = at + i * stride, to + i * columns
            if min(here, there) < 0 or here + stmt.depth > len(left) or there + columns > len(target):
                raise LoopError(f"a product of {stmt.left.name} in {stmt.target.name} leaves their shapes")
            target[there : there + columns] = left[here : here + stmt.depth].astype(np.float32) @ factors

    @staticmethod
    def is_wide(buffer: Buffer) -> bool:
        return buffer.dtype in ("float16", "bfloat16") and buffer.scope in ("register", "stack")

    def place(self, buffer: Buffer, indices: Sequence[Scalar]) -> tuple[int, ...]:
        return self.inside(buffer, [self.value(i) for i in indices])

    def inside(self, buffer: Buffer, at: Sequence[Number]) -> tuple[int, ...]:
        """The place of an element. Raises LoopError for one outside of the shape."""
        where, shape = tuple(map(int, at)), self.arrays[buffer].shape
        for i, n in zip(where, shape, strict=True):
            if not 0 <= i < n:
                raise LoopError(f"{buffer.name}{list(where)} is outside of its shape {list(shape)}")
        return where

    def value(self, root: Scalar) -> Number:
        """An expression's value. Only the chosen side of a select is computed."""
        if root not in self._orders:
            nodes = walk(root)
            self._orders[root] = None if any(isinstance(n, Select) for n in nodes) else nodes
        order = self._orders[root]
        if order is None:
            return self.chosen(root)
        done: dict[int, Number] = {}
        for node in order:
            done[id(node)] = self.node(node, [done[id(k)] for k in children(node)])
        return done[id(root)]

    def chosen(self, root: Scalar) -> Number:
        """The value of an expression with selects in it."""
        done: dict[int, Number] = {}
        todo: list[Scalar] = [root]
        while todo:
            node = todo[-1]
            if id(node) in done:
                todo.pop()
                continue
            needed = children(node)
            if isinstance(node, Select):
                needed = (node.cond,)
                if id(node.cond) in done:
                    needed = (node.a if done[id(node.cond)] else node.b,)
            missing = [k for k in needed if id(k) not in done]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if isinstance(node, Select):
                done[id(node)] = done[id(node.a if done[id(node.cond)] else node.b)]
            else:
                done[id(node)] = self.node(node, [done[id(k)] for k in children(node)])
        return done[id(root)]

    def node(self, node: Scalar, given: list[Number]) -> Number:
        match node:
            case Binary():
                return _binary(node.op, given[0], given[1], node.dtype)
            case Load():
                assert isinstance(node.source, Buffer)
                return _loaded(self.arrays[node.source][self.inside(node.source, given)], node.dtype)
            case Const():
                return _held(_wrapped(node.value, node.dtype), node.dtype)
            case Size():
                return dim_evaluate(node.dim, self.dims)
            case Behind():
                return min(_BEHIND, int(dim_evaluate(node.extent, self.dims)) - 1)
            case Shared():
                return int(np.shares_memory(self.arrays[node.input], self.arrays[node.output]))
            case Axis():
                return self.axes[node]
            case Unary():
                operand = _held(given[0], node.a.dtype) if node.op in JUMPING else given[0]
                return _unary(node.op, operand, node.a.dtype)
            case Compare():
                return _COMPARE[node.op](*(_held(g, node.a.dtype) for g in given))
            case Cast():
                return _cast(given[0] if is_float(node.dtype) else _held(given[0], node.a.dtype), node.dtype)
            case Bits():
                held = np.array(given[0], numpy_dtype(node.a.dtype))
                return _loaded(numeric.bits(held, node.dtype), node.dtype)
            case Dot():
                a, b = (np.array(g, numpy_dtype(node.dtype)) for g in given)
                return _loaded(numeric.dot(node.parts, a, b), node.dtype)
            case Select() | Reduce():
                raise LoopError(f"{type(node).__name__} has no meaning here")
            case _:
                assert_never(node)


def _loaded(value: Any, dtype: str) -> Number:
    if dtype == "bool":
        return bool(value)
    return float(value) if is_float(dtype) else int(value)


def _stored(value: Number, dtype: str) -> Any:
    kind = numpy_dtype(dtype)
    return np.float32(value).astype(kind) if dtype in ("float16", "bfloat16") else kind.type(value)


def _rounded(value: float, dtype: str) -> float:
    """To the precision that arithmetic on the dtype has: float32 for the sixteen-bit ones."""
    return value if dtype == "float64" else float(np.float32(value))


def _held(value: Number, dtype: str) -> Number:
    """A narrow float as it would come back from memory."""
    return float(_stored(value, dtype)) if dtype in ("float16", "bfloat16") else value


def _wrapped(value: Number, dtype: str) -> Number:
    if dtype == "bool":
        return bool(value)
    if is_float(dtype):
        return _rounded(float(value), dtype)
    if dtype == "int64" and -(1 << 63) <= value < 1 << 63:  # most are indices
        return int(value)
    bits = dtype_bits(dtype)
    number = int(value) & ((1 << bits) - 1)
    return number - (1 << bits) if dtype.startswith("int") and number >> (bits - 1) else number


def _cast(value: Number, dtype: str) -> Number:
    if dtype == "bool":
        return value != 0
    if is_float(dtype):
        exact = float(value)
        if isinstance(value, int) and dtype != "float64":
            exact = float(
                np.int64(value).astype(np.float32) if value < 1 << 63 else np.uint64(value).astype(np.float32)
            )
        return float(_stored(exact, dtype)) if dtype in ("float16", "bfloat16") else _rounded(exact, dtype)
    if isinstance(value, float):
        bits = dtype_bits(dtype)
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.startswith("int") else (0, (1 << bits) - 1)
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(math.trunc(value), low), high)
    return _wrapped(value, dtype)


_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _binary(op: str, a: Number, b: Number, dtype: str) -> Number:
    if is_float(dtype):
        return _rounded(_float_binary(op, float(a), float(b), dtype), dtype)
    if dtype == "bool":
        return _BOOL[op](bool(a), bool(b))
    return _wrapped(_int_binary(op, int(a), int(b), dtype), dtype)


_BOOL: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda a, b: a and b, "min": lambda a, b: a and b, "mul": lambda a, b: a and b, "or": lambda a, b: a or b,
    "max": lambda a, b: a or b, "add": lambda a, b: a or b, "xor": lambda a, b: a != b, "sub": lambda a, b: a != b,
}  # fmt: skip

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip


def _int_binary(op: str, a: int, b: int, dtype: str) -> int:
    if op in _ARITHMETIC:
        return _ARITHMETIC[op](a, b)
    bits = dtype_bits(dtype)
    match op:
        case "floordiv":
            return a // b if b else 0
        case "mod":
            return a % b if b else 0
        case "truncdiv" | "div":
            return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case "truncmod":
            return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)
        case "shl":
            return a << b if 0 <= b < bits else 0
        case "shr":
            return a >> b if 0 <= b < bits else (-1 if a < 0 else 0)
        case "pow":
            if b < 0:
                return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)
            return pow(a, b, 1 << bits)
        case _:
            raise LoopError(f"{op} of {dtype}")


def _float_binary(op: str, a: float, b: float, dtype: str) -> float:
    # In float64, which holds the result of two float32 numbers so well that rounding it to float32 is rounding once.
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
    wide = np.float64 if dtype == "float64" else np.float32
    x, y = wide(a), wide(b)
    match op:
        case "div":
            return float(np.divide(x, y))
        case "min" | "max":
            return float((np.minimum if op == "min" else np.maximum)(x, y))
        case "floordiv":
            return float(np.floor_divide(x, y))
        case "truncdiv":
            return float(np.trunc(x / y))
        case "mod" | "truncmod":
            return float((np.mod if op == "mod" else np.fmod)(x, y))
        case "pow":
            return float(np.power(np.float64(a), np.float64(b)))
        case "atan2":
            return float(np.arctan2(np.float64(a), np.float64(b)))
        case _:
            raise LoopError(f"{op} of {dtype}")


def _unary(op: str, a: Number, dtype: str) -> Number:
    if not is_float(dtype):
        return _int_unary(op, int(a), dtype)
    x = np.float64(a)
    match op:
        case "isnan" | "isinf" | "isfinite":
            return bool({"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}[op](x))
        case "erf":
            value = math.erf(float(x))
        case "sigmoid":
            value = float(1 / (1 + np.exp(-x)))
        case "rsqrt":
            value = float(1 / np.sqrt(x))
        case _:
            name = {"neg": "negative", "round": "rint", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(
                op, op
            )
            value = float(getattr(np, name)(x))
    return _rounded(value, dtype)


def _int_unary(op: str, a: int, dtype: str) -> Number:
    match op:
        case "neg":
            return _wrapped(-a, dtype)
        case "abs":
            return _wrapped(abs(a), dtype)
        case "not":
            return _wrapped(not a if dtype == "bool" else ~a, dtype)
        case "sign":
            return _wrapped((a > 0) - (a < 0), dtype)
        case "floor" | "ceil" | "round" | "trunc":
            return _wrapped(a, dtype)
        case "isnan" | "isinf":
            return False
        case "isfinite":
            return True
        case _:
            raise LoopError(f"{op} of {dtype}: it is a function of floats")
