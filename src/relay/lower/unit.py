"""What the functions of one executable share: constants, messages, kernels, routines, and the numbers of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import numpy.typing as npt

from relay.ir.dim import Dim
from relay.ir.expr import Constant
from relay.ir.mapped import content_digest, release
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.lower.recurrence import Recurrence
from relay.lower.scalars import ScalarCode
from relay.plan.kernel_plan import KernelPlan

Array = npt.NDArray[np.generic]

# Bytes of a constant that are looked at first.
_SAMPLES = 256


@record(frozen=True, slots=True, eq=False)
class Planned:
    """A primitive with its plan: the types of its operands and results in the dims of this occurrence, and what each of the plan's kernel
    dims is here, in their order: kernels are shared by primitives that differ in that. ``upper_bound``: the last output holds the real
    extents of the others' first axes."""

    plan: KernelPlan
    dims: tuple[Dim, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    upper_bound: bool = False


@record(slots=True, eq=False)
class Unit:
    """Tables under construction. ``planned`` maps the id of a primitive `Function` to its plan, ``scalars`` to its instructions,
    ``recurrences`` the name of a loop that is one kernel to that. ``closures``: the functions that closures are made of, by their
    numbers, and how many of their parameters those capture."""

    functions: Mapping[str, int]
    planned: Mapping[int, Planned]
    shape_planned: Mapping[int, Planned]
    scalars: Mapping[int, ScalarCode]
    recurrences: Mapping[str, tuple[Recurrence, Planned]]
    constants: list[tuple[Array, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    kernels: list[Planned] = field(default_factory=list)
    routines: list[str] = field(default_factory=list)
    closures: dict[int, tuple[str, int]] = field(default_factory=dict)
    # Constants that may be equal, and of these what their contents come to, which takes as long as reading them.
    _alike: dict[tuple[str, tuple[int, ...], bytes], list[int]] = field(default_factory=dict)
    _digests: dict[int, bytes] = field(default_factory=dict)
    _by_identity: dict[int, tuple[Array, int]] = field(default_factory=dict)
    _message_of: dict[str, int] = field(default_factory=dict)
    _kernel_of: dict[int, int] = field(default_factory=dict)

    def constant(self, constant: Constant) -> int:
        """The number of a constant; equal contents are stored once."""
        known = self._by_identity.get(id(constant.data))
        if known is not None and known[0] is constant.data:
            return known[1]
        data = np.ascontiguousarray(constant.data).reshape(constant.data.shape)
        alike = self._alike.setdefault((constant.dtype, data.shape, _samples(data)), [])
        index = self._equal(data, alike)
        if index is None:
            index = len(self.constants)
            self.constants.append((data, constant.dtype))
            alike.append(index)
        release(data)
        self._by_identity[id(constant.data)] = (constant.data, index)
        return index

    def _equal(self, data: Array, alike: list[int]) -> int | None:
        """Which of some constants has these contents."""
        if not alike:
            return None
        own = content_digest(data)
        for index in alike:
            if index not in self._digests:
                self._digests[index] = content_digest(self.constants[index][0])
            if self._digests[index] == own:
                return index
        self._digests[len(self.constants)] = own
        return None

    def closure(self, name: str, captured: int) -> int:
        """The number of a function of which a closure is made."""
        number = self.functions[name]
        self.closures[number] = (name, captured)
        return number

    def message(self, text: str) -> int:
        """The number of a message."""
        index = self._message_of.get(text)
        if index is None:
            index = self._message_of[text] = len(self.messages)
            self.messages.append(text)
        return index

    def kernel(self, planned: Planned) -> int:
        """The number of a kernel."""
        index = self._kernel_of.get(id(planned.plan))
        if index is None:
            index = self._kernel_of[id(planned.plan)] = len(self.kernels)
            self.kernels.append(planned)
        return index

    def routine(self, name: str) -> int:
        """The number of a runtime routine."""
        if name not in self.routines:
            self.routines.append(name)
        return self.routines.index(name)


def _samples(data: Array) -> bytes:
    """Some bytes of an array, all of a small one: constants that differ nearly always differ there, and then nobody reads them whole."""
    every = max(1, data.nbytes // _SAMPLES) | 1  # odd, so that each byte of an element is met
    return data.reshape(-1).view(np.uint8)[::every].tobytes()
