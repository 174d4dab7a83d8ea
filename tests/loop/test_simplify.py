"""Simplified kernels compute the same, and the index arithmetic that ranges decide is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.dim import Dim, DimVar, as_var, dim_mul, dim_var
from relay.loop.evaluate import evaluate
from relay.loop.ir import Branch, Buffer, For, Kernel, LetScalar, Prefetch, Seq, Stmt, Store, Switch
from relay.loop.printer import kernel_text
from relay.loop.simplify import simplify
from relay.loop.verify import verify
from relay.te.scalar import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Load,
    Scalar,
    Select,
    Size,
    binary,
    compare,
    maximum,
    minimum,
)

N = dim_var("n", lo=1)
OPS: list[BinaryOp | None] = ["add", "sub", "mul", "floordiv", "mod", "min", "max", None]
COMPARISONS: list[CompareOp] = ["eq", "ne", "lt", "le", "gt", "ge"]


def var(dim: Dim) -> DimVar:
    found = as_var(dim)
    assert found is not None
    return found


def loop(axis: Axis, body: Stmt) -> For:
    return For(axis, Size(axis.extent), body)


def stored(index: Scalar, *axes: Axis) -> str:
    """The simplified index of a store inside loops over the axes."""
    y = Buffer("y", (1 << 20,), "int64")
    body: Stmt = Store(y, (Const(0, "int64"),), index)
    for axis in reversed(axes):
        body = loop(axis, body)
    kernel = simplify(Kernel("k", (), (y,), (var(N),), body))
    return kernel_text(kernel).splitlines()[-1].split(" = ")[1]


def test_quotients_and_remainders_of_flat_indices() -> None:
    i, j = Axis("i", N), Axis("j", 384)
    flat = i * 384 + j
    assert stored(flat // 384, i, j) == "i"
    assert stored(flat % 384, i, j) == "j"
    assert stored((flat + 384) // 384, i, j) in ("i + 1", "1 + i")
    assert stored(j // 384, j) == "0"
    assert "//" in stored((flat + 1) // 384, i, j)
    # A symbolic divisor: j runs over just it.
    k = Axis("k", N)
    symbolic = binary("add", binary("mul", i, Size(N)), k)
    assert stored(symbolic // Size(N), i, k) == "i"
    assert stored(symbolic % Size(N), i, k) == "k"
    size = Size(dim_mul(N, 384))
    assert stored(flat // size, i, j) == "0"


def test_extremes_and_comparisons() -> None:
    i = Axis("i", N)
    assert stored(minimum(i, Size(N)), i) == "i"
    assert stored(maximum(i, Const(0, "int64")), i) == "i"
    assert stored(minimum(i, Const(5, "int64")), i) == "min(i, 5)"
    one, two = Const(1, "int64"), Const(2, "int64")
    assert stored(Select(compare("lt", i, Size(N)), one, two, "int64"), i) == "1"
    assert stored(Select(compare("ge", i, Size(N)), one, two, "int64"), i) == "2"
    assert stored(Select(compare("ne", i, Size(N)), one, two, "int64"), i) == "1"
    assert "select" in stored(Select(compare("lt", i, one), one, two, "int64"), i)
    inside = Binary("and", compare("ge", i, 0), compare("lt", i + 1, Size(N)), "bool")
    assert stored(Select(inside, one, two, "int64"), i) == "select((i + 1) < n, 1, 2)"


def test_arithmetic_of_constants() -> None:
    """What a literal operand leaves of a derivative: ``x ** (3 - 1)``, where the exponent is not 0."""
    i, x = Axis("i", N), Buffer("x", (N,), "float32")
    three, zero = Const(3.0, "float32"), Const(0.0, "float32")
    below = binary("pow", Load(x, (i,), "float32"), binary("sub", three, Const(1.0, "float32")))
    slope = Select(compare("eq", three, zero), zero, below, "float32")
    kernel = simplify(Kernel("k", (x,), (x,), (var(N),), loop(i, Store(x, (i,), slope))))
    assert kernel_text(kernel).splitlines()[-1].strip() == "x[i] = pow(x[i], 2.0)"
    endless = binary("div", Const(1.0, "float32"), zero)
    kernel = simplify(Kernel("k", (), (x,), (var(N),), loop(i, Store(x, (i,), endless))))
    assert kernel_text(kernel).splitlines()[-1].strip() == "x[i] = inf"


def test_statements_that_sizes_decide() -> None:
    y = Buffer("y", (N,), "int64")
    i, once, never = Axis("i", N), Axis("once", 1), Axis("never", 0)
    store = Store(y, (i,), binary("add", i, once))
    body = loop(i, Seq((
        loop(once, store), loop(never, store), Branch(compare("lt", i, Size(N)), store),
        Switch(Const(1, "int64"), (store, Store(y, (i,), i))),
    )))  # fmt: skip
    kernel = Kernel("k", (), (y,), (var(N),), body)
    text = kernel_text(simplify(kernel))
    assert "if" not in text and "switch" not in text and "never" not in text
    assert simplify(simplify(kernel)).body is simplify(kernel).body or kernel_text(simplify(simplify(kernel))) == text


def test_a_variable_bound_twice() -> None:
    """The same variable over two extents: what was found for one does not hold for the other."""
    y, j = Buffer("y", (64,), "int64"), Axis("j", 64)
    index = j // 10
    store = Store(y, (j,), index)
    body = Seq((For(j, Const(10, "int64"), store), For(j, Const(64, "int64"), store)))
    kernel = Kernel("k", (), (y,), (), body)
    out = np.zeros(64, np.int64)
    assert evaluate(simplify(kernel), [out]) == 0
    assert np.array_equal(out, np.arange(64) // 10)


def test_places_to_prefetch() -> None:
    x, i = Buffer("x", (N,), "float32"), Axis("i", N)
    text = kernel_text(simplify(Kernel("k", (x,), (), (var(N),), loop(i, Prefetch(x, ((i * 8 + 3) // 8 + 100,))))))
    assert "prefetch x[(i + 100)]" in text or "prefetch x[i + 100]" in text


def test_unchanged_kernels_are_the_same_object() -> None:
    x, y, i = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32"), Axis("i", N)
    kernel = Kernel("k", (x,), (y,), (var(N),), loop(i, Store(y, (i,), Load(x, (i,), "float32") * 2.0)))
    assert simplify(kernel) is kernel


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_random_index_expressions(data: st.DataObject) -> None:
    i, j, k = Axis("i", N), Axis("j", data.draw(st.sampled_from([1, 3, 8, 16]))), Axis("k", N)
    t = Axis("t", 1)
    leaves: list[Scalar] = [i, j, k, Size(N), t]

    def expression(depth: int) -> Scalar:
        if depth == 0 or data.draw(st.integers(0, 4)) == 0:
            choice = data.draw(st.integers(0, len(leaves)))
            return leaves[choice] if choice < len(leaves) else Const(data.draw(st.integers(-3, 20)), "int64")
        op = data.draw(st.sampled_from(OPS))
        a, b = expression(depth - 1), expression(depth - 1)
        if op is None:
            compared = data.draw(st.sampled_from(COMPARISONS))
            return Select(Compare(compared, a, b), expression(depth - 1), b, "int64")
        return Binary(op, a, b, "int64")

    y = Buffer("y", (N, j.extent, N), "int64")
    body: Stmt = Store(y, (i, j, k), expression(4))
    body = LetScalar(t, i * 3 + j if data.draw(st.booleans()) else j % 5, body)
    kernel = Kernel("k", (), (y,), (var(N),), loop(i, loop(j, loop(k, body))))
    simpler = simplify(kernel)
    verify(simpler)
    for n in (1, 2, 5):
        assert isinstance(j.extent, int)
        want, got = (np.zeros((n, j.extent, n), np.int64) for _ in range(2))
        evaluate(kernel, [want], {var(N): n})
        evaluate(simpler, [got], {var(N): n})
        assert np.array_equal(want, got), kernel_text(kernel)
