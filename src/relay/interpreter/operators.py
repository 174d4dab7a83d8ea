"""What an operator's call means: its own expression, evaluated on concrete arrays.

An expression or view is traced on the concrete shapes (memoised by operator, shapes and attributes) and evaluated by
`relay.te.evaluate`; sizes in its attributes stay sizes there, since numbers in their place may be codes (0 in a ``newshape``,
-1 for the end of a slice); a routine's meaning is its reference function; a composition is a program, which the machine runs. A demand
about sizes that does not hold is a ShapeError with the shapes of the operands.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from relay import te
from relay.interpreter.scopes import Scopes, analyse
from relay.interpreter.sizes import concrete_attrs
from relay.interpreter.values import Array, Value
from relay.ir.diagnostics import ExecutionError, OperatorError, RelayError, ShapeError
from relay.ir.dim import DimVar, dim_evaluate
from relay.ir.expr import Attrs, Expr, Function, Tuple, Var, attrs_key
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, countable
from relay.ir.value import AdtValue
from relay.op import registry
from relay.te.evaluate import evaluate as evaluate_te
from relay.te.reads import OutsideError
from relay.typing.text import shape_text

Signature = tuple[tuple[int, ...], str]
Operand = Signature | tuple[Signature, ...]


class _Key:
    """Attributes as a hashable key that keeps 1, 1.0 and True apart."""

    __slots__ = ("_hash", "_key", "attrs")

    def __init__(self, attrs: Attrs) -> None:
        self.attrs = attrs
        self._key = attrs_key(attrs)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key


def signature(value: Value) -> Operand:
    """Shape and dtype of a tensor operand, or of each tensor of a tuple."""
    if isinstance(value, tuple):
        return tuple((v.shape, v.dtype.name) for v in value)  # type: ignore[union-attr]
    return (value.shape, value.dtype.name)  # type: ignore[union-attr]


def _operand_text(operand: Operand) -> str:
    if not (len(operand) == 2 and isinstance(operand[1], str)):
        return f"({', '.join(_operand_text(o) for o in operand)})"
    shape, dtype = operand
    return f"Tensor[{shape_text(shape)}, {dtype}]" if shape else str(dtype)


@lru_cache(maxsize=8192)
def _traced(
    op: registry.Operator, operands: tuple[Operand, ...], key: _Key, out_shape: tuple[int, ...] | None
) -> registry.Traced:
    return registry.trace(op, operands, key.attrs, out_shape=out_shape)


@lru_cache(maxsize=8192)
def _traced_shape(op: registry.Operator, operands: tuple[Operand, ...], key: _Key) -> registry.Traced:
    """The shape function of an operator whose result's shape depends on data, traced as a definition of its own."""
    assert op.result_shape is not None
    function = registry.Operator(f"{op.name} (shape)", "expression", op.inputs, op.attrs, op.result_shape)
    return registry.trace(function, operands, key.attrs)


def _flat(args: Sequence[Value]) -> list[Array]:
    out: list[Array] = []
    for a in args:
        if isinstance(a, tuple):
            out.extend(a)  # type: ignore[arg-type]
        else:
            out.append(a)  # type: ignore[arg-type]
    return out


_NO_DIMS: Final[dict[DimVar, int]] = {}


def _run(traced: registry.Traced, args: Sequence[Value], dims: Mapping[DimVar, int]) -> list[Array]:
    inputs = dict(zip(traced.inputs, _flat(args), strict=True))
    return [np.asarray(a) for a in evaluate_te(traced.outputs, inputs, dims)]


def apply_operator(
    op: registry.Operator, args: Sequence[Value], attrs: Attrs, span: Span | None, dims: dict[DimVar, int] = _NO_DIMS
) -> Value:
    """The value of an expression, view or routine on values. ``dims`` has the values of the variables that attributes mention.

    Raises ShapeError when the operands do not fit, OperatorError for wrong attributes, ExecutionError when a routine fails.
    """
    if op.kind == "routine":
        try:
            return _apply_routine(op, args, concrete_attrs(attrs, dims, span))
        except (RelayError, IndexError) as error:
            if isinstance(error, RelayError):
                error.span = error.span or span
                raise
            raise ExecutionError(f"{op.name}: {error}", span) from error
    operands = tuple(signature(a) for a in args)
    try:
        key = _Key(attrs)
        out_shape: tuple[int, ...] | None = None
        if op.shape_mode == "data":
            out_shape = tuple(int(n) for n in _run(_traced_shape(op, operands, key), args, dims)[0].reshape(-1))
            if any(n < 0 for n in out_shape):
                raise te.DefinitionError(f"its result would have the shape {shape_text(out_shape)}")
        traced = _traced(op, operands, key, out_shape)
        _check_demands(traced, dims)
        results = _run(traced, args, dims)
    except (te.DefinitionError, IndexError, ZeroDivisionError) as error:
        given = ", ".join(_operand_text(o) for o in operands)
        raise ShapeError(f"{op.name} on {given}: {error}", span) from error
    except OutsideError as error:
        at = inspect.unwrap(op.define).__code__
        raise ExecutionError(
            f"{op.name}, defined in {at.co_filename}:{at.co_firstlineno}: {error}",
            span,
            hint="bound the index (te.minimum, te.maximum), or choose with te.select where it is inside",
        ) from error
    except OperatorError as error:
        error.span = error.span or span
        raise
    if op.shape_mode == "upper_bound":
        extents = results.pop().reshape(-1)
        results = [r[: int(n)] for r, n in zip(results, extents, strict=True)]
        return tuple(results) if len(results) > 1 else results[0]
    return tuple(results) if traced.is_tuple else results[0]


def _check_demands(traced: registry.Traced, dims: Mapping[DimVar, int]) -> None:
    for demand in traced.demands:
        left, right = dim_evaluate(demand.left, dims), dim_evaluate(demand.right, dims)
        if not (left == right if demand.relation == "==" else left <= right):
            raise te.DefinitionError(f"{demand.why}: {left} {demand.relation} {right} does not hold")
    for output in traced.outputs:
        if all(isinstance(d, int) for d in output.shape):
            continue  # looked at when it was traced
        shape = tuple(dim_evaluate(d, dims) for d in output.shape)
        if any(n < 0 for n in shape) or not countable(shape, output.dtype):
            raise te.DefinitionError(f"its result would have the shape {shape_text(shape)}")


def _apply_routine(op: registry.Operator, args: Sequence[Value], attrs: Attrs) -> Value:
    assert op.reference is not None
    result = op.reference(*args, **op.complete_attrs(attrs))
    if isinstance(result, tuple | list):
        return tuple(r if isinstance(r, AdtValue) else np.asarray(r) for r in result)
    return result if isinstance(result, AdtValue) else np.asarray(result)


@record(frozen=True, slots=True, eq=False)
class Composition:
    """A composition applied to operands of these shapes: a function of the flattened tensors, with its scopes."""

    function: Function
    scopes: Scopes


@lru_cache(maxsize=2048)
def _composed(op: registry.Operator, operands: tuple[Operand, ...], key: _Key) -> Composition:
    params: list[Var] = []
    args: list[Expr] = []

    def param(name: str, operand: Signature) -> Var:
        type_ = TensorType(*operand)
        params.append(Var(name, type_, type_))
        return params[-1]

    for spec, operand in zip(op.inputs, operands, strict=False):
        if spec.variadic:
            args.append(Tuple(tuple(param(f"{spec.name}{n}", o) for n, o in enumerate(operand))))  # type: ignore[arg-type]
        else:
            args.append(param(spec.name, operand))  # type: ignore[arg-type]
    function = Function(tuple(params), op.define(*args, **op.complete_attrs(key.attrs)))
    return Composition(function, analyse(function))


def compose(
    op: registry.Operator, args: Sequence[Value], attrs: Attrs, span: Span | None
) -> tuple[Composition, list[Array]]:
    """The program of a composition for these operands, and its arguments.

    Raises ShapeError or OperatorError when it cannot be applied to them.
    """
    operands = tuple(signature(a) for a in args)
    try:
        return _composed(op, operands, _Key(attrs)), _flat(args)
    except te.DefinitionError as error:
        given = ", ".join(_operand_text(o) for o in operands)
        raise ShapeError(f"{op.name} on {given}: {error}", span) from error


def check_arity(op: registry.Operator, count: int, span: Span | None) -> None:
    """Raises ExecutionError when an operator is given too few or too many operands."""
    needed = sum(not i.optional for i in op.inputs)
    if not needed <= count <= len(op.inputs):
        names = ", ".join(i.name for i in op.inputs)
        raise ExecutionError(f"{op.name} takes {len(op.inputs)} operands ({names}), not {count}", span)
