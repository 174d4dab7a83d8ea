"""What definitions read at sums of index variables is inside of their operands: proved, refused, or asked for when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError, ShapeError
from relay.ir.dim import dim_mul, dim_sub
from relay.loop.ir import Fail
from relay.loop.walk import statements
from relay.op.registry import operator
from relay.options import Options
from relay.pipeline import build


@operator("test.reach_add")
def reach_add(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i] + y[i])


@operator("test.reach_next")
def reach_next(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i + 1])


@operator("test.reach_before")
def reach_before(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i - 1])


@operator("test.reach_steps")
def reach_steps(x: te.Tensor) -> te.Tensor:
    return te.compute((dim_sub(x.shape[0], 1),), lambda i: x[i + 1] - x[i])


@operator("test.reach_back")
def reach_back(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[te.size(dim_sub(x.shape[0], 1), "int64") - i])


@operator("test.reach_half")
def reach_half(x: te.Tensor) -> te.Tensor:
    return te.compute((dim_mul(x.shape[0], 2),), lambda i: x[i // 2])


@operator("test.reach_less_first")
def reach_less_first(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i] - y[0])


@operator("test.reach_product")
def reach_product(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(x.shape[1])
    return te.compute((x.shape[0], y.shape[1]), lambda i, j: te.sum(x[i, k] * y[k, j], k))


@operator("test.reach_chosen")
def reach_chosen(x: te.Tensor) -> te.Tensor:
    last = te.size(dim_sub(x.shape[0], 1), "int64")
    return te.compute(x.shape, lambda i: te.select(i < last, x[i + 1], te.const(0.0, "float32")))


@operator("test.reach_demanded")
def reach_demanded(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    te.require_at_most(x.shape[0], y.shape[0], "y has a row for each of x")
    return te.compute(x.shape, lambda i: x[i] + y[i])


def _floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _main(operands: str, op: str) -> relay.Module:
    names = ", ".join(f"%{name}" for name in "xy"[: operands.count(";") + 1])
    params = ", ".join(
        f"%{name}: Tensor[({shape}), float32]" for name, shape in zip("xy", operands.split(";"), strict=False)
    )
    return relay.parse(f'#[version = "0.0.5"]\ndef @main[n: Dim, m: Dim]({params}) {{ test.reach_{op}({names}) }}')


def _results(module: relay.Module, *args: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(relay.compile(module, cache=False)(*args)), np.asarray(relay.evaluate(module, *args))]


@pytest.mark.parametrize("operands", ["n,; m,", "n,; 2,", "?,; m,", "?,; ?,", "5,; ?,"])
def test_sizes_known_at_run_time(operands: str) -> None:
    module = _main(operands, "add")
    y = 2 if "2" in operands else 5
    if y == 5:
        for result in _results(module, _floats(5), _floats(5)):
            assert np.array_equal(result, _floats(5) * 2)
    for run in (relay.compile(module, cache=False), lambda *args: relay.evaluate(module, *args)):
        with pytest.raises(ExecutionError, match=r"index 0 of y|y of shape \[2\] is read outside: its index 0 is 2"):
            run(_floats(5), _floats(2))


@pytest.mark.parametrize(
    ("operands", "op"),
    [
        ("5,; 2,", "add"),
        ("n,", "next"),
        ("n,", "before"),
        ("4,", "next"),
        ("n, 8; 7, m", "product"),
        ("n,; 0,", "less_first"),
    ],
)
def test_what_is_outside_whatever_the_sizes_are(operands: str, op: str) -> None:
    with pytest.raises(ShapeError, match=r"index 0 of [xy] \(of size .*\) (goes to|begins at)"):
        relay.infer_type(_main(operands, op))


def test_a_read_that_is_outside_because_two_sizes_differ_is_said_to_be_that() -> None:
    text = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 3), float32]) { reshape(%x, newshape=[n, 4]) }'
    with pytest.raises(ShapeError, match=r"sizes of reshape's operand and result must agree: 3\*n and 4\*n"):
        relay.infer_type(relay.parse(text))


@pytest.mark.parametrize(
    ("operands", "op", "shapes"),
    [
        ("n,; n,", "add", [(3,), (3,)]),
        ("n,; m,", "add", [(2,), (5,)]),
        ("n,; m,", "add", [(0,), (0,)]),
        ("n,", "steps", [(5,)]),
        ("n,", "steps", [(1,)]),
        ("n,", "back", [(5,)]),
        ("n,", "back", [(0,)]),
        ("n,", "half", [(5,)]),
        ("n,", "half", [(0,)]),
        ("n,; m,", "less_first", [(3,), (1,)]),
        ("n,; m,", "less_first", [(0,), (0,)]),
        ("n, m; 7, n", "product", [(3, 7), (7, 3)]),
        ("n, m; 7, n", "product", [(0, 8), (7, 0)]),
        ("n,", "chosen", [(4,)]),
    ],
)
def test_inside(operands: str, op: str, shapes: list[tuple[int, ...]]) -> None:
    compiled, judged = _results(_main(operands, op), *(_floats(*shape) for shape in shapes))
    assert np.array_equal(compiled, judged)


def test_what_the_author_demands_is_not_asked_twice() -> None:
    module = _main("n,; m,", "demanded")
    assert np.array_equal(_results(module, _floats(2), _floats(3))[0], _floats(2) * 2)
    with pytest.raises(ExecutionError, match="y has a row for each of x") as caught:
        relay.compile(module, cache=False)(_floats(3), _floats(2))
    assert "index 0" not in str(caught.value)


# -- reads that a select chooses, and at places that are no sums: kernels ask for what cannot be proved


@operator("test.reach_minimum")
def reach_minimum(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[te.minimum(i + 1, 7)])


@operator("test.reach_remainder")
def reach_remainder(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[(i * 3) % 8])


@operator("test.reach_wrongly_chosen")
def reach_wrongly_chosen(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: te.select(i < 6, x[i + 1], te.const(0.0, "float32")))


@operator("test.reach_squares")
def reach_squares(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(3)
    return te.compute(x.shape, lambda i: te.sum(te.select(i < 6, x[i + k * k], te.const(0.0, "float32")), k))


@operator("test.reach_squared")
def reach_squared(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: te.select((i * i < te.size(x.shape[0])) & (x[i * i] > 0.0), 1.0, 0.0))


@operator("test.reach_next_row")
def reach_next_row(x: te.Tensor) -> te.Tensor:
    rows = te.compute((x.shape[0], 2), lambda i, j: x[i] + te.cast(j, "float32"))
    return te.compute(x.shape, lambda i: te.select(x[i] > 5.0, rows[i - 1, te.minimum(i - 5, 3)], x[i]))


@operator("test.reach_by_value")
def reach_by_value(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: te.select(te.exp(x[i]) > 50.0, x[(x[i] * 1.5).astype("int64") - 2], x[i]))


@operator("test.reach_by_sum")
def reach_by_sum(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(x.shape[0])
    sums = te.compute(x.shape, lambda i: te.sum(x[k] * x[i], k))
    return te.compute(x.shape, lambda i: te.select(sums[i] > 60.0, x[i + 1], x[i]))


@pytest.mark.parametrize("op", ["next_row", "by_value", "by_sum", "minimum", "remainder", "wrongly_chosen", "squares"])
@pytest.mark.parametrize("size", [1, 5, 7, 8, 9, 10, 11, 40])
@pytest.mark.parametrize("around", ["%x", "exp(%x)"])
def test_kernels_fail_where_the_interpreter_does(op: str, size: int, around: str) -> None:
    for operand in ("n,", f"{size},"):
        text = f'#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[({operand}), float32]) {{ test.reach_{op}({around}) * 2f }}'
        runs: tuple[Callable[[str, np.ndarray], Any], ...] = (lambda t, x: relay.compile(t)(x), relay.evaluate)
        outcomes: list[np.ndarray | None] = []
        for run in runs:
            try:
                outcomes.append(np.asarray(run(text, _floats(size))))
            except (ExecutionError, ShapeError):
                outcomes.append(None)
        compiled, judged = outcomes
        assert (compiled is None) == (judged is None)
        assert compiled is None or judged is None or np.allclose(compiled, judged, rtol=1e-5)


@pytest.mark.parametrize("gradient", [False, True])
def test_what_reads_outside_fails_although_nobody_asks_for_it(gradient: bool) -> None:
    """It was dropped as dead code: a gradient was 0 of what has no value."""
    unused = "def @main[n: Dim](%x: Tensor[(n,), float32]) { let %unused = test.reach_squared(%x); %x }"
    module = relay.grad(_main("n,", "squared")) if gradient else relay.parse(f'#[version = "0.0.5"]\n{unused}')
    compiled = relay.compile(module, cache=False)
    compiled(_floats(2))
    for run in (compiled, lambda x: relay.evaluate(module, x)):
        with pytest.raises(ExecutionError, match=r"outside of the tensor|is read outside"):
            run(_floats(5))


def test_what_is_demanded_needs_no_check() -> None:
    for operands, op in (
        ("n,; m,", "add"),
        ("n,; m,", "demanded"),
        ("n, m; 7, n", "product"),
        ("n,; m,", "less_first"),
        ("n,", "back"),
    ):
        for plan in build(_main(operands, op), Options()).plan.kernels:
            assert not any(isinstance(stmt, Fail) for stmt in statements(plan.kernel.body)), op


@operator("test.reach_clamped")
def reach_clamped(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    last = te.size(dim_sub(y.shape[0], 1), "int64")
    return te.compute(x.shape, lambda i: x[i] + y[te.maximum(te.minimum(i - 3, last), te.const(0, "int64"))])


def test_what_is_moved_inside_is_asked_for_once() -> None:
    module = _main("n,; m,", "clamped")
    (plan,) = build(module, Options()).plan.kernels
    assert sum(isinstance(stmt, Fail) for stmt in statements(plan.kernel.body)) == 1
    for sizes in ((9, 4), (2, 1), (0, 0), (0, 3)):
        compiled, judged = _results(module, *(_floats(n) for n in sizes))
        assert np.array_equal(compiled, judged)
    for run in (relay.compile(module, cache=False), lambda *args: relay.evaluate(module, *args)):
        with pytest.raises(ExecutionError, match="outside"):
            run(_floats(3), _floats(0))


@operator("test.reach_round")
def reach_round(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    n = te.size(y.shape[0], "int64")
    return te.compute(x.shape, lambda i: x[i] * y[(n // 2) % n])


def test_a_size_of_nothing_divides_nothing() -> None:
    """Where no element is computed, no place is."""
    module = _main("n,; m,", "round")
    for sizes in ((3, 4), (2, 1), (0, 0), (0, 3)):
        compiled, judged = _results(module, *(_floats(n) for n in sizes))
        assert np.array_equal(compiled, judged)
    for run in (relay.compile(module, cache=False), lambda *args: relay.evaluate(module, *args)):
        with pytest.raises(ExecutionError, match=r"outside|is more than"):
            run(_floats(3), _floats(0))
