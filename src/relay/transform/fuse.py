"""Operator fusion: groups of operator calls become primitives, one kernel each.

The grouping follows the papers (operator fusion by post-dominators) in three steps over the data flow of each block:

1. An operator joins its immediate post-dominator, together with everything on the paths between, when their tensor
expressions can
   share one loop nest (`_Grouping.fits`). So chains and diamonds of any length become one kernel, which has one result.
2. A group whose result is read by another at the same indices joins it even when the result is also used elsewhere: a
kernel with
   several outputs.
3. Views and projections at a group's border leave it: they cost nothing outside.

What joins what is decided by how an operator's expression accesses its inputs (`relay.transform.access`): a
contraction takes index maps before it and elementwise operators of its own shape after it; reductions take anything
injective before them, and after them whatever works on the same rows (so softmax and normalisations written out are
one kernel).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from relay.ir.dim import Dim
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.ir.walk import bound_vars
from relay.transform.access import Access, AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import (
    CHECK_EQUAL,
    all_bindings,
    body_of,
    is_atom,
    is_primitive,
    map_functions,
    nested_blocks,
    operands,
    says_no_less,
    with_nested_blocks,
)  # fmt: skip
from relay.transform.dims import DimUses, first_binders
from relay.transform.dominators import NONE, DominatorTree
from relay.transform.primitive import as_primitive_call
from relay.transform.uses import use_counts
from relay.typing.effects import Effects


@dataclass(frozen=True, slots=True)
class FuseOps(Pass):
    """Group operator calls into primitives.

    Before: blocks in which no tensor type mentions ``?`` (with one, nothing is known to have equal shapes). After:
    every call of an expression operator stands in a primitive of at most ``max_size`` calls; views alone stay calls;
    constants of one element are inside the primitives, larger ones are arguments. With ``outputs`` a primitive may
    have several results. Effects keep their order.
    """

    name: ClassVar[str] = "fuse"
    max_size: int = 64
    outputs: bool = True

    def __call__(self, module: Module) -> Module:
        effects = Effects(module)
        table = AccessTable()

        def fuse(function: Function) -> Function:
            return function if is_primitive(function) else _Fuser(self, effects, table, function).run()

        return map_functions(module, fuse)


@dataclass(slots=True, eq=False)
class _Node:
    """A binding that may stand in a primitive.

    ``inputs`` are numbers of producing nodes, ``consumers`` of reading ones.
    """

    number: int
    var: Var
    value: Call | Proj
    access: Access
    shape: tuple[Dim, ...] | None
    inputs: list[int]
    consumers: list[int] = field(default_factory=list)
    escapes: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """Nodes of one kernel, and what `_Grouping.fits` must know of them without looking at each."""

    members: list[int]
    plain: bool  # elementwise and broadcast operators only
    injective: bool  # plain ones and index maps only


class _Grouping:
    """The groups of one block's nodes."""

    def __init__(self, nodes: Sequence[_Node], max_size: int) -> None:
        self.nodes = nodes
        self.max_size = max_size
        self.of: list[_Group] = [
            _Group([n.number], n.access.kind in ("elementwise", "broadcast"), n.access.injective) for n in nodes
        ]
        self.tree = DominatorTree(len(nodes))
        for node in reversed(nodes):
            self.tree.set(node.number, node.consumers, escapes=node.escapes or not node.consumers)

    def by_dominators(self) -> None:
        """Step 1.

        Contractions take their epilogues first, because these are computed where the contraction's result is made.
        """
        for node in self.nodes:
            if node.access.kind == "contraction":
                at = node.number
                while self.join_dominator(at):
                    at = self.tree.parent[at]
        for node in self.nodes:
            self.join_dominator(node.number)

    def join_dominator(self, number: int) -> bool:
        """Merge a node, its immediate post-dominator and all between, if they fit into one kernel."""
        sink = self.tree.parent[number]
        if sink == NONE or self.of[number] is self.of[sink]:
            return sink != NONE
        between = self._between(number, sink)
        if between is None:
            return False
        groups = list({id(self.of[n]): self.of[n] for n in (number, *between, sink)}.values())
        if not self.fits(groups):
            return False
        self.merge(groups)
        return True

    def _between(self, number: int, sink: int) -> list[int] | None:
        """The nodes on paths from a node to its post-dominator; None when they are more than a kernel may hold."""
        seen: set[int] = set()
        todo = [c for c in self.nodes[number].consumers if c != sink]
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            if len(seen) > self.max_size:
                return None
            todo += (c for c in self.nodes[n].consumers if c != sink)
        return list(seen)

    def groups(self) -> list[_Group]:
        """Every group once, its members in order; groups in the order of their first members."""
        found = list({id(g): g for g in self.of}.values())
        for group in found:
            group.members.sort()
        return found

    def aligned(self, source: _Group, group: _Group) -> bool:
        """Whether two groups have one iteration space: both elementwise on it, or the source's epilogue is."""
        if not group.plain:
            return False
        shape = self.nodes[group.members[0]].shape
        if shape is None or any(self.nodes[n].shape != shape for n in group.members):
            return False
        inner = [self.nodes[n] for n in source.members]
        if source.plain:
            return all(n.shape == shape for n in inner)
        anchors = [n for n in inner if n.access.kind == "contraction"]
        return len(anchors) == 1 and anchors[0].shape == shape

    def without_border_views(self, group: _Group) -> list[int]:
        """The members that go into the primitive: without the views whose input is from outside and those whose
        result is only used
        outside; none when only views are left."""
        members = set(group.members)
        for n in sorted(members):
            if self.nodes[n].access.view and members.isdisjoint(self.nodes[n].inputs[:1]):
                members.discard(n)
        for n in sorted(members, reverse=True):
            if self.nodes[n].access.view and members.isdisjoint(self.nodes[n].consumers):
                members.discard(n)
        return sorted(members)

    def merge(self, groups: Sequence[_Group]) -> _Group:
        largest = max(groups, key=lambda g: len(g.members))
        for group in groups:
            if group is not largest:
                largest.members += group.members
                largest.plain &= group.plain
                largest.injective &= group.injective
                for n in group.members:
                    self.of[n] = largest
        return largest

    def fits(self, groups: Sequence[_Group]) -> bool:
        """Whether the nodes of these groups can be computed by one kernel without computing anything costly twice."""
        if sum(len(g.members) for g in groups) > self.max_size:
            return False
        if all(g.injective for g in groups):
            return True
        members = sorted(n for g in groups for n in g.members)
        nodes = [self.nodes[n] for n in members]
        if any(n.access.kind == "opaque" for n in nodes):
            return False
        contractions = [n for n in nodes if n.access.kind == "contraction"]
        reductions = [n for n in nodes if n.access.kind == "reduction"]
        if contractions:
            return len(contractions) == 1 and not reductions and self._fits_contraction(nodes, contractions[0])
        return self._fits_rows(nodes, reductions)

    def _fits_contraction(self, nodes: Sequence[_Node], anchor: _Node) -> bool:
        """Index maps before the anchor; after it, operators that keep its shape; beside it, whatever those read
        cheaply."""
        before = {anchor.number}
        for node in reversed(nodes):
            if node is not anchor and any(c in before for c in node.consumers):
                before.add(node.number)
        after = {anchor.number}
        for node in nodes:
            if node is anchor:
                continue
            if any(i in after for i in node.inputs):
                after.add(node.number)
                if (
                    node.access.kind not in ("elementwise", "broadcast")
                    or node.shape is None
                    or node.shape != anchor.shape
                ):
                    return False
            elif (node.number in before and not node.access.movement) or (
                node.access.kind == "injective" and not node.access.movement
            ):
                return False
        return True

    def _fits_rows(self, nodes: Sequence[_Node], reductions: Sequence[_Node]) -> bool:
        """After a reduction: operators that stay in its rows (of a reduction over all leading axes: that keep its
        shape)."""
        rows = min(r.access.rows for r in reductions)
        shape = reductions[0].shape
        windows = {r.number for r in reductions if r.access.windows}
        after: set[int] = set()
        for node in nodes:
            reduces = node.access.kind == "reduction"
            if any(i in after for i in node.inputs):
                if node.shape is None or shape is None:
                    return False
                if rows == 0 and (reduces or node.shape != shape or node.access.kind == "injective"):
                    return False
                if node.access.rows < rows or node.shape[:rows] != shape[:rows]:
                    return False
                after.add(node.number)
            elif reduces:
                if node.shape is None or shape is None or node.shape[:rows] != shape[:rows]:
                    return False
                after.add(node.number)
            if not node.access.movement and windows and any(c in windows for c in node.consumers):
                return False  # an overlapping window would compute it again and again
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """A group, or a binding that is in none, with its level (see `_Fuser._several_outputs`)."""

    level: int
    group: _Group | None


class _Fuser:
    """Fusion of one function, block by block, inner blocks first."""

    def __init__(self, options: FuseOps, effects: Effects, table: AccessTable, function: Function) -> None:
        self.options = options
        self.effects = effects
        self.table = table
        self.function = function
        body = body_of(function)
        self.uses = use_counts(body)
        self.tuples: dict[Var, Tuple] = {}
        variables: list[Var] = []
        for binding in all_bindings(body):
            variables.append(binding.var)
            if isinstance(binding.value, Tuple):
                self.tuples[binding.var] = binding.value
        self.dims = DimUses()
        self.binders = first_binders(function.params, iter(variables))
        self.binding_vars = set(self.binders.values())
        self.absorbed: set[Var] = set()

    def run(self) -> Function:
        body, _ = run(self.block(body_of(self.function)))
        return self.function if body is self.function.body else replace(self.function, body=body)

    def block(self, block: Block) -> Step[tuple[Block, set[Var]]]:
        """The fused block and its free variables."""
        bindings: list[Binding] = []
        reads: list[set[Var]] = []
        bound: set[Var] = set()
        free: set[Var] = set()
        for binding in block.bindings:
            value = binding.value
            used = {a for a in operands(value) if isinstance(a, Var)}
            inner = nested_blocks(value)
            if inner:
                new: list[Block] = []
                for b in inner:
                    fused, outer = yield self.block(b)
                    new.append(fused)
                    used |= outer
                value = with_nested_blocks(value, new)
                used -= set(bound_vars(binding.value))
                used.discard(binding.var)  # a function may refer to itself
            bindings.append(binding if value is binding.value else Binding(binding.var, value))
            reads.append(used)
            free |= used - bound
            bound.add(binding.var)
        if isinstance(block.result, Var) and block.result not in bound:
            free.add(block.result)
        fused_bindings = self.fuse(bindings, reads)
        same = len(fused_bindings) == len(block.bindings) and all(
            a is b for a, b in zip(fused_bindings, block.bindings, strict=True)
        )
        return (block if same else Block(tuple(fused_bindings), block.result, block.ty, block.span)), free

    def fuse(self, bindings: list[Binding], reads: list[set[Var]]) -> list[Binding]:
        """The bindings of one block, grouped. ``reads``: the variables each one reads, nested blocks included."""
        nodes = self._nodes(bindings)
        if not nodes:
            return bindings
        grouping = _Grouping(list(nodes.values()), self.options.max_size)
        grouping.by_dominators()
        needs = self._needs(bindings, reads, nodes)
        position = list(nodes)
        if self.options.outputs:
            self._several_outputs(grouping, needs, position)
        units: list[list[int]] = []
        made: dict[int, list[Binding]] = {}  # the last position of a primitive -> its bindings
        inside: set[int] = set()
        for group in grouping.groups():
            members = grouping.without_border_views(group)
            if not members:
                continue
            chosen = [grouping.nodes[n] for n in members]
            held = set(members)
            outputs = [n.var for n in chosen if n.escapes or any(c not in held for c in n.consumers)] or [
                chosen[-1].var
            ]
            at = [position[n] for n in members]
            before, call = as_primitive_call([bindings[p] for p in at], outputs, self.tuples)
            made[at[-1]] = [*before, *_bind_results(outputs, call)]
            inside.update(at)
            units.append(at)
        units += ([p] for p, b in enumerate(bindings) if p not in inside and b.var not in self.absorbed)
        return [b for unit in in_order(units, needs) for b in made.get(unit[-1], bindings[unit[-1] : unit[-1] + 1])]

    def _nodes(self, bindings: list[Binding]) -> dict[int, _Node]:
        """The bindings that may stand in a primitive, by position, with their data flow."""
        nodes: dict[int, _Node] = {}
        number: dict[Var, _Node] = {}
        mentions: Counter[Var] = Counter()
        whole: set[Var] = set()
        for position, binding in enumerate(bindings):
            var, value = binding.var, binding.value
            access = self._access(value, number)
            if access is None or not isinstance(value, Call | Proj):
                continue
            shape = var.ty.shape if isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple) else None
            inputs: list[int] = []
            for atom in value.args if isinstance(value, Call) else (value.tuple,):
                definition = self.tuples.get(atom) if isinstance(atom, Var) else None
                if definition is not None and isinstance(atom, Var):
                    mentions[atom] += 1
                    if atom not in whole:  # the tuple's own mention of its fields, once however often it is read
                        whole.add(atom)
                        mentions.update(f for f in definition.fields if isinstance(f, Var))
                    parts: tuple[Expr, ...] = definition.fields
                else:
                    parts = (atom,)
                    if isinstance(atom, Var):
                        mentions[atom] += 1
                inputs += (number[p].number for p in parts if isinstance(p, Var) and p in number)
            node = _Node(len(nodes), var, value, access, shape, list(dict.fromkeys(inputs)))
            nodes[position] = number[var] = node
        ordered = list(nodes.values())
        for node in ordered:
            for i in node.inputs:
                ordered[i].consumers.append(node.number)
        self.absorbed = {t for t in whole if mentions[t] == self.uses[t]}
        for t in whole - self.absorbed:  # this tuple exists outside primitives too
            for f in self.tuples[t].fields:
                if isinstance(f, Var) and f in number:
                    number[f].escapes = True
        for node in ordered:
            node.escapes |= mentions[node.var] != self.uses[node.var] or node.var in self.binding_vars
        return nodes

    def _access(self, value: Expr, number: Mapping[Var, _Node]) -> Access | None:
        if isinstance(value, Call):
            return self.table.of(value)
        if isinstance(value, Proj) and isinstance(value.tuple, Var) and isinstance(value.ty, TensorType):
            whole = number.get(value.tuple)
            if whole is not None and whole.access.kind != "opaque" and isinstance(value.ty.shape, tuple):
                return Access("elementwise", movement=True, rows=len(value.ty.shape), view=True)
        return None

    def _needs(self, bindings: list[Binding], reads: list[set[Var]], nodes: Mapping[int, _Node]) -> list[set[int]]:
        """For each binding the earlier ones that must stay before it: data, dims, the order of effects, and checks.

        A node reads the fields of a tuple, not the tuple, which a primitive makes for itself.
        """
        position = {b.var: n for n, b in enumerate(bindings)}
        needs: list[set[int]] = []
        effect = check = -1
        for n, (binding, used) in enumerate(zip(bindings, reads, strict=True)):
            need = {position[v] for v in (self._fields(used) if n in nodes else used) if v in position}
            for d in (*self.dims.of_type(binding.var.ty), *self.dims.of_value(binding.value)):
                binder = self.binders.get(d)
                if binder is not None:
                    at = position.get(binder, n)
                    if at < n:
                        need.add(at)
            if check >= 0:
                need.add(check)
            if n in nodes:  # its checks, if any, stand before it
                pass
            elif not is_atom(binding.value) and self.effects.of(binding.value) != Effect.PURE:
                if effect >= 0:
                    need.add(effect)
                effect = n
                if (
                    isinstance(binding.value, Call)
                    and isinstance(binding.value.fn, OpRef)
                    and binding.value.fn.name == CHECK_EQUAL
                ):
                    check = n
            elif is_atom(binding.value) and not says_no_less(binding.value.ty, binding.var.ty):
                check = n
            needs.append(need)
        return needs

    def _fields(self, used: set[Var]) -> set[Var]:
        out: set[Var] = set()
        for v in used:
            definition = self.tuples.get(v)
            out.update([v] if definition is None else (f for f in definition.fields if isinstance(f, Var)))
        return out

    def _several_outputs(self, grouping: _Grouping, needs: list[set[int]], position: list[int]) -> None:
        """Step 2. A group joins those that it reads elementwise at its own shape, where that makes no cycle.

        Every unit has a level above those of the units it needs. Units of one level do not depend on each other, so a
        group may join those of the highest level among what it needs, if it joins all of them: the joint unit still
        is above what it needs.
        """
        unit: dict[int, _Unit] = {}  # by position
        node_at = {p: n for n, p in enumerate(position)}
        for last in sorted(
            {max(position[n] for n in g.members) for g in grouping.groups()} | (set(range(len(needs))) - node_at.keys())
        ):
            group = grouping.of[node_at[last]] if last in node_at else None
            members = [position[n] for n in group.members] if group is not None else [last]
            below = {id(u): u for p in members for q in needs[p] if q not in members and (u := unit.get(q)) is not None}
            level = max((u.level for u in below.values()), default=0)
            top = [u for u in below.values() if u.level == level]
            groups = [
                u.group for u in top if u.group is not None and group is not None and grouping.aligned(u.group, group)
            ]
            if group is not None and groups and len(groups) == len(top) and grouping.fits([*groups, group]):
                joint = _Unit(level, grouping.merge([*groups, group]))
                members = [position[n] for n in joint.group.members] if joint.group is not None else members
            else:
                joint = _Unit(level + 1, group)
            for p in members:
                unit[p] = joint


def _bind_results(outputs: Sequence[Var], call: Call) -> list[Binding]:
    if len(outputs) == 1:
        return [Binding(outputs[0], call)]
    whole = Var("outputs", None, call.ty)
    return [Binding(whole, call), *(Binding(v, Proj(whole, n, v.ty)) for n, v in enumerate(outputs))]


def in_order(units: Sequence[Sequence[int]], needs: Sequence[set[int]]) -> list[Sequence[int]]:
    """The units (sets of positions) so that each stands after those it needs, otherwise by their last positions."""
    unit_of = {p: n for n, unit in enumerate(units) for p in unit}
    waits = [0] * len(units)
    users: list[list[int]] = [[] for _ in units]
    for n, unit in enumerate(units):
        for m in {unit_of[q] for p in unit for q in needs[p] if q in unit_of} - {n}:
            waits[n] += 1
            users[m].append(n)
    ready = [(unit[-1], n) for n, unit in enumerate(units) if not waits[n]]
    heapq.heapify(ready)
    out: list[Sequence[int]] = []
    while ready:
        _, n = heapq.heappop(ready)
        out.append(units[n])
        for m in users[n]:
            waits[m] -= 1
            if not waits[m]:
                heapq.heappush(ready, (units[m][-1], m))
    assert len(out) == len(units), "fusion made a cycle"
    return out
