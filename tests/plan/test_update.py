"""Updates: planned kernels against the meaning of their definitions, beside the base and in its memory, where nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relay.ir.dim import DimVar, as_dim, dim_evaluate
from relay.ir.expr import Expr, Function
from relay.loop.evaluate import evaluate as evaluate_loops
from relay.loop.ir import Shared
from relay.loop.walk import nodes
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.te.evaluate import evaluate
from tests.plan.harness import HOST, Array, Maker, Native, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
SIZES = tuple({V: s} for s in (1, 5, 70, 300))


def scatter_rows(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    return m("scatter_nd", x, at, rows)


def read_before(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    """Rows that depend on the row that the state has at another of the places."""
    old = m("take", x, m("reverse", m("squeeze", at, axis=(0,)), axis=0), axis=0, mode="clip")
    return m("scatter_nd", x, at, m("add", m("multiply", old, m.constant(0.5)), rows))


def columns(m: Maker, x: Expr, at: Expr, values: Expr) -> Expr:
    return m("scatter_elements", x, at, m("tanh", values), axis=1)


def beside_a_sum(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    """What reads the old state is computed before."""
    return m.tuple(m("scatter_nd", x, at, rows), m("sum", x, axis=(1,)))


def chosen(m: Maker, x: Expr, at: Expr, row: Expr) -> Expr:
    """One row, by a comparison with all positions."""
    numbers = m("arange", stop=N, dtype="int64")
    mine = m("expand_dims", m("equal", numbers, at), axis=1)
    return m("where", mine, m("add", m("multiply", x, m.constant(0.5)), row), x)


def chosen_element(m: Maker, x: Expr, at: Expr, value: Expr) -> Expr:
    row = m("expand_dims", m("equal", m("arange", stop=N, dtype="int64"), at), axis=1)
    column = m("equal", m("arange", stop=70, dtype="int64"), at)
    return m("where", m("logical_and", row, column), value, x)


STATE = tensor((N, 70))
ROWS = [STATE, tensor((1, 6), "int64"), tensor((6, 70))]
PROGRAMS: dict[str, Function] = {
    "rows": primitive(ROWS, scatter_rows),
    "rows that read others": primitive(ROWS, read_before),
    "columns": primitive([STATE, tensor((N, 3), "int32"), tensor((N, 3))], columns),
    "beside a sum": primitive(ROWS, beside_a_sum),
    "bytes": primitive([tensor((N, 9), "int8"), tensor((1, 4), "int64"), tensor((4, 9), "int8")], scatter_rows),
    "elements": primitive([STATE, tensor((2, 6), "int64"), tensor((6,))], scatter_rows),
    "a row that is chosen": primitive([STATE, tensor((), "int64"), tensor((70,))], chosen),
    "an element that is chosen": primitive([STATE, tensor((), "int64"), tensor(())], chosen_element),
}


def in_place(plan: KernelPlan, given: list[Array], results: list[Array]) -> list[Array]:
    return [next((given[i] for i, o in plan.in_place if o == n), r) for n, r in enumerate(results)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_beside_the_base_and_in_its_memory(name: str) -> None:
    fn = PROGRAMS[name]
    plan = check(fn, *SIZES)
    assert plan.in_place == ((0, 0),)
    assert plan.variant.endswith("scatter")
    graph, native = te_graph(fn), Native(make_plan(fn, HOST, name=fresh_name()).kernel, HOST)
    for env in SIZES:
        for seed in range(3):
            arrays = [
                random([dim_evaluate(d, env) for d in t.shape], t.dtype, n + seed) for n, t in enumerate(graph.inputs)
            ]
            arrays = [np.asarray(a - 1) if n == 1 else a for n, a in enumerate(arrays)]
            wanted = evaluate(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)), env)
            for run in ("native", "loops"):
                given = [a.copy() for a in arrays]
                got = in_place(plan, given, [np.full_like(w, 77) for w in wanted])
                if run == "native":
                    assert native.run(native.bind([*given, *got], env)) == 0
                elif env[V] < 70:
                    flat = [a.reshape(-1) if a.ndim else a.reshape(1) for a in [*given, *got]]
                    assert evaluate_loops(plan.kernel, flat, env) == 0
                else:
                    continue
                for g, w in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(g.astype("float64"), w.astype("float64"), rtol=1e-5, atol=1e-5)


def after(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    """Two states of one: the first may not be made where the other finds its base."""
    return m.tuple(m("scatter_nd", x, at, rows), m("scatter_nd", x, at, m("tanh", rows)))


def by_the_state(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    """Where a row belongs is what the state says."""
    found = m("cast", m("take", m("reshape", x, newshape=(-1,)), at, axis=0, mode="clip"), dtype="int64")
    return m("scatter_nd", x, found, rows)


def of_another(m: Maker, x: Expr, at: Expr, rows: Expr) -> Expr:
    return m("scatter_nd", m("multiply", x, m.constant(0.5)), at, rows)


@pytest.mark.parametrize(
    ("build", "pairs"),
    [(after, ((0, 1),)), (by_the_state, ()), (of_another, ())],
    ids=["two", "by the state", "another"],
)
def test_no_memory_is_taken_over_that_is_read_later(
    build: Callable[..., Expr], pairs: tuple[tuple[int, int], ...]
) -> None:
    plan = check(primitive(ROWS, build), *SIZES)
    assert plan.in_place == pairs
    assert any(isinstance(n, Shared) for n in nodes(plan.kernel.body)) == bool(pairs)


@pytest.mark.parametrize(("width", "goes_there"), [(8, False), (500, True)])
def test_a_choice_among_few_elements_is_made_for_all(width: int, goes_there: bool) -> None:
    def build(m: Maker, x: Expr, at: Expr, values: Expr) -> Expr:
        mine = m("equal", m("arange", stop=width, dtype="int64"), m("expand_dims", at, axis=1))
        return m("where", mine, m("expand_dims", values, axis=1), x)

    plan = check(primitive([tensor((N, width)), tensor((N,), "int64"), tensor((N,))], build), *SIZES)
    assert plan.in_place == ((0, 0),)
    assert any(isinstance(n, Shared) for n in nodes(plan.kernel.body)) == goes_there


def test_a_scatter_needs_no_numbers_for_its_elements() -> None:
    assert check(PROGRAMS["rows"], *SIZES).kernel.shared_bytes == 0
