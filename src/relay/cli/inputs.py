"""Inputs given on a command line: ``x=data.npy``, ``x=[1, 2, 3]``, ``x=random``, ``n=32`` for a dimension."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import FileError, OutOfMemoryError, RelayError, TypeError_
from relay.ir.dtypes import holds, numpy_dtype

Array = npt.NDArray[Any]
Spec = Mapping[str, Any]
RANDOM_SIZE = 16  # a dimension that nobody fixes


def arguments(params: Sequence[Spec], given: Sequence[str], dims: Sequence[str], seed: int) -> list[object]:
    """One value per parameter from ``name=value`` texts; parameters that are not named get seeded random tensors."""
    if seed < 0:
        raise RelayError(f"the seed must not be negative: {seed}")
    by_name = _named(given)
    sizes = {name: _size(name, value) for name, value in _named(dims).items()}
    names = [p["name"] for p in params]
    for name in by_name:
        if name not in names:
            raise RelayError(f"the entry has no parameter %{name}", hint=f"it has: {', '.join(names) or 'none'}")
    axes = sorted({axis for p in params for axis in _axes(p["type"])})
    for name in sizes:
        if name not in axes:
            raise RelayError(
                f"no parameter of the entry has an axis of size {name}", hint=f"sizes are: {', '.join(axes) or 'none'}"
            )
    random = np.random.default_rng(seed)
    return [_value(p["name"], p["type"], by_name.get(p["name"], "random"), sizes, random) for p in params]


def _named(texts: Sequence[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.lstrip("%")
        if not equals or not name:
            raise RelayError(f"{text!r} is not of the form name=value")
        if name in out:
            raise RelayError(f"{name} is given twice, as {out[name]!r} and as {value!r}")
        out[name] = value
    return out


def _axes(spec: Spec) -> Iterator[str]:
    """The names of the sizes that random tensors of this type are given."""
    if spec["kind"] == "tensor":
        yield from (d for d in spec["shape"] if isinstance(d, str))
    elif spec["kind"] == "tuple":
        for field in spec["fields"]:
            yield from _axes(field)


def _size(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 19 or int(value) >= 1 << 63:
        raise RelayError(f"the size of dimension {name} must be a number below 2^63, not {value!r}")
    return int(value)


def _value(name: str, spec: Spec, text: str, sizes: dict[str, int], random: np.random.Generator) -> object:
    if spec["kind"] != "tensor":
        if spec["kind"] == "tuple" and text == "random":
            return tuple(_value(f"{name}.{n}", f, text, sizes, random) for n, f in enumerate(spec["fields"]))
        raise TypeError_(
            f"%{name} is not a tensor: it cannot be given on the command line", hint="call the program from Python"
        )
    dtype = numpy_dtype(spec["dtype"])
    if text == "random":
        return _random(name, spec, dtype, sizes, random)
    if text.endswith(".npy"):
        try:
            loaded: Array = np.load(text, allow_pickle=False)
        except FileNotFoundError as error:
            raise FileError(f"no such file: {text}") from error
        except Exception as error:  # NumPy raises many kinds for a damaged file
            raise FileError(f"cannot read an array from {text}: {error}") from error
        if not isinstance(loaded, np.ndarray):
            raise FileError(f"cannot read an array from {text}: it holds several")
        # The format has no name for element types that are not NumPy's own: `relay run -o` leaves their bytes there.
        nameless = np.dtype((np.void, dtype.itemsize))
        return loaded.view(dtype) if dtype.kind == "V" and loaded.dtype == nameless else loaded
    try:
        literal = np.asarray(_literal(text))
        if literal.dtype.kind not in "biuf":
            raise ValueError("not numbers")
        with np.errstate(all="ignore"):  # what does not fit is refused below
            value: Array = literal.astype(dtype)
    except (ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise RelayError(
            f"cannot read a value of %{name} from {text!r}", hint="give a number, a nested list, a .npy file, or random"
        ) from error
    if not holds(value, literal):
        raise RelayError(f"{text} does not fit in {spec['dtype']}, which %{name} is made of")
    return value


class _NamedNumbers(ast.NodeTransformer):
    """``inf`` and ``nan`` as the numbers they name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _literal(text: str) -> Any:
    return ast.literal_eval(_NamedNumbers().visit(ast.parse(text, mode="eval")))


def _random(name: str, spec: Spec, dtype: np.dtype[Any], sizes: dict[str, int], random: np.random.Generator) -> Array:
    shape = tuple(
        d if isinstance(d, int) else sizes.get(d, RANDOM_SIZE) if isinstance(d, str) else RANDOM_SIZE
        for d in spec["shape"]
    )
    try:
        if dtype.kind == "b":
            return random.random(shape) < 0.5
        if dtype.kind in "iu":
            return random.integers(0, 2, shape).astype(dtype)
        return random.standard_normal(shape).astype(dtype)
    except (MemoryError, ValueError) as error:  # NumPy's ValueError: more than an address holds
        raise OutOfMemoryError(f"out of memory: a random %{name} of shape {shape}") from error
