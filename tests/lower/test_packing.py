"""Run-time operands that several products share are packed once, and the results are those of packing for each."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.options import Options

RNG = np.random.default_rng(2)


def chain(products: int, rows: int, width: int = 128, branch: bool = False) -> str:
    lines = [f"let %t{n + 1} = tanh(nn.dense(%t{n}, %w)) + %t{n};" for n in range(products)]
    body = f"let %t0 = exp(%x); {' '.join(lines)} %t{products}"
    if branch:
        body = f"if (%c) {{ {body} }} else {{ %x }}"
    condition = ", %c: bool" if branch else ""
    shape = f"({rows}, {width})"
    return (
        f'#[version = "0.0.5"]\ndef @main(%x: Tensor[{shape}, float32], %w: Tensor[({width}, {width}), float32]{condition})'
        f" -> Tensor[{shape}, float32] {{ {body} }}"
    )


def packs(text: str) -> int:
    plan = pipeline.build(relay.parse(text), Options(cache=False)).plan
    return sum("pack" in k.kernel.name for k in plan.kernels)


@pytest.mark.parametrize(("products", "rows", "expected"), [(4, 18, 1), (12, 6, 1), (2, 40, 0), (4, 17, 0), (80, 1, 0)])
def test_when_an_operand_is_packed_ahead(products: int, rows: int, expected: int) -> None:
    """Where it is multiplied by in three products or more, of several rows each and of 72 in all."""
    assert packs(chain(products, rows)) == expected


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("width", [128, 100])
def test_results_stay(branch: bool, width: int) -> None:
    module = relay.parse(chain(5, 15, width, branch))
    inputs: list[object] = [
        RNG.uniform(-0.1, 0.1, (15, width)).astype(np.float32),
        RNG.uniform(-0.1, 0.1, (width, width)).astype(np.float32),
    ]
    exe = relay.compile(module, cache=False)
    for flag in (True, False) if branch else (True,):
        given = [*inputs, np.bool_(flag)] if branch else inputs
        np.testing.assert_allclose(
            np.asarray(exe(*given)), np.asarray(relay.evaluate(module, *given)), rtol=1e-5, atol=1e-5
        )


def test_an_operand_made_in_the_block() -> None:
    """Packed right after it is made, whatever else reads it."""
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(24, 128), float32], %v: Tensor[(128, 128), float32]) {
      let %w = %v * 0.5f;
      let %a = nn.dense(%x, %w);
      let %b = nn.dense(tanh(%a), %w);
      let %c = nn.dense(tanh(%b), %w);
      (%c, nn.dense(%w, %w))
    }"""
    module = relay.parse(text)
    assert packs(text) >= 1
    x, v = (RNG.uniform(-0.1, 0.1, s).astype(np.float32) for s in ((24, 128), (128, 128)))
    found, expected = relay.compile(module, cache=False)(x, v), relay.evaluate(module, x, v)
    assert isinstance(found, tuple) and isinstance(expected, tuple)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


LOOP = """#[version = "0.0.5"]
def @loop(%n: int64, %x: Tensor[(ROWS, 100), float32], %w: Tensor[(100, 100), float32]) -> Tensor[(ROWS, 100), float32] {
  if (%n > 0i64) { @loop(%n - 1i64, tanh(nn.dense(%x, %w)), %w) } else { %x }
}
def @main(%n: int64, %x: Tensor[(ROWS, 100), float32], %w: Tensor[(100, 100), float32]) -> Tensor[(ROWS, 100), float32] {
  MAIN
}"""
ONCE, OTHER, AGAIN = "@loop(%n, %x, %w)", "@loop(%n, %x, %w * 0.5f)", "@loop(%n, %x, %w) + @loop(2i64, %x, %w * 0.5f)"


@pytest.mark.parametrize(("rows", "expected"), [(4, 1), (1, 0)])
def test_what_a_loop_multiplies_by_is_packed_before_it(rows: int, expected: int) -> None:
    assert packs(LOOP.replace("ROWS", str(rows)).replace("MAIN", ONCE)) == expected


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("main", [ONCE, OTHER, AGAIN])
def test_results_of_loops_stay(main: str, executor: str) -> None:
    module = relay.parse(LOOP.replace("ROWS", "5").replace("MAIN", main))
    x, w = (RNG.uniform(-0.1, 0.1, s).astype(np.float32) for s in ((5, 100), (100, 100)))
    exe = relay.compile(module, cache=False, executor=executor)
    for n in (0, 1, 5):
        found, expected = exe(np.int64(n), x, w), relay.evaluate(module, np.int64(n), x, w)
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)


def test_loops_within_loops_and_entries_pack_nothing_ahead() -> None:
    """They would do so each time, or have no parameter for it."""
    outer = """def @outer(%n: int64, %x: Tensor[(4, 100), float32], %w: Tensor[(100, 100), float32]) -> Tensor[(4, 100), float32] {
      if (%n > 0i64) { @outer(%n - 1i64, @loop(2i64, %x, %w), %w) } else { %x }
    }
    def @main"""
    text = LOOP.replace("ROWS", "4").replace("def @main", outer).replace("MAIN", "@outer(%n, %x, %w)")
    assert packs(text) == 0
    alone = LOOP.replace("ROWS", "4").replace("MAIN", ONCE)
    plan = pipeline.build(relay.parse(alone), Options(cache=False, entries=("loop",))).plan
    assert not any("pack" in k.kernel.name for k in plan.kernels)


@pytest.mark.parametrize(("batch", "expected"), [(4, 1), (1, 0)])
def test_a_layer_of_the_library_packs_what_its_steps_multiply_by(batch: int, expected: int) -> None:
    """The loop is begun by a function between, that runs once."""
    text = f"""#[version = "0.0.5"]
    import nn
    def @main[t: Dim](%xs: Tensor[(t, {batch}, 24), float32], %h: Tensor[({batch}, 96), float32], %w: Tensor[(288, 24), float32],
        %u: Tensor[(288, 96), float32], %b: Tensor[(288,), float32]) -> Tensor[(t, {batch}, 96), float32] {{
      @gru(%xs, %h, %w, %u, %b, %b * 0.5f).0
    }}"""
    assert packs(text) == expected
    module = relay.parse(text)
    exe = relay.compile(module, cache=False)
    for steps in (0, 1, 5):
        shapes = ((steps, batch, 24), (batch, 96), (288, 24), (288, 96), (288,))
        given = [RNG.uniform(-0.3, 0.3, shape).astype(np.float32) for shape in shapes]
        found, wanted = exe(*given), relay.evaluate(module, *given)
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_constant_in_two_layouts_is_an_input_for_each(executor: Literal["vm", "aot"]) -> None:
    """A convolution of unknown size packs its weights for small images, and takes them as they are for fewer products."""
    text = """#[version = "0.0.5"]
    def @main[b: Dim, h: Dim](%x: Tensor[(b, 64, h, 20), float32], %w: Tensor[(64, 64, 3, 3), float32]) {
      nn.relu(nn.conv2d(%x, %w, padding=[1, 1]))
    }"""
    rng = np.random.default_rng(0)
    module = relay.parse(text).bind({"w": (rng.standard_normal((64, 64, 3, 3)) * 0.1).astype("float32")})
    exe = relay.compile(module, executor=executor, cache=False)
    for images, height in ((1, 3), (2, 31), (0, 9)):
        x = rng.standard_normal((images, 64, height, 20)).astype("float32")
        np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(relay.evaluate(module, x)), atol=3e-5)
