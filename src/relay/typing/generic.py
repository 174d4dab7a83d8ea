"""Operators on tensors whose shape or base type is a parameter: ``exp(%x)`` for ``%x: Tensor[s, b]``.

An operator's relation is a definition run on placeholders of a known rank and base type, so it cannot be run on a
parameter; it is run on samples of it instead, with dims of their own. A result that is the same in all samples, or that
has the sample's own shape or base type in all of them, is the result for the parameter. The copies that
monomorphisation makes are checked at their own shapes, so nothing rests on the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.dim import Dim, dim_var
from relay.ir.expr import Attrs
from relay.ir.types import BaseType, Kind, Shape, TensorType, TupleType, Type, TypeArg, TypeVar
from relay.op.registry import Operator
from relay.typing.substitution import map_type, variables
from relay.typing.text import type_text

Signature = Callable[[Operator, tuple[Type, ...], Attrs], Type]
_RANKS = (2, 1, 3)
_BASES = ("float32", "int32", "float64")


def parameters(args: Sequence[Type]) -> list[TypeVar]:
    """The rigid shape and base-type parameters in the arguments of an operator."""
    found = dict.fromkeys(v for a in args for v in variables(a) if isinstance(v, TypeVar) and not v.flexible)
    return [v for v in found if v.kind in (Kind.SHAPE, Kind.BASE_TYPE)]


def generic_result(op: Operator, args: tuple[Type, ...], attrs: Attrs, relation: Signature) -> Type:
    """The result type of an operator on arguments that mention parameters.

    Raises TypeError_ when the operator cannot be applied to some sample, or when the result follows no pattern."""
    params = parameters(args)
    samples = [_sample(params, n) for n in range(len(_RANKS))]
    results: list[Type] = []
    for sample in samples:
        known = tuple(cast(Type, map_type(a, sample.get, lambda _: None)) for a in args)
        try:
            results.append(relation(op, known, attrs))
        except RelayError as e:
            call = f"{op.name}({', '.join(map(type_text, args))})"
            raise TypeError_(
                f"{call} is not possible for all {', '.join(p.name for p in params)}: {e.message}",
                hint="use the concrete type, or constrain the function by a relation of the operator (`where`)",
            ) from e
    return _common(op, results, samples)


def _sample(params: Sequence[TypeVar], n: int) -> dict[TypeVar, TypeArg]:
    """The n-th sample: no two parameters alike."""
    out: dict[TypeVar, TypeArg] = {}
    for k, p in enumerate(params):
        if p.kind is Kind.SHAPE:
            rank = _RANKS[(n + k) % len(_RANKS)]
            out[p] = tuple(cast(Dim, dim_var(f"{p.name}{axis}")) for axis in range(rank))
        else:
            out[p] = _BASES[(n + k) % len(_BASES)]
    return out


def _common(op: Operator, results: Sequence[Type], samples: Sequence[dict[TypeVar, TypeArg]]) -> Type:
    first = results[0]
    if isinstance(first, TupleType):
        tuples = [r for r in results if isinstance(r, TupleType) and len(r.fields) == len(first.fields)]
        if len(tuples) == len(results):
            columns = zip(*(t.fields for t in tuples), strict=True)
            return TupleType(tuple(_common(op, column, samples) for column in columns))
    tensors = [r for r in results if isinstance(r, TensorType)]
    if len(tensors) == len(results):
        shape = _pattern([t.shape for t in tensors], samples)
        dtype = _pattern([t.dtype for t in tensors], samples)
        if shape is not None and dtype is not None:
            return TensorType(cast(Shape, shape), cast(BaseType, dtype))
    raise TypeError_(
        f"the result of {op.name} depends on the rank or base type that a parameter stands for",
        hint="use the concrete type, or constrain the function by a relation of the operator (`where`)",
    )


def _pattern(found: Sequence[TypeArg], samples: Sequence[dict[TypeVar, TypeArg]]) -> TypeArg | None:
    """The parameter whose sample was found each time, or what was found when that is always the same."""
    for p in samples[0]:
        if all(f == sample[p] for f, sample in zip(found, samples, strict=True)):
            return p
    return found[0] if all(f == found[0] for f in found) else None
