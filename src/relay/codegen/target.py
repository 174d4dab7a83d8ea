"""Target descriptions from text, from a level of the architecture, or from the machine this process runs on.

``Target.features`` alone decides which instructions are used (positive LLVM feature names); ``Target.cpu`` only
tunes. So a description means the same code on every machine it is compiled on.

LLVM is asked about this machine, and loaded for that (a seventeenth of a second), only where a description is needed; to find what
was compiled for a target before, `target_identity` is enough.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import llvmlite

from relay._runtime import cpu_has
from relay.ir.diagnostics import CompileError
from relay.loop.target import Target

X86_TRIPLE = "x86_64-unknown-linux-gnu"
ARM_TRIPLE = "aarch64-unknown-linux-gnu"

_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS = {"x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
# What kernels can make use of beyond the levels; other features of the machine are left out of its description.
_USEFUL = ("avx512bf16", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512fp16", "avxvnni", "gfni", "prfchw")
_VNNI, _BF16 = "avx512vnni", "avx512bf16"
_AMX = ("amx-tile", "amx-bf16")

_CPUS: dict[str, tuple[str, ...]] = {
    **LEVELS,
    "generic": _V1,
    "nehalem": _V2, "westmere": _V2, "sandybridge": (*_V2, "avx"), "ivybridge": (*_V2, "avx", "f16c"),
    "haswell": _V3, "broadwell": _V3, "skylake": _V3, "alderlake": (*_V3, "avxvnni"), "raptorlake": (*_V3, "avxvnni"),
    "skylake-avx512": _V4, "cascadelake": (*_V4, _VNNI), "icelake-client": (*_V4, _VNNI, "avx512vbmi"),
    "icelake-server": (*_V4, _VNNI, "avx512vbmi"), "sapphirerapids": (*_V4, _VNNI, "avx512vbmi", _BF16, "avxvnni", *_AMX),
    "emeraldrapids": (*_V4, _VNNI, "avx512vbmi", _BF16, "avxvnni", *_AMX),
    "znver1": _V3, "znver2": _V3, "znver3": _V3, "znver4": (*_V4, _VNNI, "avx512vbmi", _BF16),
    "znver5": (*_V4, _VNNI, "avx512vbmi", _BF16, "avxvnni"),
}  # fmt: skip
_ARM_CPUS: dict[str, tuple[str, ...]] = {
    "generic": ("fp-armv8", "neon"),
    "cortex-a53": ("fp-armv8", "neon"),
    "cortex-a72": ("fp-armv8", "neon"),
    "cortex-a76": ("fp-armv8", "neon", "dotprod", "fullfp16"),
    "neoverse-n1": ("fp-armv8", "neon", "dotprod", "fullfp16"),
    "neoverse-v1": ("fp-armv8", "neon", "dotprod", "fullfp16", "bf16", "i8mm"),
    "neoverse-n2": ("fp-armv8", "neon", "dotprod", "fullfp16", "bf16", "i8mm"),
    "neoverse-v2": ("fp-armv8", "neon", "dotprod", "fullfp16", "bf16", "i8mm"),
}


_HOST = ("cpu", "host", "native", "llvm")  # this machine
# What Linux says of a processor that LLVM's description of it depends on; the rest changes from one moment, or start, to the next.
_CPU_FACTS = re.compile(
    rb"^(?:vendor_id|cpu family|model|model name|stepping|flags|Features|CPU (?:implementer|architecture|variant|part|revision))\s*:.*$",
    re.M,
)


def is_x86(target: Target) -> bool:
    return target.triple.startswith("x86_64")


def has(target: Target, feature: str) -> bool:
    """Whether code for the target may use the feature."""
    return feature in target.features


def runs_here(target: Target) -> bool:
    """Whether this machine can run code for the target."""
    host = host_target()
    return target.triple == host.triple and set(target.features) <= set(host.features)


def describe(triple: str, cpu: str, features: Iterable[str]) -> Target:
    """A target from its LLVM names, with the vector shape that follows from the features and usual cache sizes."""
    names = tuple(sorted(set(features)))
    if not triple.startswith("x86_64"):
        return Target(triple, cpu, names, 128, 32, False, True, 64 << 10, 1 << 20, 8 << 20)
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(names):
        return Target(triple, cpu, names, 512, 32, True, True, 32 << 10, 1 << 20, 16 << 20)
    fma = "fma" in names
    if "avx2" in names:
        return Target(triple, cpu, names, 256, 16, True, fma, 32 << 10, 512 << 10, 8 << 20)
    return Target(triple, cpu, names, 128, 16, False, fma, 32 << 10, 256 << 10, 8 << 20)


@cache
def host_target() -> Target:
    """The machine this process runs on, its cache sizes included."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if triple.startswith("x86_64"):
        present = {name for name, on in llvm.get_host_cpu_features().items() if on}
        tiles = [name for name in _AMX if cpu_has(name)]  # the system is asked for room for these registers
        target = describe(X86_TRIPLE, llvm.get_host_cpu_name(), (present & {*_V4, *_USEFUL}) | set(tiles))
    elif triple.startswith(("aarch64", "arm64")):
        present = {name for name, on in llvm.get_host_cpu_features().items() if on}
        useful = {"fp-armv8", "neon", "dotprod", "fullfp16", "bf16", "i8mm"}
        target = describe(ARM_TRIPLE, llvm.get_host_cpu_name(), (present & useful) | {"fp-armv8", "neon"})
    else:
        raise CompileError(
            f"no code generation for this machine ({triple})", hint="the targets are x86-64 and AArch64 Linux"
        )
    sizes = _cache_sizes()
    return replace(
        target,
        l1_bytes=sizes.get(1, target.l1_bytes),
        l2_bytes=sizes.get(2, target.l2_bytes),
        l3_bytes=sizes.get(3, target.l3_bytes),
    )


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data cache of each level, as Linux reports them for the first processor."""
    found: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
            if size is not None:
                scale = {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
                found[int((index / "level").read_text())] = int(size[1]) << scale
        except (OSError, ValueError):
            continue
    return found


def parse_target(text: str) -> Target:
    """A target from its description.

    ``cpu`` is the host; a level such as ``x86-64-v3`` or a CPU's LLVM name (``znver4``, ``neoverse-n1``), or
    ``aarch64``, is that machine. ``-mcpu=NAME`` and ``-mattr=+FEATURE,-FEATURE`` refine it, as in ``cpu
    -mcpu=znver4 -mattr=-avx512bf16``. Raises CompileError for a name it does not know.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CompileError(f"the target {text!r} cannot be read: {error}") from error
    base = words[0] if words and not words[0].startswith("-") else "cpu"
    rest = words[1:] if words and not words[0].startswith("-") else words
    cpu: str | None = None
    attrs: list[str] = []
    for word in rest:
        if word.startswith("-mcpu="):
            cpu = word.removeprefix("-mcpu=")
        elif word.startswith("-mattr="):
            attrs += [a for a in word.removeprefix("-mattr=").split(",") if a]
        else:
            raise CompileError(
                f"unknown word {word!r} in the target {text!r}", hint="use -mcpu=NAME and -mattr=+FEATURE"
            )
    if base in _HOST:
        target = (
            host_target() if cpu in (None, "native", "host") else _named(cpu or "", not is_x86(host_target()), text)
        )
    elif base in ("aarch64", "arm64") or base.startswith("aarch64-"):
        target = _named(cpu or "generic", True, text)
    elif base.startswith("x86_64"):
        if (level := base.replace("_", "-", 1)) in _CPUS and level != "x86-64":
            raise CompileError(f"the target {text!r} is no triple and no level", hint=f"the level is called {level}")
        target = _named(cpu or "x86-64", False, text)
    elif base.count("-") > 1 and base not in {*_CPUS, *_ARM_CPUS}:  # a triple
        raise CompileError(
            f"no code is made for {base.partition('-')[0]}, the architecture of the target {text!r}",
            hint="there is x86_64 and aarch64",
        )
    else:
        target = _named(cpu or base, base in _ARM_CPUS and base not in _CPUS, text)
    if not attrs:
        return target
    features = set(target.features)
    for attr in attrs:
        sign, name = attr[0], attr[1:]
        if sign not in "+-" or not name:
            raise CompileError(
                f"feature {attr!r} in the target {text!r}", hint="write +NAME to add and -NAME to remove"
            )
        _require_feature(name, is_x86(target), text)
        (features.add if sign == "+" else features.discard)(name)
    shape = describe(target.triple, target.cpu, features)
    return replace(shape, l1_bytes=target.l1_bytes, l2_bytes=target.l2_bytes, l3_bytes=target.l3_bytes)


def _require_feature(name: str, x86: bool, text: str) -> None:
    """Raises CompileError for a feature that nothing is known of: LLVM would say so on standard error, and go on."""
    known = {*_USEFUL, *_AMX}.union(*_CPUS.values()) if x86 else set().union(*_ARM_CPUS.values())
    if name in known:
        return
    import llvmlite.binding as llvm

    here = llvm.get_process_triple()
    if here.startswith("x86_64") != x86 or name not in llvm.get_host_cpu_features():
        raise CompileError(
            f"unknown feature {name!r} in the target {text!r}", hint=f"for example {', '.join(sorted(known))}"
        )


def target_identity(text: str) -> str:
    """A text that is the same only for equal targets, of one LLVM. Raises CompileError as `parse_target` does."""
    if text in _HOST and (facts := _processor()):
        return repr((os.uname().machine, facts, sorted(_cache_sizes().items())))
    return repr(parse_target(text))


def _processor() -> bytes:
    """What Linux says of the first processor; nothing where that is not enough."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(1 << 14).partition(b"\n\n")[0]
    except OSError:
        return b""
    facts = b"\n".join(_CPU_FACTS.findall(first))
    return facts if b"flags" in facts or b"Features" in facts else b""


def llvm_identity() -> tuple[str, list[int]]:
    """The LLVM that code is made by: its binding's version, and the size of its library."""
    folder = Path(llvmlite.__file__).parent / "binding"
    return llvmlite.__version__, sorted(path.stat().st_size for path in folder.glob("*llvmlite.*"))


def _named(cpu: str, arm: bool, text: str) -> Target:
    table = _ARM_CPUS if arm else _CPUS
    if cpu not in table:
        known = ", ".join(sorted({*_CPUS, *_ARM_CPUS}))
        raise CompileError(f"unknown CPU {cpu!r} in the target {text!r}", hint=f"one of cpu, aarch64, {known}")
    return describe(ARM_TRIPLE if arm else X86_TRIPLE, cpu, table[cpu])
