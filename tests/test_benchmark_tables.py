"""The benchmarks' tables: what is kept is what is read, the page and the pictures say it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from table import Table

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def small(name: str, cases: list[str]) -> Table:
    made = Table(name, "Encoders <small>", "us a token", "tokens", ["relay", "other", "floor"])
    for n, case in enumerate(cases, 1):
        figures = {"relay": 10.0 * n, "other": 20.0 * n, "floor": 9.0 * n}
        text = made.add(case, figures if n > 1 else {k: v for k, v in figures.items() if k != "other"})
        assert case in text and f"{10 * n}" in text
    made.note("geometric mean 0.5")
    return made


@pytest.mark.parametrize("cases", [["1", "16", "128"], ["early exit", "lstm"]], ids=["lines", "bars"])
def test_kept_and_drawn(tmp_path: Path, cases: list[str]) -> None:
    made = small("encoders", cases)
    made.keep(tmp_path)
    again = Table.read(tmp_path / "encoders.json")
    assert again == made
    assert "**10**" in again.markdown() and "geometric mean" in again.markdown()
    drawn = ET.fromstring(again.picture())
    texts = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    assert "Encoders <small>" in texts and "relay" in texts and "other" in texts


def test_report_page(tmp_path: Path) -> None:
    small("encoders", ["1", "16", "128"]).keep(tmp_path)
    command = [sys.executable, str(BENCHMARKS / "report.py"), "--render", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "report.md" in done.stdout
    assert "![Encoders <small>](encoders.svg)" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "encoders.svg").exists()


def test_report_refuses(tmp_path: Path) -> None:
    for wrong in (["nothing"], ["--threads", "0"], ["--render", "--out", str(tmp_path / "none")]):
        command = [sys.executable, str(BENCHMARKS / "report.py"), *wrong]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_lengths_in_pieces() -> None:
    transformers = importlib.import_module("transformers")
    lengths = transformers.parsed_lengths("5,8-10,16-32:8")
    assert lengths == [5, 8, 9, 10, 16, 24, 32] and transformers.parsed_lengths("all") == list(range(5, 129))
    assert sorted(transformers.spread(lengths)) == lengths
    rows = [
        {"model": "minilm", "threads": 1, "what": f"{n} tokens", "tokens": n, "floor": 1.0}
        | {"seconds": {"relay": {"median": 2.0}, "other": {"median": 2.0 * ratio}}}
        for n, ratio in ((5, 0.5), (8, 1.0), (32, 4.0))
    ]
    assert transformers.missing(rows, "minilm", 1, lengths) == [9, 10, 16, 24]
    assert transformers.missing(rows, "minilm", 2, lengths) == lengths
    text = transformers.report(rows)
    assert (
        "1.260 times as long as relay (geometric mean); relay is at least 0.97 times as fast as the best in 2 of 3"
        in text
    )
    assert "least: 5 tokens 0.50, 8 tokens 1.00, 32 tokens 4.00" in text
    assert "from 32 tokens relay takes 2.000 times as long as the floor" in text
