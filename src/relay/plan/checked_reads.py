"""Reads of a definition that may be outside of a tensor: found in the definition, not in the loops that are made of it.

    y[i] = select(i < 6, x[i + 1], 0)   of x: (n,)   ->   for i in n { if i < 6 and i + 1 >= n { fail } }; ...

What follows from the sizes, the conditions, the definition's demands and what is asked of axes without elements (`empty_axes`) needs
nothing. What does not is asked for before the kernel's loops, over the index variables that matter. Only an operand's rows at places that
another tensor says are asked for where they are read (`relay.loop.guards`), and so is what depends on sums that the kernel makes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from relay.ir.dim import Dim, SymDim, dim_bounds
from relay.ir.record import record
from relay.loop.bounds import unproved
from relay.loop.errors import INDEX_OUT_OF_BOUNDS
from relay.loop.guards import guarded, outside
from relay.loop.ir import Branch, Buffer, Fail, For, Kernel, LetScalar, Seq, Stmt
from relay.plan import empty_axes
from relay.plan.build import Storage
from relay.plan.graph import TeGraph, tensor_key
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Load,
    Named,
    Reduce,
    Scalar,
    Size,
    binary,
    compare,
    substitute,
    transform,
    unary,
    walk,
    wrap,
)
from relay.te.tensor import Compute, Placeholder, Stage, Tensor, stage_bodies, stages
from relay.te.ways import Way, ways


@record(frozen=True, slots=True)
class _Read:
    """A read in a stage that may be outside where ``conditions`` are what they are said to be, for some values of ``over``. ``is_row``: it
    is one of an operand's rows, at a place that another tensor says. ``zero``: it is not unless some size is zero, and whether one is."""

    load: Load
    stage: Stage
    over: tuple[Axis, ...]
    outside: Scalar
    conditions: tuple[tuple[Scalar, bool], ...]
    is_row: bool
    zero: Scalar | None


def checked(
    kernel: Kernel, outputs: Sequence[Tensor], operands: Mapping[tuple[int, int], Storage], assumed: Sequence[Dim]
) -> Kernel:
    """The kernel of these tensors that fails where their definitions read outside of a tensor; the same object where they never do.
    ``operands`` are where the tensors are that it is given; the dims ``assumed`` are known not to be negative."""
    checks: list[Stmt] = []
    rows = others = False
    reads = _Reads(operands)
    for read in reads.open_reads(outputs, assumed):
        check = None if read.is_row else reads.check(read)
        if check is not None:
            checks.append(check)
            continue
        reads.later.add(id(read.load))
        reads.later_in.add(id(read.stage))
        if read.is_row:
            rows = True
        else:
            others = True
    if rows or others:
        kernel = guarded(kernel, assumed, only_read=not others)
    return replace(kernel, body=Seq((*checks, kernel.body))) if checks else kernel


def may_read_outside(graph: TeGraph) -> bool:
    """Whether the definitions in a graph may read outside of a tensor, so that a kernel of them asks."""
    return any(True for _ in read_outside(graph))


def read_outside(graph: TeGraph) -> Iterator[Tensor]:
    """The tensors outside of which the definitions in a graph may read, each as often as they do."""
    reads = _Reads({})
    for read in reads.open_reads(graph.outputs, graph.assumed) if graph.foreign else ():
        assert isinstance(read.load.source, Buffer)
        yield reads.tensors[read.load.source]


class _Unknown(Exception):
    """What is not known before a kernel's loops."""


@record(slots=True, eq=False)
class _Reads:
    operands: Mapping[tuple[int, int], Storage]
    # What stands for tensors in loops that are only looked at.
    buffers: dict[tuple[int, int], Buffer] = field(default_factory=dict)
    tensors: dict[Buffer, Tensor] = field(default_factory=dict)
    # The reads that are asked for where the kernel makes them, and the stages that make them: no check before its loops may make them.
    later: set[int] = field(default_factory=set)
    later_in: set[int] = field(default_factory=set)

    def open_reads(self, outputs: Sequence[Tensor], assumed: Sequence[Dim]) -> Iterator[_Read]:
        """The reads that nothing proves to be inside, those first of which others' places and conditions are made."""
        for stage in stages(outputs):
            for body in stage_bodies(stage):
                over, value = (body.axes, body.body) if isinstance(body, Reduce) else ((), body)
                axes = (*_axes(stage), *over)
                expr = transform(value, self.placed)
                loads = [n for n in walk(expr) if isinstance(n, Load)]
                if any(axis.extent == 0 for axis in axes) or not loads:
                    continue
                nest: Stmt = LetScalar(Named("value", expr.dtype), expr, Seq(()))
                for axis in reversed(axes):
                    nest = For(axis, wrap(axis.extent, "int64"), nest)
                known, indices = (*assumed, *empty_axes.assured(stage)), Indices()
                open_ = {id(access.index) for access in unproved(Kernel("reads", (), (), (), nest), known)}
                order = {id(n): at for at, n in enumerate(loads) if any(id(i) in open_ for i in n.indices)}
                for load, conditions in sorted(ways(expr, order), key=lambda way: (len(way[1]), order[id(way[0])])):
                    sizes = _sizes(load, open_, conditions, indices)
                    if sizes != ():
                        found = outside(load, open_)
                        is_row = self.is_given(load) and _is_row(load, open_)
                        yield _Read(load, stage, axes, found, conditions, is_row, _is_zero(sizes or ()))

    def placed(self, node: Scalar) -> Scalar:
        """A read of a tensor as one of a buffer of its shape."""
        if not isinstance(node, Load) or not isinstance(node.source, Tensor):
            return node
        tensor = node.source
        buffer = self.buffers.get(tensor_key(tensor))
        if buffer is None:
            buffer = self.buffers[tensor_key(tensor)] = Buffer("of", tensor.shape, tensor.dtype)
            self.tensors[buffer] = tensor
        return Load(buffer, node.indices, node.dtype)

    def is_given(self, load: Load) -> bool:
        """Whether a tensor is one that the kernel is given, so that it reads what the definition does: of what it makes itself it may read
        the operands instead, which go on where that ends."""
        assert isinstance(load.source, Buffer)
        return tensor_key(self.tensors[load.source]) in self.operands

    def known(self, root: Scalar) -> Scalar:
        """An expression of what the kernel is given. Raises _Unknown."""

        def visit(node: Scalar) -> Scalar:
            if not isinstance(node, Load):
                return node
            tensor = node.source if isinstance(node.source, Tensor) else self.tensors[node.source]  # type: ignore[index]
            where = self.operands.get(tensor_key(tensor))
            if where is not None:
                place = wrap(0, "int64")
                for index, stride in zip(node.indices, where.strides, strict=True):
                    place = binary("add", place, binary("mul", index, wrap(stride, "int64")))
                return Load(where.buffer, (place,), node.dtype)
            stage = tensor.stage
            if (
                not isinstance(stage, Compute)
                or isinstance(stage.bodies[tensor.index], Reduce)
                or id(stage) in self.later_in
            ):
                raise _Unknown
            # The indices are known already: what they read are buffers.
            return substitute(self.known(stage.bodies[tensor.index]), dict(zip(stage.axes, node.indices, strict=True)))

        return transform(root, visit)

    def check(self, read: _Read) -> Stmt | None:
        """The loops that ask whether a read is ever outside; None where that is not known before the kernel's own."""
        if any(id(n) in self.later for e in (read.outside, *(c for c, _ in read.conditions)) for n in walk(e)):
            return None
        try:
            conditions = [(self.known(c), truth) for c, truth in read.conditions]
            where = self.known(read.outside)
        except _Unknown:
            return None
        used = {n for e in (where, *(c for c, _ in conditions)) for n in walk(e) if isinstance(n, Axis)}
        if not used <= set(read.over):
            return None  # the state of a recurrence
        fresh: dict[Axis, Scalar] = {a: Axis(a.name, a.extent) for a in read.over if a in used}
        asked = [cond if truth else unary("not", cond) for cond, truth in conditions]
        # What reads nothing may be asked first, and few variables say most places: of the others nothing is asked where these are inside.
        asked = [*asked, where] if any(isinstance(n, Load) for n in walk(where)) else [where, *asked]
        asked = asked if read.zero is None else [read.zero, *asked]
        check: Stmt = Fail(INDEX_OUT_OF_BOUNDS)
        steps: list[tuple[list[Axis], Scalar]] = []
        for cond in asked:
            found = {n for n in walk(cond) if isinstance(n, Axis)}
            steps.append(([a for a in read.over if a in found and not any(a in opened for opened, _ in steps)], cond))
        for opened, cond in reversed(steps):
            check = Branch(substitute(cond, fresh), check)
            for axis in reversed(opened):
                loop = fresh[axis]
                assert isinstance(loop, Axis)
                check = For(loop, wrap(loop.extent, "int64"), check)
        for axis in read.over:  # where one runs over nothing, nothing is read
            low, _ = dim_bounds(axis.extent)
            if axis not in used and isinstance(axis.extent, SymDim) and (low is None or low < 1):
                check = Branch(compare("gt", Size(axis.extent), 0), check)
        return check


def _sizes(load: Load, open_: set[int], way: Way, indices: Indices) -> tuple[Dim, ...] | None:
    """The sizes one of which has to be zero for a read to be outside at its open indices, which are made of quotients and remainders by
    them; None where that is not known."""
    out: list[Dim] = []
    for index, size in zip(load.indices, load.source.shape, strict=True):
        if id(index) in open_:
            sizes = indices.follows_if(indices.poly(index), size, way)
            if sizes is None:
                return None
            out += (*sizes, *indices.divided_by(indices.poly(index)))
    return tuple(dict.fromkeys(out))


def _is_zero(sizes: Sequence[Dim]) -> Scalar | None:
    """Whether one of some sizes is."""
    found: Scalar | None = None
    for size in sizes:
        one = compare("lt", Size(size), 1)
        found = one if found is None else binary("or", found, one)
    return found


def _is_row(load: Load, open_: set[int]) -> bool:
    """Whether only the first index may be outside, and is one that is read: then it is outside of the tensor in memory, too."""
    size, first = load.source.shape[0], load.indices[0]
    alone = [id(i) in open_ for i in load.indices] == [True] + [False] * (len(load.indices) - 1)
    return alone and size != 1 and any(isinstance(n, Load) for n in walk(first))


def _axes(stage: Stage) -> tuple[Axis, ...]:
    return () if isinstance(stage, Placeholder) else stage.axes
