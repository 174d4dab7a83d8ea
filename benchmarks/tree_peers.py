"""The tree networks of `trees.py` in other systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx_graph import Array, Fed, Graph, in_onnxruntime

Run = Callable[[Sequence[int]], list[Any]]
Maker = Callable[[str, dict[str, Any], list[Any], int], Run]


def children(t: Any) -> Sequence[Any]:
    """Of a node of either kind of tree."""
    return t.fields[1] if t.constructor == "Rose" else t.fields if t.constructor == "Node" else ()


class Levels:
    """Trees as rows by level: the words' nodes, for each level its first row and its nodes' children (rows, and whose)."""

    def __init__(self, roots: Sequence[Any]) -> None:
        levels: list[list[Any]] = []
        at: dict[int, tuple[int, int]] = {}

        def place(t: Any) -> int:
            level = 1 + max([place(k) for k in children(t)], default=-1)
            if level == len(levels):
                levels.append([])
            at[id(t)] = (level, len(levels[level]))
            levels[level].append(t)
            return level

        for root in roots:
            place(root)
        self.starts = np.cumsum([0, *map(len, levels)]).tolist()
        self.nodes = [t for level in levels for t in level]
        self.roots = [self.row(at[id(t)]) for t in roots]
        self.kids = [[[self.row(at[id(k)]) for k in children(t)] for t in level] for level in levels]

    def row(self, place: tuple[int, int]) -> int:
        return int(self.starts[place[0]]) + place[1]


def torch_cell(
    name: str, weights: dict[str, Any], trees: list[Any]
) -> Callable[[dict[str, Any], Any], tuple[Any, Any]]:
    """The recursion in PyTorch, node by node: of the weights (tensors by name) and a tree, the state of its root."""
    import torch
    from torch.nn.functional import linear

    words = {id(t): torch.from_numpy(t.fields[0]) for t in _all(trees) if t.constructor != "Node"}
    zero = torch.zeros(1, weights["bl" if name == "binary" else "b"].shape[0] // 3)

    def binary(w: dict[str, Any], t: Any) -> tuple[Any, Any]:
        if t.constructor == "Leaf":
            i, o, u = linear(words[id(t)], w["wl"], w["bl"]).chunk(3, 1)
            c = torch.sigmoid(i) * torch.tanh(u)
        else:
            (hl, cl), (hr, cr) = (binary(w, k) for k in t.fields)
            i, fl, fr, o, u = linear(torch.cat([hl, hr], 1), w["wn"], w["bn"]).chunk(5, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * cl + torch.sigmoid(fr) * cr
        return torch.sigmoid(o) * torch.tanh(c), c

    def child_sum(w: dict[str, Any], t: Any) -> tuple[Any, Any]:
        states = [child_sum(w, k) for k in t.fields[1]]
        x, total, kept = words[id(t)], zero, zero
        f = linear(x, w["wf"], w["bf"])
        for h, c in states:
            total = total + h
            kept = kept + torch.sigmoid(f + linear(h, w["uf"])) * c
        i, o, u = (linear(x, w["wx"], w["b"]) + linear(total, w["wh"])).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        return torch.sigmoid(o) * torch.tanh(c), c

    return binary if name == "binary" else child_sum


def torch_recursion(name: str, weights: dict[str, Any], trees: list[Any], threads: int) -> Run:
    """PyTorch, eager, node by node."""
    import torch

    torch.set_num_threads(threads)
    w = {n: torch.from_numpy(v) for n, v in weights.items()}
    encode = torch_cell(name, weights, trees)

    def run(which: Sequence[int]) -> list[Any]:
        with torch.inference_mode():
            return [encode(w, trees[n])[0] for n in which]

    return run


def torch_levels(name: str, weights: dict[str, Any], trees: list[Any], threads: int, at_once: bool = False) -> Run:
    """PyTorch, all nodes of a level together."""
    import torch
    from torch.nn.functional import linear

    torch.set_num_threads(threads)
    w = {n: torch.from_numpy(v) for n, v in weights.items()}
    words = {id(t): torch.from_numpy(t.fields[0]) for t in _all(trees) if t.constructor != "Node"}
    size = weights["bl" if name == "binary" else "b"].shape[0] // 3

    def cell(kept: Any, i: Any, o: Any, u: Any) -> tuple[Any, Any]:
        c = (
            torch.addcmul(kept, torch.sigmoid(i), torch.tanh(u))
            if kept is not None
            else torch.sigmoid(i) * torch.tanh(u)
        )
        return torch.sigmoid(o) * torch.tanh(c), c

    def encode(roots: Sequence[Any]) -> Any:
        made = Levels(roots)
        starts = made.starts
        h, c = torch.empty(starts[-1], size), torch.empty(starts[-1], size)
        x = torch.cat([words[id(t)] for t in (made.nodes[: starts[1]] if name == "binary" else made.nodes)])
        if name == "binary":
            h[: starts[1]], c[: starts[1]] = cell(None, *linear(x, w["wl"], w["bl"]).chunk(3, 1))
        else:
            gates, forget = linear(x, w["wx"], w["b"]), linear(x[starts[1] :], w["wf"], w["bf"])
            h[: starts[1]], c[: starts[1]] = cell(None, *gates[: starts[1]].chunk(3, 1))
        for level in range(1, len(starts) - 1):
            rows = slice(starts[level], starts[level + 1])
            if name == "binary":
                at = torch.tensor(made.kids[level])
                i, fl, fr, o, u = linear(h[at].flatten(1), w["wn"], w["bn"]).chunk(5, 1)
                kept = torch.sigmoid(fl) * c[at[:, 0]] + torch.sigmoid(fr) * c[at[:, 1]]
                h[rows], c[rows] = cell(kept, i, o, u)
                continue
            at = torch.tensor([k for kids in made.kids[level] for k in kids])
            owner = torch.tensor([n for n, kids in enumerate(made.kids[level]) for _ in kids])
            below, zero = h[at], torch.zeros(len(made.kids[level]), size)
            f = torch.sigmoid(forget[rows.start - starts[1] : rows.stop - starts[1]][owner] + linear(below, w["uf"]))
            total, kept = zero.index_add(0, owner, below), zero.index_add(0, owner, f * c[at])
            h[rows], c[rows] = cell(kept, *(gates[rows] + linear(total, w["wh"])).chunk(3, 1))
        return h[made.roots]

    def run(which: Sequence[int]) -> list[Any]:
        with torch.inference_mode():
            if at_once:
                return list(encode([trees[n] for n in which])[:, None])
            return [encode([trees[n]]) for n in which]

    return run


def jax_levels(name: str, weights: dict[str, Any], trees: list[Any], threads: int) -> Run:
    """JAX: a loop over levels of a fixed width, compiled once."""
    import jax
    import jax.numpy as jnp

    w = {n: jnp.asarray(v) for n, v in weights.items()}
    size = weights["bl" if name == "binary" else "b"].shape[0] // 3
    all_levels = [Levels([t]) for t in trees]
    rows = max(v.starts[-1] for v in all_levels)
    width = max(len(level) for v in all_levels for level in v.kids[1:])
    depth = max(len(v.kids) for v in all_levels)
    leaves = max(v.starts[1] for v in all_levels)

    def cell(kept: Any, i: Any, o: Any, u: Any) -> tuple[Any, Any]:
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def start(gates: Any) -> tuple[Any, Any]:
        """The states with the leaves' in them; rows behind the last take what belongs to no node."""
        h, c = cell(0.0, *jnp.split(gates, 3, 1))
        full = jnp.zeros((rows + max(width, leaves), size))
        return full.at[: h.shape[0]].set(h), full.at[: c.shape[0]].set(c)

    @jax.jit
    def encode(x: Any, first: Any, kids: Any, levels: Any, root: Any) -> Any:
        gates = x @ (w["wl"] if name == "binary" else w["wx"]).T + w["bl" if name == "binary" else "b"]
        forget = None if name == "binary" else x @ w["wf"].T + w["bf"]

        def level(n: Any, state: Any) -> Any:
            h, c = state
            at, begin = kids[n], first[n]
            if name == "binary":
                i, fl, fr, o, u = jnp.split(h[at].reshape(width, -1) @ w["wn"].T + w["bn"], 5, 1)
                kept = jax.nn.sigmoid(fl) * c[at[:, 0]] + jax.nn.sigmoid(fr) * c[at[:, 1]]
            else:
                below = h[at]
                own = jax.lax.dynamic_slice_in_dim(forget, begin, width)
                kept = (jax.nn.sigmoid(own[:, None] + below @ w["uf"].T) * c[at]).sum(1)
                own = jax.lax.dynamic_slice_in_dim(gates, begin, width)
                i, o, u = jnp.split(own + below.sum(1) @ w["wh"].T, 3, 1)
            new = cell(kept, i, o, u)
            return tuple(jax.lax.dynamic_update_slice_in_dim(s, v, begin, 0) for s, v in zip((h, c), new, strict=True))

        done = jax.lax.fori_loop(1, levels, level, start(gates[:leaves]))
        return jax.lax.dynamic_slice_in_dim(done[0], root, 1)

    def tables(t: Any) -> tuple[Any, ...]:
        made = Levels([t])
        words = made.nodes[: made.starts[1]] if name == "binary" else made.nodes
        x = np.zeros(
            (leaves if name == "binary" else rows + width, weights["wl" if name == "binary" else "wx"].shape[1]),
            np.float32,
        )
        np.concatenate([n.fields[0] for n in words], out=x[: len(words)])
        kids = np.full((depth, width, 2), rows + max(width, leaves) - 1, np.int32)
        for n, level in enumerate(made.kids[1:], 1):
            kids[n, : len(level)] = level
        first = np.zeros(depth, np.int32)
        first[: len(made.starts) - 1] = made.starts[:-1]
        return x, first, kids, np.int32(len(made.kids)), np.int32(made.roots[0])

    return lambda which: [np.asarray(encode(*tables(trees[n]))) for n in which]


class _LevelGraph:
    """A tree network as a graph for onnxruntime: a `Loop` over levels whose state has a row (h and c side by side) for each node
    done, behind a row of zeros that stands for children that are missing."""

    def __init__(self, name: str, weights: dict[str, Array]) -> None:
        self.name, self.w = name, weights
        gates, self.depth = weights["wl" if name == "binary" else "wx"].shape
        self.size = gates // 3
        self.g = Graph()

    def model(self) -> bytes:
        """Inputs: ``x`` words, ``kids`` rows of the children of each node, ``starts`` of the levels, ``roots`` rows; nodes by level."""
        g, binary = self.g, self.name == "binary"
        gates = g.dense("x", self.w["wl" if binary else "wx"], self.w["bl" if binary else "b"])
        zero, one = (g.constant(np.array([n])) for n in (0, 1))
        leaves = g("Gather", "starts", one)
        first = gates if binary else g("Slice", gates, zero, leaves, zero)
        forget = gates  # of the child-sum network, for all nodes but the leaves
        if not binary:
            inner = g("Slice", "x", leaves, g.constant(np.array([1 << 40])), zero)
            forget = g.dense(inner, self.w["wf"], self.w["bf"])
        start = g("Concat", g.constant(np.zeros((1, 2 * self.size), np.float32)), self.cell(g, first, None), axis=0)

        def level(b: Graph, step: str, state: list[str]) -> tuple[None, list[str], list[tuple[str, type]]]:
            number = b("Add", b("Unsqueeze", step, zero), one)
            ends = b("Gather", "starts", number), b("Gather", "starts", b("Add", number, one))
            below = b("Gather", state[0], b("Slice", "kids", *ends, zero))
            hs, cs = b.several("Split", 2, below, axis=2)
            if binary:
                given = b.dense(b("Reshape", hs, b.constant(np.array([-1, 2 * self.size]))), self.w["wn"], self.w["bn"])
                sizes = b.constant(np.array([self.size, 2 * self.size, 2 * self.size]))
                i, f, ou = b.several("Split", 3, given, sizes, axis=1)
                own, f = b("Concat", i, ou, axis=1), b("Reshape", f, b.constant(np.array([-1, 2, self.size])))
            else:
                there = (b("Sub", e, leaves) for e in ends)
                f = b("Add", b.dense(hs, self.w["uf"]), b("Unsqueeze", b("Slice", forget, *there, zero), one))
                own = b("Slice", gates, *ends, zero)
                own = b("Add", own, b.dense(b("ReduceSum", hs, one, keepdims=0), self.w["wh"]))
            kept = b("ReduceSum", b("Mul", b("Sigmoid", f), cs), one, keepdims=0)
            return None, [b("Concat", state[0], self.cell(b, own, kept), axis=0)], []

        levels = g("Squeeze", g("Sub", g("Shape", "starts"), g.constant(np.array([2]))))
        (states,) = g.loop(levels, [(start, np.float32, ["k", 2 * self.size])], level)
        found = g("Slice", g("Gather", states, "roots"), zero, g.constant(np.array([self.size])), one)
        words = ("x", np.float32, ["n", self.depth])
        tables = [("kids", np.int64, ["m", "w"]), ("starts", np.int64, ["l"]), ("roots", np.int64, ["r"])]
        return g.model([words, *tables], [(found, np.float32, None)])

    def cell(self, b: Graph, gates: str, kept: str | None) -> str:
        """h and c, of the gates i, o and u and of what is kept of the children."""
        io, u = b.several("Split", 2, gates, b.constant(np.array([2 * self.size, self.size])), axis=1)
        i, o = b.several("Split", 2, b("Sigmoid", io), axis=1)
        c = b("Mul", i, b("Tanh", u))
        c = c if kept is None else b("Add", c, kept)
        return b("Concat", b("Mul", o, b("Tanh", c)), c, axis=1)


def onnxruntime_levels(
    name: str, weights: dict[str, Any], trees: list[Any], threads: int, at_once: bool = False, walked: bool = True
) -> Run:
    """onnxruntime: a loop over levels. Trees are made tables for it in Python and NumPy, each time or (not ``walked``) before."""
    run: Fed = in_onnxruntime(_LevelGraph(name, weights).model(), threads)

    def tables(which: Sequence[int]) -> dict[str, Array]:
        made = Levels([trees[n] for n in which])
        kids = [k for level in made.kids for k in level]
        width = max(map(len, kids))
        return {
            "x": np.concatenate([t.fields[0] for t in made.nodes if t.constructor != "Node"]),
            "kids": np.array([[k + 1 for k in row] + [0] * (width - len(row)) for row in kids], np.int64),
            "starts": np.array(made.starts),
            "roots": np.array(made.roots) + 1,
        }

    kept: dict[tuple[int, ...], dict[str, Array]] = {}

    def fed(which: Sequence[int]) -> dict[str, Array]:
        if walked:
            return tables(which)
        key = tuple(which)
        if key not in kept:
            kept[key] = tables(which)
        return kept[key]

    if at_once:
        return lambda which: list(run(fed(which))[0][:, None])
    return lambda which: [run(fed([n]))[0] for n in which]


def _all(trees: Sequence[Any]) -> list[Any]:
    """Every node."""
    out, todo = [], list(trees)
    while todo:
        t = todo.pop()
        out.append(t)
        todo += children(t)
    return out


def _torch_at_once(name: str, weights: dict[str, Any], trees: list[Any], threads: int) -> Run:
    return torch_levels(name, weights, trees, threads, at_once=True)


MAKERS: dict[str, Maker] = {
    "torch": torch_recursion,
    "torch levels": torch_levels,
    "torch levels at once": _torch_at_once,
    "jax": jax_levels,
    "onnxruntime": onnxruntime_levels,
    "onnxruntime at once": partial(onnxruntime_levels, at_once=True),
    "onnx tables": partial(onnxruntime_levels, walked=False),
    "onnx tables at once": partial(onnxruntime_levels, at_once=True, walked=False),
}
