"""Run-time operands in the layout that several kernels want: packed once, by a kernel of its own, and read by all of them.

A product packs an operand that is not a constant for itself, panel by panel (`relay.plan.matrix`). Where one block multiplies by
the same tensor several times (the steps of an unrolled loop, the weights of a model that is being trained), that work is the same
each time, and is done before the first of them. Where a loop does, it is done before the loop, which is given the packed operand as
one parameter more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from relay.ir.dim import shape_size
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, dtype_bits
from relay.loop.target import Target
from relay.lower.tail_loops import tail_loop
from relay.lower.unit import Planned
from relay.plan.graph import TeGraph
from relay.plan.kernel_plan import KernelPlan, plan_graph
from relay.plan.key import PlanKey
from relay.plan.operands import Pack
from relay.transform.blocks import (
    all_blocks,
    body_of,
    is_primitive,
    nested_blocks,
    with_nested_blocks,
)
from relay.transform.dead_code import BESIDE
from relay.transform.primitive import PRIMITIVE
from relay.transform.uses import call_sites

# From so many products on, of so many rows in all, packing an operand ahead is repaid.
_LEAST_USES, _LEAST_ROWS = 3, 72
# Smaller operands stay in the first-level cache, where their layout matters little.
_LEAST_ELEMENTS = 8192
# Fewer rows are not multiplied by packed operands; the second: by those in a second-level cache, where multiply-adds wait for it.
_FEWEST_ROWS, _FEWEST_ROWS_WAITING = 2, 3

# The plan of a primitive call when these of its operands are packed ahead.
PlanOf = Callable[[Call, frozenset[int]], KernelPlan]


def carried_operands(module: Module, entries: Collection[str]) -> dict[Var, str]:
    """The large parameters of loops that every iteration passes on, and whose loop each is; of loops that are begun once in a run, as is
    what is done before one: by entries, or by functions that entries call and that are in no recursion."""
    calls, others = call_sites(module)
    once: dict[str, bool] = {}

    def runs_once(name: str) -> bool:
        """Whether a function is called from straight code only, as often as that says."""
        if name not in once:
            once[name] = False  # what comes back to it is a recursion
            if name in calls:
                once[name] = name not in others and all([runs_once(caller) for caller, _ in calls[name]])
            else:
                once[name] = name in entries
        return once[name]

    out: dict[Var, str] = {}
    for name, function in module.functions.items():
        if name in entries or name in others or BESIDE in function.attrs or tail_loop(name, function) is None:
            continue
        inside = [call for caller, call in calls[name] if caller == name]
        if all(caller == name or runs_once(caller) for caller, _ in calls[name]):
            for n, param in enumerate(function.params):
                if _elements(param) >= _LEAST_ELEMENTS and all(call.args[n] is param for call in inside):
                    out[param] = name
    return out


def shared_operands(
    module: Module, carried: Collection[Var], multiplies: Callable[[Call], bool], plan_of: PlanOf, target: Target
) -> dict[int, frozenset[int]]:
    """The operands of primitive calls that are better packed once for several calls, or, where they are ``carried`` through a loop, for
    all its iterations: by the id of the call. Only calls that ``multiplies`` holds for are planned for that."""
    out: dict[int, frozenset[int]] = {}
    for function in module.functions.values():
        for block in all_blocks(body_of(function)):
            calls = [b.value for b in block.bindings if isinstance(b.value, Call) and is_primitive(b.value.fn)]
            for call, numbers in _shared_in(calls, carried, multiplies, plan_of, target).items():
                out[call] = numbers
    return out


def _shared_in(
    calls: list[Call], carried: Collection[Var], multiplies: Callable[[Call], bool], plan_of: PlanOf, target: Target
) -> dict[int, frozenset[int]]:
    uses: dict[Var, int] = {}
    for call in calls:
        for arg in set(call.args):
            if isinstance(arg, Var) and _elements(arg) >= _LEAST_ELEMENTS:
                uses[arg] = uses.get(arg, 0) + 1
    wanted: dict[tuple[Var, str], list[tuple[int, int]]] = {}
    rows: dict[tuple[Var, str], float] = {}
    for call in calls:
        numbers = [
            n for n, a in enumerate(call.args) if isinstance(a, Var) and (a in carried or uses.get(a, 0) >= _LEAST_USES)
        ]
        if not numbers or not multiplies(call):
            continue
        constants = frozenset(n for n, a in enumerate(call.args) if isinstance(a, Constant))
        plan = plan_of(call, constants | frozenset(numbers))
        for pack in plan.packs:
            operand = call.args[pack.operand]
            if isinstance(operand, Var) and _is_reused(plan, operand, target):
                key = operand, pack.key
                wanted.setdefault(key, []).append((id(call), pack.operand))
                rows[key] = rows.get(key, 0) + _rows(plan, operand)
    out: dict[int, frozenset[int]] = {}
    for key, users in wanted.items():
        if key[0] in carried or (len(users) >= _LEAST_USES and rows[key] >= _LEAST_ROWS):
            for call_id, number in users:
                out[call_id] = out.get(call_id, frozenset()) | {number}
    return out


def _elements(var: Var) -> int:
    """The elements of a tensor of known sizes; 0 for any other variable."""
    if not isinstance(var.ty, TensorType) or not isinstance(var.ty.shape, tuple):
        return 0
    total = shape_size(var.ty.shape)
    return total if isinstance(total, int) else 0


def _is_reused(plan: KernelPlan, operand: Var, target: Target) -> bool:
    """Whether a product multiplies every element of the operand often enough. The layout matters little to one that does not: it reads
    the operand as fast as memory gives it. Where multiply-adds wait for caches, panels of two rows are read slower than that from the
    second-level cache."""
    elements = _elements(operand)
    assert isinstance(operand.ty, TensorType) and isinstance(operand.ty.dtype, str)
    near = elements * dtype_bits(operand.ty.dtype) <= 8 * target.l2_bytes
    fewest = _FEWEST_ROWS_WAITING if near and target.outruns_caches else _FEWEST_ROWS
    return _rows(plan, operand) >= fewest


def _rows(plan: KernelPlan, operand: Var) -> float:
    """How many rows a product multiplies an operand by: what is not known stands for many."""
    return plan.flops / (2 * _elements(operand)) if isinstance(plan.flops, int) else float("inf")


@record(slots=True, eq=False)
class Packer:
    """Makes the bindings that pack operands, one for each operand, layout and block; of operands ``carried`` through a loop, one where
    the loop begins."""

    target: Target
    planned: dict[int, Planned]
    kernels: dict[str, KernelPlan]
    carried: Mapping[Var, str]
    # By the id of the block: what to bind after which variable (those from outside: at the start).
    inserted: dict[int, list[tuple[Var, Binding]]] = field(default_factory=dict)
    # By the loop: its new parameters, what each is packed from, and by what.
    parameters: dict[str, list[tuple[Var, Var, Function]]] = field(default_factory=dict)
    _made: dict[tuple[int | str, Var, str], Var] = field(default_factory=dict)

    def packed(self, block: Block, operand: Var, pack: Pack) -> Var:
        """The variable that holds the operand in the layout of ``pack`` in a block."""
        loop = self.carried.get(operand)
        mark = (id(block) if loop is None else loop, operand, pack.key)
        var = self._made.get(mark)
        if var is None:
            ty = TensorType(pack.packed.shape, pack.packed.dtype)
            param = Var("raw", None, operand.ty)
            primitive = Function((param,), Block((), param, ty), ty, attrs=PRIMITIVE)
            key = f"pack {pack.key}"
            plan = self.kernels.get(key)
            if plan is None:
                graph = TeGraph((pack.source,), (pack.packed,))
                plan = self.kernels[key] = plan_graph(
                    graph, self.target, PlanKey(key, ()), name=f"k{len(self.kernels)}_pack"
                )
            assert isinstance(operand.ty, TensorType)
            self.planned[id(primitive)] = Planned(plan, (), (operand.ty,), (ty,))
            var = self._made[mark] = Var(f"{operand.name}_packed", None, ty)
            if loop is None:
                call = Call(primitive, (operand,), ty=ty)
                self.inserted.setdefault(id(block), []).append((operand, Binding(var, call)))
            else:
                self.parameters.setdefault(loop, []).append((var, operand, primitive))
        return var

    def begun(self, name: str, module: Module, call: Call) -> tuple[list[Binding], Call]:
        """A call of a loop in the function of a name, with the operands that it takes packed, and what packs them."""
        assert isinstance(call.fn, GlobalVar)
        more = self.parameters[call.fn.name]
        before: list[Binding] = []
        args = list(call.args)
        for var, operand, primitive in more:
            if name != call.fn.name:
                raw = call.args[module.functions[call.fn.name].params.index(operand)]
                var = Var(var.name, None, var.ty)
                before.append(Binding(var, Call(primitive, (raw,), ty=var.ty)))
            args.append(var)
        return before, replace(call, args=tuple(args))


def rebuild(name: str, module: Module, replaced: Mapping[int, Expr], packer: Packer) -> Function:
    """The function of a name with calls replaced (by the ids of the old ones), and the packing bindings in their places.

    Primitives themselves are kept as they are, so that their ids go on naming their plans.
    """
    function = module.functions[name]

    def visit(block: Block) -> Step[Block]:
        after: dict[Var, list[Binding]] = {}
        own = {b.var for b in block.bindings}
        out: list[Binding] = []
        for operand, binding in packer.inserted.get(id(block), ()):
            if operand in own:
                after.setdefault(operand, []).append(binding)
            else:
                out.append(binding)
        for binding in block.bindings:
            value = replaced.get(id(binding.value), binding.value)
            inner: list[Block] = []
            for b in nested_blocks(value):
                inner.append((yield visit(b)))
            value = with_nested_blocks(value, inner)
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in packer.parameters:
                before, value = packer.begun(name, module, value)
                out += before
            out.append(binding if value is binding.value else Binding(binding.var, value))
            out += after.get(binding.var, ())
        same = len(out) == len(block.bindings) and all(a is b for a, b in zip(out, block.bindings, strict=True))
        return block if same else Block(tuple(out), block.result, block.ty, block.span)

    body = run(visit(body_of(function)))
    if body is function.body:
        return function
    more = tuple(var for var, _, _ in packer.parameters.get(name, ()))
    return replace(function, body=body, params=(*function.params, *more))
