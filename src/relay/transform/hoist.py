"""Hoisting over time: what a recursion over a sequence computes from its input alone is computed for all steps at once.

A recurrent network reads ``x[t]``, multiplies it by weights, and combines the product with the state. The product does not need
the state: as a matrix product over all steps it reads the weights once, where the loop would read them in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.effects import Effect
from relay.ir.expr import Attr, Binding, Block, Call, Constant, Expr, Function, GlobalVar, OpRef, Proj, Tuple, Var
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, is_integer
from relay.op import registry
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, all_blocks, body_of, nested_blocks, operands
from relay.transform.build import op_call, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.failing import may_fail
from relay.transform.first_iteration import Turn, guarded, turns
from relay.transform.fix_invariants import Invariants, invariants, self_calls
from relay.transform.inline import inlined
from relay.transform.rerun_loops import Rerun, Reruns
from relay.transform.rows import Lifting
from relay.transform.steepness import Steepness
from relay.transform.uses import globals_used, needed
from relay.transform.visited_rows import Callers, CallSites, taken_row, visits_all
from relay.typing.effects import Effects


@record(frozen=True, slots=True)
class HoistOverTime(Pass):
    """Move out of recursive functions what is the same in all iterations, and what depends on a row ``x[t]`` of a tensor that is
    the same in all, where ``t`` counts (up or down by a constant).

    Before: blocks whose sizes have names. After: a function from which something was hoisted computes it, for all rows, and calls
    ``@f__steps``, which is given the results and reads row ``t`` of them. Only pure operators are moved (they may now be computed
    for a loop that makes no step), from blocks that every further iteration runs through, and rows only together with a product or
    a reduction: reading elements costs as much in the loop. A loop that another one runs again and again, for some of the rows each
    time, keeps what it computes of them, unless that leaves the other loop as well (`rerun_loops`): what comes in front of a loop is
    inlined in the recursive functions that call it. What may fail, and what is to be ``differentiated`` and whose slopes may be
    infinite (it has no gradient where it would not be computed), is moved together with the conditions that it stands behind, and of
    rows only where the loop comes to all of them. ``entries``: the functions that calls from elsewhere begin with.
    """

    differentiated: bool = False
    entries: tuple[str, ...] | str = ()
    name: ClassVar[str] = "hoist_over_time"

    def __call__(self, module: Module) -> Module:
        effects, table = Effects(module), AccessTable()
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        sites = CallSites(module, entries)
        names = {n: globals_used(f) for n, f in module.functions.items()}
        found = components(names)
        reruns = Reruns(module, sites, found, effects)
        made: dict[str, dict[str, Function]] = {}
        split: dict[str, Function] = {}  # what computes things in front of a loop, and calls it
        for component in found:  # callees first: what leaves a loop may leave those around it
            for name in component:
                function = module.functions[name]
                if len(component) > 1 or name in names[name]:
                    function = inlined(function, {n: split[n] for n in names[name] if n in split})
                made[name] = {name: function}
                shared = invariants(name, function)
                if shared is None:
                    continue
                steps = f"{name}__steps"
                while steps in module.functions:
                    steps += "_"
                hoister = _Hoister(name, function, shared, effects, table, sites, reruns.of(name), self.differentiated)
                made[name] = hoister.run(steps)
                if len(made[name]) > 1 and len(component) == 1:
                    split[name] = made[name][name]
        return module.with_functions({n: f for name in module.functions for n, f in made[name].items()})


@record(frozen=True, slots=True, eq=False)
class _Row:
    """A value that depends on one row: ``all`` is the same for all rows, in front of the loop. ``index`` (of what kind, see
    ``mode``) says which row, in the loop, ``depth`` turns along its way (None: elsewhere)."""

    index: Expr
    rows: Dim
    mode: Attr
    all: Expr
    heavy: bool
    depth: int | None

    def goes_with(self, other: _Row) -> bool:
        return self.index is other.index and self.rows == other.rows and self.mode == other.mode


@record(slots=True, eq=False)
class _Hoister:
    name: str
    function: Function
    shared: Invariants
    effects: Effects
    table: AccessTable
    sites: CallSites
    again: Sequence[Rerun]  # the calls that other loops make
    differentiated: bool  # where steep steps matter
    dims: DimUses = field(default_factory=DimUses)
    made: list[Binding] = field(default_factory=list)  # in front of the loop, in order
    fixed: dict[Var, Expr] = field(default_factory=dict)  # what is the same in all iterations -> in front of the loop
    heavy: set[Var] = field(default_factory=set)  # of those, what takes a kernel to compute
    rows: dict[Var, _Row] = field(default_factory=dict)
    counting: set[Var] = field(default_factory=set)  # integers that move by a constant
    sizes: set[DimVar] = field(default_factory=set)  # that all iterations share
    way: list[Turn] = field(default_factory=list)
    values: Mapping[Var, Expr] = field(default_factory=dict)  # what variables are bound to
    # Of what was made: behind how many turns of the way it has to stay.
    held: dict[Var, int] = field(default_factory=dict)
    # Of the block that is looked at: so many turns from the beginning, None where it is not on the way.
    depth: int | None = None
    steepness: Steepness = field(default_factory=Steepness)

    def run(self, steps: str) -> dict[str, Function]:
        """The functions that take this one's place."""
        self.sizes.update(self.shared.dims)
        for n in self.shared.params:
            param = self.function.params[n]
            self.fixed[param] = param
            self.sizes.update(self.dims.of_type(param.ty))
        self._find_counters()
        body = body_of(self.function)
        running, calling = self._running(body)
        self.way = turns(body, running, calling, self.effects)
        depths = {id(body): 0} | {id(turn.inside): n + 1 for n, turn in enumerate(self.way)}
        self.values = {b.var: b.value for b in all_bindings(body)}
        self.steepness = Steepness(self.values)
        staying: list[Expr] = []
        moved: dict[Var, Expr] = {}
        for block in all_blocks(body):  # outer blocks first: what they bind is known inside
            self.depth = depths.get(id(block))
            for binding in block.bindings:
                if id(block) in running and self._moved(binding):
                    moved[binding.var] = binding.value
                else:
                    staying += operands(binding.value)
            staying.append(block.result)
        chosen: dict[Var, None] = {}
        seen: set[Expr] = set()
        while staying:  # what the loop reads: from in front of it where that is worth it, else computed in it as before
            atom = staying.pop()
            if not isinstance(atom, Var) or atom not in moved or atom in seen:
                continue
            seen.add(atom)
            heavy = atom in self.heavy or (atom in self.rows and self.rows[atom].heavy)
            if (
                heavy
                and isinstance(atom.ty, TensorType)
                and (atom in self.fixed or self._no_more_rows(self.rows[atom]))
            ):
                chosen[atom] = None
            else:
                staying += operands(moved[atom])
        if not chosen:
            return {self.name: self.function}
        return self._split(steps, list(chosen))

    # -- what is what

    def _find_counters(self) -> None:
        calls = self_calls(self.name, self.function)
        steps: dict[Expr, Expr] = {b.var: b.value for b in all_bindings(body_of(self.function))}
        for n, p in enumerate(self.function.params):
            if _is_index(p) and all(n < len(c.args) and _is_step(steps.get(c.args[n]), p) for c in calls):
                self.counting.add(p)

    def _running(self, body: Block) -> tuple[set[int], set[int]]:
        """The blocks with a call of the function itself in them, at any depth, and those with one of their own."""
        order = list(all_blocks(body))
        found, calling = set[int](), set[int]()
        for block in reversed(order):  # inner blocks come after outer ones
            for b in block.bindings:
                inner = nested_blocks(b.value)
                own = isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name == self.name
                if own:
                    calling.add(id(block))
                if own or any(id(i) in found for i in inner):
                    found.add(id(block))
        return found, calling

    def _moved(self, binding: Binding) -> bool:
        """Note what a binding is; whether it need not stay in the loop for its own sake."""
        var, value = binding.var, binding.value
        match value:
            case Proj(tuple=Var() as whole) if whole in self.rows:
                row = self.rows[whole]
                self._row(var, row, self._project(row.all, value.index, var.name), Lifting(row.rows))
                return True
            case Proj(tuple=Var() as whole) if whole in self.fixed:
                self.fixed[var] = self._project(self.fixed[whole], value.index, var.name)
                if whole in self.heavy:
                    self.heavy.add(var)
                return True
            case Tuple():
                return self._tuple(var, value)
            case Call(fn=OpRef()):
                return self._operator(var, value)
            case _:
                return False

    def _tuple(self, var: Var, value: Tuple) -> bool:
        found = [self.rows[f] for f in value.fields if isinstance(f, Var) and f in self.rows]
        if not found or not all(self._is_fixed(f) or f in self.rows for f in value.fields if isinstance(f, Var)):
            return False
        first = found[0]
        if not all(first.goes_with(r) for r in found):
            return False
        made = Lifting(first.rows)
        fields: list[Expr] = []
        for f in value.fields:
            if isinstance(f, Var) and f in self.rows:
                fields.append(self.rows[f].all)
                continue
            ty = type_of(f)
            if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
                return False
            shape: Attr = (first.rows, *ty.shape)
            fields.append(made.emit("broadcast_to", (self._outside(f),), {"shape": shape}))
        whole = Tuple(tuple(fields), TupleType(tuple(type_of(f) for f in fields)))
        self._row(var, replace(first, heavy=any(r.heavy for r in found)), made.bind(var.name, whole), made)
        return True

    def _operator(self, var: Var, call: Call) -> bool:
        assert isinstance(call.fn, OpRef)
        if not registry.exists(call.fn.name) or self.effects.of(call) != Effect.PURE or not self._has_known_sizes(var):
            return False
        if self._counts(var, call):
            return False
        if not all(self._is_fixed(a) or (isinstance(a, Var) and a in self.rows) for a in call.args):
            return self._reads_row(var, call)
        access = self.table.of(call)
        product = access is not None and access.kind in ("contraction", "reduction", "opaque")
        held = may_fail(call) or (self.differentiated and self.steepness.of(call))
        if held and self.depth is None:
            return False
        given = [(n, self.rows[a]) for n, a in enumerate(call.args) if isinstance(a, Var) and a in self.rows]
        if not given:
            if access is None or not (call.args or _is_index(var)):
                return False
            moved = Call(call.fn, tuple(self._outside(a) for a in call.args), call.attrs, (), call.ty, call.span)
            new = Var(var.name, None, var.ty, var.span)
            self.made.append(Binding(new, moved))
            self.fixed[var] = new
            if held and self.depth:
                self.held[new] = self.depth
            inputs = any(isinstance(a, Var) and a in self.heavy for a in call.args)
            if inputs or product or (not access.view and any(_has_axes(a) for a in call.args)):
                self.heavy.add(var)
            return True
        first = given[0][1]
        if not all(first.goes_with(r) for _, r in given) or (held and not self._visits_all(first)):
            return False
        lifting = Lifting(first.rows)
        outside = Call(call.fn, tuple(self._outside(a) for a in call.args), call.attrs, (), call.ty, call.span)
        result = lifting.call(outside, {n: r.all for n, r in given})
        if result is None or not lifting.fits(result, call):
            return False
        self._row(var, replace(first, heavy=product or any(r.heavy for _, r in given)), result, lifting)
        return True

    def _visits_all(self, row: _Row) -> bool:
        """Whether the loop comes to all rows where it is, in each of its calls."""
        calls = self.sites.of(self.name)
        return calls is not None and self.depth is not None and self._comes_to(row, calls, self.depth)

    def _comes_to(self, row: _Row, calls: Sequence[tuple[str, Call]], depth: int) -> bool:
        way = self.way[:depth]
        callers = Callers(self.sites, calls)
        return visits_all(callers, self.name, self.function, self.values, self.shared, way, row.index, row.rows)

    def _no_more_rows(self, row: _Row) -> bool:
        """Whether a value for all rows, computed in front of the loop, is no more work than the loop's own in the long run: where other
        loops run this one, because it comes to all rows each time, or because they need not compute the value again."""
        calls = [(rerun.caller, rerun.call) for rerun in self.again]
        if not calls or (row.depth is not None and self._comes_to(row, calls, row.depth)):
            return True
        read = {v for b in needed(self.made, [row.all]) for v in operands(b.value)} | {row.all}
        given = [n for n, p in enumerate(self.function.params) if p in read]
        return all(rerun.is_fixed(rerun.call.args[n]) for rerun in self.again for n in given)

    def _project(self, whole: Expr, index: int, name: str) -> Var:
        ty = type_of(whole)
        assert isinstance(ty, TupleType)
        var = Var(name, None, ty.fields[index])
        self.made.append(Binding(var, Proj(whole, index, var.ty)))
        return var

    def _row(self, var: Var, like: _Row, all_rows: Expr, made: Lifting) -> None:
        self.made += made.bindings
        self.rows[var] = replace(like, all=all_rows)

    def _is_fixed(self, a: Expr) -> bool:
        return isinstance(a, Constant) or (isinstance(a, Var) and a in self.fixed)

    def _outside(self, a: Expr) -> Expr:
        return self.fixed.get(a, a) if isinstance(a, Var) else a

    def _has_known_sizes(self, var: Var) -> bool:
        """Whether every size in the variable's type is one that all iterations share."""
        return all(d in self.sizes for d in self.dims.of_type(var.ty))

    def _counts(self, var: Var, call: Call) -> bool:
        """Whether this is a counter plus or minus something that is the same in all iterations (or the other way round)."""
        assert isinstance(call.fn, OpRef)
        if call.fn.name in ("add", "subtract") and _is_index(var):
            a, b = call.args
            if any(isinstance(x, Var) and x in self.counting and self._is_fixed(y) for x, y in ((a, b), (b, a))):
                self.counting.add(var)
                return True
        if (
            call.fn.name == "cast"
            and _is_index(var)
            and isinstance(call.args[0], Var)
            and call.args[0] in self.counting
        ):
            self.counting.add(var)
            return True
        return False

    def _reads_row(self, var: Var, call: Call) -> bool:
        """A row of a tensor that is the same in all iterations, at an index that counts."""
        found = taken_row(call)
        if found is None or not self._is_fixed(found[0]):
            return False
        data, index = found
        if not isinstance(index, Var) or index not in self.counting:
            return False
        ty = type_of(data)
        assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
        mode = call.attrs.get("mode", "clip")
        self.rows[var] = _Row(index, ty.shape[0], mode, self._outside(data), False, self.depth)
        return True

    # -- the two functions

    def _split(self, steps: str, chosen: list[Var]) -> dict[str, Function]:
        function = self.function
        given: dict[int, Expr] = {}
        extra: dict[int, Var] = {}
        taken: dict[Var, Var] = {}
        for v in chosen:
            value = self.fixed[v] if v in self.fixed else self.rows[v].all
            given[id(value)] = value
            taken[v] = extra.setdefault(id(value), Var(v.name, type_of(value), type_of(value)))

        ret = _result_type(function)
        own_dims = tuple(p for p in function.type_params if isinstance(p, DimVar))
        target = GlobalVar(
            steps, FuncType(tuple(type_of(p) for p in (*function.params, *extra.values())), ret, own_dims)
        )

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if var in taken and var in self.fixed:
                return taken[var]
            if var in taken:
                row = self.rows[var]
                index = driver.env.get(row.index, row.index) if isinstance(row.index, Var) else row.index
                return op_call("take", (taken[var], index), {"axis": 0, "mode": row.mode}, value.span)
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name == self.name:
                args = (*value.args, *extra.values())
                return Call(target, args, value.attrs, value.type_args, value.ty, value.span)
            return value

        driver = Forward(visit)
        loop = body_of(driver.function(function))
        copier = Copier(own_dims=True)
        dims = [copier.dim(p) for p in own_dims]
        type_params = tuple(p for d in dims if d is not None and (p := as_var(d)) is not None)
        params = tuple(copier.bind(p) for p in (*function.params, *extra.values()))
        copied = copier.type(ret)
        assert copied is not None
        ty = FuncType(tuple(type_of(p) for p in params), copied, type_params)
        made = replace(
            function,
            params=params,
            body=copier.copy(loop),
            ret_type=copied,
            type_params=type_params,
            constraints=(),
            ty=ty,
        )
        args = (*function.params, *given.values())
        result = Var("result", None, ret)
        call = Call(target, args, type_args=tuple(map(as_dim, own_dims)), ty=ret)
        made_before = guarded(self.way, needed(self.made, given.values()), self.held, [*given.values()])
        bindings = (*made_before, Binding(result, call))
        return {self.name: replace(function, body=Block(bindings, result, ret)), steps: made}


def _result_type(function: Function) -> Type:
    ret = function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type
    assert ret is not None, "hoisting needs a typed program"
    return ret


def _has_axes(e: Expr) -> bool:
    ty = type_of(e)
    return isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and len(ty.shape) > 0


def _is_index(v: Var) -> bool:
    return isinstance(v.ty, TensorType) and v.ty.shape == () and isinstance(v.ty.dtype, str) and is_integer(v.ty.dtype)


def _is_step(value: Expr | None, p: Var) -> bool:
    """Whether a value is the parameter plus or minus a constant other than 0."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in ("add", "subtract"):
        return False
    a, b = value.args
    if value.fn.name == "add" and isinstance(a, Constant):
        a, b = b, a
    return a is p and isinstance(b, Constant) and bool(np.any(b.data != 0))
