"""Which tensors of a block live in its arena: those whose every use is known and ends inside the block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from relay.ir.expr import Block, Call, ConstructorRef, Expr, Function, If, Match, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType, TupleType, Type
from relay.ir.walk import children
from relay.lower.liveness import nested_blocks

# What a variable's value is made of: the key of a tensor, a tuple of such, or something unknown (None).
Origin = int | tuple["Origin", ...] | None


@record(slots=True, eq=False)
class Tensors:
    """The candidate tensors of one block by key: where each is made and last read, and which escape."""

    origin: dict[Var, Origin] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    escaped: set[int] = field(default_factory=set)

    def keys_of(self, e: Expr) -> list[int]:
        """The keys of every tensor reachable through the value of an atom."""
        if not isinstance(e, Var):
            return []
        out: list[int] = []
        todo = [self.origin.get(e)]
        while todo:
            origin = todo.pop()
            if isinstance(origin, tuple):
                todo.extend(origin)
            elif origin is not None:
                out.append(origin)
        return out


def is_primitive_call(e: Expr) -> bool:
    """A call of a fused primitive."""
    return isinstance(e, Call) and isinstance(e.fn, Function)


def barriers(block: Block, tail: bool, keeps: bool, known: dict[Block, bool]) -> list[int]:
    """The positions at which what is dead should not be held: calls, whose functions may take much memory and call this one again, and
    branches that make tensors. Not what the block ends with in ``tail`` position, if it is a call, which takes the frame's place, or if
    the function ``keeps`` its memory. ``known``: what was found of blocks inside, before and now: who asks of a block asks of
    those inside of it, too."""
    count = len(block.bindings)
    if tail and count and block.result is block.bindings[-1].var:
        value = block.bindings[-1].value
        count -= keeps or not isinstance(value, If | Match)
    return [
        n
        for n, b in enumerate(block.bindings[:count])
        if _leaves(b.value) or any(_holds(i, known) for i in nested_blocks(b.value))
    ]


def keeps_memory(
    tails: Iterable[Block], is_view: Callable[[str], bool], only_reads: Callable[[str], bool]
) -> Step[bool]:
    """Whether a loop's memory should stay for its next iteration, from the blocks in tail position: where a single one makes tensors that
    stay in it, and nothing in any is a barrier, so that all that is kept is used again by every iteration that comes to it."""
    makers = 0
    known: dict[Block, bool] = {}
    for block in tails:
        if barriers(block, True, True, known):
            return False
        made: list[Var] = []

        def outputs_of(var: Var, made: list[Var] = made) -> Origin:
            if _is_scalars(var.ty):
                return None
            made.append(var)
            return len(made) - 1

        tensors: Tensors = yield analyse(block, outputs_of, is_view, only_reads)
        makers += len(tensors.escaped) < len(made)
    return makers <= 1


def _leaves(value: Expr) -> bool:
    """Whether a value is a call that leaves the function."""
    return isinstance(value, Call) and not isinstance(value.fn, Function | OpRef | ConstructorRef)


def _holds(root: Block, known: dict[Block, bool]) -> bool:
    """Whether a block, or one inside of it, has a call that leaves the function, or makes tensors; each block is looked at once."""
    todo = [root]
    while todo:
        block = todo[-1]
        if block in known:
            todo.pop()
            continue
        if any(_leaves(b.value) or _makes_tensors(b.value) for b in block.bindings):
            known[block] = True
            continue
        inner = [i for b in block.bindings for i in nested_blocks(b.value)]
        missing = [i for i in inner if i not in known]
        if not missing:
            known[block] = any(known[i] for i in inner)
        todo += missing
    return known[root]


def _makes_tensors(e: Expr) -> bool:
    return is_primitive_call(e) and not _is_scalars(e.ty)


def _is_scalars(ty: Type | None) -> bool:
    """Whether a value is unboxed: a tensor of one element without axes, or a tuple of such."""
    if isinstance(ty, TupleType):
        return all(isinstance(f, TensorType) and f.shape == () for f in ty.fields)
    return isinstance(ty, TensorType) and ty.shape == ()


def analyse(
    block: Block, outputs_of: Callable[[Var], Origin], is_view: Callable[[str], bool], only_reads: Callable[[str], bool]
) -> Step[Tensors]:
    """Find intervals and escapes. ``outputs_of`` gives keys to what a primitive call makes; ``is_view`` and ``only_reads`` tell
    operators that pass on their first argument's memory, and that keep no reference to any argument."""
    tensors = Tensors()
    for position, binding in enumerate(block.bindings):
        value = binding.value
        if is_primitive_call(value):
            origin = outputs_of(binding.var)
            tensors.origin[binding.var] = origin
            for key in tensors.keys_of(binding.var):
                tensors.start[key] = tensors.end[key] = position
        yield _use(value, binding.var, position, tensors, is_view, only_reads)
    tensors.escaped.update(tensors.keys_of(block.result))
    return tensors


def _use(
    value: Expr,
    var: Var,
    position: int,
    tensors: Tensors,
    is_view: Callable[[str], bool],
    only_reads: Callable[[str], bool],
) -> Step[None]:
    for operand in children(value):
        for key in tensors.keys_of(operand):
            tensors.end[key] = position
    match value:
        case Var():
            tensors.origin[var] = tensors.origin.get(value)
        case Tuple():
            tensors.origin[var] = tuple(tensors.origin.get(f) if isinstance(f, Var) else None for f in value.fields)
        case Proj():
            whole = tensors.origin.get(value.tuple) if isinstance(value.tuple, Var) else None
            tensors.origin[var] = whole[value.index] if isinstance(whole, tuple) else None
        case Call(fn=Function()):
            pass
        case Call(fn=OpRef(name=name)) if is_view(name):
            source = value.args[0]
            tensors.origin[var] = tensors.origin.get(source) if isinstance(source, Var) else None
        case Call(fn=OpRef(name=name)) if only_reads(name):
            pass
        case If() | Match() if tensors.start:  # without tensors there is nothing to find inside, however deep it goes
            for inner in nested_blocks(value):
                for binding in inner.bindings:
                    yield _use(binding.value, binding.var, position, tensors, is_view, only_reads)
                tensors.escaped.update(tensors.keys_of(inner.result))
                for key in tensors.keys_of(inner.result):
                    tensors.end[key] = position
        case _:
            for operand in children(value):
                tensors.escaped.update(tensors.keys_of(operand))
