"""Trains a small GPT on a text, letter by letter: the loss and the gradients of all weights are one compiled program.

The model is a decoder with layer norms, attention that sees what came before, gelu and residuals; its table of letters gives the scores of
the next letter as well. Attention is written as the products and the softmax that it is; batch and length are type variables, so
that one compilation serves both. ``python examples/train_gpt.py [--steps 100] [--text FILE]`` trains it and prints how the loss falls.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
TEXT = Path(__file__).parent / "data" / "sentences.txt"


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of a decoder: layers, hidden width, attention heads, vocabulary, longest text."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    vocabulary: int = 256
    positions: int = 128


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
    """Weights before training: small normal matrices, gains of 1, shifts of 0."""
    rng = np.random.default_rng(seed)

    def made(name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) > 1:
            return (rng.standard_normal(shape) * 0.02).astype(np.float32)
        return np.full(shape, float(name.rpartition("_")[2].startswith("g")), np.float32)

    return {name: made(name, shape) for name, shape in shapes(c).items()}


# The products and the softmax; the operator that stands for them.
SPELLED = """
  let %scores = nn.batch_matmul(reshape(%q, newshape=[-3, -2]), reshape(%k, newshape=[-3, -2])) * {scale}f;
  let %later = arange(stop=Dim[t], dtype="int32") > expand_dims(arange(stop=Dim[t], dtype="int32"), axis=1);
  let %shares = nn.softmax(where(%later, -1e30f, %scores), axis=-1);
  let %seen = nn.batch_matmul(%shares, transpose(reshape(%v, newshape=[-3, -2]), axes=[0, 2, 1]));
  let %heads = reshape(%seen, newshape=[-4, Dim[b], {heads}, -2]);"""
OPERATOR = "let %heads = nn.attention(%q, %k, %v, causal=True);"


def text(c: Config, attention: str = SPELLED) -> str:
    """The program: ``@main[b, t](ids: (b, t) int32, following: (b, t) int32, weights...) -> loss``, in nats per letter."""
    w, size = c.width, c.width // c.heads
    layer = [name.removeprefix("l0_") for name in shapes(c) if name.startswith("l0_")]
    declared = ", ".join(f"%{name}: {_tensor(shapes(c)['l0_' + name])}" for name in layer)
    weights = ", ".join(f"%{name}: {_tensor(shape)}" for name, shape in shapes(c).items())
    calls = "\n".join(
        f"  let %x{n + 1} = @layer(%x{n}, {', '.join(f'%l{n}_{name}' for name in layer)});" for n in range(c.layers)
    )
    attended = attention.format(scale=repr(size**-0.5), heads=c.heads)
    ids = "Tensor[(b, t), int32]"
    x = f"Tensor[(b, t, {w}), float32]"
    return f"""#[version = "0.0.5"]
def @heads[b: Dim, t: Dim](%x: {x}) -> Tensor[(b, {c.heads}, t, {size}), float32] {{
  transpose(reshape(%x, newshape=[0, 0, {c.heads}, {size}]), axes=[0, 2, 1, 3])
}}

def @layer[b: Dim, t: Dim](%x: {x}, {declared}) -> {x} {{
  let %qkv = split(nn.dense(nn.layer_norm(%x, %g1, %b1), %wa) + %ba, indices_or_sections=3, axis=2);
  let %q = @heads(%qkv.0);
  let %k = @heads(%qkv.1);
  let %v = @heads(%qkv.2);
  {attended}
  let %y = %x + nn.dense(reshape(transpose(%heads, axes=[0, 2, 1, 3]), newshape=[0, 0, -3]), %wo) + %bo;
  %y + nn.dense(nn.gelu(nn.dense(nn.layer_norm(%y, %g2, %b2), %wi) + %bi), %wd) + %bd
}}

def @main[b: Dim, t: Dim(1, {c.positions})](%ids: {ids}, %following: {ids}, {weights}) -> float32 {{
  let %x0 = take(%words, %ids, axis=0) + strided_slice(%positions, begin=[0], end=[Dim[t]], axes=[0]);
{calls}
  let %scores = nn.log_softmax(nn.dense(nn.layer_norm(%x{c.layers}, %g, %b), %words));
  negative(mean(gather(%scores, expand_dims(%following, axis=2), axis=2)))
}}
"""


def program(c: Config, attention: str = SPELLED) -> relay.Module:
    """``@main[b, t](ids, following, weights...) -> (loss, gradients of the weights)``."""
    return relay.value_and_grad(relay.parse(text(c, attention)), argnums=tuple(range(2, 2 + len(shapes(c)))))


def batches(c: Config, read: str, batch: int, length: int) -> Iterator[tuple[Ids, Ids]]:
    """Pieces of a text, drawn: the letters, and the letter after each."""
    letters = np.frombuffer(read.encode(), np.uint8).astype(np.int32) % c.vocabulary
    rng = np.random.default_rng(1)
    while True:
        begins = rng.integers(0, len(letters) - length, batch)
        yield (
            np.stack([letters[n : n + length] for n in begins]),
            np.stack([letters[n + 1 : n + 1 + length] for n in begins]),
        )


@dataclass(slots=True)
class Adam:
    """Kingma and Ba, Adam (2015). The weights are changed where they are."""

    rate: float
    first: dict[str, Array]
    second: dict[str, Array]
    steps: int = 0

    def update(self, weights: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
        self.steps += 1
        rate = self.rate * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for name, g in gradients.items():
            m, v = self.first[name], self.second[name]
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            weights[name][...] -= rate * m / (np.sqrt(v) + 1e-8)


def train(c: Config, read: str, steps: int, batch: int, length: int, threads: int | None = None) -> list[float]:
    """Train so many steps and give the loss before each."""
    weights = seeded_weights(c)
    step = relay.compile(program(c), threads=threads)
    first, second = ({n: np.zeros_like(w) for n, w in weights.items()} for _ in range(2))
    adam = Adam(3e-3, first, second)
    losses: list[float] = []
    for _, (ids, following) in zip(range(steps), batches(c, read, batch, length), strict=False):
        loss, gradients = step(ids, following, *weights.values())
        adam.update(weights, dict(zip(weights, map(np.asarray, gradients), strict=True)))
        losses.append(float(np.asarray(loss)))
    return losses


def _tensor(shape: tuple[int, ...]) -> str:
    return f"Tensor[({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), float32]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    start = time.perf_counter()
    losses = train(Config(), args.text.read_text(), args.steps, args.batch, args.length, args.threads)
    for n in range(0, args.steps, max(1, args.steps // 10)):
        print(f"step {n:4d}: {losses[n]:.3f} nats per letter")
    print(f"step {args.steps - 1:4d}: {losses[-1]:.3f}; {time.perf_counter() - start:.1f} s in all")


if __name__ == "__main__":
    main()
