"""Several calls of an entry as one batch: the requests are a list, and what is done with one of them is a clause of its own.

Beside an entry ``f`` stands ``f.requests(list, shared...)``, which takes the arguments that differ from request to request as a
list of tuples and the others once. It gives the tensors of the result with one row for each request, and behind them for each of the
result's values of data types a list of them, as the requests' own (`listed`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from relay.ir.dim import ANY, Dim, DimVar, as_dim, as_var
from relay.ir.expr import NO_ATTRS, Attrs, Binding, Block, Call, Expr, Function, GlobalVar, Tuple, Var
from relay.ir.record import record
from relay.ir.types import AdtType, ConstructorDef, FuncType, TensorType, TupleType, Type, TypeDef, TypeVar
from relay.transform.ad.terms import construct
from relay.transform.batching.clauses import NotStructural, data_types, leaves, made_of_tensors
from relay.transform.batching.decisions import Path
from relay.transform.batching.lifted import with_rows
from relay.transform.blocks import body_of
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.dead_code import BESIDE
from relay.transform.function_types import unused

# Attributes: of an entry, what becomes of many requests; of the function that answers them (which stands `BESIDE` the entry), which
# of the entry's parameters differ from request to request, which of these are tensors that it takes as lists of their rows,
# and which tensors of the entry's result it gives so. (The last row comes first.)
ANSWERS, EACH, ROWS, STACKED = "requests", "each", "rows", "stacked"
# How they are answered: as one batch, each by a thread of its own, or in turn (what is behind a colon says why).
TOGETHER, SIDE_BY_SIDE, IN_TURN = "one batch", "side by side", "one by one"


@record(frozen=True, slots=True, eq=False)
class Requests:
    """The function beside an entry as `group_of` reads it: its body is what is done with one request, ``parts`` says of the
    variables in it where in the request they are. ``type`` is that of the list."""

    name: str
    function: Function
    parts: dict[Var, Path]
    type: TypeDef


def requests_of(
    name: str,
    entry: Function,
    one: Function | None,
    taken: Collection[str],
    types: Collection[str],
    single: bool = False,
) -> Requests:
    """The requests of an entry: structures differ from one to the next, tensors are shared. With ``single`` there is one, and the
    function gives what the entry gives.

    ``one`` is the entry with everything inlined but the recursion; None when it is itself recursive. Raises NotStructural.
    """
    each = differing(entry)
    made = unused(f"{name}.together" if single else f"{name}.requests", taken)
    kind = list_type(types)
    if one is None:
        result = body_of(entry).ty or entry.ret_type
        assert result is not None
        dims = tuple(as_dim(cast(DimVar, d)) for d in entry.type_params)
        answer = Var("answer", None, result)
        call = Call(GlobalVar(name, entry.ty), entry.params, type_args=dims, ty=result)
        one = replace(entry, body=Block((Binding(answer, call),), answer, result))
    attrs: Attrs = MappingProxyType({} if single else {BESIDE: name, EACH: each})
    return listing(made, one, each, kind, attrs, single)


def listing(
    name: str, one: Function, each: Sequence[int], kind: TypeDef, attrs: Attrs = NO_ATTRS, single: bool = False
) -> Requests:
    """The function of this name that does for each request of a list what ``one`` does, whose parameters of the numbers ``each`` differ
    from one to the next. Raises NotStructural."""
    result = body_of(one).ty or one.ret_type
    assert result is not None
    if not made_of_tensors(result, data_types=True):
        raise NotStructural("a request gives something that is not made of tensors")
    copier = Copier(own_dims=True)
    params = [copier.bind(p) for p in one.params]
    dims = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(d)))) for d in one.type_params if isinstance(d, DimVar))
    body = copier.copy(body_of(one))
    result = copier.type(result)
    assert result is not None
    many = Var("requests", None, AdtType(kind.name, (TupleType(tuple(type_of(params[n]) for n in each)),)))
    whole = (Var(many.name, many.ty, many.ty), *(p for n, p in enumerate(params) if n not in each))
    given = result if single else rows_of(result, kind, ANY)
    function = Function(whole, body, given, dims, attrs, ty=FuncType(tuple(type_of(p) for p in whole), given, dims))
    return Requests(name, function, {params[n]: (at,) for at, n in enumerate(each)}, kind)


def differing(entry: Function) -> tuple[int, ...]:
    """Which parameters of an entry differ from request to request. Raises NotStructural."""
    each = tuple(n for n, p in enumerate(entry.params) if not _is_shared(type_of(p)))
    if not each:
        raise NotStructural("no argument is a structure")
    return each


def rows_of(result: Type, kind: TypeDef, rows: Dim) -> TupleType:
    """What is given for so many requests of which each has this result."""
    lists = (AdtType(kind.name, (t,)) for t in data_types(result))
    return TupleType((*(with_rows(t, rows) for t in leaves(result)), *lists))


def by_one_request(entry: Function, asked: Requests) -> Function:
    """The entry that hands its arguments on as the one request of a function made with ``single``."""
    ty = asked.function.ty
    assert isinstance(ty, FuncType)
    listed, *_ = ty.params
    assert isinstance(listed, AdtType)
    full, empty = asked.type.constructors
    each = [p for p in entry.params if not _is_shared(type_of(p))]
    out: list[Binding] = []

    def bind(name: str, value: Expr, of: Type) -> Var:
        out.append(Binding(Var(name, None, of), value))
        return out[-1].var

    copier = Copier(dims=dict(zip(asked.function.type_params, map(as_dim, entry.type_params), strict=True)))  # type: ignore[arg-type]
    many = cast(AdtType, copier.type(listed))
    item = TupleType(tuple(type_of(p) for p in each))
    request = bind("request", Tuple(tuple(each), item), item)
    end = bind("end", construct(asked.type, empty.name, (), many), many)
    whole = bind("requests", construct(asked.type, full.name, (request, end), many), many)
    args = (whole, *(p for p in entry.params if p not in each))
    result = body_of(entry).ty or entry.ret_type
    assert result is not None
    dims = tuple(as_dim(cast(DimVar, d)) for d in entry.type_params)
    answer = bind("answer", Call(GlobalVar(asked.name, ty), args, type_args=dims, ty=result), result)
    return replace(entry, body=Block(tuple(out), answer, result))


def _is_shared(ty: Type) -> bool:
    match ty:
        case TensorType():
            return True
        case TupleType(fields=fields):
            return all(map(_is_shared, fields))
        case _:
            return False


def list_type(taken: Collection[str], of: str = "Requests") -> TypeDef:
    """A list, as the runtime reads it: constructor 0 has an item and the rest, 1 is the end."""
    name = unused(of, taken)
    item = TypeVar("A")
    more, end = listed(name)
    return TypeDef(
        name, (item,), (ConstructorDef(more, (item, AdtType(name, (item,))), name, 0), ConstructorDef(end, (), name, 1))
    )


def listed(name: str) -> tuple[str, str]:
    """The constructors of the type of lists of requests of this name, by their tags."""
    return f"{name}.More", f"{name}.End"
