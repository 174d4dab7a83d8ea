"""What every differentiable program must satisfy: its derivatives agree with finite differences, in both modes, and partial
evaluation does not change them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

import relay
from relay.differentiate import differentiated
from relay.ir.module import Module
from relay.ir.value import AdtValue
from relay.transform import DeadFunctions, DeadReferences, PartialEvaluate, Pipeline
from relay.typing import verify_types
from tests.ad.finite import close, difference_quotient, direction, product
from tests.generator.compare import difference


def evaluated(module: Module) -> Module:
    """A differentiated module after partial evaluation, the types checked of what each step changes."""
    passes = [PartialEvaluate(), DeadReferences(), DeadFunctions()]
    return Pipeline(passes, verify_types)(module)


def run(module: Module, *args: Any) -> Any:
    """The interpreter's result."""
    return relay.evaluate(module, *args)


def plain(value: Any) -> Any:
    """A result with NumPy arrays in it, whichever executor it comes from."""
    match value:
        case tuple() | list():
            return type(value)(map(plain, value))
        case None:
            return None
        case _ if hasattr(value, "constructor"):
            return AdtValue(value.adt, value.constructor, value.tag, tuple(map(plain, value.fields)))
        case _:
            return np.asarray(value)


class Derivatives:
    """The derivatives of ``@main`` by some of its arguments: made once, whatever number of arguments they are checked with."""

    def __init__(self, module: Module, argnums: Sequence[int], *, forward: bool = True) -> None:
        self.module, self.argnums, self.forward = module, tuple(argnums), forward

    @cached_property
    def base(self) -> Module:
        return differentiated(self.module)

    @cached_property
    def gradient(self) -> Module:
        return relay.value_and_grad(self.module, self.argnums)

    @cached_property
    def reverse(self) -> Module:
        made = differentiated(self.gradient)
        verify_types(made)
        return made

    @cached_property
    def evaluated(self) -> Module:
        return evaluated(self.reverse)

    @cached_property
    def compiled(self) -> relay.Executable:
        return relay.compile(self.gradient)

    @cached_property
    def tangent(self) -> Module:
        made = differentiated(relay.jvp(self.module, self.argnums))
        verify_types(made)
        return made

    def problem(self, args: Sequence[Any], *, seed: int = 0, compiled: bool = False) -> str | None:
        """What is wrong with them at these arguments; None when nothing is."""
        random = np.random.default_rng(seed)
        moving = tuple(direction(args[n], random) for n in self.argnums)

        def value(*given: Any) -> Any:
            whole = list(args)
            for n, g in zip(self.argnums, given, strict=True):
                whole[n] = g
            return run(self.base, *whole)

        expected = difference_quotient(value, tuple(args[n] for n in self.argnums), moving)
        result, cotangents = run(self.reverse, *args)
        found = product(cotangents, moving)
        if not close(found, expected):
            return f"reverse mode: {found}, expected {expected}"
        again, cotangents = run(self.evaluated, *args)
        if not close(product(cotangents, moving), found) or not _same(again, result):
            return f"after partial evaluation: {product(cotangents, moving)}, expected {found}"
        if compiled:
            again, cotangents = plain(self.compiled(*args))
            if not close(product(cotangents, moving), found) or not _same(again, result):
                return f"compiled: {product(cotangents, moving)}, expected {found}"
        if self.forward:
            again, tangent = run(self.tangent, *args, *moving)
            ones = product(tangent, _ones(tangent))
            if not close(ones, expected) or not _same(again, result):
                return f"forward mode: {ones}, expected {expected}"
        return None


def problem(
    module: Module,
    args: Sequence[Any],
    argnums: Sequence[int],
    *,
    seed: int = 0,
    forward: bool = True,
    compiled: bool = False,
) -> str | None:
    """What is wrong with the derivatives of ``@main``; None when nothing is."""
    return Derivatives(module, argnums, forward=forward).problem(args, seed=seed, compiled=compiled)


def _same(a: Any, b: Any) -> bool:
    return difference(a, plain(b)) is None


def _ones(value: Any) -> Any:
    """Ones in the structure of a value."""
    match value:
        case tuple() | list():
            return type(value)(map(_ones, value))
        case AdtValue():
            return AdtValue(value.adt, value.constructor, value.tag, tuple(map(_ones, value.fields)))
        case None:
            return None
        case _:
            return np.ones_like(value)
