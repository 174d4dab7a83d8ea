"""The text of kernels: readable, the same for equal structure, different for different structure."""

from __future__ import annotations

from relay.ir.dim import DimVar, as_var, dim_evaluate, dim_var
from relay.loop.ir import Alloc, Branch, Buffer, Fail, For, Kernel, LetScalar, LoopKind, Seq, Store, Switch
from relay.loop.printer import kernel_text, stmt_text
from relay.loop.workspace import workspace_bytes
from relay.te.scalar import Axis, Cast, Compare, Const, Load, Scalar, Select, Size, Unary


def build(kind: LoopKind = "vectorized", constant: float = 0.0, lo: int = 0) -> Kernel:
    m, n = dim_var("n", lo), dim_var("n")
    first, second = as_var(m), as_var(n)
    assert isinstance(first, DimVar) and isinstance(second, DimVar)
    x, y = Buffer("x", (m, n), "float32"), Buffer("y", (m,), "float32")
    acc, row = Buffer("acc", (), "float32", "register"), Buffer("x", (n,), "int4", "worker")
    i, j, t = Axis("i", m), Axis("i", n), Axis("t", 1, "float32")
    value = Load(acc, (), "float32") + Load(x, (i, j), "float32")
    square = Unary("exp", t, "float32") * 2.0
    last = Store(y, (i,), Select(Compare("lt", i, Size(m)), square, square + square, "float32"))
    body = Seq((
        Store(acc, (), Const(constant, "float32")),
        For(j, Size(n), Seq((Store(acc, (), value), Store(row, (j,), Cast(j, "int4")))), kind),
        LetScalar(t, Load(acc, (), "float32"), last),
        Switch(i % 3, (Fail(1), Branch(Compare("eq", i, Const(7, "int64")), Fail(2), Fail(3)))),
    ))  # fmt: skip
    whole = For(i, Size(m), Alloc(row, Alloc(acc, body)), "parallel", 4)
    kernel = Kernel("rows", (x,), (y,), (first, second), whole)
    shared, worker = workspace_bytes(kernel)
    return Kernel("rows", (x,), (y,), (first, second), whole, (), shared, worker)


EXPECTED = """\
kernel rows(x: float32[n, n.1]) -> (y: float32[n]) for n, n.1 \
workspace 0 + workers * 64*((((4*n.1 + 7) // (8)) + 63) // (64))
  parallel i < n grain 4
    alloc x.1: int4[n.1] in worker
      alloc acc: float32[] in register
        acc[] = 0.0
        vectorized i.1 < n.1
          acc[] = acc[] + x[i, i.1]
          x.1[i.1] = int4(i.1)
        let t: float32 = acc[]
        t1 := (exp(t) * 2.0)
        y[i] = select(i < n, t1, t1 + t1)
        switch i % 3
          case 0
            fail 1
          case 1
            if i == 7
              fail 2
            else
              fail 3
"""


def test_text() -> None:
    assert kernel_text(build()) == EXPECTED


def test_equal_text_means_equal_structure() -> None:
    assert kernel_text(build()) == kernel_text(build())
    different = {kernel_text(k) for k in (build(), build("serial"), build(constant=-0.0), build(lo=1))}
    assert len(different) == 4


def test_shared_expressions_are_printed_once() -> None:
    """A graph of 200 levels that double would be 2**200 long as a tree."""
    x, y = Buffer("x", (1,), "float32"), Buffer("y", (1,), "float32")
    value: Scalar = Load(x, (Const(0, "int64"),), "float32")
    for _ in range(200):
        value = value + value
    text = stmt_text(Store(y, (Const(0, "int64"),), value))
    assert len(text.splitlines()) == 201


def test_workspace_layout() -> None:
    """Inner allocations come after outer ones; those that follow each other share their place."""
    n = dim_var("n")

    def buffer(count: int) -> Buffer:
        return Buffer("b", (n, count), "float32", "worker")

    siblings = Seq((Alloc(buffer(2), Seq(())), Alloc(buffer(5), Seq(()))))
    kernel = Kernel("k", (), (), (), Alloc(buffer(1), siblings))
    shared, worker = workspace_bytes(kernel)
    assert shared == 0
    variable = as_var(n)
    assert variable is not None
    assert [dim_evaluate(worker, {variable: size}) for size in (0, 1, 16, 17)] == [0, 128, 64 + 320, 128 + 384]
