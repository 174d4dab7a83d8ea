"""The evaluation of tensor expressions against explicit loops: accesses, guards, reductions, recurrences, pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.ir.dim import as_var, dim_var
from relay.te import grid
from relay.te.evaluate import evaluate

Array = npt.NDArray[Any]


def _run(out: te.Tensor, **given: tuple[te.Tensor, Array]) -> Array:
    return evaluate([out], dict(given.values()))[0]


def _loops(shape: Sequence[int], body: Callable[..., Any], dtype: str) -> Array:
    out = np.empty(shape, dtype)
    for at in np.ndindex(*shape):
        out[at] = body(*at)
    return out


X = np.random.default_rng(0).uniform(-1, 1, (4, 5, 6)).astype(np.float32)


def _x() -> te.Tensor:
    return te.placeholder("x", X.shape, "float32")


ACCESSES: dict[str, tuple[tuple[int, ...], Callable[..., tuple[Any, Any, Any]]]] = {
    "identity": ((4, 5, 6), lambda i, j, k: (i, j, k)),
    "permuted": ((6, 4, 5), lambda i, j, k: (j, k, i)),
    "diagonal": ((4, 6), lambda i, j: (i, i, j)),
    "strided": ((2, 2, 3), lambda i, j, k: (i * 2, j * 2 + 1, k * 2)),
    "backwards": ((4, 5), lambda i, j: (3 - i, 4 - j, 0)),
    "window": ((3, 2, 4, 3), lambda i, j, k, m: (i + j, 2, k + m)),
    "split": ((4, 5, 2, 3), lambda i, j, k, m: (i, j, k * 3 + m)),
    "merged": ((20, 6), lambda i, j: (i // 5, i % 5, j)),
    "mixed": ((20, 6), lambda i, j: (i // 5, 4 - i % 5, j)),
    "constant": ((3,), lambda i: (1, 2, 3)),
    "repeated": ((4, 10, 6), lambda i, j, k: (i, j // 2, k)),
    "wrapped": ((9, 5, 6), lambda i, j, k: (i % 4, j, k)),
    "skewed": ((2, 3), lambda i, j: (i + j, j, i * 3)),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_accesses(name: str) -> None:
    shape, index = ACCESSES[name]
    x = _x()
    out = te.compute(shape, lambda *i: x[index(*i)] * 2.0)
    np.testing.assert_array_equal(
        _run(out, x=(x, X)), _loops(shape, lambda *i: X[index(*i)] * np.float32(2), "float32")
    )


@pytest.mark.parametrize("name", ACCESSES)
def test_accesses_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "BLOCK", 7)
    test_accesses(name)
    shape, _ = ACCESSES[name]
    x = _x()
    k = te.reduce_axis(6)
    total = te.compute(shape[:1], lambda i: te.sum(x[i % 4, i % 5, k] * x[i % 4, 0, k], k))
    wanted = _loops(shape[:1], lambda i: (X[i % 4, i % 5] * X[i % 4, 0]).sum(), "float32")
    np.testing.assert_allclose(_run(total, x=(x, X)), wanted, rtol=1e-5, atol=1e-6)


def test_views_and_not_gathers_for_affine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("an affine access was gathered")

    monkeypatch.setattr("relay.te.evaluate.gather", forbidden)
    for name in ("identity", "permuted", "diagonal", "strided", "backwards", "window", "split"):
        test_accesses(name)


def test_indirect_reads() -> None:
    x, rows = _x(), te.placeholder("rows", (7,), "int32")
    picks = np.array([3, 0, 0, 2, 1, 3, 2], np.int32)
    out = te.compute((7, 5, 6), lambda i, j, k: x[rows[i].astype("int64"), j, k])
    np.testing.assert_array_equal(_run(out, x=(x, X), rows=(rows, picks)), X[picks])
    both = te.compute((7, 6), lambda i, k: x[rows[i].astype("int64"), rows[6 - i].astype("int64"), k])
    np.testing.assert_array_equal(_run(both, x=(x, X), rows=(rows, picks)), X[picks, picks[::-1]])
    along = te.compute((4, 7), lambda i, j: x[i, j % 5, rows[j].astype("int64") + i % 2])
    wanted = _loops((4, 7), lambda i, j: X[i, j % 5, picks[j] + i % 2], "float32")
    np.testing.assert_array_equal(_run(along, x=(x, X), rows=(rows, picks)), wanted)


def test_a_guard_protects_reads_out_of_range() -> None:
    x = te.placeholder("x", (3,), "float32")
    data = np.array([1, 2, 3], np.float32)
    out = te.compute((7,), lambda i: te.select((i >= 2) & (i < 5), x[i - 2], -1.0))
    np.testing.assert_array_equal(_run(out, x=(x, data)), [-1, -1, 1, 2, 3, -1, -1])
    empty = te.placeholder("e", (0,), "float32")
    none = te.compute((2,), lambda i: te.select(i < 0, empty[i], 5.0))
    np.testing.assert_array_equal(_run(none, e=(empty, np.zeros(0, np.float32))), [5, 5])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sums_of_products_are_einsums(data: st.DataObject) -> None:
    letters = "abcdef"
    sizes = {c: data.draw(st.integers(1, 4)) for c in letters}
    subset = st.lists(st.sampled_from(letters), unique=True, max_size=4)
    operands = [data.draw(subset) for _ in range(data.draw(st.integers(2, 3)))]
    used = sorted(set(itertools.chain(*operands)))
    result = [c for c in used if data.draw(st.booleans())]
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [generator.integers(-3, 4, [sizes[c] for c in o]).astype(np.int32) for o in operands]
    tensors = [te.placeholder(f"t{n}", a.shape, "int32") for n, a in enumerate(arrays)]
    over = {c: te.reduce_axis(sizes[c]) for c in used if c not in result}

    def body(*i: Any) -> Any:
        at = {**dict(zip(result, i, strict=True)), **over}
        product = tensors[0][tuple(at[c] for c in operands[0])]
        for t, o in zip(tensors[1:], operands[1:], strict=True):
            product = product * t[tuple(at[c] for c in o)]  # type: ignore[assignment]
        return te.sum(product, tuple(over.values()))

    out = te.compute([sizes[c] for c in result], body)
    (got,) = evaluate([out], dict(zip(tensors, arrays, strict=True)))
    wanted = np.einsum(",".join("".join(o) for o in operands) + "->" + "".join(result), *arrays)
    np.testing.assert_array_equal(got, wanted)


def test_a_factor_that_does_not_depend_on_the_reduced_axes_counts_every_time() -> None:
    x, k, m = te.placeholder("x", (3,), "int32"), te.reduce_axis(4), te.reduce_axis(5)
    data = np.array([1, 2, 3], np.int32)
    out = te.compute((3,), lambda i: te.sum(x[i] * x[2 - i] * te.const(2, "int32"), (k, m)))
    np.testing.assert_array_equal(_run(out, x=(x, data)), data * data[::-1] * 40)


def test_how_often_a_factor_counts_wraps_as_the_sum_does() -> None:
    x, k = te.placeholder("x", (3,), "int8"), te.reduce_axis(200)
    data = np.array([1, 2, 3], np.int8)
    out = te.compute((3,), lambda i: te.sum(x[i] * x[2 - i], k))
    np.testing.assert_array_equal(_run(out, x=(x, data)), (data.astype(int) * data[::-1] * 200).astype(np.int8))


def test_every_kind_of_reduction_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, k, m = _x(), te.reduce_axis(5), te.reduce_axis(6)
    for block in (1 << 22, 10):
        monkeypatch.setattr(grid, "BLOCK", block)
        for make, fn in ((te.sum, np.sum), (te.prod, np.prod), (te.max, np.max), (te.min, np.min)):
            out = te.compute((4,), lambda i, make=make: make(x[i, k, m], (k, m)))
            np.testing.assert_allclose(_run(out, x=(x, X)), fn(X, axis=(1, 2)), rtol=1e-5)
            whole = te.compute((), lambda make=make: make(x[0, k, m], (k, m)))
            np.testing.assert_allclose(_run(whole, x=(x, X)), fn(X[0]), rtol=1e-5)
        for position, find in ((te.argmax, np.argmax), (te.argmin, np.argmin)):
            first = te.compute((4, 5), lambda i, j, p=position: p(x[i, j, m], m))
            np.testing.assert_array_equal(_run(first, x=(x, X)), find(X, axis=2))
        some = te.compute((4,), lambda i: te.any(x[i, k, 0] > 0.5, k))
        np.testing.assert_array_equal(_run(some, x=(x, X)), (X[:, :, 0] > 0.5).any(1))


def test_reductions_of_nothing() -> None:
    x, k = te.placeholder("x", (2, 0), "int8"), te.reduce_axis(0)
    empty = np.zeros((2, 0), np.int8)
    for make, wanted in ((te.sum, 0), (te.prod, 1), (te.max, -128), (te.min, 127)):
        out = te.compute((2,), lambda i, make=make: make(x[i, k], k))
        np.testing.assert_array_equal(_run(out, x=(x, empty)), [wanted] * 2)


def test_several_outputs_of_one_stage() -> None:
    x, k = _x(), te.reduce_axis(6)
    low, high = te.compute_many((4, 5), lambda i, j: (te.min(x[i, j, k], k), te.max(x[i, j, k], k)))
    got = evaluate([high, low], {x: X})
    np.testing.assert_array_equal(got[0], X.max(2))
    np.testing.assert_array_equal(got[1], X.min(2))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans(reverse: bool, exclusive: bool) -> None:
    x = te.placeholder("x", (3, 4), "float64")
    data = np.random.default_rng(1).uniform(-1, 1, (3, 4))
    start = np.arange(3.0)

    def wanted(step: Callable[[float, int, int], float]) -> Array:
        out = np.empty((3, 4))
        for i in range(3):
            state = start[i]
            for j in reversed(range(4)) if reverse else range(4):
                following = step(state, i, j)
                out[i, j] = state if exclusive else following
                state = following
        return out

    flags: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive}
    total = te.scan((3, 4), 1, lambda i: te.cast(i, "float64"), lambda s, i, j: s + x[i, j], "float64", **flags)
    np.testing.assert_allclose(_run(total, x=(x, data)), wanted(lambda s, i, j: s + data[i, j]))
    decay = te.scan(
        (3, 4), 1, lambda i: te.cast(i, "float64"), lambda s, i, j: s * 0.5 + x[i, j] * s, "float64", **flags
    )
    np.testing.assert_allclose(_run(decay, x=(x, data)), wanted(lambda s, i, j: s * 0.5 + data[i, j] * s))


def test_dim_variables() -> None:
    n = dim_var("n")
    x = te.placeholder("x", (n, 3), "float32")
    out = te.compute((3, 2 * n), lambda i, j: x[j // 2, i] + te.size(n, "float32"))
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    variable = as_var(n)
    assert variable is not None
    (got,) = evaluate([out], {x: data}, {variable: 4})
    np.testing.assert_array_equal(got, data.repeat(2, 0).T + 4)
    with pytest.raises(KeyError):
        evaluate([out], {x: data})


def test_wrong_arrays_are_refused() -> None:
    x = te.placeholder("x", (2, 3), "float32")
    out = te.compute((2, 3), lambda i, j: x[i, j])
    with pytest.raises(ValueError, match=r"x is float32 of shape \(2, 3\), but was given float64"):
        evaluate([out], {x: np.zeros((2, 3))})
    with pytest.raises(KeyError, match="no array for the placeholder x"):
        evaluate([out], {})


def test_results_do_not_alias_operands() -> None:
    x = te.placeholder("x", (3,), "float32")
    data = np.zeros(3, np.float32)
    got = evaluate([x, te.compute((3,), lambda i: x[i])], {x: data})
    for array in got:
        assert not np.shares_memory(array, data)


def test_deep_expressions_do_not_recurse() -> None:
    x = te.placeholder("x", (2,), "int32")

    def body(i: te.Scalar) -> te.Scalar:
        value: te.Scalar = x[i]
        for _ in range(5000):
            value = te.binary("xor", value, x[1 - i])
        return value

    np.testing.assert_array_equal(_run(te.compute((2,), body), x=(x, np.array([1, 2], np.int32))), [1, 2])
