"""What the parser says about texts that are wrong."""

from __future__ import annotations

import pytest

import relay
from relay.ir.diagnostics import SyntaxError_
from relay.ir.parser import parse_expr, parse_module, parse_type
from tests.ir.programs import HEADER


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("let %x = 1", 1, 11, "expected ';'"),
        ("let %x = 1;", 1, 12, "found the end of the text"),
        ("add(1f,,2f)", 1, 8, "expected an expression or ')', found ','"),
        ("add(%x, 1f)", 1, 5, "%x is not in scope"),
        ("%0", 1, 1, "%0 is not in scope"),
        ("let %first = 1;\nlet %y = 2;\n%frist", 3, 1, "did you mean %first?"),
        ("let %x = %x; 1", 1, 10, "%x is not in scope"),
        ("let %x = 1f; %x/sqrt(%x)", 1, 14, "%x / sqrt"),
        ("let %x = (1f, 2f); %x.1/sqrt(%x.0)", 1, 20, "%x.1 / sqrt"),
        ("if (True) { let %x = 1; 1 } else { %x }", 1, 36, "%x is not in scope"),
        ("fn (%x: Tensor[(n,), float32]) { %x }", 1, 17, "[n: Dim]"),
        ("fn (%x: Tensor[s, float32]) { %x }", 1, 16, "[s: Shape]"),
        ("fn[A](%x: Tensor[(2,), A]) { %x }", 1, 11, "[A: BaseType]"),
        ("fn (%x: Tensor[(2,), flot32]) { %x }", 1, 22, "did you mean float32?"),
        ("fn (%x: Lst[int32]) { 1 }", 1, 9, "unknown type 'Lst'"),
        ("fn (%x: List[int32]) { 1 }", 1, 9, "import prelude"),
        ("fn (%x: Tensor[(-1,), int8]) { 1 }", 1, 16, "cannot be negative"),
        ("fn (%x: Tensor[(4 // 0,), int8]) { 1 }", 1, 19, "by zero"),
        ("fn (%x, %x) { 1 }", 1, 1, "two parameters have the same name"),
        ("Cons(1, Nil)", 1, 1, "import prelude"),
        ("add(axis=1, 2)", 1, 5, "attributes (name=value) come last"),
        ("add(axis=1, axis=2)", 1, 13, "given twice"),
        ("f(x=float)", 1, 5, 'a string is written "float"'),
        ("f(x=true)", 1, 5, "a truth value is True"),
        ("300i8", 1, 1, "300 does not fit in int8"),
        pytest.param("f(" + "9" * 5000 + ")", 1, 3, "no integer has 5000 digits", id="5000 digits"),
        ("3000000000i32", 1, 1, "write it with i64"),
        ("9223372036854775808", 1, 1, "does not fit in int64"),
        ("1 $ 2", 1, 3, "unexpected character '$'"),
        ('f(x="abc)', 1, 5, "a string ends on the line it begins on"),
        ("1 /* a /* b */", 1, 3, "this comment is never closed"),
        ("const([1, 2], (3,), int8)", 1, 21, "not a constant"),
        ("const(300, int8)", 1, 12, "not a constant"),
        ("const([1.5], (1,), int8)", 1, 20, "int8 does not hold 1.5"),
        ("const([1e39, 1], (2,), float32)", 1, 24, "float32 does not hold 1e+39"),
        ("const([300i64], (1,), int8)", 1, 23, "int8 does not hold 300"),
        ("const(1e400, float64)", 1, 7, "1e400 does not fit in float64"),
        ("1e39f", 1, 1, "1e39 does not fit in float32"),
        ("70000f16", 1, 1, "70000 does not fit in float16"),
        ("meta[relay.Constant][3]", 1, 1, "no constant 3"),
        ("match (1) { Cns(%x) => 1 }", 1, 13, "unknown constructor 'Cns'"),
        ("match (1) { (%x, %x) => 1 }", 1, 13, "binds a variable twice"),
        ("fn[n: Dim](%x: Tensor[(n,), int8]) { n + 1 }", 1, 38, "as a value it is Dim[n]"),
        ("fn[n: Dim](%x: Tensor[(n,), int8]) { Dim(n) }", 1, 38, "a size as a value is written Dim[n]"),
        ("fn (%x: Tensor[(?,), int8]) { Dim[?] }", 1, 34, "declare it: [n: Dim]"),
        ("Dim[m]", 1, 5, "[m: Dim]"),
        ("Dim[1, 2]", 1, 4, "one argument"),
        ("f[int32]", 1, 2, "type arguments stand before the arguments of a call"),
        ("y = 1", 1, 3, "a binding is written `let %name = value;`"),
        ("let y = 1; 2", 1, 5, "a variable is %name"),
        ("1 # one", 1, 3, "/* ... */"),
        ("if (True) { 1 } elif (False) { 2 } else { 3 }", 1, 17, "write `else if`"),
        ("{ if (True) { 1 } }", 1, 19, "`else { ... }`"),
        ("if True { 1 } else { 2 }", 1, 4, "the condition stands in parentheses"),
        ("True && False", 1, 6, "logical_and(a, b)"),
        ("True || False", 1, 6, "logical_or(a, b)"),
        ("2 ** 3", 1, 4, "power(a, b)"),
        ("7 % 2", 1, 3, "floor_mod(a, b)"),
        ("(7 // 2\n) + (6 // 2) * 1", 2, 17, "floor_divide(a, b)"),
        ("not True", 1, 5, "logical_not(a)"),
        ("return 1", 1, 8, "leave out `return`"),
        ("let %x = 1 %x", 1, 12, "ends with a semicolon"),
        ("match (3) { %y => %y + 1 _ => 2 }", 1, 26, "cases of a match"),
        ("f(1, [2, 3])", 1, 6, "attributes are given by name"),
        ("while (True) { 1 }", 1, 14, "@while or @for of the prelude"),
        ("let %x = 1; %x[0]", 1, 15, "take(%x, 0, axis=0)"),
        ("let %f = fn () { %f() }(); 1", 1, 5, "used in its own value"),
    ],
)
def test_expression(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(SyntaxError_) as caught:
        parse_expr(text)
    error = caught.value
    assert error.span is not None
    assert (error.span.line, error.span.column) == (line, column), str(error)
    assert says in str(error)
    assert text.splitlines()[line - 1][:40] in str(error)  # the line is shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def @main() { 1 }", "begin the text with #[version"),
        ('#[version = "9"]\ndef @main() { 1 }', "version '9'"),
        (HEADER + "def @f() { 1 }\ndef @f() { 2 }", "@f is defined twice"),
        (HEADER + "type A { X }\ntype A { Y }", "type A is defined twice"),
        (HEADER + "type A { X }\ntype B { X }", "constructor X is already one of type A"),
        (HEADER + "type L[A] { X }\ndef @f(%x: L) { 1 }", "type L needs 1 arguments"),
        (HEADER + "type L[A] { X }\ndef @f(%x: L[int8, int8]) { 1 }", "type L has 1 parameters, not 2"),
        (HEADER + "type L[A: Wrong] { X }", "unknown kind 'Wrong'"),
        (HEADER + "def @f() { free_var %x; %x }", "a definition has no free variables"),
        (HEADER + 'import "no_such_file.rly"\ndef @f() { 1 }', "cannot read the import"),
        (HEADER + "def @f() { let %x = 1; }", "a body ends with an expression"),
        (HEADER + "def @f() { 1", "a '{' is not closed"),
        (HEADER + "def @f() { meta[relay.Constant][0] }\n#[metadata]\n{", "is not JSON"),
        (
            HEADER + 'def @f() { meta[relay.Constant][0] }\n#[metadata]\n{"relay.Constant": [{"dtype": "int8"}]}',
            "damaged",
        ),
        (HEADER + 'def @f() { meta[relay.Constant][0] }\n#[metadata]\n{"relay.Constant": 3}', "must be an object"),
        (HEADER + "def @f() { meta[relay.Constant][0] }\n#[metadata]\n" + "[" * 100_000, "nested too deeply"),
        (
            HEADER
            + 'def @f() { meta[relay.Constant][0] }\n#[metadata]\n{"relay.Constant": [{"dtype": "int8", "shape": [Infinity]}]}',
            "constant 0 in the metadata is damaged",
        ),
        (HEADER + "def @f[n: Dim, n: Dim](%x: Tensor[(n,), int8]) { 1 }", "types or sizes have the same name"),
        (HEADER + "type L[A, A] { X(A) }", "two parameters of type L have the same name"),
    ],
)
def test_module(text: str, says: str) -> None:
    with pytest.raises(SyntaxError_) as caught:
        parse_module(text)
    assert says in str(caught.value)


def test_type() -> None:
    with pytest.raises(SyntaxError_, match="where a type is wanted"):
        parse_type("(4, int32)")


def test_every_prefix_is_an_error_or_a_module() -> None:
    text = HEADER + "type L[A] { N, C(A, L[A]) }\n"
    text += 'def @f[n: Dim](%x: Tensor[(n, 2), int8], a="b") { match (%x.0) { C(_) => (1f, -2), N => { 1 } } }'
    for end in range(len(text)):
        try:
            parse_module(text[:end])
        except SyntaxError_ as error:
            assert str(error)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("(", ",)"), ("(", ")"), ("Ref[", "]"), ("ref(", ")"), ("Tuple[", "]"), ("fn (", ") -> int8"), ("L[", "]")],
)
@pytest.mark.parametrize("depth", [151, 10_000])
def test_a_type_that_is_nested_too_deeply(opening: str, closing: str, depth: int) -> None:
    text = HEADER + "type L[A] { N }\ndef @main(%x:\nTYPE) { 1 }"
    parse_module(text.replace("TYPE", opening * 150 + "int8" + closing * 150))
    with pytest.raises(SyntaxError_, match="a type is nested more than 150 deep") as caught:
        parse_module(text.replace("TYPE", opening * depth + "int8" + closing * depth))
    assert caught.value.span is not None and caught.value.span.line == 4


def test_a_parameter_without_its_sign() -> None:
    with pytest.raises(SyntaxError_) as error:
        relay.parse('#[version = "0.0.5"]\ndef @main(x: float32) { x }')
    assert error.value.hint == "a variable is %x, a function @x"


def test_numbers_say_their_base_type() -> None:
    with pytest.raises(relay.RelayError, match=r"cast one of them \(a number says its own: 2f is float32"):
        relay.parse('#[version = "0.0.5"]\ndef @main(%x: float32) { %x * 2 }')


def test_a_library_whose_name_is_misspelt() -> None:
    with pytest.raises(SyntaxError_, match="cannot read the import prelud") as caught:
        parse_module(HEADER + "import prelud\ndef @f() { 1 }")
    assert caught.value.hint == "did you mean prelude?"


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("for i in 3 { %x }", "@while or @for of the prelude"),
        ("concatenate([%x, %x], axis=0)", "several tensors are (%x, %y)"),
        ("zeros(shape=%x)", "an attribute is known when the program is compiled"),
        ("zeros(shape=[2, %x])", "what only a run knows is an operand, as of dyn.strided_slice"),
        ("strided_slice(%x, begin=[%x], end=[4])", "what only a run knows is an operand, as of dyn.strided_slice"),
    ],
)
def test_what_is_written_otherwise_elsewhere(body: str, hint: str) -> None:
    with pytest.raises(SyntaxError_) as error:
        relay.parse(HEADER + f"def @main(%x: Tensor[(3,), float32]) {{ {body} }}")
    assert hint in (error.value.hint or "")
