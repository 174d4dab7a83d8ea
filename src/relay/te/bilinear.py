"""Definitions that are sums of products of an element of one operand by an element of another: products of matrices in any form,
convolutions, whatever an einsum of two tensors says."""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.record import record
from relay.te.scalar import Axis, Binary, Cast, Const, Load, Reduce, Scalar, Select, mentioned, walk
from relay.te.tensor import Compute, Placeholder, Stage, Tensor


@record(frozen=True, slots=True, eq=False)
class Factor:
    """What one operand is in such a sum: its number among the inputs, the axes that an element of it moves with, and where that is read;
    None where it is read by way of a stage that copies it, a border for one."""

    operand: int
    axes: frozenset[Axis]
    read: Load | None

    def summed(self, over: frozenset[Axis]) -> frozenset[int] | None:
        """The operand's axes along which elements of one sum lie; None where another stage says so."""
        if self.read is None:
            return None
        return frozenset(n for n, index in enumerate(self.read.indices) if mentioned(index) & over)


@record(frozen=True, slots=True, eq=False)
class Bilinear:
    """``stage`` sums, over the axes ``over``, the product of two factors."""

    stage: Compute
    over: frozenset[Axis]
    factors: tuple[Factor, Factor]

    @property
    def right(self) -> Factor | None:
        """The factor that alone moves along the last axis of the result: the one that kernels have panels of."""
        wide = [a for a in self.stage.axes if a.extent != 1]
        moving = [f for f in self.factors if wide and wide[-1] in f.axes]
        return moving[0] if len(moving) == 1 else None


def bilinear(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Bilinear | None:
    """See a definition as such a sum, in which each of the two operands is read for nothing else. (A guard may leave terms out.)"""
    stage = outputs[0].stage
    if len(outputs) != 1 or not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    body = stage.bodies[0]
    if not isinstance(body, Reduce) or body.kind != "sum":
        return None
    product = body.body
    if isinstance(product, Select) and isinstance(product.b, Const) and product.b.value == 0:
        product = product.a
    product = _unconverted(product)
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    numbers = {t.stage: n for n, t in enumerate(inputs)}
    left, right = (_factor(_unconverted(side), numbers) for side in (product.a, product.b))
    if left is None or right is None or left.operand == right.operand:
        return None
    others = [
        n
        for n in walk(body)
        if isinstance(n, Load) and n is not _unconverted(product.a) and n is not _unconverted(product.b)
    ]
    both = {left.operand, right.operand}
    if any(both & _operands(load, numbers) for load in others):
        return None
    return Bilinear(stage, frozenset(body.axes), (left, right))


def moved(inputs: Sequence[Tensor], output: Tensor) -> Load | None:
    """Where each element of an output is read, if it is one of the first operand's, not converted; None: it is something else."""
    stage = output.stage
    body = stage.bodies[output.index] if isinstance(stage, Compute) else None
    if not isinstance(body, Load) or not isinstance(body.source, Tensor) or body.source.stage is not inputs[0].stage:
        return None
    return body


def _unconverted(value: Scalar) -> Scalar:
    return value.a if isinstance(value, Cast) else value


def _factor(value: Scalar, numbers: dict[Stage, int]) -> Factor | None:
    direct: Load | None = value if isinstance(value, Load) else None
    axes = frozenset(mentioned(value))
    while isinstance(value, Load) and isinstance(value.source, Tensor):
        source = value.source.stage
        if isinstance(source, Placeholder):
            number = numbers.get(source)
            return None if number is None else Factor(number, axes, direct)
        if not isinstance(source, Compute) or len(source.bodies) != 1:
            return None
        value, direct = source.bodies[0], None
        if isinstance(value, Select) and isinstance(value.b, Const):
            value = value.a
    return None


def _operands(load: Load, numbers: dict[Stage, int]) -> set[int]:
    """The inputs that a read comes from in the end."""
    out: set[int] = set()
    todo, seen = [load], set[int]()
    while todo:
        source = todo.pop().source
        if not isinstance(source, Tensor) or id(source.stage) in seen:
            continue
        seen.add(id(source.stage))
        if source.stage in numbers:
            out.add(numbers[source.stage])
        elif isinstance(source.stage, Compute):
            todo += [n for b in source.stage.bodies for n in walk(b) if isinstance(n, Load)]
    return out
