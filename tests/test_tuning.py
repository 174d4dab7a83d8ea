"""Schedules found by measuring: what is chosen from times, what is measured, what is kept, and that no result changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import loading, pipeline, tuning
from relay.ir.diagnostics import CompileError
from relay.ir.module import Module
from relay.plan.schedule import MODEL, Case, Schedule
from relay.tuning import choose

NARROW, WIDE = Schedule(1, (Case(rows=8),)), Schedule(3, (Case(rows=4),))
LOW = Schedule(3, (Case(rows=2, block=48),))
TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 64), float32], %w: Tensor[(64, 80), float32]) {{ {}(nn.matmul(%x, %w)) }}"""


def test_what_is_best_on_average_is_chosen() -> None:
    assert choose([MODEL, NARROW, WIDE], {1: [1.0, 1.0, 0.7], 64: [1.0, 1.1, 0.9]}) == WIDE


def test_the_model_is_replaced_only_by_what_is_clearly_better() -> None:
    assert choose([MODEL, NARROW], {1: [1.0, 0.99], 64: [1.0, 0.98]}) == MODEL


def test_a_few_rows_may_have_a_schedule_of_their_own() -> None:
    times = {1: [1.0, 0.9, 0.5], 2: [1.0, 0.9, 0.6], 64: [1.0, 0.8, 0.9], 256: [1.0, 0.8, 1.2]}
    assert choose([MODEL, WIDE, LOW], times) == Schedule(3, (Case(2, 2, 48), Case(None, 4)))


def test_other_widths_are_no_cases() -> None:
    times = {1: [1.0, 0.9, 0.5], 64: [1.0, 0.4, 2.0]}  # panels are packed in one width
    assert choose([MODEL, WIDE, NARROW], times) == WIDE


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(1, (Case(4, 2, 6), Case(9, 5, 10), Case(None, 8, 16))),
        Schedule(3, (Case(13, 3), Case())),
        Schedule(6, (Case(None, 4, 8),)),
        Schedule(None, (Case(2, 1), Case(None, 6, 12))),
    ],
)
def test_every_schedule_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, schedule: Schedule, constant: bool
) -> None:
    monkeypatch.setattr(tuning.Tuner, "__call__", lambda *_: schedule)
    module, w = program("tanh", bound=constant)
    made = pipeline.build(module, relay.Options(tune=True, cache=False))
    assert schedule in [plan.schedule for plan in made.plan.kernels if plan.products]
    tuned, plain = relay.Executable.from_bytes(made.image.to_bytes(), None), by_the_model(constant)
    for n in (0, 1, 2, 3, 4, 5, 9, 10, 13, 14, 33, 64):
        args = [np.random.default_rng(n).standard_normal((n, 64), dtype=np.float32)] + ([] if constant else [w])
        assert np.array_equal(np.asarray(tuned(*args)), np.asarray(plain(*args))), n


def test_what_comes_to_the_same_kernel_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times, counts = tuning._times, list[int]()
    wide = [Schedule(1, (Case(rows=8),)), Schedule(1, (Case(rows=8),)), Schedule(2, (Case(rows=4),))]
    monkeypatch.setattr(tuning, "_schedules", lambda *_: [*wide, *wide])

    def counted(found: list[Any], arguments: list[Any]) -> list[float]:
        counts.append(len(found))
        return times(found, arguments)

    monkeypatch.setattr(tuning, "_times", counted)
    pipeline.build(program("exp", bound=True)[0], relay.Options(tune=True, cache=False))
    assert counts[0] == 2


@cache
def by_the_model(constant: bool) -> relay.Executable:
    return relay.compile(program("tanh", bound=constant)[0])


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little to measure."""
    monkeypatch.setattr(tuning, "_SWEEP", (1, 64))
    monkeypatch.setattr(tuning, "_MOST_VECTORS", 2)
    monkeypatch.setattr(tuning, "_BLOCKS", (48,))
    monkeypatch.setattr(tuning, "_TURNS", 2)


@pytest.mark.usefixtures("brief")
def test_what_was_found_is_kept_for_other_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning, "choose", lambda schedules, times: schedules[-1])
    module, _ = program("exp")
    first = [p.schedule for p in pipeline.build(module, relay.Options(tune=True, cache_dir=tmp_path)).plan.kernels]
    assert MODEL not in first

    def measured(*_: object) -> list[float]:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuning, "_times", measured)
    other, _ = program("exp", seed=1)  # other weights, the same kernel
    again = [p.schedule for p in pipeline.build(other, relay.Options(tune=True, cache_dir=tmp_path)).plan.kernels]
    assert again == first
    for file in (tmp_path / "schedules").iterdir():
        file.write_text("{}")
    with pytest.raises(AssertionError, match="measured again"):  # a damaged file says nothing
        pipeline.build(other, relay.Options(tune=True, cache_dir=tmp_path))


@pytest.mark.usefixtures("brief")
def test_measuring_end_to_end(tmp_path: Path) -> None:
    module, _ = program("tanh")
    tuned = relay.compile(module, tune=True, cache_dir=tmp_path, threads=1)
    plain = relay.compile(module, cache_dir=tmp_path, threads=1)
    assert not tuned.from_cache and not plain.from_cache  # two programs
    assert relay.compile(module, tune=True, cache_dir=tmp_path, threads=1).from_cache
    assert not relay.compile(module, tune=True, cache_dir=tmp_path, threads=2).from_cache
    x = np.ones((7, 64), np.float32)
    assert np.array_equal(np.asarray(tuned(x)), np.asarray(plain(x)))
    assert len(list((tmp_path / "schedules").glob("*.json"))) == 2  # for one thread and for two


@pytest.mark.usefixtures("brief")
def test_sizes_that_no_operand_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "choose", lambda schedules, times: schedules[-1])
    text = """#[version = "0.0.5"]
    def @main[n: Dim, m: Dim](%x: Tensor[(n, 32), float32], %y: Tensor[(m, 32), float32], %w: Tensor[(32, 80), float32]) {
      nn.relu(nn.matmul(concatenate((%x, %y), axis=0), %w))
    }"""
    made = pipeline.build(loading.as_module(text), relay.Options(tune=True, cache=False))
    assert MODEL not in [plan.schedule for plan in made.plan.kernels if plan.products]


POOL = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 64, 14, 14), float32]) {
  nn.relu(nn.max_pool2d(%x, pool_size=[3, 3], padding=[1, 1])) * nn.avg_pool2d(%x, pool_size=[3, 3], padding=[1, 1]) }"""


@pytest.mark.parametrize("fast", [0, 1])
@pytest.mark.parametrize("images", ["1", "n", "most"])
def test_layouts_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fast: int, images: str) -> None:
    """What takes turns are kernels of both forms; where the laid out one is faster it is taken. Kept for other programs like it. Of an
    unknown number of images a few are measured, as far as its bounds allow."""
    text = POOL.replace("@main(", "@main[n: Dim, most: Dim(1, 2)](").replace("(1, 64", f"({images}, 64")
    turns = 0

    def times(candidates: Any, given: Any) -> list[float]:
        nonlocal turns
        turns += 1
        assert given[0].shape[0] == {"1": 1, "n": 8, "most": 2}[images]
        first, second = (np.asarray(c.run(*given)) for c in candidates)
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)  # taps above each other may be added first
        return [2.0 - n if fast else 1.0 + n for n in (0, 1)]

    monkeypatch.setattr(tuning, "_times", times)
    options = relay.Options(tune=True, cache_dir=tmp_path)
    made = pipeline.build(loading.as_module(text), options)
    assert turns == 4
    assert ("laid_out" in made.module.text()) == bool(fast)
    again = pipeline.build(loading.as_module(text), options)
    assert turns == 4 and again.module.text() == made.module.text()
    for n, file in enumerate((tmp_path / "schedules").iterdir()):
        file.write_text(("{}", "[]", "[1.0]", "nothing")[n % 4])
    assert pipeline.build(loading.as_module(text), options).module.text() == made.module.text()
    assert turns == 8  # a damaged file says nothing
    x = np.random.default_rng(0).standard_normal((1, 64, 14, 14), dtype=np.float32)
    tuned = relay.Executable.from_bytes(made.image.to_bytes(), None)
    plain = relay.compile(text, cache_dir=tmp_path)
    np.testing.assert_allclose(np.asarray(tuned(x)), np.asarray(plain(x)), rtol=1e-5, atol=1e-6)


def test_small_kernels_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_times", None)
    text = """#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(4, 8), float32]) { nn.matmul(%x, %w) }"""
    made = pipeline.build(loading.as_module(text), relay.Options(tune=True, cache=False))
    assert [p.schedule for p in made.plan.kernels] == [MODEL]


def test_another_machine_cannot_be_tuned_for() -> None:
    with pytest.raises(CompileError, match="cannot run those for aarch64"):
        relay.compile(TEXT.format("exp"), tune=True, target="aarch64", cache=False)


def program(op: str, bound: bool = True, seed: int = 0) -> tuple[Module, npt.NDArray[np.float32]]:
    """A program with one matrix product, and the weights that are bound in it or are to be given."""
    w = np.random.default_rng(seed).standard_normal((64, 80), dtype=np.float32)
    module = loading.as_module(TEXT.format(op))
    return (module.bind({"w": w}) if bound else module), w
