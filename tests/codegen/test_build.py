"""Objects: deterministic, self-contained, cached, built in processes, for every target."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

import relay
from relay import pipeline
from relay.codegen import workers
from relay.codegen.cache import KernelCache, kernel_key
from relay.codegen.kernel_object import kernel_object, prepared
from relay.codegen.kernels import build
from relay.codegen.llvm import emit
from relay.codegen.nest_bytes import from_bytes, to_bytes
from relay.codegen.objects import compile_text, elf_symbols
from relay.codegen.target import host_target, parse_target
from relay.codegen.workers import Compilers
from relay.ir.diagnostics import CompileError
from relay.ir.dim import as_var, dim_var
from relay.loop.ir import Buffer, For, Kernel, Store
from relay.loop.target import Target
from relay.te.scalar import Axis, Load, Size, Unary, UnaryOp
from tests.codegen.test_native import tile_kernel


def elementwise(name: str, op: UnaryOp = "tanh", dtype: str = "float32") -> Kernel:
    n = dim_var("n")
    variable = as_var(n)
    assert variable is not None
    x, y, i = Buffer("x", (n,), dtype), Buffer("y", (n,), dtype), Axis("i", n)
    body = Store(y, (i,), Unary(op, Load(x, (i,), dtype), dtype))
    return Kernel(name, (x,), (y,), (variable,), For(i, Size(n), body, "vectorized"))


def test_cache(tmp_path: Path) -> None:
    target = host_target()
    # A kernel of another name is the same kernel: a program that has one more before it finds it.
    kernels = [elementwise("a"), elementwise("b", "exp"), elementwise("c")]
    objects = build(kernels, target, cache=tmp_path)
    assert objects[0] == objects[2] != objects[1]
    files = sorted(tmp_path.glob("*/*.o"))
    assert len(files) == 2
    stamps = [f.read_bytes() for f in files]
    assert build(kernels, target, cache=tmp_path) == objects
    assert build(kernels, target, cache=False) == objects
    # A damaged file is compiled again and replaced.
    files[0].write_bytes(stamps[0][:-7])
    assert build(kernels, target, cache=tmp_path) == objects
    assert files[0].read_bytes() == stamps[0]
    assert not list(tmp_path.glob("*/*.tmp"))


def test_cache_keys() -> None:
    """The same structure made again has the same key, whatever its name; anything else another."""
    host, other = host_target(), parse_target("x86-64-v2")
    assert kernel_key(elementwise("a"), host) == kernel_key(elementwise("b"), host)
    kernels = elementwise("a"), elementwise("a", "exp"), elementwise("a", "exp", "float64")
    assert len({kernel_key(k, t) for k in kernels for t in (host, other)}) == 6


def test_unwritable_cache(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert build([elementwise("a")], host_target(), cache=blocked / "inside")


def test_prune(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    for key in ("aa1", "bb2", "cc3"):
        cache.put(key, b"x" * 1000)
    cache.prune(max_bytes=2500)
    assert sum(cache.get(key) is not None for key in ("aa1", "bb2", "cc3")) == 2


def compile_all(kernels: Sequence[Kernel], target: Target, processes: int, worth: float | None = None) -> list[bytes]:
    with Compilers(target, processes, worth) as compilers:
        for kernel in kernels:
            compilers.add(kernel)
        return compilers.objects()


def test_processes_give_the_same_objects() -> None:
    target = host_target()
    operations: tuple[UnaryOp, ...] = ("exp", "log", "tanh", "erf", "sin", "sigmoid")
    kernels = [elementwise(f"k{n}", op) for n, op in enumerate(operations)]
    kernels += [tile_kernel(rows, 4 * target.lanes(32), 64, "float32") for rows in range(1, 7)]
    expected = [kernel_object(k, target) for k in kernels]
    assert compile_all(kernels, target, 1) == expected
    assert compile_all(kernels, target, 3, worth=0) == expected


NORM = "sum(nn.layer_norm(%x, %g, %b) * %x)"
PRODUCT = "sum(tanh(nn.bias_add(nn.dense(%x, %w), %b)) * %x)"


@pytest.mark.parametrize("name", ["cpu", "znver4", "x86-64-v3"])
@pytest.mark.parametrize("body", [NORM, PRODUCT])
@pytest.mark.parametrize("rows", ["16", "m"])
def test_code_does_not_depend_on_where_objects_lie(name: str, body: str, rows: str) -> None:
    """A nest that was sent somewhere else, and so is made of other objects, is the same code."""
    dims, row = ("[m: Dim]" if rows == "m" else ""), "Tensor[(768,), float32]"
    module = relay.parse(f"""#[version = "0.0.5"]
def @main{dims}(%x: Tensor[({rows}, 768), float32], %w: Tensor[(768, 768), float32], %g: {row}, %b: {row}) {{ {body} }}""")
    made = pipeline.build(relay.value_and_grad(module), relay.Options(target=name))
    for plan in made.plan.kernels:
        text = emit(prepared(plan.kernel, made.target), made.target)
        copies = [from_bytes(to_bytes({0: plan.kernel}, made.target))[1][0] for _ in range(4)]
        assert all(emit(prepared(copy, made.target), made.target) == text for copy in copies)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """As many as helpers have given."""
    given, receive = threading.Semaphore(0), workers._receive

    def received(pipe: IO[bytes]) -> bytes:
        data = receive(pipe)
        if data:  # the first is empty: the helper is there
            given.release()
        return data

    monkeypatch.setattr(workers, "_receive", received)
    return given


def test_helpers_compile_what_they_are_asked(answers: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels that this process would be long about, helpers make some, with the same bytes."""
    kernels = [elementwise(f"k{n}") for n in range(3)]
    expected = [kernel_object(k, host_target()) for k in kernels]
    mine: list[str] = []

    def slowly(kernel: Kernel, target: Target) -> bytes:
        mine.append(kernel.name)
        for _ in range(2):
            assert answers.acquire(timeout=120)
        return kernel_object(kernel, target)

    monkeypatch.setattr(workers, "kernel_object", slowly)
    assert compile_all(kernels, host_target(), 2, worth=0) == expected
    assert len(mine) == 1


def test_helpers_compile_while_kernels_come(answers: threading.Semaphore) -> None:
    """What is there is compiled before the last is known, and the same kernels are found in order."""
    kernels = [elementwise("a", "exp"), elementwise("b", "log"), elementwise("c")]
    with Compilers(host_target(), 2, worth=0) as compilers:
        for kernel in kernels[:2]:
            compilers.add(kernel)
        for _ in range(2):
            assert answers.acquire(timeout=120)
        compilers.add(kernels[2])
        assert compilers.objects() == [kernel_object(k, host_target()) for k in kernels]


def test_helpers_end_with_a_build_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), Compilers(host_target(), 2, worth=0) as compilers:
        for n in range(2):
            compilers.add(elementwise(f"k{n}"))
        (helper,) = compilers._helpers
        raise ZeroDivisionError
    assert helper.returncode is not None


def test_how_many_helpers_pay() -> None:
    assert [workers._helpers(work, 8, 4, 500.0) for work in (100.0, 499.0, 501.0, 1100.0, 9000.0)] == [0, 0, 1, 2, 3]
    assert workers._helpers(9000.0, 2, 4, 500.0) == 1 and workers._helpers(9000.0, 8, 1, 500.0) == 0


def test_errors_come_back_from_processes(answers: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a helper cannot compile, a kernel of a type that no code is for, is said by the caller."""
    bad = [elementwise(f"k{n}", dtype="float8") for n in range(3)]
    monkeypatch.setattr(workers, "kernel_object", lambda kernel, target: bytes(answers.acquire(timeout=120)))
    with pytest.raises(CompileError, match="float8, which has no storage"):
        compile_all(bad, host_target(), 2, worth=0)


def test_a_helper_ends_with_work_half_sent() -> None:
    (helper,) = workers._start(1)
    assert helper.stdin is not None
    helper.stdin.write(b"half")  # in Python's buffer still: closing the pipe sends it
    workers._end(helper)
    assert helper.returncode is not None and helper.stdin.closed


def test_only_memory_functions_are_called() -> None:
    bad = "declare float @expf(float)\ndefine float @f(float %x) { %y = call float @expf(float %x)\n ret float %y }"
    with pytest.raises(CompileError, match="expf"):
        compile_text(bad, host_target())


@pytest.mark.parametrize("name", ["cpu", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "neoverse-n1"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_target(name: str, dtype: str) -> None:
    target = parse_target(name)
    operations: tuple[UnaryOp, ...] = ("tanh", "sin", "log", "round", "erf")
    for code in build([elementwise(op, op, dtype) for op in operations], target, cache=False):
        assert elf_symbols(code.data)[1] <= {"memcpy", "memmove", "memset"}
    (tile,) = build([tile_kernel(6, 4 * target.lanes(32), 64, "float32")], target, cache=False)
    machine = int.from_bytes(tile.data[18:20], "little")
    assert machine == (183 if target.triple.startswith("aarch64") else 62)
    assert elf_symbols(tile.data)[0] == {tile.symbol}


def test_target_descriptions() -> None:
    host = parse_target("cpu")
    assert host == host_target() == parse_target("llvm")
    v4 = (
        parse_target("cpu -mcpu=znver4 -mattr=-avx512bf16") if host.triple.startswith("x86") else parse_target("znver4")
    )
    assert v4.vector_bits == 512 and v4.masked and v4.vector_registers == 32
    assert "avx512bf16" not in v4.features or not host.triple.startswith("x86")
    v3 = parse_target("x86-64-v3")
    assert (v3.vector_bits, v3.vector_registers, v3.masked, v3.fma) == (256, 16, True, True)
    assert v4.mask_registers and not v3.mask_registers
    assert [v3.masks(bits) for bits in (8, 16, 32, 64)] == [False, False, True, True] and v4.masks(8)
    assert parse_target("x86-64-v2").vector_bits == 128 and not parse_target("x86-64-v2").fma
    assert parse_target("aarch64").triple == "aarch64-unknown-linux-gnu"
    assert parse_target("x86-64-v3 -mattr=+avx512f,+avx512bw,+avx512dq,+avx512vl").vector_bits == 512


@pytest.mark.parametrize("text", ["z80", "cpu -mcpu=nothing", "cpu -O3", "cpu -mattr=avx2", "aarch64 -mcpu=haswell"])
def test_unknown_targets(text: str) -> None:
    with pytest.raises(CompileError) as info:
        parse_target(text)
    assert info.value.hint


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Helper processes do not run the caller's main module."""
    script = tmp_path / "script.py"
    script.write_text(
        "from relay.codegen.target import host_target\n"
        "from tests.codegen.test_build import compile_all, elementwise\n"
        "print('once')\n"
        "print(len(compile_all([elementwise(f'k{n}') for n in range(3)], host_target(), 2, worth=0)))\n"
    )
    root = str(Path(__file__).parents[2])
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env={"PYTHONPATH": root})
    assert result.stdout == "once\n3\n", result.stderr


def test_a_process_that_compiles_imports_no_numpy() -> None:
    """It takes as long as all else that such a process imports. Kernels that ask for it, few, get it then."""
    kernel = tile_kernel(3, 2 * host_target().lanes(32), 64, "float32")
    code = (
        "import sys\n"
        "from relay.codegen.workers import _answer\n"
        "object = _answer(sys.stdin.buffer.read())\n"
        "assert isinstance(object, bytes), object\n"
        "print('numpy' in sys.modules)\n"
    )
    message = to_bytes({0: kernel}, host_target())
    done = subprocess.run([sys.executable, "-c", code], input=message, capture_output=True)
    assert done.stdout == b"False\n", done.stderr


def test_a_process_does_not_grow_with_what_it_compiles() -> None:
    text = "define void @f(ptr %a) {\n %v = load float, ptr %a\n %w = fadd float %v, %v\n store float %w, ptr %a\n ret void\n}"
    target, statm = parse_target("cpu"), Path("/proc/self/statm")

    def resident() -> int:
        return int(statm.read_text().split()[1])

    for _ in range(20):
        compile_text(text, target)
    before = resident()
    for _ in range(100):
        compile_text(text, target)
    assert (resident() - before) * os.sysconf("SC_PAGE_SIZE") < 3 << 20  # 7 MB, if each pass manager stayed
