"""Equal stages as one.

An operator and its derivatives are defined apart, and each has what it needs of the forward direction: in a primitive that calls several of
them the same stages stand several times, and what reads them is made as often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from relay.te.rewrite import output_dtypes, rewritten
from relay.te.scalar import Axis, Named, Reduce, Scalar, transform, walk
from relay.te.shared import Shared
from relay.te.tensor import Placeholder, Scan, Stage, Tensor, stage_bodies, stages


def with_equal_stages_shared(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, where no two stages compute the same from the same; two of the tensors may have become one."""
    found = Counter(_outline(stage) for stage in stages(outputs) if not isinstance(stage, Placeholder))
    alike = {outline for outline, times in found.items() if times > 1}
    if not alike:
        return tuple(outputs)
    forms = _Forms()
    first: dict[tuple[object, ...], Stage] = {}

    def visit(stage: Stage) -> Stage:
        if isinstance(stage, Placeholder) or _outline(stage) not in alike:
            return stage
        return first.setdefault(forms.of(stage), stage)

    return rewritten(outputs, visit)


def _outline(stage: Stage) -> tuple[object, ...]:
    """What equal stages have in common at the least."""
    return (type(stage), stage.shape, output_dtypes(stage), *(len(walk(body)) for body in stage_bodies(stage)))


class _Forms:
    """Stages over index variables that are named by their places, of nodes that are the same where they are equal."""

    def __init__(self) -> None:
        self._shared = Shared()
        self._axes: dict[tuple[object, ...], Axis] = {}

    def of(self, stage: Stage) -> tuple[object, ...]:
        """The form of a stage: that of another one is equal only if they compute the same from the same stages."""
        own: dict[Axis, Axis] = {}

        def axis(given: Axis) -> Axis:
            if given not in own:
                key = (len(own), type(given), given.extent, given.dtype)
                name = f"a{len(own)}"
                made = Named(name, given.dtype) if isinstance(given, Named) else Axis(name, given.extent, given.dtype)
                own[given] = self._axes.setdefault(key, made)
            return own[given]

        def visit(node: Scalar) -> Scalar:
            if isinstance(node, Axis):
                return axis(node)
            if isinstance(node, Reduce):
                node = Reduce(node.kind, tuple(map(axis, node.axes)), node.body, node.dtype)
            return self._shared.of(node)

        assert not isinstance(stage, Placeholder)
        axes = tuple(map(axis, stage.axes))
        rest = (stage.dim, axis(stage.state), stage.reverse, stage.exclusive) if isinstance(stage, Scan) else ()
        memo: dict[int, Scalar] = {}
        return (axes, rest, *(transform(body, visit, memo) for body in stage_bodies(stage)))
