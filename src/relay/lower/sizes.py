"""Dims at run time: which register holds a dimension, and the instructions that compute one."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence

from relay.executable.bytecode import Assembler
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimOp, DimVar, SymDim, as_var, dim_linear, dim_text
from relay.ir.types import TensorType, Type

_OPCODE = {"floordiv": "IFloorDiv", "mod": "IMod", "min": "IMin", "max": "IMax"}


class Sizes:
    """Registers of dims in one function. What a branch computes is forgotten at its end (`enter`, `leave`)."""

    def __init__(self, asm: Assembler, function: str) -> None:
        self._asm = asm
        self._function = function
        self._registers: ChainMap[Dim | DimVar, int] = ChainMap()

    def enter(self) -> None:
        self._registers = self._registers.new_child()

    def leave(self) -> None:
        self._registers = self._registers.parents

    def bind(self, register: int, ty: Type) -> None:
        """A tensor of this type is in the register: read off the variables that have no value yet."""
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            return
        for axis, dim in enumerate(ty.shape):
            variable = as_var(dim)
            if variable is not None and variable not in self._registers:
                out = self._asm.reg()
                self._asm.emit("DimOf", out, register, axis)
                self._registers[variable] = out

        for axis, dim in enumerate(ty.shape):
            if isinstance(dim, SymDim):
                self._solve(register, axis, dim)

    def _solve(self, register: int, axis: int, dim: SymDim) -> None:
        """Read off a variable that stands in an axis as ``factor * variable + constant`` only."""
        solved = dim_linear(dim)
        if solved is not None and solved[0] not in self._registers:
            variable, factor, constant = solved
            out = self._asm.reg()
            self._asm.emit("DimOf", out, register, axis)
            out = self._binary("ISub", out, self.register(constant))
            self._registers[variable] = self._binary("IFloorDiv", out, self.register(factor))

    def known(self, variable: DimVar) -> bool:
        return variable in self._registers

    def set(self, variable: DimVar, register: int) -> None:
        """The variable's value is in the register."""
        self._registers[variable] = register

    def all(self, dims: Sequence[Dim]) -> list[int]:
        return [self.register(d) for d in dims]

    def register(self, dim: Dim) -> int:
        """A register with the value of the dim. Raises CompileError for a variable that nothing has bound."""
        found = self._registers.get(dim)
        if found is not None:
            return found
        if isinstance(dim, int):
            out = self._asm.reg()
            self._asm.emit("LoadConsti", out, "int64", dim)
        elif isinstance(dim, SymDim):
            out = self._polynomial(dim)
        else:
            raise CompileError(f"a size in @{self._function} is not known where it is needed (?)")
        self._registers[dim] = out
        return out

    def variable(self, variable: DimVar) -> int:
        found = self._registers.get(variable)
        if found is None:
            raise CompileError(
                f"dimension {variable.name} has no value in @{self._function}: no tensor there has it as a size",
                hint="pass a tensor whose shape mentions it",
            )
        return found

    def _binary(self, opcode: str, a: int, b: int) -> int:
        out = self._asm.reg()
        self._asm.emit(opcode, out, a, b)
        return out

    def _polynomial(self, dim: SymDim) -> int:
        total: int | None = None
        for monomial, coefficient in dim.terms:
            product: int | None = None
            for atom, power in monomial:
                factor = self._atom(atom)
                for _ in range(power):
                    product = factor if product is None else self._binary("IMul", product, factor)
            if product is None:
                product = self.register(coefficient)
            elif coefficient != 1:
                product = self._binary("IMul", product, self.register(coefficient))
            total = product if total is None else self._binary("IAdd", total, product)
        assert total is not None, f"empty polynomial {dim_text(dim)}"
        return total

    def _atom(self, atom: DimVar | DimOp) -> int:
        if isinstance(atom, DimVar):
            return self.variable(atom)
        return self._binary(_OPCODE[atom.op], self.register(atom.a), self.register(atom.b))
