"""Partial evaluation: running what is known of a program before it runs.

After the papers' evaluator (Roesch et al. 2019, figure 14; Roesch 2020, section 4.0.3; after Thiemann and Dussart 1996): every
variable of the program that is being written may stand for a partially known value (a tuple, closure, constructor, reference
or constant whose parts may be unknown), and a simulated store says what references hold. Code is written in order and
nothing effectful is dropped or repeated; what has become useless is removed by `DeadReferences` afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from relay.interpreter.operators import apply_operator
from relay.ir.diagnostics import CompileError
from relay.ir.dim import DimVar
from relay.ir.effects import Effect
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.retype import substitute_types
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, is_float
from relay.ir.walk import free_vars, substitute
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    as_block,
    body_of,
    is_atom,
    is_closure,
    is_primitive,
    nested_blocks,
    operands,
    says_no_less,
    with_nested_blocks,
    with_operands,
)
from relay.transform.build import constant, type_of
from relay.transform.copying import Copier, solve_dims
from relay.transform.dead_references import needed_functions
from relay.transform.dims import DimUses
from relay.transform.uses import globals_used, use_counts
from relay.typing.effects import Effects

# The attribute of functions that nothing is gained by unfolding: loops whose first step is like all others.
LOOP = "loop"
# The attribute of functions in which a limit was reached: which, and the first call that it left.
STOPPED = "partial_eval"


@record(frozen=True, slots=True)
class PartialEvaluate(Pass):
    """Evaluate what is known: projections, matches, branches, reads of references, calls of known closures, and of
    global functions that are given something known; operators on known scalars of exact types.

    Before: typed blocks. After: typed blocks with the same effects in the same order. A recursive function is unfolded
    only where it is given a known constant or constructor, by itself or in a tuple, and never behind a branch that is
    not decided (a closure that a call makes anew counts as the one that it is a copy of), so that recursion over known
    data is unrolled and other recursion stays. What numbers alone decide, a count of rounds, is unrolled where that takes
    at most ``unroll`` bindings, and stays a loop otherwise: data is as long as the program that has it, a number is not.
    ``fuel`` bounds the bindings that unfolding adds to the module and
    ``depth`` the unfoldings of one function inside each other. Where they are used up, that is a CompileError at the
    call; unless ``strict`` is false, as it is when programs are compiled: then the call stays a call, which is as
    right, and the function says so in its attribute ``partial_eval``.
    """

    name: ClassVar[str] = "partial_eval"
    fuel: int = 200_000
    depth: int = 2000
    unroll: int = 1000
    strict: bool = True

    def __call__(self, module: Module) -> Module:
        evaluator = _Evaluator(self, module)
        return module.with_functions({n: evaluator.function(n, f) for n, f in module.functions.items()})


@record(frozen=True, slots=True, eq=False)
class _End:
    """In the list of bindings to come: where an unfolded call ends, and the recursion by numbers that it began, if it did."""

    key: object
    trial: _Trial | None


@record(frozen=True, slots=True, eq=False)
class _Trial:
    """A recursion by numbers that is being unrolled: the call, what is known of its arguments, and where evaluation was then (how many
    bindings were written, how many were to come), to go back there where unrolling takes too much."""

    call: Binding
    given: object
    out: list[Binding]
    written: int
    coming: int
    store: _Store
    spent: int
    stopped: str


class _Decides(IntEnum):
    """How what is known of a value decides branches."""

    NOTHING = 0
    NUMBER = 1
    DATA = 2


# What references hold, where that is known: the atom last written, by the variable of the reference.
_Store = dict[Var, Expr]


@record(slots=True, eq=False)
class _Evaluator:
    options: PartialEvaluate
    module: Module
    effects: Effects = field(init=False)
    recursive: set[str] = field(init=False)
    # What replaced variables stand for, and what the variables of the written program are bound to.
    env: dict[Var, Expr] = field(default_factory=dict)
    known: dict[Var, Expr] = field(default_factory=dict)
    store: _Store = field(default_factory=dict)
    # How many undecided branches are around, and for each function that is being unfolded how many were around it.
    level: int = 0
    active: dict[object, list[int]] = field(default_factory=dict)
    # How many unfoldings are around; closures of the function as it is written whose only use is one call.
    unfolding: int = 0
    called_once: set[Var] = field(default_factory=set)
    # The variables that closures have in the program as it is given, by those of their copies.
    origins: dict[Var, Expr] = field(default_factory=dict)
    spent: int = 0
    stopped: str = ""
    # Recursions by numbers around, the outermost first, and those that took too much.
    trials: list[_Trial] = field(default_factory=list)
    refused: set[object] = field(default_factory=set)
    dims: DimUses = field(default_factory=DimUses)
    _own_dims: dict[Function, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.effects = Effects(self.module)
        names = {n: globals_used(f) for n, f in self.module.functions.items()}
        self.recursive = {
            n for group in components(names) for n in group if len(group) > 1 or n in names[n]
        }  # fmt: skip

    def function(self, name: str, function: Function) -> Function:
        if is_primitive(function):
            return function
        self.env, self.known, self.stopped = {}, {}, ""
        self.called_once = _called_once(body_of(function))
        new = run(self.whole(function, {name: [0]}, 0))
        if self.stopped:
            new = replace(new, attrs=MappingProxyType({**new.attrs, STOPPED: self.stopped}))
        return new

    def stop(self, call: Call, limit: str) -> None:
        """A limit is reached at a call which is worth unfolding: an error, or a note that it stays a call."""
        callee = f"@{call.fn.name}" if isinstance(call.fn, GlobalVar) else "a closure"
        if self.options.strict:
            raise CompileError(
                f"partial evaluation cannot be finished: {limit}, at this call of {callee}",
                call.span,
                "give it more, partial_eval{fuel=N,depth=N}, or let it leave calls where that is used up, "
                "partial_eval{strict=false}",
            )
        where = f" ({call.span})" if call.span else ""
        self.stopped = self.stopped or f"stopped: {limit}; the call of {callee}{where} stays one"

    def whole(self, function: Function, active: dict[object, list[int]], level: int) -> Step[Function]:
        """A function's body by itself, and those of the closures in it that are still needed afterwards.

        (What a call unfolds is a closure as it was written: evaluating it before it is known to stay would be work for
        nothing, again in every copy.)
        """
        self.store, self.active, self.level = {}, active, level
        body = yield self.block(body_of(function))
        new = function if body is function.body else replace(function, body=body)
        closures = needed_functions(new, self.effects)
        if closures:
            body = yield self.closures(body_of(new), closures, active)
            new = new if body is new.body else replace(new, body=body)
        return new

    def closures(self, block: Block, needed: Set[Var], active: dict[object, list[int]]) -> Step[Block]:
        """A block with the needed functions in it evaluated. They run later, when references may hold anything."""
        out: list[Binding] = []
        for b in block.bindings:
            value = b.value
            if isinstance(value, Function):
                origin = self.origin(b.var)
                # One that holds a copy of itself would be evaluated without an end.
                if b.var in needed and origin not in active:
                    value = yield self.whole(value, {**active, origin: [0]}, 1)
            else:
                inner = nested_blocks(value)
                if inner:
                    made: list[Block] = []
                    for i in inner:
                        made.append((yield self.closures(i, needed, active)))
                    value = with_nested_blocks(value, made)
            out.append(b if value is b.value else Binding(b.var, value))
        if all(a is b for a, b in zip(out, block.bindings, strict=True)):
            return block
        return Block(tuple(out), block.result, block.ty, block.span)

    # -- blocks

    def block(self, block: Block) -> Step[Block]:
        out: list[Binding] = []
        todo: list[Binding | _End] = list(reversed(block.bindings))
        changed = False
        while todo:
            if self.is_too_much() and self.trials[0].out is out:
                self.give_up(todo)
            binding = todo.pop()
            if isinstance(binding, _End):
                self.end(binding)
                if binding.trial is not None:
                    self.trials.remove(binding.trial)
                continue
            var = binding.var
            value = with_operands(binding.value, [self.resolved(a) for a in operands(binding.value)])
            value = self.evaluate(var, value, out, todo)
            if isinstance(value, Block):
                changed = True
                todo.append(Binding(var, value.result))
                todo.extend(reversed(value.bindings))
                continue
            if is_atom(value) and says_no_less(value.ty, var.ty):
                changed = True
                self.env[var] = value
                continue
            match value:
                case If():
                    value = yield from self.branches(value, (value.then, value.orelse))
                case Match():
                    value = yield from self.branches(value, [c.body for c in value.clauses])
                case Function() if not is_primitive(value):
                    value = self.scoped(value)
            if value is not binding.value:
                changed = True
                binding = Binding(var, value)
            self.known[var] = value
            out.append(binding)
        result = self.resolved(block.result)
        if not changed and result is block.result:
            return block
        return Block(tuple(out), result, block.ty, block.span)

    def end(self, end: _End) -> None:
        self.active[end.key].pop()
        self.unfolding -= 1

    def is_too_much(self) -> bool:
        """Whether what is being unrolled takes more bindings than it may."""
        return bool(self.trials) and self.spent - self.trials[0].spent > self.options.unroll

    def give_up(self, todo: list[Binding | _End]) -> None:
        """Go back to where the outermost recursion by numbers began; its call stays one. Variables of what is dropped are nowhere else."""
        trial = self.trials[0]
        self.trials.clear()
        for item in todo[trial.coming :]:
            if isinstance(item, _End):
                self.end(item)
        del todo[trial.coming :]
        del trial.out[trial.written :]
        self.store, self.spent, self.stopped = trial.store, trial.spent, trial.stopped
        self.env.pop(trial.call.var, None)
        self.refused.add(trial.given)
        todo.append(trial.call)

    def origin(self, e: Expr) -> Expr:
        """The variable that a closure has in the program as it is given, of which the variable of this one is a copy."""
        return self.origins.get(e, e) if isinstance(e, Var) else e

    def resolved(self, e: Expr) -> Expr:
        while isinstance(e, Var) and e in self.env:
            e = self.env[e]
        return e

    def branches(self, e: If | Match, bodies: Sequence[Expr]) -> Step[Expr]:
        """Branches that are not decided: each begins with the store as it is, and what all leave alone stays known."""
        before, made, stores = self.store, [], []
        self.level += 1
        for body in bodies:
            self.store = dict(before)
            made.append((yield self.block(as_block(body))))
            stores.append(self.store)
        self.level -= 1
        self.store = {r: a for r, a in before.items() if all(s.get(r) is a for s in stores)}
        if all(a is b for a, b in zip(made, bodies, strict=True)):
            return e
        if isinstance(e, If):
            return If(e.cond, made[0], made[1], e.ty, e.span)
        clauses = tuple(Clause(c.pattern, b) for c, b in zip(e.clauses, made, strict=True))
        return Match(e.data, clauses, e.complete, e.ty, e.span)

    def scoped(self, function: Function) -> Function:
        """A function that is not evaluated (yet), over the variables of the program that is being written."""
        new = substitute(function, {v: self.resolved(v) for v in free_vars(function) if v in self.env})
        assert isinstance(new, Function)
        return new

    # -- what is known

    def definition(self, e: Expr) -> Expr:
        return self.known.get(e, e) if isinstance(e, Var) else e

    def evaluate(self, var: Var, e: Expr, out: list[Binding], todo: list[Binding | _End]) -> Expr:
        """What stands for an operation: itself, an atom, or a block that is evaluated in its place. ``out`` is what was written of the
        block around, ``todo`` what comes."""
        match e:
            case Proj():
                held = self.definition(e.tuple)
                return held.fields[e.index] if isinstance(held, Tuple) else e
            case If():
                cond = self.definition(e.cond)
                if isinstance(cond, Constant):
                    return as_block(e.then if cond.data else e.orelse)
                return e
            case Match():
                return self.match(e)
            case RefNew():
                self.store[var] = e.value
                return e
            case RefRead():
                assert not isinstance(e.ref, Constant)
                return self.store.get(e.ref, e) if isinstance(e.ref, Var) else e
            case RefWrite():
                return self.write(e)
            case Call():
                return self.call(var, e, out, todo)
            case _:
                return e

    def write(self, e: RefWrite) -> Expr:
        # Two references made here are different ones; one from elsewhere may be any.
        if not isinstance(self.definition(e.ref), RefNew):
            self.store.clear()
        else:
            self.store = {r: a for r, a in self.store.items() if isinstance(self.definition(r), RefNew)}
        if isinstance(e.ref, Var):
            self.store[e.ref] = e.value
        return e

    def match(self, e: Match) -> Expr:
        for clause in e.clauses:
            bound: list[Binding] = []
            fits = self.fits(clause.pattern, e.data, bound)
            if fits is None:
                return e
            if fits:
                body = as_block(clause.body)
                return Block((*bound, *body.bindings), body.result, body.ty, body.span)
        return e

    def fits(self, pattern: Pattern, data: Expr, bound: list[Binding]) -> bool | None:
        """Whether a value matches a pattern (None: not known), with the bindings of its variables."""
        match pattern:
            case PWild():
                return True
            case PVar():
                bound.append(Binding(pattern.var, data))
                return True
            case PConstructor():
                held = self.definition(data)
                if not (isinstance(held, Call) and isinstance(held.fn, ConstructorRef)):
                    return None
                if held.fn.name != pattern.name:
                    return False
                parts: Sequence[Expr] = held.args
            case PTuple():
                held = self.definition(data)
                if isinstance(held, Tuple):
                    parts = held.fields
                else:
                    ty = type_of(data)
                    assert isinstance(ty, TupleType)
                    parts = [Var("t", None, t) for t in ty.fields]
                    bound += (Binding(v, Proj(data, n, v.ty)) for n, v in enumerate(parts) if isinstance(v, Var))
        found = [self.fits(p, part, bound) for p, part in zip(pattern.fields, parts, strict=True)]
        if False in found:
            return False
        return None if None in found else True

    # -- calls

    def call(self, var: Var, e: Call, out: list[Binding], todo: list[Binding | _End]) -> Expr:
        match e.fn:
            case OpRef():
                return self.operator(e, e.fn.name)
            case ConstructorRef():
                return e
            case GlobalVar(name=name):
                function = self.module.functions.get(name)
                key: object = name
            case _:
                held = self.definition(e.fn)
                captured: tuple[Expr, ...] = ()
                if is_closure(held):
                    captured, held = held.args[1:], held.args[0]
                if isinstance(held, GlobalVar):
                    direct = Call(held, (*captured, *e.args), e.attrs, (), e.ty, e.span)
                    found = self.module.functions.get(held.name)
                    if found is not None and not found.type_params:
                        return self.call(var, direct, out, todo)
                function = held if isinstance(held, Function) else None
                key = self.origin(e.fn)
        unfolds = function is not None and not is_primitive(function) and not function.attrs.get(LOOP)
        if function is not None and unfolds and self.wanted(key, function, e):
            around = self.active.setdefault(key, [])
            counted = not around and self.is_recursive(key, function, e) and self.decided(e) is _Decides.NUMBER
            trial = None
            if counted:
                given = self.given(key, e)
                if given in self.refused:
                    self.forget(e.fn)
                    return e
                trial = _Trial(
                    Binding(var, e), given, out, len(out), len(todo), dict(self.store), self.spent, self.stopped
                )
            block = self.unfolded(function, e, isinstance(key, str))
            if block is not None:
                if trial is not None:
                    self.trials.append(trial)
                around.append(self.level)
                self.unfolding += 1
                todo.append(_End(key, trial))
                return block
        self.forget(e.fn)
        return e

    def forget(self, callee: Expr) -> None:
        """After a call that stays one, references may hold anything, unless the callee is known not to write."""
        known = self.module.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        if known is None or self.effects.latent(known) & Effect.WRITES:
            self.store.clear()

    def wanted(self, key: object, function: Function, e: Call) -> bool:
        """Whether a call is to be unfolded: see `PartialEvaluate`."""
        around = self.active.get(key)
        if self.is_too_much() or (around and around[-1] != self.level):
            return False
        if self.is_recursive(key, function, e):
            wanted = self.decided(e) is not _Decides.NOTHING
        else:
            wanted = not isinstance(key, str) or any(
                _is_structure(d) or self.decides(d) for d in map(self.definition, e.args)
            )
        if wanted and around and len(around) > self.options.depth:
            self.stop(e, f"it is unfolded {self.options.depth} times inside itself")
            return False
        return wanted

    def is_recursive(self, key: object, function: Function, e: Call) -> bool:
        """Whether unfolding a call may meet the same function again."""
        if isinstance(key, str):
            return key in self.recursive
        return bool(self.active.get(key)) or _calls_itself(function, e.fn)

    def decided(self, e: Call) -> _Decides:
        return max((self.decides(self.definition(a)) for a in e.args), default=_Decides.NOTHING)

    def decides(self, e: Expr) -> _Decides:
        """How a definition decides branches: as a constant scalar, as a constructor, or as a tuple that holds one of these."""
        match e:
            case Constant():
                return _Decides.NUMBER if e.data.ndim == 0 and not is_float(e.dtype) else _Decides.NOTHING
            case Tuple():
                return max((self.decides(self.definition(f)) for f in e.fields), default=_Decides.NOTHING)
            case _:
                return _Decides.DATA if isinstance(e, Call) and isinstance(e.fn, ConstructorRef) else _Decides.NOTHING

    def given(self, key: object, e: Call) -> object:
        """A recursion by numbers and its numbers, as a key."""
        todo: list[Expr] = list(e.args)
        numbers: list[object] = []
        while todo:
            held = self.definition(todo.pop())
            if isinstance(held, Tuple):
                todo += held.fields
                numbers.append(len(held.fields))
            elif isinstance(held, Constant) and self.decides(held):
                numbers.append(held.data.item())
            else:
                numbers.append(None)
        return key, tuple(numbers)

    def unfolded(self, function: Function, e: Call, is_global: bool) -> Block | None:
        """A copy of a function's body on the arguments of a call; None where it cannot be copied."""
        if not is_global and not self.copyable(function) and (self.unfolding or e.fn not in self.called_once):
            return None
        if any(not isinstance(p, DimVar) for p in function.type_params):
            mapping = dict(zip(function.type_params, e.type_args, strict=True))
            made = substitute_types(replace(function, type_params=(), constraints=()), mapping)
            assert isinstance(made, Function)
            function, dims = made, {}
        else:
            solved = solve_dims(function, e, [a.ty for a in e.args])
            if solved is None:
                return None
            dims = solved
        body = body_of(function)
        bindings = list(all_bindings(body))
        self.spent += len(bindings)
        if self.spent > self.options.fuel:
            self.stop(e, f"its fuel of {self.options.fuel} bindings is used up")
            return None
        copier = Copier(dims=dims, own_dims=is_global)
        params = [copier.bind(p) for p in function.params]
        copy = copier.copy(body)
        for b in bindings:
            if isinstance(b.value, Function):
                copied = copier.atoms[b.var]
                assert isinstance(copied, Var)
                self.origins[copied] = self.origin(b.var)
        given = tuple(Binding(p, a) for p, a in zip(params, e.args, strict=True))
        return Block((*given, *copy.bindings), copy.result, copy.ty, e.span)

    def copyable(self, function: Function) -> bool:
        """Whether a closure's body gives no values to dim variables of its own: those are its surroundings'. (One that is called in one
        place only is moved there.)"""
        found = self._own_dims.get(function)
        if found is None:
            body = body_of(function)
            own = {d for b in all_bindings(body) for d in self.dims.of_type(b.var.ty)}
            for v in (*function.params, *free_vars(body)) if own else ():
                own.difference_update(self.dims.of_type(v.ty))
            found = self._own_dims[function] = not own
        return found

    # -- operators

    def operator(self, e: Call, name: str) -> Expr:
        """An operator on known scalars, where its result is exact: integers, truth values, comparisons."""
        ty = e.ty
        if not isinstance(ty, TensorType) or ty.shape != () or not isinstance(ty.dtype, str) or is_float(ty.dtype):
            return e
        given: list[Constant] = []
        for a in e.args:
            held = self.definition(a)
            if not isinstance(held, Constant) or held.data.ndim:
                return e
            given.append(held)
        if not given or not registry.exists(name):
            return e
        op = registry.get(name)
        if op.kind != "expression" or op.effects or op.shape_mode != "independent":
            return e
        found = apply_operator(op, [np.asarray(c.data) for c in given], e.attrs, e.span)
        return constant(np.asarray(found), ty.dtype)


def _is_structure(e: Expr) -> bool:
    """Whether a definition is a value whose parts are known."""
    return isinstance(e, Tuple | Function | RefNew) or is_closure(e)


def _calls_itself(function: Function, callee: Expr) -> bool:
    return isinstance(callee, Var) and use_counts(body_of(function))[callee] > 0


def _called_once(body: Block) -> set[Var]:
    """The variables that are used once, as what is called."""
    counts = use_counts(body)
    called = {b.value.fn for b in all_bindings(body) if isinstance(b.value, Call)}
    return {v for v in called if isinstance(v, Var) and counts[v] == 1}
