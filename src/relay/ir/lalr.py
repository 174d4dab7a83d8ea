"""A small, fast LALR(1) engine over lark's tables.

Lark checks the grammar and makes the tables (`relay.ir.tables`); this loop runs them. It allocates nothing per token but what the
actions build, needs no Python stack however deep the input nests, and costs a few tenths of a microsecond per step, where lark's own
loop (made for parse trees, token objects and any lexer) costs several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from relay.ir.diagnostics import SyntaxError_
from relay.ir.hints import hint
from relay.ir.lexer import Tokens
from relay.ir.tables import tables


class Actions(Protocol):
    """Has a method for each alias; ``position`` is the index of the token the parser looks at."""

    position: int


def parse(tokens: Tokens, start: str, actions: Actions) -> Any:
    """Run the tables over the tokens; the value of a token is its index.

    Raises SyntaxError_ at the first token that cannot follow.
    """
    table = tables()
    acts, gotos = table.actions, table.goto
    method = {name: getattr(actions, name) for name in table.names}
    state = table.start[start]
    accept = table.accept[start]
    states = [state]
    values: list[Any] = []
    push_state, push_value = states.append, values.append
    for position, kind in enumerate(tokens.kinds):
        actions.position = position
        while True:
            action = acts[state].get(kind)
            if isinstance(action, int):
                state = action
                push_state(state)
                push_value(position)
                break
            if action is None:
                raise _unexpected(tokens, position, acts[state])
            name, size, made = action
            if not name:
                states[-1] = state = gotos[states[-2]][made]
                continue
            if size:
                arguments = values[-size:]
                del values[-size:], states[-size:]
                push_value(method[name](*arguments))
            else:
                push_value(method[name]())
            state = gotos[states[-1]][made]
            push_state(state)
            if state == accept:
                return values[0]
    raise AssertionError("the tokens do not end with $END")


_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("an expression", frozenset({"LOCAL", "GRAPH", "GLOBAL", "NAME", "INT", "FLOAT", "BOOL", "const", "meta", "ref", "grad", "jvp", "fn",
                                 "if", "match", "match?", "where", "(", "{", "-", "!"})),
    ("a type or dimension", frozenset({"NAME", "INT", "?", "UNKNOWN", "(", "fn", "ref", "-"})),
    ("an operator", frozenset({"+", "*", "/", "<", "<=", ">", ">=", "==", "!=", "-"})),
    ("dimension arithmetic", frozenset({"*", "//", "%"})),
)  # fmt: skip
_WORDS = {
    "LOCAL": "a variable %name", "GRAPH": "a graph variable %0", "GLOBAL": "a function name @name", "NAME": "a name",
    "INT": "an integer", "FLOAT": "a number", "BOOL": "True or False", "STRING": "a string", "PROJ": "a projection .0",
    "UNKNOWN": "an unknown size ?n",
    "$END": "the end of the text",
}  # fmt: skip


def _unexpected(tokens: Tokens, position: int, row: Mapping[str, object]) -> SyntaxError_:
    rest = set(row) - (
        {"STRING"} if "LOCAL" in row else set()
    )  # a quoted name of an attribute is not what people look for
    words: list[str] = []
    for word, group in _GROUPS:
        if group <= rest:
            words.append(word)
            rest -= group
    words += sorted(_WORDS.get(kind, f"'{kind}'") for kind in rest)
    expected = words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" or {words[-1]}"
    text = tokens.texts[position]
    found = f"'{text}'" if text else "the end of the text"
    meant = hint(tokens, position, row, "an expression" in words)
    return SyntaxError_(f"expected {expected}, found {found}", tokens.span(position), meant, tokens.text)
