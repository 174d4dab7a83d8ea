"""The disk cache of compiled kernels.

An object is kept under a hash of everything it depends on: the kernel's canonical text, the target, LLVM's
version and the sources of code generation. Files are written aside and renamed, so readers see whole ones; a
damaged file is a miss. A directory that cannot be written costs nothing but time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

import relay.ir.dim
import relay.ir.types
import relay.loop.ir
import relay.te.scalar
from relay.ir.files import cache_directory, keep, kept, prune
from relay.loop.ir import Kernel
from relay.loop.printer import kernel_text
from relay.loop.target import Target

_MAX_BYTES = 1 << 30


@cache
def sources_hash() -> str:
    """A hash of the compiler's own sources that decide what code is made."""
    digest = hashlib.sha256()
    single = (relay.te.scalar, relay.ir.dim, relay.ir.types)
    files = [Path(module.__file__ or "") for module in single]
    files += sorted(Path(__file__).parent.glob("*.py"))
    files += sorted(Path(relay.loop.ir.__file__ or "").parent.glob("*.py"))
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel_key(kernel: Kernel, target: Target) -> str:
    """The name of a kernel's object in the cache: what is called otherwise in another program is the same kernel."""
    version = ".".join(str(v) for v in llvm.llvm_version_info)
    text = "\n".join((sources_hash(), version, repr(target), kernel_text(replace(kernel, name="kernel"))))
    return hashlib.sha256(text.encode()).hexdigest()


class KernelCache:
    """Objects by key in a directory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = cache_directory() / "kernels" if directory is None else directory

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.o"

    def get(self, key: str) -> bytes | None:
        """The object, or None when there is none (or a damaged one)."""
        data = kept(self._path(key))
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path(key))
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object. Does nothing where the directory cannot be written."""
        keep(self._path(key), data)

    def prune(self, max_bytes: int = _MAX_BYTES) -> None:
        """Once a day: remove the objects that were not used for longest, until the rest fits."""
        prune(self.directory, "*/*.o", max_bytes)
