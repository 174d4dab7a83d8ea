"""Programs assembled by hand, run by the virtual machine and as native code."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from relay import _runtime
from relay.aot.native import with_native_code
from relay.codegen.target import host_target
from relay.executable import (
    ArgumentError,
    Assembler,
    Executable,
    ExecutableImage,
    KernelEntry,
    Operand,
    RecursionLimitError,
    Tensor,
    Value,
)
from relay.executable.bytecode import OPCODES
from relay.ir.diagnostics import ExecutionError
from relay.lower.scalars import opcode_of
from relay.te.scalar import BinaryOp, CompareOp, UnaryOp
from tests.runtime import programs
from tests.runtime.programs import (
    ADD_ONE,
    DOUBLE_PARALLEL,
    SCALARS,
    add_one_kernel,
    call_add_one,
    fresh_vector,
    function,
    integer,
    object_code,
    program,
)


@pytest.fixture(params=["vm", "aot"], autouse=True)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs its programs both ways."""
    if request.param == "aot":
        assembled = programs.image

        def with_code(*args: Any, **rest: Any) -> ExecutableImage:
            return with_native_code(assembled(*args, **rest), host_target())

        monkeypatch.setattr(programs, "image", with_code)
    return str(request.param)


def live() -> dict[str, int]:
    """The objects alive, without what earlier tests left to Python's collector."""
    gc.collect()
    return _runtime.live_objects()


def binary(opcode: str) -> Executable:
    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit(opcode, out, 0, 1)
        asm.emit("Ret", out)

    return program(function(opcode, 2, emit))


@pytest.mark.parametrize(
    ("opcode", "meaning"),
    [
        ("IAdd", lambda a, b: a + b),
        ("ISub", lambda a, b: a - b),
        ("IMul", lambda a, b: a * b),
        ("IFloorDiv", lambda a, b: a // b),
        ("IMod", lambda a, b: a % b),
        ("IMin", min),
        ("IMax", max),
    ],
)
def test_arithmetic(opcode: str, meaning: Callable[[int, int], int]) -> None:
    exe = binary(opcode)
    for a in (-7, -6, -1, 0, 1, 6, 7):
        for b in (-3, -2, -1, 1, 2, 3):
            assert int(exe.run("main", (a, b))) == meaning(a, b), (a, b)


def test_arithmetic_at_the_edges() -> None:
    low = -(2**63)
    assert int(binary("IAdd").run("main", (2**63 - 1, 1))) == low
    assert int(binary("IFloorDiv").run("main", (low, -1))) == low
    assert int(binary("IMod").run("main", (low, -1))) == 0
    for opcode in ("IFloorDiv", "IMod"):
        with pytest.raises(ExecutionError, match="division by zero"):
            binary(opcode).run("main", (1, 0))


def test_kernel_call_with_fresh_memory() -> None:
    exe = program(
        function("main", 1, call_add_one),
        kernels=[add_one_kernel()],
        objects=[object_code(ADD_ONE)],
        dtypes=["float32"],
    )
    x = np.arange(5, dtype=np.float32)
    y = exe.run("main", (x,))
    assert isinstance(y, Tensor) and y.shape == (5,) and y.dtype == "float32" and y.device == "cpu"
    np.testing.assert_array_equal(np.asarray(y), x + 1)
    assert exe.run("main", (np.empty(0, np.float32),)).shape == (0,)
    exe.profile(True)
    exe.run("main", (x,))
    calls, nanoseconds = exe.kernel_statistics()["add_one"]
    assert calls == 1 and nanoseconds > 0


def test_kernels_read_unaligned_imports_and_never_write_them() -> None:
    objects = [object_code(ADD_ONE)]
    exe = program(function("main", 1, call_add_one), kernels=[add_one_kernel()], objects=objects)
    x = np.arange(9, dtype=np.float32)[1:]
    np.testing.assert_array_equal(exe.run("main", (x,)), x + 1)

    def onto_itself(asm: Assembler) -> None:
        size = asm.reg()
        asm.emit("DimOf", size, 0, 0)
        asm.emit("InvokeKernel", 0, None, [0, 0], [size])
        asm.emit("Ret", 0)

    kernel = KernelEntry("add_one", 0, "add_one", (Operand("float32", 1), Operand("float32", 1)), 1, 1)
    with pytest.raises(ExecutionError, match="must not be written"):
        program(function("main", 1, onto_itself), kernels=[kernel], objects=objects).run("main", (x,))
    np.testing.assert_array_equal(x, np.arange(1, 9, dtype=np.float32))


def test_kernel_operands_are_checked() -> None:
    exe = program(function("main", 1, call_add_one), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)])
    with pytest.raises(ExecutionError, match=r"operand 0 must be a tensor of float32 and rank 1 and is .*float64"):
        exe.run("main", (np.zeros(3),))

    def misplaced(asm: Assembler) -> None:
        size, nbytes = integer(asm, 2), integer(asm, 64)
        storage, out = asm.reg(), asm.reg()
        asm.emit("AllocStorage", storage, nbytes, 64, "cpu")
        asm.emit("AllocTensor", out, storage, integer(asm, 4), "float32", [size])
        asm.emit("InvokeKernel", 0, None, [0, out], [size])
        asm.emit("Ret", out)

    exe = program(function("main", 1, misplaced), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)])
    with pytest.raises(ExecutionError, match="aligned to 64"):
        exe.run("main", (np.zeros(2, np.float32),))


def test_scalars_stay_unboxed_and_kernels_write_them_in_place() -> None:
    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("AllocScalar", out, "float64")
        asm.emit("InvokeKernel", 0, None, [0, out], [])
        asm.emit("InvokeKernel", 0, None, [out, out], [])
        asm.emit("Ret", out)

    kernel = KernelEntry("scale", 0, "scale", (Operand("float64", 0), Operand("float64", 0)), 1)
    exe = program(function("main", 1, emit), kernels=[kernel], objects=[object_code(SCALARS)], dtypes=["float64"])
    before = _runtime.pool_statistics()["allocations"]
    y = exe.run("main", (2.0,))
    assert _runtime.pool_statistics()["allocations"] == before + 1  # the result's box alone
    assert y.shape == () and float(y) == 18.0
    assert float(exe.run("main", (np.array(2.0),))) == 18.0
    assert float(exe.run("main", (Tensor.from_numpy(np.array(3.0)),))) == 27.0


def test_workspace_failure_codes_and_constants_in_objects() -> None:
    def emit(asm: Assembler) -> None:
        space, out = asm.reg(), asm.reg()
        asm.emit("AllocStorage", space, integer(asm, 4096), 64, "cpu")
        asm.emit("AllocScalar", out, "int64")
        asm.emit("InvokeKernel", 0, space, [out], [])
        asm.emit("Ret", out)

    objects = [object_code(SCALARS)]
    scalar = (Operand("int64", 0),)
    exe = program(function("main", 0, emit), kernels=[KernelEntry("w", 0, "use_workspace", scalar, 1)], objects=objects)
    assert int(exe.run("main", ())) == 7

    def table(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("AllocScalar", out, "int64")
        asm.emit("InvokeKernel", 0, None, [out], [0])
        asm.emit("Ret", out)

    exe = program(function("main", 1, table), kernels=[KernelEntry("t", 0, "lookup", scalar, 1, 1)], objects=objects)
    assert [int(exe.run("main", (i,))) for i in range(4)] == [10, 20, 30, 40]
    exe = program(function("main", 1, table), kernels=[KernelEntry("t", 0, "fails", scalar, 1, 1)], objects=objects)
    with pytest.raises(ExecutionError, match="kernel t failed with code 42\n  in main"):
        exe.run("main", (0,))


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


def countdown(asm: Assembler) -> None:
    """main(n): n + (n - 1) + ... by recursion that is not in tail position."""
    zero, more, out = integer(asm, 0), asm.label(), asm.reg()
    less, flag = asm.reg(), asm.reg()
    asm.emit("IMin", flag, 0, integer(asm, 1))
    done = asm.label()
    asm.emit("Switch", flag, [done, more])
    asm.bind(more)
    asm.emit("ISub", less, 0, integer(asm, 1))
    asm.emit("Invoke", out, 0, [less], [])
    asm.emit("IAdd", out, out, 0)
    asm.emit("Ret", out)
    asm.bind(done)
    asm.emit("Ret", zero)


def test_deep_recursion_and_its_limit() -> None:
    exe = program(function("main", 1, countdown))
    n = 100_000
    assert int(exe.run("main", (n,))) == n * (n + 1) // 2
    exe.set_limits(1 << 20)
    assert int(exe.run("main", (100,))) == 5050
    with pytest.raises(RecursionLimitError, match=r"control stack of 1048576 bytes is full at the call of main"):
        exe.run("main", (n,))
    assert int(exe.run("main", (100,))) == 5050
    with pytest.raises(ArgumentError):
        exe.set_limits(1)


def test_straight_line_code_may_be_very_long(executor: str) -> None:
    length = 400_000 if executor == "vm" else 2_000

    def emit(asm: Assembler) -> None:
        last, one = 0, integer(asm, 0)
        for _ in range(length):
            out = asm.reg()
            asm.emit("IAdd", out, last, one)
            last = out
        for _ in range(100_000):  # the frame is larger than the limit below
            asm.reg()
        asm.emit("Ret", last)

    exe = program(function("main", 1, emit))
    assert int(exe.run("main", (0,))) == 0
    exe.set_limits(1 << 20)
    with pytest.raises(RecursionLimitError):
        exe.run("main", (0,))


def test_tail_calls_use_no_stack() -> None:
    def emit(asm: Assembler) -> None:
        done, more, flag, less, total = asm.label(), asm.label(), asm.reg(), asm.reg(), asm.reg()
        asm.emit("IMin", flag, 0, integer(asm, 1))
        asm.emit("Switch", flag, [done, more])
        asm.bind(more)
        asm.emit("ISub", less, 0, integer(asm, 1))
        asm.emit("IAdd", total, 1, 0)
        asm.emit("TailInvoke", 0, [less, total])
        asm.bind(done)
        asm.emit("Ret", 1)

    exe = program(function("main", 2, emit))
    exe.set_limits(1 << 16)
    assert int(exe.run("main", (300_000, 0))) == 300_000 * 300_001 // 2


def test_tail_call_into_a_larger_frame_keeps_its_arguments() -> None:
    def main(asm: Assembler) -> None:
        asm.emit("TailInvoke", 1, [1, 0])

    def larger(asm: Assembler) -> None:
        for _ in range(40):
            asm.reg()
        out = asm.reg()
        asm.emit("AllocADT", out, -1, [0, 1])
        asm.emit("Ret", out)

    a, b = program(function("main", 2, main), function("larger", 2, larger)).run("main", (1, np.ones(2))).fields
    np.testing.assert_array_equal(a, np.ones(2))
    assert int(b) == 1


def test_closures() -> None:
    def main(asm: Assembler) -> None:
        closure, out = asm.reg(), asm.reg()
        asm.emit("AllocClosure", closure, 1, [0])
        asm.emit("InvokeClosure", out, closure, [1], [])
        captured = asm.reg()
        asm.emit("GetField", captured, closure, 0)
        asm.emit("IAdd", out, out, captured)
        asm.emit("AllocClosure", closure, 1, [out])
        asm.emit("TailInvokeClosure", closure, [1])

    def subtract(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("ISub", out, 0, 1)
        asm.emit("Ret", out)

    exe = program(function("main", 2, main), function("subtract", 2, subtract))
    assert int(exe.run("main", (10, 3))) == ((10 - 3) + 10) - 3

    def give(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("AllocClosure", out, 1, [0])
        asm.emit("Ret", out)

    def take(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("InvokeClosure", out, 0, [], [])
        asm.emit("Ret", out)

    other = program(function("main", 1, give), function("subtract", 2, subtract)).run("main", (1,))
    assert other.kind == "closure"
    taker = program(function("main", 1, take))
    with pytest.raises(ExecutionError, match="only be called by the executable that made it"):
        taker.run("main", (other,))
    with pytest.raises(ExecutionError, match="expected a closure and got a scalar"):
        taker.run("main", (1,))


def build_list(asm: Assembler) -> None:
    """main(n): Cons(n, ... Cons(1, Nil)) with tags Cons = 0, Nil = 1, by a loop."""
    tail, i, one, flag = asm.reg(), asm.reg(), integer(asm, 1), asm.reg()
    asm.emit("AllocADT", tail, 1, [])
    asm.emit("LoadConsti", i, "int64", 1)
    top, body, done = asm.label(), asm.label(), asm.label()
    asm.bind(top)
    asm.emit("ISub", flag, 0, i)
    asm.emit("IMax", flag, flag, integer(asm, -1))
    asm.emit("IMin", flag, flag, integer(asm, 0))
    asm.emit("IAdd", flag, flag, one)
    asm.emit("Switch", flag, [done, body])
    asm.bind(body)
    asm.emit("AllocADT", tail, 0, [i, tail])
    asm.emit("IAdd", i, i, one)
    asm.emit("Goto", top)
    asm.bind(done)
    asm.emit("Ret", tail)


def sum_list(asm: Assembler) -> None:
    """main(list): the sum of its items."""
    total, item, tag = integer(asm, 0), asm.reg(), asm.reg()
    top, cons, nil = asm.label(), asm.label(), asm.label()
    asm.bind(top)
    asm.emit("GetTag", tag, 0)
    asm.emit("Switch", tag, [cons, nil])
    asm.bind(cons)
    asm.emit("GetField", item, 0, 0)
    asm.emit("IAdd", total, total, item)
    asm.emit("GetField", 0, 0, 1)
    asm.emit("Goto", top)
    asm.bind(nil)
    asm.emit("Ret", total)


def test_a_long_list_is_built_folded_and_freed() -> None:
    n = 100_000
    before = live()
    exe = program(function("main", 1, build_list))
    built = exe.run("main", (n,))
    assert live()["adt"] == before["adt"] + n + 1
    assert built.tag == 0 and int(built.field(0)) == n and built.field(1).tag == 0
    assert int(program(function("main", 1, sum_list)).run("main", (built,))) == n * (n + 1) // 2
    del built, exe
    assert live() == before


def test_lists_from_python() -> None:
    before = live()
    items: Value = Value.adt(1, ())
    for i in range(100_000):
        items = Value.adt(0, (i, items))
    assert int(program(function("main", 1, sum_list)).run("main", (items,))) == 99_999 * 50_000
    del items
    assert live() == before


def cycle(asm: Assembler) -> None:
    """main(keep): a reference that holds a closure that captures the reference; the closure is the result if
    keep is true."""
    reference, closure, nothing = asm.reg(), asm.reg(), integer(asm, 0)
    drop = asm.label()
    asm.emit("RefNew", reference, nothing)
    asm.emit("AllocClosure", closure, 1, [reference])
    asm.emit("RefWrite", reference, closure)
    asm.emit("If", 0, drop)
    asm.emit("Ret", closure)
    asm.bind(drop)
    asm.emit("Ret", nothing)


def recurse(asm: Assembler) -> None:
    """(reference, n): n = 0 ? 0 : n + (!reference)(n - 1)."""
    flag, done, more, less, itself, out = asm.reg(), asm.label(), asm.label(), asm.reg(), asm.reg(), asm.reg()
    asm.emit("IMin", flag, 1, integer(asm, 1))
    asm.emit("Switch", flag, [done, more])
    asm.bind(more)
    asm.emit("ISub", less, 1, integer(asm, 1))
    asm.emit("RefRead", itself, 0)
    asm.emit("InvokeClosure", out, itself, [less], [])
    asm.emit("IAdd", out, out, 1)
    asm.emit("Ret", out)
    asm.bind(done)
    asm.emit("Ret", flag)


def test_a_closure_that_refers_to_itself_is_collected() -> None:
    before = live()
    exe = program(function("main", 1, cycle), function("recurse", 2, recurse))
    exe.run("main", (False,))
    assert live()["closure"] == before["closure"] and live()["ref"] == before["ref"]
    kept = exe.run("main", (True,))
    _runtime.collect()
    assert live()["closure"] == before["closure"] + 1 and live()["ref"] == before["ref"] + 1
    del kept
    assert _runtime.collect() == 1
    del exe
    assert live() == before


def test_a_recursive_closure_runs() -> None:
    def main(asm: Assembler) -> None:
        reference, closure, out = asm.reg(), asm.reg(), asm.reg()
        asm.emit("RefNew", reference, 0)
        asm.emit("AllocClosure", closure, 1, [reference])
        asm.emit("RefWrite", reference, closure)
        asm.emit("InvokeClosure", out, closure, [0], [])
        asm.emit("Ret", out)

    before = live()
    exe = program(function("main", 1, main), function("recurse", 2, recurse))
    assert int(exe.run("main", (1000,))) == 500_500
    del exe
    assert live() == before


def test_cycles_are_collected_while_a_run_goes_on() -> None:
    def main(asm: Assembler) -> None:
        reference, closure, one, flag = asm.reg(), asm.reg(), integer(asm, 1), asm.reg()
        top, body, done = asm.label(), asm.label(), asm.label()
        asm.bind(top)
        asm.emit("IMin", flag, 0, one)
        asm.emit("Switch", flag, [done, body])
        asm.bind(body)
        asm.emit("RefNew", reference, one)
        asm.emit("AllocADT", closure, 0, [reference])
        asm.emit("RefWrite", reference, closure)
        asm.emit("ISub", 0, 0, one)
        asm.emit("Goto", top)
        asm.bind(done)
        asm.emit("Ret", reference)

    before = live()
    exe = program(function("main", 1, main))
    last = exe.run("main", (50_000,))
    assert last.kind == "ref" and last.read().tag == 0
    assert live()["ref"] == before["ref"] + 1
    del last, exe
    _runtime.collect()
    assert live() == before


def test_references_are_shared_between_calls() -> None:
    def make(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("RefNew", out, 0)
        asm.emit("Ret", out)

    def bump(asm: Assembler) -> None:
        old, new, pair = asm.reg(), asm.reg(), asm.reg()
        asm.emit("RefRead", old, 0)
        asm.emit("GetField", new, old, 0)
        asm.emit("IAdd", new, new, integer(asm, 1))
        asm.emit("AllocADT", pair, -1, [new, old])
        asm.emit("RefWrite", 0, pair)
        asm.emit("Ret", new)

    cell = program(function("main", 1, make)).run("main", ((0,),))
    exe = program(function("main", 1, bump))
    assert [int(exe.run("main", (cell,))) for _ in range(3)] == [1, 2, 3]
    assert int(cell.read().field(0)) == 3


def test_shapes_views_and_devices() -> None:
    def main(asm: Assembler) -> None:
        shape, two, three, view, row, back = (asm.reg() for _ in range(6))
        asm.emit("ShapeOf", shape, 0)
        asm.emit("LoadConsti", two, "int64", 2)
        asm.emit("LoadConsti", three, "int64", 3)
        asm.emit("ReshapeTensor", view, 0, [two, three])
        asm.emit("ViewTensor", row, view, integer(asm, 12), [three])
        asm.emit("ReshapeTensorReg", back, view, shape)
        there, again = asm.reg(), asm.reg()
        asm.emit("DeviceCopy", there, row, "fake")
        asm.emit("DeviceCopy", again, there, "cpu")
        out = asm.reg()
        asm.emit("AllocADT", out, -1, [shape, view, row, back, there, again])
        asm.emit("Ret", out)

    x = np.arange(6, dtype=np.float32)
    shape, view, row, back, there, again = program(function("main", 1, main)).run("main", (x,)).fields
    np.testing.assert_array_equal(shape, [6])
    np.testing.assert_array_equal(view, x.reshape(2, 3))
    np.testing.assert_array_equal(row, x[3:])
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(again, x[3:])
    assert there.device == "fake" and there.shape == (3,)
    with pytest.raises(ArgumentError, match="on device fake"):
        there.numpy()
    np.testing.assert_array_equal(there.to("cpu"), x[3:])


def test_host_access_to_the_fake_device_faults() -> None:
    code = """
        import ctypes, numpy as np
        from relay.executable import Tensor
        there = Tensor.from_numpy(np.ones(4)).to("fake")
        assert there.to("cpu").numpy()[0] == 1
        print("before", flush=True)
        ctypes.string_at(there.data_ptr, 8)
        print("after")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == -11 and done.stdout == "before\n", done


def test_kernels_run_on_the_fake_device() -> None:
    def emit(asm: Assembler, out_device: str) -> None:
        there, size, nbytes, back = (asm.reg() for _ in range(4))
        asm.emit("DeviceCopy", there, 0, "fake")
        asm.emit("DimOf", size, there, 0)
        asm.emit("IMul", nbytes, size, integer(asm, 4))
        out = fresh_vector(asm, "float32", size, nbytes, out_device)
        asm.emit("InvokeKernel", 0, None, [there, out], [size])
        asm.emit("DeviceCopy", back, out, "cpu")
        asm.emit("Ret", back)

    parts: dict[str, Any] = {"kernels": [add_one_kernel()], "objects": [object_code(ADD_ONE)]}
    x = np.arange(2000, dtype=np.float32)
    exe = program(function("main", 1, lambda asm: emit(asm, "fake")), **parts)
    np.testing.assert_array_equal(exe.run("main", (x,)), x + 1)
    with pytest.raises(ExecutionError, match="several devices"):
        program(function("main", 1, lambda asm: emit(asm, "cpu")), **parts).run("main", (x,))
    assert _runtime.pool_statistics("fake")["live_bytes"] == 0


def update_in_place(asm: Assembler) -> None:
    """main(x): x + 1, in x's memory where nobody else needs it."""
    size, nbytes, out = asm.reg(), asm.reg(), asm.reg()
    asm.emit("DimOf", size, 0, 0)
    asm.emit("IMul", nbytes, size, integer(asm, 4))
    asm.emit("AllocReuse", out, 0, nbytes, "float32", "cpu", [size])
    asm.emit("InvokeKernel", 0, None, [0, out], [size])
    asm.emit("Kill", 0)
    asm.emit("Ret", out)


def test_donated_arguments_are_updated_in_place() -> None:
    exe = program(function("main", 1, update_in_place), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)])
    x = np.arange(100, dtype=np.float32)
    imported = exe.run("main", (x,))
    np.testing.assert_array_equal(x, np.arange(100, dtype=np.float32))
    address = imported.data_ptr
    kept = exe.run("main", (imported,))
    assert kept.data_ptr != address and not imported.donated
    given = exe.run("main", (imported,), donate=(0,))
    assert given.data_ptr == address and imported.donated
    np.testing.assert_array_equal(given, x + 2)
    with pytest.raises(ArgumentError, match="was donated"):
        imported.numpy()
    view = given.numpy()
    elsewhere = exe.run("main", (given,), donate=(0,))
    assert elsewhere.data_ptr != address  # the view still needs it
    np.testing.assert_array_equal(view, x + 2)
    np.testing.assert_array_equal(elsewhere, x + 3)
    with pytest.raises(ArgumentError, match="no argument 4"):
        exe.run("main", (kept,), donate=(4,))


def test_constants_are_immortal_and_outlive_their_executable() -> None:
    def main(asm: Assembler) -> None:
        out, pair = asm.reg(), asm.reg()
        asm.emit("LoadConst", out, 0)
        asm.emit("AllocADT", pair, -1, [out, out])
        asm.emit("Ret", pair)

    weights = np.arange(1000, dtype=np.float64)
    before = live()
    exe = program(function("main", 0, main), constants=((weights, "float64"),))
    first = exe.run("main", ())
    del exe
    a, b = first.fields
    np.testing.assert_array_equal(a, weights)
    assert a.data_ptr == b.data_ptr and a.data_ptr % 64 == 0
    assert not np.asarray(a).flags.writeable
    del a, b, first
    assert live() == before


def test_checks_and_fatal_messages() -> None:
    def main(asm: Assembler) -> None:
        asm.span("net.relay:1:2")
        asm.emit("CheckTensor", 0, "float32", 2, 0)
        size, four = asm.reg(), integer(asm, 4)
        asm.emit("DimOf", size, 0, 0)
        asm.span("net.relay:7:3")
        asm.emit("CheckEq", size, four, 1)
        asm.emit("DimOf", size, 0, 1)
        asm.emit("CheckLe", size, four, 2)
        asm.span("net.relay:9:1")
        asm.emit("Fatal", 3)

    exe = program(
        function("main", 1, main), messages=("x must be a matrix", "rows: {0} is not {1}", "{0} > {1}", "end")
    )
    cases = [
        (
            np.zeros(3, np.float32),
            "x must be a matrix (found a tensor of float32 and shape (3,))\n  in main at net.relay:1:2",
        ),
        (np.zeros((3, 2), np.float32), "rows: 3 is not 4\n  in main at net.relay:7:3"),
        (np.zeros((4, 5), np.float32), "5 > 4\n  in main at net.relay:7:3"),
        (np.zeros((4, 4), np.float32), "end\n  in main at net.relay:9:1"),
    ]
    for argument, message in cases:
        with pytest.raises(ExecutionError) as caught:
            exe.run("main", (argument,))
        assert str(caught.value) == message


def test_failures_name_the_calls_they_came_through() -> None:
    def outer(asm: Assembler) -> None:
        out = asm.reg()
        asm.span("a:1")
        asm.emit("Invoke", out, 1, [0], [])
        asm.span("a:2")
        asm.emit("Ret", out)

    def inner(asm: Assembler) -> None:
        asm.emit("GetField", 0, 0, 3)
        asm.emit("Ret", 0)

    before = live()
    exe = program(function("main", 1, outer), function("inner", 1, inner))
    with pytest.raises(ExecutionError) as caught:
        exe.run("main", ((1, np.zeros(2)),))
    assert str(caught.value) == "there is no field 3 in a tuple of 2\n  in inner\n  called from main at a:1"
    del exe, caught
    assert live() == before


WRONG_KINDS: list[tuple[str, Callable[[Assembler, int], None], str]] = [
    ("GetField", lambda a, r: a.emit("GetField", r, 0, 0), "expected a constructor value or tuple"),
    ("GetTag", lambda a, r: a.emit("GetTag", r, 0), "expected a constructor value"),
    ("RefRead", lambda a, r: a.emit("RefRead", r, 0), "expected a reference"),
    ("RefWrite", lambda a, r: a.emit("RefWrite", 0, 0), "expected a reference"),
    ("InvokeClosure", lambda a, r: a.emit("InvokeClosure", r, 0, [], []), "expected a closure"),
    ("IAdd", lambda a, r: a.emit("IAdd", r, 0, 0), "expected one element"),
    ("ScalarOf", lambda a, r: a.emit("ScalarOf", r, 0, "float32"), "expected one element"),
    ("DimOf", lambda a, r: a.emit("DimOf", r, 0, 7), "there is no axis 7"),
    (
        "ReshapeTensor",
        lambda a, r: a.emit("ReshapeTensor", r, 0, [integer(a, 4)]),
        "number of elements differs",
    ),
    ("ViewTensor", lambda a, r: a.emit("ViewTensor", r, 0, integer(a, 20), [integer(a, 4)]), "lies outside"),
    ("negative", lambda a, r: a.emit("ReshapeTensor", r, 0, [integer(a, -3)]), "number of elements differs"),
    ("storage", lambda a, r: a.emit("AllocTensor", r, 0, integer(a, 0), "int8", []), "needs a storage"),
    (
        "size",
        lambda a, r: a.emit("AllocStorage", r, integer(a, -1), 64, "cpu"),
        "cannot allocate a storage of -1",
    ),
    (
        "huge",
        lambda a, r: a.emit("AllocStorage", r, integer(a, 2**62), 64, "cpu"),
        "out of memory|cannot allocate",
    ),
    ("Switch", lambda a, r: a.emit("Switch", integer(a, 3), []), "no case for 3"),
    ("nil", lambda a, r: a.emit("GetTag", r, r), "got nothing"),
]


@pytest.mark.parametrize(("emit", "message"), [w[1:] for w in WRONG_KINDS], ids=[w[0] for w in WRONG_KINDS])
def test_values_of_the_wrong_kind_are_clean_errors(emit: Callable[[Assembler, int], None], message: str) -> None:
    def main(asm: Assembler) -> None:
        emit(asm, asm.reg())
        asm.emit("Ret", 0)

    with pytest.raises(ExecutionError, match=message):
        program(function("main", 1, main)).run("main", (np.zeros(3, np.float32),))


def test_tensors_with_shapes_in_registers() -> None:
    def main(asm: Assembler) -> None:
        storage, out, flat = asm.reg(), asm.reg(), asm.reg()
        asm.emit("AllocStorage", storage, integer(asm, 48), 256, "cpu")
        asm.emit("AllocTensorReg", out, storage, integer(asm, 0), "int64", 0)
        asm.emit("ReshapeTensor", flat, out, [integer(asm, 6)])
        asm.emit("Move", 0, flat)
        asm.emit("Ret", out)

    exe = program(function("main", 1, main))
    y = exe.run("main", (np.array([2, 3]),))
    assert y.shape == (2, 3) and y.data_ptr % 256 == 0
    with pytest.raises(ExecutionError, match="does not fit its storage of 48 bytes"):
        exe.run("main", (np.array([2, 4]),))
    with pytest.raises(ExecutionError, match="int64 vector"):
        exe.run("main", (np.array([2.0, 4.0]),))


def test_kernels_are_replaced_while_the_program_lives() -> None:
    exe = program(function("main", 1, call_add_one), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)])
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exe.run("main", (x,)), x + 1)
    exe.replace_kernel("add_one", object_code(ADD_ONE.replace("1.0", "5.0")), "add_one")
    np.testing.assert_array_equal(exe.run("main", (x,)), x + 5)
    with pytest.raises(ArgumentError, match="no kernel named nope"):
        exe.replace_kernel("nope", object_code(ADD_ONE), "add_one")
    with pytest.raises(ArgumentError, match="no function 'nope'"):
        exe.replace_kernel("add_one", object_code(ADD_ONE), "nope")


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
        from tests.runtime import test_vm as t
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
        from tests.runtime import test_vm as t
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
        from tests.runtime import test_vm as t
        assert _runtime.available_threads() == 1
        assert int(t.parallel_program().run("main", (1000,)).numpy().sum()) == 999000
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_every_instruction_is_emitted_by_some_test() -> None:
    here = Path(__file__).parent
    text = "".join(path.read_text() for path in here.glob("*.py"))
    scalars = {
        opcode_of(op) for kind in (BinaryOp, CompareOp, UnaryOp) for op in get_args(kind)
    }  # test_scalars.py: all
    assert [op.name for op in OPCODES if f'"{op.name}"' not in text and op.name not in scalars] == []
