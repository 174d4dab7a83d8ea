"""Rows of nodes: the operators that batching over structure writes (`relay.transform.batching`, docs/batching.md).

``rows.linearise`` turns a value into tables, the others move rows between them. The words of a description (``spec``) are read
here and by the runtime (runtime/src/linearise.cc, which explains them) alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from relay import te
from relay.ir.diagnostics import ExecutionError, OperatorError, TypeError_
from relay.ir.dim import ANY, Dim
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attrs
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.ir.value import AdtValue
from relay.op.registry import routine
from relay.op.support import DimLike
from relay.te.numeric import Array

# The element types by their codes in the runtime (runtime/dtypes.def).
DTYPES = (
    "bool", "int4", "uint4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64",
)  # fmt: skip

SWITCH, FIELD, CLAUSE, TURN = 0, 1, 2, 3
# Flags of a description; of the last one for each function, one after the other.
MANY, ONCE, ASKING, APART = 1, 2, 4, 8
# How many words there are of what goes on to the next.
_WORDS = {FIELD: 4, TURN: 6}


@record(frozen=True, slots=True)
class Site:
    """A call on a part of a node: of function ``target``; with ``cons`` on each item of a list, by the code at ``target``."""

    reg: int
    target: int
    cons: int | None = None
    head: int = 0
    tail: int = 0


@record(frozen=True, slots=True)
class Payload:
    """A tensor in a node: the register that holds it, its dtype and dims (``-1 - i`` for ``sizes[i]``)."""

    reg: int
    dtype: str
    dims: tuple[int, ...]


@record(frozen=True, slots=True)
class Record:
    """What a clause has: ``function`` is -1 for the items of a list. (How many bytes of a row the levels pass on says in how many parts
    the runtime answers requests; here they are one.)"""

    function: int
    sites: tuple[Site, ...]
    payloads: tuple[Payload, ...]


@record(frozen=True, slots=True)
class Spec:
    """A description taken apart. ``many``: the value is a list of requests, which function 0 looks at; ``asking``: each node is told its
    request; ``apart``: a bit for each
    function of which a part that is reached twice is two nodes. (That parts are reached ONCE saves the runtime to look whether they are
    known; here each is looked for.)"""

    words: tuple[int, ...]
    entries: tuple[int, ...]
    registers: int
    many: bool
    asking: bool
    apart: int
    clauses: tuple[Record, ...]

    def items(self, site: Site) -> int:
        """The clause of a list site's items."""
        at = site.target
        while self.words[at] in _WORDS:
            at += _WORDS[self.words[at]]
        return self.words[at + 1]


def read_spec(words: tuple[int, ...]) -> Spec:
    """The description in these words. Raises OperatorError when it is none."""
    try:
        functions, clauses, registers, flags = words[:4]
        entries = words[4 : 4 + functions]
        records = tuple(_record(iter(words[words[4 + functions + c] :])) for c in range(clauses))
        return Spec(words, entries, registers, bool(flags & MANY), bool(flags & ASKING), flags // APART, records)
    except (IndexError, ValueError, StopIteration, RuntimeError) as error:
        raise OperatorError("the description of rows.linearise is broken") from error


def _record(word: Iterator[int]) -> Record:
    function, _, _ = next(word), next(word), next(word)
    sites: list[Site] = []
    for _ in range(next(word)):
        if next(word):
            reg, cons, head, tail, target = (next(word) for _ in range(5))
            sites.append(Site(reg, target, cons, head, tail))
        else:
            reg, target = next(word), next(word)
            sites.append(Site(reg, target))
    payloads: list[Payload] = []
    for _ in range(next(word)):
        reg, dtype, rank = next(word), next(word), next(word)
        payloads.append(Payload(reg, DTYPES[dtype], tuple(next(word) for _ in range(rank))))
    return Record(function, tuple(sites), tuple(payloads))


# -- linearise


def _linearise_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    words, sizes = attrs["spec"], attrs.get("sizes", ())
    assert isinstance(words, tuple) and isinstance(sizes, tuple)
    spec = read_spec(words)  # type: ignore[arg-type]
    index = TensorType((ANY,), "int64")
    fields: list[Type] = [TensorType((), "int64"), TensorType((ANY, ANY), "int64"), index]
    for own in spec.clauses:
        fields += [index] * (spec.asking + (own.function < 0))
        fields += [index] * len(own.sites)
        for p in own.payloads:
            dims: tuple[Dim, ...] = tuple(d if d >= 0 else sizes[-1 - d] for d in p.dims)  # type: ignore[misc]
            fields.append(TensorType((ANY, *dims), p.dtype))
    return TupleType(tuple(fields))


@record(slots=True, eq=False)
class _Node:
    clause: int
    parts: list[tuple[int, object]]  # function and value, or tuple of values
    payloads: list[Array]
    lists: list[list[_Node]]
    owner: _Node | None = None
    children: list[_Node] | None = None
    level: int = 0
    row: int = 0
    request: _Node | None = None


class _Walk:
    """The nodes of a value, in the order in which they are met."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.nodes: list[_Node] = []
        self.known: dict[tuple[int, int], _Node] = {}
        self.turned: list[AdtValue] = []  # kept, as nodes are known by their values

    def root(self, value: AdtValue) -> _Node:
        root = self.enter(0, value)
        root.request = root
        todo = [(root, False)]
        while todo:
            node, done = todo.pop()
            if done:
                below = node.children or []
                node.level = max((c.level for c in below), default=-1) + 1
                own = self.spec.clauses[node.clause]
                # What is done with a request is done after every level.
                node.level = max(node.level, 1) if own.sites and not (self.spec.many and own.function == 0) else 0
            elif node.children is None:
                todo.append((node, True))
                node.children = []
                for part in (node, *(i for items in node.lists for i in items)):
                    met = [self.enter(f, v) for f, v in part.parts]
                    part.children = met if part is not node else part.children
                    part.request = node.request
                    for child in met:
                        child.request = child.request or node.request
                    node.children += met
                todo += [(c, False) for c in reversed(node.children) if c.children is None]
        return root

    def enter(self, function: int, value: object) -> _Node:
        known = None if self.spec.apart >> function & 1 else self.known.get((function, id(value)))
        if known is None:
            known = self.look(self.spec.entries[function], value)
            self.known[function, id(value)] = known
            self.nodes.append(known)
        return known

    def look(self, at: int, value: object) -> _Node:
        words = self.spec.words
        registers: dict[int, object] = {0: value}
        while words[at] != CLAUSE:
            if words[at] == FIELD:
                source = registers[words[at + 2]]
                fields = source.fields if isinstance(source, AdtValue) else source
                registers[words[at + 1]] = fields[words[at + 3]]  # type: ignore[index]
                at += 4
            elif words[at] == TURN:
                registers[words[at + 1]] = self._turned(registers[words[at + 2]], *words[at + 3 : at + 6])
                at += 6
            else:
                looked = registers[words[at + 1]]
                assert isinstance(looked, AdtValue)
                at = words[at + 3 + looked.tag]
                if at < 0:
                    raise ExecutionError(f"no clause of a match fits {looked!r}")
        clause = words[at + 1]
        own = self.spec.clauses[clause]
        node = _Node(clause, [], [np.asarray(registers[p.reg]) for p in own.payloads], [])
        for site in own.sites:
            part = registers[site.reg]
            if site.cons is None:
                node.parts.append((site.target, part))
                continue
            items: list[_Node] = []
            assert isinstance(part, AdtValue)
            while part.tag == site.cons:
                items.append(self.look(site.target, part.fields[site.head]))
                items[-1].owner = node
                part = part.fields[site.tail]
                assert isinstance(part, AdtValue)
            node.lists.append(items)
        return node

    def _turned(self, list_: object, cons: int, head: int, tail: int) -> AdtValue:
        """A list from its last item to its first."""
        assert isinstance(list_, AdtValue)
        cells: list[AdtValue] = []
        while list_.tag == cons:
            cells.append(list_)
            following = list_.fields[tail]
            assert isinstance(following, AdtValue)
            list_ = following
        for cell in cells:
            fields = (cell.fields[head], list_) if head == 0 else (list_, cell.fields[head])
            list_ = replace(cell, fields=fields)
        self.turned.append(list_)
        return list_


def _linearise(value: AdtValue, *, spec: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Array, ...]:
    read = read_spec(spec)
    walk = _Walk(read)
    given = _list(value) if read.many else [value]
    roots = [walk.root(v) for v in given]
    depth = max((n.level for n in walk.nodes), default=0)
    clauses = len(read.clauses)
    offsets = np.zeros((depth + 2, clauses), np.int64)
    members: list[list[_Node]] = [[] for _ in range(clauses)]
    for node in sorted(walk.nodes, key=lambda n: n.level):
        members[node.clause].append(node)
    used = [0] * len(read.entries)
    for c, own in enumerate(read.clauses):
        if own.function >= 0:
            for node in members[c]:
                node.row = used[own.function]
                used[own.function] += 1
            levels = [n.level for n in members[c]]
            offsets[:, c] = used[own.function] - len(levels) + np.searchsorted(levels, np.arange(depth + 2), "left")
    starts: dict[int, Array] = {}
    for c, own in enumerate(read.clauses):
        for number, site in enumerate(s for s in own.sites if s.cons is not None):
            of = read.items(site)
            members[of] = [i for n in members[c] for i in n.lists[number]]
            starts[of] = np.cumsum([0, *(len(n.lists[number]) for n in members[c])])
            offsets[:, of] = starts[of][offsets[:, c] - offsets[0, c]]
    out: list[Array] = [np.int64(depth), offsets, np.array([r.row for r in roots], np.int64)]  # type: ignore[list-item]
    for c, own in enumerate(read.clauses):
        rows = members[c]
        if read.asking:
            out.append(np.array([n.request.row for n in rows if n.request is not None], np.int64))
        if own.function < 0:
            owners = [n.owner for n in rows if n.owner is not None]
            out.append(np.array([o.row - offsets[0, o.clause] for o in owners], np.int64))
        number = 0
        for site in own.sites:
            if site.cons is not None:
                out.append(starts[read.items(site)].astype(np.int64))
                continue
            out.append(np.array([(n.children or [])[number].row for n in rows], np.int64))
            number += 1
        for p, payload in enumerate(own.payloads):
            dims = tuple(d if d >= 0 else sizes[-1 - d] for d in payload.dims)
            held = np.zeros((len(rows), *dims), numpy_dtype(payload.dtype))
            for n, node in enumerate(rows):
                held[n] = node.payloads[p]
            out.append(held)
    return tuple(out)


def _list(value: AdtValue) -> list[AdtValue]:
    out: list[AdtValue] = []
    while value.fields:
        out.append(value.fields[0])
        value = value.fields[1]
    return out


@routine("rows.linearise", relation=_linearise_relation, reference=_linearise)
def linearise(value: te.Tensor, *, spec: tuple[int, ...], sizes: tuple[DimLike, ...] = ()) -> tuple[te.Tensor, ...]:
    """The nodes of a value as rows: ``(depth, offsets, roots)``, then for each clause its indices and payloads.

    ``offsets``: (levels + 1, clauses) int64, where each level of each clause begins; ``roots``: the rows of the roots. A clause has,
    for every site, the rows of the called parts, (n,) int64 (for a list where each row's items begin, (n + 1,)), and for every
    payload a tensor (n, ...); a clause of items has its owners' rows, (n,), before these, and where they are asked for all clauses have
    the rows of their nodes' requests before all. Of requests there are roots for as many as
    are answered together: the first of them, or all.
    """
    raise NotImplementedError


# -- rows of a level


def _rows(op: str, type_: Type) -> TensorType:
    if not isinstance(type_, TensorType) or not isinstance(type_.shape, tuple) or not type_.shape:
        raise TypeError_(f"{op} needs a tensor of rows, not {type_}")
    return type_


def _range(offsets: Array, level: Array, clause: int) -> tuple[int, int, int]:
    """The rows of a clause at a level (all for -1), and where the clause's rows begin."""
    at = int(level)
    first, end = (0, -1) if at < 0 else (at, at + 1)
    return int(offsets[first, clause]), int(offsets[end, clause]), int(offsets[0, clause])


def _slice_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data = _rows("rows.slice", args[0])
    assert isinstance(data.shape, tuple)
    return TensorType((ANY, *data.shape[1:]), data.dtype)


def _slice(data: Array, offsets: Array, level: Array, *, clause: int, of_function: bool = False) -> Array:
    first, end, base = _range(offsets, level, clause)
    return data[first:end] if of_function else data[first - base : end - base]


@routine("rows.slice", relation=_slice_relation, reference=_slice, aliases=True)
def slice_rows(
    data: te.Tensor, offsets: te.Tensor, level: te.Tensor, *, clause: int, of_function: bool = False
) -> te.Tensor:
    """The rows of one level: ``data`` has one for each node of ``clause`` (or ``of_function``: of its function), (n, ...). A view."""
    raise NotImplementedError


def _row_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data = _rows("rows.row", args[0])
    assert isinstance(data.shape, tuple)
    return TensorType(data.shape[1:], data.dtype)


def _row(data: Array, index: Array) -> Array:
    found: Array = data[min(max(int(index), 0), len(data) - 1)]
    return found


@routine("rows.row", relation=_row_relation, reference=_row, aliases=True)
def row(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    """Row number ``index`` of ``data`` (n, ...), or the nearest one that there is: `take` of one on the first axis. A view."""
    raise NotImplementedError


def _update_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    return _rows("rows.update or rows.scatter", args[0])


def _update(state: Array, rows: Array, offsets: Array, level: Array, *, clause: int, fresh: bool = False) -> Array:
    first, end, _ = _range(offsets, level, clause)
    out = state.copy()
    out[first:end] = rows
    return out


@routine("rows.update", relation=_update_relation, reference=_update, aliases=True, donates=True, static=("fresh",))
def update(
    state: te.Tensor, rows: te.Tensor, offsets: te.Tensor, level: te.Tensor, *, clause: int, fresh: bool = False
) -> te.Tensor:
    """``state`` (all rows of a function) with the rows of one level of a clause replaced; in place where ``state`` dies.

    ``fresh``: nothing reads what these rows of ``state`` were before, so they may be written as soon as ``rows`` is computed.
    """
    raise NotImplementedError


def _scatter(state: Array, rows: Array, index: Array) -> Array:
    out = state.copy()
    out[index] = rows
    return out


@routine("rows.scatter", relation=_update_relation, reference=_scatter, aliases=True, donates=True)
def scatter(state: te.Tensor, rows: te.Tensor, index: te.Tensor) -> te.Tensor:
    """``state`` (n, ...) with the rows at ``index``, (m,) int64 without repetition, replaced by ``rows`` (m, ...); in place where ``state``
    dies."""
    raise NotImplementedError


def _empty_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    shape, dtype = attrs["shape"], attrs["dtype"]
    assert isinstance(shape, tuple) and isinstance(dtype, str)
    return TensorType((ANY, *shape), dtype)  # type: ignore[arg-type]


def _empty(offsets: Array, *, clause: int, shape: tuple[int, ...], dtype: str, number: int) -> Array:
    return np.zeros((int(offsets[-1, clause]), *shape), numpy_dtype(dtype))


@routine("rows.empty", relation=_empty_relation, reference=_empty)
def empty(offsets: te.Tensor, *, clause: int, shape: tuple[DimLike, ...], dtype: str, number: int = 0) -> te.Tensor:
    """Room for the rows of a function, up to those of its last clause; what is in it means nothing. Gives (n, *shape).

    Each room has its own ``number``: two that were taken for one would have to be copied when the first is written to.
    """
    raise NotImplementedError


def _reserve_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    return _rows("rows.reserve", args[0])


def _reserve(data: Array, count: Array, *, number: int) -> Array:
    return data


@routine("rows.reserve", relation=_reserve_relation, reference=_reserve, static=("number",))
def reserve(data: te.Tensor, count: te.Tensor, *, number: int = 0) -> te.Tensor:
    """``data`` (n, ...) in memory with room behind it for ``count`` rows more, so that `append` need not move it.

    Each room has its own ``number``, as in `empty`.
    """
    raise NotImplementedError


def _repeat_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data = args[0]
    if not isinstance(data, TensorType) or not isinstance(data.shape, tuple):
        raise TypeError_(f"rows.repeat needs a tensor, not {data}")
    return TensorType((ANY, *data.shape), data.dtype)


def _repeat(data: Array, offsets: Array, level: Array, *, clause: int) -> Array:
    first, end, _ = _range(offsets, level, clause)
    return np.array(np.broadcast_to(data, (end - first, *data.shape)))


@routine("rows.repeat", relation=_repeat_relation, reference=_repeat)
def repeat_rows(data: te.Tensor, offsets: te.Tensor, level: te.Tensor, *, clause: int) -> te.Tensor:
    """``data`` once for each row of one level of ``clause``, (n, ...)."""
    raise NotImplementedError


def _segment_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    values = _rows("rows.segment_sum", args[1])
    assert isinstance(values.shape, tuple)
    return TensorType((ANY, *values.shape[1:]), values.dtype)


def _segment_sum(
    init: Array, values: Array, starts: Array, offsets: Array, level: Array, *, clause: int, backwards: bool
) -> Array:
    first, end, base = _range(offsets, level, clause)
    begin = starts[first - base : end - base + 1]
    out = np.array(np.broadcast_to(init, (end - first, *values.shape[1:])))
    for n in range(end - first):
        segment = range(int(begin[n] - begin[0]), int(begin[n + 1] - begin[0]))
        for i in reversed(segment) if backwards else segment:
            out[n] += values[i]
    return out


@routine("rows.segment_sum", relation=_segment_relation, reference=_segment_sum)
def segment_sum(
    init: te.Tensor,
    values: te.Tensor,
    starts: te.Tensor,
    offsets: te.Tensor,
    level: te.Tensor,
    *,
    clause: int,
    backwards: bool = False,
) -> te.Tensor:
    """``init`` and the items of each row added to it, in order (or backwards), for the rows of one level of ``clause``.

    ``values``: (items, ...); ``starts``: (n + 1,) int64, where the items of each row begin; ``init``: one for all rows or one each.
    """
    raise NotImplementedError


def _gather_sum_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    return _segment_relation((args[0], args[1]), attrs)


def _gather_sum(
    init: Array, data: Array, index: Array, starts: Array, offsets: Array, level: Array, *, clause: int, backwards: bool
) -> Array:
    values = data[np.clip(index, 0, len(data) - 1)]
    return _segment_sum(init, values, starts, offsets, level, clause=clause, backwards=backwards)


@routine("rows.gather_sum", relation=_gather_sum_relation, reference=_gather_sum)
def gather_sum(
    init: te.Tensor,
    data: te.Tensor,
    index: te.Tensor,
    starts: te.Tensor,
    offsets: te.Tensor,
    level: te.Tensor,
    *,
    clause: int,
    backwards: bool = False,
) -> te.Tensor:
    """`segment_sum` of the rows of ``data`` (n, ...) at ``index`` (items,) int64, which are clipped to those there are."""
    raise NotImplementedError
