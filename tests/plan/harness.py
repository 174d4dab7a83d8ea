"""Runs planned kernels natively: compiled, loaded into this process and called on NumPy arrays, beside
`te.evaluate`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from relay._runtime import NativeObject
from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.codegen.target import host_target, parse_target, runs_here
from relay.ir.dim import DimVar, dim_evaluate
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, OpRef, Tuple, Var
from relay.ir.types import TensorType, Type
from relay.loop import ir as loop_ir
from relay.loop.evaluate import _State
from relay.loop.ir import (
    Alloc,
    BlockProduct,
    Branch,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Transpose,
)
from relay.loop.target import Target
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.te.evaluate import evaluate

Array = npt.NDArray[np.generic]
WORKERS = 3
# This machine's instructions with the caches of one kind of machine, which has no matrix registers: what can be run here.
_HERE = host_target()
HOST = replace(
    _HERE,
    cpu="znver4",
    features=tuple(name for name in _HERE.features if not name.startswith("amx")),
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
)
# That kind of machine, with all of its instructions: what tests say of plans is the same wherever they run.
_ZEN4 = replace(parse_target("znver4"), l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
ZEN4 = HOST if set(_ZEN4.features) <= set(HOST.features) else _ZEN4

# Calls the body chunk by chunk, as worker 0, 1, 2, 0, ...: each worker has its own slice of the workspace.
_PARALLEL_FOR = """
define i32 @harness_parallel_for(ptr %context, ptr %body, ptr %env, i64 %n, i64 %grain) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %end, %run ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %run, label %done
run:
  %next = add i64 %i, %grain
  %over = icmp sgt i64 %next, %n
  %end = select i1 %over, i64 %n, i64 %next
  %chunk = sdiv i64 %i, %grain
  %worker = srem i64 %chunk, 3
  %code = call i32 %body(ptr %context, ptr %env, i64 %i, i64 %end, i64 %worker)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %fail, label %head
fail:
  ret i32 %code
done:
  ret i32 0
}
"""


class Context(ctypes.Structure):
    _fields_ = (
        ("parallel_for", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("num_workers", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("runtime", ctypes.c_void_p),
        ("turn", ctypes.c_int64),
        ("flush_subnormals", ctypes.c_int64),
    )


@cache
def _runs(target: Target) -> bool:
    return runs_here(target)


@cache
def _parallel_for(target: Target) -> NativeObject:
    return NativeObject(compile_text(_PARALLEL_FOR, target), "the harness")


class Native:
    """A kernel ready to be called."""

    count = 0

    def __init__(self, kernel: Kernel, target: Target) -> None:
        if not _runs(target):
            pytest.skip(f"this machine does not run code for {target.cpu}")
        verify(kernel)
        self.kernel = kernel
        self._parallel_for = _parallel_for(target).address("harness_parallel_for")
        self._object = NativeObject(compile_text(emit(kernel, target), target), kernel.name)
        address = self._object.address(kernel.name)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)

    def bind(self, buffers: Sequence[Array], dims: Mapping[DimVar, int], workers: int = WORKERS) -> tuple[object, ...]:
        """The arguments of a call (kept alive by the caller). ``workers`` is what the kernel is told; chunks go to all."""
        env = dict(dims)
        shared = dim_evaluate(self.kernel.shared_bytes, env)
        worker = dim_evaluate(self.kernel.worker_bytes, env)
        space = np.full(shared + WORKERS * worker + 64, 0xFB, np.uint8)
        base = space.ctypes.data + (-space.ctypes.data) % 64
        context = Context(self._parallel_for, base, workers, None, None)
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        sizes = (ctypes.c_int64 * max(1, len(self.kernel.dims)))(*(env[v] for v in self.kernel.dims))
        return context, pointers, sizes, space, list(buffers)

    def run(self, arguments: tuple[object, ...]) -> int:
        context, pointers, sizes = arguments[0], arguments[1], arguments[2]
        return int(self._call(ctypes.byref(context), pointers, sizes))  # type: ignore[arg-type]


def fresh_name() -> str:
    Native.count += 1
    return f"kernel_{Native.count}"


def tensor(shape: Sequence[object], dtype: str = "float32") -> TensorType:
    return TensorType(tuple(shape), dtype)  # type: ignore[arg-type]


def primitive(params: Sequence[TensorType], build: Callable[..., Expr]) -> Function:
    """A primitive from a function of a `Maker` and its parameters that gives the result."""
    maker = Maker([Var(f"p{n}", None, t) for n, t in enumerate(params)])
    result = build(maker, *maker.params)
    return Function(tuple(maker.params), Block(tuple(maker.bindings), result), attrs={"Primitive": 1})


class Maker:
    def __init__(self, params: list[Var]) -> None:
        self.params = params
        self.bindings: list[Binding] = []

    def __call__(self, op: str, *args: Expr, ty: Type | None = None, **attrs: object) -> Var:
        """Bind a call of an operator; ``ty`` is needed only where the definition needs its result's shape."""
        var = Var(f"t{len(self.bindings)}", None, ty)
        self.bindings.append(Binding(var, Call(OpRef(op), args, attrs, ty=ty)))  # type: ignore[arg-type]
        return var

    def tuple(self, *fields: Expr) -> Tuple:
        return Tuple(fields)

    def constant(self, value: object, dtype: str = "float32") -> Constant:
        return Constant(np.asarray(value, numpy_dtype(dtype)), dtype)


def random(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 5, shape).astype(numpy_dtype(dtype))
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def _packed(array: Array) -> Array:
    """An array as the kernel sees it: elements of four bits are two to a byte, low bits first."""
    if array.dtype.name not in ("int4", "uint4"):
        return array
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    return flat[::2] | (np.append(flat, np.uint8(0))[1::2] << 4)[: (flat.size + 1) // 2]


def check(
    fn: Function,
    *sizes: Mapping[DimVar, int],
    constants: frozenset[int] = frozenset(),
    inputs: Sequence[Array] | Callable[[Mapping[DimVar, int]], Sequence[Array]] | None = None,
    target: Target | None = None,
    tolerance: float = 2e-5,
) -> KernelPlan:
    """Plan and compile a primitive once, for this machine or a ``target``; run it for each assignment of sizes beside the meaning of its
    definition, on ``inputs`` (for the sizes, where that is a function). Gives the plan for the ``target``, or one kind of machine. What
    this machine cannot run is compiled."""
    shown = target or ZEN4
    target = target or HOST
    graph = te_graph(fn)
    plan = make_plan(fn, target, constants, fresh_name())
    if not _runs(target):
        verify(plan.kernel)
        compile_text(emit(plan.kernel, target), target)
        return plan
    native = Native(plan.kernel, target)
    for env in sizes or ({},):
        shapes = [[dim_evaluate(d, env) for d in t.shape] for t in graph.inputs]
        own = inputs(env) if callable(inputs) else inputs
        arrays = list(own or [random(s, t.dtype, n) for n, (s, t) in enumerate(zip(shapes, graph.inputs, strict=True))])
        wanted = evaluate(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)), env)
        given = [_packed(a) for a in (*arrays, *[arrays[0]] * (len(plan.kernel.inputs) - len(arrays)))]
        for pack in plan.packs:
            given[pack.input_index] = _packed(evaluate([pack.packed], {pack.source: arrays[pack.operand]})[0])
        got = [np.full(w.shape, 77).astype(w.dtype) for w in wanted]
        assert native.run(native.bind([*given, *got], env)) == 0
        for g, w in zip(got, wanted, strict=True):
            _compare(g, w, tolerance)
    return plan if shown is target else make_plan(fn, shown, constants, fresh_name())


def _compare(got: Array, wanted: Array, tolerance: float) -> None:
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(got, wanted)
        return
    exact = wanted.astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact))))
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=tolerance, atol=tolerance * scale)


__all__ = ["HOST", "ZEN4", "Maker", "Native", "check", "fresh_name", "primitive", "random", "tensor"]


def asked_for(
    kernel: Kernel, dims: Mapping[DimVar, int] | None = None, *, threads: int = WORKERS, turn: int = 1
) -> list[tuple[Prefetch, tuple[int, ...]]]:
    """What a kernel asks for, in order, and where: it is gone through for that alone, without its arithmetic."""
    state = _Asking(dict(dims or {}))
    state.axes.update({loop_ir.WORKERS: threads, loop_ir.TURN: turn})
    for buffer in (*kernel.inputs, *kernel.outputs):
        shape = tuple(dim_evaluate(d, state.dims) for d in buffer.shape)
        state.arrays[buffer] = np.zeros(shape, numpy_dtype(buffer.dtype))
    state.run(kernel.body)
    return state.asked


def tasks(kernel: Kernel, threads: int, dims: Mapping[DimVar, int] | None = None) -> list[int]:
    """How many chunks the parallel loops have that are reached with so many threads, in order."""
    state = _Sharing(dict(dims or {}))
    state.axes[loop_ir.WORKERS] = threads
    state.run(kernel.body)
    return state.chunks


class _Sharing(_State):
    """Goes up to the parallel loops, which are counted and left out."""

    def __init__(self, dims: dict[DimVar, int]) -> None:
        super().__init__(dims)
        self.chunks: list[int] = []

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case For(kind="parallel"):
                self.chunks.append(-(-int(self.value(stmt.extent)) // stmt.grain))
            case LetScalar():
                self.axes[stmt.var] = self.value(stmt.value)
                self.run(stmt.body)
            case Alloc():
                self.run(stmt.body)
            case Branch():
                if (chosen := stmt.then if self.value(stmt.cond) else stmt.orelse) is not None:
                    self.run(chosen)
            case Seq():
                for part in stmt.stmts:
                    self.run(part)
            case _:
                pass


class _Asking(_State):
    def __init__(self, dims: dict[DimVar, int]) -> None:
        super().__init__(dims)
        self.asked: list[tuple[Prefetch, tuple[int, ...]]] = []
        self.silent: dict[Stmt, bool] = {}

    def run(self, stmt: Stmt) -> None:
        if isinstance(stmt, For):
            if stmt not in self.silent:
                self.silent[stmt] = not any(isinstance(s, Prefetch) for s in statements(stmt))
            if self.silent[stmt]:
                return
        if not isinstance(stmt, Store | Transpose | BlockProduct):
            super().run(stmt)

    def prefetch(self, stmt: Prefetch) -> tuple[int, ...]:
        place = super().prefetch(stmt)
        self.asked.append((stmt, place))
        return place
