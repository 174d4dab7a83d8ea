"""Recursive functions that are given constants: these are not lifted, whatever stands beside them, and derivatives stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.differentiate import differentiated
from tests.ad.checks import problem
from tests.ad.test_programs import HEAD, V, X, value

WOOD = ("Branch", ("Leaf", X), np.float64(0.4), ("Branch", ("Leaf", X + 1), np.float64(-0.7), ("Leaf", X * 2)))
LIST = [X, X + 0.5, X * 0.25]

ONES = 'ones(shape=[3], dtype="float64")'
# The program, its arguments, what to differentiate by, what the gradient's functions must not contain.
PROGRAMS: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...], str | None]] = {
    "rows of a matrix, and a stack": (
        f"def @run[k: Dim](%i: int64, %xs: Tensor[(k, 3), float64], %st: List[{V}], %w: {V}) -> {V} {{ if (%i >= Dim[k]) "
        "{ match? (%st) { Cons(%a, Cons(%b, _)) => %a * %b } } else { @run(%i + 1i64, %xs, Cons(take(%xs, %i, axis=0) * %w, %st), %w) } }\n"
        f"def @main[k: Dim](%xs: Tensor[(k, 3), float64], %w: {V}) {{ @run(0i64, %xs, Nil, %w) }}",
        (np.stack(LIST), X),
        (1,),
        "take.vjp0",
    ),
    "a tree": (
        f"def @up(%t: Wood, %w: {V}) -> List[{V}] {{ match (%t) {{ Leaf(%x) => Cons(sin(%x * %w), Nil), "
        "Branch(%l, %s, %r) => match? (@up(%l, %w)) { Cons(%a, _) => Cons(%a * %s * %w, @up(%r, %w)) } } }\n"
        f"def @main(%t: Wood, %w: {V}) {{ @up(%t, %w) }}",
        (WOOD, X),
        (1,),
        "ad.Branch",
    ),
    "a constant at first": (
        f"def @run(%n: int32, %s: {V}, %l: List[{V}], %w: {V}) -> List[{V}] "
        "{ if (%n < 1) { Cons(%s, %l) } else { @run(%n - 1, sin(%s) * %w, Cons(%s, %l), %w) } }\n"
        f'def @main(%n: int32, %w: {V}) {{ @run(%n, ones(shape=[3], dtype="float64"), Nil, %w) }}',
        (np.int32(3), X),
        (1,),
        None,
    ),
    "a constant in one of two calls": (
        f"def @run(%l: List[{V}], %s: {V}, %c: {V}, %w: {V}) -> List[{V}] {{ match (%l) {{ Nil => Cons(%s * %c, Nil), "
        "Cons(%x, %r) => if (sum(%x) > 0f64) { @run(%r, %s * %w, %c, %w) } else { Cons(%x, @run(%r, %s, %w, %x)) } } }\n"
        f"def @main(%l: List[{V}], %c: {V}, %w: {V}) {{ @run(%l, %c, %c, %w) }}",
        (LIST, X, X * 0.3),
        (2,),
        None,
    ),
    "by each other": (
        f"def @odd(%l: List[{V}], %p: ({V}, {V}), %w: {V}) -> List[{V}] "
        "{ match (%l) { Nil => Cons(%w, Nil), Cons(%x, %r) => Cons(%x * %w + %p.0, @even(%r, %p.1, (%p.1, %p.0), %w)) } }\n"
        f"def @even(%l: List[{V}], %s: {V}, %p: ({V}, {V}), %w: {V}) -> List[{V}] "
        "{ match (%l) { Nil => Nil, Cons(%x, %r) => Cons(%x * %s * %w, @odd(%r, %p, sin(%w))) } }\n"
        f"def @main(%l: List[{V}], %w: {V}) {{ @odd(%l, (2f64 * {ONES}, {ONES}), %w) }}",
        (LIST, X),
        (1,),
        "ad.lift",
    ),
    "nothing but constants": (
        f"def @sums(%l: List[{V}], %s: {V}) -> List[{V}] "
        "{ match (%l) { Nil => Cons(%s, Nil), Cons(%x, %r) => Cons(%s, @sums(%r, %s + %x)) } }\n"
        f"def @dot(%l: List[{V}], %m: List[{V}], %w: {V}) -> List[{V}] "
        "{ match (%l) { Nil => %m, Cons(%x, %r) => Cons(%x * %w, @dot(%r, %m, %w)) } }\n"
        f'def @main(%l: List[{V}], %w: {V}) {{ @dot(@sums(%l, ones(shape=[3], dtype="float64")), %l, %w) }}',
        (LIST, X),
        (1,),
        "@sums.ad",
    ),
    "what a closure captures": (
        f"def @run(%l: List[{V}], %t: Wood, %w: {V}) -> List[{V}] {{ match (%l) {{ Nil => Nil, Cons(%x, %r) => {{ "
        f"let %f = fn (%y: {V}) -> {V} {{ match (%t) {{ Leaf(%z) => %y * %z, Branch(_, %s, _) => %y * %s + %x }} }}; "
        "Cons(%f(%w) * %w, @run(%r, %t, %w)) } } }\n"
        f"def @main(%l: List[{V}], %t: Wood, %w: {V}) {{ @run(%l, %t, %w) }}",
        (LIST, WOOD, X),
        (2,),
        "ad.Branch",
    ),
    "a tuple of a constant and what moves": (
        f"def @run(%l: List[{V}], %p: ({V}, {V})) -> List[{V}] "
        "{ match (%l) { Nil => Nil, Cons(%x, %r) => Cons(%x * %p.0 * %p.1, @run(%r, (%p.0, sin(%p.1)))) } }\n"
        f"def @main(%l: List[{V}], %c: {V}, %w: {V}) {{ @run(%l, (%c, %w)) }}",
        (LIST, X + 2, X),
        (2,),
        None,
    ),
    "a tree that comes back": (
        f"def @go(%n: int32, %t: Wood, %w: {V}) -> Wood {{ if (%n < 1) {{ %t }} else {{ match (%t) {{ Leaf(%x) => Leaf(%x * %w), "
        "Branch(%l, %s, %r) => Branch(@go(%n - 1, %l, %w), %s, %r) } } }\n"
        f"def @main(%n: int32, %t: Wood, %w: {V}) {{ @go(%n, %t, %w) }}",
        (np.int32(4), WOOD, X),
        (2,),
        None,
    ),
}


def _argument(module: relay.Module, given: Any) -> Any:
    return [_argument(module, g) for g in given] if isinstance(given, list) else value(module, given)


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str) -> None:
    text, given, argnums, without = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    args = [_argument(module, g) for g in given]
    everything = tuple(n for n, a in enumerate(args) if not isinstance(a, np.integer))
    for numbers in (argnums, everything):
        assert problem(module, args, numbers, compiled=True) is None
    body = str(differentiated(relay.value_and_grad(module, argnums))).partition("\ndef ")[2]
    if without is not None:
        assert without not in body
        assert without in str(differentiated(relay.value_and_grad(module, everything)))
