"""What cannot be differentiated is refused with its place; the derivatives of what is no tensor are as documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import CompileError
from relay.ir.types import TensorType, TupleType

V = "Tensor[(3,), float64]"
VERSION = '#[version = "0.0.5"]\nimport prelude\n'

REFUSED = {
    "its own gradient": (
        f"def @f(%x: {V}) -> {V} {{ grad(@f)(%x).1.0 }}\ndef @main(%x: {V}) {{ @f(%x) }}", "takes its own gradient", 3),
    "a gradient of unknown order": (
        f"def @nth(%n: int32, %f: fn({V}) -> {V}) -> fn({V}) -> {V} {{ if (%n == 0) {{ %f }} else {{ @nth(%n - 1, fn (%x: {V}) -> {V} {{\n"
        f"grad(%f)(%x).1.0 }}) }} }}\ndef @main(%x: {V}) {{ let %g = @nth(cast(sum(%x), dtype=\"int32\"), fn (%y: {V}) -> {V} "
        f"{{ sin(%y) }}); %g(%x) }}", "takes its own gradient", 4),
    "an unknown function": (f"def @main(%x: {V}, %g: fn({V}) -> {V}) {{\n grad(%g)(%x) }}", "not known here", 4),
    "an unknown function that is called": (
        f"def @main(%x: {V}, %g: fn({V}) -> {V}) {{\n grad(fn (%y: {V}) {{ %g(%y) }})(%x) }}", "not known here", 3),
    "nothing to differentiate": (f"def @main(%x: {V}) {{\n grad(fn (%y: {V}) {{ sum(%y) > 0f64 }})(%x) }}", "nothing to differentiate", 4),
    "a reference from outside": (
        f"def @main(%x: {V}, %r: Ref[{V}]) {{\n grad(fn (%y: {V}) {{ !%r * %y }})(%x) }}", "a reference from outside", 4),
    "a function in data": (
        f"type T {{ T(fn({V}) -> {V}, {V}) }} def @main(%x: {V}) {{\n grad(fn (%t: T) {{ match (%t) {{ T(%g, %v) => %g(%v) }} }})"
        f"(T(fn (%y: {V}) -> {V} {{ sin(%y) }}, %x)).1 }}", "a function from outside", 4),
    "a function in data has no tangent": (
        f"type T {{ T(fn({V}) -> {V}, {V}) }} def @main(%x: {V}) {{\n let %r = jvp(fn (%v: {V}) {{ T(fn (%z: {V}) -> {V} {{ %z * %v }}, "
        f"%v) }})(%x, %x); match (%r.0) {{ T(%g, %w) => %g(%w) }} }}", "a function has no tangent", 4),
    "an operator without a derivative": (
        "def @main(%x: Tensor[(4,), float64]) {\n grad(fn (%y: Tensor[(4,), float64]) { sum(unique(%y)) * %y })(%x) }", "unique", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """By evaluation and by compilation alike, with the place."""
    text, message, line = REFUSED[name]
    module = relay.parse(VERSION + text)
    args: list[Any] = [np.ones(4 if "(4,)" in text else 3)]
    if "%c" in text:
        args.append(np.True_)
    attempts: list[Callable[[], object]] = [
        lambda: relay.evaluate(module, *args),
        lambda: relay.compile(module, cache=False),
    ]
    for attempt in attempts:
        with pytest.raises(CompileError, match=message) as caught:
            attempt()
        assert caught.value.span is not None and caught.value.span.line == line
        assert "^" in str(caught.value)


@pytest.mark.parametrize(
    ("argnums", "message"),
    [
        (3, "no parameter 3"),
        ((0, 0), "twice"),
        (-3, "no parameter -3"),
        (1.0, "1.0 is neither the number"),
        (None, "None is neither the number"),
        (True, "True is neither the number"),
        ((0, "x"), "'x' is not the number"),
    ],
)
def test_wrong_argnums(argnums: Any, message: str) -> None:
    module = relay.parse(VERSION + f"def @main(%x: {V}, %y: {V}) {{ %x * %y }}")
    with pytest.raises(relay.RelayError, match=message):
        relay.grad(module, argnums)


def test_argnums_of_numpy() -> None:
    module = relay.parse(VERSION + f"def @main(%x: {V}, %y: {V}) {{ %x * %y }}")
    for argnums in (np.int64(1), np.array(1), np.array([1])):
        given: Any = argnums
        found: Any = relay.evaluate(relay.grad(module, given), np.full(3, 2.0), np.full(3, 3.0))
        np.testing.assert_array_equal(found if argnums.ndim == 0 else found[0], np.full(3, 2.0))


def gradient(text: str, *args: object, argnums: int | tuple[int, ...] = 0) -> Any:
    module = relay.grad(relay.parse(VERSION + text), argnums)
    return relay.evaluate(module, *args)


def test_integers_and_booleans_have_zeros() -> None:
    found = gradient(
        "def @main(%x: float64, %n: int32, %b: bool) { if (%b) { %x * cast(%n, dtype=\"float64\") } else { %x } }",
        np.float64(2), np.int32(3), np.True_, argnums=(0, 1, 2),
    )  # fmt: skip
    assert found[0] == 3.0
    assert found[1].dtype == np.int32 and found[1] == 0
    assert found[2].dtype == np.bool_ and not found[2]


def test_references_and_functions_have_the_empty_tuple() -> None:
    module = relay.parse(VERSION + "def @main(%x: float64, %c: Ref[int32]) { %c := !%c + 1; %x * %x }")
    derivative = relay.grad(module, (0, 1)).functions["main"]
    assert derivative.ret_type == TupleType((TensorType((), "float64"), TupleType(())))
    whole = relay.parse(
        VERSION
        + "def @main(%x: float64) { let %c = ref(0); grad(fn (%y: float64, %r: Ref[int32]) { %r := 1; %y * %y })(%x, %c).1 }"
    )
    found: Any = relay.evaluate(whole, np.float64(3))
    assert found[0] == 6.0 and found[1] == ()


def test_data_has_the_cotangent_of_its_structure() -> None:
    found = gradient("def @main(%xs: List[(float64, int32)]) { match (%xs) { Cons((%x, _), _) => %x * %x, Nil => 0f64 } }",
                     [(np.float64(3), np.int32(1)), (np.float64(4), np.int32(2))])  # fmt: skip
    assert [float(x) for x, _ in found] == [6.0, 0.0] and [int(n) for _, n in found] == [0, 0]


def test_every_tensor_of_the_result_counts() -> None:
    assert gradient("def @main(%x: float64) { (%x * 2f64, (%x * 3f64, 7), Some(%x * 4f64)) }", np.float64(1)) == 9.0


def test_a_single_precision_program_has_a_single_precision_gradient() -> None:
    found = gradient("def @main(%x: Tensor[(2,), float32]) { %x * %x }", np.ones(2, np.float32))
    assert found.dtype == np.float32 and found.tolist() == [2, 2]
