"""What follows sums element by element, made of them while they are in registers.

    for lines { for taps { acc += x };  s[line] = acc }  for lines { y[line] = s[line] / count[line] }
    ->   for lines { for taps { acc += x };  y[line] = acc / count[line] }

Of windows (a mean, a convolution with its bias) a pass over what was just stored takes as long as the sums of a few taps, and longer where
the last vector of a line was stored under a mask: what is read then waits until that is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from relay.ir.dim import known_equal, shape_size
from relay.ir.record import record
from relay.loop.ir import LetScalar, Stmt
from relay.plan.build import seq
from relay.plan.graph import loads
from relay.plan.row_parts import MemberPlan, targets
from relay.te.scalar import Axis, Load, Named, Scalar, binary, extent_of, transform
from relay.te.tensor import Scan

if TYPE_CHECKING:
    from relay.plan.row_members import Emitter

# Memory that nobody sees outside of a nest.
_OWN = ("stack", "register", "worker")


@record(frozen=True, slots=True, eq=False)
class Epilogue:
    """The member that follows the ``sums``, and nothing else reads them."""

    sums: MemberPlan
    plan: MemberPlan

    def stored(self, emitter: Emitter, place: Mapping[Axis, Scalar], value: Scalar) -> Stmt:
        """What is made of a sum at a place, where it belongs."""
        for own, at in _places(self.plan.inner, self.sums.inner, [place[axis] for axis in self.sums.inner]):
            emitter.bind(own, at)
        (where,) = targets(emitter.builder, self.sums)
        name = Named(emitter.builder.fresh("e"), value.dtype)

        def at_hand(node: Scalar) -> Scalar:
            return name if isinstance(node, Load) and node.source is where.buffer else node

        values = [transform(v, at_hand) for v in emitter.values(self.plan)]
        return LetScalar(name, value, seq([emitter.store(self.plan, n, v) for n, v in enumerate(values)]))


def epilogue(emitter: Emitter, sums: MemberPlan, plan: MemberPlan, later: Sequence[MemberPlan]) -> Epilogue | None:
    """The member behind sums as what is made of each of them, if it reads of them the one at hand alone and nobody reads them ``later``."""
    kept, builder = plan.member.kept, emitter.builder
    axes, places = _places(plan.inner, sums.inner, sums.inner), emitter.places(sums)
    if kept.is_reduction or isinstance(kept.stage, Scan) or not axes or len(places) != 1:
        return None
    ((where, index),) = places
    written = {id(w.buffer) for w in targets(builder, plan)}
    if where.buffer.scope not in _OWN and id(where.buffer) not in written:
        return None
    if any(id(where.buffer) in emitter.reads(p) for p in later) or not written.isdisjoint(emitter.reads(sums)):
        return None
    before = emitter.env
    for own, axis in axes:
        emitter.bind(own, axis)
    at = builder.indices.poly(builder.flat(where, index))
    found = [load for value in emitter.values(plan) for load in loads(value) if load.source is where.buffer]
    emitter.env = before
    alike = bool(found) and all(builder.indices.poly(load.indices[0]) == at for load in found)
    return Epilogue(sums, plan) if alike else None


def _places(axes: Sequence[Axis], others: Sequence[Axis], at: Sequence[Scalar]) -> list[tuple[Axis, Scalar]]:
    """Where each of some axes is if others are ``at`` these places: the same ones, or all of them as one. Empty where they are neither."""
    if len(axes) == len(others) and all(known_equal(a.extent, b.extent) for a, b in zip(axes, others, strict=True)):
        return list(zip(axes, at, strict=True))
    if len(axes) != 1 or not known_equal(axes[0].extent, shape_size(tuple(a.extent for a in others))):
        return []
    place = at[0]
    for axis, own in zip(others[1:], at[1:], strict=True):
        place = binary("add", binary("mul", place, extent_of(axis.extent)), own)
    return [(axes[0], place)]
