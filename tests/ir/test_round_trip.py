"""parse(print(m)) is alpha-equal to m, and printing is stable."""

from __future__ import annotations

import pytest

from relay.ir import prelude
from relay.ir.equality import alpha_equal, structural_hash
from relay.ir.module import Module
from relay.ir.parser import parse_expr, parse_module, parse_type
from relay.ir.printer import expr_text, type_text
from tests.ir.programs import HEADER, PROGRAMS


def check(module: Module) -> None:
    text = module.text()
    again = parse_module(text)
    assert alpha_equal(module, again), text
    assert structural_hash(module) == structural_hash(again)
    assert again.text() == text


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    check(parse_module(PROGRAMS[name]))


def test_prelude() -> None:
    check(prelude.load())


@pytest.mark.parametrize(
    "text",
    [
        "free_var %x: float32; %x((%x,).0, %x)",
        "%0 = 1; free_var %b: Tensor[(2), int8]; add(%0, %b)",
        "free_var %x; let %y = %x; free_var %x; (%x, %y)",
        "fn (%x) { %x }",
        "-(1f)",
        "- 1f",
        "negative(-1f)",
        "(-1f).0",
        "{ let %x = 1; %x }",
        "ref(1) := !ref(2)",
        "nn.dense",
    ],
)
def test_expression(text: str) -> None:
    expr = parse_expr(text)
    printed = expr_text(expr)
    assert alpha_equal(parse_expr(printed), expr, match_free=True), printed


@pytest.mark.parametrize(
    "text",
    [
        "int32",
        "Tensor[(), float32]",
        "(int32,)",
        "()",
        "fn[A, s: Shape, b: BaseType, n: Dim(1, 8)](Tensor[s, b], A, Tensor[(n, 2*n - 1), bool]) -> Ref[A] where Rel(A, n, k=3)",
        "fn (?A, Tensor[?s, ?b], Tensor[(?n, ?), int8]) -> ?A",
        "ref((int32, fn () -> ()))",
    ],
)
def test_type(text: str) -> None:
    made = parse_type(text)
    assert alpha_equal(parse_type(type_text(made)), made, match_free=True)


def _chain(length: int, form: str) -> str:
    match form:
        case "graph":
            lines = "".join(f"  %{i} = add(%{i - 1}, 1f);\n" for i in range(1, length))
            return f"{HEADER}def @main(%x: float32) {{\n  %0 = add(%x, 1f);\n{lines}  %{length - 1}\n}}"
        case "let":
            lines = "".join(f"  let %a{i} = add(%a{i - 1}, 1f);\n" for i in range(1, length))
            return f"{HEADER}def @main(%x: float32) {{\n  let %a0 = add(%x, 1f);\n{lines}  %a{length - 1}\n}}"
        case "calls":
            return f"{HEADER}def @main(%x: float32) {{ {'add(' * length}%x{', 1f)' * length} }}"
        case "infix":
            return f"{HEADER}def @main(%x: float32) {{ %x{' + 1f' * length} }}"
        case "branches":
            return f"{HEADER}def @main(%x: bool) {{ {'if (%x) { 1 } else { ' * length}0{' }' * length} }}"
        case "functions":
            return f"{HEADER}def @main(%x: bool) {{ {'fn () { ' * length}%x{' }' * length} }}"
        case "tuples":
            return f"{HEADER}def @main(%x: bool) {{ {'(' * length}%x{',)' * length} }}"
        case _:
            return f"{HEADER}def @main(%x: bool) {{ {'{ let %a = 1; ' * length}%x{' }' * length} }}"


@pytest.mark.parametrize("form", ["graph", "let", "calls", "infix", "branches", "functions", "tuples", "blocks"])
def test_depth(form: str) -> None:
    module = parse_module(_chain(5_000, form))  # five times as deep as Python's stack
    again = parse_module(module.text())
    assert alpha_equal(module, again)
    assert structural_hash(module) == structural_hash(again)
