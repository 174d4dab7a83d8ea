"""Random data flow: whatever is grouped, moved, merged or dropped, the results stay."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay.interpreter.evaluation import evaluate
from relay.loop.costs import Machine
from relay.transform import (
    CommonSubexpressions,
    DeadCode,
    DropIdentities,
    DropUnread,
    FuseOps,
    Inline,
    Recompute,
    Simplify,
)
from relay.transform.blocks import all_bindings, body_of
from tests.transform.support import assert_same, run, typed

N = 4
X = np.random.default_rng(3).uniform(-1, 1, (N, N)).astype(np.float32)

# What one step makes of earlier matrices (and one reference), all of shape (N, N).
STEPS = (
    "tanh({a})",
    "add({a}, {b})",
    "multiply({a}, {b})",
    "subtract({a}, mean({b}, axis=-1, keepdims=True))",
    "divide({a}, add(sum(multiply({b}, {b}), axis=1, keepdims=True), 1f))",
    "subtract({a}, max({b}, axis=0, keepdims=True))",
    "transpose({a})",
    "reshape(reshape({a}, newshape=[16]), newshape=[4, 4])",
    "nn.dense({a}, {b})",
    "nn.softmax({a})",
    "nn.relu(add({a}, nn.dense({b}, {a})))",
    "concatenate((strided_slice({a}, begin=[0], end=[2]), strided_slice({b}, begin=[2], end=[4])), axis=0)",
    "{{ let %s = split({a}, indices_or_sections=2, axis=1); concatenate((%s.1, exp(%s.0)), axis=1) }}",
    "{{ %r := {a}; tanh(!%r) }}",
    "{{ let %o = !%r; %r := {a}; add(%o, {b}) }}",
    "if (less(sum({a}), 100f)) {{ tanh({a}) }} else {{ add({b}, {a}) }}",
    "@f({a}, {b})",
)


@st.composite
def programs(draw: st.DrawFn, known: bool) -> str:
    count = draw(st.integers(1, 14))
    lines: list[str] = []
    for n in range(count):
        names = ["%x", *(f"%v{k}" for k in range(max(0, n - 5), n))]
        step = draw(st.sampled_from(STEPS))
        lines.append(f"let %v{n} = {step.format(a=draw(st.sampled_from(names)), b=draw(st.sampled_from(names)))};")
    results = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
    outputs = ", ".join(f"%v{k}" for k in [*results, count - 1])
    matrix = "Tensor[(4, 4), float32]" if known else "Tensor[(?, 4), float32]"
    return f"""def @f(%a: {matrix}, %b: {matrix}) -> {matrix} {{ multiply(%a, tanh(%b)) }}
               def @main(%x: {matrix}) {{ let %r = ref(%x); {" ".join(lines)} ({outputs}, !%r) }}"""


@settings(max_examples=60, deadline=None)
@given(programs(known=True))
def test_fusion_keeps_the_results(text: str) -> None:
    module = typed(text)
    expected = evaluate(module, X)
    tidy = (Inline(), Simplify(), CommonSubexpressions(), DeadCode())
    for passes in (
        (FuseOps(),),
        (FuseOps(max_size=3),),
        (*tidy, FuseOps()),
        (DropIdentities(), DropUnread(), DeadCode(), Recompute(machine=Machine(flops=1e15)), FuseOps()),
    ):
        after = run(module, *passes)
        assert_same(expected, evaluate(after, X))
        bound = [b.var for b in all_bindings(body_of(after.functions["main"]))]
        assert len(bound) == len(set(bound))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(programs(known=False))
def test_unknown_sizes_fuse_as_well(text: str) -> None:
    module = typed(text)
    found = relay.compile(module)(X)
    assert_same(evaluate(module, X), found)
