"""Entry points: what callers from outside go through. The wrapper checks the arguments against the declared types, once."""

from __future__ import annotations

from relay.executable.bytecode import Assembler, FunctionCode
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimVar, SymDim, as_var, dim_solved, dim_text, dim_vars, is_any
from relay.ir.expr import Function
from relay.ir.types import TensorType, TupleType, Type
from relay.lower.sizes import Sizes
from relay.lower.unit import Unit


def emit_entry(unit: Unit, name: str, fn: Function) -> FunctionCode:
    """A function of the same arity that checks dtypes, ranks and sizes and calls ``@name``."""
    asm = Assembler(f"{name}:entry", len(fn.params))
    checker = _Checker(asm, unit, name)
    given: list[int] = []
    for register, param in enumerate(fn.params):
        checker.argument(register, param.ty, f"argument %{param.name} of @{name}")
        given.append(checker.unboxed(register, param.ty))
    checker.deferred()
    asm.emit("TailInvoke", unit.functions[name], given)
    return asm.finish()


class _Checker:
    def __init__(self, asm: Assembler, unit: Unit, name: str) -> None:
        self.asm = asm
        self.unit = unit
        self.sizes = Sizes(asm, name)
        self.later: list[tuple[int, Dim, str]] = []

    def argument(self, register: int, ty: Type | None, what: str) -> None:
        """Check tensors, alone and in tuples. (Fields of algebraic values are checked where they come in from Python.)"""
        if isinstance(ty, TupleType):
            for number, field in enumerate(ty.fields):
                if isinstance(field, TensorType | TupleType):
                    out = self.asm.reg()
                    self.asm.emit("GetField", out, register, number)
                    self.argument(out, field, f"field {number} of {what}")
            return
        if not isinstance(ty, TensorType):
            return
        assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
        shape = ", ".join(dim_text(d) for d in ty.shape)
        text = f"{what} must be Tensor[({shape}), {ty.dtype}]"
        self.asm.emit("CheckTensor", register, ty.dtype, len(ty.shape), self.unit.message(text))
        for axis, dim in enumerate(ty.shape):
            if is_any(dim):
                continue
            size = self.asm.reg()
            self.asm.emit("DimOf", size, register, axis)
            variable = as_var(dim)
            where = f"axis {axis} of {what}"
            if variable is not None and not self.sizes.known(variable):
                self._bounds(size, variable, where, 0)
                self.sizes.set(variable, size)
            elif isinstance(dim, int):
                self._equal(size, dim, where)
            else:
                self.later.append((size, dim, where))

    def unboxed(self, register: int, ty: Type | None) -> int:
        """The register to pass on: of a rank-0 tensor, one with the scalar."""
        if not isinstance(ty, TensorType) or ty.shape != ():
            return register
        assert isinstance(ty.dtype, str)
        out = self.asm.reg()
        self.asm.emit("ScalarOf", out, register, ty.dtype)
        return out

    def _equal(self, size: int, dim: Dim, where: str) -> None:
        shown = "{1}" if isinstance(dim, int) else f"{dim_text(dim)} = {{1}}"
        message = self.unit.message(f"{where} has size {{0}}, expected {shown}")
        self.asm.emit("CheckEq", size, self.sizes.register(dim), message)

    def _bounds(self, size: int, variable: DimVar, where: str, least: int) -> None:
        """Check that a variable's value is within its bounds; ``least`` is what is known of it."""
        if variable.lo > least:
            text = f"{where} has size {{1}}, expected at least {{0}} ({variable.name})"
            self.asm.emit("CheckLe", self.sizes.register(variable.lo), size, self.unit.message(text))
        if variable.hi is not None:
            text = f"{where} has size {{0}}, expected at most {{1}} ({variable.name})"
            self.asm.emit("CheckLe", size, self.sizes.register(variable.hi), self.unit.message(text))

    def deferred(self) -> None:
        """Sizes that are expressions, once every argument has given its variables: a variable that is the only one that an axis has and
        that is not known is solved for; then the sizes are compared, which also refuses what no value of the variable gives."""
        found = True
        while found:
            found = False
            for size, dim, where in self.later:
                assert isinstance(dim, SymDim)
                solved = dim_solved(dim, self.sizes.known)
                if solved is not None:
                    self._solved(size, dim, where, *solved)
                    found = True
        for size, dim, where in self.later:
            unknown = sorted({v.name for v in dim_vars(dim) if not self.sizes.known(v)})
            if unknown:
                raise CompileError(
                    f"the sizes of the arguments do not determine {', '.join(unknown)} ({where} is {dim_text(dim)})",
                    hint="declare a parameter that has it as a whole axis",
                )
            self._equal(size, dim, where)

    def _solved(self, size: int, dim: SymDim, where: str, variable: DimVar, factor: Dim, rest: Dim) -> None:
        """The value of a variable, by an axis of ``factor * variable + rest``."""
        by = self.sizes.register(factor)
        if not isinstance(factor, int):
            text = f"{where} is {dim_text(dim)}, which does not tell {variable.name} where {dim_text(factor)} is 0"
            self.asm.emit("CheckLe", self.sizes.register(1), by, self.unit.message(text))
        difference, value = self.asm.reg(), self.asm.reg()
        self.asm.emit("ISub", difference, size, self.sizes.register(rest))
        self.asm.emit("IFloorDiv", value, difference, by)
        least = -rest // factor if isinstance(factor, int) and isinstance(rest, int) else -1
        self._bounds(value, variable, f"{variable.name}, from {where},", least)
        self.sizes.set(variable, value)
