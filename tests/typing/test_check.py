"""The checker of typed modules: it accepts what inference makes and refuses what a wrong pass would make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from relay.ir.diagnostics import TypeError_
from relay.ir.expr import Call, Expr, Function, GlobalVar, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import FuncType, TensorType, TupleType, TypeVar, scalar
from relay.typing import verify_types
from tests.typing.programs import typed

F32 = TensorType((3, 4), "float32")
TEXT = (
    "def @f(%x: Tensor[(3, 4), float32]) -> Tensor[(3, 4), float32] { exp(%x) }\n"
    "def @main(%x: Tensor[(3, 4), float32], %c: bool) { if (%c) { (@f(%x), 1).0 } else { %x } }"
)


def broken(change: Callable[[Expr], Expr]) -> Module:
    """The module with the body of @f changed."""
    module = typed(TEXT)
    f = module.function("f")
    return module.with_functions({**module.functions, "f": replace(f, body=change(f.body))})


def test_it_accepts_what_inference_makes() -> None:
    verify_types(typed(TEXT))


def named(e: Expr) -> Call:
    assert isinstance(e, Call)
    return e


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(named(e), ty=None), "a call of exp has no type"),
        (lambda e: replace(named(e), ty=TensorType((3, 5), "float32")), "the result of exp"),
        (lambda e: replace(named(e), ty=TypeVar("t", flexible=True)), "is not solved"),
        (lambda e: replace(named(e), fn=OpRef("sum", named(e).fn.ty)), "the result of sum"),
        (lambda e: Var("y", None, F32), "%y is used but not bound"),
        (lambda e: Tuple((e,), TupleType((F32,))), "the body of a function"),
        (lambda e: Proj(Tuple((e,), TupleType((F32,))), 1, F32), "projection .1"),
        (lambda e: Proj(e, 0, F32), "projection .0"),
        (lambda e: Call(e, (), ty=F32), "a call of something of type"),
        (lambda e: Call(GlobalVar("f", FuncType((F32,), F32)), (), ty=F32), "0 arguments"),
        (lambda e: Call(GlobalVar("g", FuncType((), F32)), (), ty=F32), "no function @g"),
        (lambda e: Call(GlobalVar("f", FuncType((), F32)), (), ty=F32), "the type of @f"),
        (lambda e: Call(GlobalVar("f", FuncType((F32,), F32)), (e,), type_args=(F32,), ty=F32), "1 type arguments"),
        (
            lambda e: Call(GlobalVar("main", FuncType((F32, scalar("bool")), F32)), (e, e), ty=F32),
            "argument 2: expected bool",
        ),
        (lambda e: replace(named(e), fn=Function((), e, ty=FuncType((F32,), F32))), "a function of 0 parameters"),
    ],
)
def test_it_refuses(change: Callable[[Expr], Expr], message: str) -> None:
    with pytest.raises(TypeError_, match=message) as caught:
        verify_types(broken(change))
    assert "in @f" in str(caught.value)


def test_it_can_check_some_functions_only() -> None:
    module = broken(lambda e: replace(named(e), ty=None))
    verify_types(module, {"main"})
    with pytest.raises(TypeError_):
        verify_types(module, {"f"})
