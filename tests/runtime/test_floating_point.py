"""How runs compute with floating-point numbers, whatever their caller has set the processor to."""

from __future__ import annotations

import ctypes
import pickle
import platform
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay._runtime import NativeObject
from relay.codegen.objects import compile_text
from relay.codegen.target import host_target
from relay.executable.program import Executable

Array = npt.NDArray[np.float32]
TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), float32]) -> Tensor[(n,), float32] { %x * 0.5f + tanh(%x) * 0.25f }"""
LEAST = np.finfo(np.float32).tiny  # the least number that is not subnormal
# Some are subnormal, some become so; enough for several threads.
X = np.tile(np.array([LEAST / 4, -LEAST / 4, LEAST, 1.0, 0.0, 3 * LEAST, 2e-45], np.float32), 40_000)
EXACT = (X.astype(np.float64) * 0.75).astype(np.float32)
FLUSHING = 0x8040


@pytest.fixture(params=["vm", "aot"])
def exe(request: pytest.FixtureRequest) -> Executable:
    return relay.compile(TEXT, executor=request.param, threads=2)


def values(exe: Executable) -> Array:
    return np.asarray(exe(X))


def tiny(values: Array) -> Array:
    return np.asarray(values[np.abs(values) < 1e-30])


def is_exact(exe: Executable) -> bool:
    """Whether subnormal results are what they are (to a step: the halves are added)."""
    return bool(np.max(np.abs(tiny(values(exe)) - tiny(EXACT))) <= 3e-45)


def is_flushed(exe: Executable) -> bool:
    """Whether all numbers that are subnormal, and become so, are zero."""
    found = tiny(values(exe))
    return bool(np.all((found == 0) | (np.abs(found) >= LEAST))) and bool(np.any(found != 0))


def test_subnormal_numbers_are_flushed_where_that_is_asked_for(exe: Executable) -> None:
    """Also on threads that began in another run, in the executable that another process gets, and not for longer."""
    assert is_exact(exe) and not exe.flush_subnormals
    exe.flush_subnormals = True
    assert is_flushed(exe) and is_flushed(pickle.loads(pickle.dumps(exe)))
    alone = relay.compile(TEXT, threads=1, flush_subnormals=True)
    assert alone.flush_subnormals
    np.testing.assert_array_equal(values(alone), values(exe))
    exe.flush_subnormals = False
    assert is_exact(exe)


def test_variants_for_frequent_sizes_compute_as_the_program_does() -> None:
    exe = relay.compile(TEXT, hot_sizes=[{"n": len(X)}], flush_subnormals=True)
    assert exe.flush_subnormals and is_flushed(exe)
    exe.flush_subnormals = False
    assert is_exact(exe)


def test_the_option_is_a_flag() -> None:
    with pytest.raises(relay.RelayError, match="flush_subnormals must be True or False, not 1"):
        relay.compile(TEXT, flush_subnormals=1)


@pytest.fixture
def control() -> Iterator[tuple[Callable[[], int], Callable[[int], None]]]:
    """Reads and sets the processor's control register; it is put back."""
    if platform.machine() != "x86_64":
        pytest.skip("the register of x86-64")
    text = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i32 @get() {
  %p = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  %v = load i32, ptr %p
  ret i32 %v
}
define void @put(i32 %v) {
  %p = alloca i32
  store i32 %v, ptr %p
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
"""
    code = NativeObject(compile_text(text, host_target()), "the control register")
    get = ctypes.CFUNCTYPE(ctypes.c_int32)(code.address("get"))
    put = ctypes.CFUNCTYPE(None, ctypes.c_int32)(code.address("put"))
    before = get()
    yield get, put
    put(before)


@pytest.mark.parametrize("setting", [FLUSHING, 0x2000, 0x6000])  # subnormals are zero; down; towards zero
def test_what_the_caller_has_set_changes_nothing(
    exe: Executable, control: tuple[Callable[[], int], Callable[[int], None]], setting: int
) -> None:
    get, put = control
    wanted = values(exe)
    put(get() | setting)
    found = values(exe)
    kept = get() & setting
    put(get() & ~setting)
    assert kept == setting
    np.testing.assert_array_equal(found, wanted)
