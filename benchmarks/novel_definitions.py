"""Operators that nobody has, each one expression: `novel_operators.py` measures them, tests differentiate and plan them."""

from __future__ import annotations

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
