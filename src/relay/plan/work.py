"""What a kernel does at the least: arithmetic and memory traffic, read off its stages. Profilers hold a kernel's time against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.ir.dim import Dim, ceil_div, dim_add, dim_min, dim_mul, shape_size
from relay.ir.types import dtype_bits
from relay.plan.graph import TeGraph, loads, tensor_key
from relay.plan.stages import Kept
from relay.te.evaluate import evaluate
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    cast,
    children,
    walk,
)
from relay.te.scatter import as_scatter
from relay.te.tensor import Compute, Tensor, stage_bodies
from relay.te.update import Update

# A guard is counted where it is decided by so many indices at most.
_MOST_DECIDED = 1 << 20


def arithmetic(stages: Sequence[Kept], updates: Mapping[int, Update]) -> Dim:
    """How many arithmetic operations the stages' elements take: an addition, multiplication, maximum or elementary function is one,
    conversions, comparisons, choices and index arithmetic are none. Of ``updates`` (by the id of their stage) only what is put is computed
    beside the base."""
    total: Dim = 0
    numbers = {u.counted for u in updates.values()}
    for kept in stages:
        update = updates.get(id(kept.origin))
        if update is not None:
            whole = dim_mul(shape_size(kept.stage.shape), _operations(update.base))
            total = dim_add(total, dim_add(whole, dim_mul(update.size, _operations(update.value))))
        if update is not None or kept.origin in numbers:
            continue
        elements = shape_size(kept.stage.shape)
        scatter = as_scatter(kept.stage, Indices())
        if scatter is not None:  # each value goes to one place
            elements = shape_size(tuple(a.extent for a in scatter.through))
        for body in stage_bodies(kept.stage):
            over: Dim = 1
            each = 0
            if isinstance(body, Reduce):
                over = shape_size(tuple(a.extent for a in body.axes))
                each = 1
                body = body.body
            whole = dim_mul(dim_mul(elements, over), each + _operations(body))
            total = dim_add(total, _counted(whole, body) if each else whole)
    return total


def _counted(whole: Dim, body: Scalar) -> Dim:
    """The part of the work of a sum whose guard holds, where the guard is one of a moderate number of known indices."""
    if not isinstance(body, Select) or not isinstance(body.b, Const) or body.b.value != 0:
        return whole
    decides = [n for n in walk(body.cond) if isinstance(n, Axis)]
    size = shape_size(tuple(a.extent for a in decides))
    if not isinstance(whole, int) or not isinstance(size, int) or not 0 < size <= _MOST_DECIDED or loads(body.cond):
        return whole
    if any(isinstance(n, Size) and not isinstance(n.dim, int) for n in walk(body.cond)):
        return whole  # decided by a size that is known when it runs
    guard = Compute("guard", tuple(decides), (cast(body.cond, "int64"),))
    (held,) = evaluate([Tensor(guard, 0, guard.shape, "int64")], {})
    return whole // size * int(held.sum())


def _operations(root: Scalar) -> int:
    total = 0
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen or isinstance(node, Load):  # what is inside a load says where it reads
            continue
        seen.add(id(node))
        if isinstance(node, Unary | Binary) and node.dtype != "bool" and _has_value(node):
            total += 1
        todo += children(node)
    return total


def _has_value(node: Scalar) -> bool:
    """Whether it is computed from elements: what is not is index arithmetic, or a constant."""
    return node.dtype != "int64" or any(isinstance(n, Load) for n in walk(node))


def traffic(graph: TeGraph, stages: Sequence[Kept], updates: Mapping[int, Update]) -> Dim:
    """Bytes of operands: outputs written once, inputs read once, of an input as many elements as the reads of it can reach. Of
    ``updates`` (by the id of their stage), which may be made where their base is, what they put there."""
    reached: dict[tuple[int, int], dict[str, Dim]] = {}
    for kept in stages:
        update = updates.get(id(kept.origin))
        for body in stage_bodies(kept.stage) if update is None else update.asked():
            for load in loads(body):
                assert isinstance(load.source, Tensor)
                found = reached.setdefault(tensor_key(load.source), {})
                axes = {n for index in load.indices for n in walk(index) if isinstance(n, Axis)}
                found[_spelling(load)] = shape_size(tuple(a.extent for a in axes))
    total: Dim = 0
    for tensor in graph.inputs:
        count: Dim = 0
        for distinct in reached.get(tensor_key(tensor), {}).values():
            count = dim_add(count, distinct)
        total = dim_add(total, _bytes(dim_min(shape_size(tensor.shape), count), tensor))
    for tensor in graph.outputs:
        update, count = updates.get(id(tensor.stage)), shape_size(tensor.shape)
        if update is not None:
            count = dim_min(count, update.size)
        total = dim_add(total, _bytes(count, tensor))
    return total


def _spelling(load: Load) -> str:
    """The same text for loads that read the same elements with other axes."""
    names: dict[Axis, str] = {}
    numbers: dict[int, int] = {}
    parts: list[str] = []
    for number, node in enumerate(n for index in load.indices for n in walk(index)):
        numbers[id(node)] = number
        own = ""
        match node:
            case Axis():
                own = names.setdefault(node, f"{len(names)}:{node.extent}")
            case Const():
                own = str(node.value)
            case Size():
                own = str(node.dim)
            case Unary() | Binary() | Compare():
                own = node.op
            case Load(source=Tensor() as source):
                own = str(tensor_key(source))
            case _:
                pass
        parts.append(f"{type(node).__name__} {own} {[numbers[id(k)] for k in children(node)]}")
    return ";".join(parts)


def _bytes(elements: Dim, tensor: Tensor) -> Dim:
    return ceil_div(dim_mul(elements, dtype_bits(tensor.dtype)), 8)
