"""Binding parameters of a function to constants, by name: how trained weights get into a program."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relay.ir.constant import make_constant
from relay.ir.diagnostics import RelayError, ShapeError, TypeError_
from relay.ir.dim import Dim, DimVar, SymDim, as_var, dim_linear, dim_substitute, dim_text
from relay.ir.expr import Constant, Expr, Function, Var
from relay.ir.retype import substitute_types
from relay.ir.text_types import TypeText
from relay.ir.types import FuncType, TensorType, Type
from relay.ir.walk import substitute

# Floats of files that a parameter takes as well: each number is one of the wider type.
_WIDENED = {"float32": ("float16", "bfloat16"), "float64": ("float16", "bfloat16", "float32")}


def bind_parameters(function: Function, name: str, values: Mapping[str, npt.ArrayLike | Constant]) -> Function:
    """``function`` (called ``name`` in messages) with these parameters replaced by constants.

    A dimension variable that a bound parameter's type mentions becomes the number found there; narrower floats are
    widened. Raises RelayError for what is no mapping and for a name that is no parameter, TypeError_ for a wrong dtype, a value
    that is no array or a parameter that is no tensor, ShapeError for a wrong rank or size.
    """
    if not isinstance(values, Mapping):
        hint = 'for example bind({"w": array})'
        raise RelayError(f"what is bound is given by parameters' names, not as {values!r}", hint=hint)
    by_name = {p.name: p for p in function.params}
    for given in values:
        if given not in by_name:
            near = difflib.get_close_matches(str(given), by_name, 1)
            known = ", ".join(list(by_name)[:8]) + (", ..." if len(by_name) > 8 else "")
            raise RelayError(
                f"@{name} has no parameter {given!r}", hint=f"did you mean {near[0]!r}?" if near else f"it has: {known}"
            )
    sizes: dict[DimVar, int] = {}
    constants: dict[Var, Constant] = {}
    for given, value in values.items():
        parameter = by_name[given]
        constants[parameter] = _checked(parameter, value, f"parameter {given!r} of @{name}", sizes)
    _check_sizes(constants, sizes, name)
    positions = [n for n, p in enumerate(function.params) if p not in constants]
    ty: Type | None = function.ty
    if isinstance(ty, FuncType):
        ty = FuncType(tuple(ty.params[n] for n in positions), ty.ret, ty.type_params, ty.constraints)
    replacements: dict[Var, Expr] = dict(constants)
    body = substitute(function.body, replacements)
    made = Function(
        tuple(function.params[n] for n in positions), body, function.ret_type, function.type_params, function.attrs,
        function.constraints, ty, function.span,
    )  # fmt: skip
    if sizes:
        sized = substitute_types(made, {v: size for v, size in sizes.items()})
        assert isinstance(sized, Function)
        if isinstance(sized.ty, FuncType):
            left = tuple(p for p in sized.ty.type_params if p not in sizes)
            sized = Function(
                sized.params, sized.body, sized.ret_type, sized.type_params, sized.attrs, sized.constraints,
                FuncType(sized.ty.params, sized.ty.ret, left, sized.ty.constraints), sized.span,
            )  # fmt: skip
        made = sized
    return made


def _checked(parameter: Var, value: npt.ArrayLike | Constant, what: str, sizes: dict[DimVar, int]) -> Constant:
    wanted = parameter.annotation or parameter.ty
    if wanted is not None and not isinstance(wanted, TensorType):
        raise TypeError_(f"{what} is a {_text(wanted)}; only tensors can be bound", parameter.span)
    if value is None:
        raise TypeError_(f"{what} must be an array or a number, not None", parameter.span)
    if isinstance(value, Constant):
        constant = value
    else:
        named = wanted.dtype if wanted is not None and isinstance(wanted.dtype, str) else None
        dtype = None if isinstance(value, np.ndarray | np.generic) else named
        try:
            constant = make_constant(value, dtype)
        except RelayError as error:
            raise TypeError_(f"{what}: {error.message}", parameter.span, error.hint) from error
    if wanted is None:
        return _typed(constant)
    if (
        isinstance(wanted.dtype, str)
        and constant.dtype in _WIDENED.get(wanted.dtype, ())
        and isinstance(constant.data, np.ndarray)
    ):
        constant = make_constant(constant.data.astype(wanted.dtype))
    if isinstance(wanted.dtype, str) and wanted.dtype != constant.dtype:
        hint = f"convert it: array.astype({wanted.dtype!r})"
        raise TypeError_(f"{what} must be {wanted.dtype}, the array is {constant.dtype}", parameter.span, hint)
    shape = constant.data.shape
    if isinstance(wanted.shape, tuple):
        text = TypeText(unknown="").shape(wanted.shape)
        if len(shape) != len(wanted.shape):
            raise ShapeError(
                f"{what} must have rank {len(wanted.shape)}, shape {text}; the array has shape {shape}", parameter.span
            )
        for axis, (dim, size) in enumerate(zip(wanted.shape, shape, strict=True)):
            variable = as_var(dim)
            expected: Dim = sizes.setdefault(variable, size) if variable is not None else dim
            if isinstance(expected, int) and expected != size:
                why = (
                    f"{variable.name} is {expected} elsewhere"
                    if variable is not None
                    else f"its type is {_text(wanted)}"
                )
                raise ShapeError(f"{what} has size {size} on axis {axis}, expected {expected} ({why})", parameter.span)
            if variable is not None and (size < variable.lo or (variable.hi is not None and size > variable.hi)):
                raise ShapeError(
                    f"{what} has size {size} on axis {axis}, out of the bounds of {variable.name}", parameter.span
                )
    return _typed(constant)


def _check_sizes(constants: Mapping[Var, Constant], sizes: dict[DimVar, int], name: str) -> None:
    """Axes whose size is computed from variables: solved for the variable where it is the only one, and checked."""
    for parameter, constant in constants.items():
        wanted = parameter.annotation or parameter.ty
        if isinstance(wanted, TensorType) and isinstance(wanted.shape, tuple):
            for axis, (dim, size) in enumerate(zip(wanted.shape, constant.data.shape, strict=True)):
                expected = dim_substitute(dim, sizes.get)
                solved = dim_linear(expected) if isinstance(expected, SymDim) else None
                if solved is not None:
                    variable, factor, rest = solved
                    if (size - rest) % factor:
                        raise ShapeError(
                            f"parameter {parameter.name!r} of @{name} has size {size} on axis {axis}, which is no "
                            f"{dim_text(expected)}",
                            parameter.span,
                        )
                    sizes[variable] = (size - rest) // factor
                elif isinstance(expected, int) and expected != size:
                    raise ShapeError(
                        f"parameter {parameter.name!r} of @{name} has size {size} on axis {axis}, expected {expected}",
                        parameter.span,
                    )


def _text(t: Type) -> str:
    return TypeText(unknown="").type(t)


def _typed(c: Constant) -> Constant:
    return Constant(c.data, c.dtype, TensorType(tuple(int(n) for n in c.data.shape), c.dtype), c.span)
