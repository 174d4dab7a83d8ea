"""How much memory a function's run adds at its peak, from its plans: arenas, what is allocated by itself, workspace of kernels."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, dim_bounds
from relay.ir.expr import Block, Call, Expr, Function, Var
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, Type
from relay.lower import escape
from relay.lower.kernel_calls import is_view, only_reads, placed_workspace
from relay.lower.planning import ModulePlan
from relay.lower.storage import ALIGNMENT, Interval, place, stretches, tensor_bytes
from relay.lower.unit import Planned
from relay.transform.blocks import body_of, nested_blocks


def footprint(plan: ModulePlan, entry: str, workers: int) -> int:
    """The bytes that a run of a function with so many workers has alive at most beyond its arguments and constants, its results
    included; of sizes that are not known the most that they may be. Functions that it calls are not looked into.

    Raises CompileError where a size has no bound.
    """
    return run(_Footprint(plan, workers).block(body_of(plan.module.function(entry))))


class _Footprint:
    def __init__(self, plan: ModulePlan, workers: int) -> None:
        self.plan = plan
        self.workers = workers
        self.barriers: dict[Block, bool] = {}  # what is known of blocks inside of others

    def block(self, block: Block) -> Step[int]:
        info: list[TensorType] = []

        def outputs_of(var: Var) -> escape.Origin:
            def key(ty: Type | None) -> escape.Origin:
                if isinstance(ty, TupleType):
                    return tuple(map(key, ty.fields))
                if not isinstance(ty, TensorType) or ty.shape == ():
                    return None
                info.append(ty)
                return len(info) - 1

            return key(var.ty)

        tensors: escape.Tensors = yield escape.analyse(block, outputs_of, is_view, only_reads)
        change = [0] * (len(block.bindings) + 1)
        intervals: list[Interval] = []
        for key, ty in enumerate(info):
            size = _most(tensor_bytes(ty))
            if key in tensors.escaped:  # it may live until the end of the block, or longer
                change[tensors.start[key]] += pooled(size)
            else:
                intervals.append(Interval(key, size, tensors.start[key], tensors.end[key]))
        for position, binding in enumerate(block.bindings):
            planned = self._planned(binding.value)
            placed = None if planned is None else placed_workspace(planned)
            if placed is not None:
                intervals.append(Interval(len(info) + position, _most(placed), position, position))
        intervals.sort(key=lambda interval: interval.start)
        at = escape.barriers(block, False, False, self.barriers)
        for stretch in stretches(intervals, at):
            if stretch:
                size = pooled(_most(place(stretch).total))
                change[stretch[0].start] += size
                change[max(i.end for i in stretch) + 1] -= size
        for interval in intervals:
            if bisect_left(at, interval.start) != bisect_right(at, interval.end):  # by itself
                size = pooled(_most(interval.size))
                change[interval.start] += size
                change[interval.end + 1] -= size
        total = peak = 0
        for position, binding in enumerate(block.bindings):
            total += change[position]
            inside = self._workspace(binding.value)
            for inner in nested_blocks(binding.value):
                inside = max(inside, (yield self.block(inner)))
            peak = max(peak, total + inside)
        return peak

    def _workspace(self, value: Expr) -> int:
        """What a call allocates by itself while it runs."""
        planned = self._planned(value)
        if planned is None or placed_workspace(planned) is not None:
            return 0
        kernel = planned.plan.kernel
        size = _most(kernel.shared_bytes) + self.workers * _most(kernel.worker_bytes)
        return pooled(size) if size else 0

    def _planned(self, value: Expr) -> Planned | None:
        if not isinstance(value, Call) or not isinstance(value.fn, Function):
            return None
        return self.plan.planned.get(id(value.fn))


def pooled(size: int) -> int:
    """What the storage pool takes for an allocation: classes are four to a power of two, from the alignment on."""
    if size <= ALIGNMENT:
        return ALIGNMENT
    quarter = 1 << max((size - 1).bit_length() - 3, 0)
    return -(-size // quarter) * quarter


def _most(size: Dim) -> int:
    _, most = dim_bounds(size)
    if most is None:
        raise CompileError(
            "a memory budget needs sizes, and some of this program's have no bound",
            hint="give the sizes, or bounds of them",
        )
    return most
