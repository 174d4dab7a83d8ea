"""The instruction set, and an assembler for it.

The list is ``runtime/opcodes.def``; it reaches Python through the runtime that was built from it, so the two
cannot disagree. An instruction is its number followed by its operands, all int32 words; operand letters are
explained there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relay.executable.runtime import _runtime
from relay.ir.dtypes import numpy_dtype
from relay.ir.record import record
from relay.ir.types import Type


@record(frozen=True, slots=True)
class Opcode:
    """One instruction: its number, name, operand letters and meaning; ``control``: it says what runs next."""

    number: int
    name: str
    operands: str
    text: str
    control: bool


OPCODES: Final[tuple[Opcode, ...]] = tuple(
    Opcode(number, *described) for number, described in enumerate(_runtime.opcodes())
)
BY_NAME: Final[dict[str, Opcode]] = {op.name: op for op in OPCODES}

DTYPES: Final[tuple[str, ...]] = tuple(name for name, _ in _runtime.dtypes())
DTYPE_CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(DTYPES)}
DTYPE_BITS: Final[dict[str, int]] = dict(_runtime.dtypes())
DEVICES: Final[tuple[str, ...]] = tuple(_runtime.devices())
ANY_DTYPE: Final = 255

_NUMBERS: Final = frozenset("drivfkcmuo")  # operand letters whose word is the given number
ENDS_CONTROL: Final = frozenset({"Ret", "TailInvoke", "TailInvokeClosure", "Goto", "Switch", "Fatal"})


def scalar_bits(dtype: str, value: int | float | bool) -> int:
    """The raw bits, as an unsigned 64-bit number, of a scalar of the dtype.

    Raises ValueError when an integer does not fit.
    """
    width = DTYPE_BITS[dtype]
    if dtype == "bool":
        return int(bool(value))
    if "int" in dtype:
        half = 1 << (width - 1)
        low, high = (0, 2 * half) if dtype.startswith("u") else (-half, half)
        if int(value) != value or not low <= value < high:
            raise ValueError(f"{value} is not a number of {dtype}")
        return int(value) & (2 * half - 1)
    raw: bytes = np.asarray(value, dtype=numpy_dtype(dtype)).tobytes()
    return int.from_bytes(raw, "little")


class Label:
    """A place in a function's code; ``Assembler.bind`` says where."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position: int | None = None


EmitOperand: TypeAlias = int | float | str | Label | Sequence[int] | Sequence[Label] | None


class Holding(NamedTuple):
    """From word index ``at`` on a register holds a variable of this name and type; a name of nothing: none any more."""

    at: int
    register: int
    name: str
    ty: Type | None


@record(frozen=True, slots=True)
class FunctionCode:
    """A function's code. ``spans``: from each word index on, the source the code came from, in increasing
    order. ``holdings``: what registers hold, in order, for debuggers (not in files)."""

    name: str
    arity: int
    registers: int
    code: NDArray[np.int32]
    spans: tuple[tuple[int, str], ...] = ()
    holdings: tuple[Holding, ...] = ()


class Assembler:
    """Builds one function. Registers 0 .. num_params - 1 are its parameters."""

    def __init__(self, name: str, num_params: int) -> None:
        self.name = name
        self.arity = num_params
        self._registers = num_params
        self._open: list[tuple[int, str]] = []  # the registers that were given out, and for what
        self._free: defaultdict[str, list[int]] = defaultdict(list)
        self._words: list[int] = []
        self._first: list[int] = []
        self._fixups: list[tuple[int, Label]] = []
        self._spans: list[tuple[int, str]] = []
        self._holdings: list[Holding] = []
        self._last: str | None = None

    def reg(self, kind: str = "") -> int:
        """A register that nothing uses: a new one, or one for the same kind of values (a dtype's unboxed scalars; anything)."""
        free = self._free[kind]
        if free:
            register = free.pop()
        else:
            register = self._registers
            self._registers += 1
        self._open.append((register, kind))
        return register

    def mark(self) -> int:
        """For `reuse`: how many registers are given out."""
        return len(self._open)

    def reuse(self, mark: int) -> None:
        """Nothing uses the registers any more that were given out since."""
        for register, kind in reversed(self._open[mark:]):
            self._free[kind].append(register)
            self._holdings.append(Holding(len(self._words), register, "", None))
        del self._open[mark:]

    def label(self) -> Label:
        """A new label, to be bound once."""
        return Label()

    def bind(self, label: Label) -> None:
        """The label means the next instruction."""
        if label.position is not None:
            raise ValueError(f"a label of {self.name} is bound twice")
        label.position = len(self._words)

    def span(self, text: str) -> None:
        """Instructions from here on come from this source text; "" for none in particular."""
        at = len(self._words)
        if self._spans and self._spans[-1][0] == at:
            self._spans.pop()
        if (self._spans[-1][1] if self._spans else "") != text:
            self._spans.append((at, text))

    def holds(self, register: int, name: str, ty: Type | None) -> None:
        """From here on the register holds the variable of this name and type."""
        self._holdings.append(Holding(len(self._words), register, name, ty))

    def emit_first(self, opcode: str, *operands: EmitOperand) -> None:
        """An instruction that runs before all that `emit` appends, once for each call of the function: it may read parameters
        and what earlier instructions of its kind made."""
        words, last = self._words, self._last
        self._words = self._first
        self.emit(opcode, *operands)
        self._words, self._last = words, last

    def emit(self, opcode: str, *operands: EmitOperand) -> None:
        """Append an instruction. Operands by letter: registers and indices are ints; ``o`` an int or None;
        ``t`` a dtype name; ``v`` a device name or index; ``l`` a Label; ``R`` registers; ``L`` Labels;
        ``LoadConsti``'s immediate a number of its dtype."""
        op = BY_NAME[opcode]
        if len(operands) != len(op.operands):
            raise ValueError(f"{opcode} takes {len(op.operands)} operands ({op.operands}), not {len(operands)}")
        words = self._words
        words.append(op.number)
        # Most operands are plain ints and lists of them: they take the first two branches.
        for position, operand in enumerate(operands):
            letter = op.operands[position]
            if type(operand) is int and letter in _NUMBERS:
                words.append(operand)
            elif letter == "R" and type(operand) is list:
                words.append(len(operand))
                words += [r if type(r) is int else _index(opcode, r) for r in operand]
            else:
                self._emit_special(op, letter, operand, operands)
        self._last = opcode

    def _emit_special(self, op: Opcode, letter: str, operand: EmitOperand, operands: tuple[EmitOperand, ...]) -> None:
        words = self._words
        match letter, operand:
            case "t", str():
                words.append(DTYPE_CODES[operand])
            case "v", str():
                words.append(DEVICES.index(operand))
            case "o", None:
                words.append(-1)
            case "l", Label():
                self._fix(operand)
            case "L", [*targets]:
                words.append(len(targets))
                for target in targets:
                    if not isinstance(target, Label):
                        raise TypeError(f"{op.name} takes a list of labels")
                    self._fix(target)
            case "R", [*registers]:
                words.append(len(registers))
                words += [_index(op.name, register) for register in registers]
            case "I", int() | float():
                dtype = operands[op.operands.index("t")] if "t" in op.operands else ""
                raw = scalar_bits(str(dtype), operand) if dtype else int(operand)
                words += [_signed(raw & 0xFFFFFFFF), _signed(raw >> 32 & 0xFFFFFFFF)]
            case _ if letter in _NUMBERS:
                words.append(_index(op.name, operand))
            case _:
                raise TypeError(f"{op.name}: operand {operand!r} does not fit its letter {letter!r}")

    def _fix(self, label: Label) -> None:
        self._fixups.append((len(self._words), label))
        self._words.append(0)

    def finish(self) -> FunctionCode:
        """The code, with its labels filled in. Raises ValueError for an unbound label or code that runs off
        its end."""
        end, first = len(self._words), len(self._first)
        if self._last not in ENDS_CONTROL:
            raise ValueError(f"the code of {self.name} runs off its end")
        for at, label in self._fixups:
            if label.position is None or label.position == end:
                raise ValueError(f"a label of {self.name} leads nowhere")
            self._words[at] = first + label.position
        code = np.array(self._first + self._words, dtype=np.int32)
        spans = tuple((first + at, text) for at, text in self._spans)
        holdings = tuple(h._replace(at=first + h.at) for h in self._holdings)
        return FunctionCode(self.name, self.arity, self._registers, code, spans, holdings)


def _index(opcode: str, operand: object) -> int:
    if not isinstance(operand, (int, np.integer)) or isinstance(operand, bool):
        raise TypeError(f"{opcode}: expected a number, found {operand!r}")
    return int(operand)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


@record(frozen=True, slots=True)
class Instruction:
    """A decoded instruction at a word index. Operands as words; lists as tuples; ``I`` as one signed
    number."""

    at: int
    opcode: Opcode
    operands: tuple[int | tuple[int, ...], ...]


def decode(code: NDArray[np.int32]) -> list[Instruction]:
    """The instructions of a function's code.

    Raises ValueError where the code is not a sequence of instructions.
    """
    words = code.tolist()
    out: list[Instruction] = []
    at = 0
    while at < len(words):
        start = at
        if not 0 <= words[at] < len(OPCODES):
            raise ValueError(f"word {at} is not an instruction")
        op = OPCODES[words[at]]
        at += 1
        operands: list[int | tuple[int, ...]] = []
        for letter in op.operands:
            if letter in "RL":
                count = words[at] if at < len(words) else -1
                if count < 0 or at + 1 + count > len(words):
                    raise ValueError(f"the instruction at word {start} is cut off")
                operands.append(tuple(words[at + 1 : at + 1 + count]))
                at += 1 + count
            elif letter == "I":
                if at + 2 > len(words):
                    raise ValueError(f"the instruction at word {start} is cut off")
                operands.append((words[at + 1] << 32) | (words[at] & 0xFFFFFFFF))
                at += 2
            else:
                if at >= len(words):
                    raise ValueError(f"the instruction at word {start} is cut off")
                operands.append(words[at])
                at += 1
        out.append(Instruction(start, op, tuple(operands)))
    return out
