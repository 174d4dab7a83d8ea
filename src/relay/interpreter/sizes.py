"""Sizes at run time: binding the dimension variables of a signature to the shapes of values, and checking the rest.

A variable is bound by the first axis that is just this variable; other axes are then checked against their dims. An axis of
type ``?`` is whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from relay.interpreter.values import Array
from relay.ir.diagnostics import DividedByZero, ExecutionError, ShapeError
from relay.ir.dim import Dim, DimVar, SymDim, as_var, dim_evaluate, dim_substitute, dim_text, dim_vars, is_any
from relay.ir.expr import Attr, Attrs
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType, Type
from relay.typing.text import shape_text


@record(frozen=True, slots=True)
class SizeCheck:
    """One tensor in a value: the path of projections to it, and the axes of which the type says something."""

    path: tuple[int, ...]
    type: TensorType
    axes: tuple[tuple[int, Dim], ...]


def size_checks(type_: Type | None) -> tuple[SizeCheck, ...]:
    """What a type says about the sizes of a value of that type (through tuples; not inside algebraic values, which are invariant)."""
    out: list[SizeCheck] = []
    todo: list[tuple[tuple[int, ...], Type]] = [] if type_ is None else [((), type_)]
    while todo:
        path, t = todo.pop()
        if isinstance(t, TupleType):
            todo.extend(((*path, n), f) for n, f in reversed(list(enumerate(t.fields))))
        elif isinstance(t, TensorType) and isinstance(t.shape, tuple):
            axes = tuple((n, d) for n, d in enumerate(t.shape) if not is_any(d))
            if axes:
                out.append(SizeCheck(path, t, axes))
    return tuple(out)


# A tensor of a size that its type computes from variables without values so far, and what it is called.
Unsettled = tuple[SizeCheck, object, str]


def check_sizes(
    checks: Iterable[SizeCheck],
    value: object,
    dims: dict[DimVar, int],
    what: str,
    span: Span | None,
    unsettled: list[Unsettled] | None = None,
) -> None:
    """Bind the variables that are still free in ``dims``, within their bounds, and check every other axis; what cannot be checked
    before more variables have values is put into ``unsettled``. Raises ShapeError, which names ``what``."""
    for check in checks:
        tensor: object = value
        for index in check.path:
            tensor = tensor[index]  # type: ignore[index]
        shape: tuple[int, ...] = tensor.shape  # type: ignore[attr-defined]
        if len(shape) != len(check.type.shape):  # type: ignore[arg-type]
            raise _mismatch(check, shape, dims, what, span)
        for axis, dim in check.axes:
            if isinstance(dim, int):
                expected: int | None = dim
            else:
                variable = as_var(dim)
                if variable is not None:
                    expected = dims.setdefault(variable, shape[axis])
                else:
                    expected = _value(dim, dims, span) if _solve(dim, shape[axis], dims, span) else -1
                for v in dim_vars(dim):
                    _check_bounds(v, dims.get(v, v.lo), f"{what} has size {shape[axis]} on axis {axis}", span)
            if expected is not None and expected != shape[axis]:
                raise _mismatch(check, shape, dims, what, span)
            if expected is None and unsettled is not None:
                unsettled.append((SizeCheck((), check.type, ((axis, dim),)), tensor, what))


def settle(unsettled: Iterable[Unsettled], dims: dict[DimVar, int], span: Span | None) -> None:
    """Check what could not be checked before all parameters had given variables their values. Raises ShapeError."""
    todo, number = list(unsettled), 0
    while todo and len(todo) != number:  # one may tell the variable that another waits for
        number, left = len(todo), list[Unsettled]()
        for check, tensor, what in todo:
            check_sizes((check,), tensor, dims, what, span, left)
        todo = left


def _check_bounds(variable: DimVar, size: int, found: str, span: Span | None) -> None:
    if size < variable.lo:
        raise ShapeError(f"{found}; {variable.name} is at least {variable.lo}", span)
    if variable.hi is not None and size > variable.hi:
        raise ShapeError(f"{found}; {variable.name} is at most {variable.hi}", span)


def _value(dim: Dim, dims: dict[DimVar, int], span: Span | None) -> int | None:
    return dim_value(dim, dims, span) if is_known(dim, dims) else None


def _solve(dim: Dim, size: int, dims: dict[DimVar, int], span: Span | None) -> bool:
    """Bind the one free variable of ``c*v + d`` from its value. False when no whole size gives it."""
    try:
        known = dim_substitute(dim, dims.get)
    except DividedByZero:
        raise ShapeError(f"the size {dim_text(dim)} divides by zero here", span) from None
    free = set(dim_vars(known))
    if len(free) != 1 or not isinstance(known, SymDim):
        return True
    (variable,) = free
    slope = offset = 0
    for monomial, coefficient in known.terms:
        if monomial == ((variable, 1),):
            slope = coefficient
        elif monomial == ():
            offset = coefficient
        else:
            return True  # not linear: nothing is bound, nothing is known to be wrong
    solution, rest = divmod(size - offset, slope)
    if rest or solution < 0:
        return False
    dims[variable] = solution
    return True


def _mismatch(
    check: SizeCheck, shape: tuple[int, ...], dims: dict[DimVar, int], what: str, span: Span | None
) -> ShapeError:
    assert isinstance(check.type.shape, tuple)
    used = dict.fromkeys(v for d in check.type.shape for v in dim_vars(d) if v in dims)
    known = ", ".join(f"{v.name} = {dims[v]}" for v in used)
    expected = shape_text(check.type.shape) + (f" with {known}" if known else "")
    return ShapeError(f"{what} has shape {shape_text(shape)} where {expected} is expected", span)


def dim_value(dim: Dim, dims: dict[DimVar, int], span: Span | None) -> int:
    """The size a dim stands for here. Raises ExecutionError when one of its variables has no value."""
    unknown = [v.name for v in dim_vars(dim) if v not in dims]
    if unknown or is_any(dim):
        raise ExecutionError(
            f"the size {dim_text(dim)} is not known here: nothing gave {', '.join(unknown) or 'it'} a value",
            span,
            hint="a dimension variable gets its value from an axis of an argument or from an explicit type argument",
        )
    try:
        return dim_evaluate(dim, dims)
    except DividedByZero:
        raise ExecutionError(f"the size {dim_text(dim)} divides by zero here", span) from None


def is_known(dim: Dim, dims: Mapping[DimVar, int]) -> bool:
    """Whether all variables of a dim have values."""
    return not is_any(dim) and all(v in dims for v in dim_vars(dim))


def as_typed(value: Array, ty: Type | None, dims: dict[DimVar, int]) -> Array:
    """A tensor without elements with the sizes that its type says. (What `reshape` makes of -1 is a quotient: of ``3*n`` by ``n`` it is 3
    for every size, which the sizes 0 and 0 do not tell.)"""
    if (
        not isinstance(ty, TensorType)
        or not isinstance(ty.shape, tuple)
        or not all(is_known(d, dims) for d in ty.shape)
    ):
        return value
    shape = tuple(dim_value(d, dims, None) for d in ty.shape)
    return value.reshape(shape) if 0 in shape else value


def has_dims(attr: object) -> bool:
    """Whether an attribute mentions symbolic dims."""
    return any(has_dims(a) for a in attr) if isinstance(attr, tuple) else isinstance(attr, SymDim)


def _concrete(attr: object, dims: dict[DimVar, int], span: Span | None) -> Attr:
    if isinstance(attr, tuple):
        return tuple(_concrete(a, dims, span) for a in attr)
    return dim_value(attr, dims, span) if isinstance(attr, SymDim) else cast(Attr, attr)


def concrete_attrs(attrs: Attrs, dims: dict[DimVar, int], span: Span | None) -> Attrs:
    """Attributes with symbolic dims replaced by their values (the same object when none has any)."""
    if not attrs or not any(has_dims(a) for a in attrs.values()):
        return attrs
    return {name: _concrete(a, dims, span) for name, a in attrs.items()}


def as_precise(found: Type, declared: Type) -> bool:
    """Whether values of type ``found`` need no check of their sizes to be used as ``declared``: no ``?`` stands where it has a dim."""
    todo: list[tuple[Type, Type]] = [(found, declared)]
    while todo:
        f, d = todo.pop()
        if isinstance(f, TupleType) and isinstance(d, TupleType):
            todo.extend(zip(f.fields, d.fields, strict=False))
        elif isinstance(f, TensorType) and isinstance(d, TensorType):
            pairs = (
                zip(f.shape, d.shape, strict=False) if isinstance(f.shape, tuple) and isinstance(d.shape, tuple) else ()
            )
            if any(is_any(a) and not is_any(b) for a, b in pairs):
                return False
    return True
