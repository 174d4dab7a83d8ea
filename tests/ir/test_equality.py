"""Alpha-equality and hashing tell apart what differs, and only that."""

from __future__ import annotations

import itertools

import pytest

from relay.ir.equality import alpha_equal, structural_hash
from relay.ir.expr import Call, OpRef, Var
from relay.ir.parser import parse_expr, parse_module, parse_type
from relay.ir.types import TupleType
from tests.ir.programs import HEADER, PROGRAMS

EQUAL = [
    ("fn (%x) { %x }", "fn (%y) { %y }"),
    ("fn[A](%x: A) -> A { %x }", "fn[B](%x: B) -> B { %x }"),
    (
        "fn[n: Dim, m: Dim](%x: Tensor[(n + 2*m, m), int8]) { 1 }",
        "fn[a: Dim, b: Dim](%x: Tensor[(2*b + a, b), int8]) { 1 }",
    ),
    ("let %x = 1; let %y = %x; %y", "let %a = 1; let %b = %a; %b"),
    ("let %f = fn (%n) { %f(%n) }; %f", "let %g = fn (%m) { %g(%m) }; %g"),
    ("%0 = f(1); g(%0, %0)", "%3 = f(1); g(%3, %3)"),
    ("match ((1, 2)) { (%a, _) => %a }", "match ((1, 2)) { (%b, _) => %b }"),
    ("1f", "1.0f"),
    ("f(a=1, b=2)", "f(b=2, a=1)"),
]

DIFFERENT = [
    "fn (%x, %y) { %x }",
    "fn (%x, %y) { %y }",
    "fn (%x) { %x }",
    "fn (%x: int8) { %x }",
    "fn (%x) -> int8 { %x }",
    "fn (%x, Primitive=1) { %x }",
    "fn (%x, Primitive=True) { %x }",
    "fn[n: Dim](%x: Tensor[(n, n), int8]) { 1 }",
    "fn[n: Dim, m: Dim](%x: Tensor[(n, m), int8]) { 1 }",
    "fn[n: Dim, m: Dim](%x: Tensor[(m, n), int8]) { 1 }",
    "fn[n: Dim(1, 8), m: Dim](%x: Tensor[(n, m), int8]) { 1 }",
    "g(f(1), f(1))",
    "%0 = f(1); g(%0, %0)",
    "let %x = f(1); g(%x, %x)",
    "let %x = f(1); let %y = f(1); g(%x, %y)",
    "let %x = f(1); let %y = f(1); g(%y, %x)",
    "0f",
    "-0f",
    "0",
    "const([0, 0], (2,), int32)",
    "const([0, 0], (1, 2), int32)",
    "match ((1, 2)) { (%a, %b) => %a }",
    "match ((1, 2)) { (%a, %b) => %b }",
    "match? ((1, 2)) { (%a, %b) => %b }",
    "f(1, a=1)",
    "f(1, a=1f)",
    "f(1, a=[1])",
    "f(1)",
    "f[int8](1)",
    "(1, 2).0",
    "(1, 2).1",
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal(left: str, right: str) -> None:
    a, b = parse_expr(left), parse_expr(right)
    assert alpha_equal(a, b)
    assert structural_hash(a) == structural_hash(b)


def test_different() -> None:
    made = [parse_expr(text) for text in DIFFERENT]
    for (n, a), (m, b) in itertools.combinations(enumerate(made), 2):
        assert not alpha_equal(a, b), (DIFFERENT[n], DIFFERENT[m])
        assert not alpha_equal(b, a), (DIFFERENT[n], DIFFERENT[m])
    # Sharing may be ignored by the hash, nothing else here.
    assert len({structural_hash(e) for e in made}) >= len(made) - 2


def test_free_variables_are_identities() -> None:
    x, y = Var("x"), Var("x")
    a, b = Call(OpRef("f"), (x, x)), Call(OpRef("f"), (y, y))
    c = Call(OpRef("f"), (x, y))
    assert not alpha_equal(a, b)
    assert alpha_equal(a, a)
    assert alpha_equal(a, b, match_free=True)
    assert not alpha_equal(a, c, match_free=True)
    assert not alpha_equal(c, a, match_free=True)


def test_types() -> None:
    assert alpha_equal(parse_type("fn[A](A) -> (A, int8)"), parse_type("fn[B](B) -> (B, int8)"))
    assert not alpha_equal(parse_type("fn[A, B](A) -> B"), parse_type("fn[A, B](A) -> A"))
    assert not alpha_equal(parse_type("fn[A: Shape](int8) -> int8"), parse_type("fn[A](int8) -> int8"))
    assert not alpha_equal(TupleType(()), parse_expr("()"))


def test_modules() -> None:
    base = "type T { A(int8), B }\ndef @f() { 1 }"
    module = parse_module(HEADER + base)
    assert alpha_equal(module, parse_module(HEADER + "def @f() { 1 }\ntype T { A(int8), B }"))
    for other in ("def @f() { 1 }", base.replace("int8", "int16"), base.replace("@f", "@g"), base.replace("1", "2")):
        assert not alpha_equal(module, parse_module(HEADER + other))


@pytest.mark.parametrize("name", PROGRAMS)
def test_reflexive(name: str) -> None:
    a, b = parse_module(PROGRAMS[name]), parse_module(PROGRAMS[name])
    assert alpha_equal(a, b)
    assert structural_hash(a) == structural_hash(b)
