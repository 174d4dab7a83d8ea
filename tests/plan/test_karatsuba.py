"""Sums over windows with fewer products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest

from relay import te
from relay.ir.dim import Dim, DimVar, as_dim, dim_add, dim_evaluate, dim_max, dim_sub
from relay.loop.ir import Branch, Transpose
from relay.loop.walk import statements
from relay.op import registry
from relay.plan import karatsuba
from relay.plan.graph import te_graph
from relay.plan.karatsuba import in_fewer_products
from relay.te.evaluate import evaluate
from relay.te.scalar import Reduce, Size, conjunction, extent_of, transform
from relay.te.tensor import stages
from tests.plan.harness import ZEN4, check, primitive, tensor

V, VH, VW = DimVar("n"), DimVar("h"), DimVar("w")
N, H, W = as_dim(V), as_dim(VH), as_dim(VW)


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("karatsuba.op")(define)
    registry.remove("karatsuba.op")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it costs, however small."""
    monkeypatch.setattr(karatsuba, "_GAIN", -(10**9))
    monkeypatch.setattr(karatsuba, "_LEAST", -(10**9))
    monkeypatch.setattr(karatsuba, "_BLOCKS", 1)


Define = Callable[[te.Tensor, te.Tensor], te.Tensor]


def windows(sizes: tuple[int, int], steps: tuple[int, int], firsts: tuple[int, int], grouped: bool = False) -> Define:
    """Each place of images ``x[b, p, q, i, k]`` adds its product with the taps ``w[r, s, k, c]`` to the elements of its window (rows
    ``i`` may have taps of their own)."""

    def define(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis(n) for n in w.shape[:2]]
        k = te.reduce_axis(x.shape[-1])

        def element(b: Any, h: Any, v: Any, i: Any, c: Any) -> Any:
            moved = [a + first - r for a, first, r in zip((h, v), firsts, taps, strict=True)]
            at = [m // step for m, step in zip(moved, steps, strict=True)]
            hit = [(m % step).equal(0) for m, step in zip(moved, steps, strict=True) if step > 1]
            hit += [c for a, n in zip(at, x.shape[1:3], strict=True) for c in (a >= 0, a < te.size(n))]
            weight = w[(*taps, i, k, c)] if grouped else w[(*taps, k, c)]
            return te.sum(te.select(conjunction(hit), x[b, at[0], at[1], i, k] * weight, 0.0), (*taps, k))

        return te.compute((x.shape[0], *sizes, x.shape[3], w.shape[-1]), element)

    return define


def correlated(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Windows of 3 x 2 without a border, as a convolution forward: taps count backwards."""
    r, s, k = te.reduce_axis(3), te.reduce_axis(2), te.reduce_axis(x.shape[-1])
    b, h, v, i, _ = x.shape
    assert isinstance(h, int) and isinstance(v, int)
    return te.compute(
        (b, h - 2, v - 1, i, w.shape[-1]),
        lambda z, p, q, m, c: te.sum(x[z, p + r, q + s, m, k] * w[r, s, k, c], (r, s, k)),
    )


def capsule(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """A capsule convolution: windows two places apart."""
    (n, c, h, w, i, inner), (k, _, r, s, _, j) = data.shape, weight.shape
    o = tuple(te.reduce_axis(d) for d in (c, r, s, inner))
    return te.compute(
        (n, k, (h - r) // 2 + 1, (w - s) // 2 + 1, i, j),  # type: ignore[operator]
        lambda b, m, p, q, x, y: te.sum(data[b, o[0], 2 * p + o[1], 2 * q + o[2], x, o[3]] * weight[m, *o, y], o),
    )


def products(fn: Any) -> list[int]:
    """How many products there are of each class of elements, of those with any."""
    graph = in_fewer_products(te_graph(fn), ZEN4).graph
    found = [s for s in stages(graph.outputs) if s.name == "products"]
    assert all(isinstance(s.bodies[0], Reduce) for s in found)  # type: ignore[union-attr]
    return sorted(prod(a.extent for a in s.axes if a.name in ("t0", "t1")) for s in found)  # type: ignore[union-attr, misc]


@pytest.mark.parametrize(
    ("define", "x", "w", "pairs"),
    [
        (windows((13, 14), (2, 2), (0, 0)), (2, 6, 6, 4, 5), (3, 3, 5, 16), [3, 3, 9]),
        (windows((11, 12), (2, 2), (1, 1)), (1, 5, 7, 4, 3), (3, 3, 3, 16), [3, 3, 9]),
        (windows((9, 7), (1, 1), (1, 0)), (N, 8, 5, 1, 4), (3, 2, 4, 16), [18]),
        (windows((16, 9), (2, 3), (3, 0)), (1, 7, 3, 2, 4), (5, 4, 4, 17), [3, 3, 6, 6, 9, 18]),
        (windows((9, 7), (1, 1), (-1, 0), True), (2, 6, 5, 3, 4), (3, 2, 3, 4, 16), [18]),
        (correlated, (N, 7, 6, 2, 5), (3, 2, 5, 16), [18]),
    ],
)
def test_windows_take_fewer_products(
    declare: Callable[..., object],
    always: None,
    define: Define,
    x: tuple[Dim, ...],
    w: tuple[Dim, ...],
    pairs: list[int],
) -> None:
    declare(define)
    fn = primitive([tensor(x), tensor(w)], lambda m, *a: m("karatsuba.op", *a))
    assert products(fn) == pairs
    check(fn, {V: 1}, {V: 3}, tolerance=1e-5)


def test_a_gradient_that_asks_which_taps_hit_takes_fewer_products(declare: Callable[..., object], always: None) -> None:
    declare(capsule)
    given = [tensor((1, 4, 8, 11, 4, 4)), tensor((4, 4, 3, 3, 4, 4)), tensor((1, 4, 3, 5, 4, 4))]
    fn = primitive(given, lambda m, *a: m("karatsuba.op.vjp0", *a))
    assert products(fn) == [1, 3, 3, 9]
    check(fn, {}, tolerance=1e-5)


def test_shallow_and_small_sums_stay_as_they_are(declare: Callable[..., object]) -> None:
    """What is put together at the end takes longer than the products; and so does compiling it."""
    declare(capsule)
    for channels, size in ((16, 2), (4, 4)):
        given = [tensor((1, channels, 14, 14, size, size)), tensor((channels, channels, 3, 3, size, size))]
        fn = primitive([*given, tensor((1, channels, 6, 6, size, size))], lambda m, *a: m("karatsuba.op.vjp0", *a))
        assert products(fn) == []
    given = [tensor((1, 16, 14, 14, 8, 8)), tensor((32, 16, 3, 3, 8, 8)), tensor((1, 32, 6, 6, 8, 8))]
    assert products(primitive(given, lambda m, *a: m("karatsuba.op.vjp0", *a))) == [1, 3, 3, 9]


def test_products_of_a_border_are_saved_too() -> None:
    """Of 7 x 7 places with a border a product multiplies 441 taps, of which 361 hit something; 324 products are fewer than both, but not
    by much than the latter."""
    given = [tensor((16, 256, 7, 7)), tensor((256, 256, 3, 3))]
    assert products(primitive(given, lambda m, *a: m("nn.conv2d", *a, padding=(1, 1)))) == [36]


@pytest.mark.parametrize("border", [1, 2])
def test_what_is_guarded_beside_windows_stays_as_it_is(
    declare: Callable[..., object], always: None, border: int
) -> None:
    """A window of which some places count for nothing is none; nor is a sum with a condition of its own."""

    def define(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r, k = te.reduce_axis(3), te.reduce_axis(x.shape[-1])

        def element(h: Any, c: Any) -> Any:
            at = h - r
            hit = (at >= 0) & (at < te.size(x.shape[0]))
            hit &= k < 3 if border == 1 else at.not_equal(4)
            return te.sum(te.select(hit, x[at, k] * w[r, k, c], 0.0), (r, k))

        return te.compute((x.shape[0] + 2, w.shape[-1]), element)  # type: ignore[operator]

    declare(define)
    fn = primitive([tensor((9, 5)), tensor((3, 5, 16))], lambda m, *a: m("karatsuba.op", *a))
    assert products(fn) == []
    check(fn, {}, tolerance=1e-5)


@pytest.mark.parametrize("padding", [(1, 1), (0, 0)])
def test_images_of_which_channels_lie_apart_are_turned(always: None, padding: tuple[int, int]) -> None:
    """Into places, and back into images; a border of zeros has no places."""
    fn = primitive(
        [tensor((2, 16, 7, 7)), tensor((20, 16, 3, 3))],
        lambda m, x, w: m("nn.conv2d", x, w, padding=padding),
    )
    assert products(fn) == [36]
    plan = check(fn, {}, tolerance=1e-5)
    assert sum(isinstance(s, Transpose) for s in statements(plan.kernel.body)) == 3
    blocks = [s for s in stages(in_fewer_products(te_graph(fn), ZEN4).graph.outputs) if s.name == "places"]
    assert [s.shape[2:5] for s in blocks] == [(2, 3, 3)]


@pytest.mark.parametrize("what", ["a size", "an axis of one element", "sums of other numbers"])
def test_windows_by_what_is_known(declare: Callable[..., object], always: None, what: str) -> None:
    """What a size says that is not known is not the same in every run; an axis of one element says nothing."""
    of_size, dtype = what == "a size", "float16" if what == "sums of other numbers" else "float32"

    def define(x: te.Tensor, w: te.Tensor, y: te.Tensor) -> te.Tensor:
        r, k = te.reduce_axis(3), te.reduce_axis(x.shape[-1])

        def element(b: Any, h: Any, c: Any) -> Any:
            if what == "an axis of one element":
                return te.sum(x[h + r + b, k] * w[r, k, c], (r, k))
            at = h - r
            hit = (at >= 0) & (at < te.size(y.shape[0] if of_size else x.shape[0])) & (at < te.size(x.shape[0]))
            return te.sum(te.select(hit, x[at, k] * w[r, k, c], 0.0), (r, k))

        return te.compute((1, 7, w.shape[-1]), element)

    declare(define)
    fn = primitive(
        [tensor((9, 5), dtype), tensor((3, 5, 16), dtype), tensor((N,), dtype)], lambda m, *a: m("karatsuba.op", *a)
    )
    assert products(fn) == ([6] if what == "an axis of one element" else [])
    check(fn, {V: 4}, {V: 9}, tolerance=1e-5 if dtype == "float32" else 1e-2)


def test_windows_of_three_axes_stay_as_they_are(declare: Callable[..., object], always: None) -> None:
    def define(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        over = [te.reduce_axis(n) for n in w.shape[:4]]

        def element(*i: Any) -> Any:
            at = [a + r for a, r in zip(i, over[:3], strict=False)]
            return te.sum(x[(*at, over[3])] * w[(*over, i[3])], over)

        return te.compute((4, 4, 4, w.shape[-1]), element)

    declare(define)
    fn = primitive([tensor((5, 5, 5, 16)), tensor((2, 2, 2, 16, 16))], lambda m, *a: m("karatsuba.op", *a))
    assert products(fn) == []


# Of each remainder by the number of taps, and images that are less than a window, or nothing.
SIZES = [(2, 7, 9), (1, 12, 8), (3, 5, 10), (1, 3, 3), (2, 2, 4), (1, 1, 1), (0, 6, 6), (2, 0, 5)]


@pytest.mark.parametrize("operator", ["nn.conv2d", "nn.conv2d.vjp0"])
@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 3), (1, 1)), ((3, 2), (0, 0)), ((2, 3), (1, 0, 0, 2)), ((3, 1), (2, 0))]
)
@pytest.mark.parametrize("constant", [False, True])
def test_images_of_unknown_size_take_fewer_products(
    always: None, operator: str, kernel: tuple[int, int], padding: tuple[int, ...], constant: bool
) -> None:
    """Whether they do is decided when the kernel runs, which has the weights in both layouts if these are constants."""
    above, left, below, right = padding if len(padding) == 4 else padding * 2
    made = [
        dim_max(dim_add(d, before + after + 1 - k), 0)
        for d, before, after, k in zip((H, W), (above, left), (below, right), kernel, strict=True)
    ]
    given = [
        tensor((N, 16, H, W)),
        tensor((20, 16, *kernel)),
        *([] if operator == "nn.conv2d" else [tensor((N, 20, *made))]),
    ]
    fn = primitive(given, lambda m, *a: m(operator, *a, padding=padding))
    assert products(fn) == [prod(n * (n + 1) // 2 for n in kernel)]
    plan = check(
        fn,
        *({V: n, VH: h, VW: w} for n, h, w in SIZES),
        tolerance=1e-5,
        constants=frozenset({1} if constant else {}),
    )
    assert isinstance(plan.kernel.body, Branch)
    assert [p.input_index for p in plan.packs] == ([3 if operator == "nn.conv2d.vjp0" else 2] if constant else [])


def test_one_unknown_axis_and_lines_take_fewer_products(always: None) -> None:
    fn = primitive([tensor((N, 6, W)), tensor((9, 6, 3))], lambda m, x, w: m("nn.conv1d", x, w, padding=(1,)))
    assert products(fn) == [6]
    check(fn, *({V: n, VW: w} for n, _, w in SIZES), tolerance=1e-5)
    fn = primitive([tensor((2, 6, 5, W)), tensor((9, 6, 3, 3))], lambda m, x, w: m("nn.conv2d", x, w, padding=(1, 0)))
    assert products(fn) == [36]
    check(fn, *({VW: w} for _, _, w in SIZES), tolerance=1e-5)


def test_small_images_of_unknown_size_stay_as_they_are() -> None:
    """What the kernel asks is what is asked of known sizes."""
    given = [tensor((N, 64, H, W)), tensor((64, 64, 3, 3))]
    found = in_fewer_products(te_graph(primitive(given, lambda m, *a: m("nn.conv2d", *a, padding=(1, 1)))), ZEN4)
    assert not [s for s in stages(found.always.outputs) if s.name == "products"]
    for size in (4, 7, 14, 28, 56, 400):
        known = primitive([tensor((1, 64, size, size)), given[1]], lambda m, *a: m("nn.conv2d", *a, padding=(1, 1)))
        sizes = {V: 1, VH: size, VW: size}

        def with_sizes(node: Any) -> Any:
            return extent_of(dim_evaluate(node.dim, sizes)) if isinstance(node, Size) else node  # noqa: B023

        holds = evaluate([te.compute((1,), lambda _: te.cast(transform(found.holds, with_sizes), "int64"))], {})
        assert bool(holds[0]) == (products(known) == [36]), size


def test_what_is_guarded_otherwise_is_no_window_of_unknown_size(declare: Callable[..., object], always: None) -> None:
    """A border of other places than those that there are, and a tap that moves twice as fast."""

    def wider(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r, k = te.reduce_axis(3), te.reduce_axis(x.shape[-1])

        def element(h: Any, c: Any) -> Any:
            at = h - r
            hit = (at >= 1) & (at < te.size(x.shape[0]))
            return te.sum(te.select(hit, x[at, k] * w[r, k, c], 0.0), (r, k))

        return te.compute((x.shape[0] + 2, w.shape[-1]), element)  # type: ignore[operator]

    def faster(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r, k = te.reduce_axis(3), te.reduce_axis(x.shape[-1])
        size = dim_max(dim_sub(x.shape[0], 4), 0)
        return te.compute((size, w.shape[-1]), lambda h, c: te.sum(x[h + 2 * r, k] * w[r, k, c], (r, k)))

    for define in (wider, faster):
        declare(define)
        fn = primitive([tensor((N, 5)), tensor((3, 5, 16))], lambda m, *a: m("karatsuba.op", *a))
        assert products(fn) == []
        check(fn, {V: 9}, {V: 4}, {V: 0}, tolerance=1e-5)
        registry.remove("karatsuba.op")
    declare(wider)
