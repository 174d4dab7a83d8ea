"""What the first iteration of a recursive function is sure to run, and computing something in front of it only where it would.

A step whose slope may be infinite has a gradient of its own also where nothing reads it: 0 times infinity is no 0; and one that may fail
fails there. So such a step leaves a loop together with the conditions that it stands behind, as they are in the first iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Expr, If, Match, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TupleType, Type
from relay.op import registry
from relay.transform.blocks import nested_blocks, operands, with_nested_blocks
from relay.transform.build import type_of, zeros_of
from relay.transform.copying import Copier
from relay.transform.failing import may_fail
from relay.transform.uses import needed
from relay.typing.effects import Effects


@record(frozen=True, slots=True, eq=False)
class Turn:
    """Where a block goes on in one of those inside of it: ``at`` is the place of the choice among its bindings."""

    block: Block
    at: int
    side: int

    @property
    def choice(self) -> Expr:
        return self.block.bindings[self.at].value

    @property
    def inside(self) -> Block:
        return nested_blocks(self.choice)[self.side]

    def before(self) -> list[Binding]:
        """What it is chosen by."""
        return needed(self.block.bindings[: self.at], operands(self.choice))


def turns(body: Block, running: Collection[int], calls_itself: Collection[int], effects: Effects) -> list[Turn]:
    """The way of every iteration that is followed by another, as far as there is one: ``running`` are the blocks (by id) with a call
    of the function itself in them at any depth, ``calls_itself`` those with one of their own. What it turns by can be asked twice."""
    found: list[Turn] = []
    block = body
    while id(block) not in calls_itself:
        ways = [
            Turn(block, at, side)
            for at, b in enumerate(block.bindings)
            for side, inner in enumerate(nested_blocks(b.value))
            if id(inner) in running
        ]
        if len(ways) != 1 or not isinstance(ways[0].choice, If | Match):
            break
        if not all(_can_be_asked(b.value, effects) for b in ways[0].before()):
            break
        found += ways
        block = ways[0].inside
    return found


def _can_be_asked(value: Expr, effects: Effects) -> bool:
    if isinstance(value, Call):
        named = isinstance(value.fn, OpRef) and registry.exists(value.fn.name)
        return named and effects.of(value) == Effect.PURE and not may_fail(value)
    return isinstance(value, Tuple | Proj)


def guarded(
    way: Sequence[Turn], made: Sequence[Binding], held: Mapping[Var, int], results: Sequence[Expr]
) -> list[Binding]:
    """The bindings with those ``held`` behind so many turns of the way, and zeros where it is not gone: what follows from those is
    finite then. Each is at the place of its block's."""
    made = [*made]
    for depth in sorted(set(held.values())):
        made = _behind(way[:depth], made, {v for v, d in held.items() if d == depth}, results)
    return made


def _behind(
    way: Sequence[Turn], made: Sequence[Binding], held: Collection[Var], results: Sequence[Expr]
) -> list[Binding]:
    """Those that are held back, and what stands between them, in one choice."""
    late: set[Var] = set()  # what follows from something that is held back
    for b in made:
        if b.var in held or any(isinstance(a, Var) and a in late for a in operands(b.value)):
            late.add(b.var)
    inside = [b for b in needed(made, [b.var for b in made if b.var in held]) if b.var in late]
    if not inside:
        return [*made]
    within = {b.var for b in inside}
    outside = [b for b in made if b.var not in within]
    read = {a for b in outside for a in operands(b.value)}.union(results)
    given = [b.var for b in inside if b.var in read]
    types = tuple(type_of(v) for v in given)
    ty = types[0] if len(given) == 1 else TupleType(types)
    values, result = [*inside], given[0]
    if len(given) > 1:
        result = Var("held", None, ty)
        values.append(Binding(result, Tuple(tuple(given), ty)))
    block = Block(tuple(values), result, ty)
    for turn in reversed(way):
        block = _chosen(turn, block, ty)
    copied = Copier().copy(block)
    front = [b for b in outside if b.var not in late]
    behind = [b for b in outside if b.var in late]
    whole = copied.bindings[-1]
    if len(given) == 1:
        return [*front, *copied.bindings[:-1], Binding(given[0], whole.value), *behind]
    parts = [Binding(v, Proj(whole.var, n, v.ty)) for n, v in enumerate(given)]
    return [*front, *copied.bindings, *parts, *behind]


def _chosen(turn: Turn, inside: Block, ty: Type) -> Block:
    """What a choice gives that goes to this block where it goes on, and is zeros elsewhere."""
    choice = turn.choice
    assert isinstance(choice, If | Match)
    sides = [inside if n == turn.side else _zeros(ty) for n in range(len(nested_blocks(choice)))]
    value = with_nested_blocks(choice, sides)
    var = Var("held", None, ty)
    return Block((*turn.before(), Binding(var, _typed(value, ty))), var, ty)


def _typed(choice: Expr, ty: Type) -> Expr:
    match choice:
        case If():
            return If(choice.cond, choice.then, choice.orelse, ty, choice.span)
        case Match():
            return Match(choice.data, choice.clauses, choice.complete, ty, choice.span)
    raise AssertionError("a block goes on in a choice")


def _zeros(ty: Type) -> Block:
    bindings: list[Binding] = []

    def bound(ty: Type) -> Var:
        if isinstance(ty, TupleType):
            value: Expr = Tuple(tuple(map(bound, ty.fields)), ty)
        else:
            value = zeros_of(ty)
        var = Var("nothing", None, ty)
        bindings.append(Binding(var, value))
        return var

    result = bound(ty)
    return Block(tuple(bindings), result, ty)
