"""What of a program has a row for each step of a sequence: which variables stand for such values, and how one row of them is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, dim_substitute, dim_vars
from relay.ir.expr import Binding, Block, Call, Expr, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.transform.access import read_by_row
from relay.transform.batching.clauses import NotStructural
from relay.transform.batching.lifted import Emitter
from relay.transform.build import op_call, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses

_FIRST = MappingProxyType({"axis": 0})


@record(frozen=True, slots=True, eq=False)
class Rows:
    """What has a row for each step of a sequence of so many: a row's type, and the operator that gives it row by row, where it does not
    stand in the items of a list."""

    size: DimVar
    row: TensorType
    call: Call | None = None


@record(slots=True, eq=False)
class RowValues:
    """The values of a program that are given up for rows: ``sequences`` are the sizes that these are as many as."""

    sequences: frozenset[DimVar]
    # What variables stand for that are not there any more: other atoms; rows, and whether the last comes first; tuples of such; and
    # integers that nothing can be made of.
    names: dict[Var, Expr] = field(default_factory=dict)
    rows: dict[Var, tuple[Rows, bool]] = field(default_factory=dict)
    tuples: dict[Var, Sequence[Expr]] = field(default_factory=dict)
    gone: set[Var] = field(default_factory=set)
    # Sizes that are those of sequences.
    dims: dict[DimVar, Dim] = field(default_factory=dict)
    uses: DimUses = field(default_factory=DimUses)

    def atom(self, e: Expr) -> Expr:
        while isinstance(e, Var) and e in self.names:
            e = self.names[e]
        return e

    def is_of_rows(self, e: Expr) -> bool:
        """Whether a value has a row for each step, or follows from how many there are, or has such values in it."""
        todo = [e]
        while todo:
            e = self.atom(todo.pop())
            if isinstance(e, Var):
                if e in self.rows or e in self.gone:
                    return True
                todo += self.tuples.get(e, ())
        return False

    def sizes(self, values: Iterable[Expr]) -> set[DimVar]:
        """The sequences that values have a row for each step of."""
        out: set[DimVar] = set()
        todo = [*values]
        while todo:
            e = self.atom(todo.pop())
            if isinstance(e, Var):
                if e in self.rows:
                    out.add(self.rows[e][0].size)
                todo += self.tuples.get(e, ())
        return out

    def is_size(self, size: DimVar) -> bool:
        return size in self.sequences or size in self.dims

    def size(self, dim: Dim) -> Dim:
        """A size in the terms of the entry."""
        return dim_substitute(dim, self.dims.get)

    def by_row(self, var: Var, call: Call) -> bool:
        """Whether an operator does the same for each row of its operands."""
        read, ty = read_by_row(call), call.ty
        if read is None or not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not ty.shape:
            return False
        sizes: set[DimVar] = set()
        for n, a in enumerate(call.args):
            parts = self.parts(a)
            if parts and (n not in read or any(backwards for _, backwards in parts)):
                return False
            sizes.update(rows.size for rows, _ in parts)
            if not parts and any(map(self.is_size, self.uses.of_type(type_of(a)))):
                return False
        if len(sizes) != 1:
            return False
        (size,) = sizes
        within = {v for d in ty.shape[1:] for v in dim_vars(d)}
        if self.size(ty.shape[0]) != as_dim(size) or any(map(self.is_size, within)):
            return False
        self.rows[var] = Rows(size, row_of(ty), call), False
        return True

    def parts(self, arg: Expr) -> list[tuple[Rows, bool]]:
        """The rows that an operand is, or is a tuple of. Raises NotStructural where it is a tuple of these and of other things."""
        atom = self.atom(arg)
        if not isinstance(atom, Var) or not self.is_of_rows(atom):
            return []
        found = [self.atom(f) for f in self.tuples.get(atom, (atom,))]
        if not all(isinstance(f, Var) and f in self.rows for f in found):
            raise NotStructural(f"%{atom.name} is made of rows of an argument and of other values")
        return [self.rows[cast(Var, f)] for f in found]

    def leaves(self, wanted: Iterable[Rows]) -> tuple[list[Rows], list[Rows]]:
        """What these rows are computed of that stands in lists; and what is computed for them, in order."""
        found: dict[Rows, None] = {}
        todo = [*wanted]
        while todo:
            rows = todo.pop()
            if rows not in found:
                found[rows] = None
                todo += [r for a in (rows.call.args if rows.call is not None else ()) for r, _ in self.parts(a)]
        every = [r for r, _ in self.rows.values()]
        return [r for r in found if r.call is None], [
            r for r in dict.fromkeys(every) if r in found and r.call is not None
        ]

    def row_by_row(self, computed: Sequence[Rows], known: dict[Rows, Expr], out: Emitter) -> None:
        """Compute rows of a step; those that are ``known`` already are added to."""
        sizes = (*self.sequences, *self.dims)
        ones: dict[Rows, Expr] = {}  # with an axis of one in front

        def one(rows: Rows) -> Expr:
            if rows not in ones:
                call = op_call("expand_dims", (known[rows],), _FIRST)
                ones[rows] = out.bind("row", call, type_of(call))
            return ones[rows]

        for rows in computed:
            call = rows.call
            assert call is not None
            copier = Copier(dims=dict.fromkeys(sizes, 1))
            for a in call.args:
                parts = [one(r) for r, _ in self.parts(a)]
                if parts:
                    whole: Expr = parts[0]
                    if isinstance(type_of(a), TupleType):
                        ty = TupleType(tuple(map(type_of, parts)))
                        whole = out.bind("rows", Tuple(tuple(parts), ty), ty)
                    copier.atoms[cast(Var, a)] = whole
                elif isinstance(a, Var):
                    copier.atoms[a] = self.atom(a)
            made = Var("row", None, call.ty)
            out.bindings += copier.copy(Block((Binding(made, call),), made)).bindings
            ones[rows] = out.bindings[-1].var
            last = op_call("squeeze", (ones[rows],), _FIRST)
            known[rows] = out.bind("row", last, type_of(last))


def row_of(ty: Type) -> TensorType:
    """The type of a tensor's row."""
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return TensorType(ty.shape[1:], ty.dtype)
