"""Masks that hide keys by their distance are windows of attention, however a program spells them, and are no matrices."""

from __future__ import annotations

import numpy as np
import pytest

import relay
import relay.pipeline
from relay.codegen.target import host_target
from relay.ir.printer import module_text
from relay.options import Options
from relay.transform import DeadCode, FoldConstants, FuseAttention, NameDims, Simplify
from tests.generator.compare import difference
from tests.transform.support import Array, operators, run, same_results, typed

HEAD = "def @main[n: Dim](%q: Tensor[(3, n, 16), float32], %k: Tensor[(3, n, 16), float32], %v: Tensor[(3, n, 16), float32])"
BODY = "nn.batch_matmul(nn.softmax({scores}), transpose(%v, axes=[0, 2, 1]))"
SCORES = "nn.batch_matmul(%q, %k) * 0.25f"
ROWS = 'let %r = reshape(arange(start=0, stop=Dim[n], dtype="KIND"), newshape=[-1, 1]); '
KEYS = 'let %c = reshape(arange(start=0, stop=Dim[n], dtype="KIND"), newshape=[1, -1]); '
NEAR, LATE = "%c > %r - 70LIT", "%c <= %r"
UNSEEN = "const(-inf, float32)"


def operands(n: int) -> list[Array]:
    rng = np.random.default_rng(2)
    return [np.asarray(rng.standard_normal((3, n, 16)), np.float32) for _ in range(3)]


def program(scores: str, kind: str = "int64", n: str = "") -> str:
    text = f"{HEAD} {{ {ROWS}{KEYS}{BODY.format(scores=scores)} }}"
    text = text.replace("KIND", kind).replace("LIT", {"int64": "i64", "int32": "", "float32": "f"}[kind])
    if n:  # a fixed length
        text = text.replace("[n: Dim]", "").replace("Dim[n]", n).replace("(3, n, 16)", f"(3, {n}, 16)")
    return text


@pytest.mark.parametrize("kind", ["int64", "int32", "float32"])
@pytest.mark.parametrize(
    ("scores", "window"),
    [
        (f"where(logical_and({LATE}, {NEAR}), {SCORES}, -1e30f)", "[69, 0]"),
        (f"where(logical_or(%c > %r, %r - %c >= 70LIT), {UNSEEN}, {SCORES})", "[69, 0]"),
        (f"where({LATE}, where({NEAR}, {SCORES}, -1e30f), -1e30f)", "[69, 0]"),
        (f"{SCORES} + where(logical_and({LATE}, {NEAR}), 0f, {UNSEEN})", "[69, 0]"),
        (f"{SCORES} + where({LATE}, 0f, {UNSEEN}) + where({NEAR}, 0f, {UNSEEN})", "[69, 0]"),
        (f"where(abs(%r - %c) <= 70LIT, {SCORES}, -1e30f)", "[70, 70]"),
        (f"where(abs(%c - %r) < 70LIT, 3f * tanh({SCORES}), -1e30f)", "[69, 69]"),
        (f"where({NEAR}, {SCORES}, -1e30f)", "[69, -1]"),
    ],
)
def test_windows_in_many_words(scores: str, window: str, kind: str) -> None:
    for n in ("", "150"):
        module = typed(program(scores, kind, n))
        found = run(module, NameDims(), Simplify(), FuseAttention(), DeadCode())
        assert f"window={window}" in module_text(found)
        assert "where" not in operators(found)
        arrays = operands(150)
        same_results(module, found, *arrays)
        assert difference(relay.evaluate(module, *arrays), relay.compile(module, check_memory=True)(*arrays)) is None


@pytest.mark.parametrize(
    "scores",
    [f"where(logical_and({LATE}, {NEAR}), {SCORES}, -1e30f)", f"where(abs(%r - %c) <= 70LIT, {SCORES}, -1e30f)"],
)
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_stored_windows(scores: str, kind: str) -> None:
    """A mask of a fixed length that was computed when the program was compiled."""
    module = typed(program(scores, kind, n="150"))
    fold = FoldConstants(relay.pipeline.Runner(host_target(), Options()).primitive)
    found = run(module, NameDims(), Simplify(), fold, FuseAttention(), DeadCode())
    assert "window=[" in module_text(found)
    same_results(module, found, *operands(150))


@pytest.mark.parametrize(
    "scores",
    [
        f"where(logical_or({LATE}, {NEAR}), {SCORES}, -1e30f)",
        f"where(logical_and({LATE}, %c > 3LIT), {SCORES}, -1e30f)",
        f"where(logical_and({LATE}, %c > %r * 2LIT - 70LIT), {SCORES}, -1e30f)",
        f"where(logical_xor({LATE}, {NEAR}), {SCORES}, -1e30f)",
        f"where(abs(%r - %c) >= 70LIT, {SCORES}, -1e30f)",
        f"where(%c < %r - 3LIT, {SCORES}, -1e30f)",
    ],
)
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_other_masks_stay_masks(scores: str, kind: str) -> None:
    module = typed(program(scores, kind))
    found = run(module, NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert "window" not in module_text(found) and "causal" not in module_text(found)
    same_results(module, found, *operands(150))


@pytest.mark.parametrize(
    ("positions", "shown"),
    [
        ('cast({0}, dtype="float32") <= cast({1}, dtype="float32")', True),
        ('cast({0} - {1}, dtype="float64") <= 0f64', True),
        ('abs(cast({0}, dtype="float32") - cast({1}, dtype="float32")) < 70f', True),
        ('cast(Dim[n], dtype="float32") - cast({0}, dtype="float32") >= cast(Dim[n] - {1}, dtype="float32")', True),
        ('cast({0}, dtype="float16") <= cast({1}, dtype="float16")', False),
        ('cast({0}, dtype="float32") <= cast({1}, dtype="float32") + 0.5f', False),
        ('cast({0} * 1000i64, dtype="float32") <= cast({1} * 1000i64, dtype="float32")', False),
        ('cast({0}, dtype="float32") <= cast({1}, dtype="float32") + 20000000f', False),
        ('cast({0}, dtype="float32") <= inff', False),
    ],
)
def test_positions_as_floats(positions: str, shown: bool) -> None:
    """Floats that may have been rounded are no positions."""
    module = typed(program(f"where({positions.format('%c', '%r')}, {SCORES}, -1e30f)"))
    found = run(module, NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert ("window=[" in module_text(found) or "causal=True" in module_text(found)) == shown
    same_results(module, found, *operands(150))


@pytest.mark.parametrize("offset", ["", ' + cast(Dim[m - n], dtype="float32")'])
def test_few_queries_of_many_keys_have_positions_of_integers(offset: str) -> None:
    """Keys may be more than a float32 counts, where queries are few."""
    few = (
        HEAD.replace("[n: Dim]", "[n: Dim, m: Dim]")
        .replace("%k: Tensor[(3, n", "%k: Tensor[(3, m")
        .replace("%v: Tensor[(3, n", "%v: Tensor[(3, m")
    )
    text = f"""{few} {{
      let %r = reshape(arange(stop=Dim[n], dtype="float32"), newshape=[-1, 1]){offset};
      let %c = reshape(arange(stop=Dim[m], dtype="float32"), newshape=[1, -1]);
      {BODY.format(scores=f"where(%c <= %r, {SCORES}, -1e30f)")} }}"""
    module = typed(text)
    found = run(module, NameDims(), Simplify(), FuseAttention(), DeadCode())
    assert "window=[" not in module_text(found) and "causal=True" not in module_text(found)
    same_results(module, found, operands(20)[0], *operands(150)[1:])


def test_gradients_of_windows() -> None:
    scores = f"where(logical_and({LATE}, {NEAR}), 3f * tanh({SCORES}), -1e30f)"
    text = program(scores).replace(
        BODY.format(scores=scores.replace("LIT", "i64")),
        f"sum(tanh({BODY.format(scores=scores.replace('LIT', 'i64'))}))",
    )
    module = relay.value_and_grad(typed(text), argnums=(0, 1, 2))
    arrays = operands(300)
    assert difference(relay.evaluate(module, *arrays), relay.compile(module, check_memory=True)(*arrays)) is None


def test_blocks_outside_of_a_window_are_not_read() -> None:
    text = f"{HEAD} {{ nn.attention(%q, %k, %v, window=[100, 0]) }}".replace(
        "%q: Tensor[(3, n, 16)", "%q: Tensor[(3, 64, 16)"
    )
    exe = relay.compile(typed(text))
    q, k, v = operands(600)
    expected = np.asarray(exe(q[:, :64], k, v))
    k[:, :256] = v[:, :256] = np.nan  # the 64 queries stand at places 536 to 599
    assert np.array_equal(np.asarray(exe(q[:, :64], k, v)), expected)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("int32", "%c <= %r + 2147483647"),
        ("int32", "%c + 2147483647 >= %r + 2147483647"),
        ("int64", "%c <= %r + 9223372036854775807i64"),
        ("int64", 'cast(%c, dtype="int32") <= cast(%r, dtype="int32") + 2147483647'),
    ],
)
def test_positions_that_wrap_around_are_no_window(kind: str, seen: str) -> None:
    """The greatest number for "all that follow": sums with it are negative."""
    module = typed(program(f"where({seen}, {SCORES}, -1e30f)", kind))
    assert "window=" not in module_text(run(module, NameDims(), Simplify(), FuseAttention(), DeadCode()))
    arrays = operands(33)
    assert difference(relay.evaluate(module, *arrays), relay.compile(module)(*arrays)) is None
