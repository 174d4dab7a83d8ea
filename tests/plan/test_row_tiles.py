"""Sums of which several are in registers at once: lines of all lengths, numbers of channels, dtypes and groups."""

from __future__ import annotations

import numpy as np
import pytest

import relay

# Channels, groups, height, width, window, stride.
SHAPES = [
    (6, 6, 14, 14, 3, 1),
    (4, 4, 9, 28, 3, 2),
    (8, 2, 10, 13, 3, 1),
    (12, 3, 7, 16, 1, 1),
    (3, 3, 6, 112, 3, 1),
    (2, 2, 20, 70, 5, 1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_grouped_convolutions_and_their_gradients(shape: tuple[int, ...], dtype: str) -> None:
    channels, groups, height, width, window, stride = shape
    out = ((height + 2 - window) // stride + 1, (width + 2 - window) // stride + 1)
    attrs = f"groups={groups}, padding=[1, 1], strides=[{stride}, {stride}]"
    operands = ((2, channels, height, width), (channels, channels // groups, window, window), (2, channels, *out))
    params = ", ".join(f"%{n}: Tensor[{s}, {dtype}]" for n, s in zip("xwg", operands, strict=True))
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(s).astype(dtype) for s in operands]
    tolerance = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
    for call in (f"nn.relu(nn.conv2d(%x, %w, {attrs}) + %g)", f"nn.conv2d.vjp1(%x, %w, %g, {attrs})"):
        program = relay.parse(f'#[version = "0.0.5"]\ndef @main({params}) {{ {call} }}')
        found, wanted = relay.compile(program)(*given), np.asarray(relay.evaluate(program, *given))
        far = np.abs(np.asarray(found).astype("float64") - wanted.astype("float64")).max()
        assert far <= tolerance * np.abs(wanted).max()
