"""Monomorphisation: which copies are made, what they are called with, and what cannot be copied."""

from __future__ import annotations

import pytest

from relay.ir.diagnostics import TypeError_
from relay.ir.dim import DimVar
from relay.ir.expr import Block, Call, Function
from relay.ir.module import Module
from relay.ir.types import Type, TypeVar
from relay.ir.walk import bound_vars, post_order
from relay.typing import infer, monomorphise, type_text, verify_types
from relay.typing.substitution import variables
from tests.typing.programs import typed

LIST = 'import "prelude"\n'


def mono(text: str) -> Module:
    module = monomorphise(typed(text))
    verify_types(module)
    verify_types(infer(module))
    for fn in module.functions.values():
        bound: set[object] = set()
        for node in post_order(fn):
            types: list[Type | None] = [node.ty, *(v.ty for v in bound_vars(node))]
            if isinstance(node, Function):
                assert all(isinstance(p, DimVar) for p in node.type_params)
                assert bound.isdisjoint(node.type_params), "every copy has its own dims"
                bound.update(node.type_params)
            for t in types:
                assert t is not None
                # Constructors stay polymorphic; nothing else does.
                if type(node).__name__ != "ConstructorRef":
                    assert not any(isinstance(v, TypeVar) for v in variables(t)), type_text(t)
    return module


def types(module: Module) -> dict[str, str]:
    return {name: type_text(fn.ty) for name, fn in module.functions.items() if fn.ty is not None}


def test_a_copy_for_every_type_and_nothing_else() -> None:
    module = mono("def @id(%x) { %x }\ndef @unused(%x) { %x }\ndef @main() { (@id(1), @id(True), @id(2)) }")
    assert types(module) == {
        "main": "fn() -> (int32, bool, int32)",
        "id_1": "fn(int32) -> int32",
        "id_2": "fn(bool) -> bool",
    }


def test_a_monomorphic_module_stays_as_it_is() -> None:
    module = typed(
        "def @f(%x: int32) -> int32 { %x }\ndef @main[n: Dim](%x: Tensor[(n,), float32]) { (@f(1), exp(%x)) }"
    )
    assert monomorphise(module) is module


def test_symbolic_dims_become_parameters_of_the_copy() -> None:
    module = mono(LIST + "def @main[n: Dim](%x: List[Tensor[(4*n, n), float32]]) { @hd(%x) }")
    assert types(module)["hd_1"] == "fn[d0: Dim, d1: Dim](List[Tensor[(d0, d1), float32]]) -> Tensor[(d0, d1), float32]"
    call = module.function("main").body
    assert isinstance(call, Call)
    assert [str(a) for a in call.type_args] == ["4*n", "n"]
    assert call.ty is not None and type_text(call.ty) == "Tensor[(4*n, n), float32]"


def test_one_copy_serves_every_size() -> None:
    module = mono(
        LIST + "def @main[n: Dim, m: Dim](%x: List[Tensor[(n,), float32]], %y: List[Tensor[(m + 1,), float32]]) {\n"
        "  (@length(%x), @length(%y)) }"
    )
    assert sorted(n for n in module.functions if n.startswith("length")) == ["length_1"]


def test_own_dim_parameters_stay_first() -> None:
    module = mono(
        "def @f[n: Dim, A](%x: Tensor[(n,), float32], %y: A) -> (A, Tensor[(n,), float32]) { (%y, %x) }\n"
        "def @main[k: Dim](%x: Tensor[(3,), float32], %y: Tensor[(k,), float32]) { @f(%x, %y) }"
    )
    assert types(module)["f_1"].startswith("fn[n: Dim, d0: Dim](Tensor[(n,), float32], Tensor[(d0,), float32])")
    call = module.function("main").body
    assert isinstance(call, Call)
    assert [str(a) for a in call.type_args] == ["3", "k"]


def test_shapes_and_base_types_are_specialised() -> None:
    module = mono(
        "def @f[s: Shape, b: BaseType](%x: Tensor[s, b]) -> Tensor[s, b] { %x }\n"
        "def @main[n: Dim](%x: Tensor[(n, 3), float32]) { (@f(%x), @f(1i64)) }"
    )
    assert set(types(module).values()) >= {
        "fn[d0: Dim](Tensor[(d0, 3), float32]) -> Tensor[(d0, 3), float32]",
        "fn(int64) -> int64",
    }


def test_functions_bound_by_let_are_copied_where_they_stand() -> None:
    module = mono(
        "def @main[n: Dim](%x: Tensor[(n,), float32]) {\n"
        "  let %pair = fn(%a) { (%a, %a) };\n"
        "  let %twice = fn(%b) { %pair(%pair(%b)) };\n"
        "  let %unused = fn(%c) { %c };\n"
        "  (%twice(%x), %twice(1)) }"
    )
    body = module.function("main").body
    assert isinstance(body, Block)
    names = [b.var.name for b in body.bindings]
    assert sorted(names) == ["pair_1", "pair_2", "pair_3", "pair_4", "twice_1", "twice_2"]
    assert max(names.index(n) for n in names if n.startswith("pair")) < min(
        names.index(n) for n in names if n.startswith("twice")
    )


def test_recursive_functions_bound_by_let_call_their_own_copy() -> None:
    module = mono(
        "def @main(%n: int32) {\n"
        "  let %f = fn(%i, %x) { if (%i < 1) { %x } else { %f(%i - 1, %x) } };\n"
        "  (%f(%n, 1), %f(%n, True)) }"
    )
    body = module.function("main").body
    assert isinstance(body, Block)
    for b in body.bindings:
        assert isinstance(b.value, Function)
        called = [n.fn for n in post_order(b.value) if isinstance(n, Call)]
        assert b.var in called


def test_mutual_recursion() -> None:
    module = mono(
        "def @f(%x, %i) { if (%i < 1) { %x } else { @g(%x, %i - 1) } }\n"
        "def @g(%x, %i) { @f(%x, %i) }\n"
        "def @main() { (@f(1, 2), @f(True, 2)) }"
    )
    assert sorted(module.functions) == ["f_1", "f_2", "g_1", "g_2", "main"]


def test_finite_polymorphic_recursion() -> None:
    module = mono(
        "def @f[A](%x: A, %n: int32) -> int32 { if (%n < 0) { %n } else { @f(1f, %n - 1) } }\ndef @main() { @f(1, 3) }"
    )
    assert sorted(module.functions) == ["f_1", "f_2", "main"]


def test_names_do_not_clash() -> None:
    module = mono("def @id(%x) { %x }\ndef @id_1(%x: bool) -> bool { %x }\ndef @main() { (@id(1), @id_1(True)) }")
    assert sorted(module.functions) == ["id_1", "id_2", "main"]


def test_the_whole_prelude_is_copied() -> None:
    mono(
        LIST + "def @main(%x: List[Tensor[(2,), float32]], %n: int32) {\n"
        "  let %ys = @map(exp, @filter(fn(%y) { True }, @rev(@concat(%x, %x))));\n"
        "  let %s = @foldr(fn(%a, %b) { add(%a, %b) }, @hd(%ys), @update(%ys, 0, @nth(%ys, %n)));\n"
        "  (@zip(%ys, @tl(%x)), %s, @iterate(fn(%a) { exp(%a) }, %n)(%s), @size(Rose(1, Nil)),\n"
        "   @map_accuml(fn(%a, %b) { (add(%a, %b), %a) }, %s, %x), @sum(Cons(1, Nil)), @compose(@hd, @tl)(%x)) }"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def @f[A](%x: A, %n: int32) -> int32 { if (%n < 0) { %n } else { @f((%x, %x), %n - 1) } }\n"
            "def @main() { @f(1, 3) }",
            "@f calls itself at ever new types",
        ),
        (
            "type Box[A] { Box(A), }\n"
            "def @f[A](%x: A, %n: int32) -> int32 { if (%n < 0) { %n } else { @g(Box(%x), %n - 1) } }\n"
            "def @g[A](%x: A, %n: int32) -> int32 { @f(%x, %n) }\ndef @main() { @f(1, 3) }",
            "@[fg] calls itself at ever new types",
        ),
        (
            "def @main() {\n"
            "  let %f = fn[A](%x: A, %n: int32) -> int32 { if (%n < 0) { %n } else { %f(1f, %n - 1) } };\n  %f(1, 1) }",
            "%f calls itself at other types .float32.",
        ),
    ],
)
def test_infinitely_many_copies(text: str, message: str) -> None:
    with pytest.raises(TypeError_, match=message):
        monomorphise(typed(text))


def test_a_polymorphic_entry() -> None:
    with pytest.raises(TypeError_, match=r"the entry @id is polymorphic: fn\[A\]\(A\) -> A"):
        monomorphise(typed("def @id(%x) { %x }"), ["id"])
