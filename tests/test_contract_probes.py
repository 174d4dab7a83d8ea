"""The probes that have broken designs like this one before: each runs in the virtual machine and equals the interpreter."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import _runtime, te
from relay.ir.value import AdtValue

Array = npt.NDArray[np.generic]
HEADER = '#[version = "0.0.5"]\n'


def _random(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _live() -> int:
    """Objects of the runtime that are alive."""
    return sum(_runtime.live_objects().values())


def _equal(found: object, expected: object) -> None:
    """The same structure with equal tensors (float32 rounding aside)."""
    if isinstance(expected, AdtValue):
        assert isinstance(found, AdtValue) and found.constructor == expected.constructor
        _equal(found.fields, expected.fields)
    elif isinstance(expected, tuple | list):
        assert isinstance(found, Sequence) and type(found) is type(expected) and len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            _equal(f, e)
    elif expected is None:
        assert found is None
    else:
        a, b = np.asarray(found), np.asarray(expected)
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=2e-5, atol=2e-6)


def _both(text: str, *args: object) -> object:
    """Run compiled and interpreted at every optimisation level; they agree. Gives the compiled result."""
    module = relay.parse(HEADER + text)
    expected = relay.evaluate(module, *args)
    found: object = None
    for level in (0, 3):
        found = relay.compile(module, opt_level=level)(*args)
        _equal(found, expected)
    return found


TREE = """
type Tree { Leaf(Tensor[(4,), float32]), Node(Tree, Tree), }
def @cell(%lh: Tensor[(4,), float32], %lc: Tensor[(4,), float32], %rh: Tensor[(4,), float32], %rc: Tensor[(4,), float32],
          %w: Tensor[(20, 8), float32]) -> (Tensor[(4,), float32], Tensor[(4,), float32]) {
  let %x = expand_dims(concatenate((%lh, %rh), axis=0), axis=0);
  let %gates = split(nn.dense(%x, %w), indices_or_sections=5, axis=1);
  let %i = sigmoid(squeeze(%gates.0, axis=[0]));
  let %fl = sigmoid(squeeze(%gates.1, axis=[0]));
  let %fr = sigmoid(squeeze(%gates.2, axis=[0]));
  let %o = sigmoid(squeeze(%gates.3, axis=[0]));
  let %u = tanh(squeeze(%gates.4, axis=[0]));
  let %c = %i * %u + %fl * %lc + %fr * %rc;
  (%o * tanh(%c), %c)
}
def @tree(%t: Tree, %w: Tensor[(20, 8), float32]) -> (Tensor[(4,), float32], Tensor[(4,), float32]) {
  match (%t) {
    Leaf(%x) => (tanh(%x), %x),
    Node(%l, %r) => {
      let %a = @tree(%l, %w);
      let %b = @tree(%r, %w);
      @cell(%a.0, %a.1, %b.0, %b.1, %w)
    },
  }
}
def @main(%t: Tree, %w: Tensor[(20, 8), float32]) -> Tensor[(4,), float32] { @tree(%t, %w).0 }
"""


def test_tree_lstm_over_a_data_type() -> None:
    module = relay.parse(HEADER + TREE)
    tree = module.adt("Tree")
    random = np.random.default_rng(1)

    def build(leaves: int) -> AdtValue:
        if leaves == 1:
            return tree.Leaf(random.standard_normal(4).astype(np.float32))
        left = int(random.integers(1, leaves))
        return tree.Node(build(left), build(leaves - left))

    value = build(19)
    weights = _random(20, 8)
    _equal(relay.compile(module)(value, weights), relay.evaluate(module, value, weights))


def test_unique_has_a_shape_that_depends_on_data() -> None:
    text = """
    def @main(%x: Tensor[(?,), int32]) -> Tensor[(?,), int32] {
      let %u = unique(%x);
      %u + %u
    }"""
    found = np.asarray(_both(text, np.array([3, 1, 3, 2, 1], np.int32)))
    np.testing.assert_array_equal(found, [2, 4, 6])


def test_an_upper_bound_operator() -> None:
    @relay.operator("probe.prefix_while_positive", shape_mode="upper_bound")
    def prefix(data: te.Tensor) -> tuple[te.Tensor, ...]:
        """The elements before the first that is not positive."""
        n = data.shape[0]
        k = te.reduce_axis(n)
        kept = te.compute((n,), lambda i: data[i], "kept")
        first = te.select(data[k] > 0.0, te.size(n), te.cast(k, "int64"))
        count = te.compute((1,), lambda _: te.min(first, k), "count")
        return kept, count

    text = "def @main[n: Dim](%x: Tensor[(n,), float32]) -> Tensor[(?,), float32] { negative(probe.prefix_while_positive(%x)) }"
    found = np.asarray(_both(text, np.array([2, 1, 5, -1, 7], np.float32)))
    np.testing.assert_array_equal(found, [-2, -1, -5])


def test_a_kernel_with_two_outputs() -> None:
    @relay.operator("probe.mean_and_square")
    def both(data: te.Tensor) -> tuple[te.Tensor, ...]:
        """The sum and the sum of squares of each row."""
        k = te.reduce_axis(data.shape[1])
        return te.compute_many(data.shape[:1], lambda i: (te.sum(data[i, k], k), te.sum(data[i, k] * data[i, k], k)))

    text = """
    def @main[n: Dim](%x: Tensor[(n, 7), float32]) -> (Tensor[(n,), float32], Tensor[(n,), float32]) {
      let %r = probe.mean_and_square(%x);
      (%r.1, %r.0 + %r.1)
    }"""
    _both(text, _random(5, 7))


def test_outputs_that_are_reductions_of_their_own() -> None:
    """Over other variables, of another number and size, and none."""

    @relay.operator("probe.sums_of_several_kinds")
    def several(data: te.Tensor) -> tuple[te.Tensor, ...]:
        n, m = data.shape
        k, i = te.reduce_axis(m), te.reduce_axis(n)

        def bodies(r: te.Scalar) -> list[te.Scalar]:
            return [
                te.sum(data[r, k], k),
                te.max(data[i, 0] * data[r, 0], i),
                data[r, 0] + te.prod(data[r, k], k),
                te.any(data[i, k] > data[r, 0], (i, k)),
            ]

        return te.compute_many(data.shape[:1], bodies)

    text = """
    def @main[n: Dim](%x: Tensor[(n, 3), float32]) {
      let %r = probe.sums_of_several_kinds(%x);
      (%r.0 + %r.1, %r.2, %r.3)
    }"""
    for n in (0, 1, 5):
        _both(text, _random(n, 3))


def test_a_kernel_that_needs_workspace() -> None:
    text = """
    def @main[n: Dim, m: Dim](%x: Tensor[(n, m), float32]) -> Tensor[(n, m), float32] {
      nn.softmax(exp(%x) * %x, axis=-1)
    }"""
    _both(text, _random(3, 40000))


def test_an_operand_read_through_an_index_tensor() -> None:
    text = """
    def @main[n: Dim](%table: Tensor[(10, 6), float32], %at: Tensor[(n,), int32]) -> Tensor[(n, 6), float32] {
      tanh(take(%table, %at, axis=0)) * 2f
    }"""
    _both(text, _random(10, 6), np.array([3, 0, 9, 3], np.int32))


def test_an_int4_tensor() -> None:
    text = """
    def @main[n: Dim](%x: Tensor[(n,), int4]) -> Tensor[(n,), int4] {
      let %y = cast(%x, dtype="int32") * 3;
      cast(clip(%y, a_min=-8.0, a_max=7.0), dtype="int4")
    }"""
    _both(text, np.array([-8, -1, 0, 1, 2, 7, 3], ml_dtypes.int4))


def test_a_donated_argument_is_updated_in_place() -> None:
    exe = relay.compile(
        relay.parse(HEADER + "def @main[n: Dim](%x: Tensor[(n,), float32]) -> Tensor[(n,), float32] { %x * 2f }")
    )
    mine = relay.Tensor.from_numpy(np.arange(1000, dtype=np.float32), copy=True)
    address = np.asarray(mine).__array_interface__["data"][0]
    kept = exe.run("main", mine)
    assert np.asarray(kept).__array_interface__["data"][0] != address
    del kept
    result = exe.run("main", mine, donate=(0,))
    assert np.asarray(result).__array_interface__["data"][0] == address
    np.testing.assert_array_equal(np.asarray(result), np.arange(1000, dtype=np.float32) * 2)


def test_two_devices() -> None:
    text = """
    def @main[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {
      let %there = device_copy(%x + %x, device="fake");
      let %y = nn.softmax(%there * %there);
      let %back = device_copy(exp(%y), device="cpu");
      %back + %x
    }"""
    _both(text, _random(6, 4))


def test_a_long_list_is_built_folded_and_freed() -> None:
    text = """
    type List[A] { Cons(A, List[A]), Nil, }
    def @build(%n: int32, %to: List[Tensor[(2,), float32]], %x: Tensor[(2,), float32]) -> List[Tensor[(2,), float32]] {
      if (%n == 0) { %to } else { @build(%n - 1, Cons(%x * 1f, %to), %x) }
    }
    def @sum(%l: List[Tensor[(2,), float32]], %s: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
      match (%l) { Cons(%h, %t) => @sum(%t, %s + %h), Nil => %s, }
    }
    def @main(%n: int32, %x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
      @sum(@build(%n, Nil, %x), %x)
    }"""
    exe = relay.compile(relay.parse(HEADER + text))
    before = _live()
    found = np.asarray(exe(np.int32(100_000), np.ones(2, np.float32)))
    np.testing.assert_array_equal(found, [100_001, 100_001])
    del found
    gc.collect()
    assert _live() <= before + 8
    _both(text, np.int32(1000), np.ones(2, np.float32))


def test_a_closure_that_refers_to_itself_is_collected() -> None:
    text = """
    def @main(%n: int32, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
      let %cell = ref(fn (%k: int32, %y: Tensor[(3,), float32]) -> Tensor[(3,), float32] { %y });
      let %loop = fn (%k: int32, %y: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
        if (%k == 0) { %y } else { let %next = !%cell; %next(%k - 1, %y + %x) }
      };
      %cell := %loop;
      %loop(%n, %x)
    }"""
    module = relay.parse(HEADER + text)
    exe = relay.compile(module)
    x = _random(3)
    _equal(exe(np.int32(7), x), relay.evaluate(module, np.int32(7), x))
    before = _live()
    for _ in range(200):
        exe(np.int32(3), x)
    gc.collect()
    assert _live() <= before + 8


@pytest.mark.parametrize("how", ["relay.evaluate(m, np.int32(0))", "relay.compile(m)(np.int32(0))"])
def test_ctrl_c_interrupts(how: str) -> None:
    program = textwrap.dedent(f"""
        import numpy as np, os, signal, threading, relay
        m = relay.parse('#[version = "0.0.5"] def @main(%n: int32) -> int32 {{ @main(%n + 1) }}')
        run = lambda: {how}
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            run()
        except KeyboardInterrupt:
            raise SystemExit(77)
    """)
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert done.returncode in (77, 128 + signal.SIGINT), done.stderr


def test_an_operator_of_six_lines() -> None:
    @relay.operator("probe.hard_swish")
    def hard_swish(data: te.Tensor) -> te.Tensor:
        """x * clip(x + 3, 0, 6) / 6"""
        clipped = te.compute(data.shape, lambda *i: te.minimum(te.maximum(data[i] + 3.0, 0.0), 6.0))
        return te.compute(data.shape, lambda *i: data[i] * clipped[i] / 6.0, "hard_swish")

    text = """
    def @main[n: Dim](%x: Tensor[(n, 5), float32]) -> Tensor[(n, 5), float32] { probe.hard_swish(%x) + 1f }"""
    x = _random(4, 5)
    found = np.asarray(_both(text, x))
    np.testing.assert_allclose(found, x * np.clip(x + 3, 0, 6) / 6 + 1, rtol=1e-6)
