"""Primitives that differ only in where slices of their operands begin share a kernel.

The steps of an unrolled loop read a row each of the same tensors, the heads of an attention their columns: as many kernels that are
equal but for some numbers. These become sizes of one kernel, which every call gives. Numbers that all of them share stay numbers,
and those that are equal in each of them stay equal: reads that were one are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, dim_add
from relay.ir.expr import Attr, Binding, Block, Call, Function, OpRef
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.loop.target import Target
from relay.op import registry
from relay.plan.key import plan_key
from relay.transform.build import type_of

_SLICE = "strided_slice"


@record(frozen=True, slots=True, eq=False)
class Shared:
    """A primitive with variables in the place of numbers or of other sizes, and these."""

    fn: Function
    values: Mapping[DimVar, Dim]


@record(frozen=True, slots=True)
class _Place:
    """A number in a primitive: axis number ``axis`` of those that the slice of binding ``binding`` cuts; at most ``most`` is in bounds."""

    binding: int
    axis: int
    begin: int
    most: int


def shared_beginnings(primitives: Iterable[Function], target: Target) -> dict[int, Shared]:
    """The primitives that are equal to others of these but for numbers, by the ids of their nodes."""
    groups: dict[str, list[tuple[Function, list[_Place]]]] = {}
    for fn in {id(f): f for f in primitives}.values():
        places = _places(fn)
        if places:
            # One variable for each number: where they lie is part of the key, what they are is not.
            general = _with(fn, places, [DimVar("begin", 0, p.most) for p in places])
            groups.setdefault(plan_key(general, target, frozenset()).text, []).append((fn, places))
    out: dict[int, Shared] = {}
    for members in groups.values():
        columns = list(zip(*([p.begin for p in places] for _, places in members), strict=True))
        made = {c: DimVar("begin", min(c), max(c)) for c in dict.fromkeys(columns) if len(set(c)) > 1}
        if not made:
            continue
        for number, (fn, places) in enumerate(members):
            at = [(p, made[c]) for p, c in zip(places, columns, strict=True) if c in made]
            general = _with(fn, [p for p, _ in at], [v for _, v in at])
            out[id(fn)] = Shared(general, {v: c[number] for c, v in made.items()})
    return out


def _places(fn: Function) -> list[_Place]:
    """The numbers at which slices of the primitive's parameters begin, where all of the slice is within known sizes."""
    out: list[_Place] = []
    params = set(fn.params)
    for n, binding in enumerate(fn.body.bindings if isinstance(fn.body, Block) else ()):
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name != _SLICE:
            continue
        ty = type_of(value.args[0])
        if value.args[0] not in params or not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            continue
        attrs = registry.get(_SLICE).complete_attrs(value.attrs)
        if attrs["slice_mode"] != "end":
            continue
        begins, ends = cast("tuple[object, ...]", attrs["begin"]), cast("tuple[object, ...]", attrs["end"])
        axes = cast("tuple[int, ...]", attrs["axes"] or tuple(range(len(begins))))
        strides = cast("tuple[int, ...]", attrs["strides"])
        if len(strides) not in (1, len(begins)) or min(strides) < 1:
            continue
        for number, (begin, end, axis) in enumerate(zip(begins, ends, axes, strict=True)):
            extent = ty.shape[axis]
            if (
                isinstance(begin, int)
                and isinstance(end, int)
                and isinstance(extent, int)
                and 0 <= begin < end <= extent
            ):
                out.append(_Place(n, number, begin, extent - (end - begin)))
    return out


def _with(fn: Function, places: Sequence[_Place], variables: Sequence[DimVar]) -> Function:
    """The primitive with slices that begin at variables; as long as they were."""
    assert isinstance(fn.body, Block)
    bindings = list(fn.body.bindings)
    for place, variable in zip(places, variables, strict=True):
        binding = bindings[place.binding]
        call = binding.value
        assert isinstance(call, Call)
        begin, end = (
            list(cast("tuple[Attr, ...]", call.attrs["begin"])),
            list(cast("tuple[Attr, ...]", call.attrs["end"])),
        )
        length = cast(int, end[place.axis]) - place.begin
        begin[place.axis] = cast(Attr, as_dim(variable))
        end[place.axis] = cast(Attr, dim_add(as_dim(variable), length))
        attrs = MappingProxyType({**call.attrs, "begin": tuple(begin), "end": tuple(end)})
        bindings[place.binding] = Binding(
            binding.var, Call(call.fn, call.args, attrs, call.type_args, call.ty, call.span)
        )
    body = replace(fn.body, bindings=tuple(bindings))
    return replace(fn, body=body)
