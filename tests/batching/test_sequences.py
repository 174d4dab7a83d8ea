"""Requests that bring sequences as tensors of different lengths are one batch, and give what single runs give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import RelayError, ShapeError
from relay.transform.batching.requests import ANSWERS
from tests.batching.programs import lowered
from tests.batching.test_structure import same

HEAD = '#[version = "0.0.5"]\nimport nn\nimport prelude\n'
SIZES = {"d": 6, "h": 8, "2*h": 16, "3*h": 24, "4*h": 32}
LENGTHS = (3, 1, 7, 0, 5, 2, 9, 4)
LSTM = """%z: Tensor[(1, h), float32], %w: Tensor[(4*h, d), float32], %u: Tensor[(4*h, h), float32], %b: Tensor[(4*h,), float32]"""
SQUARE = LSTM.replace("(4*h, d)", "(4*h, h)")
GRU = """%z: Tensor[(1, h), float32], %w: Tensor[(3*h, d), float32], %u: Tensor[(3*h, h), float32], %b: Tensor[(3*h,), float32],
    %c: Tensor[(3*h,), float32], %o: Tensor[(3, 2*h), float32]"""
# By what they are: the parameters of @main behind its sequences, its result, its body, and other functions.
PROGRAMS = {
    "last state": (
        "%xs: Tensor[(t, 1, d), float32]",
        LSTM,
        "Tensor[(1, h), float32]",
        "@lstm(%xs, (%z, %z), %w, %u, %b).1.0",
    ),
    "a loop of one's own that counts up to a size": (
        "%xs: Tensor[(t, d), float32]",
        "%z: Tensor[(1, h), float32], %w: Tensor[(h, d), float32], %u: Tensor[(h, h), float32]",
        "Tensor[(1, h), float32]",
        "@go(0i64, %z, %xs, %w, %u)",
        """def @go[t: Dim, d: Dim, h: Dim](%i: int64, %s: Tensor[(1, h), float32], %xs: Tensor[(t, d), float32],
    %w: Tensor[(h, d), float32], %u: Tensor[(h, h), float32]) -> Tensor[(1, h), float32] {
  if (%i >= Dim[t]) { %s } else {
    @go(%i + 1i64, tanh(nn.dense(expand_dims(take(%xs, %i, axis=0), axis=0), %w) + nn.dense(%s, %u)), %xs, %w, %u)
  }
}
""",
    ),
    "words of a table": (
        "%ids: Tensor[(t,), int64]",
        LSTM + ", %table: Tensor[(20, d), float32], %o: Tensor[(3, h), float32]",
        "Tensor[(1, 3), float32]",
        "nn.dense(@lstm(expand_dims(take(%table, %ids, axis=0), axis=1), (%z, %z), %w, %u, %b).1.0, %o)",
    ),
    "both directions": (
        "%xs: Tensor[(t, 1, d), float32]",
        GRU,
        "Tensor[(1, 3), float32]",
        """let %cell = @gru_cell(%w, %u, %b, %c);
  nn.dense(concatenate((@forwards(%cell, @whole_state, %xs, %z).1, @backwards(%cell, @whole_state, %xs, %z).1), axis=1), %o)""",
    ),
    "two layers, with what goes past the first": (
        "%xs: Tensor[(t, 1, h), float32]",
        SQUARE,
        "Tensor[(1, h), float32]",
        "@lstm(@lstm(%xs, (%z, %z), %w, %u, %b).0 + %xs, (%z, %z), %w, %u, %b).1.0",
    ),
    "a result for each step": (
        "%xs: Tensor[(t, 1, d), float32]",
        GRU,
        "(Tensor[(t, 1, 3), float32], Tensor[(1, h), float32])",
        """let %cell = @gru_cell(%w, %u, %b, %c);
  let %f = @forwards(%cell, @whole_state, %xs, %z);
  let %g = @backwards(%cell, @whole_state, %xs, %z);
  (nn.softmax(nn.dense(concatenate((%f.0, %g.0), axis=2), %o), axis=-1), %g.1)""",
    ),
    "the least, the greatest and the mean of all steps": (
        "%xs: Tensor[(t, 1, d), float32]",
        LSTM,
        "(Tensor[(1, h), float32], Tensor[(1, 1, h), float32], Tensor[(1, d), float32])",
        """let %all = @lstm(%xs, (%z, %z), %w, %u, %b).0;
  (max(%all, axis=[0]), mean(%all, axis=[0], keepdims=True), min(%xs, axis=0))""",
    ),
    "attention over the steps": (
        "%xs: Tensor[(t, 1, d), float32]",
        LSTM,
        "Tensor[(1, h), float32]",
        """let %all = @lstm(%xs, (%z, %z), %w, %u, %b).0;
  sum(%all * nn.softmax(sum(%all * %z, axis=[2], keepdims=True), axis=0), axis=[0])""",
    ),
    "two sequences": (
        "%xs: Tensor[(t, 1, d), float32], %ys: Tensor[(s, 1, d), float32]",
        LSTM,
        "Tensor[(1, h), float32]",
        "@lstm(%ys, @lstm(%xs, (%z, %z), %w, %u, %b).1, %w, %u, %b).1.1",
    ),
}


def text(name: str) -> str:
    given, weights, result, body, *others = PROGRAMS[name]
    dims = [d for d in ("t", "s", "d", "h") if f"({d}," in given + weights or f", {d})" in given + weights]
    sizes = ", ".join(f"{d}: Dim" for d in dims)
    return f"{HEAD}{''.join(others)}def @main[{sizes}]({given}, {weights}) -> {result} {{\n  {body}\n}}\n"


def requests(exe: Any, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[tuple[Any, ...]]:
    """Requests of these lengths, with the same weights."""
    rng = np.random.default_rng(seed)
    params = json.loads(exe.program.entry_info("main"))["params"]

    def draw(ty: dict[str, Any], sizes: dict[str, int]) -> Any:
        shape = [
            n if isinstance(n, int) else sizes[n if isinstance(n, str) else "*".join(map(str, n[1:]))]
            for n in ty["shape"]
        ]
        return (
            rng.integers(0, 20, shape)
            if ty["dtype"] == "int64"
            else (rng.standard_normal(shape) * 0.4).astype(np.float32)
        )

    shared = {
        p["name"]: draw(p["type"], SIZES) for p in params if not {"t", "s"} & {str(n) for n in p["type"]["shape"]}
    }
    out = []
    for n in lengths:
        sizes = {**SIZES, "t": n, "s": int(rng.integers(0, 6))}
        out.append(tuple(shared[p["name"]] if p["name"] in shared else draw(p["type"], sizes) for p in params))
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_are_one_batch(name: str) -> None:
    exe = relay.compile(text(name), cache=False)
    asked = requests(exe)
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, exe(*args))


def test_agrees_with_the_interpreter() -> None:
    program = relay.parse(text("a result for each step"))
    exe = relay.compile(program, cache=False)
    asked = requests(exe, (2, 4))
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, relay.evaluate(program, *args))


def test_small_products_are_not_worth_lists_of_rows() -> None:
    program = relay.parse(text("a result for each step"))
    (asked, *_) = requests(relay.compile(program, cache=False))
    weights = dict(zip(["z", "w", "u", "b", "c", "o"], asked[1:], strict=True))
    assert "rows are not worth being copied" in str(lowered(program.bind(weights)).functions["main"].attrs[ANSWERS])


def test_of_no_steps_alone() -> None:
    exe = relay.compile(text("a result for each step"), cache=False)
    asked = requests(exe, (0, 0, 0))
    for rows, state in exe.run_batch("main", asked):
        assert rows.shape == (0, 1, 3) and state.shape == (1, 8)


def test_others_weights_are_no_batch() -> None:
    exe = relay.compile(text("last state"), cache=False)
    asked = [*requests(exe, (3, 2)), *requests(exe, (4,), seed=1)]
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, exe(*args))


def test_sizes_are_checked() -> None:
    exe = relay.compile(text("last state"), cache=False)
    (good, *rest), (other,) = requests(exe, (3,))[0], requests(exe, (3,), seed=1)
    wide = np.zeros((2, 1, 7), np.float32)
    with pytest.raises(
        ShapeError, match=r"argument %xs of @main in request 1 has shape \(2, 1, 7\), expected \(\?, 1, 6\)"
    ):
        exe.run_batch("main", [(good, *rest), (wide, *rest)])
    with pytest.raises(RelayError, match=r"argument %xs of @main in request 1 has dtype float64, expected float32"):
        exe.run_batch("main", [(good, *rest), (other[0].astype(np.float64), *rest)])


def test_requests_of_other_widths() -> None:
    """What requests say of another size they say each for itself."""
    exe = relay.compile(
        f"""{HEAD}def @main[t: Dim, d: Dim](%xs: Tensor[(t, d), float32], %w: Tensor[(8, 8), float32]) -> Tensor[(1, 8), float32] {{
  @fold_rows(fn (%s: Tensor[(1, 8), float32], %x: Tensor[(d,), float32]) {{ nn.dense(%s + sum(%x), %w) }}, zeros(shape=[1, 8]), %xs)
}}""",
        cache=False,
    )
    rng, w = np.random.default_rng(0), np.eye(8, dtype=np.float32)
    asked = [(rng.standard_normal((t, d)).astype(np.float32), w) for t, d in ((3, 2), (2, 5))]
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, exe(*args))


def test_bounds_of_lengths_are_checked() -> None:
    program = text("last state").replace("t: Dim", "t: Dim(1, 4)")
    exe = relay.compile(program, cache=False)
    with pytest.raises(ShapeError):
        exe.run_batch("main", requests(exe, (2, 5)))


LOOP = """def @go[t: Dim, d: Dim, h: Dim](%i: int64, %s: Tensor[(1, h), float32], %xs: Tensor[(t, 1, d), float32],
    %w: Tensor[(h, d), float32], %u: Tensor[(h, h), float32]) -> Tensor[(1, h), float32] {
  if (%i < Dim[t]) { @go(%i + 1i64, BODY, %xs, %w, %u) } else { %s }
}
def @main[t: Dim, d: Dim, h: Dim](%xs: Tensor[(t, 1, d), float32], %z: Tensor[(1, h), float32], %w: Tensor[(h, d), float32],
    %u: Tensor[(h, h), float32]) -> Tensor[(1, h), float32] {
  let %s = @go(0i64, %z, %xs, %w, %u);
  END
}
"""
STEP = "tanh(nn.dense(take(%xs, %i, axis=0), %w) + nn.dense(%s, %u))"
# Choices, in steps and behind the loop, and a step that knows its number.
CHOICES = {
    "in a step": (f"if (sum(%s) > 0.0f) {{ {STEP} }} else {{ %s - nn.dense(take(%xs, %i, axis=0), %w) }}", "%s"),
    "of a row in a step that reads it, too": (
        f"{STEP} + (if (sum(%s) > 0.0f) {{ sum(take(%xs, %i, axis=0)) }} else {{ 0.5f }})",
        "%s",
    ),
    "between numbers in a step": (f"{STEP} * (if (sum(%s) > 0.0f) {{ 1.0f }} else {{ 0.5f }})", "%s"),
    "behind the loop": (STEP, "if (sum(%s) > 0.0f) { nn.dense(%s, %u) } else { %s }"),
    "behind the loop, between what costs little": (STEP, "if (sum(%s) > 0.0f) { %s * 2.0f } else { %s }"),
    "of the number of the step": (f'{STEP} * cast(%i, dtype="float32")', "%s"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_not_the_same_for_all(name: str) -> None:
    step, end = CHOICES[name]
    exe = relay.compile(HEAD + LOOP.replace("BODY", step).replace("END", end), cache=False)
    asked = requests(exe, (3, 0, 5))
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, exe(*args))


def test_two_entries() -> None:
    program = HEAD + LOOP.replace("BODY", STEP).replace("END", "%s")
    program += program[program.index("def @main") :].replace("@main", "@other").replace("%z, %xs", "%z + 1.0f, %xs")
    exe = relay.compile(program, entries=("main", "other"), cache=False)
    asked = requests(exe, (3, 2))
    for entry in ("main", "other"):
        assert exe._batches[entry].how == "one batch"
        for found, args in zip(exe.run_batch(entry, asked), asked, strict=True):
            same(found, exe.run(entry, *args))


# Why they are not one batch: what looks at more than a row, at how many there are, or at rows in another order.
APART = {
    "sum(cumsum(@lstm(%xs, (%z, %z), %w, %u, %b).0, axis=0), axis=[0])": "follows from all rows of an argument at once",
    "cast(Dim[t], dtype=\"float32\") * @lstm(%xs, (%z, %z), %w, %u, %b).1.0": "follows from all rows of an argument at once",
    "@lstm(strided_slice(%xs, begin=[0], end=[2], axes=[0]), (%z, %z), %w, %u, %b).1.0": "follows from all rows",
    "@lstm(reverse(%xs, axis=0), (%z, %z), %w, %u, %b).1.0": "in another order than the argument has them",
}  # fmt: skip


@pytest.mark.parametrize("body", APART)
def test_says_why_not(body: str) -> None:
    program = f"{HEAD}def @main[t: Dim, d: Dim, h: Dim](%xs: Tensor[(t, 1, d), float32], {LSTM}) -> Tensor[(1, h), float32] {{ {body} }}"
    exe = relay.compile(program, cache=False)
    assert APART[body] in str(lowered(relay.parse(program)).functions["main"].attrs[ANSWERS])
    asked = requests(exe, (3, 2, 4))
    for found, args in zip(exe.run_batch("main", asked), asked, strict=True):
        same(found, exe(*args))
