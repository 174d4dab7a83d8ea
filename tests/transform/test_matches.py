"""Generated matches, nested and overlapping: a decision tree takes the clause that the patterns in order say, and looks at nothing
twice."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import ExecutionError
from relay.ir.expr import Block, Function, Match, PConstructor, PVar, PWild, Var
from relay.ir.module import Module
from relay.transform import CompileMatch
from relay.transform.blocks import all_bindings, body_of, nested_blocks
from tests.transform.support import run

pytestmark = pytest.mark.filterwarnings("ignore::relay.typing.exhaustive.UnreachableClause")

TYPES = """type C { Red, Green, Blue }
type T { E, P(C, T), Q(T, C, T) }
"""
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "C": {"Red": (), "Green": (), "Blue": ()},
    "T": {"E": (), "P": ("C", "T"), "Q": ("T", "C", "T")},
}


def pattern(rng: random.Random, adt: str, depth: int) -> str:
    if depth == 0 or rng.random() < 0.35:
        return rng.choice(["_", f"%v{rng.randrange(10**9)}"])
    name = rng.choice(list(FIELDS[adt]))
    fields = ", ".join(pattern(rng, f, depth - 1) for f in FIELDS[adt][name])
    return f"{name}({fields})" if fields else name


def value(rng: random.Random, module: Module, adt: str, depth: int) -> object:
    names = [n for n, fields in FIELDS[adt].items() if depth > 0 or "T" not in fields]
    name = rng.choice(names)
    fields = [value(rng, module, f, depth - 1) for f in FIELDS[adt][name]]
    return getattr(module.adt(adt), name)(*fields)


def taken(module: Module, arguments: tuple[object, ...]) -> int | None:
    try:
        return int(np.asarray(relay.evaluate(module, *arguments)))
    except ExecutionError as error:
        assert "no clause" in str(error)
        return None


@functools.cache
def program(seed: int) -> str:
    rng = random.Random(seed)
    clauses = [
        f"({pattern(rng, 'T', 3)}, {pattern(rng, 'C', 1)}) => {number}i64" for number in range(rng.randrange(2, 8))
    ]
    return f"{TYPES}def @main(%t: T, %c: C) -> int64 {{ match? ((%t, %c)) {{ {', '.join(clauses)} }} }}"


def looks_twice(function: Function) -> bool:
    """Whether on some path the same value is matched twice."""
    todo: list[tuple[Block, frozenset[Var], dict[Var, Var]]] = [(body_of(function), frozenset(), {})]
    while todo:
        block, seen, same = todo.pop()
        for binding in block.bindings:
            if isinstance(binding.value, Var):
                same = {**same, binding.var: same.get(binding.value, binding.value)}
            if isinstance(binding.value, Match) and isinstance(binding.value.data, Var):
                data = same.get(binding.value.data, binding.value.data)
                if data in seen:
                    return True
                todo.extend((b, seen | {data}, same) for b in nested_blocks(binding.value))
    return False


@pytest.mark.parametrize("seed", range(24))
def test_the_clause_that_comes_first_is_taken(seed: int) -> None:
    before = relay.parse(f'#[version = "0.0.5"]\n{program(seed)}')
    after = run(program(seed), CompileMatch())
    rng = random.Random(seed + 1000)
    for _ in range(40):
        given = (value(rng, before, "T", 3), value(rng, before, "C", 0))
        assert taken(after, given) == taken(before, given)


@pytest.mark.parametrize("seed", range(24))
def test_trees_are_flat_and_repeat_nothing(seed: int) -> None:
    module = run(program(seed), CompileMatch())
    matches = [
        b.value for f in module.functions.values() for b in all_bindings(body_of(f)) if isinstance(b.value, Match)
    ]
    for match in matches:
        names = [c.pattern.name for c in match.clauses if isinstance(c.pattern, PConstructor)]
        assert len(names) == len(set(names))
        for clause in match.clauses:
            fields = clause.pattern.fields if isinstance(clause.pattern, PConstructor) else ()
            assert all(isinstance(f, PVar | PWild) for f in fields)
            assert isinstance(clause.pattern, PConstructor) or clause is match.clauses[-1]
    assert not any(looks_twice(f) for f in module.functions.values())
