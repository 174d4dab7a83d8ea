"""Operators that somebody writes in a few lines: their meaning, and derivatives that nobody wrote, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.op import registry
from relay.te.scalar import walk
from tests.op import harness as h
from tests.op.harness import Array
from tests.op.test_compiled import program
from tests.op.test_gradients import check, stages_of, variants


def _edge(x: te.Scalar, n: Any) -> te.Scalar:
    return te.minimum(te.maximum(x, 0), te.size(n) - 1)


def _inside(y: te.Scalar, x: te.Scalar, height: Any, width: Any) -> te.Scalar:
    return (y >= 0) & (y < te.size(height)) & (x >= 0) & (x < te.size(width))


def deformed(data: te.Tensor, offset: te.Tensor) -> te.Tensor:
    """Each element at a distance that a tensor of integers tells."""
    (n, c, height, width), (_, _, p, q) = data.shape, offset.shape

    def body(b: te.Scalar, m: te.Scalar, i: te.Scalar, j: te.Scalar) -> te.Scalar:
        down, right = (offset[b, axis, i, j].astype("int64") for axis in (0, 1))
        return data[b, m, _edge(down + i, height), _edge(right + j, width)]

    return te.compute((n, c, p, q), body)


def bilinear(data: te.Tensor, place: te.Tensor) -> te.Tensor:
    """Images at places between their elements."""
    (n, c, height, width), (_, _, p, q) = data.shape, place.shape

    def body(b: te.Scalar, m: te.Scalar, i: te.Scalar, j: te.Scalar) -> te.Scalar:
        y, x = place[b, 0, i, j], place[b, 1, i, j]
        top, left = te.floor(y), te.floor(x)
        rows = ((0, 1.0 - (y - top)), (1, y - top))
        columns = ((0, 1.0 - (x - left)), (1, x - left))
        first, *rest = [
            data[b, m, _edge(top.astype("int64") + u, height), _edge(left.astype("int64") + v, width)] * a * b_
            for u, a in rows
            for v, b_ in columns
        ]
        total: te.Scalar = first
        for part in rest:
            total = total + part
        return total

    return te.compute((n, c, p, q), body)


def involution(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """A convolution whose weights differ from place to place and are shared by channels."""
    (n, c, height, width), (_, g, k, *_) = data.shape, weight.shape
    r, s = te.reduce_axis(k), te.reduce_axis(k)

    def at(b: te.Scalar, m: te.Scalar, y: te.Scalar, x: te.Scalar) -> te.Scalar:
        return te.select(_inside(y, x, height, width), data[b, m, y, x], 0.0)

    def body(b: te.Scalar, m: te.Scalar, y: te.Scalar, x: te.Scalar) -> te.Scalar:
        return te.sum(at(b, m, y + r - k // 2, x + s - k // 2) * weight[b, m // (c // g), r, s, y, x], (r, s))  # type: ignore[operator]

    return te.compute((n, c, height, width), body)


def correlation(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Products of two images moved against each other by up to one element."""
    n, c, height, width = a.shape
    k = te.reduce_axis(c)

    def at(m: te.Scalar, y: te.Scalar, x: te.Scalar) -> te.Scalar:
        return te.select(_inside(y, x, height, width), b[m, k, y, x], 0.0)

    return te.compute(
        (n, 3, 3, height, width), lambda m, u, v, y, x: te.sum(a[m, k, y, x] * at(m, y + u - 1, x + v - 1), k)
    )


def circulant(c: te.Tensor, x: te.Tensor) -> te.Tensor:
    """The product with a matrix whose rows are one row, moved on by one each."""
    b, n = x.shape
    j = te.reduce_axis(n)
    return te.compute((b, n), lambda m, i: te.sum(c[(i - j + te.size(n)) % te.size(n)] * x[m, j], j))


def kronecker(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    (m, n), (p, q) = a.shape, b.shape
    return te.compute((m * p, n * q), lambda i, j: a[i // p, j // q] * b[i % p, j % q])  # type: ignore[operator]


def tropical(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A product of matrices with maxima for sums and sums for products."""
    k = te.reduce_axis(a.shape[1])
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.max(a[i, k] + b[k, j], k))


def log_product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """The logarithm of a product of matrices that are given by their logarithms."""
    k, z = te.reduce_axis(a.shape[1]), te.reduce_axis(a.shape[1])
    most = te.compute((a.shape[0], b.shape[1]), lambda i, j: te.max(a[i, k] + b[k, j], k))
    total = te.compute(most.shape, lambda i, j: te.sum(te.exp(a[i, z] + b[z, j] - most[i, j]), z))
    return te.compute(most.shape, lambda i, j: te.log(total[i, j]) + most[i, j])


def prefix_maximum(x: te.Tensor) -> te.Tensor:
    return te.scan(x.shape, 1, lambda b: -1e30, lambda state, b, i: te.maximum(state, x[b, i]), x.dtype)


def rotary(x: te.Tensor, cos: te.Tensor, sin: te.Tensor) -> te.Tensor:
    half = x.shape[2] // 2  # type: ignore[operator]

    def body(b: te.Scalar, n: te.Scalar, e: te.Scalar) -> te.Scalar:
        other = te.select(e < half, -x[b, n, e + half], x[b, n, e - half])
        return x[b, n, e] * cos[n, e % half] + other * sin[n, e % half]

    return te.compute(x.shape, body)


def unshuffled(x: te.Tensor) -> te.Tensor:
    """Blocks of 2 x 2 elements as channels; what is missing of the last ones is 0."""
    n, c, height, width = x.shape

    def body(b: te.Scalar, m: te.Scalar, y: te.Scalar, z: te.Scalar) -> te.Scalar:
        row, column = y * 2 + m % 4 // 2, z * 2 + m % 2
        return te.select(_inside(row, column, height, width), x[b, m // 4, row, column], 0.0)

    return te.compute((n, c * 4, (height + 1) // 2, (width + 1) // 2), body)  # type: ignore[operator]


def histogram(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """The weights of all numbers in [0, 1) in eight boxes."""
    k = te.reduce_axis(x.shape[0])
    return te.compute(
        (8,), lambda b: te.sum(te.select(_edge((x[k] * 8.0).astype("int64"), 8).equal(b), weight[k], 0.0), k)
    )


def sinkhorn(x: te.Tensor) -> te.Tensor:
    """Rows, and then columns, divided by their sums."""
    b, n, m = x.shape
    j, i = te.reduce_axis(m), te.reduce_axis(n)
    rows = te.compute((b, n), lambda b, y: te.sum(x[b, y, j], j))
    columns = te.compute((b, m), lambda b, z: te.sum(x[b, i, z] / rows[b, i], i))
    return te.compute(x.shape, lambda b, y, z: x[b, y, z] / rows[b, y] / columns[b, z])


def local_attention(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
    """Attention of each place to those at most two away."""
    n, d = q.shape
    e, a, b, o = te.reduce_axis(d), te.reduce_axis(5), te.reduce_axis(5), te.reduce_axis(5)
    seen: Callable[[te.Scalar], te.Scalar] = lambda j: (j >= 0) & (j < te.size(n))  # noqa: E731
    scores = te.compute((n, 5), lambda i, r: te.sum(q[i, e] * te.select(seen(i + r - 2), k[i + r - 2, e], 0.0), e))
    shown = te.compute((n, 5), lambda i, r: te.select(seen(i + r - 2), scores[i, r], -1e30))
    most = te.compute((n,), lambda i: te.max(shown[i, a], a))
    weight = te.compute((n, 5), lambda i, r: te.exp(shown[i, r] - most[i]))
    total = te.compute((n,), lambda i: te.sum(weight[i, b], b))
    at: Callable[..., te.Scalar] = lambda i, r, c: te.select(seen(i + r - 2), v[i + r - 2, c], 0.0)  # noqa: E731
    return te.compute((n, d), lambda i, c: te.sum(weight[i, o] / total[i] * at(i, o, c), o))


@dataclass(frozen=True)
class New:
    """An operator, operands for it (of shapes that differ from seed to seed), and what NumPy makes of them."""

    define: Callable[..., te.Tensor]
    draw: Callable[[np.random.Generator], list[Array]]
    expect: Callable[..., Array]
    symbolic: bool = True


def _sizes(g: np.random.Generator, *least: int) -> tuple[int, ...]:
    return tuple(int(n + g.integers(0, 3)) for n in least)


def _places(g: np.random.Generator, n: int, p: int, q: int, height: int, width: int) -> Array:
    """Places that are at no element's."""
    whole = np.stack([g.integers(0, height - 1, (n, p, q)), g.integers(0, width - 1, (n, p, q))], 1)
    return np.asarray(whole + g.uniform(0.1, 0.9, whole.shape))


def _draw_images(*channels: int) -> Callable[[np.random.Generator], list[Array]]:
    def draw(g: np.random.Generator) -> list[Array]:
        height, width = _sizes(g, 4, 5)
        return [g.standard_normal((2, c, height, width)) for c in channels]

    return draw


def _draw_deformed(g: np.random.Generator) -> list[Array]:
    (x,) = _draw_images(3)(g)
    return [x, g.integers(-3, 4, (2, 2, *_sizes(g, 3, 4)))]


def _draw_bilinear(g: np.random.Generator) -> list[Array]:
    (x,) = _draw_images(3)(g)
    return [x, _places(g, 2, *_sizes(g, 3, 2), *x.shape[2:])]


def _draw_involution(g: np.random.Generator) -> list[Array]:
    (x,) = _draw_images(4)(g)
    return [x, g.standard_normal((2, 2, 3, 3, *x.shape[2:]))]


def _draw_matrices(g: np.random.Generator) -> list[Array]:
    m, k, n = _sizes(g, 3, 4, 2)
    return [g.standard_normal((m, k)), g.standard_normal((k, n))]


def _draw_circulant(g: np.random.Generator) -> list[Array]:
    b, n = _sizes(g, 2, 3)
    return [g.standard_normal(n), g.standard_normal((b, n))]


def _draw_rotary(g: np.random.Generator) -> list[Array]:
    b, n, half = _sizes(g, 2, 3, 2)
    return [g.standard_normal((b, n, 2 * half)), g.standard_normal((n, half)), g.standard_normal((n, half))]


def _draw_histogram(g: np.random.Generator) -> list[Array]:
    (n,) = _sizes(g, 11)
    return [(g.integers(0, 8, n) + g.uniform(0.1, 0.9, n)) / 8, g.standard_normal(n)]


def _draw_attention(g: np.random.Generator) -> list[Array]:
    shape = _sizes(g, 4, 3)
    return [g.standard_normal(shape) for _ in range(3)]


def _padded(x: Array, by: int) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(by, by)] * 2)


def _expect_deformed(x: Array, offset: Array) -> Array:
    n, _, p, q = offset.shape
    row = np.clip(offset[:, 0] + np.arange(p)[:, None], 0, x.shape[2] - 1)
    column = np.clip(offset[:, 1] + np.arange(q), 0, x.shape[3] - 1)
    return np.stack([x[b][:, row[b], column[b]] for b in range(n)])


def _expect_bilinear(x: Array, place: Array) -> Array:
    low = np.floor(place).astype(int)
    part = place - low
    out: Array = np.zeros((*x.shape[:2], *place.shape[2:]))
    for b in range(len(x)):
        for u in (0, 1):
            for v in (0, 1):
                weight = np.abs(1 - u - part[b, 0]) * np.abs(1 - v - part[b, 1])
                out[b] += x[b][:, low[b, 0] + u, low[b, 1] + v] * weight
    return out


def _expect_involution(x: Array, weight: Array) -> Array:
    height, width = x.shape[2:]
    wide = _padded(x, 1)
    out: Array = np.zeros(x.shape)
    for r in range(3):
        for s in range(3):
            out += wide[:, :, r : r + height, s : s + width] * weight[:, :, r, s].repeat(2, 1)
    return out


def _expect_correlation(a: Array, b: Array) -> Array:
    height, width = a.shape[2:]
    wide = _padded(b, 1)
    moved = [[(a * wide[:, :, u : u + height, v : v + width]).sum(1) for v in range(3)] for u in range(3)]
    return np.asarray(moved).transpose(2, 0, 1, 3, 4)


def _expect_attention(q: Array, k: Array, v: Array) -> Array:
    n = len(q)
    scores = np.where(np.abs(np.arange(n)[:, None] - np.arange(n)) <= 2, q @ k.T, -np.inf)
    weight = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weight / weight.sum(1, keepdims=True) @ v)


def _expect_rotary(x: Array, cos: Array, sin: Array) -> Array:
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _expect_unshuffled(x: Array) -> Array:
    n, c, height, width = x.shape
    even = np.pad(x, ((0, 0), (0, 0), (0, height % 2), (0, width % 2)))
    parts = even.reshape(n, c, even.shape[2] // 2, 2, even.shape[3] // 2, 2).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, 4 * c, even.shape[2] // 2, even.shape[3] // 2)


def _expect_circulant(c: Array, x: Array) -> Array:
    i = np.arange(len(c))
    return np.asarray(x @ c[(i[:, None] - i) % len(c)].T)


def _expect_sinkhorn(x: Array) -> Array:
    x = x / x.sum(2, keepdims=True)
    return np.asarray(x / x.sum(1, keepdims=True))


NEW: Mapping[str, New] = {
    "deformed": New(deformed, _draw_deformed, _expect_deformed),
    "bilinear": New(bilinear, _draw_bilinear, _expect_bilinear),
    "involution": New(involution, _draw_involution, _expect_involution, symbolic=False),
    "correlation": New(correlation, _draw_images(3, 3), _expect_correlation),
    "circulant": New(circulant, _draw_circulant, _expect_circulant),
    "kronecker": New(kronecker, _draw_matrices, np.kron),
    "tropical": New(tropical, _draw_matrices, lambda a, b: (a[:, :, None] + b).max(1)),
    "log_product": New(log_product, _draw_matrices, lambda a, b: np.log(np.exp(a) @ np.exp(b))),
    "prefix_maximum": New(prefix_maximum, lambda g: [g.standard_normal(_sizes(g, 2, 4))], lambda x: np.maximum.accumulate(x, 1)),
    "rotary": New(rotary, _draw_rotary, _expect_rotary, symbolic=False),
    "unshuffled": New(unshuffled, _draw_images(3), _expect_unshuffled),
    "histogram": New(
        histogram, _draw_histogram, lambda x, w: np.bincount((x * 8).astype(int), w, 8), symbolic=True
    ),
    "sinkhorn": New(sinkhorn, lambda g: [g.uniform(0.2, 1.0, _sizes(g, 2, 3, 2))], _expect_sinkhorn),
    "local_attention": New(local_attention, _draw_attention, _expect_attention),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    for name, new in NEW.items():
        registry.operator(f"test.{name}")(new.define)
    yield
    for name in NEW:
        registry.remove(f"test.{name}")


@pytest.mark.parametrize("name", NEW)
def test_meaning_and_derivatives(name: str) -> None:
    new = NEW[name]
    for seed in range(3):
        generator = np.random.default_rng(seed)
        operands = new.draw(generator)
        for symbolic in {False, new.symbolic}:
            got = h.apply(f"test.{name}", *operands, symbolic=symbolic)
            np.testing.assert_allclose(got, new.expect(*operands), rtol=1e-9, atol=1e-12)
            assert check(f"test.{name}", operands, {}, generator, symbolic) > 0


@pytest.mark.parametrize("name", NEW)
def test_compiled(name: str, tmp_path: Path) -> None:
    new = NEW[name]
    generator = np.random.default_rng(9)
    made = new.draw(generator)
    operands = [x.astype(np.float32) if x.dtype == np.float64 else x for x in made]
    wanted = h.apply(f"test.{name}", *operands)
    floats = tuple(n for n, x in enumerate(operands) if x.dtype == np.float32)
    for symbolic in {False, new.symbolic}:
        module = program(f"test.{name}", operands, {}, symbolic)
        h.close(np.asarray(relay.compile(module, cache_dir=tmp_path)(*operands)), wanted, {"float32": 1e-4})
        # The gradient of a sum with weights that differ: of the squares.
        result = module.functions["main"].body
        squares = Call(OpRef("multiply"), (result, result))
        squared = Module({"main": replace(module.functions["main"], body=squares)})
        way = relay.grad(squared, argnums=floats)
        got, meant = relay.compile(way, cache_dir=tmp_path)(*operands), relay.evaluate(way, *operands)
        for g, w in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, meant)), strict=True):
            h.close(np.asarray(g), np.asarray(w), {"float32": 1e-4})


def test_what_goes_around_is_a_product() -> None:
    """Neither the way forward nor a gradient divides by the period for each term of its sums."""
    shapes = ((96,), (32, 96))
    assert all("matrix" in v for v in variants("test.circulant", shapes))
    for n in range(2):
        bodies = stages_of(f"test.circulant.vjp{n}", [*shapes, shapes[1]], {})
        sums = [b for b in bodies if isinstance(b, te.Reduce)]
        products = [b for b in sums if isinstance(b.body, te.Binary) and b.body.op == "mul"]
        assert len(products) == 1 and not any(isinstance(x, te.Select) for x in walk(products[0]))
        assert not any(isinstance(x, te.Binary) and x.op in ("mod", "floordiv") for b in sums for x in walk(b))


def test_nested_remainders_are_classes() -> None:
    """Each element of a pixel shuffle comes from one place: no sum, no search."""
    bodies = stages_of("test.unshuffled.vjp0", [(2, 3, 5, 7), (2, 12, 3, 4)], {})
    assert not any(isinstance(b, te.Reduce) for b in bodies)
