"""Which operators share a kernel: groups of the nodes of one block's data flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from relay.ir.dim import Dim
from relay.ir.expr import Call, Expr, Proj, Var
from relay.ir.record import record
from relay.transform.access import Access
from relay.transform.dominators import NONE, DominatorTree
from relay.transform.matrix_products import shape_of


@record(slots=True, eq=False)
class Node:
    """A binding that may stand in a primitive.

    ``read`` is what it reads, of tuples the fields. ``inputs`` are numbers of producing nodes, ``consumers`` of reading ones.
    ``whole``: those of the inputs that each of its rows reads all of.
    """

    number: int
    var: Var
    value: Call | Proj
    access: Access
    shape: tuple[Dim, ...] | None
    read: tuple[Expr, ...]
    inputs: list[int]
    whole: frozenset[int] = frozenset()
    consumers: list[int] = field(default_factory=list)
    escapes: bool = False


@record(slots=True, eq=False)
class Group:
    """Nodes of one kernel, and what `Grouping.fits` must know of them without looking at each."""

    members: list[int]
    plain: bool  # elementwise and broadcast operators only
    injective: bool  # plain ones and index maps only
    turns: bool  # some move elements beside each other that are not
    looks_up: bool  # some find neighbours one by one


class Grouping:
    """The groups of one block's nodes."""

    def __init__(self, nodes: Sequence[Node], max_size: int) -> None:
        self.nodes = nodes
        self.max_size = max_size
        self.of = [self._group([n.number]) for n in nodes]
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

    def hand_over(self) -> None:
        """Step 2.

        What a group makes of what it has reduced goes to the group that reduces it again and alone reads it, where less has to be
        written so: of ``sum(x * expand_dims(sum(y, axis=[1]), axis=1), axis=[0])`` the sums in place of the product.
        """
        for group in reversed(self.groups()):
            if group.injective or len(outputs := self.outputs(group.members)) != 1 or outputs[0].escapes:
                continue
            (last,) = outputs
            readers = {id(self.of[c]): self.of[c] for c in last.consumers}
            end = self._end(group, last)
            rest = [n for n in group.members if n not in end]
            if len(readers) != 1 or not rest or not self._is_smaller(end, last):
                continue
            (reader,) = readers.values()
            taken = self._group(sorted(end))
            if not reader.injective and self.fits([taken, reader]):
                kept = self._group(rest)
                for n in rest:
                    self.of[n] = kept
                for n in end:
                    self.of[n] = taken
                self.merge([taken, reader])

    def _end(self, group: Group, last: Node) -> set[int]:
        """The operators of a group behind its reductions whose results are as large as the last one's, and read for that only."""
        members, end, todo = set(group.members), set[int](), [last.number]
        while todo:
            node = self.nodes[todo.pop()]
            if node.number in end or node.number not in members or not node.access.injective:
                continue
            if node is last or not (
                node.escapes or is_part(node.shape, last.shape) or not end.issuperset(node.consumers)
            ):
                end.add(node.number)
                todo += node.inputs
        return end

    def _is_smaller(self, end: set[int], last: Node) -> bool:
        """Whether what the operators read of their group is smaller than the last one's result, axis by axis."""
        read = {i for n in end for i in self.nodes[n].inputs if self.of[i] is self.of[n] and i not in end}
        return bool(read) and all(is_part(self.nodes[i].shape, last.shape) for i in read)

    def _group(self, members: Sequence[int]) -> Group:
        """A group of nodes, that is not theirs yet."""
        accesses = [self.nodes[n].access for n in members]
        return Group(
            list(members),
            all(a.kind in ("elementwise", "broadcast") for a in accesses),
            all(a.injective for a in accesses),
            any(a.turned is not None for a in accesses),
            any(a.looks_up for a in accesses),
        )

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

    def groups(self) -> list[Group]:
        """Every group once, its members in order; groups in the order of their first members."""
        found = list({id(g): g for g in self.of}.values())
        for group in found:
            group.members.sort()
        return found

    def aligned(self, source: Group, group: Group) -> bool:
        """Whether two groups have one iteration space: both elementwise on it, or the source's epilogue is.

        An index map of what comes from outside both is as good as elementwise: no other element of theirs is looked at.
        """
        members = {*source.members, *group.members}

        def in_place(group: Group, shape: tuple[Dim, ...] | None) -> bool:
            nodes = [self.nodes[n] for n in group.members]
            plain = group.plain or all(
                n.access.kind in ("elementwise", "broadcast") or members.isdisjoint(n.inputs) for n in nodes
            )
            return plain and all(n.shape == shape for n in nodes)

        shape = self.nodes[group.members[0]].shape
        if shape is None or not group.injective or not in_place(group, shape) or source.turns or group.turns:
            return False
        if source.injective:
            return in_place(source, shape)
        anchors = [self.nodes[n] for n in source.members if self.nodes[n].access.kind == "contraction"]
        return len(anchors) == 1 and anchors[0].shape == shape

    def computes_on_parts(self, source: Group, group: Group) -> bool:
        """Whether a group computes on slices of what a contraction makes (gates), or element by element on what is made of such: in its
        kernel, behind it, that takes a call less. (A slice by itself is read where it lies, if it need not be written.)"""
        nodes, made = [self.nodes[n] for n in group.members], set(source.members)
        reads = [n for n in nodes if not made.isdisjoint(n.inputs)]
        return (
            group.injective
            and not (source.turns or group.turns)
            and any(self.nodes[n].access.kind == "contraction" for n in source.members)
            and all(n.access.slices or n.access.kind in ("elementwise", "broadcast") for n in reads)
            and any(n.escapes or not n.access.movement for n in nodes)
        )

    def without_border_views(self, group: Group) -> list[int]:
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

    def outputs(self, members: Sequence[int]) -> list[Node]:
        """The results of a primitive of these members (all of a group, or all but views at its border)."""
        held = set(members)
        chosen = [self.nodes[n] for n in members]
        return [n for n in chosen if n.escapes or any(c not in held for c in n.consumers)] or [chosen[-1]]

    def merge(self, groups: Sequence[Group]) -> Group:
        largest = max(groups, key=lambda g: len(g.members))
        for group in groups:
            if group is not largest:
                largest.members += group.members
                largest.plain &= group.plain
                largest.injective &= group.injective
                largest.turns |= group.turns
                largest.looks_up |= group.looks_up
                for n in group.members:
                    self.of[n] = largest
        return largest

    def fits(self, groups: Sequence[Group]) -> bool:
        """Whether the nodes of these groups can be computed by one kernel without computing anything costly twice."""
        if sum(len(g.members) for g in groups) > self.max_size:
            return False
        injective = all(g.injective for g in groups)
        turns, looks_up = any(g.turns for g in groups), any(g.looks_up for g in groups)
        if injective and not turns and not looks_up:
            return True
        members = sorted(n for g in groups for n in g.members)
        nodes = [self.nodes[n] for n in members]
        if looks_up and not all(
            self._looks_up_one(n, nodes) and self._found_once(n, nodes) for n in nodes if n.access.looks_up
        ):
            return False
        if injective:
            return not turns or self._turns_in_blocks(nodes)
        if any(n.access.kind == "opaque" for n in nodes):
            return False
        contractions = [n for n in nodes if n.access.kind == "contraction"]
        reductions = [n for n in nodes if n.access.kind == "reduction"]
        if contractions:
            return len(contractions) == 1 and not reductions and self._fits_contraction(nodes, contractions[0])
        return self._turns_while_reducing(nodes, reductions) and self._fits_rows(nodes, reductions)

    def _looks_up_one(self, node: Node, nodes: Sequence[Node]) -> bool:
        """Whether what a node finds element by element is made from one operand, or from so many more that the whole is made sooner."""
        numbers = {n.number for n in nodes}
        makers = numbers.intersection(node.inputs)
        before, todo = set[int](), list(makers)
        while todo:
            at = todo.pop()
            if at not in before:
                before.add(at)
                todo += numbers.intersection(self.nodes[at].inputs)
        made = {self.nodes[n].var for n in before}
        found = {
            e for n in before for e in self.nodes[n].read if e not in made and any(d != 1 for d in shape_of(e) or ())
        }
        return len(found) < 2 or not any(_is_as_large(node.shape, self.nodes[n].shape, len(found)) for n in makers)

    def _found_once(self, node: Node, nodes: Sequence[Node]) -> bool:
        """Whether each element that a node finds is found once: what reads it here has no more elements, and one loop goes through it."""
        numbers = {n.number for n in nodes}
        reduced = set[int]()
        for n in nodes:
            if n.access.kind == "reduction" or not reduced.isdisjoint(n.inputs):
                reduced.add(n.number)
        loops = 0
        written = set[int]()  # at the places of these
        seen, todo = set[int](), [(node, node.number)]
        while todo:
            at, place = todo.pop()
            if at.number in seen:
                continue
            seen.add(at.number)
            if at.escapes or not numbers.issuperset(at.consumers):
                written.add(place)
            for reader in (self.nodes[c] for c in at.consumers if c in numbers):
                if reader.access.kind == "reduction":
                    loops += 2 if reader.access.again else 1
                elif is_part(at.shape, reader.shape):
                    return False
                elif reader.number in reduced:
                    written.add(place)
                else:
                    todo.append((reader, reader.number if reader.access.kind == "injective" else place))
        return loops + len(written) <= 1

    def _turns_in_blocks(self, nodes: Sequence[Node]) -> bool:
        """Whether elements that do not lie beside each other are moved beside each other by blocks, which are turned in registers: where
        every other operator works on what is at its own place, or at a fixed distance from it."""
        return all(
            n.access.turned is not None
            or n.access.slices
            or n.access.view
            or n.access.kind in ("elementwise", "broadcast")
            for n in nodes
        )

    def _turns_while_reducing(self, nodes: Sequence[Node], reductions: Sequence[Node]) -> bool:
        """Whether what lies beside each other in memory is read so, where some of it is moved before it is reduced: vectors go along one
        operand only, that of one reduction, whose result is smaller."""
        turning = [n for n in nodes if n.access.turned is not None]
        if not turning:
            return True
        if len(turning) != 1 or len(reductions) != 1:
            return False
        (moved,), (reduction,) = turning, reductions
        along = reduction.access.along
        if along is None or moved.access.turned not in along or reduction.shape == moved.shape:
            return False
        before, after = (
            (n for n in nodes if n.number < reduction.number),
            (n for n in nodes if n.number > reduction.number),
        )
        return all(map(_reads_one, before)) and all(n.shape == reduction.shape for n in after)

    def _fits_contraction(self, nodes: Sequence[Node], anchor: Node) -> bool:
        """Index maps before the anchor, and the gathering of its rows; after it, operators that keep its shape, move
        whole rows of it or compute on slices of it; beside it, whatever those read cheaply."""
        before, numbers = {anchor.number}, {n.number for n in nodes}
        for node in reversed(nodes):
            if node is not anchor and any(c in before for c in node.consumers):
                before.add(node.number)
        after, shapes = {anchor.number}, [anchor.shape]
        for node in nodes:
            if node is anchor:
                continue
            if any(i in after for i in node.inputs):
                after.add(node.number)
                if node.shape is None:
                    return False
                if node.access.permutes or (
                    node.access.slices and (node.escapes or not numbers.isdisjoint(node.consumers))
                ):
                    shapes.append(node.shape)
                elif node.access.kind not in ("elementwise", "broadcast") or node.shape not in shapes:
                    return False
            elif node.number in before:
                if not node.access.movement and not self._gathers_operand(node, anchor):
                    return False
            elif node.access.kind == "injective" and not node.access.movement and not node.access.gathers:
                return False
        return True

    def _gathers_operand(self, node: Node, anchor: Node) -> bool:
        """Whether a node gathers rows of the left operand of a product, which are read where they are, or whole matrices of which no
        element is read twice (one for each of a batch of products with vectors). Single rows of such are gathered before: that costs
        little, and a product of what lies together is faster."""
        if not node.access.gathers or anchor.access.windows or node.consumers != [anchor.number] or node.escapes:
            return False
        call = anchor.value
        places = [n for n, a in enumerate(call.args) if a is node.var] if isinstance(call, Call) else []
        return places == [0] or (len(places) == 1 and places[0] in anchor.access.once and node.access.matrices)

    def _fits_rows(self, nodes: Sequence[Node], reductions: Sequence[Node]) -> bool:
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
                if rows and not after.isdisjoint(node.whole):
                    return False  # each row would compute it again
                if windows and node.access.turned is not None:
                    return False  # what lies beside each other would be made one by one
                after.add(node.number)
            elif reduces:
                if node.shape is None or shape is None or node.shape[:rows] != shape[:rows]:
                    return False
                after.add(node.number)
            again = windows and any(c in windows for c in node.consumers)
            if again and (not node.access.movement or node.access.turned is not None):
                return False  # an overlapping window would compute it, or fetch it from afar, again and again
        return True


def _reads_one(node: Node) -> bool:
    """Whether no more than one operand of a node is as large as its result."""
    return sum(shape_of(e) == node.shape for e in node.read) <= 1


def is_part(shape: tuple[Dim, ...] | None, of: tuple[Dim, ...] | None) -> bool:
    """Whether a tensor has some of another's axes, and not all."""
    if shape is None or of is None:
        return False
    left = [d for d in of if d != 1]
    for dim in (d for d in shape if d != 1):
        if dim not in left:
            return False
        left.remove(dim)
    return bool(left)


def _is_as_large(shape: tuple[Dim, ...] | None, of: tuple[Dim, ...] | None, times: int) -> bool:
    """Whether so many times the elements of a tensor are known to be as many as another's."""
    if shape is None or of is None:
        return False
    numbers = [d for d in (*shape, *of) if isinstance(d, int)]
    if len(numbers) == len(shape) + len(of):
        return times * math.prod(numbers[: len(shape)]) >= math.prod(numbers[len(shape) :])
    return shape == of
