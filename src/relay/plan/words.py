"""Products of narrow elements as products of words, which the target multiplies in one instruction and adds up.

    out[i, j] = sum(int32(x[i, k]) * int32(w[j, k]), k)
    ->   out[i, j] = sum(dot(x'[i, k'], w'[j, k']), k')        where the word x'[i, k'] has x[i, 4 * k'] to x[i, 4 * k' + 3]

A word has four elements of 8 bits, or two of 16. What is left is a product of its operands' words that is planned as any other, a fourth
as deep or half. An input that lies in memory like its words is read as them; others are put together, by the stage that makes them
before, or as panels are packed. Behind the last element of a depth that fills no whole words there are zeros.

The instruction multiplies unsigned bytes with signed ones. Of two operands that are alike one is moved by 128, which turns round the
highest bit of each byte, and what that adds to the sums is taken off again:

    sum(x[k] * w[k]) = sum(x[k] * (w[k] + 128)) - 128 * sum(x[k])
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce

from relay import te
from relay.ir.dim import Dim, ceil_div, dim_floordiv, dim_mod, known_equal, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits, is_integer
from relay.loop.target import Target
from relay.plan.build import position_read
from relay.plan.graph import TeGraph, loads
from relay.plan.stages import HIGHEST, MIRRORED, Contraction, Kept, contraction, flip, is_small, needed
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Const,
    Dot,
    Load,
    Parts,
    Reduce,
    Scalar,
    binary,
    bits,
    cast,
    compare,
    extent_of,
    mentioned,
    select,
    substitute,
)
from relay.te.tensor import Compute, Placeholder, Tensor, stage_bodies

# Shallower products are not worth it, and words of which so little is used.
_SHALLOW, _USED = 8, 0.5
# Words that are put together beforehand are read so often at least: what that takes is repaid.
_USES = 16
_SIGNS: Mapping[tuple[bool, bool], tuple[Parts, bool]] = {
    # By whether the operands are signed: what words hold where those of the second are turned round if need be, and whether they are.
    (True, False): ("s8u8", False),
    (False, True): ("u8s8", False),
    (True, True): ("s8u8", True),
    (False, False): ("u8s8", True),
}


@record(frozen=True, slots=True, eq=False)
class _Operand:
    """A side of a product as elements that are narrow. ``element`` is a load where it is no constant's."""

    element: Scalar
    is_constant: bool

    @property
    def load(self) -> Load | None:
        load = self.element
        return load if isinstance(load, Load) and isinstance(load.source, Tensor) else None


@record(frozen=True, slots=True, eq=False)
class _Plan:
    """How a product is one of words: along which axis they lie, and which of them are turned round (the number of an operand)."""

    kept: Kept
    form: Contraction
    operands: tuple[_Operand, _Operand]
    parts: Parts
    axis: Axis
    flipped: int | None

    @property
    def each(self) -> int:
        """Elements of a word."""
        return 2 if self.parts in ("s16", "bf16") else 4

    @property
    def held(self) -> str:
        """The dtype of words."""
        return "float32" if self.parts == "bf16" else "int32"


def in_words(
    stages: list[Kept],
    others: Container[int],
    constants: frozenset[int],
    graph: TeGraph,
    indices: Indices,
    target: Target,
    written: Collection[int],
    inputs: bool = True,
) -> tuple[list[Kept], dict[int, Tensor]]:
    """The stages with products of narrow elements, but for ``others``, made of words where the target multiplies these; and the inputs
    (none unless ``inputs``) that are read as words, by their numbers. ``written``: the ids of the stages that are stored in outputs."""
    made = _InWords(stages, graph, graph.stages_of(constants), indices, target, inputs)
    plans = {id(k.origin): p for k in stages if id(k.origin) not in others and (p := made.plan(k)) is not None}
    while True:
        made.decide(plans.values())
        dropped = [key for key, plan in plans.items() if not made.pays(plan)]
        if not dropped:
            break
        for key in dropped:
            del plans[key]
    if not plans:
        return stages, {}
    out: list[Kept] = []
    for kept in stages:
        found = plans.get(id(kept.origin))
        out += [kept] if found is None else made.stages_of(found)
    return needed(out, written), made.inputs


@record(slots=True, eq=False)
class _InWords:
    stages: list[Kept]
    graph: TeGraph
    constants: frozenset[int]
    indices: Indices
    target: Target
    may_view: bool
    # The inputs that are read as words, by their numbers.
    inputs: dict[int, Tensor] = field(default_factory=dict)
    # The stages that inputs may not be read as words of: something reads them otherwise.
    _others: set[int] = field(default_factory=set)

    # -- what is a product of words

    def plan(self, kept: Kept) -> _Plan | None:
        """How a stage is a product of words; None: it is none, or too small a one."""
        form = contraction(kept.stage, self.constants)
        if form is None or form.guard is not None or form.parts is not None or form.pairing is not None:
            return None
        operands = self._operand(form.left, form), self._operand(form.right, form)
        found = self._parts(operands, form)
        if found is None or all(o.is_constant for o in operands):
            return None
        parts, turns = found
        each = 2 if parts in ("s16", "bf16") else 4
        axes = [a for a in form.reduced if all(o.is_constant or self._fits(o, a, each) for o in operands)]
        axes = [a for a in axes if not isinstance(a.extent, int) or a.extent > _USED * each * -(-a.extent // each)]
        out = (*form.batch, *form.rows, *form.columns)
        axes = [a for a in axes if not is_small((*out, *_counted(form.reduced, a, each)))]
        depth = shape_size(tuple(a.extent for a in form.reduced))
        if not axes or (isinstance(depth, int) and depth < _SHALLOW):
            return None

        def rank(axis: Axis) -> tuple[int, bool]:
            return sum(self._view(o, axis, each) is not None for o in operands), axis is form.reduced[-1]

        flipped = None if not turns else 0 if operands[0].is_constant else 1
        parts = MIRRORED[parts] if flipped == 0 else parts
        return _Plan(kept, form, operands, parts, max(axes, key=rank), flipped)

    def _operand(self, value: Scalar, form: Contraction) -> _Operand:
        """An operand before it was widened, also by a stage of its own."""
        kept = {id(k.origin): k for k in self.stages}
        while True:
            if isinstance(value, Cast) and _is_widened(value.a.dtype, value.dtype, form.accumulate):
                value = value.a
                continue
            source = value.source if isinstance(value, Load) else None
            producer = kept.get(id(source.stage)) if isinstance(source, Tensor) else None
            stage = None if producer is None else producer.stage
            body = stage.bodies[0] if isinstance(stage, Compute) and len(stage.bodies) == 1 else None
            if not isinstance(body, Cast) or not isinstance(body.a, Load) or not isinstance(value, Load):
                break
            if not _is_widened(body.a.dtype, body.dtype, form.accumulate):
                break
            assert isinstance(stage, Compute)
            value = substitute(body.a, dict(zip(stage.axes, value.indices, strict=True)))
        made_of = [n.source for n in loads(value)]
        constant = bool(made_of) and all(isinstance(s, Tensor) and id(s.stage) in self.constants for s in made_of)
        return _Operand(value, constant)

    def _parts(self, operands: tuple[_Operand, _Operand], form: Contraction) -> tuple[Parts, bool] | None:
        """What words hold, and whether one operand's are to be turned round."""
        dtypes = [o.element.dtype for o in operands]
        if form.accumulate == "float32" and set(dtypes) == {"bfloat16"}:
            # (Of constants there are panels of pairs.)
            given = not any(o.is_constant for o in operands)
            return ("bf16", False) if given and self.target.multiplies_pairs else None
        if not is_integer(form.accumulate) or dtype_bits(form.accumulate) > 32 or not self.target.multiplies_halves:
            return None
        if set(dtypes) <= {"int8", "uint8"} and self.target.multiplies_words:
            return _SIGNS[dtypes[0] == "int8", dtypes[1] == "int8"]
        return ("s16", False) if set(dtypes) <= {"int8", "uint8", "int16"} else None

    def _fits(self, operand: _Operand, axis: Axis, each: int) -> bool:
        """Whether elements along the axis lie in words."""
        return operand.load is not None and (
            self._view(operand, axis, each) is not None or self._place(operand.load, axis, each) is not None
        )

    def _view(self, operand: _Operand, axis: Axis, each: int) -> Dim | None:
        """Where in an input, in words, those of an operand lie one after the other along the axis, which counts words; None: it is not read
        so."""
        load = operand.load
        if load is None or operand.is_constant or not self.may_view or load.dtype == "bool":
            return None
        assert isinstance(load.source, Tensor)
        stage = load.source.stage
        if id(stage) in self._others or not any(t.stage is stage for t in self.graph.inputs):
            return None
        if dtype_bits(load.dtype) * each != 32 or dim_mod(shape_size(load.source.shape), each) != 0:
            return None
        if dim_mod(axis.extent, each) != 0 or self.indices.coefficient(position_read(self.indices, load), axis) != 1:
            return None
        at = position_read(self.indices, _at(load, {axis: binary("mul", axis, each)}))
        return dim_floordiv(at, each) if dim_mod(at, each) == 0 else None

    def _place(self, load: Load, axis: Axis, each: int) -> tuple[int, Dim] | None:
        """The axis of the tensor along which the words of a load lie, and where on it in words, where ``axis`` counts these."""
        having = [n for n, index in enumerate(load.indices) if axis in mentioned(index)]
        if len(having) != 1:
            return None
        (number,) = having
        index = load.indices[number]
        at, size = self.indices.poly(index), load.source.shape[number]
        if self.indices.as_axis(at) is axis and known_equal(size, axis.extent):
            return number, self.indices.axis(axis)
        if dim_mod(axis.extent, each) != 0 or dim_mod(size, each) != 0 or self.indices.coefficient(at, axis) != 1:
            return None
        moved = self.indices.poly(substitute(index, {axis: binary("mul", axis, each)}))
        return (number, dim_floordiv(moved, each)) if dim_mod(moved, each) == 0 else None

    # -- inputs as words

    def decide(self, plans: Iterable[_Plan]) -> None:
        """Inputs are read as words where nothing reads them otherwise."""
        self._others.clear()
        of = {id(p.kept.origin): p for p in plans}
        wanted = {
            id(o.load) for p in of.values() for o in p.operands if self._view(o, p.axis, p.each) is not None
        }  # fmt: skip
        live = {id(t.stage) for t in self.graph.outputs}
        for kept in reversed(self.stages):
            if id(kept.origin) not in live:
                continue  # what widened an operand
            plan = of.get(id(kept.origin))
            for root in stage_bodies(kept.stage) if plan is None else [o.element for o in plan.operands]:
                for load in loads(root):
                    assert isinstance(load.source, Tensor)
                    live.add(id(load.source.stage))
                    if id(load) not in wanted:
                        self._others.add(id(load.source.stage))

    def pays(self, plan: _Plan) -> bool:
        """Whether what words save is more than to put them together takes: where each of them is read some times at least, if it is
        not there already. (Of sizes that are not known the right operand may be read by a single row, which its columns are too
        many for.)"""
        form, (left, right) = plan.form, plan.operands
        products = shape_size(tuple(a.extent for a in (*form.batch, *form.rows, *form.columns, *form.reduced)))

        def repaid(operand: _Operand, where_unknown: bool) -> bool:
            if operand.is_constant or self._view(operand, plan.axis, plan.each) is not None:
                return True
            assert operand.load is not None
            there = shape_size(operand.load.source.shape)
            if isinstance(products, int) and isinstance(there, int):
                return products >= _USES * there
            return where_unknown

        return repaid(left, True) and (bool(form.rows) if self._as_packed(plan) else repaid(right, False))

    def _as_packed(self, plan: _Plan) -> bool:
        """Whether words of the right operand are put together as panels are packed: what is turned round by the other one is read
        twice, and so are windows."""
        load = plan.operands[1].load
        if plan.flipped == 0 or load is None:
            return False
        over = set(plan.form.reduced)
        direct = not any(len(mentioned(i)) > 1 and mentioned(i) & over for i in load.indices)
        return direct and plan.axis not in mentioned(load.indices[-1])

    # -- stages

    def stages_of(self, plan: _Plan) -> list[Kept]:
        """The stages that a product is made of."""
        stage = plan.kept.stage
        (body,) = stage_bodies(stage)
        assert isinstance(body, Reduce) and isinstance(stage, Compute)
        words = Axis(plan.axis.name, ceil_div(plan.axis.extent, plan.each))
        out: list[Kept] = []
        sides: list[Scalar] = []
        seen: list[Load | None] = []
        for number, operand in enumerate(plan.operands):
            apart = number == 0 or not self._as_packed(plan)
            side, turned = self._side(plan, operand, words, plan.flipped == number, apart, out)
            seen.append(side if isinstance(side, Load) else None)
            sides.append(flip(side) if turned else side)
        axes = tuple(words if a is plan.axis else a for a in body.axes)
        product = Reduce("sum", axes, Dot(plan.parts, sides[0], sides[1], plan.held), plan.held)
        multiplied = Compute(stage.name, stage.axes, (product,))
        assert contraction(multiplied, self.constants) is not None, "a product of words is one"
        fresh = {a: Axis(a.name, a.extent) for a in stage.axes}
        value: Scalar = Load(_result(multiplied, plan.held), tuple(fresh.values()), plan.held)
        if plan.flipped is not None:
            other = seen[1 - plan.flipped]
            assert other is not None, "what is summed up is read from memory"
            sums = self._sums(plan, other, axes, words, out)
            value = binary("sub", value, substitute(sums, dict(fresh)))
        out.append(Kept(multiplied, multiplied, (plan.held,)))
        result = Compute(stage.name, tuple(fresh.values()), (cast(value, plan.kept.dtypes[0]),))
        return [*out, replace(plan.kept, stage=result)]

    def _side(
        self, plan: _Plan, operand: _Operand, words: Axis, turned: bool, apart: bool, out: list[Kept]
    ) -> tuple[Scalar, bool]:
        """An operand in words, and whether they have yet to be turned round. ``apart``: they are put together by a stage of its own."""
        load, each, held, axis = operand.load, plan.each, plan.held, plan.axis
        if operand.is_constant:
            return _word(plan, operand.element, axis, words, turned), False
        assert load is not None and isinstance(load.source, Tensor)
        at = self._view(operand, axis, each)
        if at is not None:
            number = next(n for n, t in enumerate(self.graph.inputs) if t.stage is load.source.stage)
            view = self.inputs.get(number)
            if view is None:
                view = te.placeholder("words", (dim_floordiv(shape_size(load.source.shape), each),), held)
                self.inputs[number] = view
            place = substitute(self.indices.scalar(at), {axis: words})
            return Load(view, (place,), held), turned
        found = self._place(load, axis, each)
        assert found is not None
        number, where = found
        size = load.source.shape[number]
        if not apart:
            return _word(plan, load, axis, words, turned), False
        own = [
            Axis("word", ceil_div(d, each)) if n == number else Axis("d", d) for n, d in enumerate(load.source.shape)
        ]
        along = Axis("along", size)
        element = Load(load.source, tuple(along if n == number else a for n, a in enumerate(own)), load.dtype)
        stage = Compute("words", tuple(own), (_word(plan, element, along, own[number], turned),))
        out.append(Kept(stage, stage, (held,)))
        place = substitute(self.indices.scalar(where), {axis: words})
        at_words = tuple(place if n == number else index for n, index in enumerate(load.indices))
        return Load(_result(stage, held), at_words, held), False

    def _sums(self, plan: _Plan, other: Load, axes: Sequence[Axis], words: Axis, out: list[Kept]) -> Scalar:
        """128 times the sums of an operand's elements (minus so many, if they are unsigned) as an expression of the product's axes."""
        signs: Parts = "s8u8" if (plan.parts == "s8u8") == (plan.flipped == 1) else "u8s8"
        every = Const(HIGHEST, "int32")
        moving = mentioned(other)
        over = [a for a in axes if a in moving]
        number = next(
            (n for n, i in enumerate(other.indices) if self.indices.as_axis(self.indices.poly(i)) is words), None
        )
        value: Scalar = Dot(signs, other, every, "int32")
        if number is not None and len(over) > 1 and known_equal(other.source.shape[number], words.extent):
            # Elements are read by many sums: what only the words' axis adds up is added up once.
            inner = Axis("word", words.extent)
            own = [Axis("d", d) for d in other.source.shape]
            at = tuple(inner if n == number else a for n, a in enumerate(own))
            body = Reduce("sum", (inner,), Dot(signs, Load(other.source, at, "int32"), every, "int32"), "int32")
            stage = Compute("sums", tuple(a for n, a in enumerate(own) if n != number), (body,))
            out.append(Kept(stage, stage, ("int32",)))
            rest = tuple(i for n, i in enumerate(other.indices) if n != number)
            value, over = Load(_result(stage, "int32"), rest, "int32"), [a for a in over if a is not words]
        mine = [a for a in plan.form.batch + plan.form.rows + plan.form.columns if a in moving]
        fresh = {a: Axis(a.name, a.extent) for a in (*mine, *over)}
        total = Reduce("sum", tuple(fresh[a] for a in over), substitute(value, dict(fresh)), "int32")
        stage = Compute("sums", tuple(fresh[a] for a in mine), (total,))
        out.append(Kept(stage, stage, ("int32",)))
        return Load(_result(stage, "int32"), tuple(mine), "int32")


def _word(plan: _Plan, element: Scalar, axis: Axis, words: Axis, turned: bool) -> Scalar:
    """The word that has the elements from ``words`` times so many along an axis on; zeros where there are no more."""
    each = plan.each
    narrow = "uint8" if each == 4 else "uint16"
    parts: list[Scalar] = [Const(HIGHEST, "int32")] if turned else []
    for n in range(each):
        here = binary("add", binary("mul", words, each), n)
        part = substitute(element, {axis: here})
        if part.dtype == "bfloat16":
            part = bits(part, "uint16")
        elif each == 2:
            part = cast(cast(part, "int16"), "uint16")
        part = cast(part, narrow)
        if dim_mod(axis.extent, each) != 0 and n:
            part = select(compare("lt", here, extent_of(axis.extent)), part, Const(0, narrow))
        wide = cast(part, "int32")
        parts.append(binary("shl", wide, Const(n * 32 // each, "int32")) if n else wide)
    return bits(reduce(lambda a, b: Binary("xor", a, b, "int32"), parts), plan.held)


def _is_widened(narrow: str, wide: str, accumulate: str) -> bool:
    """Whether a conversion gives the same number, as far as it matters to sums in a dtype."""
    if narrow == wide:
        return False
    if is_integer(narrow) and is_integer(wide):
        if dtype_bits(wide) < dtype_bits(narrow):
            return False
        if is_integer(accumulate) and dtype_bits(wide) >= dtype_bits(accumulate):
            return True
        unsigned = narrow.startswith("u")
        return dtype_bits(wide) > dtype_bits(narrow) and (unsigned or not wide.startswith("u"))
    return narrow == "bfloat16" and wide == "float32"


def _counted(axes: Sequence[Axis], axis: Axis, each: int) -> list[Axis]:
    """The axes, where one counts words."""
    return [Axis(a.name, ceil_div(a.extent, each)) if a is axis else a for a in axes]


def _at(load: Load, mapping: Mapping[Axis, Scalar]) -> Load:
    found = substitute(load, dict(mapping))
    assert isinstance(found, Load)
    return found


def _result(stage: Compute | Placeholder, dtype: str) -> Tensor:
    return Tensor(stage, 0, stage.shape, dtype)
