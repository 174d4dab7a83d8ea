"""Relay: a deep-learning compiler in which a network is a program and an operator is one expression.

module = relay.parse(text)              # or relay.load_module("m.relay"), or the builder
exe = relay.compile(module)             # native code for any size
y = exe(x)                              # NumPy or DLPack in, relay.Tensor out
y = relay.evaluate(module, x)           # the definitional interpreter: what the program means

A name is imported when it is first used: a process that loads an executable and runs it never imports the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay import op, pipeline, te, transform
    from relay._runtime import Tensor
    from relay.compiling import build_library, compile
    from relay.differentiate import evaluate, grad, jvp, value_and_grad
    from relay.executable.program import Executable, Limits, load
    from relay.ir.builder import const, var
    from relay.ir.builder import function as Function
    from relay.ir.diagnostics import RelayError
    from relay.ir.expr import Call
    from relay.ir.module import Module
    from relay.ir.value import AdtValue
    from relay.ir.weights import load_weights
    from relay.loading import infer_type, load_module, parse, parse_expr
    from relay.op.custom_gradients import gradient_rule
    from relay.op.registry import operator
    from relay.options import Options
    from relay.transform.base import Pipeline

    __version__: str

__all__ = [
    "AdtValue", "Call", "Executable", "Function", "Limits", "Module", "Options", "Pipeline", "RelayError", "Tensor",
    "build_library", "compile", "const", "evaluate", "grad", "gradient_rule", "infer_type", "jvp", "load", "load_module", "load_weights",
    "op", "operator", "parse", "parse_expr", "pipeline", "te", "transform", "value_and_grad", "var",
]  # fmt: skip

# Where the names live that are not modules.
_HOMES = {
    "compiling": ("build_library", "compile"),
    "executable.runtime": ("Tensor",),  # with its errors
    "differentiate": ("evaluate", "grad", "jvp", "value_and_grad"),
    "executable.program": ("Executable", "Limits", "load"),
    "ir.builder": ("const", "var", "Function"),
    "ir.diagnostics": ("RelayError",),
    "ir.expr": ("Call",),
    "ir.module": ("Module",),
    "ir.value": ("AdtValue",),
    "ir.weights": ("load_weights",),
    "loading": ("infer_type", "load_module", "parse", "parse_expr"),
    "op.custom_gradients": ("gradient_rule",),
    "op.registry": ("operator",),
    "options": ("Options",),
    "transform.base": ("Pipeline",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # for type checkers there is what is imported above, and nothing else

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        found: object
        if name == "__version__":
            from importlib.metadata import version

            found = version("relay")
        elif home is not None:
            module = importlib.import_module(f"relay.{home}")
            found = getattr(module, "function" if name == "Function" else name)
        else:
            from relay.lazily import module_in

            found = module_in("relay", name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
