"""Matrix products beside PyTorch's and onnxruntime's and beside what the machine can do, all measured in one run.

A case is ``kind:rows x depth x columns`` with, behind it, what follows the product:

    constant    weights known when the program is compiled      dense on ``w[columns, depth]``
    run-time    both operands given at run time                 matmul on ``w[depth, columns]``
    transposed  the right operand given as ``w[columns, depth]``
    batch8      a product of 8 pairs of matrices (``batch8t``: the right ones transposed)

Rows are symbolic (one compilation for all numbers of rows); ``=`` before the number compiles for it. Epilogues: ``+bias``,
``+gelu`` (of the sum with a bias), ``+residual``.

    python benchmarks/matmul.py [--threads 2] [--cases constant:16x384x384+gelu,batch8:128x64x128,...] [--suite rows]
    python benchmarks/matmul.py --suite constant-rows,run-time-rows,transposed-rows --no-peers --seconds 0.03 --grid

The bound is the time that either the multiply-adds take at the machine's peak or reading the right operand takes
(measured on as many bytes), whichever is longer. Times are medians; systems take turns, and so do the loops that measure peak and
reading, because what a machine gives changes with its heat and its neighbours. ``--grid`` prints how much of the bound is reached, a line
for each right operand and a column for each number of rows.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_threads = argparse.ArgumentParser(add_help=False)
_threads.add_argument("--threads", type=int, default=1)
_known, _ = _threads.parse_known_args()
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(_known.threads)

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from machine import multiplying, reading  # noqa: E402
from turns import PAUSE  # noqa: E402

import relay  # noqa: E402

Array = npt.NDArray[np.float32]
Run = Callable[[], object]

# The kinds of a suite's sizes: constant and given at run time, both ways.
KINDS = ("constant", "run-time", "transposed")
# Numbers of rows, and the depth and columns of right operands, that all meet each other.
ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 48, 85, 127)
SIDES = (384, 768, 1536, 3072)
OPERANDS = [*((d, c) for d in SIDES for c in SIDES), (300, 450), (150, 600), (1000, 1000)]
SUITES = {
    "square": [f"{kind}:{n}x{n}x{n}" for n in (256, 512, 1024) for kind in KINDS],
    "large": ["constant:2048x2048x2048", "run-time:2048x2048x2048", "transposed:2048x2048x2048"],
    "rows": [f"constant:{rows}x384x384" for rows in (1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 23, 32, 53, 128)],
    "wide": [f"constant:{rows}x768x3072" for rows in (1, 2, 4, 8, 13, 16, 32, 128)],
    "deep": [f"constant:{rows}x3072x768" for rows in (1, 2, 4, 8, 13, 16, 32, 128)],
    "static": [f"constant:{s}{rows}x384x1536" for rows in (1, 5, 16, 37, 128) for s in ("", "=")],
    "epilogue": [f"constant:{rows}x384x1536{e}" for rows in (1, 16, 128) for e in ("", "+bias", "+gelu", "+residual")],
    "odd": ["constant:100x300x700", "run-time:100x300x700", "transposed:100x300x700", "constant:37x50x1000",
            "run-time:37x50x1000", "transposed:37x50x1000", "constant:7x1000x10", "constant:64x64x17"],
    "batch": [f"batch12{t}:{r}x{d}x{c}" for r, d, c in ((64, 32, 64), (64, 64, 32), (128, 64, 128), (512, 64, 512))
              for t in ("", "t")],
    "oblong": [f"{kind}:{s}" for s in ("251x509x1021", "300x2000x500", "1000x300x700", "64x1024x4096") for kind in KINDS],
    "few": [f"{kind}:{rows}x{s}" for s in ("384x384", "768x3072", "3072x768") for kind in KINDS
            for rows in (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 64, 128)],
    "vector": [f"{kind}:1x{d}x{c}" for kind in KINDS
               for d, c in ((384, 384), (1024, 1024), (4096, 4096))],
    **{f"{kind}-rows": [f"{kind}:{rows}x{d}x{c}" for d, c in OPERANDS for rows in ROWS] for kind in KINDS},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One product: the sizes, how its operands are given and what follows it."""

    kind: str
    rows: int
    depth: int
    columns: int
    static: bool = False
    epilogue: str = ""

    @staticmethod
    def parse(text: str) -> Case:
        found = re.fullmatch(r"(constant|run-time|transposed|batch\d+t?):(=?)(\d+)x(\d+)x(\d+)(?:\+(\w+))?", text)
        if found is None or (found[6] or "") not in ("", "bias", "gelu", "residual"):
            raise SystemExit(f"not a case: {text}")
        return Case(found[1], int(found[3]), int(found[4]), int(found[5]), bool(found[2]), found[6] or "")

    def __str__(self) -> str:
        mark, after = "=" if self.static else "", f"+{self.epilogue}" if self.epilogue else ""
        return f"{self.kind}:{mark}{self.rows}x{self.depth}x{self.columns}{after}"

    @property
    def batch(self) -> int:
        return int(self.kind.removeprefix("batch").removesuffix("t")) if self.kind.startswith("batch") else 0

    @property
    def turned(self) -> bool:
        """Whether the right operand's rows are the result's columns."""
        return self.kind in ("constant", "transposed") or (self.batch > 0 and self.kind.endswith("t"))

    @property
    def flops(self) -> float:
        return 2.0 * max(1, self.batch) * self.rows * self.depth * self.columns

    @property
    def weight_bytes(self) -> int:
        return 4 * max(1, self.batch) * self.depth * self.columns

    def arrays(self) -> dict[str, Array]:
        """The operands by name, ``x`` and ``w`` first."""
        rng = np.random.default_rng(0)
        lead = (self.batch,) if self.batch else ()
        right = (self.columns, self.depth) if self.turned else (self.depth, self.columns)
        out = {
            "x": rng.standard_normal((*lead, self.rows, self.depth), dtype=np.float32),
            "w": weights((*lead, *right)),
        }
        if self.epilogue in ("bias", "gelu"):
            out["b"] = rng.standard_normal(self.columns, dtype=np.float32)
        if self.epilogue == "residual":
            out["r"] = rng.standard_normal((*lead, self.rows, self.columns), dtype=np.float32)
        return out


@functools.lru_cache(maxsize=1)
def weights(shape: tuple[int, ...]) -> Array:
    """A right operand: the same one for all numbers of rows."""
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def with_relay(case: Case, arrays: dict[str, Array], threads: int, precision: str = "float32") -> Run:
    fixed = [name for name in ("w", "b") if name in arrays] if case.kind == "constant" else []
    exe = compiled(case if case.static else replace(case, rows=0), threads, precision)
    given = [relay.Tensor.from_numpy(a) for name, a in arrays.items() if name not in fixed]
    return lambda: exe(*given)


@functools.lru_cache(maxsize=1)
def compiled(case: Case, threads: int, precision: str) -> relay.Executable:
    """The program of a case, for all numbers of rows where they are symbolic."""
    arrays = case.arrays()
    rows = str(case.rows) if case.static else "n"
    lead = f"{case.batch}, " if case.batch else ""
    right = f"{case.columns}, {case.depth}" if case.turned else f"{case.depth}, {case.columns}"
    shapes = {
        "x": f"{lead}{rows}, {case.depth}",
        "w": f"{lead}{right}",
        "b": f"{case.columns},",
        "r": f"{lead}{rows}, {case.columns}",
    }
    params = ", ".join(f"%{name}: Tensor[({shapes[name]}), float32]" for name in arrays)
    if case.batch:
        body = f"nn.batch_matmul(%x, %w, transpose_b={case.turned})"
    else:
        body = "nn.dense(%x, %w)" if case.turned else "nn.matmul(%x, %w)"
    match case.epilogue:
        case "bias":
            body = f"add({body}, %b)"
        case "gelu":
            body = f"nn.gelu(add({body}, %b))"
        case "residual":
            body = f"add({body}, %r)"
    module = relay.parse(f'#[version = "0.0.5"]\ndef @main{"" if case.static else "[n: Dim]"}({params}) {{ {body} }}')
    fixed = [name for name in ("w", "b") if name in arrays] if case.kind == "constant" else []
    return relay.compile(module.bind({name: arrays[name] for name in fixed}), threads=threads, precision=precision)


def with_torch(case: Case, arrays: dict[str, Array], threads: int) -> Run:
    import torch
    import torch.nn.functional as f

    torch.set_num_threads(threads)
    t = {name: torch.from_numpy(a) for name, a in arrays.items()}
    x, w, b, r = t["x"], t["w"], t.get("b"), t.get("r")

    def product() -> object:
        if not case.batch and case.turned:
            return f.linear(x, w, b)
        y = torch.matmul(x, w.mT if case.turned else w)
        return y if b is None else y + b

    @torch.inference_mode()
    def run() -> object:
        y = product()
        if case.epilogue == "gelu":
            return f.gelu(y)
        return y if r is None else y + r

    return run


def with_onnxruntime(case: Case, arrays: dict[str, Array], threads: int) -> Run:
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    constant = case.kind == "constant"
    fixed = {"b": arrays["b"]} if "b" in arrays else {}
    if constant:
        fixed["w"] = np.ascontiguousarray(arrays["w"].T)
    nodes = []
    right = "w"
    if case.turned and not constant:
        nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[0, 2, 1] if case.batch else [1, 0]))
        right = "wt"
    nodes.append(helper.make_node("MatMul", ["x", right], ["y"]))
    last = "y"
    if case.epilogue in ("bias", "gelu"):
        nodes.append(helper.make_node("Add", [last, "b"], ["sum"]))
        last = "sum"
    if case.epilogue == "gelu":
        nodes.append(helper.make_node("Gelu", [last], ["gelu"]))
        last = "gelu"
    if case.epilogue == "residual":
        nodes.append(helper.make_node("Add", [last, "r"], ["sum"]))
        last = "sum"
    given = {name: a for name, a in arrays.items() if name not in fixed}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in given.items()]
    result = (*arrays["x"].shape[:-1], case.columns)
    graph = helper.make_graph(
        nodes, "product", inputs, [helper.make_tensor_value_info(last, TensorProto.FLOAT, result)],
        [numpy_helper.from_array(a, name) for name, a in fixed.items()],
    )  # fmt: skip
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, a in given.items():
        binding.bind_cpu_input(name, a)
    binding.bind_output(last)

    def run() -> object:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    return run


PEERS: dict[str, tuple[str, Callable[[Case, dict[str, Array], int], Run]]] = {
    "torch": ("torch", with_torch),
    "ort": ("onnxruntime", with_onnxruntime),
}


def medians(runs: dict[str, Run], seconds: float, pause: float) -> dict[str, float]:
    """Median seconds of a call by system: in every round each runs for a while, after a pause and a call to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    rounds = 3
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(pause)
            run()
            end = time.perf_counter() + seconds / rounds
            mine = times[name]
            first = len(mine)
            while len(mine) < first + 2 or (time.perf_counter() < end and len(mine) < first + 2000):
                start = time.perf_counter()
                run()
                mine.append(time.perf_counter() - start)
    return {name: float(np.median(t)) for name, t in times.items()}


def prepare(case: Case, threads: int, peers: Sequence[str], narrow: Sequence[str]) -> dict[str, Run]:
    """What is to be timed, after checking that all compute the same."""
    arrays = case.arrays()
    runs = {"relay": with_relay(case, arrays, threads)}
    for name in peers:
        runs[name] = PEERS[name][1](case, arrays, threads)
    expected = np.asarray(runs["relay"]())
    right = arrays["w"].swapaxes(-1, -2) if case.turned else arrays["w"]
    results = {name: np.asarray(run()) for name, run in runs.items()}
    if not case.epilogue:
        results["numpy"] = arrays["x"] @ right
    for other in results.values():
        np.testing.assert_allclose(expected, other, rtol=1e-3, atol=1e-3 * np.sqrt(case.depth))
    if case.kind == "constant":
        for precision in narrow:
            runs[precision] = with_relay(case, arrays, threads, precision)
            error = np.abs(np.asarray(runs[precision]()) - expected).max() / np.abs(expected).max()
            assert error < 0.02, f"{case} in {precision} is off by {error:.3f}"
    runs["read"] = read(case.weight_bytes, threads)
    runs["multiply"] = multiplying(threads)[1]
    return runs


read = functools.lru_cache(maxsize=1)(reading)


def grid(table: Sequence[dict[str, float | str]]) -> str:
    """How much of the bound each case reaches: a line for each right operand, a column for each number of rows."""
    cells: dict[str, dict[int, float]] = {}
    for row in table:
        case = Case.parse(str(row["case"]))
        line = f"{case.kind} {case.depth}x{case.columns}{'+' if case.epilogue else ''}{case.epilogue}"
        cells.setdefault(line, {})[case.rows] = float(row["bound"]) / float(row["relay"])
    rows = sorted({n for found in cells.values() for n in found})
    out = [f"{'% of the bound':24}" + "".join(f"{n:>6}" for n in rows)]
    for line, found in cells.items():
        out.append(f"{line:24}" + "".join(f"{100 * found[n]:6.0f}" if n in found else f"{'':6}" for n in rows))
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], parents=[_threads])
    parser.add_argument("--cases", help="cases separated by commas")
    parser.add_argument(
        "--suite", help=f"cases by name, separated by commas: {', '.join(SUITES)}", default="square,rows"
    )
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each system and case")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--reduced", action="store_true", help="reduced precision as well: bf16, int8-weights")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument(
        "--grid", action="store_true", help="only how much of the bound is reached, rows of operands side by side"
    )
    given = parser.parse_args()
    names = given.cases.split(",") if given.cases else [c for s in given.suite.split(",") for c in SUITES[s]]
    peers = [] if given.no_peers else [p for p, (m, _) in PEERS.items() if importlib.util.find_spec(m) is not None]
    narrow = ("bf16", "int8-weights") if given.reduced else ()
    operations, _ = multiplying(given.threads)
    table: list[dict[str, float | str]] = []
    for case in map(Case.parse, names):
        found = medians(
            prepare(case, given.threads, peers, narrow), given.seconds, PAUSE if given.threads > 1 and peers else 0.0
        )
        peak = operations / found.pop("multiply")
        bound = max(case.flops / peak, found["read"])
        table.append({"case": str(case), "flops": case.flops, "peak": peak, "bound": bound, **found})
    if given.json:
        print(json.dumps({"threads": given.threads, "cases": table}, indent=2))
        return
    peaks = sorted(float(row["peak"]) / 1e9 for row in table)
    print(f"peak {peaks[0]:.0f} to {peaks[-1]:.0f} GFLOP/s, {given.threads} thread(s); ", end="")
    if given.grid:
        print(grid(table))
        return
    others = [*peers, *narrow]
    print("microseconds")
    head = f"{'case':>32}{'relay':>10}{'GFLOP/s':>9}{'of peak':>9}{'read':>9}{'of bound':>9}"
    print(head + "".join(f"{name:>13}" for name in others))
    for row in table:
        ours, flops = float(row["relay"]), float(row["flops"])
        numbers = f"{ours * 1e6:10.1f}{flops / ours / 1e9:9.1f}{flops / ours / float(row['peak']):9.1%}{float(row['read']) * 1e6:9.1f}"
        beside = "".join(f"{float(row[name]) * 1e6:13.1f}" if name in row else f"{'':13}" for name in others)
        print(f"{row['case']:>32}{numbers}{float(row['bound']) / ours:9.1%}{beside}")


if __name__ == "__main__":
    main()
