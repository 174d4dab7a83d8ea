"""The fusion class of a definition, and how it reads its inputs: both are read off the tensor expression.

elementwise   every element is computed from the same index of the inputs
broadcast     the same, where some inputs lack axes or repeat them
injective     any other definition without reductions: elements move
reduction     reductions that share their rows, and what is computed row by row before and after (sum, softmax, layer norm)
contraction   one sum of products with reuse (dense, convolution); what comes before moves elements, what comes after is
              elementwise or broadcast
opaque        everything else: recurrences, several contractions, reductions of different rows
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from relay.ir.dim import Dim
from relay.te.scalar import Axis, Binary, Cast, Const, Load, Reduce, Scalar, Size, walk
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_bodies, stages


class FusionClass(IntEnum):
    """Ordered: the class of a chain of injective definitions is their greatest."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    CONTRACTION = 4
    OPAQUE = 5


class Reading(IntEnum):
    """How an index of the reader becomes the index that is read. Ordered: a chain of readings is as its greatest."""

    IDENTITY = 0  # all axes, in order
    PROJECTION = 1  # some of the axes, in order, other indices constant (a broadcast operand)
    PERMUTATION = 2  # distinct axes in another order
    AFFINE = 3  # sums of axes with integer factors: slices, strides, windows, reduced axes
    GENERAL = 4  # quotients, remainders, choices, or indices that were themselves read


@dataclass(frozen=True, slots=True)
class Access:
    """How a definition reads one input: the greatest `Reading` over all paths, how many loads there are (stages that read it
    count once each), and whether an element may be read for more than one element of a result."""

    reading: Reading
    loads: int
    reused: bool


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a definition; per input its access, None where only its sizes (or nothing) are used."""

    fusion: FusionClass
    inputs: tuple[Access | None, ...]


def classify(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Classified:
    """The class and accesses of a traced definition. Linear in its size."""
    order = stages(outputs)
    reads = {id(s): _stage_reads(s) for s in order}
    return Classified(_fusion(order, reads, outputs), _accesses(inputs, order, reads))


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """One load of a stage."""

    source: Tensor
    reading: Reading
    reused: bool


def _stage_reads(stage: Stage) -> list[_Read]:
    match stage:
        case Placeholder():
            return []
        case Compute():
            reduced = next((b.axes for b in stage.bodies if isinstance(b, Reduce)), ())
        case Scan():
            reduced = ()
        case _ as never:
            assert_never(never)
    out: dict[tuple[int, int, Reading, bool], _Read] = {}
    for root in stage_bodies(stage):
        for node in walk(root):
            if isinstance(node, Load) and isinstance(node.source, Tensor):
                reading, reused = reading_of(node, stage.axes, reduced)
                out[id(node.source.stage), node.source.index, reading, reused] = _Read(node.source, reading, reused)
    return list(out.values())


def reading_of(load: Load, axes: Sequence[Axis], reduced: Sequence[Axis] = ()) -> tuple[Reading, bool]:
    """How a load in a stage with these axes reads its source, and whether elements may be read more than once."""
    single: list[Axis | None] = []
    plain = True
    mentioned: list[Axis] = []
    for index in load.indices:
        found = _affine_axes(index)
        if found is None:
            return Reading.GENERAL, True
        mentioned += found
        alone = _alone(index)
        plain = plain and (alone is not None or not found)
        single.append(alone)
    distinct = len(set(mentioned)) == len(mentioned)
    reused = (
        not distinct
        or not set(mentioned).issuperset((*axes, *reduced))
        or any(len(_affine_axes(i) or ()) > 1 for i in load.indices)
    )
    if not plain or not distinct or not set(mentioned).isdisjoint(reduced):
        return Reading.AFFINE, reused
    position = {a: n for n, a in enumerate(axes)}
    order = [position[a] for a in single if a is not None]
    if order != sorted(order):
        return Reading.PERMUTATION, reused
    if len(order) == len(axes) and None not in single and all(isinstance(i, Axis) for i in load.indices):
        return Reading.IDENTITY, False
    return Reading.PROJECTION, reused


def _alone(index: Scalar) -> Axis | None:
    """The axis, where the index is just one (or one held below a size, as in a broadcast decided at run time)."""
    if isinstance(index, Binary) and index.op == "min" and isinstance(index.a, Axis) and _affine_axes(index.b) == []:
        return index.a
    return index if isinstance(index, Axis) else None


def _affine_axes(root: Scalar) -> list[Axis] | None:
    """The axes of an affine index expression; None for another one."""
    if _alone(root) is not None:
        return [a for a in (_alone(root),) if a is not None]
    out: list[Axis] = []
    for node in walk(root):
        match node:
            case Axis():
                out.append(node)
            case Const() | Size() | Binary(op="add" | "sub"):
                pass
            case Binary(op="mul") if isinstance(node.a, Const | Size) or isinstance(node.b, Const | Size):
                pass
            case Cast() if isinstance(node.a, Size | Const):
                pass
            case _:
                return None
    return out


def _accesses(
    inputs: Sequence[Tensor], order: Sequence[Stage], reads: Mapping[int, Sequence[_Read]]
) -> tuple[Access | None, ...]:
    # From the results backwards: how each stage is read on the way to them.
    reading: dict[int, Reading] = {}
    reused: dict[int, bool] = {}
    loads: dict[int, int] = {}
    for stage in reversed(order):
        own, again = reading.get(id(stage), Reading.IDENTITY), reused.get(id(stage), False)
        for read in reads[id(stage)]:
            key = id(read.source.stage)
            reading[key] = max(reading.get(key, Reading.IDENTITY), read.reading, own)
            reused[key] = reused.get(key, False) or read.reused or again
            loads[key] = loads.get(key, 0) + 1
    return tuple(
        Access(reading[key], loads[key], reused[key]) if (key := id(t.stage)) in loads else None for t in inputs
    )


def _fusion(order: Sequence[Stage], reads: Mapping[int, Sequence[_Read]], outputs: Sequence[Tensor]) -> FusionClass:
    contractions: list[Compute] = []
    reductions: list[Compute] = []
    moving = FusionClass.ELEMENTWISE
    for stage in order:
        match stage:
            case Placeholder():
                continue
            case Scan():
                return FusionClass.OPAQUE
            case Compute():
                if is_contraction(stage):
                    contractions.append(stage)
                elif any(isinstance(b, Reduce) for b in stage.bodies):
                    reductions.append(stage)
                else:
                    moving = max(moving, _moving(reads[id(stage)]))
            case _ as never:
                assert_never(never)
    if contractions:
        alone = len(contractions) == 1 and not reductions
        return FusionClass.CONTRACTION if alone and _open_below(contractions, order, reads) else FusionClass.OPAQUE
    if reductions:
        rows = {_significant(s.shape) for s in reductions}
        shared = len(rows) == 1 and _open_below(reductions, order, reads)
        return FusionClass.REDUCTION if shared else FusionClass.OPAQUE
    return moving


def _moving(reads: Iterable[_Read]) -> FusionClass:
    worst = max((r.reading for r in reads), default=Reading.IDENTITY)
    if worst is Reading.IDENTITY:
        return FusionClass.ELEMENTWISE
    return FusionClass.BROADCAST if worst is Reading.PROJECTION else FusionClass.INJECTIVE


def _significant(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(d for d in shape if d != 1)


def _open_below(anchors: Sequence[Compute], order: Sequence[Stage], reads: Mapping[int, Sequence[_Read]]) -> bool:
    """Whether what reads the anchors' results, directly or through other stages, does so at its own index (or a part of it)."""
    below = {id(a) for a in anchors}
    reducing = {id(a) for a in anchors}
    for stage in order:
        for read in reads[id(stage)]:
            if id(read.source.stage) not in below:
                continue
            if read.reading > Reading.PROJECTION and id(stage) not in reducing:
                return False
            below.add(id(stage))
    return True


def is_contraction(stage: Compute) -> bool:
    """A sum of products of two operands that vary on different index variables, each used again for another one."""
    for body in stage.bodies:
        if not isinstance(body, Reduce) or body.kind != "sum":
            continue
        factors: list[Scalar] = []
        todo: list[Scalar] = [body.body]
        while todo:
            part = todo.pop()
            if isinstance(part, Binary) and part.op == "mul":
                todo += (part.a, part.b)
            elif any(isinstance(n, Load) for n in walk(part)):
                factors.append(part)
        reduced = set(body.axes)
        varying = [frozenset(n for n in walk(f) if isinstance(n, Axis)) for f in factors]
        over = [v for v in varying if not v.isdisjoint(reduced)]
        if len(set(over)) > 1:
            return True
    return False
