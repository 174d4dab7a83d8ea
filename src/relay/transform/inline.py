"""Inlining: calls of small functions and of functions used once become their bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.walk import free_vars
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.copying import Copier, solve_dims
from relay.transform.dims import DimUses
from relay.transform.uses import components, globals_used, use_counts


@dataclass(frozen=True, slots=True)
class Inline(Pass):
    """Replace calls of global functions and of local closures by copies of their bodies.

    Before: blocks, monomorphic up to dims. After: blocks; no call is left of a function that is not recursive and
    either has at most ``max_bindings`` bindings, or is used exactly once, or is given constant tensors there
    (weights, which a kernel can only pack where it sees them) and has at most ``max_with_constants``. Recursive
    functions and those with an ``inline=0`` attribute stay calls. The functions themselves stay until dead code is
    removed.
    """

    name: ClassVar[str] = "inline"
    max_bindings: int = 12
    max_with_constants: int = 1000
    max_growth: int = 50_000

    def __call__(self, module: Module) -> Module:
        names = {n: globals_used(f) for n, f in module.functions.items()}
        uses = Counter(name for used in names.values() for name in used)
        done: dict[str, Function] = {}
        ready: dict[str, Function] = {}
        always: set[str] = set()
        grown = 0
        for component in components(names):
            for name in component:
                inliner = _Inliner(self, ready, always, self.max_growth - grown)
                done[name] = inliner.function(module.functions[name])
                grown += inliner.grown
            name = component[0]
            if len(component) == 1 and name not in names[name] and not is_primitive(done[name]):
                function = done[name]
                if function.attrs.get("inline") != 0:
                    ready[name] = function
                    if self.small(function) or uses[name] == 1:
                        always.add(name)
        return module.with_functions({n: done[n] for n in module.functions})

    def small(self, function: Function, limit: int | None = None) -> bool:
        return all(False for _ in islice(all_bindings(body_of(function)), limit or self.max_bindings, None))


def inline_all(module: Module, names: Mapping[str, Sequence[str]], name: str, keep: Collection[str]) -> Function:
    """The function with every call of a function of the module inlined that reaches none of ``keep`` and no recursion. ``names`` has what
    each function of the module mentions (`globals_used`)."""
    wanted: set[str] = set()
    todo = [n for n in names[name] if n not in keep]
    while todo:
        n = todo.pop()
        if n not in wanted:
            wanted.add(n)
            todo += (m for m in names.get(n, ()) if m not in keep)
    ready: dict[str, Function] = {}
    inliner = _Inliner(Inline(), ready, always=wanted, budget=Inline().max_growth)
    if wanted:
        for component in components({n: list(names[n]) for n in wanted if n in names}):
            function = module.functions[component[0]]
            if len(component) == 1 and component[0] not in names[component[0]] and not is_primitive(function):
                ready[component[0]] = inliner.function(function)
    return inliner.function(module.functions[name])


@dataclass(slots=True, eq=False)
class _Inliner:
    options: Inline
    ready: dict[str, Function]
    always: set[str]
    budget: int
    grown: int = 0
    closures: dict[Var, Function] = field(default_factory=dict)
    uses: Counter[Var] = field(default_factory=Counter)

    def function(self, function: Function) -> Function:
        if is_primitive(function):
            return function
        self.uses = use_counts(body_of(function))
        return Forward(self.visit).function(function)

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if isinstance(value, Function):
            if not is_primitive(value) and not _mentions(value, var):
                self.closures[var] = value
            return value
        if not isinstance(value, Call):
            return value
        match value.fn:
            case GlobalVar():
                function = self.ready.get(value.fn.name)
                own_dims = True
                if function is not None and value.fn.name not in self.always:
                    weights = any(isinstance(a, Constant) and a.data.ndim > 0 for a in value.args)
                    if not weights or not self.options.small(function, self.options.max_with_constants):
                        function = None
            case Var():
                function = self.closures.get(value.fn)
                # A closure's other dim variables are its surroundings', so its body is copied only where it has none
                # of its own.
                own_dims = False
                once = self.uses[value.fn] == 1
                if function is not None and not (once or (self.options.small(function) and not _binds_dims(function))):
                    function = None
            case _:
                return value
        if function is None or len(function.params) != len(value.args):
            return value
        dims = solve_dims(function, value, [a.ty for a in value.args])
        if dims is None:
            return value
        body = body_of(function)
        if self.grown + len(body.bindings) > self.budget:
            return value
        self.grown += len(body.bindings)
        copier = Copier(dims=dims, own_dims=own_dims)
        params = [copier.bind(p) for p in function.params]
        copy = copier.copy(body)
        given = tuple(Binding(p, a) for p, a in zip(params, value.args, strict=True))
        return Block((*given, *copy.bindings), copy.result, copy.ty, value.span)


def _mentions(function: Function, var: Var) -> bool:
    return use_counts(body_of(function))[var] > 0


def _binds_dims(function: Function) -> bool:
    """Whether the body gives values to dim variables of its own (results of data-dependent operators and the like)."""
    dims = DimUses()
    body = body_of(function)
    known = {d for p in function.params for d in dims.of_type(p.ty)}
    for v in free_vars(body):
        known.update(dims.of_type(v.ty))
    return any(d not in known for b in all_bindings(body) for d in dims.of_type(b.var.ty))
