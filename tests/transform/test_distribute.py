"""What follows from a recurrence, and is multiplied by matrices, is computed behind the loop."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from relay.transform import distribute
from relay.transform.uses import globals_used
from tests.ad.checks import problem
from tests.ad.test_loops import VERSION, arguments, calls, gradient, normal
from tests.batching.programs import lowered

XS = "%xs: Tensor[(t, d), float64]"
H = "Tensor[(1, h), float64]"
WEIGHTS = "%w: Tensor[(h, d), float64], %u: Tensor[(h, h), float64], %o: Tensor[(v, h), float64]"
DIMS = "t: Dim, d: Dim, h: Dim, v: Dim"
CELL = "tanh(nn.dense(expand_dims(take(%xs, %i, axis=0), axis=0), %w) + nn.dense(%h, %u))"
SHAPES: list[Any] = [(4, 2), (1, 3), (3, 2), (3, 3), (5, 3)]
ROWS = "Tensor[(?, v), float64]"
EMPTY = 'zeros(shape=[0, Dim[v]], dtype="float64")'


def program(
    step: str, args: str, end: str, ret: str, *, outs: str, first: str, more: str = "%i < Dim[t]", dims: str = ""
) -> str:
    """A loop over ``%i`` with a state ``%h``; ``%new`` is the next one."""
    given = f"{XS}, %h: {H}, {WEIGHTS}"
    return f"""def @go[{DIMS}{dims}](%i: int64, {given}, {outs}) -> {ret} {{
      if ({more}) {{
        let %new = {CELL};
        {step}
        @go(%i + 1i64, %xs, %new, %w, %u, %o, {args})
      }} else {{ {end} }}
    }}
    def @main[{DIMS}]({given}) {{ @go(0i64, %xs, %h, %w, %u, %o, {first}) }}"""


# By name: the program, and how often a loop of it multiplies by %o.
LOOPS: dict[str, tuple[str, int]] = {
    "rows that are put out": (
        program(
            "let %y = nn.softmax(nn.dense(%new, %o));",
            "concatenate((%out, %y), axis=0)",
            "%out",
            ROWS,
            outs="%out: Tensor[(k, v), float64]",
            first=EMPTY,
            dims=", k: Dim",
        ),
        0,
    ),
    "of the state before": (
        program(
            "let %y = nn.dense(%h, %o) * cast(%i, dtype=\"float64\");",
            "concatenate((%out, %y), axis=0)",
            "(%out, %h)",
            f"({ROWS}, {H})",
            outs="%out: Tensor[(k, v), float64]",
            first=EMPTY,
            dims=", k: Dim",
        ),
        0,
    ),
    "a sum": (
        program(
            "let %y = nn.log_softmax(nn.dense(%new, %o));",
            "%loss + take(take(%y, 0, axis=0), %i, axis=0)",
            "%loss * sum(%h)",
            "float64",
            outs="%loss: float64",
            first="0f64",
        ),
        0,
    ),
    "a state and a sum in a tuple": (
        f"""def @go[{DIMS}](%i: int64, {XS}, %a: ({H}, float64), {WEIGHTS}) -> ({H}, float64) {{
          if (%i < Dim[t]) {{
            let %h = %a.0;
            let %new = {CELL};
            @go(%i + 1i64, %xs, (%new, %a.1 - max(nn.dense(%new, %o))), %w, %u, %o)
          }} else {{ %a }}
        }}
        def @main[{DIMS}]({XS}, %h: {H}, {WEIGHTS}) {{ @go(0i64, %xs, (%h, 1f64), %w, %u, %o) }}""",
        0,
    ),
    "until the data says": (
        program(
            "let %y = sigmoid(nn.dense(%new, %o));",
            "%loss + %y",
            "%loss",
            "Tensor[(1, v), float64]",
            outs="%loss: Tensor[(1, v), float64]",
            first='zeros(shape=[1, Dim[v]], dtype="float64")',
            more="logical_and(%i < Dim[t], sum(%h * %h) < 1f64)",
        ),
        0,
    ),
    "rows, a sum, and rows that are no product": (
        program(
            "let %y = sin(nn.dense(%new, %o)); let %z = %y * %y;",
            "concatenate((%out, %y), axis=0), %loss + sum(%z), concatenate((%all, %new), axis=0)",
            "(%out, %loss, sum(%all) * cast(Dim[k], dtype=\"float64\"))",
            f"({ROWS}, float64, float64)",
            outs="%out: Tensor[(m, v), float64], %loss: float64, %all: Tensor[(k, h), float64]",
            first=f'{EMPTY}, 0f64, zeros(shape=[0, Dim[h]], dtype="float64")',
            dims=", m: Dim, k: Dim",
        ),
        0,
    ),
    "a branch behind it": (
        program(
            "let %y = nn.dense(%new, %o); let %z = if (sum(%y) > 0f64) { %y * %y } else { tanh(%y) };",
            "concatenate((%out, %z), axis=0)",
            "%out",
            ROWS,
            outs="%out: Tensor[(k, v), float64]",
            first=EMPTY,
            dims=", k: Dim",
        ),
        0,
    ),
    "what the next step needs": (
        program(
            "let %y = nn.dense(%new, %o);",
            "concatenate((%out, %y), axis=0), %last + sum(%y)",
            "%out",
            ROWS,
            outs="%out: Tensor[(k, v), float64], %last: float64",
            first=f"{EMPTY}, 0f64",
            more="logical_and(%i < Dim[t], %last < 10f64)",
            dims=", k: Dim",
        ),
        1,
    ),
    "rows that the end reads, too": (
        f"""def @go[{DIMS}, k: Dim](%i: int64, {XS}, %h: {H}, %out: Tensor[(k, v), float64], {WEIGHTS}) -> {ROWS} {{
          let %all = concatenate((%out, nn.dense(%h, %o)), axis=0);
          if (%i < Dim[t]) {{
            let %new = {CELL};
            @go(%i + 1i64, %xs, %new, %all, %w, %u, %o)
          }} else {{ %all }}
        }}
        def @main[{DIMS}]({XS}, %h: {H}, {WEIGHTS}) {{ @go(0i64, %xs, %h, {EMPTY}, %w, %u, %o) }}""",
        1,
    ),
    "a state of which the next one reads nothing": (
        f"""def @go[{DIMS}](%i: int64, {XS}, %h: {H}, %l: Tensor[(1, v), float64], {WEIGHTS}) -> Tensor[(1, v), float64] {{
          if (%i < Dim[t]) {{
            let %new = {CELL} + sum(%l);
            @go(%i + 1i64, %xs, %new, nn.dense(%new, %o) + nn.dense(%h, %o), %w, %u, %o)
          }} else {{ %l }}
        }}
        def @main[{DIMS}]({XS}, %h: {H}, {WEIGHTS}) {{ @go(0i64, %xs, %h, nn.dense(%h, %o), %w, %u, %o) }}""",
        1,
    ),
    "what the end knows the number of": (
        program(
            "let %y = nn.dense(%new, %o) * cast(Dim[k], dtype=\"float64\");",
            "concatenate((%out, %y), axis=0)",
            "%out",
            ROWS,
            outs="%out: Tensor[(k, v), float64]",
            first=EMPTY,
            dims=", k: Dim",
        ),
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    """Against the interpreter, and finite differences of it."""
    text, _ = LOOPS[name]
    module = relay.parse(VERSION + text)
    for steps in (0, 1, 4):
        args = arguments([(steps, 2), *SHAPES[1:]])
        expected = relay.evaluate(module, *args)
        found = relay.compile(module)(*args)
        for a, b in zip(_leaves(found), _leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert problem(module, arguments(SHAPES), (0, 1, 2, 3, 4), compiled=True) is None


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_moved(name: str) -> None:
    text, inside = LOOPS[name]
    module = lowered(relay.parse(VERSION + text), "dce")
    moved = any("__rest" in n for n in module.functions)
    assert moved == (inside == 0)
    if moved:
        rest = {n: f for n, f in module.functions.items() if "__rest" in n and n in globals_used(f)}
        assert rest and calls(Module(rest), "nn.dense") == 0


@pytest.mark.parametrize("name", LOOPS)
def test_sums_are_moved_where_they_are_differentiated(name: str) -> None:
    """Others take no more memory than an iteration does."""
    text, inside = LOOPS[name]
    assert any("__rest" in n for n in gradient(text, (1, 4)).functions) == (inside == 0)


@pytest.mark.parametrize("name", [n for n, (text, _) in LOOPS.items() if "%loss" in text or "%a.1" in text])
def test_sums_are_made_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the memory of a block, whatever the number of iterations."""
    monkeypatch.setattr(distribute, "_BLOCK", 3)
    module = relay.parse(VERSION + LOOPS[name][0])
    assert any("__blocks" in n for n in lowered(module, "distribute_loops").functions)
    compiled = relay.compile(module, cache=False)
    for steps in (0, 1, 3, 4, 6, 8):
        args = arguments([(steps, 2), (1, 3), (3, 2), (3, 3), (10, 3)])
        for a, b in zip(_leaves(compiled(*args)), _leaves(relay.evaluate(module, *args)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_sums_beside_states_that_grow_stay() -> None:
    """A block could not begin with them, as their sizes are not known there."""
    text = LOOPS["rows that are put out"][0].replace(
        "%out: Tensor", "%loss: float64, %all: Tensor[(m, v), float64], %out: Tensor"
    )
    text = text.replace(
        "concatenate((%out, %y)", "%loss + sum(%y), concatenate((%all, %y * sum(%all)), axis=0), concatenate((%out, %y)"
    )
    text = (
        text.replace("%o, zeros", f"%o, 0f64, {EMPTY}, zeros")
        .replace(", k: Dim", ", m: Dim, k: Dim")
        .replace("{ %out }", "{ %out * %loss }")
    )
    module = relay.parse(VERSION + text)
    names = lowered(module, "distribute_loops").functions
    assert not any("__blocks" in n for n in names)
    args = arguments(SHAPES)
    found, expected = relay.compile(module)(*args), relay.evaluate(module, *args)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-9, atol=1e-9)


def test_states_as_large_as_the_matrix_stay() -> None:
    """They would be kept, and read again, in place of it."""
    text = LOOPS["rows that are put out"][0].replace("nn.dense(%new, %o)", "nn.dense(%new * sum(%m), %o)")
    text = text.replace("%h: Tensor[(1, h), float64], ", "%h: Tensor[(1, h), float64], %m: Tensor[(h, h), float64], ")
    text = text.replace("%xs, %new, %w", "%xs, %new, %m * 0.5f64 + %u, %w").replace(
        "@go(0i64, %xs, %h, %w", "@go(0i64, %xs, %h, %m, %w"
    )
    module = relay.parse(VERSION + text)
    assert not any("__rest" in n for n in lowered(module, "dce").functions)
    args = [normal(4, 2), normal(1, 3), normal(3, 3), normal(3, 2), normal(3, 3), normal(5, 3)]
    np.testing.assert_allclose(
        np.asarray(relay.compile(module)(*args)), np.asarray(relay.evaluate(module, *args)), rtol=1e-9
    )


def test_small_matrices_stay() -> None:
    text = LOOPS["rows that are put out"][0]
    for name, size in {"v": 5, "h": 3, "d": 2}.items():
        text = text.replace(f"{name}: Dim, ", "").replace(f", {name}: Dim", "")
        text = (
            text.replace(f"Dim[{name}]", str(size))
            .replace(f"({name},", f"({size},")
            .replace(f", {name})", f", {size})")
        )
    module = lowered(relay.parse(VERSION + text), "dce")
    assert not any("__rest" in n for n in module.functions)


ITEMS = (
    "nn.dense({}, %o)",
    "nn.softmax(nn.dense({}, %o))",
    "nn.dense(sin({}), %o) * sum(take(%xs, %i, axis=0))",
    "tanh(nn.dense({}, %o) + sum(%h))",
    "nn.dense({} * cast(%i, dtype=\"float64\"), %o)",
    "nn.dense(nn.dense({}, %u), %o) + sum(take(%xs, Dim[t] - %i - 1i64, axis=0))",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_loops(seed: int) -> None:
    rng = random.Random(seed)
    items = [rng.choice(ITEMS).format(rng.choice(["%new", "%h", "(%new * %h)"])) for _ in range(rng.randint(1, 2))]
    step = "\n".join(f"let %y{n} = {e};" for n, e in enumerate(items))
    outs, first, args, end = [], [], [], []
    for n in range(len(items)):
        if rng.random() < 0.5:
            outs.append(f"%a{n}: Tensor[(k{n}, v), float64]")
            first.append(EMPTY)
            args.append(f"concatenate((%a{n}, %y{n}), axis=0)")
            end.append(f"sum(%a{n}, axis=[0])")
        else:
            outs.append(f"%a{n}: Tensor[(1, v), float64]")
            first.append('zeros(shape=[1, Dim[v]], dtype="float64")')
            args.append(f"%a{n} + %y{n}")
            end.append(f"take(%a{n}, 0, axis=0)")
    more = rng.choice(["%i < Dim[t]", "logical_and(%i < Dim[t], sum(%h * %h) < 1f64)"])
    dims = "".join(f", k{n}: Dim" for n, o in enumerate(outs) if f"(k{n}," in o)
    text = program(
        step, ", ".join(args), " + ".join(end), "Tensor[(v,), float64]", outs=", ".join(outs), first=", ".join(first),
        more=more, dims=dims,
    )  # fmt: skip
    module = relay.parse(VERSION + text)
    steps = rng.randint(0, 5)
    args_ = arguments([(steps, 2), (1, 3), (3, 2), (3, 3), (2, 3)])
    assert problem(module, args_, (0, 1, 2, 3, 4), compiled=True) is None, text
    np.testing.assert_allclose(
        np.asarray(relay.compile(module)(*args_)), np.asarray(relay.evaluate(module, *args_)), rtol=1e-9, atol=1e-9
    )


def _leaves(value: Any) -> list[Any]:
    return [a for v in value for a in _leaves(v)] if isinstance(value, tuple) else [np.asarray(value)]
