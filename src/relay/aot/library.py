"""Programs as native libraries: a shared library or an object file with a C header, for use without Python.

A library holds the program's native code (`relay.aot.translate`), its kernels, and its tables and constants as an image in
read-only data, which is mapped, not copied, when the library is loaded. A shared library contains the runtime too; an object file is
linked with ``librelay_runtime.a``. The system's C compiler links.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from relay.aot.header import header_text
from relay.aot.layout import SYMBOL, VERSION, runtime_functions
from relay.aot.translate import translate
from relay.codegen.objects import compile_text, elf_symbols
from relay.executable.format import ExecutableImage
from relay.ir.diagnostics import CompileError, FileError
from relay.ir.files import write_whole
from relay.loop.target import Target

SUFFIXES: Final = (".so", ".o", ".h")
_PACKAGE: Final = Path(__file__).parents[1]


def write_library(image: ExecutableImage, path: str | os.PathLike[str], target: Target) -> list[Path]:
    """Write ``path``, whose suffix says what: ``.so`` or ``.o``, with the header beside it, or ``.h`` alone. Gives what it wrote.

    The C names begin with the file's name (``lib`` left off). Raises FileError for a path that cannot be written, CompileError when
    there is no C compiler or it fails.
    """
    out = Path(path)
    if out.suffix not in SUFFIXES:
        raise FileError(f"cannot write {out}: a library is one of {', '.join(SUFFIXES)}")
    name = c_name(out)
    header = out.with_suffix(".h")
    written = [header]
    try:
        if out.suffix != ".h":
            with tempfile.TemporaryDirectory(prefix="relay-") as folder:
                made = _link(image, Path(folder), out.suffix, name, target)
                write_whole(out, lambda temporary: shutil.copyfile(made, temporary))
            written.insert(0, out)
        write_whole(header, lambda temporary: temporary.write_text(header_text(image, name, out), encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot write {out}: {error.strerror}") from error
    return written


def c_name(path: Path) -> str:
    """The C identifier that a library's names begin with."""
    name = re.sub(r"\W", "_", path.stem.removeprefix("lib"), flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def include_folder() -> Path:
    """Where ``relay/c_api.h`` is."""
    return _first([_PACKAGE / "native/include", _PACKAGE.parents[1] / "runtime/include"], "the C header relay/c_api.h")


def runtime_archive() -> Path:
    """``librelay_runtime.a``: beside the package where it is installed, otherwise where the source tree has built it."""
    built = _PACKAGE.parents[1].glob("build/*/librelay_runtime.a")
    newest = sorted(built, key=lambda p: p.stat().st_mtime, reverse=True)
    return _first([_PACKAGE / "native/lib/librelay_runtime.a", *newest], "the runtime's library librelay_runtime.a")


def _first(paths: Sequence[Path], what: str) -> Path:
    for path in paths:
        if path.exists():
            return path
    raise FileError(f"{what} is not installed", hint="install Relay from its sources: pip install builds it")


def _link(image: ExecutableImage, folder: Path, suffix: str, name: str, target: Target) -> Path:
    """The library in a folder of its own."""
    inputs = [folder / "program.o", folder / "image.o"]
    tables = replace(image, objects=(), native=None).to_bytes()
    (folder / "image").write_bytes(tables)
    inputs[0].write_bytes(compile_text(_program_text(image, target, name, len(tables)), target, _outside(image, name)))
    # Large data has a section of its own, so that code reaches everything else whatever the size of the weights.
    section = '.lrodata,"al"' if target.triple.startswith("x86_64") else '.rodata,"a"'
    (folder / "image.s").write_text(
        f"""    .section {section},@progbits
    .balign 4096
    .globl {name}_image
    .hidden {name}_image
{name}_image:
    .incbin "{folder / "image"}"
    .section .note.GNU-stack,"",@progbits
"""
    )
    _compiler("-c", str(folder / "image.s"), "-o", str(inputs[1]))
    for number, code in enumerate(image.objects):
        inputs.append(folder / f"kernel{number}.o")
        inputs[-1].write_bytes(code)
    # Response files: there may be more kernels than a command line takes.
    (folder / "inputs").write_text("\n".join(str(path) for path in inputs))
    out = folder / f"out{suffix}"
    if suffix == ".o":
        _compiler("-r", "-nostdlib", f"@{folder / 'inputs'}", "-o", str(out))
        _tool("objcopy", f"--keep-global-symbol={name}_program", str(out))
        return out
    (folder / "exports").write_text(f"{{ global: {name}_program; relay_*; local: *; }};\n")
    _compiler(
        "-shared", "-s", f"@{folder / 'inputs'}", "-Wl,--whole-archive", str(runtime_archive()), "-Wl,--no-whole-archive",
        f"-Wl,--version-script={folder / 'exports'}", "-lstdc++", "-lpthread", "-lm", "-o", str(out),
    )  # fmt: skip
    return out


def _program_text(image: ExecutableImage, target: Target, name: str, size: int) -> str:
    """The functions, and the table through which the runtime finds everything."""
    _refuse_shared_names(image)
    kernels = [k.symbol for k in image.kernels]
    declared = "\n".join(f'declare hidden i32 @"{k}"(ptr, ptr, ptr)' for k in dict.fromkeys(kernels))
    table = ", ".join(f'ptr @"{k}"' for k in kernels)
    return f"""{translate(image, target).replace(f"define ptr @{SYMBOL}", f"define internal ptr @{SYMBOL}")}
{declared}
@{name}_image = external hidden constant i8
@kernels = internal constant [{len(kernels)} x ptr] [{table}]
@{name}_program = constant {{ i32, i32, ptr, i64, ptr, ptr }} {{
  i32 {VERSION}, i32 {len(kernels)}, ptr @{name}_image, i64 {size}, ptr @kernels, ptr @{SYMBOL} }}
"""


def _outside(image: ExecutableImage, name: str) -> frozenset[str]:
    return runtime_functions() | {f"{name}_image"} | {k.symbol for k in image.kernels}


def _refuse_shared_names(image: ExecutableImage) -> None:
    """Kernels are linked by name: a name must mean one object."""
    owner: dict[str, int] = {}
    for number, code in enumerate(image.objects):
        for symbol in elf_symbols(code)[0]:
            if owner.setdefault(symbol, number) != number:
                raise CompileError(f"two kernels define the symbol {symbol}, so they cannot be linked into one library")


def _compiler(*arguments: str) -> None:
    _tool(os.environ.get("CC") or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), "cc"), *arguments)


def _tool(name: str, *arguments: str) -> None:
    try:
        done = subprocess.run([name, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CompileError(
            f"linking a library needs {name}, which is not installed", hint="install a C compiler (gcc and binutils)"
        ) from None
    if done.returncode != 0:
        raise CompileError(f"{name} failed: {done.stderr.strip()[-2000:]}")
