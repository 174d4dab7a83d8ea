"""What fusion wants to know of an operator call: read off its tensor expression, never off its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Literal

from relay import te
from relay.ir.dim import Dim, dim_vars
from relay.ir.effects import Effect
from relay.ir.expr import Call, Constant, Expr, OpRef, attrs_key
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    children,
    sides,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor
from relay.transform.blocks import DEVICE_COPY

FusionKind = Literal["elementwise", "broadcast", "injective", "reduction", "contraction", "opaque"]


@record(frozen=True, slots=True)
class Access:
    """How an operator reads its inputs.

    ``kind`` is the fusion class. ``movement``: every output element is one input element, at most converted.
    ``permutes``: a movement of whole rows along the last axis, which stays the last: the other axes change places.
    ``rows``: so many leading axes stay what they are from the inputs through every stage to the outputs (inputs that
    do not vary along them aside), so that the operator can be computed row by row; ``whole`` are the arguments that do not vary
    along them: every row reads all of these. ``view``: the result is the
    input's memory. ``windows``: a reduction reads inputs through overlapping windows. ``gathers``: every row along the
    last axis is a row of an input, found by an index that is looked up once for it; ``matrices``: so is what the last two axes go along.
    ``slices``: a movement of neighbours
    to neighbours, which costs what reading the result does. ``turned``: of a movement of elements that do not lie beside each other
    to places along the last axis, the axis of the result that goes along the input's memory (-1: none does). ``along``: of a
    reduction, the axes of its one input along which its vectors can read. ``looks_up``: neighbours are found one by one, each by an
    index. ``again``: a reduction goes through an input several times. ``unread``: the arguments, tuples aside, that no element
    depends on. ``once``: of a contraction, those of which no element is read twice (the matrices of a batch of products with vectors).
    """

    kind: FusionKind
    movement: bool = False
    rows: int = 0
    whole: frozenset[int] = frozenset()
    view: bool = False
    windows: bool = False
    permutes: bool = False
    gathers: bool = False
    matrices: bool = False
    slices: bool = False
    turned: int | None = None
    along: frozenset[int] | None = None
    looks_up: bool = False
    again: bool = False
    work: int = 0
    unread: frozenset[int] = frozenset()
    once: frozenset[int] = frozenset()
    same: int | None = None

    @property
    def injective(self) -> bool:
        """Every output element needs a fixed number of input elements."""
        return self.kind in ("elementwise", "broadcast", "injective")


OPAQUE = Access("opaque")


@record(slots=True, eq=False)
class AccessTable:
    """Access facts of calls, remembered by operator, argument types and attributes."""

    _known: dict[object, Access] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)
    _operators: dict[str, registry.Operator | None] = field(default_factory=dict)

    def of(self, call: Call) -> Access | None:
        """The facts of a call of an expression or view operator that may stand in a primitive; None for any other
        call."""
        if not isinstance(call.fn, OpRef):
            return None
        name = call.fn.name
        if name not in self._operators:
            self._operators[name] = fusible(name)
        op = self._operators[name]
        if op is None:
            return None
        types = tuple([_argument_type(a) for a in call.args])
        key = (op, tuple(map(id, types)), attrs_key(call.attrs) if call.attrs else None)
        found = self._known.get(key)
        if found is None:
            self._alive.append(types)  # the key holds ids: the types must stay
            equal = (op, types, key[2])  # the steps of an unrolled loop have equal types, each its own
            found = self._known.get(equal)
            if found is None:
                found = self._known[equal] = _access(op, types, call)
            self._known[key] = found
        return found


def fusible(name: str) -> registry.Operator | None:
    """The operator, if its calls stand in primitives."""
    if name == DEVICE_COPY or not registry.exists(name):
        return None
    op = registry.get(name)
    pure = not op.effects & ~(Effect.MAY_FAIL | Effect.DIVERGES)
    return op if op.kind in ("expression", "view") and pure and not op.by_routine else None


def _argument_type(e: Expr) -> Type | None:
    if isinstance(e, Constant) and e.ty is None:
        return TensorType(e.data.shape, e.dtype)
    return e.ty


def _traced(
    op: registry.Operator, types: Sequence[Type | None], call: Call
) -> tuple[registry.Traced, list[int]] | None:
    """An operator's definition for operands of these types, and how many inputs each operand is; None where it has none."""
    inputs: list[tuple[Sequence[Dim], str] | list[tuple[Sequence[Dim], str]]] = []
    for spec, ty in zip(op.inputs, types, strict=False):
        parts = ty.fields if isinstance(ty, TupleType) else (ty,)
        group = [
            (t.shape, t.dtype)
            for t in parts
            if isinstance(t, TensorType) and isinstance(t.shape, tuple) and isinstance(t.dtype, str)
        ]
        if len(group) != len(parts) or (not spec.variadic and len(group) != 1):
            return None
        inputs.append(list(group) if spec.variadic else group[0])
    if op.shape_mode != "independent":
        return None
    try:
        traced = registry.trace(op, inputs, call.attrs)
    except (te.Undetermined, te.DefinitionError):
        return None
    return traced, [len(i) if spec.variadic else 1 for spec, i in zip(op.inputs, inputs, strict=False)]


def read_by_row(call: Call) -> frozenset[int] | None:
    """The arguments of which every row of an operator's result reads the same row and nothing else, where the operator does the same for
    each row, however many there are; None where it does not, or is no expression. A row may look something up in the other
    arguments."""
    op = fusible(call.fn.name) if isinstance(call.fn, OpRef) else None
    found = None if op is None or op.effects else _traced(op, [_argument_type(a) for a in call.args], call)
    if found is None:
        return None
    traced, counts = found
    reached = [s for s in te.stages(traced.outputs) if not isinstance(s, Placeholder)]
    if not all(isinstance(s, Compute) and s.axes for s in reached):
        return None
    own = {id(t.stage) for t in traced.outputs}
    of_all: set[int] = set()  # what rows read at other places than theirs
    for stage in reversed([s for s in reached if isinstance(s, Compute)]):
        if id(stage) in of_all:  # the same for all rows
            of_all.update(
                id(load.source.stage) for b in stage.bodies for load in _loads(b) if isinstance(load.source, Tensor)
            )
            continue
        leading = {v for v in dim_vars(stage.axes[0].extent)}
        todo = list(stage.bodies)
        while todo:
            node = todo.pop()
            if node is stage.axes[0] or (isinstance(node, Size) and not leading.isdisjoint(dim_vars(node.dim))):
                return None
            below = list(children(node))
            if isinstance(node, Load) and isinstance(node.source, Tensor):
                in_place = bool(below) and below[0] is stage.axes[0]
                (own if in_place else of_all).add(id(node.source.stage))
                below = below[in_place:]
            todo += below
    if own & of_all:
        return None
    rows: set[int] = set()
    position = 0
    for n, count in enumerate(counts):
        read = {id(t.stage) for t in traced.inputs[position : position + count]}
        if read <= own:
            rows.add(n)
        elif read & own:
            return None
        position += count
    return frozenset(rows)


def _access(op: registry.Operator, types: Sequence[Type | None], call: Call) -> Access:
    definition = _traced(op, types, call)
    if definition is None:
        return OPAQUE
    traced, counts = definition
    found = access_of(traced.outputs)
    if op.effects:
        return OPAQUE
    reached = {id(stage) for stage in te.stages(traced.outputs)}
    all_of = _read_by_each_row(traced.outputs) if found.rows else set()
    in_one_place = _read_once(traced.outputs) if found.kind == "contraction" else set()
    unread: set[int] = set()
    whole: set[int] = set()
    once: set[int] = set()
    position = 0
    for n, (spec, count) in enumerate(zip(op.inputs, counts, strict=False)):
        read = {id(t.stage) for t in traced.inputs[position : position + count]}
        if not spec.variadic and read.isdisjoint(reached):
            unread.add(n)
        if not read.isdisjoint(all_of):
            whole.add(n)
        if not spec.variadic and read <= in_one_place:
            once.add(n)
        position += count
    found = replace(found, whole=frozenset(whole), once=frozenset(once))
    if op.kind == "view":
        return replace(found, movement=True, view=True)
    same = None if any(spec.variadic for spec in op.inputs) else _same(traced)
    return replace(found, unread=frozenset(unread), same=same)


def _same(traced: registry.Traced) -> int | None:
    """The number of the input whose elements the one result is, in order: axes of one element may come and go."""
    if len(traced.outputs) != 1:
        return None
    output = traced.outputs[0]
    stage = output.stage
    source = output
    if isinstance(stage, Compute):
        body = stage.bodies[0]
        if not isinstance(body, Load) or not isinstance(body.source, Tensor):
            return None
        # At an axis of one element there is one place to read.
        at = [i for i, extent in zip(body.indices, body.source.shape, strict=True) if extent != 1]
        wide = [a for a in stage.axes if a.extent != 1]
        if len(at) != len(wide) or any(i is not a for i, a in zip(at, wide, strict=True)):
            return None
        source = body.source
    if source.dtype != output.dtype or _wide(source) != _wide(output):
        return None
    return next((n for n, t in enumerate(traced.inputs) if t.stage is source.stage), None)


def _wide(tensor: Tensor) -> tuple[Dim, ...]:
    return tuple(d for d in tensor.shape if d != 1)


def access_of(outputs: Sequence[Tensor]) -> Access:
    """The facts of a definition."""
    stages = [s for s in te.stages(outputs) if not isinstance(s, Placeholder)]
    if not stages:
        return Access("elementwise", True, len(outputs[0].shape))
    if any(isinstance(s, Scan) for s in stages):
        return OPAQUE
    computes = [s for s in stages if isinstance(s, Compute)]
    reduces = [b for s in computes for b in s.bodies if isinstance(b, Reduce)]
    rows = _leading(outputs, computes)
    if reduces:
        kind: FusionKind = "contraction" if any(_is_contraction(s) for s in computes) else "reduction"
        windows = any(not isinstance(i, Axis | Const) for b in reduces for load in _loads(b) for i in load.indices)
        return Access(kind, False, rows, windows=windows, along=_along(computes), again=_is_read_again(computes))
    kinds = [_injective_kind(s, len(outputs[0].shape)) for s in computes]
    kind = max(kinds, key=("elementwise", "broadcast", "injective").index)
    movement = len(stages) == 1 and all(_is_movement(b) for b in computes[0].bodies)
    work = sum(_operations(b) for s in computes for b in s.bodies)
    gathers = len(stages) == 1 and not movement and all(_is_gather(b, computes[0]) for b in computes[0].bodies)
    matrices = gathers and all(_is_gather(b, computes[0], 2) for b in computes[0].bodies)
    permutes = movement and _permutes(computes[0])
    slices = movement and all(_is_slice(b, computes[0]) for b in computes[0].bodies)
    turns = [_turned(b, computes[0]) for b in computes[0].bodies] if movement else []
    turned = next((axis for axis in turns if axis is not None), None)
    looks_up = not movement and not gathers and any(_looks_up(b) for s in computes for b in s.bodies)
    return Access(
        kind, movement, rows, permutes=permutes, gathers=gathers, matrices=matrices, slices=slices, turned=turned,
        looks_up=looks_up, work=work,
    )  # fmt: skip


# Operations that take one instruction of a vector of elements; others are counted as several of these.
_SIMPLE = frozenset(("neg", "abs", "not", "floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "isfinite"))
_DEAR = {"sqrt": 4, "rsqrt": 4, "div": 4, "pow": 40, "atan2": 40, "floordiv": 8, "mod": 8, "truncdiv": 8, "truncmod": 8}
_ELEMENTARY = 16


def _operations(body: Scalar) -> int:
    """How many simple operations an element takes."""
    total = 0
    for node in walk(body):
        match node:
            case Unary():
                total += 1 if node.op in _SIMPLE else _DEAR.get(node.op, _ELEMENTARY)
            case Binary():
                total += _DEAR.get(node.op, 1)
            case Compare() | Select():
                total += 1
            case _:
                pass
    return total


def _permutes(stage: Compute) -> bool:
    """Whether a movement reads each of its axes once, the last one last."""
    body = _unconverted(stage.bodies[0])
    assert isinstance(body, Load)
    wide = [a for a in stage.axes if a.extent != 1]
    at = [i for i in body.indices if isinstance(i, Axis) and i.extent != 1]
    return bool(wide) and len(at) == len(wide) and set(at) == set(wide) and body.indices[-1] is stage.axes[-1]


def _loads(root: Scalar) -> list[Load]:
    return [n for n in walk(root) if isinstance(n, Load) and isinstance(n.source, Tensor)]


def _mentions(indices: Sequence[Scalar]) -> set[Axis]:
    return {n for index in indices for n in walk(index) if isinstance(n, Axis)}


def _leading(outputs: Sequence[Tensor], computes: Sequence[Compute]) -> int:
    """The number of leading axes along which every stage stays in its row, and each input either varies or does not: all of one that
    does both (softmax over the first axis: its elements, and the largest of them) is needed before any row is done."""
    rows = min(_rows(s) for s in computes)
    if rows and _read_by_each_row(outputs) & _read_by_its_row(outputs):
        return 0
    return rows


def _rows(stage: Compute) -> int:
    """The number of leading axes along which the stage stays in its row."""
    rows = len(stage.axes)
    for body in stage.bodies:
        for load in _loads(body):
            mentioned = _mentions(load.indices)
            first = next((n for n, axis in enumerate(stage.axes) if axis in mentioned), len(stage.axes))
            rows = min(rows, max(_in_place(load, stage), first))
    return rows


def _in_place(load: Load, stage: Compute) -> int:
    """The number of leading axes at which a stage reads its own place."""
    pairs = zip(load.indices, stage.axes, strict=False)
    return next((n for n, (i, a) in enumerate(pairs) if i is not a), min(len(load.indices), len(stage.axes)))


def _read_by_its_row(outputs: Sequence[Tensor]) -> set[int]:
    """The inputs (ids of their stages) of which the outputs' rows read their own."""
    found = {id(t.stage) for t in outputs}
    return _inputs_among(outputs, found, lambda stage, load: id(stage) in found and _in_place(load, stage) > 0)


def _read_by_each_row(outputs: Sequence[Tensor]) -> set[int]:
    """The inputs (ids of their stages) of which each row of the outputs reads all, or what does not vary from row to row."""
    found: set[int] = set()
    return _inputs_among(outputs, found, lambda stage, load: id(stage) in found or _in_place(load, stage) == 0)


def _inputs_among(outputs: Sequence[Tensor], found: set[int], reads: Callable[[Compute, Load], bool]) -> set[int]:
    """Add to ``found`` the stages that others read so, and give the inputs among them."""
    inputs: set[int] = set()
    for stage in reversed(te.stages(outputs)):
        if isinstance(stage, Placeholder):
            inputs.add(id(stage))
        elif isinstance(stage, Compute):
            for load in (load for body in stage.bodies for load in _loads(body)):
                assert isinstance(load.source, Tensor)
                if reads(stage, load):
                    found.add(id(load.source.stage))
    return inputs & found


def _is_read_again(computes: Sequence[Compute]) -> bool:
    """Whether several stages read an input."""
    read = [
        {id(load.source.stage) for b in s.bodies for load in _loads(b) if isinstance(load.source, Tensor)}
        for s in computes
    ]
    made = {id(s) for s in computes}
    return any(not (a & b) <= made for n, a in enumerate(read) for b in read[:n])


def _injective_kind(stage: Stage, rank: int) -> FusionKind:
    assert isinstance(stage, Compute)
    kind: FusionKind = "elementwise"
    position = {axis: n for n, axis in enumerate(stage.axes)}
    for body in stage.bodies:
        for load in _loads(body):
            if len(load.indices) == len(stage.axes) == rank and all(
                i is a for i, a in zip(load.indices, stage.axes, strict=True)
            ):
                continue
            if not load.indices:
                continue
            at = [position.get(i, -1) for i in load.indices if isinstance(i, Axis)]
            plain = all(isinstance(i, Const | Axis) for i in load.indices)
            if not plain or any(x >= y for x, y in pairwise(at)):
                return "injective"
            kind = "broadcast"
    return kind


def _unconverted(body: Scalar) -> Scalar:
    while isinstance(body, Cast):
        body = body.a
    return body


def _is_movement(body: Scalar) -> bool:
    body = _unconverted(body)
    return isinstance(body, Load) and not any(_loads(i) for i in body.indices)


def _is_slice(body: Scalar, stage: Compute) -> bool:
    """Whether elements are read in the order of the axes, at a fixed distance from their own places."""
    axes: list[Scalar] = [a for a in stage.axes if a.extent != 1]
    read: list[Scalar] = []
    if not isinstance(body, Load):
        return False
    for index in body.indices:
        at = index.a if isinstance(index, Binary) and index.op == "add" and isinstance(index.b, Const) else index
        if not isinstance(at, Const) and not (isinstance(at, Axis) and at.extent == 1):
            read.append(at)
    return len(read) == len(axes) and all(a is b for a, b in zip(read, axes, strict=True))


def _turned(body: Scalar, stage: Compute) -> int | None:
    """The axis of a movement that goes along its input's memory, where the last one of some length goes elsewhere."""
    body = _unconverted(body)
    assert isinstance(body, Load) and isinstance(body.source, Tensor)
    last = next((a for a in reversed(stage.axes) if a.extent != 1), None)
    wide = [i for i, d in zip(body.indices, body.source.shape, strict=True) if d != 1]
    if last is None or last not in _mentions(wide[:-1]):
        return None
    return next((n for n, axis in enumerate(stage.axes) if axis is wide[-1]), -1)


def _along(computes: Sequence[Compute]) -> frozenset[int] | None:
    """The axes of the one input of a reduction of one axis that are reduced, or are the result's last: neighbours along these are
    neighbours in a vector. None for more than one stage or input."""
    if len(computes) != 1 or len(computes[0].bodies) != 1:
        return None
    (stage,) = computes
    (body,) = stage.bodies
    loads = _loads(body)
    if len(loads) != 1 or not isinstance(body, Reduce):
        return None
    kept = [a for a in stage.axes if a.extent != 1][-1:]
    over = [a for a in body.axes if a.extent != 1]
    along = kept if len(over) > 1 else kept + over
    return frozenset(n for n, i in enumerate(loads[0].indices) if any(i is a for a in along))


def _is_gather(body: Scalar, stage: Compute, last: int = 1) -> bool:
    """Whether an element is read at the ``last`` axes of a row (a matrix) that the other axes say, by way of an index or not."""
    body = _unconverted(body)
    if not isinstance(body, Load) or min(len(stage.axes), len(body.indices)) < last:
        return False
    if any(i is not a for i, a in zip(body.indices[-last:], stage.axes[-last:], strict=True)):
        return False
    return _mentions(body.indices[:-last]).isdisjoint(stage.axes[-last:])


def _looks_up(body: Scalar) -> bool:
    """Whether an element is read where another one says."""
    return any(isinstance(n, Load) for load in _loads(body) for index in load.indices for n in walk(index))


def _is_contraction(stage: Compute) -> bool:
    """A sum of products of two operands each of which varies along an output axis that the other does not."""
    for body in stage.bodies:
        if not isinstance(body, Reduce) or body.kind != "sum":
            continue
        inner = body.body
        while isinstance(inner, Cast | Select):
            inner = inner.a
        if not isinstance(inner, Binary) or inner.op != "mul":
            continue
        left, right = (_free_axes(side, stage) for side in (inner.a, inner.b))
        if left - right and right - left:
            return True
        wide = [a for a in stage.axes if a.extent != 1]
        if wide:
            apart = sides(inner, wide[-1])
            left, right = (_free_axes(side, stage) for side in apart)
            over = {a for a in body.axes if a.extent != 1}
            if left - right and right - left and all(over.issubset(walk(side)) for side in apart):
                return True
    return False


def _read_once(outputs: Sequence[Tensor]) -> set[int]:
    """The placeholders, by identity, no element of which is read twice: every axis of the one place where it is read says where."""
    found: dict[int, list[bool]] = {}
    for stage in (s for s in te.stages(outputs) if isinstance(s, Compute)):
        for body in stage.bodies:
            axes = (*stage.axes, *(body.axes if isinstance(body, Reduce) else ()))
            wide = {a for a in axes if a.extent != 1}
            for load in _loads(body):
                if isinstance(load.source, Tensor) and isinstance(load.source.stage, Placeholder):
                    plain = all(isinstance(i, Axis | Const) for i in load.indices)
                    found.setdefault(id(load.source.stage), []).append(plain and wide.issubset(load.indices))
    return {placeholder for placeholder, each in found.items() if each == [True]}


def _free_axes(side: Scalar, stage: Compute) -> set[Axis]:
    axes = set(stage.axes)
    return {a for load in _loads(side) for a in _mentions(load.indices)} & axes
