"""Unknowns and what is known about them: substitution, levels, unification, sub-shaping, joins.

Unknowns are flexible `TypeVar`s (of kind Type, Shape or BaseType) and the `DimVar`s that this solver made. A level
says in which generalising function a variable was made; only variables of inner levels are generalised, and a rigid
parameter must not flow into a variable of an outer level.

How a type found may stand where another is expected (`Mode`):

    GRADUAL   a ``?`` dim agrees with every dim; where ``?`` meets a known dim a run-time check is due. Tensors and
              tuples of tensors, whose dims can be looked at when the value arrives.
    STATIC    sub-shaping only: a known dim may stand where ``?`` is expected, not the other way round. Inside algebraic
              values (in covariant parameters) and in function types (contravariant in the parameters), where nothing
              can be checked when the value arrives.
    EQUAL     the same dims. Inside references, which are read and written, and invariant parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from math import gcd
from typing import Final, cast

from relay.ir.diagnostics import ShapeError, TypeError_
from relay.ir.dim import (
    ANY,
    AnyDim,
    Dim,
    DimOp,
    DimVar,
    Monomial,
    SymDim,
    as_dim,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_mul,
    dim_sub,
    dim_substitute,
    dim_text,
    dim_vars,
)
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import (
    AdtType,
    FuncType,
    Kind,
    RefType,
    Shape,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeParam,
    TypeVar,
)
from relay.typing.kinds import Variance, kind_of, kind_of_param
from relay.typing.substitution import map_type, param_arg, substitute, variables
from relay.typing.text import type_text
from relay.typing.waiting import Queue, Waiting

_CAST: Final = 'cast(%x, dtype="{}"); a number says its own: 2f is float32, 2 int32, 2i64 int64; from Python 2.0 and 2'


class Mode(Enum):
    """See the module's text."""

    GRADUAL = 0
    STATIC = 1
    EQUAL = 2


class Mismatch(Exception):
    """Two types that do not agree. ``shapes``: they differ in dims or rank only. The caller adds place and context."""

    def __init__(self, message: str, *, shapes: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.shapes = shapes
        self.hint = hint

    def error(self, span: Span | None, context: str, hint: str = "") -> TypeError_:
        """The error for the user."""
        kind = ShapeError if self.shapes else TypeError_
        return kind(f"{context}: {self.message}" if context else self.message, span, hint or self.hint)


@record(slots=True, eq=False)
class Solver:
    """The state of one inference. ``variances``: of each parameter of each algebraic type, by its name; ``place``: where in the program
    types are related now, and what for, in case that what is put off fails."""

    variances: Mapping[str, tuple[Variance, ...]] = field(default_factory=dict)
    level: int = 0
    types: dict[TypeVar, TypeArg] = field(default_factory=dict)
    dims: dict[DimVar, Dim] = field(default_factory=dict)
    levels: dict[TypeParam, int] = field(default_factory=dict)
    unknown_dims: set[DimVar] = field(default_factory=set)
    queue: Queue = field(default_factory=Queue)
    outputs: set[TypeVar] = field(default_factory=set)
    place: tuple[Span | None, str] = (None, "")
    _soft: list[DimVar] | None = None

    # -- variables

    def fresh(self, name: str = "t", kind: Kind = Kind.TYPE) -> TypeVar:
        """A new unknown type, shape or base type at this level."""
        v = TypeVar(name, kind, flexible=True)
        self.levels[v] = self.level
        return v

    def fresh_dim(self, like: DimVar) -> DimVar:
        """A new unknown dim at this level, named and bounded like another."""
        v = DimVar(like.name, like.lo, like.hi)
        self.levels[v] = self.level
        self.unknown_dims.add(v)
        return v

    def fresh_arg(self, p: TypeParam) -> TypeArg:
        """A new unknown for a parameter of any kind."""
        return as_dim(self.fresh_dim(p)) if isinstance(p, DimVar) else self.fresh(p.name, p.kind)

    def is_unknown(self, v: DimVar) -> bool:
        return v in self.unknown_dims and v not in self.dims

    def instantiate(self, scheme: FuncType, args: tuple[TypeArg, ...]) -> FuncType:
        """The function type with its parameters replaced."""
        mono = FuncType(scheme.params, scheme.ret, (), scheme.constraints)
        return cast(FuncType, substitute(mono, scheme.type_params, args))

    # -- what is known

    def head(self, t: TypeArg) -> TypeArg:
        """The type with its outermost variable replaced, as far as that is solved."""
        if not isinstance(t, TypeVar):
            return t
        path: list[TypeVar] = []
        while isinstance(t, TypeVar):
            found = self.types.get(t)
            if found is None:
                break
            path.append(t)
            t = found
        for v in path[:-1]:
            self.types[v] = t
        return t

    def _type_of(self, v: TypeVar) -> TypeArg | None:
        found = self.types.get(v)
        if found is None:
            return None
        solved = map_type(found, self._type_of, self._dim_of)
        self.types[v] = solved
        return solved

    def _dim_of(self, v: DimVar) -> Dim | None:
        found = self.dims.get(v)
        if found is None:
            return None
        if isinstance(found, SymDim):
            found = dim_substitute(found, self._dim_of)
            self.dims[v] = found
        return found

    def resolve(self, t: TypeArg) -> TypeArg:
        """The type with every solved variable replaced."""
        return map_type(t, self._type_of, self._dim_of)

    def resolve_dim(self, d: Dim) -> Dim:
        return dim_substitute(d, self._dim_of) if isinstance(d, SymDim) else d

    def unknowns(self, t: TypeArg) -> list[TypeParam]:
        """The unsolved variables of a type, each once."""
        found = dict.fromkeys(variables(self.resolve(t)))
        return [v for v in found if (v in self.unknown_dims if isinstance(v, DimVar) else v.flexible)]

    # -- binding

    def _settle(self, v: TypeParam, t: TypeArg) -> None:
        """Levels after ``v := t``: what ``t`` mentions is now as far out as ``v``. Rigid parameters cannot go."""
        level = self.levels[v]
        for w in variables(t):
            if w is v:
                raise Mismatch(f"the type would contain itself: {v.name} = {type_text(t)}")
            if self.levels.get(w, 0) > level:
                if (isinstance(w, DimVar) and w not in self.unknown_dims) or (
                    isinstance(w, TypeVar) and not w.flexible
                ):
                    raise Mismatch(
                        f"the parameter {w.name} would leave the function that declares it",
                        hint="write the types of the parameters and of the result",
                    )
                self.levels[w] = level

    def bind(self, v: TypeVar, t: TypeArg) -> None:
        """Solve an unknown. Raises Mismatch for an infinite type, a kind that does not fit, an escaping parameter."""
        t = self.resolve(t)
        if t is v:
            return
        kind = kind_of(t)
        if kind is not v.kind:
            raise Mismatch(f"expected a {v.kind.value}, found the {kind.value} {type_text(t)}")
        if isinstance(t, FuncType) and t.type_params:
            raise Mismatch(f"a polymorphic function cannot be used as a plain value here: {type_text(t)}")
        self._settle(v, t)
        self.types[v] = t
        if v in self.outputs:
            self.outputs.discard(v)
            if isinstance(t, TypeVar):
                self.outputs.add(t)
        self.queue.wake(v)

    def bind_dim(self, v: DimVar, d: Dim) -> None:
        """Solve an unknown dim. Raises Mismatch for a size out of the variable's bounds."""
        d = self.resolve_dim(d)
        self._settle(v, d)
        lo, hi = dim_bounds(d)
        if not isinstance(d, AnyDim) and (
            (hi is not None and hi < v.lo) or (lo is not None and v.hi is not None and lo > v.hi)
        ):
            upper = "" if v.hi is None else f" and at most {v.hi}"
            raise Mismatch(f"the dim {v.name} is {dim_text(d)} but must be at least {v.lo}{upper}", shapes=True)
        self.dims[v] = d
        self.queue.wake(v)

    # -- agreement of types

    def relate(self, found: TypeArg, expected: TypeArg, mode: Mode) -> None:
        """Make ``found`` fit where ``expected`` is wanted. Raises Mismatch."""
        if found is expected:
            return
        a, b = self.head(found), self.head(expected)
        if a is b:
            return
        if isinstance(a, TypeVar) and a.flexible:
            # An output of a pending relation is the better one to keep: it says where the answer will come from.
            if isinstance(b, TypeVar) and b.flexible and a in self.outputs and b not in self.outputs:
                self.bind(b, a)
            else:
                self.bind(a, b)
        elif isinstance(b, TypeVar) and b.flexible:
            self.bind(b, a)
        elif isinstance(a, TensorType) and isinstance(b, TensorType):
            self._relate_tensors(a, b, mode)
        elif isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
            for f, g in zip(a.fields, b.fields, strict=True):
                self.relate(f, g, mode)
        elif isinstance(a, FuncType) and isinstance(b, FuncType) and len(a.params) == len(b.params):
            self._relate_functions(a, b, Mode.EQUAL if mode is Mode.EQUAL else Mode.STATIC)
        elif isinstance(a, RefType) and isinstance(b, RefType):
            self.relate(a.value, b.value, Mode.EQUAL)
        elif isinstance(a, AdtType) and isinstance(b, AdtType) and a.name == b.name and len(a.args) == len(b.args):
            inner = Mode.EQUAL if mode is Mode.EQUAL else Mode.STATIC
            for x, y, variance in zip(a.args, b.args, self.variances[a.name], strict=True):
                self.relate_args(x, y, inner if variance is Variance.CO else Mode.EQUAL)
        else:
            raise self._mismatch(a, b)

    def relate_args(self, found: TypeArg, expected: TypeArg, mode: Mode) -> None:
        """`relate` for arguments of any kind. Raises Mismatch."""
        a, b = self.head(found), self.head(expected)
        if isinstance(a, tuple) or isinstance(b, tuple):
            self._relate_shapes(cast(Shape, a), cast(Shape, b), mode)
        elif isinstance(a, int | SymDim | AnyDim) and isinstance(b, int | SymDim | AnyDim):
            self.relate_dims(a, b, mode)
        elif isinstance(a, str) and isinstance(b, str):
            if a != b:
                raise self._mismatch(a, b)
        elif kind_of(a) is not kind_of(b):
            raise Mismatch(f"expected a {kind_of(b).value}, found the {kind_of(a).value} {type_text(a)}")
        else:
            self.relate(a, b, mode)

    def _mismatch(self, a: TypeArg, b: TypeArg, *, shapes: bool = False, hint: str = "") -> Mismatch:
        found, expected = type_text(self.resolve(a)), type_text(self.resolve(b))
        return Mismatch(f"expected {expected}, found {found}", shapes=shapes, hint=hint)

    def whole(self, e: Mismatch, found: Type, expected: Type) -> Mismatch:
        """The mismatch with the types that were compared, where it is about a part of them."""
        if isinstance(self.head(found), TensorType | TypeVar) or isinstance(self.head(expected), TensorType | TypeVar):
            return e
        all_of = self._mismatch(found, expected, shapes=e.shapes, hint=e.hint)
        if e.message == all_of.message:
            return e
        return Mismatch(f"{all_of.message} ({e.message})", shapes=e.shapes, hint=e.hint)

    def _relate_tensors(self, a: TensorType, b: TensorType, mode: Mode) -> None:
        x, y = self.head(a.dtype), self.head(b.dtype)
        if x != y:
            if isinstance(x, TypeVar) and x.flexible:
                self.bind(x, y)
            elif isinstance(y, TypeVar) and y.flexible:
                self.bind(y, x)
            else:
                raise self._mismatch(a, b, hint=_CAST.format(y) if isinstance(y, str) and a.shape == b.shape else "")
        if a.device != b.device and a.device is not None and b.device is not None:
            raise Mismatch(f"expected a tensor on {b.device}, found one on {a.device}")
        try:
            self._relate_shapes(a.shape, b.shape, mode)
        except Mismatch as e:
            whole = self._mismatch(a, b, shapes=True, hint=e.hint)
            same = whole.message == e.message
            raise (whole if same else Mismatch(f"{whole.message} ({e.message})", shapes=True, hint=e.hint)) from None

    def _relate_shapes(self, a: Shape, b: Shape, mode: Mode) -> None:
        x, y = self.head(a), self.head(b)
        if x is y:
            return
        if isinstance(x, TypeVar) and x.flexible:
            self.bind(x, y)
        elif isinstance(y, TypeVar) and y.flexible:
            self.bind(y, x)
        elif isinstance(x, tuple) and isinstance(y, tuple):
            if len(x) != len(y):
                raise Mismatch(f"a tensor of rank {len(x)} where rank {len(y)} is expected", shapes=True)
            for n, (d, e) in enumerate(zip(x, y, strict=True)):
                if d is not e:
                    self.relate_dims(d, e, mode, f"axis {n}: ")
        else:
            raise Mismatch(f"shape {type_text(x)} where {type_text(y)} is expected", shapes=True)

    def _relate_functions(self, a: FuncType, b: FuncType, mode: Mode) -> None:
        if a.type_params or b.type_params:
            if len(a.type_params) != len(b.type_params) or any(
                kind_of_param(p) is not kind_of_param(q) for p, q in zip(a.type_params, b.type_params, strict=True)
            ):
                raise self._mismatch(a, b)
            a = self.instantiate(a, tuple(map(param_arg, b.type_params)))
        for x, y in zip(a.params, b.params, strict=True):
            self.relate(y, x, mode)
        self.relate(a.ret, b.ret, mode)

    # -- agreement of dims

    def relate_dims(self, found: Dim, expected: Dim, mode: Mode, where: str = "") -> None:
        """`relate` on dims. Raises Mismatch."""
        a, b = self.resolve_dim(found), self.resolve_dim(expected)
        if isinstance(a, AnyDim) or isinstance(b, AnyDim):
            self._relate_any(a, b, mode, where)
        elif isinstance(a, int) and isinstance(b, int):
            if a != b:
                raise Mismatch(f"{where}{a} where {b} is expected", shapes=True)
        elif a != b:
            self._equate(a, b, mode, where)

    def _relate_any(self, a: Dim, b: Dim, mode: Mode, where: str) -> None:
        if isinstance(a, AnyDim) and isinstance(b, AnyDim):
            return
        found_any = isinstance(a, AnyDim)
        if mode is Mode.GRADUAL:
            v = self._unknown_alone(b) if found_any else None
            if v is not None and self._soft is not None:
                # Among the arguments of one call a known dim decides rather than a `?`.
                self._soft.append(v)
            elif v is not None:
                self.bind_dim(v, ANY)
        elif mode is Mode.EQUAL or found_any:
            # An unknown dim does not become `?` here either: where a function has a dim parameter, its body may rely on
            # one size, which the values inside need not have.
            inside = "a reference" if mode is Mode.EQUAL else "an algebraic value or a function"
            raise Mismatch(
                f"{where}{dim_text(a)} where {dim_text(b)} is expected",
                shapes=True,
                hint=f"dims inside {inside} cannot be checked on arrival; write the same ones in both places, "
                "in annotations or type arguments",
            )

    def _unknown_alone(self, d: Dim) -> DimVar | None:
        for v in dim_vars(d):
            return v if v in self.unknown_dims and d == as_dim(v) else None
        return None

    def _equate(self, a: int | SymDim, b: int | SymDim, mode: Mode, where: str) -> None:
        """Solve ``a - b == 0`` for an unknown that occurs once, with unit coefficient; wait while there are several. Factors of all
        terms that are known count for nothing: ``h*d == h*e`` for all sizes ``h`` says that ``d == e``."""
        difference = dim_sub(a, b)
        wrong = Mismatch(f"{where}{dim_text(a)} where {dim_text(b)} is expected", shapes=True)
        if isinstance(difference, int):
            raise wrong
        assert isinstance(difference, SymDim)
        divisor = gcd(*(c for m, c in difference.terms if m))
        constant = sum(c for m, c in difference.terms if not m)
        if constant % divisor:
            raise wrong
        unknown = [v for v in dict.fromkeys(dim_vars(difference)) if v in self.unknown_dims]
        terms = self._without_known_factors(difference) if unknown else difference.terms
        for v in sorted(unknown, key=lambda v: -self.levels[v]):
            monomial: Monomial = ((v, 1),)
            coefficient = next((c for m, c in terms if m == monomial), 0)
            if abs(coefficient) == divisor and sum(w is v for w in dim_vars(difference)) == 1:
                # v = -(the other terms) / coefficient, exactly, because the coefficient divides them all.
                value: Dim = 0
                for m, c in terms:
                    if m != monomial:
                        product: Dim = -c // coefficient
                        for atom, power in m:
                            for _ in range(power):
                                product = dim_mul(product, as_dim(atom))
                        value = dim_add(value, product)
                self.bind_dim(v, value)
                return
        if unknown:
            self._postpone_dims(a, b, mode, where, tuple(unknown))
        elif mode is not Mode.GRADUAL or not any(isinstance(x, DimOp) for x in dim_atoms(difference)):
            # Two different polynomials over parameters; with // or % in them they may be equal after all (a run-time
            # check).
            raise wrong

    def _without_known_factors(self, d: SymDim) -> list[tuple[Monomial, int]]:
        """The terms without the atoms that all of them have and in which nothing is unknown."""
        powers = [dict(m) for m, _ in d.terms]
        common = {
            atom: power
            for atom in powers[0]
            if (power := min(p.get(atom, 0) for p in powers))
            and not any(v in self.unknown_dims for v in dim_vars(as_dim(atom)))
        }
        return [(tuple((a, p) for a, n in m if (p := n - common.get(a, 0))), c) for m, c in d.terms]

    def _postpone_dims(self, a: Dim, b: Dim, mode: Mode, where: str, unknown: tuple[DimVar, ...]) -> None:
        span, context = place = self.place

        def attempt(last: bool) -> Waiting:
            x, y = self.resolve_dim(a), self.resolve_dim(b)
            left = tuple(v for v in dict.fromkeys((*dim_vars(x), *dim_vars(y))) if v in self.unknown_dims)
            if left == unknown:
                return left
            self.place = place
            try:
                self.relate_dims(x, y, mode, where)
            except Mismatch as e:
                raise e.error(span, context) from None
            return None

        self.queue.defer(
            attempt, lambda: f"the dims {dim_text(a)} and {dim_text(b)}, which must agree", span, (a, b), unknown
        )

    def relate_softly(self, found: TypeArg, expected: TypeArg) -> list[DimVar]:
        """`relate`, gradually; gives the unknown dims that met only ``?`` so far, for `soften`. Raises Mismatch."""
        outer, self._soft = self._soft, []
        try:
            self.relate(found, expected, Mode.GRADUAL)
            return self._soft
        finally:
            self._soft = outer

    def soften(self, soft: list[DimVar]) -> None:
        """Unknown dims that met only ``?`` become ``?``."""
        for v in soft:
            if v not in self.dims:
                self.bind_dim(v, ANY)

    # -- joins

    def join(self, a: TypeArg, b: TypeArg) -> TypeArg:
        """The type of a value that has either type: dims that differ become ``?``. Raises Mismatch."""
        x, y = self.head(a), self.head(b)
        if x is y:
            return x
        match x, y:
            case TensorType(), TensorType():
                if isinstance(x.shape, tuple) and isinstance(y.shape, tuple) and len(x.shape) == len(y.shape):
                    shape = tuple(self._join_dims(d, e) for d, e in zip(x.shape, y.shape, strict=True))
                    self.relate(TensorType((), x.dtype, x.device), TensorType((), y.dtype, y.device), Mode.EQUAL)
                    return x if shape == x.shape else TensorType(shape, x.dtype, x.device)
            case TupleType(), TupleType() if len(x.fields) == len(y.fields):
                fields = tuple(self.join(f, g) for f, g in zip(x.fields, y.fields, strict=True))
                return TupleType(cast("tuple[Type, ...]", fields))
            case AdtType(), AdtType() if x.name == y.name and len(x.args) == len(y.args):
                args = [
                    self.join_args(f, g) if variance is Variance.CO else self._same(f, g)
                    for f, g, variance in zip(x.args, y.args, self.variances[x.name], strict=True)
                ]
                return AdtType(x.name, tuple(args))
            case _:
                pass
        self.relate(y, x, Mode.EQUAL)
        return x

    def _same(self, a: TypeArg, b: TypeArg) -> TypeArg:
        self.relate_args(b, a, Mode.EQUAL)
        return a

    def join_args(self, a: TypeArg, b: TypeArg) -> TypeArg:
        """`join` for arguments of any kind. Raises Mismatch."""
        x, y = self.head(a), self.head(b)
        if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y):
            return tuple(self._join_dims(d, e) for d, e in zip(x, y, strict=True))
        if isinstance(x, int | SymDim | AnyDim) and isinstance(y, int | SymDim | AnyDim):
            return self._join_dims(x, y)
        return self._same(x, y) if isinstance(x, str | tuple) or isinstance(y, str | tuple) else self.join(x, y)

    def _join_dims(self, a: Dim, b: Dim) -> Dim:
        x, y = self.resolve_dim(a), self.resolve_dim(b)
        if isinstance(x, AnyDim) or isinstance(y, AnyDim):
            return ANY
        if x == y:
            return x
        if any(v in self.unknown_dims for d in (x, y) for v in dim_vars(d)):
            self.relate_dims(y, x, Mode.EQUAL)
            return self.resolve_dim(x)
        return ANY
