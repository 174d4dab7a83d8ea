"""Gradients of loops: the way back is a loop over what was kept, without closures and references."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import relay
from relay.cli.inspect import VIEWS
from relay.differentiate import differentiated
from relay.ir.expr import Call, Constant, Function, OpRef, RefNew
from relay.ir.module import Module
from relay.ir.walk import post_order
from relay.options import Options
from relay.transform import DeadCode, DeadFunctions, DeadReferences, PartialEvaluate, Pipeline
from relay.transform.ad.notes import AS_LOOP
from relay.transform.uses import globals_used
from tests.ad.checks import problem

VERSION = '#[version = "0.0.5"]\n'
M = "Tensor[(2, 3), float64]"
W = "Tensor[(3, 3), float64]"
XS = "Tensor[(t, 2, 3), float64]"


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape) * 0.5


def calls(module: Module, name: str) -> int:
    return sum(
        isinstance(e, Call) and isinstance(e.fn, OpRef) and e.fn.name == name
        for n, f in module.functions.items()
        for e in post_order(f)
    )


def gradient(text: str, argnums: tuple[int, ...]) -> Module:
    """The differentiated module, without what differentiation leaves behind."""
    module = differentiated(relay.grad(relay.parse(VERSION + text), argnums))
    return Pipeline([PartialEvaluate(), DeadReferences(), DeadFunctions()])(module)


def first_order(module: Module) -> bool:
    """Whether nothing makes a closure or a reference."""
    for f in module.functions.values():
        for e in post_order(f):
            if isinstance(e, RefNew) or (isinstance(e, Function) and e is not f):
                return False
            if isinstance(e, Call) and isinstance(e.fn, OpRef) and e.fn.name == "closure":
                return False
    return True


RNN = f"""def @steps[t: Dim](%i: int64, %n: int64, %xs: {XS}, %h: {M}, %u: {W}, %b: Tensor[(3,), float64]) -> {M} {{
  if (%i < %n) {{
    @steps(%i + 1i64, %n, %xs, tanh(nn.bias_add(nn.dense(%h, %u), %b) + take(%xs, %i, axis=0)), %u, %b)
  }} else {{ %h * %h }}
}}
def @main[t: Dim](%xs: {XS}, %h: {M}, %u: {W}, %b: Tensor[(3,), float64]) {{
  @steps(0i64, take(shape_of(%xs, dtype="int64"), 0i64, axis=0), %xs, %h, %u, %b)
}}"""

# By name: the program, the shapes of its arguments (or other arguments), those to differentiate by.
LOOPS: dict[str, tuple[str, list[Any], tuple[int, ...]]] = {
    "recurrent": (RNN, [(5, 2, 3), (2, 3), (3, 3), (3,)], (0, 1, 2, 3)),
    "no step": (RNN, [(0, 2, 3), (2, 3), (3, 3), (3,)], (0, 1, 2, 3)),
    "one weight": (RNN, [(4, 2, 3), (2, 3), (3, 3), (3,)], (2,)),
    "rows that are put out": (
        f"""def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: ({M}, {M}), %out: Tensor[(k, 2, 3), float64], %w: {W})
            -> (Tensor[(?, 2, 3), float64], {M}) {{
          if (%i >= 0i64) {{
            let %a = sigmoid(nn.dense(%s.0, %w)) * %s.1;
            let %b = %s.0 - take(%xs, %i, axis=0) * %a;
            @go(%i - 1i64, %xs, (%a, %b), concatenate((%out, expand_dims(%a * %b, axis=0)), axis=0), %w)
          }} else {{ (%out, %s.1) }}
        }}
        def @main[t: Dim](%xs: {XS}, %h: {M}, %out: Tensor[(1, 2, 3), float64], %w: {W}) {{
          let %r = @go(take(shape_of(%xs, dtype="int64"), 0i64, axis=0) - 1i64, %xs, (%h, %h * 2f64), %out, %w);
          (mean(%r.0, axis=[0]) * %r.1, sum(%r.0 * %r.0))
        }}""",
        [(4, 2, 3), (2, 3), (1, 2, 3), (3, 3)],
        (0, 1, 2, 3),
    ),
    "as often as the data say": (
        f"""def @go(%x: {M}, %w: {W}) -> {M} {{
          if (sum(%x * %x) > 0.01f64) {{ @go(nn.dense(%x, %w) * 0.5f64, %w) }} else {{ sin(%x) }}
        }}
        def @main(%x: {M}, %w: {W}) {{ @go(%x, %w) }}""",
        [(2, 3), (3, 3)],
        (0, 1),
    ),
    "the other way round": (
        f"""def @go(%n: int32, %x: {M}, %y: {M}) -> ({M}, {M}) {{
          if (%n <= 0) {{ (%x, %y) }} else {{ @go(%n - 2, %y * %x, sin(%x)) }}
        }}
        def @main(%x: {M}, %n: int32) {{ let %r = @go(%n, %x, %x * %x); %r.0 + %r.1 }}""",
        [(2, 3), np.int32(9)],
        (0,),
    ),
    "a row read twice, and not every row": (
        f"""def @go[t: Dim](%i: int64, %xs: {XS}, %h: {M}) -> {M} {{
          if (%i < 3i64) {{
            @go(%i + 1i64, %xs, %h * take(%xs, %i, axis=0) + take(%xs, %i + 1i64, axis=0))
          }} else {{ %h }}
        }}
        def @main[t: Dim](%xs: {XS}, %h: {M}) {{ @go(1i64, %xs, %h) }}""",
        [(6, 2, 3), (2, 3)],
        (0, 1),
    ),
    "a state of numbers": (
        f"""def @go(%n: int32, %a: float64, %k: int32, %x: {M}) -> float64 {{
          if (%n > 0) {{ @go(%n - 1, %a * 0.5f64 + sum(sin(%x * %a)) * cast(%k, dtype="float64"), %k * %n, %x) }} else {{ %a }}
        }}
        def @main(%x: {M}, %a: float64) {{ @go(4, %a, 1, %x) }}""",
        [(2, 3), np.float64(0.7)],
        (0, 1),
    ),
    "a branch in the step": (
        f"""def @go(%s: ({M}, {M}), %w: {W}, %n: int32) -> {M} {{
          if (%n > 0) {{
            let %v = if (sum(%s.0) > 0.1f64) {{ nn.dense(%s.0, %w) }} else {{ sin(%s.1) }};
            @go((tanh(%v), %s.0), %w, %n - 1)
          }} else {{ %s.0 + sin(%s.1) }}
        }}
        def @main(%x: {M}, %y: {M}, %w: {W}) {{ @go((%x, %y), %w, 6) }}""",
        [(2, 3), (2, 3), (3, 3)],
        (0, 1, 2),
    ),
    "branches in branches, of pairs": (
        f"""def @go(%x: {M}, %w: {M}, %n: int32) -> {M} {{
          if (%n < 1) {{ %x * %w }} else {{
            let %p = if (sum(%x) > 0.1f64) {{ if (%n > 2) {{ (%x * %w, %x) }} else {{ (%w, sin(%x)) }} }} else {{ (%x, cos(%w)) }};
            @go(tanh(%p.0 + %p.1 * %x), %w, %n - 1)
          }}
        }}
        def @main(%x: {M}, %w: {M}) {{ @go(%x, %w, 5) }}""",
        [(2, 3), (2, 3)],
        (0, 1),
    ),
    "weights on either side of a branch, and in one inside of another": (
        f"""def @go[t: Dim](%i: int64, %x: {M}, %y: Tensor[(4, 3), float64], %u: {W}, %v: {W}, %e: Tensor[(5, 3), float64],
            %xs: {XS}) -> {M} {{
          if (%i < Dim[t]) {{
            let %p = if (sum(%x) > 0.1f64) {{
              (nn.dense(%x, %u), nn.dense(%y, %u) + nn.dense(sin(%y), %v))
            }} else {{
              if (sum(%x) > -0.2f64) {{ (nn.dense(take(%xs, %i, axis=0), %u) * take(%e, %i, axis=0), %y) }} else {{
                (sin(%x) + take(%e, %i + 1i64, axis=0), nn.dense(1f64 / (%y * %y + 0.1f64), %v)) }}
            }};
            @go(%i + 1i64, tanh(%p.0 + take(%xs, %i, axis=0)), tanh(%p.1), %u, %v, %e, %xs)
          }} else {{ %x + sum(%y) }}
        }}
        def @main[t: Dim](%x: {M}, %y: Tensor[(4, 3), float64], %u: {W}, %v: {W}, %e: Tensor[(5, 3), float64], %xs: {XS}) {{
          @go(0i64, %x, %y, %u, %v, %e, %xs) }}""",
        [(2, 3), (4, 3), (3, 3), (3, 3), (5, 3), (6, 2, 3)],
        (0, 1, 2, 3, 4, 5),
    ),
    "look-ups on the sides of branches": (
        """def @go[t: Dim](%i: int64, %x: Tensor[(3,), float64], %k: Tensor[(t,), int64], %e: Tensor[(5, 3), float64])
            -> Tensor[(3,), float64] {
          if (%i < Dim[t]) {
            let %at = take(%k, %i, axis=0);
            let %y = if (%at > 2i64) { tanh(%x + take(%e, %at, axis=0)) } else {
              if (%at > 0i64) { %x * squeeze(take(%e, expand_dims(%at, axis=0), axis=0), axis=[0]) } else {
                sin(%x - take(%e, 3, axis=0)) * sum(%e, axis=0) + gather_nd(%e, stack((%i - 1i64, %at), axis=0)) } };
            @go(%i + 1i64, %y, %k, %e)
          } else { %x }
        }
        def @main[t: Dim](%x: Tensor[(3,), float64], %k: Tensor[(t,), int64], %e: Tensor[(5, 3), float64]) { @go(0i64, %x, %k, %e) }""",
        [(3,), np.array([4, 0, 2, 1, 3, 4, 0]), (5, 3)],
        (0, 2),
    ),
    "several tail calls": (
        f"""def @go(%x: {M}, %z: {M}, %w: {M}, %n: int32) -> {M} {{
          if (%n < 1) {{ %x * %w }} else {{
            if (sum(%x) > 0.1f64) {{ @go(tanh(%x * %w - %z), %x, %w, %n - 1) }} else {{ @go(sin(%z), tanh(%x), %w, %n - 2) }}
          }}
        }}
        def @main(%x: {M}, %z: {M}, %w: {M}) {{ @go(%x, %z, %w, 7) }}""",
        [(2, 3), (2, 3), (2, 3)],
        (0, 1, 2),
    ),
    "steps of its own choice": (
        f"""def @go(%t: float64, %h: float64, %y: {M}, %w: {W}) -> {M} {{
          if (%t < 1f64) {{
            let %f = tanh(nn.dense(%y, %w));
            let %one = %y + %f * %h;
            let %half = %y + %f * (%h * 0.5f64);
            let %two = %half + tanh(nn.dense(%half, %w)) * (%h * 0.5f64);
            if (max(abs(%one - %two)) > 0.003f64) {{ @go(%t, %h * 0.5f64, %y, %w) }} else {{ @go(%t + %h, %h * 1.5f64, %two, %w) }}
          }} else {{ %y }}
        }}
        def @main(%y: {M}, %w: {W}) {{ @go(0f64, 0.3f64, %y, %w) }}""",
        [(2, 3), (3, 3)],
        (0, 1),
    ),
    "an end inside, after one call": (
        f"""def @go(%x: {M}, %z: {M}, %w: {M}, %n: int32) -> {M} {{
          if (sum(%x) > 0.3f64) {{ @go(tanh(%x * %w - %z), %x, %w, %n - 1) }} else {{
            let %u = %x + %z;
            if (%n > 0) {{ @go(sin(%u), tanh(%x), %w, %n - 2) }} else {{ %u * %w }}
          }}
        }}
        def @main(%x: {M}, %z: {M}, %w: {M}) {{ @go(%x, %z, %w, 7) }}""",
        [(2, 3), (2, 3), (2, 3)],
        (0, 1, 2),
    ),
    "what does not change": (
        f"""def @go(%n: int32, %x: {M}, %y: {M}) -> {M} {{
          if (%n > 0) {{ @go(%n - 1, %x, %y + %x) }} else {{ %y }}
        }}
        def @main(%x: {M}, %y: {M}) {{ @go(3, %x, %y) }}""",
        [(2, 3), (2, 3)],
        (0, 1),
    ),
    "closures that call themselves": (
        f"""def @main[t: Dim](%xs: {XS}, %h: {M}, %w: {W}) -> {M} {{
          let %go = fn (%i: int64, %x: {M}) -> {M} {{
            if (%i < Dim[t]) {{ %go(%i + 1i64, tanh(nn.dense(%x, %w) + take(%xs, %i, axis=0))) }} else {{ %x }}
          }};
          %go(0i64, %h)
        }}""",
        [(4, 2, 3), (2, 3), (3, 3)],
        (0, 1, 2),
    ),
    "as many rows as another loop has made": (
        f"""def @make[t: Dim, k: Dim](%i: int64, %xs: {XS}, %x: {M}, %out: Tensor[(k, 2, 3), float64])
            -> (Tensor[(?, 2, 3), float64], {M}) {{
          if (%i < Dim[t]) {{
            let %y = tanh(%x + take(%xs, %i, axis=0));
            @make(%i + 1i64, %xs, %y, concatenate((%out, expand_dims(%y, axis=0)), axis=0))
          }} else {{ (%out, %x) }}
        }}
        def @read(%i: int64, %rows: (Tensor[(?, 2, 3), float64], {M}), %x: {M}) -> {M} {{
          if (%i >= 0i64) {{ @read(%i - 1i64, %rows, take(%rows.0, %i, axis=0) - %x * %rows.1) }} else {{ %x }}
        }}
        def @main[t: Dim](%xs: {XS}, %h: {M}) {{
          let %made = @make(0i64, %xs, %h, zeros(shape=[0, 2, 3], dtype="float64"));
          @read(Dim[t] - 1i64, %made, %h)
        }}""",
        [(4, 2, 3), (2, 3)],
        (0, 1),
    ),
}  # fmt: skip


def arguments(given: list[Any]) -> list[Any]:
    return [normal(*a) if isinstance(a, tuple) else a for a in given]


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    """Against finite differences, in both modes, compiled too; first-order."""
    text, given, argnums = LOOPS[name]
    assert problem(relay.parse(VERSION + text), arguments(given), argnums, compiled=True) is None
    assert first_order(gradient(text, argnums))


def loops(module: Module) -> list[Function]:
    """The functions that call themselves."""
    return [f for n, f in module.functions.items() if n in globals_used(f)]


def test_weights_have_one_product() -> None:
    """The cotangent of a weight is computed after the loop, from the rows of all iterations."""
    module = gradient(RNN, (1, 2, 3))
    inside = Module({str(n): f for n, f in enumerate(loops(module))})
    for operator in ("nn.dense.vjp1", "nn.bias_add.vjp1"):
        assert calls(module, operator) == 1
        assert calls(inside, operator) == 0
    assert calls(inside, "nn.dense") == 1 and calls(inside, "nn.dense.vjp0") == 1


def test_weights_in_branches_have_one_product() -> None:
    """Also there: the branches on the way back choose between rows and zeros."""
    text, _, argnums = LOOPS["weights on either side of a branch, and in one inside of another"]
    module = gradient(text, argnums)
    inside = Module({str(n): f for n, f in enumerate(loops(module))})
    assert calls(inside, "nn.dense.vjp1") == 0
    # Of %u: of rows of two and of four numbers; of %v: of the two sides that have it.
    assert calls(module, "nn.dense.vjp1") == 3


def test_look_ups_in_branches_are_added_up_after_the_loop() -> None:
    """Whatever an index is: no step adds up tables, or makes any."""
    text, _, argnums = LOOPS["look-ups on the sides of branches"]
    module = gradient(text, argnums)
    inside = Module({str(n): f for n, f in enumerate(loops(module))})
    assert (
        all(calls(inside, f"{name}.vjp0") == 0 for name in ("take", "gather_nd", "sum"))
        and calls(inside, "zeros_like") == 0
    )
    # By an index that is a number, a vector of one, and a constant.
    assert calls(module, "take.vjp0") == 3 and calls(module, "gather_nd.vjp0") == calls(module, "sum.vjp0") == 1


@pytest.mark.parametrize("index", ["%at", "expand_dims(%at, axis=0)", "3"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_a_table_without_rows_that_no_step_looks_at(index: str, mode: str) -> None:
    module = relay.parse(
        VERSION
        + f"""
def @go[t: Dim, v: Dim](%i: int64, %x: Tensor[(3,), float32], %k: Tensor[(t,), int64], %e: Tensor[(v, 3), float32])
    -> Tensor[(3,), float32] {{
  if (%i < Dim[t]) {{
    let %at = take(%k, %i, axis=0);
    let %y = if (%at >= 0i64) {{
      %x * sum(reshape(take(%e, {index}, axis=0, mode="{mode}"), newshape=[-1, 3]), axis=0)
    }} else {{ tanh(%x) }};
    @go(%i + 1i64, %y, %k, %e)
  }} else {{ %x }} }}
def @main[t: Dim, v: Dim](%x: Tensor[(3,), float32], %k: Tensor[(t,), int64], %e: Tensor[(v, 3), float32]) -> float32 {{
  sum(@go(0i64, %x, %k, %e)) }}"""
    )
    slopes = relay.grad(module, (0, 2))
    executable = relay.compile(slopes)
    x, e = np.array([0.4, -0.3, 0.2], np.float32), np.array([[0.5, 0.1, 2.0], [-0.1, 0.4, 1.0]], np.float32)
    for k, table in [([-1, -1, -2], e[:0]), ([-1, 1, 0, -1, 1], e), ([], e[:0])]:
        given = (x, np.array(k, np.int64), table)
        found, wanted = executable(*given), relay.evaluate(slopes, *given)
        for a, b in zip(found, cast("tuple[Any, ...]", wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_rows_of_the_side_that_is_not_taken_are_not_computed() -> None:
    """What they would be is no number."""
    module = relay.parse(
        VERSION
        + """def @go(%i: int64, %x: Tensor[(1, 2), float32], %w: Tensor[(2, 2), float32]) -> Tensor[(1, 2), float32] {
  if (%i < 4i64) {
    let %y = if (sum(%x) > 0.5f) { nn.dense(sqrt(%x - 0.25f), %w) } else { nn.dense(%x, %w) };
    @go(%i + 1i64, %y, %w)
  } else { %x } }
def @main(%x: Tensor[(1, 2), float32], %w: Tensor[(2, 2), float32]) -> float32 { sum(@go(0i64, %x, %w)) }"""
    )
    x, w = np.array([[0.4, 0.3]], np.float32), np.array([[0.5, 0.1], [-0.1, 0.4]], np.float32)
    slopes = relay.grad(module, (0, 1))
    found, wanted = relay.compile(slopes)(x, w), relay.evaluate(slopes, x, w)
    for a, b in zip(found, cast("tuple[Any, ...]", wanted), strict=True):
        assert np.isfinite(np.asarray(a)).all()
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_what_decides_about_another_step_is_computed_once() -> None:
    """The loop forward makes a step, by which it is decided whether to go on, and keeps what it has made: not the step again."""
    text, _, argnums = LOOPS["steps of its own choice"]
    (forward,) = (f for n, f in gradient(text, argnums).functions.items() if n.endswith(".forward"))
    assert calls(DeadCode()(Module({"forward": forward})), "nn.dense") == 2


SOFT = """def @cells[m: Dim, k: Dim](%j: int64, %left: float32, %corner: float32, %above: Tensor[(m,), float32], %s: Tensor[(m,), float32],
    %row: Tensor[(k,), float32]) -> Tensor[(?,), float32] {
  if (%j < Dim[m]) {
    let %up = take(%above, %j, axis=0);
    let %a = %corner + take(%s, %j, axis=0);
    let %b = %up - 1f;
    let %c = %left - 1f;
    let %top = maximum(%a, maximum(%b, %c));
    let %here = %top + log(exp(%a - %top) + exp(%b - %top) + exp(%c - %top));
    @cells(%j + 1i64, %here, %up, %above, %s, concatenate((%row, expand_dims(%here, axis=0)), axis=0))
  } else { %row } }
def @main[m: Dim](%above: Tensor[(m,), float32], %s: Tensor[(m,), float32]) -> float32 {
  sum(@cells(0i64, 0.5f, 1f, %above, %s, zeros(shape=[0]))) }"""


def test_what_follows_from_what_is_kept_is_computed_again() -> None:
    """Of ten values of a step two are kept, and no counter: what they make is as fast to make again."""
    forward = gradient(SOFT, (0, 1)).functions["cells.forward"]
    of_the_loop = len(relay.parse(VERSION + SOFT).functions["cells"].params)
    assert len(forward.params) == of_the_loop + 1 + 2
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(7).astype("float32") for _ in range(2)]
    slopes = relay.grad(relay.parse(VERSION + SOFT), (0, 1))
    found: Any = relay.compile(slopes, cache=False)(*given)
    expected: Any = relay.evaluate(slopes, *given)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


def test_what_is_not_asked_for_is_not_kept() -> None:
    """Without the weights' cotangents the loop back keeps nothing for after it."""

    def concatenations(argnums: tuple[int, ...]) -> int:
        return sum(calls(Module({"f": f}), "concatenate") for f in loops(gradient(RNN, argnums)))

    assert concatenations((1,)) == 1  # what the derivative of tanh reads
    assert concatenations((1, 2)) == 3


JOINED = """def @go[n: Dim](%i: int64, %x: Tensor[(n, 2, 3), float32], %s: Tensor[(2, 3), float32], %w: Tensor[(3, 6), float32])
    -> Tensor[(2, 3), float32] {
  if (%i < Dim[n]) {
    @go(%i + 1i64, %x, tanh(nn.dense(concatenate((take(%x, %i, axis=0), %s), axis=1), %w)), %w)
  } else { %s } }
def @main[n: Dim](%x: Tensor[(n, 2, 3), float32], %s: Tensor[(2, 3), float32], %w: Tensor[(3, 6), float32]) -> float32 {
  sum(@go(0i64, %x, %s, %w)) }"""


def test_what_is_joined_is_not_kept() -> None:
    """The way back through `concatenate` asks for the sizes of its operands: of a cell that reads input and state as one row, that row is
    kept, and what `tanh` has given."""
    forward = gradient(JOINED, (0, 1, 2)).functions["go.forward"]
    assert len(forward.params) == 4 + 1 + 2
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype("float32") for s in ((5, 2, 3), (2, 3), (3, 6))]
    slopes = relay.grad(relay.parse(VERSION + JOINED), (0, 1, 2))
    found: Any = relay.compile(slopes, cache=False)(*given)
    expected: Any = relay.evaluate(slopes, *given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


def test_a_product_of_second_derivatives() -> None:
    """Forward over reverse: the loops that differentiation makes are differentiated."""
    module = relay.parse(VERSION + RNN)
    args = arguments([(3, 2, 3), (2, 3), (3, 3), (3,)])
    assert problem(relay.grad(module, 2), args, (2,)) is None


def test_lengths_with_one_compilation() -> None:
    exe = relay.compile(relay.grad(relay.parse(VERSION + RNN), (1, 2)), cache=False)
    module = relay.grad(relay.parse(VERSION + RNN), (1, 2))
    for length in (0, 1, 2, 17):
        args = arguments([(length, 2, 3), (2, 3), (3, 3), (3,)])
        found: Any = exe(*args)
        expected: Any = relay.evaluate(module, *args)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)


def test_recursion_that_is_no_loop_with_a_constant_first() -> None:
    """The first call has a constant, those inside have none: what is found for each is kept apart."""
    text = f"""#[version = "0.0.5"]
    def @deep(%x: {M}, %n: int32) -> {M} {{ if (%n > 0) {{ sin(@deep(%x, %n - 1)) }} else {{ %x }} }}
    def @go(%s: ({M}, {M}), %w: {M}, %n: int32) -> {M} {{
      if (%n > 0) {{
        let %v = if (sum(%s.0) > 0.1f64) {{ @deep(%w, %n) }} else {{ %s.1 }};
        @go((tanh(%v), %s.0), %w, %n - 1)
      }} else {{ %s.0 + sin(%s.1) }}
    }}
    def @main(%x: {M}, %y: {M}) {{ @go((%x, %y), %x, 3) }}"""
    args = [np.full((2, 3), 0.3), np.full((2, 3), -0.2)]
    for argnums in ((1,), (0,), (0, 1)):
        assert problem(relay.parse(text), args, argnums) is None


@pytest.mark.parametrize(
    "test, first, step, rows",
    [("%n > 0", 7, "%n - 1", 7), ("%n >= 1", 8, "%n - 3", 3), ("%n < 9", 2, "%n + 2", 4), ("10 >= %n", 0, "%n + 5", 3)],
)
def test_as_many_rows_are_reserved_as_there_are_iterations(test: str, first: int, step: str, rows: int) -> None:
    text = f"""def @go(%x: {M}, %n: int32) -> {M} {{ if ({test}) {{ @go(sin(%x), {step}) }} else {{ %x }} }}
    def @main(%x: {M}) {{ @go(%x, {first}) }}"""
    module = gradient(text, (0,))
    reserved = [
        e.args[1]
        for f in module.functions.values()
        for e in post_order(f)
        if isinstance(e, Call) and isinstance(e.fn, OpRef) and e.fn.name == "rows.reserve"
    ]
    assert reserved
    for count in reserved:
        assert isinstance(count, Constant) and int(count.data) == rows
    assert problem(relay.parse(VERSION + text), [normal(2, 3)], (0,), compiled=True) is None


def test_rows_are_put_where_they_are_reserved() -> None:
    """Values do not depend on what was reserved: too little, too much, nothing."""
    text = """def @go[k: Dim](%rows: Tensor[(k, 2), float32], %n: int32) -> Tensor[(?, 2), float32] {
      if (%n > 0) { @go(append(%rows, expand_dims(full(cast(%n, dtype="float32"), shape=[2]), axis=0)), %n - 1) } else { %rows }
    }
    def @main(%rows: Tensor[(1, 2), float32], %room: int64, %n: int32) { @go(rows.reserve(%rows, %room), %n) }"""
    exe = relay.compile(relay.parse(VERSION + text), cache=False)
    for room, n in ((0, 5), (3, 5), (50, 5), (-4, 0), (2**40, 2)):
        found = np.asarray(exe(np.ones((1, 2), np.float32), np.int64(room), np.int32(n)))
        expected = np.concatenate([np.ones((1, 2)), np.repeat(np.arange(n, 0, -1)[:, None], 2, axis=1)])
        np.testing.assert_array_equal(found, expected)


NOT_A_LOOP = {
    "more after the call": (
        "def @go(%n: int32, %x: float64) -> float64 { if (%n > 0) { sin(@go(%n - 1, %x)) } else { %x } }",
        "it does more after it has called itself",
    ),
    "a call in a branch": (
        """def @deep(%x: float64, %n: int32) -> float64 { if (%n > 0) { sin(@deep(%x, %n - 1)) } else { %x } }
        def @go(%n: int32, %x: float64) -> float64 {
          if (%n > 0) { let %y = if (%x > 0f64) { @deep(%x, %n) } else { %x }; @go(%n - 1, %y) } else { %x }
        }""",
        "what is differentiated goes through a branch",
    ),
    "a branch that chooses a function": (
        """def @apply(%f: fn (float64) -> float64, %x: float64, %n: int32) -> float64 {
          if (%n > 0) { @apply(%f, %f(%x), %n - 1) } else { %x }
        }
        def @go(%n: int32, %x: float64) -> float64 {
          if (%n > 0) {
            let %f = if (%n > 2) { fn (%y: float64) -> float64 { sin(%y) } } else { fn (%y: float64) -> float64 { %y * %y } };
            @go(%n - 1, @apply(%f, %x, 2))
          } else { %x }
        }""",
        "what is differentiated goes through",
    ),
    "a list is the state": (
        """def @go(%l: List[float64], %x: float64) -> float64 {
          match (%l) { Cons(%h, %t) => @go(%t, %x * %h), Nil => %x }
        }""",
        "it does not end with a choice",
    ),
}


@pytest.mark.parametrize("name", NOT_A_LOOP)
def test_why_recursion_is_no_loop_is_told(name: str) -> None:
    text, reason = NOT_A_LOOP[name]
    first = "4" if "int32" in text else "Cons(%x, Cons(%x, Nil))"
    whole = f"{VERSION}import prelude\n{text}\ndef @main(%x: float64) {{ @go({first}, %x) }}"
    ((title, shown),) = VIEWS["gradient"](relay.grad(relay.parse(whole)), Options())
    assert title == "recursive functions" and reason in shown, shown


def test_loops_are_told() -> None:
    ((_, shown),) = VIEWS["gradient"](relay.grad(relay.parse(VERSION + RNN), (1, 2)), Options())
    assert f".back: {AS_LOOP}" in shown and f".forward: {AS_LOOP}" in shown


ROW = {"scalars": ("float32", "", "0f"), "vectors": ("Tensor[(4,), float32]", ", 4", "zeros(shape=[4])")}
OF_ROWS = (
    "exp", "log", "tanh", "sqrt", "rsqrt", "abs", "erf", "sigmoid", "sin", "nn.relu", "nn.gelu", "square", "mul", "div", "left", "pow",
    "maximum", "where", "clip",
)  # fmt: skip
WRITTEN = {
    "square": "{ let %y = %x; %y * %y }", "mul": "%x * %b", "div": "%b / %x", "left": "%x - %b", "pow": "power(%x, %b)",
    "maximum": "maximum(%x, %b)", "where": "where(%x > %b, %x, %b * %b)", "clip": "clip(%x, a_min=1f, a_max=3f)",
}  # fmt: skip


@pytest.mark.parametrize("kind", ROW)
@pytest.mark.parametrize("op", OF_ROWS)
def test_a_loop_that_adds_up_a_function_of_its_rows(op: str, kind: str) -> None:
    """What is computed of all rows before the loop, and on its way back, of which the cotangent is the same in all steps."""
    ty, rest, zero = ROW[kind]
    body = WRITTEN.get(op, f"{op}(%x)")
    module = relay.parse(f"""{VERSION}import prelude
def @main[n: Dim](%t: Tensor[(n{rest or ","}), float32], %a: float32, %b: {ty}) -> {ty} {{
  @for(0i64, Dim[n], fn (%i: int64, %s: {ty}) -> {ty} {{ let %x = %a * take(%t, %i, axis=0); %s + {body} }}, {zero})
}}""")
    gradient = relay.value_and_grad(module, argnums=(0, 1, 2))
    exe = relay.compile(gradient, threads=1)
    for n in (0, 1, 5):
        t = np.linspace(0.5, 2, 4 * n or 1, dtype=np.float32)[: 4 * n if rest else n].reshape((n, 4) if rest else n)
        b = np.array([1.5, 0.5, 2.5, 1.25], np.float32) if rest else np.float32(1.5)
        wanted: Any = relay.evaluate(gradient, t, np.float32(1.25), b)
        found: Any = exe(t, np.float32(1.25), b)
        for f, w in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
            np.testing.assert_allclose(np.asarray(f), np.asarray(w), rtol=2e-5, atol=2e-6)


def test_rows_of_nothing() -> None:
    """Sizes of 0 leave nothing to tell from others: the interpreter and compiled code agree on the gradients."""
    module = relay.parse("""#[version = "0.0.5"]
import prelude
def @main[h: Dim](%l: List[Tensor[(h,), float32]], %w: Tensor[(h, h), float32], %z: Tensor[(h,), float32]) {
  @foldl(fn (%a: Tensor[(h,), float32], %x: Tensor[(h,), float32]) -> Tensor[(h,), float32] {
    tanh(squeeze(nn.dense(expand_dims(%x + %a, axis=0), %w), axis=[0]))
  }, %z, @map(fn (%x: Tensor[(h,), float32]) -> Tensor[(h,), float32] {
    tanh(squeeze(nn.dense(expand_dims(%x, axis=0), %w), axis=[0])) }, %l))
}""")
    slopes: Any = relay.grad(module, argnums=(1, 2))
    exe = relay.compile(slopes)
    generator = np.random.default_rng(0)
    for h in (0, 1, 3):
        for count in (0, 1, 4):
            drawn = [generator.standard_normal(s).astype(np.float32) for s in [(h,)] * count + [(h, h), (h,)]]
            args = (drawn[:count], *drawn[count:])
            wanted: Any = relay.evaluate(slopes, *args)
            for found, expected in zip(exe(*args), wanted, strict=True):
                assert np.asarray(found).shape == expected.shape
                np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)
