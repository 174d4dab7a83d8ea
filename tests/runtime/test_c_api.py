"""A C program, compiled against the runtime, runs a saved executable without Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relay.executable import Assembler
from tests.runtime.programs import ADD_ONE, add_one_kernel, call_add_one, function, image, object_code

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("needs a C compiler")
    library = max(ROOT.glob("build/*/librelay_runtime.a"), key=lambda path: path.stat().st_mtime, default=None)
    if library is None:
        pytest.skip("the runtime's library is not built in build/")
    out = tmp_path_factory.mktemp("c") / "run"
    include = ["-I", str(ROOT / "runtime/include")]
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-std=c11", str(ROOT / "examples/c/run.c"), *include]
    subprocess.run([*command, str(library), "-lstdc++", "-lpthread", "-lm", "-o", str(out)], check=True)
    return out


def run(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=30)


def test_a_c_program_runs_a_saved_executable(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "add.rlx"
    image(
        function("main", 1, call_add_one),
        kernels=[add_one_kernel()],
        objects=[object_code(ADD_ONE)],
        dtypes=["float32"],
    ).save(path)
    done = run(program, path, "main", "1,2.5,-3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "float32[3] 2 3.5 -2\n", "")
    assert run(program, path, "other", "1").stderr == "no entry named other\n"
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    done = run(program, path, "main", "1")
    assert done.returncode == 1 and "its checksum does not match" in done.stderr


def test_tuples_and_failures_reach_c(program: Path, tmp_path: Path) -> None:
    def pair(asm: Assembler) -> None:
        shape, out = asm.reg(), asm.reg()
        asm.emit("ShapeOf", shape, 0)
        asm.emit("AllocADT", out, -1, [0, shape])
        asm.emit("Ret", out)

    path = tmp_path / "pair.rlx"
    image(function("main", 1, pair)).save(path)
    assert run(program, path, "main", "4,5").stdout == "float32[2] 4 5\nint64[1]\n"
    image(function("main", 1, lambda asm: asm.emit("Fatal", 0)), messages=("on purpose",)).save(path)
    assert run(program, path, "main", "4").stderr == "the run failed: on purpose\n  in main\n"
    image(function("main", 1, lambda asm: asm.emit("Ret", 0)), dtypes=("int64",)).save(path)
    assert "expected a tensor of int64, found float32" in run(program, path, "main", "4").stderr


def test_the_example_says_where_header_and_library_are() -> None:
    (command,) = re.findall(r'python -c "(.*)"', (ROOT / "examples/c/run.c").read_text())
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    include, library = map(Path, done.stdout.split())
    assert (include / "relay/c_api.h").is_file() and (library / "librelay_runtime.a").is_file()
