"""The derived derivatives of every operator, against finite differences in float64 and against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import relay
from relay import te
from relay.codegen.target import host_target
from relay.ir.diagnostics import CompileError, ExecutionError, OperatorError, ShapeError
from relay.ir.dim import dim_floordiv, dim_sub
from relay.ir.expr import Binding, Block, Call, Function, OpRef, Var
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from relay.op.custom_gradients import RULES
from relay.op.gradient import differentiable, input_cotangent
from relay.plan import make_plan
from relay.te.autodiff import borders, gather, reverse, scalar, solve, stages, terms
from relay.te.reads import OutsideError
from relay.te.scalar import TRUE
from relay.typing import op_type
from tests.op import harness as h
from tests.op.harness import Array, Case, Operand
from tests.op.test_compiled import CASES, TOLERANCE, program

# Operators without a derivative of their own, by reason.
EXCLUDED: Mapping[str, tuple[str, ...]] = {
    "a composition: the program that it stands for is differentiated": ("nn.silu", "std"),
    "a runtime routine: no expression to derive from (sort and topk have rules)": (
        "argsort", "argwhere", "nonzero", "sort", "topk", "unique", "non_max_suppression",
    ),
    "placed after differentiation": ("device_copy",),
    "a constant where derivatives are taken": ("stop_gradient",),
    "no operand": ("zeros", "ones", "arange", "size_of"),
    "no result that is a float": (
        "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
        "left_shift", "right_shift", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan", "isinf",
        "isfinite", "all", "any", "argmax", "argmin", "searchsorted", "shape_of", "ndarray_size",
    ),
}  # fmt: skip
NO_DERIVATIVE = frozenset(name for names in EXCLUDED.values() for name in names)

# Where an operator is smooth: what to make of the drawn values.
DOMAINS: Mapping[str, Callable[[Array], Array]] = {
    name: make
    for names, make in (
        (("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "power"), lambda x: np.abs(x) + 0.5),
        (("asin", "acos"), lambda x: x / 5),
        (("nn.batch_norm",), lambda x: np.abs(x) + 0.5),
    )
    for name in names
}


def in_float64(operands: Sequence[Operand], attrs: Mapping[str, Any]) -> tuple[list[Operand], dict[str, Any]]:
    """The operands and attributes with every float as float64."""

    def wide(x: Array) -> Array:
        return x.astype(np.float64) if x.dtype.name in h.FLOATS else x

    made = [tuple(wide(e) for e in x) if isinstance(x, tuple) else wide(x) for x in operands]
    return made, {k: "float64" if v in h.FLOATS else v for k, v in attrs.items()}


def of_dtype(operands: Sequence[Operand], attrs: Mapping[str, Any], dtype: Any) -> tuple[list[Operand], dict[str, Any]]:
    """The operands and attributes with every float64 as another float."""
    made = unflat([x.astype(dtype) if x.dtype == np.float64 else x for x in flat(operands)], operands)
    return made, {k: np.dtype(dtype).name if v == "float64" else v for k, v in attrs.items()}


def flat(operands: Sequence[Operand]) -> list[Array]:
    return [e for x in operands for e in (x if isinstance(x, tuple) else (x,))]


def unflat(arrays: Sequence[Array], like: Sequence[Operand]) -> list[Operand]:
    rest = iter(arrays)
    return [tuple(next(rest) for _ in x) if isinstance(x, tuple) else next(rest) for x in like]


def results(name: str, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> tuple[list[Array], bool]:
    made = h.apply(name, *operands, **dict(attrs))
    return (list(made), True) if isinstance(made, tuple) else ([made], False)


def weighed(out: Array, cotangent: Array) -> float:
    """The sum of products; what has no weight may be nan."""
    return float(np.sum(np.where(cotangent == 0, 0, out) * cotangent))


def slope(
    name: str, operands: Sequence[Operand], attrs: Mapping[str, Any], cots: list[Array], n: int, d: Array
) -> float:
    """The derivative of the weighed results along direction ``d`` of operand ``n``, by central differences."""

    def at(step: float) -> float:
        arrays = flat(operands)
        arrays[n] = arrays[n] + step * d
        out, _ = results(name, unflat(arrays, operands), attrs)
        return sum(weighed(o, c) for o, c in zip(out, cots, strict=True) if o.dtype == np.float64)

    wide, near = 1e-4, 5e-5
    coarse, fine = ((at(s) - at(-s)) / (2 * s) for s in (wide, near))
    return (4 * fine - coarse) / 3  # Richardson: the error is of fourth order


def check(
    name: str, operands: Sequence[Operand], attrs: Mapping[str, Any], generator: np.random.Generator, symbolic: bool
) -> int:
    """Compare vjp with differences and jvp with vjp; how many operands had a cotangent."""
    with np.errstate(all="ignore"):
        out, many = results(name, operands, attrs)
    floats = [n for n, x in enumerate(flat(operands)) if x.dtype == np.float64]
    if not any(o.dtype == np.float64 for o in out) or any(np.isnan(o).any() for o in out):
        return 0
    # An infinite result (the maximum of nothing) has no derivative.
    cots = [np.where(np.isfinite(o), generator.standard_normal(o.shape), 0).astype(o.dtype) for o in out]
    given_: Operand = tuple(cots) if many else cots[0]
    directions = [generator.standard_normal(x.shape) if x.dtype == np.float64 else x for x in flat(operands)]
    total = 0.0
    for n in floats:
        own = flat(operands)[n]
        got = h.apply(f"{name}.vjp{n}", *operands, given_, symbolic=symbolic, **dict(attrs))
        assert got.shape == own.shape and got.dtype == own.dtype
        wanted = slope(name, operands, attrs, cots, n, directions[n])
        found = float(np.sum(got * directions[n]))
        total += found
        scale = 1 + abs(wanted)
        assert abs(found - wanted) <= 2e-5 * scale, f"{name}.vjp{n}: {found}, by differences {wanted}"
    if registry.get(name).shape_mode == "independent":
        tangents = unflat(directions, operands)
        moved = h.apply(f"{name}.jvp", *operands, *tangents, symbolic=symbolic, **dict(attrs))
        forward = sum(
            weighed(t, c)
            for t, c, o in zip(moved if many else [moved], cots, out, strict=True)
            if o.dtype == np.float64
        )
        assert abs(forward - total) <= 1e-7 * (1 + abs(total)), f"{name}.jvp: {forward}, vjp gives {total}"
    return len(floats)


def smooth(name: str, operands: Sequence[Operand], generator: np.random.Generator) -> list[Operand]:
    """The operands moved to where the operator is smooth: no two elements equal, none at a step."""

    def moved(x: Array) -> Array:
        if x.dtype != np.float64:
            return x
        apart: Array = x + 0.05 * generator.standard_normal(x.shape)
        return DOMAINS[name](apart) if name in DOMAINS else apart

    return unflat([moved(x) for x in flat(operands)], operands)


def check_case(case: Case, examples: int) -> int:
    """Check drawn operands of an operator; how many cotangents were compared."""
    checked = 0

    @h.drawing(5, examples)
    def run(data: st.DataObject) -> None:
        nonlocal checked
        operands, attrs = in_float64(*case.draw(data.draw))
        if sum(x.size for x in flat(operands)) > 4000:
            return
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        checked += check(
            case.name,
            smooth(case.name, operands, generator),
            attrs,
            generator,
            data.draw(st.booleans()) and case.symbolic,
        )

    run()
    return checked


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_every_derivative(case: Case, request: pytest.FixtureRequest) -> None:
    checked = check_case(case, request.config.getoption("--gradient-examples"))
    assert checked > 0, "nothing was drawn that has a derivative"


# A group of one element is its own mean: what is left of it are roundings, divided by the root of epsilon.
NARROW: Mapping[str, float] = {"nn.group_norm": 0.3}


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_derivatives_of_narrow_floats(case: Case) -> None:
    """In 16 bits an operator has the derivative that it has in 64, of the same operands, up to roundings."""
    checked = 0

    @h.drawing(17, 6)
    def run(data: st.DataObject) -> None:
        nonlocal checked
        operands, attrs = in_float64(*case.draw(data.draw))
        if sum(x.size for x in flat(operands)) > 2000:
            return
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        dtype = data.draw(st.sampled_from((ml_dtypes.bfloat16, np.float16)))
        narrow, narrow_attrs = of_dtype(smooth(case.name, operands, generator), attrs, dtype)
        wide, _ = in_float64(narrow, {})
        with np.errstate(all="ignore"):
            out, many = results(case.name, narrow, narrow_attrs)
            cots = [generator.standard_normal(o.shape).astype(o.dtype) for o in out]
            seeds = [c.astype(np.float64) if c.dtype == dtype else c for c in cots]
            for n, x in enumerate(flat(narrow)):
                if x.dtype != dtype:
                    continue
                got = h.apply(f"{case.name}.vjp{n}", *narrow, tuple(cots) if many else cots[0], **narrow_attrs)
                wanted = h.apply(f"{case.name}.vjp{n}", *wide, tuple(seeds) if many else seeds[0], **attrs)
                assert got.dtype == dtype
                limit = NARROW.get(case.name, TOLERANCE[got.dtype.name]) * (1 + np.abs(wanted).max(initial=0))
                assert not np.any(np.abs(got.astype(np.float64) - wanted) > limit), f"{case.name}.vjp{n} in {dtype}"
                checked += 1

    run()
    assert checked > 0, "nothing was drawn that has a derivative"


def test_operators_that_differentiation_leaves_out() -> None:
    ints = [TensorType((3,), "int32")] * 2
    floats = [TensorType((3, 3), "float32")] * 2
    for name in EXCLUDED["no result that is a float"]:
        op = registry.get(name)
        given_ = (ints if name.startswith(("logical", "bitwise", "left", "right", "all", "any")) else floats)[
            : len(op.inputs)
        ]
        assert not any(differentiable(name, {}, given_, n) for n in range(len(given_))), name
    # Piecewise constant, or of the sizes alone: found by the expression, not by a list.
    for name in ("floor", "sign", "zeros_like"):
        assert not differentiable(name, {}, floats[:1], 0)
    assert not differentiable("reshape_like", {}, floats, 1) and differentiable("reshape_like", {}, floats, 0)
    with pytest.raises(CompileError, match="operator unique has no derivative: it is a runtime routine"):
        differentiable("unique", {}, [TensorType((3,), "float32")], 0)


# -- the rules that write something else than the derived operator


# Rows of nodes: tests/ad/test_levels.py.
@pytest.mark.parametrize("name", sorted(n for n in RULES if not n.startswith("rows.")))
def test_simpler_cotangents(name: str) -> None:
    generator = np.random.default_rng(3)
    x = generator.uniform(0.2, 1.0, (3, 4))
    operands: list[Any] = [x]
    given_: dict[str, dict[str, Any]] = {
        "reshape": {"newshape": (2, 6)},
        "expand_dims": {"axis": 1},
        "sort": {"axis": 0, "is_ascend": False},
        "topk": {"k": 2},
        "nn.attention": {"causal": True},
        "nn.scored_attention": {
            "score": (("multiply", (0, 1)), ("tanh", (2,))),
            "masked": True,
            "weighed": True,
            "window": (2, 1),
        },
    }
    attrs = given_.get(name, {})
    if name == "reshape_like":
        operands.append(np.zeros((6, 2)))
    if name == "dyn.reshape":
        operands.append(np.array([6, 2]))
    if name == "squeeze":
        operands = [x[:, None]]
    if name in ("add", "subtract", "multiply"):
        operands.append(generator.uniform(0.2, 1.0, (3, 4)))
    if name == "nn.bias_add":
        operands.append(generator.uniform(0.2, 1.0, (4,)))
    if name == "scatter_nd":
        operands += [np.array([[1]]), generator.uniform(0.2, 1.0, (1, 4))]
    if name in ("nn.attention", "nn.scored_attention"):
        operands = [generator.uniform(-1.0, 1.0, s) for s in ((4, 3, 5), (2, 6, 5), (2, 6, 4), (3, 6))]
    if name == "nn.scored_attention":  # a mask, a factor of each score, one of each share
        operands[3] = (operands[3], *(generator.uniform(0.2, 1.0, s) for s in ((4, 1, 6), (3, 6))))
    out, many = results(name, operands, attrs)
    cots = [generator.standard_normal(o.shape).astype(o.dtype) for o in out]
    args = [Var(f"x{n}") for n in range(len(operands))]
    outputs, cotangents = [Var(f"y{n}") for n in range(len(out))], [Var(f"g{n}") for n in range(len(out))]
    types = [
        TupleType(tuple(TensorType(a.shape, a.dtype.name) for a in o))
        if isinstance(o, tuple)
        else TensorType(o.shape, o.dtype.name)
        for o in operands
    ]
    ruled = {"add": 2, "subtract": 2, "multiply": 2, "nn.attention": 3, "nn.scored_attention": 3}
    for index in (0, 2) if name == "scatter_nd" else range(ruled.get(name, 1)):
        made = input_cotangent(name, attrs, args, types, outputs, cotangents, index)
        assert made is not None
        values = dict(zip((*args, *outputs, *cotangents), (*operands, *out, *cots), strict=True))
        got = np.asarray(h.value(made, {id(v): x for v, x in values.items()}))
        direction = generator.standard_normal(operands[index].shape)
        wanted = slope(name, operands, attrs, cots, index, direction)
        assert got.shape == operands[index].shape and abs(float(np.sum(got * direction)) - wanted) < 1e-5
    assert many == isinstance(h.apply(name, *operands, **attrs), tuple)


@pytest.mark.parametrize("index", [0, 2, 3, -1])
def test_the_cotangent_of_one_slice_that_is_put(index: int) -> None:
    """Read where it was put, without a search for the last slice in every place; one that is put nowhere has zeros."""
    slope = relay.grad(
        relay.parse("""#[version = "0.0.5"]
def @main(%x: Tensor[(3, 2), float64], %at: Tensor[(1, 1), int64], %u: Tensor[(1, 2), float64], %g: Tensor[(3, 2), float64]) {
  sum(scatter_nd(%x, %at, %u) * %g)
}"""),
        argnums=(0, 2),
    )
    g = np.arange(6.0).reshape(3, 2) + 1
    found: Any = relay.evaluate(slope, g, np.array([[index]]), g[:1], g)
    dx, du = found
    inside = 0 <= index < 3
    np.testing.assert_array_equal(np.asarray(dx), np.where(np.arange(3)[:, None] == index, 0, g))
    np.testing.assert_array_equal(np.asarray(du), g[index : index + 1] if inside else np.zeros((1, 2)))
    types = [TensorType((3, 2), "float64"), TensorType((1, 1), "int64"), TensorType((1, 2), "float64")]
    made = input_cotangent("scatter_nd", {}, [Var(n) for n in "xau"], types, [Var("y")], [Var("g")], 2)
    assert isinstance(made, Call) and made.attrs["mode"] == "add"


# -- derivatives of derivatives


@pytest.mark.parametrize(
    ("name", "operands", "attrs"),
    [
        ("nn.dense", [(3, 4), (5, 4)], {}),
        ("multiply", [(3, 4), (4,)], {}),
        ("tanh", [(3, 4)], {}),
        ("power", [(3,), (3,)], {}),
        ("nn.softmax", [(3, 4)], {}),
        ("nn.layer_norm", [(3, 4), (4,), (4,)], {}),
        ("nn.conv2d", [(1, 2, 5, 6), (3, 2, 3, 2)], {"strides": (2, 1), "padding": (1, 0)}),
        ("nn.avg_pool2d", [(1, 1, 5, 6)], {"pool_size": (2, 3), "strides": (2, 2)}),
        ("prod", [(3, 4)], {"axis": 1}),
        ("cumprod", [(3, 4)], {"axis": 0}),
        ("max", [(3, 4)], {"axis": 1}),
        ("logsumexp", [(3, 4)], {"axis": 0}),
    ],
)
def test_second_derivatives(name: str, operands: list[tuple[int, ...]], attrs: dict[str, Any]) -> None:
    generator = np.random.default_rng(11)
    arrays = [generator.uniform(0.3, 1.5, s) for s in operands]
    out, _ = results(name, arrays, attrs)
    for n in range(len(arrays)):
        check(f"{name}.vjp{n}", [*arrays, generator.standard_normal(out[0].shape)], attrs, generator, symbolic=False)
    check(f"{name}.jvp", [*arrays, *(generator.standard_normal(s) for s in operands)], attrs, generator, symbolic=False)


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_every_second_derivative(case: Case) -> None:
    """The derived operators' own derivatives, of drawn operands and attributes, where the operator is smooth."""
    done = checked = 0

    @h.drawing(13, 40)
    def run(data: st.DataObject) -> None:
        nonlocal done, checked
        operands, attrs = in_float64(*case.draw(data.draw))
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        symbolic = data.draw(st.booleans()) and case.symbolic
        if done == 2 or not 0 < sum(x.size for x in flat(operands)) <= 200:
            return
        operands = smooth(case.name, operands, generator)
        with np.errstate(all="ignore"):
            out, many = results(case.name, operands, attrs)
        if not all(np.isfinite(o).all() for o in out) or not any(o.dtype == np.float64 for o in out):
            return
        cots = [generator.standard_normal(o.shape).astype(o.dtype) for o in out]
        whole = [*operands, tuple(cots) if many else cots[0]]
        found = [
            check(f"{case.name}.vjp{n}", whole, attrs, generator, symbolic)
            for n, x in enumerate(flat(operands))
            if x.dtype == np.float64 and x.size
        ]
        checked += sum(found)
        done += any(found)

    run()
    assert checked > 0, "nothing was drawn that has a second derivative"


def test_products_of_zeros() -> None:
    for zeros in (1, 2):
        x = np.array([[0.0, 2.0, 0.0 if zeros == 2 else 3.0]])
        check("prod", [x], {"axis": 1}, np.random.default_rng(0), symbolic=False)


def test_what_several_elements_win_is_shared() -> None:
    x, g = np.array([1.0, 3.0, 3.0, 2.0]), np.array(4.0)
    np.testing.assert_array_equal(h.apply("max.vjp0", x, g), [0, 2, 2, 0])
    np.testing.assert_array_equal(h.apply("nn.relu.vjp0", np.array([-1.0, 0.0, 2.0]), np.ones(3)), [0, 0, 1])
    a, b, one = np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.ones(2)
    parts = [h.apply(f"maximum.vjp{n}", a, b, one) for n in (0, 1)]
    np.testing.assert_array_equal(parts, [[0, 1], [1, 0]])


# -- an operator of a user


def test_a_capsule_convolution() -> None:
    """The convolution of capsules, matrices in the place of numbers, by nothing but its expression."""

    @registry.operator("test.capsule")
    def capsule(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        """``sum over c, r, s, l of a[n, c, 2p + r, 2q + s, i, l] * b[k, c, r, s, l, j]``."""
        n, c, height, width, i, inner = a.shape
        k, _, rows, columns, _, j = b.shape
        over = [te.reduce_axis(d) for d in (c, rows, columns, inner)]

        def body(*at: te.Scalar) -> te.Scalar:
            (n, k, p, q, i, j), (c, r, s, z) = at, over
            return te.sum(a[n, c, p * 2 + r, q * 2 + s, i, z] * b[k, c, r, s, z, j], over)

        shape = (n, k, dim_floordiv(dim_sub(height, rows), 2) + 1, dim_floordiv(dim_sub(width, columns), 2) + 1, i, j)  # type: ignore[operator]
        return te.compute(shape, body, "capsule")

    try:
        generator = np.random.default_rng(2)
        a, b = generator.standard_normal((2, 3, 7, 8, 2, 3)), generator.standard_normal((4, 3, 3, 3, 3, 2))
        assert check("test.capsule", [a, b], {}, generator, symbolic=False) == 2
        shapes = ((8, 16, 14, 14, 4, 4), (16, 16, 3, 3, 4, 4))
        assert all(
            {"matrix"} <= set(v.split("+")) <= {"matrix", "elementwise"} for v in variants("test.capsule", shapes)
        )
    finally:
        registry.remove("test.capsule")


# -- what derived gradients look like


def variants(
    name: str, shapes: Sequence[tuple[int, ...]], attrs: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """How the cotangent of each operand is scheduled."""
    types = [TensorType(s, "float32") for s in shapes]
    out = op_type(name, types, attrs)
    assert isinstance(out, TensorType)
    made: list[str] = []
    for n in range(len(types)):
        params = tuple(Var(f"x{k}", t, t) for k, t in enumerate((*types, out)))
        call = Call(OpRef(f"{name}.vjp{n}"), params, attrs, ty=types[n])
        var = Var("d", types[n], types[n])
        body = Block((Binding(var, call),), var)
        made.append(make_plan(Function(params, body, attrs={"Primitive": 1}), host_target()).variant)
    return made


@pytest.mark.parametrize(
    ("name", "shapes", "attrs"),
    [
        ("nn.dense", ((64, 256), (128, 256)), {}),
        ("nn.matmul", ((64, 256), (256, 128)), {}),
        ("nn.batch_matmul", ((8, 64, 32), (8, 48, 32)), {}),
        ("nn.conv2d", ((1, 64, 14, 14), (32, 64, 3, 3)), {"padding": (1, 1)}),
        ("nn.conv2d", ((1, 64, 14, 14), (32, 64, 3, 3)), {"padding": (1, 1), "strides": (2, 2)}),
        ("nn.conv2d", ((1, 64, 14, 14), (32, 64, 1, 1)), {}),
    ],
)
def test_gradients_of_products_are_products(
    name: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any]
) -> None:
    assert all({"matrix"} <= set(v.split("+")) <= {"matrix", "elementwise"} for v in variants(name, shapes, attrs))


def test_gradients_of_gathers_are_scatters() -> None:
    types = [TensorType((1000, 64), "float32"), TensorType((32,), "int32"), TensorType((32, 64), "float32")]
    params = tuple(Var(f"x{k}", t, t) for k, t in enumerate(types))
    var = Var("d", types[0], types[0])
    body = Block((Binding(var, Call(OpRef("take.vjp0"), params, {"axis": 0}, ty=types[0])),), var)
    assert make_plan(Function(params, body, attrs={"Primitive": 1}), host_target()).variant == "scatter"


def stages_of(name: str, shapes: Sequence[tuple[int, ...]], attrs: Mapping[str, Any]) -> list[te.Scalar]:
    specs = [(s, "float32") for s in shapes]
    traced = registry.trace(registry.get(name), specs, attrs)
    return [b for s in te.stages(traced.outputs) for b in te.stage_bodies(s)]


def test_gradients_are_what_a_person_would_write() -> None:
    (total,) = stages_of("add.vjp1", [(3, 4), (4,), (3, 4)], {})
    assert isinstance(total, te.Reduce) and isinstance(total.body, te.Load) and len(total.axes) == 1
    assert stages_of("add.vjp0", [(3, 4), (4,), (3, 4)], {}) == []  # the cotangent itself
    (part,) = stages_of("nn.dense.vjp0", [(3, 4), (5, 4), (3, 5)], {})
    assert isinstance(part, te.Reduce) and isinstance(part.body, te.Binary) and part.body.op == "mul"
    for name, shapes, attrs in (
        ("transpose.vjp0", [(3, 4), (4, 3)], {}),
        ("nn.depth_to_space.vjp0", [(1, 8, 2, 3), (1, 2, 4, 6)], {"block_size": 2}),
        ("strided_slice.vjp0", [(6, 4), (6, 4)], {"begin": (0,), "end": (6,)}),
        ("nn.pad.vjp0", [(3, 4), (5, 6)], {"pad_width": ((1, 1), (2, 0))}),
    ):
        bodies = stages_of(name, shapes, attrs)
        assert all(isinstance(b, te.Load) for b in bodies), name


# -- seeded faults: each must be found


def _without_guards(patch: pytest.MonkeyPatch) -> None:
    right = vars(gather)["invert"]

    def wrong(*args: Any) -> Any:
        return [replace(inverse, guard=TRUE, rest=TRUE, spans=()) for inverse in right(*args)]

    patch.setattr(gather, "invert", wrong)


def _one_loop_short(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        solve, "ceil_div", lambda a, b: max(a // b, 1) if isinstance(a, int) and isinstance(b, int) else a // b
    )


def _ties_not_counted(patch: pytest.MonkeyPatch) -> None:
    right = vars(reverse)["hits"]

    def wrong(axes: Any, body: Any, result: Any) -> Any:
        found = right(axes, body, result)
        return replace(found, hit=te.compare("ne", found.hit.a, found.hit.b))

    patch.setattr(reverse, "hits", wrong)


def _states_after(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reverse, "states", lambda scan: te.Tensor(scan, 0, scan.shape, scan.state.dtype))


def _last_use_only(patch: pytest.MonkeyPatch) -> None:
    for module in (reverse, gather, terms):
        patch.setattr(module, "add", lambda a, b: b if b is not None else a)


def _shifted_border(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(borders, "index_size", lambda d: te.const(d, "int64") + 1 if isinstance(d, int) else te.size(d))


def _select_sides(patch: pytest.MonkeyPatch) -> None:
    right = vars(scalar)["choose"]
    patch.setattr(scalar, "choose", lambda c, a, b, d: right(c, b, a, d))


def _unary(op: str, rule: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(scalar._UNARY, op, rule)


def _quotient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scalar, "div", lambda a, b: te.binary("mul", a, b))


def _factors_include_the_own(patch: pytest.MonkeyPatch) -> None:
    right = vars(stages)["Scan"]
    patch.setattr(stages, "Scan", lambda *a, reverse=False, exclusive=False: right(*a, reverse, False))


FAULTS: Mapping[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "an index out of range counts": (_without_guards, "nn.conv2d"),
    "a residue class without its last element": (_one_loop_short, "nn.conv2d"),
    "the gradient of a maximum to the others": (_ties_not_counted, "nn.max_pool2d"),
    "the states of a scan after its steps": (_states_after, "cumprod"),
    "of several uses the last one only": (_last_use_only, "nn.layer_norm"),
    "a border shifted by one": (_shifted_border, "nn.conv2d"),
    "the other side of a choice": (_select_sides, "where"),
    "tanh without the square": (_unary("tanh", lambda g, x, y: te.binary("mul", g, 1 - y)), "tanh"),
    "exp as if linear": (_unary("exp", lambda g, x, y: g), "nn.softmax"),
    "a quotient as a product": (_quotient, "divide"),
    "a product with the element itself": (_factors_include_the_own, "prod"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_it, name = FAULTS[fault]
    case = next(c for c in CASES if c.name == name)
    seed_it(monkeypatch)
    with pytest.raises((AssertionError, ExecutionError, IndexError, OutsideError)):
        check_case(case, 60)


# -- compiled


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


# One operator of each form of gradient: products, windows, choices, scans, indexed reads, views, several results.
COMPILED = (
    "nn.dense", "nn.batch_matmul", "einsum", "nn.conv2d", "nn.conv2d_transpose", "nn.max_pool2d", "nn.avg_pool2d", "nn.softmax",
    "nn.layer_norm", "nn.attention", "cumsum", "cumprod", "prod", "max", "take", "gather", "gather_nd", "concatenate", "split",
    "nn.pad", "reshape", "tile", "image.resize2d", "nn.depth_to_space", "strided_slice", "add", "power", "where", "nn.gelu",
)  # fmt: skip


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NO_DERIVATIVE], ids=lambda c: c.name)
def test_compiled_derivatives(case: Case, request: pytest.FixtureRequest, cache: Path) -> None:
    everything = request.config.getoption("--gradient-examples") > 20
    if not everything and case.name not in COMPILED:
        pytest.skip("compiled with --gradient-examples above 20")

    @h.drawing(7, 3)
    def run(data: st.DataObject) -> None:
        operands, attrs = in_float64(*case.draw(data.draw))
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        dtype = np.dtype(data.draw(st.sampled_from((np.float32, np.float32, ml_dtypes.bfloat16, np.float16))))
        operands, attrs = of_dtype(smooth(case.name, operands, generator), attrs, dtype)
        out, many = results(case.name, operands, attrs)
        cots = [generator.standard_normal(o.shape).astype(o.dtype) for o in out]
        given_: Operand = tuple(cots) if many else cots[0]
        for n, x in enumerate(flat(operands)):
            if x.dtype != dtype:
                continue
            name = f"{case.name}.vjp{n}"
            wanted = h.apply(name, *operands, given_, **attrs)
            whole = (*operands, given_)
            symbolic = case.symbolic and data.draw(st.booleans())
            try:
                run_ = relay.compile(program(name, whole, attrs, symbolic), cache_dir=cache)
            except ShapeError:
                if symbolic:  # an attribute tells a size that a variable leaves open
                    continue
                raise
            h.close(np.asarray(run_(*flat(whole))), wanted, TOLERANCE)

    run()


# Products large enough for the matrix kernels, with a size that the program leaves open and one of that size to run it with.
PRODUCTS: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "nn.dense(%a, %b)": ("n, 48", (9, 48), (40, 48)),
    "nn.matmul(%a, %b)": ("n, 48", (9, 48), (48, 40)),
    "nn.batch_matmul(%a, %b)": ("3, n, 32", (3, 9, 32), (3, 24, 32)),
    "nn.conv2d(%a, %b)": ("1, 16, n, 14", (1, 16, 9, 14), (32, 16, 3, 3)),
    "nn.conv2d(%a, %b, strides=(2, 2))": ("1, 16, n, 14", (1, 16, 9, 14), (32, 16, 3, 3)),
    "nn.conv2d(%a, %b, strides=(2, 2), padding=(1, 1))": ("2, 16, n, n", (2, 16, 9, 9), (32, 16, 3, 3)),
    "nn.conv2d(%a, %b, dilation=(2, 1))": ("n, 16, 9, 14", (2, 16, 9, 14), (32, 16, 3, 3)),
}


@pytest.mark.parametrize("call", PRODUCTS)
def test_compiled_second_derivatives_of_products(call: str, cache: Path) -> None:
    """By one operand, then by either, of any size: what the derivatives' own products are of is not all known."""
    shape, left, right = PRODUCTS[call]
    text = f"def @main[n: Dim](%a: Tensor[({shape}), float32], %b: Tensor[{right}, float32]) {{ tanh({call}) }}"
    first = relay.grad(relay.parse(f'#[version = "0.0.5"]\n{text}'), argnums=1)
    generator = np.random.default_rng(4)
    a, b = (generator.standard_normal(s).astype(np.float32) / 5 for s in (left, right))
    for by, x in enumerate((a, b)):
        second = relay.jvp(first, argnums=by)
        tangent = generator.standard_normal(x.shape).astype(np.float32)
        got, wanted = relay.compile(second, cache_dir=cache)(a, b, tangent), relay.evaluate(second, a, b, tangent)
        assert isinstance(got, tuple) and isinstance(wanted, tuple)
        for g, w in zip(got, wanted, strict=True):
            h.close(np.asarray(g), np.asarray(w), TOLERANCE)


def test_derivatives_in_a_program() -> None:
    """Calls of derived operators parse, print, are typed for any size and run."""
    text = """#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(3, 4), float32], %g: Tensor[(n, 3), float32]) {
      (nn.dense.vjp1(%x, %w, %g), split.vjp0(%x, (%x,), indices_or_sections=1, axis=0))
    }"""
    module = relay.parse(text)
    again = relay.parse(module.text())
    generator = np.random.default_rng(0)
    x, w, g = (generator.standard_normal(s).astype(np.float32) for s in ((5, 4), (3, 4), (5, 3)))
    for program_ in (module, again):
        result = relay.evaluate(program_, x, w, g)
        assert isinstance(result, tuple)
        found = [np.asarray(y) for y in result]
        np.testing.assert_allclose(found[0], g.T @ x, rtol=1e-5)
        np.testing.assert_array_equal(found[1], x)


def test_unknown_derivatives() -> None:
    for name in ("nn.dense.vjp2", "nn.dense.vjp", "no.such.vjp0", "zeros.vjp0"):
        with pytest.raises(OperatorError):
            registry.get(name)
