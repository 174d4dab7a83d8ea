"""Weights that are in the second-level cache each time are found for the module: all that a program, or a loop in it, multiplies by."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.codegen.target import parse_target
from relay.executable.reader import read_image
from relay.loop.ir import TURN, Prefetch
from relay.loop.printer import kernel_text
from relay.loop.walk import nodes, statements
from relay.options import Options

RNG = np.random.default_rng(3)
LOOP = """#[version = "0.0.5"]
def @steps[n: Dim](%i: int64, %x: Tensor[(n, 96), float32], %w: Tensor[(96, 96), float32]) -> Tensor[(n, 96), float32] {
  if (%i == 0i64) { %x } else { @steps(%i - 1i64, tanh(nn.dense(%x, %w)), %w) }
}
def @main[n: Dim, d: Dim](%x: Tensor[(n, d), float32], %u: Tensor[(96, d), float32], %w: Tensor[(96, 96), float32])
    -> Tensor[(n, 96), float32] {
  @steps(3i64, nn.dense(%x, %u), %w)
}"""


@pytest.mark.parametrize(
    ("depth", "width", "cpu", "whole", "near", "nothing"),
    [
        (64, 96, "x86-64-v4", 1, 1, 0),
        (64, 288, "x86-64-v4", 2, 0, 0),
        (4096, 288, "x86-64-v4", 1, 0, 0),
        (24576, 96, "x86-64-v4", 0, 1, 1),
        (24576, 288, "x86-64-v4", 1, 0, 1),
        (24576, 96, "znver4", 0, 1, 0),
        (49152, 288, "znver4", 0, 0, 1),
    ],
)
def test_weights_of_a_program_or_of_a_loop_in_it_stay(
    depth: int, width: int, cpu: str, whole: int, near: int, nothing: int
) -> None:
    """Both matrices, of the loop alone where the other one is larger than the cache, and none where plans do not ask. A loop's of up to
    eight first-level caches are there in part, and a row goes through them there and back. Of a matrix of more than eight caches nothing
    stays (of more than the last cache where only memory is waited for), and no plan goes through it there and back."""
    target = parse_target(cpu)
    assert target.l2_bytes // 2 > 4 * width * (64 + width) and target.l2_bytes < 4 * width * 4096
    assert target.l1_bytes // 2 < 4 * 96 * 96 < 8 * target.l1_bytes < 4 * 288 * 288
    assert 8 * target.l2_bytes < 4 * 96 * 24576 and target.l3_bytes < 4 * 288 * 49152
    weights = {"u": RNG.uniform(-0.01, 0.01, (width, depth)), "w": RNG.uniform(-0.1, 0.1, (width, width))}
    module = relay.infer_type(relay.parse(LOOP.replace("96", str(width))))
    module = module.bind({n: w.astype(np.float32) for n, w in weights.items()})
    plan = pipeline.build(module, Options(target=cpu, cache=False)).plan
    stay = {
        end: [k for k in plan.kernels if k.key.text.endswith(f"weights stay {end}")]
        for end in ("whole", "near", "not at all")
    }
    assert [len(found) for found in stay.values()] == [whole, near, nothing]
    assert all(k.packs for found in stay.values() for k in found)
    turning = {end: [any(n is TURN for n in nodes(k.kernel.body)) for k in found] for end, found in stay.items()}
    assert all(turning["near"]) and not any(turning["not at all"])


def test_only_kernels_that_go_there_and_back_count_their_calls() -> None:
    """What all threads would write is not written for the others: of these, the product by the one matrix of which a cache keeps a part."""
    weights = {"u": RNG.uniform(-0.01, 0.01, (288, 4096)), "w": RNG.uniform(-0.1, 0.1, (288, 288))}
    module = relay.infer_type(relay.parse(LOOP.replace("96", "288"))).bind(
        {n: w.astype(np.float32) for n, w in weights.items()}
    )
    built = pipeline.build(module, Options(target="x86-64-v4", cache=False))
    turning = {k.kernel.name for k in built.plan.kernels if any(n is TURN for n in nodes(k.kernel.body))}
    kernels = read_image(built.image.to_bytes()).kernels
    assert {k.name for k in kernels if k.alternates} == turning
    assert 0 < len(turning) < len(kernels)


@pytest.mark.parametrize(("depth", "asks"), [(64, False), (8192, True)])
def test_several_tiles_ask_only_for_weights_that_do_not_stay(depth: int, asks: bool) -> None:
    """Both products have 24 rows, tiles of which share out what is asked for of the next panel."""
    text = f"""#[version = "0.0.5"]
def @main(%x: Tensor[(24, {depth}), float32], %u: Tensor[(160, {depth}), float32]) -> Tensor[(24, 160), float32] {{
  nn.dense(%x, %u)
}}"""
    module = relay.infer_type(relay.parse(text)).bind({"u": RNG.uniform(-0.1, 0.1, (160, depth)).astype(np.float32)})
    plan = pipeline.build(module, Options(target="x86-64-v4", cache=False)).plan
    (kernel,) = [k for k in plan.kernels if k.packs]
    assert any(isinstance(s, Prefetch) for s in statements(kernel.kernel.body)) == asks


@pytest.mark.parametrize(("cpu", "rows", "depth", "asks"), [
    ("znver4", 3, 8192, False), ("znver4", 4, 8192, True), ("znver4", 4, 49152, False), ("znver4", 7, 49152, True),
    ("x86-64-v3", 4, 49152, True),
])  # fmt: skip
def test_a_single_tile_asks_memory_from_more_rows_on_than_the_last_cache(
    cpu: str, rows: int, depth: int, asks: bool
) -> None:
    text = f"""#[version = "0.0.5"]
def @main(%x: Tensor[({rows}, {depth}), float32], %u: Tensor[(96, {depth}), float32]) -> Tensor[({rows}, 96), float32] {{
  nn.dense(%x, %u)
}}"""
    module = relay.infer_type(relay.parse(text)).bind({"u": RNG.uniform(-0.1, 0.1, (96, depth)).astype(np.float32)})
    plan = pipeline.build(module, Options(target=cpu, cache=False)).plan
    (kernel,) = [k for k in plan.kernels if k.packs]
    assert any(isinstance(s, Prefetch) for s in statements(kernel.kernel.body)) == asks


@pytest.mark.parametrize("others", [0, 1])
def test_few_rows_go_through_weights_that_stay_as_many_do(others: int) -> None:
    """Three eighths of the cache stay there from call to call, but not beside as many more: then up to 48 rows have code of their own."""
    columns = parse_target("x86-64-v4").l2_bytes * 3 // 8 // (4 * 480)
    names = ["u", "v"][: 1 + others]
    params = ", ".join(f"%{n}: Tensor[({columns}, 480), float32]" for n in names)
    results = ", ".join(f"nn.dense(%{x}, %{n})" for x, n in zip("xy", names, strict=False))
    text = f"""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 480), float32], %y: Tensor[(n, 480), float32], {params}) {{ ({results},) }}"""
    weights = {n: RNG.uniform(-0.1, 0.1, (columns, 480)).astype(np.float32) for n in names}
    plan = pipeline.build(
        relay.infer_type(relay.parse(text)).bind(weights), Options(target="x86-64-v4", cache=False)
    ).plan
    texts = [kernel_text(k.kernel) for k in plan.kernels if k.packs]
    assert texts and all(("n <= 48" in t) == bool(others) for t in texts)
