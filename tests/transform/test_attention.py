"""Spelled-out attention becomes one operator, in every way of writing it that means the same, and in no other."""

from __future__ import annotations

import numpy as np
import pytest

import relay
import relay.pipeline
from relay.ir.parser import parse_module
from relay.options import Options
from relay.transform import DeadCode, FuseAttention, FuseOps, NameDims, Simplify
from relay.transform.blocks import body_of
from relay.typing import infer
from tests.generator.compare import difference
from tests.transform.support import VERSION, Array, executable, kernels, operators, run, same_results, typed

HEAD = "def @main[m: Dim, n: Dim](%q: Tensor[(6, m, 8), float32], %k: Tensor[(6, n, 8), float32], %v: Tensor[(6, n, 5), float32]"
VALUES = "transpose(%v, axes=[0, 2, 1])"
SHORT = f"{HEAD}) {{ nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) * 0.3f), {VALUES}) }}"


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(3)
    return [np.asarray(rng.standard_normal(s), np.float32) for s in shapes]


def found(text: str, *args: Array) -> bool:
    """Whether attention is found; then it must mean the same."""
    before = typed(text)
    after = run(before, NameDims(), Simplify(), FuseAttention(), DeadCode())
    same_results(before, after, *args)
    names = operators(after)
    if "nn.attention" in names:
        assert "nn.softmax" not in names and "nn.batch_matmul" not in names
    return "nn.attention" in names


Q, K, V = arrays((6, 7, 8), (6, 11, 8), (6, 11, 5))


@pytest.mark.parametrize(
    "scores",
    [
        "nn.batch_matmul(%q, %k)",
        "nn.batch_matmul(%q, %k) * 0.3f",
        "0.3f * nn.batch_matmul(%q, %k)",
        "nn.batch_matmul(%q, %k) / 2.5f",
        "nn.batch_matmul(%q * 0.3f, %k)",
        "nn.batch_matmul(%q * 0.3f, %k / 2f) * 2f",
        "nn.batch_matmul(%q, transpose(%k, axes=[0, 2, 1]), transpose_b=False)",
        "nn.batch_matmul(transpose(%q, axes=[0, 2, 1]), %k, transpose_a=True)",
        "reshape(nn.batch_matmul(%q, %k) * 0.3f, newshape=[-4, 2, 3, -2])",
        "reshape(nn.batch_matmul(%q, %k), newshape=[-4, 2, 3, -2]) * 0.3f",
    ],
)
def test_scales_layouts_and_views(scores: str) -> None:
    text = f"{HEAD}) {{ let %p = nn.softmax({scores}); nn.batch_matmul(reshape(%p, newshape=[6, m, n]), {VALUES}) }}"
    # A size in an attribute: written as what is left.
    text = text.replace("newshape=[6, m, n]", "newshape=[-1, Dim[m], Dim[n]]")
    assert found(text, Q, K, V)


@pytest.mark.parametrize(
    ("shape", "scores"),
    [
        ("(n,)", "nn.batch_matmul(%q, %k) * 0.3f + %b"),
        ("(n,)", "%b + 0.3f * nn.batch_matmul(%q, %k)"),
        ("(6, m, n)", "nn.batch_matmul(%q, %k) * 0.3f + %b"),
        ("(6, m, n)", "%b + nn.batch_matmul(%q, %k) * 0.3f"),
        ("(6, 1, n)", "(nn.batch_matmul(%q, %k) + %b) + %b"),
        ("(m, n)", "where(%b > 0f, nn.batch_matmul(%q, %k), const(-inf, float32))"),
        ("(m, n)", "where(%b > -1f, nn.batch_matmul(%q, %k), const(-inf, float32)) + %b"),
        ("(2, 1, 1, n)", "reshape(nn.batch_matmul(%q, %k), newshape=[-4, 2, 3, -2]) + %b"),
    ],
)
def test_masks(shape: str, scores: str) -> None:
    back = "reshape(%p, newshape=[-3, -2])" if shape.startswith("(2") else "%p"
    text = (
        f"{HEAD}, %b: Tensor[{shape}, float32]) {{ let %p = nn.softmax({scores}); nn.batch_matmul({back}, {VALUES}) }}"
    )
    sizes = {"m": 7, "n": 11}
    (b,) = arrays(tuple(sizes[s] if s in sizes else int(s) for s in shape.strip("()").replace(" ", "").split(",") if s))
    b[..., 0] = 1  # every query sees a key
    assert found(text, Q, K, V, b)


@pytest.mark.parametrize(
    "body",
    [
        # The weights, or the scores, are used elsewhere too.
        f"let %p = nn.softmax(nn.batch_matmul(%q, %k)); (nn.batch_matmul(%p, {VALUES}), %p)",
        f"let %s = nn.batch_matmul(%q, %k); (nn.batch_matmul(nn.softmax(%s), {VALUES}), %s)",
        # Not a softmax over the keys.
        f"nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k), axis=1), {VALUES})",
        f"nn.batch_matmul(sigmoid(nn.batch_matmul(%q, %k)), {VALUES})",
        # What is made of the scores looks at more than one of them.
        f"let %s = nn.batch_matmul(%q, %k); nn.batch_matmul(nn.softmax(%s - mean(%s, axis=-1, keepdims=True)), {VALUES})",
        # Each score is that of the query before it.
        f"let %s = nn.batch_matmul(%q, %k); nn.batch_matmul(nn.softmax(tanh(reverse(%s, axis=1))), {VALUES})",
        # The weights are transposed.
        "nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k)), %q, transpose_a=True, transpose_b=False)",
    ],
)
def test_what_is_something_else_stays(body: str) -> None:
    assert not found(f"{HEAD}) {{ {body} }}", Q, K, V)


@pytest.mark.parametrize(
    "scores", ["where(%b, %s, -9f) + 1f", "where(%b, where(%b, %s, -8f), -9f)", "where(%b, %s, -9f) + %c"]
)
def test_what_tells_hidden_keys_apart_stays(scores: str) -> None:
    """A finite score of hidden keys is one for all of them."""
    head = f"{HEAD}, %b: Tensor[(m, n), bool], %c: Tensor[(m, n), float32])"
    text = f"{head} {{ let %s = nn.batch_matmul(%q, %k); nn.batch_matmul(nn.softmax({scores}), {VALUES}) }}"
    mask = np.random.default_rng(0).random((7, 11)) > 0.5
    assert not found(text, Q, K, V, mask, *arrays((7, 11)))


def test_products_of_matrices() -> None:
    head = "def @main[m: Dim, n: Dim](%q: Tensor[(m, 8), float32], %k: Tensor[(n, 8), float32], %v: Tensor[(n, 5), float32])"
    text = f"{head} {{ nn.matmul(nn.softmax(nn.dense(%q, %k) * 0.3f), %v) }}"
    assert found(text, *arrays((7, 8), (11, 8), (11, 5)))


LONG = (
    "def @main[b: Dim, m: Dim, n: Dim](%q: Tensor[(b, m, 3, 8), float32], %k: Tensor[(b, n, 3, 8), float32], "
    "%v: Tensor[(b, 3, n, 5), float32], %mask: Tensor[(b, n), float32])"
)
LONG_ARRAYS = arrays((2, 7, 3, 8), (2, 11, 3, 8), (2, 3, 11, 5), (2, 11))
MASK = "reshape(%mask, newshape=[0, 1, 1, -1])"


@pytest.mark.parametrize(
    "first", ["(%q, %k), equation='bihd,bjhd->bhij'", "(%k, %q * 0.5f), equation='bjhd,bihd->bhij'"]
)
@pytest.mark.parametrize(
    "last",
    [
        "(%p, %v), equation='bhij,bhjd->bhid'",
        "(%p, %v), equation='bhij,bhjd->bihd'",
        "(%v, %p), equation='bhje,bhij->eihb'",
        "(%p, %v), equation='...ij,...jd->...id'",
    ],
)
def test_products_in_einsteins_notation(first: str, last: str) -> None:
    text = f"{LONG} {{ let %p = nn.softmax(einsum({first}) * 0.3f + {MASK}); einsum({last}) }}".replace("'", '"')
    assert found(text, *LONG_ARRAYS)


def test_scores_with_the_keys_first_are_scores_of_the_keys() -> None:
    scores = "einsum((%q, %k), equation='bihd,bjhd->bhji')"
    text = f"{LONG} {{ einsum((nn.softmax({scores}), %q), equation='bhji,bihd->bhjd') }}".replace("'", '"')
    assert found(text, *LONG_ARRAYS)


@pytest.mark.parametrize(
    "result",
    [
        # The sum is over the queries; over two axes; over none; the weights are read twice.
        "einsum((%p, %q), equation='bhij,bihd->bhjd')",
        "einsum((%p, %v), equation='bhij,bhjd->bid')",
        "einsum((%p, %v), equation='bhij,bhjd->bhijd')",
        "let %t = (%p, %v); (einsum(%t, equation='bhij,bhjd->bhid'), %t.0)",
    ],
)
def test_other_sums_are_no_attention(result: str) -> None:
    scores = "einsum((%q, %k), equation='bihd,bjhd->bhij')"
    assert not found(f"{LONG} {{ let %p = nn.softmax({scores}); {result} }}".replace("'", '"'), *LONG_ARRAYS)


SEEN = {
    "cols <= rows": "%cols <= %rows",
    "rows >= cols": "%rows >= %cols",
    "not (cols > rows)": "logical_not(%cols > %rows)",
    "cols < rows + 1": "%cols < %rows + 1",
    "rows - cols > -1": "(%rows - %cols) > -1",
    "a triangle": 'tril(ones(shape=[Dim[m], Dim[n]], dtype="float32"), k=2) > 0.5f',
    "a triangle of booleans": 'cast(tril(ones(shape=[Dim[m], Dim[n]], dtype="int32"), k=2), dtype="bool")',
}
APPLIED = {
    "where": "where({seen}, {scores}, {least})",
    "masked_fill": "where(logical_not({seen}), {least}, {scores})",
    "with heads": "where(expand_dims({seen}, axis=0), {scores}, {least})",
    "added": "{scores} + where({seen}, 0f, {least})",
    "added, of floats": '{scores} + (1f - cast({seen}, dtype="float32")) * {least}',
}


def causal(seen: str, applied: str, least: str) -> tuple[str, str]:
    """A program of causal attention of 7 queries that see 2 keys more, and what its compiled form calls."""
    mask = APPLIED[applied].format(seen=SEEN[seen], scores="%s", least=least)
    text = f"""{HEAD}) {{
      let %cols = arange(stop=Dim[n], dtype="int32");
      let %rows = expand_dims(arange(start=Dim[n - m], stop=Dim[n], dtype="int32"), axis=1);
      let %s = nn.batch_matmul(%q, %k) * 0.3f;
      nn.batch_matmul(nn.softmax({mask}), {VALUES}) }}"""
    before = typed(text)
    after = run(before, NameDims(), Simplify(), FuseAttention(), DeadCode())
    same_results(before, after, Q, *arrays((6, 9, 8), (6, 9, 5)))
    return text, str(after)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("least", ["const(-inf, float32)", "-1e30f", "-9f"])
def test_causal_masks_in_every_spelling(seen: str, least: str) -> None:
    _, after = causal(seen, "where", least)
    offset_is_known = "triangle" not in seen
    assert "nn.attention" in after and ("causal=True" in after) == offset_is_known
    assert ("hidden" in after) == (least[0] == "-")


@pytest.mark.parametrize("applied", APPLIED)
def test_causal_masks_applied_in_every_way(applied: str) -> None:
    _, after = causal("cols <= rows", applied, "const(-inf, float32)")
    # 0 * -inf is no number: a mask made so hides everything.
    assert "nn.attention" in after and ("causal=True" in after) == (applied != "added, of floats")
    # What is added to a score does not replace it.
    _, after = causal("cols <= rows", applied, "-1e30f")
    assert "nn.attention" in after and ("causal=True" in after) == ("added" not in applied)


@pytest.mark.parametrize(("rows", "begin"), [(9, 0), (7, 2), (7, 1)])
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_a_stored_triangle_is_a_causal_mask(kind: str, rows: int, begin: int) -> None:
    """Also a stretch of its rows, if that ends with the last."""
    stored = np.tri(9, dtype=bool) if kind == "bool" else np.where(np.tri(9, dtype=bool), 0, -np.inf).astype(np.float32)
    scores = "where(%mask, %s, const(-inf, float32))" if kind == "bool" else "%s + %mask"
    text = f"""def @main(%q: Tensor[(6, {rows}, 8), float32], %k: Tensor[(6, 9, 8), float32], %v: Tensor[(6, 9, 5), float32]) {{
      let %mask = strided_slice(meta[relay.Constant][0], begin=[{begin}], end=[{begin + rows}], axes=[0]);
      let %s = nn.batch_matmul(%q, %k) * 0.3f;
      nn.batch_matmul(nn.softmax({scores}), {VALUES}) }}"""
    before = infer(parse_module(VERSION + text, constants=[stored]))
    after = run(before, FuseAttention(), DeadCode())
    same_results(before, after, *arrays((6, rows, 8), (6, 9, 8), (6, 9, 5)))
    assert "nn.attention" in operators(after) and ("causal=True" in str(after)) == (begin + rows == 9)


@pytest.mark.parametrize(("rows", "begin", "step"), [(9, 0, 1), (7, 2, 1), (7, 1, 1), (9, 0, 2)])
def test_stored_positions_make_a_causal_mask(rows: int, begin: int, step: int) -> None:
    """Positions that were computed when the program was compiled, compared with each other."""
    positions = [np.arange(0, 9 * step, step, dtype=np.int32), np.arange(begin, begin + rows, dtype=np.int32)[:, None]]
    text = f"""def @main(%q: Tensor[(6, {rows}, 8), float32], %k: Tensor[(6, 9, 8), float32], %v: Tensor[(6, 9, 5), float32]) {{
      let %seen = meta[relay.Constant][0] <= meta[relay.Constant][1];
      let %s = where(%seen, nn.batch_matmul(%q, %k) * 0.3f, -1e30f);
      nn.batch_matmul(nn.softmax(%s), {VALUES}) }}"""
    before = infer(parse_module(VERSION + text, constants=positions))
    after = run(before, FuseAttention(), DeadCode())
    same_results(before, after, *arrays((6, rows, 8), (6, 9, 8), (6, 9, 5)))
    causal = begin + rows == 9 and step == 1
    assert "nn.attention" in operators(after) and ("causal=True" in str(after)) == causal


def test_constants_keep_the_kernels_of_products() -> None:
    text = "def @main(%q: Tensor[(7, 8), float32]) { nn.dense(nn.softmax(nn.dense(%q, meta[relay.Constant][0])), meta[relay.Constant][1]) }"
    module = infer(parse_module(VERSION + text, constants=arrays((11, 8), (5, 11))))
    assert "nn.attention" not in operators(run(module, FuseAttention()))


def test_shared_keys() -> None:
    head = "def @main[m: Dim, n: Dim](%q: Tensor[(6, m, 8), float32], %k: Tensor[(1, n, 8), float32], %v: Tensor[(1, n, 5), float32])"
    assert found(f"{head} {{ nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k)), {VALUES}) }}", Q, K[:1], V[:1])


@pytest.mark.parametrize(
    "form",
    [
        "repeat({x}, repeats=4, axis=0)",
        "reshape(broadcast_to(expand_dims({x}, axis=1), shape=[2, 4, Dim[n], 16]), newshape=[8, Dim[n], 16])",
    ],
)
def test_heads_shared_by_repetition(form: str) -> None:
    """Keys that are repeated for the heads that share them are read where they are."""
    text = f"""def @main[m: Dim, n: Dim](%q: Tensor[(8, m, 16), float32], %k: Tensor[(2, n, 16), float32],
        %v: Tensor[(2, n, 16), float32]) {{
      let %p = nn.softmax(nn.batch_matmul(%q, {form.format(x="%k")}) * 0.25f);
      nn.batch_matmul(%p, {form.format(x="%v")}, transpose_b=False) }}"""
    module = typed(text)
    exe = relay.compile(module)
    assert len(exe.program.kernels) == 1
    for m, n in ((1, 40), (30, 50)):
        args = arrays((8, m, 16), (2, n, 16), (2, n, 16))
        np.testing.assert_allclose(np.asarray(exe(*args)), np.asarray(relay.evaluate(module, *args)), atol=1e-5)


def test_one_kernel_from_projections_to_projections() -> None:
    heads = (
        "def @h[n: Dim](%x: Tensor[(n, 24), float32]) { transpose(reshape(%x, newshape=[-1, 3, 8]), axes=[1, 0, 2]) }"
    )
    text = f"""
    {heads}
    def @main[n: Dim](%x: Tensor[(n, 24), float32], %w: Tensor[(24, 24), float32]) {{
      let %c = nn.batch_matmul(nn.softmax(nn.batch_matmul(@h(nn.dense(%x, %w)), @h(%x)) * 0.3f),
                               transpose(@h(nn.dense(%x, %w)), axes=[0, 2, 1]));
      nn.dense(reshape(transpose(%c, axes=[1, 0, 2]), newshape=[-1, 24]), %w)
    }}"""
    before = typed(text)
    after = run(before, relay.transform.Inline(), NameDims(), FuseAttention(), DeadCode(), FuseOps())
    assert any("nn.attention" in k for k in kernels(after))
    assert all(not {"transpose", "reshape"} >= set(k) for k in kernels(after)), "nothing is only moved"
    exe = relay.compile(before)
    x, w = arrays((9, 24), (24, 24))
    np.testing.assert_allclose(np.asarray(exe(x, w)), np.asarray(relay.evaluate(before, x, w)), rtol=1e-4, atol=1e-4)


def test_long_programs() -> None:
    """A thousand layers, and a thousand masks on one product."""
    layer = f"let %x = nn.batch_matmul(nn.softmax(nn.batch_matmul(%x, %k)), {VALUES});"
    head = HEAD.replace("(6, n, 5)", "(6, n, 8)").replace("%q", "%x")
    many = run(f"{head}) {{ {layer * 1000} %x }}", NameDims(), FuseAttention())
    assert operators(many).count("nn.attention") == 1000
    masks = "nn.batch_matmul(%q, %k)" + " + %b" * 1000
    text = f"{HEAD}, %b: Tensor[(n,), float32]) {{ nn.batch_matmul(nn.softmax({masks}), {VALUES}) }}"
    assert len(body_of(run(text, NameDims(), FuseAttention()).functions["main"]).bindings) >= 1000


CAUSAL = (
    'where(arange(stop={n}, dtype="int32") > expand_dims(arange(stop={n}, dtype="int32"), axis=1), -1e30f, {scores})'
)


@pytest.mark.parametrize(
    ("size", "causal", "derivative", "fused"),
    [
        ("n", False, "grad", True),
        ("n", True, "grad", True),
        ("256", True, "grad", True),
        ("256", False, "grad", False),
        ("9", True, "grad", False),
        ("?", False, "grad", False),
        ("n", True, "jvp", False),
        ("n", True, "second", False),
    ],
)
def test_gradients_of_what_is_spelled_out(size: str, causal: bool, derivative: str, fused: bool) -> None:
    """Long attention is one kernel on the way back too, where nothing is differentiated twice."""
    kind = f"Tensor[(2, {size}, 8), float32]"
    scores = "nn.batch_matmul(%q, %k) * 0.3f"
    if causal:
        scores = CAUSAL.format(n=f"Dim[{size}]" if size == "n" else size, scores=scores)
    dims = "[n: Dim]" if size == "n" else ""
    text = f"""def @main{dims}(%q: {kind}, %k: {kind}, %v: {kind}) -> float32 {{
      sum(tanh(nn.batch_matmul(nn.softmax({scores}), transpose(%v, axes=[0, 2, 1])))) }}"""
    module = typed(text)
    by = (0, 1, 2)
    if derivative == "jvp":
        module = relay.jvp(module, argnums=by)
    else:
        module = relay.value_and_grad(module, argnums=by)
        module = relay.grad(module, argnums=0) if derivative == "second" else module
    rows = int(size) if size.isdecimal() else 7
    operands = arrays(*[(2, rows, 8)] * (6 if derivative == "jvp" else 3))
    compilation = relay.pipeline.build(relay.infer_type(module), Options(cache=False))
    names = {name for f in compilation.module.functions for k in kernels(compilation.module, f) for name in k}
    assert ("nn.attention_cotangents" in names) is fused
    assert difference(relay.evaluate(module, *operands), executable(compilation)(*operands)) is None


@pytest.mark.parametrize(("queries", "fused"), [("8", False), ("100", True), ("n", True)])
def test_gradients_of_few_queries_of_any_number_of_keys(queries: str, fused: bool) -> None:
    """Few scores are kept, however many keys there are: making them again would take longer than all else."""
    q, k = (f"Tensor[(2, {rows}, 8), float32]" for rows in (queries, "n"))
    text = f"""def @main[n: Dim](%q: {q}, %k: {k}, %v: {k}) -> float32 {{
      sum(tanh(nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) * 0.3f), transpose(%v, axes=[0, 2, 1])))) }}"""
    module = relay.value_and_grad(typed(text), argnums=(0, 1, 2))
    compilation = relay.pipeline.build(relay.infer_type(module), Options(cache=False))
    names = {name for f in compilation.module.functions for k in kernels(compilation.module, f) for name in k}
    assert ("nn.attention_cotangents" in names) is fused
    rows = int(queries) if queries.isdecimal() else 7
    operands = arrays((2, rows, 8), (2, 7, 8), (2, 7, 8))
    assert difference(relay.evaluate(module, *operands), executable(compilation)(*operands)) is None


@pytest.mark.parametrize("mask", ["%m", "where(%m > 0f, 0f, -1e30f)"])
def test_masks_of_unknown_sizes_stay(mask: str) -> None:
    """What is added may have one row for all: only the run knows."""
    text = f"{HEAD}, %m: Tensor[(?, ?), float32]) {{ nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k) + {mask}), {VALUES}) }}"
    after = run(typed(text), FuseAttention(), DeadCode())
    assert "nn.attention" not in operators(after)


@pytest.mark.parametrize("turned", [False, True])
def test_batch_and_heads_that_are_made_one_axis_have_one_kernel_on_the_way_back(turned: bool) -> None:
    """The gradient keeps them apart, so that nothing is divided to tell them from each other; nor is what is only split kept for it."""
    key = (
        "transpose(reshape(transpose(%k, axes=[0, 1, 3, 2]), newshape=[Dim[b * 4], 8, Dim[t]]), axes=[0, 2, 1])"
        if turned
        else "reshape(%k, newshape=[-3, -2])"
    )
    text = f"""
    def @heads[b: Dim, t: Dim](%x: Tensor[(b, t, 32), float32]) -> Tensor[(b, 4, t, 8), float32] {{
      transpose(reshape(%x, newshape=[0, 0, 4, 8]), axes=[0, 2, 1, 3])
    }}
    def @main[b: Dim, t: Dim](%x: Tensor[(b, t, 96), float32]) -> float32 {{
      let %parts = split(%x * 2f, indices_or_sections=3, axis=2);
      let %q = @heads(%parts.0);
      let %k = @heads(%parts.1);
      let %v = reshape(@heads(%parts.2), newshape=[-3, -2]);
      let %scores = nn.batch_matmul(reshape(%q, newshape=[-3, -2]), {key}) / sqrt(8f);
      let %seen = nn.batch_matmul(nn.softmax(%scores), transpose(%v, axes=[0, 2, 1]));
      sum(tanh(transpose(reshape(%seen, newshape=[Dim[b], 4, Dim[t], 8]), axes=[0, 2, 1, 3])))
    }}"""
    module = relay.value_and_grad(typed(text), argnums=0)
    compilation = relay.pipeline.build(relay.infer_type(module), Options(cache=False))
    gradients = [p for p in compilation.plan.kernels if "attention_cotangents" in p.kernel.name]
    assert ["attention" in p.variant for p in gradients] == [True]
    operands = arrays((3, 7, 96))
    assert difference(relay.evaluate(module, *operands), executable(compilation)(*operands)) is None


GROUPED = (
    "%q: Tensor[(b, 2, 3, t, 16), float32], %k: Tensor[(b, 2, t, 16), float32], %v: Tensor[(b, 2, t, 16), float32]",
    [(2, 2, 3, 7, 16), (2, 2, 7, 16), (2, 2, 7, 16)],
)
FIRST = 'einsum((%q, %k), equation="bgrqd,bgkd->bgrqk")'
LAST = 'einsum((nn.softmax({s}), %v), equation="bgrqk,bgkd->bgrqd")'
QUERIES = "%q: Tensor[(b, 4, t, 16), float32], "
LATER = 'arange(stop=Dim[t], dtype="int32") > expand_dims(arange(stop=Dim[t], dtype="int32"), axis=1)'
SCORES = 'einsum((%q, %k), equation="bhqd,bhkd->bhqk")'
WEIGHED = 'einsum((nn.softmax({s}), %v), equation="bhqk,bhkd->bhqd")'
KEYS = "%k: Tensor[(b, 4, t, 16), float32], %v: Tensor[(b, 4, t, 16), float32]"
EQUAL = [(2, 4, 7, 16)] * 3


@pytest.mark.parametrize(
    ("parameters", "shapes", "body"),
    [
        (*GROUPED, LAST.format(s=f"{FIRST} * 0.25f")),
        (*GROUPED, LAST.format(s=f"where({LATER}, -1e30f, {FIRST} * 0.25f)")),
        (
            QUERIES + "%k: Tensor[(b, t, 16), float32], %v: Tensor[(b, t, 16), float32]",
            [(2, 4, 7, 16), (2, 7, 16), (2, 7, 16)],
            """einsum((nn.softmax(einsum((%q, %k), equation="bhqd,bkd->bhqk") * 0.25f), %v), equation="bhqk,bkd->bhqd")""",
        ),
        (
            QUERIES + "%k: Tensor[(b, 2, t, 16), float32], %v: Tensor[(b, 2, t, 16), float32]",
            [(2, 4, 7, 16), (2, 2, 7, 16), (2, 2, 7, 16)],
            """einsum((nn.softmax(einsum((%q, repeat(%k, repeats=2, axis=1)), equation="bhqd,bhkd->bhqk") * 0.25f),
                        repeat(%v, repeats=2, axis=1)), equation="bhqk,bhkd->bhqd")""",
        ),
        (QUERIES + KEYS, EQUAL, WEIGHED.format(s=f"where({LATER}, -1e30f, {SCORES}) * 0.25f")),
        (
            f"{QUERIES}{KEYS}, %m: Tensor[(b, 1, 1, t), float32]",
            [*EQUAL, (2, 1, 1, 7)],
            WEIGHED.format(s=f"({SCORES} + %m) / 4f"),
        ),
        (f"{QUERIES}{KEYS}, %z: float32", [*EQUAL, ()], WEIGHED.format(s=f"{SCORES} / %z")),
        (
            f"{QUERIES}{KEYS}, %z: Tensor[(4, 1, 1), float32]",
            [*EQUAL, (4, 1, 1)],
            WEIGHED.format(s=f"where({LATER}, -1e30f, %z * {SCORES})"),
        ),
    ],
)
def test_heads_that_share_keys_and_scales_in_any_place(
    parameters: str, shapes: list[tuple[int, ...]], body: str
) -> None:
    """One kernel forward, and one for the cotangents, that agree with the interpreter."""
    module = typed(f"def @main[b: Dim, t: Dim]({parameters}) -> float32 {{ sum(tanh({body})) }}")
    operands = arrays(*shapes)
    for wanted, program in (
        ("nn.attention", module),
        ("nn.attention_cotangents", relay.value_and_grad(module, argnums=tuple(range(len(shapes))))),
    ):
        compilation = relay.pipeline.build(relay.infer_type(program), Options(cache=False))
        assert wanted in {n for f in compilation.module.functions for k in kernels(compilation.module, f) for n in k}
        assert any(
            "attention" in p.variant for p in compilation.plan.kernels if wanted.replace(".", "_") in p.kernel.name
        )
        assert difference(relay.evaluate(program, *operands), executable(compilation, True)(*operands)) is None


@pytest.mark.parametrize(
    "scores",
    [
        f"where({LATER}, -1e30f, {SCORES} * %z)",
        f"(where({LATER}, -1e30f, {SCORES}) * %z)",
        f"where({LATER}, -1e30f, {SCORES}) * -0.25f",
        f"({SCORES} + %m) * %z",
    ],
)
def test_scales_over_masks_mean_the_same(scores: str) -> None:
    parameters = f"{QUERIES}{KEYS}, %z: float32, %m: Tensor[(t,), float32]"
    module = typed(f"def @main[b: Dim, t: Dim]({parameters}) {{ {WEIGHED.format(s=scores)} }}")
    operands = arrays(*EQUAL, (), (7,))
    assert difference(relay.evaluate(module, *operands), relay.compile(module)(*operands)) is None


RELATIVE = """def @main[b: Dim, t: Dim](%q: Tensor[(b, 4, t, 8), float32], %k: Tensor[(b, 4, t, 8), float32],
    %v: Tensor[(b, 4, t, 8), float32], %table: Tensor[(9, 4), float32]) -> float32 {
  let %at = arange(stop=Dim[t], dtype="int32");
  let %near = clip(expand_dims(%at, axis=0) - expand_dims(%at, axis=1), a_min=-4.0, a_max=4.0) + 4;
  let %bias = transpose(take(%table, %near, axis=0), axes=[2, 0, 1]);
  let %a = nn.softmax(einsum((%q, %k), equation="bhid,bhjd->bhij") + expand_dims(%bias, axis=0));
  sum(tanh(einsum((%a, %v), equation="bhij,bhjd->bihd")))
}"""
TRIANGLE = """def @main[t: Dim](%z: Tensor[(t, t, 16), float32], %w: Tensor[(3, 16, 16), float32],
    %wb: Tensor[(2, 16), float32]) -> float32 {
  let %x = reshape(einsum((%z, %w), equation="ijc,noc->nijo"), newshape=[0, 0, 0, 2, 8]);
  let %q = take(%x, 0, axis=0);
  let %k = take(%x, 1, axis=0);
  let %bias = transpose(nn.dense(%z, %wb), axes=[2, 0, 1]);
  let %a = nn.softmax(einsum((%q, %k), equation="ijhd,ikhd->ihjk") * 0.35f + %bias);
  sum(tanh(einsum((%a, take(%x, 2, axis=0)), equation="ihjk,ikhd->ijhd")))
}"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [(RELATIVE, [*[(3, 4, 11, 8)] * 3, (9, 4)]), (TRIANGLE, [(11, 11, 16), (3, 16, 16), (2, 16)])],
    ids=["relative", "triangle"],
)
def test_a_learned_bias_has_its_cotangent_from_the_same_kernel(text: str, shapes: list[tuple[int, ...]]) -> None:
    program = relay.value_and_grad(typed(text), argnums=tuple(range(len(shapes))))
    compilation = relay.pipeline.build(relay.infer_type(program), Options(cache=False))
    back = [p for p in compilation.plan.kernels if "attention" in p.kernel.name and "attention" in p.variant]
    assert ["cotangents" in p.kernel.name for p in back] == [False, True]
    assert not [p.kernel.name for p in compilation.plan.kernels if "vjp3" in p.kernel.name]
    operands = arrays(*shapes)
    assert difference(relay.evaluate(program, *operands), executable(compilation, True)(*operands)) is None
