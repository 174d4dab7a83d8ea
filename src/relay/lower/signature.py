"""The type information that travels with an executable, as JSON: what an entry takes and gives, and the data types in it."""

from __future__ import annotations

import json
from typing import Any

from relay.ir.dim import Dim, as_var, dim_text
from relay.ir.expr import Function
from relay.ir.module import Module
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type, TypeArg, TypeVar
from relay.transform.batching.requests import ANSWERS, EACH, IN_TURN


def entry_info(module: Module, fn: Function, name: str | None = None, many: str | None = None) -> str:
    """The JSON text of an entry declared as ``fn``: parameters (name, type), result type, and every data type that these reach; of
    the compiled ``@name`` also what becomes of many requests (``many``: the function that answers them)."""
    adts: dict[str, Any] = {}
    pending: list[str] = []

    def dim_spec(dim: Dim) -> int | str | None:
        if isinstance(dim, int):
            return dim
        return dim_text(dim) if as_var(dim) is not None else None

    def spec(ty: Type | TypeArg | None) -> dict[str, Any]:
        match ty:
            case TensorType(shape=shape, dtype=dtype):
                assert isinstance(shape, tuple) and isinstance(dtype, str)
                return {"kind": "tensor", "shape": [dim_spec(d) for d in shape], "dtype": dtype}
            case TupleType(fields=fields):
                return {"kind": "tuple", "fields": [spec(f) for f in fields]}
            case AdtType(name=name, args=args):
                if name not in adts:
                    adts[name] = None
                    pending.append(name)
                return {"kind": "adt", "name": name, "args": [spec(a) for a in args]}
            case TypeVar(serial=serial):
                return {"kind": "var", "name": str(serial)}
            case RefType(value=value):
                return {"kind": "ref", "value": spec(value)}
            case FuncType():
                return {"kind": "function"}
            case _:
                return {"kind": "other"}

    params = [{"name": p.name, "type": spec(p.ty)} for p in fn.params]
    declared = fn.ret_type
    if declared is None and isinstance(fn.ty, FuncType):
        declared = fn.ty.ret  # the user left it to inference
    result = spec(declared)
    while pending:
        definition = module.types[pending.pop()]
        adts[definition.name] = {
            "params": [str(p.serial) for p in definition.params],
            "constructors": [{"name": c.name, "fields": [spec(f) for f in c.fields]} for c in definition.constructors],
        }
    info = {"params": params, "result": result, "adts": adts}
    requests = module.functions[name].attrs.get(ANSWERS) if name is not None else None
    if requests is not None:
        each = module.functions[many].attrs[EACH] if many is not None else ()
        apart = str(requests).partition(":")[0] != IN_TURN
        info["requests"] = {"how": requests, "apart": apart, "entry": many, "each": each}
    return json.dumps(info, separators=(",", ":"))
