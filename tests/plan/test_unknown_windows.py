"""Windows, blocks and repeats of a size that is not known: planned as those of known sizes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from relay import te
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim, dim_add, dim_bounds, dim_floordiv, dim_mul, dim_sub
from relay.loop.ir import Alloc, Branch, Fail, For, Kernel
from relay.loop.walk import statements
from relay.op import registry
from relay.te.scalar import Compare, Size
from tests.plan.harness import ZEN4, check, primitive, tensor

B, C, H, W, P = (DimVar(name) for name in "bchwp")
b, c, h, w, p = (as_dim(v) for v in (B, C, H, W, P))
SIZES = [
    dict(zip((B, C, H, W, P), sizes, strict=True))
    for sizes in (
        (2, 3, 6, 8, 2),
        (1, 2, 7, 40, 3),
        (1, 1, 9, 50, 20),
        (2, 1, 3, 3, 5),
        (1, 2, 4, 0, 2),
        (1, 1, 5, 4, 0),
    )
]
SOME = [sizes for sizes in SIZES if sizes[P] > 0]


def depthwise(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
    (n, m, y, z), (_, k, _) = x.shape, weight.shape
    r, s = te.reduce_axis(k), te.reduce_axis(k)
    places = (dim_add(dim_sub(y, k), 1), dim_add(dim_sub(z, k), 1))
    return te.compute((n, m, *places), lambda i, j, u, v: te.sum(x[i, j, u + r, v + s] * weight[j, r, s], (r, s)))


def patches(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
    (n, m, y, z), (o, _, k, _) = x.shape, weight.shape
    q, r, s = te.reduce_axis(m), te.reduce_axis(k), te.reduce_axis(k)
    size = te.size(k)

    def body(i: te.Scalar, f: te.Scalar, u: te.Scalar, v: te.Scalar) -> te.Scalar:
        return te.sum(x[i, q, u * size + r, v * size + s] * weight[f, q, r, s], (q, r, s))

    return te.compute((n, o, dim_floordiv(y, k), dim_floordiv(z, k)), body)


def blocks(x: te.Tensor, like: te.Tensor) -> te.Tensor:
    """Blocks of an image as channels."""
    (n, m, y, z), (k,) = x.shape, like.shape
    size = te.size(k)

    def body(i: te.Scalar, j: te.Scalar, u: te.Scalar, v: te.Scalar) -> te.Scalar:
        return x[i, j // (size * size), u * size + j // size % size, v * size + j % size]

    return te.compute((n, dim_mul(m, dim_mul(k, k)), dim_floordiv(y, k), dim_floordiv(z, k)), body)


def repeated(x: te.Tensor, like: te.Tensor) -> te.Tensor:
    (y, z), (k,) = x.shape, like.shape
    return te.compute((y, dim_mul(z, k)), lambda i, j: x[i, j // te.size(k)])


def largest(x: te.Tensor, like: te.Tensor) -> te.Tensor:
    (y, z), (k,) = x.shape, like.shape
    r, s, size = te.reduce_axis(k), te.reduce_axis(k), te.size(k)
    places = (dim_floordiv(y, k), dim_floordiv(z, k))
    return te.compute(places, lambda i, j: te.max(x[i * size + r, j * size + s], (r, s)))


def by_vector(x: te.Tensor, v: te.Tensor) -> te.Tensor:
    (m, i, j, k), _ = x.shape, v.shape
    r = te.reduce_axis(j)
    return te.compute((m, i, k), lambda n, u, z: te.sum(x[n, u, r, z] * v[n, r], r))


def vectors(kernel: Kernel) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]


@pytest.fixture(autouse=True)
def _operators() -> Iterator[None]:
    defined: list[Callable[..., te.Tensor]] = [depthwise, patches, blocks, repeated, largest, by_vector]
    for define in defined:
        registry.operator(f"test.{define.__name__}")(define)
    yield
    for define in defined:
        registry.remove(f"test.{define.__name__}")


def test_windows_of_each_channel_are_no_product() -> None:
    """A panel of windows would be made element by element, and read by one row."""
    fn = primitive([tensor((b, c, h, w)), tensor((c, p, p))], lambda m, x, y: m("test.depthwise", x, y))
    plan = check(fn, *(s for s in SIZES if 0 < s[P] <= min(s[H], s[W])), tolerance=1e-4)
    assert not plan.products


def test_lines_that_turn_out_to_be_longer_than_a_window_have_lanes_across() -> None:
    """Several of them at once, each sum in registers; longer windows have lanes along them."""
    sizes = [
        dict(zip((B, C, H, W, P), each, strict=True))
        for each in ((2, 3, 12, 20, 3), (1, 2, 30, 40, 20), (1, 1, 40, 40, 21), (1, 5, 9, 70, 9), (1, 1, 3, 2, 2))
    ]
    same = {"padding": [1, 1], "groups": c}
    images = [tensor((b, c, h, w)), tensor((c, 1, p, p))]
    for target in (None, parse_target("x86-64-v3")):
        plan = check(primitive(images, lambda m, x, y: m("nn.conv2d", x, y, **same)), *sizes, target=target)
        (asked,) = (s for s in statements(plan.kernel.body) if isinstance(s, Branch) and _compares(s, p))
        sums = [s.buffer for s in statements(asked.then) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
        assert len(sums) >= 8 and {s.scope for s in sums} == {"register"} and all(s.shape != (1,) for s in sums)


def _compares(branch: Branch, size: Dim) -> bool:
    """Whether a branch asks if a size is less than others."""
    cond = branch.cond
    return isinstance(cond, Compare) and cond.op == "lt" and isinstance(cond.a, Size) and cond.a.dim == size


def test_a_product_of_a_vector_by_lines_that_lie_apart_is_no_matrix_kernel() -> None:
    fn = primitive([tensor((b, c, h, w)), tensor((b, h))], lambda m, x, y: m("test.by_vector", x, y))
    assert not check(fn, *SIZES, tolerance=1e-4).products


def test_the_gradient_of_patches_is_a_product() -> None:
    """Places are quotients and remainders by the size of a patch: an axis of each."""
    result = tensor((b, 4, dim_floordiv(h, p), dim_floordiv(w, p)))
    fn = primitive(
        [tensor((b, c, h, w)), tensor((4, c, p, p)), result], lambda m, x, y, g: m("test.patches.vjp0", x, y, g)
    )
    assert check(fn, *SOME, tolerance=1e-4).products


def test_elements_of_blocks_go_back_to_where_they_were() -> None:
    """What is read is the same place, and to be inside needs a size that is not zero, nothing that is asked of each place."""
    made: tuple[Dim, ...] = (b, dim_mul(c, dim_mul(p, p)), dim_floordiv(h, p), dim_floordiv(w, p))
    fn = primitive(
        [tensor((b, c, h, w)), tensor((p,)), tensor(made)], lambda m, x, y, g: m("test.blocks.vjp0", x, y, g)
    )
    plan = check(fn, *SOME)
    body = plan.kernel.body
    asking = [s for s in statements(body) if isinstance(s, Branch) and any(isinstance(k, Fail) for k in statements(s))]
    loop = [s for s in statements(body) if isinstance(s, For) and any(isinstance(k, Fail) for k in statements(s))]
    sized = [s for s in asking if isinstance(s.cond, Compare) and isinstance(s.cond.a, Size)]
    assert all(any(inner in list(statements(s.then)) for s in sized) for inner in loop)


def test_what_is_repeated_as_often_as_a_size_says() -> None:
    """A few times: looked up along a line; often: a loop over those that are alike."""
    plan = check(primitive([tensor((h, w)), tensor((p,))], lambda m, x, y: m("test.repeated", x, y)), *SIZES)
    assert not ZEN4.masked or {dim_mul(w, p), p} <= {loop.var.extent for loop in vectors(plan.kernel)}


def test_small_windows_beside_each_other_have_lanes_across() -> None:
    plan = check(primitive([tensor((h, w)), tensor((p,))], lambda m, x, y: m("test.largest", x, y)), *SOME)
    assert not ZEN4.masked or {p, ZEN4.lanes(32)} <= {loop.var.extent for loop in vectors(plan.kernel)}


def test_an_axis_that_ends_before_it_begins_has_no_lanes() -> None:
    """The border around a cotangent is as wide as a window less one: without elements in either, a line of it would have -1."""
    made = (b, c, dim_add(dim_sub(h, p), 1), dim_add(dim_sub(w, p), 1))
    given = [tensor((b, c, h, w)), tensor((c, p, p)), tensor(made)]
    plan = check(primitive(given, lambda m, x, y, g: m("test.depthwise.vjp0", x, y, g)), {B: 2, C: 2, H: 5, W: 0, P: 0})
    assert any(dim_bounds(loop.var.extent)[0] == -1 for loop in vectors(plan.kernel)) or not ZEN4.masked


def chosen_by_digits(x: te.Tensor, like: te.Tensor) -> te.Tensor:
    """What a quotient and a remainder by a size choose, if they are inside: of a size that is zero both are zero."""
    (n,), (m,) = x.shape, like.shape
    size, limit = te.size(m), te.size(n)

    def body(i: te.Scalar) -> te.Scalar:
        there = te.select(i // size < limit, x[i // size], -1.0) + te.select(i // size >= limit, 1.0, 2.0)
        return there + te.select(i % size < size, like[i % size], -2.0) + te.select(i % size < size + 3, 1.0, 3.0)

    return te.compute((n,), body)


def test_quotients_and_remainders_by_a_size_of_zero_are_zero() -> None:
    registry.operator("test.chosen_by_digits")(chosen_by_digits)
    try:
        fn = primitive([tensor((h,)), tensor((p,))], lambda m, x, y: m("test.chosen_by_digits", x, y))
        check(fn, *({H: n, P: m} for n, m in ((3, 0), (5, 2), (40, 3), (2, 7))))
    finally:
        registry.remove("test.chosen_by_digits")
