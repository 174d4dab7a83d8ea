"""Libraries for C: built by the system's compiler, used without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.aot.library import c_name, include_folder, runtime_archive
from relay.ir.diagnostics import CompileError, FileError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/c"

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("objcopy") is None, reason="needs a C compiler"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        runtime_archive()
    except FileError:
        pytest.skip("the runtime's library is not built")
    return tmp_path_factory.mktemp("library")


def build(folder: Path, *objects: str, program: str = "library.c") -> Path:
    out = folder / f"run{len(list(folder.iterdir()))}"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-std=c11", str(EXAMPLE / program), *objects]
    subprocess.run([*command, "-I", str(folder), "-I", str(include_folder()), "-o", str(out)], check=True)
    return out


def output(program: Path, *arguments: object) -> str:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def expected(steps: int, rows: list[list[float]]) -> str:
    x = np.array(rows, np.float32)
    for _ in range(steps):
        x = np.tanh(x @ np.array([[0.5, -1.0], [1.0, 0.25]], np.float32).T)
    return "".join(f"{a:.6g} {b:.6g}\n" for a, b in x)


def close(text: str, wanted: str) -> bool:
    return bool(np.allclose(np.fromstring(text, sep=" "), np.fromstring(wanted, sep=" "), rtol=1e-5))


def test_a_shared_library(folder: Path) -> None:
    verb = [sys.executable, "-m", "relay", "compile", str(EXAMPLE / "steps.relay"), "-o", str(folder / "libsteps.so")]
    done = subprocess.run(verb, check=True, capture_output=True, text=True)
    assert "libsteps.so: " in done.stdout and "libsteps.h: " in done.stdout
    program = build(folder, str(folder / "libsteps.so"), f"-Wl,-rpath,{folder}")
    assert close(output(program, 3, "1,2,3,4"), expected(3, [[1, 2], [3, 4]]))
    assert close(output(program, 0, "5,6"), expected(0, [[5, 6]]))
    assert "time limit: the run took longer than 10 s" not in output(program, 100_000, "1,2")
    symbols = subprocess.run(["nm", "-D", "--defined-only", folder / "libsteps.so"], capture_output=True, text=True)
    names = {line.split()[-1] for line in symbols.stdout.splitlines()}
    assert names and all(n.startswith(("relay_", "steps_")) for n in names)


def test_an_object_file(folder: Path) -> None:
    written = relay.build_library((EXAMPLE / "steps.relay").read_text(), folder / "libsteps.o")
    assert [path.name for path in written] == ["libsteps.o", "libsteps.h"]
    program = build(folder, str(folder / "libsteps.o"), str(runtime_archive()), "-lstdc++", "-lpthread", "-lm")
    assert close(output(program, 2, "1,2,3,4"), expected(2, [[1, 2], [3, 4]]))


def test_two_libraries_in_one_program(folder: Path) -> None:
    """Their kernels and functions have the same names inside."""
    text = (EXAMPLE / "steps.relay").read_text()
    relay.build_library(text, folder / "libsteps.o")
    relay.build_library(text.replace("0.25", "0.5"), folder / "other.o")
    objects = [str(folder / "libsteps.o"), str(folder / "other.o"), str(runtime_archive())]
    program = build(folder, *objects, "-lstdc++", "-lpthread", "-lm")
    assert close(output(program, 1, "1,2"), expected(1, [[1, 2]]))


def test_large_constants_are_copied_not_compiled(folder: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(1, 2048), float32], %w: Tensor[(2048, 2048), float32]) -> Tensor[(1, 2048), float32] {
      nn.dense(%x, %w)
    }"""
    module = relay.parse(text).bind({"w": weights})
    (library, _) = relay.build_library(module, folder / "weights.so")
    assert library.stat().st_size > weights.nbytes
    source = folder / "weights.c"
    source.write_text(
        """#include <stdio.h>
#include "weights.h"
int main(void) {
  static float x[2048];
  x[7] = 1;
  int64_t shape[2] = {1, 2048};
  relay_executable* program = weights_open();
  relay_value* input = relay_tensor_copy("float32", 2, shape, x);
  relay_value* result = NULL;
  if (program == NULL || relay_run(program, weights_entry_main, &input, 1, NULL, &result) != RELAY_OK) return 1;
  for (int i = 0; i < 2048; ++i) printf("%.9g ", (double)((const float*)relay_tensor_data(result))[i]);
  return 0;
}
"""
    )
    out = folder / "weights"
    include = ["-I", str(folder), "-I", str(include_folder())]
    subprocess.run(["gcc", str(source), str(library), f"-Wl,-rpath,{folder}", *include, "-o", str(out)], check=True)
    np.testing.assert_array_equal(np.fromstring(output(out), sep=" ", dtype=np.float32), weights[:, 7])


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLE / "steps.relay").read_text()
    with pytest.raises(FileError, match=r"a library is one of \.so, \.o, \.h"):
        relay.build_library(text, tmp_path / "steps.dll")
    with pytest.raises(FileError, match="cannot write"):
        relay.build_library(text, tmp_path / "absent" / "steps.h")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompileError, match="linking a library needs no-such-compiler"):
        relay.build_library(text, tmp_path / "steps.so")
    assert list(tmp_path.iterdir()) == []


def test_a_header_alone(tmp_path: Path) -> None:
    (header,) = relay.build_library((EXAMPLE / "steps.relay").read_text(), tmp_path / "steps.h")
    assert "/* main(steps: int64[], x: float32[n, 2]) -> float32[n, 2] */" in header.read_text()


def test_names_are_c_identifiers() -> None:
    assert [c_name(Path(p)) for p in ("libnet.so", "my-net.v2.o", "3d.h", "lib.so")] == ["net", "my_net_v2", "_3d", "_"]
