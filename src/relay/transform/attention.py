"""Attention that a program spells out becomes one operator, `nn.attention`.

    scores = batch_matmul(q, k) * scale + mask;  out = batch_matmul(softmax(scores), v)

The softmax of one product feeding another is found, whatever scales and masks stand between, in any order that means a
scale and a mask, and with views around. Sources: Dao et al., FlashAttention (2022), for why the three should be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, known_equal, shape_size
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attr, Binding, Block, Call, Constant, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, is_primitive, map_functions
from relay.transform.build import constant, op_call, type_of
from relay.transform.causal import hides_later_keys
from relay.transform.matrix_products import (
    MatrixProduct,
    dtype_of,
    exchanged,
    exchanges_last,
    in_order,
    is_sized,
    is_view,
    matrix_products,
    shape_of,
)
from relay.transform.pattern import Definition, Pattern, is_constant, is_op, match, wildcard
from relay.transform.softmaxes import softmax_of, softmax_over
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
                return AttentionFinder(driver.definition, uses, self.least).attention(value) or value

            driver = Forward(visit)
            return driver.function(function)

        return map_functions(module, fuse)


_X, _C = wildcard(), is_constant()
_SCALED: tuple[tuple[Pattern, bool], ...] = (
    (is_op("multiply")(_X, _C), False),
    (is_op("multiply")(_C, _X), False),
    (is_op("divide")(_X, _C), True),
)
_NEGATED = is_op("negative")(_X)
_MASK = wildcard()
# Half of causal scores are never made, and what blocks of others hold is in a near cache: they are worth a kernel where they are fewer.
_CAUSAL_COUNTS = 8
# Steps between the two products that are looked at.
_MOST_STEPS = 32
_HIDDEN: tuple[tuple[Pattern, bool], ...] = (
    (is_op("where")(_MASK, _X, _C), False),
    (is_op("where")(_MASK, _C, _X), True),
)
_ANOTHER_VIEW = "a view between the products has other rows and keys"
# Stands for masks that cannot be one.
_APART: Expr = Var("apart")


@dataclass(slots=True, eq=False)
class AttentionFinder:
    """Looks from the last product back to the first. ``made`` are the bindings of the replacement, in order; ``why`` says why there
    is none, where that is known."""

    definition: Definition
    uses: Counter[Var]
    least: int
    made: dict[Var, Call] = field(default_factory=dict)
    why: str = ""

    def attention(self, value: Expr) -> Block | None:
        """What takes the place of the last product; None where it is none, or has no such form."""
        total: Expr | None = None
        product = value
        if isinstance(value, Call) and match(is_op("divide")(_X, _MASK), value, self.definition) is not None:
            # The weights may be divided by their sum after they are multiplied.
            if not self._once(value.args[0]):
                return None
            product, total = self.definition(value.args[0]), value.args[1]
        for last in matrix_products(product, self.definition):
            if not in_order(last.left_axes):
                self.why = self.why or "the second product does not read the weights as rows by keys"
            elif self._read_once(product) and (total is None or in_order(last.axes)):
                found = self._around(value, last, total)
                if found is not None:
                    return found
                self.made.clear()
        return None

    def _around(self, value: Expr, last: MatrixProduct, total: Expr | None) -> Block | None:
        """The same for one way to see the last product, whose result is divided by ``total``."""
        found: tuple[Expr, int, int] | None
        if total is not None:
            found = softmax_over(last.left, total, self.definition, self.uses, of_any_size=True)
            softmax = self.definition(last.left)
        else:
            softmax = self._through_views(last.left)
            if isinstance(softmax, Call) and match(is_op("nn.softmax"), softmax, self.definition) is not None:
                found = softmax.args[0], cast(int, registry.get("nn.softmax").complete_attrs(softmax.attrs)["axis"]), 1
            else:
                # Where exponents overflow that are not shifted, only the operator may have numbers; what is infinite gives nan in both.
                found = softmax_of(softmax, self.definition, self.uses, of_any_size=True)
        shape = shape_of(softmax)
        if found is None or shape is None:
            return self._none(self._between(softmax, last.left))
        if not is_sized(softmax):
            return self._none("the scores have a size that is only known at run time (?)")
        scores, axis, reads = found
        if axis % len(shape) != len(shape) - 1:
            return self._none("the softmax is not over the last axis of the scores")
        if len(shape) < 2 or any(d == 0 for d in shape) or not _keeps_matrices(shape, shape_of(last.left)):
            return self._none(_ANOTHER_VIEW)
        try:
            return self._replacement(value, last, scores, shape, reads)
        except RelayError as error:  # sizes that are equal at run time but not known to be: left as it is
            return self._none(error.message)

    def _none(self, why: str) -> Block | None:
        """No replacement, and why."""
        self.why = why
        return None

    def _between(self, step: Expr, weights: Expr) -> str:
        """Why weights are not seen as a softmax."""
        if isinstance(step, Var):
            return f"%{step.name} is read {self.uses[step]} times, not by the second product alone"
        if isinstance(weights, Var) and not self._once(weights):
            return f"%{weights.name} is read {self.uses[weights]} times, not by the second product alone"
        return f"{_name(step)} stands between the softmax and the second product"

    def _replacement(
        self, value: Expr, last: MatrixProduct, scores: Expr, shape: tuple[Dim, ...], reads: int
    ) -> Block | None:
        """What takes the place of a value around two products; the softmax reads its ``scores`` so often."""
        scale, masks, chosen = 1.0, list[Expr](), list[Expr]()
        # What the scores of whole matrices or rows are multiplied with (False) or divided by (True).
        factors: list[tuple[Expr, bool]] = []
        # The score of what is hidden, and whether that counts like other scores.
        hidden: float | None = None
        first: MatrixProduct | None = None
        while first is None:
            if not isinstance(scores, Var):
                return self._none("the scores are no product")
            if self.uses[scores] != reads:
                return self._none(f"%{scores.name} is read {self.uses[scores]} times, not by the softmax alone")
            reads = 1
            step = self.definition(scores)
            if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                return self._none(f"%{scores.name} is no product")
            first = self._scores(step)
            if first is not None:
                break
            if is_view(step):
                scores = step.args[0]
                if not _keeps_matrices(shape, shape_of(scores)):
                    return self._none(_ANOTHER_VIEW)
                continue
            factor = _scaled(step, self.definition)
            if factor is not None:
                scores, by = factor
                scale *= by
                continue
            by_rows = self._scaled_by_rows(step, shape)
            if by_rows is not None:
                scores, number, divides = by_rows
                factors.append((number, divides))
                continue
            if factors or scale <= 0:  # a mask under a scale is scaled too
                return self._none(f"{step.fn.name} is scaled afterwards, by a tensor or a number below zero")
            where = self._hidden(step, shape)
            if where is not None:
                scores, mask, least = where
                least = float(np.asarray(least * scale, numpy_dtype(dtype_of(scores))))
                # One score for all that is hidden, and nothing added to it that would tell it from others.
                if hidden not in (None, least) or (masks and np.isfinite(least)):
                    return self._none("hidden keys have different scores")
                hidden = least
                chosen.append(mask)
                continue
            added = self._added(step, shape)
            if added is None:
                return self._none(f"{step.fn.name} stands between the first product and the softmax")
            scores, mask = added
            if scale != 1.0:
                by_scale = constant(np.asarray(scale, numpy_dtype(dtype_of(mask))), dtype_of(mask))
                mask = self._bind("multiply", (mask, by_scale))
            masks.append(mask)
        query, by_query = self._unscaled(first.left)
        key, by_key = self._unscaled(first.right)
        lead = shape[:-2]
        q = self._operand(query, first.left_axes, lead)
        k = self._operand(key, first.right_axes, lead, first.shared > 0)
        v = self._operand(last.right, exchanged(last.right_axes), lead, last.shared > 0)
        if q is None or k is None or v is None:
            return self._none("batches and heads of query, key and value do not fit each other")
        k, v = self._unrepeated(k, v)
        args = [q, k, v]
        m, n = shape[-2:]
        later = [x for x in (*chosen, *masks) if hides_later_keys(x, self._known, m, n)]
        if any(x in masks for x in later) and hidden is not None and np.isfinite(hidden):
            later = [x for x in later if x in chosen]
        count = m * n if isinstance(m, int) and isinstance(n, int) else self.least
        if count * (_CAUSAL_COUNTS if later else 1) < self.least:
            return self._none("the matrices of scores are small, so that their gradient is taken of the parts")
        joined = self._joined([x for x in masks if x not in later], [x for x in chosen if x not in later], hidden)
        if joined is _APART:
            return self._none("one mask is added and another gives hidden keys a finite score")
        apart = _unmerged(q, self._known)
        if any(d != 1 for number, _ in factors for d in shape_of(number) or ()):
            apart = None
        if apart is not None and all((shape_of(x) or ())[:-2] == lead for x in args):
            args = [self._apart(x, apart) for x in args]
            if joined is not None and (own := shape_of(joined)) is not None and own[:-2] == lead:
                joined = self._bind("reshape", (joined,), newshape=(*apart, *own[-2:]))
        for number, divides in factors:
            args[0] = self._bind("divide" if divides else "multiply", (args[0], number))
        attrs: dict[str, Attr] = {"causal": True} if later else {}
        if hidden is not None and np.isfinite(hidden):
            attrs["hidden"] = hidden
        out = self._bind(
            "nn.attention", args if joined is None else [*args, joined], scale=scale * by_query * by_key, **attrs
        )
        wanted = shape_of(value)
        if wanted is None:
            return None
        plain = tuple(wanted[n] for n in last.axes)
        if shape_of(out) != plain:
            out = self._bind("reshape", (out,), newshape=plain)
        if not in_order(last.axes):
            back = tuple(last.axes.index(n) for n in range(len(wanted)))
            out = self._bind("transpose", (out,), axes=back)
        bindings = tuple(Binding(v, call) for v, call in self.made.items())
        return Block(bindings, out, value.ty, value.span) if type_of(out) == value.ty else None

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
        least = constant(np.asarray(-np.inf, numpy_dtype(dtype_of(joined))), dtype_of(joined))
        return self._bind("where", (seen, joined, least))

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
        return self._bind("logical_not", (mask,))

    def _added(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr] | None:
        """Scores and mask of a step that adds one, or subtracts what it is the negative of."""
        assert isinstance(step.fn, OpRef)
        if shape_of(step) != shape or step.fn.name not in ("add", "subtract"):
            return None
        taken = step.fn.name == "subtract"
        # Of two operands of the full shape the scores are the one that a product leads to.
        for scores, mask in (step.args, step.args[::-1])[: 1 if taken else 2]:
            if shape_of(scores) == shape and is_sized(mask) and self._leads_to_product(scores):
                return scores, self._bind("negative", (mask,)) if taken else mask
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
            if (
                _scaled(step, self.definition) is not None
                or is_view(step)
                or step.fn.name in ("add", "subtract", "where")
            ):
                todo += step.args
        return False

    def _through_views(self, e: Expr) -> Expr:
        """What is read through views that nothing else reads, or the variable that something else reads."""
        while self._once(e):
            step = self.definition(e)
            if not isinstance(step, Call) or not is_view(step):
                return step
            e = step.args[0]
        return e

    def _scores(self, step: Expr) -> MatrixProduct | None:
        """The product that scores are, with the keys along their last axis."""
        if not self._read_once(step):
            return None
        return next((p for p in matrix_products(step, self.definition) if in_order(p.axes)), None)

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
        if shape_of(e) != shape_of(step):
            return operand, 1.0
        for call in reversed(layout):
            var = Var("layout", None, call.ty, call.span)
            self.made[var] = Call(call.fn, (e, *call.args[1:]), call.attrs, (), call.ty, call.span)
            e = var
        return e, factor

    def _operand(self, e: Expr, axes: tuple[int, ...], lead: tuple[Dim, ...], shared: bool = False) -> Expr | None:
        """An operand of a product as (*lead, rows, k); a batch of one that the product repeats keeps its size. One that heads share has
        one head for each that share it, or one for all of them."""
        if not in_order(axes):
            step = self._known(e)
            back = axes == exchanged(tuple(range(len(axes)))) and isinstance(step, Call) and exchanges_last(step)
            e = step.args[0] if back and isinstance(step, Call) else self._bind("transpose", (e,), axes=axes)
        shape = shape_of(e)
        if shape is None:
            return None
        batch = shape[:-2]
        if shared:
            if lead[:-1] == batch:
                return self._bind("reshape", (e,), newshape=(*batch, 1, *shape[-2:]))
            heads = (*batch[-1:], *lead[-1:])
            known = len(heads) == 2 and all(isinstance(d, int) and d > 0 for d in heads)
            return e if known and lead[:-1] == batch[:-1] else None
        if batch == lead:
            return e
        if known_equal(shape_size(batch), shape_size(lead)):
            return self._bind("reshape", (e,), newshape=(*lead, *shape[-2:]))
        return e if len(lead) == 1 and batch == (1,) else None

    def _unrepeated(self, key: Expr, value: Expr) -> tuple[Expr, Expr]:
        """Keys and values before they were repeated for the heads that share them."""
        sources: list[Expr] = []
        times: set[object] = set()
        for e in (key, value):
            step, shape = self._known(e), shape_of(e) or ()
            if (
                not isinstance(step, Call)
                or not isinstance(step.fn, OpRef)
                or step.fn.name != "repeat"
                or len(shape) < 3
            ):
                return key, value
            attrs = registry.get("repeat").complete_attrs(step.attrs)
            source = shape_of(step.args[0]) or ()
            if attrs["axis"] not in (-3, len(shape) - 3) or not all(isinstance(s[-3], int) for s in (source, shape)):
                return key, value
            times.add(attrs["repeats"])
            sources.append(step.args[0])
        return (sources[0], sources[1]) if len(times) == 1 else (key, value)

    def _scaled_by_rows(self, step: Call, shape: tuple[Dim, ...]) -> tuple[Expr, Expr, bool] | None:
        """Scores, a tensor that has one number for each matrix or each row of them, and whether they are divided by it."""
        assert isinstance(step.fn, OpRef)
        if step.fn.name not in ("multiply", "divide") or shape_of(step) != shape:
            return None
        divides = step.fn.name == "divide"
        for scores, factor in (step.args, step.args[::-1])[: 1 if divides else 2]:
            size = shape_of(factor)
            if size is None or shape_of(scores) != shape or not is_sized(factor) or isinstance(factor, Constant):
                continue
            if all(d == 1 for d in size[-1:]) and self._leads_to_product(scores):
                return scores, factor, divides
        return None

    def _apart(self, e: Expr, lead: tuple[Dim, ...]) -> Expr:
        """An operand with the leading axes ``lead``, of which the program made those that it has."""
        step, shape = self._known(e), shape_of(e) or ()
        if isinstance(step, Call) and is_view(step) and shape_of(step.args[0]) == (*lead, *shape[-2:]):
            return step.args[0]
        if isinstance(step, Call) and exchanges_last(step):
            inner = self._apart(step.args[0], lead)
            return self._bind("transpose", (inner,), axes=exchanged(tuple(range(len(lead) + 2))))
        return self._bind("reshape", (e,), newshape=(*lead, *shape[-2:]))

    def _known(self, e: Expr) -> Expr:
        """What a variable stands for, also one that is bound here."""
        return self.made.get(e) or self.definition(e) if isinstance(e, Var) else e

    def _bind(self, op: str, args: Sequence[Expr], **attrs: Attr) -> Var:
        call = op_call(op, args, attrs)
        var = Var(op.rsplit(".", 1)[-1], None, call.ty)
        self.made[var] = call
        return var


def _name(value: Expr) -> str:
    """What computes a value, in words."""
    if isinstance(value, Call) and isinstance(value.fn, OpRef):
        return value.fn.name
    return "what is no operator" if not isinstance(value, Constant) else "a constant"


def _scaled(step: Expr, definition: Definition) -> tuple[Expr, float] | None:
    """What is multiplied or divided by a constant of one element, or negated, and the factor."""
    negated = match(_NEGATED, step, definition)
    if negated is not None and isinstance(negated[_X], Var):
        return negated[_X], -1.0
    for pattern, inverse in _SCALED:
        found = match(pattern, step, definition)
        if found is None:
            continue
        by = found[_C]
        assert isinstance(by, Constant)
        if by.data.size == 1 and isinstance(found[_X], Var) and by.dtype == dtype_of(found[_X]):
            factor = float(by.data.reshape(()))
            if factor != 0 and np.isfinite(factor):
                return found[_X], 1 / factor if inverse else factor
    return None


def _unmerged(e: Expr, known: Definition) -> tuple[Dim, ...] | None:
    """The leading axes of which a view made those of an operand, with the same matrices or transposed ones."""
    step = known(e)
    while isinstance(step, Call) and exchanges_last(step):
        e, step = step.args[0], known(step.args[0])
    shape = shape_of(e)
    if shape is None or not isinstance(step, Call) or not is_view(step) or not is_sized(step.args[0]):
        return None
    source = shape_of(step.args[0])
    return source[:-2] if source is not None and len(source) > len(shape) and _keeps_matrices(source, shape) else None


def _keeps_matrices(a: tuple[Dim, ...], b: tuple[Dim, ...] | None) -> bool:
    """Whether two views of one tensor have the same last two axes."""
    return b is not None and len(b) >= 2 and a[-2:] == b[-2:]
