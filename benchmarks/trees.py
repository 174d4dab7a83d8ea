"""Tree-structured networks: batched by level, against the same program without batching and against the floor of the machine.

    python benchmarks/trees.py [--trees 32] [--threads 1]

Trees have random splits and 5 to 50 leaves, 19 on average; float32, input 300, state 150, one tree at a time. The walk over the
structure is inside the timing, the conversion of Python values is not. The floor counts, level by level, the larger of arithmetic at
peak and weights from cache.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import relay
from relay.ir.module import Module

INPUT, STATE = 300, 150
# Of one Zen 4 core: multiply-adds of float32 a second, and bytes of packed weights a second from cache.
PEAK, CACHE = 117e9, 98e9

BINARY = """#[version = "0.0.5"]
type Binary[A] { Leaf(A), Node(Binary[A], Binary[A]), }
def @encode[d: Dim, h: Dim](%t: Binary[Tensor[(1, d), float32]], %wl: Tensor[(3*h, d), float32], %bl: Tensor[(3*h,), float32],
    %wn: Tensor[(5*h, 2*h), float32], %bn: Tensor[(5*h,), float32]) -> (Tensor[(1, h), float32], Tensor[(1, h), float32]) {
  match (%t) {
    Leaf(%x) => {
      let %g = split(nn.bias_add(nn.dense(%x, %wl), %bl), indices_or_sections=3, axis=1);
      let %c = sigmoid(%g.0) * tanh(%g.2);
      (sigmoid(%g.1) * tanh(%c), %c)
    },
    Node(%left, %right) => {
      let %l = @encode(%left, %wl, %bl, %wn, %bn);
      let %r = @encode(%right, %wl, %bl, %wn, %bn);
      let %g = split(nn.bias_add(nn.dense(concatenate((%l.0, %r.0), axis=1), %wn), %bn), indices_or_sections=5, axis=1);
      let %c = sigmoid(%g.0) * tanh(%g.4) + sigmoid(%g.1) * %l.1 + sigmoid(%g.2) * %r.1;
      (sigmoid(%g.3) * tanh(%c), %c)
    },
  }
}
def @main[d: Dim, h: Dim](%t: Binary[Tensor[(1, d), float32]], %wl: Tensor[(3*h, d), float32], %bl: Tensor[(3*h,), float32],
    %wn: Tensor[(5*h, 2*h), float32], %bn: Tensor[(5*h,), float32]) -> Tensor[(1, h), float32] {
  @encode(%t, %wl, %bl, %wn, %bn).0
}
"""

CHILD_SUM = """#[version = "0.0.5"]
import prelude
def @encode[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wx: Tensor[(3*h, d), float32], %wh: Tensor[(3*h, h), float32],
    %b: Tensor[(3*h,), float32], %wf: Tensor[(h, d), float32], %uf: Tensor[(h, h), float32], %bf: Tensor[(h,), float32],
    %zero: Tensor[(1, h), float32]) -> (Tensor[(1, h), float32], Tensor[(1, h), float32]) {
  match (%t) {
    Rose(%x, %kids) => {
      let %states = @map(fn (%k: Tree[Tensor[(1, d), float32]]) { @encode(%k, %wx, %wh, %b, %wf, %uf, %bf, %zero) }, %kids);
      let %hs = @foldl(fn (%a: Tensor[(1, h), float32], %s: (Tensor[(1, h), float32], Tensor[(1, h), float32])) {
        %a + %s.0
      }, %zero, %states);
      let %f = nn.bias_add(nn.dense(%x, %wf), %bf);
      let %fc = @foldl(fn (%a: Tensor[(1, h), float32], %s: (Tensor[(1, h), float32], Tensor[(1, h), float32])) {
        %a + sigmoid(%f + nn.dense(%s.0, %uf)) * %s.1
      }, %zero, %states);
      let %g = split(nn.bias_add(nn.dense(%x, %wx) + nn.dense(%hs, %wh), %b), indices_or_sections=3, axis=1);
      let %c = sigmoid(%g.0) * tanh(%g.2) + %fc;
      (sigmoid(%g.1) * tanh(%c), %c)
    },
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wx: Tensor[(3*h, d), float32], %wh: Tensor[(3*h, h), float32],
    %b: Tensor[(3*h,), float32], %wf: Tensor[(h, d), float32], %uf: Tensor[(h, h), float32], %bf: Tensor[(h,), float32])
    -> Tensor[(1, h), float32] {
  @encode(%t, %wx, %wh, %b, %wf, %uf, %bf, zeros(shape=[1, Dim[h]], dtype="float32")).0
}
"""


def bound(text: str, rng: np.random.Generator) -> Module:
    """The program with random weights for its parameters but the first."""
    mod = relay.infer_type(relay.parse(text))
    shapes = {
        "wl": (3 * STATE, INPUT), "bl": (3 * STATE,), "wn": (5 * STATE, 2 * STATE), "bn": (5 * STATE,),
        "wx": (3 * STATE, INPUT), "wh": (3 * STATE, STATE), "b": (3 * STATE,), "wf": (STATE, INPUT), "uf": (STATE, STATE),
        "bf": (STATE,),
    }  # fmt: skip
    names = [p.name for p in mod.functions["main"].params[1:]]
    return mod.bind({n: (rng.standard_normal(shapes[n]) * 0.05).astype(np.float32) for n in names})


def leaf_counts(rng: np.random.Generator, trees: int) -> list[int]:
    return [int(n) for n in np.clip(np.round(rng.gamma(4, 19 / 4, trees)), 5, 50)]


def tree(mod: Module, rng: np.random.Generator, leaves: int, binary: bool) -> Any:
    """A tree of random splits; with ``binary`` only leaves have words."""
    word = rng.standard_normal((1, INPUT), dtype=np.float32)
    if leaves == 1:
        return mod.adt("Binary").Leaf(word) if binary else mod.adt("Tree").Rose(word, [])
    cut = int(rng.integers(1, leaves))
    parts = [tree(mod, rng, cut, binary), tree(mod, rng, leaves - cut, binary)]
    return mod.adt("Binary").Node(*parts) if binary else mod.adt("Tree").Rose(word, parts)


def nodes_by_level(root: Any) -> dict[int, int]:
    """How many nodes there are at each height."""
    counts: dict[int, int] = {}

    def height(t: Any) -> int:
        kids = t.fields[1] if t.adt == "Tree" else t.fields if t.constructor == "Node" else ()
        level = 1 + max((height(k) for k in kids), default=-1)
        counts[level] = counts.get(level, 0) + 1
        return level

    height(root)
    return counts


def floor(root: Any, binary: bool) -> float:
    """Seconds below which the machine cannot go: by level, arithmetic or weights."""

    def product(rows: int, weights: int) -> float:
        return max(2 * rows * weights / PEAK, 4 * weights / CACHE)

    levels = nodes_by_level(root)
    if binary:
        inner = sum(product(n, 5 * STATE * 2 * STATE) for level, n in levels.items() if level)
        return product(levels[0], 3 * STATE * INPUT) + inner
    every = sum(levels.values())
    inner = sum(product(n, 3 * STATE * STATE) + product(2 * n, STATE * STATE) for level, n in levels.items() if level)
    return product(every, 3 * STATE * INPUT) + product(every - levels[0], STATE * INPUT) + inner


def measure(exe: Any, values: list[Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for value in values:
            exe(value)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    print(f"{'program':12}{'by level':>12}{'node by node':>14}{'floor':>10}   microseconds a leaf ({args.trees} trees)")
    for name, text in (("binary", BINARY), ("child-sum", CHILD_SUM)):
        rng = np.random.default_rng(0)
        mod = bound(text, rng)
        counts = leaf_counts(rng, args.trees)
        trees = [tree(mod, rng, n, name == "binary") for n in counts]
        columns = []
        for level in (3, 2):
            exe = relay.compile(mod, threads=args.threads, opt_level=level)
            values = [exe.signature().arguments((t,))[0] for t in trees]
            error = np.abs(np.asarray(exe(values[0])) - np.asarray(relay.evaluate(mod, trees[0]))).max()
            assert error < 1e-4, f"{name}: differs from the interpreter by {error}"
            columns.append(measure(exe, values, args.repeats) / sum(counts) * 1e6)
        low = sum(floor(t, name == "binary") for t in trees) / sum(counts) * 1e6
        print(f"{name:12}{columns[0]:12.2f}{columns[1]:14.2f}{low:10.2f}")


if __name__ == "__main__":
    main()
