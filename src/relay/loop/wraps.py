"""Vector loops over positions that go round an axis, cut where they come round.

    vectorized j < n { y[j] = x[j + 1 - (j + 1) // n * n] }
    ->   if n >= 16 { vectorized j < n - 1 { y[j] = x[j + 1] };   vectorized j < 1 { y[j + n - 1] = x[j] } }
         else       { vectorized j < n { y[j] = x[j + 1 - (j + 1) // n * n] } }

In one loop each element has an index of its own, which takes a division and is looked up; in a piece the quotient is a number, and the
elements lie behind each other. The result computes what the kernel does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, dim_add, dim_sub, known_equal
from relay.ir.record import record
from relay.loop.ir import Branch, For, Kernel, LetScalar, Seq, Stmt
from relay.loop.pieces import index_dim, is_pointwise, over_vector_loops
from relay.loop.target import Target
from relay.loop.walk import expressions, rewritten, statements, with_values
from relay.te.scalar import Axis, Binary, Const, Scalar, binary, compare, extent_of, transform, walk

# Vectors along an axis that repay a piece of a few elements at each end, and pieces of a loop at most.
_FEWEST_VECTORS, _MOST_PIECES = 1, 8


def unwrapped(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with such loops cut; the same object where there is none."""
    least = _FEWEST_VECTORS * target.lanes(32)
    body = over_vector_loops(kernel.body, lambda loop: _cut(loop, least))
    return kernel if body is kernel.body else replace(kernel, body=body)


@record(frozen=True, slots=True)
class _Round:
    """A loop of ``period + over`` iterations, and by the identity of quotients and remainders by the period: what is added to the
    position that is divided, less whole periods, and these."""

    period: int | SymDim
    over: int
    shifts: dict[int, tuple[int, int]]


def _cut(loop: For, least: int) -> Stmt:
    found = _round(loop) if is_pointwise(loop) else None
    if found is None:
        return loop
    period, over, shifts = found.period, found.over, found.shifts
    # Where quotients turn: so many from the start (-1 to 0), or from the period (0 to 1).
    turns = {(0, -s) for s, _ in shifts.values() if s < 0} | {(1, -s) for s, _ in shifts.values() if s + over > 0}
    least = max(least, *(2 * (abs(s) + abs(over)) for s, _ in shifts.values()))
    if not turns or len(turns) >= _MOST_PIECES or (isinstance(period, int) and period < least):
        return loop
    starts = [(0, 0), *sorted(turns), (1, over)]
    made: list[Stmt] = []
    for start, end in pairwise(starts):
        first, behind = (dim_add(period, at) if late else at for late, at in (start, end))
        inner = Axis(loop.var.name, dim_sub(behind, first))
        body = _decided(loop.body, {key: rounds + _quotient(s, over, start) for key, (s, rounds) in shifts.items()})
        body = LetScalar(loop.var, binary("add", inner, extent_of(first)), body)
        made.append(replace(loop, var=inner, extent=extent_of(inner.extent), body=body))
    cut = Seq(tuple(made))
    return cut if isinstance(period, int) else Branch(compare("ge", extent_of(period), least), cut, loop)


def _round(loop: For) -> _Round | None:
    """What a loop divides by about as many as its iterations; None for one that divides by nothing such."""
    at = as_dim(DimVar(loop.var.name))
    dims: dict[int, Dim | None] = {}
    count = index_dim(loop.extent, loop.var, at, dims)
    found: _Round | None = None
    for node in (n for stmt in statements(loop.body) for root in expressions(stmt) for n in walk(root)):
        if not isinstance(node, Binary) or node.op not in ("floordiv", "mod"):
            continue
        divided, period = index_dim(node.a, loop.var, at, dims), index_dim(node.b, loop.var, at, dims)
        if count is None or divided is None or not isinstance(period, int | SymDim) or period == 0:
            continue
        shift, over = dim_sub(divided, at), dim_sub(count, period)
        if not isinstance(shift, int) or not isinstance(over, int):
            continue
        found = found or _Round(period, over, {})
        if known_equal(period, found.period):
            rounds = 0
            if isinstance(period, int):  # n - 1 is 1 before, not n - 1 behind
                rounds = (shift + period // 2) // period
                shift -= rounds * period
            found.shifts[id(node)] = (shift, rounds)
    return found


def _quotient(shift: int, over: int, start: tuple[int, int]) -> int:
    """How often a position with a shift has come round from a turn on."""
    return int(shift + over > 0 and start >= (1, -shift)) - int(shift < 0 and start < (0, -shift))


def _decided(body: Stmt, quotients: dict[int, int]) -> Stmt:
    """The body where these quotients (or those of these remainders) are known."""
    memo: dict[int, Scalar] = {}

    def known(node: Scalar) -> Scalar:
        quotient = quotients.get(id(node))
        if quotient is None or not isinstance(node, Binary):
            return node
        number = Const(quotient, "int64")
        return number if node.op == "floordiv" else binary("sub", node.a, binary("mul", node.b, number))

    return rewritten(body, lambda s: with_values(s, lambda e: transform(e, known, memo)))
