"""Libraries for C: built by the system's compiler, used without Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.aot.library import c_name, include_folder, runtime_archive
from relay.ir.diagnostics import CompileError, FileError
from relay.ir.dtypes import numpy_dtype
from tests.executable.test_values_in import CALLS, CLOSURE_ENTRIES, CLOSURES, SIZES

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


def one_row(
    folder: Path, module: relay.Module, size: int, fill: str, options: str = "NULL", precision: str = "float32"
) -> str:
    """What a library prints of its result for one row, in a process that has no Python: ``fill`` is C that sets ``x``."""
    number = len(list(folder.glob("row*.c")))
    name = f"row{number}"
    (library, _) = relay.build_library(module, folder / f"{name}.so", precision=precision)
    source = folder / f"{name}.c"
    source.write_text(
        f"""#include <stdio.h>
#include "{name}.h"
int main(void) {{
  static float x[{size}];
  for (int i = 0; i < {size}; ++i) {{ {fill} }}
  int64_t shape[2] = {{1, {size}}};
  relay_executable* program = {name}_open();
  relay_value* input = relay_tensor_copy("float32", 2, shape, x);
  relay_value* result = NULL;
  if (program == NULL || relay_run(program, {name}_entry_main, &input, 1, {options}, &result) != RELAY_OK) return 1;
  for (int i = 0; i < (int)relay_tensor_dims(result)[1]; ++i) printf("%.9g ", (double)((const float*)relay_tensor_data(result))[i]);
  return 0;
}}
"""
    )
    out = folder / name
    include = ["-I", str(folder), "-I", str(include_folder())]
    subprocess.run(["gcc", str(source), str(library), f"-Wl,-rpath,{folder}", *include, "-o", str(out)], check=True)
    return output(out)


def dense(columns: int, depth: int) -> tuple[relay.Module, npt.NDArray[np.float32]]:
    weights = np.random.default_rng(0).standard_normal((columns, depth)).astype(np.float32)
    text = f"""#[version = "0.0.5"]
    def @main(%x: Tensor[(1, {depth}), float32], %w: Tensor[({columns}, {depth}), float32]) -> Tensor[(1, {columns}), float32] {{
      nn.dense(%x, %w)
    }}"""
    return relay.parse(text).bind({"w": weights}), weights


def test_large_constants_are_copied_not_compiled(folder: Path) -> None:
    module, weights = dense(2048, 2048)
    printed = one_row(folder, module, 2048, "x[i] = i == 7;")
    np.testing.assert_array_equal(np.fromstring(printed, sep=" ", dtype=np.float32), weights[:, 7])
    assert max(path.stat().st_size for path in folder.glob("*.so")) > weights.nbytes


def test_reduced_precision_in_a_process_of_its_own(folder: Path) -> None:
    """The registers that it takes, where the machine has them, have to be asked for there."""
    module, weights = dense(96, 160)
    printed = one_row(folder, module, 160, "x[i] = i % 7 - 3;", precision="bf16")
    wanted = weights.astype(numpy_dtype("bfloat16")).astype(np.float64) @ (np.arange(160) % 7 - 3)
    np.testing.assert_allclose(np.fromstring(printed, sep=" "), wanted, rtol=1e-4, atol=1e-4)


def test_subnormal_numbers_as_a_run_asks(folder: Path) -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(1, 40), float32]) -> Tensor[(1, 40), float32] { %x * 0.5f }"""
    for options, kept in (("NULL", True), ("&(relay_run_options){.flush_subnormals = 1}", False)):
        printed = one_row(folder, relay.parse(text), 40, "x[i] = i % 2 ? 1e-38f : 3;", options)
        numbers = np.fromstring(printed, sep=" ", dtype=np.float32)
        assert (numbers[::2] == 1.5).all() and (numbers[1::2] != 0).all() == kept and (numbers[1::2] == 0).all() != kept


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


HEADER = '#[version = "0.0.5"]\n'
VALUES = (
    HEADER
    + """import prelude
def @main[n: Dim](%xs: List[Tensor[(n, 3), float32]], %y: Tensor[(n, 3), float32], %p: (int64, (float32,))) -> Tensor[(n, 3), float32] {
  match (%xs) { Cons(%x, _) => %x, Nil => %y }
}"""
)


def ones(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape}


def called_from_c(folder: Path, runs: list[tuple[Path | None, str, list[Any]]]) -> list[tuple[int, str]]:
    """The status and error of each run, by the functions for C that a library has."""
    library = folder / "libnothing.so"
    if not library.exists():
        relay.build_library(HEADER + "def @main(%x: float32) { %x }", library)
    lines = "".join(json.dumps([str(path or ""), entry, args]) + "\n" for path, entry, args in runs)
    command = [sys.executable, str(Path(__file__).with_name("from_c.py")), str(library)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_values_from_c_are_of_their_types(folder: Path) -> None:
    """What compiled code trusts: where a size in a list was another one than its argument's, it read outside."""
    path = folder / "values.rlx"
    relay.compile(VALUES).save(path)
    pair, nil = [-1, ones(dtype="int64"), [-1, ones()]], [1]
    y = ones(2, 3)
    cases: list[tuple[list[Any], str]] = [
        ([[0, y, [0, y, nil]], y, pair], ""),
        ([nil, ones(0, 3), pair], ""),
        ([[0, y, [0, ones(4, 3), nil]], y, pair], "%xs of @main: a tensor inside of it must be of float32 and shape (2, 3) and is"),
        ([[0, ones(2), nil], y, pair], "and is a tensor of float32 and shape (2,)"),
        ([[0, ones(2, 3, dtype="int32"), nil], y, pair], "and is a tensor of int32 and shape (2, 3)"),
        ([[0, nil, nil], y, pair], "expected a tensor of float32 inside of it, found a constructor value with tag 1"),
        ([[0, y], y, pair], "expected a value of List, of whose constructor 0 there are 2 fields, found 1"),
        ([[2], y, pair], "expected a value of List, found a constructor value with tag 2"),
        ([y, y, pair], "expected a value of List, found a tensor"),
        ([nil, y, [-1, ones(dtype="int64"), ones()]], "%p of @main: expected a tuple of 1, found a tensor of float32 and shape ()"),
        ([nil, y, [0, ones(dtype="int64"), [-1, ones()]]], "expected a tuple of 2, found a constructor value"),
        ([nil, None, pair], "argument 1 of main is a null pointer"),
        ([nil, ones(2, 3, dtype="float64"), pair], "argument 1 of main: expected a tensor of float32, found float64"),
        ([nil, [0, None], pair], "argument 1 of main is a null pointer"),
    ]  # fmt: skip
    found = called_from_c(folder, [(path, "main", args) for args, _ in cases])
    for (args, message), (status, said) in zip(cases, found, strict=True):
        assert (status == 0) == (message == "") and message in said, f"{args}: {status} {said}"
    assert called_from_c(folder, [(None, "main", [])]) == [(1, "the executable is a null pointer")]


def test_sizes_inside_of_values_are_checked_in_c_too(folder: Path) -> None:
    runs: list[tuple[Path | None, str, list[Any]]] = []
    expected = []
    for number, (text, cases) in enumerate(SIZES.values()):
        path = folder / f"sizes{number}.rlx"
        exe = relay.compile(HEADER + text)
        exe.save(path)
        for sizes, right in cases:
            tensors = [ones(n) for n in sizes] or [ones()]
            kinds = [p["type"]["kind"] for p in exe.signature().params]
            # `Of` is the first constructor.
            args = [[0, t] if kind == "adt" else t for t, kind in zip(tensors, kinds, strict=True)]
            runs.append((path, "main", args))
            expected.append(right)
    found = called_from_c(folder, runs)
    assert [status == 0 for status, _ in found] == expected, list(zip(runs, found, strict=True))


def test_closures_are_checked_in_c_too(folder: Path) -> None:
    path = folder / "closures.rlx"
    relay.compile(CLOSURES, entries=CLOSURE_ENTRIES).save(path)

    def value(given: Any) -> Any:
        if isinstance(given, tuple):
            return {"entry": given[0], "args": [value(g) for g in given[1:]]}
        return ones(given) if isinstance(given, int) else ones()

    runs: list[tuple[Path | None, str, list[Any]]] = [(path, c[0], [value(g) for g in c[1:]]) for c, _ in CALLS]
    for (call, message), (status, said) in zip(CALLS, called_from_c(folder, runs), strict=True):
        assert (status == 0) == (message == "") and message in said, f"{call}: {status} {said}"
