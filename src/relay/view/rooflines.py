"""The roofline picture (Williams, Waterman, Patterson 2009): each kernel's arithmetic per byte against its speed, under the machine's
limits."""

from __future__ import annotations

from collections.abc import Sequence

from relay.view.limits import LEVELS, Limits
from relay.view.profiler import Row
from relay.view.svg import COLOURS, Axis, Picture

_SHOWN = 12  # kernels that get a colour and a name


def roofline(rows: Sequence[Row], limits: Limits) -> str:
    """SVG: a line for the multiply-add peak and the bandwidth of each level, a disc for each kernel, larger with more time."""
    seen = [r for r in rows if r.flops > 0 and r.bytes > 0 and r.seconds > 0]
    intensities = [r.flops / r.bytes for r in seen] or [1.0]
    speeds = [r.flops / r.seconds / 1e9 for r in seen] or [1.0]
    top = limits.flops / 1e9
    # The picture shows where the roofs bend, and every kernel.
    bends = [limits.flops / limits.bandwidth[level] for level in LEVELS]
    x = Axis("operations per byte", min(*intensities, *bends) / 2, max(*intensities, *bends) * 4, True)
    y = Axis("GFLOP/s", min(*speeds, top / 100) / 1.5, top * 2, True)
    picture = Picture(f"Roofline: {limits.machine}, {limits.threads} thread(s)", x, y, width=900, height=540, right=300)
    for n, level in enumerate(LEVELS):
        rate = limits.bandwidth[level] / 1e9
        start = max(x.low, y.low / rate)
        shade = ("#8c959f", "#6e7781", "#57606a", "#24292f")[n]
        picture.line([(start, start * rate), (top / rate, top)], shade, dashed=level != "DRAM")
        picture.note(start, start * rate * 1.15, f"{level} {rate:.0f} GB/s", shade)
    picture.line([(min(bends), top), (x.high, top)], "#24292f")
    picture.note(max(bends), top, f"{top:.0f} GFLOP/s")
    whole = sum(r.seconds for r in seen) or 1.0
    for n, r in enumerate(seen):
        colour = COLOURS[n % len(COLOURS)] if n < _SHOWN else "#afb8c1"
        share = r.seconds / whole
        speed = r.flops / r.seconds / 1e9
        tip = f"{r.name}: {share:.1%} of the time in kernels, {speed:.1f} GFLOP/s, {r.bytes / r.seconds / 1e9:.1f} GB/s"
        picture.point(r.flops / r.bytes, speed, colour, tip, 3.0 + 14.0 * share**0.5)
        if n < _SHOWN:
            picture.legend.append((f"{share:.0%} {r.name[:38]}", colour))
    return picture.text()
