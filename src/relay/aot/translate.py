"""Bytecode to LLVM IR, so that a program runs without the dispatch loop.

The code keeps frames and registers where the virtual machine keeps them, on the run's control stack, and calls the runtime for what
is not worth inlining (``runtime/include/relay/native.h`` says how the two meet). A function is cut at its calls; its parts pass
control on by guaranteed tail calls, so the native stack never grows and a program recurses as deep as the control stack allows.
Instructions without a translation in `relay.aot.inline` are calls of the runtime's own meaning of them.
"""

from __future__ import annotations

from relay.aot.control import CONTROL
from relay.aot.function import FunctionText
from relay.aot.inline import INLINE
from relay.aot.kinds import scalars
from relay.aot.layout import HELPERS, RUNTIME_PREFIX, SYMBOL, VERSION, attributes
from relay.codegen.builder import ModuleText
from relay.executable.bytecode import Instruction, decode
from relay.executable.format import ExecutableImage
from relay.ir.diagnostics import CompileError
from relay.loop.target import Target


def translate(image: ExecutableImage, target: Target, inline: bool = True) -> str:
    """The LLVM IR of an image's functions; its one public symbol, `SYMBOL`, is the table of them.

    ``inline=False`` calls the runtime for every instruction, so that an observer sees them all. Raises CompileError for a control
    instruction that has no translation.
    """
    module = ModuleText()
    module.node("!{}")
    for name in ("destroy", "retain", "release"):
        module.declare(RUNTIME_PREFIX + name, "void", ["ptr"])
    kinds = scalars([decode(f.code) for f in image.functions], [f.arity for f in image.functions])
    for index, known in enumerate(kinds):
        FunctionText(module, image, target, index, known, inline).translate(_instruction)
    count = len(image.functions)
    table = ", ".join(f"ptr @f{n}_0" for n in range(count))
    return f"""{module.text()}{HELPERS}{attributes(target)}
@table = internal constant [{count} x ptr] [{table}]
define ptr @{SYMBOL}(i32 %version, i32 %count) #0 {{
  %v = icmp eq i32 %version, {VERSION}
  %n = icmp eq i32 %count, {count}
  %both = and i1 %v, %n
  %found = select i1 %both, ptr @table, ptr null
  ret ptr %found
}}
"""


def _instruction(f: FunctionText, at: Instruction) -> None:
    name = at.opcode.name
    if at.opcode.control:
        found = CONTROL.get(name)
        if found is None:
            raise CompileError(
                f"instruction {name} says what runs next, and relay.aot.control has no translation of it",
                hint="add it to CONTROL",
            )
        found(f, at)
    elif not (f.inline and name in INLINE and INLINE[name](f, at)):
        f.call_runtime(at)
