"""Dims at run time: which register holds a dimension or a number, and the instructions that compute one."""

from __future__ import annotations

from collections.abc import Container, Sequence

from relay.executable.bytecode import Assembler, EmitOperand, scalar_bits
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimOp, DimVar, SymDim, as_var, dim_solved, dim_text, dim_vars
from relay.ir.types import TensorType, Type
from relay.lower.scoped import Scoped

_OPCODE = {"floordiv": "IFloorDiv", "mod": "IMod", "min": "IMin", "max": "IMax"}


class UnknownSize(CompileError):
    """No tensor from which the value of ``variable`` can be read is there where it is needed."""

    def __init__(self, variable: DimVar) -> None:
        super().__init__(
            f"the size {variable.name} is not known here: no tensor among the arguments has it as a size",
            hint="pass a tensor whose shape mentions it, one that does not stand inside another value",
        )
        self.variable = variable


class Sizes:
    """Registers of dims and numbers in one function. What a branch computes is forgotten at its end (`enter`, `leave`).

    In a function that is a loop, what depends on no iteration is computed before it: while `ahead` is set, instructions go there,
    and after `begin_loop` numbers and the dims of variables known by then are.
    """

    def __init__(self, asm: Assembler, function: str) -> None:
        self._asm = asm
        self._function = function
        self._registers: Scoped[Dim | DimVar, int] = Scoped()
        self._numbers: Scoped[tuple[str, int], int] = Scoped()
        self._fixed: frozenset[DimVar] | None = None
        self.ahead = False

    def enter(self) -> None:
        self._registers.enter()
        self._numbers.enter()

    def leave(self) -> None:
        self._registers.leave()
        self._numbers.leave()

    @property
    def looping(self) -> bool:
        """Whether what is emitted now runs in every iteration."""
        return self._fixed is not None

    def begin_loop(self) -> None:
        """What is known now stays the same in all iterations."""
        self._fixed = frozenset(v for v in self._registers if isinstance(v, DimVar))
        self.ahead = False

    def fixed(self, dim: Dim) -> bool:
        """Whether the dim is the same in all iterations of the loop."""
        return self._fixed is not None and self._fixed.issuperset(dim_vars(dim))

    def emit(self, opcode: str, *operands: EmitOperand) -> None:
        """An instruction here, or before the loop."""
        (self._asm.emit_first if self.ahead else self._asm.emit)(opcode, *operands)

    def bind(self, register: int, ty: Type, only: Container[DimVar] | None = None) -> None:
        """A tensor of this type is in the register: read off the variables that have no value yet (those of ``only``)."""
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            return
        for axis, dim in enumerate(ty.shape):
            variable = as_var(dim)
            if variable is not None and variable not in self._registers and (only is None or variable in only):
                out = self._asm.reg("int64")
                self.emit("DimOf", out, register, axis)
                self._registers[variable] = out

        for axis, dim in enumerate(ty.shape):
            if isinstance(dim, SymDim):
                self._solve(register, axis, dim, only)

    def _solve(self, register: int, axis: int, dim: SymDim, only: Container[DimVar] | None) -> None:
        """Read off a variable that stands in an axis as ``factor * variable + rest``, where the other variables are known."""
        solved = dim_solved(dim, self.known)
        if solved is not None and (only is None or solved[0] in only):
            variable, factor, rest = solved
            out = self._asm.reg("int64")
            self.emit("DimOf", out, register, axis)
            out = self._binary("ISub", out, self.register(rest))
            self._registers[variable] = self._binary("IFloorDiv", out, self.register(factor))

    def known(self, variable: DimVar) -> bool:
        return variable in self._registers

    def set(self, variable: DimVar, register: int) -> None:
        """The variable's value is in the register."""
        self._registers[variable] = register

    def all(self, dims: Sequence[Dim]) -> list[int]:
        return [self.register(d) for d in dims]

    def register(self, dim: Dim) -> int:
        """A register with the value of the dim. Raises UnknownSize for a variable that nothing has bound."""
        if isinstance(dim, int):
            if not -(1 << 63) <= dim < 1 << 63:
                raise CompileError(f"a size in @{self._function} is more than int64 holds: {dim}")
            return self.number("int64", dim)
        found = self._registers.get(dim)
        if found is not None:
            return found
        if not isinstance(dim, SymDim):
            raise CompileError(f"a size in @{self._function} is not known where it is needed (?)")
        if not self.fixed(dim):
            out = self._registers[dim] = self._polynomial(dim)
            return out
        before, self.ahead = self.ahead, True
        out = self._polynomial(dim)
        self._registers.keep(dim, out)
        self.ahead = before
        return out

    def number(self, dtype: str, value: bool | int | float) -> int:
        """A register with an unboxed number."""
        key = (dtype, scalar_bits(dtype, value))
        found = self._numbers.get(key)
        if found is None:
            found = self._asm.reg(dtype)
            if self.looping or self.ahead:
                self._asm.emit_first("LoadConsti", found, dtype, value)
                self._numbers.keep(key, found)
            else:
                self._asm.emit("LoadConsti", found, dtype, value)
                self._numbers[key] = found
        return found

    def variable(self, variable: DimVar) -> int:
        found = self._registers.get(variable)
        if found is None:
            raise UnknownSize(variable)
        return found

    def _binary(self, opcode: str, a: int, b: int) -> int:
        out = self._asm.reg("int64")
        self.emit(opcode, out, a, b)
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
