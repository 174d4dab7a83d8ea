"""The gradient of attention in one kernel: every length, mask, layout and grouping of heads beside the meaning of its definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.loop.target import Target
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import check, primitive, tensor

VB, VM, VN = DimVar("b"), DimVar("m"), DimVar("n")
B, M, N = as_dim(VB), as_dim(VM), as_dim(VN)


def cotangents(
    query: Sequence[Any],
    key: Sequence[Any],
    columns: int,
    *sizes: Any,
    dtype: str = "float32",
    mask: Sequence[Any] = (),
    mask_dtype: str = "",
    target: Target | None = None,
    **attrs: Any,
) -> KernelPlan:
    """Check the three cotangents for operands of these shapes. The result that they are given is any tensor."""
    value, result = (*key[:-1], columns), (*query[:-1], columns)
    types = [tensor(s, dtype) for s in (query, key, value, result, result)]
    types += [tensor(mask, mask_dtype or dtype)] if mask else []
    tolerance = {"float16": 6e-3, "bfloat16": 5e-2}.get(dtype, 5e-5)
    more: dict[str, Any] = {} if target is None else {"target": target}
    fn = primitive(types, lambda m, *x: m("nn.attention_cotangents", *x[:5], m.tuple(*x[5:]), **attrs))
    plan = check(fn, *sizes, tolerance=tolerance, **more)
    assert "attention" in plan.variant
    assert "matrix" not in plan.variant
    return plan


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_lengths(dtype: str) -> None:
    sizes = [{VM: m, VN: n} for m, n in [(1, 1), (1, 300), (5, 5), (7, 65), (49, 48), (100, 260)]]
    cotangents((2, M, 32), (2, N, 32), 48, *sizes, dtype=dtype)
    cotangents((2, 50, 16), (2, 70, 16), 24, dtype=dtype)


@pytest.mark.parametrize(
    ("n", "causal"), [(20, False), (48, True), (130, False), (256, True), (257, False), (300, True)]
)
def test_numbers_of_keys(n: int, causal: bool) -> None:
    """All in one block, in several, and a part of one."""
    cotangents((2, n, 8), (2, n, 8), 12, causal=causal)
    cotangents((2, 50, 8), (2, n, 8), 12, causal=not causal)


@pytest.mark.parametrize("depth", [2, 17, 80, 128])
def test_sizes_of_heads(depth: int) -> None:
    cotangents((2, 30, depth), (2, 70, depth), depth)
    cotangents((2, 30, depth), (2, 70, depth), 20)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads(causal: bool) -> None:
    cotangents((2, 6, 33, 16), (2, 2, 50, 16), 16, causal=causal)
    cotangents((2, 6, 33, 16), (2, 1, 50, 16), 16, causal=causal)
    cotangents((1, 6, 33, 16), (1, 6, 50, 16), 16, causal=causal)
    cotangents((2, 6, M, 16), (2, 2, N, 16), 16, {VM: 60, VN: 140}, {VM: 40, VN: 33}, causal=causal)


@pytest.mark.parametrize("window", [(0, 0), (3, 5), (140, 0), (300, -1)])
@pytest.mark.parametrize("hidden", [float("-inf"), -1e30, -2.0])
def test_windows(window: tuple[int, int], hidden: float) -> None:
    """Many keys, of which blocks are left out, and few where all of them count."""
    m, n = (50, 60) if hidden == -2.0 else (270, 530)
    cotangents((2, m, 16), (2, n, 16), 16, window=window, hidden=hidden)
    if hidden == -1e30:  # equal lengths and shared heads have nothing to do with what the score of hidden keys is
        cotangents((2, 300, 16), (2, 300, 16), 16, window=window, hidden=hidden)
        cotangents((1, 4, M, 16), (1, 2, N, 16), 16, {VM: 60, VN: 340}, window=window, hidden=hidden)


@pytest.mark.parametrize("hidden", [-1e30, -3e4, -2.0])
@pytest.mark.parametrize("n", [100, 300])
def test_hidden_keys_that_count(hidden: float, n: int) -> None:
    """A finite score of hidden keys counts where no other is far above it: rows that see no key, or only keys of lower scores."""
    for m in (50, n, n + 20):
        cotangents((2, m, 16), (2, n, 16), 16, causal=True, hidden=hidden)


@pytest.mark.parametrize(("kind", "n"), [("bool", 40), ("float32", 40), ("bool", 270), ("float32", 270)])
def test_masks(kind: str, n: int) -> None:
    """Every shape with either kind, length and causality, and these with each other."""
    first = (kind == "bool") == (n == 40)
    for number, shape in enumerate(((n,), (30, n), (2, 1, n), (2, 30, 1))):
        cotangents((2, 30, 16), (2, n, 16), 16, mask=shape, mask_dtype=kind, causal=(number % 2 == 0) == first)
    cotangents((2, 30, 16), (2, n, 16), 16, mask=(30, n), mask_dtype=kind, hidden=-1e30)


# A bias for each score, or one along any of the axes of batch, heads, queries and keys; along the first with fewer axes.
BIASES = [
    (2, 4, "m", "n"),
    (4, "m", "n"),
    ("m", "n"),
    (2, 1, "m", "n"),
    (2, 4, 1, "n"),
    (4, "m", 1),
    (1, 4, 1, 1),
    ("n",),
]


@pytest.mark.parametrize("shape", BIASES)
@pytest.mark.parametrize(("heads", "attrs"), [(4, {}), (2, {"causal": True}), (1, {"window": (9, 3), "hidden": -1e30})])
def test_biases(shape: tuple[int | str, ...], heads: int, attrs: dict[str, Any]) -> None:
    """What goes back to a bias is added up over what it was broadcast along: one block of keys and several, sizes of 1 and unknown ones."""

    def of(m: Any, n: Any) -> tuple[Any, ...]:
        return tuple({"m": m, "n": n}.get(size, size) if isinstance(size, str) else size for size in shape)

    cotangents((2, 4, 50, 8), (2, heads, 70, 8), 12, mask=of(50, 70), mask_dtype="float32", also=(0,), **attrs)
    sizes = [{VM: m, VN: n} for m, n in ((1, 1), (13, 1), (1, 140), (60, 61))]
    cotangents((2, 4, M, 8), (2, heads, N, 8), 8, *sizes, mask=of(M, N), mask_dtype="float32", also=(0,), **attrs)


@pytest.mark.parametrize("shape", [("m", "n"), ("m", 1), ("n",), (3, 1, "n")])
@pytest.mark.parametrize("batch", [5, 40])
def test_biases_that_much_of_a_batch_shares(shape: tuple[int | str, ...], batch: int) -> None:
    """Where few tasks would be left each has a part of the batch, fewer elements than parts or more."""
    own = tuple({"m": M, "n": N}.get(size, size) if isinstance(size, str) else size for size in shape)
    of: dict[str, Any] = {"mask": own, "mask_dtype": "float32", "also": (0,)}
    cotangents((batch, 3, M, 8), (batch, 3, N, 8), 8, *({VM: m, VN: n} for m, n in ((1, 1), (13, 9))), **of)
    if batch == 5:
        sizes = [{VB: b, VM: 7, VN: 11} for b in (1, 2, 19)]
        cotangents((B, 3, M, 8), (B, 3, N, 8), 8, *sizes, **of)


@pytest.mark.parametrize("causal", [False, True])
def test_operands_of_a_function_of_scores(causal: bool) -> None:
    """One for all scores and one that heads share, in one pass; also where many keys are seen by no row of a block."""
    own = [(3, 4, 20, 16), (3, 4, 300, 16), (3, 4, 300, 16), (3, 4, 20, 16), (3, 4, 20, 16)]
    steps = (("add", (0, 1)), ("multiply", (3, 2)), ("tanh", (4,)))
    types = [tensor(s, "float32") for s in (*own, (3, 4, 20, 300), (3, 1, 1, 300))]
    attrs: dict[str, Any] = {"score": steps, "masked": False, "causal": causal, "also": (0, 1)}
    fn = primitive(types, lambda m, *x: m("nn.attention_cotangents", *x[:5], m.tuple(*x[5:]), **attrs))
    assert "attention" in check(fn, tolerance=5e-5).variant


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 20, 30), (20, 30), (4, 1, 30), (20, 1)])
def test_biases_of_other_dtypes(dtype: str, shape: tuple[int, ...]) -> None:
    for mask_dtype in {dtype, "float32"}:
        cotangents((2, 4, 20, 8), (2, 4, 30, 8), 8, dtype=dtype, mask=shape, mask_dtype=mask_dtype, also=(0,))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "x86-64"])
def test_targets(name: str) -> None:
    cotangents((2, 4, 60, 20), (2, 2, 60, 20), 33, causal=True, target=parse_target(name))
    cotangents((2, 50, 20), (2, 270, 20), 33, causal=True, target=parse_target(name))
    for shape in ((50, 270), (2, 50, 1)):
        cotangents(
            (3, 2, 50, 20), (3, 2, 270, 20), 33, mask=shape, mask_dtype="float32", also=(0,), target=parse_target(name)
        )
