"""Layout transformation: tensors between operators lie in another order where the operators that make and read them gain by that.

Sums over windows, each channel by itself, run along the lines of an image; where these are a few elements long, or only every
second one is read, most lanes are idle. With the channels innermost they run along these. Products read and write either layout,
so they are where it changes; what follows a sum element by element has what it reads and what it writes in one layout. What is tied
together so lies in the given layout if that takes less time by a model of lanes, or is left as it is; where programs are tuned, what is
tied together is measured as it is and in that layout and with blocks of its innermost axis instead. The operators' forms in other
layouts are derived from their expressions (`relay.op.layouts`), so none is known by name. Source: NeoFlow, section 4.3 (layout
transformation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from types import MappingProxyType
from typing import ClassVar

from relay import te
from relay.ir.dim import Dim, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.expr import Attrs, Binding, Block, Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import FuncType, TensorType, TupleType
from relay.ir.walk import free_vars
from relay.op import registry
from relay.op.layouts import SUFFIX, can_lay_out
from relay.plan.stages import contraction
from relay.te.index import Indices
from relay.te.layout import Layout, Part, axis_letters, innermost, layout_of
from relay.te.scalar import Axis, Load, Reduce, walk
from relay.te.tensor import Compute, Tensor, stage_bodies
from relay.transform.access import AccessTable
from relay.transform.base import Pass, PassError
from relay.transform.blocks import map_bodies, nested_blocks, operands, with_nested_blocks
from relay.transform.build import op_call, type_of
from relay.transform.joints import traced_call


@record(frozen=True, slots=True)
class Costs:
    """About how long a line of terms of a sum takes, and each vector of it (nanoseconds, of float32): where windows overlap along the
    lines, where reads have gaps, the same of products, of which several lines are summed at once (`relay.plan.row_tiles`), where there is
    neither, and where windows of neighbouring lines overlap, of which several are summed at once, too, unless such lines meet in few sets
    of the first-level cache. Moving a vector of elements to another layout takes so long, of more elements than `_FAR`, which come
    from memory, longer."""

    lanes: int
    shared: tuple[float, float]
    gaps: tuple[float, float]
    shared_products: tuple[float, float]
    gaps_products: tuple[float, float]
    moved: float
    alone: tuple[float, float] = (0.2, 1.0)
    across: tuple[float, float] = (0.6, 0.27)
    meeting: tuple[float, float] = (0.6, 0.8)
    moved_far: float = 5.0


# On a Zen 4 with AVX-512: pools and convolutions of single channels, 7 to 112 wide, strides of 1 and 2.
_WIDE = Costs(16, (0.1, 0.4), (0.1, 0.45), (0.15, 0.35), (0.4, 0.6), moved=1.55)
# On a Zen 3 with AVX2: such of 14 to 28, by themselves, what is moved with them.
_NARROW = Costs(8, (0.2, 0.6), (1.9, 0.5), (0.15, 0.22), (1.0, 0.45), moved=3.7)
_FAR = 1 << 20
# What is gained must be more than so much of what is spent: by the model, and as it was measured.
_GAIN, _GAIN_MEASURED = 0.15, 0.05
# Blocks of the innermost axis that are measured.
_BLOCKS = (8, 16, 32)

# The seconds that the entry of each of these modules takes.
Measure = Callable[[Sequence[Module]], Sequence[float]]


@record(frozen=True, slots=True)
class Layouts(Pass):
    """Lay tensors out in ``layout`` (see `relay.te.layout`) where that takes less time; with ``always`` wherever it can be. With
    ``measure`` times are measured, and the tensors of a block that gain lie in that layout or with a block of its innermost axis
    innermost, whichever gains most. ``mask_registers``: whether code is for a machine that has them (`relay.loop.target.Target`).

    Before: typed blocks without ``?``. After: the same values; calls whose tensors lie otherwise are ``<op>.laid_out``, and where
    other calls read such tensors, or give what these read, ``layout_transform`` stands between.
    """

    name: ClassVar[str] = "layouts"
    layout: str = "ACDB"
    always: bool = False
    mask_registers: bool = True
    measure: Measure | None = field(default=None, repr=False, compare=False)
    table: AccessTable = field(default_factory=AccessTable, repr=False, compare=False)

    @property
    def costs(self) -> Costs:
        return _WIDE if self.mask_registers else _NARROW

    def __call__(self, module: Module) -> Module:
        try:
            layout = layout_of(self.layout, axis_letters(sum(c.isupper() for c in self.layout)))
        except te.DefinitionError as error:
            raise PassError(f"pass layouts: {error}", hint="write one like ACDB or ABCD16b") from error
        return map_bodies(module, lambda b: self._block(b, layout))

    def _block(self, block: Block, layout: Layout) -> Step[Block]:
        bindings: list[Binding] = []
        for binding in block.bindings:
            inner: list[Block] = []
            for b in nested_blocks(binding.value):
                inner.append((yield self._block(b, layout)))
            value = with_nested_blocks(binding.value, inner)
            bindings.append(binding if value is binding.value else Binding(binding.var, value))
        regions = _Regions(self, layout, bindings, block.result)
        if self.measure is not None and not self.always:
            regions, chosen = self._fastest(regions, self.measure)
        else:
            chosen = regions.chosen()
        if chosen:
            bindings = _Laying(regions, chosen).bindings(bindings)
        elif all(a is b for a, b in zip(bindings, block.bindings, strict=True)):
            return block
        return Block(tuple(bindings), block.result, block.ty, block.span)

    def _fastest(self, regions: _Regions, measure: Measure) -> tuple[_Regions, set[Var]]:
        """The regions of a block in the layout that gains most, and what of them gains by it."""
        best: tuple[_Regions, set[Var]] = regions, set()
        most = 0.0
        for layout in _candidates(regions.layout):
            tried = regions if layout is regions.layout else _Regions(self, layout, regions.bindings, regions.result)
            gained, chosen = 0.0, set[Var]()
            for members in tried.all():
                if not tried.sums(members):
                    continue
                before, after = measure([tried.alone(members, laid=False), tried.alone(members, laid=True)])
                if before - after > _GAIN_MEASURED * before:
                    gained += before - after
                    chosen |= members
            if gained > most:
                best, most = (tried, chosen), gained
        return best


def _candidates(layout: Layout) -> Iterator[Layout]:
    """A layout, and those with blocks of its innermost axis innermost."""
    yield layout
    for size in _BLOCKS:
        yield innermost(layout.parts[-1].axis, size, layout.rank)


@record(frozen=True, slots=True, eq=False)
class _Role:
    """A call that can have tensors in the layout: those of ``tied`` operands lie as its result does; a product's are free. Other
    operands that have the axis that is brought innermost (the weights of each channel) are ``beside``: by number, the layout that
    has it innermost there too. ``result``: its expression, of calls that are no products."""

    call: Call
    result: Tensor | None
    tied: tuple[Var, ...]
    free: tuple[Var, ...]
    beside: Mapping[int, Layout]


class _Regions:
    """The tensors of one block that are tied together, and those whose layout is changed."""

    def __init__(self, options: Layouts, layout: Layout, bindings: list[Binding], result: Expr) -> None:
        self.options, self.layout, self.bindings, self.result = options, layout, bindings, result
        self.roles = {b.var: role for b in bindings if (role := self._role(b)) is not None}
        self.parent = {v: v for v in self.roles}
        self.readers: dict[Var, list[Var | None]] = {v: [] for v in self.roles}
        for binding in bindings:
            for atom in operands(binding.value):
                if isinstance(atom, Var) and atom in self.readers:
                    role = self.roles.get(binding.var)
                    as_it_is = role is None or atom not in (*role.tied, *role.free)
                    self.readers[atom].append(None if as_it_is else binding.var)
            for block in nested_blocks(binding.value) if self.readers else ():
                self._outside(block)
        if isinstance(result, Var) and result in self.readers:
            self.readers[result].append(None)
        for var, role in self.roles.items():
            for tied in role.tied:
                if tied in self.roles:
                    self.parent[self._root(var)] = self._root(tied)

    def _outside(self, block: Block) -> None:
        """Note what nested blocks read: they take it as it is."""
        todo = [block]
        while todo:
            inside = todo.pop()
            atoms = [a for b in inside.bindings for a in operands(b.value)]
            for atom in (*atoms, inside.result):
                if isinstance(atom, Var) and atom in self.readers:
                    self.readers[atom].append(None)
            todo += [n for b in inside.bindings for n in nested_blocks(b.value)]

    def _root(self, var: Var) -> Var:
        while self.parent[var] is not var:
            self.parent[var] = self.parent[self.parent[var]]
            var = self.parent[var]
        return var

    def all(self) -> list[set[Var]]:
        """The regions: what is tied together."""
        found: dict[Var, set[Var]] = {}
        for var in self.roles:
            found.setdefault(self._root(var), set()).add(var)
        return list(found.values())

    def chosen(self) -> set[Var]:
        """What gains by the layout, by the model."""
        return {v for members in self.all() if self.options.always or self._gains(members) for v in members}

    def sums(self, members: set[Var]) -> bool:
        """Whether something in a region sums: nothing else takes less time in another layout than to be brought there."""
        return any(
            role.result is None or _lines(role.result, self.options.costs)
            for role in map(self.roles.__getitem__, members)
        )

    def alone(self, members: set[Var], laid: bool) -> Module:
        """A module whose entry computes a region by itself, with the products that can read it in the layout: as it is or laid out."""
        beside = {v for v, role in self.roles.items() if v not in members and not members.isdisjoint(role.free)}
        inside = [b for b in self.bindings if b.var in members | beside]
        read = {r for v in members for r in self.readers[v]}
        results = [b.var for b in inside if b.var in beside or None in self.readers[b.var] or not read]
        result = Var("results", None, TupleType(tuple(type_of(v) for v in results)))
        inside.append(Binding(result, Tuple(tuple(results), result.ty)))
        params = tuple(free_vars(Block(tuple(inside), result, result.ty)))
        if laid:
            inside = _Laying(_Regions(self.options, self.layout, inside, result), members).bindings(inside)
        ty = FuncType(tuple(type_of(p) for p in params), type_of(result))
        return Module({"main": Function(params, Block(tuple(inside), result, result.ty), result.ty, ty=ty)})

    def _gains(self, members: set[Var]) -> bool:
        roles = [self.roles[v] for v in members]
        costs = self.options.costs
        before = sum(_lines(r.result, costs) for r in roles if r.result is not None)
        if not before:
            return False  # nothing there sums over windows
        after = sum(_lines(self._as_laid(r), costs) for r in roles if r.result is not None)
        moved = {v for r in roles for v in r.tied if v not in self.roles}
        moved |= {v for v in members if None in self.readers[v]}
        elements = sum(_elements(v) for v in moved)
        after += (costs.moved if elements <= _FAR else costs.moved_far) * elements / costs.lanes
        return before - after > _GAIN * before

    def _as_laid(self, role: _Role) -> Tensor:
        """The expression of a call in the layout."""
        moved = {v: _moved(v, self.layout) for v in role.tied}
        beside = {n: _moved(role.call.args[n], own) for n, own in role.beside.items()}
        traced = traced_call(_formed(role, moved, beside, True, self.layout))
        assert traced is not None
        return traced.outputs[0]

    def _role(self, binding: Binding) -> _Role | None:
        call = binding.value
        if not isinstance(call, Call) or not isinstance(call.fn, OpRef) or not self._fits(binding.var):
            return None
        access = self.options.table.of(call)
        if access is None or access.view or access.kind == "opaque" or not can_lay_out(registry.get(call.fn.name)):
            return None
        traced = traced_call(call)
        if traced is None or not all(self._is_known(t.shape) for t in (*traced.inputs, *traced.outputs)):
            return None
        (result,) = traced.outputs
        operands = [(t.stage, a) for t, a in zip(traced.inputs, call.args, strict=True)]
        fitting = [(s, a) for s, a in operands if isinstance(a, Var) and self._fits(a)]
        form = contraction(result.stage, frozenset())
        if form is not None and form.rows:
            return None if form.batch else _Role(call, None, (), tuple(a for _, a in fitting), {})
        if not all(_is_window(s) and not _is_product(s) for s in te.stages(traced.outputs)):
            return None
        last = self.layout.parts[-1]
        alike = _read_at(result, last.axis)
        tied = tuple(a for s, a in fitting if alike.get(s) == last.axis)
        beside = {
            n: innermost(alike[s], last.size, len(s.shape))
            for n, (s, a) in enumerate(operands)
            if s in alike and a not in tied and prod(d for d in s.shape[alike[s] + 1 :] if isinstance(d, int)) > 1
        }
        beside = {n: layout for n, layout in beside.items() if layout.divides(operands[n][0].shape)}
        return _Role(call, result, tied, (), beside) if tied else None

    def _fits(self, var: Var) -> bool:
        """Whether a tensor can have the layout: it has as many axes of known size, and blocks divide them."""
        ty = var.ty
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.device is not None:
            return False
        if len(ty.shape) != self.layout.rank or not self._is_known(ty.shape):
            return False
        return self.layout.divides(ty.shape)

    def _is_known(self, shape: Sequence[Dim]) -> bool:
        """Whether all sizes are known that the layout moves: how many images there are is not asked where they stay the outermost axis."""
        moved = shape[1:] if len(shape) == self.layout.rank and self.layout.parts[0] == Part(0) else shape
        return all(isinstance(d, int) for d in moved)


def _is_product(stage: te.Stage) -> bool:
    form = contraction(stage, frozenset())
    return form is not None and bool(form.rows)


def _is_window(stage: te.Stage) -> bool:
    """Whether what a stage sums is read at places that move with both its own axes and those summed over, if it sums."""
    if not isinstance(stage, Compute) or not isinstance(stage.bodies[0], Reduce):
        return True
    body, indices = stage.bodies[0], Indices()
    polys = [indices.poly(i) for n in walk(body.body) if isinstance(n, Load) for i in n.indices]

    def overlaps(axis: Axis) -> bool:
        mine = [p for p in polys if indices.coefficient(p, axis) != 0]
        return any(indices.coefficient(p, own) != 0 for p in mine for own in stage.axes)

    return all(a.extent == 1 or overlaps(a) for a in body.axes)


def _read_at(result: Tensor, axis: int) -> dict[te.Stage, int]:
    """The stages that are read, through all stages to the result, with the result's own index along an axis: by which of theirs."""
    at: dict[te.Stage, int] = {result.stage: axis}
    for stage in reversed(te.stages([result])):
        if stage not in at or not isinstance(stage, Compute):
            continue
        indices = Indices()
        own = indices.axis(stage.axes[at[stage]])
        for node in (n for b in stage_bodies(stage) for n in walk(b)):
            if isinstance(node, Load) and isinstance(node.source, Tensor):
                same = [n for n, index in enumerate(node.indices) if indices.poly(index) == own]
                if same:
                    at.setdefault(node.source.stage, same[0])
    return at


def _lines(result: Tensor, costs: Costs) -> float:
    """About how long the sums of an expression take, line by line."""
    total = 0.0
    for stage in te.stages([result]):
        for body in stage_bodies(stage):
            line = (
                next((a for a in reversed(stage.axes) if a.extent != 1), None) if isinstance(stage, Compute) else None
            )
            if isinstance(body, Reduce) and line is not None and isinstance(line.extent, int):
                assert isinstance(stage, Compute)
                terms = dim_typical(shape_size(tuple(a.extent for a in (*stage.axes, *body.axes))))
                first, each = _time(body, stage.axes, line, costs)
                total += terms / max(line.extent, 1) * (first + each * -(-line.extent // costs.lanes))
    return total


def _time(body: Reduce, axes: Sequence[Axis], line: Axis, costs: Costs) -> tuple[float, float]:
    """How long a line of terms takes, and each vector of it."""
    indices = Indices()
    reads = [n for n in walk(body.body) if isinstance(n, Load)]
    polys = [indices.poly(i) for n in reads for i in n.indices]
    steps = [indices.coefficient(p, line) for p in polys]
    tiled = body.kind == "sum" and len(reads) > 1 and isinstance(line.extent, int) and 2 * line.extent >= costs.lanes
    if any(s not in (0, 1) for s in steps):
        return costs.gaps_products if tiled else costs.gaps
    again = [p for p, s in zip(polys, steps, strict=True) if s == 1]
    if any(indices.coefficient(p, a) != 0 for p in again for a in body.axes):
        return costs.shared_products if tiled else costs.shared
    overlap = [
        p for p in polys for a in body.axes for o in axes if 0 != indices.coefficient(p, a) == indices.coefficient(p, o)
    ]
    if not overlap or body.kind not in ("sum", "max", "min"):
        return costs.alone
    meet = isinstance(line.extent, int) and line.extent > 128 and line.extent % 128 == 0
    return costs.meeting if meet else costs.across


def _elements(var: Var) -> int:
    ty = type_of(var)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return dim_typical(shape_size(ty.shape))


def _formed(role: _Role, moved: Mapping[Var, Var], beside: Mapping[int, Var], result: bool, layout: Layout) -> Call:
    """The call with operands, and its result, in the layout; ``moved``: such operands by what they were, ``beside``: by number."""
    call = role.call
    assert isinstance(call.fn, OpRef)
    texts: list[str] = []
    args: list[Expr] = []
    for n, arg in enumerate(call.args):
        own = moved.get(arg) if isinstance(arg, Var) else None
        args.append(beside.get(n, own or arg))
        texts.append(role.beside[n].text() if n in beside else layout.text() if own is not None else "")
    attrs: Attrs = MappingProxyType({**call.attrs, "layouts": (*texts, layout.text() if result else "")})
    return op_call(call.fn.name + SUFFIX, args, attrs, call.span)


def _moved(e: Expr, layout: Layout) -> Var:
    """A variable for a tensor in the layout."""
    ty = type_of(e)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    name = e.name if isinstance(e, Var) else "constant"
    return Var(name, None, TensorType(layout.shape(ty.shape), ty.dtype, ty.device))


class _Laying:
    """The bindings of a block with chosen tensors in the layout, each converted once where it is needed as it was."""

    def __init__(self, regions: _Regions, chosen: set[Var]) -> None:
        self.regions, self.chosen, self.layout = regions, chosen, regions.layout
        self.moved: dict[Var, Var] = {}
        self.out: list[Binding] = []

    def bindings(self, bindings: list[Binding]) -> list[Binding]:
        for binding in bindings:
            role, laid = self.regions.roles.get(binding.var), binding.var in self.chosen
            inside = {} if role is None else self._operands(role, laid)
            if role is None or not (inside or laid):
                self.out.append(binding)
            elif not laid:
                self.out.append(Binding(binding.var, _formed(role, inside, {}, False, self.layout)))
            else:
                beside = {n: self._converted(role.call.args[n], own) for n, own in role.beside.items()}
                new = self.moved[binding.var] = _moved(binding.var, self.layout)
                self.out.append(Binding(new, _formed(role, inside, beside, True, self.layout)))
                if None in self.regions.readers[binding.var]:
                    plain, own = axis_letters(self.layout.rank), self.layout.text()
                    attrs: Attrs = MappingProxyType({"src_layout": own, "dst_layout": plain})
                    self.out.append(Binding(binding.var, op_call("layout_transform", (new,), attrs)))
        return self.out

    def _operands(self, role: _Role, result: bool) -> dict[Var, Var]:
        """The operands of a call that are in the layout: those that are tied to its result are brought to it."""
        for var in role.tied if result else ():
            if var not in self.moved:
                self.moved[var] = self._converted(var, self.layout)
        return {v: self.moved[v] for v in (*role.tied, *role.free) if v in self.moved}

    def _converted(self, e: Expr, layout: Layout) -> Var:
        new = _moved(e, layout)
        attrs: Attrs = MappingProxyType({"src_layout": axis_letters(layout.rank), "dst_layout": layout.text()})
        self.out.append(Binding(new, op_call("layout_transform", (e,), attrs)))
        return new
