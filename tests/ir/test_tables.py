"""The tables of the grammar: what is kept is what is made, and what cannot be read is made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.ir import tables as module
from relay.ir.tables import tables


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_kept_tables_are_those_that_were_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tables.__wrapped__()
    (kept,) = directory.iterdir()
    monkeypatch.setattr(module, "make", lambda _: pytest.fail("they were kept"))
    read = tables.__wrapped__()
    assert read == made and read.names == made.names
    assert kept.name.startswith("grammar-")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"actions": 1}', b'{"actions": [[1]]}', b"\xff"])
def test_what_cannot_be_read_is_made_again(directory: Path, content: bytes) -> None:
    states = len(tables.__wrapped__().actions)
    (kept,) = directory.iterdir()
    kept.write_bytes(content)
    assert states == len(tables.__wrapped__().actions) == len(json.loads(kept.read_bytes())["actions"])


def test_a_cache_that_cannot_be_written_is_no_error(directory: Path) -> None:
    directory.write_text("a file")
    assert len(tables.__wrapped__().actions) == len(tables().actions)
