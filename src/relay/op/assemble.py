"""Values of data types out of rows: the operator ``rows.assemble``, which batching over structure writes where a recursive function
makes such values (docs/batching.md), and ``rows.requests``, where many requests go on to another recursion. The words of their
descriptions are explained in runtime/src/assemble.cc.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import cast

import numpy as np

from relay import te
from relay.ir.diagnostics import OperatorError
from relay.ir.expr import Attr, Attrs
from relay.ir.types import AdtType, TupleType, Type
from relay.ir.value import AdtValue
from relay.op.registry import routine
from relay.te.numeric import Array

# The instructions, and how many words each has.
OWN, STATE, SHARED, CHILD, MAKE, LIST, END = range(7)
TUPLE = -1  # the tag of a tuple
# What stands in a tuple of `rows.requests`: a field of the request, a row of a tensor, or an item of a list.
REQUEST, ROW, ITEM = range(3)


def _assemble_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    made = attrs["type"]
    if not isinstance(made, TupleType):
        raise OperatorError("the type of what rows.assemble makes is that of a tuple")
    return made


class _Assembly:
    """Runs a description; ``made[function][number][row]`` is what there is already."""

    def __init__(self, offsets: Array, parts: Sequence[object], words: Sequence[int], names: Sequence[str]) -> None:
        self.offsets, self.parts, self.words, self.names = offsets, parts, words, names
        functions, self.clauses = words[0], words[1]
        self.last = bool(words[2])  # function 0 comes after all levels
        self.made: list[list[dict[int, object]]] = [[{} for _ in range(words[3 + f])] for f in range(functions)]
        self.stack: list[object] = []

    def run(self, root: Array) -> tuple[object, ...]:
        levels = len(self.offsets) - 1
        record = self.words[3 + self.words[0] : 3 + self.words[0] + self.clauses]
        late = [c for c in range(self.clauses) if self.last and self.words[record[c]] == 0]
        steps = [(c, level, level + 1) for level in range(levels) for c in range(self.clauses) if c not in late]
        for clause, begin, end in [*steps, *((c, 0, levels) for c in late)]:
            at = record[clause]
            if self.words[at] < 0:
                continue
            first = int(self.offsets[0, clause])
            for row in range(int(self.offsets[begin, clause]), int(self.offsets[end, clause])):
                for n, values in enumerate(self.made[self.words[at]]):
                    self.execute(self.words[at + 1 + n], row - first, row)
                    values[row] = self.stack.pop()
        if root.ndim == 0:
            return tuple(values[int(root)] for values in self.made[0])
        return tuple(self.listed([values[int(r)] for r in root]) for values in self.made[0])

    def listed(self, values: Sequence[object]) -> object:
        """A list whose constructors have the last two names."""
        more = len(self.names) // 2 - 2
        self.make(1, 0, more + 1)
        for value in reversed(values):
            self.stack[-1:] = [value, self.stack[-1]]
            self.make(0, 2, more)
        return self.stack.pop()

    def execute(self, at: int, own: int, row: int) -> None:
        words = self.words
        while words[at] != END:
            part = words[at + 1]
            match words[at]:
                case 0 | 1:  # OWN, STATE
                    self.stack.append(np.asarray(self.parts[part])[own if words[at] == OWN else row])
                case 2:  # SHARED
                    self.stack.append(self.parts[part])
                case 3:  # CHILD
                    self.stack.append(self.made[words[at + 2]][words[at + 3]][int(np.asarray(self.parts[part])[own])])
                case 4:  # MAKE
                    self.make(words[at + 1], words[at + 2], words[at + 3])
                case _:
                    self.list(at, own)
            at += (2, 2, 2, 4, 4, 7)[words[at]]

    def make(self, tag: int, count: int, name: int) -> None:
        fields = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        adt, constructor = self.names[2 * name : 2 * name + 2] if tag != TUPLE else ("", "")
        self.stack.append(fields if tag == TUPLE else AdtValue(adt, constructor, tag, fields))

    def list(self, at: int, own: int) -> None:
        part, cons, head, nil, name, code = self.words[at + 1 : at + 7]
        starts = np.asarray(self.parts[part])
        self.make(nil, 0, name + 1)
        for item in reversed(range(int(starts[own]), int(starts[own + 1]))):
            self.execute(code, item, item)
            if head == 0:
                self.stack[-1], self.stack[-2] = self.stack[-2], self.stack[-1]
            self.make(cons, 2, name)


def _assemble(
    offsets: Array, root: Array, parts: Sequence[object], *, spec: tuple[int, ...], names: tuple[str, ...], type: Attr
) -> tuple[object, ...]:
    return _Assembly(offsets, parts, spec, names).run(np.asarray(root))


@routine("rows.assemble", relation=_assemble_relation, reference=_assemble, static=("names", "type"))
def assemble(
    offsets: te.Tensor,
    root: te.Tensor,
    parts: tuple[te.Tensor, ...],
    *,
    spec: tuple[int, ...],
    names: tuple[str, ...],
    type: Attr,
) -> tuple[te.Tensor, ...]:
    """The values of data types that function 0 makes at row ``root``, a tuple of the type ``type``; lists of those at several rows, if
    ``root`` has an axis (constructor 0 has a value and the rest, 1 is the end).

    ``offsets``: (levels + 1, clauses) int64, as ``rows.linearise`` gives them; ``parts``: tensors with a row for each node, and the rows
    of the nodes' parts; ``spec``: how each clause makes its values of these; ``names``: of the constructors, each with its type.
    """
    raise NotImplementedError


def _requests_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    made = attrs["type"]
    if not isinstance(made, AdtType):
        raise OperatorError("the type of what rows.requests makes is that of a list")
    return made


def _items(value: object) -> list[object]:
    """What stands in a list: constructor 0 has a value and the rest, 1 is the end."""
    out: list[object] = []
    while isinstance(value, AdtValue) and value.tag == 0:
        item, value = value.fields
        out.append(item)
    return out


def _requests(
    requests: AdtValue, parts: Sequence[object], *, spec: tuple[int, ...], names: tuple[str, ...], type: Attr
) -> AdtValue:
    rows = [_items(p) if isinstance(p, AdtValue) else p for p in parts]
    adt, (more, end) = cast(AdtType, type).name, names
    out = AdtValue(adt, end, 1, ())
    answered = _items(requests)[: min(len(cast(Sized, r)) for r in rows)]
    for n, request in reversed(list(enumerate(answered))):
        fields = (
            cast(Sequence[object], request)[at] if kind == REQUEST else np.asarray(cast(Array, rows[at])[n]) if kind == ROW
            else cast(Sequence[object], rows[at])[n]
            for kind, at in zip(spec[::2], spec[1::2], strict=True)
        )  # fmt: skip
        out = AdtValue(adt, more, 0, (tuple(fields), out))
    return out


@routine("rows.requests", relation=_requests_relation, reference=_requests, static=("names", "type"))
def requests(
    requests: te.Tensor, parts: tuple[te.Tensor, ...], *, spec: tuple[int, ...], names: tuple[str, ...], type: Attr
) -> te.Tensor:
    """A list of tuples, of the type ``type``: of what requests (a list of tuples too) have brought, and of what has been computed for the
    first of them, as many as ``parts`` have rows.

    ``parts``: tensors with a row for each request, and lists with an item for each; ``spec``: two words for each field, what it is
    (`REQUEST`, `ROW`, `ITEM`) and the number of the request's field or of the part; ``names``: of the list's constructors.
    """
    raise NotImplementedError
