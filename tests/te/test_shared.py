"""What is equal in the definition of a derivative is one node, so that it grows as what it is derived from does."""

from __future__ import annotations

from relay import te
from relay.te.autodiff import vjp
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, Select, binary, compare, unary, walk
from relay.te.shared import Shared
from relay.te.tensor import Compute, stage_bodies


def test_equal_expressions_are_one_node() -> None:
    shared, x, y, i = Shared(), te.placeholder("x", (4,), "float64"), te.placeholder("y", (4,), "float64"), Axis("i", 4)

    def product(t: te.Tensor, a: Axis, by: float) -> Scalar:
        read, factor = shared.of(Load(t, (a,), "float64")), shared.of(Const(by, "float64"))
        return shared.of(binary("mul", read, factor))

    assert product(x, i, 2.0) is product(x, i, 2.0)
    different = [
        product(x, i, 2.0),
        product(y, i, 2.0),
        product(x, Axis("i", 4), 2.0),
        product(x, i, 0.0),
        product(x, i, -0.0),
    ]
    assert len(set(map(id, different))) == len(different)
    assert shared.of(Const(1, "int64")) is not shared.of(Const(1.0, "float64"))
    assert shared.of(Const(float("nan"), "float64")) is shared.of(Const(float("nan"), "float64"))
    a, b = different[:2]
    assert shared.of(compare("lt", a, b)) is not shared.of(compare("lt", b, a))
    assert shared.of(unary("exp", a)) is not shared.of(unary("log", a))


def nodes(tensor: te.Tensor | None) -> int:
    assert tensor is not None
    return sum(len(walk(body)) for stage in te.stages([tensor]) for body in stage_bodies(stage))


def of_columns(count: int) -> int:
    """The nodes of the derivative of an expression that reads so many columns, with respect to them."""
    x = te.placeholder("x", (1000, count), "float64")

    def body(i: Scalar) -> Scalar:
        total: Scalar = x[i, 0]
        for n in range(1, count):
            total = te.tanh(total * x[i, n])
        return total

    y = te.compute((1000,), body)
    (found,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [x])
    return nodes(found)


def test_the_derivative_by_many_reads_grows_as_the_expression_does() -> None:
    """Each read has a share that goes through all that comes after it."""
    sizes = [of_columns(n) for n in (10, 20, 40)]
    assert sizes[2] - sizes[1] <= 2 * (sizes[1] - sizes[0]) + 10, sizes


def test_a_short_sum_is_written_out_only_for_conditions_that_this_decides() -> None:
    """``max(a[i] - b[j], 0)`` is decided by what is read, and a border by the index."""
    a, b = te.placeholder("a", (4,), "float64"), te.placeholder("b", (90,), "float64")
    y = te.compute((4, 90), lambda i, j: te.maximum(a[i] - b[j], 0.0))
    (found,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [b])
    assert found is not None and isinstance(found.stage, Compute) and isinstance(found.stage.bodies[0], Reduce)
    k = te.reduce_axis(3)

    def around(j: Scalar) -> Scalar:
        inside = (j + k - 1 >= 0) & (j + k - 1 < 90)
        return te.max(te.select(inside, te.tanh(b[j + k - 1]), -1.0), k)

    y = te.compute((90,), around)
    (found,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [b])
    assert found is not None and isinstance(found.stage, Compute)
    (body,) = found.stage.bodies
    assert not isinstance(body, Reduce) and any(isinstance(n, Select) for n in walk(body))
