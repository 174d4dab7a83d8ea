"""Recurrent cells drawn at random: products by shared weights, gates, norms, attention over the batch and loops inside, as loops over any
number of steps and unrolled, for one batch size and for any. What is compiled, and its gradients, mean what the interpreter says.

How many cells, and from which number on, is `--fuzz-programs` and `--programs-from`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from entries import leaves

import relay

Array = npt.NDArray[np.float32]
# Small ones, those that registers and panels divide, and such that they do not.
WIDTHS = (12, 16, 64, 128, 150)
BATCHES = (1, 2, 5, 16)
INSIDE = """
def @inside[n: Dim, h: Dim](%i: int32, %x: Tensor[(n, h), float32], %w: Tensor[(h, h), float32]) -> Tensor[(n, h), float32] {
  if (%i < 1) { %x } else { @inside(%i - 1, tanh(nn.dense(%x, %w)) + 0.5f * %x, %w) }
}"""


@dataclass(slots=True)
class Drawing:
    """A cell under construction: values of (batch, width), the input and the states first."""

    random: Random
    width: int
    batch: int
    values: list[str]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def weight(self, *shape: int) -> str:
        alike = [name for name, s in self.weights.items() if s == shape]
        if alike and self.random.random() < 0.3:
            return f"%{self.random.choice(alike)}"
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return f"%{name}"

    def value(self) -> str:
        return self.random.choice(self.values[-6:] if self.random.random() < 0.6 else self.values)

    def bind(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"let {name} = {text};")
        return name

    def maybe(self, text: Callable[[], str]) -> str:
        return text() if self.random.random() < 0.5 else ""

    def products(self, rows: int) -> str:
        def one() -> str:
            return f"nn.dense({self.value()}, {self.weight(rows, self.width)})"

        return one() + self.maybe(lambda: f" + {one()}") + self.maybe(lambda: f" + {self.weight(rows)}")

    def step(self) -> list[str]:
        """New values."""
        a, b, c, h = self.value(), self.value(), self.value(), self.width
        match self.random.randrange(11):
            case 0 | 1 | 2:
                made = self.bind(self.products(h))
                return [self.bind(f"{self.random.choice(['tanh', 'sigmoid', 'nn.relu', 'sin'])}({made})")]
            case 3 | 4:
                gates = self.random.randrange(2, 5)
                parts = self.bind(f"split({self.products(gates * h)}, indices_or_sections={gates}, axis=1)")
                return [self.bind(f"{self.random.choice(['tanh', 'sigmoid'])}({parts}.{n})") for n in range(gates)]
            case 5:
                return [self.bind(f"tanh(nn.dense(concatenate(({a}, {b}), axis=1), {self.weight(h, 2 * h)}))")]
            case 6:
                return [self.bind(f"nn.layer_norm({a}, {self.weight(h)}, {self.weight(h)})")]
            case 7:
                shares = self.bind(f"nn.softmax(nn.dense({a}, {b}))")
                return [self.bind(f"nn.dense({shares}, transpose({c}))")]
            case 8:
                chosen = f"where({a} > 0f, {b}, 0.5f * {c})", f"maximum({a}, {b} - 0.1f)", f"nn.softmax({a})"
                total = f"{a} * sum({b}, axis=[1], keepdims=True) * 0.1f"
                return [self.bind(self.random.choice([*chosen, total]))]
            case 9:
                return [self.bind(f"@inside({self.random.randrange(4)}, {a}, {self.weight(h, h)})")]
            case _:
                return [self.bind(f"{a} * {b} + (1f - {a}) * {c}")]


@dataclass(frozen=True, slots=True)
class Cell:
    """``@main`` takes ``args``, of which ``weights`` are the last ones."""

    text: str
    args: list[Array]
    weights: int


def cell(seed: int) -> Cell:
    random = Random(seed)
    states = [f"%s{n}" for n in range(random.randrange(1, 4))]
    d = Drawing(random, random.choice(WIDTHS), random.choice(BATCHES), ["%x", *states])
    for _ in range(random.randrange(4, 12)):
        d.values += d.step()
    ends = []
    for state in states:
        new = random.choice(d.values[1 + len(states) :])
        ends.append(d.bind(f"tanh({new})" if random.random() < 0.5 else f"0.5f * {new} + 0.3f * {state}"))
    steps, unrolled = random.randrange(1, 5), random.random() < 0.4
    batch, dims = ("b", "[t: Dim, b: Dim]") if not unrolled and random.random() < 0.5 else (str(d.batch), "[t: Dim]")
    rows = f"Tensor[({batch}, {d.width}), float32]"
    weights = {name: f"Tensor[({', '.join(map(str, shape))},), float32]" for name, shape in d.weights.items()}
    params = ", ".join([*(f"{s}: {rows}" for s in states), *(f"%{name}: {ty}" for name, ty in weights.items())])
    given = ", ".join(f"%{name}" for name in weights)
    made = f"({', '.join([rows] * len(states))},)"
    code, last = "\n    ".join(d.lines), f"({', '.join(ends)},)"
    total = " + ".join(f"sum(%r.{n})" for n in range(len(states)))
    if unrolled:
        calls, now = [], states
        for t in range(steps):
            calls.append(f"let %r = @step(take(%xs, {t}, axis=0), {', '.join([*now, given])});")
            now = [f"%r.{n}" for n in range(len(states))]
        text = (
            f"def @step(%x: {rows}, {params}) -> {made} {{\n    {code}\n    {last} }}\n"
            f"def @main(%xs: Tensor[({steps}, {d.batch}, {d.width}), float32], {params}) {{ {' '.join(calls)} {total} }}"
        )
    else:
        xs = f"%xs: Tensor[(t, {batch}, {d.width}), float32]"
        text = (
            f"def @loop{dims}(%i: int64, {xs}, {params}) -> {made} {{\n"
            f"  if (%i >= Dim[t]) {{ ({', '.join(states)},) }} else {{\n    let %x = take(%xs, %i, axis=0);\n    {code}\n"
            f"    @loop(%i + 1i64, %xs, {', '.join([*ends, given])}) }} }}\n"
            f"def @main{dims}({xs}, {params}) {{ let %r = @loop(0i64, %xs, {', '.join([*states, given])}); {total} }}"
        )
    numbers = np.random.default_rng(seed)
    shapes: list[tuple[int, ...]] = [(steps, d.batch, d.width), *[(d.batch, d.width)] * len(states)]
    args = [numbers.standard_normal(s).astype(np.float32) * 0.5 for s in shapes]
    args += [(numbers.standard_normal(s) * 0.8 / s[-1] ** 0.5).astype(np.float32) for s in d.weights.values()]
    return Cell(f'#[version = "0.0.5"]{INSIDE}\n{text}\n', args, len(d.weights))


@pytest.mark.programs(12)
def test_what_is_compiled_means_what_the_interpreter_says(seed: int) -> None:
    drawn = cell(seed)
    module, count = relay.parse(drawn.text), len(drawn.args)
    by = range(count) if seed % 3 == 0 or not drawn.weights else range(count - drawn.weights, count)
    gradient = relay.value_and_grad(module, tuple(by))
    expected = leaves(relay.evaluate(gradient, *drawn.args))
    found = leaves(relay.compile(gradient, cache=False, threads=1 + seed % 2)(*drawn.args))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-3, atol=3e-3 * float(np.abs(b).max()) + 1e-6, err_msg=drawn.text)
    if drawn.weights:
        names = [p.name for p in module.functions["main"].params]
        inputs = drawn.args[: -drawn.weights]
        fixed = module.bind(dict(zip(names[len(inputs) :], drawn.args[len(inputs) :], strict=True)))
        value = relay.compile(fixed, cache=False)(*inputs)
        np.testing.assert_allclose(float(value), float(expected[0]), rtol=2e-3, atol=2e-3, err_msg=drawn.text)
