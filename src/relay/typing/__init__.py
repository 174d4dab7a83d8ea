"""Types: inference with a queue of type relations, effects, exhaustiveness, monomorphisation."""

from relay.typing.infer import expand, infer, infer_expr, op_checks, op_type
from relay.typing.text import type_text

__all__ = ["expand", "infer", "infer_expr", "op_checks", "op_type", "type_text"]
