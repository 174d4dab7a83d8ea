"""Functions over lists that work item by item: maps, and folds that add.

After specialisation ``map(fn (%k) { ... }, %kids)`` and ``foldl(fn (%a, %s) { %a + ... }, %zero, %states)`` are recursive functions of
their own. What they do to one item can be done to all items at once, and adding up is the sum of a segment, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Match,
    OpRef,
    PConstructor,
    Proj,
    PVar,
    Var,
)
from relay.ir.module import Module
from relay.ir.types import AdtType, TensorType, Type
from relay.ir.walk import free_vars
from relay.transform.blocks import as_block, body_of, is_primitive
from relay.transform.copying import Copier, solve_dims


@dataclass(frozen=True, slots=True)
class Layout:
    """A list-like type: the tag of the constructor with an item and the rest, and which of its fields they are."""

    cons: int
    head: int
    tail: int


@dataclass(frozen=True, slots=True, eq=False)
class ListForm:
    """A function of a list (parameter ``data``), item by item: ``code`` on ``item`` gives ``value``.

    A map gives the list of the values. A fold gives ``start`` and the values added to it, first to last, or (``backwards``) last to
    first; ``start`` is parameter ``accumulator``, or what ``before`` computes.
    """

    data: int
    item: Var | None
    layout: Layout
    code: tuple[Binding, ...]
    value: Expr
    is_map: bool
    accumulator: int | None = None
    before: tuple[Binding, ...] = ()
    start: Expr | None = None
    backwards: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A call of such a function in the terms of the caller: what is done to each item of ``source`` (which may be known to be
    ``empty``)."""

    source: Expr
    item: Var | None
    layout: Layout
    code: tuple[Binding, ...]
    value: Expr
    start: Expr | None
    backwards: bool
    empty: bool = False

    def parts(self) -> set[Var]:
        """The variables that stand for an item, or for a part of one."""
        out = set() if self.item is None else {self.item}
        for binding in self.code:
            if isinstance(binding.value, Proj) and binding.value.tuple in out:
                out.add(binding.var)
        return out


def layout_of(module: Module, ty: Type | None) -> Layout | None:
    """The layout of a list-like type; None for any other type."""
    if not isinstance(ty, AdtType) or ty.name not in module.types:
        return None
    constructors = module.types[ty.name].constructors
    full = [(tag, c) for tag, c in enumerate(constructors) if c.fields]
    if len(constructors) != 2 or len(full) != 1 or len(full[0][1].fields) != 2:
        return None
    tag, constructor = full[0]
    rest = [n for n, f in enumerate(constructor.fields) if isinstance(f, AdtType) and f.name == ty.name]
    return Layout(tag, 1 - rest[0], rest[0]) if len(rest) == 1 else None


def list_form(module: Module, name: str, function: Function) -> ListForm | None:
    """See a function as a map or a fold; None where it is neither."""
    if is_primitive(function):
        return None
    body = body_of(function)
    if len(body.bindings) != 1 or not isinstance(match := body.bindings[0].value, Match):
        return None
    data = next((n for n, p in enumerate(function.params) if p is match.data), None)
    layout = layout_of(module, match.data.ty)
    if body.result is not body.bindings[0].var or data is None or layout is None or len(match.clauses) != 2:
        return None
    full = empty = None
    for clause in match.clauses:
        if isinstance(clause.pattern, PConstructor) and clause.pattern.fields:
            full = clause
        else:
            empty = clause
    if full is None or empty is None or not isinstance(full.pattern, PConstructor):
        return None
    fields = [p.var if isinstance(p, PVar) else None for p in full.pattern.fields]
    found = _recursion(name, function, as_block(full.body), data, fields[layout.tail])
    if found is None:
        return None
    call, left, changed = found
    item, step = fields[layout.head], as_block(full.body)
    result = next((b for b in left if b.var is step.result), None)
    rest = tuple(b for b in left if b is not result)
    last = as_block(empty.body)
    if not changed and result is not None and isinstance(result.value, Call):
        value = result.value
        made = layout_of(module, result.var.ty)
        if isinstance(value.fn, ConstructorRef) and (made is None or not value.args):
            return None  # another type's constructor, or the empty list whatever the rest is
        if isinstance(value.fn, ConstructorRef) and made is not None and value.args[made.tail] is call.var:
            if _mentions(rest, call.var) or value.args[made.head] is call.var or not _is_empty(last):
                return None
            return ListForm(data, item, layout, rest, value.args[made.head], True)
        added = _added(value, call.var)
        if added is None or _mentions(rest, call.var):
            return None
        return ListForm(data, item, layout, rest, added, False, None, last.bindings, last.result, True)
    if len(changed) == 1 and step.result is call.var:
        (at,) = changed
        accumulator = function.params[at]
        assert isinstance(call.value, Call)
        summed = next((b for b in left if b.var is call.value.args[at]), None)
        rest = tuple(b for b in left if b is not summed)
        if summed is None or not isinstance(summed.value, Call) or last.bindings or last.result is not accumulator:
            return None
        added = _added(summed.value, accumulator)
        if added is None or _mentions(rest, accumulator) or _mentions(rest, summed.var):
            return None
        return ListForm(data, item, layout, rest, added, False, at)
    return None


def _recursion(
    name: str, function: Function, step: Block, data: int, tail: Var | None
) -> tuple[Binding, list[Binding], list[int]] | None:
    """The one call of itself on the rest of the list, the other bindings, and the parameters that it changes."""
    calls = [b for b in step.bindings if isinstance(b.value, Call) and _is_global(b.value.fn, name)]
    if len(calls) != 1 or tail is None:
        return None
    (binding,) = calls
    call = binding.value
    assert isinstance(call, Call)
    left = [b for b in step.bindings if b is not binding]
    if call.args[data] is not tail or _mentions(left, tail) or len(call.args) != len(function.params):
        return None
    changed = [n for n, (p, a) in enumerate(zip(function.params, call.args, strict=True)) if n != data and a is not p]
    return binding, left, changed


def _is_global(fn: Expr, name: str) -> bool:
    return isinstance(fn, GlobalVar) and fn.name == name


def _added(value: Call, to: Var) -> Expr | None:
    """What ``value`` adds to a variable, if that is what it does."""
    if not isinstance(value.fn, OpRef) or value.fn.name != "add" or len(value.args) != 2:
        return None
    a, b = value.args
    other = b if a is to else a if b is to else None
    same = other is not None and other is not to and other.ty == to.ty == value.ty
    return other if same and isinstance(to.ty, TensorType) else None


def _is_empty(block: Block) -> bool:
    """Whether a block gives a constructor without fields."""
    if isinstance(block.result, ConstructorRef):
        return not block.bindings
    if len(block.bindings) != 1 or block.result is not block.bindings[0].var:
        return False
    value = block.bindings[0].value
    return isinstance(value, Call) and isinstance(value.fn, ConstructorRef) and not value.args


def _mentions(bindings: Sequence[Binding], var: Var) -> bool:
    return any(var in free_vars(b.value) for b in bindings)


def items_of(form: ListForm, function: Function, call: Call) -> tuple[Items, tuple[Binding, ...]] | None:
    """A call of a list function in the caller's terms, and what has to be computed before it; None where sizes are unknown."""
    dims = solve_dims(function, call, [a.ty for a in call.args])
    if dims is None:
        return None
    atoms: dict[Var, Expr] = {
        p: a for n, (p, a) in enumerate(zip(function.params, call.args, strict=True)) if n != form.data
    }
    copier = Copier(atoms, dict(dims), own_dims=True)
    before = copier.copy(Block(form.before, form.start if form.start is not None else form.value))
    item = copier.bind(form.item) if form.item is not None else None
    code = copier.copy(Block(form.code, form.value))
    start = None if form.is_map else call.args[form.accumulator] if form.accumulator is not None else before.result
    made = Items(call.args[form.data], item, form.layout, code.bindings, code.result, start, form.backwards)
    return made, before.bindings
