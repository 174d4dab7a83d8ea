"""Quotients that no loop counts: places along an axis that is gone through by steps which the divisor is no multiple of.

    a[(w * i + w // 2) // 224]

is read where an image of unknown width is made larger. Nobody knows which neighbours are read at one place, so each lane divides, and reads
by itself; such numbers are worth remembering, where they are asked for again and again. Where step and divisor are known, vectors divide
as they multiply, and neighbours are looked up in whole vectors (`codegen/windows.py`), where a target does that.
"""

from __future__ import annotations

from relay.te.index import Indices
from relay.te.scalar import Binary, Load, Reduce, Scalar, binary, mentioned, walk


def quotients(index: Scalar, looks_up: bool) -> list[Scalar]:
    """The quotients in an index of one axis that moves what is divided by such a step that neighbours are no digits of each other, where
    step or divisor is not known, or vectors are not looked up (``looks_up``) in vectors."""
    found: list[Scalar] = []
    for node in walk(index):
        if isinstance(node, Binary) and node.op == "floordiv" and node.dtype == "int64" and len(mentioned(node)) == 1:
            indices = Indices()
            (axis,) = mentioned(node)
            divisions = indices.divisions(indices.poly(node))
            steps = [(indices.coefficient(above, axis), by) for above, by in divisions]
            if any(
                step not in (1, -1) and not (looks_up and isinstance(step, int) and isinstance(by, int))
                for step, by in steps
            ):
                found.append(node)
    return found


def divides_dearly(node: Scalar, looks_up: bool) -> bool:
    """Whether a part is such a quotient, or a float made of nothing else but what is left over of one."""
    if node.dtype == "int64":
        return isinstance(node, Binary) and node.op == "floordiv" and any(q is node for q in quotients(node, looks_up))
    return not any(isinstance(n, Load | Reduce) for n in walk(node)) and any(
        isinstance(n, Binary)
        and n.op == "mod"
        and n.dtype == "int64"
        and quotients(binary("floordiv", n.a, n.b), looks_up)
        for n in walk(node)
    )
