"""What a loop keeps of its iterations for the way back, and what the way back computes again from that.

A step of a few elementwise operations has more results than operands, and the way back reads most of them. To keep one costs its memory,
written and read again, and an append in every iteration; to compute it again costs its operations, and what these read has to be there. The
cheapest choice is the least cut between what an iteration begins with and what the way back reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import field

from relay.ir.dim import DimVar
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Call, Expr, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import mentions_any
from relay.loop.costs import Machine
from relay.op import registry
from relay.transform.access import AccessTable
from relay.transform.ad.least_cut import ENDLESS, SINK, SOURCE, Flow
from relay.transform.ad.loop_parts import is_tensor
from relay.transform.ad.loop_tapes import Tapes
from relay.transform.ad.loops import INSIDE, Unsuited, keeps
from relay.transform.blocks import operands
from relay.transform.build import type_of
from relay.transform.dims import DimUses
from relay.transform.reward import count, size_of

# What a tape costs in an iteration beside its memory, as a part of a kernel's call.
_TAPE = 0.5
# More values are not weighed against each other.
_MOST = 2000
_PICOSECONDS = 1e12


@record(frozen=True, slots=True, eq=False)
class Iteration:
    """The bindings of an iteration and those of the way back through it; ``free``: the counters and what all iterations share, which are
    at hand on the way back; ``fixed_dims``: the sizes that all iterations share."""

    forward: Sequence[Binding]
    back: Sequence[Binding]
    free: Collection[Var]
    fixed_dims: frozenset[DimVar]


def computed_again(
    iteration: Iteration, roots: Iterable[Var], there: Collection[Var], table: AccessTable, uses: DimUses
) -> set[Var]:
    """What the way back computes again where it reads ``roots``; ``there`` is in tapes anyway. Raises Unsuited."""
    cheap, elementwise = _quick(iteration, table, uses)
    cheap |= _of_no_tape(iteration)
    values = {b.var: b.value for b in iteration.forward}
    again = cheap.union(v for v, value in values.items() if isinstance(value, Tuple) or not is_tensor(v))
    choice = _Choice(values, again, elementwise, there, _apart(iteration.back, table), iteration.free, table)
    found = choice.computed_again(roots)
    if any(not isinstance(values[v], Tuple | Proj) for v in found - cheap - elementwise):
        raise Unsuited(INSIDE)
    return found


def _quick(iteration: Iteration, table: AccessTable, uses: DimUses) -> tuple[set[Var], set[Var]]:
    """What follows from counters and what all iterations share, which is as fast to compute again as to keep; what is computed element by
    element."""
    cheap: set[Var] = set()
    elementwise: set[Var] = set()
    for b in iteration.forward:
        value = b.value
        if not iteration.fixed_dims.issuperset(uses.of_value(value)):
            continue
        if isinstance(value, Call):
            if not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
                continue
            access = table.of(value)
            kind = None if access is None else access.kind
            if kind in ("contraction", "reduction", "opaque"):
                continue
            if kind in ("elementwise", "broadcast") and keeps(type_of(b.var), iteration.fixed_dims):
                elementwise.add(b.var)
        elif not isinstance(value, Tuple | Proj):
            continue
        if all(a in iteration.free or a in cheap for a in operands(value) if isinstance(a, Var)):
            cheap.add(b.var)
    return cheap, elementwise


def _of_no_tape(iteration: Iteration) -> set[Var]:
    """The results of operators that are longer in every iteration, but not by rows, as the scores of all rows so far are."""
    layout = Tapes(iteration.fixed_dims)
    return {
        b.var
        for b in iteration.forward
        if isinstance(b.value, Call)
        and isinstance(b.value.fn, OpRef)
        and registry.exists(b.value.fn.name)
        and registry.get(b.value.fn.name).effects is Effect.PURE
        and is_tensor(b.var)
        and not mentions_any(type_of(b.var))
        and not keeps(type_of(b.var), iteration.fixed_dims)
        and layout.count(b.var) is None
    }


def _apart(back: Sequence[Binding], table: AccessTable) -> set[Var]:
    """What operators of the way back read that share no kernel with elementwise operations before them."""
    out: set[Var] = set()
    for b in back:
        access = table.of(b.value) if isinstance(b.value, Call) else None
        if access is None or access.kind in ("contraction", "opaque"):
            out.update(a for a in operands(b.value) if isinstance(a, Var))
    return out


@record(frozen=True, slots=True, eq=False)
class _Choice:
    """The ``values`` of an iteration by their variables. ``again``: what is computed again in any case; ``may``: what can be;
    ``there``: what is in a tape anyway; ``apart``: what operators read that share no kernel with what makes their operands; ``free``: what
    is at hand."""

    values: Mapping[Var, Expr]
    again: Set[Var]
    may: Set[Var]
    there: Collection[Var]
    apart: Set[Var]
    free: Collection[Var]
    table: AccessTable
    machine: Machine = field(default_factory=Machine)

    def computed_again(self, roots: Iterable[Var]) -> set[Var]:
        """What is computed again where the way back reads ``roots``."""
        # Of each value two nodes: beyond the cut it is computed again, and is there by then (in a tape, if it is not computed again).
        flow = Flow()
        seen = dict.fromkeys(v for v in roots if v not in self.free)
        for v in seen:
            flow.limit((v, "there"), SINK, ENDLESS)
        todo = list(seen)
        while todo:
            v = todo.pop()
            possible = v not in self.there and (v in self.again or v in self.may)
            flow.limit((v, "again"), (v, "there"), self._keeping(v))
            flow.limit(SOURCE, (v, "again"), self._computing(v) if possible else ENDLESS)
            for a in operands(self.values[v]) if possible else ():
                if isinstance(a, Var) and a not in self.free:
                    flow.limit((a, "there"), (v, "again"), ENDLESS)
                    if a not in seen:
                        seen[a] = None
                        todo.append(a)
            if len(seen) > _MOST:
                return {v for v in self.again if v not in self.there}
        beyond = flow.beyond()
        return {v for v in seen if (v, "again") in beyond}

    def _keeping(self, v: Var) -> int:
        if v in self.again:
            return ENDLESS
        return 0 if v in self.there else round((self._moving(v) + self.machine.call * _TAPE) * _PICOSECONDS)

    def _computing(self, v: Var) -> int:
        value = self.values[v]
        access = self.table.of(value) if isinstance(value, Call) else None
        seconds = 0.0 if access is None else self.machine.computing(access.work * count(type_of(v)))
        if v in self.apart:
            seconds += self._moving(v) + self.machine.call
        return round(seconds * _PICOSECONDS)

    def _moving(self, v: Var) -> float:
        """Seconds to write a value and read it."""
        return self.machine.reading(size_of(type_of(v))) * (1 + self.machine.writing)
