"""Convolutions of images and both their gradients, each by itself, in turns with PyTorch's.

A table row is one of forward, data and weight for one shape and batch; operands are given at run time, so packing of weights counts.

    python benchmarks/convolutions.py [--threads 1] [--batch 1 16] [--only 3x3,dw] [--rounds 7] [--more FILE --limit 60]

With ``--more`` rows that the file has are not measured again: what is left is measured for about ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Pieces, Table, add_out, add_pieces
from turns import PAUSE, medians

import relay

Array = npt.NDArray[np.float32]
PARTS = ("forward", "data", "weight")


@dataclass(frozen=True)
class Shape:
    """``into`` to ``out`` channels of images of ``size`` x ``size``, by windows of ``window`` x ``window``."""

    into: int
    size: int
    out: int
    window: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    padding: int = 0

    @cached_property
    def name(self) -> str:
        n = self.window
        words = [f"{n}x{n}", f"{self.into}>{self.out}", f"{self.size}x{self.size}"]
        words += [f"stride {self.stride}"] * (self.stride > 1) + [f"dilation {self.dilation}"] * (self.dilation > 1)
        depthwise = self.groups == self.into == self.out
        words += ["depthwise"] if depthwise else [f"{self.groups} groups"] * (self.groups > 1)
        return " ".join(words)


SHAPES = [
    Shape(64, 28, 128, 1),
    Shape(256, 14, 64, 1),
    Shape(64, 28, 128, 1, stride=2),
    Shape(64, 28, 64, 3, padding=1),
    Shape(128, 14, 128, 3, padding=1),
    Shape(256, 7, 256, 3, padding=1),
    Shape(32, 56, 32, 3, padding=1),
    Shape(64, 28, 128, 3, stride=2, padding=1),
    Shape(128, 14, 256, 3, stride=2, padding=1),
    Shape(64, 28, 64, 3, dilation=2, padding=2),
    Shape(48, 20, 48, 3),
    Shape(32, 28, 32, 5, padding=2),
    Shape(16, 28, 32, 5, stride=2, padding=2),
    Shape(3, 64, 32, 7, stride=2, padding=3),
    Shape(16, 28, 16, 7, padding=3),
    Shape(64, 28, 64, 3, groups=4, padding=1),
    Shape(128, 14, 128, 3, groups=32, padding=1),
    Shape(512, 7, 512, 3, groups=32, padding=1),
    Shape(64, 28, 128, 3, stride=2, groups=8, padding=1),
    Shape(64, 28, 64, 3, groups=64, padding=1),
    Shape(64, 28, 64, 3, stride=2, groups=64, padding=1),
    Shape(96, 28, 96, 5, groups=96, padding=2),
    Shape(96, 14, 96, 7, groups=96, padding=3),
]


def operands(shape: Shape, batch: int) -> tuple[Array, Array, Array]:
    """Images, weights and a cotangent of the result."""
    rng = np.random.default_rng(0)
    c, reach = shape.into // shape.groups, shape.dilation * (shape.window - 1)
    out = (shape.size + 2 * shape.padding - reach - 1) // shape.stride + 1
    x = rng.standard_normal((batch, shape.into, shape.size, shape.size))
    w = rng.standard_normal((shape.out, c, shape.window, shape.window)) / np.sqrt(c * shape.window**2)
    g = rng.standard_normal((batch, shape.out, out, out))
    return x.astype(np.float32), w.astype(np.float32), g.astype(np.float32)


def ours(shape: Shape, given: tuple[Array, Array, Array], part: str, threads: int) -> Callable[[], Any]:
    """The convolution, or one of its derived gradients."""
    attrs = ", ".join(
        f"{name}=[{n}, {n}]"
        for name, n in (("padding", shape.padding), ("strides", shape.stride), ("dilation", shape.dilation))
    )
    name, count = {"forward": ("", 2), "data": (".vjp0", 3), "weight": (".vjp1", 3)}[part]
    names = "xwg"[:count]
    typed = ", ".join(
        f"%{n}: Tensor[({', '.join(map(str, a.shape))}), float32]" for n, a in zip(names, given, strict=False)
    )
    call = f"nn.conv2d{name}({', '.join(f'%{n}' for n in names)}, {attrs}, groups={shape.groups})"
    exe = relay.compile(f'#[version = "0.0.5"]\ndef @main({typed}) {{ {call} }}', threads=threads)
    return lambda: exe(*given[:count])


def theirs(shape: Shape, given: tuple[Array, Array, Array], part: str) -> Callable[[], Any]:
    import torch

    x, w, g = map(torch.from_numpy, given)
    pairs = [[n, n] for n in (shape.stride, shape.padding, shape.dilation)]
    wanted = [part == "data", part == "weight", False]

    def run() -> Any:
        with torch.no_grad():
            if part == "forward":
                return torch.nn.functional.conv2d(x, w, None, *pairs, shape.groups)
            found = torch.ops.aten.convolution_backward(g, x, w, None, *pairs, False, [0, 0], shape.groups, wanted)
            return next(o for o in found if o is not None)

    return run


def measure(shape: Shape, batch: int, part: str, threads: int, rounds: int) -> Mapping[str, float]:
    """Milliseconds of both, and how many times ours PyTorch's is."""
    given = operands(shape, batch)
    runs = {"relay": ours(shape, given, part, threads), "torch": theirs(shape, given, part)}
    a, b = (np.asarray(run()) for run in runs.values())
    apart = np.linalg.norm(a - b) / np.linalg.norm(b)
    assert apart < 1e-3, f"{shape.name}, {part}: {apart} apart"
    times = medians(runs, rounds, dict.fromkeys(runs, 0.01 if threads == 1 else PAUSE), 0.01)
    return {n: t * 1e3 for n, t in times.items()} | {"torch / relay": times["torch"] / times["relay"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--only", default="", help="parts of names, divided by commas")
    parser.add_argument("--rounds", type=int, default=7)
    add_pieces(parser)
    add_out(parser)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    pieces = Pieces(args.more, args.limit)
    title = f"Convolutions and their gradients, {args.threads} thread(s)"
    table = Table(f"convolutions-{args.threads}", title, "ms", "convolution", ["relay", "torch", "torch / relay"])
    print(table.head())
    ratios: list[float] = []
    for shape in SHAPES:
        if not any(word in shape.name for word in args.only.split(",")):
            continue
        for batch in args.batch:
            for part in PARTS:
                case = f"{shape.name}, batch {batch}, {part}"
                now = partial(measure, shape, batch, part, args.threads, args.rounds)
                found = pieces.figures(f"{args.threads} {case}", now)
                if found is not None:
                    print(table.add(case, found), flush=True)
                    ratios.append(found["torch / relay"])
    if ratios:
        print(table.note(f"geometric mean of PyTorch's time over ours: {np.exp(np.mean(np.log(ratios))):.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
