"""Emission against the interpreter where registers are shared, branches release, and calls are in tail position."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import CompileError
from tests.generator.compare import difference

HEADER = '#[version = "0.0.5"]\n'

PROGRAMS = {
    "a global function in a tuple outlives the binding": """
def @f(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { %x + 1f }
def @g(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { %x * 2f }
def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  let %p = if (sum(%x) > 0f) { (@f, %x) } else { (@g, %x) };
  let %q = (@g, @f);
  let %a = %p.0(%p.1);
  let %b = %q.1(%a);
  %q.0(%b)
}""",
    "a variable read in one arm only": """
def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  let %y = exp(%x);
  let %z = if (sum(%x) > 0f) { %y + %x } else { negative(%x) };
  let %w = if (sum(%z) > 1f) { %z * %x } else { %y };
  %w + %x
}""",
    "a field of a tuple that is also returned whole": """
def @pair(%x: Tensor[(3,), float32]) -> (Tensor[(3,), float32], Tensor[(3,), float32]) { (%x + 1f, %x * 2f) }
def @main(%x: Tensor[(3,), float32]) -> ((Tensor[(3,), float32], Tensor[(3,), float32]), Tensor[(3,), float32]) {
  let %p = @pair(%x);
  let %s = %p.0 + %p.1;
  (%p, %s * %p.0)
}""",
    "a constant in tuples that are released": """
def @swapped(%t: (Tensor[(3,), float32], Tensor[(3,), float32]), %n: int32) -> (Tensor[(3,), float32], Tensor[(3,), float32]) {
  if (%n > 0) { let %r = @swapped((%t.1 * 2f, %t.0), %n - 1); (%r.1, tanh(%r.0)) } else { %t }
}
def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  let %c = cumsum(ones(shape=[3], dtype="float32"), axis=0);
  let %a = @swapped((%c, %x), 2);
  let %b = @swapped((%c, tanh(%a.0)), 1);
  %a.1 + %b.0 + %b.1 + %c
}""",
    "a constant in data that a loop hands on": """
type Option[A] { Some(A), None, }
def @turned[A](%o: Option[(A, A)], %n: int32) -> Option[(A, A)] {
  if (%n > 0) { match (%o) { Some(%p) => @turned(Some((%p.1, %p.0)), %n - 1), None => %o } } else { %o }
}
def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  let %c = cumsum(ones(shape=[3], dtype="float32"), axis=0);
  match (@turned(Some((%c, %x)), 3)) { Some(%p) => tanh(%p.0) * %p.1 + %c, None => %c }
}""",
    "a loop in constant space": """
def @loop(%n: int32, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  if (%n == 0) { %x } else { let %m = %n - 1; @loop(%m, %x * 0.5f + 1f) }
}
def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { @loop(2000, %x) }""",
    "nested matches": """
type Option[A] { Some(A), None, }
def @first(%a: Option[Tensor[(3,), float32]], %b: Option[Tensor[(3,), float32]]) -> Tensor[(3,), float32] {
  match ((%a, %b)) {
    (Some(%x), Some(%y)) => %x * %y,
    (Some(%x), _) => %x + 1f,
    (_, Some(%y)) => negative(%y),
    _ => zeros(shape=[3], dtype="float32"),
  }
}
def @main(%x: Tensor[(3,), float32]) -> (Tensor[(3,), float32], Tensor[(3,), float32], Tensor[(3,), float32], Tensor[(3,), float32]) {
  let %n: Option[Tensor[(3,), float32]] = None;
  (@first(Some(%x), Some(%x)), @first(Some(%x), %n), @first(%n, Some(%x)), @first(%n, %n))
}""",
}


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, level: int) -> None:
    module = relay.parse(HEADER + PROGRAMS[name])
    for sign in (1, -1):
        x = np.array([0.5, 1.0, 2.0], np.float32) * sign
        expected, found = relay.evaluate(module, x), relay.compile(module, opt_level=level)(x)
        for e, f in zip(_flat(expected), _flat(found), strict=True):
            np.testing.assert_allclose(np.asarray(f), np.asarray(e), rtol=1e-6)


def _flat(value: object) -> list[object]:
    return [x for v in value for x in _flat(v)] if isinstance(value, tuple) else [value]


def test_operands_on_two_devices_are_refused() -> None:
    text = """
    def @main(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { %x + device_copy(%x, device="fake") }"""
    with pytest.raises(CompileError, match=r"two devices|lives on"):
        relay.compile(HEADER + text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def @main(%x: Tensor[(4,), float32x4]) -> Tensor[(4,), float32x4] { %x }", "float32x4"),
        (
            "def @main[n: Dim](%x: Tensor[(n*n,), float32]) -> Tensor[(n*n,), float32] { %x + %x }",
            "size n is not known",
        ),
        ("def @main[A](%x: A) -> A { %x }", "polymorphic"),
    ],
)
def test_what_cannot_be_compiled_is_refused(text: str, says: str) -> None:
    with pytest.raises(relay.RelayError, match=says):
        relay.compile(HEADER + text, cache=False)


def test_a_size_inside_a_linear_expression_is_solved_for() -> None:
    text = """
    def @main[n: Dim](%x: Tensor[(2*n + 1, 3), float32]) -> Tensor[(6*n + 3,), float32] { reshape(%x, newshape=[-1]) + 1f }"""
    exe = relay.compile(HEADER + text)
    np.testing.assert_array_equal(np.asarray(exe(np.ones((5, 3), np.float32))), np.full(15, 2, np.float32))
    with pytest.raises(relay.RelayError, match="axis 0 of argument %x of @main has size 4"):
        exe(np.ones((4, 3), np.float32))


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_size_inside_a_product_is_solved_for_once_the_others_are_known(
    executor: Literal["vm", "aot"],
) -> None:
    """Heads of attention: h of them, of d numbers, are an axis of ``h*d``. One size tells another, in whatever order they are given; loops
    and functions that are called read them off, too."""
    module = relay.parse(
        HEADER
        + """
def @again[h: Dim, d: Dim](%left: int64, %x: Tensor[(h*d,), float32], %a: Tensor[(h,), float32]) -> Tensor[(h*d,), float32] {
  if (%left <= 0i64) { %x } else {
    let %y = reshape(%x, newshape=[Dim[h], Dim[d]]) * expand_dims(%a, axis=1);
    let %all = if (sum(%y) > 1e6f) { @again(%left - 2i64, reshape(%y, newshape=[-1]), %a) } else { reshape(%y, newshape=[-1]) };
    @again(%left - 1i64, %all + cast(Dim[d], dtype="float32"), %a)
  }
}
def @main[h: Dim, d: Dim, e: Dim](%w: Tensor[(d*e + 1, d*e), float32], %x: Tensor[(2*h*d,), float32], %a: Tensor[(2*h,), float32]) {
  (@again(3i64, %x, %a), zeros(shape=[Dim[e], Dim[d]]) + sum(%w))
}"""
    )
    exe = relay.compile(module, executor=executor)
    for h, d, e in ((1, 3, 2), (2, 5, 1), (3, 1, 4)):
        given = [np.ones((d * e + 1, d * e), np.float32), np.ones(2 * h * d, np.float32), np.ones(2 * h, np.float32)]
        assert difference(exe(*given), relay.evaluate(module, *given)) is None
    with pytest.raises(relay.RelayError, match=r"%x of @main has size 7, expected 2\*h\*d = 6"):
        exe(np.ones((4, 3), np.float32), np.ones(7, np.float32), np.ones(2, np.float32))
    with pytest.raises(relay.RelayError, match=r"%x of @main is 2\*h\*d, which does not tell d where 2\*h is 0"):
        exe(np.ones((1, 0), np.float32), np.ones(0, np.float32), np.ones(0, np.float32))


@pytest.mark.parametrize("opt_level", [0, 3])
def test_a_match_that_fails_says_where_it_stands_and_what_it_leaves_out(opt_level: int) -> None:
    """Also in a loop, whose function the compiler has made of several."""
    module = relay.parse(
        HEADER
        + """import prelude
type E { A(int32), B(float32), C }
def @main(%n: int64) -> int32 {
  let %go = fn (%i: int64, %s: E) -> E {
    match? (%s) { A(%x) => if (%x > 2) { C } else { A(%x + 1) } }
  };
  match? (@for(0i64, %n, %go, A(0))) { A(%x) => %x }
}"""
    )
    exe = relay.compile(module, opt_level=opt_level)
    assert int(exe(2)) == 2
    with pytest.raises(
        relay.RelayError,
        match=r"no clause of the match at <text>:6:5 fits a B or a C of E: add a clause for it, or `_`\n",
    ):
        exe(9)
