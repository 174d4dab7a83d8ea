"""Reductions that select one place (`te.scatter`): the neutral element, and then every value added to where it belongs, in order.

Threads share out the axes that a value has in common with the result, never the places: each element is made by one thread in one
order, so the result does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.ir.dim import ceil_div, dim_mul, shape_size
from relay.ir.types import dtype_bits, is_float
from relay.loop.ir import Branch, Buffer, LetScalar, Stmt, Store
from relay.plan.build import Builder, Storage, allocate, extent_of, parallel, parallel_rows, seq, serial, vectorized
from relay.plan.expand import cost
from relay.plan.graph import tensor_key
from relay.plan.reduction import combine, initial
from relay.plan.stages import Kept
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    ReduceKind,
    Scalar,
    binary,
    cast,
    compare,
    conjuncts,
    minimum,
    select,
    walk,
)
from relay.te.scatter import Scatter
from relay.te.tensor import Tensor

# Elements of a row that one task owns.
_BLOCK = 128
# Elements that are cleared at a time.
_PAGES = 4096


def scatter_nest(builder: Builder, kept: Kept, form: Scatter) -> Stmt:
    """The loops of one such reduction."""
    stage = kept.origin
    dtype = kept.dtypes[0]
    where = builder.storage[tensor_key(Tensor(stage, 0, stage.shape, dtype))]
    env: dict[Axis, Scalar] = {a: Const(0, "int64") for a in (*stage.axes, *form.over) if a.extent == 1}
    through = [a for a in form.through if a.extent != 1]
    tasks: list[Axis] = list(through)
    lane: Axis | None = None
    count: Scalar | None = None
    last = through[-1] if through else None
    wide = [a for a in stage.axes if a.extent != 1]
    if last is not None and last is wide[-1] and not any(last in walk(p) for p in form.places.values()):
        rows = through[:-1]
        block, lane = Axis("block", ceil_div(last.extent, _BLOCK)), Axis("lane", _BLOCK)
        start: Scalar = Const(0, "int64") if block.extent == 1 else binary("mul", block, _BLOCK)
        count = minimum(_BLOCK, binary("sub", extent_of(last.extent), start))
        env[last] = binary("add", start, lane)
        tasks = [*rows, block]

    def across(body: Stmt) -> Stmt:
        return body if lane is None or count is None else vectorized(lane, count, body)

    names = {a: Axis(builder.fresh("at"), a.extent) for a in form.places}
    place = builder.evaluate([form.places[a] for a in names], env)
    at = builder.flat(where, [names.get(a, env.get(a, a)) for a in stage.axes])
    # What is the same for all lanes is asked before the place is read.
    lanewise = [p for p in conjuncts(form.guard) if lane is not None and last in walk(p)]
    before = [p for p in conjuncts(form.guard) if p not in lanewise]
    (value,) = builder.evaluate([form.value], {**env, **names})
    for guard in builder.evaluate(lanewise, env):
        value = select(guard, value, initial(form.kind, dtype))
    made = _wide(builder, where, form.kind)
    now = Load(made, (at,), made.dtype)
    body: Stmt = across(Store(made, (at,), combine(form.kind, now, cast(value, made.dtype))))
    for axis, index in zip(names, place, strict=True):
        name = names[axis]
        inside = binary("and", compare("ge", name, 0), compare("lt", name, extent_of(axis.extent)))
        body = LetScalar(name, index, Branch(inside, body))
    for guard in reversed(builder.evaluate(before, env)):
        if not (isinstance(guard, Const) and guard.value):
            body = Branch(guard, body)
    work = dim_mul(shape_size(tuple(a.extent for a in form.over)), max(1, cost(value)))
    if lane is not None:
        work = dim_mul(work, _BLOCK)
    steps = [
        _everywhere(builder, made, lambda _: initial(form.kind, made.dtype)),
        parallel_rows(builder, tasks, work, serial(list(form.over), body)),
    ]
    if made is where.buffer:
        return seq(steps)
    narrowed = _everywhere(builder, where.buffer, lambda at: cast(Load(made, (at,), made.dtype), dtype))
    return allocate([made], seq([*steps, narrowed]))


def _wide(builder: Builder, where: Storage, kind: ReduceKind) -> Buffer:
    """Where values are combined: sums and products of sixteen bits in float32, as everywhere (a sum would stop growing at 256 times
    what is added); anything else where the result is."""
    buffer = where.buffer
    if kind not in ("sum", "prod") or not is_float(buffer.dtype) or dtype_bits(buffer.dtype) != 16:
        return buffer
    return Buffer(builder.fresh("sums"), buffer.shape, "float32", "workspace")


def _everywhere(builder: Builder, buffer: Buffer, value: Callable[[Scalar], Scalar]) -> Stmt:
    """What ``value`` says of a place, in the whole buffer, along memory."""
    total = buffer.shape[0]
    lane = Axis("lane", _PAGES)

    def block(b: Axis) -> Stmt:
        start = binary("mul", b, _PAGES)
        count = minimum(_PAGES, binary("sub", extent_of(total), start))
        place = binary("add", start, lane)
        return vectorized(lane, count, Store(buffer, (place,), value(place)))

    return parallel(builder, ceil_div(total, _PAGES), _PAGES, block, "block")
