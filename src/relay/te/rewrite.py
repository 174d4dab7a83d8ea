"""Stages rewritten one by one, producers first: what reads a stage reads what it became."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.te.scalar import Axis, Load, Named, Scalar, transform
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_over, stages


def rewritten(outputs: Sequence[Tensor], rewrite: Callable[[Stage], Stage]) -> tuple[Tensor, ...]:
    """The tensors, of stages that ``rewrite`` has changed; the same ones where it changes none."""
    new: dict[Stage, Stage] = {}

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Load) and isinstance(node.source, Tensor) and node.source.stage in new:
            return Load(result_of(new[node.source.stage], node.source.index), node.indices, node.dtype)
        return node

    for stage in stages(outputs):
        made = rewrite(rewrite_stage(stage, visit) if new else stage)
        if made is not stage:
            new[stage] = made
    return tuple(result_of(new[t.stage], t.index) if t.stage in new else t for t in outputs)


def result_of(stage: Stage, index: int) -> Tensor:
    """Output ``index`` of a stage."""
    return Tensor(stage, index, stage.shape, output_dtypes(stage)[index])


def rewrite_stage(stage: Stage, visit: Callable[[Scalar], Scalar]) -> Stage:
    """The stage with its expressions rewritten; the same object when nothing changed."""
    memo: dict[int, Scalar] = {}
    match stage:
        case Placeholder():
            return stage
        case Compute():
            bodies = tuple(transform(b, visit, memo) for b in stage.bodies)
            same = all(new is old for new, old in zip(bodies, stage.bodies, strict=True))
            return stage if same else Compute(stage.name, stage.axes, bodies)
        case Scan():
            init, update = transform(stage.init, visit, memo), transform(stage.update, visit, memo)
            if init is stage.init and update is stage.update:
                return stage
            return Scan(stage.name, stage.axes, stage.dim, stage.state, init, update, stage.reverse, stage.exclusive)


def renewed(stage: Compute | Scan, visit: Callable[[Scalar], Scalar]) -> Compute | Scan:
    """The stage with its expressions rewritten, over index variables of its own."""
    if isinstance(stage, Compute):
        made = stage_over(stage.name, stage.axes, stage.bodies, visit)[0].stage
        assert isinstance(made, Compute)
        return made
    own: dict[Axis, Axis] = {a: Axis(a.name, a.extent, a.dtype) for a in stage.axes}
    own[stage.state] = Named(stage.state.name, stage.state.dtype)
    memo: dict[int, Scalar] = {}
    init, update = (
        transform(e, lambda n: own.get(n, n) if isinstance(n, Axis) else visit(n), memo)
        for e in (stage.init, stage.update)
    )
    axes = tuple(own[a] for a in stage.axes)
    return Scan(stage.name, axes, stage.dim, own[stage.state], init, update, stage.reverse, stage.exclusive)


def output_dtypes(stage: Stage) -> tuple[str, ...]:
    """The dtypes of a stage's outputs."""
    match stage:
        case Placeholder():
            return (stage.dtype,)
        case Compute():
            return tuple(b.dtype for b in stage.bodies)
        case Scan():
            return (stage.state.dtype,)
