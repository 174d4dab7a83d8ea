"""The state of one function being written: its builder, what is bound to what, and the vector context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import Builder, ModuleText
from relay.codegen.convert import Conversions
from relay.codegen.elementary import Elementary
from relay.codegen.memory import Memory, Place
from relay.codegen.values import Value, memory_bytes
from relay.ir.dim import AnyDim, Dim, DimVar
from relay.loop.errors import LoopError
from relay.loop.ir import LINE_BYTES, Behind, Buffer, Shared
from relay.loop.target import Target
from relay.te.scalar import Axis, BinaryOp

# An offset in relay_kernel_context (runtime/include/relay/kernel.h).
_NUM_WORKERS, _TURN = 16, 40


class Frame:
    """One function. ``lanes`` is 1 outside vectorized loops; ``mask`` is "" while all lanes are active;
    ``guarded`` says that the mask may be empty, so that not even what all lanes share may be read without
    looking."""

    def __init__(self, module: ModuleText, target: Target, dims: tuple[DimVar, ...]) -> None:
        self.builder = Builder(module)
        self.target = target
        self.arith = Arithmetic(self.builder, target)
        self.convert = Conversions(self.arith)
        self.math = Elementary(self.arith)
        self.memory = Memory(self.builder, self.arith, self.convert)
        self.places: dict[Buffer, Place] = {}
        self.axes: dict[Axis, Value] = {}
        self.lanes = 1
        self.mask = ""
        self.guarded = False
        self._dim_vars = dims
        self._variables: dict[DimVar, Value] = {}
        self._sizes: dict[Dim, Value] = {}

    def size(self, dim: Dim) -> Value:
        """A dim's run-time value, computed once at the function's entry."""
        if isinstance(dim, int):
            return self.arith.index(dim)
        if isinstance(dim, AnyDim):
            raise LoopError("a kernel mentions the size `?`", hint="name the size by a dim variable of the kernel")
        known = self._sizes.get(dim)
        if known is None:
            with self.builder.in_entry():
                known = self._polynomial(dim)
            self._sizes[dim] = known
        return known

    def _polynomial(self, dim: Dim) -> Value:
        """The sum of a dim's terms. Dims nest only as deep as divisions do in a shape."""
        if isinstance(dim, AnyDim | int):
            return self.size(dim)
        total = self.arith.index(0)
        for monomial, coefficient in dim.terms:
            product = self.arith.index(coefficient)
            for atom, power in monomial:
                if isinstance(atom, DimVar):
                    factor = self._variable(atom)
                else:
                    op: BinaryOp = atom.op
                    factor = self.arith.binary(op, self.size(atom.a), self.size(atom.b))
                for _ in range(power):
                    product = self.arith.binary("mul", product, factor)
            total = self.arith.binary("add", total, product)
        return total

    def _variable(self, var: DimVar) -> Value:
        known = self._variables.get(var)
        if known is None:
            if var not in self._dim_vars:
                raise LoopError(f"the size {var.name} is not among the kernel's dims")
            position = self._dim_vars.index(var)
            pointer = self.builder.emit(f"getelementptr i64, ptr %dims, i64 {position}")
            text = self.builder.emit(f"load i64, ptr {pointer}, align 8, !invariant.load !0")
            known = self._variables[var] = Value(text, "int64", nonneg=var.lo >= 0, placed=True)
        return known

    def counted(self, start: Value, stop: Value, step: int, body: Callable[[Value], None]) -> None:
        """``for i from start to stop by step``: tested at the end, and before where it may be empty."""

        def alone(index: Value, _: Sequence[str]) -> Sequence[str]:
            body(index)
            return ()

        self.carrying(start, stop, step, (), alone)

    def carrying(
        self,
        start: Value,
        stop: Value,
        step: int,
        first: Sequence[str],
        body: Callable[[Value, Sequence[str]], Sequence[str]],
    ) -> None:
        """The same with indices that each iteration hands to the next: ``first`` are those of the first one."""
        b, a = self.builder, self.arith
        if isinstance(start.const, int) and isinstance(stop.const, int):
            if start.const >= stop.const:
                return
            if start.const + step >= stop.const:
                body(start, first)
                return
        loop, done = b.name("loop"), b.name("done")
        nonempty = a.compare("lt", start, stop)
        if nonempty.const is None:
            ready = b.name("ready")
            b.branch(nonempty.text, ready, done)
            b.start(ready, dominated=True)
        before = b.block
        with b.loop():
            b.jump(loop)
            b.start(loop, dominated=True)
            index, following = b.local("i"), b.local("next")
            carried = [b.local("carried") for _ in first]
            at = len(b.lines)
            b.lines.append("")
            here = Value(index, "int64", multiple=gcd(start.multiple, step), nonneg=start.nonneg, placed=start.placed)
            handed = body(here, carried)
            b.do(f"{following} = add nuw nsw i64 {index}, {step}")
            b.branch(b.emit(f"icmp slt i64 {following}, {stop.text}"), loop, done)
            b.lines[at] = "\n".join(
                f"  {name} = phi i64 [ {one}, %{before} ], [ {more}, %{b.block} ]"
                for name, one, more in zip((index, *carried), (start.text, *first), (following, *handed), strict=True)
            )
        b.start(done, dominated=True)

    def workers(self) -> Value:
        """How many threads may take part."""
        return self._of_context(_NUM_WORKERS)

    def turn(self) -> Value:
        """0 and 1 from one call to the next."""
        return self._of_context(_TURN)

    def _of_context(self, offset: int) -> Value:
        with self.builder.in_entry():
            pointer = self.builder.emit(f"getelementptr i8, ptr %context, i64 {offset}")
            text = self.builder.emit(f"load i64, ptr {pointer}, align 8, !invariant.load !0")
        return Value(text, "int64", nonneg=True)

    def behind(self, asked: Behind) -> Value:
        """How many elements behind a line a buffer begins."""
        place = self.places.get(asked.buffer)
        if place is None:
            raise LoopError(f"where the buffer {asked.buffer.name} begins is asked outside of its allocation")
        size = memory_bytes(asked.buffer.dtype)
        with self.builder.in_entry():
            address = self.builder.emit(f"ptrtoint ptr {place.pointer} to i64")
            inside = self.builder.emit(f"and i64 {address}, {LINE_BYTES - 1}")
            text = self.builder.emit(f"lshr i64 {inside}, {size.bit_length() - 1}")
        return Value(text, "int64", nonneg=True)

    def shared(self, asked: Shared) -> Value:
        """Whether an output is where an input is."""
        output, given = self.places[asked.output], self.places[asked.input]
        with self.builder.in_entry():
            same = self.builder.emit(f"icmp eq ptr {output.pointer}, {given.pointer}")
            text = self.builder.emit(f"zext i1 {same} to i64")
        return Value(text, "int64", nonneg=True)

    def strides(self, shape: tuple[Dim, ...]) -> tuple[Value, ...]:
        """Row-major element strides."""
        out: list[Value] = []
        with self.builder.in_entry():
            step = self.arith.index(1)
            for dim in reversed(shape):
                out.append(step)
                step = self.arith.binary("mul", step, self.size(dim))
        return tuple(reversed(out))
