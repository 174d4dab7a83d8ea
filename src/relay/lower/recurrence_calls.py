"""Calls of the kernels that loops of numbers are (`relay.lower.recurrence`)."""

from __future__ import annotations

from relay.ir.expr import Block, Function, Var
from relay.lower.frame import Frame, Place
from relay.lower.kernel_calls import HOST, KernelCalls
from relay.lower.liveness import Uses
from relay.lower.recurrence import Fields, Recurrence, variables_of
from relay.lower.scalars import emit_scalars
from relay.lower.storage import tensor_bytes
from relay.lower.unit import Planned


def emit_recurrence(
    loop: Recurrence, planned: Planned, function: Function, frame: Frame, kernels: KernelCalls, uses: Uses
) -> Block:
    """Emit all steps of a function that is such a loop; the block that the function goes on with.

    The vectors that grow have no variable before they have grown: their sizes are those that they have then.
    """
    asm, sizes = frame.asm, frame.sizes
    grows: dict[Var, int] = {}
    for register, param in enumerate(function.params):
        _begin(loop.fields.get(param, param), register, loop, frame, grows)
    counted = [frame.value(a) for a in loop.counted]
    sizes.set(loop.steps, emit_scalars(loop.trips, counted, asm.reg, asm.emit, sizes)[0])
    inputs = [frame.value(a) for a in loop.operands]
    outputs: list[int] = []
    for ty in planned.outputs:
        assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
        outputs.append(asm.reg("" if ty.shape else ty.dtype))
        if ty.shape:
            asm.emit("AllocFresh", outputs[-1], sizes.register(tensor_bytes(ty)), ty.dtype, HOST, sizes.all(ty.shape))
        else:
            asm.emit("AllocScalar", outputs[-1], ty.dtype)
    kernels.invoke(planned, [*inputs, *outputs], HOST)
    frame.release_temporaries()
    none, dies = sizes.number("int64", 0), sizes.number("int64", 1)
    for param, more in zip(loop.rows, outputs, strict=False):
        grown, before, count, is_empty = asm.reg(), grows[param], asm.reg("int64"), asm.reg("bool")
        some, end = asm.label(), asm.label()
        # Behind nothing, what was put there is the whole: it need not be copied.
        asm.emit("DimOf", count, before, 0)
        asm.emit("ScalarEq", is_empty, "int64", count, none)
        asm.emit("If", is_empty, some)
        asm.emit("Take", grown, more)
        asm.emit("Goto", end)
        asm.bind(some)
        asm.emit("InvokeRoutine", grown, frame.unit.routine("append"), [before, more, dies])
        asm.emit("Kill", more)
        asm.bind(end)
        asm.emit("Kill", before)
        frame.assign(param, grown)
    for param, value in zip(loop.last, outputs[len(loop.rows) :], strict=True):
        frame.assign(param, value)
    for param, fields in loop.fields.items():
        frame.assign(param, _places(fields, frame))
        frame.release(set(variables_of(fields)))  # what they hold is the tuple's now
    leave = loop.leave(function)
    frame.release(set(function.params) - uses.of_block[id(leave)])
    return leave


def _begin(fields: Fields, register: int, loop: Recurrence, frame: Frame, grows: dict[Var, int]) -> None:
    """What a register holds is a variable, or those of a tuple. Vectors that grow are noted: they have no variable yet."""
    if isinstance(fields, Var):
        if fields in loop.rows:
            grows[fields] = register
        else:
            frame.assign(fields, register)
        return
    for index, part in enumerate(fields):
        held = frame.asm.reg()
        frame.asm.emit("GetField", held, register, index)
        _begin(part, held, loop, frame, grows)
    frame.asm.emit("Kill", register)


def _places(fields: Fields, frame: Frame) -> Place:
    return frame.places[fields] if isinstance(fields, Var) else tuple(_places(f, frame) for f in fields)
