"""Products whose panels are gone through from the last one every other time, so that a cache has what was read last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.dim import DimVar, as_dim
from relay.loop.ir import TURN
from relay.loop.walk import nodes
from relay.plan import reading
from relay.plan.build import Residence
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, plan_graph
from relay.plan.key import plan_key
from relay.te.evaluate import evaluate
from relay.te.scalar import Axis
from tests.plan.harness import HOST, Context, Native, asked_for, check, fresh_name, primitive, random, tensor

SMALL = replace(HOST, l2_bytes=64 << 10)
WEIGHT = frozenset({1})
V = DimVar("n")


def plan_of(
    rows: object, columns: int, depth: int, biased: bool = False, ahead: frozenset[int] = WEIGHT,
    weights: Residence = Residence.PART,
) -> KernelPlan:  # fmt: skip
    given = [tensor((rows, depth)), tensor((columns, depth)), *([tensor((columns,))] if biased else [])]
    fn = primitive(
        given, lambda m, x, w, *b: m("tanh", m("add", m("nn.dense", x, w), b[0])) if b else m("nn.dense", x, w)
    )
    return plan_graph(te_graph(fn), SMALL, plan_key(fn, SMALL, ahead), ahead, fresh_name(), weights=weights)


def goes_back(plan: KernelPlan) -> bool:
    return any(n is TURN for n in nodes(plan.kernel.body) if isinstance(n, Axis))


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 300, 100), (1, 450, 200), (3, 512, 64), (1, 70, 200), (5, 300, 100), (11, 70, 200), (24, 150, 300)],
)
@pytest.mark.parametrize("ahead", [WEIGHT, frozenset[int]()])
def test_the_order_changes_nothing(rows: int, columns: int, depth: int, ahead: frozenset[int]) -> None:
    """For one thread, for several with a part each, which are not all as long, and for more than there are panels; of packed weights,
    and of such that are read where they are."""
    plan = plan_of(rows, columns, depth, biased=True, ahead=ahead)
    assert goes_back(plan)
    check_orders(plan, rows, columns, depth, ahead)


@pytest.mark.parametrize("rows", [2, 5, 11, 48, 49])
def test_the_order_changes_nothing_of_an_unknown_number_of_rows(rows: int) -> None:
    check_orders(plan_of(as_dim(V), 150, 300, biased=True), rows, 150, 300)


def check_orders(plan: KernelPlan, rows: int, columns: int, depth: int, ahead: frozenset[int] = WEIGHT) -> None:
    native = Native(plan.kernel, SMALL)
    x: Any = random((rows, depth), "float32")
    w: Any = random((columns, depth), "float32", 1)
    b: Any = random((columns,), "float32", 2)
    packed = evaluate([plan.packs[0].packed], {plan.packs[0].source: w})[0] if ahead else w
    found = []
    for workers in (1, 2, 3, 64):
        for turn in (0, 1):
            out = np.full((rows, columns), 77, np.float32)
            arguments = native.bind([x, packed, b, out], {V: rows}, workers)
            context = arguments[0]
            assert isinstance(context, Context)
            context.turn = turn
            assert native.run(arguments) == 0
            found.append(out)
    np.testing.assert_allclose(found[0], np.tanh(x @ w.T + b), rtol=2e-5, atol=5e-5)
    for out in found[1:]:
        np.testing.assert_array_equal(out, found[0])


def test_what_a_cache_holds_and_what_is_far_larger_is_read_in_order() -> None:
    assert not goes_back(plan_of(1, 64, 100)) and not goes_back(plan_of(1, 3000, 400))
    assert not goes_back(plan_of(49, 300, 100)) and goes_back(
        plan_of(as_dim(V), 300, 100)
    )  # unknown: for one row or a few


@pytest.mark.parametrize(("columns", "depth"), [(150, 45), (256, 40), (70, 70)])
def test_a_row_goes_back_through_what_the_first_level_cache_has_in_part(columns: int, depth: int) -> None:
    """Of what a loop reads alone, more than half of that cache; of two rows it is no gain."""
    assert SMALL.l1_bytes // 2 < 4 * columns * depth and not goes_back(
        plan_of(1, columns, depth // 4, weights=Residence.NEAR)
    )
    plan = plan_of(1, columns, depth, biased=True, weights=Residence.NEAR)
    assert goes_back(plan) and not goes_back(plan_of(2, 64, 100, weights=Residence.NEAR))
    check_orders(plan, 1, columns, depth)
    check_orders(plan_of(as_dim(V), columns, depth, biased=True, weights=Residence.NEAR), 1, columns, depth)
    check_orders(plan_of(as_dim(V), columns, depth, biased=True, weights=Residence.NEAR), 3, columns, depth)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(12, 256, 60), (12, 128, 400), (8, 240, 100)])
def test_what_is_asked_for_is_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, depth: int
) -> None:
    """Going back it is the panel before, of a depth in several blocks its first block; nothing before the first panel is what is read."""
    plan = plan_of(rows, columns, depth)
    packed = plan.packs[0].packed
    panels, _, pitch = packed.shape
    assert goes_back(plan) and isinstance(panels, int) and isinstance(pitch, int)
    monkeypatch.setattr(reading, "_BITS_AHEAD", 8 << 10)
    for turn in (0, 1):
        found = asked_for(plan.kernel, threads=1, turn=turn)
        lines = {((number * depth + step) * pitch + at) // 16 for _, (number, step, at) in found}
        size = depth * pitch // 16
        wanted = range(size * (panels - 1)) if turn else range(size, size * panels)
        assert len(lines.intersection(wanted)) >= 0.9 * len(wanted)


def test_every_number_of_rows() -> None:
    fn = primitive([tensor((as_dim(V), 100)), tensor((300, 100))], lambda m, x, w: m("nn.dense", x, w))
    check(fn, *({V: n} for n in (0, 1, 2, 7, 13)), constants=WEIGHT, target=SMALL)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_calls_and_threads_agree(executor: str) -> None:
    """The same call twice, and on two threads, bit for bit."""
    size = 1200  # 5.8 MB of weights
    rng = np.random.default_rng(0)
    text = f"""#[version = "0.0.5"]
def @main(%x: Tensor[(1, {size}), float32], %w: Tensor[({size}, {size}), float32]) {{ nn.dense(nn.dense(%x, %w), %w) }}"""
    module = relay.parse(text).bind({"w": (rng.standard_normal((size, size)) / 30).astype(np.float32)})
    x = rng.standard_normal((1, size)).astype(np.float32)
    found = [
        np.asarray(exe(x)).copy()
        for t in (1, 2)
        for exe in [relay.compile(module, executor=executor, threads=t)]
        for _ in range(3)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
