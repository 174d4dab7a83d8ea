"""A compiled program as Python sees it: call it with NumPy or DLPack tensors."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from relay.executable.description import check_description
from relay.executable.errors import ArgumentError
from relay.executable.runtime import _runtime
from relay.executable.values import Signature
from relay.ir.diagnostics import ExecutionError, FileError, RelayError, ShapeError
from relay.ir.files import file_path, write_whole


def is_count(value: object, least: int) -> bool:
    """Whether a value is a whole number, at least this and below 2^63."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) < 1 << 63


def require_count(name: str, value: object, hint: str) -> None:
    """Raises RelayError unless the value of an option is None or a whole number of at least 1."""
    if value is not None and not is_count(value, 1):
        raise RelayError(f"{name} must be a whole number of at least 1 and below 2^63, not {value!r}", hint=hint)


def require_flag(name: str, value: object) -> None:
    """Raises RelayError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise RelayError(f"{name} must be True or False, not {value!r}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use; None: no limit of its own.

    memory   bytes that the run may add to what is alive, tensors and objects together (OutOfMemoryError)
    seconds  how long it may take, looked at between kernels and calls (TimeLimitError)
    depth    calls that may be open at once; calls in tail position do not count (RecursionLimitError)
    """

    memory: int | None = None
    seconds: float | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        require_count("the limit memory", self.memory, "None is no limit")
        require_count("the limit depth", self.depth, "None is no limit")
        if self.seconds is not None and not _is_duration(self.seconds):
            raise RelayError(f"the limit seconds must be greater than 0, not {self.seconds!r}", hint="None is no limit")


def _is_duration(seconds: object) -> bool:
    """Whether a value is a number of seconds that the runtime counts."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        return False
    try:
        return float(seconds) > 0
    except OverflowError:
        return False


# The same as the runtime takes it.
Allowed = tuple[int, float, int]
# Seconds that a run takes for which handing it to another Python thread costs little.
_WORTH_A_THREAD = 200e-6
# What is left of the seconds of a batch that has used them up: 0 would be no limit.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes of many requests of an entry: ``how`` in words, and whether they may run side by side (``apart``); where they can
    be one batch the ``entry`` that answers it, and which parameters (``each``) differ from request to request."""

    how: str
    apart: bool
    entry: str | None
    each: Sequence[int]


class Executable:
    """A compiled program. ``exe(x, w=w)`` calls ``@main``, with arguments by place or by name; `run` any entry. Threads may share one
    executable.

    A call takes NumPy arrays or DLPack tensors of the declared dtypes and shapes (numbers for rank 0, and nested lists of numbers, take the
    declared dtype if that holds them; tuples, lists for ``List``, None or a value for ``Option``, `AdtValue`s) and gives
    `relay.Tensor`s, which NumPy reads without copying. Arrays are read where they lie, and may be written again after the call: a result
    that is a view of one is a copy.
    Raises ShapeError, TypeError_ or ArgumentError for arguments that do not fit, ExecutionError for a failure while running.
    """

    def __init__(self, program: _runtime.Executable, threads: int | None, from_cache: bool = False) -> None:
        self._program = program
        self._threads = threads or 0
        try:
            infos = {name: json.loads(program.entry_info(name)) for name in program.entries}
            for info in infos.values():
                check_description(info, infos)
            self._batches = {name: Batch(**info["requests"]) for name, info in infos.items() if "requests" in info}
            inner = {batch.entry for batch in self._batches.values()}
            self._signatures = {name: Signature(name, info) for name, info in infos.items() if name not in inner}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FileError(
                f"what the executable says of its entries cannot be read: {error!r}", hint="compile the program again"
            ) from error
        # Of entries whose values need no conversion here: whether the result is a tuple.
        self._plain = {name: s.tuples for name, s in self._signatures.items() if s.plain}
        self.from_cache = from_cache
        self._later: bytes | None = program.later
        self._came_later: dict[int, bytes] = {}
        self._kernels_by: tuple[Path | bool, int | None] = True, None
        self._building = threading.Lock()
        self.limits = Limits()
        self._check_memory = False
        self._flush_subnormals = False

    def __repr__(self) -> str:
        """Its entries with their types."""
        return "\n".join(["an executable of", *(f"  {signature}" for signature in self._signatures.values())])

    @staticmethod
    def from_bytes(image: bytes | bytearray, threads: int | None) -> Executable:
        """The executable in the bytes of a file."""
        return Executable(_runtime.Executable.from_bytes(image), threads)

    def build_kernels(self, cache: Path | bool, workers: int | None) -> None:
        """How kernels are compiled that it came without: the directory of their cache (True: the user's; False: none), and so many
        processes (None: one for each core)."""
        self._kernels_by = cache, workers

    def _complete(self) -> None:
        """Compile the kernels that it came without, unless that is done. Threads wait for the first."""
        with self._building:
            if self._later is None:
                return
            from relay.codegen.later import objects_of

            self._came_later = objects_of(self._later, *self._kernels_by)
            for number, data in self._came_later.items():
                self._program.supply(number, data)
            self._later = None

    @property
    def limits(self) -> Limits:
        """What each run may use, unless it is told otherwise."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._allowed = _packed(limits)
        self._limits = limits

    @property
    def check_memory(self) -> bool:
        """Whether what kernels touch outside of their operands, and results made of what nobody has written, are errors (ExecutionError);
        runs take many times longer then."""
        return self._check_memory

    @check_memory.setter
    def check_memory(self, on: bool) -> None:
        require_flag("check_memory", on)
        self._check_memory = on
        for program in self._programs():
            program.check_memory(on)

    @property
    def flush_subnormals(self) -> bool:
        """Whether runs take subnormal numbers (of magnitudes below 1.2e-38 in float32) for zero, which some processors compute with
        much slower; otherwise they are what they are, whatever the caller has set the processor to."""
        return self._flush_subnormals

    @flush_subnormals.setter
    def flush_subnormals(self, on: bool) -> None:
        require_flag("flush_subnormals", on)
        self._flush_subnormals = on
        for program in self._programs():
            program.flush_subnormals(on)

    def _programs(self) -> list[_runtime.Executable]:
        """Those that calls go to."""
        return [self._program]

    @property
    def entries(self) -> tuple[str, ...]:
        """The names that `run` takes."""
        return tuple(self._signatures)

    def signature(self, entry: str = "main") -> Signature:
        """The types of an entry. Raises RelayError when there is none of this name."""
        found = self._signatures.get(entry)
        if found is None:
            raise RelayError(f"the executable has no entry @{entry}", hint=f"it has: {', '.join(self._signatures)}")
        return found

    def __call__(self, /, *args: object, **named: object) -> Any:
        if named:
            args = tuple(self.signature().placed(args, named))
        return self._run("main", args, (), self._allowed, None)

    def run(
        self,
        entry: str,
        *args: object,
        donate: tuple[int, ...] = (),
        limits: Limits | None = None,
        observer: Observer | None = None,
        **named: object,
    ) -> Any:
        """Call an entry, with arguments by place and behind these by name. ``donate`` names the arguments (Tensors) that are given up,
        by their places, so that results may take their memory; ``limits`` are this run's (default: the executable's, `limits`);
        ``observer`` looks on."""
        if named:
            args = tuple(self.signature(entry).placed(args, named))
        if donate != ():
            donate = _places(entry, donate, len(args))
        if observer is not None and not any(callable(getattr(observer, name, None)) for name in ("before", "after")):
            raise ArgumentError(f"an observer has a method before or after, which {observer!r} has not")
        return self._run(entry, args, donate, self._allowed if limits is None else _packed(limits), observer)

    def _run(
        self,
        entry: str,
        args: Sequence[object],
        donate: tuple[int, ...],
        allowed: Allowed | None,
        observer: Observer | None,
    ) -> object:
        try:
            tuples = self._plain.get(entry)
            if tuples is not None:
                return self._program.run(entry, args, self._threads, donate, allowed, observer, False, tuples)
            signature = self._signatures.get(entry) or self.signature(entry)
            inputs, tuples = signature.arguments(args), signature.tuples
            found = self._program.run(entry, inputs, self._threads, donate, allowed, observer, False, tuples)
            return found if signature.made else signature.outcome(found)
        except ExecutionError as error:
            text, _, where = str(error).rpartition("\n  in ")
            if where == f"{entry}:entry":  # the wrapper that checks the arguments refused them
                raise ShapeError(
                    text if f"@{entry}" in text else f"the sizes of the arguments of @{entry}: {text}"
                ) from None
            raise
        except ArgumentError as error:
            signature = self.signature(entry)
            signature.check_count(args)
            raise signature.about(error) from None

    def run_batch(self, entry: str, inputs: Iterable[Sequence[object]]) -> list[Any]:
        """Call an entry on each of several argument lists; gives the results in order.

        The requests are one batch (of many, parts that stay near the caches) where the program is recursion over structures, or goes
        through tensors row by row, each of so many rows, and they share the other arguments that are tensors (the same objects);
        otherwise they run side by side, on as many threads as a run may use, or in turn where one could see what another does. ``relay
        inspect --show batching`` says which. Raises what `run` raises, for the first request that fails, and says which one that is (of
        requests that are one batch, where arguments are wrong).
        """
        signature = self.signature(entry)
        if not isinstance(inputs, Iterable) or isinstance(inputs, str):
            raise RelayError(f"the requests to @{entry} must be a list of argument lists, not {inputs!r}")
        requests: list[tuple[object, ...]] = []
        for args in inputs:
            if not isinstance(args, (tuple, list)) and (not isinstance(args, Iterable) or isinstance(args, str)):
                number = len(requests)
                raise RelayError(f"request {number} to @{entry} must be a list of its arguments, not {args!r}")
            requests.append(tuple(args))
        for number, args in enumerate(requests):
            try:
                signature.check_count(args)
            except RelayError as error:
                _say_request(error, number)
                raise
        batch = self._batches.get(entry)
        if batch is None or len(requests) < 2:
            return self._in_turn(entry, requests)
        shared = [n for n in range(len(signature.params)) if n not in batch.each]
        if batch.entry is None or any(args[n] is not requests[0][n] for args in requests for n in shared):
            return self._side_by_side(entry, requests) if batch.apart else self._in_turn(entry, requests)
        if self._later is not None:
            self._complete()
        return self._together(signature, batch, requests, shared)

    def _request(self, entry: str, number: int, args: Sequence[object]) -> Any:
        try:
            return self.run(entry, *args)
        except RelayError as error:
            _say_request(error, number)
            raise

    def _in_turn(self, entry: str, requests: Sequence[Sequence[object]], first: int = 0) -> list[Any]:
        return [self._request(entry, number, args) for number, args in enumerate(requests, first)]

    def _side_by_side(self, entry: str, requests: Sequence[Sequence[object]]) -> list[Any]:
        """Each request by one thread; short ones are not worth one."""
        start = time.perf_counter()
        results = [self._request(entry, 0, requests[0])]
        workers = min(self._threads or _runtime.available_threads(), len(requests) - 1)
        if workers < 2 or time.perf_counter() - start < _WORTH_A_THREAD:
            return results + self._in_turn(entry, requests[1:], 1)
        with ThreadPoolExecutor(workers) as pool:
            waiting = [pool.submit(self._request, entry, n, args) for n, args in enumerate(requests[1:], 1)]
            try:
                return results + [one.result() for one in waiting]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _together(
        self, signature: Signature, batch: Batch, requests: list[tuple[object, ...]], shared: Sequence[int]
    ) -> list[object]:
        """The requests as one batch, of which the program may answer the first only, as many as go well together (no less than one), and
        is then asked for the rest. Seconds are those of all, memory is what each part may use."""
        assert batch.entry is not None
        listed: Any = signature.listed(requests, batch.each)
        others = [signature.argument(n, requests[0]) for n in shared]
        allowed, begin = self._allowed, time.monotonic()
        results: list[object] = []
        while True:
            found = self._program.run(batch.entry, [listed, *others], self._threads, (), allowed, None)
            before = len(results)
            results += signature.joined(found.fields)
            if len(results) == len(requests):
                # (What has no rows in any of them is not known to be of some shape.)
                return [
                    self._request(signature.name, n, requests[n]) if r is None else r for n, r in enumerate(results)
                ]
            for _ in range(before, len(results)):
                listed = listed.field(1)
            if allowed is not None and self._allowed is not None and allowed[1] > 0:
                left = self._allowed[1] - (time.monotonic() - begin)
                allowed = (allowed[0], max(left, _LEAST_SECONDS), allowed[2])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable to a ``.rlx`` file, whole or not at all. Raises FileError."""
        image = self._image()
        write_whole(path, lambda temporary: temporary.write_bytes(image))

    def _image(self) -> memoryview | bytearray:
        """The bytes of its file, with all kernels."""
        came = self._program.image.numpy().data
        if self._program.later is None:
            return came
        from relay.executable.reader import read_image

        self._complete()
        image = read_image(bytes(came))
        objects = tuple(self._came_later.get(n, data) for n, data in enumerate(image.objects))
        return replace(image, objects=objects, later=None).to_bytes()

    def __reduce__(self) -> tuple[Callable[..., Executable], tuple[bytes, int | None, Limits, bool]]:
        """Pickled (for another process) as the bytes of its file; variants for frequent sizes stay behind."""
        return _unpickled, (bytes(self._image()), self._threads or None, self.limits, self.flush_subnormals)

    @property
    def program(self) -> _runtime.Executable:
        """The runtime's object: statistics, profiling, limits, kernel replacement."""
        return self._program


class Observer:
    """Looks on at a run, instruction by instruction; what it raises ends the run. A `Place` is valid during the call."""

    def before(self, place: _runtime.Place) -> None:
        """An instruction is next. (Not called for native code.)"""

    def after(self, place: _runtime.Place) -> None:
        """An instruction that is not a jump or call is done. (Native code calls this where it calls the runtime.)"""


def _say_request(error: RelayError, number: int) -> None:
    """Make an error say which of several requests it is of."""
    error.message = f"request {number}: {error.message}"


def _unpickled(image: bytes, threads: int | None, limits: Limits, flush_subnormals: bool) -> Executable:
    exe = Executable.from_bytes(image, threads)
    exe.limits = limits
    exe.flush_subnormals = flush_subnormals
    return exe


def _places(entry: str, donate: object, count: int) -> tuple[int, ...]:
    """Places among so many arguments, as the runtime takes them. Raises ArgumentError for what is none."""
    if not isinstance(donate, tuple) or not all(is_count(n, 0) for n in donate):
        raise ArgumentError(
            f"donate must be a tuple of the places of arguments of @{entry}, not {donate!r}", hint="for example (0,)"
        )
    for n in donate:
        if n >= count:
            raise ArgumentError(
                f"donate names argument {n} of @{entry}, which is called with {count}: they count from 0"
            )
    return tuple(map(int, donate))


def _packed(limits: Limits) -> Allowed | None:
    """As the runtime takes them. Raises RelayError for what is none."""
    if not isinstance(limits, Limits):
        raise RelayError(f"limits must be relay.Limits(...), not {limits!r}", hint="relay.Limits() is no limit")
    if limits.memory is limits.seconds is limits.depth is None:
        return None
    return (limits.memory or 0, float(limits.seconds or 0), limits.depth or 0)


def load(path: str | os.PathLike[str], threads: int | None = None, from_cache: bool = False) -> Executable:
    """Load a ``.rlx`` file. Its native code is run as it is: load only files you trust. Raises FileError, and
    RelayError for a number of threads that is none."""
    require_count("threads", threads, "None: one for each core")
    file = file_path(path)
    return Executable(_runtime.Executable.load(os.fspath(file)), threads, from_cache)
