"""Operator calls in inference: run the relation now, or queue it until its unknowns are solved.

A composition is typed by inferring the expression that it stands for, once per signature (`Expand`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import cast

from relay import te
from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.dim import dim_vars
from relay.ir.expr import Attr, Attrs, Function, attrs_key
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import FuncType, Relation, Type, TypeArg, TypeParam, TypeVar
from relay.op.registry import Operator
from relay.typing.generic import generic_result, parameters
from relay.typing.relations import (
    MEMO,
    Signature,
    check_arity,
    demand_error,
    located,
    signature,
    solved_signature,
    unprovable,
)  # fmt: skip
from relay.typing.solver import Mismatch, Mode, Solver
from relay.typing.text import type_text
from relay.typing.waiting import Waiting

Expand = Callable[[Operator, tuple[Type, ...], Attrs], Function]
Assumption = tuple[str, tuple[TypeArg, ...], object]
Complete = Callable[[TypeVar, Type, Span | None, str], None]


def relation_attrs(relation: Relation) -> dict[str, Attr]:
    """The attributes of a constraint as those of a call."""
    return dict(cast("tuple[tuple[str, Attr], ...]", relation.attrs))


@record(slots=True, eq=False)
class OperatorTyping:
    """``assumed``: the constraints (`where`) of the functions around, as operator, types and attributes."""

    solver: Solver
    complete: Complete
    expand: Expand
    assumed: list[Assumption] = field(default_factory=list)

    def call(self, op: Operator, args: tuple[Type, ...], attrs: Attrs, span: Span | None) -> Type:
        """The result type of an operator on these; a relation is queued when they are not known well enough."""
        key = (op, args, attrs_key(attrs))
        done = MEMO.get(key)
        if done is not None and not done.demands:
            return done.result
        try:
            check_arity(op, len(args))
        except TypeError_ as e:
            raise located(e, span) from None
        context = f"the result of {op.name}"
        assumed = tuple(self.assumed)

        def relation(last: bool) -> Type | tuple[TypeParam, ...]:
            self.solver.place = (span, f"operator {op.name}")
            try:
                return self._relation(op, args, attrs, assumed, last=last)
            except RelayError as e:
                raise located(e, span) from None
            except Mismatch as e:
                raise e.error(span, f"operator {op.name}") from None

        got = relation(False)
        if not isinstance(got, tuple):
            return got
        result = self.solver.fresh(op.name)
        self.solver.outputs.add(result)

        def attempt(last: bool) -> Waiting:
            got = relation(last)
            if isinstance(got, tuple):
                return got
            self.complete(result, got, span, context)
            return None

        def what() -> str:
            return f"the call {op.name}({', '.join(type_text(self.solver.resolve(a)) for a in args)})"

        self.solver.queue.defer(attempt, what, span, (*args, result), got)
        return result

    def _relation(
        self,
        op: Operator,
        args: tuple[Type, ...],
        attrs: Attrs,
        assumed: tuple[Assumption, ...],
        *,
        last: bool,
    ) -> Type | tuple[TypeParam, ...]:
        """Run an operator's relation: the result, or the unknowns that have to be solved before."""
        solver = self.solver
        now = tuple(cast(Type, solver.resolve(a)) for a in args)
        for name, given, key in reversed(assumed):
            # A constraint (`where`) of an enclosing function promises the output for these inputs.
            if name == op.name and given[:-1] == now and key == attrs_key(attrs):
                return cast(Type, given[-1])
        unknown = [v for a in now for v in solver.unknowns(a)]
        blocking = tuple(v for v in unknown if isinstance(v, TypeVar))
        if blocking:
            return blocking
        if parameters(now):
            if unknown:
                return tuple(unknown)
            return generic_result(op, now, attrs, self.solved)
        if not unknown:
            return self.solved(op, now, attrs)
        if op.kind in ("composition", "routine"):
            return tuple(unknown)
        try:
            got = signature(op, now, attrs, (lambda _: False) if last else solver.is_unknown)
        except te.Undetermined as e:
            return e.variables
        self._demand(op, now, got)
        return cast(Type, solver.resolve(got.result))

    def solved(self, op: Operator, args: tuple[Type, ...], attrs: Attrs) -> Type:
        """The result on solved types, its demands checked. Raises TypeError_, ShapeError or OperatorError."""
        if op.kind == "composition":
            return cast(FuncType, self.expand(op, args, attrs).ty).ret
        got = solved_signature(op, args, attrs)
        self._demand(op, args, got)
        return got.result

    def _demand(self, op: Operator, args: tuple[Type, ...], got: Signature) -> None:
        """Unify, leave to run time, or refuse what a definition demands of its sizes."""
        solver = self.solver
        for demand in got.demands:
            # A demand about a dim that is `?` is checked when the program runs.
            if demand.relation == "==" and not any(
                v in got.gradual for d in (demand.left, demand.right) for v in dim_vars(d)
            ):
                left, right = solver.resolve_dim(demand.left), solver.resolve_dim(demand.right)
                if any(v in solver.unknown_dims for d in (left, right) for v in dim_vars(d)):
                    solver.relate_dims(left, right, Mode.GRADUAL, f"{demand.why}: ")
                elif not unprovable(te.Demand(left, right, demand.why)):
                    raise demand_error(op, args, demand)
