"""Parallel and sum fusion on generated straight-line programs: products with shared operands in every dependence."""

from __future__ import annotations

import random

import numpy as np
import pytest

from relay.interpreter.evaluation import evaluate
from relay.ir.module import Module
from relay.transform import CommonSubexpressions, DeadCode, NameDims, ParallelFusion, SumFusion
from tests.transform.support import operators, run, typed

SIZE = 40


def program(seed: int) -> str:
    """Values (rows, 40), made from each other by products with a few shared weights and by cheap operators; some are results."""
    rng = random.Random(seed)
    rows = {"%x": 2, "%y": 2, "%z": 3}
    lines: list[str] = []
    for n in range(rng.randint(4, 24)):
        a = rng.choice(list(rows)[-8:])
        same = [v for v in rows if rows[v] == rows[a]]
        kind = rng.choice(["dense"] * 6 + ["gradient", "gradient", "tanh", "add", "slice", "joined"])
        count = rows[a]
        if kind == "dense":
            value = f"nn.dense({a}, {rng.choice(['%u', '%v'])})"
        elif kind == "gradient":  # (40, 40), taken back to the rows
            b, c, d = (rng.choice(same) for _ in range(3))
            value = (
                f"slice_like(add(nn.matmul({a}, {b}, transpose_a=True), nn.matmul({c}, {d}, transpose_a=True)), {a})"
            )
        elif kind == "tanh":
            value = f"tanh({a})"
        elif kind == "add":
            value = f"add({a}, {rng.choice(same)}) * 0.5f"
        elif kind == "slice":
            count = 1
            value = f"strided_slice({a}, begin=[0], end=[1], axes=[0])"
        else:
            b = rng.choice(list(rows))
            count = rows[a] + rows[b]
            if count > 6:
                continue
            value = f"concatenate(({a}, {b}), axis=0)"
        lines.append(f"let %t{n} = {value} * 0.3f;")
        rows[f"%t{n}"] = count
    results = rng.sample(list(rows), min(len(rows), rng.randint(1, 4)))
    params = ", ".join(f"{v}: Tensor[({rows[v]}, {SIZE}), float32]" for v in ("%x", "%y", "%z"))
    weights = ", ".join(f"{v}: Tensor[({SIZE}, {SIZE}), float32]" for v in ("%u", "%v"))
    return f"def @main({params}, {weights}) {{ {' '.join(lines)} ({', '.join([*results, list(rows)[-1]])}) }}"


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_values_stay(first: int) -> None:
    rng = np.random.default_rng(first)
    inputs = [
        rng.uniform(-1, 1, shape).astype(np.float32) for shape in [(2, SIZE)] * 2 + [(3, SIZE)] + [(SIZE, SIZE)] * 2
    ]
    joined = 0
    for seed in range(first, first + 20):
        module = typed(program(seed))
        after = run(
            module,
            NameDims(),
            CommonSubexpressions(),
            SumFusion(),
            CommonSubexpressions(),
            ParallelFusion(),
            DeadCode(),
        )
        before, found = evaluate(module, *inputs), evaluate(after, *inputs)
        assert isinstance(before, tuple) and isinstance(found, tuple)
        for a, b in zip(before, found, strict=True):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4, atol=1e-5, err_msg=program(seed))
        joined += products(after) < products(run(module, DeadCode()))
    assert joined > 3, "the programs give the passes nothing to do"


def products(module: Module) -> int:
    return operators(module).count("nn.dense") + operators(module).count("nn.matmul")
