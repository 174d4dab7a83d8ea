"""A program beside other systems on the same inputs: they take turns, and what they compute is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from relay.executable.program import Executable
from relay.ir.diagnostics import RelayError
from relay.ir.module import Module
from relay.ir.record import record
from relay.view.peers.straight import Straight, straight
from relay.view.peers.systems import PEERS, leaves
from relay.view.svg import COLOURS, Axis, Picture, covering
from relay.view.timing import Timing, interleaved

OURS = "relay"
EXACT = "relay-float32"


@record(frozen=True, slots=True)
class Row:
    """One system: its time, what making it took in seconds (None: not measured), and how far its results are from ours (absolute)."""

    name: str
    timing: Timing
    setup: float | None
    difference: float


@record(frozen=True, slots=True)
class Rounding:
    """What reduced precision costs on these inputs: how far results are from float32, at most and on average, beside the largest
    magnitude of a float32 result."""

    most: float
    mean: float
    largest: float

    def text(self) -> str:
        """For people."""
        if not self.largest:
            return f"results differ from float32 by at most {self.most:.1e}, on average {self.mean:.1e}"
        return (
            f"results differ from float32 by at most {self.most:.1e} ({self.most / self.largest:.2%} of the largest, "
            f"{self.largest:.3g}), on average {self.mean:.1e} ({self.mean / self.largest:.3%})"
        )


@record(frozen=True, slots=True)
class Comparison:
    """The systems that ran, ours first, and why others did not; ``rounding``: of ours, where that is in reduced precision."""

    rows: tuple[Row, ...]
    refused: dict[str, str]
    threads: int
    rounding: Rounding | None = None

    def table(self) -> str:
        """For people."""
        out = [
            f"{'system':14} {'median':>12} {'95 % of the median':>26} {'to relay':>9} {'differs by':>11} {'made in':>9}"
        ]
        ours = self.rows[0].timing.median
        for r in self.rows:
            span = f"{microseconds(r.timing.low)} to {microseconds(r.timing.high)}"
            made = f"{r.setup:.2f} s" if r.setup is not None else ""
            out.append(
                f"{r.name:14} {microseconds(r.timing.median):>12} {span:>26} {r.timing.median / ours:>9.2f} "
                f"{r.difference:>11.1e} {made:>9}"
            )
        out += [f"{name}: left out: {why}" for name, why in self.refused.items()]
        out += [self.rounding.text()] if self.rounding is not None else []
        return "\n".join(out)

    def json(self) -> dict[str, Any]:
        """For programs: seconds."""
        rounding = None if self.rounding is None else asdict(self.rounding)
        systems = [asdict(r) for r in self.rows]
        return {"threads": self.threads, "systems": systems, "refused": self.refused, "rounding": rounding}

    def picture(self) -> str:
        """A bar for each system, as SVG."""
        times = [r.timing.high * 1e6 for r in self.rows]
        picture = Picture(
            f"microseconds per call, {self.threads} thread(s)",
            Axis("", 0, len(self.rows)),
            covering("us", times),
            right=150,
        )
        for n, r in enumerate(self.rows):
            colour = COLOURS[n % len(COLOURS)]
            picture.bar(n + 0.2, n + 0.8, r.timing.median * 1e6, colour, f"{r.name}: {microseconds(r.timing.median)}")
            picture.interval(n + 0.5, r.timing.low * 1e6, r.timing.high * 1e6, "#24292f")
            picture.legend.append((r.name, colour))
        return picture.text(numbers=False)


def microseconds(seconds: float) -> str:
    """A time with a unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def compare(
    exe: Executable,
    module: Module | None,
    entry: str,
    args: Sequence[object],
    peers: Sequence[str] = (),
    threads: int = 1,
    seconds: float = 1.0,
    setup: float | None = None,
    exact: Executable | None = None,
) -> Comparison:
    """Time ``exe`` and the peers on ``args``. A peer that cannot have the program is left out, with the reason. ``module`` is the
    program that ``exe`` was compiled from; peers need it. ``exact``: the same program in float32, to be compared with too."""
    ours = leaves(exe.run(entry, *args))
    systems: dict[str, Callable[[], object]] = {OURS: lambda: exe.run(entry, *args)}
    differences: dict[str, float] = {OURS: 0.0}
    setups: dict[str, float | None] = {OURS: setup}
    refused: dict[str, str] = {}
    rounding: Rounding | None = None
    if exact is not None:
        wide = leaves(exact.run(entry, *args))
        rounding = _rounding(ours, wide)
        systems[EXACT] = lambda: exact.run(entry, *args)
        differences[EXACT], setups[EXACT] = rounding.most, None
    if peers:
        if module is None:
            raise RelayError("peers need the program, not a compiled executable", hint="give the .relay file")
        program: Straight | None = None
        try:
            program = straight(module, entry)
        except RelayError as error:
            refused = dict.fromkeys(peers, error.message)
        for name in peers if program is not None else ():
            assert program is not None
            try:
                system = PEERS[name](program, leaves(tuple(args)), threads)
                differences[name] = max(
                    (_difference(a, b) for a, b in zip(ours, system.results(), strict=True)), default=0.0
                )
            except RelayError as error:
                refused[name] = error.message
            else:
                systems[name], setups[name] = system.run, system.seconds
    timings = interleaved(systems, seconds)
    rows = tuple(Row(name, t, setups[name], differences[name]) for name, t in timings.items())
    return Comparison(rows, refused, threads, rounding)


def _rounding(ours: Sequence[Any], wide: Sequence[Any]) -> Rounding:
    pairs = [(a, b) for a, b in zip(ours, wide, strict=True) if a.size]
    most = max((_difference(a, b) for a, b in pairs), default=0.0)
    count = max(1, sum(a.size for a, _ in pairs))
    total = sum(float(_apart(a, b).sum()) for a, b in pairs)
    largest = max((float(np.abs(b.astype(np.float64)).max()) for _, b in pairs), default=0.0)
    return Rounding(most, total / count, largest)


def _difference(a: Any, b: Any) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float(_apart(a, b).max(initial=0.0))


def _apart(a: Any, b: Any) -> Any:
    """How far elements are apart; equal infinities and two that are no numbers are not."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where((a == b) | ((a != a) & (b != b)), 0.0, apart)
