"""Recursive programs over structures, and values for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import relay
from relay import typing
from relay.codegen.target import parse_target
from relay.ir.module import Module
from relay.options import Options
from relay.pipeline import Runner, passes, refuse_uncompilable
from relay.transform import Pipeline
from relay.transform.batching.structure import NOTE

Array = npt.NDArray[Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = '#[version = "0.0.5"]\n'

TREE_RNN = """
type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }
def @encode[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> Tensor[(1, h), float32] {
  match (%t) {
    Leaf(%x) => tanh(nn.dense(%x, %wl)),
    Node(%l, %r) => tanh(nn.dense(concatenate((@encode(%l, %wl, %wn), @encode(%r, %wl, %wn)), axis=1), %wn)),
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> Tensor[(1, h), float32] { @encode(%t, %wl, %wn) }
"""

TREE_LSTM = (EXAMPLES / "tree_lstm.relay").read_text()
CHILD_SUM = (EXAMPLES / "child_sum.relay").read_text()

# A list type of its own with the rest first, labels on the edges, a fold written out over the structure itself, another of the
# same list that looks at the labels only, and one over the rest of the results of a map of a map.
EDGES = """
type Edges { End, More(Edges, (Net, Tensor[(4,), float32])), }
type Net { Stop(float32), Join(Edges, Edges), }
type Values { Done, Value(Tensor[(4,), float32], Values), }
def @net(%n: Net, %w: Tensor[(4, 4), float32], %zero: Tensor[(4,), float32]) -> Tensor[(4,), float32] {
  match (%n) {
    Stop(%s) => %zero + %s,
    Join(%a, %b) => {
      let %x = @total(%a, %zero, %w, %zero);
      let %y = @labels(%a, %zero) + @labels(%b, %zero);
      let %z = @again(@values(%b, %w, %zero), %zero);
      tanh(%x * %y - reshape(nn.dense(reshape(%z, newshape=[1, 4]), %w), newshape=[4]))
    },
  }
}
def @total(%e: Edges, %acc: Tensor[(4,), float32], %w: Tensor[(4, 4), float32], %zero: Tensor[(4,), float32])
    -> Tensor[(4,), float32] {
  match (%e) {
    End => %acc,
    More(%rest, %edge) => @total(%rest, @net(%edge.0, %w, %zero) * %edge.1 + %acc, %w, %zero),
  }
}
def @labels(%e: Edges, %zero: Tensor[(4,), float32]) -> Tensor[(4,), float32] {
  match (%e) { End => cos(%zero), More(%rest, (_, %l)) => sigmoid(%l) + @labels(%rest, %zero), }
}
def @values(%e: Edges, %w: Tensor[(4, 4), float32], %zero: Tensor[(4,), float32]) -> Values {
  match (%e) { End => Done, More(%rest, (%n, %l)) => Value(@net(%n, %w, %zero) - %l, @values(%rest, %w, %zero)), }
}
def @again(%v: Values, %acc: Tensor[(4,), float32]) -> Tensor[(4,), float32] {
  match (%v) { Done => %acc, Value(%x, %rest) => @again(%rest, %acc + exp(%x)), }
}
def @main(%n: Net, %w: Tensor[(4, 4), float32], %zero: Tensor[(4,), float32]) -> Tensor[(4,), float32] { @net(%n, %w, %zero) }
"""

# Every form of structure at once: clauses without payload, several payloads (scalars of another dtype), a default clause, a nested
# match, a result that is the same for every node, work on payloads beside recursive calls, two functions.
MIXED = """
type Op { Add, Mul, Skip, }
type Expr { Zero, Word(int32, float32), Un(Op, Expr), Bin(Op, Expr, Tensor[(4,), float32], Expr), Par(Group), }
type Group { Empty, Join(Expr, Group), }
def @value(%e: Expr, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 4), float32]) -> (Tensor[(4,), float32], float32) {
  match (%e) {
    Zero => (take(%table, 0, axis=0), 0f),
    Word(%n, %s) => (take(%table, %n, axis=0) * %s, %s),
    Un(Mul, %a) => {
      let %v = @value(%a, %table, %w);
      (reshape(nn.dense(reshape(%v.0, newshape=[1, 4]), %w), newshape=[4]), %v.1 * 2f)
    },
    Un(_, %a) => @value(%a, %table, %w),
    Bin(%op, %a, %x, %b) => {
      let %l = @value(%a, %table, %w);
      let %r = @value(%b, %table, %w);
      let %both = match (%op) {
        Add => %l.0 + %r.0,
        Mul => %l.0 * %r.0,
        _ => %r.0,
      };
      (tanh(%both) + sigmoid(%x), %l.1 - %r.1)
    },
    Par(%g) => (@together(%g, %table, %w), 1f),
  }
}
def @together(%g: Group, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(4,), float32] {
  match (%g) {
    Empty => sum(%w, axis=[0]),
    Join(%e, %more) => {
      let %v = @value(%e, %table, %w);
      %v.0 * 0.5f + @together(%more, %table, %w) + %v.1
    },
  }
}
def @main(%e: Expr, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 4), float32]) -> (Tensor[(4,), float32], float32) {
  @value(%e, %table, %w)
}
"""


def module(text: str) -> Module:
    return relay.infer_type(relay.parse(text if text.startswith("#[") else HEAD + text))


def lowered(mod: Module, last: str = "batch_structure", **options: Any) -> Module:
    """The module as it is after the pass of this name."""
    chosen = Options(**options)
    runner = Runner(parse_target(chosen.target), chosen)
    mono = typing.monomorphise(mod, chosen.entries)
    refuse_uncompilable(mono)
    all_passes = passes(chosen, runner, mono)
    end = max(n for n, p in enumerate(all_passes) if p.name == last)
    return Pipeline(all_passes[: end + 1], typing.verify_types)(mono)


def notes(mod: Module) -> dict[str, object]:
    """What batching says about each function."""
    return {n: f.attrs[NOTE] for n, f in lowered(mod).functions.items() if NOTE in f.attrs}


def random_tree(mod: Module, rng: np.random.Generator, leaves: int, width: int, kind: str = "random") -> Any:
    """A tree of `Leaf` and `Node`: of random splits, balanced, or a chain to one side. Iterative."""
    adt = mod.adt("Tree")

    def leaf() -> Any:
        return adt.Leaf(rng.standard_normal((1, width), dtype=np.float32))

    def split(n: int) -> int:
        at = {"random": int(rng.integers(1, n)), "balanced": n // 2, "left": n - 1, "right": 1}
        return at[kind]

    done: list[Any] = []
    todo: list[int] = [leaves]
    while todo:
        n = todo.pop()
        if n == 0:
            right, left = done.pop(), done.pop()
            done.append(adt.Node(left, right))
        elif n == 1:
            done.append(leaf())
        else:
            k = split(n)
            todo += [0, n - k, k]
    return done[0]


def weights(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Array]:
    return [(rng.standard_normal(s) * 0.4).astype(np.float32) for s in shapes]


def random_expr(mod: Module, rng: np.random.Generator, size: int) -> Any:
    """A value of `Expr` with about so many nodes; parts are shared now and then."""
    expr, op, group = mod.adt("Expr"), mod.adt("Op"), mod.adt("Group")
    pool = [expr.Zero(), expr.Word(np.int32(3), np.float32(0.5))]
    for _ in range(size):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 6), len(pool)))] for _ in range(2))
        tag = [op.Add(), op.Mul(), op.Skip()][int(rng.integers(3))]
        choice = int(rng.integers(6))
        if choice == 0:
            pool.append(expr.Word(np.int32(rng.integers(9)), np.float32(rng.standard_normal())))
        elif choice == 1:
            pool.append(expr.Un(tag, a))
        elif choice in (2, 3):
            pool.append(expr.Bin(tag, a, rng.standard_normal(4, dtype=np.float32), b))
        elif choice == 4:
            items = group.Empty()
            for _ in range(int(rng.integers(4))):
                items = group.Join(pool[int(rng.integers(len(pool)))], items)
            pool.append(expr.Par(items))
        else:
            pool.append(expr.Zero())
    return pool[-1]


def random_rose(mod: Module, rng: np.random.Generator, nodes: int, width: int, kind: str = "random") -> Any:
    """A tree of the prelude with so many nodes: of random parents, a chain, or one node with all others below it."""
    adt = mod.adt("Tree")
    below: list[list[int]] = [[] for _ in range(nodes)]
    for n in range(1, nodes):
        below[{"random": int(rng.integers(0, n)), "chain": n - 1, "wide": 0}[kind]].append(n)
    made: list[Any] = [None] * nodes
    for n in range(nodes - 1, -1, -1):
        made[n] = adt.Rose(rng.standard_normal((1, width), dtype=np.float32), [made[m] for m in below[n]])
    return made[0]


def random_net(mod: Module, rng: np.random.Generator, size: int) -> Any:
    """A value of `Net` with about so many nodes; parts are shared now and then."""
    net, edges = mod.adt("Net"), mod.adt("Edges")
    pool = [net.Stop(np.float32(0.25))]

    def some() -> Any:
        out = edges.End()
        for _ in range(int(rng.integers(4))):
            part = pool[int(rng.integers(max(0, len(pool) - 5), len(pool)))]
            out = edges.More(out, (part, rng.standard_normal(4, dtype=np.float32)))
        return out

    for _ in range(size):
        stop = rng.integers(4) == 0
        pool.append(net.Stop(np.float32(rng.standard_normal())) if stop else net.Join(some(), some()))
    return pool[-1]
