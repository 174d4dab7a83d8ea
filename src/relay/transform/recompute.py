"""Recomputing cheap values where they are read, when that is faster than to write and read them.

Training ties the way forward to the way back by tensors that both read: an activation, a normalised value, a mask. Fusion alone writes
each of them once and reads it in every kernel that needs it. Most are a few operations away from something that is in memory anyway;
then every reading kernel can do these operations for itself, and the tensor is never made. Which is better is a matter of numbers: the
traffic that is saved against the arithmetic that is repeated (`relay.transform.reward`), as NeoFlow weighs them (section 5.1).

The pass looks at the groups that fusion would make, copies the operations of a value into each group that reads it, and lets fusion
group again; what came out dearer by the same measure is dropped.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from relay.ir.expr import Binding, Call, Function, OpRef, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.loop.costs import Machine
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import is_primitive, map_functions, operands, renamed
from relay.transform.dead_code import without_dead_code
from relay.transform.failing import effects_of_moving
from relay.transform.fuse import FuseOps, Fuser
from relay.transform.grouping import Group, Grouping, Node, is_part
from relay.transform.reward import count, size_of
from relay.typing.effects import Effects

# An operand, and which slice of it (None: all of it).
_Part = tuple[Var, object]
# At most so many operations are repeated for one value, and so many times values of values are looked at.
_LONGEST, _ROUNDS = 16, 3


@record(frozen=True, slots=True)
class Recompute(Pass):
    """Copy elementwise operations into the kernels that read their results, where that is faster.

    Before: blocks as `FuseOps` takes them; ``max_size`` is that pass's. After: the same values, bit for bit in the interpreter;
    nothing without effects is computed in more places than its readers.
    """

    name: ClassVar[str] = "recompute"
    max_size: int = 64
    machine: Machine = field(default_factory=Machine)
    table: AccessTable = field(default_factory=AccessTable, repr=False, compare=False)

    def __call__(self, module: Module) -> Module:
        effects = effects_of_moving(module)
        options = FuseOps(max_size=self.max_size)

        def rewrite(function: Function) -> Function:
            if is_primitive(function):
                return function
            found, least = function, float("inf")
            new = function
            for _ in range(_ROUNDS + 1):
                worker = _Recomputer(options, effects, self.table, new, self.machine)
                after = worker.run()
                if worker.seconds >= least:
                    break
                found, least = new, worker.seconds
                if after is new:
                    break
                new = without_dead_code(after, effects)
            return found

        return map_functions(module, rewrite)


@record(frozen=True, slots=True, eq=False)
class _Choice:
    """A value to recompute: the operations that make it, in order, and the readers that get a copy, by group."""

    node: Node
    chain: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]


class _Recomputer(Fuser):
    """One round in one function. ``seconds``: what its kernels take as fusion groups them now."""

    def __init__(
        self, options: FuseOps, effects: Effects, table: AccessTable, function: Function, machine: Machine
    ) -> None:
        super().__init__(options, effects, table, function)
        self.machine = machine
        self.seconds = 0.0

    def fuse(self, bindings: Sequence[Binding], reads: Sequence[set[Var]]) -> list[Binding]:
        nodes = self.nodes(bindings)
        if not nodes:
            return list(bindings)
        grouping, _ = self.grouped(bindings, reads, nodes)
        block = _Block(grouping, self.machine, self.fills)
        self.seconds += block.seconds()
        chosen = block.choices()
        if not chosen:
            return list(bindings)
        position = list(nodes)
        before: dict[int, list[Binding]] = {}
        names: dict[int, dict[Var, Var]] = {}
        for choice in chosen:
            for readers in choice.readers:
                copies, var = _copied([bindings[position[n]] for n in choice.chain])
                before.setdefault(min(position[r] for r in readers), []).extend(copies)
                for r in readers:
                    names.setdefault(position[r], {})[choice.node.var] = var
        out: list[Binding] = []
        for p, binding in enumerate(bindings):
            out += before.get(p, ())
            out.append(renamed(binding, names.get(p, {})))
        return out


def _copied(chain: Sequence[Binding]) -> tuple[list[Binding], Var]:
    """The operations under names of their own, and the name of the last."""
    names: dict[Var, Var] = {}
    out: list[Binding] = []
    for binding in chain:
        var = Var(binding.var.name, None, binding.var.ty, binding.var.span)
        out.append(Binding(var, renamed(binding, names).value))
        names[binding.var] = var
    return out, out[-1].var


class _Block:
    """The groups of one block, and what they cost."""

    def __init__(self, grouping: Grouping, machine: Machine, fills: Container[Var]) -> None:
        self.grouping = grouping
        self.machine = machine
        self.fills = fills
        self.nodes = grouping.nodes
        self.members: dict[int, list[int]] = {}
        self.results: dict[int, list[Node]] = {}
        self.groups: list[Group] = []
        for group in grouping.groups():
            members = grouping.without_border_views(group)
            if members:
                self.groups.append(group)
                self.members[id(group)] = members
                self.results[id(group)] = grouping.outputs(members)
        self.read: dict[int, dict[_Part, float]] = {id(g): self._read(g) for g in self.groups}

    def seconds(self) -> float:
        """The time of all kernels, each taken as its traffic, its arithmetic and its call."""
        total = 0.0
        for group in self.groups:
            total += self.machine.call + sum(self.read[id(group)].values())
            total += sum(self._writing(n) for n in self.results[id(group)])
            total += sum(self._computing(self.nodes[n]) for n in self.members[id(group)])
        return total

    def choices(self) -> list[_Choice]:
        """The values that are worth recomputing, earlier ones first. What one of them is made from is left alone in this round."""
        out: list[_Choice] = []
        kept: set[Var] = set()
        gone: set[Var] = set()
        for group in self.groups:
            for node in self.results[id(group)]:
                if node.var in kept or not node.consumers:
                    continue
                chain = self._chain(node, group) or self._chain(node, group, handed_over=True)
                if chain is None:
                    continue
                sources = self._sources(chain)
                made_from = {operand for operand, _ in sources}
                if not gone.isdisjoint(made_from):
                    continue
                readers = self._worthwhile(node, group, chain, sources)
                if readers:
                    out.append(_Choice(node, tuple(chain), tuple(readers)))
                    kept |= made_from
                    gone.add(node.var)
        return out

    def _worthwhile(
        self, node: Node, group: Group, chain: Sequence[int], sources: Mapping[_Part, float]
    ) -> list[tuple[int, ...]]:
        """The readers, group by group, that had better compute the value for themselves."""
        readers: dict[int, list[int]] = {}
        for c in node.consumers:
            if self.grouping.of[c] is not group:
                readers.setdefault(id(self.grouping.of[c]), []).append(c)
        if not readers:
            return []
        work = sum(self._computing(self.nodes[n]) for n in chain)
        saved = self._reading(node)
        rewards: dict[int, float] = {}
        for key, inside in readers.items():
            if not self._can_take(key, inside, node, chain):
                continue
            known = self.read[key]
            rewards[key] = saved - work - sum(cost for v, cost in sources.items() if v not in known)
        everywhere = len(rewards) == len(readers) and not node.escapes
        if everywhere:
            total = sum(rewards.values())
            results = self.results[id(group)]
            if all(c in self.members[id(group)] for c in node.consumers if self.grouping.of[c] is group):
                total += self._writing(node)
            if len(results) == 1 and len(chain) == len(self.members[id(group)]):  # the whole kernel was for this value
                total += self.machine.call + work + sum(sources.values())
            total -= sum(self._writing(n) for n in self._handed_over(chain, group))
            if total > 0:
                return [tuple(inside) for inside in readers.values()]
        if self._handed_over(chain, group):
            return []
        return [tuple(readers[key]) for key, reward in rewards.items() if reward > 0]

    def _chain(self, node: Node, group: Group, handed_over: bool = False) -> list[int] | None:
        """The operations of a group that make one of its results from what is in memory, in order; None where these are not all
        elementwise, or slices. ``handed_over``: from what else of the group is smaller than the result, too, which becomes a result."""
        members = set(self.members[id(group)])
        stored = {n.number for n in self.results[id(group)]} - {node.number}
        seen: set[int] = set()
        todo = [node.number]
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            access = self.nodes[n].access
            plain = access.slices or access.kind in ("elementwise", "broadcast")
            if not isinstance(self.nodes[n].value, Call) or not plain:
                return None
            seen.add(n)
            if len(seen) > _LONGEST:
                return None
            todo += (
                i
                for i in self.nodes[n].inputs
                if i in members and i not in stored and not (handed_over and is_part(self.nodes[i].shape, node.shape))
            )
        if all(self.nodes[n].access.view for n in seen):
            return None
        return sorted(seen)

    def _handed_over(self, chain: Sequence[int], group: Group) -> list[Node]:
        """What operations read of their group that is none of its results yet."""
        members, results = set(self.members[id(group)]), {n.number for n in self.results[id(group)]}
        read = {i for n in chain for i in self.nodes[n].inputs} - set(chain)
        return [self.nodes[i] for i in sorted(read & members - results)]

    def _can_take(self, key: int, inside: Sequence[int], node: Node, chain: Sequence[int]) -> bool:
        """Whether the operations can stand in a reading group, in front of these readers."""
        members = self.members.get(key)
        if members is None or len(members) + len(chain) > self.grouping.max_size:
            return False
        held = set(members)
        for r in inside:
            reader = self.nodes[r]
            if r not in held or node.var not in operands(reader.value):  # it reads it as part of a tuple
                return False
            if reader.access.kind in ("opaque", "contraction") or reader.access.windows or reader.access.view:
                return False
        anchors = [n for n in members if self.nodes[n].access.kind == "contraction"]
        return not anchors or not any(self._leads_to(r, anchors[0], held) for r in inside)

    def _leads_to(self, number: int, goal: int, held: set[int]) -> bool:
        seen: set[int] = set()
        todo = [number]
        while todo:
            n = todo.pop()
            if n == goal:
                return True
            if n not in seen:
                seen.add(n)
                todo += (c for c in self.nodes[n].consumers if c in held)
        return False

    def _sources(self, chain: Sequence[int]) -> dict[_Part, float]:
        """What the operations read, with the seconds that takes."""
        made = {self.nodes[n].var for n in chain}
        out: dict[_Part, float] = {}
        for n in chain:
            for atom in operands(self.nodes[n].value)[1:]:
                if isinstance(atom, Var) and atom not in made and atom not in self.fills:
                    out[self._part(n, atom)] = self._reading_part(n, atom)
        return out

    def _read(self, group: Group) -> dict[_Part, float]:
        """What a group's kernel reads from memory, with the seconds that takes."""
        members = self.members[id(group)]
        made = {self.nodes[n].var for n in members}
        out: dict[_Part, float] = {}
        for n in members:
            value = self.nodes[n].value
            unread = self.nodes[n].access.unread
            atoms = value.args if isinstance(value, Call) else (value.tuple,)
            for index, atom in enumerate(atoms):
                if isinstance(atom, Var) and atom not in made and atom not in self.fills and index not in unread:
                    out[self._part(n, atom)] = self._reading_part(n, atom)
        return out

    def _part(self, number: int, operand: Var) -> _Part:
        """What a node reads of an operand: of a slice, as much as it has."""
        node = self.nodes[number]
        if isinstance(node.value, Call) and node.access.slices:
            assert isinstance(node.value.fn, OpRef)
            return operand, (node.value.fn.name, attrs_key(node.value.attrs))
        return operand, None

    def _reading_part(self, number: int, operand: Var) -> float:
        node = self.nodes[number]
        return self.machine.reading(size_of((node.var if node.access.slices else operand).ty))

    def _reading(self, node: Node) -> float:
        return self.machine.reading(size_of(node.var.ty))

    def _writing(self, node: Node) -> float:
        return self.machine.writing * self._reading(node)

    def _computing(self, node: Node) -> float:
        return self.machine.computing(node.access.work * count(node.var.ty)) if isinstance(node.value, Call) else 0.0
