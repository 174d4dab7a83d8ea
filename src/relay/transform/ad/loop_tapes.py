"""What a loop's way back reads, and how it lies in memory: tapes, with one value or several rows for every iteration.

A value that has the same sizes in all iterations is a row of its tape. Values with more or fewer rows in every iteration stand one
after the other, with a table of where those of each iteration begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from relay.ir.dim import ANY, Dim, DimVar, as_dim, as_var, dim_add
from relay.ir.expr import Expr, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type, TypeArg
from relay.transform.ad.loop_parts import longer, row_count
from relay.transform.ad.loops import keeps
from relay.transform.ad.terms import Code, tuple_of
from relay.transform.build import op_call, type_of
from relay.transform.dims import DimUses


@record(frozen=True, slots=True, eq=False)
class Tapes:
    """The tapes of a loop whose iterations share the dims ``fixed``."""

    fixed: frozenset[DimVar]
    _uses: DimUses = field(default_factory=DimUses, repr=False)

    def count(self, v: Var) -> DimVar | None:
        """The number of rows of a value that has more or fewer of them in every iteration: these stand one after the other in a tape.
        None for a value that has the same sizes in all iterations."""
        ty = type_of(v)
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not ty.shape:
            return None
        if keeps(ty, self.fixed) or not keeps(TensorType(ty.shape[1:], ty.dtype), self.fixed):
            return None
        return as_var(ty.shape[0])

    def row_type(self, v: Var) -> TensorType:
        """The type of one row of a tape."""
        ty = type_of(v)
        assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
        return ty if self.count(v) is None else TensorType(ty.shape[1:], ty.dtype)

    def tape_type(self, v: Var, rows: Dim, totals: Mapping[DimVar, Dim] | None = None) -> TensorType:
        """The type of a tape of ``rows`` iterations; of all ``totals`` rows where their number differs."""
        ty = type_of(v)
        assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
        count = self.count(v)
        if count is None:
            return TensorType((rows, *ty.shape), ty.dtype)
        return TensorType((ANY if totals is None else totals[count], *ty.shape[1:]), ty.dtype)

    def tape(self, v: Var, rows: Dim, totals: Mapping[DimVar, Dim]) -> Var:
        """A variable for a tape of that type."""
        ty = self.tape_type(v, rows, totals)
        return Var(f"{v.name}s", ty, ty)

    def totals(self, values: Iterable[Var]) -> dict[DimVar, Dim]:
        """A new dim for the number of rows in the tapes of all values that share one."""
        found = dict.fromkeys(d for v in values if (d := self.count(v)) is not None)
        return {d: as_dim(DimVar(d.name)) for d in found}

    def starts(self, counts: Sequence[DimVar], rows: Dim) -> list[Var]:
        """For each of ``counts``, numbers of rows that differ: where those of every iteration begin in the tapes."""
        ty = TensorType((rows,), "int64")
        return [Var("starts", ty, ty) for _ in counts]

    def longer(self, code: Code, tape: Expr, v: Var) -> Expr:
        """A tape with the value of one more iteration."""
        if self.count(v) is None:
            return longer(code, tape, v)
        return code.bind(op_call("concatenate", (code.bind(tuple_of((tape, v))),), {"axis": 0}), "tape")

    def following(
        self, dims: Sequence[DimVar], done: Dim, totals: Mapping[DimVar, Dim], given: Mapping[DimVar, TypeArg]
    ) -> tuple[TypeArg, ...]:
        """The dims of the next iteration, where the tapes are longer."""
        more = {as_var(total): dim_add(total, as_dim(d)) for d, total in totals.items()}
        more[as_var(done)] = dim_add(done, 1)
        return tuple(more[d] if d in more else given.get(d, as_dim(d)) for d in dims)

    def offsets(self, code: Code, starts: Var, tape: Var) -> Expr:
        """Where the rows of each iteration begin, and the end of them all, as one column."""
        end = code.bind(op_call("expand_dims", (code.bind(row_count(code, tape)),), {"axis": 0}))
        joined = code.bind(op_call("concatenate", (code.bind(tuple_of((starts, end))),), {"axis": 0}))
        return code.bind(op_call("reshape", (joined,), {"newshape": (-1, 1)}), "offsets")

    def outside(self, ty: Type) -> Type:
        """A type where the loop has ended: only sizes that all iterations share have names."""
        if isinstance(ty, TupleType):
            return TupleType(tuple(map(self.outside, ty.fields)))
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            return ty
        known = [all(v in self.fixed for v in self._uses.of_type(TensorType((d,), ty.dtype))) for d in ty.shape]
        return TensorType(tuple(d if k else ANY for d, k in zip(ty.shape, known, strict=True)), ty.dtype)
