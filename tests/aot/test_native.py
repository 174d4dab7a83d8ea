"""Bytecode as native code: the same results, errors and limits; every instruction has a way."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.aot import control
from relay.aot.control import CONTROL
from relay.aot.flow import LONGEST, flow
from relay.aot.inline import INLINE
from relay.aot.kinds import scalars
from relay.aot.native import with_native_code
from relay.aot.translate import translate
from relay.codegen.target import host_target
from relay.executable import Assembler, Executable
from relay.executable.bytecode import OPCODES, decode
from relay.ir.diagnostics import CompileError, ExecutionError
from tests.runtime.programs import function, image, integer


def number(value: object) -> int:
    return int(np.asarray(value))


FIBONACCI = """#[version = "0.0.5"]
def @fib(%n: int64) -> int64 { if (%n < 2i64) { %n } else { @fib(%n - 1i64) + @fib(%n - 2i64) } }
def @main(%n: int64) -> int64 { @fib(%n) }
"""


def test_every_instruction_that_says_what_runs_next_is_translated() -> None:
    assert {op.name for op in OPCODES if op.control} == CONTROL.keys()
    assert {op.name for op in OPCODES if not op.control} >= INLINE.keys()


def test_an_instruction_without_a_translation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(control.CONTROL, "Switch")

    def emit(asm: Assembler) -> None:
        only = asm.label()
        asm.emit("Switch", 0, [only])
        asm.bind(only)
        asm.emit("Ret", 0)

    with pytest.raises(CompileError, match=r"instruction Switch says what runs next, and relay\.aot\.control has no"):
        translate(image(function("main", 1, emit)), host_target())


def test_an_executable_with_native_code_is_saved_and_loaded(tmp_path: Path) -> None:
    exe = relay.compile(FIBONACCI, executor="aot")
    assert exe.program.native and number(exe(20)) == 6765
    exe.save(tmp_path / "fib.rlx")
    again = relay.load(tmp_path / "fib.rlx")
    assert again.program.native and number(again(20)) == 6765
    assert not relay.compile(FIBONACCI).program.native


def test_the_cache_keeps_executors_apart(tmp_path: Path) -> None:
    first = relay.compile(FIBONACCI, executor="aot", cache_dir=tmp_path)
    other = relay.compile(FIBONACCI, executor="vm", cache_dir=tmp_path)
    again = relay.compile(FIBONACCI, executor="aot", cache_dir=tmp_path)
    assert (first.program.native, other.program.native, again.program.native) == (True, False, True)
    assert again.from_cache


@pytest.mark.parametrize("inline", [True, False])
def test_native_code_and_bytecode_run_alike(inline: bool) -> None:
    """The same image by both, also without anything inlined; the runtime can be told to interpret."""

    def emit(asm: Assembler) -> None:  # a loop: back edges, tags, fields, sums
        top, done, more, both = asm.label(), asm.label(), asm.label(), asm.label()
        total, flag, pair = asm.reg(), asm.reg(), asm.reg()
        one = integer(asm, 1)
        asm.emit("LoadConsti", total, "int64", 0)
        asm.bind(top)
        asm.emit("IMin", flag, 0, one)
        asm.emit("Switch", flag, [done, more])
        asm.bind(more)
        asm.emit("AllocADT", pair, 3, [0, total])
        asm.emit("GetField", flag, pair, 0)
        asm.emit("IAdd", total, total, flag)
        asm.emit("GetTag", flag, pair)
        asm.emit("IAdd", total, total, flag)
        asm.emit("ISub", 0, 0, one)
        asm.emit("Goto", top)
        asm.bind(done)
        asm.emit("Goto", both)
        asm.bind(both)
        asm.emit("Ret", total)

    exe = Executable.from_bytes(with_native_code(image(function("main", 1, emit)), host_target(), inline).to_bytes())
    n = 1_000
    for interpret in (False, True):
        assert number(exe.run("main", (n,), interpret=interpret)) == n * (n + 1) // 2 + 3 * n
        with pytest.raises(ExecutionError, match="expected an int64 number and got a scalar of bool"):
            exe.run("main", (np.bool_(True),), interpret=interpret)


def test_long_code_is_cut_into_parts() -> None:
    """LLVM is given functions of bounded length, whatever the program's."""

    def emit(asm: Assembler) -> None:
        last, one = 0, integer(asm, 1)
        for _ in range(20 * LONGEST):
            out = asm.reg()
            asm.emit("IAdd", out, last, one)
            last = out
        asm.emit("Ret", last)

    code = function("main", 1, emit)
    taken = flow(code, {})
    assert max(len(b) for b in taken.blocks.values()) <= LONGEST
    assert len(set(taken.part.values())) >= 20
    exe = Executable.from_bytes(with_native_code(image(code), host_target()).to_bytes())
    assert number(exe.run("main", (5,))) == 5 + 20 * LONGEST


def test_branches_that_no_control_reaches_are_left_out() -> None:
    def emit(asm: Assembler) -> None:
        end = asm.label()
        asm.emit("Goto", end)
        asm.emit("Ret", 0)
        asm.bind(end)
        asm.emit("Ret", 0)

    assert len(flow(function("main", 1, emit), {}).part) == 2


def test_scalars_are_known_through_calls_and_results() -> None:
    """Not those of functions that closures are made of, or that nothing calls."""

    def main(asm: Assembler) -> None:
        sum_, result, mixed, pair = (asm.reg() for _ in range(4))
        asm.emit("Invoke", sum_, 1, [integer(asm, 2)], [])
        asm.emit("ScalarLt", result, "int64", sum_, sum_)
        asm.emit("Move", mixed, result)
        asm.emit("AllocClosure", pair, 2, [])
        asm.emit("ScalarCast", mixed, "bool", "float32", mixed)
        asm.emit("InvokeClosure", 0, pair, [sum_], [])
        asm.emit("Ret", 0)

    def called(asm: Assembler) -> None:
        asm.emit("TailInvoke", 3, [0])

    def closed(asm: Assembler) -> None:
        asm.emit("Ret", 0)

    codes = [function(name, 1, f) for name, f in (("main", main), ("f", called), ("g", closed), ("h", closed))]
    known = scalars([decode(c.code) for c in codes], [c.arity for c in codes])
    assert known[0] == {1: "int64", 2: "bool", 5: "int64"}
    assert known[1:] == [{0: "int64"}, {}, {0: "int64"}]


def test_what_is_read_before_it_is_assigned_is_no_scalar() -> None:
    def emit(asm: Assembler) -> None:
        flag, out, end = asm.reg(), asm.reg(), asm.label()
        asm.emit("ScalarLt", flag, "int64", 0, 0)
        asm.emit("If", flag, end)
        asm.emit("LoadConsti", out, "int64", 1)
        asm.bind(end)
        asm.emit("IAdd", out, out, out)
        asm.emit("Ret", out)

    code = function("main", 1, emit)
    exe = Executable.from_bytes(with_native_code(image(code), host_target()).to_bytes())
    with pytest.raises(ExecutionError, match="got nothing"):
        exe.run("main", (1,))
    assert flow(code, scalars([decode(code.code)], [1])[0]).scalars == {1: "bool"}


def test_failures_say_where_they_were_in_both() -> None:
    text = """#[version = "0.0.5"]
def @pick(%n: int64) -> int64 { match? (if (%n > 0i64) { Some(%n) } else { None }) { Some(%m) => %m } }
def @main(%n: int64) -> int64 { @pick(%n) + 1i64 }
""".replace('"]\n', '"]\nimport prelude\n')
    said: list[str] = []
    for executor in ("vm", "aot"):
        exe = relay.compile(text, executor=executor, opt_level=0)
        gc.collect()
        before = _runtime.live_objects()
        with pytest.raises(ExecutionError) as raised:
            exe(0)
        assert _runtime.live_objects() == before
        said.append(str(raised.value))
        del raised  # its traceback holds this round's program
        assert number(exe(4)) == 5
    assert said[0] == said[1] and "called from main at <text>:4:33" in said[0]
