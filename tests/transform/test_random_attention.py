"""Attention drawn at random: layouts, shared heads, functions of scores, masks, spellings of softmax and weighed shares, of sizes that
often coincide. What is compiled means what the interpreter says, and so do its gradients.

How many programs, and from which number on, is `--fuzz-programs` and `--programs-from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import ml_dtypes
import numpy as np
import pytest

import relay
from relay.ir.module import Module
from relay.transform import DeadCode, FindSoftmax, FuseAttention, NameDims, Simplify
from tests.generator.compare import difference
from tests.transform.support import Array, operators, run, typed

SIZES = (1, 2, 3, 5, 8, 16, 17, 33)
MOST = {"b": 3, "h": 4}
TARGETS = ("cpu", "haswell", "generic", "cpu")


@dataclass(slots=True)
class Drawing:
    """A program under construction. Axes are letters: batch b, heads h, queries m, keys n, the depth d of queries and keys, and the
    columns e of values."""

    random: Random
    dtype: str = "float32"
    sizes: dict[str, int] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)
    params: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def chance(self, percent: int) -> bool:
        return self.random.random() * 100 < percent

    def size(self, letter: str) -> str:
        return letter if letter in self.symbols else str(self.sizes.get(letter, 1))

    def attribute(self, letter: str) -> str:
        return f"Dim[{letter}]" if letter in self.symbols else self.size(letter)

    def literal(self, value: float) -> str:
        return f"const({value}, {self.dtype})"

    def param(self, axes: str, dtype: str = "", scale: float = 0.5) -> str:
        """A parameter with these axes; a 1 has one element."""
        dtype = dtype or self.dtype
        draw = np.random.default_rng(self.random.randrange(1 << 30))
        drawn = draw.standard_normal([self.sizes.get(a, 1) for a in axes])
        kinds = {"bool": np.bool_, "bfloat16": ml_dtypes.bfloat16}
        made = drawn > -0.8 if dtype == "bool" else drawn * scale
        name = f"%p{len(self.params)}"
        dims = ", ".join(map(self.size, axes)) + ("," if len(axes) == 1 else "")
        self.params.append(f"{name}: Tensor[({dims}), {dtype}]")
        self.arrays.append(np.asarray(made, kinds.get(dtype, dtype)))
        return name

    def let(self, value: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"let {name} = {value};")
        return name

    def pick(self, options: Sequence[str]) -> str:
        return self.random.choice(options)

    def shuffled(self, axes: str) -> str:
        return "".join(self.random.sample(axes, len(axes)))

    def beside(self, axes: str, dtype: str = "", scale: float = 0.5) -> str:
        """A parameter that broadcasts to these axes."""
        own = "".join(a if self.chance(60) else "1" for a in axes)
        return self.param(own[self.random.choice([0, 0, 0, 1, len(own) - 1]) :], dtype, scale)

    def product(self, left: str, a: str, right: str, b: str, made: str) -> str:
        """A sum of products of two values, whose axes are given, with the axes ``made``."""
        if len(a) == len(b) == 3 and a[0] == b[0] == made[0] and self.chance(60):
            row, column = made[1], made[2]
            if row in a and column in b:
                flags = f"transpose_a={a[2] == row}, transpose_b={b[1] == column}"
                return self.let(f"nn.batch_matmul({left}, {right}, {flags})")
        if len(a) == len(b) == 2 and self.chance(60) and made[0] in a and made[1] in b:
            flags = f"transpose_a={a[1] == made[0]}, transpose_b={b[0] == made[1]}"
            return self.let(f"nn.matmul({left}, {right}, {flags})")
        if self.chance(30):
            left, a, right, b = right, b, left, a
        return self.let(f'einsum(({left}, {right}), equation="{a},{b}->{made}")')

    # -- the parts of attention

    def scored(self, scores: str, axes: str) -> str:
        """A step from scores to scores."""
        number, where = self.literal, self.pick(("a", "b"))
        match self.random.randrange(14):
            case 0 | 1:
                return self.let(f"{scores} * {number(0.3)}" if where == "a" else f"{scores} / {number(2.5)}")
            case 2 | 3:
                mask = self.beside(axes)
                return self.let(f"{scores} + {mask}" if where == "a" else f"{mask} + {scores}")
            case 4:
                return self.let(f"{scores} - {self.beside(axes)}")
            case 5 | 6:
                return self.hidden(scores, self.beside(axes, "bool"))
            case 7 | 8 | 9:
                return self.hidden(scores, self.near(axes))
            case 10:
                return self.let(f"{number(3.0)} * tanh({scores} / {number(3.0)})")
            case 11:
                return self.let(f"{scores} * {self.beside(axes, scale=1.0)}")
            case 12:
                rows, keys = self.places(axes)
                fall = self.let(f'cast({keys} - {rows}, dtype="{self.dtype}")')
                return self.let(f"{scores} + {fall} * {number(0.25)}")
            case _:
                return self.let(self.pick((f"nn.relu({scores})", f"clip({scores}, a_min=-0.5, a_max=0.7)")))

    def places(self, axes: str) -> tuple[str, str]:
        """The places of queries and keys among the keys, as they broadcast to the scores; the last query often belongs to the last key."""
        m, n = self.sizes["m"], self.sizes["n"]
        first = "0"
        if self.chance(50):
            first = "Dim[n - m]" if {"m", "n"} <= self.symbols else str(n - m) if "m" not in self.symbols else "0"
            first = "0" if "n" in self.symbols and "Dim" not in first else first
        stop = "Dim[n]" if "Dim" in first else str(int(first) + m) if "m" not in self.symbols else "Dim[m]"
        shapes = ("[-1, 1]", "[1, -1]") if axes.endswith("mn") else ("[1, -1]", "[-1, 1]")
        dtype = self.pick(("int32", "int64"))
        ends = ((first, stop), ("0", self.attribute("n")))
        rows, keys = (
            self.let(f'reshape(arange(start={a}, stop={b}, dtype="{dtype}"), newshape={shape})')
            for (a, b), shape in zip(ends, shapes, strict=True)
        )
        return rows, keys

    def near(self, axes: str) -> str:
        """A mask by the distance of query and key."""
        rows, keys = self.places(axes)
        width = f'cast({self.random.choice([1, 2, 7])}, dtype="int64")'
        rows, keys = (self.let(f'cast({x}, dtype="int64")') for x in (rows, keys))
        seen = {
            "causal": f"{keys} <= {rows}",
            "causal, the other way round": f"logical_not({keys} > {rows})",
            "window": f"logical_and({keys} <= {rows}, ({rows} - {keys}) < {width})",
            "both sides": f"abs({rows} - {keys}) <= {width}",
            "far": f"({rows} - {keys}) > {width}",
        }
        return self.let(seen[self.pick(tuple(seen))])

    def hidden(self, scores: str, seen: str) -> str:
        # Large numbers of 16 bits beside scores are rounded to what these are not.
        large = ("-30000", "-1e4") if self.dtype in ("float32", "float64") else ()
        least = self.literal(float(self.pick(("-inf", "-9", *large))))
        zero = self.literal(0.0)
        ways = [
            f"where({seen}, {scores}, {least})",
            f"where(logical_not({seen}), {least}, {scores})",
            f"{scores} + where({seen}, {zero}, {least})",
        ]
        return self.let(self.pick(ways))

    def softmax(self, scores: str, axis: int) -> str:
        if self.chance(60):
            return self.let(f"nn.softmax({scores}, axis={axis})")
        fall = self.let(f"{scores} - max({scores}, axis=[{axis}], keepdims=True)")
        weights = self.let(f"exp({fall})")
        total = f"sum({weights}, axis=[{axis}], keepdims=True)"
        return self.let(
            self.pick(
                (f"{weights} / {total}", f"{weights} * ({self.literal(1.0)} / {total})", f"divide({weights}, {total})")
            )
        )

    def weighed(self, shares: str, axes: str) -> str:
        match self.random.randrange(4):
            case 0:
                return self.let(f"{shares} * {self.beside(axes, scale=1.0)}")
            case 1:
                return self.let(f"where({self.beside(axes, 'bool')}, {shares}, {self.literal(0.0)})")
            case 2:
                return self.let(f"where({self.beside(axes, 'bool')}, {self.literal(0.0)}, {shares})")
            case _:
                return self.let(f"{shares} * {self.literal(1.25)}")

    def heads(self, name: str, axes: str) -> str:
        """Keys or values with these axes: sometimes with fewer heads, each of which is repeated."""
        count = self.sizes["h"]
        if "h" not in axes or "h" in self.symbols or count % 2 or not self.chance(30):
            return self.param(axes)
        self.sizes["g"] = count // 2
        return self.let(f"repeat({self.param(axes.replace('h', 'g'))}, repeats=2, axis={axes.index('h')})")


def drawn(seed: int, loss: bool = False) -> tuple[Module, list[Array]]:
    """The program of a seed and its arguments; with a ``loss`` a number is made of the result."""
    random = Random(seed)
    d = Drawing(random, "float32" if random.random() < 0.8 else random.choice(["float16", "bfloat16", "float64"]))
    lead = d.pick(("", "h", "h", "bh", "bh"))
    for axis in "bhmnde":
        d.sizes[axis] = random.choice([s for s in SIZES if s <= MOST.get(axis, 33)])
    if d.chance(40):
        d.sizes.update(dict.fromkeys("mnde", random.choice(SIZES)))
        d.sizes["h"] = min(MOST["h"], d.sizes["h"]) if d.chance(50) else min(MOST["h"], d.sizes["m"])
    d.symbols = {a for a in "bmn" if d.chance(40)} & set(lead + "mn")
    by_keys = d.chance(15)
    keys_lead = lead.replace("h", "") if d.chance(20) else lead
    values_lead = keys_lead if d.chance(80) else lead
    plain = d.chance(50)
    q, k, v = (axes if plain else d.shuffled(axes) for axes in (lead + "md", keys_lead + "nd", values_lead + "ne"))
    query = d.param(q)
    key = d.heads("k", k)
    value = d.heads("v", v)
    if d.chance(25):
        query = d.let(f"{query} * {d.literal(0.3)}")
    axes = lead + ("nm" if by_keys else "mn")
    scores = d.product(query, q, key, k, axes)
    if d.dtype in ("float16", "bfloat16") and d.chance(50):
        narrow, d.dtype = d.dtype, "float32"
        scores = d.let(f'cast({scores}, dtype="float32")')
    else:
        narrow = d.dtype
    for _ in range(random.choice([0, 1, 1, 2, 2, 3])):
        scores = d.scored(scores, axes)
    shares = d.softmax(scores, -2 if by_keys else len(axes) - 1)
    if narrow != d.dtype:
        d.dtype = narrow
        shares = d.let(f'cast({shares}, dtype="{narrow}")')
    if d.chance(30):
        shares = d.weighed(shares, axes)
    made = lead + "me" if plain else d.shuffled(lead + "me")
    result = d.product(shares, axes, value, v, made)
    if d.chance(30):
        result = d.let(f"tanh({result}) + {d.beside(made)}")
    if loss:
        result = d.let(f"mean(tanh({result}))")
    named = f"[{', '.join(f'{s}: Dim' for s in sorted(d.symbols))}]" if d.symbols else ""
    text = "\n".join([f"def @main{named}({', '.join(d.params)}) {{", *d.lines, result, "}"])
    return typed(text), d.arrays


@pytest.mark.programs(20)
def test_compiled_attention_means_what_was_written(seed: int) -> None:
    module, arrays = drawn(seed)
    exe = relay.compile(module, target=TARGETS[seed % len(TARGETS)], threads=1 + seed % 2, check_memory=seed % 5 == 0)
    found = difference(relay.evaluate(module, *arrays), exe(*arrays))
    assert found is None, f"{module.text()}\n{found}"


@pytest.mark.programs(5)
def test_gradients_of_attention(seed: int) -> None:
    module, arrays = drawn(seed, loss=True)
    floats = tuple(n for n, a in enumerate(arrays) if a.dtype != np.bool_)
    if arrays[0].dtype not in (np.float32, np.float64) or np.isnan(np.asarray(relay.evaluate(module, *arrays))).any():
        return  # of what sees no key attention has a gradient of its own
    gradient = relay.value_and_grad(module, argnums=floats)
    found = difference(relay.evaluate(gradient, *arrays), relay.compile(gradient)(*arrays))
    assert found is None, f"{module.text()}\n{found}"


def test_most_are_attention() -> None:
    count = 0
    for seed in range(60):
        after = run(drawn(seed)[0], NameDims(), Simplify(), FindSoftmax(), FuseAttention(), DeadCode())
        count += any("attention" in name for name in operators(after))
    assert count >= 30, count
