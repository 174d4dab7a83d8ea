"""Lanes in runs of neighbours: what is known of them holds, and such places are read and written run by run."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import te
from relay.codegen.llvm import emit
from relay.codegen.runs import combined, runs_of
from relay.codegen.values import Value
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

LANES = 16


def holds(value: Value, at: np.ndarray) -> bool:
    """Whether the lanes of a vector are what its value says of them."""
    length, rise, multiple = runs_of(value, LANES)
    runs = at.reshape(-1, length)
    steps = bool((np.diff(runs, axis=1) == rise).all())
    return steps and not np.any(runs[:, 0] % multiple if multiple else runs[:, 0])


def test_what_is_known_of_lanes_holds() -> None:
    rng = np.random.default_rng(0)
    lanes, grouped = np.arange(LANES), 0
    for _ in range(400):
        base = int(rng.choice([0, 4, 6, 16, 24, 48]))
        known = [(Value("%j", "int64", LANES, stride=1, multiple=base), base + lanes)]
        for _ in range(4):
            op = str(rng.choice(["add", "sub", "mul", "floordiv", "mod"]))
            a, x = known[rng.integers(len(known))]
            number = int(rng.choice([1, 2, 3, 4, 8, 12, 100]))
            b, y = Value(str(number), "int64", const=number, multiple=number), np.full(LANES, number)
            if op in ("add", "sub", "mul") and rng.integers(2):
                b, y = known[rng.integers(len(known))]
            made = {"add": x + y, "sub": x - y, "mul": x * y}.get(op)
            at = made if made is not None else x // y if op == "floordiv" else x % y
            runs = combined(op, a, b, LANES)  # type: ignore[arg-type]
            value = Value("%v", "int64", LANES, multiple=runs.multiple, run=runs.length, rise=runs.rise)
            assert holds(value, at), (op, a, b, at)
            grouped += 1 < runs.length < LANES
            known.append((value, at))
    assert grouped > 200


@relay.operator("test.turned_dense")
def turned_dense(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """``out[c, i, l] = sum over k of x[i, k] * w[k, c, l]``: of what a tile has side by side, only ``l`` is so in memory."""
    (rows, depth), (_, many, run) = x.shape, w.shape
    k = te.reduce_axis(depth)
    return te.compute((many, rows, run), lambda c, i, m: te.sum(x[i, k] * w[k, c, m], k))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("many", "run"), [(16, 4), (9, 4), (5, 8), (13, 2), (7, 12), (11, 3), (3, 24)])
def test_tiles_whose_columns_are_runs(many: int, run: int, dtype: str) -> None:
    given = [tensor((14, 20), dtype), tensor((20, many, run), dtype)]

    def build(m: Maker, *args: relay.ir.expr.Expr) -> relay.ir.expr.Expr:
        return m("test.turned_dense", *args)

    plan, target = check(primitive(given, build)), ZEN4
    whole = run % 4 == 0 and many * run * (1 if dtype == "float32" else 2) % 16 == 0
    if plan.variant == "matrix" and whole and target.masked:
        assert "masked.scatter" not in emit(plan.kernel, target)


@relay.operator("test.taken_apart")
def taken_apart(x: te.Tensor, *, by: int, step: int, more: int) -> te.Tensor:
    """``(step * j + more) // by`` and the remainder of that, for each element j of a line."""
    rows, line = x.shape

    def part(j: te.Scalar, k: te.Scalar) -> te.Scalar:
        at = j * step + more
        return te.cast(te.select(k.equal(0), at // by, at % by), x.dtype)

    return te.compute((2, rows, line), lambda k, i, j: x[i, j] + part(j, k))


@pytest.mark.parametrize("by", [3, 7, 16, 112, 32749, 32771])
@pytest.mark.parametrize("step, more", [(1, 0), (1, -50), (5, 2), (-3, 4), (900, -1)])
def test_ramps_are_divided_as_numbers_are(by: int, step: int, more: int) -> None:
    program = relay.parse(f"""#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, m), float32]) {{ test.taken_apart(%x, by={by}, step={step}, more={more}) }}""")
    exe = relay.compile(program)
    for shape in ((2, 100), (3, 17), (1, 5)):
        x = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        np.testing.assert_array_equal(np.asarray(exe(x)), np.asarray(relay.evaluate(program, x)))
