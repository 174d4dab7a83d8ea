"""What reduced precision costs is shown: time and distance beside float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import relay
from relay.view.comparison import EXACT, compare
from tests.cli.process import run

TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 80), float32], %w: Tensor[(70, 80), float32]) { nn.dense(%x, %w) }"""
WEIGHT = np.random.default_rng(0).standard_normal((70, 80)).astype(np.float32)


@pytest.mark.parametrize("precision", ["bf16", "int8-weights"])
def test_rounding_is_measured(precision: str) -> None:
    module = relay.parse(TEXT).bind({"w": WEIGHT})
    exe, exact = relay.compile(module, precision=precision, threads=1), relay.compile(module, threads=1)
    x = np.random.default_rng(1).standard_normal((9, 80)).astype(np.float32)
    found = compare(exe, None, "main", [x], seconds=0.02, exact=exact)
    wide = np.asarray(exact(x)).astype(np.float64)
    apart = np.abs(np.asarray(exe(x)) - wide)
    assert found.rounding is not None and [r.name for r in found.rows] == ["relay", EXACT]
    assert (found.rounding.most, found.rounding.largest) == (apart.max(), np.abs(wide).max())
    assert found.rounding.mean == pytest.approx(apart.mean()) and 0 < found.rounding.mean < found.rounding.most
    assert found.rows[1].difference == found.rounding.most
    assert found.rounding.text() in found.table()
    assert compare(exact, None, "main", [x], seconds=0.02).rounding is None


def test_bench_shows_it(tmp_path: Path) -> None:
    path, weights, compiled = tmp_path / "m.relay", tmp_path / "w.safetensors", tmp_path / "m.rlx"
    path.write_text(TEXT)
    save_file({"w": WEIGHT}, weights)
    given = ["--weights", str(weights), "-d", "n=4", "--seconds", "0.02", "--threads", "1"]
    bench = ["bench", str(path), *given, "--precision", "bf16"]
    done = run(*bench, "--json")
    assert done.returncode == 0, done.stderr
    rounding = json.loads(done.stdout)["rounding"]
    assert 0 < rounding["mean"] < rounding["most"] < 0.02 * rounding["largest"]
    assert "results differ from float32 by at most" in run(*bench).stdout
    relay.compile(relay.parse(TEXT).bind({"w": WEIGHT})).save(compiled)
    done = run("bench", compiled, "-d", "n=4", "--precision", "bf16")
    assert done.returncode == 2 and "precision" in done.stderr
