"""GPT-2 of any size as a Relay program, with seeded weights: one function reads a prompt and continues it with a key/value cache.

``@main(ids, past)`` takes ``n`` new tokens after ``p`` tokens whose keys and values it is given, and gives the scores of the next token
and the longer cache. Both sizes are type variables: the same compiled program reads a prompt (``p`` = 0) and makes single steps
(``n`` = 1).
``python examples/gpt2.py [--model tiny]`` generates some tokens and prints what that took.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of a decoder: transformer layers, hidden width, attention heads, vocabulary, longest text."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024
    epsilon: float = 1e-5


CONFIGS = {
    "gpt2": Config(layers=12, width=768, heads=12),
    "tiny": Config(layers=2, width=64, heads=4, vocabulary=512, positions=128),
}


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each weight by the name of the program's parameter. Matrices are (out, in), as `nn.dense` takes them."""
    w = c.width
    out: dict[str, tuple[int, ...]] = {"words": (c.vocabulary, w), "positions": (c.positions, w), "g": (w,), "b": (w,)}
    layer: dict[str, tuple[int, ...]] = {
        "g1": (w,), "b1": (w,), "wa": (3 * w, w), "ba": (3 * w,), "wo": (w, w), "bo": (w,),
        "g2": (w,), "b2": (w,), "wi": (4 * w, w), "bi": (4 * w,), "wd": (w, 4 * w), "bd": (w,),
    }  # fmt: skip
    return out | {f"l{n}_{name}": shape for n in range(c.layers) for name, shape in layer.items()}


def seeded_weights(c: Config, seed: int = 0) -> dict[str, Array]:
    """Weights of the sizes that trained ones have: small normal matrices, gains near 1. The arrays are read-only."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name, shape in shapes(c).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= 0.04 if len(shape) > 1 else 0.1
        if name.rpartition("_")[2] in ("g", "g1", "g2"):
            values += 1
        values.flags.writeable = False  # a program then uses the array itself
        out[name] = values
    return out


def text(c: Config) -> str:
    """The program: ``@main[n, p](ids: (n,) int32, past, weights...) -> (scores: (vocabulary,) float32, cache)``.

    ``past`` and ``cache`` are tuples with, for each layer, a tuple of its keys and values: (p, width), then (n + p, width).
    """
    w, size = c.width, c.width // c.heads
    layer = [name.removeprefix("l0_") for name in shapes(c) if name.startswith("l0_")]
    declared = ", ".join(f"%{name}: {_tensor(shapes(c)['l0_' + name])}" for name in layer)
    weights = ", ".join(f"%{name}: {_tensor(shape)}" for name, shape in shapes(c).items())
    pair = f"(Tensor[(p, {w}), float32], Tensor[(p, {w}), float32])"
    longer = pair.replace("(p,", "(n + p,")
    calls = "\n".join(
        f"  let %s{n + 1} = @layer(%s{n}{'.0' if n else ''}, %past.{n}, {', '.join(f'%l{n}_{name}' for name in layer)});"
        for n in range(c.layers)
    )
    cache = ", ".join(f"%s{n + 1}.1" for n in range(c.layers))
    past, grown = (f"({', '.join([one] * c.layers)},)" for one in (pair, longer))
    return f"""#[version = "0.0.5"]
def @attention[n: Dim, p: Dim](%q: Tensor[(n, {w}), float32], %k: Tensor[(n + p, {w}), float32],
    %v: Tensor[(n + p, {w}), float32], %before: Tensor[(p, {w}), float32]) -> Tensor[(n, {w}), float32] {{
  let %queries = transpose(reshape(%q, newshape=[-1, {c.heads}, {size}]), axes=[1, 0, 2]);
  let %keys = transpose(reshape(%k, newshape=[-1, {c.heads}, {size}]), axes=[1, 0, 2]);
  let %values = transpose(reshape(%v, newshape=[-1, {c.heads}, {size}]), axes=[1, 2, 0]);
  let %scores = nn.batch_matmul(%queries, %keys) * {size**-0.5!r}f;
  let %row = expand_dims(arange(start=Dim[p], stop=Dim[n + p], dtype="int32"), axis=1);
  let %seen = arange(stop=Dim[n + p], dtype="int32") <= %row;
  let %weights = nn.softmax(where(%seen, %scores, -1e30f), axis=-1);
  reshape(transpose(nn.batch_matmul(%weights, %values), axes=[1, 0, 2]), newshape=[-1, {w}])
}}

def @layer[n: Dim, p: Dim](%x: Tensor[(n, {w}), float32], %past: {pair}, {declared})
    -> (Tensor[(n, {w}), float32], {longer}) {{
  let %qkv = split(nn.bias_add(nn.dense(nn.layer_norm(%x, %g1, %b1, epsilon={c.epsilon!r}), %wa), %ba),
      indices_or_sections=3, axis=1);
  let %k = concatenate((%past.0, %qkv.1), axis=0);
  let %v = concatenate((%past.1, %qkv.2), axis=0);
  let %y = %x + nn.bias_add(nn.dense(@attention(%qkv.0, %k, %v, %past.0), %wo), %bo);
  let %inside = nn.bias_add(nn.dense(nn.layer_norm(%y, %g2, %b2, epsilon={c.epsilon!r}), %wi), %bi);
  let %bent = 0.5f * %inside * (1f + tanh({(2 / np.pi) ** 0.5!r}f * (%inside + 0.044715f * %inside * %inside * %inside)));
  (%y + nn.bias_add(nn.dense(%bent, %wd), %bd), (%k, %v))
}}

def @main[n: Dim(1, {c.positions}), p: Dim(0, {c.positions - 1})](%ids: Tensor[(n,), int32], %past: {past}, {weights})
    -> (Tensor[({c.vocabulary},), float32], {grown}) {{
  let %place = arange(start=Dim[p], stop=Dim[n + p], dtype="int32");
  let %s0 = take(%words, %ids, axis=0) + take(%positions, %place, axis=0);
{calls}
  let %last = strided_slice(%s{c.layers}.0, begin=[Dim[n - 1]], end=[Dim[n]], axes=[0]);
  let %scores = nn.dense(nn.layer_norm(%last, %g, %b, epsilon={c.epsilon!r}), %words);
  (reshape(%scores, newshape=[-1]), ({cache},))
}}
"""


def program(c: Config, weights: dict[str, Array]) -> relay.Module:
    """The decoder with these weights: ``@main(ids: (n,) int32, past) -> (scores, cache)``."""
    return relay.parse(text(c)).bind(weights)


def empty_cache(c: Config) -> tuple[tuple[Array, Array], ...]:
    """The cache before the first token."""
    none = np.zeros((0, c.width), np.float32)
    return ((none, none),) * c.layers


def generate(decode: relay.Executable, c: Config, prompt: npt.NDArray[np.int32], count: int) -> list[int]:
    """The ``count`` most likely next tokens, one after the other."""
    out: list[int] = []
    cache: Any = empty_cache(c)
    ids = prompt
    for _ in range(count):
        scores, cache = decode(ids, cache)
        out.append(int(np.asarray(scores).argmax()))
        ids = np.array(out[-1:], np.int32)
    return out


def reference(c: Config, weights: dict[str, Array], ids: npt.NDArray[np.int32]) -> Double:
    """The scores of the token after ``ids``, in float64 NumPy, without a cache."""
    w = {name: value.astype(np.float64) for name, value in weights.items() if name != "words"}
    n = len(ids)
    x = weights["words"][ids] + w["positions"][:n]
    for number in range(c.layers):
        p = {name.removeprefix(f"l{number}_"): value for name, value in w.items() if name.startswith(f"l{number}_")}
        qkv = _norm(x, p["g1"], p["b1"], c.epsilon) @ p["wa"].T + p["ba"]
        q, k, v = (part.reshape(n, c.heads, -1).transpose(1, 0, 2) for part in np.split(qkv, 3, axis=1))
        scores = np.where(np.tri(n, dtype=bool), q @ k.transpose(0, 2, 1) * (c.width // c.heads) ** -0.5, -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + (weight / weight.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1) @ p["wo"].T + p["bo"]
        inside = _norm(x, p["g2"], p["b2"], c.epsilon) @ p["wi"].T + p["bi"]
        bent = 0.5 * inside * (1 + np.tanh((2 / np.pi) ** 0.5 * (inside + 0.044715 * inside**3)))
        x = x + bent @ p["wd"].T + p["bd"]
    return np.asarray(_norm(x[-1:], w["g"], w["b"], c.epsilon)[0] @ weights["words"].T.astype(np.float64))


def _norm(x: Double, gain: Double, shift: Double, epsilon: float) -> Double:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + shift)


def _tensor(shape: tuple[int, ...]) -> str:
    return f"Tensor[({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), float32]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=sorted(CONFIGS), default="tiny")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the (random) prompt")
    parser.add_argument("--count", type=int, default=32, help="tokens to generate")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--precision", choices=("float32", "bf16", "int8-weights"), default="float32")
    args = parser.parse_args()
    c = CONFIGS[args.model]
    weights = seeded_weights(c)
    start = time.perf_counter()
    decode = relay.compile(program(c, weights), threads=args.threads, precision=args.precision)
    source = "taken from the cache" if decode.from_cache else "compiled for any prompt and cache"
    print(f"{args.model}: {source} in {time.perf_counter() - start:.2f} s")
    prompt = np.random.default_rng(1).integers(0, c.vocabulary, args.prompt).astype(np.int32)
    scores = np.asarray(decode(prompt, empty_cache(c))[0])
    print(f"  scores differ from float64 NumPy by at most {np.abs(scores - reference(c, weights, prompt)).max():.1e}")
    start = time.perf_counter()
    generate(decode, c, prompt, 1)
    first = time.perf_counter() - start
    start = time.perf_counter()
    tokens = generate(decode, c, prompt, args.count)
    rest = time.perf_counter() - start - first
    print(f"  tokens: {' '.join(map(str, tokens))}")
    print(
        f"  prompt of {args.prompt}: {first * 1e3:.2f} ms; each further token: {rest / max(1, args.count - 1) * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    main()
