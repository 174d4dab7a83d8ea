"""What both directions of differentiation need of reductions and scans: who won a maximum, the products of the others,
the states that a recurrence went through."""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, dim_mul, shape_size
from relay.ir.record import record
from relay.te import numeric
from relay.te.autodiff.arithmetic import choose, zero
from relay.te.scalar import Axis, Const, Load, Named, Reduce, Scalar, Select, Size, binary, compare, substitute
from relay.te.shared import Shared
from relay.te.tensor import Scan, Tensor, const, stage_over


def axes_of(shape: Sequence[Dim]) -> tuple[Axis, ...]:
    """Fresh axes over a shape."""
    return tuple(Axis("ijklmnopq"[n] if n < 9 else f"i{n}", d) for n, d in enumerate(shape))


def copied(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Fresh axes like these."""
    return tuple(Axis(a.name, a.extent, a.dtype) for a in axes)


def stage(name: str, axes: Sequence[Axis], body: Scalar) -> Tensor:
    """The tensor of an expression, or of a reduction of one, over axes; what is equal in it is one node."""
    return stage_over(name, axes, (body,), Shared().of)[0]


@record(frozen=True, slots=True, eq=False)
class Hits:
    """Which elements of a maximum or minimum are the extreme one. ``element`` is the body without the choices around it that leave
    elements out; ``count`` (a tensor like the result) is how many are extreme: what is drawn is shared among them equally."""

    element: Scalar
    conditions: tuple[Scalar, ...]
    hit: Scalar
    count: Tensor

    def chosen(self, value: Scalar | None) -> Scalar | None:
        """``value`` for extreme elements, zero for others and for what is left out; outer choices are made first."""
        for condition in (self.hit, *reversed(self.conditions)):
            value = choose(condition, value, None, self.count.dtype)
        return value


def hits(axes: Sequence[Axis], body: Reduce, result: Tensor) -> Hits:
    """The extreme elements of a maximum or minimum whose result is a tensor over ``axes``."""
    element, conditions, left_out = body.body, [], numeric.identity(body.kind, body.dtype)
    while isinstance(element, Select) and isinstance(element.b, Const) and element.b.value == left_out:
        conditions.append(element.cond)
        element = element.a
    hit = compare("eq", element, result[tuple(axes)])
    counted: Scalar = const(1.0, result.dtype)
    for condition in (hit, *reversed(conditions)):
        counted = Select(condition, counted, zero(result.dtype), result.dtype)
    count = stage(f"{result.name}_ties", axes, Reduce("sum", body.axes, counted, result.dtype))
    return Hits(element, tuple(conditions), hit, count)


def other_factors(axes: Sequence[Axis], body: Reduce) -> Tensor:
    """For a product: the product of all other elements, for each element: a tensor over the axes and the reduced axes.

    Of what comes before and what comes after, each by a scan: no division, so zeros among the elements do no harm."""
    over = body.axes
    size = shape_size(tuple(a.extent for a in over))
    flat = Axis("k", size)
    element = stage(
        "factors", (*axes, flat), substitute(body.body, dict(zip(over, unflattened(flat, over), strict=True)))
    )
    parts: list[Tensor] = []
    for reverse in (False, True):
        at = copied((*axes, flat))
        state = Named("state", element.dtype)
        update = binary("mul", state, element[at])
        one = const(1.0, element.dtype)
        scan = Scan("products", at, len(axes), state, one, update, reverse=reverse, exclusive=True)
        parts.append(Tensor(scan, 0, scan.shape, element.dtype))
    place = (*axes, flattened(over))
    return stage("other_factors", (*axes, *over), binary("mul", parts[0][place], parts[1][place]))


def flattened(axes: Sequence[Axis]) -> Scalar:
    """The row-major position of an index."""
    position: Scalar = axes[0]
    for axis in axes[1:]:
        position = binary("add", binary("mul", position, index_size(axis.extent)), axis)
    return position


def unflattened(position: Scalar, axes: Sequence[Axis]) -> list[Scalar]:
    """The index over ``axes`` at a row-major position."""
    out: list[Scalar] = []
    stride: Dim = 1
    for n, axis in reversed(list(enumerate(axes))):
        index = position if stride == 1 else binary("floordiv", position, index_size(stride))
        out.append(index if n == 0 else binary("mod", index, index_size(axis.extent)))
        stride = dim_mul(stride, axis.extent)
    return list(reversed(out))


def index_size(dim: Dim) -> Scalar:
    """A dim as an index."""
    return const(dim, "int64") if isinstance(dim, int) else Size(dim)


def states(scan: Scan) -> Tensor:
    """The state before each update of a recurrence."""
    if scan.exclusive:
        return Tensor(scan, 0, scan.shape, scan.state.dtype)
    before = Scan(
        f"{scan.name}_before", scan.axes, scan.dim, scan.state, scan.init, scan.update, scan.reverse, exclusive=True
    )
    return Tensor(before, 0, before.shape, scan.state.dtype)


def source_of(node: Scalar) -> Tensor | None:
    """The tensor that a load reads."""
    return node.source if isinstance(node, Load) and isinstance(node.source, Tensor) else None
