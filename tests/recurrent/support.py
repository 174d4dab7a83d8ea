"""What the tests of recurrent programs share."""

from __future__ import annotations

from typing import Any

import numpy as np

import relay
from relay import loading, pipeline
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.transform.blocks import all_bindings, body_of, is_primitive
from tests.generator.compare import difference

Array = np.ndarray[Any, np.dtype[Any]]


def normal(*shape: int, seed: int = 0) -> Array:
    """Numbers of a normal distribution, small enough for a few steps of anything."""
    return (np.random.default_rng([seed, *shape]).normal(size=shape) / 2).astype(np.float32)


def both(module: Module, *args: object, entry: str = "main", **options: Any) -> Any:
    """The interpreter's result, after the compiled program gave the same."""
    expected = relay.evaluate(module, *args, entry=entry)
    found = relay.compile(module, entries=(entry,), **options).run(entry, *args)
    different = difference(expected, found)
    assert different is None, different
    return expected


def compiled(module: Module, **options: Any) -> Module:
    """The blocks of primitives that a module becomes, every pass's result checked."""
    return pipeline.build(loading.as_module(module), relay.Options(**options), verify=True).module


def operators(module: Module, function: str) -> set[str]:
    """The operators that a function of a compiled module runs, those inside its primitives included."""
    out: set[str] = set()
    todo = [body_of(module.functions[function])]
    while todo:
        for b in all_bindings(todo.pop()):
            if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef):
                out.add(b.value.fn.name)
            if isinstance(b.value, Call) and is_primitive(b.value.fn):
                todo.append(body_of(b.value.fn))
    return out
