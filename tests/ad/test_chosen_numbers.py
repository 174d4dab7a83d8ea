"""Choices between numbers in loops that are differentiated: the same gradients as by branches, and no branches left."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, GlobalVar, If, Var
from relay.ir.module import Module
from relay.transform import ToBlocks
from relay.transform.ad.chosen_numbers import ChosenNumbers
from relay.transform.ad.gradient import Gradient
from relay.transform.ad.prepare import with_loops
from relay.transform.blocks import all_bindings, as_block, body_of
from tests.generator.compare import difference

HEAD = '#[version = "0.0.5"]\n'


def grid(up: str, side: str, step: str = "%mx + log(exp(%up - %mx) + exp(%side - %mx))") -> str:
    """A dynamic program over the cells of a matrix, row by row (the loss of a transducer is one)."""
    return f"""{HEAD}def @main[n: Dim, m: Dim](%a: Tensor[(n, m), float32], %b: Tensor[(n, m), float32]) -> float32 {{
      let %inner = fn[k: Dim] (%j: int64, %i: int64, %left: float32, %above: Tensor[(m,), float32], %row: Tensor[(k,), float32])
          -> Tensor[(?,), float32] {{
        if (%j < Dim[m]) {{
          let %up = {up};
          let %side = {side};
          let %mx = maximum(%up, %side);
          let %here = {step};
          %inner(%j + 1i64, %i, %here, %above, concatenate((%row, expand_dims(%here, axis=0)), axis=0))
        }} else {{ %row }}
      }};
      let %outer = fn (%i: int64, %above: Tensor[(m,), float32]) -> Tensor[(m,), float32] {{
        if (%i < Dim[n]) {{
          let %row: Tensor[(m,), float32] = %inner(0i64, %i, -1e30f, %above, zeros(shape=[0], dtype="float32"));
          %outer(%i + 1i64, %row)
        }} else {{ %above }}
      }};
      sum(tanh(%outer(0i64, zeros(shape=[Dim[m]]))))
    }}"""


ABOVE = "take(%above, %j, axis=0)"
BEFORE = "take(take(%a, maximum(%i - 1i64, 0i64), axis=0), %j, axis=0)"
LEFT = "%left + take(take(%b, %i, axis=0), maximum(%j - 1i64, 0i64), axis=0)"
UPS = [
    f"if (%i == 0i64) {{ -1e30f }} else {{ {ABOVE} + {BEFORE} }}",
    f"if (%i < 2i64) {{ {BEFORE} }} else if (%j == 1i64) {{ {ABOVE} }} else {{ maximum({ABOVE}, {BEFORE}) }}",
    f"{{ let %p = if (%j > 1i64) {{ ({ABOVE}, {BEFORE}) }} else {{ ({BEFORE}, negative({ABOVE})) }}; %p.0 - %p.1 }}",
]
SIDES = [
    f"if (%j == 0i64) {{ if (%i == 0i64) {{ 0f }} else {{ -1e30f }} }} else {{ {LEFT} }}",
    f"if (%left > 0.5f) {{ 0.5f }} else {{ {LEFT} }}",
    f"if (floor_mod(%i + %j, 2i64) == 0i64) {{ {LEFT} }} else {{ minimum({BEFORE}, 1f) }}",
]


def branches(module: Module, before: bool) -> int:
    """How many branches between numbers, which call nothing, a gradient's loops are left, or have before."""
    blocks = ToBlocks()(relay.infer_type(module))
    found = blocks if before else with_loops(blocks, "main", levels=True)
    values = [b for f in found.functions.values() for b in all_bindings(body_of(f))]

    def calls(choice: If) -> bool:
        inner = [b.value for side in (choice.then, choice.orelse) for b in all_bindings(as_block(side))]
        return any(isinstance(v, Call) and isinstance(v.fn, GlobalVar | Var) for v in inner)

    return sum(
        isinstance(b.value, If) and getattr(b.var.ty, "shape", None) == () and not calls(b.value) for b in values
    )


@pytest.mark.parametrize("up", UPS)
@pytest.mark.parametrize("side", SIDES)
def test_gradients_of_dynamic_programs_with_choices(up: str, side: str) -> None:
    module = relay.value_and_grad(relay.parse(grid(up, side)), argnums=(0, 1))
    assert branches(module, before=True) > 0
    assert branches(module, before=False) == 0
    exe = relay.compile(module, check_memory=True)
    for n, m in ((4, 5), (1, 1), (3, 1), (1, 3)):
        rng = np.random.default_rng(n * 10 + m)
        arrays = [rng.standard_normal((n, m)).astype("float32") for _ in range(2)]
        assert difference(relay.evaluate(module, *arrays), exe(*arrays)) is None


def drawn(rng: np.random.Generator, depth: int) -> str:
    """A number made of the cell's neighbours: sums, extremes, products, look-ups and choices of such."""
    kind = int(rng.integers(8)) if depth else int(rng.integers(8, 13))
    a, b = (drawn(rng, depth - 1) for _ in range(2)) if depth else ("", "")
    condition = ["%j == 0i64", "%i < 2i64", "%left > 0.1f", "floor_mod(%i + %j, 3i64) == 1i64", f"{ABOVE} > {BEFORE}"][
        int(rng.integers(5))
    ]
    match kind:
        case 0 | 1 | 2:
            return f"{{ let %c = {condition}; if (%c) {{ {a} }} else {{ {b} }} }}"
        case 3:
            return f"{{ let %p = if ({condition}) {{ ({a}, {b}) }} else {{ ({b}, %left) }}; %p.0 - %p.1 }}"
        case 4:
            return f"({a} + {b})"
        case 5:
            return f"minimum({a}, {b})"
        case 6:
            return f"tanh({a} * {b})"
        case 7:
            return f"sigmoid({a} - {b})"
        case _:
            return [ABOVE, BEFORE, LEFT, "0.5f", "negative(%left)"][kind - 8]


@pytest.mark.parametrize("seed", range(16))
def test_drawn_dynamic_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = grid(drawn(rng, 3), drawn(rng, 2), "tanh(%up + 0.5f * %side) + 0.1f * %mx")
    module = relay.value_and_grad(relay.parse(text), argnums=(0, 1))
    exe = relay.compile(module, check_memory=True)
    for n, m in ((4, 5), (0, 2), (2, 0), (1, 1)):
        arrays = [rng.standard_normal((n, m)).astype("float32") for _ in range(2)]
        assert difference(relay.evaluate(module, *arrays), exe(*arrays)) is None


def test_what_has_no_elements_is_not_looked_up() -> None:
    """Loops that make no step look nothing up, in whatever order rows and columns are none."""
    module = relay.value_and_grad(relay.parse(grid(UPS[0], SIDES[0])), argnums=(0, 1))
    exe = relay.compile(module)
    for shape in ((0, 0), (0, 3), (3, 0)):
        arrays = [np.zeros(shape, "float32")] * 2
        assert difference(relay.evaluate(module, *arrays), exe(*arrays)) is None


LOOP = """{head}def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32], %first: int64, %s: float32) -> float32 {{
  let %loop = fn (%i: int64, %acc: float32) -> float32 {{
    if (%i < {bound}) {{
      let %t = if (%acc > 0f) {{ {then} }} else {{ {orelse} }};
      %loop(%i + 1i64, sin(%t) + 0.1f * %acc)
    }} else {{ %acc }}
  }};
  %loop({first}, %s)
}}"""


@pytest.mark.parametrize(
    ("first", "bound", "then", "orelse", "left"),
    [
        ("0i64", "Dim[n]", "take(%x, %i, axis=0)", "%acc - 1f", 0),
        # Nobody knows that there is an element: the counter may begin below zero, or run along another axis.
        ("%first", "Dim[n]", "take(%x, %i, axis=0)", "%acc - 1f", 1),
        ("-2i64", "Dim[n]", "take(%x, %i, axis=0)", "%acc - 1f", 1),
        ("0i64", "Dim[n]", "take(%y, %i, axis=0)", "%acc - 1f", 1),
        ("0i64", "5i64", "take(%x, %i, axis=0)", "%acc - 1f", 1),
        ("0i64", "Dim[n - m]", "take(%x, %i, axis=0)", "%acc - 1f", 1),
        # Zero times what an untaken side holds may be no zero.
        ("0i64", "Dim[n]", "take(%x, %i, axis=0)", "%acc * %s", 1),
        ("0i64", "Dim[n]", "log(%acc)", "%acc - 1f", 1),
        ("0i64", "Dim[n]", "1f / %acc", "%acc - 1f", 1),
        ("0i64", "Dim[n]", "sum(%x)", "%acc - 1f", 1),
    ],
)
def test_what_stays_a_branch(first: str, bound: str, then: str, orelse: str, left: int) -> None:
    text = LOOP.format(head=HEAD, first=first, bound=bound, then=then, orelse=orelse)
    module = relay.value_and_grad(relay.parse(text), argnums=(0, 1, 3))
    assert branches(module, before=False) == left
    exe = relay.compile(module)
    rng = np.random.default_rng(3)
    for n, m, start, s in ((4, 3, 0, 1.5), (3, 4, 1, -0.5), (0, 0, 1, 0.25), (1, 0, 3, -1.0)):
        arrays = [rng.standard_normal(k).astype("float32") for k in (n, m)] + [np.int64(start), np.float32(s)]
        try:
            expected = relay.evaluate(module, *arrays)
        except relay.RelayError:
            with pytest.raises(relay.RelayError):
                exe(*arrays)
            continue
        assert difference(expected, exe(*arrays)) is None


def test_an_untaken_side_does_not_make_nan() -> None:
    text = LOOP.format(head=HEAD, first="0i64", bound="Dim[n]", then="%acc", orelse="take(%x, %i, axis=0)")
    module = relay.value_and_grad(relay.parse(text), argnums=(0, 3))
    x = np.array([np.inf, -np.inf, np.nan, 1.0], "float32")
    arrays = [x, np.zeros(1, "float32"), np.int64(0), np.float32(2.5)]
    made = relay.compile(module)(*arrays)
    assert difference(relay.evaluate(module, *arrays), made) is None
    assert np.isfinite(np.asarray(made[1][1])).all()


def test_programs_without_choices_stay_the_same() -> None:
    module = ToBlocks()(relay.infer_type(relay.parse(grid(ABOVE, LEFT))))
    assert ChosenNumbers()(module) is module
    assert Gradient()(module) is module
