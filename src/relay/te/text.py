"""Definitions as text: what two definitions have in common when they compute the same in the same way, whatever made them."""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import AnyDim, Dim, DimVar, dim_text, dim_vars
from relay.te.scalar import (
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Source,
    Unary,
    children,
    walk,
)
from relay.te.tensor import Compute, Demand, Placeholder, Scan, Stage, Tensor, stages


def definition_text(inputs: Sequence[Tensor], outputs: Sequence[Tensor], demands: Sequence[Demand] = ()) -> str:
    """Every stage and every node on a line; stages, index variables and dims are numbered in the order in which they are met."""
    writer = _Writer()
    for t in inputs:
        writer.stage(t.stage)
    for stage in stages(outputs):
        writer.stage(stage)
    writer.lines += [writer.tensor(t) for t in outputs]
    writer.lines += [f"{writer.dim(d.left)} {d.relation} {writer.dim(d.right)}" for d in demands]
    return "\n".join(writer.lines)


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stages: dict[int, int] = {}
        self.axes: dict[Axis, int] = {}
        self.dims: dict[DimVar, int] = {}

    def dim(self, dim: Dim) -> str:
        if isinstance(dim, AnyDim):
            return "?"
        for var in dim_vars(dim):
            self.dims.setdefault(var, len(self.dims))
        return dim_text(dim, lambda v: f"d{self.dims[v]}({v.lo}..{v.hi})")

    def axis(self, axis: Axis) -> str:
        number = self.axes.setdefault(axis, len(self.axes))
        return f"a{number}:{self.dim(axis.extent)}:{axis.dtype}"

    def tensor(self, t: Source) -> str:
        assert isinstance(t, Tensor)
        return f"t{self.stages[id(t.stage)]}.{t.index}"

    def stage(self, stage: Stage) -> None:
        if id(stage) in self.stages:
            return
        number = self.stages[id(stage)] = len(self.stages)
        match stage:
            case Placeholder():
                self.lines.append(f"t{number} = {stage.dtype}[{', '.join(map(self.dim, stage.shape))}]")
            case Compute():
                bodies = ", ".join([self.scalar(b) for b in stage.bodies])
                self.lines.append(f"t{number} = over {', '.join(map(self.axis, stage.axes))}: {bodies}")
            case Scan():
                state = self.axis(stage.state)
                init, update = self.scalar(stage.init), self.scalar(stage.update)
                how = f"{stage.dim} {stage.reverse} {stage.exclusive}"
                self.lines.append(
                    f"t{number} = scan {', '.join(map(self.axis, stage.axes))} {how}: {state} = {init}; {update}"
                )

    def scalar(self, root: Scalar) -> str:
        """Writes the nodes, operands first; the number of the last."""
        numbers: dict[int, str] = {}
        for node in walk(root):
            operands = ", ".join(numbers[id(k)] for k in children(node))
            match node:
                case Const():
                    what = f"{node.value!r}"
                case Size():
                    what = f"size {self.dim(node.dim)}"
                case Axis():
                    what = self.axis(node)
                case Load():
                    what = f"{self.tensor(node.source)}[{operands}]"
                case Unary() | Binary() | Compare():
                    what = f"{node.op}({operands})"
                case Select() | Cast() | Bits():
                    what = f"{type(node).__name__}({operands})"
                case Dot():
                    what = f"dot {node.parts}({operands})"
                case Reduce():
                    what = f"{node.kind} {', '.join(map(self.axis, node.axes))}({operands})"
            numbers[id(node)] = f"v{len(self.lines)}"
            self.lines.append(f"v{len(self.lines)} = {what} {node.dtype}")
        return numbers[id(root)]
