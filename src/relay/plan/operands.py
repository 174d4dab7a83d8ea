"""What products read: their left operands, which may have to be made; constants, which are packed when a program is compiled; and panels
that are packed once for many tasks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from relay.ir.record import record
from relay.plan.build import Builder, row_major
from relay.plan.graph import TeGraph, loads
from relay.plan.product import (
    Product,
    are_few_sums,
    are_small,
    as_it_lies,
    constant_operand,
    is_laid_before,
    is_narrow,
    is_streamable,
    is_widened_before,
    left_stage,
    panels,
    product,
    with_left,
)
from relay.plan.row_groups import by_groups
from relay.plan.stages import Kept, contraction
from relay.plan.term_groups import by_terms
from relay.plan.turned import arranged, with_panels
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary, Compare, Const, Unary, children, walk
from relay.te.tensor import Compute, Tensor, stage_bodies


@record(frozen=True, slots=True, eq=False)
class Pack:
    """The layout a kernel wants for a constant: input ``input_index`` of the kernel is ``packed``, a tensor
    expression of the raw constant ``source`` (a placeholder), which is operand ``operand`` of the primitive. Where that is wanted in
    several layouts, the kernel has inputs more for the others. ``key`` is the same for equal layouts of equal shapes."""

    input_index: int
    operand: int
    source: Tensor
    packed: Tensor
    key: str


def products_of(
    stages: list[Kept],
    others: Container[int],
    constants: frozenset[int],
    graph: TeGraph,
    builder: Builder,
    vectors: int | None,
) -> tuple[list[Kept], dict[int, Product]]:
    """The contractions but for ``others`` to run as matrix products (by the id of their stage), with a stage more for
    each left operand to make."""
    ids, indices, target = graph.stages_of(constants), builder.indices, builder.target
    out: list[Kept] = []
    products: dict[int, Product] = {}
    for kept in stages:
        form = None if id(kept.origin) in others else contraction(kept.stage, ids)
        grouped = None if form is None else by_groups(form)
        if form is None and id(kept.origin) not in others:
            form = grouped = by_terms(kept, ids, indices)
        if form is not None and grouped is None:
            lanes = builder.lanes([form.accumulate])
            narrow = is_narrow(form, lanes) and not is_streamable(form, ids, indices)
            rows = narrow or are_small(form, lanes, indices) or are_few_sums(form, lanes, indices)
            form = None if rows else form
        if form is not None:
            where = builder.storage.get((id(kept.origin), 0))
            strides = row_major(kept.stage.shape) if where is None else where.strides
            best = grouped or form
            if grouped is None and form.guard is None:
                best = arranged(kept, form, strides, indices, target, ids)
            found = product(kept, best, indices, target, vectors, ids)
            if found is None and form.guard is not None:
                out.append(kept)  # where its guard does not hold, there is no left operand to make
                continue
            if found is None and grouped is None:
                found = product(kept, form, indices, target, vectors, ids)
            widened = found is not None and is_widened_before(found, target)
            laid = found is not None and is_laid_before(found, target, ids)
            if found is None or widened or laid:
                made, form = left_stage(as_it_lies(form) if laid else form, widened)
                out.append(made)
                kept = replace(kept, stage=with_left(kept, form))
                found = product(kept, form if form.terms else by_groups(form) or form, indices, target, vectors, ids)
                assert found is not None, "a dense left operand can be read in place"
            products[id(kept.origin)] = found
        out.append(kept)
    return out, products


def packs_of(
    stages: list[Kept], products: dict[int, Product], constants: frozenset[int], graph: TeGraph, indices: Indices
) -> tuple[dict[int, Pack], dict[int, int]]:
    """The constants to pack by input number, and for each product that reads one the number. A constant that something else reads too
    stays as it is."""
    numbers = {id(graph.inputs[n].stage): n for n in constants}
    readers: dict[int, list[int]] = {}
    for kept in stages:
        for body in stage_bodies(kept.stage):
            for load in loads(body):
                assert isinstance(load.source, Tensor)
                number = numbers.get(id(load.source.stage))
                if number is not None:
                    readers.setdefault(number, []).append(id(load))
    packs: dict[int, Pack] = {}
    panels_of: dict[int, int] = {}
    for key, found in products.items():
        number = constant_operand(found.form, numbers) if found.form.terms is None else None
        # Where rows choose among matrices, the stage reads the operand at what is chosen, and the form at any of them.
        read = [found.form.right] if found.form.choice is None else stage_bodies(found.kept.stage)
        if number is None or not {id(n) for root in read for n in loads(root)}.issuperset(readers[number]):
            continue
        packed = panels(found, indices)
        packs[number] = Pack(number, number, graph.inputs[number], packed, _layout_key(graph.inputs[number], packed))
        panels_of[key] = number
    return packs, panels_of


def made_panels(
    stages: list[Kept], products: dict[int, Product], packed: Container[int], indices: Indices
) -> tuple[list[Kept], dict[int, tuple[int, int]]]:
    """The stages with one more for the panels of each turned or guarded product that no constant holds, and the keys of these."""
    out: list[Kept] = []
    made: dict[int, tuple[int, int]] = {}
    for kept in stages:
        found = products.get(id(kept.origin))
        many = found is not None and (found.form.turned or found.form.guard is not None)
        if found is not None and many and id(kept.origin) not in packed:
            before, kept = with_panels(found, indices)
            out.append(before)
            found.kept = kept
            made[id(kept.origin)] = id(before.origin), 0
        out.append(kept)
    return out, made


def _layout_key(source: Tensor, packed: Tensor) -> str:
    """The same text for equal layouts: what is read where, in numbered axes."""
    assert isinstance(packed.stage, Compute)
    names = {a: f"a{n}" for n, a in enumerate(packed.stage.axes)}
    parts = [f"{source.dtype}{source.shape} -> {packed.dtype}{packed.shape}"]
    numbers: dict[int, int] = {}
    for n, node in enumerate(walk(packed.stage.bodies[0])):
        numbers[id(node)] = n
        own = names.get(node, "") if isinstance(node, Axis) else str(node.value) if isinstance(node, Const) else ""
        op = node.op if isinstance(node, Unary | Binary | Compare) else ""
        parts.append(f"{type(node).__name__} {op}{own} {node.dtype} {[numbers[id(k)] for k in children(node)]}")
    return "; ".join(parts)
