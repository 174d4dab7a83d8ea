"""Whether a loop comes to every row of a tensor: then what it computes of each can be computed of all, infinite slopes or not.

Known of a loop that counts, by one, between two numbers that are sizes where it is called (``@fold_rows``, up or down).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import cast

from relay.ir.dim import Dim, DimVar, dim_add, dim_bounds, dim_mul, dim_sub, dim_substitute, is_any
from relay.ir.expr import Call, Constant, Expr, Function, If, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.transform.blocks import all_bindings, body_of
from relay.transform.build import type_of
from relay.transform.comparisons import MIRRORED, OPPOSITE
from relay.transform.first_iteration import Turn
from relay.transform.fix_invariants import Invariants, self_calls
from relay.transform.uses import call_sites

# Of comparisons: in which direction what they bound counts, and by how much the last number that holds is off the bound.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "less": (1, -1), "less_equal": (1, 0), "greater": (-1, 1), "greater_equal": (-1, 0),
}  # fmt: skip


@record(slots=True, eq=False)
class CallSites:
    """The calls of a module's functions from outside of them; of a function that is used in another way, or entered, not all are known."""

    module: Module
    entries: Sequence[str]
    _calls: dict[str, list[tuple[str, Call]]] = field(default_factory=dict)
    _escaped: set[str] = field(default_factory=set)
    _values: dict[str, Mapping[Var, Expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        calls, values = call_sites(self.module)
        self._escaped.update(self.entries, values)
        for name, found in calls.items():
            self._calls[name] = [(caller, call) for caller, call in found if caller != name]

    def of(self, name: str) -> Sequence[tuple[str, Call]] | None:
        """The calls of a function, with the names of their callers; None where there may be others."""
        return None if name in self._escaped else self.known(name)

    def known(self, name: str) -> Sequence[tuple[str, Call]]:
        """The calls of a function that the module has, with the names of their callers."""
        return self._calls.get(name, ())

    def values(self, name: str) -> Mapping[Var, Expr]:
        """What the variables of a function are bound to."""
        if name not in self._values:
            self._values[name] = {b.var: b.value for b in all_bindings(body_of(self.module.functions[name]))}
        return self._values[name]


@record(frozen=True, slots=True, eq=False)
class Callers:
    """Some calls of a function, with the names of their callers."""

    sites: CallSites
    calls: Sequence[tuple[str, Call]]


def taken_row(value: Expr) -> tuple[Expr, Expr] | None:
    """The tensor that a row is read of, along its first axis, and the index; None for any other operation."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name != "take":
        return None
    data, index = value.args
    ty, axis = type_of(data), value.attrs.get("axis")
    if value.attrs.get("batch_dims", 0) != 0 or not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        return None
    first = bool(ty.shape) and (axis == 0 or (len(ty.shape) == 1 and axis in (None, -1)))
    return (data, index) if first else None


def visits_all(
    callers: Callers,
    name: str,
    function: Function,
    values: Mapping[Var, Expr],
    shared: Invariants,
    way: Sequence[Turn],
    index: Expr,
    rows: Dim,
) -> bool:
    """Whether the recursive function, which goes on by the last turn of the way alone, comes to all of so many rows at an index, in
    each of these calls. ``values``: what its variables are bound to."""
    if len(way) != 1 or not isinstance(way[0].choice, If):
        return False
    for caller, call in callers.calls:
        outer = Sizes(callers.sites.values(caller), {}, {})
        loop = counting(name, function, values, shared, call, outer, way[0].choice, way[0].side)
        found = None if loop is None else loop.range(index)
        if loop is None or found is None:
            return False
        end = dim_sub(found[1], dim_sub(dim_substitute(rows, loop.sizes.dims.get), 1))
        above, beyond = dim_bounds(found[0])[1], dim_bounds(end)[0]
        if above is None or above > 0 or beyond is None or beyond < 0:
            return False
    return True


@record(frozen=True, slots=True, eq=False)
class Counting:
    """A loop that counts by one, in one call of it: parameter ``counter`` moves by ``step`` from ``start`` as long as ``test`` holds (where
    ``side`` is 0, else as long as it does not). ``sizes``: its integers."""

    sizes: Sizes
    counter: int
    start: Dim
    step: int
    test: Call
    side: int

    def range(self, index: Expr) -> tuple[Dim, Dim, int] | None:
        """The least and the greatest value of an index in the loop, and whether it goes up (1) or down (-1); None where that is not known.
        (Of a loop that makes no step the greatest is below the least.)"""
        assert isinstance(self.test.fn, OpRef)
        side = self.test.fn.name if self.side == 0 else OPPOSITE[self.test.fn.name]
        a, b, at = (self.sizes.line(x) for x in (*self.test.args, index))
        if a is None or b is None or at is None or at[0] not in (1, -1):
            return None
        if a[0] == 0:
            side, a, b = MIRRORED[side], b, a
        way, off = _BOUNDS[side]
        if (a[0], b[0]) != (1, 0) or way != self.step:
            return None
        last = dim_add(dim_sub(b[1], a[1]), off)
        low, high = (self.start, last) if self.step == 1 else (last, self.start)
        low, high = (low, high) if at[0] == 1 else (dim_mul(-1, high), dim_mul(-1, low))
        return dim_add(low, at[1]), dim_add(high, at[1]), at[0] * self.step


def counting(
    name: str,
    function: Function,
    values: Mapping[Var, Expr],
    shared: Invariants,
    call: Call,
    outer: Sizes,
    choice: If,
    side: int,
) -> Counting | None:
    """See a recursive function, called so, as a loop that counts; it goes on by this side of a choice alone. ``values``: what its
    variables are bound to; ``outer``: the integers of its caller."""
    test = values.get(choice.cond) if isinstance(choice.cond, Var) else None
    if not isinstance(test, Call) or not isinstance(test.fn, OpRef) or test.fn.name not in _BOUNDS:
        return None
    if len(call.type_args) != len(function.type_params) or any(map(is_any, cast("Iterable[Dim]", call.type_args))):
        return None
    dims = dict(zip(cast("Iterable[DimVar]", function.type_params), cast("Iterable[Dim]", call.type_args), strict=True))
    params = {function.params[n]: size for n in shared.params if (size := outer.of(call.args[n])) is not None}
    for n, p in enumerate(function.params):
        start = outer.of(call.args[n])
        step = _step(name, function, values, n)
        if start is not None and step is not None:
            sizes = Sizes(values, params, dims, p)
            lines = [sizes.line(a) for a in test.args]
            if any(line is not None and line[0] == 1 for line in lines):
                return Counting(sizes, n, start, step, test, side)
    return None


def _step(name: str, function: Function, values: Mapping[Var, Expr], at: int) -> int | None:
    """By how much a parameter moves with each iteration: 1 or -1, None where that is not so."""
    p, found = function.params[at], set[int]()
    for call in self_calls(name, function):
        line = Sizes(values, {}, {}, p).line(call.args[at])
        if line is None or line[0] != 1 or line[1] not in (1, -1):
            return None
        found.add(cast("int", line[1]))
    return found.pop() if len(found) == 1 else None


@record(frozen=True, slots=True, eq=False)
class Sizes:
    """Integers as sizes: what variables are bound to, the sizes that parameters are, the sizes of a function where it is called, and a
    counter."""

    values: Mapping[Var, Expr]
    params: Mapping[Var, Dim]
    dims: Mapping[DimVar, Dim]
    counter: Var | None = None

    def of(self, e: Expr) -> Dim | None:
        found = self.line(e)
        return None if found is None or found[0] != 0 else found[1]

    def line(self, e: Expr, left: int = 8) -> tuple[int, Dim] | None:
        """How often an integer has the counter in it, and what is added to that; by so many steps back."""
        if isinstance(e, Constant):
            whole = e.data.ndim == 0 and e.data.dtype.kind in "iu"
            return (0, int(e.data)) if whole else None
        if not isinstance(e, Var) or not left:
            return None
        if e is self.counter:
            return 1, 0
        if e in self.params:
            return 0, self.params[e]
        value = self.values.get(e)
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef):
            return None
        match value.fn.name:
            case "cast" if getattr(e.ty, "dtype", None) in ("int64", "int32"):
                return self.line(value.args[0], left - 1)
            case "size_of":
                return self._size(value.attrs["size"])
            case "take":
                return self._size_of_axis(value)
            case "add" | "subtract":
                a, b = (self.line(x, left - 1) for x in value.args)
                if a is None or b is None:
                    return None
                sign = 1 if value.fn.name == "add" else -1
                return a[0] + sign * b[0], dim_add(a[1], dim_mul(sign, b[1]))
            case _:
                return None

    def _size_of_axis(self, take: Call) -> tuple[int, Dim] | None:
        data, index = take.args
        shape = self.values.get(data) if isinstance(data, Var) else None
        if not isinstance(shape, Call) or not isinstance(shape.fn, OpRef) or shape.fn.name != "shape_of":
            return None
        ty = type_of(shape.args[0])
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(index, Constant):
            return None
        return self._size(ty.shape[int(index.data)]) if index.data.ndim == 0 else None

    def _size(self, size: object) -> tuple[int, Dim] | None:
        dim = dim_substitute(cast("Dim", size), self.dims.get)
        return None if is_any(dim) else (0, dim)
