"""The type relations of operators, derived: an operator's definition is run on placeholders of the argument shapes.

A ``?`` dim enters as a fresh gradual variable, and every output dim that mentions one is ``?`` again. What the
definition demands of the sizes is sorted by the caller: a demand that mentions a gradual dim, or that cannot be proved
or refuted, is a run-time check; one about unknown dims is unified.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

from relay import te
from relay.ir.diagnostics import DividedByZero, RelayError, ShapeError, TypeError_
from relay.ir.dim import ANY, AnyDim, Dim, DimVar, SymDim, as_dim, dim_vars
from relay.ir.expr import Attrs, attrs_key
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType, Type, TypeArg
from relay.op import registry
from relay.op.registry import Operator
from relay.te.reach import demands_of_reads
from relay.typing.kinds import require_base_type
from relay.typing.text import type_text

ShapeAndType = tuple[tuple[Dim, ...], str]


@record(frozen=True, slots=True, eq=False)
class Signature:
    """What a relation gives: the result, and what the definition demands. ``gradual`` are the variables that stand for
    ``?`` in the demands, with the input (flat number) and axis where each stands."""

    result: Type
    demands: tuple[te.Demand, ...]
    gradual: Mapping[DimVar, tuple[int, int]]


def check_arity(op: Operator, count: int) -> None:
    """Raises TypeError_ unless the operator takes this many arguments."""
    least = sum(not i.optional for i in op.inputs)
    if not least <= count <= len(op.inputs):
        wanted = str(least) if least == len(op.inputs) else f"{least} to {len(op.inputs)}"
        names = ", ".join(i.name for i in op.inputs) or "none"
        plural = "" if wanted == "1" else "s"
        attributes = ", ".join(f"{a.name}=" for a in op.attrs)
        hint = ""
        if count > len(op.inputs) and any(i.variadic for i in op.inputs):
            hint = f"several tensors are given as one tuple: {op.name}((a, b), ...)"
        elif count > len(op.inputs) and attributes:
            hint = f"attributes are given by name: {attributes}"
            if registry.exists(f"dyn.{op.name}"):
                hint += f"; dyn.{op.name} takes operands, for what only a run knows"
        raise TypeError_(f"operator {op.name} takes {wanted} argument{plural} ({names}), found {count}", hint=hint)


def signature(
    op: Operator, args: Sequence[Type], attrs: Attrs, is_unknown: Callable[[DimVar], bool] = lambda _: False
) -> Signature:
    """Run the relation of an expression, view or routine on argument types whose ranks and base types are known.

    Raises te.Undetermined when a fact about an unknown dim is needed, ShapeError or TypeError_ when the operator
    cannot be applied to these, OperatorError for attributes.
    """
    check_arity(op, len(args))
    try:
        if op.kind == "routine":
            assert op.relation is not None
            found = Signature(op.relation(args, op.complete_attrs(attrs)), (), {})
        else:
            found = _traced(op, args, attrs, is_unknown)
    except te.DefinitionError as e:
        raise ShapeError(f"{_call_text(op, args)}: {e}") from e
    except DividedByZero as e:
        raise ShapeError(f"{_call_text(op, args)}: {e}") from e
    except (TypeError, IndexError, ZeroDivisionError) as e:
        # What the tensor expressions themselves refuse: operands of different base types, an index of another rank.
        raise TypeError_(f"{_call_text(op, args)}: {e}") from e
    except (ValueError, AttributeError, LookupError, ArithmeticError, NameError) as e:
        raise TypeError_(f"{_call_text(op, args)}: its definition fails: {e}", hint=_where_it_failed(op, e)) from e
    # An attribute may name any.
    for result in found.result.fields if isinstance(found.result, TupleType) else (found.result,):
        if isinstance(result, TensorType) and isinstance(result.dtype, str):
            require_base_type(result.dtype, where=f"{_call_text(op, args)}: ")
    return found


def _where_it_failed(op: Operator, error: Exception) -> str:
    """The kind of an error, and the line of the operator's definition at which it was raised."""
    code = getattr(op.define, "__code__", None)  # what can be called need not be a function
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if code is not None and f.filename == code.co_filename
    ]
    return f"{type(error).__name__}" + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def _call_text(op: Operator, args: Sequence[Type]) -> str:
    return f"{op.name}({', '.join(map(type_text, args))})"


def _traced(op: Operator, args: Sequence[Type], attrs: Attrs, is_unknown: Callable[[DimVar], bool]) -> Signature:
    gradual: dict[DimVar, tuple[int, int]] = {}
    flat = 0

    def shape_and_type(t: Type, name: str) -> ShapeAndType:
        nonlocal flat
        if not isinstance(t, TensorType):
            hint = ""
            if isinstance(t, TupleType):
                hint = "a field of a tuple is %x.0; grad(%f)(%x) is (value, (the cotangent of each argument,)): the first is .1.0"
            raise TypeError_(f"operator {op.name}: {name} must be a tensor, found {type_text(t)}", hint=hint)
        if not isinstance(t.shape, tuple) or not isinstance(t.dtype, str):
            raise TypeError_(
                f"operator {op.name}: {name} has the type {type_text(t)}, whose rank or base type is a parameter",
                hint="use the concrete type, or constrain the function by a relation of the operator (`where`)",
            )
        shape = t.shape
        for axis, d in enumerate(t.shape):
            if isinstance(d, AnyDim):
                v = DimVar(f"{name}{axis}")
                gradual[v] = (flat, axis)
                shape = (*shape[:axis], as_dim(v), *shape[axis + 1 :])
        flat += 1
        return shape, t.dtype

    inputs: list[ShapeAndType | list[ShapeAndType]] = []
    for spec, arg in zip(op.inputs, args, strict=False):
        if spec.variadic:
            if not isinstance(arg, TupleType):
                raise TypeError_(f"operator {op.name}: {spec.name} must be a tuple of tensors, found {type_text(arg)}")
            inputs.append([shape_and_type(f, f"{spec.name}.{n}") for n, f in enumerate(arg.fields)])
        else:
            inputs.append(shape_and_type(arg, spec.name))
    out_shape = None
    if op.shape_mode == "data":
        own = tuple(DimVar("out") for _ in range(_result_rank(op, inputs, attrs)))
        gradual.update((v, (-1, n)) for n, v in enumerate(own))
        out_shape = tuple(as_dim(v) for v in own)
    # Where no size is open, the definition need not be run for this alone.
    sizes = (d for given in inputs for shape, _ in (given if isinstance(given, list) else [given]) for d in shape)
    is_open = bool(gradual) or any(is_unknown(v) for d in sizes for v in dim_vars(d))
    collector = te.Trace(is_unknown=is_unknown, gradual=frozenset(gradual)) if is_open else None
    traced = registry.trace(op, inputs, attrs, collector, out_shape)
    outputs = list(traced.outputs)
    is_tuple = traced.is_tuple
    if op.shape_mode == "upper_bound":
        outputs.pop()
        is_tuple = len(outputs) > 1
    types = [_result(t, gradual, cut=op.shape_mode == "upper_bound") for t in outputs]
    result: Type = TupleType(tuple(types)) if is_tuple else types[0]
    # Of a result whose sizes the data decides, the run-time checks of its reads see to these.
    reads = () if op.shape_mode == "data" else demands_of_reads(traced.outputs, traced.demands)
    return Signature(result, (*traced.demands, *reads), gradual)


def _result(t: te.Tensor, gradual: Mapping[DimVar, tuple[int, int]], *, cut: bool) -> TensorType:
    shape = t.shape
    if gradual:
        shape = tuple(ANY if any(v in gradual for v in dim_vars(d)) else d for d in shape)
    if cut and shape:
        shape = (ANY, *shape[1:])
    return TensorType(shape, t.dtype)


def _result_rank(op: Operator, inputs: Sequence[ShapeAndType | list[ShapeAndType]], attrs: Attrs) -> int:
    """The rank of a data-dependent result, from `result_rank` or from the length of the result-shape vector."""
    values: list[te.Tensor | tuple[te.Tensor, ...]] = []
    for spec, given in zip(op.inputs, inputs, strict=False):
        if isinstance(given, list):
            values.append(tuple(te.placeholder(f"{spec.name}{n}", s, d) for n, (s, d) in enumerate(given)))
        else:
            values.append(te.placeholder(spec.name, *given))
    keywords = op.complete_attrs(attrs)
    if op.result_rank is not None:
        return op.result_rank(*values, **keywords)
    assert op.result_shape is not None
    with te.tracing(te.Trace()):
        extent = op.result_shape(*values, **keywords).shape[0]
    if not isinstance(extent, int):
        raise TypeError_(
            f"operator {op.name}: the rank of the result is not known, because the shape vector has {extent} elements",
            hint="give the shape vector a type with a known length",
        )
    return extent


# -- the local relation on solved types


def unprovable(demand: te.Demand) -> bool:
    """Whether a demand that is neither proved nor refuted may be left to a run-time check.

    An equality of two polynomials over parameters may not: the parameters are independent, so the program is wrong for
    almost all sizes."""
    if demand.relation != "==" or isinstance(demand.left, AnyDim) or isinstance(demand.right, AnyDim):
        return True
    difference = demand.left - demand.right
    if not isinstance(difference, SymDim):
        return difference == 0
    return any(not isinstance(atom, DimVar) for m, _ in difference.terms for atom, _ in m)


def demand_error(op: Operator, args: Sequence[Type], demand: te.Demand) -> ShapeError:
    """The error for a demand about rigid dims that do not agree."""
    return ShapeError(
        f"{_call_text(op, args)}: {demand.why} must agree: {demand.left} and {demand.right}",
        hint="give both the same dim parameter, or `?` to have it checked at run time",
    )


Key = tuple[Operator, tuple[Type, ...], object]
_LIMIT = 1 << 16


class Memo:
    """Signatures of solved types, by structure; emptied when it has grown large."""

    def __init__(self) -> None:
        self._found: dict[Key, Signature] = {}

    def get(self, key: Key) -> Signature | None:
        return self._found.get(key)

    def put(self, key: Key, value: Signature) -> Signature:
        if len(self._found) >= _LIMIT:
            self._found.clear()
        self._found[key] = value
        return value


MEMO = Memo()


def solved_signature(op: Operator, args: tuple[Type, ...], attrs: Attrs) -> Signature:
    """`signature` on solved types, memoised."""
    key = (op, args, attrs_key(attrs))
    return MEMO.get(key) or MEMO.put(key, signature(op, args, attrs))


def tensor_type(t: TypeArg) -> TensorType:
    """The type as a tensor type, for operators' relations. Raises TypeError_."""
    if not isinstance(t, TensorType):
        raise TypeError_(f"expected a tensor, found {type_text(t)}")
    return t


def located(e: RelayError, span: Span | None) -> RelayError:
    """The error with a place, if it has none."""
    if e.span is None:
        e.span = span
    return e
