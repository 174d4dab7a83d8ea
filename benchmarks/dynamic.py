"""Networks whose work the data decides, at batch 1, beside other systems: recurrent layers on sequences of many lengths, a character
generator, a network over graphs, early exit, a mixture of experts.

Systems take turns input by input; in each turn the second of two calls counts, for the others' weights have left the caches. The
figures are medians in microseconds per token (per call, where there are no tokens). Lengths are distributed like those of MRPC's
sentences (mean 22, 6 to 45). The floor of a recurrent layer is what the machine allows, measured in the same run: the recurrent
weights read once per step at the bandwidth of the cache that they fit in, and the input product at the peak of multiply-adds. With
several threads measure ``--systems relay`` by itself too: idle threads of the others spin and hold the cores.

    python benchmarks/dynamic.py [--threads 1] [--programs lstm,gru,...] [--systems relay,torch,...] [--seconds 2] [--soak]
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Libraries read these when they are loaded.
_threads = argparse.ArgumentParser(add_help=False)
_threads.add_argument("--threads", type=int, default=1)
_known, _ = _threads.parse_known_args()
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(_known.threads)
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={str(_known.threads > 1).lower()}")

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from machine import fastest, peak, reading  # noqa: E402
from table import FLOOR, Table, add_out  # noqa: E402

import relay  # noqa: E402

Array = npt.NDArray[Any]
Run = Callable[[Array], Any]  # of one input; what it gives is compared with the others'
EXAMPLES = Path(__file__).parent.parent / "examples"
INPUT, HIDDEN = 300, 512
GATES = {"rnn": 1, "gru": 3, "lstm": 4, "lstm2": 4}


def lengths(count: int) -> list[int]:
    """Lengths like those of MRPC's sentences."""
    drawn = np.random.default_rng(0).normal(22, 7, size=count)
    return [int(n) for n in np.clip(np.round(drawn), 6, 45)]


def normal(*shape: int, seed: int = 0, scale: float = 0.05) -> Array:
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its inputs, how many tokens each has, its makers by system, and the seconds that an input takes at least."""

    inputs: Sequence[Array]
    tokens: Callable[[Array, Any], int]
    systems: dict[str, Callable[[int], Run]]
    floor: Callable[[Array, float, float], float] | None = None
    weight_bytes: int = 0
    each_token: bool = False  # the floor is of one token, not of an input


# -- recurrent layers


def layer_weights(kind: str) -> dict[str, Array]:
    g = GATES[kind]
    w = {"w": normal(g * HIDDEN, INPUT), "u": normal(g * HIDDEN, HIDDEN), "b": normal(g * HIDDEN)}
    if kind == "gru":
        w["c"] = normal(g * HIDDEN, seed=1)
    if kind == "lstm2":
        w |= {
            "w2": normal(g * HIDDEN, HIDDEN, seed=2),
            "u2": normal(g * HIDDEN, HIDDEN, seed=3),
            "b2": normal(g * HIDDEN),
        }
    return w


def layer(kind: str) -> Program:
    w = layer_weights(kind)
    start = np.zeros((1, HIDDEN), np.float32)

    def ours(threads: int) -> Run:
        entry = f"{kind}_outputs"
        module = relay.load_module(EXAMPLES / "recurrent.relay")
        exe = relay.compile(module.bind(w, entry=entry), entries=(entry,), threads=threads)
        state = relay.Tensor.from_numpy(start)
        return lambda x: exe.run(entry, x, state)

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        cls = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU}.get(kind, torch.nn.LSTM)
        net = cls(INPUT, HIDDEN, num_layers=2 if kind == "lstm2" else 1).eval()
        with torch.no_grad():
            for n, suffix in enumerate(["", "2"] if kind == "lstm2" else [""]):
                getattr(net, f"weight_ih_l{n}").copy_(torch.tensor(w[f"w{suffix}"]))
                getattr(net, f"weight_hh_l{n}").copy_(torch.tensor(w[f"u{suffix}"]))
                getattr(net, f"bias_ih_l{n}").copy_(torch.tensor(w[f"b{suffix}"]))
                getattr(net, f"bias_hh_l{n}").copy_(torch.tensor(w["c"]) if kind == "gru" else torch.zeros(1))

        def run(x: Array) -> Array:
            with torch.inference_mode():
                return np.asarray(net(torch.from_numpy(x))[0])

        return run

    def graph() -> bytes:
        """An ONNX model of the layer's operators. Its gates are in another order: i, o, f, c; z, r, h."""
        from onnx import TensorProto, helper, numpy_helper

        order = {"rnn": [0], "gru": [1, 0, 2]}.get(kind, [0, 3, 1, 2])

        def gates(a: Array) -> Array:
            parts = np.split(a, len(order))
            return np.concatenate([parts[k] for k in order])

        nodes, constants = [], [("axes", np.array([1]))]
        name = "x"
        for suffix in ["", "2"] if kind == "lstm2" else [""]:
            second = gates(w["c"]) if kind == "gru" else np.zeros_like(w[f"b{suffix}"])
            constants += [
                (f"W{suffix}", gates(w[f"w{suffix}"])[None]),
                (f"R{suffix}", gates(w[f"u{suffix}"])[None]),
                (f"B{suffix}", np.concatenate((gates(w[f"b{suffix}"]), second))[None]),
            ]
            extra = {"linear_before_reset": 1} if kind == "gru" else {}
            op = {"rnn": "RNN", "gru": "GRU"}.get(kind, "LSTM")
            given = [name, f"W{suffix}", f"R{suffix}", f"B{suffix}"]
            nodes.append(helper.make_node(op, given, [f"y{suffix}"], hidden_size=HIDDEN, **extra))
            nodes.append(helper.make_node("Squeeze", [f"y{suffix}", "axes"], [f"z{suffix}"]))
            name = f"z{suffix}"
        types = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["t", 1, d]) for n, d in (("x", INPUT), (name, HIDDEN))
        ]
        made = helper.make_graph(
            nodes, kind, types[:1], types[1:], [numpy_helper.from_array(a, n) for n, a in constants]
        )
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(model.SerializeToString())

    def in_onnxruntime(threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(graph(), options, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]

    def in_openvino(threads: int) -> Run:
        import openvino

        core = openvino.Core()
        core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
        request = core.compile_model(core.read_model(graph()), "CPU").create_infer_request()
        return lambda x: request.infer([x])[0]

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_platforms", "cpu")

        def cell(p: Sequence[Any], state: Any, given: Any) -> tuple[Any, Any]:
            h, c = state
            if kind == "rnn":
                h = jnp.tanh(given + h @ p[0])
            elif kind == "gru":
                i, s = jnp.split(given, 3, axis=-1), jnp.split(h @ p[0] + p[1], 3, axis=-1)
                z = jax.nn.sigmoid(i[1] + s[1])
                new = jnp.tanh(i[2] + jax.nn.sigmoid(i[0] + s[0]) * s[2])
                h = new + z * (h - new)
            else:
                i, f, g, o = jnp.split(given + h @ p[0], 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        @jax.jit  # once for each length: it has no symbolic sizes
        def run(x: Any) -> Any:
            for s in ["", "2"] if kind == "lstm2" else [""]:
                second = jnp.asarray(w["c"]) if kind == "gru" else None
                weights = (jnp.asarray(w[f"u{s}"].T), second)
                inputs = x @ jnp.asarray(w[f"w{s}"].T) + jnp.asarray(w[f"b{s}"])
                _, x = jax.lax.scan(lambda a, b, p=weights: cell(p, a, b), (jnp.zeros((1, HIDDEN)),) * 2, inputs)
            return x

        return lambda x: np.asarray(run(x))

    g, layers = GATES[kind], 2 if kind == "lstm2" else 1

    def floor(x: Array, flops: float, bandwidth: float) -> float:
        product = 2 * len(x) * g * HIDDEN * (INPUT + (layers - 1) * HIDDEN) / flops
        return product + len(x) * layers * 4 * g * HIDDEN * HIDDEN / bandwidth

    systems = {
        "relay": ours, "torch": in_torch, "onnxruntime": in_onnxruntime, "openvino": in_openvino, "jax": in_jax,
    }  # fmt: skip
    inputs = [normal(n, 1, INPUT, seed=k, scale=1) for k, n in enumerate(lengths(24))]
    return Program(inputs, lambda x, _: len(x), systems, floor, layers * 4 * g * HIDDEN * HIDDEN)


# -- control flow


def charrnn() -> Program:
    """PyTorch's tutorial: 18 categories, 59 letters, 128 hidden; a name ends with the last letter."""
    c, letters, h, most = 18, 59, 128, 20
    size, end = c + letters + h, letters - 1
    w = {
        "i2h": normal(h, size), "bh": normal(h), "i2o": normal(letters, size), "bo": normal(letters),
        "o2o": normal(letters, h + letters), "bp": normal(letters), "eye": np.eye(letters, dtype=np.float32),
    }  # fmt: skip
    categories = np.eye(c, dtype=np.float32)

    def ours(threads: int) -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "charrnn.relay").bind(w), threads=threads)
        state = relay.Tensor.from_numpy(np.zeros((1, h), np.float32))
        return lambda x: exe(categories[x[:1]], x[1], np.int64(end), np.int64(most), state)

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(x: Array) -> Array:
            with torch.inference_mode():
                category, state, letter, out = torch.from_numpy(categories[x[:1]]), torch.zeros(1, h), int(x[1]), []
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

    def floor(x: Array, flops: float, bandwidth: float) -> float:
        return weights / bandwidth  # of one letter

    inputs = [np.array([k % c, (7 * k) % (letters - 1)]) for k in range(24)]
    systems = {"relay": ours, "torch": in_torch, "jax": in_jax}
    return Program(inputs, lambda _, y: max(len(y), 1), systems, floor, weights, each_token=True)


def earlyexit() -> Program:
    d, c, enough = 512, 10, 0.25
    w: dict[str, Array] = {}
    for k in range(1, 7):
        w |= {f"w{k}": normal(d, d, seed=k), f"b{k}": normal(d, seed=k), f"c{k}": normal(c, d, seed=k, scale=0.06)}

    def ours(threads: int) -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "earlyexit.relay").bind(w), threads=threads)
        return lambda x: exe(x, np.float32(enough))[0]

    def in_torch(threads: int) -> Run:
        import torch
        import torch.nn.functional as f

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(given: Array) -> Array:
            with torch.inference_mode():
                x = torch.from_numpy(given)
                for k in range(1, 7):
                    x = torch.relu(f.linear(x, p[f"w{k}"], p[f"b{k}"])) + x
                    scores = torch.softmax(f.linear(x, p[f"c{k}"]), 1)
                    if float(scores.max()) >= enough:
                        break
                return np.asarray(scores)

        return run

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        p = [[jnp.asarray(w[f"{n}{k}"]) for n in "wbc"] for k in range(1, 7)]

        def block(k: int, x: Any) -> Any:
            x = jax.nn.relu(x @ p[k][0].T + p[k][1]) + x
            scores = jax.nn.softmax(x @ p[k][2].T)
            if k == 5:
                return scores
            return jax.lax.cond(scores.max() >= enough, lambda _: scores, lambda x: block(k + 1, x), x)

        go = jax.jit(lambda x: block(0, x))
        return lambda x: np.asarray(go(x))

    inputs = [normal(1, d, seed=k, scale=1) for k in range(24)]
    return Program(inputs, lambda x, _: 1, {"relay": ours, "torch": in_torch, "jax": in_jax})


def experts() -> Program:
    d, g, n = 512, 2048, 8
    w: dict[str, Array] = {"gate": normal(n, d)}
    for k in range(n):
        w |= {f"u{k}": normal(g, d, seed=k), f"d{k}": normal(d, g, seed=k)}

    def ours(threads: int) -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "experts.relay").bind(w), threads=threads)
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

    inputs = [normal(1, d, seed=k, scale=1) for k in range(24)]
    return Program(inputs, lambda x, _: 1, {"relay": ours, "torch": in_torch, "jax": in_jax})


def dagrnn() -> Program:
    d, h, n = INPUT, HIDDEN, 22
    w = {"w": normal(h, d), "u": normal(h, h), "b": normal(h)}
    rng = np.random.default_rng(0)
    before = [sorted(rng.choice(t, size=min(t, int(rng.integers(1, 4))), replace=False)) for t in range(n)]
    first = np.cumsum([0, *(len(b) for b in before)])
    edges = np.array([e for b in before for e in b], np.int64)

    def ours(threads: int) -> Run:
        exe = relay.compile(relay.load_module(EXAMPLES / "dagrnn.relay").bind(w), threads=threads)
        return lambda x: exe(x, first, edges)

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        p = {n: torch.tensor(a) for n, a in w.items()}

        def run(given: Array) -> Array:
            with torch.inference_mode():
                xs = torch.nn.functional.linear(torch.from_numpy(given), p["w"], p["b"])
                states: list[Any] = []
                zero = torch.zeros(h)
                for t, b in enumerate(before):
                    below = torch.stack([states[e] for e in b]).sum(0) if b else zero
                    states.append(torch.tanh(xs[t] + torch.mv(p["u"], below)))
                return np.asarray(torch.stack(states))

        return run

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        most = max(len(b) for b in before)
        table = np.array([b + [n] * (most - len(b)) for b in map(list, before)])  # row n is zero

        p = {n: jnp.asarray(a.T) for n, a in w.items()}

        @jax.jit
        def go(x: Any, table: Any) -> Any:
            inputs = x @ p["w"] + p["b"]

            def step(states: Any, given: Any) -> tuple[Any, None]:
                t, row, preds = given
                return states.at[t].set(jnp.tanh(row + states[preds].sum(0) @ p["u"])), None

            states, _ = jax.lax.scan(step, jnp.zeros((n + 1, h)), (jnp.arange(n), inputs, table))
            return states[:n]

        return lambda x: np.asarray(go(x, table))

    def floor(x: Array, flops: float, bandwidth: float) -> float:
        return n * (2 * d * h / flops + 4 * h * h / bandwidth)

    inputs = [normal(n, d, seed=k, scale=1) for k in range(12)]
    return Program(inputs, lambda x, _: len(x), {"relay": ours, "torch": in_torch, "jax": in_jax}, floor, 4 * h * h)


def decoder(beams: int) -> Program:
    """A decoder that attends over a memory that grows: greedily, or the best ``beams`` sequences; as many steps as were encoded."""
    v, d, h = 2000, 256, 256
    w = {
        "embedding": normal(v, d, scale=1), "w": normal(3 * h, d + h), "u": normal(3 * h, h), "b": normal(3 * h),
        "c": normal(3 * h, seed=1), "out": normal(v, h, scale=0.2), "bias": normal(v),
    }  # fmt: skip
    entry = "main" if beams == 1 else "beam"
    start, state = np.ones(beams, np.int64), normal(1, h, seed=2, scale=1).repeat(beams, 0)
    scores = np.where(np.arange(beams) == 0, 0, -np.inf).astype(np.float32)
    ending = np.full((1, v), -np.inf, np.float32)  # no sequence ends before

    def ours(threads: int) -> Run:
        module = relay.load_module(EXAMPLES / "seq2seq.relay").bind(w, entry=entry)
        exe = relay.compile(module, entries=(entry,), threads=threads)
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

    def floor(x: Array, flops: float, bandwidth: float) -> float:
        return len(x) * max(weights / bandwidth, beams * weights / 2 / flops)

    inputs = [normal(n, 1, h, seed=k, scale=1).repeat(beams, 1) for k, n in enumerate(lengths(8))]
    return Program(inputs, lambda x, _: len(x), {"relay": ours, "torch": in_torch, "jax": in_jax}, floor, weights)


PROGRAMS: dict[str, Callable[[], Program]] = {kind: (lambda kind=kind: layer(kind)) for kind in GATES} | {
    "charrnn": charrnn, "decoder": lambda: decoder(1), "beam": lambda: decoder(4),
    "dagrnn": dagrnn, "earlyexit": earlyexit, "experts": experts,
}  # type: ignore[misc]  # fmt: skip


# -- measuring


def measure(program: Program, runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """Microseconds per token of each system: medians over inputs and rounds, the systems in turns."""
    tokens = []
    for x in program.inputs:
        results = {name: np.asarray(run(x)) for name, run in runs.items()}
        reference = next(iter(results.values()))
        tokens.append(program.tokens(x, reference))
        for name, found in results.items():
            np.testing.assert_allclose(found, reference, atol=2e-4, err_msg=name)
    times: dict[str, list[list[float]]] = {name: [[] for _ in program.inputs] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for k, x in enumerate(program.inputs):
            for name, run in runs.items():
                run(x)
                start = time.perf_counter()
                run(x)
                times[name][k].append(time.perf_counter() - start)
    return {name: 1e6 * sum(np.median(t) for t in kept) / sum(tokens) for name, kept in times.items()}


def soak(run: Run, program: Program, calls: int = 10_000) -> tuple[float, float]:
    """MiB of resident memory after the first thousand of many calls with lengths at random, and after the last."""
    rng = np.random.default_rng(1)
    after = 0.0
    for n in range(calls):
        run(program.inputs[0][: rng.integers(1, len(program.inputs[0]) + 1)])
        if n == 1000:
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return after, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], parents=[_threads])
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--systems", default="relay,torch,onnxruntime,openvino,jax")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each system and program")
    parser.add_argument(
        "--soak", action="store_true", help="10,000 calls with lengths at random, and the memory they take"
    )
    add_out(parser)
    given = parser.parse_args()
    wanted = given.systems.split(",")
    flops = peak(given.threads)
    title = f"Networks whose work the data decides, batch 1, {given.threads} thread(s)"
    table = Table(f"dynamic-{given.threads}", title, "us a token (or a call)", "program", [*wanted, FLOOR])
    print(f"microseconds per token, {given.threads} thread(s); floor: what the machine allows, ours over it")
    print(f"{'':10}" + "".join(f"{s:>12}" for s in wanted) + f"{'floor':>10}{'over it':>9}")
    for name in given.programs.split(","):
        program = PROGRAMS[name]()
        runs = {s: program.systems[s](given.threads) for s in wanted if s in program.systems}
        found = measure(program, runs, given.seconds)
        figures = dict(found)
        row = f"{name:10}" + "".join(f"{found[s]:12.2f}" if s in found else f"{'':12}" for s in wanted)
        if program.floor is not None:
            read = fastest(reading(program.weight_bytes, given.threads), 0.3)
            top, bandwidth = flops(), program.weight_bytes / read
            floors = [1e6 * program.floor(x, top, bandwidth) for x in program.inputs]
            least = sum(floors) / (len(floors) if program.each_token else sum(map(len, program.inputs)))
            figures[FLOOR] = least
            row += f"{least:10.2f}" + (f"{found['relay'] / least:9.2f}" if "relay" in found else "")
        print(row, flush=True)
        table.add(name, figures)
        if given.soak and name in GATES:
            before, after = soak(runs["relay"], program)
            print(f"{'':10}  10,000 calls: {before:.0f} MiB after 1,000, {after:.0f} MiB after the last")
    table.keep(given.out)


if __name__ == "__main__":
    main()
