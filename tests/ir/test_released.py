"""Forms that texts written by and for Relay's releases have: what they mean here, and that they print and parse again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from relay.ir.constant import MissingData
from relay.ir.diagnostics import RelayError, SyntaxError_
from relay.ir.equality import alpha_equal, structural_hash
from relay.ir.expr import Constant, Function
from relay.ir.module import Module
from relay.ir.parser import parse_expr, parse_module
from relay.ir.serialize import load_module_text
from relay.ir.types import FuncType, TensorType, scalar
from relay.ir.walk import post_order
from relay.typing import infer

VERSION = '#[version = "0.0.5"]\n'


def again(module: Module) -> Module:
    """The module printed and parsed, which is the same module."""
    for typed in (module, infer(module)):
        text = parse_module(typed.text())
        assert alpha_equal(text, typed)
        assert structural_hash(text) == structural_hash(typed)
    return infer(module)


def main_type(module: Module) -> FuncType:
    found = module.functions["main"].ty
    assert isinstance(found, FuncType)
    return found


def test_base_types_without_a_width() -> None:
    module = again(
        parse_module(VERSION + "def @main(%n: int, %x: float, %y: Tensor[(2), uint]) -> (int, float) { (%n, %x) }")
    )
    assert main_type(module).params == (scalar("int32"), scalar("float32"), TensorType((2,), "uint32"))


def test_a_type_may_still_be_called_int() -> None:
    module = again(parse_module(VERSION + "type int { Zero }\ndef @main(%n: int) { %n }"))
    assert main_type(module).params[0] != scalar("int32")


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("7i", "int32", 7),
        ("-7i", "int32", -7),
        ("7u", "uint32", 7),
        ("2147483647", "int32", 2**31 - 1),
        ("-2147483648", "int32", -(2**31)),
        ("2147483648", "int64", 2**31),
        ("-9223372036854775808", "int64", -(2**63)),
        ("-128i8", "int8", -128),
        ("2 /* ty=int64 */", "int64", 2),
        ("-2 /* ty=int8 span=main:3:4 */", "int8", -2),
        ("2 /* ty=uint8 */", "uint8", 2),
        ("2i16 /* ty=int64 */", "int16", 2),
        ("2 /* a type=int64 */", "int32", 2),
        ("-2147483648i32", "int32", -(2**31)),
    ],
)
def test_integers(text: str, dtype: str, value: int) -> None:
    made = parse_expr(text)
    assert isinstance(made, Constant) and made.dtype == dtype and made.data.item() == value
    again(parse_module(VERSION + text))


def test_planned_devices_are_not_kept() -> None:
    text = """
    def @main(%a {virtual_device=meta[VirtualDevice][0]}: Tensor[(2), float32], // here
              %b {virtual_device=meta[VirtualDevice][1]}: float32, virtual_device=meta[VirtualDevice][0], Primitive=1) {
      add(%a, %b)
    }
    """
    plain = "def @main(%a: Tensor[(2), float32], %b: float32, Primitive=1) { add(%a, %b) }"
    module = again(parse_module(VERSION + text))
    assert alpha_equal(parse_module(VERSION + text), parse_module(VERSION + plain))
    assert dict(module.functions["main"].attrs) == {"Primitive": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fn (%x {memory=1}) { %x }", "a parameter has no 'memory'"),
        ("copy(1, device=meta[VirtualDevice][0])", "an attribute cannot be a metadata reference"),
        ("copy(1, devices=[meta[VirtualDevice][0]])", "found 'meta'"),
    ],
)
def test_what_is_no_device(text: str, says: str) -> None:
    with pytest.raises(SyntaxError_, match=says):
        parse_expr(text)


def test_parentheses_in_patterns_are_tuples() -> None:
    text = "import prelude\ndef @main(%x: List[(int32,)]) { match? (%x) { Cons((%a), Nil) => %a + 1 } }"
    assert main_type(again(parse_module(VERSION + text))).ret == scalar("int32")


# Constants of texts without a metadata section

PRINTED = (
    VERSION
    + """
    def @main(%x: Tensor[(4, 3), float32] /* ty=Tensor[(4, 3), float32] span=main:1:2 */) -> Tensor[(4, 2), float32] {
      %0 = nn.dense(%x, meta[relay.Constant][1] /* ty=Tensor[(2, 3), float32] */, units=None, /* en_id=4 */) /* ty=... */;
      %1 = nn.bias_add(%0, meta[relay.Constant][0] /* ty=Tensor[(2), float32] span=bias:0:0 */);
      %2 = multiply(%1, meta[relay.Constant][2] /* ty=float32 */);
      add(%2, meta[relay.Constant][0] /* ty=Tensor[(2,), float32] */)
    }
    """
)


def constants(function: Function) -> list[Constant]:
    return [e for e in post_order(function) if isinstance(e, Constant)]


def test_a_printed_type_stands_for_the_data() -> None:
    module = again(parse_module(PRINTED))
    found = {c.data.number: c for c in constants(module.functions["main"]) if isinstance(c.data, MissingData)}
    assert {n: (c.data.shape, c.dtype) for n, c in found.items()} == {
        0: ((2,), "float32"),
        1: ((2, 3), "float32"),
        2: ((), "float32"),
    }


def test_the_data_is_asked_for_when_it_is_read(tmp_path: Path) -> None:
    module = parse_module(PRINTED)
    weight = constants(module.functions["main"])[0]
    for read in (
        np.asarray,
        np.ascontiguousarray,
        lambda d: d[0],
        lambda d: d.tobytes(),
        lambda d: d.reshape(-1),
        bool,
    ):
        with pytest.raises(RelayError, match=r"meta\[relay.Constant\]\[1\] has no data"):
            read(weight.data)
    module.save(tmp_path / "m.relay")
    assert alpha_equal(load_module_text(tmp_path / "m.relay"), module)


def test_placeholders_are_told_apart() -> None:
    other = PRINTED.replace("[relay.Constant][2]", "[relay.Constant][3]")
    assert not alpha_equal(parse_module(PRINTED), parse_module(other))
    with pytest.raises(RelayError, match=r"constant 0 has two types"):
        parse_module(PRINTED.replace("Tensor[(2,), float32]", "Tensor[(3), float32]"))


def test_constants_can_be_given_with_the_text() -> None:
    weights: list[npt.ArrayLike] = [np.ones(2, np.float32), np.ones((2, 3), np.float32), np.float32(2)]
    text = PRINTED.replace("/* ty=Tensor[(2, 3), float32] */", "").replace("/* ty=float32 */", "/* a scale */")
    module = again(parse_module(text, constants=weights))
    assert sorted(c.data.size for c in constants(module.functions["main"])) == [1, 2, 6]
    with pytest.raises(SyntaxError_, match="no constant 1"):
        parse_module(text)
