"""Axes that an index divides by a size of which nobody says that it divides them.

A grouped convolution written ``x[n, q // (o // g) * i + m, ...]`` asks nothing of ``o``, but is called with a whole number of groups:
where ``o`` is ``g * (o // g)``, its axis ``q`` may be split into groups and places therein, and the sum is a product of each group. So a
graph that has such axes is planned twice, as it is and with each such size written as a product, and the kernel asks which it is:

    if o == g * (o // g) and o > 0 { products of groups } else { sums of each element }

Quotients of other sizes in indices are taken for exact beside them: what the guards of a gradient ask of groups is decided then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import chain

from relay.ir.dim import (
    APPLY,
    Atom,
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    as_var,
    dim_add,
    dim_atoms,
    dim_floordiv,
    dim_mod,
    dim_mul,
    known_equal,
)
from relay.ir.record import record
from relay.plan.graph import TeGraph
from relay.te.autodiff.simplify import simplified
from relay.te.index import Indices
from relay.te.layout import index_polynomials
from relay.te.rewrite import result_of
from relay.te.scalar import (
    Axis,
    Compare,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Size,
    compare,
    conjunction,
    extent_of,
    transform,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_bodies, stages

# Sizes that are taken for products in one kernel, and products that are tried for them.
_MOST_SIZES, _MOST_TRIED = 4, 12


@record(frozen=True, slots=True, eq=False)
class Divisible:
    """A graph with sizes written as products, and whether they are that and not zero (a condition on sizes)."""

    graph: TeGraph
    holds: Scalar


def divisible(graph: TeGraph) -> Divisible | None:
    """The graph with the sizes of axes that indices divide written as multiples of what divides them; None where all are known to be
    multiples, or none can be written so."""
    conditions: list[Scalar] = []
    products = _Products()
    tried: set[tuple[DimVar, Dim]] = set()
    while len(products.said) < _MOST_SIZES and len(tried) < _MOST_TRIED:
        each = chain(_divided(graph), _quotients(graph, products) if products.said else ())
        # A product may still be divided by what it was written with.
        found = next((f for f in each if f not in tried), None)
        if found is None:
            break
        tried.add(found)
        size, product = found
        conditions += (compare("eq", Size(as_dim(size)), extent_of(product)), compare("ge", Size(as_dim(size)), 1))
        products.say(size, product)
        graph = _with_sizes(graph, products)
    return Divisible(graph, conjunction(conditions)) if conditions else None


def _divided(graph: TeGraph) -> Iterator[tuple[DimVar, Dim]]:
    """Sizes of axes that an index divides by a size which is not known to divide them, each as the product that it would be."""
    for stage in stages(graph.outputs):
        if not isinstance(stage, Compute):
            continue
        indices = Indices()
        axes = (*stage.axes, *(a for b in stage.bodies if isinstance(b, Reduce) for a in b.axes))
        for poly in index_polynomials(indices, stage.bodies):
            for above, by in indices.divisions(poly):
                by = _if_some(by)
                if isinstance(by, int) or indices.is_index(by):
                    continue
                for axis in axes:
                    size, step = as_var(axis.extent), indices.coefficient(above, axis)
                    if size is None or not isinstance(step, int) or step <= 0 or dim_mod(by, step) != 0:
                        continue
                    inner = dim_floordiv(by, step)
                    if not known_equal(axis.extent, inner) and dim_mod(axis.extent, inner) != 0:
                        yield size, _as_product(size, inner)


def _if_some(by: Dim) -> Dim:
    """What a size is where it is not zero, of one that divides and has 1 in the place of zero (``max(n // g, 1)``)."""
    (atom, *more) = dim_atoms(by) if isinstance(by, SymDim) else [None]
    if isinstance(atom, DimOp) and not more and atom.op == "max" and as_dim(atom) == by and 1 in (atom.a, atom.b):
        return atom.b if atom.a == 1 else atom.a
    return by


def _as_product(size: DimVar, by: Dim) -> Dim:
    """A size as a multiple of what divides it, which may be a quotient of it itself."""
    if isinstance(by, SymDim) and len(by.terms) == 1:
        ((monomial, times),) = by.terms
        (atom, power) = monomial[0]
        is_quotient = isinstance(atom, DimOp) and atom.op == "floordiv" and as_var(atom.a) is size
        if len(monomial) == power == times == 1 and isinstance(atom, DimOp) and is_quotient:
            return dim_mul(atom.b, by)
    return dim_mul(by, dim_floordiv(as_dim(size), by))


def _quotients(graph: TeGraph, products: _Products) -> Iterator[tuple[DimVar, Dim]]:
    """The sizes of which expressions have quotients by other sizes, each as the product that it is if they are exact."""
    for stage in stages(graph.outputs):
        for node in (n for body in stage_bodies(stage) for n in walk(body) if isinstance(n, Size)):
            todo: list[Dim] = [node.dim]
            while todo:
                for atom in dim_atoms(todo.pop()):
                    if isinstance(atom, DimOp):
                        todo += (atom.b, atom.a)
                        size = as_var(atom.a)
                        is_new = size is not None and size not in products.said
                        if size is not None and is_new and atom.op == "floordiv" and isinstance(atom.b, SymDim):
                            yield size, dim_mul(atom.b, as_dim(atom))


@record(slots=True, eq=False)
class _Products:
    """Sizes that are taken for products of others, none of which is zero then."""

    said: dict[DimVar, Dim] = field(default_factory=dict)
    parts: set[Atom] = field(default_factory=set)

    def say(self, size: DimVar, product: Dim) -> None:
        self.said[size] = product
        self.parts |= {atom for atom in dim_atoms(product)}

    def is_positive(self, d: Dim) -> bool:
        """Whether a dim is a sum of products of what is not zero."""
        if not isinstance(d, SymDim):
            return isinstance(d, int) and d > 0
        return all(times > 0 and all(atom in self.parts for atom, _ in monomial) for monomial, times in d.terms)

    def dim(self, d: Dim) -> Dim:
        """A dim with products in the place of sizes; what these are made of stays what it is."""
        if not isinstance(d, SymDim):
            return d
        total: Dim = 0
        for monomial, times in d.terms:
            term: Dim = times
            for atom, power in monomial:
                value = as_dim(atom) if atom in self.parts else self._atom(atom)
                for _ in range(power):
                    term = dim_mul(term, value)
            total = dim_add(total, term)
        return total

    def _atom(self, atom: Atom) -> Dim:
        if isinstance(atom, DimVar):
            return self.said.get(atom, as_dim(atom))
        a, b = self.dim(atom.a), self.dim(atom.b)
        if atom.op == "floordiv" and a == -1 and self.is_positive(b):
            return -1  # what is left of ``(n - 1) // b`` where ``b`` divides ``n``
        if atom.op in ("min", "max") and 1 in (a, b) and self.is_positive(some := b if a == 1 else a):
            return some if atom.op == "max" else 1
        return as_dim(atom) if (a, b) == (atom.a, atom.b) else APPLY[atom.op](a, b)

    def scalar(self, node: Scalar) -> Scalar:
        """A size, or a comparison that asks whether one is zero, in terms of products."""
        match node:
            case Size():
                return extent_of(self.dim(self.dim(node.dim)))
            case Compare(op="ge" | "lt", a=Size(dim=d), b=Const(value=1)) if self.is_positive(d):
                return Const(node.op == "ge", "bool")
            case _:
                return node


def _with_sizes(graph: TeGraph, products: _Products) -> TeGraph:
    """The graph with products in the place of sizes."""
    made: dict[Stage, Stage] = {}
    memo: dict[int, Scalar] = {}
    own: dict[Axis, Axis] = {}

    def over(axis: Axis) -> Axis:
        if isinstance(axis, Named):
            return axis
        return own.setdefault(axis, Axis(axis.name, size(axis.extent), axis.dtype))

    def size(d: Dim) -> Dim:
        return products.dim(products.dim(d))

    def visit(node: Scalar) -> Scalar:
        match node:
            case Axis():
                return over(node)
            case Load(source=Tensor(stage=read, index=index)):
                return Load(result_of(made[read], index), node.indices, node.dtype)
            case Reduce():
                return Reduce(node.kind, tuple(map(over, node.axes)), node.body, node.dtype)
            case _:
                return products.scalar(node)

    def changed(root: Scalar) -> Scalar:
        return simplified(transform(root, visit, memo), Indices())

    def sizes(shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(map(size, shape))

    for stage in stages((*graph.inputs, *graph.outputs)):
        match stage:
            case Placeholder():
                made[stage] = Placeholder(stage.name, sizes(stage.shape), stage.dtype)
            case Compute():
                made[stage] = Compute(stage.name, tuple(map(over, stage.axes)), tuple(map(changed, stage.bodies)))
            case Scan():
                axes, init, update = tuple(map(over, stage.axes)), changed(stage.init), changed(stage.update)
                made[stage] = replace(stage, axes=axes, init=init, update=update)
    inputs, outputs = (
        tuple(result_of(made[t.stage], t.index) for t in given) for given in (graph.inputs, graph.outputs)
    )
    return replace(graph, inputs=inputs, outputs=outputs, assumed=sizes(graph.assumed))
