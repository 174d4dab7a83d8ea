"""Python values on their way into a program: conversion in the runtime, by types that it asks for as it meets them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.executable.bytecode import DTYPE_CODES
from relay.executable.errors import ArgumentError
from relay.executable.program import Executable
from relay.ir.diagnostics import RelayError, ShapeError, TypeError_
from relay.ir.module import Module
from relay.ir.value import AdtValue

TEXT = """#[version = "0.0.5"]
import prelude
type Pair[A, B] { Both(A, B), Neither, }
type Grow[A] { More(A, Grow[(A, A)]), Last, }
def @main(%p: Pair[List[Tensor[(2,), float32]], Option[int32]], %t: (Tree[float32], Grow[int32]))
    -> (Pair[List[Tensor[(2,), float32]], Option[int32]], (Tree[float32], Grow[int32])) { (%p, %t) }
"""


@pytest.fixture(scope="module")
def program() -> tuple[Module, Executable]:
    mod = relay.parse(TEXT)
    return mod, relay.compile(mod)


def value(mod: Module, xs: Any = (), number: Any = None, grow: Any = None) -> tuple[Any, Any]:
    tree = mod.adt("Tree").Rose(1.5, [mod.adt("Tree").Rose(2.5, [])])
    last = mod.adt("Grow").Last()
    return mod.adt("Pair").Both(list(xs), number), (tree, last if grow is None else grow)


@pytest.mark.parametrize("depth", [0, 1, 3, 16, 17, 40])
def test_tuples_inside_each_other_come_back(depth: int) -> None:
    text = "%x"
    for _ in range(depth):
        text = f"({text}, ())"
    exe = relay.compile(f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) {{ {text} }}', threads=1)
    found: Any = exe(np.array([1, 2], np.float32))
    for _ in range(depth):
        found, nothing = found
        assert nothing == ()
    assert np.asarray(found).tolist() == [1, 2]


def test_there_and_back(program: tuple[Module, Executable]) -> None:
    mod, exe = program
    grow = mod.adt("Grow").More(1, mod.adt("Grow").More((2, 3), mod.adt("Grow").Last()))
    found: Any = exe(*value(mod, [np.ones(2, np.float32), np.arange(4, dtype=np.float32)[::2]], 7, grow))
    pair, (tree, grown) = found
    assert pair.constructor == "Both" and int(pair.fields[1]) == 7
    assert [np.asarray(x).tolist() for x in pair.fields[0]] == [[1, 1], [0, 2]]
    assert float(tree.fields[0]) == 1.5 and float(tree.fields[1][0].fields[0]) == 2.5
    assert [int(n) for n in grown.fields[1].fields[0]] == [2, 3]
    empty: Any = exe(mod.adt("Pair").Neither(), value(mod)[1])
    assert empty[0].constructor == "Neither"


REFUSED: dict[str, tuple[dict[str, Any], type[RelayError], str]] = {
    "a shape": (
        {"xs": [np.ones(2, np.float32), np.ones(3, np.float32)]},
        ShapeError,
        "argument %p of @main, at Both.0[1] has shape (3,), expected (2,)",
    ),
    "a dtype": ({"xs": [np.ones(2)]}, TypeError_, "Both.0[0] has dtype float64, expected float32"),
    "no tensor": ({"xs": ["word"]}, TypeError_, "Both.0[0] must be a tensor of float32"),
    "another number": ({"number": 1.5}, TypeError_, "must be a tensor of int32"),
    "no list": ({"number": {}}, TypeError_, "Both.1/Some.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_say_where(program: tuple[Module, Executable], name: str) -> None:
    mod, exe = program
    given, error, text = REFUSED[name]
    before = _runtime.live_objects()
    with pytest.raises(error, match=re.escape(text)):
        exe(*value(mod, **given))
    assert _runtime.live_objects() == before


def test_other_errors(program: tuple[Module, Executable]) -> None:
    mod, exe = program
    pair, rest = value(mod)
    with pytest.raises(TypeError_, match=r"argument %p of @main must be a Pair, not Rose\(1.5"):
        exe(rest[0], rest)
    with pytest.raises(TypeError_, match=r"argument %t of @main must be a tuple of 2, not one of 1"):
        exe(pair, rest[:1])
    with pytest.raises(TypeError_, match=r"at \.0/Rose\.1 must be a List, not 3"):
        exe(pair, (mod.adt("Tree").Rose(1.0, 3), rest[1]))
    deep = mod.adt("Tree").Rose(1.0, [])
    for _ in range(50_000):
        deep = mod.adt("Tree").Rose(1.0, [deep])
    exe(pair, (deep, rest[1]))
    wrong = mod.adt("Tree").Rose("x", [])
    for _ in range(30):
        wrong = mod.adt("Tree").Rose(1.0, [wrong])
    with pytest.raises(RelayError, match=r"at \.\.\./"):
        exe(pair, (wrong, rest[1]))


def test_shared_parts_stay_shared(program: tuple[Module, Executable]) -> None:
    mod, exe = program
    tree = mod.adt("Tree").Rose(0.5, [])
    for _ in range(40):
        tree = mod.adt("Tree").Rose(0.5, [tree, tree])  # 2^40 nodes as a tree
    converted = exe.signature().argument(1, (None, (tree, mod.adt("Grow").Last())))
    assert isinstance(converted, _runtime.Value)


def test_none_is_the_option_without_a_value() -> None:
    text = '#[version = "0.0.5"]\nimport prelude\n'
    exe = relay.compile(text + "def @main(%o: Option[int64]) -> int64 { match (%o) { Some(%x) => %x, None => 7i64 } }")
    assert [int(np.asarray(exe(o))) for o in (None, np.int64(3))] == [7, 3]


def test_arguments_by_name() -> None:
    exe = relay.compile(
        """#[version = "0.0.5"]
def @main(%x: Tensor[(2,), float32], %by: float32, %pair: (float32, float32)) -> Tensor[(2,), float32] { %x * %by + %pair.1 }"""
    )
    x = np.array([1, 2], np.float32)
    pair = (np.float32(0), np.float32(1))
    for found in (
        exe(x, np.float32(3), pair),
        exe(x, pair=pair, by=np.float32(3)),
        exe(by=np.float32(3), x=x, pair=pair),
        exe.run("main", x, pair=pair, by=np.float32(3)),
    ):
        assert np.asarray(found).tolist() == [4, 7]
    with pytest.raises(TypeError_, match="@main has no parameter %z"):
        exe(x, np.float32(3), z=pair)
    with pytest.raises(TypeError_, match="@main has no parameter %limit"):
        exe.run("main", x, np.float32(3), pair, limit=None)
    with pytest.raises(TypeError_, match="the argument %x is given twice"):
        exe(x, np.float32(3), pair, x=x)
    with pytest.raises(TypeError_, match="@main lacks %by, %pair"):
        exe(x=x)
    with pytest.raises(TypeError_, match="takes 3 arguments"):
        exe(x, np.float32(3), pair, pair)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            np.ones(2),
            r"argument %x of @main: expected float32, found float64\s+hint: convert it: x.astype\('float32'\)",
        ),
        ({1.0, 2.0}, r"argument %x of @main: .* set, .*\s+hint: give a NumPy array or a DLPack tensor of float32"),
        (["a", "b"], r"argument %x of @main: expected float32, found a list of str"),
        (None, r"argument %x of @main"),
    ],
)
def test_what_a_tensor_parameter_refuses(given: object, message: str) -> None:
    exe = relay.compile('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) { %x + 1f }')
    with pytest.raises(RelayError, match=message):
        exe(given)


def test_what_is_not_a_program() -> None:
    with pytest.raises(RelayError, match="a NoneType is not a program"):
        relay.compile(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 1, 15, 16, 17, 60])
def test_tuples_of_tuples_come_out_as_they_are(depth: int) -> None:
    ty, value = "Tensor[(2,), float32]", "%y"
    for _ in range(depth):
        ty, value = f"({ty}, (), int32)", f"({value}, (), 3)"
    exe = relay.compile(
        f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) -> {ty} {{ let %y = tanh(%x); {value} }}'
    )
    found: Any = exe(np.zeros(2, np.float32))
    for _ in range(depth):
        assert isinstance(found, tuple) and found[1] == () and int(found[2]) == 3
        found = found[0]
    assert isinstance(found, relay.Tensor) and found.shape == (2,)


def test_tuples_of_tensors_come_out_as_tuples() -> None:
    """The runtime makes Python's tuples of them, inside each other too, and of none; what is in several places is one object there."""
    text = """#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n,), float32], %k: int32) -> ((Tensor[(n,), float32], ()), (int32, (bool, Tensor[(n,), float32]))) {
      let %y = %x + 1f;
      ((%y, ()), (%k + 1, (%k > 2, %y)))
    }
    def @one[n: Dim](%x: Tensor[(n,), float32]) -> (Tensor[(n,), float32],) { (%x,) }
    """
    mod = relay.parse(text)
    exe = relay.compile(mod, entries=("main", "one"))
    x = np.arange(3, dtype=np.float32)
    before = _runtime.live_objects()
    for _ in range(3):
        found: Any = exe(x, np.int32(4))
        assert type(found) is tuple and type(found[1]) is tuple and type(found[1][1]) is tuple
        (y, nothing), (k, (more, again)) = found
        assert nothing == () and int(k) == 5 and bool(more)
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(again, x + 1)
        single: Any = exe.run("one", x)
        assert type(single) is tuple and len(single) == 1
        np.testing.assert_array_equal(single[0], x)
    del found, y, k, more, again, single
    assert _runtime.live_objects() == before


def test_what_is_shared_comes_back_shared() -> None:
    """A value of 2^200 paths and 201 nodes."""
    text = """#[version = "0.0.5"]
    type Tree { Leaf(Tensor[(2,), float32]), Node(Tree, (Tree, int32)), }
    def @main(%t: Tree, %n: int32) -> Tree { if (%n == 0i32) { %t } else { @main(Node(%t, (%t, %n)), %n - 1i32) } }"""
    mod = relay.parse(text)
    found: Any = relay.compile(mod)(mod.adt("Tree").Leaf(np.ones(2, np.float32)), np.int32(200))
    for n in range(1, 201):
        left, (right, number) = found.fields
        assert (found.adt, found.constructor, found.tag) == ("Tree", "Node", 1)
        assert left is right and int(number) == n
        found = left
    np.testing.assert_array_equal(np.asarray(found.fields[0]), [1, 1])


@pytest.mark.parametrize("level", [0, 3])
def test_values_without_fields_are_one_object(level: int) -> None:
    """Whoever makes them, of whichever type, also of constructors beyond the first hundred."""
    names = ", ".join(f"C{n}" for n in range(130))
    text = f"""#[version = "0.0.5"]
    type Two[A] {{ Both(A, A), Neither }}
    type Many {{ {names} }}
    def @main(%x: Two[int32], %c: Many) -> (Two[int32], Two[bool], Many, Many, Many, Two[Two[int32]]) {{
      (%x, Neither, %c, C3, C128, Both(Neither, %x)) }}"""
    mod = relay.parse(text)
    before = _runtime.live_objects()
    many = mod.adt("Many")
    found: Any = relay.compile(mod, opt_level=level)(mod.adt("Two").Neither(), many.C129())
    none, other, *marks, two = found
    assert none.constructor == other.constructor == "Neither" and none.fields == ()
    assert [m.constructor for m in marks] == ["C129", "C3", "C128"] and [m.tag for m in marks] == [129, 3, 128]
    assert two.fields == (none, none) and two.fields[0] is none
    del found, none, other, marks, two
    assert _runtime.live_objects() == before


def test_a_long_list_of_options_comes_back() -> None:
    text = """#[version = "0.0.5"]
    import prelude
    def @main(%n: int32, %xs: List[(Option[int32], List[int32])]) -> List[(Option[int32], List[int32])] {
      if (%n == 0i32) { %xs } else {
        let %third = if (mod(%n, 3i32) == 0i32) { Some(%n) } else { None };
        let %even = if (mod(%n, 2i32) == 0i32) { Cons(%n, Nil) } else { Nil };
        @main(%n - 1i32, Cons((%third, %even), %xs)) }
    }"""
    found: Any = relay.compile(text)(np.int32(30000), [])
    assert len(found) == 30000
    for n, (option, items) in enumerate(found, 1):
        assert option is None if n % 3 else int(option) == n
        assert [int(i) for i in items] == ([] if n % 2 else [n])


@pytest.mark.parametrize(
    ("dtype", "most", "too_large"),
    [
        ("float64", 1.7e308, 10**400),
        pytest.param("float64", 1e300, 10**5000, id="5000 digits"),
        ("float32", 3.4028235e38, 1e39),
        ("bfloat16", 3.38e38, 3.4e38),
        ("float16", 65519.0, 65520.0),
        ("uint64", 2**64 - 1, 2**64),
        ("uint64", 0, -1),
        ("int8", 127, 128),
    ],
)
def test_a_number_that_does_not_fit_is_refused(dtype: str, most: float, too_large: float) -> None:
    mod = relay.parse(f'#[version = "0.0.5"]\ndef @main(%x: {dtype}) {{ %x }}')
    exe = relay.compile(mod)
    assert np.isfinite(float(exe(most)))
    with pytest.raises(ArgumentError, match=f"argument %x of @main: the number .* does not fit {dtype}"):
        exe(too_large)
    with pytest.raises(TypeError_):
        relay.evaluate(mod, too_large)
    if dtype.endswith("float16"):
        assert np.isinf(float(exe(np.inf))) and np.isnan(float(exe(np.nan)))


KEEPS = """#[version = "0.0.5"]
import prelude
def @scale(%x: Tensor[(5000,), float32]) -> fn (float32) -> Tensor[(5000,), float32] { fn (%a: float32) { %x * %a } }
def @scaled(%f: fn (float32) -> Tensor[(5000,), float32]) -> Tensor[(5000,), float32] { %f(1f) }
def @cell(%x: Tensor[(5000,), float32]) -> Ref[List[Tensor[(5000,), float32]]] { ref(Cons(%x, Nil)) }
def @push(%r: Ref[List[Tensor[(5000,), float32]]], %x: Tensor[(10000,), float32]) -> () {
  %r := Cons(strided_slice(%x, begin=[5000], end=[10000]), !%r)
}
def @put(%r: Ref[List[Tensor[(5000,), float32]]], %xs: List[Tensor[(5000,), float32]]) -> () { %r := %xs }
def @held(%r: Ref[List[Tensor[(5000,), float32]]]) -> List[Tensor[(5000,), float32]] { !%r }
def @of_all(%xs: List[Tensor[(5000,), float32]]) -> fn () -> Tensor[(5000,), float32] { fn () { @hd(%xs) } }
def @call(%f: fn () -> Tensor[(5000,), float32]) -> Tensor[(5000,), float32] { %f() }
"""


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_what_a_call_keeps_does_not_change_with_the_array_it_was_given(executor: Any) -> None:
    """A function or a reference that a call makes or writes held the memory of its caller's array, which may be written again."""
    names = ["scale", "scaled", "cell", "push", "put", "held", "of_all", "call"]
    exe = relay.compile(KEEPS, entries=names, executor=executor)
    x = np.arange(10_000, dtype=np.float32)
    half, other = x[5000:], x[:5000].copy()
    wanted = half.copy()
    scale, cell, all_of = exe.run("scale", half), exe.run("cell", half), exe.run("of_all", [half, other])
    exe.run("push", cell, x)
    x[:] = -1
    kept = [exe.run("scaled", scale), exe.run("call", all_of), *exe.run("held", cell)]
    assert len(kept) == 4
    for found in kept:
        np.testing.assert_array_equal(found, wanted)
    given = [other, other + 1]
    exe.run("put", cell, given)
    given[0][:] = given[1][:] = -1
    np.testing.assert_array_equal(exe.run("held", cell), [np.arange(5000), np.arange(5000) + 1])


def test_what_is_donated_and_given_twice_or_refused() -> None:
    exe = relay.compile("""#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n,), float32], %y: Tensor[(n,), float32], %k: int32) {
      (reverse(%x, axis=0) + %y, %x * cast(%k, dtype="float32"))
    }""")
    x = np.arange(1000, dtype=np.float32)
    for donate in ((0,), (1,), (0, 1), (1, 0, 0)):
        given = relay.Tensor.from_numpy(x, copy=True)
        view = np.asarray(given)
        with pytest.raises(ArgumentError, match="argument %k of @main: expected int32, found the Python float"):
            exe.run("main", given, given, 0.5, donate=donate)
        assert not given.donated
        reversed_sum, product = exe.run("main", given, given, 3, donate=donate)
        assert given.donated
        np.testing.assert_array_equal(reversed_sum, np.full(1000, 999))
        np.testing.assert_array_equal(product, x * 3)
        np.testing.assert_array_equal(view, x)


def test_options_of_a_run_are_what_they_should_be() -> None:
    exe = relay.compile('#[version = "0.0.5"]\ndef @main(%x: float64) { %x + 1f64 }')
    for donate in ((2**70,), (-1,), ("0",), "0", 0, [0]):
        with pytest.raises(ArgumentError, match="donate must be a tuple of the places of arguments of @main"):
            exe.run("main", 1.0, donate=donate)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="donate names argument 1 of @main, which is called with 1"):
        exe.run("main", 1.0, donate=(1,))
    assert float(exe.run("main", relay.Tensor.from_numpy(np.array(1.0)), donate=(np.int64(0),))) == 2  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="an observer has a method before or after, which 3 has not"):
        exe.run("main", 1.0, observer=3)  # type: ignore[arg-type]
    for name in ("check_memory", "flush_subnormals"):
        with pytest.raises(RelayError, match=f"{name} must be True or False, not 'yes'"):
            setattr(exe, name, "yes")


def test_an_array_in_another_byte_order_is_named_as_such() -> None:
    exe = relay.compile('#[version = "0.0.5"]\ndef @main(%x: Tensor[(3,), float32]) { %x }')
    with pytest.raises(ArgumentError, match=r"(?s)another byte order.*x\.astype\('float32'\)"):
        exe(np.ones(3, ">f4"))


@pytest.mark.parametrize("given", [np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.zeros(8, "datetime64[s]")])
def test_a_date_is_no_tensor_of_bytes(given: object) -> None:
    """A scalar of NumPy's lends its eight bytes."""
    for program in ("%x: Tensor[(8,), uint8]) { %x }", "%x: List[Tensor[(8,), uint8]]) { %x }"):
        exe = relay.compile(f'#[version = "0.0.5"]\nimport prelude\ndef @main({program}')
        with pytest.raises(RelayError, match=r"(?s)%x.*expected a tensor, found .* of (datetime|timedelta)64\["):
            exe([given] if "List" in program else given)


def test_what_an_array_says_beside_its_elements_is_not_lost() -> None:
    """Neither the mask of one of NumPy's nor that one of PyTorch's stands for its negative, of which the memory tells nothing."""
    mod = relay.parse('#[version = "0.0.5"]\nimport prelude\ndef @main(%x: List[Tensor[(3,), float32]]) { %x }')
    runs: list[Callable[..., Any]] = [relay.compile(mod), lambda *args: relay.evaluate(mod, *args)]
    masked = np.ma.masked_array(np.ones(3, np.float32), [False, True, False])
    for run in runs:
        with pytest.raises(RelayError, match=r"(?s)mask.*would be lost"):
            run([masked])
    with pytest.raises(RelayError, match="a constant has no mask"):
        relay.const(masked)
    torch: Any = pytest.importorskip("torch")
    negated = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    for run in runs:
        with pytest.raises(RelayError, match="resolve_neg"):
            run([negated])
        assert np.asarray(run([negated.resolve_neg()])[0]).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("size", [2, 5000])  # what is small is copied on its way in
@pytest.mark.parametrize("executor", ["vm", "aot", "interpreter"])
def test_results_share_no_memory_with_arrays_that_were_given(executor: str, size: int) -> None:
    text = """#[version = "0.0.5"]
    import prelude
    def @main[n: Dim](%x: Tensor[(n, 4), float32], %o: (Tensor[(SIZE,), int32], int32)) {
      (reshape(%x, newshape=[-1]), %x, Some(%o.0), Cons(%o.0, Nil))
    }"""
    mod = relay.parse(text.replace("SIZE", str(size)))
    x, o = np.zeros((2, 4), np.float32), np.zeros(size, np.int32)
    if executor == "interpreter":
        found: Any = relay.evaluate(mod, x, (o, 1))
    else:
        found = relay.compile(mod, executor=executor)(x, (o, 1))
    view, same, option, items = found
    x[:], o[:] = 7, 7
    for result in (view, same, option, *items):
        assert not np.asarray(result).any()
    if executor != "interpreter":  # what Relay holds is not copied
        again = relay.compile(mod, executor=executor)(same, (option, 1))
        assert again[1].data_ptr == again[0].data_ptr == same.data_ptr and again[2].data_ptr == option.data_ptr


def test_numbers_and_arrays_of_each_kind_are_what_they_were_given_as() -> None:
    """Each twice: the second time what lies in it is known, and is read without asking. Subclasses and other strides are still asked."""

    class Mine(np.ndarray):
        pass

    mod = relay.parse("""#[version = "0.0.5"]
    import prelude
    def @main(%xs: List[(float32, int8, bool)], %ys: List[Tensor[(2, 3), float32]]) {
      (%xs, @foldl(fn (%a: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) { %a * 10f + %y },
        zeros(shape=[2, 3], dtype="float32"), %ys))
    }""")
    exe = relay.compile(mod)
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = [
        base,
        base.T.copy().T,
        base[:, ::-1],
        base.view(Mine),
        np.broadcast_to(base[:1], (2, 3)),
        base,
        base[::-1],
    ]
    numbers: list[tuple[Any, Any, Any]] = [
        (np.float32(-1.5), np.int8(-3), np.bool_(True)),
        (np.array(2.5, np.float32), np.array(4, np.int8), np.array(False)),
        (3.5, 5, True),
    ]
    wanted = np.zeros((2, 3))
    for a in arrays:
        wanted = wanted * 10 + a
    for _ in range(2):
        given, folded = cast(Any, exe(numbers * 2, arrays))
        assert [[float(v) for v in row] for row in given] == [[float(v) for v in row] for row in numbers * 2]
        np.testing.assert_allclose(np.asarray(folded), wanted, rtol=1e-6)
    with pytest.raises(TypeError_, match=r"\[1\]\.1 has dtype int16, expected int8"):
        exe([numbers[0], (np.float32(1), np.int16(1), True)], [])
    with pytest.raises(ShapeError, match=r"\[0\] has shape \(3, 2\), expected \(2, 3\)"):
        exe([], [base.T])


def _unasked(*_: object) -> None:
    """There are no sizes with names."""


def test_a_class_without_slots_may_stand_for_algebraic_values(program: tuple[Module, Executable]) -> None:
    """The converter takes its class from outside, and reads slots only where there are some."""
    plain: Any = type("Plain", (), {})
    kinds = [("adt", "T", (("Leaf", (1,)), ("Node", (0, 0)))), ("tensor", DTYPE_CODES["float32"], ())]
    found = []
    for cls in (plain, relay.AdtValue):
        leaf = cls.__new__(cls)
        node = cls.__new__(cls)
        for made, fields, tag in ((leaf, (np.float32(2),), 0), (node, (leaf, leaf), 1)):
            for name, part in (("adt", "T"), ("constructor", ""), ("tag", tag), ("fields", fields)):
                object.__setattr__(made, name, part)
        converter = _runtime.Converter(lambda n: kinds[n], _unasked, _unasked, cls, TypeError_, ShapeError, False)
        value = cast(Any, converter.convert(node, 0, "it", (), ()))
        found.append([float(np.asarray(f.field(0))) for f in value.fields])
    assert found == [[2, 2], [2, 2]]


VECTOR = "type Vector[n: Dim] { Of(Tensor[(n,), float32]) }\n"
SIZES: dict[str, tuple[str, list[tuple[tuple[int, ...], bool]]]] = {
    "a number": (VECTOR + "def @main(%g: Vector[4]) { match (%g) { Of(%x) => sum(%x) } }", [((4,), True), ((5,), False), ((2,), False)]),
    "an argument's": (
        VECTOR
        + "def @main[n: Dim](%g: Vector[n], %y: Tensor[(n,), float32]) { match (%g) { Of(%x) => sum(%x + %y) } }",
        [((4, 4), True), ((5, 4), False), ((1, 4), False), ((0, 0), True)],
    ),
    "computed": (
        VECTOR
        + "def @main[n: Dim](%g: Vector[2*n + 1], %y: Tensor[(n,), float32]) { match (%g) { Of(%x) => sum(%x) + sum(%y) } }",
        [((5, 2), True), ((4, 2), False), ((1, 0), True)],
    ),
    "computed from what is met in data": (
        VECTOR
        + "def @main[n: Dim](%g: Vector[n], %y: Tensor[(2*n,), float32]) { match (%g) { Of(%x) => sum(%x) + sum(%y) } }",
        [((2, 4), True), ((2, 2), False), ((3, 4), False)],
    ),
    "computed, of data alone": (
        VECTOR + "def @main[n: Dim](%g: Vector[2*n + 1]) { match (%g) { Of(%x) => (Dim[n], sum(%x)) } }",
        [((5,), True), ((4,), False), ((1,), True), ((0,), False)],
    ),
    "computed, of data alone, twice": (
        VECTOR
        + "def @main[n: Dim](%g: Vector[2*n], %h: Vector[n + 1]) { match ((%g, %h)) { (Of(%x), Of(%y)) => sum(%x) + sum(%y) } }",
        [((4, 3), True), ((4, 4), False), ((3, 3), False), ((0, 1), True), ((0, 0), False)],
    ),
    "of data alone": (
        VECTOR
        + "def @main[n: Dim](%g: Vector[n], %h: Vector[n]) { match ((%g, %h)) { (Of(%x), Of(%y)) => sum(%x * %y) } }",
        [((3, 3), True), ((3, 2), False)],
    ),
    "within bounds": (
        VECTOR + "def @main[n: Dim(2, 4)](%g: Vector[n]) { match (%g) { Of(%x) => sum(%x) } }",
        [((1,), False), ((2,), True), ((4,), True), ((5,), False)],
    ),
    "of a field": (
        "type Vector[n: Dim] { Of(Tensor[(n - 1,), float32]), Wider(Vector[n + 2]) }\n"
        "def @main(%g: Vector[3]) { match (%g) { Of(%x) => sum(%x), Wider(_) => 0f } }",
        [((2,), True), ((3,), False)],
    ),
    "parameters of every kind": (
        "type Vector[s: Shape, b: BaseType, n: Dim, A] { Of(Tensor[(n,), b]), Both(Vector[s, b, n, A], A), Only(Tensor[s, b]) }\n"
        "def @main[n: Dim](%g: Vector[(2, n), float32, 2*n, float32], %y: Tensor[(n,), float32]) {\n"
        "  match (%g) { Of(%x) => sum(%x) + sum(%y), Both(_, _) => 0f, Only(%x) => sum(%x) }\n}",
        [((4, 2), True), ((2, 2), False), ((0, 0), True)],
    ),
    "a shape and a base type": (
        "type Vector[s: Shape, b: BaseType] { Of(Tensor[s, b]), Both(Vector[s, b], Vector[s, b]) }\n"
        "def @main(%g: Vector[(3,), float32]) { match (%g) { Of(%x) => sum(%x), Both(_, _) => 0f } }",
        [((3,), True), ((2,), False), ((), False)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_inside_of_values_are_checked(kind: str) -> None:
    """As the interpreter does: compiled code reads as far as the sizes go that it knows from elsewhere."""
    text, cases = SIZES[kind]
    module = relay.parse('#[version = "0.0.5"]\n' + text)
    exe = relay.compile(module)
    for sizes, right in cases:
        arrays: list[Any] = [np.ones(n, np.float32) for n in sizes] or [np.float32(1)]
        args = [
            module.adt("Vector").Of(a) if p["type"]["kind"] == "adt" else a
            for a, p in zip(arrays, exe.signature().params, strict=True)
        ]
        if right:
            np.testing.assert_allclose(np.asarray(exe(*args)), np.asarray(relay.evaluate(module, *args)))
        else:
            for run in (exe, lambda *args: relay.evaluate(module, *args)):
                with pytest.raises(ShapeError):
                    run(*args)


def test_elements_of_a_list_have_one_size() -> None:
    """A list whose elements' size another argument says, given at once and as one of many requests."""
    text = """#[version = "0.0.5"]
    import prelude
    def @main[n: Dim](%xs: List[Tensor[(n,), float32]], %y: Tensor[(n,), float32]) -> Tensor[(n,), float32] {
      @foldl(fn (%a: Tensor[(n,), float32], %x: Tensor[(n,), float32]) { %a + %x }, %y, %xs)
    }"""
    exe = relay.compile(text)
    ones = [np.ones(n, np.float32) for n in range(5)]
    assert np.asarray(exe([ones[4], ones[4]], ones[4])).tolist() == [3, 3, 3, 3]
    with pytest.raises(ShapeError, match=r"argument %xs of @main, at \[1\] has shape \(3,\), expected \(4,\)"):
        exe([ones[4], ones[3]], ones[4])
    answers = exe.run_batch("main", [([ones[2]], ones[2]), ([], ones[3])])
    assert [np.asarray(a).tolist() for a in answers] == [[2, 2], [1, 1, 1]]
    assert repr(exe.signature()).startswith("@main(%xs: List[Tensor[(n,), float32]], %y: Tensor[(n,), float32])")


def test_what_references_hold_is_checked() -> None:
    """A reference comes from a run that had sizes of its own: what it had fewer of than another argument was read all the same."""
    header = '#[version = "0.0.5"]\n'
    made = relay.compile(header + "def @main[n: Dim](%x: Tensor[(n,), float32]) { ref(%x) }")
    text = "def @main[n: Dim](%r: Ref[Tensor[(n,), float32]], %y: Tensor[(n,), float32]) { !%r + %y }"
    inside = (
        "type Kept[n: Dim] { Of(Ref[Tensor[(n,), float32]]), None }\n"
        "def @main[n: Dim](%r: Kept[n], %y: Tensor[(n,), float32]) { match (%r) { Of(%q) => !%q + %y, None => %y } }"
    )
    three = made(np.ones(3, np.float32))
    for source, value in ((text, three), (inside, relay.AdtValue("Kept", "Of", 0, (three,)))):
        exe = relay.compile(header + source)
        assert np.asarray(exe(value, np.ones(3, np.float32))).tolist() == [2, 2, 2]
        with pytest.raises(
            RelayError, match=r"argument %r of @main: a tensor inside of it must be of float32 and shape \(4,\)"
        ):
            exe(value, np.ones(4, np.float32))
    other = relay.compile(header + "def @main(%r: Ref[int64]) { !%r }")
    with pytest.raises(
        RelayError, match=r"must be of int64 and shape \(\) and is a tensor of float32 and shape \(3,\)"
    ):
        other(three)
    text = "type Grow[A] { Last(Ref[int64], A), Again(Grow[(A, A)]) }\n"
    text += "def @main(%g: Grow[int64]) { match (%g) { Last(%r, _) => !%r, _ => 2i64 } }"
    growing = relay.parse(header + text)
    grow, exe = growing.adt("Grow"), relay.compile(growing)
    five = relay.compile(header + "def @main(%x: int64) { ref(%x) }")(5)
    one = np.int64(1)
    for value, wanted in ((grow.Last(five, one), 5), (grow.Again(grow.Last(five, (one, one))), 2)):
        assert int(np.asarray(exe(value))) == wanted


V, W = "Tensor[(n,), float32]", "Tensor[(m,), float32]"
CLOSURES = f"""#[version = "0.0.5"]
type Box[A] {{ Of(fn (A) -> A), None }}
def @made[n: Dim](%x: {V}) {{ fn (%y: {V}) {{ %y + %x }} }}
def @boxed[n: Dim](%x: {V}) {{ Of(fn (%y: {V}) {{ %y + %x }}) }}
def @kept[n: Dim](%x: {V}) {{ ref(fn (%y: {V}) {{ %y + %x }}) }}
def @free[n: Dim](%x: {V}) {{ fn (%y: {V}) {{ %y + 1f }} }}
def @around[n: Dim](%f: fn ({V}) -> {V}, %k: float32) {{ fn (%y: {V}) {{ %f(%y) * %k }} }}
def @pair[n: Dim](%x: {V}) {{ fn (%u: {V}, %v: {V}) {{ %u + %v }} }}
def @any(%x: float32) {{ fn (%y: Tensor[(?,), float32]) -> Tensor[(?,), float32] {{ %y + %x }} }}
def @call[n: Dim](%f: fn ({V}) -> {V}, %y: {V}) {{ %f(%y) }}
def @unbox[n: Dim](%b: Box[{V}], %y: {V}) {{ match (%b) {{ Of(%f) => %f(%y), None => %y }} }}
def @read[n: Dim](%r: Ref[fn ({V}) -> {V}], %y: {V}) {{ (!%r)(%y) }}
def @both[n: Dim](%f: fn ({V}) -> {V}, %g: fn ({V}) -> {V}, %y: {V}) {{ %f(%y) + %g(%y) }}
def @of_two[n: Dim, m: Dim](%f: fn ({V}, {W}) -> {V}, %y: {V}, %z: {W}) {{ %f(%y, %z) }}
def @of_any(%f: fn (Tensor[(?,), float32]) -> Tensor[(?,), float32], %y: Tensor[(?,), float32]) {{ %f(%y) }}
"""
CLOSURE_ENTRIES = [
    "made",
    "boxed",
    "kept",
    "free",
    "around",
    "pair",
    "any",
    "call",
    "unbox",
    "read",
    "both",
    "of_two",
    "of_any",
]
# A call is an entry and what it is given: a size is a tensor of so many ones, a call what that gives. With each what is wrong.
Called = tuple[Any, ...]
MADE: Called = ("made", 3)
FREE: Called = ("free", 3)
CALLS: list[tuple[Called, str]] = [
    (("call", MADE, 3), ""),
    (("call", MADE, 100_000), "expected a function of type fn (Tensor[(100000,), float32]) -> Tensor[(100000,), float32], found"),
    (("unbox", ("boxed", 3), 3), ""),
    (("unbox", ("boxed", 3), 4), "found a closure of type fn (Tensor[(3,), float32]) -> Tensor[(3,), float32]"),
    (("read", ("kept", 3), 3), ""),
    (("read", ("kept", 3), 4), "argument %r of @read: expected a function of type fn (Tensor[(4,), float32]) -> Tensor[(4,), float32]"),
    (("call", FREE, 5), ""),  # it captured nothing of that size
    (("call", ("around", MADE, 1.0), 3), ""),
    (("call", ("around", MADE, 1.0), 4), "found a closure of type fn (Tensor[(3,), float32])"),
    (("call", ("around", FREE, 1.0), 4), ""),
    (("both", FREE, MADE, 3), ""),
    (("both", FREE, MADE, 4), "argument %g of @both"),
    (("of_two", ("pair", 2), 4, 4), ""),
    (("of_two", ("pair", 2), 4, 5), "fn (Tensor[(4,), float32], Tensor[(5,), float32])"),
    (("of_any", ("any", 1.0), 4), ""),
    (("of_any", MADE, 3), "expected a function of type fn (Tensor[(?,), float32])"),
    (("call", ("any", 1.0), 3), "Tensor[(?,), float32]"),
    (("call", ("pair", 3), 3), "fn (Tensor[(n,), float32], Tensor[(n,), float32])"),
]  # fmt: skip


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_closures_go_by_the_sizes_of_the_entry_that_calls_them(executor: Any) -> None:
    """A closure made of tensors of 3 and given to an entry with one of 100,000 was called, and read behind what it had captured."""
    exe = relay.compile(CLOSURES, entries=CLOSURE_ENTRIES, executor=executor)

    def value(given: Any) -> Any:
        if isinstance(given, int):
            return np.ones(given, np.float32)
        return exe.run(given[0], *map(value, given[1:])) if isinstance(given, tuple) else given

    for call, message in CALLS:
        if message:
            with pytest.raises(RelayError) as caught:
                value(call)
            assert message in str(caught.value), call
        else:
            assert np.asarray(value(call)).shape == (call[-1],), call


@pytest.mark.parametrize(
    ("has", "message"),
    [
        (5, "has size 5, which no size n gives"),
        (0, "has size 0, which no size n gives"),
        (10, "n has size 4, expected at most 3"),
    ],
)
def test_sizes_in_lists_are_what_they_are_computed_from(has: int, message: str) -> None:
    """A list's tensor alone says ``n``: compiled code took the rounded half of what was no double."""
    exe = relay.compile(
        """#[version = "0.0.5"]
import prelude
def @main[n: Dim(0, 3)](%xs: List[Tensor[(2*n + 2,), float32]]) -> (int64, float32) {
  match (%xs) { Cons(%x, _) => (Dim[n], sum(%x)), Nil => (-1i64, 0f) } }""",
        cache=False,
    )
    size, total = exe([np.ones(6, np.float32), np.ones(6, np.float32)])
    assert (int(np.asarray(size)), float(np.asarray(total))) == (2, 6)
    with pytest.raises(ShapeError, match=message):
        exe([np.ones(has, np.float32)])


SHARED = """#[version = "0.0.5"]
import prelude
type T { L(Tensor[(2,), float32]), N(T, T), P((T, T)), Q(List[T]), O(Option[T], Option[T]) }
def @main(%t: T, %l: List[List[float32]]) { (%t, %l) }
"""


def _ways(tree: Any, below: dict[int, int]) -> int:
    """How many leaves a value has, one that is shared counted for each way to it."""
    if isinstance(tree, AdtValue | tuple | list):
        if id(tree) not in below:
            below[id(tree)] = sum(_ways(f, below) for f in (tree.fields if isinstance(tree, AdtValue) else tree))
        return below[id(tree)]
    return 1


def test_what_stands_in_many_places_is_converted_once() -> None:
    """Of a value of 41 objects with 2^40 ways to its leaf no way is gone twice, in and out."""
    module = relay.parse(SHARED)
    exe = relay.compile(module, cache=False)
    make = module.adt("T")
    node = make.L(np.ones(2, np.float32))
    kinds = [
        lambda v: make.N(v, v),
        lambda v: make.P((v, v)),
        lambda v: make.Q([v, v]),
        lambda v: make.O(v, v),
    ]
    for n in range(40):
        node = kinds[n % 4](node)
    row = [1.0, 2.0]
    for run in (exe, lambda *args: relay.evaluate(module, *args)):
        tree, rows = cast(Any, run(node, [row, row]))
        assert _ways(tree, {}) == 2**40
        assert [[float(v) for v in r] for r in rows] == [row, row]
        assert rows[0] is not rows[1], "a list may be changed by who gets it"


def test_one_object_as_values_of_two_types() -> None:
    """What was made of an object is given again where it has the same type only."""
    module = relay.parse("""#[version = "0.0.5"]
import prelude
def @main(%a: (List[float32], List[int64]), %b: List[(float32,)], %c: Option[Option[float32]]) { (%a, %b, %c) }""")
    exe = relay.compile(module, cache=False)
    numbers, pair = [1, 2], (3.0,)
    for run in (exe, lambda *args: relay.evaluate(module, *args)):
        (floats, integers), pairs, some = cast(Any, run((numbers, numbers), [pair, pair], 4.0))
        assert [np.asarray(v).dtype.name for v in (*floats, *integers)] == ["float32"] * 2 + ["int64"] * 2
        assert [float(v) for (v,) in pairs] == [3.0, 3.0] and float(some) == 4.0
