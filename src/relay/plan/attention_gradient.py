"""The gradient of attention: five products and a softmax, in one pass over blocks of keys and rows.

With the shares P of the keys and the cotangents dO of the result, dP = dO V^T, dS = P * (dP - what a row has in all) and so on give

    dQ = dS K,    dK = dS^T Q,    dV = P^T dO

(Dao et al., FlashAttention, 2022, appendix B.2). The stages of this are recognised by what they read (`find_attention_gradients`),
never by an operator's name: a sum over keys of weights that are made of a softmax's shares and of a product with values, and the
sums over rows of the same weights and of the shares. So are sums of whatever else is made of these for each row and key, over any axes or
none: dS goes back to a bias that was added to the scores. No matrix of rows and keys is in memory but such a bias's own:
`attention_gradient_nest`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from relay.ir.dim import Dim, known_equal
from relay.ir.record import record
from relay.loop.walk import same
from relay.plan.attention import (
    LARGEST_HEAD,
    Attention,
    Finder,
    Scores,
    factors,
    hidden_score,
    seen_where,
    source_of,
)
from relay.plan.build import position_read
from relay.plan.expand import Env
from relay.plan.graph import TeGraph, loads
from relay.plan.space import Accesses, Space
from relay.plan.stages import Kept
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Cast,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    binary,
    cast,
    mentioned,
    transform,
    walk,
)
from relay.te.tensor import Compute, Tensor, stage_bodies


@record(frozen=True, slots=True, eq=False)
class Rows:
    """A sum over the rows for each key: the stage, and what its axes are in the axes of the gradient (`AttentionGradient.of`)."""

    kept: Kept
    env: Mapping[Axis, Scalar]


@record(frozen=True, slots=True, eq=False)
class Beside:
    """What else is made of the scores' cotangents: the stage, where it has what belongs to a row and a key (an index for each of its
    axes, in the axes of the gradient), and the ``value`` that is added there, like `AttentionGradient.weight`."""

    kept: Kept
    place: tuple[Scalar, ...]
    value: Scalar


@record(frozen=True, slots=True, eq=False)
class AttentionGradient:
    """Recognised gradients. ``of`` is the attention in the axes of the query's cotangent, with that as its ``kept`` and the axis of
    the result's columns as its ``column``.

    ``weight`` is dS, over ``of.raw``, ``share`` (P) and ``of_share`` (dP); ``counted`` is the share that values are weighed
    with, over ``share``. ``cotangent`` is that of the result, ``along`` the axis of the query's cotangent that is its depth.
    """

    of: Attention
    cotangent: Scalar
    weight: Scalar
    counted: Scalar
    share: Axis
    of_share: Axis
    along: Axis
    of_key: Rows
    of_value: Rows
    beside: tuple[Beside, ...] = ()

    @property
    def stages(self) -> tuple[Kept, ...]:
        return self.of.kept, self.of_key.kept, self.of_value.kept, *(b.kept for b in self.beside)


def find_attention_gradients(
    stages: Sequence[Kept], graph: TeGraph, indices: Indices
) -> tuple[list[Kept], dict[int, AttentionGradient]]:
    """The stages without those that gradients of attention absorb, and the gradients by the id of the query's cotangent, which the
    others follow at once. What reads these comes after, what they read before."""
    by_origin = {id(k.origin): k for k in stages}
    outputs = {id(t.stage) for t in graph.outputs}
    readers: dict[int, set[int]] = {}
    for kept in stages:
        for source in _sources(kept):
            readers.setdefault(source, set()).add(id(kept.origin))
    for kept in stages:
        finder = _GradientFinder(by_origin, indices, outputs=outputs)
        found = finder.gradient(kept)
        if found is None:
            continue
        ends = found.stages
        inside = finder.absorbed | {id(k.origin) for k in ends}
        if any(a in outputs or not readers[a] <= inside for a in finder.absorbed):
            continue
        after = {id(k.origin) for k in ends}
        early: list[Kept] = []
        late: list[Kept] = []
        for other in stages:
            own = id(other.origin)
            if own in inside:
                continue
            if any(s in after for s in _sources(other)):
                after.add(own)
                late.append(other)
            else:
                early.append(other)
        return [*early, *ends, *late], {id(kept.origin): found}
    return list(stages), {}


def _sources(kept: Kept) -> set[int]:
    return {id(n.source.stage) for b in stage_bodies(kept.stage) for n in loads(b) if isinstance(n.source, Tensor)}


@record(slots=True, eq=False)
class _GradientFinder(Finder):
    """Looks from the query's cotangent to the products and the softmax, and from these to the other cotangents."""

    # Ids of the stages that are outputs.
    outputs: Container[int] = ()

    def gradient(self, kept: Kept) -> AttentionGradient | None:
        """The gradient whose cotangent of the query is this stage, if it is one."""
        product = self.sum(kept, None)
        pair = None if product is None else factors(product[1])
        if product is None or pair is None:
            return None
        for weights, key in (pair, pair[::-1]):
            stage = self.stage(weights)
            if stage is not None and not stage.is_reduction and isinstance(weights, Load):
                found = self._of_weights(kept, product[0], weights, key)
                if found is not None:
                    return found
        return None

    def _of_weights(self, kept: Kept, keys: Axis, weights: Load, key: Scalar) -> AttentionGradient | None:
        whole = self.body(weights, None)
        if whole is None:
            return None
        between: list[Scalar] = []
        whole = self.opened(whole, between, lambda load: self.scores(load, keys) is not None)
        reads = [n for n in walk(whole) if isinstance(n, Load) and self.stage(n) is not None]
        shares = [(n, s) for n in reads if (s := self.scores(n, keys)) is not None]
        products = [(n, p) for n in reads if (p := self._with_values(n, keys)) is not None]
        products = [(n, p) for n, p in products if not any(same(n, s.product) for _, s in shares)]
        if len(shares) != 1 or len(products) != 1:
            return None
        ((share, scores),) = shares
        ((product, (column, cotangent, value)),) = products
        apart = [a for a in kept.stage.axes if a.extent != 1 and a not in mentioned(weights)]
        sizes = [scores.depth.extent, column.extent]
        if len(apart) != 1 or any(not isinstance(s, int) or not 1 < s <= LARGEST_HEAD for s in sizes):
            return None
        (along,) = apart
        dtype, operands = scores.raw.dtype, [scores.query, scores.key, value, cotangent]
        if dtype not in ("float32", "float64") or {scores.score.dtype, product.dtype, *kept.dtypes} != {dtype}:
            return None
        if any(source_of(v) is None for v in (*operands, key)) or not known_equal(along.extent, scores.depth.extent):
            return None
        space = Space([[a for a in kept.stage.axes if a.extent != 1 and a is not along]], {})
        found = space.normalise_splits(self.indices, lambda env: Accesses(self._places(operands, env), frozenset()))
        depths = (scores.depth, scores.depth, column, column)
        if not self._same_place(key, {**space.env, along: scores.depth}, scores.key, space.env) or any(
            self.indices.coefficient(p, a) is None for p, a in zip(found.polys, depths, strict=True)
        ):
            return None
        shared, of_share = Named("share", dtype), Named("of_share", dtype)
        stands = ((share, shared), (product, of_share), (scores.product, scores.raw))

        def stand_in(node: Scalar) -> Scalar:
            return next((v for load, v in stands if isinstance(node, Load) and same(node, load)), node)

        weight = transform(whole, stand_in)
        of_key = self._of_keys(space, keys, weights, scores)
        of_value = self._of_values(space, keys, share, shared, column, cotangent)
        if of_key is None or of_value is None:
            return None
        values, counted, inside = of_value
        (outer,) = space.groups
        summed = [{a for a in outer if a in _reduced(rows)} for rows in (of_key, values)]
        rows = [a for a in outer if a in summed[0]]
        if summed[0] != summed[1] or any(self.indices.coefficient(p, a) != 0 for p in found.polys[1:3] for a in rows):
            return None
        since, limit, rows = self.seen(scores.score, keys, space, rows)
        hidden = hidden_score(scores.score)
        hidden = -inf if hidden is None else hidden
        self.absorbed |= scores.absorbed | inside
        self.absorbed |= {id(s.origin) for s in map(self.stage, (weights, product, *between)) if s is not None}
        beside = self._beside({id(k.origin) for k in (kept, of_key.kept, values.kept)}, space, share, stands)
        # What is hidden is left out only where nothing is made of it.
        nothing = [weight, *(b.value for b in beside), *([counted] if hidden == -inf else [])]
        if not all(_nothing_unseen(w, scores.score) for w in nothing):
            since = limit = None
        # One body with all that is read, for those who look at the stage's loads.
        body = whole
        for value_read in (*operands, scores.score):
            body = binary("mul", body, cast(value_read, dtype))
        body = Reduce("sum", (keys, scores.depth, column), body, dtype)
        kept = replace(kept, stage=Compute(kept.stage.name, kept.stage.axes, (body,)))
        batch = tuple(a for a in outer if a not in rows)
        of = Attention(
            kept, scores.query, scores.key, value, scores.score, scores.raw, keys, scores.depth, column, space, batch,
            tuple(rows), since, limit, hidden, shared, shared,
        )  # fmt: skip
        return AttentionGradient(of, cotangent, weight, counted, shared, of_share, along, of_key, values, beside)

    def _with_values(self, load: Load, keys: Axis) -> tuple[Axis, Scalar, Scalar] | None:
        """Of a product with the values: the axis that it is summed over, the cotangent and the value."""
        pair = self.product(load)
        if pair is None:
            return None
        column, left, right = pair
        turned = [keys in mentioned(f) for f in (left, right)]
        if turned.count(True) != 1:
            return None
        return (column, right, left) if turned[0] else (column, left, right)

    def _places(self, operands: Sequence[Scalar], env: Env) -> tuple[Dim, ...]:
        """Where operands are read, in elements of their tensors."""
        frame = self.expander.frame(env)
        found = [source_of(self.expander.evaluate(v, frame)) for v in operands]
        return tuple(position_read(self.indices, load) for load in found if load is not None)

    def _same_place(self, a: Scalar, env: Env, b: Scalar, other: Env) -> bool:
        """Whether an operand under some axes is another one under others."""
        one, two = source_of(a), source_of(b)
        if one is None or two is None or one.source is not two.source:
            return False
        return self._places([a], env) == self._places([b], other)

    # -- the other two cotangents

    def _of_keys(self, space: Space, keys: Axis, weights: Load, scores: Scores) -> Rows | None:
        for kept, left, right in self._sums():
            if left.source is not weights.source:
                continue
            found = self._rows(kept, left, right, space, keys, weights, scores.depth, scores.query)
            if found is not None:
                return found
        return None

    def _of_values(
        self, space: Space, keys: Axis, share: Load, shared: Axis, column: Axis, cotangent: Scalar
    ) -> tuple[Rows, Scalar, set[int]] | None:
        """The cotangent of the values, the share that they are weighed with, and the stage of that where it has one."""
        for kept, left, right in self._sums():
            whole = left if left.source is share.source else self.body(left, None)
            reads = (
                [] if whole is None else [n for n in walk(whole) if isinstance(n, Load) and n.source is share.source]
            )
            if whole is None or len(reads) != 1:
                continue
            found = self._rows(kept, reads[0], right, space, keys, share, column, cotangent)
            if found is not None:
                (own,) = reads
                counted = shared if whole is own else transform(whole, _replacing(own, shared))
                stage = None if whole is left else self.stage(left)
                frame = self.expander.frame(found.env)
                return found, self.expander.evaluate(counted, frame), set() if stage is None else {id(stage.origin)}
        return None

    def _sums(self) -> Iterator[tuple[Kept, Load, Scalar]]:
        """The sums of products of a kept stage's element and something else."""
        for kept in self.by_origin.values():
            stage = kept.stage
            if not isinstance(stage, Compute) or len(stage.bodies) != 1:
                continue
            (body,) = stage.bodies
            pair = factors(body.body) if isinstance(body, Reduce) and body.kind == "sum" else None
            for left, right in () if pair is None else (pair, pair[::-1]):
                own = self.stage(left)
                if isinstance(left, Load) and own is not None and not own.is_reduction:
                    yield kept, left, right

    def _rows(
        self,
        kept: Kept,
        left: Load,
        right: Scalar,
        space: Space,
        keys: Axis,
        reference: Load,
        column: Axis,
        operand: Scalar,
    ) -> Rows | None:
        """See a sum as one over rows: ``left`` is read where ``reference`` is, ``right`` is ``operand`` (along ``column``)."""
        frame = self.expander.frame(space.env)
        known = [self.indices.poly(self.expander.evaluate(i, frame)) for i in reference.indices]
        own = [self.indices.poly(i) for i in left.indices]
        targets = [*(a for group in space.groups for a in group), keys]
        wide = [a for a in (*kept.stage.axes, *kept.reduce_axes) if a.extent != 1]
        env: dict[Axis, Scalar] = {a: Const(0, "int64") for a in (*kept.stage.axes, *kept.reduce_axes) if a.extent == 1}
        for axis in wide:
            for mine, theirs in zip(own, known, strict=True):
                step = self.indices.coefficient(mine, axis)
                if step is None or step == 0:
                    continue
                alike = [a for a in targets if self.indices.coefficient(theirs, a) == step]
                env.update((axis, a) for a in alike if known_equal(a.extent, axis.extent))
        apart = [a for a in wide if a not in env]
        if len(apart) != 1 or apart[0] not in kept.stage.axes or not known_equal(apart[0].extent, column.extent):
            return None
        env[apart[0]] = column
        frame = self.expander.frame(env)
        if [self.indices.poly(self.expander.evaluate(i, frame)) for i in left.indices] != known:
            return None
        if not self._same_place(right, env, operand, space.env):
            return None
        used = [v for a, v in env.items() if a.extent != 1]
        reduced = [env[a] for a in kept.reduce_axes if a.extent != 1]
        if (
            len(set(used)) != len(used)
            or keys in reduced
            or len(used) != len(targets) + 1
            or kept.dtypes[0] != left.dtype
        ):
            return None
        return Rows(kept, env)

    # -- what else is made of the scores' cotangents

    def _beside(
        self, made: set[int], space: Space, share: Load, stands: Sequence[tuple[Load, Axis]]
    ) -> tuple[Beside, ...]:
        """What else than the stages that are ``made`` is a sum of elements for rows and keys. What these read is absorbed, and may be
        an output itself."""
        out: list[Beside] = []
        inner: set[int] = set()
        for kept in self.by_origin.values():
            own = id(kept.origin)
            if own in made or (own in self.absorbed and own not in self.outputs):
                continue
            found = self._made_beside(kept, space, share, stands)
            if found is not None:
                out.append(found[0])
                inner |= found[1]
        # What only others are made of is in them.
        out = [b for b in out if id(b.kept.origin) in self.outputs or id(b.kept.origin) not in inner]
        self.absorbed |= inner
        self.absorbed -= {id(b.kept.origin) for b in out}
        return tuple(out)

    def _made_beside(
        self, kept: Kept, space: Space, share: Load, stands: Sequence[tuple[Load, Axis]]
    ) -> tuple[Beside, set[int]] | None:
        stage = kept.stage
        if not isinstance(stage, Compute) or len(stage.bodies) != 1:
            return None
        (body,) = stage.bodies
        if isinstance(body, Reduce):
            if body.kind != "sum" or body.dtype != body.body.dtype:
                return None
            body = body.body
        between: list[Scalar] = []
        value = self.opened(body, between, lambda load: load.source is share.source)
        reads = [n for n in walk(value) if isinstance(n, Load) and n.source is share.source]
        if not reads:
            return None
        # Each of its axes is one of the shares', all of it, and the other way round.
        frame = self.expander.frame(space.env)
        axes = {a for a in (*stage.axes, *kept.reduce_axes) if a.extent != 1}
        env: dict[Axis, Scalar] = {a: Const(0, "int64") for a in (*stage.axes, *kept.reduce_axes) if a.extent == 1}
        for own, theirs, size in zip(reads[0].indices, share.indices, share.source.shape, strict=True):
            if size == 1:
                continue
            if not isinstance(own, Axis) or own in env or own not in axes or not known_equal(own.extent, size):
                return None
            env[own] = self.expander.evaluate(theirs, frame)
        if not axes <= env.keys():
            return None
        inside = self.expander.frame(env)
        value = self.expander.evaluate(value, inside)
        named = [(load.source, self._polys(load, frame), name) for load, name in stands]

        def stand_in(node: Scalar) -> Scalar:
            if not isinstance(node, Load):
                return node
            at = [self.indices.poly(i) for i in node.indices]
            return next((name for source, polys, name in named if node.source is source and polys == at), node)

        value = transform(value, stand_in)
        inner = {id(s.origin) for s in map(self.stage, between) if s is not None}
        left = {id(s.origin) for n in walk(value) if isinstance(n, Load) and (s := self.stage(n)) is not None}
        if left & (self.absorbed | inner):
            return None
        return Beside(kept, tuple(env[a] for a in stage.axes), value), inner

    def _polys(self, load: Load, frame: int) -> list[Dim]:
        return [self.indices.poly(self.expander.evaluate(i, frame)) for i in load.indices]


def _replacing(old: Scalar, new: Scalar) -> Callable[[Scalar], Scalar]:
    return lambda n: new if n is old else n


def _reduced(rows: Rows) -> set[Scalar]:
    return {rows.env[a] for a in rows.kept.reduce_axes if a.extent != 1}


def _nothing_unseen(value: Scalar, score: Scalar) -> bool:
    """Whether a value is 0 where the score is hidden."""
    value = value.a if isinstance(value, Cast) else value
    if not isinstance(value, Select) or not isinstance(value.b, Const) or value.b.value != 0:
        return False
    zero = seen_where(value)
    return all(any(same(cond, z) for z in zero) for cond in seen_where(score))
