"""The pass that eliminates ``grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import ClassVar

from relay.ir.diagnostics import CompileError
from relay.ir.expr import Binding, Call, Expr, Function, GlobalVar, Grad, Var
from relay.ir.graph import components
from relay.ir.module import Module, reachable
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import run
from relay.ir.types import AdtType, FuncType, RefType, TupleType, Type, TypeArg, TypeDef
from relay.ir.walk import free_vars, post_order
from relay.op.gradient import input_cotangent
from relay.transform.ad.cells import Cells
from relay.transform.ad.chosen import ChooseInside
from relay.transform.ad.conversions import Functions
from relay.transform.ad.duals import COTANGENT, ForwardLifting, ReverseLifting
from relay.transform.ad.entering import all_known, definition, entering, lifts
from relay.transform.ad.forward import Forward
from relay.transform.ad.kept_rows import ROWS
from relay.transform.ad.lifter import Lifter, Rule, fresh_dims
from relay.transform.ad.notes import AS_LOOP, NOTE, noted, recursive
from relay.transform.ad.prepare import forms_by_level, goes_by_level, leads_to_recursion, with_loops
from relay.transform.ad.reverse import Reverse
from relay.transform.base import Pass, after
from relay.transform.blocks import Forward as BlockDriver
from relay.transform.blocks import Scope, all_bindings, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.compositions import ExpandCompositions
from relay.transform.copying import Copier, solve_dims
from relay.transform.dead_code import DeadFunctions
from relay.transform.dead_references import DeadReferences
from relay.transform.defunctionalise import Defunctionalise
from relay.transform.dims import DimUses
from relay.transform.eta import EtaExpand
from relay.transform.function_types import PREFIX
from relay.transform.inline import Inline
from relay.transform.lambda_lift import LambdaLift
from relay.transform.partial_eval import PartialEvaluate
from relay.transform.specialise import Specialise
from relay.transform.to_blocks import to_blocks
from relay.transform.uses import globals_used
from relay.typing.check import consistent
from relay.typing.gradients import derivative_type
from relay.typing.mentions import holds_reference
from relay.typing.text import type_text

# What runs of a program before its derivatives are taken, to know what they are of: a list of a few functions, a few rounds. More than
# that is smaller as data.
_EVALUATION = PartialEvaluate(fuel=4000, depth=200, unroll=4000, strict=False)


@record(frozen=True, slots=True)
class Gradient(Pass):
    """Replace every ``grad(f)`` by the function that computes the value of ``f`` and the cotangents of its arguments.

    Before: typed blocks, monomorphic up to dims, not fused. After: blocks without `Grad`. Inner gradients are taken
    first. A program without calls and control flow has straight-line code as its gradient; others get closures and
    references, which `PartialEvaluate` removes where it can. Where the function under a ``grad`` is a parameter or a
    result, what ``entries`` reach is inlined and specialised until it is known. Raises CompileError, with the place,
    for operators without a derivative, functions that stay unknown, and functions that take their own gradient.
    """

    name: ClassVar[str] = "gradient"
    rule: Callable[..., Expr | None] = input_cotangent
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        if not has_gradients(module):
            return module
        module = ExpandCompositions()(EtaExpand()(module))
        if leads_to_recursion(module):
            failed: CompileError | None = None
            # What is under differentiation may not all be in the rows of a list, or of a level: those of each structure, or node by node.
            for made, stacked in forms_by_level(module, self.entries):
                if not goes_by_level(made):
                    break
                try:
                    return self.eliminated(made)
                except CompileError as reason:
                    failed = None if stacked else reason
            if failed is not None:
                why = failed
                made = self.eliminated(with_loops(module, self.entries, levels=False))
                return made.with_functions({n: _not_by_level(f, why) for n, f in made.functions.items()})
            module = made
        return self.eliminated(module)

    def eliminated(self, module: Module) -> Module:
        """The module without `Grad`, as it stands otherwise."""
        return _Elimination(self.decided(module), self.rule, self.entries).module()

    def decided(self, module: Module) -> Module:
        """The module with known functions under ``grad``: what is known meets what it is given to, then a function that a branch chooses
        chooses, then what is known of the program runs, and if all of this leaves some unknown, functions become data."""
        if _known(module):
            return module
        dead, inline = DeadFunctions(self.entries), Inline(entries=self.entries)
        meeting: tuple[Pass, ...] = (inline, LambdaLift(), Specialise(), inline, dead)
        met = after(module, meeting)
        for ways in ((), (ChooseInside(),), (_EVALUATION, DeadReferences(), *meeting)):
            found = after(met, ways)
            if _known(found):
                return found
        return after(met, (Defunctionalise(self.entries), dead))


def _not_by_level(function: Function, reason: CompileError) -> Function:
    """A function with the reason, where a note says how it is differentiated."""
    note = function.attrs.get(NOTE)
    if not isinstance(note, str) or note == AS_LOOP:
        return function
    text = f"{note}; by level it has no gradient: {reason.message}"
    return replace(function, attrs=MappingProxyType({**function.attrs, NOTE: text}))


def _known(module: Module) -> bool:
    return all(all_known(f, module.types) for f in module.functions.values())


def has_gradients(module: Module) -> bool:
    """Whether ``grad`` stands anywhere in a module (of any form)."""
    return bool(_derivatives(module))


def has_one_gradient(module: Module) -> bool:
    """Whether ``grad`` stands once in a module, and no ``jvp``: so nothing is differentiated twice."""
    return [g.forward for g in _derivatives(module)] == [False]


def _derivatives(module: Module) -> list[Grad]:
    return [node for f in module.functions.values() for node in post_order(f) if isinstance(node, Grad)]


@record(slots=True, eq=False)
class _Elimination:
    source: Module
    rule: Rule
    entries: tuple[str, ...] | str
    functions: Functions = field(init=False)
    once: bool = field(init=False)  # whether nothing is differentiated twice
    reverse: Reverse = field(init=False)
    forward: Forward = field(init=False)
    # The derivatives of global functions by name and mode.
    made: dict[tuple[str, bool], GlobalVar] = field(default_factory=dict)
    reasons: dict[str, tuple[str, str]] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    # In a round in which references enter from outside: the mode whose derivatives are taken, the others wait.
    cells: Cells | None = None
    only: bool | None = None
    before: set[str] = field(default_factory=set)
    sizes: DimUses = field(default_factory=DimUses)

    def __post_init__(self) -> None:
        self.functions = Functions(dict(self.source.functions))
        self.once = has_one_gradient(self.source)
        self.start({**self.source.types, COTANGENT.name: COTANGENT, ROWS.name: ROWS})

    def start(self, definitions: dict[str, TypeDef]) -> None:
        """New transformations, which know nothing of what was made before."""
        functions = {n for n in definitions if n.startswith(PREFIX)}
        lifting = ReverseLifting(definitions, functions=functions)
        self.reverse = Reverse(self.functions, lifting, self.rule, once=self.once)
        self.forward = Forward(self.functions, ForwardLifting(definitions, functions=functions), self.rule)
        self.made.clear()

    def module(self) -> Module:
        """Rounds: each takes the gradients of functions that have none inside."""
        known = self.functions.known
        counts = {n: c for n, f in known.items() if (c := _gradients(f))}
        while counts:
            self.dirty = self.reaching(counts)
            self.open_references(counts)
            for name in counts:
                known[name] = self.eliminate(known[name])
            self.close_references()
            left = {n: c for n in counts if (c := _gradients(known[n]))}
            if left == counts:
                raise CompileError(
                    "a function takes its own gradient, so its gradient would be a program without end",
                    self.leading_back(left),
                    "take the gradient of a function that does not lead back here; where only a run knows which of several functions of"
                    " one type stands under grad, it counts as each of them",
                )
            counts = left
        return self.result()

    def leading_back(self, names: Iterable[str]) -> Span | None:
        """Where one of these functions takes a gradient that leads back to itself; others only wait for that one."""
        used = {n: globals_used(f) for n, f in self.functions.known.items()}
        circles = [set(group) for group in components(used) if len(group) > 1 or group[0] in used[group[0]]]
        inside = [n for n in names if any(n in circle for circle in circles)]
        spans = [e.span for n in (*inside, *names) for e in post_order(self.functions.known[n]) if isinstance(e, Grad)]
        return next((s for s in spans if s is not None), None)

    def reaching(self, names: Iterable[str]) -> set[str]:
        """The functions from which one of these can be reached; they wait for these."""
        callers: dict[str, list[str]] = {}
        for name, function in self.functions.known.items():
            for used in globals_used(function):
                callers.setdefault(used, []).append(name)
        out, todo = set(names), list(names)
        while todo:
            for caller in callers.get(todo.pop(), ()):
                if caller not in out:
                    out.add(caller)
                    todo.append(caller)
        return out

    def eliminate(self, function: Function) -> Function:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Grad):
                return value
            self.reverse.outside = self.forward.outside = driver.definitions
            return self.gradient(value, driver)

        driver = BlockDriver(visit)
        return driver.function(function)

    def gradient(self, e: Grad, driver: BlockDriver) -> Expr:
        """What stands for one ``grad``; itself while what is under it still has gradients inside."""
        target = definition(e.fn, driver.definitions)
        if not lifts(target):
            raise CompileError(
                "the function under grad is not known here",
                e.span,
                "write it here, or call the function that takes it where it can be inlined or specialised",
            )
        if self.only not in (None, e.forward) or not self.ready(target, driver.definitions):
            return e
        ty, taken = type_of(e), type_of(e.fn)
        assert isinstance(ty, FuncType) and isinstance(taken, FuncType)
        if not consistent(derivative_type(taken, e.forward), ty):
            raise CompileError(
                f"the gradient was typed as {type_text(ty)} before it was known what {type_text(taken)} takes",
                e.span,
                "annotate the parameters of the function under grad",
            )
        try:
            match target:
                case GlobalVar():
                    return self.of_global(target, ty, e.forward)
                case Function():
                    return self.of_function(target, ty, e.forward)
                case _:
                    return self.of_function(self.called(target, e.fn.span), ty, e.forward)
        except CompileError as error:
            error.span = error.span or e.span
            raise

    def called(self, closure: Expr, span: Span | None) -> Function:
        """A closure as a function: what it is a closure of, given what it captures."""
        assert isinstance(closure, Call) and isinstance(closure.ty, FuncType)
        target, *captured = closure.args
        params = tuple(Var(f"x{n}", t, t) for n, t in enumerate(closure.ty.params))
        call = Call(target, (*captured, *params), ty=closure.ty.ret, span=span)
        known = self.functions.known.get(target.name) if isinstance(target, GlobalVar) else None
        dims = None if known is None else solve_dims(known, call, [a.ty for a in call.args])
        if known is None or dims is None:
            return to_blocks(Function(params, call, closure.ty.ret, ty=closure.ty, span=span))
        copier = Copier(dims=dict(dims), own_dims=True)
        given: list[Binding] = []
        for param, a in zip(known.params, call.args, strict=True):
            if any(d.gradual for d in self.sizes.of_type(param.ty)):
                given.append(Binding(copier.bind(param), a))  # the body may calculate with sizes that only this names
            else:
                copier.atoms[param] = a
        body = copier.copy(body_of(known))
        body = replace(body, bindings=(*given, *body.bindings))
        return Function(params, body, closure.ty.ret, ty=closure.ty, span=span)

    def open_references(self, names: Iterable[str]) -> None:
        """Make cells of the references that enter functions under differentiation from outside, for one mode."""
        types: list[Type] = []
        definitions = self.reverse.lifting.definitions
        for name in names:
            bindings = list(all_bindings(body_of(self.functions.known[name])))
            values = {b.var: b.value for b in bindings}
            for b in bindings:
                if isinstance(b.value, Grad) and self.only in (None, b.value.forward):
                    found = [t for t in entering(b.value.fn, values) if holds_reference(t, definitions)]
                    if found and self.ready(definition(b.value.fn, values), values):
                        self.only = b.value.forward
                        types += found
        if self.only is None:
            return
        definitions = dict(definitions)
        self.start(dict(definitions))
        lifter: Lifter = self.forward if self.only else self.reverse
        cells = Cells(lifter.lifting, self.functions, types)
        known = self.functions.known
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        if not cells.contents or any(cells.concern(type_of(known[n])) for n in entries if n in known):
            self.only = None
            return
        for name, function in list(known.items()):
            known[name] = cells.opened(function)
        for name, d in definitions.items():
            lifter.lifting.definitions[name] = cells.definition(d)
        cells.close()
        self.cells = cells
        for cell in cells.made.values():
            lifter.accesses.update({cell.plain[what].name: cell.lifted[what] for what in cell.plain})
        self.before = {*known, *lifter.accesses}
        self.forward.settle.cells = cells.by_name()

    def close_references(self) -> None:
        """Write what cells are made, read and written by; from now on they are data like other."""
        if self.cells is None:
            return
        lifter: Lifter = self.forward if self.only else self.reverse
        self.cells.write(lifter.lift, lifter.drop)
        lifter.finish()
        self.start(dict(lifter.lifting.definitions))
        self.cells, self.only = None, None

    def ready(self, target: Expr, definitions: Mapping[Var, Expr]) -> bool:
        seen: set[Expr] = {target}
        todo = [target]
        while todo:
            e = todo.pop()
            if isinstance(e, GlobalVar):
                if self.waits(e):
                    return False
                continue
            for node in post_order(e):
                if isinstance(node, Grad) or (isinstance(node, GlobalVar) and self.waits(node)):
                    return False
            for v in free_vars(e):
                value = definitions.get(v, v)
                if value is not v and isinstance(v.ty, FuncType) and value not in seen:
                    seen.add(value)
                    todo.append(value)
        return True

    def waits(self, g: GlobalVar) -> bool:
        """Whether a function is not to be differentiated in this round: there is a gradient in it, or it is a derivative that uses the
        cells of this round, whose contents are only known afterwards."""
        if g.name in self.dirty:
            return True
        return self.cells is not None and g.name not in self.before

    def of_global(self, g: GlobalVar, ty: FuncType, forward: bool) -> GlobalVar:
        found = self.made.get((g.name, forward))
        if found is None:
            name = self.functions.name(f"{g.name}.{'jvp' if forward else 'grad'}")
            made = fresh_dims(self.of_function(self.functions.known[g.name], ty, forward))
            self.functions.known[name] = made
            found = self.made[g.name, forward] = GlobalVar(name, made.ty)
        return found

    def of_function(self, function: Function, ty: FuncType, forward: bool) -> Function:
        made = run(self.forward.derivative(function, ty) if forward else self.reverse.gradient(function, ty))
        (self.forward if forward else self.reverse).finish()
        if not forward:
            self.reasons.update(self.reverse.reasons())
        return to_blocks(made)

    def result(self) -> Module:
        known = self.functions.known
        if self.reasons:
            turning = recursive(known)
            for name, (of, why) in self.reasons.items():
                known[name] = noted(known[name], why) if of in turning else known[name]
        kept = set(reachable(known, self.source.functions))
        functions = {n: f for n, f in known.items() if n in kept}
        new = [f for n, f in functions.items() if self.source.functions.get(n) is not f]
        types = dict(self.source.types)
        for name in _mentioned(new, self.reverse.lifting.definitions):
            types[name] = self.reverse.lifting.definitions[name]
        return Module(functions, types, self.source.sources)


def _gradients(function: Function) -> int:
    """How often ``grad`` stands in a function."""
    if is_primitive(function):
        return 0
    return sum(isinstance(b.value, Grad) for b in all_bindings(body_of(function)))


def _mentioned(functions: Iterable[Function], definitions: dict[str, TypeDef]) -> list[str]:
    """The algebraic types that functions mention, and those that these are made of."""
    seen: set[int] = set()
    found: dict[str, None] = {}
    todo: list[TypeArg] = []

    def note(ty: Type | None) -> None:
        if ty is not None and id(ty) not in seen:
            seen.add(id(ty))
            todo.append(ty)

    for f in functions:
        note(f.ty)
        for b in all_bindings(body_of(f)):
            note(b.var.ty)
            note(b.value.ty)
    while todo:
        t = todo.pop()
        match t:
            case AdtType():
                if t.name not in found:
                    found[t.name] = None
                    todo.extend(f for c in definitions[t.name].constructors for f in c.fields)
                todo.extend(t.args)
            case TupleType():
                todo.extend(t.fields)
            case FuncType():
                todo.extend((*t.params, t.ret))
            case RefType():
                todo.append(t.value)
            case _:
                pass
    return list(found)
