"""Inputs given on a command line: ``x=data.npy``, ``x=[1, 2, 3]``, ``t=Node(Leaf(random), Leaf(random))``, ``n=32`` for a dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relay.cli.values import RANDOM, Values, holds_data
from relay.executable.sizes import names_in
from relay.executable.values import Signature, Spec, sizes_of
from relay.ir.diagnostics import RelayError


def arguments(signature: Signature, given: Sequence[str], dims: Sequence[str], seed: int) -> list[object]:
    """One value per parameter from ``name=value`` texts; parameters that are not named get seeded random values."""
    return requests(signature, given, dims, seed, 1)[0]


def requests(
    signature: Signature, given: Sequence[str], dims: Sequence[str], seed: int, count: int
) -> list[list[object]]:
    """The arguments of several calls, which have their tensors in common (the same objects): those are weights."""
    if seed < 0:
        raise RelayError(f"the seed must not be negative: {seed}")
    params = signature.params
    by_name = _named(given)
    sizes = {name: _size(name, value) for name, value in _named(dims).items()}
    names = [p["name"] for p in params]
    for name in by_name:
        if name not in names:
            raise RelayError(f"the entry has no parameter %{name}", hint=f"it has: {', '.join(names) or 'none'}")
    axes = {axis for p in params for size in sizes_of(p["type"]) for axis in names_in(size)}
    axes |= {p["name"] for p in params if holds_data(p["type"])}
    for name in sizes:
        if name not in axes:
            raise RelayError(
                f"no parameter of the entry has an axis of size {name}",
                hint=f"sizes are: {', '.join(sorted(axes)) or 'none'}",
            )
    values = Values(signature.adts, sizes, np.random.default_rng(seed))

    def value(p: Spec) -> object:
        return values.value(p["name"], p["type"], by_name.get(p["name"], RANDOM))

    first = [value(p) for p in params]
    others = (
        [one if p["type"]["kind"] == "tensor" else value(p) for p, one in zip(params, first, strict=True)]
        for _ in range(1, count)
    )
    return [first, *others]


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


def _size(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 19 or int(value) >= 1 << 63:
        raise RelayError(f"the size of dimension {name} must be a number below 2^63, not {value!r}")
    return int(value)
