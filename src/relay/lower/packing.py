"""Run-time operands in the layout that several kernels want: packed once, by a kernel of its own, and read by all of them.

A product packs an operand that is not a constant for itself, panel by panel (`relay.plan.matrix`). Where one block multiplies by
the same tensor several times (the steps of an unrolled loop, the weights of a model that is being trained), that work is the same
each time, and is done before the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from relay.ir.dim import shape_size
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, Var
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.loop.target import Target
from relay.lower.unit import Planned
from relay.plan.graph import TeGraph
from relay.plan.kernel_plan import KernelPlan, Pack, plan_graph
from relay.plan.key import PlanKey
from relay.transform.blocks import (
    all_blocks,
    body_of,
    is_primitive,
    nested_blocks,
    with_nested_blocks,
)

# From so many products on, packing an operand ahead is repaid.
_LEAST_USES = 3
# Smaller operands stay in the first-level cache, where their layout matters little.
_LEAST_ELEMENTS = 8192

# The plan of a primitive call when these of its operands are packed ahead.
PlanOf = Callable[[Call, frozenset[int]], KernelPlan]


def shared_operands(module: Module, multiplies: Callable[[Call], bool], plan_of: PlanOf) -> dict[int, frozenset[int]]:
    """The operands of primitive calls that are better packed once for several calls, by the id of the call. Only calls that
    ``multiplies`` holds for are planned for that."""
    out: dict[int, frozenset[int]] = {}
    for function in module.functions.values():
        for block in all_blocks(body_of(function)):
            calls = [b.value for b in block.bindings if isinstance(b.value, Call) and is_primitive(b.value.fn)]
            for call, numbers in _shared_in(calls, multiplies, plan_of).items():
                out[call] = numbers
    return out


def _shared_in(calls: list[Call], multiplies: Callable[[Call], bool], plan_of: PlanOf) -> dict[int, frozenset[int]]:
    uses: dict[Var, int] = {}
    for call in calls:
        for arg in set(call.args):
            if isinstance(arg, Var) and _elements(arg) >= _LEAST_ELEMENTS:
                uses[arg] = uses.get(arg, 0) + 1
    wanted: dict[tuple[Var, str], list[tuple[int, int]]] = {}
    for call in calls:
        numbers = [n for n, a in enumerate(call.args) if isinstance(a, Var) and uses.get(a, 0) >= _LEAST_USES]
        if not numbers or not multiplies(call):
            continue
        constants = frozenset(n for n, a in enumerate(call.args) if isinstance(a, Constant))
        plan = plan_of(call, constants | frozenset(numbers))
        for pack in plan.packs:
            operand = call.args[pack.input_index]
            if isinstance(operand, Var) and _is_reused(plan, operand):
                wanted.setdefault((operand, pack.key), []).append((id(call), pack.input_index))
    out: dict[int, frozenset[int]] = {}
    for users in wanted.values():
        if len(users) >= _LEAST_USES:
            for call_id, number in users:
                out[call_id] = out.get(call_id, frozenset()) | {number}
    return out


def _elements(var: Var) -> int:
    """The elements of a tensor of known sizes; 0 for any other variable."""
    if not isinstance(var.ty, TensorType) or not isinstance(var.ty.shape, tuple):
        return 0
    total = shape_size(var.ty.shape)
    return total if isinstance(total, int) else 0


def _is_reused(plan: KernelPlan, operand: Var) -> bool:
    """Whether a product multiplies every element of the operand more than once. The layout matters little to one that does
    not: it reads the operand as fast as memory gives it."""
    return not isinstance(plan.flops, int) or plan.flops >= 4 * _elements(operand)


@dataclass(slots=True, eq=False)
class Packer:
    """Makes the bindings that pack operands, one for each operand, layout and block."""

    target: Target
    planned: dict[int, Planned]
    kernels: dict[str, KernelPlan]
    # By the id of the block: what to bind after which variable (those from outside: at the start).
    inserted: dict[int, list[tuple[Var, Binding]]] = field(default_factory=dict)
    _made: dict[tuple[int, Var, str], Var] = field(default_factory=dict)

    def packed(self, block: Block, operand: Var, pack: Pack) -> Var:
        """The variable that holds the operand in the layout of ``pack`` in a block."""
        mark = (id(block), operand, pack.key)
        var = self._made.get(mark)
        if var is None:
            ty = TensorType(pack.packed.shape, pack.packed.dtype)
            param = Var("raw", None, operand.ty)
            primitive = Function((param,), Block((), param, ty), ty, attrs=MappingProxyType({"Primitive": 1}))
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
            call = Call(primitive, (operand,), ty=ty)
            self.inserted.setdefault(id(block), []).append((operand, Binding(var, call)))
        return var


def rebuild(function: Function, replaced: Mapping[int, Expr], packer: Packer) -> Function:
    """The function with calls replaced (by the ids of the old ones) and the packing bindings in their places.

    Primitives themselves are kept as they are, so that their ids go on naming their plans.
    """

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
            out.append(binding if value is binding.value else Binding(binding.var, value))
            out += after.get(binding.var, ())
        same = len(out) == len(block.bindings) and all(a is b for a, b in zip(out, block.bindings, strict=True))
        return block if same else Block(tuple(out), block.result, block.ty, block.span)

    body = run(visit(body_of(function)))
    if body is function.body:
        return function
    return replace(function, body=body)
