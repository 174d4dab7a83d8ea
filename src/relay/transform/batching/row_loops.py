"""Loops over the rows of tensors as folds over a list of the rows, which are batched as any other recursion over a list.

The list has the last row first. So a loop that goes from the first row to the last is a fold from the end of the list, whose results come
from below alone:

    go(0, count, %xs, %s) with    if (%t < %count) { go(%t + 1, %count, %xs, f(%s, take(%xs, %t))) } else { %s }            before
    go'(%list, %s) with    match (%list) { More(%x, %rest) => f(go'(%rest, %s), %x), End => %s }                             after

and one from the last row to the first hands what it carries down. Rows that a loop puts behind each other are the items of a list, in
the order of the list that it goes through.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_add, dim_sub, dim_vars
from relay.ir.effects import Effect
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    PConstructor,
    Proj,
    PVar,
    Tuple,
    Var,
)
from relay.ir.record import record
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, Type, TypeDef
from relay.ir.walk import free_vars
from relay.transform.ad.terms import construct
from relay.transform.batching.clauses import NotStructural
from relay.transform.batching.lifted import Emitter
from relay.transform.batching.requests import listed
from relay.transform.blocks import all_bindings, as_block, body_of
from relay.transform.build import op_call, type_of
from relay.transform.copying import Copier, with_own_dims
from relay.transform.dims import DimUses
from relay.transform.failing import may_fail
from relay.transform.fix_invariants import invariants, self_calls
from relay.transform.uses import needed
from relay.transform.visited_rows import Sizes, counting, taken_row
from relay.typing.effects import Effects


@record(frozen=True, slots=True, eq=False)
class Items:
    """The items of a list, and what is done with one whatever a loop carries: its ``fields``; ``code`` on these; the ``rows`` that the
    loop reads, by parameter; and what the items of the list are made of that the loop gives: ``kept``, and behind these the loop's own
    rows, by parameter (``puts``)."""

    fields: Sequence[Var]
    code: Sequence[Binding]
    rows: Mapping[int, Expr]
    kept: Sequence[Expr]
    puts: Sequence[int]

    @property
    def types(self) -> list[Type]:
        return [type_of(v) for v in self.fields]


@record(frozen=True, slots=True, eq=False)
class RowLoop:
    """A loop over all rows of tensors, from the first to the last (``up``) or the other way.

    ``reads``: the variables of its code that are rows, and of which parameters; ``states``: the parameters that it carries from step to
    step, and what they are next; ``puts``: the parameters that a row is put behind in each step, and that row. ``code`` gives all these;
    ``last`` is what it gives at its end.
    """

    name: str
    function: Function
    up: bool
    reads: Mapping[Var, int]
    states: Mapping[int, Expr]
    puts: Mapping[int, Expr]
    code: tuple[Binding, ...]
    last: Block

    def shared(self) -> list[int]:
        """The parameters that its steps read and do not change."""
        bound = {b.var for b in self.code}.union(self.reads)
        read = {v for b in self.code for v in free_vars(b.value)} - bound
        read.update(v for v in (*self.states.values(), *self.puts.values()) if isinstance(v, Var) and v not in bound)
        return [n for n, p in enumerate(self.function.params) if p in read and n not in self.states]


def row_loop(
    name: str, function: Function, call: Call, rows: Mapping[int, Dim], outer: Sizes, effects: Effects
) -> RowLoop:
    """See a call of a recursive function as a loop over the rows of its arguments ``rows``, which have so many. ``outer``: the integers of
    the caller. Raises NotStructural."""
    body = body_of(function)
    whole = body.bindings[-1] if body.bindings else None
    calls = self_calls(name, function)
    shared = invariants(name, function)
    if (
        whole is None
        or shared is None
        or not isinstance(whole.value, If)
        or body.result is not whole.var
        or len(calls) != 1
    ):
        raise NotStructural(f"@{name} is no loop that counts the rows of a tensor")
    (again,) = calls
    choice = whole.value
    sides = [as_block(choice.then), as_block(choice.orelse)]
    side = next((n for n, b in enumerate(sides) if b.bindings and b.bindings[-1].value is again), None)
    if side is None or sides[side].result is not sides[side].bindings[-1].var:
        raise NotStructural(f"@{name} does not end with its call of itself")
    head, step, last = body.bindings[:-1], sides[side].bindings[:-1], sides[1 - side]
    values = {b.var: b.value for b in all_bindings(body)}
    count = counting(name, function, values, shared, call, outer, choice, side)
    if count is None or not rows.keys() <= shared.params:
        raise NotStructural(f"@{name} is no loop that counts the rows of a tensor")
    reads: dict[Var, int] = {}
    ways: set[int] = set()
    for binding in step:
        at = _row_read(binding.value, function, rows)
        if at is not None:
            found = count.range(cast(Call, binding.value).args[1])
            if found is None or found[0] != 0 or found[1] != dim_sub(rows[at], 1):
                raise NotStructural(f"@{name} does not come to all rows of %{function.params[at].name}, once each")
            ways.add(found[2])
            reads[binding.var] = at
    for b in all_bindings(Block((*head, *step, *last.bindings), last.result)):
        made = b.value if isinstance(b.value, Call) and b.var not in reads else None
        fails = made is not None and (not isinstance(made.fn, OpRef) or may_fail(made))
        if fails or effects.of(b.value) != Effect.PURE:
            raise NotStructural(f"@{name} does more in its steps than compute values (%{b.var.name})")
    if len(ways) != 1:
        raise NotStructural(f"@{name} reads no rows" if not ways else f"@{name} goes through rows in both directions")
    moved = [n for n in range(len(function.params)) if n not in shared.params and n != count.counter]
    left = [b for b in (*head, *step) if b.var not in reads]
    puts: dict[int, Expr] = {}
    for n in moved:
        row = _put(function, call, again, n, values)
        if row is not None:
            taken = op_call("squeeze", (row,), MappingProxyType({"axis": (0,)}))
            puts[n] = item = Var("row", None, taken.ty)
            left.append(Binding(item, taken))
    states = {n: again.args[n] for n in moved if n not in puts}
    code = needed(left, (*states.values(), *puts.values()))
    end = needed((*head, *last.bindings), [last.result])
    loop = RowLoop(
        name, function, ways == {1}, reads, states, puts, tuple(code), Block(tuple(end), last.result, last.ty)
    )
    _check(loop, call, rows, {*puts, count.counter}, outer)
    return loop


def rows_read(function: Function, rows: Collection[int]) -> set[int]:
    """Those of these parameters of which a function reads rows, one by one."""
    values = (b.value for b in all_bindings(body_of(function)))
    return {n for value in values if (n := _row_read(value, function, rows)) is not None}


def _row_read(value: Expr, function: Function, rows: Collection[int]) -> int | None:
    """Which of the parameters a row is read of."""
    found = taken_row(value)
    if found is None or type_of(found[1]) not in _INDICES:
        return None
    return next((n for n in rows if function.params[n] is found[0]), None)


_INDICES = (TensorType((), "int64"), TensorType((), "int32"))


def _put(function: Function, call: Call, again: Call, at: int, values: Mapping[Var, Expr]) -> Expr | None:
    """The row, with an axis of one in front, that each step puts behind those of a parameter, which has none at first."""
    param = function.params[at]
    ty = param.ty
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not ty.shape:
        return None
    size = as_var(ty.shape[0])
    if size is None or size not in function.type_params:
        return None
    number = function.type_params.index(size)
    if call.type_args[number] != 0 or again.type_args[number] != dim_add(as_dim(size), 1):
        return None
    value = values.get(cast(Var, again.args[at]))
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name != "concatenate":
        return None
    parts = values.get(cast(Var, value.args[0]))
    if value.attrs.get("axis") != 0 or not isinstance(parts, Tuple) or len(parts.fields) != 2:
        return None
    first, row = parts.fields
    of = type_of(row)
    rest = ty.shape[1:]
    same = isinstance(of, TensorType) and of.dtype == ty.dtype and of.shape == (1, *rest)
    return row if first is param and row is not param and same else None


def _check(loop: RowLoop, call: Call, rows: Mapping[int, Dim], hidden: Collection[int], outer: Sizes) -> None:
    """Raises NotStructural where its steps need more than rows and what is not one for each row; or its end more than what it gives."""
    function = loop.function
    sizes = {v for d in rows.values() for v in dim_vars(d)}
    dims = {
        d
        for d, a in zip(function.type_params, call.type_args, strict=True)
        if not sizes.isdisjoint(dim_vars(cast(Dim, a)))
    }
    dims.update(
        v
        for n in loop.puts
        for v in dim_vars(cast("tuple[Dim, ...]", cast(TensorType, function.params[n].ty).shape)[0])
    )
    barred = {function.params[n] for n in (*rows, *hidden)}
    for n, p in enumerate(function.params):
        size = outer.of(call.args[n])
        if size is not None and not sizes.isdisjoint(dim_vars(size)):
            barred.add(p)
    uses = DimUses()
    inside = all_bindings(Block(loop.code, Tuple(())))
    named = {d for b in inside for d in (*uses.of_type(b.var.ty), *uses.of_value(b.value))}
    named |= {d for n in (*loop.states, *loop.shared()) for d in uses.of_type(function.params[n].ty)}
    read = {v for b in loop.code for v in free_vars(b.value)}.union(loop.states.values(), loop.puts.values())
    if not read.isdisjoint(barred) or not named.isdisjoint(dims):
        raise NotStructural(f"the steps of @{loop.name} look at more than a row each")
    given = {function.params[n] for n in loop.puts}
    ends = {v for b in loop.last.bindings for v in free_vars(b.value)} | {loop.last.result}
    if not ends.isdisjoint(barred - given):
        raise NotStructural(f"what @{loop.name} gives at its end is no value of one request")


@record(frozen=True, slots=True, eq=False)
class Fold:
    """A loop, as it is called, as a fold: its function, the call of it, and the parts of what that gives (`unpack`): what the loop
    carries, in order, and behind that a list, if one was asked for."""

    function: Function
    call: Call
    parts: tuple[Type, ...]


def fold_of(loop: RowLoop, call: Call, rows: Expr, items: Items, kind: TypeDef, name: str) -> Fold:
    """The loop, as it is called, as a fold of this name over a list, of a type ``kind``, of ``rows``."""
    function = loop.function
    sizes = dict(
        zip(cast("Sequence[DimVar]", function.type_params), cast("Sequence[Dim]", call.type_args), strict=True)
    )
    shared = loop.shared()
    copier = Copier(dims=sizes)
    others, carried = (
        [copier.bind(function.params[n]) for n in shared],
        [copier.bind(function.params[n]) for n in loop.states],
    )
    copier.atoms.update((v, items.rows[n]) for v, n in loop.reads.items())
    given = [type_of(e) for e in items.kept] + [cast(Type, copier.type(type_of(loop.puts[n]))) for n in items.puts]
    listing, giving = AdtType(kind.name, (packed(items.types),)), AdtType(kind.name, (packed(given),))
    results = [*map(type_of, carried), *([giving] if given else [])]
    ret = packed(results)
    data, item, rest = Var("rows", listing, listing), Var("row", None, packed(items.types)), Var("rest", None, listing)
    # What the code on items reads of the caller is handed on.
    bound = {b.var for b in items.code}.union(items.fields)
    outside = dict.fromkeys(v for b in items.code for v in free_vars(b.value) if v not in bound)
    others += outside
    params = (data, *others, *carried)
    uses = DimUses()
    dims = tuple(dict.fromkeys(d for t in (*map(type_of, params), ret) for d in uses.of_type(t)))
    target = GlobalVar(name, FuncType(tuple(map(type_of, params)), ret, dims))
    out = Emitter()
    unpack(out, item, items.fields)
    out.bindings += items.code

    def before(states: Sequence[Expr]) -> Var:
        """What the fold gives for the rest of the list."""
        return out.bind(
            "before", Call(target, (rest, *others, *states), type_args=tuple(map(as_dim, dims)), ty=ret), ret
        )

    def step(states: Sequence[Expr]) -> list[Expr]:
        """What is carried after a step."""
        copier.atoms.update(zip((function.params[n] for n in loop.states), states, strict=True))
        out.bindings += copier.copy(Block(loop.code, Tuple(()))).bindings
        return [copier.atom(e) for e in loop.states.values()]

    found = [Var("before", None, t) for t in results]
    more, end = listed(kind.name)
    if loop.up:
        unpack(out, before(carried), found)
        after = step(found[: len(carried)])
    elif given:
        unpack(out, before(step(carried)), found)
        after = [*found[: len(carried)]]
    if given:
        row = pack(out, [*items.kept, *(copier.atom(loop.puts[n]) for n in items.puts)])
        after.append(out.bind("rows", construct(kind, more, (row, found[-1]), giving), giving))
    whole = pack(out, after) if loop.up or given else before(step(carried))
    full = Block(tuple(out.bindings), whole, ret)
    last = Emitter()
    none = [last.bind("rows", construct(kind, end, (), giving), giving)] if given else []
    ended = pack(last, [*carried, *none])
    empty = Block(tuple(last.bindings), ended, ret)
    clauses = (Clause(PConstructor(more, (PVar(item), PVar(rest))), full), Clause(PConstructor(end, ()), empty))
    result = Var("result", None, ret)
    body = Block((Binding(result, Match(data, clauses, True, ret)),), result, ret)
    made = with_own_dims(Function(params, body, ret, dims, ty=target.ty, span=function.span))
    args = (rows, *(call.args[n] for n in shared), *outside, *(call.args[n] for n in loop.states))
    return Fold(made, Call(target, args, call.attrs, tuple(map(as_dim, dims)), ret, call.span), tuple(results))


def packed(types: Sequence[Type]) -> Type:
    """The type of several values as one."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def pack(out: Emitter, values: Sequence[Expr]) -> Expr:
    """Several values as one."""
    if len(values) == 1:
        return values[0]
    ty = packed([type_of(v) for v in values])
    return out.bind("all", Tuple(tuple(values), ty), ty)


def unpack(out: Emitter, value: Expr, parts: Sequence[Var]) -> None:
    """Bind variables to the parts of what `pack` gives."""
    for n, part in enumerate(parts):
        out.bindings.append(Binding(part, value if len(parts) == 1 else Proj(value, n, part.ty)))
