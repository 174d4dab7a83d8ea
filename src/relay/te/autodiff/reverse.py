"""Reverse mode: from a definition and the cotangents of its outputs to the cotangents of its inputs.

The chain rule goes over stages, consumers before producers (NeoFlow, section 4.2, does it for one expression). A stage that reads
``A[f(x)]`` with derivative ``p(x)`` gives ``A`` at ``z`` the sum of ``cotangent(x) * p(x)`` over all ``x`` with ``f(x) = z``, which
`solve.invert` turns into a reduction over new variables: a gathering form, so every result is deterministic and is scheduled like any
other expression.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import dim_sub, known_equal
from relay.ir.types import is_float
from relay.te.autodiff.arithmetic import add, choose, div, mul, zero
from relay.te.autodiff.gather import gathered
from relay.te.autodiff.parts import shared_parts
from relay.te.autodiff.scalar import adjoints
from relay.te.autodiff.stages import axes_of, copied, hits, other_factors, source_of, stage, states
from relay.te.autodiff.terms import Term, added
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    Size,
    compare,
    substitute,
    transform,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, const, size, stage_bodies, stages

Key = tuple[int, int]


def vjp(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """The cotangents of ``inputs`` for those of ``outputs`` (None: zero); None for one that is zero whatever the sizes are. Inputs are
    placeholders, or tensors on the way to the outputs, which count as given. Raises NotDifferentiable."""
    run = _Reverse(outputs, inputs)
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and run.is_active(output.stage):
            axes = axes_of(output.shape)
            run.terms.setdefault(_key(output), []).append(Term(axes, cotangent[axes]))
    for each in reversed(run.order):
        run.stage(each)
    return [run.cotangent(t) for t in inputs]


def _key(tensor: Tensor) -> Key:
    return id(tensor.stage), tensor.index


class _Reverse:
    """The cotangents of a definition's stages, as they come together."""

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self.order = stages(outputs)
        self.terms: dict[Key, list[Term]] = {}
        self.given = {id(t.stage) for t in inputs if is_float(t.dtype)}
        self.active: set[int] = set()
        for each in self.order:
            computed = not isinstance(each, Placeholder)
            if id(each) in self.given or (computed and any(self._reads_active(body) for body in stage_bodies(each))):
                self.active.add(id(each))

    def _reads_active(self, body: Scalar) -> bool:
        if not is_float(body.dtype):
            return False
        return any(self._is_active_load(n) for n in walk(body))

    def _is_active_load(self, node: Scalar) -> bool:
        source = source_of(node)
        return source is not None and is_float(source.dtype) and id(source.stage) in self.active

    def is_active(self, each: Stage) -> bool:
        return id(each) in self.active

    def cotangent(self, tensor: Tensor) -> Tensor | None:
        """The sum of what has come together for a tensor."""
        terms = self.terms.get(_key(tensor))
        if not terms:
            return None
        if len(terms) == 1:
            term = terms[0]
            whole = source_of(term.body)
            if whole is not None and whole.dtype == tensor.dtype and _is_identity(term):
                return whole
        return added(terms, tensor.shape, tensor.dtype, f"d_{tensor.name}")

    def stage(self, each: Stage) -> None:
        """Pass the cotangents of a stage on to what it reads."""
        if isinstance(each, Placeholder) or id(each) in self.given or not self.is_active(each):
            return
        if isinstance(each, Scan):
            cotangent = self.cotangent(Tensor(each, 0, each.shape, each.state.dtype))
            if cotangent is not None:
                self._scan(each, cotangent)
            return
        for n, body in enumerate(each.bodies):
            result = Tensor(each, n, each.shape, body.dtype)
            cotangent = self.cotangent(result) if is_float(body.dtype) else None
            if cotangent is None:
                continue
            if isinstance(body, Reduce):
                self._reduction(each, body, result, cotangent)
            else:
                self._expression(each.axes, (), body, cotangent[each.axes])

    def _reduction(self, each: Compute, body: Reduce, result: Tensor, cotangent: Tensor) -> None:
        element = body.body
        seed: Scalar | None = cotangent[each.axes]
        match body.kind:
            case "sum":
                pass
            case "max" | "min":
                found = hits(each.axes, body, result)
                share = stage(f"{result.name}_share", each.axes, div(cotangent[each.axes], found.count[each.axes]))
                element, seed = found.element, found.chosen(share[each.axes])
            case "prod":
                seed = mul(cotangent[each.axes], other_factors(each.axes, body)[(*each.axes, *body.axes)])
            case _:
                return
        assert seed is not None
        self._expression(each.axes, body.axes, element, seed)

    def _expression(
        self, axes: Sequence[Axis], over: Sequence[Axis], body: Scalar, seed: Scalar, skip: Tensor | None = None
    ) -> None:
        """An element ``body`` at each index of ``axes`` and ``over``, whose adjoint is ``seed``; reads of ``skip`` get nothing."""
        indices = Indices()

        def active(node: Scalar) -> bool:
            return self._is_active_load(node) and (skip is None or source_of(node) is not skip)

        parts = {stage("part", own, part): (own, part) for part, own in shared_parts(body, (*axes, *over), active)}
        made: dict[int, Scalar] = {id(part): result[own] for result, (own, part) in parts.items()}
        if made:
            body = transform(body, lambda n: n, made)

        def wanted(node: Scalar) -> bool:
            return active(node) or source_of(node) in parts

        groups: dict[tuple[object, ...], tuple[Load, Scalar]] = {}
        for leaf, adjoint in adjoints(body, seed, wanted):
            assert isinstance(leaf, Load)
            source = source_of(leaf)
            assert source is not None
            key = (_key(source), adjoint.dtype, *(indices.poly(i) for i in leaf.indices))
            if key in groups:
                total = add(groups[key][1], adjoint)
                assert total is not None
                groups[key] = (groups[key][0], total)
            else:
                groups[key] = (leaf, adjoint)
        for load, adjoint in groups.values():
            self._contribute(load, adjoint, axes, over)
        for result, (own, part) in parts.items():
            cotangent = self.cotangent(result)
            if cotangent is not None:
                self._expression(own, (), part, cotangent[own], skip)

    def _contribute(self, load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis]) -> None:
        """Give an element's share to what it reads: through stages that only move elements to what these read."""
        source = source_of(load)
        assert source is not None
        moved = self._moved(source)
        if moved is not None:
            stage_ = source.stage
            assert isinstance(stage_, Compute)
            place: dict[Axis, Scalar] = dict(zip(stage_.axes, load.indices, strict=True))
            through = substitute(moved, place)
            for leaf, part in adjoints(through, adjoint, self._is_active_load):
                assert isinstance(leaf, Load)
                self._contribute(leaf, part, axes, over)
            return
        terms = gathered(load, adjoint, axes, over)
        if terms:
            self.terms.setdefault(_key(source), []).extend(terms)

    def _moved(self, tensor: Tensor) -> Scalar | None:
        """The expression of a stage that puts each element of one tensor to at most one place, at a fixed distance along each axis
        (a border, a slice, a permutation); None for any other."""
        stage_ = tensor.stage
        if (
            id(stage_) in self.given
            or not isinstance(stage_, Compute)
            or len(stage_.bodies) != 1
            or isinstance(stage_.bodies[0], Reduce)
        ):
            return None
        (body,) = stage_.bodies
        inner = body
        while isinstance(inner, Select):
            inner = inner.a if any(self._is_active_load(n) for n in walk(inner.a)) else inner.b
        if not isinstance(inner, Load) or sum(self._is_active_load(n) for n in walk(body)) != 1:
            return None
        read = [{n for n in walk(i) if isinstance(n, Axis)} for i in inner.indices]
        plain = all(
            len(own) <= 1 and all(isinstance(n, Axis | Const | Size) or _is_sum(n) for n in walk(i))
            for own, i in zip(read, inner.indices, strict=True)
        )
        used = [a for own in read for a in own]
        whole = {a for a in stage_.axes if a.extent != 1}
        return body if plain and len(used) == len(set(used)) and whole <= set(used) else None

    def _scan(self, scan: Scan, cotangent: Tensor) -> None:
        """The recurrence of cotangents, from the last state to the first.

        With ``D`` the derivative of an update by the state before it, what reaches that state is ``D * (cotangent of the state
        after it)``. ``passed`` is what reaches the state after each update from later ones, an exclusive scan in the other direction.
        """
        before = states(scan)
        dtype = scan.state.dtype

        def is_state(node: Scalar) -> bool:
            return node is scan.state

        def back(exclusive: bool) -> Tensor:
            axes = copied(scan.axes)
            own: dict[Axis, Scalar] = dict(zip(scan.axes, axes, strict=True))
            later = Named("state", dtype)
            reach = later if scan.exclusive else add(cotangent[axes], later)
            assert reach is not None
            # The derivative by the state, of the expression at these axes with the state that it had.
            found = adjoints(scan.update, reach, is_state)
            update: Scalar | None = None
            for _, part in found:
                update = add(update, part)
            if update is None:
                update = zero(dtype)
            update = substitute(update, {**own, scan.state: before[axes]})
            if scan.exclusive:
                total = add(update, cotangent[axes])
                assert total is not None
                update = total
            made = Scan(f"d_{scan.name}", axes, scan.dim, later, zero(dtype), update, not scan.reverse, exclusive)
            return Tensor(made, 0, made.shape, dtype)

        passed = back(True)
        here = scan.axes
        after = passed[here] if scan.exclusive else add(cotangent[here], passed[here])
        assert after is not None
        # What the update reads of the state before it is the recurrence's own affair.
        placed = substitute(scan.update, {scan.state: before[here]})
        self._expression(here, (), placed, after, skip=before)
        if any(self._is_active_load(n) for n in walk(scan.init)):
            whole = back(False)
            others = tuple(a for n, a in enumerate(here) if n != scan.dim)
            length = here[scan.dim].extent
            first = size(dim_sub(length, 1)) if scan.reverse else const(0, "int64")
            at = tuple(first if n == scan.dim else a for n, a in enumerate(here))
            seed = choose(compare("gt", size(length), 0), whole[at], None, dtype)
            assert seed is not None
            self._expression(others, (), scan.init, seed)


def _is_identity(term: Term) -> bool:
    """Whether a term is a tensor of the same shape, read in place."""
    source = source_of(term.body)
    if source is None or not isinstance(term.body, Load) or len(source.shape) != len(term.axes):
        return False
    places = zip(term.axes, source.shape, term.body.indices, strict=True)
    return all(known_equal(a.extent, d) and (i is a or a.extent == 1) for a, d, i in places)


def _is_sum(node: Scalar) -> bool:
    return isinstance(node, Binary) and node.op in ("add", "sub")
