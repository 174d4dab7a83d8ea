"""Whether programs became slower since an earlier commit: both versions in turns, each in a process of its own.

    python benchmarks/versions.py COMMIT [--only REGEX] [--rounds 5] [--bar 1.05] [--threads 1]

The earlier version is built from its commit into a folder of its own (minutes, once: ``--keep FOLDER`` keeps it). Some hundred small
programs (products of few and many rows, norms, reductions, convolutions, attention, with the gradients of all operands and without), the
least of many runs in each of some turns. Printed are those of which the new version takes more than ``--bar`` times as long, or less than
its inverse, and the geometric mean. What is printed once is noise more often than not: run it again with ``--only``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# Lines of JSON say what to do: a program, which is compiled and kept, or the number of one and for how long it is to be run.
WORKER = """
import sys
sys.path[:0] = sys.argv[1:]
import json, time
import numpy as np
import relay
kept = []
for line in sys.stdin:
    asked = json.loads(line)
    if "text" in asked:
        rng = np.random.default_rng(0)
        drawn = {n: (rng.standard_normal(s) * 0.1).astype("float32") for n, s in asked["shapes"].items()}
        module = relay.infer_type(relay.parse(asked["text"])).bind({n: drawn[n] for n in asked["weights"]})
        rest = [n for n in drawn if n not in asked["weights"]]
        if asked["gradients"]:
            module = relay.value_and_grad(module, argnums=tuple(range(len(rest))))
        exe, args = relay.compile(module, threads=asked["threads"]), [drawn[n] for n in rest]
        exe(*args)
        kept.append((exe, args))
        print(len(kept) - 1, flush=True)
        continue
    exe, args = kept[asked["number"]]
    least, end = float("inf"), time.perf_counter() + asked["seconds"]
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        exe(*args)
        least = min(least, time.perf_counter_ns() - start)
    print(least / 1e3 if least < float("inf") else -1, flush=True)
"""


@dataclass(frozen=True)
class Program:
    """``text`` with parameters of these shapes, float32; those among ``weights`` are constants."""

    name: str
    text: str
    shapes: Mapping[str, tuple[int, ...]]
    weights: tuple[str, ...] = ()
    gradients: bool = False


def program(
    name: str, body: str, shapes: Mapping[str, tuple[int, ...]], weights: tuple[str, ...] = (), gradients: bool = False
) -> Program:
    def parameter(n: str, shape: tuple[int, ...]) -> str:
        return f"%{n}: Tensor[({''.join(f'{s}, ' for s in shape)}), float32]"

    params = ", ".join(parameter(n, s) for n, s in shapes.items())
    return Program(name, f'#[version = "0.0.5"]\ndef @main({params}) {{ {body} }}', shapes, weights, gradients)


def programs() -> Iterator[Program]:
    few, many = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 53, 64, 128), (4000, 16000)
    weights = {
        (384, 384): few,
        (768, 3072): few,
        (3072, 768): few,
        (150, 750): few,
        (512, 2048): few,
        (300, 450): many,
        (512, 512): many,
    }
    for (depth, columns), counts in weights.items():
        for rows in counts:
            shapes = {"x": (rows, depth), "w": (columns, depth), "b": (columns,)}
            text = f"nn.bias_add(nn.dense(%x, %w), %b): {rows} x {depth} x {columns}"
            yield program(text, "nn.bias_add(nn.dense(%x, %w), %b)", shapes, ("w", "b"))
    plain = [
        "nn.softmax(%x)", "nn.log_softmax(%x)", "nn.gelu(%x)", "sum(%x, axis=[0])", "mean(%x, axis=[1])", "transpose(%x)",
        "log(sum(exp(%x), axis=[1]))", "cumsum(%x, axis=1)", "topk(%x, k=4, axis=1)",
    ]  # fmt: skip
    for rows in (1, 4, 16, 64, 256, 1024):
        for width in (64, 768, 1000):
            size, matrix, vector = f": {rows} x {width}", (rows, width), (width,)
            for body in plain:
                yield program(body + size, body, {"x": matrix})
            norm = "nn.layer_norm(%x, %g, %b)"
            affine: dict[str, tuple[int, ...]] = {"x": matrix, "g": vector, "b": vector}
            yield program(norm + size, norm, affine, ("g", "b"))
            differentiated: list[tuple[str, dict[str, tuple[int, ...]]]] = [
                ("sum(nn.softmax(%x) * %y)", {"x": matrix, "y": matrix}),
                (f"sum({norm} * %y)", {**affine, "y": matrix}),
                ("sum(tanh(nn.bias_add(nn.dense(%x, %w), %b)))", {"x": matrix, "w": (width, width), "b": vector}),
            ]
            for body, shapes in differentiated:
                yield program(f"gradients of {body}{size}", body, shapes, gradients=True)
    for n, c, h, k, s in ((1, 3, 64, 3, 1), (1, 64, 28, 3, 1), (1, 64, 56, 1, 1), (1, 64, 28, 3, 2), (4, 32, 16, 5, 1)):
        conv = f"nn.conv2d(%x, %w, strides=[{s}, {s}], padding=[{k // 2}, {k // 2}, {k // 2}, {k // 2}])"
        shapes = {"x": (n, c, h, h), "w": (max(16, c), c, k, k)}
        size = f": {n} x {c} x {h} x {h}, {k} x {k}, {s}"
        yield program(f"conv2d{size}", conv, shapes, ("w",))
        yield program(f"gradients of conv2d{size}", f"sum(tanh({conv}))", shapes, gradients=True)
    spelled = "nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) * 0.125f), transpose(%v, axes=[0, 2, 1]))"
    for batch, length, depth in ((1, 16, 32), (4, 64, 64), (12, 53, 64), (12, 128, 64), (1, 512, 64), (8, 1, 64)):
        shapes = dict.fromkeys("qkv", (batch, length, depth))
        yield program(f"attention: {batch} x {length} x {depth}", spelled, shapes)
        yield program(
            f"gradients of attention: {batch} x {length} x {depth}", f"sum({spelled} * %q)", shapes, gradients=True
        )
    yield from small_matrices()
    yield from matrices_by_columns()
    yield from rows_of_neighbours()


def small_matrices() -> Iterator[Program]:
    """Many matrices whose rows fill no vector."""
    for n, rows, columns in ((2000, 4, 4), (2000, 3, 6), (2000, 5, 7)):
        shapes: dict[str, tuple[int, ...]] = {"x": (n, rows, columns)}
        for body in (
            "nn.softmax(%x, axis=1)",
            "logsumexp(%x, axis=[1])",
            "%x / sqrt(sum(%x * %x, axis=[1], keepdims=True) + 1f)",
        ):
            yield program(f"{body}: {n} x {rows} x {columns}", body, shapes)
            yield program(
                f"gradients of {body}: {n} x {rows} x {columns}", f"sum(tanh({body}))", shapes, gradients=True
            )
    best = "max(expand_dims(%x, axis=2) + %w, axis=[1])"
    yield program(f"{best}: 4000 x 6", best, {"x": (4000, 6), "w": (6, 6)})
    for rows, columns, terms in ((2, 2, 2), (3, 3, 3), (3, 1, 3), (4, 1, 4), (6, 1, 6), (8, 8, 8)):
        shapes, size = {"x": (4000, rows, terms), "y": (4000, columns, terms)}, f": 4000 x {rows} x {columns} x {terms}"
        yield program(f"nn.batch_matmul(%x, %y){size}", "nn.batch_matmul(%x, %y)", shapes)
        product = "sum(tanh(nn.batch_matmul(%x, %y)))"
        yield program(f"gradients of {product}{size}", product, shapes, gradients=True)


def matrices_by_columns() -> Iterator[Program]:
    """Constants by few columns, and rows that choose among eight matrices."""
    for columns in (1, 2, 5, 17, 100):
        shapes = {"w": (768, 768), "x": (768, columns)}
        yield program(f"nn.matmul(%w, %x): 768 x 768 x {columns}", "nn.matmul(%w, %x)", shapes, ("w",))
    for rows in (1, 4, 22, 64, 256):
        choice = 'clip(cast(abs(%g) * 40f, dtype="int64"), a_min=0, a_max=7)'
        body = f'einsum((%x, take(%w, {choice}, axis=0)), equation="nk,nkj->nj")'
        given: dict[str, tuple[int, ...]] = {"x": (rows, 256), "g": (rows,), "w": (8, 256, 256)}
        size = f": {rows} x 8 x 256 x 256"
        yield program(f"rows that choose a constant matrix{size}", body, given, ("w",))
        yield program(f"rows that choose their matrix{size}", body, given)
        yield program(f"gradients of rows that choose their matrix{size}", f"sum(tanh({body}))", given, gradients=True)


def rows_of_neighbours() -> Iterator[Program]:
    """Attention to the rows that each row chooses."""
    chosen = 'cast(abs(%i) * 10000f, dtype="int64")'
    body = f"sum(expand_dims(nn.softmax(%s), axis=2) * take(%v, {chosen}, axis=0), axis=[1])"
    for rows, keys, width in ((256, 16, 64), (1000, 32, 96), (64, 20, 300)):
        shapes: dict[str, tuple[int, ...]] = {"s": (rows, keys), "i": (rows, keys), "v": (rows, width)}
        yield program(f"attention to chosen rows: {rows} x {keys} x {width}", body, shapes)


def build(commit: str, folder: Path) -> Path:
    """The package as of a commit, installed into a folder; found there if it is there already."""
    source, site = folder / "source", folder / "site"
    if not site.exists():
        source.mkdir(parents=True)
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", str(source)], input=packed, check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
        subprocess.run(pip, check=True)
    return site


class Version:
    """A process that runs programs with one version of the package: the one in a folder, else the one that is installed."""

    def __init__(self, folder: Path | None = None) -> None:
        command = [sys.executable, "-c", WORKER]
        if folder is not None:
            # Without what finds the installed version before any folder.
            command[1:1] = ["-S"]
            command += [str(folder), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> float:
        """What it answers. Raises ChildProcessError where it ended instead, which has said why."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"a version ended at {question}")
        return float(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier version")
    parser.add_argument("--only", default="", help="programs whose names this regular expression is found in")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.005, help="of a turn")
    parser.add_argument("--bar", type=float, default=1.05)
    parser.add_argument("--threads", type=int, default=1, help="of both versions")
    parser.add_argument("--keep", type=Path, help="the folder for the earlier version")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Version(build(given.commit, given.keep or Path(folder) / "old"))
        new = Version()
        ratios: list[float] = []
        for one in programs():
            if not re.search(given.only, one.name):
                continue
            numbers = [int(v.ask({**asdict(one), "threads": given.threads})) for v in (old, new)]
            least = [math.inf, math.inf]
            for turn in range(given.rounds):
                for n in (0, 1) if turn % 2 else (1, 0):
                    took = (old, new)[n].ask({"number": numbers[n], "seconds": given.seconds})
                    least[n] = min(least[n], took if took > 0 else math.inf)
            ratio = least[1] / least[0]
            ratios.append(ratio)
            if not 1 / given.bar < ratio < given.bar:
                print(f"{one.name:75s} {least[0]:10.2f} {least[1]:10.2f} us  {ratio:.2f}", flush=True)
        mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
        print(f"{len(ratios)} programs: the new version takes {mean:.3f} of the time (geometric mean)")


if __name__ == "__main__":
    main()
