"""Training a small GPT: the loss and the gradients of all weights, beside PyTorch (eager, compiled) and JAX, in turns, in one run.

The model is `examples/train_gpt.py`, compiled once for any batch and length, with attention spelled out (``spelled``) and as one operator
(``operator``). PyTorch uses its own `scaled_dot_product_attention`, JAX the products and the softmax. With ``--memory`` the peak of
the process over three calls is measured too, in a process for each system; ``--attention`` measures attention by itself, with PyTorch's.

    python benchmarks/gpt_training.py [--threads 1] [--sizes 2x128x4 4x256x8] [--batch 1 8] [--length 64 256] [--rounds 7] [--memory]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from growth import mebibytes
from table import Table, add_out
from turns import PAUSE, medians

sys.path.insert(0, str(Path(__file__).parent.parent))

import relay
from examples import train_gpt
from examples.train_gpt import Config

Array = npt.NDArray[Any]
# Gives the loss and the gradients of the weights as arrays.
Run = Callable[[], tuple[Any, ...]]
PEERS = ("eager", "compiled", "jax")
OURS = ("spelled", "operator")
# Attention by itself, of (heads, t, size): written as what it is, and as an operator; (heads, t, size) of the table.
SPELLED = """let %later = arange(stop=Dim[t], dtype="int32") > expand_dims(arange(stop=Dim[t], dtype="int32"), axis=1);
let %scores = where(%later, -1e30f, nn.batch_matmul(%q, %k) * {scale}f);
let %seen = nn.batch_matmul(nn.softmax(%scores), transpose(%v, axes=[0, 2, 1]));"""
OPERATOR = "let %seen = nn.attention(%q, %k, %v, causal=True);"
ATTENTION = ((8, 64, 64), (8, 128, 64), (8, 256, 64), (8, 512, 64), (8, 1024, 64), (4, 512, 128), (1, 512, 64))


def ours(c: Config, weights: Mapping[str, Array], ids: Array, following: Array, threads: int, system: str) -> Run:
    attention = train_gpt.SPELLED if system == "spelled" else train_gpt.OPERATOR
    exe = relay.compile(train_gpt.program(c, attention), threads=threads)
    return partial(_called, exe, (ids, following, *weights.values()))


def _called(exe: relay.Executable, given: Sequence[Array]) -> tuple[Any, ...]:
    loss, gradients = exe(*given)
    return (loss, *gradients)


def in_torch(
    c: Config, weights: Mapping[str, Array], ids: Array, following: Array, threads: int, compiled: bool
) -> Run:
    import torch
    from torch.nn import functional as f

    torch.set_num_threads(threads)
    names = list(weights)
    held = [torch.from_numpy(a.copy()).requires_grad_(True) for a in weights.values()]
    at, after = torch.from_numpy(ids).long(), torch.from_numpy(following).long().reshape(-1)

    def loss(*held: Any) -> Any:
        w = dict(zip(names, held, strict=True))
        x = f.embedding(at, w["words"]) + w["positions"][: at.shape[1]]

        def heads(y: Any) -> Any:
            return y.reshape(*y.shape[:2], c.heads, -1).transpose(1, 2)

        for n in range(c.layers):
            p = {name.removeprefix(f"l{n}_"): v for name, v in w.items() if name.startswith(f"l{n}_")}
            q, k, v = f.linear(f.layer_norm(x, (c.width,), p["g1"], p["b1"]), p["wa"], p["ba"]).split(c.width, 2)
            seen = f.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
            x = x + f.linear(seen.transpose(1, 2).reshape(x.shape), p["wo"], p["bo"])
            inside = f.linear(f.layer_norm(x, (c.width,), p["g2"], p["b2"]), p["wi"], p["bi"])
            x = x + f.linear(f.gelu(inside), p["wd"], p["bd"])
        scores = f.linear(f.layer_norm(x, (c.width,), w["g"], w["b"]), w["words"])
        return f.cross_entropy(scores.reshape(-1, c.vocabulary), after)

    forward = torch.compile(loss) if compiled else loss

    def run() -> tuple[Any, ...]:
        value = forward(*held)
        return (value.detach(), *torch.autograd.grad(value, held))

    return run


def in_jax(c: Config, weights: Mapping[str, Array], ids: Array, following: Array) -> Run:
    import jax
    import jax.numpy as jnp

    def norm(x: Any, g: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * g + b

    def loss(w: dict[str, Any], ids: Any, following: Any) -> Any:
        length = ids.shape[1]
        x = w["words"][ids] + w["positions"][:length]

        def heads(y: Any) -> Any:
            return y.reshape(*y.shape[:2], c.heads, -1).transpose(0, 2, 1, 3)

        for n in range(c.layers):
            p = {name.removeprefix(f"l{n}_"): v for name, v in w.items() if name.startswith(f"l{n}_")}
            q, k, v = map(heads, jnp.split(norm(x, p["g1"], p["b1"]) @ p["wa"].T + p["ba"], 3, axis=2))
            scores = q @ k.transpose(0, 1, 3, 2) * (c.width // c.heads) ** -0.5
            shares = jax.nn.softmax(jnp.where(jnp.tri(length, dtype=bool), scores, -1e30), axis=-1)
            x = x + (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["wo"].T + p["bo"]
            inside = norm(x, p["g2"], p["b2"]) @ p["wi"].T + p["bi"]
            x = x + jax.nn.gelu(inside, approximate=False) @ p["wd"].T + p["bd"]
        scores = jax.nn.log_softmax(norm(x, w["g"], w["b"]) @ w["words"].T)
        return -jnp.take_along_axis(scores, following[..., None], axis=2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    held = {name: jnp.asarray(a) for name, a in weights.items()}
    given = jnp.asarray(ids), jnp.asarray(following)

    def run() -> tuple[Any, ...]:
        value, gradients = step(held, *given)
        for g in gradients.values():
            g.block_until_ready()
        return (value, *(gradients[name] for name in held))

    return run


def made(c: Config, batch: int, length: int, threads: int, systems: Sequence[str]) -> dict[str, Run]:
    rng = np.random.default_rng(0)
    weights = train_gpt.seeded_weights(c)
    ids, following = (rng.integers(0, c.vocabulary, (batch, length)).astype(np.int32) for _ in range(2))
    runs: dict[str, Run] = {}
    for system in systems:
        if system in OURS:
            runs[system] = ours(c, weights, ids, following, threads, system)
        elif system == "jax":
            runs[system] = in_jax(c, weights, ids, following)
        else:
            runs[system] = in_torch(c, weights, ids, following, threads, system == "compiled")
    return runs


def attention(sizes: tuple[int, int, int], threads: int, systems: Sequence[str]) -> dict[str, Run]:
    """Causal attention by itself, with the gradients of its operands: ours as an operator, and PyTorch's."""
    heads, length, size = sizes
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((heads, length, size)).astype(np.float32) for _ in range(4)]
    runs: dict[str, Run] = {}
    for system in systems:
        if system in OURS:
            kind = f"Tensor[({heads}, t, {size}), float32]"
            params = ", ".join(f"%{name}: {kind}" for name in "qkvg")
            result = OPERATOR if system == "operator" else SPELLED.format(scale=repr(size**-0.5))
            text = f'#[version = "0.0.5"]\ndef @main[t: Dim]({params}) -> float32 {{ {result} sum(%seen * %g) }}'
            module = relay.value_and_grad(relay.parse(text), argnums=(0, 1, 2))
            runs[system] = partial(_called, relay.compile(module, threads=threads), given)
        elif system == "eager":
            import torch

            torch.set_num_threads(threads)
            q, k, v, g = (torch.from_numpy(a)[None] for a in given)
            for x in (q, k, v):
                x.requires_grad_(True)

            def run(q: Any = q, k: Any = k, v: Any = v, g: Any = g) -> tuple[Any, ...]:
                value = (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) * g).sum()
                return (value.detach(), *(x[0] for x in torch.autograd.grad(value, (q, k, v))))

            runs[system] = run
    return runs


def peak(row: str, system: str, threads: int) -> float:
    """Mebibytes by which one system's peak grows from before its first call to after its third, in a process of its own."""
    options = ["--peak", f"{row} {system}", "--threads", str(threads)]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def runs_of(row: str, threads: int, systems: Sequence[str]) -> dict[str, Run]:
    """The systems of a row: ``layers x width x heads x vocabulary, batch, length``, or ``heads x length x size``."""
    sizes, *rest = row.split()
    numbers = [int(n) for n in sizes.split("x")]
    if not rest:
        heads, length, size = numbers
        return attention((heads, length, size), threads, systems)
    layers, width, heads, vocabulary = numbers
    batch, length = map(int, rest)
    return made(Config(layers, width, heads, vocabulary, max(length, 128)), batch, length, threads, systems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--sizes", nargs="+", default=["2x128x4x256", "4x256x8x1000"], help="layers x width x heads x vocabulary"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--attention", action="store_true", help="attention by itself, in place of the models")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--systems", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    if args.peak:
        row, _, system = args.peak.rpartition(" ")
        (run,) = runs_of(row, args.threads, [system]).values()
        print(mebibytes(run))
        return
    print(f"{args.threads} thread(s); loss and gradients, ms")
    if args.attention:
        rows = ["x".join(map(str, sizes)) for sizes in ATTENTION]
        systems = [s for s in args.systems if s in (*OURS, "eager")]
        name, title = "attention-gradient", "Causal attention, loss and gradients"
    else:
        rows = [f"{size} {batch} {length}" for size in args.sizes for batch in args.batch for length in args.length]
        systems = args.systems
        name, title = "gpt-training", "A small GPT, loss and gradients"
    table = Table(f"{name}-{args.threads}", f"{title}, {args.threads} thread(s)", "ms", "sizes", systems)
    ratios: list[float] = []
    for row in rows:
        runs = runs_of(row, args.threads, systems)
        results = {s: [np.asarray(a) for a in run()] for s, run in runs.items()}
        first = next(iter(results.values()))
        for system, found in results.items():
            for a, b in zip(found, first, strict=True):
                apart = float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))
                assert a.shape == b.shape and apart < 2e-3, f"{row}: {system} differs by {apart}"
        times = medians(runs, args.rounds, dict.fromkeys(runs, 0.01 if args.threads == 1 else PAUSE), turn=0.005)
        own = min(t for s, t in times.items() if s in OURS)
        ratios.append(min((t for s, t in times.items() if s not in OURS), default=own) / own)
        shown = "  ".join(f"{s} {t * 1e3:8.3f}" for s, t in times.items())
        if args.memory:
            shown += "  MiB: " + ", ".join(f"{s} {peak(row, s, args.threads):.0f}" for s in times)
        print(f"{row:24}  {shown}  best peer / ours {ratios[-1]:.2f}", flush=True)
        table.add(row, {s: t * 1e3 for s, t in times.items()})
    if ratios:
        print(table.note(f"geometric mean of the best peer's time over ours: {np.exp(np.mean(np.log(ratios))):.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
