"""Kernels to object bytes: looked up in the cache, and what is missing compiled on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from relay.codegen.cache import KernelCache, kernel_key
from relay.codegen.workers import Compilers, available_cores
from relay.ir.collection import without_collection
from relay.ir.record import record
from relay.loop.ir import Kernel
from relay.loop.target import Target


@record(frozen=True, slots=True)
class ObjectCode:
    """An ELF relocatable object and its one public symbol, a kernel."""

    symbol: str
    data: bytes


class Build:
    """Objects of kernels that are looked up and compiled as they come, while more are being made. An object is named by what its kernel is,
    so that kernels that differ in their names alone, in one program or in several, are compiled once.

    ``cache`` is the directory of the disk cache (True: the user's; False: none). ``workers`` is how many
    processes may compile (None: one for each core). The objects do not depend on either. A context.
    """

    def __init__(self, target: Target, *, cache: Path | bool = True, workers: int | None = None) -> None:
        self._target = target
        self._store = None if cache is False else KernelCache(None if cache is True else cache)
        self._compilers = Compilers(target, available_cores() if workers is None else workers)
        # By the kernels' ids; they are kept, so that an id stands for one only.
        self._keys: dict[int, tuple[Kernel, str]] = {}
        self._found: dict[str, bytes] = {}
        self._missing: dict[str, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._compilers.__exit__()

    def add(self, kernel: Kernel) -> str:
        """The key of a kernel, which is compiled where it was not found."""
        if id(kernel) in self._keys:
            return self._keys[id(kernel)][1]
        key = kernel_key(kernel, self._target)
        self._keys[id(kernel)] = kernel, key
        if key in self._found or key in self._missing:
            return key
        known = None if self._store is None else self._store.get(key)
        if known is None:
            self._missing[key] = None
            self._compilers.add(replace(kernel, name=_symbol(key)))
        else:
            self._found[key] = known
        return key

    def objects(self, kernels: Sequence[Kernel]) -> list[ObjectCode]:
        """The object of each kernel, in order. Raises LoopError for a loop nest that breaks the rules, CompileError when the target
        cannot do what a kernel needs."""
        with without_collection():
            keys = [self.add(kernel) for kernel in kernels]
            compiled = self._compilers.objects()
        for key, data in zip(self._missing, compiled, strict=True):
            self._found[key] = data
            if self._store is not None:
                self._store.put(key, data)
        if self._store is not None and self._missing:
            self._store.prune()
        return [ObjectCode(_symbol(key), self._found[key]) for key in keys]


def build(
    kernels: Sequence[Kernel], target: Target, *, cache: Path | bool = True, workers: int | None = None
) -> list[ObjectCode]:
    """The object of each kernel, in order, as `Build` makes them."""
    with Build(target, cache=cache, workers=workers) as made:
        return made.objects(kernels)


def symbol_of(kernel: Kernel, target: Target) -> str:
    """The symbol of a kernel in its object."""
    return _symbol(kernel_key(kernel, target))


def _symbol(key: str) -> str:
    return f"kernel_{key[:32]}"
