"""Reductions down few columns, several steps beside each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.bounds import unproved
from relay.loop.ir import For
from relay.loop.walk import statements
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

A, K, D = (DimVar(name) for name in "akd")
DIMS = (A, K, D)
COLUMNS = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 40, 64, 65, 70)
STEPS = (0, 1, 255, 256, 257, 301, 1021)
BUILDS: dict[str, Callable[[Maker, Expr], Expr]] = {
    "sum": lambda m, x: m("sum", x, axis=1),
    "max": lambda m, x: m("max", x, axis=1),
    "sum of squares": lambda m, x: m("sum", m("multiply", x, x), axis=1),
    "variance": lambda m, x: m("variance", x, axis=1),
    "logsumexp": lambda m, x: m("logsumexp", x, axis=1),
    "softmax": lambda m, x: m("nn.softmax", x, axis=1),
    "log_softmax": lambda m, x: m("nn.log_softmax", x, axis=1),
    "distance": lambda m, x: m("subtract", x, m("sum", m("exp", x), axis=1, keepdims=True)),
}


def _around(least: int) -> tuple[int, ...]:
    """As many steps as are taken beside each other, and fewer."""
    return max(least, 256) - 1, max(least, 256), max(least, 256) + 77


def _beside(plan: KernelPlan) -> bool:
    """Whether sums of several steps beside each other are added up."""
    return any(isinstance(s, For) and s.var.name == "again" for s in statements(plan.kernel.body))


@pytest.mark.parametrize("target", ["cpu", "x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", BUILDS)
def test_unknown_sizes(name: str, target: str) -> None:
    given = tensor(tuple(as_dim(v) for v in DIMS))
    sizes = [dict(zip(DIMS, (2, k, d), strict=True)) for d in COLUMNS for k in (STEPS if d == 3 else _around(64 * d))]
    chosen = parse_target(target) if target != "cpu" else None
    plan = check(primitive([given], BUILDS[name]), *sizes, target=chosen, tolerance=1e-4)
    assert _beside(plan)


@pytest.mark.parametrize("name", BUILDS)
def test_nothing_is_read_outside(name: str) -> None:
    build = primitive([tensor((as_dim(K), as_dim(D)))], lambda m, x: BUILDS[name](m, m("expand_dims", x, axis=0)))
    assert unproved(make_plan(build, ZEN4).kernel) == []


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17])
@pytest.mark.parametrize("steps", [15, 300, None])
def test_known_columns(columns: int, steps: int | None) -> None:
    for name, build in BUILDS.items():
        given = tensor((3, as_dim(K) if steps is None else steps, columns))
        sizes = [{}] if steps else [{K: k} for k in STEPS]
        plan = check(primitive([given], build), *sizes, tolerance=1e-4)
        if name == "sum":
            assert _beside(plan) == (columns > 1 and columns <= (16 if steps is None else 4 if steps == 300 else 0))
        if name in ("softmax", "log_softmax", "distance") and steps is None:
            assert _beside(plan) == (columns > 1), (
                "two to four went one after the other, each by every second to fourth element"
            )


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "int64"])
def test_types(dtype: str) -> None:
    sizes = [{K: k, D: d} for d in (0, 1, 3, 6, 9, 33) for k in (0, 17, 256, 600)]
    for name in ("sum", "max"):
        build = primitive([tensor((as_dim(K), as_dim(D)), dtype)], lambda m, x, name=name: m(name, x, axis=0))
        plan = check(build, *sizes, tolerance=1e-2 if dtype in ("float16", "bfloat16") else 1e-5)
        assert _beside(plan)


def test_nan_and_infinities_come_through() -> None:
    x = np.ones((300, 3), np.float32)
    x[7, 0], x[290, 1], x[33, 2] = np.nan, np.inf, -np.inf
    for name in ("sum", "max", "min"):
        run = relay.compile(
            f'#[version = "0.0.5"]\ndef @main[k: Dim, d: Dim](%x: Tensor[(k, d), float32]) {{ {name}(%x, axis=[0]) }}'
        )
        np.testing.assert_array_equal(np.asarray(run(x)), getattr(np, name)(x, axis=0))


def test_what_depends_on_the_step_is_summed_as_it_was() -> None:
    """A place, and what is read at a place that another operand says."""
    ids = tensor((as_dim(K),), "int32")
    given = [tensor((as_dim(K), as_dim(D))), ids]
    fn = primitive(given, lambda m, x, i: m("sum", m("take", x, i, axis=0), axis=0))
    rng = np.random.default_rng(0)

    def inputs(env: object) -> list[np.ndarray]:
        k, d = env[K], env[D]  # type: ignore[index]
        return [rng.standard_normal((k, d)).astype("float32"), rng.integers(0, k, k).astype("int32")]

    check(fn, *({K: k, D: d} for k in (1, 300) for d in (1, 3, 20)), inputs=inputs, tolerance=1e-4)


@pytest.mark.parametrize("shape", [(4, 3000, 40), (1, 5000, 3), (4, 3000, 17), (2, 9000, 64), (4, 3000, 65)])
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for text in (
        "[a: Dim, k: Dim, d: Dim](%x: Tensor[(a, k, d), float32])",
        f"[k: Dim, d: Dim](%x: Tensor[({shape[0]}, k, d), float32])",
    ):
        for body in ("sum(%x, axis=[1])", "logsumexp(%x, axis=[1])", "sum(%x, axis=[0, 1])", "nn.softmax(%x, axis=1)"):
            program = f'#[version = "0.0.5"]\ndef @main{text} {{ {body} }}'
            one, two = (np.asarray(relay.compile(program, threads=n)(x)) for n in (1, 2))
            np.testing.assert_array_equal(one, two)


def test_numbers_of_columns_are_those_of_their_block() -> None:
    """Columns that are more than a block, and blocks that threads share: what another kernel made of a column is read there."""
    body = "nn.log_softmax(%x * 2f - logsumexp(%x, axis=[0], keepdims=True), axis=0)"
    program = f"""#[version = "0.0.5"]
    def @main[k: Dim, d: Dim](%x: Tensor[(k, d), float32]) {{ {body} }}"""
    runs = [relay.compile(program, threads=n) for n in (1, 2)]
    rng = np.random.default_rng(0)
    for shape in ((300, 3), (65, 257), (40, 2100), (400, 33)):
        x = rng.standard_normal(shape).astype("float32")
        one, two = (np.asarray(run(x)) for run in runs)
        np.testing.assert_allclose(one, np.asarray(relay.evaluate(relay.parse(program), x)), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(one, two)
