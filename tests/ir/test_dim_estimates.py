"""Numbers to compare work by, of dims whose sizes are not known."""

from __future__ import annotations

from relay.ir.dim import DimVar, as_dim, dim_floordiv, dim_mod, dim_sub
from relay.ir.dim_total import dim_evaluate_total, dim_typical


def test_what_is_divided_by_nothing_is_nothing() -> None:
    """Where all sizes count alike one may divide that is the difference of two, or what is left of one by another."""
    m, n = as_dim(DimVar("m")), as_dim(DimVar("n"))
    assert dim_typical(dim_floordiv(m, dim_mod(m, n))) == 0
    assert dim_typical(dim_mod(m, dim_sub(m, n))) == 0
    k = DimVar("k")
    assert dim_evaluate_total(dim_floordiv(dim_mod(as_dim(k), 5), 2), {k: 8}) == 1
