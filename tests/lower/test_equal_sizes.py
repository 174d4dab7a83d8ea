"""Primitives that differ in which of their sizes are equal share a kernel, and the results are those of kernels of their own."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.options import Options
from tests.lower.support import operands, same

RNG = np.random.default_rng(6)
HEAD = '#[version = "0.0.5"]\n'


def tensor(name: str, shape: str, dtype: str = "float32") -> str:
    return f"%{name}: Tensor[({shape}), {dtype}]"


LAYERS = (
    f"def @main[n: Dim, d: Dim, f: Dim]({tensor('x', 'n, d')}, {tensor('v', 'd, d')}, {tensor('w', 'f, d')}, {tensor('u', 'f, f')}) "
    "{ sum(exp(nn.dense(tanh(nn.dense(tanh(nn.dense(%x, %v)), %w)), %u))) }"
)
MESSAGES = (
    f"def @main[n: Dim, e: Dim, d: Dim, f: Dim]({tensor('x', 'n, d')}, {tensor('s', 'e,', 'int64')}, {tensor('t', 'e,', 'int64')}, "
    f"{tensor('g', 'e, f')}, {tensor('w', 'd, d')}, {tensor('u', 'd, f')}, {tensor('v', 'd, d')}) {{ "
    "let %m = nn.relu(nn.dense(take(%x, %s, axis=0), %w) + nn.dense(%g, %u));"
    "let %h = tanh(nn.dense(segment_sum(%m, %t, num_segments=n), %v)); mean(%h * %h) }"
)
# Program; what it is differentiated by; the words in the names of the kernels that are counted, and how many there are.
PROGRAMS = {
    "a layer, a wider one, and a square one": (LAYERS, (), "dense", 2),  # two with tanh, one with what follows it
    "their gradients": (LAYERS, (0, 1, 2, 3), "vjp1", 1),
    "gradients of messages on a graph": (
        MESSAGES,
        (0, 4, 5, 6),
        "vjp1",
        1,
    ),  # of nodes, of edges, of whichever are fewer
    "sums and exponentials": (
        f"def @main[n: Dim, d: Dim]({tensor('x', 'n, d')}, {tensor('y', 'd, d')}, {tensor('z', 'n, n')}) "
        "{ (nn.softmax(%x), nn.softmax(%y), nn.softmax(%z)) }",
        (),
        "softmax",
        1,
    ),
    "what an operator asks of sizes stays so": (
        f"def @main[n: Dim, d: Dim]({tensor('x', 'n, d')}, {tensor('y', 'd, n')}, {tensor('z', 'd, d')}) "
        "{ (exp(reshape(%x, newshape=[d, n])) + %y, exp(reshape(%z, newshape=[d, d])) + %z) }",
        (),
        "exp",
        None,
    ),
    "multiples stay multiples": (
        f"def @main[n: Dim, d: Dim]({tensor('x', 'n, 16 * d')}, {tensor('v', '16 * d, 16 * d')}, {tensor('w', 'd, 16 * d')}) "
        "{ (nn.dense(%x, %v), nn.dense(%x, %w)) }",
        (),
        "dense",
        None,
    ),
    "multiples by less than a vector, and sizes that two axes have together": (
        f"def @main[n: Dim, d: Dim, f: Dim]({tensor('x', 'n, 1, d')}, {tensor('v', '3*f, d')}, {tensor('w', '5*d, d')}, "
        f"{tensor('y', 'n, 1, f')}, {tensor('u', 'd, f')}) {{ "
        "(reshape(tanh(nn.dense(%x, %v)), newshape=[n, Dim[3*f]]), reshape(tanh(nn.dense(%x, %w)), newshape=[n, Dim[5*d]]), "
        "reshape(tanh(nn.dense(%y, %u)), newshape=[n, d])) }",
        (),
        "dense",
        1,
    ),
    "in a loop": (
        f"def @go[n: Dim, d: Dim](%k: int64, {tensor('x', 'n, d')}, {tensor('v', 'd, d')}) -> Tensor[(n, d), float32] "
        "{ if (%k == 0i64) { %x } else { @go(%k - 1i64, tanh(nn.dense(%x, %v)), %v) } } "
        f"def @main[n: Dim, d: Dim, f: Dim]({tensor('x', 'n, f')}, {tensor('w', 'd, f')}, {tensor('v', 'd, d')}) "
        "{ @go(3i64, tanh(nn.dense(%x, %w)), %v) }",
        (),
        "dense",
        1,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_results_and_kernels(name: str, executor: str) -> None:
    text, by, word, expected = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    module = relay.value_and_grad(module, argnums=by) if by else module
    built = pipeline.build(module, Options(cache=False, executor=executor))
    if expected is not None:
        assert sum(word in k.kernel.name for k in built.plan.kernels) == expected, [
            k.kernel.name for k in built.plan.kernels
        ]
    exe = relay.Executable.from_bytes(built.image.to_bytes(), None)
    for n, e, d, f in ((1, 1, 1, 1), (3, 5, 4, 7), (20, 9, 33, 17), (7, 7, 7, 7)):
        given = operands(module, {"n": n, "e": e, "d": d, "f": f}, RNG)
        same(exe(*given), relay.evaluate(module, *given))
