"""What is wrong with a definition is said where the operator is applied: in the author's words, with the program's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import RelayError
from relay.op import registry

PROGRAM = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 4), float32]) { wrong.op(%x) }'


def unknown(value: Any) -> Any:
    """A value of which the type checker knows nothing."""
    return value


def unpacks(x: te.Tensor) -> te.Tensor:
    a, b, c = x.shape
    return te.compute((a, b, c), lambda i, j, k: x[i, j])


def twice(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(4)
    return te.compute((2,), lambda i: te.sum(x[i, k], (k, k)))


def scan(axis: Any) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.scan(x.shape, axis, lambda i: 0.0, lambda s, i, j: s + x[i, j], "float32")


def same(body: Callable[..., Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.compute(x.shape, lambda i, j: body(x, i, j))


WRONG: dict[str, tuple[Callable[[te.Tensor], Any], str]] = {
    "a Python error": (unpacks, r"its definition fails: not enough values to unpack .*\n(.*\n)*.*ValueError at .*test_definitions.py:\d+"),
    "a size that is a float": (lambda x: te.compute((unknown(2.0), 4), lambda i, j: x[i, j]), r"size of axis 0 is 2\.0: sizes are whole"),
    "a negative size": (lambda x: te.compute((2,), lambda i: te.sum(x[i, 0], te.reduce_axis(-4))), r"the size of .* k is -4"),
    "a shape that is a size": (lambda x: te.compute(unknown(4), lambda i: x[0, i]), r"a shape is a sequence of sizes.* found 4"),
    "a sum over its own index": (same(lambda x, i, j: te.sum(x[i, j], j)), r"a reduction is over j, which says which element"),
    "a sum over an index twice": (twice, r"a sum is over k, k: one of them stands there twice"),
    "a position over two indices": (
        lambda x: te.compute((2,), lambda i: te.argmax(x[i, 0], unknown((te.reduce_axis(2), te.reduce_axis(4))))),
        r"an argmax is over one index variable, found 2: make one of all",
    ),
    "a position that is a float": (
        lambda x: te.compute((2,), lambda i: te.argmin(x[i, 0], te.reduce_axis(4), "float32")),
        r"the position that an argmin finds is an integer, found dtype 'float32'",
    ),
    "a sum over a number": (same(lambda x, i, j: te.sum(x[i, j], unknown((4,)))), r"is over index variables of te.reduce_axis, found 4"),
    "a function of floats": (same(lambda x, i, j: te.exp(te.cast(x[i, j], "int32"))), r"exp of int32: it is a function of floats"),
    "not of a float": (same(lambda x, i, j: ~x[i, j]), r"not of float32: it is for bool and integers"),
    "a choice by a number": (same(lambda x, i, j: te.select(x[i, j], x[i, j], 0.0)), r"chooses by a condition, found one of float32"),
    "a choice by ==": (same(lambda x, i, j: te.select(i == j, x[i, j], 0.0)), r"given Python's False as a condition: == and !="),
    "a scan along no axis": (scan(2), r"a scan over 2 axes goes along one of these, found axis 2"),
    "nothing": (lambda x: None, r"its definition gives None, expected a tensor"),
    "an element": (lambda x: x[0, 0], r"its definition gives .*, expected a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told(what: str) -> None:
    define, message = WRONG[what]

    def wrong(x: te.Tensor) -> Any:
        return define(x)

    registry.operator("wrong.op")(wrong)
    try:
        with pytest.raises(RelayError, match=message) as found:
            relay.parse(PROGRAM)
        assert "<text>:2:" in str(found.value)
    finally:
        registry.remove("wrong.op")


def test_python_s_operators() -> None:
    """Those that an author would use on numbers and bits."""

    def wrong(x: te.Tensor) -> te.Tensor:
        return te.compute(
            x.shape, lambda i, j: (2.0 ** x[i, j]) + abs(x[i ^ 1, (j << 1) >> 1]) + te.cast(6 ^ j, "float32")
        )

    registry.operator("wrong.op")(wrong)
    try:
        x = np.linspace(-1, 2, 8, dtype=np.float32).reshape(2, 4)
        expected = 2.0**x + np.abs(x[::-1]) + (6 ^ np.arange(4))
        module = relay.parse(PROGRAM)
        assert np.allclose(np.asarray(relay.evaluate(module, x)), expected, rtol=1e-6)
        assert np.allclose(np.asarray(relay.compile(module)(x)), expected, rtol=1e-5)
    finally:
        registry.remove("wrong.op")


def test_a_scan_along_an_axis_from_behind() -> None:
    registry.operator("wrong.op")(lambda x: scan(-1)(x))
    try:
        found = np.asarray(relay.evaluate(relay.parse(PROGRAM), np.ones((2, 4), np.float32)))
        assert found.tolist() == [[1, 2, 3, 4]] * 2
    finally:
        registry.remove("wrong.op")
