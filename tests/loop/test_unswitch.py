"""Choices made before vector loops: the same results, and no choice left inside."""

from __future__ import annotations

import numpy as np

from relay.loop.evaluate import evaluate
from relay.loop.ir import Buffer, For, Kernel, LetScalar, Stmt, Store
from relay.loop.printer import kernel_text
from relay.loop.simplify import simplify
from relay.loop.unswitch import unswitched
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.te.scalar import Axis, Compare, Const, Load, Scalar, Select, Size, binary

ROWS, WIDTH = 5, 7
ROW, J = Axis("i", ROWS), Axis("j", WIDTH)
INPUTS = tuple(Buffer(f"a{n}", (WIDTH,), "float32") for n in range(ROWS))
Y = Buffer("y", (ROWS * WIDTH,), "float32")
AT = (binary("add", binary("mul", ROW, WIDTH), J),)


def before(row: int) -> Scalar:
    return Compare("lt", ROW, Const(row, "int64"))


def chain(sources: list[Scalar], conditions: list[Scalar]) -> Scalar:
    value = sources[-1]
    for cond, source in zip(reversed(conditions), reversed(sources[:-1]), strict=True):
        value = Select(cond, source, value, "float32")
    return value


def rows(body: Stmt) -> Kernel:
    inner = For(J, Size(WIDTH), body, "vectorized")
    return Kernel("rows", INPUTS, (Y,), (), For(ROW, Size(ROWS), inner))


def vector_loops(kernel: Kernel) -> int:
    return sum(isinstance(s, For) and s.kind == "vectorized" for s in statements(kernel.body))


def test_rows_behind_each_other_are_loops_of_their_own() -> None:
    """Also where something is done with them, and where the same choice is made twice."""
    conditions = [before(n + 1) for n in range(ROWS - 1)]
    value = chain([Load(a, (J,), "float32") for a in INPUTS], conditions)
    sign = chain([Load(INPUTS[0], (J,), "float32"), *[Const(float(n), "float32") for n in range(1, ROWS)]], conditions)
    named = Axis("v", 1, "float32")
    kernel = rows(LetScalar(named, value, Store(Y, AT, binary("add", binary("mul", named, named), sign))))
    made = simplify(unswitched(kernel))
    verify(made)
    assert vector_loops(made) == ROWS and "select" not in kernel_text(made)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(WIDTH).astype("f") for _ in INPUTS]
    results = []
    for k in (kernel, made):
        out = np.zeros(ROWS * WIDTH, "f")
        assert evaluate(k, [*arrays, out]) == 0
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0][-WIDTH:], arrays[-1] ** 2 + np.float32(ROWS - 1))


def test_other_choices_stay() -> None:
    a, b = (Load(x, (J,), "float32") for x in INPUTS[:2])
    inside = rows(Store(Y, AT, Select(Compare("lt", J, ROW), a, b, "float32")))
    loaded = rows(
        Store(Y, AT, Select(Compare("lt", Load(INPUTS[2], (ROW,), "float32"), Const(0.0, "float32")), a, b, "float32"))
    )
    nothing_read = rows(Store(Y, AT, Select(before(2), Const(1.0, "float32"), Const(2.0, "float32"), "float32")))
    many = rows(Store(Y, AT, chain([a, b] * 40, [before(n) for n in range(79)])))
    for kernel in (inside, loaded, nothing_read, many):
        assert unswitched(kernel) is kernel
