"""Arguments as one writes them: by name, and as lists of numbers. Every executor, and a batch of requests, takes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import RelayError, ShapeError
from relay.ir.module import Module

Run = Callable[..., Any]


def ways(module: Module, **options: Any) -> list[Run]:
    exe = relay.compile(module, cache=False, **options)
    native = relay.compile(module, cache=False, executor="aot", **options)
    return [
        lambda *args, **named: relay.evaluate(module, *args, **named),
        exe,
        native,
        lambda *args, **named: exe.run("main", *args, **named),
    ]


def program(signature: str, body: str) -> Module:
    return relay.parse(f'#[version = "0.0.5"]\nimport prelude\ndef @main{signature} {{ {body} }}')


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float32", [[1, 2.5], [3, float("inf")]]),
        ("float64", [[1, 2], [3, 4]]),
        ("int64", [[1, 2], [3, -4]]),
        ("uint8", [[1, 2], [3, 255]]),
        ("bool", [[True, False], [False, True]]),
        ("bfloat16", [[1.0, 2.0], [3.0, 4.0]]),
        ("float32", [np.ones(2), np.zeros(2)]),
        ("float32", [[], []]),
    ],
)
def test_lists_of_numbers_are_tensors(dtype: str, given: list[Any]) -> None:
    module = program(f"[n: Dim](%x: Tensor[(2, n), {dtype}])", "(%x, %x)")
    for run in ways(module):
        x, _ = run(given)
        assert np.asarray(x).dtype.name == dtype
        np.testing.assert_array_equal(np.asarray(x).astype("float64"), np.asarray(given, "float64"))
    exe = relay.compile(module, cache=False)
    for x, _ in exe.run_batch("main", [(given,), (given,)]):
        np.testing.assert_array_equal(np.asarray(x).astype("float64"), np.asarray(given, "float64"))


@pytest.mark.parametrize(
    ("dtype", "given", "says"),
    [
        ("int32", [1.5, 2.0], "%x"),
        ("int32", [1, 2**31], "%x"),
        ("uint8", [1, -1], "%x"),
        ("bool", [1, 0], "%x"),
        ("float32", [True, False], "%x"),
        ("float32", [[1.0], [2.0, 3.0]], "%x"),
        ("float32", ["a", "b"], "%x"),
        ("float32", [[1.0, 2.0]], "%x|@main"),
        ("float32", [1.0, 2.0, 3.0], "%x|@main"),
        ("float32", [None, 1.0], "%x"),
    ],
)
def test_lists_that_are_no_such_tensor(dtype: str, given: list[Any], says: str) -> None:
    for run in ways(program(f"(%x: Tensor[(2,), {dtype}])", "%x")):
        with pytest.raises(RelayError, match=says):
            run(given)


def test_a_list_is_what_the_type_says() -> None:
    """Of a List its items, which may be tensors; of a tensor its numbers; inside of tuples too."""
    module = program(
        "(%l: List[Tensor[(2,), float32]], %t: (Tensor[(2, 2), int32], List[float32]))", "(%l, %t.0, %t.1)"
    )
    for run in ways(module):
        items, tensor, numbers = run([[1, 2], np.ones(2, np.float32)], ([[1, 2], [3, 4]], [5, 6]))
        assert [np.asarray(i).tolist() for i in items] == [[1, 2], [1, 1]]
        assert np.asarray(tensor).tolist() == [[1, 2], [3, 4]] and np.asarray(tensor).dtype == np.int32
        assert [float(n) for n in numbers] == [5, 6]


def test_sizes_that_a_list_names_hold_for_other_arguments() -> None:
    module = program("[n: Dim](%x: Tensor[(n,), float32], %l: List[Tensor[(n,), float32]])", "(%x, %l)")
    for run in ways(module):
        x, (item,) = run([1.0, 2.0], [[3.0, 4.0]])
        assert np.asarray(x).tolist() == [1, 2] and np.asarray(item).tolist() == [3, 4]
        with pytest.raises(ShapeError):
            run([1.0, 2.0], [[3.0, 4.0, 5.0]])


def test_arguments_by_name() -> None:
    module = program("(%x: Tensor[(2,), float32], %w: Tensor[(2,), float32], %y: float32)", "%x - %w * %y")
    for run in ways(module):
        assert np.asarray(run([5, 6], y=2, w=[1, 2])).tolist() == [3, 2]
        with pytest.raises(RelayError, match="%x is given twice"):
            run([5, 6], x=[1, 2], w=[1, 2], y=1)
        with pytest.raises(RelayError, match="lacks %w, %y"):
            run(x=[5, 6])
        with pytest.raises(RelayError, match="no parameter %z"):
            run([5, 6], [1, 2], 3.0, z=1)
