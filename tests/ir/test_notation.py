"""Expressions as Python sees them: arithmetic, and what is printed."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir import builder
from relay.ir.diagnostics import OperatorError, RelayError, TypeError_
from relay.ir.equality import alpha_equal
from relay.ir.expr import Call, Expr, Function, OpRef, Proj

X = np.array([[1.0, 2.0, 3.0], [0.5, 0.25, 4.0]], np.float32)
W = np.array([[1.0, -1.0], [2.0, 0.5], [0.25, 3.0]], np.float32)


def test_arithmetic_is_that_of_arrays() -> None:
    x, w = relay.var("x", (2, 3)), relay.var("w", (3, 2))
    row = np.array([1.0, 2.0, 4.0], np.float32)
    bodies: list[tuple[Expr, np.ndarray]] = [
        (x + 1.0, X + 1),
        (1.0 + x, 1 + X),
        (x - row, X - row),
        (row - x, row - X),
        (x * x, X * X),
        (2.0 * x, 2 * X),
        (x / 4.0, X / 4),
        (1.0 / x, 1 / X),
        (x**2.0, X**2),
        (2.0**x, 2**X),
        (-x, -X),
        (x @ w, X @ W),
        (x @ row, X @ row),
        (np.ones((1, 2), np.float32) @ x, np.ones((1, 2), np.float32) @ X),
    ]
    for body, wanted in bodies:
        found = relay.evaluate(relay.Function([x, w], body), X, W)
        assert np.allclose(np.asarray(found), wanted, rtol=1e-5), body


def test_the_constants_are_those_of_the_text() -> None:
    x = relay.var("x", (2,))
    same = relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) { (1f - %x) * 2f }')
    assert alpha_equal(relay.infer_type(relay.Function([x], (1.0 - x) * 2.0)), same)
    with pytest.raises(RelayError):
        x + "one"


def test_what_is_printed_is_text() -> None:
    x = relay.var("x", ("n", 3))
    f = relay.Function([x], relay.op.nn.relu(x - 1.0))
    assert repr(f) == ("fn[n: Dim] (%x: Tensor[(n, 3), float32]) {\n  %0 = subtract(%x, 1f);\n  nn.relu(%0)\n}")
    again = relay.infer_type(f)
    assert repr(again) == str(again)
    large = relay.const(np.zeros((100, 100), np.float32))
    for node in (x, large, Proj(x, 0), Call(OpRef("nothing"), (x,)), builder.if_(x, x, large), builder.dim("k")):
        assert 0 < len(repr(node)) < 200
    assert repr(relay.op.nn.softmax).startswith("nn.softmax(data, *, axis=-1)\n")


def test_an_executable_says_its_entries() -> None:
    text = """#[version = "0.0.5"]
import prelude
def @main[n: Dim](%x: Tensor[(n, 3), float32], %y: List[(Tensor[(), int32], Tensor[(?,), bool])]) -> List[Tensor[(2,), int8]] { Nil }
def @other(%x: Tensor[(), float32]) { (%x,) }"""
    module = relay.parse(text)
    exe = relay.compile(module, entries=["main", "other"], cache=False)
    assert repr(exe).splitlines() == [
        "an executable of",
        "  @main(%x: Tensor[(n, 3), float32], %y: List[(Tensor[(), int32], Tensor[(?,), bool])]) -> List[Tensor[(2,), int8]]",
        "  @other(%x: Tensor[(), float32]) -> (Tensor[(), float32],)",
    ]


def test_programs_are_modules_functions_and_texts() -> None:
    x = relay.var("x", ("n",))
    f = relay.Function([x], x + x)
    text = "def @main[n: Dim](%x: Tensor[(n,), float32]) { %x + %x }"
    text = f'#[version = "0.0.5"]\n{text}'
    for program in (f, text, relay.parse(text)):
        assert np.array_equal(np.asarray(relay.evaluate(program, X[0])), X[0] * 2)
        assert isinstance(relay.infer_type(program).function("main"), Function)
    for wrong in (3, x, None):
        with pytest.raises(TypeError_, match="is not a program"):
            relay.evaluate(wrong, X[0])  # type: ignore[arg-type]
    with pytest.raises(RelayError, match="load_module"):
        relay.compile("model.relay")


def test_names_that_cannot_be() -> None:
    with pytest.raises(RelayError, match="'n m' is not the name of a size"):
        relay.var("x", ("n m", 2))
    with pytest.raises(OperatorError, match="add is an operator already"):
        relay.operator("test.notation")(relay.op.add)
