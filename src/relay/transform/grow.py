"""State that grows: appending rows to a tensor that the program carries on costs the new rows, not all of them.

``concatenate((past, new), axis=0)`` in a kernel copies ``past``. Where the result leaves the function again (a key/value cache, the
states of a decoder, an accumulator of results) it becomes `append`, whose result lies in the memory of ``past`` as long as there
is room after it.
"""

from __future__ import annotations

from typing import ClassVar

from relay.ir.expr import (
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
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
from relay.ir.types import DTYPE_BITS, TensorType
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import (
    Forward,
    Scope,
    all_blocks,
    body_of,
    is_primitive,
    map_functions,
    on_several_devices,
)
from relay.transform.build import op_call, type_of


@record(frozen=True, slots=True)
class GrowState(Pass):
    """Append instead of concatenating along the leading axis, where a tensor from outside the function's own kernels is made
    longer and the longer one leaves the function or the iteration.

    Before: typed blocks. After: the same values. Programs that use several devices are left as they are: `append` works on the
    host.
    """

    name: ClassVar[str] = "grow_state"

    def __call__(self, module: Module) -> Module:
        if any(on_several_devices(f) for f in module.functions.values()):
            return module
        return map_functions(module, _grow)


def _grow(function: Function) -> Function:
    if is_primitive(function):
        return function
    leaving = _leaving(body_of(function))

    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        if var not in leaving or not _is_longer(value) or not isinstance(value, Call):
            return value
        parts = driver.definition(value.args[0])
        if not isinstance(parts, Tuple) or len(parts.fields) != 2:
            return value
        data, rows = parts.fields
        if not _carried(data, driver) or not _of_whole_bytes(data):
            return value
        return op_call("append", (data, _row(rows, driver)), span=value.span)

    driver = Forward(visit)
    return driver.function(function)


def _row(rows: Expr, driver: Forward) -> Expr:
    """What was given a leading axis of one row, without it: no view need be made."""
    made = driver.definition(rows)
    if isinstance(made, Call) and isinstance(made.fn, OpRef) and registry.get(made.fn.name).kind == "view":
        row, ty = type_of(made.args[0]), type_of(rows)
        if (
            isinstance(row, TensorType)
            and isinstance(ty, TensorType)
            and isinstance(row.shape, tuple)
            and ty.shape == (1, *row.shape)
        ):
            return made.args[0]
    return rows


def _is_longer(value: Expr) -> bool:
    """Whether this is a concatenation along the leading axis."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name != "concatenate":
        return False
    axis, ty = value.attrs.get("axis", 0), value.ty
    rank = len(ty.shape) if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else 0
    return axis in (0, -rank)


def _of_whole_bytes(e: Expr) -> bool:
    ty = type_of(e)
    return isinstance(ty, TensorType) and isinstance(ty.dtype, str) and DTYPE_BITS.get(ty.dtype, 0) >= 8


def _carried(e: Expr, driver: Forward) -> bool:
    """Whether a tensor comes from outside the kernels of this block: a parameter, a field of one, what a function gave."""
    made = driver.definition(e)
    while isinstance(made, Proj):
        made = driver.definition(made.tuple)
    match made:
        case Var() | RefRead():
            return True
        case Call(fn=OpRef(name="append")):
            return True
        case Call(fn=OpRef() | ConstructorRef()) | Constant():
            return False
        case Call():
            return True
        case _:
            return False


def _leaving(body: Block) -> set[Var]:
    """The variables whose values leave their block or the reach of its kernels: results, arguments of functions, fields of
    what does, what is stored."""
    tuples: dict[Var, Tuple] = {}
    todo: list[Expr] = []
    for block in all_blocks(body):
        todo.append(block.result)
        for binding in block.bindings:
            match binding.value:
                case Call(fn=OpRef()):
                    pass
                case Call(args=atoms):
                    todo += atoms
                case Tuple():
                    tuples[binding.var] = binding.value
                case RefNew(value=v) | RefWrite(value=v):
                    todo.append(v)
                case _:
                    pass
    out: set[Var] = set()
    while todo:
        atom = todo.pop()
        if isinstance(atom, Var) and atom not in out:
            out.add(atom)
            if atom in tuples:
                todo += tuples[atom].fields
    return out
