"""Parallel fusion: products that share an input become one product on parameters laid side by side.

Query, key and value of an attention layer, the gates of a recurrent cell: ``x W1``, ``x W2``, ``x W3`` are the parts of one
product ``x [W1 W2 W3]``, which reads ``x`` once and has one pass over all threads. What follows each part in the same way
(adding a bias, an activation, adding the corresponding part of another joint product) is done on the joint result too. Which
axis the parts lie along is read off the operators' expressions (`relay.te.parallel`), so any operator of that form is found.
Source: NeoFlow, section 4.3 (parallel fusion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from relay.ir.diagnostics import OperatorError
from relay.ir.expr import Attr, Attrs, Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.op import registry
from relay.te.parallel import parallel_reads
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import (
    body_of,
    is_primitive,
    map_functions,
    nested_blocks,
    operands,
    with_nested_blocks,
    with_operands,
)
from relay.transform.build import constant, op_call, type_of
from relay.transform.cse import atom_key, attrs_key
from relay.transform.uses import use_counts

# How far an elementwise operator is followed to see where the parts of a joint result meet again.
_LONGEST_EPILOGUE = 16


@dataclass(frozen=True, slots=True)
class ParallelFusion(Pass):
    """Join products of one input by constants, and what follows each of them in the same way.

    Before: typed blocks without ``?``. After: the same values; the parts of a joint result are slices of it, one for each use,
    so that each goes into the kernel that reads it. Products are joined when every use of their parts is an operator that
    takes the slice into its own kernel: nothing is copied that was not before.
    """

    name: ClassVar[str] = "parallel_fusion"
    # The most parts of a joint product: past this the parts are better off on their own caches.
    max_parts: int = 16

    def __call__(self, module: Module) -> Module:
        table = AccessTable()

        def fuse(function: Function) -> Function:
            return function if is_primitive(function) else _Joiner(self, table, function).run()

        return map_functions(module, fuse)


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A call of an operator on tensors: where it stands and its attributes without those that only repeat a size."""

    position: int
    var: Var
    call: Call
    attrs: Attrs

    @property
    def op(self) -> str:
        assert isinstance(self.call.fn, OpRef)
        return self.call.fn.name


@dataclass(slots=True, eq=False)
class _Joint:
    """Calls that become one: the parts in order, the axis they lie along and their sizes there."""

    parts: list[_Site]
    axis: int
    sizes: list[int]
    call: Call
    var: Var

    def number(self, var: Expr) -> int | None:
        return next((n for n, p in enumerate(self.parts) if p.var is var), None)


class _Joiner:
    """Parallel fusion of one function, block by block."""

    def __init__(self, options: ParallelFusion, table: AccessTable, function: Function) -> None:
        self.options = options
        self.table = table
        self.function = function
        self.uses = use_counts(body_of(function))

    def run(self) -> Function:
        body = run(self.block(body_of(self.function)))
        return self.function if body is self.function.body else replace(self.function, body=body)

    def block(self, block: Block) -> Step[Block]:
        bindings: list[Binding] = []
        for binding in block.bindings:
            inner: list[Block] = []
            for b in nested_blocks(binding.value):
                inner.append((yield self.block(b)))
            value = with_nested_blocks(binding.value, inner)
            bindings.append(binding if value is binding.value else Binding(binding.var, value))
        joined = _InBlock(self, bindings).run()
        if all(a is b for a, b in zip(joined, block.bindings, strict=False)) and len(joined) == len(block.bindings):
            return block
        return Block(tuple(joined), block.result, block.ty, block.span)


class _InBlock:
    """The joints of one block's bindings."""

    def __init__(self, joiner: _Joiner, bindings: list[Binding]) -> None:
        self.joiner = joiner
        self.bindings = bindings
        self.position = {b.var: n for n, b in enumerate(bindings)}
        self.readers: dict[Var, list[int]] = {}
        for n, binding in enumerate(bindings):
            for atom in operands(binding.value):
                if isinstance(atom, Var) and atom in self.position:
                    self.readers.setdefault(atom, []).append(n)
        self.joint_of: dict[Var, _Joint] = {}

    def run(self) -> list[Binding]:
        joints = [j for parts in self._seeds() if (j := self._join(parts)) is not None]
        self._remember(joints)
        for joint in joints:  # grows: what follows a joint may be followed itself
            more = self._extended(joint)
            if more is not None:
                joints.append(more)
                self._remember([more])
        kept = self._worthwhile(joints)
        return self._emit(kept) if kept else self.bindings

    def _remember(self, joints: Sequence[_Joint]) -> None:
        for joint in joints:
            for part in joint.parts:
                self.joint_of[part.var] = joint

    # -- what can be joined

    def _site(self, position: int) -> _Site | None:
        """The call at a position, if it is one of an expression operator with one tensor result of known rank."""
        var, value = self.bindings[position].var, self.bindings[position].value
        if not isinstance(value, Call) or self.joiner.table.of(value) is None or not isinstance(var.ty, TensorType):
            return None
        if not isinstance(var.ty.shape, tuple) or not all(isinstance(type_of(a), TensorType) for a in value.args):
            return None
        return _Site(position, var, value, _without_sizes(value))

    def _seeds(self) -> list[list[_Site]]:
        """Contractions of the same operands but for constants of equal rank, in order, two or more at a time."""
        found: dict[object, list[_Site]] = {}
        for position, binding in enumerate(self.bindings):
            if not isinstance(binding.value, Call):
                continue
            access = self.joiner.table.of(binding.value)
            if access is None or access.kind != "contraction":
                continue
            site = self._site(position)
            if site is None or not any(isinstance(a, Constant) and a.data.size > 1 for a in site.call.args):
                continue
            operands_ = tuple(
                ("constant", a.dtype, a.data.ndim) if isinstance(a, Constant) else atom_key(a) for a in site.call.args
            )
            key = (site.op, attrs_key(site.attrs), operands_)
            found.setdefault(key, []).append(site)
        most = self.joiner.options.max_parts
        parts = [s[n : n + most] for s in found.values() for n in range(0, len(s), most)]
        return [p for p in parts if len(p) > 1]

    def _join(self, parts: Sequence[_Site]) -> _Joint | None:
        """The calls as one, along the last axis of their results that allows it; None where none does."""
        shape = _shape(parts[0].var)
        if len({(p.op, attrs_key(p.attrs), len(p.call.args)) for p in parts}) != 1:
            return None
        for axis in reversed(range(len(shape))):
            sizes = [_shape(p.var)[axis] if len(_shape(p.var)) == len(shape) else None for p in parts]
            if not all(isinstance(s, int) for s in sizes):
                continue
            reads = self._reads(parts, axis)
            if reads is None:
                continue
            args = self._joint_args(parts, axis, reads)
            if args is None:
                continue
            try:
                call = op_call(parts[0].op, args, parts[0].attrs, parts[0].call.span)
            except OperatorError:
                continue
            found = [s for s in sizes if isinstance(s, int)]
            ty = call.ty
            assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
            expected = (*shape[:axis], sum(found), *shape[axis + 1 :])
            if ty.shape != expected:
                continue
            return _Joint(list(parts), axis, found, call, Var("joint", None, ty))
        return None

    def _reads(self, parts: Sequence[_Site], axis: int) -> tuple[int | None, ...] | None:
        """How every part's expression reads its operands along an axis, where they all do alike."""
        answers = set()
        for part in parts:
            op = registry.get(part.op)
            types = [type_of(a) for a in part.call.args]
            inputs = [(t.shape, t.dtype) for t in types if isinstance(t, TensorType) and isinstance(t.shape, tuple)]
            if op.shape_mode != "independent" or any(i.variadic for i in op.inputs) or len(inputs) != len(types):
                return None
            traced = registry.trace(op, inputs, part.call.attrs)  # type: ignore[arg-type]
            if len(traced.outputs) != 1:
                return None
            answers.add(parallel_reads(traced.inputs, traced.outputs[0], axis))
        return answers.pop() if len(answers) == 1 else None

    def _joint_args(self, parts: Sequence[_Site], axis: int, reads: Sequence[int | None]) -> list[Expr] | None:
        """The operands of the joint call: shared ones, constants side by side, other joint results."""
        first = min(p.position for p in parts)
        out: list[Expr] = []
        for n, along in enumerate(reads):
            args = [p.call.args[n] for p in parts]
            if along is None:
                if len({atom_key(a) for a in args}) != 1:
                    return None
                if isinstance(args[0], Var) and self.position.get(args[0], -1) >= first:
                    return None
                out.append(args[0])
            elif all(isinstance(a, Constant) for a in args):
                constants = [a for a in args if isinstance(a, Constant)]
                # An operand of size 1 along the axis is repeated: laid side by side it would not be.
                if any(c.data.shape[along] != _shape(p.var)[axis] for c, p in zip(constants, parts, strict=True)):
                    return None
                if any(c.data.ndim != constants[0].data.ndim for c in constants):
                    return None
                rest = {c.data.shape[:along] + c.data.shape[along + 1 :] for c in constants}
                if len(rest) != 1:
                    return None
                out.append(constant(np.concatenate([c.data for c in constants], along), constants[0].dtype))
            else:
                joint = self.joint_of.get(args[0]) if isinstance(args[0], Var) else None
                if joint is None or joint.axis != along or [joint.number(a) for a in args] != list(range(len(args))):
                    return None
                if len(joint.parts) != len(parts) or joint.parts[0].position >= first:
                    return None
                if joint.sizes != [_shape(p.var)[axis] for p in parts]:
                    return None
                out.append(joint.var)
        return out

    def _extended(self, joint: _Joint) -> _Joint | None:
        """The next step of every part, where it is the same for all and the part's only use."""
        following: list[_Site] = []
        for part in joint.parts:
            readers = self.readers.get(part.var, [])
            if self.joiner.uses[part.var] != 1 or len(readers) != 1:
                return None
            site = self._site(readers[0])
            access = self.joiner.table.of(site.call) if site is not None else None
            if site is None or access is None or access.kind not in ("elementwise", "broadcast"):
                return None
            if access.view:
                return None
            if site.var in self.joint_of:
                return None
            following.append(site)
        if len({s.position for s in following}) != len(following):
            return None
        return self._join(following)

    # -- what is worth joining

    def _worthwhile(self, joints: Sequence[_Joint]) -> list[_Joint]:
        """The joints whose parts are taken up by the kernels that read them.

        A joint that reads one that is not made is not made either.
        """
        kept = list(joints)
        while True:
            made = {j.var for j in kept}
            every = {j.var for j in joints}
            inside = {p.position for j in kept for p in j.parts}
            good = [
                j
                for j in kept
                if self._taken_up(j, inside) and not any(isinstance(a, Var) and a in every - made for a in j.call.args)
            ]
            if len(good) == len(kept):
                return kept
            kept = good

    def _taken_up(self, joint: _Joint, inside: set[int]) -> bool:
        """Whether slices of the joint result cost nothing where they are read.

        An index map, a reduction or a contraction reads through the slice. An elementwise operator would have been the
        epilogue of its own product; it is none of the joint one, so it must be part of a kernel that brings all parts
        together.
        """
        meeting: list[set[int]] = []
        for part in joint.parts:
            readers = self.readers.get(part.var, [])
            if self.joiner.uses[part.var] != len(readers):
                return False
            for position in readers:
                if position in inside:
                    continue
                if not self._reads_through(position):
                    return False
                if self._is_pointwise(position):
                    meeting.append(self._followers(position))
        return not meeting or bool(set.intersection(*meeting))

    def _reads_through(self, position: int) -> bool:
        """Whether the operator at a position takes a slice into its own kernel."""
        value = self.bindings[position].value
        access = self.joiner.table.of(value) if isinstance(value, Call) else None
        if access is None or access.kind == "opaque":
            return False
        if not access.view:
            return True
        var = self.bindings[position].var
        readers = self.readers.get(var, [])
        return self.joiner.uses[var] == len(readers) > 0 and all(self._reads_through(r) for r in readers)

    def _is_pointwise(self, position: int) -> bool:
        value = self.bindings[position].value
        access = self.joiner.table.of(value) if isinstance(value, Call) else None
        return access is not None and access.kind in ("elementwise", "broadcast") and not access.view

    def _followers(self, position: int) -> set[int]:
        """The position and those of the elementwise operators that its result is handed on to, one after the other."""
        out = {position}
        while len(out) <= _LONGEST_EPILOGUE:
            readers = set(self.readers.get(self.bindings[position].var, []))
            if len(readers) != 1:
                break
            (position,) = readers
            if not self._is_pointwise(position):
                break
            out.add(position)
        return out

    # -- the new bindings

    def _emit(self, joints: Sequence[_Joint]) -> list[Binding]:
        """The block with these joints in the places of their first parts, and slices of them before their readers."""
        made = {min(p.position for p in j.parts): j for j in joints}
        gone = {p.position for j in joints for p in j.parts}
        slices: dict[int, list[tuple[_Joint, int]]] = {}
        for joint in joints:
            for n, part in enumerate(joint.parts):
                for reader in dict.fromkeys(self.readers.get(part.var, [])):
                    slices.setdefault(reader, []).append((joint, n))
        out: list[Binding] = []
        for position, binding in enumerate(self.bindings):
            if position in made:
                out.append(Binding(made[position].var, made[position].call))
            if position in gone:
                continue
            value = binding.value
            for joint, n in slices.get(position, []):
                old, piece = joint.parts[n].var, _slice(joint, n)
                var = Var(old.name, None, piece.ty)
                out.append(Binding(var, piece))
                value = with_operands(value, [var if a is old else a for a in operands(value)])
            out.append(binding if value is binding.value else Binding(binding.var, value))
        return out


def _shape(var: Var) -> tuple[object, ...]:
    assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple)
    return var.ty.shape


def _without_sizes(call: Call) -> Attrs:
    """The attributes without optional ones that only repeat a size of the operands (``units``, ``channels``)."""
    assert isinstance(call.fn, OpRef)
    optional = {a.name for a in registry.get(call.fn.name).attrs if a.default is None and not a.required}
    kept: Mapping[str, Attr] = call.attrs
    for name in optional & kept.keys():
        if not isinstance(kept[name], int) or isinstance(kept[name], bool):
            continue
        fewer = MappingProxyType({k: v for k, v in kept.items() if k != name})
        if op_call(call.fn.name, call.args, fewer).ty == call.ty:
            kept = fewer
    return kept


def _slice(joint: _Joint, number: int) -> Call:
    begin = sum(joint.sizes[:number])
    end = begin + joint.sizes[number]
    attrs = MappingProxyType({"begin": (begin,), "end": (end,), "axes": (joint.axis,)})
    return op_call("strided_slice", (joint.var,), attrs, joint.parts[number].call.span)
