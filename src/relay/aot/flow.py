"""What the translator knows of a function before it writes code: blocks, the parts it is cut into, which registers are read
later, and which may hold a reference.

Everything here is linear in the function's code and in the registers that are wanted from block to block.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Mapping

from relay.aot.kinds import destination
from relay.executable.bytecode import ENDS_CONTROL, FunctionCode, Instruction, decode
from relay.ir.record import record

CALLS = frozenset({"Invoke", "InvokeClosure"})  # after which the function goes on, in another part
LONGEST = 64  # instructions of a part: LLVM takes more than linear time for long functions


@record(frozen=True, slots=True)
class Flow:
    """A function taken apart. ``blocks``: the instructions from each place control can come to, up to the next one. ``part``: the
    block at which the part begins that a block belongs to; blocks that nothing leads to are absent.

    ``scalars``: the dtype of every register that holds nothing else. ``live``: those of them that are read at a block's beginning
    or later, before they are assigned. ``held``: the other registers that may hold something at a block's beginning.
    """

    blocks: dict[int, list[Instruction]]
    part: dict[int, int]
    scalars: dict[int, str]
    live: dict[int, set[int]]
    held: dict[int, set[int]]


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
    live = _live(blocks, part, sources, scalars)
    unset = {r for r in live[0] if r >= function.arity}
    known = {r: dtype for r, dtype in scalars.items() if r not in unset}
    live = {begin: registers - unset for begin, registers in live.items()}
    first = {r for r in range(function.arity) if r not in known}
    return Flow(blocks, part, known, live, _held(blocks, part, sources, first, known))


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
    """The registers an instruction reads; those that a kernel writes among them, those that a call only releases not."""
    out: list[int] = []
    operands = instruction.operands[:-1] if instruction.opcode.name in CALLS else instruction.operands
    for letter, operand in zip(instruction.opcode.operands, operands, strict=False):
        if letter == "R" and isinstance(operand, tuple):
            out += operand
        elif letter in "ro" and isinstance(operand, int) and operand >= 0:
            out.append(operand)
    return out


def hold(instruction: Instruction, held: set[int], scalars: Container[int]) -> None:
    """Bring the registers that may hold a reference from before an instruction to after it."""
    name, operands = instruction.opcode.name, instruction.operands
    if name in ("Take", "Kill"):
        emptied = operands[-1]
        assert isinstance(emptied, int)
        held.discard(emptied)
    elif name in CALLS:
        released = operands[-1]
        assert isinstance(released, tuple)
        held.difference_update(released)
    out = destination(instruction)
    if out is not None and out not in scalars:
        held.add(out)


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
    blocks: dict[int, list[Instruction]], part: dict[int, int], sources: dict[int, list[int]], scalars: Container[int]
) -> dict[int, set[int]]:
    live: dict[int, set[int]] = {}
    assigned: dict[int, set[int]] = {}
    for begin in part:
        uses: set[int] = set()
        kills: set[int] = set()
        for instruction in blocks[begin]:
            if instruction.opcode.name != "Kill":
                uses.update(r for r in registers_read(instruction) if r in scalars and r not in kills)
            out = destination(instruction)
            if out is not None:
                kills.add(out)
        live[begin], assigned[begin] = uses, kills
    todo = sorted(part)
    waiting = set(todo)
    while todo:
        begin = todo.pop()
        waiting.discard(begin)
        for source in sources[begin]:
            if source in part and (more := live[begin] - assigned[source] - live[source]):
                live[source] |= more
                if source not in waiting:
                    waiting.add(source)
                    todo.append(source)
    return live


def _held(
    blocks: dict[int, list[Instruction]],
    part: dict[int, int],
    sources: dict[int, list[int]],
    first: set[int],
    scalars: Container[int],
) -> dict[int, set[int]]:
    targets: defaultdict[int, list[int]] = defaultdict(list)
    for begin in part:
        for source in sources[begin]:
            targets[source].append(begin)
    held: dict[int, set[int]] = {begin: set() for begin in part}
    held[0] = first
    todo = sorted(part, reverse=True)
    waiting = set(todo)
    while todo:
        begin = todo.pop()
        waiting.discard(begin)
        now = set(held[begin])
        for instruction in blocks[begin]:
            hold(instruction, now, scalars)
        for target in targets[begin]:
            if not now <= held[target]:
                held[target] |= now
                if target not in waiting:
                    waiting.add(target)
                    todo.append(target)
    return held
