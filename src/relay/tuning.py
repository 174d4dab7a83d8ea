"""Schedules of matrix products and layouts of tensors found by measuring: `relay.compile(..., tune=True)`.

How a product is tiled is decided by a model (`relay.plan.product`). Tuning measures alternatives on this machine instead, kernel by kernel
(dissertation, section 5.4.3). A kernel of symbolic sizes is compiled symbolic, with every schedule there is to choose from, and tuned at
one size that is large enough; the best of these are measured again at the powers of two, and what is best on average is taken. Where
another schedule with panels of the same width is clearly better for some numbers of rows, the kernel has that one too and chooses when it
runs. What was found is kept beside the cache of kernels, so another program with the same kernel does not measure it again.

A schedule decides nothing about results: they are the model's, bit by bit. `Tuner.seconds` measures what the pass `layouts` asks for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from relay.codegen.kernels import build
from relay.codegen.target import runs_here
from relay.executable.program import Executable
from relay.ir.diagnostics import CompileError, FileError
from relay.ir.dim import DimVar, as_dim, dim_vars
from relay.ir.dim_total import dim_evaluate_total
from relay.ir.dtypes import dtype_name, numpy_dtype
from relay.ir.expr import Constant, Function, Var
from relay.ir.files import write_whole
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, dtype_bits, is_float
from relay.loop.printer import kernel_text
from relay.loop.target import Target
from relay.lower.module import lower
from relay.lower.planning import ModulePlan, RunGraph, plan_module
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, plan_graph
from relay.plan.key import PlanKey
from relay.plan.schedule import MODEL, Case, Schedule
from relay.plan.tiles import tile_height
from relay.program_cache import compiler_digest
from relay.transform.build import calling

Array = npt.NDArray[np.generic]
T = TypeVar("T")
# A kernel's sizes by variable.
Sizes = Mapping[DimVar, int]
# The size that symbolic kernels are tuned at, and those that the best are measured at.
_LARGE, _SWEEP = 64, (1, 2, 4, 8, 16, 32, 64, 128, 256)
# How many images of a number that is not known layouts are measured with.
_IMAGES = 8
# Kernels with less to do than this at the large size are not worth it, and no measurement does more: operations.
_LEAST, _MOST = 2e5, 4e9
# Schedules that go on to the blocks of rows, and from there to the other sizes.
_WIDTHS_KEPT, _KEPT = 3, 6
# Rows of a task that are tried, and vectors of a row of a tile at most.
_BLOCKS, _MOST_VECTORS = (48, 96, 384, 768), 6
# A schedule is preferred to the model's if it takes so much less time on average, and one for a few sizes if it does there.
_GAIN, _GAIN_THERE = 0.96, 0.95
# Seconds of one turn, and turns. The least time counts: whatever else runs on the machine only adds to it.
_TURN, _TURNS = 3e-4, 9


@record(frozen=True, slots=True, eq=False)
class _Candidate:
    schedule: Schedule
    run: Callable[..., object]


class Tuner:
    """Finds schedules for the matrix products of primitives.

    ``run_graph`` packs constants (see `plan_module`); ``directory`` keeps what was found (None: nothing is kept). Raises CompileError for
    a target whose code this machine cannot run.
    """

    def __init__(
        self, target: Target, run_graph: RunGraph | None, directory: Path | None, workers: int, threads: int | None
    ) -> None:
        if not runs_here(target):
            raise CompileError(
                f"tuning measures kernels, and this machine cannot run those for {target.triple} ({target.cpu})",
                hint="compile without tune, or tune on a machine of that kind",
            )
        self._target, self._run_graph, self._threads, self._workers = target, run_graph, threads, workers
        self._cache = directory
        self._directory = None if directory is None else directory / "schedules"
        self._found: dict[str, Any] = {}

    def __call__(self, primitive: Function, key: PlanKey, constants: frozenset[int]) -> Schedule:
        """The schedule of a primitive, whose parameters numbered ``constants`` are packed ahead."""

        def read(data: Any) -> Schedule:
            return Schedule(data["vectors"], tuple(Case(**case) for case in data["cases"]))

        return self._once(key.text, lambda: self._tune(primitive, key, constants), read, asdict)

    def seconds(self, modules: Sequence[Module]) -> list[float]:
        """What the entries of modules of primitives take: of random operands, in turns. Sizes that are not known are `_IMAGES`."""
        plans = [plan_module(m, self._target, self._run_graph) for m in modules]
        texts = [kernel_text(k.kernel) for plan in plans for k in plan.kernels]

        def measured() -> list[float]:
            random = np.random.default_rng(0)
            types = [p.ty for p in modules[0].function("main").params]
            tensors = [ty for ty in types if isinstance(ty, TensorType)]
            dims = {v for ty in tensors if isinstance(ty.shape, tuple) for d in ty.shape for v in dim_vars(d)}
            sizes = _as_far_as_bounds(dims, _IMAGES)
            given = [_random(ty, sizes, random) for ty in tensors]
            return _times(self._executables([(MODEL, plan) for plan in plans]), given)

        return self._once(texts, measured, lambda data: [float(data[n]) for n in range(len(modules))], list)

    def _tune(self, primitive: Function, key: PlanKey, constants: frozenset[int]) -> Schedule:
        plan = plan_graph(te_graph(primitive), self._target, key, constants)
        large = _within(plan, _LARGE)
        if not plan.products or large is None or dim_evaluate_total(plan.flops, large) < _LEAST:
            return MODEL
        random = np.random.default_rng(0)
        main = _measured(primitive, key.dims, constants, random)

        def arguments(sizes: Sizes) -> list[Array]:
            return [_random(p.ty, sizes, random) for p in main.params if isinstance(p.ty, TensorType)]

        tried: set[str] = set()
        model, *others = self._compiled(main, [MODEL, *_schedules(plan, self._target)], tried)
        given = arguments(large)
        tiles = self._ordered(others, given)
        rows = max(dim_evaluate_total(p.rows, large) for p in plan.products)
        blocks = [
            Schedule(c.schedule.vectors, (replace(c.schedule.cases[0], block=block),))
            for c in tiles[:_WIDTHS_KEPT]
            for block in _BLOCKS
            if block < 2 * rows
        ]
        tiles = self._ordered([*tiles[:_KEPT], *self._compiled(main, blocks, tried)], given)
        finalists = [model, *tiles[:_KEPT]]
        measured: dict[int, list[list[float]]] = {}
        for size in _SWEEP if key.dims else (_LARGE,):
            if (sizes := _within(plan, size)) is not None:
                at = dim_evaluate_total(plan.products[0].rows, sizes)
                measured.setdefault(at, []).append(_times(finalists, arguments(sizes)))
        # Sizes that leave the number of rows as it is are no cases of their own: they count together.
        times = {at: [_mean(t) for t in zip(*measured[at], strict=True)] for at in sorted(measured)}
        return choose([c.schedule for c in finalists], times)

    # -- kernels to measure

    def _compiled(self, main: Function, schedules: Sequence[Schedule], tried: set[str]) -> list[_Candidate]:
        """An executable of a function for each schedule, but for those that come to kernels that were ``tried``, which it adds to:
        matrix registers leave nothing to the width, few columns nothing to the block."""
        plans: list[tuple[Schedule, ModulePlan]] = []
        for schedule in schedules:
            plan = plan_module(Module({"main": main}), self._target, self._run_graph, lambda *_, s=schedule: s)
            text = "\n".join(kernel_text(replace(k.kernel, name="")) for k in plan.kernels)
            if text not in tried:
                tried.add(text)
                plans.append((schedule, plan))
        return self._executables(plans)

    def _executables(self, plans: Sequence[tuple[Schedule, ModulePlan]]) -> list[_Candidate]:
        kernels = [k.kernel for _, plan in plans for k in plan.kernels]
        objects = build(kernels, self._target, cache=self._cache or False, workers=self._workers)
        out: list[_Candidate] = []
        for schedule, plan in plans:
            own, objects = objects[: len(plan.kernels)], objects[len(plan.kernels) :]
            image = lower(plan, {"main": plan.module.function("main")}, own, self._target)
            out.append(_Candidate(schedule, Executable.from_bytes(image.to_bytes(), self._threads)))
        return out

    # -- measuring

    def _ordered(self, candidates: Sequence[_Candidate], arguments: Sequence[Array]) -> list[_Candidate]:
        """The candidates, the fastest first."""
        times = _times(candidates, arguments)
        return [candidates[n] for n in sorted(range(len(candidates)), key=times.__getitem__)]

    # -- what is remembered

    def _once(self, key: object, find: Callable[[], T], read: Callable[[Any], T], kept: Callable[[T], object]) -> T:
        """What is found for a key, once for all programs: ``kept`` is what a file has of it, ``read`` makes it of that."""
        mark = hashlib.sha256(repr((compiler_digest(), key, self._threads)).encode()).hexdigest()
        if mark not in self._found:
            found = self._read(mark, read)
            if found is None:
                found = find()
                self._write(mark, kept(found))
            self._found[mark] = found
        made: T = self._found[mark]
        return made

    def _read(self, mark: str, made: Callable[[Any], T]) -> T | None:
        """What was found before, ``made`` of what the file says."""
        if self._directory is None:
            return None
        try:
            return made(json.loads((self._directory / f"{mark}.json").read_text()))
        except (OSError, ValueError, TypeError, LookupError, AssertionError):
            return None  # a file that says nothing is measured again

    def _write(self, mark: str, found: object) -> None:
        if self._directory is None:
            return
        text = json.dumps(found)
        with contextlib.suppress(OSError, FileError):  # a cache that cannot be written is no reason to fail
            self._directory.mkdir(parents=True, exist_ok=True)
            write_whole(self._directory / f"{mark}.json", lambda temporary: temporary.write_text(text))


def choose(schedules: Sequence[Schedule], times: Mapping[int, Sequence[float]]) -> Schedule:
    """The schedule that is best on average, with cases for the numbers of rows where another of the same width is clearly better.

    ``times``: for each number of rows, in order, the seconds by each schedule. The first schedule is the model's: what replaces it has to
    be better by more than chance.
    """

    def average(n: int) -> float:
        return _mean([t[n] / t[0] for t in times.values()])

    best = min(range(len(schedules)), key=average)
    if average(best) > _GAIN:
        best = 0
    chosen: list[tuple[int, int]] = []  # rows up to which, and the schedule
    for rows, taken in times.items():
        alike = [n for n, s in enumerate(schedules) if s.vectors == schedules[best].vectors]
        fastest = min(alike, key=taken.__getitem__)
        chosen.append((rows, fastest if taken[fastest] < _GAIN_THERE * taken[best] else best))
    cases: list[Case] = []
    for at, (rows, n) in enumerate(chosen):
        last = at == len(chosen) - 1
        if last or chosen[at + 1][1] != n:
            cases.append(replace(schedules[n].cases[-1], most=None if last else rows))
    return Schedule(schedules[best].vectors, tuple(cases))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _within(plan: KernelPlan, size: int) -> Sizes | None:
    """Every size of a kernel ``size``, as far as its bounds allow; None where that is too much to measure."""
    sizes = _as_far_as_bounds(plan.key.dims, size)
    return sizes if max(dim_evaluate_total(plan.flops, sizes), dim_evaluate_total(plan.bytes, sizes)) <= _MOST else None


def _as_far_as_bounds(dims: Iterable[DimVar], size: int) -> Sizes:
    """Every size ``size``, as far as its bounds allow."""
    return {v: max(v.lo, size if v.hi is None else min(size, v.hi)) for v in dims}


def _times(candidates: Sequence[_Candidate], arguments: Sequence[Array]) -> list[float]:
    """The seconds of a call by each candidate. They take turns, so that what the machine does meanwhile meets all alike."""
    repeats: list[int] = []
    for candidate in candidates:
        candidate.run(*arguments)  # touches its memory and code for the first time
        start = time.perf_counter()
        candidate.run(*arguments)
        repeats.append(max(1, math.ceil(_TURN / max(time.perf_counter() - start, 1e-7))))
    least = [math.inf] * len(candidates)
    for _ in range(_TURNS):
        for n, candidate in enumerate(candidates):
            start = time.perf_counter()
            for _ in range(repeats[n]):
                candidate.run(*arguments)
            least[n] = min(least[n], (time.perf_counter() - start) / repeats[n])
    return least


def _schedules(plan: KernelPlan, target: Target) -> list[Schedule]:
    """The register tiles to try: as many rows as there are registers for, and fewer."""
    widest = 0
    for product in plan.products:
        vectors = _MOST_VECTORS
        if isinstance(product.columns, int):
            vectors = min(vectors, -(-product.columns // target.lanes(dtype_bits(product.dtype))))
        widest = max(widest, vectors)
    out: list[Schedule] = []
    for vectors in range(1, widest + 1):
        most = tile_height(target, vectors)
        heights = dict.fromkeys((most, -(-most * 3 // 4), -(-most // 2)))
        out += [Schedule(vectors, (Case(rows=height),)) for height in heights]
    return out


def _measured(
    primitive: Function, dims: Sequence[DimVar], constants: frozenset[int], random: np.random.Generator
) -> Function:
    """A function that calls a primitive on random constants and its parameters. One parameter more for each size tells it: the
    operands alone may have it in sums and products only."""
    known: dict[int, Constant] = {}
    for n in constants:
        ty = primitive.params[n].ty
        assert isinstance(ty, TensorType)
        array = _random(ty, {}, random)
        known[n] = Constant(array, dtype_name(array.dtype), ty)
    main = calling(primitive, known)
    sizes = tuple(Var(f"size{n}", None, TensorType((as_dim(d),), "bool")) for n, d in enumerate(dims))
    return replace(main, params=(*sizes, *main.params))


def _random(ty: TensorType, sizes: Sizes, random: np.random.Generator) -> Array:
    """An array of a type: normal numbers, or zeros for what may be an index."""
    assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
    shape = tuple(dim_evaluate_total(d, sizes) for d in ty.shape)
    dtype = numpy_dtype(ty.dtype)
    if is_float(ty.dtype):
        return random.standard_normal(shape, dtype=np.float32).astype(dtype)
    return np.zeros(shape, dtype)
