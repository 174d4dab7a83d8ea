"""Programs written by hand, one for each construct of the language, and what must become of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.differentiate import differentiated
from relay.ir.expr import Function, RefNew
from relay.ir.module import Module
from relay.ir.value import AdtValue
from relay.transform.blocks import all_bindings, body_of
from relay.typing import verify_types
from tests.ad.checks import evaluated, problem

V = "Tensor[(3,), float64]"
X = np.array([0.5, -1.0, 1.3])
HEAD = f"""#[version = "0.0.5"]
import prelude
type Wood {{ Leaf({V}), Branch(Wood, float64, Wood) }}
type Tagged[A] {{ Tagged(A, int32, {V}) }}
type Box[s: Shape, b: BaseType] {{ Box(Tensor[s, b]) }}
type Step {{ Step(fn({V}) -> {V}), Stop }}
"""

# Name: the program, its arguments, the arguments to differentiate by.
PROGRAMS: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "operators": (f"def @main(%x: {V}) {{ sin(%x) * %x + sum(%x) }}", (X,), (0,)),
    "an argument used often": (f"def @main(%x: {V}) {{ %x * %x * %x + %x * sin(%x) }}", (X,), (0,)),
    "a result that is an argument": (f"def @main(%x: {V}) {{ %x }}", (X,), (0,)),
    "an argument without a part in the result": (f"def @main(%x: {V}, %y: {V}) {{ sin(%x) }}", (X, X), (0, 1)),
    "broadcasting": (f"def @main(%x: {V}, %s: float64) {{ %x * %s + %s }}", (X, np.float64(0.4)), (0, 1)),
    "several results": (
        "def @main(%x: Tensor[(4, 6), float64]) { let %t = split(%x, indices_or_sections=3, axis=1); %t.0 * sin(%t.2) }",
        (np.arange(24.0).reshape(4, 6) / 24,),
        (0,),
    ),
    "a tuple of operands": (f"def @main(%x: {V}) {{ concatenate((%x, sin(%x), %x * %x)) }}", (X,), (0,)),
    "tuples in and out": (
        f"def @main(%p: ({V}, (int32, float64))) {{ (sin(%p.0) * %p.1.1, (%p.1.0, %p.0)) }}",
        ((X, (np.int32(3), np.float64(0.3))),),
        (0,),
    ),
    "a branch": (f"def @main(%x: {V}) {{ if (sum(%x) > 0f64) {{ sin(%x) * %x }} else {{ %x }} }}", (X,), (0,)),
    "a branch without work": (f"def @main(%x: {V}, %c: bool) {{ if (%c) {{ %x }} else {{ %x * %x }} }}", (X, np.bool_(True)), (0,)),
    "nested branches": (
        f"def @main(%x: {V}, %n: int32) {{ let %y = sin(%x); if (%n > 1) {{ if (%n > 2) {{ %y * %x }} else {{ %y }} }} else {{ %x }} }}",
        (X, np.int32(3)),
        (0,),
    ),
    "a closure": (
        f"def @main(%x: {V}) {{ let %g = fn (%y: {V}) -> {V} {{ %y * %x }}; %g(%g(sin(%x))) }}", (X,), (0,)),
    "a recursive closure": (
        f"def @main(%x: {V}, %n: int32) {{ let %g = fn (%y: {V}, %k: int32) -> {V} "
        f"{{ if (%k < 1) {{ %y }} else {{ %g(sin(%y) * %x, %k - 1) }} }}; %g(%x, %n) }}",
        (X, np.int32(4)),
        (0,),
    ),
    "recursion": (
        f"def @f(%x: {V}, %n: int32) -> {V} {{ if (%n == 0) {{ %x }} else {{ sin(@f(%x, %n - 1)) * %x }} }}\n"
        f"def @main(%x: {V}, %n: int32) {{ @f(%x, %n) }}",
        (X, np.int32(4)),
        (0,),
    ),
    "mutual recursion": (
        f"def @f(%x: {V}, %n: int32) -> {V} {{ if (%n < 1) {{ %x }} else {{ @g(sin(%x), %n - 1) }} }}\n"
        f"def @g(%x: {V}, %n: int32) -> {V} {{ if (%n < 1) {{ %x * %x }} else {{ @f(%x, %n - 1) + %x }} }}\n"
        f"def @main(%x: {V}, %n: int32) {{ @f(%x, %n) }}",
        (X, np.int32(5)),
        (0,),
    ),
    "an entry that calls itself": (
        f"def @main(%x: {V}, %n: int32) -> {V} {{ if (%n < 1) {{ %x }} else {{ @main(sin(%x), %n - 1) * %x }} }}",
        (X, np.int32(3)),
        (0,),
    ),
    "a reference": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); %r := !%r * sin(%x); let %g = fn () {{ %r := !%r * %x; () }}; %g(); %g(); !%r }}",
        (X,),
        (0,),
    ),
    "a reference written in a branch": (
        f"def @main(%x: {V}, %n: int32) {{ let %r = ref(sin(%x)); if (%n > 1) {{ %r := !%r * %x; () }} else {{ () }}; "
        f"if (%n > 5) {{ () }} else {{ %r := !%r + %x * %x; () }}; "
        f"let %s = ref(sin(%x)); if (%n > 2) {{ %s := %x; () }} else {{ () }}; !%r * !%s }}",
        (X, np.int32(3)),
        (0,),
    ),
    "a reference that two names share": (
        f"def @set(%a: Ref[{V}], %b: Ref[{V}], %v: {V}) -> {V} {{ %a := %v * !%b; !%b }}\n"
        f"def @main(%x: {V}) {{ let %r = ref(sin(%x)); @set(%r, %r, %x) * !%r }}",
        (X,),
        (0,),
    ),
    "a reference to a function": (
        f"def @main(%x: {V}) {{ let %r = ref(fn (%y: {V}) -> {V} {{ %y * %x }}); let %g = !%r; "
        f"%r := fn (%y: {V}) -> {V} {{ sin(%g(%y)) }}; let %h = !%r; %h(%x) }}",
        (X,),
        (0,),
    ),
    "a counter": (
        f"def @main(%x: {V}, %n: int32) {{ let %c = ref(0); let %g = fn (%y: {V}) -> {V} {{ %c := !%c + 1; "
        f"if (!%c > 1) {{ %y * %x }} else {{ sin(%y) }} }}; %g(%g(%g(%x))) }}",
        (X, np.int32(0)),
        (0,),
    ),
    "a fold over a list": (
        f"def @main(%xs: List[{V}], %x: {V}) {{ @foldl(fn (%a: {V}, %b: {V}) -> {V} {{ tanh(%a * %b + %x) }}, %x, %xs) }}",
        ([X, X * 2, X - 1], X),
        (0, 1),
    ),
    "a list as the result": (
        f"def @main(%xs: List[{V}], %x: {V}) {{ @map(fn (%a: {V}) -> {V} {{ tanh(%a * %x) }}, %xs) }}", ([X, X * 2], X), (0, 1)),
    "an optional result": (
        f"def @main(%xs: List[{V}]) {{ match (%xs) {{ Cons(%a, _) => Some(sin(%a)), Nil => None, }} }}", ([X], ), (0,)),
    "a tree": (
        f"def @grow(%t: Wood) -> {V} {{ match (%t) {{ Leaf(%v) => sin(%v), Branch(%l, %s, %r) => @grow(%l) * %s + @grow(%r) }} }}\n"
        "def @main(%t: Wood) { @grow(%t) }",
        (("Branch", ("Leaf", X), np.float64(0.7), ("Branch", ("Leaf", X * 2), np.float64(-0.2), ("Leaf", X))),),
        (0,),
    ),
    "a tree as the result": (
        "def @swap(%t: Wood) -> Wood { match (%t) { Leaf(%v) => Leaf(sin(%v)), "
        "Branch(%l, %s, %r) => Branch(@swap(%r), %s * %s, @swap(%l)) } }\n"
        "def @main(%t: Wood) { @swap(%t) }",
        (("Branch", ("Leaf", X), np.float64(0.7), ("Leaf", X)),),
        (0,),
    ),
    "data of parameters and tensors": (
        f"def @main(%x: {V}) {{ let %t = Tagged((%x, 2), 1, sin(%x)); match (%t) {{ Tagged((%a, %b), %c, %d) => %a * %d, }} }}",
        (X,),
        (0,),
    ),
    "data of base types": (
        f"def @main(%x: {V}) {{ let %f = Box(%x); let %i = Box(cast(%x, dtype=\"int32\")); "
        f"match (%f) {{ Box(%a) => match (%i) {{ Box(%b) => %a * cast(%b, dtype=\"float64\") + %a, }}, }} }}",
        (X + 0.25,),
        (0,),
    ),
    "data with functions": (
        f"def @main(%x: {V}, %n: int32) {{ let %s = if (%n > 0) {{ Step(fn (%y: {V}) -> {V} {{ %y * %x }}) }} else {{ Stop }}; "
        f"match (%s) {{ Step(%f) => %f(%f(%x)), Stop => %x, }} }}",
        (X, np.int32(1)),
        (0,),
    ),
    "nested patterns": (
        f"def @main(%xs: List[({V}, float64)]) {{ match (%xs) {{ Cons((%a, %s), Cons((%b, _), _)) => %a * %b * %s, "
        f"Cons((%a, _), Nil) => %a, Nil => zeros(shape=[3], dtype=\"float64\"), }} }}",
        ([(X, np.float64(0.3)), (X * 2, np.float64(1.0))],),
        (0,),
    ),
    "functions of functions": (
        f"def @main(%x: {V}) {{ let %g = @compose(fn (%y: {V}) -> {V} {{ %y * %x }}, fn (%y: {V}) -> {V} {{ sin(%y) }}); %g(%g(%x)) }}",
        (X,),
        (0,),
    ),
    "a function that is returned": (
        f"def @make(%x: {V}) {{ fn (%y: {V}) -> {V} {{ %y * sin(%x) }} }}\n"
        f"def @main(%x: {V}) {{ let %g = @make(%x); let %h = @make(%x * %x); %g(%h(%x)) }}",
        (X,),
        (0,),
    ),
    "symbolic sizes": (
        "def @main[n: Dim](%x: Tensor[(n, 2), float64], %w: Tensor[(3, 2), float64]) { tanh(nn.dense(%x, %w)) }",
        (np.arange(8.0).reshape(4, 2) / 8, np.arange(6.0).reshape(3, 2) / 6),
        (0, 1),
    ),
    "unknown sizes": (
        "def @main(%x: Tensor[(?,), float64]) { let %y: Tensor[(3,), float64] = %x; sin(%y) * %x }", (X,), (0,)),
    "a list of symbolic sizes": (
        "def @main[n: Dim](%xs: List[Tensor[(n,), float64]], %x: Tensor[(n,), float64]) { "
        "@foldl(fn (%a: Tensor[(n,), float64], %b: Tensor[(n,), float64]) -> Tensor[(n,), float64] { sin(%a) * %b }, %x, %xs) }",
        ([X, X * 2], X),
        (0, 1),
    ),
    "a gradient inside": (
        f"def @g(%x: {V}) -> {V} {{ sin(%x) * %x }}\ndef @main(%x: {V}) {{ grad(@g)(%x).1.0 * %x }}", (X,), (0,)),
    "a gradient through a branch inside": (
        f"def @g(%x: {V}, %n: int32) -> {V} {{ if (%n == 0) {{ %x }} else {{ sin(@g(%x, %n - 1)) * %x }} }}\n"
        f"def @main(%x: {V}) {{ grad(@g)(%x, 2).1.0 * %x }}",
        (X,),
        (0,),
    ),
    "no confusion of perturbations": (
        "def @main(%x: float64) { %x * grad(fn (%y: float64) { %x + %y })(1f64).1.0 }", (np.float64(0.7),), (0,)),
    "a captured argument under a gradient": (
        f"def @main(%x: {V}) {{ grad(fn (%y: {V}) {{ %x * %y * %y }})(sin(%x)).1.0 }}", (X,), (0,)),
    "a captured function under a gradient": (
        f"def @main(%x: {V}) {{ let %k = fn (%z: {V}) -> {V} {{ %z * %x * %z }}; "
        f"grad(fn (%y: {V}) {{ sin(%k(%y)) }})(sin(%x)).1.0 }}",
        (X,),
        (0,),
    ),
    "captured data under a gradient": (
        f"def @main(%xs: List[{V}], %x: {V}) {{ grad(fn (%y: {V}) {{ "
        f"@foldl(fn (%a: {V}, %b: {V}) -> {V} {{ sin(%a * %b) }}, %y, %xs) }})(%x).1.0 }}",
        ([X, X * 2], X),
        (0, 1),
    ),
    "descent of a function that is given": (
        f"def @descend(%g: fn({V}) -> {V}, %x: {V}, %n: int32) -> {V} {{ if (%n == 0) {{ %x }} else "
        f"{{ @descend(%g, %x - 0.1f64 * grad(%g)(%x).1.0, %n - 1) }} }}\n"
        f"def @main(%x: {V}) {{ @descend(fn (%y: {V}) -> {V} {{ sin(%y) * %x }}, %x * %x, 3) }}",
        (X,),
        (0,),
    ),
    "the gradient of a function that is returned": (
        f"def @make(%x: {V}) {{ fn (%y: {V}) -> {V} {{ %y * sin(%x) * %y }} }}\ndef @main(%x: {V}) {{ grad(@make(%x))(%x).1.0 }}",
        (X,),
        (0,),
    ),
    "a gradient as a value": (
        f"def @main(%x: {V}) {{ let %g = grad(fn (%y: {V}) {{ %x * sin(%y) }}); "
        f"match? (@map(%g, Cons(%x, Cons(%x * %x, Nil)))) {{ Cons(%a, Cons(%b, Nil)) => %a.0 * %b.1.0 }} }}",
        (X,),
        (0,),
    ),
    "recursion through data": (
        f"type Rec {{ Roll(fn(Rec) -> fn({V}, int32) -> {V}) }}\n"
        f"def @unroll(%r: Rec) -> fn(Rec) -> fn({V}, int32) -> {V} {{ match (%r) {{ Roll(%f) => %f }} }}\n"
        f"def @main(%x: {V}, %n: int32) {{ let %h = fn (%r: Rec) -> fn({V}, int32) -> {V} {{ fn (%v: {V}, %k: int32) -> {V} {{ "
        "if (%k < 1) { %v * %x } else { @unroll(%r)(%r)(sin(%v), %k - 1) } } }; %h(Roll(%h))(%x, %n) }",
        (X, np.int32(3)),
        (0,),
    ),
    "third derivatives": (
        f"def @a(%x: {V}) -> {V} {{ sin(%x) * %x }}\ndef @b(%x: {V}) -> {V} {{ grad(@a)(%x).1.0 }}\n"
        f"def @c(%x: {V}) -> {V} {{ grad(@b)(%x).1.0 }}\ndef @main(%x: {V}) {{ grad(@c)(%x).1.0 }}",
        (X,),
        (0,),
    ),
    "forward over reverse over forward": (
        f"def @a(%x: {V}) -> {V} {{ sin(%x) * %x }}\ndef @b(%x: {V}) -> {V} {{ jvp(@a)(%x, %x * 2f64).1 }}\n"
        f"def @main(%x: {V}) {{ jvp(fn (%y: {V}) {{ grad(@b)(%y).1.0 }})(%x, cos(%x)).1 }}",
        (X,),
        (0,),
    ),
}  # fmt: skip


def value(module: Module, spec: Any) -> Any:
    """An argument: a tuple that begins with a name is a constructor of Wood."""
    if isinstance(spec, tuple) and spec and isinstance(spec[0], str):
        made: AdtValue = getattr(module.adt("Wood"), spec[0])(*(value(module, s) for s in spec[1:]))
        return made
    return spec


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    text, given, argnums = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    args = [value(module, a) for a in given]
    assert problem(module, args, argnums, compiled=True) is None


def counts(module: Module) -> tuple[int, int]:
    """How many closures and references the functions of a module make."""
    bindings = [b for f in module.functions.values() for b in all_bindings(body_of(f))]
    return sum(isinstance(b.value, Function) for b in bindings), sum(isinstance(b.value, RefNew) for b in bindings)


FIRST_ORDER = (
    "operators", "an argument used often", "several results", "a tuple of operands", "tuples in and out", "a closure",
    "a reference", "data of parameters and tensors", "functions of functions", "a function that is returned",
    "a gradient inside", "no confusion of perturbations", "a captured function under a gradient", "third derivatives",
    "the gradient of a function that is returned", "a gradient through a branch inside", "symbolic sizes",
)  # fmt: skip


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_first_order_gradients_lose_every_closure_and_reference(name: str) -> None:
    text, _, argnums = PROGRAMS[name]
    module = evaluated(differentiated(relay.value_and_grad(relay.parse(HEAD + text), argnums)))
    left = Module({n: f for n, f in module.functions.items() if "main" in n or ".grad" in n}, module.types)
    closures, references = counts(left)
    assert references == 0
    assert closures <= 1  # the gradient itself, called where it is bound


def test_a_control_free_program_needs_no_partial_evaluation() -> None:
    module = differentiated(relay.grad(relay.parse(HEAD + PROGRAMS["operators"][0])))
    assert counts(module)[1] == 0


def test_every_step_is_typed() -> None:
    for name in ("a tree", "a fold over a list", "a gradient inside"):
        text, _, argnums = PROGRAMS[name]
        gradient = relay.grad(relay.parse(HEAD + text), argnums)
        verify_types(gradient)
        verify_types(relay.infer_type(gradient))
        verify_types(differentiated(gradient))


def test_the_text_of_a_differentiated_program_is_that_program() -> None:
    text, given, argnums = PROGRAMS["a tree"]
    module = differentiated(relay.value_and_grad(relay.parse(HEAD + text), argnums))
    again = relay.parse(module.text())
    args = [value(again, a) for a in given]
    first, second = relay.evaluate(module, *args), relay.evaluate(again, *args)
    assert isinstance(first, tuple) and isinstance(second, tuple)
    np.testing.assert_allclose(first[0], second[0])
