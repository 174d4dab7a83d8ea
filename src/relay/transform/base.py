"""Passes and pipelines.

A pass is a frozen dataclass: its fields are its options, `name` is what ``relay opt --passes`` calls it, its
docstring states what it expects and what holds afterwards, and calling it maps a module to a module. `Pipeline` runs
passes in order; its wrapper checks the types of what changed, times, and shows every step to an observer.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Literal

from relay.ir.collection import without_collection
from relay.ir.diagnostics import RelayError
from relay.ir.module import Module
from relay.ir.record import record


class PassError(RelayError):
    """An unknown pass, or an option that a pass does not have."""


@record(frozen=True, slots=True)
class Pass(ABC):
    """A transformation of modules. Pure: it makes a new module, sharing what it did not change."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Numbers among the options are limits. Raises PassError for one that is negative."""
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and value < 0:
                raise PassError(f"{self.name}: {option.name} must not be negative, found {value}")

    @abstractmethod
    def __call__(self, module: Module) -> Module: ...


@record(frozen=True, slots=True)
class StepReport:
    """What the observer of a pipeline sees after each pass.

    ``seconds`` is the pass alone, ``verify_seconds`` the check after it.
    """

    index: int
    transformation: Pass
    before: Module
    after: Module
    seconds: float
    verify_seconds: float


Verifier = Callable[[Module, Collection[str]], None]
Observer = Callable[[StepReport], None]


def after(module: Module, passes: Iterable[Pass]) -> Module:
    """The module after these passes."""
    for transformation in passes:
        module = transformation(module)
    return module


@record(frozen=True, slots=True)
class Pipeline:
    """Passes in order.

    ``verifier`` is run after every pass on the functions that the pass changed (with ``full`` on all) and raises when
    the pass broke the program; the error says which pass did. ``observe`` is called after each pass.
    """

    passes: Sequence[Pass]
    verifier: Verifier | None = None
    full: bool = False
    observe: Observer | None = None

    def __call__(self, module: Module) -> Module:
        with without_collection():
            return self._run(module)

    def _run(self, module: Module) -> Module:
        for index, transformation in enumerate(self.passes):
            start = time.perf_counter()
            try:
                after = transformation(module)
            except RelayError as error:
                raise error.with_source(module.sources) from error.__cause__
            passed = time.perf_counter()
            if self.verifier is not None:
                try:
                    self.verifier(after, list(after.functions) if self.full else changed_functions(module, after))
                except Exception as error:
                    error.add_note(f"the program does not check after pass {index}, {transformation.name}")
                    raise
            if self.observe is not None:
                end = time.perf_counter()
                self.observe(StepReport(index, transformation, module, after, passed - start, end - passed))
            module = after
        return module


def changed_functions(before: Module, after: Module) -> list[str]:
    """The names of the functions that are not the same objects as before."""
    return [n for n, f in after.functions.items() if before.functions.get(n) is not f]


def available_passes() -> dict[str, type[Pass]]:
    """Every pass by name, found from the classes themselves (Relay's own, and those that have been imported)."""
    importlib.import_module("relay.transform.exports")
    found = sorted(_subclasses(Pass), key=lambda c: c.__name__)  # type: ignore[type-abstract]
    return {cls.name: cls for cls in found if hasattr(cls, "name")}


def _subclasses(cls: type[Pass]) -> Iterator[type[Pass]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


_ITEM = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(?:\{([^}]*)\})?\s*(?:,|$)")


def parse_passes(text: str, services: Mapping[str, object] | None = None) -> list[Pass]:
    """Passes from text: ``"inline,fuse{max_size=16,outputs=false},dce"``.

    All passes but `to_blocks` work on blocks, so that one is put first where the text does not say it. ``services``
    are values for fields that cannot be written (``evaluate`` of constant folding), by name. Raises PassError for
    names and options that do not exist.
    """
    out: list[Pass] = []
    position = 0
    while position < len(text):
        found = _ITEM.match(text, position)
        if found is None:
            raise PassError(
                f"cannot read the list of passes at {text[position:]!r}",
                hint="write names with options: fuse{max_size=16},dce",
            )
        if not out and found[1] != _FIRST:
            out.append(make_pass(_FIRST))
        out.append(make_pass(found[1], found[2] or "", services))
        position = found.end()
    return out


_FIRST = "to_blocks"


def make_pass(name: str, options: str = "", services: Mapping[str, object] | None = None) -> Pass:
    """One pass by name with options as text: ``"key=value,key=value"``."""
    classes = available_passes()
    cls = classes.get(name)
    if cls is None:
        raise PassError(f"no pass is called {name!r}", hint=f"there are: {', '.join(classes)}")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if _readable(hints[f.name])}
    given: dict[str, Any] = {f.name: services[f.name] for f in fields(cls) if services and f.name in services}
    for item in filter(None, (part.strip() for part in options.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in known:
            raise PassError(f"pass {name} has no option {key!r}", hint=f"it has: {', '.join(known) or 'no options'}")
        given[key] = _read(name, key, hints[key], value or "true")
    missing = [
        f.name for f in fields(cls) if f.name not in given and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise PassError(f"pass {name} needs {', '.join(missing)}", hint="it can only be run from Python")
    return cls(**given)


def _readable(annotation: Any) -> bool:
    """Whether an option of this type can be written as text."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_readable(a) for a in typing.get_args(annotation))
    return annotation in (bool, int, float, str) or typing.get_origin(annotation) is Literal


def _read(name: str, key: str, annotation: Any, text: str) -> Any:
    choices = (
        typing.get_args(annotation)
        if typing.get_origin(annotation) in (typing.Union, types.UnionType)
        else (annotation,)
    )
    if bool in choices and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if int in choices or float in choices:
        try:
            number = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            number = None
        if isinstance(number, int) and not isinstance(number, bool):
            return number if int in choices else float(number)
        if isinstance(number, float) and float in choices:
            return number
    if str in choices:
        return text
    for choice in choices:
        if typing.get_origin(choice) is Literal and text in typing.get_args(choice):
            return text
    expected = " or ".join(getattr(c, "__name__", str(c)) for c in choices)
    raise PassError(f"option {key!r} of pass {name} must be {expected}, not {text!r}")
