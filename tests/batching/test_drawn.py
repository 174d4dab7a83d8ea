"""Drawn recursion over drawn data types: however it is run and differentiated, it gives what the interpreter gives."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from tests.ad.checks import plain, problem
from tests.batching.programs import lowered, notes
from tests.generator.compare import difference
from tests.generator.recursions import recursion
from tests.generator.source import Choices, Seeded

SIZES = (0, 2, 5, 9, 14)


@pytest.mark.programs(12)
def test_every_way_to_run_it(seed: int) -> None:
    drawn = recursion(Choices(Seeded(seed)))
    mod = relay.infer_type(relay.parse(drawn.text))
    random = np.random.default_rng(seed)
    weights = drawn.weight_values(random)
    passes = lowered(mod)
    batched = relay.compile(mod, threads=1)
    plainly = relay.compile(mod, threads=1, opt_level=2)
    requests = [(*drawn.structures(mod, random, size), *weights) for size in SIZES]
    expected = [relay.evaluate(mod, *args) for args in requests]
    together = batched.run_batch("main", requests)
    for args, e, answer in zip(requests, expected, together, strict=True):
        found = {
            "the passes' program": relay.evaluate(passes, *args),
            "compiled": batched(*args),
            "compiled without batching": plainly(*args),
            "as one of many requests": answer,
        }
        for how, value in found.items():
            assert (wrong := difference(e, plain(value), how)) is None, f"{wrong}\n{drawn.text}"


@pytest.mark.programs(4)
def test_its_gradient(seed: int) -> None:
    """By the weights, against finite differences; compiled as well."""
    drawn = recursion(Choices(Seeded(seed)), "float64")
    mod = relay.infer_type(relay.parse(drawn.loss))
    random = np.random.default_rng(seed)
    weights = drawn.weight_values(random)
    first = len(drawn.roots)
    by = [first + n for n, name in enumerate(drawn.weights()) if name != "zero"]
    args = [*drawn.structures(mod, random, 6), *weights]
    assert (wrong := problem(mod, args, by, forward=False, compiled=True)) is None, f"{wrong}\n{drawn.loss}"


def test_what_is_drawn() -> None:
    """Programs that are batched, for most; and every form of field, result, entry and state from above in some."""
    drawn = [recursion(Choices(Seeded(seed))) for seed in range(40)]
    kinds = {f.kind for p in drawn for constructors in p.types for fields in constructors for f in fields}
    assert kinds == {
        *("word", "vector", "label", "score", "tag"),
        *("child", "labelled", "list", "labelled list", "option"),
    }
    assert {r for p in drawn for r in p.results} == {"state", "pair", "scored", "noted"}
    assert {p.down for p in drawn} == {"none", "as it is", "state", "number"}
    assert {"T0", "List[T0]"} <= {r for p in drawn for r in p.roots}
    assert {len(p.roots) for p in drawn} == {1, 2}
    by_level = ["by level" in notes(relay.infer_type(relay.parse(p.text))).values() for p in drawn[:12]]
    assert sum(by_level) >= 6
