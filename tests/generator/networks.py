"""Generated networks of matrix products by constant weights, for tests of reduced precision.

Weights are shared, transposed and read outside of products; rows are given or symbolic; depths and columns are not only what
registers and panels divide. Narrow weights stand in the program itself, so that the interpreter computes with the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

import relay
from relay.ir.dtypes import numpy_dtype
from relay.ir.module import Module
from tests.generator.source import Choices, Seeded

ROWS = (0, 1, 2, 3, 5, 8, 13, 15, 16, 17, 24, 31, 32, 33, 40, 48, 49, 64, 65, 97, 130)
_DEPTHS = (1, 2, 3, 30, 32, 33, 34, 50, 63, 64, 66, 96, 98, 130)
_ACTIVATIONS = (
    "{}", "nn.relu({})", "tanh({})", "nn.gelu({})", "sigmoid({})", "nn.softmax({})", "{} * 0.5f", "clip({}, a_min=-1.0, a_max=1.0)",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """``@main`` takes one float32 matrix of ``depth`` columns, of ``rows`` rows (None: any number)."""

    module: Module
    rows: int | None
    depth: int


@dataclass(slots=True, eq=False)
class _Builder:
    choices: Choices
    arrays: npt.NDArray[np.float32]
    lines: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    weights: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def bind(self, expression: str) -> str:
        self.lines.append(f"let %v{len(self.lines)} = {expression};")
        return f"%v{len(self.lines) - 1}"

    def constant(self, shape: tuple[int, ...], dtype: str) -> str:
        """A weight, often one of the same shape that the network has already."""
        same = [
            n
            for n, w in self.weights.items()
            if w.shape == shape and (dtype == "float32") == (self.dtypes[n] == "float32")
        ]
        if same and self.choices.chance(60):
            return self.choices.pick(same)
        numbers = np.resize(np.roll(self.arrays, self.choices.between(0, 4000)), shape)
        made = np.clip(np.round(numbers * 40), -127, 127) if dtype == "int8" else numbers / np.sqrt(max(shape))
        name = f"w{len(self.weights)}"
        self.weights[name] = made.astype(numpy_dtype(dtype))
        self.dtypes[name] = dtype
        sizes = "".join(f"{n}, " for n in shape)
        self.parameters[name] = f"%{name}: Tensor[({sizes}), {dtype}]"
        return name

    def product(self, left: str, depth: int, columns: int) -> str:
        transposed = self.choices.chance(50)
        shape = (columns, depth) if transposed else (depth, columns)
        name = self.constant(shape, self.choices.pick(("bfloat16", "bfloat16", "bfloat16", "int8")))
        data = left if self.dtypes[name] == "int8" else f'cast({left}, dtype="bfloat16")'
        # Sums of int8 weights are made as small as those of the others.
        scale = f" * {0.025 / np.sqrt(max(shape)):.6f}f" if self.dtypes[name] == "int8" else ""
        if transposed and self.choices.chance(50):
            return f'nn.dense({data}, %{name}, out_dtype="float32"){scale}'
        return f'nn.matmul({data}, %{name}, transpose_b={transposed}, out_dtype="float32"){scale}'

    def step(self, x: str, depth: int) -> tuple[str, int]:
        """One more value from a value and its columns."""
        columns = self.choices.between(1, 70) if self.choices.chance(80) else self.choices.between(71, 200)
        product = self.product
        match self.choices.between(0, 7):
            case 0:
                other = self.choices.pick(("+", "-", "*"))
                return self.bind(f"{product(x, depth, columns)} {other} {product(x, depth, columns)}"), columns
            case 1:
                parts = [self.bind(product(x, depth, n)) for n in (columns, 9)]
                return self.bind(f"concatenate(({parts[0]}, {parts[1]}), axis=1)"), columns + 9
            case 2:
                inner = self.bind(f"nn.relu({product(x, depth, columns)})")
                return self.bind(f"{product(inner, columns, depth)} + {x}"), depth
            case 3:
                first = self.choices.between(0, depth - 1)
                part = f"strided_slice({x}, begin=[{first}], end=[{depth}], strides=[1], axes=[1])"
                return self.bind(product(part, depth - first, columns)), columns
            case 4:
                ahead = self.bind(f"expand_dims({x}, axis=0)")
                both = self.bind(f"concatenate(({ahead}, tanh({ahead})), axis=0)")
                return self.bind(f"sum({product(both, depth, columns)}, axis=[0])"), columns
            case 5 if self.weights:
                weight = self.choices.pick(sorted(self.weights))
                return self.bind(f'{x} + sum(cast(%{weight}, dtype="float32")) * 0.001f'), depth
            case _:
                bias = f" + %{self.constant((columns,), 'float32')}" if self.choices.chance(50) else ""
                value = f"({product(x, depth, columns)}{bias})"
                return self.bind(self.choices.pick(_ACTIVATIONS).format(value)), columns


def network(seed: int) -> Network:
    """The network of a seed."""
    choices = Choices(Seeded(seed))
    builder = _Builder(choices, np.random.default_rng(seed).standard_normal(5000).astype(np.float32))
    rows = choices.pick(ROWS) if choices.chance(25) else None
    depth = choices.pick(_DEPTHS)
    values = [("%x", depth)]
    for _ in range(choices.between(1, 4)):
        values.append(builder.step(*choices.pick(values[-2:])))
    results = values[-1][0] if choices.chance(60) else f"({values[-1][0]}, {choices.pick(values)[0]})"
    parameters = ", ".join(
        (f"%x: Tensor[({'n' if rows is None else rows}, {depth}), float32]", *builder.parameters.values())
    )
    head = f"def @main{'[n: Dim]' if rows is None else ''}({parameters})"
    text = "\n  ".join((f'#[version = "0.0.5"]\n{head} {{', *builder.lines, f"{results}\n}}"))
    return Network(relay.parse(text).bind(builder.weights), rows, depth)
