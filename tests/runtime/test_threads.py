"""Many threads, one executable: the same results as one thread gives."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import _runtime

PROGRAM = """#[version = "0.0.5"]
import prelude
def @rows[n: Dim](%x: Tensor[(n, 16), float32]) -> Tensor[(n, 16), float32] {
  nn.softmax(tanh(%x) + %x)
}
def @fold(%n: int64, %x: Tensor[(16,), float32]) -> Tensor[(16,), float32] {
  if (%n == 0i64) { %x } else { tanh(@fold(%n - 1i64, %x)) + %x }
}
def @values[n: Dim](%x: Tensor[(n, 16), float32], %n: int64) -> List[Tensor[(n, 16), float32]] {
  if (%n == 0i64) { Nil } else { Cons(%x, @values(%x + %x, %n - 1i64)) }
}
def @fails(%n: int64, %x: Tensor[(16,), float32]) -> Tensor[(16,), float32] {
  match? (if (%n > 3i64) { Some(%x) } else { None }) { Some(%y) => %y }
}
"""
THREADS, CALLS = 32, 10_000
Array = npt.NDArray[np.float32]


def call(exe: relay.Executable, number: int) -> object:
    """One of the mixed calls, its result as bytes (or as the error's text)."""
    random = np.random.default_rng(number % 97)
    kind = number % 4
    x: Array = random.standard_normal((1 + number % 50, 16)).astype(np.float32)
    try:
        if kind == 0:
            return np.asarray(exe.run("rows", x)).tobytes()
        if kind == 1:
            return np.asarray(exe.run("fold", number % 30, x[0])).tobytes()
        if kind == 2:
            found = exe.run("values", x, number % 5)
            assert isinstance(found, list)
            return [np.asarray(v).tobytes() for v in found]
        return np.asarray(exe.run("fails", number % 7, x[0])).tobytes()
    except relay.RelayError as error:
        return str(error)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_threads_give_what_one_thread_gives(executor: str) -> None:
    exe = relay.compile(PROGRAM, executor=executor, entries=("rows", "fold", "values", "fails"))
    period = 4 * 7 * 5 * 97  # numbers that call alike come again after this many at the latest
    numbers = [n % period for n in range(CALLS)]
    expected = [call(exe, n) for n in numbers]
    assert any(isinstance(e, str) for e in expected)
    start = threading.Barrier(THREADS)

    def work(first: int) -> list[object]:
        start.wait()
        return [call(exe, n) for n in numbers[first::THREADS]]

    before = _runtime.live_objects()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS)))
    for first, results in enumerate(found):
        assert results == expected[first::THREADS]
    assert _runtime.live_objects() == before


def test_idle_threads_keep_no_room_that_others_need() -> None:
    """A control stack is 1 GiB of addresses: threads that have run and wait give theirs up where the system has no more."""
    code = """
import resource, threading
import numpy as np, relay
exe = relay.compile('#[version = "0.0.5"]\\ndef @main(%x: Tensor[(3,), float32]) { %x + 1f }', threads=1)
x = np.ones(3, np.float32)
exe(x)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 29), used + (5 << 29)))
stop, done = threading.Event(), []
for _ in range(7):
    ran = threading.Event()
    def work(ran=ran):
        done.append(float(np.asarray(exe(x))[0]))
        ran.set()
        stop.wait()
    threading.Thread(target=work, daemon=True).start()
    assert ran.wait(20)
stop.set()
print(done)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.strip() == str([2.0] * 7), found.stderr


def test_ctrl_c_while_python_looks_for_cycles() -> None:
    """What Python's gc.callbacks raise is dropped: none of Relay's may be where a signal is delivered."""
    script = (
        "import gc, time, relay; relay.compile\n"
        "kept = [[n] for n in range(200_000)]\n"
        "print('go', flush=True)\n"
        "end = time.time() + 20\n"
        "try:\n while time.time() < end: gc.collect()\n print('lost')\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_listen,
        )
        assert child.stdout is not None and child.stdout.readline() == "go\n"
        time.sleep(0.1 + attempt * 0.013)
        child.send_signal(signal.SIGINT)
        said, errors = child.communicate(timeout=60)
        assert said == "interrupted\n" and not errors, errors


def _listen() -> None:
    """What starts in the background may have been told to ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
