"""Where the time of a program goes, kernel by kernel, against what the machine can do.

The runtime records every call of a kernel with its sizes, and every piece that a thread ran for it; the compiler has left with each
kernel how much arithmetic and traffic it is (`relay.plan.work`), to be evaluated on those sizes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relay._runtime import available_threads
from relay.executable.program import Executable
from relay.ir.diagnostics import RelayError
from relay.ir.record import record
from relay.lower.work import evaluate
from relay.view.limits import Limits
from relay.view.timing import Timing, summary

# The runtime's Event (runtime/include/relay/profile.h).
EVENT: Final = np.dtype(
    [("kind", "i4"), ("kernel", "i4"), ("worker", "i4"), ("run", "i4"), ("begin", "i8"), ("end", "i8"), ("sizes", "i8")]
)
RUN, CALL, PIECE = 0, 1, 2
_MOST_CALLS = 200_000  # that one profile records
# Recording may cost so much of the time of all runs (the bar is 2 %): of a program whose runs it costs more, fewer are recorded.
_MOST_COST: Final = 0.015
_FEWEST_RECORDED: Final = 1 / 256


@record(frozen=True, slots=True)
class Row:
    """A kernel, over all recorded runs: ``seconds`` of wall-clock time in its calls, and the arithmetic and bytes these calls were at
    the least. ``parallel``: seconds of all threads in its parallel pieces. ``floor``: the least seconds that the machine's limits
    allow for that (0 without limits)."""

    name: str
    schedule: str
    calls: int
    seconds: float
    flops: float
    bytes: float
    parallel: float
    floor: float


@record(frozen=True, slots=True)
class Profile:
    """``rows`` by falling time. ``seconds`` is the time of all ``runs``, ``outside`` the part of it in no kernel; ``plain`` times runs
    that were not recorded, between the others, and ``recorded`` those that were: the difference is what recording costs each."""

    rows: tuple[Row, ...]
    runs: int
    seconds: float
    outside: float
    plain: Timing
    recorded: Timing
    threads: int
    dropped: int
    limits: Limits | None
    events: npt.NDArray[Any] = field(repr=False)
    names: tuple[str, ...] = field(repr=False)

    @property
    def cost(self) -> float:
        """What recording cost, as a part of the time of all runs without it."""
        each = max(0.0, self.recorded.median / self.plain.median - 1)
        return each * self.recorded.turns / (self.recorded.turns + self.plain.turns)

    def table(self, most: int = 30) -> str:
        """For people: times of one run."""
        out = [
            f"{'kernel':52} {'schedule':18} {'calls':>6} {'us':>9} {'share':>6} {'GFLOP/s':>8} {'GB/s':>7} {'of limit':>8}"
        ]
        for r in self.rows[:most]:
            limit = f"{r.floor / r.seconds:8.0%}" if r.floor and r.seconds else f"{'':8}"
            out.append(
                f"{_short(r.name):52} {r.schedule[:18]:18} {r.calls / self.runs:6.4g} {r.seconds / self.runs * 1e6:9.2f} "
                f"{_part(r.seconds, self.seconds):6.1%} {_rate(r.flops, r.seconds):8.1f} {_rate(r.bytes, r.seconds):7.1f} {limit}"
            )
        rest = self.rows[most:]
        if rest:
            spent = sum(r.seconds for r in rest)
            out.append(f"{f'{len(rest)} more':78} {spent / self.runs * 1e6:9.2f} {_part(spent, self.seconds):6.1%}")
        inside = sum(r.seconds for r in self.rows)
        flops, size, floor = (sum(getattr(r, k) for r in self.rows) for k in ("flops", "bytes", "floor"))
        calls = sum(r.calls for r in self.rows) / self.runs
        out.append(
            f"{'in kernels':71} {calls:6.4g} {inside / self.runs * 1e6:9.2f} {_part(inside, self.seconds):6.1%} "
            f"{_rate(flops, inside):8.1f} {_rate(size, inside):7.1f} "
            + (f"{_part(floor, inside):8.0%}" if floor else "")
        )
        out.append(
            f"{'outside of kernels':78} {self.outside / self.runs * 1e6:9.2f} {_part(self.outside, self.seconds):6.1%}"
        )
        each = self.recorded.median / self.plain.median - 1
        out.append(
            f"{self.runs} runs recorded on {self.threads} thread(s), {self.seconds / self.runs * 1e6:.2f} us each (median "
            f"{self.recorded.median * 1e6:.2f} us as called from Python; {self.plain.median * 1e6:.2f} us without recording: {each:+.1%})"
        )
        out.append(f"between {self.plain.turns} that were not: of the time of all runs recording was {self.cost:.1%}")
        if self.dropped:
            out.append(f"{self.dropped} events were left out: the record was full")
        return "\n".join(out)

    def json(self) -> dict[str, Any]:
        """For programs: seconds, operations and bytes over all runs."""
        plain = {k: getattr(self, k) for k in ("runs", "seconds", "outside", "threads", "dropped")}
        timings = {"plain": asdict(self.plain), "recorded": asdict(self.recorded)}
        return {
            **plain,
            **timings,
            "cost": self.cost,
            "kernels": [asdict(r) for r in self.rows],
            "limits": _maybe(self.limits),
        }


def profile(
    exe: Executable,
    *args: object,
    entry: str = "main",
    seconds: float = 1.0,
    threads: int | None = None,
    limits: Limits | None = None,
    requests: Sequence[Sequence[object]] | None = None,
) -> Profile:
    """Run ``entry`` on ``args`` for about ``seconds``, every other run recorded, or fewer where recording takes more of the time than a
    hundredth or two; with ``requests`` (and no ``args``) a run is a `run_batch` of these. ``threads`` is how many ``exe`` may use (None:
    all); ``limits`` are the machine's (`machine_limits`). Recordings of ``exe`` made before are dropped."""
    if requests is not None and args:
        raise RelayError("a profile is of a call with arguments or of a batch of requests, not of both")
    program = exe.program
    once = partial(exe.run, entry, *args) if requests is None else partial(exe.run_batch, entry, requests)
    once()
    plain: list[float] = []
    recorded: list[float] = []
    program.reset_statistics()
    calls_each = 0
    between = 1  # runs that are not recorded, for each that is
    end = time.perf_counter() + seconds
    try:
        while len(recorded) < 5 or (time.perf_counter() < end and calls_each * len(recorded) < _MOST_CALLS):
            for times, on in (*[(plain, False)] * between, (recorded, True)):
                program.profile(on)
                start = time.perf_counter()
                once()
                times.append(time.perf_counter() - start)
            if len(recorded).bit_count() == 1:  # 1, 2, 4, 8 ...
                between = runs_between(summary(plain).median, summary(recorded).median)
            calls_each = calls_each or sum(calls for calls, _ in program.kernel_statistics().values())
    finally:
        program.profile(False)
    raw, numbers, dropped = program.recorded()
    events, sizes = np.frombuffer(raw, EVENT), np.frombuffer(numbers, np.int64)
    rows = tuple(sorted(_rows(exe, events, sizes, limits), key=lambda r: -r.seconds))
    whole = _seconds(events[events["kind"] == RUN])
    inside = sum(r.seconds for r in rows)
    names = tuple(name for name, _, _ in program.kernels)
    return Profile(
        rows, len(recorded), whole, max(0.0, whole - inside), summary(plain), summary(recorded),
        threads or available_threads(), dropped, limits, events, names,
    )  # fmt: skip


def runs_between(plain: float, recorded: float) -> int:
    """How many runs to leave between two that are recorded, so that recording costs little of all of them."""
    part = _MOST_COST / max(recorded / plain - 1, _MOST_COST)
    return math.ceil(1 / max(part, _FEWEST_RECORDED)) - 1 or 1


def _seconds(events: npt.NDArray[Any]) -> float:
    return float((events["end"] - events["begin"]).sum()) * 1e-9


def _rows(exe: Executable, events: npt.NDArray[Any], sizes: npt.NDArray[np.int64], limits: Limits | None) -> list[Row]:
    calls, pieces = events[events["kind"] == CALL], events[events["kind"] == PIECE]
    out: list[Row] = []
    for number, (name, count, info) in enumerate(exe.program.kernels):
        own = calls[calls["kernel"] == number]
        if not len(own):
            continue
        known: Mapping[str, Any] = json.loads(info) if info else {}
        flops = size = floor = 0.0
        # Equal sizes are evaluated once: a loop may call a kernel a hundred thousand times.
        shapes = sizes[own["sizes"][:, None] + np.arange(count)] if count else np.zeros((len(own), 0), np.int64)
        for shape, times in zip(*np.unique(shapes, axis=0, return_counts=True), strict=True):
            each = [evaluate(known.get(what), shape.tolist()) for what in ("flops", "bytes")]
            flops += each[0] * int(times)
            size += each[1] * int(times)
            floor += limits.floor(*each) * int(times) if limits is not None else 0.0
        parallel = _seconds(pieces[pieces["kernel"] == number])
        out.append(Row(name, str(known.get("schedule", "")), len(own), _seconds(own), flops, size, parallel, floor))
    return out


def _short(name: str) -> str:
    return name if len(name) <= 52 else name[:49] + "..."


def _part(a: float, b: float) -> float:
    return a / b if b else 0.0


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds / 1e9 if seconds else 0.0


def _maybe(limits: Limits | None) -> dict[str, Any] | None:
    return asdict(limits) if limits is not None else None
