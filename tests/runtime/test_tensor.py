"""Tensors in from and out to other libraries, and the numbers and tuples that calls accept."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relay import _runtime
from relay.executable import ArgumentError, Assembler, Tensor, Value
from relay.executable.bytecode import DTYPES
from relay.ir.dtypes import numpy_dtype
from tests.runtime.programs import function, program


def identity(dtype: str | None = None) -> Any:
    return program(function("main", 1, lambda asm: asm.emit("Ret", 0)), dtypes=(dtype,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (0, 2)])
def test_every_dtype_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    array = (np.arange(size) % 7).reshape(shape).astype(numpy_dtype(dtype))
    tensor = Tensor.from_numpy(array)
    assert tensor.dtype == dtype and tensor.shape == shape and tensor.ndim == len(shape) and tensor.size == size
    back = tensor.numpy()
    assert back.dtype == array.dtype and back.shape == shape
    np.testing.assert_array_equal(back.astype(np.float64), array.astype(np.float64))
    result = identity(dtype).run("main", (array,))
    np.testing.assert_array_equal(result.numpy().astype(np.float64), array.astype(np.float64))
    assert dtype in repr(tensor)


def test_contiguous_memory_is_used_where_it_is() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = Tensor.from_numpy(x)
    assert tensor.data_ptr == x.ctypes.data
    assert np.shares_memory(np.asarray(tensor), x)
    assert not np.asarray(tensor).flags.writeable
    assert Tensor.from_numpy(x, copy=True).data_ptr != x.ctypes.data
    transposed = Tensor.from_numpy(x.T)
    assert transposed.shape == (4, 3)
    np.testing.assert_array_equal(transposed, x.T)
    np.testing.assert_array_equal(Tensor.from_numpy(x[:, ::2]), x[:, ::2])
    misplaced = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32)
    assert Tensor.from_numpy(misplaced).data_ptr % 4 == 0


def test_imported_memory_lives_as_long_as_it_is_needed() -> None:
    gc.collect()
    before = _runtime.live_objects()
    x = np.arange(1000.0)
    view = identity().run("main", (x,)).numpy()
    del x
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(1000.0))
    del view
    gc.collect()
    assert _runtime.live_objects() == before


def test_dlpack_both_ways() -> None:
    class Foreign:
        """Another library's tensor: DLPack and nothing else."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = Tensor.from_numpy(Foreign(x))
    assert tensor.data_ptr == x.ctypes.data and tensor.dtype == "int32"
    np.testing.assert_array_equal(Tensor.from_numpy(Foreign(x[:, ::2])), x[:, ::2])
    np.testing.assert_array_equal(identity("int32").run("main", (Foreign(x),)), x)
    assert tensor.__dlpack_device__() == (1, 0)
    again = np.from_dlpack(tensor)
    assert np.shares_memory(again, x) and not again.flags.writeable
    before = _runtime.live_objects()["tensor"]
    capsule = Tensor.from_numpy(x).__dlpack__()
    assert _runtime.live_objects()["tensor"] == before + 1
    del capsule
    assert _runtime.live_objects()["tensor"] == before
    with pytest.raises(BufferError):
        Tensor.from_numpy(np.zeros(2, ml_dtypes.int4)).__dlpack__()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool"])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2)])
def test_tensors_are_pickled_and_copied(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape).astype(numpy_dtype(dtype))
    tensor = identity(dtype).run("main", (array,))
    for again in (pickle.loads(pickle.dumps(tensor)), copy.copy(tensor), copy.deepcopy(tensor)):
        assert isinstance(again, Tensor) and again.dtype == dtype and again.shape == shape
        assert again.numpy().tobytes() == array.tobytes()


def test_array_protocol_options() -> None:
    tensor = Tensor.from_numpy(np.arange(3, dtype=np.float32))
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    copied = np.array(tensor)
    copied[0] = 9
    assert tensor.numpy()[0] == 0 and len(tensor) == 3
    assert float(Tensor.from_numpy(np.array(2.5))) == 2.5 and int(Tensor.from_numpy(np.array(3))) == 3
    assert bool(Tensor.from_numpy(np.array(True))) and Tensor.from_numpy(np.array(4)).item() == 4
    with pytest.raises(TypeError):
        len(Tensor.from_numpy(np.array(1)))


@pytest.mark.parametrize(
    ("argument", "dtype", "expected"),
    [
        (3, None, np.int64(3)),
        (True, None, np.bool_(True)),
        (2.5, None, np.float64(2.5)),
        (3, "float32", np.float32(3)),
        (2.5, "float16", np.float16(2.5)),
        (-1, "int8", np.int8(-1)),
        (2**64 - 1, "uint64", np.uint64(2**64 - 1)),
        (1.00390625, "bfloat16", ml_dtypes.bfloat16(1.0)),
        (np.float32(1.5), "float32", np.float32(1.5)),
        (np.bool_(True), "bool", np.bool_(True)),
        (7, "int4", ml_dtypes.int4(7)),
    ],
)
def test_numbers_take_the_parameters_dtype(argument: Any, dtype: str | None, expected: np.generic) -> None:
    result = identity(dtype).run("main", (argument,)).numpy()
    assert result.shape == () and result.dtype == expected.dtype and result == expected


def test_bfloat16_numbers_round_like_arrays() -> None:
    exe = identity("bfloat16")
    for x in (1.0, 1.00390625, 1.01171875, 3.14159, -2.7e38, 1e-40, float("inf")):
        assert exe.run("main", (x,)).numpy() == ml_dtypes.bfloat16(x), x
    assert np.isnan(exe.run("main", (float("nan"),)).numpy().astype(np.float32))


@pytest.mark.parametrize(
    ("argument", "dtype", "message"),
    [
        (np.zeros(2), "float32", "argument 0 of main: expected float32, found float64"),
        (Tensor.from_numpy(np.zeros(2)), "float32", "expected float32, found float64"),
        (2.5, "int64", "expected int64, found the Python float 2.5"),
        (True, "float32", "expected float32, found the Python bool True"),
        (300, "int8", "the number 300 does not fit int8"),
        (2**70, None, "the number 1180591620717411303424 does not fit int64"),
        ("text", None, "expected a tensor, found str"),
        (b"bytes", None, "expected a tensor, found bytes"),
        (None, None, "expected a tensor, found NoneType"),
        (np.zeros(2, complex), None, "found ndarray of complex128"),
        (np.zeros(2, ">f4"), None, "found ndarray of >f4"),
        (np.zeros(2, object), None, "found ndarray of object"),
        ((1, 2), "float32", "expected a tensor of float32, found a tuple"),
        (Value.tuple((1,)), "float32", "expected a tensor of float32, found a tuple of 1"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(argument: Any, dtype: str | None, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        identity(dtype).run("main", (argument,))
    assert message in str(caught.value)


def test_wrong_numbers_of_arguments_and_unknown_entries() -> None:
    with pytest.raises(ArgumentError, match="main takes 1 arguments and got 2"):
        identity().run("main", (1, 2))
    with pytest.raises(ArgumentError, match="no entry 'mian'; it has: main"):
        identity().run("mian", (1,))
    with pytest.raises(TypeError, match="must be a sequence"):
        identity().run("main", 3)


def test_tuples_and_constructor_values() -> None:
    value = identity().run("main", ((1, (2.5, np.arange(3))),))
    assert value.kind == "tuple" and value.tag == -1
    one, inner = value.fields
    assert int(one) == 1 and float(inner.field(0)) == 2.5
    np.testing.assert_array_equal(inner.field(1), np.arange(3))
    node = Value.adt(4, [np.ones(2), Value.adt(1, [])])
    assert node.kind == "adt" and node.tag == 4 and node.field(1).fields == ()  # type: ignore[union-attr]
    assert repr(node) == "<a constructor value with tag 4>"
    with pytest.raises(IndexError):
        node.field(2)
    with pytest.raises(ValueError, match="not negative"):
        Value.adt(-1, [])


def test_scalars_out_of_tensors() -> None:
    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("ScalarOf", out, 0, "int4")
        asm.emit("CheckTensor", out, "int4", 0, 0)
        asm.emit("Ret", out)

    exe = program(function("main", 1, emit), messages=("no",))
    assert exe.run("main", (np.array([[-3]], ml_dtypes.int4),)).numpy().astype(int) == -3


def _arrays(dtype: str) -> list[Any]:
    whole = np.arange(120).reshape(2, 3, 4, 5) % 2 if dtype == "bool" else np.arange(120).reshape(2, 3, 4, 5)
    made = whole.astype(dtype)
    shifted = np.zeros(made.nbytes + 1, np.uint8)[1:].view(np.uint8)
    shifted[:] = made.reshape(-1).view(np.uint8)
    misaligned = np.frombuffer(shifted.data, dtype=dtype)
    turned = np.asfortranarray(made)
    locked = made.copy()
    locked.setflags(write=False)
    return [
        made, made[:1], made[:, :1], made[1], made[:, 1], made[..., 2], made[::-1], made[:, ::2], made.T, turned, locked,
        made[:0], made[:, :0], made[0, 0, 0, :1], made[:, None], np.broadcast_to(made[0, 0, 0], (3, 5)), misaligned,
        made.astype(made.dtype.newbyteorder("=")), made.view(type("Array", (np.ndarray,), {})),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bool", "int8", "uint16", "int32", "int64", "uint64"]
)
def test_arrays_of_every_kind_seen_before_or_not(dtype: str) -> None:
    """Arrays are looked into once their kind is known: each is what NumPy says, and is let go."""
    same = identity(dtype)

    def drop(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("LoadConsti", out, "int64", 7)
        asm.emit("Ret", out)

    dropped = program(function("main", 1, drop), dtypes=(dtype,))
    for _ in range(2):
        for array in _arrays(dtype):
            before = sys.getrefcount(array)
            result = same.run("main", (array,))
            assert result.shape == array.shape
            np.testing.assert_array_equal(result.numpy(), array)
            del result
            assert sys.getrefcount(array) == before
            assert dropped.run("main", (array,)).numpy() == 7
            assert sys.getrefcount(array) == before


def test_arrays_of_another_type_than_expected_are_refused_each_time() -> None:
    same = identity("float32")
    for _ in range(2):
        same.run("main", (np.ones(3, np.float32),))
        with pytest.raises(ArgumentError, match="expected float32, found float64"):
            same.run("main", (np.ones(3),))
        with pytest.raises(ArgumentError, match="expected"):
            same.run("main", (np.ones(3, ">f4"),))


def test_indexing_is_that_of_the_array() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = Tensor.from_numpy(x)
    assert tensor[1, 2] == 6 and isinstance(tensor[1, 2], np.float32)
    np.testing.assert_array_equal(tensor[1:, ::2], x[1:, ::2])
    assert not tensor[0].flags.writeable
    np.testing.assert_array_equal([row.sum() for row in tensor], x.sum(1))
    assert tensor.tolist() == x.tolist() and Tensor.from_numpy(np.int64(3)).tolist() == 3
    with pytest.raises(IndexError):
        tensor[3]
    with pytest.raises(TypeError):
        iter(Tensor.from_numpy(np.int64(3)))


def test_arithmetic_and_comparisons_are_those_of_the_view() -> None:
    """A step of an optimiser is `w -= 0.1 * slope`, and equal results compare equal."""
    x, y = np.array([1.5, -2, 0], "float32"), np.array([2, -2, 4], "float32")
    a, b = Tensor.from_numpy(x), Tensor.from_numpy(y)
    for made, wanted in (
        (0.1 * a, 0.1 * x), (a + b, x + y), (1 - a, 1 - x), (x - b, x - y), (a / b, x / y), (2 / b, 2 / y), (a // b, x // y),
        (a % b, x % y), (a**2, x**2), (2**a, 2**x), (a @ b, x @ y), (-a, -x), (abs(a), abs(x)), (a == b, x == y),
        (a != b, x != y), (a < b, x < y), (a <= 1, x <= 1), (a > b, x > y), (a >= y, x >= y),
    ):  # fmt: skip
        np.testing.assert_array_equal(np.asarray(made), wanted, strict=True)
    weights = x.copy()
    weights -= 0.1 * b
    np.testing.assert_array_equal(weights, x - 0.1 * y)
    mask = Tensor.from_numpy(np.array([True, False]))
    assert ((mask & True) == [True, False]).all() and ((mask | mask) ^ mask).sum() == 0
    assert (a != None).all()  # noqa: E711 what NumPy says, too
    assert a in {a: 1} and hash(a) != hash(b)
    with pytest.raises(TypeError):
        a + None


class OfArrays:
    """What NumPy leaves arithmetic to, and which knows arrays alone."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __radd__(self, other: object) -> str:
        return type(other).__name__

    __add__ = __eq__ = __radd__  # type: ignore[assignment]


def test_what_arithmetic_is_left_to_sees_an_array() -> None:
    a, other = Tensor.from_numpy(np.ones(3, "float32")), OfArrays()
    assert (a + other, a == other) == ("ndarray", "ndarray")
