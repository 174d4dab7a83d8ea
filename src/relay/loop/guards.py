"""Indices that are read from memory, asked for before they are used.

    y[i] = x[at[i]]   ->   if at[i] < 0 or at[i] >= n { fail }; y[i] = x[at[i]]

An operator whose author bounds what it reads needs nothing of this; of one that does not, the interpreter says where it reads outside of
a tensor, and a kernel must not read there either. What can be proved to be inside (`relay.loop.bounds`) is not asked for.
"""

from __future__ import annotations

from dataclasses import replace

from relay.loop.bounds import unproved, ways
from relay.loop.errors import INDEX_OUT_OF_BOUNDS
from relay.loop.ir import Branch, Buffer, Fail, Kernel, LetScalar, Seq, Stmt, Store
from relay.loop.walk import expressions, rewritten, statements
from relay.te.scalar import Axis, Load, Scalar, Size, binary, compare, unary, walk, wrap


def guarded(kernel: Kernel) -> Kernel:
    """The kernel that fails where an index read from memory is outside of its buffer; the same object where none can be."""
    if not _is_indirect(kernel):
        return kernel
    open_ = {id(access.index) for access in unproved(kernel, only_read=True)}
    if not open_:
        return kernel
    return replace(kernel, body=rewritten(kernel.body, lambda stmt: _checked(stmt, open_)))


def _is_indirect(kernel: Kernel) -> bool:
    """Whether an index depends on what stands in memory."""
    read: set[Axis] = set()

    def depends(root: Scalar) -> bool:
        return any(isinstance(n, Load) or (isinstance(n, Axis) and n in read) for n in walk(root))

    for stmt in statements(kernel.body):
        if isinstance(stmt, LetScalar) and depends(stmt.value):
            read.add(stmt.var)
        for expr in expressions(stmt):
            if any(isinstance(n, Load) and any(map(depends, n.indices)) for n in walk(expr)):
                return True
    return False


def _checked(stmt: Stmt, open_: set[int]) -> Stmt:
    checks: list[tuple[int, int, Stmt]] = []
    if isinstance(stmt, Store | LetScalar):
        for expr in expressions(stmt):
            order = {id(n): at for at, n in enumerate(walk(expr))}
            suspects = {id(n) for n in walk(expr) if isinstance(n, Load) and any(id(i) in open_ for i in n.indices)}
            for load, conditions in ways(expr, suspects):
                assert isinstance(load.source, Buffer)
                outside: Scalar | None = None
                for index, size in zip(load.indices, load.source.shape, strict=True):
                    if id(index) in open_:
                        extent = wrap(size, "int64") if isinstance(size, int) else Size(size)
                        one = binary("or", compare("lt", index, 0), compare("ge", index, extent))
                        outside = one if outside is None else binary("or", outside, one)
                assert outside is not None
                check: Stmt = Branch(outside, Fail(INDEX_OUT_OF_BOUNDS))
                for cond, truth in reversed(conditions):
                    check = Branch(cond if truth else unary("not", cond), check)
                # A check reads itself: before it stand those of its conditions, and of what is read for its index.
                checks.append((len(conditions), order[id(load)], check))
    return Seq((*(check for _, _, check in sorted(checks, key=lambda c: c[:2])), stmt)) if checks else stmt
