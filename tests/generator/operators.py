"""All operators' productions, and the operators that can be passed as values."""

from __future__ import annotations

from tests.generator import arithmetic, contractions, structure
from tests.generator.arithmetic import COMPARISONS, comparison
from tests.generator.kinds import Fn, T
from tests.generator.productions import PRODUCTIONS, Production, signed, smooth

__all__ = ["COMPARISONS", "arithmetic", "candidates", "comparison", "contractions", "first_class", "structure"]


def candidates(t: T) -> list[Production]:
    """The productions for a type, each as often as its weight."""
    return [p for p in PRODUCTIONS if p.applies(t) for _ in range(p.weight)]


def first_class(g: Fn) -> list[str]:
    """Operators that can be passed as a function of this type."""
    if len(g.params) != 1 or g.params[0] != g.ret or not isinstance(g.ret, T) or g.fuelled:
        return []
    t = g.ret
    names = ["copy"]
    if signed(t):
        names += ["negative", "nn.relu"]
    if smooth(t):
        names += ["tanh", "sigmoid"]
    return names
