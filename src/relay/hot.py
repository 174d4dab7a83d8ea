"""Variants of a program for the sizes that it is called with most.

A program of symbolic sizes is compiled once for all of them. Where the sizes are known, loops have known ends, buffers are planned at
compile time, and schedules that depend on sizes are decided. `HotExecutable` counts the sizes of calls; a background thread compiles a
variant for those that come often, and both are measured on the next calls: from then on each size is dispatched to what was faster
(dissertation, section 5.4.3: the profile decides, at run time, from a table). The table is replaced as a whole, so a call sees an old or a
new one, never half of one. What was found hot is written beside the program in the cache, and its variants are there from the start in
the next process.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import cast

from relay.executable.program import Allowed, Executable, Observer
from relay.executable.runtime import _runtime
from relay.ir.diagnostics import FileError, RelayError, ShapeError
from relay.ir.dim import Dim, DimVar, SymDim, dim_linear
from relay.ir.expr import Call, Function, GlobalVar, Var
from relay.ir.files import write_whole
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, Type
from relay.transform.dims import whole_axes
from relay.typing.substitution import map_type

# Calls with the same sizes after which they are hot, variants of one entry, and calls that each of two is measured on.
_HOT, _MOST, _TRIALS = 24, 8, 5

# The sizes of the axes that an entry's dim variables are read off, in their order.
Sizes = tuple[int, ...]
# Compiles a module for one entry.
Compile = Callable[[Module, str], Executable]


@record(frozen=True, slots=True, eq=False)
class Variant:
    """An executable for given sizes, and the entry of it to call."""

    executable: Executable
    entry: str


@record(slots=True, eq=False)
class _Trial:
    """Both ways being measured: the seconds of calls so far. Only the thread that holds ``lock`` measures."""

    variant: Variant
    lock: threading.Lock = field(default_factory=threading.Lock)
    general: list[float] = field(default_factory=list)
    special: list[float] = field(default_factory=list)


@record(frozen=True, slots=True, eq=False)
class _Binder:
    """Where a dim variable is read off: an axis of an argument, whose size is ``factor * dim + constant``."""

    dim: DimVar
    argument: int
    axis: int
    factor: int = 1
    constant: int = 0

    def value(self, size: int) -> int:
        """The variable's value where the axis has this size, rounded down where none gives it (which an entry refuses)."""
        return (size - self.constant) // self.factor


class HotExecutable(Executable):
    """An executable that makes variants for the sizes it is called with often; otherwise like any other.

    A variant's results differ from the general program's by rounding at most. Threads may share it. Variants are made only while
    ``specialise`` is true (from then on calls go where they went before).
    """

    def __init__(
        self, general: Executable, module: Module, entries: Sequence[str], compile_: Compile, record: Path | None
    ) -> None:
        super().__init__(general._program, general._threads or None, general.from_cache)
        self._kernels_by = general._kernels_by
        self.limits = general.limits
        self._check_memory, self._flush_subnormals = general.check_memory, general.flush_subnormals
        self.specialise = True
        self.failures: dict[tuple[str, Sizes], RelayError] = {}
        self._module = module
        self._compile = compile_
        self._record = record
        self._binders = {name: _binders(module.function(name)) for name in entries}
        self._counts: dict[tuple[str, Sizes], int] = {}
        # What a call looks up; never changed, only replaced.
        self._table: Mapping[tuple[str, Sizes], Variant | _Trial | None] = MappingProxyType({})
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, Sizes]] = []
        self._worker: threading.Thread | None = None
        for entry, sizes in self._recorded():
            with contextlib.suppress(RelayError):
                self._replace((entry, sizes), self._variant(entry, sizes))

    def _run(
        self,
        entry: str,
        args: Sequence[object],
        donate: tuple[int, ...],
        allowed: Allowed | None,
        observer: Observer | None,
    ) -> object:
        """Call an entry, by the variant for its arguments' sizes where that is faster."""
        sizes = self._sizes(entry, args) if observer is None else None
        if sizes is None:
            return super()._run(entry, args, donate, allowed, observer)
        key = (entry, sizes)
        found = self._table.get(key)
        if isinstance(found, Variant):
            return _by(found, entry, args, donate, allowed)
        if isinstance(found, _Trial):
            return self._measured(key, found, args, donate, allowed)
        if found is None and key not in self._table and self.specialise:
            self._count(key)
        return super()._run(entry, args, donate, allowed, None)

    def variants(self, entry: str = "main") -> list[dict[str, int]]:
        """The sizes, by name, that an entry has a variant for (one that is in use or being measured)."""
        names, table = self._names(entry), self._table
        return [
            dict(zip(names, self._values(e, s), strict=True))
            for (e, s), v in table.items()
            if e == entry and v is not None
        ]

    def prepare(self, entry: str, sizes: Mapping[str, int]) -> None:
        """Make the variant for these sizes now, and use it without measuring. Raises RelayError for sizes that the entry has not."""
        names = self._names(entry)
        if set(names) != set(sizes) or not names:
            raise _no_such_sizes([(entry, names)], sizes)
        wanted = self._axes(entry, sizes)
        self._replace((entry, wanted), self._variant(entry, wanted))

    def prepare_fitting(self, sizes: Mapping[str, int]) -> None:
        """`prepare` every entry all of whose sizes are given, with those of them that it has: entries of one program share names
        of sizes. Raises RelayError where a name is no size of such an entry."""
        fitting = {
            entry: names for entry in self._binders if (names := self._names(entry)) and set(names) <= set(sizes)
        }
        if not fitting or set(sizes) != {n for names in fitting.values() for n in names}:
            raise _no_such_sizes([(entry, self._names(entry)) for entry in self._binders], sizes)
        for entry, names in fitting.items():
            if (entry, self._axes(entry, sizes)) not in self._table:
                self.prepare(entry, {n: sizes[n] for n in names})

    def _names(self, entry: str) -> list[str]:
        return [b.dim.name for b in self._binders.get(entry, ())]

    def _axes(self, entry: str, sizes: Mapping[str, int]) -> Sizes:
        return tuple(b.factor * int(sizes[b.dim.name]) + b.constant for b in self._binders[entry])

    def _values(self, entry: str, sizes: Sizes) -> list[int]:
        """The dim variables' values for these sizes of the axes."""
        return [b.value(size) for b, size in zip(self._binders[entry], sizes, strict=True)]

    def wait(self, seconds: float | None = None) -> None:
        """Wait until no variant is being compiled."""
        worker = self._worker
        if worker is not None and worker.is_alive():
            worker.join(seconds)

    # -- calls

    def _sizes(self, entry: str, args: Sequence[object]) -> Sizes | None:
        binders = self._binders.get(entry)
        if not binders:
            return None
        try:
            return tuple([args[b.argument].shape[b.axis] for b in binders])  # type: ignore[attr-defined]
        except (AttributeError, IndexError, TypeError):
            return None  # what is wrong with them the general program will say

    def _measured(
        self,
        key: tuple[str, Sizes],
        trial: _Trial,
        args: Sequence[object],
        donate: tuple[int, ...],
        allowed: Allowed | None,
    ) -> object:
        if not trial.lock.acquire(blocking=False):  # another thread measures
            return super()._run(key[0], args, donate, allowed, None)
        try:
            special = len(trial.special) <= len(trial.general)
            start = time.perf_counter()
            result = (
                _by(trial.variant, key[0], args, donate, allowed)
                if special
                else super()._run(key[0], args, donate, allowed, None)
            )
            (trial.special if special else trial.general).append(time.perf_counter() - start)
            if len(trial.general) >= _TRIALS:
                # The first call of the variant also touched its memory and code for the first time.
                faster = statistics.median(trial.special[1:]) <= statistics.median(trial.general)
                self._replace(key, trial.variant if faster else None)
                self._write()
            return result
        finally:
            trial.lock.release()

    # -- variants

    def _count(self, key: tuple[str, Sizes]) -> None:
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if count < _HOT or key in self.failures:
            return
        with self._lock:
            table = self._table
            chosen = sum(1 for (entry, _), v in table.items() if entry == key[0] and v is not None)
            if key in table or key in self._waiting or chosen + len(self._waiting) >= _MOST:
                return
            self._waiting.append(key)
            if self._worker is None or not self._worker.is_alive():  # none is after a fork either
                self._worker = threading.Thread(target=self._work, name="relay-variants", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._worker = None
                    return
                key = self._waiting[0]
            try:
                self._replace(key, _Trial(self._variant(*key)))
            except RelayError as error:
                self.failures[key] = error
            finally:
                with self._lock:
                    self._waiting.remove(key)

    def _variant(self, entry: str, sizes: Sizes) -> Variant:
        dims = {b.dim: value for b, value in zip(self._binders[entry], self._values(entry, sizes), strict=True)}
        for dim, value in dims.items():
            if value < 0:
                raise ShapeError(f"the size {dim.name} of @{entry} cannot be {value}")
        module, name = with_sizes(self._module, entry, dims)
        executable = self._compile(module, name)
        executable.check_memory, executable.flush_subnormals = self.check_memory, self.flush_subnormals
        return Variant(executable, name)

    def _programs(self) -> list[_runtime.Executable]:
        found = [v.variant if isinstance(v, _Trial) else v for v in self._table.values() if v is not None]
        return [self._program, *(v.executable.program for v in found)]

    def _replace(self, key: tuple[str, Sizes], value: Variant | _Trial | None) -> None:
        with self._lock:
            self._table = MappingProxyType({**self._table, key: value})

    # -- what is remembered

    def _recorded(self) -> list[tuple[str, Sizes]]:
        if self._record is None:
            return []
        try:
            found = json.loads(self._record.read_text())
            out = [(str(entry), tuple(int(s) for s in sizes)) for entry, sizes in found]
        except (OSError, ValueError, TypeError):
            return []
        return [(e, s) for e, s in out if len(s) == len(self._binders.get(e, ()))][:_MOST]

    def _write(self) -> None:
        if self._record is None:
            return
        hot = [key for key, value in self._table.items() if isinstance(value, Variant)]
        with contextlib.suppress(FileError):  # a cache that cannot be written is no reason to fail
            write_whole(self._record, lambda temporary: temporary.write_text(json.dumps(hot)))


def _by(
    variant: Variant, entry: str, args: Sequence[object], donate: tuple[int, ...], allowed: Allowed | None
) -> object:
    try:
        return variant.executable._run(variant.entry, args, donate, allowed, None)
    except RelayError as error:  # it names the entry that was called
        error.message = error.message.replace(f"@{variant.entry}", f"@{entry}")
        raise


def _binders(function: Function) -> tuple[_Binder, ...]:
    """Where the dim parameters of a function are read off its tensor arguments, whole axes before others; none where one of them
    cannot be."""
    wanted = [p for p in function.type_params if isinstance(p, DimVar)]
    found: dict[DimVar, _Binder] = {}
    for n, param in enumerate(function.params):
        for dim, axis in whole_axes(param.ty):
            found.setdefault(dim, _Binder(dim, n, axis))
    for n, param in enumerate(function.params):
        if isinstance(param.ty, TensorType) and isinstance(param.ty.shape, tuple):
            for axis, size in enumerate(param.ty.shape):
                solved = dim_linear(size) if isinstance(size, SymDim) else None
                if solved is not None:
                    found.setdefault(solved[0], _Binder(solved[0], n, axis, *solved[1:]))
    if len(wanted) != len(function.type_params) or any(d not in found for d in wanted):
        return ()
    return tuple(found[d] for d in wanted)


def _no_such_sizes(entries: Sequence[tuple[str, Sequence[str]]], sizes: Mapping[str, int]) -> RelayError:
    """The error of sizes that are none of these entries'."""
    have = [
        f"@{entry} has {'the sizes ' + ', '.join(names) if names else 'no symbolic sizes'}" for entry, names in entries
    ]
    return RelayError(
        f"{'; '.join(have)}, not {', '.join(sizes)}",
        hint="hot_sizes takes a value for every symbolic size of an entry's tensor arguments",
    )


def with_sizes(module: Module, entry: str, dims: Mapping[DimVar, int]) -> tuple[Module, str]:
    """The module with an entry more that takes arguments of known sizes only and calls ``entry``, and its name."""
    function = module.function(entry)
    assert isinstance(function.ty, FuncType)

    def known(ty: Type | None) -> Type:
        assert ty is not None
        return cast(Type, map_type(ty, lambda _: None, dims.get))

    params = tuple(Var(p.name, None, known(p.ty)) for p in function.params)
    result = known(function.ty.ret)
    args = tuple(cast(Dim, dims[p]) for p in function.type_params if isinstance(p, DimVar))
    call = Call(GlobalVar(entry, function.ty), params, type_args=args, ty=result)
    ty = FuncType(tuple(known(p.ty) for p in params), result)
    name = f"{entry}.{'.'.join(f'{d.name}{size}' for d, size in dims.items())}"
    made = Function(params, call, result, ty=ty, span=function.span)
    return module.with_functions({**module.functions, name: made}), name
