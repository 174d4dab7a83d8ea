"""Apply an operator to arrays, concretely and with symbolic sizes, and compare with an independent computation.

A `Case` says how to draw operands and attributes of one operator and what NumPy makes of them. The symbolic run has one dim
variable per size, so equal sizes agree and the definition may use that and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from relay.ir.dim import ANY, Dim, DimVar, as_dim, dim_evaluate
from relay.ir.expr import Call, Constant, Expr, OpRef, Proj, Tuple, Var
from relay.op import registry
from relay.te.evaluate import evaluate

Array = npt.NDArray[Any]
Operand = Array | tuple[Array, ...]
T = TypeVar("T")
Drawn = tuple[Sequence[Operand], Mapping[str, Any]]


class Draw(Protocol):
    """Draws a value of a strategy."""

    def __call__(self, strategy: st.SearchStrategy[T], /) -> T: ...


def drawing(number: int, examples: int) -> Callable[[Callable[[st.DataObject], None]], Callable[[], None]]:
    """Runs a function on that many draws, the same ones every time; ``number`` tells which."""

    def decorate(check: Callable[[st.DataObject], None]) -> Callable[[], None]:
        options = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        run: Callable[[], None] = seed(number)(options(given(data=st.data())(lambda data: check(data))))
        return run

    return decorate


TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Case:
    """``draw`` gives operands and attributes; ``expect`` computes the result (a tuple for several) from them."""

    name: str
    draw: Callable[[Draw], Drawn]
    expect: Callable[..., Any]
    symbolic: bool = True
    tolerance: Mapping[str, float] = field(default_factory=dict)


def _signature(x: Operand, dim_of: Callable[[int], Dim]) -> Any:
    if isinstance(x, tuple):
        return [_signature(e, dim_of) for e in x]
    return (tuple(dim_of(n) for n in x.shape), x.dtype.name)


def _flat(operands: Sequence[Operand]) -> list[Array]:
    return [e for x in operands for e in (x if isinstance(x, tuple) else (x,))]


def _result(traced: registry.Traced, arrays: Sequence[Array], dims: Mapping[DimVar, int]) -> list[Array]:
    for demand in traced.demands:
        left, right = dim_evaluate(demand.left, dims), dim_evaluate(demand.right, dims)
        assert left == right if demand.relation == "==" else left <= right, demand
    results = evaluate(traced.outputs, dict(zip(traced.inputs, arrays, strict=True)), dims)
    for tensor, array in zip(traced.outputs, results, strict=True):
        assert array.shape == tuple(dim_evaluate(d, dims) for d in tensor.shape)
        assert array.dtype.name == tensor.dtype
        assert array.flags.c_contiguous
    return results


def apply(name: str, *operands: Operand, symbolic: bool = False, **attrs: Any) -> Any:
    """The operator's meaning for these operands; a tuple for several results."""
    op = registry.get(name)
    if op.kind == "composition":
        return _composed(op, operands, attrs)
    if op.kind == "routine":
        assert op.reference is not None
        return op.reference(*operands, **op.complete_attrs(attrs))
    variables: dict[int, DimVar] = {}

    def dim_of(n: int) -> Dim:
        return as_dim(variables.setdefault(n, DimVar(f"n{n}"))) if symbolic and n > 1 else n

    arrays = _flat(operands)
    signature = [_signature(x, dim_of) for x in operands]
    out_shape: tuple[Dim, ...] | None = None
    dims = {v: n for n, v in variables.items()}
    if op.shape_mode == "data":
        assert op.result_shape is not None
        shape_function = registry.Operator(name, "expression", op.inputs, op.attrs, op.result_shape)
        out_shape = tuple(int(n) for n in _result(registry.trace(shape_function, signature, attrs), arrays, dims)[0])
        # The result's type has this rank and unknown sizes.
        typed = registry.trace(op, signature, attrs, out_shape=(ANY,) * len(out_shape))
        assert len(typed.outputs[0].shape) == len(out_shape)
    traced = registry.trace(op, signature, attrs, out_shape=out_shape)
    results = _result(traced, arrays, dims)
    if op.shape_mode == "upper_bound":
        extents = results.pop()
        results = [r[:n] for r, n in zip(results, extents, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)
    return tuple(results) if traced.is_tuple else results[0]


def _composed(op: registry.Operator, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> Any:
    env: dict[int, Any] = {}
    variables: list[Var] = []
    for spec, x in zip(op.inputs, operands, strict=False):
        variables.append(Var(spec.name))
        env[id(variables[-1])] = x

    return value(op.define(*variables, **op.complete_attrs(attrs)), env)


def value(e: Expr, env: Mapping[int, Any]) -> Any:
    """The value of a small program of operator calls, for values of its variables by identity."""
    match e:
        case Var():
            return env[id(e)]
        case Constant():
            return e.data
        case Tuple():
            return tuple(value(f, env) for f in e.fields)
        case Proj():
            return value(e.tuple, env)[e.index]
        case Call(fn=OpRef(name=name)):
            return apply(name, *(value(a, env) for a in e.args), **dict[str, Any](e.attrs))
        case _:
            raise AssertionError(f"a composition holds {e}")


def check(case: Case, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> None:
    """The operator, concretely and symbolically, gives what the case expects."""
    with np.errstate(all="ignore"):
        wanted = case.expect(*operands, **attrs)
    for symbolic in (False, True) if case.symbolic else (False,):
        got = apply(case.name, *operands, symbolic=symbolic, **dict[str, Any](attrs))
        assert isinstance(got, tuple) == isinstance(wanted, tuple)
        for g, w in zip(_flat([got]), _flat([wanted]), strict=True):
            close(g, np.asarray(w), case.tolerance)


def close(got: Array, wanted: Array, tolerance: Mapping[str, float] | None = None) -> None:
    """Equal shapes and dtypes, and values within the dtype's rounding."""
    assert got.shape == wanted.shape, f"shape {got.shape} instead of {wanted.shape}"
    assert got.dtype == wanted.dtype, f"dtype {got.dtype} instead of {wanted.dtype}"
    name = got.dtype.name
    if name in TOLERANCE:
        bound = {**TOLERANCE, **(tolerance or {})}[name]
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(got, wanted)


# -- drawing operands

FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name in ("bfloat16", "int4", "uint4"):
        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def dtype(draw: Draw, among: Sequence[str]) -> str:
    return draw(st.sampled_from(list(among)))


def shape(draw: Draw, low: int = 0, high: int = 3, least: int = 0, most: int = 5) -> tuple[int, ...]:
    rank = draw(st.integers(low, high))
    return tuple(draw(st.integers(least, most)) for _ in range(rank))


def array(draw: Draw, of: Sequence[int], kind: str, low: float = -4.0, high: float = 4.0) -> Array:
    """Values in ``[low, high]`` (cut to what the dtype holds), from a drawn seed."""
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, tuple(of)).astype(bool))
    if kind.startswith(("float", "bfloat")):
        return np.asarray(generator.uniform(low, high, tuple(of))).astype(numpy_dtype(kind))
    start = max(int(low), 0) if kind.startswith("u") else int(low)
    return np.asarray(generator.integers(start, int(high) + 1, tuple(of))).astype(numpy_dtype(kind))


def broadcastable(draw: Draw, to: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to another: some leading axes missing, some axes 1."""
    kept = tuple(to)[draw(st.integers(0, len(to))) :]
    return tuple(1 if draw(st.booleans()) else n for n in kept)


def axis(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def axes(draw: Draw, rank: int) -> int | tuple[int, ...] | None:
    """None, one axis, or several distinct ones."""
    if rank == 0 or draw(st.booleans()):
        return None
    if draw(st.booleans()):
        return axis(draw, rank)
    chosen = draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
    return tuple(n - rank if draw(st.booleans()) else n for n in chosen)


def wide(x: Array) -> Array:
    """The 16-bit floats as float32, everything else as it is: what NumPy's functions are tried on."""
    return x.astype(np.float32) if x.dtype.name in ("float16", "bfloat16") else x


def like(x: Array, to: Array) -> Array:
    return np.asarray(x).astype(to.dtype)
