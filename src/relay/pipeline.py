"""The whole compilation on one screen, and `relay.compile` on top of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from relay import codegen, typing
from relay import transform as t
from relay.executable.format import ExecutableImage
from relay.executable.program import Executable
from relay.ir.diagnostics import RelayError
from relay.ir.expr import Binding, Block, Call, Function, Tuple, Var
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.ir.types import TensorType
from relay.loop.target import Target
from relay.lower.module import lower
from relay.lower.planning import ModulePlan, plan_module
from relay.options import Options, options_from
from relay.plan.graph import TeGraph
from relay.plan.kernel_plan import plan_graph
from relay.program_cache import ProgramCache

Array = npt.NDArray[np.generic]


@dataclass(slots=True)
class Compilation:
    """What one compilation made, stage by stage, with the seconds that each took."""

    module: Module
    plan: ModulePlan
    image: ExecutableImage
    target: Target
    steps: Sequence[t.StepReport]
    seconds: Mapping[str, float]


@dataclass(slots=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self.last
        self.last = now
