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
from machine import fastest, peak, reading
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


def _lstm_like(name: str, text: str, step: Callable[..., tuple[Any, ...]], weights: dict[str, tuple[int, ...]]) -> Cell:
    return Cell(name, STEPS, WIDTH, weights, (WIDTH, WIDTH), text, step, ("u",))


def _mi_lstm(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, a: Any, b1: Any, b2: Any, b: Any) -> tuple[Any, ...]:
    p, q = x @ w.T, h @ u.T
    z = a * p * q + b1 * q + b2 * p + b
    i, f, o, g = (z[:, n * WIDTH : (n + 1) * WIDTH] for n in range(4))
    c = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(c), c


def _sub_lstm(m: Any, x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> tuple[Any, ...]:
    z = m.sigmoid(x @ w.T + h @ u.T + b)
    i, f, o, g = (z[:, n * WIDTH : (n + 1) * WIDTH] for n in range(4))
    c = f * c + g - i
    return m.sigmoid(c) - o, c


def _sc_rnn(m: Any, x: Any, h: Any, s: Any, b: Any, p: Any, a: Any, r: Any) -> tuple[Any, ...]:
    s = (1 - DECAY) * (x @ b.T) + DECAY * s
    return m.sigmoid(s @ p.T + x @ a.T + h @ r.T), s


def _lltm(m: Any, x: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, ...]:
    z = m.concatenate([h, x], 1) @ w.T + b
    i, o, g = (z[:, n * 128 : (n + 1) * 128] for n in range(3))
    c = c + m.where(g > 0, g, m.expm1(m.minimum(g, g * 0))) * m.sigmoid(i)
    return m.tanh(c) * m.sigmoid(o), c


GATES = "let %z{n} = split(%s{n}, indices_or_sections=4, axis=1);"
CELLS = (
    _lstm_like(
        "MI-LSTM",
        "let %p{n} = nn.dense(%x{n}, %w); let %q{n} = nn.dense(%h{n}, %u);"
        "let %s{n} = %a * %p{n} * %q{n} + %b1 * %q{n} + %b2 * %p{n} + %b;" + GATES +
        "let %c{m} = sigmoid(%z{n}.1) * %c{n} + sigmoid(%z{n}.0) * tanh(%z{n}.3);"
        "let %h{m} = sigmoid(%z{n}.2) * tanh(%c{m});",
        _mi_lstm,
        {"w": (4 * WIDTH, WIDTH), "u": (4 * WIDTH, WIDTH), "a": (4 * WIDTH,), "b1": (4 * WIDTH,), "b2": (4 * WIDTH,), "b": (4 * WIDTH,)},
    ),
    _lstm_like(
        "subLSTM",
        "let %s{n} = sigmoid(nn.dense(%x{n}, %w) + nn.dense(%h{n}, %u) + %b);" + GATES +
        "let %c{m} = %z{n}.1 * %c{n} + %z{n}.3 - %z{n}.0; let %h{m} = sigmoid(%c{m}) - %z{n}.2;",
        _sub_lstm,
        {"w": (4 * WIDTH, WIDTH), "u": (4 * WIDTH, WIDTH), "b": (4 * WIDTH,)},
    ),
    Cell(
        "SC-RNN", STEPS, WIDTH,
        {"b": (CONTEXT, WIDTH), "p": (WIDTH, CONTEXT), "a": (WIDTH, WIDTH), "r": (WIDTH, WIDTH)},
        (WIDTH, CONTEXT),
        f"let %c{{m}} = {1 - DECAY!r}f * nn.dense(%x{{n}}, %b) + {DECAY!r}f * %c{{n}};"
        "let %h{m} = sigmoid(nn.dense(%c{m}, %p) + nn.dense(%x{n}, %a) + nn.dense(%h{n}, %r));",
        _sc_rnn,
        ("r",),
    ),
    Cell(
        "LLTM", 1, 32,
        {"w": (3 * 128, 32 + 128), "b": (3 * 128,)},
        (128, 128),
        "let %z{n} = split(nn.dense(concatenate((%h{n}, %x{n}), axis=1), %w) + %b, indices_or_sections=3, axis=1);"
        "let %e{n} = where(%z{n}.2 > 0f, %z{n}.2, exp(minimum(%z{n}.2, 0f)) - 1f);"
        "let %c{m} = %c{n} + %e{n} * sigmoid(%z{n}.0); let %h{m} = tanh(%c{m}) * sigmoid(%z{n}.1);",
        _lltm,
        ("w",),
    ),
)  # fmt: skip


def program(cell: Cell, batch: int) -> relay.Module:
    """``@main(x: (steps, batch, inputs), h, c, weights...) -> loss``, a scalar: the sum of the last states."""
    params = [f"%x: Tensor[({cell.steps}, {batch}, {cell.inputs}), float32]"]
    params += [f"%{s}0: Tensor[({batch}, {size}), float32]" for s, size in zip("hc", cell.states, strict=True)]
    params += [f"%{name}: Tensor[({', '.join(map(str, shape))},), float32]" for name, shape in cell.weights.items()]
    lines = [
        f"let %x{n} = reshape(strided_slice(%x, begin=[{n}], end=[{n + 1}], axes=[0]), newshape=[{batch}, {cell.inputs}]);"
        + cell.text.format(n=n, m=n + 1)
        for n in range(cell.steps)
    ]
    body = "\n".join(lines)
    result = f"sum(%h{cell.steps}) + sum(%c{cell.steps})"
    return relay.parse(f'#[version = "0.0.5"]\ndef @main({", ".join(params)}) -> float32 {{\n{body}\n{result}\n}}')


def arrays(cell: Cell, batch: int) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [(cell.steps, batch, cell.inputs), *((batch, s) for s in cell.states), *cell.weights.values()]
    return [(rng.standard_normal(s) * (0.05 if len(s) == 2 else 0.5)).astype(np.float32) for s in shapes]


def ours(cell: Cell, batch: int, given: list[Array], threads: int) -> Run:
    module = relay.value_and_grad(program(cell, batch), argnums=tuple(range(3, 3 + len(cell.weights))))
    exe = relay.compile(module, threads=threads)
    return lambda: _flat(exe(*given))


def _flat(result: Any) -> tuple[Any, ...]:
    loss, gradients = result
    return (loss, *gradients)


def in_torch(cell: Cell, given: list[Array], threads: int, compiled: bool) -> Run:
    import torch

    torch.set_num_threads(threads)
    x, h0, c0, *weights = (torch.from_numpy(a) for a in given)
    for w in weights:
        w.requires_grad_(True)

    def loss(x: Any, h: Any, c: Any, *weights: Any) -> Any:
        for n in range(cell.steps):
            h, c = cell.step(torch, x[n], h, c, *weights)
        return h.sum() + c.sum()

    forward = torch.compile(loss) if compiled else loss

    def run() -> tuple[Any, ...]:
        value = forward(x, h0, c0, *weights)
        return (value.detach(), *torch.autograd.grad(value, weights))

    return run


def in_jax(cell: Cell, given: list[Array]) -> Run:
    import jax
    import jax.numpy as jnp

    class Names:
        """JAX's names for what the steps call."""

        tanh, concatenate, where, expm1, minimum = jnp.tanh, jnp.concatenate, jnp.where, jnp.expm1, jnp.minimum
        sigmoid = jax.nn.sigmoid

    def loss(weights: Any, x: Any, h: Any, c: Any) -> Any:
        (h, c), _ = jax.lax.scan(lambda s, xt: (cell.step(Names, xt, *s, *weights), None), (h, c), x)
        return h.sum() + c.sum()

    step = jax.jit(jax.value_and_grad(loss))
    x, h0, c0, *weights = (jnp.asarray(a) for a in given)

    def run() -> tuple[Any, ...]:
        value, gradients = step(weights, x, h0, c0)
        for g in gradients:
            g.block_until_ready()
        return (value, *gradients)

    return run


def floor(cell: Cell, batch: int, flops: float, threads: int) -> float:
    """Seconds that the machine needs at least; ``flops`` is its peak. Elementwise operations count nothing."""
    matrices = {name: math.prod(shape) for name, shape in cell.weights.items() if len(shape) == 2}
    again = sum(size for name, size in matrices.items() if name in cell.recurrent)
    read = fastest(reading(4 * again, threads), 0.3)

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
    parser.add_argument("--cells", nargs="+", default=[c.name for c in CELLS])
    parser.add_argument("--without", nargs="+", default=[], choices=["eager", "compiled", "jax"])
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    print(f"{args.threads} thread(s); forward and backward, ms")
    systems = {"ours": "relay", "jax": "JAX", "eager": "PyTorch eager", "compiled": "PyTorch compiled"}
    title = f"Cells that no library has, forward and backward, {args.threads} thread(s)"
    table = Table(f"training-{args.threads}", title, "ms", "cell", [*systems.values(), FLOOR])
    flops = peak(args.threads)
    pause = 0.01 if args.threads == 1 else PAUSE
    ratios: list[float] = []
    for cell in (c for c in CELLS if c.name in args.cells):
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
            times = medians(runs, args.rounds, dict.fromkeys(runs, pause), turn=0.005)
            least = floor(cell, batch, flops(), args.threads)
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
