"""`relay.grad`, `relay.value_and_grad`, `relay.jvp`: functions and modules in, typed ones out; they compose."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from relay.typing import verify_types

X = np.array([0.5, -1.0, 1.3])
W = np.array([[0.1, 0.2, 0.3], [-0.3, 0.4, 0.1]])


def loss() -> Any:
    x = relay.var("x", (3,), "float64")
    w = relay.var("w", (2, 3), "float64")
    product = relay.op.sum(relay.op.multiply(w, x), axis=1)
    return relay.Function([x, w], relay.op.sum(relay.op.tanh(product)))


def run(function: Any, *args: object) -> Any:
    module = function if isinstance(function, Module) else Module({"main": function})
    verify_types(module)
    result: Any = relay.evaluate(module, *args)
    compiled: Any = relay.compile(module, cache=False)(*args)
    for a, b in zip(flat(result), flat(compiled), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9)
    return result


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, tuple | list) else [value]


def slope() -> Any:
    return 1 - np.tanh(W @ X) ** 2


def test_grad() -> None:
    np.testing.assert_allclose(run(relay.grad(loss()), X, W), slope() @ W)
    np.testing.assert_allclose(run(relay.grad(loss(), argnums=1), X, W), np.outer(slope(), X))
    np.testing.assert_allclose(run(relay.grad(loss(), argnums=-1), X, W), np.outer(slope(), X))
    both = run(relay.grad(loss(), argnums=(1, 0)), X, W)
    np.testing.assert_allclose(both[0], np.outer(slope(), X))
    np.testing.assert_allclose(both[1], slope() @ W)


@pytest.mark.parametrize(("outer", "inner"), [("float32", "float64"), ("float64", "float32"), ("float32", "float16")])
def test_derivatives_of_all_orders_through_conversions(outer: str, inner: str) -> None:
    """``sin(x)^2``, its argument converted to another dtype and the square back: a tangent has the dtype of what it is the tangent of."""
    module = relay.parse(f"""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), {outer}]) -> Tensor[(n,), {outer}] {{
  let %y = sin(cast(%x, dtype="{inner}"));
  cast(%y * %y, dtype="{outer}")
}}""")
    x, v = (np.array(values, outer) for values in ([0.5, -1.0, 1.25], [0.25, 2.0, -0.5]))
    first, second, third = np.sin(2 * x), 2 * np.cos(2 * x), -4 * np.sin(2 * x)
    programs = (
        (relay.jvp(module), (x, v), first * v),
        (relay.grad(module), (x,), first),
        (relay.jvp(relay.grad(module)), (x, v), second * v),
        (relay.grad(relay.grad(module)), (x,), second),
        (relay.jvp(relay.jvp(module), argnums=0), (x, v, v), second * v * v),
        (relay.grad(relay.jvp(relay.grad(module)), argnums=0), (x, v), second + third * v),
    )
    tolerance = 3e-2 if inner == "float16" else 1e-5
    for program, args, wanted in programs:
        for result in (relay.evaluate(program, *args), relay.compile(program, cache=False)(*args)):
            found = np.asarray(flat(result)[-1])
            assert found.dtype == outer
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_value_and_grad() -> None:
    value, gradient = run(relay.value_and_grad(loss()), X, W)
    np.testing.assert_allclose(value, np.tanh(W @ X).sum())
    np.testing.assert_allclose(gradient, slope() @ W)


def test_jvp() -> None:
    dx, dw = X * 2 + 1, W - 0.5
    value, tangent = run(relay.jvp(loss()), X, W, dx, dw)
    np.testing.assert_allclose(value, np.tanh(W @ X).sum())
    np.testing.assert_allclose(tangent, slope() @ (W @ dx + dw @ X))
    value, tangent = run(relay.jvp(loss(), argnums=1), X, W, dw)
    np.testing.assert_allclose(tangent, slope() @ (dw @ X))


def hessian() -> Any:
    y = np.tanh(W @ X)
    return W.T @ np.diag(-2 * y * (1 - y**2)) @ W


def test_hessian_vector_products_both_ways() -> None:
    v = np.array([1.0, -2.0, 0.5])
    _, forward_over_reverse = run(relay.jvp(relay.grad(loss()), argnums=0), X, W, v)
    np.testing.assert_allclose(forward_over_reverse, hessian() @ v)
    along = relay.jvp(loss(), argnums=0)
    derivative = relay.value_and_grad(Module({"main": along}))
    tangent = relay.parse(
        derivative.text().replace("@main", "@derivative")
        + "\ndef @main(%x: Tensor[(3,), float64], %w: Tensor[(2, 3), float64], %v: Tensor[(3,), float64]) { @derivative(%x, %w, %v) }"
    )
    # The gradient is that of the sum of the value and of its tangent.
    (_, found), expected = run(tangent, X, W, v), hessian() @ v + slope() @ W
    np.testing.assert_allclose(found, expected)


def test_gradients_of_gradients() -> None:
    second = relay.grad(relay.grad(loss()))
    np.testing.assert_allclose(run(second, X, W), hessian().sum(axis=0))


def test_a_module_keeps_its_other_functions() -> None:
    module = relay.parse("""#[version = "0.0.5"]
def @twice(%x: float64) -> float64 { %x * 2f64 }
def @main(%x: float64, %n: int32) -> float64 { if (%n < 1) { %x } else { @twice(%x) * @main(%x, %n - 1) } }""")
    gradient = relay.grad(module)
    assert set(gradient.functions) == {"main", "main.value", "twice"}
    assert run(gradient, np.float64(3), np.int32(2)) == 4 * 3 * 9
    other = relay.grad(module, entry="twice")
    assert relay.evaluate(other, np.float64(3), entry="twice") == 2.0


def test_a_program_without_types() -> None:
    x = relay.var("x", (3,), "float64")
    y = relay.op.multiply(x, x)
    gradient = relay.grad(relay.Function([x], relay.op.add(y, y)))
    assert gradient.ty is not None
    np.testing.assert_allclose(run(gradient, X), 4 * X)


def test_any_size() -> None:
    x, w = relay.var("x", ("n", "d"), "float64"), relay.var("w", ("m", "d"), "float64")
    exe = relay.compile(Module({"main": relay.grad(relay.Function([x, w], relay.op.nn.dense(x, w)), 1)}), cache=False)
    for n, m, d in ((2, 3, 4), (1, 1, 1), (5, 2, 7)):
        a, b = np.random.default_rng(n).normal(size=(n, d)), np.ones((m, d))
        np.testing.assert_allclose(np.asarray(exe(a, b)), np.ones((m, n)) @ a)


def test_every_level() -> None:
    for level in (0, 1, 2):
        exe = relay.compile(Module({"main": relay.grad(loss())}), opt_level=level, cache=False)
        np.testing.assert_allclose(np.asarray(exe(X, W)), slope() @ W)


def test_a_gradient_alone_does_not_compute_the_value() -> None:
    """The seed of a number is a constant: nothing of what the number was made of is left."""
    text = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 3), float64], %c: Tensor[(n, 3), float64]) { sum(tanh(%x) * %c) }'
    module = relay.parse(text)
    x, c = np.outer(np.ones(4), X), np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(run(relay.grad(module, argnums=1), x, c), np.tanh(x))
    exe: Any = relay.compile(relay.grad(module, argnums=1), cache=False)
    assert len(exe.program.kernels) == 1


def test_means_of_unevenly_shared_windows_of_unknown_sizes() -> None:
    text = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(1, 1, n, m), float64], %c: Tensor[(1, 1, 3, 2), float64]) -> float64 {
  sum(nn.adaptive_avg_pool2d(%x, output_size=[3, 2]) * %c)
}"""
    module, c = relay.grad(relay.parse(text)), np.arange(1.0, 7.0).reshape(1, 1, 3, 2)
    for n, m in ((7, 5), (3, 4), (2, 1)):
        wanted = np.zeros((1, 1, n, m))
        for i, j in np.ndindex(3, 2):
            part = wanted[0, 0, i * n // 3 : ((i + 1) * n + 2) // 3, j * m // 2 : ((j + 1) * m + 1) // 2]
            part += c[0, 0, i, j] / part.size
        np.testing.assert_allclose(run(module, np.zeros((1, 1, n, m)), c), wanted)


def test_what_is_stopped_is_a_constant() -> None:
    """In both modes, twice too; and what it is made of may have infinite slopes."""
    text = """#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n,), float64]) -> float64 {
      sum(%x * stop_gradient(%x * %x) + %x * %x * %x + stop_gradient(sqrt(%x)))
    }"""
    module = relay.parse(text)
    x = np.array([1.0, 2.0, 0.0])
    for derived, wanted in ((relay.grad(module), 4 * x**2), (relay.grad(relay.grad(module)), 6 * x)):
        np.testing.assert_allclose(np.asarray(relay.evaluate(derived, x)), wanted)
        np.testing.assert_allclose(np.asarray(relay.compile(derived)(x)), wanted)
    _, tangent = cast(Any, relay.compile(relay.jvp(module))(x, np.ones(3)))
    np.testing.assert_allclose(np.asarray(tangent), 20.0)


def test_straight_through_a_codebook() -> None:
    """A vector's gradient is that of the code in its place; a codebook learns by its distance to constants."""
    text = """#[version = "0.0.5"]
    def @main[n: Dim, k: Dim, d: Dim](%x: Tensor[(n, d), float64], %book: Tensor[(k, d), float64]) -> (float64, float64) {
      let %far = sum(%book * %book, axis=[1]) - 2f64 * nn.dense(%x, %book);
      let %code = take(%book, argmin(%far, axis=[1]), axis=0);
      let %moved = %code - stop_gradient(%x);
      (sum(sin(%x + stop_gradient(%code - %x))), sum(%moved * %moved))
    }"""
    random = np.random.default_rng(0)
    x, book = random.normal(size=(6, 4)), random.normal(size=(3, 4))
    chosen = np.argmin((book**2).sum(1) - 2 * x @ book.T, axis=1)
    to_book = np.zeros_like(book)
    np.add.at(to_book, chosen, 2 * (book[chosen] - x))
    slopes = relay.grad(relay.parse(text), argnums=(0, 1))
    results: list[Any] = [relay.evaluate(slopes, x, book), relay.compile(slopes)(x, book)]
    for of_x, of_book in results:
        np.testing.assert_allclose(np.asarray(of_x), np.cos(book[chosen]))
        np.testing.assert_allclose(np.asarray(of_book), to_book)
