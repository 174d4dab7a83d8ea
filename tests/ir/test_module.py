"""Modules: files, binding of weights, algebraic values, the builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relay.executable.program import load
from relay.ir import builder
from relay.ir.constant import make_constant
from relay.ir.diagnostics import FileError, RelayError, ShapeError, TypeError_
from relay.ir.dim import DimVar, as_var
from relay.ir.equality import alpha_equal
from relay.ir.expr import Constant, Function
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.ir.serialize import load_module_text
from relay.ir.types import TensorType
from relay.ir.value import AdtValue, from_list, from_option, list_value, option_value
from tests.ir.programs import HEADER, LISTS

DENSE = (
    HEADER
    + "def @main[n: Dim, k: Dim](%x: Tensor[(n, k), float32], %w: Tensor[(8, k), float32], %b: Tensor[(8,), float32]) "
)
DENSE += "-> Tensor[(n, 8), float32] { nn.bias_add(nn.dense(%x, %w), %b) }"


def constants_of(module: Module) -> list[Constant]:
    body = module.function("main").body
    return [a for a in body.fields if isinstance(a, Constant)]  # type: ignore[union-attr]


def all_dtypes() -> Module:
    dtypes = ("bool", "int4", "uint4", "int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64")
    values = [builder.const(np.arange(24).reshape(2, 3, 4) % 8, d) for d in dtypes]
    values += [
        builder.const(np.zeros((0, 3), np.float32)),
        builder.const(np.array([np.nan, -0.0, np.inf] * 9, np.float32)),
    ]
    return builder.module({"main": builder.function([], builder.tuple_(*values, values[0]))})


def test_text_is_complete_and_str_is_short() -> None:
    module = all_dtypes()
    again = parse_module(module.text())
    assert alpha_equal(module, again)
    again_constants = constants_of(again)
    assert again_constants[0] is again_constants[-1]
    for a, b in zip(constants_of(module), again_constants, strict=True):
        assert a.data.dtype == b.data.dtype
    assert "#[metadata]" not in str(module)
    assert "meta[relay.Constant][0] /* Tensor[(2, 3, 4), bool] */" in str(module)


def test_save_and_load(tmp_path: Path) -> None:
    big = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    module = builder.module(
        {
            "main": builder.function(
                [],
                builder.tuple_(
                    *(builder.const(big, d) for d in ("float32", "bfloat16", "float64")), builder.const(big[0])
                ),
            )
        }
    )
    path = tmp_path / "m.relay"
    module.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.relay", "m.safetensors"]
    assert len(path.read_text()) < 4096
    loaded = load_module_text(path)
    assert alpha_equal(module, loaded)
    all_dtypes().save(tmp_path / "small.relay")
    assert not (tmp_path / "small.safetensors").exists()
    (tmp_path / "m.safetensors").write_bytes(b"damaged")
    with pytest.raises(FileError, match="cannot read tensor"):
        load_module_text(path)
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(FileError, match="missing"):
        load_module_text(path)
    with pytest.raises(FileError, match="cannot read"):
        load_module_text(tmp_path / "none.relay")
    with pytest.raises(FileError, match="cannot write"):
        module.save(tmp_path / "no" / "folder.relay")


def test_bind() -> None:
    module = parse_module(DENSE)
    w, b = np.ones((8, 4), np.float32), np.zeros(8, np.float32)
    bound = module.bind({"w": w, "b": b})
    main = bound.function("main")
    assert [p.name for p in main.params] == ["x"]
    annotation = main.params[0].annotation
    assert isinstance(annotation, TensorType)
    assert annotation.shape[1] == 4  # type: ignore[index]
    assert [p.name for p in main.type_params] == ["n"]
    wanted = parse_module(
        HEADER + "def @main[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(n, 8), float32] "
        "{ nn.bias_add(nn.dense(%x, const(["
        + "1, " * 31
        + "1], (8, 4), float32)), const([0, 0, 0, 0, 0, 0, 0, 0], (8,), float32)) }"
    )
    assert alpha_equal(bound, wanted)
    w[:] = 5  # the module keeps its own copy
    assert alpha_equal(bound, wanted)
    assert [p.name for p in module.function("main").params] == ["x", "w", "b"]


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"weight": np.ones(1)}, RelayError, "no parameter 'weight'"),
        ({"w": np.ones((8, 4))}, TypeError_, "must be float32, the array is float64"),
        ({"w": np.ones(8, np.float32)}, ShapeError, "must have rank 2"),
        ({"w": np.ones((9, 4), np.float32)}, ShapeError, "size 9 on axis 0, expected 8"),
        ({"w": np.ones((8, 4), np.float32), "x": np.ones((2, 5), np.float32)}, ShapeError, "k is 4 elsewhere"),
        ({"b": np.array(["a"])}, RelayError, "no base type"),
        ({"b": "abc"}, TypeError_, "parameter 'b' of @main: a constant is a number or an array of numbers, not 'abc'"),
        ({"b": [[1], [2, 3]]}, TypeError_, "parameter 'b' of @main: not an array of numbers"),
        ({"b": [1e39] * 8}, TypeError_, r"parameter 'b' of @main: float32 does not hold 1e\+39"),
        ({1: np.ones(1)}, RelayError, "no parameter 1"),
        ([np.ones(1)], RelayError, "given by parameters' names"),
        (None, RelayError, "given by parameters' names, not as None"),
    ],
)
def test_bind_errors(values: Any, error: type[RelayError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_module(DENSE).bind(values)


def test_bind_refuses_a_function_that_is_called() -> None:
    module = parse_module(HEADER + "def @main(%x: int8) { @main(%x) }")
    with pytest.raises(RelayError, match="is called inside the module"):
        module.bind({"x": np.int8(1)})


def test_adt_values() -> None:
    module = parse_module(HEADER + LISTS + "type Tree { Leaf(int8), Node(Tree, Tree) }\ndef @main() { 1 }")
    tree = module.adt("Tree")
    value = tree.Node(tree.Leaf(1), tree.Leaf(2))
    assert (value.adt, value.constructor, value.tag) == ("Tree", "Node", 1)
    assert value.fields[1].fields == (2,)
    assert repr(value) == "Node(Leaf(1), Leaf(2))"
    with pytest.raises(TypeError_, match="2 fields"):
        tree.Node(1)
    with pytest.raises(AttributeError, match="no constructor Leef"):
        tree.Leef(1)
    with pytest.raises(RelayError, match="no type Trie"):
        module.adt("Trie")
    deep = list_value(range(50_000))
    assert from_list(deep) == list(range(50_000))
    assert "..." in repr(deep)
    shared = tree.Leaf(1)
    for _ in range(60):
        shared = AdtValue("Tree", "Node", 1, ([shared, shared], (shared,)))
    assert len(repr(shared)) < 1000, "what is shared through lists is not shown as often as there are ways to it"
    assert from_option(option_value(None)) is None
    assert from_option(option_value(3)) == 3
    with pytest.raises(TypeError_):
        from_list(option_value(1))


def test_constants() -> None:
    assert make_constant(1.5).dtype == "float32"
    assert make_constant(np.arange(3)).dtype == "int64"
    assert make_constant([True]).dtype == "bool"
    swapped = np.arange(3, dtype=">i4")
    assert make_constant(swapped).data.tolist() == [0, 1, 2]
    array = np.ones(3, np.float32)
    constant = make_constant(array)
    array[0] = 7
    assert constant.data[0] == 1
    assert make_constant(np.array(1, ml_dtypes.int4)).dtype == "int4"
    with pytest.raises(RelayError, match="no base type"):
        make_constant(np.array([1j]))
    assert make_constant(2**70, "float32").data == np.float32(2**70)
    assert make_constant(2.0, "int8").data == 2
    assert make_constant([2**64 - 1, 0], "uint64").data.tolist() == [2**64 - 1, 0]
    assert np.isinf(make_constant(float("inf"), "float16").data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (1e30, "float16", r"float16 does not hold 1e\+30"),
        (np.array([1.0, 1e39]), "float32", r"float32 does not hold 1e\+39"),
        (300, "int8", "int8 does not hold 300"),
        (9, "int4", "int4 does not hold 9"),
        (-1, "uint8", "uint8 does not hold -1"),
        (1.5, "int32", "int32 does not hold 1.5"),
        (float("nan"), "int32", "int32 does not hold nan"),
        (2**70, "int64", "no number of base type int64"),
        ([2**64 - 1, -1], "uint64", "no number of base type uint64"),
        ([2**63, 0.5], "uint64", "uint64 does not hold 0.5"),
        ("abc", "float32", "not 'abc'"),
        (None, "float32", "not None"),
        ([1, [2]], None, "not an array of numbers"),
        (1j, "float32", "not 1j"),
        (1, "foo", "no array holds the base type 'foo'"),
    ],
)
def test_what_is_no_constant(value: Any, dtype: str | None, says: str) -> None:
    with pytest.raises(RelayError, match=says):
        builder.const(value, dtype)


@pytest.mark.parametrize("path", [None, 3, b"m.relay"])
def test_what_is_no_path(path: Any) -> None:
    module = parse_module(HEADER + "def @main() { 1 }")
    for use in (load_module_text, module.save, load):
        with pytest.raises(FileError, match="a path is a string"):
            use(path)


@pytest.mark.parametrize("dtype", ["foo", "Float32", 3, None])
def test_what_is_no_base_type(dtype: Any) -> None:
    with pytest.raises(RelayError, match="unknown base type"):
        builder.var("x", (2,), dtype)


def test_builder_dims() -> None:
    x, w = builder.var("x", ("n", 4)), builder.var("w", (8, 4))
    f = builder.function([x, w], builder.call("nn.dense", x, w))
    g = builder.function([x], x)
    assert [p.name for p in f.type_params] == ["n"]
    assert f.type_params[0] is not g.type_params[0]
    shape = f.params[0].annotation.shape  # type: ignore[union-attr]
    assert as_var(shape[0]) is f.type_params[0]  # type: ignore[index]
    wanted = parse_module(
        HEADER + "def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(8, 4), float32]) { nn.dense(%x, %w) }"
    )
    assert alpha_equal(builder.module({"main": f}), wanted)


def test_builder_nested_functions_share_a_captured_dim() -> None:
    x, y = builder.var("x", ("n",)), builder.var("y", ("n",))
    inner = builder.function([y], builder.call("add", x, y))
    outer = builder.function([x], inner)
    assert inner.type_params == ()
    body = outer.body
    assert isinstance(body, Function)
    (n,) = outer.type_params
    assert isinstance(n, DimVar)
    assert as_var(body.params[0].annotation.shape[0]) is n  # type: ignore[union-attr,index]


def test_builder_blocks() -> None:
    x = builder.var("x")
    block = builder.Let()
    y = block.let("y", builder.call("exp", x))
    block.do(builder.call("@log", y))
    f = builder.function([x], block.result(builder.if_(y, builder.const(1), builder.project(builder.tuple_(x), 0))))
    wanted = parse_module(HEADER + "def @main(%x) { let %y = exp(%x); @log(%y); if (%y) { 1 } else { (%x,).0 } }")
    assert alpha_equal(builder.module({"main": f}), wanted)
