"""Systems measured in turns, so that what the machine does meanwhile meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

# Seconds in which other systems' threads stop spinning for work: OpenMP's do after 200 milliseconds.
PAUSE = 0.25
# Seconds of calls after a pause that are not timed: on an Intel Xeon (a virtual machine) memory behind the second-level cache is half as
# fast for four milliseconds.
WARM = 0.008

Call = Callable[[], object]


def medians(
    calls: Mapping[str, Call], rounds: int, pauses: Mapping[str, float], turn: float = 0.0, most: int = 200
) -> dict[str, float]:
    """Median seconds of a call of each system.

    ``pauses``: how long a system waits before its turn, in which the threads of the one before stop spinning. In each turn as
    many calls are timed (up to ``most``) as take ``turn`` seconds, one at least, after as many that are not, for ``WARM`` seconds
    at least where there are pauses: they bring back what others drove out of the caches, and the clocks that the pause let fall.
    """
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(most, int(turn / max(time.perf_counter() - start, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(pauses.get(name, 0.0))
            start, untimed = time.perf_counter(), 0
            while untimed < repeats[name] or (pauses and time.perf_counter() - start < WARM):
                call()
                untimed += 1
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(t) for name, t in times.items()}
