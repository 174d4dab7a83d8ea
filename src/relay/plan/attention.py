"""Attention: two products with a softmax between them, in one pass over blocks of keys.

    out[batch, row, column] = sum over keys of softmax(score(sum over depth of query * key)) * value

The stages of this are recognised by what they read (`find_attentions`), never by an operator's name. A task has one
element of the batch and a block of rows. It takes the keys a block at a time (Dao et al., FlashAttention, 2022; Milakov,
Gimelshein, Online normalizer calculation for softmax, 2018): the block's keys are packed into panels with their lanes
side by side, and a few rows at a time go through the first product, the score's epilogue, the exponentials and the second
product, whose sums stay in the thread's workspace. What was summed under a smaller maximum is scaled down when a block
brings a larger one. So no matrix of scores is ever in memory, and the result of a row does not depend on where it lies or
on the number of threads.

Rows are the axes along which the same keys and values are used: the queries of a head and, where heads share keys, these
heads. With few rows (a query against a cache of keys) packing would not be repaid: then the first product is a dot
product for each key, and keys and values are streamed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import inf

from relay.ir.dim import Dim, dim_add, dim_sub, known_equal
from relay.ir.record import record
from relay.loop.walk import same
from relay.plan.build import position_read
from relay.plan.expand import Env, Expander
from relay.plan.graph import TeGraph, loads
from relay.plan.space import Accesses, Space
from relay.plan.stages import Kept
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    Unary,
    binary,
    cast,
    mentioned,
    transform,
    walk,
)
from relay.te.tensor import Compute, Tensor, stage_bodies

# A head's elements are held in registers and expanded into code.
LARGEST_HEAD = 512
# A score up to this is taken for one that says that a key is hidden: that it weighs nothing is likely, and checked.
_UNSEEN = -1e4


@record(frozen=True, slots=True, eq=False)
class Attention:
    """Recognised attention, in the axes of its result.

    ``kept`` is the second product, with a body that reads what the whole reads. ``score`` is what the softmax is taken
    of, over the variable ``raw`` that stands for the first product. ``space`` has one group: the result's axes but for
    ``column``, split where an index divides one. Keys from ``since`` to ``limit`` (polynomials of the row's axes) are
    seen; None: all there. The score of the others is ``hidden``. Values are weighed with ``weight``, a multiple of the variable ``share``.
    """

    kept: Kept
    query: Scalar
    key: Scalar
    value: Scalar
    score: Scalar
    raw: Axis
    keys: Axis
    depth: Axis
    column: Axis
    space: Space
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    since: Dim | None
    limit: Dim | None
    hidden: float
    share: Axis
    weight: Scalar

    @property
    def dtype(self) -> str:
        """In which is computed."""
        return self.raw.dtype


def find_attentions(
    stages: Sequence[Kept], graph: TeGraph, indices: Indices
) -> tuple[list[Kept], dict[int, Attention]]:
    """The stages without those that attentions absorb, and the attentions by the id of the stage that is left."""
    by_origin = {id(k.origin): k for k in stages}
    readers: dict[int, set[int]] = {}
    for kept in stages:
        for load in _stage_loads(kept):
            assert isinstance(load.source, Tensor)
            readers.setdefault(id(load.source.stage), set()).add(id(kept.origin))
    outputs = {id(t.stage) for t in graph.outputs}
    found: dict[int, Attention] = {}
    gone: set[int] = set()
    for kept in stages:
        finder = Finder(by_origin, indices)
        attention = finder.attention(kept)
        inside = finder.absorbed | {id(kept.origin)}
        if attention is not None and not any(a in outputs or not readers[a] <= inside for a in finder.absorbed):
            found[id(kept.origin)] = attention
            gone |= finder.absorbed
    if not found:
        return list(stages), {}
    left = [found[id(k.origin)].kept if id(k.origin) in found else k for k in stages if id(k.origin) not in gone]
    return left, found


def _stage_loads(kept: Kept) -> list[Load]:
    return [n for b in stage_bodies(kept.stage) for n in loads(b)]


@record(frozen=True, slots=True, eq=False)
class Scores:
    """A product of a query and a key over ``depth``, and what a softmax is taken of: ``score``, over ``raw`` that stands for the
    ``product``. ``absorbed``: the stages between, by id."""

    depth: Axis
    query: Scalar
    key: Scalar
    score: Scalar
    raw: Axis
    product: Load
    absorbed: set[int]


@record(slots=True, eq=False)
class Finder:
    """Looks through the stages from the last product to the first."""

    by_origin: Mapping[int, Kept]
    indices: Indices
    absorbed: set[int] = field(default_factory=set)
    expander: Expander = field(init=False)

    def __post_init__(self) -> None:
        self.expander = Expander(self.indices, lambda t, i: Load(t, i, t.dtype))

    def attention(self, kept: Kept) -> Attention | None:
        """The attention whose last product is this stage, if it is one."""
        product = self.sum(kept, None)
        if product is None:
            return None
        keys, body = product
        pair = factors(body)
        if pair is None:
            return None
        for left, value in (pair, pair[::-1]):
            for share in self._shares(left):
                found = self.scores(share, keys)
                if found is not None:
                    self.absorbed |= found.absorbed
                    weight = Named("share", share.dtype)
                    return self._made(kept, keys, found, value, weight, replaced(left, share, weight))
        return None

    def _shares(self, weight: Scalar) -> list[Load]:
        """What may be the share of a key that a ``weight`` is a multiple of."""
        match weight:
            case Load():
                stage = self.stage(weight)
                return [weight] if stage is not None and not stage.is_reduction else []
            case Binary(op="mul", a=a, b=b):
                return [s for one, other in ((a, b), (b, a)) for s in self._shares(one) if not _reads(other, s)]
            case Select(cond=cond, a=a, b=Const(value=0)):
                return [s for s in self._shares(a) if not _reads(cond, s)]
            case Select(cond=cond, a=Const(value=0), b=b):
                return [s for s in self._shares(b) if not _reads(cond, s)]
            case _:
                return []

    def scores(self, share: Scalar, keys: Axis) -> Scores | None:
        """What the softmax over the keys is taken of, whose ``share`` this is, if it is one of a product."""
        match self.body(share, None):
            case Binary(op="div", a=weight, b=total):
                pass
            case _:
                return None
        match self.body(weight, None):
            case Unary(op="exp", a=Binary(op="sub", a=score, b=largest)):
                pass
            case _:
                return None
        summed, topped = self.body(total, keys, "sum"), self.body(largest, keys, "max")
        if summed is None or topped is None or not same(summed, weight) or not same(topped, score):
            return None
        inside: list[Scalar] = [share, weight, total, largest]
        score = self.opened(score, inside)
        products = [n for n in walk(score) if isinstance(n, Load) and self._is_sum(n)]
        if not products or any(not same(p, products[0]) for p in products):
            return None
        pair = self.product(products[0])
        if pair is None:
            return None
        first = [keys in mentioned(p) for p in pair[1:]]
        if first.count(True) != 1:
            return None
        depth, left, right = pair
        key, query = (left, right) if first[0] else (right, left)
        raw = Named("raw", products[0].dtype)
        score = transform(score, lambda n: raw if isinstance(n, Load) and same(n, products[0]) else n)
        absorbed = {id(s.origin) for s in map(self.stage, (*inside, products[0])) if s is not None}
        return Scores(depth, query, key, score, raw, products[0], absorbed)

    def opened(self, value: Scalar, inside: list[Scalar], shut: Callable[[Load], bool] = lambda _: False) -> Scalar:
        """A value with what it reads of stages that are made of a product, but reduce nothing, in their place, and so on; these go
        ``inside``. What is ``shut`` stays."""

        def visit(node: Scalar) -> Scalar:
            if not isinstance(node, Load) or shut(node) or self._is_sum(node):
                return node
            body = self.body(node, None)
            if body is None or not any(self._leads_to_sum(n) for n in walk(body)):
                return node
            inside.append(node)
            return transform(body, visit)

        return transform(value, visit)

    def _leads_to_sum(self, value: Scalar) -> bool:
        """Whether an element is a sum of products, or made of one without another reduction."""
        if not isinstance(value, Load):
            return False
        body = self.body(value, None)
        return self._is_sum(value) or (body is not None and any(self._leads_to_sum(n) for n in walk(body)))

    def product(self, value: Scalar) -> tuple[Axis, Scalar, Scalar] | None:
        """Of an element that is a sum of products: the axis that it is summed over, and the factors."""
        kept = self.stage(value)
        found = None if kept is None else self.sum(kept, value)  # type: ignore[arg-type]
        pair = None if found is None else factors(found[1])
        return None if found is None or pair is None else (found[0], *pair)

    def _made(
        self, kept: Kept, keys: Axis, found: Scores, value: Scalar, share: Axis, weight: Scalar
    ) -> Attention | None:
        """Check the operands and sort the axes."""
        depth, query, key, score, raw = found.depth, found.query, found.key, found.score, found.raw
        wide = [a for a in kept.stage.axes if a.extent != 1]
        inner = mentioned(query) | mentioned(key) | mentioned(score) | mentioned(weight)
        columns = [a for a in wide if a in mentioned(value) and a not in inner]
        sizes = [depth.extent, *(c.extent for c in columns)]
        if len(columns) != 1 or any(not isinstance(s, int) or not 1 < s <= LARGEST_HEAD for s in sizes):
            return None
        if keys not in mentioned(value) or raw.dtype not in ("float32", "float64") or score.dtype != raw.dtype:
            return None
        sources = [source_of(v) for v in (query, key, value)]
        if any(s is None for s in sources):
            return None
        (column,) = columns
        space = Space([[a for a in wide if a is not column]], {})

        def accesses(env: Env) -> Accesses:
            frame = self.expander.frame(env)
            polys: list[Dim] = []
            for s in sources:
                at = self.expander.evaluate(s, frame)  # type: ignore[arg-type]
                assert isinstance(at, Load)
                polys.append(position_read(self.indices, at))
            return Accesses(tuple(polys), frozenset())

        polys = space.normalise_splits(self.indices, accesses).polys
        if self.indices.coefficient(polys[0], depth) is None or self.indices.coefficient(polys[2], column) is None:
            return None
        (outer,) = space.groups
        batch = tuple(a for a in outer if any(self.indices.coefficient(p, a) != 0 for p in polys[1:]))
        rows = [a for a in outer if a not in batch]
        since, limit, rows = self.seen(score, keys, space, rows)
        # One body with all that is read, for those who look at the stage's loads.
        whole = transform(score, lambda n: cast(binary("mul", query, key), raw.dtype) if n is raw else n)
        if weight is not share:
            whole = replaced(weight, share, whole)
        body = Reduce("sum", (keys, depth), binary("mul", whole, cast(value, raw.dtype)), kept.dtypes[0])
        kept = replace(kept, stage=Compute(kept.stage.name, kept.stage.axes, (body,)))
        hidden = hidden_score(score)
        hidden = -inf if hidden is None else hidden
        return Attention(
            kept,
            query,
            key,
            value,
            score,
            raw,
            keys,
            depth,
            column,
            space,
            batch,
            tuple(rows),
            since,
            limit,
            hidden,
            share,
            weight,
        )

    def seen(
        self, score: Scalar, keys: Axis, space: Space, rows: list[Axis]
    ) -> tuple[Dim | None, Dim | None, list[Axis]]:
        """The first and the last key that a row sees, if others are hidden from it (`Attention.since`, `Attention.limit`), and the rows
        with those first that decide it."""
        since, limit = self.bounds(score, keys, space)
        found = [b for b in (since, limit) if b is not None]
        # What decides which keys are seen grows with the row: its axis comes first.
        steps = {a: [self.indices.coefficient(b, a) for b in found] for group in space.groups for a in group}
        moving = [a for a in rows if any(s != 0 for s in steps[a])]
        known = all(isinstance(s, int) and s >= 0 for a in moving for s in steps[a])
        if not known or len(moving) > 1 or any(s is None for each in steps.values() for s in each):
            return None, None, rows
        return since, limit, [*moving, *(a for a in rows if a not in moving)]

    def bounds(self, score: Scalar, keys: Axis, space: Space) -> tuple[Dim | None, Dim | None]:
        """The first and the last key that is seen, where selects hide all others."""
        hidden = hidden_score(score)
        if hidden is None or not hidden <= _UNSEEN:
            return None, None
        since: Dim | None = None
        limit: Dim | None = None
        frame = self.expander.frame(space.env)
        for seen in seen_where(score):
            match seen:
                case Compare(op="le" | "lt", a=low, b=high):
                    pass
                case Compare(op="ge" | "gt", a=high, b=low):
                    pass
                case _:
                    continue
            if low.dtype != "int64":
                continue
            room = dim_sub(
                self.indices.poly(self.expander.evaluate(high, frame)),
                self.indices.poly(self.expander.evaluate(low, frame)),
            )
            room = dim_sub(room, 1) if seen.op in ("lt", "gt") else room
            match self.indices.coefficient(room, keys):
                case -1 if limit is None:
                    limit = dim_add(room, self.indices.axis(keys))
                case 1 if since is None:
                    since = dim_sub(self.indices.axis(keys), room)
        return since, limit

    # -- stages under the axes of the result

    def stage(self, value: Scalar) -> Kept | None:
        """The kept stage that a value is an element of."""
        if isinstance(value, Load) and isinstance(value.source, Tensor):
            return self.by_origin.get(id(value.source.stage))
        return None

    def _is_sum(self, value: Load) -> bool:
        kept = self.stage(value)
        return kept is not None and self.sum(kept, value) is not None

    def evaluate(self, kept: Kept, root: Scalar, at: Load | None, more: Env) -> Scalar:
        env: dict[Axis, Scalar] = dict(more)
        if at is not None:
            env.update(zip(kept.stage.axes, at.indices, strict=True))
        return self.expander.evaluate(root, self.expander.frame(env))

    def body(self, value: Scalar, over: Axis | None, kind: str = "") -> Scalar | None:
        """What an element is computed from; of a reduction of this kind: each of its elements, at ``over``."""
        kept = self.stage(value)
        if kept is None or not isinstance(kept.stage, Compute) or len(kept.stage.bodies) != 1:
            return None
        assert isinstance(value, Load)
        (body,) = kept.stage.bodies
        if over is None:
            return None if isinstance(body, Reduce) else self.evaluate(kept, body, value, {})
        if not isinstance(body, Reduce) or body.kind != kind or len(body.axes) != 1:
            return None
        if not known_equal(body.axes[0].extent, over.extent):
            return None
        return self.evaluate(kept, body.body, value, {body.axes[0]: over})

    def sum(self, kept: Kept, at: Load | None) -> tuple[Axis, Scalar] | None:
        """A sum over one axis: the axis, and what is summed."""
        if not isinstance(kept.stage, Compute) or len(kept.stage.bodies) != 1:
            return None
        (body,) = kept.stage.bodies
        if not isinstance(body, Reduce) or body.kind != "sum" or body.dtype != body.body.dtype:
            return None
        over = [a for a in body.axes if a.extent != 1]
        return (over[0], self.evaluate(kept, body.body, at, {})) if len(over) == 1 else None


def hidden_score(score: Scalar) -> float | None:
    """The score of what a select hides."""
    return float(score.b.value) if isinstance(score, Select) and isinstance(score.b, Const) else None


def seen_where(value: Scalar) -> list[Scalar]:
    """What holds where the selects around a value do not give their one other number."""
    found: list[Scalar] = []
    other = value.b if isinstance(value, Select) else value
    while isinstance(value, Select) and isinstance(value.b, Const) and same(value.b, other):
        todo = [value.cond]
        while todo:
            cond = todo.pop()
            if isinstance(cond, Binary) and cond.op == "and" and cond.dtype == "bool":
                todo += [cond.b, cond.a]
            else:
                found.append(cond)
        value = value.a
    return found


def factors(value: Scalar) -> tuple[Scalar, Scalar] | None:
    return (value.a, value.b) if isinstance(value, Binary) and value.op == "mul" else None


def replaced(value: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """A value with another in the place of what is the same as ``old``."""
    return transform(value, lambda n: new if n is old or (isinstance(n, Load) and same(n, old)) else n)


def _reads(value: Scalar, load: Load) -> bool:
    return any(isinstance(n, Load) and n.source is load.source for n in walk(value))


def source_of(value: Scalar) -> Load | None:
    """The load that an operand is, at most converted."""
    load = value.a if isinstance(value, Cast) else value
    return load if isinstance(load, Load) and isinstance(load.source, Tensor) else None
