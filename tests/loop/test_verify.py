"""Every rule of the loop-nest IR, broken once."""

from __future__ import annotations

import pytest

from relay.ir.dim import ANY, Dim, DimVar, as_var, dim_var
from relay.loop.errors import LoopError
from relay.loop.ir import (
    Alloc,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.loop.verify import verify
from relay.te.scalar import Axis, Binary, Cast, Compare, Const, Load, Reduce, Scalar, Select, Size, Unary

N, M = dim_var("n"), dim_var("m")
X, Y = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32")
Y8, XY = Buffer("y", (N,), "int8"), Buffer("xy", (N, N), "float32")
AT, J = Axis("i", N), Axis("j", N)
ZERO, ONE = Const(0, "int64"), Const(1.0, "float32")
LOAD = Load(X, (AT,), "float32")


def var(dim: Dim) -> DimVar:
    found = as_var(dim)
    assert found is not None
    return found


def kernel(body: Stmt, **changes: object) -> Kernel:
    given: dict[str, object] = {"inputs": (X,), "outputs": (Y,), "dims": (var(N),), "body": body, **changes}
    return Kernel("k", **given)  # type: ignore[arg-type]


def over(body: Stmt, kind: str = "serial", axis: Axis = AT) -> For:
    return For(axis, Size(N), body, kind)  # type: ignore[arg-type]


def store(value: Scalar = LOAD, *indices: Scalar, buffer: Buffer = Y) -> Store:
    return Store(buffer, indices or (AT,), value)


def turn(target: Buffer) -> Transpose:
    return Transpose(target, ZERO, ZERO, X, ZERO, ZERO, ZERO, ZERO)


LEFT, RIGHT = Buffer("left", (N,), "bfloat16"), Buffer("right", (3, 16, 32, 2), "bfloat16")


def product(
    target: Buffer = Y, right: Buffer = RIGHT, rows: Scalar = ZERO, depth: int = 32, at: Scalar = ZERO
) -> Kernel:
    stmt = BlockProduct(target, ZERO, LEFT, at, ZERO, right, (Const(2, "int64"),) * (len(right.shape) - 3), rows, depth)
    return kernel(stmt, inputs=(X, LEFT, right))


def test_sound_kernels() -> None:
    verify(product(rows=Const(32, "int64")))
    verify(kernel(over(store())))
    verify(kernel(over(store(), "parallel"), in_place=((0, 0),)))
    verify(kernel(over(store(), "parallel"), streamed=(0,)))
    t = Axis("t", 1, "float32")
    verify(kernel(over(LetScalar(t, LOAD, store(t)))))
    verify(kernel(over(Seq((Prefetch(X, (Const(1 << 40, "int64"),)), store())), "parallel")))
    verify(kernel(over(Seq((Prefetch(X, (AT,)), store())), "vectorized")))
    # What is never read may be anywhere.
    outside = Load(Buffer("w", (2,), "float32"), (Const(7, "int64"),), "float32")
    given = {"inputs": (X, outside.source)}
    verify(kernel(over(store(outside)), **given))
    verify(kernel(store(Select(Compare("lt", Size(N), ZERO), outside, ONE, "float32"), ZERO), **given))
    verify(kernel(Branch(Compare("lt", Size(N), ZERO), store(outside, ZERO)), **given))
    with pytest.raises(LoopError, match="index 7 of w is outside"):
        verify(kernel(Seq((Branch(Compare("lt", Size(N), ZERO), Seq(())), store(outside, ZERO))), **given))
    # One iteration writes what the others leave alone: the first panel of a product, of a kind of its own.
    verify(kernel(over(Branch(Compare("eq", AT, ZERO), store(ONE, ZERO)), "parallel")))


local = Buffer("acc", (4,), "float32", "register")
BROKEN: dict[str, Kernel] = {
    "used outside of what binds it": kernel(store()),
    "the streamed output 1 does not exist": kernel(over(store()), streamed=(1,)),
    "the streamed output y is read": kernel(over(store(Load(Y, (AT,), "float32"))), streamed=(0,)),
    "bound inside of its own scope": kernel(over(over(store()))),
    "x is written": kernel(over(store(buffer=X))),
    "acc is written outside": kernel(over(store(ONE, ZERO, buffer=local))),
    "acc is read outside": kernel(over(store(Load(local, (ZERO,), "float32")))),
    "rank 1 and is written with 2": kernel(over(store(LOAD, AT, AT))),
    "wrong rank or dtype": kernel(over(store(Load(X, (AT, AT), "float32")))),
    "is written to y, which is float32": kernel(over(store(AT))),
    "an index of y is int32": kernel(over(store(LOAD, Cast(AT, "int32")))),
    "index 4 of acc is outside": kernel(Alloc(local, store(ONE, Const(4, "int64"), buffer=local))),
    "which is no number": kernel(Alloc(Buffer("b", (N,), "float32", "stack"), Seq(()))),
    "more than": kernel(Alloc(Buffer("b", (1 << 20,), "float32", "stack"), Seq(()))),
    "not among the kernel's dims": kernel(over(store(Cast(Size(M), "float32")))),
    "the size `?`": kernel(over(store()), outputs=(Y, Buffer("z", (ANY,), "float32"))),
    "no constant extent": kernel(over(store(), "unrolled")),
    "does not count in int64": kernel(For(AT, Const(3, "int32"), store())),
    "has the grain 0": kernel(For(AT, Size(N), store(), "parallel", 0)),
    "write y at one place": kernel(over(store(ONE, ZERO), "parallel")),
    "allocated in a parallel loop": kernel(
        over(Alloc(Buffer("b", (N,), "int8", "workspace"), store()), "parallel"), shared_bytes=1 << 20
    ),
    "worker_bytes is 0": kernel(over(Alloc(Buffer("b", (N,), "int8", "worker"), store()))),
    "inside of its own": kernel(Alloc(local, Alloc(local, Seq(())))),
    "a branch is on int64": kernel(over(Branch(AT, store()))),
    "a switch is on float32": kernel(over(Switch(LOAD, (store(),)))),
    "error code 0": kernel(Fail(0)),
    "it is a function of floats": kernel(over(store(Cast(Unary("exp", AT, "int64"), "float32")))),
    "gives no float32": kernel(over(store(Unary("isnan", LOAD, "float32")))),
    "add of float32 and int64": kernel(over(store(Binary("add", LOAD, AT, "float32")))),
    "xor of float32": kernel(over(store(Binary("xor", LOAD, LOAD, "float32")))),
    "floordiv of bool": kernel(
        over(Branch(Binary("floordiv", Compare("eq", AT, AT), Compare("eq", AT, AT), "bool"), store()))
    ),
    "comparison of int64 and float32": kernel(over(Branch(Compare("eq", AT, LOAD), store()))),
    "a select of": kernel(over(store(Select(AT, LOAD, LOAD, "float32")))),
    "transposed into y, which is int8": kernel(turn(Y8), outputs=(Y8,)),
    "transposed into x, which is read only": kernel(turn(X)),
    "only flat buffers": kernel(turn(XY), outputs=(XY,)),
    "in the vectorized loop": kernel(over(turn(Y), "vectorized")),
    "iterations of the parallel loop over i write y": kernel(over(turn(Y), "parallel")),
    "a product of blocks is written to x, which is read only": product(X),
    "z is in a product of blocks outside": product(Buffer("z", (N,), "float32")),
    "y has rank 1 and is int8, in a product of blocks 1 and float32": kernel(
        BlockProduct(Y8, ZERO, LEFT, ZERO, ZERO, RIGHT, (ZERO,), ZERO, 32), inputs=(LEFT, RIGHT), outputs=(Y8,)
    ),
    "a product of blocks is 33 deep": product(depth=33),
    "a product of blocks is 64 deep, and right has 16 pairs": product(depth=64),
    "a panel of right has 24 columns": product(right=Buffer("right", (3, 16, 24, 2), "bfloat16")),
    "a product of blocks has 33 rows": product(rows=Const(33, "int64")),
    "is measured in something other than int64": product(at=ONE, rows=Const(1, "int64")),
    "index 2 of right is outside": product(right=Buffer("right", (2, 16, 32, 2), "bfloat16"), rows=Const(1, "int64")),
    "a product of blocks stands in the vectorized loop": kernel(
        over(BlockProduct(Y, ZERO, LEFT, ZERO, ZERO, RIGHT, (ZERO,), Const(1, "int64"), 32), "vectorized"),
        inputs=(LEFT, RIGHT),
    ),
    "transposed outside": kernel(turn(Buffer("z", (N,), "float32"))),
    "prefetched outside": kernel(Prefetch(Buffer("z", (N,), "float32"), (ZERO,))),
    "rank 1 and is prefetched with 2": kernel(Prefetch(X, (ZERO, ZERO))),
    "that is prefetched is not int64": kernel(Prefetch(X, (ONE,))),
    "a reduction stands": kernel(over(store(Reduce("sum", (J,), LOAD, "float32")))),
    "names no operands": kernel(over(store()), in_place=((0, 1),)),
    "a buffer is two operands": kernel(over(store()), outputs=(Y, Y)),
    "a size is given twice": kernel(over(store()), dims=(var(N), var(N))),
    "has the scope stack": kernel(over(store()), outputs=(Y, Buffer("z", (2,), "float32", "stack"))),
    "the variable t is float32 and its value int64": kernel(over(LetScalar(Axis("t", 1, "float32"), AT, store()))),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_kernels(message: str) -> None:
    with pytest.raises(LoopError) as info:
        verify(BROKEN[message])
    assert message in info.value.message
    assert info.value.message.startswith("in the kernel k: ")
