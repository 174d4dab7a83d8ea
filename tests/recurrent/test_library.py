"""The library of recurrent networks and the combinators of the prelude, each against NumPy, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.recurrent.support import Array, both, compiled, normal, operators

VERSION = '#[version = "0.0.5"]\nimport nn\n'
D, H = 3, 4


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


Cell = Callable[[Array, Any], Any]


def rnn_cell(w: Array, u: Array, b: Array) -> Cell:
    return lambda x, h: np.tanh(x @ w.T + b + h @ u.T)


def gru_cell(w: Array, u: Array, b: Array, c: Array) -> Cell:
    def step(x: Array, h: Array) -> Array:
        i, s = np.split(x @ w.T + b, 3, axis=1), np.split(h @ u.T + c, 3, axis=1)
        r, z = sigmoid(i[0] + s[0]), sigmoid(i[1] + s[1])
        new: Array = (1 - z) * np.tanh(i[2] + r * s[2]) + z * h
        return new

    return step


def lstm_cell(w: Array, u: Array, b: Array, p: Array | None = None, r: Array | None = None) -> Cell:
    def step(x: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        h, c = state
        i, f, g, o = np.split(x @ w.T + h @ u.T + b, 4, axis=1)
        see = np.zeros((3, c.shape[1])) if p is None else p
        new = sigmoid(f + see[1] * c) * c + sigmoid(i + see[0] * c) * np.tanh(g)
        out = sigmoid(o + see[2] * new) * np.tanh(new)
        return (out if r is None else out @ r.T), new

    return step


def first(state: Any) -> Array:
    out: Array = state[0] if isinstance(state, tuple) else state
    return out


def run(cell: Cell, xs: Array, state: Any, order: range, lengths: Array | None = None) -> tuple[Array, Any]:
    """Outputs of all steps, in the order of the inputs, and the last state. Sequences end at ``lengths``."""
    outputs: dict[int, Array] = {}
    for t in order:
        new = cell(xs[t], state)
        runs = np.ones((xs.shape[1], 1), bool) if lengths is None else (t < lengths)[:, None]
        old = state
        state = (
            tuple(np.where(runs, a, b) for a, b in zip(new, old, strict=True))
            if isinstance(new, tuple)
            else np.where(runs, new, old)
        )
        outputs[t] = np.where(runs, first(state), 0)
    none = np.zeros((0, *first(state).shape))
    return np.array([outputs[t] for t in range(len(xs))]) if len(xs) else none, state


LSTM = f"%w: Tensor[({4 * H}, {D}), float32], %u: Tensor[({4 * H}, {H}), float32], %b: Tensor[({4 * H},), float32]"
GRU = (
    f"%w: Tensor[({3 * H}, {D}), float32], %u: Tensor[({3 * H}, {H}), float32], "
    f"%b: Tensor[({3 * H},), float32], %c: Tensor[({3 * H},), float32]"
)
RNN = f"%w: Tensor[({H}, {D}), float32], %u: Tensor[({H}, {H}), float32], %b: Tensor[({H},), float32]"
XS = f"%xs: Tensor[(t, n, {D}), float32]"
ONE, TWO = f"%h: Tensor[(n, {H}), float32]", f"%h: Tensor[(n, {H}), float32], %s: Tensor[(n, {H}), float32]"
LENGTHS = "%lengths: Tensor[(n,), int64]"


def main(params: str, body: str) -> Module:
    return relay.parse(f"{VERSION}def @main[t: Dim, n: Dim]({params}) {{ {body} }}")


def lstm_weights() -> dict[str, Array]:
    return {"w": normal(4 * H, D), "u": normal(4 * H, H), "b": normal(4 * H)}


def gru_weights() -> dict[str, Array]:
    return {"w": normal(3 * H, D), "u": normal(3 * H, H), "b": normal(3 * H), "c": normal(3 * H, seed=1)}


def rnn_weights() -> dict[str, Array]:
    return {"w": normal(H, D), "u": normal(H, H), "b": normal(H)}


def close(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for f, e in zip(found, expected, strict=True):
            close(f, e)
    else:
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(("t", "n"), [(1, 1), (6, 1), (5, 3), (0, 2)])
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_layers(kind: str, bound: bool, t: int, n: int) -> None:
    given: dict[str, Array]
    if kind == "lstm":
        module, given = main(f"{XS}, {TWO}, {LSTM}", "@lstm(%xs, (%h, %s), %w, %u, %b)"), lstm_weights()
        start: Any = (normal(n, H), normal(n, H, seed=1))
        cell = lstm_cell(**given)
    elif kind == "gru":
        module, given = main(f"{XS}, {ONE}, {GRU}", "@gru(%xs, %h, %w, %u, %b, %c)"), gru_weights()
        start, cell = normal(n, H), gru_cell(**given)
    else:
        module, given = main(f"{XS}, {ONE}, {RNN}", "@rnn(%xs, %h, %w, %u, %b)"), rnn_weights()
        start, cell = normal(n, H), rnn_cell(**given)
    xs = normal(t, n, D)
    if bound:
        module = module.bind(given)
    args = (xs, *(start if isinstance(start, tuple) else (start,)), *(() if bound else given.values()))
    close(both(module, *args), run(cell, xs, start, range(t)))


LAYERS: dict[str, tuple[str, dict[str, Array], Cell, int]] = {
    "rnn": ("@rnn_cell(%w, %u, %b)", rnn_weights(), rnn_cell(**rnn_weights()), 1),
    "gru": ("@gru_cell(%w, %u, %b, %c)", gru_weights(), gru_cell(**gru_weights()), 1),
    "lstm": ("@lstm_cell(%w, %u, %b)", lstm_weights(), lstm_cell(**lstm_weights()), 2),
    "peephole": (
        "@lstm_cell_peephole(%w, %u, %b, %p)",
        lstm_weights() | {"p": normal(3, H)},
        lstm_cell(**lstm_weights(), p=normal(3, H)),
        2,
    ),
}
PARAMS = {"rnn": RNN, "gru": GRU, "lstm": LSTM, "peephole": f"{LSTM}, %p: Tensor[(3, {H}), float32]"}


@pytest.mark.parametrize("name", list(LAYERS))
def test_directions_and_lengths(name: str) -> None:
    text, given, cell, parts = LAYERS[name]
    t, n = 5, 3
    xs, lengths = normal(t, n, D), np.array([5, 1, 3])
    start: Any = normal(n, H) if parts == 1 else (normal(n, H), normal(n, H, seed=1))
    flat = start if isinstance(start, tuple) else (start,)
    state = f"{ONE if parts == 1 else TWO}"
    first_state = "@whole_state, {0}, %h" if parts == 1 else "@first_state, {0}, (%h, %s)"
    tail, choose = first_state.format("%xs"), ("@choose_one" if parts == 1 else "@choose_two")
    masked = first_state.format("%lengths, %xs")
    cases = {
        f"@forwards({text}, {tail})": run(cell, xs, start, range(t)),
        f"@backwards({text}, {tail})": run(cell, xs, start, range(t - 1, -1, -1)),
        f"@forwards_to({text}, {choose}, {masked})": run(cell, xs, start, range(t), lengths),
        f"@backwards_from({text}, {choose}, {masked})": run(cell, xs, start, range(t - 1, -1, -1), lengths),
    }
    for body, expected in cases.items():
        module = main(f"{XS}, {state}, {LENGTHS}, {PARAMS[name]}", body).bind(given)
        close(both(module, xs, *flat, lengths), expected)
        steps = [f for f in compiled(module).functions if f.endswith("__steps")]
        assert len(steps) == 1, "the input product left the loop"


def test_projection() -> None:
    p, n, t = 2, 3, 4
    given = {"w": normal(4 * H, D), "u": normal(4 * H, p), "b": normal(4 * H), "r": normal(p, H)}
    weights = (
        f"%w: Tensor[({4 * H}, {D}), float32], %u: Tensor[({4 * H}, {p}), float32], %b: Tensor[({4 * H},), float32], "
    )
    state = f"%h: Tensor[(n, {p}), float32], %s: Tensor[(n, {H}), float32]"
    module = main(
        f"{XS}, {state}, {weights}%r: Tensor[({p}, {H}), float32]",
        "@forwards(@lstm_cell_projected(%w, %u, %b, %r), @first_state, %xs, (%h, %s))",
    ).bind(given)
    xs, start = normal(t, n, D), (normal(n, p), normal(n, H))
    close(both(module, xs, *start), run(lstm_cell(**given), xs, start, range(t)))


def test_two_layers_both_ways_batch_major() -> None:
    """A bidirectional layer under another one, on (batch, steps, features)."""
    up = {"w2": normal(3 * H, 2 * H), "u2": normal(3 * H, H), "b2": normal(3 * H), "c2": normal(3 * H, seed=1)}
    params = (
        f"%xs: Tensor[(n, t, {D}), float32], {ONE}, {GRU}, %w2: Tensor[({3 * H}, {2 * H}), float32], "
        f"%u2: Tensor[({3 * H}, {H}), float32], %b2: Tensor[({3 * H},), float32], %c2: Tensor[({3 * H},), float32]"
    )
    body = f"""
      let %layer = fn (%x: Tensor[(t, n, {D}), float32]) {{
        let %cell = @gru_cell(%w, %u, %b, %c);
        let %a = @forwards(%cell, @whole_state, %x, %h);
        let %b = @backwards(%cell, @whole_state, %x, %h);
        @gru(concatenate((%a.0, %b.0), axis=2), %h, %w2, %u2, %b2, %c2)
      }};
      @batch_major(%layer, %xs)"""
    module = main(params, body).bind(gru_weights() | up)
    n, t = 2, 4
    xs, h = normal(n, t, D), normal(n, H)
    steps, cell = np.swapaxes(xs, 0, 1), gru_cell(**gru_weights())
    a, b = run(cell, steps, h, range(t))[0], run(cell, steps, h, range(t - 1, -1, -1))[0]
    outputs, state = run(gru_cell(*up.values()), np.concatenate((a, b), axis=2), h, range(t))
    close(both(module, xs, h), (np.swapaxes(outputs, 0, 1), state))


def test_combinators() -> None:
    text = """#[version = "0.0.5"]
    import prelude
    def @doubled(%limit: float32, %x: Tensor[(3,), float32]) {
      @while(fn (%s: Tensor[(3,), float32]) -> bool { sum(%s) < %limit }, fn (%s: Tensor[(3,), float32]) { %s * 2f }, %x)
    }
    def @squares(%end: int64) { @for(0i64, %end, fn (%t: int64, %s: int64) -> int64 { %s + %t * %t }, 0i64) }
    def @folded[n: Dim](%xs: Tensor[(n, 3), float32], %w: Tensor[(3, 3), float32], %a: Tensor[(3,), float32]) {
      @fold_rows(fn (%acc: Tensor[(3,), float32], %x: Tensor[(3,), float32]) { tanh(%acc + nn.dense(%x, %w)) }, %a, %xs)
    }
    def @sums[n: Dim](%xs: Tensor[(n, 2), int32]) {
      @scan_rows(fn (%acc: Tensor[(2,), int32], %x: Tensor[(2,), int32]) { (%acc + %x, cast(%acc + %x, dtype="float32")) },
        zeros(shape=[2], dtype="int32"), zeros(shape=[2], dtype="float32"), %xs)
    }
    def @mapped[n: Dim](%xs: Tensor[(n, 3), float32], %w: Tensor[(2, 3), float32]) {
      @map_rows(fn (%x: Tensor[(3,), float32]) { exp(nn.dense(%x, %w)) }, zeros(shape=[2], dtype="float32"), %xs)
    }
    """
    module = relay.parse(text)
    x = np.array([1, 2, 3], np.float32)
    assert np.array_equal(both(module, np.float32(40), x, entry="doubled"), x * 8)
    assert both(module, np.int64(5), entry="squares") == 30
    xs, w, acc = normal(5, 3), normal(3, 3), normal(3)
    found = both(module, xs, w, acc, entry="folded")
    for row in xs:
        acc = np.tanh(acc + row @ w.T)
    close(found, acc)
    rows = np.arange(8, dtype=np.int32).reshape(4, 2)
    last, all_sums = both(module, rows, entry="sums")
    assert np.array_equal(last, rows.sum(axis=0)) and np.array_equal(all_sums, np.cumsum(rows, axis=0))
    close(both(module, xs, normal(2, 3), entry="mapped"), np.exp(xs @ normal(2, 3).T))


def test_a_fold_costs_what_a_loop_costs() -> None:
    """The function that is folded with is in the loop, and nothing of it is a call or a closure."""
    text = """#[version = "0.0.5"]
    import prelude
    def @main[n: Dim, d: Dim](%xs: Tensor[(n, 3), float32], %w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32],
        %h: Tensor[(4,), float32]) {
      @fold_rows(fn (%h: Tensor[(4,), float32], %x: Tensor[(3,), float32]) { tanh(nn.dense(%x, %w) + nn.dense(%h, %u)) }, %h, %xs)
    }"""
    after = compiled(relay.parse(text).bind({"w": normal(4, 3), "u": normal(4, 4)}))
    assert "closure" not in str(after)
    (steps,) = (f for f in after.functions if f.endswith("__steps"))
    assert operators(after, steps) == {"less", "take", "nn.dense", "add", "tanh"}
    assert len(after.functions) == 3
