"""Functions as data: a function value becomes a constructor that holds what the function captures, and a call of one a match.

After Reynolds (Definitional interpreters for higher-order programming languages, 1972). For each type of function values there is
one algebraic type, with a constructor for every function of the module that is made a value of it, and one global function that
applies it. So a program whose functions are chosen by branches, stored in data or returned has only known functions afterwards,
and whatever is defined for data and known functions is defined for it: differentiation above all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, cast

from relay.ir.dim import ANY, Dim, DimVar
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    Match,
    PConstructor,
    Proj,
    PVar,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module, reachable
from relay.ir.record import record
from relay.ir.retype import Substitution, retyped
from relay.ir.trampoline import Step, run
from relay.ir.types import (
    AdtType,
    ConstructorDef,
    FuncType,
    RefType,
    TupleType,
    Type,
    TypeArg,
    TypeDef,
    TypeVar,
)  # fmt: skip
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    all_blocks,
    body_of,
    is_closure,
    is_primitive,
    nested_blocks,
    operands,
    says_no_less,
    with_each_nested,
    with_operands,
)
from relay.transform.build import type_of
from relay.transform.copying import match_dims
from relay.transform.function_types import PREFIX, Classes, DataTypes, erased, unused, value_types
from relay.typing.gradients import derivative_type
from relay.typing.mentions import holds_function
from relay.typing.substitution import variables


@record(frozen=True, slots=True)
class Defunctionalise(Pass):
    """Make every function value data.

    Before: blocks, functions lifted (`LambdaLift`), monomorphic up to dims. After: no closures, and no calls of variables; ``grad``
    stands on functions that are known where it does. A module is left alone where an entry takes or gives functions, and where a
    generic definition has functions of its own parameters.
    """

    name: ClassVar[str] = "defunctionalise"
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        kept = reachable(module.functions, entries)
        if not kept:
            kept = list(module.functions)
        module = module.with_functions({n: module.functions[n] for n in kept})
        outside = [type_of(module.functions[n]) for n in entries if n in module.functions]
        for t in outside:
            assert isinstance(t, FuncType)
            if any(holds_function(p, module.types) for p in (*t.params, t.ret)):
                return module
        found = value_types(module)
        if not found or any(isinstance(v, TypeVar) for t in found for v in variables(t)):
            return module
        return _Maker(module, Classes(found, module.types.keys())).module_of_data()


def _used_values(body: Block) -> set[Expr]:
    """The variables whose values are used: closures otherwise than under ``grad``, derivatives otherwise than called."""
    out: set[Expr] = set()
    for block in all_blocks(body):
        out.add(block.result)
        for b in block.bindings:
            if isinstance(b.value, Call) and not is_primitive(b.value.fn):
                out.update(b.value.args)
            elif not isinstance(b.value, Grad):
                out.update(operands(b.value))
    derivatives = {b.var for b in all_bindings(body) if isinstance(b.value, Grad)}
    for b in all_bindings(body):
        called = b.value.fn if isinstance(b.value, Call) else None
        if isinstance(called, Var) and called not in derivatives:
            out.add(called)
    return out


@record(frozen=True, slots=True, eq=False)
class _Value:
    """A function value: constructor ``name`` of class ``number``, holding values of ``fields`` (of the types before); ``target`` is
    called with these and the arguments."""

    name: str
    number: int
    fields: tuple[Type, ...]
    target: GlobalVar


@record(frozen=True, slots=True, eq=False)
class _Derivative:
    """``@name`` is to apply the derivative ``e`` of ``target``, which takes values of ``fields`` first: a function of type ``ty``, whose
    derivative has the type ``plain``; of types before."""

    name: GlobalVar
    target: GlobalVar
    fields: tuple[Type, ...]
    ty: FuncType
    plain: FuncType
    e: Grad


@record(slots=True, eq=False)
class _Maker:
    module: Module
    classes: Classes
    types: DataTypes = field(init=False)
    functions: dict[str, Function] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    values: dict[tuple[str, int], _Value] = field(default_factory=dict)
    constructors: set[str] = field(default_factory=set)  # the names that are taken
    # Global functions that apply a derivative, by what is differentiated and how.
    derivatives: dict[tuple[str, int, bool], _Derivative] = field(default_factory=dict)
    # Of the function that is being rewritten: what variables are bound to, and those whose values are used.
    definitions: dict[Var, Expr] = field(default_factory=dict)
    used: set[Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.types = DataTypes(self.classes)
        self.functions = dict(self.module.functions)
        self.taken.update(self.functions)
        self.constructors.update(c.name for d in self.module.types.values() for c in d.constructors)

    def module_of_data(self) -> Module:
        for name, function in self.module.functions.items():
            if not is_primitive(function):
                self.definitions, self.used = {}, _used_values(body_of(function))
                new = run(self.block(body_of(function)))
                made = retyped(replace(function, body=new), self.types)
                assert isinstance(made, Function)
                self.functions[name] = made
        definitions = {n: self.definition(d) for n, d in self.module.types.items()}
        for number, (name, ty) in enumerate(zip(self.classes.names, self.classes.types, strict=True)):
            of = [v for v in self.values.values() if v.number == number]
            constructors = tuple(
                ConstructorDef(v.name, tuple(map(self.types.type, v.fields)), name, tag) for tag, v in enumerate(of)
            )
            definitions[name] = TypeDef(name, (), constructors)
            self.functions[self.apply(number).name] = self.application(number, ty, of)
        for d in self.derivatives.values():
            self.functions[d.name.name] = self.differentiated(d)
        return Module(self.functions, definitions, self.module.sources)

    def definition(self, d: TypeDef) -> TypeDef:
        constructors = tuple(replace(c, fields=tuple(map(self.types.type, c.fields))) for c in d.constructors)
        return TypeDef(d.name, d.params, constructors, d.extern)

    # -- function values

    def block(self, block: Block) -> Step[Block]:
        out: list[Binding] = []
        for b in block.bindings:
            value = b.value
            if is_closure(value):
                self.definitions[b.var] = value
                if b.var not in self.used:
                    continue
                target, *captured = value.args
                assert isinstance(target, GlobalVar)
                value = self.held(target, captured, type_of(value))
            elif isinstance(value, Grad):
                self.definitions[b.var] = value
                if b.var not in self.used:
                    continue
                target, given = self.derivative(value)
                value = self.held(target, [self.atom(a, out) for a in given], type_of(value))
            elif isinstance(value, Call) and isinstance(value.fn, Var):
                self.called(b.var, value, out)
                continue
            else:
                if isinstance(value, Var | GlobalVar) and isinstance(b.var.ty, FuncType):
                    self.definitions[b.var] = value
                old = operands(value)
                callee = isinstance(value, Call) and not is_primitive(value.fn)
                new = [a if callee and n == 0 else self.atom(a, out) for n, a in enumerate(old)]
                value = with_operands(value, new)
                if nested_blocks(value):
                    value = yield with_each_nested(value, self.block)
            out.append(Binding(b.var, value))
        result = self.atom(block.result, out)
        return Block(tuple(out), result, block.ty, block.span)

    def atom(self, e: Expr, out: list[Binding]) -> Expr:
        """An atom, where that is a global function the value that stands for it."""
        if not isinstance(e, GlobalVar):
            return e
        var = Var(e.name, None, e.ty, e.span)
        out.append(Binding(var, self.held(e, [], type_of(e))))
        return var

    def held(self, target: GlobalVar, captured: Sequence[Expr], ty: Type) -> Expr:
        assert isinstance(ty, FuncType)
        number = self.classes.number(ty)
        found = self.values.get((target.name, number))
        if found is None:
            fields = self.signature(target).params[: len(captured)]
            # A function's name may have parts that begin with a digit, a constructor's may not.
            wanted = re.sub(r"[./](?=\d)", r"\g<0>_", f"{self.classes.names[number]}.{target.name}")
            found = _Value(unused(wanted, self.constructors), number, fields, target)
            self.constructors.add(found.name)
            self.values[target.name, number] = found
        result = AdtType(self.classes.names[number])
        return Call(ConstructorRef(found.name, FuncType(found.fields, result)), tuple(captured), ty=result)

    def signature(self, target: GlobalVar) -> FuncType:
        """The type of a global function for all its uses, of types before."""
        known = self.module.functions.get(target.name)
        return cast(FuncType, erased(type_of(target if known is None else known)))

    def called(self, var: Var, e: Call, out: list[Binding]) -> None:
        """A call of a variable: of what it is a derivative of, or by its class."""
        held = self.definitions.get(cast(Var, e.fn))
        if isinstance(held, Grad):
            fn, given = self.derivative(held)
            ret = cast(FuncType, fn.ty).ret
        else:
            ty = type_of(e.fn)
            assert isinstance(ty, FuncType)
            fn, given, ret = self.apply(self.classes.number(ty)), [e.fn], self.classes.representative(ty).ret
        args = tuple(self.atom(a, out) for a in (*given, *e.args))
        call = Call(fn, args, ty=ret, span=e.span)
        if says_no_less(ret, var.ty):
            out.append(Binding(var, call))
            return
        made = Var(var.name, None, ret, var.span)
        out += (Binding(made, call), Binding(var, made))

    def apply(self, number: int) -> GlobalVar:
        ty = self.classes.types[number]
        return GlobalVar(self._name(f"{self.classes.names[number]}.apply"), FuncType((ty, *ty.params), ty.ret))

    def _name(self, wanted: str) -> str:
        return unused(wanted, self.module.functions)

    def application(self, number: int, ty: FuncType, values: Sequence[_Value]) -> Function:
        """``@fn.t0.apply(f, args)``: a clause for each constructor."""
        fn = Var("f", self.types.type(ty), self.types.type(ty))
        given = [self.types.type(p) for p in ty.params]
        params = [Var(f"x{n}", t, t) for n, t in enumerate(given)]
        ret = self.types.type(ty.ret)
        clauses: list[Clause] = []
        for v in values:
            fields = [Var("c", None, self.types.type(f)) for f in v.fields]
            bindings: list[Binding] = []
            result = _checked(self.direct(v.target, [*fields, *params], bindings), ret, bindings)
            body = Block(tuple(bindings), result, ret)
            clauses.append(Clause(PConstructor(v.name, tuple(map(PVar, fields))), body))
        out = Var("r", None, ret)
        block = Block((Binding(out, Match(fn, tuple(clauses), True, ret)),), out, ret)
        return Function((fn, *params), block, ret, ty=FuncType((cast(Type, fn.ty), *given), ret))

    def direct(self, target: GlobalVar, args: Sequence[Expr], bindings: list[Binding]) -> Var:
        """A call of a global function; its parameters' sizes that the arguments do not say are checked."""
        function = self.module.functions.get(target.name)
        ty = self.types.signature(type_of(target if function is None else function))
        assert isinstance(ty, FuncType)
        wanted = [p for p in ty.type_params if isinstance(p, DimVar)]
        pairs = [(p, type_of(a)) for p, a in zip(ty.params, args, strict=True)]
        known: Mapping[DimVar, Dim] = {d: m[d] for d in wanted if (m := match_dims([d], pairs))}
        of = Substitution({d: known.get(d, ANY) for d in wanted})
        given = tuple(_checked(a, of.type(p), bindings) for p, a in zip(ty.params, args, strict=True))
        type_args: tuple[TypeArg, ...] = tuple(known.get(d, ANY) for d in wanted)
        return _bound(Call(GlobalVar(target.name, ty), given, type_args=type_args, ty=of.type(ty.ret)), bindings)

    # -- derivatives

    def derivative(self, e: Grad) -> tuple[GlobalVar, list[Expr]]:
        """The global function that applies ``grad(f)``, of types before, and what it takes first: what ``f`` captures, or ``f``."""
        atom: Expr = e.fn
        while isinstance(atom, Var) and isinstance(self.definitions.get(atom), Var | GlobalVar):
            atom = self.definitions[atom]
        held = self.definitions.get(atom) if isinstance(atom, Var) else None
        ty, result = type_of(e.fn), type_of(e)
        assert isinstance(ty, FuncType) and isinstance(result, FuncType)
        number = self.classes.number(ty)
        given: list[Expr]
        if isinstance(atom, GlobalVar):
            target, given = atom, []
        elif isinstance(held, Call) and isinstance(held.args[0], GlobalVar):
            target, given = held.args[0], list(held.args[1:])
        elif isinstance(held, Grad):
            target, given = self.derivative(held)
        else:
            target, given, ty = self.apply(number), [atom], self.classes.representative(ty)
        key = (target.name, number, e.forward)
        found = self.derivatives.get(key)
        if found is None:
            name = self._name(f"{PREFIX}{target.name}.{'jvp' if e.forward else 'grad'}")
            while name in self.taken:
                name += "_"
            self.taken.add(name)
            plain = cast(FuncType, erased(result))
            fields = self.signature(target).params[: len(given)]
            var = GlobalVar(name, FuncType((*fields, *plain.params), plain.ret))
            found = self.derivatives[key] = _Derivative(var, target, fields, cast(FuncType, erased(ty)), plain, e)
        return found.name, given

    def differentiated(self, d: _Derivative) -> Function:
        """``@f.grad(captured, args) { grad(fn (args) { @f(captured, args) })(args) }``, where only what may have a derivative is an
        argument of the function under ``grad``: functions and references are captured."""
        held = [Var("c", t, t) for t in map(self.types.type, d.fields)]
        params = [Var(f"x{n}", t, t) for n, t in enumerate(map(self.types.type, d.plain.params))]
        count = len(d.ty.params)
        before: list[Binding] = []
        inside: list[Binding] = []
        own: list[Var] = []
        values: list[Expr] = []
        tangents: list[Expr] = []

        def split(t: Type, value: Expr, tangent: Expr | None) -> Expr:
            """An argument of ``f``, made inside of the new parameters."""
            match t:
                case FuncType() | RefType():
                    return value
                case TupleType() if _has_held(t):
                    parts = [
                        split(
                            f,
                            _bound(_project(value, n), before),
                            None if tangent is None else _bound(_project(tangent, n), before),
                        )
                        for n, f in enumerate(t.fields)
                    ]
                    return _bound(_tuple(parts), inside)
                case _:
                    own.append(Var("x", type_of(value), type_of(value)))
                    values.append(value)
                    if tangent is not None:
                        tangents.append(tangent)
                    return own[-1]

        moves: Sequence[Expr | None] = params[count:] if d.e.forward else [None] * count
        args = [split(t, p, m) for t, p, m in zip(d.ty.params, params, moves, strict=False)]
        result = self.direct(d.target, [*held, *args], inside)
        ret = type_of(result)
        ty = FuncType(tuple(map(type_of, own)), ret)
        inner = _bound(Function(tuple(own), Block(tuple(inside), result, ret), ret, ty=ty), before, "f")
        derived = derivative_type(ty, d.e.forward)
        taken = _bound(Grad(inner, derived, d.e.span, d.e.forward), before, "d")
        both = _bound(Call(taken, (*values, *tangents), ty=derived.ret, span=d.e.span), before)
        value, other = (cast(Expr, _bound(_project(both, n), before)) for n in (0, 1))
        if d.e.forward:
            other = _without_held(d.ty.ret, other, before)
        else:
            found = (_bound(_project(other, n), before) for n in range(len(own)))
            other = _bound(_tuple([_cotangents(t, found, before) for t in d.ty.params]), before)
        out = _checked(_bound(_tuple((value, other)), before), self.types.type(d.plain.ret), before)
        whole = FuncType(tuple(map(type_of, (*held, *params))), type_of(out))
        return Function((*held, *params), Block(tuple(before), out, whole.ret), whole.ret, ty=whole, span=d.e.span)


def _has_held(t: Type) -> bool:
    """Whether a function or a reference stands in a type, alone or in tuples."""
    return isinstance(t, FuncType | RefType) or (isinstance(t, TupleType) and any(map(_has_held, t.fields)))


def _cotangents(t: Type, found: Iterator[Expr], bindings: list[Binding]) -> Expr:
    """The cotangent of an argument from those of its parts, in order; of functions and references the empty tuple."""
    match t:
        case FuncType() | RefType():
            return _bound(_tuple(()), bindings)
        case TupleType() if _has_held(t):
            return _bound(_tuple([_cotangents(f, found, bindings) for f in t.fields]), bindings)
        case _:
            return next(found)


def _without_held(t: Type, tangent: Expr, bindings: list[Binding]) -> Expr:
    """The tangent of a result, with the empty tuple for functions and references."""
    if not _has_held(t):
        return tangent
    if not isinstance(t, TupleType):
        return _bound(_tuple(()), bindings)
    parts = (_bound(_project(tangent, n), bindings) for n in range(len(t.fields)))
    return _bound(_tuple([_without_held(f, p, bindings) for f, p in zip(t.fields, parts, strict=True)]), bindings)


def _bound(value: Expr, bindings: list[Binding], name: str = "r") -> Var:
    var = Var(name, None, type_of(value))
    bindings.append(Binding(var, value))
    return var


def _checked(value: Expr, t: Type, bindings: list[Binding]) -> Expr:
    """A value under a type that may say more, which is checked at run time."""
    if says_no_less(type_of(value), t):
        return value
    narrow = Var("r", None, t)
    bindings.append(Binding(narrow, value))
    return narrow


def _tuple(fields: Sequence[Expr]) -> Tuple:
    return Tuple(tuple(fields), TupleType(tuple(map(type_of, fields))))


def _project(value: Expr, index: int) -> Proj:
    ty = type_of(value)
    assert isinstance(ty, TupleType)
    return Proj(value, index, ty.fields[index])
