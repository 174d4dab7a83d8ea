"""Profiles: what they add up to, the roofline picture, the trace, and the verbs of the command line."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.loading import as_module
from relay.loop.costs import Machine
from relay.options import Options
from relay.pipeline import build
from relay.view import Limits, profile, roofline, trace
from relay.view.limits import calling
from relay.view.profiler import runs_between
from tests.cli.process import run

TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 64), float32], %w: Tensor[(96, 64), float32]) {
  let %y = nn.dense(%x, %w);
  (nn.softmax(%y), sort(%y))
}"""
LIMITS = Limits(
    "a machine", 1, 1e11, {"L1": 2e11, "L2": 1e11, "L3": 5e10, "DRAM": 2e10}, {"L1": 1 << 14, "L2": 1 << 19, "L3": 1 << 23, "DRAM": 1 << 28}
)  # fmt: skip


def test_profile() -> None:
    exe = relay.compile(TEXT, threads=1)
    args = np.ones((50, 64), np.float32), np.ones((96, 64), np.float32)
    found = profile(exe, *args, seconds=0.05, threads=1, limits=LIMITS)
    assert found.runs >= 5 and found.dropped == 0
    dense, softmax = (next(r for r in found.rows if what in r.name) for what in ("dense", "softmax"))
    assert dense.calls == softmax.calls == found.runs
    assert dense.flops == found.runs * 2 * 50 * 64 * 96
    assert dense.bytes == found.runs * 4 * (50 * 64 + 64 * 96 + 50 * 96)
    assert dense.floor == pytest.approx(LIMITS.floor(dense.flops / found.runs, dense.bytes / found.runs) * found.runs)
    inside = sum(r.seconds for r in found.rows)
    assert found.seconds == pytest.approx(inside + found.outside)
    assert found.outside > 0  # sorting is no kernel
    assert "outside of kernels" in found.table() and dense.name in found.table()
    assert json.loads(json.dumps(found.json()))["kernels"][0]["calls"] == found.runs
    again = profile(exe, *args, seconds=0.0, limits=LIMITS)
    assert again.runs == 5  # what was recorded before is gone


@pytest.mark.parametrize("longer", [0.0, 0.01, 0.1, 0.3, 2.0])
def test_runs_that_recording_makes_longer_are_recorded_seldom(longer: float) -> None:
    between = runs_between(1e-6, 1e-6 * (1 + longer))
    assert between >= 1 and longer / (1 + between) <= 0.02
    assert (between == 1) == (longer <= 0.03)


def test_roofline() -> None:
    exe = relay.compile(TEXT, threads=1)
    args = np.ones((50, 64), np.float32), np.ones((96, 64), np.float32)
    picture = roofline(profile(exe, *args, seconds=0.0, limits=LIMITS).rows, LIMITS)
    root = xml.etree.ElementTree.fromstring(picture)
    tips = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("dense" in t for t in tips) and any("softmax" in t for t in tips)


def test_trace() -> None:
    made = build(relay.parse(TEXT), Options(cache=False))
    exe = relay.Executable.from_bytes(made.image.to_bytes(), 2)
    found = profile(exe, np.ones((900, 64), np.float32), np.ones((96, 64), np.float32), seconds=0.0)
    events = json.loads(json.dumps(trace(found, made.steps, made.seconds, most_runs=3)))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {"passes", "kernels", "to_blocks", "fuse"} <= {e["name"] for e in spans if e["pid"] == 1}
    runs = [e for e in spans if e["args"].get("what") == "run"]
    assert len(runs) == 3
    for e in spans:
        if e["pid"] == 2 and e["args"]["what"] != "run":  # every span lies in a run
            assert any(r["ts"] <= e["ts"] and e["ts"] + e["dur"] <= r["ts"] + r["dur"] + 1e-3 for r in runs)
    assert Counter(e["args"].get("what") for e in spans)["piece"] >= 3


def command(*args: str) -> str:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verbs(tmp_path: Path) -> None:
    program = tmp_path / "p.relay"
    program.write_text(TEXT)
    plot, events = tmp_path / "roof.svg", tmp_path / "trace.json"
    text = command(
        "profile", str(program), "-d", "n=20", "--seconds", "0.05", "--plot", str(plot), "--trace", str(events)
    )
    assert "GFLOP/s" in text and "dense" in text
    assert plot.read_text().startswith("<svg") and json.loads(events.read_text())["traceEvents"]
    assert json.loads(command("profile", str(program), "--seconds", "0.05", "--json"))["kernels"]
    found = json.loads(command("bench", str(program), "--seconds", "0.05", "--limits", "--json"))
    assert found["low_us"] <= found["median_us"] <= found["high_us"]
    assert found["limits"][0]["flops"] > 1e9
    assert "per call" in command("bench", str(program), "--seconds", "0.05")
    failed = run("bench")
    assert failed.returncode == 2 and "nothing to measure" in failed.stderr


def test_measured_costs_are_what_fusion_weighs_with() -> None:
    costs = LIMITS.costs()
    assert costs.flops == LIMITS.flops / LIMITS.threads / 4
    assert costs.reading(LIMITS.bytes["L2"]) == LIMITS.bytes["L2"] * LIMITS.threads / LIMITS.bandwidth["L2"]
    assert costs.reading(1 << 40) > costs.reading(1 << 39) > costs.reading(1 << 10)


def test_a_kernel_call_costs_less_than_a_millisecond() -> None:
    assert 0 <= calling() < 1e-3


def test_fusion_decides_by_the_machine_it_is_told() -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(64, 300), float32]) {
      let %a = exp(%x); (sum(%a, axis=[0]), sum(%a * %x, axis=[0]), sum(%a, axis=[1])) }"""

    def exponentials(flops: float) -> int:
        options = relay.Options(machine=Machine(flops=flops), cache=False, workers=1)
        return sum(p.kernel.name.count("exp") for p in build(as_module(text), options).plan.kernels)

    assert exponentials(1e6) == 1 < exponentials(1e15)
