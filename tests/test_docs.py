"""What the documentation shows works as printed."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.cli import main
from relay.cli.arguments import call

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]


def _blocks() -> list[tuple[str, int, str]]:
    out = []
    for page in PAGES:
        found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        out += [(page, number, code) for number, code in enumerate(found)]
    return out


def _matches(shown: str, printed: str) -> bool:
    """Whether that is printed, however it is broken into lines; ``...`` stands for anything."""
    parts = (re.escape(" ".join(part.split())) for part in shown.split("..."))
    return re.fullmatch(r"\s*.*\s*".join(parts), " ".join(printed.split()), re.DOTALL) is not None


@pytest.mark.parametrize(("page", "number", "code"), _blocks())
def test_python_blocks_run(page: str, number: int, code: str) -> None:
    """What a line prints is what the comment behind it says."""
    lines, printed = code.splitlines(), dict[int, list[str]]()

    def record(*values: object) -> None:
        printed.setdefault(sys._getframe(1).f_lineno, []).append(" ".join(map(str, values)))

    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "example", "print": record})
    for line, texts in printed.items():
        _, _, shown = lines[line - 1].partition("  # ")
        wanted = [part.strip() for part in shown.split(" | ")]
        assert len(wanted) == len(texts), f"{page}: {lines[line - 1]} prints {texts}"
        for part, text in zip(wanted, texts, strict=True):
            assert _matches(part, text), f"{page}: {lines[line - 1]} prints {text}"


def test_outputs_are_compared() -> None:
    assert _matches("fn (%x) { ... }", "fn (%x) {\n  1 + %x\n}") and _matches("...", "anything")
    assert not _matches("3.5", "315") and not _matches("fn (%x) { ...", "fn (%y) { 1 }")


def _commands() -> list[tuple[str, str]]:
    """The commands that the pages show, and where."""
    out = []
    for page in PAGES:
        for line in (ROOT / page).read_text().splitlines():
            found = re.match(r"(?:    (?:\$ )?)?relay ([a-z]+ .*)", line)
            if found is not None:
                out.append((page, found[1]))
    return out


@pytest.mark.parametrize(("page", "line"), _commands())
def test_commands_have_the_options_that_are_shown(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def only_read(verb: Callable[..., None], name: str, arguments: list[str]) -> None:
        @functools.wraps(verb)
        def noted(**options: Any) -> None:
            read.append(options)

        call(noted, name, arguments)

    monkeypatch.setattr(main, "call", only_read)
    main.command(shlex.split(re.sub(r"\s(<|>) .*", "", line), comments=True))
    assert read, f"{page}: relay {line}"


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, "CONTRIBUTING.md"]:
        path = ROOT / page
        for target in re.findall(r"\]\(([^)#\s%]+)\)", path.read_text()):
            if "://" not in target and ("." in target or "/" in target):
                assert (path.parent / target).exists(), f"{page} links to {target}"
