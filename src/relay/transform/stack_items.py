"""Folds over lists of tensors as loops over the rows of a tensor.

``go(%acc, %xs)``, which goes on with ``go(f(%acc, %x), %rest)`` for the item ``%x`` of a list, finds each item where it lies, and what it
computes from items alone it computes for each. Of items that stand in rows that is one operation on all (`HoistOverTime`), and loops that
count are kernels where they can be:

    go(%acc, %xs): let %rows = rows.linearise(%xs); go__rows(0, %end, %rows, %acc)
    go__rows(%t, %end, %rows, %acc): if (%t < %end) { let %x = %rows[%t]; go__rows(%t + 1, %end, %rows, f(%acc, %x)) } else { %acc }
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import Binding, Block, Call, Function, GlobalVar, If, Proj, PVar, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, mentions_any
from relay.ir.walk import free_vars
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.batching.clauses import Structural
from relay.transform.batching.decisions import Clause
from relay.transform.batching.describe import ListAt, Tables, Writer
from relay.transform.batching.levels import INDEX, SCALAR, fresh, integer, param
from relay.transform.batching.lifted import Emitter, with_rows
from relay.transform.blocks import as_block
from relay.transform.build import op_call, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses, typical_elements
from relay.transform.fix_invariants import self_calls
from relay.transform.function_types import unused
from relay.transform.list_walks import ListWalk, list_walk

# Items of more elements are work enough each: rows of them would be a copy that saves nothing.
_MANY = 1 << 14
# Matrices of fewer elements are read for an item in no more time than the copy of a list takes (20 items by 32 x 32: 7.6 us, 7.0 where they
# are; by 100 x 100: 14.5 and 19.3).
_LITTLE = 1 << 12


@record(frozen=True, slots=True)
class StackItems(Pass):
    """Copy the items of lists to the rows of tensors, where a fold multiplies what follows from them alone by matrices.

    Before: blocks with named sizes, functions lifted, monomorphic up to dims. After: a function that calls itself on the rest of a list of
    tensors (or of tuples of these), once and whatever the item is, copies all items, and hands them on to a function beside it that
    counts. Others gain nothing, but loops that are to be ``differentiated`` do: one over rows has a gradient that is a loop, too.
    """

    differentiated: bool = False
    name: ClassVar[str] = "stack_items"

    def __call__(self, module: Module) -> Module:
        table = AccessTable()
        made: dict[str, Function] = {}
        for name, function in module.functions.items():
            walk = list_walk(module, name, function)
            items = None if walk is None else _items(function, walk)
            at = None if walk is None or items is None else _goes_on(name, function, walk)
            if walk is None or items is None or at is None:
                continue
            last = at == len(as_block(walk.full.body).bindings) - 1
            if last if self.differentiated else _multiplies_items(function, walk, at, table):
                loop = unused(f"{name}__rows", {*module.functions, *made})
                target, made[loop] = _loop(function, walk, at, items, loop)
                made[name] = _stacking(function, walk, items, target)
        return module.with_functions({**module.functions, **made}) if made else module


def _items(function: Function, walk: ListWalk) -> tuple[TensorType, ...] | None:
    """The tensors of an item that is one or a tuple of them, none of them large, and of sizes that another argument says; None of others.
    (Sizes that stand in the list alone are not known before an item is looked at, and those named for a ``?`` differ.)"""
    ty = type_of(item.var) if isinstance(item := walk.pattern.fields[walk.layout.head], PVar) else None
    found = ty.fields if isinstance(ty, TupleType) else (ty,)
    if not found or not all(isinstance(t, TensorType) and isinstance(t.shape, tuple) for t in found):
        return None
    tensors = cast("tuple[TensorType, ...]", found)
    uses = DimUses()
    known = {v for p in function.params if isinstance(p.ty, TensorType) for v in uses.of_type(p.ty)}
    if not known.issuperset(v for t in tensors for v in uses.of_type(t)):
        return None
    return None if any(map(mentions_any, tensors)) or max(map(typical_elements, tensors)) > _MANY else tensors


def _goes_on(name: str, function: Function, walk: ListWalk) -> int | None:
    """Where after an item, whatever it is, the function goes on with the rest of the list, once; None where it does not."""
    calls = self_calls(name, function)
    found = [n for n, b in enumerate(as_block(walk.full.body).bindings) if any(b.value is c for c in calls)]
    return found[0] if len(calls) == len(found) == 1 else None


def _multiplies_items(function: Function, walk: ListWalk, at: int, table: AccessTable) -> bool:
    """Whether what follows from an item alone is multiplied by a matrix that is worth it; the function goes on at step ``at``."""
    item, step = walk.pattern.fields[walk.layout.head], as_block(walk.full.body).bindings
    assert isinstance(item, PVar)
    call = cast(Call, step[at].value)
    waiting = {step[at].var, *(p for n, p in enumerate(function.params) if n != walk.at and call.args[n] is not p)}
    items = {item.var}
    for binding in (*walk.head, *step):
        value, read = binding.value, free_vars(binding.value)
        if binding.var in waiting or not waiting.isdisjoint(read):
            waiting.add(binding.var)
        elif not items.isdisjoint(read):
            access = table.of(value) if isinstance(value, Call) else None
            if isinstance(value, Call) and access is not None and access.kind == "contraction":
                shared = [a for a in value.args if not (isinstance(a, Var) and a in items)]
                if any(typical_elements(type_of(a)) >= _LITTLE for a in shared):
                    return True
            items.add(binding.var)
    return False


def _stacking(function: Function, walk: ListWalk, items: tuple[TensorType, ...], loop: GlobalVar) -> Function:
    """The function that copies the items, and calls the ``loop``."""
    out, rows = Emitter(), fresh("rows")
    spec, sizes = _description(walk, items)
    stacked = [with_rows(t, rows) for t in items]
    # The depth, where levels begin, the roots; where the list's items begin, and whose they are.
    shapes = ((), (fresh("levels"), fresh("clauses")), (fresh("nodes"),), (fresh("ends"),), (rows,))
    tables = [TensorType(s, INDEX) for s in shapes]
    found = TupleType((*tables, *stacked))
    made = out.op("rows.linearise", (function.params[walk.at],), found, "walk", spec=spec, sizes=sizes)
    given = [out.bind("items", Proj(made, len(tables) + n, t), t) for n, t in enumerate(stacked)]
    shape = op_call("shape_of", (given[0],), MappingProxyType({"dtype": INDEX}))
    end = out.op("take", (out.bind("shape", shape, type_of(shape)), integer(0)), SCALAR, "end", axis=0)
    args = (integer(0), end, *given, *(p for n, p in enumerate(function.params) if n != walk.at))
    dims = (*(as_dim(cast(DimVar, d)) for d in function.type_params), rows)
    ret = type_of(walk.whole.var)
    answer = out.bind("answer", Call(loop, args, type_args=dims, ty=ret), ret)
    return replace(function, body=Block(tuple(out.bindings), answer, ret))


def _description(walk: ListWalk, items: tuple[TensorType, ...]) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    """The walk through the items of a list in order, and the sizes that it mentions."""
    item = walk.pattern.fields[walk.layout.head]
    single = isinstance(item, PVar) and isinstance(item.var.ty, TensorType)
    payloads = [(() if single else (n,), t) for n, t in enumerate(items)]
    nothing = Clause(0, (), Tuple(()), {}, {})
    writer = Writer()
    tables = [Tables([ListAt((), walk.layout, 1)], []), Tables([], payloads)]
    spec = writer.spec([Structural("", 0, TupleType(()), nothing)], [nothing], tables)
    return spec, tuple(writer.sizes)


def _loop(
    function: Function, walk: ListWalk, turn: int, items: tuple[TensorType, ...], name: str
) -> tuple[GlobalVar, Function]:
    """The function that goes through the rows, of this name; it goes on at step ``turn``."""
    copier = Copier(own_dims=True)
    others = [copier.bind(p) for n, p in enumerate(function.params) if n != walk.at]
    dims = [cast(DimVar, as_var(cast(Dim, copier.dim(cast(DimVar, d))))) for d in function.type_params]
    rows = DimVar("rows")
    shapes = [cast(TensorType, copier.type(t)) for t in items]
    stacked = [with_rows(t, as_dim(rows)) for t in shapes]
    at, end = param("at", SCALAR), param("end", SCALAR)
    given = [param("items", t) for t in stacked]
    params = (at, end, *given, *others)
    ret = cast(Type, copier.type(type_of(walk.whole.var)))
    type_params = (*dims, rows)
    target = GlobalVar(name, FuncType(tuple(type_of(p) for p in params), ret, type_params))
    head = copier.copy(Block(walk.head, walk.whole.var)).bindings
    # An item of the list is a row, or a tuple of rows.
    read = [
        Binding(Var("item", None, t), op_call("take", (g, at), MappingProxyType({"axis": 0})))
        for g, t in zip(given, shapes, strict=True)
    ]
    item = walk.pattern.fields[walk.layout.head]
    assert isinstance(item, PVar)
    copier.atoms[item.var] = read[0].var
    if isinstance(item.var.ty, TupleType):
        ty = TupleType(tuple(shapes))
        read.append(Binding(copier.bind(item.var), Tuple(tuple(b.var for b in read), ty)))
    step = as_block(walk.full.body)
    before = copier.copy(Block(step.bindings[:turn], function.params[walk.at])).bindings
    call = cast(Call, step.bindings[turn].value)
    following = op_call("add", (at, integer(1)))
    following_at = Var("next", None, SCALAR)
    args = (following_at, end, *given, *(copier.atom(a) for n, a in enumerate(call.args) if n != walk.at))
    goes_on = Call(target, args, call.attrs, tuple(map(as_dim, type_params)), ret, call.span)
    again = Binding(copier.bind(step.bindings[turn].var), goes_on)
    behind = copier.copy(replace(step, bindings=step.bindings[turn + 1 :]))
    then = (*read, *before, Binding(following_at, following), again, *behind.bindings)
    more = Var("more", None, TensorType((), "bool"))
    whole = Var("whole", None, ret)
    branch = If(more, Block(then, behind.result, ret), copier.copy(as_block(walk.empty.body)), ret)
    bindings = (*head, Binding(more, op_call("less", (at, end))), Binding(whole, branch))
    body = Block(bindings, whole, ret)
    return target, Function(params, body, ret, type_params, ty=target.ty, span=function.span)
