"""Derivatives of programs: `grad`, `value_and_grad`, `jvp`, and evaluation of programs that contain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex, TypeVar, cast

from relay import interpreter, typing
from relay.ir.diagnostics import RelayError
from relay.ir.dim import DimVar
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, Grad, Proj, Tuple, Var
from relay.ir.module import Module, require_module
from relay.ir.types import FuncType, TupleType, Type
from relay.ir.walk import post_order, rewrite
from relay.loading import as_module
from relay.transform.ad.gradient import Gradient, has_gradients
from relay.transform.base import Pass, Pipeline
from relay.transform.to_blocks import ToBlocks
from relay.typing.gradients import derivative_type

Program = TypeVar("Program", Function, Module)


def grad(program: Program, argnums: int | Sequence[int] = 0, entry: str = "main") -> Program:
    """The gradient of a function (or of a module's ``@entry``): a program of the same parameters.

    It returns the cotangent of the chosen argument (a tuple of them for a sequence of numbers), for a cotangent of ones
    in every floating-point tensor of the result: the gradient of the sum of its elements. The result is typed, and may
    be differentiated again. Raises RelayError.
    """

    def build(function: Function) -> Function:
        params, whole = _applied(function, _chosen(argnums, function), forward=False)
        return _function(function, params, whole, _cotangents(whole.var, argnums))

    found: Program = _derived(program, entry, build)
    return found


def value_and_grad(program: Program, argnums: int | Sequence[int] = 0, entry: str = "main") -> Program:
    """Like `grad`; the program returns a pair of the value and what `grad` returns."""

    def build(function: Function) -> Function:
        params, whole = _applied(function, _chosen(argnums, function), forward=False)
        fields = (_project(whole.var, 0), _cotangents(whole.var, argnums))
        return _function(function, params, whole, Tuple(fields, TupleType(tuple(map(_type, fields)))))

    found: Program = _derived(program, entry, build)
    return found


def jvp(program: Program, argnums: int | Sequence[int] | None = None, entry: str = "main") -> Program:
    """The derivative of a function (or of a module's ``@entry``) in a direction, by forward mode.

    A program that takes, behind the parameters, a tangent for each of them (with ``argnums`` for those only; the others
    do not move), and returns the value and its tangent. Functions and references have the empty tuple as their tangent,
    tangents of integers are ignored. Composes with `grad`: ``jvp(grad(f))`` is the product of the Hessian and a vector.
    Raises RelayError.
    """

    def build(function: Function) -> Function:
        numbers = range(len(function.params)) if argnums is None else argnums
        params, whole = _applied(function, _chosen(numbers, function), forward=True)
        return _function(function, params, whole, whole.var)

    found: Program = _derived(program, entry, build)
    return found


def _derived(program: Function | Module, entry: str, build: Callable[[Function], Function]) -> Any:
    """What ``build`` makes of a typed function, or of a module's entry."""
    if isinstance(program, Function):
        typed = program if program.ty is not None else typing.infer_expr(program)
        assert isinstance(typed, Function)
        return build(typed)
    require_module(program)
    module = program if all(f.ty is not None for f in program.functions.values()) else typing.infer(program)
    function, rest = _entry(module, entry)
    return module.with_functions({entry: build(function), **rest})


def _entry(module: Module, entry: str) -> tuple[Function, dict[str, Function]]:
    """The entry, and the other functions; where they call it, it is among them by another name."""
    function = module.function(entry)
    rest = {n: f for n, f in module.functions.items() if n != entry}
    called = any(isinstance(n, GlobalVar) and n.name == entry for f in module.functions.values() for n in post_order(f))
    if not called:
        return function, rest
    name = f"{entry}.value"
    while name in module.functions:
        name += "_"

    def visit(e: Expr) -> Expr:
        return replace(e, name=name) if isinstance(e, GlobalVar) and e.name == entry else e

    renamed = {n: cast(Function, rewrite(f, visit)) for n, f in module.functions.items()}
    function = renamed.pop(entry)
    return function, {**renamed, name: function}


def _chosen(argnums: int | Sequence[int], function: Function) -> tuple[int, ...]:
    """The numbers of the parameters to differentiate by."""
    count = len(function.params)
    one = _integer(argnums)
    if one is None and not isinstance(argnums, Iterable):
        what = f"argnums: {argnums!r} is neither the number of a parameter nor a sequence of numbers"
        raise RelayError(what, function.span, "they count from 0")
    given: list[int] = []
    for item in cast(Iterable[object], argnums) if one is None else (one,):
        n = _integer(item)
        if n is None:
            raise RelayError(f"argnums: {item!r} is not the number of a parameter", function.span, "they count from 0")
        given.append(n)
        if not -count <= n < count:
            raise RelayError(
                f"argnums: a function of {count} parameters has no parameter {n}", function.span, "they count from 0"
            )
    chosen = tuple(n % count for n in given)
    if len(set(chosen)) != len(chosen):
        raise RelayError(f"argnums: {tuple(given)} names a parameter twice", function.span)
    return chosen


def _integer(given: object) -> int | None:
    """An integer, Python's or NumPy's; None for anything else, truth values too."""
    try:
        return None if isinstance(given, bool) else index(cast(SupportsIndex, given))
    except TypeError:
        return None


def _applied(function: Function, chosen: Sequence[int], forward: bool) -> tuple[tuple[Var, ...], Binding]:
    """The parameters of a function's derivative, and the binding of the derivative applied to them.

    The function under ``grad`` takes the chosen parameters only and keeps their variables; the others, which it
    captures, are the derivative's own.
    """
    ty = function.ty
    assert isinstance(ty, FuncType)
    types = tuple(ty.params[n] for n in chosen)
    under = FuncType(types, ty.ret)
    inner = Function(
        tuple(function.params[n] for n in chosen), function.body, ty.ret, (), function.attrs, (), under, function.span
    )
    derived = derivative_type(under, forward)
    fresh = {n: _parameter(function.params[n].name, ty.params[n]) for n in chosen}
    tangents = tuple(
        _parameter(f"d{function.params[n].name}", t)
        for n, t in zip(chosen, derived.params[len(chosen) :], strict=False)
    )
    args = (*(fresh[n] for n in chosen), *tangents)
    call = Call(Grad(inner, derived, function.span, forward), args, ty=derived.ret)
    params = tuple(fresh.get(n, v) for n, v in enumerate(function.params))
    return (*params, *tangents), Binding(Var("derivative", None, derived.ret), call)


def _parameter(name: str, ty: Type) -> Var:
    return Var(name, ty, ty)


def _function(function: Function, params: tuple[Var, ...], whole: Binding, result: Expr) -> Function:
    """The function of a derivative: that of the parameters which gives ``result`` after the binding ``whole``."""
    ret = _type(result)
    ty = FuncType(tuple(map(_type, params)), ret, function.type_params, function.constraints)
    return replace(function, params=params, body=Block((whole,), result, ret), ret_type=ret, ty=ty)


def _cotangents(whole: Var, argnums: int | Sequence[int]) -> Expr:
    cotangents = _project(whole, 1)
    return cotangents if _integer(argnums) is None else _project(cotangents, 0)


def _project(e: Expr, index: int) -> Proj:
    ty = _type(e)
    assert isinstance(ty, TupleType)
    return Proj(e, index, ty.fields[index])


def _type(e: Expr) -> Type:
    assert e.ty is not None
    return e.ty


# -- programs that contain derivatives


def passes(entries: tuple[str, ...]) -> list[Pass]:
    """The passes that take the derivatives out of a monomorphic typed module."""
    return [ToBlocks(), Gradient(entries=entries)]


def differentiated(module: Module, entry: str = "main") -> Module:
    """A module without ``grad``, for evaluating ``@entry``; the same one where it has none. Raises RelayError."""
    require_module(module)
    if not has_gradients(module):
        return module
    try:
        typed = module if all(f.ty is not None for f in module.functions.values()) else typing.infer(module)
        # A polymorphic entry is differentiated as it stands: its base types stand for floating-point ones.
        if all(isinstance(p, DimVar) for p in typed.function(entry).type_params):
            typed = typing.monomorphise(typed, (entry,))
        return Pipeline(passes((entry,)))(typed)
    except RelayError as error:
        raise error.with_source(module.sources) from error.__cause__


def evaluate(
    program: Module | Function | str,
    *args: object,
    entry: str = "main",
    recursion_limit: int = interpreter.RECURSION_LIMIT,
    **named: object,
) -> object:
    """The value of ``@entry`` applied to the arguments, by the definitional interpreter; derivatives are taken first. A function is a
    module's ``@main``.

    Arguments, by place and behind these by name, are arrays (anything `numpy.asarray` takes; of exactly the parameter's dtype, except
    plain Python numbers and nested lists of them), tuples, lists for ``List``, ``None`` or a value for ``Option``, and algebraic values.
    Results are NumPy arrays (rank 0 for scalars), tuples, lists, ``None`` or a value, and `AdtValue`. ``recursion_limit`` bounds the
    number of pending calls.

    Raises ShapeError and TypeError_ for arguments that do not fit and for sizes that disagree at run time,
    CompileError for what has no derivative, ExecutionError for a match without a matching clause and for recursion that
    is too deep.
    """
    module = program if isinstance(program, Module) else as_module(program)
    return interpreter.evaluate(
        differentiated(module, entry), *args, entry=entry, recursion_limit=recursion_limit, named=named
    )
