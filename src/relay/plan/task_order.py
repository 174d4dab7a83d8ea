"""In which order the tasks of a product come, each of which is a panel and a part of the rows.

Those that follow each other have the panel in common, which is read once while the left operand goes by for every panel; or
they have the rows in common, and go on with the panel beside theirs. The first is as good as any while a cache near by keeps the
left operand. A large one comes from far away every time, and then it is the panels that are read again: a part of the rows
repays one of them, which is small. Of an unknown number of rows that is decided when the kernel runs. No sum depends on it.
"""

from __future__ import annotations

from relay.ir.dim import dim_floordiv, dim_max, dim_mul
from relay.ir.types import dtype_bits
from relay.loop.ir import Stmt
from relay.plan.build import bound
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest
from relay.te.scalar import Axis, Scalar, binary, compare, extent_of, maximum, minimum, select

# A left operand of more than so many second-level caches comes from far away, unless the right one is so many times as large: then that
# would.
_NEAR, _LARGER = 4, 3


def has_far_rows(nest: ProductNest, most: int | None) -> bool | Scalar:
    """Whether tasks that have rows in common follow each other: what is known of it, or what decides when the kernel runs. ``most``: how
    many rows there are at most, if that is known."""
    p, near = nest.p, _NEAR * nest.builder.target.l2_bytes
    row = dim_mul(size_of(p.reduced), dtype_bits(p.left.dtype) // 8)
    if most is not None and isinstance(row, int) and most * row <= near:
        return False
    right = dim_mul(dim_mul(size_of(p.columns), size_of(p.reduced)), dtype_bits(p.form.right.dtype) // 8)
    left, limit = dim_mul(size_of(p.rows), row), dim_max(near, dim_floordiv(right, _LARGER))
    if isinstance(left, int) and isinstance(limit, int):
        return left > limit
    return compare("gt", extent_of(left), extent_of(limit))


def in_pairs(far: bool | Scalar, panel: tuple[Axis, Scalar], part: tuple[Axis, Scalar], pair: Axis, body: Stmt) -> Stmt:
    """What is done for the panel and the part of the rows that are number ``pair``, both with how many there are of them; ``far``: where
    those follow each other that have the rows in common (`has_far_rows`)."""
    (at, panels), (of, parts) = panel, part

    def either(yes: Scalar, no: Scalar) -> Scalar:
        return select(far, yes, no) if isinstance(far, Scalar) else yes if far else no

    inner, before, rest = (Axis(name, 1 << 40) for name in ("inner", "before", "rest"))
    return bound([
        (inner, either(panels, parts)),
        (before, binary("floordiv", pair, inner)),
        (rest, binary("sub", pair, binary("mul", before, inner))),
        # Which it is anyway: so it is seen.
        (at, minimum(maximum(either(rest, before), 0), binary("sub", panels, 1))),
        (of, either(before, rest)),
    ], body)  # fmt: skip
