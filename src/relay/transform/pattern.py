"""A small language of patterns over programs in blocks.

    x, c = wildcard(), is_constant()
    pattern = is_op("add")(is_op("nn.dense")(x, wildcard()), c)
    found = match(pattern, value, definition)
    if found is not None:
        found[x]

A pattern is matched against an operation; its operands are looked up through ``definition``, so it sees through
variables. The same pattern object matched twice must find the same thing. Patterns are as deep as they were written,
so matching recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import assert_never

import numpy as np

from relay.ir.expr import Attr, Call, Constant, Expr, OpRef, Proj, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.transform.blocks import Forward, Scope, map_functions

Definition = Callable[[Expr], Expr]


class _Sugar:
    """What every pattern can do: ``a | b``, ``a.where(condition)``."""

    __slots__ = ()

    def __or__(self, other: Pattern) -> Pattern:
        return AltPattern(self, other)  # type: ignore[arg-type]

    def where(self, condition: Callable[[Expr], bool]) -> Pattern:
        """The same, when the condition holds of the expression found."""
        return WherePattern(self, condition)  # type: ignore[arg-type]

    def has_dtype(self, dtype: str) -> Pattern:
        """The same, when what is found is a tensor of this base type."""
        return self.where(lambda e: isinstance(e.ty, TensorType) and e.ty.dtype == dtype)


@record(frozen=True, slots=True, eq=False)
class WildcardPattern(_Sugar):
    """Anything."""


@record(frozen=True, slots=True, eq=False)
class ConstantPattern(_Sugar):
    """A constant; with ``value`` one whose elements all are this number."""

    value: float | None = None


@record(frozen=True, slots=True, eq=False)
class OpPattern(_Sugar):
    """A call of one of these operators. Calling the pattern gives it operands; without any all operands fit."""

    names: tuple[str, ...]
    args: tuple[Pattern, ...] | None = None
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    def __call__(self, *args: Pattern) -> OpPattern:
        return replace(self, args=args)

    def has_attrs(self, **attrs: Attr) -> OpPattern:
        """The same, when the call gives these attributes these values."""
        return replace(self, attrs={**self.attrs, **attrs})


@record(frozen=True, slots=True, eq=False)
class TuplePattern(_Sugar):
    """A tuple; without ``fields`` of any number."""

    fields: tuple[Pattern, ...] | None = None


@record(frozen=True, slots=True, eq=False)
class ProjPattern(_Sugar):
    """A projection, of a field when ``index`` is given."""

    tuple: Pattern
    index: int | None = None


@record(frozen=True, slots=True, eq=False)
class AltPattern(_Sugar):
    """The first pattern, or else the second."""

    first: Pattern
    second: Pattern


@record(frozen=True, slots=True, eq=False)
class WherePattern(_Sugar):
    pattern: Pattern
    condition: Callable[[Expr], bool]


Pattern = WildcardPattern | ConstantPattern | OpPattern | TuplePattern | ProjPattern | AltPattern | WherePattern


def wildcard() -> WildcardPattern:
    return WildcardPattern()


def is_constant(value: float | None = None) -> ConstantPattern:
    return ConstantPattern(value)


def is_op(*names: str) -> OpPattern:
    return OpPattern(names)


def is_tuple(fields: Sequence[Pattern] | None = None) -> TuplePattern:
    return TuplePattern(None if fields is None else tuple(fields))


def is_proj(whole: Pattern, index: int | None = None) -> ProjPattern:
    return ProjPattern(whole, index)


@record(slots=True, eq=False)
class Found:
    """What a match has found: by pattern the atom at its place (the matched operation itself for the root)."""

    at: dict[Pattern, Expr] = field(default_factory=dict)

    def __getitem__(self, pattern: Pattern) -> Expr:
        return self.at[pattern]

    def call(self, pattern: Pattern, definition: Definition) -> Call:
        """The call that an operator pattern has found."""
        value = definition(self.at[pattern])
        assert isinstance(value, Call)
        return value


def match(pattern: Pattern, value: Expr, definition: Definition = lambda e: e) -> Found | None:
    """What the pattern finds in an operation; None when it does not fit."""
    found = Found()
    return found if _matches(pattern, value, definition, found) else None


def _matches(pattern: Pattern, e: Expr, definition: Definition, found: Found) -> bool:
    known = found.at.get(pattern)
    if known is not None:
        return known is e
    if isinstance(pattern, AltPattern):
        kept = dict(found.at)
        fits = _matches(pattern.first, e, definition, found)
        if not fits:
            found.at = kept
            fits = _matches(pattern.second, e, definition, found)
    else:
        fits = _fits(pattern, e, definition, found)
    if fits:
        found.at[pattern] = e
    return fits


def _fits(pattern: Pattern, e: Expr, definition: Definition, found: Found) -> bool:
    match pattern:
        case WildcardPattern():
            return True
        case ConstantPattern():
            return isinstance(e, Constant) and (pattern.value is None or is_filled(e, pattern.value))
        case WherePattern():
            return _matches(pattern.pattern, e, definition, found) and pattern.condition(e)
        case AltPattern():
            raise AssertionError("alternatives are handled by the caller")
        case _:
            pass
    value = definition(e)
    match pattern:
        case OpPattern():
            if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in pattern.names:
                return False
            if any(k not in value.attrs or attrs_key(value.attrs[k]) != attrs_key(v) for k, v in pattern.attrs.items()):
                return False
            return pattern.args is None or _all(pattern.args, value.args, definition, found)
        case TuplePattern():
            if not isinstance(value, Tuple):
                return False
            return pattern.fields is None or _all(pattern.fields, value.fields, definition, found)
        case ProjPattern():
            if not isinstance(value, Proj) or (pattern.index is not None and value.index != pattern.index):
                return False
            return _matches(pattern.tuple, value.tuple, definition, found)
        case _:
            assert_never(pattern)


def _all(patterns: Sequence[Pattern], args: Sequence[Expr], definition: Definition, found: Found) -> bool:
    pairs = zip(patterns, args, strict=False)
    return len(patterns) == len(args) and all(_matches(p, a, definition, found) for p, a in pairs)


def is_filled(constant: Constant, value: float) -> bool:
    """Whether every element of a small constant is this number (for zero: of this sign)."""
    if constant.data.size == 0 or constant.data.size > 4096:
        return False
    data = constant.data.astype(np.float64)
    return bool(np.all(data == value)) and bool(np.all(np.signbit(data) == np.signbit(value)))


# Given what was found and how to look up definitions, the replacement (an atom, an operation, or a block), or None to
# leave it.
Replacement = Callable[[Found, Expr, Definition], Expr | None]


@record(frozen=True, slots=True, eq=False)
class Rule:
    """Where the pattern fits an operation, ``replacement(found, operation, definition)`` takes its place."""

    pattern: Pattern
    replacement: Replacement


class RuleTable:
    """Rules by the operator at their root, tried in order."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_name: dict[str, list[Rule]] = {}
        self._others: list[Rule] = []
        for rule in rules:
            root = rule.pattern
            while isinstance(root, WherePattern):
                root = root.pattern
            if isinstance(root, OpPattern):
                for name in root.names:
                    self._by_name.setdefault(name, []).append(rule)
            else:
                self._others.append(rule)

    def apply(self, value: Expr, definition: Definition) -> Expr:
        """The operation after the first rule that has a replacement for it, or itself."""
        rules = self._others
        if isinstance(value, Call) and isinstance(value.fn, OpRef):
            rules = [*self._by_name.get(value.fn.name, ()), *rules]
        for rule in rules:
            found = match(rule.pattern, value, definition)
            if found is not None:
                new = rule.replacement(found, value, definition)
                if new is not None:
                    return new
        return value


def rewrite(module: Module, rules: Iterable[Rule]) -> Module:
    """The module (in blocks) with the rules applied wherever they fit, until none does in what they made."""
    table = RuleTable(rules)

    def function_rewriter(limit: int = 16) -> Forward:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            for _ in range(limit):
                new = table.apply(value, driver.definition)
                if new is value:
                    break
                value = new
            return value

        driver = Forward(visit)
        return driver

    return map_functions(module, lambda f: function_rewriter().function(f))
