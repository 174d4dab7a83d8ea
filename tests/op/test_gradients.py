"""The derived derivatives of every operator, against finite differences in float64 and against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import relay
from relay.ir.diagnostics import OperatorError, ShapeError
from relay.op import registry
from tests.op import harness as h
from tests.op.harness import Array, Case, Operand
from tests.op.test_compiled import CASES, program

# Operators without a derivative of their own, by reason.
EXCLUDED: Mapping[str, tuple[str, ...]] = {
    "a composition: the program that it stands for is differentiated": ("nn.silu", "std"),
    "a runtime routine: no expression to derive from (sort and topk have rules)": (
        "argsort", "argwhere", "nonzero", "sort", "topk", "unique", "non_max_suppression",
    ),
    "placed after differentiation": ("device_copy",),
    "no operand": ("zeros", "ones", "arange"),
    "no result that is a float": (
        "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
        "left_shift", "right_shift", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan", "isinf",
        "isfinite", "all", "any", "argmax", "argmin", "shape_of", "ndarray_size",
    ),
}  # fmt: skip
NO_DERIVATIVE = frozenset(name for names in EXCLUDED.values() for name in names)

# Where an operator is smooth: what to make of the drawn values.
DOMAINS: Mapping[str, Callable[[Array], Array]] = {
    name: make
    for names, make in (
        (("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "power"), lambda x: np.abs(x) + 0.5),
        (("asin", "acos"), lambda x: x / 5),
        (("nn.batch_norm",), lambda x: np.abs(x) + 0.5),
    )
    for name in names
}


def in_float64(operands: Sequence[Operand], attrs: Mapping[str, Any]) -> tuple[list[Operand], dict[str, Any]]:
    """The operands and attributes with every float as float64."""

    def wide(x: Array) -> Array:
        return x.astype(np.float64) if x.dtype.name in h.FLOATS else x

    made = [tuple(wide(e) for e in x) if isinstance(x, tuple) else wide(x) for x in operands]
    return made, {k: "float64" if v in h.FLOATS else v for k, v in attrs.items()}


def flat(operands: Sequence[Operand]) -> list[Array]:
    return [e for x in operands for e in (x if isinstance(x, tuple) else (x,))]


def unflat(arrays: Sequence[Array], like: Sequence[Operand]) -> list[Operand]:
    rest = iter(arrays)
    return [tuple(next(rest) for _ in x) if isinstance(x, tuple) else next(rest) for x in like]


def results(name: str, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> tuple[list[Array], bool]:
    made = h.apply(name, *operands, **dict(attrs))
    return (list(made), True) if isinstance(made, tuple) else ([made], False)


def weighed(out: Array, cotangent: Array) -> float:
    """The sum of products; what has no weight may be nan."""
    return float(np.sum(np.where(cotangent == 0, 0, out) * cotangent))


def slope(
    name: str, operands: Sequence[Operand], attrs: Mapping[str, Any], cots: list[Array], n: int, d: Array
) -> float:
    """The derivative of the weighed results along direction ``d`` of operand ``n``, by central differences."""

    def at(step: float) -> float:
        arrays = flat(operands)
        arrays[n] = arrays[n] + step * d
        out, _ = results(name, unflat(arrays, operands), attrs)
        return sum(weighed(o, c) for o, c in zip(out, cots, strict=True) if o.dtype == np.float64)

    wide, near = 1e-4, 5e-5
    coarse, fine = ((at(s) - at(-s)) / (2 * s) for s in (wide, near))
    return (4 * fine - coarse) / 3  # Richardson: the error is of fourth order


def check(
    name: str, operands: Sequence[Operand], attrs: Mapping[str, Any], generator: np.random.Generator, symbolic: bool
) -> int:
    """Compare vjp with differences and jvp with vjp; how many operands had a cotangent."""
    with np.errstate(all="ignore"):
        out, many = results(name, operands, attrs)
    floats = [n for n, x in enumerate(flat(operands)) if x.dtype == np.float64]
    if not any(o.dtype == np.float64 for o in out) or any(np.isnan(o).any() for o in out):
        return 0
    # An infinite result (the maximum of nothing) has no derivative.
    cots = [np.where(np.isfinite(o), generator.standard_normal(o.shape), 0).astype(o.dtype) for o in out]
    given_: Operand = tuple(cots) if many else cots[0]
    directions = [generator.standard_normal(x.shape) if x.dtype == np.float64 else x for x in flat(operands)]
    total = 0.0
    for n in floats:
        own = flat(operands)[n]
        got = h.apply(f"{name}.vjp{n}", *operands, given_, symbolic=symbolic, **dict(attrs))
        assert got.shape == own.shape and got.dtype == own.dtype
        wanted = slope(name, operands, attrs, cots, n, directions[n])
        found = float(np.sum(got * directions[n]))
        total += found
        scale = 1 + abs(wanted)
        assert abs(found - wanted) <= 2e-5 * scale, f"{name}.vjp{n}: {found}, by differences {wanted}"
    if registry.get(name).shape_mode == "independent":
        tangents = unflat(directions, operands)
        moved = h.apply(f"{name}.jvp", *operands, *tangents, symbolic=symbolic, **dict(attrs))
        forward = sum(
            weighed(t, c)
            for t, c, o in zip(moved if many else [moved], cots, out, strict=True)
            if o.dtype == np.float64
        )
        assert abs(forward - total) <= 1e-7 * (1 + abs(total)), f"{name}.jvp: {forward}, vjp gives {total}"
    return len(floats)


def smooth(name: str, operands: Sequence[Operand], generator: np.random.Generator) -> list[Operand]:
    """The operands moved to where the operator is smooth: no two elements equal, none at a step."""

    def moved(x: Array) -> Array:
        if x.dtype != np.float64:
            return x
        apart: Array = x + 0.05 * generator.standard_normal(x.shape)
        return DOMAINS[name](apart) if name in DOMAINS else apart

    return unflat([moved(x) for x in flat(operands)], operands)


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_every_derivative(case: Case, request: pytest.FixtureRequest) -> None:
    checked = 0

    @seed(5)
    @settings(
        max_examples=request.config.getoption("--gradient-examples"),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        nonlocal checked
        operands, attrs = in_float64(*case.draw(data.draw))
        if sum(x.size for x in flat(operands)) > 4000:
            return
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        checked += check(
            case.name,
            smooth(case.name, operands, generator),
            attrs,
            generator,
            data.draw(st.booleans()) and case.symbolic,
        )

    run()
    assert checked > 0, "nothing was drawn that has a derivative"


def narrowed(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype == np.float64 else x


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


# One operator of each form of gradient: products, windows, choices, scans, indexed reads, views, several results.
COMPILED = (
    "nn.dense", "nn.batch_matmul", "einsum", "nn.conv2d", "nn.conv2d_transpose", "nn.max_pool2d", "nn.avg_pool2d", "nn.softmax",
    "nn.layer_norm", "nn.attention", "cumsum", "cumprod", "prod", "max", "take", "gather", "gather_nd", "concatenate", "split",
    "nn.pad", "reshape", "tile", "image.resize2d", "nn.depth_to_space", "strided_slice", "add", "power", "where", "nn.gelu",
)  # fmt: skip


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_compiled_derivatives(case: Case, request: pytest.FixtureRequest, cache: Path) -> None:
    everything = request.config.getoption("--gradient-examples") > 20
    if not everything and case.name not in COMPILED:
        pytest.skip("compiled with --gradient-examples above 20")

    @seed(7)
    @settings(
        max_examples=2, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        operands, attrs = in_float64(*case.draw(data.draw))
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        made = smooth(case.name, operands, generator)
        operands = unflat([narrowed(x) for x in flat(made)], made)
        attrs = {k: "float32" if v == "float64" else v for k, v in attrs.items()}
        out, many = results(case.name, operands, attrs)
        cots = [generator.standard_normal(o.shape).astype(o.dtype) for o in out]
        given_: Operand = tuple(cots) if many else cots[0]
        for n, x in enumerate(flat(operands)):
            if x.dtype != np.float32:
                continue
            name = f"{case.name}.vjp{n}"
            wanted = h.apply(name, *operands, given_, **attrs)
            whole = (*operands, given_)
            symbolic = case.symbolic and data.draw(st.booleans())
            try:
                run_ = relay.compile(program(name, whole, attrs, symbolic), cache_dir=cache)
            except ShapeError:
                if symbolic:  # an attribute tells a size that a variable leaves open
                    continue
                raise
            h.close(np.asarray(run_(*flat(whole))), wanted, {"float32": 1e-4})

    run()


def test_unknown_derivatives() -> None:
    for name in ("nn.dense.vjp2", "nn.dense.vjp", "no.such.vjp0", "zeros.vjp0"):
        with pytest.raises(OperatorError):
            registry.get(name)
