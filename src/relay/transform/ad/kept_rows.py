"""Cotangents of what recursive functions share, as rows of operands.

    fn @f(%t, %w) { ... nn.dense(%x, %w) ... @f(%part, %w) ... }

Every call of ``@f`` adds an outer product to the cotangent of ``%w``, which costs far more than the product itself: the whole sum is read
and written. But such terms are sums over rows of their operands, and their sum is one term on all the rows (`loop_terms`, as for loops).
So a recursive function that hands a tensor on as it is takes a reference to a list of rows beside it, the way back puts the operands in
front of that list, and whoever called the recursion makes one product of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from relay.ir.diagnostics import RelayError
from relay.ir.dim import ANY, Dim, DimVar, as_dim
from relay.ir.expr import Attr, Attrs, Call, Expr, Function, GlobalVar, OpRef, Var
from relay.ir.graph import components
from relay.ir.module import reachable
from relay.ir.record import record
from relay.ir.types import AdtType, ConstructorDef, RefType, TensorType, TupleType, Type, TypeArg, TypeDef, TypeVar
from relay.op.rows import DTYPES
from relay.transform.ad.duals import differentiable
from relay.transform.ad.loop_terms import Collected, collected, operand_of_rows
from relay.transform.ad.terms import Code, construct, new_ref, project, read, tuple_of, write
from relay.transform.batching.clauses import Structural
from relay.transform.batching.decisions import Clause, Path, Switch
from relay.transform.batching.describe import SiteAt, Tables, Writer
from relay.transform.blocks import all_bindings, body_of, is_primitive
from relay.transform.build import op_call, type_of
from relay.transform.uses import globals_used
from relay.typing.substitution import substitute, variables

_A = TypeVar("A")
END, ROW = "ad.End", "ad.Row"
# The operands of terms, those that were met last in front.
ROWS = TypeDef(
    "ad.Rows",
    (_A,),
    (
        ConstructorDef(END, (), "ad.Rows", 0),
        ConstructorDef(ROW, (_A, AdtType("ad.Rows", (_A,))), "ad.Rows", 1),
    ),
)
# Fewer elements than these are added up sooner than put into a list.
_FEW_ELEMENTS = 8192
# A tensor with more kinds of terms than these is not worth so many lists.
_MOST_TERMS = 8

# The cotangent of one input of an operator (`lifter.Rule`).
Rule = Callable[[str, Attrs, Sequence[Expr], Sequence[Type], Sequence[Expr], Sequence[Expr], int], Expr | None]
# A parameter of a global function, by position.
Place = tuple[str, int]


@record(frozen=True, slots=True)
class Term:
    """A kind of term in the cotangent of a tensor: a call of ``op``, of which the operands at ``rows`` have the types ``types`` and
    all others are the tensor itself."""

    op: str
    attrs: tuple[tuple[str, Attr], ...]
    operands: int
    rows: tuple[int, ...]
    types: tuple[TensorType, ...]
    stacked: bool

    @property
    def row(self) -> Type:
        """The type of what one call adds to the list."""
        return self.types[0] if len(self.types) == 1 else TupleType(self.types)

    @property
    def is_known(self) -> bool:
        """Whether rows are of sizes that can be told where the list begins."""
        return all(map(_has_row, self.types))

    @property
    def held(self) -> AdtType:
        return AdtType(ROWS.name, (self.row,))

    @property
    def reference(self) -> RefType:
        return RefType(self.held)

    def at(self, function: Function, type_args: Sequence[TypeArg]) -> Term:
        """A term of a function's parameter in the types of a call."""
        types = tuple(cast(TensorType, substitute(t, function.type_params, type_args)) for t in self.types)
        return replace(self, types=types)


def term_of(part: Expr | None, weight: Expr) -> tuple[Term, tuple[Expr, ...]] | None:
    """A part of the cotangent of ``weight`` as a term, with its rows; None where it is none, or one that is added sooner."""
    if not isinstance(weight, Var):
        return None
    found = collected(part, {weight})
    if found is None:
        return None
    call, op = found.call, found.call.fn
    assert isinstance(op, OpRef)
    if any(a is not weight for n, a in enumerate(call.args) if n not in found.rows):
        return None
    rows = tuple(call.args[n] for n in found.rows)
    types = tuple(cast(TensorType, type_of(r)) for r in rows)
    if not all(map(_has_row, types)) or not _is_worth(type_of(weight), types, found):
        return None
    attrs = tuple(sorted(call.attrs.items()))
    if not all(isinstance(a, bool | int | float | str | None) for _, a in attrs):
        return None
    return Term(op.name, attrs, len(call.args), found.rows, types, found.stacked), rows


def _has_row(t: TensorType) -> bool:
    return isinstance(t.shape, tuple) and t.dtype in DTYPES and ANY not in t.shape


def _is_worth(weight: Type, rows: Sequence[TensorType], found: Collected) -> bool:
    """Whether a tensor has far more elements than what is put into the list in place of adding to it."""
    assert isinstance(weight, TensorType) and isinstance(weight.shape, tuple)
    known = [d for d in weight.shape if isinstance(d, int)]
    large = len(known) < len(weight.shape) or math.prod(known) >= _FEW_ELEMENTS
    ranks = [len(cast("tuple[Dim, ...]", t.shape)) - (not found.stacked) for t in rows]
    return large and len(weight.shape) > max(ranks)


# -- which parameters have lists


@record(slots=True, eq=False)
class KeptRows:
    """Which parameters of recursive functions are handed on as they are, and the terms of their cotangents. ``is_loop``: functions
    whose gradient is a loop, which needs nothing of this."""

    known: Mapping[str, Function]
    rule: Rule
    is_loop: Callable[[str], bool]
    _groups: dict[str, frozenset[str]] = field(default_factory=dict)
    _fixed: dict[frozenset[str], frozenset[Place]] = field(default_factory=dict)
    _terms: dict[Place, tuple[Term, ...]] = field(default_factory=dict)

    def starts(self, caller: str, place: Place) -> bool:
        """Whether a call is one from outside of a recursion, in which what this parameter is given is the same in all calls."""
        group = self._group(place[0])
        return caller not in group and place in self._shared(group)

    def terms(self, place: Place) -> tuple[Term, ...]:
        """The kinds of terms in the cotangent of a parameter, those of the functions that are handed it included."""
        if place not in self._terms:
            self._terms |= self._collect(place)
        return self._terms[place]

    def _group(self, name: str) -> frozenset[str]:
        """The functions that a function calls and is called by; none where it is not recursive."""
        if name not in self._groups:
            graph = {n: globals_used(self.known[n]) for n in reachable(self.known, [name]) if n in self.known}
            for members in components(graph):
                recursive = len(members) > 1 or members[0] in graph[members[0]]
                for n in members:
                    self._groups[n] = frozenset(members if recursive else ())
        return self._groups[name]

    def _shared(self, group: frozenset[str]) -> frozenset[Place]:
        if group in self._fixed:
            return self._fixed[group]
        shared = {
            (name, n)
            for name in group
            for n, p in enumerate(self.known[name].params)
            if not is_primitive(self.known[name]) and differentiable(type_of(p))
        }
        changed = bool(shared)
        while changed:
            changed = False
            for name in group:
                for callee, given in _calls(self.known[name]):
                    for n, a in enumerate(given.args):
                        if (callee, n) in shared and not self._is_param(name, a, shared):
                            shared.discard((callee, n))
                            changed = True
        return self._fixed.setdefault(group, frozenset(shared))

    def _is_param(self, name: str, atom: Expr, shared: Iterable[Place]) -> bool:
        return any(p is atom and (name, n) in shared for n, p in enumerate(self.known[name].params))

    def _collect(self, start: Place) -> dict[Place, tuple[Term, ...]]:
        """The terms of a parameter and of all that it is handed on as."""
        own: dict[Place, dict[Term, None]] = {}
        handed: dict[Place, list[tuple[Place, Call]]] = {}
        todo = [start]
        while todo:
            place = todo.pop()
            if place in own:
                continue
            function = self.known[place[0]]
            param = function.params[place[1]]
            own[place] = dict.fromkeys(self._own(function, param))
            handed[place] = []
            for callee, call in _calls(function):
                for n, a in enumerate(call.args):
                    if a is param and not is_primitive(self.known[callee]) and not self.is_loop(callee):
                        handed[place].append(((callee, n), call))
                        todo.append((callee, n))
        changed = True
        while changed:
            changed = False
            for place, calls in handed.items():
                for target, call in calls:
                    function = self.known[target[0]]
                    if len(call.type_args) != len(function.type_params):
                        continue
                    for term in list(own[target]):
                        new = term.at(function, call.type_args)
                        if new not in own[place] and len(own[place]) <= _MOST_TERMS:
                            own[place][new] = None
                            changed = True
        return {p: tuple(t) if len(t) <= _MOST_TERMS else () for p, t in own.items()}

    def _own(self, function: Function, param: Var) -> Iterator[Term]:
        """The terms of a function's own operators."""
        if is_primitive(function):
            return
        dims = {p for p in function.type_params if isinstance(p, DimVar)}
        for b in all_bindings(body_of(function)):
            call, result = b.value, type_of(b.var)
            if not isinstance(call, Call) or not isinstance(call.fn, OpRef) or not isinstance(result, TensorType):
                continue
            for n, a in enumerate(call.args):
                if a is not param:
                    continue
                types = [type_of(a) for a in call.args]
                try:
                    part = self.rule(call.fn.name, call.attrs, call.args, types, [b.var], [Var("d", None, result)], n)
                except RelayError:
                    continue  # said where the operator is differentiated
                found = None if part is None else term_of(part, param)
                if found is not None and all(v in dims for t in found[0].types for v in variables(t)):
                    yield found[0]


def _calls(function: Function) -> Iterator[tuple[str, Call]]:
    if is_primitive(function):
        return
    for b in all_bindings(body_of(function)):
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar):
            yield b.value.fn.name, b.value


# -- the code


def no_rows(code: Code, term: Term) -> Expr:
    """A reference to an empty list."""
    return code.bind(new_ref(code.bind(construct(ROWS, END, (), term.held))), "rows")


def put(code: Code, ref: Expr, term: Term, rows: Sequence[Expr]) -> None:
    """Put a term's rows in front of the list in a reference."""
    before = code.bind(read(ref))
    row = rows[0] if len(rows) == 1 else code.bind(tuple_of(rows))
    code.bind(write(ref, code.bind(construct(ROWS, ROW, (row, before), term.held))), "_")


def total(code: Code, ref: Expr, term: Term, weight: Expr) -> Expr:
    """The sum of all terms whose rows are in the list: one call on these."""
    spec, sizes = _walk(term)
    walk = op_call("rows.linearise", (code.bind(read(ref)),), {"spec": spec, "sizes": sizes})
    assert isinstance(walk.ty, TupleType)
    count = as_dim(DimVar("rows", gradual=True))
    fields = list(walk.ty.fields)
    first = len(fields) - len(term.types)
    for n in range(first, len(fields)):
        held = cast(TensorType, fields[n])
        fields[n] = TensorType((count, *cast("tuple[Dim, ...]", held.shape)[1:]), held.dtype)
    made = code.bind(Call(walk.fn, walk.args, walk.attrs, (), TupleType(tuple(fields))), "walk")
    args: list[Expr] = [weight] * term.operands
    for at, n in enumerate(term.rows):
        rows = code.bind(project(made, first + at), "rows")
        args[n] = operand_of_rows(code, term.op, n, rows, term.stacked)
    return code.bind(op_call(term.op, args, dict(term.attrs)), "d")


def _walk(term: Term) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    """The description of a walk along the list, for ``rows.linearise``, and the sizes in it."""
    end, row = (Clause(0, (), tuple_of(()), {}, {}) for _ in range(2))
    held: list[Path] = [(0,)] if len(term.types) == 1 else [(0, n) for n in range(len(term.types))]
    rest = SiteAt((1,), target=0)
    tables = Tables((), ()), Tables((rest,), tuple(zip(held, term.types, strict=True)))
    writer = Writer()
    list_ = Structural(ROWS.name, 0, TupleType(()), Switch((), (end, row)))
    words = writer.spec((list_,), (end, row), tables, apart=(0,))
    return words, tuple(writer.sizes)
