"""What the schedules of attention share: where elements are, and the steps of a softmax over blocks of keys.

A *line* is one row of the result: a query of a head. Its maximum (``top``), the ``total`` of its weights and the ``sums`` of
its weighted values so far are in the task's memory, and so are the ``scores`` of a block of keys, which become weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from relay.ir.dim import Dim, dim_add, dim_bounds, dim_mul, dim_sub, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Alloc, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, Transpose
from relay.plan.attention import Attention
from relay.plan.build import STACK_BYTES, Builder, bound, ceiling, seq
from relay.plan.generic import pointwise_statements
from relay.plan.nests import Member
from relay.plan.product import unflatten
from relay.plan.reduction import combine, initial
from relay.te.scalar import (
    Axis,
    Cast,
    Const,
    Load,
    Named,
    Scalar,
    Select,
    binary,
    cast,
    compare,
    extent_of,
    maximum,
    minimum,
    select,
    unary,
    walk,
)

# A multiply-add is this much cheaper than the simple operation that costs are counted in.
_FMA_DISCOUNT = 4
# So far below the maximum a score has no weight: the exponential of it is 0.
NOTHING = {"float32": 110.0, "float64": 750.0}
# So far below the maximum it counts for nothing beside it: its weight would be a subnormal number, or make some, and arithmetic on these
# takes many times as long.
_SLIGHT = {"float32": 80.0, "float64": 700.0}


@record(slots=True, eq=False)
class Lines:
    """Attention (``members[0]``) and its epilogue (the other members), a line at a time."""

    builder: Builder
    a: Attention
    members: Sequence[Member]
    lanes: int = 1
    buffers: dict[str, Buffer] = field(default_factory=dict)
    # What axes are inside the statement being made, where they are not loops of their own.
    env: dict[Axis, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lanes = self.builder.target.lanes(dtype_bits(self.a.dtype))

    # -- sizes

    @property
    def n_rows(self) -> Dim:
        return shape_size(tuple(a.extent for a in self.a.rows))

    @property
    def n_keys(self) -> Dim:
        return self.a.keys.extent

    @property
    def depth(self) -> int:
        assert isinstance(self.a.depth.extent, int)
        return self.a.depth.extent

    @property
    def columns(self) -> int:
        assert isinstance(self.a.column.extent, int)
        return self.a.column.extent

    @property
    def cost(self) -> int:
        """Simple operations of a row and a key."""
        return (self.depth + self.columns) // _FMA_DISCOUNT + 8

    # -- elements

    def frame(self, more: Mapping[Axis, Scalar]) -> dict[Axis, Scalar]:
        """What the attention's axes are, given the split ones that are in scope and these."""
        out: dict[Axis, Scalar] = {**self.env, **more}
        for axis, value in self.a.space.env.items():
            out[axis] = self.builder.evaluate([value], {**self.env, **more})[0]
        return out

    def element(self, value: Scalar, more: Mapping[Axis, Scalar]) -> Scalar:
        return cast(self.builder.evaluate([value], self.frame(more))[0], self.a.dtype)

    @property
    def reads_keys_along_depth(self) -> bool:
        return self.step(self.a.key, self.a.depth) == 1

    @property
    def reads_values_along_columns(self) -> bool:
        return self.step(self.a.value, self.a.column) == 1

    def step(self, value: Scalar, axis: Axis) -> Dim | None:
        """How far apart in memory an operand's elements along an axis are; None where not evenly."""
        load = self.element(value, {})
        load = load.a if isinstance(load, Cast) else load
        assert isinstance(load, Load)
        return self.builder.indices.coefficient(self.builder.indices.poly(load.indices[0]), axis)

    def row(self, at: Scalar) -> tuple[list[tuple[Axis, Scalar]], dict[Axis, Scalar]]:
        """Bindings for a row's number, and what the row axes are in terms of them."""
        line = Axis("row", self.n_rows)
        bindings: list[tuple[Axis, Scalar]] = [(line, at)]
        env: dict[Axis, Scalar] = {}
        for axis, value in unflatten(self.a.rows, line).items():
            name = Axis(axis.name, axis.extent)
            bindings.append((name, value))
            env[axis] = name
        return bindings, env

    def memory(self, name: str, size: int) -> Buffer:
        """A buffer of the task's own."""
        bits = dtype_bits(self.a.dtype)
        return Buffer(
            self.builder.fresh(name), (size,), self.a.dtype, "stack" if size * bits <= 8 * STACK_BYTES else "worker"
        )

    def query(self, row: Scalar, bindings: list[tuple[Axis, Scalar]]) -> Callable[[Axis], Scalar]:
        """A row of the query, by the position in its depth; what it needs is bound first."""
        named, env = self.row(row)
        bindings += named
        element = self.element(self.a.query, env)
        load = element.a if isinstance(element, Cast) else element
        assert isinstance(load, Load)
        indices, depth = self.builder.indices, self.a.depth
        at = indices.poly(load.indices[0])
        step = indices.coefficient(at, depth)
        assert step is not None
        origin = Axis("q", 1 << 62)
        bindings.append((origin, indices.scalar(dim_sub(at, dim_mul(step, indices.axis(depth))))))

        def read(d: Axis) -> Scalar:
            place = binary("add", origin, indices.scalar(dim_mul(step, indices.axis(d))))
            return cast(Load(load.source, (place,), load.dtype), self.a.dtype)

        return read

    @property
    def hides(self) -> bool:
        """Whether it is known which keys a row sees."""
        return self.a.since is not None or self.a.limit is not None

    def seen(self, row: Scalar) -> Scalar:
        """The first key that the row does not see any more."""
        if self.a.limit is None:
            return extent_of(self.n_keys)
        return maximum(minimum(self._bound(dim_add(self.a.limit, 1), row), extent_of(self.n_keys)), 0)

    def begin(self, row: Scalar) -> Scalar:
        """The first key that the row sees."""
        return Const(0, "int64") if self.a.since is None else maximum(self._bound(self.a.since, row), 0)

    def _bound(self, bound: Dim, row: Scalar) -> Scalar:
        (value,) = self.builder.evaluate([self.builder.indices.scalar(bound)], unflatten(self.a.rows, row))
        return value

    def pack_panels(self, target: Buffer, value: Scalar, along: Axis, first: Scalar, count: Scalar, width: int) -> Stmt:
        """``count`` keys from ``first`` on in panels ``[panel][along][lane]``, of what they have along an axis. Past the last key come
        zeros up to a whole vector: what old memory holds there would not matter, but may be subnormal numbers, which are slow."""
        assert isinstance(along.extent, int)
        indices, depth = self.builder.indices, Const(along.extent, "int64")
        panel, lane, d = Axis("panel", 1 << 16), Axis("j", width), Axis("d", along.extent)
        inside = binary("add", binary("mul", panel, width), lane)
        element = self.element(value, {self.a.keys: binary("add", first, inside), along: d})
        start = binary("mul", panel, along.extent * width)
        lanes = minimum(width, binary("sub", count, binary("mul", panel, width)))
        panels = ceiling(count, Const(width, "int64"))
        vector, part = Axis("v", self.lanes), Const(self.lanes, "int64")
        last = binary("add", start, binary("mul", binary("floordiv", lanes, part), self.lanes))
        at_last = binary("add", binary("add", last, binary("mul", d, width)), vector)
        zero = For(vector, part, Store(target, (at_last,), initial("sum", self.a.dtype)), "vectorized")
        clear = Branch(compare("gt", binary("mod", lanes, part), 0), For(d, depth, zero))
        body: Stmt
        if isinstance(element, Load) and isinstance(element.source, Buffer) and self.step(value, along) == 1:
            at = indices.poly(element.indices[0])
            step = indices.coefficient(at, lane)
            if step is not None:
                at = dim_sub(at, dim_add(dim_mul(step, indices.axis(lane)), indices.axis(d)))
                pitch, origin = Const(width, "int64"), indices.scalar(at)
                body = Transpose(target, start, pitch, element.source, origin, extent_of(step), lanes, depth)
                return For(panel, panels, seq([clear, body]))
        place = binary("add", binary("add", start, binary("mul", d, width)), lane)
        body = For(d, depth, For(lane, lanes, Store(target, (place,), element), "vectorized"))
        return For(panel, panels, seq([clear, body]))

    # -- the softmax of a line

    def clear(self, line: Scalar) -> Stmt:
        """No key yet."""
        dtype, lane = self.a.dtype, Axis("j", self.columns)
        zero = initial("sum", dtype)
        place = binary("add", binary("mul", line, self.columns), lane)
        return Seq((
            Store(self.buffers["top"], (line,), initial("max", dtype)),
            Store(self.buffers["total"], (line,), zero),
            For(lane, Const(self.columns, "int64"), Store(self.buffers["sums"], (place,), zero), "vectorized"),
        ))  # fmt: skip

    def look(self, line: Scalar, row: Scalar, held: Scalar, first: Scalar, seen: Scalar, size: int) -> Stmt:
        """Scores of a block of keys (``size`` at most, from ``first`` on; in place number ``held``) and their maximum:
        ``top`` becomes the new one, what it was goes to ``before``."""
        dtype, scores, lane, zero = self.a.dtype, self.buffers["scores"], Axis("j", size), Const(0, "int64")
        bindings, env = self.row(row)
        at = (binary("add", binary("mul", held, size), lane),)
        env = {**env, self.a.keys: binary("add", first, lane), self.a.raw: Load(scores, at, dtype)}
        score, best = Named("score", dtype), Buffer(self.builder.fresh("best"), (1,), dtype, "register")
        top, before = self.buffers["top"], self.buffers["before"]
        higher = Store(best, (zero,), combine("max", Load(best, (zero,), dtype), score))
        body = LetScalar(score, self.element(self.a.score, env), Seq((Store(scores, at, score), higher)))
        # Where every key so far is hidden the maximum is no number to subtract: then the least finite one is.
        least = Const(-float(np.finfo(dtype).max), dtype)
        highest = maximum(maximum(Load(top, (line,), dtype), Load(best, (zero,), dtype)), least)
        steps: list[Stmt] = [
            Store(best, (zero,), initial("max", dtype)),
            For(lane, seen, body, "vectorized"),
            Store(before, (held,), Load(top, (line,), dtype)),
            Store(top, (line,), highest),
        ]
        return bound(bindings, Alloc(best, Seq(tuple(steps))))

    def shrink(self, line: Scalar, held: Scalar) -> Stmt:
        """What was summed under the maximum before, under the new one."""
        dtype, scale = self.a.dtype, Named("scale", self.a.dtype)
        total, sums, column = self.buffers["total"], self.buffers["sums"], Axis("c", self.columns)
        place = (binary("add", binary("mul", line, self.columns), column),)
        less = Store(sums, place, binary("mul", Load(sums, place, dtype), scale))
        body = Seq((
            Store(total, (line,), binary("mul", Load(total, (line,), dtype), scale)),
            For(column, Const(self.columns, "int64"), less, "vectorized"),
        ))  # fmt: skip
        fall = binary("sub", Load(self.buffers["before"], (held,), dtype), Load(self.buffers["top"], (line,), dtype))
        return LetScalar(scale, unary("exp", fall), body)

    def weigh(self, line: Scalar, row: Scalar, held: Scalar, first: Scalar, seen: Scalar, size: int) -> Stmt:
        """Scores become shares, which are added to the total, and weights."""
        dtype, scores, lane, zero = self.a.dtype, self.buffers["scores"], Axis("j", size), Const(0, "int64")
        total, at = self.buffers["total"], (binary("add", binary("mul", held, size), lane),)
        new, e = Named("new", dtype), Named("e", dtype)
        sum_ = Buffer(self.builder.fresh("sum"), (1,), dtype, "register")
        more = Store(sum_, (zero,), binary("add", Load(sum_, (zero,), dtype), e))
        weight = self.exponential(Load(scores, at, dtype), new)
        bindings, env = self.row(row) if self.a.weight is not self.a.share else ([], {})
        weighed = self.element(self.a.weight, {**env, self.a.keys: binary("add", first, lane), self.a.share: e})
        body = LetScalar(e, weight, Seq((Store(scores, at, weighed), more)))
        steps: list[Stmt] = [
            Store(sum_, (zero,), Load(total, (line,), dtype)),
            For(lane, seen, body, "vectorized"),
            Store(total, (line,), Load(sum_, (zero,), dtype)),
        ]
        bindings.append((new, Load(self.buffers["top"], (line,), dtype)))
        return bound(bindings, Alloc(sum_, Seq(tuple(steps))))

    def exponential(self, score: Scalar, top: Scalar) -> Scalar:
        """The weight of a score beside a maximum. It is at most that, which is said where an exponential of any number takes longer."""
        fall, nothing = binary("sub", score, top), Const(0.0, self.a.dtype)
        known = fall if self.builder.target.mask_registers else minimum(fall, nothing)
        return select(compare("lt", fall, -_SLIGHT[self.a.dtype]), nothing, unary("exp", known))

    def finish(self, line: Scalar, row: Scalar) -> Stmt:
        """A line's sums over its total, through the epilogue, to the outputs."""
        dtype, lane = self.a.dtype, Axis("j", self.columns)
        bindings, env = self.row(row)
        inverse = Named("inverse", dtype)
        one = Const(1.0, dtype)
        chosen = any(isinstance(n, Select) for n in walk(self.a.weight))
        total: Scalar = binary("div", one, Load(self.buffers["total"], (line,), dtype))
        low, _ = dim_bounds(self.n_keys)
        if low is None or low < 1:  # a sum over no keys is zero
            total = select(compare("gt", extent_of(self.n_keys), 0), total, one)
        place = binary("add", binary("mul", line, self.columns), lane)
        value = binary("mul", Load(self.buffers["sums"], (place,), dtype), inverse)
        inside = self.frame({**env, self.a.column: lane})
        canonical = [x for x in self.a.kept.stage.axes if x.extent != 1]
        units = {x: Const(0, "int64") for m in self.members for x in m.kept.stage.axes if x.extent == 1}

        def frame(member: Member) -> dict[Axis, Scalar]:
            own = {mine: inside.get(axis, axis) for mine, axis in zip(member.rows, canonical, strict=True)}
            return {**units, **inside, **own}

        given = {(id(self.a.kept.origin), 0): cast(value, self.a.kept.dtypes[0])}
        body = pointwise_statements(self.builder, self.members, frame, given)
        result = LetScalar(inverse, total, For(lane, Const(self.columns, "int64"), body, "vectorized"))
        return bound(bindings, seq([self._without_shares(line, env), result]) if chosen else result)

    def _without_shares(self, line: Scalar, env: Mapping[Axis, Scalar]) -> Stmt:
        """Where no key is seen, so that shares are nan: sums of those that a condition leaves, which are nan too, or 0 where it leaves
        none. What lies beyond the keys that a row sees was never weighed."""
        dtype, zero, key, lane = self.a.dtype, Const(0, "int64"), Axis("key", self.n_keys), Axis("j", self.columns)
        sum_, total = Buffer(self.builder.fresh("sum"), (1,), dtype, "register"), self.buffers["total"]
        share = self.element(self.a.weight, {**env, self.a.keys: key, self.a.share: Const(math.nan, dtype)})
        place = binary("add", binary("mul", line, self.columns), lane)
        now = Load(sum_, (zero,), dtype)
        steps = seq([
            Store(sum_, (zero,), initial("sum", dtype)),
            For(key, extent_of(self.n_keys), Store(sum_, (zero,), binary("add", now, share))),
            For(lane, Const(self.columns, "int64"), Store(self.buffers["sums"], (place,), now), "vectorized"),
            Store(total, (line,), Const(1.0, dtype)),
        ])  # fmt: skip
        some = compare("gt", Load(total, (line,), dtype), Const(0.0, dtype))
        return Branch(unary("not", some), Alloc(sum_, steps))
