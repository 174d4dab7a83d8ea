"""Elementwise nests: chains, broadcasts, changes of index, several outputs, sharing memory with inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relay.ir.dim import Dim, DimVar, as_dim, dim_mul, dim_sub
from relay.ir.expr import Expr, Function
from relay.ir.types import TensorType
from relay.loop.ir import For, Kernel, Store, Transpose
from relay.loop.walk import nodes, statements
from relay.te.scalar import Binary, Cast, Load, walk
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
SIZES = tuple({V: s} for s in (0, 1, 5, 70))


def loops(kernel: Kernel) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For)]


def test_a_chain_on_whole_tensors_is_one_flat_loop_in_place() -> None:
    fn = primitive([tensor((N, 384)), tensor((N, 384))], lambda m, x, y: m("nn.relu", m("add", x, y)))
    plan = check(fn, *SIZES, {V: 300})
    assert plan.variant == "elementwise"
    assert [loop.kind for loop in loops(plan.kernel)] == ["parallel", "vectorized"]
    assert plan.kernel.in_place == ((0, 0),)


@pytest.mark.parametrize("length", [dim_sub(N, 1), dim_sub(dim_mul(2, N), 2)])
def test_lines_of_a_length_that_may_be_nothing_are_one_flat_loop(length: Dim) -> None:
    """No element looks for its line, which takes a division by a length of which it is not known that it is none."""
    other = DimVar("m")
    operand = tensor((as_dim(other), length))
    fn = primitive([operand, operand, tensor((N,))], lambda m, x, y, _: m("nn.relu", m("add", x, y)))
    plan = check(fn, *({V: n, other: m} for n, m in ((1, 3), (2, 1), (9, 5), (70, 0))))
    assert [loop.kind for loop in loops(plan.kernel)] == ["parallel", "vectorized"]
    assert all("floordiv" not in str(s.indices) for s in statements(plan.kernel.body) if isinstance(s, Store))


def test_lines_of_a_length_that_may_be_nothing_are_turned_by_blocks() -> None:
    other = DimVar("m")
    shape = (as_dim(other), 3, dim_sub(N, 1))
    fn = primitive([tensor(shape), tensor((N,))], lambda m, x, _: m("exp", m("transpose", x, axes=[2, 1, 0])))
    plan = check(fn, *({V: n, other: m} for n, m in ((1, 3), (2, 1), (9, 5), (70, 80), (5, 0))))
    assert any(isinstance(s, Transpose) for s in statements(plan.kernel.body))


def test_an_input_read_twice_at_different_places_is_not_overwritten() -> None:
    fn = primitive([tensor((8, 8))], lambda m, x: m("add", x, m("transpose", x)))
    assert check(fn).kernel.in_place == ()


def test_an_input_that_a_later_output_reads_is_not_overwritten_by_an_earlier_one() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("exp", x), m("tanh", x))

    assert check(primitive([tensor((N, 9))], build), *SIZES).kernel.in_place == ((0, 1),)


def test_row_broadcast() -> None:
    fn = primitive(
        [tensor((N, 37)), tensor((37,)), tensor((N, 1))], lambda m, x, b, c: m("multiply", m("add", x, b), c)
    )
    check(fn, *SIZES)


def test_literals_become_immediates() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m("multiply", m("add", x, m.constant(2.5)), m.constant([3.0]))

    check(primitive([tensor((N, 5))], build), *SIZES)


def test_a_small_static_kernel_is_serial() -> None:
    plan = check(primitive([tensor((16, 16))], lambda m, x: m("exp", x)))
    assert all(loop.kind != "parallel" for loop in loops(plan.kernel))


def test_heads_apart_and_together_need_no_division() -> None:
    apart = primitive(
        [tensor((N, 384))], lambda m, x: m("transpose", m("reshape", x, newshape=(-1, 12, 32)), axes=(1, 0, 2))
    )
    together = primitive(
        [tensor((12, N, 32))], lambda m, x: m("reshape", m("transpose", x, axes=(1, 0, 2)), newshape=(-1, 384))
    )
    for fn in (apart, together):
        plan = check(fn, *SIZES)
        vector = [loop for loop in loops(plan.kernel) if loop.kind == "vectorized"]
        assert len(vector) == 1 and "floordiv" not in repr(vector[0].body)


@pytest.mark.parametrize(
    ("params", "build"),
    [
        ([tensor((N, 3)), tensor((N, 5)), tensor((N, 70))], lambda m, *x: m("concatenate", m.tuple(*x), axis=1)),
        ([tensor((N, 33)), tensor((4, 33))], lambda m, *x: m("concatenate", m.tuple(*x), axis=0)),
        ([tensor((N, 12))], lambda m, x: m("split", x, indices_or_sections=3, axis=1)),
        ([tensor((N, 12))], lambda m, x: m("strided_slice", x, begin=(1,), end=(10,), strides=(2,), axes=(1,))),
        ([tensor((N, 12))], lambda m, x: m("nn.pad", x, pad_width=((1, 2), (3, 4)))),
        ([tensor((N, 12))], lambda m, x: m("tile", x, reps=(2, 3))),
        ([tensor((N, 12))], lambda m, x: m("reverse", x, axis=1)),
        ([tensor((N, 12), "bool"), tensor((N, 12)), tensor((N, 1))], lambda m, c, x, y: m("where", c, x, y)),
        ([tensor((N, 7))], lambda m, x: m("transpose", x)),
        ([tensor((N, 12)), tensor((N, 12))], lambda m, x, y: m.tuple(m("add", x, y), m("less", x, y))),
        ([tensor((N, 12))], lambda m, x: m("cast", x, dtype="int32")),
        ([tensor((N, 12), "float16"), tensor((12,), "float16")], lambda m, x, y: m("add", x, y)),
        ([tensor((N, 12), "int4")], lambda m, x: m("cast", x, dtype="int32")),
        ([tensor(()), tensor(())], lambda m, x, y: m("add", x, y)),
        ([tensor((N, 3))], lambda m, x: m.tuple(x, x)),
        ([tensor((2, N, 6, 5))], lambda m, x: m("reshape", m("transpose", x, axes=(2, 0, 1, 3)), newshape=(6, -1))),
    ],
)  # fmt: skip
def test_changes_of_index(params: list[TensorType], build: object) -> None:
    assert callable(build)
    sizes = SIZES[1:] if any(p.dtype == "int4" for p in params) else SIZES
    plan = check(primitive(params, build), *sizes, tolerance=2e-3 if params[0].dtype == "float16" else 2e-5)
    assert plan.variant == "elementwise"


def test_gather_through_an_index_tensor() -> None:
    fn = primitive(
        [tensor((50, 40)), tensor((N,), "int32"), tensor((N, 40))],
        lambda m, t, i, y: m("add", m("take", t, i, axis=0), y),
    )
    rng = np.random.default_rng(3)
    for size in (1, 9):
        arrays = [
            rng.standard_normal((50, 40)).astype(np.float32),
            rng.integers(0, 50, size).astype(np.int32),
            rng.standard_normal((size, 40)).astype(np.float32),
        ]
        check(fn, {V: size}, inputs=arrays)


def test_a_long_chain_is_planned_without_recursion_and_inlined_once() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        for _ in range(3000):
            x = m("add", x, x)
        return x

    fn = primitive([tensor((4,))], build)
    from relay.loop.target import Target
    from relay.plan import make_plan

    plan = make_plan(fn, Target("x86_64-unknown-linux-gnu"))
    assert len(loops(plan.kernel)) == 1


@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
def test_every_few_elements(step: int, dtype: str) -> None:
    """Loads at a distance, of whole vectors and of a rest, up to the last element that there is."""

    def build(m: Maker, x: Expr) -> Expr:
        return m(
            "add", *[m("strided_slice", x, begin=(b,), end=(1 << 30,), strides=(step,), axes=(1,)) for b in (1, 0)]
        )

    for count in (1, 7, 16, 37, 64):
        check(primitive([tensor((3, count * step), dtype)], build), {})


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "int64"])
@pytest.mark.parametrize("axes", [(0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_transposed_copies_are_turned_by_blocks(axes: tuple[int, int, int], dtype: str) -> None:
    plan = check(
        primitive([tensor((3, N, 70), dtype)], lambda m, x: m("transpose", x, axes=axes)), {V: 1}, {V: 17}, {V: 130}
    )
    assert any(isinstance(s, Transpose) for s in statements(plan.kernel.body))


def test_slices_and_reverses_of_transposed_copies() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m(
            "reverse", m("transpose", m("strided_slice", x, begin=[2], end=[60], strides=[1]), axes=(1, 0)), axis=1
        )

    check(primitive([tensor((64, 50))], build))
    check(
        primitive([tensor((64, 50), "float32")], lambda m, x: m("cast", m("transpose", x, axes=(1, 0)), dtype="int32"))
    )


def test_transposed_operands_are_turned_before_they_are_computed_with() -> None:
    def build(m: Maker, x: Expr, y: Expr, b: Expr) -> Expr:
        turned = m("transpose", x, axes=(1, 0))
        return m("nn.relu", m("add", m("multiply", turned, y), m("multiply", turned, b)))

    types = [tensor((N, 70)), tensor((70, N)), tensor((N,))]
    plan = check(primitive(types, build), {V: 1}, {V: 17}, {V: 130})
    assert sum(isinstance(s, Transpose) for s in statements(plan.kernel.body)) == 1
    two = [tensor((N, 70)), tensor((N, 70), "float16"), tensor((70, N))]

    def both(m: Maker, x: Expr, y: Expr, z: Expr) -> Expr:
        x, y = (m("transpose", v, axes=(1, 0)) for v in (x, y))
        return m("where", m("greater", x, z), m("cast", y, dtype="float32"), z)

    plan = check(primitive(two, both), {V: 5}, {V: 100})
    assert sum(isinstance(s, Transpose) for s in statements(plan.kernel.body)) == 2, (
        "what some elements take, all could"
    )

    def twice(m: Maker, x: Expr, y: Expr) -> Expr:
        x, again = (m("transpose", x, axes=(1, 0)) for _ in range(2))
        return m("add", m("multiply", x, again), m("tanh", m("multiply", x, y)))

    plan = check(primitive([tensor((N, 70)), tensor((70, N))], twice), {V: 5}, {V: 100})
    assert sum(isinstance(s, Transpose) for s in statements(plan.kernel.body)) == 1, "what is read twice is turned once"

    def bordered(m: Maker, x: Expr) -> Expr:
        return m("nn.pad", m("transpose", x, axes=(1, 0)), pad_width=((1, 2), (0, 3)))

    plan = check(primitive([tensor((N, 70))], bordered), {V: 5}, {V: 100})
    assert not any(isinstance(s, Transpose) for s in statements(plan.kernel.body)), "there is nothing at a border"


def test_what_no_result_reads_is_not_computed() -> None:
    """A triangle that lies beyond a matrix reads nothing of it, however that is made."""

    def beyond(made: Callable[[Maker, Expr, Expr], Expr]) -> Function:
        params = [tensor((4, 32)), tensor((4, 32), "int64")]
        return primitive(params, lambda m, x, i: m("tril", made(m, x, i), k=-40))

    for made in (
        lambda m, x, i: m("scatter_elements", x, i, x, axis=1, reduction="add"),
        lambda m, x, i: m("nn.dense", x, x),
        lambda m, x, i: m("nn.softmax", x),
    ):
        plan = check(beyond(made))
        assert not any(isinstance(n, Load) for n in nodes(plan.kernel.body))


def test_repeated_elements_are_looked_up_along_a_line() -> None:
    """Which element is repeated is a quotient: vectors of results look it up in vectors, in place of a loop over two that are alike."""
    h, w = DimVar("h"), DimVar("w")
    fn = primitive([tensor((2, 3, as_dim(h), as_dim(w)))], lambda m, x: m("nn.upsampling", x, scale_h=2.0, scale_w=2.0))
    plan = check(fn, *({h: y, w: x} for y, x in ((1, 1), (3, 8), (2, 21), (0, 4))))
    (lanes,) = (loop.var for loop in loops(plan.kernel) if loop.kind == "vectorized")
    assert not ZEN4.masked or lanes.extent == 2 * as_dim(w)


@pytest.mark.parametrize("leading", [(), (3,)])
@pytest.mark.parametrize("length", [N, 37])
def test_vectors_go_along_the_axis_around_a_last_one_of_a_few_elements(leading: tuple[int, ...], length: Dim) -> None:
    """Each of the few is a line of every second element, in place of vectors of two."""
    fn = primitive([tensor((*leading, length, 2)), tensor((length, 1))], lambda m, x, y: m("multiply", x, y))
    plan = check(fn, *SIZES)
    (lanes,) = (loop.var for loop in loops(plan.kernel) if loop.kind == "vectorized")
    assert not ZEN4.masked or lanes.extent != 2


def test_lines_of_several_axes_of_unknown_extents_are_found_a_few_at_a_time() -> None:
    """Which line it is takes divisions by sizes: those of a few lines are the same."""
    sizes = [DimVar(name) for name in "bnhd"]
    fn = primitive([tensor(tuple(map(as_dim, sizes)))], lambda m, x: m("nn.relu", m("transpose", x, axes=[0, 2, 1, 3])))
    given = ((1, 1, 1, 1), (2, 5, 3, 17), (1, 4, 9, 8), (3, 0, 2, 4))
    plan = check(fn, *(dict(zip(sizes, each, strict=True)) for each in given))
    serial = [loop for loop in loops(plan.kernel) if loop.kind == "serial"]
    assert any(loop.var.extent == 4 for loop in serial)


def test_a_few_iterations_behind_unknown_extents_stay_loops() -> None:
    """Patches of an image: where a line of one is takes a division for each axis around it, and is asked for a patch."""
    sizes = [DimVar(name) for name in "bhw"]
    b, h, w = (as_dim(v) for v in sizes)

    def build(m: Maker, x: Expr) -> Expr:
        return m("transpose", x, axes=(0, 2, 4, 1, 3, 5))

    fn = primitive([tensor((b, 3, h, 4, w, 4))], build)
    plan = check(fn, *(dict(zip(sizes, s, strict=True)) for s in ((2, 3, 5), (1, 1, 1), (1, 9, 2), (0, 2, 2))))
    (outer,) = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "parallel"]
    inside = [s.var.extent for s in statements(outer.body) if isinstance(s, For) and s.kind == "serial"]
    assert inside[-2:] == [3, 4]


def test_what_the_ranges_of_indices_decide_is_not_asked() -> None:
    """How many elements of an image of unknown size a window without a border has."""
    h, w = DimVar("h"), DimVar("w")
    image = tensor((2, 3, as_dim(h), as_dim(w)))
    fn = primitive([image], lambda m, x: m("nn.avg_pool2d", x, pool_size=(2, 2), strides=(2, 2)))
    plan = check(fn, *({h: a, w: b} for a, b in ((4, 6), (5, 7), (1, 9), (40, 33))))
    made = [n for n in nodes(plan.kernel.body) if isinstance(n, Cast) and n.a.dtype == "int64"]
    assert made and not any(isinstance(k, Binary) and k.op in ("min", "max") for n in made for k in walk(n))
