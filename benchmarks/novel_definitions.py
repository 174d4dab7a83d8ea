"""Operators that nobody has, each one expression: `novel_operators.py` measures them, tests differentiate and plan them."""

from __future__ import annotations

import math
from typing import Any

from relay import te


def butterfly(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda b, i: x[b, i] * w[i, 0] + x[b, i // 8 * 8 + (i + 4) % 8] * w[i, 1])


def reflected(x: te.Tensor) -> te.Tensor:
    c, h, w = x.shape
    a, b = te.reduce_axis(h), te.reduce_axis(w)

    def at(i: Any, n: Any) -> Any:
        return (te.size(n) - 1) - te.abs((te.size(n) - 1) - te.abs(i))

    def body(m: Any, i: Any, j: Any) -> Any:
        beside = x[m, at(i + 1, h), j] + x[m, at(i - 1, h), j] + x[m, i, at(j + 1, w)] + x[m, i, at(j - 1, w)]
        step = beside - 4.0 * x[m, i, j]
        return te.sqrt(step * step + 1e-3)

    steps = te.compute(x.shape, body)
    return te.compute((c,), lambda m: te.sum(steps[m, a, b], (a, b)))


def subpixel(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    sizes: Any = x.shape
    c, height, width = sizes
    outs: Any = w.shape[0]
    k, r, s = te.reduce_axis(c), te.reduce_axis(3), te.reduce_axis(3)

    def at(m: Any, i: Any, j: Any) -> Any:
        return te.select((i >= 0) & (i < te.size(height)) & (j >= 0) & (j < te.size(width)), x[m, i, j], 0.0)

    return te.compute(
        (outs // 4, 2 * height, 2 * width),
        lambda o, y, z: te.sum(
            at(k, y // 2 + r - 1, z // 2 + s - 1) * w[o * 4 + y % 2 * 2 + z % 2, k, r, s], (k, r, s)
        ),
    )


def outer_mean(a: te.Tensor, b: te.Tensor, w: te.Tensor) -> te.Tensor:
    s, n, c = a.shape
    q, d, e = te.reduce_axis(s), te.reduce_axis(c), te.reduce_axis(c)
    return te.compute((n, n, w.shape[2]), lambda i, j, z: te.sum(a[q, i, d] * b[q, j, e] * w[d, e, z], (q, d, e)))


def tensor_train(x: te.Tensor, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A dense layer whose weight is a train of two tensors: its rows and its columns are numbered by quotient and remainder."""
    sizes: Any = b.shape
    rank, rows, columns = sizes
    i, r = te.reduce_axis(x.shape[1]), te.reduce_axis(rank)

    def element(n: Any, o: Any) -> Any:
        return te.sum(x[n, i] * a[i // rows, o // columns, r] * b[r, i % rows, o % columns], (i, r))

    return te.compute((x.shape[0], a.shape[1] * columns), element)


def kronecker(a: te.Tensor, b: te.Tensor, x: te.Tensor) -> te.Tensor:
    """The Kronecker product of two matrices, times each row of a third."""
    sizes: Any = b.shape
    p, q = sizes
    k = te.reduce_axis(x.shape[1])
    return te.compute(
        (x.shape[0], a.shape[0] * p), lambda n, o: te.sum(a[o // p, k // q] * b[o % p, k % q] * x[n, k], k)
    )


def quaternion(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    k, p = te.reduce_axis(x.shape[1]), te.reduce_axis(4)

    def other(c: Any) -> Any:
        return (p // 2 + c // 2) % 2 * 2 + (p % 2 + c % 2) % 2

    def sign(c: Any) -> Any:
        q = other(c)
        turns = (p.equal(1) & q.equal(3)) | (p.equal(2) & q.equal(1)) | (p.equal(3) & q.equal(2))
        return te.select(((p > 0) & p.equal(q)) | turns, -1.0, te.const(1.0, x.dtype))

    shape = (x.shape[0], w.shape[0], 4)
    return te.compute(shape, lambda i, j, c: te.sum(sign(c) * x[i, k, p] * w[j, k, other(c)], (k, p)))


def chebyshev(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    i, k = te.reduce_axis(w.shape[0]), te.reduce_axis(w.shape[2])

    def basis(b: Any) -> Any:
        return te.cos(te.cast(k, x.dtype) * te.acos(te.tanh(x[b, i]) * 0.999))

    return te.compute((x.shape[0], w.shape[1]), lambda b, o: te.sum(basis(b) * w[i, o, k], (i, k)))


def segment_softmax(x: te.Tensor, ids: te.Tensor, like: te.Tensor) -> te.Tensor:
    k, n = te.reduce_axis(x.shape[0]), te.reduce_axis(x.shape[0])

    def of(i: Any) -> Any:
        return te.cast(ids[i], "int64")

    top = te.compute(like.shape, lambda s: te.max(te.select(of(k).equal(s), x[k], -1e4), k))
    e = te.compute(x.shape, lambda i: te.exp(x[i] - top[of(i)]))
    total = te.compute(like.shape, lambda s: te.sum(te.select(of(n).equal(s), e[n], 0.0), n))
    return te.compute(x.shape, lambda i: e[i] / total[of(i)])


def sorting_network(x: te.Tensor) -> te.Tensor:
    for step in range(8):

        def body(n: Any, i: Any, x: te.Tensor = x, step: int = step) -> Any:
            low, high = te.maximum(i - 1, 0), te.minimum(i + 1, 7)
            first = ((i + step) % 2).equal(0)
            return te.select(first, te.minimum(x[n, i], x[n, high]), te.maximum(x[n, low], x[n, i]))

        x = te.compute(x.shape, body)
    return x


def torus(x: te.Tensor) -> te.Tensor:
    """What the neighbours at both sides along both axes have more than an element, round the edges."""
    h, w = x.shape

    def element(i: Any, j: Any) -> Any:
        beside = x[i, (j + 1) % te.size(w)] + x[i, (j - 1) % te.size(w)]
        return x[(i + 1) % te.size(h), j] + x[(i - 1) % te.size(h), j] + beside - 4.0 * x[i, j]

    return te.compute(x.shape, element)


def triangle(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A product of matrices for each channel, of one of them through a gate."""
    n, m, c = a.shape
    k = te.reduce_axis(m)
    return te.compute((n, b.shape[0], c), lambda i, j, e: te.sum(te.sigmoid(a[i, k, e]) * b[j, k, e], k))


def rotary(x: te.Tensor) -> te.Tensor:
    """Neighbouring channels turned by an angle of their row, the same in all heads, computed where it is used."""
    sizes: Any = x.shape
    half = sizes[2] // 2

    def element(i: Any, h: Any, e: Any) -> Any:
        angle = te.cast(i, "float32") * te.exp(te.cast(e // 2, "float32") * (-8.0 / float(half)))
        other = x[i, h, e + 1 - 2 * (e % 2)]
        return x[i, h, e] * te.cos(angle) + te.select((e % 2).equal(0), -other, other) * te.sin(angle)

    return te.compute(x.shape, element)


def overlapped(x: te.Tensor) -> te.Tensor:
    """Windows of 3 x 3 at every second place of a plane, added up."""
    sizes: Any = x.shape
    c, _, _, p, q = sizes
    r, s = te.reduce_axis(3), te.reduce_axis(3)

    def element(m: Any, y: Any, z: Any) -> Any:
        a, b = y - r, z - s
        hit = (a % 2).equal(0) & (b % 2).equal(0) & (a >= 0) & (b >= 0) & (a // 2 < te.size(p)) & (b // 2 < te.size(q))
        return te.sum(te.select(hit, x[m, r, s, a // 2, b // 2], 0.0), (r, s))

    return te.compute((c, 2 * p + 1, 2 * q + 1), element)


def complex_product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """The product of matrices of complex numbers, which are pairs."""
    k = te.reduce_axis(a.shape[1])

    def element(i: Any, j: Any, part: Any) -> Any:
        re = te.sum(a[i, k, 0] * b[k, j, 0] - a[i, k, 1] * b[k, j, 1], k)
        im = te.sum(a[i, k, 0] * b[k, j, 1] + a[i, k, 1] * b[k, j, 0], k)
        return te.select(part.equal(0), re, im)

    return te.compute((a.shape[0], b.shape[1], 2), element)


def packed_form(x: te.Tensor, p: te.Tensor) -> te.Tensor:
    """The quadratic forms of a symmetric matrix of which the lower triangle is kept, row behind row."""
    n, d = x.shape
    a, b = te.reduce_axis(d), te.reduce_axis(d)
    high, low = te.maximum(a, b), te.minimum(a, b)
    return te.compute((n,), lambda i: te.sum(x[i, a] * p[high * (high + 1) // 2 + low] * x[i, b], (a, b)))


def turned_bits(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Each element with those whose place differs in one bit."""
    return te.compute(x.shape, lambda b, i: x[b, i ^ 1] * w[i] + x[b, i ^ 4] * w[i ^ 1])


def distance_attention(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
    """Causal attention whose scores fall with the distance, by half as much for each head after the first."""
    sizes: Any = q.shape
    heads, n, d = sizes
    c, m, s, o = (te.reduce_axis(e) for e in (d, n, n, n))

    def score(h: Any, i: Any, j: Any) -> Any:
        near = te.sum(q[h, i, c] * k[h, j, c], c) / te.sqrt(te.size(d, q.dtype))
        return te.select(j <= i, near - te.exp2(te.cast(-(h + 1), q.dtype)) * te.cast(i - j, q.dtype), -1e30)

    scores = te.compute((heads, n, n), score)
    top = te.compute((heads, n), lambda h, i: te.max(scores[h, i, m], m))
    grown = te.compute(scores.shape, lambda h, i, j: te.exp(scores[h, i, j] - top[h, i]))
    total = te.compute(top.shape, lambda h, i: te.sum(grown[h, i, s], s))
    return te.compute(sizes, lambda h, i, e: te.sum(grown[h, i, o] / total[h, i] * v[h, o, e], o))


def frames(x: te.Tensor, w: te.Tensor, hop: te.Tensor) -> te.Tensor:
    """Windows of a signal under a taper, as far apart as a tensor is long."""
    sizes: Any = (x.shape[0], w.shape[0], hop.shape[0])
    n, length, step = sizes
    shape: Any = ((n - length) // step + 1, length)
    return te.compute(shape, lambda m, r: x[m * te.size(step) + r] * w[r])


def power_spectrum(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """The power of each frequency in windows of a signal, a third of a window's length apart, under a taper."""
    sizes: Any = w.shape
    (length,) = sizes
    k, m = te.reduce_axis(length), te.reduce_axis(length)

    def angle(a: Any, f: Any) -> Any:
        return te.cast(a * f, x.dtype) * (2 * math.pi) / te.size(length, x.dtype)

    shape: Any = ((x.shape[0] - length) // 3 + 1, length // 2 + 1)
    real = te.compute(shape, lambda t, f: te.sum(x[3 * t + k] * w[k] * te.cos(angle(k, f)), k))
    other = te.compute(shape, lambda t, f: te.sum(x[3 * t + m] * w[m] * te.sin(angle(m, f)), m))
    return te.compute(shape, lambda t, f: real[t, f] * real[t, f] + other[t, f] * other[t, f])
