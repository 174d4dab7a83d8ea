"""A kernel as an LLVM module: the function the runtime calls, and one function for each parallel loop in it."""

from __future__ import annotations

import re
from dataclasses import replace

from relay.codegen.builder import ModuleText
from relay.codegen.frame import Frame
from relay.codegen.matrices import Matrices
from relay.codegen.memory import INVARIANT, Place
from relay.codegen.objects import EXPLICIT, LINKED, PLAIN
from relay.codegen.stmt import Allocate, Statements
from relay.codegen.target import is_x86
from relay.codegen.values import Value, memory_bytes, register_type
from relay.ir.dim import shape_size
from relay.ir.types import is_float
from relay.loop.errors import LoopError
from relay.loop.ir import Alloc, BlockProduct, Branch, Buffer, Fail, For, Kernel, Stmt, Store, Switch
from relay.loop.target import Target
from relay.loop.walk import buffers_used, expressions, free_axes, parts
from relay.loop.walk import statements as statements_of
from relay.loop.workspace import Workspace, layout
from relay.te.scalar import Compare, Scalar, Select, walk

_PARAMETERS = "ptr noalias %context, ptr noalias %buffers, ptr noalias %dims"
_BODY_PARAMETERS = "ptr noalias %context, ptr noalias %env, i64 %begin, i64 %end, i64 %worker"
# Offsets in relay_kernel_context (runtime/include/relay/kernel.h).
_PARALLEL_FOR, _WORKSPACE = 0, 8


def emit(kernel: Kernel, target: Target) -> str:
    """The LLVM IR of a kernel for a target, one public symbol named as the kernel is.

    Raises LoopError for a loop nest that breaks the rules of `relay.loop.ir`.
    """
    return _KernelText(kernel, target).text()


class _KernelText:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.module = ModuleText()
        self.module.node("!{}")
        self.operands = {b: n for n, b in enumerate((*kernel.inputs, *kernel.outputs))}
        if len(self.operands) != len(kernel.inputs) + len(kernel.outputs):
            raise LoopError(f"the kernel {kernel.name} has one buffer as two operands")
        self.workspace: Workspace = layout(kernel.body)
        self.alias = self._alias_metadata()
        self.bodies = 0
        self.amount = _amount(kernel.body)
        self.multiplies = any(isinstance(s, BlockProduct) for s in statements_of(kernel.body))

    def text(self) -> str:
        frame = Frame(self.module, self.target, self.kernel.dims)
        self._bind_operands(frame, buffers_used(self.kernel.body))
        statements = Statements(frame, self._parallel, self._allocator(frame.arith.index(0)))
        statements.run(self.kernel.body)
        _return(frame, statements.matrices)
        frame.builder.finish(f"define i32 @{_symbol(self.kernel.name)}({_PARAMETERS}) #0")
        attributes = f"{self._attributes()}\n"
        if not self.module.explicit:
            return self.amount + self.module.text() + attributes
        first, second = self.module.parts()
        return self.amount + first + attributes + LINKED + EXPLICIT + second + attributes

    def _attributes(self) -> str:
        target = self.target
        features = ",".join(name if name[0] in "+-" else f"+{name}" for name in target.features)
        base = "x86-64" if is_x86(target) else "generic"
        return (
            f'attributes #0 = {{ nounwind "target-cpu"="{base}" "tune-cpu"="{target.cpu}" '
            f'"target-features"="{features}" '
            f'"prefer-vector-width"="{target.vector_bits}" "min-legal-vector-width"="{target.vector_bits}" '
            f'"no-jump-tables"="true" "no-trapping-math"="true" }}'
        )

    # -- memory

    def _alias_metadata(self) -> dict[Buffer, str]:
        """Distinct buffers do not overlap, but for the in-place pairs; inputs that nothing overwrites never change."""
        kernel = self.kernel
        group: dict[Buffer, int] = {b: n for b, n in self.operands.items()}
        for source, destination in kernel.in_place:
            joined, old = group[kernel.outputs[destination]], group[kernel.inputs[source]]
            group = {b: joined if g == old else g for b, g in group.items()}
        for buffer in self.workspace.offsets:
            group[buffer] = len(group)
        domain = self.module.node('distinct !{!"kernel"}')
        numbers = sorted(set(group.values()))
        scopes = {n: self.module.node(f'distinct !{{!"b{n}", {domain}}}') for n in numbers}
        one = {n: self.module.node(f"!{{{scopes[n]}}}") for n in numbers}
        others = {n: self.module.node("!{" + ", ".join(scopes[m] for m in numbers if m != n) + "}") for n in numbers}
        changed = {source for source, _ in kernel.in_place}
        out: dict[Buffer, str] = {}
        for buffer, n in group.items():
            out[buffer] = f", !alias.scope {one[n]}" + (f", !noalias {others[n]}" if len(numbers) > 1 else "")
        for n, buffer in enumerate(kernel.inputs):
            if n not in changed:
                out[buffer] += INVARIANT
        return out

    def _bind_operands(self, frame: Frame, used: dict[Buffer, None]) -> None:
        b = frame.builder
        for buffer, position in self.operands.items():
            if buffer not in used:
                continue
            with b.in_entry():
                slot = b.emit(f"getelementptr ptr, ptr %buffers, i64 {position}")
                pointer = b.emit(f"load ptr, ptr {slot}, align 8, !invariant.load !0")
            streamed = self._streamed(frame, buffer, pointer)
            rows = self._whole_rows(frame, buffer, streamed) if streamed else ""
            frame.places[buffer] = replace(self._in_memory(frame, buffer, pointer), streamed=streamed, rows=rows)

    def _streamed(self, frame: Frame, buffer: Buffer, pointer: str) -> str:
        """The bit that says whether an output is written past the caches: it is large, begins at a whole vector, and nothing that
        was just read lies there. "" for what never is."""
        number, limit = self.operands[buffer] - len(self.kernel.inputs), self.target.streamed_bytes
        if number not in self.kernel.streamed or limit is None:
            return ""
        b = frame.builder
        with b.in_entry():
            size = frame.size(shape_size(buffer.shape)).text
            bit = b.emit(f"icmp sge i64 {size}, {-(-limit // memory_bytes(buffer.dtype))}")
            address = b.emit(f"ptrtoint ptr {pointer} to i64")
            inside = b.emit(f"and i64 {address}, {self.target.vector_bits // 8 - 1}")
            bit = b.emit(f"and i1 {bit}, {b.emit(f'icmp eq i64 {inside}, 0')}")
            for source, destination in self.kernel.in_place:
                if destination == number:
                    slot = b.emit(f"getelementptr ptr, ptr %buffers, i64 {source}")
                    other = b.emit(f"load ptr, ptr {slot}, align 8, !invariant.load !0")
                    bit = b.emit(f"and i1 {bit}, {b.emit(f'icmp ne ptr {other}, {pointer}')}")
        return bit

    def _whole_rows(self, frame: Frame, buffer: Buffer, streamed: str) -> str:
        """The bit that says whether such an output has rows of whole vectors, where how long they are is known only now."""
        kernel, b = self.kernel, frame.builder
        rows = dict(zip(kernel.streamed, kernel.rows, strict=False)).get(self.operands[buffer] - len(kernel.inputs), 0)
        if isinstance(rows, int):
            return ""
        lanes = self.target.vector_bits // 8 // memory_bytes(buffer.dtype)
        with b.in_entry():
            inside = b.emit(f"and i64 {frame.size(rows).text}, {lanes - 1}")
            return b.emit(f"and i1 {streamed}, {b.emit(f'icmp eq i64 {inside}, 0')}")

    def _in_memory(self, frame: Frame, buffer: Buffer, pointer: str) -> Place:
        strides = frame.strides(buffer.shape)
        # What one element promises is assumed of operands: nothing is lost on the machines that matter.
        return Place(pointer, strides, buffer.dtype, memory_bytes(buffer.dtype), metadata=self.alias[buffer])

    def _allocator(self, worker: Value) -> Allocate:
        """Places for buffers in the workspace, seen from one worker."""

        def allocate(statements: Statements, buffer: Buffer) -> Place:
            frame, b = statements.f, statements.f.builder
            a = frame.arith
            offset = frame.size(self.workspace.offsets[buffer])
            with b.in_entry():
                slot = b.emit(f"getelementptr i8, ptr %context, i64 {_WORKSPACE}")
                pointer = b.emit(f"load ptr, ptr {slot}, align 8, !invariant.load !0")
                if buffer.scope == "worker":
                    slices = a.binary("mul", worker, frame.size(self.kernel.worker_bytes))
                    slices = a.binary("add", frame.size(self.kernel.shared_bytes), slices)
                    pointer = b.hidden(frame.builder.element(pointer, "i8", slices.text), "ptr")
                pointer = frame.builder.element(pointer, "i8", offset.text)
                # Where it is, is a sum of products of sizes. What LLVM sees of it, it spreads over the addresses of every loop, and tries
                # in all ways to put together again: a quarter of its time. Distances that are numbers are parts of addresses.
                pointer = pointer if offset.const is not None else b.hidden(pointer, "ptr")
            place = self._in_memory(frame, buffer, pointer)
            return replace(place, align=64)

        return allocate

    # -- parallel loops

    def _parallel(self, statements: Statements, loop: For, extent: Value) -> None:
        """Move the loop's body into a function of its own and hand that to the context's ``parallel_for``."""
        frame, b = statements.f, statements.f.builder
        self.bodies += 1
        name = _symbol(f"{self.kernel.name}.part{self.bodies}")
        captured: list[tuple[str, str]] = [("ptr", "%buffers"), ("ptr", "%dims")]
        inner = Frame(self.module, self.target, self.kernel.dims)
        ib = inner.builder

        def fetch(type_: str, value: str) -> str:
            slot = len(captured)
            captured.append((type_, value))
            with ib.in_entry():
                pointer = ib.emit(f"getelementptr i64, ptr %env, i64 {slot}")
                return ib.emit(f"load {type_}, ptr {pointer}, align 8, !invariant.load !0")

        with ib.in_entry():
            ib.do("%buffers = load ptr, ptr %env, align 8")
            ib.do("%dims.slot = getelementptr i64, ptr %env, i64 1")
            ib.do("%dims = load ptr, ptr %dims.slot, align 8")
        used = buffers_used(loop.body)
        self._bind_operands(inner, used)
        for buffer in used:
            outer = frame.places.get(buffer)
            if buffer in self.operands or outer is None:
                continue
            # Strides of local buffers are numbers; those of buffers in the workspace are computed again from the sizes.
            strides = outer.strides if outer.local else inner.strides(buffer.shape)
            inner.places[buffer] = replace(outer, pointer=fetch("ptr", outer.pointer), strides=strides)
        for axis in free_axes(loop.body):
            bound = frame.axes.get(axis)
            if axis is loop.var or bound is None:
                continue
            if bound.const is not None:
                inner.axes[axis] = bound
            else:
                type_ = register_type(axis.dtype)
                text = fetch(type_, bound.text)
                inner.axes[axis] = Value(
                    text, axis.dtype, multiple=bound.multiple, nonneg=bound.nonneg, placed=bound.placed
                )
        body = Statements(inner, self._parallel, self._allocator(Value("%worker", "int64", nonneg=True)))
        begin = Value("%begin", "int64", nonneg=True, multiple=max(1, loop.grain))
        body.each(loop, begin, Value("%end", "int64"))
        _return(inner, body.matrices)
        # Tiles beside what takes all passes do with a few.
        explicit = self.amount != EXPLICIT and _amount(loop.body) == EXPLICIT
        ib.finish(f"define internal i32 @{name}({_BODY_PARAMETERS}) #0", explicit)

        env = b.alloca(f"[{len(captured)} x i64]")
        for slot, (type_, value) in enumerate(captured):
            pointer = frame.builder.element(env, "i64", str(slot))
            b.do(f"store {type_} {value}, ptr {pointer}, align 8")
        slot_of_function = frame.builder.element("%context", "i8", str(_PARALLEL_FOR))
        function = b.emit(f"load ptr, ptr {slot_of_function}, align 8, !invariant.load !0")
        given = f"ptr %context, ptr @{name}, ptr {env}, i64 {extent.text}, i64 {max(1, loop.grain)}"
        result = b.emit(f"call i32 {function}({given})")
        failed, after = b.name("failed"), b.name("after")
        b.branch(b.emit(f"icmp ne i32 {result}, 0"), failed, after)
        b.start(failed)
        b.leave(f"i32 {result}")
        b.start(after)
        if self.multiplies:
            statements.matrices.forget()


def _return(frame: Frame, matrices: Matrices) -> None:
    """The end of a function that did what it should. Stores past the caches are ordered with what other threads see only by a
    fence."""
    b = frame.builder
    matrices.release()
    if frame.memory.streams:
        bit, *others = frame.memory.streams
        for other in others:
            bit = b.emit(f"or i1 {bit}, {other}")
        fence, done = b.name("fence"), b.name("end")
        b.branch(bit, fence, done)
        b.start(fence)
        b.call("llvm.x86.sse.sfence", "void")
        b.jump(done)
        b.start(done)
    b.do("ret i32 0")


def _amount(body: Stmt) -> str:
    """The line that says how much is left for LLVM to find in code.

    Loops that ask for what may fail are dropped where it may not, which needs all of its passes, and so do conditions on indices, parts of
    which are known before their loops or decided by others. Register tiles without these beside them leave nothing, other code without
    them what LLVM's faster passes find.
    """
    tiles, guards, todo = False, False, [(body, False)]
    while todo:
        stmt, inside = todo.pop()
        if isinstance(stmt, Fail):
            return ""
        if isinstance(stmt, Alloc) and stmt.buffer.scope == "register" and len(stmt.buffer.shape) > 1:
            if any(isinstance(s, Fail) for s in statements_of(stmt)):
                return ""
            tiles = True
            continue
        if isinstance(stmt, Store) and _has_guard(stmt.value):
            return ""
        guards |= inside and (isinstance(stmt, Branch | Switch) or any(map(_has_guard, expressions(stmt))))
        todo += [(part, inside or isinstance(stmt, For)) for part in parts(stmt)]
    if tiles:
        return EXPLICIT
    return "" if guards else PLAIN


def _has_guard(value: Scalar) -> bool:
    """Whether a choice in an expression depends on how integers compare, as indices do."""
    return any(
        isinstance(n, Compare) and not is_float(n.a.dtype)
        for e in walk(value)
        if isinstance(e, Select)
        for n in walk(e.cond)
    )


def _symbol(name: str) -> str:
    """The kernel's name as an LLVM symbol."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name) else f'"{name}"'
