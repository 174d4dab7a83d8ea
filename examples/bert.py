"""BERT encoders of any size as Relay programs, with seeded weights: BERT-base and the architecture of MiniLM are two of them.

The sentence length is a type variable, so one compilation serves every length. ``python examples/bert.py [--model minilm]``
compiles one, embeds a few random sentences and prints what that took.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[np.float32]
ERF = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of an encoder: transformer layers, hidden width, attention heads, width inside the feed-forward part."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int = 30522
    positions: int = 512
    epsilon: float = 1e-12


CONFIGS = {
    "bert-base": Config(layers=12, width=768, heads=12, inner=3072),
    "minilm": Config(layers=6, width=384, heads=12, inner=1536),
}


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each weight by the name of the program's parameter. Matrices are (out, in), as `nn.dense` takes them."""
    w, i = c.width, c.inner
    out: dict[str, tuple[int, ...]] = {
        "words": (c.vocabulary, w), "positions": (c.positions, w), "kinds": (2, w), "g": (w,), "b": (w,),
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {
        "wq": (w, w), "bq": (w,), "wk": (w, w), "bk": (w,), "wv": (w, w), "bv": (w,), "wo": (w, w), "bo": (w,), "g1": (w,), "b1": (w,),
        "wi": (i, w), "bi": (i,), "wd": (w, i), "bd": (w,), "g2": (w,), "b2": (w,),
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
    """The program: ``@main[n](ids: (n,) int32, weights...) -> (n, width) float32``, the last layer's states."""
    w, size = c.width, c.width // c.heads
    layer_parameters = [name.removeprefix("l0_") for name in shapes(c) if name.startswith("l0_")]
    declared = ", ".join(f"%{name}: {_tensor(shapes(c)['l0_' + name])}" for name in layer_parameters)
    weights = ", ".join(f"%{name}: {_tensor(shape)}" for name, shape in shapes(c).items())
    calls = "\n".join(
        f"  let %h{n + 1} = @layer(%h{n}, {', '.join(f'%l{n}_{name}' for name in layer_parameters)});"
        for n in range(c.layers)
    )
    return f"""#[version = "0.0.5"]
def @heads[n: Dim](%x: Tensor[(n, {w}), float32]) -> Tensor[({c.heads}, n, {size}), float32] {{
  transpose(reshape(%x, newshape=[-1, {c.heads}, {size}]), axes=[1, 0, 2])
}}

def @attention[n: Dim](%q: Tensor[(n, {w}), float32], %k: Tensor[(n, {w}), float32], %v: Tensor[(n, {w}), float32])
    -> Tensor[(n, {w}), float32] {{
  let %scores = nn.batch_matmul(@heads(%q), @heads(%k)) * {size**-0.5!r}f;
  let %context = nn.batch_matmul(nn.softmax(%scores, axis=-1), transpose(@heads(%v), axes=[0, 2, 1]));
  reshape(transpose(%context, axes=[1, 0, 2]), newshape=[-1, {w}])
}}

def @layer[n: Dim](%x: Tensor[(n, {w}), float32], {declared}) -> Tensor[(n, {w}), float32] {{
  let %q = nn.bias_add(nn.dense(%x, %wq), %bq);
  let %k = nn.bias_add(nn.dense(%x, %wk), %bk);
  let %v = nn.bias_add(nn.dense(%x, %wv), %bv);
  let %attended = nn.bias_add(nn.dense(@attention(%q, %k, %v), %wo), %bo);
  let %y = nn.layer_norm(%x + %attended, %g1, %b1, epsilon={c.epsilon!r});
  let %inside = nn.gelu(nn.bias_add(nn.dense(%y, %wi), %bi));
  nn.layer_norm(%y + nn.bias_add(nn.dense(%inside, %wd), %bd), %g2, %b2, epsilon={c.epsilon!r})
}}

def @main[n: Dim(1, {c.positions})](%ids: Tensor[(n,), int32], {weights}) -> Tensor[(n, {w}), float32] {{
  let %tokens = take(%words, %ids, axis=0);
  let %placed = %tokens + slice_like(%positions, %tokens, axes=[0]) + take(%kinds, 0, axis=0);
  let %h0 = nn.layer_norm(%placed, %g, %b, epsilon={c.epsilon!r});
{calls}
  %h{c.layers}
}}
"""


def program(c: Config, weights: dict[str, Array]) -> relay.Module:
    """The encoder with these weights: ``@main(ids: (n,) int32) -> (n, width) float32``."""
    return relay.parse(text(c)).bind(weights)


def reference(c: Config, weights: dict[str, Array], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """What the program computes, in float64 NumPy: (n, width)."""
    w = {name: value.astype(np.float64) for name, value in weights.items() if name != "words"}
    x = _norm(weights["words"][ids] + w["positions"][: len(ids)] + w["kinds"][0], w["g"], w["b"], c.epsilon)
    for n in range(c.layers):
        p = {name.removeprefix(f"l{n}_"): value for name, value in w.items() if name.startswith(f"l{n}_")}
        q, k, v = (
            (x @ p[f"w{part}"].T + p[f"b{part}"]).reshape(len(ids), c.heads, -1).transpose(1, 0, 2) for part in "qkv"
        )
        scores = q @ k.transpose(0, 2, 1) * (c.width // c.heads) ** -0.5
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        context = (weight / weight.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), c.width)
        x = _norm(x + context @ p["wo"].T + p["bo"], p["g1"], p["b1"], c.epsilon)
        inside = x @ p["wi"].T + p["bi"]
        inside = inside / 2 * (1 + ERF(inside / np.sqrt(2)))
        x = _norm(x + inside @ p["wd"].T + p["bd"], p["g2"], p["b2"], c.epsilon)
    return np.asarray(x)


def _norm(
    x: npt.NDArray[np.float64], gain: npt.NDArray[np.float64], shift: npt.NDArray[np.float64], epsilon: float
) -> npt.NDArray[np.float64]:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + shift)


def _tensor(shape: tuple[int, ...]) -> str:
    return f"Tensor[({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), float32]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=sorted(CONFIGS), default="minilm")
    parser.add_argument("--lengths", default="5,16,64,128", help="sentence lengths, in tokens")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--precision", choices=("float32", "bf16", "int8-weights"), default="float32")
    args = parser.parse_args()
    c = CONFIGS[args.model]
    weights = seeded_weights(c)
    start = time.perf_counter()
    encode = relay.compile(program(c, weights), threads=args.threads, precision=args.precision)
    source = "taken from the cache" if encode.from_cache else "compiled for any length"
    print(f"{args.model}: {source} in {time.perf_counter() - start:.2f} s")
    rng = np.random.default_rng(1)
    for n in map(int, args.lengths.split(",")):
        ids = rng.integers(0, c.vocabulary, n).astype(np.int32)
        states = np.asarray(encode(ids))
        start = time.perf_counter()
        encode(ids)
        spent = time.perf_counter() - start
        error = float(np.abs(states - reference(c, weights, ids)).max())
        print(f"  {n:4d} tokens: {spent * 1e3:8.2f} ms; differs from float64 NumPy by at most {error:.1e}")


if __name__ == "__main__":
    main()
