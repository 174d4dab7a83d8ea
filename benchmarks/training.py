"""Forward and backward of recurrent cells that no library has: MI-LSTM, SC-RNN, subLSTM (28 steps of 512) and LLTM (one step,
32 to 128), beside PyTorch (eager, compiled) and JAX, in turns, in one run.

Every system computes the loss and the gradients of all weights. Ours is `relay.value_and_grad` of the program as it is written
here. The floor is what the machine allows, measured in the same run: the weights that meet the state are read once in every step,
forward and backward (back from the first step nobody asks), at the bandwidth of the level that they fit into, or multiplied at the
peak of multiply-adds, whichever takes longer; weights that meet the inputs alone are one product over all steps, and so is the
gradient of each weight. Run it as ``python benchmarks/training.py [--threads 1] [--batch 1 16]``.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from machine import multiplying, reading
from table import FLOOR, Table, add_out
from turns import PAUSE, medians

import relay

Array = npt.NDArray[np.float32]
# Gives the loss and the gradients of the weights as arrays.
Run = Callable[[], tuple[Any, ...]]
STEPS, WIDTH, CONTEXT, DECAY = 28, 512, 64, 0.95


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its weights by name, its states' widths, and a step in Relay text, in PyTorch and in JAX (``m`` is torch or jnp).

    The step takes ``x``, the states and the weights, and gives the new states. ``recurrent``: the weights whose products need
    the state of the step before.
    """

    name: str
    steps: int
    inputs: int
    weights: dict[str, tuple[int, ...]]
    states: tuple[int, ...]
    text: str
    step: Callable[..., tuple[Any, ...]]
    recurrent: tuple[str, ...]


def _gates(z: Any, n: int) -> tuple[Any, ...]:
    width = z.shape[1] // n
    return tuple(z[:, k * width : (k + 1) * width] for k in range(n))


def _mi_lstm(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, a: Any, b1: Any, b2: Any, b: Any) -> tuple[Any, ...]:
    p, q = x @ w.T, h @ u.T
    i, f, o, g = _gates(a * p * q + b1 * q + b2 * p + b, 4)
    c = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(c), c


def _sub_lstm(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> tuple[Any, ...]:
    i, f, o, g = _gates(m.sigmoid(x @ w.T + h @ u.T + b), 4)
    c = f * c + g - i
    return m.sigmoid(c) - o, c


def _sc_rnn(m: Any, x: Any, h: Any, s: Any, b: Any, p: Any, a: Any, r: Any) -> tuple[Any, ...]:
    s = (1 - DECAY) * (x @ b.T) + DECAY * s
    return m.sigmoid(s @ p.T + x @ a.T + h @ r.T), s


def _lltm(m: Any, x: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, ...]:
    i, o, g = _gates(m.concatenate([h, x], 1) @ w.T + b, 3)
    c = c + m.where(g > 0, g, m.expm1(m.minimum(g, g * 0))) * m.sigmoid(i)
    return m.tanh(c) * m.sigmoid(o), c


def _gru(m: Any, x: Any, h: Any, w: Any, u: Any, b: Any, d: Any) -> tuple[Any, ...]:
    (pr, pz, pn), (qr, qz, qn) = _gates(x @ w.T + b, 3), _gates(h @ u.T + d, 3)
    z, n = m.sigmoid(pz + qz), m.tanh(pn + m.sigmoid(pr + qr) * qn)
    return ((1 - z) * n + z * h,)


def _mgu(m: Any, x: Any, h: Any, w: Any, u: Any, v: Any, b: Any) -> tuple[Any, ...]:
    pf, pn = _gates(x @ w.T + b, 2)
    f = m.sigmoid(pf + h @ u.T)
    return ((1 - f) * h + f * m.tanh(pn + (f * h) @ v.T),)


def _ln_lstm(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, p: Any, q: Any, b: Any, e: Any, d: Any) -> tuple[Any, ...]:
    i, f, o, g = _gates(_normal(m, x @ w.T) * p + _normal(m, h @ u.T) * q + b, 4)
    c = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(_normal(m, c) * e + d), c


def _normal(m: Any, x: Any) -> Any:
    centred = x - m.mean(x, axis=-1, keepdims=True)
    return centred / m.sqrt(m.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _peephole(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, p: Any, q: Any, r: Any) -> tuple[Any, ...]:
    i, f, o, g = _gates(x @ w.T + h @ u.T + b, 4)
    c = m.sigmoid(f + q * c) * c + m.sigmoid(i + p * c) * m.tanh(g)
    return m.sigmoid(o + r * c) * m.tanh(c), c


def _coupled(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> tuple[Any, ...]:
    f, o, g = _gates(x @ w.T + h @ u.T + b, 3)
    f = m.sigmoid(f)
    c = f * c + (1 - f) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(c), c


def _m_rnn(m: Any, x: Any, h: Any, w: Any, v: Any, u: Any, t: Any, b: Any) -> tuple[Any, ...]:
    return (m.tanh(x @ w.T + ((x @ v.T) * (h @ u.T)) @ t.T + b),)


GATES = "let %z{n} = split(%s{n}, indices_or_sections=4, axis=1);"


def cells(steps: int, width: int) -> tuple[Cell, ...]:
    """The cells of the table, and others, of so many steps and units; LLTM has one step and a quarter as many."""

    def gated(
        name: str, gates: int, text: str, step: Callable[..., tuple[Any, ...]], more: dict[str, int], states: int = 2
    ) -> Cell:
        """A cell with a product of its input and one of its state for all gates, and more vectors of so many widths."""
        sizes = {n: (size * width,) for n, size in more.items()}
        weights = {"w": (gates * width, width), "u": (gates * width, width), **sizes}
        return Cell(name, steps, width, weights, (width,) * states, text, step, ("u",))

    square = (width, width)
    small = width // 4
    return (
        gated(
            "MI-LSTM", 4,
            "let %p{n} = nn.dense(%x{n}, %w); let %q{n} = nn.dense(%h{n}, %u);"
            "let %s{n} = %a * %p{n} * %q{n} + %b1 * %q{n} + %b2 * %p{n} + %b;" + GATES +
            "let %c{m} = sigmoid(%z{n}.1) * %c{n} + sigmoid(%z{n}.0) * tanh(%z{n}.3);"
            "let %h{m} = sigmoid(%z{n}.2) * tanh(%c{m});",
            _mi_lstm, dict.fromkeys(("a", "b1", "b2", "b"), 4),
        ),
        gated(
            "subLSTM", 4,
            "let %s{n} = sigmoid(nn.dense(%x{n}, %w) + nn.dense(%h{n}, %u) + %b);" + GATES +
            "let %c{m} = %z{n}.1 * %c{n} + %z{n}.3 - %z{n}.0; let %h{m} = sigmoid(%c{m}) - %z{n}.2;",
            _sub_lstm, {"b": 4},
        ),
        Cell(
            "SC-RNN", steps, width,
            {"b": (CONTEXT, width), "p": (width, CONTEXT), "a": square, "r": square},
            (width, CONTEXT),
            f"let %c{{m}} = {1 - DECAY!r}f * nn.dense(%x{{n}}, %b) + {DECAY!r}f * %c{{n}};"
            "let %h{m} = sigmoid(nn.dense(%c{m}, %p) + nn.dense(%x{n}, %a) + nn.dense(%h{n}, %r));",
            _sc_rnn,
            ("r",),
        ),
        Cell(
            "LLTM", 1, small // 4,
            {"w": (3 * small, small // 4 + small), "b": (3 * small,)},
            (small, small),
            "let %z{n} = split(nn.dense(concatenate((%h{n}, %x{n}), axis=1), %w) + %b, indices_or_sections=3, axis=1);"
            "let %e{n} = where(%z{n}.2 > 0f, %z{n}.2, exp(minimum(%z{n}.2, 0f)) - 1f);"
            "let %c{m} = %c{n} + %e{n} * sigmoid(%z{n}.0); let %h{m} = tanh(%c{m}) * sigmoid(%z{n}.1);",
            _lltm,
            ("w",),
        ),
        gated(
            "GRU", 3,
            "let %p{n} = split(nn.dense(%x{n}, %w) + %b, indices_or_sections=3, axis=1);"
            "let %q{n} = split(nn.dense(%h{n}, %u) + %d, indices_or_sections=3, axis=1);"
            "let %z{n} = sigmoid(%p{n}.1 + %q{n}.1); let %n{n} = tanh(%p{n}.2 + sigmoid(%p{n}.0 + %q{n}.0) * %q{n}.2);"
            "let %h{m} = (1f - %z{n}) * %n{n} + %z{n} * %h{n};",
            _gru, {"b": 3, "d": 3}, states=1,
        ),
        Cell(
            "MGU", steps, width, {"w": (2 * width, width), "u": square, "v": square, "b": (2 * width,)}, (width,),
            "let %p{n} = split(nn.dense(%x{n}, %w) + %b, indices_or_sections=2, axis=1);"
            "let %f{n} = sigmoid(%p{n}.0 + nn.dense(%h{n}, %u));"
            "let %h{m} = (1f - %f{n}) * %h{n} + %f{n} * tanh(%p{n}.1 + nn.dense(%f{n} * %h{n}, %v));",
            _mgu, ("u", "v"),
        ),
        gated(
            "LN-LSTM", 4,
            "let %s{n} = nn.layer_norm(nn.dense(%x{n}, %w), %p, %b) + nn.layer_norm(nn.dense(%h{n}, %u), %q, %b * 0f);" + GATES +
            "let %c{m} = sigmoid(%z{n}.1) * %c{n} + sigmoid(%z{n}.0) * tanh(%z{n}.3);"
            "let %h{m} = sigmoid(%z{n}.2) * tanh(nn.layer_norm(%c{m}, %e, %d));",
            _ln_lstm, {"p": 4, "q": 4, "b": 4, "e": 1, "d": 1},
        ),
        gated(
            "peephole", 4,
            "let %s{n} = nn.dense(%x{n}, %w) + nn.dense(%h{n}, %u) + %b;" + GATES +
            "let %c{m} = sigmoid(%z{n}.1 + %q * %c{n}) * %c{n} + sigmoid(%z{n}.0 + %p * %c{n}) * tanh(%z{n}.3);"
            "let %h{m} = sigmoid(%z{n}.2 + %r * %c{m}) * tanh(%c{m});",
            _peephole, {"b": 4, "p": 1, "q": 1, "r": 1},
        ),
        gated(
            "coupled", 3,
            "let %z{n} = split(nn.dense(%x{n}, %w) + nn.dense(%h{n}, %u) + %b, indices_or_sections=3, axis=1);"
            "let %f{n} = sigmoid(%z{n}.0); let %c{m} = %f{n} * %c{n} + (1f - %f{n}) * tanh(%z{n}.2);"
            "let %h{m} = sigmoid(%z{n}.1) * tanh(%c{m});",
            _coupled, {"b": 3},
        ),
        Cell(
            "mRNN", steps, width, {"w": square, "v": square, "u": square, "t": square, "b": (width,)}, (width,),
            "let %h{m} = tanh(nn.dense(%x{n}, %w) + nn.dense(nn.dense(%x{n}, %v) * nn.dense(%h{n}, %u), %t) + %b);",
            _m_rnn, ("u", "t"),
        ),
    )  # fmt: skip


TABLE = ("MI-LSTM", "subLSTM", "SC-RNN", "LLTM")
MORE = ("GRU", "MGU", "LN-LSTM", "peephole", "coupled", "mRNN")


def program(cell: Cell, batch: int) -> relay.Module:
    """``@main(x: (steps, batch, inputs), h, c, weights...) -> loss``, a scalar: the sum of the last states."""
    params = [f"%x: Tensor[({cell.steps}, {batch}, {cell.inputs}), float32]"]
    params += [f"%{s}0: Tensor[({batch}, {size}), float32]" for s, size in zip("hc", cell.states, strict=False)]
    params += [f"%{name}: Tensor[({', '.join(map(str, shape))},), float32]" for name, shape in cell.weights.items()]
    lines = [
        f"let %x{n} = reshape(strided_slice(%x, begin=[{n}], end=[{n + 1}], axes=[0]), newshape=[{batch}, {cell.inputs}]);"
        + cell.text.format(n=n, m=n + 1)
        for n in range(cell.steps)
    ]
    body = "\n".join(lines)
    result = " + ".join(f"sum(%{s}{cell.steps})" for s in "hc"[: len(cell.states)])
    return relay.parse(f'#[version = "0.0.5"]\ndef @main({", ".join(params)}) -> float32 {{\n{body}\n{result}\n}}')


def arrays(cell: Cell, batch: int) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [(cell.steps, batch, cell.inputs), *((batch, s) for s in cell.states), *cell.weights.values()]
    return [(rng.standard_normal(s) * (0.05 if len(s) == 2 else 0.5)).astype(np.float32) for s in shapes]


def ours(cell: Cell, batch: int, given: list[Array], threads: int) -> Run:
    first = 1 + len(cell.states)
    module = relay.value_and_grad(program(cell, batch), argnums=tuple(range(first, first + len(cell.weights))))
    exe = relay.compile(module, threads=threads)
    return lambda: _flat(exe(*given))


def _flat(result: Any) -> tuple[Any, ...]:
    loss, gradients = result
    return (loss, *gradients)


def in_torch(cell: Cell, given: list[Array], threads: int, compiled: bool) -> Run:
    import torch

    torch.set_num_threads(threads)
    x, *others = (torch.from_numpy(a) for a in given)
    weights = others[len(cell.states) :]
    for w in weights:
        w.requires_grad_(True)

    def loss(x: Any, *others: Any) -> Any:
        state, weights = others[: len(cell.states)], others[len(cell.states) :]
        for n in range(cell.steps):
            state = cell.step(torch, x[n], *state, *weights)
        return sum(s.sum() for s in state)

    forward = torch.compile(loss) if compiled else loss

    def run() -> tuple[Any, ...]:
        value = forward(x, *others)
        return (value.detach(), *torch.autograd.grad(value, weights))

    return run


def in_jax(cell: Cell, given: list[Array]) -> Run:
    import jax
    import jax.numpy as jnp

    class Names:
        """JAX's names for what the steps call."""

        tanh, concatenate, where, expm1, minimum = jnp.tanh, jnp.concatenate, jnp.where, jnp.expm1, jnp.minimum
        sigmoid, mean, sqrt = jax.nn.sigmoid, jnp.mean, jnp.sqrt

    def loss(weights: Any, x: Any, *state: Any) -> Any:
        last, _ = jax.lax.scan(lambda s, xt: (cell.step(Names, xt, *s, *weights), None), state, x)
        return sum(s.sum() for s in last)

    step = jax.jit(jax.value_and_grad(loss))
    x, *others = (jnp.asarray(a) for a in given)
    state, weights = others[: len(cell.states)], others[len(cell.states) :]

    def run() -> tuple[Any, ...]:
        value, gradients = step(weights, x, *state)
        for g in gradients:
            g.block_until_ready()
        return (value, *gradients)

    return run


def met_again(cell: Cell) -> int:
    """How many elements the weights have that meet the state, and so are read in every step."""
    return sum(math.prod(cell.weights[name]) for name in cell.recurrent)


def floor(cell: Cell, batch: int, flops: float, read: float) -> float:
    """Seconds that the machine needs at least: ``flops`` is its peak, ``read`` are the seconds in which it reads the weights that
    meet the state. Elementwise operations count nothing."""
    matrices = {name: math.prod(shape) for name, shape in cell.weights.items() if len(shape) == 2}
    again = met_again(cell)

    def product(rows: int, size: int) -> float:
        """A product of so many rows with weights that are read, or a gradient that is written, once."""
        return max(2 * rows * size / flops, read * size / again)

    steps = (2 * cell.steps - 1) * product(batch, again)
    inputs = sum(product(cell.steps * batch, size) for name, size in matrices.items() if name not in cell.recurrent)
    return steps + inputs + sum(product(cell.steps * batch, size) for size in matrices.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--cells", nargs="+", default=TABLE, help=f"of these, and of {', '.join(MORE)}", choices=[*TABLE, *MORE]
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--without", nargs="+", default=[], choices=["eager", "compiled", "jax"])
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    print(f"{args.threads} thread(s); forward and backward, ms")
    systems = {"ours": "relay", "jax": "JAX", "eager": "PyTorch eager", "compiled": "PyTorch compiled"}
    title = f"Cells that no library has, forward and backward, {args.threads} thread(s)"
    table = Table(f"training-{args.threads}", title, "ms", "cell", [*systems.values(), FLOOR])
    operations, multiply = multiplying(args.threads)
    pause = 0.01 if args.threads == 1 else PAUSE
    ratios: list[float] = []
    for cell in (c for c in cells(args.steps, args.width) if c.name in args.cells):
        for batch in args.batch:
            given = arrays(cell, batch)
            runs: dict[str, Run] = {"ours": ours(cell, batch, given, args.threads)}
            makers: dict[str, Callable[[], Run]] = {
                "eager": partial(in_torch, cell, given, args.threads, compiled=False),
                "compiled": partial(in_torch, cell, given, args.threads, compiled=True),
                "jax": partial(in_jax, cell, given),
            }
            runs.update((name, make()) for name, make in makers.items() if name not in args.without)
            results = {name: [np.asarray(a) for a in run()] for name, run in runs.items()}
            for name, found in results.items():
                for a, b in zip(found, results["ours"], strict=True):
                    np.testing.assert_allclose(b, a, rtol=2e-3, atol=2e-3 * float(np.abs(a).max()), err_msg=name)
            # The machine's limits in turns with the systems: what neighbours take of the core meets all of them.
            timed = {**runs, "multiply": multiply, "read": reading(4 * met_again(cell), args.threads)}
            times = medians(timed, args.rounds, dict.fromkeys(timed, pause), turn=0.005)
            least = floor(cell, batch, operations / times.pop("multiply"), times.pop("read"))
            best = min((t for n, t in times.items() if n != "ours"), default=times["ours"])
            ratios.append(best / times["ours"])
            shown = "  ".join(f"{n} {t * 1e3:8.3f}" for n, t in times.items())
            shown = f"{cell.name:8} batch {batch:3}  {shown}  floor {least * 1e3:.3f}"
            shown += f"  best peer / ours {ratios[-1]:.2f}  ours / floor {times['ours'] / least:.2f}"
            print(shown, flush=True)
            table.add(
                f"{cell.name}, batch {batch}", {**{systems[n]: t * 1e3 for n, t in times.items()}, FLOOR: least * 1e3}
            )
    print(table.note(f"geometric mean of the best peer's time over ours: {np.exp(np.mean(np.log(ratios))):.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
