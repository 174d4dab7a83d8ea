"""Copies of blocks: fresh variables, other dims in every type and attribute.

What inlining and specialisation are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field, replace
from typing import cast

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, as_var, dim_bounds, dim_substitute, dim_vars, is_any
from relay.ir.expr import (
    Attrs,
    Binding,
    Block,
    Call,
    Clause,
    Constant,
    Expr,
    Function,
    Grad,
    If,
    Match,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type, TypeArg, TypeVar
from relay.transform.blocks import body_of, is_primitive
from relay.transform.dims import whole_axes
from relay.typing.substitution import map_attrs, map_type, renamed


def solve_dims(
    function: Function, call: Call, arg_types: Sequence[Type | None], within: bool = True
) -> dict[DimVar, Dim] | None:
    """The dims that a call gives to the function's dim parameters; None when the types do not say them all, or (``within``) do not say
    that they are within the parameters' bounds: the call checks that, and what takes its place would not."""
    wanted = [p for p in function.type_params if isinstance(p, DimVar)]
    if len(wanted) != len(function.type_params):
        return None
    if wanted and len(call.type_args) == len(wanted) and not any(_unknown(a) for a in call.type_args):
        found: dict[DimVar, Dim] | None = dict(zip(wanted, cast("tuple[Dim, ...]", call.type_args), strict=True))
    else:
        found = match_dims(wanted, zip([p.ty for p in function.params], arg_types, strict=True))
    if found is None or not within:
        return found
    return found if all(is_within(dim, variable, function) for variable, dim in found.items()) else None


def is_within(dim: Dim, variable: DimVar, function: Function) -> bool:
    """Whether what a dim parameter of a function becomes in a call is known to be within its bounds: at least 0, if nothing more. An
    axis' size is; what an axis is computed from (``n`` of ``n + 2``) need not be."""
    least, most = dim_bounds(dim)
    above = (least is not None and least >= variable.lo) or (variable.lo == 0 and _is_axis(variable, function))
    return above and (variable.hi is None or (most is not None and most <= variable.hi))


def _is_axis(variable: DimVar, function: Function) -> bool:
    """Whether an argument, or a field of one, has the variable as a whole axis."""
    todo = [p.ty for p in function.params]
    while todo:
        ty = todo.pop()
        if isinstance(ty, TupleType):
            todo.extend(ty.fields)
        elif any(d is variable for d, _ in whole_axes(ty)):
            return True
    return False


def match_dims(
    wanted: Collection[DimVar], pairs: Iterable[tuple[Type | None, Type | None]]
) -> dict[DimVar, Dim] | None:
    """What the wanted variables are in types (left) that have these instances (right), the first tensor that says one being asked; None
    when that does not say all."""
    solved: dict[DimVar, Dim] = {}
    composed: list[tuple[Dim, Dim]] = []
    todo: list[tuple[object, object]] = []
    if wanted:
        todo.extend(reversed([*pairs]))
    while todo:
        left, right = todo.pop()
        match left, right:
            case TensorType(shape=tuple() as a), TensorType(shape=tuple() as b) if len(a) == len(b):
                for x, y in zip(a, b, strict=True):
                    variable = as_var(x)
                    if variable is not None and variable in wanted and not is_any(y):
                        solved.setdefault(variable, y)
                    elif isinstance(x, SymDim) and isinstance(y, SymDim):
                        composed.append((x, y))
            case TupleType(), TupleType():
                todo.extend(reversed([*zip(left.fields, right.fields, strict=False)]))
            case AdtType(), AdtType():
                todo.extend(reversed([*zip(left.args, right.args, strict=False)]))
            case RefType(), RefType():
                todo.append((left.value, right.value))
            case FuncType(), FuncType():
                todo.extend(zip(left.params, right.params, strict=False))
                todo.append((left.ret, right.ret))
            case _:
                pass
    for x, y in composed if len(solved) < len(wanted) else ():
        # ``3 * h`` where the other type has ``3 * k``: the same arithmetic on other variables.
        others = dict(zip(dim_vars(x), map(as_dim, dim_vars(y)), strict=False))
        found = {**others, **solved}
        if dim_substitute(x, found.get) == y:
            solved.update((v, d) for v, d in found.items() if v in wanted)
    return solved if len(solved) == len(wanted) else None


def _unknown(arg: TypeArg) -> bool:
    return is_any(cast(Dim, arg)) or isinstance(arg, TypeVar)


@record(slots=True, eq=False)
class Copier:
    """Copies blocks. ``atoms`` says what variables become (bound ones get fresh copies), ``dims`` what dim variables
    become.

    With ``own_dims`` every other dim variable belongs to the copied code (as in a global function) and gets a fresh
    copy too.
    """

    atoms: dict[Var, Expr] = field(default_factory=dict)
    dims: dict[DimVar, Dim] = field(default_factory=dict)
    own_dims: bool = False
    _types: dict[int, tuple[Type, Type]] = field(default_factory=dict)

    def dim(self, variable: DimVar) -> Dim | None:
        found = self.dims.get(variable)
        if found is None and self.own_dims:
            own = DimVar(variable.name, variable.lo, variable.hi, gradual=variable.gradual)
            found = self.dims[variable] = as_dim(own)
        return found

    def type(self, ty: Type | None) -> Type | None:
        if ty is None or not (self.dims or self.own_dims):
            return ty
        known = self._types.get(id(ty))
        if known is None or known[0] is not ty:
            new = cast(Type, map_type(ty, lambda _: None, self.dim))
            self._types[id(ty)] = known = (ty, new)
        return known[1]

    def attrs(self, attrs: Attrs) -> Attrs:
        if not attrs or not (self.dims or self.own_dims):
            return attrs
        return map_attrs(attrs, self.type, self.dim)

    def bind(self, var: Var) -> Var:
        """A fresh variable for a bound one."""
        new = Var(var.name, self.type(var.annotation), self.type(var.ty), var.span)
        self.atoms[var] = new
        return new

    def atom(self, e: Expr) -> Expr:
        return self.atoms.get(e, e) if isinstance(e, Var) else e

    def copy(self, block: Block) -> Block:
        return run(self.block(block))

    def function(self, function: Function) -> Function:
        """A copy of a whole function (its parameters fresh, or what ``atoms`` says where they are dropped by the
        caller)."""
        params = tuple(self.bind(p) for p in function.params)
        body = self.copy(body_of(function))
        return replace(
            function, params=params, body=body, ret_type=self.type(function.ret_type), attrs=self.attrs(function.attrs),
            ty=self.type(function.ty),
        )  # fmt: skip

    def block(self, block: Block) -> Step[Block]:
        bindings: list[Binding] = []
        for b in block.bindings:
            if isinstance(b.value, Function):  # it may refer to its own variable
                var = self.bind(b.var)
                value: Expr = yield self._function(b.value)
            else:
                value = yield from self._value(b.value)
                var = self.bind(b.var)
            bindings.append(Binding(var, value))
        return Block(tuple(bindings), self.atom(block.result), self.type(block.ty), block.span)

    def _function(self, f: Function) -> Step[Function]:
        params = tuple(self.bind(p) for p in f.params)
        body = yield self.block(body_of(f))
        return replace(
            f,
            params=params,
            body=body,
            ret_type=self.type(f.ret_type),
            attrs=self.attrs(f.attrs),
            type_params=renamed(f.type_params, lambda _: None, self.dim),
            ty=self.type(f.ty),
        )

    def _value(self, e: Expr) -> Step[Expr]:
        ty = self.type(e.ty)
        match e:
            case Call():
                fn: Expr = (yield self._function(e.fn)) if is_primitive(e.fn) else self.atom(e.fn)
                type_args = e.type_args
                if type_args and (self.dims or self.own_dims):
                    type_args = tuple(map_type(a, lambda _: None, self.dim) for a in type_args)
                return Call(fn, tuple(self.atom(a) for a in e.args), self.attrs(e.attrs), type_args, ty, e.span)
            case Tuple():
                return Tuple(tuple(self.atom(f) for f in e.fields), ty, e.span)
            case Proj():
                return Proj(self.atom(e.tuple), e.index, ty, e.span)
            case RefNew():
                return RefNew(self.atom(e.value), ty, e.span)
            case RefRead():
                return RefRead(self.atom(e.ref), ty, e.span)
            case RefWrite():
                return RefWrite(self.atom(e.ref), self.atom(e.value), ty, e.span)
            case Grad():
                return Grad(self.atom(e.fn), ty, e.span, e.forward)
            case If():
                assert isinstance(e.then, Block) and isinstance(e.orelse, Block)
                then = yield self.block(e.then)
                orelse = yield self.block(e.orelse)
                return If(self.atom(e.cond), then, orelse, ty, e.span)
            case Match():
                data = self.atom(e.data)
                clauses: list[Clause] = []
                for c in e.clauses:
                    assert isinstance(c.body, Block)
                    pattern = self.pattern(c.pattern)
                    clauses.append(Clause(pattern, (yield self.block(c.body))))
                return Match(data, tuple(clauses), e.complete, ty, e.span)
            case Constant():
                return e
            case _:
                return self.atom(e)

    def pattern(self, pattern: Pattern) -> Pattern:
        """The pattern with fresh variables. (Patterns nest as deeply as a person writes them.)"""
        match pattern:
            case PVar():
                return PVar(self.bind(pattern.var), pattern.span)
            case PConstructor():
                return PConstructor(pattern.name, tuple(self.pattern(f) for f in pattern.fields), pattern.span)
            case PTuple():
                return PTuple(tuple(self.pattern(f) for f in pattern.fields), pattern.span)
            case PWild():
                return pattern


def with_own_dims(function: Function) -> Function:
    """The function with fresh variables for its sizes."""
    copier = Copier(own_dims=True)
    made = copier.function(function)
    dims = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(cast(DimVar, d))))) for d in function.type_params)
    assert isinstance(made.ty, FuncType)
    return replace(made, type_params=dims, ty=FuncType(made.ty.params, made.ty.ret, dims))
