"""Rows that are read several times are multiplied once: the states of a graph's nodes, not of its edges; each of two sets of rows, not each
pair of them.

    let %a = take(%x, %src, axis=0);                       let %y = nn.dense(%x, %w[:, :d]);
    let %both = concatenate((%a, %e), axis=1);             take(%y, %src, axis=0) + nn.dense(%e, %w[:, d:])
    nn.dense(%both, %w)

Each row of a product is made of one row of its left operand, so rows may be chosen or repeated after it; a product of parts side by side
is the sum of theirs. What comes back to rows in a gradient is added up before it is multiplied then, too. Whether there are fewer rows
than are read may be known only when the program runs; as many rows as the less of both are multiplied in that case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, cast

from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, attribute_size, dim_add, dim_bounds, dim_min, dim_mul, dim_sub, known_equal, shape_size
from relay.ir.dim_total import TYPICAL, dim_typical
from relay.ir.expr import Attr, Attrs, Binding, Block, Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TupleType
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import (
    Forward,
    Scope,
    all_bindings,
    body_of,
    is_primitive,
    nested_blocks,
    operands,
    with_each_nested,
)
from relay.transform.build import op_call, type_of
from relay.transform.dims import first_binders
from relay.transform.fix_invariants import invariants
from relay.transform.matrix_products import dtype_of, is_sized, is_view, shape_of
from relay.transform.uses import use_counts

# What takes rows, or repeats them.
_REPEATS = frozenset({"take", "broadcast_to", "repeat", "tile"})
# Of narrower rows a product takes no longer than to read it again for each row.
_NARROWEST = 16
# Where nobody knows how many rows are read, a table of more rows than this is one of words, of which few are read at a time; so is a
# table that all iterations share where what is read changes.
_MOST_ROWS = 4096


@record(frozen=True, slots=True)
class MultiplyOnce(Pass):
    """Take or repeat rows after ``nn.dense`` and ``nn.matmul`` where fewer are multiplied then.

    Before: typed blocks; tensors of unknown sizes (``?``) are left alone. After: the same values up to the order of sums. A ``take`` of no
    rows still fails, but not for a product without columns.
    """

    name: ClassVar[str] = "multiply_once"

    def __call__(self, module: Module) -> Module:
        return module.with_functions((n, _Rewriter(_levels(n, f)).function(f)) for n, f in module.functions.items())


@record(frozen=True, slots=True, eq=False)
class _Chosen:
    """Rows that ``call``, bound to ``call_of``, takes or repeats; whether it is ``known`` that these are more then."""

    call: Call
    call_of: Expr
    known: bool


@record(slots=True, eq=False)
class _Rewriter:
    """The rewriting of one function."""

    levels: Mapping[Var, int]
    # What made the rows of products that are made otherwise now, in the same block.
    rewritten: set[Var] = field(default_factory=set)
    driver: Forward = field(init=False)

    def function(self, function: Function) -> Function:
        if is_primitive(function):
            return function
        self.driver = Forward(self.visit)
        after = self.driver.function(function)
        if not self.rewritten:
            return after
        body = body_of(after)
        binders = set(first_binders(after.params, (b.var for b in all_bindings(body))).values())
        return replace(after, body=run(_without(body, _passed_by(body, self.rewritten, binders))))

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        axis = _summed_axis(value)
        if axis is None:
            return value
        assert isinstance(value, Call)
        data = value.args[0]
        seen = self.seen(data)
        parts = self.parts(seen)
        chosen = [self.chosen(p) for p in parts]
        if not any(chosen):
            return value
        try:
            made = _Made(value)
            total = made.total(axis, parts, chosen)
        except RelayError:  # of parts whose widths no slice of the weight is known to have
            return value
        own, shape = shape_of(total) or (), shape_of(value) or ()
        if not is_sized(total) or len(own) != len(shape) or not all(map(known_equal, own, shape)):
            return value
        here = {b.var for b in scope.bindings}
        passed = [data, seen, *parts, *(f.call_of for f in chosen if f is not None)]
        passed += operands(self.driver.definition(seen)) if len(parts) > 1 else []
        self.rewritten |= {e for e in passed if isinstance(e, Var) and e in here}
        scope.bindings += made.bindings
        return total

    def seen(self, rows: Expr) -> Expr:
        """The tensor whose rows are seen in another shape."""
        width = _width(rows)
        while isinstance(call := self.driver.definition(rows), Call) and is_view(call):
            of = call.args[0]
            if not is_sized(of) or not shape_of(of) or not known_equal(_width(of), width) or not _same_size(of, rows):
                break
            rows = of
        return rows

    def parts(self, data: Expr) -> Sequence[Expr]:
        """What lies side by side in rows."""
        made = self.driver.definition(data)
        if not isinstance(made, Call) or not isinstance(made.fn, OpRef) or made.fn.name != "concatenate":
            return (data,)
        fields, rank = self.driver.definition(made.args[0]), len(shape_of(data) or ())
        axis = registry.get("concatenate").complete_attrs(made.attrs)["axis"]
        last = isinstance(axis, int) and axis % rank == rank - 1
        if not last or not isinstance(fields, Tuple) or not all(map(is_sized, fields.fields)):
            return (data,)
        return fields.fields

    def chosen(self, part: Expr) -> _Chosen | None:
        """The rows that a part chooses or repeats, where fewer are worth to be multiplied."""
        var = self.seen(part)
        call = self.driver.definition(var)
        if not isinstance(call, Call) or not isinstance(call.fn, OpRef) or call.fn.name not in _REPEATS:
            return None
        own, shape = shape_of(call.args[0]), shape_of(call)
        if not own or not shape or not all(map(is_sized, (call, *call.args))) or dim_typical(own[-1]) < _NARROWEST:
            return None
        if len(own) < 2 or not known_equal(own[-1], shape[-1]):
            return None
        rows, read = shape_size(own[:-1]), shape_size(shape[:-1])
        if call.fn.name != "take":
            axis = call.attrs.get("axis", 0)
            along = isinstance(axis, int) and axis % len(shape) < len(shape) - 1
            return _Chosen(call, var, True) if along and dim_typical(rows) * 2 <= dim_typical(read) else None
        attrs = registry.get("take").complete_attrs(call.attrs)
        if len(own) != 2 or len(shape) < 2 or attrs["axis"] not in (0, -2) or attrs["batch_dims"] != 0:
            return None
        if _is_at_least(read, dim_mul(rows, 2)):
            return _Chosen(call, var, True)
        maybe = not _is_at_least(dim_mul(rows, 2), read) and dim_typical(read) >= TYPICAL
        of_words = dim_typical(rows) > _MOST_ROWS or self.level(call.args[0]) < self.level(call.args[1])
        return (
            _Chosen(call, var, False)
            if maybe and not of_words and dtype_of(call.args[1]) in ("int32", "int64")
            else None
        )

    def level(self, atom: Expr) -> int:
        return self.levels.get(atom, 0) if isinstance(atom, Var) else -1


@record(slots=True, eq=False)
class _Made:
    """What stands in the place of one product."""

    value: Call
    bindings: list[Binding] = field(default_factory=list)

    def total(self, axis: int, parts: Sequence[Expr], chosen: Sequence[_Chosen | None]) -> Expr:
        """The sum of the products of the parts: of neighbours without chosen rows one, in the value's shape."""
        weight, begin, end = self.value.args[1], cast(Dim, 0), cast(Dim, 0)
        terms: list[Expr] = []
        together: list[Expr] = []
        for n, (part, found) in enumerate(zip(parts, chosen, strict=True)):
            end = dim_add(end, _width(part))
            together.append(part)
            if found is None and n + 1 < len(parts) and chosen[n + 1] is None:
                continue
            columns = weight if len(together) == len(parts) else self.columns(weight, axis, begin, end)
            if found is None:
                terms.append(self.product(self.side_by_side(together), columns))
            else:
                terms.append(self.chosen_product(found, part, columns))
            begin, together = end, []
        total, *rest = terms
        for term in rest:
            total = self.bound("sum", op_call("add", (total, term), span=self.value.span))
        return self.shaped(total, shape_of(self.value) or ())

    def bound(self, name: str, made: Expr) -> Var:
        var = Var(name, None, type_of(made))
        self.bindings.append(Binding(var, made))
        return var

    def call(self, name: str, args: Sequence[Expr], **attrs: Attr) -> Var:
        return self.bound("rows", op_call(name, args, cast(Attrs, attrs), self.value.span))

    def side_by_side(self, parts: Sequence[Expr]) -> Expr:
        if len(parts) == 1:
            return parts[0]
        both = self.bound("parts", Tuple(tuple(parts), TupleType(tuple(map(type_of, parts)))))
        return self.call("concatenate", (both,), axis=len(shape_of(parts[0]) or ()) - 1)

    def columns(self, weight: Expr, axis: int, begin: Dim, end: Dim) -> Expr:
        """The part of a weight that a part of the rows is multiplied by."""
        return self.call(
            "strided_slice",
            (weight,),
            begin=(attribute_size(begin),),
            end=(attribute_size(end),),
            strides=(1,),
            axes=(axis,),
        )

    def product(self, rows: Expr, weight: Expr) -> Var:
        assert isinstance(self.value.fn, OpRef)
        return self.bound("product", op_call(self.value.fn.name, (rows, weight), self.value.attrs, self.value.span))

    def shaped(self, rows: Expr, shape: Sequence[Dim]) -> Expr:
        own = shape_of(rows) or ()
        if len(own) == len(shape) and all(map(known_equal, own, shape)):
            return rows
        return self.call("reshape", (rows,), newshape=tuple(map(attribute_size, shape)))

    def chosen_product(self, chosen: _Chosen, part: Expr, weight: Expr) -> Expr:
        """The product of a part whose rows are chosen, in the part's shape."""
        call, of = chosen.call, chosen.call.args[0]
        assert isinstance(call.fn, OpRef)
        rest: Sequence[Expr] = call.args[1:]
        if not chosen.known:
            of, at = self.fewer(call)
            rest = (at,)
        made, columns = self.product(of, weight), _width(self.value)
        attrs = call.attrs
        if call.fn.name == "broadcast_to":
            attrs = {"shape": tuple(map(attribute_size, (*(shape_of(call) or ())[:-1], columns)))}
        rows = self.bound("rows", op_call(call.fn.name, (made, *rest), attrs, self.value.span))
        return self.shaped(rows, (*(shape_of(part) or ())[:-1], columns))

    def fewer(self, call: Call) -> tuple[Expr, Expr]:
        """The rows to multiply, as many as the less of those that there are and those that are read, and where among the products what is
        read is: all rows and the indices, or the rows that are read and their numbers."""
        of, at = call.args
        if dtype_of(at) != "int64":
            at = self.call("cast", (at,), dtype="int64")
        there, shape = (shape_of(of) or ())[0], shape_of(at) or ()
        read = shape_size(shape)
        least = dim_min(there, read)
        all_rows = self.call("less", (self.size(there), self.size(read)))
        line = at if len(shape) == 1 else self.call("reshape", (at,), newshape=(attribute_size(read),))
        first = self.call("strided_slice", (line,), begin=(0,), end=(attribute_size(least),), strides=(1,), axes=(0,))
        multiplied = self.call("where", (all_rows, self.numbers(least), first))
        after = self.call("where", (all_rows, line, self.numbers(read)))
        if len(shape) > 1:
            after = self.call("reshape", (after,), newshape=tuple(map(attribute_size, shape)))
        return self.bound("rows", op_call("take", (of, multiplied), call.attrs, call.span)), after

    def size(self, size: Dim) -> Expr:
        return self.call("size_of", (), size=attribute_size(size))

    def numbers(self, count: Dim) -> Expr:
        return self.call("arange", (), start=0, stop=attribute_size(count), step=1, dtype="int64")


def _levels(name: str, function: Function) -> dict[Var, int]:
    """In how many functions inside of each other parameters and bindings stand; outside of all is what iterations of the function share."""
    if is_primitive(function):
        return {}
    fixed = invariants(name, function)
    levels = {p: -1 if fixed is not None and n in fixed.params else 0 for n, p in enumerate(function.params)}
    todo = [(body_of(function), 0)]
    while todo:
        block, level = todo.pop()
        for binding in block.bindings:
            levels[binding.var] = level
            inside = level + isinstance(binding.value, Function)
            if isinstance(binding.value, Function):
                levels.update(dict.fromkeys(binding.value.params, inside))
            todo += [(b, inside) for b in nested_blocks(binding.value)]
    return levels


def _summed_axis(value: Expr) -> int | None:
    """The axis of its matrix along which a product of floating-point rows sums; None where this is no such product."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in ("nn.dense", "nn.matmul"):
        return None
    attrs = registry.get(value.fn.name).complete_attrs(value.attrs)
    if attrs.get("transpose_a", False) or not all(map(is_sized, (value, *value.args))):
        return None
    # Sums of halves in 16 bits are rounded more often.
    dtypes = {dtype_of(e) for e in (value, *value.args)}
    if len(dtypes) > 1 or not dtypes <= {"float32", "float64"} or len(shape_of(value) or ()) < 2:
        return None
    if len(shape_of(value.args[1]) or ()) != 2:
        return None
    return 1 if value.fn.name == "nn.dense" or attrs["transpose_b"] else 0


def _width(e: Expr) -> Dim:
    return (shape_of(e) or ())[-1]


def _same_size(a: Expr, b: Expr) -> bool:
    return known_equal(shape_size(shape_of(a) or ()), shape_size(shape_of(b) or ()))


def _is_at_least(a: Dim, b: Dim) -> bool:
    low, _ = dim_bounds(dim_sub(a, b))
    return low is not None and low >= 0


def _passed_by(body: Block, rewritten: set[Var], binders: set[Var]) -> set[Var]:
    """What made the rows of the products that were rewritten and is not read any more: what stands in its place fails where it does."""
    values = {b.var: b.value for b in all_bindings(body) if b.var in rewritten}
    counts = use_counts(body)
    todo = [v for v in values if counts[v] == 0]
    passed: set[Var] = set()
    while todo:
        var = todo.pop()
        if var in binders:
            continue
        passed.add(var)
        for atom in operands(values[var]):
            if isinstance(atom, Var):
                counts[atom] -= 1
                if counts[atom] == 0 and atom in values:
                    todo.append(atom)
    return passed


def _without(block: Block, passed: set[Var]) -> Step[Block]:
    bindings: list[Binding] = []
    for binding in block.bindings:
        if binding.var not in passed:
            value = yield with_each_nested(binding.value, lambda b: _without(b, passed))
            bindings.append(Binding(binding.var, value))
    return Block(tuple(bindings), block.result, block.ty, block.span)
