"""Quotients that no loop counts: places along an axis that is gone through by steps which the divisor is no multiple of.

    a[(w * i + w // 2) // 224]

is read where an image of unknown width is made larger. Nobody knows which neighbours are read at one place, so each lane divides, and reads
by itself; such numbers are worth remembering, where they are asked for again and again. Where step and divisor are known, vectors divide
as they multiply, and neighbours are looked up in whole vectors (`codegen/windows.py`), where a target does that.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay.ir.dim import Dim
from relay.te.index import Indices
from relay.te.scalar import Binary, Load, Reduce, Scalar, binary, mentioned, walk


def quotients(index: Scalar, looks_up: bool) -> list[Scalar]:
    """The quotients in an index of one axis that moves what is divided by such a step that neighbours are no digits of each other, where
    step or divisor is not known, or vectors are not looked up (``looks_up``) in vectors."""
    return [
        node
        for node, steps in _divided(index)
        if any(
            step not in (1, -1) and not (looks_up and isinstance(step, int) and isinstance(by, int))
            for step, by in steps
        )
    ]


def repeats(index: Scalar) -> bool:
    """Whether there is a quotient of one axis by a number in an index: some neighbours are at one place, others at the next."""
    return any(_repeats(*each) for _, steps in _divided(index) for each in steps)


def _divided(index: Scalar) -> Iterator[tuple[Scalar, list[tuple[Dim | None, Dim]]]]:
    """The quotients in an index of one axis, and of the divisions in each by which step the axis moves what is divided, and by what."""
    for node in walk(index):
        if isinstance(node, Binary) and node.op == "floordiv" and node.dtype == "int64" and len(mentioned(node)) == 1:
            indices = Indices()
            (axis,) = mentioned(node)
            divisions = indices.divisions(indices.poly(node))
            yield node, [(indices.coefficient(above, axis), by) for above, by in divisions]


def dear_quotients(index: Scalar, looks_up: bool) -> list[Scalar]:
    """The `quotients` in an index; where vectors are not looked up also those that repeat, unless they are shifts."""
    found = quotients(index, looks_up)
    if not looks_up:
        found += [
            n for n, steps in _divided(index) if any(_repeats(*each) and not _is_power(each[1]) for each in steps)
        ]
    return found


def divides_dearly(node: Scalar, looks_up: bool) -> bool:
    """Whether a part is a dear quotient, or a float made of nothing else but what is left over of one, or of one that repeats, where
    vectors are not looked up."""
    if node.dtype == "int64":
        return (
            isinstance(node, Binary)
            and node.op == "floordiv"
            and any(q is node for q in dear_quotients(node, looks_up))
        )
    if any(isinstance(n, Load | Reduce) for n in walk(node)):
        return False
    mods = [n for n in walk(node) if isinstance(n, Binary) and n.op == "mod" and n.dtype == "int64"]
    wholes = [binary("floordiv", n.a, n.b) for n in mods]
    return any(quotients(q, looks_up) or (not looks_up and repeats(q)) for q in wholes)


def _repeats(step: Dim | None, by: Dim) -> bool:
    return step in (1, -1) and isinstance(by, int)


def _is_power(number: Dim) -> bool:
    return isinstance(number, int) and number & (number - 1) == 0
