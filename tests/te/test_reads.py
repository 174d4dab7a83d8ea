"""Reads outside of a tensor are errors of the definition, wherever nothing excludes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError
from relay.op.registry import operator
from relay.te.evaluate import evaluate
from relay.te.reads import OutsideError

X = np.arange(6, dtype=np.float32)
Body = Callable[[te.Tensor, te.Scalar], object]


def _evaluated(body: Body, n: int = 6) -> np.ndarray:
    x = te.placeholder("x", (6,), "float32")
    return evaluate([te.compute((n,), lambda i: body(x, i), "y")], {x: X})[0]


# Each reads outside for some i; what is read there is not chosen, times zero, or chosen.
OUTSIDE: dict[str, Body] = {
    "one behind": lambda x, i: x[i + 1],
    "one before": lambda x, i: x[i - 1],
    "a factor of zero": lambda x, i: te.select(i < 5, te.const(1.0, "float32"), te.const(0.0, "float32")) * x[i + 1],
    "the wrong side": lambda x, i: te.select(i < 5, x[i], x[i + 1]),
    "a bound that is one too large": lambda x, i: te.select(i <= 5, x[i + 1], te.const(0.0, "float32")),
    "a condition beside another": lambda x, i: te.select((i < 5) & (x[i + 1] > 0.0), x[i], te.const(0.0, "float32")),
    "an index that is read": lambda x, i: x[x[i].astype("int64") * 2],
    "a quotient": lambda x, i: x[(i * 3) // 2],
    "one use of two": lambda x, i: te.select(i < 5, x[i + 1], te.const(0.0, "float32")) + x[i + 1],
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name: str) -> None:
    with pytest.raises(OutsideError, match=r"x of shape \[6\] is read outside: its index 0 is -?\d+ for i = \d"):
        _evaluated(OUTSIDE[name])


INSIDE: dict[str, Body] = {
    "chosen where it is inside": lambda x, i: te.select(i < 5, x[i + 1], te.const(0.0, "float32")),
    "two choices": lambda x, i: te.select(i < 5, te.select(x[i + 1] > 2.0, x[i + 1], x[i]), x[i]),
    "the other side": lambda x, i: te.select(i >= 5, x[i], x[i + 1]),
    "bounded": lambda x, i: x[te.minimum(i + 3, 5)],
    "around": lambda x, i: x[(i + 3) % 6],
}


@pytest.mark.parametrize("name", INSIDE)
def test_inside(name: str) -> None:
    assert _evaluated(INSIDE[name]).shape == (6,)


def test_reductions_and_recurrences() -> None:
    x = te.placeholder("x", (6,), "float32")
    k = te.reduce_axis(3)
    windows = te.compute((6,), lambda i: te.sum(x[i + k] * x[k], k), "windows")
    with pytest.raises(OutsideError):
        evaluate([windows], {x: X})
    guarded = te.compute((6,), lambda i: te.sum(te.select(i + k < 6, x[i + k] * x[k], te.const(0.0, "float32")), k))
    assert np.allclose(
        evaluate([guarded], {x: X})[0], [sum(X[i + j] * X[j] for j in range(3) if i + j < 6) for i in range(6)]
    )
    with pytest.raises(OutsideError):
        evaluate([te.scan((6,), 0, lambda: 0.0, lambda s, i: s + x[i + 1], "float32")], {x: X})
    with pytest.raises(OutsideError):
        evaluate([te.scan((6,), 0, lambda: x[6], lambda s, i: s * 2.0, "float32")], {x: X})


def test_nothing_is_inside_of_an_empty_tensor() -> None:
    x = te.placeholder("x", (0,), "float32")
    empty = np.zeros(0, np.float32)
    assert evaluate([te.compute((0,), lambda i: x[i])], {x: empty})[0].shape == (0,)
    with pytest.raises(OutsideError):
        evaluate([te.compute((2,), lambda i: x[te.minimum(i, 0)])], {x: empty})


@operator("test.reads_beyond")
def reads_beyond(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda i: te.select(data[i] >= 0.0, data[i + 1], data[i]), "beyond")


def test_the_message_has_operator_and_line() -> None:
    module = relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(4,), float32]) { test.reads_beyond(%x) }')
    with pytest.raises(ExecutionError, match=r"test.reads_beyond, defined in .*test_reads.py:\d+: data of shape \[4\]"):
        relay.evaluate(module, np.ones(4, np.float32))


@operator("test.reads_rows")
def reads_rows(data: te.Tensor, at: te.Tensor) -> te.Tensor:
    return te.compute((at.shape[0], data.shape[1]), lambda i, j: data[at[i], j], "rows")


@operator("test.reads_one")
def reads_one(data: te.Tensor, at: te.Tensor) -> te.Tensor:
    return te.compute((), lambda: data[0, at[0]], "one")


@pytest.mark.parametrize(
    "body",
    [
        "test.reads_rows(%x, %at)",
        "test.reads_rows(strided_slice(%x, begin=[0], end=[Dim[n // 2]]), %at)",
        "test.reads_rows(strided_slice(%x, begin=[1], end=[Dim[n]]) * 2f, %at)",
        "test.reads_rows(reverse(strided_slice(%x, begin=[0], end=[Dim[n // 2]]), axis=0), cumsum(%at, axis=0))",
        "test.reads_rows(transpose(strided_slice(%x, begin=[0], end=[3])), %at)",
        "test.reads_one(%x, %at)",
        "test.reads_one(strided_slice(%x, begin=[0], end=[1], axes=[1]), %at)",
    ],
)
def test_what_a_kernel_makes_ends_where_the_definition_says(body: str) -> None:
    """Compiled code reads a part of an operand, and a number in a row, where the operand lies: it goes on there."""
    text = (
        f'#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 2), float32], %at: Tensor[(2,), int64]) {{ {body} }}'
    )
    module = relay.parse(text)
    exe = relay.compile(module, cache=False)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    for at in ([0, 0], [0, 1], [1, 1], [2, 2], [3, 0], [5, 1], [6, 0], [-1, 0]):
        given = x, np.array(at)
        try:
            expected = np.asarray(relay.evaluate(module, *given))
        except ExecutionError:
            with pytest.raises(ExecutionError, match="an index is outside"):
                exe(*given)
        else:
            np.testing.assert_array_equal(np.asarray(exe(*given)), expected)
