"""Programs without a type: the message names the place, what was expected and what was found."""

# Programs and their messages stand on a line each.
# ruff: noqa: E501

from __future__ import annotations

import pytest

import relay
from relay.ir.diagnostics import OperatorError, RelayError, ShapeError, TypeError_
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Call, Function, GlobalVar, OpRef, Var
from relay.ir.module import Module
from relay.ir.types import (
    AdtType,
    ConstructorDef,
    FuncType,
    Kind,
    TensorType,
    Type,
    TypeDef,
    TypeVar,
    scalar,
)  # fmt: skip
from relay.typing import infer
from tests.typing.programs import parsed, typed

LIST = 'import "prelude"\n'
X = "%x: Tensor[(3, 4), float32]"

# program, kind of error, what the message says
ERRORS: list[tuple[str, type[RelayError], list[str]]] = [
    # calls
    (f"def @f({X}) {{ %x }}\ndef @main({X}) {{ @f(%x, 1) }}", TypeError_, ["@f takes 1 argument, found 2", "Tensor[(3, 4), float32]"]),
    (f"def @main({X}) {{ add(%x) }}", TypeError_, ["operator add takes 2 arguments (lhs, rhs), found 1"]),
    (f"def @main({X}) {{ %x(1) }}", TypeError_, ["%x is called but is not a function", "Tensor[(3, 4), float32]"]),
    (f"def @main({X}) {{ 1f(%x) }}", TypeError_, ["the constant is called but is not a function", "float32"]),
    (f"def @f(%x: int32) {{ %x }}\ndef @main({X}) {{ @f(%x) }}", TypeError_, ["argument 1 of @f: expected int32, found Tensor[(3, 4), float32]"]),
    (f"def @f({X}) {{ %x }}\ndef @main({X}) {{ @f(%x, axis=1) }}", TypeError_, ["attributes (axis) can be given to operators only"]),
    # shapes
    (
        f"def @main({X}, %w: Tensor[(8, 5), float32]) {{ nn.dense(%x, %w) }}",
        ShapeError,
        ["Tensor[(3, 4), float32]", "Tensor[(8, 5), float32]", "4 and 5", "nn.dense(%x, %w)", "^^^^", "test:2:"],
    ),
    (f"def @main({X}, %y: Tensor[(3, 5), float32]) {{ add(%x, %y) }}", ShapeError, ["4 and 5"]),
    (f"def @main({X}) -> Tensor[(3, 5), float32] {{ exp(%x) }}", ShapeError, ["the result of the function", "(3, 5)", "(3, 4)", "axis 1: 4 where 5 is expected"]),
    (f"def @main({X}) -> Tensor[(12,), float32] {{ exp(%x) }}", ShapeError, ["rank 2 where rank 1"]),
    (
        "def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]) { add(%x, %y) }",
        ShapeError,
        ["n and m", "same dim parameter"],
    ),
    ("def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(8, n), float32]) { nn.dense(%x, %w) }", ShapeError, ["4 and n"]),
    (  # found when the second argument says what h is
        "def @g[h: Dim](%a: Tensor[(3*h,), float32], %b: Tensor[(h,), float32]) { %b }\n"
        "def @main[h: Dim](%a: Tensor[(4*h,), float32], %b: Tensor[(h,), float32]) { @g(%a, %b) }",
        ShapeError,
        ["argument 1 of @g", "axis 0: 4*h where 3*h is expected", "test:3:"],
    ),
    (
        "def @f[n: Dim](%x: Tensor[(n, n), float32]) -> Tensor[(n,), float32] { sum(%x, axis=0) }\n"
        f"def @main({X}) {{ @f(%x) }}",
        ShapeError,
        ["argument 1 of @f", "4 where 3 is expected"],
    ),
    (
        "def @f[n: Dim](%x: Tensor[(2*n,), float32]) -> Tensor[(2*n,), float32] { %x }\n"
        "def @main(%x: Tensor[(5,), float32]) { @f(%x) }",
        ShapeError,
        ["5 where 2*n is expected"],
    ),
    # parameters of kind Shape and BaseType
    ("def @f[s: Shape, t: Shape](%x: Tensor[s, float32], %y: Tensor[t, float32]) { add(%x, %y) }", TypeError_, ["is not possible for all s, t"]),
    ("def @f[s: Shape](%x: Tensor[s, float32]) { transpose(%x) }", TypeError_, ["the result of transpose depends on the rank"]),
    ("def @f[b: BaseType](%x: Tensor[(2,), b]) { exp(%x) }", TypeError_, ["is not possible for all b"]),
    # names
    (f"def @main({X}) {{ ad(%x, 1f) }}", OperatorError, ["unknown operator 'ad'", "did you mean add"]),
    (f"def @main({X}) {{ @man(%x) }}", TypeError_, ["unbound global variable @man", "did you mean @main"]),
    (f"def @main({X}) {{ gelu(%x) }}", OperatorError, ["unknown operator 'gelu'", "did you mean nn.gelu?"]),
    (f"def @main({X}) {{ unsqueeze(%x) }}", OperatorError, ["unknown operator 'unsqueeze'", "here that is expand_dims"]),
    (f"def @main({X}) {{ nn.pad(%x, pad_width=[[1, 1]], pad_value=1f) }}", OperatorError, ["pad_value is an operand: write its value behind"]),
    ("def @main(%x: int32) { @iterate(%x) }", TypeError_, ["unbound global variable @iterate", "write `import prelude`"]),
    ("def @main(%x: int32) { @lstm_cell(%x) }", TypeError_, ["unbound global variable @lstm_cell", "write `import nn`"]),
    (f"def @main({X}) {{ concatenate(%x, %x, axis=1) }}", TypeError_, ["takes 1 argument (data), found 2", "one tuple: concatenate((a, b), ...)"]),
    (f"def @main({X}) {{ exp(x) }}", OperatorError, ["unknown operator 'x'", "a variable is written %x"]),
    (f"def @main({X}) {{ main(%x) }}", OperatorError, ["unknown operator 'main'", "a function is written @main"]),
    (f"def @main({X}) {{ foldl(%x) }}", OperatorError, ["a function is written @foldl (write `import prelude`)"]),
    (f"def @main({X}) {{ fold(%x) }}", OperatorError, ["@foldl over a list, @fold_rows over rows"]),
    (f"def @main({X}) {{ @fold_row(%x) }}", TypeError_, ["did you mean @fold_rows (write `import prelude`)"]),
    (f"def @main({X}) {{ float64(%x) }}", OperatorError, ['cast(x, dtype="float64")']),
    (f"def @main({X}) {{ cast(%x, dtype=float64) }}", OperatorError, ["must be str, not a type", 'dtype="float64"']),
    ("def @main() { true }", OperatorError, ["unknown operator 'true'", "here that is True"]),
    # inference
    ("def @main(%x) { %x(%x) }", TypeError_, ["would contain itself"]),
    ("def @main() { let %f = fn(%y) { add(%y, 1f) }; 1 }", TypeError_, ["do not determine the call add(_, float32)", "annotate"]),
    ("def @main(%x) { %x.0 }", TypeError_, ["do not determine the tuple of the projection .0"]),
    ("def @main[A](%x: A) -> A { 1 }", TypeError_, ["the result of the function: expected A, found int32"]),
    (
        "def @f[A](%x: A) -> A { %x }\ndef @main(%y) { let %g = fn[B](%z: B) -> B { if (True) { %z } else { %y } }; %g(1) }",
        TypeError_,
        ["parameter B would leave the function that declares it"],
    ),
    ("def @f[A](%x: A) { @g(%x) }\ndef @g[A](%x: A) { @f(%x) }\ndef @main() { @f(1) }", TypeError_, ["has type parameters and is recursive with @g"]),
    ("def @f[A](%x: A) { if (True) { %x } else { @f[int32](1) } }\ndef @main() { @f(1) }", TypeError_, ["type argument A of @f"]),
    # type arguments and kinds
    ("def @f[A](%x: A) -> A { %x }\ndef @main() { @f[int32, int32](1) }", TypeError_, ["@f takes 1 type arguments, found 2"]),
    ("def @f[A](%x: A) -> A { %x }\ndef @main() { @f[bool](1) }", TypeError_, ["argument 1 of @f: expected bool, found int32"]),
    # control flow
    ("def @main(%x: int32) { if (%x) { 1 } else { 2 } }", TypeError_, ["the condition of if: expected bool, found int32"]),
    ("def @main(%x: bool) { if (%x) { 1 } else { 2f } }", TypeError_, ["the branches of if"]),
    ("def @main(%x: bool) { if (%x) { (1, 2) } else { 1 } }", TypeError_, ["the branches of if: expected (int32, int32), found int32"]),
    # tuples and references
    ("def @main() { (1, 2).2 }", TypeError_, [".2 of a tuple of 2 fields"]),
    ("def @main(%x: int32) { %x.0 }", TypeError_, ["of something that is no tuple", "int32"]),
    ("def @main(%x: int32) { !%x }", TypeError_, ["expected ref(_), found int32"]),
    (
        "def @main(%x: ref(Tensor[(?,), float32])) -> ref(Tensor[(3,), float32]) { %x }",
        ShapeError,
        ["? where 3 is expected", "dims inside a reference cannot be checked"],
    ),
    ("def @main() { grad(1) }", TypeError_, ["grad of something that is no function"]),
    # algebraic types
    (LIST + "def @main() { Cons(1, Cons(True, Nil)) }", TypeError_, ["argument 2 of Cons", "List[int32]", "List[bool]"]),
    (
        LIST + "def @main(%x: List[Tensor[(?,), float32]]) -> List[Tensor[(3,), float32]] { %x }",
        ShapeError,
        ["? where 3 is expected", "cannot be checked on arrival"],
    ),
    (
        "type Cell[A] { Cell(ref(A)) }\n"
        "def @main(%x: Cell[Tensor[(3,), float32]]) -> Cell[Tensor[(?,), float32]] { %x }",
        ShapeError,
        ["3 where ? is expected"],
    ),
    (
        "def @main(%f: fn(Tensor[(3,), float32]) -> int32) -> fn(Tensor[(?,), float32]) -> int32 { %f }",
        ShapeError,
        ["? where 3 is expected"],
    ),
    (LIST + "def @main(%x: List[int32]) -> int32 { match (%x) { } }", TypeError_, ["the match does not cover _"]),
    # a dim parameter is one size, so values that hold several do not go where it stands inside of a type
    (
        LIST + "def @f[n: Dim](%x: List[Tensor[(n,), float32]]) -> int32 { 1 }\n"
        "def @main(%x: List[Tensor[(?,), float32]]) { @f(%x) }",
        ShapeError,
        ["argument 1 of @f", "? where n is expected"],
    ),
    (
        "type Vec[n: Dim] { V(Tensor[(n,), float32]), }\ndef @dot[n: Dim](%a: Vec[n], %b: Vec[n]) -> float32 { 1f }\n"
        "def @main(%x: Tensor[(2,), float32], %y: Tensor[(3,), float32]) { @dot(V(%x), V(%y)) }",
        ShapeError,
        ["argument 2 of @dot", "3 where 2 is expected"],
    ),
    (
        "type Vec[n: Dim] { V(Tensor[(n,), float32]), }\ndef @dot[n: Dim](%a: Vec[n], %b: Vec[n]) -> float32 { 1f }\n"
        "def @main(%x: Tensor[(2,), float32], %y: Tensor[(3,), float32]) { @dot[?](V(%x), V(%y)) }",
        ShapeError,
        ["type argument n of @dot is ?"],
    ),
    # base types that attributes name
    ('def @main() { zeros(shape=(2,), dtype="floot32") }', TypeError_, ["zeros()", "unknown base type 'floot32'", "did you mean float32"]),
    (
        'def @main(%x: Tensor[(2, 3), float32]) { nn.dense(%x, %x, out_dtype="foo") }',
        TypeError_,
        ["nn.dense(", "unknown base type 'foo'", "there are bool, int4"],
    ),
    # match
    (
        LIST + "def @main(%x: List[int32]) { match (%x) { Cons(%y, Nil) => %y } }",
        TypeError_,
        ["does not cover Cons(_, Cons(_, _))", "match?"],
    ),
    (LIST + "def @main(%x: List[int32]) { match (%x) { Some(%y) => %y, _ => 1 } }", TypeError_, ["the pattern Some", "List[int32]"]),
    ("def @main(%x: (int32, bool)) { match (%x) { (%a, %b, %c) => %a } }", TypeError_, ["a tuple pattern of 3 fields for a tuple of 2"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "parts"), ERRORS, ids=range(len(ERRORS)))
def test_message(text: str, kind: type[RelayError], parts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        infer(parsed(text))
    assert type(caught.value) is kind
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert caught.value.span is not None, "the error has a place"
    assert "\n    " in str(caught.value), "the error shows the source line"


# What the parser refuses before inference sees it can still be built by hand.


def module(body: Type, types: dict[str, TypeDef] | None = None) -> Module:
    x = Var("x", body)
    return Module({"main": Function((x,), x)}, types or {})


CELL = TypeDef("Cell", (TypeVar("A"),), (ConstructorDef("Cell", (scalar("int32"),), "Cell", 0),))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (TensorType(TypeVar("A"), "float32"), "type parameter A is not declared here"),
        (TensorType((3,), "flota32"), "unknown base type 'flota32'"),
        (TensorType((-1,), "float32"), "cannot be negative"),
        (AdtType("List", ()), "unknown type List"),
        (AdtType("Cell", ()), "type Cell takes 1 arguments, not 0"),
        (AdtType("Cell", ("int32",)), "expected a Type here, found int32 of kind BaseType"),
        (AdtType("Cell", (3,)), "expected a Type here, found a dim of kind Dim"),
    ],
)
def test_kinds(annotation: Type, message: str) -> None:
    with pytest.raises(TypeError_, match=message):
        infer(module(annotation, {"Cell": CELL}))


def test_a_shape_parameter_is_no_type() -> None:
    s = TypeVar("s", Kind.SHAPE)
    x = Var("x", s)
    with pytest.raises(TypeError_, match="expected a Type here, found s of kind Shape"):
        infer(Module({"main": Function((x,), x, None, (s,))}))


def test_a_parameter_cannot_be_polymorphic() -> None:
    a = TypeVar("A")
    with pytest.raises(TypeError_, match="has a polymorphic type"):
        infer(module(FuncType((a,), a, (a,))))


def test_unbound_variable() -> None:
    with pytest.raises(TypeError_, match="unbound variable %y"):
        infer(Module({"main": Function((), Var("y"))}))


def test_two_types_with_one_constructor() -> None:
    other = TypeDef("Other", (), (ConstructorDef("Cell", (), "Other", 0),))
    with pytest.raises(TypeError_, match="constructor Cell is defined by both Cell and Other"):
        infer(Module({}, {"Cell": CELL, "Other": other}))


def test_bounds_of_dims_hold_at_calls() -> None:
    n = DimVar("n", 1, 8)
    x = Var("x", TensorType((as_dim(n),), "float32"))
    y = Var("y", TensorType((9,), "float32"))
    f = Function((x,), Call(OpRef("exp"), (x,)), x.annotation, (n,))
    main = Function((y,), Call(GlobalVar("f"), (y,)))
    with pytest.raises(ShapeError, match="n is 9 but must be at least 1 and at most 8"):
        infer(Module({"f": f, "main": main}))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("?n", "n"),
        ("_", "_"),
        ("(?n, ?n)", "n"),
        ("Tensor[(?n,), int8]", "n"),
        ("Tensor[(3,), ?b]", "b"),
        ("fn(_) -> int8", "_"),
    ],
)
def test_fields_are_of_types_that_their_definition_declares(field: str, name: str) -> None:
    with pytest.raises(TypeError_, match=f"a field of B is .* A declares no {name}"):
        relay.infer_type(relay.parse(f'#[version = "0.0.5"]\ntype A {{ B({field}) }}\ndef @main(%x: A) {{ %x }}'))


def test_entry_types_are_counted() -> None:
    with pytest.raises(TypeError_, match="@main takes 1 parameters; 2 types are given"):
        infer(parsed("def @main(%x) { %x }"), entry_types={"main": (scalar("int32"), scalar("int32"))})


def test_a_partial_match_is_exempt() -> None:
    typed(LIST + "def @main(%x: List[int32]) { match? (%x) { Cons(%y, Nil) => %y } }")


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (f"def @main({X}) {{ if (%x > 0f) {{ %x }} else {{ exp(%x) }} }}", "where(condition, a, b)"),
        ("def @main(%b: bool) { !%b }", "logical_not(a)"),
        ("def @f(%i: int64) { %i }\ndef @main() { @f(3) }", 'cast(%x, dtype="int64")'),
        (f"def @f(%x: int64) {{ %x }}\ndef @main({X}) {{ @f(%x) }}", None),  # a cast would not do
        (f"def @main({X}) {{ !%x }}", None),
        (
            "def @main(%x: float32) { %x - grad(fn (%y: float32) -> float32 { %y * %y })(%x) }",
            "grad(%f)(%x) is (value,",
        ),
    ],
)
def test_what_to_write_instead(program: str, hint: str | None) -> None:
    with pytest.raises(RelayError) as caught:
        typed(program)
    found = caught.value.hint or ""
    assert hint in found if hint else not found
