"""What texts mean: scoping, sharing, precedence, constructors, imports."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir import prelude
from relay.ir.diagnostics import SyntaxError_
from relay.ir.equality import alpha_equal
from relay.ir.expr import Block, Call, Constant, ConstructorRef, Function, If, Match, OpRef, Proj, RefWrite, Tuple, Var
from relay.ir.parser import parse_expr, parse_module
from relay.ir.serialize import load_module_text
from relay.ir.types import TypeVar
from tests.ir.programs import HEADER, LISTS


def test_lets_are_one_flat_block() -> None:
    e = parse_expr("let %x = 1; %x; let %y = %x; %y")
    assert isinstance(e, Block)
    assert [b.var.name for b in e.bindings] == ["x", "_", "y"]
    assert e.bindings[2].value is e.bindings[0].var
    assert e.result is e.bindings[2].var


def test_graph_bindings_share() -> None:
    e = parse_expr("%0 = f(1); %1 = (%0, %0); g(%1, %0)")
    assert isinstance(e, Call)
    pair, single = e.args
    assert isinstance(pair, Tuple)
    assert pair.fields[0] is pair.fields[1] is single


def test_recursive_functions_see_themselves_and_other_values_do_not() -> None:
    e = parse_expr("let %x = 1; let %x = f(%x); let %g = fn (%n) { %g(%n) }; (%x, %g)")
    assert isinstance(e, Block)
    first, second, g = e.bindings
    assert isinstance(second.value, Call)
    assert second.value.args == (first.var,)
    assert isinstance(g.value, Function)
    assert isinstance(g.value.body, Call)
    assert g.value.body.fn is g.var


def test_precedence() -> None:
    e = parse_expr("1 - 2 - 3 * 4 < 5")
    assert isinstance(e, Call)
    assert e.fn.name == "less"  # type: ignore[union-attr]
    left = e.args[0]
    assert isinstance(left, Call)
    assert left.fn.name == "subtract"  # type: ignore[union-attr]
    inner, product = left.args
    assert isinstance(inner, Call)
    assert isinstance(product, Call)
    assert (inner.fn.name, product.fn.name) == ("subtract", "multiply")  # type: ignore[union-attr]


def test_dotted_names_and_projections() -> None:
    f = parse_expr("fn (%x, %x.1) { (%x.1, %x.0, %x.0.2) }")
    assert isinstance(f, Function)
    assert isinstance(f.body, Tuple)
    whole, first, nested = f.body.fields
    assert whole is f.params[1]
    assert isinstance(first, Proj)
    assert first.tuple is f.params[0]
    assert isinstance(nested, Proj)
    assert nested.index == 2


def test_constructors_and_operators() -> None:
    m = parse_module(HEADER + "def @f(%x: List[int8]) { (Cons(1i8, Nil), nil, Cons, Nil()) }\n" + LISTS)
    body = m.function("f").body
    assert isinstance(body, Tuple)
    made, op, constructor, empty = body.fields
    assert isinstance(made, Call)
    assert isinstance(made.fn, ConstructorRef)
    assert isinstance(made.args[1], Call)
    assert isinstance(op, OpRef)
    assert isinstance(constructor, ConstructorRef)
    assert isinstance(empty, Call)
    assert m.constructors["Nil"].tag == 1
    same = parse_module(HEADER + "type Way { Here(), Left(Way), Right(Way) }")
    assert [len(c.fields) for c in same.types["Way"].constructors] == [0, 1, 1]


def test_literals() -> None:
    for text, dtype, value in (
        ("1", "int32", 1), ("-7i8", "int8", -7), ("250u8", "uint8", 250), ("1f", "float32", 1), ("0.1f64", "float64", 0.1),
        ("2f16", "float16", 2), ("0.5bf16", "bfloat16", 0.5), ("True", "bool", True), ("-5i4", "int4", -5),
        ("1.5", "float32", 1.5),
    ):  # fmt: skip
        e = parse_expr(text)
        assert isinstance(e, Constant)
        assert (e.dtype, e.data.shape, float(e.data)) == (dtype, (), value)
        assert not e.data.flags.writeable


def test_type_parameters_are_the_variables_in_the_types() -> None:
    f = parse_expr("fn[A, n: Dim](%x: A, %y: Tensor[(n,), int8]) -> A { %x }")
    assert isinstance(f, Function)
    assert f.params[0].annotation is f.type_params[0] is f.ret_type
    assert isinstance(f.type_params[0], TypeVar)


def test_a_size_as_a_value() -> None:
    f = parse_expr("fn[n: Dim](%x: Tensor[(n,), int8]) { Dim[2*n + 1] * 2i64 - Dim[3] }")
    written = "fn[n: Dim](%x: Tensor[(n,), int8]) { size_of(size=Dim[2*n + 1]) * 2i64 - size_of(size=3) }"
    assert alpha_equal(f, parse_expr(written))


def test_attributes() -> None:
    e = parse_expr('f(1, a=[1, -2], b="x\\n", c=None, d=1e-3f, e=True)')
    assert isinstance(e, Call)
    assert dict(e.attrs) == {"a": (1, -2), "b": "x\n", "c": None, "d": 1e-3, "e": True}


@pytest.mark.parametrize(
    ("attribute", "meant"),
    [
        ("n", "Dim[n]"),
        ("3*n", "Dim[3*n]"),
        ("n*3 - 1", "Dim[3*n - 1]"),
        ("[n + m, 2 * (n - 1), n*m % 4]", "[Dim[n + m], Dim[2*n - 2], Dim[n*m % 4]]"),
        ("[1 + n // 2 * 2, (n, 2 - 1 + m)]", "[Dim[n // 2 * 2 + 1], (Dim[n], Dim[m + 1])]"),
        ("[6 - 2 - 1, 2 * max(n, m)]", "[3, Dim[2*max(n, m)]]"),
    ],
)
def test_arithmetic_as_an_attribute(attribute: str, meant: str) -> None:
    found, expected = (
        parse_expr(f"fn[n: Dim, m: Dim](%x: Tensor[(n, m), int8]) {{ f(%x, a={a}) }}") for a in (attribute, meant)
    )
    assert alpha_equal(found, expected)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("3 * float32", "a dimension is wanted"),
        ("2 * k", "'k' is not declared"),
        ("2 * %x", "found '%x'"),
        ("n // 0", "by zero"),
    ],
)
def test_what_is_no_arithmetic_as_an_attribute(attribute: str, message: str) -> None:
    with pytest.raises(SyntaxError_, match=message):
        parse_expr(f"fn[n: Dim](%x: Tensor[(n,), int8]) {{ f(%x, a=[{attribute}]) }}")


def test_references_as_calls() -> None:
    e = parse_expr("let %r = ref(1); ref_write(%r, 2)")
    assert isinstance(e, Block)
    assert isinstance(e.result, RefWrite)


def test_spans() -> None:
    m = parse_module(HEADER + "def @main(%x: int8) {\n  let %y = nn.dense(%x);\n  %y\n}", "a.relay")
    body = m.function("main").body
    assert isinstance(body, Block)
    span = body.bindings[0].value.span
    assert span is not None
    assert (span.source, span.line, span.column, span.length) == ("a.relay", 3, 12, 8)
    assert m.sources["a.relay"].startswith("#[version")


def test_expression_as_module() -> None:
    m = parse_module(HEADER + "free_var %x: int8; free_var %y: int8; %x + %y")
    assert [p.name for p in m.function("main").params] == ["x", "y"]
    assert len(parse_module(HEADER + "fn (%x) { %x }").function("main").params) == 1


def test_an_expression_may_leave_out_the_version() -> None:
    assert len(parse_module("fn (%x) { %x }").function("main").params) == 1
    assert len(parse_module("/* a sum */ free_var %x: int8; %x + 1i8").function("main").params) == 1


def test_released_clause_bodies() -> None:
    m = parse_module(
        HEADER + LISTS + "def @f(%x: List[int8]) { match (%x) { Cons(%a, _) => { let %b = %a; %b }, Nil => 0i8 } }"
    )
    body = m.function("f").body
    assert isinstance(body, Match)
    assert isinstance(body.clauses[0].body, Block)


def test_prelude_is_merged_as_far_as_it_is_used() -> None:
    m = parse_module(HEADER + "import prelude\ndef @main(%t: Tree[int32]) { @size(%t) }")
    assert set(m.functions) == {"main", "size", "sum", "map", "foldl"}
    assert set(m.types) == {"List", "Option", "Tree"}
    own = parse_module(HEADER + "import prelude\ndef @map(%x: int32) { %x }\ndef @main() { @map(1) }")
    assert set(own.functions) == {"map", "main"}
    wanted = {
        "id", "compose", "flip", "hd", "tl", "nth", "length", "update", "map", "foldl", "foldr", "foldr1", "sum", "concat",
        "filter", "zip", "rev", "map_accuml", "map_accumr",
        "unfoldl", "unfoldr", "tmap", "size", "iterate",
        "while", "for", "row_count", "fold_rows", "scan", "scan_from", "scan_rows", "map_rows",
    }  # fmt: skip
    assert wanted == set(prelude.load().functions)


def test_functions_of_the_prelude_call_its_own() -> None:
    """Also where the module gives a name of the prelude another meaning, which it has in the module alone."""
    row, h = "Tensor[(3,), float32]", '#[version = "0.0.5"]\nimport prelude\n'
    module = relay.parse(f"""{h}
        def @scan(%x: {row}) -> {row} {{ %x + 1f }}
        def @prelude.scan(%x: {row}) -> {row} {{ %x * 2f }}
        def @main[n: Dim](%xs: Tensor[(n, 3), float32], %z: {row}) {{
          @scan_rows(fn (%a: {row}, %x: {row}) {{ (@scan(%a) + %x, @prelude.scan(%a)) }}, %z, %z, %xs)
        }}""")
    assert set(module.functions) == {"scan", "prelude.scan", "main", "scan_rows", "prelude.scan1", "scan_from"}
    found: Any = relay.evaluate(module, np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3, np.float32))
    last, rows = found
    np.testing.assert_array_equal(last, [5, 7, 9])
    np.testing.assert_array_equal(rows, [[0, 0, 0], [2, 4, 6]])
    again = relay.parse(str(module))
    assert again.functions.keys() == module.functions.keys()


def test_imports(tmp_path: Path) -> None:
    (tmp_path / "lib.rly").write_text(
        HEADER + "import prelude\ntype Box[A] { Box(A) }\ndef @box[A](%x: A) -> Box[A] { Box(@id(%x)) }"
    )
    main = tmp_path / "main.relay"
    main.write_text(HEADER + 'import "lib.rly"\ndef @main() { match (@box(1)) { Box(%x) => %x } }')
    m = load_module_text(main)
    assert set(m.functions) == {"main", "box", "id"}
    assert set(m.types) == {"Box", "List", "Option", "Tree"}
    (tmp_path / "lib.rly").write_text(HEADER + 'import "lib.rly"\ndef @box() { 1 }')
    with pytest.raises(Exception, match="imports itself"):
        load_module_text(main)


def test_constants_in_metadata() -> None:
    """The released format's own section: a node table with serialised arrays."""
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    blob = struct.pack("<QQiiiBBHqqq", 0xDD5E40F096B4A13F, 0, 1, 0, 2, 2, 32, 1, 2, 3, data.nbytes) + data.tobytes()
    table = {
        "root": 1,
        "nodes": [
            {"type_key": ""},
            {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]},
            {"type_key": "Array", "data": [3]},
            {"type_key": "relay.Constant", "attrs": {"data": "0", "span": "0"}},
        ],
        "b64ndarrays": [base64.b64encode(blob).decode()],
    }
    text = (
        HEADER
        + "def @main() { add(meta[relay.Constant][0], meta[relay.Constant][0]) }\n#[metadata]\n"
        + json.dumps(table)
    )
    body = parse_module(text).function("main").body
    assert isinstance(body, Call)
    first, second = body.args
    assert first is second
    assert isinstance(first, Constant)
    np.testing.assert_array_equal(first.data, data)


def test_else_if_and_shadowing_end_with_their_scope() -> None:
    e = parse_expr("fn (%x) { if (%x) { let %x = 1; %x } else if (%x) { %x } else { 2 } }")
    assert isinstance(e, Function)
    assert isinstance(e.body, If)
    nested = e.body.orelse
    assert isinstance(nested, If)
    assert isinstance(nested.then, Var)
    assert nested.then is e.params[0]


@pytest.mark.parametrize("name", ["/dev/zero", "folder", "pipe"])
def test_only_regular_files_are_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SyntaxError_, match=rf"cannot read the import {name}: .*{name} is not a regular file"):
        parse_module(f'{HEADER}import "{name}"\ndef @main() {{ 1 }}', base=tmp_path)


def test_what_is_imported_has_a_largest_size(tmp_path: Path) -> None:
    with (tmp_path / "huge.relay").open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(SyntaxError_, match=r"cannot read the import huge.relay: .* more than 268,435,456 characters"):
        parse_module(f'{HEADER}import "huge.relay"\ndef @main() {{ 1 }}', base=tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "one.relay").write_text(f"{HEADER}def @one() {{ 1 }}", encoding="utf-8-sig")
    (tmp_path / "main.relay").write_text(f'{HEADER}import "one.relay"\ndef @main() {{ @one() }}', encoding="utf-8-sig")
    assert set(load_module_text(tmp_path / "main.relay").functions) == {"main", "one"}
