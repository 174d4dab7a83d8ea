"""Functions over lists that work item by item: maps, and folds that add, or take the greater or the less.

After specialisation ``map(fn (%k) { ... }, %kids)`` and ``foldl(fn (%a, %s) { %a + ... }, %zero, %states)`` are recursive functions of
their own. What they do to one item can be done to all items at once, and adding up is the sum of a segment, in the same order. A fold
may have several accumulators, the fields of a tuple.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import AdtType, TensorType, TupleType, Type
from relay.ir.walk import free_vars
from relay.transform.blocks import as_block, body_of, is_primitive, nested_blocks
from relay.transform.copying import Copier, solve_dims


@record(frozen=True, slots=True)
class Layout:
    """A list-like type: the tag of the constructor with an item and the rest, and which of its fields they are."""

    cons: int
    head: int
    tail: int


@record(frozen=True, slots=True)
class Put:
    """How a value is put into an accumulator: by this operator (`PUTS`), of which the accumulator is the first operand or the second.
    (Of equal values `maximum` hands its cotangent to the second.)"""

    op: str
    first: bool


# What folds do with an accumulator and an item's value.
PUTS = ("add", "maximum", "minimum")


@record(frozen=True, slots=True, eq=False)
class ListForm:
    """A function of a list (parameter ``data``), item by item: ``code`` on ``item`` gives ``value``.

    A map gives the list of the values. A fold gives ``start`` with the values put in, first to last, or (``backwards``) last to
    first; ``start`` is parameter ``accumulator``, or what ``before`` computes. ``puts`` says how, for the tensor that the value is or
    for each field of the tuple.
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
    puts: tuple[Put, ...] = ()


@record(frozen=True, slots=True, eq=False)
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
    puts: tuple[Put, ...] = ()
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
    if not body.bindings or not isinstance(match := body.bindings[-1].value, Match):
        return None
    # What does not depend on the list, as a start that was found to be constant.
    head, whole = body.bindings[:-1], body.bindings[-1].var
    data = next((n for n, p in enumerate(function.params) if p is match.data), None)
    layout = layout_of(module, match.data.ty)
    if body.result is not whole or data is None or layout is None or len(match.clauses) != 2:
        return None
    if _mentions(head, function.params[data]) or any(nested_blocks(b.value) for b in head):
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
    last = as_block(empty.body)
    if not changed:
        result = next((b for b in left if b.var is step.result), None)
        made = None if result is None else layout_of(module, result.var.ty)
        if result is not None and isinstance(result.value, Call) and isinstance(result.value.fn, ConstructorRef):
            value, rest = result.value, tuple(b for b in left if b is not result)
            if made is None or not value.args:
                return None  # another type's constructor, or the empty list whatever the rest is
            if value.args[made.tail] is not call.var or value.args[made.head] is call.var:
                return None
            if _mentions(rest, call.var) or not _is_empty(last):
                return None
            return ListForm(data, item, layout, rest, value.args[made.head], True, before=head)
        folded = _folded(left, call.var, step.result)
        if folded is None:
            return None
        start = (*head, *last.bindings)
        return ListForm(
            data, item, layout, folded.code, folded.value, False, None, start, last.result, True, folded.puts
        )
    if len(changed) == 1 and step.result is call.var:
        (at,) = changed
        accumulator = function.params[at]
        assert isinstance(call.value, Call)
        folded = _folded(left, accumulator, call.value.args[at])
        if folded is None or last.bindings or last.result is not accumulator:
            return None
        return ListForm(data, item, layout, folded.code, folded.value, False, at, head, puts=folded.puts)
    return None


@record(frozen=True, slots=True, eq=False)
class _Folded:
    """What one step of a fold does: ``code`` gives the ``value`` that is put into the accumulator."""

    code: tuple[Binding, ...]
    value: Expr
    puts: tuple[Put, ...]


def _folded(step: Sequence[Binding], accumulator: Var, result: Expr) -> _Folded | None:
    """See what bindings do as putting something, which does not depend on it, into an accumulator: a tensor, or a tuple of tensors."""
    made = {b.var: b for b in step}
    fields: dict[Var, int] = {}
    results: Sequence[Expr] = (result,)
    if isinstance(accumulator.ty, TupleType):
        for b in step:
            if isinstance(b.value, Proj) and b.value.tuple is accumulator:
                fields[b.var] = b.value.index
        whole = made.pop(result, None) if isinstance(result, Var) else None
        if whole is None or not isinstance(whole.value, Tuple):
            return None
        results = whole.value.fields
    taken = {accumulator, *fields}
    puts: list[Put] = []
    values: list[Expr] = []
    for n, atom in enumerate(results):
        binding = made.pop(atom, None) if isinstance(atom, Var) else None
        into = {v for v, index in fields.items() if index == n} or {accumulator}
        found = None if binding is None or not isinstance(binding.value, Call) else _put(binding.value, into)
        if binding is None or found is None:
            return None
        taken.add(binding.var)
        puts.append(found[0])
        values.append(found[1])
    code = tuple(b for b in made.values() if b.var not in taken)
    if any(v in taken for v in values) or any(_mentions(code, v) for v in taken):
        return None
    if not isinstance(accumulator.ty, TupleType):
        return _Folded(code, values[0], tuple(puts))
    value = Var("put", None, accumulator.ty)
    return _Folded((*code, Binding(value, Tuple(tuple(values), accumulator.ty))), value, tuple(puts))


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


def _put(value: Call, into: Collection[Var]) -> tuple[Put, Expr] | None:
    """What ``value`` puts into an accumulator, which these variables stand for, and how, if that is what it does."""
    if not isinstance(value.fn, OpRef) or value.fn.name not in PUTS or len(value.args) != 2:
        return None
    a, b = value.args
    for first, to, other in ((True, a, b), (False, b, a)):
        if to in into:
            same = other not in into and other.ty == to.ty == value.ty and isinstance(to.ty, TensorType)
            return (Put(value.fn.name, first), other) if same else None
    return None


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
    source = call.args[form.data]
    made = Items(source, item, form.layout, code.bindings, code.result, start, form.backwards, form.puts)
    return made, before.bindings
