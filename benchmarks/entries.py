"""Entries of an example module, forward and with the gradients of all tensors of floats that they are given, beside the same in other
systems: what `loops.py` and `models.py` measure."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

import relay

Array = npt.NDArray[Any]
Call = Callable[[], Any]
Program = Callable[..., Any]
BEST = "best other / ours"


@dataclass(frozen=True, slots=True)
class Case:
    """An entry with what it is given for a number of steps; whether it has a gradient, here and in JAX (none through loops that the
    data ends)."""

    arguments: Callable[[int, Callable[..., Array]], list[Array]]
    gradient: bool = True
    by_jax: bool = True


def number(value: float) -> Array:
    return np.asarray(value, np.float32)


def letters(n: int, count: int = 5, first: int = 0) -> Array:
    """``n`` seeded integers from ``first`` to less than ``count``."""
    return np.random.default_rng(n).integers(first, count, n).astype(np.int32)


def arguments(case: Case, steps: int) -> list[Array]:
    """What a case is given: the same for the same number of steps."""
    rng = np.random.default_rng(steps)
    return case.arguments(steps, lambda *shape: rng.standard_normal(shape).astype(np.float32))


def differentiated(given: list[Array]) -> tuple[int, ...]:
    """The places of the tensors of floats."""
    return tuple(n for n, a in enumerate(given) if a.dtype == np.float32 and a.ndim)


def leaves(value: Any) -> list[Array]:
    return [a for v in value for a in leaves(v)] if isinstance(value, tuple | list) else [np.asarray(value)]


def ours(path: Path, name: str, case: Case, given: list[Array], threads: int) -> dict[str, Call]:
    module = relay.load_module(path)
    forward = relay.compile(module, entries=(name,), threads=threads)
    out: dict[str, Call] = {"forward": lambda: forward.run(name, *given)}
    if case.gradient:
        derived = relay.compile(relay.grad(module, differentiated(given), entry=name), entries=(name,), threads=threads)
        out["gradient"] = lambda: derived.run(name, *given)
    return out


def in_jax(program: Program, case: Case, given: list[Array]) -> dict[str, Call]:
    import jax
    import jax.numpy as jnp

    held = [jnp.asarray(a) for a in given]
    run = jax.jit(program)
    out: dict[str, Call] = {"forward": lambda: jax.block_until_ready(run(*held))}
    if case.gradient and case.by_jax:

        def total(*values: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(program(*values)))

        back = jax.jit(jax.grad(total, differentiated(given)))
        out["gradient"] = lambda: jax.block_until_ready(back(*held))
    return out


def in_torch(program: Program, case: Case, given: list[Array], threads: int) -> dict[str, Call]:
    import torch

    torch.set_num_threads(threads)
    held = [torch.tensor(a) for a in given]

    def forward() -> Any:
        with torch.no_grad():
            return program(*held)

    out: dict[str, Call] = {"forward": forward}
    if case.gradient:
        wanted = [held[n].clone().requires_grad_(True) for n in differentiated(given)]
        by_place = dict(zip(differentiated(given), wanted, strict=True))
        tracked = [by_place.get(n, t) for n, t in enumerate(held)]

        def gradient() -> Any:
            found = program(*tracked)
            parts = found if isinstance(found, tuple) else (found,)
            return torch.autograd.grad(sum(p.sum() for p in parts if torch.is_tensor(p)), wanted)

        out["gradient"] = gradient
    return out


def compare(name: str, found: Mapping[str, list[Array]]) -> None:
    """Raise AssertionError where another system's results are not ours.

    A comparison that decides when to stop may go the other way where sums are rounded otherwise: hence the width.
    """
    for system, values in found.items():
        for a, b in zip(found["relay"], values, strict=True):
            apart = np.linalg.norm(np.subtract(a, b, dtype=np.float64)) / max(1.0, float(np.linalg.norm(a)))
            assert apart < 2e-2, f"{name}: {system} differs by {apart}"


def main(
    description: str,
    path: Path,
    cases: Mapping[str, Case],
    jax: Callable[[], Mapping[str, Program]],
    torch: Callable[[], Mapping[str, Program]] | None = None,
) -> None:
    """The command line of a benchmark: measure the cases, print and keep the table. ``jax`` and ``torch`` give the others' programs, and
    raise ImportError where the system is not installed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64, help="steps, rows or words of each program")
    parser.add_argument("--programs", nargs="+", choices=cases, default=list(cases))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    others = {"jax": jax} | ({"torch": torch} if torch else {})
    known: dict[str, Mapping[str, Program]] = {}
    for system, programs in others.items():
        try:
            known[system] = programs()
        except ImportError:
            continue
    title = f"{path.stem.capitalize()} of {args.steps} steps, forward and with gradients, {args.threads} thread(s)"
    table = Table(f"{path.stem}-{args.threads}", title, "us", "program", ["relay", *others, BEST])
    print(table.head())
    for name in args.programs:
        case = cases[name]
        given = arguments(case, args.steps)
        calls = {"relay": ours(path, name, case, given, args.threads)}
        if name in known.get("jax", {}):
            calls["jax"] = in_jax(known["jax"][name], case, given)
        if name in known.get("torch", {}):
            calls["torch"] = in_torch(known["torch"][name], case, given, args.threads)
        for what in calls["relay"]:
            here = {system: c[what] for system, c in calls.items() if what in c}
            compare(f"{name}, {what}", {system: leaves(call()) for system, call in here.items()})
            times = medians(here, args.rounds, dict.fromkeys(here, PAUSE), 0.02)
            figures = {system: t * 1e6 for system, t in times.items()}
            if len(figures) > 1:
                figures[BEST] = min(t for s, t in figures.items() if s != "relay") / figures["relay"]
            print(table.add(name if what == "forward" else f"{name}, {what}", figures), flush=True)
    table.keep(args.out)
