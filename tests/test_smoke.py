"""Seconds: text to types to native code to a result, for any size."""

from __future__ import annotations

import numpy as np

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
