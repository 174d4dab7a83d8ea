"""Sizes that are divided by zero are errors that say where, of the text as of definitions, whenever the zero is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import RelayError, ShapeError
from relay.ir.dim import dim_floordiv, dim_mod
from relay.op.registry import operator, remove

VERSION = '#[version = "0.0.5"]\n'
X = "%x: Tensor[(a, b), float32]"
CALL = "def @main(%x: Tensor[(4, 0), float32], %y: Tensor[(1,), float32]) { @f(%x) }"


@pytest.fixture(autouse=True)
def definitions() -> Iterator[None]:
    @operator("test.rows_a_column")
    def rows_a_column(x: te.Tensor) -> te.Tensor:
        return te.compute((dim_floordiv(x.shape[0], x.shape[1]),), lambda i: x[i, 0])

    @operator("test.rows_left")
    def rows_left(x: te.Tensor) -> te.Tensor:
        left = te.size(dim_mod(x.shape[0], x.shape[1]))
        return te.compute((x.shape[0],), lambda i: te.select(left.equal(0), 1.0, 2.0))

    @operator("test.whole_columns")
    def whole_columns(x: te.Tensor) -> te.Tensor:
        te.require_equal(dim_mod(x.shape[0], x.shape[1]), 0, "rows by columns")
        return te.compute((x.shape[0],), lambda i: te.const(1.0, "float32"))

    yield
    for name in ("rows_a_column", "rows_left", "whole_columns"):
        remove(f"test.{name}")


@pytest.mark.parametrize(
    "text",
    [
        "def @main[n: Dim](%x: Tensor[(n // 0,), float32]) { %x }",
        "def @main[n: Dim](%x: Tensor[(n,), float32]) { zeros(shape=[Dim[n % (n - n)]]) }",
        f"def @f[a: Dim, b: Dim]({X}) {{ zeros(shape=[Dim[a // b]]) }}\n{CALL}",
        f"def @f[a: Dim, b: Dim]({X}) -> Tensor[(a % b,), float32] {{ zeros(shape=[Dim[a % b]]) }}\n{CALL}",
        "type T[a: Dim, b: Dim] { C(Tensor[(a // b,), float32]) }\ndef @main(%x: T[4, 0]) { match (%x) { C(%y) => %y } }",
        "def @main(%x: Tensor[(4, 0), float32]) { test.rows_a_column(%x) }",
        "def @main(%x: Tensor[(?, 0), float32]) { test.rows_left(%x) }",
        "def @main(%x: Tensor[(4, 0), float32]) { test.whole_columns(%x) }",
        f"def @f[a: Dim, b: Dim]({X}) {{ test.rows_a_column(%x) }}\n{CALL}",
    ],
)
def test_a_program_is_refused_where_it_divides(text: str) -> None:
    with pytest.raises(RelayError, match=r"^<text>:\d+:\d+: .*(divides by zero|division of a dimension by zero)"):
        relay.parse(VERSION + text)


@pytest.mark.parametrize("name", ["rows_left", "whole_columns"])
def test_a_definition_that_divides_for_the_sizes_of_a_call_is_refused(name: str) -> None:
    module = relay.parse(f"{VERSION}def @f[a: Dim, b: Dim]({X}) {{ test.{name}(%x) }}\n{CALL}")
    given = np.zeros((4, 0), np.float32), np.zeros(1, np.float32)
    with pytest.raises(ShapeError, match=r"^<text>:2:\d+: .*divides by zero"):
        relay.evaluate(module, *given)
    with pytest.raises(ShapeError, match=r"^<text>:2:\d+: .*divides by zero"):
        relay.compile(module, cache=False)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_sizes_of_arguments_that_divide_by_zero(executor: str) -> None:
    module = relay.parse(f"{VERSION}def @main[a: Dim, b: Dim]({X}, %y: Tensor[(a // b,), float32]) {{ %y }}")
    given = np.zeros((4, 0), np.float32), np.zeros(1, np.float32)
    exe = relay.compile(module, executor=executor, cache=False)
    for run in (exe, lambda *args: relay.evaluate(module, *args)):
        with pytest.raises(ShapeError, match="zero"):
            run(*given)
