"""What the machine can do, measured next to what is compared with it (the loops are those of `relay.view.limits`)."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

from relay.codegen.target import host_target
from relay.view import limits


def _runs(run: Callable[[], object], seconds: float) -> list[float]:
    """How long each of some runs takes, in seconds, after one that does not count."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def fastest(run: Callable[[], object], seconds: float) -> float:
    """The shortest of many runs, in seconds: beside the shortest of what is compared with it."""
    return min(_runs(run, seconds))


def usual(run: Callable[[], object], seconds: float) -> float:
    """The median of many runs, in seconds: beside medians, so that clocks that move meet both."""
    return statistics.median(_runs(run, seconds))


@functools.cache
def multiplying(threads: int) -> tuple[float, Callable[[], object]]:
    """Multiply-adds of float32 in registers: how many operations, and a call that does them. In turns with what is compared with it, it
    gives the peak of that minute: clocks fall with heat, and with what neighbours do."""
    return limits.multiplying(host_target(), threads)


def peak(threads: int) -> Callable[[], float]:
    """A function that measures the peak of float32 multiply-adds in FLOP/s."""
    flops, run = multiplying(threads)
    return lambda: flops / fastest(run, 0.01)


def reading(size: int, threads: int) -> Callable[[], object]:
    """A call that reads ``size`` bytes of float32 once, each thread its part: what streaming weights of that size
    costs."""
    return limits.reading(host_target(), threads, size)[1]
