"""Inlining, lambda lifting, naming of dims, simplification: what each promises."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, Constant, Function, GlobalVar, OpRef
from relay.ir.types import TensorType, mentions_any
from relay.transform import (
    CompileMatch,
    DeadCode,
    DeadFunctions,
    FoldConstants,
    FuseOps,
    Inline,
    LambdaLift,
    NameDims,
    PassError,
    Pipeline,
    Simplify,
    StepReport,
    ToBlocks,
    available_passes,
    make_pass,
    parse_passes,
)
from relay.transform.blocks import all_bindings, body_of
from relay.transform.pattern import Rule, is_constant, is_op, is_proj, is_tuple, match, rewrite, wildcard
from tests.transform.support import evaluate_primitive, operators, run, typed


def callees(module: object, name: str = "main") -> list[str]:
    return [
        b.value.fn.name
        for b in all_bindings(body_of(module.functions[name]))  # type: ignore[attr-defined]
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar)
    ]


# -- inlining


def test_recursive_functions_stay_calls() -> None:
    text = """def @even(%n: int32) -> bool { if (%n < 1) { True } else { @odd(%n - 1) } }
              def @odd(%n: int32) -> bool { if (%n < 1) { False } else { @even(%n - 1) } }
              def @wrap(%n: int32) -> bool { @even(%n) }
              def @main(%n: int32) { @wrap(%n) }"""
    module = run(text, Inline(), DeadFunctions())
    assert callees(module) == ["even"] and set(module.functions) == {"even", "odd", "main"}


def test_large_functions_used_often_stay_calls() -> None:
    chain = "%x"
    for _ in range(20):
        chain = f"exp({chain})"
    text = f"def @big(%x: float32) {{ {chain} }} def @main(%x: float32) {{ add(@big(%x), @big(%x)) }}"
    assert callees(run(text, Inline())) == ["big", "big"]
    assert callees(run(text, Inline(max_bindings=30))) == []


def test_inlined_code_has_the_callers_dims() -> None:
    text = """def @f[k: Dim](%x: Tensor[(k, 4), float32]) { reshape(%x, newshape=[-1]) }
              def @main[n: Dim](%x: Tensor[(n, 4), float32], %y: Tensor[(3, 4), float32]) { (@f(%x), @f(%y)) }"""
    module = run(text, Inline(), DeadFunctions())
    types = [b.var.ty for b in all_bindings(body_of(module.functions["main"])) if isinstance(b.value, Call)]
    assert isinstance(types[0], TensorType) and isinstance(types[1], TensorType)
    assert str(types[0].shape[0]) == "4*n" and types[1].shape == (12,)  # type: ignore[index]


def test_growth_is_bounded() -> None:
    text = "def @f0(%x: float32) { exp(%x) }"
    for n in range(1, 20):
        text += f" def @f{n}(%x: float32) {{ add(@f{n - 1}(%x), @f{n - 1}(%x)) }}"
    module = run(text + " def @main(%x: float32) { @f19(%x) }", Inline(max_bindings=10_000, max_growth=2000))
    assert sum(sum(1 for _ in all_bindings(body_of(f))) for f in module.functions.values()) < 4000


# -- lambda lifting and matches


def test_no_function_is_left() -> None:
    text = """def @main(%n: int32, %x: Tensor[(4), float32]) {
                let %outer = fn (%d: int32) -> int32 {
                  let %inner = fn (%q: int32) -> int32 { if (%q < 1) { %n } else { %outer(%q - 1) } };
                  %inner(%d)
                };
                let %other = fn (%f: fn(int32) -> int32) { %f(%n) };
                (%outer(3), %other(%outer))
              }"""
    module = run(text, LambdaLift())
    for f in module.functions.values():
        assert not any(isinstance(b.value, Function) for b in all_bindings(body_of(f)))
    assert "closure" in operators(module)


def test_self_recursion_is_direct() -> None:
    text = """def @main(%n: int32) {
                let %loop = fn (%i: int32) -> int32 { if (%i < %n) { %loop(%i + 1) } else { %i } };
                %loop(0)
              }"""
    module = run(text, LambdaLift(), DeadCode())
    (name,) = set(module.functions) - {"main"}
    assert callees(module, name) == [name] and callees(module) == [name]
    assert "closure" not in operators(module, name) + operators(module)


def test_matches_look_at_each_constructor_once() -> None:
    text = """type L { C(int32, L), N, }
              def @main(%a: L, %b: L) -> int32 {
                match? ((%a, %b)) { (C(1, _), _) => 1, (N, N) => 2, (C(%x, C(%y, _)), N) => %x }
              }"""
    with pytest.raises(Exception, match="expected"):  # a literal is no pattern
        run(text, CompileMatch())
    module = run(text.replace("(C(1, _), _)", "(C(_, N), _)"), CompileMatch())
    assert module.text().count("match?") >= 2


# -- dims


def test_no_tensor_mentions_an_unknown_size() -> None:
    text = """type L { C(Tensor[(?), float32], L), N, }
              def @main(%x: Tensor[(?, 4), float32], %l: L, %t: (Tensor[(?), float32], int32)) {
                let %u = unique(%t.0);
                let %h = match (%l) { C(%a, _) => %a, N => %u };
                (add(%x, 1f), %h, sum(%h), split(%x, indices_or_sections=2, axis=1))
              }"""
    module = run(text, NameDims())
    function = module.functions["main"]
    assert not any(mentions_any(p.ty) for p in function.params)
    assert not any(mentions_any(b.var.ty) for b in all_bindings(body_of(function)))


def test_a_check_is_made_once() -> None:
    text = """def @main[n: Dim](%x: Tensor[(?), float32], %y: Tensor[(n), float32]) {
                let %a: Tensor[(n), float32] = %x;
                let %b: Tensor[(n), float32] = %x;
                (add(%a, %y), add(%b, %y))
              }"""
    assert operators(run(text, NameDims())).count("check_equal") == 1


def test_what_types_prove_is_not_checked() -> None:
    text = """def @main[n: Dim](%x: Tensor[(n, 4), float32]) {
                let %y = reshape(transpose(%x), newshape=[-1]);
                (add(%x, %x), concatenate((%y, %y), axis=0), nn.dense(%x, %x))
              }"""
    assert "check_equal" not in operators(run(text, NameDims()))


def test_a_size_that_is_used_keeps_what_it_is_read_from() -> None:
    text = """def @main(%x: Tensor[(?), float32], %y: Tensor[(4), float32]) {
                let %u = unique(%x);
                let %v: Tensor[(4), float32] = %u;
                add(%y, 1f)
              }"""
    after = operators(run(text, NameDims(), DeadCode()))
    assert after == ["unique", "check_equal", "add"]


# -- simplification and folding


def test_only_exact_identities() -> None:
    text = """def @main(%x: Tensor[(4), float32], %i: Tensor[(4), int32], %s: float32) {
                (add(%x, 0f), add(%i, 0), multiply(%s, full(1f, shape=(4))), multiply(%x, 1f), divide(%i, 1),
                 cast(cast(%x, dtype="int32"), dtype="float32"))
              }"""
    assert operators(run(text, Simplify(), DeadCode())) == ["add", "full", "multiply", "cast", "cast"]


def test_transposes_compose() -> None:
    text = """def @main(%x: Tensor[(2, 3, 4), float32]) {
                transpose(transpose(%x, axes=[1, 2, 0]), axes=[0, 2, 1])
              }"""
    module = run(text, Simplify(), DeadCode())
    (binding,) = body_of(module.functions["main"]).bindings
    assert isinstance(binding.value, Call) and tuple(binding.value.attrs["axes"]) == (1, 0, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_what_is_taken_and_transposed_is_taken_of_the_transposed_table(axis: int, axes: tuple[int, ...]) -> None:
    """Where the axes of the indices stay together, and the same values in every order."""
    text = f"""def @main[n: Dim, m: Dim](%t: Tensor[(5, 3), float32], %i: Tensor[(n, m), int64]) {{
                transpose(take(%t, %i, axis={axis}), axes={list(axes)})
              }}"""
    module = run(text, Simplify(), DeadCode())
    first = axes.index(axis)
    if axes == (0, 1, 2):
        assert operators(module) == ["take"]
    elif axes[first : first + 2] == (axis, axis + 1):
        assert operators(module) == ["transpose", "take"]
    else:
        assert operators(module) == ["take", "transpose"]
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    indices = np.array([[0, 2, 1, 9], [1, 1, -4, 0]])  # those outside are moved to the nearest
    expected = np.take(table, indices, axis, mode="clip").transpose(axes)
    np.testing.assert_array_equal(np.asarray(relay.evaluate(module, table, indices)), expected)


@pytest.mark.parametrize(("table", "indices"), [("(5000, 3)", "(n, m)"), ("(h, 3)", "(n, m)"), ("(5, 3)", "(2, 1)")])
def test_a_table_that_is_not_known_to_be_small_is_not_transposed(table: str, indices: str) -> None:
    text = f"""def @main[n: Dim, m: Dim, h: Dim](%t: Tensor[{table}, float32], %i: Tensor[{indices}, int64]) {{
                transpose(take(%t, %i, axis=0), axes=[2, 0, 1])
              }}"""
    assert operators(run(text, Simplify(), DeadCode())) == ["take", "transpose"]


def test_large_results_are_not_folded() -> None:
    text = """def @main() { (zeros(shape=(1000, 1000), dtype="float32"), add(2, 3)) }"""
    module = run(text, FoldConstants(evaluate_primitive))
    assert operators(module) == ["zeros"]
    folded = [a for b in all_bindings(body_of(module.functions["main"])) for a in getattr(b.value, "fields", ())]
    assert any(isinstance(a, Constant) and a.data == np.int32(5) for a in folded)


def test_equal_calls_are_folded_once() -> None:
    runs: list[str] = []

    def evaluate(primitive: Function, arrays: object) -> object:
        runs.append("run")
        return evaluate_primitive(primitive, arrays)  # type: ignore[arg-type]

    run("def @main() { (add(2, 3), add(2, 3), add(3, 2)) }", FoldConstants(evaluate))  # type: ignore[arg-type]
    assert len(runs) == 2


# -- patterns


def test_patterns_see_through_variables() -> None:
    x, c = wildcard(), is_constant()
    double = is_op("multiply")(is_op("add")(x, c), x)
    module = run("def @main(%x: float32, %y: float32) { (multiply(add(%x, 2f), %x), multiply(add(%x, 2f), %y)) }")
    definitions = {b.var: b.value for b in all_bindings(body_of(module.functions["main"]))}
    calls = [
        v for v in definitions.values() if isinstance(v, Call) and isinstance(v.fn, OpRef) and v.fn.name == "multiply"
    ]
    found = [match(double, v, lambda e: definitions.get(e, e)) for v in calls]  # type: ignore[arg-type]
    assert found[0] is not None and found[1] is None
    assert found[0][x] is module.functions["main"].params[0] and isinstance(found[0][c], Constant)


def test_alternatives_attributes_and_types() -> None:
    either = is_op("exp")(wildcard()) | is_op("sum")(wildcard()).has_attrs(axis=0) | is_proj(is_tuple(), 1)
    module = run("def @main(%x: Tensor[(2, 3), float32]) { (exp(%x), sum(%x, axis=0), sum(%x, axis=1)) }")
    values = [b.value for b in all_bindings(body_of(module.functions["main"]))]
    assert [match(either, v) is not None for v in values] == [True, True, False, False]
    assert match(is_op("exp").has_dtype("float32"), values[0]) is not None
    assert match(is_op("exp").has_dtype("int32"), values[0]) is None


def test_rewriting_with_own_rules() -> None:
    x = wildcard()
    rule = Rule(is_op("exp")(is_op("log")(x)), lambda found, value, definition: found[x])
    module = run("def @main(%x: float32) { exp(log(exp(log(%x)))) }")
    assert operators(DeadCode()(rewrite(module, [rule]))) == []


# -- pipelines


def test_passes_from_text() -> None:
    assert parse_passes("inline, fuse{max_size=16,outputs=false},dce") == [
        ToBlocks(),
        Inline(),
        FuseOps(max_size=16, outputs=False),
        DeadCode(),
    ]
    assert parse_passes("to_blocks,fold_constants", {"evaluate": evaluate_primitive})[1] == FoldConstants(
        evaluate_primitive
    )
    assert set(available_passes()) >= {"to_blocks", "fuse", "dce", "cse", "inline", "simplify", "name_dims"}
    assert all(cls.__doc__ and "After:" in cls.__doc__ for cls in available_passes().values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fus", "no pass is called 'fus'"),
        ("fuse{size=3}", "no option 'size'"),
        ("fuse{max_size=many}", "must be int"),
        ("fuse dce", "cannot read"),
        ("fold_constants", "needs evaluate"),
    ],
)
def test_errors_in_lists_of_passes(text: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        parse_passes(text)


def test_the_pipeline_reports_and_blames() -> None:
    steps: list[StepReport] = []
    module = typed("def @main(%x: int32) { negative(negative(%x)) }")
    Pipeline([ToBlocks(), Simplify(), DeadCode()], observe=steps.append)(module)
    assert [s.transformation.name for s in steps] == ["to_blocks", "simplify", "dce"]
    assert steps[0].before is module and steps[1].before is steps[0].after

    def refuse(after: object, names: object) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        Pipeline([make_pass("to_blocks")], refuse)(module)
    assert "after pass 0, to_blocks" in caught.value.__notes__[0]
