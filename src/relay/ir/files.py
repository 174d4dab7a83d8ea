"""Where caches are and what becomes of what is old in them, reading programs' texts, and writing files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import platformdirs

from relay.ir.diagnostics import FileError

# Of a program; a device may have no end.
_MOST_CHARACTERS: Final = 1 << 28
_PRUNE_SECONDS: Final = 24 * 3600
_KEPT: Final = b"relay-kept-1\n"


def cache_directory() -> Path:
    """The user's cache directory."""
    return Path(platformdirs.user_cache_dir("relay", appauthor=False))


def file_path(path: str | os.PathLike[str]) -> Path:
    """What was given as a path. Raises FileError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise FileError(f"a path is a string or a pathlib.Path, not {path!r}")
    return Path(path)


def read_program(path: Path) -> str:
    """The text of a program, without the mark that some editors begin UTF-8 with. Raises FileError."""
    try:
        with path.open(encoding="utf-8-sig") as opened:
            text = opened.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not a text file ({error.reason})",
            hint="a program is text (.relay); a compiled one is named .rlx, and read by relay.load",
        ) from error
    if len(text) > _MOST_CHARACTERS:
        raise FileError(
            f"{path} has more than {_MOST_CHARACTERS:,} characters",
            hint="large constants belong into a safetensors file",
        )
    return text


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Have ``write`` write a temporary file in the same folder, then give it the name ``path``; readers see the old file or the new one.

    What a symbolic link points to is replaced, not the link; a device or a pipe is written to, never replaced. Raises FileError.
    """
    target = Path(os.path.realpath(file_path(path)))
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            write(target)
            return
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}{target.suffix}")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            write(temporary)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def keep(path: Path, data: bytes) -> None:
    """Keep data in a cache, with its digest. Does nothing where it cannot be written."""
    with contextlib.suppress(OSError, FileError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda temporary: temporary.write_bytes(_KEPT + hashlib.sha256(data).digest() + data))


def kept(path: Path) -> bytes | None:
    """What `keep` has kept there; None where there is nothing, or something damaged."""
    try:
        if not path.is_file():
            path.unlink(missing_ok=True)  # a pipe, say, that reading would wait for, and writing
            return None
        found = path.read_bytes()
    except OSError:
        return None
    head = len(_KEPT) + 32
    data = found[head:]
    whole = found.startswith(_KEPT) and hashlib.sha256(data).digest() == found[len(_KEPT) : head]
    return data if whole else None


def require_folder(path: Path) -> None:
    """Raises FileError where there is no folder to write a file in, which is better known before what takes long."""
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}")


def prune(directory: Path, pattern: str, max_bytes: int, now: bool = False) -> None:
    """Once a day, or ``now``: remove those files of a cache that were not used for longest, until the rest fits, or one is left.

    Not with every file that is kept: looking at ten thousand takes as long as compiling a small program. What cannot be looked at or
    removed stays.
    """
    stamp = directory / "pruned"
    files: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        if not now and stamp.exists() and time.time() - stamp.stat().st_mtime < _PRUNE_SECONDS:
            return
        stamp.touch()
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):  # another process has removed it
                info = path.stat()
                files.append((info.st_mtime, info.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files)[:-1]:
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
