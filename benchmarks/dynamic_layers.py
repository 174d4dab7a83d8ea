"""Recurrent layers in Relay and other systems, for `dynamic.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from dynamic_program import EXAMPLES, HIDDEN, INPUT, Array, Bar, Executor, Machine, Maker, Program, Run, lengths, normal
from onnx_graph import Graph, in_onnxruntime, in_openvino

import relay

GATES = {"rnn": 1, "gru": 3, "lstm": 4, "rnn2": 1, "gru2": 3, "lstm2": 4}
# The order of gates in ONNX: i, o, f, c; z, r, h.
ONNX_ORDER = {1: [0], 3: [1, 0, 2], 4: [0, 3, 1, 2]}


def layer_weights(kind: str, given: int, hidden: int) -> dict[str, Array]:
    """Of `examples/recurrent.relay`, for inputs of ``given`` elements."""
    rows = GATES[kind] * hidden
    w = {"w": normal(rows, given), "u": normal(rows, hidden), "b": normal(rows)}
    if kind.endswith("2"):
        w |= {"w2": normal(rows, hidden, seed=2), "u2": normal(rows, hidden, seed=3), "b2": normal(rows)}
    if kind.startswith("gru"):
        w |= {name.replace("b", "c"): normal(rows, seed=1) for name in w if name.startswith("b")}
    return w


def layer(kind: str, hidden: int = HIDDEN, batch: int = 1) -> Program:
    """A layer (or two) on sequences of many lengths, ``batch`` at a time; inputs are no wider than states."""
    width = min(INPUT, hidden)
    w, g = layer_weights(kind, width, hidden), GATES[kind]
    suffixes = ["", "2"] if kind.endswith("2") else [""]
    start = np.zeros((batch, hidden), np.float32)
    entry = f"{kind}_outputs"

    def ours(threads: int, executor: Executor = "vm", steps: int | None = None) -> Run:
        text = (EXAMPLES / "recurrent.relay").read_text()
        if steps is not None:
            text = text.replace("t: Dim, ", "").replace("(t, ", f"({steps}, ")
        exe = relay.compile(
            relay.parse(text).bind(w, entry=entry), entries=(entry,), threads=threads, executor=executor
        )
        state = relay.Tensor.from_numpy(start)
        return lambda x: exe.run(entry, x, state)

    def fixed(threads: int) -> Run:
        runs = {n: ours(threads, steps=n) for n in sorted({len(x) for x in inputs})}
        return lambda x: runs[len(x)](x)

    def in_torch(threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        cls = {1: torch.nn.RNN, 3: torch.nn.GRU, 4: torch.nn.LSTM}[g]
        net = cls(width, hidden, num_layers=len(suffixes)).eval()
        with torch.no_grad():
            for n, s in enumerate(suffixes):
                getattr(net, f"weight_ih_l{n}").copy_(torch.tensor(w[f"w{s}"]))
                getattr(net, f"weight_hh_l{n}").copy_(torch.tensor(w[f"u{s}"]))
                getattr(net, f"bias_ih_l{n}").copy_(torch.tensor(w[f"b{s}"]))
                getattr(net, f"bias_hh_l{n}").copy_(torch.tensor(w[f"c{s}"]) if g == 3 else torch.zeros(1))

        def run(x: Array) -> Array:
            with torch.inference_mode():
                return np.asarray(net(torch.from_numpy(x))[0])

        return run

    def graph() -> bytes:
        """A model of ONNX's own recurrent operators."""
        made, name, axes = Graph(), "x", np.array([1])
        op = {1: "RNN", 3: "GRU", 4: "LSTM"}[g]
        extra = {"linear_before_reset": 1} if g == 3 else {}

        def gates(a: Array) -> Array:
            parts = np.split(a, g)
            return np.concatenate([parts[k] for k in ONNX_ORDER[g]])

        for s in suffixes:
            second = gates(w[f"c{s}"]) if g == 3 else np.zeros_like(w[f"b{s}"])
            weights = [gates(w[f"w{s}"]), gates(w[f"u{s}"]), np.concatenate((gates(w[f"b{s}"]), second))]
            y = made(op, name, *(made.constant(a[None]) for a in weights), hidden_size=hidden, **extra)
            name = made("Squeeze", y, made.constant(axes))
        return made.model([("x", np.float32, ["t", batch, width])], [(name, np.float32, ["t", batch, hidden])])

    def onnxruntime(threads: int) -> Run:
        run = in_onnxruntime(graph(), threads)
        return lambda x: run({"x": x})[0]

    def openvino(threads: int) -> Run:
        run = in_openvino(graph(), threads)
        return lambda x: run({"x": x})[0]

    def in_jax(threads: int) -> Run:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_platforms", "cpu")

        def cell(p: Sequence[Any], state: Any, given: Any) -> tuple[Any, Any]:
            h, c = state
            if g == 1:
                h = jnp.tanh(given + h @ p[0])
            elif g == 3:
                i, s = jnp.split(given, 3, axis=-1), jnp.split(h @ p[0] + p[1], 3, axis=-1)
                z = jax.nn.sigmoid(i[1] + s[1])
                new = jnp.tanh(i[2] + jax.nn.sigmoid(i[0] + s[0]) * s[2])
                h = new + z * (h - new)
            else:
                i, f, n, o = jnp.split(given + h @ p[0], 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        @jax.jit  # once for each length: it has no symbolic sizes
        def run(x: Any) -> Any:
            for s in suffixes:
                second = jnp.asarray(w[f"c{s}"]) if g == 3 else None
                weights = (jnp.asarray(w[f"u{s}"].T), second)
                inputs = x @ jnp.asarray(w[f"w{s}"].T) + jnp.asarray(w[f"b{s}"])
                _, x = jax.lax.scan(lambda a, b, p=weights: cell(p, a, b), (jnp.zeros((batch, hidden)),) * 2, inputs)
            return x

        return lambda x: np.asarray(run(x))

    recurrent = len(suffixes) * 4 * g * hidden * hidden

    def floor(x: Array, _: int, machine: Machine) -> float:
        """The input product at the peak of multiply-adds; in each step the recurrent weights read once, or multiplied."""
        product = 2 * len(x) * batch * g * hidden * (width + (len(suffixes) - 1) * hidden) / machine.flops
        return product + len(x) * max(recurrent / machine.bandwidth, batch * recurrent / 2 / machine.flops)

    inputs = [normal(n, batch, width, seed=k, scale=1) for k, n in enumerate(lengths(24))]
    systems: dict[str, Maker] = {
        "relay": ours, "aot": partial(ours, executor="aot"), "fixed": fixed, "torch": in_torch, "onnxruntime": onnxruntime,
        "openvino": openvino, "jax": in_jax,
    }  # fmt: skip
    return Program(inputs, lambda x, _: len(x), systems, floor, recurrent, {1: Bar(1.12), 2: Bar(1.25)})
