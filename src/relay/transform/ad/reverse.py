"""Reverse mode over the whole language.

The scheme is that of the papers (Roesch 2020, chapter 4 and figure 4.1; after Pearlmutter and Siskind 2008): values are
paired with references to their cotangents, and functions return backpropagators. Two things differ, so that little is
left of it at run time. The way back is written per block: the cotangent of a tensor that only the block's own operators
use is a local variable, and a reference exists only where a tensor leaves its block (into a call, a branch, a closure, a
data structure). And the backpropagator is what a function, or a branch, returns besides its result, instead of one
reference that everything updates: going back calls them in reverse order. So the gradient of a program without calls and
control flow is straight-line code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    If,
    OpRef,
    Var,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step
from relay.ir.types import FuncType, RefType, TupleType, Type
from relay.op.custom_gradients import has_declared_rule
from relay.transform.ad.activity import Activity
from relay.transform.ad.branches import branch_again
from relay.transform.ad.conversions import Collect, Conversion, Drop, Lift, Seed, ones, zeros_like
from relay.transform.ad.kept_rows import KeptRows, Term, no_rows, put, term_of, total
from relay.transform.ad.lifter import Lifter, fitting, nothing_to_differentiate
from relay.transform.ad.loop_gradient import Loops
from relay.transform.ad.terms import BACK, UNIT, Code, project, tuple_of, written
from relay.transform.ad.values import Fields, Frame, Other, Tensor, Value
from relay.transform.blocks import as_block
from relay.transform.build import type_of


@record(slots=True, eq=False)
class Reverse(Lifter):
    """Lifts functions to ones that return their result and their backpropagator."""

    # What may put rows into lists: not where the derivative is differentiated again.
    once: bool = True
    seed: Seed = field(init=False)
    collect: Collect = field(init=False)
    loops: Loops = field(init=False)
    kept: KeptRows = field(init=False)

    def __post_init__(self) -> None:
        self.activity = Activity(self.functions.known, self.lifting)
        self.lift = Lift(self.lifting, self.functions)
        self.drop = Drop(self.lifting, self.functions, lift=self.lift)
        self.seed = Seed(self.lifting, self.functions)
        self.collect = Collect(self.lifting, self.functions)
        self.loops = Loops(self)
        self.kept = KeptRows(self.functions.known, self.rule, self.loops.has)

    def loop(self, e: Call, name: str, args: Sequence[Value], frame: Frame) -> Value | None:
        return self.loops.call(e, name, args, frame)

    def branch(self, var: Var, e: If, frame: Frame) -> Value | None:
        return branch_again(self, var, e, frame) if self.loops.writing else None

    def reasons(self) -> dict[str, tuple[str, str]]:
        """Of lifted global functions that are no loops: whose they are, and why not."""
        why = self.loops.why
        return {made.name: (name, why[name]) for (name, _, _), made in self.made.items() if name in why}

    def conversions(self) -> Sequence[Conversion]:
        return (self.lift, self.drop, self.seed, self.collect)

    def tensor(
        self, ty: Type, frame: Frame, primal: Expr | None, pair: Expr | None = None, active: bool = True
    ) -> Tensor:
        return Tensor(ty, frame, primal, pair, active)

    def ends(self, frame: Frame, whole: Expr) -> Expr:
        self.close(frame)
        return frame.forward.bind(tuple_of((whole, self.backpropagator(frame))))

    def leaves(self, frames: list[Frame], results: list[Expr], ty: Type) -> tuple[list[Block], Type, bool]:
        for f in frames:
            self.close(f)
        lifted = self.lifting.type(ty)
        returns = any(f.back.bindings for f in frames)
        blocks = []
        for f, result in zip(frames, results, strict=True):
            if returns:
                result = f.forward.bind(tuple_of((result, self.backpropagator(f))))
            blocks.append(f.forward.block(result))
        return blocks, self.lifting.result(lifted) if returns else lifted, returns

    @staticmethod
    def close(frame: Frame) -> None:
        """Write the way back through a block that is done; what is found of other blocks' tensors goes to references."""
        frame.go_back()
        for tensor in list(frame.parts):
            frame.flush(tensor)

    def backpropagator(self, frame: Frame) -> Expr:
        if not frame.back.bindings:
            return frame.forward.bind(_nothing())
        only = frame.back.bindings[0].value
        if len(frame.back.bindings) == 1 and isinstance(only, Call) and not only.args and only.ty == UNIT:
            return only.fn  # a backpropagator that only calls another one is that one
        unit = frame.back.bind(tuple_of(()))
        return frame.forward.bind(Function((), frame.back.block(unit), UNIT, ty=BACK), "back")

    def received(self, frame: Frame, whole: Expr, ty: Type) -> Value:
        """A lifted value that comes from elsewhere. On the way back its references get what this block found."""
        value = self.parts(frame, whole, ty)
        tensors = tuple(value.tensors())
        if tensors:

            def back(f: Frame) -> None:
                for t in tensors:
                    f.flush(t)

            frame.tape.append(back)
        return value

    def returned(self, result: Expr, ty: Type, frame: Frame) -> Value:
        """The value in a pair with its backpropagator."""
        code = frame.forward
        back = code.bind(project(result, 1), "back")

        def call_back(f: Frame) -> None:
            f.back.bind(Call(back, (), ty=UNIT), "_")

        frame.tape.append(call_back)
        return self.received(frame, code.bind(project(result, 0)), ty)

    def cast(self, var: Var, value: Value, frame: Frame) -> Value:
        ty = type_of(var)
        if isinstance(value, Other):
            new = Var(var.name, None, self.lifting.type(ty), var.span)
            frame.forward.bindings.append(Binding(new, value.whole))
            return self.received(frame, new, ty)
        plain = Var(var.name, None, ty, var.span)
        frame.forward.bindings.append(Binding(plain, value.primal))
        return self.recast(value, plain, frame)

    def recast(self, value: Value, new: Expr, frame: Frame) -> Value:
        ty = type_of(new)
        if isinstance(value, Other):
            return value if self.lifting.changes(value.ty) else Other(ty, new)
        if isinstance(value, Fields):
            parts = [frame.forward.bind(project(new, n)) for n in range(len(value.fields))]
            fields = (self.recast(f, p, frame) for f, p in zip(value.fields, parts, strict=True))
            return Fields(ty, frame, tuple(fields), None, new)
        out = Tensor(ty, frame, new, active=value.active)

        def back(f: Frame) -> None:
            found = f.total(out)
            if found is not None:
                f.give(value, found)

        if value.active:
            frame.tape.append(back)
        return out

    def operator(self, var: Var, e: Call, op: OpRef, args: list[Value], frame: Frame) -> Value:
        code, ty = frame.forward, type_of(e)
        operands = tuple(self.unlifted(a, e.span) for a in args)
        made = Call(op, operands, e.attrs, e.type_args, ty, e.span)
        result = Var(var.name, None, type_of(var), var.span)
        code.bindings.append(Binding(result, made))
        inputs = self.flat(op.name, args)
        active = any(isinstance(i, Tensor) and i.active for i in inputs)
        value, outputs = self.outputs(result, type_of(var), active, frame)
        if active and any(isinstance(o, Tensor) for o in outputs):

            def back(f: Frame) -> None:
                found = [f.total(o) if isinstance(o, Tensor) else None for o in outputs]
                if all(d is None for d in found):
                    return
                whole = [
                    f.back.bind(zeros_like(o.primal)) if d is None else d for o, d in zip(outputs, found, strict=True)
                ]
                given = [o.primal for o in outputs]
                types = [type_of(a) for a in operands]
                for n, i in enumerate(inputs):
                    if isinstance(i, Tensor) and i.active:
                        part = self.cotangent(e, op.name, operands, types, given, whole, n)
                        if part is not None:
                            if self.put(f, i, part):
                                continue
                            slope = written(f.back, part)
                            if has_declared_rule(op.name):
                                fitting(op.name, n, type_of(slope), i.ty, e.span)
                            f.give(i, slope)

            frame.tape.append(back)
        return value

    # -- rows in place of terms of a cotangent

    def with_lists(self, e: Call, name: str, args: Sequence[Value], frame: Frame) -> Mapping[int, Expr]:
        out: dict[int, Expr] = {}
        function = self.functions.known[name]
        if not self.once or len(e.type_args) != len(function.type_params):
            return out
        for n, a in enumerate(args):
            if not isinstance(a, Tensor) or not a.active:
                continue
            starts = self.kept.starts(self.within, (name, n))
            if not starts and not a.lists:
                continue
            terms = [t.at(function, e.type_args) for t in self.kept.terms((name, n))]
            new = [t for t in terms if t not in a.lists]
            if not terms or (new and not starts) or not all(t.is_known for t in new):
                continue
            refs = [a.lists.get(t) or self.new_list(a, t, frame) for t in terms]
            out[n] = frame.forward.bind(tuple_of((a.whole, *refs)))
        return out

    def new_list(self, tensor: Tensor, term: Term, frame: Frame) -> Expr:
        """A list of rows that what is called next fills on the way back; then they are added to the tensor's cotangent."""
        ref = no_rows(frame.forward, term)
        frame.tape.append(lambda f: f.give(tensor, total(f.back, ref, term, tensor.primal)))
        return ref

    def listed_type(self, name: str, number: int, lifted: Type) -> Type:
        return TupleType((lifted, *(t.reference for t in self.kept.terms((name, number)))))

    def listed(self, name: str, number: int, param: Var, ty: Type, frame: Frame) -> Value:
        value = self.received(frame, frame.forward.bind(project(param, 0)), ty)
        assert isinstance(value, Tensor)
        terms = self.kept.terms((name, number))
        value.lists = {t: frame.forward.bind(project(param, 1 + n)) for n, t in enumerate(terms)}
        return value

    @staticmethod
    def put(frame: Frame, tensor: Tensor, part: Expr) -> bool:
        """Put the rows of a part of a cotangent into a list of the tensor's; whether there is one for it."""
        found = term_of(part, tensor.primal) if tensor.lists else None
        if found is None or found[0] not in tensor.lists:
            return False
        put(frame.back, tensor.lists[found[0]], *found)
        return True

    # -- the gradient of one function

    def gradient(self, fn: Function, ty: FuncType) -> Step[Function]:
        """``fn(x...) { (value, (cotangents...)) }`` of a function of plain values, for ones as the result's cotangent.

        Captured variables are constants. ``ty`` is the type of the result.
        """
        self.env = {}
        frame = Frame()
        code = frame.forward
        params = tuple(Var(v.name, type_of(v), type_of(v), v.span) for v in fn.params)
        yield self.captured(fn, frame)
        for v, p in zip(fn.params, params, strict=True):
            self.env[v] = self.argument(frame, p, type_of(v), v.span or fn.span)
        given = [self.env[v] for v in fn.params]
        result = yield self.block(self.looked_through(as_block(fn.body)), frame)
        value = self.dropped(result, frame, fn.span)
        code.open = False
        if not self.start(result, frame, fn.span):
            raise nothing_to_differentiate(fn)
        frame.go_back()
        back = frame.back
        cotangents = [self.collected(v, frame, fn.span) for v in given]
        out = back.bind(tuple_of((value, back.bind(tuple_of(cotangents)))))
        body = Block((*code.bindings, *back.bindings), out, type_of(out))
        return Function(params, body, ty.ret, fn.type_params, ty=ty, span=fn.span)

    def start(self, value: Value, frame: Frame, span: Span | None) -> bool:
        """Give every tensor of the result a cotangent of ones; whether there is any."""
        match value:
            case Tensor():
                frame.give(value, ones(frame.back, value.primal))
                return True
            case Fields():
                return any([self.start(f, frame, span) for f in value.fields])
            case Other():
                if isinstance(value.ty, FuncType | RefType) or not self.lifting.changes(value.ty):
                    return False
                self.seed.convert(frame.back, value.whole, value.ty, span)
                return True

    def collected(self, value: Value, frame: Frame, span: Span | None) -> Expr:
        """The cotangent of an argument, of type `typing.cotangent_type`."""
        code = frame.back
        match value:
            case Tensor():
                found = frame.total(value)
                return code.bind(zeros_like(value.primal)) if found is None else found
            case Fields():
                return code.bind(tuple_of([self.collected(f, frame, span) for f in value.fields]))
            case Other(ty=TupleType() as ty):
                fields = (Other(t, code.bind(project(value.whole, n))) for n, t in enumerate(ty.fields))
                return code.bind(tuple_of([self.collected(f, frame, span) for f in fields]))
            case Other(ty=FuncType() | RefType()):
                return code.bind(tuple_of(()))
            case Other():
                return self.collect.convert(code, value.whole, value.ty, span)


def _nothing() -> Function:
    """The backpropagator that does nothing."""
    code = Code()
    return Function((), code.block(code.bind(tuple_of(()))), UNIT, ty=BACK)
