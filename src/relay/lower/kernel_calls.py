"""Calls of kernels: where results are allocated, workspace, shape functions, results whose extents a kernel finds.

Each stretch of a block with kernels, from one call to the next, gets an arena for the tensors that cannot leave it
(`relay.lower.storage`), and for the workspace of kernels: during a call nothing is held that is not read after it. Tensors whose sizes
are not known when it begins share one that begins later. The other tensors are allocated one by one, on the storage of an operand that
dies there if the kernel may work in place. Workspace of which threads have parts is allocated for the call; a loop that keeps its memory
keeps one workspace for all of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, DimVar, as_var, dim_substitute, dim_vars
from relay.ir.dim_total import dim_total
from relay.ir.effects import CHECK_EQUAL
from relay.ir.expr import Block, Call, Expr, Function, Var
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType, TupleType, Type
from relay.lower import escape
from relay.lower.exchange import Result
from relay.lower.frame import Frame, type_dims
from relay.lower.planning import result_demands
from relay.lower.rooms import Room, find_rooms
from relay.lower.scalars import emit_scalars
from relay.lower.storage import ALIGNMENT, Interval, begun_together, place, shared, stretches, tensor_bytes
from relay.lower.unit import Planned
from relay.op import registry
from relay.transform.blocks import DEVICE_COPY
from relay.transform.dims import told

HOST = 0


@record(frozen=True, slots=True)
class Arena:
    """Storage of a stretch of a block, from one call to the next: its register, its bytes and device, and the byte offset of each tensor
    that lives in it, by key; the bindings before which it is allocated and behind which it is released (None: at the block's end).
    ``kept``: it stays from one iteration of a loop to the next, which overwrites it; so do its tensors where it is ``fixed``, of the
    same size in all iterations (else they would hold an arena that is outgrown)."""

    register: int
    total: Dim
    device: int
    offsets: dict[int, Dim]
    first: int
    last: int | None
    kept: bool = False
    fixed: bool = False


class KernelCalls:
    """Emits kernel calls of one function. ``devices`` says where each tensor variable lives (absent: the host)."""

    def __init__(self, frame: Frame, devices: dict[Var, int]) -> None:
        self.frame = frame
        self.devices = devices
        self.rooms: dict[tuple[Var, int], Room] = {}  # by the variable of the call and the result's number
        self.barriers: dict[Block, bool] = {}  # what is known of blocks inside of others
        self.exchanged: frozenset[Result] = frozenset()  # results whose registers hold the memory that they are made in
        self.keeps = False  # whether the function is a loop whose memory stays from one iteration to the next
        # By device the register of the workspace that all kernels of such a loop use.
        self.workspaces: dict[int, int] = {}
        self.placed: dict[Var, int] = {}  # by the variables of calls the keys of workspaces in arenas

    def device(self, var: Var) -> int:
        return self.devices.get(var, HOST)

    def arenas(
        self, block: Block, tail: bool, ends: Sequence[set[Var]]
    ) -> Step[tuple[list[Arena], dict[Var, escape.Origin]]]:
        """Plan the block's arenas. ``tail``: the block is in tail position. ``ends`` has, for each binding, the variables that nothing
        reads after it."""
        keys: dict[Var, escape.Origin] = {}
        info: list[tuple[TensorType, Var, int]] = []

        def outputs_of(var: Var) -> escape.Origin:
            def key(ty: Type | None, index: int) -> escape.Origin:
                if isinstance(ty, TupleType):
                    return tuple(key(f, n) for n, f in enumerate(ty.fields))
                if not isinstance(ty, TensorType) or ty.shape == ():
                    return None
                info.append((ty, var, index))
                return len(info) - 1

            keys[var] = key(var.ty, 0)
            return keys[var]

        tensors: escape.Tensors = yield escape.analyse(block, outputs_of, is_view, only_reads)
        position_of = {b.var: n for n, b in enumerate(block.bindings)}
        intervals: list[Interval] = []
        known_from, ready = self._known_from(block), dict[int, int]()
        rooms = find_rooms(block, tensors, ends)
        makers = [var for _, var, _ in info]
        for key, (ty, var, index) in enumerate(info):
            call = block.bindings[position_of[var]].value
            if key in tensors.escaped or not self._can_plan(call):
                continue
            if key in rooms and self.device(var) == HOST:
                self.rooms[var, index] = rooms[key]
                continue
            unknown = [v for v in type_dims(ty) if not self.frame.sizes.known(v)]
            ready[key] = max((known_from.get(v, tensors.start[key]) for v in unknown), default=-1)
            if ready[key] >= tensors.start[key]:
                continue
            reuse = self._reusable(call, index, ty, tensors, position_of[var])
            intervals.append(Interval(key, tensor_bytes(ty), tensors.start[key], tensors.end[key], reuse))
        for position, binding in enumerate(block.bindings):
            size = self._workspace_to_place(binding.value)
            if size is None:
                continue
            known = max(
                (known_from.get(v, position) for v in dim_vars(size) if not self.frame.sizes.known(v)), default=-1
            )
            if known < position:
                key = self.placed[binding.var] = len(makers)
                makers.append(binding.var)
                ready[key] = known
                intervals.append(Interval(key, size, position, position))
        intervals.sort(key=lambda interval: interval.start)
        at = escape.barriers(block, tail, self.keeps, self.barriers)
        arenas: list[Arena] = []
        for number, stretch in enumerate(stretches(intervals, at)):
            for part in begun_together(stretch, ready):
                device = self.device(makers[part[0].key])
                if any(self.device(makers[i.key]) != device for i in part):
                    continue  # an arena is on one device
                placement = place(part)
                kept = tail and self.keeps
                fixed = kept and self.frame.sizes.fixed(placement.total)
                starts = {i.key: i.start for i in part}
                # Slots whose sizes change are kept each by itself: where they would lie in an arena takes computing.
                for slot in shared(part) if kept and not fixed else [placement]:
                    first = min(starts[key] for key in slot.offsets)
                    last = max(i.end for i in part) if number < len(at) else None
                    register = self.frame.asm.reg()
                    arenas.append(Arena(register, slot.total, device, slot.offsets, first, last, kept, fixed))
        arenas.sort(key=lambda arena: arena.first)
        return arenas, keys

    def keeps_memory(self, tails: tuple[Block, ...]) -> Step[bool]:
        """Whether a loop with these blocks in tail position keeps its memory from one iteration to the next."""
        return escape.keeps_memory(tails, is_view, only_reads)

    def allocate(self, arena: Arena) -> None:
        """Emit the allocation of an arena."""
        opcode = "KeepStorage" if arena.kept else "AllocStorage"
        size = self.frame.sizes.register(arena.total)
        self.frame.asm.emit(opcode, arena.register, size, ALIGNMENT, arena.device)

    def _can_plan(self, call: Expr) -> bool:
        """The sizes are known before the call, and are those of the allocation."""
        assert isinstance(call, Call) and isinstance(call.fn, Function)
        planned = self.frame.unit.planned[id(call.fn)]
        return id(call.fn) not in self.frame.unit.shape_planned and not planned.upper_bound

    def _workspace_to_place(self, value: Expr) -> Dim | None:
        """The bytes of the workspace of a call that lies in an arena: not where memory is kept, which all kernels use one of."""
        planned = self.frame.unit.planned.get(id(value.fn)) if isinstance(value, Call) else None
        return None if planned is None or self.keeps or not self._can_plan(value) else placed_workspace(planned)

    def _known_from(self, block: Block) -> dict[DimVar, int]:
        """The bindings whose values say the sizes that are not known on entry to the block."""
        found: dict[DimVar, int] = {}
        for position, binding in enumerate(block.bindings):
            for v in told(binding.var.ty, lambda v: v in found or self.frame.sizes.known(v)):
                found.setdefault(v, position)
        return found

    def _reusable(self, call: Expr, output: int, ty: TensorType, tensors: escape.Tensors, position: int) -> int | None:
        """The key of an operand of equal size, last read here, that the kernel may overwrite with this output."""
        assert isinstance(call, Call) and isinstance(call.fn, Function)
        for source, out in self.frame.unit.planned[id(call.fn)].plan.kernel.in_place:
            if out != output or source >= len(call.args):
                continue
            for key in tensors.keys_of(call.args[source]):
                if tensors.end[key] == position and key not in tensors.escaped:
                    return key
        return None

    def call(
        self, var: Var, call: Call, ends: set[Var], arenas: Sequence[Arena], keys: dict[Var, escape.Origin]
    ) -> None:
        assert isinstance(call.fn, Function)
        code = self.frame.unit.scalars.get(id(call.fn))
        if code is not None:
            operands = [self.frame.value(a) for a in call.args]
            results = emit_scalars(code, operands, self.frame.asm.reg, self.frame.asm.emit, self.frame.sizes)
            self.frame.assign(var, tuple(results) if isinstance(var.ty, TupleType) else results[0])
            return
        planned = self.frame.unit.planned[id(call.fn)]
        inputs = [self.frame.value(a) for a in call.args]
        device = self.device(var)
        if id(call.fn) in self.frame.unit.shape_planned:
            self._result_shape(var, self.frame.unit.shape_planned[id(call.fn)], inputs)
            for demand, span in result_demands(call.fn):
                self.frame.demand(demand, span)
        origin = keys.get(var)
        origins = origin if isinstance(origin, tuple) else (origin,)
        outputs: list[int] = []
        for index, ty in enumerate(planned.outputs):
            assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
            shape = ty.shape
            out = self.frame.asm.reg("" if shape else ty.dtype)
            outputs.append(out)
            key = origins[index] if index < len(origins) else None
            if not shape:
                self.frame.asm.emit("AllocScalar", out, ty.dtype)
                continue
            room = self.rooms.get((var, index))
            if room is not None:
                self._room(out, room, shape)
                continue
            dims = self.frame.sizes.all(shape)
            arena = next((a for a in arenas if key in a.offsets), None) if isinstance(key, int) else None
            if arena is not None and isinstance(key, int):
                self.frame.asm.emit(
                    "AllocTensor", out, arena.register, self.frame.sizes.register(arena.offsets[key]), ty.dtype, dims
                )
                if arena.fixed:
                    self.frame.kept.add(out)
                continue
            donor = self._donor(call, planned, index, ty, ends)
            size = self.frame.sizes.register(tensor_bytes(ty))
            if donor is None and (var, index) in self.exchanged:
                donor = out
            if donor is not None:
                self.frame.asm.emit("AllocReuse", out, donor, size, ty.dtype, device, dims)
            else:
                self.frame.asm.emit("AllocFresh", out, size, ty.dtype, device, dims)
        places = (
            (arena.register, self.frame.sizes.register(arena.offsets[key]))
            for key in [self.placed.get(var)]
            for arena in arenas
            if key is not None and key in arena.offsets
        )
        self.invoke(planned, [*inputs, *outputs], device, next(places, None))
        if planned.upper_bound:
            outputs = self._cut(outputs, planned)
        self.frame.assign(var, tuple(outputs) if isinstance(var.ty, TupleType) else outputs[0])

    def _room(self, out: int, room: Room, shape: Sequence[Dim]) -> None:
        """Emit the allocation of a result that becomes rows of a state: these, where nobody else holds it."""
        state, dies = self.frame.value(room.state), self.frame.dies(room.state, set(room.ends))
        given = [self.frame.value(room.offsets), self.frame.value(room.level)]
        numbers = [self.frame.sizes.number("int64", n) for n in (room.clause, int(dies))]
        self.frame.asm.emit("InvokeRoutine", out, self.frame.unit.routine("rows.room"), [state, *given, *numbers])
        ty = room.state.ty
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.shape[1:] != tuple(shape[1:]):
            self.frame.asm.emit("ReshapeTensor", out, out, self.frame.sizes.all(shape))

    def invoke(self, planned: Planned, buffers: list[int], device: int, place: tuple[int, int] | None = None) -> None:
        """Emit the call of a kernel on these registers, with the workspace that it asks for: in a ``place`` of an arena (the registers of
        both), or by itself. In a loop that keeps its memory all kernels use one, the largest: to ask for it again at each step takes
        as long as the call."""
        kernel = planned.plan.kernel
        workspace: int | None = None
        if kernel.shared_bytes != 0 or kernel.worker_bytes != 0:
            size = self._workspace_size(planned)
            workspace = self.workspaces.get(device)
            if workspace is None:
                workspace = self.frame.asm.reg()
            if place is not None:
                self.frame.asm.emit("AllocTensor", workspace, *place, "uint8", [size])
            elif self.keeps:
                self.workspaces[device] = workspace
                self.frame.asm.emit("KeepStorage", workspace, size, ALIGNMENT, device)
            else:
                self.frame.asm.emit("AllocStorage", workspace, size, ALIGNMENT, device)
        sizes = self.frame.sizes
        dims = [sizes.register(d) for d in planned.dims]
        self.frame.asm.emit("InvokeKernel", self.frame.unit.kernel(planned), workspace, buffers, dims)
        if workspace is not None and not self.keeps:
            self.frame.asm.emit("Kill", workspace)

    def _workspace_size(self, planned: Planned) -> int:
        """The register of how many bytes of workspace a kernel asks for."""
        kernel, asm = planned.plan.kernel, self.frame.asm
        mapping = dict(zip(kernel.dims, planned.dims, strict=True))
        size = self.frame.sizes.register(_memory(kernel.shared_bytes, mapping))
        if kernel.worker_bytes == 0:
            return size
        workers, total = asm.reg(), asm.reg()
        asm.emit("NumWorkers", workers)
        asm.emit("IMul", total, workers, self.frame.sizes.register(_memory(kernel.worker_bytes, mapping)))
        asm.emit("IAdd", total, total, size)
        return total

    def only_reads(self, call: Call, number: int) -> bool:
        """Whether a call of a kernel never writes over an operand, by its position."""
        planned = self.frame.unit.planned.get(id(call.fn))
        return planned is None or all(source != number for source, _ in planned.plan.kernel.in_place)

    def _donor(self, call: Call, planned: Planned, output: int, ty: TensorType, ends: set[Var]) -> int | None:
        """The register of an operand that dies here, whose storage this output may take over if nobody else holds it."""
        for source, out in planned.plan.kernel.in_place:
            if out != output or source >= len(call.args):
                continue
            arg = call.args[source]
            register = self.frame.places[arg] if isinstance(arg, Var) else None
            if not isinstance(arg, Var) or not isinstance(register, int) or call.args.count(arg) > 1:
                continue
            # A register may have other readers: the tuple that the operand was projected from.
            if self.frame.owners.get(register, frozenset({arg})) <= ends:
                return register
        return None

    def _result_shape(self, var: Var, planned: Planned, inputs: list[int]) -> None:
        """Run the shape function of a data-dependent operator and bind the result's dims to what it gives."""
        assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple)
        rank = len(var.ty.shape)
        storage, vector = self.frame.asm.reg(), self.frame.asm.reg()
        self.frame.asm.emit("AllocStorage", storage, self.frame.sizes.register(8 * rank), ALIGNMENT, HOST)
        self.frame.asm.emit(
            "AllocTensor", vector, storage, self.frame.sizes.register(0), "int64", self.frame.sizes.all((rank,))
        )
        self.invoke(planned, [*inputs, vector], HOST)
        for axis, dim in enumerate(var.ty.shape):
            variable = as_var(dim)
            register = self._element(vector, axis)
            self.frame.asm.emit(
                "CheckLe", self.frame.sizes.register(0), register,
                self.frame.unit.message(f"axis {axis} of %{var.name} in @{self.frame.name} would have size {{1}}"),
            )  # fmt: skip
            if variable is not None and not self.frame.sizes.known(variable):
                self.frame.sizes.set(variable, register)
            else:
                text = f"axis {axis} of %{var.name} in @{self.frame.name} has size {{0}}, expected {{1}}"
                self.frame.asm.emit("CheckEq", register, self.frame.sizes.register(dim), self.frame.unit.message(text))

    def _element(self, vector: int, index: int) -> int:
        view, out = self.frame.asm.reg(), self.frame.asm.reg()
        self.frame.asm.emit("ViewTensor", view, vector, self.frame.sizes.register(8 * index), [])
        self.frame.asm.emit("ScalarOf", out, view, "int64")
        return out

    def _cut(self, outputs: list[int], planned: Planned) -> list[int]:
        """Cut upper-bound outputs to the extents that the kernel wrote in its last output."""
        *results, extents = outputs
        cut: list[int] = []
        for index, (register, ty) in enumerate(zip(results, planned.outputs, strict=False)):
            assert isinstance(ty.shape, tuple)
            shape = ty.shape
            extent, out = self._element(extents, index), self.frame.asm.reg()
            text = f"a kernel of @{self.frame.name} made {{0}} rows where at most {{1}} were expected"
            self.frame.asm.emit("CheckLe", extent, self.frame.sizes.register(shape[0]), self.frame.unit.message(text))
            self.frame.asm.emit(
                "ViewTensor", out, register, self.frame.sizes.register(0), [extent, *self.frame.sizes.all(shape[1:])]
            )
            cut.append(out)
        return cut


def placed_workspace(planned: Planned) -> Dim | None:
    """The bytes of a kernel's workspace, if it may lie in an arena, as a tensor would that dies with the call: where no thread has a part
    of its own."""
    kernel = planned.plan.kernel
    if kernel.shared_bytes == 0 or kernel.worker_bytes != 0:
        return None
    return _memory(kernel.shared_bytes, dict(zip(kernel.dims, planned.dims, strict=True)))


def _memory(dim: Dim, mapping: dict[DimVar, Dim]) -> Dim:
    """How much memory a kernel asks for; what it divides by zero is zero."""
    return dim_substitute(dim_total(dim), mapping.get)


def is_view(name: str) -> bool:
    """Whether an operator's result is in the memory of its first operand."""
    return registry.exists(name) and (registry.get(name).kind == "view" or registry.get(name).aliases)


def only_reads(name: str) -> bool:
    """Whether an operator keeps no reference to any operand."""
    if name in (CHECK_EQUAL, DEVICE_COPY):
        return True
    return registry.exists(name) and (registry.get(name).kind == "routine" or registry.get(name).by_routine)
