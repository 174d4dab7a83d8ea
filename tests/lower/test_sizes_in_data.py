"""Sizes that no parameter is measured in: they occur in the tensors of a list, an option or a tree only, and have a value where a pattern
brings one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import relay

HEAD = '#[version = "0.0.5"]\nimport prelude\n'
V = "Tensor[(h,), float32]"
SUM = f"fn (%x: {V}) -> float32 {{ sum(%x) }}"
ADD = f"fn (%a: float32, %x: {V}) -> float32 {{ %a + sum(%x) }}"
LISTS = {
    "map": f"List[float32] {{ @map({SUM}, %v) }}",
    "filter": f"List[{V}] {{ @rev(@filter(fn (%x: {V}) -> bool {{ sum(%x) > 2f }}, %v)) }}",
    "foldl": f"float32 {{ @foldl({ADD}, 0f, %v) }}",
    "a list of lists": f"List[float32] {{ @map(fn (%l: List[{V}]) -> float32 {{ @foldl({ADD}, 0f, %l) }}, Cons(%v, Cons(Nil, Nil))) }}",
    "zip": f"List[({V}, {V})] {{ @zip(%v, @rev(%v)) }}",
    "a size alone": f"List[{V}] {{ @map(fn (%x: {V}) -> {V} {{ zeros(shape=[h]) + 1f }}, %v) }}",
    "a size alone, of a pair": f"List[{V}] {{ @map(fn (%p: ({V}, {V})) -> {V} {{ ones(shape=[h]) }}, @zip(%v, %v)) }}",
    "a size alone, of an option": f"List[{V}] {{ match (%v) {{ Nil => Nil, Cons(%x, %rest) => Cons(full(2f, shape=[h]), %rest) }} }}",
}


def cells(module: relay.Module, rows: Sequence[object]) -> relay.AdtValue:
    lists = module.adt("List")
    out = lists.Nil()
    for row in reversed(rows):
        out = lists.Cons(row, out)
    return out


def numbers(value: Any) -> list[Any]:
    """A value's constructors and numbers, in order."""
    if isinstance(value, relay.AdtValue):
        return [value.constructor, *(n for f in value.fields for n in numbers(f))]
    if isinstance(value, tuple):
        return [n for f in value for n in numbers(f)]
    return np.asarray(value).ravel().tolist()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("program", LISTS)
def test_lists(program: str, level: int) -> None:
    module = relay.parse(f"{HEAD}def @main[h: Dim](%v: List[{V}]) -> {LISTS[program]}")
    exe = relay.compile(module, opt_level=level, threads=1)
    for count, size in ((0, 3), (1, 4), (5, 2)):
        value = cells(module, [np.arange(size, dtype=np.float32) + n for n in range(count)])
        assert numbers(exe(value)) == pytest.approx(numbers(relay.evaluate(module, value)))
