"""Native code of an image's functions as one object."""

from __future__ import annotations

from dataclasses import replace

from relay.aot.layout import runtime_functions
from relay.aot.translate import translate
from relay.codegen.objects import compile_text
from relay.executable.format import ExecutableImage
from relay.loop.target import Target


def with_native_code(image: ExecutableImage, target: Target, inline: bool = True) -> ExecutableImage:
    """The image with native code for its functions; runtimes prefer it to the bytecode, which stays: instructions that are
    not inlined read their operands there, and errors their source places. ``inline=False``: see `translate`."""
    return replace(image, native=native_object(image, target, inline))


def native_object(image: ExecutableImage, target: Target, inline: bool = True) -> bytes:
    """The ELF relocatable object of an image's functions."""
    return compile_text(translate(image, target, inline), target, runtime_functions())
