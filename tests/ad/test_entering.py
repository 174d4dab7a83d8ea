"""What enters a function under differentiation from outside: functions that are chosen, stored or returned, and references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import typing
from relay.ir.expr import Call, Var
from relay.ir.module import Module
from relay.transform import DeadFunctions, Defunctionalise, Inline, LambdaLift, ToBlocks
from relay.transform.blocks import all_bindings, body_of
from relay.typing import verify_types
from tests.ad.checks import problem
from tests.ad.test_programs import HEAD, V, X

# The derivative of a function, as a function.
D = f"def @d(%f: fn({V}) -> {V}) -> fn({V}) -> {V} {{ fn (%y: {V}) -> {V} {{ grad(%f)(%y).1.0 }} }} "
# By name: the program, and its arguments; derivatives are by the first.
FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "branch": (
        f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ fn (%y: {V}) {{ %y * %x }} }} else {{ fn (%y: {V}) "
        f"{{ sin(%y) }} }}; grad(%g)(%x).1.0 }}",
        (X, np.True_),
    ),
    "branch2": (
        f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ fn (%y: {V}) {{ %y * %x * %y}} }} else {{ fn (%y: "
        f"{V}) {{ sin(%y) }} }}; let %d = fn (%y: {V}) {{ grad(%g)(%y).1.0 }}; grad(%d)(%x).1.0 }}",
        (X, np.True_),
    ),
    "branch jvp": (
        f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ fn (%y: {V}) {{ %y * %x * %y}} }} else {{ fn (%y: "
        f"{V}) {{ sin(%y) }} }}; jvp(%g)(%x, sin(%x)).1 }}",
        (X, np.True_),
    ),
    "in adt": (
        f"def @main(%x: {V}, %n: int32) {{ let %s = if (%n > 0) {{ Step(fn (%y: {V}) -> {V} {{ %y * %x * %y}}) }}"
        f" else {{ Stop }}; match (%s) {{ Step(%f) => grad(%f)(%x).1.0, Stop => %x, }} }}",
        (X, np.int32(1)),
    ),
    "list": (
        f"def @go(%fs: List[fn({V}) -> {V}], %x: {V}) -> {V} {{ match (%fs) "
        f"{{ Cons(%f, %r) => grad(%f)(%x).1.0 + @go(%r, sin(%x)), Nil => %x }} }} def @main(%x: {V}) "
        f"{{ @go(Cons(fn (%y: {V}) -> {V} {{ %y * %x * %y}}, Cons(fn (%y: {V}) -> {V} {{ sin(%y) }}, Nil)), %x) }}",
        (X,),
    ),
    "returned by recursion": (
        f"def @make(%x: {V}, %n: int32) -> fn({V}) -> {V} {{ if (%n < 1) {{ fn (%y: {V}) -> {V} {{ %y * %x * %y}}"
        f" }} else {{ let %g = @make(sin(%x), %n - 1); fn (%y: {V}) -> {V} {{ sin(%g(%y)) }} }} }} def @main(%x: "
        f"{V}, %n: int32) {{ grad(@make(%x, %n))(%x * %x).1.0 }}",
        (X, np.int32(3)),
    ),
    "captured unknown": (
        f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ fn (%y: {V}) {{ %y * %x }} }} else {{ fn (%y: {V}) "
        f"{{ sin(%y) }} }}; grad(fn (%y: {V}) {{ %g(%y) * %y }})(%x).1.0 }}",
        (X, np.True_),
    ),
    "derivative twice": (
        D + f"def @main(%x: {V}) {{ @d(@d(fn (%y: {V}) -> {V} {{ exp(%y * %x) }}))(sin(%x)) }}",
        (X,),
    ),
    "derivative in branch": (
        D + f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ @d(fn (%y: {V}) -> {V} {{ exp(%y * %x) }}) }} "
        f"else {{ fn (%y: {V}) -> {V} {{ sin(%y) }} }}; %g(%x) }}",
        (X, np.True_),
    ),
    "derivative given to recursion": (
        D + f"def @go(%f: fn({V}) -> {V}, %x: {V}, %n: int32) -> {V} {{ if (%n < 1) {{ %x }} else "
        f"{{ @go(%f, %x - %f(%x) / @d(%f)(%x), %n - 1) }} }} "
        f"def @main(%x: {V}, %n: int32) {{ @go(@d(fn (%y: {V}) -> {V} {{ exp(%y) + %y * %y * %x }}), sin(%x), %n) }}",
        (X, np.int32(2)),
    ),
    "fn argument": (
        f"def @main(%x: {V}) {{ let %r = grad(fn (%f: fn({V}) -> {V}, %y: {V}) {{ %f(%y) * %y }})(fn (%z: "
        f"{V}) -> {V} {{ %z * %x }}, %x); %r.1.1 }}",
        (X,),
    ),
    "fn in tuple argument": (
        f"def @main(%x: {V}) {{ let %r = grad(fn (%p: (fn({V}) -> {V}, {V})) {{ let %f = %p.0;"
        f" %f(%p.1) * %p.1 }})((fn (%z: {V}) -> {V} {{ %z * %x }}, %x)); %r.1.0.1 }}",
        (X,),
    ),
    "grad as value of unknown": (
        f"def @main(%x: {V}, %c: bool) {{ let %g = if (%c) {{ fn (%y: {V}) {{ %y * %x * %y}} }} else {{ fn (%y: "
        f"{V}) {{ sin(%y) }} }}; let %d = grad(%g); match? (@map(%d, Cons(%x, Cons(%x * %x, Nil)))) "
        f"{{ Cons(%a, Cons(%b, Nil)) => %a.0 * %b.1.0 }} }}",
        (X, np.True_),
    ),
    "derivatives in a list": (
        D + f"def @main(%x: {V}) {{ let %fs = Cons(fn (%y: {V}) -> {V} {{ sin(%y) * %x }}, Cons(fn (%y: {V}) -> {V} "
        f"{{ %y * %y }}, Nil)); @foldl(fn (%a: {V}, %p: (fn({V}) -> {V}, fn({V}) -> {V})) {{ let %f = %p.0; let %g = %p.1; "
        f"%a + %f(%x) * %g(%a) }}, %x, @zip(%fs, @map(@d, %fs))) }}",
        (X,),
    ),
    "derivatives of derivatives by recursion": (
        D
        + f"def @nth(%n: int32, %f: fn({V}) -> {V}) -> fn({V}) -> {V} {{ if (%n == 0) {{ %f }} else {{ @nth(%n - 1, @d(%f)) }} }} "
        f"def @main(%x: {V}) {{ let %g = @nth(2, fn (%y: {V}) -> {V} {{ sin(%y * %x) }}); %g(%x) }}",
        (X,),
    ),
    "symbolic": (
        "def @main[n: Dim](%x: Tensor[(n,), float64], %c: bool) { let %g = if (%c) "
        "{ fn (%y: Tensor[(n,), float64]) { %y * %x * %y} } else { fn (%y: Tensor[(n,), float64]) { sin(%y) } };"
        " grad(%g)(%x).1.0 }",
        (X, np.True_),
    ),
    "ref to function": (
        f"def @main(%x: {V}, %c: bool) {{ let %r = ref(fn (%y: {V}) -> {V} {{ %y * %x * %y}}); if (%c) "
        f"{{ %r := fn (%y: {V}) -> {V} {{ sin(%y) * %x }}; () }} else {{ () }}; let %g = !%r; grad(%g)(%x).1.0 }}",
        (X, np.True_),
    ),
}
REFERENCES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "read": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); grad(fn (%y: {V}) {{ !%r * %y }})(%x * %x).1.0 }}",
        (X,),
    ),
    "write and read": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); grad(fn (%y: {V}) {{ %r := !%r * %y;"
        f" !%r * sin(%y) }})(%x * %x).1.0 }}",
        (X,),
    ),
    "write, read after": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); let %d = grad(fn (%y: {V}) {{ %r := !%r * %y;"
        f" !%r * sin(%y) }})(%x * %x).1.0; %d * !%r }}",
        (X,),
    ),
    "twice": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); let %g = fn (%y: {V}) {{ %r := !%r * %y; !%r * sin(%y) }};"
        f" let %d = grad(%g)(%x * %x).1.0; let %e = grad(%g)(sin(%x)).1.0; %e * %d + !%r }}",
        (X,),
    ),
    "twice jvp": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); let %g = fn (%y: {V}) {{ %r := !%r * %y; !%r * sin(%y) }};"
        f" let %d = jvp(%g)(%x * %x, %x).1; let %e = jvp(%g)(sin(%x), cos(%x)).1; %e * %d + !%r }}",
        (X,),
    ),
    "jvp then grad": (
        f"def @main(%x: {V}) {{ let %r = ref(%x); let %g = fn (%y: {V}) {{ %r := !%r * %y; !%r * sin(%y) }};"
        f" let %d = jvp(%g)(%x * %x, %x).1; let %e = grad(%g)(sin(%x)).1.0; %e * %d + !%r }}",
        (X,),
    ),
    "shared": (
        f"def @set(%a: Ref[{V}], %b: Ref[{V}], %v: {V}) -> {V} {{ %a := %v * !%b; !%b }} def @main(%x: {V}) "
        f"{{ let %r = ref(sin(%x)); let %s = %r; grad(fn (%y: {V}) {{ @set(%r, %s, %y) * !%s }})(%x).1.0 }}",
        (X,),
    ),
    "closure over ref": (
        f"def @main(%x: {V}) {{ let %r = ref(sin(%x)); let %g = fn (%y: {V}) -> {V} {{ %r := !%r * %y; !%r }};"
        f" grad(fn (%y: {V}) {{ %g(%g(%y)) * !%r }})(%x).1.0 }}",
        (X,),
    ),
    "unit function": (
        f"def @bump(%r: Ref[{V}]) -> () {{ %r := sin(!%r) * !%r; () }} def @main(%x: {V}) "
        f"{{ let %r = ref(sin(%x)); grad(fn (%y: {V}) {{ %r := %y * %x; @bump(%r); !%r }})(%x).1.0 }}",
        (X,),
    ),
    "a loop over a reference": (
        f"def @go(%r: Ref[{V}], %n: int32, %y: {V}) -> {V} {{ if (%n < 1) {{ !%r }} else {{ %r := sin(!%r * %y);"
        f" @go(%r, %n - 1, %y) }} }} def @main(%x: {V}) {{ let %r = ref(sin(%x)); grad(fn (%y: {V}) {{ %r := %y;"
        f" @go(%r, 3, %x) }})(%x).1.0 }}",
        (X,),
    ),
    "in list": (
        f"def @all(%l: List[Ref[{V}]]) -> {V} {{ match (%l) {{ Cons(%r, %t) => {{ %r := !%r * !%r;"
        f' !%r + @all(%t) }}, Nil => zeros(shape=[3], dtype="float64") }} }} def @main(%x: {V}) '
        f"{{ let %r = ref(sin(%x)); let %l = Cons(%r, Cons(ref(%x), Cons(%r, Nil))); grad(fn (%y: {V}) "
        f"{{ %r := %y * !%r; @all(%l) }})(%x).1.0 + !%r}}",
        (X,),
    ),
    "in list jvp": (
        f"def @all(%l: List[Ref[{V}]]) -> {V} {{ match (%l) {{ Cons(%r, %t) => {{ %r := !%r * !%r;"
        f' !%r + @all(%t) }}, Nil => zeros(shape=[3], dtype="float64") }} }} def @main(%x: {V}) '
        f"{{ let %r = ref(sin(%x)); let %l = Cons(%r, Cons(ref(%x), Cons(%r, Nil))); let %d = jvp(fn (%y: {V}) "
        f"{{ %r := %y * !%r; @all(%l) }})(%x, %x).1; %d + jvp(fn (%y: {V}) {{ %y * @all(%l) }})(%x, %x).1}}",
        (X,),
    ),
    "ref argument": (
        f"def @main(%x: {V}) {{ let %r = ref(sin(%x)); grad(fn (%y: {V}, %s: Ref[{V}]) {{ %s := !%s * %y;"
        f" %y * !%s }})(%x, %r).1.0 + !%r }}",
        (X,),
    ),
    "function in ref": (
        f"def @main(%x: {V}) {{ let %r = ref(fn (%y: {V}) -> {V} {{ %y * %x }}); grad(fn (%y: {V}) "
        f"{{ let %g = !%r; %r := fn (%z: {V}) -> {V} {{ sin(%g(%z)) * %y }}; let %h = !%r; %h(%y) }})(%x).1.0 * "
        f"{{ let %k = !%r; %k(%x) }} }}",
        (X,),
    ),
    "branch closures with refs": (
        f"def @main(%x: {V}, %c: bool) {{ let %r = ref(%x); let %g = if (%c) {{ fn (%y: {V}) -> {V} "
        f"{{ %r := !%r * %y; !%r * %y }} }} else {{ fn (%y: {V}) -> {V} {{ %y }} }};"
        f" grad(%g)(%x).1.0 * grad(%g)(sin(%x)).1.0 + jvp(%g)(%x, %x).1 }}",
        (X, np.True_),
    ),
    "references of symbolic sizes": (
        "def @main[n: Dim](%x: Tensor[(n,), float64]) { let %r = ref(%x); grad(fn (%y: Tensor[(n,), float64]) "
        "{ %r := !%r * %y; !%r * sin(%y) })(%x * %x).1.0 * !%r}",
        (X,),
    ),
    "tuple": (
        f"def @main(%x: {V}) {{ let %r = ref((%x, sin(%x))); grad(fn (%y: {V}) {{ let %v = !%r;"
        f" %r := (%v.1 * %y, %v.0); let %w = !%r; %w.0 * %y }})(%x * %x).1.0 * (!%r).1 }}",
        (X,),
    ),
    "result function": (
        f"def @main(%x: {V}, %c: bool) {{ let %k = if (%c) {{ fn (%y: {V}) -> ({V}, fn({V}) -> {V}) "
        f"{{ (%y * %y, fn (%z: {V}) -> {V} {{ %z * %y }}) }} }} else {{ fn (%y: {V}) -> ({V}, fn({V}) -> {V}) "
        f"{{ (%y, fn (%z: {V}) -> {V} {{ %y * %y }}) }} }}; let %d = grad(%k)(%x); let %f = %d.0.1;"
        f" %d.1.0 * %f(%x) }}",
        (X, np.True_),
    ),
}
PROGRAMS = {**FUNCTIONS, **REFERENCES}
# Compiling takes longer than all else here.
COMPILED = (
    "in adt",
    "derivative in branch",
    "derivatives in a list",
    "grad as value of unknown",
    "symbolic",
    "twice jvp",
    "in list",
    "branch closures with refs",
)
SECOND = (
    "branch2",
    "derivative twice",
    "returned by recursion",
    "fn in tuple argument",
    "jvp then grad",
    "shared",
    "function in ref",
    "tuple",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    """In both modes, against finite differences."""
    text, args = PROGRAMS[name]
    assert problem(relay.parse(HEAD + text), args, (0,), compiled=name in COMPILED) is None


@pytest.mark.parametrize("name", SECOND)
def test_second_order(name: str) -> None:
    text, args = PROGRAMS[name]
    assert problem(relay.grad(relay.parse(HEAD + text)), args, (0,)) is None


def data(text: str) -> Module:
    """A program after its functions have become data."""
    module = typing.monomorphise(relay.infer_type(relay.parse(HEAD + text)), ("main",))
    for step in (ToBlocks(), Inline(), LambdaLift(), DeadFunctions(), Defunctionalise(), DeadFunctions()):
        module = step(module)
    verify_types(module)
    return module


def test_functions_as_data() -> None:
    """A function value is a constructor of what it captures; nothing is left that calls a variable."""
    text = (
        f"def @main(%x: {V}, %n: int32) {{ let %g = if (%n > 0) {{ fn (%y: {V}) -> {V} {{ %y * %x }} }} "
        f"else {{ fn (%y: {V}) -> {V} {{ sin(%y) }} }}; %g(%g(%x)) }}"
    )
    module = data(text)
    (made,) = (d for n, d in module.types.items() if n.startswith("fn."))
    assert sorted(len(c.fields) for c in made.constructors) == [0, 1]
    for f in module.functions.values():
        for b in all_bindings(body_of(f)):
            assert not (isinstance(b.value, Call) and isinstance(b.value.fn, Var))
    for n in (0, 1):
        expected: Any = relay.evaluate(relay.parse(HEAD + text), X, np.int32(n))
        found: Any = relay.evaluate(module, X, np.int32(n))
        np.testing.assert_array_equal(found, expected)


def test_functions_as_data_are_written_as_text() -> None:
    """Names that can be read again, also of functions whose names no constructor may have and beside types named alike."""
    text = (
        f"type fn.t0 {{ fn.t0.f._0(fn({V}) -> {V}), fn.t1.wait }}\ndef @f.0(%x: {V}) -> {V} {{ sin(%x) }}\n"
        f"def @fn.q(%x: {V}) -> {V} {{ cos(%x) }}\ndef @main(%x: {V}, %n: int32) {{ let %s = if (%n == 0) {{ fn.t0.f._0(@f.0) }} "
        f"else if (%n == 1) {{ fn.t0.f._0(@fn.q) }} else if (%n == 2) {{ fn.t0.f._0(fn (%y: {V}) -> {V} {{ %y * %x }}) }} "
        f"else {{ fn.t1.wait }}; match (%s) {{ fn.t0.f._0(%h) => %h(%h(%x)), fn.t1.wait => %x }} }}"
    )
    module = data(text)
    again = relay.parse(module.text())
    assert again.text() == module.text()
    for n in range(4):
        expected: Any = relay.evaluate(relay.parse(HEAD + text), X, np.int32(n))
        found: Any = relay.evaluate(again, X, np.int32(n))
        np.testing.assert_array_equal(found, expected)


def test_functions_of_sizes_known_at_run_time() -> None:
    """One type where sizes may meet, two where they cannot."""
    two, some = "Tensor[(2,), float64]", "Tensor[(?,), float64]"
    choice = "if (%n > 0) {{ fn (%y: {0}) -> {0} {{ sin(%y) }} }} else {{ fn (%y: {0}) -> {0} {{ cos(%y) }} }}"
    for other, types in ((two, 2), (some, 1)):
        module = data(
            f"def @main(%x: {V}, %z: {other}, %n: int32) {{ let %f = {choice.format(V)}; let %g = {choice.format(other)}; "
            "(%f(%x), %g(%z)) }"
        )
        # Every lambda is a constructor of one of them.
        assert sum(n.startswith("fn.") and bool(d.constructors) for n, d in module.types.items()) == types
