"""Quotients that no loop counts: places along an axis that is gone through by steps which the divisor is no multiple of.

    a[(w * i + w // 2) // 224]

is read where an image of unknown width is made larger. Nobody knows which neighbours are read at one place, so each lane divides, and reads
by itself; such numbers are worth remembering, where they are asked for again and again. Where step and divisor are known, vectors divide
as they multiply, and neighbours are looked up in whole vectors (`codegen/windows.py`), where a target does that: of places that rise by
so much from lane to lane at least as it says (`Target.looked_up_from`, ``steep`` here).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from relay.ir.dim import Dim
from relay.ir.record import record
from relay.te.index import Indices
from relay.te.scalar import Binary, Load, Reduce, Scalar, binary, mentioned, walk


@record(frozen=True, slots=True, eq=False)
class _Quotient:
    """A quotient of one axis: of the divisions in it by which step the axis moves what is divided, and by what; and by how much it rises
    from one place to the next (None: nobody knows)."""

    node: Scalar
    steps: list[tuple[Dim | None, Dim]]
    rise: float | None

    def is_looked_up(self, steep: float) -> bool:
        """Whether neighbours are looked up in whole vectors, where places have to rise by so much for that."""
        return steep < inf and (self.rise is None or self.rise >= steep)


def quotients(index: Scalar, steep: float) -> list[Scalar]:
    """The quotients in an index of one axis that moves what is divided by such a step that neighbours are no digits of each other, where
    step or divisor is not known, or vectors are not looked up in vectors."""
    return [
        found.node
        for found in _divided(index)
        if any(
            step not in (1, -1) and not (isinstance(step, int) and isinstance(by, int) and found.is_looked_up(steep))
            for step, by in found.steps
        )
    ]


def repeats(index: Scalar, steep: float) -> bool:
    """Whether there is a quotient of one axis by a number in an index, where vectors are not looked up: some neighbours are at one place,
    others at the next."""
    return any(_repeats(*each) and not q.is_looked_up(steep) for q in _divided(index) for each in q.steps)


def _divided(index: Scalar) -> Iterator[_Quotient]:
    """The quotients in an index of one axis."""
    for node in walk(index):
        if isinstance(node, Binary) and _is_quotient(node) and len(mentioned(node)) == 1:
            indices = Indices()
            (axis,) = mentioned(node)
            divisions = indices.divisions(indices.poly(node))
            step, by = indices.coefficient(indices.poly(node.a), axis), indices.poly(node.b)
            rise = abs(step) / by if isinstance(step, int) and isinstance(by, int) and by > 0 else None
            yield _Quotient(node, [(indices.coefficient(above, axis), by) for above, by in divisions], rise)


def divides_again(roots: Iterable[Scalar]) -> bool:
    """Whether a quotient is part of what is divided: the gradient of images made larger by no whole number finds most of a place where it
    is read, whatever of it is a table."""
    above = ("floordiv", "mod")
    divided = (n for r in roots for n in walk(r) if isinstance(n, Binary) and n.op in above)
    return any(n.dtype == "int64" and _is_quotient(inner) for n in divided for inner in walk(n.a))


def _is_quotient(node: Scalar) -> bool:
    return isinstance(node, Binary) and node.op == "floordiv" and node.dtype == "int64"


def dear_quotients(index: Scalar, steep: float) -> list[Scalar]:
    """The `quotients` in an index; where vectors are not looked up also those that repeat, unless they are shifts."""
    found = quotients(index, steep)
    found += [
        q.node
        for q in _divided(index)
        if not q.is_looked_up(steep) and any(_repeats(*each) and not _is_power(each[1]) for each in q.steps)
    ]
    return found


def divides_dearly(node: Scalar, steep: float) -> bool:
    """Whether a part is a dear quotient, or a float made of nothing else but what is left over of one, or of one that repeats, where
    vectors are not looked up."""
    if node.dtype == "int64":
        return _is_quotient(node) and any(q is node for q in dear_quotients(node, steep))
    if any(isinstance(n, Load | Reduce) for n in walk(node)):
        return False
    mods = [n for n in walk(node) if isinstance(n, Binary) and n.op == "mod" and n.dtype == "int64"]
    wholes = [binary("floordiv", n.a, n.b) for n in mods]
    return any(quotients(q, steep) or repeats(q, steep) for q in wholes)


def _repeats(step: Dim | None, by: Dim) -> bool:
    return step in (1, -1) and isinstance(by, int)


def _is_power(number: Dim) -> bool:
    return isinstance(number, int) and number & (number - 1) == 0
