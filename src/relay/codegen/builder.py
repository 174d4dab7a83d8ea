"""Writing LLVM IR as text: one function at a time, SSA names, blocks, and a few checked shorthands.

Text is the fastest way in: LLVM parses it in less time than it takes to build the same module object by object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Instructions that give something else when they are repeated; loads of what never changes do not.
_IMPURE = ("load", "call", "phi", "alloca")
_INVARIANT = "!invariant.load !0"


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
        lines = [*self.declarations.values(), *self.functions]
        lines += [f"!{n} = {text}" for n, text in enumerate(self.metadata)]
        return "\n".join(lines) + "\n"


class Builder:
    """The body of one function. ``entry`` collects what belongs in the entry block: stack slots, sizes, strides."""

    def __init__(self, module: ModuleText) -> None:
        self.module = module
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block = "start"
        self._into = self.lines
        self._counter = 0
        self._in_entry: dict[str, str] = {}
        self._in_block: dict[str, str] = {}

    def name(self, hint: str = "v") -> str:
        self._counter += 1
        return f"{hint}{self._counter}"

    def do(self, line: str) -> None:
        self._into.append(f"  {line}")

    def emit(self, value: str) -> str:
        """An instruction's result; the earlier one where this block (or the entry) has the same instruction already."""
        known = self._in_entry if self._into is self.entry else self._in_block
        pure = not value.startswith(_IMPURE) or value.endswith(_INVARIANT)
        if pure:
            found = self._in_entry.get(value) or known.get(value)
            if found is not None:
                return found
        out = f"%{self.name()}"
        self._into.append(f"  {out} = {value}")
        if pure:
            known[value] = out
        return out

    def start(self, label: str) -> None:
        """Begin a block; what follows goes there."""
        self.lines.append(f"{label}:")
        self.block = label
        self._in_block.clear()

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, cond: str, then: str, orelse: str) -> None:
        self.do(f"br i1 {cond}, label %{then}, label %{orelse}")

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

    def finish(self, header: str) -> None:
        """Add the function to the module. ``header`` is everything before the body."""
        body = ["entry:", *self.entry, "  br label %start", "start:", *self.lines]
        self.module.functions.append("\n".join([header + " {", *body, "}"]))


def mangled(element: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic's name for a type: ``v16f32``, ``i64``."""
    base = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(element, element)
    return base if lanes == 1 else f"v{lanes}{base}"
