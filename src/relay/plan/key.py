"""The structural key of a primitive: two primitives with equal keys have the same kernel.

Variables and dim variables are numbered by first occurrence, so that the six layers of a transformer share their
kernels. The order in which dim variables occur is also the order of the kernel's sizes: a call site that reuses a
plan passes its own variables' values in its own order of occurrence.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.dim import AnyDim, DimVar, SymDim, dim_text, dim_vars
from relay.ir.expr import Block, Call, Constant, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.loop.target import Target
from relay.plan.graph import PlanError
from relay.typing.text import type_text


@record(frozen=True, slots=True)
class PlanKey:
    """``text`` identifies the kernel; ``dims`` are this primitive's variables in the order of the kernel's sizes."""

    text: str
    dims: tuple[DimVar, ...]


def plan_key(primitive: Function, target: Target, constants: frozenset[int]) -> PlanKey:
    """The key of a primitive for a target, where the parameters numbered ``constants`` are constants."""
    writer = _Writer()
    lines = [_text(primitive, writer), f"constants {sorted(constants)}"]
    lines.append(repr(target))
    lines.append(" ".join(f"{v.lo}..{v.hi}" for v in writer.dims))
    return PlanKey("\n".join(lines), tuple(writer.dims))


def erased_key(primitive: Function) -> str | None:
    """What a primitive has in common with those that differ in unknown sizes alone; None where it has none of these."""
    writer = _Erasing()
    text = _text(primitive, writer)
    return text if writer.erased else None


def _text(primitive: Function, writer: _Writer) -> str:
    params = ", ".join(f"{writer.bind(p)}: {writer.type(p.ty or p.annotation)}" for p in primitive.params)
    lines = [f"fn({params})"]
    body: Expr = primitive.body
    if isinstance(body, Block):
        for b in body.bindings:
            value = writer.expr(b.value)
            lines.append(f"{writer.bind(b.var)}: {writer.type(b.var.ty)} = {value}")
        body = body.result
    lines.append(writer.expr(body))
    return "\n".join(lines)


class _Writer:
    def __init__(self) -> None:
        self.vars: dict[Var, int] = {}
        self.dims: dict[DimVar, int] = {}

    def bind(self, var: Var) -> str:
        return f"%{self.vars.setdefault(var, len(self.vars))}"

    def dim(self, dim: object) -> str:
        assert isinstance(dim, int | SymDim | AnyDim)
        for var in dim_vars(dim):
            self.dims.setdefault(var, len(self.dims))
        return dim_text(dim, lambda v: f"d{self.dims[v]}")

    def type(self, ty: Type | None) -> str:
        match ty:
            case TensorType() if isinstance(ty.shape, tuple):
                device = f" on {ty.device}" if ty.device else ""
                return f"{ty.dtype}[{', '.join(self.dim(d) for d in ty.shape)}]{device}"
            case TupleType():
                return f"({', '.join(self.type(f) for f in ty.fields)})"
            case None:
                return "_"
            case _:
                raise PlanError(f"a primitive's types are tensors and tuples of them, not {type_text(ty)}")

    def attr(self, value: object) -> str:
        if isinstance(value, SymDim):
            return self.dim(value)
        if isinstance(value, tuple | list):
            return f"({', '.join(self.attr(v) for v in value)},)"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k}={self.attr(v)}" for k, v in sorted(value.items())) + "}"
        if isinstance(value, TensorType | TupleType):
            return self.type(value)
        return repr(value)

    def expr(self, e: Expr) -> str:
        match e:
            case Var():
                return self.bind(e)
            case Constant():
                return f"const {e.dtype}{e.data.shape} {e.data.tobytes().hex()}"
            case Tuple():
                return f"({', '.join(self.expr(f) for f in e.fields)},)"
            case Proj():
                return f"{self.expr(e.tuple)}.{e.index}"
            case Call(fn=OpRef()):
                assert isinstance(e.fn, OpRef)
                args = ", ".join(self.expr(a) for a in e.args)
                attrs = ", ".join(f"{k}={self.attr(v)}" for k, v in sorted(e.attrs.items()) if v is not None)
                # The declared result matters where a shape comes with the call (data-dependent shapes).
                return f"{e.fn.name}({args}; {attrs}) -> {self.type(e.ty)}"
            case _:
                raise PlanError(f"a primitive holds operator calls, tuples and projections, not {type(e).__name__}")


class _Erasing(_Writer):
    """One that writes no unknown size."""

    erased = False

    def dim(self, dim: object) -> str:
        if isinstance(dim, int):
            return str(dim)
        self.erased = True
        return "_"
