"""Which registers hold unboxed scalars of one dtype only, over a whole program.

A parameter holds what the calls of its function give it, a call's result what the function returns. What comes from outside, through
closures or out of data structures may be anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import Final, get_args

from relay.executable.bytecode import DTYPES, Instruction
from relay.ir.record import record
from relay.lower.scalars import opcode_of
from relay.te.scalar import BinaryOp, CompareOp, UnaryOp

INT64_RESULTS: Final = frozenset(
    {"IAdd", "ISub", "IMul", "IFloorDiv", "IMod", "IMin", "IMax", "DimOf", "GetTag", "NumWorkers"}
)
OPERATIONS: Final = {opcode_of(op): op for kind in (BinaryOp, CompareOp, UnaryOp) for op in get_args(kind)}
TESTS: Final = frozenset(opcode_of(op) for op in (*get_args(CompareOp), "isnan", "isinf", "isfinite"))
_ANY = "any"


def destination(instruction: Instruction) -> int | None:
    """The register an instruction assigns."""
    if not instruction.opcode.operands.startswith("d"):
        return None
    register = instruction.operands[0]
    assert isinstance(register, int)
    return register


def scalars(functions: Sequence[Sequence[Instruction]], arities: Sequence[int]) -> list[dict[int, str]]:
    """For each function (its instructions), the dtype of every register that holds nothing else.

    Functions that nothing in the program calls, and those of closures, may be given anything.
    """
    called: set[int] = set()
    closures: set[int] = set()
    for instructions in functions:
        for i in instructions:
            match i.opcode.name, i.operands:
                case ("Invoke", (_, int(f), _, _)) | ("TailInvoke", (int(f), _)):
                    called.add(f)
                case "AllocClosure", (_, int(f), _):
                    closures.add(f)
    kinds = _Kinds([_Function(list(code)) for code in functions])
    for number, arity in enumerate(arities):
        if number in closures or number not in called:
            for register in range(arity):
                kinds.join(number, register, _ANY)
    for number in range(len(functions)):
        kinds.begin(number)
    kinds.run()
    return [{r: k for r, k in f.held.items() if k != _ANY} for f in kinds.functions]


@record(slots=True)
class _Function:
    code: list[Instruction]
    held: dict[int, str] = field(default_factory=dict)
    # Where a register's value goes: registers of this function and of callees (function, register); the function's result.
    flows: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    returned: set[int] = field(default_factory=set)
    waiting: list[tuple[int, int]] = field(default_factory=list)  # registers that take this function's result
    tails: list[int] = field(default_factory=list)  # functions whose result is this one's
    result: str | None = None


class _Kinds:
    """Values flow from register to register, along calls and returns, until nothing changes."""

    def __init__(self, functions: list[_Function]) -> None:
        self.functions = functions
        self.changed: list[tuple[int, int]] = []
        self.results: list[int] = []

    def join(self, function: int, register: int, kind: str) -> None:
        held = self.functions[function].held
        before = held.get(register)
        now = kind if before in (None, kind) else _ANY
        if now != before:
            held[register] = now
            self.changed.append((function, register))

    def join_result(self, function: int, kind: str) -> None:
        f = self.functions[function]
        now = kind if f.result in (None, kind) else _ANY
        if now != f.result:
            f.result = now
            self.results.append(function)

    def begin(self, number: int) -> None:
        """Note where the function's values go, and what instructions make by themselves."""
        f = self.functions[number]
        for i in f.code:
            out = destination(i)
            match i.opcode.name, i.operands:
                case "Move" | "Take", (int(to), int(source)):
                    f.flows[source].append((number, to))
                case "ScalarSelect", (int(to), _, int(a), int(b)):
                    f.flows[a].append((number, to))
                    f.flows[b].append((number, to))
                case "Invoke", (int(to), int(callee), tuple(arguments), _):
                    self._pass(number, callee, arguments)
                    self.functions[callee].waiting.append((number, to))
                case "TailInvoke", (int(callee), tuple(arguments)):
                    self._pass(number, callee, arguments)
                    self.functions[callee].tails.append(number)
                case "TailInvokeClosure", _:
                    self.join_result(number, _ANY)
                case "Ret", (int(source),):
                    f.returned.add(source)
                case "LoadConsti" | "AllocScalar", (int(to), int(dtype), *_):
                    self.join(number, to, DTYPES[dtype])
                case "ScalarOf", (int(to), _, int(dtype)):
                    self.join(number, to, DTYPES[dtype])
                case "ScalarCast", (int(to), _, int(dtype), _):
                    self.join(number, to, DTYPES[dtype])
                case name, (int(to), int(dtype), *_) if name in OPERATIONS or name == "ScalarLoad":
                    self.join(number, to, "bool" if name in TESTS else DTYPES[dtype])
                case name, _ if out is not None:
                    self.join(number, out, "int64" if name in INT64_RESULTS else _ANY)

    def _pass(self, caller: int, callee: int, arguments: Sequence[int]) -> None:
        for parameter, register in enumerate(arguments):
            self.functions[caller].flows[register].append((callee, parameter))

    def run(self) -> None:
        while self.changed or self.results:
            if self.changed:
                function, register = self.changed.pop()
                f = self.functions[function]
                kind = f.held[register]
                for target, to in f.flows[register]:
                    self.join(target, to, kind)
                if register in f.returned:
                    self.join_result(function, kind)
            else:
                f = self.functions[self.results.pop()]
                assert f.result is not None
                for caller, to in f.waiting:
                    self.join(caller, to, f.result)
                for caller in f.tails:
                    self.join_result(caller, f.result)
