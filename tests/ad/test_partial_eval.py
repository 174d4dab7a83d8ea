"""The partial evaluator: the papers' example, what it decides, what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import CompileError
from relay.ir.equality import alpha_equal
from relay.ir.expr import Call, GlobalVar
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.options import Options
from relay.pipeline import build
from relay.transform import (
    DeadFunctions,
    DeadReferences,
    EtaExpand,
    PartialEvaluate,
    Pipeline,
    ToBlocks,
    parse_passes,
)
from relay.transform.blocks import all_bindings, body_of
from relay.typing import infer, verify_types

VERSION = '#[version = "0.0.5"]\nimport prelude\n'
X = np.array([0.5, -1.0, 1.3])


def run(text: str, strict: bool = True, **limits: int) -> Module:
    """A program after partial evaluation and removal of dead code, every step checked."""
    passes = [ToBlocks(), EtaExpand(), PartialEvaluate(strict=strict, **limits), DeadReferences(), DeadFunctions()]
    return Pipeline(passes, lambda m, _: verify_types(m), full=True)(relay.parse(VERSION + text))


def same(found: Module, text: str) -> bool:
    """Whether ``@main`` is the one of a text."""
    wanted = Pipeline([ToBlocks()])(relay.parse(VERSION + text))
    return alpha_equal(found.functions["main"], wanted.functions["main"])


IDENTITY = "def @main[s: Shape, bt: BaseType](%d: Tensor[s, bt]) "
AFTER_AD = (
    IDENTITY
    + """{
  let %x = ref(fn () { () });
  let %x1 = (%d, ref(zeros_like(%d)));
  let %x2 = (fn [s2: Shape, bt2: BaseType](%d1: (Tensor[s2, bt2], Ref[Tensor[s2, bt2]])) { %d1 })(%x1);
  %x2.1 := ones_like(%x2.0);
  let %x3 = (!%x)();
  (%x2.0, (!(%x1.1),))
}"""
)
AFTER_PE = (
    IDENTITY
    + """{
  let %x = fn () { let %x1 = (); %x1 };
  let %x2 = ref(%x);
  let %x3 = zeros_like(%d);
  let %x4 = ref(%x3);
  let %x5 = (%d, %x4);
  let %x6 = fn [s2: Shape, bt2: BaseType](%d1: (Tensor[s2, bt2], Ref[Tensor[s2, bt2]])) { %d1 };
  let %x7 = ones_like(%d);
  %x4 := %x7;
  let %x8 = ();
  let %x9 = (%x7,);
  let %x10 = (%d, %x9);
  %x10
}"""
)
AFTER_DCE = IDENTITY + "{ (%d, (ones_like(%d),)) }"


def test_the_papers_example() -> None:
    """Figure 5 of the 2019 paper (4.2 of the dissertation), step by step."""
    blocks = Pipeline([ToBlocks(), EtaExpand()])(relay.parse(VERSION + AFTER_AD))
    evaluated = PartialEvaluate()(blocks)
    verify_types(evaluated)
    assert same(evaluated, AFTER_PE)
    assert same(DeadReferences()(evaluated), AFTER_DCE)


def test_the_gradient_of_the_identity() -> None:
    text = """def @main[s: Shape, bt: BaseType](%d: Tensor[s, bt]) -> (Tensor[s, bt], (Tensor[s, bt],)) {
      let %g = grad(fn (%e: Tensor[s, bt]) -> Tensor[s, bt] { %e });
      %g(%d)
    }"""
    steps = parse_passes("gradient,partial_eval,dead_references")
    module = Pipeline(steps, lambda m, _: verify_types(m), full=True)(relay.parse(VERSION + text))
    assert same(module, AFTER_DCE.replace(" {", " -> (Tensor[s, bt], (Tensor[s, bt],)) {", 1)), module.text()


DECIDED = {
    "projection": ("%x: float32", "(%x, %x * %x).1", "%x * %x"),
    "branch": ("%x: float32", "if (1 < 2) { %x } else { exp(%x) }", "%x"),
    "match": ("%x: float32", "match (Some(%x)) { Some(%a) => exp(%a), None => %x }", "exp(%x)"),
    "nested match": (
        "%x: float32", "match (Cons((%x, 1), Nil)) { Cons(_, Cons(_, _)) => %x, Cons((%a, _), Nil) => exp(%a), Nil => %x }", "exp(%x)"),
    "read": ("%x: float32", "let %r = ref(%x); %r := exp(!%r); !%r", "exp(%x)"),
    "call": ("%x: float32", "let %f = fn (%a: float32) -> float32 { %a * %x }; %f(exp(%x))", "exp(%x) * %x"),
    "unrolling": ("%x: float32", "@power(%x, 3)", "%x * (%x * (%x * 1f))"),
    "unrolling by a count in a tuple": (
        "%x: float32",
        "@while(fn (%s: (int32, float32)) -> bool { %s.0 < 3 }, "
        "fn (%s: (int32, float32)) -> (int32, float32) { (%s.0 + 1, %s.1 * exp(%x)) }, (0, %x)).1",
        "((%x * exp(%x)) * exp(%x)) * exp(%x)"),
    "a fold over a known list": (
        "%x: float32", "@foldl(fn (%a: float32, %b: float32) -> float32 { %a + %b }, 0f, Cons(%x, Cons(%x, Nil)))", "(0f + %x) + %x"),
    "a write through an alias": ("%x: float32", "let %r = ref(%x); let %p = (%r, 1); %p.0 := exp(%x); !%r", "exp(%x)"),
    "both branches leave a reference": (
        "%x: float32, %c: bool", "let %r = ref(exp(%x)); let %y = if (%c) { %x } else { %x * %x }; !%r * %y",
        "let %e = exp(%x); let %y = if (%c) { %x } else { %x * %x }; %e * %y"),
}  # fmt: skip
POWER = "def @power(%x: float32, %n: int32) -> float32 { if (%n < 1) { 1f } else { %x * @power(%x, %n - 1) } }\n"


@pytest.mark.parametrize("name", DECIDED)
def test_decided(name: str) -> None:
    params, before, after = DECIDED[name]
    found = run(f"{POWER}def @main({params}) -> float32 {{ {before} }}")
    assert same(found, f"def @main({params}) -> float32 {{ {after} }}"), found.text()


# What looks known and is not: the result must not change.
LEFT = {
    "a branch writes": "let %r = ref(%x); if (%c) { %r := exp(%x); () } else { () }; !%r",
    "a closure writes": "let %r = ref(%x); let %f = fn () { %r := !%r * 2f; () }; if (%c) { %f() } else { () }; %f(); !%r",
    "an unknown function writes": "let %r = ref(%x); let %f = if (%c) { fn () { %r := 2f; () } } else { fn () { () } }; %f(); !%r",
    "a reference that may be one of two": "let %r = ref(%x); let %s = ref(1f); let %t = if (%c) { %r } else { %s }; %t := 3f; !%r + !%s",
    "a read in a closure made before a write": "let %r = ref(%x); let %f = fn () -> float32 { !%r }; %r := 5f; "
    "if (%c) { %f() } else { %x }",
    "a global function writes": "let %r = ref(%x); let %y = if (%c) { @set(%r, 3) } else { @set(%r, 0) }; !%r + %y",
    "a reference in a structure": "let %r = ref(%x); let %l = if (%c) { Cons(%r, Nil) } else { Nil }; "
    "match (%l) { Cons(%q, _) => { %q := 7f; () }, Nil => () }; !%r",
    "order of effects": "let %r = ref(%x); let %a = !%r; %r := %a * 2f; let %b = !%r; %r := %b + %a; (!%r - %a) * %b",
    "a recursive function of an unknown count": "@power(%x, if (%c) { 3 } else { 5 })",
    "the second of two copies": "let %f = fn (%n: int32) -> float32 { let %r = ref(%x); %r := !%r + 1f; !%r }; %f(1) * %f(2)",
}  # fmt: skip
SET = """def @set(%r: Ref[float32], %n: int32) -> float32 { if (%n < 1) { !%r } else { %r := !%r * 2f; @set(%r, %n - 1) } }
"""


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    text = f"{POWER}{SET}def @main(%x: float32, %c: bool) {{ {LEFT[name]} }}"
    before, after = relay.parse(VERSION + text), run(text)
    for c in (np.True_, np.False_):
        np.testing.assert_allclose(
            np.asarray(relay.evaluate(before, np.float32(1.5), c)),
            np.asarray(relay.evaluate(after, np.float32(1.5), c)),
        )


def calls(module: Module, name: str) -> int:
    bindings = [b for f in module.functions.values() for b in all_bindings(body_of(f))]
    return sum(
        isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name == name for b in bindings
    )


def test_the_depth_of_unrolling_is_bounded() -> None:
    """A call that is left where the bound is reached goes on from there."""
    text = POWER + "def @main(%x: float32) -> float32 { @power(%x, 100) }"
    found = run(text, depth=10, strict=False)
    assert calls(found, "power") >= 1
    assert "unfolded 10 times inside itself; the call of @power (" in str(found.functions["main"].attrs["partial_eval"])
    assert np.asarray(relay.evaluate(found, np.float32(1.01))) == pytest.approx(1.01**100, rel=1e-4)


ROUNDS = """def @rounds(%x: float32, %r: Ref[float32], %n: int32) -> float32 {
  %r := !%r + %x;
  if (%n < 1) { %x } else { @rounds(sin(%x) + @power(%x, 2), %r, %n - 1) } }
def @main(%x: float32, %c: bool) -> float32 {
  let %r = ref(%x);
  let %y = @rounds(%x, %r, 3);
  let %z = @rounds(%y, %r, 60) + @power(!%r, 3);
  let %p = if (%c) { @power(%z, 40) } else { @rounds(%y, %r, 50) };
  let %l = @foldl(fn (%a: float32, %b: float32) -> float32 { @rounds(%a, %r, 40) * @power(%b, 2) }, %p, Cons(%z, Cons(%y, Nil)));
  %l + %p * !%r + @power(%y, 30)
}"""


@pytest.mark.parametrize("unroll", [0, 10, 40, 200, 10_000])
def test_rounds_that_take_too_much_stay_a_loop(unroll: int) -> None:
    """What was unrolled of them is dropped, with all that was known by it: references, what was put aside, branches."""
    found = run(POWER + ROUNDS, unroll=unroll)
    main = found.functions["main"]
    assert (calls(found, "rounds") > 1) == (unroll < 10_000)
    assert len(list(all_bindings(body_of(main)))) < 120 + 4 * unroll
    for c in (np.True_, np.False_):
        given = np.float32(0.3), c
        wanted = np.asarray(relay.evaluate(relay.parse(VERSION + POWER + ROUNDS), *given))
        np.testing.assert_array_equal(np.asarray(relay.evaluate(found, *given)), wanted)


@pytest.mark.parametrize("steps", [3, 5_000])
def test_steps_of_training_are_a_loop_where_they_are_many(steps: int) -> None:
    """The program is as long for any number of them, and loops inside each other do not multiply."""
    text = f"""import prelude
    def @main(%x: float32, %w: float32) -> float32 {{
      @for(0i64, {steps}i64, fn (%i: int64, %v: float32) -> float32 {{
        @for(0i64, 2i64, fn (%j: int64, %u: float32) -> float32 {{
          let %g = grad(fn (%u: float32) -> float32 {{ tanh(%x * %u) - %x }})(%u); %u - %g.1.0 * 0.01f }}, %v) }}, %w) }}"""
    module = relay.parse(VERSION + text)
    image = build(relay.infer_type(module), Options(cache=False)).image
    assert len(image.to_bytes()) < 30_000
    exe = relay.compile(module, cache=False)
    np.testing.assert_allclose(
        np.asarray(exe(np.float32(0.5), np.float32(1))),
        np.asarray(relay.evaluate(module, np.float32(0.5), np.float32(1))),
        rtol=1e-4,
    )


def test_fuel_is_bounded() -> None:
    """Unrolling without end, over known data, stops and stays a call."""
    text = "def @up(%x: float32, %n: int32) -> float32 { @up(%x, %n + 1) }\ndef @main(%x: float32) -> float32 { @up(%x, 0) }"
    found = run(text, fuel=500, strict=False)
    assert calls(found, "up") >= 1
    assert "fuel of 500 bindings is used up; the call of @up (" in str(found.functions["main"].attrs["partial_eval"])
    assert len(list(all_bindings(body_of(found.functions["main"])))) < 2000


@pytest.mark.parametrize(("fuel", "depth", "said"), [(500, 2000, "fuel of 500"), (5000, 20, "unfolded 20 times")])
def test_limits_are_errors_where_partial_evaluation_is_asked_for(fuel: int, depth: int, said: str) -> None:
    text = "def @up(%x: float32, %n: int32) -> float32 { @up(%x, %n + 1) }\ndef @main(%x: float32) -> float32 { @up(%x, 0) }"
    with pytest.raises(CompileError, match=rf"{said} .*call of @up") as error:
        run(text, fuel=fuel, depth=depth)
    assert error.value.span is not None
    assert error.value.span.line == 3


def test_limits_are_not_negative() -> None:
    with pytest.raises(relay.RelayError, match="fuel must not be negative, found -5"):
        parse_passes("partial_eval{fuel=-5}")


FIXED_POINT = """type Rec { Roll(fn(Rec) -> fn(float32, int32) -> float32) }
def @unroll(%r: Rec) -> fn(Rec) -> fn(float32, int32) -> float32 { match (%r) { Roll(%f) => %f } }
def @main(%x: float32, %n: int32) -> float32 {
  let %h = fn (%r: Rec) -> fn(float32, int32) -> float32 {
    fn (%v: float32, %k: int32) -> float32 { if (%k < 1) { %v * %x } else { @unroll(%r)(%r)(sin(%v), %k - 1) } }
  };
  %h(Roll(%h))(%x, %n)
}"""


@pytest.mark.parametrize("orders", [0, 1, 2])
def test_recursion_by_closures_that_calls_make_anew_is_not_unfolded_behind_its_branch(orders: int) -> None:
    """Each call makes another closure, a copy of one: known where it is called, and so without an end."""
    module = relay.parse(VERSION + FIXED_POINT)
    for _ in range(orders):
        module = relay.grad(module)
    found = parse_passes("gradient,to_blocks,eta_expand,partial_eval{fuel=3000},dead_references")
    small = Pipeline(found, lambda m, _: verify_types(m), full=True)(module)
    given = np.float32(0.9), np.int32(3)
    wanted = np.asarray(relay.evaluate(module, *given))
    np.testing.assert_allclose(np.asarray(relay.evaluate(small, *given)), wanted, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(relay.compile(module)(*given)), wanted, rtol=1e-5)


def test_programs_that_diverge_are_not_evaluated_away() -> None:
    text = (
        "def @loop(%x: float32) -> float32 { @loop(%x) }\ndef @main(%x: float32) -> float32 { let %y = @loop(%x); %x }"
    )
    assert calls(run(text), "loop") >= 1


def test_what_fails_still_fails() -> None:
    module = run("def @main(%x: Option[float32]) -> float32 { let %y = match? (%x) { Some(%a) => %a }; 1f }")
    with pytest.raises(relay.RelayError, match="clause"):
        relay.evaluate(module, None)


DEAD = {
    "only written": ("let %r = ref(%x); %r := exp(%x); %x", "%x"),
    "written in a branch": ("let %r = ref(%x); if (%c) { %r := exp(%x); () } else { () }; %x", "%x"),
    "held by what nobody uses": ("let %r = ref(%x); let %p = (%r, %x); %r := exp(%x); %x", "%x"),
    "read by what nobody uses": ("let %r = ref(%x); %r := exp(%x); let %y = !%r; %x", "%x"),
}


@pytest.mark.parametrize("name", DEAD)
def test_dead_references(name: str) -> None:
    before, after = DEAD[name]
    head = "def @main(%x: float32, %c: bool) -> float32 "
    blocks = ToBlocks()(infer(parse_module(VERSION + f"{head}{{ {before} }}")))
    module = DeadReferences()(blocks)
    verify_types(module)
    assert same(module, f"{head}{{ {after} }}"), module.text()


@pytest.mark.parametrize(
    "body",
    [
        "let %r = ref(%x); %r := exp(%x); !%r",
        "let %r = ref(%x); let %y = !%r; %r := exp(%x); let %f = fn () -> float32 { !%r }; %f() + %y",
        "let %r = ref(%x); let %f = fn () { %r := exp(!%r); () }; %f(); !%r",
        "let %r = ref(%x); let %p = (%r, 1); %r := exp(%x); let %q = %p.0; !%q",
    ],
)
def test_live_references(body: str) -> None:
    blocks = ToBlocks()(relay.parse(VERSION + f"def @main(%x: float32) -> float32 {{ {body} }}"))
    after = DeadReferences()(blocks)
    x = np.float32(0.5)
    assert np.asarray(relay.evaluate(after, x)) == np.asarray(relay.evaluate(blocks, x))
