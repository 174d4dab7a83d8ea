"""What the translator knows of a function before it writes code: blocks, the parts it is cut into, which registers are read
later, and which may hold a reference.

Sets of registers are bits of numbers. Everything here is linear in the function's code, but for the sets.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from relay.aot.kinds import destination
from relay.executable.bytecode import ENDS_CONTROL, FunctionCode, Instruction, decode

CALLS = frozenset({"Invoke", "InvokeClosure"})  # after which the function goes on, in another part
LONGEST = 64  # instructions of a part: LLVM takes more than linear time for long functions


@dataclass(frozen=True, slots=True)
class Flow:
    """A function taken apart. ``blocks``: the instructions from each place control can come to, up to the next one. ``part``: the
    block at which the part begins that a block belongs to; blocks that nothing leads to are absent.

    ``scalars``: the dtype of every register that holds nothing else. ``live``: those of them that are read at a block's beginning
    or later, before they are assigned. ``held``: the other registers that may hold something at a block's beginning.
    """

    blocks: dict[int, list[Instruction]]
    part: dict[int, int]
    scalars: dict[int, str]
    live: dict[int, int]
    held: dict[int, int]


def flow(function: FunctionCode, scalars: Mapping[int, str]) -> Flow:
    """The control flow and the registers of a function."""
    blocks = _blocks(decode(function.code))
    order = sorted(blocks)
    after = dict(itertools.pairwise(order))
    sources: defaultdict[int, list[int]] = defaultdict(list)
    heads = {0}
    for begin in order:
        last = blocks[begin][-1]
        for label in labels(last):
            sources[label].append(begin)
            if label <= last.at:
                heads.add(label)
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
    # What nothing assigns before it is read may be nil, and so is no scalar.
    mask = sum(1 << r for r in scalars)
    live = _live(blocks, part, sources, mask)
    unset = live[0] & ~((1 << function.arity) - 1)
    known = {r: dtype for r, dtype in scalars.items() if not unset >> r & 1}
    mask &= ~unset
    live = {begin: registers & mask for begin, registers in live.items()}
    return Flow(blocks, part, known, live, _held(blocks, part, sources, ((1 << function.arity) - 1) & ~mask, mask))


def labels(instruction: Instruction) -> tuple[int, ...]:
    """Where an instruction may jump to."""
    out: tuple[int, ...] = ()
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        if letter == "l" and isinstance(operand, int):
            out += (operand,)
        elif letter == "L" and isinstance(operand, tuple):
            out += operand
    return out


def registers_read(instruction: Instruction) -> list[int]:
    """The registers an instruction reads; those that a kernel writes among them."""
    out: list[int] = []
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        if letter == "R" and isinstance(operand, tuple):
            out += operand
        elif letter in "ro" and isinstance(operand, int) and operand >= 0:
            out.append(operand)
    return out


def held_after(instruction: Instruction, held: int, scalars: int) -> int:
    """The registers that may hold a reference after an instruction, by those that may before it."""
    name, operands = instruction.opcode.name, instruction.operands
    if name in ("Take", "Kill"):
        emptied = operands[-1]
        assert isinstance(emptied, int)
        held &= ~(1 << emptied)
    out = destination(instruction)
    return held if out is None else held | 1 << out & ~scalars


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


def _live(
    blocks: dict[int, list[Instruction]], part: dict[int, int], sources: dict[int, list[int]], mask: int
) -> dict[int, int]:
    read: dict[int, int] = {}
    assigned: dict[int, int] = {}
    for begin in part:
        uses = kills = 0
        for instruction in blocks[begin]:
            for register in registers_read(instruction):
                if instruction.opcode.name != "Kill" and not kills >> register & 1:
                    uses |= 1 << register
            out = destination(instruction)
            if out is not None:
                kills |= 1 << out
        read[begin], assigned[begin] = uses & mask, kills & mask
    live = dict(read)
    todo = sorted(part)
    waiting = set(todo)
    while todo:
        begin = todo.pop()
        waiting.discard(begin)
        for source in sources[begin]:
            if source in part and (more := live[begin] & ~assigned[source] & ~live[source]):
                live[source] |= more
                if source not in waiting:
                    waiting.add(source)
                    todo.append(source)
    return live


def _held(
    blocks: dict[int, list[Instruction]], part: dict[int, int], sources: dict[int, list[int]], first: int, scalars: int
) -> dict[int, int]:
    targets: defaultdict[int, list[int]] = defaultdict(list)
    for begin in part:
        for source in sources[begin]:
            targets[source].append(begin)
    held = dict.fromkeys(part, 0)
    held[0] = first
    todo = sorted(part, reverse=True)
    waiting = set(todo)
    while todo:
        begin = todo.pop()
        waiting.discard(begin)
        now = held[begin]
        for instruction in blocks[begin]:
            now = held_after(instruction, now, scalars)
        for target in targets[begin]:
            if now & ~held[target]:
                held[target] |= now
                if target not in waiting:
                    waiting.add(target)
                    todo.append(target)
    return held
