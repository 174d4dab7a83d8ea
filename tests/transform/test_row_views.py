"""Slices at a number of the first axis as views: where they are, where they are not, and that nothing is written through them."""

from __future__ import annotations

import numpy as np

import relay
from relay.options import Options
from relay.pipeline import build

HEAD = '#[version = "0.0.5"]\nimport prelude\n'


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype("float32")


def views(text: str) -> int:
    return str(build(relay.typing.infer(relay.parse(HEAD + text)), Options()).module).count("rows.row(")


def check(text: str, *argument_lists: tuple[object, ...]) -> None:
    module = relay.parse(HEAD + text)
    for executor in ("vm", "aot"):
        exe = relay.compile(module, executor=executor, cache=False)
        for arguments in argument_lists:
            found, expected = exe(*arguments), relay.evaluate(module, *arguments)
            np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


EXPERTS = """
def @main[n: Dim, e: Dim, d: Dim](%x: Tensor[(n, d), float32], %w: Tensor[(e, d, d), float32], %order: Tensor[(n,), int32]) {
  @for(0i64, Dim[n], fn (%i: int64, %y: Tensor[(n, d), float32]) -> Tensor[(n, d), float32] {
    nn.dense(%y, take(%w, take(%order, %i, axis=0), axis=0))
  }, %x)
}"""


def test_weights_at_a_number_are_read_where_they_are() -> None:
    assert views(EXPERTS) == 1
    numbers = np.array([2, 0, -7, 9], "int32")  # the nearest ones, where there is none
    check(EXPERTS, (array(4, 16), array(3, 16, 16) / 4, numbers))
    # Weights that are constants, too.
    module = relay.parse(HEAD + EXPERTS)
    w = array(3, 16, 16) / 4
    bound = relay.compile(module.bind({"w": w}), cache=False)(array(4, 16), numbers)
    np.testing.assert_allclose(
        np.asarray(bound), np.asarray(relay.evaluate(module, array(4, 16), w, numbers)), rtol=1e-4, atol=1e-5
    )


def test_a_state_that_is_updated_is_not_held_by_views() -> None:
    text = """
    def @main[n: Dim, d: Dim](%x: Tensor[(n, d, d), float32]) -> Tensor[(n, d, d), float32] {
      @for(1i64, Dim[n], fn (%i: int64, %s: Tensor[(n, d, d), float32]) -> Tensor[(n, d, d), float32] {
        let %before = take(%s, %i - 1i64, axis=0);
        let %next = nn.dense(%before, take(%s, %i, axis=0));
        scatter_nd(%s, expand_dims(expand_dims(%i, axis=0), axis=0), expand_dims(%next + %before, axis=0), mode="update")
      }, %x)
    }"""
    assert views(text) == 0
    check(text, (array(4, 32, 32) / 8,))


def test_a_view_is_not_written_over() -> None:
    text = """
    def @main[n: Dim, d: Dim](%x: Tensor[(n, d, d), float32], %i: int64, %row: Tensor[(1, d), float32]) -> Tensor[(d, d), float32] {
      let %v = take(%x, %i, axis=0);
      let %most = max(nn.dense(%v, %v));
      let %first = tanh(scatter_nd(%v, const([1], (1, 1), int64), %row * %most, mode="update"));
      nn.dense(%first, %v) + take(%x, 0i64, axis=0)
    }"""
    assert views(text) == 1  # the slice at 0 is read where it is added
    check(text, (array(3, 40, 40), np.int64(2), array(1, 40)))


def test_a_result_that_is_a_view_is_a_copy() -> None:
    text = "def @main[n: Dim, d: Dim](%x: Tensor[(n, d, d), float32], %i: int64) { take(%x, %i, axis=0) }"
    x = array(3, 40, 40)
    found = relay.compile(HEAD + text, cache=False)(x, np.int64(1))
    before = x[1].copy()
    x[:] = 0
    np.testing.assert_array_equal(np.asarray(found), before)
