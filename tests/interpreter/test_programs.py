"""Whole programs: the prelude, loops and recursion over data, deep recursion, long programs, interruption."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.ir.diagnostics import ExecutionError
from relay.ir.expr import Binding, Block, Expr, Function, Var
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.op.build import call, constant

Array = npt.NDArray[Any]
HEAD = '#[version = "0.0.5"]\nimport prelude\n'


def run(text: str, *args: object, **options: int) -> object:
    return relay.evaluate(relay.parse(HEAD + text), *args, **options)  # type: ignore[arg-type]


INC = "fn (%x: int32) { %x + 1 }"
ADD = "fn (%x: int32, %y: int32) { %x + %y }"
SUB = "fn (%x: int32, %y: int32) { %x - %y }"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@id(3)", 3),
        (f"@compose({INC}, {INC})(3)", 5),
        (f"@flip({SUB})(1, 10)", 9),
        ("@hd(%xs)", 1),
        ("@tl(%xs)", [2, 3]),
        ("@nth(%xs, 2)", 3),
        ("@length(%xs)", 3),
        ("@update(%xs, 1, 9)", [1, 9, 3]),
        (f"@map({INC}, %xs)", [2, 3, 4]),
        (f"@foldl({SUB}, 10, %xs)", 4),
        (f"@foldr({SUB}, 10, %xs)", -8),
        (f"@foldr1({SUB}, %xs)", 2),
        ("@sum(%xs)", 6),
        ("@concat(%xs, %xs)", [1, 2, 3, 1, 2, 3]),
        ("@filter(fn (%x: int32) { %x > 1 }, %xs)", [2, 3]),
        ("@zip(%xs, @rev(%xs))", [(1, 3), (2, 2), (3, 1)]),
        ("@rev(%xs)", [3, 2, 1]),
        ("@map_accuml(fn (%a: int32, %x: int32) { (%a + %x, %a * %x) }, 1, %xs)", (7, [1, 4, 12])),
        ("@map_accumr(fn (%a: int32, %x: int32) { (%a + %x, %a * %x) }, 1, %xs)", (7, [6, 8, 3])),
        ("@unfoldl(fn (%x: int32) { if (%x > 0) { Some((%x - 1, %x)) } else { None } }, 3)", [1, 2, 3]),
        ("@unfoldr(fn (%x: int32) { if (%x > 0) { Some((%x - 1, %x)) } else { None } }, 3)", [3, 2, 1]),
        (f"@size(@tmap({INC}, Rose(1, Cons(Rose(2, Nil), Nil))))", 2),
        (f"@iterate({INC}, 4)(1)", 5),
    ],
)
def test_the_prelude(expression: str, expected: object) -> None:
    assert run(f"def @main(%xs: List[int32]) {{ {expression} }}", [1, 2, 3]) == expected


TREE_LSTM = """
type Tree2 { Leaf(Tensor[(1, 4), float32]), Node(Tree2, Tree2), }

def @cell(%i: Tensor[(1, 4), float32], %h: Tensor[(1, 4), float32], %c: Tensor[(1, 4), float32], %w: Tensor[(16, 4), float32]) {
  let %g = nn.dense(%i + %h, %w);
  let %p = split(%g, indices_or_sections=4, axis=1);
  let %c2 = sigmoid(%p.0) * tanh(%p.1) + sigmoid(%p.2) * %c;
  (sigmoid(%p.3) * tanh(%c2), %c2)
}

def @encode(%t: Tree2, %w: Tensor[(16, 4), float32]) -> (Tensor[(1, 4), float32], Tensor[(1, 4), float32]) {
  match (%t) {
    Leaf(%x) => @cell(%x, zeros(shape=[1, 4], dtype="float32"), zeros(shape=[1, 4], dtype="float32"), %w),
    Node(%l, %r) => {
      let %a = @encode(%l, %w);
      let %b = @encode(%r, %w);
      @cell(zeros(shape=[1, 4], dtype="float32"), %a.0 + %b.0, %a.1 + %b.1, %w)
    },
  }
}

def @main(%t: Tree2, %w: Tensor[(16, 4), float32]) { @encode(%t, %w).0 }
"""


def test_a_tree_lstm() -> None:
    random = np.random.default_rng(0)
    w = random.normal(size=(16, 4)).astype(np.float32)
    leaves = [random.normal(size=(1, 4)).astype(np.float32) for _ in range(3)]

    def sigmoid(x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def cell(i: Array, h: Array, c: Array) -> tuple[Array, Array]:
        a, b, d, e = np.split((i + h).astype(np.float64) @ w.T.astype(np.float64), 4, axis=1)
        c2 = sigmoid(a) * np.tanh(b) + sigmoid(d) * c
        return sigmoid(e) * np.tanh(c2), c2

    zero = np.zeros((1, 4))
    states = [cell(x, zero, zero) for x in leaves]
    left = cell(zero, states[0][0] + states[1][0], states[0][1] + states[1][1])
    expected = cell(zero, left[0] + states[2][0], left[1] + states[2][1])[0]

    module = relay.parse(HEAD + TREE_LSTM)
    t = module.adt("Tree2")
    tree = t.Node(t.Node(t.Leaf(leaves[0]), t.Leaf(leaves[1])), t.Leaf(leaves[2]))
    assert np.allclose(np.asarray(relay.evaluate(module, tree, w)), expected, atol=1e-6)


def test_a_loop_that_depends_on_data() -> None:
    text = """
    def @collatz(%n: int64, %steps: int32) -> int32 {
      if (%n == 1i64) { %steps }
      else { @collatz(if (floor_mod(%n, 2i64) == 0i64) { floor_divide(%n, 2i64) } else { 3i64 * %n + 1i64 }, %steps + 1) }
    }
    def @main(%n: int64) { @collatz(%n, 0) }
    """
    assert run(text, np.int64(27)) == 111


def test_tail_calls_take_no_stack() -> None:
    text = """
    def @down(%n: int32, %acc: int32) -> int32 { if (%n == 0) { %acc } else { @up(%n - 1, %acc + 1) } }
    def @up(%n: int32, %acc: int32) -> int32 { match (Some(%n)) { Some(%m) => { let %a = %acc; @down(%m, %a) }, None => 0 } }
    def @main(%n: int32) { @down(%n, 0) }
    """
    assert run(text, 3000, recursion_limit=2) == 3000


def test_recursion_deeper_than_the_python_stack() -> None:
    text = """
    def @count(%n: int32) -> int32 { if (%n == 0) { 0 } else { 1 + @count(%n - 1) } }
    def @main(%n: int32) { @count(%n) }
    """
    depth = 3 * sys.getrecursionlimit()
    assert run(text, depth) == depth
    with pytest.raises(ExecutionError, match="recursion limit: more than 100 calls are pending in @count"):
        run(text, depth, recursion_limit=100)


def test_a_long_list_is_built_folded_and_freed() -> None:
    text = """
    def @build(%n: int32, %xs: List[int32]) -> List[int32] { if (%n == 0) { %xs } else { @build(%n - 1, Cons(%n, %xs)) } }
    def @main(%n: int32) { @build(%n, Nil) }
    """
    result = run(text, 20_000)
    assert isinstance(result, list) and len(result) == 20_000 and result[0] == 1 and result[-1] == 20_000
    total = run(f"def @main(%xs: List[int32]) {{ @foldl({ADD}, 0, %xs) }}", [1] * 20_000)
    assert total == 20_000


def chain(length: int, kind: str) -> Module:
    x = Var("x", TensorType((), "float32"))
    one = constant(np.array(1, np.float32))
    e: Expr = x
    if kind == "nested":
        for _ in range(length):
            e = call("add", e, one)
    else:
        bindings = []
        for n in range(length):
            var = Var(f"v{n}")
            bindings.append(Binding(var, call("add", e, one)))
            e = var
        e = Block(tuple(bindings), e)
    return Module({"main": Function((x,), e)})


@pytest.mark.parametrize("kind", ["nested", "block"])
def test_long_programs(kind: str) -> None:
    assert relay.evaluate(chain(20_000, kind), np.float32(0)) == 20_000


def test_a_shared_graph_is_not_expanded() -> None:
    x = Var("x", TensorType((), "float64"))
    e: Expr = x
    for _ in range(60):
        e = call("add", e, e)
    assert relay.evaluate(Module({"main": Function((x,), e)}), 1.0) == 2.0**60


def test_ctrl_c_interrupts() -> None:
    module = relay.parse(HEAD + "def @f(%n: int32) -> int32 { @f(%n + 1) }\ndef @main() { @f(0) }")
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        relay.evaluate(module)
    assert time.monotonic() - start < 5


def test_landins_knot_with_closures_in_a_list() -> None:
    text = """
    def @main(%n: int32) {
      let %r = ref(Nil);
      let %f = fn (%k: int32) -> int32 {
        match (!%r) { Cons(%g, _) => if (%k <= 0) { 0 } else { 2 + %g(%k - 1) }, Nil => -1 }
      };
      let %before = %f(3);
      %r := Cons(%f, Nil);
      (%before, %f(%n))
    }"""
    assert run(text, 5) == (-1, 10)
