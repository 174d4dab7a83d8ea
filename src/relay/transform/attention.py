"""Attention that a program spells out becomes one operator, `nn.attention`.

    scores = batch_matmul(q, k) * scale + mask;  out = batch_matmul(softmax(scores), v)

The softmax of one product feeding another is found, whatever scales and masks stand between, in any order that means a
scale and a mask, and with views around. Sources: Dao et al., FlashAttention (2022), for why the three should be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial, reduce
from operator import and_, mul
from typing import ClassVar

import numpy as np

from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attr, Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.transform.attention_operands import Operands, keeps_matrices, unmerged
from relay.transform.attention_scores import ANOTHER_VIEW, ScoreReader, Scores, Weights
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, is_primitive, map_functions
from relay.transform.build import constant, type_of
from relay.transform.mask_windows import Window, window_of
from relay.transform.matrix_products import (
    MatrixProduct,
    dtype_of,
    exchanged,
    in_order,
    is_sized,
    matrix_products,
    shape_of,
    turned,
)
from relay.transform.pattern import Definition, is_op, match, wildcard
from relay.transform.softmaxes import softmax_over
from relay.transform.uses import use_counts


@record(frozen=True, slots=True)
class FuseAttention(Pass):
    """Put `nn.attention` in place of two products with a softmax between them.

    Before: typed blocks; products of unknown sizes (``?``) are left alone. After: the same values up to rounding. What else
    reads the scores or the weights keeps them: then nothing is changed. The products' right operands are not constants, which
    have kernels of their own.
    Matrices of scores that are known to be smaller than ``least`` numbers stay; causal ones count eight times. Where one of their
    sizes is known, the other counts as `_MANY`.
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


_X, _TOTAL = wildcard(), wildcard()
# Half of causal scores are never made, and what blocks of others hold is in a near cache: they are worth a kernel where they are fewer.
_CAUSAL_COUNTS = 8
# What stands for an unknown number of queries or keys, where the other one is known: with `relay.pipeline`'s limit up to 63 queries, 7
# of causal attention, have their scores kept, however many keys there are.
_MANY = 1 << 13
# Stands for masks that cannot be one.
_APART: Expr = Var("apart")


@record(slots=True, eq=False)
class AttentionFinder:
    """Looks from the last product back to the first; ``why`` says why there is no attention, where that is known."""

    definition: Definition
    uses: Counter[Var]
    least: int
    why: str = ""
    # What the replacement reads.
    operands: Operands = field(init=False)

    def __post_init__(self) -> None:
        self.operands = Operands(self.definition)

    def attention(self, value: Expr) -> Block | None:
        """What takes the place of the last product; None where it is none, or has no such form."""
        total: Expr | None = None
        product = value
        if isinstance(value, Call) and match(is_op("divide")(_X, _TOTAL), value, self.definition) is not None:
            # The weights may be divided by their sum after they are multiplied.
            numerator = value.args[0]
            if not isinstance(numerator, Var) or self.uses[numerator] != 1:
                return None
            product, total = self.definition(numerator), value.args[1]
        reader = ScoreReader(self.definition, self.uses, self.operands, dtype_of(value))
        if not reader.read_once(product):
            return None
        for seen in matrix_products(product, self.definition):
            for last in (seen, *turned(seen)):
                if last.left_axes not in (plain := tuple(range(len(last.left_axes))), exchanged(plain)):
                    self.why = self.why or "the second product does not read the weights as rows by keys"
                elif total is None or in_order(last.axes):
                    found = self._around(value, last, total, reader)
                    if found is not None:
                        return found
                    self.operands.made.clear()
        return None

    def _around(self, value: Expr, last: MatrixProduct, total: Expr | None, reader: ScoreReader) -> Block | None:
        """The same for one way to see the last product, whose result is divided by ``total``."""
        found: tuple[Expr, int, int] | None
        weights = Weights(self.definition(last.left)) if total is not None else reader.weights(last.left)
        softmax = weights.rest
        if total is not None:
            found = softmax_over(last.left, total, self.definition, self.uses, of_any_size=True)
        else:
            found = reader.softmax(softmax)
        shape = shape_of(softmax)
        if found is None or shape is None:
            return self._none(self._between(softmax, last.left))
        if not is_sized(softmax):
            return self._none("the scores have a size that is only known at run time (?)")
        scores, axis, reads = found
        by_keys = not in_order(last.left_axes)
        if len(shape) < 2 or axis % len(shape) != len(shape) - (2 if by_keys else 1):
            return self._none("the softmax is not over the axis of the scores that the second product sums over")
        if any(d == 0 for d in shape) or not keeps_matrices(shape, shape_of(last.left)):
            return self._none(ANOTHER_VIEW)
        try:
            read = reader.scores(scores, shape, reads, by_keys)
            if read is None:
                return self._none(reader.why)
            first, of = read
            if by_keys:
                first, of, weights, shape = self._turned(first, of, weights, shape)
            return self._replacement(value, last, first, of, weights, shape)
        except RelayError as error:  # sizes that are equal at run time but not known to be: left as it is
            return self._none(error.message)

    def _none(self, why: str) -> Block | None:
        """No replacement, and why; of several ways to see the products the first says it."""
        self.why = self.why or why
        return None

    def _between(self, step: Expr, weights: Expr) -> str:
        """Why weights are not seen as a softmax."""
        if isinstance(step, Var):
            return f"%{step.name} is read {self.uses[step]} times, not by the second product alone"
        if isinstance(weights, Var) and self.uses[weights] != 1:
            return f"%{weights.name} is read {self.uses[weights]} times, not by the second product alone"
        return f"{_name(step)} stands between the softmax and the second product"

    def _turned(
        self, first: MatrixProduct, scores: Scores, weights: Weights, shape: tuple[Dim, ...]
    ) -> tuple[MatrixProduct, Scores, Weights, tuple[Dim, ...]]:
        """Scores that have the keys along their rows, as they are with the queries there."""
        over = self.operands.exchanged
        if first.shared or isinstance(first.left, Constant):
            raise RelayError("the keys are a constant, or shared by heads")
        (product,) = turned(first)
        product = replace(product, axes=exchanged(product.axes))
        made = replace(
            scores,
            factors=tuple((over(e), divides) for e, divides in scores.factors),
            masks=tuple(map(over, scores.masks)),
            chosen=tuple(map(over, scores.chosen)),
            operands=tuple(map(over, scores.operands)),
        )
        return product, made, replace(weights, factors=tuple(map(over, weights.factors))), exchanged(shape)

    def _replacement(
        self,
        value: Expr,
        last: MatrixProduct,
        first: MatrixProduct,
        scores: Scores,
        weights: Weights,
        shape: tuple[Dim, ...],
    ) -> Block | None:
        """What takes the place of a value around two products, with scores of this shape."""
        made, hidden, lead = self.operands, scores.hidden, shape[:-2]
        query, by_query = made.unscaled(first.left)
        key, by_key = made.unscaled(first.right)
        q = made.operand(query, first.left_axes, lead)
        k = made.operand(key, first.right_axes, lead, first.shared > 0)
        v = made.operand(last.right, exchanged(last.right_axes), lead, last.shared > 0)
        if q is None or k is None or v is None:
            return self._none("batches and heads of query, key and value do not fit each other")
        k, v = made.unrepeated(k, v)
        args = [q, k, v]
        m, n = shape[-2:]
        masks, chosen = scores.masks, scores.chosen
        windows = {x: w for x in (*chosen, *masks) if (w := window_of(x, made.known, m, n)) is not None}
        later = list(windows)
        if any(x in masks for x in later) and hidden is not None and np.isfinite(hidden):
            later = [x for x in later if x in chosen]
        both = isinstance(m, int) or isinstance(n, int)
        count = reduce(mul, (d if isinstance(d, int) else _MANY for d in (m, n))) if both else self.least
        if count * (_CAUSAL_COUNTS if later else 1) < self.least:
            return self._none("the matrices of scores are small, so that their gradient is taken of the parts")
        joined = self._joined([x for x in masks if x not in later], [x for x in chosen if x not in later], hidden)
        if joined is _APART:
            return self._none("one mask is added and another gives hidden keys a finite score")
        beside = [] if joined is None else [joined]
        factor = self._factor(weights.factors)
        others = [*beside, *scores.operands, *([] if factor is None else [factor])]
        apart = unmerged(q, made.known)
        if any(d != 1 for number, _ in scores.factors for d in shape_of(number) or ()):
            apart = None
        leads = [(shape_of(x) or ())[:-2] for x in others]
        fit = all((shape_of(x) or ())[:-2] == lead for x in args)
        if apart is not None and fit and all(own == lead or all(d == 1 for d in own) for own in leads):
            args = [made.apart(x, apart) for x in args]
            others = [made.lead(x, lead, apart) for x in others]
        for number, divides in scores.factors:
            args[0] = made.bind("divide" if divides else "multiply", (args[0], number))
        attrs: dict[str, Attr] = {"scale": scores.scale * by_query * by_key}
        window = reduce(and_, (windows[x] for x in later), Window())
        if window == Window(None, 0):
            attrs["causal"] = True
        elif later:
            attrs["window"] = tuple(-1 if bound is None else bound for bound in (window.before, window.after))
        if hidden is not None and np.isfinite(hidden):
            attrs["hidden"] = hidden
        if scores.steps or factor is not None:
            parts: dict[str, Attr] = {"score": scores.steps, "masked": bool(beside), "weighed": factor is not None}
            attrs.update({name: part for name, part in parts.items() if part})
            out = made.bind("nn.scored_attention", (*args, made.joint(others)), **attrs)
        else:
            out = made.bind("nn.attention", (*args, *others), **attrs)
        if weights.scale != 1.0:
            dtype = dtype_of(out)
            out = made.bind("multiply", (out, constant(np.asarray(weights.scale, numpy_dtype(dtype)), dtype)))
        wanted = shape_of(value)
        if wanted is None:
            return None
        plain = tuple(wanted[n] for n in last.axes)
        if shape_of(out) != plain:
            out = made.bind("reshape", (out,), newshape=plain)
        if not in_order(last.axes):
            back = tuple(last.axes.index(n) for n in range(len(wanted)))
            out = made.bind("transpose", (out,), axes=back)
        bindings = tuple(Binding(v, call) for v, call in made.made.items())
        return Block(bindings, out, value.ty, value.span) if type_of(out) == value.ty else None

    def _factor(self, factors: Sequence[Expr]) -> Expr | None:
        """All that shares are multiplied with as one tensor."""
        made, product, seen = self.operands, list[Expr](), list[Expr]()
        for factor in factors:
            (seen if dtype_of(factor) == "bool" else product).append(factor)
        both = [
            reduce(partial(self._both, op), some) for op, some in (("multiply", product), ("logical_and", seen)) if some
        ]
        if len(both) < 2:
            return both[0] if both else None
        dtype = dtype_of(both[0])
        return made.bind("where", (both[1], both[0], constant(np.zeros((), numpy_dtype(dtype)), dtype)))

    def _both(self, op: str, a: Expr, b: Expr) -> Expr:
        return self.operands.bind(op, self.operands.of_one_dtype(a, b))

    def _joined(self, masks: Sequence[Expr], chosen: Sequence[Expr], hidden: float | None) -> Expr | None:
        """All that is added to the scores and all that chooses among them as one mask; `_APART` where there is none."""
        if masks and chosen and hidden is not None and np.isfinite(hidden):
            return _APART
        joined: Expr | None = None
        for mask in masks:
            joined = mask if joined is None else self.operands.bind("add", self.operands.of_one_dtype(joined, mask))
        if not chosen:
            return joined
        seen = chosen[0]
        for mask in chosen[1:]:
            seen = self.operands.bind("logical_and", (seen, mask))
        if joined is None:
            return seen
        least = constant(np.asarray(-np.inf, numpy_dtype(dtype_of(joined))), dtype_of(joined))
        return self.operands.bind("where", (seen, joined, least))


def _name(value: Expr) -> str:
    """What computes a value, in words."""
    if isinstance(value, Call) and isinstance(value.fn, OpRef):
        return value.fn.name
    return "what is no operator" if not isinstance(value, Constant) else "a constant"
