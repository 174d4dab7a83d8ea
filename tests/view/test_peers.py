"""Programs in other frameworks compute what the interpreter says; what cannot be translated is refused by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import CompileError, RelayError
from relay.view.comparison import compare
from relay.view.peers.straight import straight
from relay.view.peers.systems import PEERS, chosen, leaves, missing
from tests.test_transformers import bert, gpt2

HEAD = '#[version = "0.0.5"]\n'
SYSTEMS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=f"{name} is not installed"))
    for name in PEERS
    if name != "torch-compile"
]
PROGRAMS = {
    "mlp": """def @main[n: Dim](%x: Tensor[(n, 8), float32], %w: Tensor[(5, 8), float32], %b: Tensor[(5,), float32]) {
        nn.softmax(nn.relu(nn.bias_add(nn.dense(%x, %w), %b, axis=-1))) }""",
    "elementwise": """def @main[n: Dim](%x: Tensor[(n, 3), float32], %y: Tensor[(3,), float32]) {
        let %a = abs(%x) + 1f;
        let %c = where(%x < %y, sqrt(%a) * rsqrt(%a), maximum(minimum(%x, %y), 0.5f - %x));
        (log(%a) - exp(negative(%a)), tanh(%c) / (sigmoid(%c) + 2f), erf(%x), clip(nn.gelu(%x), a_min=-1f, a_max=1f),
         nn.silu(%x), power(%a, 2f), cast(%x >= 0f, dtype="int32"), floor(%x) + ceil(%x)) }""",
    "reductions": """def @main[n: Dim](%x: Tensor[(n, 4, 5), float32]) {
        (sum(%x, axis=[1]), mean(%x, axis=[0, 2], keepdims=True), max(%x), min(%x, axis=[0], exclude=True),
         nn.log_softmax(%x, axis=1)) }""",
    "shapes": """def @main[n: Dim, m: Dim](%x: Tensor[(n, 6), float32], %y: Tensor[(m, 6), float32]) {
        let %both = concatenate((%x, %y), axis=0);
        (reshape(%both, newshape=[-1, 2, 3]), transpose(expand_dims(%x, axis=1)), slice_like(%both, %x, axes=[0]),
         strided_slice(%both, begin=[Dim[n]], end=[Dim[n + m]], axes=[0]), strided_slice(%x, begin=[1], end=[6], strides=[2], axes=[1]),
         squeeze(expand_dims(%y, axis=0), axis=[0]), broadcast_to(take(%x, 0, axis=0), shape=[Dim[m], 6]),
         arange(start=Dim[n], stop=Dim[n + m], dtype="int32")) }""",
    "products": """def @main[n: Dim](%x: Tensor[(2, n, 4), float32], %y: Tensor[(2, 4, n), float32], %z: Tensor[(2, 3, 4), float32]) {
        (nn.batch_matmul(%x, %y, transpose_b=False), nn.batch_matmul(%x, %z),
         nn.batch_matmul(%z, transpose(%y, axes=[0, 2, 1])), nn.matmul(%x, reshape(take(%z, 0, axis=0), newshape=[4, 3]))) }""",
    "attention": """def @main[n: Dim](%q: Tensor[(2, n, 4), float32], %k: Tensor[(2, n, 4), float32], %m: Tensor[(n, n), float32]) {
        (nn.attention(%q, %k, %k), nn.attention(%q, %k, %q, causal=True),
         nn.attention(%q, %k, %k, window=[2, 1]), nn.attention(%q, %k, %k, causal=True, window=[1, -1]),
         nn.attention(%q, %k, %q, %m, scale=0.3f)) }""",
    "cached": """def @main[n: Dim, m: Dim](%q: Tensor[(2, n, 4), float32], %k: Tensor[(2, n + m, 4), float32], %m: Tensor[(m,), float32]) {
        (nn.attention(%q, %k, %k, causal=True), exp(%m)) }""",
    "spelled": """def @main[n: Dim](%q: Tensor[(2, n, 4), float32], %k: Tensor[(2, n, 4), float32]) {
        nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) * 0.5f), transpose(%k, axes=[0, 2, 1])) }""",
}  # fmt: skip


def arguments(module: relay.Module) -> list[np.ndarray[Any, Any]]:
    """Random tensors: the dimension variables are 3, 4, ... in order of their names."""
    sizes = {"n": 3, "m": 4, "n + m": 7}
    rng = np.random.default_rng(0)
    out = []
    for p in module.function("main").params:
        shape: Any = getattr(p.ty, "shape", ())
        out.append(rng.standard_normal([d if isinstance(d, int) else sizes[str(d)] for d in shape]).astype(np.float32))
    return out


@pytest.mark.parametrize("peer", SYSTEMS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_operators(program: str, peer: str) -> None:
    module = relay.parse(HEAD + PROGRAMS[program])
    args = arguments(module)
    expected = leaves(relay.evaluate(module, *args))
    found = PEERS[peer](straight(module), args, 1).results()
    assert len(found) == len(expected)
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape and np.allclose(a, b, atol=1e-5), (a, b)


@pytest.mark.parametrize("peer", SYSTEMS)
def test_transformers(peer: str) -> None:
    b = bert.Config(layers=2, width=32, heads=4, inner=48, vocabulary=50, positions=20)
    g = gpt2.Config(layers=2, width=32, heads=4, vocabulary=50, positions=20)
    ids = np.arange(7, dtype=np.int32)
    for module, args in (
        (bert.program(b, bert.seeded_weights(b)), (ids,)),
        (gpt2.program(g, gpt2.seeded_weights(g)), (ids, gpt2.empty_cache(g))),
    ):
        exe = relay.compile(module)
        result = compare(exe, module, "main", args, [peer], 1, 0.01)
        assert [r.name for r in result.rows] == ["relay", peer], result.refused
        assert result.rows[1].difference < 1e-5
        assert result.picture().startswith("<svg") and peer in result.table()


def test_control_flow_is_refused() -> None:
    module = relay.parse(HEAD + "def @main(%x: Tensor[(2,), float32], %c: bool) { if (%c) { %x } else { exp(%x) } }")
    with pytest.raises(CompileError, match="if has no place"):
        straight(module)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_an_unknown_operator_is_named() -> None:
    module = relay.parse(HEAD + "def @main(%x: Tensor[(3,), float32]) { sort(%x) }")
    exe = relay.compile(module)
    result = compare(exe, module, "main", [np.ones(3, np.float32)], ["torch"], 1, 0.01)
    assert "sort is not translated to PyTorch" in result.refused["torch"]


def test_peers_are_checked() -> None:
    with pytest.raises(RelayError, match="unknown peer"):
        chosen("tensorwho")
    assert all(not missing(name) for name in chosen("all"))
