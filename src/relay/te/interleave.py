"""Stages that only put the elements of others between each other: ``out[z] = part_r[z // s]`` where ``z mod s == r``.

A derivative that is made apart for each class of remainders ends in such a stage (`te.autodiff.gather`). The parts may be written
where they belong from the start, at a distance of ``s`` elements from one another; then nothing of the stage is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import ceil_div, dim_sub, known_equal
from relay.ir.record import record
from relay.te.scalar import Axis, Binary, Compare, Const, Load, Scalar, Select, conjuncts
from relay.te.tensor import Compute, Stage, Tensor


@record(frozen=True, slots=True, eq=False)
class Part:
    """``tensor[p]`` is the whole's element at ``step * p + first`` along each axis; ``along`` has for each axis of the tensor the
    whole's (number, step, first)."""

    tensor: Tensor
    along: tuple[tuple[int, int, int], ...]


def interleaved(
    axes: Sequence[Axis], steps: Sequence[int], parts: Sequence[tuple[Sequence[int], Tensor]], dtype: str
) -> Scalar:
    """The body of such a stage over ``axes``: of each part (the remainders along the axes, and a tensor with the axes' order) the
    elements at the quotients. What no part has is 0."""
    body: Scalar = Const(0.0 if dtype.startswith(("float", "bfloat")) else 0, dtype)
    for remainders, tensor in reversed(parts):
        place: list[Scalar] = []
        where: Scalar | None = None
        for axis, step, remainder in zip(axes, steps, remainders, strict=True):
            if step == 1:
                place.append(axis)
                continue
            here = Compare("eq", Binary("mod", axis, Const(step, "int64"), "int64"), Const(remainder, "int64"))
            where = here if where is None else Binary("and", where, here, "bool")
            place.append(Binary("floordiv", axis, Const(step, "int64"), "int64"))
        load = Load(tensor, tuple(place), dtype)
        body = load if where is None else Select(where, load, body, dtype)
    return body


def as_interleave(stage: Stage) -> tuple[Part, ...] | None:
    """See a stage as such; None where it is not one, or where a part has elements that the stage does not have."""
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    body = stage.bodies[0]
    parts: list[Part] = []
    while isinstance(body, Select):
        part = _part(stage.axes, body)
        if part is None:
            return None
        parts.append(part)
        body = body.b
    if not isinstance(body, Const) or len(parts) < 2:
        return None
    # Every element belongs to one part: none twice, and as many as there are combinations of remainders.
    steps = {number: step for number, step, _ in parts[0].along}
    combinations = 1
    for axis, step in steps.items():
        # Of remainders that no index has, there is no part.
        extent = stage.axes[axis].extent
        combinations *= min(step, extent) if isinstance(extent, int) else step
    places = {tuple(sorted(p.along)) for p in parts}
    same = all({n: step for n, step, _ in p.along} == steps for p in parts)
    sources = {(id(p.tensor.stage), p.tensor.index) for p in parts}
    return tuple(parts) if same and len(places) == combinations == len(parts) == len(sources) else None


def _part(axes: tuple[Axis, ...], chosen: Select) -> Part | None:
    load = chosen.a
    if not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return None
    remainders: dict[Axis, tuple[int, int]] = {}
    for cond in conjuncts(chosen.cond):
        match cond:
            case Compare("eq", Binary("mod", Axis() as axis, Const(int(step))), Const(int(first))) if (
                axis not in remainders
            ):
                remainders[axis] = step, first
            case _:
                return None
    along: list[tuple[int, int, int]] = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        step, first = 1, 0
        match index:
            case Axis() as axis if axis not in remainders:
                pass
            case Binary("floordiv", Axis() as axis, Const(int(by))) if axis in remainders and remainders[axis][0] == by:
                step, first = remainders[axis]
            case _:
                return None
        if axis not in axes or not known_equal(extent, ceil_div(dim_sub(axis.extent, first), step)):
            return None
        along.append((axes.index(axis), step, first))
    numbers = [n for n, _, _ in along]
    return Part(load.source, tuple(along)) if sorted(numbers) == list(range(len(axes))) else None
