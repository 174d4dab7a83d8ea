"""Small pictures as SVG text: axes (linear or logarithmic), lines, points, bars. Enough for a roofline and a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from html import escape

from relay.ir.record import record

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a", "#0a7ea4")
_LEFT, _TOP, _BOTTOM = 70, 34, 46


@record(frozen=True, slots=True)
class Axis:
    """A scale from ``low`` to ``high`` with a title; a logarithmic one needs positive bounds."""

    title: str
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1; what lies outside is moved to the edge."""
        low, high = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high))
        at = math.log10(max(value, self.low)) if self.logarithmic else value
        return min(1.0, max(0.0, (at - low) / ((high - low) or 1.0)))

    def ticks(self) -> list[float]:
        """Round values to label."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first >= 2:
                return [10.0**k for k in range(first, last + 1)]
            steps = [m * 10.0**k for k in range(first - 1, last + 2) for m in (1, 2, 5)]
            return [s for s in steps if self.low * 0.999 <= s <= self.high * 1.001]
        raw = (self.high - self.low) / 6 or 1.0
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def covering(title: str, values: Sequence[float], logarithmic: bool = False) -> Axis:
    """An axis that covers the values, with some room (a linear one begins at 0)."""
    usable = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
    if logarithmic:
        return Axis(title, min(usable) / 1.5, max(usable) * 1.5, True)
    return Axis(title, 0.0, max(usable) * 1.08)


@record(slots=True)
class Picture:
    """A plot under construction; ``text`` gives the SVG."""

    title: str
    x: Axis
    y: Axis
    width: int = 760
    height: int = 460
    right: int = 170  # room for a legend
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        across, up = self.width - _LEFT - self.right, self.height - _TOP - _BOTTOM
        return _LEFT + self.x.place(x) * across, _TOP + (1 - self.y.place(y)) * up

    def line(self, points: Sequence[tuple[float, float]], colour: str, label: str = "", dashed: bool = False) -> None:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (self.at(*p) for p in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if label:
            self.legend.append((label, colour))

    def point(self, x: float, y: float, colour: str, tip: str = "", radius: float = 4.0) -> None:
        a, b = self.at(x, y)
        self.parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.75">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def interval(self, x: float, low: float, high: float, colour: str) -> None:
        """A vertical bar of uncertainty."""
        (a, b), (_, c) = self.at(x, low), self.at(x, high)
        self.parts.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{a:.1f}" y2="{c:.1f}" stroke="{colour}"/>')

    def bar(self, left: float, right: float, value: float, colour: str, tip: str = "") -> None:
        (a, top), (b, bottom) = self.at(left, value), self.at(right, self.y.low)
        self.parts.append(
            f'<rect x="{a:.1f}" y="{top:.1f}" width="{max(b - a, 1):.1f}" height="{max(bottom - top, 0):.1f}" fill="{colour}">'
            f"<title>{escape(tip)}</title></rect>"
        )

    def note(self, x: float, y: float, text: str, colour: str = "#57606a") -> None:
        a, b = self.at(x, y)
        self.parts.append(f'<text x="{a + 5:.1f}" y="{b - 5:.1f}" fill="{colour}" font-size="11">{escape(text)}</text>')

    def text(self, numbers: bool = True) -> str:
        """The SVG; without ``numbers`` the x axis has no labels."""
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" font-family="sans-serif" '
            'font-size="12" fill="#24292f"><rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(self.title)}</text>',
        ]
        bottom, end = self.height - _BOTTOM, self.width - self.right
        for tick in self.x.ticks() if numbers else ():
            a, _ = self.at(tick, self.y.low)
            out.append(f'<line x1="{a:.1f}" y1="{_TOP}" x2="{a:.1f}" y2="{bottom}" stroke="#eaeef2"/>')
            out.append(f'<text x="{a:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>')
        for tick in self.y.ticks():
            _, b = self.at(self.x.low, tick)
            out.append(f'<line x1="{_LEFT}" y1="{b:.1f}" x2="{end}" y2="{b:.1f}" stroke="#eaeef2"/>')
            out.append(f'<text x="{_LEFT - 6}" y="{b + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
        middle = (_LEFT + end) / 2
        out.append(f'<text x="{middle:.0f}" y="{self.height - 10}" text-anchor="middle">{escape(self.x.title)}</text>')
        up = (_TOP + bottom) / 2
        out.append(
            f'<text transform="translate(16 {up:.0f}) rotate(-90)" text-anchor="middle">{escape(self.y.title)}</text>'
        )
        out += self.parts
        for n, (label, colour) in enumerate(self.legend):
            y = _TOP + 10 + 18 * n
            out.append(f'<rect x="{end + 14}" y="{y - 9}" width="12" height="10" fill="{colour}"/>')
            out.append(f'<text x="{end + 31}" y="{y}">{escape(label)}</text>')
        return "\n".join([*out, "</svg>\n"])


def _number(value: float) -> str:
    """A short label: 1500 is 1.5k."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{suffix}"
    return f"{value:g}"
