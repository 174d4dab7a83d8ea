"""Forward and backward of operators beside PyTorch (eager; compiled and JAX for the chains), in turns, in one run.

Every system computes ``loss = sum(f(x, w, ...) * g)`` and the gradients of all operands that have one. Ours is
`relay.value_and_grad` of the program as it is written here; no operator has a gradient written by hand. With ``--memory`` the peak
of the process over one call is measured too, in a process for each system.

    python benchmarks/gradients.py [--threads 1] [--batch 1 16] [--only conv,pool] [--rounds 9] [--peers eager compiled jax]

With ``--more FILE`` rows that the file has are not measured again, and new ones are added to it, for about ``--limit`` seconds. The parts
of convolutions by themselves are in `convolutions.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gradient_cases import ROWS, Case, Shape, cases
from growth import mebibytes
from table import Pieces, Table, add_out, add_pieces
from turns import PAUSE, medians

import relay

Array = npt.NDArray[Any]
# Gives the loss and the gradients as arrays.
Run = Callable[[], tuple[Any, ...]]


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


def measure(case: Case, batch: int, threads: int, peers: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds of each system, whose results are compared first."""
    runs = made(case, batch, threads, ["relay", *peers])
    results = {name: [np.asarray(a) for a in run()] for name, run in runs.items()}
    for name, found in results.items():
        for a, b in zip(found[1:], results["relay"][1:], strict=True):
            # By norm: where another rounding takes an operand of relu past zero, single elements differ.
            apart = float(np.linalg.norm(b - a) / max(float(np.linalg.norm(a)), 1e-30))
            assert a.shape == b.shape and apart < 5e-3, f"{case.name}: {name} differs by {apart}"
    times = medians(runs, rounds, dict.fromkeys(runs, 0.01 if threads == 1 else PAUSE))
    return {n: t * 1e3 for n, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="names, or their beginnings, divided by commas")
    parser.add_argument("--peers", nargs="+", default=["eager"], choices=["eager", "compiled", "jax"])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    add_pieces(parser)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    chosen = [c for c in cases() if not args.only or c.name.startswith(tuple(args.only.split(",")))]
    if args.peak:
        (run,) = made(chosen[0], args.batch[0], args.threads, [args.peak]).values()
        print(mebibytes(run))
        return
    print(f"{args.threads} thread(s); loss and gradients, ms")
    title = f"Gradients of operators, {args.threads} thread(s)"
    table = Table(
        f"gradients-{args.threads}", title, "ms for the loss and its gradients", "operator", ["relay", *args.peers]
    )
    ratios: list[float] = []
    pieces = Pieces(args.more, args.limit)
    for case in chosen:
        for batch in args.batch:
            place = f"{args.threads} {case.name}, batch {batch}: {' '.join(args.peers)}"
            times = pieces.figures(place, partial(measure, case, batch, args.threads, args.peers, args.rounds))
            if times is None:
                continue
            ratios.append(min((t for n, t in times.items() if n != "relay"), default=times["relay"]) / times["relay"])
            shown = "  ".join(f"{n} {t:9.3f}" for n, t in times.items())
            if args.memory:
                grown = [f"{s} {peak(case, batch, s, args.threads):.1f}" for s in times if s in ("relay", "eager")]
                shown += "  MiB: " + ", ".join(grown)
            print(f"{case.name:32} batch {batch:3}  {shown}  best peer / ours {ratios[-1]:.2f}", flush=True)
            table.add(f"{case.name}, batch {batch}", times)
    if ratios:
        mean = np.exp(np.mean(np.log(ratios)))
        print(table.note(f"geometric mean of the best peer's time over ours: {mean:.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
