"""Each rule of the operational semantics."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import interpreter
from relay.ir.diagnostics import ExecutionError, RelayError, ShapeError, TypeError_
from relay.ir.expr import Call, Constant, Expr, Function, Grad, If, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.ir.value import AdtValue
from relay.op.build import call

HEAD = '#[version = "0.0.5"]\n'
LISTS = "import prelude\n"


def run(text: str, *args: object, **options: int) -> object:
    return relay.evaluate(relay.parse(HEAD + text), *args, **options)  # type: ignore[arg-type]


def number(value: object) -> float:
    assert isinstance(value, np.ndarray) and value.shape == ()
    return float(value)


def test_a_constant_is_its_own_value() -> None:
    result = run("def @main() { 2.5f64 }")
    assert isinstance(result, np.ndarray) and result.dtype == np.float64 and result == 2.5


def test_let_scopes_over_what_follows_and_may_shadow() -> None:
    assert number(run("def @main() { let %x = 1; let %x = %x + 2; %x * 10 }")) == 30


def test_tuples_and_projections() -> None:
    assert run("def @main() { let %t = (1, (2, 3)); (%t.1.0, %t.0) }") == (2, 1)
    assert run("def @main() { () }") == ()
    assert run("def @main() { (7,) }") == (7,)


def test_only_the_chosen_branch_is_evaluated() -> None:
    text = """
    def @main(%c: bool) {
      let %r = ref(0);
      let %v = if (%c) { %r := 1; 10 } else { %r := 2; 20 };
      (%v, !%r)
    }"""
    assert run(text, True) == (10, 1)
    assert run(text, False) == (20, 2)


def test_references_are_cells_with_identity() -> None:
    text = """
    def @main() {
      let %a = ref(1);
      let %b = %a;
      let %c = ref(1);
      %b := 5;
      (!%a, !%c)
    }"""
    assert run(text) == (5, 1)


def test_writing_gives_unit() -> None:
    assert run("def @main() { let %r = ref(1); %r := 2 }") == ()


def test_operands_go_left_to_right() -> None:
    text = """
    def @main() {
      let %log = ref(0);
      let %note = fn (%d: int32) { %log := !%log * 10 + %d; %d };
      let %t = (%note(1), add(%note(2), %note(3)), %note(4));
      !%log
    }"""
    assert number(run(text)) == 1234


def test_the_callee_is_evaluated_before_its_arguments() -> None:
    text = """
    def @main() {
      let %log = ref(0);
      let %f = fn (%d: int32) { %log := !%log * 10 + %d; fn (%x: int32) { %x + %d } };
      let %v = %f(1)({ %log := !%log * 10 + 2; 5 });
      (%v, !%log)
    }"""
    assert run(text) == (6, 12)


def test_closures_capture_values_not_names() -> None:
    text = """
    def @main() {
      let %x = 1;
      let %f = fn () { %x };
      let %x = 2;
      (%f(), %x)
    }"""
    assert run(text) == (1, 2)


def test_a_closure_sees_later_writes_to_what_it_captured() -> None:
    text = """
    def @main() {
      let %r = ref(1);
      let %f = fn () { !%r };
      %r := 7;
      %f()
    }"""
    assert number(run(text)) == 7


def test_every_call_has_its_own_variables() -> None:
    text = """
    def @main() {
      let %make = fn (%n: int32) { let %r = ref(%n); fn () { %r := !%r + 1; !%r } };
      let %a = %make(0);
      let %b = %make(100);
      let %x = %a();
      let %y = %b();
      (%x, %y, %a())
    }"""
    assert run(text) == (1, 101, 2)


def test_let_bound_functions_recurse() -> None:
    text = """
    def @main(%n: int32) {
      let %fact = fn (%k: int32) -> int32 { if (%k <= 1) { 1 } else { %k * %fact(%k - 1) } };
      %fact(%n)
    }"""
    assert number(run(text, 6)) == 720


def test_a_function_inside_captures_through_two_levels() -> None:
    text = """
    def @main(%n: int32) {
      let %f = fn (%a: int32) { fn (%b: int32) { fn (%c: int32) { %n * 1000 + %a * 100 + %b * 10 + %c } } };
      %f(2)(3)(4)
    }"""
    assert number(run(text, 1)) == 1234


def test_global_functions_call_each_other() -> None:
    text = """
    def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
    def @main(%n: int32) -> bool { @even(%n) }
    """
    assert run(text, 10) == np.array(True)
    assert run(text, 7) == np.array(False)


def test_recursion_through_a_reference() -> None:
    text = """
    def @main(%n: int32) {
      let %knot = ref(fn (%k: int32) -> int32 { 0 });
      %knot := fn (%k: int32) -> int32 { if (%k <= 0) { 0 } else { %k + (!%knot)(%k - 1) } };
      (!%knot)(%n)
    }"""
    assert number(run(text, 100)) == 5050


def test_functions_operators_and_constructors_are_values() -> None:
    text = (
        LISTS
        + """
    def @twice(%f: fn(float32) -> float32, %x: float32) -> float32 { %f(%f(%x)) }
    def @main(%x: float32) { (@twice(negative, %x), @twice(fn (%y: float32) { %y + 1f }, %x), @map(Some, Cons(%x, Nil))) }
    """
    )
    result = run(text, 3.0)
    assert isinstance(result, tuple)
    first, second, third = result
    assert number(first) == 3 and number(second) == 5 and third == [3]


# -- algebraic data types and matching

SHAPES = """
type Figure { Circle(float32), Box(float32, float32), Nothing, }
"""


def test_constructors_make_values() -> None:
    value = run(SHAPES + "def @main() { (Box(1f, 2f), Nothing) }")
    assert isinstance(value, tuple)
    box, nothing = value
    assert isinstance(box, AdtValue) and isinstance(nothing, AdtValue)
    assert (box.adt, box.constructor, box.tag, [float(f) for f in box.fields]) == ("Figure", "Box", 1, [1.0, 2.0])
    assert (nothing.constructor, nothing.tag, nothing.fields) == ("Nothing", 2, ())


def test_the_first_matching_clause_is_taken() -> None:
    text = (
        SHAPES
        + """
    def @main(%f: Figure) -> float32 {
      match (%f) {
        Box(%w, _) => %w,
        Nothing => -1f,
        _ => 100f,
      }
    }"""
    )
    box = AdtValue("Figure", "Box", 1, (3.0, 4.0))
    assert number(run(text, box)) == 3
    assert number(run(text, AdtValue("Figure", "Nothing", 2, ()))) == -1
    assert number(run(text, AdtValue("Figure", "Circle", 0, (9.0,)))) == 100


def test_nested_patterns_bind_their_parts() -> None:
    text = (
        LISTS
        + """
    def @main(%p: (List[int32], Option[int32])) -> int32 {
      match (%p) {
        (Cons(%a, Cons(%b, _)), Some(%c)) => %a * 100 + %b * 10 + %c,
        (Cons(%a, Nil), None) => %a,
        (_, Some(%c)) => -%c,
        (%xs, %o) => -100,
      }
    }"""
    )
    assert number(run(text, ([1, 2, 3], 4))) == 124
    assert number(run(text, ([9], None))) == 9
    assert number(run(text, ([9], 5))) == -5
    assert number(run(text, ([], None))) == -100


def test_a_partial_match_can_fail() -> None:
    text = LISTS + "def @main(%xs: List[int32]) -> int32 {\n  match? (%xs) { Cons(%x, _) => %x }\n}"
    assert number(run(text, [4, 5])) == 4
    with pytest.raises(ExecutionError, match="no clause matches a Nil of List") as caught:
        run(text, [])
    assert caught.value.span is not None and caught.value.span.line == 4
    assert "match?" in str(caught.value)


def test_matching_a_function_that_was_stored() -> None:
    text = (
        LISTS
        + """
    def @main(%x: int32) -> int32 {
      let %fs = Cons(fn (%y: int32) { %y + 1 }, Cons(fn (%y: int32) { %y * 10 }, Nil));
      @foldl(fn (%acc: int32, %f: fn(int32) -> int32) { %f(%acc) }, %x, %fs)
    }"""
    )
    assert number(run(text, 4)) == 50


# -- graph bindings


def test_a_shared_node_is_computed_once() -> None:
    text = """
    def @main() {
      let %r = ref(0);
      let %bump = fn () { %r := !%r + 1; !%r };
      %0 = %bump();
      %1 = add(%0, %0);
      (%1, !%r)
    }"""
    assert run(text) == (2, 1)


def test_a_node_shared_by_branches_is_computed_before_them() -> None:
    text = """
    def @main(%c: bool) {
      let %r = ref(0);
      let %bump = fn () { %r := !%r + 1; !%r };
      %0 = %bump();
      let %v = if (%c) { add(%0, 10) } else { if (%c) { %0 } else { multiply(%0, 7) } };
      (%v, !%r, %0)
    }"""
    assert run(text, True) == (11, 1, 1)
    assert run(text, False) == (7, 1, 1)


def test_a_node_shared_with_a_closure_is_computed_outside() -> None:
    text = """
    def @main(%x: int32) {
      let %r = ref(0);
      let %bump = fn () { %r := !%r + 1; %x };
      %0 = %bump();
      let %f = fn (%y: int32) { fn () { add(%0, %y) } };
      let %a = %f(1);
      let %b = %f(2);
      (%a(), %b(), %0, !%r)
    }"""
    assert run(text, 5) == (6, 7, 5, 1)


def test_a_node_shared_within_a_function_is_computed_once_per_call() -> None:
    text = """
    def @f(%x: float32) -> float32 {
      %0 = multiply(%x, 2f);
      add(%0, %0)
    }
    def @main() { (@f(1f), @f(3f)) }
    """
    assert run(text) == (4.0, 12.0)


# -- sizes


def test_dimension_variables_are_read_off_the_arguments() -> None:
    text = "def @main[n: Dim](%x: Tensor[(n, 3), float32]) { reshape(%x, newshape=[3, -1]) }"
    for rows in (1, 2, 5):
        result = run(text, np.ones((rows, 3), np.float32))
        assert isinstance(result, np.ndarray) and result.shape == (3, rows)


def test_an_unknown_size_is_checked_where_more_is_declared() -> None:
    text = """
    def @exactly(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { %x }
    def @main(%x: Tensor[(?,), float32]) { @exactly(%x) }
    """
    assert np.array_equal(run(text, np.ones(3, np.float32)), np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"argument %x of @exactly has shape \(4,\) where \(3,\) is expected"):
        run(text, np.ones(4, np.float32))


def test_equal_dimension_variables_are_checked_across_parameters() -> None:
    text = """
    def @both[n: Dim](%x: Tensor[(n,), float32], %y: Tensor[(n,), float32]) -> Tensor[(n,), float32] { add(%x, %y) }
    def @main(%x: Tensor[(?,), float32], %y: Tensor[(?,), float32]) { @both(%x, %y) }
    """
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    assert np.array_equal(run(text, two, two), two + two)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"%y of @both has shape \(3,\) where \(n,\) with n = 2"):
        run(text, two, three)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("def @main[n: Dim(2, 6)](%x: Tensor[(n,), float32]) { %x }", (2, 3, 4, 6)),
        ("def @main[n: Dim(1, 2)](%x: Tensor[(2*n,), float32]) { %x }", (2, 4)),
        ("def @f[n: Dim(2, 6)](%y: Tensor[(n,), float32]) { %y }\ndef @main(%x: Tensor[(?,), float32]) { @f(%x) }", (2, 3, 4, 6)),
        ("def @main(%x: Tensor[(?,), float32]) { let %f = fn[n: Dim(3)](%y: Tensor[(n,), float32]) { %y }; %f(%x) }", (3, 4, 6, 7)),
    ],
)  # fmt: skip
def test_a_size_is_within_its_bounds(text: str, fits: tuple[int, ...]) -> None:
    for size in (0, 1, 2, 3, 4, 6, 7):
        x = np.ones(size, np.float32)
        if size in fits:
            assert np.asarray(run(text, x)).shape == (size,)
        else:
            with pytest.raises(ShapeError, match=r"n is at (least|most)|where \(2\*n,\) is expected"):
                run(text, x)
    if text.startswith("def @main[n"):
        exe = relay.compile(HEAD + text, workers=1)
        for size in (0, 1, 7):
            with pytest.raises(ShapeError):
                exe(np.ones(size, np.float32))


def test_a_let_annotation_is_a_checked_cast() -> None:
    text = "def @main(%x: Tensor[(?,), float32]) { let %y: Tensor[(2,), float32] = %x; %y }"
    assert np.array_equal(run(text, np.ones(2, np.float32)), np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="%y has shape"):
        run(text, np.ones(5, np.float32))


def test_a_declared_result_is_checked() -> None:
    text = "def @main(%x: Tensor[(?,), float32]) -> Tensor[(2,), float32] { %x }"
    assert np.array_equal(run(text, np.ones(2, np.float32)), np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="the result of @main"):
        run(text, np.ones(5, np.float32))


def test_operators_check_unknown_sizes() -> None:
    text = "def @main(%x: Tensor[(?, ?), float32], %w: Tensor[(4, ?), float32]) {\n  nn.dense(%x, %w)\n}"
    good = run(text, np.ones((2, 3), np.float32), np.ones((4, 3), np.float32))
    assert isinstance(good, np.ndarray) and good.shape == (2, 4)
    with pytest.raises(ShapeError) as caught:
        run(text, np.ones((2, 3), np.float32), np.ones((4, 5), np.float32))
    message = str(caught.value)
    assert (
        "Tensor[(2, 3), float32]" in message and "Tensor[(4, 5), float32]" in message and "nn.dense(%x, %w)" in message
    )


def test_data_dependent_shapes() -> None:
    result = run("def @main(%x: Tensor[(6,), int32]) { unique(%x) }", np.array([3, 1, 3, 2, 1, 3], np.int32))
    assert np.array_equal(result, [1, 2, 3])  # type: ignore[arg-type]
    rows = run("def @main(%x: Tensor[(?, ?), bool]) { argwhere(%x) }", np.array([[True, False], [False, True]]))
    assert np.array_equal(rows, [[0, 0], [1, 1]])  # type: ignore[arg-type]


def test_an_explicit_dim_argument() -> None:
    text = """
    def @ones[n: Dim]() -> Tensor[(n,), float32] { ones(shape=[n], dtype="float32") }
    def @main() { @ones[4]() }
    """
    assert np.array_equal(run(text), np.ones(4))  # type: ignore[arg-type]


SIZE_IN_A_LIST = """import prelude
def @ones[b: Dim](%xs: List[Tensor[(b,), float32]]) -> Tensor[(b,), float32] { ones(shape=[Dim[b]]) }
def @hd_of[b: Dim](%xs: List[Tensor[(b,), float32]]) -> Tensor[(b,), float32] { match? (%xs) { Cons(%x, _) => %x } }
"""


def test_a_size_that_only_data_has() -> None:
    """It can be handed on; where it is used somebody has to tell it."""
    body = "def @main[b: Dim](%xs: List[Tensor[(b,), float32]]) -> Tensor[(b,), float32] {{ @{}[b](%xs) }}"
    given = [np.ones(2, np.float32)]
    assert np.array_equal(run(SIZE_IN_A_LIST + body.format("hd_of"), given), given[0])  # type: ignore[arg-type]
    with pytest.raises(ExecutionError, match="the size b is not known here"):
        run(SIZE_IN_A_LIST + body.format("ones"), given)


# -- element types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int16", "int64", "uint8", "int4"])
def test_dtypes(dtype: str) -> None:
    text = f'def @main(%x: Tensor[(3,), int32]) {{ let %y = cast(%x, dtype="{dtype}"); add(%y, %y) }}'
    result = run(text, np.array([1, 2, 3], np.int32))
    assert isinstance(result, np.ndarray) and result.dtype.name == dtype
    assert result.astype(np.float32).tolist() == [2, 4, 6]


# -- what has no meaning


def typed(body: Expr, *params: Var) -> Module:
    return Module({"main": Function(params, body)})


def test_grad_is_refused() -> None:
    """`relay.evaluate` takes derivatives before it interprets."""
    scalar = TensorType((), "float32")
    x = Var("x", scalar, scalar)
    with pytest.raises(ExecutionError, match="grad"):
        interpreter.evaluate(typed(Grad(Function((x,), x))))


def test_an_unbound_variable_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="%ghost has no value"):
        relay.evaluate(typed(Tuple((Var("ghost"),))))


def test_a_value_that_is_not_a_function_cannot_be_called() -> None:
    one = Constant(np.array(1, np.int32), "int32")
    with pytest.raises(ExecutionError, match="cannot call a int32 tensor"):
        relay.evaluate(typed(Call(one, ())))


def test_a_condition_must_be_a_scalar() -> None:
    flags = Constant(np.array([True, False]), "bool")
    with pytest.raises(ExecutionError, match="condition"):
        relay.evaluate(typed(If(flags, flags, flags)))


def test_an_unknown_operator_suggests_the_nearest() -> None:
    with pytest.raises(RelayError, match="unknown operator"):
        relay.evaluate(typed(Call(OpRef("nn.dens"), ())))


# -- entries and arguments


def test_another_entry() -> None:
    module = relay.parse(HEAD + "def @f(%x: int32) { %x + 1 }\ndef @main() { 0 }")
    assert relay.evaluate(module, 4, entry="f") == 5
    with pytest.raises(RelayError, match="no function @g"):
        relay.evaluate(module, entry="g")


def test_a_tensor_that_gives_no_array_is_refused() -> None:
    class Traced:
        """As a tensor of PyTorch that requires a gradient."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise RuntimeError("Use tensor.detach().numpy() instead.")

    with pytest.raises(TypeError_, match=r"the argument %x of @main is not an array: Use tensor.detach\(\)"):
        run("def @main(%x: Tensor[(2,), float32]) { %x }", Traced())


def test_the_wrong_number_of_arguments() -> None:
    with pytest.raises(TypeError_, match=r"@main takes 1 arguments \(%x: int32\), not 2"):
        run("def @main(%x: int32) { %x }", 1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((2, 4), np.float64), "has dtype float64 where float32"),
        (np.ones(4, np.float32), "has rank 1"),
        (np.ones((2, 5), np.float32), r"has shape \(2, 5\) where \(n, 4\)"),
        ((1, 2), "is a Python tuple where"),
        (None, "is a Python NoneType where"),
        ("text", "dtype"),
    ],
)
def test_arguments_that_do_not_fit(given: object, message: str) -> None:
    with pytest.raises(TypeError_, match=message) as caught:
        run("def @main[n: Dim](%x: Tensor[(n, 4), float32]) { %x }", given)
    assert "%x of @main" in str(caught.value)


@pytest.mark.parametrize("size", ["n + m", "n*m", "n*n", "max(n, m)"])
def test_sizes_are_compared_once_all_arguments_are_known(size: str) -> None:
    """What is computed from sizes may come before the arguments that say what they are."""
    params = f"%x: Tensor[({size},), float32], %y: Tensor[(n,), float32], %z: Tensor[(m,), float32]"
    inner = f"def @f[n: Dim, m: Dim]({params}) {{ sum(%x) + sum(%y) + sum(%z) }}"
    loose = ", ".join(f"%{p}: Tensor[(?,), float32]" for p in "xyz")
    right = {"n + m": 5, "n*m": 6, "n*n": 4, "max(n, m)": 3}[size]
    ones = [np.ones(k, np.float32) for k in range(8)]
    for text in (inner.replace("@f", "@main"), f"{inner} def @main({loose}) {{ @f(%x, %y, %z) }}"):
        assert number(run(text, ones[right], ones[2], ones[3])) == right + 5
        with pytest.raises(ShapeError, match=r"%x of @\w+ has shape \(7,\) where .* with .*n = 2"):
            run(text, ones[7], ones[2], ones[3])


def test_sizes_must_agree_across_arguments() -> None:
    text = "def @main[n: Dim](%x: Tensor[(n,), float32], %p: (Tensor[(n, 2), float32], int32)) { %x }"
    x = np.ones(3, np.float32)
    assert np.array_equal(run(text, x, (np.ones((3, 2), np.float32), 1)), x)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"%p of @main.* has shape \(4, 2\) where \(n, 2\) with n = 3"):
        run(text, x, (np.ones((4, 2), np.float32), 1))


def test_plain_numbers_adopt_the_dtype() -> None:
    assert run("def @main(%x: float16) { %x }", 2) == np.float16(2)
    assert run("def @main(%x: Tensor[(2,), int8]) { %x }", [1, 2]).tolist() == [1, 2]  # type: ignore[attr-defined]
    with pytest.raises(TypeError_, match="does not fit int8"):
        run("def @main(%x: int8) { %x }", 300)
    with pytest.raises(TypeError_, match="float64 where int32"):
        run("def @main(%x: int32) { %x }", 1.5)


def test_lists_options_and_trees_go_both_ways() -> None:
    text = LISTS + "def @main(%x: (List[Option[int32]], Tree[int32])) { %x }"
    leaf = AdtValue("Tree", "Rose", 0, (2, []))
    result = run(text, ([1, None, 3], AdtValue("Tree", "Rose", 0, (1, [leaf, leaf]))))
    assert isinstance(result, tuple)
    items, tree = result
    assert items == [1, None, 3]
    assert (
        isinstance(tree, AdtValue) and int(tree.fields[0]) == 1 and [int(t.fields[0]) for t in tree.fields[1]] == [2, 2]
    )


def test_fields_of_algebraic_arguments_are_checked() -> None:
    text = LISTS + "def @main(%xs: List[Tensor[(2,), float32]]) { %xs }"
    with pytest.raises(TypeError_, match=r"element 1, has dtype int64"):
        run(text, [np.ones(2, np.float32), np.ones(2, np.int64)])
    with pytest.raises(ShapeError, match=r"element 0, has shape \(3,\)"):
        run(text, [np.ones(3, np.float32)])
    with pytest.raises(TypeError_, match="is a Python float"):
        run(text, 1.0)


def test_an_operator_by_composition() -> None:
    x = np.array([-1.0, 0.5], np.float32)
    result = run("def @main(%x: Tensor[(2,), float32]) { nn.silu(%x) }", x)
    assert np.allclose(np.asarray(result), x / (1 + np.exp(-x)), atol=1e-6)


def test_call_builds_what_evaluate_runs() -> None:
    x = Var("x", TensorType((2,), "float32"))
    assert np.array_equal(relay.evaluate(typed(call("negative", x), x), np.ones(2, np.float32)), [-1, -1])  # type: ignore[arg-type]
