"""Lifting programs, block by block: what reverse and forward mode share.

The lifted program has the structure of the program. Its values are of the lifted types (`duals`), and `Value` says what is
known of each while it is written, so that tensors and tuples exist as lifted values only where something needs them whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from relay.ir.diagnostics import CompileError, RelayError
from relay.ir.dim import DimVar, as_var
from relay.ir.effects import CHECK_EQUAL, CLOSURE
from relay.ir.expr import (
    Attrs,
    Binding,
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
)  # fmt: skip
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, Type, TypeArg
from relay.ir.walk import free_vars, pattern_vars, rename_pattern
from relay.op import registry
from relay.transform.ad.activity import Activity, Numbers
from relay.transform.ad.asked import idle_calls
from relay.transform.ad.conversions import Conversion, Functions
from relay.transform.ad.duals import Lifting, differentiable
from relay.transform.ad.entering import lifts
from relay.transform.ad.terms import UNIT, Code, construct, project, tuple_of, write
from relay.transform.ad.values import Fields, Frame, Other, Tensor, Value, is_constant
from relay.transform.blocks import as_block, is_primitive
from relay.transform.build import internal_call, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.to_blocks import to_blocks
from relay.typing.check import consistent
from relay.typing.text import type_text

# The cotangent of one input of an operator, from the call's operands, its results and their cotangents; None where it is
# zero. `relay.op.gradient.input_cotangent` is the one that programs are differentiated with.
Rule = Callable[[str, Attrs, Sequence[Expr], Sequence[Type], Sequence[Expr], Sequence[Expr], int], Expr | None]

# A global function by name, which of its parameters are constants, and which come with lists of rows (`kept_rows`).
Version = tuple[str, Numbers, Numbers]
_NONE: Numbers = frozenset()


@record(slots=True, eq=False)
class Lifter(ABC):
    """Lifts the functions of a module. ``functions`` has the module's, and gets those made here."""

    functions: Functions
    lifting: Lifting
    rule: Rule
    env: dict[Var, Value] = field(default_factory=dict)
    # Lifted global functions, and those to be written, by version.
    made: dict[Version, GlobalVar] = field(default_factory=dict)
    todo: list[Version] = field(default_factory=list)
    within: str = ""  # the global function that is being lifted
    # The functions bound in the function around, for those that a differentiated one captures.
    outside: dict[Var, Expr] = field(default_factory=dict)
    # What lifted code calls instead of the functions that make, read and write cells (`cells`).
    accesses: dict[str, GlobalVar] = field(default_factory=dict)
    entered: list[Var] = field(default_factory=list)
    # The results of calls that nobody asks a derivative of.
    idle: set[Var] = field(default_factory=set)
    sizes: DimUses = field(default_factory=DimUses)
    lift: Conversion = field(init=False)
    drop: Conversion = field(init=False)
    activity: Activity = field(init=False)

    @abstractmethod
    def tensor(
        self, ty: Type, frame: Frame, primal: Expr | None, pair: Expr | None = None, active: bool = True
    ) -> Tensor:
        """A differentiable tensor, made in a frame or come as a lifted value."""

    @abstractmethod
    def received(self, frame: Frame, whole: Expr, ty: Type) -> Value:
        """A lifted value that comes from elsewhere."""

    @abstractmethod
    def ends(self, frame: Frame, whole: Expr) -> Expr:
        """What a lifted function returns for a result."""

    @abstractmethod
    def leaves(self, frames: list[Frame], results: list[Expr], ty: Type) -> tuple[list[Block], Type, bool]:
        """Branches as blocks, their type, and whether they give more than the lifted result."""

    @abstractmethod
    def returned(self, result: Expr, ty: Type, frame: Frame) -> Value:
        """The value in what a lifted function, or a branch that gives more, has returned."""

    @abstractmethod
    def cast(self, var: Var, value: Value, frame: Frame) -> Value:
        """A value under a type that says more, checked where it is bound."""

    @abstractmethod
    def recast(self, value: Value, new: Expr, frame: Frame) -> Value:
        """A value under a type that says more, where its own value already has it."""

    @abstractmethod
    def operator(self, var: Var, e: Call, op: OpRef, args: list[Value], frame: Frame) -> Value:
        """A call of an operator."""

    def loop(self, e: Call, name: str, args: Sequence[Value], frame: Frame) -> Value | None:
        """A call of a loop that is lifted in a way of its own; None for every other call."""
        return None

    def branch(self, var: Var, e: If, frame: Frame) -> Value | None:
        """A branch that is lifted in a way of its own; None for every other one."""
        return None

    def with_lists(self, e: Call, name: str, args: Sequence[Value], frame: Frame) -> Mapping[int, Expr]:
        """The arguments of a global function that it takes with lists of rows, by position."""
        return {}

    def listed_type(self, name: str, number: int, lifted: Type) -> Type:
        """The type of a parameter that comes with lists of rows."""
        raise AssertionError(f"{type(self).__name__} keeps no rows")

    def listed(self, name: str, number: int, param: Var, ty: Type, frame: Frame) -> Value:
        """A parameter that comes with lists of rows."""
        raise AssertionError(f"{type(self).__name__} keeps no rows")

    @abstractmethod
    def conversions(self) -> Sequence[Conversion]:
        """All that may have functions to write."""

    def finish(self) -> None:
        """Write the lifted global functions and the conversions that have been asked for."""
        while True:
            while self.todo:
                name, constant, listed = version = self.todo.pop()
                self.within = name
                made = run(self.lifted(self.functions.known[name], constant, listed, name))
                self.functions.known[self.made[version].name] = fresh_dims(to_blocks(made))
                self.within = ""
            # Every one is asked, so no `any` over a generator.
            if not any([c.finish() for c in self.conversions()]):
                return

    # -- functions

    def global_function(self, g: GlobalVar, constant: Numbers = _NONE, listed: Numbers = _NONE) -> GlobalVar:
        """The lifted function of a global one that takes some parameters as they are, and some with lists of rows (written later, see
        ``todo``)."""
        version = g.name, constant, listed
        found = self.made.get(version)
        if found is None:
            name = self.functions.name(f"{g.name}.ad")
            ty = self.lifted_type(type_of(self.functions.known[g.name]), constant, listed, g.name)
            found = self.made[version] = GlobalVar(name, ty)
            self.todo.append(version)
        return found

    def lifted_type(self, ty: Type, constant: Numbers, listed: Numbers, name: str) -> FuncType:
        lifted = self.lifting.type(ty)
        assert isinstance(ty, FuncType) and isinstance(lifted, FuncType)
        return replace(lifted, params=self.lifted_params(ty.params, constant, listed, name))

    def lifted_params(self, types: Sequence[Type], constant: Numbers, listed: Numbers, name: str) -> tuple[Type, ...]:
        params = [t if n in constant else self.lifting.type(t) for n, t in enumerate(types)]
        for n in listed:
            params[n] = self.listed_type(name, n, params[n])
        return tuple(params)

    def lifted(
        self, fn: Function, constant: Numbers = _NONE, listed: Numbers = _NONE, name: str = ""
    ) -> Step[Function]:
        """A function over lifted values, those of ``constant`` parameters excepted."""
        ty = self.lifted_type(type_of(fn), constant, listed, name)
        # The parameters may name sizes that the function's type does not.
        types = self.lifted_params([type_of(v) for v in fn.params], constant, listed, name)
        frame = Frame()
        params = []
        for n, (v, t) in enumerate(zip(fn.params, types, strict=True)):
            param = Var(v.name, t, t, v.span)
            params.append(param)
            if n in constant:
                self.env[v] = self.argument(frame, param, type_of(v), v.span, active=False)
            elif n in listed:
                self.env[v] = self.listed(name, n, param, type_of(v), frame)
            else:
                self.env[v] = self.received(frame, param, type_of(v))
        result = yield self.block(self.looked_through(as_block(fn.body)), frame)
        out = self.ends(frame, result.whole)
        body = frame.forward.block(out)
        return Function(tuple(params), body, ty.ret, ty.type_params, fn.attrs, fn.constraints, ty, fn.span)

    def parts(self, frame: Frame, whole: Expr, ty: Type) -> Value:
        if not self.lifting.changes(ty):
            return Other(ty, whole)
        if isinstance(ty, TensorType):
            # A tensor gives the sizes that only its type names their values: it is taken out before anything may use these.
            tells = any(d.gradual for d in self.sizes.of_type(ty))
            return self.tensor(ty, frame, frame.forward.bind(project(whole, 0)) if tells else None, whole)
        if isinstance(ty, TupleType):
            fields = (self.parts(frame, frame.forward.bind(project(whole, n)), t) for n, t in enumerate(ty.fields))
            return Fields(ty, frame, tuple(fields), whole)
        return Other(ty, whole)

    def captured(self, fn: Function, frame: Frame) -> Step[None]:
        """Lift what a function captures: tensors as constants, functions that are known here as lifted ones."""
        known: dict[Var, Expr] = {}
        self.entered = []
        todo: list[Expr] = [fn]
        while todo:
            e = todo.pop()
            for v in free_vars(e):
                if v in known or v in self.env:
                    continue
                value = self.outside.get(v)
                if isinstance(v.ty, FuncType) and lifts(value):
                    assert value is not None
                    known[v] = value
                    todo.append(value)
                elif isinstance(v.ty, FuncType):
                    raise CompileError(
                        f"the function %{v.name}, which a function under grad calls, is not known here",
                        v.span or fn.span,
                        "differentiate where the function is known: inside the function that is given it, or inlined",
                    )
                else:
                    self.entered.append(v)
                    self.env[v] = self.argument(frame, v, type_of(v), fn.span, active=False)
        order = {v: n for n, v in enumerate(self.outside)}
        for v in sorted(known, key=order.__getitem__):
            value = known[v]
            if isinstance(value, Function):
                yield self.local_function(v, value, frame)
            else:
                self.env[v] = yield from self.binding(v, value, frame)

    def argument(self, frame: Frame, atom: Expr, ty: Type, span: Span | None, active: bool = True) -> Value:
        """An argument of the gradient's own, or (not ``active``) something captured."""
        if not self.lifting.changes(ty):
            return Other(ty, atom)
        if isinstance(ty, TensorType):
            return self.tensor(ty, frame, atom, active=active)
        if isinstance(ty, TupleType):
            parts = (
                self.argument(frame, frame.forward.bind(project(atom, n)), t, span, active)
                for n, t in enumerate(ty.fields)
            )
            return Fields(ty, frame, tuple(parts), None, atom)
        if active or not isinstance(ty, AdtType):
            return Other(ty, self.lift.convert(frame.forward, atom, ty, span))
        return Other(ty, None, atom, lambda: self.lift.convert(frame.here(), atom, ty, span))

    def unlifted(self, value: Value, span: Span | None) -> Expr:
        """A value itself, for an operator."""
        if isinstance(value, Other) and value.plain is None and self.lifting.changes(value.ty):
            raise CompileError(
                f"an operator takes a value of type {type_text(value.ty)} that is under differentiation",
                span,
                "pass its tensors",
            )
        return value.primal

    def dropped(self, value: Value, frame: Frame, span: Span | None) -> Expr:
        """The result itself."""
        match value:
            case Tensor():
                return value.primal
            case Fields():
                if value.plain is None:
                    value.plain = frame.forward.bind(tuple_of([self.dropped(f, frame, span) for f in value.fields]))
                return value.plain
            case Other():
                if value.plain is not None:
                    return value.plain
                return self.drop.convert(frame.forward, value.whole, value.ty, span)

    # -- blocks

    def looked_through(self, block: Block, *results: Expr) -> Block:
        """The block, when the calls in it that nobody asks a derivative of are known; ``results``: more that it computes."""
        self.idle |= idle_calls(block.bindings, (block.result, *results), self.lifting, self.activity.is_data)
        return block

    def block(self, block: Block, frame: Frame) -> Step[Value]:
        """Write a block's lifted code into a frame; the value of its result."""
        for binding in block.bindings:
            var = binding.var
            if isinstance(binding.value, Function):
                yield self.local_function(var, binding.value, frame)
            else:
                self.env[var] = yield from self.binding(var, binding.value, frame)
        return self.atom(block.result, frame)

    def local_function(self, var: Var, fn: Function, frame: Frame) -> Step[None]:
        if is_primitive(fn):
            raise CompileError("a fused program cannot be differentiated", fn.span, "differentiate before fusion")
        ty = self.lifting.type(type_of(fn))
        new = Var(var.name, None, ty, var.span)
        self.env[var] = Other(type_of(fn), new)
        made = yield self.lifted(fn)
        frame.forward.bindings.append(Binding(new, made))

    def atom(self, e: Expr, frame: Frame) -> Value:
        match e:
            case Var():
                return self.env[e]
            case Constant():
                ty = type_of(e)
                return self.tensor(ty, frame, e, active=False) if differentiable(ty) else Other(ty, e)
            case GlobalVar():
                return Other(type_of(e), self.global_function(e))
            case _:
                raise AssertionError(f"{type(e).__name__} as a value: the pass eta_expand comes first")

    def binding(self, var: Var, e: Expr, frame: Frame) -> Step[Value]:
        code = frame.forward
        match e:
            case Call():
                return self.call(var, e, frame)
            case Tuple():
                fields = tuple(self.atom(f, frame) for f in e.fields)
                if self.lifting.changes(type_of(e)):
                    return Fields(type_of(e), frame, fields)
                return Other(type_of(e), code.bind(tuple_of([f.whole for f in fields]), var.name))
            case Proj():
                value = self.atom(e.tuple, frame)
                if isinstance(value, Fields):
                    part = value.fields[e.index]
                    if value.plain is None or part.ty == type_of(e):
                        return part
                    # The type here may name sizes that the whole's does not.
                    atom = code.bind(Proj(value.plain, e.index, type_of(e)), var.name)
                    return self.recast(part, atom, frame)
                field = Proj(value.whole, e.index, self.lifting.type(type_of(e)))
                return Other(type_of(e), code.bind(field, var.name))
            case If() if (again := self.branch(var, e, frame)) is not None:
                return again
            case If():
                blocks = (as_block(e.then), as_block(e.orelse))
                cond = self.atom(e.cond, frame).whole
                inner: list[Frame] = []
                results: list[Expr] = []
                for b in blocks:
                    inner.append(Frame())
                    results.append((yield self.block(b, inner[-1])).whole)
                branches, ty, returns = self.leaves(inner, results, type_of(e))
                return self.chosen(var, If(cond, branches[0], branches[1], ty, e.span), returns, type_of(e), frame)
            case Match():
                return (yield from self.match(var, e, frame))
            case RefNew():
                # A reference may be declared to hold more than its first value: tensors of other sizes.
                made = RefNew(self.atom(e.value, frame).whole, self.lifting.type(type_of(var)), e.span)
                return Other(type_of(var), code.bind(made, var.name))
            case RefRead():
                # What is read may name sizes that the reference's type does not.
                held = RefRead(self.atom(e.ref, frame).whole, self.lifting.type(type_of(e)), e.span)
                return self.received(frame, code.bind(held, var.name), type_of(e))
            case RefWrite():
                ref, new = self.atom(e.ref, frame).whole, self.atom(e.value, frame).whole
                return Other(UNIT, code.bind(write(ref, new), "_"))
            case Var() | Constant() | GlobalVar():
                return self.cast(var, self.atom(e, frame), frame)
            case Grad():
                raise AssertionError("inner gradients are taken first")
            case _:
                raise AssertionError(f"{type(e).__name__} is not an operation of a block")

    # -- branches

    def chosen(self, var: Var, e: Expr, returns: bool, ty: Type, frame: Frame) -> Value:
        result = frame.forward.bind(e, var.name)
        return self.returned(result, ty, frame) if returns else self.received(frame, result, ty)

    def match(self, var: Var, e: Match, frame: Frame) -> Step[Value]:
        data = self.atom(e.data, frame)
        constant = is_constant(data)
        inner: list[Frame] = []
        results: list[Expr] = []
        patterns: list[Pattern] = []
        for clause in e.clauses:
            inner.append(Frame())
            if constant:
                patterns.append(self.plain_pattern(clause.pattern, inner[-1]))
            else:
                patterns.append(self.pattern(clause.pattern, data.ty, inner[-1]))
            results.append((yield self.block(as_block(clause.body), inner[-1])).whole)
        blocks, ty, returns = self.leaves(inner, results, type_of(e))
        clauses = tuple(Clause(p, b) for p, b in zip(patterns, blocks, strict=True))
        of = data.primal if constant else data.whole
        return self.chosen(var, Match(of, clauses, e.complete, ty, e.span), returns, type_of(e), frame)

    def pattern(self, pattern: Pattern, ty: Type, frame: Frame) -> Pattern:
        """A pattern over lifted values. (Patterns nest as deeply as a person writes them.)"""
        match pattern:
            case PVar():
                t = type_of(pattern.var)
                new = Var(pattern.var.name, None, self.lifting.type(t), pattern.var.span)
                self.env[pattern.var] = self.received(frame, new, t)
                return PVar(new, pattern.span)
            case PConstructor():
                assert isinstance(ty, AdtType)
                fields = self.lifting.fields(ty, pattern.name)
                inner = tuple(self.pattern(p, t, frame) for p, t in zip(pattern.fields, fields, strict=True))
                return PConstructor(self.lifting.constructor(ty, pattern.name), inner, pattern.span)
            case PTuple():
                assert isinstance(ty, TupleType)
                inner = tuple(self.pattern(p, t, frame) for p, t in zip(pattern.fields, ty.fields, strict=True))
                return PTuple(inner, pattern.span)
            case PWild():
                return pattern

    def plain_pattern(self, pattern: Pattern, frame: Frame) -> Pattern:
        """A pattern over a constant."""
        names = {v: Var(v.name, None, type_of(v), v.span) for v in pattern_vars(pattern)}
        for v, new in names.items():
            self.env[v] = self.argument(frame, new, type_of(v), v.span, active=False)
        return rename_pattern(pattern, names)

    # -- calls

    def call(self, var: Var, e: Call, frame: Frame) -> Value:
        if is_primitive(e.fn):
            raise CompileError("a fused program cannot be differentiated", e.span, "differentiate before fusion")
        ty = type_of(e)
        code = frame.forward
        args = [self.atom(a, frame) for a in e.args]
        match e.fn:
            case OpRef(name=name) if name == CHECK_EQUAL:
                return Other(ty, code.bind(internal_call(name, [a.primal for a in args], ty, e.attrs, e.span), "_"))
            case OpRef(name=name) if name == CLOSURE:
                wholes = [a.whole for a in args]
                return Other(ty, code.bind(internal_call(name, wholes, self.lifting.type(ty), e.attrs, e.span)))
            case OpRef():
                return self.operator(var, e, e.fn, args, frame)
            case ConstructorRef():
                assert isinstance(ty, AdtType)
                lifted = self.lifting.type(ty)
                assert isinstance(lifted, AdtType)
                name = self.lifting.constructor(ty, e.fn.name)
                definition = self.lifting.definition(ty)

                def made(code: Code, whole: AdtType = lifted) -> Expr:
                    return code.bind(construct(definition, name, [a.whole for a in args], whole), var.name)

                if self.lifting.changes(ty) and all(map(is_constant, args)):
                    same = Call(e.fn, tuple(a.primal for a in args), e.attrs, e.type_args, ty, e.span)
                    return Other(ty, None, code.bind(same, var.name), lambda: made(frame.here()))
                return Other(ty, made(code))
            case GlobalVar(name=name) if name in self.accesses:
                lifted_args = tuple(a.whole for a in args)
                access = Call(self.accesses[name], lifted_args, e.attrs, e.type_args, self.lifting.type(ty), e.span)
                return self.received(frame, code.bind(access, var.name), ty)
            case GlobalVar() if self.plain(type_of(e.fn)):
                return Other(ty, code.bind(Call(e.fn, tuple(a.whole for a in args), e.attrs, e.type_args, ty, e.span)))
            case GlobalVar() if var in self.idle:
                dropped = tuple(self.dropped(a, frame, e.span) for a in args)
                plain = code.bind(replace(e, args=dropped), var.name)
                return self.argument(frame, plain, ty, e.span, active=False)
            case GlobalVar(name=name) if (value := self.loop(e, name, args, frame)) is not None:
                return value
            case GlobalVar() if self.of_constants(ty, args):
                plain = code.bind(replace(e, args=tuple(a.primal for a in args)), var.name)
                return self.argument(frame, plain, ty, e.span, active=False)
            case GlobalVar(name=name):
                given = (n for n, a in enumerate(args) if self.lifting.changes(a.ty) and is_constant(a))
                constant = self.activity.constant(name, frozenset(given))
                lists = self.with_lists(e, name, args, frame)
                fn: Expr = self.global_function(e.fn, constant, frozenset(lists))
                mixed = (a.primal if n in constant else lists.get(n) or a.whole for n, a in enumerate(args))
                return self.applied(var, e, fn, tuple(mixed), frame)
            case _:
                return self.applied(var, e, self.atom(e.fn, frame).whole, tuple(a.whole for a in args), frame)

    def applied(self, var: Var, e: Call, fn: Expr, args: tuple[Expr, ...], frame: Frame) -> Value:
        """The call of a lifted function."""
        ty = type_of(e)
        ret = self.lifting.result(self.lifting.type(ty))
        type_args: tuple[TypeArg, ...] = tuple(map(self.lifting.arg, e.type_args))
        made = Call(fn, args, e.attrs, type_args, ret, e.span)
        return self.returned(frame.forward.bind(made, var.name), ty, frame)

    def of_constants(self, result: Type, args: Sequence[Value]) -> bool:
        """Whether a call of a global function gives a constant: it is given nothing else."""
        constant = (is_constant(a) or not self.lifting.concerns(a.ty) for a in args)
        return (self.activity.is_data(result) or not self.lifting.concerns(result)) and all(constant)

    def plain(self, t: Type) -> bool:
        """Whether nothing that has a derivative goes into a global function or comes out of it."""
        return isinstance(t, FuncType) and not any(map(self.lifting.concerns, (*t.params, t.ret)))

    def flat(self, name: str, args: Sequence[Value]) -> list[Value]:
        """The tensors that an operator is given, those of tuples in order."""
        out: list[Value] = []
        for spec, a in zip(registry.get(name).inputs, args, strict=False):
            if spec.variadic and isinstance(a, Fields):
                out += a.fields
            elif spec.variadic and isinstance(a.ty, TupleType):
                out += (Other(t, a.whole) for t in a.ty.fields)  # no field is differentiable
            else:
                out.append(a)
        return out

    def cotangent(
        self,
        e: Call,
        name: str,
        operands: Sequence[Expr],
        types: Sequence[Type],
        outputs: Sequence[Expr],
        cotangents: Sequence[Expr],
        index: int,
    ) -> Expr | None:
        """The rule of an operator; an error of it is placed at the call."""
        try:
            return self.rule(name, e.attrs, operands, types, outputs, cotangents, index)
        except RelayError as error:
            error.span = error.span or e.span
            raise

    def outputs(self, result: Var, ty: Type, active: bool, frame: Frame) -> tuple[Value, list[Value]]:
        """The value of an operator's result, and the tensors that it consists of."""
        if isinstance(ty, TensorType):
            one: Value = self.tensor(ty, frame, result, active=active) if differentiable(ty) else Other(ty, result)
            return one, [one]
        assert isinstance(ty, TupleType)
        if not self.lifting.changes(ty):
            return Other(ty, result), []
        fields: list[Value] = []
        for n, t in enumerate(ty.fields):
            atom = frame.forward.bind(project(result, n))
            fields.append(self.tensor(t, frame, atom, active=active) if differentiable(t) else Other(t, atom))
        return Fields(ty, frame, tuple(fields), None, result), fields


def fitting(name: str, index: int, found: Type, expected: Type, span: Span | None) -> None:
    """What a declared rule gives is of the operand's type. Raises CompileError."""
    if not consistent(found, expected):
        raise CompileError(
            f"the gradient rule of {name} gives {type_text(found)} for operand {index}, expected {type_text(expected)}",
            span,
        )


def nothing_to_differentiate(fn: Function) -> CompileError:
    return CompileError(
        f"the result of the function under grad has nothing to differentiate: {type_text(type_of(fn.body))}",
        fn.span,
        "it must be or contain a floating-point tensor",
    )


def fresh_dims(function: Function) -> Function:
    """The function with dim variables of its own."""
    copier = Copier(own_dims=True)
    copy = copier.function(function)
    own = (as_var(d) for p in function.type_params if isinstance(p, DimVar) and (d := copier.dim(p)) is not None)
    dims = iter([d for d in own if d is not None])
    params = tuple(next(dims) if isinstance(p, DimVar) else p for p in function.type_params)
    assert isinstance(copy.ty, FuncType)
    ty = FuncType(copy.ty.params, copy.ty.ret, params, copy.ty.constraints)
    return replace(copy, type_params=params, ty=ty)
