"""Elementary functions, element by element."""

from __future__ import annotations

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import vec
from relay.codegen.values import Value, register_type
from relay.ir.types import is_float
from relay.te.scalar import BinaryOp, UnaryOp


class Elementary:
    def __init__(self, arithmetic: Arithmetic) -> None:
        self.a = arithmetic

    def unary(self, op: UnaryOp, value: Value) -> Value:
        a, b = self.a, self.a.b
        value = a.spread(value, value.lanes)
        lanes, text, dtype = value.lanes, value.text, value.dtype
        element = register_type(dtype)
        type_ = vec(element, lanes)
        if op == "neg":
            return Value(b.emit(f"fneg {type_} {text}") if is_float(dtype) else b.emit(f"sub {type_} {a.splat(element, '0', lanes)}, {text}"), dtype, lanes)
        if op == "sqrt":
            return Value(a.intrinsic("sqrt", element, lanes, text), dtype, lanes)
        raise NotImplementedError(op)

    def binary(self, op: BinaryOp, x: Value, y: Value) -> Value:
        raise NotImplementedError(op)
