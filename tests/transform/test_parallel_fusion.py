"""Products of one input become one: what is joined, what is not, and that the values stay."""

from __future__ import annotations

import numpy as np
import pytest

from relay.interpreter.evaluation import evaluate
from relay.ir.module import Module
from relay.transform import DeadCode, FuseOps, NameDims, ParallelFusion
from relay.typing import infer
from tests.transform.support import kernels, operators, run, typed

RNG = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def bound(text: str, **weights: tuple[int, ...]) -> Module:
    return infer(typed(text).bind({name: array(*shape) for name, shape in weights.items()}))


def joined(module: Module, *inputs: object) -> Module:
    """The module after the pass; its values must be those from before (but for the order in which NumPy adds up products)."""
    after = run(module, NameDims(), ParallelFusion(), DeadCode())
    before, found = np.asarray(evaluate(module, *inputs)), np.asarray(evaluate(after, *inputs))
    np.testing.assert_allclose(found, before, rtol=1e-4, atol=1e-5)
    return after


def test_query_key_and_value() -> None:
    text = """
    def @heads[n: Dim](%x: Tensor[(n, 12), float32]) { transpose(reshape(%x, newshape=[-1, 3, 4]), axes=[1, 0, 2]) }
    def @main[n: Dim](%x: Tensor[(n, 8), float32], %wq: Tensor[(12, 8), float32], %bq: Tensor[(12,), float32],
        %wk: Tensor[(12, 8), float32], %bk: Tensor[(12,), float32], %wv: Tensor[(12, 8), float32], %bv: Tensor[(12,), float32]) {
      let %q = transpose(reshape(nn.bias_add(nn.dense(%x, %wq, units=12), %bq), newshape=[-1, 3, 4]), axes=[1, 0, 2]);
      let %k = transpose(reshape(nn.bias_add(nn.dense(%x, %wk), %bk), newshape=[-1, 3, 4]), axes=[1, 0, 2]);
      let %v = transpose(reshape(nn.bias_add(nn.dense(%x, %wv), %bv), newshape=[-1, 3, 4]), axes=[1, 2, 0]);
      nn.batch_matmul(nn.batch_matmul(%q, %k), %v)
    }"""
    module = bound(text, wq=(12, 8), wk=(12, 8), wv=(12, 8), bq=(12,), bk=(12,), bv=(12,))
    after = joined(module, array(5, 8))
    assert operators(after).count("nn.dense") == operators(after).count("nn.bias_add") == 1
    # The slices are read by the kernels that use them: no kernel only copies.
    assert [k for k in kernels(run(after, FuseOps())) if set(k) <= {"strided_slice", "reshape", "transpose"}] == []


def test_gates_of_a_cell() -> None:
    """Two joint products of equal parts are added as wholes, and parts may differ in size."""
    text = """
    def @main(%x: Tensor[(2, 8), float32], %h: Tensor[(2, 6), float32],
        %w1: Tensor[(6, 8), float32], %w2: Tensor[(6, 8), float32], %u1: Tensor[(6, 6), float32], %u2: Tensor[(6, 6), float32],
        %b1: Tensor[(6,), float32], %b2: Tensor[(6,), float32]) {
      let %i = sigmoid(nn.bias_add(nn.dense(%x, %w1) + nn.dense(%h, %u1), %b1));
      let %g = tanh(nn.bias_add(nn.dense(%x, %w2) + nn.dense(%h, %u2), %b2));
      %i * %g
    }"""
    module = bound(text, w1=(6, 8), w2=(6, 8), u1=(6, 6), u2=(6, 6), b1=(6,), b2=(6,))
    after = joined(module, array(2, 8), array(2, 6))
    names = operators(after)
    assert (names.count("nn.dense"), names.count("add"), names.count("nn.bias_add")) == (2, 1, 1)


def test_parts_of_different_sizes() -> None:
    text = """
    def @main(%x: Tensor[(4, 8), float32], %a: Tensor[(3, 8), float32], %b: Tensor[(5, 8), float32]) {
      concatenate((exp(nn.dense(%x, %a)), exp(nn.dense(%x, %b))), axis=1)
    }"""
    assert operators(joined(bound(text, a=(3, 8), b=(5, 8)), array(4, 8))).count("nn.dense") == 2
    text = text.replace("exp(nn.dense(%x, %a))", "transpose(nn.dense(%x, %a))").replace("axis=1", "axis=0")
    text = text.replace("exp(nn.dense(%x, %b))", "transpose(nn.dense(%x, %b))")
    assert operators(joined(bound(text, a=(3, 8), b=(5, 8)), array(4, 8))).count("nn.dense") == 1


def test_convolutions_by_channels() -> None:
    text = """
    def @main(%x: Tensor[(1, 3, 6, 6), float32], %a: Tensor[(4, 3, 3, 3), float32], %b: Tensor[(4, 3, 3, 3), float32]) {
      let %p = nn.conv2d(%x, %a, channels=4, kernel_size=[3, 3], padding=[1, 1]);
      let %q = nn.conv2d(%x, %b, channels=4, kernel_size=[3, 3], padding=[1, 1]);
      nn.relu(%p) + nn.relu(%q)
    }"""
    assert operators(joined(bound(text, a=(4, 3, 3, 3), b=(4, 3, 3, 3)), array(1, 3, 6, 6))).count("nn.conv2d") == 1


@pytest.mark.parametrize(
    "result",
    [
        "(%a, %b)",  # the parts would have to be copied out
        "(exp(%a), tanh(%b))",  # epilogues of the products as they are
        "transpose(%a) + transpose(nn.dense(%a, %square))",  # one product only
    ],
)
def test_what_gains_nothing_is_left_alone(result: str) -> None:
    text = f"""
    def @main(%x: Tensor[(4, 8), float32], %w1: Tensor[(8, 8), float32], %w2: Tensor[(8, 8), float32],
        %square: Tensor[(8, 8), float32]) {{
      let %a = nn.dense(%x, %w1);
      let %b = nn.dense(%x, %w2);
      {result}
    }}"""
    module = bound(text, w1=(8, 8), w2=(8, 8), square=(8, 8))
    after = run(module, NameDims(), DeadCode(), ParallelFusion())
    assert "strided_slice" not in operators(after)


def test_a_part_that_depends_on_another() -> None:
    """Two products of one input, where the bias of the second is made from the first: only the products are joined."""
    text = """
    def @main(%x: Tensor[(4, 8), float32], %w1: Tensor[(8, 8), float32], %w2: Tensor[(8, 8), float32]) {
      let %a = nn.dense(%x, %w1);
      let %c = nn.dense(%x, %w2) + nn.softmax(%a);
      transpose(%a) + transpose(%c)
    }"""
    joined(bound(text, w1=(8, 8), w2=(8, 8)), array(4, 8))


def test_in_branches_and_between_them() -> None:
    """Products in different blocks are not joined; those of one branch are."""
    text = """
    def @main(%x: Tensor[(4, 8), float32], %c: bool, %w1: Tensor[(8, 8), float32], %w2: Tensor[(8, 8), float32]) {
      let %a = nn.dense(%x, %w1);
      if (%c) {
        transpose(nn.dense(%x, %w2)) + transpose(nn.dense(%x, %w1))
      } else { transpose(%a) + transpose(nn.dense(%x, %w2)) }
    }"""
    module = bound(text, w1=(8, 8), w2=(8, 8))
    for flag in (True, False):
        after = joined(module, array(4, 8), np.bool_(flag))
    assert operators(after).count("nn.dense") == 3


def steps(count: int, recurrent: bool = True) -> str:
    """A recurrence over rows of ``x``, unrolled; every step multiplies by the same weights, which are parameters."""
    state = "%h{n}" if recurrent else "%x"
    lines = ['let %h0 = zeros(shape=[2, 64], dtype="float32");']
    for n in range(count):
        here = f"reshape(strided_slice(%x, begin=[{n}], end=[{n + 1}], axes=[0]), newshape=[2, 64])"
        before = f"nn.dense({state.format(n=n)}, %u)" if recurrent else f"tanh({here})"
        lines.append(f"let %h{n + 1} = tanh(nn.dense({here}, %w) + {before});")
    return "".join([
        f"def @main(%x: Tensor[({count}, 2, 64), float32], %w: Tensor[(64, 64), float32], %u: Tensor[(64, 64), float32]) {{",
        *lines, f"%h{count} }}",
    ])  # fmt: skip


def test_the_inputs_of_all_steps() -> None:
    """What does not depend on the state is one product for all steps; the recurrent products stay where they are."""
    after = joined(typed(steps(5)), array(5, 2, 64), array(64, 64), array(64, 64))
    assert operators(after).count("nn.dense") == 1 + 5


def test_products_that_need_each_other() -> None:
    """Parts of one product cannot be arguments of its other parts."""
    text = """def @main(%x: Tensor[(2, 64), float32], %w: Tensor[(64, 64), float32]) {
      let %a = nn.dense(%x, %w);
      let %b = nn.dense(tanh(%a), %w);
      let %c = nn.dense(tanh(%x), %w);
      transpose(%b) + transpose(%c)
    }"""
    joined(typed(text), array(2, 64), array(64, 64))


def test_parts_that_leave_are_worth_a_copy_where_the_shared_operand_is_large() -> None:
    text = """def @main(%x: Tensor[(1, 512), float32], %y: Tensor[(1, 512), float32], %w: Tensor[(512, 512), float32]) {
      (nn.dense(%x, %w), nn.dense(%y, %w))
    }"""
    after = run(typed(text), NameDims(), ParallelFusion(), DeadCode())
    assert operators(after).count("nn.dense") == 1
    inputs = [
        np.full((1, 512), 1.0, np.float32),
        np.full((1, 512), 2.0, np.float32),
        np.full((512, 512), 0.5, np.float32),
    ]
    before, found = evaluate(typed(text), *inputs), evaluate(after, *inputs)
    assert isinstance(before, tuple) and isinstance(found, tuple)
    for a, b in zip(before, found, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(("dims", "n", "m", "products"), [("", 2, 3, 1), ("[n: Dim, m: Dim]", "n", "m", 2)])
def test_rows_of_any_number(dims: str, n: object, m: object, products: int) -> None:
    """A few rows are copied to read a weight once; of an unknown number, which may be large, arithmetic takes longer than reading."""
    text = f"""def @main{dims}(%x: Tensor[({n}, 256), float32], %y: Tensor[({m}, 256), float32], %w: Tensor[(256, 256), float32]) {{
      concatenate((transpose(nn.dense(%x, %w)), transpose(nn.dense(%y, %w))), axis=1)
    }}"""
    after = joined(typed(text), array(2, 256), array(3, 256), array(256, 256))
    assert operators(after).count("nn.dense") == products


@pytest.mark.parametrize(("size", "products"), [(6, 2), (64, 1)])
def test_small_operands_are_not_copied_to_be_shared(size: int, products: int) -> None:
    """What lays them side by side is a kernel of its own, which is all that one product less saves."""
    text = f"""def @main(%x: Tensor[({size}, 1), float32], %p: Tensor[({size}, 3), float32], %f: Tensor[({size}, {size}), float32]) {{
      nn.matmul(transpose(nn.matmul(%f, %x)), nn.matmul(%f, %p))
    }}"""
    after = joined(typed(text), array(size, 1), array(size, 3), array(size, size))
    assert operators(after).count("nn.matmul") == products + 1


def test_weights_of_unknown_sizes_are_not_copied() -> None:
    """A loop would copy them in each iteration."""
    text = """def @main[h: Dim, k: Dim](%x: Tensor[(1, h), float32], %a: Tensor[(k, h), float32], %b: Tensor[(h, h), float32]) {
      nn.softmax(nn.dense(%x, %a)) * sum(nn.dense(%x, %b))
    }"""
    after = joined(typed(text), array(1, 64), array(3, 64), array(64, 64))
    assert operators(after).count("nn.dense") == 2


def test_rows_of_any_number_that_lie_side_by_side() -> None:
    """Constants beside each other cost nothing for any number of rows."""
    text = """def @main[n: Dim](%x: Tensor[(n, 64), float32], %a: Tensor[(32, 64), float32], %b: Tensor[(32, 64), float32]) {
      tanh(nn.dense(%x, %a)) * nn.dense(%x, %b)
    }"""
    after = joined(bound(text, a=(32, 64), b=(32, 64)), array(3, 64))
    assert operators(after).count("nn.dense") == 1


def test_an_operand_that_only_tells_a_type() -> None:
    """The gradient of a product's input does not read the input: side by side the parts would have another type than it tells."""
    text = """
    def @main(%x: Tensor[(8, 12), float32], %g: Tensor[(8, 16), float32], %v: Tensor[(16, 12), float32], %w: Tensor[(16, 12), float32]) {
      nn.dense.vjp0(%x, %v, %g) * nn.dense.vjp0(%x, %w, %g)
    }"""
    after = joined(bound(text, v=(16, 12), w=(16, 12)), array(8, 12), array(8, 16))
    assert operators(after).count("nn.dense.vjp0") == 2


@pytest.mark.parametrize("rows", ["n", "9"])
def test_rows_of_an_operand_that_tells_only_its_type(rows: str) -> None:
    """The cotangent of a cotangent demands as many rows of what it does not read as of what is joined."""
    tensor = f"Tensor[({rows}, 16), float32]"
    calls = [f"nn.dense.vjp0.vjp2.vjp3(%a, %w, %g, %g, %d{k})" for k in range(3)]
    params = ", ".join(f"%{name}: {tensor}" for name in ("a", "g", "d0", "d1", "d2"))
    head = "def @main[n: Dim]" if rows == "n" else "def @main"
    text = f"{head}({params}, %w: Tensor[(16, 16), float32]) {{ {' * '.join(calls)} }}"
    after = joined(bound(text, w=(16, 16)), *(array(9, 16) for _ in range(5)))
    assert operators(after).count("nn.dense.vjp0.vjp2.vjp3") == 1
