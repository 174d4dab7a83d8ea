"""Llama, and its relatives with biases (Qwen2), as one Relay program that reads a prompt and writes the text that follows.

``@main(ids, count, end)`` gives up to ``count`` tokens after the prompt, the likeliest each time, and stops at the token ``end``. The loop
over tokens, with a key/value cache that grows, is a function of the program that calls itself: Python, or the C program that uses the
library of it, calls once for a whole text. Parameters have the names that published checkpoints give their tensors.

    python examples/llama.py                                 a small model with seeded weights, beside NumPy
    python examples/llama.py DIRECTORY --prompt "Once upon"  a checkpoint: config.json, tokenizer.json, *.safetensors
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of a decoder; ``heads`` of queries share ``groups`` of keys and values, each ``size`` wide; a prompt
    has up to ``positions`` tokens."""

    layers: int
    width: int
    heads: int
    groups: int
    size: int
    inner: int
    vocabulary: int
    positions: int = 4096
    base: float = 10000.0
    epsilon: float = 1e-5
    biased: bool = False
    tied: bool = False


SMALL = Config(layers=2, width=64, heads=4, groups=2, size=16, inner=176, vocabulary=300)


def read_config(path: Path) -> Config:
    """The sizes in a checkpoint's ``config.json``. Raises ValueError for what this program does not do."""
    given = json.loads(path.read_text())
    scaling = given.get("rope_scaling") or {}
    if given.get("model_type") not in ("llama", "qwen2", "mistral") or scaling.get("rope_type", "default") != "default":
        raise ValueError(
            f"{path}: neither Llama, Mistral nor Qwen2 with plain rotary positions: {given.get('model_type')}, {scaling}"
        )
    heads = given["num_attention_heads"]
    return Config(
        layers=given["num_hidden_layers"],
        width=given["hidden_size"],
        heads=heads,
        groups=given.get("num_key_value_heads", heads),
        size=given.get("head_dim") or given["hidden_size"] // heads,
        inner=given["intermediate_size"],
        vocabulary=given["vocab_size"],
        positions=given.get("max_position_embeddings", 4096),
        base=given.get("rope_theta", 10000.0),
        epsilon=given["rms_norm_eps"],
        biased=given.get("attention_bias", given["model_type"] == "qwen2"),
        tied=given.get("tie_word_embeddings", False),
    )


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """The shape of each weight by its name in checkpoints. Matrices are (out, in), as `nn.dense` takes them."""
    q, kv = c.heads * c.size, c.groups * c.size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (c.width,),
        "self_attn.q_proj.weight": (q, c.width),
        "self_attn.k_proj.weight": (kv, c.width),
        "self_attn.v_proj.weight": (kv, c.width),
        "self_attn.o_proj.weight": (c.width, q),
        "post_attention_layernorm.weight": (c.width,),
        "mlp.gate_proj.weight": (c.inner, c.width),
        "mlp.up_proj.weight": (c.inner, c.width),
        "mlp.down_proj.weight": (c.width, c.inner),
    }
    if c.biased:
        layer |= {f"self_attn.{n}_proj.bias": (q if n == "q" else kv,) for n in "qkv"}
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocabulary, c.width),
        "model.norm.weight": (c.width,),
    }
    out |= {} if c.tied else {"lm_head.weight": (c.vocabulary, c.width)}
    return out | {f"model.layers.{n}.{name}": shape for n in range(c.layers) for name, shape in layer.items()}


def text(c: Config) -> str:
    """The program: ``@main[n](ids: (n,) int32, count: int32, end: int32, weights...) -> (?,) int32``."""
    all_shapes = shapes(c)
    layer = [name.removeprefix("model.layers.0.") for name in all_shapes if name.startswith("model.layers.0.")]
    declared = ", ".join(f"%{name}: {_tensor(all_shapes['model.layers.0.' + name])}" for name in layer)
    weights = ", ".join(f"%{name}: {_tensor(shape)}" for name, shape in all_shapes.items())
    names = ", ".join(f"%{name}" for name in all_shapes)
    pair = f"(Tensor[({c.groups}, p, {c.size}), float32], Tensor[({c.groups}, p, {c.size}), float32])"
    past, grown = (f"({', '.join([one] * c.layers)},)" for one in (pair, pair.replace(" p,", " n + p,")))
    calls = "\n".join(
        f"  let %s{n + 1} = @layer(%s{n}{'.0' if n else ''}, %past.{n}, {', '.join(f'%model.layers.{n}.{name}' for name in layer)});"
        for n in range(c.layers)
    )
    cache = ", ".join(f"%s{n + 1}.1" for n in range(c.layers))

    def projected(name: str, heads: int) -> str:
        made = f"nn.dense(%y, %self_attn.{name}_proj.weight)"
        made = f"nn.bias_add({made}, %self_attn.{name}_proj.bias)" if c.biased else made
        return f"transpose(reshape({made}, newshape=[-1, {heads}, {c.size}]), axes=[1, 0, 2])"

    return f"""#[version = "0.0.5"]
def @norm[n: Dim](%x: Tensor[(n, {c.width}), float32], %gain: Tensor[({c.width},), float32]) -> Tensor[(n, {c.width}), float32] {{
  %x * rsqrt(mean(%x * %x, axis=[1], keepdims=True) + {c.epsilon!r}f) * %gain
}}

/* Rotary positions from p on: each half of a head's numbers turns with the other. */
def @turned[h: Dim, n: Dim, p: Dim](%x: Tensor[(h, n, {c.size}), float32], %past: Tensor[({c.groups}, p, {c.size}), float32])
    -> Tensor[(h, n, {c.size}), float32] {{
  let %at = arange(start=Dim[p], stop=Dim[n + p], dtype="float32");
  let %speed = exp(arange(stop={c.size // 2}, dtype="float32") * {-2 * math.log(c.base) / c.size!r}f);
  let %angle = expand_dims(%at, axis=1) * expand_dims(%speed, axis=0);
  let %half = split(%x, indices_or_sections=2, axis=2);
  concatenate((%half.0 * cos(%angle) - %half.1 * sin(%angle), %half.1 * cos(%angle) + %half.0 * sin(%angle)), axis=2)
}}

def @layer[n: Dim, p: Dim](%x: Tensor[(n, {c.width}), float32], %past: {pair}, {declared})
    -> (Tensor[(n, {c.width}), float32], {pair.replace(" p,", " n + p,")}) {{
  let %y = @norm(%x, %input_layernorm.weight);
  let %q = @turned({projected("q", c.heads)}, %past.0);
  let %k = concatenate((%past.0, @turned({projected("k", c.groups)}, %past.0)), axis=1);
  let %v = concatenate((%past.1, {projected("v", c.groups)}), axis=1);
  let %a = nn.attention(expand_dims(%q, axis=0), expand_dims(%k, axis=0), expand_dims(%v, axis=0), causal=True);
  let %o = reshape(transpose(squeeze(%a, axis=[0]), axes=[1, 0, 2]), newshape=[-1, {c.heads * c.size}]);
  let %z = %x + nn.dense(%o, %self_attn.o_proj.weight);
  let %m = @norm(%z, %post_attention_layernorm.weight);
  let %inside = nn.silu(nn.dense(%m, %mlp.gate_proj.weight)) * nn.dense(%m, %mlp.up_proj.weight);
  (%z + nn.dense(%inside, %mlp.down_proj.weight), (%k, %v))
}}

/* The likeliest token after n new ones behind p whose keys and values are there. */
def @next[n: Dim(1, {c.positions}), p: Dim](%ids: Tensor[(n,), int32], %past: {past}, {weights}) -> (int32, {grown}) {{
  let %s0 = take(%model.embed_tokens.weight, %ids, axis=0);
{calls}
  let %last = strided_slice(%s{c.layers}.0, begin=[Dim[n - 1]], end=[Dim[n]], axes=[0]);
  let %scores = nn.dense(@norm(%last, %model.norm.weight), %{"model.embed_tokens" if c.tied else "lm_head"}.weight);
  (argmax(reshape(%scores, newshape=[-1])), ({cache},))
}}

def @write[p: Dim, m: Dim](%left: int32, %end: int32, %token: int32, %past: {past}, %done: Tensor[(m,), int32], {weights})
    -> Tensor[(?,), int32] {{
  let %all = concatenate((%done, expand_dims(%token, axis=0)), axis=0);
  if (logical_or(%left <= 1, %token == %end)) {{ %all }} else {{
    let %r = @next(expand_dims(%token, axis=0), %past, {names});
    @write(%left - 1, %end, %r.0, %r.1, %all, {names})
  }}
}}

def @main[n: Dim(1, {c.positions})](%ids: Tensor[(n,), int32], %count: int32, %end: int32, {weights}) -> Tensor[(?,), int32] {{
  let %none = zeros(shape=[{c.groups}, 0, {c.size}]);
  let %r = @next(%ids, ({", ".join(["(%none, %none)"] * c.layers)},), {names});
  @write(%count, %end, %r.0, %r.1, zeros(shape=[0], dtype="int32"), {names})
}}
"""


def program(c: Config, weights: Mapping[str, Array]) -> relay.Module:
    """The decoder with these weights: ``@main(ids: (n,) int32, count, end) -> (?,) int32``. Tensors that it does not have are left out."""
    return relay.parse(text(c)).bind({name: weights[name] for name in shapes(c)})


def seeded_weights(c: Config, seed: int = 0) -> dict[str, Array]:
    """Weights of the sizes that trained ones have: normal matrices, gains near 1."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name, shape in shapes(c).items():
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3 if len(shape) > 1 else 0.1)
        out[name] = values + np.float32("norm" in name)
    return out


def reference(c: Config, weights: Mapping[str, Array], ids: Array) -> Array:
    """The scores of the token after ``ids``, in float64 NumPy, without a cache."""
    n, size = len(ids), c.size
    angle = np.outer(np.arange(n), c.base ** (-2 * np.arange(size // 2) / size))

    def norm(x: Array, gain: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + c.epsilon) * gain)

    def turned(x: Array) -> Array:
        a, b = np.split(x, 2, axis=2)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=2)

    def heads(y: Array, p: Mapping[str, Array], name: str) -> Array:
        made = y @ p[f"self_attn.{name}_proj.weight"].T + p.get(f"self_attn.{name}_proj.bias", 0.0)
        return np.asarray(made.reshape(n, -1, size).transpose(1, 0, 2))

    w = {name: np.asarray(weights[name], np.float64) for name in shapes(c)}
    x = w["model.embed_tokens.weight"][ids]
    for number in range(c.layers):
        at = f"model.layers.{number}."
        p = {name.removeprefix(at): value for name, value in w.items() if name.startswith(at)}
        y = norm(x, p["input_layernorm.weight"])
        q, k = turned(heads(y, p, "q")), turned(heads(y, p, "k")).repeat(c.heads // c.groups, axis=0)
        v = heads(y, p, "v").repeat(c.heads // c.groups, axis=0)
        scores = np.where(np.tri(n, dtype=bool), q @ k.transpose(0, 2, 1) * size**-0.5, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        o = (share / share.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1)
        x = x + o @ p["self_attn.o_proj.weight"].T
        m = norm(x, p["post_attention_layernorm.weight"])
        gate = m @ p["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (m @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if c.tied else "lm_head.weight"]
    return np.asarray(head @ norm(x[-1:], w["model.norm.weight"])[0])


def _tensor(shape: tuple[int, ...]) -> str:
    return f"Tensor[({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), float32]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "directory", nargs="?", type=Path, help="a checkpoint (none: a small model with seeded weights)"
    )
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--count", type=int, default=32, help="tokens to generate at most")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--precision", choices=("float32", "bf16", "int8-weights"), default="float32")
    args = parser.parse_args()
    c = read_config(args.directory / "config.json") if args.directory else SMALL
    weights = relay.load_weights(args.directory) if args.directory else seeded_weights(c)
    tokenizer: Any = None
    ids = np.random.default_rng(1).integers(1, c.vocabulary, 16).astype(np.int32)
    if args.directory:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(args.directory / "tokenizer.json"))
        ids = np.array(tokenizer.encode(args.prompt).ids, np.int32)
    start = time.perf_counter()
    generate = relay.compile(program(c, weights), threads=args.threads, precision=args.precision)
    print(f"{'taken from the cache' if generate.from_cache else 'compiled'} in {time.perf_counter() - start:.2f} s")
    start = time.perf_counter()
    tokens = np.asarray(generate(ids, np.int32(args.count), np.int32(-1))).tolist()
    took = time.perf_counter() - start
    print(tokenizer.decode([*ids.tolist(), *tokens]) if tokenizer else f"tokens: {' '.join(map(str, tokens))}")
    print(f"{len(ids)} tokens read and {len(tokens)} written in {took * 1e3:.1f} ms")
    if not tokenizer:
        first = reference(c, weights, ids)
        print(f"NumPy's first token: {first.argmax()}")


if __name__ == "__main__":
    main()
