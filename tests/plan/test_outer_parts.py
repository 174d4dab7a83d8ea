"""Stages that go by parts of an axis that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from relay import te
from relay.ir.dim import Dim, DimVar, as_dim
from relay.loop.ir import Alloc, Buffer, For
from relay.loop.walk import statements
from relay.op import registry
from relay.plan import karatsuba
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import HOST, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
# Whose second-level cache holds nothing of what is computed here.
SMALL = replace(HOST, l2_bytes=1 << 10)


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("parts.op")(define)
    registry.remove("parts.op")


def convolution(image: tuple[Dim, ...], channels: int, what: str = "", stride: int = 1) -> Any:
    count, into, height, width = image
    window = (channels, into, 3, 3)
    args = [tensor(image), tensor(window)]
    if what:
        args.append(tensor((count, channels, (height + stride - 1) // stride, (width + stride - 1) // stride)))  # type: ignore[operator]
    ty = {"": None, ".vjp0": args[0], ".vjp1": args[1]}[what]
    return primitive(args, lambda m, *a: m(f"nn.conv2d{what}", *a, ty=ty, padding=(1, 1), strides=(stride, stride)))


def of_a_thread(plan: KernelPlan) -> list[Buffer]:
    """What each thread has for itself of the stages of a part."""
    found = (s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "worker")
    return [
        b for b in found if b.name in ("slides", "places", "products", "class", "pad", "scores", "shares", "elements")
    ]


@pytest.mark.parametrize("count", [5, 6])
def test_images_go_through_all_stages_one_by_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Where as many are left for each of the harness's threads, and where threads share out each stage of one."""
    monkeypatch.setattr(karatsuba, "_GAIN", -1e9)
    monkeypatch.setattr(karatsuba, "_LEAST", -1e9)
    fn = convolution((count, 5, 14, 17), 16)
    plan = check(fn, target=SMALL, tolerance=1e-5)
    sizes = {b.name: b.shape for b in of_a_thread(plan)}
    assert sizes["places"] == (36 * 5 * 6 * 5,) and sizes["products"] == (36 * 5 * 6 * 16,)
    # Taps are added up once, for all images.
    before = [
        s.buffer.name for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "workspace"
    ]
    assert "tap_sums" in before
    # Whichever loop has enough to share out does so.
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "parallel"]
    assert any(isinstance(i, For) and i.kind == "parallel" for o in loops for i in statements(o.body) if i is not o)
    assert not of_a_thread(check(fn, tolerance=1e-5))  # the cache holds it all


def test_results_that_are_woven_of_classes_go_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(karatsuba, "_GAIN", -1e9)
    monkeypatch.setattr(karatsuba, "_LEAST", -1e9)
    plan = check(convolution((4, 5, 14, 17), 16, ".vjp0", 2), target=SMALL, tolerance=1e-5)
    assert {"places", "products"} <= {b.name for b in of_a_thread(plan)}


def test_parts_are_large_enough_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of four places (in blocks of three) have nine rows of each product: three of them are a part."""
    monkeypatch.setattr(karatsuba, "_GAIN", -1e9)
    monkeypatch.setattr(karatsuba, "_LEAST", -1e9)
    plan = check(convolution((12, 8, 7, 7), 16), target=SMALL, tolerance=1e-5)
    assert {b.name: b.shape for b in of_a_thread(plan)}["products"] == (36 * 3 * 9 * 16,)
    assert not of_a_thread(check(convolution((2, 8, 7, 7), 16), target=SMALL, tolerance=1e-5))


def test_a_batch_of_two_products_goes_one_by_one(declare: Callable[..., object]) -> None:
    """Scores, their shares and the means that these make: of any number of them."""

    def define(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        b, i, _ = x.shape
        k, j, m = te.reduce_axis(x.shape[2]), te.reduce_axis(y.shape[1]), te.reduce_axis(y.shape[1])
        scores = te.compute((b, i, y.shape[1]), lambda n, p, q: te.sum(x[n, p, k] * y[n, q, k], k), "scores")
        whole = te.compute((b, i), lambda n, p: te.sum(te.abs(scores[n, p, m]), m), "whole")
        shares = te.compute(scores.shape, lambda n, p, q: te.exp(scores[n, p, q] / whole[n, p]), "shares")
        return te.compute(x.shape, lambda n, p, c: te.sum(shares[n, p, j] * y[n, j, c], j))

    declare(define)
    fn = primitive([tensor((N, 12, 9)), tensor((N, 20, 9))], lambda m, *a: m("parts.op", *a))
    plan = check(fn, {V: 1}, {V: 5}, {V: 6}, target=SMALL)
    sizes = {b.name: b.shape for b in of_a_thread(plan)}
    assert sizes["scores"] == sizes["shares"] == (12 * 20,)


def test_parts_that_would_read_much_again_are_none() -> None:
    """A channel of the images is a part of a gradient by the weights: all of the cotangent would be read again for its nine taps. Nor is it
    known whether images of unknown size are large enough."""
    for fn in (convolution((N, 16, 9, 9), 16, ".vjp1"), convolution((3, 5, N, N), 16)):
        assert not of_a_thread(check(fn, {V: 4}, target=SMALL))
