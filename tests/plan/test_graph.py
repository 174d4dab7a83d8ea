"""A primitive as one definition: its calls' definitions, run once for equal types, each with stages of its own."""

from __future__ import annotations

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
