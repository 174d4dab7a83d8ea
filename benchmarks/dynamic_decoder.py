"""A decoder that attends over a memory that grows, greedily and with beam search, in Relay and other systems, for `dynamic.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dynamic_program import EXAMPLES, HIDDEN, INPUT, Array, Bar, Executor, Machine, Maker, Program, Run, lengths, normal
from onnx_graph import Described, Graph, in_onnxruntime

import relay


def decoder(beams: int, vocabulary: int = 10_000) -> Program:
    """Greedily, or the best ``beams`` sequences; as many steps as were encoded, for no sequence ends before."""
    v, d, h = vocabulary, INPUT, HIDDEN
    w = {
        "embedding": normal(v, d, scale=1), "w": normal(3 * h, d + h), "u": normal(3 * h, h), "b": normal(3 * h),
        "c": normal(3 * h, seed=1), "out": normal(v, h, scale=0.2), "bias": normal(v),
    }  # fmt: skip
    entry = "main" if beams == 1 else "beam"
    start, state = np.ones(beams, np.int64), normal(1, h, seed=2, scale=1).repeat(beams, 0)
    scores = np.where(np.arange(beams) == 0, 0, -np.inf).astype(np.float32)
    ending = np.full((1, v), -np.inf, np.float32)

    def ours(threads: int, executor: Executor = "vm") -> Run:
        module = relay.load_module(EXAMPLES / "seq2seq.relay").bind(w, entry=entry)
        exe = relay.compile(module, entries=(entry,), threads=threads, executor=executor)
        never = np.int64(-1)
        if beams == 1:
            return lambda x: exe(start, never, np.int64(len(x)), x, state)
        return lambda x: exe.run(entry, start, scores, never, np.int64(len(x)), x, state, ending)[1]

    def in_torch(threads: int) -> Run:
        import torch
        import torch.nn.functional as f

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def step(words: Any, state: Any, memory: Any) -> Any:
            weights = torch.softmax((memory * state).sum(2), 0)
            context = (weights[:, :, None] * memory).sum(0)
            a = f.linear(torch.cat((p["embedding"][words], context), 1), p["w"], p["b"]).chunk(3, 1)
            b = f.linear(state, p["u"], p["c"]).chunk(3, 1)
            z = torch.sigmoid(a[1] + b[1])
            new = torch.tanh(a[2] + torch.sigmoid(a[0] + b[0]) * b[2])
            state = new + z * (state - new)
            return torch.log_softmax(f.linear(state, p["out"], p["bias"]), 1), state

        def run(x: Array) -> Array:
            with torch.inference_mode():
                words, s, memory = torch.from_numpy(start), torch.from_numpy(state), torch.from_numpy(x)
                total, done = torch.from_numpy(scores), []
                for _ in range(len(x)):
                    found, s = step(words, s, memory)
                    if beams == 1:
                        words = found.argmax(1)
                        done.append(int(words))
                        memory = torch.cat((memory, s[None]))
                        continue
                    total, best = (total[:, None] + found).reshape(-1).topk(beams)
                    parents, words = best // v, best % v
                    memory = torch.cat((memory, s[None]))[:, parents]
                    s = s[parents]
                return np.array(done) if beams == 1 else np.asarray(total)

        return run

    def onnxruntime(threads: int) -> Run:
        g = Graph()
        first = g.constant(np.array([0]))

        def body(b: Graph, _: str, carried: list[str]) -> tuple[None, list[str], list[tuple[str, type]]]:
            words, state, memory, total = carried
            weights = b(
                "Softmax", b("ReduceSum", b("Mul", memory, state), b.constant(np.array([2])), keepdims=0), axis=0
            )
            context = b(
                "ReduceSum", b("Mul", b("Unsqueeze", weights, b.constant(np.array([2]))), memory), first, keepdims=0
            )
            x = b("Concat", b("Gather", b.constant(w["embedding"]), words, axis=0), context, axis=1)
            r, z, n = b.several("Split", 3, b.dense(x, w["w"], w["b"]), axis=1)
            rs, zs, ns = b.several("Split", 3, b.dense(state, w["u"], w["c"]), axis=1)
            z = b("Sigmoid", b("Add", z, zs))
            new = b("Tanh", b("Add", n, b("Mul", b("Sigmoid", b("Add", r, rs)), ns)))
            state = b("Add", new, b("Mul", z, b("Sub", state, new)))
            found = b("LogSoftmax", b.dense(state, w["out"], w["bias"]), axis=1)
            memory = b("Concat", memory, b("Unsqueeze", state, first), axis=0)
            if beams == 1:
                words = b("ArgMax", found, axis=1, keepdims=0)
                return None, [words, state, memory, b("Identity", total)], [(words, np.int64)]
            second, every, size = (b.constant(np.array([n])) for n in (1, -1, v))
            sums = b("Reshape", b("Add", b("Unsqueeze", total, second), found), every)
            total, best = b.several("TopK", 2, sums, b.constant(np.array([beams])))
            parents, words = b("Div", best, size), b("Mod", best, size)
            return None, [words, b("Gather", state, parents), b("Gather", memory, parents, axis=1), total], []

        carried: list[Described] = [
            (g.constant(start), np.int64, [beams]), (g.constant(state), np.float32, [beams, h]),
            ("x", np.float32, ["k", beams, h]), (g.constant(scores), np.float32, [beams]),
        ]  # fmt: skip
        results = g.loop(g("Squeeze", g("Gather", g("Shape", "x"), first)), carried, body)
        out = (results[4], np.int64, None) if beams == 1 else (results[3], np.float32, None)
        run = in_onnxruntime(g.model([("x", np.float32, ["k", beams, h])], [out]), threads)
        return lambda x: run({"x": x})[0].reshape(-1)

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = {n: jnp.asarray(a.T if n in ("w", "u", "out") else a) for n, a in w.items()}

        @jax.jit  # once for each length: it has no symbolic sizes
        def go(x: Any) -> Any:
            k = len(x)

            def body(s: Any) -> Any:
                t, words, state, memory, total, done = s
                logits = jnp.where(jnp.arange(2 * k)[:, None] < k + t, (memory * state).sum(2), -jnp.inf)
                context = (jax.nn.softmax(logits, 0)[:, :, None] * memory).sum(0)
                a = jnp.split(jnp.concatenate((p["embedding"][words], context), 1) @ p["w"] + p["b"], 3, 1)
                b = jnp.split(state @ p["u"] + p["c"], 3, 1)
                z = jax.nn.sigmoid(a[1] + b[1])
                new = jnp.tanh(a[2] + jax.nn.sigmoid(a[0] + b[0]) * b[2])
                state = new + z * (state - new)
                found = jax.nn.log_softmax(state @ p["out"] + p["bias"])
                memory = memory.at[k + t].set(state)
                if beams == 1:
                    words = jnp.argmax(found, 1)
                    return t + 1, words, state, memory, total, done.at[t].set(words[0])
                total, best = jax.lax.top_k((total[:, None] + found).reshape(-1), beams)
                return t + 1, best % v, state[best // v], memory[:, best // v], total, done

            memory = jnp.concatenate((x, jnp.zeros_like(x)))
            first = (0, jnp.asarray(start), jnp.asarray(state), memory, jnp.asarray(scores), jnp.zeros(k, int))
            s = jax.lax.while_loop(lambda s: (s[0] < k) & (s[1] >= 0).any(), body, first)
            return s[5] if beams == 1 else s[4]

        return lambda x: np.asarray(go(x))

    weights = 4 * (3 * h * (d + 2 * h) + v * h)

    def floor(_: Array, tokens: int, machine: Machine) -> float:
        """The weights read once per step or its products at the peak, whichever takes longer; attention, the choice of words and of
        states come on top of it."""
        return tokens * max(weights / machine.bandwidth, beams * weights / 2 / machine.flops)

    inputs = [normal(n, 1, h, seed=k, scale=1).repeat(beams, 1) for k, n in enumerate(lengths(8))]
    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "torch": in_torch, "onnxruntime": onnxruntime, "jax": in_jax,
    }  # fmt: skip
    bars = {n: Bar(1.3) for n in (1, 2)}
    return Program(inputs, lambda x, _: len(x), systems, floor, weights, bars)
