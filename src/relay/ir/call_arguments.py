"""Arguments of a call from Python: those given by name in their places, and lists of numbers as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import TypeError_
from relay.ir.dtypes import holds, numpy_dtype
from relay.ir.types import is_float

Array = npt.NDArray[Any]


def placed(entry: str, names: Sequence[str], args: Sequence[object], named: Mapping[str, object]) -> list[object]:
    """The arguments of a call of ``@entry`` in the order of its parameters' ``names``, those given by name behind the others. Raises
    TypeError_ for a name that no parameter has, that is given twice, or that is missing."""
    placed = dict(zip(names, args, strict=False))
    for name, arg in named.items():
        if name not in names:
            known = ", ".join(f"%{n}" for n in names) or "none"
            raise TypeError_(f"@{entry} has no parameter %{name}", hint=f"its parameters: {known}")
        if name in placed:
            raise TypeError_(f"@{entry}: the argument %{name} is given twice")
        placed[name] = arg
    missing = [f"%{n}" for n in names if n not in placed]
    if missing:
        raise TypeError_(f"@{entry} lacks {', '.join(missing)}")
    return [placed[n] for n in names]


def adopted(array: Array, dtype: str) -> Array | None:
    """What NumPy makes of plain Python numbers in another dtype, where that can hold them; None where it is of another kind. Raises
    OverflowError where one does not fit."""
    if array.dtype == object and is_float(dtype) and all(isinstance(n, int) for n in array.flat):
        array = array.astype(np.float64)  # integers of Python that no integer of NumPy holds
    kind = array.dtype.kind
    if not ((kind in "fiu" and is_float(dtype)) or (kind in "iu" and dtype != "bool")):
        return None
    with np.errstate(all="ignore"):
        out = array.astype(numpy_dtype(dtype))
    if not holds(out, array):
        raise OverflowError(f"does not fit {dtype}")
    return out


def array_of_list(numbers: list[object], dtype: str) -> Array:
    """A nested list of numbers as an array of this dtype, as the interpreter reads it. Raises ValueError that says what was found."""
    try:
        array: Array = np.array(numbers)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"expected a tensor of {dtype}, found a list that is no array: {error}") from error
    if array.dtype == numpy_dtype(dtype):
        return array
    try:
        out = adopted(array, dtype)
    except OverflowError:
        raise ValueError(f"expected {dtype}, which does not hold what is in the list") from None
    if out is None:
        raise ValueError(f"expected {dtype}, found a list of {array.dtype.name}")
    return out
