"""The cache of compiled programs: what is damaged or cannot be changed costs time, never a compilation."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.codegen.cache import KernelCache
from relay.program_cache import ProgramCache

TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 3), float32]) { nn.relu(%x) + 1f }"""
X = np.array([[-1, 0, 2]], np.float32)


def compiled(directory: Path) -> relay.Executable:
    exe = relay.compile(TEXT, cache_dir=directory, workers=1)
    np.testing.assert_array_equal(np.asarray(exe(X)), [[1, 1, 3]])
    return exe


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replaced_by_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "damage", [truncated, flipped, emptied, replaced_by_a_folder, replaced_by_a_pipe], ids=lambda d: d.__name__
)
def test_damaged_entries_are_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    compiled(tmp_path)
    (program,) = (tmp_path / "programs").glob("*.rlx")
    kernels = list(tmp_path.rglob("*.o"))
    assert compiled(tmp_path).from_cache and kernels
    for file in (program, *kernels):
        damage(file)
    assert not compiled(tmp_path).from_cache


def test_a_cache_that_only_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path)
    (program,) = (tmp_path / "programs").glob("*.rlx")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.utime", refuse)
    assert compiled(tmp_path).from_cache
    flipped(program)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert not compiled(tmp_path).from_cache


TIMES = TEXT.replace("+ 1f", "* 3f")


def test_what_was_loaded_is_saved_and_pickled(tmp_path: Path) -> None:
    """Whatever has become of the file since."""
    exe = compiled(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    exe.save(tmp_path / "m.rlx")
    loaded = relay.load(tmp_path / "m.rlx")
    relay.compile(TIMES, cache=False).save(tmp_path / "m.rlx")
    loaded.save(tmp_path / "copy.rlx")
    for same in (
        pickle.loads(pickle.dumps(exe)),
        pickle.loads(pickle.dumps(loaded)),
        relay.load(tmp_path / "copy.rlx"),
    ):
        np.testing.assert_array_equal(np.asarray(same(X)), [[1, 1, 3]])


@pytest.mark.parametrize("rows", [3, 300, 20_000])
def test_a_file_that_is_cut_off_while_it_is_loaded(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "m.rlx"
    text = TEXT.replace("3), float32]", f"3), float32], %w: Tensor[({rows}, 64), float32]").replace("1f", "sum(%w)")
    relay.compile(relay.parse(text).bind({"w": np.ones((rows, 64), np.float32)}), cache=False, opt_level=0).save(path)
    loaded = relay.load(path)
    os.truncate(path, 100)
    np.testing.assert_array_equal(np.asarray(loaded(X)), [[rows * 64, rows * 64, rows * 64 + 2]])


def test_old_kernels_go_and_programs_stay(tmp_path: Path) -> None:
    compiled(tmp_path)
    KernelCache(tmp_path / "kernels").prune(0)
    assert list(tmp_path.rglob("*.o")), "once a day: compiling did"
    (tmp_path / "kernels" / "pruned").unlink()
    KernelCache(tmp_path / "kernels").prune(0)
    assert len(list(tmp_path.rglob("*.o"))) <= 1
    assert compiled(tmp_path).from_cache


def test_large_programs_are_dropped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = TEXT.replace("1f", "2f")
    monkeypatch.setattr(ProgramCache, "limit_bytes", 1 << 30)
    compiled(tmp_path)
    relay.compile(other, cache_dir=tmp_path, workers=1)
    assert len(list((tmp_path / "programs").glob("*.rlx"))) == 2, "small ones wait for the day to end"
    monkeypatch.setattr(ProgramCache, "limit_bytes", 64)
    relay.compile(TEXT.replace("1f", "3f"), cache_dir=tmp_path, workers=1)
    assert len(list((tmp_path / "programs").glob("*.rlx"))) == 1
    assert not compiled(tmp_path).from_cache, "the newest is kept"
