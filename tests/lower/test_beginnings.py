"""Primitives that differ in where slices begin share a kernel, and the results are those of kernels of their own."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.options import Options
from tests.lower.support import operands, same

RNG = np.random.default_rng(5)
HEAD = '#[version = "0.0.5"]\n'


def rows(text: str, numbers: range, rest: str = "%h{n}") -> str:
    """A program of steps: ``text`` with the number of each, and of the one after it."""
    return " ".join(text.format(n=n, m=n + 1) for n in numbers) + " " + rest.format(n=numbers.stop)


# Program; how many kernels with a product it has (None: not counted).
PROGRAMS = {
    "a row of each step": (
        "def @main(%x: Tensor[(9, 5), float32], %h0: Tensor[(1, 5), float32]) {"
        + rows("let %h{m} = tanh(%h{n} * strided_slice(%x, begin=[{n}], end=[{m}]));", range(9))
        + "}",
        None,
    ),
    "products of rows": (
        "def @main(%x: Tensor[(6, 40), float32], %h0: Tensor[(1, 40), float32], %w: Tensor[(40, 40), float32]) {"
        + rows("let %h{m} = tanh(nn.dense(%h{n}, %w) + strided_slice(%x, begin=[{n}], end=[{m}]));", range(6))
        + "}",
        1,
    ),
    "a row twice, the first one, and one from the end": (
        "def @main(%x: Tensor[(6, 7), float32], %h0: Tensor[(1, 7), float32], %w: Tensor[(7, 7), float32]) {"
        + rows(
            "let %p{n} = strided_slice(%x, begin=[{n}], end=[{m}]); let %d{n} = nn.dense(%h{n}, %w);"
            "let %h{m} = tanh(%d{n} * %p{n} + strided_slice(%x, begin=[0], end=[1]) * %p{n}) + "
            "strided_slice(%x, begin=[-1], end=[6]);",
            range(6),
        )
        + "}",
        2,  # the first step reads the first row twice
    ),
    "columns of two axes, of rows whose number is known at run time": (
        "def @main[n: Dim](%x: Tensor[(n, 4, 64), float32], %h0: Tensor[(n, 1, 20), float32], %w: Tensor[(20, 20), float32]) {"
        + rows(
            "let %h{m} = tanh(nn.dense(%h{n}, %w) + strided_slice(%x, begin=[{n}, 8], end=[{m}, 28], axes=[1, 2]) +"
            " strided_slice(%x, begin=[{n}, {n}], end=[{m}, 4{n}], strides=[1, 2], axes=[1, 2]));",
            range(3),
        )
        + "}",
        1,
    ),
    "in a loop and a branch": (
        """def @go[n: Dim](%k: int64, %x: Tensor[(4, n, 8), float32], %h: Tensor[(1, n, 8), float32], %w: Tensor[(8, 8), float32])
            -> Tensor[(1, n, 8), float32] {
          if (%k == 0i64) { %h } else {
            let %a = tanh(nn.dense(%h, %w) + strided_slice(%x, begin=[1], end=[2]));
            let %b = if (%k > 3i64) { tanh(nn.dense(%a, %w) + strided_slice(%x, begin=[3], end=[4])) } else {
              tanh(nn.dense(%a, %w) + strided_slice(%x, begin=[0], end=[1])) };
            @go(%k - 1i64, %x, %b, %w)
          }
        }
        def @main[n: Dim](%x: Tensor[(4, n, 8), float32], %h: Tensor[(1, n, 8), float32], %w: Tensor[(8, 8), float32]) {
          @go(6i64, %x, %h, %w)
        }""",
        2,  # the row that all iterations share is cut before them
    ),
    "what differs otherwise stays apart": (
        "def @main(%x: Tensor[(6, 40), float32], %h0: Tensor[(1, 40), float32], %w: Tensor[(40, 40), float32]) {"
        "let %h1 = nn.dense(%h0, %w) + strided_slice(%x, begin=[1], end=[2]);"
        "let %h2 = nn.dense(%h1, %w) - strided_slice(%x, begin=[2], end=[3]);"
        "let %h3 = nn.dense(%h2, %w) + strided_slice(%x, begin=[3, 39], end=[4, -41], strides=[1, -1]); %h3 }",
        3,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_results_and_kernels(name: str, executor: str) -> None:
    text, expected = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    built = pipeline.build(module, Options(cache=False, executor=executor))
    if expected is not None:
        products = [k for k in built.plan.kernels if "dense" in k.kernel.name]
        assert len(products) == expected, [k.kernel.name for k in built.plan.kernels]
    exe = relay.Executable.from_bytes(built.image.to_bytes(), None)
    for n in (1, 3):
        given = operands(module, {"n": n}, RNG)
        same(exe(*given), relay.evaluate(module, *given))


def test_generated_slices() -> None:
    """Slices of one shape anywhere in tensors of three axes, several in each of a number of equal calls."""
    for _ in range(6):
        shape = tuple(int(d) for d in RNG.integers(3, 9, 3))
        lengths = [int(RNG.integers(1, d)) for d in shape]
        steps = [int(s) for s in RNG.integers(1, 3, 3)]
        cut = tuple(-(-n // s) for n, s in zip(lengths, steps, strict=True))
        count, lines = 5, []
        for n in range(count):
            parts = []
            for _ in range(2):
                begin = [int(RNG.integers(0, d - size + 1)) for d, size in zip(shape, lengths, strict=True)]
                end = [b + size for b, size in zip(begin, lengths, strict=True)]
                parts.append(f"strided_slice(%x, begin={begin}, end={end}, strides={steps})")
            lines.append(f"let %y{n} = sum(exp({parts[0]}) * %h - {parts[1]}, axis=[1]);")
        results = ", ".join(f"%y{n}" for n in range(count))
        text = f"{HEAD}def @main(%x: Tensor[{shape}, float32], %h: Tensor[{cut}, float32]) {{ {' '.join(lines)} ({results}) }}"
        module = relay.parse(text)
        given = operands(module, {"n": 1}, RNG)
        same(relay.compile(module, cache=False)(*given), relay.evaluate(module, *given))


def test_the_steps_of_a_gradient_share_their_kernels() -> None:
    """An unrolled recurrent network has as many kernels for twelve steps as for six, its gradient too."""
    counts = []
    for steps in (6, 12):
        text = (
            f"{HEAD}def @main(%x: Tensor[({steps}, 1, 8), float32], %h0: Tensor[(1, 16), float32], "
            "%w: Tensor[(16, 8), float32], %u: Tensor[(16, 16), float32]) {"
            + rows(
                "let %p{n} = nn.dense(reshape(strided_slice(%x, begin=[{n}], end=[{m}]), newshape=[1, 8]), %w);"
                "let %h{m} = tanh(%p{n} * nn.dense(%h{n}, %u) + %p{n});",
                range(steps),
                "sum(%h{n})",
            )
            + "}"
        )
        module = relay.value_and_grad(relay.parse(text), argnums=(2, 3))
        built = pipeline.build(module, Options(cache=False))
        counts.append(len(built.plan.kernels))
        given = operands(module, {"n": 1}, RNG)
        same(relay.Executable.from_bytes(built.image.to_bytes(), None)(*given), relay.evaluate(module, *given))
    assert counts[0] == counts[1], counts
