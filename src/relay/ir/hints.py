"""What to write instead: hints of errors of syntax, for what other languages write otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.ir.lexer import Tokens

_LOOP: Final = "a loop is a function that calls itself last, or @while or @for of the prelude"
# By a character that begins no word.
CHARACTERS: Final[Mapping[str, str]] = {
    '"': "a string ends on the line it begins on",
    "'": 'a string is written "..."',
    "#": "a comment is written /* ... */, or // ... to the end of the line",
    "&": "both of two conditions: logical_and(a, b)",
    "@": "a product is nn.dense(x, w), of w transposed, or nn.matmul(x, w); a function is @name",
}
# By the text of the token that cannot stand where it does.
_FOUND: Final[Mapping[str, str]] = {
    "=": "a binding is written `let %name = value;`, a comparison ==",
    "%": "the remainder is floor_mod(a, b); a variable is %name",
    "|": "one of two conditions: logical_or(a, b)",
    "elif": "write `else if`",
    "and": "both of two conditions: logical_and(a, b)",
    "or": "one of two conditions: logical_or(a, b)",
}
# By the text of the token before it.
_BEFORE: Final[Mapping[str, str]] = {
    "return": "a function's value is the expression that it ends with: leave out `return`",
    "not": "write logical_not(a)",
    "let": "a variable is %name",
    "def": "a function is @name",
    "if": "the condition stands in parentheses",
    "match": "what is taken apart stands in parentheses",
    "match?": "what is taken apart stands in parentheses",
    "*": "a power is power(a, b)",
    "for": _LOOP,
}
_LOOPS: Final = frozenset(("for", "while"))
_BEGINS_EXPRESSION: Final = frozenset(
    ("LOCAL", "GRAPH", "GLOBAL", "NAME", "INT", "FLOAT", "BOOL", "let", "fn", "if", "match", "match?")
)


def hint(tokens: Tokens, position: int, expected: Collection[str], wants_expression: bool) -> str:
    """What may have been meant by the token at ``position``, where one of the kinds ``expected`` was; "" where nothing is known."""
    kind, text = tokens.kinds[position], tokens.texts[position]
    before = tokens.texts[position - 1] if position else ""
    if position and _comment_follows(tokens, position - 1):
        return "// begins a comment; a quotient of integers is floor_divide(a, b)"
    if not text and "}" in expected:
        return "a '{' is not closed"
    if kind == "def" or (kind == "}" and wants_expression):
        return "a body ends with an expression (its value), without a semicolon"
    if kind == "}" and "else" in expected:
        return "a choice is a value: write what it is otherwise, `else { ... }`"
    if kind == "[" and wants_expression:
        return "several tensors are (%x, %y); a small one is const([1, 2], (2,), int32); attributes are given by name: axis=[0, 1]"
    if kind == "LOCAL" and "LOCAL" not in expected and {"BOOL", "STRING"} <= set(expected):
        return (
            "an attribute is known when the program is compiled: a number, or a size as Dim[n]; what only a run knows is an operand, "
            "as of dyn.strided_slice, dyn.reshape, dyn.arange"
        )
    if kind == "{" and _word_before_parentheses(tokens, position) in _LOOPS:
        return _LOOP
    if before in _BEFORE and (before != "*" or kind == "*"):
        return _BEFORE[before]
    if text == ":" and tokens.kinds[position - 1] == "NAME":
        return f"a variable is %{before}, a function @{before}"
    if text in _FOUND:
        return _FOUND[text]
    if (kind in _BEGINS_EXPRESSION or text == "_") and ";" in expected:
        return "a binding ends with a semicolon; arguments, and the cases of a match, are separated by commas"
    return ""


def _comment_follows(tokens: Tokens, position: int) -> bool:
    """Whether a comment to the end of the line stands behind a token in its line, close to it, and what looks like an operand
    behind that."""
    end = tokens.offsets[position] + len(tokens.texts[position])
    return re.match(r" ?// ?[%\d(]", tokens.text[end:]) is not None


def _word_before_parentheses(tokens: Tokens, position: int) -> str:
    """The word before the parentheses that end just before a token."""
    depth = 0
    for at in range(position - 1, -1, -1):
        depth += (tokens.kinds[at] == ")") - (tokens.kinds[at] == "(")
        if depth <= 0:
            return tokens.texts[at - 1] if at and tokens.kinds[at] == "(" else ""
    return ""
