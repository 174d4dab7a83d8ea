"""Folds over lists of tensors as loops over rows: where what follows from items alone is multiplied, and under gradients."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.ir.module import Module
from tests.batching.programs import lowered, module

X, S = "Tensor[(1, d), float32]", "Tensor[(1, h), float32]"
SIZES = "%w: Tensor[(h, d), float32], %u: Tensor[(h, h), float32]"
# Entries of a list `%xs`, of matrices `%w` and `%u` and of a start `%z`.
PROGRAMS = MappingProxyType(
    {
        "a cell": f"""def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{
  @foldl(fn (%s: {S}, %x: {X}) {{ tanh(nn.dense(%x, %w) + nn.dense(%s, %u)) }}, %z, %xs)
}}""",
        "pairs": f"""def @main[d: Dim, h: Dim](%xs: List[({X}, Tensor[(), float32])], {SIZES}, %z: {S}) -> {S} {{
  @foldl(fn (%s: {S}, %x: ({X}, Tensor[(), float32])) {{ %s * %x.1 + tanh(nn.dense(%x.0, %w)) + nn.dense(%s, %u) }}, %z, %xs)
}}""",
        "two accumulators": f"""def @go[d: Dim, h: Dim](%xs: List[{X}], %a: {S}, %n: int32, {SIZES}) -> ({S}, int32) {{
  match (%xs) {{
    Cons(%x, %rest) => @go(%rest, sigmoid(nn.dense(%x, %w)) * %a + nn.dense(%a, %u), %n + 1, %w, %u),
    Nil => (%a * 2f, %n),
  }}
}}
def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> ({S}, int32) {{ @go(%xs, %z, 0, %w, %u) }}""",
        "a list of what is made": f"""def @go[d: Dim, h: Dim](%xs: List[{X}], %a: List[{S}], %w: Tensor[(h, d), float32]) -> List[{S}] {{
  match (%xs) {{ Cons(%x, %rest) => @go(%rest, Cons(nn.dense(%x, %w), %a), %w), Nil => %a }}
}}
def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{
  @foldl(fn (%s: {S}, %y: {S}) {{ tanh(%y - nn.dense(%s, %u)) }}, %z, @go(%xs, Nil, %w))
}}""",
        "the states": f"""def @scan[d: Dim, h: Dim](%xs: List[{X}], %s: {S}, {SIZES}) -> List[{S}] {{
  match (%xs) {{
    Cons(%x, %rest) => {{ let %n = tanh(nn.dense(%x, %w) + nn.dense(%s, %u)); Cons(%n, @scan(%rest, %n, %w, %u)) }},
    Nil => Nil,
  }}
}}
def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{
  @foldl(fn (%a: {S}, %s: {S}) {{ %a * 0.5f + %s }}, %z, @scan(%xs, %z, %w, %u))
}}""",
        "what is made and the last": f"""def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> ({S}, {S}) {{
  let %r = @map_accuml(fn (%s: {S}, %x: {X}) {{ let %n = tanh(nn.dense(%x, %w) + nn.dense(%s, %u)); (%n, %n - %s) }}, %z, %xs);
  (%r.0, @foldl(fn (%a: {S}, %s: {S}) {{ %a * 0.5f + %s }}, %z, %r.1))
}}""",
        "lists of lists": f"""def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{
  @foldl(fn (%o: {S}, %ys: List[{X}]) {{
    %o + @foldl(fn (%s: {S}, %x: {X}) {{ tanh(nn.dense(%x, %w) + nn.dense(%s, %u) + %o) }}, %z, %ys)
  }}, %z, Cons(%xs, Cons(Nil, Cons(%xs, Nil))))
}}""",
    }
)


def program(name: str) -> Module:
    return module(f"import prelude\n{PROGRAMS[name]}\n")


def arguments(name: str, items: int, d: int, h: int) -> list[Any]:
    rng = np.random.default_rng(items)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1] if shape else 1), np.float32)

    xs = [(draw(1, d), draw()) if name == "pairs" else draw(1, d) for _ in range(items)]
    return [xs, draw(h, d), draw(h, h), draw(1, h)]


def same(found: object, expected: object) -> None:
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-5)


def stacks(mod: Module) -> int:
    """How many functions hand the rows of a list on to a loop, and end with it."""
    return sum(n.endswith("__rows") for n in lowered(mod, "stack_items").functions)


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_over_rows_compute_what_folds_do(name: str, executor: str) -> None:
    """Of lists of no item, of one and of several."""
    mod = program(name)
    assert stacks(mod) == 1
    exe = relay.compile(mod, threads=1, executor=executor)
    for items in (0, 1, 2, 17):
        given = arguments(name, items, 5, 4)
        same(exe(*given), relay.evaluate(mod, *given))


@pytest.mark.parametrize(("d", "h", "made"), [(64, 64, 1), (64, 63, 0)])
def test_small_matrices_are_read_for_each_item(d: int, h: int, made: int) -> None:
    _, *bound = arguments("a cell", 0, d, h)
    mod = program("a cell").bind(dict(zip(("w", "u", "z"), bound, strict=True)))
    assert stacks(mod) == made
    given, *_ = arguments("a cell", 9, d, h)
    same(relay.compile(mod, threads=1)(given), relay.evaluate(mod, given))


@pytest.mark.parametrize(
    "step",
    [
        "tanh(nn.dense(%s, %u) * mean(%x))",  # nothing of an item is multiplied
        "if (mean(%x) > 0f) { tanh(nn.dense(%s, %u)) } else { %s }",
    ],
)
def test_folds_that_gain_nothing_stay(step: str) -> None:
    mod = module(f"""import prelude
def @main[d: Dim, h: Dim](%xs: List[{X}], %u: Tensor[(h, h), float32], %z: {S}) -> {S} {{
  @foldl(fn (%s: {S}, %x: {X}) {{ {step} }}, %z, %xs)
}}
""")
    assert stacks(mod) == 0


def test_a_fold_that_may_end_early_stays() -> None:
    """Items behind its end are not read."""
    mod = module(f"""import prelude
def @go[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{
  match (%xs) {{
    Cons(%x, %rest) => {{ let %y = nn.dense(%x, %w); if (mean(%y) > 0f) {{ %z }} else {{ @go(%rest, %w, %u, tanh(%y + %z)) }} }},
    Nil => %z,
  }}
}}
def @main[d: Dim, h: Dim](%xs: List[{X}], {SIZES}, %z: {S}) -> {S} {{ @go(%xs, %w, %u, %z) }}
""")
    assert stacks(mod) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    """Of the matrices and the start, small as they are."""
    fields = "(%r.0)" if "-> (" in PROGRAMS[name].split("@main")[1] else "(%r)"
    of = f"%w: Tensor[(h, d), float32], %u: Tensor[(h, h), float32], %z: {S}"
    items = f"List[({X}, Tensor[(), float32])]" if name == "pairs" else f"List[{X}]"
    text = PROGRAMS[name].replace("@main", "@value")
    mod = module(f"""import prelude
{text}
def @main[d: Dim, h: Dim](%xs: {items}, {of}) {{
  grad(fn ({of}) {{ let %r = @value(%xs, %w, %u, %z); sum{fields} }})(%w, %u, %z)
}}
""")
    exe = relay.compile(mod, threads=1)
    for n in (0, 1, 6):
        given = arguments(name, n, 5, 4)
        same(exe(*given), relay.evaluate(mod, *given))


@pytest.mark.parametrize("matrix", ["Tensor[(?, ?), float32]", "Tensor[(2, ?), float32]"])
@pytest.mark.parametrize("sizes", [(3,), (3, 3), ()])
def test_items_whose_sizes_no_argument_says_are_not_stacked(matrix: str, sizes: tuple[int, ...]) -> None:
    text = f"""#[version = "0.0.5"]
import prelude
def @main(%l: List[Tensor[(?,), float32]], %m: {matrix}) {{
  @map(fn (%y) {{ nn.dense(%m, reshape(%y, newshape=[1, -1])) }}, %l)
}}
"""
    program = relay.parse(text)
    items, matrix_ = [np.arange(n, dtype=np.float32) for n in sizes], np.ones((2, 3), np.float32)
    expected: Any = relay.evaluate(program, items, matrix_)
    for executor in ("vm", "aot"):
        found: Any = relay.compile(program, executor=executor)(items, matrix_)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_size_that_stands_in_a_list_alone_is_named_where_it_is_needed() -> None:
    text = """#[version = "0.0.5"]
import prelude
def @main[n: Dim](%l: List[int32], %o: Option[Tensor[(n,), float32]]) {
  @map(fn (%y) { ones(shape=[Dim[n]], dtype="float32") }, %l)
}
"""
    with pytest.raises(
        relay.RelayError, match=r"<text>:4:18: the size n is not known here: no tensor among the arguments"
    ):
        relay.compile(relay.parse(text))
