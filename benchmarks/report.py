"""Run the benchmarks one after the other and put their tables together: a Markdown page and a picture of each.

    python benchmarks/report.py [minilm dynamic ...] [--out results] [--threads 1,2] [--render]

Every program runs in a process of its own and leaves its table in the directory; ``--render`` only writes the page again. Peers that
are not installed are left out by the programs. The whole takes about an hour: name the programs to run fewer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from table import Table

HERE = Path(__file__).parent
# Programs that make tables, with whether they measure more than one thread.
PROGRAMS = {
    "minilm": True,
    "transformers": True,
    "dynamic": True,
    "trees": True,
    "training": True,
    "rows": True,
    "gradients": True,
    "convolutions": True,
    "loops": True,
    "models": True,
    "novel_programs": True,
    "layers": True,
    "capsule": False,
    "novel_operators": False,
}


def run(program: str, threads: int, directory: Path) -> bool:
    """Whether the program ended well; its output goes to ours."""
    print(f"== {program}, {threads} thread(s)", flush=True)
    command = [sys.executable, str(HERE / f"{program}.py"), "--out", str(directory)]
    done = subprocess.run([*command, "--threads", str(threads)] if PROGRAMS[program] else command, check=False)
    return done.returncode == 0


def render(directory: Path) -> Path:
    """Write ``report.md`` and a picture for each table in the directory."""
    parts = ["# Measurements", ""]
    for path in sorted(directory.glob("*.json")):
        table = Table.read(path)
        path.with_suffix(".svg").write_text(table.picture())
        parts += [table.markdown(), f"![{table.title}]({path.stem}.svg)", ""]
    page = directory / "report.md"
    page.write_text("\n".join(parts))
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR")
    parser.add_argument("--threads", default="1,2", help="thread counts, for example 1,2")
    parser.add_argument("--render", action="store_true", help="only write the page from the tables that are there")
    given = parser.parse_args()
    unknown = [p for p in given.programs if p not in PROGRAMS]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    if not all(n.isdecimal() and int(n) > 0 for n in given.threads.split(",")):
        parser.error(f"--threads takes positive numbers with commas between them, not {given.threads!r}")
    failed: list[str] = []
    if not given.render:
        for program in given.programs or PROGRAMS:
            counts = map(int, given.threads.split(",")) if PROGRAMS[program] else (1,)
            failed += [f"{program} ({n} threads)" for n in counts if not run(program, n, given.out)]
    if not given.out.is_dir():
        parser.error(f"{given.out} is not a directory with tables")
    print(f"wrote {render(given.out)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
