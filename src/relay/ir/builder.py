"""Building programs from Python.

    x = var("x", ("n", 4), "float32")
    w = var("w", (8, 4), "float32")
    f = function([x, w], call("nn.dense", x, w))

A string in a shape is a dimension variable. The same name means the same variable until a function closes over it: `function`
makes each such variable that its parameters mention a parameter of the function, with an identity of its own, so that two
functions that both say "n" have nothing in common. A nested function that captures a variable with "n" in its type leaves "n"
to the enclosing one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from threading import Lock
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from relay.ir.constant import make_constant
from relay.ir.diagnostics import RelayError
from relay.ir.dim import ANY, Dim, DimVar, as_dim, dim_vars
from relay.ir.dtypes import dtype_name
from relay.ir.expr import (
    NO_ATTRS,
    Attr,
    Attrs,
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
    Proj,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.retype import substitute_types
from relay.ir.types import (
    BASE_TYPE,
    DTYPE_BITS,
    AdtType,
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeDef,
    TypeParam,
    TypeVar,
)  # fmt: skip
from relay.ir.walk import free_vars

_named: dict[str, DimVar] = {}
_lock = Lock()


def dim(name: str) -> Dim:
    """The open dimension variable of this name (``"?"`` is the unknown size)."""
    if name == "?":
        return ANY
    if not name.isidentifier():
        raise RelayError(
            f"{name!r} is not the name of a size", hint='letters, digits and _, as in (1, "n"); "?" is the unknown size'
        )
    with _lock:
        return as_dim(_named.setdefault(name, DimVar(name)))


def tensor_type(shape: Sequence[int | str | Dim] = (), dtype: npt.DTypeLike = "float32") -> TensorType:
    """A tensor type; a string in the shape is a dimension variable. Raises RelayError for what is no shape or base type."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise RelayError(f"a shape is a sequence of sizes, not {shape!r}", hint='for example (1, "n") or ()')
    for d in shape:
        if isinstance(d, float | bool) or (isinstance(d, int) and d < 0):
            raise RelayError(f"a size is a whole number, a name or a Dim, not {d!r}", hint='"?" is the unknown size')
    hint = 'for example "float32"'
    if dtype is None:  # NumPy takes it for float64
        raise RelayError("unknown base type None", hint=hint)
    try:
        base = dtype if isinstance(dtype, str) else dtype_name(np.dtype(dtype))
    except TypeError as error:
        raise RelayError(f"unknown base type {dtype!r}", hint=hint) from error
    if not BASE_TYPE.fullmatch(base):
        near = difflib.get_close_matches(base, DTYPE_BITS, 1)
        raise RelayError(f"unknown base type {base!r}", hint=f"did you mean {near[0]}?" if near else "")
    return TensorType(tuple(dim(d) if isinstance(d, str) else d for d in shape), base)


def var(
    name: str,
    shape: Sequence[int | str | Dim] | None = None,
    dtype: npt.DTypeLike = "float32",
    type: Type | None = None,
) -> Var:
    """A variable, annotated with a tensor type (``shape``, ``dtype``), with any ``type``, or with nothing."""
    if shape is not None:
        type = tensor_type(shape, dtype)
    return Var(name, type)


def const(value: npt.ArrayLike, dtype: str | None = None) -> Constant:
    """A constant: an array keeps its dtype; Python numbers are float32, int32 or bool, unless ``dtype`` says otherwise."""
    return make_constant(value, dtype)


def call(fn: Expr | str, *args: Expr, type_args: Sequence[TypeArg] = (), **attrs: Attr) -> Call:
    """A call of an expression, of an operator by its name, or (``"@f"``) of a function of the module."""
    if isinstance(fn, str):
        fn = GlobalVar(fn[1:]) if fn.startswith("@") else OpRef(fn)
    return Call(fn, args, freeze(attrs), tuple(type_args))


def construct(name: str, *args: Expr) -> Call:
    """A constructor applied to its fields."""
    return Call(ConstructorRef(name), args)


def freeze(attrs: Mapping[str, Attr | list[Attr]]) -> Attrs:
    """Attributes as nodes hold them: lists become tuples."""
    return MappingProxyType({k: _frozen(v) for k, v in attrs.items()}) if attrs else NO_ATTRS


def _frozen(value: object) -> Attr:
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, Mapping):
        return MappingProxyType({k: _frozen(v) for k, v in value.items()})
    return value  # type: ignore[return-value]


def tuple_(*fields: Expr) -> Tuple:
    return Tuple(fields)


def project(value: Expr, index: int) -> Proj:
    return Proj(value, index)


def if_(cond: Expr, then: Expr, orelse: Expr) -> If:
    return If(cond, then, orelse)


def match(data: Expr, *clauses: tuple[Pattern, Expr], complete: bool = True) -> Match:
    return Match(data, tuple(Clause(p, e) for p, e in clauses), complete)


class Let:
    """A block under construction: ``b = Let(); y = b.let("y", value); b.result(y)``."""

    def __init__(self) -> None:
        self._bindings: list[Binding] = []

    def let(self, name: str, value: Expr, type: Type | None = None) -> Var:
        """Bind a new variable to a value."""
        made = Var(name, type)
        self._bindings.append(Binding(made, value))
        return made

    def do(self, value: Expr) -> None:
        """Evaluate for its effects."""
        self._bindings.append(Binding(Var("_"), value))

    def result(self, value: Expr) -> Expr:
        """The block with this result."""
        return Block(tuple(self._bindings), value) if self._bindings else value


def function(
    params: Sequence[Var],
    body: Expr,
    ret_type: Type | None = None,
    type_params: Sequence[TypeParam] = (),
    attrs: Mapping[str, Attr] = NO_ATTRS,
) -> Function:
    """A function. Open dimension variables (strings in shapes) of its parameters become parameters of its own, see above."""
    open_dims = {v: None for p in params if p.annotation is not None for v in _open(p.annotation)}
    made = Function(tuple(params), body, ret_type, (*type_params, *open_dims), freeze(attrs))
    for captured in free_vars(made):
        if captured.annotation is not None:
            for v in _open(captured.annotation):
                open_dims.pop(v, None)
    if not open_dims:
        return Function(made.params, body, ret_type, tuple(type_params), made.attrs)
    own = {v: DimVar(v.name, v.lo, v.hi) for v in open_dims}
    copy = substitute_types(made, {v: as_dim(w) for v, w in own.items()})
    assert isinstance(copy, Function)
    return Function(copy.params, copy.body, copy.ret_type, (*type_params, *own.values()), copy.attrs)


def module(functions: Mapping[str, Function], types: Sequence[TypeDef] = ()) -> Module:
    """A module of functions and types."""
    return Module(dict(functions), {d.name: d for d in types})


def _open(root: Type) -> list[DimVar]:
    """The open dimension variables in a type, in order."""
    out: list[DimVar] = []
    todo: list[TypeArg] = [root]
    while todo:
        t = todo.pop()
        match t:
            case TensorType():
                if isinstance(t.shape, tuple):
                    todo.extend(reversed(t.shape))
            case TupleType():
                todo.extend(reversed(t.fields))
            case FuncType():
                todo += (t.ret, *reversed(t.params))
            case RefType():
                todo.append(t.value)
            case AdtType():
                todo.extend(reversed(t.args))
            case tuple():
                todo.extend(reversed(t))
            case str() | TypeVar():
                pass
            case _:
                out += (v for v in dim_vars(t) if _named.get(v.name) is v)
    return out
