"""The elementary functions against a wider computation, in units in the last place, vector and scalar code alike."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from relay.codegen import odd_tables, polynomials
from relay.codegen.target import host_target, parse_target
from relay.ir.dim import as_var, dim_var
from relay.loop.ir import Alloc, Buffer, For, Kernel, Seq, Store
from relay.te.scalar import Axis, Binary, BinaryOp, Const, Load, Size, Unary, UnaryOp, compare, select
from tests.codegen.native import Native

Array = np.ndarray[Any, Any]
N = dim_var("n")
VAR = as_var(N)
assert VAR is not None

# The documented bounds (relay.codegen.elementary), float32 and float64.
BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (2, 2), "exp2": (2, 2), "sigmoid": (2, 4), "log": (2, 2), "log2": (2, 2), "log10": (2, 2), "log1p": (2, 2),
    "expm1": (2, 4), "tanh": (2, 4), "sinh": (3, 4), "cosh": (2, 4), "sin": (2, 3), "cos": (2, 3), "tan": (2, 4),
    "asin": (3, 4), "acos": (3, 4), "atan": (3, 4), "erf": (2, 4), "sqrt": (0.51, 0.51), "rsqrt": (2, 2),
}  # fmt: skip


@cache
def unary_kernel(op: UnaryOp, dtype: str, kind: str, target: str) -> Native:
    x, y, i = Buffer("x", (N,), dtype), Buffer("y", (N,), dtype), Axis("i", N)
    body = Store(y, (i,), Unary(op, Load(x, (i,), dtype), dtype))
    return Native(Kernel(f"{op}_{dtype}", (x,), (y,), (VAR,), For(i, Size(N), body, kind)), parse_target(target))  # type: ignore[arg-type]


def run_unary(op: UnaryOp, values: Array, kind: str = "vectorized", target: str = "cpu") -> Array:
    out = np.zeros_like(values)
    assert VAR is not None
    assert unary_kernel(op, str(values.dtype), kind, target)([values, out], {VAR: len(values)}) == 0
    return out


def reference(op: str) -> Callable[[Array], Array]:
    """The function in extended precision."""
    match op:
        case "erf":
            return lambda x: np.array([math.erf(v) for v in x.astype(np.float64)], np.longdouble)
        case "sigmoid":
            return lambda x: np.longdouble(1) / (1 + np.exp(-x))
        case "rsqrt":
            return lambda x: np.longdouble(1) / np.sqrt(x)
        case "asin" | "acos" | "atan":
            return getattr(np, "arc" + op[1:])  # type: ignore[no-any-return]
        case _:
            return getattr(np, op)  # type: ignore[no-any-return]


def sample(op: str, dtype: str) -> Array:
    """Values over the whole domain, dense where the function turns, with all the special ones."""
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    info = np.finfo(kind)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, math.inf, -math.inf, math.nan, float(info.max), float(info.tiny)]
    special += [
        float(info.smallest_subnormal),
        -float(info.smallest_subnormal),
        float(info.tiny) * 0.37,
        1 + float(info.eps),
    ]
    small = rng.uniform(-1.2, 1.2, 6000)
    mid = rng.uniform(-12, 12, 6000)
    spread = np.exp(rng.uniform(np.log(float(info.tiny)), np.log(float(info.max)) - 1, 6000)) * rng.choice(
        [-1, 1], 6000
    )
    wide = rng.uniform(-750, 750, 6000) if dtype == "float64" else rng.uniform(-110, 110, 6000)
    parts = [np.array(special), small, mid, wide, spread]
    if op in ("sin", "cos", "tan"):
        for limit in (1e6, 3e13):
            parts += [rng.uniform(-limit, limit, 6000), np.exp(rng.uniform(0, np.log(limit), 6000))]
        parts.append(np.arange(-300, 300) * (math.pi / 2))
    return np.concatenate(parts).astype(kind)


def ulps(got: Array, want: Array) -> Array:
    """The error of results in units in the last place of their dtype; wrong specials are infinite."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), info.tiny).astype(got.dtype)).astype(np.longdouble)
        error = np.abs(got.astype(np.longdouble) - want) / unit
        edge = np.isinf(rounded) | np.isinf(got)
        fine = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        # A result next to overflow may round either way.
        near = edge & (np.abs(want) > info.max * (1 - 8 * info.eps)) & (np.abs(got) >= info.max * (1 - 8 * info.eps))
        return np.where(fine | near, 0, np.where(edge | np.isnan(got) | np.isnan(rounded), np.inf, error))


# Functions that are looked up in tables elsewhere are quotients on machines without AVX-512, and a little further off.
HAS_TABLES = host_target().vector_bits == 512
with_tables = pytest.mark.skipif(not HAS_TABLES, reason="bounds of machines that look up tables in registers")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", sorted(BOUNDS))
def test_error_bounds(op: UnaryOp, dtype: str) -> None:
    x = sample(op, dtype)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = reference(op)(x.astype(np.longdouble))
    got = run_unary(op, x)
    error = ulps(got, want)
    worst = int(np.argmax(error))
    bound = BOUNDS[op][dtype == "float64"] + (dtype == "float32" and not HAS_TABLES)
    assert error[worst] <= bound, f"{op}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}: {error[worst]:.2f} ulp"
    assert np.array_equal(run_unary(op, x[:1003], "serial"), got[:1003], equal_nan=True)


# The worst over all 2**32 numbers with AVX-512, rounded up.
@with_tables
@pytest.mark.parametrize(
    ("op", "bound"),
    [
        ("exp", 1.1), ("expm1", 1.8), ("log", 1.1), ("log1p", 0.9), ("log2", 1.2), ("log10", 1.1), ("sigmoid", 1.5), ("tanh", 1.2),
        ("sinh", 2.5), ("cosh", 1.6), ("erf", 1.16), ("tan", 1.2), ("asin", 2.0), ("acos", 1.3), ("atan", 2.0), ("rsqrt", 1.1),
        ("sin", 1.9), ("cos", 1.9),
    ],
)  # fmt: skip
def test_all_exponents(op: UnaryOp, bound: float) -> None:
    """A sample of every stretch of bit patterns; `benchmarks/elementary.py` looks at all of them."""
    x = np.arange(0, 1 << 32, 16381, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        want = reference(op)(x.astype(np.float64)).astype(np.longdouble)
    error = ulps(run_unary(op, x), want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{op}({x[worst]!r}): {error[worst]:.3f} ulp"


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "cpu"])
@pytest.mark.parametrize("op", ["exp", "exp2", "sigmoid"])
def test_where_exponentials_end(op: UnaryOp, target: str) -> None:
    """Around the first normal and the first subnormal result, and far beyond both, to infinity."""
    for dtype, edges in (
        ("float32", (-87.3, -104.0, -126.0, -150.0, 88.7, 128.0)),
        ("float64", (-708.0, -746.0, -1075.0)),
    ):
        near = np.array(edges)[:, None] + np.linspace(-2, 2, 2001)
        far = -np.exp(np.linspace(0, math.log(float(np.finfo(dtype).max)) - 1, 500))
        x = np.concatenate([near.ravel(), far, -far, [math.inf, -math.inf, math.nan]]).astype(dtype)
        with np.errstate(all="ignore"):
            want = reference(op)(x.astype(np.longdouble))
        assert ulps(run_unary(op, x, target=target), want).max() <= BOUNDS[op][dtype == "float64"] + 1


@with_tables
@pytest.mark.parametrize("target", ["x86-64-v4", "cpu"])
def test_square_roots_are_exact(target: str) -> None:
    """Made from an approximation too: of every stretch of bit patterns, of squares and their neighbours, of few elements."""
    assert parse_target("x86-64-v4").outruns_caches
    squares = np.square(np.arange(1, 4097, dtype=np.float32)).view(np.uint32)
    patterns = [np.arange(0, 1 << 32, 16381, dtype=np.uint64).astype(np.uint32), squares - 1, squares, squares + 1]
    x = np.concatenate(patterns).view(np.float32)
    with np.errstate(all="ignore"):
        want = np.sqrt(x)
    got = run_unary("sqrt", x, target=target)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])
    assert np.array_equal(run_unary("sqrt", x[:7], "serial", target=target), want[:7], equal_nan=True)


@pytest.mark.parametrize(
    ("op", "table", "target"),
    [
        pytest.param("erf", odd_tables.ERF_16, "cpu", marks=with_tables),
        pytest.param("tanh", odd_tables.TANH_16, "cpu", marks=with_tables),
        ("erf", odd_tables.ERF_8, "x86-64-v3"),
        ("tanh", odd_tables.TANH_8, "x86-64-v3"),
    ],
)
def test_where_pieces_meet(op: UnaryOp, table: odd_tables.OddTable, target: str) -> None:
    """Every number near the edge of a piece, which the sum that numbers the pieces may round over it."""
    octaves = np.ldexp(1 + np.arange(1 << table.bits) / (1 << table.bits), np.arange(-4, 5)[:, None]).ravel()
    edges = (octaves - table.bias)[octaves > table.bias] / table.scale
    near = np.append(edges, table.limit).astype(np.float32).view(np.int32)[:, None] + np.arange(-64, 65, dtype=np.int32)
    x = near.ravel().view(np.float32)
    x = np.concatenate([x, -x])
    want = reference(op)(x.astype(np.float64)).astype(np.longdouble)
    assert ulps(run_unary(op, x, target=target), want).max() <= 1.2
    assert np.array_equal(run_unary(op, x[:5], "serial", target=target), run_unary(op, x, target=target)[:5])


@pytest.mark.parametrize(("op", "far"), [("erf", polynomials.ERF_FAR), ("tanh", polynomials.TANH_FAR)])
def test_where_both_forms_meet(op: UnaryOp, far: tuple[float, float]) -> None:
    """Without tables: every number near the bound between both forms, and near that from which on all is 1."""
    near = np.array(far, np.float32).view(np.int32)[:, None] + np.arange(-4096, 4097, dtype=np.int32)
    x = near.ravel().view(np.float32)
    x = np.concatenate([x, -x, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])
    want = reference(op)(x.astype(np.float64)).astype(np.longdouble)
    got = run_unary(op, x, target="x86-64")
    assert ulps(got[:-1], want[:-1]).max() <= 1.3  # products are rounded there
    assert np.isnan(got[-1]) and np.array_equal(np.signbit(got[:-1]), np.signbit(x[:-1]))
    assert np.array_equal(run_unary(op, x[:5], "serial", target="x86-64"), got[:5])


@pytest.mark.parametrize("op", ["exp", "exp2", "sigmoid"])
@pytest.mark.parametrize(("dtype", "rare"), [("float32", -90.0), ("float32", -103.0), ("float64", -740.0)])
def test_no_lane_depends_on_those_beside_it(op: UnaryOp, dtype: str, rare: float) -> None:
    """A vector with a number that needs more goes by a branch, and its others come out as they do without it."""
    x = np.random.default_rng(3).standard_normal(4096).astype(dtype)
    with_rare = x.copy()
    with_rare[::5] = rare * 1.44 if op == "exp2" else rare  # the result is subnormal
    usual, beside = (run_unary(op, v, target="x86-64-v3") for v in (x, with_rare))
    kept = np.arange(len(x)) % 5 != 0
    assert np.array_equal(usual[kept], beside[kept])
    assert (beside[~kept] > 0).all() and (beside[~kept] < np.finfo(dtype).tiny).all()


@pytest.mark.parametrize("target", ["x86-64-v3", "cpu"])
@pytest.mark.parametrize(
    ("op", "bound"),
    [
        ("exp", 1.2),
        ("exp2", 1.6),
        ("log", 1.6),
        ("log2", 1.7),
        ("log10", 1.6),
        ("sigmoid", 2.6),
        ("erf", 1.2),
        ("tanh", 1.2),
    ],
)
def test_all_exponents_with_shorter_vectors(op: UnaryOp, bound: float, target: str) -> None:
    """What is rare for a vector (subnormal results, numbers that are not positive) among what is usual, and alone."""
    patterns = np.arange(0, 1 << 32, 65521, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([patterns, np.random.default_rng(2).permutation(patterns)]).view(np.float32)
    with np.errstate(all="ignore"):
        want = reference(op)(x.astype(np.float64)).astype(np.longdouble)
    error = ulps(run_unary(op, x, target=target), want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{op}({x[worst]!r}): {error[worst]:.3f} ulp"


@with_tables
@pytest.mark.parametrize("op", ["log", "log2", "log10"])
def test_where_pieces_of_mantissas_meet(op: UnaryOp) -> None:
    """Every number near the edge of a piece, in a few octaves; subnormal numbers have pieces too."""
    edges = np.ldexp(1 + np.arange(16) / 16, np.array([-149, -140, -127, -126, -2, -1, 0, 1, 127])[:, None]).ravel()
    near = edges.astype(np.float32).view(np.int32)[:, None] + np.arange(-64, 65, dtype=np.int32)
    x = near[near > 0].view(np.float32)
    want = reference(op)(x.astype(np.float64)).astype(np.longdouble)
    assert ulps(run_unary(op, x), want).max() <= 1.2


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sin", "expm1", "log10"])
def test_other_levels(op: UnaryOp, target: str) -> None:
    """Without fused multiply-add the bounds are one wider."""
    for dtype in ("float32", "float64"):
        x = sample(op, dtype)
        with np.errstate(all="ignore"):
            want = reference(op)(x.astype(np.longdouble))
        assert ulps(run_unary(op, x, target=target), want).max() <= BOUNDS[op][dtype == "float64"] + 1


@pytest.mark.parametrize("op", ["exp", "erf", "sigmoid", "tanh", "log", "log2", "log10", "rsqrt"])
def test_narrow_vectors_of_a_wide_machine(op: UnaryOp) -> None:
    """What whole vectors are looked up by is not used where they are not to be as wide."""
    if "avx512f" not in parse_target("cpu").features:
        pytest.skip("needs AVX-512")
    x = sample(op, "float32")
    i = Axis("i", N)
    source, out = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32")
    body = For(i, Size(N), Store(out, (i,), Unary(op, Load(source, (i,), "float32"), "float32")), "vectorized")
    kernel = Kernel(op, (source,), (out,), (VAR,), body)  # type: ignore[arg-type]
    got = np.zeros_like(x)
    assert VAR is not None
    assert Native(kernel, replace(parse_target("x86-64-v4"), vector_bits=256))([x, got], {VAR: len(x)}) == 0
    with np.errstate(all="ignore"):
        assert ulps(got, reference(op)(x.astype(np.longdouble))).max() <= BOUNDS[op][0] + 1


@pytest.mark.parametrize("op", ["floor", "ceil", "round", "trunc", "neg", "abs", "sign"])
@pytest.mark.parametrize("target", ["cpu", "x86-64"])
def test_exact_functions(op: UnaryOp, target: str) -> None:
    for dtype in ("float32", "float64"):
        x = np.concatenate(
            [sample("exp", dtype), np.array([0.5, 1.5, 2.5, -0.5, -1.5, 8388609.0, 4503599627370497.0], dtype)]
        )
        name = {"round": "rint", "neg": "negative"}.get(op, op)
        want = getattr(np, name)(x)
        assert np.array_equal(run_unary(op, x, target=target), want, equal_nan=True)


def run_binary(op: BinaryOp, a: Array, b: Array, target: str) -> Array:
    dtype = str(a.dtype)
    x, y, z = (Buffer(name, (N,), dtype) for name in "xyz")
    i = Axis("i", N)
    body = Store(z, (i,), Binary(op, Load(x, (i,), dtype), Load(y, (i,), dtype), dtype))
    assert VAR is not None
    out = np.zeros_like(a)
    kernel = Kernel(op, (x, y), (z,), (VAR,), For(i, Size(N), body, "vectorized"))
    assert Native(kernel, parse_target(target))([a, b, out], {VAR: len(a)}) == 0
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["pow", "atan2", "mod", "truncmod", "floordiv", "max", "min"])
@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "x86-64"])
def test_binary_functions(op: BinaryOp, dtype: str, target: str) -> None:
    rng = np.random.default_rng(3)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e30, -7.25]
    pairs = np.array([(p, q) for p in special for q in special])
    near = 1 + rng.uniform(-1, 1, 4000) * 10 ** rng.uniform(-6, -1, 4000)
    a = np.concatenate([pairs[:, 0], rng.uniform(-20, 20, 4000), np.exp(rng.uniform(-30, 30, 4000)), near]).astype(
        dtype
    )
    whole, large = rng.integers(-9, 9, 2000), rng.uniform(-80, 80, 4000) / np.log(near)
    b = np.concatenate([pairs[:, 1], rng.uniform(-9, 9, 2000), whole, rng.uniform(-20, 20, 4000), large]).astype(dtype)
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.longdouble), b.astype(np.longdouble)
        functions = {
            "pow": np.power,
            "atan2": np.arctan2,
            "mod": np.mod,
            "truncmod": np.fmod,
            "max": np.maximum,
            "min": np.minimum,
        }
        want = np.floor_divide(a, b) if op == "floordiv" else functions[op](wide_a, wide_b)
    bound = {"pow": 1.0 if dtype == "float32" else 16.0, "atan2": 4.0}.get(op, 0.51)
    got = run_binary(op, a, b, target)
    error = ulps(got, want.astype(np.longdouble))
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{op}({a[worst]!r}, {b[worst]!r}) = {got[worst]!r}, not {want[worst]!r}: {error[worst]}"
    )


def every_exponent(dtype: str, seed: int) -> Array:
    """Of every binade, the subnormal one included, and of both signs: the power of two, its neighbours, random mantissas; with
    zeros, infinities and nan."""
    integers, mantissa, exponent = (np.uint32, 23, 8) if dtype == "float32" else (np.uint64, 52, 11)
    rng = np.random.default_rng(seed)
    binades = np.arange(1 << exponent, dtype=np.uint64)[:, None] << np.uint64(mantissa)
    low = np.array([0, 1, (1 << mantissa) - 1], np.uint64)
    random = rng.integers(0, 1 << mantissa, (1 << exponent, 2), dtype=np.uint64)
    bits = np.concatenate([(binades | low).ravel(), (binades | random).ravel()])
    signed = np.concatenate([bits, bits | np.uint64(1 << (mantissa + exponent))])
    return signed.astype(integers).view(dtype)


TARGETS = ["cpu", "x86-64-v3", "x86-64"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_turns_of_every_exponent(op: UnaryOp, dtype: str, target: str) -> None:
    """Huge numbers alone in a vector, all of a vector, and one at a time; infinities and nan have no angle."""
    x = every_exponent(dtype, 5)
    x = np.concatenate([x, np.random.default_rng(6).permutation(x)])
    with np.errstate(all="ignore"):
        want = getattr(np, op)(x.astype(np.float64 if dtype == "float32" else np.longdouble)).astype(np.longdouble)
    got = run_unary(op, x, target=target)
    error = ulps(got, want)
    worst = int(np.argmax(error))
    bound = BOUNDS[op][dtype == "float64"] + (target == "x86-64")
    assert error[worst] <= bound, f"{op}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}: {error[worst]:.2f} ulp"
    assert np.isnan(got[~np.isfinite(x)]).all()
    assert np.array_equal(run_unary(op, x[::7].copy(), "serial", target), got[::7], equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["mod", "truncmod", "floordiv"])
def test_remainders_of_every_exponent(op: BinaryOp, dtype: str, target: str) -> None:
    """Bit for bit NumPy's, whatever the exponents; quotients of hundreds of bits, infinities, zeros and their signs."""
    rng = np.random.default_rng(8)
    x, y = every_exponent(dtype, 1), every_exponent(dtype, 2)
    near = np.tile(rng.uniform(-9, 9, 4000).astype(dtype), 2)
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, math.inf, -math.inf, math.nan], dtype)
    first, second = (v.ravel() for v in np.meshgrid(special, special))
    a = np.concatenate([*(rng.permutation(x) for _ in range(8)), x, 17 * near, np.rint(99 * near), first])
    b = np.concatenate([*(rng.permutation(y) for _ in range(8)), np.roll(x, 40), near[::-1], np.rint(near), second])
    with np.errstate(all="ignore"):
        want = {"mod": np.mod, "truncmod": np.fmod, "floordiv": np.floor_divide}[op](a, b)
    got = run_binary(op, a, b, target)
    wrong = ~((got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want)))
    at = int(np.argmax(wrong))
    assert not wrong.any(), f"{op}({a[at]!r}, {b[at]!r}) = {got[at]!r}, not {want[at]!r}"


def test_remainders_are_exact() -> None:
    """Against exact fractions."""
    rng = np.random.default_rng(9)
    a, b = np.abs(rng.choice(every_exponent("float64", 3), (2, 3000)))
    keep = np.isfinite(a) & np.isfinite(b) & (b > 0)
    a, b = a[keep], b[keep]
    want = [float(Fraction(p) % Fraction(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    for op in ("mod", "truncmod"):
        assert run_binary(op, a, b, "cpu").tolist() == want


@cache
def extreme_kernel(op: BinaryOp, dtype: str, target: str) -> Native:
    x, y, i = Buffer("x", (N,), dtype), Buffer("y", (1,), dtype), Axis("i", N)
    best, zero = Buffer("best", (1,), dtype, "register"), Const(0, "int64")
    now = Load(best, (zero,), dtype)
    start = Const(-math.inf if op == "max" else math.inf, dtype)
    step = Store(best, (zero,), Binary(op, now, Load(x, (i,), dtype), dtype))
    body = Seq((Store(best, (zero,), start), For(i, Size(N), step, "vectorized"), Store(y, (zero,), now)))
    return Native(Kernel(op, (x,), (y,), (VAR,), Alloc(best, body)), parse_target(target))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["cpu", "x86-64", "x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_vectors(op: BinaryOp, dtype: str, target: str) -> None:
    """Infinities, and a nan in every place: among whole vectors, in the rest, and next to the extreme."""
    assert VAR is not None
    rng = np.random.default_rng(2)
    for size in (1, 7, 16, 35, 150):
        for place in [None, *range(size)]:
            x = rng.choice(np.array([-math.inf, -1.5, -0.0, 0.0, 3.0, math.inf]), size).astype(dtype)
            if place is not None:
                x[place] = math.nan
            got = np.zeros(1, dtype)
            assert extreme_kernel(op, dtype, target)([x, got], {VAR: size}) == 0
            assert np.array_equal(got[0], getattr(np, op)(x), equal_nan=True), f"nan at {place} of {size}"


@pytest.mark.parametrize("target", ["x86-64-v3", "cpu"])
@pytest.mark.parametrize("op", ["erf", "tanh"])
def test_far_from_0_they_are_1(op: UnaryOp, target: str) -> None:
    x = np.concatenate([np.ldexp(1.0, np.arange(4, 128)), np.linspace(9.02, 40, 1001), [np.inf]]).astype(np.float32)
    assert np.array_equal(run_unary(op, np.concatenate([x, -x]), target=target), np.repeat([1.0, -1.0], len(x)))


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "cpu"])
@pytest.mark.parametrize("falls", [True, False])
@pytest.mark.parametrize(
    ("dtype", "least"),
    [
        ("float32", -80.0),
        ("float32", -86.0),
        ("float32", -87.0),
        ("float32", -95.0),
        ("float64", -707.0),
        ("float64", -708.0),
    ],
)
def test_exponentials_from_a_number_on(dtype: str, least: float, falls: bool, target: str) -> None:
    """``select(x < least, 0, exp(x))``, which goes without a branch where half of the exponential of ``least`` is a normal number, and
    ``select(x < least, 0, exp(min(x, 0)))``, where that is one itself."""
    x, y, i = Buffer("x", (N,), dtype), Buffer("y", (N,), dtype), Axis("i", N)
    at, nothing = Load(x, (i,), dtype), Const(0.0, dtype)
    exponent = Binary("min", at, nothing, dtype) if falls else at
    value = select(compare("lt", at, least), nothing, Unary("exp", exponent, dtype))
    loop = For(i, Size(N), Store(y, (i,), value), "vectorized")
    native = Native(Kernel("falls", (x,), (y,), (VAR,), loop), parse_target(target))  # type: ignore[arg-type]
    ends = np.array([least, 88.0 if dtype == "float32" else 709.0], dtype)
    near = (np.linspace(-1.5, 1.5, 1001, dtype=dtype)[:, None] + ends).reshape(-1)
    next_to = np.nextafter(np.array(least, dtype), np.array([-math.inf, 0.0, math.inf], dtype))
    given = np.concatenate([sample("exp", dtype), near, next_to, [least, math.inf, -math.inf, math.nan]]).astype(dtype)
    got = np.zeros_like(given)
    assert VAR is not None and native([given, got], {VAR: len(given)}) == 0
    with np.errstate(all="ignore"):
        wide = np.exp(given.astype(np.longdouble))
        want = np.where(given < least, 0, np.exp(np.minimum(given, 0).astype(np.longdouble)) if falls else wide)
    assert ulps(got, want).max() <= 1.2
