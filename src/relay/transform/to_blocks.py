"""Any program to blocks: graph sharing becomes scoping, in this one place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Expr,
    Function,
    Grad,
    If,
    Match,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.walk import children, post_order
from relay.transform.base import Pass
from relay.transform.blocks import is_atom, is_primitive, map_functions, says_no_less


@dataclass(frozen=True, slots=True)
class ToBlocks(Pass):
    """Put every function body into blocks (`relay.transform.blocks`).

    Before: any well-scoped program, nodes shared or not. After: blocks; evaluation order is kept (callee, then
    arguments, left to right). A node that is used several times is bound once, in the innermost block that dominates
    its uses.
    """

    name: ClassVar[str] = "to_blocks"

    def __call__(self, module: Module) -> Module:
        return map_functions(module, to_blocks)


def to_blocks(function: Function) -> Function:
    """One function in blocks.

    The body's nodes may be shared within the function, but not with other functions' bodies.
    """
    if is_primitive(function):
        return function
    scopes = _Scopes()
    _place(function.body, scopes)
    lowering = _Lowering(scopes)
    body = run(lowering.block(function.body, 0))
    return replace(function, body=body)


@dataclass(slots=True, eq=False)
class _Scopes:
    """The tree of blocks-to-be: 0 is the function's body. ``of`` maps node ids to scopes, ``inner`` to the scopes a
    node opens.

    Ancestors are found in logarithmic time by jump pointers (each as long as the two before it together, when those
    are equal).
    """

    parent: list[int] = field(default_factory=lambda: [0])
    jump: list[int] = field(default_factory=lambda: [0])
    depth: list[int] = field(default_factory=lambda: [0])
    of: dict[int, int] = field(default_factory=dict)
    inner: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def child(self, parent: int) -> int:
        far = self.jump[parent]
        equal = self.depth[parent] - self.depth[far] == self.depth[far] - self.depth[self.jump[far]]
        self.parent.append(parent)
        self.jump.append(self.jump[far] if equal else parent)
        self.depth.append(self.depth[parent] + 1)
        return len(self.parent) - 1

    def common(self, a: int, b: int) -> int:
        """The innermost scope that contains both."""
        depth, jump, parent = self.depth, self.jump, self.parent
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:
            a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
        return a

    def use(self, node: Expr, scope: int) -> None:
        known = self.of.get(id(node))
        self.of[id(node)] = scope if known is None or known == scope else self.common(known, scope)


def _place(root: Expr, scopes: _Scopes) -> None:
    """Find every node's scope: the innermost one that contains all its uses. Users are visited before what they use."""
    order = list(post_order(root))
    scopes.of[id(root)] = 0
    for node in reversed(order):
        here = scopes.of[id(node)]
        match node:
            case If():
                scopes.use(node.cond, here)
                bodies: tuple[Expr, ...] = (node.then, node.orelse)
            case Match():
                scopes.use(node.data, here)
                bodies = tuple(c.body for c in node.clauses)
            case Function():
                bodies = (node.body,)
            case _:
                for kid in children(node):
                    scopes.use(kid, here)
                continue
        inner = tuple(scopes.child(here) for _ in bodies)
        scopes.inner[id(node)] = inner
        for body, scope in zip(bodies, inner, strict=True):
            scopes.use(body, scope)


@dataclass(slots=True, eq=False)
class _Lowering:
    """Emits bindings into the open scopes.

    ``done`` maps node ids to atoms, ``env`` let-bound variables that are other atoms.
    """

    scopes: _Scopes
    done: dict[int, Expr] = field(default_factory=dict)
    env: dict[Var, Expr] = field(default_factory=dict)
    bindings: dict[int, list[Binding]] = field(default_factory=dict)

    def known(self, e: Expr) -> Expr | None:
        """The atom for an expression that needs no (more) code."""
        if isinstance(e, Var):
            return self.env.get(e, e)
        return e if is_atom(e) else self.done.get(id(e))

    def block(self, body: Expr, scope: int) -> Step[Block]:
        bindings = self.bindings[scope] = []
        result = self.known(body)
        if result is None:
            result = yield self.lower(body, None)
        del self.bindings[scope]
        return Block(tuple(bindings), result, body.ty, body.span)

    def lower(self, e: Expr, var: Var | None) -> Step[Expr]:
        """Emit an expression that has not been emitted yet; the atom that stands for it.

        ``var`` is the name it was let-bound to.
        """
        if isinstance(e, Block):
            for b in e.bindings:
                atom = self.known(b.value)
                if atom is None:
                    atom = yield self.lower(b.value, b.var)
                if atom is b.var:
                    continue
                if says_no_less(atom.ty, b.var.ty):
                    self.env[b.var] = atom
                else:
                    self.bindings[self.scopes.of[id(e)]].append(Binding(b.var, atom))
            result = self.known(e.result)
            if result is None:
                result = yield self.lower(e.result, var)
            self.done[id(e)] = result
            return result
        kids: list[Expr] = []
        for kid in self._strict(e):
            known = self.known(kid)
            kids.append(known if known is not None else (yield self.lower(kid, None)))
        blocks: list[Block] = []
        for body, scope in zip(self._bodies(e), self.scopes.inner.get(id(e), ()), strict=False):
            blocks.append((yield self.block(body, scope)))
        # A let-bound variable with the value's own type keeps its identity; another type is a cast, bound by the
        # caller.
        keeps = var is not None and says_no_less(e.ty, var.ty)
        target = var if var is not None and keeps else Var("t", None, e.ty, e.span)
        self.bindings[self.scopes.of[id(e)]].append(Binding(target, _operation(e, kids, blocks)))
        self.done[id(e)] = target
        return target

    @staticmethod
    def _strict(e: Expr) -> tuple[Expr, ...]:
        match e:
            case Call():
                return e.args if is_primitive(e.fn) else (e.fn, *e.args)
            case If():
                return (e.cond,)
            case Match():
                return (e.data,)
            case Function():
                return ()
            case _:
                return children(e)

    @staticmethod
    def _bodies(e: Expr) -> tuple[Expr, ...]:
        match e:
            case If():
                return (e.then, e.orelse)
            case Match():
                return tuple(c.body for c in e.clauses)
            case Function():
                return (e.body,)
            case _:
                return ()


def _operation(e: Expr, kids: list[Expr], blocks: list[Block]) -> Expr:
    """The node over atoms and blocks."""
    match e:
        case Call():
            if is_primitive(e.fn):
                return Call(e.fn, tuple(kids), e.attrs, e.type_args, e.ty, e.span)
            return Call(kids[0], tuple(kids[1:]), e.attrs, e.type_args, e.ty, e.span)
        case Tuple():
            return Tuple(tuple(kids), e.ty, e.span)
        case Proj():
            return Proj(kids[0], e.index, e.ty, e.span)
        case RefNew():
            return RefNew(kids[0], e.ty, e.span)
        case RefRead():
            return RefRead(kids[0], e.ty, e.span)
        case RefWrite():
            return RefWrite(kids[0], kids[1], e.ty, e.span)
        case Grad():
            return Grad(kids[0], e.ty, e.span, e.forward)
        case If():
            return If(kids[0], blocks[0], blocks[1], e.ty, e.span)
        case Match():
            clauses = tuple(Clause(c.pattern, b) for c, b in zip(e.clauses, blocks, strict=True))
            return Match(kids[0], clauses, e.complete, e.ty, e.span)
        case Function():
            return replace(e, body=blocks[0])
        case _:
            raise AssertionError(f"{type(e).__name__} is not an operation")
