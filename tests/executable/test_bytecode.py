"""The assembler, the decoder and the disassembler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.executable.bytecode import (
    BY_NAME,
    DEVICES,
    DTYPES,
    ENDS_CONTROL,
    OPCODES,
    Assembler,
    EmitOperand,
    Opcode,
    decode,
    scalar_bits,
)
from relay.executable.disassembler import disassemble
from relay.executable.format import EntryPoint, ExecutableImage, KernelEntry, Operand
from relay.ir.dtypes import numpy_dtype

_INDEX = st.integers(0, 3)
_LETTERS: dict[str, st.SearchStrategy[EmitOperand]] = {
    "d": _INDEX,
    "r": _INDEX,
    "i": st.integers(-(2**31), 2**31 - 1),
    "I": st.integers(-(2**63), 2**63 - 1),
    "t": st.just("int64"),
    "v": st.sampled_from(DEVICES),
    "f": st.just(0),
    "k": st.just(0),
    "c": st.just(0),
    "m": st.just(0),
    "u": st.just(0),
    "R": st.lists(_INDEX, max_size=4),
    "o": st.none() | _INDEX,
}


@st.composite
def instructions(draw: st.DrawFn) -> list[tuple[Opcode, list[EmitOperand]]]:
    chosen = draw(st.lists(st.sampled_from([op for op in OPCODES if not set(op.operands) & set("lL")])))
    return [(op, [draw(_LETTERS[letter]) for letter in op.operands]) for op in chosen]


@given(instructions())
def test_assembled_code_decodes_to_what_was_emitted(program: list[tuple[Opcode, list[EmitOperand]]]) -> None:
    asm = Assembler("f", 4)
    for op, operands in program:
        asm.emit(op.name, *operands)
    asm.emit("Ret", 0)
    decoded = decode(asm.finish().code)
    assert [d.opcode for d in decoded] == [op for op, _ in program] + [BY_NAME["Ret"]]
    for instruction, (op, operands) in zip(decoded, program, strict=False):
        for letter, got, wanted in zip(op.operands, instruction.operands, operands, strict=True):
            if letter == "t":
                assert DTYPES[int(str(got))] == wanted
            elif letter == "v":
                assert DEVICES[int(str(got))] == wanted
            elif letter == "R":
                assert isinstance(wanted, list) and got == tuple(wanted)
            else:
                assert got == (-1 if wanted is None else wanted)


def test_labels_and_spans() -> None:
    asm = Assembler("loop", 1)
    top, done = asm.label(), asm.label()
    asm.bind(top)
    asm.span("a.relay:1:1")
    asm.emit("If", 0, done)
    asm.span("a.relay:2:1")
    asm.emit("Goto", top)
    asm.bind(done)
    asm.span("a.relay:2:1")
    asm.emit("Ret", 0)
    code = asm.finish()
    assert [i.operands for i in decode(code.code)] == [(0, 5), (0,), (0,)]
    assert code.spans == ((0, "a.relay:1:1"), (3, "a.relay:2:1"))


def test_mistakes_are_reported() -> None:
    asm = Assembler("f", 1)
    with pytest.raises(ValueError, match="takes 2 operands"):
        asm.emit("Move", 0)
    with pytest.raises(TypeError, match="does not fit"):
        asm.emit("Goto", 3)
    with pytest.raises(ValueError, match="runs off"):
        asm.finish()
    label = asm.label()
    asm.emit("Goto", label)
    with pytest.raises(ValueError, match="leads nowhere"):
        asm.finish()
    asm.bind(label)
    with pytest.raises(ValueError, match="bound twice"):
        asm.bind(label)
    with pytest.raises(ValueError, match="leads nowhere"):
        asm.finish()
    with pytest.raises(ValueError, match="cut off"):
        decode(np.array([BY_NAME["AllocADT"].number, 0, 0, 9], dtype=np.int32))
    with pytest.raises(ValueError, match="not an instruction"):
        decode(np.array([9999], dtype=np.int32))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_scalar_bits_are_the_elements_bytes(dtype: str) -> None:
    value = 5
    expected = np.asarray(value).astype(numpy_dtype(dtype)).tobytes()
    assert scalar_bits(dtype, value).to_bytes(8, "little")[: len(expected)] == expected


def test_scalar_bits_of_negative_numbers_and_misfits() -> None:
    assert scalar_bits("int8", -1) == 0xFF
    assert scalar_bits("int64", -1) == 2**64 - 1
    assert scalar_bits("bool", True) == 1
    with pytest.raises(ValueError, match="not a number of uint8"):
        scalar_bits("uint8", 256)


def test_control_never_passes_what_ends_it() -> None:
    assert {op.name for op in OPCODES} >= ENDS_CONTROL


def test_disassembly_names_what_code_uses() -> None:
    asm = Assembler("main", 1)
    end = asm.label()
    out = asm.reg()
    asm.span("net.relay:3:5")
    asm.emit("LoadConst", out, 0)
    asm.emit("InvokeKernel", 0, None, [0, out], [])
    asm.emit("InvokeRoutine", out, 0, [0])
    asm.emit("LoadConsti", out, "int64", -2)
    asm.emit("AllocStorage", out, out, 64, "fake")
    asm.emit("Switch", out, [end, end])
    asm.bind(end)
    asm.emit("Fatal", 0)
    image = ExecutableImage(
        functions=(asm.finish(),),
        entries=(EntryPoint("main", 0, "", ("float32",)),),
        constants=((np.zeros((2, 3), np.float32), "float32"),),
        kernels=(KernelEntry("relu", 0, "relu", (Operand("float32", 2), Operand("float32", 2, 64, 0)), 1),),
        objects=(b"",),
        routines=("unique",),
        messages=("no such case",),
        triple="x86_64-unknown-linux-gnu",
        features=("avx2",),
    )
    text = disassemble(image)
    for expected in [
        "target x86_64-unknown-linux-gnu (avx2)",
        "entry @main(float32) -> function 0",
        "kernel 0 relu(float32[2]) -> (float32[2] in place of 0), 0 dims",
        "; net.relay:3:5",
        "constant 0 (float32[2, 3])",
        "relu, -, [r0, r1], []",
        "unique, [r0]",
        "int64, -2",
        "64, fake",
        "[->31, ->31]",
        "'no such case'",
    ]:
        assert expected in text, (expected, text)
