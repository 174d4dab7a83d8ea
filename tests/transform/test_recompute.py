"""What is recomputed where it is read, what is not, operands that nobody reads, and that the values stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.expr import Call
from relay.ir.module import Module
from relay.loading import as_module
from relay.loop.costs import Machine
from relay.pipeline import build
from relay.transform import DeadCode, DropIdentities, DropUnread, FuseOps, NameDims, Recompute
from relay.transform.blocks import all_bindings, body_of, is_primitive
from tests.transform.support import kernels, operators, run, same_results, typed

RNG = np.random.default_rng(5)
# Traffic alone counts.
FAST = replace(Machine(), flops=1e15)
# Arithmetic alone counts.
SLOW = replace(Machine(), flops=1e6)


def array(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def fused(text: str, machine: Machine = Machine(), *inputs: object) -> list[list[str]]:  # noqa: B008
    """The kernels, in order, without the zeros that they do not read."""
    module = typed(text)
    after = run(module, NameDims(), DropUnread(), DeadCode(), Recompute(machine=machine), FuseOps())
    if inputs:
        same_results(module, after, *inputs)
    return [[name for name in kernel if name != "zeros"] for kernel in kernels(after)]


# The deviation from the mean is read by the variance and by the result; both reduce over axes that are no rows.
NORM = """def @main(%x: Tensor[(6, 4, 50), float32], %w: Tensor[(1, 4, 1), float32]) {
  let %m = mean(%x, axis=[0, 2], keepdims=True);
  let %d = %x - %m;
  let %v = mean(%d * %d, axis=[0, 2], keepdims=True);
  %d * %w * %v }"""


def test_a_deviation_is_computed_where_it_is_read() -> None:
    found = fused(NORM, Machine(), array(6, 4, 50), array(1, 4, 1))
    assert found == [["mean"], ["subtract", "multiply", "mean"], ["subtract", "multiply", "multiply"]]


def test_without_the_pass_it_is_written() -> None:
    after = run(typed(NORM), NameDims(), FuseOps())
    assert ["subtract", "multiply"] in kernels(after) or ["subtract"] in kernels(after)


def test_dear_arithmetic_is_not_repeated() -> None:
    found = fused(NORM, SLOW, array(6, 4, 50), array(1, 4, 1))
    assert sum(kernel.count("subtract") for kernel in found) == 1


def test_traffic_decides() -> None:
    """A value of two tensors, neither of which its readers read, is cheaper to read than to recompute."""
    text = """def @main(%x: Tensor[(64, 300), float32], %y: Tensor[(64, 300), float32]) {{
      let %a = {first};
      (sum(%a, axis=[1]), sum(%a * %a, axis=[0]), sum(nn.relu(%a), axis=[0])) }}"""
    two = fused(text.format(first="%x * %y"), FAST, array(64, 300), array(64, 300))
    one = fused(text.format(first="abs(%x)"), FAST, array(64, 300), array(64, 300))
    assert sum(kernel.count("abs") for kernel in one) == 2, "one for each axis that is summed over"
    assert sum(kernel.count("multiply") for kernel in two) - 1 <= 3


def test_an_operand_of_a_product_is_written_once() -> None:
    """Inside a product it would be computed for every panel again."""
    text = """def @main(%x: Tensor[(64, 64), float32], %w: Tensor[(64, 64), float32]) {
      let %a = tanh(%x); (nn.dense(%a, %w), nn.dense(%w, %a)) }"""
    found = fused(text, FAST, array(64, 64), array(64, 64))
    assert sum(kernel.count("tanh") for kernel in found) == 1


def test_an_epilogue_may_recompute() -> None:
    text = """def @main(%x: Tensor[(64, 64), float32], %w: Tensor[(64, 64), float32], %v: Tensor[(64, 64), float32]) {
      let %a = abs(%x); (nn.dense(%v, %w) * %a, sum(%a, axis=[0])) }"""
    found = fused(text, FAST, array(64, 64), array(64, 64), array(64, 64))
    assert ["nn.dense", "abs", "multiply"] in found or ["abs", "nn.dense", "multiply"] in found
    assert ["abs", "sum"] in found


def test_what_leaves_is_written_and_read_where_that_is_cheaper() -> None:
    text = """def @main(%x: Tensor[(64, 64), float32]) { let %a = abs(%x); (%a, sum(%a, axis=[0]), sum(%x * %a, axis=[0])) }"""
    found = fused(text, FAST, array(64, 64))
    # The second sum reads %x anyway, so it need not read %a; the first has to read one of them.
    assert sum(kernel.count("abs") for kernel in found) >= 2


def test_what_is_made_of_a_slice_is_recomputed_from_the_slice() -> None:
    """A slice costs what there is of it to read, not the whole operand: the rows of a step among those of all steps."""
    text = """def @main(%x: Tensor[(4096, 64), float32], %a: Tensor[(64,), float32], %w: Tensor[(64, 64), float32],
        %h: Tensor[(16, 64), float32], %d: Tensor[(16, 64), float32]) {{
      let %t = {cut} * %a;
      (nn.dense(%h, %w) * %t, sum(%d * %t, axis=[0])) }}"""
    inputs = array(4096, 64), array(64), array(64, 64), array(16, 64), array(16, 64)
    rows = fused(text.format(cut="strided_slice(%x, begin=[32], end=[48], axes=[0])"), Machine(), *inputs)
    assert sum(kernel.count("strided_slice") for kernel in rows) == 2
    assert all("nn.dense" in kernel or "sum" in kernel for kernel in rows), "no kernel is left for the value alone"
    # With a distance between rows other lines are read for each.
    cut = "strided_slice(%x, begin=[0], end=[4096], strides=[256], axes=[0])"
    apart = fused(text.format(cut=cut), Machine(), *inputs)
    assert sum(kernel.count("strided_slice") for kernel in apart) == 1


# A weight of each pair of rows is made of a sum over their width, and what it weighs is summed over either side.
PAIRS = """def @main(%x: Tensor[(30, 1, 16), float32], %y: Tensor[(1, 20, 16), float32]) {
  let %d = %x - %y;
  let %w = exp(negative(sum(%d * %d, axis=[2], keepdims=True)));
  let %e = %d * %w;
  (sum(%e, axis=[0]), sum(%e, axis=[1])) }"""


def test_what_is_made_of_a_smaller_value_is_recomputed_from_it() -> None:
    """The weights are written, not what they weigh."""
    given = array(30, 1, 16), array(1, 20, 16)
    weights = ["subtract", "multiply", "sum", "negative", "exp"]
    assert fused(PAIRS, FAST, *given) == [weights, *[["subtract", "multiply", "sum"]] * 2]
    assert fused(PAIRS, SLOW, *given)[0] == [*weights, "multiply"]


def test_nested_blocks_keep_their_values() -> None:
    text = """def @main(%x: Tensor[(8, 32), float32], %c: bool) {
      let %a = abs(%x);
      let %s = sum(%a, axis=[1]);
      if (%c) { (sum(%a * %a, axis=[0]), %s) } else { (sum(%x, axis=[0]), %s) } }"""
    for c in (True, False):
        fused(text, FAST, array(8, 32), np.bool_(c))


def test_only_sizes_of_an_operand_count() -> None:
    """A mean's cotangent does not read the operand, whose maker is dead then."""
    text = """def @main[n: Dim](%x: Tensor[(n, 8), float32], %g: Tensor[(1, 8), float32]) {
      mean.vjp0(exp(%x), %g, axis=[0], keepdims=True) }"""
    module = typed(text)
    after = run(module, NameDims(), DropUnread(), DeadCode())
    assert operators(after) == ["zeros", "mean.vjp0"]
    same_results(module, after, array(5, 8), array(1, 8))
    fused_module = run(after, FuseOps())
    call = next(b.value for b in all_bindings(body_of(fused_module.functions["main"])) if isinstance(b.value, Call))
    assert is_primitive(call.fn) and len(call.args) == 1, "the zeros are the kernel's own, and it reads none"
    exe = relay.compile(module, cache=False)
    x, g = array(5, 8), array(1, 8)
    np.testing.assert_allclose(np.asarray(exe(x, g)), np.broadcast_to(g / 5, (5, 8)), rtol=1e-6)


def test_a_product_that_does_not_read_an_operand_takes_none() -> None:
    text = """def @main(%x: Tensor[(4, 8), float32], %w: Tensor[(6, 8), float32], %g: Tensor[(4, 6), float32]) {
      (nn.dense.vjp0(tanh(%x), %w, %g), nn.dense.vjp1(%x, tanh(%w), %g)) }"""
    assert fused(text, Machine(), array(4, 8), array(6, 8), array(4, 6)) == [["nn.dense.vjp0"], ["nn.dense.vjp1"]]


def test_zeros_that_are_read_elsewhere_are_made() -> None:
    text = """def @main(%x: Tensor[(4,), float32], %c: bool) {
      let %z = zeros(shape=[4], dtype="float32");
      let %y = %x + %z;
      if (%c) { (%y, %z) } else { (%z, %y) } }"""
    for c in (True, False):
        fused(text, Machine(), array(4), np.bool_(c))
    assert fused('def @main() { let %a = ones(shape=[4], dtype="float32"); sum(%a) }') != []


def test_what_a_view_reads_is_made() -> None:
    text = """def @main[n: Dim](%x: Tensor[(n, 3), int32]) {
      let %i = arange(start=0, stop=n, dtype="int32"); (%x + expand_dims(%i, axis=1), expand_dims(%i, axis=0)) }"""
    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    fused(text, Machine(), x)
    exe: Any = relay.compile(typed(text), cache=False)
    first, second = exe(x)
    np.testing.assert_array_equal(np.asarray(first), x + np.arange(4)[:, None])
    np.testing.assert_array_equal(np.asarray(second), np.arange(4)[None, :])


def test_zeros_beside_a_product_are_an_operand_of_it() -> None:
    text = """def @main(%w: Tensor[(4, 8), float32]) { nn.dense(zeros(shape=[3, 8], dtype="float32"), %w) }"""
    assert fused(text, Machine(), array(4, 8)) == [[], ["nn.dense"]]


def test_the_cotangent_of_a_sum_is_its_own() -> None:
    text = """def @main(%x: Tensor[(4, 8), float32], %b: Tensor[(8,), float32], %g: Tensor[(4, 8), float32]) {
      (add.vjp0(%x, %b, %g), add.vjp1(%x, %b, %g)) }"""
    module = typed(text)
    after = run(module, NameDims(), DropIdentities())
    assert operators(after) == ["add.vjp1"]
    same_results(module, after, array(4, 8), array(8), array(4, 8))


def test_a_repetition_is_no_identity() -> None:
    text = """def @main(%x: Tensor[(4, 8), float32], %g: Tensor[(1, 8), float32]) { mean.vjp0(%x, %g, axis=[0], keepdims=True) }"""
    assert operators(run(typed(text), NameDims(), DropIdentities())) == ["mean.vjp0"]


def test_axes_of_one_element_come_and_go_as_views() -> None:
    text = """def @main[n: Dim](%x: Tensor[(1, 8), float32], %b: Tensor[(8,), float32], %y: Tensor[(n, 1, 4), float32]) {
      (add.vjp1(%x, %b, %x), transpose(%y, axes=[1, 0, 2]), transpose(%x), transpose(%y, axes=[0, 2, 1]), %x + %x) }"""
    module = typed(text)
    after = run(module, NameDims(), DropIdentities())
    assert operators(after) == ["reshape", "reshape", "reshape", "reshape", "add"]
    same_results(module, after, array(1, 8), array(8), array(3, 1, 4))


def test_an_order_that_changes_is_no_view() -> None:
    text = """def @main(%x: Tensor[(2, 1, 4), float32], %y: Tensor[(1, 4), float32]) {
      (transpose(%x, axes=[2, 1, 0]), strided_slice(%x, begin=[0], end=[1], axes=[0]),
       broadcast_to(%y, shape=[3, 4]), reverse(%y, axis=1)) }"""
    module = typed(text)
    after = run(module, NameDims(), DropIdentities())
    assert operators(after) == operators(run(module, NameDims()))
    same_results(module, after, array(2, 1, 4), array(1, 4))


def _traffic(module: Module) -> int:
    # What is worth recomputing differs from machine to machine.
    options = relay.Options(threads=1, cache=False, workers=1, target="znver4")
    plan = build(as_module(module), options).plan
    return sum(int(p.bytes) for p in plan.kernels if isinstance(p.bytes, int))


GRADIENTS = {
    "norm": "let %m = mean(%x, axis=[0], keepdims=True); let %d = %x - %m;"
    "let %v = mean(%d * %d, axis=[0], keepdims=True); sum(nn.relu(%d * rsqrt(%v + 0.01f)))",
    "gelu": "sum(nn.gelu(%x) * nn.gelu(%x))",
    "chain": "let %a = tanh(%x); let %b = %a * sigmoid(%x); sum(%b * %a, axis=[0])",
    "product": "let %a = nn.relu(nn.dense(%x, %w)); mean(%a * %a)",
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("rows", ["12", "n"])
def test_gradients_keep_their_values(name: str, rows: str) -> None:
    dims = "[n: Dim]" if rows == "n" else ""
    text = f"def @main{dims}(%x: Tensor[({rows}, 24), float32], %w: Tensor[(24, 24), float32]) {{ {GRADIENTS[name]} }}"
    module = relay.value_and_grad(typed(text), argnums=(0, 1) if name == "product" else (0,))
    x, w = array(12, 24), array(24, 24)
    expected: Any = relay.evaluate(module, x, w)
    found: Any = relay.compile(module, cache=False)(x, w)
    for e, f in zip((expected[0], *expected[1]), (found[0], *found[1]), strict=True):
        np.testing.assert_allclose(np.asarray(f), np.asarray(e), rtol=2e-4, atol=2e-5)


def test_a_gradient_moves_less() -> None:
    text = f"def @main(%x: Tensor[(256, 256), float32], %w: Tensor[(24, 24), float32]) {{ {GRADIENTS['norm']} }}"
    module = relay.value_and_grad(typed(text))
    # Least: %x for the mean, the variance, the result and its derivative's sums, and one gradient written; a tensor more or
    # less for each of the sums. Written and read, deviation, square and result alone are three tensors more.
    tensors = _traffic(module) / (256 * 256 * 4)
    assert tensors < 11


def test_an_operand_that_tells_a_size_stays() -> None:
    """The leaf's tensor alone says n, although no element of it is read."""
    text = """
    type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }
    def @fold[n: Dim, m: Dim](%t: Tree[Tensor[(n, 4), float32]], %y: Tensor[(m,), float32]) -> Tensor[(n, m), float32] {
      match (%t) {
        Leaf(%x) => tanh(expand_dims(max(zeros_like(%x), axis=[1]), axis=1) + %y),
        Node(%l, %r) => @fold(%r, %y),
      }
    }
    def @main[n: Dim, m: Dim](%x: Tensor[(n, 4), float32], %y: Tensor[(m,), float32]) -> Tensor[(n, m), float32] {
      @fold(Node(Leaf(%x), Leaf(%x)), %y)
    }"""
    module = relay.parse('#[version = "0.0.5"]\n' + text)
    x, y = np.ones((3, 4), np.float32), np.ones(2, np.float32)
    np.testing.assert_allclose(
        np.asarray(relay.compile(module)(x, y)), np.asarray(relay.evaluate(module, x, y)), rtol=1e-6
    )
