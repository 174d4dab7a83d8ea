"""The gradient of loops: what the way back reads of an iteration is kept in rows of tensors, and the way back is a loop too.

A function that calls itself last is a loop, and one iteration is differentiated like any straight-line program (`Reverse`).
Where the general scheme keeps a backpropagator for each iteration, here

* the loop forward, ``f.forward``, also puts what the way back will read behind growing tensors (the *tapes*: one row an iteration);
* the loop back, ``f.back``, counts down, reads row ``i`` and turns the cotangents of the state after an iteration into those before;
* the cotangent of what all iterations share is a sum over iterations. Where its terms are sums over rows themselves (the weights'
  cotangent in a matrix product is), the sum over all iterations is the same operator on the rows of all of them, once, after the
  loop: the loop back only puts its operands behind tensors too.

So a recurrent network's gradient has one product for each of its weights, whatever the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING, cast

from relay.ir.dim import ANY, DimVar, as_dim
from relay.ir.expr import Binding, Block, Call, Expr, Var
from relay.ir.record import record
from relay.ir.trampoline import run
from relay.ir.types import TensorType, TupleType, Type, mentions_any
from relay.transform.ad.conversions import zeros_like
from relay.transform.ad.loop_code import Lifted, LoopWriter, Written
from relay.transform.ad.loop_parts import call_of, instance, integer, no_rows, room, solved
from relay.transform.ad.loop_trips import trip_count
from relay.transform.ad.loops import Loop, Role, Unsuited, loop_of, tensors_of
from relay.transform.ad.terms import Code, project
from relay.transform.ad.values import Frame, Value
from relay.transform.blocks import is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.name_dims import named

if TYPE_CHECKING:
    from relay.transform.ad.reverse import Reverse

# The activity of the tensors in the fixed parameters decides what the way back has to find.
_Key = tuple[str, tuple[bool, ...]]


@record(slots=True, eq=False)
class Loops:
    """The loops of a module, as they are met."""

    reverse: Reverse
    # Why functions are left to the general scheme.
    why: dict[str, str] = field(default_factory=dict)
    writing: bool = False  # whether an iteration is being lifted
    fixed: frozenset[Var] = frozenset()  # what all iterations of that loop share
    _loops: dict[str, Loop | None] = field(default_factory=dict)
    _written: dict[_Key, Written | None] = field(default_factory=dict)
    _rooms: Iterator[int] = field(default_factory=count)

    def has(self, name: str) -> bool:
        """Whether a function is a loop, as far as its form tells."""
        if name not in self._loops:
            self._loops[name] = self.loop(name)
        return self._loops[name] is not None

    def call(self, e: Call, name: str, args: Sequence[Value], frame: Frame) -> Value | None:
        """The call of a loop, with the way back through it; None where the general scheme is to be used."""
        loop = self._loops[name] if self.has(name) else None
        if loop is None or len(e.type_args) != len(loop.function.type_params):
            return None
        ty = type_of(e)
        if not any(t.active for a in args for t in a.tensors()):
            result = frame.forward.bind(Call(e.fn, tuple(a.primal for a in args), e.attrs, e.type_args, ty, e.span))
            return self.reverse.argument(frame, result, ty, e.span, active=False)
        key = name, tuple(t.active for a in args for t in a.tensors())
        if key not in self._written:
            self._written[key] = None  # while it is written: a call of itself in there is no loop
            self._written[key] = self.written(loop, [[t.active for t in a.tensors()] for a in args])
        written = self._written[key]
        return None if written is None else self.applied(e, written, args, ty, frame)

    def loop(self, name: str) -> Loop | None:
        """A function as a loop, its variables its own: a call of it may be met while the function itself is being lifted."""
        function = self.reverse.functions.known[name]
        try:
            return loop_of(
                name, function if is_primitive(function) else Copier().function(function), self.reverse.lifting
            )
        except Unsuited as reason:
            self.why[name] = str(reason)
            return None

    def written(self, loop: Loop, active: list[list[bool]]) -> Written | None:
        before, self.writing = (self.writing, self.fixed), True
        try:
            return LoopWriter(self.lift(loop), active, self.reverse.functions).write()
        except Unsuited as reason:
            self.why[loop.name] = str(reason)
            return None
        finally:
            self.writing, self.fixed = before

    def lift(self, loop: Loop) -> Lifted:
        # A size that is not known gets a name: where rows are read, the way back asks for it.
        types = [cast(Type, named(type_of(p), p.name)) for p in loop.function.params]
        params = tuple(Var(p.name, t, t, p.span) for p, t in zip(loop.function.params, types, strict=True))
        reverse = self.reverse
        self.fixed = frozenset(params[n] for n in loop.having(Role.FIXED))
        whole = Block((*loop.before, *loop.again, *loop.leave.bindings), loop.cond, type_of(loop.cond))
        reverse.looked_through(whole, *loop.call.args, *loop.rows.values(), loop.leave.result)

        def begun() -> tuple[Frame, list[Value], Value]:
            frame = Frame()
            given: list[Value] = []
            for p, new in zip(loop.function.params, params, strict=True):
                reverse.env[p] = reverse.argument(frame, new, type_of(new), p.span)
                given.append(reverse.env[p])
            return frame, given, run(reverse.block(Block(loop.before, loop.cond, type_of(loop.cond)), frame))

        def ended(frame: Frame, bindings: Sequence[Binding], ends: Sequence[Expr]) -> list[Value]:
            run(reverse.block(Block(tuple(bindings), ends[0], type_of(ends[0])), frame))
            return [reverse.atom(a, frame) for a in ends]

        again, given, cond = begun()
        before = len(again.forward.bindings)
        args = ended(again, loop.again, (*loop.call.args, *loop.rows.values()))
        leave, left, _ = begun()
        (result,) = ended(leave, loop.leave.bindings, (loop.leave.result,))
        count = len(loop.call.args)
        rows = dict(zip(loop.rows, args[count:], strict=True))
        return Lifted(loop, params, again, before, cond.primal, given, args[:count], rows, leave, left, result)

    def reserved(self, code: Code, tape: Expr, rows: Expr) -> Expr:
        """A tape with room for so many rows."""
        return code.bind(room(tape, rows, next(self._rooms)), "tape")

    def sized(self, name: str, value: Value, frame: Frame) -> Value:
        """A value under a type with names for the sizes of its tensors that are not known."""
        ty = named(value.ty, name)
        return value if ty is None or ty is value.ty else self.reverse.cast(Var(name, None, ty), value, frame)

    def applied(self, e: Call, written: Written, args: Sequence[Value], ty: Type, frame: Frame) -> Value | None:
        """The call of the loop forward; on the way back, the call of what leads back through it. None where sizes of what is kept are
        not known here."""
        code = frame.forward
        dims = dict(zip(written.dims, e.type_args, strict=True))
        params = written.loop.function.params
        if any(d is ANY for d in dims.values()):
            # The tapes need the sizes of their rows: what only an argument's tensor tells gets a name.
            args = [self.sized(p.name, a, frame) for p, a in zip(params, args, strict=True)]
            dims = solved(dims, map(type_of, params), (a.ty for a in args))
        rows_of = [cast(TensorType, instance(t, dims)) for t in written.tapes]
        if any(map(mentions_any, rows_of)):
            return None
        tapes: list[Expr] = [code.bind(no_rows(t), "tape") for t in rows_of]
        given = [a.primal for a in args]
        started = list(given)
        trips = trip_count(code, written.loop, given, dims)
        if trips is not None:
            tapes[: written.even] = [self.reserved(code, t, trips) for t in tapes[: written.even]]
            for n in written.loop.having(Role.GROWING):
                started[n] = self.reserved(code, given[n], trips)
        call = call_of(written.forward, (*started, integer(0), *tapes), dims, e.span)
        assert isinstance(call.ty, TupleType)
        # The result's type here may name sizes that nothing but the result tells; all even tapes are of one length.
        first = len(call.ty.fields) - len(tapes)
        rows = as_dim(DimVar("rows", gradual=True))
        fields = list(call.ty.fields)
        for n in range(first, first + written.even):
            tape = fields[n]
            assert isinstance(tape, TensorType) and isinstance(tape.shape, tuple)
            fields[n] = TensorType((rows, *tape.shape[1:]), tape.dtype)
        made = code.bind(replace(call, ty=TupleType((ty, *fields[1:]))), "loop")
        result = self.reverse.argument(frame, code.bind(project(made, 0)), ty, e.span)
        # What is kept is taken out here, where the size that the tapes share is told: the way back may be another function.
        kept = [code.bind(project(made, n + 1)) for n in range(written.kept)]
        leaves = list(result.tensors())
        assert len(leaves) == len(tensors_of(ty))

        shared = {d: a for d, a in dims.items() if d in written.fixed}

        def back(f: Frame) -> None:
            found = [f.total(t) for t in leaves]
            if all(d is None for d in found):
                return
            whole = [f.back.bind(zeros_like(t.primal)) if d is None else d for t, d in zip(leaves, found, strict=True)]
            out = f.back.bind(call_of(written.back, (*given, *kept, *whole), shared, e.span), "loop")
            for n, (param, number) in enumerate(written.found):
                f.give(list(args[param].tensors())[number], f.back.bind(project(out, n), "d"))

        frame.tape.append(back)
        return result
