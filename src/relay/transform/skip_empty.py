"""What a level has no nodes of is not computed for it.

    let %c = rows.slice(%children, ..);    (m rows)
    let %h = tanh(nn.dense(take(%state, %c), ..));
    let %next = rows.update(%state, %h, ..);

becomes, where a level has several such parts and ``m`` may be 0 for each of them,

    let %c = rows.slice(%children, ..);
    let %next = if (Dim[m] > 0) { let %h = ..; rows.update(%state, %h, ..) } else { %state };

An update with no rows gives its state, so both are the same. Kernels that have nothing to do take as long as small ones otherwise, for each
constructor of a data type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import Binding, Block, Call, Expr, Function, If, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType, TupleType
from relay.ir.walk import free_vars
from relay.transform.base import Pass
from relay.transform.blocks import is_primitive, map_functions, operands, with_body, with_each_nested, with_operands
from relay.transform.build import constant, op_call, type_of, zeros_of
from relay.transform.dims import DimUses, told

# What gives its first operand as it is if it is given no rows, and which operand these are.
_UPDATES = {"rows.update": 1, "rows.scatter": 1, "rows.clear": 2, "rows.add": 1, "rows.add_from": 1}
# A branch costs as much as a few instructions.
_FEWEST = 3


@record(frozen=True, slots=True)
class SkipEmpty(Pass):
    """Compute nothing for the clauses that have no nodes on a level.

    Before: typed blocks with named sizes, as batching over structure makes them. After: where a block updates rows of states by several
    numbers of rows, each of which is found out there, what makes the rows of one number stands in a branch that is taken if there are
    any; what is read of such rows later has none otherwise.
    """

    name: ClassVar[str] = "skip_empty"

    def __call__(self, module: Module) -> Module:
        def skipping(function: Function) -> Function:
            known = frozenset(v for v in function.type_params if isinstance(v, DimVar))
            return with_body(function, lambda block: _block(block, known))

        return map_functions(module, lambda f: f if is_primitive(f) else skipping(f))


def _block(block: Block, known: frozenset[DimVar]) -> Step[Block]:
    """The block with branches, where these sizes are ``known`` when it begins."""
    bindings: list[Binding] = []
    here = known
    for b in block.bindings:
        here = here.union(told(b.var.ty))
        value = yield with_each_nested(b.value, lambda inner, here=here: _block(inner, here))  # type: ignore[misc]
        bindings.append(b if value is b.value else Binding(b.var, value))
    parts = _Finder(bindings, known).parts(block.result)
    if len(parts) < 2:
        same = all(a is b for a, b in zip(bindings, block.bindings, strict=True))
        return block if same else Block(tuple(bindings), block.result, block.ty, block.span)
    out: list[Binding] = []
    done = 0
    for part in parts:
        out += bindings[done : part.first]
        out += _branch(part, bindings[part.first : part.end])
        done = part.end
    return Block((*out, *bindings[done:]), block.result, block.ty, block.span)


@record(frozen=True, slots=True, eq=False)
class _Part:
    """Bindings from ``first`` up to ``end`` that have nothing to do where ``rows`` is 0. What is read of them later is in ``left``: states,
    with those that they are updates of, and tensors that have no elements then."""

    rows: Dim
    first: int
    end: int
    left: dict[Var, Expr | None]


@record(slots=True, eq=False)
class _Finder:
    """Finds the parts of a block: where its values and sizes are read last, and where sizes are found out."""

    bindings: Sequence[Binding]
    known: frozenset[DimVar]
    last: dict[Var | DimVar, int] = field(default_factory=dict)
    told: dict[DimVar, int] = field(default_factory=dict)
    states: set[Expr] = field(default_factory=set)  # what is updated: it is there where nothing is updated, too

    def parts(self, result: Expr) -> list[_Part]:
        """The parts, in order."""
        if len({as_var(_rows(_updates(b.value)) or 0) for b in self.bindings if _updates(b.value) is not None}) < 2:
            return []  # without a look at what each binding reads: blocks inside of blocks would be read once for each around them
        uses = DimUses()
        updates: dict[DimVar, int] = {}  # where the last state is updated by so many rows
        for n, b in enumerate(self.bindings):
            self.last.update(dict.fromkeys((*free_vars(b.value), *uses.of_value(b.value), *uses.of_type(b.var.ty)), n))
            for v in told(b.var.ty):
                if v not in self.known:
                    self.told.setdefault(v, n)
            updated = _updates(b.value)
            if updated is not None:
                assert isinstance(b.value, Call)
                self.states.add(b.value.args[0])
            rows = as_var(_rows(updated) or 0)
            if rows in self.told:
                updates[rows] = n
        self.last.update(dict.fromkeys(free_vars(result), len(self.bindings)))
        found: list[_Part] = []
        for rows, end in sorted(updates.items(), key=lambda item: item[1]):
            part = self._part(max(self.told[rows] + 1, found[-1].end if found else 0), end, rows)
            if part is not None:
                found.append(part)
        return found

    def _part(self, first: int, end: int, rows: DimVar) -> _Part | None:
        """The longest part that updates states by so many rows, from ``first`` or somewhere behind it up to ``end``."""
        begin = end + 1
        while begin > first and self._belongs(begin - 1, first, end, rows):
            begin -= 1
        states: dict[Expr, Expr] = {}
        left: dict[Var, Expr | None] = {}
        for b in self.bindings[begin : end + 1]:
            if _updates(b.value) is not None:
                assert isinstance(b.value, Call)
                states[b.var] = states.get(b.value.args[0], b.value.args[0])
            if self.last.get(b.var, 0) > end:
                left[b.var] = states.get(b.var)
        return _Part(as_dim(rows), begin, end + 1, left) if end + 1 - begin >= _FEWEST else None

    def _belongs(self, at: int, first: int, end: int, rows: DimVar) -> bool:
        """Whether a binding may stand in a part that ends there, and begins at ``first`` at the earliest."""
        var, value = self.bindings[at].var, self.bindings[at].value
        if not isinstance(value, Call | Proj | Tuple) or (isinstance(value, Call) and not isinstance(value.fn, OpRef)):
            return False
        if any(self.told.get(v) == at and self.last[v] > end for v in told(var.ty)):
            return False  # a size that is calculated with behind the part
        updated = _updates(value)
        if updated is not None:
            return as_var(_rows(updated) or 0) is rows
        if var in self.states:
            return False
        if self.last.get(var, 0) <= end:
            return True
        known = all(self.told.get(v, -1) < first for v in DimUses().of_type(var.ty))
        return known and as_var(_rows(var) or 0) is rows and not isinstance(value, Proj | Tuple)


def _branch(part: _Part, code: Sequence[Binding]) -> list[Binding]:
    """The bindings that do the part's work where there is any."""
    size = op_call("size_of", (), MappingProxyType({"size": part.rows, "dtype": "int64"}))
    count = Var("count", None, size.ty)
    more = op_call("greater", (count, constant(np.zeros((), np.int64), "int64")))
    some = Var("some", None, more.ty)
    out = [Binding(count, size), Binding(some, more)]
    # What is read later is bound there: inside of the branch it has another name.
    inside: dict[Expr, Var] = {v: Var(v.name, None, v.ty, v.span) for v in part.left}
    code = [
        Binding(inside.get(b.var, b.var), with_operands(b.value, [inside.get(a, a) for a in operands(b.value)]))
        for b in code
    ]
    nothing: list[Binding] = []
    kept: list[Expr] = []
    for v, before in part.left.items():
        if before is None:
            nothing.append(Binding(Var(v.name, None, v.ty), zeros_of(type_of(v))))
            before = nothing[-1].var
        kept.append(before)
    if len(kept) == 1:
        ((left, ty),) = [(v, type_of(v)) for v in part.left]
        branches = Block(tuple(code), inside[left], ty), Block(tuple(nothing), kept[0], ty)
        return [*out, Binding(left, If(some, *branches, ty=ty))]
    whole = TupleType(tuple(type_of(v) for v in part.left))
    then, otherwise, both = (Var(name, None, whole) for name in ("made", "kept", "both"))
    branches = (
        Block((*code, Binding(then, Tuple(tuple(inside.values()), whole))), then, whole),
        Block((*nothing, Binding(otherwise, Tuple(tuple(kept), whole))), otherwise, whole),
    )
    out.append(Binding(both, If(some, *branches, ty=whole)))
    return [*out, *(Binding(v, Proj(both, n, type_of(v))) for n, v in enumerate(part.left))]


def _updates(value: Expr) -> Expr | None:
    """The operand whose rows an update puts into a state; None for what is no update."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in _UPDATES:
        return None
    return value.args[_UPDATES[value.fn.name]]


def _rows(e: Expr | None) -> Dim | None:
    ty = None if e is None else type_of(e)
    return ty.shape[0] if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and ty.shape else None
