"""Whole compiled programs on disk, by what they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relay._runtime import available_threads
from relay.codegen.target import llvm_identity
from relay.executable.program import Executable, load
from relay.ir.diagnostics import FileError
from relay.ir.expr import Constant
from relay.ir.files import prune
from relay.ir.mapped import content_digest
from relay.ir.module import Module
from relay.ir.walk import post_order
from relay.op.foreign import foreign_definitions
from relay.options import Options

if TYPE_CHECKING:
    from relay.executable.format import ExecutableImage

_LARGE = 1 << 16  # bytes of a constant that are worth a turn of a thread


@cache
def compiler_digest() -> bytes:
    """A digest of the compiler itself: a program compiled by other sources is not this program compiled."""
    root = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".lark", ".relay", ".so")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    digest.update(repr((llvm_identity(), np.__version__)).encode())
    return digest.digest()


def program_key(module: Module, options: Options, target: str) -> str | None:
    """What identifies a compiled program: its text, its constants' contents, what the author's operators in it are, the target, the
    options that change code. None for a program that nothing here identifies."""
    definitions = foreign_definitions(module.functions.values())
    if definitions is None:
        return None
    digest = hashlib.blake2b(compiler_digest(), digest_size=20)
    digest.update(str(module).encode())
    for definition in definitions:
        digest.update(definition.encode())
    constants: list[Constant] = []
    for name in module.functions:
        digest.update(name.encode())
        found = [node for node in post_order(module.functions[name]) if isinstance(node, Constant)]
        digest.update(repr([(c.dtype, c.data.shape) for c in found]).encode())
        constants += found
    # Hashing gigabytes of weights is most of a start from the cache; it runs outside of the interpreter's lock.
    large = [c.data for c in constants if c.data.nbytes >= _LARGE]
    with ThreadPoolExecutor(available_threads()) as threads:
        large_digests = threads.map(content_digest, large)
        for constant in constants:
            if constant.data.nbytes < _LARGE:
                digest.update(content_digest(constant.data))
        for content in large_digests:
            digest.update(content)
    digest.update(repr((target, options.opt_level, options.entries, options.executor, options.precision)).encode())
    if options.machine is not None:
        digest.update(repr(options.machine).encode())
    if options.memory_budget is not None:  # workspace is counted for each thread
        digest.update(repr((options.memory_budget, options.threads)).encode())
    if options.tune:  # what is fastest depends on the threads there are
        digest.update(repr(("tuned", options.threads)).encode())
    return digest.hexdigest()


class ProgramCache:
    """Executables by key in a directory (None: nothing is kept). Old ones are dropped when the directory grows past a limit."""

    limit_bytes = 4 << 30

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory / "programs" if directory is not None else None

    def get(self, key: str | None, threads: int | None) -> Executable | None:
        """The executable, or None when there is none that loads."""
        if self._directory is None or key is None:
            return None
        path = self._directory / f"{key}.rlx"
        if not path.exists():
            return None
        try:
            found = load(path, threads, from_cache=True)
        except FileError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        # Another process may have dropped it, or the directory be one that only others write.
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def put(self, key: str | None, image: ExecutableImage) -> Path | None:
        """Keep an image; gives its file, or None where nothing can be kept: no reason to fail."""
        if self._directory is None or key is None:
            return None
        path = self._directory / f"{key}.rlx"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            image.save(path, lasting=False)  # what a failing machine leaves incomplete, its checksum tells
            # Small ones wait for the day to end.
            prune(self._directory, "*.rlx", self.limit_bytes, now=path.stat().st_size > self.limit_bytes // 64)
        except (OSError, FileError):
            return None
        return path

    def beside(self, key: str | None, suffix: str) -> Path | None:
        """A file for what is remembered of a program, beside it; None where nothing is kept."""
        return None if self._directory is None or key is None else self._directory / f"{key}.{suffix}"
