"""What the tests of passes share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relay import Executable
from relay.interpreter.evaluation import evaluate
from relay.ir.expr import Block, Call, Function, OpRef
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.pipeline import Compilation
from relay.plan.graph import te_graph
from relay.te.evaluate import evaluate as evaluate_te
from relay.transform import Pass, Pipeline, ToBlocks
from relay.transform.blocks import all_bindings, body_of, check_blocks, is_primitive
from relay.typing import infer, verify_types

Array = npt.NDArray[np.generic]
VERSION = '#[version = "0.0.5"]\n'


def typed(text: str) -> Module:
    return infer(parse_module(VERSION + text))


def run(module: Module | str, *passes: Pass) -> Module:
    """The module after passes (to blocks first), every step checked in full."""
    if isinstance(module, str):
        module = typed(module)

    def verify(after: Module, names: object) -> None:
        verify_types(after)
        check_blocks(after)

    return Pipeline([ToBlocks(), *passes], verify, full=True)(module)


def operators(module: Module, name: str = "main") -> list[str]:
    """The operators called in a function, inner blocks included, primitives' bodies aside."""
    return [
        b.value.fn.name
        for b in all_bindings(body_of(module.functions[name]))
        if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef)
    ]


def kernels(module: Module, name: str = "main") -> list[list[str]]:
    """The operators of each primitive called in a function."""
    out: list[list[str]] = []
    for binding in all_bindings(body_of(module.functions[name])):
        if isinstance(binding.value, Call) and is_primitive(binding.value.fn):
            body = binding.value.fn.body
            assert isinstance(body, Block)
            calls = [b.value.fn for b in body.bindings if isinstance(b.value, Call)]
            out.append([c.name for c in calls if isinstance(c, OpRef)])
    return out


def executable(compilation: Compilation, check_memory: bool = False) -> Executable:
    """What was built to be looked at, to be run too: compiling it again would take as long again."""
    exe = Executable.from_bytes(compilation.image.to_bytes(), None)
    exe.check_memory = check_memory
    return exe


def evaluate_primitive(primitive: Function, arrays: Sequence[Array]) -> Sequence[Array]:
    """What a primitive of known sizes computes, by the meaning of its tensor expressions."""
    graph = te_graph(primitive)
    return evaluate_te(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)), {})


def same_results(before: Module, after: Module, *args: object, entry: str = "main") -> None:
    """Assert that two modules compute the same."""
    expected, found = evaluate(before, *args, entry=entry), evaluate(after, *args, entry=entry)
    assert_same(expected, found)


def assert_same(expected: object, found: object) -> None:
    if isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for e, f in zip(expected, found, strict=True):
            assert_same(e, f)
    elif hasattr(expected, "fields"):
        assert getattr(found, "constructor", None) == getattr(expected, "constructor", None)
        assert_same(tuple(expected.fields), tuple(getattr(found, "fields", ())))
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)
