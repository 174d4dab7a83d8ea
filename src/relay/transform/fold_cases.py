"""Folds over lists whose step looks at what an item is, as folds that call a function of the item.

    foldl(fn (%a, %e) { %a + match (%e.0) { Sub => f(%e.1, ..), Obj(%s) => .. } }, ..)        before
    foldl(fn (%a, %e) { %a + @case(%e, ..) }, ..)                                            after

A function that takes an item apart is recursion like any other (`batching.clauses`), and the fold then does the same to every item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from relay.ir.dim import DimVar, as_dim, as_var
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, Match, PConstructor, Proj, PVar, Var
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType
from relay.ir.walk import free_vars
from relay.transform.base import Pass
from relay.transform.batching.clauses import made_of_tensors
from relay.transform.batching.lists import layout_of
from relay.transform.blocks import all_bindings, as_block, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.function_types import unused
from relay.transform.inline import inlined
from relay.transform.uses import globals_used
from relay.typing.effects import Effects

# What a step does that must stay in its place.
_ORDERED = Effect.READS | Effect.WRITES | Effect.HOST | Effect.ALLOCATES


@record(frozen=True, slots=True)
class FoldCases(Pass):
    """Make functions of what the steps of recursion over lists do with an item by its constructor.

    Before: blocks with named sizes, matches compiled, functions lifted. After: where the step of a recursion over a list takes its item
    apart, and calls what the list is part of the recursion of, a function of the item does so; a step that is a function of its own and is
    called there alone stands in the recursion. Steps whose matches depend on what they accumulate stay as they were.
    """

    name: ClassVar[str] = "fold_cases"

    def __call__(self, module: Module) -> Module:
        names = {n: globals_used(f) for n, f in module.functions.items()}
        used = Counter(called for mentioned in names.values() for called in mentioned)
        made = dict(module.functions)
        effects = Effects(module)
        for circle in components(names):
            if len(circle) > 1:
                for name in circle:
                    _Steps(module, made, effects, name, frozenset(circle), used).run()
        same = len(made) == len(module.functions) and all(made[n] is f for n, f in module.functions.items())
        return module if same else module.with_functions(made)


@record(frozen=True, slots=True, eq=False)
class _Steps:
    """The recursion over a list that a function is, among those that call each other (``circle``)."""

    module: Module
    made: dict[str, Function]
    effects: Effects
    name: str
    circle: frozenset[str]
    used: Mapping[str, int]

    def run(self) -> None:
        """Put the function, and those of its cases, among the functions made."""
        function = self.module.functions[self.name]
        if is_primitive(function) or _step(self.module, function) is None:
            return
        function = inlined(function, self._steps(function))
        found = _step(self.module, function)
        assert found is not None
        step, item, tail, match = found
        calls = [b for b in step.bindings if isinstance(b.value, Call) and _called(b.value) == self.name]
        if len(calls) != 1:
            return
        (again,) = calls
        assert isinstance(again.value, Call)
        pairs = zip(function.params, again.value.args, strict=True)
        changing = {p for p, a in pairs if a is not p and p is not match.data}
        new = step
        for binding in step.bindings:
            if isinstance(binding.value, Match) and _of(binding.value.data, step.bindings) is item:
                new = self._outlined(new, binding, {*changing, again.var, tail})
        if new is step:
            return
        clauses = tuple(replace(c, body=new) if as_block(c.body) is step else c for c in match.clauses)
        body = body_of(function)
        whole = replace(body.bindings[-1], value=replace(match, clauses=clauses))
        self.made[self.name] = replace(function, body=replace(body, bindings=(*body.bindings[:-1], whole)))

    def _steps(self, function: Function) -> dict[str, Function]:
        """The functions of an item that are called in the step alone, and take it apart."""
        found = _step(self.module, function)
        assert found is not None
        step, item = found[:2]
        out: dict[str, Function] = {}
        for b in step.bindings:
            name = _called(b.value) if isinstance(b.value, Call) and item in b.value.args else None
            if name in self.circle and name != self.name and name is not None and self.used[name] == 1:
                called = self.module.functions[name]
                if any(isinstance(inner.value, Match) for inner in body_of(called).bindings):
                    out[name] = called
        return out

    def _outlined(self, step: Block, case: Binding, ordered: Collection[Var]) -> Block:
        """The step with a function of what a match on the item gives; as it was where that depends on what the step accumulates, or on
        what stands in its order."""
        end = next(n for n, b in enumerate(step.bindings) if b is case)
        needs = set(free_vars(case.value))
        inside = [case]
        for b in reversed(step.bindings[:end]):
            if b.var in needs:
                inside.append(b)
                needs.update(free_vars(b.value))
        inside.reverse()
        left = [b for b in step.bindings if b not in inside]
        wanted = {v for b in left for v in free_vars(b.value)} | {step.result}
        shared = [b for b in inside if b.var in wanted and b is not case]
        calls = any(_called(b.value) in self.circle for b in all_bindings(Block(tuple(inside), case.var)))
        if not calls or any(v in needs for v in ordered) or not all(isinstance(b.value, Proj) for b in shared):
            return step
        if any(self.effects.of(b.value) & _ORDERED for b in inside) or not made_of_tensors(type_of(case.var)):
            return step
        call = self._function(Block(tuple(inside), case.var, type_of(case.var)))
        if call is None:
            return step
        bindings: list[Binding] = []
        for b in step.bindings:
            if b is case:
                bindings.append(Binding(case.var, call))
            elif b not in inside or b in shared:
                bindings.append(b)
        return Block(tuple(bindings), step.result, step.ty, step.span)

    def _function(self, body: Block) -> Call | None:
        """A call of a new function with this body; None where it mentions sizes that nothing which it is given has."""
        given = free_vars(body)
        uses = DimUses()
        dims = tuple(dict.fromkeys(d for v in given for d in uses.of_type(v.ty)))
        mentioned = {d for b in all_bindings(body) for d in (*uses.of_type(b.var.ty), *uses.of_value(b.value))}
        if not mentioned.issubset(dims):
            return None
        own = {d: as_dim(DimVar(d.name, d.lo, d.hi, gradual=d.gradual)) for d in dims}
        copier = Copier(dims={**own})
        params = tuple(copier.bind(v) for v in given)
        params = tuple(replace(p, annotation=p.ty) for p in params)
        copier.atoms.update(zip(given, params, strict=True))
        result = copier.type(type_of(body.result))
        assert result is not None
        type_params = tuple(v for d in own.values() if (v := as_var(d)) is not None)
        ty = FuncType(tuple(type_of(p) for p in params), result, type_params)
        name = unused(f"{self.name}.case", self.made)
        self.made[name] = Function(params, copier.copy(body), result, type_params, ty=ty)
        sizes = tuple(as_dim(d) for d in dims)
        return Call(GlobalVar(name, ty), tuple(given), type_args=sizes, ty=type_of(body.result))


def _step(module: Module, function: Function) -> tuple[Block, Var, Var, Match] | None:
    """What a recursion over a list does with an item: the block, the item, the rest of the list, and the match."""
    body = body_of(function)
    if (
        not body.bindings
        or not isinstance(match := body.bindings[-1].value, Match)
        or match.data not in function.params
    ):
        return None
    layout = layout_of(module, match.data.ty)
    for clause in match.clauses:
        pattern = clause.pattern
        if layout is not None and isinstance(pattern, PConstructor) and pattern.fields:
            head, tail = pattern.fields[layout.head], pattern.fields[layout.tail]
            if isinstance(head, PVar) and isinstance(tail, PVar):
                return as_block(clause.body), head.var, tail.var, match
    return None


def _called(value: Expr) -> str | None:
    return value.fn.name if isinstance(value, Call) and isinstance(value.fn, GlobalVar) else None


def _of(atom: Expr, bindings: Sequence[Binding]) -> Expr:
    """What an atom is a field of, at last."""
    made = {b.var: b.value for b in bindings}
    while isinstance(atom, Var) and isinstance(value := made.get(atom), Proj):
        atom = value.tuple
    return atom
