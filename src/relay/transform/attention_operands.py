"""The operands of an attention that is spelled out: what they are before they were brought into the layout of its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from relay.ir.dim import Dim, known_equal, shape_size
from relay.ir.expr import Attr, Call, Constant, Expr, OpRef, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TupleType, dtype_bits
from relay.op import registry
from relay.transform.build import op_call, type_of
from relay.transform.matrix_products import dtype_of, exchanged, exchanges_last, in_order, is_sized, is_view, shape_of
from relay.transform.pattern import Definition, Pattern, is_constant, is_op, match, wildcard

_X, _C = wildcard(), is_constant()
_SCALED: tuple[tuple[Pattern, bool], ...] = (
    (is_op("multiply")(_X, _C), False),
    (is_op("multiply")(_C, _X), False),
    (is_op("divide")(_X, _C), True),
)
_NEGATED = is_op("negative")(_X)


@record(slots=True, eq=False)
class Operands:
    """Makes what the replacement of an attention reads. ``made`` are its bindings, in order."""

    definition: Definition
    made: dict[Var, Call | Tuple] = field(default_factory=dict)

    def known(self, e: Expr) -> Expr:
        """What a variable stands for, also one that is bound here."""
        return self.made.get(e) or self.definition(e) if isinstance(e, Var) else e

    def bind(self, op: str, args: Sequence[Expr], **attrs: Attr) -> Var:
        call = op_call(op, args, attrs)
        var = Var(op.rsplit(".", 1)[-1], None, call.ty)
        self.made[var] = call
        return var

    def joint(self, fields: Sequence[Expr]) -> Var:
        """A tuple of tensors."""
        ty = TupleType(tuple(type_of(e) for e in fields))
        var = Var("operands", None, ty)
        self.made[var] = Tuple(tuple(fields), ty)
        return var

    def exchanged(self, e: Expr) -> Expr:
        """A tensor that is broadcast to scores, with its last two axes exchanged."""
        shape = shape_of(e) or ()
        if len(shape) < 2:
            return self.bind("reshape", (e,), newshape=(*shape, 1)) if shape else e
        return self.bind("transpose", (e,), axes=exchanged(tuple(range(len(shape)))))

    def of_one_dtype(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Two tensors of floats in the wider one of their dtypes."""
        kinds = dtype_of(a), dtype_of(b)
        wide = max(kinds, key=dtype_bits)
        a, b = (
            e if kind == wide else self.bind("cast", (e,), dtype=wide) for e, kind in zip((a, b), kinds, strict=True)
        )
        return a, b

    def lead(self, e: Expr, lead: Sequence[Dim], apart: Sequence[Dim]) -> Expr:
        """What is broadcast to scores, with the leading axes ``apart`` in the place of ``lead``, if it has these."""
        shape = shape_of(e) or ()
        whole = len(shape) >= 2 and shape[:-2] == lead and len(lead) > 0
        return self.bind("reshape", (e,), newshape=(*apart, *shape[-2:])) if whole else e

    def operand(self, e: Expr, axes: tuple[int, ...], lead: tuple[Dim, ...], shared: bool = False) -> Expr | None:
        """An operand of a product as (*lead, rows, k); a batch of one that the product repeats keeps its size. One that heads share has
        one head for each that share it, or one for all of them."""
        if not in_order(axes):
            step = self.known(e)
            back = axes == exchanged(tuple(range(len(axes)))) and isinstance(step, Call) and exchanges_last(step)
            e = step.args[0] if back and isinstance(step, Call) else self.bind("transpose", (e,), axes=axes)
        shape = shape_of(e)
        if shape is None:
            return None
        batch = shape[:-2]
        if shared:
            if lead[:-1] == batch:
                return self.bind("reshape", (e,), newshape=(*batch, 1, *shape[-2:]))
            heads = (*batch[-1:], *lead[-1:])
            known = len(heads) == 2 and all(isinstance(d, int) and d > 0 for d in heads)
            return e if known and lead[:-1] == batch[:-1] else None
        if batch == lead:
            return e
        if known_equal(shape_size(batch), shape_size(lead)):
            return self.bind("reshape", (e,), newshape=(*lead, *shape[-2:]))
        return e if len(lead) == 1 and batch == (1,) else None

    def unscaled(self, operand: Expr) -> tuple[Expr, float]:
        """An operand of the first product without a scale applied to it before it was brought into its layout."""
        layout: list[Call] = []
        e = operand
        while True:
            step = self.definition(e)
            if not isinstance(step, Call) or not isinstance(step.fn, OpRef):
                return operand, 1.0
            found = scaled(step, self.definition)
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

    def unrepeated(self, key: Expr, value: Expr) -> tuple[Expr, Expr]:
        """Keys and values before they were repeated for the heads that share them."""
        sources: list[Expr] = []
        times: set[object] = set()
        for e in (key, value):
            step, shape = self.known(e), shape_of(e) or ()
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

    def apart(self, e: Expr, lead: tuple[Dim, ...]) -> Expr:
        """An operand with the leading axes ``lead``, of which the program made those that it has."""
        step, shape = self.known(e), shape_of(e) or ()
        if isinstance(step, Call) and is_view(step) and shape_of(step.args[0]) == (*lead, *shape[-2:]):
            return step.args[0]
        if isinstance(step, Call) and exchanges_last(step):
            inner = self.apart(step.args[0], lead)
            return self.bind("transpose", (inner,), axes=exchanged(tuple(range(len(lead) + 2))))
        return self.bind("reshape", (e,), newshape=(*lead, *shape[-2:]))


def scaled(step: Expr, definition: Definition) -> tuple[Expr, float] | None:
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


def unmerged(e: Expr, known: Definition) -> tuple[Dim, ...] | None:
    """The leading axes of which a view made those of an operand, with the same matrices or transposed ones."""
    step = known(e)
    while isinstance(step, Call) and exchanges_last(step):
        e, step = step.args[0], known(step.args[0])
    shape = shape_of(e)
    if shape is None or not isinstance(step, Call) or not is_view(step) or not is_sized(step.args[0]):
        return None
    source = shape_of(step.args[0])
    return source[:-2] if source is not None and len(source) > len(shape) and keeps_matrices(source, shape) else None


def keeps_matrices(a: tuple[Dim, ...], b: tuple[Dim, ...] | None) -> bool:
    """Whether two views of one tensor have the same last two axes."""
    return b is not None and len(b) >= 2 and a[-2:] == b[-2:]
