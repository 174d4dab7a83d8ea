"""Weights from files, and what a parameter takes of them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import relay
from relay.ir.diagnostics import FileError

TEXT = '#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 2), float32], %w: Tensor[(3, 2), float32]) { nn.dense(%x, %w) }'


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32"])
def test_floats_are_widened(tmp_path: Path, dtype: str) -> None:
    w = np.arange(6).reshape(3, 2).astype(dtype)
    save_file({"w": w}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", w=w.astype("float16"))
    for file in ("w.safetensors", "w.npz"):
        bound = relay.parse(TEXT).bind(relay.load_weights(tmp_path / file))
        found = relay.evaluate(bound, np.ones((1, 2), "float32"))
        assert np.asarray(found).tolist() == [[1, 5, 9]]


def test_narrower_is_not_made() -> None:
    with pytest.raises(relay.RelayError, match="must be float32, the array is float64"):
        relay.parse(TEXT).bind({"w": np.ones((3, 2))})


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no \.safetensors file"):
        relay.load_weights(tmp_path)
    save_file({"a": np.ones(2, "float32")}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros(3, "int64"), "c": np.ones((0, 2), "bool")}, tmp_path / "2.safetensors")
    found = relay.load_weights(tmp_path)
    assert {name: (str(a.dtype), a.shape) for name, a in found.items()} == {
        "a": ("float32", (2,)), "b": ("int64", (3,)), "c": ("bool", (0, 2)),
    }  # fmt: skip
    save_file({"a": np.ones(2, "float32")}, tmp_path / "3.safetensors")
    with pytest.raises(FileError, match="'a', as another file"):
        relay.load_weights(tmp_path)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name in ("missing.safetensors", "missing.npz"):
        with pytest.raises(FileError, match="no such file"):
            relay.load_weights(tmp_path / name)
    for name in ("bad.safetensors", "bad.npz"):
        (tmp_path / name).write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
        with pytest.raises(FileError, match="cannot read"):
            relay.load_weights(tmp_path / name)
