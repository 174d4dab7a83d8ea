"""Reads of axes that may have no element.

An index that is moved into its axis, as those of ``take`` and of a padding's border are, has nowhere to go where the axis is empty: the
interpreter says that it reads outside. A kernel asks once, before its loops, for the sizes that it runs with:

    y[i] = x[max(0, min(at[i], n - 1))]   ->   if n < 1 and m > 0 { fail }; for i in m { y[i] = ... }

Sums of index variables need nothing of this: what they run over is empty with the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, SymDim, as_var, dim_bounds, dim_sub, dim_substitute
from relay.ir.dim_total import dim_total
from relay.loop.errors import INDEX_OUT_OF_BOUNDS
from relay.loop.ir import Branch, Fail, Kernel, Seq, Stmt
from relay.te.reach import all_read
from relay.te.scalar import Binary, Cast, Load, Reduce, Scalar, Select, Size, compare, walk
from relay.te.tensor import Stage, Tensor, stage_bodies, stages


def asked_for(kernel: Kernel, outputs: Sequence[Tensor]) -> Kernel:
    """The kernel of these tensors that fails where it would read an axis without elements; the same object where it never does."""
    checks: dict[tuple[Dim, ...], Stmt] = {}
    for stage in stages(outputs):
        for _, size, counts in _reads(stage):
            conditions = [compare("lt", Size(size), 1)] if isinstance(size, SymDim) else []
            conditions += [compare("gt", Size(count), 0) for count in counts]
            check: Stmt = Fail(INDEX_OUT_OF_BOUNDS)
            for condition in reversed(conditions):
                check = Branch(condition, check)
            checks.setdefault((size, *counts), check)
    return replace(kernel, body=Seq((*checks.values(), kernel.body))) if checks else kernel


def assured(stage: Stage) -> list[Dim]:
    """What is not negative where a stage computes anything, because the kernel that does asks for it (`asked_for`)."""
    return [dim_sub(size, 1) for _, size, _ in _reads(stage)]


def asked_of(outputs: Sequence[Tensor]) -> frozenset[tuple[Dim, tuple[Dim, ...]]]:
    """The sizes that a kernel of these tensors asks for (`asked_for`), each with those whose product says how often it is read there: it
    fails where the one is zero and none of the others is."""
    return frozenset((size, counts) for stage in stages(outputs) for _, size, counts in _reads(stage))


def asked_sizes(outputs: Sequence[Tensor]) -> Iterator[Dim]:
    """The sizes of axes for which a kernel of these tensors asks whether they have elements (`asked_for`), in order."""
    return (size for stage in stages(outputs) for _, size, _ in _reads(stage))


def asked_by(stage: Stage) -> Iterator[tuple[Tensor, Dim]]:
    """The tensors of which a stage asks that an axis has elements, each with that axis's size."""
    return ((tensor, size) for tensor, size, _ in _reads(stage))


def vanishes_with(count: Dim, size: Dim) -> bool:
    """Whether a count is 0 wherever a size is."""
    if isinstance(count, int) or isinstance(size, int):
        return False
    low, _ = dim_bounds(dim_sub(size, count))
    if low is not None and low >= 0:
        return True
    variable = as_var(size)
    if variable is None:
        return False
    _, high = dim_bounds(dim_substitute(dim_total(count), lambda v: 0 if v == variable else None))
    return high is not None and high <= 0


def _reads(stage: Stage) -> Iterator[tuple[Tensor, Dim, tuple[Dim, ...]]]:
    """The tensors that a stage reads at places that are moved into an axis, the sizes of such axes, and what it does that as often as the
    product of."""
    for body in stage_bodies(stage):
        over, value = (body.axes, body.body) if isinstance(body, Reduce) else ((), body)
        counts = tuple(dict.fromkeys((*stage.shape, *(a.extent for a in over))))
        if 0 in counts:
            continue
        for load in all_read(value):
            assert isinstance(load.source, Tensor)
            for index, size in zip(load.indices, load.source.shape, strict=True):
                if _may_be(size, 0) and not any(vanishes_with(c, size) for c in counts) and _is_moved(index):
                    yield load.source, size, tuple(c for c in counts if _may_be(c, 0))


def _is_moved(index: Scalar) -> bool:
    """Whether an index is more than a sum of index variables (and their quotients by numbers)."""
    return any(
        isinstance(n, Load | Select | Cast) or (isinstance(n, Binary) and n.op in ("min", "max", "mod"))
        for n in walk(index)
    )


def _may_be(size: Dim, least: int) -> bool:
    low, _ = dim_bounds(size)
    return low is None or low <= least
