"""Index arithmetic: normal forms mean what the expressions mean."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.ir.dim import Dim, as_var, dim_floordiv, dim_mul, dim_sub, dim_var
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary, Const, Scalar, Size, binary, walk

N = dim_var("n")
AXES = (Axis("i", N), Axis("j", 384), Axis("k", 32))


def applied(op: str, a: int, b: int) -> int:
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // b if b else 0
        case "mod":
            return a % b if b else 0
        case "min":
            return min(a, b)
        case _:
            return max(a, b)


def value(root: Scalar, env: Mapping[object, int]) -> int:
    memo: dict[int, int] = {}
    for node in walk(root):
        match node:
            case Const():
                memo[id(node)] = int(node.value)
            case Size():
                from relay.ir.dim import dim_evaluate

                memo[id(node)] = dim_evaluate(node.dim, {v: env["n"] for v in [as_var(N)] if v is not None})
            case Axis():
                memo[id(node)] = env[node]
            case Binary():
                memo[id(node)] = applied(node.op, memo[id(node.a)], memo[id(node.b)])
            case _:
                raise AssertionError(node)
    return memo[id(root)]


leaves = st.sampled_from(
    [*AXES, Size(N), Const(1, "int64"), Const(5, "int64"), Const(32, "int64"), Const(384, "int64")]
)


def grow(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    sums = st.builds(lambda op, a, b: binary(op, a, b), st.sampled_from(["add", "sub", "min", "max"]), inner, inner)
    scaled = st.builds(lambda a, c: binary("mul", a, c), inner, st.sampled_from([2, 12, 32, 384]))
    divided = st.builds(
        lambda op, a, c: binary(op, a, c),
        st.sampled_from(["floordiv", "mod"]),
        inner,
        st.sampled_from([3, 12, 32, 384, Size(N), Size(dim_mul(-1, N)), Size(dim_sub(N, 3))]),
    )
    products = st.builds(lambda a, b: binary("mul", a, b), inner, inner)
    return sums | scaled | divided | products


@settings(max_examples=400, deadline=None)
@given(st.recursive(leaves, grow, max_leaves=12), st.integers(1, 50), st.data())
def test_simplified_expressions_keep_their_value(root: Scalar, n: int, data: st.DataObject) -> None:
    env: dict[object, int] = {"n": n, AXES[0]: data.draw(st.integers(0, n - 1))}
    env[AXES[1]], env[AXES[2]] = data.draw(st.integers(0, 383)), data.draw(st.integers(0, 31))
    indices = Indices()
    assert value(indices.simplify(root), env) == value(root, env)
    low, high = indices.bounds(indices.poly(root))
    assert (low is None or low <= value(root, env)) and (high is None or value(root, env) <= high)


def test_a_quotient_of_what_may_be_negative_may_be_negative() -> None:
    indices = Indices()
    i, j, k = AXES
    low, _ = indices.bounds(indices.poly(binary("floordiv", binary("min", i, binary("sub", j, k)), 3)))
    assert low == -11
    low, high = indices.bounds(indices.poly(binary("min", binary("max", binary("sub", k, i), 0), 7)))
    assert (low, high) == (0, 7)


def test_a_negated_divisor() -> None:
    """``a // -n`` is ``-a // n``, so ranges are known of it."""
    indices = Indices()
    i, j, _ = AXES
    by = binary("mul", Size(N), -1)
    assert indices.poly(binary("floordiv", i, by)) == indices.poly(binary("floordiv", binary("sub", 0, i), Size(N)))
    low, _ = indices.bounds(indices.poly(binary("floordiv", j, binary("sub", Size(N), 5))))
    assert low is None  # the divisor may be negative, or zero
    assert dim_floordiv(dim_mul(-2, N), dim_mul(-1, N)) == 2


def test_reshapes_cancel() -> None:
    indices = Indices()
    i, j, k = AXES
    flat = binary("add", binary("mul", i, 384), j)
    assert indices.poly(binary("floordiv", flat, 384)) == indices.axis(i)
    assert indices.poly(binary("mod", flat, 384)) == indices.axis(j)
    head = Axis("h", 12)
    split = binary("add", binary("mul", head, 32), k)
    assert indices.poly(binary("floordiv", split, 32)) == indices.axis(head)
    again = binary("add", binary("mul", binary("floordiv", j, 32), 32), binary("mod", j, 32))
    assert indices.poly(again) == indices.axis(j)
    symbolic = binary("add", binary("mul", head, Size(N)), i)
    assert indices.poly(binary("floordiv", symbolic, Size(N))) == indices.axis(head)


def test_a_quotient_by_what_may_be_nothing_cancels() -> None:
    """Of ``i // (n - 1)`` no rule holds where n is 1, but it is the same number wherever it stands."""
    indices, n = Indices(), dim_sub(dim_var("n"), 1)
    i = Axis("i", dim_mul(3, n))
    line = [binary("floordiv", i, Size(n)) for _ in range(2)]
    rest = binary("sub", i, binary("mul", line[0], Size(n)))
    assert indices.poly(binary("add", binary("mul", line[1], Size(n)), rest)) == indices.axis(i)
    assert indices.poly(binary("mod", i, Size(n))) == indices.poly(binary("mod", i, Size(n)))


def test_quotients_are_in_lowest_terms() -> None:
    i, indices = Axis("i", 1536), Indices()

    def quotient(step: int, more: int, by: int) -> Dim:
        return indices.poly(binary("floordiv", binary("add", binary("mul", i, step), more), by))

    assert quotient(1536, 2304, 3072) == quotient(1, 1, 2)
    assert quotient(2, -1, 4) == quotient(1, -1, 2)
    assert quotient(6, -7, 9) == quotient(2, -3, 3)


def test_comparisons_the_ranges_decide() -> None:
    indices = Indices()
    i, j, _ = AXES
    assert indices.compare("lt", i, Size(N)).value is True  # type: ignore[union-attr]
    assert indices.compare("ge", j, Const(384, "int64")).value is False  # type: ignore[union-attr]
    assert not isinstance(indices.compare("lt", j, Const(100, "int64")), Const)


def test_a_quotient_by_a_size_is_less_than_what_it_is_multiplied_by() -> None:
    rows, columns = dim_var("rows"), dim_var("columns")
    i, indices = Axis("i", dim_mul(rows, columns)), Indices()
    row = indices.poly(binary("floordiv", i, Size(columns)))
    assert indices.within(row, rows) and not indices.within(row, dim_sub(rows, 1))
    assert not indices.within(indices.poly(binary("floordiv", i + 1, Size(columns))), rows)


def test_remainders_by_sizes_are_digits() -> None:
    """What is taken apart by a size and put together again cancels, and lies where its digits say, unless the size is zero."""
    rows, p = dim_var("rows"), dim_var("p")
    i, j, k, indices = Axis("i", rows), Axis("j", dim_var("w")), Axis("k", dim_var("h")), Indices()
    size = Size(p)
    both = i * (size * size) + (k % size) * size + j % size
    assert indices.poly(binary("floordiv", k * size + j % size, size * size)) == indices.poly(
        binary("floordiv", k, size)
    )
    limit = dim_mul(rows, dim_mul(p, p))
    assert not indices.within(indices.poly(both), limit) and indices.within_if(indices.poly(both), limit) == (p,)
    assert indices.within_if(indices.poly(both), dim_sub(limit, 1)) is None
    assert indices.within_if(indices.poly(both - 1), limit) is None


def test_a_quotient_by_a_size_is_compared_without_the_division() -> None:
    p, n, indices = dim_var("p"), dim_var("n"), Indices()
    i = Axis("i", dim_var("w"))
    asked = indices.compare("lt", binary("floordiv", i, Size(p)), Size(n))
    assert not any(isinstance(node, Binary) and node.op == "floordiv" for node in walk(asked))


def test_quotients_of_what_may_be_negative() -> None:
    indices = Indices()
    i, j, _ = AXES
    other = Axis("o", 384)
    away = binary("sub", j, other)
    assert indices.bounds(indices.poly(binary("floordiv", away, 384))) == (-1, 0)
    assert indices.bounds(indices.poly(binary("mod", away, 384))) == (0, 383)
    row = Axis("r", N)
    low, _ = indices.bounds(indices.poly(binary("floordiv", binary("sub", i, row), Size(N))))
    assert low is None or low == -1


def test_equal_reads_remember_nothing_that_cancels() -> None:
    """Else what stands for a read would mention an index that it does not depend on, and replacing that would never end."""
    indices = Indices()
    i, j, _ = AXES
    table = te.placeholder("t", (384,), "int64")
    first = table[binary("sub", binary("add", i, j), j)]
    read = indices.poly(first)
    assert not indices.mentions(read, j)
    var = indices.variable(j)
    assert var is not None
    assert indices.replace(indices.poly(table[binary("add", i, j)]), var, 0) == read
    assert not any(n is j for n in walk(indices.scalar(read)))
