"""The scalar operations on arrays, against Python's exact arithmetic and math."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from relay.te import numeric


@np.errstate(all="ignore")
def test_erf_is_accurate_everywhere() -> None:
    x = np.concatenate([np.linspace(-7, 7, 5001), [0.46875, 4.0, 1e-300, 5e-324, 30.0, 1e300]])
    wanted = np.array([math.erf(v) for v in x])
    assert np.max(np.abs(numeric.erf(x) - wanted)) < 1e-15
    small = np.array([1e-10, 1e-20, 1e-300])
    np.testing.assert_allclose(numeric.erf(small), [math.erf(v) for v in small], rtol=1e-15)
    np.testing.assert_array_equal(numeric.erf(np.array([np.inf, -np.inf])), [1.0, -1.0])
    assert np.isnan(numeric.erf(np.array([np.nan])))[0]


def test_integer_division() -> None:
    a = np.array([7, -7, 7, -7, 5, -128], np.int8)
    b = np.array([2, 2, -2, -2, 0, -1], np.int8)
    with np.errstate(all="ignore"):
        assert numeric.binary("floordiv", a, b, "int8").tolist() == [3, -4, -4, 3, 0, -128]
        assert numeric.binary("mod", a, b, "int8").tolist() == [1, 1, -1, -1, 0, 0]
        assert numeric.binary("truncdiv", a, b, "int8").tolist() == [3, -3, -3, 3, 0, -128]
        assert numeric.binary("truncmod", a, b, "int8").tolist() == [1, -1, 1, -1, 0, 0]


def test_shifts_beyond_the_width() -> None:
    a = np.array([1, -1, 64], np.int32)
    assert numeric.binary("shl", a, np.array([31, 32, 40], np.int32), "int32").tolist() == [-(2**31), 0, 0]
    assert numeric.binary("shr", a, np.array([1, 40, 3], np.int32), "int32").tolist() == [0, -1, 8]


def test_integer_powers() -> None:
    a, b = np.array([2, -1, 1, 5, -1], np.int32), np.array([10, -3, -9, -1, -2], np.int32)
    assert numeric.binary("pow", a, b, "int32").tolist() == [1024, -1, 1, 0, 1]


def test_four_bit_integers_wrap() -> None:
    a, b = np.array([7, -8, 3], ml_dtypes.int4), np.array([1, -1, 4], ml_dtypes.int4)
    out = numeric.binary("add", a, b, "int4")
    assert out.dtype == ml_dtypes.int4 and out.astype(int).tolist() == [-8, 7, 7]
    unsigned = numeric.binary("sub", np.array([0, 9], ml_dtypes.uint4), np.array([1, 4], ml_dtypes.uint4), "uint4")
    assert unsigned.astype(int).tolist() == [15, 5]
    assert numeric.cast(np.array([300, -9], np.int32), "int32", "int4").astype(int).tolist() == [-4, 7]
    assert numeric.cast(np.array([9.7, -20.0, np.nan], np.float32), "float32", "int4").astype(int).tolist() == [
        7,
        -8,
        0,
    ]


def test_bfloat16_is_computed_in_float32_and_rounded() -> None:
    a = np.array([1.0], ml_dtypes.bfloat16)
    b = np.array([2.0**-9], ml_dtypes.bfloat16)
    out = numeric.binary("add", a, b, "bfloat16")
    assert out.dtype == ml_dtypes.bfloat16 and float(out[0]) == 1.0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "int4", "uint4"])
def test_float_to_integer_saturates(dtype: str) -> None:
    bits, signed = int(dtype.lstrip("uint")), dtype[0] == "i"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    given = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 2.9, -0.5])
    out = [int(v) for v in numeric.cast(given, "float64", dtype)]
    assert out == [high, low, 0, high, low, 2, 0]
    assert int(numeric.least(dtype)) == low and int(numeric.greatest(dtype)) == high


def test_literals_wrap() -> None:
    assert int(numeric.literal(300, "uint8")) == 44
    assert int(numeric.literal(2**64 - 1, "uint64")) == 2**64 - 1
    assert float(numeric.literal(-math.inf, "bfloat16")) == -math.inf
    assert numeric.literal(9, "int4").astype(object).item() == -7  # an array, as of any dtype


def test_rounding_functions_keep_integers() -> None:
    x = np.array([2**62 + 1, -3], np.int64)
    for op in ("floor", "ceil", "round", "trunc"):
        np.testing.assert_array_equal(numeric.unary(op, x, "int64", "int64"), x)
    assert numeric.unary("round", np.array([0.5, 1.5, 2.5]), "float64", "float64").tolist() == [0.0, 2.0, 2.0]


def test_a_power_is_not_a_root() -> None:
    """Of -inf and -0, whether the exponent is one number or one for each element (NumPy's own answers differ)."""
    bases = np.array([-np.inf, -0.0, 0.0, 4.0, -4.0, np.inf, np.nan], np.float32)
    for exponent in (
        np.float32(0.5),
        np.full(bases.shape, 0.5, np.float32),
        np.broadcast_to(np.float32(0.5), bases.shape),
    ):
        with np.errstate(all="ignore"):
            found = numeric.binary("pow", bases, np.asarray(exponent), "float32")
        np.testing.assert_array_equal(found, np.array([np.inf, 0, 0, 2, np.nan, np.inf, np.nan], np.float32))
        assert not np.signbit(found[1]) and found.dtype == np.float32
