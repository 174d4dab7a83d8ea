"""Choices between numbers in loops, before these are differentiated: both numbers are computed, and one is chosen.

    if (j == 0) { 0 } else { left + take(costs, j - 1) }   ->   where(j == 0, 0, left + take(costs, j - 1))

A kernel of such a loop does so anyway (`relay.lower.recurrence`). As a branch it stands between what the loop looks up and what it makes of
that: rows do not leave the loop, and the cotangent of all that a branch reads is chosen in each step, the whole of it.

A side that is not chosen has a cotangent of zero. So this is for what passes cotangents on as they are, adding, comparing and
looking up: zero times what else an untaken side may hold would be no zero. What may fail does not where it is computed all the same: the
axis that it looks up has elements, because a counter from zero on is below its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import ClassVar

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, DimVar, SymDim, as_dim, as_var, dim_add, dim_bounds, dim_substitute
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    OpRef,
    Proj,
    Tuple,
    Var,
    attrs_key,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, Type, TypeArg, is_float
from relay.op import registry
from relay.plan.graph import te_graph
from relay.te.scalar import Axis, Binary, Cast, Compare, Const, Load, Scalar, Select, Size, Unary, walk
from relay.te.tensor import Placeholder, stage_bodies
from relay.transform.ad.terms import project, tuple_of
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_blocks,
    as_block,
    body_of,
    is_primitive,
    nested_blocks,
    with_nested_blocks,
)
from relay.transform.build import op_call, type_of
from relay.transform.failing import alone, asked_of
from relay.transform.name_dims import named
from relay.transform.uses import call_sites, globals_used

# Both sides together compute so much at most.
_MOST_STEPS = 16
# What is counted up by no more stays within 64 bits for as long as anybody waits.
_GREATEST_STEP = 1 << 16


@record(frozen=True, slots=True)
class ChosenNumbers(Pass):
    """Compute both sides of choices between numbers in functions that call themselves.

    Before: typed blocks, with sizes that have names. After: the same values and gradients, where nothing that is computed more often can
    fail.
    """

    name: ClassVar[str] = "chosen_numbers"
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        recursive = {n for n, f in module.functions.items() if n in globals_used(f)}
        if not any(isinstance(b.value, If) for n in recursive for b in _bindings(module.functions[n])):
            return module
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        facts = _facts(module, entries)
        functions: dict[str, Function] = {}
        for name in recursive:
            function = module.functions[name]
            body = run(_Walk(facts[name].of(function), {}).block(body_of(function), facts[name].filled))
            functions[name] = function if body is function.body else replace(function, body=body)
        return module.with_functions({n: functions.get(n, f) for n, f in module.functions.items()})


def _bindings(function: Function) -> Iterator[Binding]:
    if not is_primitive(function):
        for block in all_blocks(body_of(function)):
            yield from block.bindings


@record(frozen=True, slots=True)
class _Facts:
    """Of a function, in whatever call: the parameters (by position) that are not negative, and the sizes that are not zero."""

    counts: frozenset[int]
    filled: frozenset[DimVar]

    def of(self, function: Function) -> set[Var]:
        return {function.params[n] for n in self.counts}


def _facts(module: Module, entries: Sequence[str]) -> Mapping[str, _Facts]:
    """What all calls of each function have in common: the most that calls, given this, say."""
    everything = {
        n: _Facts(
            frozenset(k for k, p in enumerate(f.params) if p.ty == TensorType((), "int64")),
            frozenset(p for p in f.type_params if isinstance(p, DimVar)),
        )
        for n, f in module.functions.items()
    }
    nothing = _Facts(frozenset(), frozenset())
    _, values = call_sites(module)
    found = {
        n: nothing if n in values or n in entries or is_primitive(module.functions[n]) else e
        for n, e in everything.items()
    }
    while True:
        calls: dict[str, _Facts] = {}
        for name, function in module.functions.items():
            if not is_primitive(function):
                run(
                    _Walk(found[name].of(function), calls, module.functions).block(
                        body_of(function), found[name].filled
                    )
                )
        new = {n: _both(f, calls.get(n, nothing)) for n, f in found.items()}
        if new == found:
            return found
        found = new


def _both(a: _Facts, b: _Facts) -> _Facts:
    return _Facts(a.counts & b.counts, a.filled & b.filled)


@record(slots=True, eq=False)
class _Walk:
    """One function: ``counts`` are variables that are not negative; what is known at calls is noted in ``calls``. Without ``functions``
    choices are made anew, with them the blocks stay."""

    counts: set[Var]
    calls: dict[str, _Facts]
    functions: Mapping[str, Function] | None = None
    sizes: dict[Var, Dim] = field(default_factory=dict)
    # Of comparisons, which size is not zero where it holds, and where it does not.
    says: dict[Var, tuple[DimVar, bool]] = field(default_factory=dict)

    def block(self, block: Block, filled: Set[DimVar]) -> Step[Block]:
        made: list[Binding] = []
        changed = False
        for binding in block.bindings:
            var, value = binding.var, binding.value
            self._note(var, value, filled)
            nested = nested_blocks(value)
            if nested:
                known = [filled] * len(nested)
                if isinstance(value, If) and isinstance(value.cond, Var) and value.cond in self.says:
                    size, holds = self.says[value.cond]
                    known[0 if holds else 1] = filled | {size}
                inner = []
                for b, k in zip(nested, known, strict=True):
                    inner.append((yield self.block(b, k)))
                value = with_nested_blocks(value, inner)
                if self.functions is None and isinstance(value, If) and (chosen := _chosen(var, value, filled)):
                    made += chosen
                    changed = True
                    continue
            changed = changed or value is not binding.value
            made.append(binding if value is binding.value else replace(binding, value=value))
        return replace(block, bindings=tuple(made)) if changed else block

    def _note(self, var: Var, value: Expr, filled: Set[DimVar]) -> None:
        if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and self.functions is not None:
            self._note_call(value.fn.name, value, self.functions[value.fn.name], filled)
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef):
            if self._is_count(value):
                self.counts.add(var)
            return
        args = value.args
        match value.fn.name:
            case "size_of":
                size = value.attrs["size"]
                if isinstance(size, int | SymDim):
                    self.sizes[var] = size
                self.counts.add(var)
            case "add" if self._is_count(args[0]) and isinstance(args[1], Constant) and self._is_count(args[1]):
                if int(args[1].data) <= _GREATEST_STEP:
                    self.counts.add(var)
            case "minimum" if all(map(self._is_count, args)):
                self.counts.add(var)
            case "maximum" if any(map(self._is_count, args)):
                self.counts.add(var)
            case "less" | "greater_equal":
                self._compared(var, args[0], args[1], value.fn.name == "less")
            case "greater" | "less_equal":
                self._compared(var, args[1], args[0], value.fn.name == "greater")
            case _:
                pass

    def _compared(self, var: Var, less: Expr, more: Expr, holds: bool) -> None:
        size = as_var(self.sizes[more]) if isinstance(more, Var) and more in self.sizes else None
        if size is not None and self._is_count(less):
            self.says[var] = size, holds

    def _is_count(self, atom: Expr) -> bool:
        if isinstance(atom, Constant):
            return atom.ty == TensorType((), "int64") and int(atom.data) >= 0
        return isinstance(atom, Var) and atom in self.counts

    def _note_call(self, name: str, call: Call, function: Function, filled: Set[DimVar]) -> None:
        counts = frozenset(n for n, a in enumerate(call.args) if self._is_count(a))
        given = dict(zip(function.type_params, call.type_args, strict=False))
        sizes = frozenset(p for p, d in given.items() if isinstance(p, DimVar) and _is_filled(d, filled))
        said = _Facts(counts, sizes)
        self.calls[name] = _both(self.calls[name], said) if name in self.calls else said


def _is_filled(size: TypeArg, filled: Set[DimVar]) -> bool:
    """Whether a size is at least one where these are."""
    if not isinstance(size, int | SymDim):
        return False
    low, _ = dim_bounds(dim_substitute(size, lambda v: dim_add(as_dim(v), 1) if v in filled else None))
    return low is not None and low >= 1


def _chosen(var: Var, choice: If, filled: Set[DimVar]) -> list[Binding] | None:
    """A choice between numbers as bindings that compute both; None for others."""
    types = var.ty.fields if isinstance(var.ty, TupleType) else (var.ty,)
    sides = [as_block(choice.then), as_block(choice.orelse)]
    if not all(map(_is_number, types)):
        return None
    before = [b for side in sides for b in side.bindings]
    if len(before) > _MOST_STEPS or not all(_is_small(b) and _is_plain(b.value, filled) for b in before):
        return None
    made = list(before)

    def bound(value: Expr) -> Var:
        made.append(Binding(Var("chosen", None, type_of(value)), value))
        return made[-1].var

    def where(a: Expr, b: Expr) -> Expr:
        return a if a is b else op_call("where", (choice.cond, a, b))

    a, b = (side.result for side in sides)
    if isinstance(var.ty, TupleType):
        parts = [bound(where(bound(project(a, n)), bound(project(b, n)))) for n in range(len(types))]
        return [*made, Binding(var, tuple_of(parts))]
    return [*made, Binding(var, where(a, b))]


def _is_small(binding: Binding) -> bool:
    """Whether this is numbers, or a row that a number is looked up in."""
    value, ty = binding.value, binding.var.ty
    if (
        isinstance(ty, TensorType)
        and isinstance(value, Call)
        and isinstance(value.fn, OpRef)
        and value.fn.name == "take"
    ):
        return isinstance(ty.shape, tuple) and len(ty.shape) <= 1 and _is_number(type_of(value.args[1]))
    return all(map(_is_number, ty.fields)) if isinstance(ty, TupleType) else _is_number(ty)


def _is_number(ty: Type | None) -> bool:
    return isinstance(ty, TensorType) and ty.shape == ()


def _is_plain(value: Expr, filled: Set[DimVar]) -> bool:
    """Whether something may be computed where the program would not, and passes a cotangent of zero on as zero."""
    if not isinstance(value, Call):
        return isinstance(value, Tuple | Proj | Var | Constant)
    if not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
        return False
    op = registry.get(value.fn.name)
    if op.effects or op.kind not in ("expression", "view") or op.by_routine or op.shape_mode != "independent":
        return False
    asked = asked_of(value)
    if asked is None or not all(_is_filled(size, filled) for size, _ in asked):
        return False
    key = ("adds and looks up", op, tuple(a.ty for a in value.args), attrs_key(value.attrs))
    return registry.remembered(key, lambda: _adds_and_looks_up(value))


def _adds_and_looks_up(call: Call) -> bool:
    types = [named(a.ty, "unknown") for a in call.args]
    if any(ty is None for ty in types):
        return False
    try:
        graph = te_graph(alone(call, [ty for ty in types if ty is not None]))
    except (RelayError, te.DefinitionError, te.Undetermined):
        return False
    bodies = [b for s in te.stages(graph.outputs) if not isinstance(s, Placeholder) for b in stage_bodies(s)]
    return all(_is_linear(n) for b in bodies for n in walk(b))


def _is_linear(node: Scalar) -> bool:
    match node:
        case Const() | Size() | Axis() | Load() | Compare() | Select() | Cast():
            return True
        case Unary():
            return node.op == "neg" or not is_float(node.dtype)
        case Binary(op="add" | "sub" | "min" | "max" | "and" | "or" | "xor"):
            return True
        case Binary(op="mul"):
            return not is_float(node.dtype)
        case _:
            return False
