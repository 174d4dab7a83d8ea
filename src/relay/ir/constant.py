"""Constants made from arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import RelayError
from relay.ir.dtypes import dtype_name, numpy_dtype
from relay.ir.expr import Constant
from relay.ir.span import Span
from relay.ir.types import is_float


def make_constant(data: npt.ArrayLike, dtype: str | None = None, span: Span | None = None) -> Constant:
    """A constant. Without ``dtype``: the array's own, and float32, int32 and bool for Python numbers.

    The array is copied unless it is read-only already; its memory is in the machine's byte order, row-major. Raises RelayError
    for what is no array of numbers, and for a number that the base type does not hold: beyond its range, or a fraction as an integer.
    """
    if is_masked(data):
        raise RelayError(
            f"a constant has no mask, and {type(data).__name__} has one", hint="filled() says what stands under it"
        )
    if dtype is None:
        if isinstance(data, np.ndarray | np.generic):
            dtype = dtype_name(data.dtype)
        else:
            given = _numbers(data).dtype
            dtype = {"b": "bool", "i": "int32", "f": "float32"}.get(given.kind) or dtype_name(given)
    array = _converted(data, dtype)
    if array.flags.writeable:
        array = array.copy() if array is data or array.base is not None else array
        array.flags.writeable = False
    return Constant(array, dtype, None, span)


def is_masked(given: object) -> bool:
    """Whether it is an array some of whose elements count as absent: NumPy makes a plain one of it that has numbers there."""
    return hasattr(given, "mask") and hasattr(given, "filled")


def _converted(data: npt.ArrayLike, dtype: str) -> npt.NDArray[Any]:
    wanted = numpy_dtype(dtype)
    if isinstance(data, np.ndarray | np.generic) and data.dtype == wanted:
        return np.array(data, dtype=wanted, order="C", copy=None)
    given = _numbers(data)
    if wanted.kind in "iu" and given.dtype.kind == "f" and isinstance(data, Sequence):
        given = np.array(
            data, dtype=object
        )  # among others of whole numbers no one integer type holds, which NumPy rounds to floats
    try:
        with np.errstate(all="ignore"):
            array = np.array(given, dtype=wanted, order="C")
            exact, found = given.astype(np.float64), array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise RelayError(f"no number of base type {dtype}: {error}") from error
    if dtype == "bool":
        return array
    # Floats are rounded; a finite one that became infinite is beyond their range.
    lost = np.isinf(found) & np.isfinite(exact) if is_float(dtype) else found != exact
    if lost.any():
        raise RelayError(
            f"{dtype} does not hold {given[lost].flat[0]}", hint="convert it beforehand, or use another base type"
        )
    return array


def _numbers(data: npt.ArrayLike) -> npt.NDArray[Any]:
    """An array of numbers, whole ones of any length among them (as objects)."""
    try:
        given = np.asarray(data)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # the last of a tensor that belongs to a framework's gradients
        raise RelayError(
            f"not an array of numbers: {error}", hint="give a NumPy array, or what NumPy can make one of"
        ) from error
    whole = given.dtype.kind == "O" and all(isinstance(n, int) for n in given.flat)
    if given.dtype.kind not in "biufV" and not whole:
        raise RelayError(f"a constant is a number or an array of numbers, not {data!r}")
    return given


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
