"""Reads that may be outside of their buffers, asked for before they are made.

    y[i] = x[at[i]]   ->   if at[i] < 0 or at[i] >= n { fail }; y[i] = x[at[i]]

An operator whose author bounds what it reads needs nothing of this; of one that does not, the interpreter says where it reads outside of
a tensor, and a kernel must not read there either. What can be proved to be inside (`relay.loop.bounds`) is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from relay.ir.dim import Dim
from relay.loop.bounds import unproved
from relay.loop.errors import INDEX_OUT_OF_BOUNDS
from relay.loop.ir import Branch, Buffer, Fail, Kernel, LetScalar, Seq, Stmt, Store
from relay.loop.walk import expressions, rewritten
from relay.te.scalar import Load, Scalar, Size, binary, compare, unary, walk, wrap
from relay.te.ways import ways


def guarded(kernel: Kernel, assumed: Iterable[Dim], only_read: bool) -> Kernel:
    """The kernel that fails where it would read outside of a buffer (``only_read``: at an index that depends on what stands in memory);
    the same object where it never does. The dims ``assumed`` are known not to be negative."""
    open_ = {id(access.index) for access in unproved(kernel, assumed, only_read)}
    if not open_:
        return kernel
    return replace(kernel, body=rewritten(kernel.body, lambda stmt: _checked(stmt, open_)))


def outside(load: Load, open_: set[int]) -> Scalar:
    """Whether a read is outside of its buffer, at one of the indices of these identities."""
    assert isinstance(load.source, Buffer)
    found: Scalar | None = None
    for index, size in zip(load.indices, load.source.shape, strict=True):
        if id(index) in open_:
            extent = wrap(size, "int64") if isinstance(size, int) else Size(size)
            one = binary("or", compare("lt", index, 0), compare("ge", index, extent))
            found = one if found is None else binary("or", found, one)
    assert found is not None
    return found


def _checked(stmt: Stmt, open_: set[int]) -> Stmt:
    checks: list[tuple[int, int, Stmt]] = []
    if isinstance(stmt, Store | LetScalar):
        for expr in expressions(stmt):
            order = {id(n): at for at, n in enumerate(walk(expr))}
            suspects = {id(n) for n in walk(expr) if isinstance(n, Load) and any(id(i) in open_ for i in n.indices)}
            for load, conditions in ways(expr, suspects):
                check: Stmt = Branch(outside(load, open_), Fail(INDEX_OUT_OF_BOUNDS))
                for cond, truth in reversed(conditions):
                    check = Branch(cond if truth else unary("not", cond), check)
                # A check reads itself: before it stand those of its conditions, and of what is read for its index.
                checks.append((len(conditions), order[id(load)], check))
    return Seq((*(check for _, _, check in sorted(checks, key=lambda c: c[:2])), stmt)) if checks else stmt
