"""The middle end's form: flat blocks of operations on atoms, and the one driver that rewrites them.

The body of every function, branch and clause is a `Block`. A binding's value is an operation on atoms (`Call`,
`Tuple`, `Proj`, `RefNew`, `RefRead`, `RefWrite`, `Grad`), an `If` or `Match` on an atom with blocks inside, a
`Function` whose body is a block, or an atom of another type than the variable's (a cast, checked where the variable's
type says more). The result is an atom. A call of a primitive has the primitive `Function` itself in the place of the
called atom; passes do not look inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeGuard

from relay.ir.dim import is_any
from relay.ir.effects import CLOSURE
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
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, Type

# Moving a tensor to another device, which is never fused.
DEVICE_COPY = "device_copy"

Atom = Var | GlobalVar | Constant | OpRef | ConstructorRef


def is_atom(e: Expr) -> TypeGuard[Atom]:
    return isinstance(e, Var | GlobalVar | Constant | OpRef | ConstructorRef)


def is_primitive(e: Expr) -> TypeGuard[Function]:
    """Whether this is a function made by fusion: one kernel, opaque to passes."""
    return isinstance(e, Function) and bool(e.attrs.get("Primitive"))


def is_closure(e: Expr | None) -> TypeGuard[Call]:
    """Whether this makes a closure of a lifted function, its first argument, and of what that captures, the others."""
    return isinstance(e, Call) and isinstance(e.fn, OpRef) and e.fn.name == CLOSURE


def body_of(function: Function) -> Block:
    """The body as a block. Raises TypeError when the function is not in blocks."""
    return as_block(function.body)


def as_block(e: Expr) -> Block:
    if not isinstance(e, Block):
        raise TypeError(f"expected a program in blocks (pass to_blocks), found a {type(e).__name__} as a body")
    return e


def says_no_less(found: Type | None, expected: Type | None) -> bool:
    """Whether a value of type ``found`` may stand for a variable of type ``expected`` without a check."""
    if found is expected or found is None or expected is None:
        return True
    match found, expected:
        case TensorType(shape=tuple() as a, dtype=d), TensorType(shape=tuple() as b, dtype=e):
            return d == e and len(a) == len(b) and all(is_any(y) or x == y for x, y in zip(a, b, strict=True))
        case TupleType(), TupleType():
            return len(found.fields) == len(expected.fields) and all(
                says_no_less(x, y) for x, y in zip(found.fields, expected.fields, strict=True)
            )
        case _:
            return found == expected


def operands(value: Expr) -> tuple[Expr, ...]:
    """The atoms that an operation reads (not those inside nested blocks and primitives)."""
    match value:
        case Call():
            return value.args if is_primitive(value.fn) else (value.fn, *value.args)
        case Tuple():
            return value.fields
        case Proj():
            return (value.tuple,)
        case If():
            return (value.cond,)
        case Match():
            return (value.data,)
        case RefNew():
            return (value.value,)
        case RefRead():
            return (value.ref,)
        case RefWrite():
            return (value.ref, value.value)
        case Grad():
            return (value.fn,)
        case Function() | Block():
            return ()
        case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
            return (value,)


def with_operands(value: Expr, new: Sequence[Expr]) -> Expr:
    """The operation on other atoms, in `operands`' order (the same object when they are the old ones)."""
    old = operands(value)
    if all(a is b for a, b in zip(old, new, strict=True)):
        return value
    match value:
        case Call():
            if is_primitive(value.fn):
                return Call(value.fn, tuple(new), value.attrs, value.type_args, value.ty, value.span)
            return Call(new[0], tuple(new[1:]), value.attrs, value.type_args, value.ty, value.span)
        case Tuple():
            return Tuple(tuple(new), value.ty, value.span)
        case Proj():
            return Proj(new[0], value.index, value.ty, value.span)
        case If():
            return If(new[0], value.then, value.orelse, value.ty, value.span)
        case Match():
            return Match(new[0], value.clauses, value.complete, value.ty, value.span)
        case RefNew():
            return RefNew(new[0], value.ty, value.span)
        case RefRead():
            return RefRead(new[0], value.ty, value.span)
        case RefWrite():
            return RefWrite(new[0], new[1], value.ty, value.span)
        case Grad():
            return Grad(new[0], value.ty, value.span, value.forward)
        case Function() | Block():
            return value
        case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
            return new[0]


def renamed(binding: Binding, names: Mapping[Var, Expr]) -> Binding:
    """The binding with other atoms in the place of some variables that its operation reads (nested blocks are left alone)."""
    if not names:
        return binding
    old = operands(binding.value)
    value = with_operands(binding.value, [names.get(a, a) if isinstance(a, Var) else a for a in old])
    return binding if value is binding.value else Binding(binding.var, value)


def nested_blocks(value: Expr) -> tuple[Block, ...]:
    """The blocks directly inside a binding's value, in order."""
    match value:
        case If():
            return (as_block(value.then), as_block(value.orelse))
        case Match():
            return tuple(as_block(c.body) for c in value.clauses)
        case Function():
            return () if is_primitive(value) else (as_block(value.body),)
        case _:
            return ()


def with_nested_blocks(value: Expr, new: Sequence[Block]) -> Expr:
    """The value with other nested blocks (the same object when they are the old ones)."""
    if all(a is b for a, b in zip(nested_blocks(value), new, strict=True)):
        return value
    match value:
        case If():
            return If(value.cond, new[0], new[1], value.ty, value.span)
        case Match():
            clauses = tuple(Clause(c.pattern, b) for c, b in zip(value.clauses, new, strict=True))
            return Match(value.data, clauses, value.complete, value.ty, value.span)
        case Function():
            return replace(value, body=new[0])
        case _:
            return value


def with_each_nested(value: Expr, new: Callable[[Block], Step[Block]]) -> Step[Expr]:
    """The value with ``new`` of each nested block (the same object when they are the old ones)."""
    made: list[Block] = []
    for block in nested_blocks(value):
        made.append((yield new(block)))
    return with_nested_blocks(value, made)


def all_blocks(root: Block) -> Iterator[Block]:
    """The block and every block inside it, outer ones first. Iterative."""
    todo = [root]
    while todo:
        block = todo.pop()
        yield block
        for binding in block.bindings:
            todo.extend(nested_blocks(binding.value))


def all_bindings(root: Block) -> Iterator[Binding]:
    """Every binding of the block and of the blocks inside it."""
    for block in all_blocks(root):
        yield from block.bindings


def on_several_devices(function: Function) -> bool:
    """Whether a function copies tensors between devices."""
    if is_primitive(function):
        return False
    return any(
        isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and b.value.fn.name == DEVICE_COPY
        for b in all_bindings(body_of(function))
    )


@record(slots=True, eq=False)
class Scope:
    """A block under construction. ``open`` says that its variables may still be used in what is being built."""

    bindings: list[Binding] = field(default_factory=list)
    open: bool = True


# Given the block being built, the variable and its value over rewritten atoms, what to bind instead: the value,
# another operation, an atom (uses of the variable become that atom), or a `Block`, whose bindings are put in front
# and visited themselves.
Visit = Callable[[Scope, Var, Expr], Expr]


@record(slots=True, eq=False)
class Forward:
    """The driver of forward passes: visits every binding in evaluation order, outer before inner, and substitutes on
    the way.

    ``env`` maps replaced variables to atoms, ``definitions`` every bound variable to its value as rewritten so far.
    """

    visit: Visit
    env: dict[Var, Expr] = field(default_factory=dict)
    definitions: dict[Var, Expr] = field(default_factory=dict)

    def function(self, function: Function) -> Function:
        """The function rewritten; the same object when nothing changed."""
        return with_body(function, self.block)

    def definition(self, e: Expr) -> Expr:
        """What an atom stands for: the operation bound to it where that is known, else itself."""
        return self.definitions.get(e, e) if isinstance(e, Var) else e

    def block(self, block: Block) -> Step[Block]:
        scope = Scope()
        env = self.env
        todo: list[Binding] = list(reversed(block.bindings))
        changed = False
        while todo:
            binding = todo.pop()
            var = binding.var
            value = binding.value
            old = operands(value)
            if env:
                value = with_operands(value, [env.get(a, a) if isinstance(a, Var) else a for a in old])
            value = self.visit(scope, var, value)
            if isinstance(value, Block):
                changed = True
                todo.append(Binding(var, value.result))
                todo.extend(reversed(value.bindings))
                continue
            if is_atom(value) and says_no_less(value.ty, var.ty):
                changed = True
                env[var] = value
                continue
            inner = nested_blocks(value)
            if inner:
                rewritten: list[Block] = []
                for b in inner:
                    rewritten.append((yield self.block(b)))
                value = with_nested_blocks(value, rewritten)
            if value is not binding.value:
                changed = True
                binding = Binding(var, value)
            self.definitions[var] = value
            scope.bindings.append(binding)
        scope.open = False
        result = env.get(block.result, block.result) if isinstance(block.result, Var) else block.result
        if not changed and result is block.result and len(scope.bindings) == len(block.bindings):
            return block
        return Block(tuple(scope.bindings), result, block.ty, block.span)


def with_body(function: Function, new: Callable[[Block], Step[Block]]) -> Function:
    """The function with ``new`` of its body, unless it is a primitive; the same object when nothing changed."""
    if is_primitive(function):
        return function
    body = run(new(body_of(function)))
    return function if body is function.body else replace(function, body=body)


def map_functions(module: Module, rewrite: Callable[[Function], Function]) -> Module:
    """The module with every function rewritten; the same module when nothing changed."""
    return module.with_functions({name: rewrite(f) for name, f in module.functions.items()})


def map_bodies(module: Module, new: Callable[[Block], Step[Block]]) -> Module:
    """The module with ``new`` of every function's body, but for primitives; the same module when nothing changed."""
    return map_functions(module, lambda function: with_body(function, new))


def check_blocks(module: Module) -> None:
    """Raise TypeError, naming the place, when the module is not in the form that this file describes."""
    for name, function in module.functions.items():
        if is_primitive(function):
            continue
        for block in all_blocks(body_of(function)):
            for binding in block.bindings:
                if isinstance(binding.value, Block) or not all(is_atom(a) for a in operands(binding.value)):
                    raise TypeError(f"@{name}: the value of %{binding.var.name} is not an operation on atoms")
            if not is_atom(block.result):
                raise TypeError(f"@{name}: a block's result is a {type(block.result).__name__}, not an atom")
