"""Walking loop nests: statements in program order, the expressions and buffers in them. Iterative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.loop.ir import (
    Alloc,
    Behind,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    LetScalar,
    Prefetch,
    Seq,
    Shared,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.te.scalar import (
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Scalar,
    Select,
    Size,
    Unary,
    children,
    transform,
    walk,
)


def _none(_: Stmt) -> tuple[Stmt, ...]:
    return ()


def _body(stmt: For | LetScalar | Alloc) -> tuple[Stmt, ...]:
    return (stmt.body,)


# Looked up, not matched, as operands of expressions are.
_PARTS: dict[type, Callable[[Any], tuple[Stmt, ...]]] = {
    For: _body,
    LetScalar: _body,
    Alloc: _body,
    Branch: lambda stmt: (stmt.then,) if stmt.orelse is None else (stmt.then, stmt.orelse),
    Switch: lambda stmt: stmt.cases,
    Seq: lambda stmt: stmt.stmts,
    Store: _none,
    Transpose: _none,
    BlockProduct: _none,
    Prefetch: _none,
    Fail: _none,
}


def parts(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside a statement."""
    return _PARTS[type(stmt)](stmt)


def with_parts(stmt: Stmt, made: Sequence[Stmt]) -> Stmt:
    """The statement over other parts; the same object when they are the old ones."""
    if parts(stmt) == tuple(made):  # compared by identity
        return stmt
    match stmt:
        case For() | LetScalar() | Alloc():
            return replace(stmt, body=made[0])
        case Branch():
            return Branch(stmt.cond, made[0], made[1] if len(made) > 1 else None)
        case Switch():
            return Switch(stmt.value, tuple(made))
        case _:
            return Seq(tuple(made))


def rewritten(root: Stmt, visit: Callable[[Stmt], Stmt], enters: Callable[[Stmt], bool] = lambda _: True) -> Stmt:
    """Rewrite from the inside out: ``visit`` is given each statement over rewritten parts and returns what is in its place. What
    ``enters`` refuses is visited as it is. The same object where every statement stays what it is."""
    results: list[Stmt] = []
    todo: list[tuple[Stmt, bool]] = [(root, False)]
    while todo:
        stmt, ready = todo.pop()
        inside = parts(stmt) if enters(stmt) else ()
        if not inside:
            results.append(visit(stmt))
        elif ready:
            made = results[len(results) - len(inside) :]
            del results[len(results) - len(inside) :]
            results.append(visit(with_parts(stmt, made)))
        else:
            todo.append((stmt, True))
            todo.extend((part, False) for part in reversed(inside))
    (out,) = results
    return out


def with_values(stmt: Stmt, change: Callable[[Scalar], Scalar]) -> Stmt:
    """A store or a named value with its own expressions changed; another statement as it is."""
    match stmt:
        case Store():
            return Store(stmt.buffer, tuple(change(i) for i in stmt.indices), change(stmt.value))
        case LetScalar():
            return replace(stmt, value=change(stmt.value))
        case _:
            return stmt


def again(stmt: Stmt, known: Mapping[Scalar, Scalar], name: Callable[[Axis], Axis]) -> Stmt:
    """A statement of loops, bindings, conditions and stores once more, with the variables that it binds as ``name`` calls them, and
    ``known`` expressions (by identity) replaced."""
    names = {inner.var: name(inner.var) for inner in statements(stmt) if isinstance(inner, For | LetScalar)}
    done: dict[int, Scalar] = {id(old): new for old, new in (*known.items(), *names.items())}

    def change(value: Scalar) -> Scalar:
        return transform(value, lambda node: node, done)

    def visit(inner: Stmt) -> Stmt:
        match inner:
            case For():
                return replace(inner, var=names[inner.var], extent=change(inner.extent))
            case LetScalar():
                return replace(inner, var=names[inner.var], value=change(inner.value))
            case Branch():
                return replace(inner, cond=change(inner.cond))
            case Prefetch():
                return replace(inner, indices=tuple(map(change, inner.indices)))
            case Store():
                return with_values(inner, change)
            case _:
                return inner

    return rewritten(stmt, visit)


def statements(root: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    parts_of = _PARTS
    todo = [root]
    while todo:
        stmt = todo.pop()
        yield stmt
        inside = parts_of[type(stmt)](stmt)
        if len(inside) > 1:
            todo += inside[::-1]
        elif inside:
            todo.append(inside[0])


# The expressions of a statement of each kind.
_EXPRESSIONS: dict[type, Callable[[Any], tuple[Scalar, ...]]] = {
    For: lambda stmt: (stmt.extent,),
    Store: lambda stmt: (*stmt.indices, stmt.value),
    Transpose: lambda stmt: (stmt.to, stmt.pitch, stmt.at, stmt.stride, stmt.rows, stmt.columns),
    BlockProduct: lambda stmt: stmt.measures,
    Prefetch: lambda stmt: stmt.indices,
    LetScalar: lambda stmt: (stmt.value,),
    Branch: lambda stmt: (stmt.cond,),
    Switch: lambda stmt: (stmt.value,),
    Alloc: lambda stmt: (),
    Seq: lambda stmt: (),
    Fail: lambda stmt: (),
}


def expressions(stmt: Stmt) -> tuple[Scalar, ...]:
    """The expressions of the statement itself (not of those inside it)."""
    return _EXPRESSIONS[type(stmt)](stmt)


def nodes(root: Stmt) -> Iterator[Scalar]:
    """Every expression node in a statement and those inside it; shared nodes once for each expression they are in."""
    for stmt in statements(root):
        for expr in expressions(stmt):
            yield from walk(expr)


# Expressions that name no buffer.
_PLAIN = frozenset((Axis, Binary, Const))


def buffers_used(root: Stmt) -> dict[Buffer, None]:
    """The buffers that are read or written, in order of occurrence."""
    found: dict[Buffer, None] = {}
    seen: set[int] = set()
    for stmt in statements(root):
        for expr in expressions(stmt):
            for node in walk(expr, seen):
                if isinstance(node, Load):
                    if isinstance(node.source, Buffer):
                        found.setdefault(node.source)
                elif type(node) in _PLAIN:  # most nodes
                    pass
                elif isinstance(node, Behind):
                    found.setdefault(node.buffer)
                elif isinstance(node, Shared):
                    found.setdefault(node.input)
                    found.setdefault(node.output)
        if isinstance(stmt, Store | Prefetch):
            found.setdefault(stmt.buffer)
        elif isinstance(stmt, Transpose):
            found.setdefault(stmt.source)
            found.setdefault(stmt.target)
        elif isinstance(stmt, BlockProduct):
            for buffer in (stmt.left, stmt.right, stmt.target):
                found.setdefault(buffer)
    return found


def buffers_read(root: Stmt) -> set[Buffer]:
    """The buffers of which an element is read."""
    found = {n.source for n in nodes(root) if isinstance(n, Load) and isinstance(n.source, Buffer)}
    for stmt in statements(root):
        if isinstance(stmt, Transpose):
            found.add(stmt.source)
        elif isinstance(stmt, BlockProduct):
            found |= {stmt.left, stmt.right}
    return found


def free_axes(root: Stmt) -> dict[Axis, None]:
    """The variables used but not bound in a statement, in order of occurrence."""
    bound: set[Axis] = set()
    used: dict[Axis, None] = {}
    seen: set[int] = set()
    for stmt in statements(root):
        if isinstance(stmt, For | LetScalar):
            bound.add(stmt.var)
        for expr in expressions(stmt):
            for node in walk(expr, seen):
                if isinstance(node, Axis):
                    used[node] = None
    return {axis: None for axis in used if axis not in bound}


def same(a: Scalar, b: Scalar) -> bool:
    """Whether two expressions are equal in structure (variables and buffers by identity)."""
    todo = [(a, b)]
    while todo:
        x, y = todo.pop()
        if x is y:
            continue
        if type(x) is not type(y) or x.dtype != y.dtype:
            return False
        match x, y:
            case (Const(), Const()):
                if x.value != y.value or str(x.value) != str(y.value):
                    return False
            case (Size(), Size()):
                if x.dim != y.dim:
                    return False
            case (Axis(), _):
                return False
            case (Load(), Load()):
                if x.source is not y.source or len(x.indices) != len(y.indices):
                    return False
            case (Unary(op=one), Unary(op=other)) | (Binary(op=one), Binary(op=other)):
                if one != other:
                    return False
            case (Compare(), Compare()):
                if x.op != y.op:
                    return False
            case (Dot(), Dot()):
                if x.parts != y.parts:
                    return False
            case (Select(), Select()) | (Cast(), Cast()) | (Bits(), Bits()):
                pass
            case _:
                return False
        todo.extend(zip(children(x), children(y), strict=True))
    return True
