"""Operators that nobody has: random definitions, compiled for any size and for one, between neighbours, and differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.differentiate import differentiated
from relay.ir.diagnostics import RelayError
from relay.ir.dim import dim_floordiv
from relay.op import registry
from tests.generator.definitions import Definition, definition
from tests.op.harness import Array

COUNT = 24


@pytest.fixture
def declared(request: pytest.FixtureRequest) -> Iterator[tuple[str, Definition]]:
    drawn = definition(request.param)
    name = f"novel.op{request.param}"
    registry.operator(name)(drawn.operator())
    yield name, drawn
    registry.remove(name)


def close(found: object, expected: object, tolerance: float) -> bool:
    a, b = np.asarray(found), np.asarray(expected)
    return a.shape == b.shape and np.allclose(a, b, rtol=tolerance, atol=tolerance)


def text(drawn: Definition, size: int, dtype: str, result: str) -> relay.Module:
    """A program over the operands that computes ``result``; of any size ``n`` where the definition has one."""
    n = "n" if drawn.symbolic and size == 0 else size or 6
    dims = "[n: Dim]" if n == "n" else ""
    operands = ", ".join(f"%{a}: {t}" for a, t in zip(drawn.names, drawn.types(n, dtype), strict=True))  # type: ignore[arg-type]
    return relay.parse(f'#[version = "0.0.5"]\ndef @main{dims}({operands}) {{ {result} }}')


@pytest.mark.parametrize("declared", range(COUNT), indirect=True)
def test_a_novel_operator_computes_what_it_says(declared: tuple[str, Definition]) -> None:
    name, drawn = declared
    generator = np.random.default_rng(1)
    plain = f"{name}({', '.join('%' + a for a in drawn.names)})"
    between = f"{name}({', '.join('tanh(%x * %x)' if a == 'x' else '%' + a for a in drawn.names)})"
    for result in (plain, f"sigmoid({between}) * {between}"):
        program = text(drawn, 0, "float32", result)
        compiled = relay.compile(program)
        for n in (6, 1, 13) if drawn.symbolic else (6,):
            given = drawn.arguments(n, "float32", generator)
            assert close(compiled(*given), relay.evaluate(program, *given), 1e-4)
        given = drawn.arguments(5, "float32", generator)
        if drawn.symbolic:
            assert close(relay.compile(text(drawn, 5, "float32", result))(*given), compiled(*given), 1e-4)


@pytest.mark.parametrize("declared", range(COUNT), indirect=True)
def test_a_novel_operator_has_a_derivative(declared: tuple[str, Definition]) -> None:
    name, drawn = declared
    generator = np.random.default_rng(2)
    program = text(drawn, 0, "float64", f"sum(tanh({name}({', '.join('%' + a for a in drawn.names)})))")
    count = len(drawn.operands)
    forward = relay.compile(program)
    backward = relay.compile(relay.grad(program, argnums=tuple(range(count))))
    for n in (6, 3) if drawn.symbolic else (6,):
        given = drawn.arguments(n, "float64", generator)
        slopes = backward(*given)
        moves: list[Array] = [generator.standard_normal(a.shape) for a in given[:count]]

        def at(step: float, given: list[Array] = given, moves: list[Array] = moves) -> float:
            return float(
                np.asarray(forward(*(a + step * m for a, m in zip(given, moves, strict=False)), *given[count:]))
            )

        measured = (at(1e-6) - at(-1e-6)) / 2e-6
        found: tuple[object, ...] = slopes if isinstance(slopes, tuple) else (slopes,)
        told = sum(float(np.sum(np.asarray(s) * m)) for s, m in zip(found, moves, strict=True))
        assert abs(measured - told) <= 1e-5 * max(1.0, abs(measured), abs(told))


# The last two divide by the opposite of a size when they are differentiated twice.
@pytest.mark.parametrize("declared", [3, 5, 8, 166, 171], indirect=True)
def test_a_novel_operator_has_a_second_derivative(declared: tuple[str, Definition]) -> None:
    name, drawn = declared
    generator = np.random.default_rng(drawn.symbolic)
    slope = relay.grad(text(drawn, 0, "float64", f"sum(tanh({name}({', '.join('%' + a for a in drawn.names)})))"))
    backward, twice = relay.compile(slope), relay.compile(relay.jvp(slope, argnums=(0,)))
    given = drawn.arguments(4, "float64", generator)
    move = generator.standard_normal(given[0].shape)
    up, down = (np.asarray(backward(given[0] + h * move, *given[1:])) for h in (1e-6, -1e-6))
    found = twice(*given, move)
    assert isinstance(found, tuple)
    assert close(found[1], (up - down) / 2e-6, 1e-5)


def test_reductions_stand_anywhere_in_an_expression() -> None:
    """Below arithmetic, inside another reduction, in a recurrence, and where a select keeps a load out of the way."""

    @registry.operator("novel.inside")
    def inside(x: te.Tensor) -> te.Tensor:
        rows, columns = x.shape
        j, k = te.reduce_axis(rows, "j"), te.reduce_axis(columns, "k")
        near = te.sum(x[j, k] * te.max(te.abs(x[j, k]), k), [j, k])

        def element(i: te.Scalar, c: te.Scalar) -> te.Scalar:
            before = te.select(i > 0, te.sum(x[i - 1, k], k), 0.0)
            return x[i, c] * before + near / te.sum(x[i, k] * x[i, k], k)

        return te.compute((rows, columns), element)

    @registry.operator("novel.recurrence")
    def recurrence(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(x.shape[1], "k")
        return te.scan(
            (x.shape[0],), 0, lambda: te.sum(x[0, k], k), lambda s, i: s * 0.5 + te.sum(x[i, k], k), "float32"
        )

    x = np.random.default_rng(3).standard_normal((5, 4)).astype("float32")
    near = np.sum(x * np.abs(x).max(1, keepdims=True))
    before = np.concatenate([[0], x.sum(1)[:-1]])[:, None]
    states = [x[0].sum()]
    for row in x:
        states.append(states[-1] * 0.5 + row.sum())
    try:
        for name, expected in (
            ("inside", x * before + near / np.sum(x * x, 1, keepdims=True)),
            ("recurrence", np.array(states[1:])),
        ):
            program = relay.parse(
                f'#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 4), float32]) {{ novel.{name}(%x) }}'
            )
            assert close(relay.evaluate(program, x), expected, 1e-5)
            assert close(relay.compile(program)(x), expected, 1e-5)
    finally:
        registry.remove("novel.inside")
        registry.remove("novel.recurrence")


def test_an_index_variable_outside_of_its_reduction() -> None:
    @registry.operator("novel.stray")
    def stray(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(x.shape[0], "k")
        return te.compute(x.shape, lambda i: x[i] * te.sum(x[k], k) + x[k])

    try:
        with pytest.raises(RelayError, match="the index variable k stands outside of a reduction over it"):
            relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(4,), float32]) { novel.stray(%x) }')
    finally:
        registry.remove("novel.stray")


@relay.operator("test.mirrored")
def mirrored(x: te.Tensor) -> te.Tensor:
    """Reads its operand from the middle backwards, zeros before its start, beside reads that end at its last element."""
    k = te.reduce_axis(3)

    def at(i: te.Scalar, k: te.Scalar) -> te.Scalar:
        back = te.select(2 - i >= 0, x[te.maximum(2 - i, 0)], 0.0)
        return te.sigmoid(te.maximum(back, x[te.minimum(3 * i + k, 4)]))

    inner = te.compute((6, 3), at)
    return te.compute((6, 4), lambda i, j: te.sum(inner[i, k], k))


def test_what_a_derivative_multiplies_is_not_read_where_it_does_not_count() -> None:
    program = relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(5,), float64]) { sum(tanh(test.mirrored(%x))) }')
    second = relay.jvp(relay.grad(program, argnums=(0,)), argnums=(0,))
    given = np.random.default_rng(0).standard_normal(5), np.ones(5)
    found, wanted = relay.compile(second)(*given), relay.evaluate(second, *given)
    assert isinstance(found, tuple) and isinstance(wanted, tuple)
    assert close(found[1], wanted[1], 1e-10)


@relay.operator("test.logarithm_or_zero")
def logarithm_or_zero(x: te.Tensor) -> te.Tensor:
    """The logarithm of what has one."""
    return te.compute(x.shape, lambda *i: te.select(x[i] > 0.0, te.log(x[i]), 0.0))


def test_choices_keep_what_is_not_a_number_out_of_derivatives() -> None:
    program = relay.parse(
        '#[version = "0.0.5"]\ndef @main(%x: Tensor[(4,), float64]) { sum(test.logarithm_or_zero(%x)) }'
    )
    slope, given = relay.grad(program), np.array([4.0, 0.0, -1.0, 0.25])
    for found in (relay.compile(slope)(given), relay.evaluate(slope, given)):
        assert close(found, [0.25, 0.0, 0.0, 4.0], 1e-12)


_QUOTIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "a number by an index": lambda i, n: 7 % i + 7 // i,
    "a size by an index": lambda i, n: n % i + n // i,
    "an index by an index": lambda i, n: (2 * i + 1) % i + (2 * i) // i,
    "an index by what is zero within": lambda i, n: (i * i - i) // (i - 1) + (i * i) % (i - 1),
    "an index by a size": lambda i, n: i % n + (i * n) // n,
    "sizes less indices": lambda i, n: n - 1 - 2 * i + n * i,
}


@pytest.mark.parametrize("what", _QUOTIENTS)
def test_quotients_and_remainders_by_zero_are_zero(what: str) -> None:
    """Whatever the rules of division say of what is not zero; sizes stand on either side of what is done with indices."""
    value = _QUOTIENTS[what]

    @relay.operator("my.quotient")
    def quotient(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda i: te.cast(value(i, y.shape[0]), "float32"))

    try:
        module = relay.parse(
            '#[version = "0.0.5"]\n'
            "def @main[m: Dim, n: Dim](%x: Tensor[(m,), int8], %y: Tensor[(n,), int8]) { my.quotient(%x, %y) }"
        )
        for level in (0, 3):
            exe = relay.compile(module, opt_level=level, check_memory=True)
            for m, n in ((0, 1), (5, 0), (40, 1), (5, 3)):
                x, y = np.zeros(m, np.int8), np.zeros(n, np.int8)
                np.testing.assert_array_equal(np.asarray(exe(x, y)), np.asarray(relay.evaluate(module, x, y)))
    finally:
        registry.remove("my.quotient")


def test_a_size_that_is_divided_by_none_is_an_error_of_the_operator() -> None:
    @relay.operator("my.by_none")
    def by_none(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute((dim_floordiv(x.shape[0], y.shape[0]),), lambda i: x[i])

    try:
        module = relay.parse(
            '#[version = "0.0.5"]\n'
            "def @main[m: Dim, n: Dim](%x: Tensor[(m,), int8], %y: Tensor[(n,), int8]) { my.by_none(%x, %y) }"
        )
        with pytest.raises(RelayError, match=r"my\.by_none on"):
            relay.evaluate(module, np.zeros(3, np.int8), np.zeros(0, np.int8))
    finally:
        registry.remove("my.by_none")


def test_reductions_with_one_variable_are_traversed_each_in_its_own_way() -> None:
    """The first goes along both axes as one, the last has them apart."""

    @registry.operator("novel.shared")
    def shared(x: te.Tensor) -> te.Tensor:
        rows, height, width = x.shape
        k, c = te.reduce_axis(height, "k"), te.reduce_axis(width, "c")
        total = te.compute((rows,), lambda i: te.sum(x[i, k, c], (k, c)))
        most = te.compute((rows,), lambda i: te.max(x[i, k, c] - total[i], (k, c)))
        return te.compute(
            (rows, height),
            lambda i, j: te.sum(te.exp(x[i, k, c] - most[i]), (k, c)) * x[i, j, 0] + te.sum(x[i, j, c] * most[i], c),
        )

    x = np.random.default_rng(3).standard_normal((5, 8, 16)).astype("float32") * 0.2
    most = (x - x.sum((1, 2), keepdims=True)).max((1, 2))
    expected = np.exp(x - most[:, None, None]).sum((1, 2))[:, None] * x[:, :, 0] + x.sum(2) * most[:, None]
    try:
        text = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 8, 16), float32]) { novel.shared(%x) }'
        assert close(relay.compile(text)(x), expected, 1e-4)
        slope = relay.grad(relay.parse(text.replace("novel.shared(%x)", "sum(novel.shared(%x))")))
        assert close(relay.compile(slope)(x), relay.evaluate(slope, x), 1e-3)
    finally:
        registry.remove("novel.shared")


def test_what_a_choice_reads_is_read_where_the_choices_around_it_say_so() -> None:
    """Sampling at places that a tensor says: the second derivative's operators ask of these places only where a tap is one."""

    @registry.operator("novel.deformable")
    def deformable(x: te.Tensor, off: te.Tensor, w: te.Tensor) -> te.Tensor:
        b, c, height, width = x.shape

        def sample(n: Any, m: Any, t: Any, i: Any, j: Any) -> Any:
            y = off[n, 2 * t, i, j] + te.cast(i + t // 3 - 1, x.dtype)
            z = off[n, 2 * t + 1, i, j] + te.cast(j + t % 3 - 1, x.dtype)
            below, before = te.floor(y), te.floor(z)
            total = None
            for u in (0, 1):
                for v in (0, 1):
                    p, q = te.cast(below, "int64") + u, te.cast(before, "int64") + v
                    inside = (p >= 0) & (p < te.size(height)) & (q >= 0) & (q < te.size(width))
                    share = ((y - below) if u else 1.0 - (y - below)) * ((z - before) if v else 1.0 - (z - before))
                    one = te.select(inside, x[n, m, p, q] * share, 0.0)
                    total = one if total is None else total + one
            return total

        columns = te.compute((b, c, 9, height, width), sample)
        k, t = te.reduce_axis(c), te.reduce_axis(9)
        return te.compute(
            (b, w.shape[0], height, width),
            lambda n, q, i, j: te.sum(columns[n, k, t, i, j] * w[q, k, t // 3, t % 3], (k, t)),
        )

    try:
        program = relay.parse("""#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3, 5, 4), float64], %o: Tensor[(2, 18, 5, 4), float64], %w: Tensor[(3, 3, 3, 3), float64]) {
  let %y = novel.deformable(%x, %o, %w);
  %y * %y
}""")
        differentiated(relay.jvp(relay.grad(program, argnums=(0, 1, 2)), argnums=(0, 1, 2)))
    finally:
        registry.remove("novel.deformable")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("turned", [False, True])
def test_recurrences_along_rows(dtype: str, turned: bool) -> None:
    """Those that run in vectors (a sum, extremes, also of what is computed) and one that does not; nan stays what it met."""
    big = 1000 if dtype.startswith("int") else 1e30
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "greatest": te.maximum, "least": lambda s, x: te.minimum(x, s), "sum": lambda s, x: x * 2 + s, "product": lambda s, x: s * x,
        "fading": lambda s, x: s * 3 + x,
    }  # fmt: skip
    starts = {"greatest": -big, "least": big, "product": 1}
    for name, step in steps.items():
        start = starts.get(name, 0)

        def recurrence(x: te.Tensor, step: Any = step, start: Any = start) -> te.Tensor:
            first = te.cast(te.const(start, dtype), dtype)
            return te.scan(
                x.shape, 1, lambda b: first, lambda s, b, i: step(s, x[b, i]), dtype, reverse=turned, exclusive=turned
            )

        registry.operator("novel.recurrence")(recurrence)
        try:
            program = relay.parse(f"""#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, m), {dtype}]) {{ novel.recurrence(%x) }}""")
            exe = relay.compile(program)
            for shape in ((2, 0), (2, 1), (3, 17), (1, 100)):
                x = (np.random.default_rng(1).standard_normal(shape) * 2).astype(dtype)
                if dtype.startswith("float") and shape[1] > 20:
                    x[0, 60] = np.nan
                assert np.allclose(
                    np.asarray(exe(x)), np.asarray(relay.evaluate(program, x)), rtol=1e-4, atol=1e-4, equal_nan=True
                )
        finally:
            registry.remove("novel.recurrence")
