"""Text tests: program in, program out. The first line of each program says the passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.ir.parser import parse_module
from relay.transform import Pipeline, parse_passes
from relay.typing import infer, verify_types
from tests.transform.support import VERSION, evaluate_primitive

PROGRAMS = sorted((Path(__file__).parent / "golden").glob("*.relay"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_golden(path: Path, update_golden: bool) -> None:
    text = path.read_text()
    header = re.match(r"/\* passes: (.*?) \*/\n", text)
    assert header is not None, "the first line must be /* passes: ... */"
    module = infer(parse_module(VERSION + text[header.end() :]))
    passes = parse_passes(header[1], {"evaluate": evaluate_primitive})
    after = Pipeline(passes, lambda m, names: verify_types(m), full=True)(module)
    golden = path.with_suffix(".golden")
    if update_golden:
        golden.write_text(after.text())
    assert after.text() == golden.read_text()
