"""Compile times: MiniLM in new processes, one small operator in a warm one, and the gradient of BERT.

MiniLM is compiled with an empty cache and from the cache. The gradient is that in all weights, from the program to the end of partial
evaluation, for several depths.

``python benchmarks/compile_time.py [--rounds 3]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import relay

sys.path.insert(0, str(Path(__file__).parent.parent))
from examples import bert
from relay import pipeline, typing
from relay.codegen.target import parse_target
from relay.options import Options
from relay.transform import Pipeline

EXAMPLES = Path(__file__).parent.parent / "examples"
LAYERS = (3, 6, 12)
CHILD = """
import sys, time
start = time.perf_counter()
sys.path.insert(0, {examples!r})
import minilm
imported = time.perf_counter()
weights = minilm.load_weights()
loaded = time.perf_counter()
module = minilm.relay.load_module({program!r}).bind(weights)
encode = minilm.relay.compile(module, cache_dir={directory!r})
end = time.perf_counter()
print(imported - start, loaded - imported, end - loaded, encode.from_cache)
"""


def encoder(directory: str) -> tuple[float, float, float, bool]:
    """Seconds of importing, of reading the weights and of compiling in a new process, and whether the cache had it."""
    code = CHILD.format(examples=str(EXAMPLES), program=str(EXAMPLES / "minilm.relay"), directory=directory)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), float(out[1]), float(out[2]), out[3] == "True"


def small_operator(number: int, directory: str) -> float:
    """Seconds to compile one operator that no cache has seen."""
    text = f"""#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, {number}), float32]) -> Tensor[(n, {number}), float32] {{ nn.softmax(%x) }}"""
    start = time.perf_counter()
    relay.compile(text, cache_dir=directory)
    return time.perf_counter() - start


def gradient(layers: int) -> float:
    """Seconds of typing a BERT encoder's loss and gradient in all weights, of taking the gradient and of evaluating it partially."""
    module = relay.parse(bert.text(bert.Config(layers, width=768, heads=12, inner=3072)))
    weights = tuple(range(1, len(module.functions["main"].params)))
    options = Options()
    start = time.perf_counter()
    mono = typing.monomorphise(relay.infer_type(relay.value_and_grad(module, weights)), options.entries)
    passes = pipeline.passes(options, pipeline.Runner(parse_target(options.target), options), mono)
    last = [p.name for p in passes].index("dead_references")
    Pipeline(passes[: last + 1])(mono)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    cold, cached = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            cold.append(encoder(directory))
            cached.append(encoder(directory))
            assert not cold[-1][3] and cached[-1][3]
    with tempfile.TemporaryDirectory() as directory:
        small = [small_operator(17 + n, directory) for n in range(21)][1:]
    print(f"{'median seconds':34}{'import':>9}{'weights':>9}{'compile':>9}")
    for name, rows in (("MiniLM, cold", cold), ("MiniLM, from the cache", cached)):
        print(f"{name:34}" + "".join(f"{np.median([r[k] for r in rows]):9.2f}" for k in range(3)))
    print(f"{'one small operator, warm process':34}{np.median(small):27.3f}")
    gradient(1)
    taken: dict[int, list[float]] = {layers: [] for layers in LAYERS}
    for _ in range(rounds):
        for layers, times in taken.items():
            times.append(gradient(layers))
    for layers, times in taken.items():
        print(f"{f'gradient of BERT, {layers} layers':34}{np.median(times):27.2f}")


if __name__ == "__main__":
    main()
