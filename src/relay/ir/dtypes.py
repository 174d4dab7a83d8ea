"""Base types as NumPy dtypes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# NumPy before what imports a part of it: else two threads may wait for each other.
# isort: off
import numpy as np
import numpy.typing as npt
import ml_dtypes

# isort: on

from relay.ir.diagnostics import RelayError
from relay.ir.types import DTYPE_BITS, is_float

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
        )
    },
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) dtype of a base type. Raises RelayError for one that no array can hold."""
    found = NUMPY_DTYPES.get(dtype)
    if found is None:
        raise RelayError(
            f"no array holds the base type {dtype!r}", hint=f"base types with values: {', '.join(DTYPE_BITS)}"
        )
    return found


def integer_bounds(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    info = ml_dtypes.iinfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The base type of a NumPy dtype. Raises RelayError for one that is not a base type."""
    found = _NAMES.get(dtype.newbyteorder("=") if dtype.byteorder in "<>" else dtype)
    if found is None:
        raise RelayError(f"arrays of dtype {dtype} have no base type", hint=f"base types: {', '.join(NUMPY_DTYPES)}")
    return found


def holds(made: npt.NDArray[Any], given: npt.NDArray[Any]) -> bool:
    """Whether numbers that were converted to another dtype are what they were, up to the rounding of floating-point numbers."""
    if is_float(made.dtype.name):
        return np.array_equal(np.isinf(made), np.isinf(given))
    return np.array_equal(made.astype(given.dtype), given) and np.array_equal(made < 0, given < 0)
