"""Functions inside functions become global functions that take what they capture first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import ClassVar

from relay.ir.dim import DimVar, as_dim, as_var
from relay.ir.effects import CLOSURE
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, Match, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import FuncType, TensorType, Type
from relay.ir.walk import bound_vars, free_vars, pattern_vars
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    body_of,
    is_primitive,
    nested_blocks,
    operands,
    with_nested_blocks,
    with_operands,
)
from relay.transform.build import internal_call
from relay.transform.copying import Copier
from relay.transform.dims import DimUses, whole_axes
from relay.transform.function_types import unused
from relay.transform.uses import use_counts


@record(frozen=True, slots=True)
class LambdaLift(Pass):
    """Make every function global; where one is used as a value a closure is made of it and of what it captures.

    Before: typed blocks, monomorphic up to dims. After: no `Function` is a binding's value. A closure is
    ``closure(@f, captured...)``, of the function's type; one without captures (nor dims) is ``@f`` itself. Where a
    lifted function is called in the function that binds it, or calls itself, the call goes to ``@f`` directly. Dims
    that a body needs are captured through a tensor that has them.
    """

    name: ClassVar[str] = "lambda_lift"

    def __call__(self, module: Module) -> Module:
        lifter = _Lifter(dict(module.functions))
        for name, function in module.functions.items():
            lifter.functions[name] = lifter.function(name, function)
        return module.with_functions(lifter.functions)


@record(frozen=True, slots=True, eq=False)
class _Lifted:
    """A lifted function: its name, the variables it captures where it was bound, and the dims that it takes from
    there."""

    target: GlobalVar
    captured: tuple[Var, ...]
    dims: tuple[DimVar, ...]

    @property
    def is_value(self) -> bool:
        """Whether the global function itself is the value: nothing is captured, and its type is no instance."""
        return not self.captured and not self.dims


@record(slots=True, eq=False)
class _Lifter:
    functions: dict[str, Function]
    dims: DimUses = field(default_factory=DimUses)
    # The lifted functions that capture nothing: these are values themselves.
    constant: dict[Var, _Lifted] = field(default_factory=dict)
    name: str = ""
    number: int = 0
    # Of the dims that have a value at this place: a variable whose tensor gives it.
    binders: dict[DimVar, Var] = field(default_factory=dict)

    def function(self, name: str, function: Function) -> Function:
        if is_primitive(function):
            return function
        body = body_of(function)
        self.name, self.number, self.binders = name, 0, {}
        self.enter(function.params)
        new = run(self.block(body, {}))
        return function if new is body else replace(function, body=new)

    def enter(self, brought: Iterable[Var]) -> None:
        """Note the dims that variables give values to from here on."""
        for var in brought:
            for d, _ in whole_axes(var.ty):
                self.binders.setdefault(d, var)

    def block(self, block: Block, lifted: dict[Var, _Lifted], brought: Iterable[Var] = ()) -> Step[Block]:
        """``lifted``: the functions bound so far in the same function. ``brought``: what a pattern or a function brings into it."""
        outside = dict(self.binders)
        self.enter(brought)
        new: Block = yield self.inside(block, lifted)
        self.binders = outside
        return new

    def inside(self, block: Block, lifted: dict[Var, _Lifted]) -> Step[Block]:
        out: list[Binding] = []
        changed = False
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Function) and not is_primitive(value):
                made = yield self.lift(binding.var, value)
                lifted[binding.var] = made
                changed = True
                if not made.is_value:
                    out.append(Binding(binding.var, _closure(made, value.ty)))
                continue
            value = self.direct(value, lifted)
            inner = nested_blocks(value)
            if inner:
                new: list[Block] = []
                for b, brought in zip(inner, _brought(value, len(inner)), strict=True):
                    new.append((yield self.block(b, lifted, brought)))
                value = with_nested_blocks(value, new)
            if value is not binding.value:
                changed = True
                binding = Binding(binding.var, value)
            out.append(binding)
            self.enter((binding.var,))
        result = self.value(block.result)
        if not changed and result is block.result:
            return block
        return Block(tuple(out), result, block.ty, block.span)

    def value(self, e: Expr) -> Expr:
        made = self.constant.get(e) if isinstance(e, Var) else None
        return e if made is None else made.target

    def direct(self, value: Expr, lifted: dict[Var, _Lifted]) -> Expr:
        """Calls of lifted functions made direct, and functions that are values themselves put in their places."""
        if isinstance(value, Call) and isinstance(value.fn, Var):
            made = lifted.get(value.fn) or self.constant.get(value.fn)
            if made is not None:
                args = (*made.captured, *(self.value(a) for a in value.args))
                type_args = (*(as_dim(d) for d in made.dims), *value.type_args)
                return Call(made.target, args, value.attrs, type_args, value.ty, value.span)
        return with_operands(value, [self.value(a) for a in operands(value)])

    def lift(self, var: Var, function: Function) -> Step[_Lifted]:
        self.number += 1
        name = unused(f"{self.name}__{var.name}{self.number}", self.functions)
        self.functions[name] = function  # takes the name; the lifted function replaces it below
        ty = function.ty
        assert isinstance(ty, FuncType), "lambda lifting needs a typed program"
        body = yield self.block(body_of(function), {}, function.params)
        function = replace(function, body=body)
        captured = [v for v in free_vars(function) if v is not var]
        captured += self._dim_sources(function, captured)
        types = [v.ty for v in (*captured, *function.params)]
        mentioned = dict.fromkeys(d for t in types for d in self.dims.of_type(t))
        dims = tuple(d for d in mentioned if d not in function.type_params)
        own = {d: as_dim(DimVar(d.name, d.lo, d.hi, gradual=d.gradual)) for d in dims}
        copier = Copier(dims={**own})
        params = tuple(copier.bind(v) for v in (*captured, *function.params))
        params = tuple(replace(p, annotation=p.ty) for p in params)
        copier.atoms.update(zip((*captured, *function.params), params, strict=True))
        type_params = (*(v for d in own.values() if (v := as_var(d)) is not None), *ty.type_params)
        ret = copier.type(ty.ret)
        assert ret is not None
        whole = FuncType(tuple(p.ty for p in params if p.ty is not None), ret, type_params)
        made = _Lifted(GlobalVar(name, whole), tuple(captured), dims)
        if made.is_value:
            self.constant[var] = made
        # The function's own variable: calls go straight to it, other uses need a closure.
        body = yield self.block(body, {var: made})
        if not made.is_value and use_counts(body)[var]:
            body = replace(body, bindings=(Binding(var, _closure(made, ty)), *body.bindings))
        body = copier.copy(body)
        self.functions[name] = replace(
            function, params=params, body=body, ret_type=ret, type_params=type_params, constraints=(), ty=whole
        )
        return made

    def _dim_sources(self, function: Function, captured: Sequence[Var]) -> list[Var]:
        """Tensors of the surroundings that have the dims which the body, or a tensor that it is given, mentions and which nothing that it
        is given has as a whole axis."""
        given = (*captured, *function.params)
        own = {d for v in given for d, _ in whole_axes(v.ty)}
        needed = dict.fromkeys(d for v in given if isinstance(v.ty, TensorType) for d in self.dims.of_type(v.ty))
        for binding in all_bindings(body_of(function)):
            for v in _bound(binding):
                needed.update(dict.fromkeys(self.dims.of_type(v.ty)))
            needed.update(dict.fromkeys(self.dims.of_value(binding.value)))
        return list(dict.fromkeys(self.binders[d] for d in needed if d not in own and d in self.binders))


def _bound(binding: Binding) -> tuple[Var, ...]:
    """The variables that a binding brings, those of its value's clauses and parameters included (not those of blocks
    inside)."""
    return (binding.var, *(bound_vars(binding.value) if isinstance(binding.value, Function | Match) else ()))


def _brought(value: Expr, count: int) -> list[tuple[Var, ...]]:
    """What each of the blocks in a value finds bound besides what was before it: the variables of its clause's pattern."""
    if isinstance(value, Match):
        return [tuple(pattern_vars(clause.pattern)) for clause in value.clauses]
    return [()] * count


def _closure(made: _Lifted, ty: Type | None) -> Call:
    assert ty is not None, "lambda lifting needs a typed program"
    return internal_call(CLOSURE, (made.target, *made.captured), ty)
