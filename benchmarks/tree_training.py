"""Forward and backward through recursion over data: Tree-LSTMs (`examples/tree_lstm.relay`, `examples/child_sum.relay`), a network that
goes up and down a tree (`examples/bitree.relay`) and an LSTM over sequences of any length, beside PyTorch eager and, for sequences, JAX,
in turns.

    python benchmarks/tree_training.py [--threads 1] [--trees 8] [--cases binary child-sum "up and down" sequence]

Every system computes the result and the gradients of all weights, one tree or sequence at a time, milliseconds for all of them.
Trees are those of `trees.py` (random splits, 5 to 50 leaves; input 300, state 150); sequences have 5 to 60 steps of 128, hidden 256.
Ours is `relay.value_and_grad` of the program, compiled once. JAX compiles for one length, so its sequences are filled up to the
longest and masked. Gradients are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tree_peers
import trees
from table import Table, add_out
from turns import medians

import relay

Array = Any
# The gradients of the weights, for every tree or sequence.
Run = Callable[[], list[Sequence[Any]]]
STEP, HIDDEN, LONGEST = 128, 256, 60
SEQUENCE = f"""#[version = "0.0.5"]
def @go[t: Dim](%i: int64, %n: int64, %xs: Tensor[(t, 1, {STEP}), float32], %h: Tensor[(1, {HIDDEN}), float32],
    %c: Tensor[(1, {HIDDEN}), float32], %w: Tensor[({4 * HIDDEN}, {STEP}), float32],
    %u: Tensor[({4 * HIDDEN}, {HIDDEN}), float32], %b: Tensor[({4 * HIDDEN},), float32]) -> Tensor[(1, {HIDDEN}), float32] {{
  if (%i < %n) {{
    let %z = split(nn.bias_add(nn.dense(take(%xs, %i, axis=0), %w) + nn.dense(%h, %u), %b), indices_or_sections=4, axis=1);
    let %new = sigmoid(%z.1) * %c + sigmoid(%z.0) * tanh(%z.2);
    @go(%i + 1i64, %n, %xs, sigmoid(%z.3) * tanh(%new), %new, %w, %u, %b)
  }} else {{ %h }}
}}
def @main[t: Dim](%xs: Tensor[(t, 1, {STEP}), float32], %w: Tensor[({4 * HIDDEN}, {STEP}), float32],
    %u: Tensor[({4 * HIDDEN}, {HIDDEN}), float32], %b: Tensor[({4 * HIDDEN},), float32]) {{
  let %zero = zeros(shape=[1, {HIDDEN}], dtype="float32");
  @go(0i64, take(shape_of(%xs, dtype="int64"), 0i64, axis=0), %xs, %zero, %zero, %w, %u, %b)
}}
"""


def ours(module: Any, data: Sequence[Any], weights: dict[str, Array], threads: int) -> Run:
    numbers = range(1, 1 + len(weights))
    exe = relay.compile(relay.value_and_grad(module, tuple(numbers)), threads=threads)
    values = [exe.signature().arguments((d, *weights.values()))[0] for d in data]
    given = tuple(weights.values())
    return lambda: [exe(v, *given)[1] for v in values]


def in_torch(weights: dict[str, Array], encode: Callable[..., Any], count: int, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    w = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in weights.items()}
    return lambda: [torch.autograd.grad(encode(w, n).sum(), list(w.values())) for n in range(count)]


def tree_cases(name: str, given: argparse.Namespace) -> dict[str, Run]:
    rng = np.random.default_rng(0)
    module, weights = trees.program(name, rng)
    data = [trees.tree(module, rng, k, name == "binary") for k in trees.leaf_counts(rng, given.trees)]
    encoder = tree_peers.torch_cell(name, weights, data)
    return {
        "relay": ours(module, data, weights, given.threads),
        "PyTorch eager": in_torch(weights, lambda w, n: encoder(w, data[n])[0], len(data), given.threads),
    }


def both_ways(given: argparse.Namespace) -> dict[str, Run]:
    import torch
    from torch.nn.functional import linear

    rng = np.random.default_rng(0)
    module = relay.infer_type(relay.load_module(trees.EXAMPLES / "bitree.relay"))
    d, h = trees.USUAL
    shapes = {"c": (1, h), "wx": (h, d), "wl": (h, h), "wr": (h, h), "ul": (h, h), "ur": (h, h)}
    weights = {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in shapes.items()}
    data = [trees.tree(module, rng, k, binary=True) for k in trees.leaf_counts(rng, given.trees)]

    def words(t: Any) -> Any:
        word, *parts = t.fields
        return torch.from_numpy(word), [words(k) for k in parts]

    def up(w: dict[str, Any], t: Any) -> Any:
        if not t[1]:
            return torch.tanh(linear(t[0], w["wx"])), ()
        below = [up(w, k) for k in t[1]]
        return torch.tanh(linear(below[0][0], w["wl"]) + linear(below[1][0], w["wr"])), below

    def down(w: dict[str, Any], t: Any, above: Any) -> Any:
        here = torch.tanh(t[0] + above)
        parts = (down(w, k, linear(here, w[u])) for k, u in zip(t[1], ("ul", "ur"), strict=False))
        return sum(parts, here.sum())

    roots = [words(t) for t in data]
    return {
        "relay": ours(module, data, weights, given.threads),
        "PyTorch eager": in_torch(weights, lambda w, n: down(w, up(w, roots[n]), w["c"]), len(data), given.threads),
    }


def sequences(given: argparse.Namespace) -> dict[str, Run]:
    import torch
    from torch.nn.functional import linear

    rng = np.random.default_rng(0)
    shapes = {"w": (4 * HIDDEN, STEP), "u": (4 * HIDDEN, HIDDEN), "b": (4 * HIDDEN,)}
    weights = {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in shapes.items()}
    lengths = [int(k) for k in rng.integers(5, LONGEST + 1, given.trees)]
    data = [rng.standard_normal((k, 1, STEP), dtype=np.float32) for k in lengths]
    rows = [torch.from_numpy(d) for d in data]

    def encode(w: dict[str, Any], n: int) -> Any:
        h = c = torch.zeros(1, HIDDEN)
        for x in rows[n]:
            i, f, g, o = (linear(x, w["w"]) + linear(h, w["u"], w["b"])).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    runs: dict[str, Run] = {
        "relay": ours(relay.infer_type(relay.parse(SEQUENCE)), data, weights, given.threads),
        "PyTorch eager": in_torch(weights, encode, len(data), given.threads),
    }
    try:
        runs["JAX"] = in_jax(weights, data)
    except ImportError as error:
        print(f"JAX: {error}")
    return runs


def in_jax(weights: dict[str, Array], data: Sequence[Array]) -> Run:
    import jax
    import jax.numpy as jnp

    def loss(w: Any, xs: Any, count: Any) -> Any:
        def step(state: Any, at: Any) -> Any:
            h, c = state
            x, n = at
            i, f, g, o = jnp.split(x @ w["w"].T + h @ w["u"].T + w["b"], 4, 1)
            new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            goes = n < count
            return (jnp.where(goes, jax.nn.sigmoid(o) * jnp.tanh(new), h), jnp.where(goes, new, c)), None

        zero = jnp.zeros((1, HIDDEN))
        (h, _), _ = jax.lax.scan(step, (zero, zero), (xs, jnp.arange(LONGEST)))
        return h.sum()

    w = {n: jnp.asarray(v) for n, v in weights.items()}
    padded = [jnp.asarray(np.concatenate([d, np.zeros((LONGEST - len(d), 1, STEP), np.float32)])) for d in data]
    step = jax.jit(jax.grad(loss))

    def run() -> list[Sequence[Any]]:
        found = [step(w, x, len(d)) for x, d in zip(padded, data, strict=True)]
        return [[g[n].block_until_ready() for n in w] for g in found]

    return run


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Run]]] = {
    "binary": partial(tree_cases, "binary"), "child-sum": partial(tree_cases, "child-sum"), "up and down": both_ways,
    "sequence": sequences,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trees", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    add_out(parser)
    given = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    title = f"Recursion over data, forward and backward, {given.trees} trees or sequences, {given.threads} thread(s)"
    table = Table(f"tree-training-{given.threads}", title, "ms", "program", ["relay", "PyTorch eager", "JAX"])
    print(table.head())
    for case in given.cases:
        runs = CASES[case](given)
        results = {system: run() for system, run in runs.items()}
        for system, found in results.items():
            for of_ours, of_other in zip(results["relay"], found, strict=True):
                for a, b in zip(of_ours, of_other, strict=True):
                    b = np.asarray(b)
                    np.testing.assert_allclose(
                        np.asarray(a), b, rtol=2e-3, atol=1e-3 * float(np.abs(b).max()), err_msg=system
                    )
        times = medians(runs, given.rounds, {"relay": 0.25})
        print(table.add(case, {s: t * 1e3 for s, t in times.items()}), flush=True)
        best = min(t for s, t in times.items() if s != "relay")
        eager = times["PyTorch eager"] / times["relay"]
        print(table.note(f"{case}: PyTorch eager / relay {eager:.1f}, best peer / relay {best / times['relay']:.1f}"))
    table.keep(given.out)


if __name__ == "__main__":
    main()
