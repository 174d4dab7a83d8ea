"""A fused primitive to a `KernelPlan`: its loop nest, the layouts it wants for constants, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from relay.ir.dim import Dim, ceil_div, dim_add, dim_mul, shape_size
from relay.ir.expr import Function
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer, Kernel, Stmt
from relay.loop.target import Target
from relay.loop.workspace import layout
from relay.plan.build import Builder, Storage, allocate, dense, row_major, seq
from relay.plan.expand import cost
from relay.plan.generic import elementwise
from relay.plan.graph import TeGraph, loads, te_graph, tensor_key
from relay.plan.index import Indices
from relay.plan.key import PlanKey, plan_key
from relay.plan.nests import Nest, group
from relay.plan.rows import row_nest
from relay.plan.stages import Kept, keep
from relay.te.scalar import Load, Reduce
from relay.te.tensor import Tensor, stage_bodies


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """The layout a kernel wants for a constant: input ``input_index`` of the kernel is ``packed``, a tensor expression of the
    raw constant ``source`` (a placeholder). ``key`` is the same for equal layouts of equal shapes."""

    input_index: int
    source: Tensor
    packed: Tensor
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class KernelPlan:
    """``kernel``'s buffers are the primitive's parameters in order (packed where ``packs`` says so), then its outputs.

    ``flops`` counts simple operations, ``bytes`` the memory traffic of operands read and written once; both are dims.
    ``variant`` names the schedule; ``key`` is the structural identity; ``in_place`` pairs (input, output) may share memory.
    """

    kernel: Kernel
    packs: tuple[Pack, ...]
    flops: Dim
    bytes: Dim
    variant: str
    key: PlanKey
    in_place: tuple[tuple[int, int], ...] = ()


def make_plan(primitive: Function, target: Target, constants: frozenset[int] = frozenset(), name: str = "kernel") -> KernelPlan:
    """Plan a primitive: ``constants`` are the numbers of parameters whose arguments are constants (they may be packed).

    Raises PlanError for a primitive that holds anything but operator calls.
    """
    return plan_graph(te_graph(primitive), target, plan_key(primitive, target, constants), constants, name)


def plan_graph(
    graph: TeGraph, target: Target, key: PlanKey, constants: frozenset[int] = frozenset(), name: str = "kernel"
) -> KernelPlan:
    """Plan a te graph under a key that identifies it (`make_plan` for the graph of a primitive; packings and shape functions
    come as graphs). The kernel's sizes are ``key.dims``."""
    indices = Indices()
    stages = keep(graph, constants, indices)
    builder = Builder(target, indices)
    inputs = [_operand(builder, t, f"in{n}") for n, t in enumerate(graph.inputs)]
    outputs = [_operand(builder, t, f"out{n}") for n, t in enumerate(graph.outputs)]
    nests = group(stages, indices, lambda _: False)
    shared = _shared(builder, nests)
    in_place = _in_place(builder, graph, nests)
    body = allocate(shared, seq([_nest(builder, nest) for nest in nests]))
    space = layout(body)
    kernel = Kernel(name, tuple(inputs), tuple(outputs), key.dims, body, in_place, space.shared, space.worker)
    return KernelPlan(kernel, (), _flops(stages), _bytes(graph), _variant(nests), key, in_place)


def _operand(builder: Builder, tensor: Tensor, name: str) -> Buffer:
    """A kernel operand; nothing is promised of its alignment but an element's."""
    where = dense(name, tensor.shape, tensor.dtype, alignment=max(1, dtype_bits(tensor.dtype) // 8))
    builder.storage[tensor_key(tensor)] = where
    return where.buffer


def _nest(builder: Builder, nest: Nest) -> Stmt:
    return elementwise(builder, nest) if nest.is_elementwise else row_nest(builder, nest)


def _shared(builder: Builder, nests: list[Nest]) -> list[Buffer]:
    """Workspace for what one nest leaves to another."""
    home = {id(m.kept.origin): n for n, nest in enumerate(nests) for m in nest.members}
    out: list[Buffer] = []
    for n, nest in enumerate(nests):
        for member in nest.members:
            for body in stage_bodies(member.kept.stage):
                for load in loads(body):
                    assert isinstance(load.source, Tensor)
                    key = tensor_key(load.source)
                    if home.get(key[0], n) != n and key not in builder.storage:
                        shape = load.source.shape
                        buffer = Buffer(builder.fresh(load.source.name), (shape_size(shape),), load.source.dtype, "workspace")
                        builder.storage[key] = Storage(buffer, row_major(shape))
                        out.append(buffer)
    return out


def _in_place(builder: Builder, graph: TeGraph, nests: list[Nest]) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) where every element of the input is read last for the element of the output it would become.

    Only elementwise kernels are looked at: there each element of an output is written by the iteration that reads the input
    at the same place, and by no other.
    """
    if len(nests) != 1 or not nests[0].is_elementwise:
        return ()
    members = nests[0].members
    numbers = {tensor_key(t): n for n, t in enumerate(graph.inputs)}
    places: dict[int, set[Dim]] = {}
    last_read: dict[int, int] = {}
    for n, member in enumerate(members):
        rows = dict(zip(member.rows, members[-1].rows, strict=True))
        for body in stage_bodies(member.kept.stage):
            for load in loads(body):
                assert isinstance(load.source, Tensor)
                number = numbers.get(tensor_key(load.source))
                if number is not None:
                    index = builder.evaluate([Load(load.source, load.indices, load.dtype)], rows)[0]
                    assert isinstance(index, Load)
                    places.setdefault(number, set()).add(builder.indices.poly(index.indices[0]))
                    last_read[number] = n
    pairs: list[tuple[int, int]] = []
    used: set[int] = set()
    for o, tensor in enumerate(graph.outputs):
        where = builder.storage[tensor_key(tensor)]
        for n, member in enumerate(members):
            if id(member.kept.origin) != id(tensor.stage):
                continue
            rows = dict(zip(member.rows, members[-1].rows, strict=True))
            at = builder.indices.poly(builder.flat(where, [rows.get(a, a) for a in member.kept.stage.axes]))
            for i, given in enumerate(graph.inputs):
                fits = given.dtype == tensor.dtype and shape_size(given.shape) == shape_size(tensor.shape)
                if fits and i not in used and places.get(i) == {at} and last_read[i] <= n:
                    pairs.append((i, o))
                    used.add(i)
                    break
    return tuple(pairs)


def _flops(stages: list[Kept]) -> Dim:
    total: Dim = 0
    for kept in stages:
        size = shape_size(kept.stage.shape)
        over = shape_size(tuple(a.extent for a in kept.reduce_axes))
        for body in stage_bodies(kept.stage):
            each = cost(body.body) if isinstance(body, Reduce) else cost(body)
            total = dim_add(total, dim_mul(dim_mul(size, over), max(each, 1)))
    return total


def _bytes(graph: TeGraph) -> Dim:
    total: Dim = 0
    for t in (*graph.inputs, *graph.outputs):
        total = dim_add(total, ceil_div(dim_mul(shape_size(t.shape), dtype_bits(t.dtype)), 8))
    return total


def _variant(nests: list[Nest]) -> str:
    kinds = ["elementwise" if n.is_elementwise else "rows" for n in nests]
    return "+".join(dict.fromkeys(kinds)) or "empty"
