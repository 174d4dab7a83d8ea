"""Hoisting over time, and invariants that become part of a function: same values, and the work is where it should be."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.recurrent.support import Array, both, compiled, normal, operators

VERSION = '#[version = "0.0.5"]\n'
ROWS = "%xs: Tensor[(n, 3), float32]"


def loop(
    step: str, *, index: str = "%t", start: str = "0", end: str = "%t < %n", move: str = "%t + 1", result: str = "%h"
) -> str:
    """A recurrence over the rows of ``%xs``. ``step``: the next state from ``%x`` (1, 3), the state ``%h`` (1, 4) and weights."""
    weights = "%w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32]"
    state = "Tensor[(1, 4), float32]"
    return f"""{VERSION}
    def @go[n: Dim](%t: int32, %n: int32, {ROWS}, {weights}, %h: {state}) -> {state} {{
      if ({end}) {{
        let %x = expand_dims(take(%xs, {index}, axis=0), axis=0);
        @go({move}, %n, %xs, %w, %u, {step})
      }} else {{ {result} }}
    }}
    def @main[n: Dim]({ROWS}, %h: {state}, %n: int32, {weights}) -> {state} {{
      @go({start}, %n, %xs, %w, %u, %h)
    }}"""


def weights(module: Module) -> Module:
    return module.bind({"w": normal(4, 3), "u": normal(4, 4)})


def expected(xs: Array, h: Array, order: range) -> Array:
    w, u = normal(4, 3), normal(4, 4)
    for t in order:
        h = np.tanh(xs[min(max(t, 0), len(xs) - 1)][None] @ w.T + h @ u.T)
    return h


RNN = "tanh(nn.dense(%x, %w) + nn.dense(%h, %u))"


@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.parametrize("bound", [True, False])
def test_the_input_product_leaves_the_loop(n: int, bound: bool) -> None:
    module = relay.parse(loop(RNN))
    xs, h = normal(n, 3), normal(1, 4)
    if bound:
        module = weights(module)
        given: tuple[object, ...] = (xs, h, np.int32(n))
    else:
        given = (xs, h, np.int32(n), normal(4, 3), normal(4, 4))
    assert np.allclose(both(module, *given), expected(xs, h, range(n)), atol=1e-5)
    after = compiled(module)
    (steps,) = (name for name in after.functions if name.endswith("__steps"))
    assert "nn.dense" in operators(after, steps.removesuffix("__steps"))
    assert str(after).split(f"def @{steps}")[1].count("nn.dense") == 1, "the product with the state is left"


def test_other_orders() -> None:
    xs, h = normal(6, 3), normal(1, 4)
    cases = {
        loop(RNN, start="%n - 1", end="%t >= 0", move="%t - 1"): range(5, -1, -1),
        loop(RNN, index="%n - 1 - %t"): range(5, -1, -1),
        loop(RNN, move="%t + 2"): range(0, 6, 2),
        loop(RNN, index="%t - 3"): range(-3, 3),
        loop(RNN, index='cast(%t, dtype="int64") + 2i64'): range(2, 8),
    }
    for text, order in cases.items():
        module = weights(relay.parse(text))
        assert np.allclose(both(module, xs, h, np.int32(6)), expected(xs, h, order), atol=1e-5), text
        assert any(name.endswith("__steps") for name in compiled(module).functions), text


def test_no_steps_and_no_rows() -> None:
    module = weights(relay.parse(loop(RNN)))
    h = normal(1, 4)
    assert np.array_equal(both(module, normal(5, 3), h, np.int32(0)), h)
    assert np.array_equal(both(module, np.zeros((0, 3), np.float32), h, np.int32(0)), h)


STEPS = {
    "chain": "tanh(nn.dense(exp(sigmoid(nn.dense(%x, %w)) * 2f), %u) + %h)",
    "softmax": "nn.softmax(nn.dense(%x, %w), axis=-1) + %h",
    "mean": "%h * mean(%x)",
    "reduced axis": "%h + expand_dims(sum(nn.dense(%x, %w), axis=[0]), axis=0)",
    "all axes": "%h * (sum(nn.dense(%x, %w)) + max(%h))",
    "joined": "nn.dense(concatenate((%x, %x), axis=1), concatenate((%w, %w), axis=1)) * %h",
    "parts": "{ let %p = split(nn.dense(%x, %w), indices_or_sections=2, axis=1); concatenate((%p.1, %p.0), axis=1) + %h }",
    "bias": "nn.bias_add(nn.dense(%x, %w), sum(%u, axis=[1])) + %h",
    "transposed": "transpose(nn.dense(%u, nn.dense(%x, %w))) + %h",
    "sliced": "nn.dense(strided_slice(%x, begin=[1], end=[3], axes=[1]), strided_slice(%w, begin=[0, 0], end=[4, 2])) + %h",
    "choice": "where(nn.dense(%x, %w) > 0f, %h, tanh(%h))",
    "normalised": "nn.layer_norm(nn.dense(%x, %w), sum(%u, axis=[0]), sum(%u, axis=[1])) + %h",
    "two readers": "{ let %p = nn.dense(%x, %w); %p * %h + tanh(%p) }",
    "invariant": "%h * nn.softmax(expand_dims(sum(nn.dense(%u, %u), axis=[0]), axis=0))",
}


@pytest.mark.parametrize("name", list(STEPS))
def test_what_a_row_goes_through(name: str) -> None:
    module = weights(relay.parse(loop(STEPS[name])))
    xs, h = normal(5, 3), normal(1, 4)
    both(module, xs, h, np.int32(5))
    both(module, xs, h, np.int32(5), opt_level=1)
    compiled(module)


def test_random_rows_stay_in_the_loop() -> None:
    """An index that the state decides: all rows may be many more than those that are read."""
    index = 'cast(sum(%h), dtype="int32")'
    module = weights(relay.parse(loop(RNN, index=index)))
    both(module, normal(6, 3), normal(1, 4), np.int32(6))
    assert not any(name.endswith("__steps") for name in compiled(module).functions)


def test_what_can_fail_stays_in_the_loop() -> None:
    """The loop makes no step, so the failing reshape must not run."""
    text = f"""{VERSION}
    def @go[n: Dim](%t: int32, %n: int32, {ROWS}, %w: Tensor[(?, 3), float32], %h: Tensor[(1, 3), float32]) -> Tensor[(1, 3), float32] {{
      if (%t < %n) {{
        let %x = expand_dims(take(%xs, %t, axis=0), axis=0);
        let %square: Tensor[(3, 3), float32] = %w;
        @go(%t + 1, %n, %xs, %w, %h + nn.dense(%x, %square))
      }} else {{ %h }}
    }}
    def @main[n: Dim]({ROWS}, %h: Tensor[(1, 3), float32], %n: int32, %w: Tensor[(?, 3), float32]) {{
      @go(0, %n, %xs, %w, %h)
    }}"""
    module = relay.parse(text)
    both(module, normal(4, 3), normal(1, 3), np.int32(4), normal(3, 3))
    both(module, normal(4, 3), normal(1, 3), np.int32(0), normal(2, 3))


def test_weights_and_sizes_become_part_of_the_loop() -> None:
    text = f"""{VERSION}
    def @go[n: Dim, d: Dim, h: Dim](%t: int32, %xs: Tensor[(n, d), float32],
        %p: (Tensor[(h, d), float32], (Tensor[(h, h), float32], float32)), %h: Tensor[(1, h), float32]) -> Tensor[(1, h), float32] {{
      if (%t < 4) {{
        @go(%t + 1, %xs, %p, nn.dense(expand_dims(take(%xs, %t, axis=0), axis=0), %p.0) + nn.dense(%h, %p.1.0) * %p.1.1)
      }} else {{ %h }}
    }}
    def @main[n: Dim](%xs: Tensor[(n, 3), float32], %s: float32, %w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32]) {{
      let %first = @go(0, %xs, (%w, (%u, %s)), zeros(shape=[1, 4], dtype="float32"));
      @go(1, %xs, (%w, (%u, 2f)), %first)
    }}"""
    module = weights(relay.parse(text))
    both(module, normal(5, 3), np.float32(0.5))
    after = compiled(module)
    assert "go" not in after.functions and sum(name.endswith("__steps") for name in after.functions) == 2
    assert "h: Dim" not in str(after) and "d: Dim" not in str(after)


def test_growing_state_is_not_fixed() -> None:
    text = f"""{VERSION}
    def @go[n: Dim, k: Dim](%t: int32, {ROWS}, %w: Tensor[(3, 3), float32], %done: Tensor[(k, 3), float32]) -> Tensor[(?, 3), float32] {{
      if (%t < 6) {{
        let %y = nn.dense(expand_dims(take(%xs, %t, axis=0), axis=0), %w) + expand_dims(sum(%done, axis=[0]), axis=0);
        @go(%t + 1, %xs, %w, concatenate((%done, %y), axis=0))
      }} else {{ %done }}
    }}
    def @main[n: Dim]({ROWS}, %w: Tensor[(3, 3), float32]) {{ @go(0, %xs, %w, zeros(shape=[0, 3], dtype="float32")) }}"""
    module = relay.parse(text)
    assert both(module, normal(6, 3), normal(3, 3)).shape == (6, 3)
    compiled(module)


def test_sizes_in_attributes_follow_the_copies() -> None:
    """An attribute may mention a dim of a function that is copied for a base type."""
    text = f"""{VERSION}
    def @none[h: Dim, e: BaseType](%x: Tensor[(h,), e]) -> Tensor[(0, h), e] {{
      cast_like(zeros(shape=[0, Dim[h]], dtype="float32"), %x)
    }}
    def @main[m: Dim](%x: Tensor[(m,), float64]) {{ @none(%x) }}"""
    assert both(relay.parse(text), np.zeros(3)).shape == (0, 3)
