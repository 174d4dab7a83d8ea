"""Room for rows: a loop whose number of steps is known when it begins, and that puts rows behind a tensor in each of them, is
entered with a tensor that has room for all, so that no step moves what the steps before it have made."""

from __future__ import annotations

from itertools import count
from typing import ClassVar, cast

from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Call, Expr, Function, GlobalVar, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, TensorType, TypeArg
from relay.transform.ad.loop_parts import integer, room
from relay.transform.ad.loop_trips import trip_count
from relay.transform.ad.loops import Loop, Role, constant_step
from relay.transform.ad.terms import Code
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive, on_several_devices
from relay.transform.build import op_call, type_of
from relay.transform.tail_loops import tail_loop

_ROOM = "rows.reserve"


@record(frozen=True, slots=True)
class RoomForRows(Pass):
    """Enter loops with room for the rows that they make: where a function does nothing but call itself in tail position until a
    counter reaches a bound (`trip_count`), and gives itself a parameter with some rows behind it (`concatenate` along the leading
    axis), calls of it from outside give it that parameter in memory with room for the rows of all steps.

    Before: typed blocks. After: the same values. Programs that use several devices are left as they are: rows are appended on the
    host.
    """

    name: ClassVar[str] = "room_for_rows"

    def __call__(self, module: Module) -> Module:
        if any(on_several_devices(f) for f in module.functions.values()):
            return module
        loops = {name: found for name, f in module.functions.items() if (found := _loop(name, f)) is not None}
        if not loops:
            return module
        entries = _Entries.of(module, loops)
        return module.with_functions({name: entries.function(name, f) for name, f in module.functions.items()})


@record(frozen=True, slots=True, eq=False)
class _Growing:
    """A loop, and how many rows a step puts behind each of the parameters (by position) that grow."""

    loop: Loop
    rows: dict[int, int]


def _loop(name: str, function: Function) -> _Growing | None:
    """A function as a loop of which some parameters grow."""
    found = tail_loop(name, function)
    if found is None:
        return None
    call = found.call
    values = {b.var: b.value for b in (*found.before, *found.again)}
    roles: list[Role] = []
    steps: dict[int, int] = {}
    rows: dict[int, int] = {}
    for n, (param, arg) in enumerate(zip(function.params, call.args, strict=True)):
        step = constant_step(param, arg, values)
        more = _rows_behind(param, values.get(arg) if isinstance(arg, Var) else None, values)
        if more is not None:
            rows[n] = more
        if step is not None:
            steps[n] = step
        roles.append(Role.FIXED if arg is param else Role.COUNTER if step is not None else Role.PLAIN)
    if not rows:
        return None
    dims = frozenset(
        d
        for d, a in zip(function.type_params, call.type_args, strict=False)
        if isinstance(d, DimVar) and a == as_dim(d)
    )
    loop = Loop(name, function, found.before, found.cond, found.on, found.again, call, found.leave,
                tuple(roles), steps, {}, frozenset(), dims)  # fmt: skip
    return _Growing(loop, rows)


def _rows_behind(param: Var, longer: Expr | None, values: dict[Var, Expr]) -> int | None:
    """How many rows are put behind a parameter."""
    if not isinstance(longer, Call) or not isinstance(longer.fn, OpRef) or longer.fn.name != "concatenate":
        return None
    parts = values.get(longer.args[0]) if isinstance(longer.args[0], Var) else None
    if longer.attrs.get("axis", 0) != 0 or not isinstance(parts, Tuple) or len(parts.fields) != 2:
        return None
    ty = type_of(parts.fields[1])
    if parts.fields[0] is not param or not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        return None
    whole = isinstance(ty.dtype, str) and DTYPE_BITS.get(ty.dtype, 0) >= 8
    return ty.shape[0] if whole and isinstance(ty.shape[0], int) and ty.shape[0] > 0 else None


def _is_room(value: Call) -> bool:
    return isinstance(value.fn, OpRef) and value.fn.name == _ROOM


@record(slots=True, eq=False)
class _Entries:
    """Calls of loops from outside."""

    loops: dict[str, _Growing]
    rooms: count[int]
    # By function: its parameters, what its variables are, and the calls of it by others (the caller and the arguments).
    params: dict[str, tuple[Var, ...]]
    values: dict[str, dict[Var, Expr]]
    sites: dict[str, list[tuple[str, tuple[Expr, ...]]]]

    @staticmethod
    def of(module: Module, loops: dict[str, _Growing]) -> _Entries:
        functions = {name: f for name, f in module.functions.items() if not is_primitive(f)}
        values = {name: {b.var: b.value for b in all_bindings(body_of(f))} for name, f in functions.items()}
        sites: dict[str, list[tuple[str, tuple[Expr, ...]]]] = {}
        highest = 0
        for name, known in values.items():
            for value in known.values():
                if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name != name:
                    sites.setdefault(value.fn.name, []).append((name, value.args))
                elif isinstance(value, Call) and _is_room(value):
                    highest = max(highest, cast(int, value.attrs["number"]))
        return _Entries(loops, count(highest + 1), {name: f.params for name, f in functions.items()}, values, sites)

    def function(self, name: str, function: Function) -> Function:
        if is_primitive(function):
            return function

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name == name:
                return value
            found = self.loops.get(value.fn.name)
            return value if found is None else self._entered(scope, name, value, found)

        driver = Forward(visit)
        return driver.function(function)

    def _has_room(self, arg: Expr, function: str) -> bool:
        """Whether what a function hands on has room already: whoever wrote the loop knew, there or where the function is called."""
        seen: set[str] = set()
        while function not in seen and isinstance(arg, Var):
            seen.add(function)
            value = self.values[function].get(arg)
            if isinstance(value, Call) and _is_room(value):
                return True
            sites = self.sites.get(function, [])
            if arg not in self.params[function] or len(sites) != 1:
                return False
            position = self.params[function].index(arg)
            function, args = sites[0]
            arg = args[position]
        return False

    def _entered(self, scope: Scope, caller: str, call: Call, found: _Growing) -> Call:
        params = found.loop.function.type_params
        if len(call.type_args) != len(params):
            return call
        dims: dict[DimVar, TypeArg] = {
            d: a for d, a in zip(params, call.type_args, strict=True) if isinstance(d, DimVar)
        }
        code = Code()
        trips = trip_count(code, found.loop, call.args, dims)
        if trips is None:
            return call
        args = list(call.args)
        for n, rows in found.rows.items():
            if self._has_room(args[n], caller):
                continue
            all_rows = trips if rows == 1 else code.bind(op_call("multiply", (trips, integer(rows))))
            args[n] = code.bind(room(args[n], all_rows, next(self.rooms)), "room")
        if all(a is b for a, b in zip(args, call.args, strict=True)):
            return call
        scope.bindings += code.bindings
        return Call(call.fn, tuple(args), call.attrs, call.type_args, call.ty, call.span)
