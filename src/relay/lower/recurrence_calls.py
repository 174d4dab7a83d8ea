"""Calls of the kernels that loops of numbers are (`relay.lower.recurrence`)."""

from __future__ import annotations

from relay.ir.expr import Block, Function
from relay.lower.frame import Frame
from relay.lower.kernel_calls import HOST, KernelCalls
from relay.lower.liveness import Uses
from relay.lower.recurrence import Recurrence
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
    registers = {param: register for register, param in enumerate(function.params)}
    for param, register in registers.items():
        if param not in loop.rows:
            frame.assign(param, register)
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
    dies = sizes.number("int64", 1)
    for param, more in zip(loop.rows, outputs, strict=False):
        grown = asm.reg()
        asm.emit("InvokeRoutine", grown, frame.unit.routine("append"), [registers[param], more, dies])
        asm.emit("Kill", registers[param])
        asm.emit("Kill", more)
        frame.assign(param, grown)
    for param, value in zip(loop.last, outputs[len(loop.rows) :], strict=True):
        frame.assign(param, value)
    leave = loop.leave(function)
    frame.release(set(function.params) - uses.of_block[id(leave)])
    return leave
