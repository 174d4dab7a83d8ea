"""Recursive programs over data types that are drawn as well, as text, and values for them.

One to three types that may hold each other in every way a field can: as they are, beside a label, in lists, in options. One function
goes through each of them, and they call each other. What a clause computes is put together from whatever its fields give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relay.ir.module import Module
from tests.generator.source import Choices

LABELS = 9  # rows of the table that labels are looked up in
TAGS = ("Red", "Green", "Blue")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a constructor: what it is, and the number of the type in it where there is one."""

    kind: str  # word, vector, label, score, tag; child, labelled, list, labelled list, option
    of: int = 0


LEAVES = ("word", "vector", "label", "score", "tag")
PARTS = ("child", "child", "child", "labelled", "list", "list", "labelled list", "option")
RESULTS = ("state", "state", "pair", "scored", "noted")


@dataclass(slots=True)
class Recursion:
    """A drawn program. `types[i]` holds the fields of each constructor of type `Ti`; the first one has no parts."""

    choices: Choices
    dtype: str
    width: int
    words: int
    types: list[list[list[Field]]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    down: str = "none"  # what is handed down: nothing, a state as it is, one that changes, a number that changes
    decides: bool = False  # whether clauses may have an `if` on a number of the structure
    text: str = ""
    loss: str = ""  # the same program with a number as its result
    roots: list[str] = field(default_factory=list)  # the types of the structures that `@main` takes

    # Types

    @property
    def state(self) -> str:
        return f"Tensor[(1, {self.width}), {self.dtype}]"

    def literal(self, value: float) -> str:
        return f"{value}f" if self.dtype == "float32" else f"{value}f64"

    def type_of(self, f: Field) -> str:
        child = f"T{f.of}"
        return {
            "word": f"Tensor[(1, {self.words}), {self.dtype}]",
            "vector": f"Tensor[({self.width},), {self.dtype}]",
            "label": "int32",
            "score": self.dtype,
            "tag": "Tag",
            "child": child,
            "labelled": f"({child}, {self.dtype})",
            "list": f"List[{child}]",
            "labelled list": f"List[({child}, {self.dtype})]",
            "option": f"Option[{child}]",
        }[f.kind]

    def type_of_result(self, kind: str) -> str:
        s = self.state
        return {"state": s, "pair": f"({s}, {s})", "scored": f"({s}, {self.dtype})", "noted": f"({s}, Note)"}[kind]

    def result_type(self, n: int) -> str:
        return self.type_of_result(self.results[n])

    def weights(self) -> dict[str, tuple[int, ...]]:
        h, d = self.width, self.words
        return {"table": (LABELS, h), "wd": (h, d), "w": (h, h), "w2": (h, 2 * h), "b": (h,), "zero": (1, h)}

    def parameters(self) -> str:
        return ", ".join(f"%{n}: Tensor[({', '.join(map(str, s))},), {self.dtype}]" for n, s in self.weights().items())

    @property
    def handed_down(self) -> str:
        """The name of the parameter that comes from above."""
        return {"none": "", "number": "%depth"}.get(self.down, "%down")

    def inherited(self) -> str:
        types = {"%down": self.state, "%depth": self.dtype}
        return f"{self.handed_down}: {types[self.handed_down]}, " if self.handed_down else ""

    # The program

    def draw(self) -> None:
        c = self.choices
        count = c.between(1, 3)
        self.types = [self._constructors(count) for _ in range(count)]
        self.results = [c.pick(RESULTS) for _ in range(count)]
        self.down = c.pick(("none", "none", "as it is", "state", "number"))
        self.decides = c.chance(10)
        parts = ['#[version = "0.0.5"]', "import prelude", f"type Tag {{ {', '.join(TAGS)}, }}"]
        parts.append(f"type Note {{ Mark({self.state}), Under({self.state}, Note), Both(Note, {self.dtype}, Note), }}")
        for n, constructors in enumerate(self.types):
            made = [
                f"C{n}{k}({', '.join(map(self.type_of, fs))})" if fs else f"C{n}{k}"
                for k, fs in enumerate(constructors)
            ]
            parts.append(f"type T{n} {{ {', '.join(made)}, }}")
        parts += [self._function(n) for n in range(count)]
        parts += [self._over_list(n) for n in range(count) if f"@all{n}(" in "\n".join(parts)]
        shared = "\n".join(parts)
        body, kind = self._body()
        result = self.type_of_result(kind)
        self.text = f"{shared}\n{self._entry('main', result, body)}"
        whole, loss = self._entry("whole", result, body), self._entry("main", self.dtype, self._loss(kind))
        self.loss = f"{shared}\n{whole}{loss}"

    def _constructors(self, count: int) -> list[list[Field]]:
        c = self.choices
        made = [[Field(c.pick(LEAVES)) for _ in range(c.between(0, 2))]]
        for _ in range(c.between(1, 3)):
            fields = [Field(c.pick(PARTS), c.between(0, count - 1)) for _ in range(c.between(0, 3))]
            made.append(c.shuffled(fields + [Field(c.pick(LEAVES)) for _ in range(c.between(0, 2))]))
        if all(f.kind in LEAVES for fs in made for f in fs):
            made[-1].append(Field("child", c.between(0, count - 1)))
        return made

    def _function(self, n: int) -> str:
        clauses = []
        for k, fields in enumerate(self.types[n]):
            clause = Clause(self, n)
            patterns = [clause.read(f) for f in fields]
            head = f"C{n}{k}({', '.join(patterns)})" if fields else f"C{n}{k}"
            clauses.append(f"    {head} => {{\n{clause.body()}\n    }},")
        if len(clauses) > 2 and self.choices.chance(15):  # a default clause, which reads nothing
            clauses[-1] = f"    _ => {{\n{Clause(self, n).body()}\n    }},"
        body = "\n".join(clauses)
        return (
            f"def @f{n}(%t: T{n}, {self.inherited()}{self.parameters()}) -> {self.result_type(n)} {{\n"
            f"  match (%t) {{\n{body}\n  }}\n}}"
        )

    def _over_list(self, n: int) -> str:
        """A sum over a list's states that is written out, from the last to the first."""
        given = self.given(self.handed_down)
        call = self.state_of(n, f"@f{n}(%k, {given})")
        return (
            f"def @all{n}(%l: List[T{n}], {self.inherited()}{self.parameters()}) -> {self.state} {{\n"
            f"  match (%l) {{ Nil => %zero, Cons(%k, %rest) => {call} + @all{n}(%rest, {given}), }}\n}}"
        )

    def given(self, handed: str) -> str:
        """What a recursive call hands on behind the structure."""
        names = ", ".join(f"%{n}" for n in self.weights())
        return f"{handed}, {names}" if handed else names

    def state_of(self, n: int, result: str) -> str:
        return result if self.results[n] == "state" else f"{result}.0"

    def _entry(self, name: str, result: str, body: str) -> str:
        structures = ", ".join(f"%r{n}: {t}" for n, t in enumerate(self.roots))
        return f"def @{name}({structures}, {self.parameters()}) -> {result} {{\n{body}\n}}\n"

    def _body(self) -> tuple[str, str]:
        """What the entry computes, and the kind of its result; draws `roots`."""
        c = self.choices
        first = {"none": "", "number": self.literal(0.5)}.get(self.down, "%b2")
        given = self.given(first)
        start = f"  let %b2 = reshape(%b, newshape=[1, {self.width}]);\n" if first == "%b2" else ""
        form = c.pick(("plain", "plain", "head", "two", "forest"))
        other = c.between(0, len(self.types) - 1)
        self.roots = {"two": ["T0", f"T{other}"], "forest": ["List[T0]"]}.get(form, ["T0"])
        body = {
            "plain": f"@f0(%r0, {given})",
            "head": f"nn.softmax(nn.dense({self.state_of(0, f'@f0(%r0, {given})')}, %w))",
            "two": f"{self.state_of(0, f'@f0(%r0, {given})')} * {self.state_of(other, f'@f{other}(%r1, {given})')}",
            "forest": f"@foldl(fn (%a: {self.state}, %s: {self.result_type(0)}) {{ %a + {self.state_of(0, '%s')} }}, %zero,\n"
            f"    @map(fn (%t: T0) {{ @f0(%t, {given}) }}, %r0))",
        }[form]
        return f"{start}  {body}", self.results[0] if form == "plain" else "state"

    def _loss(self, kind: str) -> str:
        """A number made of what `@whole` gives."""
        given = ", ".join([*(f"%r{n}" for n in range(len(self.roots))), self.given("")])
        total = {
            "state": "sum(%y * %y)",
            "pair": "sum(%y.0 * cos(%y.1))",
            "scored": "sum(%y.0 * %y.0) + %y.1",
            "noted": "sum(%y.0 * %y.0)",
        }[kind]
        return f"  let %y = @whole({given});\n  {total}"

    # Values

    def numbers(self, random: np.random.Generator, *shape: int) -> Any:
        return (random.standard_normal(shape) * 0.5).astype(self.dtype)[()]

    def weight_values(self, random: np.random.Generator) -> list[Any]:
        return [np.zeros(s, self.dtype) if n == "zero" else self.numbers(random, *s) for n, s in self.weights().items()]

    def structures(self, module: Module, random: np.random.Generator, size: int) -> list[Any]:
        """What `@main` takes before the weights: about so many nodes, some of which are parts of several others."""
        pools: list[list[Any]] = [[] for _ in self.types]
        for n in range(len(self.types)):
            pools[n].append(self._node(module, random, n, 0, pools))
        for _ in range(size):
            n = int(random.integers(len(self.types)))
            pools[n].append(self._node(module, random, n, int(random.integers(len(self.types[n]))), pools))
        last = [pool[-1] for pool in pools]
        forest = pools[0][max(0, len(pools[0]) - int(random.integers(0, 4))) :]
        return [forest if r == "List[T0]" else last[int(r[1:])] for r in self.roots]

    def _node(self, module: Module, random: np.random.Generator, n: int, k: int, pools: list[list[Any]]) -> Any:
        adt = module.adt(f"T{n}")

        def part(of: int) -> Any:
            return pools[of][int(random.integers(max(0, len(pools[of]) - 5), len(pools[of])))]

        make: dict[str, Callable[[int], Any]] = {
            "word": lambda _: self.numbers(random, 1, self.words),
            "vector": lambda _: self.numbers(random, self.width),
            "label": lambda _: np.int32(random.integers(LABELS)),
            "score": lambda _: self.numbers(random),
            "tag": lambda _: getattr(module.adt("Tag"), TAGS[int(random.integers(3))])(),
            "child": part,
            "labelled": lambda of: (part(of), self.numbers(random)),
            "list": lambda of: [part(of) for _ in range(int(random.integers(4)))],
            "labelled list": lambda of: [(part(of), self.numbers(random)) for _ in range(int(random.integers(4)))],
            "option": lambda of: part(of) if random.random() < 0.6 else None,
        }
        return getattr(adt, f"C{n}{k}")(*(make[f.kind](f.of) for f in self.types[n][k]))


class Clause:
    """One clause: what its fields give, and the result made of it."""

    def __init__(self, program: Recursion, n: int) -> None:
        self.p, self.n, self.c = program, n, program.choices
        self.lines: list[str] = []
        self.states: list[str] = []  # names of values of the state's type
        self.numbers: list[str] = []
        self.notes: list[str] = []
        self.later: list[tuple[str, int, str]] = []  # fields whose calls come once all payloads are known
        self.tags: list[str] = []
        self.made = 0
        if program.down in ("as it is", "state"):
            self.states.append("%down")
        elif program.down == "number":
            self.numbers.append("%depth")

    def name(self) -> str:
        self.made += 1
        return f"%x{self.made}"

    def let(self, value: str) -> str:
        name = self.name()
        self.lines.append(f"      let {name} = {value};")
        return name

    def read(self, f: Field) -> str:
        """The pattern of a field."""
        h, x = self.p.width, self.name()
        match f.kind:
            case "word":
                self.states.append(f"nn.dense({x}, %wd)")
            case "vector":
                self.states.append(f"reshape({x}, newshape=[1, {h}])")
            case "label":
                self.states.append(f"reshape(take(%table, {x}, axis=0), newshape=[1, {h}])")
            case "score":
                self.numbers.append(x)
            case "tag":
                self.tags.append(x)
            case "labelled" if self.c.chance(50):
                label = self.name()
                self.numbers.append(label)
                self.later.append(("child", f.of, x))
                return f"({x}, {label})"
            case "labelled":
                self.numbers.append(f"{x}.1")
                self.later.append(("child", f.of, f"{x}.0"))
            case kind:
                self.later.append((kind, f.of, x))
        return x

    def handed(self) -> str:
        """What calls are given besides the part. It may come from another part's result: such a program is not batched."""
        if self.p.down in ("none", "as it is") or self.c.chance(20):
            return self.p.given(self.p.handed_down)
        if self.p.down == "number":
            return self.p.given(f"%depth * {self.p.literal(0.5)} + {self.c.pick(self.numbers)}")
        other = self.c.pick(self.states)
        return self.p.given(
            self.c.pick((f"tanh(%down + {other})", f"tanh(nn.dense(%down, %w) * {other})", f"sigmoid(%down - {other})"))
        )

    def call(self, of: int, part: str, handed: str) -> str:
        return f"@f{of}({part}, {handed})"

    def _use(self, of: int, result: str) -> None:
        """A result's parts become what there is to compute with."""
        self.states.append(self.p.state_of(of, result))
        match self.p.results[of]:
            case "pair":
                self.states.append(f"{result}.1")
            case "scored":
                self.numbers.append(f"{result}.1")
            case "noted":
                self.notes.append(f"{result}.1")

    def _calls(self) -> None:
        for kind, of, x in self.later:
            handed = self.handed()
            p, result = self.p, self.p.result_type(of)
            match kind:
                case "child":
                    self._use(of, self.let(self.call(of, x, handed)))
                case "option":
                    found = p.state_of(of, self.call(of, "%c", handed))
                    self.states.append(
                        self.let(
                            f"match ({x}) {{ Some(%c) => {found}, None => {self.c.pick([*self.states, '%zero'])}, }}"
                        )
                    )
                case "list":
                    form = self.c.pick(("mapped", "mapped", "inside", "written", "right"))
                    if form == "written":
                        self.states.append(self.let(f"@all{of}({x}, {handed})"))
                        continue
                    start = self.c.pick([*self.states, "%zero"])
                    if form == "inside":
                        item = p.state_of(of, self.call(of, "%k", handed))
                        self._fold(f"fn (%a: {p.state}, %k: T{of}) {{ %a + {item} }}, {start}, {x}")
                        continue
                    mapped = self.let(f"@map(fn (%k: T{of}) {{ {self.call(of, '%k', handed)} }}, {x})")
                    item = self._item(p.state_of(of, "%s"))
                    if form == "right":
                        self._fold(f"fn (%s: {result}, %a: {p.state}) {{ {item} + %a }}, {start}, {mapped}", "foldr")
                    else:
                        self._fold(f"fn (%a: {p.state}, %s: {result}) {{ %a + {item} }}, {start}, {mapped}")
                case "labelled list":
                    start = self.c.pick([*self.states, "%zero"])
                    pair = f"(T{of}, {p.dtype})"
                    call = p.state_of(of, self.call(of, "%k.0", handed))
                    self._fold(f"fn (%a: {p.state}, %k: {pair}) {{ %a + {call} * %k.1 }}, {start}, {x}")

    def _fold(self, of: str, how: str = "foldl") -> None:
        self.states.append(self.let(f"@{how}({of})"))

    def _item(self, state: str) -> str:
        own = self.c.pick([*[s for s in self.states if s.startswith("nn.dense(%x")], "%zero"])
        return self.c.pick((state, f"tanh({state})", f"sigmoid({own} + nn.dense({state}, %w)) * {state}"))

    def _combined(self, a: str, b: str) -> str:
        n = self.c.pick(self.numbers) if self.numbers else self.p.literal(0.75)
        return self.c.pick(
            (
                f"({a} + {b})",
                f"{a} * sigmoid({b})",
                f"tanh(nn.dense(concatenate(({a}, {b}), axis=1), %w2))",
                f"nn.bias_add(nn.dense({a}, %w), %b) - {b}",
                f"({a} * {n} + cos({b}))",
                f"nn.softmax({a}) * {b}",
            )
        )

    def body(self) -> str:
        self._calls()
        for tag in self.tags:
            a, b = (self.c.pick([*self.states, "%zero"]) for _ in range(2))
            self.states.append(
                self.let(f"match ({tag}) {{ Red => {a}, Green => sigmoid({b}), _ => nn.dense({a}, %w), }}")
            )
        states = self.c.shuffled(self.states) or [f"reshape(%b, newshape=[1, {self.p.width}])"]
        while len(states) > 1:
            states.append(self.let(self._combined(states.pop(0), states.pop(0))))
        if self.p.decides and self.numbers and self.c.chance(50):
            n = self.c.pick(self.numbers)
            states[0] = self.let(f"if ({n} > {self.p.literal(0.0)}) {{ {states[0]} }} else {{ cos({states[0]}) }}")
        state = self.let(f"tanh(nn.dense({states[0]}, %w))" if self.c.chance(60) else f"tanh({states[0]})")
        return "\n".join([*self.lines, f"      {self._result(state)}"])

    def _result(self, state: str) -> str:
        number = f"sin({self.c.pick(self.numbers)})" if self.numbers else self.p.literal(0.25)
        match self.p.results[self.n]:
            case "state":
                return state
            case "pair":
                return f"({state}, {self.c.pick([*self.states, state])} * {self.p.literal(0.5)})"
            case "scored":
                return f"({state}, {number})"
            case _:
                notes = [f"Mark({state})", *(f"Under({state}, {n})" for n in self.notes[:1])]
                if len(self.notes) > 1:
                    notes.append(f"Both({self.notes[0]}, {number}, {self.notes[1]})")
                return f"({state}, {self.c.pick(notes)})"


def recursion(choices: Choices, dtype: str = "float32") -> Recursion:
    """A program from decisions."""
    made = Recursion(choices, dtype, choices.between(3, 6), choices.between(2, 5))
    made.draw()
    return made
