"""Programs over lists of rows and lists of lists of them, at random, as text: folds, maps, filters and recursion inside each other,
lists that are put together, cut and taken apart, and steps whose slopes may be infinite (`x / sum(x * x)` of a row of zeros).

``@main(%l, %m, %b, %w, %u, %z)`` takes a list, a list of lists, a row, two matrices and a row of zeros, and returns a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.generator.source import Choices, Scope, extended

ROW = "Tensor[(1, h), float64]"
MATRIX = "Tensor[(h, h), float64]"
SHARED = f"%w: {MATRIX}, %u: {MATRIX}, %z: {ROW}"


@dataclass(slots=True)
class Builder:
    """One program. In scope are names of rows (X), lists (L) and lists of lists (LL)."""

    choices: Choices
    budget: int = 14
    names: int = 0
    functions: list[str] = field(default_factory=list)

    def name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def row(self, scope: Scope, depth: int) -> str:
        self.budget -= 1
        if depth <= 0 or self.budget <= 0:
            return self.choices.pick(scope["X"])
        return self.choices.pick(_ROWS)(self, scope, depth - 1)

    def list_of_rows(self, scope: Scope, depth: int) -> str:
        self.budget -= 1
        if depth <= 0 or self.budget <= 0:
            return self.choices.pick(scope["L"])
        return self.choices.pick(_LISTS)(self, scope, depth - 1)


Maker = Callable[[Builder, Scope, int], str]


def _operator(b: Builder, s: Scope, d: int) -> str:
    form = b.choices.pick(
        ["tanh({0})", "sigmoid({0})", "tanh(nn.dense({0}, %w))", "tanh(nn.dense({0}, %u))", "({0} + {1})"]
    )
    return form.format(b.row(s, d), b.row(s, 0))


def _arithmetic(b: Builder, s: Scope, d: int) -> str:
    return b.choices.pick(["({} + {})", "({} - {})", "({} * {})"]).format(b.row(s, d), b.row(s, d))


def _steep(b: Builder, s: Scope, d: int) -> str:
    form = b.choices.pick(
        ["sqrt(abs({0}))", "({0} / {1})", "nn.l2_normalize({0}, axis=[-1])", "({0} / sum({1} * {1}))"]
    )
    return form.format(b.row(s, d), b.row(s, d))


def _fold(b: Builder, s: Scope, d: int) -> str:
    a, x = b.name(), b.name()
    step = b.row(extended(s, "X", a, x), d)
    given = b.choices.pick(["({0} + {1})", "tanh({1})", "tanh({0} * {1})", "maximum({0}, {1})"]).format(a, step)
    first, items = b.choices.pick(["%z", b.row(s, 0)]), b.list_of_rows(s, d)
    if b.choices.chance(70):
        return f"@foldl(fn ({a}: {ROW}, {x}: {ROW}) -> {ROW} {{ {given} }}, {first}, {items})"
    return f"@foldr(fn ({x}: {ROW}, {a}: {ROW}) -> {ROW} {{ {given} }}, {first}, {items})"


def _fold_of_lists(b: Builder, s: Scope, d: int) -> str:
    a, x = b.name(), b.name()
    step = b.row(extended(extended(s, "X", a), "L", x), d)
    given = b.choices.pick(["({0} + {1})", "tanh({0} + {1})", "({0} * {1})"]).format(a, step)
    return f"@foldl(fn ({a}: {ROW}, {x}: List[{ROW}]) -> {ROW} {{ {given} }}, {b.row(s, 0)}, {b.choices.pick(s['LL'])})"


def _by_length(b: Builder, s: Scope, d: int) -> str:
    return f'({b.row(s, d)} / cast(@length({b.choices.pick(s["L"])}), dtype="float64"))'


def _match(b: Builder, s: Scope, d: int) -> str:
    x, rest = b.name(), b.name()
    inner = extended(extended(s, "X", x), "L", rest)
    return f"match ({b.list_of_rows(s, d)}) {{ Cons({x}, {rest}) => {b.row(inner, d)}, Nil => {b.row(s, d)} }}"


def _let(b: Builder, s: Scope, d: int) -> str:
    v = b.name()
    return f"{{ let {v} = {b.row(s, d)}; {b.row(extended(s, 'X', v), d)} }}"


def _choice(b: Builder, s: Scope, d: int) -> str:
    return f"if (sum({b.row(s, d)}) > 0.1f64) {{ {b.row(s, d)} }} else {{ {b.row(s, d)} }}"


def _recursion(b: Builder, s: Scope, d: int) -> str:
    """A function of the program over a list; what it hands down may change."""
    name = f"@walk{b.names}"
    b.names += 1
    step = b.row({"X": ["%x", "%r", "%q"], "L": ["%t"], "LL": ["Cons(%t, Nil)"]}, min(d, 1))
    down, last = b.choices.pick(["%q", "tanh(%q + %x)"]), b.choices.pick(["%z", "%q"])
    b.functions.append(
        f"def {name}[h: Dim](%l: List[{ROW}], %q: {ROW}, {SHARED}) -> {ROW} {{\n"
        f"  match (%l) {{ Nil => {last}, Cons(%x, %t) => {{ let %r = {name}(%t, {down}, %w, %u, %z); {step} }} }}\n}}\n"
    )
    return f"{name}({b.list_of_rows(s, d)}, {b.row(s, 0)}, %w, %u, %z)"


def _map(b: Builder, s: Scope, d: int) -> str:
    x = b.name()
    return f"@map(fn ({x}: {ROW}) -> {ROW} {{ {b.row(extended(s, 'X', x), d)} }}, {b.list_of_rows(s, d)})"


def _map_of_lists(b: Builder, s: Scope, d: int) -> str:
    x = b.name()
    return f"@map(fn ({x}: List[{ROW}]) -> {ROW} {{ {b.row(extended(s, 'L', x), d)} }}, {b.choices.pick(s['LL'])})"


def _filter(b: Builder, s: Scope, d: int) -> str:
    x = b.name()
    return f"@filter(fn ({x}: {ROW}) -> bool {{ sum({x}) > 0f64 }}, {b.list_of_rows(s, d)})"


_ROWS: list[Maker] = [
    _operator, _operator, _arithmetic, _steep, _fold, _fold, _fold, _fold_of_lists, _fold_of_lists, _fold_of_lists,
    _by_length, _match, _let, _choice, _recursion,
]  # fmt: skip
_LISTS: list[Maker] = [
    _map, _map, _map, _map_of_lists, _filter,
    lambda b, s, d: f"@rev({b.list_of_rows(s, d)})",
    lambda b, s, d: f"Cons({b.row(s, d)}, {b.list_of_rows(s, d)})",
    lambda b, s, d: f"@concat({b.list_of_rows(s, d)}, {b.list_of_rows(s, d)})",
]  # fmt: skip


def over_lists(choices: Choices) -> str:
    """A program whose outermost step folds a list or a list of lists."""
    b = Builder(choices)
    made = choices.pick([_fold, _fold_of_lists, _recursion])(b, {"X": ["%z", "%b"], "L": ["%l"], "LL": ["%m"]}, 4)
    return (
        f'#[version = "0.0.5"]\nimport prelude\n{"".join(b.functions)}'
        f"def @main[h: Dim](%l: List[{ROW}], %m: List[List[{ROW}]], %b: {ROW}, {SHARED}) -> float64 {{\n  sum(sin({made}))\n}}\n"
    )
