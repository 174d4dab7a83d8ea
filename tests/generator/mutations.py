"""Faults put into the compiler on purpose. Each must be found by generated programs, or the generator is not good enough.

A fault replaces one function of one room. What finds it is the check of the room: compiled code against the interpreter, or printing
against parsing. Faults that could make native code write outside of its memory are left out: they would end the test run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np
import pytest

from relay.codegen import elementary
from relay.codegen.arith import Arithmetic
from relay.codegen.convert import Conversions
from relay.executable.bytecode import Assembler
from relay.interpreter.evaluation import Machine
from relay.ir import scopes
from relay.ir.expr import Binding, Block, Call, Expr, If, Match, Proj, RefNew, RefRead, Tuple, Var
from relay.ir.parse_exprs import ExprActions
from relay.ir.printer import _Printer
from relay.lower import storage
from relay.plan import reduction
from relay.transform import cse, dead_code, fold_constants, lambda_lift, match_trees, simplify, to_blocks
from relay.transform.pattern import Rule, is_op, wildcard

Check = Literal["result", "round trip"]
Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault: how it is put in, which check is to find it, and the operators (any of them) without which it cannot show. ``first`` is the
    program to try first, which found it: the others come where it does not any more."""

    name: str
    check: Check
    apply: Callable[[Patch], None]
    needs: tuple[str, ...] = ()
    first: int = 0


MUTATIONS: list[Mutation] = []


def _fault(
    name: str, check: Check = "result", *needs: str, first: int = 0
) -> Callable[[Callable[[Patch], None]], None]:
    def add(apply: Callable[[Patch], None]) -> None:
        MUTATIONS.append(Mutation(name, check, apply, needs, first))

    return add


def _everywhere(patch: Patch, function: Callable[..., Any], instead: Callable[..., Any]) -> None:
    """Replace a function in every module of the compiler that has imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("relay.") and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, instead)


# -- code generation. Indices are int64: faults leave those alone.


def _binary(patch: Patch, change: Callable[[str, Any, Any], tuple[str, Any, Any]]) -> None:
    original = Arithmetic.binary

    def binary(self: Arithmetic, op: Any, a: Any, b: Any) -> Any:
        if a.dtype != "int64":
            op, a, b = change(op, a, b)
        return original(self, op, a, b)

    patch.setattr(Arithmetic, "binary", binary)


@_fault("codegen: operands of subtract are swapped", "result", "subtract", first=8)
def _swapped_subtract(patch: Patch) -> None:
    _binary(patch, lambda op, a, b: (op, b, a) if op == "sub" else (op, a, b))


@_fault("codegen: minimum is maximum", "result", "minimum", "min", first=6)
def _minimum(patch: Patch) -> None:
    _binary(patch, lambda op, a, b: ("max" if op == "min" else op, a, b))


@_fault("codegen: remainders truncate", "result", "floor_mod", first=468)
def _remainder(patch: Patch) -> None:
    _binary(patch, lambda op, a, b: ("truncmod" if op == "mod" else op, a, b))


@_fault("codegen: or is exclusive", "result", "logical_or", "bitwise_or", "any", first=36)
def _exclusive(patch: Patch) -> None:
    _binary(patch, lambda op, a, b: ("xor" if op == "or" else op, a, b))


@_fault("codegen: less is less or equal", "result", "less", "greater", first=201)
def _less(patch: Patch) -> None:
    original = Arithmetic.compare

    def compare(self: Arithmetic, op: Any, a: Any, b: Any) -> Any:
        changed = {"lt": "le", "gt": "ge"}.get(op, op) if a.dtype != "int64" else op
        return original(self, changed, a, b)

    patch.setattr(Arithmetic, "compare", compare)


@_fault("codegen: floor truncates", "result", "floor", first=88)
def _floor(patch: Patch) -> None:
    patch.setitem(elementary._FLOAT, "floor", elementary._FLOAT["trunc"])


@_fault("codegen: round is floor", "result", "round", first=18)
def _round(patch: Patch) -> None:
    patch.setitem(elementary._FLOAT, "round", elementary._FLOAT["floor"])


@_fault("codegen: tanh misses a term", "result", "tanh")
def _tanh(patch: Patch) -> None:
    original = elementary._FLOAT["tanh"]
    patch.setitem(elementary._FLOAT, "tanh", lambda kit, x: original(kit, original(kit, x)))


@_fault("codegen: casts to integers forget the sign", "result", "cast", "cast_like", first=167)
def _cast(patch: Patch) -> None:
    original = Conversions.cast

    def cast(self: Any, value: Any, dtype: str) -> Any:
        narrow = {"int8": "uint8", "int16": "uint16", "int32": "uint32"}.get(dtype)
        if narrow is None or value.dtype not in ("float32", "float64"):
            return original(self, value, dtype)
        return replace(original(self, value, narrow), dtype=dtype)

    patch.setattr(Conversions, "cast", cast)


# -- plans


@_fault("plan: the maximum starts at zero", "result", "max", "argmax", "nn.softmax")
def _start(patch: Patch) -> None:
    original = reduction._lowest
    patch.setattr(reduction, "_lowest", lambda dtype: replace(original(dtype), value=0.0 if "float" in dtype else 0))


@_fault("plan: sums forget what they had", "result", "sum", "mean", "variance", first=6)
def _forgetful(patch: Patch) -> None:
    original = reduction.combine

    def combine(kind: Any, so_far: Any, element: Any) -> Any:
        return element if kind == "sum" else original(kind, so_far, element)

    _everywhere(patch, original, combine)


# -- passes


@_fault("to blocks: the branches of an if are swapped")
def _swapped_branches(patch: Patch) -> None:
    original = to_blocks._operation

    def operation(e: Expr, kids: list[Expr], blocks: list[Block]) -> Expr:
        return original(e, kids, blocks[::-1] if isinstance(e, If) else blocks)

    patch.setattr(to_blocks, "_operation", operation)


@_fault("to blocks: operands are evaluated from the right", first=55)
def _from_the_right(patch: Patch) -> None:
    original = to_blocks._Lowering.lower

    def lower(self: Any, e: Expr, var: Var | None) -> Any:
        if isinstance(e, Tuple):
            for kid in reversed(e.fields):
                if self.known(kid) is None:
                    yield original(self, kid, None)
        return (yield original(self, e, var))

    patch.setattr(to_blocks._Lowering, "lower", lower)


@_fault("cse: attributes are not compared", first=264)
def _attributes(patch: Patch) -> None:
    patch.setattr(cse, "attrs_key", lambda attr: ())


@_fault("cse: reads of references are merged", first=75)
def _merged_reads(patch: Patch) -> None:
    original = cse.operation_key

    def key(value: Expr) -> object | None:
        return ("read", cse.atom_key(value.ref)) if isinstance(value, RefRead) else original(value)

    patch.setattr(cse, "operation_key", key)
    patch.setattr(cse, "duplicable", lambda effects: True)


@_fault("cse: new references are merged", first=26)
def _merged_references(patch: Patch) -> None:
    original = cse.operation_key

    def key(value: Expr) -> object | None:
        return ("ref", cse.atom_key(value.value)) if isinstance(value, RefNew) else original(value)

    patch.setattr(cse, "operation_key", key)
    patch.setattr(cse, "duplicable", lambda effects: True)


@_fault("dead code: writes are dropped")
def _dropped_writes(patch: Patch) -> None:
    patch.setattr(dead_code, "droppable", lambda effects: True)


@_fault("simplify: the absolute value of x is x", "result", "abs")
def _absolute(patch: Patch) -> None:
    x = wildcard()
    rule = Rule(is_op("abs")(x), simplify._keep(x))
    patch.setattr(simplify, "RULES", (*simplify.RULES, rule))


@_fault("simplify: the first field of every tuple", first=75)
def _first_field(patch: Patch) -> None:
    original = simplify._field

    def field(found: Any, value: Expr, definition: Any) -> Expr | None:
        made = original(found, value, definition)
        if isinstance(value, Proj) and value.index == 1 and made is not None:
            other = original(found, replace(value, index=0), definition)
            return other if other is not None and other.ty == made.ty else made
        return made

    wrong = tuple(replace(r, replacement=field) if r.replacement is original else r for r in simplify.RULES)
    patch.setattr(simplify, "RULES", wrong)


@_fault("constant folding: results are negated")
def _negated(patch: Patch) -> None:
    original = fold_constants._as_constant

    def constant(data: Any, ty: Any) -> Any:
        return original(np.negative(data) if data.dtype.kind == "f" else data, ty)

    patch.setattr(fold_constants, "_as_constant", constant)


@_fault("match: the clauses are tried from the last")
def _last_clause(patch: Patch) -> None:
    original = match_trees._Compiler.tree

    def tree(self: Any, rows: Sequence[Any]) -> Any:
        return original(self, sorted(rows, key=lambda r: -r.clause))

    patch.setattr(match_trees._Compiler, "tree", tree)


@_fault("lambda lifting: captured values come in the wrong order", first=97)
def _captured(patch: Patch) -> None:
    original = lambda_lift._closure

    def closure(made: Any, ty: Any) -> Call:
        kept = list(made.captured)
        for i in range(len(kept)):
            for j in range(i):
                if kept[i].ty == kept[j].ty:
                    kept[i], kept[j] = kept[j], kept[i]
        return original(replace(made, captured=tuple(kept)), ty)

    patch.setattr(lambda_lift, "_closure", closure)


# -- lowering


@_fault("emission: a switch has its targets in the wrong order", first=9)
def _switch(patch: Patch) -> None:
    original = Assembler.emit

    def emitted(self: Assembler, opcode: str, *operands: Any) -> None:
        if opcode == "Switch":
            tag, targets = operands
            operands = (tag, targets[::-1])
        original(self, opcode, *operands)

    patch.setattr(Assembler, "emit", emitted)


@_fault("emission: the first branch of every if")
def _always_then(patch: Patch) -> None:
    original = Assembler.emit

    def emitted(self: Assembler, opcode: str, *operands: Any) -> None:
        if opcode != "If":
            original(self, opcode, *operands)

    patch.setattr(Assembler, "emit", emitted)


@_fault("memory: a tensor's storage is given away before it is read")
def _short_lives(patch: Patch) -> None:
    original = storage.place

    def place(intervals: list[storage.Interval]) -> storage.Placement:
        return original([replace(i, end=i.start, reuse=None) for i in intervals])

    _everywhere(patch, original, place)


# -- the interpreter itself


interpreter = import_module("relay.interpreter.evaluation")  # the package exports a function of that name


@_fault("interpreter: variables of a pattern are bound in the wrong order", first=62)
def _bound_order(patch: Patch) -> None:
    original = interpreter.matches

    def matches(pattern: Any, value: Any, bound: list[Any]) -> bool:
        found: bool = original(pattern, value, bound)
        bound.reverse()
        if len(bound) > 1:
            parts = [part for _, part in bound]
            if all(
                isinstance(p, np.ndarray) and p.shape == parts[0].shape and p.dtype == parts[0].dtype for p in parts
            ):
                bound[:] = [(var, part) for (var, _), part in zip(bound, reversed(parts), strict=True)]
        return found

    patch.setattr(interpreter, "matches", matches)


@_fault("interpreter: writes to references are lost")
def _lost_writes(patch: Patch) -> None:
    original = Machine.cell

    def cell(self: Machine, value: Any, span: Any) -> Any:
        found = original(self, value, span)
        return type(found)(found.value)

    patch.setattr(Machine, "cell", cell)


# -- text


@_fault("printer: arguments in the wrong order", "round trip")
def _printed_arguments(patch: Patch) -> None:
    original = _Printer.simple

    def simple(self: Any, e: Expr) -> str | None:
        if isinstance(e, Call) and len(e.args) == 2:
            e = Call(e.fn, e.args[::-1], e.attrs, e.type_args, e.ty, e.span)
        return original(self, e)

    patch.setattr(_Printer, "simple", simple)


@_fault("printer: annotations of variables are left out", "round trip", first=57)
def _printed_annotations(patch: Patch) -> None:
    original = _Printer.binder
    patch.setattr(_Printer, "binder", lambda self, v: self.name(v) if v.name.startswith("v") else original(self, v))


@_fault("printer: shared nodes are written out at each use", "round trip")
def _printed_twice(patch: Patch) -> None:
    patch.setattr(scopes.Layout, "shared", lambda self, e: False)


@_fault("printer: a partial match is printed as a complete one", "round trip", first=93)
def _printed_match(patch: Patch) -> None:
    original = _Printer.compound

    def compound(self: Any, e: Expr) -> None:
        original(self, replace(e, complete=True) if isinstance(e, Match) else e)

    patch.setattr(_Printer, "compound", compound)


@_fault("parser: the branches of an if are swapped", "round trip")
def _parsed_branches(patch: Patch) -> None:
    def if_(self: Any, token: int, _open: int, cond: Expr, _close: int, then: Expr, _else: int, orelse: Expr) -> If:
        return If(cond, orelse, then, None, self.tokens.span(token))

    patch.setattr(ExprActions, "if_", if_)


@_fault("parser: a let forgets its annotation", "round trip")
def _parsed_let(patch: Patch) -> None:
    original = ExprActions.let

    def let(self: Any, variable: Var, value: Expr, semicolon: int) -> Binding:
        binding = original(self, variable, value, semicolon)
        return Binding(replace(binding.var, annotation=None), binding.value)

    patch.setattr(ExprActions, "let", let)


@_fault("parser: clauses are read from the last", "round trip")
def _parsed_clauses(patch: Patch) -> None:
    original = ExprActions.match_

    def match_(self: Any, *parts: Any) -> Match:
        made = original(self, *parts)
        return replace(made, clauses=made.clauses[::-1])

    patch.setattr(ExprActions, "match_", match_)


@_fault("parser: every projection is of field 0", "round trip")
def _parsed_projections(patch: Patch) -> None:
    original = ExprActions.projected

    def projected(self: Any, text: str, token: int) -> Expr:
        made = original(self, text, token)
        return replace(made, index=0) if isinstance(made, Proj) else made

    patch.setattr(ExprActions, "projected", projected)
