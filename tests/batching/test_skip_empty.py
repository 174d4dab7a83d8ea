"""A level computes nothing for constructors of which it has no nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

import relay
from relay.ir.expr import If
from relay.transform.blocks import all_bindings, body_of
from tests.batching.programs import lowered, module, weights
from tests.batching.test_structure import agree, same

EXPRESSIONS = (
    """import prelude
type Expr { Word(Tensor[(1, h), float32]), Not(Expr), Add(Expr, Expr), Mul(Expr, Expr), Call(Tensor[(1, h), float32], List[Expr]), }
def @value(%e: Expr, %w: Tensor[(h, h), float32], %u: Tensor[(h, 2*h), float32]) -> (Tensor[(1, h), float32], Tensor[(1, h), float32]) {
  match (%e) {
    Word(%x) => (%x, tanh(%x)),
    Not(%a) => { let %v = @value(%a, %w, %u); (tanh(nn.dense(%v.0, %w)), %v.1 + %v.0) },
    Add(%a, %b) => {
      let %l = @value(%a, %w, %u); let %r = @value(%b, %w, %u);
      (tanh(nn.dense(concatenate((%l.0, %r.0), axis=1), %u)), %l.1 - %r.1)
    },
    Mul(%a, %b) => {
      let %l = @value(%a, %w, %u); let %r = @value(%b, %w, %u);
      (sigmoid(nn.dense(concatenate((%l.1, %r.0), axis=1), %u)), %l.0 * %r.1)
    },
    Call(%x, %given) => {
      let %s = @foldl(fn (%a: Tensor[(1, h), float32], %k: Expr) { %a + nn.dense(@value(%k, %w, %u).0, %w) }, %x, %given);
      (tanh(%s), %s)
    },
  }
}
def @main(%e: Expr, %w: Tensor[(h, h), float32], %u: Tensor[(h, 2*h), float32]) -> Tensor[(1, h), float32] {
  let %v = @value(%e, %w, %u);
  %v.0 * %v.1
}
""".replace("2*h", "8")
    .replace("h)", "4)")
    .replace("(h", "(4")
)


def values(mod: relay.Module, rng: np.random.Generator) -> list[list[Any]]:
    """A word; chains of one constructor, and of one after the other; something of everything."""
    e = mod.adt("Expr")

    def word() -> Any:
        return e.Word(rng.standard_normal((1, 4), dtype=np.float32))

    def call(x: Any) -> Any:
        return e.Call(rng.standard_normal((1, 4), dtype=np.float32), [x, word()])

    made = [word(), e.Call(rng.standard_normal((1, 4), dtype=np.float32), [])]
    around = [e.Not, lambda x: e.Add(x, word()), lambda x: e.Mul(word(), x), call]
    for kinds in ([0] * 6, [3] * 5, [0, 1, 2, 3] * 2):
        x = word()
        for k in kinds:
            x = around[k](x)
        made.append(x)
    made.append(e.Add(e.Mul(made[2], made[3]), call(made[4])))
    return [[x] for x in made]


def test_levels_that_lack_constructors() -> None:
    mod = module(EXPRESSIONS)
    rng = np.random.default_rng(1)
    bound = dict(zip("wu", weights(rng, (4, 4), (4, 8)), strict=True))
    requests = values(mod, rng)
    agree(mod, requests, bound)
    for executor in ("vm", "aot"):
        exe = relay.compile(mod.bind(bound), threads=1, executor=executor)
        for (x,), found in zip(requests, exe.run_batch("main", requests), strict=True):
            same(found, relay.evaluate(mod.bind(bound), x))
            assert np.array_equal(found, exe(x))


def test_gradients_of_such_levels() -> None:
    mod = module(
        EXPRESSIONS.replace("def @main", "def @whole")
        + """
def @main(%e: Expr, %w: Tensor[(4, 4), float32], %u: Tensor[(4, 8), float32]) -> float32 { sum(@whole(%e, %w, %u)) }"""
    )
    rng = np.random.default_rng(2)
    given = weights(rng, (4, 4), (4, 8))
    slopes = relay.value_and_grad(mod, (1, 2))
    exe = relay.compile(slopes, threads=1)
    for (x,) in values(mod, rng):
        found, by = exe(x, *given)
        result: Any = relay.evaluate(slopes, x, *given)
        expected, slope = result
        same((found, *by), (expected, *slope))


def test_each_constructor_has_a_branch() -> None:
    """Beside the loop's own, and that of a call without arguments."""
    passes = lowered(module(EXPRESSIONS), "skip_empty")
    levels = next(f for n, f in passes.functions.items() if n == "value.levels")
    assert sum(isinstance(b.value, If) for b in all_bindings(body_of(levels))) == 5


LEAVES = """import prelude
type Twig { Green(Tensor[(1, 4), float32]), Dry(Tensor[(1, 4), float32]), Bare, Fork(Twig, Twig), }
def @value(%t: Twig, %w: Tensor[(4, 4), float32], %u: Tensor[(4, 8), float32])
    -> (Tensor[(1, 4), float32], Tensor[(1, 4), float32]) {
  match (%t) {
    Green(%x) => { let %y = tanh(nn.dense(%x, %w)); (%y, sigmoid(%y)) },
    Dry(%x) => { let %y = sigmoid(nn.dense(%x, %w)); (%y * %x, %y) },
    Bare => (zeros(shape=[1, 4], dtype="float32"), ones(shape=[1, 4], dtype="float32")),
    Fork(%a, %b) => {
      let %l = @value(%a, %w, %u); let %r = @value(%b, %w, %u);
      (tanh(nn.dense(concatenate((%l.0, %r.1), axis=1), %u)), %l.1 + %r.0)
    },
  }
}
def @main(%t: Twig, %w: Tensor[(4, 4), float32], %u: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
  let %v = @value(%t, %w, %u);
  %v.0 * %v.1
}
"""


def test_states_are_there_where_nothing_is_put_into_them() -> None:
    """Of several kinds of leaves a structure may have one."""
    mod = module(LEAVES)
    twig = mod.adt("Twig")
    rng = np.random.default_rng(3)

    def leaf(kind: int) -> Any:
        if kind == 2:
            return twig.Bare()
        return (twig.Green, twig.Dry)[kind](rng.standard_normal((1, 4), dtype=np.float32))

    requests = [[leaf(n)] for n in range(3)]
    for kinds in ((0, 0, 0), (1, 1), (2, 2, 2), (0, 2), (2, 1, 1), (0, 1, 2, 1, 0)):
        x = leaf(kinds[0])
        for k in kinds[1:]:
            x = twig.Fork(x, leaf(k))
        requests.append([x])
    bound = dict(zip("wu", weights(rng, (4, 4), (4, 8)), strict=True))
    agree(mod, requests, bound)
    exe = relay.compile(mod.bind(bound), threads=1)
    for some in (requests, requests[:2], requests[3:5], requests[5:6] * 2):
        for (x,), found in zip(some, exe.run_batch("main", some), strict=True):
            same(found, relay.evaluate(mod.bind(bound), x))


def test_what_stands_in_branches_is_bound_once() -> None:
    """The text parses back, and no branch reads what another one binds."""
    for text in (EXPRESSIONS, LEAVES):
        made = lowered(module(text), "skip_empty")
        assert relay.parse(made.text()).text() == made.text()


def test_the_way_down() -> None:
    """What is handed to the parts of a constructor's nodes is computed where a level has some."""
    text = """import prelude
type Expr { Word(Tensor[(1, 4), float32]), Not(Expr), Add(Expr, Expr), All(Tensor[(1, 4), float32], List[Expr]), }
def @g(%e: Expr, %o: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32], %u: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
  match (%e) {
    Word(%x) => %x * %o,
    Not(%a) => @g(%a, tanh(nn.dense(%o, %w)), %w, %u),
    Add(%a, %b) => @g(%a, sigmoid(nn.dense(%o, %u)), %w, %u) - @g(%b, tanh(nn.dense(%o, %u)) + %o, %w, %u),
    All(%x, %k) => {
      let %p = nn.dense(%x + %o, %w);
      @foldl(fn (%a: Tensor[(1, 4), float32], %c: Expr) { %a + %o * @g(%c, %p, %w, %u) }, %x, %k)
    },
  }
}
def @main(%e: Expr, %o: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32], %u: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
  @g(%e, %o, %w, %u)
}
"""
    mod = module(text)
    assert (
        sum(isinstance(b.value, If) for b in all_bindings(body_of(lowered(mod, "skip_empty").functions["g.down"])))
        == 1 + 3
    )
    rng = np.random.default_rng(2)
    e = mod.adt("Expr")
    made = [e.Word(rng.standard_normal((1, 4), dtype=np.float32))]
    for n in range(24):
        x, y = made[-1], made[int(rng.integers(max(0, len(made) - 4), len(made)))]
        made.append(
            [e.Not(x), e.Add(x, y), e.All(rng.standard_normal((1, 4), dtype=np.float32), [y, x, x][: n % 4])][n % 3]
        )
    given = weights(rng, (1, 4), (4, 4), (4, 4))
    agree(mod, [[made[n], *given] for n in (0, 1, 2, 3, 9, 12)])
