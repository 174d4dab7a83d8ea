"""Algebraic identities, as one table of rules."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import ClassVar, cast

import numpy as np

from relay.ir.dim import Dim, dim_add, is_any, known_equal, shape_size
from relay.ir.expr import (
    Attr,
    Attrs,
    Binding,
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    If,
    Match,
    OpRef,
    PConstructor,
    Proj,
    PVar,
    PWild,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, is_float, is_integer
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, as_block, map_functions
from relay.transform.build import constant, op_call, type_of
from relay.transform.pattern import (
    Definition,
    Found,
    Pattern,
    Replacement,
    Rule,
    RuleTable,
    is_constant,
    is_op,
    is_proj,
    is_tuple,
    wildcard,
)


@record(frozen=True, slots=True)
class Simplify(Pass):
    """Apply the table of identities (`RULES`), decide branches on constants and matches on known constructors.

    Before: typed blocks. After: typed blocks that compute the same values bit for bit, except for normalisations by
    given statistics, which are a scale and a shift.
    """

    name: ClassVar[str] = "simplify"

    def __call__(self, module: Module) -> Module:
        table = RuleTable(RULES)

        def simplifier() -> Forward:
            def visit(scope: Scope, var: Var, value: Expr) -> Expr:
                if isinstance(value, If | Match):
                    return decide(value, driver.definition)
                while isinstance(value, Call | Proj):
                    new = table.apply(value, driver.definition)
                    if new is value:
                        break
                    value = new
                return value

            driver = Forward(visit)
            return driver

        return map_functions(module, lambda f: simplifier().function(f))


def decide(value: If | Match, definition: Definition) -> Expr:
    """The branch that is taken when that is known, as a block; else the value itself."""
    if isinstance(value, If):
        if isinstance(value.cond, Constant):
            return as_block(value.then if bool(value.cond.data) else value.orelse)
        return value
    made = definition(value.data)
    if not isinstance(made, Call) or not isinstance(made.fn, ConstructorRef):
        return value
    for clause in value.clauses:
        p = clause.pattern
        names: tuple[Binding, ...]
        match p:
            case PWild():
                names = ()
            case PVar():
                names = (Binding(p.var, value.data),)
            case PConstructor() if p.name != made.fn.name:
                continue
            case PConstructor() if all(isinstance(f, PVar | PWild) for f in p.fields):
                pairs = zip(p.fields, made.args, strict=True)
                names = tuple(Binding(f.var, a) for f, a in pairs if isinstance(f, PVar))
            case _:
                return value  # a nested pattern: known after matches are compiled
        body = as_block(clause.body)
        return Block((*names, *body.bindings), body.result, body.ty, body.span)
    return value


# -- the rules


def _same_type(x: Expr, value: Expr) -> bool:
    """Whether an operand has the type of the result, sizes included."""
    a, b = type_of(x), value.ty
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return False
    if not isinstance(a.shape, tuple) or not isinstance(b.shape, tuple) or len(a.shape) != len(b.shape):
        return False
    return all(known_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _keep(x: Pattern) -> Replacement:
    """Replace by an operand of the result's type."""

    def replacement(found: Found, value: Expr, definition: Definition) -> Expr | None:
        return found[x] if _same_type(found[x], value) else None

    return replacement


def _neutral(name: str, number: float, *, left: bool, kind: Callable[[str], bool]) -> list[Rule]:
    """``x op number`` is ``x`` (and ``number op x`` with ``left``) for base types of a kind."""
    x = wildcard()

    def of_kind(e: Expr) -> bool:
        return isinstance(e, Constant) and kind(e.dtype)

    number_pattern = is_constant(number).where(of_kind)
    rules = [Rule(is_op(name)(x, number_pattern), _keep(x))]
    if left:
        rules.append(Rule(is_op(name)(number_pattern, x), _keep(x)))
    return rules


def _number(dtype: str) -> bool:
    return is_float(dtype) or is_integer(dtype)


def _involution(name: str) -> Rule:
    x = wildcard()
    return Rule(is_op(name)(is_op(name)(x)), _keep(x))


# Conversions to these lose nothing.
_WIDER = {
    "float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",),
    "int8": ("int16", "int32", "int64"), "int16": ("int32", "int64"), "int32": ("int64",),
    "uint8": ("int16", "int32", "int64", "uint16", "uint32", "uint64"),
    "uint16": ("int32", "int64", "uint32", "uint64"),
    "uint32": ("int64", "uint64"),
}  # fmt: skip


def _cast_of_cast(found: Found, value: Expr, definition: Definition) -> Expr | None:
    """A conversion through a base type that holds every value of the first one."""
    source, middle = type_of(found[_X]), type_of(found[_INNER_CAST])
    if not isinstance(source, TensorType) or not isinstance(middle, TensorType) or not isinstance(value, Call):
        return None
    if not isinstance(source.dtype, str) or middle.dtype not in _WIDER.get(source.dtype, ()):
        return None
    return op_call("cast", (found[_X],), value.attrs, value.span)


def reshaped(x: Expr, value: Expr) -> Expr | None:
    """``x`` seen with the shape of ``value``; None where the attribute cannot say that shape (0 has a meaning of its
    own)."""
    ty = value.ty
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        return None
    if any(is_any(d) or (isinstance(d, int) and d == 0) for d in ty.shape):
        return None
    return op_call("reshape", (x,), MappingProxyType({"newshape": cast(Attr, ty.shape)}), value.span)


def _view_of_view(found: Found, value: Expr, definition: Definition) -> Expr | None:
    return found[_X] if _same_type(found[_X], value) else reshaped(found[_X], value)


def _axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = attrs.get("axes")
    if not isinstance(axes, tuple) or not axes:
        return tuple(reversed(range(rank)))
    return tuple(cast(int, a) % rank for a in axes)


def _rank(e: Expr) -> int | None:
    ty = type_of(e)
    return len(ty.shape) if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else None


def _identity_transpose(found: Found, value: Expr, definition: Definition) -> Expr | None:
    assert isinstance(value, Call)
    rank = _rank(value)
    return found[_X] if rank is not None and _axes(value.attrs, rank) == tuple(range(rank)) else None


def _transpose_of_transpose(found: Found, value: Expr, definition: Definition) -> Expr | None:
    assert isinstance(value, Call)
    inner, rank = found.call(_INNER_TRANSPOSE, definition), _rank(value)
    if rank is None:
        return None
    first, second = _axes(inner.attrs, rank), _axes(value.attrs, rank)
    return op_call("transpose", (found[_X],), MappingProxyType({"axes": tuple(first[a] for a in second)}), value.span)


def _transpose_of_taken(found: Found, value: Expr, definition: Definition) -> Expr | None:
    """What is taken of a small table and transposed is taken of the transposed table, where the axes of the indices stay together: a
    bias for each head by the distance of two positions is then read and written along the positions, not across the heads."""
    call, rank = found.call(_TAKE, definition), _rank(value)
    assert isinstance(value, Call)
    attrs = registry.get("take").complete_attrs(call.attrs)
    table, result, indices = type_of(call.args[0]), type_of(value), _rank(call.args[1])
    if rank is None or not indices or attrs["axis"] is None or attrs["batch_dims"] or not isinstance(table, TensorType):
        return None
    if not isinstance(table.shape, tuple) or not isinstance(result, TensorType) or not isinstance(result.shape, tuple):
        return None
    size, given = shape_size(table.shape), shape_size(result.shape)
    if not isinstance(size, int) or size > _SMALL_TABLE or (isinstance(given, int) and given < size):
        return None
    axes, at = _axes(value.attrs, rank), cast(int, attrs["axis"]) % (rank + 1 - indices)
    first = axes.index(at)
    if axes[first : first + indices] != tuple(range(at, at + indices)):
        return None
    kept = (*axes[: first + 1], *axes[first + indices :])
    turned = tuple(a if a <= at else a - indices + 1 for a in kept)
    made = op_call("transpose", (call.args[0],), MappingProxyType({"axes": turned}), value.span)
    var = Var("table", None, made.ty)
    new: Attrs = MappingProxyType({**call.attrs, "axis": first})
    taken = op_call("take", (var, call.args[1]), new, value.span)
    out = Var("taken", None, taken.ty)
    return Block((Binding(var, made), Binding(out, taken)), out, value.ty, value.span)


def _field(found: Found, value: Expr, definition: Definition) -> Expr | None:
    whole = definition(found[_TUPLE])
    assert isinstance(whole, Tuple) and isinstance(value, Proj)
    return whole.fields[value.index]


def _part_of_split(found: Found, value: Expr, definition: Definition) -> Expr | None:
    """A part of a split is a slice, so that it can be computed where it is used: one that is known to have the part's size. What nobody
    knows (a slice of `?`) would be read otherwise by what is broadcast with it."""
    call = found.call(_SPLIT, definition)
    source, whole = type_of(call.args[0]), call.ty
    assert isinstance(value, Proj)
    fields = getattr(whole, "fields", ())
    if not isinstance(source, TensorType) or not isinstance(source.shape, tuple):
        return None
    axis = cast(int, registry.get("split").complete_attrs(call.attrs)["axis"]) % len(source.shape)
    begin: Dim = 0
    for part in fields[: value.index]:
        begin = dim_add(begin, part.shape[axis])
    end = dim_add(begin, fields[value.index].shape[axis])
    if is_any(begin) or is_any(end):
        return None
    attrs: Attrs = MappingProxyType({"begin": (begin,), "end": (end,), "strides": (1,), "axes": (axis,)})
    piece = op_call("strided_slice", (call.args[0],), attrs, value.span)
    return piece if _same_type(piece, value) else None


def _parts_in_a_row(found: Found, value: Expr, definition: Definition) -> Expr | None:
    """Neighbouring slices put together again are a slice, or all, of the tensor that they are slices of; so are views of them, where
    each lies in one piece and so do all of them."""
    assert isinstance(value, Call)
    whole, rank = definition(found[_TUPLE]), _rank(value)
    assert isinstance(whole, Tuple)
    parts = [_slice_of(f, definition) for f in whole.fields]
    first = parts[0] if parts else None
    if first is None or rank is None:
        return None
    source, axis, begin, end, seen = first
    along = cast(int, registry.get("concatenate").complete_attrs(value.attrs)["axis"]) % rank
    for part in parts[1:]:
        if part is None or part[0] is not source or part[1] != axis or part[2] != end:
            return None
        end, seen = part[3], seen or part[4]
    ty = type_of(source)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and isinstance(value.ty, TensorType)
    if seen or along != axis:
        assert isinstance(value.ty.shape, tuple)
        if any(d != 1 for d in (*ty.shape[:axis], *value.ty.shape[:along])):
            return None
    if begin == 0 and end == ty.shape[axis]:
        return source if _same_type(source, value) else reshaped(source, value)
    attrs: Attrs = MappingProxyType({"begin": (begin,), "end": (end,), "strides": (1,), "axes": (axis,)})
    piece = op_call("strided_slice", (source,), attrs, value.span)
    if _same_type(piece, value):
        return piece
    var = Var("rows", None, piece.ty)
    view = reshaped(var, value)
    return None if view is None else Block((Binding(var, piece),), view, value.ty, value.span)


def _slice_of(e: Expr, definition: Definition) -> tuple[Expr, int, int, int, bool] | None:
    """The tensor that an atom is a slice of along one axis, the axis, where the slice begins and ends, and whether it is seen in another
    shape."""
    call, seen = definition(e), False
    while isinstance(call, Call) and isinstance(call.fn, OpRef) and call.fn.name in _VIEWS:
        call, seen = definition(call.args[0]), True
    if not isinstance(call, Call) or not isinstance(call.fn, OpRef) or call.fn.name != "strided_slice":
        return None
    source, result = type_of(call.args[0]), call.ty
    if not isinstance(source, TensorType) or not isinstance(result, TensorType):
        return None
    if not isinstance(source.shape, tuple) or not isinstance(result.shape, tuple):
        return None
    attrs = registry.get("strided_slice").complete_attrs(call.attrs)
    begin, strides = cast(tuple[object, ...], attrs["begin"]), cast(tuple[object, ...], attrs["strides"])
    if len(begin) != 1 or any(s != 1 for s in strides):
        return None
    axes = cast("tuple[int, ...] | None", attrs["axes"])
    axis = (axes[0] if axes else 0) % len(source.shape)
    size, length = source.shape[axis], result.shape[axis]
    if not isinstance(begin[0], int) or not isinstance(size, int) or not isinstance(length, int):
        return None
    start = min(max(begin[0] + size if begin[0] < 0 else begin[0], 0), size)
    return call.args[0], axis, start, start + length, seen


def _scale_and_shift(found: Found, value: Expr, definition: Definition) -> Expr | None:
    """Normalisation by given statistics: ``x * s + t`` with vectors that are computed once (from constants: at
    compile time)."""
    call = found.call(_BATCH_NORM, definition)
    assert isinstance(value, Proj)
    data, gamma, beta, mean, variance = call.args
    if value.index:
        return call.args[2 + value.index]
    ty = type_of(data)
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.dtype not in ("float32", "float64"):
        return None
    attrs = registry.get("nn.batch_norm").complete_attrs(call.attrs)
    rank = len(ty.shape)
    axis = cast(int, attrs["axis"]) % rank
    bindings: list[Binding] = []

    def bind(name: str, *args: Expr, **attributes: Attr) -> Var:
        made = op_call(name, args, MappingProxyType(attributes), value.span)
        var = Var(name, None, made.ty)
        bindings.append(Binding(var, made))
        return var

    epsilon = _scalar(cast(float, attrs["epsilon"]), ty.dtype)
    scale: Expr = bind("rsqrt", bind("add", variance, epsilon))
    if attrs["scale"]:
        scale = bind("multiply", gamma, scale)
    shift: Expr = bind("negative", bind("multiply", mean, scale))
    if attrs["center"]:
        shift = bind("add", beta, shift)
    spread = rank - 1 - axis
    if spread:
        scale = bind("expand_dims", scale, axis=1, num_newaxis=spread)
        shift = bind("expand_dims", shift, axis=1, num_newaxis=spread)
    result = bind("add", bind("multiply", data, scale), shift)
    return Block(tuple(bindings), result, value.ty, value.span)


def _scalar(value: float, dtype: str) -> Constant:
    data = np.asarray(value, dtype)
    return constant(data, dtype)


_VIEWS = ("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
_X = wildcard()
_INNER_CAST = is_op("cast")(_X)
_INNER_TRANSPOSE = is_op("transpose")(_X)
_TAKE = is_op("take")
# Elements of a table that is copied in no more time than a call takes.
_SMALL_TABLE = 4096
_TUPLE = is_tuple()
_SPLIT = is_op("split")
_BATCH_NORM = is_op("nn.batch_norm")

RULES: tuple[Rule, ...] = (
    *_neutral("add", 0, left=True, kind=is_integer),
    *_neutral("add", -0.0, left=True, kind=is_float),
    *_neutral("subtract", 0, left=False, kind=_number),
    *_neutral("multiply", 1, left=True, kind=_number),
    *_neutral("divide", 1, left=False, kind=_number),
    *_neutral("floor_divide", 1, left=False, kind=is_integer),
    *_neutral("power", 1, left=False, kind=_number),
    _involution("negative"),
    _involution("logical_not"),
    _involution("bitwise_not"),
    Rule(is_op("cast", "copy", "nn.dropout", "broadcast_to", *_VIEWS)(_X), _keep(_X)),
    Rule(is_op("cast_like", "broadcast_to_like", "reshape_like")(_X, wildcard()), _keep(_X)),
    Rule(is_op("cast")(_INNER_CAST), _cast_of_cast),
    Rule(is_op(*_VIEWS)(is_op(*_VIEWS)(_X)), _view_of_view),
    Rule(is_op("transpose")(_X), _identity_transpose),
    Rule(is_op("transpose")(_INNER_TRANSPOSE), _transpose_of_transpose),
    Rule(is_op("transpose")(_TAKE), _transpose_of_taken),
    Rule(is_proj(_TUPLE), _field),
    Rule(is_proj(_SPLIT), _part_of_split),
    Rule(is_proj(_BATCH_NORM), _scale_and_shift),
    Rule(is_op("concatenate")(is_tuple((_X,))), _keep(_X)),
    Rule(is_op("concatenate")(_TUPLE), _parts_in_a_row),
)
