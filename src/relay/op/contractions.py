"""Sums of products in Einstein's notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay import te
from relay.ir.dim import Dim
from relay.ir.record import record
from relay.op.registry import operator
from relay.op.support import require_number, require_same_dtype

# A letter of the equation, or the number of an axis (from the last) that an ellipsis stands for.
Label = str | int


@record(frozen=True, slots=True)
class _Term:
    """A tensor and the label of each of its axes, all distinct."""

    tensor: te.Tensor
    labels: tuple[Label, ...]


def _labels(text: str, rank: int | None, equation: str) -> list[Label]:
    """The labels of one operand (or of the result, whose rank nothing gives: its ellipsis is -1 there)."""
    parts = text.split("...")
    te.require(
        len(parts) <= 2 and all(p.isalpha() or not p for p in parts),
        f"einsum: {text!r} in the equation {equation!r} is not made of letters and at most one ellipsis",
    )
    if len(parts) == 1:
        te.require(
            rank is None or rank == len(text), f"einsum: {text!r} in {equation!r} names {len(text)} axes of rank {rank}"
        )
        return list(text)
    count = 0 if rank is None else rank - len(text) + 3
    te.require(count >= 0, f"einsum: {text!r} in {equation!r} names more axes than its operand has ({rank})")
    return [*parts[0], *range(count - 1, -1, -1), *parts[1]]


def equation_labels(equation: str, ranks: Sequence[int]) -> tuple[list[list[Label]], list[Label]]:
    """The labels of each operand's axes and of the result's. Raises ShapeError where the equation does not fit the ranks."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    te.require(
        len(texts) == len(ranks),
        f"einsum: the equation {equation!r} has {len(texts)} operands, but {len(ranks)} are given",
    )
    operands = [_labels(t, r, equation) for t, r in zip(texts, ranks, strict=True)]
    everything = [label for labels in operands for label in labels]
    shared = sorted({n for n in everything if isinstance(n, int)}, reverse=True)
    if not arrow:
        # Without a result: the ellipsis, then all letters that occur once, in order.
        once = sorted(x for x in everything if isinstance(x, str) and everything.count(x) == 1)
        return operands, [*shared, *once]
    before, dots, after = right.partition("...")
    _labels(right, None, equation)
    te.require(bool(dots) or not shared, f"einsum: the result of {equation!r} leaves out the ellipsis")
    result: list[Label] = [*before, *shared, *after] if dots else list(right)
    te.require(len(set(result)) == len(result), f"einsum: the result of {equation!r} names an axis twice")
    missing = [x for x in result if x not in everything]
    te.require(not missing, f"einsum: no operand of {equation!r} has the axes {missing}")
    return operands, result


@operator("einsum")
def einsum(data: tuple[te.Tensor, ...], *, equation: str) -> te.Tensor:
    """The sum of the product of the operands over all axes that the result leaves out: ``ij,jk->ik`` is a matrix product.

    A letter names an axis wherever it stands, and one operand's axes with the same letter are read together (``ii->i``). ``...``
    stands for further leading axes, broadcast. Without ``->`` the result has the letters that occur once, sorted. Operands are
    multiplied from left to right, each sum done as soon as possible; compiled, in another order where that is much less work. One numeric
    dtype.
    """
    te.require(len(data) > 0, "einsum needs at least one tensor")
    require_same_dtype("einsum", *data)
    require_number(data[0], "einsum")
    operands, result = equation_labels(equation, [t.ndim for t in data])
    sizes: dict[Label, Dim] = {}
    for tensor, labels in zip(data, operands, strict=True):
        for label, dim in zip(labels, tensor.shape, strict=True):
            why = f"the axes {label!r} of einsum's operands"
            if label not in sizes:
                sizes[label] = dim
            elif isinstance(label, int):
                sizes[label] = te.broadcast_dims(sizes[label], dim, why)
            else:
                sizes[label] = te.require_equal(sizes[label], dim, why)
    terms = [
        _alone(t, labels, sizes, {x for other in (*operands[:n], *operands[n + 1 :], result) for x in other})
        for n, (t, labels) in enumerate(zip(data, operands, strict=True))
    ]
    while len(terms) > 1:
        first, second, *rest = terms
        kept: Sequence[Label] = result
        if rest:
            wanted = {x for t in rest for x in t.labels} | set(result)
            kept = [x for x in dict.fromkeys((*first.labels, *second.labels)) if x in wanted]
        terms = [_product((first, second), kept, sizes), *rest]
    last = terms[0]
    if len(data) == 1 and (last.tensor is data[0] or last.labels != tuple(result)):
        last = _product((last,), result, sizes)
    return last.tensor


def _alone(tensor: te.Tensor, labels: Sequence[Label], sizes: Mapping[Label, Dim], wanted: set[Label]) -> _Term:
    """An operand with its diagonals read and the axes that nothing else has summed."""
    kept = [x for x in dict.fromkeys(labels) if x in wanted]
    if len(kept) == len(labels):
        return _Term(tensor, tuple(labels))
    return _product((_Term(tensor, tuple(labels)),), kept, sizes)


def _product(terms: Sequence[_Term], kept: Sequence[Label], sizes: Mapping[Label, Dim]) -> _Term:
    over = {
        x: te.reduce_axis(sizes[x], f"k{n}")
        for n, x in enumerate(x for x in dict.fromkeys(x for t in terms for x in t.labels) if x not in kept)
    }

    def body(*i: te.Scalar) -> te.Scalar:
        at: dict[Label, te.Scalar] = {**over, **dict(zip(kept, i, strict=True))}
        value: te.Scalar | None = None
        for term in terms:
            index = [
                te.broadcast_place(d, at[x]) if isinstance(x, int) else 0 if te.known_is(d, 1) else at[x]
                for x, d in zip(term.labels, term.tensor.shape, strict=True)
            ]
            part = term.tensor[tuple(index)]
            value = part if value is None else value * part
        assert value is not None
        return te.sum(value, tuple(over.values()))

    return _Term(te.compute([sizes[x] for x in kept], body, "einsum"), tuple(kept))
