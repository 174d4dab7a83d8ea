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
from relay.codegen.target import parse_target
from relay.executable.format import ExecutableImage
from relay.executable.program import Executable
from relay.ir.diagnostics import RelayError
from relay.ir.expr import Binding, Block, Call, Function, Var
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.loop.target import Target
from relay.lower.module import lower
from relay.lower.planning import ModulePlan, plan_module
from relay.options import Options, options_from
from relay.plan.graph import TeGraph
from relay.program_cache import ProgramCache, program_key
from relay.transform.base import Observer, Pass, StepReport

Array = npt.NDArray[np.generic]


@dataclass(slots=True)
class Compilation:
    """What one compilation made, stage by stage, with the seconds that each took."""

    module: Module
    plan: ModulePlan
    image: ExecutableImage
    target: Target
    steps: Sequence[StepReport]
    seconds: Mapping[str, float]


@dataclass(slots=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self.last
        self.last = now


class Runner:
    """Runs primitives and te graphs on arrays by compiled code, for passes that fold constants and pack them."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self.options = options
        self._compiled: dict[str, Executable] = {}

    def primitive(self, primitive: Function, arrays: Sequence[Array]) -> Array | tuple[Array, ...]:
        """The results of a primitive function on arrays of its parameters' types."""
        params = tuple(Var(f"p{n}", None, p.ty) for n, p in enumerate(primitive.params))
        result = Var("r", None, primitive.ret_type)
        call = Call(primitive, params, ty=primitive.ret_type)
        body = Block((Binding(result, call),), result, primitive.ret_type)
        main = Function(params, body, primitive.ret_type)
        found = self._run(plan_module(Module({"main": main}), self.target, None), main, arrays)
        return tuple(np.asarray(f) for f in found) if isinstance(found, tuple) else np.asarray(found)

    def graph(self, graph: TeGraph, array: Array) -> Array:
        """The one output of a te graph of one input on an array."""
        ...

    def _run(self, plan: ModulePlan, main: Function, arrays: Sequence[Array]) -> object:
        objects = codegen.build([p.kernel for p in plan.kernels], self.target, cache=self.options.directory, workers=0)
        image = lower(plan, {"main": main}, objects, self.target)
        return Executable.from_bytes(image.to_bytes(), None)(*arrays)
