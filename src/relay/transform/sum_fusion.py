"""Sums of products become one product: ``A1 B1 + A2 B2 + ...`` is the product of the ``A`` side by side with the ``B`` one below
the other.

The gradient of a weight that is used at many steps is such a sum, one product for each step. Added up one after the other,
every term reads and writes the whole gradient; as one product the gradient is written once, and the terms become a longer sum
inside it. Which axes the operands lie along is read off the operators' expressions (`relay.te.parallel.summed_reads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from relay import te
from relay.ir.dim import Dim
from relay.ir.expr import Attrs, Binding, Block, Call, Constant, Expr, Function, OpRef, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TupleType
from relay.op import registry
from relay.te.parallel import summed_reads
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import body_of, is_primitive, map_functions, nested_blocks, operands, with_nested_blocks
from relay.transform.build import constant, op_call, type_of
from relay.transform.cse import atom_key
from relay.transform.joints import elements, joint_call, operand_shapes, other_axes, unread_operands
from relay.transform.uses import use_counts


@record(frozen=True, slots=True)
class SumFusion(Pass):
    """Join products that are only made to be added up.

    Before: typed blocks. After: the same values up to the order in which floating-point numbers are added. Products are joined
    where their operands, which are then copied side by side, are smaller than the results that are no longer read and
    written.
    """

    name: ClassVar[str] = "sum_fusion"

    def __call__(self, module: Module) -> Module:
        table = AccessTable()

        def fuse(function: Function) -> Function:
            return function if is_primitive(function) else _Adder(table, function).run()

        return map_functions(module, fuse)


# For each operand of a call the axis along which it is summed over, None where every term reads all of it; None: no sum.
_Reads = tuple[int | None, ...] | None


@record(frozen=True, slots=True, eq=False)
class _Sum:
    """A tree of additions of one shape: where its last one stands, the other ones, and what is added up, in order."""

    position: int
    inner: frozenset[int]
    terms: tuple[Expr, ...]


class _Adder:
    """Sum fusion of one function, block by block."""

    def __init__(self, table: AccessTable, function: Function) -> None:
        self.table = table
        self.function = function
        self.uses = use_counts(body_of(function))
        self.known: dict[object, _Reads] = {}

    def run(self) -> Function:
        body = run(self.block(body_of(self.function)))
        return self.function if body is self.function.body else replace(self.function, body=body)

    def block(self, block: Block) -> Step[Block]:
        bindings: list[Binding] = []
        changed = False
        for binding in block.bindings:
            inner: list[Block] = []
            for b in nested_blocks(binding.value):
                inner.append((yield self.block(b)))
            value = with_nested_blocks(binding.value, inner)
            changed |= value is not binding.value
            bindings.append(binding if value is binding.value else Binding(binding.var, value))
        fused = self.fuse(bindings)
        if fused is None and not changed:
            return block
        return Block(tuple(fused or bindings), block.result, block.ty, block.span)

    def fuse(self, bindings: Sequence[Binding]) -> list[Binding] | None:
        """The bindings with sums of products joined; None when there are none."""
        position = {b.var: n for n, b in enumerate(bindings)}
        made: dict[int, list[Binding]] = {}
        gone: set[int] = set()
        for found in self._sums(bindings, position):
            joined = self._joined(found, bindings, position)
            if joined is not None:
                made[found.position], absorbed = joined
                gone |= found.inner | absorbed
        if not made:
            return None
        out: list[Binding] = []
        for n, binding in enumerate(bindings):
            if n in made:
                out += made[n]
            elif n not in gone:
                out.append(binding)
        return out

    def _sums(self, bindings: Sequence[Binding], position: dict[Var, int]) -> list[_Sum]:
        """The trees of additions, as large as they go: inner ones are used once."""
        out: list[_Sum] = []
        inside: set[int] = set()
        for n in reversed(range(len(bindings))):
            if n in inside or not _is_addition(bindings[n].value):
                continue
            inner: set[int] = set()
            terms: list[Expr] = []
            todo: list[Expr] = list(reversed(operands(bindings[n].value)[1:]))
            while todo:
                atom = todo.pop()
                at = position.get(atom) if isinstance(atom, Var) else None
                if (
                    at is not None
                    and isinstance(atom, Var)
                    and self.uses[atom] == 1
                    and _is_addition(bindings[at].value)
                    and atom.ty == bindings[n].var.ty
                ):
                    inner.add(at)
                    todo += reversed(operands(bindings[at].value)[1:])
                else:
                    terms.append(atom)
            inside |= inner
            if len(terms) > 1:
                out.append(_Sum(n, frozenset(inner), tuple(terms)))
        return out

    def _joined(
        self, found: _Sum, bindings: Sequence[Binding], position: dict[Var, int]
    ) -> tuple[list[Binding], set[int]] | None:
        """The bindings that make a sum with its products joined, and the positions of those products."""
        total = bindings[found.position].var
        groups: dict[object, list[tuple[int, Call]]] = {}
        for term in found.terms:
            at = position.get(term) if isinstance(term, Var) else None
            if at is None or not isinstance(term, Var) or self.uses[term] != 1 or term.ty != total.ty:
                continue
            value = bindings[at].value
            access = self.table.of(value) if isinstance(value, Call) else None
            if access is not None and access.kind != "opaque" and isinstance(value, Call):
                assert isinstance(value.fn, OpRef)
                groups.setdefault((value.fn.name, attrs_key(value.attrs)), []).append((at, value))
        out: list[Binding] = []
        absorbed: set[int] = set()
        sums: list[Expr] = []
        for members in groups.values():
            # In the order in which what they read was made: parts of one tensor lie in it like that.
            members.sort(key=lambda m: min((position[a] for a in m[1].args if a in position), default=-1))
            call = self._one([c for _, c in members], out) if len(members) > 1 else None
            if call is not None:
                absorbed |= {at for at, _ in members}
                var = Var("sum", None, call.ty)
                out.append(Binding(var, call))
                sums.append(var)
        if not absorbed:
            return None
        sums += (t for t in found.terms if not isinstance(t, Var) or position.get(t, -1) not in absorbed)
        result, others = sums[0], sums[1:]
        for n, other in enumerate(others):
            last = n == len(others) - 1
            call = op_call("add", (result, other), span=bindings[found.position].value.span)
            result = total if last else Var("sum", None, call.ty)
            out.append(Binding(result, call))
        if not others:  # the joint product is the sum
            out[-1] = Binding(total, out[-1].value)
        return out, absorbed

    def _one(self, calls: Sequence[Call], out: list[Binding]) -> Call | None:
        """One call that is the sum of several; the bindings it needs are added to ``out``. None where there is none, or where it
        is not worth its copies."""
        first = calls[0]
        assert isinstance(first.fn, OpRef)
        reads = {self._reads(c) for c in calls}
        along = reads.pop() if len(reads) == 1 else None
        if along is None or not _is_worthwhile(calls, along):
            return None
        needed: list[Binding] = []
        args: list[Expr] = []
        unread = unread_operands(first)
        for n, axis in enumerate(along):
            parts = [c.args[n] for c in calls]
            if axis is None:
                if len({type_of(p) if n in unread else atom_key(p) for p in parts}) != 1:
                    return None
                args.append(parts[0])
                continue
            constants = [p for p in parts if isinstance(p, Constant)]
            if len(constants) == len(parts):
                args.append(constant(np.concatenate([c.data for c in constants], axis), constants[0].dtype))
                continue
            if constants:
                return None
            if len({other_axes(p, axis) for p in parts}) != 1:
                return None  # rows of one, and rows of rows
            types = tuple(type_of(p) for p in parts)
            whole = Tuple(tuple(parts), TupleType(types), first.span)
            held = Var("parts", None, whole.ty)
            joint = op_call("concatenate", (held,), MappingProxyType({"axis": axis}), first.span)
            var = Var("joint", None, joint.ty)
            needed += [Binding(held, whole), Binding(var, joint)]
            args.append(var)
        call = joint_call(first, args)
        if call is None or call.ty != first.ty:
            return None
        out += needed
        return call

    def _reads(self, call: Call) -> _Reads:
        """Along which axis of each operand the calls can lie side by side so that one call gives their sum."""
        assert isinstance(call.fn, OpRef)
        op, inputs = registry.get(call.fn.name), operand_shapes(call)
        if inputs is None or op.shape_mode != "independent" or any(i.variadic for i in op.inputs):
            return None
        key = (op, tuple(inputs), attrs_key(call.attrs))
        if key not in self.known:
            self.known[key] = _sum_over(op, inputs, call.attrs)
        return self.known[key]


def _sum_over(op: registry.Operator, inputs: Sequence[tuple[tuple[Dim, ...], str]], attrs: Attrs) -> _Reads:
    traced = registry.trace(op, inputs, attrs)
    if len(traced.outputs) != 1:
        return None
    found = summed_reads(traced.inputs, traced.outputs[0])
    # A sum over a leading axis of one element is none as it stands (an outer product): see what it is for two.
    leading = tuple(bool(shape) and shape[0] == 1 for shape, _ in inputs)
    if found is not None or not any(leading):
        return found
    longer = [
        ((2, *shape[1:]), dtype) if one else (shape, dtype) for (shape, dtype), one in zip(inputs, leading, strict=True)
    ]
    try:
        again = registry.trace(op, longer, attrs)
    except (te.DefinitionError, te.Undetermined):
        return None
    if again.demands or len(again.outputs) != 1 or again.outputs[0].shape != traced.outputs[0].shape:
        return None
    found = summed_reads(again.inputs, again.outputs[0])
    return found if found == tuple(0 if one else None for one in leading) else None


def _is_addition(value: Expr) -> bool:
    """Whether this adds two tensors of the result's own type (for all rows of a level, too)."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or value.fn.name not in ("add", "add.batched"):
        return False
    return all(type_of(a) == value.ty for a in value.args)


def _is_worthwhile(calls: Sequence[Call], along: Sequence[int | None]) -> bool:
    """Whether the operands to be copied have fewer elements than the results that are not made any more. Constants are copied once, by
    the compiler."""
    read = [c.args[n] for c in calls for n, axis in enumerate(along) if axis is not None]
    copied = sum(elements(arg) for arg in read if not isinstance(arg, Constant))
    return copied < 2 * sum(elements(c) for c in calls[1:])
