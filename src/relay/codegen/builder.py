"""Writing LLVM IR as text: one function at a time, SSA names, blocks, and a few checked shorthands.

Text is the fastest way in: LLVM parses it in less time than it takes to build the same module object by object.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from relay.ir.record import record

# Instructions that give something else when they are repeated; loads of what never changes and some calls do not.
_IMPURE = ("load", "call", "phi", "alloca")
_INVARIANT = "!invariant.load !0"
_PURE_CALL = re.compile(r'call (?:\w+|<[^>]*>) (?:@llvm\.(?!masked|mem|prefetch|x86\.t)|asm "")')
_NAME = re.compile(r"%[\w.]+")
# What a function's text says of others by name, and the head of one that the module keeps to itself.
_MENTIONED = re.compile(r'@(?:[\w.]+|"[^"]*")')
_INTERNAL = re.compile(r'define internal (\w+ (@(?:[\w.]+|"[^"]*")).*) \{')


def vec(element: str, lanes: int) -> str:
    """The type of ``lanes`` elements; one lane is the element itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def float_literal(value: float, element: str = "float") -> str:
    """A float or double literal (for float, of the nearest float), in LLVM's exact hexadecimal form."""
    if element == "float":
        value = round_to_float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def round_to_float(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class ModuleText:
    """Functions, declarations and metadata of one LLVM module."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.explicit: list[str] = []  # functions in which less is left to find than in the others
        self.declarations: dict[str, str] = {}
        self.metadata: list[str] = []
        self._helpers: set[str] = set()

    def lacks(self, helper: str) -> bool:
        """Whether nobody has asked for this helper function before: who is told so writes it."""
        if helper in self._helpers:
            return False
        self._helpers.add(helper)
        return True

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(parameters)})")

    def node(self, text: str) -> str:
        """A metadata node; returns its name."""
        self.metadata.append(text)
        return f"!{len(self.metadata) - 1}"

    def shared_node(self, text: str) -> str:
        """The name of the metadata node of this text, made where there is none."""
        return f"!{self.metadata.index(text)}" if text in self.metadata else self.node(text)

    def text(self) -> str:
        """The module, but for its ``explicit`` functions."""
        return self._part(self.functions, self.declarations.values())

    def parts(self) -> tuple[str, str]:
        """The module as two that are linked to one again: the ``explicit`` functions are the second. What each needs of the other is
        hidden in place of internal."""
        heads = {m[2]: m[1] for text in (*self.functions, *self.explicit) if (m := _INTERNAL.match(text))}
        known = {f"@{name}": text for name, text in self.declarations.items()}
        known |= {name: f"declare hidden {head}" for name, head in heads.items()}

        def part(functions: Sequence[str], others: Sequence[str]) -> str:
            wanted = {name for text in others for name in _MENTIONED.findall(text)}
            own, shown = set[str](), list[str]()
            for text in functions:
                if m := _INTERNAL.match(text):
                    own.add(m[2])
                    text = text.replace("internal", "hidden", 1) if m[2] in wanted else text
                shown.append(text)
            named = dict.fromkeys(name for text in functions for name in _MENTIONED.findall(text))
            return self._part(shown, [known[name] for name in named if name in known and name not in own])

        return part(self.functions, self.explicit), part(self.explicit, self.functions)

    def _part(self, functions: Iterable[str], declarations: Iterable[str]) -> str:
        lines = [*declarations, *functions]
        lines += [f"!{n} = {text}" for n, text in enumerate(self.metadata)]
        return "\n".join(lines) + "\n"


@record(slots=True)
class _Scope:
    """A part of a function that is entered at one place. ``before`` is, of a loop's body, what is executed once before the loop.
    ``here`` are instructions of the block at hand and those it is reached by way of, ``throughout`` those of all blocks of the part.
    ``certain``: who enters the part comes to the block at hand."""

    before: list[str]
    certain: bool = True
    here: list[str] = field(default_factory=list)
    throughout: list[str] = field(default_factory=list)


class Builder:
    """The body of one function. ``entry`` collects what belongs in the entry block: stack slots, sizes, strides.

    What a loop would compute in each iteration alike is written before it, and nothing is computed twice where one place is reached
    by way of the other: LLVM finds that too, in many times the time.
    """

    def __init__(self, module: ModuleText) -> None:
        self.module = module
        self.entry: list[str] = []
        self.lines: list[str | list[str]] = []
        self.block = "start"
        self._into: list[str] | list[str | list[str]] = self.lines
        self._counter = 0
        self._in_entry: dict[str, str] = {}
        # Names by their instructions, which have been executed on the way to the block at hand.
        self._known: dict[str, str] = {}
        self._scopes = [_Scope([])]
        # The bodies of loops around here, outermost first, and in how many of them names are defined that are in some.
        self._loops: list[_Scope] = []
        self._depth: dict[str, int] = {}

    def name(self, hint: str = "v") -> str:
        self._counter += 1
        return f"{hint}{self._counter}"

    def do(self, line: str) -> None:
        self._into.append(f"  {line}")

    def emit(self, value: str) -> str:
        """An instruction's result; the earlier one where the same instruction has been executed on the way here."""
        pure = not value.startswith(_IMPURE) or value.endswith(_INVARIANT) or _PURE_CALL.match(value) is not None
        if pure:
            found = self._in_entry.get(value)
            if found is None and self._into is not self.entry:
                found = self._known.get(value)
            if found is not None:
                return found
        out = f"%{self.name()}"
        line = f"  {out} = {value}"
        if self._into is self.entry:
            self.entry.append(line)
            if pure:
                self._in_entry[value] = out
            return out
        depth = len(self._loops)
        if pure and depth:
            needed = 0
            for name in _NAME.findall(value):
                needed = max(needed, self._depth.get(name, 0))
            # Divisions are written so that they divide by nothing that they may not; what is read may be there behind a branch only.
            if not value.startswith("load") and not value.endswith(_INVARIANT):
                depth = needed
            elif needed < depth and self._scopes[-1] is self._loops[-1] and self._scopes[-1].certain:
                depth -= 1
        if depth < len(self._loops):
            loop = self._loops[depth]
            loop.before.append(line)
            loop.throughout.append(value)
            self._known[value] = out
        else:
            self.lines.append(line)
            if pure:
                self._scopes[-1].here.append(value)
                self._known[value] = out
        if depth:
            self._depth[out] = depth
        return out

    def start(self, label: str, dominated: bool = False) -> None:
        """Begin a block; what follows goes there. ``dominated``: it is only reached by way of what has been written in this scope."""
        self.lines.append(f"{label}:")
        self.block = label
        if not dominated:
            self._scopes[-1].certain = False
            self._forget(self._scopes[-1].here)

    def depth(self, name: str) -> int:
        """In how many of the loops around here a name is defined; 0 of numbers and what is computed before all of them."""
        return self._depth.get(name, 0)

    def hidden(self, value: str, type_: str = "i64") -> str:
        """The same index or pointer, of which LLVM does not see what it is."""
        return self.emit(f'call {type_} asm "", "=r,0"({type_} {value})')

    def leave(self, value: str) -> None:
        """Return; what follows is another block."""
        self.do(f"ret {value}")
        for scope in self._scopes:
            scope.certain = False

    def _forget(self, values: list[str]) -> None:
        for value in values:
            del self._known[value]
        values.clear()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Blocks that are reached by way of what has been written before only."""
        self._scopes.append(_Scope([]))
        try:
            yield
        finally:
            self._forget(self._scopes.pop().here)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """The blocks of a loop that is entered at the end of the block at hand, and jumped to after this begins."""
        before: list[str] = []
        self.lines.append(before)
        body = _Scope(before)
        self._scopes.append(body)
        self._loops.append(body)
        try:
            yield
        finally:
            self._loops.pop()
            self._scopes.pop()
            self._forget(body.here)
            self._forget(body.throughout)

    def local(self, hint: str = "v") -> str:
        """A name for what is written here by other means than `emit`."""
        out = f"%{self.name(hint)}"
        if self._loops:
            self._depth[out] = len(self._loops)
        return out

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, cond: str, then: str, orelse: str) -> None:
        self.do(f"br i1 {cond}, label %{then}, label %{orelse}")

    def seldom(self, cond: str, then: str, orelse: str) -> None:
        """A branch whose condition hardly ever holds."""
        weights = self.module.shared_node('!{!"branch_weights", i32 1, i32 1048575}')
        self.do(f"br i1 {cond}, label %{then}, label %{orelse}, !prof {weights}")

    def phi(self, type_: str, *incoming: tuple[str, str]) -> str:
        return self.emit(f"phi {type_} " + ", ".join(f"[ {value}, %{block} ]" for value, block in incoming))

    @contextmanager
    def in_entry(self) -> Iterator[None]:
        """Emit into the entry block: only what depends on nothing but the arguments."""
        before, self._into = self._into, self.entry
        try:
            yield
        finally:
            self._into = before

    def alloca(self, type_: str, align: int = 64) -> str:
        with self.in_entry():
            return self.emit(f"alloca {type_}, align {align}")

    def call(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call a declared function (an intrinsic): arguments are (type, value)."""
        self.module.declare(name, result, [t for t, _ in arguments])
        given = ", ".join(f"{t} {v}" for t, v in arguments)
        if result == "void":
            self.do(f"call void @{name}({given})")
            return ""
        return self.emit(f"call {result} @{name}({given})")

    def element(self, pointer: str, element: str, offset: str) -> str:
        """The address of an element of LLVM's type ``element``."""
        return pointer if offset == "0" else self.emit(f"getelementptr {element}, ptr {pointer}, i64 {offset}")

    def shuffled(self, type_: str, a: str, b: str, which: Sequence[int]) -> str:
        """Lanes of two vectors of a type, those of ``b`` numbered behind those of ``a``."""
        order = ", ".join(f"i32 {n}" for n in which)
        return self.emit(f"shufflevector {type_} {a}, {type_} {b}, <{len(which)} x i32> <{order}>")

    def lanes(self, text: str, type_: str, which: Sequence[int]) -> str:
        """Lanes of a vector of a type."""
        return self.shuffled(type_, text, "poison", which)

    def finish(self, header: str, explicit: bool = False) -> None:
        """Add the function to the module (to those that are ``explicit``). ``header`` is everything before the body."""
        body = ["entry:", *self.entry, "  br label %start", "start:"]
        for line in self.lines:
            if isinstance(line, str):
                body.append(line)
            else:
                body.extend(line)
        functions = self.module.explicit if explicit else self.module.functions
        functions.append("\n".join([header + " {", *body, "}"]))


def mangled(element: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic's name for a type: ``v16f32``, ``i64``."""
    base = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(element, element)
    return base if lanes == 1 else f"v{lanes}{base}"
