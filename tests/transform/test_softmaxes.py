"""Softmax that is spelled out becomes the operator, alone and between the products of attention."""

from __future__ import annotations

import numpy as np
import pytest

import relay
import relay.pipeline
from relay.options import Options
from relay.transform import DeadCode, FindSoftmax, FuseAttention, NameDims, Simplify
from tests.generator.compare import difference
from tests.transform.support import Array, executable, kernels, operators, run, same_results, typed

DATA = "def @main[m: Dim, n: Dim](%x: Tensor[(4, m, n), float32])"
LARGEST = "max(%x, axis=[{axis}], keepdims=True)"
TOTAL = "sum(%e, axis=[{axis}], keepdims=True)"
SHIFTED = [
    f"let %e = exp(%x - {LARGEST}); %e / {TOTAL}",
    f"let %e = exp(%x - {LARGEST}); %e * (1f / {TOTAL})",
    f"let %e = exp(%x - {LARGEST}); (1f / {TOTAL}) * %e",
    "let %e = exp(%x - expand_dims(max(%x, axis=[{axis}]), axis={axis})); %e / expand_dims(sum(%e, axis=[{axis}]), axis={axis})",
    "exp(nn.log_softmax(%x, axis={axis}))",
]


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(5)
    return [np.asarray(rng.standard_normal(s), np.float32) for s in shapes]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("body", SHIFTED)
def test_a_softmax_that_is_spelled_out(body: str, axis: int) -> None:
    before = typed(f"{DATA} {{ {body.format(axis=axis)} }}")
    after = run(before, NameDims(), FindSoftmax(), DeadCode())
    assert operators(after) == ["nn.softmax"]
    (x,) = arrays((4, 5, 7))
    # Large ones, and rows with infinities: the same numbers and the same nan.
    x[0] *= 1000
    x[1, 2] = -np.inf
    x[2, 3, 1] = np.inf
    x[3, 1, 4] = -np.inf
    with np.errstate(invalid="ignore"):
        same_results(before, after, x)


@pytest.mark.parametrize(
    "body",
    [
        # No maximum, or another tensor's, or over another axis; what overflows then is no softmax.
        f"let %e = exp(%x); %e / {TOTAL}",
        f"let %e = exp(%x - max(%x * 0.5f, axis=[{{axis}}], keepdims=True)); %e / {TOTAL}",
        f"let %e = exp(%x - max(%x, axis=[0], keepdims=True)); %e / {TOTAL}",
        "exp(%x - logsumexp(%x, axis=[{axis}], keepdims=True))",
        # Over two axes, over no sum of its own, and with a total that is read elsewhere.
        f"let %e = exp(%x - {LARGEST}); %e / sum(%e, axis=[1, 2], keepdims=True)",
        f"let %e = exp(%x - {LARGEST}); %e / sum(%x, axis=[{{axis}}], keepdims=True)",
        f"let %e = exp(%x - {LARGEST}); let %t = {TOTAL}; (%e / %t, %t)",
        f"let %e = exp(%x - {LARGEST}); (%e / {TOTAL}, %e)",
        f"let %e = exp(%x - {LARGEST}); {TOTAL} / %e",
    ],
)
def test_what_is_something_else_stays(body: str) -> None:
    before = typed(f"{DATA} {{ {body.format(axis=2)} }}")
    after = run(before, NameDims(), FindSoftmax(), DeadCode())
    assert "nn.softmax" not in operators(after)
    same_results(before, after, *arrays((4, 5, 7)))


def test_a_total_that_broadcasts_along_another_axis_is_none() -> None:
    """The sums over the columns of a square, as a row."""
    before = typed(
        """def @main[n: Dim](%x: Tensor[(n, n), float32]) {
          let %e = exp(%x - max(%x, axis=[1], keepdims=True)); %e / sum(%e, axis=[1]) }"""
    )
    after = run(before, NameDims(), FindSoftmax(), DeadCode())
    assert "nn.softmax" not in operators(after)
    same_results(before, after, *arrays((5, 5)))


HEAD = (
    "def @main[m: Dim, n: Dim](%q: Tensor[(2, 3, m, 8), float32], %k: Tensor[(2, 3, n, 8), float32], "
    "%v: Tensor[(2, 3, n, 5), float32]"
)
SCORES = 'let %s = einsum((%q, %k), equation="bhqd,bhkd->bhqk") * 0.3f;'
LAST = 'einsum(({p}, %v), equation="bhqk,bhkd->bhqd")'
TOP = "max(%s, axis=[-1], keepdims=True)"
ALL = "sum(%e, axis=[-1], keepdims=True)"
ATTENTIONS = {
    "over the sum": f"let %e = exp(%s - {TOP}); " + LAST.format(p=f"%e / {ALL}"),
    "times one over the sum": f"let %e = exp(%s - {TOP}); " + LAST.format(p=f"%e * (1f / {ALL})"),
    "over the sum afterwards": f"let %e = exp(%s - {TOP}); " + LAST.format(p="%e") + f" / {ALL}",
    "without a maximum": "let %e = exp(%s); " + LAST.format(p=f"%e / {ALL}"),
    "without a maximum, afterwards": "let %e = exp(%s); " + LAST.format(p="%e") + f" / {ALL}",
    "of logarithms": LAST.format(p="exp(nn.log_softmax(%s))"),
    "less logsumexp": LAST.format(p="exp(%s - logsumexp(%s, axis=[-1], keepdims=True))"),
    "negated": LAST.format(p="nn.softmax(negative(%s))"),
    "less a distance": LAST.format(p="nn.softmax(%s - %z * 2f)"),
    "a distance afterwards negated": LAST.format(p="nn.softmax(negative(negative(%s) / 2f - %z))"),
    "a scale for each query": LAST.format(p="nn.softmax(%s * %w)"),
}


@pytest.mark.parametrize("body", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_with_a_softmax_that_is_spelled_out(body: str) -> None:
    """One kernel, and one for its gradient, as the interpreter has it."""
    body = body.replace("%z", "%b").replace("%w", "max(%b, axis=[1], keepdims=True)")
    more = ", %b: Tensor[(m, n), float32])" if "%b" in body else ")"
    module = typed(f"{HEAD}{more} {{ {SCORES} {body} }}")
    operands = arrays((2, 3, 7, 8), (2, 3, 11, 8), (2, 3, 11, 5), *[(7, 11)] * ("%b" in body))
    if "negative(negative" in body:  # a mask under a negative scale stays
        after = run(module, NameDims(), Simplify(), FindSoftmax(), DeadCode(), FuseAttention(), DeadCode())
        assert "nn.attention" not in operators(after)
        same_results(module, after, *operands)
        return
    compilation = relay.pipeline.build(module, Options(cache=False))
    assert any("attention" in p.variant for p in compilation.plan.kernels)
    assert difference(relay.evaluate(module, *operands), executable(compilation, True)(*operands)) is None
    start, end = body.rindex("; ") + 2 if "; " in body else 0, len(body)
    scalar = f"{body[:start]}sum(tanh({body[start:end]}))"
    gradient = relay.value_and_grad(typed(f"{HEAD}{more} -> float32 {{ {SCORES} {scalar} }}"), argnums=(0, 1, 2))
    compilation = relay.pipeline.build(relay.infer_type(gradient), Options(cache=False))
    names = {name for f in compilation.module.functions for k in kernels(compilation.module, f) for name in k}
    assert "nn.attention_cotangents" in names
    assert difference(relay.evaluate(gradient, *operands), executable(compilation)(*operands)) is None


def test_exponents_that_overflow_have_an_attention() -> None:
    """Where exponentials without a maximum are nan, the kernel has the numbers that were meant."""
    module = typed(f"{HEAD}) {{ {SCORES} {ATTENTIONS['without a maximum']} }}")
    operands = arrays((2, 3, 7, 8), (2, 3, 11, 8), (2, 3, 11, 5))
    operands[0] = np.multiply(operands[0], np.float32(1000))
    meant = typed(f"{HEAD}) {{ {SCORES} {LAST.format(p='nn.softmax(%s)')} }}")
    with np.errstate(all="ignore"):
        assert np.isnan(np.asarray(relay.evaluate(module, *operands))).any()
    assert difference(relay.evaluate(meant, *operands), relay.compile(module)(*operands)) is None


def test_scores_that_are_read_elsewhere_stay() -> None:
    body = "exp(%s - logsumexp(%s, axis=[-1], keepdims=True))"
    module = typed(f"{HEAD}) {{ {SCORES} ({LAST.format(p=body)}, %s) }}")
    after = run(module, NameDims(), FuseAttention(), DeadCode())
    assert "nn.attention" not in operators(after)
