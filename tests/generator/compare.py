"""Whether two results are the same value up to rounding."""

from __future__ import annotations

import numpy as np

from relay.ir.value import AdtValue

# Absolute and relative. Values are at most a few tens, programs a few dozen operations deep; half precision may be kept wider inside
# a kernel by one executor than by another.
TOLERANCES = {"float64": 1e-8, "float32": 5e-4, "float16": 6e-2, "bfloat16": 4e-1}


def difference(expected: object, found: object, where: str = "the result") -> str | None:
    """What differs first, or None. Floats are compared by their dtype's tolerance, everything else exactly."""
    todo: list[tuple[object, object, str]] = [(expected, found, where)]
    while todo:
        e, f, at = todo.pop()
        if isinstance(e, tuple | list):
            if type(e) is not type(f) or len(e) != len(f):
                return f"{at}: {_shown(e)} and {_shown(f)}"
            todo.extend((a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(e, f, strict=True)))
        elif isinstance(e, AdtValue):
            if not isinstance(f, AdtValue) or (e.adt, e.constructor, e.tag) != (f.adt, f.constructor, f.tag):
                return f"{at}: {_shown(e)} and {_shown(f)}"
            todo.extend((a, b, f"{at}.{n}") for n, (a, b) in enumerate(zip(e.fields, f.fields, strict=True)))
        elif e is None or f is None:
            if e is not f:
                return f"{at}: {_shown(e)} and {_shown(f)}"
        else:
            found_difference = _arrays(np.asarray(e), np.asarray(f), at)
            if found_difference is not None:
                return found_difference
    return None


def _arrays(
    e: np.ndarray[tuple[int, ...], np.dtype[np.generic]], f: np.ndarray[tuple[int, ...], np.dtype[np.generic]], at: str
) -> str | None:
    if e.dtype != f.dtype or e.shape != f.shape:
        return f"{at}: {e.dtype} {e.shape} and {f.dtype} {f.shape}"
    tolerance = TOLERANCES.get(e.dtype.name)
    if tolerance is None:
        same = bool(np.array_equal(e, f))
    else:
        same = bool(
            np.allclose(e.astype(np.float64), f.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True)
        )
    return None if same else f"{at}: {e.dtype} {e.shape}\n{e}\nand\n{f}"


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:200]
