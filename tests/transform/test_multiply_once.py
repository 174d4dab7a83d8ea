"""Rows that are read several times are multiplied once, and the values are the same."""

from __future__ import annotations

from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.interpreter.evaluation import evaluate
from relay.ir.diagnostics import RelayError
from relay.ir.dim import dim_evaluate, dim_vars
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.transform.blocks import all_bindings, body_of
from relay.transform.multiply_once import MultiplyOnce
from tests.transform.support import run, typed

Array = npt.NDArray[np.generic]
PARAMETERS = """%x: Tensor[(n, d), float32], %s: Tensor[(e,), int64], %t: Tensor[(e,), int32], %ef: Tensor[(e, 7), float32],
  %near: Tensor[(n, 4), int64], %w: Tensor[(24, d), float32], %w2: Tensor[(2*d, 24), float32], %w3: Tensor[(24, 2*d + 7), float32],
  %few: Tensor[(3, d), float32]"""
NAMES = ("x", "s", "t", "ef", "near", "w", "w2", "w3", "few")
# The product, and how many rows the products of the result have in all, for three rows of `x` and eleven that are read of them.
FORMS = {
    "rows of a table": ("nn.dense(take(%x, %s, axis=0), %w)", 3),
    "numbers of 32 bits": ("nn.dense(take(%x, %t, axis=0), %w)", 3),
    "from the end": ('nn.dense(take(%x, %s - 2i64, axis=0, mode="wrap"), %w)', 3),
    "side by side": ("nn.dense(concatenate((take(%x, %s, axis=0), take(%x, %t, axis=0), %ef), axis=1), %w3)", 3 + 3 + 11),
    "beside what is not chosen": (
        "nn.dense(concatenate((%ef, take(%x, %s, axis=0), tanh(take(%x, %t, axis=0))), axis=-1), %w3)",
        11 + 3 + 11,
    ),
    "neighbours that are not chosen": (
        """let %a = concatenate((%ef, take(%few, %s, axis=0) * 2f), axis=1);
        nn.dense(concatenate((take(%x, %s, axis=0), %a), axis=1), %w3)""",
        3 + 11,
    ),
    "several of each row": ("nn.dense(take(%x, %near, axis=0), %w)", 3),
    "in lines": ("nn.dense(reshape(take(%x, %near, axis=0), newshape=[-1, Dim[d]]), %w)", 3),
    "pairs": (
        """let %a = broadcast_to(expand_dims(%x, axis=1), shape=[Dim[n], Dim[n], Dim[d]]);
        let %b = broadcast_to(expand_dims(%x, axis=0), shape=[Dim[n], Dim[n], Dim[d]]);
        nn.matmul(concatenate((%a, %b), axis=2), %w2)""",
        3 + 3,
    ),
    "pairs in lines": (
        """let %a = reshape(broadcast_to(expand_dims(%x, axis=1), shape=[Dim[n], Dim[n], Dim[d]]), newshape=[-1, Dim[d]]);
        let %b = repeat(%x, repeats=Dim[n], axis=0);
        nn.dense(concatenate((%a, %b), axis=1), transpose(%w2))""",
        3 + 3,
    ),
    "lines of pairs": (
        """let %a = repeat(%x, repeats=Dim[n], axis=-2);
        nn.matmul(concatenate((%a, tile(%x, reps=[Dim[n], 1])), axis=1), %w2)""",
        3 + 3,
    ),
    "wider rows": ("nn.dense(tile(%x, reps=[1, 2]), transpose(%w2)) + nn.dense(repeat(%x, repeats=2, axis=1), transpose(%w2))", 3 + 3),
    "transposed": ("nn.matmul(take(%x, %s, axis=0), %w, transpose_b=True)", 3),
    "by a vector": ("nn.matmul(take(%x, %near, axis=0), take(%few, 0i64, axis=0))", 3 * 4),
    "the same rows twice": ("let %a = take(%x, %s, axis=0); nn.dense(%a, %w) * mean(tanh(%a), axis=[1], keepdims=True)", 3),
    "in a branch": ("let %a = take(%x, %s, axis=0); if (sum(%ef) > 0f) { nn.dense(%a, %w) } else { nn.dense(%a * 2f, %w) }", 3 + 11),
    "no rows of a table": ("nn.dense(tanh(take(%x, %s, axis=0)), %w)", 11),
    "differences": ("nn.dense(take(%x, %s, axis=0) - take(%x, %t, axis=0), %w)", 11),
}  # fmt: skip


def program(form: str, sizes: dict[str, int] | None = None) -> Module:
    """A form with sizes of any value, or with those that are given."""
    text = f"def @main[n: Dim, e: Dim, d: Dim]({PARAMETERS}) {{ {FORMS[form][0]} }}"
    if sizes is not None:
        text = text.replace("n: Dim, e: Dim, d: Dim", "z: Dim")
        for name, size in sizes.items():
            for before, after in (("(", ","), (", ", ")"), ("*", " "), ("*", ","), ("[", "]")):
                text = text.replace(f"{before}{name}{after}", f"{before}{size}{after}")
    return typed(text)


def given(n: int, e: int, d: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    normal = {"x": (n, d), "ef": (e, 7), "w": (24, d), "w2": (2 * d, 24), "w3": (24, 2 * d + 7), "few": (3, d)}
    out: dict[str, Array] = {k: rng.standard_normal(s).astype("float32") for k, s in normal.items()}
    # Some numbers are outside and mean the nearest row.
    out |= {
        "s": rng.integers(-1, n + 1, e),
        "t": rng.integers(-1, n + 1, e).astype("int32"),
        "near": rng.integers(0, max(n, 1), (n, 4)),
    }
    return [out[name] for name in NAMES]


def multiplied(module: Module, **sizes: int) -> list[tuple[int, int]]:
    """The rows of the left operand of each product, and their width."""
    found: list[tuple[int, int]] = []
    for binding in all_bindings(body_of(module.functions["main"])):
        value = binding.value
        if isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name in ("nn.dense", "nn.matmul"):
            ty = value.args[0].ty
            assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
            *rows, width = (dim_evaluate(d, {v: sizes[v.name] for v in dim_vars(d)}) for d in ty.shape)
            found.append((prod(rows), width))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_fewer_rows_are_multiplied(form: str) -> None:
    after = run(program(form), MultiplyOnce())
    assert sum(rows for rows, _ in multiplied(after, n=3, e=11, d=16)) == FORMS[form][1], str(after)
    # More rows than are read of them are not multiplied, either.
    few, before = (multiplied(m, n=50, e=2, d=16) for m in (after, run(program(form))))
    assert sum(r * w for r, w in few) <= sum(r * w for r, w in before)


SIZES = ((5, 60, 32), (60, 5, 32), (1, 1, 16), (7, 7, 40), (4, 0, 16), (0, 0, 16))


@pytest.mark.parametrize("form", FORMS)
def test_values_are_the_same(form: str) -> None:
    module = program(form)
    after = run(module, MultiplyOnce())
    exe = relay.compile(module, cache=False, threads=1)
    for sizes in SIZES:
        args = given(*sizes)
        meant = np.asarray(evaluate(module, *args))
        for found in (evaluate(after, *args), exe(*args)):
            np.testing.assert_allclose(np.asarray(found), meant, atol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_values_of_known_sizes_are_the_same(form: str) -> None:
    for n, e, d in SIZES:
        module = program(form, {"n": n, "e": e, "d": d})
        args = given(n, e, d)
        meant = np.asarray(evaluate(module, *args))
        after = run(module, MultiplyOnce())
        np.testing.assert_allclose(np.asarray(evaluate(after, *args)), meant, atol=2e-4)
        if n == 5:
            exe = relay.compile(module, cache=False, threads=1)
            np.testing.assert_allclose(np.asarray(exe(*args)), meant, atol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_the_same(form: str) -> None:
    module = typed(f"""def @main[n: Dim, e: Dim, d: Dim]({PARAMETERS}) -> float32 {{
      let %f = fn () {{ {FORMS[form][0]} }};
      mean(tanh(%f()))
    }}""")
    floats = tuple(i for i, name in enumerate(NAMES) if name not in ("s", "t", "near"))
    both = relay.value_and_grad(module, argnums=floats)
    exe = relay.compile(both, cache=False, threads=1)
    for n, e in ((5, 60), (60, 5), (1, 1)):
        args = given(n, e, 32, seed=n)
        value, slopes = cast(Any, exe(*args))
        meant, wanted = cast(Any, relay.evaluate(both, *args))
        np.testing.assert_allclose(np.asarray(value), np.asarray(meant), atol=1e-5)
        for a, b in zip(slopes, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)


@pytest.mark.parametrize("form", ["rows of a table", "side by side", "from the end"])
def test_rows_of_a_table_without_rows_fail(form: str) -> None:
    module = program(form)
    args = given(0, 3, 16)
    for call in (lambda: evaluate(module, *args), lambda: relay.compile(module, cache=False)(*args)):
        with pytest.raises((RelayError, RuntimeError, IndexError, ValueError)):
            call()


LOOPS = {
    "words of a table": """def @go[v: Dim, n: Dim, h: Dim](%i: int32, %words: Tensor[(n,), int64], %x: Tensor[(v, h), float32],
        %w: Tensor[(h, h), float32]) -> Tensor[(n,), int64] {
      if (%i == 0) { %words } else {
        @go(%i - 1, cast(argmax(nn.dense(take(%x, %words, axis=0), %w), axis=[1]), dtype="int64"), %x, %w)
      } }""",
    "edges of a graph": """def @go[v: Dim, n: Dim, h: Dim](%i: int32, %edges: Tensor[(n,), int64], %x: Tensor[(v, h), float32],
        %w: Tensor[(h, h), float32]) -> Tensor[(v, h), float32] {
      if (%i == 0) { %x } else {
        @go(%i - 1, %edges, segment_mean(tanh(nn.dense(take(%x, %edges, axis=0), %w)), %edges, num_segments=Dim[v]), %w)
      } }""",
    "edges in a closure": """import prelude
      def @go[v: Dim, n: Dim, h: Dim](%i: int32, %edges: Tensor[(n,), int64], %x: Tensor[(v, h), float32],
        %w: Tensor[(h, h), float32]) -> Tensor[(v, h), float32] {
      @for(0i64, cast(%i, dtype="int64"), fn (%j: int64, %x: Tensor[(v, h), float32]) -> Tensor[(v, h), float32] {
        segment_mean(tanh(nn.dense(take(%x, %edges, axis=0), %w)), %edges, num_segments=Dim[v])
      }, %x) }""",
    "words in a closure": """import prelude
      def @go[v: Dim, n: Dim, h: Dim](%i: int32, %words: Tensor[(n,), int64], %x: Tensor[(v, h), float32],
        %w: Tensor[(h, h), float32]) -> Tensor[(n,), int64] {
      @for(0i64, cast(%i, dtype="int64"), fn (%j: int64, %words: Tensor[(n,), int64]) -> Tensor[(n,), int64] {
        cast(argmax(nn.dense(take(%x, %words, axis=0), %w), axis=[1]), dtype="int64")
      }, %words) }""",
}


@pytest.mark.parametrize("form", LOOPS)
def test_tables_that_iterations_share_are_of_words(form: str) -> None:
    module = typed(LOOPS[form])
    after = run(module, MultiplyOnce())
    assert ("min(" in str(after)) == ("edges" in form), str(after)
    exe = relay.compile(module, entries=["go"], cache=False, threads=1)
    rng = np.random.default_rng(3)
    for v, n in ((5, 30), (30, 5)):
        args = (
            np.int32(4),
            rng.integers(0, v, n),
            *(rng.standard_normal(s).astype("float32") * np.float32(0.3) for s in ((v, 20), (20, 20))),
        )
        meant = np.asarray(evaluate(module, *args, entry="go"))
        np.testing.assert_allclose(np.asarray(exe.run("go", *args)), meant, atol=1e-4)


@pytest.mark.parametrize("sizes", [("d // 2", "d - d // 2", "d"), ("d", "7", "?")])
def test_sizes_that_slices_of_the_weight_are_not_known_to_have(sizes: tuple[str, str, str]) -> None:
    x, ef, w = sizes
    module = typed(f"""def @main[n: Dim, e: Dim, d: Dim](%x: Tensor[(n, {x}), float32], %s: Tensor[(e,), int64],
        %ef: Tensor[(e, {ef}), float32], %w: Tensor[(24, {w}), float32]) {{
      nn.dense(concatenate((take(%x, %s, axis=0), %ef), axis=1), %w) }}""")
    exe = relay.compile(module, cache=False, threads=1)
    rng = np.random.default_rng(0)
    widths = [37, 7, 44] if w == "?" else [37, 38, 75]
    data = [rng.standard_normal(s).astype("float32") for s in ((5, widths[0]), (9, widths[1]), (24, widths[2]))]
    args = [data[0], rng.integers(0, 5, 9), *data[1:]]
    np.testing.assert_allclose(np.asarray(exe(*args)), np.asarray(evaluate(module, *args)), atol=1e-4)
