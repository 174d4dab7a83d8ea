"""Rematerialisation: what is needed again much later is computed again, so that it need not be kept.

Reverse mode keeps what the way forward made until the way back has read it, so the peak of memory lies where one ends and the other
begins. There a value can be dropped whose kernel is run again just before the late reader: memory is paid for with time. The pass works
on kernels, whose sizes and readers are known, and repeats whole chains of them where the operands are gone too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from relay.ir.diagnostics import CompileError
from relay.ir.dim import dim_bounds, shape_size
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType, Type, dtype_bits
from relay.loop.costs import Machine
from relay.op import registry
from relay.plan.graph import te_graph
from relay.plan.stages import keep
from relay.plan.work import arithmetic
from relay.te.index import Indices
from relay.transform.base import Pass
from relay.transform.blocks import body_of, is_primitive, nested_blocks, operands, renamed
from relay.transform.reward import nominal, size_of
from relay.typing.text import type_text

# Kernels of one chain, and candidates that are tried before giving up.
_LONGEST, _TRIES = 64, 16


class MemoryBudgetError(CompileError):
    """A memory budget that cannot be met: the message says what can."""


@record(frozen=True, slots=True)
class Rematerialise(Pass):
    """Run kernels again where that keeps the tensors of a run of ``entry`` within ``budget`` bytes.

    Counted is what the kernels of its outermost block make, results included; arguments and constants are not. Before: fused blocks.
    After: the same values; some primitives are called more than once. With ``strict`` a budget that is not met is a
    MemoryBudgetError that says how little memory was found to be enough; without it the best program found is given.
    """

    name: ClassVar[str] = "rematerialise"
    budget: int
    entry: str = "main"
    strict: bool = True
    machine: Machine = field(default_factory=Machine)

    def __call__(self, module: Module) -> Module:
        function = module.function(self.entry)
        if is_primitive(function):
            return module
        body = body_of(function)
        search = _Search(self.budget, self.machine, body)
        bindings = search.run()
        if search.peak > self.budget and self.strict:
            raise MemoryBudgetError(
                f"@{self.entry} needs {search.peak} bytes for its tensors where {self.budget} are allowed "
                f"({search.before} without computing anything twice)",
                function.span,
                hint=f"give it at least {search.peak} bytes, or smaller arguments",
            )
        if bindings is body.bindings:
            return module
        new = replace(function, body=Block(tuple(bindings), body.result, body.ty, body.span))
        return module.with_functions({n: new if n == self.entry else f for n, f in module.functions.items()})


@record(slots=True, eq=False)
class _Lives:
    """The memory that bindings make: its bytes, and from which binding to which it is needed.

    ``owners`` has the memory that a variable's value lies in; ``end`` is the number of bindings for what the block gives back.
    """

    size: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    owners: dict[Var, tuple[int, ...]] = field(default_factory=dict)

    def profile(self, count: int) -> list[int]:
        """The bytes alive at each binding."""
        change = [0] * (count + 2)
        for size, start, end in zip(self.size, self.start, self.end, strict=True):
            change[start] += size
            change[end + 1] -= size
        out: list[int] = []
        total = 0
        for step in change[:count]:
            total += step
            out.append(total)
        return out


class _Search:
    """Rematerialisation in one block, greedily at its peak: dropping what frees most for the time it takes to make again."""

    def __init__(self, budget: int, machine: Machine, body: Block) -> None:
        self.budget = budget
        self.machine = machine
        self.body = body
        self.before = self.peak = 0
        self._seconds: dict[int, float] = {}

    def run(self) -> Sequence[Binding]:
        bindings: Sequence[Binding] = self.body.bindings
        lives = self._lives(bindings)
        profile = lives.profile(len(bindings))
        self.before = self.peak = max(profile, default=0)
        while self.peak > self.budget:
            found = self._step(bindings, lives, profile)
            if found is None:
                break
            bindings, lives, profile = found
            self.peak = max(profile)
        return bindings

    def _step(
        self, bindings: Sequence[Binding], lives: _Lives, profile: Sequence[int]
    ) -> tuple[Sequence[Binding], _Lives, list[int]] | None:
        """The bindings with one value made again; None where nothing helps."""
        at = max(range(len(profile)), key=profile.__getitem__)
        excess = self._excess(profile)
        chains = self._chains(bindings, lives, at)
        for chain, late, first in sorted(chains, key=lambda c: -self._worth(bindings, lives, c[0], c[1]))[:_TRIES]:
            new = _again(bindings, chain, late, first)
            after = self._lives(new)
            found = after.profile(len(new))
            if self._excess(found) < excess:
                return new, after, found
        return None

    def _excess(self, profile: Sequence[int]) -> int:
        return sum(max(0, p - self.budget) for p in profile)

    def _worth(
        self, bindings: Sequence[Binding], lives: _Lives, chain: Sequence[int], late: Mapping[Var, object]
    ) -> float:
        freed = sum(lives.size[m] for m in {m for v in late for m in lives.owners[v]})
        return freed / sum(self._cost(bindings[p].value) for p in chain)

    def _chains(
        self, bindings: Sequence[Binding], lives: _Lives, at: int
    ) -> list[tuple[list[int], dict[Var, list[int]], int]]:
        """What could be dropped at a binding: the bindings that make it again, the variables to replace with the positions of their
        late readers, and where the first of these is."""
        reads: dict[Var, list[int]] = {}
        inner: set[Var] = set()
        for p, binding in enumerate(bindings):
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    reads.setdefault(atom, []).append(p)
            for block in nested_blocks(binding.value):
                inner |= _mentioned(block)
        position = {b.var: p for p, b in enumerate(bindings)}
        held: dict[int, list[Var]] = {}
        for var, owners in lives.owners.items():
            for m in owners:
                held.setdefault(m, []).append(var)
        out: list[tuple[list[int], dict[Var, list[int]], int]] = []
        for memory, (start, end) in enumerate(zip(lives.start, lives.end, strict=True)):
            if not start < at < end or end >= len(bindings) or not lives.size[memory]:
                continue
            late = {v: [p for p in reads.get(v, ()) if p > at] for v in held[memory] if position[v] < at}
            late = {v: places for v, places in late.items() if places}
            if not late or any(v in inner or at in reads.get(v, ()) for v in held[memory]):
                continue
            chain = self._chain(bindings, lives, position, at, memory, late)
            if chain is not None:
                out.append((chain, late, min(p for places in late.values() for p in places)))
        return out

    def _chain(
        self,
        bindings: Sequence[Binding],
        lives: _Lives,
        position: Mapping[Var, int],
        at: int,
        memory: int,
        late: Mapping[Var, object],
    ) -> list[int] | None:
        """The bindings that make variables again from what is alive at ``at`` (but for ``memory``), in order."""
        chain: set[int] = set()
        todo = list(late)
        while todo:
            var = todo.pop()
            p = position.get(var)
            if p is None or p in chain:  # from outside the block
                continue
            owners = lives.owners[var]
            if var not in late and memory not in owners and all(lives.end[m] > at for m in owners):
                continue
            if not _can_repeat(bindings[p].value):
                return None
            chain.add(p)
            if len(chain) > _LONGEST:
                return None
            todo += (a for a in operands(bindings[p].value) if isinstance(a, Var))
        return sorted(chain)

    def _lives(self, bindings: Sequence[Binding]) -> _Lives:
        lives = _Lives()
        owners = lives.owners

        for p, binding in enumerate(bindings):
            value = binding.value
            used = [a for a in operands(value) if isinstance(a, Var)]
            for block in nested_blocks(value):
                used += _mentioned(block)
            given = tuple(dict.fromkeys(m for a in used for m in owners.get(a, ())))
            if _passes_on(value):
                owners[binding.var] = given
                continue
            made: list[int] = []
            for part in binding.var.ty.fields if isinstance(binding.var.ty, TupleType) else (binding.var.ty,):
                made.append(len(lives.size))
                lives.size.append(_bytes(part, value.span))
                lives.start.append(p)
                lives.end.append(p)
            # What is no kernel may give back what it was given.
            owners[binding.var] = tuple(made) if _is_kernel(value) else (*made, *given)
        # A projection of a kernel's results is one of them.
        for binding in bindings:
            value = binding.value
            if isinstance(value, Proj) and isinstance(value.tuple, Var):
                whole = owners.get(value.tuple, ())
                if isinstance(value.tuple.ty, TupleType) and len(whole) == len(value.tuple.ty.fields):
                    owners[binding.var] = (whole[value.index],)
        self._narrow(bindings, lives)
        return lives

    def _narrow(self, bindings: Sequence[Binding], lives: _Lives) -> None:
        """The last uses, now that projections are told apart."""
        for p, binding in enumerate(bindings):
            used = [a for a in operands(binding.value) if isinstance(a, Var)]
            for block in nested_blocks(binding.value):
                used += _mentioned(block)
            if isinstance(binding.value, Proj):
                used = [binding.var]
            for a in used:
                for m in lives.owners.get(a, ()):
                    lives.end[m] = max(lives.end[m], p)
        if isinstance(self.body.result, Var):
            for m in lives.owners.get(self.body.result, ()):
                lives.end[m] = len(bindings)

    def _cost(self, value: Expr) -> float:
        """Seconds that a kernel takes, at the least."""
        if not isinstance(value, Call) or not isinstance(value.fn, Function):
            return 0.0
        known = self._seconds.get(id(value.fn))
        if known is None:
            graph = te_graph(value.fn)
            operations = nominal(arithmetic(keep(graph, frozenset(), Indices()), {}))
            known = self.machine.call + self.machine.computing(operations)
            known += self.machine.writing * self.machine.reading(size_of(value.ty))
            known += sum(self.machine.reading(size_of(p.ty)) for p in value.fn.params)
            self._seconds[id(value.fn)] = known
        return known


def _again(
    bindings: Sequence[Binding], chain: Sequence[int], late: Mapping[Var, Sequence[int]], first: int
) -> list[Binding]:
    """The bindings with a copy of some before the first late reader, and the late readers reading it."""
    names: dict[Var, Var] = {}
    copies: list[Binding] = []
    for p in chain:
        old = bindings[p]
        var = Var(old.var.name, None, old.var.ty, old.var.span)
        copies.append(Binding(var, renamed(old, names).value))
        names[old.var] = var
    replaced = {v: names[v] for v in late}
    places = {p for positions in late.values() for p in positions}
    out: list[Binding] = []
    for p, binding in enumerate(bindings):
        if p == first:
            out += copies
        out.append(renamed(binding, replaced) if p in places else binding)
    return out


def _mentioned(block: Block) -> set[Var]:
    """The variables that a block and those inside it mention."""
    out: set[Var] = set()
    todo = [block]
    while todo:
        here = todo.pop()
        if isinstance(here.result, Var):
            out.add(here.result)
        for binding in here.bindings:
            out.update(a for a in operands(binding.value) if isinstance(a, Var))
            todo += nested_blocks(binding.value)
    return out


def _is_kernel(value: Expr) -> bool:
    return isinstance(value, Call) and is_primitive(value.fn)


def _passes_on(value: Expr) -> bool:
    """Whether the result is in the memory of the operands."""
    if isinstance(value, Tuple | Proj | Var):
        return True
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and _is_view(value.fn.name)


def _is_view(name: str) -> bool:
    return registry.exists(name) and registry.get(name).kind == "view"


def _can_repeat(value: Expr) -> bool:
    return _is_kernel(value) or _passes_on(value)


def _bytes(ty: Type | None, span: Span | None) -> int:
    """The bytes of a tensor: of what is not known the most that it may be, where that is known."""
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
        return 0
    _, most = dim_bounds(shape_size(ty.shape))
    if most is None:
        raise MemoryBudgetError(
            f"a memory budget needs sizes: a tensor of type {type_text(ty)} may be of any",
            span,
            "give the sizes, or bounds of them",
        )
    return most * dtype_bits(ty.dtype) // 8
