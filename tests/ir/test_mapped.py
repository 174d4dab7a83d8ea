"""Weights that lie in mapped files."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import relay
from relay.executable.format import ExecutableImage
from relay.ir.diagnostics import FileError
from relay.ir.expr import Constant
from relay.ir.mapped import TensorFile, release
from relay.ir.walk import post_order
from relay.options import Options
from relay.pipeline import build

HEAD = '#[version = "0.0.5"]\n'


def resident(array: np.ndarray) -> bool:
    """Whether the page in the middle of an array is mapped into this process."""
    address = array.__array_interface__["data"][0] + array.nbytes // 2
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(address // 4096 * 8)
        return bool(int.from_bytes(pages.read(8), "little") >> 63)


def test_tensors(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(100_000, dtype=np.float32).reshape(100, 1000), "b": np.array([True, False]), "c": np.zeros((0, 3), np.int64),
        "d": np.arange(7, dtype=np.float64),
    }  # fmt: skip
    save_file(arrays, tmp_path / "w.safetensors")
    file = TensorFile(tmp_path / "w.safetensors")
    for name, array in arrays.items():
        found = file.tensor(name)
        assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)
        assert not found.flags.writeable
        release(found)
        assert np.array_equal(found, array)  # it is read again
    with pytest.raises(FileError, match="there is none"):
        file.tensor("e")


def test_released_pages_are_gone(tmp_path: Path) -> None:
    save_file({"a": np.ones(1 << 20, np.float32)}, tmp_path / "w.safetensors")
    found = TensorFile(tmp_path / "w.safetensors").tensor("a")
    assert found.sum() == 1 << 20
    assert resident(found)
    release(found)
    assert not resident(found)
    own = np.ones(1 << 20, np.float32)
    release(own)  # not on a file: left alone
    assert own.sum() == 1 << 20


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": np.ones(1000, np.float32)}, path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:5], b"", b"\xff" * 100):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match="cannot read"):
            TensorFile(path)
    entry = {
        "dtype": "F32",
        "shape": [0, 1 << 62, 1 << 62],
        "data_offsets": [0, 0],
    }  # as many elements as there are: none
    header = json.dumps({"a": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FileError, match="cannot read"):
        TensorFile(path).tensor("a")
    with pytest.raises(FileError, match="missing"):
        TensorFile(tmp_path / "none.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint4"])
def test_a_saved_program_compiles_from_its_file(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weights = (np.arange(64 * 96) % 7).reshape(96, 64).astype(kind)
    text = f"def @main[n: Dim](%x: Tensor[(n, 64), float32], %w: Tensor[(96, 64), {dtype}]) {{ nn.dense(%x, cast(%w, dtype=float32)) }}"
    module = relay.parse(HEAD + text.replace("dtype=float32", 'dtype="float32"')).bind({"w": weights})
    module.save(tmp_path / "p.relay")
    loaded = relay.load_module(tmp_path / "p.relay")
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    exe = relay.compile(loaded, cache_dir=tmp_path / "cache")
    assert np.allclose(np.asarray(exe(x)), x @ weights.astype(np.float32).T, atol=1e-3)
    again = relay.compile(relay.load_module(tmp_path / "p.relay"), cache_dir=tmp_path / "cache")
    assert again.from_cache
    constants = [n for n in post_order(loaded.function("main")) if isinstance(n, Constant)]
    assert any(np.array_equal(c.data.astype(np.float32), weights.astype(np.float32)) for c in constants if c.data.ndim)


def test_the_file_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32)
    text = "def @main[n: Dim](%x: Tensor[(n, 17), float32], %w: Tensor[(33, 17), float32]) { nn.dense(%x, %w) }"
    image: ExecutableImage = build(relay.parse(HEAD + text).bind({"w": weights}), Options(cache=False)).image
    image.save(tmp_path / "p.rlx")
    assert (tmp_path / "p.rlx").read_bytes() == bytes(image.to_bytes())
    relay.load(tmp_path / "p.rlx")  # its checksum fits
