"""An LSTM over sequences that are lists of their steps, beside the same over tensors, and many sequences of different lengths in the ways
that there are to run them, in one run, in turns.

    python benchmarks/lists.py [--sizes 300x512,64x64] [--layers] [--requests 32] [--threads 1] [--rounds 9]

Microseconds a step. ``list`` and ``tensor``: one sequence after the other; ``list grad``, ``tensor grad``: with the gradients of the
weights. ``list batch``: all of them by `run_batch`, as lists; ``tensor batch``: as tensors; ``padded``: as one tensor, with
their lengths. PyTorch's, if it is there: packed, as it sorts them itself. ``peak``: the multiply-adds alone, at the machine's peak. With
``--layers`` other programs over tensors, one after the other and in one batch: two layers; ten shares for each step, of one layer and of
one in each direction; attention over the steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

_threads = argparse.ArgumentParser(add_help=False)
_threads.add_argument("--threads", type=int, default=1)
_known, _ = _threads.parse_known_args()
os.environ["OMP_NUM_THREADS"] = str(_known.threads)

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from turns import PAUSE, medians  # noqa: E402

import relay  # noqa: E402
from relay.view import limits  # noqa: E402

Array = npt.NDArray[np.float32]
Call = Callable[[], object]

WEIGHTS = "%w: Tensor[(4*h, d), float32], %u: Tensor[(4*h, h), float32], %b: Tensor[(4*h,), float32]"
HEAD = """#[version = "0.0.5"]
import nn
import prelude
"""
LISTED = f"""def @f[d: Dim, h: Dim](%xs: List[Tensor[(1, d), float32]], %z: Tensor[(1, h), float32], {WEIGHTS})
    -> Tensor[(1, h), float32] {{
  let %cell = @lstm_cell(%w, %u, %b);
  @foldl(fn (%s: (Tensor[(1, h), float32], Tensor[(1, h), float32]), %x: Tensor[(1, d), float32]) {{ %cell(%x, %s) }}, (%z, %z), %xs).0
}}
"""
STACKED = f"""def @f[t: Dim, d: Dim, h: Dim](%xs: Tensor[(t, 1, d), float32], %z: Tensor[(1, h), float32], {WEIGHTS})
    -> Tensor[(1, h), float32] {{
  @lstm(%xs, (%z, %z), %w, %u, %b).1.0
}}
"""
PADDED = f"""def @f[t: Dim, n: Dim, d: Dim, h: Dim](%xs: Tensor[(t, n, d), float32], %lengths: Tensor[(n,), int64],
    %z: Tensor[(n, h), float32], {WEIGHTS}) -> Tensor[(n, h), float32] {{
  @forwards_to(@lstm_cell(%w, %u, %b), @choose_two, @first_state, %lengths, %xs, (%z, %z)).1.0
}}
"""
GRADIENT = f"""def @main{{sizes}}(%xs: {{type}}, %z: Tensor[(1, h), float32], {WEIGHTS}) {{{{
  grad(fn ({WEIGHTS}) {{{{ sum(@f(%xs, %z, %w, %u, %b)) }}}})(%w, %u, %b)
}}}}
"""

LAYERS = {
    "two layers": ("Tensor[(1, h), float32]", "@lstm(@lstm(%xs, (%z, %z), %w, %u, %b).0, (%z, %z), %w2, %u, %b).1.0"),
    "shares": ("Tensor[(t, 1, 10), float32]", "nn.softmax(nn.dense(@lstm(%xs, (%z, %z), %w, %u, %b).0, %o), axis=-1)"),
    "shares, both directions": (
        "Tensor[(t, 1, 10), float32]",
        """let %f = @lstm(%xs, (%z, %z), %w, %u, %b).0;
  let %g = @backwards(@lstm_cell(%w, %u, %b), @first_state, %xs, (%z, %z)).0;
  nn.softmax(nn.dense(concatenate((%f, %g), axis=2), %p), axis=-1)""",
    ),
    "attention": (
        "Tensor[(1, h), float32]",
        """let %all = @lstm(%xs, (%z, %z), %w, %u, %b).0;
  sum(%all * nn.softmax(sum(%all * %q, axis=[2], keepdims=True), axis=0), axis=[0])""",
    ),
}


def layered(name: str, d: int, h: int, lengths: Sequence[int], threads: int) -> dict[str, Call]:
    """A program over tensors, one sequence after the other and all in one batch."""
    rng = np.random.default_rng(0)
    shapes = {
        "w": (4 * h, d),
        "u": (4 * h, h),
        "b": (4 * h,),
        "w2": (4 * h, h),
        "o": (10, h),
        "p": (10, 2 * h),
        "q": (1, h),
    }
    weights = {n: (rng.standard_normal(shape) * 0.1).astype(np.float32) for n, shape in shapes.items()}
    given = ", ".join(f"%{n}: Tensor[({', '.join(map(str, v.shape))},), float32]" for n, v in weights.items())
    result, body = LAYERS[name]
    text = f"""def @main[t: Dim](%xs: Tensor[(t, 1, {d}), float32], %z: Tensor[(1, {h}), float32], {given})
    -> {result.replace("h)", f"{h})")} {{
  {body}
}}
"""
    exe = relay.compile(relay.infer_type(relay.parse(HEAD + text)).bind(weights), threads=threads)
    z = np.zeros((1, h), np.float32)
    requests = [
        exe.signature().arguments(((rng.standard_normal((n, 1, d)) * 0.1).astype(np.float32), z)) for n in lengths
    ]
    return {
        "one by one": lambda: [exe(*r) for r in requests],
        "batch": lambda: exe.run_batch("main", requests),
    }


def calls(d: int, h: int, lengths: Sequence[int], threads: int) -> dict[str, Call]:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    weights = dict(zip("wub", (draw(4 * h, d), draw(4 * h, h), draw(4 * h)), strict=True))
    xs, z = [draw(n, 1, d) for n in lengths], np.zeros((1, h), np.float32)

    def compiled(text: str) -> Any:
        module = relay.infer_type(relay.parse(HEAD + text.replace("@f[", "@main[")))
        return relay.compile(module.bind(weights), threads=threads)

    def gradient(text: str, sizes: str, kind: str) -> Any:
        return relay.compile(relay.parse(HEAD + text + GRADIENT.format(sizes=sizes, type=kind)), threads=threads)

    lists, tensors, padded = map(compiled, (LISTED, STACKED, PADDED))
    list_grad = gradient(LISTED, "[d: Dim, h: Dim]", "List[Tensor[(1, d), float32]]")
    tensor_grad = gradient(STACKED, "[t: Dim, d: Dim, h: Dim]", "Tensor[(t, 1, d), float32]")

    def values(exe: Any, rows: Sequence[object], *rest: object) -> list[Any]:
        return [exe.signature().arguments((x, z, *rest)) for x in rows]

    steps, given = [list(x) for x in xs], tuple(weights.values())
    listed, stacked = values(lists, steps), values(tensors, xs)
    listed_too, stacked_too = values(list_grad, steps, *given), values(tensor_grad, xs, *given)
    whole = np.zeros((max(lengths), len(xs), d), np.float32)
    for n, x in enumerate(xs):
        whole[: len(x), n] = x[:, 0]
    counts, zeros = np.array(lengths, np.int64), np.zeros((len(xs), h), np.float32)
    found: dict[str, Call] = {
        "list": lambda: [lists(*v) for v in listed],
        "tensor": lambda: [tensors(*v) for v in stacked],
        "list grad": lambda: [list_grad(*v) for v in listed_too],
        "tensor grad": lambda: [tensor_grad(*v) for v in stacked_too],
        "list batch": lambda: lists.run_batch("main", listed),
        "tensor batch": lambda: tensors.run_batch("main", stacked),
        "padded": lambda: padded(whole, counts, zeros),
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch packed"] = in_torch(xs, weights, threads)
    return found


def in_torch(xs: Sequence[Array], weights: dict[str, Array], threads: int) -> Call:
    import torch
    from torch.nn.utils.rnn import pack_sequence

    torch.set_num_threads(threads)
    h, d = weights["u"].shape[1], weights["w"].shape[1]
    layer, given = torch.nn.LSTM(d, h), [torch.from_numpy(x[:, 0]) for x in xs]
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.from_numpy(weights["w"]))
        layer.weight_hh_l0.copy_(torch.from_numpy(weights["u"]))
        layer.bias_ih_l0.copy_(torch.from_numpy(weights["b"]))
        layer.bias_hh_l0.zero_()

    def run() -> object:
        with torch.inference_mode():
            return layer(pack_sequence(given, enforce_sorted=False))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], parents=[_threads])
    parser.add_argument("--sizes", default="300x512,300x150,100x64,64x64", help="words x states")
    parser.add_argument("--layers", action="store_true", help="other programs over tensors")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    lengths = np.clip(np.random.default_rng(0).normal(22, 9, args.requests).astype(int), 6, 45).tolist()
    peak = limits.machine_limits(args.threads).flops
    for size in args.sizes.split(","):
        d, h = map(int, size.split("x"))
        for name in LAYERS if args.layers else ():
            both = medians(layered(name, d, h, lengths, args.threads), args.rounds, {}, turn=0.05)
            each = {how: seconds / sum(lengths) * 1e6 for how, seconds in both.items()}
            print(f"{size:>9}", f"{name}:", *(f"{how} {us:.3g}" for how, us in each.items()), sep="  ", flush=True)
        if args.layers:
            continue
        systems = calls(d, h, lengths, args.threads)
        times = medians(systems, args.rounds, {"torch packed": PAUSE, "list": PAUSE}, turn=0.05)
        each = {name: seconds / sum(lengths) * 1e6 for name, seconds in times.items()}
        each["peak"] = 2 * 4 * h * (d + h) / peak * 1e6
        print(f"{size:>9}", *(f"{name} {us:.3g}" for name, us in each.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
