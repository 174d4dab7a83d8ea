"""One generated program: its module, arguments for ``@main``, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from hypothesis import strategies as st

from relay.ir.expr import Function, GlobalVar
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.ir.walk import post_order
from tests.generator.generator import Generator
from tests.generator.source import Choices, Drawn, Seeded
from tests.generator.values import argument


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A module that has not been typed yet, and the arguments of one run."""

    module: Module
    args: tuple[object, ...]

    def __repr__(self) -> str:
        return "<a generated program>"  # the tests show its text


@cache
def library() -> Module:
    """The functions and types that generated programs use."""
    path = Path(__file__).parent / "library.relay"
    return parse_module(path.read_text(), str(path.name))


def build(choices: Choices) -> Program:
    """A program from decisions."""
    generator = Generator(choices)
    main, params = generator.main()
    sizes = {name: choices.between(1, 5) for name in ("n", "m", "?0", "?1")}
    args = tuple(argument(choices, p, sizes) for p in params)
    shared = library()
    functions: dict[str, Function] = {"main": main, **generator.functions}
    todo = list(functions.values())
    while todo:
        for node in post_order(todo.pop()):
            if isinstance(node, GlobalVar) and node.name not in functions:
                functions[node.name] = shared.functions[node.name]
                todo.append(shared.functions[node.name])
    return Program(Module(MappingProxyType(functions), shared.types), args)


def program(seed: int) -> Program:
    """The program of a seed."""
    return build(Choices(Seeded(seed)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs as a hypothesis strategy."""
    return build(Choices(Drawn(draw(st.binary(min_size=_BYTES, max_size=_BYTES)))))


_BYTES = 2000  # more than nearly every program takes
