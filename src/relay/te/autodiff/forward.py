"""Forward mode: from a definition and the tangents of its inputs to the tangents of its outputs, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.types import is_float
from relay.te.autodiff.arithmetic import div, mul, zero
from relay.te.autodiff.scalar import tangent
from relay.te.autodiff.stages import copied, hits, other_factors, source_of, stage, states
from relay.te.scalar import Axis, Load, Named, Reduce, Scalar, substitute
from relay.te.tensor import Compute, Placeholder, Scan, Tensor, stages

Key = tuple[int, int]


def jvp(outputs: Sequence[Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tangents of ``outputs`` for those of ``inputs`` (placeholders; None: zero); None for one that is zero whatever the sizes
    are. Raises NotDifferentiable."""
    run = _Forward()
    for given, own in zip(inputs, tangents, strict=True):
        if own is not None and is_float(given.dtype):
            run.known[_key(given)] = own
    for each in stages(outputs):
        if isinstance(each, Compute):
            for n, body in enumerate(each.bodies):
                found = run.body(each, Tensor(each, n, each.shape, body.dtype), body)
                if found is not None:
                    run.known[id(each), n] = found
        elif isinstance(each, Scan):
            found = run.scan(each)
            if found is not None:
                run.known[id(each), 0] = found
        else:
            assert isinstance(each, Placeholder)
    return [run.known.get(_key(t)) for t in outputs]


def _key(tensor: Tensor) -> Key:
    return id(tensor.stage), tensor.index


class _Forward:
    def __init__(self) -> None:
        self.known: dict[Key, Tensor] = {}

    def _load(self, node: Scalar) -> Scalar | None:
        source = source_of(node)
        own = self.known.get(_key(source)) if source is not None else None
        return None if own is None or not isinstance(node, Load) else Load(own, node.indices, own.dtype)

    def body(self, each: Compute, result: Tensor, body: Scalar) -> Tensor | None:
        """The tangent of one output of a stage."""
        if not is_float(body.dtype):
            return None
        if not isinstance(body, Reduce):
            value = tangent(body, self._load, {})
            return None if value is None else stage(f"t_{result.name}", each.axes, value)
        found = hits(each.axes, body, result) if body.kind in ("max", "min") else None
        value = tangent(body.body if found is None else found.element, self._load, {})
        if value is None or body.kind not in ("sum", "max", "min", "prod"):
            return None
        if body.kind == "prod":
            value = mul(value, other_factors(each.axes, body)[(*each.axes, *body.axes)])
        elif found is not None:
            value = found.chosen(value)
            assert value is not None
        total = stage(f"t_{result.name}", each.axes, Reduce("sum", body.axes, value, body.dtype))
        if found is None:
            return total
        return stage(f"t_{result.name}_shared", each.axes, div(total[each.axes], found.count[each.axes]))

    def scan(self, scan: Scan) -> Tensor | None:
        """The recurrence of tangents, along with the states that the recurrence itself went through."""
        before = states(scan)
        moved = Named("state", scan.state.dtype)

        def own(node: Scalar) -> Scalar | None:
            return moved if node is scan.state else self._load(node)

        start = tangent(scan.init, self._load, {})
        if start is None and tangent(scan.update, self._load, {}) is None:
            return None
        step = tangent(scan.update, own, {}) or zero(scan.state.dtype)
        axes = copied(scan.axes)
        mapping: dict[Axis, Scalar] = dict(zip(scan.axes, axes, strict=True))
        mapping[scan.state] = before[axes]
        first = substitute(start, mapping) if start is not None else zero(scan.state.dtype)
        made = Scan(
            f"t_{scan.name}", axes, scan.dim, moved, first, substitute(step, mapping), scan.reverse, scan.exclusive
        )
        return Tensor(made, 0, made.shape, scan.state.dtype)
