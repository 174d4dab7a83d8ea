"""Kernels to object bytes: looked up in the cache, and what is missing compiled on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relay.codegen.cache import KernelCache, kernel_key
from relay.codegen.workers import available_cores, compile_all
from relay.ir.collection import without_collection
from relay.ir.record import record
from relay.loop.ir import Kernel
from relay.loop.target import Target
from relay.loop.verify import verify


@record(frozen=True, slots=True)
class ObjectCode:
    """An ELF relocatable object and its one public symbol, a kernel."""

    symbol: str
    data: bytes


def build(
    kernels: Sequence[Kernel], target: Target, *, cache: Path | bool = True, workers: int | None = None
) -> list[ObjectCode]:
    """The object of each kernel, in order. It is named by what the kernel is, so that kernels that differ in their names alone, in one
    program or in several, are compiled once.

    ``cache`` is the directory of the disk cache (True: the user's; False: none). ``workers`` is how many
    processes may compile (None: one for each core). The objects do not depend on either. Raises LoopError for a
    loop nest that breaks the rules, CompileError when the target cannot do what a kernel needs.
    """
    store = None if cache is False else KernelCache(None if cache is True else cache)
    keys = [kernel_key(kernel, target) for kernel in kernels]
    found: dict[str, bytes] = {}
    missing: dict[str, Kernel] = {}
    for key, kernel in zip(keys, kernels, strict=True):
        if key in found or key in missing:
            continue
        known = None if store is None else store.get(key)
        if known is None:
            missing[key] = kernel
        else:
            found[key] = known
    processes = available_cores() if workers is None else workers
    with without_collection():
        for kernel in missing.values():
            verify(kernel)
        objects = compile_all(
            [replace(kernel, name=_symbol(key)) for key, kernel in missing.items()], target, processes
        )
    for key, data in zip(missing, objects, strict=True):
        found[key] = data
        if store is not None:
            store.put(key, data)
    if store is not None and missing:
        store.prune()
    return [ObjectCode(_symbol(key), found[key]) for key in keys]


def symbol_of(kernel: Kernel, target: Target) -> str:
    """The symbol of a kernel in its object."""
    return _symbol(kernel_key(kernel, target))


def _symbol(key: str) -> str:
    return f"kernel_{key[:32]}"
