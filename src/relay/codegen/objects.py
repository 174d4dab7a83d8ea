"""LLVM IR text to object bytes, and the check that an object needs nothing from outside but memory functions.

LLVM is asked for little: the code is explicit (vectors, unrolling, tiles), so the passes only have to put stack
slots into registers, hoist what loops repeat and clean up. How much is left to find the code says itself, in its first
line (`relay.codegen.builder` computes nothing twice): in register tiles nothing, which takes a fifth of the time of all passes;
where no condition is on indices, nothing that takes its slower passes, without which it takes three quarters. Tiles beside code that
takes all passes are a module of their own, which is linked to the other when both are optimised.
"""

from __future__ import annotations

import struct
from functools import cache

import llvmlite.binding as llvm

from relay.codegen.target import is_x86
from relay.ir.diagnostics import CompileError
from relay.loop.target import Target

ALLOWED = frozenset({"memcpy", "memmove", "memset"})
# The first line of code that only has to be put into registers and cleaned up.
EXPLICIT = "; explicit\n"
# That of code without conditions on indices: LLVM's slower passes find nothing in it.
PLAIN = "; plain\n"
# Stands between modules that are optimised each by its own first line and become one.
LINKED = "; linked\n"


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _machine(triple: str, cpu: str) -> llvm.TargetMachine:
    _initialise()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CompileError(f"no code generation for {triple}: {error}") from None
    return target.create_target_machine(cpu=cpu, opt=2, reloc="pic", codemodel="small")


def machine(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator for a target. The features are on the functions."""
    return _machine(target.triple, "x86-64" if is_x86(target) else "generic")


def optimise(text: str, target: Target) -> llvm.ModuleRef:
    """Parse and optimise a module, or one in parts. Raises CompileError when the text is not valid LLVM IR (a defect)."""
    module, *others = [_optimised(part, target) for part in text.split(LINKED)]
    for other in others:
        module.link_in(other)
    for function in module.functions if others else ():
        if not function.is_declaration and function.visibility == llvm.Visibility.hidden:
            function.linkage = llvm.Linkage.internal
    return module


def _optimised(text: str, target: Target) -> llvm.ModuleRef:
    tm = machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"code generation made invalid LLVM IR: {error}") from None
    module.triple = target.triple
    module.data_layout = str(tm.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1 if text.startswith(PLAIN) else 2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(tm, options)
    if text.startswith(EXPLICIT):
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    else:
        passes = builder.getModulePassManager()
    try:
        passes.run(module, builder)
    finally:
        # Closing it frees nothing (a base class hides what would), which costs a process 70 KB for every module.
        llvm.ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
        passes.detach()
    return module


def compile_text(text: str, target: Target, allowed: frozenset[str] = frozenset()) -> bytes:
    """An ELF relocatable object of a module. Raises CompileError when it calls anything but the memory functions and those
    ``allowed``."""
    module = optimise(text, target)
    data: bytes = machine(target).emit_object(module)
    outside = elf_symbols(data)[1] - ALLOWED - allowed
    if outside:
        names = ", ".join(sorted(outside))
        raise CompileError(
            f"generated code calls {names}, which a kernel may not (only {', '.join(sorted(ALLOWED))})",
            hint="the target lacks an instruction that code generation counts on; check its features",
        )
    return data


def assembly(text: str, target: Target) -> str:
    """The optimised code of a module as assembly."""
    out: str = machine(target).emit_assembly(optimise(text, target))
    return out


def elf_symbols(data: bytes) -> tuple[set[str], set[str]]:
    """The public symbols that an ELF64 little-endian object defines, and those it needs. Raises CompileError
    for other data."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise CompileError("generated code is not a 64-bit little-endian ELF object")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + n * size) for n in range(count)]
    defined: set[str] = set()
    needed: set[str] = set()
    for header in headers:
        if header[1] != 2:  # SHT_SYMTAB
            continue
        strings = headers[header[6]][4]
        for at in range(header[4] + 24, header[4] + header[5], 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            text = data[strings + name : data.index(b"\0", strings + name)].decode()
            if section == 0 and name:
                needed.add(text)
            elif info >> 4:  # not local
                defined.add(text)
    return defined, needed
