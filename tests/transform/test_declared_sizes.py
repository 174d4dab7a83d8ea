"""What functions declare of sizes is checked at calls whose arguments' types do not say it, as the interpreter checks it."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import ExecutionError, RelayError
from relay.transform.name_dims import NameDims
from tests.transform.support import operators, run

F = "Tensor[({}, 4), float32]"


def program(dims: str, size: str, main_dims: str = "", given: str = "?") -> str:
    inside, outside = F.format(size), F.format(given)
    return f"""#[version = "0.0.5"]
def @f[{dims}](%y: {inside}) -> {inside} {{ add(%y, %y) }}
def @main{main_dims}(%x: {outside}) -> {outside} {{ multiply(@f(%x), 2.0) }}
"""


LOCAL = f"""#[version = "0.0.5"]
def @main(%x: {F.format("?")}) -> {F.format("?")} {{
  let %g = fn [m: Dim(2, 3)](%y: {F.format("m")}) -> {F.format("m")} {{ add(%y, %y) }};
  %g(%x)
}}
"""


@pytest.mark.parametrize(
    "text",
    [
        program("m: Dim(2, 3)", "m"),
        program("m: Dim(2, 3)", "m", "[n: Dim]", "n"),
        program("k: Dim", "2*k"),
        program("k: Dim", "2*k + 1"),
        program("k: Dim(1, 2)", "2*k"),
        LOCAL,
    ],
    ids=["bounds", "bounds of a named size", "multiples", "odd sizes", "bounded multiples", "a local function"],
)
@pytest.mark.parametrize("level", [0, 3])
def test_sizes_are_refused_where_the_interpreter_refuses_them(text: str, level: int) -> None:
    module = relay.parse(text)
    exe = relay.compile(module, opt_level=level)
    refused = 0
    for n in range(1, 8):
        x = np.ones((n, 4), np.float32)
        try:
            expected = np.asarray(relay.evaluate(module, x))
        except RelayError:
            refused += 1
            with pytest.raises(ExecutionError, match=r"must agree|is more than"):
                exe(x)
        else:
            np.testing.assert_array_equal(np.asarray(exe(x)), expected)
    assert 0 < refused < 7


def test_a_size_within_bounds_is_not_checked() -> None:
    text = program("m: Dim(1, 8)", "m", "[n: Dim(2, 5)]", "n")
    assert "check_equal" not in operators(run(relay.parse(text), NameDims()))
    assert "check_equal" in operators(run(relay.parse(text.replace("(2, 5)", "(2, 9)")), NameDims()))


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize(
    ("known", "rule"), [(False, "must agree or be 1: 3 and 5"), (True, "must agree unless the second is 1: 3 and 5")]
)
def test_sizes_that_do_not_broadcast_are_shown(known: bool, rule: str, executor: str) -> None:
    dims, size = ("[n: Dim]", "n") if known else ("", "?")
    text = f'#[version = "0.0.5"]\ndef @main{dims}(%x: {F.format(size)}, %y: {F.format("?")}) {{ %x + %y }}'
    exe = relay.compile(text, executor=executor)
    three, one = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(ExecutionError, match=rf"add's operands {rule} in @main"):
        exe(three, np.ones((5, 4), np.float32))
    with pytest.raises(RelayError, match=r"add's operands must agree"):
        relay.evaluate(run(relay.parse(text), NameDims()), three, np.ones((5, 4), np.float32))
    assert np.asarray(exe(three, one)).tolist() == np.full((3, 4), 2.0).tolist()


def test_the_argument_that_disagrees_is_the_later_one() -> None:
    """The first argument with a size says what it is, and the next that has another is refused, as in the interpreter."""
    text = f"""#[version = "0.0.5"]
def @f[n: Dim](%a: {F.format("n")}, %b: {F.format("n")}) -> {F.format("n")} {{ if (sum(%a) > 0f) {{ @f(%b - %a, %a) }} else {{ %a + %b }} }}
def @main(%x: {F.format("?")}, %y: {F.format("?")}) {{ @f(%x, %y) }}"""
    given = np.ones((3, 4), np.float32), np.ones((5, 4), np.float32)
    with pytest.raises(ExecutionError, match="axis 0 of argument %b of @f must agree: 5 and 3"):
        relay.compile(text)(*given)
    with pytest.raises(RelayError, match=r"argument %b of @f has shape \(5, 4\) where \(n, 4\) with n = 3"):
        relay.evaluate(relay.parse(text), *given)


UNUSED = {
    "an operator": "let %u = reshape(%x, newshape=[2, -1]);",
    "a size": 'let %u = zeros(shape=[Dim[n - 4]], dtype="float32");',
    "bounds": "let %u = @bounded(%x);",
    "inside of a call": "let %u = @halves(%x);",
}


@pytest.mark.parametrize("what", UNUSED)
@pytest.mark.parametrize("level", [0, 3])
def test_what_nobody_uses_is_refused_all_the_same(what: str, level: int) -> None:
    text = f"""#[version = "0.0.5"]
def @bounded[k: Dim(4, 6)](%y: Tensor[(k,), float32]) -> float32 {{ sum(%y) }}
def @halves[k: Dim](%y: Tensor[(k,), float32]) -> float32 {{ let %z = reshape(%y, newshape=[2, -1]); 2f }}
def @main[n: Dim](%x: Tensor[(n,), float32]) -> float32 {{ {UNUSED[what]} sum(%x) }}"""
    exe = relay.compile(text, opt_level=level)
    assert float(exe(np.ones(4, np.float32))) == 4
    three = np.ones(3, np.float32)
    with pytest.raises(RelayError):
        relay.evaluate(relay.parse(text), three)
    with pytest.raises(ExecutionError):
        exe(three)
