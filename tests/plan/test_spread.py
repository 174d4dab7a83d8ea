"""Reductions over parts of axes that what stands in memory says: loops begin and end where a part does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.dim import Dim, DimVar, SymDim, as_dim
from relay.loop.bounds import unproved
from relay.loop.walk import buffers_used
from relay.op import registry
from relay.te.index import Indices
from relay.te.spans import as_spread
from tests.plan.harness import check, primitive, tensor

V, W, U = DimVar("n"), DimVar("d"), DimVar("k")
N, D, K = as_dim(V), as_dim(W), as_dim(U)
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def sparse(values: te.Tensor, column: te.Tensor, begin: te.Tensor, x: te.Tensor) -> te.Tensor:
    """A matrix whose rows are parts of two lists, times another."""
    k, n = te.reduce_axis(values.shape[0]), cast("SymDim", begin.shape[0])
    return te.compute(
        (n - 1, x.shape[1]),
        lambda i, j: te.sum(
            te.select((k >= begin[i]) & (k < begin[i + 1]), values[k] * x[te.cast(column[k], "int64"), j], 0.0), k
        ),
    )


def greatest(x: te.Tensor, begin: te.Tensor) -> te.Tensor:
    """The greatest number behind the first place of each part, up to its last one."""
    k, n = te.reduce_axis(x.shape[0]), cast("SymDim", begin.shape[0])
    return te.compute(
        (n - 1,),
        lambda i: te.max(te.select((begin[i] < k) & (k <= begin[i + 1]), x[k], float("-inf")), k),
    )


def boxes(x: te.Tensor, box: te.Tensor) -> te.Tensor:
    """Sums over boxes of an image, of what does not lie on its diagonal."""
    (h, w), (n, _) = x.shape, box.shape
    y, z = te.reduce_axis(h), te.reduce_axis(w)

    def element(i: Any) -> Any:
        inside = (y >= box[i, 0]) & (y <= box[i, 1]) & (box[i, 2] <= z) & (box[i, 3] > z)
        return te.sum(te.select(inside & y.not_equal(z), x[y, z] * x[y, z], 0.0), (y, z))

    return te.compute((n,), element)


def shares(scores: te.Tensor, tops: te.Tensor, x: te.Tensor, begin: te.Tensor) -> te.Tensor:
    """Sums of the rows of each part, times exponentials of their scores beside the part's own."""
    (e, d), n = x.shape, cast("SymDim", begin.shape[0])
    k = te.reduce_axis(e)
    return te.compute(
        (n - 1, d),
        lambda i, j: te.sum(
            te.select((k >= begin[i]) & (k < begin[i + 1]), te.exp(scores[k] - tops[i]) * x[k, j], 0.0), k
        ),
    )


@pytest.fixture(autouse=True)
def _operators() -> Iterator[None]:
    names: dict[str, Callable[..., object]] = {
        "spread.sparse": sparse,
        "spread.greatest": greatest,
        "spread.boxes": boxes,
        "spread.shares": shares,
    }
    for name, definition in names.items():
        registry.operator(name)(definition)
    yield
    for name in names:
        registry.remove(name)


PARTS = np.array([3, 7, 7, 9, 5, 12, -4, 40, 2, MOST, LEAST, 30, 0], "int64")
BOXES = "spread.boxes(expand_dims(%x, axis=1) * expand_dims(%x, axis=0), reshape(%b, newshape=[3, 4]))"


def agrees(module: relay.Module, given: tuple[Any, ...], argnums: tuple[int, ...], threads: int = 1) -> None:
    """Whether a program and its gradients give what the interpreter does."""
    derived = relay.value_and_grad(module, argnums=argnums)
    found: Any = relay.compile(derived, threads=threads)(*given)
    wanted: Any = relay.evaluate(derived, *given)
    for one, other in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [None, 1, 5, 16, 70])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_a_sparse_matrix(columns: int | None, threads: int) -> None:
    sizes, d = ("", columns) if columns else ("[e: Dim, n: Dim, m: Dim, d: Dim]", "d")
    e, n, m = (30, 13, 9) if columns else ("e", "n", "m")
    module = relay.parse(f"""#[version = "0.0.5"]
def @main{sizes}(%v: Tensor[({e},), float32], %c: Tensor[({e},), int32], %b: Tensor[({n},), int64], %x: Tensor[({m}, {d}), float32]) {{
  tanh(spread.sparse(%v, %c, %b, %x))
}}""")
    rng = np.random.default_rng(0)
    v, c = rng.standard_normal(30).astype("float32"), rng.integers(0, 9, 30).astype("int32")
    for many in (columns,) if columns else (1, 5, 40):
        agrees(module, (v, c, PARTS, rng.standard_normal((9, many)).astype("float32")), (0, 3), threads)


@pytest.mark.parametrize(("text", "count"), [("spread.greatest(%x, %b)", 13), (BOXES, 12)])
def test_parts_with_ends_of_any_kind(text: str, count: int) -> None:
    module = relay.parse(f"""#[version = "0.0.5"]
def @main(%x: Tensor[(20,), float32], %b: Tensor[({count},), int64]) {{ {text} }}""")
    agrees(module, (np.random.default_rng(0).standard_normal(20).astype("float32"), PARTS[:count]), (0,))


@pytest.mark.parametrize("n", [40, N])
def test_what_is_read_by_a_part_is_inside_of_its_tensor(n: Dim) -> None:
    given = [tensor((n,)), tensor((13,), "int64")]
    plan = check(primitive(given, lambda m, x, b: m("spread.greatest", x, b)), {V: 0}, {V: 40})
    assert unproved(plan.kernel) == []
    assert plan.variant == "scatter"


def test_dear_parts_are_not_made_of_all_elements_for_each_part() -> None:
    """Exponentials by element and part: those that no part has are never computed, there and in the gradients."""
    module = relay.parse("""#[version = "0.0.5"]
def @main[e: Dim, n: Dim, d: Dim](
    %s: Tensor[(e,), float32], %t: Tensor[(?t,), float32], %x: Tensor[(e, d), float32], %b: Tensor[(n,), int64]) {
  spread.shares(%s, %t, %x, %b)
}""")
    rng = np.random.default_rng(0)
    s, t, x = (rng.standard_normal(size).astype("float32") for size in ((30,), (12,), (30, 5)))
    agrees(module, (s, t, x, PARTS), (0, 1, 2))
    given = [tensor((N,)), tensor((12,)), tensor((N, D)), tensor((13,), "int64")]
    plan = check(primitive(given, lambda m, *args: m("spread.shares", *args)), {V: 30, W: 5}, {V: 7, W: 20})
    assert all(b.scope in ("operand", "register") for b in buffers_used(plan.kernel.body))


def test_ends_that_may_not_be_read_are_conditions() -> None:
    """The end of the last part is read only where there is a place."""
    begin, x = te.placeholder("b", (N,), "int64"), te.placeholder("x", (K,), "float32")
    k = te.reduce_axis(K)

    def part(shift: int) -> te.Tensor:
        return te.compute((N - 1,), lambda i: te.sum(te.select((k >= begin[i]) & (k < begin[i + shift]), x[k], 0.0), k))

    assert as_spread(part(1).stage, Indices()) is not None
    assert as_spread(part(2).stage, Indices()) is None
