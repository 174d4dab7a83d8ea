"""Types: inference with a queue of type relations, effects, exhaustiveness, monomorphisation."""

from relay.typing.check import verify_types
from relay.typing.effects import Effects
from relay.typing.infer import expand, infer, infer_expr, op_checks, op_type
from relay.typing.mono import monomorphise
from relay.typing.text import type_text

__all__ = [
    "Effects",
    "expand",
    "infer",
    "infer_expr",
    "monomorphise",
    "op_checks",
    "op_type",
    "type_text",
    "verify_types",
]
