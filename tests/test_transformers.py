"""The transformer examples against float64 NumPy and the interpreter: any length, with and without a cache, from one compilation."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import relay
from tests.generator.compare import difference

ROOT = Path(__file__).parent.parent


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_example", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"{name}_example"] = module
    spec.loader.exec_module(module)
    return module


bert, gpt2, llama, train_gpt = (example(name) for name in ("bert", "gpt2", "llama", "train_gpt"))


def ids_of(count: int, vocabulary: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(count).integers(0, vocabulary, count).astype(np.int32)


@pytest.mark.parametrize("width, heads, inner", [(64, 4, 128), (60, 5, 100)])
def test_bert(width: int, heads: int, inner: int) -> None:
    c = bert.Config(layers=2, width=width, heads=heads, inner=inner, vocabulary=200, positions=70)
    weights = bert.seeded_weights(c)
    module = bert.program(c, weights)
    encode = relay.compile(module)
    for n in (1, 2, 5, 16, 33, 70):
        ids = ids_of(n, c.vocabulary)
        assert np.allclose(np.asarray(encode(ids)), bert.reference(c, weights, ids), atol=2e-5)
    different = difference(relay.evaluate(module, ids), encode(ids))
    assert different is None, different
    with pytest.raises(relay.RelayError):
        encode(ids_of(71, c.vocabulary))  # longer than the table of positions


def test_gpt2() -> None:
    c = gpt2.Config(layers=2, width=48, heads=3, vocabulary=100, positions=40)
    weights = gpt2.seeded_weights(c)
    module = gpt2.program(c, weights)
    decode: Any = relay.compile(module)
    text = ids_of(20, c.vocabulary)
    for n in (1, 2, 7, 20):
        scores, _ = decode(text[:n], gpt2.empty_cache(c))
        assert np.allclose(np.asarray(scores), gpt2.reference(c, weights, text[:n]), atol=1e-5)
    different = difference(relay.evaluate(module, text[:7], gpt2.empty_cache(c)), decode(text[:7], gpt2.empty_cache(c)))
    assert different is None, different


def test_gpt2_cache() -> None:
    """Reading a text in pieces gives the scores of reading it at once."""
    c = gpt2.Config(layers=2, width=48, heads=3, vocabulary=100, positions=40)
    weights = gpt2.seeded_weights(c)
    decode: Any = relay.compile(gpt2.program(c, weights))
    text = ids_of(20, c.vocabulary)
    cache: Any = gpt2.empty_cache(c)
    at = 0
    for size in (5, 1, 1, 8, 4, 1):
        scores, cache = decode(text[at : at + size], cache)
        at += size
        assert np.allclose(np.asarray(scores), gpt2.reference(c, weights, text[:at]), atol=1e-5)
    generated = gpt2.generate(decode, c, text, 3)
    expected: list[int] = []
    for _ in range(3):
        read = np.concatenate([text, np.array(expected, np.int32)])
        expected.append(int(gpt2.reference(c, weights, read).argmax()))
    assert generated == expected


@pytest.mark.parametrize(
    ("heads", "groups", "biased", "tied"), [(4, 2, False, False), (3, 1, True, True), (2, 2, True, False)]
)
def test_llama(heads: int, groups: int, biased: bool, tied: bool) -> None:
    """A text is written as by one read of all tokens after the other, and ends at the token that ends it."""
    c = llama.Config(
        layers=2,
        width=24,
        heads=heads,
        groups=groups,
        size=8,
        inner=40,
        vocabulary=60,
        positions=30,
        biased=biased,
        tied=tied,
    )
    weights = llama.seeded_weights(c)
    module = llama.program(c, weights)
    generate = relay.compile(module)
    for n in (1, 7):
        ids = ids_of(n, c.vocabulary)
        expected: list[int] = []
        for _ in range(6):
            expected.append(int(llama.reference(c, weights, np.array([*ids, *expected])).argmax()))
        assert np.asarray(generate(ids, np.int32(6), np.int32(-1))).tolist() == expected
        until = expected.index(expected[3]) + 1
        assert np.asarray(generate(ids, np.int32(6), np.int32(expected[3]))).tolist() == expected[:until]
    assert np.asarray(relay.evaluate(module, ids, np.int32(6), np.int32(-1))).tolist() == expected


def test_a_llama_checkpoint(tmp_path: Path) -> None:
    """Weights of 16 bits in several files, with a tensor that the program does not have."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    given = {
        "model_type": "qwen2",
        "vocab_size": 70,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    } | sizes
    (tmp_path / "config.json").write_text(json.dumps(given))
    c = llama.read_config(tmp_path / "config.json")
    weights = {name: a.astype(ml_dtypes.bfloat16) for name, a in llama.seeded_weights(c).items()}
    names = sorted(weights)
    save_file({n: weights[n] for n in names[:9]}, tmp_path / "model-00001-of-00002.safetensors")
    rest = {n: weights[n] for n in names[9:]} | {"rotary.inv_freq": np.ones(4, np.float32)}
    save_file(rest, tmp_path / "model-00002-of-00002.safetensors")
    ids = ids_of(5, 70)
    (token,) = np.asarray(relay.compile(llama.program(c, relay.load_weights(tmp_path)))(ids, np.int32(1), np.int32(-1)))
    assert token == llama.reference(c, weights, ids).argmax()
    (tmp_path / "config.json").write_text(json.dumps(given | {"rope_scaling": {"rope_type": "yarn"}}))
    with pytest.raises(ValueError, match="plain rotary positions"):
        llama.read_config(tmp_path / "config.json")


@pytest.mark.parametrize("attention", ["SPELLED", "OPERATOR"])
def test_gradients_of_a_small_gpt(attention: str) -> None:
    c = train_gpt.Config(layers=2, width=8, heads=2, vocabulary=11, positions=9)
    weights = {name: a + np.float32(0.1) for name, a in train_gpt.seeded_weights(c).items()}
    module = train_gpt.program(c, getattr(train_gpt, attention))
    step = relay.compile(module, check_memory=True)
    rng = np.random.default_rng(0)
    for batch, length in ((1, 1), (2, 5), (3, 9)):
        given = [rng.integers(0, c.vocabulary, (batch, length)).astype(np.int32) for _ in range(2)]
        expected = relay.evaluate(module, *given, *weights.values())
        different = difference(expected, step(*given, *weights.values()))
        assert different is None, different


def test_a_small_gpt_learns() -> None:
    c = train_gpt.Config(layers=1, width=32, heads=2, positions=16)
    losses = train_gpt.train(c, "abcdefgh" * 20, steps=40, batch=2, length=16)
    assert losses[0] > 5 and losses[-1] < 1.5
