"""Normal forms of iteration spaces: axes that a loop nest goes over, split where an index divides them and joined where they are
gone through as one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import field

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, dim_floordiv, dim_mul
from relay.ir.record import record
from relay.plan.build import Builder
from relay.plan.expand import Env
from relay.te.index import Indices
from relay.te.layout import division
from relay.te.scalar import (
    Axis,
    Binary,
    Const,
    Load,
    Scalar,
    binary,
    children,
    extent_of,
    substitute,
    walk,
)

# A divisor that is not known.
_SIZE = 1 << 16


@record(frozen=True, slots=True, eq=False)
class Accesses:
    """The flat positions read and written, and the axes that also occur outside of positions."""

    polys: tuple[Dim, ...]
    fixed: frozenset[Axis]


def accesses(indices: Indices, values: Iterable[Scalar], stores: Iterable[Scalar]) -> Accesses:
    """What expressions over buffers access."""
    polys = [indices.poly(s) for s in stores]
    fixed: set[Axis] = set()
    seen: set[int] = set()
    todo = list(values)
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Axis):
            fixed.add(node)
        elif isinstance(node, Load):
            for i in node.indices:
                polys.append(indices.poly(i))
                todo += [n for n in walk(i) if isinstance(n, Load)]
        else:
            todo += children(node)
    return Accesses(tuple(polys), frozenset(fixed))


@record(slots=True, eq=False)
class Space:
    """Groups of loop axes (each in loop order) and what the original axes are in terms of them."""

    groups: list[list[Axis]]
    env: dict[Axis, Scalar]
    # Axes of these groups are never split.
    whole: frozenset[int] = frozenset()
    # Nor is the last one of a group where fewer elements than these would be left innermost, and places rise with a quotient of it: vectors
    # are looked up in vectors. Where ``whole_by_sizes``, of quotients by sizes that are not known, too; else it is split by these, which
    # ``sizes`` has then.
    fewest: int = 0
    whole_by_sizes: bool = False
    sizes: list[Dim] = field(default_factory=list)

    def normalise(self, builder: Builder, evaluate: Callable[[Env], Accesses]) -> None:
        """Drop axes of one element, split where an index divides an axis, then join neighbours that are traversed as
        one."""
        indices = builder.indices
        found = self.normalise_splits(indices, evaluate)
        apart: set[tuple[Axis, Axis]] = set()
        while True:
            groups, env = [list(g) for g in self.groups], dict(self.env)
            joined = self._join(indices, found, apart)
            if joined is None:
                return
            after = evaluate(self.env)
            if _divided(indices, after) > _divided(indices, found):
                # What the two axes are in terms of one would be computed for every element.
                for group, axes in zip(self.groups, groups, strict=True):
                    group[:] = axes
                self.env.clear()
                self.env.update(env)
                apart.add(joined)
            else:
                found = after

    def normalise_splits(self, indices: Indices, evaluate: Callable[[Env], Accesses]) -> Accesses:
        """The first half: drop axes of one element and split. Gives the accesses that result."""
        for group in self.groups:
            for axis in group:
                if axis.extent == 1:
                    self._replace(axis, Const(0, "int64"))
            group[:] = [a for a in group if a.extent != 1]
        found = evaluate(self.env)
        while self._split(indices, found):
            found = evaluate(self.env)
        return found

    def _replace(self, axis: Axis, value: Scalar) -> None:
        env: dict[Axis, Scalar] = {axis: value}
        for key, old in self.env.items():
            self.env[key] = substitute(old, env)
        self.env.setdefault(axis, value)

    def _split(self, indices: Indices, found: Accesses) -> bool:
        axes = [
            a
            for number, group in enumerate(self.groups)
            if number not in self.whole
            for a in group
            if a is not group[-1] or not _rises(indices, found.polys, a, self.fewest, self.whole_by_sizes)
        ]
        wanted = division(indices, found.polys, axes)
        if wanted is None:
            return False
        axis, size = wanted
        group = next(g for g in self.groups if axis in g)
        if axis is group[-1] and not isinstance(size, int) and _rises(indices, found.polys, axis, self.fewest, True):
            self.sizes.append(size)
        outer = Axis(axis.name + "o", dim_floordiv(axis.extent, size))
        inner = Axis(axis.name + "i", size)
        n = group.index(axis)
        group[n : n + 1] = [outer, inner]
        self._replace(axis, binary("add", binary("mul", outer, size), inner))
        return True

    def _join(self, indices: Indices, found: Accesses, apart: Container[tuple[Axis, Axis]]) -> tuple[Axis, Axis] | None:
        """Make two neighbours one, but for those that are to stay ``apart``; gives them."""
        for group in self.groups:
            for n in range(len(group) - 1):
                a, b = group[n], group[n + 1]
                if a in found.fixed or b in found.fixed or (a, b) in apart:
                    continue
                if all(_contiguous(indices, p, a, b) for p in found.polys):
                    joined = Axis(a.name + b.name if len(a.name) < 8 else a.name, dim_mul(a.extent, b.extent))
                    group[n : n + 2] = [joined]
                    # In every position read or written the division cancels; elsewhere it says what the old axes are.
                    size = extent_of(b.extent)
                    outer = binary("floordiv", joined, size)
                    self._replace(a, outer)
                    self._replace(b, binary("sub", joined, binary("mul", outer, size)))
                    return a, b
        return None


def _rises(indices: Indices, polys: Iterable[Dim], axis: Axis, fewest: int, by_sizes: bool) -> bool:
    """Whether an axis occurs as it is, or as its quotient by a number below ``fewest`` or by a size: once in each place, times nothing."""
    var, quotients = indices.variable(axis), 0
    for poly in polys if fewest else ():
        found = []
        for monomial, times in poly.terms if isinstance(poly, SymDim) else ():
            for atom, power in monomial:
                division = indices.division(atom) if isinstance(atom, DimVar) else None
                if atom is var and len(monomial) == power == times == 1:
                    found.append(1)
                elif division is not None and indices.mentions(as_dim(atom), axis):
                    above, by = division
                    few = by < fewest if isinstance(by, int) else by_sizes and not indices.is_index(by)
                    if not few or indices.coefficient(above, axis) != 1:
                        return False
                    if not len(monomial) == power == times == 1:
                        return False
                    found.append(_SIZE if not isinstance(by, int) else by)
                elif atom is var or indices.mentions(as_dim(atom), axis):
                    return False
        if len(found) > 1:
            return False
        quotients += bool(found and found[0] > 1)
    return quotients > 0


def _divided(indices: Indices, found: Accesses) -> int:
    """How many divisions the places that are read and written are made of, those by what may be zero among them."""
    nodes = [node for p in found.polys for _, node in indices.opaque_in(p)]
    return sum(isinstance(node, Binary) and node.op in ("floordiv", "mod") for node in nodes)


def _contiguous(indices: Indices, poly: Dim, a: Axis, b: Axis) -> bool:
    outer, inner = indices.coefficient(poly, a), indices.coefficient(poly, b)
    return outer is not None and inner is not None and outer == dim_mul(inner, b.extent)
