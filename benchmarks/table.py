"""A table of measurements: printed in columns, kept as JSON, written as Markdown, drawn.

A benchmark makes one `Table`, adds its rows as they are measured (each is printed at once) and ends with `keep`, which writes the
table where ``--out`` says. `report.py` runs benchmarks and puts their tables together.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from relay.ir.files import write_whole
from relay.view.svg import COLOURS, Axis, Picture, covering

FLOOR = "floor"  # the column of what the machine allows; drawn as a line across, not as a system


def add_out(parser: argparse.ArgumentParser) -> None:
    """The option that all benchmarks share."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write the table as JSON into this directory")


def add_pieces(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark that is measured in pieces."""
    parser.add_argument("--more", type=Path, metavar="FILE", help="add what this file does not have yet to it")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further row is begun")


class Pieces:
    """Figures by what they are of, kept in a file: run again and again for a limited time, a benchmark gets through all of them."""

    def __init__(self, path: Path | None, limit: float) -> None:
        self._path, self._end = path, time.perf_counter() + limit
        self._kept: dict[str, dict[str, float]] = json.loads(path.read_text()) if path and path.exists() else {}

    def figures(self, place: str, measure: Callable[[], Mapping[str, float]]) -> Mapping[str, float] | None:
        """Those that are kept, or measured now; None where there is no time left for that."""
        if place not in self._kept:
            if time.perf_counter() > self._end:
                return None
            self._kept[place] = dict(measure())
            if self._path:
                write_whole(self._path, lambda part: part.write_text(json.dumps(self._kept, indent=1)))
        return self._kept[place]


@dataclass(slots=True)
class Table:
    """Figures of one unit (less is better): a row for each case, a column for each system, and what else is worth saying.

    ``name`` is the file's; ``key`` heads the first column. A missing figure is a system that cannot run the case (or is not installed).
    ``notes`` are lines below the table.
    """

    name: str
    title: str
    unit: str
    key: str
    columns: list[str]
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def head(self) -> str:
        return f"{self.title}; {self.unit}\n{self.key:>{self._width}}" + "".join(f"{c:>14}" for c in self.columns)

    def add(self, case: str | int, figures: Mapping[str, float]) -> str:
        """Keep a row; its text, to be printed."""
        self.rows[str(case)] = row = {c: float(figures[c]) for c in self.columns if c in figures}
        return f"{case!s:>{self._width}}" + "".join(f"{_figure(row.get(c)):>14}" for c in self.columns)

    def note(self, text: str) -> str:
        self.notes.append(text)
        return text

    def keep(self, directory: Path | None) -> None:
        """Write ``NAME.json``, whole or not at all; None: nowhere."""
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / f".{self.name}.part"
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        part.replace(directory / f"{self.name}.json")

    @staticmethod
    def read(path: Path) -> Table:
        return Table(**json.loads(path.read_text()))

    @property
    def _width(self) -> int:
        return max(24, len(self.key) + 1)

    def markdown(self) -> str:
        """The table with the least figure of each row in bold (the floor apart)."""
        lines = [
            f"### {self.title}",
            "",
            f"In {self.unit}.",
            "",
            f"| {self.key} | {' | '.join(self.columns)} |",
            "|" + " --- |" + " ---: |" * len(self.columns),
        ]
        for case, row in self.rows.items():
            best = min((v for c, v in row.items() if c != FLOOR), default=math.nan)
            cells = [
                f"**{_figure(v)}**" if v == best and c != FLOOR else _figure(v)
                for c, v in ((c, row.get(c)) for c in self.columns)
            ]
            lines.append(f"| {case} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *self.notes, ""] if self.notes else [*lines, ""])

    def picture(self) -> str:
        """As SVG: lines over numeric cases, otherwise bars side by side, each row relative to the first system."""
        numeric = len(self.rows) > 2 and all(case.isdecimal() for case in self.rows)
        return self._lines() if numeric else self._bars()

    def _lines(self) -> str:
        values = [v for row in self.rows.values() for v in row.values()]
        x = covering(self.key, [float(case) for case in self.rows], logarithmic=True)
        plot = Picture(self.title, x, covering(self.unit, values))
        for number, column in enumerate(self.columns):
            points = [(float(case), row[column]) for case, row in self.rows.items() if column in row]
            if points:
                floor = column == FLOOR
                plot.line(points, "#57606a" if floor else COLOURS[number % len(COLOURS)], column, dashed=floor)
        return plot.text()

    def _bars(self) -> str:
        systems = [c for c in self.columns if c != FLOOR]
        first = systems[0]
        ratios = {
            case: {c: v / row[first] for c, v in row.items()} for case, row in self.rows.items() if row.get(first)
        }
        top = max((v for row in ratios.values() for v in row.values()), default=1.0)
        plot = Picture(
            self.title,
            Axis("", 0, max(1, len(ratios))),
            Axis(f"time, {first} = 1", 0.0, min(top, 6.0) * 1.08),
            width=max(760, 110 * len(ratios) + 240),
        )
        for column, system in enumerate(systems):
            plot.legend.append((system, COLOURS[column % len(COLOURS)]))
        wide = 0.8 / len(systems)
        for place, (case, row) in enumerate(ratios.items()):
            for column, system in enumerate(systems):
                if system in row:
                    left = place + 0.1 + column * wide
                    shown = f"{case}, {system}: {_figure(self.rows[case][system])} {self.unit}"
                    plot.bar(left, left + wide * 0.9, row[system], COLOURS[column % len(COLOURS)], shown)
            if FLOOR in row:
                plot.line([(place + 0.1, row[FLOOR]), (place + 0.9, row[FLOOR])], "#57606a", dashed=True)
            plot.note(place, 0.0, case, "#24292f")
        return plot.text(numbers=False)


def _figure(value: float | None) -> str:
    """Three significant digits and more where the number has them: 0.0241, 5.59, 108, 1557."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
