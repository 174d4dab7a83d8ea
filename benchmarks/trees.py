"""Tree-structured networks (`examples/tree_lstm.relay`, `examples/child_sum.relay`), one tree at a time and all of them as one batch.

    python benchmarks/trees.py [--trees 32] [--input 300] [--state 150] [--shape random] [--leaves 19] [--threads 1] [--pause 2]
        [--systems relay,...]

Trees have random splits (or another ``--shape``: chain, halves, or how many children a node has, of which binary ones have two) and
5 to 50 leaves, 19 on average (or as many as ``--leaves`` says); float32, microseconds a leaf, medians of rounds in which
the systems take turns, after calls that bring weights and trees back into the caches. The walk over the structure is inside the timing, the
conversion of Python values (once, before) is not.
PyTorch runs the recursion node by node, and level by level as a person would write it (``torch levels``); JAX loops over levels of a
fixed width, compiled once for all trees; onnxruntime over levels, of tables made in Python each time, or (``onnx tables``)
before. ``level 2`` is ours without batching. ``--pause`` adds rows of trees that come one by one, so many milliseconds after each other:
requests of their own, for which threads and clocks have to wake. The floor counts, level by level, the larger of
arithmetic at peak and weights from cache, both medians in turns with the systems; of a batch, the arithmetic alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tree_peers
from machine import multiplying, reading
from table import FLOOR, Table, add_out
from turns import PAUSE, medians

import relay
from relay.ir.module import Module

TURN = 0.05  # seconds of a system's turn, besides what is not timed
EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = {"binary": "tree_lstm.relay", "child-sum": "child_sum.relay"}
SYSTEMS = ("relay", "level 2", "torch", "torch levels", "jax", "onnxruntime", "onnx tables")


class Sizes(NamedTuple):
    """Elements of a word and of a node's state."""

    input: int = 300
    state: int = 150


USUAL = Sizes()

Run = Callable[[Sequence[Any]], list[Any]]  # what a system gives for some trees, one at a time or all at once


def program(name: str, rng: np.random.Generator, sizes: Sizes = USUAL) -> tuple[Module, dict[str, Any]]:
    """The program, and random weights for its parameters but the first."""
    mod = relay.infer_type(relay.parse((EXAMPLES / PROGRAMS[name]).read_text()))
    d, h = sizes
    shapes = {
        "wl": (3 * h, d), "bl": (3 * h,), "wn": (5 * h, 2 * h), "bn": (5 * h,),
        "wx": (3 * h, d), "wh": (3 * h, h), "b": (3 * h,), "wf": (h, d), "uf": (h, h), "bf": (h,),
    }  # fmt: skip
    names = [p.name for p in mod.functions["main"].params[1:]]
    weights = {n: (rng.standard_normal(shapes[n]) * 0.05).astype(np.float32) for n in names}
    return mod, weights


def bound(name: str, rng: np.random.Generator, sizes: Sizes = USUAL) -> tuple[Module, dict[str, Any]]:
    """The program with random weights, and these."""
    mod, weights = program(name, rng, sizes)
    return mod.bind(weights), weights


def leaf_counts(rng: np.random.Generator, trees: int) -> list[int]:
    return [int(n) for n in np.clip(np.round(rng.gamma(4, 19 / 4, trees)), 5, 50)]


def parts_of(leaves: int, kind: str, rng: np.random.Generator) -> list[int]:
    """How many leaves each child of a node has that has so many: at random, all but one in the first, or as many in each of some."""
    if kind in ("random", "chain"):
        first = int(rng.integers(1, leaves)) if kind == "random" else leaves - 1
        return [first, leaves - first]
    most = min(leaves, 2 if kind == "halves" else int(kind))
    return [leaves * (n + 1) // most - leaves * n // most for n in range(most)]


def shape(text: str) -> str:
    """A shape of trees, as an argument."""
    if text in ("random", "chain", "halves") or (text.isdigit() and int(text) > 1):
        return text
    raise argparse.ArgumentTypeError(f"expected random, chain, halves or a number of children above 1, found {text!r}")


def tree(
    mod: Module, rng: np.random.Generator, leaves: int, binary: bool, size: int = USUAL.input, kind: str = "random"
) -> Any:
    """A tree of some shape (`parts_of`), with words of this size; with ``binary`` inner nodes have words only where the type has room for
    them."""
    word, adt = rng.standard_normal((1, size), dtype=np.float32), mod.adt("Tree")
    if leaves == 1:
        return adt.Leaf(word) if binary else adt.Rose(word, [])
    parts = [tree(mod, rng, n, binary, size, kind) for n in parts_of(leaves, kind, rng)]
    if not binary:
        return adt.Rose(word, parts)
    return adt.Node(*parts) if len(mod.constructors["Node"].fields) == 2 else adt.Node(word, *parts)


def nodes_by_level(roots: Sequence[Any]) -> list[tuple[int, int]]:
    """How many nodes there are at each height, and how many children these have."""
    counts: dict[int, tuple[int, int]] = {}

    def height(t: Any) -> int:
        children = tree_peers.children(t)
        level = 1 + max(map(height, children), default=-1)
        nodes, below = counts.get(level, (0, 0))
        counts[level] = nodes + 1, below + len(children)
        return level

    for root in roots:
        height(root)
    return [counts[level] for level in sorted(counts)]


def floor(roots: Sequence[Any], binary: bool, sizes: Sizes, flops: float, cache: float | None) -> float:
    """Seconds below which the machine cannot go for these trees: by level, arithmetic or weights (None: arithmetic alone)."""

    d, h = sizes

    def product(rows: int, weights: int) -> float:
        return max(2 * rows * weights / flops, 0.0 if cache is None else 4 * weights / cache)

    (leaves, _), *inner = nodes_by_level(roots)
    if binary:
        return product(leaves, 3 * h * d) + sum(product(n, 5 * h * 2 * h) for n, _ in inner)
    parents = sum(n for n, _ in inner)
    below = sum(product(n, 3 * h * h) + product(children, h * h) for n, children in inner)
    return product(leaves + parents, 3 * h * d) + product(parents, h * d) + below


def systems(
    name: str, mod: Module, weights: dict[str, Any], trees: list[Any], given: argparse.Namespace
) -> dict[str, Run]:
    """Each system's way to run some trees (numbers of them), one at a time and all at once."""
    made: dict[str, Run] = {}
    for system, level in (("relay", 3), ("level 2", 2)):
        if system not in given.systems.split(","):
            continue
        exe = relay.compile(mod, threads=given.threads, opt_level=level)
        values = [exe.signature().arguments((t,))[0] for t in trees]
        made[system] = lambda which, exe=exe, values=values: [exe(values[n]) for n in which]  # type: ignore[misc]
        if level == 3:
            made["relay at once"] = lambda which, exe=exe, values=values: exe.run_batch(  # type: ignore[misc]
                "main", [(values[n],) for n in which]
            )
    for system, make in tree_peers.MAKERS.items():
        if system.removesuffix(" at once") in given.systems.split(","):
            try:
                made[system] = make(name, weights, trees, given.threads)
            except ImportError as error:
                print(f"{system}: {error}")
    return made


def with_pauses(run: Run, which: Sequence[int], pause: float) -> float:
    """Seconds that a system takes for these trees, one by one, with pauses of so many seconds before each that do not count."""
    took = 0.0
    for n in which:
        time.sleep(pause)
        start = time.perf_counter()
        run([n])
        took += time.perf_counter() - start
    return took


def measure(runs: dict[str, Run], which: Sequence[int], rounds: int, pause: float = 0.0) -> dict[str, float]:
    """Median seconds of each system for these trees (one by one with a ``pause`` between, in seconds); the systems take turns, with a
    pause in which the others' threads park."""
    if not pause:
        calls = {system: partial(run, which) for system, run in runs.items()}
        return medians(calls, rounds, dict.fromkeys(runs, PAUSE), TURN)
    times: dict[str, list[float]] = {system: [] for system in runs}
    for _ in range(rounds):
        for system, run in runs.items():
            time.sleep(PAUSE)
            run(which[:2])
            times[system].append(with_pauses(run, which, pause))
    return {system: statistics.median(found) for system, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=32)
    parser.add_argument("--input", type=int, default=USUAL.input, help="elements of a word")
    parser.add_argument("--state", type=int, default=USUAL.state, help="elements of a node's state")
    parser.add_argument(
        "--shape", type=shape, default="random", help="random, chain, halves, or how many children a node has"
    )
    parser.add_argument("--leaves", type=int, default=None, help="of every tree")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="MS", help="rows of trees with such pauses between them, too"
    )
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    add_out(parser)
    given = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    sizes = Sizes(given.input, given.state)
    kind = f" ({given.shape})" if given.shape != "random" else ""
    title = f"Tree-LSTMs of {given.state} over {given.trees} trees{kind}, {given.threads} thread(s)"
    columns = [*(s for s in SYSTEMS if s in given.systems.split(",")), FLOOR]
    table = Table(f"trees_{given.threads}", title, "microseconds a leaf", "program", columns)
    print(table.head())
    (operations, multiply), weight_bytes = multiplying(given.threads), 4 * 10 * given.state**2
    read = reading(weight_bytes, given.threads)
    peaks: list[float] = []
    caches: list[float] = []
    for name in PROGRAMS:
        if name == "binary" and given.shape.isdigit():
            continue
        rng = np.random.default_rng(0)
        mod, weights = bound(name, rng, sizes)
        counts = leaf_counts(rng, given.trees) if given.leaves is None else [given.leaves] * given.trees
        trees = [tree(mod, rng, n, name == "binary", given.input, given.shape) for n in counts]
        runs = systems(name, mod, weights, trees, given)
        expected = np.asarray(relay.evaluate(mod, trees[0]))
        for system, run in runs.items():
            error = np.abs(np.asarray(run([0, 1])[0]) - expected).max()
            assert error < 1e-4, f"{name}, {system}: differs from the interpreter by {error}"
        every, scale = range(len(trees)), 1e6 / sum(counts)
        cases = [("one at a time", "", 0.0), ("at once", " at once", 0.0)]
        if given.pause:
            cases.insert(1, (f"one each {given.pause:g} ms", "", given.pause / 1e3))
        for case, suffix, pause in cases:
            chosen = {s.removesuffix(" at once"): r for s, r in runs.items() if s.endswith(" at once") == bool(suffix)}
            limits: dict[str, Run] = {"multiply": lambda _: [multiply()], "read": lambda _: [read()]}
            times = measure({**chosen, **limits}, every, given.rounds, pause)
            calls = len(trees) if pause else 1
            flops, cache = operations * calls / times.pop("multiply"), weight_bytes * calls / times.pop("read")
            peaks.append(flops)
            caches.append(cache)
            found = {s: t * scale for s, t in times.items()}
            groups = [trees] if suffix else [[t] for t in trees]
            least = sum(floor(g, name == "binary", sizes, flops, None if suffix else cache) for g in groups)
            print(table.add(f"{name}, {case}", {**found, FLOOR: least * scale}), flush=True)
    print(
        table.note(
            f"measured in the run: {min(peaks) / 1e9:.0f} to {max(peaks) / 1e9:.0f} GFLOP/s, "
            f"{min(caches) / 1e9:.0f} to {max(caches) / 1e9:.0f} GB/s from the cache"
        )
    )
    table.keep(given.out)


if __name__ == "__main__":
    main()
