"""Programs whose sizes are not known beside the same programs compiled for these sizes: what it costs not to know them.

Every case is one line: an operator (or its gradient) and its operands' shapes in letters. It is compiled once with the letters as
dimension variables (those that ``keep`` has are numbers), and once for each of some sizes with these written in; both are called in
turns with the same arrays. Figures are medians in microseconds, of one thread, and ``ratio`` the median of what the one took over the
other, turn by turn. Results have to agree.

    python benchmarks/sizes.py [--only REGEX] [--rounds 15] [--above 1.05]
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import relay

# Seconds of a turn at least.
_TURN = 5e-4


@dataclass(frozen=True, slots=True)
class Case:
    """``shapes``: operands by their letters and numbers, of float32, or of integers below a size (``name:letter``). ``keep``: letters that
    are numbers both times; ``grad``: of which operand the gradient is taken."""

    name: str
    shapes: Mapping[str, str]
    body: str
    letters: str
    sizes: Sequence[tuple[int, ...]]
    keep: str = ""
    grad: int | None = None

    def program(self, sizes: Mapping[str, int], known: bool) -> str:
        unknown = [] if known else [c for c in self.letters if c not in self.keep]
        value = {c: c if c in unknown else str(n) for c, n in sizes.items()}
        operands = ", ".join(
            f"%{name.split(':')[0]}: Tensor[({', '.join(value.get(s, s) for s in shape.split())},), "
            f"{'int32' if ':' in name else 'float32'}]"
            for name, shape in self.shapes.items()
        )
        body = re.sub(r"<([a-z])>", lambda m: value[m[1]], self.body)
        dims = f"[{', '.join(f'{c}: Dim' for c in unknown)}]" if unknown else ""
        result = body if self.grad is None else f"sum(sin({body}))"
        return f'#[version = "0.0.5"]\ndef @main{dims}({operands}) {{ {result} }}'

    def compiled(self, sizes: Mapping[str, int], known: bool) -> Any:
        module = relay.parse(self.program(sizes, known))
        return relay.compile(module if self.grad is None else relay.grad(module, argnums=self.grad), threads=1)

    def arrays(self, sizes: Mapping[str, int]) -> Iterator[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        for name, shape in self.shapes.items():
            dims = tuple(sizes[s] if s in sizes else int(s) for s in shape.split())
            _, _, below = name.partition(":")
            yield rng.integers(0, sizes[below], dims, np.int32) if below else rng.standard_normal(dims, np.float32)


_IMAGES = [(1, 16, 56, 56), (8, 32, 14, 14)]
_X, _XY, _ROWS = {"x": "n c h w"}, {"x": "a b", "y": "b"}, {"x": "a b"}
_POOL2, _POOL3 = "pool_size=[2, 2], strides=[2, 2]", "pool_size=[3, 3], strides=[2, 2], padding=[1, 1]"
_CONV = {"x": "n c h w", "w": "o c 3 3"}
_RESIZE = 'image.resize2d(%x, size=[100, 100], layout="NCHW")'
_NORM, _NORM_SHAPES = "nn.layer_norm(%x, %g, %b)", {"x": "a b", "g": "b", "b": "b"}
_ATTENTION = "nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) * 0.125f), %v, transpose_b=False)"
_APART = "(expand_dims(%x, axis=1) - expand_dims(%y, axis=0))"
_CDIST = f"sqrt(sum({_APART} * {_APART}, axis=[2]) + 1e-6f)"

CASES = [
    Case("max pool 2", _X, f"nn.max_pool2d(%x, {_POOL2})", "nchw", _IMAGES),
    Case("max pool 3", _X, f"nn.max_pool2d(%x, {_POOL3})", "nchw", _IMAGES),
    Case("max pool 3, width known", _X, f"nn.max_pool2d(%x, {_POOL3})", "nchw", _IMAGES, keep="w"),
    Case("max pool 2, gradient", _X, f"nn.max_pool2d(%x, {_POOL2})", "nchw", _IMAGES, grad=0),
    Case("max pool 3, gradient", _X, f"nn.max_pool2d(%x, {_POOL3})", "nchw", _IMAGES, grad=0),
    Case("mean pool 2", _X, f"nn.avg_pool2d(%x, {_POOL2})", "nchw", _IMAGES),
    Case("mean pool 2, gradient", _X, f"nn.avg_pool2d(%x, {_POOL2})", "nchw", _IMAGES, grad=0),
    Case("mean of an image", _X, "mean(%x, axis=[2, 3])", "nchw", _IMAGES),
    Case("resize", _X, _RESIZE, "nchw", _IMAGES),
    Case("resize, gradient", _X, _RESIZE, "nchw", _IMAGES, grad=0),
    Case("upsampling", _X, "nn.upsampling(%x, scale_h=2, scale_w=2)", "nchw", _IMAGES),
    Case(
        "depthwise", {"x": "n c h w", "w": "c 1 3 3"}, "nn.conv2d(%x, %w, padding=[1, 1], groups=<c>)", "nchw",
        [*_IMAGES, (1, 64, 28, 28), (1, 64, 7, 7)],
    ),
    Case("convolution", _CONV, "nn.conv2d(%x, %w, padding=[1, 1])", "nchwo", [(1, 32, 28, 28, 32), (4, 32, 14, 14, 64)]),
    Case(
        "convolution, channels known", _CONV, "nn.conv2d(%x, %w, padding=[1, 1])", "nchwo",
        [(1, 32, 28, 28, 32), (4, 32, 14, 14, 64)], keep="co",
    ),
    Case("instance norm", {**_X, "g": "c", "b": "c"}, "nn.instance_norm(%x, %g, %b)", "nchw", _IMAGES),
    Case("sum, axis in the middle", {"x": "a b c"}, "sum(%x, axis=[1])", "abc", [(1000, 7, 64), (64, 100, 64), (2000, 7, 5)]),
    Case("sum, last axis", _ROWS, "sum(%x, axis=[1])", "ab", [(1024, 7), (1024, 64), (256, 1000)]),
    Case("sum, first axis", _ROWS, "sum(%x, axis=[0])", "ab", [(1024, 7), (1024, 64), (7, 1000)]),
    Case("variance", _ROWS, "variance(%x, axis=[1])", "ab", [(1024, 7), (256, 300)]),
    Case("argmax", _ROWS, "argmax(%x, axis=[1])", "ab", [(1024, 10), (256, 100), (64, 1000)]),
    Case("argmax, first axis", _ROWS, "argmax(%x, axis=[0])", "ab", [(100, 256)]),
    Case("softmax", _ROWS, "nn.softmax(%x)", "ab", [(1024, 10), (256, 64), (256, 300)]),
    Case("softmax, gradient", _ROWS, "nn.softmax(%x)", "ab", [(1024, 10), (256, 300)], grad=0),
    Case("layer norm", _NORM_SHAPES, _NORM, "ab", [(1024, 16), (256, 64), (256, 300), (128, 768)]),
    Case("layer norm, width known", _NORM_SHAPES, _NORM, "ab", [(1024, 16), (256, 300), (128, 768)], keep="b"),
    Case("layer norm, gradient", _NORM_SHAPES, _NORM, "ab", [(1024, 16), (256, 300)], grad=0),
    Case("cumsum", _ROWS, "cumsum(%x, axis=1)", "ab", [(1024, 7), (256, 300)]),
    Case("relu", _ROWS, "nn.relu(%x)", "ab", [(1024, 7), (256, 300)]),
    Case("bias", _XY, "%x + %y", "ab", [(1024, 7), (256, 300), (2048, 32)]),
    Case("concatenate", {"x": "a b", "y": "a c"}, "concatenate((%x, %y), axis=1)", "abc", [(1024, 7, 5), (256, 300, 200)]),
    Case("transpose", _ROWS, "transpose(%x)", "ab", [(1024, 7), (256, 300)]),
    Case("heads", {"x": "a b c d"}, "transpose(%x, axes=[0, 2, 1, 3])", "abcd", [(4, 50, 8, 32), (4, 100, 8, 7)]),
    Case("pad", {"x": "a b c"}, "nn.pad(%x, pad_width=[[0, 0], [1, 1], [1, 1]])", "abc", [(16, 56, 56), (64, 14, 14)]),
    Case("slice", _ROWS, "strided_slice(%x, begin=[0, 1], end=[<a>, <b>])", "ab", [(1024, 8), (256, 300)]),
    Case("take", {"x": "v d", "i:v": "a"}, "take(%x, %i, axis=0)", "vda", [(1000, 7, 500), (1000, 300, 100)]),
    Case("take and sum", {"x": "v d", "i:v": "a k"}, "sum(take(%x, %i, axis=0), axis=[1])", "vdak", [(1000, 64, 100, 8)]),
    Case("product", {"x": "a k", "w": "k b"}, "nn.matmul(%x, %w)", "akb", [(6, 6, 6), (7, 64, 30), (100, 300, 50), (256, 256, 256)]),
    Case(
        "products of a batch", {"x": "n a k", "w": "n k b"}, "nn.batch_matmul(%x, %w, transpose_b=False)", "nakb",
        [(100, 6, 6, 6), (50, 16, 16, 16), (12, 64, 64, 64)],
    ),
    Case("distances", {"x": "a k", "y": "b k"}, _CDIST, "abk", [(64, 100, 16), (100, 64, 3)]),
    Case("distances, gradient", {"x": "a k", "y": "b k"}, _CDIST, "abk", [(64, 100, 16), (100, 64, 3)], grad=0),
    Case("attention", {"q": "h t d", "k": "h s d", "v": "h s d"}, _ATTENTION, "htsd", [(8, 32, 32, 64), (4, 128, 128, 32)]),
    Case("attention, width known", {"q": "h t d", "k": "h s d", "v": "h s d"}, _ATTENTION, "htsd", [(4, 128, 128, 32)], keep="hd"),
    Case("attention, gradient", {"q": "h t d", "k": "h s d", "v": "h s d"}, _ATTENTION, "htsd", [(8, 32, 32, 64)], grad=0),
]  # fmt: skip


def seconds(run: Any, arrays: Sequence[np.ndarray[Any, Any]], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        run(*arrays)
    return (time.perf_counter() - begin) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression: cases with such names and sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--above", type=float, default=0.0, help="rows from this ratio on, and below its reciprocal, only"
    )
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    print(f"{'us a call':44s}{'known':>10s}{'unknown':>10s}{'ratio':>8s}")
    for case in CASES:
        general: Any = None
        for numbers in case.sizes:
            label = f"{case.name} {'x'.join(map(str, numbers))}"
            if not re.search(given.only, label):
                continue
            sizes = dict(zip(case.letters, numbers, strict=True))
            if general is None or case.keep:
                general = case.compiled(sizes, known=False)
            fixed, arrays = case.compiled(sizes, known=True), list(case.arrays(sizes))
            np.testing.assert_allclose(np.asarray(general(*arrays)), np.asarray(fixed(*arrays)), rtol=1e-3, atol=1e-4)
            calls = max(1, int(_TURN / seconds(fixed, arrays, 3)))
            times = [(seconds(fixed, arrays, calls), seconds(general, arrays, calls)) for _ in range(given.rounds)]
            ratio = float(np.median([b / a for a, b in times]))
            if not given.above or ratio >= given.above or ratio * given.above <= 1:
                a, b = (1e6 * float(np.median(column)) for column in zip(*times, strict=True))
                print(f"{label:44s}{a:10.1f}{b:10.1f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
