"""Inlining: calls of small functions and of functions used once become their bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import ClassVar

from relay.ir.dim import Dim, DimVar
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, Var
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.walk import free_vars
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.copying import Copier, solve_dims
from relay.transform.dead_code import BESIDE
from relay.transform.dims import DimUses
from relay.transform.uses import ClosureUses, globals_used


@record(frozen=True, slots=True)
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
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        names = {n: globals_used(f) for n, f in module.functions.items()}
        uses = Counter(name for used in names.values() for name in used)
        entries = {self.entries} if isinstance(self.entries, str) else set(self.entries)
        inliner = _Inliner(self)
        done: dict[str, Function] = {}
        waiting: list[str] = []
        for component in components(names):
            name = component[0]
            function = module.functions[name]
            apart = (
                len(component) > 1 or name in names[name] or is_primitive(function) or function.attrs.get("inline") == 0
            )
            if not apart and uses[name] == 1 and name not in entries and BESIDE not in function.attrs:
                # Its one call takes the body as it is written, what that calls with it: so nothing is copied from level to level.
                inliner.ready[name] = function
                inliner.once.add(name)
                waiting.append(name)
                continue
            for n in component:
                done[n] = inliner.function(module.functions[n])
            if not apart:
                inliner.ready[name] = done[name]
                if self.small(done[name]) or uses[name] == 1:
                    inliner.always.add(name)
        for name in reversed(waiting):  # callers first: a call that is left takes what is called there
            done[name] = (
                module.functions[name] if name not in inliner.once else inliner.function(module.functions[name])
            )
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
    inliner = _Inliner(Inline(), always=wanted)
    if wanted:
        for component in components({n: list(names[n]) for n in wanted if n in names}):
            function = module.functions[component[0]]
            if len(component) == 1 and component[0] not in names[component[0]] and not is_primitive(function):
                inliner.ready[component[0]] = inliner.function(function)
    return inliner.function(module.functions[name])


def inlined(function: Function, bodies: Mapping[str, Function]) -> Function:
    """The function with its calls of these functions inlined."""
    return _Inliner(Inline(), dict(bodies), set(bodies)).function(function) if bodies else function


@record(slots=True, eq=False)
class _Inliner:
    """``once`` names the functions whose only call has not been found yet, ``always`` others that are inlined whatever their size."""

    options: Inline
    ready: dict[str, Function] = field(default_factory=dict)
    always: set[str] = field(default_factory=set)
    once: set[str] = field(default_factory=set)
    grown: int = 0
    closures: dict[Var, Function] = field(default_factory=dict)
    known: ClosureUses = field(default_factory=ClosureUses)
    moved: set[Var] = field(default_factory=set)

    def function(self, function: Function) -> Function:
        if is_primitive(function):
            return function
        self.known.add(body_of(function))
        return Forward(self.visit).function(function)

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if isinstance(value, Function):
            if is_primitive(value) or var in self.known.recursive:
                return value
            self.closures[var] = value
            # The body of a closure with one call goes there, and nothing is bound here.
            return var if var in self.known.called_once else value
        if not isinstance(value, Call):
            return value
        match value.fn:
            case GlobalVar(name=name):
                function = self.ready.get(name)
                if function is not None and name not in self.always and name not in self.once:
                    weights = any(isinstance(a, Constant) and a.data.ndim > 0 for a in value.args)
                    if not weights or not self.options.small(function, self.options.max_with_constants):
                        function = None
            case Var():
                function = self.closures.get(value.fn)
                if function is not None and value.fn in self.known.called_once:
                    return self.body(function, value, {}, move=value.fn not in self.moved)
                # A closure's other dim variables are its surroundings', so its body is copied only where it has none
                # of its own.
                once = self.known.counts[value.fn] == 1
                if function is not None and not (once or (self.options.small(function) and not _binds_dims(function))):
                    function = None
            case _:
                return value
        if function is None or len(function.params) != len(value.args):
            return value
        dims = solve_dims(function, value, [a.ty for a in value.args])
        if dims is None or self.grown + len(body_of(function).bindings) > self.options.max_growth:
            return value
        return self.body(function, value, dims)

    def body(self, function: Function, call: Call, dims: dict[DimVar, Dim], move: bool = False) -> Block:
        """What takes the place of a call: the body after its parameters, itself or in a copy."""
        params: Sequence[Var] = function.params
        body = body_of(function)
        if move:
            assert isinstance(call.fn, Var)
            self.moved.add(call.fn)
        else:
            self.grown += len(body.bindings)
            copier = Copier(dims=dims, own_dims=isinstance(call.fn, GlobalVar))
            params = [copier.bind(p) for p in params]
            body = copier.copy(body)
            if isinstance(call.fn, GlobalVar) and call.fn.name in self.once:
                self.once.remove(call.fn.name)
                self.known.add(body)
            else:
                self.known.copied(copier.atoms)
        given = tuple(Binding(p, a) for p, a in zip(params, call.args, strict=True))
        return Block((*given, *body.bindings), body.result, body.ty, call.span)


def _binds_dims(function: Function) -> bool:
    """Whether the body gives values to dim variables of its own (results of data-dependent operators and the like)."""
    dims = DimUses()
    body = body_of(function)
    known = {d for p in function.params for d in dims.of_type(p.ty)}
    for v in free_vars(body):
        known.update(dims.of_type(v.ty))
    return any(d not in known for b in all_bindings(body) for d in dims.of_type(b.var.ty))
