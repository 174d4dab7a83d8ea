"""`relay.compile`: from the cache, or by `relay.pipeline`, which is imported only where there is something to compile."""

from __future__ import annotations

import gc
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay._runtime import pool_trim
from relay.codegen.target import parse_target, target_identity
from relay.executable.program import Executable, load
from relay.ir.diagnostics import RelayError
from relay.ir.expr import Function
from relay.ir.module import Module
from relay.loading import as_module
from relay.options import Options, options_from
from relay.program_cache import ProgramCache, program_key

if TYPE_CHECKING:
    from relay.executable.format import ExecutableImage

# Bytes of constants for which it is worth going through all objects to find those that nothing needs.
_LARGE = 32 << 20


def compile(module: Module | Function | str, options: Options | None = None, **keywords: Any) -> Executable:
    """Compile a module (or a function, or Relay text) to an executable.

    Options as an object, as keywords, or both (keywords win). The compiled program is kept in the cache, and taken from there when the
    same program is compiled again with the same options. Kernels that only `run_batch` needs are compiled when it first needs them, or
    the executable is saved. Raises RelayError.
    """
    chosen = options_from(options, keywords)
    typed = as_module(module)
    cache = ProgramCache(chosen.directory)
    key = program_key(typed, chosen, target_identity(chosen.target))
    exe = cache.get(key, chosen.threads)
    if exe is None:
        image = _image(typed, chosen, later=True)
        path = cache.put(key, image)
        if path is None:
            exe = Executable.from_bytes(image.to_bytes(), chosen.threads)
        else:
            large = sum(array.nbytes for array, _ in image.constants) >= _LARGE
            del image  # its constants are in the file now: not twice in memory
            if large:
                gc.collect()  # closures that refer to themselves hold parts of what passes have made
                pool_trim()  # and packed constants came from the pool, which keeps what it gets back
            exe = load(path, chosen.threads)
    exe.build_kernels(chosen.kernel_cache, chosen.workers)
    exe.limits = chosen.limits
    exe.check_memory = chosen.check_memory
    exe.flush_subnormals = chosen.flush_subnormals
    if chosen.specialise_hot or chosen.hot_sizes:
        return _with_variants(exe, typed, chosen, cache.beside(key, "hot.json"))
    return exe


def _with_variants(exe: Executable, module: Module, options: Options, record: Path | None) -> Executable:
    from relay.hot import HotExecutable

    plain = replace(options, specialise_hot=False, hot_sizes=())
    found = HotExecutable(
        exe,
        module,
        options.entries,
        lambda m, entry: compile(m, replace(plain, entries=(entry,))),
        record if options.specialise_hot else None,
    )
    found.specialise = options.specialise_hot
    for sizes in options.hot_sizes:
        found.prepare_fitting(sizes)
    return found


def build_library(
    module: Module | Function | str, path: str | PathLike[str], options: Options | None = None, **keywords: Any
) -> list[Path]:
    """Compile a module to native code for use without Python: ``path`` is a shared library (``.so``), an object file (``.o``), either
    with a C header beside it, or the header alone (``.h``). Gives the files written; see `relay.aot.library`. Raises RelayError."""
    from relay.aot.library import write_library

    chosen = replace(options_from(options, keywords), executor="vm")
    return write_library(_image(as_module(module), chosen), path, parse_target(chosen.target))


def _image(module: Module, options: Options, later: bool = False) -> ExecutableImage:
    from relay.pipeline import build

    try:
        return build(module, options, later=later).image
    except RelayError as error:
        error.with_source(module.sources)
        raise
