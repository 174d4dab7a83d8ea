"""The definitional interpreter: `evaluate` is the meaning of the language."""

from relay.interpreter.evaluate import RECURSION_LIMIT, evaluate

__all__ = ["RECURSION_LIMIT", "evaluate"]
