"""Bytecode as text, with the names of what it uses."""

from __future__ import annotations

from relay.executable.bytecode import DEVICES, DTYPES, FunctionCode, Instruction, decode
from relay.executable.format import ExecutableImage


def disassemble(image: ExecutableImage) -> str:
    """The whole program: its entries, kernels, constants, and every function's code, one instruction per
    line."""
    lines = [f"target {image.triple}" + (f" ({', '.join(image.features)})" if image.features else "")]
    for entry in image.entries:
        types = ", ".join(name or "any" for name in entry.dtypes)
        lines.append(f"entry @{entry.name}({types}) -> function {entry.function}")
    for number, kernel in enumerate(image.kernels):
        shown = [
            f"{op.dtype}[{op.rank}]" + (f" in place of {op.in_place}" if op.in_place >= 0 else "")
            for op in kernel.operands
        ]
        inputs, outputs = shown[: len(shown) - kernel.outputs], shown[len(shown) - kernel.outputs :]
        lines.append(
            f"kernel {number} {kernel.name}({', '.join(inputs)}) -> ({', '.join(outputs)}), {kernel.dims} dims"
        )
    for number, (constant, dtype) in enumerate(image.constants):
        lines.append(f"constant {number} {dtype}{list(constant.shape)}")
    for number, function in enumerate(image.functions):
        lines.append("")
        lines.append(f"function {number} @{function.name}: {function.arity} parameters, {function.registers} registers")
        lines.extend(disassemble_function(function, image))
    return "\n".join(lines) + "\n"


def disassemble_function(function: FunctionCode, image: ExecutableImage) -> list[str]:
    """The lines of one function: word index, instruction, operands; source spans as comments."""
    lines: list[str] = []
    spans = dict(function.spans)
    instructions = decode(function.code)
    targets = {label for instruction in instructions for label in _labels(instruction)}
    for instruction in instructions:
        if text := spans.get(instruction.at):
            lines.append(f"    ; {text}")
        mark = ">" if instruction.at in targets else " "
        operands = ", ".join(
            _operand(letter, operand, instruction, image)
            for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True)
        )
        lines.append(f"{mark}{instruction.at:5d}  {instruction.opcode.name:<18}{operands}".rstrip())
    return lines


def _labels(instruction: Instruction) -> list[int]:
    out: list[int] = []
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        if letter == "l" and isinstance(operand, int):
            out.append(operand)
        elif letter == "L" and isinstance(operand, tuple):
            out.extend(operand)
    return out


def _operand(letter: str, operand: int | tuple[int, ...], instruction: Instruction, image: ExecutableImage) -> str:
    match letter, operand:
        case "R", tuple():
            return "[" + ", ".join(f"r{register}" for register in operand) + "]"
        case "L", tuple():
            return "[" + ", ".join(f"->{label}" for label in operand) + "]"
        case (("d" | "r"), _):
            return f"r{operand}"
        case "o", _:
            return "-" if operand == -1 else f"r{operand}"
        case "l", _:
            return f"->{operand}"
        case "t", int():
            return DTYPES[operand]
        case "v", int():
            return DEVICES[operand]
        case "f", int():
            return f"@{image.functions[operand].name}"
        case "k", int():
            return image.kernels[operand].name
        case "u", int():
            return image.routines[operand]
        case "c", int():
            constant, dtype = image.constants[operand]
            return f"constant {operand} ({dtype}{list(constant.shape)})"
        case "m", int():
            return repr(image.messages[operand])
        case _:
            return str(operand)
