"""Parallel fusion: products that share an operand become one product on the other operands laid side by side.

Query, key and value of an attention layer, the gates of a recurrent cell: ``x W1``, ``x W2``, ``x W3`` are the parts of one
product ``x [W1 W2 W3]``, which reads ``x`` once and has one pass over all threads. The inputs of the steps of an unrolled loop:
``x1 W``, ``x2 W`` are the parts of ``[x1; x2] W``, which reads ``W`` once. What follows each part in the same way (adding a bias,
an activation, adding the corresponding part of another joint product) is done on the joint result too. Which axis the parts lie
along is read off the operators' expressions (`relay.te.parallel`), so any operator of that form is found.
Source: NeoFlow, section 4.3 (parallel fusion).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from relay.ir.dim import Dim, dim_add
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, Proj, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType
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
from relay.transform.cse import atom_key
from relay.transform.joints import (
    Joint,
    Site,
    copied_elements,
    dims,
    elements,
    extent,
    joint_call,
    other_axes,
    part_slice,
    traced_call,
    unread_operands,
    without_sizes,
)
from relay.transform.uses import use_counts

# How far an elementwise operator is followed to see where the parts of a joint result meet again.
_LONGEST_EPILOGUE = 16
# How far back what makes an operand is followed to move it up.
_LONGEST_WAY = 8
# A kernel more costs about as much as reading and writing so many elements in the second-level cache.
_LAUNCH = 2048


@record(frozen=True, slots=True)
class ParallelFusion(Pass):
    """Join products that share an operand, and what follows each of them in the same way.

    Before: typed blocks without ``?``. After: the same values; the parts of a joint result are slices of it, one for each use,
    so that each goes into the kernel that reads it. Products are joined where that saves memory traffic: the shared operand is
    read once; operands that are not constants have to be copied side by side, and a part that no kernel can read through its
    slice has to be copied out. Operands with a number of rows that is not known are not copied for that: of many rows the arithmetic
    takes longer than reading the shared operand again.
    """

    name: ClassVar[str] = "parallel_fusion"
    # The most parts of a joint product.
    max_parts: int = 64

    def __call__(self, module: Module) -> Module:
        table = AccessTable()

        def fuse(function: Function) -> Function:
            return function if is_primitive(function) else _Joiner(self, table, function).run()

        return map_functions(module, fuse)


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
        self.joint_of: dict[Var, Joint] = {}
        # Bindings that stand before another position than their own: what a joint call reads, moved up to it.
        self.moved: dict[int, int] = {}

    def run(self) -> list[Binding]:
        joints: list[Joint] = []
        for seeds in (self._by_constants, self._by_shared_operand):
            for parts in seeds():
                for joint in self._runs(parts):
                    joints.append(joint)
                    self._remember([joint])
        for joint in joints:  # grows: what follows a joint may be followed itself
            more = self._extended(joint)
            if more is not None:
                joints.append(more)
                self._remember([more])
        kept = self._worthwhile(joints)
        return self._emit(kept) if kept else self.bindings

    def _remember(self, joints: Sequence[Joint]) -> None:
        for joint in joints:
            for binding in (*joint.needed, Binding(joint.var, joint.call)):
                self._move_up(operands(binding.value), joint.place)
            for part in joint.parts:
                self.joint_of[part.var] = joint

    # -- what can be joined

    def _site(self, position: int) -> Site | None:
        """The call at a position, if it is one of an expression operator with one tensor result of known rank."""
        var, value = self.bindings[position].var, self.bindings[position].value
        if not isinstance(value, Call) or self.joiner.table.of(value) is None or not isinstance(var.ty, TensorType):
            return None
        if not isinstance(var.ty.shape, tuple) or not all(isinstance(type_of(a), TensorType) for a in value.args):
            return None
        return Site(position, var, value, without_sizes(value))

    def _contractions(self) -> list[Site]:
        out: list[Site] = []
        for position, binding in enumerate(self.bindings):
            if not isinstance(binding.value, Call) or binding.var in self.joint_of:
                continue
            access = self.joiner.table.of(binding.value)
            site = self._site(position) if access is not None and access.kind == "contraction" else None
            if site is not None:
                out.append(site)
        return out

    def _by_constants(self) -> list[list[Site]]:
        """Contractions of the same operands but for constants of equal rank, in order."""
        found: dict[object, list[Site]] = {}
        for site in self._contractions():
            if any(isinstance(a, Constant) and a.data.size > 1 for a in site.call.args):
                kinds = tuple(
                    ("constant", a.dtype, a.data.ndim) if isinstance(a, Constant) else atom_key(a)
                    for a in site.call.args
                )
                found.setdefault((site.op, attrs_key(site.attrs), kinds), []).append(site)
        return list(found.values())

    def _by_shared_operand(self) -> list[list[Site]]:
        """Contractions that share one operand, in order; those of the largest shared operands first."""
        found: dict[object, list[Site]] = {}
        size: dict[object, int] = {}
        for site in self._contractions():
            for n, arg in enumerate(site.call.args):
                if isinstance(arg, Var | Constant):
                    key = (site.op, attrs_key(site.attrs), n, atom_key(arg))
                    found.setdefault(key, []).append(site)
                    size[key] = elements(arg)
        return [found[key] for key in sorted(found, key=lambda k: -size[k])]

    def _runs(self, sites: Sequence[Site]) -> list[Joint]:
        """Joints of sites one after the other, each as long as its parts do not need each other."""
        runs: list[list[Site]] = []
        ready = first_reader = 0
        for site in sites:
            if site.var in self.joint_of:
                continue
            mine, reader = self._ready(site.call.args), self._first_reader(site.var)
            fits = runs and len(runs[-1]) < self.joiner.options.max_parts
            fits = fits and self._made_of(site.call.args).isdisjoint(p.var for p in runs[-1])
            if fits and max(ready, mine) <= min(first_reader, reader):
                runs[-1].append(site)
                ready, first_reader = max(ready, mine), min(first_reader, reader)
            else:
                runs.append([site])
                ready, first_reader = mine, reader
        joints = [self._join(run) for run in runs if len(run) > 1]
        return [j for j in joints if j is not None]

    def _ready(self, args: Sequence[Expr]) -> int:
        """The first position before which all of these can be bound, if what makes them is moved up."""
        return max((self._earliest(a, _LONGEST_WAY) for a in args if isinstance(a, Var)), default=0)

    def _earliest(self, var: Var, steps: int) -> int:
        at = self.position.get(var)
        if at is None:
            return 0
        if at in self.moved:
            return self.moved[at]
        joint = self.joint_of.get(var)
        if joint is not None:
            return max(joint.place, at) + 1
        value = self.bindings[at].value
        if not steps or not self._is_light(value):
            return at + 1
        return max((self._earliest(a, steps - 1) for a in operands(value) if isinstance(a, Var)), default=0)

    def _made_of(self, args: Sequence[Expr]) -> set[Var]:
        """These variables and those they are made of by what would be moved up."""
        out: set[Var] = set()
        todo = [(a, _LONGEST_WAY) for a in args if isinstance(a, Var)]
        while todo:
            var, steps = todo.pop()
            at = self.position.get(var)
            if var in out or at is None:
                continue
            out.add(var)
            if steps and self._is_light(self.bindings[at].value):
                todo += ((a, steps - 1) for a in operands(self.bindings[at].value) if isinstance(a, Var))
        return out

    def _is_light(self, value: Expr) -> bool:
        """Whether an operation can be moved: it has no effect, and no product is carried along."""
        if isinstance(value, Tuple | Proj):
            return True
        access = self.joiner.table.of(value) if isinstance(value, Call) else None
        return access is not None and access.injective

    def _move_up(self, args: Sequence[Expr], place: int) -> None:
        """Have what makes these bound before ``place``."""
        todo = [a for a in args if isinstance(a, Var)]
        while todo:
            at = self.position.get(todo.pop())
            if at is not None and self.moved.get(at, at + 1) > place:
                self.moved[at] = place
                todo += (a for a in operands(self.bindings[at].value) if isinstance(a, Var))

    def _first_reader(self, var: Var) -> int:
        """The last place that a joint call with this part may have."""
        places = (self.moved[n] - 1 if n in self.moved else n for n in self.readers.get(var, ()))
        return min(places, default=len(self.bindings))

    def _join(self, parts: Sequence[Site]) -> Joint | None:
        """The calls as one, along the last axis of their results that allows it; None where none does."""
        shape = dims(parts[0].var)
        if len({(p.op, attrs_key(p.attrs), len(p.call.args), len(dims(p.var))) for p in parts}) != 1:
            return None
        for axis in reversed(range(len(shape))):
            reads = self._reads(parts, axis)
            joint = self._joint(parts, axis, reads) if reads is not None else None
            if joint is not None:
                return joint
        return None

    def _reads(self, parts: Sequence[Site], axis: int) -> tuple[int | None, ...] | None:
        """How every part's expression reads its operands along an axis, where they all do alike."""
        answers = set()
        for part in parts:
            traced = traced_call(part.call)
            if traced is None:
                return None
            answers.add(parallel_reads(traced.inputs, traced.outputs[0], axis))
        return answers.pop() if len(answers) == 1 else None

    def _joint(self, parts: Sequence[Site], axis: int, reads: Sequence[int | None]) -> Joint | None:
        """The joint call along an axis on shared operands, other joint results, constants and variables side by side."""
        sizes = [dims(p.var)[axis] for p in parts]
        needed: list[Binding] = []
        args: list[Expr] = []
        ready, copied, shared, copies = 0, 0, 0, 0
        known = all(isinstance(size, int) for size in sizes)
        unread = unread_operands(parts[0].call)
        for n, along in enumerate(reads):
            own = [p.call.args[n] for p in parts]
            if along is None:
                if len({type_of(a) if n in unread else atom_key(a) for a in own}) != 1:
                    return None
                shared += 0 if n in unread else elements(own[0])
                args.append(own[0])
                ready = max(ready, self._ready(own[:1]))
                continue
            # An operand of size 1 along the axis is repeated: laid side by side it would not be.
            if [extent(a, along) for a in own] != sizes:
                return None
            joint = self.joint_of.get(own[0]) if isinstance(own[0], Var) else None
            if joint is not None and joint.axis == along and [p.var for p in joint.parts] == own:
                args.append(joint.var)
                ready = max(ready, joint.place)
                continue
            if len({other_axes(a, along) for a in own}) != 1:
                return None
            constants = [a for a in own if isinstance(a, Constant)]
            if len(constants) == len(own):
                args.append(constant(np.concatenate([c.data for c in constants], along), constants[0].dtype))
                continue
            types = tuple(type_of(a) for a in own)
            whole = Var("parts", None, TupleType(types))
            beside = op_call("concatenate", (whole,), MappingProxyType({"axis": along}), parts[0].call.span)
            var = Var("joint", None, beside.ty)
            needed += [Binding(whole, Tuple(tuple(own), whole.ty, parts[0].call.span)), Binding(var, beside)]
            args.append(var)
            ready = max(ready, self._ready(own))
            copied += copied_elements(var)
            copies += 1
        place = max(ready, min(p.position for p in parts))
        if any(self._first_reader(p.var) < place for p in parts):
            return None
        if not self._made_of([a for p in parts for a in p.call.args]).isdisjoint(p.var for p in parts):
            return None
        call = joint_call(replace(parts[0].call, attrs=parts[0].attrs), args)
        if call is None:
            return None
        shape = dims(parts[0].var)
        total: Dim = 0
        for size in sizes:
            total = dim_add(total, size)
        if not isinstance(call.ty, TensorType) or call.ty.shape != (*shape[:axis], total, *shape[axis + 1 :]):
            return None
        saved = (shared * (known or not copied) + _LAUNCH) * (len(parts) - 1) - _LAUNCH * copies
        return Joint(list(parts), axis, sizes, call, Var("joint", None, call.ty), place, needed, copied, saved)

    def _extended(self, joint: Joint) -> Joint | None:
        """The next step of every part, where it is the same for all and the part's only use."""
        following: list[Site] = []
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

    def _worthwhile(self, joints: Sequence[Joint]) -> list[Joint]:
        """The joints that save more than they cost, in elements read and written.

        A joint that reads one that is not made is not made either. One that follows another gains what the other does not lose.
        """
        kept = list(joints)
        every = {j.var for j in joints}
        while True:
            made = {j.var for j in kept}
            inside = {p.position for j in kept for p in j.parts}
            good = [
                j
                for j in kept
                if j.saved >= j.copied * 2 + self._lost(j, inside)
                and not any(isinstance(a, Var) and a in every - made for a in j.call.args)
            ]
            if len(good) == len(kept):
                return kept
            kept = good

    def _lost(self, joint: Joint, inside: set[int]) -> int:
        """The elements that are read and written more because parts are slices of a joint result.

        An index map, a reduction or a contraction reads through the slice. An elementwise operator would have been the
        epilogue of its own product, and is none of the joint one: nothing is lost where it is part of a kernel that brings all
        parts together. Anything else needs a copy of its part, and a kernel that makes it.
        """
        lost = 0
        meeting: list[set[int]] = []
        for part in joint.parts:
            readers = self.readers.get(part.var, [])
            outside = self.joiner.uses[part.var] != len(readers) or not readers
            pointwise: set[int] = set()
            for position in readers:
                if position in inside:
                    continue
                outside |= not self._reads_through(position)
                if self._is_pointwise(position):
                    pointwise |= self._followers(position)
            if outside:
                lost += 2 * elements(part.var) + _LAUNCH
            elif pointwise:
                meeting.append(pointwise)
        if meeting and not set.intersection(*meeting):
            lost += sum(2 * elements(p.var) + _LAUNCH for p in joint.parts)
        return lost

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

    def _emit(self, joints: Sequence[Joint]) -> list[Binding]:
        """The block with these joints in their places, and slices of them before their readers."""
        made: dict[int, list[Joint]] = {}
        part_of: dict[Var, tuple[Joint, int]] = {}
        for joint in joints:
            made.setdefault(joint.place, []).append(joint)
            part_of.update((p.var, (joint, n)) for n, p in enumerate(joint.parts))
        out: list[Binding] = []

        def emit(binding: Binding) -> None:
            value = binding.value
            for atom in dict.fromkeys(operands(value)):
                if isinstance(atom, Var) and atom in part_of:
                    piece = part_slice(*part_of[atom])
                    var = Var(atom.name, None, piece.ty)
                    out.append(Binding(var, piece))
                    value = with_operands(value, [var if a is atom else a for a in operands(value)])
            out.append(binding if value is binding.value else Binding(binding.var, value))

        moved: dict[int, list[Binding]] = {}
        for at, place in sorted(self.moved.items()):
            moved.setdefault(place, []).append(self.bindings[at])
        for position in range(len(self.bindings) + 1):
            for binding in moved.get(position, []):
                emit(binding)
            for joint in made.get(position, []):
                for binding in (*joint.needed, Binding(joint.var, joint.call)):
                    emit(binding)
                for n, part in enumerate(joint.parts):
                    # The block's result and blocks inside mention a part by its own name.
                    if self.joiner.uses[part.var] > len(self.readers.get(part.var, ())):
                        out.append(Binding(part.var, part_slice(joint, n)))
            here = self.bindings[position] if position < len(self.bindings) and position not in self.moved else None
            if here is not None and here.var not in part_of:
                emit(here)
        return out
