"""What the package gives to others."""

from relay.interpreter.evaluation import RECURSION_LIMIT, evaluate

__all__ = ["RECURSION_LIMIT", "evaluate"]
