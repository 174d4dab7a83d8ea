"""What the documentation shows works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]


def _blocks() -> list[tuple[str, int, str]]:
    out = []
    for page in PAGES:
        found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        out += [(page, number, code) for number, code in enumerate(found)]
    return out


@pytest.mark.parametrize(("page", "number", "code"), _blocks())
def test_python_blocks_run(page: str, number: int, code: str) -> None:
    exec(compile(code, f"{page}, block {number}", "exec"), {"__name__": "example"})


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, "CONTRIBUTING.md"]:
        path = ROOT / page
        for target in re.findall(r"\]\(([^)#\s%]+)\)", path.read_text()):
            if "://" not in target and ("." in target or "/" in target):
                assert (path.parent / target).exists(), f"{page} links to {target}"
