"""Operators whose indices are quotients, remainders, magnitudes and wraps: what they compute, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from novel_definitions import (
    butterfly,
    distance_attention,
    kronecker,
    overlapped,
    power_spectrum,
    sorting_network,
    subpixel,
    tensor_train,
)

import relay
from relay import te
from relay.ir.dim import dim_floordiv
from relay.op import registry

Array = np.ndarray[Any, Any]


def far_round(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Read in a circle with a step, of a tensor that may have no elements, several times."""
    n, m = te.size(x.shape[2]), te.size(x.shape[1])
    r, k = te.reduce_axis(x.shape[1]), te.reduce_axis(8)

    def body(i: Any) -> Any:
        place, back = (3 * k + 1) % n, (3 * k) % te.maximum(2 * m - 2, 1)
        return te.sum(
            te.select(place < n, x[n - 1 - i, r, place], 0.0)
            * te.select(m > 0, w[te.minimum(te.minimum(back, te.abs(2 * m - 2 - back)), te.maximum(m - 1, 0))], 1.0),
            (r, k),
        )

    sums = te.compute((x.shape[0],), body)
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: sums[j] * te.select(n > 0, sums[0], 1.0))


def reflected(x: te.Tensor) -> te.Tensor:
    h, w = x.shape

    def at(i: Any, n: Any) -> Any:
        return (te.size(n) - 1) - te.abs((te.size(n) - 1) - te.abs(i))

    def body(i: Any, j: Any) -> Any:
        return x[at(i + 1, h), j] + x[at(i - 1, h), j] * x[i, at(j + 1, w)] + x[i, at(j - 1, w)]

    return te.compute(x.shape, body)


def outer_product_mean(a: te.Tensor, b: te.Tensor, w: te.Tensor) -> te.Tensor:
    s, n, c = a.shape
    q, d, e = te.reduce_axis(s), te.reduce_axis(c), te.reduce_axis(c)
    return te.compute((n, n, w.shape[2]), lambda i, j, z: te.sum(a[q, i, d] * b[q, j, e] * w[d, e, z], (q, d, e)) * 0.5)


def bilinear(x: te.Tensor, y: te.Tensor, w: te.Tensor) -> te.Tensor:
    i, j = te.reduce_axis(x.shape[1]), te.reduce_axis(y.shape[1])
    return te.compute((x.shape[0], w.shape[0]), lambda b, o: te.sum(x[b, i] * y[b, j] * w[o, i, j], (i, j)))


def folded(x: te.Tensor) -> te.Tensor:
    sizes: Any = x.shape
    c, _, p = sizes
    r = te.reduce_axis(3)

    def body(m: Any, y: Any) -> Any:
        a = y - r
        return te.sum(te.select((a % 2).equal(0) & (a >= 0) & (a // 2 < te.size(p)), x[m, r, a // 2], 0.0), r)

    return te.compute((c, 2 * p + 1), body)


def spread(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """A transposed convolution of stride 3 and dilation 2, by the condition that a place is hit."""
    sizes: Any = x.shape
    b, c, n = sizes
    k, r = te.reduce_axis(c), te.reduce_axis(4)

    def body(m: Any, o: Any, i: Any) -> Any:
        p = i - 2 * r
        return te.sum(
            te.select((p >= 0) & (p % 3).equal(0) & (p // 3 < te.size(n)), x[m, k, p // 3], 0.0) * w[k, o, r], (k, r)
        )

    return te.compute((b, w.shape[1], 3 * n + 4), body)


def attended_by_distance(q: Array, k: Array, v: Array) -> Array:
    i = np.arange(q.shape[1])
    scores = q @ k.transpose(0, 2, 1) / 3**0.5 - 0.5 ** np.arange(1, 3)[:, None, None] * (i[:, None] - i)
    grown = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30)) * (i <= i[:, None])
    out: Array = grown / grown.sum(-1, keepdims=True) @ v
    return out


def spread_by_places(x: Array, w: Array) -> Array:
    out = np.zeros((2, 2, 3 * x.shape[2] + 4), x.dtype)
    for p in range(x.shape[2]):
        for r in range(4):
            out[:, :, 3 * p + 2 * r] += x[:, :, p] @ w[:, :, r]
    return out


def overlapped_by_places(x: Array) -> Array:
    c, _, _, p, q = x.shape
    out = np.zeros((c, 2 * p + 1, 2 * q + 1), x.dtype)
    for r in range(3):
        for s in range(3):
            out[:, r : r + 2 * p : 2, s : s + 2 * q : 2] += x[:, r, s]
    return out


def circular(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(5)
    return te.compute(x.shape, lambda i, j: te.sum(x[i, (j + k - 2) % te.size(x.shape[1])] * w[k], k))


def round_both_axes(x: te.Tensor) -> te.Tensor:
    h, w = x.shape
    r, s = te.reduce_axis(3), te.reduce_axis(3)

    def largest(i: Any, j: Any) -> Any:
        return te.max(x[(2 * r + i - 2) % te.size(h), (j + s + te.size(w) - 1) % te.size(w)], (r, s))

    return te.compute((h, w), lambda i, j: largest(i, j) * x[i, (j + 1) % te.size(w)] - x[(i - 1) % te.size(h), j])


def stretched(x: te.Tensor) -> te.Tensor:
    """Read by quotients by expressions of the size, which are no sizes: the greater of two, a magnitude."""
    length: Any = x.shape[0]
    n = te.size(length)

    def body(i: Any) -> Any:
        a, b = (3 * i) // te.maximum(n, 2), (5 * i + 1) // (te.abs(n - 4) + 1)
        return te.select(a < n, x[a], 0.0) * te.select(b < n, x[b], 1.0)

    return te.compute((length * 2 + 1,), body)


@dataclass(frozen=True)
class Case:
    define: Callable[..., te.Tensor]
    shapes: Callable[[int], Sequence[tuple[int, ...]]]  # of the operands, by n
    types: str  # of the operands, in terms of n
    reference: Callable[..., Array] | None = None


CASES = {
    "butterfly": Case(
        butterfly, lambda n: [(3, 8 * n), (8 * n, 2)], "%a: Tensor[(3, 8*n), D], %b: Tensor[(8*n, 2), D]",
        lambda x, w: x * w[:, 0] + x.reshape(3, -1, 2, 4)[:, :, ::-1].reshape(x.shape) * w[:, 1],
    ),
    "reflected": Case(reflected, lambda n: [(n + 2, n + 3)], "%a: Tensor[(n + 2, n + 3), D]"),
    "subpixel": Case(
        subpixel, lambda n: [(2, n, n + 1), (8, 2, 3, 3)], "%a: Tensor[(2, n, n + 1), D], %b: Tensor[(8, 2, 3, 3), D]"
    ),
    "outer product mean": Case(
        outer_product_mean, lambda n: [(n, 4, 3), (n, 4, 3), (3, 3, 5)],
        "%a: Tensor[(n, 4, 3), D], %b: Tensor[(n, 4, 3), D], %c: Tensor[(3, 3, 5), D]",
        lambda a, b, w: np.einsum("qid,qje,dez->ijz", a, b, w) * 0.5,
    ),
    "sorting network": Case(sorting_network, lambda n: [(n, 8)], "%a: Tensor[(n, 8), D]", lambda x: np.sort(x, 1)),
    "bilinear": Case(
        bilinear, lambda n: [(n, 5), (n, 6), (4, 5, 6)], "%a: Tensor[(n, 5), D], %b: Tensor[(n, 6), D], %c: Tensor[(4, 5, 6), D]",
        lambda x, y, w: np.einsum("bi,bj,oij->bo", x, y, w),
    ),
    "tensor train": Case(
        tensor_train, lambda n: [(2, 3 * n), (3, 2, 4), (4, n, 5)],
        "%a: Tensor[(2, 3*n), D], %b: Tensor[(3, 2, 4), D], %c: Tensor[(4, n, 5), D]",
        lambda x, a, b: np.einsum("zpq,pxr,rqy->zxy", x.reshape(2, 3, -1), a, b).reshape(2, 10),
    ),
    "kronecker": Case(
        kronecker, lambda n: [(4, 3), (n, n + 1), (2, 3 * n + 3)],
        "%a: Tensor[(4, 3), D], %b: Tensor[(n, n + 1), D], %c: Tensor[(2, 3*n + 3), D]",
        lambda a, b, x: x @ np.kron(a, b).T,
    ),
    "attention by distance": Case(
        distance_attention, lambda n: [(2, n, 3)] * 3,
        "%a: Tensor[(2, n, 3), D], %b: Tensor[(2, n, 3), D], %c: Tensor[(2, n, 3), D]", attended_by_distance,
    ),
    "power spectrum": Case(
        power_spectrum, lambda n: [(3 * n + 6,), (6,)], "%a: Tensor[(3*n + 6,), D], %b: Tensor[(6,), D]",
        lambda x, w: np.abs(np.fft.rfft(np.lib.stride_tricks.sliding_window_view(x, 6)[::3] * w)) ** 2,
    ),
    "spread": Case(
        spread, lambda n: [(2, 3, n), (3, 2, 4)], "%a: Tensor[(2, 3, n), D], %b: Tensor[(3, 2, 4), D]", spread_by_places
    ),
    "overlapped": Case(overlapped, lambda n: [(2, 3, 3, n, n + 1)], "%a: Tensor[(2, 3, 3, n, n + 1), D]",
        overlapped_by_places,
    ),
    "circular": Case(
        circular, lambda n: [(2, n), (5,)], "%a: Tensor[(2, n), D], %b: Tensor[(5,), D]",
        lambda x, w: np.add.reduce([np.roll(x, 2 - k, 1) * w[k] for k in range(5)]),
    ),
    "far round": Case(
        far_round, lambda n: [(n, n + 1, n), (n + 1,)], "%a: Tensor[(n, n + 1, n), D], %b: Tensor[(n + 1,), D]"
    ),
    "round both axes": Case(
        round_both_axes, lambda n: [(n, n + 1)], "%a: Tensor[(n, n + 1), D]",
        lambda x: np.max([np.roll(x, (2 - 2 * r, 1 - s), (0, 1)) for r in range(3) for s in range(3)], 0)
        * np.roll(x, -1, 1) - np.roll(x, 1, 0),
    ),
    "stretched": Case(
        stretched, lambda n: [(n,)], "%a: Tensor[(n,), D]",
        lambda x: np.array([
            (x[3 * i // max(len(x), 2)] if 3 * i // max(len(x), 2) < len(x) else 0)
            * (x[(5 * i + 1) // (abs(len(x) - 4) + 1)] if (5 * i + 1) // (abs(len(x) - 4) + 1) < len(x) else 1)
            for i in range(2 * len(x) + 1)
        ]),
    ),
    "folded": Case(folded, lambda n: [(3, 3, n)], "%a: Tensor[(3, 3, n), D]"),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found = CASES[request.param]
    registry.operator("unusual.op")(found.define)
    yield found
    registry.remove("unusual.op")


def program(case: Case, dtype: str, n: int | None, result: str = "{}") -> relay.Module:
    types = case.types.replace("D]", f"{dtype}]")
    names = ", ".join(part.split(":")[0] for part in types.split(", %")).replace("%", "")
    call = f"unusual.op({', '.join('%' + name for name in names.split(', '))})"
    dims = "[n: Dim]"
    if n is not None:
        for text in ("8*n", "3*n + 6", "3*n + 3", "3*n", "n + 1", "n + 2", "n + 3"):
            types = types.replace(text, str(eval(text, {"n": n})))
        types, dims = types.replace("(n,", f"({n},").replace(" n)", f" {n})").replace(" n,", f" {n},"), ""
    return relay.parse(f'#[version = "0.0.5"]\ndef @main{dims}({types}) {{ {result.format(call)} }}')


def drawn(case: Case, n: int, dtype: str) -> list[Array]:
    rng = np.random.default_rng(n)
    return [rng.standard_normal(s).astype(dtype) for s in case.shapes(n)]


def leaves(value: Any) -> list[Array]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


def test_what_it_computes(case: Case) -> None:
    compiled = relay.compile(program(case, "float32", None))
    for n in (0, 1, 2, 5, 9, 80):
        given = drawn(case, n, "float32")
        wanted = np.asarray(relay.evaluate(program(case, "float32", None), *given))
        if case.reference is not None:
            np.testing.assert_allclose(wanted, case.reference(*given), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.asarray(compiled(*given)), wanted, rtol=1e-4, atol=1e-5)
        fixed = relay.compile(program(case, "float32", n))(*given)
        np.testing.assert_allclose(np.asarray(fixed), wanted, rtol=1e-4, atol=1e-5)


def test_its_derivative(case: Case) -> None:
    """Against differences of the compiled operator, in both forms; of nothing, against the interpreter."""
    n = 3
    given = drawn(case, n, "float64")
    numbers = tuple(range(len(given)))
    value = relay.compile(program(case, "float64", None, "sum(sin({}))"))
    for size in (None, n):
        gradient = relay.grad(program(case, "float64", size, "sum(sin({}))"), argnums=numbers)
        compiled: Any = relay.compile(gradient)
        if size is None:
            nothing = drawn(case, 0, "float64")
            slopes = zip(leaves(compiled(*nothing)), leaves(relay.evaluate(gradient, *nothing)), strict=True)
            assert all(np.allclose(a, b) for a, b in slopes)
        found: Any = compiled(*given)
        for number, array in enumerate(leaves(found)):
            assert array.shape == given[number].shape
            for at in list(np.ndindex(array.shape))[:: max(1, array.size // 12)]:
                ends = []
                for step in (1e-6, -1e-6):
                    moved = [g.copy() for g in given]
                    moved[number][at] += step
                    ends.append(float(np.asarray(value(*moved))))
                assert array[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7), (size, number, at)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_segment_s_extreme_with_a_number_for_nothing(kind: str) -> None:
    """The number counts where something is left out, and only there: elements may lie beyond it."""
    number = -1.0 if kind == "max" else 1.0

    def segments(x: te.Tensor, place: te.Tensor, like: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(x.shape[0])
        extreme: Any = getattr(te, kind)

        def body(s: Any) -> Any:
            return extreme(te.select(te.cast(place[k], "int64").equal(s), x[k], number), k)

        return te.compute(like.shape, body)

    registry.operator("unusual.segments")(segments)
    try:
        text = """#[version = "0.0.5"]
def @main[n: Dim, s: Dim](%x: Tensor[(n,), float64], %p: Tensor[(n,), int32], %l: Tensor[(s,), float64]) {
  unusual.segments(%x, %p, %l)
}"""
        module = relay.parse(text)
        exe, slopes = relay.compile(module), relay.compile(relay.grad(module))
        rng = np.random.default_rng(0)
        for n, s in ((0, 2), (1, 1), (7, 1), (40, 6), (300, 50)):
            x, place, like = rng.standard_normal(n) * 2, rng.integers(0, s, n).astype(np.int32), np.zeros(s)
            wanted = np.full(s, -np.inf if kind == "max" else np.inf)
            for z in range(s):
                each = np.where(place == z, x, number)
                wanted[z] = getattr(np, kind)(each, initial=wanted[z])
            np.testing.assert_array_equal(np.asarray(exe(x, place, like)), wanted)
            np.testing.assert_array_equal(np.asarray(relay.evaluate(module, x, place, like)), wanted)
            taken = (x == wanted[place]).astype(float)
            np.testing.assert_allclose(np.asarray(slopes(x, place, like)), taken)
        # In one pass over the elements, not one for each segment.
        x, place, like = (
            rng.standard_normal(200_000),
            rng.integers(0, 20_000, 200_000).astype(np.int32),
            np.zeros(20_000),
        )
        assert np.asarray(exe(x, place, like)).shape == (20_000,)
    finally:
        registry.remove("unusual.segments")


def test_a_product_of_blocks_at_places() -> None:
    """Blocks of a sparse matrix, put where two tensors say: an axis of blocks and one of rows in them, which no loop makes one."""

    def blocks(b: te.Tensor, x: te.Tensor, row: te.Tensor, column: te.Tensor, like: te.Tensor) -> te.Tensor:
        e, p, q = b.shape
        k, r = te.reduce_axis(e), te.reduce_axis(q)
        part = te.compute(
            (e, p, x.shape[1]), lambda n, i, j: te.sum(b[n, i, r] * x[te.cast(column[n], "int64") * 4 + r, j], r)
        )
        rows: Any = like.shape[0]
        return te.compute(
            (rows * 4, x.shape[1]),
            lambda i, j: te.sum(te.select(te.cast(row[k], "int64").equal(i // 4), part[k, i % 4, j], 0.0), k),
        )

    registry.operator("unusual.blocks")(blocks)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[e: Dim, n: Dim, m: Dim, r: Dim](%b: Tensor[(e, 4, 4), float64], %x: Tensor[(4*n, m), float64], %i: Tensor[(e,), int32],
    %j: Tensor[(e,), int32], %l: Tensor[(r,), float64]) { unusual.blocks(%b, %x, %i, %j, %l) }""")
        exe = relay.compile(module)
        rng = np.random.default_rng(0)
        for e, n, m, r in ((5, 3, 6, 4), (1, 1, 1, 1), (0, 2, 2, 2), (12, 5, 9, 7)):
            b, x = rng.standard_normal((e, 4, 4)), rng.standard_normal((4 * n, m))
            i, j = rng.integers(0, r, e).astype(np.int32), rng.integers(0, n, e).astype(np.int32)
            wanted = np.zeros((r, 4, m))
            for each in range(e):
                wanted[i[each]] += b[each] @ x[4 * j[each] : 4 * j[each] + 4]
            found = np.asarray(exe(b, x, i, j, np.zeros(r)))
            np.testing.assert_allclose(found, wanted.reshape(4 * r, m), atol=1e-12)
    finally:
        registry.remove("unusual.blocks")


def test_an_axis_of_one_element_is_none_to_loop_over() -> None:
    """Where an expression of it is no sum, and values are integers as indices are."""

    def mirrored(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        def body(i: Any, j: Any, k: Any) -> Any:
            at = te.abs((1 + j) % 14)
            row, column = te.minimum(te.maximum(te.minimum(at, 14 - at), 0), 7), k * -3 // 4
            inside = (row >= 0) & (row < 8) & (column >= 0)
            return te.select(y[i % 2] > y[k % 2], te.select(inside, x[row, column], 0), 1)

        return te.compute((16, 1, 3), body)

    registry.operator("unusual.mirrored")(mirrored)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main(%x: Tensor[(8, 33), int64], %y: Tensor[(2,), int64]) { unusual.mirrored(%x, %y) }""")
        given = np.arange(8 * 33).reshape(8, 33), np.array([3, 5])
        expected = np.asarray(relay.evaluate(module, *given))
        assert expected[1, 0, 0] == 33
        assert np.array_equal(np.asarray(relay.compile(module)(*given)), expected)
    finally:
        registry.remove("unusual.mirrored")


def test_a_size_that_divides_and_may_be_zero_where_others_are_not() -> None:
    """A gradient goes back through a quotient where there are remainders below the divisor, and where there are none."""

    def repeated(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        per = dim_floordiv(y.shape[0], x.shape[0])
        return te.compute(y.shape, lambda i: x[te.minimum(i // te.size(per), te.size(x.shape[0]) - 1)] * y[i])

    registry.operator("unusual.repeated")(repeated)
    try:
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]) { unusual.repeated(%x, %y) }""")
        forward, backward = relay.compile(module), relay.compile(relay.grad(module, argnums=0))
        x, y = np.arange(1, 4, dtype=np.float32), np.arange(1, 8, dtype=np.float32)
        np.testing.assert_array_equal(np.asarray(forward(x, y)), x[np.minimum(np.arange(7) // 2, 2)] * y)
        np.testing.assert_array_equal(np.asarray(backward(x, y)), [3, 7, 18])
        assert len(np.asarray(backward(x, y[:0]))) == 3
        np.testing.assert_array_equal(np.asarray(forward(x, y[:2])), x[0] * y[:2])
        np.testing.assert_array_equal(np.asarray(backward(x, y[:2])), [3, 0, 0])
    finally:
        registry.remove("unusual.repeated")
