"""Timing of several systems beside each other: they take turns, so that what the machine does meanwhile meets all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from relay.ir.record import record

# Before a turn the threads of the system before, which go on waiting busily for a while, are left to park themselves.
PAUSE = 0.02
# Calls of a turn are repeated until it has lasted so long: the clock and a core that wakes up count for little then.
TURN = 2e-3


@record(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median of the turns, and the confidence interval (95 %) of the median."""

    median: float
    low: float
    high: float
    turns: int


def summary(times: list[float]) -> Timing:
    """The median and its interval: order statistics, whatever the distribution (binomial, normal approximation)."""
    ordered = sorted(times)
    n = len(ordered)
    reach = 1.96 * math.sqrt(n) / 2
    low = ordered[max(0, math.floor((n - 1) / 2 - reach))]
    high = ordered[min(n - 1, math.ceil((n - 1) / 2 + reach))]
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Timing(middle, low, high, n)


def interleaved(
    systems: Mapping[str, Callable[[], object]], seconds: float = 1.0, least: int = 5, pause: float | None = None
) -> dict[str, Timing]:
    """Time each system for about ``seconds`` in all, at least ``least`` turns each. Without others to disturb, nobody pauses."""
    wait = pause if pause is not None else PAUSE if len(systems) > 1 else 0.0
    repeats: dict[str, int] = {}
    for name, run in systems.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, math.ceil(TURN / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in systems}
    end = time.perf_counter() + seconds * len(systems)
    while len(times[next(iter(times))]) < least or time.perf_counter() < end:
        for name, run in systems.items():
            if wait:
                time.sleep(wait)
            run()  # brings back what others drove out of the caches
            start = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: summary(found) for name, found in times.items()}
