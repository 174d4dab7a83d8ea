"""The whole compilation on one screen (`relay.compile`, on top of it, is in `relay.compiling`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from relay import typing
from relay._runtime import available_threads
from relay.aot.native import with_native_code
from relay.codegen.kernels import Build
from relay.codegen.kernels import build as build_kernels
from relay.codegen.later import build_now, kept
from relay.codegen.target import host_target, parse_target, runs_here
from relay.executable.format import ExecutableImage
from relay.executable.program import Executable
from relay.ir.collection import without_collection
from relay.ir.diagnostics import CompileError
from relay.ir.expr import Block, Function, Var
from relay.ir.module import Module, reachable
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, TensorType
from relay.ir.walk import post_order
from relay.loop.costs import Machine
from relay.loop.target import Target
from relay.lower.footprint import footprint
from relay.lower.module import lower
from relay.lower.planning import ModulePlan, plan_module
from relay.lower.unit import Planned
from relay.op.registry import remembering
from relay.options import Options
from relay.plan.graph import TeGraph, te_graph
from relay.plan.kernel_plan import plan_graph
from relay.plan.key import PlanKey, plan_key
from relay.te.evaluate import evaluate as evaluate_te
from relay.te.exact import is_exact, work
from relay.transform import (
    BatchStructure,
    CommonSubexpressions,
    CompileMatch,
    DeadCode,
    DeadFunctions,
    DeadReferences,
    DistributeLoops,
    DropIdentities,
    DropUnread,
    EarlyFields,
    EtaExpand,
    ExpandCompositions,
    FindSoftmax,
    FixInvariants,
    FoldCases,
    FoldConstants,
    FoldMaps,
    FoldTerms,
    FuseAttention,
    FuseOps,
    GatherLate,
    GatherSums,
    Gradient,
    GrowState,
    HoistOverTime,
    Inline,
    JoinCotangents,
    LambdaLift,
    Layouts,
    MemoryBudgetError,
    MergeDims,
    MultiplyOnce,
    NameDims,
    Observer,
    ParallelFusion,
    PartialEvaluate,
    Pass,
    Pipeline,
    Recompute,
    ReducePrecision,
    Rematerialise,
    RoomForRows,
    RowsInPlace,
    RowViews,
    Simplify,
    Sink,
    SkipEmpty,
    SliceEarly,
    Specialise,
    SplitEinsums,
    StackItems,
    StepReport,
    SumFusion,
    ToBlocks,
)  # fmt: skip
from relay.transform.access import AccessTable
from relay.transform.ad.gradient import has_gradients, has_one_gradient
from relay.transform.build import calling
from relay.tuning import Tuner

Array = npt.NDArray[np.generic]
# In so many steps tensors are allowed less and less, down to nothing, until what they take meets a memory budget.
_BUDGET_STEPS = 8
# Attention of fewer scores is differentiated as it is spelled out: making the scores again on the way back takes longer than keeping them.
_SCORES = 1 << 19
# So many elements NumPy computes in less time than a kernel for them is compiled in: 0.2 milliseconds, mostly, and 6.
_LITTLE_WORK = 1 << 14


@record(slots=True)
class Compilation:
    """What one compilation made, stage by stage, with the seconds that each took."""

    module: Module
    plan: ModulePlan
    image: ExecutableImage
    target: Target
    steps: Sequence[StepReport]
    seconds: Mapping[str, float]


@record(slots=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self.last
        self.last = now


def passes(options: Options, runner: Runner, module: Module, tuner: Tuner | None = None) -> list[Pass]:
    """The passes, in order, from this typed monomorphic module to blocks of primitives; with what ``tuner`` measures."""
    level = options.opt_level
    facts = AccessTable()
    weights = options.machine or Machine.of(runner.target)
    fold: list[Pass] = [FoldConstants(runner.primitive)] if level >= 2 else []
    tidy: list[Pass] = [Simplify(), *fold, CommonSubexpressions(), DeadCode()] if level >= 3 else fold
    # What is demanded of sizes has no checks of its own yet.
    unchecked = DeadCode(checked=False)
    before: list[Pass] = [Simplify(), *fold, CommonSubexpressions(), unchecked] if level >= 3 else fold
    # Higher-order functions meet their arguments: what is lifted is specialised and inlined again.
    inline: list[Pass] = [Inline(entries=options.entries)] if level >= 3 else []
    fuse = FuseOps(table=facts) if level >= 1 else FuseOps(max_size=1, outputs=False)
    measure = None if tuner is None else lambda modules: tuner.seconds([Pipeline([*fold, fuse])(m) for m in modules])
    # What nobody reads has no cotangent to go back. Softmax has a gradient that reads its result alone; of what is spelled out, only what
    # is small or unknown is left for later.
    early: list[Pass] = [SliceEarly(), unchecked, FindSoftmax(), unchecked] if level >= 3 else []
    # What becomes one kernel although fusion by itself would not see it.
    share: list[Pass] = [
        SliceEarly(), DeadCode(), JoinCotangents(), GatherSums(), RowsInPlace(), Sink(), FuseAttention(), DeadCode(), RoomForRows(),
        GrowState(), SumFusion(), CommonSubexpressions(),
        Layouts(mask_registers=runner.target.mask_registers, table=facts, measure=measure), *fold, ParallelFusion(), Simplify(), DeadCode(),
    ]  # fmt: skip
    dead = DeadFunctions(entries=options.entries)
    # What a loop calls is worth having in it, where its weights can be packed and its products hoisted.
    loops: list[Pass] = [
        dead, FixInvariants(), unchecked, dead, Inline(max_bindings=60, entries=options.entries), unchecked,
    ]  # fmt: skip
    specialise: list[Pass] = [*inline, Specialise(), *inline, *loops, *fold] if level >= 3 else []
    merge: list[Pass] = [dead, MergeDims(entries=options.entries)] if level >= 3 else []
    batch: list[Pass] = [
        FoldCases(), FoldTerms(), FoldMaps(), dead, BatchStructure(entries=options.entries), StackItems(), DistributeLoops(), dead,
        HoistOverTime(),
    ]  # fmt: skip
    evaluate: list[Pass] = [PartialEvaluate(strict=False), DeadReferences()] if level >= 3 else []
    # Attention has a gradient that never holds the shares, which the gradients of its parts would keep. Its second derivatives and
    # tangents have no such kernel.
    attend: list[Pass] = [*fold, FuseAttention(_SCORES), unchecked] if level >= 3 and has_one_gradient(module) else []
    softmax: list[Pass] = [FindSoftmax(), DeadCode()] if level >= 3 else []
    # Rows that are read several times: what comes back to them is added up before it is multiplied, too.
    once: list[Pass] = [MultiplyOnce()] if level >= 3 else []
    differentiate: list[Pass] = [*inline, *early, *once, *attend, Gradient(entries=options.entries), dead, *evaluate]
    return [
        ToBlocks(),
        EtaExpand(),
        ExpandCompositions(),
        *([SplitEinsums()] if level >= 3 else []),
        *(differentiate if has_gradients(module) else []),
        *before,
        *inline,
        *before,
        *([] if has_gradients(module) else once),
        CompileMatch(),
        LambdaLift(),
        *merge,
        *specialise,
        dead,
        NameDims(),
        *([DropIdentities(facts)] if level >= 3 else []),
        *tidy,
        *softmax,
        *([*batch, *tidy] if level >= 3 else []),
        *(share if level >= 3 else []),
        *reduced_precision(options),
        *([DropUnread(facts), GatherLate(), DeadCode(), Recompute(machine=weights, table=facts)] if level >= 3 else []),
        *([SkipEmpty()] if level >= 3 else []),
        fuse,
        *([RowViews(), EarlyFields()] if level >= 3 else []),
        dead,
    ]


def reduced_precision(options: Options) -> list[Pass]:
    """The pass that narrows weights, where that was asked for; late, so that products are joined first and nothing folds a
    narrow weight back to a wide one."""
    match options.precision:
        case "bf16":
            return [ReducePrecision("bf16"), CommonSubexpressions(), DeadCode()]
        case "int8-weights":
            return [ReducePrecision("int8-weights"), CommonSubexpressions(), DeadCode()]
        case _:
            return []


def build(
    module: Module, options: Options, observe: Observer | None = None, verify: bool = False, later: bool = False
) -> Compilation:
    """Compile a typed module: passes, plans, kernels, bytecode. With ``later`` kernels that many requests alone need (`requests`) are
    not compiled, but kept in the image. Raises RelayError for what cannot be compiled."""
    with remembering():
        return _build(module, options, observe, verify, later)


def _build(module: Module, options: Options, observe: Observer | None, verify: bool, later: bool) -> Compilation:
    target = parse_target(options.target)
    runner = Runner(target, options)
    clock = _Clock()
    steps: list[StepReport] = []

    def note(step: StepReport) -> None:
        steps.append(step)
        if observe is not None:
            observe(step)

    for entry in options.entries:
        module.function(entry)
    mono = typing.monomorphise(module, options.entries)
    refuse_uncompilable(mono)
    clock.lap("monomorphise")
    tuner = None
    pack = runner.graph if options.opt_level >= 2 else None
    if options.tune:
        tuner = Tuner(target, pack, options.directory, options.worker_count, options.threads)
    run = Pipeline(passes(options, runner, mono, tuner), typing.verify_types if verify else None, observe=note)
    blocks = run(mono)
    clock.lap("passes")
    with Build(target, cache=options.kernel_cache, workers=options.worker_count) as building:
        with without_collection():
            planned = partial(plan_module, target=target, run_graph=pack, schedule_of=tuner, entries=options.entries)
            # Kernels are compiled while others are planned, but where that would disturb what is measured, or plans are tried.
            early = tuner is None and options.memory_budget is None
            plan = planned(blocks, decided=(lambda p: building.add(p.kernel)) if early else None)
            if options.memory_budget is not None:
                blocks, plan = within_budget(blocks, plan, options, target, planned)
        clock.lap("plans")
        loops = [p.kernel for p in plan.kernels]
        if later:
            now = plan.kernels_of(reachable(plan.module.functions, options.entries))
            objects = build_now(loops, now, target, building)
        else:
            objects = building.objects(loops)
    clock.lap("kernels")
    with without_collection():
        image = lower(plan, {name: mono.functions[name] for name in options.entries}, objects, target)
    nests = dict(zip((code.symbol for code in objects), loops, strict=True))
    missing = {k.object: nests[k.symbol] for k in image.kernels if not image.objects[k.object]}
    if missing:
        image = replace(image, later=kept(missing, target))
    clock.lap("bytecode")
    if options.executor == "aot":
        image = with_native_code(image, target)
        clock.lap("native code")
    return Compilation(blocks, plan, image, target, steps, clock.seconds)


def within_budget(
    module: Module, plan: ModulePlan, options: Options, target: Target, planned: Callable[[Module], ModulePlan]
) -> tuple[Module, ModulePlan]:
    """The module and its plan with values made again until every entry keeps to the memory budget.

    The pass counts tensors; what they take depends on how they are laid out, so it is asked for less until that fits too. Raises
    MemoryBudgetError that says how little was enough.
    """
    budget = options.memory_budget
    assert budget is not None
    workers = options.threads or available_threads()
    for entry in options.entries:
        first = least = needed = footprint(plan, entry, workers)
        # Less and less is asked for. Where nothing is enough, less ambitious programs tell how little would be.
        limits = [budget * n // _BUDGET_STEPS for n in range(_BUDGET_STEPS, -1, -1)]
        limits += [first * n // _BUDGET_STEPS for n in range(1, _BUDGET_STEPS) if first * n > budget * _BUDGET_STEPS]
        for asked in limits:
            if needed <= budget:
                break
            after = Rematerialise(asked, entry, strict=False, machine=options.machine or Machine.of(target))(module)
            found = planned(after)
            needed = footprint(found, entry, workers)
            least = min(least, needed)
            if needed <= budget:
                module, plan = after, found
        if needed > budget:
            raise MemoryBudgetError(
                f"@{entry} was found to need {least} bytes where {budget} are allowed "
                f"({first} without computing anything twice)",
                hint=f"give it at least {least} bytes, or smaller arguments",
            )
    return module, plan


def refuse_uncompilable(module: Module) -> None:
    """Raise CompileError for what is typed but has no code: base types that no machine stores (vector lanes)."""
    for fn in module.functions.values():
        for node in post_order(fn):
            dtype = node.ty.dtype if isinstance(node.ty, TensorType) else None
            if isinstance(dtype, str) and dtype not in DTYPE_BITS:
                raise CompileError(f"there is no code for the base type {dtype}", node.span, hint="use scalar elements")
        for param in fn.params:
            dtype = param.ty.dtype if isinstance(param.ty, TensorType) else None
            if isinstance(dtype, str) and dtype not in DTYPE_BITS:
                raise CompileError(
                    f"there is no code for the base type {dtype}", param.span, hint="use scalar elements"
                )


def pass_services() -> dict[str, Any]:
    """What passes made from text need that no text can give: the evaluator of constant folding."""
    options = Options()
    return {"evaluate": Runner(parse_target(options.target), options).primitive}


class Runner:
    """Runs primitives and te graphs on arrays by compiled code, for passes that fold constants and pack them: by code for a target, or
    for this machine where it cannot run that. What is little work, and has the same bits whatever computes it, NumPy does."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self.here = target if runs_here(target) else host_target()
        self.options = options
        self._compiled: dict[str, Executable] = {}

    def primitive(self, primitive: Function, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The results of a primitive function on arrays of its parameters' types."""
        key = plan_key(primitive, self.here, frozenset()).text
        exe = self._compiled.get(key)
        if exe is None:
            graph = te_graph(primitive)
            if not graph.foreign and work(graph.outputs) <= _LITTLE_WORK and is_exact(graph.outputs):
                return tuple(evaluate_te(graph.outputs, dict(zip(graph.inputs, arrays, strict=True))))
            main = calling(primitive)
            exe = self._compiled[key] = self._executable(plan_module(Module({"main": main}), self.here, None), main)
        found = exe(*arrays)
        return tuple(np.asarray(f) for f in found) if isinstance(found, tuple) else (np.asarray(found),)

    def graph(self, graph: TeGraph, key: str, array: Array) -> Array:
        """The one output of a te graph of one input on an array."""
        exe = self._compiled.get(key)
        if exe is None:
            (source,), (result,) = graph.inputs, graph.outputs
            taken, given = TensorType(source.shape, source.dtype), TensorType(result.shape, result.dtype)
            param = Var("x", None, taken)
            primitive = Function((param,), Block((), param, given), given)
            main = calling(primitive)
            plan = plan_graph(graph, self.here, PlanKey(key, ()), name="pack")
            planned = {id(primitive): Planned(plan, (), (taken,), (given,))}
            exe = self._compiled[key] = self._executable(
                ModulePlan(Module({"main": main}), planned, {}, {}, {}, (plan,)), main
            )
        return np.asarray(exe(array))

    def _executable(self, plan: ModulePlan, main: Function) -> Executable:
        kernels = [p.kernel for p in plan.kernels]
        objects = build_kernels(kernels, self.here, cache=self.options.kernel_cache, workers=self.options.worker_count)
        image = lower(plan, {"main": main}, objects, self.here)
        return Executable.from_bytes(image.to_bytes(), None)
