"""Operators that nobody has, each one expression: forward, and with the gradients of all operands, beside the composition that a person
would write in PyTorch (eager).

    python benchmarks/novel_operators.py [--only butterfly,subpixel] [--seconds 0.5] [--out results]

Their indices are quotients, remainders, magnitudes, squares and turned bits, they multiply three tensors, go round edges, or select
places that a tensor says: what is derived from them are ordinary products, gathers and sums all the same. One thread; the fastest of
some calls, in turns; float32.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from machine import fastest  # noqa: E402
from novel_definitions import (  # noqa: E402
    butterfly,
    chebyshev,
    complex_product,
    distance_attention,
    frames,
    kronecker,
    outer_mean,
    overlapped,
    packed_form,
    power_spectrum,
    quaternion,
    reflected,
    rotary,
    segment_softmax,
    sorting_network,
    subpixel,
    tensor_train,
    torus,
    triangle,
    turned_bits,
)
from table import Table, add_out  # noqa: E402

import relay  # noqa: E402
from relay import te  # noqa: E402


@dataclass(frozen=True)
class Novel:
    """An operator, the same in PyTorch, and the shapes of its operands; one of integers below ``indices`` is in the second place.
    ``unknown``: the shapes as Relay is told them, if some sizes are to be unknown."""

    define: Callable[..., te.Tensor]
    composed: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    indices: int | None = None
    unknown: Sequence[str] | None = None


def butterfly_of(x: Any, w: Any) -> Any:
    other = x.reshape(x.shape[0], -1, 2, 4).flip(2).reshape(x.shape)
    return x * w[:, 0] + other * w[:, 1]


def reflected_of(x: Any) -> Any:
    p = F.pad(x[None], (1, 1, 1, 1), mode="reflect")[0]
    step = p[:, 2:, 1:-1] + p[:, :-2, 1:-1] + p[:, 1:-1, 2:] + p[:, 1:-1, :-2] - 4 * x
    return torch.sqrt(step * step + 1e-3).sum((1, 2))


def quaternion_of(x: Any, w: Any) -> Any:
    a, b = [x[..., n] for n in range(4)], [w[..., n].T for n in range(4)]
    parts = (
        a[0] @ b[0] - a[1] @ b[1] - a[2] @ b[2] - a[3] @ b[3], a[0] @ b[1] + a[1] @ b[0] + a[2] @ b[3] - a[3] @ b[2],
        a[0] @ b[2] - a[1] @ b[3] + a[2] @ b[0] + a[3] @ b[1], a[0] @ b[3] + a[1] @ b[2] - a[2] @ b[1] + a[3] @ b[0],
    )  # fmt: skip
    return torch.stack(parts, -1)


def tensor_train_of(x: Any, a: Any, b: Any) -> Any:
    part = torch.einsum("npq,pxr->nqxr", x.reshape(x.shape[0], a.shape[0], b.shape[1]), a)
    return torch.einsum("nqxr,rqy->nxy", part, b).reshape(x.shape[0], -1)


def kronecker_of(a: Any, b: Any, x: Any) -> Any:
    return (a @ (x.reshape(-1, a.shape[1], b.shape[1]) @ b.T)).reshape(x.shape[0], -1)


def chebyshev_of(x: Any, w: Any) -> Any:
    k = torch.arange(w.shape[2]).to(x)
    return torch.einsum("bik,iok->bo", torch.cos(k * torch.acos(torch.tanh(x) * 0.999)[..., None]), w)


def segment_softmax_of(x: Any, ids: Any, like: Any) -> Any:
    top = torch.full_like(like, -1e4).scatter_reduce(0, ids, x, "amax")
    e = torch.exp(x - top[ids])
    return e / torch.zeros_like(like).index_add(0, ids, e)[ids]


def torus_of(x: Any) -> Any:
    return sum(torch.roll(x, step, axis) for step in (1, -1) for axis in (0, 1)) - 4 * x


def rotary_of(x: Any) -> Any:
    n, _, d = x.shape
    angle = (torch.arange(n)[:, None] * torch.exp(torch.arange(d // 2) * (-16.0 / d))).repeat_interleave(2, 1)[:, None]
    other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    return x * torch.cos(angle) + other * torch.sin(angle)


def overlapped_of(x: Any) -> Any:
    c, _, _, p, q = x.shape
    return F.fold(x.reshape(1, c * 9, p * q), (2 * p + 1, 2 * q + 1), 3, stride=2)[0]


def packed_form_of(x: Any, p: Any) -> Any:
    i = torch.arange(x.shape[1])
    high, low = torch.maximum(i[:, None], i), torch.minimum(i[:, None], i)
    return ((x @ p[high * (high + 1) // 2 + low]) * x).sum(1)


def distance_attention_of(q: Any, k: Any, v: Any) -> Any:
    heads, n, d = q.shape
    i = torch.arange(n)
    slope = 2.0 ** -(torch.arange(heads) + 1)
    scores = q @ k.transpose(1, 2) / d**0.5 - slope[:, None, None] * (i[:, None] - i)
    return torch.softmax(scores.masked_fill(i > i[:, None], -1e30), -1) @ v


def power_spectrum_of(x: Any, w: Any) -> Any:
    found = torch.fft.rfft(x.unfold(0, w.shape[0], 3) * w)
    return found.real**2 + found.imag**2


def frames_of(x: Any, w: Any, hop: Any) -> Any:
    return x.unfold(0, w.shape[0], hop.shape[0]) * w


def turned_bits_of(x: Any, w: Any) -> Any:
    i = torch.arange(x.shape[1])
    return x[:, i ^ 1] * w + x[:, i ^ 4] * w[i ^ 1]


OPERATORS = {
    "butterfly": Novel(butterfly, butterfly_of, [(256, 1024), (1024, 2)]),
    "variation with reflection": Novel(reflected, reflected_of, [(16, 256, 256)]),
    "subpixel convolution": Novel(
        subpixel, lambda x, w: F.pixel_shuffle(F.conv2d(x[None], w, padding=1), 2)[0], [(32, 32, 32), (32, 32, 3, 3)]
    ),
    "outer product mean": Novel(
        outer_mean,
        lambda a, b, w: torch.einsum("sic,sjd,cdz->ijz", a, b, w),
        [(32, 32, 16), (32, 32, 16), (16, 16, 32)],
    ),
    "tensor train layer": Novel(tensor_train, tensor_train_of, [(64, 512), (16, 16, 8), (8, 32, 32)]),
    "Kronecker product": Novel(kronecker, kronecker_of, [(32, 32), (32, 32), (32, 1024)]),
    "quaternion product": Novel(quaternion, quaternion_of, [(64, 128, 4), (128, 128, 4)]),
    "Chebyshev layer": Novel(chebyshev, chebyshev_of, [(256, 64), (64, 64, 6)]),
    "segment softmax": Novel(segment_softmax, segment_softmax_of, [(100_000,), (100_000,), (5_000,)], 5_000),
    "difference on a torus": Novel(torus, torus_of, [(1024, 1024)]),
    "gated triangle product": Novel(
        triangle, lambda a, b: torch.einsum("ikc,jkc->ijc", torch.sigmoid(a), b), [(64, 64, 64), (64, 64, 64)]
    ),
    "rotary angles": Novel(rotary, rotary_of, [(512, 8, 64)]),
    "overlapping windows": Novel(overlapped, overlapped_of, [(64, 3, 3, 32, 32)]),
    "complex product": Novel(
        complex_product,
        lambda a, b: torch.view_as_real(torch.view_as_complex(a) @ torch.view_as_complex(b)),
        [(128, 128, 2), (128, 128, 2)],
    ),
    "packed quadratic form": Novel(packed_form, packed_form_of, [(64, 32), (528,)]),
    "turned bits": Novel(turned_bits, turned_bits_of, [(256, 1024), (1024,)]),
    "attention by distance": Novel(distance_attention, distance_attention_of, [(8, 128, 64)] * 3),
    "power spectrum": Novel(power_spectrum, power_spectrum_of, [(728,), (128,)]),
    "frames of any hop": Novel(frames, frames_of, [(20_004,), (8,), (4,)], unknown=["(n,)", "(8,)", "(s,)"]),
    "sorting network": Novel(sorting_network, lambda x: x.sort(1)[0], [(4096, 8)]),
}


def measured(novel: Novel, seconds: float, gradients: bool) -> dict[str, float]:
    """Microseconds of both, which have to agree."""
    rng = np.random.default_rng(0)
    arrays: list[Any] = [rng.standard_normal(s).astype(np.float32) for s in novel.shapes]
    if novel.indices is not None:
        arrays[1] = rng.integers(0, novel.indices, novel.shapes[1])
    by = tuple(n for n, a in enumerate(arrays) if a.dtype == np.float32)
    shapes = novel.unknown or [f"({', '.join(map(str, a.shape))},)" for a in arrays]
    dims = sorted(set(re.findall("[a-z]", "".join(shapes))))
    params = ", ".join(f"%a{n}: Tensor[{shapes[n]}, {a.dtype}]" for n, a in enumerate(arrays))
    call = f"novel.op({', '.join(f'%a{n}' for n in range(len(arrays)))})"
    body = f"let %y = {call}; sum(%y * %y)" if gradients else call
    types = f"[{', '.join(f'{d}: Dim' for d in dims)}]" if dims else ""
    module = relay.parse(f'#[version = "0.0.5"]\ndef @main{types}({params}) {{ {body} }}')
    exe = relay.compile(relay.grad(module, argnums=by) if gradients else module, threads=1)
    ours = [relay.Tensor.from_numpy(a) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=gradients and n in by) for n, a in enumerate(arrays)]

    def composed() -> Any:
        y = novel.composed(*theirs)
        if not gradients:
            return y
        return torch.autograd.grad((y * y).sum(), [theirs[n] for n in by], materialize_grads=True)

    found, wanted = exe(*ours), composed()
    for f, w in zip(found if isinstance(found, tuple) else (found,), wanted if gradients else (wanted,), strict=True):
        np.testing.assert_allclose(
            np.asarray(f), w.detach().numpy(), rtol=2e-3, atol=2e-3 * float(w.detach().abs().max())
        )
    best = [min(fastest(run, seconds / 3) for _ in range(3)) for run in (lambda: exe(*ours), composed)]
    return {"relay": best[0] * 1e6, "torch": best[1] * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", default=",".join(OPERATORS), help="of these, by name")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each system and row")
    add_out(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("novel_operators", "Operators of one expression, 1 thread", "us", "operator", ["relay", "torch"])
    print(table.head())
    for name in args.only.split(","):
        relay.operator("novel.op")(OPERATORS[name].define)
        for gradients in (False, True):
            figures = measured(OPERATORS[name], args.seconds, gradients)
            print(table.add(f"{name}, gradient" if gradients else name, figures), flush=True)
    table.keep(args.out)


if __name__ == "__main__":
    main()
