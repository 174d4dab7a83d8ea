"""What the runtime records while profiling is on."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import relay
from relay.lower.work import evaluate

EVENT = np.dtype(
    [("kind", "i4"), ("kernel", "i4"), ("worker", "i4"), ("run", "i4"), ("begin", "i8"), ("end", "i8"), ("sizes", "i8")]
)
RUN, CALL, PIECE = 0, 1, 2
TEXT = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, 64), float32], %y: Tensor[(m, 64), float32], %w: Tensor[(256, 64), float32]) {
  (nn.dense(%x, %w), nn.softmax(%y))
}"""


def compiled(threads: int) -> relay.Executable:
    exe = relay.compile(TEXT, threads=threads, cache=False)
    exe(*arguments(3, 5))  # runs before profiling is on leave nothing
    return exe


def arguments(n: int, m: int) -> tuple[object, ...]:
    return np.ones((n, 64), np.float32), np.ones((m, 64), np.float32), np.ones((256, 64), np.float32)


def test_calls_and_sizes() -> None:
    exe = compiled(1)
    exe.program.profile(True)
    for n, m in ((2, 9), (300, 4)):
        exe(*arguments(n, m))
    exe.program.profile(False)
    exe(*arguments(7, 7))
    raw, sizes, dropped = exe.program.recorded()
    events, numbers = np.frombuffer(raw, EVENT), np.frombuffer(sizes, np.int64)
    assert dropped == 0
    runs, calls = events[events["kind"] == RUN], events[events["kind"] == CALL]
    assert len(runs) == 2 and len(calls) == 4 and list(runs["run"]) == [0, 1]
    seen = set()
    for call in calls:
        run = runs[call["run"]]
        assert run["begin"] <= call["begin"] <= call["end"] <= run["end"]
        name, count, info = exe.program.kernels[call["kernel"]]
        assert count == 1
        size = int(numbers[call["sizes"]])
        seen.add(("dense" in name, size))
        known = json.loads(info)
        if "dense" in name:
            assert evaluate(known["flops"], [size]) == 2 * size * 64 * 256
            assert evaluate(known["bytes"], [size]) == 4 * (size * 64 + 256 * 64 + size * 256)
    assert seen == {(True, 2), (True, 300), (False, 9), (False, 4)}
    totals = exe.program.kernel_statistics()
    assert sorted(calls for calls, _ in totals.values()) == [2, 2]
    exe.program.reset_statistics()
    assert exe.program.recorded() == (b"", b"", 0)


def test_pieces_of_threads() -> None:
    exe = compiled(2)
    exe.program.profile(True)
    for _ in range(20):
        exe(*arguments(3000, 1))
    events = np.frombuffer(exe.program.recorded()[0], EVENT)
    pieces, calls = events[events["kind"] == PIECE], events[events["kind"] == CALL]
    assert len(pieces) >= 40 and set(pieces["worker"]) <= {0, 1}
    for piece in pieces:
        inside = (calls["run"] == piece["run"]) & (calls["kernel"] == piece["kernel"])
        (call,) = calls[inside]
        assert call["begin"] <= piece["begin"] <= piece["end"] <= call["end"]


def test_threads_record_their_own_runs() -> None:
    exe = compiled(2)
    exe.program.profile(True)
    threads = [
        threading.Thread(target=lambda: [exe(*arguments(600, 2)) for _ in range(50)]) for _ in range(4)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = np.frombuffer(exe.program.recorded()[0], EVENT)
    assert sorted(events[events["kind"] == RUN]["run"]) == list(range(200))
    assert np.bincount(events[events["kind"] == CALL]["run"]).tolist() == [2] * 200


def test_a_failed_run_is_recorded() -> None:
    exe = relay.compile(
        """#[version = "0.0.5"]
        def @f(%x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { exp(@f(exp(%x))) }
        def @main(%x: Tensor[(3,), float32]) { @f(%x) }
        """,
        cache=False,
    )
    exe.program.set_limits(1 << 16)
    exe.program.profile(True)
    with pytest.raises(relay.RelayError, match="recursion limit"):
        exe(np.ones(3, np.float32))
    events = np.frombuffer(exe.program.recorded()[0], EVENT)
    assert (events["kind"] == RUN).sum() == 1 and (events["kind"] == CALL).sum() > 10
