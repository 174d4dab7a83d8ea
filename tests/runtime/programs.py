"""Small programs for the runtime's tests: native kernels through LLVM, and executables assembled by hand."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm

from relay import _runtime
from relay.executable import (
    Assembler,
    EntryPoint,
    Executable,
    ExecutableImage,
    FunctionCode,
    KernelEntry,
    Operand,
)

Emit = Callable[[Assembler], None]


@functools.cache
def object_code(text: str, triple: str = "") -> bytes:
    """The ELF object of LLVM IR text, for this machine unless a triple is given."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


# y[i] = x[i] + 1 over dims[0] elements of float32.
ADD_ONE = """
define i32 @add_one(ptr %ctx, ptr %buffers, ptr %dims) {
entry:
  %x = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %slot
  %n = load i64, ptr %dims
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %px
  %w = fadd float %v, 1.0
  store float %w, ptr %py
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
"""

# Every worker writes index * 2 into its piece of an int64 vector, through parallel_for; also notes the worker.
DOUBLE_PARALLEL = """
define i32 @body(ptr %ctx, ptr %env, i64 %begin, i64 %end, i64 %worker) {
entry:
  %empty = icmp sge i64 %begin, %end
  br i1 %empty, label %done, label %loop
loop:
  %i = phi i64 [%begin, %entry], [%next, %loop]
  %p = getelementptr i64, ptr %env, i64 %i
  %v = mul i64 %i, 2
  store i64 %v, ptr %p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i32 @double(ptr %ctx, ptr %buffers, ptr %dims) {
  %out = load ptr, ptr %buffers
  %n = load i64, ptr %dims
  %f = load ptr, ptr %ctx
  %r = call i32 %f(ptr %ctx, ptr @body, ptr %out, i64 %n, i64 16)
  ret i32 %r
}
"""

# out = the address of the workspace is there ? 7 : 0, after writing 64 bytes of it; and a scalar in and out.
SCALARS = """
define i32 @scale(ptr %ctx, ptr %buffers, ptr %dims) {
  %x = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %slot
  %v = load double, ptr %x
  %w = fmul double %v, 3.0
  store double %w, ptr %y
  ret i32 0
}
define i32 @use_workspace(ptr %ctx, ptr %buffers, ptr %dims) {
  %out = load ptr, ptr %buffers
  %slot = getelementptr i8, ptr %ctx, i64 8
  %space = load ptr, ptr %slot
  call void @llvm.memset.p0.i64(ptr %space, i8 7, i64 4096, i1 false)
  %last = getelementptr i8, ptr %space, i64 4095
  %b = load i8, ptr %last
  %v = zext i8 %b to i64
  store i64 %v, ptr %out
  ret i32 0
}
define i32 @fails(ptr %ctx, ptr %buffers, ptr %dims) {
  ret i32 42
}
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
define i32 @lookup(ptr %ctx, ptr %buffers, ptr %dims) {
  %out = load ptr, ptr %buffers
  %i = load i64, ptr %dims
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  store i64 %v, ptr %out
  ret i32 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def function(name: str, arity: int, emit: Emit) -> FunctionCode:
    asm = Assembler(name, arity)
    emit(asm)
    return asm.finish()


def image(
    *functions: FunctionCode,
    dtypes: Sequence[str | None] | None = None,
    kernels: Sequence[KernelEntry] = (),
    objects: Sequence[bytes] = (),
    **rest: object,
) -> ExecutableImage:
    """An image whose entry ``main`` is the first function."""
    names = tuple(dtypes) if dtypes is not None else (None,) * functions[0].arity
    return ExecutableImage(
        functions=functions,
        entries=(EntryPoint("main", 0, "", names),),
        kernels=tuple(kernels),
        objects=tuple(objects),
        **rest,  # type: ignore[arg-type]
    )


def program(
    *functions: FunctionCode,
    dtypes: Sequence[str | None] | None = None,
    kernels: Sequence[KernelEntry] = (),
    objects: Sequence[bytes] = (),
    **rest: object,
) -> Executable:
    """The loaded executable of such an image."""
    built = image(*functions, dtypes=dtypes, kernels=kernels, objects=objects, **rest)
    return Executable.from_bytes(built.to_bytes())


def add_one_kernel() -> KernelEntry:
    operands = (Operand("float32", 1), Operand("float32", 1, 64, 0))
    return KernelEntry("add_one", 0, "add_one", operands, 1, 1)


def integer(asm: Assembler, value: int) -> int:
    """A register with an int64."""
    register = asm.reg()
    asm.emit("LoadConsti", register, "int64", value)
    return register


def fresh_vector(asm: Assembler, dtype: str, size: int, nbytes: int, device: str = "cpu") -> int:
    """A register with a new vector; ``size`` and ``nbytes`` are registers."""
    storage, tensor = asm.reg(), asm.reg()
    asm.emit("AllocStorage", storage, nbytes, 64, device)
    asm.emit("AllocTensor", tensor, storage, integer(asm, 0), dtype, [size])
    asm.emit("Kill", storage)
    return tensor


def call_add_one(asm: Assembler) -> None:
    """main(x): x + 1, on fresh memory."""
    size, four, nbytes = asm.reg(), integer(asm, 4), asm.reg()
    asm.emit("DimOf", size, 0, 0)
    asm.emit("IMul", nbytes, size, four)
    out = fresh_vector(asm, "float32", size, nbytes)
    asm.emit("InvokeKernel", 0, None, [0, out], [size])
    asm.emit("Ret", out)


def live() -> dict[str, int]:
    """The objects alive, without what earlier tests left to Python's collector."""
    gc.collect()
    return _runtime.live_objects()


def countdown(asm: Assembler) -> None:
    """main(n): n + (n - 1) + ... by recursion that is not in tail position."""
    zero, more, out = integer(asm, 0), asm.label(), asm.reg()
    less, flag = asm.reg(), asm.reg()
    asm.emit("IMin", flag, 0, integer(asm, 1))
    done = asm.label()
    asm.emit("Switch", flag, [done, more])
    asm.bind(more)
    asm.emit("ISub", less, 0, integer(asm, 1))
    asm.emit("Invoke", out, 0, [less], [])
    asm.emit("IAdd", out, out, 0)
    asm.emit("Ret", out)
    asm.bind(done)
    asm.emit("Ret", zero)


def build_list(asm: Assembler) -> None:
    """main(n): Cons(n, ... Cons(1, Nil)) with tags Cons = 0, Nil = 1, by a loop."""
    tail, i, one, flag = asm.reg(), asm.reg(), integer(asm, 1), asm.reg()
    asm.emit("AllocADT", tail, 1, [])
    asm.emit("LoadConsti", i, "int64", 1)
    top, body, done = asm.label(), asm.label(), asm.label()
    asm.bind(top)
    asm.emit("ISub", flag, 0, i)
    asm.emit("IMax", flag, flag, integer(asm, -1))
    asm.emit("IMin", flag, flag, integer(asm, 0))
    asm.emit("IAdd", flag, flag, one)
    asm.emit("Switch", flag, [done, body])
    asm.bind(body)
    asm.emit("AllocADT", tail, 0, [i, tail])
    asm.emit("IAdd", i, i, one)
    asm.emit("Goto", top)
    asm.bind(done)
    asm.emit("Ret", tail)


def sum_list(asm: Assembler) -> None:
    """main(list): the sum of its items."""
    total, item, tag = integer(asm, 0), asm.reg(), asm.reg()
    top, cons, nil = asm.label(), asm.label(), asm.label()
    asm.bind(top)
    asm.emit("GetTag", tag, 0)
    asm.emit("Switch", tag, [cons, nil])
    asm.bind(cons)
    asm.emit("GetField", item, 0, 0)
    asm.emit("IAdd", total, total, item)
    asm.emit("GetField", 0, 0, 1)
    asm.emit("Goto", top)
    asm.bind(nil)
    asm.emit("Ret", total)
