"""Depth, memory and time: what programs may use, and what they use of the machine's."""

from __future__ import annotations

import gc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.executable.errors import RecursionLimitError, TimeLimitError
from relay.ir.diagnostics import OutOfMemoryError, RelayError

EXECUTORS = ("vm", "aot")
HEAD = '#[version = "0.0.5"]\n'


def number(value: object) -> int:
    return int(np.asarray(value))


def compiled(text: str, executor: str, **options: Any) -> relay.Executable:
    return relay.compile(HEAD + text, executor=executor, **options)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


COUNT = """
def @count(%n: int64, %total: int64) -> int64 {
  if (%n == 0i64) { %total } else { @count(%n - 1i64, %total + %n) }
}
def @main(%n: int64) -> int64 { @count(%n, 0i64) }
"""


def test_ten_million_tail_calls_take_no_stack(executor: str) -> None:
    exe = compiled(COUNT, executor)
    exe.program.set_limits(1 << 16)
    assert number(exe(10_000_000)) == 10_000_000 * 10_000_001 // 2


DEEP = """
type Chain { End, Left(Chain, int64), Right(int64, Chain) }
def @build(%n: int64, %made: Chain) -> Chain {
  if (%n == 0i64) { %made } else { @build(%n - 1i64, if (%n % 2i64 == 0i64) { Left(%made, %n) } else { Right(%n, %made) }) }
}
def @sum(%c: Chain) -> int64 {
  match (%c) {
    End => 0i64,
    Left(%rest, %n) => @sum(%rest) + %n,
    Right(%n, %rest) => %n + @sum(%rest),
  }
}
def @main(%n: int64) -> int64 { @sum(@build(%n, End)) }
def @grow(%n: int64) -> Chain { @build(%n, End) }
""".replace("%n % 2i64 == 0i64", "floor_mod(%n, 2i64) == 0i64")


def test_a_tree_a_million_deep_is_built_folded_and_freed(executor: str) -> None:
    exe = compiled(DEEP, executor, entries=("main", "grow"))
    n = 1_000_000
    before = _runtime.live_objects()
    assert number(exe(n)) == n * (n + 1) // 2
    tree = exe.program.run("grow", (np.int64(n),))
    assert (
        _runtime.live_objects()["adt"] >= before["adt"] + n
    )  # (leaves without fields are one object, which is always there)
    del tree
    assert _runtime.live_objects() == before


LIST = """
import prelude
def @build(%n: int64, %made: List[int64]) -> List[int64] {
  if (%n == 0i64) { %made } else { @build(%n - 1i64, Cons(%n, %made)) }
}
def @main(%n: int64) -> int64 {
  @foldr(fn(%x: int64, %rest: int64) -> int64 { %x - %rest }, 0i64, @build(%n, Nil))
}
"""


def test_a_list_of_a_million_is_folded_from_its_end(executor: str) -> None:
    assert number(compiled(LIST, executor)(1_000_000)) == -500_000


def test_a_limit_of_depth(executor: str) -> None:
    exe = compiled(DEEP, executor)
    with pytest.raises(RecursionLimitError, match="recursion limit: 100 calls are open at the call of ") as raised:
        exe.run("main", 1_000, limits=relay.Limits(depth=100))
    assert "\n  in sum at <text>:" in str(raised.value)
    assert number(exe.run("main", 50, limits=relay.Limits(depth=100))) == 1275
    tail = compiled(COUNT, executor)
    assert number(tail.run("main", 1_000, limits=relay.Limits(depth=3))) == 500_500


def test_a_limit_of_the_control_stack(executor: str) -> None:
    exe = compiled(DEEP, executor)
    exe.program.set_limits(1 << 16)
    with pytest.raises(RecursionLimitError, match="the control stack of 65536 bytes is full at the call of sum"):
        exe(100_000)
    assert number(exe(10)) == 55


def test_a_limit_of_memory(executor: str) -> None:
    exe = compiled(DEEP, executor)
    before = _runtime.live_objects()
    with pytest.raises(OutOfMemoryError, match="memory limit: the run would hold more than 100000 bytes"):
        exe.run("main", 1_000_000, limits=relay.Limits(memory=100_000))
    assert _runtime.live_objects() == before
    assert number(exe.run("main", 100, limits=relay.Limits(memory=100_000))) == 5050
    assert number(exe(100)) == 5050


def test_no_limit_of_memory_leaves_something_behind(executor: str) -> None:
    """Wherever it strikes: before what holds a value is made, the value is held by nothing else."""
    text = """
    def @main(%x: Tensor[(9,), float32]) {
      let %r = ref(%x * 2f);
      %r := !%r + %x;
      (topk(!%r, k=4), fn (%y: Tensor[(9,), float32]) -> Tensor[(9,), float32] { !%r + %y }, %r)
    }
    """
    exe, x = compiled(text, executor), np.zeros(9, np.float32)
    exe(x)
    before, struck = _runtime.live_objects(), 0
    for memory in range(8, 1_000, 8):
        try:
            exe.run("main", x, limits=relay.Limits(memory=memory))
        except OutOfMemoryError:
            struck += 1
        assert _runtime.live_objects() == before, memory
    assert 20 < struck < 120


def test_memory_that_is_given_back_is_not_counted(executor: str) -> None:
    text = """
    def @main(%n: int64, %x: Tensor[(1000,), float32]) -> Tensor[(1000,), float32] {
      if (%n == 0i64) { %x } else { @main(%n - 1i64, cumsum(%x)) }
    }
    """
    exe = compiled(text, executor)
    x = np.zeros(1000, np.float32)
    limit = relay.Limits(memory=20_000)
    np.testing.assert_array_equal(exe.run("main", 1_000, x, limits=limit), x)
    with pytest.raises(OutOfMemoryError):
        exe.run("main", 2, x, limits=relay.Limits(memory=2_000))


def test_a_limit_of_time(executor: str) -> None:
    exe = compiled(COUNT, executor, limits=relay.Limits(seconds=0.05))
    with pytest.raises(TimeLimitError, match=r"time limit: the run took longer than 0\.05 s"):
        exe(10**15)
    assert number(exe(10)) == 55
    assert number(exe.run("main", 10, limits=relay.Limits(seconds=100))) == 55


@pytest.mark.parametrize("seconds", [1e-300, 1e-10, Fraction(1, 10**400), 1e-9])
def test_the_shortest_limit_of_time_is_one(seconds: float) -> None:
    exe = compiled("def @main(%n: int64) -> int64 { @main(%n + 1i64) }", "vm")
    if float(seconds) == 0:
        with pytest.raises(RelayError, match="the limit seconds must be greater than 0"):
            relay.Limits(seconds=seconds)
        return
    with pytest.raises(TimeLimitError):
        exe.run("main", 0, limits=relay.Limits(seconds=seconds))


def test_what_is_no_limit_is_refused() -> None:
    exe = compiled(COUNT, "vm")
    with pytest.raises(RelayError, match=r"limits must be relay.Limits\(...\), not 3"):
        exe.run("main", 1, limits=3)  # type: ignore[arg-type]
    with pytest.raises(RelayError, match=r"limits must be relay.Limits\(...\), not None"):
        exe.limits = None  # type: ignore[assignment]
    with pytest.raises(RelayError, match="the limit seconds must be greater than 0"):
        relay.Limits(seconds=10**400)


def test_limits_are_positive() -> None:
    with pytest.raises(RelayError, match="the limit seconds must be greater than 0, not 0"):
        relay.Limits(seconds=0)
    with pytest.raises(RelayError, match="the limit memory must be a whole number of at least 1"):
        relay.Limits(memory="1G")  # type: ignore[arg-type]
    for value in (2.5, 10**30, -1, True, float("nan")):
        with pytest.raises(RelayError, match="the limit depth must be a whole number of at least 1"):
            relay.Limits(depth=value)  # type: ignore[arg-type]


def test_threads_of_a_loaded_executable_are_a_number(tmp_path: Path) -> None:
    compiled(COUNT, "vm").save(tmp_path / "count.rlx")
    for threads in (0, -5, "x", 2.5, 10**20):
        with pytest.raises(RelayError, match="threads must be a whole number of at least 1"):
            relay.load(tmp_path / "count.rlx", threads=threads)  # type: ignore[arg-type]


def test_calls_of_random_lengths_do_not_grow(executor: str) -> None:
    text = """
    def @main[n: Dim](%x: Tensor[(n, 8), float32]) -> Tensor[(8,), float32] { sum(tanh(%x) * %x, axis=[0]) }
    """
    exe = compiled(text, executor)
    random = np.random.default_rng(0)
    data = random.standard_normal((400, 8)).astype(np.float32)

    def calls(count: int) -> None:
        for n in random.integers(1, 400, count):
            exe(data[:n])

    calls(1_000)
    gc.collect()
    before, objects = resident(), _runtime.live_objects()
    calls(9_000)
    gc.collect()
    assert _runtime.live_objects() == objects
    assert resident() <= before + (2 << 20)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "size",
    ["n * 576460752303423488", "n * n * n * n * n * n * n * n * n * n * n * n * n", "n * 288230376151711744 * 2 - 1"],
)
def test_a_size_that_no_integer_holds(executor: str, size: str) -> None:
    """It is no other number: one would be less memory than what is written."""
    exe = compiled(f"def @main[n: Dim](%x: Tensor[(n,), float32]) {{ ones(shape=[Dim[{size}]]) }}", executor)
    with pytest.raises(RelayError, match="a size is more than int64 holds"):
        exe(np.ones(32, np.float32))
