"""Forward and backward of operators beside PyTorch (eager; compiled and JAX for the chains), in turns, in one run.

Every system computes ``loss = sum(f(x, w, ...) * g)`` and the gradients of all operands that have one. Ours is
`relay.value_and_grad` of the program as it is written here; no operator has a gradient written by hand. With ``--memory`` the peak
of the process over one call is measured too, in a process for each system.

    python benchmarks/gradients.py [--threads 1] [--batch 1 16] [--only conv,pool] [--rounds 9] [--peers eager compiled jax]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

import relay

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
# Gives the loss and the gradients as arrays.
Run = Callable[[], tuple[Any, ...]]
ROWS = 30522  # of an embedding


@dataclass(frozen=True, slots=True)
class Case:
    """``result`` is a Relay expression of the operands %a, %b, ... (``shapes`` of a batch, in order); ``peer`` the same, of an array
    module (torch) and the operands. Operands of integers (indices below ROWS) end with ``i``."""

    name: str
    shapes: Callable[[int], dict[str, Shape]]
    result: str
    peer: Callable[..., Any]
    jax: Callable[..., Any] | None = None


def _dense_chain(m: Any, x: Any, *weights: Any) -> Any:
    for w in weights[:-1]:
        x = m.relu(x @ w.T)
    return x @ weights[-1].T


def _conv_chain(t: Any, x: Any, *weights: Any) -> Any:
    for w in weights:
        x = t.relu(t.nn.functional.conv2d(x, w, padding=1))
    return x


def _chain_text(call: str, weights: Sequence[str], last: bool) -> str:
    text = "%x"
    for n, w in enumerate(weights):
        text = f"{call.format(x=text, w='%' + w)}"
        text = text if last and n == len(weights) - 1 else f"nn.relu({text})"
    return text


def _conv(data: Shape, weight: Shape, attrs: str, **keywords: Any) -> Case:
    size = "x".join(map(str, weight))
    note = "".join(f" {k}={v}" for k, v in keywords.items() if k != "padding")
    return Case(
        f"conv2d {size}{note}",
        lambda b: {"x": (b, *data), "w": weight},
        f"nn.conv2d(%x, %w{attrs})",
        lambda t, x, w: t.nn.functional.conv2d(x, w, **keywords),
    )


def _one(name: str, shape: Shape, result: str, peer: Callable[..., Any]) -> Case:
    return Case(name, lambda b: {"x": (b, *shape)}, result, peer)


def _capsule_like(b: int) -> dict[str, Shape]:
    return {"q": (b, 8, 128, 64), "k": (b, 8, 128, 64), "v": (b, 8, 128, 64)}


def cases() -> list[Case]:
    dense: dict[str, Shape] = {f"w{n}": (512, 512) for n in range(4)}
    convs: dict[str, Shape] = {f"w{n}": (64, 64, 3, 3) for n in range(3)}
    norm: dict[str, Shape] = {"s": (768,), "o": (768,)}
    return [
        Case("dense 512x512", lambda b: {"x": (b, 512), "w": (512, 512)}, "nn.dense(%x, %w)", lambda t, x, w: x @ w.T),
        Case(
            "dense chain", lambda b: {"x": (b, 512)} | dense, _chain_text("nn.dense({x}, {w})", list(dense), True),
            _dense_chain, _dense_chain,
        ),
        _conv((64, 28, 28), (64, 64, 3, 3), ", padding=[1, 1]", padding=1),
        _conv((64, 28, 28), (128, 64, 3, 3), ", padding=[1, 1], strides=[2, 2]", padding=1, stride=2),
        _conv((64, 28, 28), (128, 64, 1, 1), ""),
        _conv((3, 64, 64), (32, 3, 7, 7), ", padding=[3, 3], strides=[2, 2]", padding=3, stride=2),
        _conv((64, 28, 28), (64, 1, 3, 3), ", padding=[1, 1], groups=64", padding=1, groups=64),
        Case(
            "conv chain", lambda b: {"x": (b, 64, 28, 28)} | convs,
            _chain_text("nn.conv2d({x}, {w}, padding=[1, 1])", list(convs), False), _conv_chain,
        ),
        Case(
            "conv2d_transpose", lambda b: {"x": (b, 64, 14, 14), "w": (64, 32, 4, 4)},
            "nn.conv2d_transpose(%x, %w, strides=[2, 2], padding=[1, 1])",
            lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=2, padding=1),
        ),
        _one("max_pool 2x2/2", (64, 28, 28), "nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2])",
             lambda t, x: t.nn.functional.max_pool2d(x, 2, 2)),
        _one("max_pool 3x3/2", (64, 28, 28), "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1])",
             lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1)),
        _one("avg_pool 3x3/2", (64, 28, 28), "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1])",
             lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        _one("global_avg_pool", (256, 14, 14), "nn.global_avg_pool2d(%x)",
             lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1)),
        _one("global_max_pool", (256, 14, 14), "nn.global_max_pool2d(%x)",
             lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 1)),
        _one("softmax", (64, 768), "nn.softmax(%x)", lambda t, x: x.softmax(-1)),
        _one("log_softmax", (64, 768), "nn.log_softmax(%x)", lambda t, x: x.log_softmax(-1)),
        _one("logsumexp", (64, 768), "logsumexp(%x, axis=[-1])", lambda t, x: x.logsumexp(-1)),
        _one("gelu", (64, 768), "nn.gelu(%x)", lambda t, x: t.nn.functional.gelu(x)),
        Case("layer_norm", lambda b: {"x": (b, 64, 768)} | norm, "nn.layer_norm(%x, %s, %o)",
             lambda t, x, s, o: t.nn.functional.layer_norm(x, (768,), s, o)),
        Case("group_norm", lambda b: {"x": (b, 64, 28, 28), "s": (64,), "o": (64,)},
             "nn.group_norm(%x, %s, %o, num_groups=8)", lambda t, x, s, o: t.nn.functional.group_norm(x, 8, s, o)),
        _one("max over rows", (64, 768), "max(%x, axis=[-1])", lambda t, x: x.amax(-1)),
        _one("prod over rows", (64, 768), "prod(%x, axis=[-1])", lambda t, x: x.prod(-1)),
        _one("cumsum", (64, 768), "cumsum(%x, axis=2)", lambda t, x: x.cumsum(2)),
        Case("embedding", lambda b: {"x": (ROWS, 128), "i": (b, 128)}, "take(%x, %i, axis=0)", lambda t, x, i: x[i]),
        Case("attention", _capsule_like, "nn.attention(%q, %k, %v)",
             lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v)),
        _one("resize2d x2", (32, 28, 28), "image.resize2d(%x, size=[56, 56])",
             lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)),
        _one("upsampling x2", (32, 28, 28), "nn.upsampling(%x, scale_h=2f, scale_w=2f)",
             lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="nearest")),
        _one("pad constant", (32, 28, 28), "nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]])",
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2))),
        _one("pad reflect", (32, 28, 28), 'nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]], pad_mode="reflect")',
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")),
        _one("pad edge", (32, 28, 28), 'nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]], pad_mode="edge")',
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")),
        _one("transpose", (64, 768), "transpose(%x, axes=[0, 2, 1])", lambda t, x: x.transpose(1, 2)),
    ]  # fmt: skip


def program(case: Case, batch: int) -> tuple[relay.Module, list[int]]:
    """``@main(operands..., g) -> loss``, and the numbers of the operands that have a gradient."""
    shapes = case.shapes(batch)

    def typed(name: str, shape: Shape) -> str:
        sizes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        return f"%{name}: Tensor[({sizes}), {'int32' if name.endswith('i') else 'float32'}]"

    params = [typed(n, s) for n, s in shapes.items()]
    head = '#[version = "0.0.5"]\ndef @main'
    plain = relay.infer_type(relay.parse(f"{head}({', '.join(params)}) {{ {case.result} }}"))
    result: Any = plain.functions["main"].body.ty
    params.append(typed("g", result.shape))
    text = f"{head}({', '.join(params)}) -> float32 {{ sum({case.result} * %g) }}"
    return relay.parse(text), [n for n, name in enumerate(shapes) if not name.endswith("i")]


def arrays(module: relay.Module) -> list[Array]:
    rng = np.random.default_rng(0)
    made: list[Array] = []
    for p in module.functions["main"].params:
        ty: Any = p.ty or p.annotation
        if ty.dtype == "int32":
            made.append(rng.integers(0, ROWS, ty.shape).astype(np.int32))
        else:
            fan = int(np.prod(ty.shape[1:])) if p.name.startswith("w") else 1
            made.append((rng.standard_normal(ty.shape) / np.sqrt(fan)).astype(np.float32))
    return made


def ours(module: relay.Module, given: list[Array], wanted: Sequence[int], threads: int) -> Run:
    exe = relay.compile(relay.value_and_grad(module, argnums=tuple(wanted)), threads=threads)

    def run() -> tuple[Any, ...]:
        loss, gradients = exe(*given)
        return (loss, *(gradients if isinstance(gradients, tuple) else (gradients,)))

    return run


def in_torch(case: Case, given: list[Array], wanted: Sequence[int], threads: int, compiled: bool) -> Run:
    import torch

    torch.set_num_threads(threads)
    *operands, g = (torch.from_numpy(a).long() if a.dtype == np.int32 else torch.from_numpy(a) for a in given)
    for n in wanted:
        operands[n].requires_grad_(True)

    def loss(*operands: Any) -> Any:
        return (case.peer(torch, *operands) * g).sum()

    forward = torch.compile(loss) if compiled else loss

    def run() -> tuple[Any, ...]:
        value = forward(*operands)
        return (value.detach(), *torch.autograd.grad(value, [operands[n] for n in wanted]))

    return run


def in_jax(case: Case, given: list[Array], wanted: Sequence[int]) -> Run:
    import jax
    import jax.numpy as jnp

    class Names:
        """JAX's names for what the chains call."""

        relu = jax.nn.relu

    assert case.jax is not None
    peer = case.jax
    *operands, g = (jnp.asarray(a) for a in given)
    step = jax.jit(jax.value_and_grad(lambda *x: (peer(Names, *x) * g).sum(), argnums=tuple(wanted)))

    def run() -> tuple[Any, ...]:
        value, gradients = step(*operands)
        for x in gradients:
            x.block_until_ready()
        return (value, *gradients)

    return run


def peak(case: Case, batch: int, system: str, threads: int) -> float:
    """Mebibytes by which one system's peak grows from before its first call to after its third, in a process of its own."""
    options = ["--peak", system, "--threads", str(threads), "--batch", str(batch), "--only", case.name]
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def made(case: Case, batch: int, threads: int, systems: Sequence[str]) -> dict[str, Run]:
    module, wanted = program(case, batch)
    given = arrays(module)
    runs: dict[str, Run] = {}
    for system in systems:
        match system:
            case "relay":
                runs[system] = ours(module, given, wanted, threads)
            case "jax":
                if case.jax is not None:
                    runs[system] = in_jax(case, given, wanted)
            case _:
                runs[system] = in_torch(case, given, wanted, threads, system == "compiled")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="names, or their beginnings, divided by commas")
    parser.add_argument("--peers", nargs="+", default=["eager"], choices=["eager", "compiled", "jax"])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    chosen = [c for c in cases() if not args.only or c.name.startswith(tuple(args.only.split(",")))]
    if args.peak:
        (run,) = made(chosen[0], args.batch[0], args.threads, [args.peak]).values()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(3):
            run()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        return
    print(f"{args.threads} thread(s); loss and gradients, ms")
    title = f"Gradients of operators, {args.threads} thread(s)"
    table = Table(
        f"gradients-{args.threads}", title, "ms for the loss and its gradients", "operator", ["relay", *args.peers]
    )
    ratios: list[float] = []
    for case in chosen:
        for batch in args.batch:
            runs = made(case, batch, args.threads, ["relay", *args.peers])
            results = {name: [np.asarray(a) for a in run()] for name, run in runs.items()}
            for name, found in results.items():
                for a, b in zip(found[1:], results["relay"][1:], strict=True):
                    # By norm: where another rounding takes an operand of relu past zero, single elements differ.
                    apart = float(np.linalg.norm(b - a) / max(float(np.linalg.norm(a)), 1e-30))
                    assert a.shape == b.shape and apart < 5e-3, f"{case.name}: {name} differs by {apart}"
            times = medians(runs, args.rounds, dict.fromkeys(runs, 0.01 if args.threads == 1 else PAUSE))
            best = min((t for n, t in times.items() if n != "relay"), default=times["relay"])
            ratios.append(best / times["relay"])
            shown = "  ".join(f"{n} {t * 1e3:9.3f}" for n, t in times.items())
            if args.memory:
                grown = [f"{s} {peak(case, batch, s, args.threads):.1f}" for s in runs if s in ("relay", "eager")]
                shown += "  MiB: " + ", ".join(grown)
            print(f"{case.name:32} batch {batch:3}  {shown}  best peer / ours {ratios[-1]:.2f}", flush=True)
            table.add(f"{case.name}, batch {batch}", {n: t * 1e3 for n, t in times.items()})
    print(table.note(f"geometric mean of the best peer's time over ours: {np.exp(np.mean(np.log(ratios))):.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
