"""Conversions between element types, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.codegen.llvm import emit
from relay.codegen.target import parse_target
from relay.ir.expr import Expr
from relay.plan import make_plan
from tests.plan.harness import Maker, primitive, tensor

ZEN4 = parse_target("-mcpu=znver4")


@pytest.mark.parametrize("declared, size", [("", "4096"), ("[n: Dim]", "n")])
def test_floats_are_rounded_to_bfloat16(declared: str, size: str) -> None:
    """Subnormal numbers, which one instruction of the machine takes for zero, by themselves and beside others; ties, infinities, nan."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype="uint64").astype("uint32")
    bits[::7] &= 0x807FFFFF  # subnormal
    bits[1::11] = bits[1::11] & 0xFFFF0000 | 0x8000  # halfway between two
    bits[2048:2304] &= 0x807FFFFF
    bits[:8] = 0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x007FFFFF, 0x00008000, 0x00018000
    x = bits.view("float32")
    program = relay.parse(f"""#[version = "0.0.5"]
def @main{declared}(%x: Tensor[({size},), float32]) {{ cast(%x, dtype="bfloat16") }}""")
    exe = relay.compile(program)
    for count in (4096,) if size == "4096" else (4096, 4001, 5):
        found, wanted = np.asarray(exe(x[:count])), np.asarray(relay.evaluate(program, x[:count]))
        nan = np.isnan(x[:count])
        np.testing.assert_array_equal(found.view("uint16")[~nan], wanted.view("uint16")[~nan])
        assert np.isnan(found.astype("float32")[nan]).all()


def test_what_was_rounded_is_stored_as_it_is() -> None:
    fn = primitive([tensor((4096,))], lambda m, x: m("cast", x, dtype="bfloat16"))
    for target in (ZEN4, parse_target("-mcpu=znver4 -mattr=-avx512bf16")):
        text = emit(make_plan(fn, target).kernel, target)
        # A nan is asked for once, where the bits are rounded.
        assert text.count("fcmp uno") == 1 and text.count("call <16 x bfloat>") <= 1


def test_a_machine_that_rounds_to_bfloat16_does_so() -> None:
    fn = primitive([tensor((4096,))], lambda m, x: m("cast", x, dtype="bfloat16"))
    assert "cvtneps2bf16" in emit(make_plan(fn, ZEN4).kernel, ZEN4)
    other = parse_target("-mcpu=znver4 -mattr=-avx512bf16")
    assert "cvtneps2bf16" not in emit(make_plan(fn, other).kernel, other)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
@pytest.mark.parametrize("by", [255.0, 3.0, -7.1, 127.5, 0.1, 65535.0, 4.0, 1e30])
def test_small_whole_numbers_are_divided_as_floats_are(by: float, dtype: str) -> None:
    limits = np.iinfo(dtype if dtype != "int32" else "int16")
    x = np.arange(limits.min, limits.max + 1).astype(dtype)
    program = relay.parse(f"""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), {dtype}]) {{ cast(%x, dtype="float32") / const({by}, float32) }}""")
    found = np.asarray(relay.compile(program)(x))
    np.testing.assert_array_equal(found.view("uint32"), (x.astype("float32") / np.float32(by)).view("uint32"))


def test_pixels_are_multiplied_by_an_inverse() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m("divide", m("cast", x, dtype="float32"), m.constant(255.0))

    text = emit(make_plan(primitive([tensor((4096,), "uint8")], build), ZEN4).kernel, ZEN4)
    assert "fdiv" not in text and "llvm.fma" in text
