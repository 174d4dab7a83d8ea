"""Bytecode from a function of blocks.

Every variable gets a register, except a tuple that is only taken apart, which stays a list of registers. Rank-0 tensors are
unboxed scalars. Each block with kernels gets one arena for the tensors that cannot leave it (`relay.lower.storage`); the others
are allocated one by one, on the storage of an operand that dies there if the kernel may work in place. A value is released
after its last use; a call in tail position replaces the frame.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass

from relay.executable.bytecode import DTYPE_CODES, Assembler, FunctionCode, Label
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_substitute, dim_vars
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, Type, is_integer
from relay.lower import escape
from relay.lower.liveness import Uses, dying
from relay.lower.sizes import Sizes
from relay.lower.storage import ALIGNMENT, Interval, place, tensor_bytes
from relay.lower.unit import Planned, Unit
from relay.op import registry

# Where a value is: a register, or the places of a tuple's fields.
Place = int | tuple["Place", ...]
TUPLE_TAG = -1
HOST = 0
# Internal operators of the middle end (see docs/architecture.md).
CLOSURE, CHECK_EQUAL, DEVICE_COPY = "closure", "check_equal", "device_copy"


def is_scalar(ty: Type | None) -> bool:
    """A rank-0 tensor, which lives unboxed in a register."""
    return isinstance(ty, TensorType) and ty.shape == ()


@dataclass(frozen=True, slots=True)
class Arena:
    """A block's storage: its register, and the byte offset of each tensor that lives in it, by key."""

    register: int
    offsets: dict[int, Dim]


def emit_function(unit: Unit, module: Module, name: str, fn: Function, devices: dict[Var, int]) -> FunctionCode:
    """The code of one global function. ``devices`` says where each tensor variable lives (absent: the host)."""
    return _Emitter(unit, module, name, fn, devices).run()


class _Emitter:
    def __init__(self, unit: Unit, module: Module, name: str, fn: Function, devices: dict[Var, int]) -> None:
        self.unit = unit
        self.module = module
        self.name = name
        self.fn = fn
        self.devices = devices
        self.asm = Assembler(name, len(fn.params))
        self.sizes = Sizes(self.asm, name)
        self.places: dict[Var, Place] = {}
        self.owners: ChainMap[int, frozenset[Var]] = ChainMap()  # who still reads a register; forked in branches
        self.temporaries: list[int] = []
        self.uses = Uses()

    def run(self) -> FunctionCode:
        for register, param in enumerate(self.fn.params):
            self._set(param, register)
        body = self.fn.body
        assert isinstance(body, Block), f"@{self.name} is not in blocks"
        run(self.uses.analyse(body))
        unused = set(self.fn.params) - self.uses.of_block[id(body)]
        self._release(unused)
        run(self._block(body, frozenset(), None))
        return self.asm.finish()

    # -- blocks

    def _block(self, block: Block, live_out: frozenset[Var], dst: int | None) -> Step[None]:
        """Emit a block. Its result goes to ``dst``; without one the block is in tail position and returns it."""
        arena, keys = yield self._arena(block)
        ends, after = dying(block, live_out, self.uses)
        last = len(block.bindings) - 1
        for position, binding in enumerate(block.bindings):
            self.asm.span(str(binding.value.span) if binding.value.span else "")
            tail = dst is None and position == last and block.result is binding.var
            if tail and self._is_call(binding.value):
                self._tail_call(binding.value)
                return
            if isinstance(binding.value, If | Match):
                yield self._control(binding, after[position] - {binding.var}, tail)
                if tail:
                    return
                self._release(ends[position] & {binding.var})
            else:
                self._binding(binding, arena, keys, ends[position])
                self._release(ends[position])
            self._release_temporaries()
        if arena is not None and dst is not None:
            self.asm.emit("Kill", arena.register)
        result = self._value(block.result)
        if dst is None:
            self.asm.emit("Ret", result)
        else:
            self.asm.emit("Move", dst, result)
            self._release_temporaries()

    def _arena(self, block: Block) -> Step[tuple[Arena | None, dict[Var, escape.Origin]]]:
        """Plan the block's arena and emit its allocation."""
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

        tensors: escape.Tensors = yield escape.analyse(block, outputs_of, _is_view, _only_reads)
        position_of = {b.var: n for n, b in enumerate(block.bindings)}
        intervals: list[Interval] = []
        for key, (ty, var, index) in enumerate(info):
            call = block.bindings[position_of[var]].value
            if key in tensors.escaped or not self._can_plan(call, ty):
                continue
            reuse = self._reusable(call, index, ty, tensors, position_of[var])
            intervals.append(Interval(key, tensor_bytes(ty), tensors.start[key], tensors.end[key], reuse))
        if not intervals:
            return None, keys
        device = self._device(info[intervals[0].key][1])
        if any(self._device(info[i.key][1]) != device for i in intervals):
            return None, keys  # an arena is on one device
        placement = place(intervals)
        register = self.asm.reg()
        self.asm.emit("AllocStorage", register, self.sizes.register(placement.total), ALIGNMENT, device)
        return Arena(register, placement.offsets), keys

    def _can_plan(self, call: Expr, ty: TensorType) -> bool:
        """The sizes are known on entry to the block, and are those of the allocation."""
        assert isinstance(call, Call) and isinstance(call.fn, Function)
        planned = self.unit.planned[id(call.fn)]
        if id(call.fn) in self.unit.shape_planned or planned.upper_bound:
            return False
        return all(self.sizes.known(v) for v in _type_vars(ty))

    def _reusable(self, call: Expr, output: int, ty: TensorType, tensors: escape.Tensors, position: int) -> int | None:
        """The key of an operand of equal size, last read here, that the kernel may overwrite with this output."""
        assert isinstance(call, Call) and isinstance(call.fn, Function)
        for source, out in self.unit.planned[id(call.fn)].plan.kernel.in_place:
            if out != output or source >= len(call.args):
                continue
            for key in tensors.keys_of(call.args[source]):
                if tensors.end[key] == position and key not in tensors.escaped:
                    return key
        return None

    # -- control

    def _control(self, binding: Binding, live_after: frozenset[Var], tail: bool) -> Step[None]:
        value = binding.value
        dst = None if tail else self.asm.reg()
        end = self.asm.label()
        read = self.uses.of_value(value)
        if isinstance(value, If):
            assert isinstance(value.then, Block) and isinstance(value.orelse, Block)
            orelse = self.asm.label()
            self.asm.emit("If", self._value(value.cond), orelse)
            yield self._branch(value.then, (), read, live_after, dst)
            if not tail:
                self.asm.emit("Goto", end)
            self.asm.bind(orelse)
            yield self._branch(value.orelse, (), read, live_after, dst)
        else:
            assert isinstance(value, Match)
            yield self._match(value, read, live_after, dst, end)
        self.asm.bind(end)
        if dst is not None:
            self._set(binding.var, dst)

    def _branch(
        self,
        block: Block,
        loads: Sequence[tuple[Var, Place, int | None]],
        read: set[Var],
        live_after: frozenset[Var],
        dst: int | None,
    ) -> Step[None]:
        """One arm: load what the pattern names (variable, place, and the field of it if not the whole), release what only
        other arms read, run."""
        self.sizes.enter()
        self.owners = self.owners.new_child()
        free = self.uses.of_block[id(block)]
        for var, where, index in loads:
            if var not in free:
                continue
            if index is None:
                self._set(var, where)
                continue
            assert isinstance(where, int)
            out = self.asm.reg()
            self.asm.emit("GetField", out, where, index)
            self._set(var, out)
        self._release(read - live_after - free)
        yield self._block(block, live_after, dst)
        self.owners = self.owners.parents
        self.sizes.leave()

    def _match(
        self, match: Match, read: set[Var], live_after: frozenset[Var], dst: int | None, end: Label
    ) -> Step[None]:
        """A match on one level: a switch over the tag. Patterns are flat (`CompileMatch`)."""
        data = match.data
        place_ = self._place(data)
        arms: dict[int, Label] = {}
        default: Label | None = None
        labels = [self.asm.label() for _ in match.clauses]
        for index, clause in enumerate(match.clauses):
            match clause.pattern:
                case PConstructor(name=name):
                    if default is None:
                        arms.setdefault(self.module.constructors[name].tag, labels[index])
                case PTuple() | PWild() | PVar():
                    default = labels[index] if default is None else default
        failed = self.asm.label()
        if arms:
            register = self._materialise(place_)
            tag = self.asm.reg()
            self.asm.emit("GetTag", tag, register)
            first = next(c.pattern for c in match.clauses if isinstance(c.pattern, PConstructor))
            adt = self.module.types[self.module.constructors[first.name].adt]
            targets = [arms.get(n, default if default is not None else failed) for n in range(len(adt.constructors))]
            self.asm.emit("Switch", tag, targets)
        elif default is not None:
            self.asm.emit("Goto", default)
        for index, clause in enumerate(match.clauses):
            self.asm.bind(labels[index])
            loads: list[tuple[Var, Place, int | None]] = []
            match clause.pattern:
                case PConstructor(fields=fields):
                    for number, p in enumerate(fields):
                        if isinstance(p, PVar):
                            loads.append((p.var, place_, number))
                        else:
                            assert isinstance(p, PWild), "patterns are not flat"
                case PTuple(fields=fields):
                    for number, p in enumerate(fields):
                        if isinstance(p, PVar) and isinstance(place_, tuple):
                            loads.append((p.var, place_[number], None))
                        elif isinstance(p, PVar):
                            loads.append((p.var, place_, number))
                case PVar(var=var):
                    loads.append((var, place_, None))
                case PWild():
                    pass
            body = clause.body
            assert isinstance(body, Block)
            yield self._branch(body, loads, read, live_after, dst)
            if dst is not None:
                self.asm.emit("Goto", end)
        self.asm.bind(failed)
        where = f" at {match.span}" if match.span else ""
        self.asm.emit("Fatal", self.unit.message(f"no clause of the match{where} in @{self.name} fits the value"))

    # -- bindings

    def _binding(self, binding: Binding, arena: Arena | None, keys: dict[Var, escape.Origin], ends: set[Var]) -> None:
        var, value = binding.var, binding.value
        match value:
            case Call(fn=Function()):
                self._primitive(var, value, ends, arena, keys)
            case Call():
                self._call(var, value)
            case Tuple():
                self._set(var, tuple(self._place(f) for f in value.fields))
            case Proj():
                whole = self._place(value.tuple)
                if isinstance(whole, tuple):
                    self._set(var, whole[value.index])
                else:
                    out = self.asm.reg()
                    self.asm.emit("GetField", out, whole, value.index)
                    self._set(var, out)
            case RefNew():
                out = self.asm.reg()
                self.asm.emit("RefNew", out, self._value(value.value))
                self._set(var, out)
            case RefRead():
                out = self.asm.reg()
                self.asm.emit("RefRead", out, self._value(value.ref))
                self._set(var, out)
            case RefWrite():
                self.asm.emit("RefWrite", self._value(value.ref), self._value(value.value))
                self._set(var, ())
            case _:
                self._set(var, self._place(value))

    def _primitive(
        self, var: Var, call: Call, ends: set[Var], arena: Arena | None, keys: dict[Var, escape.Origin]
    ) -> None:
        assert isinstance(call.fn, Function)
        planned = self.unit.planned[id(call.fn)]
        inputs = [self._value(a) for a in call.args]
        device = self._device(var)
        if id(call.fn) in self.unit.shape_planned:
            self._result_shape(var, self.unit.shape_planned[id(call.fn)], inputs)
        origin = keys.get(var)
        origins = origin if isinstance(origin, tuple) else (origin,)
        outputs: list[int] = []
        for index, ty in enumerate(planned.outputs):
            assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
            shape = ty.shape
            out = self.asm.reg()
            outputs.append(out)
            key = origins[index] if index < len(origins) else None
            if not shape:
                self.asm.emit("AllocScalar", out, ty.dtype)
                continue
            dims = self.sizes.all(shape)
            if arena is not None and isinstance(key, int) and key in arena.offsets:
                self.asm.emit(
                    "AllocTensor", out, arena.register, self.sizes.register(arena.offsets[key]), ty.dtype, dims
                )
                continue
            donor = self._donor(call, planned, index, ty, ends)
            size = self.sizes.register(tensor_bytes(ty))
            if donor is not None:
                self.asm.emit("AllocReuse", out, donor, size, ty.dtype, device, dims)
            else:
                storage = self.asm.reg()
                self.asm.emit("AllocStorage", storage, size, ALIGNMENT, device)
                self.asm.emit("AllocTensor", out, storage, self.sizes.register(0), ty.dtype, dims)
                self.asm.emit("Kill", storage)
        self._invoke(planned, [*inputs, *outputs], device)
        if planned.upper_bound:
            outputs = self._cut(outputs, planned)
        self._set(var, tuple(outputs) if isinstance(var.ty, TupleType) else outputs[0])

    def _invoke(self, planned: Planned, buffers: list[int], device: int) -> None:
        kernel = planned.plan.kernel
        mapping = dict(zip(kernel.dims, planned.dims, strict=True))
        workspace: int | None = None
        if kernel.shared_bytes != 0 or kernel.worker_bytes != 0:
            size = self.sizes.register(_rename(kernel.shared_bytes, mapping))
            if kernel.worker_bytes != 0:
                workers, total = self.asm.reg(), self.asm.reg()
                self.asm.emit("NumWorkers", workers)
                self.asm.emit("IMul", total, workers, self.sizes.register(_rename(kernel.worker_bytes, mapping)))
                self.asm.emit("IAdd", total, total, size)
                size = total
            workspace = self.asm.reg()
            self.asm.emit("AllocStorage", workspace, size, ALIGNMENT, device)
        dims = [self.sizes.variable(d) for d in planned.dims]
        self.asm.emit("InvokeKernel", self.unit.kernel(planned), workspace, buffers, dims)
        if workspace is not None:
            self.asm.emit("Kill", workspace)

    def _donor(self, call: Call, planned: Planned, output: int, ty: TensorType, ends: set[Var]) -> int | None:
        """The register of an operand that dies here, whose storage this output may take over if nobody else holds it."""
        for source, out in planned.plan.kernel.in_place:
            if out != output or source >= len(call.args):
                continue
            arg = call.args[source]
            register = self.places[arg] if isinstance(arg, Var) else None
            if not isinstance(arg, Var) or not isinstance(register, int) or call.args.count(arg) > 1:
                continue
            # A register may have other readers: the tuple that the operand was projected from.
            if self.owners.get(register, frozenset({arg})) <= ends:
                return register
        return None

    def _result_shape(self, var: Var, planned: Planned, inputs: list[int]) -> None:
        """Run the shape function of a data-dependent operator and bind the result's dims to what it gives."""
        assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple)
        rank = len(var.ty.shape)
        storage, vector = self.asm.reg(), self.asm.reg()
        self.asm.emit("AllocStorage", storage, self.sizes.register(8 * rank), ALIGNMENT, HOST)
        self.asm.emit("AllocTensor", vector, storage, self.sizes.register(0), "int64", self.sizes.all((rank,)))
        self._invoke(planned, [*inputs, vector], HOST)
        for axis, dim in enumerate(var.ty.shape):
            variable = as_var(dim)
            register = self._element(vector, axis)
            self.asm.emit(
                "CheckLe", self.sizes.register(0), register,
                self.unit.message(f"axis {axis} of %{var.name} in @{self.name} would have size {{1}}"),
            )  # fmt: skip
            if variable is not None and not self.sizes.known(variable):
                self.sizes.set(variable, register)
            else:
                text = f"axis {axis} of %{var.name} in @{self.name} has size {{0}}, expected {{1}}"
                self.asm.emit("CheckEq", register, self.sizes.register(dim), self.unit.message(text))

    def _element(self, vector: int, index: int) -> int:
        view, out = self.asm.reg(), self.asm.reg()
        self.asm.emit("ViewTensor", view, vector, self.sizes.register(8 * index), [])
        self.asm.emit("ScalarOf", out, view)
        return out

    def _cut(self, outputs: list[int], planned: Planned) -> list[int]:
        """Cut upper-bound outputs to the extents that the kernel wrote in its last output."""
        *results, extents = outputs
        cut: list[int] = []
        for index, (register, ty) in enumerate(zip(results, planned.outputs, strict=False)):
            assert isinstance(ty.shape, tuple)
            shape = ty.shape
            extent, out = self._element(extents, index), self.asm.reg()
            text = f"a kernel of @{self.name} made {{0}} rows where at most {{1}} were expected"
            self.asm.emit("CheckLe", extent, self.sizes.register(shape[0]), self.unit.message(text))
            self.asm.emit("ViewTensor", out, register, self.sizes.register(0), [extent, *self.sizes.all(shape[1:])])
            cut.append(out)
        return cut

    def _call(self, var: Var, call: Call) -> None:
        if isinstance(call.fn, OpRef):
            self._operator(var, call.fn.name, call)
            return
        out = self.asm.reg()
        args = [self._value(a) for a in call.args]
        match call.fn:
            case GlobalVar(name=name):
                self.asm.emit("Invoke", out, self._function(name), args)
            case ConstructorRef(name=name):
                self.asm.emit("AllocADT", out, self.module.constructors[name].tag, args)
            case _:
                self.asm.emit("InvokeClosure", out, self._value(call.fn), args)
        self._set(var, out)

    def _operator(self, var: Var, name: str, call: Call) -> None:
        if name == CHECK_EQUAL:
            left, right, why = call.attrs["left"], call.attrs["right"], call.attrs["why"]
            where = f" ({call.span})" if call.span else ""
            text = f"{why} must agree: {{0}} and {{1}} in @{self.name}{where}"
            opcode = "CheckLe" if call.attrs.get("relation") == "<=" else "CheckEq"
            self.asm.emit(opcode, self.sizes.register(left), self.sizes.register(right), self.unit.message(text))  # type: ignore[arg-type]
            self._set(var, ())
            return
        out = self.asm.reg()
        if name == CLOSURE:
            fn, *captured = call.args
            assert isinstance(fn, GlobalVar)
            self.asm.emit("AllocClosure", out, self._function(fn.name), [self._value(c) for c in captured])
        elif name == DEVICE_COPY:
            self.asm.emit("DeviceCopy", out, self._value(call.args[0]), self._device(var))
        elif (op := registry.get(name)).kind == "view":
            self._view(out, var, self._value(call.args[0]))
        elif op.kind == "routine":
            attrs = op.complete_attrs(call.attrs).values()
            inputs = [self._value(a) for a in call.args] + [self._attribute(name, v) for v in attrs]
            self.asm.emit("InvokeRoutine", out, self.unit.routine(name), inputs)
        else:
            raise CompileError(f"operator {name} was left outside of a kernel in @{self.name}", call.span)
        self._set(var, out)

    def _view(self, out: int, var: Var, source: int) -> None:
        assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple)
        if is_scalar(var.ty):
            self.asm.emit("ScalarOf", out, source)
        else:
            self.asm.emit("ReshapeTensor", out, source, self.sizes.all(var.ty.shape))

    def _attribute(self, op: str, value: object) -> int:
        """A routine's attribute as a scalar register: int64 for numbers, flags and dtypes (their code), float64 for floats;
        None is int64 minimum."""
        out = self.asm.reg()
        if isinstance(value, float):
            self.asm.emit("LoadConsti", out, "float64", value)
        elif value is None:
            self.asm.emit("LoadConsti", out, "int64", -(2**63))
        elif isinstance(value, int):
            self.asm.emit("LoadConsti", out, "int64", int(value))
        elif isinstance(value, str) and value in DTYPE_CODES:
            self.asm.emit("LoadConsti", out, "int64", DTYPE_CODES[value])
        else:
            raise CompileError(f"attribute {value!r} of routine {op} is neither a number, a flag nor a dtype")
        return out

    # -- calls in tail position

    @staticmethod
    def _is_call(value: Expr) -> bool:
        return isinstance(value, Call) and not isinstance(value.fn, Function | OpRef | ConstructorRef)

    def _tail_call(self, value: Expr) -> None:
        assert isinstance(value, Call)
        args = [self._value(a) for a in value.args]
        if isinstance(value.fn, GlobalVar):
            self.asm.emit("TailInvoke", self._function(value.fn.name), args)
        else:
            self.asm.emit("TailInvokeClosure", self._value(value.fn), args)

    # -- values

    def _function(self, name: str) -> int:
        return self.unit.functions[name]

    def _device(self, var: Var) -> int:
        return self.devices.get(var, HOST)

    def _place(self, atom: Expr) -> Place:
        match atom:
            case Var():
                return self.places[atom]
            case Constant() if atom.data.ndim == 0:
                out = self.asm.reg()
                self.asm.emit("LoadConsti", out, atom.dtype, _number(atom))
                return out
            case Constant():
                out = self.asm.reg()
                self.asm.emit("LoadConst", out, self.unit.constant(atom))
                return out
            case GlobalVar(name=name):
                out = self._temporary()
                self.asm.emit("AllocClosure", out, self._function(name), [])
                return out
            case ConstructorRef(name=name):
                out = self._temporary()
                self.asm.emit("AllocADT", out, self.module.constructors[name].tag, [])
                return out
            case Tuple(fields=()):
                return ()
            case _:
                raise CompileError(f"not an atom where one is needed in @{self.name}: {type(atom).__name__}", atom.span)

    def _value(self, atom: Expr) -> int:
        """A register that holds the value."""
        return self._materialise(self._place(atom))

    def _materialise(self, place_: Place) -> int:
        if isinstance(place_, int):
            return place_
        fields = [self._materialise(f) for f in place_]
        out = self._temporary()
        self.asm.emit("AllocADT", out, TUPLE_TAG, fields)
        return out

    def _temporary(self) -> int:
        """A register that is released after the binding at hand."""
        out = self.asm.reg()
        self.temporaries.append(out)
        return out

    def _release_temporaries(self) -> None:
        for register in self.temporaries:
            self.asm.emit("Kill", register)
        self.temporaries.clear()

    def _set(self, var: Var, place_: Place) -> None:
        """The variable's value is here. Registers may be shared by several variables; dims are read off where new."""
        self.places[var] = place_
        for register in _registers(place_):
            self.owners[register] = self.owners.get(register, frozenset()) | {var}
        self._bind_dims(place_, var.ty)

    def _bind_dims(self, place_: Place, ty: Type | None) -> None:
        todo: list[tuple[Place, Type | None]] = [(place_, ty)]
        while todo:
            where, t = todo.pop()
            if isinstance(t, TensorType) and isinstance(where, int):
                self.sizes.bind(where, t)
            elif isinstance(t, TupleType):
                for number, f in reversed(list(enumerate(t.fields))):
                    if isinstance(where, tuple):
                        todo.append((where[number], f))
                    elif any(not self.sizes.known(v) for v in _type_vars(f)):
                        out = self._temporary()
                        self.asm.emit("GetField", out, where, number)
                        todo.append((out, f))

    def _release(self, variables: set[Var] | frozenset[Var]) -> None:
        """Nothing reads these variables any more: release the registers that no other variable shares."""
        freed: list[int] = []
        for var in variables:
            for register in _registers(self.places.get(var, ())):
                left = self.owners.get(register, frozenset()) - {var}
                self.owners[register] = left
                if not left and not is_scalar(var.ty):
                    freed.append(register)
        for register in sorted(freed):
            self.asm.emit("Kill", register)


def _registers(place_: Place) -> list[int]:
    out: list[int] = []
    todo = [place_]
    while todo:
        p = todo.pop()
        if isinstance(p, int):
            out.append(p)
        else:
            todo.extend(p)
    return out


def _number(constant: Constant) -> int | float:
    """The value of a rank-0 constant."""
    item = constant.data.reshape(()).item()
    return int(item) if is_integer(constant.dtype) or constant.dtype == "bool" else float(item)


def _rename(dim: Dim, mapping: dict[DimVar, DimVar]) -> Dim:
    return dim_substitute(dim, lambda v: as_dim(mapping[v]) if v in mapping else None)


def _type_vars(ty: Type) -> list[DimVar]:
    match ty:
        case TensorType(shape=shape) if isinstance(shape, tuple):
            return [v for d in shape for v in dim_vars(d)]
        case TupleType(fields=fields):
            return [v for f in fields for v in _type_vars(f)]
        case _:
            return []


def _is_view(name: str) -> bool:
    return registry.exists(name) and registry.get(name).kind == "view"


def _only_reads(name: str) -> bool:
    return name in (CHECK_EQUAL, DEVICE_COPY) or (registry.exists(name) and registry.get(name).kind == "routine")
