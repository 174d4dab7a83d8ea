"""Divisions by sizes that may be zero where something is computed, as divisions by sizes that are not.

    a // s   ->   (a // max(s, 1)) * min(s, 1)
    a % s    ->   a % max(s, 1)

A quotient and a remainder by zero are zero, which the rules of index arithmetic do not know: by them ``a % s`` is ``a - s * (a // s)``.
Most sizes that divide are zero only where there is nothing to compute (``i // w`` for an ``i`` below ``h * w``), or nothing to read
(``x[i // w, i % w]`` of an ``x`` with rows of ``w``). Others are not: ``m // n`` is zero where ``m`` is the lesser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from relay.ir.dim import (
    APPLY,
    Dim,
    DimFoldOp,
    SymDim,
    as_dim,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_floordiv,
    dim_fold,
    dim_is_negated,
    dim_max,
    dim_min,
    dim_mul,
    dim_of_terms,
)
from relay.ir.inequality import is_count
from relay.te.index import Indices
from relay.te.rewrite import rewrite_stage, rewritten
from relay.te.scalar import Axis, Binary, Load, Reduce, Scalar, Size, binary, children, unary, walk
from relay.te.tensor import Placeholder, Stage, Tensor, stage_bodies


def dividing_by_some(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, of stages in which no size divides that is zero where they have an element."""
    return rewritten(outputs, _dividing_by_some)


def may_be_zero(size: Dim) -> bool:
    """Whether a size may be zero, as far as its own bounds say."""
    low, high = dim_bounds(size)
    return not ((low is not None and low > 0) or (high is not None and high < 0))


def magnitude(size: Dim) -> Dim:
    """A size that is not negative: itself, or the negated one where it is."""
    return size if is_count(size) else dim_max(size, dim_mul(-1, size))


def divides(size: SymDim, dim: Dim) -> bool:
    """Whether a dim is a multiple of a size, by the names in both."""
    return dim_mul(dim_floordiv(dim, size), size) == dim


def vanishes_with(size: Dim, extents: Iterable[Dim]) -> bool:
    """Whether one of the extents is zero wherever a size is: then there is nothing where it is."""
    some = [e for e in extents if isinstance(e, SymDim)]
    if not isinstance(size, SymDim):
        return size != 0
    if any(divides(size, e) for e in some):
        return True
    same_sign = len({c > 0 for _, c in size.terms}) == 1
    if not same_sign or not all(is_count(as_dim(atom)) for atom in dim_atoms(size)):
        return False
    # All its terms are zero where it is, and so a factor of each; an extent is zero where a factor of all its terms is.
    return any(
        all(any(all(atom in dict(m) for m, _ in e.terms) for e in some) for atom, _ in term) for term, _ in size.terms
    )


def where_none_is_zero(size: Dim, some: Collection[Dim]) -> Dim:
    """A size where none of ``some`` is zero: ``min(s, 1)`` is 1, and ``max(s, 1)`` is s."""

    def apply(op: DimFoldOp, a: Dim, b: Dim) -> Dim:
        match op:
            case "add":
                return dim_add(a, b)
            case "mul":
                return dim_mul(a, b)
            case "min" | "max" if 1 in (a, b):
                whole = b if a == 1 else a
                if whole in some and is_count(whole):
                    return 1 if op == "min" else whole
        return APPLY[op](a, b)

    return dim_fold(size, as_dim, lambda n: n, apply)


def where_one_is_zero(size: Dim, sizes: Collection[Dim]) -> Dim:
    """A size where one of ``sizes`` is zero: without terms that all of their ``min(s, 1)`` multiply."""
    if not isinstance(size, SymDim) or not sizes:
        return size
    somes = [atom for s in sizes for atom in dim_atoms(dim_min(s, 1))]
    return dim_of_terms({m: c for m, c in size.terms if not all(any(a == some for a, _ in m) for some in somes)})


def _dividing_by_some(stage: Stage) -> Stage:
    if isinstance(stage, Placeholder):
        return stage
    indices = Indices()
    found: dict[Dim, None] = {}
    for body in stage_bodies(stage):
        if any(_divisor(n, indices) is not None for n in walk(body)):
            found.update(dict.fromkeys(_vanishing(body, stage.axes, indices)))
    if not found:
        return stage

    def visit(node: Scalar) -> Scalar:
        by = _divisor(node, indices)
        if by not in found or not isinstance(node, Binary):
            return node
        negative = dim_is_negated(by)
        above = unary("neg", node.a) if negative else node.a
        size = dim_mul(-1, by) if negative else by
        made = binary(node.op, above, Size(dim_max(size, 1)))
        if node.op == "floordiv":
            return binary("mul", made, Size(dim_min(size, 1)))
        return unary("neg", made) if negative else made

    return rewrite_stage(stage, visit)


def _divisor(node: Scalar, indices: Indices) -> Dim | None:
    """The size by which an index is divided, if that may be zero by itself."""
    if not isinstance(node, Binary) or node.op not in ("floordiv", "mod") or node.dtype != "int64":
        return None
    by = indices.poly(node.b) if any(isinstance(n, Size) for n in walk(node.b)) else 1
    is_size = isinstance(by, SymDim) and not indices.is_index(by) and len({c > 0 for _, c in by.terms}) == 1
    return by if is_size and may_be_zero(by) else None


def _vanishing(body: Scalar, axes: Sequence[Axis], indices: Indices) -> list[Dim]:
    """The sizes that divide somewhere in a body where neither an axis nor a tensor that is read there is empty if they are zero."""
    out: list[Dim] = []
    todo: list[tuple[Scalar, frozenset[Dim]]] = [(body, frozenset(a.extent for a in axes))]
    seen: set[tuple[int, frozenset[Dim]]] = set()
    while todo:
        node, extents = todo.pop()
        if (id(node), extents) in seen:
            continue
        seen.add((id(node), extents))
        by = _divisor(node, indices)
        if by is not None and not vanishes_with(by, extents):
            out.append(by)
        if isinstance(node, Reduce):
            extents |= {a.extent for a in node.axes}
        elif isinstance(node, Load):
            extents |= {*node.source.shape}
        todo += [(child, extents) for child in children(node)]
    return out
