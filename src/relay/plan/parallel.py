"""Loops whose iterations may run on several threads: how many follow each other in a chunk, and how chunks are shared out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import (
    Dim,
    ceil_div,
    dim_min,
    dim_mul,
    shape_size,
)
from relay.loop.ir import WORKERS, Between, Branch, For, LetScalar, Stmt, between
from relay.plan.build import Builder, bound, ceiling
from relay.plan.jammed import jammed
from relay.te.scalar import (
    Axis,
    Const,
    Scalar,
    Size,
    binary,
    compare,
    conjunction,
    extent_of,  # fmt: skip
    maximum,
    minimum,
    select,
)

# Work below this many simple operations is not worth waking another thread for, and is no chunk of its own.
PARALLEL_COST = 32 << 10
# Of a product a thread's share may be less, if there are no more of them: whether that pays on the machine at hand is tried when the kernel
# runs (`runtime/src/region_trials.h`).
LEAST_SHARE = PARALLEL_COST // 4
# A thread may have so many times the iterations of an equal share (numerator and denominator) of so many threads.
_UNEVEN, _THREADS_COUNTED = (17, 16), 8
# So many chunks are enough for any number of threads.
_MANY_CHUNKS = 64
# Iterations that follow each other where to find out where each of them is takes a division.
_AT_ONCE = 4
# The longest lines that go through their loops together only to share what they read.
_LONGEST = 256


def parallel(
    builder: Builder,
    extent: Dim,
    cost: Dim,
    body: Callable[[Axis], Stmt],
    name: str = "r",
    share: int = PARALLEL_COST,
) -> Stmt:
    """A loop whose iterations may run on several threads; ``cost`` of one iteration (simple operations) decides how
    many to a chunk. ``share``: the least work of a thread.

    A cost known only at run time is divided there: chunks of the computed size run in parallel, so a small problem
    stays serial.
    """
    var = Axis(name, extent)
    if extent == 1:
        return LetScalar(var, Const(0, "int64"), body(var))
    if isinstance(cost, int) and isinstance(extent, int):
        chunks, shares = (max(1, min(extent, extent * cost // least)) for least in (PARALLEL_COST, share))
        if shares == 1:
            return For(var, extent_of(extent), body(var))
        # Rounded down: more and smaller chunks can be shared out evenly, fewer and larger ones cannot.
        grain = extent // chunks
        if (chunks == shares or chunks >= _MANY_CHUNKS) and _is_even(extent, grain, chunks):
            return For(var, extent_of(extent), body(var), "parallel", grain)
        return _in_shares(var, extent, shares, chunks, body(var))
    if isinstance(cost, int):
        return For(var, extent_of(extent), body(var), "parallel", max(1, PARALLEL_COST // max(cost, 1)))
    # As many chunks of equal length as there is work for.
    many, per, chunk, inner = (Axis(hint, extent) for hint in ("many", "per", "chunk", "t"))
    whole = extent_of(extent)
    worth = chunks_of(Size(dim_mul(extent, cost)), share)
    start = binary("mul", chunk, per)
    count = minimum(per, binary("sub", whole, start))
    run = For(inner, count, LetScalar(var, binary("add", start, inner), body(var)))
    loop = For(chunk, ceiling(whole, per), run, "parallel", 1)
    return LetScalar(
        many, maximum(minimum(worth, whole), 1), LetScalar(per, maximum(binary("floordiv", whole, many), 1), loop)
    )


def chunks_of(work: Scalar, share: int) -> Scalar:
    """How many chunks work is worth: of `PARALLEL_COST`, or one for each thread that then has a ``share`` or more; perhaps none."""
    many = binary("floordiv", work, PARALLEL_COST)
    return many if share == PARALLEL_COST else maximum(many, minimum(WORKERS, binary("floordiv", work, share)))


def _is_even(extent: int, grain: int, chunks: int) -> bool:
    """Whether chunks of ``grain`` iterations, as many for one of several threads as for another, give each about as many iterations."""
    whole = -(-extent // grain)
    return all(
        -(-whole // threads) * grain <= -(-extent // threads) * _UNEVEN[0] // _UNEVEN[1]
        for threads in range(2, min(chunks, _THREADS_COUNTED) + 1)
    )


def _in_shares(var: Axis, extent: int, most: int, chunks: int, body: Stmt) -> Stmt:
    """Iterations in equal shares for ``most`` threads, or as many as there are, each cut into as many chunks: about ``chunks`` of them in
    all."""
    threads, share, pieces, per = (Axis(hint, extent + 1) for hint in ("threads", "share", "pieces", "per"))
    chunk, inner, of, begin = (Axis(hint, 2 * extent) for hint in ("chunk", "t", "of", "begin"))
    # It is between these ends anyway: so it is seen, once for a chunk.
    start = Between("start", extent + 1, low=0, high=(Const(extent, "int64"),))
    left = minimum(binary("sub", share, begin), binary("sub", extent, start))
    run = For(inner, maximum(minimum(per, left), 0), LetScalar(var, binary("add", start, inner), body))
    place = bound([
        (of, binary("floordiv", chunk, pieces)),
        (begin, binary("mul", binary("sub", chunk, binary("mul", of, pieces)), per)),
        between(start, binary("add", binary("mul", of, share), begin)),
    ], run)  # fmt: skip
    return bound([
        (threads, minimum(WORKERS, most)),
        (share, ceiling(Const(extent, "int64"), threads)),
        (pieces, select(compare("eq", threads, 1), Const(1, "int64"), ceiling(Const(chunks, "int64"), threads))),
        (per, ceiling(share, pieces)),
    ], For(chunk, binary("mul", threads, pieces), place, "parallel", 1))  # fmt: skip


def parallel_rows(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt, share: int = PARALLEL_COST) -> Stmt:
    """One parallel loop over all the axes (in row-major order), which are bound to their values for the body."""
    live = [a for a in axes if a.extent != 1]
    if not live:
        return body
    if len(live) == 1:
        return parallel(builder, live[0].extent, cost, lambda r: LetScalar(live[0], r, body), share=share)
    total = shape_size(tuple(a.extent for a in live))
    return parallel(builder, total, cost, lambda r: bound(unflattened(live, r), body), share=share)


def parallel_lines(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt) -> Stmt:
    """The same for bodies that may be little: of several axes a few iterations along the last one follow each other where its extent
    is not known, because to find out where one of them is takes a division for each of the others. They go through their loops together
    where that gains something (`lines_together`)."""
    live = [a for a in axes if a.extent != 1]
    if not live or isinstance(live[-1].extent, int):
        return parallel_rows(builder, axes, cost, body)
    if len(live) > 1:
        return _in_groups(builder, live, cost, body, _jammed(builder, live[-1], body))
    together = _jammed(builder, live[-1], body, _LONGEST)
    if together is None or not together[2]:
        return parallel_rows(builder, axes, cost, body)
    return _in_groups(builder, live, cost, body, together)


def lines_together(builder: Builder, axes: Sequence[Axis], cost: Dim, body: Stmt) -> Stmt | None:
    """The same, a few iterations along the last axis together; None where they have nothing in common (`relay.plan.jammed`)."""
    live = [a for a in axes if a.extent != 1]
    if not live or (isinstance(live[-1].extent, int) and live[-1].extent < _AT_ONCE):
        return None
    together = _jammed(builder, live[-1], body)
    return None if together is None else _in_groups(builder, live, cost, body, together)


# The first of a few iterations that go together, what they do, and where that gains something.
_Jammed = tuple[Axis, Stmt, list[Scalar]]


def _jammed(builder: Builder, axis: Axis, body: Stmt, longest: int | None = None) -> _Jammed | None:
    first = Axis("first", axis.extent)
    places = [binary("add", first, n) for n in range(_AT_ONCE)]
    together = jammed(body, axis, places, builder.target.vector_registers, longest)
    return None if together is None else (first, *together)


def _in_groups(builder: Builder, live: Sequence[Axis], cost: Dim, body: Stmt, together: _Jammed | None) -> Stmt:
    """Iterations along the last axis a few at a time: together, if that is given, where there are as many."""
    last = live[-1]
    block, step = Axis(last.name + "b", ceil_div(last.extent, _AT_ONCE)), Axis(last.name + "s", _AT_ONCE)
    start = binary("mul", Const(0, "int64") if block.extent == 1 else block, _AT_ONCE)
    count = minimum(_AT_ONCE, binary("sub", extent_of(last.extent), start))
    group: Stmt = For(step, count, LetScalar(last, binary("add", start, step), body))
    if together is not None:
        first, whole, where = together
        if not isinstance(last.extent, int) or last.extent % _AT_ONCE:
            where = [*where, compare("le", binary("add", start, _AT_ONCE), extent_of(last.extent))]
        whole = LetScalar(first, start, whole)
        group = Branch(conjunction(where), whole, group) if where else whole
    return parallel_rows(builder, [*live[:-1], block], dim_mul(cost, dim_min(_AT_ONCE, last.extent)), group)


def parallel_tasks(
    axes: Sequence[Axis],
    counted: Sequence[tuple[Axis, Scalar]],
    work: Dim,
    body: Stmt,
    share: int = PARALLEL_COST,
) -> Stmt:
    """A parallel loop over axes and, inside of them, variables whose numbers are known when the kernel runs, all of which are bound for
    the body. Tasks that are too little for a thread, of ``work`` in all, follow each other."""
    live = [a for a in axes if a.extent != 1]
    outer: Dim = 1
    for axis in live:
        outer = dim_mul(outer, axis.extent)
    inner: Scalar = Const(1, "int64")
    for _, count in counted:
        inner = binary("mul", inner, count)
    whole, many, per = (Axis(name, 1 << 40) for name in ("whole", "many", "per"))
    chunk, step, task = Axis("chunk", 1 << 40), Axis("t", 1 << 40), Axis("task", 1 << 40)
    places: list[tuple[Axis, Scalar]] = []
    left: Scalar = task
    last = binary("sub", extent_of(outer), 1)
    for number, (variable, count) in enumerate(reversed(counted)):
        outermost = number == len(counted) - 1
        before = Between("before", 1 << 40, low=0, high=(last,)) if outermost else Axis("before", 1 << 40)
        value = binary("floordiv", left, count)
        places.append(between(before, value) if isinstance(before, Between) else (before, value))
        places.append((variable, binary("sub", left, binary("mul", before, count))))
        left = before
    if live:
        places.extend(unflattened(live, left))
    start = binary("mul", chunk, per)
    run = For(
        step,
        minimum(per, binary("sub", whole, start)),
        LetScalar(task, binary("add", start, step), bound(places, body)),
    )
    worth = chunks_of(extent_of(work), share)
    return bound([
        (whole, binary("mul", extent_of(outer), inner)),
        (many, maximum(minimum(worth, whole), 1)),
        (per, maximum(binary("floordiv", whole, many), 1)),
    ], For(chunk, ceiling(whole, per), run, "parallel", 1))  # fmt: skip


def unflattened(axes: Sequence[Axis], position: Scalar) -> list[tuple[Axis, Scalar]]:
    """The values of axes at a position in row-major order, as bindings one after the other."""
    left, bindings = position, list[tuple[Axis, Scalar]]()
    for n, axis in enumerate(axes[:-1]):
        size = shape_size(tuple(a.extent for a in axes[n + 1 :]))
        bindings.append((axis, binary("floordiv", left, extent_of(size))))
        rest = Axis("rest", size)
        bindings.append((rest, binary("sub", left, binary("mul", axis, extent_of(size)))))
        left = rest
    return [*bindings, (axes[-1], left)]
