"""Which recursive functions are loops, as the gradient of loops (`loop_gradient`) understands them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from relay.ir.dim import DimVar, as_dim, is_any
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, If, OpRef, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type, TypeArg, is_integer, leaf_types
from relay.transform.ad.duals import Lifting, differentiable
from relay.transform.blocks import all_bindings, as_block, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.dims import DimUses
from relay.transform.tail_loops import TailLoop, tail_call
from relay.transform.uses import use_counts
from relay.typing.text import type_text


class Unsuited(Exception):
    """A function, or its gradient, is left to the general scheme; the message says why."""


# What is added to rows of a table in its memory (``rows.add_from``).
ADDED_IN_PLACE = ("float32", "float64")
# Reasons that are found in several places.
INSIDE = "what is differentiated goes through a branch, a match, a reference or a closure inside an iteration"
AT_THE_END = "what is differentiated goes through a branch, a match, a reference or a closure after the last iteration"


class Role(Enum):
    """What a loop does with a parameter.

    ``FIXED``: hands it on as it is. ``COUNTER``: adds a constant to it. ``GROWING``: puts a row behind it, and may read it.
    ``STATE``: computes it anew, tensors (and tuples of them) of the same types in every iteration. ``PLAIN``: the
    same of values that nothing can be differentiated by.
    """

    FIXED = "fixed"
    COUNTER = "counter"
    GROWING = "growing"
    STATE = "state"
    PLAIN = "plain"


@record(frozen=True, slots=True, eq=False)
class Loop(TailLoop):
    """A loop, and what it does with its parameters: ``steps`` are what counters add; ``rows`` what growing parameters get, one row each;
    ``read`` those of them that an iteration reads, too; ``fixed_dims`` the dims that all iterations share."""

    roles: tuple[Role, ...]
    steps: dict[int, int]
    rows: dict[int, Expr]
    read: frozenset[int]
    fixed_dims: frozenset[DimVar]

    @property
    def result(self) -> Type:
        ret = self.function.ret_type
        assert ret is not None
        return ret

    def having(self, role: Role) -> list[int]:
        """The parameters of a role, by position."""
        return [n for n, r in enumerate(self.roles) if r is role]


def loop_of(name: str, function: Function, lifting: Lifting) -> Loop:
    """The function as a loop. Raises Unsuited for one that is none, or has parameters that the gradient of loops does not know."""
    if is_primitive(function) or not all(isinstance(p, DimVar) for p in function.type_params):
        raise Unsuited("it is polymorphic")
    body = body_of(function)
    if function.ret_type is None or not made_of_tensors(function.ret_type, lifting):
        found = "_" if function.ret_type is None else type_text(function.ret_type)
        raise Unsuited(f"its result is of type {found}; that of a loop is made of tensors")
    *before, last = body.bindings or (None,)
    if last is None or not isinstance(last.value, If) or body.result is not last.var:
        raise Unsuited("it does not end with a choice between calling itself and a result")
    branches = (as_block(last.value.then), as_block(last.value.orelse))
    calls = [tail_call(name, b) for b in branches]
    again, leave = branches if calls[0] is not None else branches[::-1]
    call = calls[0] if calls[0] is not None else calls[1]
    if call is None:
        raise Unsuited("it does more after it has called itself, or calls itself through others")
    if _mentions(name, [*before, *all_bindings(leave)]) or _mentions(name, again.bindings[:-1]):
        raise Unsuited("it calls itself in more than one place")
    if len(call.args) != len(function.params) or len(call.type_args) != len(function.type_params):
        raise Unsuited("it does not call itself like it is called")
    dims = frozenset(
        d for d, a in zip(function.type_params, call.type_args, strict=True) if isinstance(d, DimVar) and a == as_dim(d)
    )
    bindings = (*before, *again.bindings[:-1])
    values = {b.var: b.value for b in bindings}
    counts = use_counts(Block(bindings, Tuple(()), TupleType(())))
    roles: list[Role] = []
    steps: dict[int, int] = {}
    rows: dict[int, Expr] = {}
    for n, (param, arg) in enumerate(zip(function.params, call.args, strict=True)):
        roles.append(_role(n, param, arg, values, counts, call, lifting, dims, steps, rows))
    read = frozenset(n for n in rows if counts[function.params[n]] > 1)
    return Loop(
        name, function, tuple(before), last.value.cond, calls[0] is not None, again.bindings[:-1], call, leave,
        tuple(roles), steps, rows, read, dims,
    )  # fmt: skip


def _role(
    n: int,
    param: Var,
    arg: Expr,
    values: Mapping[Var, Expr],
    counts: Mapping[Var, int],
    call: Call,
    lifting: Lifting,
    dims: frozenset[DimVar],
    steps: dict[int, int],
    rows: dict[int, Expr],
) -> Role:
    ty = type_of(param)
    if not lifting.concerns(ty):
        if arg is param:
            return Role.FIXED
        step = constant_step(param, arg, values)
        if step is None:
            return Role.PLAIN
        steps[n] = step
        return Role.COUNTER
    if not made_of_tensors(ty, lifting):
        raise Unsuited(f"parameter %{param.name} is of type {type_text(ty)}; the state of a loop is made of tensors")
    if arg is param and keeps(ty, dims):
        return Role.FIXED
    changing = Unsuited(f"parameter %{param.name} has other sizes in every iteration")
    if arg is param:
        raise changing
    if keeps(ty, dims):
        return Role.STATE
    row = row_behind(param, arg, values, counts, call)
    if row is None or not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        raise changing
    if counts[param] > 1 and ty.dtype not in ADDED_IN_PLACE:
        raise changing
    if not keeps(TensorType(ty.shape[1:], ty.dtype), dims):
        raise changing
    rows[n] = row
    return Role.GROWING


def made_of_tensors(ty: Type, lifting: Lifting) -> bool:
    """Whether differentiable tensors stand in a type only in tuples."""
    todo = [ty]
    while todo:
        t = todo.pop()
        if isinstance(t, TupleType):
            todo += t.fields
        elif not isinstance(t, TensorType) and lifting.concerns(t):
            return False
    return True


def tensors_of(ty: Type) -> list[TensorType]:
    """The differentiable tensors in a type of tuples, in order."""
    return [t for t in leaf_types(ty) if isinstance(t, TensorType) and differentiable(t)]


_USES = DimUses()


def keeps(ty: Type | TypeArg, dims: frozenset[DimVar]) -> bool:
    """Whether a type is the same in all iterations: its sizes are numbers, or dims that all share."""
    match ty:
        case TensorType(shape=tuple() as shape):
            return not any(is_any(d) for d in shape) and all(d in dims for d in _USES.of_type(ty))
        case TupleType():
            return all(keeps(f, dims) for f in ty.fields)
        case _:
            return False


def _mentions(name: str, bindings: Sequence[Binding]) -> bool:
    return any(
        isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name == name
        for b in all_bindings(Block(tuple(bindings), Tuple(()), TupleType(())))
    )


def constant_step(param: Var, arg: Expr, values: Mapping[Var, Expr]) -> int | None:
    """The constant that an integer parameter moves by."""
    ty = param.ty
    if not isinstance(ty, TensorType) or ty.shape != () or not isinstance(ty.dtype, str) or not is_integer(ty.dtype):
        return None
    value = values.get(arg) if isinstance(arg, Var) else None
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in ("add", "subtract"):
        return None
    a, b = value.args
    if value.fn.name == "add" and isinstance(a, Constant):
        a, b = b, a
    if a is not param or not isinstance(b, Constant):
        return None
    by = int(np.asarray(b.data))
    return by if value.fn.name == "add" else -by


def row_behind(param: Var, arg: Expr, values: Mapping[Var, Expr], counts: Mapping[Var, int], call: Call) -> Expr | None:
    """The one row that is put behind a parameter, where nothing reads both together in the same iteration."""
    joined = values.get(arg) if isinstance(arg, Var) else None
    if not isinstance(joined, Call) or not isinstance(joined.fn, OpRef) or joined.attrs.get("axis", 0) != 0:
        return None
    parts = values.get(joined.args[0]) if joined.fn.name == "concatenate" and isinstance(joined.args[0], Var) else None
    if not isinstance(parts, Tuple) or len(parts.fields) != 2 or parts.fields[0] is not param:
        return None
    row = parts.fields[1]
    ty = type_of(row)
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.shape[0] != 1:
        return None
    assert isinstance(arg, Var) and isinstance(joined.args[0], Var)
    once = counts[joined.args[0]] == 1 and counts[arg] == 0
    return row if once and sum(a is arg for a in call.args) == 1 and param not in call.args else None
