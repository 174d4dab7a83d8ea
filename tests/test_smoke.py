"""Seconds: text to types to native code to a result, for any size."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relay

TEXT = """
#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 8), float32], %w: Tensor[(4, 8), float32]) -> Tensor[(n, 4), float32] {
  let %y = nn.relu(nn.dense(%x, %w));
  nn.softmax(%y + 1f)
}
"""


def test_text_to_result() -> None:
    module = relay.parse(TEXT)
    exe = relay.compile(module)
    random = np.random.default_rng(0)
    w = random.standard_normal((4, 8)).astype(np.float32)
    for n in (0, 1, 5, 64):
        x = random.standard_normal((n, 8)).astype(np.float32)
        y = np.maximum(x @ w.T, 0) + 1
        e = np.exp(y - y.max(-1, keepdims=True, initial=0))
        np.testing.assert_allclose(np.asarray(exe(x, w)), e / e.sum(-1, keepdims=True), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(relay.evaluate(module, x, w)), e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_printed_text_parses_to_the_same_program() -> None:
    module = relay.parse(TEXT)
    assert relay.parse(module.text()).text() == module.text()


def test_an_executable_runs_without_the_compiler(tmp_path: Path) -> None:
    exe = relay.compile('#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n,), float32]) { exp(%x) }')
    exe.save(tmp_path / "exp.rlx")
    program = (
        "import sys, threading, relay, numpy as np\n"
        f"exe = relay.load({str(tmp_path / 'exp.rlx')!r})\n"
        "assert np.asarray(exe(np.zeros(3, 'float32'))).tolist() == [1, 1, 1]\n"
        "large = [m for m in sys.modules if m.startswith(('relay.te', 'relay.typing', 'relay.transform', 'llvmlite', 'lark'))]\n"
        "assert not large, large\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda n=n: found.append(getattr(relay, n))) for n in relay.__all__]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "assert len(found) == len(relay.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_program_from_the_cache_starts_without_the_compiler(tmp_path: Path) -> None:
    program = (
        "import sys, relay\n"
        f"exe = relay.compile({TEXT!r}, cache_dir={str(tmp_path)!r})\n"
        "large = [m for m in sys.modules if m.startswith(('relay.pipeline', 'relay.transform', 'relay.plan', 'llvmlite.binding'))]\n"
        "assert exe.from_cache == (not large), large\n"
        "print(exe.from_cache)\n"
    )
    runs = [subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True) for _ in "12"]
    assert [done.stdout for done in runs] == ["False\n", "True\n"]


def test_what_relay_has_and_has_not() -> None:
    assert set(relay.__all__) <= set(dir(relay)) and all(hasattr(relay, name) for name in relay.__all__)
    missing = "compil"
    with pytest.raises(AttributeError, match="module 'relay' has no attribute 'compil'"):
        getattr(relay, missing)


@pytest.mark.parametrize("cache", [True, False])
def test_an_executable_is_pickled(cache: bool) -> None:
    text = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n,), float32]) { exp(%x) }'
    exe = relay.compile(text, cache=cache, threads=1, limits=relay.Limits(memory=1 << 20))
    again = pickle.loads(pickle.dumps(exe))
    assert np.asarray(again(np.zeros(3, np.float32))).tolist() == [1, 1, 1] and again.limits == exe.limits
