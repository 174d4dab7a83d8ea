"""Reads whose place never falls from lane to lane: what is known of them holds, and they are looked up in whole vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import te
from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import parse_target
from relay.codegen.values import Value
from relay.codegen.windows import span
from relay.ir.dim import DimVar, as_dim, as_var, dim_var
from relay.plan import make_plan
from relay.te.scalar import Axis, Binary, Const, Scalar, Select, binary, walk
from tests.plan.harness import ZEN4, check, primitive, tensor

LANES = 16
Array = npt.NDArray[np.int64]
_OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "min": np.minimum,
    "max": np.maximum,
}


def drawn(rng: np.random.Generator, lane: Axis, fixed: Axis) -> Scalar:
    """An index of the lane and of what is the same in all lanes."""
    known: list[Scalar] = [lane, fixed, lane]
    for _ in range(int(rng.integers(1, 7))):
        a, b = (known[rng.integers(len(known))] for _ in range(2))
        number = Const(int(rng.choice([1, 2, 3, 4, 7, 12])), "int64")
        match rng.integers(6):
            case 0:
                known.append(binary("add", a, b))
            case 1:
                known.append(binary("sub", a, b if rng.integers(2) else number))
            case 2:
                known.append(binary("mul", a, number))
            case 3:
                known.append(binary("floordiv", a, number))
            case _:
                other = b if rng.integers(2) else Const(int(rng.integers(-5, 30)), "int64")
                known.append(binary("min" if rng.integers(2) else "max", a, other))
    return known[-1]


def places(root: Scalar, axes: dict[Axis, Array]) -> Array:
    """The index in all lanes."""
    known: dict[int, Array] = {}
    for node in walk(root):
        if isinstance(node, Axis):
            known[id(node)] = axes[node]
        elif isinstance(node, Const):
            known[id(node)] = np.full(LANES, int(node.value))
        else:
            assert isinstance(node, Binary)
            a, b = known[id(node.a)], known[id(node.b)]
            known[id(node)] = np.asarray(_OPERATIONS[node.op](a, b))
    return known[id(root)]


def test_what_is_known_of_places_holds() -> None:
    rng, found = np.random.default_rng(0), 0
    for _ in range(1500):
        lane, fixed = Axis("l", 1000), Axis("k", 1000)
        index = drawn(rng, lane, fixed)
        values = {lane: Value("%l", "int64", LANES, stride=1), fixed: Value("%k", "int64")}

        def number(e: Scalar) -> int | None:
            return int(e.value) if isinstance(e, Const) else None

        far = span(index, values.__getitem__, number, LANES)
        if far is None:
            continue
        found += any(isinstance(n, Binary) and n.op in ("floordiv", "min", "max") for n in walk(index))
        for _ in range(20):
            at = places(
                index, {lane: rng.integers(-50, 50) + np.arange(LANES), fixed: np.full(LANES, rng.integers(50))}
            )
            assert np.all(np.diff(at) >= 0) and at[-1] - at[0] <= far, (at, far)
    assert found > 400


def test_nothing_is_known_of_a_variable_that_is_never_evaluated() -> None:
    lane, elsewhere = Axis("l", 1000), Axis("k", 1000)
    index = binary("add", lane, Select(Const(True, "bool"), Const(1, "int64"), elsewhere, "int64"))
    assert span(index, {lane: Value("%l", "int64", LANES, stride=1)}.get, lambda _: None, LANES) is None


@relay.operator("test.picked_line")
def picked_line(x: te.Tensor, *, step: int, by: int, more: int, width: int) -> te.Tensor:
    """``out[i, j] = x[i, (step * j + more) // by]``, beyond the ends the first and last element."""
    rows, line = x.shape

    def at(j: te.Scalar) -> te.Scalar:
        return te.minimum(te.maximum((j * step + more) // by, 0), te.size(line) - 1)

    return te.compute((rows, width), lambda i, j: x[i, at(j)])


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "float16", "int8"])
@pytest.mark.parametrize(
    ("step", "by", "more", "width"),
    [(1, 2, -3, 100), (28, 45, 5, 45), (3, 2, 0, 64), (7, 4, -9, 33), (5, 1, 0, 20), (1, 9, 0, 50)],
)
def test_rows_at_places_that_rise(step: int, by: int, more: int, width: int, dtype: str) -> None:
    n = dim_var("n", 1)
    var = as_var(n)
    assert var is not None
    for line in (n, 31):
        fn = primitive(
            [tensor((5, line), dtype)],
            lambda m, x: m("test.picked_line", x, step=step, by=by, more=more, width=width),
        )
        plan, target = check(fn, *({var: s} for s in (1, 7, 61))), ZEN4
        if dtype in ("float32", "int32") and "avx512f" in target.features and step <= 2 * by and width >= LANES:
            assert "llvm.x86.avx512.perm" in emit(plan.kernel, target) or "vpermi2var" in emit(plan.kernel, target)


@relay.operator("test.mean_of_near")
def mean_of_near(x: te.Tensor) -> te.Tensor:
    """The sum of five elements around each, the border's own beyond it, but for the first ones of all."""
    rows, line = x.shape
    k, last = te.reduce_axis(5), te.size(line) - 1

    def at(j: te.Scalar) -> te.Scalar:
        return te.minimum(te.maximum(j + k - 2, 0), last)

    return te.compute((rows, line), lambda i, j: te.sum(te.select(j + k > 3, x[i, at(j)], 0.0), k))


def test_under_masks_nothing_is_read_but_between_active_lanes() -> None:
    """Of lines of unknown length, whose last vector has lanes behind the end, under a condition that leaves out the first ones."""
    n, m = DimVar("n"), DimVar("m")
    fn = primitive([tensor((as_dim(n), as_dim(m)))], lambda make, x: make("test.mean_of_near", x))
    plan, target = check(fn, *({n: 3, m: size} for size in (1, 2, 15, 16, 17, 61))), ZEN4
    if "avx512f" in target.features:
        text = emit(plan.kernel, target)
        assert "permvar" in text and "masked.gather" not in text
    module = relay.parse("fn [n: Dim, m: Dim] (%x: Tensor[(n, m), float32]) { test.mean_of_near(%x) }")
    exe = relay.compile(module, cache=False, check_memory=True)
    for m_ in (1, 16, 21):
        x = np.random.default_rng(0).standard_normal((2, m_)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(relay.evaluate(module, x)), atol=1e-5)


def test_images_made_larger_look_up_whole_vectors() -> None:
    fn = primitive([tensor((1, 2, 10, 40))], lambda m, x: m("image.resize2d", x, size=(20, 75)))
    plan, target = check(fn), ZEN4
    if "avx512f" in target.features:
        assert "permvar" in emit(plan.kernel, target)


def test_places_that_a_select_has_read_under_its_own_masks() -> None:
    """What was computed for a side of a select is not known outside of it: the place is that of no window."""
    module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), float32], %at: Tensor[(n,), int64]) -> Tensor[(n,), float32] {
  reverse(take(%x, where(%at < 2i64, %at, zeros_like(%at)), axis=0, mode="clip"), axis=0)
}""")
    exe, rng = relay.compile(module, check_memory=True), np.random.default_rng(0)
    for n in (1, 17, 50):
        args = rng.standard_normal(n).astype(np.float32), rng.integers(0, n, n)
        np.testing.assert_array_equal(np.asarray(exe(*args)), np.asarray(relay.evaluate(module, *args)))


def test_places_that_a_vector_begins_on_a_grid_of_are_looked_up_by_numbers() -> None:
    """A vector begins at a multiple of what divides the place: where each lane is from the first is known."""
    n, m = DimVar("n"), DimVar("m")
    fn = primitive(
        [tensor((1, 1, as_dim(n), as_dim(m)))], lambda make, x: make("nn.upsampling", x, scale_h=2.0, scale_w=2.0)
    )
    target = parse_target("-mcpu=znver4")
    check(fn, *({n: 3, m: size} for size in (1, 7, 8, 9, 40)))
    text = assembly(emit(make_plan(fn, target).kernel, target), target)
    # The loop over whole vectors; the last one, under a mask, is looked up by what is computed once before.
    assert "vpermd" in text and "vpextrd" not in text
