"""Differentiable programs at random, as text: closures, recursion, algebraic data, matches, references, higher-order functions and
gradients inside, over float64 vectors of three elements and scalars, with values that stay tame.

``@main(%x, %y, %l, %n)`` takes a vector, a scalar, a list of vectors and an integer, and returns a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.generator.source import Choices, Drawn, Scope, Seeded, extended

VECTOR = "Tensor[(3,), float64]"
TYPES = {
    "T": VECTOR,
    "S": "float64",
    "L": f"List[{VECTOR}]",
    "F": f"fn({VECTOR}) -> {VECTOR}",
    "P": f"({VECTOR}, float64)",
    "R": f"Ref[{VECTOR}]",
    "W": "Wood",
    "U": "Tool",
}
HEAD = f"""#[version = "0.0.5"]
import prelude
type Wood {{ Leaf({VECTOR}), Branch(Wood, float64, Wood) }}
type Tool {{ Plain(fn({VECTOR}) -> {VECTOR}), Sharp(fn({VECTOR}) -> {VECTOR}, {VECTOR}) }}
def @used(%t: Tool, %x: {VECTOR}) -> {VECTOR} {{
  match (%t) {{ Plain(%f) => %f(%x), Sharp(%f, %v) => %f(%x * %v) }}
}}
def @twice(%f: fn({VECTOR}) -> {VECTOR}, %x: {VECTOR}) -> {VECTOR} {{ %f(%f(%x)) }}
def @scaled(%s: {VECTOR}) {{ fn (%x: {VECTOR}) -> {VECTOR} {{ sin(%x * %s) }} }}
def @grown(%w: Wood) -> {VECTOR} {{
  match (%w) {{ Leaf(%v) => tanh(%v), Branch(%l, %s, %r) => @grown(%l) * %s + sin(@grown(%r)) }}
}}
"""


@dataclass(slots=True)
class Builder:
    """One program. ``gradients`` says how deep ``grad`` may stand inside."""

    choices: Choices
    gradients: int = 1
    budget: int = 60
    names: int = 0
    functions: list[str] = field(default_factory=list)

    def name(self, kind: str) -> str:
        self.names += 1
        return f"%{kind.lower()}{self.names}"

    def reserved(self, kind: str) -> tuple[str, int]:
        """The name of a new global function, and its place in ``functions``: in front of those that it is made of."""
        self.functions.append("")
        return f"{kind}{len(self.functions) - 1}", len(self.functions) - 1

    def make(self, kind: str, scope: Scope, depth: int) -> str:
        """An expression of a kind."""
        self.budget -= 1
        known = scope.get(kind, [])
        if known and (depth <= 0 or self.budget <= 0 or (depth < 4 and self.choices.chance(20))):
            return known[-1] if self.choices.chance(60) else self.choices.pick(known)
        if depth <= 0 or self.budget <= 0:
            return self.simple(kind, scope)
        return self.choices.pick(_MAKERS[kind])(self, scope, depth - 1)

    def simple(self, kind: str, scope: Scope) -> str:
        vector = self.choices.pick(scope["T"])
        match kind:
            case "T":
                return vector
            case "S":
                return f"sum({vector})"
            case "L":
                return f"Cons({vector}, Nil)"
            case "F":
                return f"@scaled({vector})"
            case "P":
                return f"({vector}, 0.5f64)"
            case "W":
                return f"Leaf({vector})"
            case "U":
                return f"Plain(@scaled({vector}))"
            case _:
                return f"ref({vector})"

    def condition(self, scope: Scope, depth: int) -> str:
        if self.choices.chance(50):
            return f"%n > {self.choices.between(0, 3)}"
        return f"sum({self.make('T', scope, depth)}) > 0.1f64"

    def function(self, scope: Scope, depth: int) -> str:
        v = self.name("T")
        inner = {**scope, "T": [*scope["T"], v]}
        return f"fn ({v}: {VECTOR}) -> {VECTOR} {{ {self.make('T', inner, depth)} }}"


Maker = Callable[[Builder, Scope, int], str]


def _unary(b: Builder, s: Scope, d: int) -> str:
    op = b.choices.pick(["sin({})", "cos({})", "tanh({})", "sigmoid({})", "-({})", "exp(sin({}))", "tanh({}) * 0.5f64"])
    return op.format(b.make("T", s, d))


def _binary(b: Builder, s: Scope, d: int) -> str:
    op = b.choices.pick(["({0} + {1})", "({0} - {1})", "tanh({0} * {1})", "({0} / ({1} * {1} + 2f64))"])
    return op.format(b.make("T", s, d), b.make("T", s, d))


def _broadcast(b: Builder, s: Scope, d: int) -> str:
    return f"sin({b.make('T', s, d)} * {b.make('S', s, d)})"


def _choice(b: Builder, s: Scope, d: int) -> str:
    return f"if ({b.condition(s, d)}) {{ {b.make('T', s, d)} }} else {{ {b.make('T', s, d)} }}"


def _let(b: Builder, s: Scope, d: int) -> str:
    kind = b.choices.pick("TSLFPRWU")
    v = b.name(kind)
    return f"{{ let {v} = {b.make(kind, s, d)}; {b.make('T', extended(s, kind, v), d)} }}"


def _call(b: Builder, s: Scope, d: int) -> str:
    f = b.name("F")
    return f"{{ let {f} = {b.make('F', s, d)}; {f}({b.make('T', s, d)}) }}"


def _twice(b: Builder, s: Scope, d: int) -> str:
    return f"@twice({b.make('F', s, d)}, {b.make('T', s, d)})"


def _match_list(b: Builder, s: Scope, d: int) -> str:
    h, t = b.name("T"), b.name("L")
    inner = extended(extended(s, "T", h), "L", t)
    return f"match ({b.make('L', s, d)}) {{ Cons({h}, {t}) => {b.make('T', inner, d)}, Nil => {b.make('T', s, d)}, }}"


def _match_pair(b: Builder, s: Scope, d: int) -> str:
    v, w = b.name("T"), b.name("S")
    inner = extended(extended(s, "T", v), "S", w)
    return f"match ({b.make('P', s, d)}) {{ ({v}, {w}) => {b.make('T', inner, d)}, }}"


def _fold(b: Builder, s: Scope, d: int) -> str:
    a, v = b.name("T"), b.name("T")
    inner = extended(extended(s, "T", a), "T", v)
    step = f"fn ({a}: {VECTOR}, {v}: {VECTOR}) -> {VECTOR} {{ tanh({b.make('T', inner, d)}) }}"
    return f"@foldl({step}, {b.make('T', s, d)}, {b.make('L', s, d)})"


def _recursion(b: Builder, s: Scope, d: int) -> str:
    """A global recursive function of a vector and a count."""
    name, place = b.reserved("@loop")
    inner: Scope = {"T": ["%x"]}
    body = b.make("T", extended(inner, "T", "%r"), d)
    last = b.make("T", inner, d)
    b.functions[place] = (
        f"def {name}(%x: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n < 1) {{ {last} }} else {{ let %r = {name}(sin(%x), %n - 1); tanh({body}) }}\n}}\n"
    )
    return f"{name}({b.make('T', s, d)}, {b.choices.pick(['%n', '2', '3'])})"


def _several_calls(b: Builder, s: Scope, d: int) -> str:
    """A global function that calls itself last in several places, with one or two vectors as its state."""
    name, place = b.reserved("@ways")
    within = min(d, 1)
    inner: Scope = {"T": ["%x", "%z"]}
    first, second, last = (b.make("T", inner, within) for _ in range(3))
    test = b.choices.pick(["sum(%x) > 0.1f64", "%n > 2"])
    b.functions[place] = (
        f"def {name}(%x: {VECTOR}, %z: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n < 1) {{ {last} }} else {{ if ({test}) {{ {name}(tanh({first}), %x, %n - 1) }} "
        f"else {{ {name}(sin(%x), tanh({second}), %n - 2) }} }}\n}}\n"
    )
    return f"{name}({b.make('T', s, d)}, {b.make('T', s, d)}, {b.choices.pick(['%n', '4'])})"


def _branch_in_a_loop(b: Builder, s: Scope, d: int) -> str:
    """A loop whose step has a branch, and a pair as its state."""
    name, place = b.reserved("@steps")
    within = min(d, 1)
    inner: Scope = {"T": ["%s.0", "%s.1", "%w"]}
    test, first, second = (
        b.choices.pick(["sum(%s.0) > 0.1f64", "%n > 1"]),
        b.make("T", inner, within),
        b.make("T", inner, within),
    )
    step = f"if ({test}) {{ {first} }} else {{ {second} }}"
    b.functions[place] = (
        f"def {name}(%s: ({VECTOR}, {VECTOR}), %w: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n > 0) {{ let %v = {step}; {name}((tanh(%v), %s.0), %w, %n - 1) }} else {{ %s.0 + sin(%s.1) }}\n}}\n"
    )
    return f"{name}(({b.make('T', s, d)}, {b.make('T', s, d)}), {b.make('T', s, d)}, {b.choices.pick(['%n', '4'])})"


def _nested_loops(b: Builder, s: Scope, d: int) -> str:
    """A loop in whose step another loop runs, as often as the outer one says."""
    name, place = b.reserved("@outer")
    within = min(d, 1)
    step, inside = b.make("T", {"T": ["%x", "%w"]}, within), b.make("T", {"T": ["%x", "%w"]}, within)
    b.functions[place] = (
        f"def {name}i(%x: {VECTOR}, %w: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n > 0) {{ {name}i(tanh({inside}), %w, %n - 1) }} else {{ %x }}\n}}\n"
        f"def {name}(%x: {VECTOR}, %w: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n > 0) {{ {name}({name}i(sin({step}), %w, %n), %w, %n - 1) }} else {{ %x * %w }}\n}}\n"
    )
    return f"{name}({b.make('T', s, d)}, {b.make('T', s, d)}, {b.choices.pick(['%n', '2'])})"


def _mutual(b: Builder, s: Scope, d: int) -> str:
    """Two functions that call each other."""
    name, place = b.reserved("@turn")
    within = min(d, 1)
    inner: Scope = {"T": ["%x"]}
    first, second = b.make("T", inner, within), b.make("T", inner, within)
    more = b.choices.pick(["{0}b(tanh({1}), %n - 1)", "sin({0}b(tanh({1}), %n - 1)) + %x"]).format(name, first)
    b.functions[place] = (
        f"def {name}(%x: {VECTOR}, %n: int32) -> {VECTOR} {{\n  if (%n < 1) {{ %x }} else {{ {more} }}\n}}\n"
        f"def {name}b(%x: {VECTOR}, %n: int32) -> {VECTOR} {{\n"
        f"  if (%n < 1) {{ cos(%x) }} else {{ {name}(tanh({second}), %n - 1) }}\n}}\n"
    )
    return f"{name}({b.make('T', s, d)}, {b.choices.pick(['%n', '3'])})"


def _used(b: Builder, s: Scope, d: int) -> str:
    """A function that is stored in data."""
    return f"@used({b.make('U', s, d)}, {b.make('T', s, d)})"


def _local_recursion(b: Builder, s: Scope, d: int) -> str:
    f, v, k = b.name("G"), b.name("T"), b.name("K")
    inner = extended(s, "T", v)
    body = b.make("T", inner, d)
    return (
        f"{{ let {f} = fn ({v}: {VECTOR}, {k}: int32) -> {VECTOR} {{ if ({k} < 1) {{ {v} }} else "
        f"{{ sin({f}({body}, {k} - 1)) }} }}; {f}({b.make('T', s, d)}, {b.choices.pick(['%n', '2'])}) }}"
    )


def _reference(b: Builder, s: Scope, d: int) -> str:
    r = b.name("R")
    inner = extended(s, "R", r)
    write = f"{r} := tanh(!{r} * {b.make('T', inner, d)});"
    if b.choices.chance(40):
        write = f"if ({b.condition(s, d)}) {{ {r} := tanh(!{r} + {b.make('T', inner, d)}); () }} else {{ () }};"
    elif b.choices.chance(50):
        f = b.name("F")
        write = f"let {f} = fn () {{ {r} := sin(!{r}) + {b.make('T', inner, d)}; () }}; {f}(); {f}();"
    return f"{{ let {r} = ref({b.make('T', s, d)}); {write} {b.make('T', inner, d)} + !{r} }}"


def _read(b: Builder, s: Scope, d: int) -> str:
    return f"!{b.choices.pick(s['R'])}" if s.get("R") else _unary(b, s, d)


def _grown(b: Builder, s: Scope, d: int) -> str:
    return f"@grown({b.make('W', s, d)})"


def _gradient(b: Builder, s: Scope, d: int) -> str:
    """A gradient inside, of a function that captures anything, functions and references included, or of one that is chosen."""
    if b.gradients <= 0:
        return _binary(b, s, d)
    b.gradients -= 1
    under = b.make("F", s, d) if b.choices.chance(30) else b.function(s, d)
    out = f"grad({under})({b.make('T', s, d)}).1.0"
    if b.choices.chance(30):
        out = f"jvp({under})({b.make('T', s, d)}, {b.make('T', s, d)}).1"
    b.gradients += 1
    return f"tanh({out})"


def _entering(b: Builder, s: Scope, d: int) -> str:
    """Gradients of a function that reads and writes a reference of its surroundings, or is chosen there."""
    if b.gradients <= 0:
        return _binary(b, s, d)
    b.gradients -= 1
    r, f, v = b.name("R"), b.name("F"), b.name("T")
    inner = extended(extended(s, "R", r), "T", v)
    write = f"{r} := tanh(!{r} * {b.make('T', inner, d)});"
    under = f"fn ({v}: {VECTOR}) -> {VECTOR} {{ {write} {b.make('T', inner, d)} * sin(!{r}) }}"
    if b.choices.chance(50):
        under = f"if ({b.condition(s, d)}) {{ {under} }} else {{ {b.make('F', s, d)} }}"
    first = f"grad({f})({b.make('T', s, d)}).1.0"
    second = b.choices.pick([f"jvp({f})({b.make('T', s, d)}, {b.make('T', s, d)}).1", first, f"{f}(!{r})"])
    b.gradients += 1
    return f"{{ let {r} = ref({b.make('T', s, d)}); let {f} = {under}; tanh({first}) + tanh({second}) * !{r} }}"


def _projection(b: Builder, s: Scope, d: int) -> str:
    return f"({b.make('P', s, d)}).0"


_MAKERS: dict[str, list[Maker]] = {
    "T": [
        _unary, _unary, _binary, _binary, _broadcast, _choice, _let, _let, _call, _twice, _match_list, _match_pair, _fold,
        _recursion, _several_calls, _branch_in_a_loop, _nested_loops, _mutual, _used, _local_recursion,
        _reference, _read, _grown, _gradient, _entering, _projection,
    ],
    "S": [
        lambda b, s, d: f"sum({b.make('T', s, d)})",
        lambda b, s, d: f"sin({b.make('S', s, d)} + {b.make('S', s, d)})",
        lambda b, s, d: f"({b.make('P', s, d)}).1",
        lambda b, s, d: "0.7f64",
    ],
    "L": [
        lambda b, s, d: f"Cons({b.make('T', s, d)}, {b.make('L', s, d)})",
        lambda b, s, d: f"Cons({b.make('T', s, d)}, {b.make('L', s, d)})",
        lambda b, s, d: f"@map({b.make('F', s, d)}, {b.make('L', s, d)})",
        lambda b, s, d: f"@rev({b.make('L', s, d)})",
    ],
    "F": [
        lambda b, s, d: b.function(s, d),
        lambda b, s, d: b.function(s, d),
        lambda b, s, d: f"@scaled({b.make('T', s, d)})",
        lambda b, s, d: f"@compose({b.make('F', s, d)}, {b.make('F', s, d)})",
        lambda b, s, d: f"if ({b.condition(s, d)}) {{ {b.make('F', s, d)} }} else {{ {b.make('F', s, d)} }}",
    ],
    "U": [
        lambda b, s, d: f"Plain({b.make('F', s, d)})",
        lambda b, s, d: f"Sharp({b.make('F', s, d)}, {b.make('T', s, d)})",
    ],
    "P": [lambda b, s, d: f"({b.make('T', s, d)}, {b.make('S', s, d)})"],
    "R": [lambda b, s, d: f"ref({b.make('T', s, d)})"],
    "W": [
        lambda b, s, d: f"Leaf({b.make('T', s, d)})",
        lambda b, s, d: f"Branch({b.make('W', s, d)}, {b.make('S', s, d)}, {b.make('W', s, d)})",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """A program and the arguments of one run."""

    text: str
    args: tuple[object, ...]


def build(choices: Choices, gradients: int = 1) -> Example:
    b = Builder(choices, gradients)
    scope: Scope = {"T": ["%x"], "S": ["%y"], "L": ["%l"]}
    body = b.make("T", scope, choices.between(4, 7))
    main = f"def @main(%x: {VECTOR}, %y: float64, %l: {TYPES['L']}, %n: int32) -> {VECTOR} {{\n  {body}\n}}\n"
    random = np.random.default_rng(choices.between(0, 1000))
    args = (
        random.normal(size=3) * 0.7,
        np.float64(random.normal() * 0.7),
        [random.normal(size=3) * 0.7 for _ in range(choices.between(0, 3))],
        np.int32(choices.between(0, 3)),
    )
    return Example(HEAD + "".join(b.functions) + main, args)


def example(seed: int, gradients: int = 1) -> Example:
    """The program of a seed."""
    return build(Choices(Seeded(seed)), gradients)


def drawn(data: bytes) -> Example:
    """The program of hypothesis's bytes."""
    return build(Choices(Drawn(data)))
