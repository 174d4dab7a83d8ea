"""Compile times: MiniLM in new processes, a small network's gradients beside JAX's, one small operator in a warm process, and the gradient
of BERT.

MiniLM is compiled with an empty cache and from the cache. The small network has three layers: its loss and gradients in all weights, for
32 rows and for any number, in a new process without a cache, imports apart (but those that `relay` puts off until it compiles). BERT's
gradient is that in all weights, from the program to the end of partial evaluation, for several depths.

``python benchmarks/compile_time.py [--rounds 3]``
"""

from __future__ import annotations

import argparse
import importlib.util
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

WEIGHTS = ((256, 64), (256,), (256, 256), (256,), (10, 256), (10,))
NETWORK = """
import sys, time
start = time.perf_counter()
import relay
imported = time.perf_counter()
relay.compile(relay.value_and_grad(relay.parse(sys.argv[1]), argnums=tuple(range(2, 8))), cache=False)
print(imported - start, time.perf_counter() - imported)
"""
JAX = f"""
import time
start = time.perf_counter()
import jax
import numpy as np
imported = time.perf_counter()

def loss(weights, x, y):
    for n in (0, 2, 4):
        x = x @ weights[n].T + weights[n + 1]
        x = jax.nn.relu(x) if n < 4 else jax.nn.log_softmax(x)
    return -(x * y).sum()

weights = [np.ones(shape, np.float32) for shape in {WEIGHTS}]
jax.jit(jax.value_and_grad(loss)).lower(weights, np.ones((32, 64), np.float32), np.ones((32, 10), np.float32)).compile()
print(imported - start, time.perf_counter() - imported)
"""


def network(rows: str) -> str:
    """The small network's loss, of so many rows."""
    names = ("w1", "b1", "w2", "b2", "w3", "b3")
    params = ", ".join(
        f"%{n}: Tensor[({''.join(f'{d}, ' for d in s)}), float32]" for n, s in zip(names, WEIGHTS, strict=True)
    )
    return f"""#[version = "0.0.5"]
    def @main{"" if rows.isdigit() else f"[{rows}: Dim]"}(%x: Tensor[({rows}, 64), float32], %y: Tensor[({rows}, 10), float32], {params}) {{
      let %h1 = nn.relu(nn.dense(%x, %w1) + %b1);
      let %h2 = nn.relu(nn.dense(%h1, %w2) + %b2);
      -sum(nn.log_softmax(nn.dense(%h2, %w3) + %b3) * %y)
    }}"""


def in_a_new_process(code: str, *args: str) -> tuple[float, float]:
    """Seconds of importing and of compiling."""
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    imported, compiled = done.stdout.split()
    return float(imported), float(compiled)


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
    cases = [("32 rows", NETWORK, [network("32")]), ("any number of rows", NETWORK, [network("n")])]
    if importlib.util.find_spec("jax") is not None:
        cases.append(("32 rows, JAX", JAX, []))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in cases}
    for _ in range(rounds):
        for name, code, args in cases:
            found[name].append(in_a_new_process(code, *args))
    for name, each in found.items():
        imported, compiled = (np.median([t[k] for t in each]) for k in range(2))
        print(f"{f'small network, {name}':34}{imported:9.2f}{compiled:18.2f}")
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
