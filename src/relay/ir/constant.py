"""Constants made from arrays."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import RelayError
from relay.ir.dtypes import dtype_name, numpy_dtype
from relay.ir.expr import Constant
from relay.ir.span import Span
from relay.ir.types import TensorType


def make_constant(data: npt.ArrayLike, dtype: str | None = None, span: Span | None = None) -> Constant:
    """A constant. Without ``dtype``: the array's own, and float32, int32 and bool for Python numbers.

    The array is copied unless it is read-only already; its memory is in the machine's byte order, row-major.
    """
    if dtype is None:
        if isinstance(data, np.ndarray | np.generic):
            dtype = dtype_name(data.dtype)
        else:
            kind = np.asarray(data).dtype.kind
            dtype = {"b": "bool", "i": "int32", "f": "float32"}.get(kind) or dtype_name(np.asarray(data).dtype)
    array = np.array(data, dtype=numpy_dtype(dtype), order="C", copy=None)
    if array.flags.writeable:
        array = array.copy() if array is data or array.base is not None else array
        array.flags.writeable = False
    return Constant(array, dtype, None, span)


class MissingData:
    """The data of a constant of which only the type is known: a text printed without its metadata says no more.

    It has an array's sizes and nothing else of it: whatever reads the elements (running, compiling, folding) gets a RelayError.
    """

    __slots__ = ("dtype", "number", "shape")

    def __init__(self, number: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __getattr__(self, name: str) -> NoReturn:
        # Copying and pickling ask for their hooks, and NumPy for its protocols, by names like these.
        if name.startswith("__") and not name.startswith("__array"):
            raise AttributeError(name)
        raise self._error()

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise self._error()

    def __getitem__(self, _: object) -> NoReturn:
        raise self._error()

    def __bool__(self) -> NoReturn:
        raise self._error()

    def _error(self) -> RelayError:
        return RelayError(
            f"meta[relay.Constant][{self.number}] has no data: the text was printed without its #[metadata] section",
            hint="print the program with its metadata, or give the values: relay.ir.parser.parse_module(text, constants=[...])",
        )


def missing_constant(number: int, shape: tuple[int, ...], dtype: str, span: Span | None = None) -> Constant:
    """A placeholder for constant ``number`` of a text. Raises RelayError for a base type that no array can hold."""
    data: Any = MissingData(number, shape, numpy_dtype(dtype))
    return Constant(data, dtype, None, span)


def constant_type(constant: Constant) -> TensorType:
    """The tensor type of a constant."""
    return TensorType(tuple(int(n) for n in constant.data.shape), constant.dtype)
