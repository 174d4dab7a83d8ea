"""A recurrent network over directed acyclic graphs (`examples/dag.relay`) in Relay and other systems, for `dynamic.py`.

Ours gets a node that holds its predecessors and finds what can be computed together by itself, inside the timing. onnxruntime and JAX
compute by level too, of tables that Python makes of the predecessors' numbers each time, or (``onnx tables``, ``jax tables``) made
before. PyTorch goes node by node, in an order that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from dynamic_program import EXAMPLES, HIDDEN, INPUT, Array, Bar, Executor, Machine, Maker, Program, Run, lengths, normal
from onnx_graph import Described, Graph, in_onnxruntime

import relay

Before = list[list[int]]  # of each node, those that it waits for; the last node is the one that is asked for


def random_graph(nodes: int, seed: int) -> Before:
    """One to three predecessors for each node but the first; the last one waits for all that nobody waits for."""
    rng = np.random.default_rng(seed)
    before = [
        sorted(map(int, rng.choice(t, size=min(t, int(rng.integers(1, 4))), replace=False))) for t in range(nodes - 1)
    ]
    waited = {e for b in before for e in b}
    return [*before, [t for t in range(nodes - 1) if t not in waited]]


def grid(rows: int, columns: int) -> Before:
    """Nodes of an image: each waits for the ones above and to the left of it."""
    return [([t - columns] if t >= columns else []) + ([t - 1] if t % columns else []) for t in range(rows * columns)]


class Levels:
    """The nodes of a graph by level: their ``order``, where each level ``starts`` in it, and rows of what they wait for, filled up
    with 0; node k of the order is row k + 1, row 0 is zero."""

    def __init__(self, before: Before) -> None:
        level: list[int] = []
        for b in before:
            level.append(1 + max((level[e] for e in b), default=-1))
        self.order = np.argsort(level, kind="stable")
        self.starts = np.searchsorted(np.sort(level), np.arange(max(level) + 2)).astype(np.int64)
        row = np.argsort(self.order) + 1
        self.table = np.zeros((len(before), max(map(len, before))), np.int64)
        for k, t in enumerate(self.order):
            self.table[k, : len(before[t])] = row[before[t]]

    @property
    def sizes(self) -> Sequence[int]:
        return [int(n) for n in np.diff(self.starts)]


def dag(graphs: Sequence[Before]) -> Program:
    """An input is the number of a graph."""
    d, h = INPUT, HIDDEN
    w = {"w": normal(h, d), "u": normal(h, h), "b": normal(h)}
    features = [normal(len(before), d, seed=k, scale=1) for k, before in enumerate(graphs)]
    levels = [Levels(before) for before in graphs]

    def ours(threads: int, executor: Executor = "vm") -> Run:
        module = relay.infer_type(relay.load_module(EXAMPLES / "dag.relay")).bind(w)
        vertex = module.adt("Vertex").Vertex
        exe = relay.compile(module, threads=threads, executor=executor)
        values = []
        for x, before in zip(features, graphs, strict=True):
            made: list[Any] = []
            for t, b in enumerate(before):
                made.append(vertex(x[t : t + 1], [made[e] for e in b]))
            values.append(exe.signature().arguments(([made[-1]],))[0])
        return lambda k: exe(values[int(k)])[0]

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        p, xs = {n: torch.tensor(a) for n, a in w.items()}, [torch.from_numpy(x) for x in features]
        zero = torch.zeros(h)

        def run(k: Array) -> Array:
            with torch.inference_mode():
                inputs = torch.nn.functional.linear(xs[int(k)], p["w"], p["b"])
                states: list[Any] = []
                for t, b in enumerate(graphs[int(k)]):
                    below = torch.stack([states[e] for e in b]).sum(0) if b else zero
                    states.append(torch.tanh(inputs[t] + torch.mv(p["u"], below)))
                return np.asarray(states[-1][None])

        return run

    def onnxruntime(before: bool, threads: int) -> Run:
        g = Graph()
        inputs, one = g.dense("x", w["w"], w["b"]), g.constant(np.array([1]))

        def body(b: Graph, step: str, state: list[str]) -> tuple[None, list[str], list[tuple[str, type]]]:
            first = b("Unsqueeze", step, b.constant(np.array([0])))
            ends = b("Gather", "starts", first), b("Gather", "starts", b("Add", first, one))
            rows = b("Slice", "table", *ends, b.constant(np.array([0])))
            below = b("ReduceSum", b("Gather", state[0], rows), one, keepdims=0)
            x = b("Slice", inputs, *ends, b.constant(np.array([0])))
            new = b("Tanh", b("Add", x, b.dense(below, w["u"])))
            return None, [b("Concat", state[0], new, axis=0)], []

        count = g("Squeeze", g("Sub", g("Shape", "starts"), one))
        (states,) = g.loop(count, [(g.constant(np.zeros((1, h), np.float32)), np.float32, ["k", h])], body)
        last = g(
            "Slice", states, g.constant(np.array([-1])), g.constant(np.array([1 << 30])), g.constant(np.array([0]))
        )
        given: list[Described] = [
            ("x", np.float32, ["n", d]),
            ("table", np.int64, ["n", "m"]),
            ("starts", np.int64, ["l"]),
        ]
        run = in_onnxruntime(g.model(given, [(last, np.float32, None)]), threads)

        def tables(x: Array, at: Levels) -> dict[str, Array]:
            return {"x": x[at.order], "table": at.table, "starts": at.starts}

        if not before:
            return lambda k: run(tables(features[int(k)], Levels(graphs[int(k)])))[0]
        fed = [tables(x, at) for x, at in zip(features, levels, strict=True)]
        return lambda k: run(fed[int(k)])[0]

    def in_jax(before: bool, threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = {n: jnp.asarray(a.T) for n, a in w.items()}
        width, nodes = max(max(at.sizes) for at in levels), max(map(len, graphs))
        most = max(at.table.shape[1] for at in levels)

        @jax.jit  # once for all graphs: levels of one width
        def go(x: Any, table: Any, starts: Any, count: Any, last: Any) -> Any:
            inputs = x @ p["w"] + p["b"]

            def level(n: Any, states: Any) -> Any:
                begin = starts[n]
                rows = jax.lax.dynamic_slice_in_dim(table, begin, width)
                given = jax.lax.dynamic_slice_in_dim(inputs, begin, width)
                new = jnp.tanh(given + states[rows].sum(1) @ p["u"])
                return jax.lax.dynamic_update_slice_in_dim(states, new, begin + 1, 0)

            states = jax.lax.fori_loop(0, count, level, jnp.zeros((nodes + width + 1, h)))
            return jax.lax.dynamic_slice_in_dim(states, last, 1)

        def tables(x: Array, at: Levels) -> tuple[Any, ...]:
            rows = np.zeros((nodes + width, most), np.int32)
            rows[: len(at.table), : at.table.shape[1]] = at.table
            full = np.zeros((nodes + width, d), np.float32)
            full[: len(x)] = x[at.order]
            starts = np.zeros(nodes + 1, np.int32)
            starts[: len(at.starts)] = at.starts
            return full, rows, starts, np.int32(len(at.sizes)), np.int32(len(x))

        if not before:
            return lambda k: np.asarray(go(*tables(features[int(k)], Levels(graphs[int(k)]))))
        fed = [tables(x, at) for x, at in zip(features, levels, strict=True)]
        return lambda k: np.asarray(go(*fed[int(k)]))

    def floor(k: Array, _: int, machine: Machine) -> float:
        """The input product at the peak of multiply-adds; of each level its product at that peak, or the weights read once."""
        steps = (max(2 * n * h * h / machine.flops, 4 * h * h / machine.bandwidth) for n in levels[int(k)].sizes)
        return 2 * len(graphs[int(k)]) * d * h / machine.flops + sum(steps)

    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "torch": in_torch,
        "onnxruntime": partial(onnxruntime, False), "onnx tables": partial(onnxruntime, True),
        "jax": partial(in_jax, False), "jax tables": partial(in_jax, True),
    }  # fmt: skip
    bars = {n: Bar(None, 2.0) for n in (1, 2)}
    inputs = [np.array(k) for k in range(len(graphs))]
    return Program(inputs, lambda k, _: len(graphs[int(k)]), systems, floor, 4 * h * h, bars)


def random_graphs() -> Program:
    return dag([random_graph(n, seed=k) for k, n in enumerate(lengths(12))])


def grids() -> Program:
    return dag([grid(rows, columns) for rows, columns in ((10, 10), (6, 8), (12, 12), (10, 7))])
