"""Plans for the primitives of a module: one per structure, packed constants in place of raw ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from relay import te
from relay.ir.dim import Dim, DimVar, as_dim, dim_substitute, dim_vars, known_equal
from relay.ir.dtypes import dtype_name
from relay.ir.expr import Block, Call, Constant, Expr, Function, OpRef, Tuple, Var
from relay.ir.mapped import release
from relay.ir.module import Module, reachable
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType, Type
from relay.loop.target import Target
from relay.lower.beginnings import shared_beginnings
from relay.lower.equal_sizes import shared_sizes
from relay.lower.packing import Packer, carried_operands, rebuild, shared_operands
from relay.lower.recurrence import Recurrence, recurrence
from relay.lower.scalars import ScalarCode, scalar_code
from relay.lower.staying import residences
from relay.lower.unit import Planned
from relay.op import registry
from relay.plan.build import Residence
from relay.plan.graph import TeGraph, te_graph
from relay.plan.kernel_plan import KernelPlan, plan_graph
from relay.plan.key import PlanKey, plan_key
from relay.plan.schedule import MODEL, Schedule
from relay.plan.steps import plan_steps
from relay.te.text import definition_text
from relay.transform.access import access_of
from relay.transform.blocks import all_blocks, body_of, is_primitive, on_several_devices
from relay.typing.relations import solved_signature

Array = npt.NDArray[np.generic]
# Runs a te graph of one input and one output on an array, by compiled code; equal keys mean equal graphs.
RunGraph = Callable[[TeGraph, str, Array], Array]
# The schedule of a primitive's matrix products, when the operands of these numbers are packed ahead.
ScheduleOf = Callable[[Function, PlanKey, frozenset[int]], Schedule]


@record(frozen=True, slots=True, eq=False)
class ModulePlan:
    """The module with packed constants, and the plan of every primitive in it by the id of its function node.

    ``shapes`` has the shape functions of data-dependent operators by the same ids, ``scalars`` what needs no plan: primitives on
    single elements. ``recurrences`` are the loops that are one kernel each, by the names of their functions.
    """

    module: Module
    planned: Mapping[int, Planned]
    shapes: Mapping[int, Planned]
    scalars: Mapping[int, ScalarCode]
    recurrences: Mapping[str, tuple[Recurrence, Planned]]
    kernels: tuple[KernelPlan, ...]

    def kernels_of(self, functions: Iterable[str]) -> set[int]:
        """The numbers of the kernels that these functions call."""
        names = list(functions)
        called = [id(fn) for _, _, fn in primitives(Module({n: self.module.functions[n] for n in names}))]
        found = [of[n] for of in (self.planned, self.shapes) for n in called if n in of]
        found += [self.recurrences[n][1] for n in names if n in self.recurrences]
        number = {id(plan): n for n, plan in enumerate(self.kernels)}
        return {number[id(p.plan)] for p in found}


def primitives(module: Module) -> Iterator[tuple[Block, Call, Function]]:
    """Every call of a primitive, with the block it stands in and the primitive."""
    for fn in module.functions.values():
        for block in all_blocks(body_of(fn)):
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, Call) and is_primitive(value.fn):
                    yield block, value, value.fn


def plan_module(
    module: Module,
    target: Target,
    run_graph: RunGraph | None,
    schedule_of: ScheduleOf | None = None,
    entries: Collection[str] = (),
    decided: Callable[[KernelPlan], object] | None = None,
) -> ModulePlan:
    """Plan every primitive, by the model's schedules where ``schedule_of`` does not say. Without ``run_graph`` no operand is packed (plans
    then treat constants as run-time operands). ``entries``: the functions that are called from outside. ``decided`` is given plans of
    primitives that these reach, once or more often, as soon as they stand."""
    by_key: dict[str, KernelPlan] = {}
    tried: dict[str, KernelPlan] = {}
    products: dict[str, bool] = {}
    planned: dict[int, Planned] = {}
    shapes: dict[int, Planned] = {}
    scalars: dict[int, ScalarCode] = {}
    packed: dict[tuple[int, str], Constant] = {}
    replaced: dict[int, Expr] = {}
    carried = carried_operands(module, entries) if run_graph else {}
    packer = Packer(target, planned, by_key, carried)

    general = shared_beginnings((fn for _, _, fn in primitives(module)), target)
    general |= shared_sizes((fn for _, _, fn in primitives(module) if id(fn) not in general), target)

    def general_of(call: Call) -> Function:
        assert isinstance(call.fn, Function)
        return general[id(call.fn)].fn if id(call.fn) in general else call.fn

    def multiplies(call: Call) -> bool:
        fn = general_of(call)
        key = _key(fn, target, frozenset()).text
        if key not in products:
            products[key] = access_of(te_graph(fn).outputs).kind in ("contraction", "opaque")
        return products[key]

    def try_plan(call: Call, ahead: frozenset[int], weights: Residence = Residence.PART) -> KernelPlan:
        fn = general_of(call)
        key = _key(fn, target, ahead, weights)
        if key.text not in tried:
            # Where weights are changes what is asked for ahead and no schedule: it is found once for all.
            schedule = MODEL if schedule_of is None else schedule_of(fn, _key(fn, target, ahead), ahead)
            tried[key.text] = plan_graph(te_graph(fn), target, key, ahead, schedule=schedule, weights=weights)
        return tried[key.text]

    shared = shared_operands(module, carried, multiplies, try_plan, target) if run_graph else {}
    weights: Mapping[int, Residence] = {}
    if run_graph:
        weights = residences(module, multiplies, lambda call: try_plan(call, _constants_of(call)), target)
    recurrences = _recurrences(module, target, by_key)
    kernels = {name: loop for name, (loop, _) in recurrences.items() if not loop.some}  # no step is ever made by itself
    inside = {id(fn) for name, loop in kernels.items() for fn in _steps_of(module.functions[name], loop)}
    reached = reachable(module.functions, entries) if decided else ()
    soon = {id(fn) for _, _, fn in primitives(Module({n: module.functions[n] for n in reached}))}
    for block, call, fn in primitives(module):
        if id(fn) in inside:
            continue
        if (code := scalar_code(fn)) is not None:
            scalars[id(fn)] = code
            continue
        ahead = shared.get(id(call), frozenset())
        if run_graph:
            ahead |= _constants_of(call)
        shared_by = general.get(id(fn))
        there = weights.get(id(call), Residence.PART)
        key = _key(fn if shared_by is None else shared_by.fn, target, ahead, there)
        plan = by_key.get(key.text)
        if plan is None:
            plan = try_plan(call, ahead, there)
            plan = replace(plan, kernel=replace(plan.kernel, name=kernel_name(fn, len(by_key))))
            by_key[key.text] = plan
        if decided is not None and id(fn) in soon:
            decided(plan)
        planned[id(fn)] = _planned(fn, plan, key, {} if shared_by is None else shared_by.values)
        shape = _shape_function(fn, target, by_key)
        if shape is not None:
            shapes[id(fn)] = shape
        if plan.packs and run_graph is not None:
            args = [*call.args, *(call.args[p.operand] for p in plan.packs if p.input_index >= len(call.args))]
            for pack in plan.packs:
                raw = call.args[pack.operand]
                if isinstance(raw, Var):
                    args[pack.input_index] = packer.packed(block, raw, pack)
                    continue
                assert isinstance(raw, Constant)
                mark = (id(raw.data), pack.key)
                if mark not in packed:
                    data = run_graph(TeGraph((pack.source,), (pack.packed,)), pack.key, raw.data)
                    dtype = dtype_name(
                        data.dtype
                    )  # a pack may widen: products of half precision are accumulated in single
                    packed[mark] = Constant(data, dtype, TensorType(tuple(data.shape), dtype), raw.span)
                    release(raw.data)
                args[pack.input_index] = packed[mark]
            replaced[id(call)] = Call(fn, tuple(args), call.attrs, call.type_args, call.ty, call.span)
    if replaced:
        module = module.with_functions((n, rebuild(n, module, replaced, packer)) for n in module.functions)
    return ModulePlan(module, planned, shapes, scalars, recurrences, tuple(by_key.values()))


def _recurrences(
    module: Module, target: Target, by_key: dict[str, KernelPlan]
) -> dict[str, tuple[Recurrence, Planned]]:
    """The loops that are one kernel each, with the plans of these. (Programs on several devices have none: vectors grow on the host.)"""
    functions = {name: f for name, f in module.functions.items() if not is_primitive(f)}
    out: dict[str, tuple[Recurrence, Planned]] = {}
    if any(map(on_several_devices, functions.values())):
        return out
    for name, fn in functions.items():
        loop = recurrence(name, fn)
        if loop is None:
            continue
        graph, dims = loop.graph, loop.dims
        key = PlanKey(
            f"recurrence {len(loop.rows)} {len(loop.last)} {definition_text(graph.inputs, graph.outputs)}\n{target!r}",
            dims,
        )
        called = f"k{len(by_key)}_recurrence"
        if key.text not in by_key and loop.handed is not None:
            by_key[key.text] = plan_steps(loop.handed, target, key, called)
        elif key.text not in by_key:
            by_key[key.text] = plan_graph(graph, target, key, name=called)
        results = graph.outputs[: len(loop.rows) + len(loop.last)]
        types = [[TensorType(t.shape, t.dtype) for t in tensors] for tensors in (graph.inputs, results)]
        out[name] = loop, Planned(by_key[key.text], tuple(map(as_dim, dims)), tuple(types[0]), tuple(types[1]))
    return out


def _steps_of(function: Function, loop: Recurrence) -> Iterator[Function]:
    """The primitives of a loop's steps."""
    after = {id(b) for b in all_blocks(loop.leave(function))}
    for block in all_blocks(body_of(function)):
        if id(block) not in after:
            values = (binding.value for binding in block.bindings)
            yield from (v.fn for v in values if isinstance(v, Call) and is_primitive(v.fn))


def _constants_of(call: Call) -> frozenset[int]:
    """The numbers of the arguments that are constants."""
    return frozenset(n for n, a in enumerate(call.args) if isinstance(a, Constant))


def kernel_name(fn: Function, number: int) -> str:
    """A name that tells what a kernel does: its operators in order, shortened, and a number."""
    names: list[str] = []
    if isinstance(fn.body, Block):
        for binding in fn.body.bindings:
            value = binding.value
            # What is made from nothing says little, and is often there for its sizes alone.
            if isinstance(value, Call) and isinstance(value.fn, OpRef) and (value.args or len(fn.body.bindings) == 1):
                names.append(value.fn.name.replace(".", "_"))
    text = "_".join(names) or "copy"
    return f"k{number}_{text[:80]}"


def _shape_function(fn: Function, target: Target, by_key: dict[str, KernelPlan]) -> Planned | None:
    """The kernel that computes the result's shape, where that depends on values of the operands."""
    call = _only_call(fn)
    if call is None or not isinstance(call.fn, OpRef):
        return None
    op = registry.get(call.fn.name)
    if op.kind != "expression" or op.shape_mode != "data" or op.result_shape is None:
        return None
    inputs = []
    for n, param in enumerate(fn.params):
        assert (
            isinstance(param.ty, TensorType) and isinstance(param.ty.shape, tuple) and isinstance(param.ty.dtype, str)
        )
        inputs.append(te.placeholder(f"p{n}", param.ty.shape, param.ty.dtype))
    place = {p: inputs[n] for n, p in enumerate(fn.params)}
    args: list[object] = []
    for arg in call.args:
        if isinstance(arg, Tuple):
            args.append(tuple(place[f] if f in place else _literal(f) for f in arg.fields))
        else:
            args.append(place[arg] if arg in place else _literal(arg))
    result = op.result_shape(*args, **op.complete_attrs(call.attrs))
    key = PlanKey(f"shape of {plan_key(fn, target, frozenset()).text}", _dims_of(inputs))
    plan = by_key.get(key.text)
    if plan is None:
        plan = plan_graph(
            TeGraph(tuple(inputs), (result,)), target, key, name=f"shape_of_{kernel_name(fn, len(by_key))}"
        )
        by_key[key.text] = plan
    types = tuple(TensorType(t.shape, t.dtype) for t in inputs)
    return Planned(plan, tuple(map(as_dim, key.dims)), types, (TensorType(result.shape, result.dtype),))


def result_demands(fn: Function) -> Iterator[tuple[te.Demand, Span | None]]:
    """What an operator whose result's sizes are values demands of these, with its place."""
    call = _only_call(fn)
    assert call is not None and isinstance(call.fn, OpRef) and isinstance(call.ty, TensorType)
    shape = call.ty.shape
    assert isinstance(shape, tuple)
    types = tuple(cast(Type, a.ty) for a in call.args)
    signature = solved_signature(registry.get(call.fn.name), types, call.attrs)
    own = {variable: shape[axis] for variable, (number, axis) in signature.gradual.items() if number < 0}

    def meant(dim: Dim) -> Dim:
        return dim_substitute(dim, own.get)

    for d in signature.demands:
        left, right = meant(d.left), meant(d.right)
        if not known_equal(left, right):
            sizes = None if d.sizes is None else (meant(d.sizes[0]), meant(d.sizes[1]))
            yield replace(d, left=left, right=right, sizes=sizes), call.span


def _key(fn: Function, target: Target, constants: frozenset[int], weights: Residence = Residence.PART) -> PlanKey:
    """The key of a primitive. The sizes that an upper-bound operator's result really has are none of the kernel's."""
    key = plan_key(fn, target, constants)
    if weights is not Residence.PART:
        key = PlanKey(f"{key.text}\nweights stay {weights.value}", key.dims)
    if not _is_upper_bound(fn):
        return key
    given = {v for p in fn.params if isinstance(p.ty, TensorType) for v in type_dims(p.ty)}
    return PlanKey(key.text, tuple(d for d in key.dims if d in given))


def _planned(fn: Function, plan: KernelPlan, key: PlanKey, values: Mapping[DimVar, Dim]) -> Planned:
    """A plan where it is used, with the values of variables that it has only for this. The outputs of an upper-bound operator are
    allocated at their bounds, which the expression has."""
    inputs = tuple(p.ty for p in fn.params if isinstance(p.ty, TensorType))
    more = (pack.packed for pack in plan.packs if pack.input_index >= len(inputs))
    inputs += tuple(TensorType(t.shape, t.dtype) for t in more)
    bounded = _is_upper_bound(fn)
    outputs: tuple[TensorType, ...]
    if bounded:
        outputs = tuple(TensorType(t.shape, t.dtype) for t in te_graph(fn).outputs)
    else:
        result = fn.ret_type.fields if isinstance(fn.ret_type, TupleType) else (fn.ret_type,)
        outputs = tuple(t for t in result if isinstance(t, TensorType))
    return Planned(plan, tuple(values.get(d, as_dim(d)) for d in key.dims), inputs, outputs, bounded)


def _is_upper_bound(fn: Function) -> bool:
    call = _only_call(fn)
    return call is not None and isinstance(call.fn, OpRef) and registry.get(call.fn.name).shape_mode == "upper_bound"


def _only_call(fn: Function) -> Call | None:
    if isinstance(fn.body, Block) and len(fn.body.bindings) == 1:
        value = fn.body.bindings[0].value
        return value if isinstance(value, Call) else None
    return None


def _literal(e: Expr) -> te.Tensor:
    """A constant inside a primitive as a tensor expression."""
    assert isinstance(e, Constant)
    item = e.data.reshape(()).item()
    shape = e.data.shape
    return te.compute(shape, lambda *_: te.const(item, e.dtype), "literal")


def _dims_of(inputs: list[te.Tensor]) -> tuple[DimVar, ...]:
    return tuple(dict.fromkeys(v for t in inputs for d in t.shape for v in dim_vars(d)))


def type_dims(ty: TensorType) -> list[DimVar]:
    """The dim variables of a tensor type."""
    return [v for d in ty.shape for v in dim_vars(d)] if isinstance(ty.shape, tuple) else []
