"""Tensor expressions: an operator is one of these. Names are those used inside `@relay.operator` definitions."""

from relay.te.scalar import (
    Axis, Binary, Cast, Compare, Const, Load, Reduce, Scalar, Select, Size, Unary,
    binary, cast, compare, maximum, minimum, select, unary,
)  # fmt: skip
from relay.te.tensor import (
    Compute, DefinitionError, Demand, Placeholder, Scan, Stage, Tensor, Trace, Undetermined, all, any, argmax, argmin,
    broadcast_dims, broadcast_index, broadcast_shapes, compute, compute_many, const, known_is, max, min, placeholder, prod,
    reduce_axis, require, require_at_most, require_equal, scan, size, stage_bodies, stages, sum, tracing,
)  # fmt: skip

__all__ = [
    "Axis", "Binary", "Cast", "Compare", "Compute", "Const", "DefinitionError", "Demand", "Load", "Placeholder", "Reduce",
    "Scalar", "Scan", "Select", "Size", "Stage", "Tensor", "Trace", "Unary", "Undetermined", "all", "any", "argmax", "argmin",
    "binary", "broadcast_dims", "broadcast_index", "broadcast_shapes", "cast", "compare", "compute", "compute_many", "const",
    "known_is", "max", "maximum", "min", "minimum", "placeholder", "prod", "reduce_axis", "require", "require_at_most",
    "require_equal", "scan", "select", "size", "stage_bodies", "stages", "sum", "tracing", "unary",
]  # fmt: skip
