"""The tables of the grammar: lark checks it and makes them, once; processes after that read them from the user's cache."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from relay.ir.files import cache_directory, keep, kept

START_SYMBOLS = ("module", "expression", "type_only")

# A reduction: the action's name ("" passes the only value on), how many values it takes, and the nonterminal it makes.
Reduction = tuple[str, int, str]


@dataclass(frozen=True)
class Tables:
    """``actions[state][kind]`` is the next state (a shift) or a reduction; ``goto[state][nonterminal]`` the state after it."""

    actions: tuple[Mapping[str, int | Reduction], ...]
    goto: tuple[Mapping[str, int], ...]
    start: Mapping[str, int]
    accept: Mapping[str, int]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the actions."""
        return frozenset(r[0] for row in self.actions for r in row.values() if isinstance(r, tuple) and r[0])


@cache
def tables() -> Tables:
    """The tables of the grammar that the package has."""
    grammar = importlib.resources.files("relay.ir").joinpath("grammar.lark").read_bytes()
    source = hashlib.sha256(grammar + Path(__file__).read_bytes()).hexdigest()
    path = cache_directory() / f"grammar-{source[:32]}"
    found = _read(path)
    if found is None:
        found = make(grammar.decode())
        _keep(path, found)
    return found


def make(grammar: str) -> Tables:
    """The LALR(1) tables of a grammar in lark's notation; every rule that is no renaming has an alias."""
    from lark import Lark
    from lark.lexer import Lexer
    from lark.parsers.lalr_analysis import Shift

    class NoLexer(Lexer):
        """Lark is asked for tables only."""

        def __init__(self, conf: object) -> None:
            pass

        def lex(self, lexer_state: Any, parser_state: Any) -> Any:
            raise NotImplementedError

    lark = Lark(grammar, parser="lalr", lexer=NoLexer, start=list(START_SYMBOLS))
    kind_of = {t.name: t.pattern.value for t in lark.terminals}
    table = lark.parser.parser._parse_table  # the one place where lark's inside is touched
    actions: list[Mapping[str, int | Reduction]] = []
    goto: list[Mapping[str, int]] = []
    number = {state: n for n, state in enumerate(table.states)}
    nonterminals = {rule.origin.name for rule in lark.rules}
    for row in table.states.values():
        acts: dict[str, int | Reduction] = {}
        gotos: dict[str, int] = {}
        for symbol, (action, argument) in row.items():
            if action is Shift:
                if symbol in nonterminals:
                    gotos[symbol] = number[argument]
                else:
                    acts[kind_of.get(symbol, symbol)] = number[argument]
            else:
                name = argument.alias or ""
                if not name and len(argument.expansion) != 1:
                    raise AssertionError(f"the rule {argument} needs an alias")
                acts[kind_of.get(symbol, symbol)] = (str(name), len(argument.expansion), str(argument.origin.name))
        actions.append(acts)
        goto.append(gotos)
    return Tables(
        tuple(actions),
        tuple(goto),
        {name: number[state] for name, state in table.start_states.items()},
        {name: number[state] for name, state in table.end_states.items()},
    )


def _read(path: Path) -> Tables | None:
    """Tables that were kept, or None where there are none."""
    data = kept(path)
    if data is None:
        return None
    found = json.loads(data)
    rows = ({kind: tuple(a) if isinstance(a, list) else a for kind, a in row.items()} for row in found["actions"])
    return Tables(tuple(rows), tuple(found["goto"]), found["start"], found["accept"])


def _keep(path: Path, found: Tables) -> None:
    """Tables for the next process; where they cannot be kept, it makes them again."""
    fields = {"actions": found.actions, "goto": found.goto, "start": found.start, "accept": found.accept}
    keep(path, json.dumps(fields).encode())
