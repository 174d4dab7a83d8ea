"""References that enter a function under differentiation from outside.

What is in such a reference when the derivative is taken is a constant; what the function puts there may depend on its arguments, and
whoever reads it then must see that. Two names may be of one reference, so it cannot be copied at the door. Instead every reference
to tensors holds a lifted value, in the whole program: a reference becomes a `cell`, an algebraic type around a reference to
the lifted content. Code outside of the derivative puts lifted constants in and takes the value alone out (the global functions
``new``, ``read``, ``write`` of a cell); lifted code uses the content as it is.

In forward mode what was put into a cell still has its tangent when the derivative is done. The next one must not see it, so all cells
that were given to the function, or come out of it, are settled at the end: their contents become constants again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import ClassVar, cast

from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import (
    Call,
    Clause,
    Expr,
    Function,
    GlobalVar,
    Match,
    PConstructor,
    PVar,
    RefNew,
    RefRead,
    RefWrite,
    Var,
)
from relay.ir.record import record
from relay.ir.retype import Substitution, retyped
from relay.ir.span import Span
from relay.ir.types import (
    AdtType,
    ConstructorDef,
    FuncType,
    RefType,
    TensorType,
    Type,
    TypeDef,
)
from relay.transform.ad.conversions import Conversion, Functions
from relay.transform.ad.duals import Lifting
from relay.transform.ad.terms import UNIT, Code, construct, new_ref, read, tuple_of, write
from relay.transform.blocks import Forward, Scope, is_primitive
from relay.transform.build import type_of
from relay.transform.to_blocks import to_blocks
from relay.typing.mentions import mentioned
from relay.typing.substitution import map_dims, substitute

NAME = "ad.Cell"


@record(frozen=True, slots=True, eq=False)
class Cell:
    """The cells of one type of content, up to its dims: ``content`` of the definition's parameters (of the types after), the global
    functions of code outside, and those of lifted code."""

    definition: TypeDef
    content: Type
    plain: Mapping[str, GlobalVar]
    lifted: Mapping[str, GlobalVar]


class Cells(Substitution):
    """Types, with those of references whose content can be differentiated replaced."""

    def __init__(self, lifting: Lifting, functions: Functions, entering: Iterable[Type]) -> None:
        super().__init__({})
        self.lifting, self.functions = lifting, functions
        self.made: dict[Type, Cell] = {}
        self._dims: list[DimVar] = []
        parts = [p for t in entering for p in mentioned(t, lifting.definitions) if isinstance(p, RefType)]
        # Asked of another lifting: this one is to see the definitions with cells in them only.
        before = replace(lifting, definitions=dict(lifting.definitions), functions=set(lifting.functions))
        self.contents = {self._general(p.value, []) for p in parts if before.changes(p.value)}

    def concern(self, t: Type) -> bool:
        """Whether there are such references in values of a type (before)."""
        parts = mentioned(t, self.lifting.definitions)
        return any(isinstance(p, RefType) and self._general(p.value, []) in self.contents for p in parts)

    def _type(self, t: Type) -> Type:
        if not isinstance(t, RefType) or self._general(t.value, []) not in self.contents:
            return super()._type(t)
        content = self.type(t.value)
        dims: list[Dim] = []
        general = self._general(content, dims)
        cell = self.made.get(general)
        if cell is None:
            cell = self.made[general] = self._define(general, len(dims))
        return AdtType(cell.definition.name, tuple(dims))

    def cell(self, t: Type) -> tuple[Cell, AdtType]:
        """The cell of a type of references (before)."""
        ty = self.type(t)
        assert isinstance(ty, AdtType)
        return next(c for c in self.made.values() if c.definition.name == ty.name), ty

    def _general(self, t: Type, dims: list[Dim]) -> Type:
        """A type with a parameter for every dim in it."""

        def dim(d: Dim) -> Dim:
            dims.append(d)
            if len(self._dims) < len(dims):
                self._dims.append(DimVar(f"d{len(dims)}"))
            return as_dim(self._dims[len(dims) - 1])

        return map_dims(t, dim)

    def _define(self, content: Type, count: int) -> Cell:
        name = NAME
        while name in self.lifting.definitions:
            name += "_"
        params = tuple(DimVar(f"d{n}") for n in range(count))
        content = cast(Type, substitute(content, self._dims[:count], map(as_dim, params)))
        self.lifting.cells.add(name)
        self.lifting.definitions[name] = empty = TypeDef(name, params, ())
        return Cell(empty, content, self._functions(empty, content, ""), {})

    def _functions(self, definition: TypeDef, of: Type, suffix: str) -> dict[str, GlobalVar]:
        ty = AdtType(definition.name, tuple(as_dim(cast(DimVar, p)) for p in definition.params))
        types = {"new": ((of,), ty), "read": ((ty,), of), "write": ((ty, of), UNIT)}
        return {
            what: GlobalVar(
                self.functions.name(f"{definition.name}.{what}{suffix}"), FuncType(given, ret, definition.params)
            )
            for what, (given, ret) in types.items()
        }

    # -- programs

    def opened(self, function: Function) -> Function:
        """A function with cells for references."""
        if is_primitive(function):
            return function

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            match value:
                case RefNew():
                    return self._call("new", type_of(value), (value.value,), type_of(value), value)
                case RefRead():
                    return self._call("read", type_of(value.ref), (value.ref,), type_of(value), value)
                case RefWrite():
                    return self._call("write", type_of(value.ref), (value.ref, value.value), UNIT, value)
                case _:
                    return value

        made = retyped(Forward(visit).function(function), self)
        assert isinstance(made, Function)
        return made

    def _call(self, what: str, ref: Type, args: tuple[Expr, ...], ret: Type, e: Expr) -> Expr:
        if self.type(ref) == ref:
            return e
        cell, ty = self.cell(ref)
        return Call(cell.plain[what], args, type_args=ty.args, ty=ret, span=e.span)

    def close(self) -> None:
        """Say what is in the cells: the lifted contents. What is lifted depends on definitions, so all have cells for references before."""
        for general, cell in self.made.items():
            name, lifted = cell.definition.name, self.lifting.type(cell.content)
            definition = TypeDef(name, cell.definition.params, (ConstructorDef(name, (RefType(lifted),), name, 0),))
            self.lifting.definitions[name] = definition
            self.made[general] = Cell(
                definition, cell.content, cell.plain, self._functions(definition, lifted, ".lifted")
            )

    def definition(self, d: TypeDef) -> TypeDef:
        """A definition with cells for references."""
        constructors = tuple(replace(c, fields=tuple(map(self.type, c.fields))) for c in d.constructors)
        if all(c.fields == o.fields for c, o in zip(constructors, d.constructors, strict=True)):
            return d
        return TypeDef(d.name, d.params, constructors, d.extern)

    def by_name(self) -> dict[str, Cell]:
        """The cells by the names of their types."""
        return {c.definition.name: c for c in self.made.values()}

    def write(self, lift: Conversion, drop: Conversion) -> None:
        """Write the functions of all cells."""
        for cell in self.made.values():
            for plain in (True, False):
                for what, target in (cell.plain if plain else cell.lifted).items():
                    self.functions.known[target.name] = _access(cell, what, target, lift if plain else None, drop)


def _access(cell: Cell, what: str, target: GlobalVar, lift: Conversion | None, drop: Conversion) -> Function:
    """``new``, ``read`` or ``write`` of a cell: of values (with ``lift``), or of lifted ones."""
    ty = target.ty
    assert isinstance(ty, FuncType)
    params = tuple(
        Var(name, t, t) for name, t in zip(("c", "x") if what == "write" else ("x",), ty.params, strict=True)
    )
    code = Code()
    held = cast(RefType, cell.definition.constructors[0].fields[0])
    own = dict(zip(cell.definition.params, map(as_dim, cast("tuple[DimVar, ...]", ty.type_params)), strict=True))
    held = cast(RefType, substitute(held, own.keys(), own.values()))
    content = cast(Type, substitute(cell.content, own.keys(), own.values()))
    if what == "new":
        value: Expr = params[0] if lift is None else lift.convert(code, params[0], content)
        ref = code.bind(new_ref(value))
        body = code.block(code.bind(construct(cell.definition, cell.definition.name, (ref,), cast(AdtType, ty.ret))))
    else:
        ref = Var("r", None, held)
        if what == "read":
            value = code.bind(read(ref))
            body = code.block(value if lift is None else drop.convert(code, value, content))
        else:
            value = params[1] if lift is None else lift.convert(code, params[1], content)
            code.bind(write(ref, value))
            body = code.block(code.bind(tuple_of(())))
        clause = Clause(PConstructor(cell.definition.name, (PVar(ref),)), body)
        outer = Code()
        body = outer.block(outer.bind(Match(params[0], (clause,), True, ty.ret)))
    return to_blocks(Function(params, body, ty.ret, ty.type_params, ty=ty))


@record(slots=True, eq=False)
class Settle(Conversion):
    """Make the contents of the cells in a value constants."""

    cells: dict[str, Cell] = field(default_factory=dict)

    verb: ClassVar[str] = "settle"

    def source(self, t: Type) -> Type:
        return t

    def target(self, t: Type) -> Type:
        return UNIT

    def trivial(self, t: Type) -> bool:
        return not any(isinstance(p, AdtType) and p.name in self.cells for p in mentioned(t, self.lifting.definitions))

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return x

    def convert(self, code: Code, x: Expr, t: Type, span: Span | None = None) -> Expr:
        cell = self.cells.get(t.name) if isinstance(t, AdtType) else None
        if cell is None or not isinstance(t, AdtType):
            return super().convert(code, x, t, span)
        content = cast(Type, substitute(cell.content, cell.definition.params, t.args))
        if any(isinstance(p, AdtType) and p.name == t.name for p in mentioned(content, self._opaque(t.name))):
            raise CompileError(
                "a reference that may lead back to itself has no tangent", span, "use reverse mode, or keep it inside"
            )
        value = code.bind(Call(cell.plain["read"], (x,), type_args=t.args, ty=content))
        self.convert(code, value, content, span)
        return code.bind(Call(cell.plain["write"], (x, value), type_args=t.args, ty=UNIT))

    def _opaque(self, name: str) -> dict[str, TypeDef]:
        return {n: d for n, d in self.lifting.definitions.items() if n != name}

    def rebuild(self, code: Code, name: str, fields: list[Expr], t: AdtType) -> Expr:
        return code.bind(tuple_of(()))
