"""Capsule convolution from one expression, forward and both gradients, in turns with PyTorch: one conv2d for each row of the capsules
(as it is usually composed: eight for capsules of 8 x 8), and one conv2d in all with permutations around it, its images in the usual
order and with channels last.

A gradient is timed alone, of a cotangent that is given: ours is the derived operator, PyTorch's is the way back of a graph that is
kept. ``--shape``: batch, channels in and out, height, window and size of the capsules.

    python benchmarks/capsule.py [--threads 1] [--shape 1 16 32 14 3 8]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from table import Table, add_out
from turns import PAUSE, medians

import relay
from relay import te
from relay.executable.reader import read_image

STRIDE = 2


@relay.operator("capsule_conv")
def capsule_conv(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """``out[b,k,p,q,i,j]`` is the sum over c, r, s, l of ``data[b,c,2p+r,2q+s,i,l] * weight[k,c,r,s,l,j]``."""
    (n, c, h, w, i, inner), (k, _, r, s, _, j) = data.shape, weight.shape
    o = tuple(te.reduce_axis(d) for d in (c, r, s, inner))
    shape = (n, k, (h - r) // STRIDE + 1, (w - s) // STRIDE + 1, i, j)  # type: ignore[operator]
    at = lambda p, q: (p * STRIDE + o[1], q * STRIDE + o[2])  # noqa: E731
    return te.compute(shape, lambda b, m, p, q, x, y: te.sum(data[b, o[0], *at(p, q), x, o[3]] * weight[m, *o, y], o))


def kernels_of(exe: Any) -> int:
    """How many kernels an executable has."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "capsule.rlx"
        exe.save(path)
        return len(read_image(path).kernels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", type=int, nargs=6, default=[1, 16, 32, 14, 3, 8], metavar="N")
    parser.add_argument("--rounds", type=int, default=9)
    add_out(parser)
    args = parser.parse_args()
    b, c, k, h, r, size = args.shape
    out = (h - r) // STRIDE + 1
    types = [
        f"%{name}: Tensor[({', '.join(map(str, shape))}), float32]"
        for name, shape in (
            ("a", (b, c, h, h, size, size)),
            ("w", (k, c, r, r, size, size)),
            ("g", (b, k, out, out, size, size)),
        )
    ]
    calls = {
        "forward": (2, "capsule_conv(%a, %w)"),
        "data": (3, "capsule_conv.vjp0(%a, %w, %g)"),
        "weight": (3, "capsule_conv.vjp1(%a, %w, %g)"),
    }
    rng = np.random.default_rng(0)
    a = rng.standard_normal((b, c, h, h, size, size)).astype(np.float32)
    w = rng.standard_normal((k, c, r, r, size, size)).astype(np.float32)
    g = rng.standard_normal((b, k, out, out, size, size)).astype(np.float32)
    ours: dict[str, Callable[[], Any]] = {}
    kernels: dict[str, int] = {}
    for name, (number, call) in calls.items():
        module = relay.parse(f'#[version = "0.0.5"]\ndef @main({", ".join(types[:number])}) {{ {call} }}')
        exe = relay.compile(module, threads=args.threads)
        ours[name] = lambda exe=exe, given=(a, w, g)[:number]: exe(*given)  # type: ignore[misc]
        kernels[name] = kernels_of(exe)

    import torch

    torch.set_num_threads(args.threads)
    ta, tw = torch.from_numpy(a).requires_grad_(), torch.from_numpy(w).requires_grad_()

    def kernel(weight: Any) -> Any:
        return weight.permute(0, 5, 1, 4, 2, 3).reshape(k * size, c * size, r, r)

    def each_row(data: Any, weight: Any) -> Any:
        rows = [
            torch.nn.functional.conv2d(
                data[:, :, :, :, i].permute(0, 1, 4, 2, 3).reshape(b, c * size, h, h), kernel(weight), stride=STRIDE
            ).reshape(b, k, size, out, out)
            for i in range(size)
        ]
        return torch.stack(rows, 2).permute(0, 1, 4, 5, 2, 3)

    def at_once(data: Any, weight: Any, layout: Any = torch.contiguous_format) -> Any:
        x = data.permute(0, 4, 1, 5, 2, 3).reshape(b * size, c * size, h, h).contiguous(memory_format=layout)
        y = torch.nn.functional.conv2d(x, kernel(weight).contiguous(memory_format=layout), stride=STRIDE)
        return y.reshape(b, size, k, size, out, out).permute(0, 2, 4, 5, 1, 3)

    def channels_last(data: Any, weight: Any) -> Any:
        return at_once(data, weight, torch.channels_last)

    composed: dict[str, Callable[[Any, Any], Any]] = {
        f"{size} conv2d": each_row, "conv2d": at_once, "channels last": channels_last
    }  # fmt: skip
    tg = torch.from_numpy(g)

    def peer(of: Callable[[Any, Any], Any], what: str) -> Callable[[], Any]:
        if what == "forward":

            def forward() -> Any:
                with torch.no_grad():
                    return of(ta, tw).contiguous()

            return forward
        operand, made = ta if what == "data" else tw, of(ta, tw)
        return lambda: torch.autograd.grad(made, operand, tg, retain_graph=True)[0]

    title = f"Capsule convolution from one expression, beside PyTorch's conv2d, {args.threads} thread(s)"
    columns = ["relay", *composed, "best peer / ours", "kernels"]
    table = Table(f"capsule-{args.threads}", title, "ms", "what", columns)
    print(table.head())
    for what, run in ours.items():
        runs = {"relay": run, **{name: peer(of, what) for name, of in composed.items()}}
        found = {name: np.asarray(each()) for name, each in runs.items()}
        for name, y in found.items():
            apart = np.linalg.norm(y - found["relay"]) / np.linalg.norm(y)
            assert apart < 1e-4, f"{what}: {name} differs by {apart}"
        times = medians(runs, args.rounds, dict.fromkeys(runs, 0.02 if args.threads == 1 else PAUSE), 0.01)
        figures = {name: t * 1e3 for name, t in times.items()}
        best = min(t for name, t in figures.items() if name != "relay")
        print(table.add(what, {**figures, "best peer / ours": best / figures["relay"], "kernels": kernels[what]}))
    table.keep(args.out)


if __name__ == "__main__":
    main()
