"""Operator fusion: groups of operator calls become primitives, one kernel each.

The grouping follows the papers (operator fusion by post-dominators) in five steps over the data flow of each block:

1. An operator joins its immediate post-dominator, together with everything on the paths between, when their tensor expressions can
   share one loop nest (`Grouping.fits`). So chains and diamonds of any length become one kernel, which has one result.
2. What a group makes of its sums goes to the group that reduces it again, where the sums are smaller (`Grouping.hand_over`).
3. A group whose result is read by another at the same indices joins it even when the result is also used elsewhere: a kernel with
   several outputs.
4. Groups that reduce the same tensor over the same axes join (`relay.transform.siblings`).
5. Views and projections at a group's border leave it: they cost nothing outside.

What joins what is decided by how an operator's expression accesses its inputs (`relay.transform.access`): a contraction takes index maps
before it (also those that find rows of its left operand, or whole matrices that it reads once) and elementwise operators of its own
shape after it; reductions take anything injective before them, and after them whatever works on the same rows (so softmax and
normalisations written out are one kernel), but nothing of which each row reads all. What is turned
or found by an index joins where it is still read along memory, or once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from relay.ir.effects import CHECK_EQUAL, Effect
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.ir.walk import bound_vars
from relay.transform.access import Access, AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import (  # fmt: skip
    all_bindings,
    all_blocks,
    body_of,
    is_atom,
    is_primitive,
    map_functions,
    nested_blocks,
    operands,
    says_no_less,
    with_nested_blocks,
)
from relay.transform.dims import DimUses, first_binders
from relay.transform.grouping import Group, Grouping, Node
from relay.transform.primitive import as_primitive_call
from relay.transform.siblings import join_siblings
from relay.transform.uses import use_counts
from relay.typing.effects import Effects


@record(frozen=True, slots=True)
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
    table: AccessTable = field(default_factory=AccessTable, repr=False, compare=False)

    def __call__(self, module: Module) -> Module:
        effects = Effects(module)

        def fuse(function: Function) -> Function:
            return function if is_primitive(function) else Fuser(self, effects, self.table, function).run()

        return map_functions(module, fuse)


@record(frozen=True, slots=True, eq=False)
class _Unit:
    """A group, or a binding that is in none, with its level (see `Fuser._several_outputs`)."""

    level: int
    group: Group | None


class Fuser:
    """Fusion of one function, block by block, inner blocks first."""

    def __init__(self, options: FuseOps, effects: Effects, table: AccessTable, function: Function) -> None:
        self.options = options
        self.effects = effects
        self.table = table
        self.function = function
        body = body_of(function)
        self.uses = use_counts(body)
        self.tuples: dict[Var, Tuple] = {}
        self.fills: dict[Var, Call] = {}
        variables: list[Var] = []
        for binding in all_bindings(body):
            variables.append(binding.var)
            if isinstance(binding.value, Tuple):
                self.tuples[binding.var] = binding.value
        self.dims = DimUses()
        self.binders = first_binders(function.params, iter(variables))
        self.binding_vars = set(self.binders.values())
        self.absorbed: set[Var] = set()
        if options.max_size > 1:
            self._find_fills(body)

    def _find_fills(self, body: Block) -> None:
        """The calls without operands that every primitive reading them can make for itself at no cost: those that are
        read element by element, or for their sizes alone."""
        for binding in all_bindings(body):
            value = binding.value
            if not isinstance(value, Call) or value.args or binding.var in self.binding_vars:
                continue
            access = self.table.of(value)
            if access is not None and access.kind == "elementwise":
                self.fills[binding.var] = value
        if not self.fills:
            return
        for binding in all_bindings(body):
            for n, atom in enumerate(operands(binding.value)):
                if not isinstance(atom, Var) or atom not in self.fills:
                    continue
                access = self.table.of(binding.value) if isinstance(binding.value, Call) else None
                # The operator itself is the first of a call's operands.
                # A view may stand outside of primitives, and reads memory there.
                if access is None or access.view or not (access.injective or n - 1 in access.unread):
                    del self.fills[atom]
        for block in all_blocks(body):
            if isinstance(block.result, Var):
                self.fills.pop(block.result, None)

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
        nodes = self.nodes(bindings)
        if not nodes:
            return [b for b in bindings if b.var not in self.fills]
        grouping, needs = self.grouped(bindings, reads, nodes)
        position = list(nodes)
        units: list[list[int]] = []
        made: dict[int, list[Binding]] = {}  # the last position of a primitive -> its bindings
        inside: set[int] = set()
        for group in grouping.groups():
            members = grouping.without_border_views(group)
            if not members:
                continue
            outputs = [n.var for n in grouping.outputs(members)]
            at = [position[n] for n in members]
            before, call = as_primitive_call([bindings[p] for p in at], outputs, self.tuples, self.fills)
            made[at[-1]] = [*before, *_bind_results(outputs, call)]
            inside.update(at)
            units.append(at)
        gone = self.absorbed | self.fills.keys()
        units += ([p] for p, b in enumerate(bindings) if p not in inside and b.var not in gone)
        return [b for unit in in_order(units, needs) for b in made.get(unit[-1], bindings[unit[-1] : unit[-1] + 1])]

    def grouped(
        self, bindings: Sequence[Binding], reads: Sequence[set[Var]], nodes: Mapping[int, Node]
    ) -> tuple[Grouping, list[set[int]]]:
        """The groups of a block's nodes (by position), and what must stand before each binding."""
        grouping = Grouping(list(nodes.values()), self.options.max_size)
        grouping.by_dominators()
        grouping.hand_over()
        needs = self._needs(bindings, reads, nodes)
        if self.options.outputs:
            join_siblings(grouping, self._several_outputs(grouping, needs, list(nodes)))
        return grouping, needs

    def nodes(self, bindings: Sequence[Binding]) -> dict[int, Node]:
        """The bindings that may stand in a primitive, by position, with their data flow."""
        nodes: dict[int, Node] = {}
        number: dict[Var, Node] = {}
        mentions: Counter[Var] = Counter()
        whole: set[Var] = set()
        for position, binding in enumerate(bindings):
            var, value = binding.var, binding.value
            access = None if var in self.fills else self._access(value, number)
            if access is None or not isinstance(value, Call | Proj):
                continue
            shape = var.ty.shape if isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple) else None
            read: list[Expr] = []
            all_of: set[int] = set()
            for n, atom in enumerate(value.args if isinstance(value, Call) else (value.tuple,)):
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
                read += parts
                if n in access.whole:
                    all_of.update(number[p].number for p in parts if isinstance(p, Var) and p in number)
            inputs = list(dict.fromkeys(number[p].number for p in read if isinstance(p, Var) and p in number))
            node = Node(len(nodes), var, value, access, shape, tuple(read), inputs, frozenset(all_of))
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

    def _access(self, value: Expr, number: Mapping[Var, Node]) -> Access | None:
        if isinstance(value, Call):
            return self.table.of(value)
        if isinstance(value, Proj) and isinstance(value.tuple, Var) and isinstance(value.ty, TensorType):
            whole = number.get(value.tuple)
            if whole is not None and whole.access.kind != "opaque" and isinstance(value.ty.shape, tuple):
                return Access("elementwise", movement=True, rows=len(value.ty.shape), view=True)
        return None

    def _needs(
        self, bindings: Sequence[Binding], reads: Sequence[set[Var]], nodes: Mapping[int, Node]
    ) -> list[set[int]]:
        """For each binding the earlier ones that must stay before it: data, dims, the order of effects, and checks.

        A node reads the fields of a tuple, not the tuple, which a primitive makes for itself.
        """
        position = {b.var: n for n, b in enumerate(bindings)}
        needs: list[set[int]] = []
        effect = check = -1
        for n, (binding, used) in enumerate(zip(bindings, reads, strict=True)):
            need = {position[v] for v in (self._fields(used) if n in nodes else used) if v in position}
            for p in [p for p in need if bindings[p].var in self.fills]:
                need |= needs[p]  # a fill is made by those that read it
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

    def _several_outputs(
        self, grouping: Grouping, needs: list[set[int]], position: list[int]
    ) -> Iterator[tuple[int, Group]]:
        """Step 3. A group joins those that it reads elementwise at its own shape, or slices of a contraction, where that makes no cycle.
        Gives the groups with their levels.

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
                u.group
                for u in top
                if u.group is not None
                and group is not None
                and (grouping.aligned(u.group, group) or grouping.computes_on_parts(u.group, group))
            ]
            if group is not None and groups and len(groups) == len(top) and grouping.fits([*groups, group]):
                joint = _Unit(level, grouping.merge([*groups, group]))
                members = [position[n] for n in joint.group.members] if joint.group is not None else members
            else:
                joint = _Unit(level + 1, group)
            for p in members:
                unit[p] = joint
        return ((u.level, u.group) for u in dict.fromkeys(unit.values()) if u.group is not None)


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
