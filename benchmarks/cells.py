"""Recurrent cells made at random, over sequences of any length: beside JAX's `scan`, compiled for the length at hand, and beside the time
that it takes to read the recurrent weights once a step. What is slower than JAX, or far from the weights, is a cliff, and is printed with
its program.

    python benchmarks/cells.py [--cells 50] [--seed 0] [--gradients]

One thread, the fastest of some calls. A cell has one to three states of 128 or 256 and makes gates of products of its input, its
states and what it has made of them, biases, peepholes, normalisations and softmaxes, and mixes them into new states. The result is the
last states; ``--gradients``: the gradients of the sum of their squares, in all weights.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from machine import fastest, peak, reading  # noqa: E402

import relay  # noqa: E402

STEPS = 32
# How much longer than JAX, or than reading the weights, is a cliff; and how many microseconds a step at least.
SLOWER, FAR, LEAST = 1.0, 1.5, 2.0
# Seconds for each way to run a program, each time.
SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    width: int
    moves: bool  # with the state


@dataclass(slots=True)
class Cell:
    """A cell as text and as functions of the values before; its weights, and what its products cost: (weights' bytes, whether the
    operand moves with the state, multiply-adds)."""

    rows: int
    inputs: int
    states: list[Value]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    steps: list[tuple[str, Callable[[dict[str, Any]], Any]]] = field(default_factory=list)
    products: list[tuple[int, bool, int]] = field(default_factory=list)
    result: list[str] = field(default_factory=list)

    def add(self, text: str, width: int, run: Callable[..., Any], *args: Value | str) -> Value:
        """One more value: ``text`` with the names of the operands in it, which may be weights."""
        name, names = f"v{len(self.lines)}", [a if isinstance(a, str) else a.name for a in args]
        self.lines.append(f"let %{name} = {text.format(*(f'%{n}' for n in names))};")
        self.steps.append((name, lambda env: run(*(env[n] for n in names))))
        return Value(name, width, any(a.moves for a in args if isinstance(a, Value)))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return name

    def dense(self, x: Value, width: int) -> Value:
        w = self.weight(width, x.width)
        self.products.append((4 * width * x.width, x.moves, self.rows * width * x.width))
        return self.add("nn.dense({0}, {1})", width, lambda a, w: a @ w.T, x, w)

    def text(self, gradients: bool) -> str:
        kinds = [f"Tensor[({self.rows}, {s.width}), float32]" for s in self.states]
        tuple_of = (lambda parts: f"({', '.join(parts)})") if len(kinds) > 1 else (lambda parts: parts[0])
        names = [f"%{s.name}" for s in self.states]
        weights = "".join(f", %{n}: Tensor[({', '.join(map(str, s))},), float32]" for n, s in self.weights.items())
        taken = (
            " ".join(f"let {n} = %s.{i};" for i, n in enumerate(names)) if len(kinds) > 1 else f"let {names[0]} = %s;"
        )
        new = tuple_of([f"%{r}" for r in self.result])
        out = "%r" if len(kinds) > 1 else "(%r,)"
        whole = " + ".join(
            f"sum(%r{f'.{i}' if len(kinds) > 1 else ''} * %r{f'.{i}' if len(kinds) > 1 else ''})"
            for i in range(len(kinds))
        )
        return (
            '#[version = "0.0.5"]\nimport prelude\n'
            f"def @main[t: Dim](%xs: Tensor[(t, {self.rows}, {self.inputs}), float32]{weights}) {{\n"
            f"  let %r = @for(0i64, Dim[t], fn (%i: int64, %s: {tuple_of(kinds)}) {{\n"
            f"    let %x = take(%xs, %i, axis=0); {taken}\n    {' '.join(self.lines)}\n    {new}\n  }}, "
            f"{tuple_of([f'zeros(shape=({self.rows}, {s.width}), dtype={chr(34)}float32{chr(34)})' for s in self.states])});\n"
            f"  {whole if gradients else out}\n}}"
        )

    def last(self, xs: Any, weights: Sequence[Any]) -> tuple[Any, ...]:
        """JAX's last states."""
        given = dict(zip(self.weights, weights, strict=True))

        def step(states: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], None]:
            env = {**given, "x": x, **{s.name: v for s, v in zip(self.states, states, strict=True)}}
            for name, run in self.steps:
                env[name] = run(env)
            return tuple(env[n] for n in self.result), None

        first = tuple(jnp.zeros((self.rows, s.width), jnp.float32) for s in self.states)
        states, _ = jax.lax.scan(step, first, xs)
        return tuple(states)


def cell(rng: random.Random) -> Cell:
    """One to three states, each of which is made of what there is."""
    width = rng.choice((128, 256))
    names = "hcs"[: rng.randint(1, 3)]
    made = Cell(rng.choice((1, 1, 4, 16)), rng.choice((64, 200)), [Value(n, width, True) for n in names])
    x = Value("x", made.inputs, False)
    values: list[Value] = [x, *made.states]
    gates = [_gate(rng, made, values, width) for _ in range(rng.randint(2, 4))]
    values += gates
    for state in made.states:
        if rng.random() < 0.3:
            gates.append(_gate(rng, made, values, width))
        new = _mixed(rng, made, state, gates)
        values.append(new)
        made.result.append(new.name)
    return made


def _gate(rng: random.Random, made: Cell, values: Sequence[Value], width: int) -> Value:
    """An activation of a sum or product of products, with what may stand around these."""
    moving = [v for v in values if v.moves]
    terms = [made.dense(rng.choice(moving), width)]
    if rng.random() < 0.8:
        terms.append(made.dense(values[0], width))
    if rng.random() < 0.3:
        same = [v for v in moving if v.width == width]
        terms.append(made.add("{0} * {1}", width, lambda a, p: a * p, rng.choice(same), made.weight(width)))
    if rng.random() < 0.2:
        side = made.add(
            "concatenate(({0}, {1}), axis=1)", values[0].width + width,
            lambda a, b: jnp.concatenate((a, b), axis=1), values[0], rng.choice([v for v in moving if v.width == width]),
        )  # fmt: skip
        terms.append(made.dense(side, width))
    total = terms[0]
    for term in terms[1:]:
        if rng.random() < 0.2:
            total = made.add("{0} * {1}", width, lambda a, b: a * b, total, term)
        else:
            total = made.add("{0} + {1}", width, lambda a, b: a + b, total, term)
    if rng.random() < 0.7:
        total = made.add("nn.bias_add({0}, {1})", width, lambda a, b: a + b, total, made.weight(width))
    if rng.random() < 0.15:
        scale, shift = made.weight(width), made.weight(width)
        total = made.add("nn.layer_norm({0}, {1}, {2})", width, _normal, total, scale, shift)
    name, run = rng.choice(ACTIVATIONS)
    return made.add(f"{name}({{0}})", width, run, total)


def _mixed(rng: random.Random, made: Cell, state: Value, gates: Sequence[Value]) -> Value:
    """A new state from an old one and gates."""
    f, i, g = (rng.choice(gates) for _ in range(3))
    width = state.width
    match rng.choice(("convex", "sum", "carry", "gate", "low_rank")):
        case "convex":
            return made.add("{0} * {1} + (1f - {0}) * {2}", width, lambda f, s, g: f * s + (1 - f) * g, f, state, g)
        case "sum":
            return made.add(
                "tanh({0} * {1} + {2} * {3})", width, lambda f, s, i, g: jnp.tanh(f * s + i * g), f, state, i, g
            )
        case "carry":
            return made.add("0.9f * {0} + 0.1f * {1} * {2}", width, lambda s, i, g: 0.9 * s + 0.1 * i * g, state, i, g)
        case "gate":
            return made.add("{0} * tanh({1})", width, lambda f, g: f * jnp.tanh(g), f, g)
        case _:
            low = made.dense(g, 32)
            back = made.dense(low, width)
            return made.add("tanh({0} + {1} * {2})", width, lambda b, f, s: jnp.tanh(b + f * s), back, f, state)


def _normal(a: Any, scale: Any, shift: Any) -> Any:
    centred = a - a.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift


ACTIVATIONS = (
    ("sigmoid", jax.nn.sigmoid), ("sigmoid", jax.nn.sigmoid), ("tanh", jnp.tanh), ("tanh", jnp.tanh), ("nn.relu", jax.nn.relu),
    ("nn.softmax", jax.nn.softmax),
)  # fmt: skip


def floor(made: Cell, gradients: bool, bandwidth: Callable[[int], float], flops: float) -> float:
    """The seconds that a sequence takes at the least: the weights that meet the states are read once a step (and again on the way back),
    or multiplied at the peak, whichever takes longer; all other products are made for all steps."""
    times = 2 if gradients else 1
    size = sum(b for b, moves, _ in made.products if moves)
    step = max(size / bandwidth(size), sum(2 * m for _, moves, m in made.products if moves) / flops)
    rest = sum(2 * m for _, moves, m in made.products if not moves)
    own = sum(2 * m for _, _, m in made.products) if gradients else 0
    return STEPS * (times * step + (rest + own) / flops)


def measured(seed: int, gradients: bool, bandwidth: Callable[[int], float]) -> tuple[str, dict[str, float]]:
    """The text of a cell's program, and the microseconds a step that it takes in each way, which agree about the results."""
    made = cell(random.Random(seed))
    text = made.text(gradients)
    rng = np.random.default_rng(seed)
    xs = rng.standard_normal((STEPS, made.rows, made.inputs), dtype=np.float32)
    weights = [rng.standard_normal(s, dtype=np.float32) * (0.5 / s[-1] ** 0.5) for s in made.weights.values()]
    module = relay.parse(text)
    if gradients:
        module = relay.grad(module, argnums=tuple(range(1, len(weights) + 1)))
        run = jax.jit(jax.grad(lambda xs, ws: sum((s * s).sum() for s in made.last(xs, ws)), argnums=1))
    else:
        run = jax.jit(made.last)
    given = [jnp.asarray(w) for w in weights]
    xj = jnp.asarray(xs)

    def other() -> Any:
        return jax.block_until_ready(run(xj, given))

    if gradients:
        exe = relay.compile(module, threads=1)
        tensors = [relay.Tensor.from_numpy(a) for a in (xs, *weights)]
    else:
        exe = relay.compile(module.bind(dict(zip(made.weights, weights, strict=True))), threads=1)
        tensors = [relay.Tensor.from_numpy(xs)]
    found = exe(*tensors)
    for a, b in zip(found if isinstance(found, tuple) else (found,), other(), strict=True):
        wanted = np.asarray(b)
        np.testing.assert_allclose(
            np.asarray(a), wanted, rtol=0, atol=2e-4 * max(float(np.abs(wanted).max()), 1e-2), err_msg=text
        )
    took = {"relay": 1e9, "jax": 1e9}
    for _ in range(3):
        took["relay"] = min(took["relay"], fastest(lambda: exe(*tensors), SECONDS))
        took["jax"] = min(took["jax"], fastest(other, SECONDS))
    took["floor"] = floor(made, gradients, bandwidth, peak(1)())
    return text, {name: seconds / STEPS * 1e6 for name, seconds in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first cell")
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    known: dict[int, float] = {}

    def bandwidth(size: int) -> float:
        # In steps of a tenth, so that not every cell measures the memory again.
        rounded = 1 << max(size, 1 << 16).bit_length()
        if rounded not in known:
            known[rounded] = rounded / fastest(reading(rounded, 1), 0.05)
        return known[rounded]

    ratios: dict[str, list[float]] = {"jax": [], "floor": []}
    for seed in range(options.seed, options.seed + options.cells):
        text, took = measured(seed, options.gradients, bandwidth)
        for name, found in ratios.items():
            found.append(took[name] / took["relay"])
        slow = took["relay"] > SLOWER * took["jax"] or took["relay"] > FAR * took["floor"]
        if slow and took["relay"] > min(took["jax"], took["floor"]) + LEAST:
            figures = ", ".join(f"{n} {t:.1f}" for n, t in took.items())
            print(f"{seed}: {figures} us a step\n    {text}", flush=True)
    for name, found in ratios.items():
        print(f"{name} over relay: {statistics.geometric_mean(found):.2f}, at the least {min(found):.2f}")


if __name__ == "__main__":
    main()
