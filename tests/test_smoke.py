"""Seconds: text to types to native code to a result, for any size."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import relay
from relay.ir.expr import Function, Var
from relay.ir.types import TensorType

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


def test_a_module_is_pickled_as_its_text() -> None:
    module = relay.parse("""#[version = "0.0.5"]
import prelude
type Shape { Circle(float32), Box(float32, float32) }
def @area(%s: Shape) -> float32 { match (%s) { Circle(%r) => 3f * %r * %r, Box(%a, %b) => %a * %b } }
def @main[n: Dim](%x: Tensor[(n, 2), float32], %s: List[Shape]) { (%x * const([1, nan], (2,), float32), @map(@area, %s)) }""")
    module = module.with_functions({**module.functions, "big": relay.infer_type(_large()).function("main")})
    again = pickle.loads(pickle.dumps(module))
    assert again.text() == module.text() and all(f.ty is not None for f in again.functions.values())
    shapes = pickle.loads(pickle.dumps(module.adt("Shape")))
    given = np.ones((3, 2), np.float32), [shapes.Circle(2.0), shapes.Box(2.0, 3.0)]
    for run in (lambda m: relay.evaluate(m, *given), lambda m: relay.compile(m, cache=False)(*given)):
        (x, areas), (wanted, wanted_areas) = cast(Any, run(again)), cast(Any, run(module))
        np.testing.assert_array_equal(np.asarray(x), np.asarray(wanted))
        assert [float(a) for a in areas] == [float(a) for a in wanted_areas] == [12, 6]
    assert copy.copy(module) is module and copy.deepcopy({"m": [module]})["m"][0] is module


def _large() -> Function:
    x = Var("x", TensorType((5000,), "float32"))
    return Function((x,), x + np.arange(5000, dtype=np.float32))


def test_a_part_of_a_program_is_not_pickled() -> None:
    function = _large()
    with pytest.raises(relay.RelayError, match=r"(?s)a Function is a part of a program .* pickle the module"):
        pickle.dumps(function)
    assert copy.deepcopy(function) is function
    assert relay.infer_type(function).text() == pickle.loads(pickle.dumps(relay.infer_type(function))).text()
