"""Values on the command line: structures as texts, random ones, and what is no value of its type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay.cli.inputs import arguments
from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.value import AdtValue, from_list
from tests.cli.process import run

TEXT = """#[version = "0.0.5"]
import prelude
type Tree { Leaf(float32), Node(Tree, Tree), }
type Endless { More(Endless), }
type Many[A] { Empty, Pair(A, Many[(A, A)]), }
def @total(%t: Tree) -> float32 { match (%t) { Leaf(%x) => %x, Node(%a, %b) => @total(%a) + @total(%b), } }
def @main[n: Dim](%t: Tree, %xs: List[(Tensor[(n,), float32], Tree)], %o: Option[float32], %p: (Tree, Tensor[(2*n,), float32])) {
  let %each = @foldl(fn (%s, %x) { %s + sum(%x.0) + @total(%x.1) }, 0f, %xs);
  (@total(%t), %each, match (%o) { Some(%x) => %x, None => -1f, }, @total(%p.0) + sum(%p.1))
}
def @length(%xs: List[float32]) -> int64 { @foldl(fn (%n, %x) { %n + 1i64 }, 0i64, %xs) }
def @never(%e: Endless) { 1f }
def @many(%m: Many[float32]) { 1f }
def @applies(%f: fn (float32) -> float32) { %f(1f) }
def @beside(%p: (float32, fn (float32) -> float32)) { %p.1(%p.0) }
"""
ENTRIES = ("main", "length", "never", "many", "applies", "beside")


@pytest.fixture(scope="module")
def exe() -> relay.Executable:
    return relay.compile(TEXT, entries=ENTRIES)


def given(
    exe: relay.Executable, *texts: str, entry: str = "main", dims: tuple[str, ...] = (), seed: int = 0
) -> list[object]:
    return arguments(exe.signature(entry), texts, dims, seed)


def test_structures_are_read(exe: relay.Executable, tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.array([3, 4], np.float32))
    texts = (
        "t=Node(Leaf(1.5), Node(Leaf(2), Leaf(-1)))",
        f"xs=[([1, 2], Leaf(1)), ({str(tmp_path / 'two.npy')!r}, Leaf(inf))]",
        "o=Some(5)",
        "p=(Leaf(1), [1, 2, 3, 4])",
    )
    found = [float(x) for x in exe(*given(exe, *texts))]
    assert found == [2.5, np.inf, 5.0, 11.0]
    assert float(exe(*given(exe, *texts[:2], "o=None", texts[3]))[2]) == -1
    assert from_list(given(exe, "xs=[]")[1]) == []  # type: ignore[arg-type]


def test_random_values_have_the_size_that_is_asked_for(exe: relay.Executable) -> None:
    def inner(t: AdtValue) -> int:
        return 1 + sum(map(inner, t.fields)) if t.constructor == "Node" else 0

    for size in (0, 1, 7, 100):
        trees = [given(exe, dims=(f"t={size}", "xs=3", "n=2"), seed=s)[0] for s in range(5)]
        assert {inner(t) for t in trees} == {size}  # type: ignore[arg-type]
        assert len({repr(t) for t in trees}) == 5
        assert int(exe.run("length", *given(exe, entry="length", dims=(f"xs={size}",)))) == size
    pair: Any = given(exe, dims=("n=3", "p=4"))[3]
    assert inner(pair[0]) == 4 and len(pair[1]) == 6
    # Deeper than Python's stack; sizes of types inside of types that grow.
    assert int(exe.run("length", *given(exe, entry="length", dims=("xs=20000",)))) == 20000
    assert float(exe.run("many", *given(exe, entry="many", dims=("m=5",)))) == 1
    assert repr(given(exe, seed=3)) == repr(given(exe, seed=3))


@pytest.mark.parametrize(
    ("entry", "text", "says"),
    [
        ("main", "t=Nod(1)", "Tree, which %t is made of, has no constructor Nod"),
        ("main", "t=Leaf(1, 2)", "Leaf in the value of %t takes 1 fields, not 2"),
        ("main", "t=Node(Leaf(1), 3)", "cannot read a value of %t from '3'"),
        ("main", "t=Leaf('x')", "cannot read a value of %t"),
        ("main", "t=Leaf(x=1)", "cannot read a value of %t"),
        ("main", "xs=[(1, Leaf(1), 2)]", "cannot read a value of %xs"),
        ("main", "o=Some(", "cannot read a value of %o from 'Some('"),
        ("main", "p=(Leaf(1e39), [1])", "1e+39 does not fit in float32"),
        ("main", "t=" + "Node(" * 3000, "cannot read a value of %t"),
        ("main", "xs=(random,)", "cannot read a value of %xs"),
        ("never", "e=random", "%e holds what is no tensor and no data"),
        ("applies", "f=random", "call the program from Python"),
        ("beside", "p=random", "call the program from Python"),
        ("beside", "p=(1, random)", "call the program from Python"),
        ("applies", "f=1", "call the program from Python"),
    ],
)
def test_what_is_no_value_of_its_type(exe: relay.Executable, entry: str, text: str, says: str) -> None:
    with pytest.raises((RelayError, TypeError_)) as caught:
        given(exe, text, entry=entry)
    assert says in str(caught.value)


def test_the_verbs_take_structures(tmp_path: Path) -> None:
    (tmp_path / "m.relay").write_text(TEXT)
    values = ("-i", "t=Node(Leaf(1), Leaf(2))", "-i", "xs=[]", "-i", "o=None", "-i", "p=(Leaf(1), [1, 2])")
    results = [run("run", tmp_path / "m.relay", *values, "--json", *more) for more in ((), ("--interpret",))]
    assert [json.loads(r.stdout) for r in results] == [[3.0, 0.0, -1.0, 4.0]] * 2, results
    done = run("verify", tmp_path / "m.relay", "-d", "t=5", "-d", "n=3")
    assert "agree" in done.stdout, done.stderr
    done = run("profile", tmp_path / "m.relay", "--seconds", "0.01", "--batch", "3", "--threads", "1")
    assert "runs recorded on 1 thread" in done.stdout, done.stderr
    done = run("profile", tmp_path / "m.relay", "--batch", "0")
    assert done.returncode == 2 and "at least one request" in done.stderr
