"""Long and deep programs: no recursion over the program, nothing worse than linear."""

from __future__ import annotations

import time

import numpy as np

import relay
from relay.differentiate import differentiated
from relay.ir.builder import Let, call, if_
from relay.ir.expr import Expr
from relay.ir.module import Module
from relay.transform import DeadReferences, PartialEvaluate, Pipeline


def chain(length: int) -> Module:
    x = relay.var("x", (3,), "float64")
    let, value = Let(), x
    for n in range(length):
        operator = ("sin", "tanh", "cos")[n % 3]
        value = let.let("v", call("add", value, x) if n % 4 == 0 else call(operator, value))
    return Module({"main": relay.Function([x], let.result(value))})


def test_a_chain_of_ten_thousand_operators() -> None:
    start = time.perf_counter()
    module = differentiated(relay.grad(chain(10_000)))
    module = Pipeline([PartialEvaluate(), DeadReferences()])(module)
    assert time.perf_counter() - start < 60
    assert np.isfinite(np.asarray(relay.evaluate(module, np.full(3, 0.1)))).all()


def test_time_is_linear() -> None:
    def seconds(length: int) -> float:
        module = relay.grad(chain(length))
        start = time.process_time()
        differentiated(module)
        return time.process_time() - start

    seconds(100)
    small = min(seconds(1000) for _ in range(2))
    assert seconds(8000) < 8 * small * 3


def test_deep_branches() -> None:
    """Branches inside branches, two thousand deep."""
    x, n = relay.var("x", (), "float64"), relay.var("n", (), "int32")
    body: Expr = x
    for k in range(2000):
        inner = call("add", body, x) if k % 500 == 0 else body
        body = if_(call("greater", n, relay.const(k, "int32")), inner, x)
    module = relay.grad(Module({"main": relay.Function([x, n], body)}))
    assert np.isfinite(np.asarray(relay.evaluate(module, 0.5, np.int32(5000))))


def test_deep_recursion() -> None:
    text = """#[version = "0.0.5"]
def @f(%x: float64, %n: int32) -> float64 { if (%n < 1) { %x } else { sin(@f(%x, %n - 1)) + %x } }
def @main(%x: float64, %n: int32) { @f(%x, %n) }"""
    gradient = relay.grad(relay.parse(text))
    n = np.int32(20_000)
    found = relay.compile(gradient, cache=False)(0.1, n)
    expected, slope = 0.1, 1.0
    for _ in range(int(n)):
        expected, slope = np.sin(expected) + 0.1, np.cos(expected) * slope + 1
    np.testing.assert_allclose(np.asarray(found), slope)
