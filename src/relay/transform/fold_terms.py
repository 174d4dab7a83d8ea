"""Folds that put several terms into their accumulator, as folds that put in one.

    foldl(fn (%a, %x) { %a + f(%x) - g(%x) }, ..)        before
    foldl(fn (%a, %x) { %a + (f(%x) - g(%x)) }, ..)      after

What does not depend on the accumulator is put together first, so that it can be made of all items at once (`batching.lists`). Sums come in
another order within an item, extremes have the same bits, and of equal values the same one has the cotangent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, Match, OpRef, PConstructor, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType
from relay.ir.walk import free_vars
from relay.transform.base import Pass
from relay.transform.batching.lists import PUTS, list_form
from relay.transform.blocks import as_block, body_of, is_primitive
from relay.transform.build import op_call, type_of


@record(frozen=True, slots=True)
class FoldTerms(Pass):
    """Put together what the step of a fold puts into its accumulator.

    Before: blocks with named sizes, matches compiled, functions lifted. After: a recursion over a list whose step adds several terms to
    its accumulator, subtracts some, or takes the greatest or least of several, puts one term in, where that makes it a fold that can be
    done item by item.
    """

    name: ClassVar[str] = "fold_terms"

    def __call__(self, module: Module) -> Module:
        made = {n: f for n, old in module.functions.items() if (f := one_term(module, n, old)) is not None}
        return module.with_functions({**module.functions, **made}) if made else module


def one_term(module: Module, name: str, function: Function) -> Function | None:
    """The function of this name as a fold that puts one term into its accumulator; None where it is one already, or cannot be."""
    body = body_of(function)
    if is_primitive(function) or not body.bindings or not isinstance(match := body.bindings[-1].value, Match):
        return None
    full = next((c for c in match.clauses if isinstance(c.pattern, PConstructor) and c.pattern.fields), None)
    if full is None:
        return None
    step = as_block(full.body)
    calls = [(b.var, b.value) for b in step.bindings if isinstance(b.value, Call) and _calls(b.value, name)]
    if len(calls) != 1:
        return None
    (rest, call) = calls[0]
    pairs = zip(function.params, call.args, strict=True)
    changed = [(p, a) for p, a in pairs if a is not p and p is not match.data] or [(rest, step.result)]
    made = step
    for accumulator, result in changed:
        made = _joined(made, accumulator, result)
    if made is step:
        return None
    clauses = tuple(replace(c, body=made) if c is full else c for c in match.clauses)
    whole = replace(body.bindings[-1], value=replace(match, clauses=clauses))
    found = replace(function, body=replace(body, bindings=(*body.bindings[:-1], whole)))
    return found if list_form(module, name, found) is not None else None


def _calls(call: Call, name: str) -> bool:
    return isinstance(call.fn, GlobalVar) and call.fn.name == name


def _joined(step: Block, accumulator: Var, result: Expr) -> Block:
    """The step with one term for the accumulator, or for each of its fields."""
    if not isinstance(accumulator.ty, TupleType):
        return _one(step, {accumulator}, result)
    whole = next((b.value for b in step.bindings if b.var is result), None)
    if not isinstance(whole, Tuple):
        return step
    for n, field in enumerate(whole.fields):
        into = {
            b.var
            for b in step.bindings
            if isinstance(b.value, Proj) and b.value.tuple is accumulator and b.value.index == n
        }
        step = _one(step, into, field)
    return step


@record(frozen=True, slots=True, eq=False)
class _Term:
    """What an operation puts in: ``added`` or subtracted; ``behind``: the accumulator is the first operand."""

    value: Expr
    added: bool
    behind: bool


def _one(step: Block, into: Collection[Var], result: Expr) -> Block:
    """The step with one operation between an accumulator, which these variables stand for, and what it becomes; as it was where that is
    no chain of additions, or of extremes that all have the accumulator on one side."""
    chain = _chain(step, into, result)
    if chain is None:
        return step
    op, accumulator, spine, terms = chain
    bindings: list[Binding] = []

    def put(name: str, *args: Expr) -> Var:
        value = op_call(name, args)
        bindings.append(Binding(Var("term", None, value.ty), value))
        return bindings[-1].var

    term = terms[0].value if terms[0].added else put("negative", terms[0].value)
    for t in terms[1:]:
        pair = (term, t.value) if t.behind else (t.value, term)
        term = put(op if t.added else "subtract", *pair)
    outer = spine[0]
    order = (accumulator, term) if terms[0].behind else (term, accumulator)
    bindings.append(replace(outer, value=op_call(op, order, span=outer.value.span)))
    out: list[Binding] = []
    for b in step.bindings:
        out += bindings if b is outer else [] if b in spine else [b]
    return replace(step, bindings=tuple(out))


def _chain(
    step: Block, into: Collection[Var], result: Expr
) -> tuple[str, Var, Sequence[Binding], Sequence[_Term]] | None:
    """The operation, the accumulator, the bindings from the result down to it, and what these put in, first to last."""
    made = {b.var: b for b in step.bindings}
    uses = Counter(v for b in step.bindings for v in free_vars(b.value))
    uses.update(free_vars(step.result))
    above = set(into)  # what depends on the accumulator
    for b in step.bindings:
        if not above.isdisjoint(free_vars(b.value)):
            above.add(b.var)
    spine: list[Binding] = []
    terms: list[_Term] = []
    op: str | None = None
    here = result
    while here not in into:
        binding = made.get(here) if isinstance(here, Var) else None
        value = None if binding is None else binding.value
        if binding is None or not isinstance(value, Call) or not isinstance(value.fn, OpRef) or len(value.args) != 2:
            return None
        name = value.fn.name
        added = name != "subtract"
        kind = name if added else "add"
        first, second = (a in above for a in value.args)
        if (
            kind not in PUTS
            or op not in (None, kind)
            or first == second
            or not (added or (first and _signed(binding.var)))
        ):
            return None
        if spine and uses[binding.var] != 1:
            return None
        op = kind
        spine.append(binding)
        # Sums are the same whichever operand comes first.
        terms.append(_Term(value.args[first], added, first or kind == "add"))
        here = value.args[second]
    if (
        op is None
        or not isinstance(here, Var)
        or (len(terms) == 1 and terms[0].added)
        or len({t.behind for t in terms}) > 1
    ):
        return None
    return op, here, spine, terms[::-1]


def _signed(var: Var) -> bool:
    ty = type_of(var)
    return isinstance(ty, TensorType) and isinstance(ty.dtype, str) and ty.dtype.startswith(("int", "float", "bfloat"))
