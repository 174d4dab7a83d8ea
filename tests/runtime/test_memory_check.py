"""Checked memory: kernels that touch what is not theirs, or make results of what nobody has written, are found out."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import ExecutionError
from relay.pipeline import build
from tests.generator import program
from tests.runtime.programs import object_code

TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(8,), float32], %y: Tensor[(8,), float32]) { tanh(%x) * %y }"""
# A kernel of three operands of eight elements that does something, and then writes zeros to its result.
KERNEL = """
define i32 @wrong(ptr %ctx, ptr %buffers, ptr %dims) {
  %x = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 2
  %out = load ptr, ptr %slot
BODY
  ret i32 0
}
"""
ZEROS = "  store <8 x float> zeroinitializer, ptr %out, align 4\n"
READ = "  %p = getelementptr float, ptr %x, i64 AT\n  %v = load volatile float, ptr %p, align 4\n"
WRITE = "  %p = getelementptr float, ptr %out, i64 AT\n  store float 1.0, ptr %p, align 4\n"
OUTSIDE = {
    "reads behind an input": READ.replace("AT", "8") + ZEROS,
    "reads before an input": READ.replace("AT", "-1") + ZEROS,
    "reads far behind an input": READ.replace("AT", "9000") + ZEROS,
    "writes behind the result": WRITE.replace("AT", "8") + ZEROS,
    "writes before the result": WRITE.replace("AT", "-1") + ZEROS,
}
UNWRITTEN = {
    "adds to what is not there": "  %v = load float, ptr %out, align 4\n  %w = fmul float %v, 2.0\n"
    "  store float %w, ptr %out, align 4\n",
    "reads the stack before it is written": "  %s = alloca [64 x float], align 64\n"
    "  %p = getelementptr float, ptr %s, i64 7\n  %v = load volatile float, ptr %p\n"
    "  store volatile float 1.0, ptr %s\n" + ZEROS + "  store float %v, ptr %out, align 4\n",
    "looks at an address": "  %a = ptrtoint ptr %x to i64\n  %b = and i64 %a, 63\n  %f = sitofp i64 %b to float\n"
    + ZEROS
    + "  store float %f, ptr %out, align 4\n",
    "takes an address for an element": ZEROS + "  store ptr %x, ptr %out, align 4\n",
}
X = np.linspace(-1, 1, 8, dtype=np.float32)


def executable(body: str, executor: str = "vm") -> relay.Executable:
    exe = relay.compile(TEXT, executor=executor, check_memory=True, cache=False, workers=1)
    ((name, _, _),) = exe.program.kernels
    exe.program.replace_kernel(name, object_code(KERNEL.replace("BODY", body)), "wrong")
    return exe


@pytest.mark.parametrize("fault", OUTSIDE)
def test_what_lies_outside(fault: str) -> None:
    exe = executable(OUTSIDE[fault])
    operand = "output 0" if "writes" in fault else "input 0"
    for _ in range(2):  # the run after a fault is a run like any other
        with pytest.raises(ExecutionError, match=rf"outside of {operand}: byte -?\d+ of 32"):
            exe(X, X)


def test_what_lies_outside_of_native_code_s_operands() -> None:
    with pytest.raises(ExecutionError, match="outside of input 0"):
        executable(OUTSIDE["reads behind an input"], "aot")(X, X)


@pytest.mark.parametrize("fault", UNWRITTEN)
def test_what_nobody_has_written(fault: str) -> None:
    with pytest.raises(ExecutionError, match="makes output 0 of what nobody has written"):
        executable(UNWRITTEN[fault])(X, X)


def test_what_a_kernel_leaves_out_is_no_number() -> None:
    made = np.asarray(executable("  store <4 x float> zeroinitializer, ptr %out, align 4\n")(X, X))
    assert (made[:4] == 0).all() and np.isnan(made[4:]).all()


def test_a_workspace_holds_nothing() -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(40, 30), float32]) {
      sum(mean(%x, axis=[0], keepdims=True), axis=[1])
    }"""
    made = build(relay.parse(text), relay.Options(cache=False, workers=1))
    assert any(p.kernel.shared_bytes != 0 for p in made.plan.kernels)
    x = np.random.default_rng(0).standard_normal((40, 30), np.float32)
    exe = relay.Executable.from_bytes(made.image.to_bytes(), 2)
    expected = np.asarray(exe(x))
    exe.check_memory = True
    assert np.asarray(exe(x)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_without_end(dtype: str) -> None:
    """Quarter turns of infinities once were what the stack held: the sign of nan changed from run to run."""
    text = f'#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n,), {dtype}]) {{ (sin(%x), cos(%x), tan(%x)) }}'
    exe = relay.compile(text, check_memory=True, cache=False, workers=1)
    for made in exe(np.array([np.inf, 1, -np.inf, 1e30, np.nan, 0, 3e38], dtype)):
        assert np.isnan(np.asarray(made)).tolist() == [True, False, True, False, True, False, False]


ROUTINES = """#[version = "0.0.5"]
type List { Nil, Cons(float32, List), }
def @sum(%l: List) -> float32 { match (%l) { Nil => 0f, Cons(%x, %r) => %x * 2f + @sum(%r) } }
def @count(%n: int64, %l: Tensor[(?,), int64]) -> Tensor[(?,), int64] {
  if (%n == 0i64) { %l } else { @count(%n - 1i64, append(%l, %n)) }
}
def @main[n: Dim](%x: Tensor[(n, 7), float32], %k: Tensor[(n,), int8]) {
  let %l = Cons(2f, Cons(3f, Nil));
  (sort(%x, axis=0), argsort(%x, is_ascend=False), topk(%x, k=3), topk(%k, k=2, axis=0), unique(%k), nonzero(%x), argwhere(%k),
   non_max_suppression(reshape(take(%x, arange(stop=4, dtype="int64"), axis=1), newshape=[-1, 4]), sum(%x, axis=[1])), @sum(%l),
   @count(20i64, zeros(shape=[0], dtype="int64")))
}
"""


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("n", [0, 1, 5, 300])
def test_routines_stay_inside(executor: str, n: int) -> None:
    random = np.random.default_rng(n)
    x, k = random.standard_normal((n, 7)).astype(np.float32), random.integers(-3, 4, n).astype(np.int8)
    exe = relay.compile(ROUTINES, executor=executor, workers=1)
    expected = leaves(exe(x, k))
    exe.check_memory = True
    assert leaves(exe(x, k)) == expected


@pytest.mark.parametrize("seed", range(12))
def test_generated_programs_stay_inside(seed: int) -> None:
    p = program(seed + 400)
    exe = relay.compile(p.module, cache=False, threads=2)
    expected = exe(*p.args)
    exe.check_memory = True
    assert leaves(exe(*p.args)) == leaves(expected)


def leaves(value: object) -> bytes:
    if isinstance(value, tuple | list):
        return b"".join(leaves(v) for v in value)
    fields = getattr(value, "fields", None)
    return leaves(tuple(fields)) if fields is not None else np.asarray(value).tobytes()
