"""Simpler index arithmetic: what the ranges of the loop variables say about divisions, extremes, comparisons.

    for i < n { for j < 384 { y[i, j] = x[(i*384 + j) // 384, (i*384 + j) % 384] } }   ->   ... y[i, j] = x[i, j]

An int64 expression without loads is read as a dim (`relay.ir.dim`), in which each loop variable is a dim
variable that runs from 0 to its extent less one; bounds follow by putting a variable's ends in its place, inner
variables first. Only nodes that become simpler are rewritten, so the rest of the nest keeps its form and its
sharing. The result computes what the kernel does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from relay.ir.dim import (
    APPLY,
    AnyDim,
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    dim_add,
    dim_bounds,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mul,
    dim_sub,
    dim_vars,
)
from relay.loop.ir import (
    Alloc,
    BlockProduct,
    Branch,
    Fail,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.te.scalar import (
    FALSE,
    TRUE,
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Scalar,
    Select,
    Size,
    Unary,
    binary,
    children,
    extent_of,
    rebuild,
)

_DIM_OPS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "add": dim_add, "sub": dim_sub, "mul": dim_mul, "min": dim_min, "max": dim_max,
}  # fmt: skip


def simplify(kernel: Kernel) -> Kernel:
    """The kernel with simpler expressions; branches and loops that the sizes decide are taken or dropped."""
    body = _Simplifier().stmt(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Simplifier:
    def __init__(self) -> None:
        self.variables: dict[Axis, DimVar] = {}
        self.axes: dict[DimVar, Axis] = {}
        # The largest value of a loop variable, over the variables around it.
        self.largest: dict[DimVar, Dim | None] = {}
        # The extents and values that variables were bound to; loops of one iteration leave a constant.
        self.bindings: dict[Axis, object] = {}
        self.fixed: dict[Axis, Const] = {}
        self.done: dict[int, Scalar] = {}
        self.dims: dict[int, Dim | None] = {}
        self.kept: list[Scalar] = []  # nodes made here: their identities are keys, so they must not be freed

    # -- statements: rebuilt on the way out, with an explicit stack

    def stmt(self, root: Stmt) -> Stmt:
        """A statement, simplified; the same object when nothing changed."""
        results: list[Stmt] = []
        todo: list[tuple[Stmt, int, tuple[Scalar, ...]]] = [(root, -1, ())]
        while todo:
            stmt, waiting, given = todo.pop()
            if waiting >= 0:
                made = results[len(results) - waiting :]
                del results[len(results) - waiting :]
                results.append(_rebuilt(stmt, given, made))
                continue
            match stmt:
                case Store():
                    results.append(self.store(stmt))
                case Transpose():
                    results.append(self.transpose(stmt))
                case BlockProduct():
                    results.append(self.block_product(stmt))
                case Prefetch():
                    results.append(self.prefetch(stmt))
                case Fail():
                    results.append(stmt)
                case Seq():
                    todo.append((stmt, len(stmt.stmts), ()))
                    todo.extend((part, -1, ()) for part in reversed(stmt.stmts))
                case Alloc():
                    todo += [(stmt, 1, ()), (stmt.body, -1, ())]
                case LetScalar():
                    value = self.scalar(stmt.value)
                    self.let(stmt.var, value)
                    todo += [(stmt, 1, (value,)), (stmt.body, -1, ())]
                case For():
                    extent = self.scalar(stmt.extent)
                    if isinstance(extent, Const) and extent.value <= 0:
                        results.append(Seq(()))
                        continue
                    self.bind(stmt.var, extent)
                    todo += [(stmt, 1, (extent,)), (stmt.body, -1, ())]
                case Branch():
                    cond = self.scalar(stmt.cond)
                    if isinstance(cond, Const):
                        chosen = stmt.then if cond.value else stmt.orelse
                        todo.append((Seq(()) if chosen is None else chosen, -1, ()))
                        continue
                    sides = (stmt.then,) if stmt.orelse is None else (stmt.then, stmt.orelse)
                    todo.append((stmt, len(sides), (cond,)))
                    todo.extend((side, -1, ()) for side in reversed(sides))
                case Switch():
                    selector = self.scalar(stmt.value)
                    if isinstance(selector, Const):
                        number = int(selector.value)
                        inside = 0 <= number < len(stmt.cases)
                        todo.append((stmt.cases[number] if inside else Seq(()), -1, ()))
                        continue
                    todo.append((stmt, len(stmt.cases), (selector,)))
                    todo.extend((case, -1, ()) for case in reversed(stmt.cases))
                case _:
                    assert_never(stmt)
        (out,) = results
        return out

    def store(self, store: Store) -> Store:
        indices = tuple(self.scalar(i) for i in store.indices)
        value = self.scalar(store.value)
        if value is store.value and all(a is b for a, b in zip(indices, store.indices, strict=True)):
            return store
        return Store(store.buffer, indices, value)

    def transpose(self, stmt: Transpose) -> Transpose:
        given = (stmt.to, stmt.pitch, stmt.at, stmt.stride, stmt.rows, stmt.columns)
        to, pitch, at, stride, rows, columns = made = tuple(self.scalar(s) for s in given)
        if all(a is b for a, b in zip(given, made, strict=True)):
            return stmt
        return Transpose(stmt.target, to, pitch, stmt.source, at, stride, rows, columns)

    def block_product(self, stmt: BlockProduct) -> BlockProduct:
        made = [self.scalar(s) for s in stmt.measures]
        return stmt if all(a is b for a, b in zip(stmt.measures, made, strict=True)) else stmt.measured(made)

    def prefetch(self, stmt: Prefetch) -> Prefetch:
        indices = tuple(self.scalar(i) for i in stmt.indices)
        same = all(a is b for a, b in zip(indices, stmt.indices, strict=True))
        return stmt if same else replace(stmt, indices=indices)

    def bind(self, axis: Axis, extent: Scalar) -> None:
        """A loop variable: 0 .. extent - 1."""
        count = self.dim(extent)
        if not self.binds(axis, ("loop", count)):
            return
        if isinstance(count, int) and count == 1:
            self.fixed[axis] = Const(0, "int64")
            return
        high = None if count is None else dim_bounds(count)[1]
        variable = DimVar(axis.name, 0, None if high is None else max(high - 1, 0))
        self.variables[axis] = variable
        self.axes[variable] = axis
        self.largest[variable] = None if count is None else dim_sub(count, 1)

    def let(self, axis: Axis, value: Scalar) -> None:
        """A variable that stands for a value."""
        meaning = self.dim(value) if axis.dtype == "int64" else None
        self.binds(axis, ("let", meaning))
        self.dims[id(axis)] = meaning

    def binds(self, axis: Axis, meaning: object) -> bool:
        """Note what a variable means; False when it meant that before. A new meaning voids what was found."""
        if axis in self.bindings:
            if self.bindings[axis] == meaning:
                return False
            self.done.clear()
            self.dims.clear()
            self.variables.pop(axis, None)
            self.fixed.pop(axis, None)
        self.bindings[axis] = meaning
        self.keep(axis)
        return True

    # -- expressions

    def keep(self, node: Scalar) -> Scalar:
        self.kept.append(node)
        return node

    def scalar(self, root: Scalar) -> Scalar:
        """An expression, simplified from the leaves up; each node once for the whole kernel."""
        done, kept = self.done, self.kept
        todo: list[Scalar | None] = [root]  # None: the operands of the node below it are done
        while todo:
            node = todo.pop()
            ready = node is None
            if node is None:
                node = todo.pop()
                assert node is not None
            if id(node) in done:
                continue
            kids = children(node)
            if kids and not ready:
                todo += (node, None)
                todo += [k for k in kids if id(k) not in done]
                continue
            new = rebuild(node, tuple([done[id(k)] for k in kids])) if kids else node
            done[id(node)] = found = self.node(new)
            kept.append(found)
        return done[id(root)]

    def node(self, node: Scalar) -> Scalar:
        match node:
            case Const():
                return node
            case Size():
                return Const(node.dim, "int64") if isinstance(node.dim, int) else node
            case Axis():
                return self.fixed.get(node, node)
            case Binary(dtype="int64"):
                return self.index(node)
            case Binary(dtype="bool"):
                return _logic(node)
            case Binary(a=Const() as a, b=Const() as b, dtype="float32" | "float64"):
                return _folded(node, a, b)
            case Compare(a=Const() as a, b=Const() as b):
                return TRUE if _holds(node, a, b) else FALSE
            case Compare():
                return self.comparison(node)
            case Select():
                if isinstance(node.cond, Const):
                    return node.a if node.cond.value else node.b
                return node.a if node.a is node.b else node
            case Cast():
                if isinstance(node.a, Const) and isinstance(node.a.value, int) and node.dtype == "int64":
                    return Const(int(node.a.value), "int64")
                return node
            case Unary(op="not", dtype="bool"):
                return (FALSE if node.a.value else TRUE) if isinstance(node.a, Const) else node
            case _:
                return node

    def index(self, node: Binary) -> Scalar:
        """An int64 operation: folded, or decided by the ranges of its operands."""
        a, b = node.a, node.b
        if isinstance(a, Const) and isinstance(b, Const) and node.op in ("add", "sub", "mul", "min", "max"):
            x, y = int(a.value), int(b.value)
            values = {"add": x + y, "sub": x - y, "mul": x * y, "min": min(x, y), "max": max(x, y)}
            return Const(_wrapped(values[node.op]), "int64")
        if node.op in ("add", "sub", "mul"):
            return _identity(node)
        if node.op not in APPLY:
            return node
        x_dim, y_dim = self.dim(a), self.dim(b)
        if x_dim is None or y_dim is None or isinstance(x_dim, AnyDim) or isinstance(y_dim, AnyDim):
            return node
        if node.op in ("min", "max"):
            difference = dim_sub(x_dim, y_dim)
            if self.at_least(difference, 0):
                return a if node.op == "max" else b
            if self.at_most(difference, 0):
                return b if node.op == "max" else a
            return node
        if not self.at_least(y_dim, 1):
            return node
        if isinstance(x_dim, int) and isinstance(y_dim, int):
            return Const(x_dim // y_dim if node.op == "floordiv" else x_dim % y_dim, "int64")
        # x = exact * y + rest with a rest in [0, y): the quotient is exact, the remainder is rest.
        exact, rest = self.divided(x_dim, y_dim)
        if exact is None or rest is None:
            return node
        found = self.expression(exact if node.op == "floordiv" else rest)
        return node if found is None else found

    def divided(self, x: Dim, y: Dim) -> tuple[Dim | None, Dim | None]:
        quotient = dim_floordiv(x, y)
        exact: Dim = 0
        if not isinstance(quotient, int) and not isinstance(quotient, AnyDim):
            for monomial, coefficient in quotient.terms:
                product: Dim = coefficient
                for atom, power in monomial:
                    for _ in range(power):
                        product = dim_mul(product, as_dim(atom))
                if not any(isinstance(atom, DimOp) and atom.op == "floordiv" for atom, _ in monomial):
                    exact = dim_add(exact, product)
        else:
            exact = quotient
        rest = dim_sub(x, dim_mul(exact, y))
        if self.at_least(rest, 0) and self.at_least(dim_sub(y, rest), 1):
            return exact, rest
        return None, None

    def comparison(self, node: Compare) -> Scalar:
        """Of two int64 expressions: decided where their difference has a known sign."""
        if node.a.dtype != "int64":
            return node
        x, y = self.dim(node.a), self.dim(node.b)
        if x is None or y is None:
            return node
        difference = dim_sub(x, y)
        decided: bool | None = None
        match node.op:
            case "lt" | "ge":
                decided = True if self.at_most(difference, -1) else False if self.at_least(difference, 0) else None
            case "le" | "gt":
                decided = True if self.at_most(difference, 0) else False if self.at_least(difference, 1) else None
            case "eq" | "ne":
                if difference == 0:
                    decided = True
                elif self.at_least(difference, 1) or self.at_most(difference, -1):
                    decided = False
        if decided is None:
            return node
        return TRUE if decided != (node.op in ("ge", "gt", "ne")) else FALSE

    # -- expressions as dims

    def dim(self, root: Scalar) -> Dim | None:
        """An int64 expression of sizes and loop variables as a dim; None for one that depends on anything else."""
        todo: list[tuple[Scalar, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if id(node) in self.dims:
                continue
            kids = children(node) if isinstance(node, Binary) and node.dtype == "int64" else ()
            if kids and not ready:
                todo.append((node, True))
                todo.extend((k, False) for k in kids)
                continue
            self.dims[id(node)] = self.dim_of(self.keep(node))
        return self.dims[id(root)]

    def dim_of(self, node: Scalar) -> Dim | None:
        match node:
            case Const(dtype="int64"):
                return int(node.value)
            case Size():
                return None if isinstance(node.dim, AnyDim) else node.dim
            case Axis():
                if node in self.fixed:
                    return 0
                variable = self.variables.get(node)
                return None if variable is None else as_dim(variable)
            case Binary(dtype="int64"):
                a, b = self.dims[id(node.a)], self.dims[id(node.b)]
                if a is None or b is None:
                    return None
                if node.op in ("floordiv", "mod"):
                    return APPLY[node.op](a, b) if self.at_least(b, 1) else None
                apply = _DIM_OPS.get(node.op)
                return None if apply is None else apply(a, b)
            case _:
                return None

    def expression(self, dim: Dim) -> Scalar | None:
        """A polynomial of sizes and loop variables as an expression; None for other uses of variables."""
        if isinstance(dim, int):
            return self.keep(Const(dim, "int64"))
        if isinstance(dim, AnyDim):
            return None
        if not any(v in self.axes for v in dim_vars(dim)):
            return self.keep(Size(dim))
        total: Scalar | None = None
        for monomial, coefficient in dim.terms:
            sizes: Dim = coefficient
            product: Scalar | None = None
            for atom, power in monomial:
                for _ in range(power):
                    if isinstance(atom, DimVar) and atom in self.axes:
                        axis = self.axes[atom]
                        product = axis if product is None else binary("mul", product, axis)
                    elif any(v in self.axes for v in dim_vars(as_dim(atom))):
                        return None
                    else:
                        sizes = dim_mul(sizes, as_dim(atom))
            factor = extent_of(sizes)
            term = factor if product is None else binary("mul", product, factor)
            total = term if total is None else binary("add", total, term)
        return None if total is None else self.keep(total)

    # -- bounds

    def at_least(self, dim: Dim, bound: int) -> bool:
        """Whether a dim is never below a number."""
        low = dim_bounds(self.extreme(dim, False))[0]
        return low is not None and low >= bound

    def at_most(self, dim: Dim, bound: int) -> bool:
        high = dim_bounds(self.extreme(dim, True))[1]
        return high is not None and high <= bound

    def extreme(self, dim: Dim, upper: bool) -> Dim:
        """A dim of sizes that bounds the given one: loop variables, inner ones first, are put at the end that does.

        A variable whose factor has no known sign, or that stands under a power or inside an atom, stays.
        """
        seen: set[DimVar] = set()
        while not isinstance(dim, int | AnyDim):
            inner = [v for v in dim_vars(dim) if v in self.largest and v not in seen]
            if not inner:
                break
            variable = max(inner, key=lambda v: v.serial)
            seen.add(variable)
            parts = _linear(dim, variable)
            if parts is None:
                continue
            factor, rest = parts
            low, high = dim_bounds(factor)
            largest = self.largest[variable]
            rising, falling = low is not None and low >= 0, high is not None and high <= 0
            if (upper and falling) or (not upper and rising):
                dim = rest
            elif ((upper and rising) or (not upper and falling)) and largest is not None:
                dim = dim_add(rest, dim_mul(factor, largest))
        return dim


def _linear(dim: SymDim, variable: DimVar) -> tuple[Dim, Dim] | None:
    """``(factor, rest)`` with ``dim = factor * variable + rest``; None where the variable stands in another way."""
    factor: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        present = False
        for atom, power in monomial:
            if atom is variable:
                if power != 1:
                    return None
                present = True
                continue
            if isinstance(atom, DimOp) and variable in dim_vars(as_dim(atom)):
                return None
            for _ in range(power):
                term = dim_mul(term, as_dim(atom))
        if present:
            factor = dim_add(factor, term)
        else:
            rest = dim_add(rest, term)
    return factor, rest


def _identity(node: Binary) -> Scalar:
    a, b = node.a, node.b
    if isinstance(b, Const) and b.value == (1 if node.op == "mul" else 0):
        return a
    if isinstance(a, Const) and node.op != "sub" and a.value == (1 if node.op == "mul" else 0):
        return b
    if node.op == "mul" and any(isinstance(side, Const) and side.value == 0 for side in (a, b)):
        return Const(0, "int64")
    return node


def _folded(node: Binary, a: Const, b: Const) -> Const:
    """An operation on numbers, rounded as it is in its dtype. (NumPy is imported where that is asked: few kernels ask, and a process that
    compiles them starts in half of the time without it.)"""
    import numpy as np

    from relay.te import numeric

    x, y = (numeric.literal(side.value, side.dtype) for side in (a, b))
    with np.errstate(all="ignore"):
        return Const(float(numeric.binary(node.op, x, y, node.dtype)), node.dtype)


def _holds(node: Compare, a: Const, b: Const) -> bool:
    """Whether a comparison of numbers holds."""
    if a.dtype == "int64":
        return bool(getattr(operator, node.op)(a.value, b.value))
    from relay.te import numeric

    x, y = (numeric.literal(side.value, side.dtype) for side in (a, b))
    return bool(numeric.compare(node.op, x, y, a.dtype))


def _logic(node: Binary) -> Scalar:
    """``and``/``or`` with a side that is known."""
    if node.op not in ("and", "or"):
        return node
    for known, other in ((node.a, node.b), (node.b, node.a)):
        if isinstance(known, Const):
            return other if bool(known.value) == (node.op == "and") else known
    return node


def _wrapped(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _rebuilt(stmt: Stmt, given: tuple[Scalar, ...], made: list[Stmt]) -> Stmt:
    """The statement over new expressions and parts; the same object when they are the old ones."""
    match stmt:
        case Seq():
            return stmt if all(a is b for a, b in zip(made, stmt.stmts, strict=True)) else Seq(tuple(made))
        case Alloc():
            return stmt if made[0] is stmt.body else Alloc(stmt.buffer, made[0])
        case LetScalar():
            same = given[0] is stmt.value and made[0] is stmt.body
            return stmt if same else LetScalar(stmt.var, given[0], made[0])
        case For():
            same = given[0] is stmt.extent and made[0] is stmt.body
            return stmt if same else For(stmt.var, given[0], made[0], stmt.kind, stmt.grain)
        case Branch():
            orelse = made[1] if len(made) > 1 else None
            if given[0] is stmt.cond and made[0] is stmt.then and orelse is stmt.orelse:
                return stmt
            return Branch(given[0], made[0], orelse)
        case Switch():
            same = given[0] is stmt.value and all(a is b for a, b in zip(made, stmt.cases, strict=True))
            return stmt if same else Switch(given[0], tuple(made))
        case _:
            raise AssertionError(f"{type(stmt).__name__} has no parts")
