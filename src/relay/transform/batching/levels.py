"""The functions that go through the levels of a structure: from the leaves up, and from the roots down.

def @f.levels(level, depth, offsets, states..., carried...) {     # up; @f.down goes the other way, to level 1
  if (level <= depth) { ...; @f.levels(level + 1, depth, offsets, new states..., carried...) } else { states }
}
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

import numpy as np

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, TypeArg
from relay.transform.batching.lifted import Emitter
from relay.transform.build import constant, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses

INDEX = "int64"
SCALAR = TensorType((), INDEX)


def fresh(name: str) -> Dim:
    return as_dim(DimVar(name))


def integer(value: int) -> Expr:
    return constant(np.array(value, np.int64), INDEX)


@record(slots=True, eq=False)
class State:
    """A tensor that the levels write to, row by row: what it is before the first level (``first``), in the function before and after
    a level, and at the end. ``ty`` is its type for one node."""

    ty: TensorType
    inside: Var
    new: Expr
    final: Var
    first: Expr | None = None


class Levels:
    """The function of the levels while its code is made: ``block`` is what is done on a level."""

    def __init__(self, offsets: Var, depth: Var, down: bool = False) -> None:
        self.offsets, self.depth, self.down = offsets, depth, down
        self.block = Emitter()
        self.at, self.last = param("level", SCALAR), param("depth", SCALAR)
        self.offsets_in = param("offsets", type_of(offsets))
        self.states: list[State] = []
        # What the function takes along, by what it is given.
        self.carried: dict[Var, Var] = {}

    @property
    def here(self) -> tuple[Expr, Expr]:
        """What says which rows a level has."""
        return self.offsets_in, self.at

    def state(self, name: str, ty: TensorType, full: Type) -> State:
        """A state more, of type ``ty`` for one node and ``full`` for all."""
        inside = param(name, full)
        self.states.append(State(ty, inside, inside, Var(name, None, full)))
        return self.states[-1]

    def carry(self, var: Var) -> Var:
        """The function's variable for one of the function around it."""
        known = self.carried.get(var)
        if known is None:
            known = self.carried[var] = param(var.name, type_of(var))
        return known

    def call(self, name: str, taken: Collection[str], root: Function, out: Emitter) -> tuple[str, Function]:
        """Call the function; its name and the function itself."""
        for p in root.params:
            # What says the sizes that the code mentions comes along.
            if isinstance(p.ty, TensorType) and root.type_params:
                self.carry(p)
        target, function, dims = self._function(name, taken)
        first, last = (self.depth, integer(1)) if self.down else (integer(1), self.depth)
        rooms = [cast(Expr, s.first) for s in self.states]
        ret = TupleType(tuple(type_of(s.final) for s in self.states))
        call = Call(target, (first, last, self.offsets, *rooms, *self.carried), type_args=_as_dims(dims), ty=ret)
        done = out.bind("done", call, ret)
        out.bindings += [Binding(s.final, Proj(done, n, s.final.ty)) for n, s in enumerate(self.states)]
        return target.name, function

    def _function(self, name: str, taken: Collection[str]) -> tuple[GlobalVar, Function, tuple[DimVar, ...]]:
        """``@f.levels(level, last, offsets, states, carried)``: do this level and the next ones; the states at the end."""
        states = [s.inside for s in self.states]
        given = (self.at, self.last, self.offsets_in, *states, *self.carried.values())
        ret = TupleType(tuple(type_of(s) for s in states))
        uses = DimUses()
        dims = tuple(dict.fromkeys(d for p in given for d in uses.of_type(p.ty)))
        whole = FuncType(tuple(type_of(p) for p in given), ret, dims)
        while name in taken:
            name += "_"
        target = GlobalVar(name, whole)
        then = self.block
        following = then.op("add", (self.at, integer(-1 if self.down else 1)), SCALAR, "next")
        args = (following, self.last, self.offsets_in, *(s.new for s in self.states), *self.carried.values())
        again = then.bind("rest", Call(target, args, type_args=_as_dims(dims), ty=ret), ret)
        done = Emitter()
        end = done.bind("states", Tuple(tuple(states), ret), ret)
        start = Emitter()
        compared = "greater_equal" if self.down else "less_equal"
        more = start.op(compared, (self.at, self.last), TensorType((), "bool"), "more")
        branch = If(more, Block(tuple(then.bindings), again, ret), Block(tuple(done.bindings), end, ret), ret)
        result = start.bind("result", branch, ret)
        function = Function(given, Block(tuple(start.bindings), result, ret), ret, dims, ty=whole)
        copier = Copier(own_dims=True)
        copied = copier.function(function)
        new_dims = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(d)))) for d in dims)
        ty = copied.ty
        assert isinstance(ty, FuncType)
        return target, replace(copied, type_params=new_dims, ty=FuncType(ty.params, ty.ret, new_dims)), dims


def param(name: str, ty: Type) -> Var:
    """A parameter of a function that is made."""
    return Var(name, ty, ty)


def _as_dims(dims: tuple[DimVar, ...]) -> tuple[TypeArg, ...]:
    return tuple(as_dim(d) for d in dims)
