"""The one walker, the one rewriter and the one substitution over expressions. All iterative.

`children` and `rebuild` say what a node consists of; everything else is made of these two. `rewrite` returns the same object
where nothing changed, and "unchanged" is ``is``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
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

_LEAVES = frozenset((Var, GlobalVar, Constant, OpRef, ConstructorRef))


# Looked up, not matched: going over programs is much of the time of passes.
_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    **dict.fromkeys(_LEAVES, lambda e: ()),
    Call: lambda e: (e.fn, *e.args),
    Function: lambda e: (e.body,),
    Block: lambda e: (*[b.value for b in e.bindings], e.result),
    Tuple: lambda e: e.fields,
    Proj: lambda e: (e.tuple,),
    If: lambda e: (e.cond, e.then, e.orelse),
    Match: lambda e: (e.data, *[c.body for c in e.clauses]),
    RefNew: lambda e: (e.value,),
    RefRead: lambda e: (e.ref,),
    RefWrite: lambda e: (e.ref, e.value),
    Grad: lambda e: (e.fn,),
}


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in evaluation order (a block's values, then its result). Binders are not children."""
    return _CHILDREN[type(e)](e)


def rebuild(e: Expr, kids: Sequence[Expr]) -> Expr:
    """The node over new children (in `children`'s order); the same object when they are the old ones."""
    old = children(e)
    if len(old) == len(kids) and all(a is b for a, b in zip(old, kids, strict=True)):
        return e
    match e:
        case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
            return e
        case Call():
            return Call(kids[0], tuple(kids[1:]), e.attrs, e.type_args, e.ty, e.span)
        case Function():
            return replace(e, body=kids[0])
        case Block():
            bindings = tuple(
                b if b.value is v else Binding(b.var, v) for b, v in zip(e.bindings, kids[:-1], strict=True)
            )
            return Block(bindings, kids[-1], e.ty, e.span)
        case Tuple():
            return Tuple(tuple(kids), e.ty, e.span)
        case Proj():
            return Proj(kids[0], e.index, e.ty, e.span)
        case If():
            return If(kids[0], kids[1], kids[2], e.ty, e.span)
        case Match():
            clauses = tuple(
                c if c.body is b else Clause(c.pattern, b) for c, b in zip(e.clauses, kids[1:], strict=True)
            )
            return Match(kids[0], clauses, e.complete, e.ty, e.span)
        case RefNew():
            return RefNew(kids[0], e.ty, e.span)
        case RefRead():
            return RefRead(kids[0], e.ty, e.span)
        case RefWrite():
            return RefWrite(kids[0], kids[1], e.ty, e.span)
        case Grad():
            return Grad(kids[0], e.ty, e.span, e.forward)


def post_order(root: Expr) -> Iterator[Expr]:
    """Every node of the graph once, children before parents."""
    seen: set[int] = set()
    todo: list[Expr | None] = [root]  # None: the children of the node below it have come
    while todo:
        node = todo.pop()
        if node is None:
            node = todo.pop()
            assert node is not None
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            if type(node) in _LEAVES:  # most nodes: they need not come by again
                yield node
            else:
                todo += (node, None, *reversed(_CHILDREN[type(node)](node)))


def rewrite(root: Expr, visit: Callable[[Expr], Expr], memo: dict[int, Expr] | None = None) -> Expr:
    """Rewrite bottom-up: ``visit`` is given each node over already rewritten children and returns its replacement.

    A shared node is visited once and stays shared. ``memo`` maps the id of an old node to its replacement; entries given in
    advance cut the traversal there.
    """
    done: dict[int, Expr] = {} if memo is None else memo
    todo: list[tuple[Expr, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if id(node) in done:
            continue
        kids = children(node)
        if ready or not kids:
            done[id(node)] = visit(rebuild(node, [done[id(k)] for k in kids]))
        else:
            todo.append((node, True))
            todo.extend((k, False) for k in reversed(kids) if id(k) not in done)
    return done[id(root)]


def pattern_vars(pattern: Pattern) -> list[Var]:
    """The variables a pattern binds, left to right."""
    out: list[Var] = []
    todo: list[Pattern] = [pattern]
    while todo:
        p = todo.pop()
        match p:
            case PVar():
                out.append(p.var)
            case PConstructor() | PTuple():
                todo.extend(reversed(p.fields))
            case PWild():
                pass
    return out


def bound_vars(e: Expr) -> tuple[Var, ...]:
    """The variables a node itself binds."""
    match e:
        case Function():
            return e.params
        case Block():
            return tuple(b.var for b in e.bindings)
        case Match():
            return tuple(v for c in e.clauses for v in pattern_vars(c.pattern))
        case _:
            return ()


def free_vars(root: Expr) -> list[Var]:
    """The free variables in order of first use. (Variables are identities, so bound anywhere inside means not free.)"""
    bound: set[int] = set()
    used: dict[int, Var] = {}
    for node in post_order(root):
        bound.update(id(v) for v in bound_vars(node))
        if isinstance(node, Var):
            used.setdefault(id(node), node)
    return [v for k, v in used.items() if k not in bound]


def substitute(root: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Replace free variables. Capture cannot happen, because variables are identities; the caller freshens copies."""
    if not mapping:
        return root
    return rewrite(root, lambda e: mapping.get(e, e) if isinstance(e, Var) else e)


def rename_pattern(pattern: Pattern, fresh: Mapping[Var, Var]) -> Pattern:
    """A pattern with its variables replaced."""
    match pattern:
        case PVar():
            return PVar(fresh.get(pattern.var, pattern.var), pattern.span)
        case PConstructor():
            return PConstructor(pattern.name, tuple(rename_pattern(f, fresh) for f in pattern.fields), pattern.span)
        case PTuple():
            return PTuple(tuple(rename_pattern(f, fresh) for f in pattern.fields), pattern.span)
        case PWild():
            return pattern
