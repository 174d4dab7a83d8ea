"""What a program's author declares: operators that change between compilations, and gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import OperatorError, RelayError
from relay.op import custom_gradients, registry
from relay.op.custom_gradients import Applied
from relay.op.foreign import foreign_definitions
from relay.te.text import definition_text

TEXT = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 3), float32]) {{ {} }}'
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in [n for n in registry.names() if n.startswith("foreign.")]:
        custom_gradients.forget_rule(name)
        registry.remove(name)


def declare(add: float) -> None:
    @registry.operator("foreign.shift")
    def shift(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] + add)


def test_another_definition_is_another_program(tmp_path: Path) -> None:
    found = []
    for add in (1.0, 2.0, 1.0):
        declare(add)
        exe = relay.compile(TEXT.format("foreign.shift(%x)"), cache_dir=tmp_path)
        found.append((float(np.asarray(exe(X))[0, 0]), exe.from_cache))
    assert found == [(1.0, False), (2.0, False), (1.0, True)]


def test_its_derivative_too(tmp_path: Path) -> None:
    for by in (2.0, 3.0):

        @registry.operator("foreign.scale")
        def scale(x: te.Tensor, *, by: float = by) -> te.Tensor:
            return te.compute(x.shape, lambda *i: x[i] * by)

        slope: Any = relay.compile(relay.grad(relay.parse(TEXT.format("foreign.scale(%x)"))), cache_dir=tmp_path)(X)
        assert np.asarray(slope).tolist() == [[by] * 3] * 2


def test_what_no_definition_tells_is_not_kept(tmp_path: Path) -> None:
    for by in (2.0, 3.0):

        @registry.composition("foreign.twice")
        def twice(x: relay.Call, by: float = by) -> Any:
            return relay.op.multiply(x, relay.const(np.float32(by)))

        exe = relay.compile(TEXT.format("foreign.twice(%x)"), cache_dir=tmp_path)
        assert float(np.asarray(exe(X))[0, 1]) == by


def test_definitions_as_text() -> None:
    def text(width: int, scale: float) -> str:
        x = te.placeholder("x", (4, width), "float32")
        k = te.reduce_axis(width)
        inner = te.compute((4,), lambda i: te.sum(x[i, k] * scale, k))
        out = te.scan((4,), 0, lambda: 0.0, lambda s, i: te.select(i % 2 > 0, s + inner[i], s), "float32")
        return definition_text([x], [out])

    assert text(3, 1.0) == text(3, 1.0)
    assert len({text(3, 1.0), text(4, 1.0), text(3, 2.0)}) == 3
    assert foreign_definitions(relay.parse(TEXT.format("tanh(%x)")).functions.values()) == []


def test_a_gradient_rule() -> None:
    @registry.operator("foreign.softplus")
    def softplus(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: te.log1p(te.exp(x[i])))

    program = relay.parse(TEXT.format("foreign.softplus(%x)"))
    derived: Any = relay.compile(relay.grad(program))(X)
    asked = []

    @relay.gradient_rule("foreign.softplus")
    def rule(at: Applied) -> Any:
        asked.append(at.index)
        return relay.op.multiply(at.cotangents[0], relay.op.sigmoid(at.args[0]))

    own: Any = relay.compile(relay.grad(program))(X)
    assert asked and np.allclose(np.asarray(own), np.asarray(derived), rtol=1e-5)
    large: Any = relay.compile(relay.grad(program))(np.full((1, 3), 200, np.float32))
    assert np.asarray(large).tolist() == [[1.0] * 3]  # where the derived one is inf / inf


@pytest.mark.parametrize("rounded", [te.round, te.sign, lambda x: te.cast(te.cast(x, "int32"), "float32")])
def test_a_rule_of_what_goes_in_steps(rounded: Callable[[Any], Any]) -> None:
    """What follows from the expression is zero everywhere; the rule says otherwise, in both modes and for derivatives of them."""

    @registry.operator("foreign.steps")
    def steps(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: rounded(x[i]))

    program = relay.parse(TEXT.format("foreign.steps(%x)"))
    assert not np.asarray(relay.evaluate(relay.grad(program), X)).any()

    @relay.gradient_rule("foreign.steps")
    def straight_through(at: Applied) -> Any:
        return relay.op.multiply(at.cotangents[0], at.args[0])

    runs: list[Callable[..., Any]] = [relay.evaluate, lambda m, *a: relay.compile(m)(*a)]
    for run in runs:
        assert np.allclose(np.asarray(run(relay.grad(program), X)), X)
        assert np.allclose(np.asarray(run(relay.grad(relay.grad(program)), X)), 1)
        assert np.allclose(np.asarray(run(relay.jvp(program), X, 2 * X)[1]), 2 * X * X)

    @relay.gradient_rule("foreign.steps")
    def left_to_the_expression(at: Applied) -> Any:
        return None

    assert not np.asarray(relay.compile(relay.grad(program))(X)).any()


def test_a_rule_of_no_operator() -> None:
    with pytest.raises(OperatorError, match=r"unknown operator 'foreign.none'"):
        relay.gradient_rule("foreign.none")


def test_a_rule_that_gives_no_expression() -> None:
    declare(1.0)

    @relay.gradient_rule("foreign.shift")
    def rule(at: Applied) -> Any:
        return 3

    with pytest.raises(
        RelayError, match=r"the gradient rule of foreign.shift gives 3 for operand 0, expected an expression"
    ):
        relay.compile(relay.grad(relay.parse(TEXT.format("foreign.shift(%x)"))))


def test_a_rule_that_gives_another_type() -> None:
    declare(1.0)

    @relay.gradient_rule("foreign.shift")
    def rule(at: Applied) -> Any:
        return relay.op.sum(at.cotangents[0])

    with pytest.raises(
        RelayError,
        match=r"the gradient rule of foreign.shift gives float32 for operand 0, expected Tensor\[\(n, 3\), float32\]",
    ):
        relay.compile(relay.grad(relay.parse(TEXT.format("foreign.shift(%x)"))))
