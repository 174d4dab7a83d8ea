"""What the programs of `dynamic.py` share: their sizes, their inputs' lengths, and what a program is to be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Run = Callable[[Array], Any]  # of one input; what it gives is compared with the others'
Maker = Callable[[int], Run]  # of the number of threads
Executor = Literal["vm", "aot"]
EXAMPLES = Path(__file__).parent.parent / "examples"
INPUT, HIDDEN = 300, 512


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine allows, measured: multiply-adds in FLOP/s, and reading so many bytes of weights, in bytes a second."""

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Bar:
    """What a program has to reach: at most so many times its floor, and at least so many times faster than the best other system."""

    over_floor: float | None = None
    over_peers: float = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program to measure.

    ``tokens``: how many an input has, seen also from the result. ``systems``: makers by name. ``floor``: the seconds that an input of so
    many tokens takes at least. ``streamed``: bytes of weights that each step reads. ``bars``: by number of threads.
    """

    inputs: Sequence[Array]
    tokens: Callable[[Array, Any], int]
    systems: Mapping[str, Maker]
    floor: Callable[[Array, int, Machine], float]
    streamed: int
    bars: Mapping[int, Bar] = field(default_factory=lambda: {n: Bar() for n in (1, 2)})


def lengths(count: int) -> list[int]:
    """Lengths like those of MRPC's sentences (mean 22, 6 to 45)."""
    drawn = np.random.default_rng(0).normal(22, 7, size=count)
    return [int(n) for n in np.clip(np.round(drawn), 6, 45)]


def normal(*shape: int, seed: int = 0, scale: float = 0.05) -> Array:
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)
