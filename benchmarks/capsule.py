"""Capsule convolution from one expression, forward and both gradients, beside PyTorch: one conv2d for each row of the capsules (as it is
usually composed), and one conv2d in all with permutations around it.

    python benchmarks/capsule.py [--threads 1] [--shape 1 32 32 14 3 4]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from table import Table, add_out

import relay
from relay import te

STRIDE = 2


@relay.operator("capsule_conv")
def capsule_conv(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """``out[b,k,p,q,i,j]`` is the sum over c, r, s, l of ``data[b,c,2p+r,2q+s,i,l] * weight[k,c,r,s,l,j]``."""
    (n, c, h, w, i, inner), (k, _, r, s, _, j) = data.shape, weight.shape
    o = tuple(te.reduce_axis(d) for d in (c, r, s, inner))
    shape = (n, k, (h - r) // STRIDE + 1, (w - s) // STRIDE + 1, i, j)
    at = lambda p, q: (p * STRIDE + o[1], q * STRIDE + o[2])  # noqa: E731
    return te.compute(shape, lambda b, m, p, q, x, y: te.sum(data[b, o[0], *at(p, q), x, o[3]] * weight[m, *o, y], o))


def median(run: Callable[[], object], rounds: int = 9) -> float:
    run()
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", type=int, nargs=6, default=[1, 32, 32, 14, 3, 4], metavar="N")
    add_out(parser)
    args = parser.parse_args()
    b, c, k, h, r, size = args.shape
    text = f"""#[version = "0.0.5"]
    def @main(%a: Tensor[({b}, {c}, {h}, {h}, {size}, {size}), float32],
        %w: Tensor[({k}, {c}, {r}, {r}, {size}, {size}), float32]) {{ capsule_conv(%a, %w) }}"""
    program = relay.parse(text)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((b, c, h, h, size, size)).astype(np.float32)
    w = rng.standard_normal((k, c, r, r, size, size)).astype(np.float32)
    ours: dict[str, Any] = {"forward": relay.compile(program, threads=args.threads)}
    for n, name in enumerate(("data", "weight")):
        ours[name] = relay.compile(relay.grad(program, argnums=n), threads=args.threads)

    import torch

    torch.set_num_threads(args.threads)
    ta, tw = torch.from_numpy(a).requires_grad_(), torch.from_numpy(w).requires_grad_()
    out = (h - r) // STRIDE + 1

    def kernel(weight: Any) -> Any:
        return weight.permute(0, 5, 1, 4, 2, 3).reshape(k * size, c * size, r, r)

    def each_row(data: Any, weight: Any) -> Any:
        rows = [
            torch.nn.functional.conv2d(
                data[:, :, :, :, i].permute(0, 1, 4, 2, 3).reshape(b, c * size, h, h), kernel(weight), stride=STRIDE
            ).reshape(b, k, size, out, out)
            for i in range(size)
        ]
        return torch.stack(rows, 2).permute(0, 1, 4, 5, 2, 3)

    def at_once(data: Any, weight: Any) -> Any:
        x = data.permute(0, 4, 1, 5, 2, 3).reshape(b * size, c * size, h, h)
        y = torch.nn.functional.conv2d(x, kernel(weight), stride=STRIDE)
        return y.reshape(b, size, k, size, out, out).permute(0, 2, 4, 5, 1, 3)

    expected = at_once(ta, tw).detach().numpy()
    assert np.abs(np.asarray(ours["forward"](a, w)) - expected).max() < 1e-4 * np.abs(expected).max() + 1e-3
    print("ms; PyTorch's gradients include its forward pass")
    columns = ["relay", "row by row", "at once"]
    table = Table("capsule", "Capsule convolution from one expression, beside PyTorch's conv2d", "ms", "what", columns)
    for what, exe in ours.items():
        found = {"relay": median(lambda exe=exe: exe(a, w))}  # type: ignore[misc]
        for name, run in (("row by row", each_row), ("at once", at_once)):

            def peer(run: Any = run, what: str = what) -> object:
                if what == "forward":
                    with torch.no_grad():
                        return run(ta, tw).contiguous()
                return torch.autograd.grad(run(ta, tw).sum(), ta if what == "data" else tw)

            found[name] = median(peer)
        print(f"{what:8} " + "   ".join(f"{name} {t:9.3f}" for name, t in found.items()))
        table.add(what, found)
    table.keep(args.out)


if __name__ == "__main__":
    main()
