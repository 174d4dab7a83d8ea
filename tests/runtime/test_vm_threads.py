"""Threads, interrupts and forks around programs assembled by hand."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from relay import _runtime
from relay.executable import (
    Assembler,
    Executable,
    KernelEntry,
    Operand,
)
from tests.runtime.programs import (
    ADD_ONE,
    DOUBLE_PARALLEL,
    SCALARS,
    add_one_kernel,
    build_list,
    call_add_one,
    countdown,
    fresh_vector,
    function,
    integer,
    live,
    object_code,
    program,
    sum_list,
)

# Every test here runs its programs both ways.
pytestmark = pytest.mark.usefixtures("executor")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_parallel_kernels(threads: int) -> None:
    exe = parallel_program()
    for n in (0, 1, 15, 16, 17, 1000, 100_000):
        np.testing.assert_array_equal(exe.run("main", (n,), threads=threads), 2 * np.arange(n))


def test_number_of_workers() -> None:
    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("NumWorkers", out)
        asm.emit("Ret", out)

    exe = program(function("main", 0, emit))
    assert int(exe.run("main", (), threads=3)) == 3
    assert int(exe.run("main", ())) == _runtime.available_threads()


def test_threads_share_one_executable() -> None:
    exe = program(function("main", 1, build_list))
    adder = program(function("main", 1, sum_list))
    shared = exe.run("main", (1000,))
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(
                r for v in (shared, exe.run("main", (1000,))) if (r := int(adder.run("main", (v,)))) != 500_500
            )

    before = live()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert live() == before


def endless(asm: Assembler) -> None:
    top = asm.label()
    asm.bind(top)
    asm.emit("Goto", top)


@pytest.mark.parametrize("body", ["loop", "tail", "kernel"])
def test_control_c_interrupts_a_run(body: str) -> None:
    code = f"""
        import faulthandler, signal, threading, time, os
        from tests.runtime import test_vm_threads as t
        faulthandler.dump_traceback_later(50, exit=True)  # it ends though nobody waits for it any more
        exe = t.endless_program({body!r})
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            exe.run("main", (1,))
        except KeyboardInterrupt:
            assert time.monotonic() - start < 2
            print("interrupted", flush=True)
            raise
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "interrupted\n" and "KeyboardInterrupt" in done.stderr and done.returncode in (130, -2), done


def endless_program(body: str) -> Executable:
    if body == "loop":
        return program(function("main", 1, endless))
    if body == "tail":
        return program(function("main", 1, lambda asm: asm.emit("TailInvoke", 0, [0])))

    def kernels(asm: Assembler) -> None:
        out, top = asm.reg(), asm.label()
        asm.emit("AllocScalar", out, "int64")
        asm.bind(top)
        asm.emit("InvokeKernel", 0, None, [out], [0])
        asm.emit("Goto", top)

    kernel = KernelEntry("t", 0, "lookup", (Operand("int64", 0),), 1, 1)
    return program(function("main", 1, kernels), kernels=[kernel], objects=[object_code(SCALARS)])


def test_other_threads_run_while_a_program_does() -> None:
    exe = program(function("main", 1, countdown))
    seen: list[float] = []
    thread = threading.Thread(target=lambda: exe.run("main", (1_000_000,)))
    thread.start()
    while thread.is_alive():
        seen.append(time.monotonic())
    thread.join()
    assert len(seen) > 3  # the interpreter lock was free meanwhile


def test_memory_returns_to_the_pool() -> None:
    exe = program(function("main", 1, call_add_one), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)])
    x = np.zeros(1 << 16, np.float32)
    exe.run("main", (x,))
    before = _runtime.pool_statistics()
    _runtime.pool_reset_peak()
    for _ in range(10):
        exe.run("main", (x,))
    after = _runtime.pool_statistics()
    assert after["live_bytes"] == before["live_bytes"]
    assert after["peak_bytes"] - before["live_bytes"] <= 2 * x.nbytes
    assert after["allocations"] == before["allocations"] + 10
    _runtime.pool_trim()
    assert _runtime.pool_statistics()["cached_bytes"] == 0


def test_a_forked_child_runs_programs() -> None:
    code = """
        import os, sys
        from tests.runtime import test_vm_threads as t
        exe = t.parallel_program()
        exe.run("main", (100000,), threads=2)
        pid = os.fork()
        y = exe.run("main", (100000,), threads=2).numpy()
        ok = bool((y == 2 * t.np.arange(100000)).all())
        if pid == 0:
            os._exit(0 if ok else 3)
        _, status = os.waitpid(pid, 0)
        sys.exit(0 if ok and status == 0 else 4)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done


def parallel_program() -> Executable:
    def emit(asm: Assembler) -> None:
        nbytes = asm.reg()
        asm.emit("IMul", nbytes, 0, integer(asm, 8))
        out = fresh_vector(asm, "int64", 0, nbytes)
        asm.emit("InvokeKernel", 0, None, [out], [0])
        asm.emit("Ret", out)

    kernel = KernelEntry("double", 0, "double", (Operand("int64", 1, 64),), 1, 1)
    return program(function("main", 1, emit), kernels=[kernel], objects=[object_code(DOUBLE_PARALLEL)])


def test_affinity_bounds_the_number_of_threads() -> None:
    code = """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from relay import _runtime
        from tests.runtime import test_vm_threads as t
        assert _runtime.available_threads() == 1
        assert int(t.parallel_program().run("main", (1000,)).numpy().sum()) == 999000
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
