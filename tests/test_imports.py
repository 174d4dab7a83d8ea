"""Importing Relay from many threads at once, each beginning somewhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "relay"


def _modules() -> dict[str, Path]:
    names = {p: ".".join(("relay", *p.relative_to(ROOT).with_suffix("").parts)) for p in ROOT.rglob("*.py")}
    return {n.removesuffix(".__init__"): p for p, n in names.items()}


MODULES = _modules()
PACKAGES = {n for n, p in MODULES.items() if p.name == "__init__.py"}


def _imports(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when a module is imported."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            if ast.unparse(statement.test) != "TYPE_CHECKING":
                yield from _imports(statement.body)
            yield from _imports(statement.orelse)
        elif isinstance(statement, ast.Try | ast.ClassDef | ast.With):
            yield from _imports(statement.body)


def _waits_for(name: str) -> set[str]:
    """The modules whose locks Python takes while it holds this one's."""
    out = {name.rpartition(".")[0]}
    for statement in _imports(ast.parse(MODULES[name].read_text()).body):
        if isinstance(statement, ast.Import):
            out |= {a.name for a in statement.names}
            continue
        home = statement.module or ""
        out.add(home)
        for alias in statement.names:
            inner = f"{home}.{alias.name}"
            out.add(inner if inner in MODULES else f"{home}.exports" if home in PACKAGES else home)
            out.add(f"{inner}.exports")  # names are asked of a package
    return {n for n in out if n in MODULES and n != name}


def test_no_module_waits_for_one_that_waits_for_it() -> None:
    """Then two threads that begin anywhere cannot wait for each other, and see no module that is half there."""
    edges = {name: _waits_for(name) for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(MODULES):
        visit(name, ())
    assert "relay.te.tensor" in edges["relay.te.exports"] and "relay.te" in edges["relay.te.tensor"]


def test_numpy_is_imported_before_what_imports_a_part_of_it() -> None:
    for name, path in MODULES.items():
        of_numpy = []
        for statement in _imports(ast.parse(path.read_text()).body):
            found = (
                [statement.module or ""] if isinstance(statement, ast.ImportFrom) else [a.name for a in statement.names]
            )
            of_numpy += [n for n in found if n.partition(".")[0] in ("numpy", "ml_dtypes")]
        assert of_numpy[:1] in ([], ["numpy"]), name


# typing first: dataclasses looks into it without waiting until another thread has imported it whole.
PROGRAM = """
import importlib, random, sys, threading, typing
random.seed(int(sys.argv[1]))
sys.setswitchinterval(1e-5)
modules = sys.argv[2:]
names = "compile evaluate load parse te op transform operator grad Options Pipeline Tensor Executable const".split()
start = threading.Barrier(32)
failures = []

def work(first, second):
    start.wait()
    try:
        for name in first, second:
            if name in names:
                import relay
                getattr(relay, name)
            else:
                importlib.import_module(name)
    except BaseException as error:
        failures.append((name, error))

threads = [threading.Thread(target=work, args=random.sample(names + modules, 2)) for _ in range(32)]
[t.start() for t in threads], [t.join() for t in threads]
import relay
assert not failures, failures
assert len(relay.op.names()) > 100 and relay.te.sum and relay.transform.Pipeline
"""


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_begin_anywhere(seed: int) -> None:
    modules = sorted(n for n in MODULES if "__main__" not in n and ".peers" not in n)
    subprocess.run([sys.executable, "-c", PROGRAM, str(seed), *modules], check=True, timeout=120)
