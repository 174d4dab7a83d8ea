"""Whether levels are faster than their nodes, as far as that is in the sizes of what they multiply.

A level reads a matrix that all nodes share once, where each node would read it. A matrix that stands in a node, or that a node has
computed, is read once either way, but becomes a row of a tensor before, which costs more than the product: of 32 nodes with a square
matrix each, by level and node by node, microseconds: 32 wide 21 and 17, 64 wide 32 and 16, 128 wide 83 and 38, a batch of 16 such trees
19 and 17, 32 and 20, 824 and 183 each. (One that a node takes from a table is read where it lies.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

from relay.ir.dim_total import dim_typical
from relay.ir.expr import Binding, Call, Expr, Function, OpRef, Var
from relay.ir.types import TensorType
from relay.op.batched import SUFFIX
from relay.transform.access import AccessTable
from relay.transform.blocks import all_bindings, body_of

# Items whose products have more elements keep a kernel busy by themselves (images, whole sequences).
_MANY = 1 << 14
# Matrices of fewer elements cost less than what else there is to do for a node.
_LITTLE = 2048
# Requests that bring sequences, a step of an LSTM, microseconds, in one batch and one after the other (32 of some 22 steps, a core of an
# EPYC with AVX2): with a result for each step, 100, 150, 200, 512 wide: 4.7 and 4.1, 8.6 and 8.2, 15.6 and 18.7, 58 and 99; two layers, 64,
# 100, 150, 512 wide: 5.3 and 4.8, 9.9 and 10.6, 17 and 21, 120 and 227.
WORTH_STACKING, WORTH_LISTS = 1 << 17, 1 << 15
# So many times the elements must be shared for what is gained by these to be more.
_TIMES = 4


def copies_more_than_it_shares(functions: Iterable[Function], table: AccessTable) -> bool:
    """Whether what nodes multiply by are mostly matrices of their own, which become rows of tensors in these functions of levels."""
    own = shared = 0
    for function in functions:
        bindings = list(all_bindings(body_of(function)))
        made = {b.var: b.value for b in bindings}
        for call in (b.value for b in bindings):
            if not isinstance(call, Call) or "mask" not in call.attrs:
                continue
            access = table.of(call)
            mask = cast("tuple[int, ...]", call.attrs["mask"])
            if access is None or access.kind != "contraction" or len(mask) != len(call.args):
                continue
            for arg, apart in zip(call.args, mask, strict=True):
                size = _elements(arg, apart)
                if not apart:
                    shared += size
                elif not (isinstance(arg, Var) and _is_taken(made.get(arg))):
                    own += size
    return own >= _LITTLE and shared < _TIMES * own


def multiplies_little(code: Iterable[Binding], table: AccessTable) -> bool:
    """Whether there are products in what is done to one item, and none of them is large: those of all items are one that is worth more."""
    sizes = []
    for binding in code:
        access = table.of(binding.value) if isinstance(binding.value, Call) else None
        if access is not None and access.kind == "contraction" and isinstance(ty := binding.var.ty, TensorType):
            sizes.append(math.prod(map(dim_typical, ty.shape)) if isinstance(ty.shape, tuple) else _MANY + 1)
    return bool(sizes) and max(sizes) <= _MANY


def multiplies_by(functions: Iterable[Function], least: int, table: AccessTable) -> bool:
    """Whether there is a product with a matrix of so many elements, or of unknown sizes."""
    for function in functions:
        for call in (b.value for b in all_bindings(body_of(function)) if isinstance(b.value, Call)):
            access = table.of(call)
            if access is None or access.kind != "contraction":
                continue
            for a in call.args:
                shape = a.ty.shape if isinstance(a.ty, TensorType) else None
                sizes = shape if isinstance(shape, tuple) else (None,)
                if math.prod(d if isinstance(d, int) else least for d in sizes) >= least:
                    return True
    return False


def _elements(operand: Expr, apart: int) -> int:
    """How many elements of a matrix each node multiplies by; 0 for vectors."""
    ty = operand.ty
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        return 0
    wide = [d for d in ty.shape[apart:] if d != 1]
    return math.prod(map(dim_typical, wide)) if len(wide) > 1 else 0


def _is_taken(value: Expr | None) -> bool:
    """Whether these are matrices of a table."""
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name == "take" + SUFFIX
