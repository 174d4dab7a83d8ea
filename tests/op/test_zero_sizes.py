"""Definitions whose indices are multiplied and divided by sizes, zero among them: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from novel_definitions import frames

import relay
from relay import te
from relay.cli import inspect
from relay.ir.dim import dim_add, dim_floordiv, dim_max, dim_mul, dim_sub
from relay.op import registry
from relay.plan import kernel_plan

SIZES = (4, 2, 2), (5, 3, 0), (6, 2, 3), (7, 4, 1), (5, 0, 2), (1, 5, 0), (3, 0, 0), (9, 3, 3), (40, 18, 2)


def _value(i: Any) -> Any:
    return te.cast(i + 1, "float32")


def _last(at: Any, n: Any) -> Any:
    return te.minimum(at, te.size(n) - 1)


# Of x: (n,) and w: (k, m).
DEFINITIONS: dict[str, Callable[..., te.Tensor]] = {
    "quotient": lambda x, w, n, k, m: te.compute((n,), lambda i: x[_last(i // m, n)] * _value(i)),
    "remainder": lambda x, w, n, k, m: te.compute((n,), lambda i: x[i % m] * _value(i)),
    "shifted": lambda x, w, n, k, m: te.compute((k,), lambda i: x[_last((i * m + 1) // m, n)] * _value(i)),
    "value": lambda x, w, n, k, m: te.compute((n,), lambda i: x[i] * _value((i * m + 1) // m + i % m)),
    "times": lambda x, w, n, k, m: te.compute((k,), lambda i: x[_last(i * m, n)] * _value(i)),
    "product": lambda x, w, n, k, m: te.compute((k,), lambda i: x[_last(i * dim_mul(k, m), n)] * _value(i)),
    "apart": lambda x, w, n, k, m: te.compute((k,), lambda i: x[_last(te.abs(i * dim_sub(m, k)), n)] * _value(i)),
    "rows": lambda x, w, n, k, m: te.compute((k,), lambda i: x[i * dim_floordiv(n, dim_max(k, 1))] * _value(i)),
    "within": lambda x, w, n, k, m: te.compute((k, m), lambda i, j: x[i * m + j] * w[i, j]),
    "less": lambda x, w, n, k, m: te.compute((n,), lambda i: x[te.maximum((n - 1 - i) // -m + i, 0)] * _value(i)),
    "per": lambda x, w, n, k, m: te.compute((n,), lambda i: x[_last((i + 2) // dim_floordiv(m, n), n)] * _value(i)),
    "at least": lambda x, w, n, k, m: te.compute(
        (k,), lambda i: x[_last(te.maximum((i + n) * dim_mul(k, k), 0), n)] * _value(i)
    ),
    "rows of a matrix": lambda x, w, n, k, m: te.compute((dim_mul(k, m),), lambda i: w[i // m, i % m] * _value(i)),
}


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[relay.Module]:
    def defined(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        (n,), (k, m) = x.shape, w.shape
        return DEFINITIONS[request.param](x, w, n, k, m)

    registry.operator("zero.op")(defined)
    yield relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, k: Dim, m: Dim](%x: Tensor[(n,), float32], %w: Tensor[(k, m), float32]) { zero.op(%x, %w) }
def @loss[n: Dim, k: Dim, m: Dim](%x: Tensor[(n,), float32], %w: Tensor[(k, m), float32]) -> float32 {
  let %y = zero.op(%x, %w); sum(%y * %y) / 2f }""")
    registry.remove("zero.op")


def _drawn(n: int, k: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(1, n + 1, dtype=np.float32), np.arange(1, k * m + 1, dtype=np.float32).reshape(k, m)


@pytest.mark.parametrize("module", DEFINITIONS, indirect=True)
def test_what_it_computes(module: relay.Module) -> None:
    """A quotient and a remainder by zero are zero, and what zero multiplies reads the same everywhere."""
    exe = relay.compile(module)
    for sizes in SIZES:
        given = _drawn(*sizes)
        outside = False
        try:
            wanted = np.asarray(relay.evaluate(module, *given))
        except relay.RelayError:
            outside = True  # more windows than there are elements
        if outside:
            with pytest.raises(relay.RelayError):
                exe(*given)
        else:
            np.testing.assert_array_equal(np.asarray(exe(*given)), wanted, f"{sizes}")


@pytest.mark.parametrize("module", DEFINITIONS, indirect=True)
def test_its_gradients(module: relay.Module) -> None:
    """Through products and quotients of sizes that are zero, and those that are not."""
    slopes = relay.value_and_grad(module, argnums=(0, 1), entry="loss")
    exe = relay.compile(slopes, entries=["loss"])
    for sizes in SIZES:
        given = _drawn(*sizes)
        try:
            wanted: Any = relay.evaluate(slopes, *given, entry="loss")
        except relay.RelayError:
            continue
        found: Any = exe.run("loss", *given)
        for one, other in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-5, err_msg=f"{sizes}")


def test_what_is_not_zero_has_a_body_of_its_own() -> None:
    """A kernel asks once whether a size is zero; where it is not, the gradient is what it would be of a size that cannot be."""

    def strided(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return te.compute((w.shape[0],), lambda i: x[i * w.shape[1]])

    registry.operator("zero.strided")(strided)
    try:
        texts = []
        for least in (0, 1):
            module = relay.parse(f"""#[version = "0.0.5"]
def @main[n: Dim, k: Dim, m: Dim({least}, 64)](%x: Tensor[(n,), float32], %w: Tensor[(k, m), float32], %t: Tensor[(k,), float32]) {{
  zero.strided.vjp0(%x, %w, %t) }}""")
            ((_, text),) = inspect.loops(module, relay.Options())
            texts.append(text)
        either, some = (text.splitlines()[1:] for text in texts)
        asked = either[0].strip()
        assert asked.startswith("if ") and asked.endswith(" >= 1")
        assert len(either[1 : either.index("  else")]) == len(some)
    finally:
        registry.remove("zero.strided")


def test_choices_of_sizes_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many choices that sizes make a kernel has a body for some outcomes, and makes the others where it reads."""

    def chosen(x: te.Tensor) -> te.Tensor:
        total = x
        for least in range(0, 24, 3):
            one = te.compute(x.shape, lambda i, t=total, least=least: t[i] * float(least + 1))
            other = te.compute(x.shape, lambda i, t=total: t[te.size(x.shape[0]) - 1 - i] + 1.0)
            total = te.compute(
                x.shape, lambda i, a=one, b=other, n=least: te.select(te.size(x.shape[0]) > n, a[i], b[i])
            )
        return total

    bodies: list[Any] = []
    planned = kernel_plan._planned

    def counted(*given: Any) -> kernel_plan.KernelPlan:
        bodies.append(given)
        return planned(*given)

    monkeypatch.setattr(kernel_plan, "_planned", counted)
    registry.operator("zero.chosen")(chosen)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), float32]) { zero.chosen(%x) }""")
        exe: Any = relay.compile(module, cache=False)
        assert len(bodies) <= kernel_plan._MOST_BODIES
        for n in (0, 1, 2, 4, 10, 30):
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(relay.evaluate(module, x)), 1e-5)
    finally:
        registry.remove("zero.chosen")


# Windows of x whose steps and numbers sizes say, of x: (n,), w: (k, m) and v: (3, 2).
WINDOWS: dict[str, Callable[..., te.Tensor]] = {
    "windows": lambda x, v, n, k, m: te.compute((k, 8), lambda i, r: _at(x, i * m + r) * _value(i + r)),
    "padded": lambda x, v, n, k, m: te.compute((k, 5), lambda i, r: _at(x, i * m + r - 2) * _value(i + r)),
    "backwards": lambda x, v, n, k, m: te.compute((k, 3), lambda i, r: _at(x, n - 1 - i * m - r) * _value(i + r)),
    "turned": lambda x, v, n, k, m: te.compute((k, 3), lambda i, r: _at(x, i * m + 2 - r) * _value(i + 3 * r)),
    "in two steps": lambda x, v, n, k, m: te.compute(
        (k, 3, 2), lambda i, r, j: _at(x, i * m + r + j * n) * _value(i + r + j)
    ),
    "weighed": lambda x, v, n, k, m: _weighed(x, v, k, m),
    "greatest": lambda x, v, n, k, m: _greatest(x, k, m),
}


def _at(x: te.Tensor, at: Any) -> Any:
    return te.select((at >= 0) & (at < te.size(x.shape[0])), x[at], 0.0)


def _weighed(x: te.Tensor, v: te.Tensor, k: Any, m: Any) -> te.Tensor:
    r = te.reduce_axis(3)
    return te.compute((k, 2), lambda i, o: te.sum(_at(x, i * m + r) * v[r, o], r))


def _greatest(x: te.Tensor, k: Any, m: Any) -> te.Tensor:
    r = te.reduce_axis(4)
    return te.compute((k,), lambda i: te.max(_at(x, i * m + r), r))


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_a_size_apart(name: str) -> None:
    """Their gradients go through the windows once, whatever the steps are, and not through all windows for each element."""

    def windows(x: te.Tensor, w: te.Tensor, v: te.Tensor) -> te.Tensor:
        return WINDOWS[name](x, v, te.size(x.shape[0]), *w.shape)

    registry.operator("zero.windows")(windows)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, k: Dim, m: Dim](%x: Tensor[(n,), float32], %w: Tensor[(k, m), float32], %v: Tensor[(3, 2), float32]) -> float32 {
  let %y = zero.windows(%x, %w, %v); sum(%y * %y) / 2f }""")
        slopes = relay.grad(module, argnums=(0, 2))
        for threads in (1, 2):
            exe: Any = relay.compile(slopes, threads=threads)
            for n, k, m in (*SIZES, (300, 90, 3), (300, 290, 1), (300, 4, 60), (2, 200, 5)):
                rng = np.random.default_rng(n)
                x, v = rng.standard_normal(n).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
                wanted: Any = relay.evaluate(slopes, x, np.zeros((k, m), np.float32), v)
                found = exe(x, np.zeros((k, m), np.float32), v)
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-4, 1e-3, err_msg=f"{n} {k} {m}")
        if name == "windows":
            kernels = [text for _, text in inspect.loops(relay.grad(module), relay.Options())]
            (made,) = [text for text in kernels if "let at" in text]
            assert "select" not in made.partition("let at")[2]
    finally:
        registry.remove("zero.windows")


def test_as_many_windows_as_fit() -> None:
    """How many there are is a quotient by the step: their gradients go through them once, too."""
    registry.operator("zero.frames")(frames)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, s: Dim](%x: Tensor[(n,), float32], %w: Tensor[(8,), float32], %h: Tensor[(s,), float32]) -> float32 {
  let %y = zero.frames(%x, %w, %h); sum(%y * %y) / 2f }""")
        slopes = relay.grad(module, argnums=(0, 1))
        for threads in (1, 2):
            exe: Any = relay.compile(slopes, threads=threads)
            for n, step in ((8, 1), (9, 2), (20, 3), (700, 1), (700, 4), (700, 8), (700, 11)):
                given = [np.random.default_rng(n).standard_normal(size).astype(np.float32) for size in (n, 8, step)]
                for one, other in zip(exe(*given), relay.evaluate(slopes, *given), strict=True):  # type: ignore[call-overload]
                    np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-4, 1e-4, err_msg=f"{n} {step}")
        texts = [text for _, text in inspect.loops(relay.grad(module), relay.Options())]
        assert any("let at" in text for text in texts)
    finally:
        registry.remove("zero.frames")


def test_no_iterations_give_nothing() -> None:
    """An axis that is known to have no elements is not divided by."""

    def define(x: te.Tensor) -> te.Tensor:
        """Nothing of a vector."""
        (m,) = x.shape
        return te.compute((0, m), lambda i, j: x[(3 * j + i) % dim_add(m, 7) % m])

    registry.operator("zero.nothing")(define)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[m: Dim(1, 100)](%x: Tensor[(m,), float32]) -> float32 { sum(zero.nothing(%x) * 3f) + sum(%x) }""")
        slopes: Any = relay.grad(module)
        given = np.arange(5, dtype=np.float32)
        for run in (relay.compile(slopes), lambda x: relay.evaluate(slopes, x)):
            np.testing.assert_array_equal(np.asarray(run(given)), np.ones(5, np.float32))
    finally:
        registry.remove("zero.nothing")


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_that_begins_with_the_first_element_of_its_axis(dim: int) -> None:
    """Along no elements it reads none; along rows of unknown length, many side by side, the element is none of a strip's."""

    def first(x: te.Tensor, g: te.Tensor) -> te.Tensor:
        def begin(c: Any) -> Any:
            return (x[0, c] if dim == 0 else x[c, 0]) * 0.5

        return te.scan(x.shape, dim, begin, lambda s, i, j: s * te.sigmoid(g[i, j]) + x[i, j], x.dtype)

    registry.operator("zero.first")(first)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, d: Dim](%x: Tensor[(n, d), float64], %g: Tensor[(n, d), float64]) { zero.first(%x, %g) }""")
        exe: Any = relay.compile(module, check_memory=True)
        slopes: Any = relay.compile(relay.grad(module, argnums=(0, 1)))
        for n, d in ((0, 40), (40, 0), (1, 1), (3, 40), (40, 3), (40, 70)):
            rng = np.random.default_rng(n)
            x, g = rng.standard_normal((2, n, d))
            np.testing.assert_allclose(np.asarray(exe(x, g)), np.asarray(relay.evaluate(module, x, g)), 1e-9)
            wanted: Any = relay.evaluate(relay.grad(module, argnums=(0, 1)), x, g)
            for one, other in zip(slopes(x, g), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), 1e-8, 1e-12)
    finally:
        registry.remove("zero.first")
