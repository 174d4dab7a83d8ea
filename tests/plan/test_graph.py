"""A primitive as one definition: its calls' definitions, run once for equal types, each with stages of its own."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import op, te
from relay.op import registry
from relay.op.registry import remembering
from relay.plan.graph import te_graph
from relay.te.scalar import Named, Reduce
from relay.te.tensor import Compute, Scan
from tests.plan.harness import primitive, tensor


@pytest.mark.parametrize("name", ["nn.log_softmax", "cumsum"])
def test_two_calls_have_stages_and_index_variables_of_their_own(name: str) -> None:
    fn = primitive([tensor((4, 5))], lambda m, x: m(name, m(name, x, axis=1), axis=1))
    with remembering():
        stages = [s for s in te.stages(te_graph(fn).outputs) if isinstance(s, Compute | Scan)]
    used = [a for s in stages for a in s.axes]
    used += [s.state for s in stages if isinstance(s, Scan)]
    used += [a for s in stages if isinstance(s, Compute) for b in s.bodies if isinstance(b, Reduce) for a in b.axes]
    assert len(stages) > 1 and len(used) == len(set(used))
    assert all(isinstance(s.state, Named) for s in stages if isinstance(s, Scan))


def test_a_definition_runs_once_for_equal_types_while_one_program_is_compiled() -> None:
    runs: list[tuple[object, ...]] = []

    @op.operator("test.counted")
    def counted(x: te.Tensor, *, scale: float = 1.0) -> te.Tensor:
        """Notes that it is asked."""
        runs.append((x.shape, scale))
        return te.compute(x.shape, lambda *i: te.tanh(x[i] * scale))

    try:
        first, second = (registry.trace(counted, [((4,), "float32")], {"scale": 1.0}) for _ in range(2))
        assert first is not second and len(runs) == 2
        with remembering():
            asked = [
                registry.trace(counted, [((n,), "float32")], {"scale": s})
                for n, s in ((4, 1.0), (4, 1.0), (5, 1.0), (4, 0.0), (4, -0.0))
            ]
            assert asked[0] is asked[1] and len({id(a) for a in asked}) == 4
        assert asked[0] is not registry.trace(counted, [((4,), "float32")], {"scale": 1.0})
        text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(7,), float32]) { test.counted(test.counted(%x)) }'
        module = relay.grad(relay.parse(text))
        runs.clear()
        relay.compile(module, cache=False, threads=1)
        # For its type and the derivative's, for what passes ask of each, and each of them within the derivative.
        assert len([r for r in runs if r[0] == (7,)]) <= 6, runs
    finally:
        registry.remove("test.counted")


def test_what_two_operators_have_in_common_stands_once() -> None:
    """Equal stages of two definitions are one, whatever their index variables are called; others that look alike are not."""

    def spread(x: te.Tensor, scale: float, factor: float) -> te.Tensor:
        k, r = te.reduce_axis(x.shape[1]), te.reduce_axis(x.shape[1])
        mean = te.compute(x.shape[:1], lambda i: te.sum(x[i, k], k) * scale)
        least = te.compute(x.shape[:1], lambda j: te.sum((x[j, r] - mean[j]) ** 2, r))
        return te.compute(x.shape, lambda i, j: least[i] * x[i, j] * factor)

    @op.operator("test.one")
    def one(x: te.Tensor, *, scale: float = 0.5) -> te.Tensor:
        """Half of it."""
        return spread(x, scale, 2.0)

    @op.operator("test.other")
    def other(x: te.Tensor, *, scale: float = 0.5) -> te.Tensor:
        """The other half."""
        return spread(x, scale, 3.0)

    def stages(scale: float) -> int:
        fn = primitive([tensor((4, 5))], lambda m, x: m("add", m("test.one", x), m("test.other", x, scale=scale)))
        return sum(isinstance(s, Compute) for s in te.stages(te_graph(fn).outputs))

    try:
        assert (stages(0.5), stages(0.25)) == (6, 8)
        module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, m), float32]) { test.one(%x) + test.other(%x) - test.one(%x) }""")
        x = np.arange(20, dtype=np.float32).reshape(4, 5)
        np.testing.assert_allclose(np.asarray(relay.compile(module)(x)), np.asarray(relay.evaluate(module, x)), 1e-5)
    finally:
        registry.remove("test.one")
        registry.remove("test.other")
