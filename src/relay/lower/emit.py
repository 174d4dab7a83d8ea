"""Bytecode from a function of blocks: sequences, branches, matches and calls.

A value is released after its last use; a call in tail position replaces the frame. Registers are `relay.lower.frame`'s, kernels and
memory `relay.lower.kernel_calls`'.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from relay import te
from relay.executable.bytecode import DTYPE_CODES, FunctionCode, Label
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, SymDim, dim_min, dim_sub
from relay.ir.effects import CHECK_EQUAL, CLOSURE
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
from relay.ir.types import TensorType, TupleType
from relay.lower import escape
from relay.lower.exchange import Carried, Exchanges, find_exchanges
from relay.lower.frame import Frame, Place, is_scalar, leaves, needed_dims, type_dims
from relay.lower.kernel_calls import Arena, KernelCalls, is_view
from relay.lower.liveness import Uses, dying
from relay.lower.recurrence_calls import emit_recurrence
from relay.lower.storage import tensor_bytes
from relay.lower.tail_loops import TailLoop, tail_loop
from relay.lower.unit import Unit
from relay.op import registry
from relay.transform.blocks import DEVICE_COPY
from relay.transform.dims import told


def emit_function(unit: Unit, module: Module, name: str, fn: Function, devices: dict[Var, int]) -> FunctionCode:
    """The code of one global function. ``devices`` says where each tensor variable lives (absent: the host)."""
    return _Emitter(unit, module, name, fn, devices).run()


class _Emitter:
    def __init__(self, unit: Unit, module: Module, name: str, fn: Function, devices: dict[Var, int]) -> None:
        self.unit = unit
        self.fn = fn
        self.frame = Frame(unit, module, name, len(fn.params))
        self.asm = self.frame.asm
        self.sizes = self.frame.sizes
        self.kernels = KernelCalls(self.frame, devices)
        self.uses = Uses()
        self.recurrence = unit.recurrences.get(name)
        self.loop = tail_loop(name, fn) if self.recurrence is None else None
        self.kernels.keeps = self.loop is not None and run(self.kernels.keeps_memory(self.loop.tails))
        self.exchanges = Exchanges()
        if self.loop is not None and self.kernels.keeps:
            self.exchanges = find_exchanges(name, fn, self.loop, self.kernels.only_reads, is_view)
            self.kernels.exchanged = frozenset(self.exchanges.results)
        self.top = self.asm.label()  # of the loop
        self.arenas: list[Arena] = []  # of the blocks in tail position that are open

    def run(self) -> FunctionCode:
        body = self.fn.body
        assert isinstance(body, Block), f"@{self.frame.name} is not in blocks"
        run(self.uses.analyse(body))
        self.uses.find_buffers(body, self.unit.planned.keys())
        if self.recurrence is not None:
            self._by_steps(self.recurrence[0].some, body)
            leave = emit_recurrence(*self.recurrence, self.fn, self.frame, self.kernels, self.uses)
            run(self._block(leave, frozenset(), None))
            return self.asm.finish()
        if self.loop is None:
            for register, param in enumerate(self.fn.params):
                self.frame.assign(param, register)
            self.frame.bind_composed(self.fn.params)
        else:
            self._begin_loop(self.loop)
        unused = set(self.fn.params) - self.uses.of_block[id(body)]
        self.frame.release(unused)
        run(self._block(body, frozenset(), None))
        return self.asm.finish()

    def _by_steps(self, some: Sequence[Dim], body: Block) -> None:
        """The function as it is, where one of these sizes is zero."""
        if not some:
            return
        usual, none = self.asm.label(), self.asm.reg("bool")
        self.frame.enter()
        for register, param in enumerate(self.fn.params):
            self.frame.assign(param, register)
        least = self.sizes.register(functools.reduce(dim_min, some))
        self.asm.emit("ScalarLt", none, "int64", least, self.sizes.number("int64", 1))
        self.asm.emit("If", none, usual)
        self.frame.release(set(self.fn.params) - self.uses.of_block[id(body)])
        run(self._block(body, frozenset(), None))
        self.asm.bind(usual)
        self.frame.leave()

    # -- blocks

    def _block(self, block: Block, live_out: frozenset[Var], dst: int | None) -> Step[None]:
        """Emit a block. Its result goes to ``dst``; without one the block is in tail position and returns it."""
        ends, after = dying(block, live_out, self.uses)
        arenas, keys = yield self.kernels.arenas(block, dst is None, ends)
        coming = arenas[::-1]
        open_: list[Arena] = []
        exchanged = {self._carried(c): v for c, v in self.exchanges.carried.get(id(block), {}).items()}
        self.frame.kept |= exchanged.keys()
        last = len(block.bindings) - 1
        for position, binding in enumerate(block.bindings):
            self.asm.span(str(binding.value.span) if binding.value.span else "")
            while coming and coming[-1].first == position:
                open_.append(coming.pop())
                self.kernels.allocate(open_[-1])
                if open_[-1].last is None and dst is None:
                    self.arenas.append(open_[-1])
            tail = dst is None and position == last and block.result is binding.var
            if tail and self._is_call(binding.value):
                self._tail_call(binding.value, ends[position], exchanged)
                break
            if isinstance(binding.value, If | Match):
                yield self._control(binding, after[position] - {binding.var}, tail)
                if tail:
                    break
                self.frame.release(ends[position] & {binding.var})
            else:
                released = self._binding(binding, open_, keys, ends[position])
                self.frame.release(ends[position] - released)
            self.frame.release_temporaries()
            for arena in open_:
                if arena.last == position:
                    self.asm.emit("Kill", arena.register)
            open_ = [arena for arena in open_ if arena.last != position]
        else:
            for arena in open_ if dst is not None else ():
                self.asm.emit("Kill", arena.register)
            result = self.frame.value(block.result)
            if dst is None:
                self.asm.emit("Ret", result)
                self.frame.temporaries.clear()  # gone with the frame
            else:
                self._hand_over(block.result, result, live_out, dst)
        for arena in open_ if dst is None else ():
            self.arenas.remove(arena)
        self.frame.kept -= exchanged.keys()

    def _hand_over(self, value: Expr, result: int, live_out: frozenset[Var], dst: int) -> None:
        """A block's result is in ``dst`` behind it, and nowhere else unless a variable is read there that it is of."""
        freed = self.frame.forget({value} - live_out) if isinstance(value, Var) else []
        self.asm.emit("Take" if result in freed else "Move", dst, result)
        for register in freed:
            if register != result:
                self.asm.emit("Kill", register)
        self.frame.release_temporaries()

    # -- control

    def _control(self, binding: Binding, live_after: frozenset[Var], tail: bool) -> Step[None]:
        value = binding.value
        dst = None if tail else self.asm.reg()
        end = self.asm.label()
        read = self.uses.of_value(value)
        if isinstance(value, If):
            assert isinstance(value.then, Block) and isinstance(value.orelse, Block)
            orelse = self.asm.label()
            self.asm.emit("If", self.frame.value(value.cond), orelse)
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
            self.frame.assign(binding.var, dst)

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
        self.frame.enter()
        free = self.uses.of_block[id(block)]
        for var, where, index in loads:
            if var not in free:
                self._read_sizes(var, where, index, block)
                continue
            if index is None:
                self.frame.assign(var, where)
                continue
            assert isinstance(where, int)
            out = self.asm.reg()
            self.asm.emit("GetField", out, where, index)
            self.frame.assign(var, out)
        self.frame.release(read - live_after - free)
        yield self._block(block, live_after, dst)
        self.frame.leave()

    def _read_sizes(self, var: Var, where: Place, index: int | None, block: Block) -> None:
        """A variable of a pattern that a block does not read: of it the block may need the sizes."""
        missing = {d for d in told(var.ty, self.sizes.known) if not self.sizes.known(d)}
        if not missing or missing.isdisjoint(needed_dims(block)):
            return
        if index is None:
            self.frame.bind_dims(where, var.ty)
            return
        assert isinstance(where, int)
        out = self.asm.reg()
        self.asm.emit("GetField", out, where, index)
        self.frame.bind_dims(out, var.ty)
        self.asm.emit("Kill", out)

    def _match(
        self, match: Match, read: set[Var], live_after: frozenset[Var], dst: int | None, end: Label
    ) -> Step[None]:
        """A match on one level: a switch over the tag. Patterns are flat (`CompileMatch`)."""
        data = match.data
        place_ = self.frame.place(data)
        arms: dict[int, Label] = {}
        default: Label | None = None
        labels = [self.asm.label() for _ in match.clauses]
        for index, clause in enumerate(match.clauses):
            match clause.pattern:
                case PConstructor(name=name):
                    if default is None:
                        arms.setdefault(self.frame.module.constructors[name].tag, labels[index])
                case PTuple() | PWild() | PVar():
                    default = labels[index] if default is None else default
        failed = self.asm.label()
        left_out = "the value"
        if arms:
            register = self.frame.materialise(place_)
            tag = self.asm.reg("int64")
            self.asm.emit("GetTag", tag, register)
            first = next(c.pattern for c in match.clauses if isinstance(c.pattern, PConstructor))
            adt = self.frame.module.types[self.frame.module.constructors[first.name].adt]
            targets = [arms.get(n, default if default is not None else failed) for n in range(len(adt.constructors))]
            self.asm.emit("Switch", tag, targets)
            others = [f"a {c.name}" for n, c in enumerate(adt.constructors) if n not in arms]
            left_out = f"{' or '.join(others)} of {adt.name}"
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
        # A function made of several has no name that its user knows.
        where = f"at {match.span}" if match.span else f"in @{self.frame.name}"
        text = f"no clause of the match {where} fits {left_out}: add a clause for it, or `_`"
        self.asm.emit("Fatal", self.unit.message(text))

    # -- bindings

    def _binding(
        self, binding: Binding, arenas: Sequence[Arena], keys: dict[Var, escape.Origin], ends: set[Var]
    ) -> set[Var]:
        """Emit a binding; gives those of the variables that end there which it has released itself."""
        var, value = binding.var, binding.value
        match value:
            case Call(fn=Function()):
                self.kernels.call(var, value, ends, arenas, keys)
            case Call():
                return self._call(var, value, ends)
            case Tuple():
                self.frame.assign(var, tuple(self.frame.place(f) for f in value.fields))
            case Proj():
                whole = self.frame.place(value.tuple)
                if isinstance(whole, tuple):
                    self.frame.assign(var, whole[value.index])
                else:
                    out = self.asm.reg()
                    self.asm.emit("GetField", out, whole, value.index)
                    self.frame.assign(var, out)
            case RefNew():
                out = self.asm.reg()
                self.asm.emit("RefNew", out, self.frame.value(value.value))
                self.frame.assign(var, out)
            case RefRead():
                out = self.asm.reg()
                self.asm.emit("RefRead", out, self.frame.value(value.ref))
                self.frame.assign(var, out)
            case RefWrite():
                self.asm.emit("RefWrite", self.frame.value(value.ref), self.frame.value(value.value))
                self.frame.assign(var, ())
            case _:
                self.frame.assign(var, self.frame.place(value))
        return set()

    def _call(self, var: Var, call: Call, ends: set[Var]) -> set[Var]:
        """A call that is not in tail position. What nothing reads after it is released before the function runs, which so has the
        only reference to what it alone goes on with."""
        if isinstance(call.fn, OpRef):
            self._operator(var, call.fn.name, call, ends)
            return set()
        out = self.asm.reg()
        args = [self.frame.value(a) for a in call.args]
        if isinstance(call.fn, ConstructorRef):
            self.asm.emit("AllocADT", out, self.frame.module.constructors[call.fn.name].tag, args)
            self.frame.assign(var, out)
            return set()
        closure = None if isinstance(call.fn, GlobalVar) else self.frame.value(call.fn)
        released = ends - {var}
        dead = sorted({*self.frame.forget(released), *self.frame.temporaries})
        self.frame.temporaries.clear()
        if closure is None:
            assert isinstance(call.fn, GlobalVar)
            self.asm.emit("Invoke", out, self.unit.functions[call.fn.name], args, dead)
        else:
            self.asm.emit("InvokeClosure", out, closure, args, dead)
        self.frame.assign(var, out)
        return released

    def _operator(self, var: Var, name: str, call: Call, ends: set[Var]) -> None:
        if name == CHECK_EQUAL:
            self._check(call)
            self.frame.assign(var, ())
            return
        if name != CLOSURE and name != DEVICE_COPY and self._is_buffer(var, name, call):
            self.frame.share(var, self.frame.value(call.args[0]))
            return
        out = self.asm.reg()
        if name == CLOSURE:
            fn, *captured = call.args
            assert isinstance(fn, GlobalVar)
            self.asm.emit(
                "AllocClosure", out, self.unit.closure(fn.name, len(captured)), [self.frame.value(c) for c in captured]
            )
        elif name == DEVICE_COPY:
            self.asm.emit("DeviceCopy", out, self.frame.value(call.args[0]), self.kernels.device(var))
        elif name == "rows.row":
            self._row(out, var, call)
        elif (op := registry.get(name)).kind == "view":
            self._view(out, var, self.frame.value(call.args[0]))
        elif op.kind == "routine" or op.by_routine:
            attrs = [v for n, v in op.complete_attrs(call.attrs).items() if n not in op.static]
            inputs = [self.frame.value(a) for a in call.args] + [self._attribute(name, v) for v in attrs]
            if op.donates:
                inputs.append(self._attribute(name, self.frame.dies(call.args[0], ends)))
            self.asm.emit("InvokeRoutine", out, self.unit.routine(name), inputs)
        else:
            raise CompileError(f"operator {name} was left outside of a kernel in @{self.frame.name}", call.span)
        self.frame.assign(var, out)

    def _check(self, call: Call) -> None:
        """What is demanded of two sizes, or the end of the run with a message that shows them."""
        given = {name: call.attrs[name] for name in ("relation", "sizes", "rule") if name in call.attrs}
        sides = {side: call.attrs[side] for side in ("left", "right", "why")}
        self.frame.demand(te.Demand(**sides, **given), call.span)  # type: ignore[arg-type]

    def _is_buffer(self, var: Var, name: str, call: Call) -> bool:
        """Whether a view is nothing but an operand of kernels, which read elements and are told sizes: the tensor itself will do."""
        if registry.get(name).kind != "view" or var not in self.uses.buffers or not isinstance(call.args[0], Var):
            return False
        if not isinstance(var.ty, TensorType) or is_scalar(var.ty) or is_scalar(call.args[0].ty):
            return False
        return all(self.sizes.known(v) for v in type_dims(var.ty))

    def _view(self, out: int, var: Var, source: int) -> None:
        assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple) and isinstance(var.ty.dtype, str)
        if is_scalar(var.ty):
            self.asm.emit("ScalarOf", out, source, var.ty.dtype)
        else:
            self.asm.emit("ReshapeTensor", out, source, self.sizes.all(var.ty.shape))

    def _row(self, out: int, var: Var, call: Call) -> None:
        """The view of a slice of the first axis."""
        data, number = call.args[0].ty, call.args[1].ty
        assert isinstance(var.ty, TensorType) and isinstance(var.ty.shape, tuple)
        assert isinstance(data, TensorType) and isinstance(data.shape, tuple)
        assert isinstance(number, TensorType) and isinstance(number.dtype, str)
        source, index = (self.frame.value(a) for a in call.args)
        at = self.asm.reg("int64")
        last = self.sizes.register(dim_sub(data.shape[0], 1))
        self.asm.emit("ScalarCast", at, number.dtype, "int64", index)
        self.asm.emit("ScalarMin", at, "int64", at, last)
        self.asm.emit("ScalarMax", at, "int64", at, self.sizes.number("int64", 0))
        self.asm.emit("ScalarMul", at, "int64", at, self.sizes.register(tensor_bytes(var.ty)))
        self.asm.emit("ViewTensor", out, source, at, self.sizes.all(var.ty.shape))

    def _attribute(self, op: str, value: object) -> int:
        """A routine's attribute as a scalar register: int64 for numbers, sizes, flags and dtypes (their code), float64 for floats;
        None is int64 minimum. A list of numbers is an int64 vector, one of sizes a tuple of scalars."""
        if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return self.frame.value(Constant(np.array(value, np.int64), "int64"))
        if isinstance(value, SymDim):
            return self.sizes.register(value)
        if isinstance(value, tuple) and all(isinstance(v, int | SymDim) for v in value):
            return self.frame.materialise(tuple(self.sizes.all(value)))
        if isinstance(value, float):
            return self.sizes.number("float64", value)
        if value is None:
            return self.sizes.number("int64", -(2**63))
        if isinstance(value, int):
            return self.sizes.number("int64", int(value))
        if isinstance(value, str) and value in DTYPE_CODES:
            return self.sizes.number("int64", DTYPE_CODES[value])
        raise CompileError(f"attribute {value!r} of routine {op} is neither a number, a flag nor a dtype")

    # -- calls in tail position

    @staticmethod
    def _is_call(value: Expr) -> bool:
        return isinstance(value, Call) and not isinstance(value.fn, Function | OpRef | ConstructorRef)

    def _tail_call(self, value: Expr, ends: set[Var], exchanged: Mapping[int, Expr]) -> None:
        assert isinstance(value, Call)
        if self.loop is not None and isinstance(value.fn, GlobalVar) and value.fn.name == self.frame.name:
            self._again(self.loop, value, ends, exchanged)
            return
        args = [self.frame.value(a) for a in value.args]
        if isinstance(value.fn, GlobalVar):
            self.asm.emit("TailInvoke", self.unit.functions[value.fn.name], args)
        else:
            self.asm.emit("TailInvokeClosure", self.frame.value(value.fn), args)
        self.frame.temporaries.clear()  # gone with the frame

    # -- a function that is a loop

    def _begin_loop(self, loop: TailLoop) -> None:
        """The parameters' places, what is the same in all iterations, and the place where each begins."""
        sizes = self.frame.sizes
        sizes.ahead = True
        for number, param in enumerate(self.fn.params):
            place_: Place = number
            if number in loop.unpacked:
                assert isinstance(param.ty, TupleType)
                fields = [self.asm.reg() for _ in param.ty.fields]
                for index, field in enumerate(fields):
                    self.asm.emit_first("GetField", field, number, index)
                self.asm.emit_first("Kill", number)
                place_ = tuple(fields)
            self.frame.assign(param, place_, None if number in loop.invariant else loop.dims)
        self.frame.bind_composed([p for n, p in enumerate(self.fn.params) if n in loop.invariant])
        self.frame.bind_composed(self.fn.params, loop.dims)
        sizes.begin_loop()
        self.asm.bind(self.top)
        for param in self.fn.params:
            self.frame.bind_dims(self.frame.places[param], param.ty)
        self.frame.bind_composed(self.fn.params)

    def _carried(self, parameter: Carried) -> int:
        """The register of a parameter that is carried, or of a field of it."""
        number, index = parameter
        where = self.frame.places[self.fn.params[number]]
        register = where if index is None or isinstance(where, int) else where[index]
        assert isinstance(register, int)
        return register

    def _again(self, loop: TailLoop, call: Call, ends: set[Var], exchanged: Mapping[int, Expr]) -> None:
        """The next iteration: the parameters that change get their values, and what else is held is released. The parameters in
        registers that are ``exchanged`` give what they were to the registers of what they become."""
        moves: list[tuple[int, int]] = []
        for number, (param, arg) in enumerate(zip(self.fn.params, call.args, strict=True)):
            if number in loop.invariant:
                continue
            if number not in loop.unpacked:
                moves.append((number, self.frame.value(arg)))
                continue
            fields = self.frame.places[param]
            assert isinstance(fields, tuple)
            given = self.frame.place(arg)
            for index, field in enumerate(fields):
                assert isinstance(field, int)
                if isinstance(given, tuple):
                    moves.append((field, self.frame.materialise(given[index])))
                else:
                    part = self.frame.temporary()
                    self.asm.emit("GetField", part, given, index)
                    moves.append((field, part))
        dead = ends - {self.fn.params[n] for n in loop.invariant}
        held = {r for v in dead for r, ty in leaves(self.frame.places[v], v.ty) if not is_scalar(ty)}
        held = {r for r in held if self.frame.owners.get(r, frozenset()) <= dead} - self.frame.kept
        held |= set(self.frame.temporaries)
        self.frame.temporaries.clear()
        moves += ((self.frame.value(given), register) for register, given in exchanged.items())
        held |= exchanged.keys()
        targets = {target for target, _ in moves}
        for register in sorted(held - self._move(moves, held) - targets):
            self.asm.emit("Kill", register)
        for arena in self.arenas:
            if not arena.kept:
                self.asm.emit("Kill", arena.register)
        self.asm.emit("Goto", self.top)

    def _move(self, moves: list[tuple[int, int]], held: set[int]) -> set[int]:
        """All moves (target, source) at once. The last of a ``held`` register takes its value out, unless it is to stay there too;
        returns those emptied."""
        left = [(target, source) for target, source in moves if target != source]
        held = held - {target for target, source in moves if target == source}
        emptied: set[int] = set()
        readers = Counter(source for _, source in left)
        ready = [m for m in left if readers[m[0]] == 0]
        waiting = {target: source for target, source in left if readers[target]}
        while ready or waiting:
            if not ready:  # what is left are cycles: one value steps aside
                target, source = next(iter(waiting.items()))
                aside = self.asm.reg()
                self.asm.emit("Take", aside, target)
                waiting = {t: aside if s == target else s for t, s in waiting.items()}
                readers[aside] = readers.pop(target)
                held = held | {aside}
                del waiting[target]
                ready.append((target, source))
            target, source = ready.pop()
            readers[source] -= 1
            if source in held and readers[source] == 0:
                self.asm.emit("Take", target, source)
                emptied.add(source)
            else:
                self.asm.emit("Move", target, source)
            if source in waiting and readers[source] == 0:
                ready.append((source, waiting.pop(source)))
        return emptied
