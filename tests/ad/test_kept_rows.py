"""What recursive functions share: its cotangent is one product of rows that the way back has kept, whatever else is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relay
from relay.differentiate import differentiated
from relay.transform.ad import kept_rows
from tests.ad.checks import Derivatives, plain, problem

H = 3
ROW, W = f"Tensor[(1, {H}), float64]", f"Tensor[({H}, {H}), float64]"
HEAD = f"""#[version = "0.0.5"]
import prelude
type Twig[A] {{ Bud(A), Fork(A, Twig[A], Twig[A]) }}
def @ends(%t: Twig[{ROW}]) -> {ROW} {{ match (%t) {{ Bud(%x) => %x, Fork(%x, %a, %b) => %x + @ends(%a) * @ends(%b) }} }}
"""
# A tree of new states: what goes up is data, so no level is batched.
UP = (
    f"def @up(%t: Twig[{ROW}], %w: {W}, %u: {W}) -> Twig[{ROW}] {{ match (%t) {{ Bud(%x) => Bud(tanh(nn.dense(%x, %w))), "
    "Fork(%x, %a, %b) => { let %l = @up(%a, LEFT); let %r = @up(%b, RIGHT);"
    "Fork(OWN + nn.dense(@ends(%l), %u), %l, %r) } } }\n"
    f"def @main(%t: Twig[{ROW}], %w: {W}, %u: {W}) {{ @ends(@up(%t, %w, %u)) }}"
)


def up(left: str = "%w, %u", right: str = "%w, %u", own: str = "nn.dense(%x, %w)") -> str:
    return UP.replace("LEFT", left).replace("RIGHT", right).replace("OWN", own)


# The program, and how many lists there are.
PROGRAMS: dict[str, tuple[str, int]] = {
    "handed on": (up(), 2),
    "in each other's place": (up(right="%u, %w"), 2),
    "changed on the way": (up(right="%w, %u * 0.5f64"), 1),
    "another one here and there": (up(left="%u, %u"), 2),
    "used in another way as well": (up(own="nn.dense(%x, %w) * sum(%w) + nn.dense(%x * %x, %w)"), 2),
    "in a branch": (up(own="(if (sum(%x) > 0f64) { nn.dense(%x, %w) } else { sin(%x) })"), 2),
    "in a closure": (up(own="{ let %f = fn (%y: " + ROW + ") { nn.dense(%y, %w) }; %f(%x) * %f(sin(%x)) }"), 2),
    "rows of two kinds": (up(own="sum(nn.dense(concatenate((%x, %x * 2f64), axis=0), %w), axis=0, keepdims=True)"), 3),
    "a row of it": (up(own="nn.dense(%x, %w) + expand_dims(take(%w, 1, axis=0), axis=0)"), 2),
    "in a function that it calls": (
        f"def @cell(%x: {ROW}, %v: {W}) {{ nn.dense(tanh(nn.dense(%x, %v)), %v) }}\n"
        + up(own="(@cell(%x, %w) + @cell(sin(%x), %w))"),
        2,
    ),
    "in a recursion inside": (
        f"def @down(%t: Twig[{ROW}], %v: {W}) -> Twig[{ROW}] {{ match (%t) {{ Bud(%x) => Bud(nn.dense(%x, %v)), "
        "Fork(%x, %a, %b) => Fork(%x, @down(%a, %v), @down(%b, %v)) } }\n"
        + up(own="(@ends(@down(%t, %w)) + nn.dense(%x, %w))"),
        2,
    ),
    "in a loop inside": (
        f"def @loop(%i: int32, %x: {ROW}, %v: {W}) -> {ROW} "
        "{ if (%i < 1) { %x } else { @loop(%i - 1, sin(nn.dense(%x, %v)), %v) } }\n"
        + up(own="@loop(3, %x, %w)"),
        2,
    ),
    "by each other": (
        f"def @left(%t: Twig[{ROW}], %w: {W}, %u: {W}) -> Twig[{ROW}] {{ match (%t) {{ Bud(%x) => Bud(nn.dense(%x, %u)), "
        "Fork(%x, %a, %b) => Fork(sin(%x), @right(%a, %u, %w), @left(%b, %w, %u)) } }\n"
        f"def @right(%t: Twig[{ROW}], %w: {W}, %u: {W}) -> Twig[{ROW}] {{ match (%t) {{ Bud(%x) => Bud(%x), "
        "Fork(%x, %a, %b) => Fork(nn.dense(%x, %w), @left(%a, %w, %u), @right(%b, %w, %u)) } }\n"
        f"def @main(%t: Twig[{ROW}], %w: {W}, %u: {W}) {{ @ends(@left(%t, %w, %u)) }}",
        2,
    ),
    "a size of its own": (
        f"def @up[n: Dim, h: Dim](%t: Twig[{ROW}], %w: Tensor[(n, h), float64], %u: {W}) -> Twig[{ROW}] {{ match (%t) {{ "
        "Bud(%x) => Bud(nn.dense(%x, %u)), Fork(%x, %a, %b) => "
        "Fork(nn.dense(%x, %u) + sum(nn.dense(%w * sum(%x), %w)), @up(%a, %w, %u), @up(%b, %w, %u)) } }\n"
        f"def @main(%t: Twig[{ROW}], %w: {W}, %u: {W}) {{ @ends(@up(%t, %w, %u)) }}",
        2,
    ),
    "of a table": (
        f"def @words(%l: List[Tensor[(), int64]], %v: Tensor[(5, {H}), float64]) -> List[{ROW}] {{ match (%l) {{ Nil => Nil, "
        "Cons(%i, %r) => Cons(expand_dims(take(%v, %i, axis=0), axis=0), @words(%r, %v)) } }\n"
        f"def @fold(%s: {ROW}, %l: List[{ROW}], %u: {W}) -> {ROW} {{ match (%l) {{ Nil => %s, Cons(%x, %r) => "
        "if (sum(%x) > -99f64) { @fold(%s * 0.5f64 + tanh(nn.dense(%x, %u)), %r, %u) } else { %s } } }\n"
        f"def @main(%t: Twig[{ROW}], %w: {W}, %u: {W}) {{ let %v = concatenate((%w, nn.dense(%u, %w)), axis=0);"
        "@fold(@ends(%t), @words(Cons(1i64, Cons(4i64, Cons(1i64, Nil))), "
        "strided_slice(%v, begin=[0], end=[5], axes=[0])), %u) }",
        2,
    ),
    "never": (up(own="sin(%x)").replace("Bud(tanh(nn.dense(%x, %w)))", "Bud(%x)"), 1),
}  # fmt: skip


def _tree(module: relay.Module, size: int, rng: np.random.Generator) -> Any:
    adt, x = module.adt("Twig"), rng.standard_normal((1, H))
    if size == 1:
        return adt.Bud(x)
    cut = int(rng.integers(1, size))
    return adt.Fork(x, _tree(module, cut, rng), _tree(module, size - cut, rng))


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[kept_rows.Term]:
    """Rows are kept for small tensors too; the lists that recursions are given."""
    made: list[kept_rows.Term] = []
    begin: Callable[..., Any] = kept_rows.no_rows

    def counted(code: Any, term: kept_rows.Term) -> Any:
        made.append(term)
        return begin(code, term)

    monkeypatch.setattr(kept_rows, "_FEW_ELEMENTS", 1)
    monkeypatch.setattr("relay.transform.ad.reverse.no_rows", counted)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str, lists: list[kept_rows.Term]) -> None:
    text, count = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((H, H)) * 0.7, rng.standard_normal((H, H)) * 0.7)
    trees = [_tree(module, size, rng) for size in (1, 2, 6)]
    for numbers in ((1, 2), (0, 1, 2), (2,)):
        derivatives = Derivatives(module, numbers)
        for tree in trees:
            assert derivatives.problem([tree, *weights], compiled=len(numbers) > 1) is None
    lists.clear()
    differentiated(relay.value_and_grad(module, (0, 1, 2)))
    assert len(lists) == count


# What a node may do with its input and the weights; XY stands for either weight.
OWN = (
    "nn.dense(%x, XY)", "tanh(nn.dense(sin(%x), XY))", "nn.matmul(%x, XY)", "(%x * sum(XY))", "take(XY, 0i64, axis=0)",
    "nn.dense(take(XY, 1, axis=0), XY)", "sum(nn.dense(concatenate((%x, %x), axis=0), XY), axis=0, keepdims=True)",
    "(if (sum(%x) > 0f64) { nn.dense(%x, XY) } else { %x })", "nn.dense(%x, nn.dense(XY, XY))", "nn.dense(%x, transpose(XY))",
    "{ let %f = fn (%y: " + ROW + ") { nn.dense(%y * %x, XY) }; %f(%f(%x)) }", "{ let %v = XY; nn.dense(%x, %v) }",
)  # fmt: skip
HANDED = ("%w, %u", "%u, %w", "%w, %w", "%w, sin(%u)", "%u, %u")


@pytest.mark.parametrize("seed", range(10))
def test_drawn_programs(seed: int, lists: list[kept_rows.Term]) -> None:
    rng = np.random.default_rng([7, seed])
    own = " + ".join(str(rng.choice(OWN)).replace("XY", str(rng.choice(["%w", "%u"]))) for _ in range(3))
    left, right = (str(rng.choice(HANDED, p=[0.5, 0.2, 0.1, 0.1, 0.1])) for _ in range(2))
    module = relay.parse(HEAD + up(left, right, own))
    args = [_tree(module, 4, rng), *(rng.standard_normal((H, H)) * 0.5 for _ in range(2))]
    for numbers in ((1, 2), (0, 1), (1,)):
        found = problem(module, args, numbers, compiled=numbers == (0, 1))
        assert found is None, f"{found}\n{up(left, right, own)}"
    assert lists


def test_small_tensors_are_added_up() -> None:
    module = relay.parse(HEAD + up())
    assert "ad.Rows" not in str(differentiated(relay.value_and_grad(module, (1, 2))))
    wide = relay.parse((HEAD + up()).replace(f"({H}, {H})", "(96, 96)").replace(f"(1, {H})", "(1, 96)"))
    text = str(differentiated(relay.value_and_grad(wide, (1, 2))))
    assert "ad.Rows" in text
    # One product for each weight, where there was one at every node.
    assert text.count("nn.dense.vjp1") == 2


def test_sizes_that_nobody_names(lists: list[kept_rows.Term]) -> None:
    """Rows of unknown sizes cannot be told where the recursion begins; inside of it no list is begun."""
    module = relay.parse("""#[version = "0.0.5"]
    def @go[h: Dim](%n: int32, %x: Tensor[(1, h), float64], %w: Tensor[(h, h), float64]) -> Tensor[(1, h), float64] {
      if (%n < 1) { tanh(nn.dense(%x, %w)) } else { nn.dense(@go(%n - 1, %x, %w) * sin(@go(%n - 2, %x, %w)), %w) }
    }
    def @main(%n: int32, %x: Tensor[(1, ?), float64], %w: Tensor[(?, ?), float64]) -> float64 { sum(@go(%n, %x, %w)) }
    """)
    rng = np.random.default_rng(0)
    args = np.int32(4), rng.standard_normal((1, H)), rng.standard_normal((H, H))
    assert problem(module, args, (1, 2), compiled=True) is None
    assert not lists


def test_derivatives_of_gradients(lists: list[kept_rows.Term]) -> None:
    """What is differentiated again adds up: the walk along a list has no derivative."""
    module = relay.parse(HEAD + up())
    rng = np.random.default_rng(1)
    args = (_tree(module, 4, rng), rng.standard_normal((H, H)), rng.standard_normal((H, H)))
    hessian = relay.compile(relay.jvp(relay.grad(module, 1), 1))
    v = rng.standard_normal((H, H))
    _, found = plain(hessian(*args, v))
    assert not lists
    e = 1e-5
    gradient = relay.compile(relay.grad(module, 1))
    ends = [plain(gradient(args[0], args[1] + s * v, args[2])) for s in (e, -e)]
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * e), rtol=1e-5, atol=1e-7)
