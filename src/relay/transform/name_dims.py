"""Unknown sizes get names: what is ``?`` in the program's types becomes a dim variable that run-time values bind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import ClassVar, cast

from relay.ir.diagnostics import RelayError
from relay.ir.dim import (
    ANY,
    Dim,
    DimVar,
    SymDim,
    as_dim,
    as_var,
    dim_floordiv,
    dim_linear,
    dim_sub,
    dim_vars,
    is_any,
    known_equal,
)
from relay.ir.effects import CHECK_EQUAL
from relay.ir.expr import (
    Attr,
    Binding,
    Block,
    Call,
    Clause,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefWrite,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step, run
from relay.ir.types import FuncType, RefType, TensorType, TupleType, Type, mentions_any
from relay.op import registry
from relay.te.tensor import Demand
from relay.transform.base import Pass
from relay.transform.blocks import as_block, body_of, is_atom, is_primitive, map_functions, operands, with_operands
from relay.transform.build import internal_call, type_of
from relay.transform.copying import is_within, solve_dims
from relay.transform.dims import whole_axes
from relay.typing import op_checks, op_type
from relay.typing.relations import located
from relay.typing.substitution import map_type

UNIT = TupleType(())


@record(frozen=True, slots=True)
class NameDims(Pass):
    """Replace every ``?`` in the types of tensors inside functions by a dim variable, and make run-time checks
    explicit.

    Before: typed blocks, compositions expanded. After: no variable of tensor type (or of a tuple of such) mentions
    ``?``; a variable is bound by the first parameter or binding whose type has it as a whole axis. What an operator,
    a call, a cast or a result demands of sizes and their types do not prove stands as a `check_equal` before it.
    Signatures of functions, and types inside algebraic data, references and function types, stay as they are.
    """

    name: ClassVar[str] = "name_dims"

    def __call__(self, module: Module) -> Module:
        return map_functions(module, lambda f: f if is_primitive(f) else _Namer(module).function(f))


def check(demand: Demand, span: Span | None = None) -> Binding:
    """The binding that checks at run time what is demanded."""
    attrs: dict[str, Attr] = {
        "left": demand.left, "right": demand.right, "why": demand.why, "relation": demand.relation
    }  # fmt: skip
    if demand.sizes is not None:
        attrs |= {"sizes": demand.sizes, "rule": demand.rule}
    return Binding(Var("_", None, UNIT), internal_call(CHECK_EQUAL, (), UNIT, MappingProxyType(attrs), span))


@record(slots=True, eq=False)
class _Namer:
    """The forward walk over one function. ``env`` maps old variables to those with named types."""

    module: Module
    env: dict[Var, Var] = field(default_factory=dict)
    # The checks made so far by what they check; one made in a block that is closed is as good as none.
    checked: dict[object, list[Binding]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    # The dims that have values so far, with the bindings of the block that gives them (the function's own dims: with none).
    bound: dict[DimVar, list[Binding] | None] = field(default_factory=dict)

    def function(self, function: Function) -> Function:
        new = run(self._function(function))
        return function if new is function else new

    def _function(self, f: Function) -> Step[Function]:
        params = tuple(self.variable(p) for p in f.params)
        self.bound.update((p, None) for p in f.type_params if isinstance(p, DimVar))
        self.bound.update((d, None) for p in params for d, _ in whole_axes(p.ty))
        declared = f.ret_type if f.ret_type is not None else f.ty.ret if isinstance(f.ty, FuncType) else None
        body = yield self.block(body_of(f), declared, "the result of a function")
        if body is f.body and all(a is b for a, b in zip(params, f.params, strict=True)):
            return f
        return replace(f, params=params, body=body)

    def variable(self, var: Var, found: Type | None = None) -> Var:
        """The variable with its sizes named (itself when it has no unknown ones)."""
        ty = named(more_precise(found, var.ty), var.name)
        if ty is var.ty:
            return var
        new = self.env[var] = Var(var.name, var.annotation, ty, var.span)
        return new

    def atom(self, e: Expr) -> Expr:
        return self.env.get(e, e) if isinstance(e, Var) else e

    def block(self, block: Block, declared: Type | None = None, what: str = "") -> Step[Block]:
        out: list[Binding] = []
        self.open.add(id(out))
        changed = False
        for binding in block.bindings:
            value = binding.value
            if self.env:
                value = with_operands(value, [self.atom(a) for a in operands(value)])
            checks = len(out)
            match value:
                case If():
                    wanted = self.told(value.ty, value.ty)
                    then = yield self.block(as_block(value.then), wanted, "a branch")
                    orelse = yield self.block(as_block(value.orelse), wanted, "a branch")
                    if then is not value.then or orelse is not value.orelse:
                        value = replace(value, then=then, orelse=orelse)
                    found = self.agreed(value.ty, [then.result.ty, orelse.result.ty])
                case Match():
                    value = yield self._match(value)
                    found = self.agreed(value.ty, [as_block(c.body).result.ty for c in value.clauses])
                case Function():
                    if not is_primitive(value):
                        value = yield self._function(value)
                    found = value.ty
                case _:
                    found = self.operation(value, out)
            if found is not value.ty and not is_atom(value):
                value = with_type(value, found)
            var = self.variable(binding.var, found)
            if not says_sizes(found, var.ty):
                self.flow(self.told(found, var.ty), var.ty, f"the value of %{var.name}", out, value.span)
                value = with_type(value, var.ty) if not is_atom(value) else value
            elif (var is not binding.var or (value.ty is not None and mentions_any(value.ty))) and not is_atom(value):
                value = with_type(value, var.ty)
            if var is not binding.var or value is not binding.value or len(out) != checks:
                changed = True
                binding = Binding(var, value)
            for d, _ in whole_axes(var.ty):
                self.bound.setdefault(d, out)
            out.append(binding)
        result = self.atom(block.result)
        if declared is not None:
            before = len(out)
            self.flow(result.ty, declared, what, out, block.span)
            changed |= len(out) != before
        self.open.discard(id(out))
        if not changed and result is block.result:
            return block
        return Block(tuple(out), result, result.ty if result.ty is not None else block.ty, block.span)

    def _match(self, e: Match) -> Step[Match]:
        clauses: list[Clause] = []
        changed = False
        wanted = self.told(e.ty, e.ty)
        for c in e.clauses:
            pattern = self.pattern(c.pattern)
            body = yield self.block(as_block(c.body), wanted, "a clause")
            same = pattern is c.pattern and body is c.body
            changed |= not same
            clauses.append(c if same else Clause(pattern, body))
        return replace(e, clauses=tuple(clauses)) if changed else e

    def pattern(self, p: Pattern) -> Pattern:
        """The pattern with named variables. (Patterns nest as deeply as a person writes them.)"""
        match p:
            case PVar():
                var = self.variable(p.var)
                return p if var is p.var else PVar(var, p.span)
            case PConstructor() | PTuple():
                fields = tuple(self.pattern(f) for f in p.fields)
                if all(a is b for a, b in zip(fields, p.fields, strict=True)):
                    return p
                return PConstructor(p.name, fields, p.span) if isinstance(p, PConstructor) else PTuple(fields, p.span)
            case PWild():
                return p

    def operation(self, value: Expr, out: list[Binding]) -> Type | None:
        """The type of an operation as its operands' types say it; what it demands of them is checked in ``out``."""
        match value:
            case Call(fn=OpRef(name=name)) if registry.exists(name):
                types = [type_of(a) for a in value.args]
                try:
                    checks, got = op_checks(name, types, value.attrs), op_type(name, types, value.attrs)
                except RelayError as e:
                    raise located(e, value.span) from None
                for d in checks:
                    self.demand(d, out, value.span)
                return value.ty if got == value.ty else got
            case Call(fn=GlobalVar(name=name)) if name in self.module.functions:
                function = self.module.functions[name]
                types = [type_of(a) for a in value.args]
                dims = solve_dims(function, value, types, within=False)
                given = _solved(function, types) if dims is None else dims
                for variable, dim in given.items():
                    self.keep_bounds(variable, dim, name, out, value.span)
                for p, a in zip(function.params, value.args, strict=True):
                    expected = _instance(p.ty, lambda v: given.get(v, ANY))
                    self.flow(type_of(a), expected, f"argument %{p.name} of @{name}", out, value.span)
                if dims is None:
                    return value.ty
                declared = function.ret_type or (function.ty.ret if isinstance(function.ty, FuncType) else None)
                return _instance(declared, dims.get) if declared is not None and mentions_any(value.ty) else value.ty
            case Call(fn=Var() | ConstructorRef() as fn) if isinstance(fn.ty, FuncType):
                for n, (a, expected) in enumerate(zip(value.args, fn.ty.params, strict=False)):
                    if not fn.ty.type_params:
                        self.flow(type_of(a), expected, f"argument {n + 1} of %{fn.name}", out, value.span)
                return value.ty
            case Tuple():
                fields = tuple(type_of(f) for f in value.fields)
                same = isinstance(value.ty, TupleType) and all(
                    a is b for a, b in zip(fields, value.ty.fields, strict=True)
                )
                return value.ty if same else TupleType(fields)
            case Proj():
                whole = value.tuple.ty
                return whole.fields[value.index] if isinstance(whole, TupleType) else value.ty
            case RefWrite():
                if isinstance(value.ref.ty, RefType):
                    self.flow(value.value.ty, value.ref.ty.value, "what a reference is set to", out, value.span)
                return value.ty
            case Var() | Constant():
                return value.ty
            case _:
                return value.ty

    def agreed(self, ty: Type | None, results: Sequence[Type | None]) -> Type | None:
        """The type of a choice with the sizes for ``?`` that all its results have and that have values outside of it."""
        if not mentions_any(ty):
            return ty
        common = results[0]
        for other in results[1:]:
            common = _common(common, other)
        return more_precise(_only(common, self.is_outside), ty)

    def is_outside(self, dim: Dim) -> bool:
        return all(
            v in self.bound and ((block := self.bound[v]) is None or id(block) in self.open) for v in dim_vars(dim)
        )

    def demand(self, d: Demand, out: list[Binding], span: Span | None) -> None:
        key = (d.left, d.right, d.relation)
        known = self.checked.get(key)
        if is_any(d.left) or is_any(d.right) or (known is not None and id(known) in self.open):
            return
        out.append(check(d, span))
        self.checked[key] = out

    def keep_bounds(self, variable: DimVar, dim: Dim, name: str, out: list[Binding], span: Span | None) -> None:
        """Check that what a function's dim parameter becomes is within its declared bounds, where that is not known."""
        if is_any(dim) or is_within(dim, variable, self.module.functions[name]):
            return
        what = f"{variable.name} of @{name}"
        self.demand(Demand(variable.lo, dim, f"{what}, at least {variable.lo}", "<="), out, span)
        if variable.hi is not None:
            self.demand(Demand(dim, variable.hi, f"{what}, at most {variable.hi}", "<="), out, span)

    def told(self, found: Type | None, ty: Type | None) -> Type | None:
        """What is found of a variable's type, but for the sizes that nothing else than the variable tells."""
        match found, ty:
            case TensorType(shape=tuple() as a), TensorType(shape=tuple() as b) if len(a) == len(b):
                own = [(v := as_var(y)) is not None and v not in self.bound for y in b]
                return TensorType(
                    tuple(ANY if o else x for x, o in zip(a, own, strict=True)), found.dtype, found.device
                )
            case TupleType(), TupleType():
                fields = zip(found.fields, ty.fields, strict=True)
                return TupleType(tuple(cast(Type, self.told(f, t)) for f, t in fields))
            case _:
                return found

    def flow(self, found: Type | None, expected: Type | None, what: str, out: list[Binding], span: Span | None) -> None:
        """Check that a value of one type is one of another that may say more about sizes."""
        todo: list[tuple[Type | None, Type | None]] = [(found, expected)]
        while todo:
            a, b = todo.pop()
            if a is b:
                continue
            if isinstance(a, TupleType) and isinstance(b, TupleType):
                todo.extend(zip(a.fields, b.fields, strict=False))
            elif (
                isinstance(a, TensorType)
                and isinstance(b, TensorType)
                and isinstance(a.shape, tuple)
                and isinstance(b.shape, tuple)
            ):
                for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=False)):
                    if not is_any(x) and not is_any(y) and not known_equal(x, y):
                        self.demand(Demand(x, y, f"axis {axis} of {what}"), out, span)


def _common(a: Type | None, b: Type | None) -> Type | None:
    """Either type with ``?`` for the sizes in which they differ; None where they differ in more."""
    match a, b:
        case TensorType(shape=tuple() as x), TensorType(shape=tuple() as y) if len(x) == len(y):
            return TensorType(tuple(d if d == e else ANY for d, e in zip(x, y, strict=True)), a.dtype, a.device)
        case TupleType(), TupleType() if len(a.fields) == len(b.fields):
            fields = tuple(_common(f, g) for f, g in zip(a.fields, b.fields, strict=True))
            return None if any(f is None for f in fields) else TupleType(cast("tuple[Type, ...]", fields))
        case _:
            return a if a == b else None


def _only(ty: Type | None, allowed: Callable[[Dim], bool]) -> Type | None:
    """The type with ``?`` for the sizes that are not allowed."""
    match ty:
        case TensorType(shape=tuple() as shape):
            return TensorType(tuple(d if allowed(d) else ANY for d in shape), ty.dtype, ty.device)
        case TupleType(fields=fields):
            return TupleType(tuple(cast(Type, _only(f, allowed)) for f in fields))
        case _:
            return ty


def _instance(ty: Type | None, dim_of: Callable[[DimVar], Dim | None]) -> Type | None:
    return None if ty is None else cast(Type, map_type(ty, lambda _: None, dim_of))


def _solved(function: Function, types: Sequence[Type | None]) -> dict[DimVar, Dim]:
    """What arguments' types say of a function's dim parameters, one by one: those that are a whole axis, or stand in one as
    ``factor * parameter + constant``, which a check then refuses if the parameter would be no integer."""
    wanted = {p for p in function.type_params if isinstance(p, DimVar)}
    found: dict[DimVar, Dim] = {}
    inside: dict[DimVar, Dim] = {}
    for p, given in zip(function.params, types, strict=True):
        for x, y in _sizes(p.ty, given):
            linear = dim_linear(x) if isinstance(x, SymDim) else None
            if linear is None or linear[0] not in wanted or is_any(y):
                continue
            variable, factor, constant = linear
            if as_var(x) is not None:
                found.setdefault(variable, y)
            elif factor > 0:
                inside.setdefault(variable, dim_floordiv(dim_sub(y, constant), factor))
    return {**inside, **found}


def _sizes(expected: Type | None, given: Type | None) -> Iterator[tuple[Dim, Dim]]:
    """The sizes of tensors, and of those in tuples, of two types."""
    match expected, given:
        case TensorType(shape=tuple() as a), TensorType(shape=tuple() as b) if len(a) == len(b):
            yield from zip(a, b, strict=True)
        case TupleType(), TupleType():
            for x, y in zip(expected.fields, given.fields, strict=False):
                yield from _sizes(x, y)


def with_type(value: Expr, ty: Type | None) -> Expr:
    return replace(value, ty=ty)


def named(ty: Type | None, hint: str) -> Type | None:
    """The type with a fresh dim variable for each ``?`` of a tensor, or of a tensor in a tuple; itself without any."""
    match ty:
        case TensorType(shape=tuple() as shape):
            if not any(is_any(d) for d in shape):
                return ty
            fresh = (as_dim(DimVar(f"{hint}_{n}", gradual=True)) if is_any(d) else d for n, d in enumerate(shape))
            return TensorType(tuple(fresh), ty.dtype, ty.device)
        case TupleType():
            fields = tuple(cast(Type, named(f, hint)) for f in ty.fields)
            return ty if all(a is b for a, b in zip(fields, ty.fields, strict=True)) else TupleType(fields)
        case _:
            return ty


def more_precise(found: Type | None, declared: Type | None) -> Type | None:
    """The declared type with each ``?`` replaced by what is found there."""
    if found is declared or found is None or declared is None:
        return declared if declared is not None else found
    match found, declared:
        case TensorType(shape=tuple() as a), TensorType(shape=tuple() as b) if len(a) == len(b):
            if not any(is_any(y) and not is_any(x) for x, y in zip(a, b, strict=True)):
                return declared
            shape = tuple(x if is_any(y) else y for x, y in zip(a, b, strict=True))
            return TensorType(shape, declared.dtype, declared.device)
        case TupleType(), TupleType() if len(found.fields) == len(declared.fields):
            pairs = zip(found.fields, declared.fields, strict=True)
            fields = tuple(cast(Type, more_precise(x, y)) for x, y in pairs)
            return declared if all(a is b for a, b in zip(fields, declared.fields, strict=True)) else TupleType(fields)
        case _:
            return declared


def says_sizes(found: Type | None, expected: Type | None) -> bool:
    """Whether no size that ``expected`` names is another (or may be another) in ``found``."""
    if found is expected or found is None or expected is None:
        return True
    match found, expected:
        case TensorType(shape=tuple() as a), TensorType(shape=tuple() as b):
            return all(is_any(x) or is_any(y) or x == y for x, y in zip(a, b, strict=False))
        case TupleType(), TupleType():
            return all(says_sizes(x, y) for x, y in zip(found.fields, expected.fields, strict=False))
        case _:
            return True
