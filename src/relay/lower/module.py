"""A planned module and its kernels' object code to an executable image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from relay.codegen.kernels import ObjectCode
from relay.executable.bytecode import FunctionCode
from relay.executable.format import EntryPoint, ExecutableImage, KernelEntry, Operand
from relay.ir.diagnostics import CompileError
from relay.ir.dim import DimVar
from relay.ir.expr import Call, Function
from relay.ir.span import Span
from relay.ir.types import TensorType
from relay.loop.ir import TURN
from relay.loop.target import Target
from relay.loop.walk import free_axes
from relay.lower.devices import place_devices
from relay.lower.emit import emit_function
from relay.lower.entry import emit_entry
from relay.lower.planning import ModulePlan
from relay.lower.signature import entry_info
from relay.lower.sizes import UnknownSize
from relay.lower.unit import Planned, Unit
from relay.lower.work import kernel_work
from relay.transform.blocks import all_bindings, body_of, is_primitive
from relay.transform.dead_code import BESIDE
from relay.transform.dims import DimUses
from relay.typing.relations import located


def lower(
    plan: ModulePlan, signatures: Mapping[str, Function], objects: Sequence[ObjectCode], target: Target
) -> ExecutableImage:
    """Emit every function, an entry wrapper for each of ``signatures`` (the entries as the user declared them) and for what answers
    many requests of them, and the tables.

    ``objects`` are the object codes of ``plan.kernels`` in order.
    """
    module = plan.module
    order = list(module.functions)
    unit = Unit({name: n for n, name in enumerate(order)}, plan.planned, plan.shapes, plan.scalars, plan.recurrences)
    batches = {str(f.attrs[BESIDE]): n for n, f in module.functions.items() if BESIDE in f.attrs}
    devices = place_devices(module, (*signatures, *batches.values()))
    codes: list[FunctionCode] = []
    for name in order:
        with _about(module.functions[name]):
            codes.append(emit_function(unit, module, name, module.functions[name], devices))
    entries: list[EntryPoint] = []
    for name, declared in (*signatures.items(), *((n, module.functions[n]) for n in batches.values())):
        with _about(declared):
            codes.append(emit_entry(unit, name, module.functions[name]))
        dtypes: list[str | None] = []
        for param in declared.params:
            dtype = param.ty.dtype if isinstance(param.ty, TensorType) else None
            if dtype is not None and not isinstance(dtype, str):
                raise CompileError(f"@{name} is an entry, so the type of %{param.name} must be known", declared.span)
            dtypes.append(dtype)
        info = entry_info(module, declared, name, batches.get(name), unit.closures)
        entries.append(EntryPoint(name, len(codes) - 1, info, tuple(dtypes)))
    code_of = dict(zip(map(id, plan.kernels), objects, strict=True))
    compiled = [code_of[id(p.plan)] for p in unit.kernels]
    distinct = {code.symbol: code.data for code in compiled}
    numbers = {symbol: n for n, symbol in enumerate(distinct)}
    return ExecutableImage(
        functions=tuple(codes),
        constants=tuple(unit.constants),
        kernels=tuple(_kernel(p, numbers[c.symbol], c.symbol) for p, c in zip(unit.kernels, compiled, strict=True)),
        objects=tuple(distinct.values()),
        messages=tuple(unit.messages),
        routines=tuple(unit.routines),
        entries=tuple(entries),
        triple=target.triple,
        features=target.features,
    )


@contextmanager
def _about(function: Function) -> Iterator[None]:
    """Errors without a place are about the function."""
    try:
        yield
    except UnknownSize as error:
        raise located(error, _first_needed(error.variable, function) or function.span) from None
    except CompileError as error:
        raise located(error, function.span) from None


def _first_needed(variable: DimVar, function: Function) -> Span | None:
    """Where the function first makes a tensor of this size, or an operation is given it."""
    uses = DimUses()
    for outer in all_bindings(body_of(function)):
        value = outer.value
        inside = all_bindings(body_of(value.fn)) if isinstance(value, Call) and is_primitive(value.fn) else ()
        for b in (*inside, outer):
            span: Span | None = b.value.span
            if span is not None and variable in (*uses.of_type(b.var.ty), *uses.of_value(b.value)):
                return span
    return None


def _kernel(planned: Planned, number: int, symbol: str) -> KernelEntry:
    """The entry of a kernel whose code is object ``number``."""
    kernel = planned.plan.kernel
    shared_with = {out: source for source, out in kernel.in_place}
    operands: list[Operand] = []
    for n, (buffer, ty) in enumerate(zip(kernel.inputs, planned.inputs, strict=True)):
        packed = any(p.input_index == n for p in planned.plan.packs)
        # (An input that is read as words of several elements is given as what it is.)
        dtype = buffer.dtype if packed else str(ty.dtype)
        operands.append(Operand(dtype, len(buffer.shape) if packed else _rank(ty), buffer.alignment))
    for n, (buffer, ty) in enumerate(zip(kernel.outputs, planned.outputs, strict=True)):
        operands.append(Operand(buffer.dtype, _rank(ty), buffer.alignment, shared_with.get(n, -1)))
    return KernelEntry(
        kernel.name,
        number,
        symbol,
        tuple(operands),
        len(kernel.outputs),
        len(kernel.dims),
        kernel_work(planned.plan),
        TURN in free_axes(kernel.body),
    )


def _rank(ty: TensorType) -> int:
    assert isinstance(ty.shape, tuple)
    return len(ty.shape)
