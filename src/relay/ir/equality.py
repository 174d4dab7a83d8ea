"""Equality and hashing up to the names of bound variables.

Two programs are alpha-equal when they differ only in the names (identities) of what they bind: variables, type and dimension
parameters. Which nodes are shared matters, because sharing a node means computing it once. Spans and inferred types (``ty``) do
not matter; annotations do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from relay.ir.collection import without_collection
from relay.ir.constant import MissingData
from relay.ir.dim import AnyDim, Dim, DimOp, DimVar, SymDim, as_dim, dim_substitute, dim_vars
from relay.ir.expr import (
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    If,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.types import (
    AdtType,
    FuncType,
    RefType,
    Relation,
    TensorType,
    TupleType,
    Type,
    TypeDef,
    TypeParam,
    TypeVar,
)  # fmt: skip
from relay.ir.walk import bound_vars, children, post_order

_TYPES = (TensorType, TupleType, FuncType, RefType, AdtType, TypeVar)


def alpha_equal(a: Expr | Type | Module, b: Expr | Type | Module, *, match_free: bool = False) -> bool:
    """Equal up to the names of bound variables.

    Free variables (and type and dimension variables that nothing declares) must be the same objects, or, with ``match_free``,
    correspond one to one with equal annotations.
    """
    if isinstance(a, Module) or isinstance(b, Module):
        return isinstance(a, Module) and isinstance(b, Module) and _modules_equal(a, b)
    matcher = _Matcher(match_free)
    if isinstance(a, _TYPES) or isinstance(b, _TYPES):
        return matcher.types(a, b)
    with without_collection():
        return matcher.exprs(a, b)


def _modules_equal(a: Module, b: Module) -> bool:
    if a.functions.keys() != b.functions.keys() or a.types.keys() != b.types.keys():
        return False
    if not all(_Matcher(True).type_defs(d, b.types[n]) for n, d in a.types.items()):
        return False
    with without_collection():
        return all(_Matcher(True).exprs(f, b.functions[n]) for n, f in a.functions.items())


def _without_empty_blocks(e: object) -> object:
    """A block that binds nothing is its result: text does not tell them apart."""
    while e.__class__ is Block and not e.bindings:
        e = e.result
    return e


class _Matcher:
    """One comparison: which variables and nodes of the left correspond to which of the right, both ways."""

    def __init__(self, match_free: bool) -> None:
        self.match_free = match_free
        self.right_of: dict[object, object] = {}  # variables, type and dimension variables
        self.left_of: dict[object, object] = {}
        self.nodes: dict[int, int] = {}
        self.nodes_back: dict[int, int] = {}

    def pair(self, a: object, b: object) -> bool:
        """Let ``a`` correspond to ``b``, unless either corresponds to something else."""
        if self.right_of.setdefault(a, b) is not b:
            return False
        return self.left_of.setdefault(b, a) is a

    # Expressions

    def exprs(self, a: object, b: object) -> bool:
        todo: list[tuple[object, object]] = [(a, b)]
        while todo:
            x, y = (_without_empty_blocks(side) for side in todo.pop())
            if x.__class__ is not y.__class__:
                return False
            if isinstance(x, Var) and isinstance(y, Var):
                if not self.variables(x, y):
                    return False
                continue
            if isinstance(x, GlobalVar | OpRef | ConstructorRef):
                if x.name != y.name:  # type: ignore[attr-defined]
                    return False
                continue
            if isinstance(x, Constant) and isinstance(y, Constant):
                if not _constants_equal(x, y):
                    return False
                continue
            seen = self.nodes.get(id(x))
            if seen is not None or id(y) in self.nodes_back:
                if seen != id(y) or self.nodes_back.get(id(y)) != id(x):
                    return False
                continue
            self.nodes[id(x)] = id(y)
            self.nodes_back[id(y)] = id(x)
            if not self.node(x, y):
                return False
            left, right = children(x), children(y)  # type: ignore[arg-type]
            if len(left) != len(right):
                return False
            todo.extend(zip(reversed(left), reversed(right), strict=True))
        return True

    def variables(self, x: Var, y: Var) -> bool:
        bound = self.right_of.get(x)
        if bound is not None or y in self.left_of:
            return bound is y
        if self.match_free:
            return self.binder(x, y)
        return x is y

    def binder(self, x: Var, y: Var) -> bool:
        return self.optional_types(x.annotation, y.annotation) and self.pair(x, y)

    def binders(self, xs: Sequence[Var], ys: Sequence[Var]) -> bool:
        return len(xs) == len(ys) and all(self.binder(x, y) for x, y in zip(xs, ys, strict=True))

    def node(self, x: object, y: object) -> bool:
        """What the two nodes themselves say (of the same class), their children apart."""
        match x, y:
            case Call(), Call():
                return (
                    len(x.args) == len(y.args)
                    and (x.attrs is y.attrs or self.attrs(x.attrs, y.attrs))
                    and self.arguments(x.type_args, y.type_args)
                )
            case Function(), Function():
                return (
                    self.parameters(x.type_params, y.type_params)
                    and self.binders(x.params, y.params)
                    and self.optional_types(x.ret_type, y.ret_type)
                    and self.relations(x.constraints, y.constraints)
                    and self.attrs(x.attrs, y.attrs)
                )
            case Block(), Block():
                return self.binders([b.var for b in x.bindings], [b.var for b in y.bindings])
            case Proj(), Proj():
                return x.index == y.index
            case Grad(), Grad():
                return x.forward == y.forward
            case Match(), Match():
                return (
                    x.complete == y.complete
                    and len(x.clauses) == len(y.clauses)
                    and all(self.patterns(c.pattern, d.pattern) for c, d in zip(x.clauses, y.clauses, strict=True))
                )
            case _:
                return isinstance(x, Tuple | If | RefNew | RefRead | RefWrite)

    def patterns(self, a: Pattern, b: Pattern) -> bool:
        todo: list[tuple[Pattern, Pattern]] = [(a, b)]
        while todo:
            match todo.pop():
                case PWild(), PWild():
                    pass
                case PVar(var=x), PVar(var=y):
                    if not self.binder(x, y):
                        return False
                case PConstructor() as p, PConstructor() as q if p.name == q.name and len(p.fields) == len(q.fields):
                    todo.extend(zip(reversed(p.fields), reversed(q.fields), strict=True))
                case PTuple() as s, PTuple() as t if len(s.fields) == len(t.fields):
                    todo.extend(zip(reversed(s.fields), reversed(t.fields), strict=True))
                case _:
                    return False
        return True

    # Types

    def optional_types(self, a: Type | None, b: Type | None) -> bool:
        return (a is None) == (b is None) and (a is None or self.types(a, b))

    def parameters(self, xs: Sequence[TypeParam], ys: Sequence[TypeParam]) -> bool:
        return len(xs) == len(ys) and all(_same_kind(x, y) and self.pair(x, y) for x, y in zip(xs, ys, strict=True))

    def arguments(self, xs: Sequence[object], ys: Sequence[object]) -> bool:
        return len(xs) == len(ys) and all(self.types(x, y) for x, y in zip(xs, ys, strict=True))

    def types(self, a: object, b: object) -> bool:
        """Two types or type arguments."""
        todo: list[tuple[object, object]] = [(a, b)]
        while todo:
            x, y = todo.pop()
            if isinstance(x, int | SymDim | AnyDim) or isinstance(y, int | SymDim | AnyDim):
                if not self.dims(x, y):
                    return False
                continue
            if x.__class__ is not y.__class__:
                return False
            match x, y:
                case str(), str():
                    if x != y:
                        return False
                case TypeVar(), TypeVar():
                    if not self.type_variables(x, y):
                        return False
                case TensorType(), TensorType():
                    if x.device != y.device:
                        return False
                    todo += ((x.dtype, y.dtype), (x.shape, y.shape))
                case tuple(), tuple():
                    if len(x) != len(y):
                        return False
                    todo.extend(zip(reversed(x), reversed(y), strict=True))
                case TupleType(), TupleType():
                    todo.append((x.fields, y.fields))
                case RefType(), RefType():
                    todo.append((x.value, y.value))
                case AdtType(), AdtType():
                    if x.name != y.name:
                        return False
                    todo.append((x.args, y.args))
                case FuncType(), FuncType():
                    if not self.parameters(x.type_params, y.type_params):
                        return False
                    if not self.relations(x.constraints, y.constraints):
                        return False
                    todo += ((x.ret, y.ret), (x.params, y.params))
                case _:
                    return False
        return True

    def relations(self, xs: Sequence[Relation], ys: Sequence[Relation]) -> bool:
        return len(xs) == len(ys) and all(
            x.name == y.name and self.arguments(x.args, y.args) and self.attrs(dict(x.attrs), dict(y.attrs))
            for x, y in zip(xs, ys, strict=True)
        )

    def type_variables(self, x: TypeVar | DimVar, y: TypeVar | DimVar) -> bool:
        known = self.right_of.get(x)
        if known is not None or y in self.left_of:
            return known is y
        return self.pair(x, y) if self.match_free and _same_kind(x, y) else x is y

    def dims(self, x: object, y: object) -> bool:
        match x, y:
            case (int(), int()) | (AnyDim(), AnyDim()):
                return x == y
            case SymDim(), SymDim():
                left, right = list(dict.fromkeys(dim_vars(x))), list(dict.fromkeys(dim_vars(y)))
                if len(left) != len(right):
                    return False
                self.match_dim_variables(left, right)
                return all(v in self.right_of or not self.match_free for v in left) and self.renamed(x) == y
            case _:
                return False

    def renamed(self, dim: Dim) -> Dim:
        def image(v: DimVar) -> Dim | None:
            other = self.right_of.get(v)
            return as_dim(other) if isinstance(other, DimVar) and other is not v else None

        return dim_substitute(dim, image)

    def match_dim_variables(self, left: Iterable[DimVar], right: Iterable[DimVar]) -> None:
        """Pair undeclared variables of two polynomials: by name where names agree, the rest in order."""
        if not self.match_free:
            return
        a = [v for v in left if v not in self.right_of]
        b = [v for v in right if v not in self.left_of]
        by_name = {v.name: v for v in b}
        for v in list(a):
            other = by_name.pop(v.name, None)
            if other is not None:
                self.pair(v, other)
                a.remove(v)
                b.remove(other)
        for v, w in zip(a, b, strict=False):
            self.pair(v, w)

    # Attributes

    def attrs(self, a: Mapping[str, object], b: Mapping[str, object]) -> bool:
        return a.keys() == b.keys() and all(self.attr(v, b[k]) for k, v in a.items())

    def attr(self, a: object, b: object) -> bool:
        match a, b:
            case ((tuple() | list()), (tuple() | list())):
                return len(a) == len(b) and all(self.attr(x, y) for x, y in zip(a, b, strict=True))
            case Mapping(), Mapping():
                return self.attrs(a, b)
            case ((SymDim() | AnyDim()), _):
                return self.dims(a, b)
            case _ if isinstance(a, _TYPES):
                return self.types(a, b)
            case _:
                return type(a) is type(b) and (a == b or (a != a and b != b))

    def type_defs(self, a: TypeDef, b: TypeDef) -> bool:
        return (
            a.name == b.name
            and a.extern == b.extern
            and self.parameters(a.params, b.params)
            and len(a.constructors) == len(b.constructors)
            and all(
                c.name == d.name and self.arguments(c.fields, d.fields)
                for c, d in zip(a.constructors, b.constructors, strict=True)
            )
        )


def _same_kind(x: TypeParam, y: TypeParam) -> bool:
    match x, y:
        case TypeVar(), TypeVar():
            return x.kind is y.kind
        case DimVar(), DimVar():
            return (x.lo, x.hi) == (y.lo, y.hi)
        case _:
            return False


def _constants_equal(a: Constant, b: Constant) -> bool:
    if a is b or a.data is b.data:
        return a.dtype == b.dtype
    if a.dtype != b.dtype or a.data.shape != b.data.shape:
        return False
    if isinstance(a.data, MissingData) or isinstance(b.data, MissingData):
        return isinstance(a.data, MissingData) and isinstance(b.data, MissingData) and a.data.number == b.data.number
    # Bit for bit: nan equals itself, and 0 differs from -0.
    return bool(np.array_equal(_bytes(a), _bytes(b)))


def _bytes(c: Constant) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.ascontiguousarray(c.data).reshape(-1).view(np.uint8)


# Hashing


def structural_hash(root: Expr | Type | Module) -> int:
    """A hash that alpha-equal programs (and types) share, good within this process."""
    if isinstance(root, Module):
        parts = [(n, structural_hash(f)) for n, f in root.functions.items()]
        return hash((frozenset(parts), frozenset(root.types)))
    hasher = _Hasher()
    if isinstance(root, _TYPES):
        return hasher.value(root)
    with without_collection():
        return hasher.expr(root)


class _Hasher:
    """Bound variables count by the order in which their binders end, which alpha-equal graphs have in common."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}

    def expr(self, root: Expr) -> int:
        order = list(post_order(root))
        for e in reversed(order):  # parents first, so that parameters are declared before the types that mention them
            if isinstance(e, Function):
                for p in e.type_params:
                    self.numbers.setdefault(p, len(self.numbers))
            for v in bound_vars(e):
                self.numbers.setdefault(v, len(self.numbers))
        done: dict[int, int] = {}
        for e in order:
            if isinstance(e, Block) and not e.bindings:
                done[id(e)] = done[id(e.result)]
                continue
            done[id(e)] = hash((e.__class__.__name__, self.own(e), *[done[id(k)] for k in children(e)]))
        return done[id(root)]

    def own(self, e: Expr) -> object:
        match e:
            case Var():
                return self.numbers.get(e, e.name)
            case GlobalVar() | OpRef() | ConstructorRef():
                return e.name
            case Constant():
                data = e.data.number if isinstance(e.data, MissingData) else e.data.tobytes()
                return (e.dtype, e.data.shape, data)
            case Call():
                return (self.value(e.attrs), self.value(e.type_args)) if e.attrs or e.type_args else len(e.args)
            case Function():
                types = (*(v.annotation for v in e.params), e.ret_type)
                return (len(e.params), len(e.type_params), self.value(types), self.value(e.attrs))
            case Block():
                return self.value(tuple(b.var.annotation for b in e.bindings))
            case Proj():
                return e.index
            case Match():
                return (e.complete, *(self.pattern(c.pattern) for c in e.clauses))
            case Grad():
                return e.forward
            case Tuple() | If() | RefNew() | RefRead() | RefWrite():
                return None

    def pattern(self, root: Pattern) -> tuple[object, ...]:
        out: list[object] = []
        todo: list[Pattern] = [root]
        while todo:
            p = todo.pop()
            match p:
                case PWild():
                    out.append("_")
                case PVar():
                    out.append(self.numbers.get(p.var))
                case PConstructor() | PTuple():
                    out.append((p.name if isinstance(p, PConstructor) else "", len(p.fields)))
                    todo.extend(reversed(p.fields))
        return tuple(out)

    def value(self, root: object) -> int:
        """A type, type argument or attribute: the hash of its parts in order."""
        out: list[object] = []
        todo: list[object] = [root]
        while todo:
            x = todo.pop()
            match x:
                case TypeVar():
                    out.append(self.numbers.get(x, x.kind.value))
                case SymDim():
                    out.append(self.dim(x))
                case AnyDim():
                    out.append("?")
                case TensorType():
                    out.append(("Tensor", x.device))
                    todo += (x.dtype, x.shape)
                case TupleType():
                    todo.append(x.fields)
                case RefType():
                    out.append("Ref")
                    todo.append(x.value)
                case AdtType():
                    out.append(x.name)
                    todo.append(x.args)
                case FuncType():
                    for p in x.type_params:
                        self.numbers.setdefault(p, len(self.numbers))
                    out.append(("fn", len(x.type_params), tuple(r.name for r in x.constraints)))
                    todo += (x.ret, x.params)
                case tuple() | list():
                    out.append(len(x))
                    todo.extend(reversed(x))
                case Mapping():
                    out.append(tuple(sorted(x)))
                    todo.extend(x[k] for k in sorted(x, reverse=True))
                case float() if x != x:
                    out.append("nan")
                case _:
                    out.append((x.__class__.__name__, x))
        return hash(tuple(out))

    def dim(self, dim: Dim) -> object:
        """Independent of the order of terms, which depends on the variables' ages."""
        if not isinstance(dim, SymDim):
            return dim if isinstance(dim, int) else "?"
        terms: list[object] = []
        for monomial, coefficient in dim.terms:
            factors: list[object] = []
            for atom, power in monomial:
                match atom:
                    case DimVar():
                        factors.append((self.numbers.get(atom, -1), power))
                    case DimOp():
                        # min and max keep their operands in order of age as well.
                        factors.append((atom.op, frozenset((self.dim(atom.a), self.dim(atom.b))), power))
            terms.append((frozenset(factors), coefficient))
        return hash(frozenset(terms))
