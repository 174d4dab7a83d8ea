"""Relay: a deep-learning compiler in which a network is a program and an operator is one expression.

module = relay.parse(text)              # or relay.load_module("m.relay"), or the builder
exe = relay.compile(module)             # native code for any size
y = exe(x)                              # NumPy or DLPack in, relay.Tensor out
y = relay.evaluate(module, x)           # the definitional interpreter: what the program means
"""

from __future__ import annotations

from relay.starting import leave_quietly

leave_quietly()  # before what takes long to import

from relay import op, pipeline, te, transform
from relay._runtime import Tensor
from relay.differentiate import evaluate, grad, jvp, value_and_grad
from relay.executable.program import Executable, Limits, load
from relay.ir.builder import const, var
from relay.ir.builder import function as Function
from relay.ir.diagnostics import RelayError
from relay.ir.expr import Call
from relay.ir.module import Module
from relay.ir.value import AdtValue
from relay.loading import infer_type, load_module, parse, parse_expr
from relay.op.custom_gradients import gradient_rule
from relay.op.registry import operator
from relay.options import Options
from relay.pipeline import build_library, compile
from relay.transform.base import Pipeline

__all__ = [
    "AdtValue", "Call", "Executable", "Function", "Limits", "Module", "Options", "Pipeline", "RelayError", "Tensor",
    "build_library", "compile", "const", "evaluate", "grad", "gradient_rule", "infer_type", "jvp", "load", "load_module", "op", "operator",
    "parse", "parse_expr", "pipeline", "te", "transform", "value_and_grad", "var",
]  # fmt: skip
