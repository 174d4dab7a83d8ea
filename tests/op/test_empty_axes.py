"""Axes without elements: what is read there whatever is chosen is an error of the interpreter and of compiled code alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError
from relay.loop.ir import Fail
from relay.loop.walk import statements
from relay.op.registry import operator, remove
from relay.options import Options
from relay.pipeline import build

TEXT = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, 3), float32], %i: Tensor[(m,), int64], %j: Tensor[(n, m), int64]) {
  BODY
}"""
# What reads an empty axis (of n elements) where there is something to compute (of m).
MOVED = {
    "take": "take(%x, %i, axis=0)",
    "of all elements": "take(%x, %i)",
    "wrapped": 'take(%x, %i, axis=0, mode="wrap")',
    "fused": "nn.relu(take(%x, %i, axis=0) + 1f)",
    "reduced": "sum(take(exp(%x), %i, axis=0))",
    "vectors": "gather_nd(%x, reshape(%i, newshape=(1, -1)))",
    "a product": "nn.dense(take(%x, %i, axis=0), take(%x, %i, axis=0))",
    "an index of an index": "take(%x, take(%j, %i, axis=0), axis=0)",
}
# What reads no element of an empty axis.
WHOLE = {
    "gather": "gather(%j, %j, axis=0)",
    "repeat": "repeat(%x, repeats=2, axis=0)",
    "reverse": "reverse(%x, axis=0)",
    "slice": "strided_slice(%x, begin=(0,), end=(1,))",
    "softmax": "nn.softmax(%x, axis=0)",
    "of columns": "take(%x, %i, axis=1)",
}


@pytest.mark.parametrize("name", [*MOVED, *WHOLE])
def test_executors_agree(name: str, tmp_path: Path) -> None:
    module = relay.parse(TEXT.replace("BODY", {**MOVED, **WHOLE}[name]))
    exe = relay.compile(module, cache_dir=tmp_path)
    for n, m in itertools.product((0, 1, 2), (0, 1, 3)):
        given = np.arange(n * 3, dtype=np.float32).reshape(n, 3), np.arange(m) - 1, np.zeros((n, m), np.int64)
        if name in MOVED and n == 0 and m > 0:
            for run in (lambda given=given: relay.evaluate(module, *given), lambda given=given: exe(*given)):
                with pytest.raises(ExecutionError, match="outside"):
                    run()
        else:
            np.testing.assert_allclose(np.asarray(exe(*given)), np.asarray(relay.evaluate(module, *given)), rtol=1e-6)


@pytest.mark.parametrize(("body", "asked"), [(MOVED["take"], 1), (WHOLE["of columns"], 0), (WHOLE["repeat"], 0)])
def test_a_kernel_asks_once_and_where_it_has_to(body: str, asked: int) -> None:
    plan = build(relay.parse(TEXT.replace("BODY", body)), Options(cache=False, workers=1)).plan
    found = [s for p in plan.kernels for s in statements(p.kernel.body) if isinstance(s, Fail)]
    assert len(found) == asked


# Look-ups of x: (n, 3) at i: (m,) that give (m, 3).
_LOOKUPS = (
    "take(%x, %i, axis=0)",
    'take(%x, %i, axis=0, mode="wrap")',
    "gather(%x, broadcast_to(expand_dims(%i, axis=1), shape=(Dim[m], 3)), axis=0)",
    "gather_nd(%x, expand_dims(%i, axis=0))",
    "expand_dims(take(%x, 0i64, axis=0), axis=0) + zeros(shape=[Dim[m], 3])",
    "broadcast_to(take(%x, 1i64, axis=0), shape=(Dim[m], 3))",
    "take(exp(%x), %i + 1i64, axis=0)",
)


def _drawn(seed: int) -> str:
    """A program of look-ups whose results it uses, uses in one branch, in a loop that may make no step, or not at all."""
    r = random.Random(seed)
    lines: list[str] = []
    known = ["zeros(shape=[Dim[m], 3])"]

    def value(depth: int) -> str:
        kind = r.choice(["look", "look", "branch", "sum", "loop"]) if depth else "look"
        match kind:
            case "branch":
                return f"if (%c) {{ {value(depth - 1)} }} else {{ {r.choice(known)} }}"
            case "sum":
                return f"{r.choice(known)} + nn.relu({r.choice(known)})"
            case "loop":
                step = f"{r.choice(_LOOKUPS)}" if r.random() < 0.7 else f"nn.dense({r.choice(_LOOKUPS)}, %w)"
                other = r.choice(known)
                return (
                    "@for(0i64, %k, fn (%t: int64, %s: Tensor[(m, 3), float32]) -> Tensor[(m, 3), float32] "
                    f"{{ let %u = {step}; let %unused = {r.choice(_LOOKUPS)}; %s + {r.choice(['%u', other])} }}, {other})"
                )
        return r.choice(_LOOKUPS)

    for n in range(r.randint(2, 4)):
        lines.append(f"let %v{n} = {value(2)};")
        if r.random() < 0.6:
            known.append(f"%v{n}")
    body = "\n  ".join([*lines, r.choice(known)])
    return f"""#[version = "0.0.5"]
import prelude
def @main[n: Dim, m: Dim](%x: Tensor[(n, 3), float32], %i: Tensor[(m,), int64], %w: Tensor[(3, 3), float32], %k: int64, %c: bool)
    -> Tensor[(m, 3), float32] {{
  {body}
}}"""


@pytest.mark.parametrize("seed", range(12))
def test_what_nobody_asks_for_fails_at_every_level(seed: int) -> None:
    module = relay.parse(_drawn(seed))
    programs = [
        (level, executor, relay.compile(module, opt_level=level, executor=executor, cache=False))
        for level, executor in ((0, "vm"), (1, "aot"), (3, "vm"), (3, "aot"))
    ]
    weights = np.arange(9, dtype=np.float32).reshape(3, 3) - 4
    for n, m, k, c in itertools.product((0, 2), (0, 1), (0, 2), (False, True)):
        given = (
            np.arange(n * 3, dtype=np.float32).reshape(n, 3) / 8,
            np.arange(m),
            weights,
            np.int64(k),
            np.bool_(c),
        )
        try:
            expected = np.asarray(relay.evaluate(module, *given))
        except ExecutionError:
            expected = None
        for level, executor, exe in programs:
            if expected is None:
                with pytest.raises(ExecutionError, match="outside"):
                    exe(*given)
            else:
                np.testing.assert_allclose(
                    np.asarray(exe(*given)), expected, rtol=1e-5, atol=1e-5, err_msg=f"{level} {executor} {n, m, k, c}"
                )


TREE = """#[version = "0.0.5"]
type Tree { Leaf(Tensor[(1,), int64]), Node(Tree, Tree) }
def @encode[v: Dim](%t: Tree, %table: Tensor[(v, 3), float32], %at: Tensor[(1,), int64], %w: Tensor[(3, 6), float32])
    -> Tensor[(1, 3), float32] {
  match (%t) {
    Leaf(%i) => LEAF,
    Node(%l, %r) => tanh(nn.dense(concatenate((@encode(%l, %table, %at, %w), @encode(%r, %table, %at, %w)), axis=1), %w)) + NODE,
  }
}
def @main[v: Dim](%t: Tree, %table: Tensor[(v, 3), float32], %at: Tensor[(1,), int64], %w: Tensor[(3, 6), float32])
    -> Tensor[(1, 3), float32] {
  @encode(%t, %table, %at, %w)
}"""


@pytest.mark.parametrize(
    ("leaf", "node"),
    [
        ("take(%table, %i, axis=0)", "ones(shape=[1, 3])"),
        ("ones(shape=[1, 3])", "take(%table, %at, axis=0)"),
        (
            '{ let %unused = take(%table, %at, axis=0); cast(reshape(%i, newshape=[1, 1]), dtype="float32") + ones(shape=[1, 3]) }',
            "0f",
        ),
    ],
)
def test_a_recursion_over_structures_looks_up_where_it_has_such_nodes(leaf: str, node: str) -> None:
    module = relay.parse(TREE.replace("LEAF", leaf).replace("NODE", node))
    exe = relay.compile(module, cache=False)
    make = module.adt("Tree")
    small = make.Leaf(np.array([1]))
    for tree, v in itertools.product((small, make.Node(small, make.Node(small, small))), (0, 2)):
        given = tree, np.ones((v, 3), np.float32), np.array([0]), np.full((3, 6), 0.1, np.float32)
        try:
            expected = np.asarray(relay.evaluate(module, *given))
        except ExecutionError:
            with pytest.raises(ExecutionError, match="outside"):
                exe(*given)
        else:
            np.testing.assert_allclose(np.asarray(exe(*given)), expected, rtol=1e-5)


def _unless_negative(x: te.Tensor) -> te.Tensor:
    last = te.size(x.shape[0]) - 1
    return te.compute((4,), lambda i: te.select(~(last < 0), x[last], 5.0))


def _where_a_sum_says(x: te.Tensor) -> te.Tensor:
    k, last = te.reduce_axis(x.shape[0]), te.size(x.shape[0]) - 1
    sums = te.compute((3,), lambda i: te.sum(x[k], k) + te.cast(i, "float32"))
    return te.compute((4,), lambda i: te.select(sums[1] > 1.0, x[last], 5.0))


def _in_each_step(x: te.Tensor) -> te.Tensor:
    """A factor of a sum that is the same in each step and computed before them."""
    k, last = te.reduce_axis(x.shape[0]), te.size(x.shape[0]) - 1
    return te.compute((4,), lambda i: te.sum(te.exp(x[last]) * x[k], k))


@pytest.mark.parametrize("define", [_unless_negative, _where_a_sum_says, _in_each_step])
def test_what_is_not_read_may_be_anywhere(define: Callable[[te.Tensor], te.Tensor]) -> None:
    """In an axis whose size is written, too, where the place is a number."""
    operator("test.last")(define)
    try:
        some = relay.parse("fn [n: Dim] (%x: Tensor[(n,), float32]) { test.last(%x) }")
        exe = relay.compile(some, cache=False, check_memory=True)
        for n in (0, 1, 2):
            x = np.arange(n, dtype=np.float32) + 1
            wanted = np.asarray(relay.evaluate(some, x))
            written = relay.parse(f"fn (%x: Tensor[({n},), float32]) {{ test.last(%x) }}")
            for found in (exe(x), relay.compile(written, cache=False, check_memory=True)(x)):
                np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
    finally:
        remove("test.last")


def _at_multiples_of_a_size(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    (n,), (p,) = x.shape, w.shape
    last = te.size(p) - 1
    return te.compute((n // p,), lambda i: x[i * te.size(p)] * w[te.minimum(i, last)])  # type: ignore[operator]


def test_a_count_may_be_a_quotient_by_the_size_of_what_is_read() -> None:
    operator("test.multiples")(_at_multiples_of_a_size)
    try:
        module = relay.parse(
            "fn [n: Dim, p: Dim] (%x: Tensor[(n,), float32], %w: Tensor[(p,), float32]) { test.multiples(%x, %w) }"
        )
        exe = relay.compile(module, cache=False, check_memory=True)
        for n, p in ((7, 2), (3, 3), (2, 5)):
            x, w = np.arange(n, dtype=np.float32), np.arange(p, dtype=np.float32) + 2
            np.testing.assert_allclose(np.asarray(exe(x, w)), np.asarray(relay.evaluate(module, x, w)))
    finally:
        remove("test.multiples")


# Numbers of what is made of x: (n,), where it may have no element though x has some; or none although it may be anything but x.
_OF_PARTS = {
    "a part": "take(strided_slice(%x, begin=[0], end=[Dim[n // 2]]), %i, axis=0)",
    "a part that is repeated": "take(tile(strided_slice(%x, begin=[0], end=[Dim[n // 2]]), reps=[2]), %i, axis=0)",
    "nothing of x": 'take(zeros(shape=[Dim[n // 2]], dtype="float32"), %i, axis=0)',
    "two together": "take(concatenate((%x * %s, %y), axis=0), %i, axis=0)",
    "all, as it lies": "take(reshape(%x, newshape=[Dim[n]]), %i, axis=0)",
}


@pytest.mark.parametrize("name", _OF_PARTS)
@pytest.mark.parametrize("loop", [False, True], ids=["once", "in a loop"])
def test_a_number_of_what_is_made_of_an_operand_is_asked_of_that(name: str, loop: bool) -> None:
    """Instructions, and loops of numbers, read the operand: it has elements where the part has none."""
    value = _OF_PARTS[name]
    step = f"@for(0i64, 3i64, fn (%t: int64, %s: float32) {{ 0.5f * %s + {value} }}, 1f)"
    body = step if loop else f"let %s = 2f; {value}"
    module = relay.parse(f"""#[version = "0.0.5"]
import prelude
def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32], %i: int64) {{ {body} }}""")
    programs = [
        relay.compile(module, executor=executor, opt_level=level, cache=False)
        for executor, level in (("vm", 1), ("vm", 3), ("aot", 3))
    ]
    for n, m in itertools.product((0, 1, 2, 4), (0, 1)):
        given = np.arange(n, dtype=np.float32) + 1, np.arange(m, dtype=np.float32) - 3, np.int64(0)
        try:
            expected = np.asarray(relay.evaluate(module, *given))
        except ExecutionError:
            for exe in programs:
                with pytest.raises(ExecutionError, match=r"outside|there is no element"):
                    exe(*given)
        else:
            for exe in programs:
                np.testing.assert_allclose(np.asarray(exe(*given)), expected, rtol=1e-6)
