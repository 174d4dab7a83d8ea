"""Forward mode: every differentiable tensor goes with its tangent (dual numbers; Roesch 2020, section 4.0.2).

The tangent of an operator comes from the same rules as its cotangents. A cotangent is linear in the cotangent of the
result, ``d -> A^T d``; going back through that piece of code, with the tangent of the input as cotangent, is ``v -> A v``.
So there is one table of derivatives, and where an operand has no tangent no code is written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Clause, Expr, Function, Match, OpRef, Var
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type
from relay.ir.walk import free_vars
from relay.transform.ad.activity import Activity
from relay.transform.ad.cells import Settle
from relay.transform.ad.conversions import Conversion, Drop, Lift, zeros_like
from relay.transform.ad.duals import ReverseLifting, differentiable
from relay.transform.ad.lifter import Lifter, nothing_to_differentiate
from relay.transform.ad.reverse import Reverse
from relay.transform.ad.terms import Code, project, tuple_of, written
from relay.transform.ad.values import Fields, Frame, Other, Tensor, Value
from relay.transform.blocks import as_block
from relay.transform.build import type_of
from relay.transform.to_blocks import to_blocks


@record(slots=True, eq=False)
class Dual(Tensor):
    """A tensor with its tangent; none (and not ``active``) where it is zero."""

    tangent: Expr | None = None

    @property
    def ref(self) -> Expr:
        if self.tangent is None:
            code = self.home.here()
            self.tangent = code.bind(zeros_like(self.primal) if self.pair is None else project(self.pair, 1))
        return self.tangent


class LiftZero(Lift):
    """A value of the program with tangents of zero."""

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return code.bind(tuple_of((x, code.bind(zeros_like(x)))))


class Zip(Conversion):
    """A pair of a value and its tangent as one lifted value."""

    verb: ClassVar[str] = "zip"

    def source(self, t: Type) -> Type:
        return TupleType((t, t))

    def target(self, t: Type) -> Type:
        return self.lifting.type(t)

    def trivial(self, t: Type) -> bool:
        return False

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return x if differentiable(t) else code.bind(project(x, 0))

    def part(self, code: Code, x: Expr, index: int) -> Expr:
        both = [code.bind(project(code.bind(project(x, side)), index)) for side in (0, 1)]
        return code.bind(tuple_of(both))

    def _function(self, t: AdtType, ty: FuncType) -> Function:
        definition = self.lifting.definitions[t.name]
        both = Var("both", ty.params[0], ty.params[0])
        clauses: list[Clause] = []
        for c in definition.constructors:
            types = self.lifting.fields(t, c.name)
            values = [Var(f"f{n}", None, f) for n, f in enumerate(types)]
            tangents = [Var(f"d{n}", None, f) for n, f in enumerate(types)]
            code = Code()
            fields = [
                self.convert(code, code.bind(tuple_of((v, d))), f)
                for v, d, f in zip(values, tangents, types, strict=True)
            ]
            same = code.block(self.rebuild(code, c.name, fields, t))
            inner = Clause(self.plain_pattern(c.name, tangents), same)
            clauses.append(Clause(self.plain_pattern(c.name, values), Match(project(both, 1), (inner,), False, ty.ret)))
        body = Match(project(both, 0), tuple(clauses), True, ty.ret)
        return to_blocks(Function((both,), body, ty.ret, ty.type_params, ty=ty))


class Tangent(Conversion):
    """The tangent of a result."""

    verb: ClassVar[str] = "tangent"

    def source(self, t: Type) -> Type:
        return self.lifting.type(t)

    def target(self, t: Type) -> Type:
        return t

    def trivial(self, t: Type) -> bool:
        return False

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return code.bind(project(x, 1) if differentiable(t) else zeros_like(x))


@record(slots=True, eq=False)
class Forward(Lifter):
    """Lifts functions to ones over values with tangents."""

    zip: Zip = field(init=False)
    tangent: Tangent = field(init=False)
    settle: Settle = field(init=False)
    # Goes back through the cotangents of single operators.
    transpose: Reverse = field(init=False)

    def __post_init__(self) -> None:
        self.activity = Activity(self.functions.known, self.lifting)
        self.lift = LiftZero(self.lifting, self.functions)
        self.drop = Drop(self.lifting, self.functions, lift=self.lift)
        self.zip = Zip(self.lifting, self.functions)
        self.tangent = Tangent(self.lifting, self.functions)
        self.settle = Settle(self.lifting, self.functions)
        self.transpose = Reverse(self.functions, ReverseLifting(self.lifting.definitions), self.rule)

    def conversions(self) -> Sequence[Conversion]:
        return (self.lift, self.drop, self.zip, self.tangent, self.settle)

    def tensor(
        self, ty: Type, frame: Frame, primal: Expr | None, pair: Expr | None = None, active: bool = True
    ) -> Tensor:
        return Dual(ty, frame, primal, pair, active)

    def received(self, frame: Frame, whole: Expr, ty: Type) -> Value:
        return self.parts(frame, whole, ty)

    def ends(self, frame: Frame, whole: Expr) -> Expr:
        return whole

    def leaves(self, frames: list[Frame], results: list[Expr], ty: Type) -> tuple[list[Block], Type, bool]:
        blocks = [f.forward.block(r) for f, r in zip(frames, results, strict=True)]
        return blocks, self.lifting.type(ty), False

    def returned(self, result: Expr, ty: Type, frame: Frame) -> Value:
        return self.received(frame, result, ty)

    def cast(self, var: Var, value: Value, frame: Frame) -> Value:
        ty = type_of(var)
        if isinstance(value, Tensor):
            new = Var(var.name, None, ty, var.span)
            frame.forward.bindings.append(Binding(new, value.primal))
            return Dual(ty, frame, new, None, value.active, tangent=value.ref if value.active else None)
        new = Var(var.name, None, self.lifting.type(ty), var.span)
        frame.forward.bindings.append(Binding(new, value.whole))
        return self.received(frame, new, ty)

    def recast(self, value: Value, new: Expr, frame: Frame) -> Value:
        ty = type_of(new)
        if isinstance(value, Tensor):
            return Dual(ty, frame, new, None, value.active, tangent=value.ref if value.active else None)
        return value if self.lifting.changes(value.ty) else Other(ty, new)

    def operator(self, var: Var, e: Call, op: OpRef, args: list[Value], frame: Frame) -> Value:
        code = frame.forward
        operands = tuple(self.unlifted(a, e.span) for a in args)
        result = Var(var.name, None, type_of(var), var.span)
        code.bindings.append(Binding(result, Call(op, operands, e.attrs, e.type_args, type_of(e), e.span)))
        inputs = self.flat(op.name, args)
        moving = [(n, i) for n, i in enumerate(inputs) if isinstance(i, Tensor) and i.active]
        value, outputs = self.outputs(result, type_of(var), bool(moving), frame)
        if moving and any(isinstance(o, Tensor) for o in outputs):
            given = [Var("ct", None, type_of(o.primal)) for o in outputs]
            types = [type_of(a) for a in operands]
            parts: list[Expr] = []
            tangents: list[Expr] = []
            for n, i in moving:
                part = self.cotangent(e, op.name, operands, types, [o.primal for o in outputs], given, n)
                if part is not None:
                    parts.append(part)
                    tangents.append(i.ref)
            found = self.transposed(given, outputs, parts, tangents, frame)
            for o, d in zip(outputs, found, strict=True):
                if isinstance(o, Dual):
                    o.tangent, o.active = d, d is not None
        return value

    def transposed(
        self,
        given: Sequence[Var],
        outputs: Sequence[Value],
        parts: Sequence[Expr],
        tangents: Sequence[Expr],
        frame: Frame,
    ) -> list[Expr | None]:
        """The sum of the transposes of ``parts``, each linear in ``given``, on the tangents."""
        if not parts:
            return [None for _ in given]
        back = self.transpose
        code = frame.forward
        pieces = Code()
        whole = pieces.block(pieces.bind(tuple_of([written(pieces, p) for p in parts])))
        inner = Frame(forward=code)
        # The transpose does not depend on the values that stand for the cotangents: these are dead code afterwards.
        back.env = {v: self.stand_in(inner, v, o) for v, o in zip(given, outputs, strict=True)}
        for v in free_vars(whole):
            if v not in back.env:
                back.env[v] = back.argument(inner, v, type_of(v), None, active=False)
        result = run(back.block(whole, inner))
        assert isinstance(result, Fields)
        inner.back = code
        for r, d in zip(result.fields, tangents, strict=True):
            if isinstance(r, Tensor):
                inner.give(r, d)
        for step in reversed(inner.tape):
            step(inner)
        out: list[Expr | None] = []
        for v in given:
            stand_in = back.env[v]
            out.append(inner.total(stand_in) if isinstance(stand_in, Tensor) else None)
        return out

    def stand_in(self, frame: Frame, v: Var, output: Value) -> Value:
        zero = frame.forward.bind(zeros_like(output.primal))
        if isinstance(output, Tensor):
            return Tensor(type_of(v), frame, zero)
        return Other(type_of(v), zero)

    # -- the derivative of one function

    def derivative(self, fn: Function, ty: FuncType) -> Step[Function]:
        """``fn(x..., dx...) { (value, tangent) }`` of a function of plain values. Captured variables do not move."""
        self.env = {}
        frame = Frame()
        code = frame.forward
        params = tuple(Var(v.name, type_of(v), type_of(v), v.span) for v in fn.params)
        types = ty.params[len(params) :]
        tangents = tuple(Var(f"d{v.name}", t, t) for v, t in zip(fn.params, types, strict=True))
        yield self.captured(fn, frame)
        entered = self.entered
        for v, p, d in zip(fn.params, params, tangents, strict=True):
            self.env[v] = self.moving(frame, p, d, type_of(v), v.span or fn.span)
        result = yield self.block(self.looked_through(as_block(fn.body)), frame)
        if not moves(result, self):
            raise nothing_to_differentiate(fn)
        value = self.dropped(result, frame, fn.span)
        tangent = self.found(result, frame, fn.span)
        held: tuple[Expr, ...] = (*entered, *params, value)
        for atom in held:
            self.settle.convert(code, atom, type_of(atom), fn.span)
        body = code.block(code.bind(tuple_of((value, tangent))))
        return Function((*params, *tangents), body, ty.ret, fn.type_params, ty=ty, span=fn.span)

    def moving(self, frame: Frame, atom: Expr, tangent: Expr, ty: Type, span: Span | None) -> Value:
        """An argument with its tangent."""
        if not self.lifting.changes(ty):
            return Other(ty, atom)
        match ty:
            case TensorType():
                return Dual(ty, frame, atom, tangent=tangent)
            case TupleType():
                code = frame.forward
                parts = (
                    self.moving(frame, code.bind(project(atom, n)), code.bind(project(tangent, n)), t, span)
                    for n, t in enumerate(ty.fields)
                )
                return Fields(ty, frame, tuple(parts), None, atom)
            case FuncType() | RefType():
                return self.argument(frame, atom, ty, span)
            case _:
                both = frame.forward.bind(tuple_of((atom, tangent)))
                return Other(ty, self.zip.convert(frame.forward, both, ty, span))

    def found(self, value: Value, frame: Frame, span: Span | None) -> Expr:
        """The tangent of a value, of type `typing.cotangent_type`."""
        code = frame.forward
        match value:
            case Tensor():
                return value.ref
            case Fields():
                return code.bind(tuple_of([self.found(f, frame, span) for f in value.fields]))
            case Other(ty=TupleType() as ty):
                fields = (Other(t, code.bind(project(value.whole, n))) for n, t in enumerate(ty.fields))
                return code.bind(tuple_of([self.found(f, frame, span) for f in fields]))
            case Other(ty=FuncType() | RefType()):
                return code.bind(tuple_of(()))
            case Other():
                return self.tangent.convert(code, value.whole, value.ty, span)


def moves(value: Value, lifter: Lifter) -> bool:
    """Whether a result has anything that has a derivative."""
    match value:
        case Tensor():
            return True
        case Fields():
            return any(moves(f, lifter) for f in value.fields)
        case Other():
            return not isinstance(value.ty, FuncType | RefType) and lifter.lifting.changes(value.ty)
