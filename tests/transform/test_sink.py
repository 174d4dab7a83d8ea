"""What only a branch uses is computed there."""

from __future__ import annotations

import numpy as np

from relay.interpreter.evaluation import evaluate
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.transform import CompileMatch, Sink
from relay.transform.blocks import body_of
from tests.transform.support import operators, run, typed

X = np.linspace(-1, 1, 4).astype(np.float32)


def sunk(text: str, *inputs: object) -> Module:
    module = typed(text)
    after = run(module, CompileMatch(), Sink())
    for flag in (True, False):
        given = [*inputs, np.bool_(flag)]
        np.testing.assert_array_equal(np.asarray(evaluate(module, *given)), np.asarray(evaluate(after, *given)))
    return after


def top(module: Module) -> list[str]:
    """The operators of the outermost block of @main."""
    bindings = body_of(module.functions["main"]).bindings
    return [b.value.fn.name for b in bindings if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef)]


def test_into_the_branch_that_uses_it() -> None:
    after = sunk(
        """def @main(%x: Tensor[(4), float32], %c: bool) {
             let %a = exp(%x); let %b = tanh(%a); if (%c) { add(%b, %x) } else { %x } }""",
        X,
    )
    assert top(after) == [] and operators(after) == ["exp", "tanh", "add"]


def test_into_both_branches_as_copies() -> None:
    after = sunk(
        "def @main(%x: Tensor[(4), float32], %c: bool) { let %a = exp(%x); if (%c) { add(%a, %x) } else { %a } }", X
    )
    assert top(after) == [] and operators(after).count("exp") == 2


def test_through_several_levels() -> None:
    after = sunk(
        """def @main(%x: Tensor[(4), float32], %c: bool) {
             let %a = exp(%x);
             if (%c) { let %d = sum(%x) > 0f; if (%d) { tanh(%a) } else { add(%a, %a) } } else { %a } }""",
        X,
    )
    (choice,) = body_of(after.functions["main"]).bindings
    assert top(after) == [] and operators(after).count("exp") == 3
    assert choice.var is body_of(after.functions["main"]).result


def test_what_is_used_outside_stays() -> None:
    after = sunk(
        """def @main(%x: Tensor[(4), float32], %c: bool) {
             let %a = exp(%x); let %b = if (%c) { tanh(%a) } else { %x }; add(%a, %b) }""",
        X,
    )
    assert top(after) == ["exp", "add"]


def test_what_two_choices_use_stays() -> None:
    after = sunk(
        """def @main(%x: Tensor[(4), float32], %c: bool) {
             let %a = exp(%x);
             let %b = if (%c) { tanh(%a) } else { %x };
             let %d = if (%c) { add(%b, %a) } else { %b };
             add(%b, %d) }""",
        X,
    )
    assert top(after) == ["exp", "add"]


def test_effects_stay() -> None:
    text = """def @main(%x: Tensor[(4), float32], %c: bool) {
             let %r = ref(%x); let %a = !%r; %r := exp(%x); if (%c) { add(%a, %x) } else { %x } }"""
    module = typed(text)
    after = run(module, CompileMatch(), Sink())
    assert np.array_equal(np.asarray(evaluate(after, X, np.bool_(True))), 2 * X)


def test_what_may_fail_goes_into_all_branches_or_none() -> None:
    """A look-up in what may have no rows: it has to fail whichever branch is taken."""
    x = X.reshape(2, 2)
    look_up = "def @main[n: Dim](%x: Tensor[(n, 2), float32], %c: bool) { let %a = take(%x, 0i64, axis=0);"
    after = sunk(f"{look_up} if (%c) {{ tanh(%a) }} else {{ exp(%a) }} }}", x)
    assert top(after) == [] and operators(after).count("take") == 2
    after = sunk(f"{look_up} let %b = tanh(%a); if (%c) {{ %b }} else {{ zeros(shape=[2]) }} }}", x)
    assert top(after) == ["take"] and operators(after).count("tanh") == 1
