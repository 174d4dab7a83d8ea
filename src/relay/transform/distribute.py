"""Loops are distributed: what the next iteration does not need is computed behind the loop, for all iterations.

    go(%i, %h, %out): ...; let %h1 = tanh(nn.dense(%h, %u) + %xs[%i]); go(%i + 1, %h1, [%out, nn.softmax(nn.dense(%h1, %w))])

A recurrent network that gives a word for each state multiplies each by all words' weights, where it is written as people write it: in the
step. But the product goes into rows that are only put behind each other (or added up), so the states alone are put behind each other, and
a second loop, which needs no state, makes the rows. That one leaves nothing of its products in itself (`HoistOverTime`): they are one
product, which reads the weights once.

    go__recurrence(%i, %h, %hs): ...; go__recurrence(%i + 1, %h1, [%hs, %h1])
    go__rest(%j, %hs, %out): go__rest(%j + 1, %hs, [%out, nn.softmax(nn.dense(%hs[%j], %w))])

Sums take the memory of one iteration, and shall not take that of all: the recurrence stops after a block of iterations, what they add is
added, and both go on from there.

    go__blocks(%i, %h, %sum): let (%i1, %h1, %hs) = go__recurrence(%i, %h, []); go__blocks(%i1, %h1, go__rest(0, %hs, %sum))
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, cast

import numpy as np

from relay.ir.dim import ANY, DimVar, as_dim, dim_add
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, If, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, TypeArg
from relay.ir.walk import free_vars
from relay.transform.access import AccessTable
from relay.transform.ad.loop_parts import INDEX, call_of, integer, no_rows, solved
from relay.transform.ad.loop_tapes import Tapes
from relay.transform.ad.loops import constant_step, keeps, row_behind
from relay.transform.ad.terms import Code, project, tuple_of
from relay.transform.base import Pass
from relay.transform.blocks import all_bindings, body_of, on_several_devices
from relay.transform.build import constant, op_call, type_of
from relay.transform.copying import Copier, with_own_dims
from relay.transform.dims import DimUses, told, typical_elements
from relay.transform.function_types import unused
from relay.transform.spread_state import spread
from relay.transform.tail_loops import TailLoop, tail_loop
from relay.transform.uses import use_counts
from relay.typing.effects import Effects

# Matrices of fewer elements are read for a row in no more time than the row takes to be put behind others and read again.
_LITTLE = 1 << 12
# What is kept of an iteration is written and read again, beside which the matrices have to be so many times larger.
_MORE = 4
# So many rows at once keep the multiply-adds busy by themselves.
_ROWS = 16
# The iterations of a block: what is kept of them, and made of that, stays in a cache, and a matrix is read for all of them.
_BLOCK = 128


@record(frozen=True, slots=True)
class DistributeLoops(Pass):
    """Divide loops in the recurrence and what follows from it, where that multiplies what the recurrence computes by matrices.

    Before: typed blocks whose sizes have names, functions lifted. After: the same values. A function that calls itself last, once, and
    puts rows behind a tensor, or adds to one, that it does not read, calls ``@f__recurrence``, which keeps what these are made of, and then
    ``@f__rest``, which makes them. Where it adds, ``@f__blocks`` calls both for some of the iterations, and itself for the next ones; with
    ``at_once``, for all, which takes the memory of all: gradients do anyway. Only pure operations are moved. Programs that use several
    devices are left as they are.
    """

    at_once: bool = False
    name: ClassVar[str] = "distribute_loops"

    def __call__(self, module: Module) -> Module:
        effects, table = Effects(module), AccessTable()
        made: dict[str, Function] = {}
        for name, function in module.functions.items():
            loop = tail_loop(name, function)
            if loop is None or len(loop.call.type_args) != len(function.type_params) or on_several_devices(function):
                continue
            state = spread(loop)
            found = _Distribution(state.loop, effects, table, self.at_once)
            if found.is_worth():
                made.update(found.functions({*module.functions, *made}))
                made[name] = replace(function, body=state.gathered(body_of(made[name])))
        return module.with_functions({**module.functions, **made}) if made else module


@record(frozen=True, slots=True, eq=False)
class _Out:
    """A parameter of which an iteration reads nothing: it puts ``item`` behind it, as a row, or adds it, or takes it off; ``links``: the
    bindings that do so."""

    param: Var
    item: Var
    links: frozenset[Var]
    is_sum: bool


@record(slots=True, eq=False)
class _Distribution:
    """How a loop is divided."""

    loop: TailLoop
    effects: Effects
    table: AccessTable
    at_once: bool
    dims: frozenset[DimVar] = field(init=False)  # what all iterations share
    values: dict[Var, Expr] = field(init=False)
    read: dict[Var, frozenset[Var]] = field(init=False)
    fixed: frozenset[Var] = field(init=False)
    counters: dict[Var, int] = field(init=False)
    outs: dict[int, _Out] = field(init=False)
    later: dict[Var, None] = field(init=False)  # what is computed behind the loop, in order
    kept: list[Var] = field(init=False)  # what that reads of an iteration
    layout: Tapes = field(init=False)
    uses: DimUses = field(default_factory=DimUses)

    def __post_init__(self) -> None:
        loop, function = self.loop, self.loop.function
        pairs = list(zip(function.params, loop.call.args, strict=True))
        self.dims = frozenset(
            d
            for d, a in zip(function.type_params, loop.call.type_args, strict=True)
            if isinstance(d, DimVar) and a == as_dim(d)
        )
        self.layout = Tapes(self.dims)
        self.values = {b.var: b.value for b in (*loop.before, *loop.again)}
        self.read = {v: frozenset(free_vars(value)) for v, value in self.values.items()}
        self.fixed = frozenset(p for p, a in pairs if a is p)
        steps = {p: constant_step(p, a, self.values) for p, a in pairs if a is not p}
        self.counters = {p: step for p, step in steps.items() if step is not None}
        counts = use_counts(Block((*loop.before, *loop.again), Tuple(()), TupleType(())))
        self.outs = {}
        for n, (param, arg) in enumerate(pairs):
            out = self._out(param, arg, counts)
            if out is not None:
                self.outs[n] = out
        if not self.at_once and not self._stops_anywhere():
            self.outs = {n: o for n, o in self.outs.items() if not o.is_sum}
        links = {v for o in self.outs.values() for v in o.links}
        read = {d for v in self.values if v not in links for d in self._sizes(v)} - self.dims
        self.outs = {n: o for n, o in self.outs.items() if read.isdisjoint(self.uses.of_type(o.param.ty))}
        self._choose()

    # -- what can be computed later

    def _out(self, param: Var, arg: Expr, counts: Mapping[Var, int]) -> _Out | None:
        ty, call = type_of(param), self.values.get(arg) if isinstance(arg, Var) else None
        given = self.loop.call.args
        if not isinstance(ty, TensorType) or not isinstance(call, Call) or not isinstance(call.fn, OpRef):
            return None
        assert isinstance(arg, Var)
        if counts[param] != 1 or counts[arg] or param in given or sum(a is arg for a in given) != 1:
            return None
        row = row_behind(param, arg, self.values, counts, self.loop.call)
        if row is not None:
            fields = call.args[0]
            assert isinstance(ty.shape, tuple) and isinstance(fields, Var)
            lasts = keeps(TensorType(ty.shape[1:], ty.dtype), self.dims)
            return _Out(param, row, frozenset((arg, fields)), False) if lasts and isinstance(row, Var) else None
        if call.fn.name in ("add", "subtract") and param in call.args and keeps(ty, self.dims):
            item = call.args[1] if call.args[0] is param else call.args[0]
            if call.fn.name == "subtract" and item is call.args[0]:
                return None
            if isinstance(item, Var) and type_of(item) == ty:
                return _Out(param, item, frozenset((arg,)), True)
        return None

    def _stops_anywhere(self) -> bool:
        """Whether the loop can be left behind any iteration, and gone on with: what the next one begins with has sizes that do not change,
        and its condition can be found twice."""
        pairs = zip(self.loop.function.params, self.loop.call.args, strict=True)
        others = (p for n, (p, a) in enumerate(pairs) if a is not p and n not in self.outs)
        pure = all(self.effects.of(b.value) == Effect.PURE for b in self.loop.before)
        return pure and all(isinstance(type_of(p), TensorType) and keeps(type_of(p), self.dims) for p in others)

    def _sizes(self, v: Var) -> Iterator[DimVar]:
        yield from self.uses.of_value(self.values[v])
        yield from self.uses.of_type(v.ty)

    def _choose(self) -> None:
        """Find what is computed later: as much as the outs are made of, and nothing else is."""
        while True:
            early = self._early()
            self.later = {v: None for v in self.values if v not in early and not self._is_link(v)}
            steady = self._steady()
            pulled = {v for v in self.later if not all(self._is_there(a, steady) for a in self.read[v])}
            used = self._used()
            self.kept = [
                v
                for v in (*self.loop.function.params, *self.values)
                if v in used and v not in self.later and v not in self.fixed and v not in self.counters
            ]
            products = {n: self._products(o, steady) for n, o in self.outs.items()}
            wasted = [n for n, o in self.outs.items() if pulled or not products[n] or not early.isdisjoint(o.links)]
            if not wasted:
                read = sum({v: size for found in products.values() for v, size in found.items()}.values())
                if read < _MORE * sum(typical_elements(type_of(v)) for v in self.kept):
                    self.outs.clear()
                return
            for n in wasted:
                del self.outs[n]

    def _early(self) -> set[Var]:
        """What the next iteration, its condition or the end needs."""
        loop = self.loop
        moved = {loop.call.args[n] for n in self.outs}
        todo: list[Expr] = [loop.cond, *(a for a in loop.call.args if a not in moved)]
        todo += free_vars(loop.leave)
        for v, value in self.values.items():
            if self.effects.of(value) != Effect.PURE:
                todo.append(v)
        early: set[Var] = set()
        while todo:
            atom = todo.pop()
            if isinstance(atom, Var) and atom in self.values and atom not in early:
                early.add(atom)
                todo += self.read[atom]
        return early

    def _used(self) -> set[Var]:
        """What is read later."""
        return {a for v in self.later for a in self.read[v]} | {o.item for o in self.outs.values()}

    def _is_link(self, v: Var) -> bool:
        return any(v in o.links for o in self.outs.values())

    def _steady(self) -> set[Var]:
        """What is the same in all iterations."""
        steady = set(self.fixed)
        for v in self.later:
            if steady.issuperset(self.read[v]):
                steady.add(v)
        return steady

    def _is_there(self, a: Var, steady: Collection[Var]) -> bool:
        """Whether something can be had behind the loop."""
        if a in self.later or a in steady or a in self.counters:
            return True
        return isinstance(type_of(a), TensorType) and keeps(type_of(a), self.dims)

    def _products(self, out: _Out, steady: Collection[Var]) -> dict[Var, int]:
        """The products of something of an iteration with a matrix that all share, and that is worth it, in what an out is made of; the
        matrices' elements."""
        found: dict[Var, int] = {}
        kept = set(self.kept)
        moving = {v for v in self.values if v in kept} | {p for p in self.loop.function.params if p in kept}
        for v in self.later:
            if not moving.isdisjoint(self.read[v]):
                moving.add(v)
        needed: set[Var] = set()
        todo = [out.item]
        while todo:
            v = todo.pop()
            if v in self.later and v not in needed:
                needed.add(v)
                todo += self.read[v]
        for v in needed:
            value = self.values[v]
            access = self.table.of(value) if isinstance(value, Call) and isinstance(value.fn, OpRef) else None
            if access is None or access.kind != "contraction":
                continue
            assert isinstance(value, Call)
            shared = [typical_elements(type_of(a)) for a in value.args if isinstance(a, Constant) or a in steady]
            rows = [a for a in value.args if isinstance(a, Var) and a in moving]
            if max(shared, default=0) >= _LITTLE and rows and all(map(_are_few, rows)):
                found[v] = max(shared)
        return found

    def is_worth(self) -> bool:
        """Whether there is anything to compute later, and all sizes that it calculates with are known there."""
        return bool(self.outs) and self._sizes_are_told()

    def _sizes_are_told(self) -> bool:
        params = self.loop.function.params
        there = {d for p in params if p in self.fixed for d in told(p.ty)}
        there.update(d for v in self.kept for d in told(v.ty))
        return there.issuperset(d for v in self.later for d in self._sizes(v))

    # -- the functions

    def functions(self, taken: Collection[str]) -> dict[str, Function]:
        """Those that stand in the loop's place, by name."""
        name, function = self.loop.name, self.loop.function
        recurrence = self._recurrence(unused(f"{name}__recurrence", taken))
        rest = self._rest(unused(f"{name}__rest", taken))
        made = {recurrence[0].name: with_own_dims(recurrence[1]), rest[0].name: with_own_dims(rest[1])}
        if not self._is_in_blocks():
            return {name: self._whole(recurrence[0], rest[0], self.loop.leave), **made}
        blocks = GlobalVar(unused(f"{name}__blocks", taken), function.ty)
        whole = self._whole(recurrence[0], rest[0], self._next_block(blocks))
        return {name: replace(function, body=self._same(blocks)), blocks.name: with_own_dims(whole), **made}

    def _is_in_blocks(self) -> bool:
        return not self.at_once and any(o.is_sum for o in self.outs.values())

    def _same(self, target: GlobalVar) -> Block:
        """A call with the loop's parameters."""
        code = Code()
        call = call_of(target, self.loop.function.params, self._own_sizes(), self.loop.call.span)
        return code.block(code.bind(call, "rest"))

    def _own_sizes(self) -> dict[DimVar, TypeArg]:
        """The sizes that the loop's parameters have, by those that its type names."""
        return {d: as_dim(d) for d in self.loop.function.type_params if isinstance(d, DimVar)}

    def _next_block(self, blocks: GlobalVar) -> Block:
        """What follows a block of iterations: the next, or the end."""
        loop, again = self.loop, self._same(blocks)
        code = Code([b for b in loop.before if self._is_early(b.var)])
        branches = (again, loop.leave) if loop.on else (loop.leave, again)
        return code.block(code.bind(If(loop.cond, *branches, loop.function.ret_type), "result"))

    def _ending(self) -> list[Var]:
        """What is read of the last values: what the end reads, or all that the next block begins with."""
        function, moved = self.loop.function, {o.param for o in self.outs.values()}
        if self._is_in_blocks():
            return [p for p in function.params if p not in self.fixed and p not in moved]
        read = free_vars(self.loop.leave)
        sizes = {
            d
            for b in all_bindings(self.loop.leave)
            for d in (*self.uses.of_value(b.value), *self.uses.of_type(b.var.ty))
        }
        out = [v for v in self.values if v in read]
        for p in function.params:
            names = (sizes - self.dims).intersection(self.uses.of_type(p.ty))
            if p not in self.fixed and p not in moved and (p in read or names):
                out.append(p)
        return out

    def _recurrence(self, name: str) -> tuple[GlobalVar, Function]:
        """``f__recurrence(params but for outs, tapes) -> (what the end reads, tapes)``."""
        loop, done, ending = self.loop, DimVar("done"), self._ending()
        params = [p for n, p in enumerate(loop.function.params) if n not in self.outs]
        tapes = [self.layout.tape(v, as_dim(done), {}) for v in self.kept]
        ret = TupleType(
            (*(self.layout.outside(type_of(v)) for v in ending), *(self.layout.tape_type(v, ANY) for v in self.kept))
        )
        target, dims = self._target(name, (*params, *tapes), ret)
        then = Code([b for b in loop.again if self._is_early(b.var)])
        grown = [self.layout.longer(then, t, v) for t, v in zip(tapes, self.kept, strict=True)]
        args = (*(a for n, a in enumerate(loop.call.args) if n not in self.outs), *grown)
        given = {**self._following(), done: dim_add(as_dim(done), 1)}
        call = Call(target, args, type_args=tuple(given.get(d, as_dim(d)) for d in dims), ty=ret, span=loop.call.span)
        again, leave = then.block(then.bind(call, "rest")), _giving((*ending, *tapes))
        start = Code([b for b in loop.before if self._is_early(b.var)])
        branches = (again, leave) if loop.on else (leave, again)
        cond = self._or_full(start, done) if self._is_in_blocks() else loop.cond
        result = start.bind(If(cond, *branches, ret), "result")
        return target, _function(target, (*params, *tapes), start.block(result))

    def _or_full(self, code: Code, done: DimVar) -> Var:
        """The loop's condition, which ends it behind a block of iterations, too."""
        size = code.bind(op_call("size_of", (), {"size": as_dim(done)}))
        if self.loop.on:
            more = code.bind(op_call("less", (size, integer(_BLOCK))), "more")
            return code.bind(op_call("logical_and", (more, self.loop.cond)), "more")
        full = code.bind(op_call("greater_equal", (size, integer(_BLOCK))), "full")
        return code.bind(op_call("logical_or", (full, self.loop.cond)), "ends")

    def _is_early(self, v: Var) -> bool:
        return v not in self.later and not self._is_link(v)

    def _following(self) -> dict[DimVar, TypeArg]:
        """The sizes in the next iteration; those that only the types of parameters name are what it is given."""
        loop, params = self.loop, self.loop.function.params
        sizes: dict[DimVar, TypeArg] = {d: ANY for p in params for d in self.uses.of_type(p.ty)}
        pairs = zip(loop.function.type_params, loop.call.type_args, strict=True)
        sizes.update((d, a) for d, a in pairs if isinstance(d, DimVar))
        return solved(sizes, map(type_of, params), map(type_of, loop.call.args))

    def _shared(self) -> list[Var]:
        """What all iterations share that is read later."""
        used = self._used()
        there = {d for v in self.kept for d in told(v.ty)}
        sizes = {d for v in self.later for d in self._sizes(v)} - there
        out: list[Var] = []
        for p in self.loop.function.params:
            if p in self.fixed and (p in used or sizes.intersection(told(p.ty))):
                out.append(p)
                sizes.difference_update(told(p.ty))
        return out

    def _counting(self) -> list[Var]:
        used = self._used()
        return [p for p in self.loop.function.params if p in self.counters and p in used]

    def _rest(self, name: str) -> tuple[GlobalVar, Function]:
        """``f__rest(j, what is shared, counters, tapes, outs) -> outs``."""
        loop, rows, at = self.loop, as_dim(DimVar("rows")), Var("j", INDEX, INDEX)
        shared, counters = self._shared(), self._counting()
        tapes = [self.layout.tape(v, rows, {}) for v in self.kept]
        outs = [o.param for o in self.outs.values()]
        params = (at, *shared, *counters, *tapes, *outs)
        ret = TupleType(tuple(self.layout.outside(type_of(p)) for p in outs))
        target, dims = self._target(name, params, ret)
        then = Code()
        for v, tape in zip(self.kept, tapes, strict=True):
            then.bindings.append(Binding(v, op_call("take", (tape, at), {"axis": 0})))
        then.bindings += (b for b in (*loop.before, *loop.again) if b.var in self.later or self._is_link(b.var))
        moved = [then.bind(op_call("add", (c, _number(self.counters[c], c)))) for c in counters]
        following = then.bind(op_call("add", (at, integer(1))), "j")
        args = (following, *shared, *moved, *tapes, *(loop.call.args[n] for n in self.outs))
        given = self._following()
        call = Call(target, args, type_args=tuple(given.get(d, as_dim(d)) for d in dims), ty=ret, span=loop.call.span)
        again, leave = then.block(then.bind(call, "rest")), _giving(outs)
        start = Code()
        size = start.bind(op_call("size_of", (), {"size": rows}))
        more = start.bind(op_call("less", (at, size)), "more")
        result = start.bind(If(more, again, leave, ret), "result")
        return target, _function(target, params, start.block(result))

    def _whole(self, recurrence: GlobalVar, rest: GlobalVar, end: Block) -> Function:
        """The function that calls both, and ends with ``end``, over the loop's parameters and what the end of it reads."""
        loop, function, code, own = self.loop, self.loop.function, Code(), self._own_sizes()
        rows, ending = as_dim(DimVar("rows", gradual=True)), self._ending()
        # What the loop ends with has sizes of its own.
        copier = Copier(dims={d: as_dim(DimVar(d.name, gradual=True)) for d in own if d not in self.dims})

        def called(target: GlobalVar, args: Sequence[Expr], types: Iterable[Type]) -> list[Var]:
            call = replace(call_of(target, args, own, loop.call.span), ty=TupleType(tuple(types)))
            made = code.bind(call, "made")
            return [code.bind(project(made, n)) for n in range(len(cast(TupleType, call.ty).fields))]

        empty = [code.bind(no_rows(cast(TensorType, type_of(v))), f"{v.name}s") for v in self.kept]
        given = [p for n, p in enumerate(function.params) if n not in self.outs]
        ends = [cast(Type, copier.type(type_of(v))) for v in ending]
        found = called(recurrence, (*given, *empty), (*ends, *(self.layout.tape_type(v, rows) for v in self.kept)))
        copier.atoms.update(zip(ending, found, strict=False))
        outs = [o.param for o in self.outs.values()]
        args: tuple[Expr, ...] = (integer(0), *self._shared(), *self._counting(), *found[len(ending) :], *outs)
        made = called(rest, args, (cast(Type, copier.type(type_of(p))) for p in outs))
        copier.atoms.update(zip(outs, made, strict=True))
        ended = copier.copy(end)
        return replace(function, body=Block((*code.bindings, *ended.bindings), ended.result, function.ret_type))

    def _target(self, name: str, params: Sequence[Var], ret: Type) -> tuple[GlobalVar, tuple[DimVar, ...]]:
        dims = tuple(dict.fromkeys(d for p in params for d in self.uses.of_type(p.ty)))
        return GlobalVar(name, FuncType(tuple(type_of(p) for p in params), ret, dims)), dims


def _giving(values: Sequence[Expr]) -> Block:
    code = Code()
    return code.block(code.bind(tuple_of(values), "found"))


def _function(target: GlobalVar, params: Sequence[Var], body: Block) -> Function:
    ty = target.ty
    assert isinstance(ty, FuncType)
    return Function(tuple(params), body, ty.ret, ty.type_params, ty=ty)


def _number(value: int, like: Var) -> Constant:
    dtype = cast(str, cast(TensorType, type_of(like)).dtype)
    return constant(np.array(value, dtype), dtype)


def _are_few(v: Var) -> bool:
    """Whether a tensor is not known to have many rows."""
    ty = type_of(v)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return math.prod(d for d in ty.shape[:-1] if isinstance(d, int)) < _ROWS
