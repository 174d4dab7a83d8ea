"""The step debugger behind ``relay run --debug``: it looks on at a run of the virtual machine (`docs/debugging.md`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO, cast

import numpy as np

import relay
from relay._runtime import Place, Value
from relay.executable.bytecode import Holding
from relay.executable.program import Observer
from relay.ir.module import Module
from relay.ir.types import AdtType, TupleType, Type
from relay.pipeline import Compilation, build
from relay.typing.substitution import substitute

HELP: Final = """break FUNCTION | LINE | FILE:LINE   stop there from now on (b)
delete NUMBER                       forget a breakpoint; without a number, all
breakpoints                         show them
continue                            run to the next breakpoint (c)
step                                to the next operation, into calls (s)
next                                to the next operation of this call or a caller (n)
finish                              until this call has returned (f)
print %x                            the value of a variable (p)
locals                              all variables that hold a value
backtrace                           the open calls, newest first (bt)
up, down                            look at the caller, or back
list                                the source around the place (l)
quit                                stop the run (q)
An empty line repeats the last command."""

SHORT: Final = {
    "b": "break", "c": "continue", "s": "step", "n": "next", "f": "finish", "p": "print", "bt": "backtrace", "l": "list",
    "q": "quit", "h": "help",
}  # fmt: skip


class Stopped(Exception):
    """The user has had enough."""


def debug(
    module: Module, entry: str, arguments: Sequence[object], options: relay.Options, source: TextIO, out: TextIO
) -> object:
    """The result of an entry under the debugger: commands from ``source`` (its end is ``quit``), talk to ``out``.

    Raises Stopped when the user ends the run, RelayError for a program that does not compile or fails.
    """
    compilation = build(module, options)
    exe = relay.Executable.from_bytes(compilation.image.to_bytes(), options.threads)
    exe.limits = options.limits
    debugger = Debugger(compilation, module, source, out)
    return exe.run(entry, *arguments, observer=debugger)


class Debugger(Observer):
    """An observer of a run that stops at source places and takes commands there."""

    def __init__(self, compilation: Compilation, module: Module, source: TextIO, out: TextIO) -> None:
        image = compilation.image
        self.module = module
        self.types = compilation.module.types
        self.source = source
        self.out = out
        self.functions = {f.name: f for f in image.functions}
        self.starts = {f.name: {at for at, text in f.spans if text} for f in image.functions}
        self.first = {name: min(at) for name, at in self.starts.items() if at}
        self.breakpoints: dict[int, str] = {}
        self.made = 0
        self.mode = "step"  # how to go on from the last stop
        self.depth = 0  # of the call at the last stop
        self.selected = 0  # which open call is looked at
        self.last = ""
        self.lines: list[tuple[str, tuple[str, int]] | None] = []  # of each open call, where it was last seen

    # -- called by the run

    def before(self, place: Place) -> None:
        """Stop here if the user wants to."""
        function, word = place.function, place.word
        if word not in self.starts[function]:
            return
        hit = self._breakpoint(function, word, place) if self.breakpoints else None
        self._visit(function, place)
        if hit is None and not self._wanted(place.depth):
            return
        self.selected = 0
        if hit is not None:
            self._say(f"breakpoint {hit}")
        self._show(place)
        self._talk(place)

    def _wanted(self, depth: int) -> bool:
        match self.mode:
            case "step":
                return True
            case "next":
                return depth <= self.depth
            case "finish":
                return depth < self.depth
            case _:
                return False

    def _breakpoint(self, function: str, word: int, place: Place) -> int | None:
        entered = word == self.first[function]
        for number, where in self.breakpoints.items():
            if where == function and entered:
                return number
            # Once for a line, however many operations are on it, those behind the calls on it too.
            seen = self.lines[place.depth] if place.depth < len(self.lines) else None
            if (entered or seen != (function, _position(place.span))) and self._matches(where, place.span):
                return number
        return None

    def _visit(self, function: str, place: Place) -> None:
        del self.lines[place.depth :]
        self.lines += [None] * (place.depth - len(self.lines))  # calls without source places
        self.lines.append((function, _position(place.span)))

    # -- commands

    def _talk(self, place: Place) -> None:
        commands: Mapping[str, Callable[[str, list[Place]], None]] = {
            "break": self._break, "delete": self._delete, "breakpoints": self._breakpoints, "print": self._print,
            "locals": self._locals, "backtrace": self._backtrace, "up": self._up, "down": self._down, "list": self._list,
            "help": lambda _a, _c: self._say(HELP),
        }  # fmt: skip
        while True:
            self.out.write("(relay) ")
            self.out.flush()
            line = self.source.readline()
            if line == "":
                raise Stopped
            text = line.strip() or self.last
            self.last = text
            word, _, argument = text.partition(" ")
            word = SHORT.get(word, word)
            if word == "quit":
                raise Stopped
            if word in ("step", "next", "finish", "continue"):
                self.mode, self.depth = word, place.depth
                return
            if word in commands:
                commands[word](argument.strip(), place.open_calls())
            elif word:
                self._say(f"there is no command {word!r}; help shows them")

    def _break(self, where: str, _calls: list[Place]) -> None:
        name = where.removeprefix("@")
        line = where.rpartition(":")[2]
        if not line.isdecimal() and name not in self.first:
            known = ", ".join(sorted(self.first))
            self._say(f"no function {where!r} with source places; there are: {known}")
            return
        if line.isdecimal() and not any(self._matches(where, span) for span in self._spans()):
            self._say(f"no code comes from line {where}")
            return
        self.made += 1
        self.breakpoints[self.made] = where if line.isdecimal() else name
        self._say(f"breakpoint {self.made} at {self.breakpoints[self.made]}")

    def _spans(self) -> Iterator[str]:
        return (text for f in self.functions.values() for _, text in f.spans if text)

    @staticmethod
    def _matches(where: str, span: str) -> bool:
        source, line = _position(span)
        return where in (str(line), f"{source}:{line}", f"{Path(source).name}:{line}")

    def _delete(self, argument: str, _calls: list[Place]) -> None:
        if argument == "":
            self.breakpoints.clear()
        elif not argument.isdecimal() or self.breakpoints.pop(int(argument), None) is None:
            self._say(f"there is no breakpoint {argument}")

    def _breakpoints(self, _argument: str, _calls: list[Place]) -> None:
        for number, where in self.breakpoints.items():
            self._say(f"{number}  {where}")

    def _print(self, argument: str, calls: list[Place]) -> None:
        name = argument.removeprefix("%")
        found = self._variables(calls[self.selected])
        if name not in found:
            self._say(f"no %{name} holds a value here; there are: {', '.join('%' + n for n in found) or 'none'}")
        else:
            self._say(self._text(*found[name]))

    def _locals(self, _argument: str, calls: list[Place]) -> None:
        for name, (value, ty) in self._variables(calls[self.selected]).items():
            self._say(f"%{name} = {self._text(value, ty)}")

    def _backtrace(self, _argument: str, calls: list[Place]) -> None:
        for number, call in enumerate(calls):
            mark = ">" if number == self.selected else " "
            self._say(f"{mark} {number}  @{call.function}" + (f" at {call.span}" if call.span else ""))

    def _up(self, _argument: str, calls: list[Place]) -> None:
        self.selected = min(self.selected + 1, len(calls) - 1)
        self._show(calls[self.selected])

    def _down(self, _argument: str, calls: list[Place]) -> None:
        self.selected = max(self.selected - 1, 0)
        self._show(calls[self.selected])

    def _list(self, _argument: str, calls: list[Place]) -> None:
        source, line = _position(calls[self.selected].span)
        for number, text in self._source_lines(source, line - 4, line + 4):
            self._say(f"{'>' if number == line else ' '}{number:5} {text}")

    # -- looking

    def _variables(self, place: Place) -> dict[str, tuple[object, Type | None]]:
        """What variables hold at a place, and their types; the newest of a name."""
        current: list[Holding] = []
        for holding in self.functions[place.function].holdings:
            if holding.at <= place.word:
                if holding.name:
                    current.append(holding)
                else:  # another branch may use the register from here on
                    current = [c for c in current if c.register != holding.register]
        found: dict[str, tuple[object, Type | None]] = {}
        for holding in current:
            value = place.register(holding.register)
            found.pop(holding.name, None)
            if value is not None:
                found[holding.name] = value, holding.ty
        return found

    def _text(self, value: object, ty: Type | None, depth: int = 3) -> str:
        if isinstance(value, Value):
            return self._value_text(value, ty, depth)
        if isinstance(value, relay.Tensor):
            array = np.asarray(value)
            shown = np.array2string(array, threshold=20, precision=6)
            return shown if array.ndim == 0 else f"{value.dtype}{list(array.shape)} {shown}"
        return repr(value)

    def _value_text(self, value: Value, ty: Type | None, depth: int) -> str:
        """A tuple or the value of a data type by its type, which says what the constructors are called."""
        if value.kind not in ("adt", "tuple"):
            return repr(value)
        name = ""
        types: tuple[Type | None, ...] = (None,) * len(value.fields)
        if isinstance(ty, AdtType):
            definition = self.types[ty.name]
            constructor = definition.constructors[value.tag]
            name = constructor.name
            types = tuple(cast(Type, substitute(f, definition.params, ty.args)) for f in constructor.fields)
        elif isinstance(ty, TupleType):
            types = ty.fields
        elif value.kind == "adt":
            name = f"constructor {value.tag}"
        fields = [self._text(f, t, depth - 1) if depth else "..." for f, t in zip(value.fields, types, strict=True)]
        return name + f"({', '.join(fields)})" if fields or not name else name

    def _show(self, place: Place) -> None:
        """Where it is, with the source line and a caret."""
        source, line = _position(place.span)
        column = place.span.rpartition(":")[2]
        self._say(f"@{place.function} at {place.span}" if place.span else f"@{place.function}")
        for number, text in self._source_lines(source, line, line):
            self._say(f"{number:5} | {text}")
            if column.isdecimal():
                self._say(" " * 5 + " | " + " " * (int(column) - 1) + "^")

    def _source_lines(self, source: str, first: int, last: int) -> list[tuple[int, str]]:
        text = self.module.sources.get(source, "")
        lines = text.splitlines()
        return [(n, lines[n - 1]) for n in range(max(first, 1), min(last, len(lines)) + 1)]

    def _say(self, text: str) -> None:
        self.out.write(text + "\n")


def _position(span: str) -> tuple[str, int]:
    """Source and line of a place's text, ``source:line:column``."""
    source, _, line = span.rpartition(":")[0].rpartition(":")
    return source, int(line) if line.isdecimal() else 0
