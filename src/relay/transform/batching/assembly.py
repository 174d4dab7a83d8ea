"""Functions over a structure that make values of data types (a tree of the same shape with a state at every node, a list of scores).

Levels compute tensors. What the clauses put together of them is said in the words that ``rows.assemble`` reads (`relay.op.assemble`),
and done for all nodes at the end, in native code; the values' tensors are rows of those that the levels have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from relay.ir.expr import Expr
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, AdtType, ConstructorDef, TensorType, TupleType
from relay.op.assemble import CHILD, END, LIST, MAKE, OWN, SHARED, STATE, TUPLE
from relay.transform.batching.clauses import Group, NotStructural, data_types
from relay.transform.batching.describe import ListAt, SiteAt
from relay.transform.batching.lift import Lifter
from relay.transform.batching.lifted import (
    AFTER,
    LEVEL,
    UNIFORM,
    Built,
    Lifted,
    ListValue,
    Made,
    Value,
)
from relay.transform.batching.lists import Layout, layout_of
from relay.transform.batching.requests import listed
from relay.typing.text import type_text


@record(frozen=True, slots=True, eq=False)
class Source:
    """Where the code of a clause is lifted, the rows of its sites' parts, and what keeps a value of a level for the end (``last``: the
    clause is computed at the end, for all its rows)."""

    lifter: Lifter
    index: Callable[[int], Expr]
    keep: Callable[[Value], Expr]
    last: bool


@record(slots=True, eq=False)
class Assembly:
    """Collects what the clauses make: ``parts`` are the operands, ``words`` the code with addresses from its beginning on."""

    group: Group
    source: Callable[[Lifter], Source]
    parts: list[Expr] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    _records: dict[int, tuple[int, list[int]]] = field(
        default_factory=dict
    )  # of clauses: the function, its values' code
    _patches: list[int] = field(default_factory=list)  # words that hold addresses

    def clause(self, number: int, function: int, source: Source, values: Sequence[Lifted]) -> None:
        """What a clause makes, one for each data type in its function's result. Raises NotStructural."""
        self._records[number] = (function, [self._code(source, v) for v in values])

    def lists_of(self, name: str) -> None:
        """The names of what many requests are given as lists of come last."""
        for constructor in listed(name):
            self.names += (name, constructor)

    def spec(self, clauses: int) -> tuple[int, ...]:
        """All words; clauses without a record are those of items."""
        made = [len(data_types(f.result)) for f in self.group.functions]
        head = [len(made), clauses, int(self.group.many), *made]
        first = len(head) + clauses
        records: list[int] = []
        addresses: list[int] = []
        base = first + sum(1 + len(self._records.get(c, (-1, []))[1]) for c in range(clauses))
        for c in range(clauses):
            function, codes = self._records.get(c, (-1, []))
            addresses.append(first + len(records))
            records += (function, *(base + at for at in codes))
        patched = set(self._patches)
        return (*head, *addresses, *records, *(w + base if n in patched else w for n, w in enumerate(self.words)))

    def _code(self, source: Source, value: Lifted) -> int:
        """Write the code of a value; its address. Iterative: the code of lists' items comes first."""
        out: list[int] = []
        inner: list[int] = []  # positions in `out` that hold addresses
        todo: list[Lifted | tuple[int, ...] | _Words] = [value]
        while todo:
            here = todo.pop()
            match here:
                case _Words(words=words):
                    out += words
                case Built(constructor=made, fields=fields):
                    todo.append(_Words((MAKE, made.tag, len(fields), self._name(made.adt, made.name))))
                    todo += reversed(fields)
                case Made(site=site, number=number):
                    at = source.lifter.sites[site]
                    assert isinstance(at, SiteAt)
                    out += (CHILD, self._part(source.index(site)), at.target, number)
                case ListValue(items=None):
                    empty = self._constructors(here)[2]
                    out += (MAKE, empty.tag, 0, self._name(empty.adt, empty.name))
                case ListValue():
                    inner.append(len(out) + 6)
                    out += self._list(source, here)
                case Value(ty=TupleType() as ty):
                    todo.append(_Words((MAKE, TUPLE, len(ty.fields), 0)))
                    todo += reversed([source.lifter.field(here, n) for n in range(len(ty.fields))])
                case Value():
                    out += self._row(source, here)
                case _:
                    assert isinstance(here, tuple)
                    todo.append(_Words((MAKE, TUPLE, len(here), 0)))
                    todo += reversed(here)  # type: ignore[arg-type]
        begin = len(self.words)
        self._patches += (begin + n for n in inner)
        self.words += (*out, END)
        return begin

    def _row(self, source: Source, value: Value) -> tuple[int, int]:
        if value.stage == UNIFORM:
            return SHARED, self._part(value.atom)
        ty = value.ty
        if not isinstance(ty, TensorType) or not isinstance(ty.dtype, str) or DTYPE_BITS[ty.dtype] < 8:
            found = "a value without a type" if ty is None else type_text(ty)
            raise NotStructural(f"rows of {found} cannot be taken apart")
        if value.stage == LEVEL and not source.last:
            return STATE, self._part(source.keep(value))
        return OWN, self._part(source.lifter.at(value, max(value.stage, AFTER)))

    def _list(self, source: Source, value: ListValue) -> tuple[int, ...]:
        if value.items is None or value.value is None:
            raise NotStructural("a list of the structure is part of the result")
        layout, full, empty = self._constructors(value)
        site = next(
            n for n, s in enumerate(source.lifter.sites) if isinstance(s, ListAt) and s.items == value.items.number
        )
        code = self._code(self.source(value.items), value.value)
        name = len(self.names) // 2  # of both, one behind the other
        self.names += (full.adt, full.name, empty.adt, empty.name)
        return LIST, self._part(source.index(site)), full.tag, layout.head, empty.tag, name, code

    def _constructors(self, value: ListValue) -> tuple[Layout, ConstructorDef, ConstructorDef]:
        """How a list is laid out, and its constructors: of an item and the rest, and of the end."""
        layout = layout_of(self.group.module, value.ty)
        if layout is None or not isinstance(value.ty, AdtType):
            raise NotStructural("a list of the structure is part of the result")
        constructors = self.group.module.types[value.ty.name].constructors
        return layout, constructors[layout.cons], constructors[1 - layout.cons]

    def _name(self, adt: str, constructor: str) -> int:
        for n in range(0, len(self.names), 2):
            if self.names[n] == adt and self.names[n + 1] == constructor:
                return n // 2
        self.names += (adt, constructor)
        return len(self.names) // 2 - 1

    def _part(self, atom: Expr) -> int:
        for n, part in enumerate(self.parts):
            if part is atom:
                return n
        self.parts.append(atom)
        return len(self.parts) - 1


@record(frozen=True, slots=True)
class _Words:
    words: tuple[int, ...]


def values_made(result: Lifted) -> list[Lifted]:
    """The values of data types in a clause's result, in order."""
    out: list[Lifted] = []
    todo: list[Lifted] = [result]
    while todo:
        v = todo.pop()
        if isinstance(v, tuple):
            todo.extend(reversed(v))
        elif isinstance(v, ListValue | Built | Made) or (isinstance(v, Value) and data_types(v.ty)):
            out.append(v)
    return out
