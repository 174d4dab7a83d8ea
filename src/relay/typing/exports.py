"""What the package gives to others."""

from relay.typing.check import verify_types
from relay.typing.effects import Effects
from relay.typing.inference import expand, infer, infer_expr, op_checks, op_type
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
