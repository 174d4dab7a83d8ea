"""Kernels that only many requests need are compiled when these are first asked for; files and copies have them all."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.codegen import later
from relay.codegen.kernels import build, symbol_of
from relay.codegen.target import host_target
from relay.executable.reader import read_image
from relay.ir.diagnostics import ExecutionError, RelayError
from relay.ir.dim import DimOp, DimVar, SymDim, as_dim, dim_add, dim_floordiv, dim_mul
from relay.loading import as_module
from relay.loop.ir import Kernel

EXAMPLES = Path(__file__).parents[2] / "examples"
# A fold over a list: a loop in one request, levels in many.
FOLD = """#[version = "0.0.5"]
import prelude
def @main(%xs: List[Tensor[(1, 5), float32]], %w: Tensor[(5, 5), float32]) -> Tensor[(1, 5), float32] {
  @foldl(fn (%a: Tensor[(1, 5), float32], %x: Tensor[(1, 5), float32]) -> Tensor[(1, 5), float32] {
    tanh(nn.dense(%a, %w) + %x)
  }, zeros(shape=[1, 5], dtype="float32"), %xs)
}"""


def requests() -> list[tuple[object, ...]]:
    rng = np.random.default_rng(3)
    w = rng.standard_normal((5, 5)).astype(np.float32) / 3
    return [([rng.standard_normal((1, 5)).astype(np.float32) for _ in range(n)], w) for n in (3, 0, 7, 1)]


def check(exe: relay.Executable, asked: list[tuple[object, ...]]) -> None:
    interpreted: list[Any] = [relay.evaluate(as_module(FOLD), *args) for args in asked]
    for found, one, expected in zip(exe.run_batch("main", asked), [exe(*a) for a in asked], interpreted, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.numpy(), expected, rtol=1e-5, atol=1e-6)


def compiled_later(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels each later compilation has had, from now on."""
    counts: list[int] = []

    def counted(kernels: Sequence[Kernel], *args: object, **named: object) -> object:
        counts.append(len(kernels))
        return build(kernels, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("relay.codegen.later.build", counted)
    return counts


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_they_are_compiled_when_requests_are_first_asked_for(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    exe = relay.compile(FOLD, cache=False, executor=executor)
    counts = compiled_later(monkeypatch)
    asked = requests()
    exe(*asked[0])
    exe.run_batch("main", asked[:1])
    assert exe.program.later is not None and not counts
    check(exe, asked)
    check(exe, asked)
    assert len(counts) == 1 and counts[0] > 0


def test_threads_wait_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = relay.compile(FOLD, cache=False)
    counts = compiled_later(monkeypatch)
    asked = requests()
    expected = [exe(*args).numpy() for args in asked]
    failed: list[object] = []
    begin = threading.Barrier(6)

    def ask() -> None:
        begin.wait()
        for one, other in zip(exe.run_batch("main", asked), expected, strict=True):
            if not np.allclose(one.numpy(), other, rtol=1e-5, atol=1e-6):
                failed.append(one)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(counts) == 1


def test_files_and_copies_have_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = relay.compile(FOLD, cache=False)
    path = tmp_path / "fold.rlx"
    exe.save(path)
    copies = [relay.load(path), pickle.loads(pickle.dumps(exe))]
    counts = compiled_later(monkeypatch)
    asked = requests()
    for copy in copies:
        assert copy.program.later is None
        check(copy, asked)
    check(exe, asked)
    assert not counts  # saving it has compiled them
    whole = pipeline.build(as_module(FOLD), relay.Options(cache=False)).image
    assert read_image(path).objects == whole.objects


def test_from_the_cache(tmp_path: Path) -> None:
    asked = requests()
    for _ in range(2):
        exe = relay.compile(FOLD, cache_dir=tmp_path)
        assert exe.program.later is not None
        check(exe, asked)
    assert exe.from_cache


def test_what_has_not_come_is_an_error() -> None:
    exe = relay.compile(FOLD, cache=False)
    raw = exe.program
    args = [exe.signature().listed(requests(), (0,)), exe.signature().argument(1, requests()[0])]
    with pytest.raises(ExecutionError, match="is not compiled yet"):
        raw.run("main.requests", args)
    exe.run_batch("main", requests())
    raw.run("main.requests", args)
    with pytest.raises(RelayError, match="does not wait for a native object of number 0"):
        raw.supply(0, pipeline.build(as_module(FOLD), relay.Options()).image.objects[0])


def test_nothing_is_left_where_one_request_needs_them_all() -> None:
    assert relay.compile((EXAMPLES / "dag.relay").read_text()).program.later is None


@pytest.mark.parametrize("name", ["rnn", "bitree", "child_sum"])
def test_kernels_come_back_as_they_were(name: str) -> None:
    made = pipeline.build(as_module((EXAMPLES / f"{name}.relay").read_text()), relay.Options(cache=True), later=True)
    kernels = dict(enumerate(p.kernel for p in made.plan.kernels))
    target, back = later.read(later.kept(kernels, host_target()))
    assert target == host_target()
    assert {n: symbol_of(k, target) for n, k in kernels.items()} == {n: symbol_of(k, target) for n, k in back.items()}


def test_deep_expressions_come_back() -> None:
    steps = "\n".join(f"let %v{n + 1} = sin(%v{n}) * 1.0{n:03d}f;" for n in range(400))
    text = f'#[version = "0.0.5"]\ndef @main[n: Dim](%v0: Tensor[(n,), float32]) {{ {steps} %v400 }}'
    (plan, *_) = pipeline.build(as_module(text), relay.Options(cache=True)).plan.kernels
    target, back = later.read(later.kept({0: plan.kernel}, host_target()))
    assert symbol_of(back[0], target) == symbol_of(plan.kernel, target)


def test_sizes_come_back_as_sizes() -> None:
    n, m = as_dim(DimVar("n", 1)), as_dim(DimVar("m"))
    product = dim_floordiv(dim_mul(n, m), dim_add(n, 3))
    first, second, back, again = pickle.loads(pickle.dumps((n, m, product, product)))
    assert isinstance(first, SymDim) and isinstance(back, SymDim)
    assert first != n and back == again == dim_floordiv(dim_mul(first, second), dim_add(first, 3))
    ((((atom, _),), _),) = back.terms
    assert isinstance(atom, DimOp) and atom.a == dim_mul(first, second)
