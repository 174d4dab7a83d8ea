"""What native code knows of the runtime: sizes and offsets, names of its functions, and helpers on reference counts."""

from __future__ import annotations

from typing import Final

from relay.codegen.target import is_x86
from relay.executable.bytecode import DTYPE_CODES, OPCODES
from relay.executable.runtime import _runtime
from relay.loop.target import Target

AT: Final = _runtime.native_layout()  # sizes, offsets of fields, numbers of kinds
FRAME, VALUE, FUNCTION = AT["Frame"], AT["Value"], AT["NativeFunction"]
BITS: Final = AT["Value.bits"]
SCALAR, OBJECT = AT["Value.scalar"], AT["Value.object"]
VERSION: Final = AT["version"]
SYMBOL: Final = "relay_native_functions"
RUNTIME_PREFIX: Final = "relay_native_"


def scalar_head(dtype: str) -> int:
    """The first word of a value that is an unboxed scalar."""
    return SCALAR | DTYPE_CODES[dtype] << 8


def runtime_functions() -> frozenset[str]:
    """The names that native code may leave to the runtime."""
    names = {op.name for op in OPCODES if not op.control}
    names |= {"poll", "overflow", "replace", "InvokeClosure", "TailInvokeClosure", "If", "Switch"}
    return frozenset(RUNTIME_PREFIX + n for n in names | {"destroy", "retain", "release"})


def attributes(target: Target) -> str:
    """The attribute groups: #0 of parts of functions, #1 and #2 of helpers."""
    features = ",".join(name if name[0] in "+-" else f"+{name}" for name in target.features)
    base = "x86-64" if is_x86(target) else "generic"
    machine = f'"target-cpu"="{base}" "tune-cpu"="{target.cpu}" "target-features"="{features}"'
    return f"""attributes #0 = {{ nounwind noinline "no-jump-tables"="true" {machine} }}
attributes #1 = {{ nounwind noinline {machine} }}
attributes #2 = {{ nounwind alwaysinline {machine} }}
"""


HELPERS: Final = f"""
define internal void @drop(ptr %object) #1 {{
  %fp = getelementptr i8, ptr %object, i64 {AT["Object.flags"]}
  %flags = load i8, ptr %fp
  %plain = icmp eq i8 %flags, 0
  br i1 %plain, label %local, label %flagged
local:
  %count = load i32, ptr %object
  %left = add i32 %count, -1
  store i32 %left, ptr %object
  %last = icmp eq i32 %left, 0
  br i1 %last, label %dead, label %done
dead:
  call void @relay_native_destroy(ptr %object)
  ret void
flagged:
  call void @relay_native_release(ptr %object)
  ret void
done:
  ret void
}}
define internal void @keep(i64 %head, i64 %bits) #2 {{
  %kind = and i64 %head, 255
  %is = icmp eq i64 %kind, {OBJECT}
  br i1 %is, label %object, label %done
object:
  %p = inttoptr i64 %bits to ptr
  %fp = getelementptr i8, ptr %p, i64 {AT["Object.flags"]}
  %flags = load i8, ptr %fp
  %plain = icmp eq i8 %flags, 0
  br i1 %plain, label %local, label %flagged
local:
  %count = load i32, ptr %p
  %more = add i32 %count, 1
  store i32 %more, ptr %p
  ret void
flagged:
  call void @relay_native_retain(ptr %p)
  ret void
done:
  ret void
}}
define internal void @release(i64 %head, i64 %bits) #2 {{
  %kind = and i64 %head, 255
  %is = icmp eq i64 %kind, {OBJECT}
  br i1 %is, label %object, label %done
object:
  %p = inttoptr i64 %bits to ptr
  call void @drop(ptr %p)
  ret void
done:
  ret void
}}
define internal void @release_slot(ptr %slot) #2 {{
  %head = load i64, ptr %slot
  %payload = getelementptr i8, ptr %slot, i64 {BITS}
  %bits = load i64, ptr %payload
  call void @release(i64 %head, i64 %bits)
  ret void
}}
define internal void @release_range(ptr %slot, i64 %n) #1 {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %body ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %body
body:
  %at = getelementptr [{VALUE} x i8], ptr %slot, i64 %i
  call void @release_slot(ptr %at)
  %more = add i64 %i, 1
  br label %next
done:
  ret void
}}
define internal void @set(ptr %slot, i64 %head, i64 %bits) #2 {{
  %old = load i64, ptr %slot
  %payload = getelementptr i8, ptr %slot, i64 {BITS}
  %oldbits = load i64, ptr %payload
  store i64 %head, ptr %slot
  store i64 %bits, ptr %payload
  call void @release(i64 %old, i64 %oldbits)
  ret void
}}
"""
