"""A fused primitive to a `KernelPlan`: its loop nest, the layouts it wants for constants, and what it costs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from relay import te
from relay.ir.dim import Dim, dim_add, dim_bounds, dim_mul, shape_size
from relay.ir.expr import Function
from relay.ir.record import record
from relay.loop.ir import Branch, Buffer, Kernel, Scope, Shared, Stmt
from relay.loop.target import Target
from relay.loop.walk import buffers_read
from relay.loop.workspace import buffer_bytes, layout
from relay.plan import empty_axes
from relay.plan.attention import find_attentions
from relay.plan.attention_gradient import AttentionGradient, find_attention_gradients
from relay.plan.attention_gradient_nest import attention_gradient_nest
from relay.plan.attention_nest import attention_nest
from relay.plan.batches import in_batches
from relay.plan.bordered import bordered
from relay.plan.build import Builder, Residence, Storage, allocate, operand, own_alignment, row_major, seq
from relay.plan.checked_reads import checked
from relay.plan.divisible import divisible
from relay.plan.factored import factored
from relay.plan.generic import elementwise
from relay.plan.graph import TeGraph, loads, te_graph, tensor_key
from relay.plan.grouped import grouped, split_for_rows, split_for_steps
from relay.plan.guarded import before_guards
from relay.plan.karatsuba import in_fewer_products
from relay.plan.key import PlanKey, plan_key
from relay.plan.lifted import lifted
from relay.plan.line_sums import line_sums
from relay.plan.matrix import matrix_nest
from relay.plan.nests import Nest, group
from relay.plan.operands import Pack, made_panels, packs_of, products_of
from relay.plan.outer_parts import in_outer_parts
from relay.plan.partial_sums import in_parts
from relay.plan.product import Product, size_of
from relay.plan.rows import row_nest, short_nests
from relay.plan.scatter import scatter_nest
from relay.plan.schedule import MODEL, Schedule
from relay.plan.separable import separated
from relay.plan.short_rows import Short, runs
from relay.plan.size_choices import size_choice
from relay.plan.spread import spread_nest
from relay.plan.stages import Kept, keep
from relay.plan.terms import term_by_term
from relay.plan.update import find_updates, taken_over, update_nest
from relay.plan.words import in_words
from relay.plan.work import arithmetic, traffic
from relay.te.index import Indices
from relay.te.interleave import as_interleave
from relay.te.scalar import Load, Scalar
from relay.te.scatter import as_scatter
from relay.te.spans import as_spread
from relay.te.tensor import Tensor, stage_bodies

# Bodies that a kernel has for the choices that sizes make. Each takes as long to plan and to compile as a kernel, and with every condition
# there would be twice as many.
_MOST_BODIES = 16


@record(frozen=True, slots=True)
class ProductSize:
    """The rows and columns of a matrix product in a kernel, and what its sums are in."""

    rows: Dim
    columns: Dim
    dtype: str


@record(frozen=True, slots=True, eq=False)
class KernelPlan:
    """``kernel``'s buffers are the primitive's parameters in order (packed where ``packs`` says so), then its
    outputs.

    ``flops`` and ``bytes`` are the work at the least (`relay.plan.work`), both dims.
    ``variant`` names the kind of schedule; ``schedule`` is that of the matrix products, which ``products`` has; ``key`` is the
    structural identity; ``in_place`` pairs (input, output) may share memory.
    """

    kernel: Kernel
    packs: tuple[Pack, ...]
    flops: Dim
    bytes: Dim
    variant: str
    key: PlanKey
    in_place: tuple[tuple[int, int], ...] = ()
    schedule: Schedule = MODEL
    products: tuple[ProductSize, ...] = ()


def make_plan(
    primitive: Function, target: Target, constants: frozenset[int] = frozenset(), name: str = "kernel"
) -> KernelPlan:
    """Plan a primitive: ``constants`` are the numbers of parameters whose arguments are constants (they may be
    packed).

    Raises PlanError for a primitive that holds anything but operator calls.
    """
    return plan_graph(te_graph(primitive), target, plan_key(primitive, target, constants), constants, name)


def plan_graph(
    graph: TeGraph,
    target: Target,
    key: PlanKey,
    constants: frozenset[int] = frozenset(),
    name: str = "kernel",
    schedule: Schedule = MODEL,
    weights: Residence = Residence.PART,
) -> KernelPlan:
    """Plan a te graph under a key that identifies it (`make_plan` for the graph of a primitive; packings and shape
    functions come as graphs). The kernel's sizes are ``key.dims``; ``schedule`` is that of its matrix products. ``weights``: where
    what was packed of its constants is when it begins."""
    plan, _ = _with_choices(graph, _Wanted(target, key, constants, name, schedule, weights))
    return plan


@record(frozen=True, slots=True, eq=False)
class _Wanted:
    """What is asked of a plan, whichever form of the graph it is of (see `plan_graph`)."""

    target: Target
    key: PlanKey
    constants: frozenset[int]
    name: str
    schedule: Schedule
    weights: Residence


def _with_choices(
    graph: TeGraph, wanted: _Wanted, buffers: tuple[Buffer | None, ...] = (), most: int = _MOST_BODIES
) -> tuple[KernelPlan, int]:
    """A plan of the graph with a body for each outcome of the choices that sizes make, and how many bodies it has: at most so many.

    Choices that are left then are made where their result is read. Half of the bodies, at the most, are for where the first condition
    fails: where those that are usual hold, none is left for long.
    """
    choice = size_choice(graph) if most > 1 else None
    if choice is not None:
        fails, seldom = _with_choices(choice.fails, wanted, buffers, most // 2)
        holds, usual = _with_choices(choice.holds, wanted, _operands(graph, fails), most - seldom)
        both = _either(graph, choice.cond, holds, fails)
        if both is not None:
            return both, seldom + usual
    plan = _by_windows(graph, wanted, buffers)
    other = None if plan.packs or graph.seldom else divisible(graph)
    if other is None:
        return plan, 1
    return _either(graph, other.holds, _by_windows(other.graph, wanted, _operands(graph, plan)), plan) or plan, 1


def _by_windows(graph: TeGraph, wanted: _Wanted, buffers: tuple[Buffer | None, ...]) -> KernelPlan:
    """A plan of the graph, with sums over windows made of fewer products where that is faster."""
    if graph.seldom:
        return _planned(graph, wanted, buffers, graph)
    fewer = in_fewer_products(graph, wanted.target)
    plan = _planned(fewer.always, wanted, buffers, graph)
    if fewer.graph is fewer.always:
        return plan
    return _either(graph, fewer.holds, _planned(fewer.graph, wanted, _operands(graph, plan), graph), plan) or plan


def _operands(graph: TeGraph, plan: KernelPlan) -> tuple[Buffer | None, ...]:
    """The buffers of a plan for the inputs of a graph and its outputs; None for what it packs."""
    packed = {p.input_index for p in plan.packs}
    inputs = [None if n in packed else plan.kernel.inputs[n] for n in range(len(graph.inputs))]
    return (*inputs, *plan.kernel.outputs)


def _either(graph: TeGraph, cond: Scalar, one: KernelPlan, plan: KernelPlan) -> KernelPlan | None:
    """A plan of a graph that goes by another one where a condition on sizes holds. An operand that both want otherwise is an input for
    each of its layouts. None where the other has operands of other kinds."""
    kernel, other = plan.kernel, one.kernel
    packed = [(p, by.kernel.inputs[p.input_index]) for by in (plan, one) for p in by.packs]
    laid = {buffer for _, buffer in packed}
    inputs: list[Buffer] = []
    for both in zip(kernel.inputs[: len(graph.inputs)], other.inputs, strict=False):
        raw = list(dict.fromkeys(b for b in both if b not in laid))
        if len(raw) == 2:
            return None
        inputs += raw or both[:1]
    if other.outputs != kernel.outputs:
        return None
    packs: list[Pack] = []
    for pack, buffer in packed:
        if buffer not in inputs:
            inputs.append(buffer)
        packs.append(replace(pack, input_index=inputs.index(buffer)))
    body = Branch(cond, other.body, kernel.body)
    space = layout(body)
    in_place = tuple(pair for pair in plan.in_place if pair in one.in_place)
    streamed = [(n, rows) for n, rows in zip(kernel.streamed, kernel.rows, strict=True) if n in other.streamed]
    kernel = replace(
        kernel,
        inputs=tuple(inputs),
        body=body,
        in_place=in_place,
        shared_bytes=space.shared,
        worker_bytes=space.worker,
        streamed=tuple(n for n, _ in streamed),
        rows=tuple(rows for _, rows in streamed),
    )
    variant = "+".join(dict.fromkeys((*one.variant.split("+"), *plan.variant.split("+"))))
    products = tuple(dict.fromkeys((*one.products, *plan.products)))
    return replace(plan, kernel=kernel, packs=tuple(packs), in_place=in_place, variant=variant, products=products)


def _planned(graph: TeGraph, wanted: _Wanted, buffers: tuple[Buffer | None, ...], asked: TeGraph) -> KernelPlan:
    """A plan of the graph as it is. ``buffers``: those to use for inputs and outputs, where they are of the same kinds. ``asked``: the
    graph that it was made of."""
    target, constants, schedule = wanted.target, wanted.constants, wanted.schedule
    defined = asked.outputs
    if not graph.seldom:
        graph = bordered(split_for_steps(term_by_term(graph, constants)), constants)
        graph = factored(separated(before_guards(graph)))
        graph = in_batches(split_for_rows(grouped(graph, constants)), constants)
        graph = lifted(graph, constants, target.looked_up_from)
        graph = in_parts(graph, constants)
    indices = Indices()
    builder = Builder(target, indices, wanted.weights, dict(graph.fewest))
    ids = graph.stages_of(constants)
    sums = line_sums({id(stage): stage for stage in te.stages(graph.outputs)}, ids)
    kept = keep(graph, constants, indices, sums, target.looked_up_from)
    sums |= line_sums({id(k.origin): k.stage for k in kept}, ids)
    stages, attentions = find_attentions(kept, graph, indices)
    stages, gradients = find_attention_gradients(stages, graph, indices)
    stages, updates = find_updates(stages, graph, indices)
    together = {id(k.origin) for g in gradients.values() for k in g.stages}
    given = dict(enumerate(buffers))
    count = len(graph.inputs)
    outputs = [operand(builder, t, f"out{n}", given.get(count + n)) for n, t in enumerate(graph.outputs)]
    stages, written = _woven(builder, graph, stages)
    taken = attentions.keys() | together | updates.keys() | sums
    stages, words = in_words(stages, taken, constants, graph, indices, target, written, not (updates or graph.foreign))

    empty = all(0 in t.shape for t in graph.outputs)  # nothing to write, so nothing to compute
    spreads = {id(k.origin): parts for k in stages if (parts := as_spread(k.stage, indices)) is not None}
    others = attentions.keys() | together | sums
    if graph.seldom:
        others |= {id(k.origin) for k in stages}
    stages, products = products_of(stages, others, constants, graph, builder, schedule.vectors)
    left = [k for k in stages if id(k.origin) not in products]
    scatters = {id(k.origin): form for k in left if (form := as_scatter(k.stage, indices)) is not None}
    put = scatters.keys() | spreads.keys() | updates.keys()
    special = attentions.keys() | put | together

    def nested(stages: list[Kept]) -> list[Nest]:
        alone = products.keys() | special
        nests = [] if empty else group(stages, indices, lambda kept: id(kept.origin) in alone)
        nests = _joined([part for n in nests for part in _parted(n, put | together)], gradients)
        return [n if short is None else short.nest for (n, *_), short in runs(builder, nests, known=True)]

    outer = in_outer_parts(builder, graph, nested(stages), products, special) if products else None
    if outer is not None:
        others |= {key for key, old in outer.stands_for.items() if old in sums}
        cut = [*outer.before, *outer.stages]
        stages, products = products_of(cut, others, constants, graph, builder, schedule.vectors)
    packs, panels_of = packs_of(stages, products, constants, graph, indices)
    stages, made = made_panels(stages, products, panels_of, indices)
    before, inside = (stages, []) if outer is None else outer.divided(stages)
    nests, inner = nested(before), nested(inside)
    inputs: list[Buffer] = []
    for n, tensor in enumerate(graph.inputs):
        if n in packs:
            packed = packs[n].packed
            inputs.append(Buffer(f"in{n}", packed.shape, packed.dtype, alignment=own_alignment(packed.dtype)))
        elif n in words:
            inputs.append(operand(builder, words[n], f"in{n}", given.get(n), own_alignment(tensor.dtype)))
        else:
            inputs.append(operand(builder, tensor, f"in{n}", given.get(n)))
    own = _shared(builder, inner, "worker")
    shared = _shared(builder, [*nests, *inner], "workspace")
    in_place = () if inner else _in_place(builder, graph, nests) or taken_over(builder, graph, nests, updates)
    sharing = {id(graph.outputs[o].stage): Shared("shared", 2, output=outputs[o], input=inputs[i]) for i, o in in_place}

    def nest(found: Nest, long: Short | None = None) -> Stmt:
        first = id(found.members[0].kept.origin)
        if first in spreads:
            return spread_nest(builder, found.members[0].kept, spreads[first])
        if first in scatters:
            return scatter_nest(builder, found.members[0].kept, scatters[first])
        if first in updates:
            return update_nest(builder, found.members[0].kept, updates[first], sharing.get(first))
        if first in attentions:
            return attention_nest(builder, attentions[first], found.members)
        if first in gradients:
            return attention_gradient_nest(builder, gradients[first])
        if found.matrix:
            packed = inputs[panels_of[first]] if first in panels_of else None
            if first in made:
                packed = builder.storage[made[first]].buffer
            return matrix_nest(builder, products[first], found.members, packed, schedule)
        return elementwise(builder, found) if found.is_elementwise else row_nest(builder, found, long)

    def made_of(nests: list[Nest]) -> list[Stmt]:
        steps: list[Stmt] = []
        left = [n for n in nests if not n.is_empty]
        for parts, short in runs(builder, left, known=False):
            left = left[len(parts) :]
            one = None if short is None else short_nests(builder, short, left)
            each = seq([nest(n, short) for n in parts])
            steps.append(each if short is None or one is None else Branch(short.holds, one, each))
        return steps

    steps = made_of(nests)
    if outer is not None:
        steps.append(outer.loop(allocate(own, seq(made_of(inner)))))
    nests = [*nests, *inner]
    body = allocate(shared, seq(steps))
    space = layout(body)
    tiled = any(n.matrix and not _writes_lines(n, products) for n in nests)
    streamed = () if tiled else _streamed(outputs, body, target)
    rows = tuple(_row(graph.outputs[n].shape) for n in streamed)
    operands = tuple(inputs), tuple(outputs), wanted.key.dims
    kernel = Kernel(wanted.name, *operands, body, in_place, space.shared, space.worker, streamed, rows)
    if graph.foreign:
        read = {tensor_key(t): builder.storage[tensor_key(t)] for n, t in enumerate(graph.inputs) if n not in packs}
        kernel = checked(kernel, defined, read, graph.assumed)
    kernel = empty_axes.asked_for(kernel, defined)
    return KernelPlan(
        kernel,
        tuple(packs.values()),
        arithmetic(kept, updates),
        traffic(graph, kept, {key: updates[key] for key in sharing.keys() & updates.keys()}),
        _variant(nests, attentions.keys() | gradients.keys(), put),
        wanted.key,
        in_place,
        schedule,
        tuple(ProductSize(size_of(p.rows), size_of(p.columns), p.form.accumulate) for p in products.values()),
    )


def _woven(builder: Builder, graph: TeGraph, stages: list[Kept]) -> tuple[list[Kept], set[int]]:
    """The stages without outputs that only interleave others: these are stored in the output, where they belong. And the ids of the stages
    that are stored in outputs."""
    outputs = {id(t.stage): t for t in graph.outputs}
    written = set(outputs)
    readers: dict[int, int] = {}
    for kept in stages:
        for source in {
            id(n.source.stage) for b in stage_bodies(kept.stage) for n in loads(b) if isinstance(n.source, Tensor)
        }:
            readers[source] = readers.get(source, 0) + 1
    out: list[Kept] = []
    for kept in stages:
        own = outputs.get(id(kept.origin))
        parts = None if own is None or id(kept.origin) in readers else as_interleave(kept.origin)
        mine = {id(k.origin) for k in stages}
        if (
            own is None
            or parts is None
            or any(
                readers[id(p.tensor.stage)] != 1 or id(p.tensor.stage) not in mine or id(p.tensor.stage) in outputs
                for p in parts
            )
        ):
            out.append(kept)
            continue
        where = builder.storage[tensor_key(own)]
        written |= {id(p.tensor.stage) for p in parts}
        for part in parts:
            strides = tuple(dim_mul(where.strides[n], step) for n, step, _ in part.along)
            offset = where.offset
            for n, _, first in part.along:
                offset = dim_add(offset, dim_mul(where.strides[n], first))
            builder.storage[tensor_key(part.tensor)] = Storage(where.buffer, strides, offset)
    return out, written


def _parted(nest: Nest, scatters: Container[int]) -> list[Nest]:
    """A scatter apart from what follows it element by element: it has no tiles to be finished on."""
    if id(nest.members[0].kept.origin) not in scatters or len(nest.members) == 1:
        return [nest]
    return [Nest(nest.members[:1], matrix=True), Nest(nest.members[1:])]


def _joined(nests: list[Nest], gradients: Mapping[int, AttentionGradient]) -> list[Nest]:
    """The three cotangents of an attention, which follow each other but for what follows one of them, as one nest."""
    home = {id(k.origin): key for key, g in gradients.items() for k in g.stages}
    parts = {key: [n for n in nests if home.get(id(n.members[0].kept.origin)) == key] for key in gradients}
    out: list[Nest] = []
    for found in nests:
        key = home.get(id(found.members[0].kept.origin))
        if key is None:
            out.append(found)
        elif found is parts[key][0]:
            out.append(Nest([m for n in parts[key] for m in n.members], matrix=True))
    return out


def _shared(builder: Builder, nests: list[Nest], scope: Scope) -> list[Buffer]:
    """Workspace, of all threads or of each, for what one nest leaves to another."""
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
                        buffer = Buffer(builder.fresh(load.source.name), (shape_size(shape),), load.source.dtype, scope)
                        builder.storage[key] = Storage(buffer, row_major(shape))
                        out.append(buffer)
    return out


def _in_place(builder: Builder, graph: TeGraph, nests: list[Nest]) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) where every element of the input is read last for the element of the output it would
    become.

    Only elementwise kernels are looked at: there each element of an output is written by the iteration that reads the
    input at the same place, and by no other.
    """
    if len(nests) != 1 or nests[0].matrix or not nests[0].is_elementwise:
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


def _streamed(outputs: list[Buffer], body: Stmt, target: Target) -> tuple[int, ...]:
    """The outputs that may be too large for the caches and are only written."""
    limit = target.streamed_bytes
    if limit is None:
        return ()
    most = [dim_bounds(buffer_bytes(b))[1] for b in outputs]
    large = [n for n, size in enumerate(most) if size is None or size >= limit]
    read = buffers_read(body) if large else set()
    return tuple(n for n in large if outputs[n] not in read)


def _writes_lines(nest: Nest, products: Mapping[int, Product]) -> bool:
    """Whether a product writes its results line by line: those of matrices that few rows chose are mostly zeros."""
    found = products.get(id(nest.members[0].kept.origin))
    return found is not None and found.form.terms is not None


def _row(shape: Sequence[Dim]) -> Dim:
    """The size of the last axis where that is not known, else 0."""
    return shape[-1] if shape and not isinstance(shape[-1], int) else 0


def _variant(nests: list[Nest], attentions: Container[int], scatters: Container[int]) -> str:
    def kind(nest: Nest) -> str:
        if id(nest.members[0].kept.origin) in attentions:
            return "attention"
        if id(nest.members[0].kept.origin) in scatters:
            return "scatter"
        return "matrix" if nest.matrix else "elementwise" if nest.is_elementwise else "rows"

    return "+".join(dict.fromkeys(map(kind, nests))) or "empty"
