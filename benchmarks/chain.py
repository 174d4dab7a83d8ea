"""A chain of operators of growing length through the stages of the compiler: microseconds per node and stage.

Linear cost means that the figures of the second size are those of the first. ``python benchmarks/chain.py [--sizes 10000,100000]``
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import relay
from relay import typing
from relay.codegen.kernels import ObjectCode
from relay.codegen.target import parse_target
from relay.ir.parser import parse_module
from relay.lower.module import lower
from relay.lower.planning import plan_module
from relay.pipeline import Runner, passes

T = TypeVar("T")
OPERATORS = ("add(%{0}, 1f)", "multiply(%{0}, %x)", "tanh(%{0})", "nn.relu(%{0})")


def program(n: int) -> str:
    """A chain of ``n`` operators as graph bindings."""
    lines = ["%0 = add(%x, 1f);"]
    lines += [f"%{k} = {OPERATORS[k % len(OPERATORS)].format(k - 1)};" for k in range(1, n)]
    return (
        '#[version = "0.0.5"]\ndef @main(%x: Tensor[(4, 8), float32]) -> Tensor[(4, 8), float32] {\n'
        + "\n".join(lines)
        + f"\n%{n - 1}\n}}\n"
    )


def measure(n: int) -> dict[str, float]:
    """Seconds of each stage."""
    out: dict[str, float] = {}

    def timed(name: str, what: Callable[[], T]) -> T:
        gc.collect()
        start = time.perf_counter()
        result = what()
        out[name] = time.perf_counter() - start
        return result

    text = program(n)
    module = timed("parse", lambda: parse_module(text))
    module = timed("infer", lambda: typing.infer(module))
    timed("print", module.text)
    options = relay.Options(cache=False)
    runner = Runner(parse_target("cpu"), options)
    module = timed("monomorphise", lambda: typing.monomorphise(module, ("main",)))
    declared = dict(module.functions)
    for number, transformation in enumerate(passes(options, runner, module)):
        module = timed(f"{number:2} {transformation.name}", partial(relay.Pipeline([transformation]), module))
    plan = timed("plan", lambda: plan_module(module, runner.target, None))
    timed("lower", lambda: lower(plan, declared, [ObjectCode("", b"")] * len(plan.kernels), runner.target))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="10000,100000")
    sizes = [int(s) for s in parser.parse_args().sizes.split(",")]
    tables = {n: measure(n) for n in sizes}
    print(f"{'us per node':24}" + "".join(f"{n:>12,}" for n in sizes))
    for stage in tables[sizes[0]]:
        print(f"{stage:24}" + "".join(f"{tables[n][stage] / n * 1e6:12.1f}" for n in sizes))


if __name__ == "__main__":
    main()
