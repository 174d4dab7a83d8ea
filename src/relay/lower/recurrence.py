"""Loops whose steps are a few numbers, and may put one behind a vector in each of them, become one kernel each; so do loops whose steps are
tensors of one shape, of which each element is such a loop by itself.

A row of a dynamic program (the edit distance, time warping, an alignment), a filter, a tape of numbers: as a loop of the program a step is
a dozen instructions and an element that is appended, as a kernel it is what it computes. Where of all that changes from step to step
each number depends on what it was itself, and on none that depends on it, the kernel is made of scans (`relay.te.tensor.Scan`), and what
else there is goes in vectors: what is handed on is known of each step by itself, a counter by the step's number, a number that was read
in the step before (the element above and to the left) by reading it again. Numbers that depend on each other in a circle, and loops
that put nothing behind a vector, are one loop with all of them in registers (`relay.plan.steps`). Elements of tensors (the channels of a
filter, the neurons of a layer that fire by themselves, particles that do not meet) always are: lanes go across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import TypeGuard, cast

from relay import te
from relay.ir.dim import Dim, DimVar, dim_vars
from relay.ir.expr import Block, Call, Constant, Expr, Function, GlobalVar, If, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.trampoline import run
from relay.ir.types import TensorType, TupleType, Type
from relay.lower.liveness import Uses
from relay.lower.number_rows import Row, decided, elements_of, sizes_of_row
from relay.lower.scalars import ScalarCode, can_be_instructions, elements, inlined
from relay.lower.step_numbers import StepNumbers
from relay.lower.trips import counts, trips_of
from relay.op import registry
from relay.plan import empty_axes
from relay.plan.graph import TeGraph, literal, te_graph, tensor_key
from relay.plan.steps import Steps
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Compare,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    Size,
    mentioned,
    select,
    transform,
    walk,
)
from relay.te.shared import Shared
from relay.te.tensor import Placeholder, Tensor, stage_bodies
from relay.transform.blocks import all_blocks, as_block, body_of, is_primitive
from relay.transform.dims import told

# Of steps that scans make, parts may be computed several times; more operations than so many are not.
_MOST_OPERATIONS = 200
# Of what is handed on nothing is computed twice: what is longer keeps too much at a time.
_MOST_HANDED_ON = 800
# Both sides of choices are computed.
_MOST_BRANCHES = 32


# A variable, or those of a tuple's fields.
Fields = Var | tuple["Fields", ...]


@record(frozen=True, slots=True, eq=False)
class Recurrence:
    """A function that is such a loop.

    ``operands`` are what the kernel of ``graph`` (or of the steps ``handed`` on) reads: parameters and constants. Its outputs are the
    elements that are put behind the vectors ``rows``, ``steps`` many of each, and then what the parameters ``last`` are in the end.
    ``trips`` is how many steps there are, of ``counted`` operands. ``on``: whether the steps go on where their condition holds.
    In the place of a parameter that is a tuple stand its ``fields``, which are variables by themselves. Where one of the sizes ``some`` is
    zero, a step may read an axis without elements, which only a choice keeps the kernel from, and the kernel does not ask: the function
    is to be run as it is then, and fails where it reads there.
    """

    operands: tuple[Var | Constant, ...]
    graph: TeGraph
    handed: Steps | None
    steps: DimVar
    trips: ScalarCode
    counted: tuple[Var | Constant, ...]
    rows: tuple[Var, ...]
    last: tuple[Var, ...]
    on: bool
    fields: Mapping[Var, Fields]
    some: tuple[Dim, ...]

    def leave(self, function: Function) -> Block:
        """The block of the function that goes on with what the kernel has made."""
        choice = body_of(function).bindings[-1].value
        assert isinstance(choice, If)
        return as_block(choice.orelse if self.on else choice.then)

    @property
    def dims(self) -> tuple[DimVar, ...]:
        """The size variables of the kernel, in the order in which its definition mentions them."""
        found: dict[DimVar, None] = {}
        for stage in te.stages((*self.graph.inputs, *self.graph.outputs)):
            found.update((v, None) for d in stage.shape for v in dim_vars(d))
        for body in _bodies(self.graph.outputs):
            found.update((v, None) for n in walk(body) if isinstance(n, Size) for v in dim_vars(n.dim))
        return tuple(found)


def recurrence(name: str, function: Function) -> Recurrence | None:
    """The loop that a function in blocks of primitives is; None where it is none, or its steps are more than numbers."""
    for tensors in (True, False):
        try:
            return _Reader(name, function, tensors).read()
        except _Unsuited:
            continue
    return None


class _Unsuited(Exception):
    """The function is no such loop."""


@record(frozen=True, slots=True, eq=False)
class _Longer:
    """A vector with a number behind it, or a tensor with a row of them."""

    vector: Var
    row: Row


# What a variable is in a step: an expression of the parameters that are numbers, a few of them, a tensor that is given, one that grew.
_Value = Scalar | Row | Var | Constant | _Longer | tuple["_Value", ...]


@record(slots=True, eq=False)
class _Reader:
    name: str
    function: Function
    # Whether steps may be tensors of one shape; otherwise they are numbers, whatever they put together of these.
    tensors: bool
    values: dict[Var, _Value] = field(default_factory=dict)
    # The parameters that are tuples.
    fields: dict[Var, Fields] = field(default_factory=dict)
    # The parameters that are numbers, or tensors with a number at each place of the grid, as variables of expressions.
    numbers: dict[Var, Named] = field(default_factory=dict)
    grid: tuple[Axis, ...] = ()
    placeholders: dict[Var | Constant, Tensor] = field(default_factory=dict)
    # The sizes of axes that what a step computes fails for where they have no element.
    asked: dict[Dim, None] = field(default_factory=dict)
    shared: Shared = field(default_factory=Shared)
    branches: int = 0

    @property
    def shape(self) -> tuple[Dim, ...]:
        """What steps hand on, if it is no numbers."""
        return tuple(a.extent for a in self.grid)

    def read(self) -> Recurrence:
        body = body_of(self.function)
        *before, last = body.bindings or (None,)
        if last is None or not isinstance(last.value, If) or body.result is not last.var:
            raise _Unsuited
        then, orelse = as_block(last.value.then), as_block(last.value.orelse)
        on = self._goes_on(then)
        if on == self._goes_on(orelse):
            raise _Unsuited
        again, leave = (then, orelse) if on else (orelse, then)
        shape = _shape_of_steps(body, leave) if self.tensors else ()
        self.grid = tuple(Axis(f"g{n}", size) for n, size in enumerate(shape))
        for param in self.function.params:
            self.values[param] = self._given(param, param)
        for binding in before:
            self.values[binding.var] = self._value(binding.value)
        if not _free(leave) <= set(self.function.params):
            raise _Unsuited
        condition = self._number(last.value.cond)
        return self._made(condition, on, self._next(again), leave)

    def _given(self, param: Var, part: Var) -> _Value:
        """What a parameter, or a part of one, is before a step."""
        if isinstance(part.ty, TupleType):
            own = tuple(Var(f"{part.name}.{n}", None, ty) for n, ty in enumerate(part.ty.fields))
            values = tuple(self._given(param, v) for v in own)
            self.fields[part] = tuple(self.fields.pop(v, v) for v in own)
            return values
        if isinstance(part.ty, TensorType) and part.ty.shape in ((), self.shape) and isinstance(part.ty.dtype, str):
            self.numbers[part] = Named(part.name, part.ty.dtype)
        return self.numbers.get(part, part)

    def _goes_on(self, block: Block) -> bool:
        """Whether a block in tail position ends with the next step, whatever it chooses."""
        todo = [block]
        while todo:
            block = todo.pop()
            if not block.bindings or block.result is not block.bindings[-1].var:
                return False
            value = block.bindings[-1].value
            if isinstance(value, If):
                todo += (as_block(value.then), as_block(value.orelse))
            elif not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name != self.name:
                return False
        return True

    # -- a step

    def _next(self, block: Block) -> tuple[_Value, ...]:
        """What a block that ends with the next step gives it."""
        self._inside()
        for binding in block.bindings[:-1]:
            self.values[binding.var] = self._value(binding.value)
        value = block.bindings[-1].value
        if isinstance(value, If):
            condition = self._number(value.cond)
            then, orelse = self._next(as_block(value.then)), self._next(as_block(value.orelse))
            return tuple(self._chosen(condition, a, b) for a, b in zip(then, orelse, strict=True))
        assert isinstance(value, Call)
        return tuple(self._atom(a) for a in value.args)

    def _atom(self, e: Expr) -> _Value:
        match e:
            case Var() if e in self.values:
                return self.values[e]
            case Constant() if e.data.ndim == 0:
                return self.shared.of(literal(e).value)
            case Constant():
                return e
            case Tuple():
                return tuple(self._atom(f) for f in e.fields)
            case _:
                raise _Unsuited

    def _number(self, e: Expr) -> Scalar:
        value = self._atom(e)
        if not _is_number(value):
            raise _Unsuited
        return value

    def _value(self, e: Expr) -> _Value:
        match e:
            case Proj():
                whole = self._atom(e.tuple)
                if not isinstance(whole, tuple):
                    raise _Unsuited
                return whole[e.index]
            case If():
                condition = self._number(e.cond)
                return self._chosen(condition, *(self._branch(as_block(b)) for b in (e.then, e.orelse)))
            case Call(fn=OpRef(name="append")):
                return self._longer(self._atom(e.args[0]), self._atom(e.args[1]), _rank(e.args[1]))
            case Call(fn=OpRef(name=name)) if registry.exists(name) and registry.get(name).kind == "view":
                return self._view(self._atom(e.args[0]), e.ty)
            case Call() if is_primitive(e.fn):
                return self._primitive(e.fn, e.args)
            case Call():
                raise _Unsuited
            case _:
                return self._atom(e)

    def _longer(self, tensor: _Value, row: _Value, rank: int) -> _Longer:
        """A tensor with something of this rank behind it: a number, or a row of them."""
        row = self._made_of_numbers(row)
        if not isinstance(tensor, Var) or isinstance(row, Var | Constant | _Longer | tuple):
            raise _Unsuited
        if self.grid:
            # (Several rows may be put behind a tensor at a time, too.)
            if isinstance(row, Row) or _rank(tensor) != rank + 1:
                raise _Unsuited
            return _Longer(tensor, Row((), (row,)))
        whole = _shape(tensor.ty)
        sizes = sizes_of_row(whole[1:]) if whole else None
        row = row if isinstance(row, Row) else Row((), (row,))
        if sizes is None or row.shape not in (sizes, (1, *sizes)):
            raise _Unsuited
        return _Longer(tensor, Row(sizes, row.numbers))

    def _view(self, value: _Value, ty: Type | None) -> _Value:
        """The same numbers in another shape."""
        shape = _shape(ty)
        sizes = None if shape is None else sizes_of_row(shape)
        if self.grid or isinstance(value, Var | Constant | _Longer | tuple) or sizes is None:
            raise _Unsuited
        numbers = value.numbers if isinstance(value, Row) else (value,)
        if prod(sizes) != len(numbers):
            raise _Unsuited
        return Row(sizes, numbers) if sizes else numbers[0]

    def _inside(self) -> None:
        """A branch is entered. So many are more than a kernel should compute without choosing."""
        self.branches += 1
        if self.branches > _MOST_BRANCHES:
            raise _Unsuited

    def _branch(self, block: Block) -> _Value:
        self._inside()
        for binding in block.bindings:
            self.values[binding.var] = self._value(binding.value)
        return self._atom(block.result)

    def _primitive(self, primitive: Function, args: Sequence[Expr]) -> _Value:
        """The results of a primitive that computes numbers."""
        graph = te_graph(primitive)
        found = None if graph.foreign else self._elements(graph)
        if found is None or any(isinstance(n, Reduce) for _, row in found for r in row for n in walk(r)):
            raise _Unsuited
        self.asked |= dict.fromkeys(empty_axes.asked_sizes(graph.outputs))
        given = {tensor_key(t): self._atom(a) for t, a in zip(graph.inputs, args, strict=True)}

        def visit(node: Scalar) -> Scalar:
            if isinstance(node, Select):
                return decided(node)
            if not isinstance(node, Load):
                return node
            assert isinstance(node.source, Tensor)
            value = given[tensor_key(node.source)]
            if isinstance(value, Row):
                return value.at(node)
            if isinstance(value, Var | Constant):
                return Load(self._operand(value), node.indices, node.dtype)
            if isinstance(value, _Longer | tuple):
                raise _Unsuited
            if self._is_here(node.indices):
                return value
            # Elements at other places are known of what does not change.
            param = next((p for p, n in self.numbers.items() if n is value), None)
            if param is None:
                raise _Unsuited
            return Load(self._operand(param), node.indices, node.dtype)

        memo: dict[int, Scalar] = {}
        results: list[_Value] = []
        for shape, row in found:
            numbers = tuple(transform(r, lambda n: self.shared.of(visit(n)), memo) for r in row)
            if any(
                isinstance(n, Load) and tensor_key(cast(Tensor, n.source)) in given for r in numbers for n in walk(r)
            ):
                raise _Unsuited  # what is read of a row is known when the step is made only
            results.append(Row(shape, numbers) if shape is not None else numbers[0])
        return results[0] if isinstance(primitive.ret_type, TensorType) else tuple(results)

    def _elements(self, graph: TeGraph) -> list[tuple[tuple[int, ...] | None, tuple[Scalar, ...]]] | None:
        """The numbers of a graph's results, each with its shape where it is a row of them, in terms of elements of its inputs."""
        if self.tensors:
            each = elements(graph, _MOST_HANDED_ON, self.grid)
            return None if each is None else [(None, (e,)) for e in each]
        made = inlined(graph, _MOST_HANDED_ON)
        if made is None:
            return None
        found: list[tuple[tuple[int, ...] | None, tuple[Scalar, ...]]] = []
        for axes, body in made:
            sizes = sizes_of_row([a.extent for a in axes])
            if sizes is None:
                return None
            found.append((sizes or None, elements_of(axes, body, sizes)))
        return found

    def _is_here(self, indices: Sequence[Scalar]) -> bool:
        """Whether this is the place at hand."""
        here = Indices()
        return not indices or all(
            a.extent == 1 or here.poly(i) == here.poly(a) for a, i in zip(self.grid, indices, strict=True)
        )

    def _places(self, param: Var) -> tuple[Axis, ...]:
        """Where the element of a parameter is that a step is about."""
        return self.grid if isinstance(param.ty, TensorType) and param.ty.shape else ()

    def _chosen(self, condition: Scalar, a: _Value, b: _Value) -> _Value:
        """One of two values."""
        if a is b:
            return a
        a, b = self._made_of_numbers(a), self._made_of_numbers(b)
        if isinstance(a, tuple) and isinstance(b, tuple):
            return tuple(self._chosen(condition, x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, _Longer) and isinstance(b, _Longer) and a.vector is b.vector:
            row = self._chosen(condition, a.row, b.row)
            assert isinstance(row, Row)
            return _Longer(a.vector, row)
        if isinstance(a, Row) and isinstance(b, Row) and a.shape == b.shape:
            pairs = zip(a.numbers, b.numbers, strict=True)
            return Row(a.shape, tuple(x if x is y else self.shared.of(select(condition, x, y)) for x, y in pairs))
        if not _is_number(a) or not _is_number(b):
            raise _Unsuited
        return self.shared.of(select(condition, a, b))

    def _made_of_numbers(self, value: _Value) -> _Value:
        """A constant, as its element at the place at hand, or as a row; other values as they are."""
        if not isinstance(value, Constant):
            return value
        if self.grid:
            if value.data.shape != self.shape or not value.data.size:
                raise _Unsuited
            first = value.data.reshape(-1)[:1]
            if value.data.tobytes() == first.tobytes() * value.data.size:
                return self.shared.of(literal(Constant(first, value.dtype)).value)
            return self.shared.of(Load(self._operand(value), self.grid, value.dtype))
        sizes = sizes_of_row(value.data.shape)
        if not sizes:
            raise _Unsuited
        numbers = (Constant(e, value.dtype) for e in value.data.reshape(-1, 1))
        return Row(sizes, tuple(self.shared.of(literal(e).value) for e in numbers))

    def _operand(self, value: Var | Constant) -> Tensor:
        """A tensor that the kernel reads."""
        if value not in self.placeholders:
            ty = value.ty
            if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
                raise _Unsuited
            self.placeholders[value] = te.placeholder(f"p{len(self.placeholders)}", ty.shape, ty.dtype)
        return self.placeholders[value]

    # -- the kernel

    def _made(self, condition: Scalar, on: bool, following: Sequence[_Value], leave: Block) -> Recurrence:
        """The loop of steps that are followed by these values of the parameters, as long as the condition is ``on``."""
        rows: dict[Var, Row] = {}
        states: dict[Axis, Scalar] = {}
        counters: dict[Axis, int] = {}
        fixed: set[Var] = set()
        parts = [
            pair
            for param, value in zip(self.function.params, following, strict=True)
            for pair in _parts(self.fields.get(param, param), value)
        ]
        for param, value in parts:
            if param in self.numbers:
                value = self._made_of_numbers(value)
            number = self.numbers.get(param)
            if value is param or (number is not None and value is number):
                fixed.add(param)
            elif isinstance(value, _Longer) and value.vector is param:
                rows[param] = value.row
            elif number is None or not _is_number(value):
                raise _Unsuited
            elif (by := counts(number, value)) is not None:
                counters[number] = by
            elif _puts_at_a_place(number, value, self.grid):
                raise _Unsuited  # nothing else need be touched
            else:
                states[number] = value
        if any(isinstance(p, Var) and p not in fixed for p in self.placeholders):
            raise _Unsuited
        given: dict[Axis, Scalar] = {
            n: Load(self._operand(p), self._places(p), n.dtype) for p, n in self.numbers.items()
        }
        unchanged: dict[Axis, Scalar] = {n: given[n] for p, n in self.numbers.items() if p in fixed}
        trips = trips_of(condition, on, counters, given, unchanged)
        if trips is None:
            raise _Unsuited
        read = _free(leave)
        outside = {v for p in self.function.params if p in read for v in variables_of(self.fields.get(p, p))}
        wanted = tuple(p for p, n in self.numbers.items() if p in outside and p not in fixed)
        count, ends = DimVar("steps"), tuple(self.numbers[p] for p in wanted)
        pushed = {p: row.numbers for p, row in rows.items()}
        shapes = {p: row.shape for p, row in rows.items()}
        made = StepNumbers(count, self.shared, given, dict(states), dict(pushed), shapes)
        single = all(len(row) == 1 for row in pushed.values())
        if rows and single and not self.grid and made.solve(unchanged, counters, set(ends)):
            outputs = (*(made.row(p) for p in rows), *map(made.last, ends))
            scans = TeGraph((), outputs)
            if _operations(scans) <= _MOST_OPERATIONS:
                return self._checked(scans, None, trips, count, fixed, tuple(rows), wanted, on)
        numbers = StepNumbers(count, self.shared, given, states, pushed, shapes)
        handed = numbers.handed_on(unchanged, counters, ends)
        if handed is None and rows and self.grid:
            each = TeGraph((), tuple(numbers.by_themselves(ends, self.grid)))
            return self._checked(each, None, trips, count, fixed, tuple(rows), wanted, on)
        if handed is None or any(
            n in handed.states and not self._places(p) for p, n in self.numbers.items() if self.grid
        ):
            raise _Unsuited
        if self.grid:
            handed = replace(handed, grid=self.grid, of_numbers=frozenset(_of_numbers(rows, wanted)))
        whole = handed.graph()
        if _operations(whole) > _MOST_HANDED_ON:
            raise _Unsuited
        return self._checked(whole, handed, trips, count, fixed, tuple(rows), wanted, on)

    def _checked(
        self,
        whole: TeGraph,
        handed: Steps | None,
        trips: Scalar,
        steps: DimVar,
        fixed: set[Var],
        rows: tuple[Var, ...],
        wanted: tuple[Var, ...],
        on: bool,
    ) -> Recurrence:
        """The loop, if what it is made of is known before it begins."""
        bodies = _bodies(whole.outputs)
        read, counted = _read(bodies), _read([trips])
        operands = tuple(v for v, t in self.placeholders.items() if id(t) in read)
        graph = replace(whole, inputs=tuple(self.placeholders[v] for v in operands))
        handed = None if handed is None else replace(handed, inputs=graph.inputs)
        count = tuple(v for v, t in self.placeholders.items() if id(t) in counted)
        code = ScalarCode(tuple(self.placeholders[v] for v in count), (trips,))
        asks = set(empty_axes.asked_sizes(whole.outputs))
        some = tuple(size for size in self.asked if size not in asks)
        made = Recurrence(operands, graph, handed, steps, code, count, rows, wanted, on, self.fields, some)
        same = fixed.union(p for p in self.numbers)
        said = {v for p in same for v in told(p.ty)} | {steps}
        needed = {*made.dims, *(v for n in walk(trips) if isinstance(n, Size) for v in dim_vars(n.dim))}
        needed |= {v for size in some for v in dim_vars(size)}
        if not needed <= said or not can_be_instructions(code):
            raise _Unsuited
        return made


def variables_of(fields: Fields) -> list[Var]:
    """The variables of a tuple's fields; of a variable that is none, itself."""
    return [fields] if isinstance(fields, Var) else [v for f in fields for v in variables_of(f)]


def _parts(fields: Fields, value: _Value) -> Iterator[tuple[Var, _Value]]:
    """These variables with their values in a tuple."""
    if isinstance(fields, Var):
        yield fields, value
        return
    if not isinstance(value, tuple) or len(value) != len(fields):
        raise _Unsuited
    for field_, part in zip(fields, value, strict=True):
        yield from _parts(field_, part)


def _shape_of_steps(body: Block, leave: Block) -> tuple[Dim, ...]:
    """The shape of what steps make that is no number: none where they make numbers alone. What ``leave`` makes is no step's."""
    after = {id(b) for b in all_blocks(leave)}
    shapes: set[tuple[Dim, ...]] = set()
    for block in all_blocks(body):
        made = [b.var.ty for b in block.bindings if isinstance(b.value, Call) and is_primitive(b.value.fn)]
        for ty in made if id(block) not in after else ():
            for each in ty.fields if isinstance(ty, TupleType) else (ty,):
                if not isinstance(each, TensorType) or not isinstance(each.shape, tuple):
                    raise _Unsuited
                shapes.add(each.shape)
    shapes.discard(())
    if len(shapes) > 1:
        raise _Unsuited
    return next(iter(shapes), ())


def _is_number(value: _Value) -> TypeGuard[Scalar]:
    return not isinstance(value, Row | Var | Constant | _Longer | tuple)


def _shape(ty: Type | None) -> tuple[Dim, ...] | None:
    return ty.shape if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else None


def _rank(e: Expr) -> int:
    shape = _shape(e.ty)
    return -1 if shape is None else len(shape)


def _of_numbers(rows: Iterable[Var], last: Iterable[Var]) -> Iterator[int]:
    """Which of the results are of numbers: these vectors, and then these variables."""
    for n, (var, rank) in enumerate([*((v, 1) for v in rows), *((v, 0) for v in last)]):
        if isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple) and len(var.ty.shape) == rank:
            yield n


def _puts_at_a_place(number: Axis, value: Scalar, grid: Sequence[Axis]) -> bool:
    """Whether a step changes a state at one place of an axis alone."""
    if not isinstance(value, Select) or number not in (value.a, value.b):
        return False
    return any(
        isinstance(n, Compare) and n.op in ("eq", "ne") and not mentioned(n).isdisjoint(grid) for n in walk(value.cond)
    )


def _free(block: Block) -> frozenset[Var]:
    """The variables of a block that are bound outside of it."""
    uses = Uses()
    return run(uses.analyse(block))


def _bodies(outputs: Sequence[Tensor]) -> list[Scalar]:
    """The expressions of all stages."""
    return [b for stage in te.stages(outputs) if not isinstance(stage, Placeholder) for b in stage_bodies(stage)]


def _operations(graph: TeGraph) -> int:
    """How many operations all steps of a loop have in one."""
    return len({id(n) for b in _bodies(graph.outputs) for n in walk(b) if not isinstance(n, Const | Size | Axis)})


def _read(roots: Sequence[Scalar]) -> set[int]:
    """The ids of the tensors that expressions read."""
    return {id(n.source) for r in roots for n in walk(r) if isinstance(n, Load)}
