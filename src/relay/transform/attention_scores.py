"""What stands between the first product of an attention and its softmax: scales, masks, and any other function of each score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import Dim
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attr, Call, Constant, Expr, OpRef, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, is_float
from relay.op import registry
from relay.op.support import accumulation_dtype
from relay.transform.access import AccessTable
from relay.transform.attention_operands import Operands, keeps_matrices, scaled
from relay.transform.build import constant, type_of
from relay.transform.matrix_products import (
    MatrixProduct,
    dtype_of,
    in_order,
    is_sized,
    is_view,
    matrix_products,
    shape_of,
)
from relay.transform.pattern import Definition, Pattern, is_constant, is_filled, is_op, match, wildcard
from relay.transform.softmaxes import softmax_of

_X, _C = wildcard(), is_constant()
_MASK = wildcard()
_HIDDEN: tuple[tuple[Pattern, bool], ...] = (
    (is_op("where")(_MASK, _X, _C), False),
    (is_op("where")(_MASK, _C, _X), True),
)
# Steps between the two products that are looked at.
_MOST_STEPS = 32
ANOTHER_VIEW = "a view between the products has other rows and keys"


@record(frozen=True, slots=True, eq=False)
class Scores:
    """What a softmax is taken of: ``scale`` times a product, multiplied with or divided by ``factors``, tensors that have one number for
    each matrix or each row (and whether they divide), with ``masks`` added, where all of ``chosen`` are true, else ``hidden``.

    ``steps`` and their ``operands``: as in `nn.scored_attention`, a function of each product in the place of the scale and the
    factors. ``rest``: what these are of and is still to be looked at, which is read ``reads`` times by what was.
    """

    rest: Var
    reads: int = 1
    scale: float = 1.0
    factors: tuple[tuple[Expr, bool], ...] = ()
    masks: tuple[Expr, ...] = ()
    chosen: tuple[Expr, ...] = ()
    # The score of what is hidden; a finite one counts like other scores.
    hidden: float | None = None
    steps: tuple[Attr, ...] = ()
    operands: tuple[Expr, ...] = ()


@record(frozen=True, slots=True, eq=False)
class Weights:
    """What values are weighed with: ``rest``, the value that is left to look at or its variable, times ``scale`` and the ``factors``
    (of booleans false is 0)."""

    rest: Expr
    scale: float = 1.0
    factors: tuple[Expr, ...] = ()


class _Apart(Exception):
    """Says why scores are not those of an attention."""


@record(slots=True, eq=False)
class ScoreReader:
    """Looks from a softmax back to the product whose scores it is taken of. ``dtype``: that of the operands of the products."""

    definition: Definition
    uses: Counter[Var]
    operands: Operands
    dtype: str
    why: str = ""
    table: AccessTable = field(default_factory=AccessTable)

    def scores(
        self, scores: Expr, shape: tuple[Dim, ...], reads: int, by_keys: bool
    ) -> tuple[MatrixProduct, Scores] | None:
        """The product, and what makes of it what a softmax of this shape is taken of, that reads its ``scores`` so often; None (and
        ``why``) where there is none. ``by_keys``: their rows are the keys'."""
        passed: list[Scores] = []
        try:
            if not isinstance(scores, Var):
                raise _Apart("the scores are no product")
            passed.append(Scores(scores, reads))
            while True:
                here = passed[-1]
                if self.uses[here.rest] != here.reads:
                    name, times = here.rest.name, self.uses[here.rest]
                    raise _Apart(f"%{name} is read {times} times, not by the softmax alone")
                step = self.definition(here.rest)
                if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                    raise _Apart(f"%{here.rest.name} is no product")
                product = self.product(step)
                if product is not None:
                    return product, here
                passed.append(replace(self._before(step, here, shape, by_keys), reads=1))
        except _Apart as apart:
            self.why = str(apart)
        # The innermost steps are a function of the product that is no scale and no mask.
        for here in reversed(passed):
            found = self._function(here, shape)
            if found is not None:
                return found
        return None

    def _before(self, step: Call, here: Scores, shape: tuple[Dim, ...], by_keys: bool) -> Scores:
        """What is left to look at before a step that is a view, a scale or a mask."""
        assert isinstance(step.fn, OpRef)
        if is_view(step):
            if not keeps_matrices(shape, shape_of(step.args[0])):
                raise _Apart(ANOTHER_VIEW)
            return replace(here, rest=self._variable(step.args[0]))
        if self._only_widens(step):
            return replace(here, rest=self._variable(step.args[0]))
        factor = scaled(step, self.definition)
        if factor is not None:
            return replace(here, rest=self._variable(factor[0]), scale=here.scale * factor[1])
        by_rows = self._scaled_by_rows(step, shape, by_keys)
        if by_rows is not None:
            scores, number, divides = by_rows
            return replace(here, rest=self._variable(scores), factors=(*here.factors, (number, divides)))
        if here.factors or here.scale <= 0:  # a mask under a scale is scaled too
            raise _Apart(f"{step.fn.name} is scaled afterwards, by a tensor or a number below zero")
        where = self._hidden(step, shape)
        if where is not None:
            scores, mask, least = where
            least = float(np.asarray(least * here.scale, numpy_dtype(dtype_of(scores))))
            # One score for all that is hidden, and nothing added to it that would tell it from others.
            if here.hidden not in (None, least) or (here.masks and np.isfinite(least)):
                raise _Apart("hidden keys have different scores")
            return replace(here, rest=self._variable(scores), hidden=least, chosen=(*here.chosen, mask))
        added = self._added(step, shape)
        if added is None:
            raise _Apart(f"{step.fn.name} stands between the first product and the softmax")
        scores, mask = added
        if here.scale != 1.0:
            by_scale = constant(np.asarray(here.scale, numpy_dtype(dtype_of(mask))), dtype_of(mask))
            mask = self.operands.bind("multiply", (mask, by_scale))
        return replace(here, rest=self._variable(scores), masks=(*here.masks, mask))

    def _variable(self, scores: Expr) -> Var:
        if not isinstance(scores, Var):
            raise _Apart("the scores are no product")
        return scores

    def _only_widens(self, step: Call) -> bool:
        """Whether this converts scores between the dtype of the operands and the one that attention is computed in."""
        if not isinstance(step.fn, OpRef) or step.fn.name != "cast":
            return False
        wide = accumulation_dtype(self.dtype)
        return {dtype_of(step), dtype_of(step.args[0])} <= {self.dtype, wide}

    # -- products

    def product(self, step: Expr) -> MatrixProduct | None:
        """The product that scores are, with the keys along their last axis."""
        if not self.read_once(step):
            return None
        return next((p for p in matrix_products(step, self.definition) if in_order(p.axes)), None)

    def read_once(self, product: Expr) -> bool:
        """Whether operands that are given as a tuple are a tuple of this product's own."""
        return not isinstance(product, Call) or all(
            self.once(a) for a in product.args if isinstance(self.definition(a), Tuple)
        )

    def once(self, e: Expr) -> bool:
        """Whether this is a variable that is read once."""
        return isinstance(e, Var) and self.uses[e] == 1

    def weights(self, e: Expr) -> Weights:
        """What values are weighed with, seen through views, conversions and factors that nothing else reads."""
        found = Weights(e)
        while self.once(found.rest):
            step = self.definition(found.rest)
            inner = None if self.softmax(step) is not None else self._factor(step, found)
            if inner is None:
                return replace(found, rest=step)
            found = inner
        return found

    def softmax(self, step: Expr) -> tuple[Expr, int, int] | None:
        """What a value is a softmax of, its axis, and how often it reads that (see `softmax_of`)."""
        if isinstance(step, Call) and match(is_op("nn.softmax"), step, self.definition) is not None:
            return step.args[0], cast(int, registry.get("nn.softmax").complete_attrs(step.attrs)["axis"]), 1
        # Where exponents overflow that are not shifted, only the operator may have numbers; what is infinite gives nan in both.
        return softmax_of(step, self.definition, self.uses, of_any_size=True)

    def _factor(self, step: Expr, found: Weights) -> Weights | None:
        """What is left to look at before a step that is a view, a conversion or a factor."""
        if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
            return None
        if self._only_widens(step) or (is_view(step) and not found.factors):
            return replace(found, rest=step.args[0])
        by = scaled(step, self.definition)
        if by is not None:
            return replace(found, rest=by[0], scale=found.scale * by[1])
        shape = shape_of(step)
        for inner, factor, inverse in self._weighed(step):
            if shape_of(inner) != shape or not is_sized(factor) or not self._leads_to_softmax(inner):
                continue
            return replace(found, rest=inner, factors=(*found.factors, self._inverse(factor) if inverse else factor))
        return None

    def _weighed(self, step: Call) -> list[tuple[Expr, Expr, bool]]:
        """The ways to see a step as a factor of a tensor: the tensor, floats that it is multiplied with, or booleans that are false
        where the result is 0 (or true there)."""
        assert isinstance(step.fn, OpRef)
        if step.fn.name == "multiply":
            a, b = step.args
            return [(a, b, False), (b, a, False)]
        if step.fn.name != "where":
            return []
        seen, a, b = step.args
        nothing = [isinstance(e, Constant) and is_filled(e, 0) for e in (a, b)]
        return [(a, seen, False)] if nothing[1] else [(b, seen, True)] if nothing[0] else []

    def _leads_to_softmax(self, e: Expr) -> bool:
        """Whether a few steps of the kinds that stand between a softmax and a product lead from here to a softmax."""

        def between(step: Call) -> bool:
            return is_view(step) or _name(step) in ("multiply", "divide", "where", "cast", "negative")

        return self._leads(e, lambda step: self.softmax(step) is not None, between)

    def _leads(self, e: Expr, is_end: Callable[[Expr], bool], between: Callable[[Call], bool]) -> bool:
        """Whether a few calls of operators of the kinds that stand ``between`` lead from here to an end."""
        todo = [e]
        for _ in range(_MOST_STEPS):
            if not todo:
                break
            step = self.definition(todo.pop())
            if is_end(step):
                return True
            if isinstance(step, Call) and isinstance(step.fn, OpRef) and between(step):
                todo += step.args
        return False

    # -- any function of each score

    def _function(self, here: Scores, shape: tuple[Dim, ...]) -> tuple[MatrixProduct, Scores] | None:
        """What is left to look at as a function of each element of a product."""
        order = self._pointwise(here.rest, shape)
        if order is None:
            return None
        raw, steps = order[0], order[1:]
        read = Counter(a for v in steps for a in self._call(v).args if isinstance(a, Var))
        read[here.rest] += here.reads
        if any(read[v] != self.uses[v] for v in order):
            return None
        first = self._under_views(raw, shape)
        assert first is not None
        scale, operands, found = 1.0, list[Expr](), list[Attr]()
        # The numbers of the values that the steps have made, those of the operands not yet counted in; -1 is the product.
        number: dict[Var, int] = {raw: -1}
        outer: dict[Expr, int] = {}

        def operand(e: Expr) -> Attr:
            if isinstance(e, Var) and e in number:
                return ("step", number[e])
            if isinstance(e, Constant) and e.data.size == 1 and e.data.ndim == 0 and is_float(e.dtype):
                value = float(e.data)
                if np.isfinite(value):
                    return value
            if e not in outer:
                outer[e] = len(operands)
                operands.append(e)
            return ("operand", outer[e])

        for var in steps:
            call = self._call(var)
            assert isinstance(call.fn, OpRef)
            if self._only_widens(call):
                number[var] = number[self._variable(call.args[0])]
                continue
            factor = scaled(call, self.definition)
            if (
                factor is not None
                and isinstance(factor[0], Var)
                and number.get(factor[0]) == -1
                and read[factor[0]] == 1
            ):
                scale, number[var] = scale * factor[1], -1
                continue
            attrs = dict(call.attrs)
            if call.fn.name == "cast" and is_float(dtype_of(call)):
                attrs["dtype"] = accumulation_dtype(self.dtype)
            found.append((call.fn.name, tuple(operand(a) for a in call.args), attrs))
            number[var] = len(found) - 1
        last: Attr = ("step", number[here.rest])
        for by, divides in here.factors:
            found.append(("divide" if divides else "multiply", (last, operand(by)), {}))
            last = ("step", len(found) - 1)
        if here.scale != 1.0:
            found.append(("multiply", (last, here.scale), {}))
        counted = tuple(_counted(step, len(operands)) for step in found)
        return first, replace(here, scale=scale, factors=(), steps=counted, operands=tuple(operands))

    def _pointwise(self, root: Var, shape: tuple[Dim, ...]) -> list[Var] | None:
        """The variables that a value at each place is computed from by operators on that place alone, what they are computed from
        first: a product, by views that keep its matrices. None where there is no such, or are more than one."""
        leads: dict[Var, bool] = {}
        order: list[Var] = []
        raw: list[Var] = []
        todo = [(root, False)]
        while todo:
            var, ready = todo.pop()
            step = self.definition(var)
            if ready:
                assert isinstance(step, Call)
                leads[var] = any(isinstance(a, Var) and leads.get(a, False) for a in step.args)
                if leads[var]:
                    order.append(var)
            elif var not in leads and len(leads) < _MOST_STEPS:
                leads[var] = False
                if self._under_views(var, shape) is not None:
                    leads[var] = True
                    raw.append(var)
                elif self._is_pointwise(step, shape):
                    assert isinstance(step, Call)
                    todo.append((var, True))
                    todo += [(a, False) for a in step.args if isinstance(a, Var)]
        if len(raw) != 1 or not leads[root]:
            return None
        steps = [self._call(v) for v in order]
        outside = [a for s in steps for a in s.args if not (isinstance(a, Var) and leads.get(a, False))]
        floats = {dtype_of(e) for e in (*order, *outside) if is_float(dtype_of(e))}
        sound = all(map(is_sized, outside)) and floats <= {self.dtype, accumulation_dtype(self.dtype)}
        return [*raw, *order] if sound else None

    def _is_pointwise(self, step: Expr, shape: tuple[Dim, ...]) -> bool:
        """Whether each element of a value of this shape is computed from those at its place, with axes counted from the last."""
        if not isinstance(step, Call) or not isinstance(step.fn, OpRef) or shape_of(step) != shape:
            return False
        if not registry.exists(step.fn.name) or registry.get(step.fn.name).kind != "expression":
            return False
        if any(spec.name == "axis" for spec in registry.get(step.fn.name).attrs):
            return False
        access = self.table.of(step)
        tensors = all(isinstance(type_of(a), TensorType) for a in step.args)
        return tensors and access is not None and access.kind in ("elementwise", "broadcast")

    def _under_views(self, var: Var, shape: tuple[Dim, ...]) -> MatrixProduct | None:
        """The product that a value of this shape is, seen through views that keep its matrices and that nothing else reads."""
        if shape_of(var) != shape:
            return None
        step = self.definition(var)
        while isinstance(step, Call) and is_view(step) and self.once(step.args[0]):
            if not keeps_matrices(shape, shape_of(step.args[0])):
                return None
            step = self.definition(step.args[0])
        return self.product(step)

    def _call(self, var: Var) -> Call:
        step = self.definition(var)
        assert isinstance(step, Call)
        return step

    # -- scales and masks

    def _hidden(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr, float] | None:
        """Scores, mask and the score of what is hidden, of a step that hides what is not chosen."""
        for pattern, inverse in _HIDDEN:
            found = match(pattern, step, self.definition)
            if (
                found is None
                or shape_of(step) != shape
                or shape_of(found[_X]) != shape
                or dtype_of(found[_MASK]) != "bool"
            ):
                continue
            if not is_sized(found[_MASK]):
                continue
            least = found[_C]
            assert isinstance(least, Constant)
            score = float(least.data.reshape(-1)[0])
            if least.data.size != 1 or not score < np.inf or not isinstance(found[_X], Var):
                continue
            return found[_X], self._inverse(found[_MASK]) if inverse else found[_MASK], score
        return None

    def _inverse(self, mask: Expr) -> Expr:
        value = self.definition(mask)
        if isinstance(value, Call) and match(is_op("logical_not"), value, self.definition) is not None:
            return value.args[0]
        return self.operands.bind("logical_not", (mask,))

    def _added(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr] | None:
        """Scores and mask of a step that adds one, or subtracts what it is the negative of."""
        assert isinstance(step.fn, OpRef)
        if shape_of(step) != shape or step.fn.name not in ("add", "subtract"):
            return None
        taken = step.fn.name == "subtract"
        # Of two operands of the full shape the scores are the one that a product leads to.
        for scores, mask in (step.args, step.args[::-1])[: 1 if taken else 2]:
            if shape_of(scores) == shape and is_sized(mask) and self._leads_to_product(scores):
                return scores, self.operands.bind("negative", (mask,)) if taken else mask
        return None

    def _leads_to_product(self, e: Expr) -> bool:
        """Whether a few steps of the kinds that stand between a product and a softmax lead from here to a product."""

        def between(step: Call) -> bool:
            factor = scaled(step, self.definition)
            return factor is not None or is_view(step) or _name(step) in ("add", "subtract", "where")

        return self._leads(e, lambda step: self.product(step) is not None, between)

    def _scaled_by_rows(self, step: Call, shape: tuple[Dim, ...], by_keys: bool) -> tuple[Expr, Expr, bool] | None:
        """Scores, a tensor that has one number for each matrix or each row of them, and whether they are divided by it. Rows that are
        the keys' have one number in each matrix: what is a factor of the queries is no number for each key."""
        assert isinstance(step.fn, OpRef)
        if step.fn.name not in ("multiply", "divide") or shape_of(step) != shape:
            return None
        divides = step.fn.name == "divide"
        for scores, factor in (step.args, step.args[::-1])[: 1 if divides else 2]:
            size = shape_of(factor)
            if size is None or shape_of(scores) != shape or not is_sized(factor) or isinstance(factor, Constant):
                continue
            if all(d == 1 for d in size[-2 if by_keys else -1 :]) and self._leads_to_product(scores):
                return scores, factor, divides
        return None


def _name(step: Call) -> str:
    assert isinstance(step.fn, OpRef)
    return step.fn.name


def _counted(step: Attr, operands: int) -> Attr:
    """A step of `nn.scored_attention` whose values are counted as there, for so many operands: the product, the operands, the steps."""
    name, args, attrs = cast("tuple[Attr, tuple[Attr, ...], Mapping[str, Attr]]", step)

    def number(e: Attr) -> Attr:
        if not isinstance(e, tuple):
            return e
        kind, n = cast("tuple[str, int]", e)
        return n + 1 if kind == "operand" else 0 if n < 0 else n + 1 + operands

    numbers = tuple(map(number, args))
    return (name, numbers, MappingProxyType(dict(attrs))) if attrs else (name, numbers)
