"""A slice of what is computed place by place is computed of slices: of a classifier that reads one token the last layer's other
tokens are not computed, nor the scores of words that follow each token where only those after the last one are asked for.

    let %y = nn.dense(%x, %w);                        let %t = strided_slice(%x, begin=[0], end=[1], axes=[0]);
    strided_slice(%y, begin=[0], end=[1], axes=[0])   nn.dense(%t, %w)

What goes along with an axis is read off an operator's expression (`relay.te.parallel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, cast

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, known_equal, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.expr import Attr, Attrs, Binding, Block, Call, Expr, Function, OpRef, Proj, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from relay.te.parallel import parallel_reads
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    body_of,
    is_primitive,
    map_functions,
    operands,
    renamed,
    with_body,
    with_each_nested,
)
from relay.transform.build import op_call, type_of
from relay.transform.dims import first_binders
from relay.transform.failing import effects_of_moving
from relay.transform.matrix_products import is_sized, shape_of
from relay.transform.simplify import reshaped
from relay.transform.uses import use_counts
from relay.typing.effects import Effects

# A slice has at most one in so many places of what it is taken of: of less, computing the others takes little.
_FEWER = 2
# So many calls are looked at from a slice on to find a product.
_MOST_CALLS = 256


@record(frozen=True, slots=True)
class SliceEarly(Pass):
    """Slices of products, and of what is made of these place by place, become products of slices.

    Before: typed blocks; tensors of unknown sizes (``?``) are left alone. After: the same values up to the order of sums; nothing is
    computed more often. What is read otherwise than by equal slices, at a place of the same block, stays whole; so does what no product
    leads to.
    """

    name: ClassVar[str] = "slice_early"

    def __call__(self, module: Module) -> Module:
        effects, table = effects_of_moving(module), AccessTable()

        def rewrite(function: Function) -> Function:
            if is_primitive(function) or not any(_slice(b.value) for b in all_bindings(body_of(function))):
                return function
            binders = set(first_binders(function.params, (b.var for b in all_bindings(body_of(function)))).values())
            return with_body(function, lambda b: _block(b, {}, effects, table, binders))

        return map_functions(module, rewrite)


@record(frozen=True, slots=True, eq=False)
class _Slice:
    """A call that takes a part of one axis of its first operand, or (``drops``) one place of it, whose axis goes."""

    call: Call
    axis: int
    drops: bool

    @property
    def key(self) -> object:
        """What is equal for equal slices."""
        return (_name(self.call), attrs_key(self.call.attrs), self.call.args[1:])

    @property
    def size(self) -> Dim:
        """How many places it takes."""
        return 1 if self.drops else _shape(self.call)[self.axis]

    def of(self, e: Expr, axis: int) -> Call:
        """The same part of an axis of another tensor; of one place, that as an axis of one element."""
        attrs = dict(self.call.attrs)
        if _name(self.call) == "take":
            attrs["axis"] = axis
        else:
            n = _cut(self.call)
            assert n is not None
            for what in ("begin", "end", "strides"):
                given = cast("tuple[Attr, ...]", attrs.get(what, (1,)))
                attrs[what] = (given[n if len(given) > n else -1],)
            attrs["axes"] = (axis,)
        return op_call(_name(self.call), (e, *self.call.args[1:]), attrs, self.call.span)


def _slice(value: Expr) -> _Slice | None:
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in ("take", "strided_slice"):
        return None
    data, made = _shape_of(value.args[0]), _shape_of(value)
    if data is None or made is None:
        return None
    if value.fn.name == "take":
        axis, index = value.attrs.get("axis"), _shape_of(value.args[1])
        if not isinstance(axis, int) or value.attrs.get("batch_dims", 0) != 0 or index is None or len(index) > 1:
            return None
        found = _Slice(value, axis % len(data), not index)
    else:
        n = _cut(value)
        if n is None:
            return None
        found = _Slice(value, _axes(value)[n] % len(data), False)
    return found if dim_typical(found.size) * _FEWER <= dim_typical(data[found.axis]) else None


def _cut(call: Call) -> int | None:
    """Which of a slice's axes it takes a part of, or turns round, where that is one."""
    data, made, axes = _shape(call.args[0]), _shape(call), _axes(call)
    given = cast("tuple[int, ...]", call.attrs.get("strides", (1,)))
    strides = given * len(axes) if len(given) == 1 else given
    cut = [n for n, a in enumerate(axes) if strides[n] < 0 or not known_equal(data[a], made[a])]
    return cut[0] if len(cut) == 1 and call.attrs.get("slice_mode", "end") == "end" else None


def _axes(call: Call) -> Sequence[int]:
    given = call.attrs.get("axes")
    return cast("tuple[int, ...]", given) if given else range(len(cast("tuple[Attr, ...]", call.attrs["begin"])))


def _block(
    block: Block, names: Mapping[Var, Var], effects: Effects, table: AccessTable, binders: set[Var]
) -> Step[Block]:
    """A block with variables renamed by ``names`` and its slices pushed."""
    pushed = _Pushed(block, effects, table, binders, dict(names))
    pushed.push()
    out: list[Binding] = []
    for binding in pushed.bindings():
        value = yield with_each_nested(binding.value, lambda b: _block(b, pushed.names, effects, table, binders))
        out.append(binding if value is binding.value else Binding(binding.var, value))
    result = pushed.names.get(block.result, block.result) if isinstance(block.result, Var) else block.result
    same = result is block.result and len(out) == len(block.bindings)
    if same and all(a is b for a, b in zip(out, block.bindings, strict=True)):
        return block
    return Block(tuple(out), result, block.ty, block.span)


@record(slots=True, eq=False)
class _Pushed:
    """The slices of one block on their way to where they are taken of what is there already."""

    block: Block
    effects: Effects
    table: AccessTable
    binders: set[Var]
    names: dict[Var, Var]
    # What stands in the place of each binding.
    slots: list[list[Binding]] = field(default_factory=list)
    # How often a variable is mentioned, and the slices of it, each with the number of its slot.
    counts: dict[Var, int] = field(default_factory=dict)
    slices: dict[Var, list[tuple[int, Var, _Slice]]] = field(default_factory=dict)
    values: dict[Var, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = [[b] for b in self.block.bindings]
        self.counts = dict(use_counts(self.block))
        self.values = {b.var: b.value for b in self.block.bindings}
        for n, binding in enumerate(self.block.bindings):
            self._note(n, binding)

    def bindings(self) -> Iterator[Binding]:
        """What the block consists of."""
        for slot in self.slots:
            for binding in slot:
                yield renamed(binding, self.names) if self.names else binding

    def _note(self, slot: int, binding: Binding) -> None:
        found = _slice(binding.value)
        if found is not None and isinstance(found.call.args[0], Var):
            self.slices.setdefault(found.call.args[0], []).append((slot, binding.var, found))

    def push(self) -> None:
        """Push slices, of what is made last first: what is made of slices is taken of further slices then."""
        for number in reversed(range(len(self.slots))):
            var = self.block.bindings[number].var
            found = self.slices.get(var, [])
            if self.counts.get(var, 0) == 0 and isinstance(self.values[var], Tuple):
                self._drop(number, var)
            if not found or len(found) < self.counts.get(var, 0) or var in self.binders:
                continue
            if len({f.key for _, _, f in found}) > 1 or not self._is_worth(var, found[0][2].axis):
                continue
            made = self._of_slices(self.block.bindings[number].value, found[0][2])
            if made is None:
                continue
            slot, first, _ = min(found, key=lambda f: (f[0], self._place(f[0], f[1])))
            place = self._place(slot, first)
            *before, last = made
            new = [*before, Binding(first, last.value)]
            self.slots[slot][place : place + 1] = new
            self._drop(number, var)
            self.names |= {other: first for _, other, _ in found if other is not first}
            for n, other, _ in found:
                if other is not first:
                    self.slots[n] = [b for b in self.slots[n] if b.var is not other]
            for binding in new:
                self._note(slot, binding)
                for atom in operands(binding.value):
                    if isinstance(atom, Var):
                        self.counts[atom] = self.counts.get(atom, 0) + 1

    def _drop(self, slot: int, var: Var) -> None:
        """Leave a binding out that nothing reads any more."""
        self.slots[slot] = [b for b in self.slots[slot] if b.var is not var]
        for atom in operands(self.values[var]):
            if isinstance(atom, Var):
                self.counts[atom] -= 1

    def _place(self, slot: int, var: Var) -> int:
        return next(n for n, b in enumerate(self.slots[slot]) if b.var is var)

    def _reads(self, value: Expr, axis: int) -> list[tuple[Expr, int | None]] | None:
        """The tensors that a call reads, each with the axis that goes along with one of the result's; None: it is not made place by
        place along that."""
        if not isinstance(value, Call) or self.table.of(value) is None or self.effects.of(value):
            return None
        flat = [p for a in value.args for p in self._parts(a)]
        if _shape_of(value) is None or any(s is None for s in map(_shape_of, flat)):
            return None
        if _name(value) == "reshape":
            own, shape = _shape(value), _shape(flat[0])
            at = next((n for n in range(len(shape)) if _goes_along(shape, n, own, axis)), None)
            return None if at is None else [(flat[0], at)]
        op, given = registry.get(_name(value)), iter([(_shape_of(e), _dtype(e)) for e in flat])
        inputs = [
            [next(given) for _ in a.ty.fields] if isinstance(a.ty, TupleType) else next(given) for a in value.args
        ]
        if op.shape_mode != "independent":
            return None
        try:
            traced = registry.trace(op, cast("list[tuple[tuple[Dim, ...], str]]", inputs), value.attrs)
        except (te.Undetermined, te.DefinitionError):
            return None
        if len(traced.outputs) != 1 or traced.is_tuple:
            return None
        along = parallel_reads(traced.inputs, traced.outputs[0], axis)
        size = _shape(value)[axis]
        if along is None or any(
            a is not None and not known_equal(_shape(e)[a], size) for e, a in zip(flat, along, strict=True)
        ):
            return None
        return list(zip(flat, along, strict=True))

    def _parts(self, e: Expr) -> tuple[Expr, ...]:
        if not isinstance(e.ty, TupleType):
            return (e,)
        whole = self.values.get(e) if isinstance(e, Var) else e
        if isinstance(whole, Tuple):
            return whole.fields
        return tuple(Proj(e, n, t) for n, t in enumerate(e.ty.fields))

    def _is_worth(self, var: Var, axis: int) -> bool:
        """Whether a slice arrives at a product of which it asks for less."""
        todo, seen = [(var, axis)], set[tuple[Var, int]]()
        while todo and len(seen) < _MOST_CALLS:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            value = self.values.get(at[0])
            reads = None if value is None or at[0] in self.binders else self._reads(value, at[1])
            if reads is None:
                continue
            facts = self.table.of(cast(Call, value))
            if facts is not None and facts.kind == "contraction":
                return True
            todo += [(e, a) for e, a in reads if isinstance(e, Var) and a is not None]
        return False

    def _of_slices(self, value: Expr, part: _Slice) -> list[Binding] | None:
        """A call's slice as that of slices of its operands; the last binding is the result."""
        reads = self._reads(value, part.axis)
        if reads is None or not any(a is not None for _, a in reads):
            return None
        assert isinstance(value, Call)
        out: list[Binding] = []

        def bound(name: str, made: Expr) -> Var:
            var = Var(name, None, made.ty)
            out.append(Binding(var, made))
            return var

        try:
            if part.drops:
                number = bound("number", op_call("expand_dims", (part.call.args[1],), {"axis": 0}, part.call.span))
                whole = _Slice(
                    op_call("take", (part.call.args[0], number), part.call.attrs, part.call.span), part.axis, False
                )
            else:
                whole = part
            taken: dict[tuple[Expr, int], Expr] = {}
            for e, a in reads:
                if isinstance(e, Proj):
                    return None
                if a is not None and (e, a) not in taken:
                    taken[e, a] = bound("part", whole.of(e, a))
            given = iter([e if a is None else taken[e, a] for e, a in reads])
            args: list[Expr] = []
            for arg in value.args:
                if isinstance(arg.ty, TupleType):
                    fields = tuple(next(given) for _ in arg.ty.fields)
                    args.append(bound("parts", Tuple(fields, TupleType(tuple(map(type_of, fields))))))
                else:
                    args.append(next(given))
            ty = type_of(value)
            assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
            shape = tuple(whole.size if n == part.axis else d for n, d in enumerate(ty.shape))
            made = _call(value, args, shape)
        except RelayError:
            return None
        if made is None or _shape_of(made) != shape:
            return None
        if part.drops:
            made = op_call("squeeze", (bound("one", made),), {"axis": (part.axis,)}, value.span)
        bound("made", made)
        return out


def _call(value: Call, args: Sequence[Expr], shape: tuple[Dim, ...]) -> Call | None:
    """A call of the same operator on other operands, of this shape."""
    if _name(value) == "reshape":
        ty = TensorType(shape, cast(TensorType, type_of(value)).dtype)
        return cast("Call | None", reshaped(args[0], replace(value, ty=ty)))
    attrs: Attrs = value.attrs
    return op_call(_name(value), args, attrs, value.span)


def _goes_along(shape: Sequence[Dim], axis: int, own: Sequence[Dim], at: int) -> bool:
    """Whether an axis of a tensor is one of what it is seen as: there are as many elements behind it, and before it."""
    return known_equal(shape[axis], own[at]) and known_equal(
        shape_size(tuple(shape[axis + 1 :])), shape_size(tuple(own[at + 1 :]))
    )


def _name(call: Call) -> str:
    assert isinstance(call.fn, OpRef)
    return call.fn.name


def _shape_of(e: Expr) -> tuple[Dim, ...] | None:
    """The sizes of a tensor, where each has a value or a name."""
    return shape_of(e) if is_sized(e) else None


def _shape(e: Expr) -> tuple[Dim, ...]:
    found = _shape_of(e)
    assert found is not None
    return found


def _dtype(e: Expr) -> str:
    ty = type_of(e)
    return ty.dtype if isinstance(ty, TensorType) and isinstance(ty.dtype, str) else ""
