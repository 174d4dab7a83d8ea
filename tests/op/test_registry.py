"""Declaring and calling operators, and that every operator is checked against an independent computation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay import op, te
from relay.ir.diagnostics import OperatorError, TypeError_
from relay.ir.expr import Call, Constant, OpRef, Tuple, Var
from relay.op import registry
from tests.op import harness as h
from tests.op import (
    test_attention,
    test_broadcast,
    test_dynamic,
    test_einsum,
    test_elementwise,
    test_images,
    test_matrix,
    test_reduction,
    test_scatter,
    test_shapes,
)

_FAMILIES = (
    test_attention, test_broadcast, test_dynamic, test_einsum, test_elementwise, test_images, test_matrix, test_reduction,
    test_scatter, test_shapes,
)  # fmt: skip
# Tests name the operators that they declare "test." something, some of them before this module is read.
BUILT_IN = [name for name in op.names() if not name.startswith("test.")]


def test_every_operator_is_checked() -> None:
    covered = [case.name for family in _FAMILIES for case in family.CASES]
    # Rows of nodes are checked where they are made: tests/batching/test_rows.py.
    assert sorted(covered) == [n for n in BUILT_IN if not n.startswith("rows.")]


def test_every_operator_is_documented() -> None:
    assert [name for name in BUILT_IN if not registry.get(name).doc.strip()] == []


def test_a_definition_says_whether_it_gives_several_tensors() -> None:
    """Its gradient is derived from that before there are operands."""

    def two(x: te.Tensor):  # type: ignore[no-untyped-def]
        return x, x

    def one(x: te.Tensor) -> tuple[te.Tensor, ...]:
        return te.compute(x.shape, lambda i: x[i])  # type: ignore[return-value]

    for define, found in ((two, "several tensors, .* `-> tuple"), (one, "one tensor, .* `-> te.Tensor`")):
        registry.operator("test.says_nothing")(define)
        try:
            with pytest.raises(relay.RelayError, match=f"its definition gives {found}"):
                relay.parse("fn (%x: Tensor[(3,), float32]) { test.says_nothing(%x) }")
        finally:
            registry.remove("test.says_nothing")


def test_calls_by_attribute() -> None:
    x, w = Var("x"), Var("w")
    made = op.nn.dense(x, w, units=8)
    assert isinstance(made, Call) and isinstance(made.fn, OpRef)
    assert made.fn.name == "nn.dense" and made.args == (x, w) and made.attrs == {"units": 8}


def test_arguments_become_constants_and_tuples() -> None:
    x = Var("x")
    made = op.concatenate([x, np.zeros((2, 2), np.float64)], axis=1)
    (fields,) = made.args
    assert isinstance(fields, Tuple) and fields.fields[0] is x
    constant = fields.fields[1]
    assert isinstance(constant, Constant) and constant.dtype == "float64" and not constant.data.flags.writeable
    one, flag, half = op.add(1, 2).args[0], op.logical_not(True).args[0], op.exp(0.5).args[0]
    assert [c.dtype for c in (one, flag, half) if isinstance(c, Constant)] == ["int32", "bool", "float32"]
    with pytest.raises(TypeError, match="not an expression"):
        op.exp("x")


def test_lists_are_accepted_as_attributes() -> None:
    made = op.nn.pad(Var("x"), pad_width=[[0, 1], [2, 3]])
    assert made.attrs["pad_width"] == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.add(Var("x")), r"add takes 2 operands \(lhs, rhs\), not 1"),
        (lambda: op.exp(Var("x"), axis=1), "no attribute 'axis'"),
        (lambda: op.reshape(Var("x")), "needs the attribute 'newshape'"),
        (lambda: op.reshape(Var("x"), newshape="8"), "'newshape' of reshape must be"),
        (lambda: op.zeros(shape=(1.5,)), r"'shape' of zeros must be a tuple of int or a size, not \(1.5,\)"),
        (lambda: op.argmax(Var("x"), select_last_index="a"), "'select_last_index' of argmax must be False, not 'a'"),
        (lambda: op.nn(Var("x")), "nn is not an operator"),
        (lambda: registry.get("nn.dens"), "unknown operator 'nn.dens'"),
    ],
)
def test_wrong_calls(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(OperatorError, match=message):
        make()


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="did you mean"):
        _ = op.ad
    assert not hasattr(op, "nothing_like_that") and not hasattr(op.nn, "nothing_like_that")
    assert "dense" in dir(op.nn)


def test_attributes_are_completed_and_checked() -> None:
    softmax = registry.get("nn.softmax")
    assert softmax.complete_attrs({}) == {"axis": -1}
    assert registry.get("clip").complete_attrs({"a_min": 0, "a_max": 1}) == {"a_min": 0.0, "a_max": 1.0}
    assert registry.get("sum").complete_attrs({"keepdims": 1})["keepdims"] is True
    assert registry.get("tile").complete_attrs({"reps": 2}) == {"reps": (2,)}


def test_user_operator() -> None:
    before = op.names()

    @op.operator("test.distance")
    def distance(x: te.Tensor, y: te.Tensor, *, scale: float = 1.0) -> te.Tensor:
        """The scaled squared distances between the rows of two matrices."""
        k = te.reduce_axis(te.require_equal(x.shape[1], y.shape[1], "the columns of test.distance"))
        d = te.compute((x.shape[0], y.shape[0], k.extent), lambda i, j, c: x[i, c] - y[j, c])
        return te.compute(d.shape[:2], lambda i, j: te.sum(d[i, j, k] * d[i, j, k] * scale, k))

    x, y = np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)
    try:
        made = distance(Var("x"), Var("y"), scale=2.0)
        assert isinstance(made.fn, OpRef) and made.fn.name == "test.distance"
        assert op.test.distance is distance
        got = h.apply("test.distance", x, y, scale=2.0, symbolic=True)
        np.testing.assert_allclose(got, 2 * ((x[:, None] - y[None]) ** 2).sum(-1))
        with pytest.raises(te.DefinitionError, match=r"the columns of test.distance must agree: 3 and 2"):
            h.apply("test.distance", x, np.ones((2, 2), np.float32))
    finally:
        registry.remove("test.distance")
    assert op.names() == before


def test_names_of_operators() -> None:
    def double(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] * 2.0)

    for name in ("", "my op", "1st", "if", "my.", "%x", "-", None, 3):
        with pytest.raises(OperatorError, match="cannot be an operator's name"):
            op.operator(name)(double)  # type: ignore[arg-type]
    for name in ("add", "nn.dense"):
        with pytest.raises(OperatorError, match="one of Relay's own"):
            op.operator(name)(double)
    try:
        first, second = op.operator("test.double")(double), op.operator("test.double")(double)
        assert registry.get("test.double") is second is not first  # one's own may be declared again, as in a notebook
    finally:
        registry.remove("test.double")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, i: x[i] if x[i] > 0 else 0.0, "te.select"),
        (lambda x, i: te.select((i > 0) and (i < 3), x[i], te.const(0.0, "float32")), "te.select"),
        (lambda x, i: x[i + 0.5], "0.5 is no int64"),
        (lambda x, i: te.cast(x[i], "int32") * 0.5, "0.5 is no int32"),
    ],
)
def test_definitions_that_python_would_decide_or_round(body: Callable[..., te.Scalar], message: str) -> None:
    try:
        op.operator("test.decided")(lambda x: te.compute(x.shape, lambda i: body(x, i)))
        with pytest.raises(TypeError_, match=message):
            relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(4,), float32]) { test.decided(%x) }')
    finally:
        registry.remove("test.decided")
