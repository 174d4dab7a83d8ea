"""What computes on slices of a product (gates) is in the product's kernel, behind it; loops keep the memory between the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.executable.bytecode import decode
from relay.transform import FuseOps
from tests.transform.support import VERSION, kernels, run

STATE = "Tensor[(n, 16), float32]"
OPERANDS = f"%x: Tensor[(n, 64), float32], %h: {STATE}, %c: {STATE}, %w: Tensor[(64, 16), float32]"


def part(of: str, begin: int, end: int) -> str:
    return f"strided_slice({of}, begin=[{begin}], end=[{end}], axes=[1])"


LSTM = f"""
  let %p = %x + nn.dense(%h, %w);
  let %d = sigmoid({part("%p", 16, 32)}) * %c + sigmoid({part("%p", 0, 16)}) * tanh({part("%p", 32, 48)});
  let %y = sigmoid({part("%p", 48, 64)}) * tanh(%d);
"""
LOOP = f"""{VERSION}
def @go[n: Dim](%k: int64, {OPERANDS}) -> {STATE} {{
  if (%k == 0i64) {{ %h }} else {{ {LSTM} @go(%k - 1i64, %x, %y, %d, %w) }}
}}
def @main[n: Dim](%k: int64, {OPERANDS}) {{ @go(%k, %x, %h, %c, %w) }}
"""


def fused(params: str, body: str) -> list[list[str]]:
    return kernels(run(f"def @main[n: Dim]({params}) {{ {body} }}", FuseOps()))


def test_a_cell_is_one_kernel() -> None:
    assert len(fused(OPERANDS, f"{LSTM} (%y, %d)")) == 1


def test_a_gated_layer_is_one_kernel() -> None:
    body = f"let %p = nn.dense(%x, %w); {part('%p', 0, 9)} * sigmoid({part('%p', 9, 18)})"
    params = "%x: Tensor[(n, 8), float32], %w: Tensor[(18, 8), float32]"
    assert fused(params, body) == [["nn.dense", "strided_slice", "strided_slice", "sigmoid", "multiply"]]
    # So is what reads some of the columns only, and what is a result besides.
    assert len(fused(params, f"tanh({part('nn.dense(%x, %w)', 3, 12)})")) == 1
    assert len(fused(params, f"let %p = nn.dense(%x, %w); (%p, tanh({part('%p', 3, 12)}))")) == 1


def test_a_slice_stays_with_the_product_that_reads_it() -> None:
    """It is read where it is; behind the product before, it would be copied."""
    params = "%x: Tensor[(n, 8), float32], %w: Tensor[(18, 8), float32], %v: Tensor[(5, 9), float32]"
    body = f"nn.dense({part('nn.dense(%x, %w)', 9, 18)}, %v)"
    assert fused(params, body) == [["nn.dense"], ["strided_slice", "nn.dense"]]


def test_a_slice_that_is_a_result_is_written_beside_the_gates() -> None:
    """What the way back reads of a step; as a kernel of its own it took what else reads it out of the product's."""
    params = "%x: Tensor[(n, 8), float32], %w: Tensor[(18, 8), float32]"
    body = f"let %p = nn.dense(%x, %w); let %r = sigmoid({part('%p', 0, 9)}); let %q = {part('%p', 9, 18)}; (%r, %q, tanh(%r * %q))"
    assert len(fused(params, body)) == 1


def test_of_two_products_one_has_the_gates() -> None:
    params = "%x: Tensor[(n, 8), float32], %w: Tensor[(18, 8), float32], %v: Tensor[(18, 8), float32]"
    body = f"let %p = nn.dense(%x, %w); let %q = nn.dense(%x, %v); {part('%p', 0, 9)} * tanh({part('%q', 9, 18)})"
    gates = ["nn.dense", "strided_slice", "strided_slice", "tanh", "multiply"]
    assert sorted(fused(params, body)) == [["nn.dense"], gates]


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_loop_asks_for_workspace_once(executor: str) -> None:
    """All its steps use what the first got, or one that needs more."""
    rng = np.random.default_rng(0)
    module = relay.parse(LOOP).bind({"w": (rng.standard_normal((64, 16)) * 0.3).astype("float32")})
    built = relay.pipeline.build(module, relay.Options(cache=False))
    codes = [[i.opcode.name for i in decode(f.code)] for f in built.image.functions]
    (loop,) = [names for names in codes if "InvokeKernel" in names]
    assert loop.count("InvokeKernel") == 1 and "KeepStorage" in loop and "AllocStorage" not in loop
    exe = relay.compile(module, executor=executor, threads=1)
    for rows, steps in ((1, 3), (7, 2), (2, 5), (40, 0)):
        x = rng.standard_normal((rows, 64), dtype=np.float32)
        h, c = (rng.standard_normal((rows, 16), dtype=np.float32) for _ in range(2))
        want = np.asarray(relay.evaluate(module, np.int64(steps), x, h, c))
        np.testing.assert_allclose(np.asarray(exe(np.int64(steps), x, h, c)), want, rtol=1e-5, atol=1e-6)


def test_workspace_lies_in_the_arena() -> None:
    """What a kernel uses while it runs has the memory of tensors that are dead by then: all of a block is one allocation."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype("float32") * 0.3
    gated = f"{part('%p', 0, 32)} * sigmoid({part('%p', 32, 64)})"
    text = f"""{VERSION}def @main[n: Dim](%x: Tensor[(n, 64), float32], %w: Tensor[(64, 64), float32]) {{
      let %p = nn.dense(tanh(nn.dense(%x, %w)), %w); nn.softmax(concatenate(({gated}, {gated}), axis=1)) + %x
    }}"""
    module = relay.parse(text).bind({"w": w})
    built = relay.pipeline.build(module, relay.Options(cache=False))
    (names,) = [n for f in built.image.functions if "InvokeKernel" in (n := [i.opcode.name for i in decode(f.code)])]
    assert names.count("AllocStorage") == 1 and names.count("AllocTensor") == 3  # two tensors and the product between
    exe = relay.compile(module, threads=1)
    for rows in (1, 5, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 64), dtype=np.float32)
        np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(relay.evaluate(module, x)), rtol=1e-4, atol=1e-5)


def _drawn(rng: np.random.Generator) -> tuple[str, dict[str, np.ndarray], int]:
    """A program of one product and what computes on its slices, its weights, and the columns of its state."""
    gates, columns, depth = (
        int(rng.integers(2, 7)),
        int(rng.choice([1, 3, 8, 16, 20, 33, 64])),
        int(rng.integers(1, 40)),
    )
    wide = gates * columns

    def gate() -> str:
        begin = columns * int(rng.integers(gates)) if rng.random() < 0.7 else int(rng.integers(wide - columns + 1))
        piece = part("%p", begin, begin + columns)
        return str(rng.choice([f"sigmoid({piece})", f"tanh({piece})", f"nn.relu({piece})", piece]))

    def value(known: list[str], size: int) -> str:
        text = gate()
        for _ in range(size):
            text = f"({text} {rng.choice(['*', '+', '-'])} {rng.choice([gate(), *known])})"
        return text

    product = f"nn.dense(%x, %w){rng.choice(['', ' + %b', ' * 0.5f'])}"
    lines, known = [f"let %p = {rng.choice([product, f'tanh({product})'])};"], ["%c"]
    for n in range(int(rng.integers(1, 4))):
        lines.append(f"let %v{n} = tanh({value(known, int(rng.integers(1, 4)))});")
        known.append(f"%v{n}")
    results = [known[-1], *(r for r in ("%p", *known[1:-1], f"sum({known[1]}, axis=[1])") if rng.random() < 0.4)]
    text = f"""{VERSION}def @main[n: Dim](%x: Tensor[(n, {depth}), float32], %c: Tensor[(n, {columns}), float32],
        %w: Tensor[({wide}, {depth}), float32], %b: Tensor[({wide},), float32]) {{
      {" ".join(lines)} ({", ".join(results)},)
    }}"""
    weights = {
        "w": (rng.standard_normal((wide, depth)) * 0.3).astype("float32"),
        "b": rng.standard_normal(wide).astype("float32"),
    }
    return text, weights, columns


@pytest.mark.parametrize("seed", range(24))
def test_drawn_gates(seed: int) -> None:
    """As the interpreter computes them; the same bits on both executors and on two threads."""
    rng = np.random.default_rng(seed)
    text, weights, columns = _drawn(rng)
    module = relay.parse(text)
    given: list[np.ndarray] = [] if rng.random() < 0.5 else [weights["w"], weights["b"]]
    if not given:
        module = module.bind(weights)
    exes = [
        relay.compile(module, executor=executor, threads=threads)
        for executor, threads in (("vm", 1), ("aot", 1), ("vm", 2))
    ]
    for rows in (1, 2, 7, 33):
        depth = weights["w"].shape[1]
        x, c = (rng.standard_normal((rows, k), dtype=np.float32) for k in (depth, columns))
        want: Any = relay.evaluate(module, x, c, *given)
        found = [exe(x, c, *given) for exe in exes]
        for n, expected in enumerate(want):
            first, *others = (np.asarray(f[n]) for f in found)
            np.testing.assert_allclose(first, np.asarray(expected), rtol=2e-5, atol=2e-5)
            for other in others:
                np.testing.assert_array_equal(first, other)
