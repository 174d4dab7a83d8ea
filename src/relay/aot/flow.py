"""What the translator knows of a function before it writes code: blocks, the parts it is cut into, registers that only hold scalars.

Everything here is linear in the function's code.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

from relay.executable.bytecode import DTYPES, ENDS_CONTROL, FunctionCode, Instruction, decode

CALLS = frozenset({"Invoke", "InvokeClosure"})  # after which the function goes on, in another part
INT64_RESULTS = frozenset(
    {"IAdd", "ISub", "IMul", "IFloorDiv", "IMod", "IMin", "IMax", "DimOf", "GetTag", "NumWorkers"}
)
LONGEST = 64  # instructions of a part: LLVM takes more than linear time for long functions
_ANY = "any"


@dataclass(frozen=True, slots=True)
class Flow:
    """A function taken apart. ``blocks``: the instructions from each place control can come to, up to the next one. ``part``: the
    block at which the part begins that a block belongs to; blocks that nothing leads to are absent. ``scalars``: the dtype of
    every register that holds nothing else. ``assigned_once``: registers that are nil when they are assigned."""

    blocks: dict[int, list[Instruction]]
    part: dict[int, int]
    scalars: dict[int, str]
    assigned_once: frozenset[int]
    loops: bool


def flow(function: FunctionCode) -> Flow:
    """The control flow and the registers of a function."""
    instructions = decode(function.code)
    blocks = _blocks(instructions)
    order = sorted(blocks)
    after = dict(itertools.pairwise(order))
    sources: defaultdict[int, list[int]] = defaultdict(list)
    heads = {0}
    loops = False
    for begin in order:
        last = blocks[begin][-1]
        for label in labels(last):
            sources[label].append(begin)
            if label <= last.at:
                heads.add(label)
                loops = True
        if last.opcode.name in CALLS:
            heads.add(after[begin])
        if last.opcode.name not in ENDS_CONTROL:
            sources[after[begin]].append(begin)
    # Jumps go forward but for those to heads, so a block's sources are placed before it.
    part: dict[int, int] = {}
    size: defaultdict[int, int] = defaultdict(int)
    for begin in order:
        from_parts = {part[s] for s in sources[begin] if s in part and s < begin}
        if not from_parts and begin != 0:
            continue
        only = from_parts.pop() if len(from_parts) == 1 and begin not in heads else begin
        part[begin] = only if size[only] + len(blocks[begin]) <= LONGEST else begin
        size[part[begin]] += len(blocks[begin])
    return Flow(blocks, part, _scalars(function, instructions), _assigned_once(function, instructions, loops), loops)


def labels(instruction: Instruction) -> tuple[int, ...]:
    """Where an instruction may jump to."""
    out: tuple[int, ...] = ()
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        if letter == "l" and isinstance(operand, int):
            out += (operand,)
        elif letter == "L" and isinstance(operand, tuple):
            out += operand
    return out


def _blocks(instructions: list[Instruction]) -> dict[int, list[Instruction]]:
    begins = {0}
    for instruction, following in itertools.pairwise(instructions):
        begins.update(labels(instruction))
        if instruction.opcode.control or instruction.opcode.name in ENDS_CONTROL:
            begins.add(following.at)
    begins.update(labels(instructions[-1]))
    blocks: dict[int, list[Instruction]] = {}
    current: list[Instruction] = []
    for instruction in instructions:
        if instruction.at in begins or len(current) == LONGEST:
            current = blocks[instruction.at] = []
        current.append(instruction)
    return blocks


def destination(instruction: Instruction) -> int | None:
    """The register an instruction assigns."""
    if not instruction.opcode.operands.startswith("d"):
        return None
    register = instruction.operands[0]
    assert isinstance(register, int)
    return register


def _scalars(function: FunctionCode, instructions: list[Instruction]) -> dict[int, str]:
    held: dict[int, str] = dict.fromkeys(range(function.arity), _ANY)
    copies: defaultdict[int, list[int]] = defaultdict(list)
    changed: list[int] = []

    def join(register: int, dtype: str) -> None:
        before = held.get(register)
        now = dtype if before in (None, dtype) else _ANY
        if now != before:
            held[register] = now
            changed.append(register)

    for instruction in instructions:
        out = destination(instruction)
        if out is None:
            continue
        operands = instruction.operands
        match instruction.opcode.name:
            case "Move":
                source = operands[1]
                assert isinstance(source, int)
                copies[source].append(out)
                if source in held:
                    join(out, held[source])
            case "LoadConsti" | "AllocScalar":
                assert isinstance(operands[1], int)
                join(out, DTYPES[operands[1]])
            case name:
                join(out, "int64" if name in INT64_RESULTS else _ANY)
    while changed:
        source = changed.pop()
        for out in copies[source]:
            join(out, held[source])
    return {register: dtype for register, dtype in held.items() if dtype != _ANY}


def _assigned_once(function: FunctionCode, instructions: list[Instruction], loops: bool) -> frozenset[int]:
    if loops:
        return frozenset()
    times: defaultdict[int, int] = defaultdict(int)
    for instruction in instructions:
        out = destination(instruction)
        if out is not None:
            times[out] += 1
    return frozenset(r for r, n in times.items() if n == 1 and r >= function.arity)
