"""Long programs: nothing recurses over the length of a program, and ten times the size is about ten times the work."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay.ir.equality import alpha_equal
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, If, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import AdtType, TensorType, TupleType, scalar
from relay.ir.walk import free_vars
from relay.typing import Effects, infer, monomorphise, verify_types

F32 = TensorType((3, 4), "float32")
ONE = Constant(np.array(1, np.float32), "float32")
TRUE = Constant(np.array(True), "bool")


def nested(n: int) -> Expr:
    e: Expr = Var("x", F32)
    for _ in range(n):
        e = Call(OpRef("add"), (e, ONE))
    return e


def diamonds(n: int) -> Expr:
    """Each node is used twice, so a walk without a memo would take 2**n steps."""
    e: Expr = Var("x", F32)
    for _ in range(n):
        e = Call(OpRef("add"), (e, e))
    return e


def flat(n: int) -> Expr:
    bindings: list[Binding] = []
    e: Expr = Var("x", F32)
    for _ in range(n):
        v = Var("v")
        bindings.append(Binding(v, Call(OpRef("add"), (e, ONE))))
        e = v
    return Block(tuple(bindings), e)


def nested_lets(n: int) -> Expr:
    e: Expr = ONE
    for _ in range(n):
        e = Block((Binding(Var("v"), ONE),), e)
    return e


def branches(n: int) -> Expr:
    e: Expr = ONE
    for _ in range(n):
        e = If(TRUE, ONE, e)
    return e


def closures(n: int) -> Expr:
    e: Expr = ONE
    for _ in range(n):
        e = Call(Function((Var("y"),), e), (ONE,))
    return e


def polymorphic_lets(n: int) -> Expr:
    bindings: list[Binding] = []
    for _ in range(n):
        f, x = Var("f"), Var("x")
        bindings.append(Binding(f, Function((x,), Tuple((x, x)))))
        bindings.append(Binding(Var("v"), Proj(Call(f, (ONE,)), 0)))
    return Block(tuple(bindings), ONE)


def waiting(n: int) -> Expr:
    """Relations that all wait for the type of one parameter, given last."""
    y = Var("y")
    e: Expr = y
    for _ in range(n):
        e = Call(OpRef("add"), (e, ONE))
    return Call(Function((y,), e), (Var("x", F32),))


SHAPES = [nested, diamonds, flat, nested_lets, branches, closures, polymorphic_lets, waiting]


def module(make: Callable[[int], Expr], n: int) -> Module:
    body = make(n)
    x = next((v for v in free_vars(body) if v.annotation is F32), Var("x", F32))
    return Module({"main": Function((x,), body)})


@pytest.mark.parametrize("make", SHAPES)
def test_long_programs(make: Callable[[int], Expr]) -> None:
    n = 5_000
    assert n > 4 * sys.getrecursionlimit()
    typed = infer(module(make, n))
    verify_types(typed)
    mono = monomorphise(typed)
    verify_types(mono)
    Effects(mono).latent(mono.function("main"))


def steps(make: Callable[[int], Expr], n: int) -> int:
    """How many Python function calls inference makes: a measure of work that does not depend on the machine."""
    program = module(make, n)
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        infer(program)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", SHAPES)
def test_inference_is_linear(make: Callable[[int], Expr]) -> None:
    infer(module(make, 10))
    small, large = steps(make, 200), steps(make, 2000)
    assert large <= 12 * small


def test_a_long_chain_of_globals() -> None:
    n = 3000
    functions: dict[str, Function] = {}
    for i in range(n):
        x = Var("x")
        body: Expr = Call(GlobalVar(f"f{i + 1}"), (x,)) if i + 1 < n else x
        functions[f"f{i}"] = Function((x,), body)
    functions["main"] = Function((), Call(GlobalVar("f0"), (ONE,)))
    typed = infer(Module(functions))
    assert typed.function("main").body.ty == scalar("float32")
    mono = monomorphise(typed)
    verify_types(mono)
    assert len(mono.functions) == n + 1
    Effects(mono).latent(mono.function("main"))


@pytest.mark.parametrize("type_", ["(", "List[", "Ref[", "fn ("])
def test_types_as_deep_as_can_be_written(type_: str) -> None:
    """Everything that walks them bears it."""
    closing = {"(": ",)", "fn (": ") -> float32"}.get(type_, "]")
    deep = type_ * 148 + "float32" + closing * 148  # one function and one tuple are around it
    mod = relay.parse(
        f"""#[version = "0.0.5"]
        import prelude
        def @same[A](%x: A) -> A {{ %x }}
        def @main(%x: float32) {{ let %f = fn (%y: {deep}) {{ (@same(%y), %y) }}; let %g = @same(%f); %x }}"""
    )
    assert alpha_equal(relay.parse(str(mod)), mod)
    assert float(relay.compile(mod)(2.0)) == float(np.asarray(relay.evaluate(mod, 2.0))) == 2.0


HEADER = '#[version = "0.0.5"]\n'


def doubled(n: int, value: str, before: str = "") -> str:
    """A program in which each of ``n`` variables is made of the one before it, twice."""
    lets = "".join(f"let %a{i + 1} = {value.format(f'%a{i}')};\n" for i in range(n))
    return HEADER + f"def @main(%a0: Tensor[(2,), float32]) {{\n{before}{lets}(%a{n}, 1f).1 }}\n"


@pytest.mark.parametrize(
    ("value", "before"),
    [
        ("({0}, {0})", ""),
        ("(fn () {{ {0} }}, {0})", ""),
        ("%twice({0})", "let %twice = fn (%x) { (%x, %x) };\n"),
        ("%pair({0}, {0})", "let %pair = fn[A] (%x: A, %y: A) -> (A, A) { (%x, %y) };\n"),
    ],
)
def test_a_type_that_doubles_meets_a_limit(value: str, before: str) -> None:
    small = relay.parse(doubled(8, value, before))
    assert relay.evaluate(small, np.ones(2, np.float32)) == 1
    with pytest.raises(relay.RelayError, match="a type of more than 131072 parts") as e:
        relay.parse(doubled(40, value, before))
    assert e.value.span is not None
    assert "<text>" in str(e.value)


def test_variables_of_one_large_type_take_no_walk_each() -> None:
    """A hundred names for a type of 65,536 parts."""
    text = doubled(16, "({0}, {0})").replace("(%a16, 1f).1", "".join(f"let %b{i} = %a16;\n" for i in range(100)) + "1f")
    module = relay.parse(text)
    assert len(module.functions) == 1


def test_equal_types_made_apart_are_equal() -> None:
    x, y = (TupleType((TupleType((F32, scalar("int32"))), AdtType("List", (F32,)))) for _ in range(2))
    assert x is not y
    assert x == y
    assert hash(x) == hash(y)
    assert pickle.loads(pickle.dumps(x)) == x
    assert x != TupleType((x.fields[0], AdtType("List", (scalar("int32"),))))
