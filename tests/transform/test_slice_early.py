"""Slices of what is computed place by place: what is pushed and what stays, and that the values are the same."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.interpreter.evaluation import evaluate
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.ir.walk import post_order
from relay.transform.slice_early import SliceEarly
from tests.transform.support import run, typed

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(5)
HEAD = "def @main[n: Dim](%x: Tensor[(n, 8, 6), float32], %i: int32, %w: Tensor[(6, 6), float32]) { "
LAST = "begin=[Dim[n - 1]], end=[Dim[n]], axes=[0]"
PUSHED = {
    "the last row": f"strided_slice(nn.dense(%x, %w), {LAST})",
    "one of a known axis": "squeeze(strided_slice(nn.dense(%x, %w), begin=[0, 3, 0], end=[Dim[n], 4, 6]), axis=[1])",
    "a number": "take(nn.dense(%x, %w), %i, axis=1)",
    "from the end": "strided_slice(nn.relu(nn.dense(%x, %w)), begin=[-2], end=[-1], axes=[1])",
    "every fourth": "strided_slice(nn.dense(%x, %w), begin=[0], end=[8], strides=[4], axes=[1])",
    "two equal slices": f"let %y = nn.dense(%x, %w); strided_slice(%y, {LAST}) * tanh(strided_slice(%y, {LAST}))",
    "a residual": "let %h = nn.dense(%x, %w); let %z = %h + nn.softmax(%h); take(nn.dense(%z, %w), %i, axis=0)",
    "a transpose and a reshape": """let %y = reshape(transpose(nn.dense(%x, %w), axes=[1, 0, 2]), newshape=[8, Dim[n], 2, 3]);
      take(%y, %i, axis=0)""",
    "what is broadcast": "take(nn.dense(%x, %w) + take(%x, 0, axis=0), %i, axis=0)",
    "parts of a concatenation": "take(concatenate((nn.dense(%x, %w), %x), axis=2), %i, axis=1)",
    "queries": """let %s = nn.softmax(nn.batch_matmul(nn.dense(%x, %w), %x));
      take(nn.batch_matmul(%s, %x, transpose_b=False), %i, axis=1)""",
    "into branches": """let %y = nn.dense(%x, %w); let %a = take(%y, %i, axis=1); let %b = take(%y, %i, axis=1);
      if (%i > 2) { tanh(%b) } else { %a + %b }""",
}
WHOLE = {
    "read otherwise, too": f"let %y = nn.dense(%x, %w); strided_slice(%y, {LAST}) + sum(%y)",
    "two slices": "let %y = nn.dense(%x, %w); take(%y, 1, axis=1) + take(%y, 2, axis=1)",
    "in another order along another axis": "strided_slice(nn.dense(%x, %w), begin=[0, 7], end=[1, -9], strides=[1, -1])",
    "most of it": "strided_slice(nn.dense(%x, %w), begin=[1], end=[8], axes=[1])",
    "a sum of those before": "take(cumsum(nn.dense(%x, %w), axis=1), %i, axis=1)",
    "a softmax of all": "take(nn.softmax(nn.dense(%x, %w), axis=1), %i, axis=1)",
    "rows that know where they are": """let %y = nn.dense(%x, %w);
      let %a = nn.attention(expand_dims(%y, axis=0), expand_dims(%y, axis=0), expand_dims(%y, axis=0), causal=True);
      take(%a, %i, axis=2)""",
}


def rows(module: Module) -> list[int]:
    """How many elements products with the weight make, where that is known, of eight rows in the other axis."""
    found = []
    for function in module.functions.values():
        for node in post_order(function):
            if isinstance(node, Call) and isinstance(node.fn, OpRef) and node.fn.name == "nn.dense":
                assert isinstance(node.ty, TensorType) and isinstance(node.ty.shape, tuple)
                found.append(min((d for d in node.ty.shape[:-1] if isinstance(d, int)), default=8))
    return found


def same(module: Module, after: Module) -> None:
    exe = relay.compile(module, cache=False, threads=1)
    for n in (1, 5):
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, 8, 6), (6, 6)))
        number = np.int32(RNG.integers(0, n))
        meant = np.asarray(evaluate(module, x, number, w))
        np.testing.assert_allclose(np.asarray(evaluate(after, x, number, w)), meant, atol=1e-5)
        np.testing.assert_allclose(np.asarray(exe(x, number, w)), meant, atol=1e-5)


@pytest.mark.parametrize("form", PUSHED)
def test_slices_are_taken_before(form: str) -> None:
    module = typed(HEAD + PUSHED[form] + " }")
    after = run(module, SliceEarly())
    assert all(n < 8 for n in rows(after)), str(after)
    same(module, after)


@pytest.mark.parametrize("form", WHOLE)
def test_what_stays_whole(form: str) -> None:
    module = typed(HEAD + WHOLE[form] + " }")
    after = run(module, SliceEarly())
    assert rows(after) == rows(run(module)), str(after)
    same(module, after)


# Slices of one axis and of two, also in the other order: sums of sums depend on where each element is.
SLICES = (
    "begin=[1], end=[2], axes=[1]",
    "begin=[1, 5], end=[2, -7], strides=[1, -1], axes=[1, 2]",
    "begin=[7, 0], end=[6, 6], strides=[-1, 1], axes=[1, 2]",
    "begin=[0, 2], end=[Dim[n], 3]",
    "begin=[3, -1], end=[0, -9], strides=[-2, -1], axes=[1, 2]",
)


def drawn(rng: random.Random) -> str:
    """A program of steps along the last axis, some of which read what was made before once more, with slices of some."""
    lines, made = [], ["%x"]
    for number in range(rng.randint(2, 7)):
        a, b = rng.choice(made[-2:]), rng.choice(made)
        step = rng.choice(
            [
                f"nn.dense({a}, %w)", f"nn.dense({a}, %w)", f"tanh({a})", f"{a} + {b}", f"{a} * sum({b}, axis=[2], keepdims=True)",
                f"nn.softmax({a})", f"nn.layer_norm({a}, ones(shape=[6]), zeros(shape=[6]))",
                f"reverse({a}, axis=1)", f"where({a} > 0f, {a}, {b})", f"cumsum({a}, axis=0)",
                f"transpose(transpose({a}, axes=[1, 0, 2]), axes=[1, 0, 2])",
            ]
        )  # fmt: skip
        lines.append(f"let %v{number} = {step};")
        made.append(f"%v{number}")
    parts = [
        f"sum({rng.choice(made[-2:])})" if rng.random() < 0.1 else
        f"sum(take({made[-1 - (rng.random() < 0.2)]}, %i, axis=0))" if rng.random() < 0.3 else
        f"sum(cumsum(strided_slice({made[-1]}, {rng.choice(SLICES)}), axis=2))"
        for _ in range(rng.choice((1, 1, 2)))
    ]  # fmt: skip
    return HEAD + " ".join(lines) + " + ".join(parts) + " }"


@pytest.mark.parametrize("seed", range(80))
def test_drawn_programs(seed: int) -> None:
    module = typed(drawn(random.Random(seed)))
    after = run(module, SliceEarly())
    for n in (1, 4):
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, 8, 6), (6, 6)))
        meant = np.asarray(evaluate(module, x, np.int32(n - 1), w))
        np.testing.assert_allclose(
            np.asarray(evaluate(after, x, np.int32(n - 1), w)), meant, rtol=1e-4, atol=1e-4, err_msg=str(after)
        )


def test_some_drawn_programs_are_changed() -> None:
    modules = [typed(drawn(random.Random(seed))) for seed in range(30)]
    changed = sum(run(m, SliceEarly()).text() != run(m).text() for m in modules)
    assert changed >= 5


def test_gradients_of_slices() -> None:
    """Slices are pushed before a program is differentiated: products on the way back are of what was sliced, too."""
    module = typed(HEAD + "sum(tanh(take(nn.dense(nn.dense(%x, %w) + %x, %w), %i, axis=1))) }")
    slope = relay.compile(relay.grad(module, argnums=(0, 2)), cache=False, threads=1)
    x, w, number = RNG.standard_normal((3, 8, 6)).astype(np.float32), RNG.standard_normal((6, 6)), np.int32(2)
    w = w.astype(np.float32)
    meant = relay.evaluate(relay.grad(module, argnums=(0, 2)), x, number, w)
    assert isinstance(meant, tuple)
    for found, wanted in zip(slope(x, number, w), meant, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-4)
