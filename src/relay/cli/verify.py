"""``relay verify``: run a program by several executors and compare; where they differ, find the first value that does."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import relay
from relay._runtime import Place, Value
from relay.aot.native import with_native_code
from relay.codegen.target import parse_target
from relay.executable.bytecode import decode
from relay.executable.format import ExecutableImage
from relay.executable.program import Observer
from relay.interpreter.evaluation import evaluate as interpret
from relay.ir.diagnostics import ExecutionError, RelayError
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.value import AdtValue
from relay.loop.bounds import unproved
from relay.pipeline import build

Array = npt.NDArray[Any]

EXECUTORS: Final = ("interpreter", "vm", "aot")
# Relative and absolute. Compiled code rounds in another order than the interpreter does.
TOLERANCES: Final = {"float64": 1e-8, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
# Instructions that move values and compute none.
_STRUCTURAL: Final = ("Move", "Get", "Load", "Ref", "DeviceCopy")


@record(frozen=True, slots=True)
class Event:
    """A value that a run computed: where in the program, and the array (None: no tensor)."""

    function: str
    word: int
    name: str
    span: str
    what: str
    value: Array | None

    def text(self) -> str:
        at = f" at {self.span}" if self.span else ""
        variable = f"%{self.name}" if self.name else "a value"
        return f"{variable} in @{self.function}{at}, made by {self.what}"


@record(frozen=True, slots=True)
class Divergence:
    """The first difference of two executors: their names, the place, and what each has there."""

    first: str
    second: str
    where: str
    expected: str
    found: str


def verify(
    module: Module, entry: str, arguments: Sequence[object], executors: Sequence[str], options: relay.Options
) -> Divergence | None:
    """Compare what the executors make of an entry with what the first makes of it; None when they agree.

    Compiled executors run the same image and must agree exactly; with the interpreter up to rounding. Failures with a message count
    as results. Raises RelayError for an unknown executor or a program that does not compile.
    """
    for name in executors:
        if name not in EXECUTORS:
            raise RelayError(f"unknown executor {name!r}", hint=f"executors are {', '.join(EXECUTORS)}")
    if len(executors) < 2:
        raise RelayError("there is nothing to compare: name two executors or more")
    image = build(module, options).image if any(e != "interpreter" for e in executors) else None
    return Comparison(module, entry, arguments, image, options).run(executors)


def unproved_accesses(module: Module, options: relay.Options) -> tuple[int, dict[str, list[str]]]:
    """How many kernels a program has, and what of them could not be proved to be inside of its buffers for every size, by kernel.

    Raises RelayError for a program that does not compile.
    """
    kernels = [plan.kernel for plan in build(module, options).plan.kernels]
    found = {kernel.name: list(dict.fromkeys(map(str, unproved(kernel)))) for kernel in kernels}
    return len(kernels), {name: texts for name, texts in found.items() if texts}


class Comparison:
    """Runs of one entry on one list of arguments."""

    def __init__(
        self,
        module: Module,
        entry: str,
        arguments: Sequence[object],
        image: ExecutableImage | None,
        options: relay.Options,
    ) -> None:
        self.module = module
        self.entry = entry
        self.arguments = arguments
        self.image = image
        self.options = options
        # For tests: what is done to an executor's executable before it runs.
        self.prepare: Callable[[str, relay.Executable], None] = lambda _name, _exe: None

    def run(self, executors: Sequence[str]) -> Divergence | None:
        """The first divergence from the first executor."""
        outcomes = {name: self._outcome(name, None) for name in executors}
        reference = executors[0]
        for name in executors[1:]:
            exact = "interpreter" not in (reference, name)
            found = difference(outcomes[reference], outcomes[name], exact)
            if found is not None:
                return self._first(reference, name, found)
        return None

    def _executable(self, name: str, traced: bool) -> relay.Executable:
        assert self.image is not None
        image = self.image
        if name == "aot":
            image = with_native_code(image, parse_target(self.options.target), inline=not traced)
        exe = relay.Executable.from_bytes(image.to_bytes(), self.options.threads)
        exe.limits = self.options.limits
        exe.check_memory = self.options.check_memory
        self.prepare(name, exe)
        return exe

    def _outcome(self, name: str, observer: Tracer | None) -> object:
        try:
            if name == "interpreter":
                return relay.evaluate(self.module, *self.arguments, entry=self.entry)
            exe = self._executable(name, observer is not None)
            return exe.run(self.entry, *self.arguments, observer=observer)
        except ExecutionError as error:
            return Failure(str(error))

    def _trace(self, name: str) -> list[Event]:
        """Every value that a compiled run computes, in order."""
        assert self.image is not None
        tracer = Tracer(self.image)
        self._outcome(name, tracer)
        return tracer.events

    def _first(self, first: str, second: str, result: tuple[str, str, str]) -> Divergence:
        """Where two executors that differ in their results differ first."""
        end = Divergence(first, second, *result)
        if "interpreter" not in (first, second):
            return _first_of_traces(first, second, self._trace(first), self._trace(second)) or end
        compiled = second if first == "interpreter" else first
        found = self._against_interpreter(self._trace(compiled))
        if found is None:
            return end
        event, expected = found
        shown = (_shown(expected), _shown(event.value))
        return Divergence(first, second, event.text(), *(shown if first == "interpreter" else shown[::-1]))

    def _against_interpreter(self, events: Sequence[Event]) -> tuple[Event, Array] | None:
        """The first event that differs from the interpreter's value of the same place. Places that the two do not come to equally
        often (code was moved or fused away) say nothing."""
        seen: defaultdict[str, list[Array]] = defaultdict(list)

        def watch(span: Span | None, value: object) -> None:
            if span is not None and isinstance(value, np.ndarray | np.generic):
                seen[str(span)].append(np.array(value))

        with suppress(RelayError):  # what came before a failure can be compared all the same
            interpret(self.module, *self.arguments, entry=self.entry, watch=watch)
        times: defaultdict[str, int] = defaultdict(int)
        computed = [e for e in events if e.value is not None and not e.what.startswith(_STRUCTURAL)]
        for event in computed:
            times[event.span] += 1
        number: defaultdict[str, int] = defaultdict(int)
        for event in computed:
            expected = seen.get(event.span, [])
            at = number[event.span]
            number[event.span] += 1
            if len(expected) != times[event.span]:
                continue
            assert event.value is not None
            if difference(expected[at], event.value, exact=False) is not None:
                return event, expected[at]
        return None


@record(frozen=True, slots=True)
class Failure:
    """The outcome of a run that failed. Messages of executors differ."""

    message: str

    def __repr__(self) -> str:
        return f"a failure: {self.message}"


class Tracer(Observer):
    """Notes the value of every register that an instruction assigns for a variable, or that a kernel writes."""

    def __init__(self, image: ExecutableImage) -> None:
        self.events: list[Event] = []
        self.registers = {f.name: dict(self._assigned(image, f)) for f in image.functions}

    @staticmethod
    def _assigned(image: ExecutableImage, function: Any) -> Iterator[tuple[int, tuple[str, list[tuple[int, str]]]]]:
        """For each instruction of interest: what it is, and the registers it assigns with their variables' names."""
        named: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for holding in function.holdings:
            named[holding.register].append((holding.at, holding.name))
        for instruction in decode(function.code):
            opcode, operands = instruction.opcode, instruction.operands
            what, registers = opcode.name, []
            if opcode.name == "InvokeKernel":
                kernel = image.kernels[operands[0]]  # type: ignore[index]
                what = f"kernel {kernel.name}"
                registers = list(operands[2][-kernel.outputs :])  # type: ignore[index]
            elif opcode.operands.startswith("d") and not opcode.name.startswith(
                "Alloc"
            ):  # what is allocated is not yet a value
                registers = [operands[0]]
            found = []
            for register in registers:
                later = named.get(register, [])
                at = bisect_left(later, (instruction.at + 1, ""))
                name = later[at][1] if at < len(later) else ""
                if name or opcode.name == "InvokeKernel":
                    found.append((register, name))
            if found:
                yield instruction.at, (what, found)

    def after(self, place: Place) -> None:
        known = self.registers[place.function].get(place.word)
        if known is not None:
            what, registers = known
            for register, name in registers:
                value = place.register(register)
                array = None if value is None or isinstance(value, Value) else np.array(value)
                self.events.append(Event(place.function, place.word, name, place.span, what, array))


def _first_of_traces(first: str, second: str, a: Sequence[Event], b: Sequence[Event]) -> Divergence | None:
    for x, y in zip(a, b, strict=False):
        if (x.function, x.word) != (y.function, y.word):
            return Divergence(first, second, "the way through the program", x.text(), y.text())
        if (x.value is None) != (y.value is None):
            return Divergence(first, second, x.text(), _shown(x.value), _shown(y.value))
        if x.value is not None and difference(x.value, y.value, exact=True) is not None:
            return Divergence(first, second, x.text(), _shown(x.value), _shown(y.value))
    if len(a) != len(b):
        longer = (a if len(a) > len(b) else b)[min(len(a), len(b))]
        return Divergence(first, second, longer.text(), *(("computed", "not reached")[:: 1 if len(a) > len(b) else -1]))
    return None


def difference(expected: object, found: object, exact: bool) -> tuple[str, str, str] | None:
    """Where two results differ first (as a text) and what they have there; None when they agree."""
    todo: list[tuple[object, object, str]] = [(expected, found, "the result")]
    while todo:
        e, f, at = todo.pop()
        if isinstance(e, AdtValue) and isinstance(f, AdtValue) and (e.adt, e.tag) == (f.adt, f.tag):
            todo.extend((a, b, f"{at}.{n}") for n, (a, b) in enumerate(zip(e.fields, f.fields, strict=True)))
        elif isinstance(e, tuple | list) and isinstance(f, tuple | list) and len(e) == len(f):
            todo.extend((a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(e, f, strict=True)))
        elif _is_tensor(e) and _is_tensor(f):
            if not _same(np.asarray(e), np.asarray(f), exact):
                return at, _shown(e), _shown(f)
        elif _is_opaque(e) or _is_opaque(f):
            continue  # functions and references have no contents to compare
        elif type(e) is not type(f) or (e is not None and not isinstance(e, Failure)):
            return at, _shown(e), _shown(f)
    return None


def _is_tensor(value: object) -> bool:
    return isinstance(value, relay.Tensor | np.ndarray | np.generic)


def _is_opaque(value: object) -> bool:
    return value is not None and not isinstance(value, AdtValue | tuple | list | Failure) and not _is_tensor(value)


def _same(e: Array, f: Array, exact: bool) -> bool:
    if e.dtype != f.dtype or e.shape != f.shape:
        return False
    tolerance = None if exact else TOLERANCES.get(e.dtype.name)
    if tolerance is None:
        return e.tobytes() == f.tobytes()
    wide = (e.astype(np.float64), f.astype(np.float64))
    return bool(np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True))


def _shown(value: object) -> str:
    if _is_tensor(value):
        array = np.asarray(value)
        return f"{array.dtype}{list(array.shape)} {np.array2string(array, threshold=20, precision=8)}"
    return repr(value)
