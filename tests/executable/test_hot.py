"""Variants for frequent sizes: made in the background, measured, persisted, and never another result."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import hot
from relay.hot import HotExecutable, with_sizes
from relay.ir.diagnostics import CompileError, ShapeError
from relay.ir.dim import DimVar
from relay.loading import as_module

TEXT = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, 8), float32], %y: Tensor[(m, 8), float32]) {
  let %s = nn.matmul(%x, %y, transpose_b=True); nn.softmax(%s + mean(%s, axis=0, keepdims=True)) }"""
RNG = np.random.default_rng(2)


def given(n: int = 5, m: int = 7) -> tuple[np.ndarray[Any, np.dtype[np.float32]], ...]:
    return tuple(RNG.uniform(-1, 1, (k, 8)).astype(np.float32) for k in (n, m))


def hot_program(tmp_path: Path, **options: Any) -> HotExecutable:
    exe = relay.compile(TEXT, threads=1, cache_dir=tmp_path, specialise_hot=True, **options)
    assert isinstance(exe, HotExecutable)
    return exe


def heat(exe: HotExecutable, *args: object, calls: int = hot._HOT) -> None:
    for _ in range(calls):
        exe(*args)
    exe.wait()
    for _ in range(2 * hot._TRIALS + 2):
        exe(*args)


def test_a_frequent_size_gets_a_variant_and_the_results_stay(tmp_path: Path) -> None:
    exe, args = hot_program(tmp_path), given()
    before = np.asarray(exe(*args))
    assert exe.variants() == []
    heat(exe, *args)
    assert exe.failures == {}
    assert ("main", (5, 7)) in exe._table, "a decision was made, for the variant or for the general program"
    np.testing.assert_allclose(np.asarray(exe(*args)), before, rtol=1e-5, atol=1e-6)
    others = given(3, 2)
    np.testing.assert_allclose(
        np.asarray(exe(*others)), np.asarray(relay.evaluate(as_module(TEXT), *others)), rtol=1e-4, atol=1e-6
    )


def test_sizes_are_read_off_axes_that_are_computed_from_them(tmp_path: Path) -> None:
    """Of rotary halves and borders a program names the half, and the size without its border."""
    text = """#[version = "0.0.5"]
def @main[n: Dim, d: Dim](%x: Tensor[(n + 2, 2*d), float32]) {
  let %h = split(strided_slice(%x, begin=[1, 0], end=[Dim[n + 1], Dim[2*d]]), indices_or_sections=[Dim[d]], axis=1);
  concatenate((%h.0 - %h.1, %h.1 + %h.0), axis=1) }"""
    exe = relay.compile(text, threads=1, cache_dir=tmp_path, specialise_hot=True, hot_sizes=[{"n": 3, "d": 4}])
    assert isinstance(exe, HotExecutable)
    assert exe.variants() == [{"n": 3, "d": 4}]
    assert exe._binders["main"][1].factor == 2
    for n, d in ((3, 4), (6, 5), (0, 1)):
        x = RNG.uniform(-1, 1, (n + 2, 2 * d)).astype(np.float32)
        heat(exe, x)
        a, b = x[1:-1, :d], x[1:-1, d:]
        np.testing.assert_array_equal(np.asarray(exe(x)), np.concatenate((a - b, b + a), 1))
        assert ("main", (n + 2, 2 * d)) in exe._table
    for shape in ((1, 2), (4, 3)):
        for _ in range(2 * hot._HOT):
            with pytest.raises(ShapeError):
                exe(np.zeros(shape, np.float32))
        exe.wait()
    assert "cannot be -1" in str(exe.failures["main", (1, 2)])


def test_the_profile_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    cost = {"general": 1.0, "variant": 2.0}
    monkeypatch.setattr("relay.hot.time.perf_counter", lambda: clock[0])
    plain = relay.Executable._run

    def timed(self: Any, entry: str, *args: Any) -> object:
        clock[0] += cost["general" if entry == "main" else "variant"]
        return plain(self, entry, *args)

    monkeypatch.setattr(relay.Executable, "_run", timed)
    exe, slow, fast = hot_program(tmp_path), given(), given(6, 6)
    heat(exe, *slow)
    assert exe.variants() == [], "the general program was faster"
    cost["variant"] = 0.5
    heat(exe, *fast)
    assert exe.variants() == [{"n": 6, "m": 6}]
    assert exe._table["main", (5, 7)] is None


def test_chosen_variants_are_there_in_the_next_process(tmp_path: Path) -> None:
    exe, args = hot_program(tmp_path), given()
    (record,) = [exe._record]
    assert record is not None
    exe.prepare("main", {"n": 5, "m": 7})
    exe._write()
    assert json.loads(record.read_text()) == [["main", [5, 7]]]
    again = hot_program(tmp_path)
    assert again.variants() == [{"n": 5, "m": 7}]
    variant = again._table["main", (5, 7)]
    assert isinstance(variant, hot.Variant) and variant.executable.from_cache
    np.testing.assert_allclose(np.asarray(again(*args)), np.asarray(exe(*args)), rtol=1e-6)


@pytest.mark.parametrize("text", ["", "{", "[[1]]", '[["main", [5]]]', '[["other", [5, 7]]]', '[["main", "ab"]]'])
def test_a_spoilt_record_is_no_record(tmp_path: Path, text: str) -> None:
    record = hot_program(tmp_path)._record
    assert record is not None
    record.write_text(text)
    assert hot_program(tmp_path).variants() == []


def test_sizes_that_are_given(tmp_path: Path) -> None:
    exe: Any = relay.compile(TEXT, threads=1, cache_dir=tmp_path, hot_sizes=[{"n": 5, "m": 7}])
    assert exe.variants() == [{"n": 5, "m": 7}]
    args = given()
    np.testing.assert_allclose(
        np.asarray(exe(*args)), np.asarray(relay.evaluate(as_module(TEXT), *args)), rtol=1e-4, atol=1e-6
    )
    heat(exe, *given(2, 2))
    assert exe.variants() == [{"n": 5, "m": 7}], "nothing is counted unless that was asked for"


def test_sizes_that_the_entry_has_not(tmp_path: Path) -> None:
    with pytest.raises(relay.RelayError, match="@main has the sizes n, m, not k"):
        relay.compile(TEXT, threads=1, cache_dir=tmp_path, hot_sizes=[{"k": 1}])


TWO = """#[version = "0.0.5"]
def @one[n: Dim](%x: Tensor[(n, 8), float32]) { nn.softmax(%x) }
def @two[n: Dim, m: Dim](%x: Tensor[(n, 8), float32], %y: Tensor[(m, 8), float32]) { nn.dense(%x, %y) }
def @none(%x: Tensor[(3,), float32]) { tanh(%x) }"""


def test_sizes_are_for_the_entries_that_have_them(tmp_path: Path) -> None:
    def compiled(*sizes: dict[str, int]) -> Any:
        entries = ("one", "two", "none")
        return relay.compile(TWO, threads=1, cache_dir=tmp_path, entries=entries, hot_sizes=sizes)

    exe = compiled({"n": 5, "m": 7}, {"n": 5, "m": 2}, {"n": 3})
    assert exe.variants("one") == [{"n": 5}, {"n": 3}]
    assert exe.variants("two") == [{"n": 5, "m": 7}, {"n": 5, "m": 2}]
    x, y = given()
    np.testing.assert_allclose(np.asarray(exe.run("two", x, y)), x @ y.T, rtol=1e-4, atol=1e-6)
    for wrong in ({"m": 7}, {"n": 5, "k": 1}, {}):
        with pytest.raises(relay.RelayError, match="@one has the sizes n; @two has the sizes n, m; @none has no"):
            compiled(wrong)


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    exe = hot_program(tmp_path)
    exe.specialise = False
    heat(exe, *given())
    assert exe._table == {}


def test_arguments_that_do_not_fit_are_refused_as_before(tmp_path: Path) -> None:
    exe = hot_program(tmp_path)
    exe.prepare("main", {"n": 5, "m": 7})
    x, y = given()
    for wrong in ((x, y[:, :4]), (x,), (x, 3.0), (x.astype(np.int64), y)):
        with pytest.raises(relay.RelayError) as caught:
            exe(*wrong)
        assert "@main" in str(caught.value) and "@main." not in str(caught.value)


def test_a_variant_that_does_not_compile_is_remembered_and_not_tried_again(tmp_path: Path) -> None:
    exe, tries = hot_program(tmp_path), [0]

    def fails(module: object, entry: str) -> Any:
        tries[0] += 1
        raise CompileError("no")

    exe._compile = fails
    args = given()
    heat(exe, *args)
    heat(exe, *args)
    assert tries[0] == 1 and isinstance(exe.failures["main", (5, 7)], CompileError)
    assert np.asarray(exe(*args)).shape == (5, 7)


def test_many_threads_and_sizes(tmp_path: Path) -> None:
    exe = hot_program(tmp_path)
    general: Any = relay.compile(TEXT, threads=1, cache_dir=tmp_path)
    sizes = [(n, n + 1) for n in range(1, 5)]
    inputs = {s: given(*s) for s in sizes}
    expected = {s: np.asarray(general(*inputs[s])) for s in sizes}
    wrong: list[object] = []

    def work(number: int) -> None:
        for n in range(120):
            s = sizes[(n * (number + 1)) % len(sizes)]
            found = np.asarray(exe(*inputs[s]))
            if found.shape != expected[s].shape or not np.allclose(found, expected[s], rtol=1e-4, atol=1e-6):
                wrong.append(s)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    exe.wait()
    assert not wrong
    assert exe.failures == {}


def test_an_entry_of_known_sizes() -> None:
    module = as_module(TEXT)
    n, m = (p for p in module.functions["main"].type_params if isinstance(p, DimVar))
    after, name = with_sizes(module, "main", {n: 3, m: 4})
    assert name == "main.n3.m4"
    args = given(3, 4)
    np.testing.assert_array_equal(
        np.asarray(relay.evaluate(after, *args, entry=name)), np.asarray(relay.evaluate(module, *args))
    )
    with pytest.raises(relay.RelayError):
        relay.evaluate(after, *given(4, 4), entry=name)
    assert relay.parse(after.text()).functions.keys() == after.functions.keys()
