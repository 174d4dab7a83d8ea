"""Functions that are given known functions, which are still functions of sizes themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay

# The edit distance of two sequences: the inner loop's row grows, so each of its calls is at another size, and the outer loop has it as
# a closure.
EDIT_DISTANCE = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%a: Tensor[(n,), int32], %b: Tensor[(m,), int32]) -> int32 {
  let %n = take(shape_of(%a, dtype="int64"), 0i64, axis=0);
  let %m = take(shape_of(%b, dtype="int64"), 0i64, axis=0);
  let %inner = fn[k: Dim] (%j: int64, %x: int32, %diag: int32, %left: int32, %prev: Tensor[(m,), int32],
      %row: Tensor[(k,), int32]) -> Tensor[(?,), int32] {
    if (%j < %m) {
      let %up = take(%prev, %j, axis=0);
      let %cost = if (take(%b, %j, axis=0) == %x) { %diag } else { %diag + 1 };
      let %v = minimum(%cost, minimum(%up, %left) + 1);
      %inner(%j + 1i64, %x, %up, %v, %prev, concatenate((%row, expand_dims(%v, axis=0)), axis=0))
    } else { %row }
  };
  let %outer = fn (%i: int64, %prev: Tensor[(m,), int32]) -> Tensor[(m,), int32] {
    if (%i < %n) {
      let %i32 = cast(%i, dtype="int32");
      let %row: Tensor[(m,), int32] = %inner(0i64, take(%a, %i, axis=0), %i32, %i32 + 1, %prev, zeros(shape=[0], dtype="int32"));
      %outer(%i + 1i64, %row)
    } else { %prev }
  };
  take(%outer(0i64, cumsum(ones_like(%b), axis=0, dtype="int32")), %m - 1i64, axis=0)
}"""


def distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row = row, [i + 1]
        for j, y in enumerate(b):
            row.append(min(last[j] + (x != y), last[j + 1] + 1, row[j] + 1))
    return row[-1]


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_loop_with_a_growing_row_inside_another(executor: Any) -> None:
    module = relay.parse(EDIT_DISTANCE)
    exe: Any = relay.compile(module, executor=executor, threads=1)
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (4, 7), (9, 3)):
        a, b = rng.integers(0, 3, n).astype("int32"), rng.integers(0, 3, m).astype("int32")
        wanted = distance(a.tolist(), b.tolist())
        assert int(exe(a, b)) == wanted == int(relay.evaluate(module, a, b))  # type: ignore[call-overload]
