"""Faults put into differentiation and partial evaluation on purpose. The checks of this folder must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relay.ir.expr import Call, Constant, Expr, If, Match, RefNew, RefRead, RefWrite, Tuple
from relay.transform import dead_references, partial_eval
from relay.transform.ad import branches, conversions, forward, lifter, loop_terms, reverse, values
from relay.transform.ad.conversions import Collect, Lift, Seed, zeros_like
from relay.transform.ad.forward import Dual, Forward, Tangent, Zip
from relay.transform.ad.lifter import Lifter
from relay.transform.ad.reverse import Reverse
from relay.transform.ad.terms import project
from relay.transform.ad.values import Fields, Frame, Tensor, Value
from relay.transform.blocks import as_block
from relay.transform.build import internal_call

Patch = pytest.MonkeyPatch
Evaluator = partial_eval._Evaluator
Marking = dead_references._Marking


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault: how it is put in, and the program to try first, which found it: the others come where it does not any more."""

    name: str
    apply: Callable[[Patch], None]
    first: str | int = "operators"


MUTATIONS: list[Mutation] = []


def fault(name: str, first: str | int = "operators") -> Callable[[Callable[[Patch], None]], None]:
    def add(apply: Callable[[Patch], None]) -> None:
        MUTATIONS.append(Mutation(name, apply, first))

    return add


def everywhere(patch: Patch, name: str, instead: Callable[..., Any]) -> None:
    """Replace a function in every module of the transformation that has it."""
    for module in (conversions, values, reverse, forward, lifter):
        if hasattr(module, name):
            patch.setattr(module, name, instead)


# -- loops


@fault("what a branch inside an iteration reads has no cotangent", "a branch in the step")
def _(patch: Patch) -> None:
    before = branches._mirrored

    def mirrored(reverse: Reverse, value: Value, frame: Frame) -> Value:
        made = before(reverse, value, frame)
        return replace(made, active=False) if isinstance(made, Tensor) else made

    patch.setattr(branches, "_mirrored", mirrored)


@fault("rows of all iterations meet in opposite orders", "recurrent")
def _(patch: Patch) -> None:
    patch.setattr(loop_terms.Rows, "turned", lambda self, rows: frozenset())


# -- reverse mode


@fault("only the last part of a cotangent counts")
def _(patch: Patch) -> None:
    def give(self: Frame, tensor: Tensor, part: Expr) -> None:
        if tensor.active:
            self.parts[tensor] = [part]

    patch.setattr(Frame, "give", give)


@fault("only the first part of a cotangent counts")
def _(patch: Patch) -> None:
    def local(self: Frame, tensor: Tensor) -> Expr | None:
        parts = self.parts.pop(tensor, None)
        return None if parts is None else parts[0]

    patch.setattr(Frame, "local", local)


@fault("what a reference has is forgotten")
def _(patch: Patch) -> None:
    patch.setattr(Frame, "total", lambda self, tensor: self.local(tensor))


@fault("what is found here is forgotten where there is a reference")
def _(patch: Patch) -> None:
    before = conversions.cotangent
    patch.setattr(values, "cotangent", lambda code, ref, primal, local: before(code, ref, primal, None))


@fault("cotangents of outer tensors stay in a branch")
def _(patch: Patch) -> None:
    patch.setattr(Frame, "flush", lambda self, tensor: self.parts.pop(tensor, None) and None)


@fault("a reference is overwritten instead of added to")
def _(patch: Patch) -> None:
    everywhere(patch, "add", lambda a, b: Call(internal_call("copy", (b,), b.ty).fn, (b,), ty=b.ty))


@fault("backpropagation goes forward")
def _(patch: Patch) -> None:
    def go_back(self: Frame) -> None:
        self.forward.open = False
        for step in self.tape:
            step(self)

    patch.setattr(Frame, "go_back", go_back)


@fault("the backpropagator of a call is not called")
def _(patch: Patch) -> None:
    patch.setattr(
        Reverse,
        "returned",
        lambda self, result, ty, frame: self.received(frame, frame.forward.bind(project(result, 0)), ty),
    )


@fault("the backpropagator of a call is called twice")
def _(patch: Patch) -> None:
    before = Reverse.returned

    def returned(self: Reverse, result: Expr, ty: Any, frame: Frame) -> Any:
        value = before(self, result, ty, frame)
        frame.tape.append(frame.tape[-2] if isinstance(value, Tensor | Fields) else frame.tape[-1])
        return value

    patch.setattr(Reverse, "returned", returned)


@fault("branches have no backpropagator")
def _(patch: Patch) -> None:
    before = Reverse.leaves

    def leaves(self: Reverse, frames: list[Frame], results: list[Expr], ty: Any) -> Any:
        for f in frames:
            f.tape.clear()
        return before(self, frames, results, ty)

    patch.setattr(Reverse, "leaves", leaves)


@fault("functions have no backpropagator")
def _(patch: Patch) -> None:
    before = Reverse.ends

    def ends(self: Reverse, frame: Frame, whole: Expr) -> Expr:
        frame.tape.clear()
        return before(self, frame, whole)

    patch.setattr(Reverse, "ends", ends)


@fault("a received value keeps its cotangent to itself")
def _(patch: Patch) -> None:
    patch.setattr(Reverse, "received", lambda self, frame, whole, ty: self.parts(frame, whole, ty))


@fault("each use of a tensor has a reference of its own")
def _(patch: Patch) -> None:
    before = Tensor.whole.fget  # type: ignore[attr-defined]

    def whole(self: Tensor) -> Expr:
        if self.given is not None and self.pair is None:
            fresh = Tensor(self.ty, self.home, self.given, None, self.active)
            made: Expr = before(fresh)
            return made
        out: Expr = before(self)
        return out

    patch.setattr(Tensor, "whole", property(whole))


@fault("the seed is zeros")
def _(patch: Patch) -> None:
    everywhere(patch, "ones", lambda code, x: code.bind(zeros_like(x)))


@fault("the second field of a result is not seeded")
def _(patch: Patch) -> None:
    before = Reverse.start

    def start(self: Reverse, value: Any, frame: Frame, span: Any) -> bool:
        value = replace(value, fields=value.fields[:1]) if isinstance(value, Fields) else value
        return before(self, value, frame, span)

    patch.setattr(Reverse, "start", start)


@fault("data in a result is not seeded", "a list as the result")
def _(patch: Patch) -> None:
    patch.setattr(Seed, "tensor", lambda self, code, x, t: x)


@fault("the cotangent of data is zeros", "a fold over a list")
def _(patch: Patch) -> None:
    patch.setattr(
        Collect,
        "tensor",
        lambda self, code, x, t: code.bind(zeros_like(code.bind(project(x, 0)) if self.lifting.changes(t) else x)),
    )


@fault("cotangents of operands change places")
def _(patch: Patch) -> None:
    before = Lifter.flat
    patch.setattr(Lifter, "flat", lambda self, name, args: before(self, name, args[::-1]))


@fault("captured tensors are zeros")
def _(patch: Patch) -> None:
    before = Lifter.argument

    def argument(self: Lifter, frame: Frame, atom: Expr, ty: Any, span: Any, active: bool = True) -> Any:
        if not active and self.lifting.changes(ty) and hasattr(ty, "dtype"):
            atom = frame.forward.bind(zeros_like(atom))
        return before(self, frame, atom, ty, span, active)

    patch.setattr(Lifter, "argument", argument)


@fault("data from outside is lifted without its values", "a fold over a list")
def _(patch: Patch) -> None:
    before = Lift.tensor
    patch.setattr(Lift, "tensor", lambda self, code, x, t: before(self, code, code.bind(zeros_like(x)), t))


@fault("functions with tensors are taken for plain ones")
def _(patch: Patch) -> None:
    patch.setattr(Lifter, "plain", lambda self, t: True)


@fault("constructors keep their tags in another order", "a tree")
def _(patch: Patch) -> None:
    from relay.transform.ad.duals import Lifting

    before = Lifting.constructor
    names = {"ad.Leaf": "ad.Branch"}
    patch.setattr(Lifting, "constructor", lambda self, t, name: names.get(n := before(self, t, name), n))


# -- forward mode


@fault("tangents of second operands are dropped")
def _(patch: Patch) -> None:
    before = Forward.transposed

    def transposed(self: Forward, given: Any, outputs: Any, parts: Any, tangents: Any, frame: Frame) -> Any:
        return before(self, given, outputs, parts[:1], tangents[:1], frame)

    patch.setattr(Forward, "transposed", transposed)


@fault("a tensor that leaves its block leaves its tangent behind")
def _(patch: Patch) -> None:
    def ref(self: Dual) -> Expr:
        return self.home.here().bind(zeros_like(self.primal))

    patch.setattr(Dual, "ref", property(ref))


@fault("the tangent of data is its value", "a list as the result")
def _(patch: Patch) -> None:
    patch.setattr(
        Tangent, "tensor", lambda self, code, x, t: code.bind(project(x, 0)) if self.lifting.changes(t) else x
    )


@fault("the direction of data is its value", "a fold over a list")
def _(patch: Patch) -> None:
    from relay.transform.ad.terms import tuple_of

    def tensor(self: Zip, code: Any, x: Expr, t: Any) -> Expr:
        first = code.bind(project(x, 0))
        out: Expr = code.bind(tuple_of((first, first))) if self.lifting.changes(t) else first
        return out

    patch.setattr(Zip, "tensor", tensor)


# -- partial evaluation


@fault("branches are decided the wrong way", "a counter")
def _(patch: Patch) -> None:
    before = Evaluator.evaluate

    def evaluate(self: Any, var: Any, e: Expr, out: Any, todo: Any) -> Expr:
        if isinstance(e, If) and isinstance(cond := self.definition(e.cond), Constant):
            return as_block(e.orelse if cond.data else e.then)
        return before(self, var, e, out, todo)

    patch.setattr(Evaluator, "evaluate", evaluate)


@fault("the store survives calls", "a list as the result")
def _(patch: Patch) -> None:
    patch.setattr(Evaluator, "forget", lambda self, callee: None)


@fault("the store survives branches")
def _(patch: Patch) -> None:
    before = Evaluator.branches

    def branches(self: Any, e: Any, bodies: Any) -> Any:
        store = dict(self.store)
        made = yield from before(self, e, bodies)
        self.store = store
        return made

    patch.setattr(Evaluator, "branches", branches)


@fault("the store is that of the last branch", 3)
def _(patch: Patch) -> None:
    def branches(self: Any, e: Any, bodies: Any) -> Any:
        self.level += 1
        made = []
        for body in bodies:
            made.append((yield self.block(as_block(body))))
        self.level -= 1
        if isinstance(e, If):
            return If(e.cond, made[0], made[1], e.ty, e.span)
        clauses = tuple(replace(c, body=b) for c, b in zip(e.clauses, made, strict=True))
        return Match(e.data, clauses, e.complete, e.ty, e.span)

    patch.setattr(Evaluator, "branches", branches)


@fault("writes are not noticed")
def _(patch: Patch) -> None:
    patch.setattr(Evaluator, "write", lambda self, e: e)


@fault("a reference always holds its first value")
def _(patch: Patch) -> None:
    before = Evaluator.evaluate

    def evaluate(self: Any, var: Any, e: Expr, out: Any, todo: Any) -> Expr:
        if isinstance(e, RefRead) and isinstance(made := self.definition(e.ref), RefNew):
            return made.value
        return before(self, var, e, out, todo)

    patch.setattr(Evaluator, "evaluate", evaluate)


@fault("unknown matches take the first clause that is not refuted")
def _(patch: Patch) -> None:
    before = Evaluator.fits

    def fits(self: Any, pattern: Any, data: Any, bound: Any) -> bool:
        return before(self, pattern, data, bound) is not False

    patch.setattr(Evaluator, "fits", fits)


@fault("fields of tuples come in reverse", "forward over reverse over forward")
def _(patch: Patch) -> None:
    before = Evaluator.evaluate

    def evaluate(self: Any, var: Any, e: Expr, out: Any, todo: Any) -> Expr:
        found = before(self, var, e, out, todo)
        if e.__class__.__name__ == "Proj" and found is not e:
            held = self.definition(e.tuple)  # type: ignore[union-attr]
            assert isinstance(held, Tuple)
            other = held.fields[::-1][e.index]  # type: ignore[union-attr]
            return other if other.ty == found.ty else found
        return found

    patch.setattr(Evaluator, "evaluate", evaluate)


@fault("all writes are dead")
def _(patch: Patch) -> None:
    before = Marking.mark

    def mark(self: Any, binding: Any) -> None:
        if not isinstance(binding.value, RefWrite):
            before(self, binding)

    patch.setattr(Marking, "mark", mark)


@fault("branches without a used value are dead")
def _(patch: Patch) -> None:
    before = Marking.mark

    def mark(self: Any, binding: Any) -> None:
        if binding.var in self.holder and isinstance(self.holder[binding.var].value, If):
            self.needed.add(binding)
            self.todo.append(binding)
        else:
            before(self, binding)

    patch.setattr(Marking, "mark", mark)
