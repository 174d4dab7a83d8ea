"""Compositions of operators made at random: with fusion, without, and in PyTorch (eager). What fusion makes slower, or what takes longer
than PyTorch, is a cliff, and is printed with its program.

    python benchmarks/compositions.py [--programs 100] [--seed 0] [--gradients]

One thread, the fastest of some calls. ``--gradients``: the gradients of the sum of squares of what a program gives, in all of its tensors.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import fastest  # noqa: E402

import relay  # noqa: E402

Shape = tuple[int, ...]
# The lengths of all axes, by how many there are; results have so many elements at most.
LENGTHS, MOST = {2: 192, 3: 40}, 400_000
# How much longer with fusion than without, or than PyTorch, is a cliff; and how many microseconds at least.
SLOWER, LEAST = 1.25, 3.0
# The parameter that says which rows or columns are taken. It has no gradient.
INDEX = "i"
# Seconds for each way to run a program, each time.
SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    shape: Shape


@dataclass(slots=True)
class Program:
    """What is computed, operation by operation: as text, and as functions of the tensors before (PyTorch's, by their names)."""

    length: int
    params: list[Value]
    lines: list[str] = field(default_factory=list)
    steps: list[tuple[str, Callable[[dict[str, Any]], Any]]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def add(self, text: str, shape: Shape, run: Callable[..., Any], *args: Value) -> None:
        """One more value: ``text`` with the names of the operands in it, ``run`` with PyTorch's tensors."""
        name, names = f"v{len(self.lines)}", [a.name for a in args]
        self.lines.append(f"let %{name} = {text.format(*(f'%{n}' for n in names))};")
        self.steps.append((name, lambda env: run(*(env[n] for n in names))))
        self.values.append(Value(name, shape))
        self.read.update(names)

    @property
    def inputs(self) -> list[Value]:
        return [p for p in self.params if p.name in self.read]

    @property
    def results(self) -> list[str]:
        """What nothing reads."""
        return [v.name for v in self.values if v.name not in self.read]

    def text(self, gradients: bool) -> str:
        params = ", ".join(
            f"%{p.name}: Tensor[({', '.join(map(str, p.shape))},), {'int64' if p.name == INDEX else 'float32'}]"
            for p in self.inputs
        )
        names = [f"%{n}" for n in self.results]
        result = names[0] if len(names) == 1 else f"({', '.join(names)})"
        if gradients:
            result = " + ".join(f"sum({n} * {n})" for n in names)
        return f'#[version = "0.0.5"]\ndef @main({params}) {{ {" ".join(self.lines)} {result} }}'

    def in_torch(self, given: Sequence[Any]) -> tuple[Any, ...]:
        env = {p.name: x for p, x in zip(self.inputs, given, strict=True)}
        for name, step in self.steps:
            env[name] = step(env)
        return tuple(env[n].contiguous() for n in self.results)


def program(rng: random.Random) -> Program:
    """Three to eight operations on one to three tensors, whose axes all have the same length."""
    rank = rng.choice((2, 3, 3))
    length = LENGTHS[rank]
    params = [Value(f"p{n}", (length,) * rng.choice((rank, rank, max(1, rank - 1)))) for n in range(rng.randint(1, 3))]
    made = Program(length, [*params, Value(INDEX, (length,))])
    while len(made.lines) < rng.randint(3, 8):
        values = [*params, *made.values]
        _operation(rng, made, rng.choice(values[-4:]), values)
    return made


def _operation(rng: random.Random, made: Program, x: Value, values: Sequence[Value]) -> None:
    """An operation on a value, and perhaps on another; none where they do not fit."""
    rank, shape = len(x.shape), x.shape
    if rank == 0:
        return
    axis = rng.randrange(rank)
    without = (*shape[:axis], *shape[axis + 1 :])
    other = rng.choice(values)
    kind = rng.choice(KINDS)
    if kind == "unary":
        name, run = rng.choice(UNARY)
        made.add(f"{name}({{0}} * 0.1f)", shape, lambda a: run(a * 0.1), x)
    elif kind == "binary":
        out = _broadcast(shape, other.shape)
        if out is not None:
            sign = rng.choice("+-*")
            run = {"+": torch.add, "-": torch.sub, "*": torch.mul}[sign]
            made.add(f"{{0}} {sign} {{1}}", out, run, x, other)
    elif kind == "reduce":
        over = sorted(rng.sample(range(rank), rng.randint(1, min(2, rank))))
        keep = rng.random() < 0.5
        left = tuple(1 if n in over else d for n, d in enumerate(shape) if keep or n not in over)
        name, run = rng.choice(REDUCTIONS)
        made.add(f"{name}({{0}}, axis={over}, keepdims={keep})", left, lambda a: run(a, over, keepdim=keep), x)
    elif kind == "along":
        name, run = rng.choice(ALONG)
        made.add(f"{name}({{0}}, axis={axis})", shape, lambda a: run(a, axis), x)
    elif kind == "centre":
        text = f"{{0}} - mean({{0}}, axis=[{axis}], keepdims=True)"
        made.add(text, shape, lambda a: a - a.mean(axis, keepdim=True), x)
    elif kind == "transpose":
        order = rng.sample(range(rank), rank)
        made.add(f"transpose({{0}}, axes={order})", tuple(shape[n] for n in order), lambda a: a.permute(order), x)
    elif kind == "expand" and rank < 4:
        wide = (*shape[:axis], 1, *shape[axis:])
        made.add(f"expand_dims({{0}}, axis={axis})", wide, lambda a: a.unsqueeze(axis), x)
    elif kind == "slice" and shape[axis] > 8:
        end = shape[axis] - 2
        cut = (*shape[:axis], end - 2, *shape[axis + 1 :])
        text = f"strided_slice({{0}}, begin=[2], end=[{end}], axes=[{axis}])"
        made.add(text, cut, lambda a: a.narrow(axis, 2, end - 2), x)
    elif kind == "concatenate":
        if len(other.shape) == rank and without == (*other.shape[:axis], *other.shape[axis + 1 :]):
            both = (*shape[:axis], shape[axis] + other.shape[axis], *shape[axis + 1 :])
            if np.prod(both) <= MOST:
                text = f"concatenate(({{0}}, {{1}}), axis={axis})"
                made.add(text, both, lambda a, b: torch.cat((a, b), axis), x, other)
    elif kind == "take" and shape[axis] == made.length:
        text = f"take({{0}}, {{1}}, axis={axis})"
        made.add(text, shape, lambda a, i: a.index_select(axis, i), x, made.params[-1])
    elif kind == "choose":
        text = "where({0} > zeros_like({0}), {0}, {0} * 0.1f)"
        made.add(text, shape, lambda a: torch.where(a > torch.zeros_like(a), a, a * 0.1), x)
    elif kind == "product" and rank == 2 and len(other.shape) == 2 and other.shape[1] == shape[1]:
        text = "nn.dense({0}, {1}) * 0.01f"
        made.add(text, (shape[0], other.shape[0]), lambda a, b: a @ b.T * 0.01, x, other)


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    try:
        out = np.broadcast_shapes(a, b)
    except ValueError:
        return None
    return out if np.prod(out) <= MOST else None


KINDS = (
    "unary", "binary", "binary", "reduce", "reduce", "reduce", "along", "along", "centre", "transpose", "expand", "slice",
    "concatenate", "take", "choose", "product",
)  # fmt: skip


UNARY = (("exp", torch.exp), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("nn.relu", torch.relu))
REDUCTIONS = (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax))
ALONG = (
    ("nn.softmax", torch.softmax), ("nn.log_softmax", torch.log_softmax), ("cumsum", torch.cumsum),
    ("reverse", lambda a, axis: a.flip((axis,))),
)  # fmt: skip


def torch_run(made: Program, given: Sequence[Any], gradients: bool) -> Callable[[], tuple[Any, ...]]:
    """PyTorch's way to the results, or to the gradients."""
    tensors = [torch.from_numpy(x) for x in given]
    if not gradients:

        def plain() -> tuple[Any, ...]:
            with torch.inference_mode():
                return made.in_torch(tensors)

        return plain
    wanted = [t.requires_grad_() for t in tensors if t.is_floating_point()]

    def backward() -> tuple[Any, ...]:
        loss = sum((t * t).sum() for t in made.in_torch(tensors))
        return tuple(torch.autograd.grad(loss, wanted))

    return backward


def measured(seed: int, gradients: bool) -> tuple[str, dict[str, float]]:
    """The text of a program, and the microseconds that it takes in each way, which agree about the results."""
    made = program(random.Random(seed))
    text = made.text(gradients)
    module = relay.parse(text)
    if gradients:
        module = relay.value_and_grad(module, argnums=tuple(n for n, p in enumerate(made.inputs) if p.name != INDEX))
    rng = np.random.default_rng(seed)
    given: list[Any] = [
        rng.integers(0, made.length, p.shape) if p.name == INDEX else rng.standard_normal(p.shape, dtype=np.float32)
        for p in made.inputs
    ]
    tensors = [relay.Tensor.from_numpy(x) for x in given]
    runs: dict[str, Callable[[], Any]] = {"torch": torch_run(made, given, gradients)}
    wanted = runs["torch"]()
    for name, level in (("fused", 3), ("unfused", 0)):
        exe = relay.compile(module, threads=1, opt_level=level)
        runs[name] = lambda exe=exe: exe(*tensors)  # type: ignore[misc]
        found = runs[name]()
        found = found[1] if gradients else found
        for a, b in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            scale = max(float(b.abs().max()), 1.0)
            np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=0, atol=1e-4 * scale, err_msg=text)
    return text, {name: min(fastest(run, SECONDS) for _ in range(2)) * 1e6 for name, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {"unfused": [], "torch": []}
    for seed in range(options.seed, options.seed + options.programs):
        text, took = measured(seed, options.gradients)
        for name, found in ratios.items():
            found.append(took[name] / took["fused"])
            if took["fused"] > SLOWER * took[name] and took["fused"] > took[name] + LEAST:
                figures = ", ".join(f"{n} {t:.1f}" for n, t in took.items())
                print(f"{seed}: {figures} us\n    {text.splitlines()[1]}", flush=True)
    for name, found in ratios.items():
        print(f"{name} over fused: {statistics.geometric_mean(found):.2f}, at the least {min(found):.2f}")


if __name__ == "__main__":
    main()
