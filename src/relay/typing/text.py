"""Types as the text format writes them, for messages."""

from __future__ import annotations

from typing import assert_never

from relay.ir.dim import AnyDim, DimVar, SymDim, dim_text
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, TypeArg, TypeParam, TypeVar


def type_text(t: TypeArg) -> str:
    """A type, shape, dim or base type as text: ``fn(Tensor[(n, 4), float32]) -> (int32,)``; an unknown is ``_``."""
    match t:
        case str():
            return t
        case int() | SymDim() | AnyDim():
            return dim_text(t)
        case tuple():
            return shape_text(t)
        case TypeVar():
            return "_" if t.flexible else t.name
        case TensorType():
            dtype = type_text(t.dtype)
            return dtype if t.shape == () else f"Tensor[{type_text(t.shape)}, {dtype}]"
        case TupleType():
            inside = ", ".join(map(type_text, t.fields))
            return f"({inside},)" if len(t.fields) == 1 else f"({inside})"
        case FuncType():
            params = ", ".join(map(type_text, t.params))
            generic = f"[{', '.join(map(param_text, t.type_params))}]" if t.type_params else ""
            return f"fn{generic}({params}) -> {type_text(t.ret)}"
        case RefType():
            return f"ref({type_text(t.value)})"
        case AdtType():
            return f"{t.name}[{', '.join(map(type_text, t.args))}]" if t.args else t.name
        case _:
            assert_never(t)


def shape_text(shape: tuple[object, ...]) -> str:
    """``(n, 4)``; one dim keeps its comma."""
    inside = ", ".join(dim_text(d) if isinstance(d, int | SymDim | AnyDim) else str(d) for d in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def param_text(p: TypeParam) -> str:
    """A type parameter with its kind."""
    if isinstance(p, DimVar):
        return f"{p.name}: Dim"
    return p.name if p.kind.value == "Type" else f"{p.name}: {p.kind.value}"
