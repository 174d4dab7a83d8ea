"""What `relay inspect` can show: each view is a list of (title, text)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relay import pipeline
from relay.codegen.kernel_object import prepared
from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.executable.disassembler import disassemble
from relay.ir.dim import dim_text
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.ir.walk import post_order
from relay.loop.printer import kernel_text
from relay.op.narrow import WIDENED
from relay.options import Options
from relay.transform import DeadFunctions, FuseAttention, Gradient, PartialEvaluate, ReducePrecision, unfused_attentions
from relay.transform.ad.notes import NOTE as GRADIENT_NOTE
from relay.transform.batching.requests import ANSWERS
from relay.transform.batching.structure import NOTE, BatchStructure
from relay.transform.partial_eval import STOPPED

View = list[tuple[str, str]]


def passes(module: Module, options: Options) -> View:
    """The program after each pass that changed it."""
    out: View = [("typed", str(module))]
    made = pipeline.build(module, options)
    for step in made.steps:
        if step.after is not step.before:
            out.append((f"{step.index}: {step.transformation.name}", str(step.after)))
    return out


def plans(module: Module, options: Options) -> View:
    """For each kernel: schedule, operands, packed constants, workspace, arithmetic and traffic."""
    out: View = []
    for plan in pipeline.build(module, options).plan.kernels:
        k = plan.kernel
        operands = ", ".join(
            f"{b.name}: {b.dtype}[{', '.join(map(dim_text, b.shape))}]" for b in (*k.inputs, *k.outputs)
        )
        lines = [
            f"schedule   {plan.variant}{f' ({plan.schedule})' if plan.products else ''}",
            f"operands   {operands}",
            f"sizes      {', '.join(d.name for d in k.dims) or 'none'}",
            f"packed     {', '.join(str(p.operand) for p in plan.packs) or 'none'}",
            f"in place   {', '.join(f'{i} -> {o}' for i, o in k.in_place) or 'none'}",
            f"workspace  {dim_text(k.shared_bytes)} bytes, and {dim_text(k.worker_bytes)} for each thread",
            f"work       {dim_text(plan.flops)} operations, {dim_text(plan.bytes)} bytes",
        ]
        out.append((k.name, "\n".join(lines)))
    return out


def loops(module: Module, options: Options) -> View:
    """The loop nest of each kernel."""
    return [(p.kernel.name, kernel_text(p.kernel)) for p in pipeline.build(module, options).plan.kernels]


def bytecode(module: Module, options: Options) -> View:
    """The instructions of every function, and the tables."""
    return [("bytecode", disassemble(pipeline.build(module, options).image))]


def llvm_ir(module: Module, options: Options) -> View:
    """The LLVM IR of each kernel before optimisation."""
    return _emitted(pipeline.build(module, options))


def machine_code(module: Module, options: Options) -> View:
    """The assembly of each kernel."""
    made = pipeline.build(module, options)
    return [(name, assembly(text, made.target)) for name, text in _emitted(made)]


def _emitted(made: pipeline.Compilation) -> View:
    return [(p.kernel.name, emit(prepared(p.kernel, made.target), made.target)) for p in made.plan.kernels]


def memory(module: Module, options: Options) -> View:
    """The allocations of each function, as instructions: arenas with their sizes, tensors with their offsets."""
    text = disassemble(pipeline.build(module, options).image)
    kept = [
        line
        for line in text.splitlines()
        if line.startswith("function") or any(word in line for word in ("Alloc", "IMul", "IAdd", "LoadConsti", "DimOf"))
    ]
    return [("allocations and the sizes they use", "\n".join(kept))]


def times(module: Module, options: Options) -> View:
    """Milliseconds of each pass and each stage of the compilation."""
    made = pipeline.build(module, options)
    steps = "\n".join(f"{step.seconds * 1e3:9.2f} ms  {step.transformation.name}" for step in made.steps)
    stages = "\n".join(f"{seconds * 1e3:9.2f} ms  {name}" for name, seconds in made.seconds.items())
    return [("passes", steps), ("stages", stages)]


def batching(module: Module, options: Options) -> View:
    """What became of each recursive function: computed by level, or why not; and how an entry answers many requests."""
    lines: list[str] = []
    answers: list[str] = []
    for step in pipeline.build(module, options).steps:
        if isinstance(step.transformation, BatchStructure):
            left = DeadFunctions(options.entries)(step.after).functions
            for name, function in step.after.functions.items():
                if NOTE in function.attrs:
                    # What nothing calls any more has become part of the levels of what did, whatever it would have been by itself.
                    note = function.attrs[NOTE] if name in left else "by level"
                    lines.append(f"@{name}: {note}")
                if ANSWERS in function.attrs:
                    answers.append(f"@{name}: {function.attrs[ANSWERS]}")
    return [("recursive functions", "\n".join(lines) or "none"), ("many requests", "\n".join(answers) or "one by one")]


def gradient(module: Module, options: Options) -> View:
    """How each recursive function under reverse mode is differentiated: as a loop, or call by call and why; and where partial evaluation
    of the gradient stopped."""
    lines: list[str] = []
    stops: list[str] = []
    for step in pipeline.build(module, options).steps:
        if isinstance(step.transformation, PartialEvaluate):
            functions = step.after.functions.items()
            stops += (f"@{name}: {f.attrs[STOPPED]}" for name, f in functions if STOPPED in f.attrs)
        if isinstance(step.transformation, Gradient):
            functions = step.after.functions.items()
            lines += (f"@{name}: {f.attrs[GRADIENT_NOTE]}" for name, f in functions if GRADIENT_NOTE in f.attrs)
    found = [("recursive functions", "\n".join(lines) or "none")]
    return [*found, ("partial evaluation", "\n".join(stops))] if stops else found


def attention(module: Module, options: Options) -> View:
    """The attentions that were found, and for each two products with a softmax between them that are none: why."""
    steps = [s for s in pipeline.build(module, options).steps if isinstance(s.transformation, FuseAttention)]
    if not steps:
        return [("attention", "not looked for: that takes -O3")]
    calls = [n for f in steps[-1].after.functions.values() for n in post_order(f) if isinstance(n, Call)]
    count = sum(isinstance(c.fn, OpRef) and c.fn.name in ("nn.attention", "nn.scored_attention") for c in calls)
    # Before its gradient is taken, if there is one, which spells other products of the shares.
    step = steps[0]
    assert isinstance(step.transformation, FuseAttention)
    apart = [f"{where}: {why}" for where, why in unfused_attentions(step.before, step.transformation.least)]
    return [("attention", f"{count} of one kernel"), ("not fused", "\n".join(apart) or "none")]


def precision(module: Module, options: Options) -> View:
    """How many products are of narrower operands, and why the others stay float32."""
    steps = [s for s in pipeline.build(module, options).steps if isinstance(s.transformation, ReducePrecision)]
    if not steps:
        return [("precision", "float32: nothing else was asked for")]
    (step,) = steps
    assert isinstance(step.transformation, ReducePrecision)
    calls = [n for f in step.after.functions.values() for n in post_order(f) if isinstance(n, Call)]
    count = sum(isinstance(c.fn, OpRef) and WIDENED in c.fn.name for c in calls)
    kept = [f"{where}: {why}" for where, why in step.transformation.kept(step.before)]
    narrow = f"{count} product{'' if count == 1 else 's'}"
    return [(step.transformation.precision, narrow), ("float32", "\n".join(kept) or "no other product")]


VIEWS: Mapping[str, Callable[[Module, Options], View]] = {
    "passes": passes,
    "batching": batching,
    "gradient": gradient,
    "attention": attention,
    "precision": precision,
    "plans": plans,
    "loops": loops,
    "bytecode": bytecode,
    "llvm": llvm_ir,
    "asm": machine_code,
    "memory": memory,
    "times": times,
}
