"""Growing parameters on the way back through a loop.

A loop that puts a row behind a tensor in every iteration has, in iteration ``i``, the first rows of what it has at the end: nothing of
them is kept for the way back, which looks at so many rows of that. The cotangents of all rows are one tensor, too. Its row ``i`` is what
comes back to the row that was made in iteration ``i``: whatever comes later has added to it by then, and what iteration ``i`` finds for
the rows before it is added to those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Attrs, Binding, Call, Expr, Var
from relay.ir.record import record
from relay.ir.types import TensorType, Type
from relay.transform.ad.conversions import zeros_like
from relay.transform.ad.loop_parts import INDEX, integer, row_count
from relay.transform.ad.loops import INSIDE, Loop, Role, Unsuited
from relay.transform.ad.terms import Code, tuple_of
from relay.transform.ad.values import Frame, Value
from relay.transform.build import internal_call, op_call, type_of


@record(slots=True, eq=False)
class _Parameter:
    """One of them. ``base``: where its own rows end, those that it has before the loop; ``cotangents``: of all that it grows to;
    ``after``: these and what an iteration finds. Where the way back reads its rows, ``whole`` is all that it grows to, and ``ends`` a
    column with two numbers for each iteration, between which its rows lay there."""

    param: Var
    base: Var
    cotangents: Var
    after: Expr
    whole: Var | None = None
    ends: Var | None = None

    @property
    def changes(self) -> bool:
        """Whether an iteration finds anything for the rows before its own."""
        return self.after is not self.cotangents


@record(slots=True, eq=False)
class Grown:
    """The growing parameters of a loop, by position; ``index`` is the number of the iteration that the way back goes through."""

    loop: Loop
    params: Sequence[Var]
    index: Var
    of: dict[int, _Parameter] = field(default_factory=dict)

    # -- the way back through an iteration

    def begin(self, frame: Frame, rows: Mapping[int, Value]) -> None:
        """Give the rows that an iteration puts out their cotangents."""
        code = frame.back
        for n in self.loop.having(Role.GROWING):
            ty = cast(TensorType, type_of(self.params[n]))
            all_rows = TensorType((as_dim(DimVar("all")), *_shape(ty)[1:]), ty.dtype)
            base, cotangents = Var("base", INDEX, INDEX), Var("grown", all_rows, all_rows)
            self.of[n] = _Parameter(self.params[n], base, cotangents, cotangents)
            at = code.bind(op_call("add", (self.index, base)))
            row = code.bind(op_call("take", (cotangents, at), {"axis": 0}))
            part = code.bind(op_call("expand_dims", (row,), {"axis": 0}))
            for t in rows[n].tensors():
                frame.give(t, part)

    def end(self, frame: Frame, given: Sequence[Value]) -> None:
        """Add what an iteration has found for the rows that there are by then. Raises Unsuited."""
        for n, parameter in self.of.items():
            (tensor,) = given[n].tensors()
            if tensor.made_ref is not None:
                raise Unsuited(INSIDE)
            found = frame.local(tensor)
            if found is not None:
                before = parameter.cotangents
                added = internal_call("rows.add_from", (before, found, integer(0)), type_of(before))
                parameter.after = frame.back.bind(added, "grown")

    # -- what the way back reads

    @property
    def read(self) -> list[Var]:
        """The parameters whose rows it reads."""
        return [p.param for p in self.of.values() if p.whole is not None]

    @property
    def bound(self) -> set[Var]:
        return {v for p in self.of.values() for v in (p.base, p.cotangents)}

    @property
    def found(self) -> list[Expr]:
        """The cotangents after an iteration, of those that it changes."""
        return [p.after for p in self.of.values() if p.changes]

    @property
    def carried(self) -> list[Var]:
        """The same before it."""
        return [p.cotangents for p in self.of.values() if p.changes]

    @property
    def shared(self) -> list[Var]:
        """What all iterations are given."""
        out: list[Var] = []
        for p in self.of.values():
            out += (p.base,) if p.changes else (p.base, p.cotangents)
            if p.whole is not None and p.ends is not None:
                out += (p.whole, p.ends)
        return out

    def want(self, param: Var) -> None:
        """Have the rows of a parameter as they were in an iteration."""
        parameter = self.of[self.params.index(param)]
        if parameter.whole is None:
            ty, ends = type_of(parameter.cotangents), TensorType((as_dim(DimVar("pairs")), 1), "int64")
            parameter.whole, parameter.ends = Var(param.name, ty, ty, param.span), Var("ends", ends, ends)

    def write(self, code: Code) -> None:
        """Bind the rows that are read as they were in an iteration."""
        for p in self.of.values():
            if p.whole is not None and p.ends is not None:
                at = code.bind(op_call("multiply", (self.index, integer(2))))
                code.bindings.append(Binding(p.param, rows_between(p.whole, p.ends, at, type_of(p.param))))

    # -- around the loop back

    def given(self, code: Code, first: Sequence[Var], cotangents: Mapping[int, Expr]) -> list[Expr]:
        """What `shared` is where the way back begins: ``first`` are the parameters before the loop."""
        out: list[Expr] = []
        for n, p in self.of.items():
            base = code.bind(row_count(code, first[n]), "base")
            out += (base,) if p.changes else (base, cotangents[n])
            if p.whole is not None:
                out += (p.param, _ends(code, p.param, first[n]))
        return out

    @staticmethod
    def own_rows(code: Code, first: Var, cotangents: Expr) -> Expr:
        """The cotangent of the rows that a parameter had before the loop."""
        attrs: Attrs = {"begin": (0,), "end": (_shape(type_of(first))[0],), "axes": (0,)}
        return code.bind(op_call("strided_slice", (cotangents,), attrs), "d")


def _shape(ty: Type) -> tuple[Dim, ...]:
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return ty.shape


def _ends(code: Code, whole: Var, first: Var) -> Expr:
    """Of a parameter that has grown to ``whole``: of each iteration 0 and where its rows ended there, as one column."""
    begin, end = (_shape(type_of(v))[0] for v in (first, whole))
    rows = code.bind(op_call("arange", (), {"start": begin, "stop": end, "step": 1, "dtype": "int64"}))
    ends = code.bind(op_call("expand_dims", (rows,), {"axis": 1}))
    pairs = code.bind(tuple_of((code.bind(zeros_like(ends)), ends)))
    joined = code.bind(op_call("concatenate", (pairs,), {"axis": 1}))
    return code.bind(op_call("reshape", (joined,), {"newshape": (-1, 1)}), "ends")


def rows_between(data: Expr, offsets: Expr, at: Expr, ty: Type) -> Call:
    """The rows of ``data`` between number ``at`` in a column of offsets and the next one. A view."""
    return internal_call("rows.slice", (data, offsets, at), ty, MappingProxyType({"clause": 0, "of_function": False}))
