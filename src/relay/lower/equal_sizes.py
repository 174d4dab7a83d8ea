"""Primitives that differ only in which of their unknown sizes are equal, or multiples of each other, share a kernel.

A layer multiplies rows of ``d`` numbers by a matrix of ``d x d``, another one rows of ``f`` numbers by a matrix of ``d x f``, the gates of
a cell have ``4*d`` columns: what they compute is the same, and a kernel of a product of unknown sizes is the most code that a program has.
Every size of a parameter becomes a variable of its own, but for those that the operators demand to be equal; where primitives are the same
then, those of their sizes that are equal in all of them stay equal, and each call says what the others are. Of multiples those of whole
vectors stay, which need no code for what is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from types import MappingProxyType
from typing import cast

from relay.ir.diagnostics import RelayError
from relay.ir.dim import (
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    as_var,
    dim_atoms,
    dim_bounds,
    dim_floordiv,
    dim_mul,
    dim_substitute,
    dim_vars,
    known_equal,
)
from relay.ir.expr import NO_ATTRS, Attr, Attrs, Binding, Block, Call, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.retype import substitute_types
from relay.ir.types import DTYPE_BITS, TensorType, TupleType, Type, TypeArg, TypeVar, leaf_types
from relay.loop.target import Target
from relay.lower.beginnings import Shared
from relay.op import registry
from relay.plan.key import PlanKey, erased_key, plan_key
from relay.te.index import content
from relay.transform.build import internal_call, type_of
from relay.typing.relations import signature


@record(frozen=True, slots=True, eq=False)
class _General:
    """A primitive with as many sizes as its operators allow, and what those that are its own mean in the primitive itself."""

    fn: Function
    meant: Mapping[DimVar, Dim]


@record(frozen=True, slots=True, eq=False)
class _Member:
    """Primitives of one key, each with its sizes in the order of that, the general form of the first of them, and its sizes in the order of
    its kernel's."""

    fns: Sequence[tuple[Function, tuple[DimVar, ...]]]
    general: _General
    dims: tuple[DimVar, ...]

    def meaning(self, at: int) -> Dim:
        """What size number ``at`` is in the first primitive."""
        return self.general.meant.get(self.dims[at], as_dim(self.dims[at]))


def shared_sizes(primitives: Iterable[Function], target: Target) -> dict[int, Shared]:
    """The primitives that are equal to others of these but for which of their sizes are equal, by the ids of their nodes."""
    alike: dict[str, list[Function]] = {}
    for fn in {id(f): f for f in primitives}.values():
        erased = erased_key(fn)
        if erased is not None:
            alike.setdefault(erased, []).append(fn)
    groups: dict[str, list[_Member]] = {}
    for same in alike.values():
        kinds: dict[str, list[tuple[Function, tuple[DimVar, ...]]]] = {}
        for fn in same if len(same) > 1 else ():
            key = _key(fn, target)
            kinds.setdefault(key.text, []).append((fn, key.dims))
        for fns in kinds.values() if len(kinds) > 1 else ():
            general = _general(fns[0][0], target)
            if general is not None:
                key = _key(general.fn, target)
                groups.setdefault(key.text, []).append(_Member(fns, general, key.dims))
    out: dict[int, Shared] = {}
    for members in groups.values():
        if len(members) == 1:
            continue
        first: dict[tuple[Dim, ...], int] = {}
        columns = [tuple(m.meaning(n) for m in members) for n in range(len(members[0].dims))]
        places = [first.setdefault(column, n) for n, column in enumerate(columns)]
        for member in members:
            joined: dict[TypeVar | DimVar, TypeArg] = {
                d: as_dim(member.dims[at]) for d, at in zip(member.dims, places, strict=True)
            }
            shared = substitute_types(member.general.fn, joined)
            assert isinstance(shared, Function)
            _, own = member.fns[0]
            for fn, dims in member.fns:
                here = dict(zip(own, map(as_dim, dims), strict=True))
                values = {member.dims[at]: dim_substitute(member.meaning(at), here.get) for at in places}
                out[id(fn)] = Shared(shared, values)
    return out


def _key(fn: Function, target: Target) -> PlanKey:
    return plan_key(fn, target, frozenset())


def _general(fn: Function, target: Target) -> _General | None:
    """The primitive with a variable for each size that may be another; None where an operator asks more than that some are equal."""
    meant: dict[DimVar, Dim] = {}
    given = [t for p in fn.params for t in leaf_types(type_of(p)) if isinstance(t, TensorType)]
    lanes = target.lanes(max((DTYPE_BITS[str(t.dtype)] for t in given), default=8))

    def own(d: Dim) -> Dim:
        if not _is_free(d):
            return d
        factor = content(d)
        power = factor & -factor
        vectors = power if power >= lanes else 1
        counted = dim_floordiv(d, vectors)
        low, high = dim_bounds(counted)
        v = as_var(counted)
        apart = DimVar("size" if v is None else v.name, low or 0, high)
        meant[apart] = counted
        return dim_mul(vectors, as_dim(apart))

    assert isinstance(fn.body, Block)
    values = [b.value for b in fn.body.bindings]
    types: list[Type] = [_mapped_type(type_of(p), own) for p in fn.params]
    attrs = [_mapped_attrs(v.attrs, own) if isinstance(v, Call) else NO_ATTRS for v in values]
    while True:
        same: dict[DimVar, Dim] = {}
        general = _typed(fn, types, attrs, meant, same)
        if not same:
            return None if general is None else _General(general, meant)
        joined = partial(dim_substitute, value_of=same.get)
        types = [_mapped_type(t, joined) for t in types]
        attrs = [_mapped_attrs(a, joined) for a in attrs]


def _typed(
    fn: Function, types: Sequence[Type], attrs: Sequence[Attrs], meant: Mapping[DimVar, Dim], same: dict[DimVar, Dim]
) -> Function | None:
    """The primitive with parameters of these types and calls with these attributes. None where there is no such, or where some of
    ``meant`` are found to be the ``same``."""
    assert isinstance(fn.body, Block)
    env: dict[Expr, Expr] = {p: Var(p.name, None, t) for p, t in zip(fn.params, types, strict=True)}
    bindings: list[Binding] = []
    meaning = partial(dim_substitute, value_of=meant.get)
    for binding, attributes in zip(fn.body.bindings, attrs, strict=True):
        made = _value(binding.value, attributes, env, meant, same)
        if made is None or made.ty is None or _mapped_type(made.ty, meaning) != binding.var.ty:
            return None
        bound = Var(binding.var.name, None, made.ty)
        env[binding.var] = bound
        bindings.append(Binding(bound, made))
    result = env.get(fn.body.result, fn.body.result)
    body = Block(tuple(bindings), result, type_of(result), fn.body.span)
    return replace(fn, params=tuple(cast(Var, env[p]) for p in fn.params), body=body, ret_type=type_of(result), ty=None)


def _value(
    value: Expr, attrs: Attrs, env: Mapping[Expr, Expr], meant: Mapping[DimVar, Dim], same: dict[DimVar, Dim]
) -> Expr | None:
    """What is bound, of operands of other types; None as for `_typed`."""
    match value:
        case Tuple():
            fields = tuple(env.get(f, f) for f in value.fields)
            return Tuple(fields, TupleType(tuple(map(type_of, fields))), value.span)
        case Proj():
            of = env.get(value.tuple, value.tuple)
            ty = type_of(of)
            assert isinstance(ty, TupleType)
            return Proj(of, value.index, ty.fields[value.index], value.span)
        case Call(fn=OpRef()):
            assert isinstance(value.fn, OpRef)
            op, args = registry.get(value.fn.name), [env.get(a, a) for a in value.args]
            if op.kind == "routine" or op.shape_mode in ("data", "upper_bound"):
                return None
            try:
                found = signature(op, tuple(map(type_of, args)), attrs)
            except RelayError:
                return None
            unmet = [d for d in found.demands if not known_equal(d.left, d.right)]
            for d in unmet:
                if d.relation == "==" and d.sizes is None:
                    _unify(d.left, d.right, meant, same)
            if unmet or found.gradual:
                return None
            return internal_call(value.fn.name, args, found.result, attrs, value.span)
        case _:
            return None


def _unify(a: Dim, b: Dim, meant: Mapping[DimVar, Dim], same: dict[DimVar, Dim]) -> None:
    """Note which sizes are the same where two must be equal, if they are in the primitive: one of them is the other, or, where both are
    made of several sizes (as many rows of as many numbers), all of these that mean the same there."""
    a, b = (dim_substitute(d, same.get) for d in (a, b))
    common = gcd(content(a), content(b))
    a, b = (dim_floordiv(d, common) for d in (a, b)) if common > 1 else (a, b)
    if a == b or dim_substitute(a, meant.get) != dim_substitute(b, meant.get):
        return
    left, right = as_var(a), as_var(b)
    if left in meant or right in meant:
        # What is in the primitive itself stays.
        _join(*((left, b) if left is not None and left in meant else (cast(DimVar, right), a)), same)
        return
    first: dict[Dim, DimVar] = {}
    for v in (*dim_vars(a), *dim_vars(b)):
        kept = first.setdefault(meant.get(v, as_dim(v)), v)
        if kept is not v and v in meant:
            _join(v, as_dim(kept), same)


def _join(old: DimVar, new: Dim, same: dict[DimVar, Dim]) -> None:
    """Note that a size is another."""
    if old in same or old in dim_vars(new):
        return
    for v, d in same.items():
        same[v] = dim_substitute(d, {old: new}.get)
    same[old] = new


def _is_free(dim: Dim) -> bool:
    """Whether nothing is known of a size but how small and how great it may be, and what it is a multiple of: it is no quotient. (What
    stands for a ``?`` says so.)"""
    if not isinstance(dim, SymDim) or any(v.gradual for v in dim_vars(dim)):
        return False
    return all(a.op in ("min", "max") for a in dim_atoms(dim) if isinstance(a, DimOp))


def _mapped_type(ty: Type, of: Callable[[Dim], Dim]) -> Type:
    if isinstance(ty, TupleType):
        return TupleType(tuple(_mapped_type(f, of) for f in ty.fields))
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return TensorType(tuple(map(of, ty.shape)), ty.dtype, ty.device)


def _mapped_attrs(attrs: Attrs, of: Callable[[Dim], Dim]) -> Attrs:
    def mapped(value: Attr) -> Attr:
        if isinstance(value, tuple):
            return tuple(map(mapped, value))
        return cast(Attr, of(value)) if isinstance(value, SymDim) else value

    return MappingProxyType({name: mapped(value) for name, value in attrs.items()})
