"""Type inference: Hindley-Milner with kinds and a queue of type relations.

One walk gives every node a type over unknowns and queues what cannot be decided yet (the papers' section on type
relations); the relations are retried as their unknowns are solved; then `annotate` rebuilds the program with types.

* Functions bound by ``let`` and global functions are generalised over what is left unknown; explicit type parameters
  are rigid. A fully annotated function may recurse at other types. Only functions are generalised (the value
  restriction).
* A polymorphic function is instantiated where it is called, and the call records its type arguments; in any other place
  it is expanded to a function of the instantiated type, as are operators. So after inference a node's type is
  monomorphic unless the node is a function bound by ``let``, a global, a constructor, or a variable that names one.
* What still waits when a function is generalised keeps its unknowns: they are not generalised; a use may solve them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never, cast

from relay.ir.diagnostics import DividedByZero, ShapeError
from relay.ir.dim import DimVar
from relay.ir.effects import CHECK_EQUAL, CLOSURE
from relay.ir.expr import (
    Block,
    Call,
    Clause,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
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
    attrs_key,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step
from relay.ir.types import (
    FuncType,
    LargeType,
    RefType,
    TupleType,
    Type,
    TypeArg,
    TypeParam,
    TypeVar,
    scalar,
)  # fmt: skip
from relay.typing.gradients import derivative_type
from relay.typing.operators import relation_attrs
from relay.typing.relations import located
from relay.typing.solver import Mismatch, Mode
from relay.typing.state import InferenceState
from relay.typing.substitution import param_arg
from relay.typing.text import type_text
from relay.typing.waiting import Waiting
from relay.typing.widening import widened

BOOL = scalar("bool")
_ONE_CONDITION: Final = (
    "a condition is one bool, as of %x > 0f; for each element by itself there is where(condition, a, b)"
)
_NOT: Final = "! reads a reference; whether something is not so is logical_not(a)"
UNIT = TupleType(())


@record(slots=True, eq=False)
class Inference(InferenceState):
    """One inference: `visit` gives a node its type and queues what cannot be decided yet."""

    def visit(self, e: Expr) -> Step[Type]:
        """The type of a node that is not an atom, and of everything below it."""
        try:
            match e:
                case Call():
                    t = yield from self._call(e)
                case Function():
                    t = yield from self.function_value(e, generalise=False)
                case Block():
                    t = yield from self._block(e)
                case Tuple():
                    fields: list[Type] = []
                    for n, f in enumerate(e.fields):
                        known = self.known(f, e, n)
                        fields.append(self.plain((yield self.visit(f)), e, n) if known is None else known)
                    t = TupleType(tuple(fields))
                case Proj():
                    known = self.known(e.tuple, e, 0)
                    t = self._projection(e, (yield self.visit(e.tuple)) if known is None else known)
                case If():
                    cond = yield from self._child(e.cond, e, 0)
                    self.fit(cond, BOOL, _at(e.cond, e), "the condition of if", _ONE_CONDITION)
                    then = yield from self._child(e.then, e, 1)
                    orelse = yield from self._child(e.orelse, e, 2)
                    t = self.join(then, orelse, _at(e.orelse, e), "the branches of if")
                case Match():
                    t = yield from self._match(e)
                case RefNew():
                    value = yield from self._child(e.value, e, 0)
                    known = self.wanted.get(id(e))
                    wanted = known and self.solver.head(known)
                    if isinstance(wanted, RefType):
                        self.fit(value, wanted.value, _at(e.value, e), "the first value of a reference")
                        value = wanted.value
                    t = RefType(value)
                case RefRead():
                    t = self._content((yield from self._child(e.ref, e, 0)), e.span)
                case RefWrite():
                    content = self._content((yield from self._child(e.ref, e, 0)), e.span)
                    value = yield from self._child(e.value, e, 1)
                    self.fit(value, content, _at(e.value, e), "the value written to a reference")
                    t = UNIT
                case Grad():
                    t = self._gradient(e, (yield from self._child(e.fn, e, 0)))
                case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
                    # Reached only where there is no parent: the root.
                    raise AssertionError("atoms are typed where they stand")
                case _:
                    assert_never(e)
        except (DividedByZero, LargeType) as error:
            raise located(error, e.span) from None
        self.types[id(e)] = t
        if self.solver.level:
            self.visited_level[id(e)] = self.solver.level
        return t

    def _child(self, child: Expr, parent: Expr, index: int) -> Step[Type]:
        known = self.known(child, parent, index)
        if known is not None:
            return known
        return self.plain((yield self.visit(child)), parent, index)

    def _call(self, e: Call) -> Step[Type]:
        fn = e.fn
        if type(fn) is OpRef:
            if fn.name == CLOSURE:
                return (yield from self._closure(e))
            if fn.name == CHECK_EQUAL:
                return UNIT
            op = self.operator(fn.name, fn.span or e.span)
            args: list[Type] = []
            for n, a in enumerate(e.args, 1):
                known = self.known(a, e, n)
                args.append(self.plain((yield self.visit(a)), e, n) if known is None else known)
            return self.operators.call(op, tuple(args), e.attrs, e.span)
        if e.attrs:
            names = ", ".join(e.attrs)
            raise self.fail(f"attributes ({names}) can be given to operators only", e.span, "pass them as arguments")
        name, callee = yield from self._callee(e)
        if isinstance(callee, TypeVar):
            types: list[Type] = []
            for n, a in enumerate(e.args, 1):
                types.append((yield from self._child(a, e, n)))
            result = self.solver.fresh("r")
            # The callee may have become known through an argument.
            self._apply(FuncType(tuple(types), result), callee, e, name)
            return result
        if not isinstance(callee, FuncType):
            raise self.fail(
                f"{name} is called but is not a function: its type is {type_text(self.solver.resolve(callee))}",
                e.span,
            )
        if len(e.args) != len(callee.params):
            count = len(callee.params)
            raise self.fail(
                f"{name} takes {count} argument{'' if count == 1 else 's'}, found {len(e.args)}",
                e.span,
                f"its type is {type_text(self.solver.resolve(callee))}",
            )
        soft: list[DimVar] = []
        found: list[Type] = []
        failed: ShapeError | None = None
        for n, (a, p) in enumerate(zip(e.args, callee.params, strict=True), 1):
            if isinstance(a, RefNew):
                self.wanted[id(a)] = p
            if isinstance(p, FuncType) and p.type_params and isinstance(a, Var | GlobalVar):
                t = self.named(a)  # a function over dims, wanted as such
            else:
                known = self.known(a, e, n)
                t = self.plain((yield self.visit(a)), e, n) if known is None else known
            found.append(t)
            if t is not p and failed is None:
                try:
                    self.argument(t, p, soft, _at(a, e), f"argument {n} of {name}")
                except ShapeError as error:
                    failed = error
        if failed is not None:
            callee = self._widened(e, found, failed)
        self.solver.soften(soft)
        self.solver.queue.drain()
        return callee.ret

    def _closure(self, e: Call) -> Step[Type]:
        """The middle end's ``closure(@f, captured...)``: the function of the parameters that are left."""
        made = e.args[0] if e.args else None
        scheme = self.named(made) if isinstance(made, GlobalVar) else None
        if not isinstance(scheme, FuncType) or len(e.args) - 1 > len(scheme.params):
            raise self.fail("closure takes a global function and values for its first parameters", e.span)
        whole = self.instance(scheme)[1]
        for n, (a, p) in enumerate(zip(e.args[1:], whole.params, strict=False), 1):
            self.fit((yield from self._child(a, e, n + 1)), p, _at(a, e), f"captured value {n} of closure")
        return FuncType(whole.params[len(e.args) - 1 :], whole.ret)

    def _widened(self, e: Call, found: list[Type], failed: ShapeError) -> FuncType:
        """The callee at type arguments with wider dims; ``failed`` is raised when there are none."""
        if e.type_args or id(e) not in self.call_args or not isinstance(e.fn, Var | GlobalVar | ConstructorRef):
            raise failed
        scheme = self.constructor(e.fn.name, e.span) if isinstance(e.fn, ConstructorRef) else self.named(e.fn)
        assert isinstance(scheme, FuncType)
        self.solver.place = (e.span, f"the call of {e.fn.name}")
        args = widened(self.solver, scheme, found)
        if args is None:
            raise failed
        self.call_args[id(e)] = args
        mono = self.solver.instantiate(scheme, args)
        self.constrain(mono, e.span)
        return mono

    def _apply(self, wanted: FuncType, callee: Type, e: Call, name: str) -> None:
        head = self.solver.head(callee)
        if isinstance(head, FuncType) and len(head.params) == len(wanted.params):
            soft: list[DimVar] = []
            for n, (t, p) in enumerate(zip(wanted.params, head.params, strict=True), 1):
                self.argument(t, p, soft, _at(e.args[n - 1], e), f"argument {n} of {name}")
            self.solver.soften(soft)
            self.equal(head.ret, wanted.ret, e.span, f"the result of {name}")
        else:
            self.equal(callee, wanted, e.span, f"the call of {name}")
        self.solver.queue.drain()

    def _callee(self, e: Call) -> Step[tuple[str, Type]]:
        """A name for messages and the instantiated type of what a call calls."""
        fn = e.fn
        scheme: Type
        opened: tuple[TypeParam, ...] | None = None
        match fn:
            case Var():
                name, scheme, opened = f"%{fn.name}", self.named(fn), self.open_params.get(fn)
            case GlobalVar():
                name, scheme, opened = f"@{fn.name}", self.named(fn), self.open_params.get(fn.name)
            case ConstructorRef():
                name, scheme = fn.name, self.constructor(fn.name, fn.span or e.span)
            case Constant():
                name, scheme = "the constant", self._constant(fn)
            case _:
                name = "the function"
                found = self.types.get(id(fn))
                scheme = (yield self.visit(fn)) if found is None else self.again(fn, found)
        head = cast(Type, self.solver.head(scheme))
        if isinstance(head, FuncType) and head.type_params:
            if e.type_args:
                self.check_type_args(e, name, head.type_params)
                if not isinstance(fn, ConstructorRef):
                    self.check_any(e, name, head)
            args, mono = self.instance(head, e.type_args)
            self.call_args[id(e)] = args
            self.constrain(mono, e.span)
            return name, mono
        if e.type_args:
            params = opened or ()
            self.check_type_args(e, name, params)
            # Inside a function that is still being inferred, calls of itself are at its own parameters.
            for given, p in zip(e.type_args, params, strict=True):
                self.solver.place = (e.span, f"type argument {p.name} of {name}")
                try:
                    self.solver.relate_args(given, param_arg(p), Mode.EQUAL)
                except Mismatch as m:
                    hint = "annotate all parameters and the result to call it at other types"
                    raise m.error(*self.solver.place, hint) from None
        return name, head

    def function_value(self, fn: Function, *, generalise: bool, own: Var | str | None = None) -> Step[Type]:
        """A function; generalised over what is left unknown if ``let`` binds it, over its own parameters always."""
        if not generalise and not fn.type_params:
            return (yield from self.function(fn))
        solver = self.solver
        start = len(solver.queue.pending)
        solver.level += 1
        if own is not None:
            scheme = self.declared(fn)
            self_type: Type = solver.fresh("f") if scheme is None else scheme
            if isinstance(own, Var):
                self.vars[own] = self_type
            if scheme is None:
                self.open_params[own] = fn.type_params
        t = yield from self.function(fn)
        if own is not None and scheme is None:
            self.equal(t, self_type, fn.span, "the recursive uses of the function")
            del self.open_params[own]
        solver.queue.drain()
        solver.level -= 1
        self.hold(start)
        return self.generalise(fn, t, implicit=generalise)

    def function(self, fn: Function) -> Step[FuncType]:
        solver = self.solver
        for p in fn.type_params:
            solver.levels[p] = solver.level
        params: list[Type] = []
        for v in fn.params:
            if v.annotation is None:
                t: Type = solver.fresh(v.name)
            else:
                t = v.annotation
                self.written(t, v.span or fn.span)
                self._check_rank(t, v)
            self.vars[v] = t
            params.append(t)
        if fn.ret_type is not None:
            self.written(fn.ret_type, fn.span)
        assumed = len(self.operators.assumed)
        for c in fn.constraints:
            self.operator(c.name, fn.span)  # one that nobody calls names an operator as well
            self.operators.assumed.append((c.name, c.args, attrs_key(relation_attrs(c))))
        known = self.known(fn.body, fn, 0)
        ret = self.plain((yield self.visit(fn.body)), fn, 0) if known is None else known
        del self.operators.assumed[assumed:]
        if fn.ret_type is not None:
            self.fit(ret, fn.ret_type, _result_span(fn), "the result of the function")
            ret = fn.ret_type
        return FuncType(tuple(params), ret)

    def _check_rank(self, t: Type, v: Var) -> None:
        if isinstance(t, FuncType) and any(not isinstance(p, DimVar) for p in t.type_params):
            raise self.fail(
                f"parameter %{v.name} has a polymorphic type",
                v.span,
                "only functions bound by `let` and global functions are polymorphic; give this function the parameter",
            )

    def _block(self, e: Block) -> Step[Type]:
        solver = self.solver
        for n, b in enumerate(e.bindings):
            v, value = b.var, b.value
            if v.annotation is not None:
                self.written(v.annotation, v.span or e.span)
            if type(value) is Function and id(value) not in self.types:
                t = yield from self.function_value(value, generalise=True, own=v)
                self.types[id(value)] = t
            elif isinstance(value, Var | GlobalVar | ConstructorRef):
                solver.level += 1
                t = cast(Type, self.known(value, e, n))
                solver.level -= 1
                place = (id(e), n)
                if place in self.expansions and isinstance(t, FuncType) and v.annotation is None:
                    new = self.close(t, lower=False)
                    self.alias_params[place] = new
                    mono = cast(FuncType, solver.resolve(t))
                    t = FuncType(mono.params, mono.ret, new) if new else mono
                else:
                    self.close(t, lower=True)
            else:
                if isinstance(value, RefNew) and v.annotation is not None:
                    self.wanted[id(value)] = v.annotation
                t = yield from self._child(value, e, n)
            if v.annotation is not None:
                span = v.span if isinstance(value, Var) or value.span is None else value.span
                if (
                    isinstance(t, FuncType)
                    and t.type_params
                    and not (isinstance(v.annotation, FuncType) and v.annotation.type_params)
                ):
                    t = self.plain(t, e, n)
                self.fit(t, v.annotation, span, f"the value of %{v.name}")
                t = v.annotation
            self.vars[v] = t
        return (yield from self._child(e.result, e, len(e.bindings)))

    def join(self, a: Type, b: Type, span: Span | None, context: str) -> Type:
        """The type of either; waits while one is the output of a relation that still waits."""
        solver = self.solver

        def waiting(t: TypeArg) -> tuple[TypeVar, ...]:
            head = solver.head(t)
            return (head,) if isinstance(head, TypeVar) and head in solver.outputs else ()

        def now() -> Type:
            solver.place = (span, context)
            try:
                return cast(Type, solver.join(a, b))
            except Mismatch as e:
                raise e.error(span, context) from None

        first = (*waiting(a), *waiting(b))
        if not first:
            return now()
        result = solver.fresh("j")
        solver.outputs.add(result)

        def attempt(last: bool) -> Waiting:
            waits = (*waiting(a), *waiting(b))
            if waits and not last:
                return waits
            self.complete(result, now(), span, context)
            return None

        solver.queue.defer(attempt, lambda: context, span, (a, b, result), first)
        return result

    def when_known(self, t: Type, use: Callable[[Type], Type], span: Span | None, what: str) -> Type:
        """``use(head)``, now or when the outermost constructor of ``t`` is known."""
        solver = self.solver
        head = solver.head(t)
        if not (isinstance(head, TypeVar) and head.flexible):
            return use(cast(Type, head))
        result = solver.fresh("p")
        solver.outputs.add(result)

        def attempt(_last: bool) -> Waiting:
            now = solver.head(t)
            if isinstance(now, TypeVar) and now.flexible:
                return (now,)
            self.complete(result, use(cast(Type, now)), span, what)
            return None

        solver.queue.defer(attempt, lambda: what, span, (t, result), (head,))
        return result

    def _projection(self, e: Proj, t: Type) -> Type:
        def use(head: Type) -> Type:
            if not isinstance(head, TupleType):
                raise self.fail(
                    f".{e.index} of something that is no tuple: its type is {type_text(self.solver.resolve(head))}",
                    e.span,
                )
            if not 0 <= e.index < len(head.fields):
                raise self.fail(
                    f"projection .{e.index} of a tuple of {len(head.fields)} fields",
                    e.span,
                    "fields count from 0",
                )
            return head.fields[e.index]

        return self.when_known(t, use, e.span, f"the tuple of the projection .{e.index}")

    def _gradient(self, e: Grad, t: Type) -> Type:
        name = "jvp" if e.forward else "grad"

        def use(head: Type) -> Type:
            if not isinstance(head, FuncType):
                raise self.fail(
                    f"{name} of something that is no function: its type is {type_text(self.solver.resolve(head))}",
                    e.span,
                )
            params = (cast(Type, self.solver.resolve(p)) for p in head.params)
            return derivative_type(FuncType(tuple(params), cast(Type, self.solver.resolve(head.ret))), e.forward)

        return self.when_known(t, use, e.span, f"the function under {name}")

    def _content(self, t: Type, span: Span | None) -> Type:
        head = self.solver.head(t)
        if isinstance(head, RefType):
            return head.value
        content = self.solver.fresh("c")
        hint = _NOT if head == BOOL else ""
        self.equal(t, RefType(content), span, "the reference", hint)
        return content

    def _match(self, e: Match) -> Step[Type]:
        data = yield from self._child(e.data, e, 0)
        self.matches.append((e, data))
        result: Type | None = None
        for n, clause in enumerate(e.clauses, 1):
            self._pattern(clause, data, e)
            body = yield from self._child(clause.body, e, n)
            result = body if result is None else self.join(result, body, _at(clause.body, e), "the clauses of match")
        # Without clauses it has no value, so any type is its type; the check of coverage sees to it.
        return self.solver.fresh("never") if result is None else result

    def _pattern(self, clause: Clause, data: Type, e: Match) -> None:
        todo: list[tuple[Pattern, Type]] = [(clause.pattern, data)]
        while todo:
            p, t = todo.pop()
            span = p.span or e.span
            match p:
                case PWild():
                    pass
                case PVar():
                    if p.var.annotation is not None:
                        self.written(p.var.annotation, span)
                        self.fit(t, p.var.annotation, span, f"the pattern variable %{p.var.name}")
                        t = p.var.annotation
                    self.vars[p.var] = t
                case PTuple():
                    head = self.solver.head(t)
                    if not isinstance(head, TupleType):
                        head = TupleType(tuple(self.solver.fresh("p") for _ in p.fields))
                        self.equal(t, head, span, "the pattern")
                    if len(head.fields) != len(p.fields):
                        raise self.fail(
                            f"a tuple pattern of {len(p.fields)} fields for a tuple of {len(head.fields)}",
                            span,
                        )
                    todo += zip(p.fields, head.fields, strict=True)
                case PConstructor():
                    _, c = self.instance(self.constructor(p.name, span))
                    self.equal(t, c.ret, span, f"the pattern {p.name}")
                    if len(c.params) != len(p.fields):
                        raise self.fail(
                            f"the pattern {p.name} has {len(p.fields)} fields, the constructor {len(c.params)}",
                            span,
                        )
                    todo += zip(p.fields, c.params, strict=True)
                case _:
                    assert_never(p)


def _at(e: Expr, parent: Expr) -> Span | None:
    """Where a child stands. A variable's own span is where it is bound, so its use is placed by its parent."""
    return parent.span if isinstance(e, Var) or e.span is None else e.span


def _result_span(fn: Function) -> Span | None:
    body = fn.body
    while isinstance(body, Block):
        body = body.result
    return _at(body, fn)
