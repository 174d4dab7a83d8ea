"""Layouts of images by measurement: pools and separable convolutions compiled by the model and with `tune=True`, in turns.

python benchmarks/layouts.py [--rounds 9]
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from turns import medians

import relay


def pool(channels: int, side: int, size: int, stride: int, kind: str = "max") -> str:
    """A pool of an image, and what follows it element by element."""
    window = f"pool_size=({size}, {size}), strides=({stride}, {stride}), padding=({size // 2}, {size // 2})"
    return f"""#[version = "0.0.5"]
def @main(%x: Tensor[(1, {channels}, {side}, {side}), float32]) {{ nn.relu(nn.{kind}_pool2d(%x, {window})) }}"""


def separable(channels: int, side: int, size: int, stride: int) -> str:
    """A convolution of each channel by itself between two products."""
    window = f"groups={channels}, padding=({size // 2}, {size // 2}), strides=({stride}, {stride})"
    return f"""#[version = "0.0.5"]
def @main(%x: Tensor[(1, {channels}, {side}, {side}), float32], %a: Tensor[({channels}, {channels}, 1, 1), float32],
    %b: Tensor[({channels}, 1, {size}, {size}), float32], %c: Tensor[({channels}, {channels}, 1, 1), float32]) {{
  let %y = nn.relu(nn.conv2d(%x, %a));
  nn.conv2d(nn.relu(nn.conv2d(%y, %b, {window})), %c) }}"""


CASES = {
    "max pool 3 x 3 by 1, 256 x 14 x 14": pool(256, 14, 3, 1),
    "max pool 3 x 3 by 2, 64 x 112 x 112": pool(64, 112, 3, 2),
    "average pool 3 x 3 by 1, 192 x 28 x 28": pool(192, 28, 3, 1, "avg"),
    "average pool 5 x 5 by 2, 512 x 14 x 14": pool(512, 14, 5, 2, "avg"),
    "separable 3 x 3 by 2, 128 x 28 x 28": separable(128, 28, 3, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    for name, text in CASES.items():
        module = relay.parse(text)
        types: list[Any] = [p.ty for p in module.function("main").params]
        arguments = [rng.standard_normal(t.shape).astype("float32") for t in types]
        compiled = {how: relay.compile(module, threads=1, tune=how == "tuned") for how in ("model", "tuned")}
        first, second = (np.asarray(run(*arguments)) for run in compiled.values())
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
        calls = {how: partial(run, *arguments) for how, run in compiled.items()}
        times = medians(calls, given.rounds, {}, turn=0.02)
        ratio = times["model"] / times["tuned"]
        print(f"{name:40} model {times['model'] * 1e3:.3f} ms, tuned {times['tuned'] * 1e3:.3f} ms, {ratio:.2f} times")


if __name__ == "__main__":
    main()
