"""Every operator compiled, for fixed and for symbolic sizes, against its meaning on the same operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import relay
from relay.ir.diagnostics import ShapeError
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import TensorType
from tests.op import harness as h
from tests.op import (
    test_attention,
    test_broadcast,
    test_dynamic,
    test_einsum,
    test_elementwise,
    test_images,
    test_matrix,
    test_reduction,
    test_scatter,
    test_shapes,
)
from tests.op.harness import Array, Case, Operand

CASES = [
    case
    for family in (
        test_attention,
        test_broadcast,
        test_dynamic,
        test_einsum,
        test_elementwise,
        test_images,
        test_matrix,
        test_reduction,
        test_scatter,
        test_shapes,
    )
    for case in family.CASES
]
# Kernels sum in another order and have their own elementary functions; 16-bit results may fall on the other side of a rounding.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}


def program(name: str, operands: Sequence[Operand], attrs: Mapping[str, Any], symbolic: bool) -> Module:
    """A module whose entry applies the operator to its parameters."""
    variables: dict[int, DimVar] = {}
    params: list[Var] = []

    def dim_of(n: int) -> Dim:
        return as_dim(variables.setdefault(n, DimVar(f"n{n}"))) if symbolic and n > 1 else n

    def param(x: Array) -> Var:
        params.append(Var(f"x{len(params)}", TensorType(tuple(dim_of(n) for n in x.shape), x.dtype.name)))
        return params[-1]

    args: list[Expr] = [Tuple(tuple(param(e) for e in x)) if isinstance(x, tuple) else param(x) for x in operands]
    call = Call(OpRef(name), tuple(args), dict(attrs))
    return Module({"main": Function(tuple(params), call, type_params=tuple(variables.values()))})


def check(case: Case, operands: Sequence[Operand], attrs: Mapping[str, Any], symbolic: bool, cache: Path) -> None:
    wanted = h.apply(case.name, *operands, **dict[str, Any](attrs))
    try:
        run = relay.compile(program(case.name, operands, attrs, symbolic), cache_dir=cache)
    except ShapeError:
        if symbolic:  # an attribute tells the size that the variable leaves open
            return
        raise
    got = run(*(e for x in operands for e in (x if isinstance(x, tuple) else (x,))))
    assert isinstance(got, tuple) == isinstance(wanted, tuple)
    for g, w in zip(
        got if isinstance(got, tuple) else (got,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        h.close(np.asarray(g), np.asarray(w), {**TOLERANCE, **case.tolerance})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiled(case: Case, symbolic: bool, cache: Path) -> None:
    if symbolic and not case.symbolic:
        pytest.skip("needs known sizes")

    @h.drawing(3, 2)
    def run(data: st.DataObject) -> None:
        operands, attrs = case.draw(data.draw)
        check(case, operands, attrs, symbolic, cache)

    run()


def test_a_user_operator_works_everywhere(cache: Path) -> None:
    @relay.operator("test.soft_threshold")
    def soft_threshold(x: relay.te.Tensor, *, by: float) -> relay.te.Tensor:
        """x moved towards 0 by ``by``, and 0 if it is nearer than that."""
        size = relay.te.unary
        return relay.te.compute(x.shape, lambda *i: relay.te.maximum(size("abs", x[i]) - by, 0.0) * size("sign", x[i]))

    try:
        n = DimVar("n")
        x = Var("x", TensorType((as_dim(n), 3), "float32"))
        body = relay.op.nn.dense(soft_threshold(x, by=0.5), np.eye(3, dtype=np.float32))
        module = relay.infer_type(Module({"main": Function((x,), body, type_params=(n,))}))
        data = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
        wanted = np.sign(data) * np.maximum(np.abs(data) - 0.5, 0)
        np.testing.assert_allclose(np.asarray(relay.evaluate(module, data)), wanted, atol=1e-6)
        np.testing.assert_allclose(np.asarray(relay.compile(module, cache_dir=cache)(data)), wanted, atol=1e-6)
    finally:
        relay.op.registry.remove("test.soft_threshold")


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_scans_of_every_width(dtype: str, cache: Path) -> None:
    case = next(c for c in CASES if c.name == "cumsum")
    data = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for axis in range(3):
        for symbolic in (False, True):
            check(case, [data], {"axis": axis, "dtype": dtype}, symbolic, cache)


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "sum", "nn.softmax"])
def test_axes_of_one_element(name: str, cache: Path) -> None:
    case = next(c for c in CASES if c.name == name)
    for shape, axis in (((1, 70), 0), ((70, 1), 1), ((1,), 0)):
        data = np.linspace(-1, 1, shape[0] * shape[-1], dtype=np.float32).reshape(shape)
        check(case, [data], {"axis": axis}, False, cache)


@pytest.mark.parametrize("name", ["add", "nn.softmax", "nn.dense", "concatenate", "cumsum", "sum"])
def test_empty_operands(name: str, cache: Path) -> None:
    case = next(c for c in CASES if c.name == name)
    x = np.zeros((3, 0), np.float32)
    attrs: dict[str, Any] = {"axis": 1} if name in ("nn.softmax", "concatenate", "cumsum", "sum") else {}
    operands: Sequence[Operand] = [(x, x)] if name == "concatenate" else [x] if attrs else [x, x]
    for symbolic in (False, True):
        check(case, operands, attrs, symbolic, cache)


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_over_axes_that_lie_apart(name: str, symbolic: bool, cache: Path) -> None:
    """Several axes are counted as one, whatever loops go over them."""
    case = next(c for c in CASES if c.name == name)
    generator = np.random.default_rng(0)
    for shape in ((4, 2, 3), (5, 40, 7), (3, 1, 20), (2, 17, 33)):
        data = generator.integers(-50, 50, shape).astype(np.int32)
        for axis in ((0, 2), (0, 1), (1, 2), None):
            attrs = {"axis": axis, "keepdims": False, "exclude": False, "dtype": "int64"}
            check(case, [data], attrs, symbolic, cache)
            h.check(case, [data], attrs)


@pytest.mark.parametrize("count_include_pad", [False, True])
def test_means_of_windows_with_one_place_along_an_axis(count_include_pad: bool, cache: Path) -> None:
    """How many elements a window covers is computed from its place, also along an axis that has one."""
    case = next(c for c in CASES if c.name == "nn.avg_pool2d")
    for shape, padding in (
        ((2, 3, 2, 3), (0, 0)),
        ((2, 3, 2, 2), (1, 0)),
        ((1, 1, 3, 2), (0, 1)),
        ((2, 3, 2, 2), (0, 0)),
    ):
        data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        attrs = {"pool_size": (2, 2), "strides": (1, 2), "padding": padding, "count_include_pad": count_include_pad}
        check(case, [data], attrs, False, cache)
