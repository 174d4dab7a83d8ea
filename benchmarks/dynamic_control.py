"""Programs whose control flow the data decides, in Relay and other systems, for `dynamic.py`: a character generator, an early exit, a
mixture of experts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dynamic_program import EXAMPLES, Array, Bar, Executor, Machine, Maker, Program, Run, normal
from onnx_graph import Graph, in_onnxruntime

import relay


def charrnn() -> Program:
    """PyTorch's tutorial: 18 categories, 59 letters, 128 hidden; a name ends with the last letter."""
    c, letters, h, most = 18, 59, 128, 20
    size, end = c + letters + h, letters - 1
    w = {
        "i2h": normal(h, size), "bh": normal(h), "i2o": normal(letters, size), "bo": normal(letters),
        "o2o": normal(letters, h + letters), "bp": normal(letters), "eye": np.eye(letters, dtype=np.float32),
    }  # fmt: skip
    categories, zero = np.eye(c, dtype=np.float32), np.zeros((1, h), np.float32)

    def ours(threads: int, executor: Executor = "vm") -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "charrnn.relay").bind(w), threads=threads, executor=executor)
        state = relay.Tensor.from_numpy(zero)
        return lambda x: exe(categories[x[:1]], x[1], np.int64(end), np.int64(most), state)

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(x: Array) -> Array:
            with torch.inference_mode():
                category, state, letter = torch.from_numpy(categories[x[:1]]), torch.zeros(1, h), int(x[1])
                out: list[int] = []
                while len(out) < most:
                    both = torch.cat((category, p["eye"][letter : letter + 1], state), 1)
                    state = torch.nn.functional.linear(both, p["i2h"], p["bh"])
                    output = torch.nn.functional.linear(both, p["i2o"], p["bo"])
                    scores = torch.nn.functional.linear(torch.cat((state, output), 1), p["o2o"], p["bp"])
                    letter = int(torch.log_softmax(scores, 1).argmax())
                    if letter == end:
                        break
                    out.append(letter)
                return np.array(out)

        return run

    def onnxruntime(threads: int) -> Run:
        g = Graph()
        eye, last = g.constant(w["eye"]), g.constant(np.array([end]))

        def body(b: Graph, _: str, state: list[str]) -> tuple[str, list[str], list[tuple[str, type]]]:
            both = b("Concat", "category", *state, axis=1)
            hidden, output = b.dense(both, w["i2h"], w["bh"]), b.dense(both, w["i2o"], w["bo"])
            scores = b.dense(b("Concat", hidden, output, axis=1), w["o2o"], w["bp"])
            best = b("ArgMax", b("LogSoftmax", scores, axis=1), axis=1, keepdims=0)
            ended = b("Squeeze", b("Equal", best, last))
            return b("Not", ended), [b("Gather", eye, best, axis=0), hidden], [(best, np.int64)]

        first = g("Gather", eye, "letter", axis=0)
        start = [(first, np.float32, [1, letters]), (g.constant(zero), np.float32, [1, h])]
        *_, out = g.loop(g.constant(np.array(most)), start, body)
        given = [("category", np.float32, [1, c]), ("letter", np.int64, [1])]
        run = in_onnxruntime(g.model(given, [(out, np.int64, None)]), threads)

        def words(x: Array) -> Array:
            found = run({"category": categories[x[:1]], "letter": x[1:2]})[0].reshape(-1)
            return found[:-1] if len(found) and found[-1] == end else found

        return words

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = {n: jnp.asarray(a) for n, a in w.items()}

        @jax.jit
        def go(category: Any, letter: Any) -> Any:
            def body(s: Any) -> Any:
                n, letter, state, out = s
                both = jnp.concatenate((category, p["eye"][letter][None], state), 1)
                state = both @ p["i2h"].T + p["bh"]
                output = both @ p["i2o"].T + p["bo"]
                scores = jax.nn.log_softmax(jnp.concatenate((state, output), 1) @ p["o2o"].T + p["bp"])
                letter = jnp.argmax(scores)
                return n + (letter != end), letter, state, out.at[n].set(letter)

            start = (0, letter, jnp.zeros((1, h)), jnp.zeros(most, int))
            s = jax.lax.while_loop(lambda s: (s[0] < most) & ((s[0] == 0) | (s[1] != end)), body, start)
            return s[3], s[0]

        def run(x: Array) -> Array:
            out, n = go(categories[x[:1]], int(x[1]))
            return np.asarray(out)[: int(n)]

        return run

    weights = 4 * ((h + letters) * size + letters * (h + letters))

    def floor(_: Array, tokens: int, machine: Machine) -> float:
        return tokens * weights / machine.bandwidth

    inputs = [np.array([k % c, (7 * k) % (letters - 1)]) for k in range(24)]
    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "torch": in_torch, "onnxruntime": onnxruntime, "jax": in_jax,
    }  # fmt: skip
    bars = {n: Bar(1.3) for n in (1, 2)}
    return Program(inputs, lambda _, y: max(len(y), 1), systems, floor, weights, bars)


def earlyexit() -> Program:
    """Six blocks of 512, each with a classifier; the first that is sure ends it (on average 3.4 blocks, 2 to 5)."""
    d, c, enough, blocks = 512, 10, 0.4, 6
    w: dict[str, Array] = {}
    for k in range(1, blocks + 1):
        w |= {f"w{k}": normal(d, d, seed=k), f"b{k}": normal(d, seed=k), f"c{k}": normal(c, d, seed=k, scale=0.02)}

    def taken(given: Array) -> int:
        """How many blocks an input takes."""
        x = given
        for k in range(1, blocks + 1):
            x = np.maximum(x @ w[f"w{k}"].T + w[f"b{k}"], 0) + x
            scores = np.exp(x @ w[f"c{k}"].T)
            if scores.max() / scores.sum() >= enough:
                return k
        return blocks

    def ours(threads: int, executor: Executor = "vm") -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "earlyexit.relay").bind(w), threads=threads, executor=executor)
        return lambda x: exe(x, np.float32(enough))[0]

    def in_torch(threads: int) -> Run:
        import torch
        import torch.nn.functional as f

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(given: Array) -> Array:
            with torch.inference_mode():
                x = torch.from_numpy(given)
                for k in range(1, blocks + 1):
                    x = torch.relu(f.linear(x, p[f"w{k}"], p[f"b{k}"])) + x
                    scores = torch.softmax(f.linear(x, p[f"c{k}"]), 1)
                    if float(scores.max()) >= enough:
                        break
                return np.asarray(scores)

        return run

    def onnxruntime(threads: int) -> Run:
        g = Graph()

        def block(b: Graph, k: int, x: str) -> str:
            x = b("Add", b("Relu", b.dense(x, w[f"w{k}"], w[f"b{k}"])), x)
            scores = b("Softmax", b.dense(x, w[f"c{k}"]), axis=1)
            if k == blocks:
                return scores
            sure = b("GreaterOrEqual", b("ReduceMax", scores, keepdims=0), b.constant(np.array(enough, np.float32)))
            return b.branch(sure, lambda yes: yes("Identity", scores), lambda no: block(no, k + 1, x))

        out = block(g, 1, "x")
        run = in_onnxruntime(g.model([("x", np.float32, [1, d])], [(out, np.float32, None)]), threads)
        return lambda x: run({"x": x})[0]

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = [[jnp.asarray(w[f"{n}{k}"]) for n in "wbc"] for k in range(1, blocks + 1)]

        def block(k: int, x: Any) -> Any:
            x = jax.nn.relu(x @ p[k][0].T + p[k][1]) + x
            scores = jax.nn.softmax(x @ p[k][2].T)
            if k == blocks - 1:
                return scores
            return jax.lax.cond(scores.max() >= enough, lambda _: scores, lambda x: block(k + 1, x), x)

        go = jax.jit(lambda x: block(0, x))
        return lambda x: np.asarray(go(x))

    def floor(x: Array, _: int, machine: Machine) -> float:
        return taken(x) * 4 * d * (d + c) / machine.bandwidth

    inputs = [normal(1, d, seed=k, scale=1) for k in range(24)]
    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "torch": in_torch, "onnxruntime": onnxruntime, "jax": in_jax,
    }  # fmt: skip
    bars = {n: Bar(None, 2.0) for n in (1, 2)}
    return Program(inputs, lambda x, _: 1, systems, floor, blocks * 4 * d * (d + c), bars)


def experts() -> Program:
    """Eight experts of 512-2048-512, of which a gate chooses one for each row."""
    d, g, n = 512, 2048, 8
    w: dict[str, Array] = {"gate": normal(n, d)}
    for k in range(n):
        w |= {f"u{k}": normal(g, d, seed=k), f"d{k}": normal(d, g, seed=k)}

    def ours(threads: int, executor: Executor = "vm") -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "experts.relay").bind(w), threads=threads, executor=executor)
        return lambda x: exe(x)

    def in_torch(threads: int) -> Run:
        import torch
        import torch.nn.functional as f

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(given: Array) -> Array:
            with torch.inference_mode():
                x = torch.from_numpy(given)
                weight, chosen = torch.softmax(f.linear(x, p["gate"]), 1).max(1)
                k = int(chosen[0])
                y = f.linear(torch.relu(f.linear(x, p[f"u{k}"])), p[f"d{k}"])
                return np.asarray(y * weight[:, None])

        return run

    def onnxruntime(threads: int) -> Run:
        graph = Graph()
        scores = graph("Softmax", graph.dense("x", w["gate"]), axis=1)
        chosen = graph("Squeeze", graph("ArgMax", scores, axis=1, keepdims=0))

        def expert(b: Graph, first: int, end: int) -> str:
            if end - first == 1:
                return b.dense(b("Relu", b.dense("x", w[f"u{first}"])), w[f"d{first}"])
            half = (first + end) // 2
            low = b("Less", chosen, b.constant(np.array(half)))
            return b.branch(low, lambda yes: expert(yes, first, half), lambda no: expert(no, half, end))

        out = graph("Mul", expert(graph, 0, n), graph("ReduceMax", scores, axes=[1]))
        run = in_onnxruntime(graph.model([("x", np.float32, [1, d])], [(out, np.float32, None)]), threads)
        return lambda x: run({"x": x})[0]

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = {n: jnp.asarray(a.T) for n, a in w.items()}

        @jax.jit
        def go(x: Any) -> Any:
            scores = jax.nn.softmax(x @ p["gate"])
            branches = [lambda x, k=k: jax.nn.relu(x @ p[f"u{k}"]) @ p[f"d{k}"] for k in range(n)]
            return jax.lax.switch(jnp.argmax(scores[0]), branches, x) * scores.max()

        return lambda x: np.asarray(go(x))

    one = 4 * d * (2 * g + n)

    def floor(x: Array, _: int, machine: Machine) -> float:
        return len(x) * one / machine.bandwidth

    inputs = [normal(1, d, seed=k, scale=1) for k in range(24)]
    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "torch": in_torch, "onnxruntime": onnxruntime, "jax": in_jax,
    }  # fmt: skip
    bars = {n: Bar(None, 2.0) for n in (1, 2)}
    return Program(inputs, lambda x, _: len(x), systems, floor, n * one, bars)
