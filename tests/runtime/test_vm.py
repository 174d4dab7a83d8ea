"""Programs assembled by hand, run by the virtual machine and as native code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from relay import _runtime
from relay.executable import (
    ArgumentError,
    Assembler,
    Executable,
    KernelEntry,
    Operand,
    RecursionLimitError,
    Tensor,
)
from relay.executable.bytecode import OPCODES
from relay.ir.diagnostics import ExecutionError
from relay.lower.scalars import opcode_of
from relay.te.scalar import BinaryOp, CompareOp, UnaryOp
from tests.runtime.programs import (
    ADD_ONE,
    SCALARS,
    add_one_kernel,
    call_add_one,
    countdown,
    fresh_vector,
    function,
    integer,
    live,
    object_code,
    program,
)

# Every test here runs its programs both ways.
pytestmark = pytest.mark.usefixtures("executor")


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
    for opcode, a, b in (("IAdd", 2**63 - 1, 1), ("ISub", low, 1), ("IMul", 2**32, 2**31), ("IMul", low, -1)):
        with pytest.raises(ExecutionError, match="a size is more than int64 holds"):
            binary(opcode).run("main", (a, b))
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

    def within(asm: Assembler) -> None:
        """Behind 64 bytes of a storage that nothing else uses."""
        arena, space, out = asm.reg(), asm.reg(), asm.reg()
        asm.emit("AllocStorage", arena, integer(asm, 4160), 64, "cpu")
        asm.emit("AllocTensor", space, arena, integer(asm, 64), "uint8", [integer(asm, 4096)])
        asm.emit("AllocScalar", out, "int64")
        asm.emit("InvokeKernel", 0, space, [out], [])
        asm.emit("Ret", out)

    kernels = [KernelEntry("w", 0, "use_workspace", scalar, 1)]
    assert int(program(function("main", 0, within), kernels=kernels, objects=objects).run("main", ())) == 7

    def given(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("AllocScalar", out, "int64")
        asm.emit("InvokeKernel", 0, 0, [out], [])
        asm.emit("Ret", out)

    exe = program(function("main", 1, given), kernels=kernels, objects=objects)
    for odd in (1, np.zeros(4096, np.uint8)):  # no memory, and memory that is the caller's
        with pytest.raises(
            ExecutionError, match="kernel w: its workspace must be a storage or a tensor that may be written"
        ):
            exe.run("main", (odd,))

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


def test_every_instruction_is_emitted_by_some_test() -> None:
    here = Path(__file__).parent
    text = "".join(path.read_text() for path in here.glob("*.py"))
    scalars = {
        opcode_of(op) for kind in (BinaryOp, CompareOp, UnaryOp) for op in get_args(kind)
    }  # test_scalars.py: all
    assert [op.name for op in OPCODES if f'"{op.name}"' not in text and op.name not in scalars] == []
