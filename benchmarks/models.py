"""Models that libraries serve badly (`examples/models.relay`): forward, and with the gradients of all tensors of floats that they are
given, beside JAX and PyTorch eager.

    python benchmarks/models.py [--steps 64] [--programs mamba ctc] [--threads 1] [--out results]

Relay compiles each once for all sizes, widths included, JAX for the sizes at hand. JAX differentiates loops of a known number
of steps only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from entries import Array, Case, letters, main

EXAMPLE = Path(__file__).parents[1] / "examples" / "models.relay"


def scaled(f: Callable[..., Array], *shape: int) -> Array:
    """Weights that keep the size of what they multiply."""
    return (f(*shape) / np.sqrt(shape[-1])).astype(np.float32)


def mamba(n: int, f: Callable[..., Array]) -> list[Array]:
    d, e, r, s = 128, 256, 8, 16
    block = [scaled(f, 2 * e, d), f(e, 1, 4) * 0.5, f(e), scaled(f, r + 2 * s, e), f(e, r) * 0.3, f(e)]
    return [f(n, d), *block, f(e, s) * 0.3, f(e), scaled(f, d, e)]


def rwkv(n: int, f: Callable[..., Array]) -> list[Array]:
    d = 128
    return [f(n, d), f(d), f(d), f(d), *(scaled(f, d, d) for _ in range(4)), f(d), f(d)]


def pointer(n: int, f: Callable[..., Array]) -> list[Array]:
    d, h = 32, 96
    cell = [scaled(f, 4 * h, d), scaled(f, 4 * h, h), f(4 * h) * 0.1]
    return [f(n, d), *cell, scaled(f, h, h), scaled(f, h, h), f(h)]


CASES = {
    "mamba": Case(mamba),
    "rwkv": Case(rwkv),
    "viterbi": Case(lambda n, f: [f(n, 17), f(17, 17)], gradient=False),
    "crf": Case(lambda n, f: [f(n, 17), f(17, 17), letters(n, 17)]),
    "ctc": Case(lambda n, f: [f(n, 40), letters(max(n // 3, 1), 40, 1)]),
    "pointer": Case(pointer, gradient=False),
    "sets": Case(lambda n, f: [f(4 * n, 64), f(16, 64), f(4, 64), *(scaled(f, 64, 64) for _ in range(4))]),
    "equilibrium": Case(
        lambda n, f: [f(n // 8 + 1, 64), scaled(f, 96, 96) * np.float32(0.5), scaled(f, 96, 64)], by_jax=False
    ),
    "depths": Case(lambda n, f: [f(n, 64), f(64), scaled(f, 256, 64), scaled(f, 64, 256)]),
}


def in_jax() -> dict[str, Callable[..., Any]]:
    """The same programs."""
    import jax
    import jax.numpy as jnp

    scan = jax.lax.scan

    def mamba(x: Any, w_in: Any, taps: Any, b_taps: Any, w_x: Any, w_step: Any, b_step: Any, *rest: Any) -> Any:
        decay, skip, w_out = rest
        r, s = w_step.shape[1], decay.shape[1]
        u, z = jnp.split(x @ w_in.T, 2, axis=1)
        padded = jnp.pad(u.T, ((0, 0), (taps.shape[2] - 1, 0)))[None]
        near = jax.lax.conv_general_dilated(padded, taps, (1,), "VALID", feature_group_count=taps.shape[0])[0].T
        u = jax.nn.silu(near + b_taps)
        p = u @ w_x.T
        step, a = jax.nn.softplus(p[:, :r] @ w_step.T + b_step), -jnp.exp(decay)

        def one(h: Any, row: Any) -> Any:
            u, dt, b, c = row[0], row[1][:, None], row[2], row[3]
            h = jnp.exp(dt * a) * h + dt * u[:, None] * b
            return h, (h * c).sum(1)

        y = scan(one, jnp.zeros_like(a), (u, step, p[:, r : r + s], p[:, r + s :]))[1]
        return ((y + u * skip) * jax.nn.silu(z)) @ w_out.T

    def rwkv(x: Any, mix_k: Any, mix_v: Any, mix_r: Any, w_k: Any, w_v: Any, w_r: Any, w_o: Any, *rest: Any) -> Any:
        decay, first = rest
        last = jnp.pad(x, ((1, 0), (0, 0)))[:-1]
        k, v, r = ((x * m + last * (1 - m)) @ w.T for m, w in ((mix_k, w_k), (mix_v, w_v), (mix_r, w_r)))

        def one(s: Any, row: Any) -> Any:
            (num, den, top), (k, v) = s, row
            most = jnp.maximum(top, first + k)
            old, new = jnp.exp(top - most), jnp.exp(first + k - most)
            after = jnp.maximum(top - jnp.exp(decay), k)
            kept, added = jnp.exp(top - jnp.exp(decay) - after), jnp.exp(k - after)
            return (kept * num + added * v, kept * den + added, after), (old * num + new * v) / (old * den + new)

        zero = jnp.zeros_like(first)
        y = scan(one, (zero, zero, jnp.full_like(first, -1e30)), (k, v))[1]
        return (jax.nn.sigmoid(r) * y) @ w_o.T

    def viterbi(scores: Any, moves: Any) -> Any:
        def one(best: Any, row: Any) -> Any:
            both = best[:, None] + moves
            return both.max(0) + row, both.argmax(0)

        best, back = scan(one, scores[0], scores[1:])
        path = scan(lambda last, row: (row[last], row[last]), best.argmax(), back, reverse=True)[1]
        return jnp.append(path, best.argmax()), best.max()

    def crf(scores: Any, moves: Any, labels: Any) -> Any:
        def one(a: Any, row: Any) -> Any:
            return jax.nn.logsumexp(a[:, None] + moves, axis=0) + row, None

        among = jax.nn.logsumexp(scan(one, scores[0], scores[1:])[0])
        return among - scores[jnp.arange(len(labels)), labels].sum() - moves[labels[:-1], labels[1:]].sum()

    def ctc(logits: Any, labels: Any) -> Any:
        size = 2 * len(labels) + 1
        path = jnp.zeros(size, jnp.int32).at[1::2].set(labels)
        skips = (path != 0) & (path != jnp.concatenate([jnp.full(2, -1, jnp.int32), path[:-2]]))
        emitted = jax.nn.log_softmax(logits)[:, path]

        def one(a: Any, row: Any) -> Any:
            two = jnp.pad(a, (2, 0), constant_values=-1e30)
            jumped = jnp.where(skips, two[:-2], -1e30)
            return jax.nn.logsumexp(jnp.stack((a, two[1:-1], jumped)), axis=0) + row, None

        end = scan(one, jnp.where(jnp.arange(size) < 2, emitted[0], -1e30), emitted[1:])[0]
        return -jax.nn.logsumexp(end[-2:])

    def cell(x: Any, state: Any, w: Any, u: Any, b: Any) -> Any:
        i, f, g, o = jnp.split(x @ w.T + state[0] @ u.T + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def pointer(xs: Any, w: Any, u: Any, b: Any, w_key: Any, w_query: Any, v: Any) -> Any:
        zero = jnp.zeros(u.shape[1])

        def read(state: Any, x: Any) -> Any:
            state = cell(x, state, w, u, b)
            return state, state[0]

        state, read_rows = scan(read, (zero, zero), xs)
        keys = read_rows @ w_key.T

        def name(s: Any, _: Any) -> Any:
            x, state, used = s
            state = cell(x, state, w, u, b)
            score = (jnp.tanh(keys + state[0] @ w_query.T) * v).sum(1)
            chosen = jnp.where(used, -1e30, score).argmax()
            return (xs[chosen], state, used.at[chosen].set(True)), chosen

        start = jnp.zeros(xs.shape[1]), state, jnp.zeros(len(xs), bool)
        return scan(name, start, None, length=len(xs))[1]

    def reads(x: Any, y: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
        heads = x.shape[1] // 8
        q, k, v = (t.reshape(len(t), heads, 8).transpose(1, 0, 2) for t in (x @ w_q.T, y @ w_k.T, y @ w_v.T))
        o = jax.nn.softmax(q @ k.transpose(0, 2, 1) * 8**-0.5) @ v
        h = x @ w_q.T + o.transpose(1, 0, 2).reshape(x.shape)
        return h + jax.nn.relu(h @ w_o.T)

    def sets(x: Any, inducing: Any, seeds: Any, *w: Any) -> Any:
        return reads(seeds, reads(x, reads(inducing, x, *w), *w), *w)

    def equilibrium(x: Any, w: Any, u: Any) -> Any:
        given = x @ u.T

        def one(s: Any) -> Any:
            z = jnp.tanh(s[0] @ w.T + given)
            moves = (jnp.abs(z - s[0]).max() > 1e-4) & (s[1] < 100)
            return z, s[1] + moves, moves

        return jax.lax.while_loop(lambda s: s[2], one, (jnp.zeros_like(given), 0, True))[:2]

    def depths(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        best, place = jax.lax.top_k(x @ router, (len(x) + 1) // 2)
        y = (jax.nn.gelu(x[place] @ w1.T, approximate=False) @ w2.T) * jax.nn.sigmoid(best)[:, None]
        return x.at[place].add(y)

    found = (mamba, rwkv, viterbi, crf, ctc, pointer, sets, equilibrium, depths)
    return {f.__name__: f for f in found}


def in_torch() -> dict[str, Callable[..., Any]]:
    """The same programs in PyTorch, with what it has ready for them."""
    import torch
    from torch.nn import functional as F

    def mamba(x: Any, w_in: Any, taps: Any, b_taps: Any, w_x: Any, w_step: Any, b_step: Any, *rest: Any) -> Any:
        decay, skip, w_out = rest
        r, s = w_step.shape[1], decay.shape[1]
        u, z = (x @ w_in.T).chunk(2, 1)
        u = F.silu(F.conv1d(F.pad(u.T, (taps.shape[2] - 1, 0))[None], taps, groups=len(taps))[0].T + b_taps)
        p = u @ w_x.T
        step, b, c = F.softplus(p[:, :r] @ w_step.T + b_step), p[:, r : r + s], p[:, r + s :]
        kept = torch.exp(-step[:, :, None] * torch.exp(decay))
        new = (step * u)[:, :, None] * b[:, None]
        h, rows = torch.zeros_like(decay), []
        for t in range(len(x)):
            h = kept[t] * h + new[t]
            rows.append(h @ c[t])
        return ((torch.stack(rows) + u * skip) * F.silu(z)) @ w_out.T

    def rwkv(x: Any, mix_k: Any, mix_v: Any, mix_r: Any, w_k: Any, w_v: Any, w_r: Any, w_o: Any, *rest: Any) -> Any:
        decay, first = rest
        last = F.pad(x, (0, 0, 1, 0))[:-1]
        k, v, r = ((x * m + last * (1 - m)) @ w.T for m, w in ((mix_k, w_k), (mix_v, w_v), (mix_r, w_r)))
        age, num, den, top, rows = torch.exp(decay), *(torch.zeros_like(first),) * 2, torch.full_like(first, -1e30), []
        for t in range(len(x)):
            most = torch.maximum(top, first + k[t])
            old, new = torch.exp(top - most), torch.exp(first + k[t] - most)
            rows.append((old * num + new * v[t]) / (old * den + new))
            after = torch.maximum(top - age, k[t])
            kept, added = torch.exp(top - age - after), torch.exp(k[t] - after)
            num, den, top = kept * num + added * v[t], kept * den + added, after
        return (torch.sigmoid(r) * torch.stack(rows)) @ w_o.T

    def viterbi(scores: Any, moves: Any) -> Any:
        best, back = scores[0], []
        for row in scores[1:]:
            most, place = (best[:, None] + moves).max(0)
            best = most + row
            back.append(place.tolist())
        path = [int(best.argmax())]
        for places in reversed(back):
            path.append(places[path[-1]])
        return torch.tensor(path[::-1]), best.max()

    def crf(scores: Any, moves: Any, labels: Any) -> Any:
        a = scores[0]
        for row in scores[1:]:
            a = torch.logsumexp(a[:, None] + moves, 0) + row
        labels = labels.long()
        here = scores.gather(1, labels[:, None]).sum() + moves[labels[:-1], labels[1:]].sum()
        return torch.logsumexp(a, 0) - here

    def ctc(logits: Any, labels: Any) -> Any:
        sizes = (len(logits),), (len(labels),)
        return F.ctc_loss(logits.log_softmax(-1)[:, None], labels[None].long(), *sizes, reduction="sum")

    def cell(x: Any, state: Any, w: Any, u: Any, b: Any) -> Any:
        i, f, g, o = (x @ w.T + state[0] @ u.T + b).chunk(4, -1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def pointer(xs: Any, w: Any, u: Any, b: Any, w_key: Any, w_query: Any, v: Any) -> Any:
        zero = torch.zeros(1, u.shape[1])
        state, rows, chosen = (zero, zero), [], []
        for x in xs.split(1):
            state = cell(x, state, w, u, b)
            rows.append(state[0])
        keys, x, used = torch.cat(rows) @ w_key.T, torch.zeros(1, xs.shape[1]), torch.zeros(len(xs), dtype=torch.bool)
        for _ in range(len(xs)):
            state = cell(x, state, w, u, b)
            score = (torch.tanh(keys + state[0] @ w_query.T) * v).sum(1).masked_fill(used, -1e30)
            chosen.append(int(score.argmax()))
            used[chosen[-1]], x = True, xs[chosen[-1]][None]
        return torch.tensor(chosen)

    def reads(x: Any, y: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
        heads = x.shape[1] // 8
        q, k, v = (t.view(1, len(t), heads, 8).transpose(1, 2) for t in (x @ w_q.T, y @ w_k.T, y @ w_v.T))
        h = x @ w_q.T + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return h + F.relu(h @ w_o.T)

    def sets(x: Any, inducing: Any, seeds: Any, *w: Any) -> Any:
        return reads(seeds, reads(x, reads(inducing, x, *w), *w), *w)

    def equilibrium(x: Any, w: Any, u: Any) -> Any:
        given, steps = x @ u.T, 0
        z = torch.zeros_like(given)
        while True:
            before, z = z, torch.tanh(z @ w.T + given)
            if not (float((z - before).abs().max()) > 1e-4 and steps < 100):
                return z, steps
            steps += 1

    def depths(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        best, place = (x @ router).topk((len(x) + 1) // 2)
        y = (F.gelu(x[place] @ w1.T) @ w2.T) * torch.sigmoid(best)[:, None]
        return x.index_add(0, place, y)

    found = (mamba, rwkv, viterbi, crf, ctc, pointer, sets, equilibrium, depths)
    return {f.__name__: f for f in found}


if __name__ == "__main__":
    main(__doc__, EXAMPLE, CASES, in_jax, in_torch)
