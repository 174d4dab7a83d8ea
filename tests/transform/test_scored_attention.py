"""Attention of any function of each score, of weighed shares, with the keys first and of converted scores: one kernel forward, one back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
import relay.pipeline
from relay.ir.parser import parse_module
from relay.ir.printer import module_text
from relay.options import Options
from relay.transform import DeadCode, FuseAttention, NameDims, Simplify
from relay.typing import infer
from tests.generator.compare import difference
from tests.transform.support import Array, executable, operators, run, same_results, typed

Q, K, V = "%q: Tensor[(4, m, 32), float32]", "%k: Tensor[(4, n, 32), float32]", "%v: Tensor[(4, n, 16), float32]"
HEAD = f"def @main[m: Dim, n: Dim]({Q}, {K}, {V}"
VALUES = "transpose(%v, axes=[0, 2, 1])"
SCORES = "nn.batch_matmul(%q, %k)"
ROWS = 'reshape(arange(start=0, stop=Dim[m], dtype="int64"), newshape=[-1, 1])'
KEYS = 'reshape(arange(start=0, stop=Dim[n], dtype="int64"), newshape=[1, -1])'
SIZES = {"m": 7, "n": 19}
CAPPED = f"3f * tanh({SCORES} * 0.2f / 3f)"


# A number for each key, where these are the rows.
KEYS_FIRST = (
    "nn.batch_matmul(nn.softmax(nn.batch_matmul(%k, %q) * %x0, axis=1), %v, transpose_a=True, transpose_b=False)"
)


def weighed(weights: str) -> str:
    return f"nn.batch_matmul({weights}, {VALUES})"


def operands(kinds: list[tuple[str, str]]) -> list[Array]:
    """Arrays for shapes that are written in the sizes of the program."""
    rng = np.random.default_rng(5)
    out: list[Array] = []
    for shape, dtype in kinds:
        sizes = [SIZES.get(d, 0) or int(d) for d in shape.replace(",", " ").split()]
        drawn = rng.standard_normal(sizes)
        out.append(np.asarray(drawn > -0.7 if dtype == "bool" else drawn, dtype))
    return out


OWN = [("4, m, 32", "float32"), ("4, n, 32", "float32"), ("4, n, 16", "float32")]
CASES: list[tuple[list[tuple[str, str]], str]] = [
    # A function of each score: a soft cap before a mask and behind one, a gate, and limits.
    ([], weighed(f"nn.softmax({CAPPED})")),
    ([("m, n", "float32")], weighed(f"nn.softmax({CAPPED} + %x0)")),
    ([("4, 1, n", "float32")], weighed(f"nn.softmax(2f * tanh({SCORES} * 0.2f + %x0))")),
    ([("m, n", "bool")], weighed(f"nn.softmax(where(%x0, {CAPPED}, -1e30f))")),
    ([], weighed(f"nn.softmax(nn.silu({SCORES} * 0.3f))")),
    ([], weighed(f"nn.softmax(clip({SCORES}, a_min=-0.5, a_max=0.7) * -2f)")),
    ([], f"let %s = {SCORES}; {weighed('nn.softmax(where(%s > 0f, %s, -9f))')}"),
    # Numbers for keys, and for heads, under a function and over it.
    ([("4, 1, n", "float32")], weighed(f"nn.softmax({SCORES} * %x0)")),
    ([("n", "float32"), ("4, 1, 1", "float32")], weighed(f"nn.softmax(%x1 * tanh({SCORES} * %x0) / 2f)")),
    ([("4, m, 1", "float32")], weighed(f"nn.softmax(tanh({SCORES}) * %x0)")),
    # Shares that are dropped, and weighed otherwise.
    ([("4, m, n", "float32")], weighed(f"nn.softmax({SCORES} * 0.2f) * %x0 * 1.25f")),
    ([("4, m, n", "bool")], weighed(f"where(%x0, nn.softmax({SCORES} * 0.2f), 0f) * 1.25f")),
    ([("m, n", "bool")], weighed(f"where(%x0, 0f, nn.softmax({CAPPED}))")),
    ([("m, n", "bool"), ("n", "float32")], weighed(f"%x1 * where(%x0, nn.softmax({SCORES}), 0f)")),
    ([("4, m, n", "float32"), ("m, n", "float32")], weighed(f"%x0 * nn.softmax({CAPPED} + %x1)")),
    # The keys along the rows of the scores.
    ([], f"nn.batch_matmul({VALUES}, nn.softmax(nn.batch_matmul(%k, %q), axis=1), transpose_b=False)"),
    (
        [("n, m", "float32"), ("4, n, m", "float32")],
        "nn.batch_matmul(nn.softmax(tanh(nn.batch_matmul(%k, %q)) + %x0, axis=-2) * %x1, %v, transpose_a=True, transpose_b=False)",
    ),
    ([("4, n, 1", "float32")], KEYS_FIRST),
    ([], 'einsum((nn.softmax(einsum((%q, %k), equation="hqd,hkd->hkq"), axis=1), %v), equation="hkq,hkd->qhd")'),
]


@pytest.mark.parametrize(("more", "body"), CASES)
def test_one_kernel_forward_and_one_back(more: list[tuple[str, str]], body: str) -> None:
    kinds = [*OWN, *more]
    beside = "".join(f", %x{n}: Tensor[({shape}), {dtype}]" for n, (shape, dtype) in enumerate(more)).replace(
        "(n)", "(n,)"
    )
    arrays = operands(kinds)
    forward = typed(f"{HEAD}{beside}) {{ {body} }}")
    floats = tuple(n for n, (_, dtype) in enumerate(kinds) if dtype != "bool")
    loss = typed(f"{HEAD}{beside}) {{ mean(tanh({{ {body} }})) }}") if "let" not in body else None
    programs = [("attention", forward)]
    programs += [] if loss is None else [("attention_cotangents", relay.value_and_grad(loss, argnums=floats))]
    for wanted, program in programs:
        compilation = relay.pipeline.build(relay.infer_type(program), Options(cache=False))
        assert any("attention" in p.variant for p in compilation.plan.kernels if wanted in p.kernel.name)
        assert difference(relay.evaluate(program, *arrays), executable(compilation, True)(*arrays)) is None


def test_rows_that_see_no_key_are_zero_where_their_shares_are_dropped() -> None:
    """Whatever hides the keys: a mask, which drops them too, or their distance, where some are dropped that are not seen."""
    body = "{{ let %s = where({seen}, nn.batch_matmul(%q, %k), const(-inf, float32)); {weighed} }}"
    head, later = f"{HEAD}, %x0: Tensor[(4, m, n), bool])", f"{KEYS} > {ROWS} - 3i64"
    rng = np.random.default_rng(2)
    q, k, v = operands(OWN)
    mask = rng.random((4, 7, 19)) > 0.5
    mask[1], mask[2, :5], mask[0, 1:3] = False, False, False
    for seen in ("%x0", f"logical_not({later})"):
        text = f"{head} {body.format(seen=seen, weighed=weighed('where(%x0, nn.softmax(%s), 0f)'))}"
        program = typed(text)
        assert "nn.scored_attention" in operators(run(program, NameDims(), Simplify(), FuseAttention(), DeadCode()))
        expected = relay.evaluate(program, q, k, v, mask)
        assert not np.asarray(expected)[1].any()
        assert difference(expected, relay.compile(program)(q, k, v, mask)) is None


@pytest.mark.parametrize("options", [{"target": "haswell"}, {"target": "generic"}, {"threads": 2}])
def test_on_other_targets(options: dict[str, Any]) -> None:
    body = weighed(f"nn.softmax({CAPPED} + %x0) * %x1")
    text = f"{HEAD}, %x0: Tensor[(m, n), float32], %x1: Tensor[(4, m, n), float32]) {{ mean(tanh({body})) }}"
    program = relay.value_and_grad(typed(text), argnums=(0, 1, 2))
    arrays = operands([*OWN, ("m, n", "float32"), ("4, m, n", "float32")])
    assert difference(relay.evaluate(program, *arrays), relay.compile(program, **options)(*arrays)) is None


def test_what_is_found_can_be_written_down() -> None:
    text = f"{HEAD}, %b: Tensor[(m, n), float32]) {{ {weighed(f'nn.softmax(clip({CAPPED}, a_min=-1.0, a_max=1.5) + %b)')} }}"
    found = run(typed(text), NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert "nn.scored_attention" in operators(found)
    again = infer(parse_module(module_text(found)))
    arrays = operands([*OWN, ("m, n", "float32")])
    same_results(typed(text), again, *arrays)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("cap", ["{s} * 0.2f", "3f * tanh({s} * 0.2f)"])
def test_scores_of_16_bits_that_are_weighed_in_32(kind: str, cap: str) -> None:
    scores = cap.format(s=f'cast({SCORES}, dtype="float32")')
    text = f'{HEAD}) {{ {weighed(f"""cast(nn.softmax({scores}), dtype="{kind}")""")} }}'.replace(
        "), float32]", f"), {kind}]"
    )
    found = run(typed(text), NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert [name for name in operators(found) if "attention" in name]


def test_scores_that_are_made_narrower_on_purpose_stay() -> None:
    narrow = f'cast(cast({SCORES}, dtype="float16"), dtype="float32")'
    found = run(
        typed(f"{HEAD}) {{ {weighed(f'nn.softmax({narrow})')} }}"), NameDims(), Simplify(), FuseAttention(), DeadCode()
    )
    assert not [name for name in operators(found) if "attention" in name]


def test_later_keys_are_hidden_from_capped_scores() -> None:
    """A mask over a function of the scores is seen as causal, and one that drops shares does not hide that."""
    scores = f"where({KEYS} > {ROWS} + Dim[n - m], -1e30f, {CAPPED})".replace("Dim[n - m]", "Dim[n] - Dim[m]")
    body = weighed(f"nn.softmax({scores}) * %x")
    module = typed(f"{HEAD}, %x: Tensor[(4, m, n), float32]) {{ {body} }}")
    found = run(module, NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert "causal=True" in module_text(found)
    arrays = operands([*OWN, ("4, m, n", "float32")])
    assert difference(relay.evaluate(module, *arrays), relay.compile(module, check_memory=True)(*arrays)) is None


def test_numbers_for_as_many_keys_as_a_query_has_are_not_for_queries() -> None:
    module = typed(
        f"{HEAD}, %x0: Tensor[(4, n, 1), float32]) {{ {KEYS_FIRST} }}".replace(", n: Dim", "").replace("n, ", "32, ")
    )
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((4, 7, 32), (4, 32, 32), (4, 32, 16), (4, 32, 1))]
    assert difference(relay.evaluate(module, *arrays), relay.compile(module)(*arrays)) is None
