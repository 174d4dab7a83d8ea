"""From text to tokens: parallel lists of kinds, texts and offsets (plain lists, because a program can have a million tokens)."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import field

from relay.ir.diagnostics import SyntaxError_
from relay.ir.hints import CHARACTERS
from relay.ir.record import record
from relay.ir.span import Span

VERSION = "0.0.5"

_KEYWORDS = (
    "let", "fn", "def", "type", "extern", "import", "if", "else", "match", "where", "free_var", "ref", "grad", "jvp", "meta", "const",
    "_",
)  # fmt: skip
_NOT_FINITE = frozenset(f"{value}f{bits}" for value in ("inf", "nan") for bits in ("", "16", "32", "64"))
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<LOCAL>%[^\W\d]\w*(?:\.\w+|/[^\W\d]\w*)*)
    | (?P<GRAPH>%\d+(?:\.\d+)*)
    | (?P<PUNCTUATION>:=|=>|->|<=|>=|==|!=|//|[()\[\]{},;:=<>+\-*/!|%])
    | (?P<NAME>[^\W\d]\w*(?:\.[^\W\d]\w*|/[^\W\d]\w*)*\??)
    | (?P<FLOAT>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?:f(?:16|32|64)?|bf16)(?!\w)|\d+\.\d*(?:[eE][+-]?\d+)?(?!\w)|\d+[eE][+-]?\d+(?!\w))
    | (?P<INT>\d+(?:[iu](?:64|32|16|8|4)?)?(?!\w))
    | (?P<GLOBAL>@[^\W\d]\w*(?:\.\w+|/\w+)*)
    | (?P<STRING>"(?:[^"\\\n]|\\.)*")
    | (?P<PROJ>\.\d+)
    | (?P<UNKNOWN>\?(?:[^\W\d]\w*)?)
    | (?P<END>\Z)
    )""",
    re.VERBOSE,
)
_NAMED_ARGUMENT = re.compile(r"\s*=(?![=>])")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*|\*/|//|[\[\]]')
_METADATA = re.compile(r"^[ \t]*#\[metadata\]", re.MULTILINE)
_VERSION = re.compile(r'\s*#\[\s*version\s*=\s*"([^"]*)"\s*\]')


@record(slots=True)
class Tokens:
    """The tokens of a source. ``kinds`` ends with ``$END``; a keyword or punctuation is its own kind."""

    source: str
    text: str
    version: str | None
    metadata: str | None
    kinds: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def span_at(self, offset: int, length: int) -> Span:
        line = bisect_right(self.lines, offset)
        return Span(self.source, line, offset - self.lines[line - 1] + 1, length)

    def span(self, token: int) -> Span:
        offset = self.offsets[token]
        line = bisect_right(self.lines, offset)
        return Span(self.source, line, offset - self.lines[line - 1] + 1, len(self.texts[token]))


def _blank(text: str, start: int, end: int) -> str:
    """Spaces of the same length, lines kept, so that offsets stay true."""
    return re.sub(r"[^\n]", " ", text[start:end])


def _without_comments(text: str, tokens: Tokens) -> str:
    """Comments become blanks: ``/* */``, which nest, and ``//`` to the end of the line outside square brackets.

    Inside brackets, where shapes stand, ``//`` is floor division.
    """
    if "/*" not in text and "//" not in text:
        return text
    out: list[str] = []
    done = position = 0
    brackets = 0
    opened: list[int] = []  # where the open block comments start
    while (found := _COMMENT.search(text, position)) is not None:
        start, position = found.span()
        what = found.group()
        if opened:
            if what == "/*":
                opened.append(start)
            elif what == "*/":
                first = opened.pop()
                if not opened:
                    out += (text[done:first], _blank(text, first, position))
                    done = position
            elif what[0] == '"':
                position = start + 1  # a quotation mark in a comment is only a character
        elif what == "/*":
            opened.append(start)
        elif what == "//":
            if not brackets:
                end = text.find("\n", position)
                position = len(text) if end < 0 else end
                out += (text[done:start], " " * (position - start))
                done = position
        elif what == "[":
            brackets += 1
        elif what == "]":
            brackets = max(0, brackets - 1)
    if opened:
        raise SyntaxError_("this comment is never closed", tokens.span_at(opened[0], 2), "end it with */", tokens.text)
    out.append(text[done:])
    return "".join(out)


def tokenize(text: str, source: str) -> Tokens:
    """The tokens of a text. Raises SyntaxError_ for characters that begin no token and for comments that do not end, and for
    what is no text."""
    if not isinstance(text, str):
        raise SyntaxError_(f"Relay text is a str, not a {type(text).__name__}")
    lines = [0]
    position = text.find("\n")
    while position >= 0:
        lines.append(position + 1)
        position = text.find("\n", position + 1)
    tokens = Tokens(source, text, None, None, lines=lines)
    program = text
    if "#[" in text:
        found = _METADATA.search(text)
        if found is not None:
            program, tokens.metadata = text[: found.start()], text[found.end() :]
    program = _without_comments(program, tokens)
    start = 0
    version = _VERSION.match(program)
    if version is not None:
        tokens.version, start = version.group(1), version.end()
        if tokens.version != VERSION:
            where = tokens.span_at(version.start(1), len(tokens.version))
            raise SyntaxError_(
                f"the text is of version {tokens.version!r}, not {VERSION!r}",
                where,
                f'write #[version = "{VERSION}"]',
                text,
            )
    kinds, texts, offsets = tokens.kinds, tokens.texts, tokens.offsets
    add_kind, add_text, add_offset = kinds.append, texts.append, offsets.append
    keywords = frozenset(_KEYWORDS)
    end = start
    for found in _TOKEN.finditer(program, start):
        kind = found.lastgroup
        begin = found.start(kind)  # type: ignore[arg-type]
        if found.start() != end:
            break
        end = found.end()
        word = program[begin:end]
        if kind == "NAME":
            if word in keywords:
                if not _NAMED_ARGUMENT.match(program, end) or word == "_":
                    kind = word
            elif word == "True" or word == "False":
                kind = "BOOL"
            elif word in _NOT_FINITE:
                kind = "FLOAT"
            elif word[-1] == "?":
                if word != "match?":
                    raise SyntaxError_("a name cannot end with '?'", tokens.span_at(begin, len(word)), "", text)
                kind = word
        elif kind == "PUNCTUATION":
            kind = word
        elif kind == "UNKNOWN":
            kind = "?" if word == "?" else "UNKNOWN"
        elif kind == "END":
            kind = "$END"
        add_kind(kind)  # type: ignore[arg-type]
        add_text(word)
        add_offset(begin)
        if kind == "$END":
            return tokens
    while end < len(program) and program[end] in " \t\r\n":
        end += 1
    character = program[end]
    hint = CHARACTERS.get(character, "")
    raise SyntaxError_(f"unexpected character {character!r}", tokens.span_at(end, 1), hint, text)
