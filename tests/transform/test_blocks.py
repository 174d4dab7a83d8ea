"""Blocks, sharing, and what the driver promises."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.expr import Binding, Block, Call, Function, If, OpRef, Tuple, Var
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.transform import (
    CommonSubexpressions,
    DeadCode,
    EtaExpand,
    ExpandCompositions,
    FuseOps,
    Inline,
    NameDims,
    Simplify,
    ToBlocks,
)
from relay.transform.blocks import all_bindings, body_of, check_blocks
from relay.transform.dominators import NONE, DominatorTree
from relay.typing import infer, verify_types
from tests.transform.support import run, typed

X = TensorType((8,), "float32")


def test_a_shared_node_is_bound_in_the_innermost_block_that_dominates_its_uses() -> None:
    x, c = Var("x", X), Var("c", TensorType((), "bool"))
    both = Call(OpRef("exp"), (x,))
    one = Call(OpRef("tanh"), (x,))
    inner = If(c, Call(OpRef("add"), (one, both)), Call(OpRef("add"), (one, one)))
    outer = If(c, inner, both)
    module = run(infer(Module({"main": Function((x, c), outer)})))
    body = body_of(module.functions["main"])
    first, second = body.bindings
    assert isinstance(first.value, Call) and first.value.fn.name == "exp"  # type: ignore[union-attr]
    assert isinstance(second.value, If) and isinstance(second.value.then, Block)
    assert [type(b.value) for b in second.value.then.bindings] == [Call, If]  # tanh, used by both inner branches


def test_evaluation_order_is_kept() -> None:
    module = run("def @main(%r: ref(int32)) { (!%r, { %r := 1; !%r }, !%r) }")
    kinds = [type(b.value).__name__ for b in body_of(module.functions["main"]).bindings]
    assert kinds == ["RefRead", "RefWrite", "RefRead", "RefRead", "Tuple"]


def test_let_of_an_atom_is_another_name() -> None:
    module = run("def @main(%x: int32) { let %a = %x; let %b = %a; (%b, %b) }")
    (binding,) = body_of(module.functions["main"]).bindings
    assert isinstance(binding.value, Tuple) and binding.value.fields[0] is module.functions["main"].params[0]


def test_a_program_not_in_blocks_is_refused() -> None:
    with pytest.raises(TypeError, match="to_blocks"):
        DeadCode()(typed("def @main(%x: int32) { negative(%x) }"))
    x = Var("x", X, X)
    nested = Block((Binding(Var("y", X, X), Call(OpRef("exp"), (Call(OpRef("exp"), (x,), ty=X),), ty=X)),), x, X)
    with pytest.raises(TypeError, match="not an operation on atoms"):
        check_blocks(Module({"main": Function((x,), nested)}))


def test_nothing_to_do_gives_the_same_module() -> None:
    module = run("def @main(%x: int32) { negative(%x) }")
    for p in (CommonSubexpressions(), DeadCode(), Inline(), Simplify(), EtaExpand(), ExpandCompositions(), NameDims()):
        assert p(module) is module, p.name


@pytest.mark.parametrize("length", [1000, 20_000])
def test_long_chains(length: int) -> None:
    x = Var("x", X)
    e: object = x
    for n in range(length):
        e = Call(OpRef("exp" if n % 3 else "tanh"), (e,)) if n % 2 else Call(OpRef("add"), (e, x))  # type: ignore[arg-type]
    module = infer(Module({"main": Function((x,), e)}))  # type: ignore[arg-type]
    passes = (ToBlocks(), EtaExpand(), CommonSubexpressions(), DeadCode(), Inline(), Simplify(), NameDims(), FuseOps())
    for p in passes:
        module = p(module)
    made = sum(1 for _ in all_bindings(body_of(module.functions["main"])))
    assert length / 64 <= made <= length / 64 + 2
    if length <= 1000:
        verify_types(module)


def test_deeply_nested_branches() -> None:
    depth = 3000
    c, x = Var("c", TensorType((), "bool")), Var("x", X)
    e: object = x
    for _ in range(depth):
        e = If(c, Call(OpRef("exp"), (e,)), x)  # type: ignore[arg-type]
    module = infer(Module({"main": Function((x, c), e)}))  # type: ignore[arg-type]
    for p in (ToBlocks(), CommonSubexpressions(), DeadCode(), Simplify(), NameDims(), FuseOps()):
        module = p(module)
    assert sum(1 for _ in all_bindings(body_of(module.functions["main"]))) == 2 * depth


def test_dominators() -> None:
    tree = DominatorTree(6)
    consumers = {5: [], 4: [5], 3: [4], 2: [4], 1: [2, 3], 0: [1, 5]}
    for node in (5, 4, 3, 2, 1, 0):
        tree.set(node, consumers[node], escapes=not consumers[node])
    assert tree.parent == [5, 4, 4, 4, 5, NONE]
    assert tree.common(2, 3) == 4 and tree.common(0, 1) == 5


def test_components_come_callees_first() -> None:
    graph = {"a": ["b"], "b": ["c", "b"], "c": ["d"], "d": ["c"], "e": ["a", "missing"]}
    assert [sorted(c) for c in components(graph)] == [["c", "d"], ["b"], ["a"], ["e"]]


@pytest.mark.parametrize(
    "body",
    [
        "%0 = exp(%p); nn.relu(%0)",
        "let %a = exp(%p); let %b = nn.relu(%a); %b",
        "let %a = sort(%p); let %b = %a * %p; %b",
        "if (sum(%p) > 0f) { %p } else { !ref(%p) }",
        "@also(%p)",
    ],
)
def test_what_a_text_calls_a_primitive_is_a_function_like_others(body: str) -> None:
    """Texts that others have fused: what their functions do need not be what a kernel can."""
    module = relay.parse(f"""#[version = "0.0.5"]
    def @also(%x: Tensor[(4,), float32], Primitive=1) -> Tensor[(4,), float32] {{ %x + 1f }}
    def @main(%x: Tensor[(4,), float32]) -> Tensor[(4,), float32] {{
      %1 = fn (%p: Tensor[(4,), float32], Primitive=1, hash="a1b2") -> Tensor[(4,), float32] {{ {body} }};
      %1(%x)
    }}""")
    x = np.array([1, -2, 0, 3], np.float32)
    for level in (0, 3):
        found = relay.compile(module, opt_level=level)(x)
        np.testing.assert_allclose(np.asarray(found), np.asarray(relay.evaluate(module, x)), rtol=1e-6)
