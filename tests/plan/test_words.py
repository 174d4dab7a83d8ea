"""Products of narrow elements as products of words: what is read as words, what is put together, and that sums of integers are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.printer import kernel_text
from relay.plan import make_plan
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import HOST, ZEN4, Maker, check, primitive, tensor

Array = np.ndarray[Any, Any]
V, K = DimVar("n"), DimVar("k")
N = as_dim(V)
DEPTH = as_dim(K)
ZEN = parse_target("znver4")
WITHOUT = replace(ZEN, features=tuple(f for f in ZEN.features if f not in ("avx512vnni", "avx512bf16")))
BYTES = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
OTHERS = [("int16", "int16"), ("int8", "int16"), ("int16", "uint8")]


def array(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """All values of a dtype, in the first fourth the least alone, from a place in memory that no word begins at."""
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        made = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    else:
        info = np.iinfo(dtype)
        made = rng.integers(info.min, info.max + 1, shape).astype(dtype)
        made.reshape(-1)[: made.size // 4] = info.min
    memory = np.zeros(made.nbytes + made.itemsize, np.uint8)[made.itemsize :].view(made.dtype).reshape(shape)
    memory[...] = made
    return memory


def dense(rows: Dim, depth: Dim, columns: int, dtypes: tuple[str, str], **attrs: str) -> Function:
    attrs = attrs or {"out_dtype": "int32"}
    params = [tensor((rows, depth), dtypes[0]), tensor((columns, depth), dtypes[1])]
    return primitive(params, lambda m, x, w: m("nn.dense", x, w, **attrs))


def words(plan: KernelPlan) -> bool:
    return "dot." in kernel_text(plan.kernel)


@pytest.mark.parametrize("constants", [frozenset[int](), frozenset({1})], ids=["given", "constant"])
@pytest.mark.parametrize("dtypes", [*BYTES, *OTHERS], ids="-".join)
def test_integers_of_all_kinds(dtypes: tuple[str, str], constants: frozenset[int]) -> None:
    """Also where there is nothing but the least numbers, whose products are the largest that words add up."""
    inputs = [array((37, 128), dtypes[0], 0), array((93, 128), dtypes[1], 1)]
    plan = check(dense(37, 128, 93, dtypes), inputs=inputs, constants=constants)
    assert words(plan) == ZEN4.multiplies_words


@pytest.mark.parametrize("depth", [51, 62, 65])
def test_depths_of_no_whole_words(depth: int) -> None:
    for constants in (frozenset[int](), frozenset({1})):
        inputs = [array((40, depth), "int8", 0), array((70, depth), "int8", 1)]
        plan = check(dense(40, depth, 70, ("int8", "int8")), inputs=inputs, constants=constants)
        assert words(plan) == ZEN4.multiplies_words


@pytest.mark.parametrize("a,b", [(False, False), (True, False), (True, True)])
def test_operands_that_lie_otherwise(a: bool, b: bool) -> None:
    found: list[tuple[str, str]] = [("int8", "int8"), ("int16", "int16"), ("bfloat16", "bfloat16")]
    for dtypes in found:
        shapes = [(3, 66, 37) if a else (3, 37, 66), (3, 50, 66) if b else (3, 66, 50)]
        out = "float32" if dtypes[0] == "bfloat16" else "int32"

        def build(m: Maker, x: Expr, y: Expr, out: str = out) -> Expr:
            return m("nn.batch_matmul", x, y, transpose_a=a, transpose_b=b, out_dtype=out)

        fn = primitive([tensor(s, d) for s, d in zip(shapes, dtypes, strict=True)], build)
        inputs = [array(s, d, n) for n, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
        plan = check(fn, inputs=inputs, tolerance=1e-4)
        assert words(plan) == (ZEN4.multiplies_pairs if out == "float32" else ZEN4.multiplies_words)


def test_numbers_of_rows_that_are_not_known() -> None:
    for constants in (frozenset[int](), frozenset({1})):
        plan = check(dense(N, 64, 33, ("int8", "int8")), *({V: s} for s in (0, 1, 2, 5, 9, 40)), constants=constants)
        assert words(plan) == ZEN4.multiplies_words


def test_depths_that_are_not_known() -> None:
    """As where weights are multiplied with values of each step: rows of the right operand are along the result's."""
    fn = primitive(
        [tensor((40, DEPTH), "uint8"), tensor((DEPTH, 50), "int8")],
        lambda m, x, w: m("nn.matmul", x, w, out_dtype="int32"),
    )
    plan = check(fn, *({K: s} for s in (0, 1, 4, 63, 130)))
    assert words(plan) == ZEN4.multiplies_words


def test_sums_of_narrow_integers_wrap() -> None:
    """A product of bytes as bytes, and what was widened by a stage of its own."""

    def widened(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.dense", m("cast", x, dtype="int32"), m("cast", w, dtype="int32"))

    inputs = [array((20, 64), "int8", 0), array((48, 64), "int8", 1)]
    params = [tensor((20, 64), "int8"), tensor((48, 64), "int8")]
    for fn in (dense(20, 64, 48, ("int8", "int8"), out_dtype="int8"), primitive(params, widened)):
        assert words(check(fn, inputs=inputs)) == ZEN4.multiplies_words
    # A byte as an unsigned one is another number where sums are as wide as that.
    other = primitive(
        params,
        lambda m, x, w: m(
            "nn.dense",
            m("cast", m("cast", x, dtype="uint8"), dtype="int32"),
            m("cast", w, dtype="int32"),
        ),
    )
    check(other, inputs=inputs)
    # int64 sums do not fit into words.
    assert not words(check(dense(20, 64, 48, ("int8", "int8"), out_dtype="int64"), inputs=inputs))


@pytest.mark.parametrize("constants", [frozenset[int](), frozenset({1})], ids=["given", "constant"])
@pytest.mark.parametrize("channels,window,stride,groups", [(16, 3, 1, 1), (17, 3, 2, 1), (64, 1, 1, 1), (32, 3, 1, 2)])
def test_convolutions(channels: int, window: int, stride: int, groups: int, constants: frozenset[int]) -> None:
    """Words lie along the channels, and borders are zeros."""
    image, weights = (2, channels, 9, 9), (24, channels // groups, window, window)

    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        pad = [window // 2] * 2
        return m("nn.conv2d", x, w, padding=pad, strides=[stride] * 2, groups=groups, out_dtype="int32")

    for dtypes in BYTES[::3] if window > 1 else BYTES[1:2]:
        fn = primitive([tensor(image, dtypes[0]), tensor(weights, dtypes[1])], build)
        inputs = [array(image, dtypes[0], 0), array(weights, dtypes[1], 1)]
        plan = check(fn, inputs=inputs, constants=constants)
        assert words(plan) == ZEN4.multiplies_words


@pytest.mark.parametrize("dtype", ["int16", "bfloat16"])
def test_results_that_are_made_of_products_by_turns(dtype: str) -> None:
    """Every third column of an image that is enlarged is a product of its own, which is stored where it belongs."""
    shapes = (2, 16, 7, 8), (16, 3, 1, 5)
    params = [tensor(s, dtype) for s in shapes]
    fn = primitive(params, lambda m, x, w: m("nn.conv2d_transpose", x, w, strides=[1, 3]))
    plan = check(fn, inputs=[array(s, dtype, n) for n, s in enumerate(shapes)], tolerance=2e-2)
    assert words(plan) == (ZEN4.multiplies_pairs if dtype == "bfloat16" else ZEN4.multiplies_words)


def test_what_comes_before_and_behind() -> None:
    """Quantised and back: the data is made narrow by the kernel, its scale and what follows are the epilogue."""

    def build(m: Maker, x: Expr, w: Expr, s: Expr) -> Expr:
        scaled = m("multiply", x, m.constant(40.0))
        narrow = m("cast", m("round", scaled), dtype="int8")
        sums = m("nn.dense", narrow, w, out_dtype="int32")
        return m("nn.relu", m("multiply", m("cast", sums, dtype="float32"), s))

    fn = primitive([tensor((N, 64)), tensor((50, 64), "int8"), tensor((50,))], build)
    plan = check(fn, *({V: s} for s in (1, 3, 40)), constants=frozenset({1, 2}))
    assert words(plan) == ZEN4.multiplies_words


def test_an_input_is_read_as_words_where_nothing_reads_it_otherwise() -> None:
    params = [tensor((40, 64), "int8"), tensor((48, 64), "int8")]
    alone = primitive(params, lambda m, x, w: m("nn.dense", x, w, out_dtype="int32"))

    def with_others(m: Maker, x: Expr, w: Expr) -> Expr:
        return m.tuple(m("nn.dense", x, w, out_dtype="int32"), m("add", x, x))

    def with_itself(m: Maker, x: Expr, w: Expr) -> Expr:
        return m.tuple(m("nn.dense", x, x, out_dtype="int32"), m("nn.dense", x, w, out_dtype="int32"))

    inputs = [array((40, 64), "int8", 0), array((48, 64), "int8", 1)]
    found = {}
    for build in (alone, primitive(params, with_others), primitive(params, with_itself)):
        check(build, inputs=inputs)
        plan = make_plan(build, ZEN)
        assert words(plan)
        found[build] = [b.dtype for b in plan.kernel.inputs]
    assert list(found.values()) == [["int32", "int32"], ["int8", "int32"], ["int32", "int32"]]


@pytest.mark.parametrize("form", ["nt", "nn"])
@pytest.mark.parametrize("depth", [64, 67])
def test_products_of_bfloat16_numbers_that_are_given(form: str, depth: int) -> None:
    turned = form == "nt"
    fn = primitive(
        [tensor((N, depth), "bfloat16"), tensor((50, depth) if turned else (depth, 50), "bfloat16")],
        lambda m, x, w: m("nn.matmul", x, w, transpose_b=turned),
    )
    check(fn, *({V: s} for s in (1, 3, 40)), tolerance=1.6e-2)
    known = primitive(
        [tensor((40, depth), "bfloat16"), tensor((50, depth) if turned else (depth, 50), "bfloat16")],
        lambda m, x, w: m("nn.matmul", x, w, transpose_b=turned),
    )
    assert words(make_plan(known, ZEN)) and not words(make_plan(known, WITHOUT))


def test_the_instructions_that_there_are() -> None:
    """One where the machine has it, two of AVX2, none for words on others."""
    targets = [ZEN, parse_target("alderlake"), parse_target("x86-64-v3"), WITHOUT, parse_target("neoverse-n1")]
    one = {"int8": "vpdpbusd", "int16": "vpdpwssd"}
    for dtype in ("int8", "int16"):
        fn = dense(40, 64, 48, (dtype, dtype))
        names = [one[dtype], one[dtype], "vpmaddwd", "vpmaddwd", None]
        for target, name in zip(targets, names, strict=True):
            kernel = make_plan(fn, target).kernel
            text = assembly(emit(kernel, target), target)
            assert ("dot." in kernel_text(kernel)) == (name is not None)
            assert [n for n in one.values() if n in text] == [n for n in (name,) if n in one.values()]
            assert name is None or name in text


@pytest.mark.skipif("avx2" not in HOST.features, reason="needs AVX2")
@pytest.mark.parametrize("dtypes", [*BYTES, *OTHERS], ids="-".join)
@pytest.mark.parametrize("rows", [1, 20])
def test_words_of_shorter_vectors(dtypes: tuple[str, str], rows: int) -> None:
    """Of AVX2, and, where the machine has them, the instructions for four bytes on half of a register."""
    narrow = replace(HOST, vector_bits=256, vector_registers=16)
    for target in (parse_target("x86-64-v3"), *([narrow] if narrow.multiplies_words else [])):
        for depth in (64, 67):
            inputs = [array((rows, depth), dtypes[0], 0), array((50, depth), dtypes[1], 1)]
            check(dense(rows, depth, 50, dtypes), inputs=inputs, target=target)


def test_a_tile_of_pairs_leaves_a_register_for_products() -> None:
    """What multiplies pairs does not add: a product waits in a register for its addition, or a sum would wait in memory."""
    target = parse_target("x86-64-v3")
    kernel = make_plan(dense(24, 64, 96, ("int8", "int8")), target, frozenset({1})).kernel
    text = assembly(emit(kernel, target), target)
    assert "vpmaddwd" in text
    assert not [line for line in text.splitlines() if "%rsp)" in line and "%ymm" in line]
