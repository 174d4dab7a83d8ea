"""Inverting index functions, by enumeration; recurrences that start from a tensor."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.ir.dim import DimVar, as_dim, ceil_div, dim_add, dim_mul
from relay.te.autodiff import jvp, vjp
from relay.te.autodiff.solve import invert
from relay.te.evaluate import evaluate
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary, Compare, Const, Load, Reduce, Scalar, binary, maximum, minimum, walk
from relay.te.tensor import Compute, stage_bodies


def value(root: Scalar, env: Mapping[Axis, int]) -> int:
    """An index expression or condition, in Python's integers."""
    memo: dict[int, int] = {}
    for node in walk(root):
        match node:
            case Const():
                memo[id(node)] = int(node.value)
            case Axis():
                memo[id(node)] = env[node]
            case Binary() | Compare():
                a, b = memo[id(node.a)], memo[id(node.b)]
                memo[id(node)] = int(_APPLY[node.op](a, b))
            case _:
                raise AssertionError(f"not index arithmetic: {node}")
    return memo[id(root)]


_APPLY: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@st.composite
def index_functions(draw: st.DrawFn) -> tuple[list[Scalar], list[Axis], int]:
    """Quasi-affine index expressions of a few variables, and how many of the variables are a reduction's."""
    axes = [Axis(f"x{n}", draw(st.integers(1, 6))) for n in range(draw(st.integers(1, 4)))]

    def affine() -> Scalar:
        total: Scalar = Const(draw(st.integers(-3, 3)), "int64")
        for a in axes:
            if draw(st.booleans()):
                total = binary("add", total, binary("mul", a, draw(st.sampled_from((-2, -1, 1, 1, 1, 2, 3, 4)))))
        return total

    def index() -> Scalar:
        out = affine()
        match draw(st.sampled_from(("affine", "affine", "divided", "remainder", "clipped", "split", "mirrored"))):
            case "divided":
                out = binary("floordiv", out, draw(st.integers(2, 4)))
            case "remainder":
                out = binary("mod", out, draw(st.integers(2, 4)))
            case "clipped":
                out = minimum(maximum(out, 0), draw(st.integers(1, 5)))
            case "split":
                by = draw(st.integers(2, 3))
                out = binary("add", binary("mul", binary("mod", out, by), by), binary("floordiv", affine(), by))
            case "mirrored":
                out = maximum(out, binary("sub", 0, out))
        return out

    return [index() for _ in range(draw(st.integers(1, 3)))], axes, draw(st.integers(0, len(axes)))


@settings(max_examples=40, deadline=None)
@given(index_functions())
def test_an_inverse_hits_each_iteration_once(drawn: tuple[list[Scalar], list[Axis], int]) -> None:
    reads, axes, reduced = drawn
    hit: dict[tuple[int, ...], Counter[tuple[int, ...]]] = {}
    for x in itertools.product(*(range(int(str(a.extent))) for a in axes)):
        env = dict(zip(axes, x, strict=True))
        hit.setdefault(tuple(value(r, env) for r in reads), Counter())[x] += 1
    # A box of elements, some of them never hit; hits outside of the box are none of its business.
    sizes = [max([z[n] for z in hit if z[n] < 9] + [0]) + 2 for n in range(len(reads))]
    element = [Axis(f"z{n}", s) for n, s in enumerate(sizes)]
    parts = invert(reads, element, axes, Indices(), reduced)
    for inverse in parts:
        loops = 1
        for a in inverse.free:
            loops *= int(str(a.extent))
        assert loops <= 40_000
    for z in itertools.product(*map(range, sizes)):
        found: Counter[tuple[int, ...]] = Counter()
        for inverse in parts:
            for t in itertools.product(*(range(int(str(a.extent))) for a in inverse.free)):
                env = {**dict(zip(element, z, strict=True)), **dict(zip(inverse.free, t, strict=True))}
                if value(inverse.guard, env):
                    found[tuple(value(inverse.values[a], env) for a in axes)] += 1
        assert found == hit.get(z, Counter()), z


def test_what_is_read_by_a_variable_makes_no_loop_where_another_equation_says_what_it_is() -> None:
    """A scatter along an axis of one element: only where the index is 0, but at its own column alone."""
    table = te.placeholder("table", (1, 50), "int64")
    (k, j), element = (Axis("k", 1), Axis("j", 50)), [Axis("z0", 1), Axis("z1", 50)]
    (inverse,) = invert([k, j], element, [k, j], Indices(), also=[(table[k, j], Const(0, "int64"))])
    assert inverse.free == () and inverse.values[j] is element[1]
    assert any(isinstance(n, Load) for n in walk(inverse.guard))


def test_few_elements_for_each_place_leave_lanes_to_the_places() -> None:
    """The gradient of weights that each element has for itself is a product of nine columns, which no matrix kernel is made for: it is
    made along the elements, and not along the columns."""
    side = as_dim(DimVar("n"))
    x, w = te.placeholder("x", (8, dim_add(side, 2), 40), "float64"), te.placeholder("w", (2, 9, side, 38), "float64")
    r, s = te.reduce_axis(3), te.reduce_axis(3)
    y = te.compute((8, side, 38), lambda c, i, j: te.sum(x[c, i + r, j + s] * w[c // 4, 3 * r + s, i, j], (r, s)))
    (found,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [w])
    assert found is not None
    (product,) = (s for s in te.stages([found]) if any(isinstance(b, Reduce) for b in stage_bodies(s)))
    assert product.shape[-1] == 38


def test_a_block_whose_number_a_tensor_says_is_found_by_its_number() -> None:
    """``x[4 * c[t] + k]`` with k below 4 hits z where c[t] is ``z // 4``, and k is the remainder: no two inequalities."""
    blocks = te.placeholder("c", (5,), "int64")
    (t, k), element = (Axis("t", 5), Axis("k", 4)), Axis("z", 12)
    read = binary("add", binary("mul", blocks[t], 4), k)
    (inverse,) = invert([read], [element], [t, k], Indices(), 1)
    assert inverse.spans == () and isinstance(inverse.guard, Compare) and inverse.guard.op == "eq"
    assert not any(isinstance(n, Load) for n in walk(inverse.values[k]))
    for size in (0, 1):  # of which there is no block to find
        k = Axis("k", size)
        (inverse,) = invert([binary("add", blocks[t], k)], [element], [t, k], Indices())
        assert any(isinstance(n, Load) for n in walk(inverse.guard))
    x, o = te.placeholder("x", (12,), "float64"), te.reduce_axis(4)
    w = te.placeholder("w", (5, 4), "float64")
    y = te.compute((5,), lambda t: te.sum(x[blocks[t] * 4 + o] * w[t, o], o))
    g = te.placeholder("g", (5,), "float64")
    (found,) = vjp([y], [g], [x])
    assert found is not None
    rng = np.random.default_rng(0)
    numbers, weights, given_ = np.array([2, 0, 2, 1, 0]), rng.standard_normal((5, 4)), rng.standard_normal(5)
    wanted = np.zeros(12)
    for n, number in enumerate(numbers):
        wanted[4 * number : 4 * number + 4] += given_[n] * weights[n]
    values = {blocks: numbers, w: weights, g: given_, x: np.zeros(12)}
    np.testing.assert_allclose(evaluate([found], values)[0], wanted, rtol=1e-12)


def test_a_recurrence_that_starts_from_a_tensor() -> None:
    """``s[n, k] = tanh(s[n, k - 1] * w[k]) + x[n, k]`` from ``s[n, -1] = h[n]``, in both directions, before and after the step."""
    x, w, h = (te.placeholder(n, s, "float64") for n, s in (("x", (2, 5)), ("w", (5,)), ("h", (2,))))
    generator = np.random.default_rng(1)
    arrays = {t: generator.standard_normal(t.shape) for t in (x, w, h)}  # type: ignore[arg-type]
    for reverse, exclusive in itertools.product((False, True), repeat=2):
        out = te.scan(
            (2, 5), 1, lambda n: h[n], lambda s, n, k: te.tanh(s * w[k]) + x[n, k], "float64",
            reverse=reverse, exclusive=exclusive,
        )  # fmt: skip
        weights = generator.standard_normal((2, 5))
        moves = {t: generator.standard_normal(t.shape) for t in arrays}  # type: ignore[arg-type]
        g = te.placeholder("g", (2, 5), "float64")
        tangents = {t: te.placeholder("t", t.shape, "float64") for t in arrays}
        backward = vjp([out], [g], list(arrays))
        (forward,) = jvp([out], list(arrays), [tangents[t] for t in arrays])
        assert forward is not None

        def at(step: float) -> float:
            return float(np.sum(evaluate([out], {t: a + step * moves[t] for t, a in arrays.items()})[0] * weights))  # noqa: B023

        wanted = (at(1e-5) - at(-1e-5)) / 2e-5
        found = 0.0
        for t, cotangent in zip(arrays, backward, strict=True):
            assert cotangent is not None
            found += float(np.sum(evaluate([cotangent], {**arrays, g: weights})[0] * moves[t]))
        (moved,) = evaluate([forward], {**arrays, **{tangents[t]: m for t, m in moves.items()}})
        assert abs(found - wanted) < 1e-6 and abs(float(np.sum(moved * weights)) - wanted) < 1e-6


def own_variables(tensor: te.Tensor | None) -> bool:
    """Whether a tensor is made by several stages, no two of which have an index variable in common."""
    assert tensor is not None
    stages = [s for s in te.stages([tensor]) if isinstance(s, Compute)]
    used = [a for s in stages for a in (*s.axes, *(a for b in s.bodies if isinstance(b, Reduce) for a in b.axes))]
    return len(stages) > 1 and len(used) == len(set(used))


def test_stages_of_a_cotangent_have_index_variables_of_their_own() -> None:
    """Sums that are made in one order and read in another, and those that a border repeats."""
    x, w = te.placeholder("x", (4, 32, 9), "float64"), te.placeholder("w", (3, 9, 3), "float64")
    r, m, c = te.reduce_axis(3), te.reduce_axis(128), te.reduce_axis(3)
    y = te.compute((9,), lambda i: te.sum(x[m % 4, m // 4, i] * w[r, i, c], (r, m, c)))
    (dx,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [x])
    assert own_variables(dx)
    x, w, k = te.placeholder("x", (9, 16), "float64"), te.placeholder("w", (5, 16), "float64"), te.reduce_axis(5)
    y = te.compute((9, 16), lambda i, j: te.sum(x[te.minimum(te.maximum(i - k, 0), 8), j] * w[k, j], k))
    (dx,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [x])
    assert own_variables(dx)


def test_windows_that_begin_at_quotients_of_a_size_are_found_without_a_loop_over_them() -> None:
    """``x[k * n // 5 + o]``, `n` unknown, hits z for five k at most: o is what is left of z, not looped over as well."""
    n = as_dim(DimVar("n"))
    k, o, z = Axis("k", 5), Axis("o", dim_add(ceil_div(n, 5), 1)), Axis("z", n)
    read = binary("add", binary("floordiv", binary("mul", k, te.size(n)), 5), o)
    (inverse,) = invert([read], [z], [k, o], Indices(), 1)
    assert [a.extent for a in inverse.free] == [5]


def test_an_axis_that_a_size_splits_goes_back_without_a_loop() -> None:
    """``x[i * 2h + j]`` hits z once at most: the remainder by 2h says which j it is, the one by 2 would leave a loop over the others."""
    h = as_dim(DimVar("h"))
    i, j, z = Axis("i", h), Axis("j", dim_mul(2, h)), Axis("z", dim_mul(h, dim_mul(2, h)))
    read = binary("add", binary("mul", i, te.size(dim_mul(2, h))), j)
    (inverse,) = invert([read], [z], [i, j], Indices())
    assert not inverse.free


def test_places_that_an_unknown_factor_apart_hit_an_element_make_a_loop_as_short_as_it_is_large() -> None:
    """``x[(o * 2n + n + 56) // 112]`` (an image of unknown size made 56 wide) hits z for ``112 // 2n`` o in a row, or one more."""
    n = as_dim(DimVar("n"))
    o, z = Axis("o", 56), Axis("z", n)
    place = binary("add", binary("mul", o, te.size(dim_mul(2, n))), binary("add", te.size(n), 56))
    (inverse,) = invert([binary("floordiv", place, 112)], [z], [o], Indices())
    assert [a.extent for a in inverse.free] == [ceil_div(112, dim_mul(2, n))]
