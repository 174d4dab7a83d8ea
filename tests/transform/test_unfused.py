"""What is said of attention that stays apart."""

from __future__ import annotations

import pytest

import relay
from relay.cli.inspect import VIEWS
from relay.options import Options
from relay.transform import NameDims, ToBlocks, unfused_attentions
from tests.transform.support import run, typed

HEAD = (
    "def @main[m: Dim, n: Dim](%q: Tensor[(6, m, 8), float32], %k: Tensor[(6, n, 8), float32], "
    "%v: Tensor[(6, 5, n), float32], %b: Tensor[(6, m, n), float32])"
)
SCORES = "let %s = nn.batch_matmul(%q, %k) * 0.3f;"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "nn.batch_matmul(nn.softmax(%s, axis=1), %v)",
            "the softmax is not over the axis of the scores that the second product sums over",
        ),
        (
            "nn.batch_matmul(nn.softmax(%s), %q, transpose_a=True, transpose_b=False)",
            "the softmax is not over the axis of the scores that the second product sums over",
        ),
        ("(nn.batch_matmul(nn.softmax(%s), %v), %s)", "%s is read 2 times, not by the softmax alone"),
        (
            "let %p = nn.softmax(%s); (nn.batch_matmul(%p, %v), %p)",
            "%p is read 2 times, not by the second product alone",
        ),
        (
            "nn.batch_matmul(nn.softmax(where(%b > 0f, %s + %b, -9f)), %v)",
            "one mask is added and another gives hidden keys a finite score",
        ),
    ],
)
def test_why(body: str, why: str) -> None:
    module = run(typed(f"{HEAD} {{ {SCORES} {body} }}"), NameDims())
    ((where, found),) = unfused_attentions(module)
    assert found == why and where.startswith("@main at ")


@pytest.mark.parametrize(
    "body",
    [
        "nn.batch_matmul(nn.softmax(%s), %v)",
        "let %e = exp(%s); nn.batch_matmul(%e, %v) / sum(%e, axis=[-1], keepdims=True)",
        "nn.batch_matmul(tanh(%s), %v)",
        "nn.batch_matmul(nn.softmax(%b), %v)",
        "nn.batch_matmul(nn.softmax(tanh(%s)), %v)",
        "nn.batch_matmul(nn.softmax(%s) * %b, %v)",
        "nn.batch_matmul(nn.softmax((%s + %b) * -1f), %v)",
        "nn.batch_matmul(nn.softmax(where(%b > 1f, where(%b > 0f, %s, -8f), -9f)), %v)",
    ],
)
def test_nothing_is_said_of_others(body: str) -> None:
    assert unfused_attentions(run(typed(f"{HEAD} {{ {SCORES} {body} }}"), ToBlocks(), NameDims())) == []


@pytest.mark.parametrize(("size", "why"), [("n", "none"), ("9", "the matrices of scores are small")])
def test_the_view_looks_at_the_program_before_its_gradient(size: str, why: str) -> None:
    kind = f"Tensor[(2, {size}, 8), float32]"
    dims = "[n: Dim]" if size == "n" else ""
    text = f"""def @main{dims}(%q: {kind}, %k: {kind}, %v: {kind}) -> float32 {{
      sum(nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k)), transpose(%v, axes=[0, 2, 1]))) }}"""
    module = relay.infer_type(relay.value_and_grad(typed(text), argnums=0))
    view = dict(VIEWS["attention"](module, Options(cache=False)))
    assert why in view["not fused"]
    assert view["attention"] == ("1 of one kernel" if size == "n" else "0 of one kernel")
    assert "-O3" in VIEWS["attention"](module, Options(cache=False, opt_level=1))[0][1]
