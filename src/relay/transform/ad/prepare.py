"""Bringing the loops of a program into the form whose gradient is a loop too (`loop_gradient`)."""

from __future__ import annotations

from collections.abc import Iterator

from relay.ir.dim import ANY, DimVar
from relay.ir.effects import CHECK_EQUAL
from relay.ir.expr import Call, Expr, Function, Grad, OpRef, Var
from relay.ir.graph import components
from relay.ir.module import Module, reachable
from relay.ir.retype import substitute_types
from relay.ir.walk import post_order
from relay.transform.ad.chosen_numbers import ChosenNumbers
from relay.transform.ad.one_call import one_call
from relay.transform.ad.terms import tuple_of
from relay.transform.base import after
from relay.transform.batching.structure import BatchStructure
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.cse import CommonSubexpressions
from relay.transform.dead_code import DeadCode, DeadFunctions
from relay.transform.dims import DimUses
from relay.transform.distribute import DistributeLoops
from relay.transform.fix_invariants import FixInvariants
from relay.transform.fold_cases import FoldCases
from relay.transform.fold_maps import FoldMaps
from relay.transform.fold_terms import FoldTerms
from relay.transform.hoist import HoistOverTime
from relay.transform.inline import Inline
from relay.transform.lambda_lift import LambdaLift
from relay.transform.match_trees import CompileMatch
from relay.transform.merge_dims import MergeDims
from relay.transform.name_dims import NameDims
from relay.transform.shared_sizes import ShareSizes
from relay.transform.simplify import Simplify
from relay.transform.specialise import Specialise
from relay.transform.stack_items import StackItems
from relay.transform.uses import ClosureUses, globals_used


def leads_to_recursion(module: Module) -> bool:
    """Whether recursion, of a function or of a closure, is reached from a function with ``grad`` in it; of modules that are monomorphic
    up to dims."""
    if not all(isinstance(p, DimVar) for f in module.functions.values() for p in f.type_params):
        return False
    roots = [
        n for n, f in module.functions.items() if any(isinstance(e, Grad) and not e.forward for e in post_order(f))
    ]
    functions = {n: module.functions[n] for n in reachable(module.functions, roots)}
    names = {n: globals_used(f) for n, f in functions.items()}
    if any(len(group) > 1 or group[0] in names[group[0]] for group in components(names)):
        return True
    closures = ClosureUses()
    for function in functions.values():
        if not is_primitive(function):
            closures.add(body_of(function))
    return bool(closures.recursive)


def goes_by_level(module: Module) -> bool:
    """Whether some function goes through a structure level by level."""
    return any(
        isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and b.value.fn.name == "rows.linearise"
        for f in module.functions.values()
        if not is_primitive(f)
        for b in all_bindings(body_of(f))
    )


def with_loops(module: Module, entries: tuple[str, ...] | str, levels: bool) -> Module:
    """The module after the passes by which functions meet those that they are given, so that a recursion over time is a loop of
    tensors, and what does not depend on its state is computed in front of it. ``levels``: recursion over a structure becomes a loop
    over its levels too."""
    met = _met(module, entries)
    return _hoisted(_by_level(met, entries, together=False) if levels else met, entries)


def forms_by_level(module: Module, entries: tuple[str, ...] | str) -> Iterator[tuple[Module, bool]]:
    """The module `with_loops` over levels, in the forms that are worth trying, best first: with folds over lists as ones over the rows of
    their items (whether that is so is said beside it), with the levels of all structures that a function goes through at once, and with
    those of each."""
    met = _met(module, entries)
    for together in (True, False):
        levels = _by_level(met, entries, together)
        rows = StackItems(True)(levels) if together else levels
        if rows is not levels:
            yield _hoisted(rows, entries), True
        yield _hoisted(levels, entries), False


def _met(module: Module, entries: tuple[str, ...] | str) -> Module:
    """Functions that have met what they are given."""
    dead, inline = DeadFunctions(entries), Inline(entries=entries)
    return after(module, (
        inline, CompileMatch(), LambdaLift(), dead, MergeDims(entries), Specialise(), inline, dead, FixInvariants(), dead,
        Inline(max_bindings=60, entries=entries), DeadCode(checked=False), MergeDims(entries), ShareSizes(entries),
        NameDims(), Simplify(), CommonSubexpressions(), DeadCode(), ChosenNumbers(entries), DeadCode(),
    ))  # fmt: skip


def _by_level(module: Module, entries: tuple[str, ...] | str, together: bool) -> Module:
    dead = DeadFunctions(entries)
    batch = BatchStructure(values=False, together=together)
    return after(module, (FoldCases(), FoldTerms(), FoldMaps(), dead, batch, dead))


def _hoisted(module: Module, entries: tuple[str, ...] | str) -> Module:
    """Loops with what does not depend on their states in front of them."""
    dead = DeadFunctions(entries)
    module = after(
        module, (DistributeLoops(at_once=True), HoistOverTime(True, entries), dead, Inline(entries=entries), DeadCode())
    )
    return module.with_functions({n: one_call(n, _unnamed(f)) for n, f in module.functions.items()})


def _unnamed(function: Function) -> Function:
    """The function without the names that `NameDims` has given sizes, and the checks of these: differentiation makes new types, in
    which that pass finds them again. Names that attributes mention stay."""
    if is_primitive(function):
        return function
    uses = DimUses()
    found: set[DimVar] = set()
    kept: set[DimVar] = set()
    for v in (*function.params, *(b.var for b in all_bindings(body_of(function)))):
        found.update(d for d in uses.of_type(v.ty) if d.gradual)
    for b in all_bindings(body_of(function)):
        if not _is_check(b.value):
            kept.update(uses.of_value(b.value))
    # Its own parameters it is called at: those of sizes that a recursion shares stand for `?` too.
    dropped = found - kept - {p for p in function.type_params if isinstance(p, DimVar)}
    if not dropped:
        return function

    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        if _is_check(value) and any(d in dropped for d in uses.of_value(value)):
            return tuple_of(())
        return value

    new = substitute_types(Forward(visit).function(function), dict.fromkeys(dropped, ANY))
    assert isinstance(new, Function)
    return new


def _is_check(value: Expr) -> bool:
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name == CHECK_EQUAL
