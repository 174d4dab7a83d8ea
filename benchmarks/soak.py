"""Programs that run long and deep: what memory they take, and that they end.

    python benchmarks/soak.py [--calls 10000] [--executors vm,aot] [--only calls,tail,deep,limit]

- calls: many calls with lengths and trees at random, one by one and as batches, of executables compiled once. Resident memory after a
  tenth of the calls and after the last; live objects and bytes of the storage pool between the calls, which must not grow.
- tail: 10,000,000 calls in tail position, and the control stack they took.
- deep: a list and a tree 1,000,000 deep, built, folded and freed; the tree also with tensors, by level and call by call.
- limit: the error of a program that recurses deeper than it may.

Every line ends with ``ok`` or says what is wrong; the exit status is 1 if anything is.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import relay
from relay._runtime import live_objects, pool_statistics
from relay.executable.errors import RecursionLimitError

EXAMPLES = Path(__file__).parent.parent / "examples"
HEAD = '#[version = "0.0.5"]\n'
DEEP, LONG = 1_000_000, 10_000_000
# Resident memory may grow by this, for Python's own allocator and the system's pages are not ours.
SLACK = 2.0

TAIL = """
def @sum(%n: int64, %total: int64) -> int64 { if (%n == 0i64) { %total } else { @sum(%n - 1i64, %total + %n) } }
def @main(%n: int64) -> int64 { @sum(%n, 0i64) }
"""
LIST = """
type Items { Item(int64, Items), End, }
def @build(%n: int64, %rest: Items) -> Items { if (%n == 0i64) { %rest } else { @build(%n - 1i64, Item(%n, %rest)) } }
def @total(%l: Items) -> int64 { match (%l) { Item(%x, %rest) => { %x + @total(%rest) }, End => { 0i64 }, } }
def @main(%n: int64) -> int64 { @total(@build(%n, End)) }
"""
TREE = """
type Tree { Leaf(int64), Node(Tree, Tree), }
def @build(%n: int64) -> Tree { if (%n == 0i64) { Leaf(1i64) } else { Node(@build(%n - 1i64), Leaf(1i64)) } }
def @total(%t: Tree) -> int64 { match (%t) { Leaf(%x) => { %x }, Node(%a, %b) => { @total(%a) + @total(%b) }, } }
def @main(%n: int64) -> int64 { @total(@build(%n)) }
"""
STATES = """
type Tree { Leaf(Tensor[(1, 4), float32]), Node(Tree, Tree), }
def @build(%n: int64, %t: Tree, %x: Tensor[(1, 4), float32]) -> Tree {
  if (%n == 0i64) { %t } else { @build(%n - 1i64, Node(%t, Leaf(%x)), %x) }
}
def @total(%t: Tree) -> Tensor[(1, 4), float32] {
  match (%t) { Leaf(%x) => { %x }, Node(%a, %b) => { @total(%a) + @total(%b) }, }
}
def @main(%n: int64, %x: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] { @total(@build(%n, Leaf(%x), %x)) }
"""


def resident() -> float:
    """MiB of resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def alive() -> int:
    """Objects of the runtime that are not freed."""
    return sum(live_objects().values())


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) * 0.05).astype(np.float32)


def sequences(executor: str) -> Callable[[np.random.Generator], None]:
    """An LSTM on a sequence of a length at random."""
    rng, d, h = np.random.default_rng(0), 64, 64
    w = {"w": normal(rng, 4 * h, d), "u": normal(rng, 4 * h, h), "b": normal(rng, 4 * h)}
    module = relay.load_module(EXAMPLES / "recurrent.relay").bind(w, entry="lstm_outputs")
    exe, start = relay.compile(module, entries=("lstm_outputs",), executor=executor), np.zeros((1, h), np.float32)

    def call(rng: np.random.Generator) -> None:
        exe.run("lstm_outputs", np.zeros((int(rng.integers(1, 200)), 1, d), np.float32), start)

    return call


def trees(executor: str, batch: int) -> Callable[[np.random.Generator], None]:
    """A Tree-LSTM on trees of sizes at random, so many of them at once."""
    rng, d, h = np.random.default_rng(0), 16, 16
    w = {
        "wl": normal(rng, 3 * h, d),
        "bl": normal(rng, 3 * h),
        "wn": normal(rng, 5 * h, 2 * h),
        "bn": normal(rng, 5 * h),
    }
    module = relay.infer_type(relay.load_module(EXAMPLES / "tree_lstm.relay"))
    exe, adt = relay.compile(module.bind(w), executor=executor), module.adt("Tree")

    def tree(rng: np.random.Generator, leaves: int) -> Any:
        made = [adt.Leaf(normal(rng, 1, d)) for _ in range(leaves)]
        while len(made) > 1:
            k = int(rng.integers(len(made) - 1))
            made[k : k + 2] = [adt.Node(made[k], made[k + 1])]
        return made[0]

    def call(rng: np.random.Generator) -> None:
        some = [(tree(rng, int(rng.integers(1, 30))),) for _ in range(batch)]
        if batch == 1:
            exe(*some[0])
        else:
            exe.run_batch("main", some)

    return call


def calls(executor: str, count: int) -> Iterator[tuple[str, str]]:
    programs = {
        "lengths": (sequences(executor), count),
        "trees": (trees(executor, 1), count),
        "batches of 8 trees": (trees(executor, 8), count // 8),
    }
    for name, (call, times) in programs.items():
        rng, early, first = np.random.default_rng(1), 0.0, (0, 0)
        for n in range(times):
            call(rng)
            if n == times // 10:
                early, first = resident(), (alive(), pool_statistics()["live_bytes"])
        late, last = resident(), (alive(), pool_statistics()["live_bytes"])
        text = (
            f"{times} calls: {early:.1f} MiB after a tenth of them, {late:.1f} after the last; {last[0]} objects live"
        )
        grown = [f"objects {first[0]} to {last[0]}"] if last[0] > first[0] else []
        grown += [f"live bytes {first[1]} to {last[1]}"] if last[1] > first[1] else []
        grown += [f"resident by {late - early:.1f} MiB"] if late - early > SLACK else []
        yield f"{name}: {text}", f"grown: {', '.join(grown)}" if grown else ""


def ended(name: str, run: Callable[[], object], expected: object) -> tuple[str, str]:
    """Run to the end: the time, what is alive afterwards, and whether the result is right."""
    before, start = alive(), time.perf_counter()
    found = np.array(run())  # a copy, for the result is freed too
    seconds = time.perf_counter() - start
    left = alive() - before
    wrong = "" if np.all(found == expected) else f"gives {found}, not {expected}"
    return f"{name}: {seconds:.2f} s", wrong or (f"{left} objects are left" if left > 0 else "")


def tail(executor: str) -> Iterator[tuple[str, str]]:
    exe = relay.compile(HEAD + TAIL, executor=executor)
    shallow = relay.Limits(depth=4)
    yield ended(
        f"{LONG:,} calls in tail position", lambda: exe.run("main", LONG, limits=shallow), LONG * (LONG + 1) // 2
    )


def deep(executor: str) -> Iterator[tuple[str, str]]:
    for name, text, expected in (("list", LIST, DEEP * (DEEP + 1) // 2), ("tree", TREE, DEEP + 1)):
        exe = relay.compile(HEAD + text, executor=executor)
        yield ended(f"a {name} {DEEP:,} deep", lambda exe=exe: exe(DEEP), expected)  # type: ignore[misc]
    x = np.ones((1, 4), np.float32)
    for how, level in (("by level", 3), ("call by call", 2)):
        exe = relay.compile(HEAD + STATES, executor=executor, opt_level=level)
        yield ended(f"a tree of tensors {DEEP:,} deep, {how}", lambda exe=exe: exe(DEEP, x), DEEP + 1)  # type: ignore[misc]


def limit(executor: str) -> Iterator[tuple[str, str]]:
    exe = relay.compile(HEAD + LIST, executor=executor)
    try:
        exe.run("main", DEEP, limits=relay.Limits(depth=1000))
    except RecursionLimitError as error:
        yield f"depth limit: {str(error).splitlines()[0]}", ""
    else:
        yield "depth limit", "no error"
    yield ended("and the executable goes on", lambda: exe(100), 5050)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--executors", default="vm,aot")
    parser.add_argument("--only", default="calls,tail,deep,limit")
    given = parser.parse_args()
    parts: dict[str, Callable[[str], Iterator[tuple[str, str]]]] = {
        "calls": lambda executor: calls(executor, given.calls), "tail": tail, "deep": deep, "limit": limit,
    }  # fmt: skip
    failed = False
    for executor in given.executors.split(","):
        for part in given.only.split(","):
            for text, wrong in parts[part](executor):
                print(f"{executor:4} {text}; {wrong or 'ok'}", flush=True)
                failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
