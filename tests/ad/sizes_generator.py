"""Differentiable programs at random whose tensors have sizes that nobody knows: loops and recursion whose state grows by
concatenation, is cut, held by references, data and functions, and is given to helpers that calculate with its size.

``@main(%m, %x, %l, %k)`` takes a matrix of some rows, a row, a list of rows and an integer, and returns a matrix of unknown size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.ad.generator import Example
from tests.generator.source import Choices, Scope, Seeded, extended

MATRIX = "Tensor[(?, 2), float64]"
ROW = "Tensor[(1, 2), float64]"
TYPES = {"M": MATRIX, "X": ROW, "L": f"List[{ROW}]"}
# What takes a matrix keeps or makes no more than six rows, so that no program grows without bounds.
HEAD = f"""#[version = "0.0.5"]
import prelude
type Both {{ Both({MATRIX}, fn({MATRIX}) -> {ROW}) }}
def @size[n: Dim](%m: Tensor[(n, 2), float64]) -> float64 {{ cast(Dim[n], dtype="float64") * 0.1f64 }}
def @scaled[n: Dim](%m: Tensor[(n, 2), float64]) -> {MATRIX} {{ %m / cast(Dim[n + 1], dtype="float64") }}
def @mean[n: Dim](%m: Tensor[(n, 2), float64]) -> {ROW} {{ sum(%m, axis=[0], keepdims=True) / cast(Dim[n + 1], dtype="float64") }}
def @cut[n: Dim](%m: Tensor[(n, 2), float64]) -> {MATRIX} {{
  if (Dim[n] > 6i64) {{ strided_slice(%m, begin=[Dim[n - 6]], end=[Dim[n]]) }} else {{ %m }} }}
def @half[n: Dim](%m: Tensor[(n, 2), float64]) -> {MATRIX} {{ strided_slice(%m, begin=[Dim[n // 2]], end=[Dim[n]]) }}
def @seen[n: Dim](%x: {ROW}, %m: Tensor[(n, 2), float64]) -> {ROW} {{ nn.matmul(tanh(nn.dense(%x, %m)), tanh(%m)) }}
def @asked(%b: Both) -> {ROW} {{ match (%b) {{ Both(%m, %f) => %f(%m) }} }}
"""


@dataclass(slots=True)
class Builder:
    """One program: an expression of a kind, matrices (``M``) or rows (``X``), from what is in scope."""

    choices: Choices
    budget: int = 24
    names: int = 0
    functions: list[str] = field(default_factory=list)

    def name(self, kind: str) -> str:
        self.names += 1
        return f"%{kind.lower()}{self.names}"

    def make(self, kind: str, scope: Scope, depth: int) -> str:
        self.budget -= 1
        if depth <= 0 or self.budget <= 0:
            return self.choices.pick(scope[kind])
        return self.choices.pick(_MAKERS[kind])(self, scope, depth - 1)


Maker = Callable[[Builder, Scope, int], str]


def inside(matrix: str, row: str, *counts: str) -> Scope:
    """The scope of a global function with these parameters."""
    return {"M": [matrix], "X": [row], "L": [f"Cons({row}, Cons({row}, Nil))", "Nil"], "K": [*counts]}


def _operator(b: Builder, s: Scope, d: int) -> str:
    return b.choices.pick(["tanh({})", "sin({})", "@scaled({})", "@half({})"]).format(b.make("M", s, d))


def _longer(b: Builder, s: Scope, d: int) -> str:
    parts = b.choices.pick([("M", "X"), ("M", "X"), ("X", "M"), ("M", "M")])
    return f"@cut(concatenate(({', '.join(b.make(p, s, d) for p in parts)})))"


def _weighed(b: Builder, s: Scope, d: int) -> str:
    return f"({b.make('M', s, d)} * {b.make('X', s, d)} * @size({b.make('M', s, d)}))"


def _choice(b: Builder, s: Scope, d: int) -> str:
    test = b.choices.pick(["@size({}) > 0.35f64", "sum({}) > 0.1f64"]).format(b.make("M", s, d))
    return f"if ({test}) {{ {b.make('M', s, d)} }} else {{ {b.make('M', s, d)} }}"


def _let(b: Builder, s: Scope, d: int) -> str:
    kind = b.choices.pick("MX")
    v = b.name(kind)
    said = b.choices.pick([f": {TYPES[kind]}", ""])
    return f"{{ let {v}{said} = {b.make(kind, s, d)}; {b.make('M', extended(s, kind, v), d)} }}"


def _fold(b: Builder, s: Scope, d: int) -> str:
    a, v = b.name("M"), b.name("X")
    inner = extended(extended(s, "M", a), "X", v)
    step = f"fn ({a}: {MATRIX}, {v}: {ROW}) -> {MATRIX} {{ {b.make('M', inner, d)} }}"
    return f"@foldl({step}, {b.make('M', s, d)}, {b.choices.pick(s['L'])})"


def _loop(b: Builder, s: Scope, d: int) -> str:
    """A global function that calls itself last, of a matrix and a row; its size may be declared."""
    name = f"@loop{b.names}"
    b.names += 1
    inner = inside("%m", "%x", "%k")
    dims, size = b.choices.pick([("", "?"), ("", "?"), ("[n: Dim]", "n")])
    then, row = b.make("M", inner, min(d, 2)), b.make("X", inner, 1)
    grown = b.choices.pick([f"@cut({then})", "concatenate((%m, %x))"])
    end = b.choices.pick(["%m", "concatenate((@scaled(%m), %x))"])
    b.functions.append(
        f"def {name}{dims}(%k: int32, %m: Tensor[({size}, 2), float64], %x: {ROW}) -> {MATRIX} {{\n"
        f"  if (%k <= 0) {{ {end} }} else {{ {name}(%k - 1, {grown}, tanh({row})) }}\n}}\n"
    )
    return f"@cut({name}({b.choices.pick([*s['K'], '2', '3'])}, {b.make('M', s, d)}, {b.make('X', s, d)}))"


def _around(b: Builder, s: Scope, d: int) -> str:
    """A loop of a row that reads a matrix which stays the same."""
    name = f"@hops{b.names}"
    b.names += 1
    dims, size = b.choices.pick([("", "?"), ("[n: Dim]", "n")])
    step = b.choices.pick(["tanh(%x) + @seen(%x, %m)", "sin(%x) * @size(%m) + @mean(%m)"])
    b.functions.append(
        f"def {name}{dims}(%k: int32, %m: Tensor[({size}, 2), float64], %x: {ROW}) -> {ROW} {{\n"
        f"  if (%k <= 0) {{ %x }} else {{ {name}(%k - 1, %m, {step}) }}\n}}\n"
    )
    return f"{name}({b.choices.pick([*s['K'], '3'])}, {b.make('M', s, d)}, {b.make('X', s, d)})"


def _recursion(b: Builder, s: Scope, d: int) -> str:
    """A global recursive function over a list of rows, of a matrix, or of a matrix and a row together."""
    name = f"@walk{b.names}"
    b.names += 1
    then = b.make("M", inside("%m", "%h"), min(d, 2))
    around = b.choices.pick(["{}", "tanh({})", "concatenate(({}, %h))", "@scaled({})"])
    b.functions.append(
        f"def {name}(%l: List[{ROW}], %m: {MATRIX}) -> {MATRIX} {{\n"
        f"  match (%l) {{ Nil => %m, Cons(%h, %t) => {around.format(f'{name}(%t, @cut({then}))')} }}\n}}\n"
    )
    return f"@cut({name}({b.choices.pick(s['L'])}, {b.make('M', s, d)}))"


def _pair(b: Builder, s: Scope, d: int) -> str:
    """A loop whose state is a tuple."""
    name = f"@pairs{b.names}"
    b.names += 1
    inner = inside("%s.0", "%s.1", "%k")
    then, row = b.make("M", inner, min(d, 2)), b.make("X", inner, 1)
    b.functions.append(
        f"def {name}(%k: int32, %s: ({MATRIX}, {ROW})) -> ({MATRIX}, {ROW}) {{\n"
        f"  if (%k <= 0) {{ %s }} else {{ {name}(%k - 1, (@cut({then}), tanh({row}))) }}\n}}\n"
    )
    return f"({name}({b.choices.pick([*s['K'], '2'])}, ({b.make('M', s, d)}, {b.make('X', s, d)}))).0"


def _reference(b: Builder, s: Scope, d: int) -> str:
    """A reference that a loop writes."""
    r, f, i = b.name("R"), b.name("F"), b.name("I")
    first = b.choices.pick([b.make("M", s, d), b.make("X", s, d)])
    inner = extended(s, "M", f"!{r}")
    row, then = b.make("X", inner, d), b.make("M", inner, d)
    write = f"{r} := @cut({b.choices.pick([f'concatenate((!{r}, {row}))', then])})"
    loop = f"fn ({i}: int32) -> () {{ if ({i} <= 0) {{ () }} else {{ {write}; {f}({i} - 1) }} }}"
    return f"{{ let {r}: Ref[{MATRIX}] = ref({first}); let {f} = {loop}; {f}({b.choices.pick([*s['K'], '2'])}); !{r} }}"


def _mean(b: Builder, s: Scope, d: int) -> str:
    return f"@mean({b.make('M', s, d)})"


def _seen(b: Builder, s: Scope, d: int) -> str:
    return f"tanh(@seen({b.make('X', s, d)}, {b.make('M', s, d)}))"


def _sized(b: Builder, s: Scope, d: int) -> str:
    return f"sin({b.make('X', s, d)} * @size({b.make('M', s, d)}))"


def _stored(b: Builder, s: Scope, d: int) -> str:
    """A function of a matrix, stored beside one."""
    v = b.name("M")
    return f"@asked(Both({b.make('M', s, d)}, fn ({v}: {MATRIX}) -> {ROW} {{ {b.make('X', extended(s, 'M', v), d)} }}))"


_MAKERS: dict[str, list[Maker]] = {
    "M": [_operator, _operator, _longer, _longer, _weighed, _choice, _let, _fold, _loop, _loop, _recursion, _pair, _reference],
    "X": [_mean, _seen, _sized, _around, _around, _stored],
}  # fmt: skip


def example(seed: int) -> Example:
    """A program with arguments."""
    b = Builder(Choices(Seeded(seed)))
    scope: Scope = {"M": ["%m"], "X": ["%x"], "L": ["%l"], "K": ["%k"]}
    body = (
        f"concatenate(({b.choices.pick([_loop, _recursion, _pair, _reference])(b, scope, 3)}, {b.make('X', scope, 3)}))"
    )
    size = b.choices.pick(["?", "n"])
    dims = "[n: Dim]" if size == "n" else ""
    main = f"def @main{dims}(%m: Tensor[({size}, 2), float64], %x: {ROW}, %l: {TYPES['L']}, %k: int32) -> {MATRIX} {{\n  {body}\n}}\n"
    random = np.random.default_rng(seed)
    m, x = random.normal(size=(b.choices.between(1, 3), 2)) * 0.5, random.normal(size=(1, 2)) * 0.5
    rows = [random.normal(size=(1, 2)) * 0.5 for _ in range(b.choices.between(0, 3))]
    return Example(HEAD + "".join(b.functions) + main, (m, x, rows, np.int32(b.choices.between(0, 3))))
