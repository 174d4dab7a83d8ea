"""The library's recurrent layers over any number of steps (`import nn`), forward, and with the gradients of their weights, beside PyTorch's
layers and JAX's scan.

    python benchmarks/layers.py [--threads 1] [--layers lstm gru] [--sizes 200x8x128x256 ...] [--without jax] [--out results]

A size is steps x batch x inputs x units. The loss is the mean of the squared outputs. Relay compiles each layer once for any number of
steps; JAX compiles for the one that it is given.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

import relay

Array = npt.NDArray[np.float32]
Run = Callable[[], list[Array]]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
SIZES = ["200x8x128x256", "28x16x512x512", "100x32x256x256", "60x1x300x512"]


def arrays(layer: str, steps: int, batch: int, inputs: int, units: int) -> list[Array]:
    """The sequence, the first state, and the weights in the order of the library's parameters."""
    rng, rows = np.random.default_rng(0), GATES[layer] * units
    weights = [(rows, inputs), (rows, units), (rows,), *([(rows,)] if layer == "gru" else [])]
    xs = rng.standard_normal((steps, batch, inputs)).astype(np.float32)
    return [
        xs,
        np.zeros((batch, units), np.float32),
        *((rng.standard_normal(s) * 0.05).astype(np.float32) for s in weights),
    ]


def ours(layer: str, given: list[Array], gradient: bool, threads: int) -> Run:
    xs, first, *weights = given
    sizes = [f"%w{n}: Tensor[({', '.join(map(str, w.shape))},), float32]" for n, w in enumerate(weights)]
    names = ", ".join(f"%w{n}" for n in range(len(weights)))
    state = "(%h, %h)" if layer == "lstm" else "%h"
    sequence = f"Tensor[(t, {xs.shape[1]}, {xs.shape[2]}), float32]"
    module = relay.parse(f"""#[version = "0.0.5"]
import nn
def @main[t: Dim](%xs: {sequence}, %h: Tensor[{first.shape}, float32], {", ".join(sizes)}) -> float32 {{
  let %y = @{layer}(%xs, {state}, {names}).0;
  mean(%y * %y)
}}""")
    if gradient:
        module = relay.value_and_grad(module, argnums=tuple(range(2, len(given))))
    exe = relay.compile(module, threads=threads)

    def run() -> list[Array]:
        result: Any = exe(*given)
        return [np.asarray(a) for a in ((result[0], *result[1]) if gradient else (result,))]

    return run


def in_torch(layer: str, given: list[Array], gradient: bool, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    xs, _, w, u, *biases = given
    module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[layer](w.shape[1], u.shape[1])
    held = [module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0]
    with torch.no_grad():
        for parameter, value in zip(held, [w, u, *biases, np.zeros_like(biases[0])], strict=False):
            parameter.copy_(torch.from_numpy(value))
    x, wanted = torch.from_numpy(xs), held[: len(given) - 2]

    def run() -> list[Array]:
        with torch.set_grad_enabled(gradient):
            loss = module(x)[0].square().mean()
            found = torch.autograd.grad(loss, wanted) if gradient else ()
        return [a.detach().numpy() for a in (loss, *found)]

    return run


def in_jax(layer: str, given: list[Array], gradient: bool) -> Run:
    import jax
    import jax.numpy as jnp

    def one(state: Any, p: Any, u: Any, bias: list[Any]) -> Any:
        if layer == "rnn":
            return jnp.tanh(p + state @ u.T)
        if layer == "gru":
            (pr, pz, pn), (qr, qz, qn) = jnp.split(p, 3, 1), jnp.split(state @ u.T + bias[0], 3, 1)
            z = jax.nn.sigmoid(pz + qz)
            return (1 - z) * jnp.tanh(pn + jax.nn.sigmoid(pr + qr) * qn) + z * state
        i, f, g, o = jnp.split(p + state[0] @ u.T, 4, 1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def loss(weights: list[Any], xs: Any, first: Any) -> Any:
        w, u, b, *bias = weights

        def step(state: Any, p: Any) -> Any:
            state = one(state, p, u, bias)
            return state, state[0] if layer == "lstm" else state

        _, y = jax.lax.scan(step, (first, first) if layer == "lstm" else first, xs @ w.T + b)
        return jnp.mean(y * y)

    made = jax.jit(jax.value_and_grad(loss) if gradient else loss)
    xs, first, *weights = (jnp.asarray(a) for a in given)

    def run() -> list[Array]:
        result: Any = jax.block_until_ready(made(weights, xs, first))
        return [np.asarray(a) for a in ((result[0], *result[1]) if gradient else (result,))]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", nargs="+", choices=GATES, default=list(GATES))
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="STEPSxBATCHxINPUTSxUNITS")
    parser.add_argument("--without", nargs="+", default=[], choices=["torch", "jax"])
    parser.add_argument("--rounds", type=int, default=7)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    systems = [s for s in ("relay", "torch", "jax") if s not in args.without]
    table = Table(
        f"layers-{args.threads}",
        f"Recurrent layers over any number of steps, {args.threads} thread(s)",
        "ms",
        "layer, steps x batch x inputs x units",
        [*systems, *(["best other / ours"] if len(systems) > 1 else [])],
    )
    print(table.head())
    ratios: list[float] = []
    for layer in args.layers:
        for size in args.sizes:
            given = arrays(layer, *map(int, size.split("x")))
            for gradient in (False, True):
                makers: dict[str, Callable[[], Run]] = {
                    "relay": lambda: ours(layer, given, gradient, args.threads),  # noqa: B023
                    "torch": lambda: in_torch(layer, given, gradient, args.threads),  # noqa: B023
                    "jax": lambda: in_jax(layer, given, gradient),  # noqa: B023
                }
                runs = {system: makers[system]() for system in systems}
                found = {system: run() for system, run in runs.items()}
                for system, results in found.items():
                    for a, b in zip(results, found["relay"], strict=True):
                        np.testing.assert_allclose(b, a, rtol=2e-3, atol=2e-3 * float(np.abs(a).max()), err_msg=system)
                pause = 0.01 if args.threads == 1 else PAUSE
                figures = {s: t * 1e3 for s, t in medians(runs, args.rounds, dict.fromkeys(runs, pause), 0.02).items()}
                if len(systems) > 1:
                    ratios.append(min(figures[s] for s in systems[1:]) / figures["relay"])
                    figures["best other / ours"] = ratios[-1]
                print(table.add(f"{layer}, {size}{', gradient' if gradient else ''}", figures), flush=True)
    if ratios:
        print(
            table.note(
                f"geometric mean of the best other's time over ours: {float(np.exp(np.mean(np.log(ratios)))):.2f}"
            )
        )
    table.keep(args.out)


if __name__ == "__main__":
    main()
