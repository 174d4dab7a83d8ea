"""Loops that add rows to a table do so in its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, OpRef
from relay.op import registry
from relay.transform.blocks import all_bindings, body_of
from tests.batching.programs import CHILD_SUM, TREE_LSTM, lowered, module, random_rose, random_tree, weights
from tests.batching.test_rows import run


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [(3,), (2, 37), (129,), ()])
def test_the_routines_do_what_the_expressions_say(dtype: str, width: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(width))
    table, rows = (rng.standard_normal((n, *width)).astype(dtype) for n in (7, 5))
    index = np.array([3, 0, 3, 9, -2])  # one twice, and two that are clipped
    begin = np.int64(2)
    calls: dict[str, tuple[Any, ...]] = {
        "rows.add": (table, rows, index), "rows.add_from": (table, rows, begin), "rows.clear": (table, begin, rows),
    }  # fmt: skip
    for name, given in calls.items():
        before = table.copy()
        expected = np.asarray(relay.evaluate(_program(name, given), *given))
        for dies in (0, 1):  # what Python holds is not written to
            np.testing.assert_allclose(run(name, *given, np.int64(dies)), expected, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(table, before)
        np.testing.assert_array_equal(run(name, *given, np.int64(0)), relay.compile(_program(name, given))(*given))


def _program(name: str, given: tuple[Any, ...]) -> Any:
    def text(a: Any) -> str:
        shape = "".join(f"{d}, " for d in np.shape(a))
        return f"Tensor[({shape.rstrip() if len(np.shape(a)) == 1 else shape.rstrip(', ')}), {np.asarray(a).dtype}]"

    params = ", ".join(f"%a{n}: {text(a)}" for n, a in enumerate(given))
    return module(f"def @main({params}) {{ {name}(%a0, %a1, %a2) }}")


def test_rows_outside_are_refused() -> None:
    table, rows = np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32)
    for begin in (-1, 2):
        with pytest.raises(relay.RelayError, match=f"there are no 3 rows from {begin} on in 4"):
            run("rows.add_from", table, rows, np.int64(begin), np.int64(0))
    assert registry.get("rows.add").donates


@pytest.mark.parametrize("text", [TREE_LSTM, CHILD_SUM], ids=["binary", "child-sum"])
def test_the_way_back_touches_the_rows_of_a_level(text: str) -> None:
    """No operator of the loop back is on the rows of all nodes, so a chain takes time in proportion to its nodes."""
    mod = module(text)
    count = len(mod.functions["main"].params)
    slopes = relay.value_and_grad(mod, tuple(range(1, count)))
    made = lowered(slopes, "dce")
    back = [f for n, f in made.functions.items() if ".levels.back" in n]
    used = {
        b.value.fn.name
        for function in back
        for b in all_bindings(body_of(function))
        if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef)
    }
    assert {"rows.add", "rows.clear"} <= used and not used & {"rows.without", "rows.place", "take.vjp0"}, used
    rng = np.random.default_rng(3)
    d, h = 5, 4
    shapes = {"wl": (3 * h, d), "bl": (3 * h,), "wn": (5 * h, 2 * h), "bn": (5 * h,), "wx": (3 * h, d), "wh": (3 * h, h),
              "b": (3 * h,), "wf": (h, d), "uf": (h, h), "bf": (h,)}  # fmt: skip
    given = weights(rng, *(shapes[p.name] for p in mod.functions["main"].params[1:]))
    make = random_tree if text is TREE_LSTM else random_rose
    exe = relay.compile(slopes, threads=1)
    for kind in ("random", "left" if text is TREE_LSTM else "chain"):
        tree = make(mod, rng, 9, d, kind)
        found, expected = exe(tree, *given), relay.evaluate(slopes, tree, *given)
        for a, b in zip(found[1], expected[1], strict=True):  # type: ignore[index]
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)
