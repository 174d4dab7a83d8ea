"""The step debugger, driven by scripts as a user drives it from standard input."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.cli.debug import Stopped, debug
from relay.ir.diagnostics import ExecutionError

PROGRAM = """#[version = "0.0.5"]
type Tree { Leaf(int64), Node(Tree, Tree) }
def @sum(%t: Tree) -> int64 {
  match (%t) {
    Leaf(%n) => %n,
    Node(%l, %r) => {
      let %a = @sum(%l);
      let %b = @sum(%r);
      %a + %b
    },
  }
}
def @main(%x: int64) -> int64 {
  let %t = Node(Leaf(%x), Node(Leaf(2i64), Leaf(3i64)));
  @sum(%t)
}
"""


def session(*commands: str, text: str = PROGRAM, **options: object) -> tuple[str, object]:
    """What the debugger said, without its prompts, and the result (None: stopped)."""
    out = io.StringIO()
    chosen = relay.Options(opt_level=0, cache=False, **options)  # type: ignore[arg-type]
    result: object
    try:
        source = io.StringIO("".join(f"{c}\n" for c in commands))
        result = debug(relay.parse(text), "main", [np.int64(5)], chosen, source, out)
    except Stopped:
        result = None
    return out.getvalue().replace("(relay) ", ""), result


def test_it_stops_at_the_first_place_and_runs_to_the_end() -> None:
    said, result = session("continue")
    assert said == "@main at <text>:14:17\n   14 |   let %t = Node(Leaf(%x), Node(Leaf(2i64), Leaf(3i64)));\n" + (
        "      |                 ^\n"
    )
    assert int(np.asarray(result)) == 10


def test_the_end_of_the_script_and_quit_stop_the_run() -> None:
    assert session() == (session("quit")[0], None)


def test_breakpoints_on_functions_and_their_values() -> None:
    said, _ = session("break @sum", "c", "print %t", "c", "p t", "breakpoints", "delete 1", "c")
    lines = said.splitlines()
    assert lines[3] == "breakpoint 1 at sum"
    assert lines[4:6] == ["breakpoint 1", "@sum at <text>:4:3"]
    assert "Node(Leaf(5), Node(Leaf(2), Leaf(3)))" in lines and "Leaf(5)" in lines
    assert lines[-1] == "1  sum"
    assert said.count("breakpoint 1\n") == 2


def test_constructors_are_named_by_the_types_of_their_variables() -> None:
    """Several data types have a first constructor of one field and a second of none: the value alone does not say which it is."""
    text = """#[version = "0.0.5"]
import prelude
type Shape { Dot(int64), Group(List[Shape], Option[(int64, Shape)]) }
def @count(%s: Shape) -> int64 {
  match (%s) {
    Dot(%n) => %n,
    Group(%all, %o) => {
      let %sum = @foldl(fn (%a: int64, %t: Shape) -> int64 { %a + @count(%t) }, 0i64, %all);
      match (%o) { Some((%n, %t)) => %n * @count(%t) + %sum, None => %sum }
    },
  }
}
def @main(%x: int64) -> int64 { @count(Group(Cons(Dot(%x), Nil), Some((%x, Group(Nil, None))))) }
"""
    said, result = session("break count", "c", "print %s", "c", "locals", "c", "p s", "c", text=text)
    for shown in ("Group(Cons(Dot(5), Nil), Some((5, Group(..., ...))))", "%s = Dot(5)", "Group(Nil, None)"):
        assert shown in said.splitlines()
    assert int(np.asarray(result)) == 5


def test_breakpoints_on_lines_stop_once_a_line() -> None:
    said, result = session("b 9", "c", "locals", "c", "locals", "c")
    assert said.count("@sum at <text>:9:10") == 2
    assert "%a = 2\n%b = 3\n" in said and "%a = 5\n%b = 5\n" in said
    assert int(np.asarray(result)) == 10


def test_a_line_stops_once_for_all_of_its_operations_and_calls() -> None:
    text = PROGRAM.replace("let %a = @sum(%l);\n      let %b = @sum(%r);\n      %a + %b", "@sum(%l) + @sum(%r)")
    said, result = session("b 7", *["c"] * 9, text=text)
    assert said.count("@sum at <text>:7:") == 2  # one for each Node
    assert int(np.asarray(result)) == 10


def test_stepping_into_over_and_out() -> None:
    places = [line for line in session("b sum", "c", *["s"] * 3)[0].splitlines() if line.startswith("@")]
    assert places[1:5] == ["@sum at <text>:4:3", "@sum at <text>:7:16", "@sum at <text>:4:3", "@sum at <text>:8:16"]
    places = [line for line in session("b sum", "c", "delete", *["n"] * 3)[0].splitlines() if line.startswith("@")]
    assert places[1:] == [f"@sum at <text>:{at}" for at in ("4:3", "7:16", "8:16", "9:10")]
    said = session("b sum", "c", "c", "delete", "finish", "print a")[0].splitlines()
    assert said[-1] == "5" and "@sum at <text>:8:16" in said


def test_an_empty_line_repeats() -> None:
    assert session("b 4", "c", "n", "")[0] == session("b 4", "c", "n", "n")[0]


def test_backtrace_and_callers() -> None:
    said, _ = session("b sum", "c", "c", "bt", "up", "p %r", "p %t", "bt", "down", "list")
    assert "> 0  @sum at <text>:4:3\n  1  @sum at <text>:7:16\n" in said
    assert "Node(Leaf(2), Leaf(3))\nno %t holds a value here; there are: %r\n" in said, "%l went to the call"
    assert "  0  @sum at <text>:4:3\n> 1  @sum at <text>:7:16\n" in said
    assert ">    4   match (%t) {\n" in said


def test_wrong_commands_are_answered() -> None:
    said, _ = session("jump", "b nowhere", "b 1000", "delete 7", "help", "c")
    assert "there is no command 'jump'; help shows them\n" in said
    assert "no function 'nowhere' with source places; there are: main, sum\n" in said
    assert "no code comes from line 1000\n" in said
    assert "there is no breakpoint 7\n" in said
    assert "backtrace                           the open calls, newest first (bt)\n" in said


def test_tensors_are_shown_with_their_type() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: int64) -> Tensor[(3,), int64] {
  let %y = full(%x, shape=[3]);
  let %z = (%y, %x);
  add(%z.0, %z.1)
}
"""
    said, result = session("n", "locals", "c", text=text)
    assert "%y = int64[3] [5 5 5]\n" in said
    np.testing.assert_array_equal(np.asarray(result), [10, 10, 10])


def test_failures_end_the_session_with_their_place() -> None:
    text = PROGRAM.replace("@sum(%t)\n}", "match? (%t) { Leaf(%n) => %n }\n}")
    with pytest.raises(ExecutionError, match="no clause of the match at <text>:15:3 fits a Node of "):
        session("c", text=text)


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "tree.relay").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "relay", "run", "tree.relay", "--debug", "-i", "x=1"],
        input="b tree.relay:9\nc\np %b\nc\nc\n", capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "(relay) 3\n" in done.stdout
    assert done.stdout.endswith("Tensor[(), int64]\n6\n")
