"""Inference of whole programs: what type comes out."""

# Programs and their types stand on a line each.
# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir import prelude
from relay.ir.diagnostics import OperatorError
from relay.ir.dim import ANY
from relay.ir.equality import alpha_equal
from relay.ir.expr import (
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    OpRef,
    RefNew,
    RefRead,
    Tuple,
    Var,
    attrs_key,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, TypeVar, scalar
from relay.ir.walk import bound_vars, post_order
from relay.op import registry
from relay.typing import expand, infer, infer_expr, op_type, type_text, verify_types
from tests.typing.programs import parsed, type_of, typed

F32 = TensorType((3, 4), "float32")
LIST = 'import "prelude"\n'

PROGRAMS = {
    # operators, constants, tuples
    "def @main(%x: Tensor[(3, 4), float32]) { add(%x, 1f) }": "fn(Tensor[(3, 4), float32]) -> Tensor[(3, 4), float32]",
    "def @main(%x: Tensor[(3, 4), float32], %w: Tensor[(5, 4), float32]) { nn.dense(%x, %w) }":
        "fn(Tensor[(3, 4), float32], Tensor[(5, 4), float32]) -> Tensor[(3, 5), float32]",
    "def @main(%x: Tensor[(3, 4), float32]) { (%x, (1, True)).1 }": "fn(Tensor[(3, 4), float32]) -> (int32, bool)",
    "def @main(%x: Tensor[(2, 4), float32]) { split(%x, indices_or_sections=2, axis=1).1 }":
        "fn(Tensor[(2, 4), float32]) -> Tensor[(2, 2), float32]",
    # symbolic dims, `?`
    "def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(8, 4), float32]) { nn.dense(%x, %w) }":
        "fn[n: Dim](Tensor[(n, 4), float32], Tensor[(8, 4), float32]) -> Tensor[(n, 8), float32]",
    "def @main[n: Dim](%x: Tensor[(n, 4), float32]) { reshape(%x, newshape=[-1, 2]) }":
        "fn[n: Dim](Tensor[(n, 4), float32]) -> Tensor[(2*n, 2), float32]",
    "def @main[n: Dim](%x: Tensor[(n, 4), float32], %y: Tensor[(n, 4), float32]) { concatenate((%x, %y), axis=0) }":
        "fn[n: Dim](Tensor[(n, 4), float32], Tensor[(n, 4), float32]) -> Tensor[(2*n, 4), float32]",
    "def @main(%x: Tensor[(?, 4), float32], %w: Tensor[(8, ?), float32]) { nn.dense(%x, %w) }":
        "fn(Tensor[(?, 4), float32], Tensor[(8, ?), float32]) -> Tensor[(?, 8), float32]",
    "def @main(%x: Tensor[(?, 4), float32], %y: Tensor[(5, 4), float32]) { add(%x, %y) }":
        "fn(Tensor[(?, 4), float32], Tensor[(5, 4), float32]) -> Tensor[(5, 4), float32]",
    # joins of branches
    "def @main(%c: bool, %x: Tensor[(3, 4), float32], %y: Tensor[(5, 4), float32]) { if (%c) { %x } else { %y } }":
        "fn(bool, Tensor[(3, 4), float32], Tensor[(5, 4), float32]) -> Tensor[(?, 4), float32]",
    "def @main[n: Dim](%c: bool, %x: Tensor[(n,), float32]) { if (%c) { (%x, 1) } else { (exp(%x), 2) } }":
        "fn[n: Dim](bool, Tensor[(n,), float32]) -> (Tensor[(n,), float32], int32)",
    # functions, closures, let-polymorphism
    "def @main(%x: Tensor[(3,), float32]) { let %f = fn(%a) { %a }; (%f(%x), %f(1)) }":
        "fn(Tensor[(3,), float32]) -> (Tensor[(3,), float32], int32)",
    "def @main(%x: Tensor[(3,), float32]) { let %k = fn(%a) { fn(%b) { %a } }; (%k(%x)(1), %k(1)(%x)) }":
        "fn(Tensor[(3,), float32]) -> (Tensor[(3,), float32], int32)",
    "def @main(%x: Tensor[(3,), float32]) { let %f = fn(%y) { add(%y, 1f) }; %f(%x) }":
        "fn(Tensor[(3,), float32]) -> Tensor[(3,), float32]",
    "def @main(%x: Tensor[(3,), float32]) { let %t = fn(%h) { %h(%x).1 }; %t(fn(%z) { (1, exp(%z)) }) }":
        "fn(Tensor[(3,), float32]) -> Tensor[(3,), float32]",
    "def @main(%n: int32) { let %f = fn(%i) { if (%i < 1) { 0 } else { %f(%i - 1) } }; %f(%n) }": "fn(int32) -> int32",
    # globals: mutual recursion, generalisation, type arguments
    "def @id(%x) { %x }\ndef @main() { (@id(1), @id(True)) }": "fn() -> (int32, bool)",
    "def @f(%x) { if (%x < 1) { 0 } else { @g(%x - 1) } }\ndef @g(%x) { @f(%x) }\ndef @main() { @f(3) }": "fn() -> int32",
    "def @k[A, B](%x: A, %y: B) -> A { %x }\ndef @main() { @k[int32, bool](1, True) }": "fn() -> int32",
    "def @f[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(4, n), float32] { transpose(%x) }\n"
    "def @main[m: Dim](%x: Tensor[(2*m, 4), float32], %z: Tensor[(?, 4), float32]) { (@f(%x), @f(%z)) }":
        "fn[m: Dim](Tensor[(2*m, 4), float32], Tensor[(?, 4), float32]) -> "
        "(Tensor[(4, 2*m), float32], Tensor[(4, ?), float32])",
    # a known size decides a dim parameter, whichever argument has it
    "def @f[n: Dim](%x: Tensor[(n,), float32], %y: Tensor[(n,), float32]) -> Tensor[(n,), float32] { %x }\n"
    "def @main(%x: Tensor[(?,), float32], %y: Tensor[(5,), float32]) { (@f(%x, %y), @f(%y, %x)) }":
        "fn(Tensor[(?,), float32], Tensor[(5,), float32]) -> (Tensor[(5,), float32], Tensor[(5,), float32])",
    # linear equations of dims
    "def @f[n: Dim](%x: Tensor[(4*n + 1,), float32], %y: Tensor[(n,), float32]) -> Tensor[(n,), float32] { %y }\n"
    "def @main[a: Dim](%x: Tensor[(8*a + 1,), float32], %y: Tensor[(2*a,), float32]) { @f(%x, %y) }":
        "fn[a: Dim](Tensor[(8*a + 1,), float32], Tensor[(2*a,), float32]) -> Tensor[(2*a,), float32]",
    # ... and of products with what is known
    "def @f[h: Dim, d: Dim](%x: Tensor[(3*h*d,), float32], %y: Tensor[(h,), float32]) { reshape(%x, newshape=[3, Dim[h], Dim[d]]) }\n"
    "def @main[h: Dim, d: Dim](%x: Tensor[(6*h*d + 3*h,), float32], %y: Tensor[(h,), float32]) { @f(%x, %y) }":
        "fn[h: Dim, d: Dim](Tensor[(6*h*d + 3*h,), float32], Tensor[(h,), float32]) -> Tensor[(3, h, 2*d + 1), float32]",
    # references, gradients
    "def @main(%x: Tensor[(3,), float32]) { let %r = ref(%x); %r := exp(%x); !%r }":
        "fn(Tensor[(3,), float32]) -> Tensor[(3,), float32]",
    "def @main() { grad(fn(%x: Tensor[(2,), float32], %y: float32) { multiply(%x, %y) }) }":
        "fn() -> fn(Tensor[(2,), float32], float32) -> "
        "(Tensor[(2,), float32], (Tensor[(2,), float32], float32))",
    # algebraic types
    LIST + "def @main() { Cons(1, Cons(2, Nil)) }": "fn() -> List[int32]",
    LIST + "def @main(%x: List[Tensor[(3, 4), float32]]) { @map(negative, %x) }":
        "fn(List[Tensor[(3, 4), float32]]) -> List[Tensor[(3, 4), float32]]",
    LIST + "def @main(%x: List[(int32, Tensor[(2,), float32])]) { match (%x) { Cons((_, %t), _) => %t, Nil => zeros(shape=[2], dtype=\"float32\") } }":
        "fn(List[(int32, Tensor[(2,), float32])]) -> Tensor[(2,), float32]",
    LIST + "def @main(%x: List[Tensor[(3,), float32]]) { @foldl(fn(%a, %b) { add(%a, %b) }, zeros(shape=[3], dtype=\"float32\"), %x) }":
        "fn(List[Tensor[(3,), float32]]) -> Tensor[(3,), float32]",
    # a list is covariant, so the elements' dims are joined
    LIST + "def @main(%c: bool, %x: List[Tensor[(3,), float32]], %y: List[Tensor[(4,), float32]]) { if (%c) { %x } else { %y } }":
        "fn(bool, List[Tensor[(3,), float32]], List[Tensor[(4,), float32]]) -> List[Tensor[(?,), float32]]",
    LIST + "def @f(%x: List[Tensor[(?,), float32]]) -> int32 { @length(%x) }\n"
    "def @main(%y: List[Tensor[(4,), float32]]) { @f(%y) }": "fn(List[Tensor[(4,), float32]]) -> int32",
    # arguments of a polymorphic function are joined
    LIST + "def @main(%x: List[Tensor[(3,), float32]], %y: List[Tensor[(?,), float32]]) { (@concat(%x, %y), @concat(%y, %x)) }":
        "fn(List[Tensor[(3,), float32]], List[Tensor[(?,), float32]]) -> "
        "(List[Tensor[(?,), float32]], List[Tensor[(?,), float32]])",
    LIST + "def @main(%x: Tensor[(3, 2), float32], %y: Tensor[(4, 2), float32]) { Cons(%x, Cons(%y, Nil)) }":
        "fn(Tensor[(3, 2), float32], Tensor[(4, 2), float32]) -> List[Tensor[(?, 2), float32]]",
    # a reference may hold more than its first value
    "def @main(%x: Tensor[(3,), float32], %y: Tensor[(5,), float32]) { let %r: ref(Tensor[(?,), float32]) = ref(%x); %r := %y; !%r }":
        "fn(Tensor[(3,), float32], Tensor[(5,), float32]) -> Tensor[(?,), float32]",
    # types with dim parameters; a field of a `?` size
    "type Vec[n: Dim] { V(Tensor[(n,), float32]), }\n"
    "def @dot[n: Dim](%a: Vec[n], %b: Vec[n]) -> float32 { match ((%a, %b)) { (V(%x), V(%y)) => sum(multiply(%x, %y)) } }\n"
    "def @main[k: Dim](%x: Tensor[(k,), float32], %y: Tensor[(?,), float32]) { (@dot(V(%x), V(%x)), V(%y)) }":
        "fn[k: Dim](Tensor[(k,), float32], Tensor[(?,), float32]) -> (float32, Vec[?])",
    # types left open in annotations
    "def @main(%x: int32, %y: Tensor[(?n, ?n), float32]) -> _ { let %z: (int32, _) = (add(%x, 1), %y); let %w: ?A = %z; %w }":
        "fn[n: Dim](int32, Tensor[(n, n), float32]) -> (int32, Tensor[(n, n), float32])",
    # a type without values needs no clause
    "type Void { }\ndef @main(%v: Void) -> int32 { match (%v) { } }": "fn(Void) -> int32",
    # a parameter that takes every size
    "def @g[n: Dim](%x: Tensor[(n,), float32]) -> Tensor[(n,), float32] { exp(%x) }\n"
    "def @h(%f: fn[n: Dim](Tensor[(n,), float32]) -> Tensor[(n,), float32], %x: Tensor[(3,), float32]) { (%f(%x), %f(%f(%x))) }\n"
    "def @main(%x: Tensor[(3,), float32]) { @h(@g, %x) }":
        "fn(Tensor[(3,), float32]) -> (Tensor[(3,), float32], Tensor[(3,), float32])",
    # operators on shape and base-type parameters
    "def @f[s: Shape, b: BaseType](%x: Tensor[s, b], %y: Tensor[s, b]) -> (Tensor[s, b], Tensor[s, bool], Tensor[(), b])\n"
    "{ (add(%x, %y), equal(%x, %y), sum(%x)) }\n"
    "def @main(%x: Tensor[(2, 3), float32]) { @f(%x, exp(%x)) }":
        "fn(Tensor[(2, 3), float32]) -> (Tensor[(2, 3), float32], Tensor[(2, 3), bool], float32)",
    # operators and constructors as values
    LIST + "def @main() { let %c = Cons; let %e = exp; %c(%e(1f), Nil) }": "fn() -> List[float32]",
    LIST + "def @main(%x: List[Tensor[(2,), float32]]) { @zip(%x, @map(fn(%y) { sum(%y) }, %x)) }":
        "fn(List[Tensor[(2,), float32]]) -> List[(Tensor[(2,), float32], float32)]",
    # shape and base-type parameters, tied by a relation of an operator
    "def @f[s: Shape, b: BaseType](%x: Tensor[s, b]) -> Tensor[s, b] { %x }\n"
    "def @main(%x: Tensor[(2, 3), float32]) { (@f(%x), @f(1)) }":
        "fn(Tensor[(2, 3), float32]) -> (Tensor[(2, 3), float32], int32)",
}  # fmt: skip


@pytest.mark.parametrize("text", list(PROGRAMS))
def test_program(text: str) -> None:
    assert type_of(text) == PROGRAMS[text]


def every_type(e: Expr) -> list[object]:
    out: list[object] = []
    for node in post_order(e):
        out.append(node.ty)
        out.extend(v.ty for v in bound_vars(node))
    return out


@pytest.mark.parametrize("text", list(PROGRAMS))
def test_every_node_is_typed_and_inference_is_stable(text: str) -> None:
    once = typed(text)
    for fn in once.functions.values():
        assert None not in every_type(fn)
    again = infer(once)
    verify_types(again)
    for name, fn in once.functions.items():
        new = again.function(name).ty
        assert new is not None and fn.ty is not None
        assert type_text(new) == type_text(fn.ty)


def test_the_prelude_has_the_types_it_declares() -> None:
    module = infer(prelude.load())
    verify_types(module)
    types = {n: type_text(f.ty) for n, f in module.functions.items() if f.ty is not None}
    assert types["map"] == "fn[A, B](fn(A) -> B, List[A]) -> List[B]"
    assert types["foldr1"] == "fn[A](fn(A, A) -> A, List[A]) -> A"
    assert types["map_accuml"] == "fn[A, B, C](fn(A, B) -> (A, C), A, List[B]) -> (A, List[C])"
    assert types["tmap"] == "fn[A, B](fn(A) -> B, Tree[A]) -> Tree[B]"
    assert len(types) == len(module.functions)


def test_calls_record_type_arguments() -> None:
    module = typed("def @id[A](%x: A) -> A { %x }\ndef @main() { @id(1) }")
    call = module.function("main").body
    assert isinstance(call, Call)
    assert call.type_args == (scalar("int32"),)


def test_polymorphic_values_are_expanded() -> None:
    module = typed(LIST + "def @main(%x: List[int32]) { @map(@id, %x) }")
    call = module.function("main").body
    assert isinstance(call, Call)
    value = call.args[0]
    assert isinstance(value, Function) and isinstance(value.body, Call) and isinstance(value.body.fn, GlobalVar)
    assert value.ty == FuncType((scalar("int32"),), scalar("int32"))
    assert value.body.type_args == (scalar("int32"),)


def test_one_atom_shared_by_several_calls_is_instantiated_at_each() -> None:
    a = TypeVar("A")
    x = Var("x", a)
    identity = Function((x,), x, a, (a,))
    g, nil = GlobalVar("id"), ConstructorRef("Nil")
    one = Constant(np.array(1, np.int32), "int32")
    two = Constant(np.array(1, np.float32), "float32")
    cons = ConstructorRef("Cons")
    body = Tuple((Call(g, (one,)), Call(g, (two,)), Call(cons, (one, Call(nil, ()))), Call(cons, (two, Call(nil, ())))))
    types = prelude.load().types
    module = infer(Module({"id": identity, "main": Function((), body)}, types))
    t = module.function("main").ty
    assert isinstance(t, FuncType)
    ints, floats = AdtType("List", (scalar("int32"),)), AdtType("List", (scalar("float32"),))
    assert t.ret == TupleType((scalar("int32"), scalar("float32"), ints, floats))


def test_references_are_not_generalised() -> None:
    # let r = ref(fn(x) { x }) is one cell of one type.
    module = parsed("def @main() { let %r = ref(fn(%x) { %x }); ((!%r)(1), (!%r)(True)) }")
    with pytest.raises(Exception, match="argument 1"):
        infer(module)


def test_entry_types_type_unannotated_parameters() -> None:
    module = infer(parsed("def @main(%x, %y) { add(%x, %y) }"), entry_types={"main": (F32, scalar("float32"))})
    assert module.function("main").ty == FuncType((F32, scalar("float32")), F32)


def test_open_terms() -> None:
    x = Var("x", F32)
    e = infer_expr(Call(OpRef("exp"), (x,)))
    assert e.ty == F32
    r = infer_expr(RefRead(RefNew(x)))
    assert r.ty == F32
    assert isinstance(infer_expr(Block((), x)), Block)


def test_op_type_is_the_local_relation() -> None:
    w = TensorType((5, 4), "float32")
    assert op_type("nn.dense", (F32, w)) == TensorType((3, 5), "float32")
    assert op_type("nn.dense", (F32, w)) is op_type("nn.dense", (F32, w))
    assert op_type("sum", (F32,), {"axis": (1,), "keepdims": True}) == TensorType((3, 1), "float32")


def test_attributes_that_python_calls_equal_are_kept_apart() -> None:
    assert attrs_key({"v": 1}) != attrs_key({"v": True})
    assert attrs_key({"v": 1}) != attrs_key({"v": 1.0})
    assert attrs_key({"v": (0.0,)}) != attrs_key({"v": (-0.0,)})
    assert attrs_key({"v": (1, 2), "w": "x"}) == attrs_key({"w": "x", "v": (1, 2)})


def test_constraints_type_operators_on_type_parameters() -> None:
    text = (
        "def @f[A, B, C](%x: A, %y: B) -> C where add(A, B, C) { add(%x, %y) }\n"
        "def @main(%x: Tensor[(3, 1), float32], %y: Tensor[(4,), float32]) { @f(%x, %y) }"
    )
    assert type_of(text) == "fn(Tensor[(3, 1), float32], Tensor[(4,), float32]) -> Tensor[(3, 4), float32]"


def test_a_constraint_names_an_operator_also_where_nobody_calls_the_function() -> None:
    with pytest.raises(OperatorError, match=r"test:2:5: unknown operator 'Broadcast'"):
        type_of("def @f[A, B, C](%x: A, %y: B) -> A where Broadcast(A, B, C) { %x }\ndef @main(%x: int32) { %x }")


def test_data_dependent_shapes_are_any() -> None:
    text = "def @main(%x: Tensor[(6,), float32], %s: Tensor[(2,), int64]) { (unique(%x), dyn.reshape(%x, %s)) }"
    assert type_of(text) == (
        "fn(Tensor[(6,), float32], Tensor[(2,), int64]) -> (Tensor[(?,), float32], Tensor[(?, ?), float32])"
    )


def test_upper_bound_operators_cut_the_first_axis() -> None:
    assert registry.get("take_while").shape_mode == "upper_bound"
    assert op_type("take_while", (TensorType((6, 2), "float32"), TensorType((6,), "bool"))) == TensorType(
        (ANY, 2), "float32"
    )


@pytest.mark.parametrize(
    "name", [n for n in registry.names() if registry.get(n).kind == "composition" and len(registry.get(n).inputs) == 1]
)
def test_compositions_are_typed_by_what_they_stand_for(name: str) -> None:
    fn = expand(registry.get(name), (F32,), {})
    assert isinstance(fn.ty, FuncType)
    assert fn.ty.ret == op_type(name, (F32,))


def test_a_size_that_the_parameters_of_a_local_function_name_is_its_own() -> None:
    """It takes any width, as a definition does; what the definition around it has named is that one."""
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 5), float32]) {
  let %f = fn (%v: Tensor[(2, ?k), float32]) -> Tensor[(2, ?k), float32] { %v };
  let %g = fn (%v: Tensor[(?k,), float32], %w: Tensor[(?k,), float32]) { %v + %w };
  (%f(%x), %f(%y), %g(ones(shape=[3]), ones(shape=[3])))
}
def @shared(%x: Tensor[(?k,), float32], %y: Tensor[(?k,), float32]) {
  let %f = fn (%v: Tensor[(?k,), float32]) { %v + %y };
  %f(%x)
}"""
    module = relay.parse(text)
    assert "%f = fn[k: Dim] (%v: Tensor[(2, k), float32])" in str(module)
    assert "%f = fn (%v: Tensor[(k,), float32])" in str(module)
    assert alpha_equal(module, relay.parse(str(module)))
