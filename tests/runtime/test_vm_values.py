"""Closures, data, references and constants of programs assembled by hand: what they hold, and that all of it is let go of."""

from __future__ import annotations

import numpy as np
import pytest

from relay import _runtime
from relay.executable import (
    ArgumentError,
    Assembler,
    Value,
)
from relay.ir.diagnostics import ExecutionError
from tests.runtime.programs import (
    ADD_ONE,
    add_one_kernel,
    build_list,
    function,
    integer,
    live,
    object_code,
    program,
    sum_list,
)

# Every test here runs its programs both ways.
pytestmark = pytest.mark.usefixtures("executor")


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


def test_a_long_list_is_built_folded_and_freed() -> None:
    n = 100_000
    before = live()
    exe = program(function("main", 1, build_list))
    built = exe.run("main", (n,))
    assert live()["adt"] == before["adt"] + n  # (the end has no fields: every list's is the same object)
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


def update_in_place(asm: Assembler) -> None:
    """main(x): x + 1, in x's memory where nobody else needs it."""
    size, nbytes, out = asm.reg(), asm.reg(), asm.reg()
    asm.emit("DimOf", size, 0, 0)
    asm.emit("IMul", nbytes, size, integer(asm, 4))
    asm.emit("AllocReuse", out, 0, nbytes, "float32", "cpu", [size])
    asm.emit("InvokeKernel", 0, None, [0, out], [size])
    asm.emit("Kill", 0)
    asm.emit("Ret", out)


def test_a_view_from_further_on_is_not_written_over() -> None:
    """Its memory is taken over from the front, where others of its elements are still to be read."""

    def make(asm: Assembler) -> None:
        size, nbytes, view, out = asm.reg(), asm.reg(), asm.reg(), asm.reg()
        asm.emit("DimOf", size, 0, 0)
        asm.emit("ISub", size, size, integer(asm, 10))
        asm.emit("IMul", nbytes, size, integer(asm, 4))
        asm.emit("ViewTensor", view, 0, integer(asm, 40), [size])
        asm.emit("Kill", 0)
        asm.emit("AllocReuse", out, view, nbytes, "float32", "cpu", [size])
        asm.emit("InvokeKernel", 0, None, [view, out], [size])
        asm.emit("Ret", out)

    x = np.arange(100, dtype=np.float32)
    given = program(
        function("main", 1, update_in_place), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)]
    ).run("main", (x,))
    address = given.data_ptr
    found = program(function("main", 1, make), kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)]).run(
        "main", (given,), donate=(0,)
    )
    assert found.data_ptr != address
    np.testing.assert_array_equal(found, x[10:] + 2)


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
