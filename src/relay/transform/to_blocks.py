"""Any program to blocks: graph sharing becomes scoping, in this one place."""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import ClassVar, TypeGuard

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
    OpRef,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.regions import Region
from relay.ir.trampoline import Step, run
from relay.ir.walk import children, post_order
from relay.transform.access import fusible
from relay.transform.base import Pass
from relay.transform.blocks import is_atom, is_primitive, map_functions, says_no_less


@record(frozen=True, slots=True)
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
    if _is_fused(function):
        return function
    places, top = _place(function.body)
    return _in_blocks(function, run(_Lowering(places).block(function.body, top)))


def _is_fused(e: Expr) -> TypeGuard[Function]:
    """Whether this is a primitive as fusion leaves it."""
    if not is_primitive(e) or not isinstance(e.body, Block):
        return False
    return is_atom(e.body.result) and all(
        isinstance(b.value, Tuple | Proj) or (isinstance(b.value, Call) and _is_expression(b.value.fn))
        for b in e.body.bindings
    )


def _is_expression(e: Expr) -> bool:
    return isinstance(e, OpRef) and fusible(e.name) is not None


def _in_blocks(function: Function, body: Block) -> Function:
    """A function with its body in blocks. A text may call any function a primitive: it is one like others, and what is one kernel
    is decided anew."""
    attrs = {name: value for name, value in function.attrs.items() if name != "Primitive"}
    return replace(function, body=body, attrs=MappingProxyType(attrs))


@record(slots=True, eq=False)
class _Places:
    """``of`` maps node ids to the region that a node belongs to, ``inner`` to the regions that a node opens."""

    of: dict[int, Region] = field(default_factory=dict)
    inner: dict[int, tuple[Region, ...]] = field(default_factory=dict)

    def use(self, node: Expr, region: Region) -> None:
        known = self.of.get(id(node))
        self.of[id(node)] = region if known is None or known is region else known.common(region)


def _place(root: Expr) -> tuple[_Places, Region]:
    """Find every node's place, the innermost region that contains all its uses, and the outermost region.

    Users are visited before what they use.
    """
    order = list(post_order(root))
    places = _Places()
    top = places.of[id(root)] = Region(None, root)
    for node in reversed(order):
        here = places.of[id(node)]
        match node:
            case If():
                places.use(node.cond, here)
                bodies: tuple[Expr, ...] = (node.then, node.orelse)
            case Match():
                places.use(node.data, here)
                bodies = tuple(c.body for c in node.clauses)
            case Function():
                bodies = (node.body,)
            case _:
                for kid in children(node):
                    places.use(kid, here)
                continue
        inner = tuple(Region(here, node) for _ in bodies)
        places.inner[id(node)] = inner
        for body, region in zip(bodies, inner, strict=True):
            places.use(body, region)
    return places, top


@record(slots=True, eq=False)
class _Lowering:
    """Emits bindings into the open regions.

    ``done`` maps node ids to atoms, ``env`` let-bound variables that are other atoms.
    """

    places: _Places
    done: dict[int, Expr] = field(default_factory=dict)
    env: dict[Var, Expr] = field(default_factory=dict)
    bindings: dict[Region, list[Binding]] = field(default_factory=dict)

    def known(self, e: Expr) -> Expr | None:
        """The atom for an expression that needs no (more) code."""
        if isinstance(e, Var):
            return self.env.get(e, e)
        return e if is_atom(e) else self.done.get(id(e))

    def block(self, body: Expr, region: Region) -> Step[Block]:
        bindings = self.bindings[region] = []
        result = self.known(body)
        if result is None:
            result = yield self.lower(body, None)
        del self.bindings[region]
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
                    self.bindings[self.places.of[id(e)]].append(Binding(b.var, atom))
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
        for body, region in zip(self._bodies(e), self.places.inner.get(id(e), ()), strict=False):
            blocks.append((yield self.block(body, region)))
        # A let-bound variable with the value's own type keeps its identity; another type is a cast, bound by the
        # caller.
        keeps = var is not None and says_no_less(e.ty, var.ty)
        target = var if var is not None and keeps else Var("t", None, e.ty, e.span)
        self.bindings[self.places.of[id(e)]].append(Binding(target, _operation(e, kids, blocks)))
        self.done[id(e)] = target
        return target

    @staticmethod
    def _strict(e: Expr) -> tuple[Expr, ...]:
        match e:
            case Call():
                return e.args if _is_fused(e.fn) else (e.fn, *e.args)
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
            if _is_fused(e.fn):
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
            return _in_blocks(e, blocks[0])
        case _:
            raise AssertionError(f"{type(e).__name__} is not an operation")
