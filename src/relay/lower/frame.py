"""The registers of a function under emission: where each variable's value is, who still reads it, what is temporary.

Every variable has a register, except a tuple that is only taken apart, which stays a list of registers. Rank-0 tensors are unboxed
scalars. A register may be shared by several variables (a tuple's field and its projection) and is released when the last of them is
read for the last time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from relay import te
from relay.executable.bytecode import Assembler
from relay.ir.diagnostics import CompileError
from relay.ir.dim import DimVar, dim_vars
from relay.ir.expr import Block, Constant, ConstructorRef, Expr, GlobalVar, Tuple, Var
from relay.ir.module import Module
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType, Type, is_integer
from relay.lower.scoped import Scoped
from relay.lower.sizes import Sizes
from relay.lower.unit import Unit
from relay.transform.blocks import all_bindings
from relay.transform.dims import DimUses, told

# Where a value is: a register, or the places of a tuple's fields.
Place = int | tuple["Place", ...]
TUPLE_TAG = -1

# Who reads the registers of constants, to the end: what the program holds is not released with a tuple that it is in.
_PROGRAM = frozenset({Var("program")})


def is_scalar(ty: Type | None) -> bool:
    """A rank-0 tensor, which lives unboxed in a register."""
    return isinstance(ty, TensorType) and ty.shape == ()


class Frame:
    """The state of one function's emission that has to do with registers."""

    def __init__(self, unit: Unit, module: Module, name: str, arity: int) -> None:
        self.unit = unit
        self.module = module
        self.name = name
        self.asm = Assembler(name, arity)
        self.sizes = Sizes(self.asm, name)
        self.places: dict[Var, Place] = {}
        self.owners: Scoped[int, frozenset[Var]] = Scoped()  # who still reads a register; forked in branches
        self.constants: Scoped[int, int] = Scoped()
        self.temporaries: list[int] = []
        self._marks: list[int] = []
        self.kept: set[int] = set()  # registers that are not released: the next iteration finds there what it wants

    def enter(self) -> None:
        """A branch begins: what it reads off and releases is forgotten at its end, where its registers are free again."""
        self._marks.append(self.asm.mark())
        self.sizes.enter()
        self.owners.enter()
        self.constants.enter()

    def leave(self) -> None:
        mark = self._marks.pop()
        if not self.sizes.looping:  # what is computed ahead of a loop, or kept, has registers from anywhere
            self.asm.reuse(mark)
        self.owners.leave()
        self.constants.leave()
        self.sizes.leave()

    def place(self, atom: Expr) -> Place:
        match atom:
            case Var():
                return self.places[atom]
            case Constant() if atom.data.ndim == 0:
                return self.sizes.number(atom.dtype, _number(atom))
            case Constant():
                return self.constant(self.unit.constant(atom))
            case GlobalVar(name=name):
                out = self.temporary()
                self.asm.emit("AllocClosure", out, self.unit.closure(name, 0), [])
                return out
            case ConstructorRef(name=name):
                out = self.temporary()
                self.asm.emit("AllocADT", out, self.module.constructors[name].tag, [])
                return out
            case Tuple(fields=()):
                return ()
            case _:
                raise CompileError(f"not an atom where one is needed in @{self.name}: {type(atom).__name__}", atom.span)

    def constant(self, number: int) -> int:
        """A register with a constant tensor, which is nobody's: it is never released."""
        found = self.constants.get(number)
        if found is None:
            found = self.asm.reg()
            if self.sizes.looping:
                self.asm.emit_first("LoadConst", found, number)
                self.constants.keep(number, found)
                self.owners.keep(found, _PROGRAM)
            else:
                self.asm.emit("LoadConst", found, number)
                self.constants[number] = found
                self.owners[found] = _PROGRAM
        return found

    def value(self, atom: Expr) -> int:
        """A register that holds the value."""
        return self.materialise(self.place(atom))

    def materialise(self, place_: Place) -> int:
        if isinstance(place_, int):
            return place_
        fields = [self.materialise(f) for f in place_]
        out = self.temporary()
        self.asm.emit("AllocADT", out, TUPLE_TAG, fields)
        return out

    def temporary(self) -> int:
        """A register that is released after the binding at hand."""
        out = self.asm.reg()
        self.temporaries.append(out)
        return out

    def dies(self, atom: Expr, ends: set[Var]) -> bool:
        """Whether nothing reads the atom's register once the variables of ``ends`` are dead."""
        register = self.places.get(atom) if isinstance(atom, Var) else None
        return isinstance(register, int) and self.owners.get(register, frozenset()) <= ends

    def release_temporaries(self) -> None:
        for register in self.temporaries:
            self.asm.emit("Kill", register)
        self.temporaries.clear()

    def assign(self, var: Var, place_: Place, only: Container[DimVar] | None = None) -> None:
        """The variable's value is here. Registers may be shared by several variables; dims (of ``only``) are read off where new."""
        self.places[var] = place_
        self._name(var, place_)
        for register in registers(place_):
            if register in self.temporaries:  # from here on the variable's
                self.temporaries.remove(register)
            self.owners[register] = self.owners.get(register, frozenset()) | {var}
        self.bind_dims(place_, var.ty, only)

    def share(self, var: Var, register: int) -> None:
        """The variable is the elements of what this register holds, in another shape: nobody but kernels may look."""
        self.places[var] = register
        self.owners[register] = self.owners.get(register, frozenset()) | {var}

    def _name(self, var: Var, place_: Place) -> None:
        """Debuggers see the variable; the fields of a tuple that is only taken apart as ``x.0``."""
        todo = [(var.name, var.ty, place_)]
        while todo:
            text, ty, where = todo.pop()
            if isinstance(where, int):
                self.asm.holds(where, text, ty)
            else:
                assert isinstance(ty, TupleType)
                fields = zip(ty.fields, where, strict=True)
                todo.extend((f"{text}.{n}", field, p) for n, (field, p) in enumerate(fields))

    def bind_dims(self, place_: Place, ty: Type | None, only: Container[DimVar] | None = None) -> None:
        """Read off the dims that have no value yet, through tuples."""
        todo: list[tuple[Place, Type | None]] = [(place_, ty)]
        fields: list[int] = []
        while todo:
            where, t = todo.pop()
            if isinstance(t, TensorType) and isinstance(where, int):
                self.sizes.bind(where, t, only)
            elif isinstance(t, TupleType):
                for number, f in reversed(list(enumerate(t.fields))):
                    if isinstance(where, tuple):
                        todo.append((where[number], f))
                    elif any(not self.sizes.known(v) and (only is None or v in only) for v in type_dims(f)):
                        out = self.asm.reg()
                        fields.append(out)
                        self.sizes.emit("GetField", out, where, number)
                        todo.append((out, f))
        for out in fields:
            self.sizes.emit("Kill", out)

    def bind_composed(self, params: Sequence[Var], only: Container[DimVar] | None = None) -> None:
        """Read off the dims that parameters say once others are known: ``d``, of an axis of ``h * d``."""
        unknown = {v for p in params if p.ty is not None for v in type_dims(p.ty) if not self.sizes.known(v)}
        while unknown:
            for p in params:
                if not unknown.isdisjoint(told(p.ty, self.sizes.known)):
                    self.bind_dims(self.places[p], p.ty, only)
            left = {v for v in unknown if not self.sizes.known(v)}
            unknown = left if len(left) < len(unknown) else set()

    def demand(self, demand: te.Demand, span: Span | None) -> None:
        """Emit what is demanded of two sizes, or the end of the run with a message that shows them."""
        left, right = sides = [self.sizes.register(side) for side in (demand.left, demand.right)]
        opcode, shown = "CheckEq", " must agree: {0} and {1}"
        if demand.relation == "<=":
            opcode, shown = "CheckLe", ": {0} is more than {1}"
        elif demand.sizes is not None:
            # Equal sides let one of the sizes be compared with itself, others the two that must differ then.
            shown = f" {demand.rule}: {{0}} and {{1}}"
            first, second = self.sizes.all(demand.sizes)
            same, left, right = self.asm.reg(), self.asm.reg(), second
            self.asm.emit("ScalarEq", same, "int64", *sides)
            self.asm.emit("ScalarSelect", left, same, second, first)
        where = f" ({span})" if span else ""
        self.asm.emit(opcode, left, right, self.unit.message(f"{demand.why}{shown} in @{self.name}{where}"))

    def release(self, variables: set[Var] | frozenset[Var]) -> None:
        """Nothing reads these variables any more: release the registers that no other variable shares."""
        for register in self.forget(variables):
            self.asm.emit("Kill", register)

    def forget(self, variables: set[Var] | frozenset[Var]) -> list[int]:
        """Nothing reads these variables any more: the registers that no other variable shares, which are to be released."""
        freed: list[int] = []
        for var in variables:
            for register, ty in leaves(self.places.get(var, ()), var.ty):
                left = self.owners.get(register, frozenset()) - {var}
                self.owners[register] = left
                if not left and not is_scalar(ty) and register not in self.kept:
                    freed.append(register)
        return sorted(freed)


def registers(place_: Place) -> list[int]:
    """The registers of a place, in any order."""
    out: list[int] = []
    todo = [place_]
    while todo:
        p = todo.pop()
        if isinstance(p, int):
            out.append(p)
        else:
            todo.extend(p)
    return out


def leaves(place_: Place, ty: Type | None) -> list[tuple[int, Type | None]]:
    """The registers of a place with the types of what they hold, in any order."""
    out: list[tuple[int, Type | None]] = []
    todo: list[tuple[Place, Type | None]] = [(place_, ty)]
    while todo:
        p, t = todo.pop()
        if isinstance(p, int):
            out.append((p, t))
        else:
            todo.extend((f, t.fields[n] if isinstance(t, TupleType) else None) for n, f in enumerate(p))
    return out


def _number(constant: Constant) -> int | float:
    """The value of a rank-0 constant."""
    item = constant.data.reshape(()).item()
    return int(item) if is_integer(constant.dtype) or constant.dtype == "bool" else float(item)


def type_dims(ty: Type) -> list[DimVar]:
    """The dim variables in tensor types, through tuples."""
    match ty:
        case TensorType(shape=shape) if isinstance(shape, tuple):
            return [v for d in shape for v in dim_vars(d)]
        case TupleType(fields=fields):
            return [v for f in fields for v in type_dims(f)]
        case _:
            return []


def needed_dims(block: Block) -> set[DimVar]:
    """The dim variables that tensors bound in a block, or what makes them, are measured in."""
    uses = DimUses()
    needed: set[DimVar] = set()
    for binding in all_bindings(block):
        ty = binding.var.ty
        needed.update(() if ty is None else type_dims(ty), uses.of_value(binding.value))
    return needed
