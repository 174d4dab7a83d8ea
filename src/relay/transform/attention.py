"""Attention that a program spells out becomes one operator, `nn.attention`.

    scores = batch_matmul(q, k) * scale + mask;  out = batch_matmul(softmax(scores), v)

The softmax of one product feeding another is found, whatever scales and masks stand between, in any order that means a
scale and a mask, and with views around. Sources: Dao et al., FlashAttention (2022), for why the three should be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import ClassVar

import numpy as np

from relay.ir.diagnostics import RelayError
from relay.ir.dim import ANY, Dim, known_equal, shape_size
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attr, Binding, Block, Call, Constant, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import TensorType, is_float
from relay.op import registry
from relay.op.contractions import equation_labels
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, is_primitive, map_functions
from relay.transform.build import constant, op_call, type_of
from relay.transform.causal import hides_later_keys
from relay.transform.pattern import Definition, Pattern, is_constant, is_op, match, wildcard
from relay.transform.uses import use_counts


@dataclass(frozen=True, slots=True)
class FuseAttention(Pass):
    """Put `nn.attention` in place of two products with a softmax between them.

    Before: typed blocks; products of unknown sizes (``?``) are left alone. After: the same values up to rounding. What else
    reads the scores or the weights keeps them: then nothing is changed. The products' right operands are not constants, which
    have kernels of their own.
    Matrices of scores that are known to be smaller than ``least`` numbers stay; causal ones count eight times.
    """

    least: int = 0

    name: ClassVar[str] = "fuse_attention"

    def __call__(self, module: Module) -> Module:
        def fuse(function: Function) -> Function:
            if is_primitive(function):
                return function
            uses = use_counts(body_of(function))

            def visit(scope: Scope, var: Var, value: Expr) -> Expr:
                return _Finder(driver.definition, uses, self.least).attention(value) or value

            driver = Forward(visit)
            return driver.function(function)

        return map_functions(module, fuse)


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """A product of matrices: ``left`` (..., m, k) by ``right`` (..., n, k), (..., m, n), each after its axes were put in this order."""

    left: Expr
    right: Expr
    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    axes: tuple[int, ...]


def _products(value: Expr, definition: Definition) -> list[_Product]:
    """The ways to see a value as a product of matrices: an einsum says nothing of which operand is the left one."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
        return []
    name = value.fn.name
    if name == "einsum":
        return _einsum_products(value, definition)
    if name not in ("nn.batch_matmul", "nn.matmul", "nn.dense") or len(value.args) != 2:
        return []
    attrs = registry.get(name).complete_attrs(value.attrs)
    left, right = value.args
    if not _multiplies(value, left, right) or not all(map(_is_sized, (value, left, right))):
        return []
    rank = len(_shape(value) or ())
    if len(_shape(left) or ()) != rank or len(_shape(right) or ()) != rank:
        return []
    plain = tuple(range(rank))
    by_rows = name == "nn.dense" or attrs["transpose_b"]
    left_axes = _turned(plain) if attrs.get("transpose_a", False) else plain
    return [_Product(left, right, left_axes, plain if by_rows else _turned(plain), plain)]


def _einsum_products(value: Call, definition: Definition) -> list[_Product]:
    operands = definition(value.args[0])
    result = _shape(value)
    if not isinstance(operands, Tuple) or len(operands.fields) != 2 or result is None:
        return []
    shapes = [_shape(e) for e in operands.fields]
    known = [s for s in shapes if s is not None]
    if len(known) != 2 or not all(map(_is_sized, (value, *operands.fields))):
        return []
    (a, b), out = equation_labels(str(value.attrs["equation"]), [len(s) for s in known])
    sizes = {**dict(zip(a, known[0], strict=True)), **dict(zip(b, known[1], strict=True))}
    if any(
        not known_equal(sizes[x], d)
        for labels, s in zip((a, b), known, strict=True)
        for x, d in zip(labels, s, strict=True)
    ):
        return []
    if len(set(a)) != len(a) or len(set(b)) != len(b):
        return []
    shared = [x for x in a if x in b and x in out]
    over = [x for x in a if x in b and x not in out]
    found: list[_Product] = []
    for (left, mine), (right, other) in permutations(zip(operands.fields, (a, b), strict=True)):
        rows, columns = ([x for x in labels if x not in shared and x not in over] for labels in (mine, other))
        if len(over) != 1 or len(rows) != 1 or len(columns) != 1 or not _multiplies(value, left, right):
            continue
        for order in (out, mine):  # the result's, or that of the left operand
            batch = [x for x in order if x in shared]
            left_axes = tuple(mine.index(x) for x in (*batch, *rows, *over))
            right_axes = tuple(other.index(x) for x in (*batch, *columns, *over))
            axes = tuple(out.index(x) for x in (*batch, *rows, *columns))
            found.append(_Product(left, right, left_axes, right_axes, axes))
    return found


def _multiplies(value: Call, left: Expr, right: Expr) -> bool:
    """Whether floats are multiplied and summed in their own type, none of them a constant on the right."""
    kind, result = type_of(left), value.ty
    if not isinstance(kind, TensorType) or not isinstance(result, TensorType) or kind.dtype != result.dtype:
        return False
    return isinstance(kind.dtype, str) and is_float(kind.dtype) and not isinstance(right, Constant)


def _turned(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The same with the last two exchanged."""
    return (*axes[:-2], axes[-1], axes[-2])


def _in_order(axes: tuple[int, ...]) -> bool:
    return axes == tuple(range(len(axes)))


_X, _C = wildcard(), is_constant()
_SCALED: tuple[tuple[Pattern, bool], ...] = (
    (is_op("multiply")(_X, _C), False),
    (is_op("multiply")(_C, _X), False),
    (is_op("divide")(_X, _C), True),
)
_SUM, _MASK = is_op("add"), wildcard()
# Half of causal scores are never made, and what blocks of others hold is in a near cache: they are worth a kernel where they are fewer.
_CAUSAL_COUNTS = 8
# Steps between the two products that are looked at.
_MOST_STEPS = 32
_HIDDEN: tuple[tuple[Pattern, bool], ...] = (
    (is_op("where")(_MASK, _X, _C), False),
    (is_op("where")(_MASK, _C, _X), True),
)
# Stands for masks that cannot be one.
_APART: Expr = Var("apart")


@dataclass(slots=True, eq=False)
class _Finder:
    """Looks from the last product back to the first. ``made`` are the bindings of the replacement."""

    definition: Definition
    uses: Counter[Var]
    least: int
    made: list[Binding] = field(default_factory=list)

    def attention(self, value: Expr) -> Block | None:
        """What takes the place of the last product; None where it is none, or has no such form."""
        for last in _products(value, self.definition):
            if _in_order(last.left_axes) and self._read_once(value):
                found = self._around(value, last)
                if found is not None:
                    return found
                self.made.clear()
        return None

    def _around(self, value: Expr, last: _Product) -> Block | None:
        """The same for one way to see the last product."""
        softmax = self._through_views(last.left)
        if softmax is None or not isinstance(softmax, Call):
            return None
        if match(is_op("nn.softmax"), softmax, self.definition) is None:
            return None
        shape = _shape(softmax)
        if shape is None or not _is_sized(softmax):
            return None
        if registry.get("nn.softmax").complete_attrs(softmax.attrs)["axis"] not in (-1, len(shape) - 1):
            return None
        if len(shape) < 2 or any(d == 0 for d in shape) or not _keeps_matrices(shape, _shape(last.left)):
            return None
        try:
            return self._replacement(value, last, softmax.args[0], shape)
        except RelayError:  # sizes that are equal at run time but not known to be: left as it is
            return None

    def _replacement(self, value: Expr, last: _Product, scores: Expr, shape: tuple[Dim, ...]) -> Block | None:
        scale, masks, chosen = 1.0, list[Expr](), list[Expr]()
        # The score of what is hidden, and whether that counts like other scores.
        hidden: float | None = None
        first: _Product | None = None
        while first is None:
            if not self._once(scores):
                return None
            step = self.definition(scores)
            if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                return None
            first = self._scores(step)
            if first is not None:
                break
            if _is_view(step):
                scores = step.args[0]
                if not _keeps_matrices(shape, _shape(scores)):
                    return None
                continue
            factor = _scaled(step, self.definition)
            if factor is not None:
                scores, by = factor
                scale *= by
                continue
            if scale != 1.0:  # a mask under a scale would have to be scaled too
                return None
            where = self._hidden(step, shape)
            if where is not None:
                scores, mask, least = where
                # One score for all that is hidden, and nothing added to it that would tell it from others.
                if hidden not in (None, least) or (masks and np.isfinite(least)):
                    return None
                hidden = least
                chosen.append(mask)
                continue
            added = self._added(step, shape)
            if added is None:
                return None
            scores, mask = added
            masks.append(mask)
        query, by_query = self._unscaled(first.left)
        key, by_key = self._unscaled(first.right)
        lead = shape[:-2]
        q = self._operand(query, first.left_axes, lead)
        k = self._operand(key, first.right_axes, lead)
        v = self._operand(last.right, _turned(last.right_axes), lead)
        if q is None or k is None or v is None:
            return None
        args = [q, k, v]
        m, n = shape[-2:]
        bound = {b.var: b.value for b in self.made}

        def known(e: Expr) -> Expr:
            return bound.get(e) or self.definition(e) if isinstance(e, Var) else e

        later = [x for x in (*chosen, *masks) if hides_later_keys(x, known, m, n)]
        if any(x in masks for x in later) and hidden is not None and np.isfinite(hidden):
            later = [x for x in later if x in chosen]
        count = m * n if isinstance(m, int) and isinstance(n, int) else self.least
        if count * (_CAUSAL_COUNTS if later else 1) < self.least:
            return None
        joined = self._joined([x for x in masks if x not in later], [x for x in chosen if x not in later], hidden)
        if joined is _APART:
            return None
        attrs: dict[str, Attr] = {"causal": True} if later else {}
        if hidden is not None and np.isfinite(hidden):
            attrs["hidden"] = hidden
        out = self._bind(
            "nn.attention", args if joined is None else [*args, joined], scale=scale * by_query * by_key, **attrs
        )
        wanted = _shape(value)
        if wanted is None:
            return None
        plain = tuple(wanted[n] for n in last.axes)
        if _shape(out) != plain:
            out = self._bind("reshape", (out,), newshape=plain)
        if not _in_order(last.axes):
            back = tuple(last.axes.index(n) for n in range(len(wanted)))
            out = self._bind("transpose", (out,), axes=back)
        return Block(tuple(self.made), out, value.ty, value.span) if type_of(out) == value.ty else None

    def _joined(self, masks: Sequence[Expr], chosen: Sequence[Expr], hidden: float | None) -> Expr | None:
        """All that is added to the scores and all that chooses among them as one mask; `_APART` where there is none."""
        if masks and chosen and hidden is not None and np.isfinite(hidden):
            return _APART
        joined: Expr | None = None
        for mask in masks:
            joined = mask if joined is None else self._bind("add", (joined, mask))
        if not chosen:
            return joined
        seen = chosen[0]
        for mask in chosen[1:]:
            seen = self._bind("logical_and", (seen, mask))
        if joined is None:
            return seen
        least = constant(np.asarray(-np.inf, numpy_dtype(_dtype(joined))), _dtype(joined))
        return self._bind("where", (seen, joined, least))

    def _hidden(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr, float] | None:
        """Scores, mask and the score of what is hidden, of a step that hides what is not chosen."""
        for pattern, inverse in _HIDDEN:
            found = match(pattern, step, self.definition)
            if found is None or _shape(step) != shape or _shape(found[_X]) != shape or _dtype(found[_MASK]) != "bool":
                continue
            if not _is_sized(found[_MASK]):
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
        return self._bind("logical_not", (mask,))

    def _added(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr] | None:
        """Scores and mask of a step that adds one."""
        if _shape(step) != shape or match(_SUM, step, self.definition) is None:
            return None
        # Of two operands of the full shape the scores are the one that a product leads to.
        for scores, mask in (step.args, step.args[::-1]):
            if _shape(scores) == shape and _is_sized(mask) and self._leads_to_product(scores):
                return scores, mask
        return None

    def _leads_to_product(self, e: Expr) -> bool:
        """Whether a few steps of the kinds that stand between a product and a softmax lead from here to a product."""
        todo = [e]
        for _ in range(_MOST_STEPS):
            if not todo:
                break
            step = self.definition(todo.pop())
            if self._scores(step) is not None:
                return True
            if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                continue
            if _scaled(step, self.definition) is not None or _is_view(step) or step.fn.name in ("add", "where"):
                todo += step.args
        return False

    def _through_views(self, e: Expr) -> Expr | None:
        """What is read through views that nothing else reads."""
        while self._once(e):
            step = self.definition(e)
            if not isinstance(step, Call) or not _is_view(step):
                return step
            e = step.args[0]
        return None

    def _scores(self, step: Expr) -> _Product | None:
        """The product that scores are, with the keys along their last axis."""
        if not self._read_once(step):
            return None
        return next((p for p in _products(step, self.definition) if _in_order(p.axes)), None)

    def _read_once(self, product: Expr) -> bool:
        """Whether operands that are given as a tuple are a tuple of this product's own."""
        return not isinstance(product, Call) or all(
            self._once(a) for a in product.args if isinstance(self.definition(a), Tuple)
        )

    def _once(self, e: Expr) -> bool:
        return isinstance(e, Var) and self.uses[e] == 1

    def _unscaled(self, operand: Expr) -> tuple[Expr, float]:
        """An operand of the first product without a scale applied to it before it was brought into its layout."""
        layout: list[Call] = []
        e = operand
        while True:
            step = self.definition(e)
            if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                return operand, 1.0
            found = _scaled(step, self.definition)
            if found is not None:
                break
            if step.fn.name not in ("transpose", "reshape"):
                return operand, 1.0
            layout.append(step)
            e = step.args[0]
        e, factor = found
        if _shape(e) != _shape(step):
            return operand, 1.0
        for call in reversed(layout):
            var = Var("layout", None, call.ty, call.span)
            self.made.append(Binding(var, Call(call.fn, (e, *call.args[1:]), call.attrs, (), call.ty, call.span)))
            e = var
        return e, factor

    def _operand(self, e: Expr, axes: tuple[int, ...], lead: tuple[Dim, ...]) -> Expr | None:
        """An operand of a product as (*lead, rows, k); a batch of one that the product repeats keeps its size."""
        if not _in_order(axes):
            e = self._bind("transpose", (e,), axes=axes)
        shape = _shape(e)
        if shape is None:
            return None
        batch = shape[:-2]
        if batch == lead:
            return e
        if known_equal(shape_size(batch), shape_size(lead)):
            return self._bind("reshape", (e,), newshape=(*lead, *shape[-2:]))
        return e if len(lead) == 1 and batch == (1,) else None

    def _bind(self, op: str, args: Sequence[Expr], **attrs: Attr) -> Var:
        call = op_call(op, args, attrs)
        var = Var(op.rsplit(".", 1)[-1], None, call.ty)
        self.made.append(Binding(var, call))
        return var


def _scaled(step: Expr, definition: Definition) -> tuple[Expr, float] | None:
    """What is multiplied or divided by a constant of one element, and the factor."""
    for pattern, inverse in _SCALED:
        found = match(pattern, step, definition)
        if found is None:
            continue
        by = found[_C]
        assert isinstance(by, Constant)
        if by.data.size == 1 and isinstance(found[_X], Var) and by.dtype == _dtype(found[_X]):
            factor = float(by.data.reshape(()))
            if factor != 0 and np.isfinite(factor):
                return found[_X], 1 / factor if inverse else factor
    return None


def _is_view(step: Call) -> bool:
    """Whether this is a call of an operator that only sees its operand in another shape."""
    return isinstance(step.fn, OpRef) and registry.exists(step.fn.name) and registry.get(step.fn.name).kind == "view"


def _shape(e: Expr) -> tuple[Dim, ...] | None:
    ty = type_of(e)
    return ty.shape if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else None


def _is_sized(e: Expr) -> bool:
    """Whether each size has a value or a name: of two that are unknown nothing says that they are equal."""
    shape = _shape(e)
    return shape is not None and ANY not in shape


def _dtype(e: Expr) -> str:
    ty = type_of(e)
    return ty.dtype if isinstance(ty, TensorType) and isinstance(ty.dtype, str) else ""


def _keeps_matrices(a: tuple[Dim, ...], b: tuple[Dim, ...] | None) -> bool:
    """Whether two views of one tensor have the same last two axes."""
    return b is not None and len(b) >= 2 and a[-2:] == b[-2:]
