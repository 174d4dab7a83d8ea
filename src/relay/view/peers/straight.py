"""A program without control flow as straight-line code: what other frameworks' graphs can say.

`straight` inlines an entry down to operator calls on tensors; what cannot be said so (a call that stays, a choice, a data type) is
refused by name. Attention that is spelled out becomes one operator, which others have kernels for. The translators (`to_torch`,
`to_onnx`) then go over the steps in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay import typing
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimVar, as_var
from relay.ir.expr import Attrs, Block, Call, Constant, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.transform import (
    CommonSubexpressions,
    DeadCode,
    DeadFunctions,
    EtaExpand,
    FuseAttention,
    Inline,
    NameDims,
    Pipeline,
    Simplify,
    ToBlocks,
)


@record(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the program: an identity with a type."""

    type: TensorType


@record(frozen=True, slots=True, eq=False)
class Step:
    """``result = op(*args, **attrs)``, with the attributes' defaults filled in. Arguments that are tuples of tensors are tuples."""

    op: str
    args: tuple[Value | Constant | tuple[Value | Constant, ...], ...]
    attrs: Attrs
    result: Value
    where: str


@record(frozen=True, slots=True, eq=False)
class Straight:
    """``params`` and ``results`` are the entry's tensors, tuples flattened from left to right; ``sizes`` says off which parameter
    and axis each dimension variable is read."""

    params: tuple[Value, ...]
    steps: tuple[Step, ...]
    results: tuple[Value | Constant, ...]
    sizes: dict[DimVar, tuple[int, int]]


Nested = Value | Constant | tuple["Nested", ...]


def straight(module: Module, entry: str = "main") -> Straight:
    """The entry as straight-line code. Raises CompileError for what other frameworks' graphs cannot say."""
    passes = [
        ToBlocks(), EtaExpand(), Inline(max_growth=1_000_000, entries=(entry,)), Simplify(), CommonSubexpressions(), DeadCode(), NameDims(),
        FuseAttention(), DeadCode(), DeadFunctions(entries=(entry,)),
    ]  # fmt: skip
    function = Pipeline(passes)(typing.monomorphise(module, (entry,))).function(entry)
    env: dict[Var, Nested] = {}
    params: list[Value] = []
    for param in function.params:
        env[param] = _parameter(param.ty, params, param.name)
    sizes: dict[DimVar, tuple[int, int]] = {}
    for number, value in enumerate(params):
        for axis, dim in enumerate(shape_of(value.type)):
            variable = as_var(dim)
            if variable is not None:
                sizes.setdefault(variable, (number, axis))
    block = function.body
    assert isinstance(block, Block)
    steps: list[Step] = []
    for binding in block.bindings:
        env[binding.var] = _binding(binding.value, binding.var.ty, env, steps)
    results = tuple(_leaves(_atom(block.result, env)))
    return Straight(tuple(params), tuple(steps), results, sizes)


def shape_of(ty: TensorType) -> tuple[Dim, ...]:
    """The sizes of a tensor type."""
    if not isinstance(ty.shape, tuple):
        raise CompileError("a tensor whose rank is not known cannot be handed to another framework")
    return ty.shape


def _parameter(ty: Type | None, params: list[Value], name: str) -> Nested:
    if isinstance(ty, TupleType):
        return tuple(_parameter(f, params, f"{name}.{n}") for n, f in enumerate(ty.fields))
    if not isinstance(ty, TensorType):
        raise CompileError(f"%{name} is not a tensor: other frameworks' graphs take tensors only")
    params.append(Value(ty))
    return params[-1]


def _atom(e: Expr, env: dict[Var, Nested]) -> Nested:
    match e:
        case Var():
            return env[e]
        case Constant():
            return e
        case _:
            raise CompileError(f"a {type(e).__name__} cannot be handed to another framework", e.span)


def _leaves(value: Nested) -> Iterator[Value | Constant]:
    if isinstance(value, tuple):
        for field in value:
            yield from _leaves(field)
    else:
        yield value


def _binding(e: Expr, ty: Type | None, env: dict[Var, Nested], steps: list[Step]) -> Nested:
    match e:
        case Tuple(fields=fields):
            return tuple(_atom(f, env) for f in fields)
        case Proj(tuple=source, index=index):
            whole = _atom(source, env)
            assert isinstance(whole, tuple)
            return whole[index]
        case Call(fn=OpRef(name=name), args=args, attrs=attrs):
            if not isinstance(ty, TensorType):
                raise CompileError(f"{name} gives several tensors here, which is not translated", e.span)
            result = Value(ty)
            given = tuple(_operand(_atom(a, env)) for a in args)
            complete = registry.get(name).complete_attrs(attrs)
            steps.append(Step(name, given, complete, result, str(e.span) if e.span else ""))
            return result
        case Call():
            raise CompileError("a call of a function that cannot be inlined has no place in another framework", e.span)
        case Var() | Constant():
            return _atom(e, env)
        case Function():
            raise CompileError("a function value has no place in another framework's graph", e.span)
        case _:
            raise CompileError(f"{type(e).__name__.lower()} has no place in another framework's graph", e.span)


def _operand(value: Nested) -> Value | Constant | tuple[Value | Constant, ...]:
    return tuple(_leaves(value)) if isinstance(value, tuple) else value


def shape_of_operand(value: Value | Constant) -> tuple[Dim, ...]:
    """The sizes of an operand."""
    return tuple(value.data.shape) if isinstance(value, Constant) else shape_of(value.type)


def dtype_of(value: Value | Constant) -> str:
    """The base type of an operand."""
    if isinstance(value, Constant):
        return value.dtype
    assert isinstance(value.type.dtype, str)
    return value.type.dtype


def untranslated(step: Step, framework: str, why: str = "") -> CompileError:
    """What to raise for a step that a translator does not know."""
    return CompileError(
        f"{step.op} is not translated to {framework}{f' ({why})' if why else ''}",
        hint="leave this system out of the comparison (--peers), or write its model by hand",
    )
