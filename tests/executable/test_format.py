"""Executable files: what is written can be read, and nothing else can."""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay import _runtime
from relay.executable import (
    Assembler,
    EntryPoint,
    Executable,
    ExecutableImage,
    FunctionCode,
    IncompatibleError,
    KernelEntry,
    Operand,
    disassemble,
    read_image,
)
from relay.executable.bytecode import BY_NAME
from relay.ir.diagnostics import FileError, RelayError
from tests.runtime.programs import ADD_ONE, add_one_kernel, call_add_one, function, image, object_code


def small_image() -> ExecutableImage:
    return image(
        function("main", 1, call_add_one),
        kernels=[add_one_kernel()],
        objects=[object_code(ADD_ONE)],
        constants=((np.arange(3, dtype=np.int16), "int16"),),
        messages=("never",),
        routines=("unique",),
        features=("sse2",) if _runtime.host_architecture() == "x86_64" else (),
    )


def test_a_saved_file_runs(tmp_path: Path) -> None:
    path = tmp_path / "program.rlx"
    small_image().save(path)
    assert os.listdir(tmp_path) == ["program.rlx"]
    exe = Executable.load(str(path))
    path.unlink()
    np.testing.assert_array_equal(exe.run("main", (np.zeros(2, np.float32),)), np.ones(2))
    assert exe.entries == ["main"] and exe.entry_info("main") == ""
    assert exe.statistics()["constants"] == 1 and exe.statistics()["constant_bytes"] == 6


def test_entry_information_travels() -> None:
    asm = Assembler("f", 2)
    asm.emit("Ret", 0)
    built = ExecutableImage((asm.finish(),), (EntryPoint("ünïcode", 0, '{"a": [1]}', ("bfloat16", None)),))
    exe = Executable.from_bytes(built.to_bytes())
    assert exe.entries == ["ünïcode"] and exe.entry_info("ünïcode") == '{"a": [1]}'


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False, True]),
        np.arange(-4, 3, dtype=np.int8).reshape(7, 1),
        np.array(2.5),
        np.zeros((0, 4), np.float32),
        np.array([1.5, -2.25], ml_dtypes.bfloat16),
        np.array([-8, 7, 3], ml_dtypes.int4),
        np.array([[15, 1], [2, 0]], ml_dtypes.uint4),
        np.arange(6, dtype=np.uint64).reshape(2, 3).T,
        np.array([0.5, 65504], np.float16),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_constants_of_every_kind(array: np.ndarray) -> None:
    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("LoadConst", out, 0)
        asm.emit("Ret", out)

    exe = Executable.from_bytes(image(function("main", 0, emit), constants=((array, array.dtype.name),)).to_bytes())
    result = exe.run("main", ()).numpy()
    assert result.dtype == array.dtype and result.shape == array.shape
    np.testing.assert_array_equal(result.astype(np.float64), array.astype(np.float64))


def test_a_constant_that_is_not_of_its_type_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be made from"):
        image(function("main", 0, lambda a: a.emit("Fatal", 0)), constants=((np.zeros(2), "float32"),)).to_bytes()


def test_every_flipped_byte_is_refused() -> None:
    data = bytearray(small_image().to_bytes())
    for at in range(len(data)):
        for change in (0x01, 0xFF):
            data[at] ^= change
            with pytest.raises(FileError):
                Executable.from_bytes(data)
            data[at] ^= change
    Executable.from_bytes(data)


def test_every_truncation_is_refused() -> None:
    data = bytes(small_image().to_bytes())
    for length in range(len(data)):
        with pytest.raises(FileError):
            Executable.from_bytes(data[:length])
    with pytest.raises(FileError):
        Executable.from_bytes(data + b"\0")


def sealed(data: bytearray) -> bytearray:
    """The same bytes with a checksum that matches, as an ill-meaning writer would leave them."""
    struct.pack_into("<Q", data, 24, _runtime.checksum(data[32:], _runtime.checksum(data[:24])))
    return data


@given(st.data())
def test_damage_under_a_right_checksum_never_crashes(draw: st.DataObject) -> None:
    data = bytearray(small_image().to_bytes())
    # Anywhere but in the native code, which is trusted.
    sections = {kind: (offset, size) for kind, _, offset, size in struct.iter_unpack("<IIQQ", data[32 : 32 + 24 * 9])}
    end = sections[9][0]
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(32, end - 1))
        data[at] = draw.draw(st.integers(0, 255))
    try:
        exe = Executable.from_bytes(sealed(data))
    except RelayError:
        return
    for name in exe.entries:
        assert isinstance(name, str)


def test_other_machines_and_missing_features_are_named() -> None:
    plain = function("main", 0, lambda asm: asm.emit("Fatal", 0))
    other = "aarch64-linux-gnu" if _runtime.host_architecture() == "x86_64" else "x86_64-linux-gnu"
    with pytest.raises(IncompatibleError, match=f"compiled for '{other}' and this machine is"):
        Executable.from_bytes(image(plain, messages=("",), triple=other).to_bytes())
    features = (*_runtime.cpu_features()[:2], "-avx10.9", "+quantum", "telepathy")
    with pytest.raises(IncompatibleError, match="does not have: quantum, telepathy;"):
        Executable.from_bytes(image(plain, messages=("",), features=features).to_bytes())


@pytest.mark.parametrize(
    "info", ["", "{}", "[", "[" * 100_000, "3", '{"params": 3, "result": {}, "adts": {}, "bounds": {}}']
)
def test_a_description_of_entries_that_cannot_be_read(info: str) -> None:
    asm = Assembler("f", 1)
    asm.emit("Ret", 0)
    image_of = ExecutableImage((asm.finish(),), (EntryPoint("main", 0, info, (None,)),)).to_bytes()
    with pytest.raises(FileError, match=r"says of its entries cannot be read.*\n.*compile the program again"):
        relay.Executable.from_bytes(image_of, None)


DESCRIBED = """#[version = "0.0.5"]
import prelude
type Sized[n: Dim, s: Shape, b: BaseType, A] { Two(Tensor[(n, 2*n), float32], Tensor[s, b], A), One(Sized[n, s, b, (A, A)]), }
def @main[n: Dim](%x: Tensor[(n, 3), float32], %p: (Option[int64], List[Tensor[(3,), float32]]), %s: Sized[4, (2,), int32, bool]) {
  (exp(%x), %p, %s)
}
"""


def test_damage_in_a_description_of_entries_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    """Each word of it replaced, under a right checksum: names that nothing has, kinds and dtypes that are none."""
    mod = relay.parse(DESCRIBED)
    exe = relay.compile(mod)
    exe.save(tmp_path / "e.rlx")
    data = (tmp_path / "e.rlx").read_bytes()
    start = data.index(b'{"params":')
    words = [m.start() for m in re.finditer(rb'"[a-z0-9_# ]+"', data[start : data.index(b'"requests"', start)])]
    two = mod.adt("Sized").Two(np.ones((4, 8), np.float32), np.ones(2, np.int32), True)
    arguments = (np.ones((2, 3), np.float32), (None, [np.ones(3, np.float32)]), two)
    refused = 0
    for first in words:
        damaged = bytearray(data)
        damaged[start + first + 1] ^= 8
        try:
            found = relay.Executable.from_bytes(bytes(sealed(damaged)), None)
        except FileError:
            refused += 1
            continue
        assert repr(found)
        with suppress(RelayError):  # another name of a parameter or a size
            found(*arguments)
            found.run_batch("main", [arguments, arguments])
    assert refused > len(words) // 2


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot open .*nothing\.rlx: No such file"):
        Executable.load(str(tmp_path / "nothing.rlx"))
    with pytest.raises(FileError, match="not a regular file"):
        Executable.load(str(tmp_path))
    empty = tmp_path / "empty.rlx"
    empty.write_bytes(b"")
    with pytest.raises(FileError, match="is empty"):
        Executable.load(str(empty))
    text = tmp_path / "text.rlx"
    text.write_text("this is no executable, but it is long enough to be one")
    with pytest.raises(FileError, match=r"text\.rlx: .*does not begin as a Relay executable"):
        Executable.load(str(text))
    with pytest.raises(FileError, match="cannot write"):
        small_image().save(tmp_path / "missing" / "program.rlx")
    newer = bytearray(small_image().to_bytes())
    struct.pack_into("<I", newer, 8, 99)
    with pytest.raises(FileError, match="format version 99 and this runtime reads version 6"):
        Executable.from_bytes(newer)


def raw(name: str, *words: int, arity: int = 1, registers: int = 3) -> FunctionCode:
    return FunctionCode(name, arity, registers, np.array(words, np.int32))


def op(name: str) -> int:
    return BY_NAME[name].number


BAD_CODE: list[tuple[str, FunctionCode, str]] = [
    ("register", raw("main", op("Ret"), 3), "register is out of range"),
    ("negative register", raw("main", op("Ret"), -1), "register is out of range"),
    ("no end", raw("main", op("Move"), 1, 0), "runs off the end"),
    ("empty", raw("main"), "no code"),
    ("cut off", raw("main", op("Move"), 1), "cut off"),
    ("list", raw("main", op("AllocADT"), 1, 0, 9, 0), "list is cut off"),
    ("negative list", raw("main", op("AllocADT"), 1, 0, -1, op("Ret"), 0), "list is cut off"),
    ("opcode", raw("main", 1000), "unknown instruction"),
    ("label", raw("main", op("Goto"), 1), "does not lead to an instruction"),
    ("label outside", raw("main", op("Goto"), 7), "does not lead to an instruction"),
    ("function", raw("main", op("TailInvoke"), 1, 0), "function is out of range"),
    ("arity", raw("main", op("TailInvoke"), 0, 0), "wrong number of arguments"),
    ("kernel", raw("main", op("InvokeKernel"), 1, -1, 0, 0, op("Ret"), 0), "kernel is out of range"),
    ("buffers", raw("main", op("InvokeKernel"), 0, -1, 1, 0, 1, 0, op("Ret"), 0), "wrong number of buffers"),
    ("dims", raw("main", op("InvokeKernel"), 0, -1, 2, 0, 0, 0, op("Ret"), 0), "wrong number of dims"),
    ("constant", raw("main", op("LoadConst"), 0, 5, op("Ret"), 0), "constant is out of range"),
    ("message", raw("main", op("Fatal"), 1000), "message is out of range"),
    ("routine", raw("main", op("InvokeRoutine"), 0, 1, 0, op("Ret"), 0), "routine is out of range"),
    ("routine arity", raw("main", op("InvokeRoutine"), 0, 0, 0, op("Ret"), 0), "wrong number of arguments"),
    ("dtype", raw("main", op("AllocScalar"), 0, 77, op("Ret"), 0), "unknown dtype"),
    ("device", raw("main", op("DeviceCopy"), 0, 0, 7, op("Ret"), 0), "unknown device"),
    ("alignment", raw("main", op("AllocStorage"), 0, 0, 48, 0, 0, op("Ret"), 0), "alignment is not a power of two"),
    ("tag", raw("main", op("AllocADT"), 0, -2, 0, op("Ret"), 0), "tag is negative"),
    ("capture", raw("main", op("AllocClosure"), 0, 0, 2, 0, 0, op("Ret"), 0), "captures more"),
    ("registers", raw("main", op("Ret"), 0, registers=2**26), "too many registers"),
    ("parameters", raw("main", op("Ret"), 0, arity=1, registers=0), "fewer registers than parameters"),
]


@pytest.mark.parametrize(("code", "message"), [b[1:] for b in BAD_CODE], ids=[b[0] for b in BAD_CODE])
def test_bad_bytecode_is_refused(code: FunctionCode, message: str) -> None:
    built = image(
        code, kernels=[add_one_kernel()], objects=[object_code(ADD_ONE)], routines=("unique",), dtypes=(None,)
    )
    with pytest.raises(FileError, match=message):
        Executable.from_bytes(built.to_bytes())


def test_tables_that_do_not_agree_are_refused() -> None:
    main = function("main", 1, call_add_one)
    code = object_code(ADD_ONE)
    with pytest.raises(FileError, match="no function 'nope'"):
        kernel = KernelEntry("k", 0, "nope", (Operand("float32", 1),) * 2, 1, 1)
        Executable.from_bytes(image(main, kernels=[kernel], objects=[code]).to_bytes())
    with pytest.raises(FileError, match="a native object that is not there"):
        kernel = KernelEntry("k", 3, "add_one", (Operand("float32", 1),) * 2, 1, 1)
        Executable.from_bytes(image(main, kernels=[kernel], objects=[code]).to_bytes())
    with pytest.raises(FileError, match="in-place pair names no input"):
        kernel = KernelEntry("k", 0, "add_one", (Operand("float32", 1), Operand("float32", 1, 64, 1)), 1, 1)
        Executable.from_bytes(image(main, kernels=[kernel], objects=[code]).to_bytes())
    with pytest.raises(FileError, match="routine 'fft', which this runtime does not have"):
        Executable.from_bytes(image(main, kernels=[add_one_kernel()], objects=[code], routines=("fft",)).to_bytes())
    with pytest.raises(FileError, match="lists 2 parameters and its function takes 1"):
        built = image(main, kernels=[add_one_kernel()], objects=[code], dtypes=(None, None))
        Executable.from_bytes(built.to_bytes())
    with pytest.raises(FileError, match="two entries are named main"):
        twice = (EntryPoint("main", 0, "", (None,)),) * 2
        Executable.from_bytes(ExecutableImage((main,), twice, kernels=(add_one_kernel(),), objects=(code,)).to_bytes())


def test_an_image_is_read_back(tmp_path: Path) -> None:
    built = small_image()
    code = built.functions[0]
    spanned = FunctionCode(code.name, code.arity, code.registers, code.code, ((0, "a:1"), (6, "a:2")))
    constants = (
        (np.array([[-8, 7, 3]], ml_dtypes.int4), "int4"),
        (np.arange(6.0).reshape(2, 3), "float64"),
        (np.array(2, ml_dtypes.bfloat16), "bfloat16"),
    )
    built = replace(built, functions=(spanned,), constants=constants)
    path = tmp_path / "program.rlx"
    built.save(path)
    found = read_image(path)
    assert disassemble(found) == disassemble(built)
    assert found.functions[0].spans == spanned.spans
    assert found.kernels[0].operands[0].alignment == 4  # one element's
    assert (found.entries, found.objects, found.routines, found.triple, found.features) == (
        built.entries,
        built.objects,
        built.routines,
        built.triple,
        built.features,
    )
    for (a, _), (b, _) in zip(found.constants, built.constants, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a.astype(float), b.astype(float))


def test_reading_an_image_refuses_damage(tmp_path: Path) -> None:
    data = bytearray(small_image().to_bytes())
    for length in (0, 10, 40, len(data) - 1):
        with pytest.raises(FileError):
            read_image(data[:length])
    for at in range(0, len(data), 5):
        data[at] ^= 0x10
        with pytest.raises(FileError):
            read_image(data)
        data[at] ^= 0x10
    with pytest.raises(FileError, match="cannot open"):
        read_image(tmp_path / "nothing.rlx")


@given(st.binary(min_size=1, max_size=4))
def test_names_are_utf8(name: bytes) -> None:
    code = FunctionCode("name", 0, 0, np.array([op("Goto"), 0], np.int32))
    data = ExecutableImage((code,), (EntryPoint("name", 0, "", ()),)).to_bytes()
    at = data.index(b"name")
    data[at : at + 4] = name.ljust(4, b"x")
    try:
        expected = bytes(data[at : at + 4]).decode()
    except UnicodeDecodeError:
        with pytest.raises(FileError, match="not UTF-8"):
            Executable.from_bytes(sealed(data))
        return
    assert Executable.from_bytes(sealed(data)).entries == [expected]
