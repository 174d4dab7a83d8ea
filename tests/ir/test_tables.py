"""The tables of the grammar: what is kept is what is made, and what cannot be read is made again."""

from __future__ import annotations

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


def test_what_is_damaged_is_made_again(directory: Path) -> None:
    made = tables.__wrapped__()
    (kept,) = directory.iterdir()
    whole = kept.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"ref_type")] ^= 64  # the name of an action, which nothing else would miss
    for content in (b"", b"[]", whole[:-1], whole[1:], whole + b" ", bytes(flipped)):
        kept.write_bytes(content)
        again = tables.__wrapped__()
        assert again.names == made.names and len(again.actions) == len(made.actions)
        assert tables.__wrapped__() == again


def test_a_cache_that_cannot_be_written_is_no_error(directory: Path) -> None:
    directory.write_text("a file")
    assert len(tables.__wrapped__().actions) == len(tables().actions)
