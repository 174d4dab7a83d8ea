"""What a cotangent is the sum of: terms, each an expression over the axes of the tensor, and their sum as a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim
from relay.ir.record import record
from relay.te.autodiff.arithmetic import add, converted, zero
from relay.te.autodiff.stages import axes_of, stage
from relay.te.interleave import Part, as_interleave, interleaved
from relay.te.scalar import Axis, Const, Reduce, Scalar, substitute, walk
from relay.te.tensor import Compute, Tensor


@record(frozen=True, slots=True, eq=False)
class Term:
    """One addend of a cotangent: an expression over the axes of the tensor; possibly a reduction."""

    axes: tuple[Axis, ...]
    body: Scalar


def added(terms: Sequence[Term], shape: Sequence[Dim], dtype: str, name: str) -> Tensor:
    """The sum of terms as a tensor."""
    terms = _class_by_class(list(map(_settled, terms)))
    if len(terms) == 1 and terms[0].body.dtype == dtype:
        return stage(name, terms[0].axes, terms[0].body)
    axes = axes_of(shape)
    total: Scalar | None = None
    wide = max((t.body.dtype for t in terms), key=lambda d: (d == "float64", d == "float32"), default=dtype)
    for term in terms:
        if isinstance(term.body, Reduce):
            value: Scalar = stage(f"{name}_sum", term.axes, term.body)[axes]
        else:
            value = substitute(term.body, dict(zip(term.axes, axes, strict=True)))
        total = add(total, converted(value, wide))
    return stage(name, axes, zero(dtype) if total is None else converted(total, dtype))


def _class_by_class(terms: Sequence[Term]) -> list[Term]:
    """The terms, those as one that are made apart for the same classes of elements: their classes are added."""
    out: list[Term] = []
    alike: dict[tuple[object, ...], list[tuple[int, tuple[Part, ...]]]] = {}
    for n, term in enumerate(terms):
        parts = as_interleave(Compute("whole", term.axes, (term.body,)))
        key = (n,) if parts is None else (term.body.dtype, *sorted(p.along for p in parts))
        alike.setdefault(key, []).append((n, parts or ()))
    for members in alike.values():
        first = terms[members[0][0]]
        if len(members) == 1:
            out.append(first)
            continue
        steps, made = [1] * len(first.axes), []
        for part in members[0][1]:
            same = [p.tensor for _, parts in members for p in parts if p.along == part.along]
            addends = [Term(axes, t[axes]) for t in same if (axes := axes_of(t.shape))]
            remainders = [0] * len(first.axes)
            for axis, step, remainder in part.along:
                steps[axis], remainders[axis] = step, remainder
            made.append((remainders, added(addends, part.tensor.shape, first.body.dtype, "class")))
        out.append(Term(first.axes, interleaved(first.axes, steps, made, first.body.dtype)))
    return out


def _settled(term: Term) -> Term:
    """A term without axes of another stage: equal indices share what stands for them, which may mention one of a single index."""
    own = set(term.axes)
    for node in walk(term.body):
        if isinstance(node, Reduce):
            own.update(node.axes)
    strange = {a for a in walk(term.body) if isinstance(a, Axis) and a.extent == 1 and a not in own}
    return Term(term.axes, substitute(term.body, dict.fromkeys(strange, Const(0, "int64")))) if strange else term
