"""The type information that travels with an executable, as JSON: what an entry takes and gives, the data types in it, and between which
numbers (the greater may be null) sizes with names lie.

A size is a number, a name, ``[operation, size, size]``, or null where nothing is known of it. A definition's parameters go by their
serial numbers, in place of types, shapes, base types and sizes. An entry that is given functions also has ``closures``: what each function
that closures are made of captures, and its type, in names of its own. The runtime asks by them what closures that arrive go by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from relay.ir.dim import ANY, AnyDim, Dim, DimFoldOp, DimVar, SymDim, dim_fold, is_any
from relay.ir.expr import Function
from relay.ir.module import Module
from relay.ir.types import AdtType, FuncType, RefType, Shape, TensorType, TupleType, Type, TypeArg, TypeVar
from relay.transform.batching.requests import ANSWERS, EACH, IN_TURN, ROWS, STACKED
from relay.transform.dims import DimUses
from relay.typing.substitution import substitute


def entry_info(
    module: Module,
    fn: Function,
    name: str | None = None,
    many: str | None = None,
    closures: Mapping[int, tuple[str, int]] | None = None,
) -> str:
    """The JSON text of an entry declared as ``fn``: parameters (name, type), result type, and every data type that these reach; of
    the compiled ``@name`` also what becomes of many requests (``many``: the function that answers them), and which tensors these bring are
    given by ``rows``, and which of the result's are ``stacked`` of rows. ``closures``: by their
    numbers the names of the functions that closures are made of, and how many of their parameters those capture."""
    adts: dict[str, Any] = {}
    pending: list[str] = []

    names: dict[str, DimVar] = {}
    serials: set[int] = set()  # of the parameters of definitions
    takes_functions = False

    def name_of(v: DimVar) -> Any:
        if v.serial in serials:
            return f"#{v.serial}"  # types are counted apart
        return v.name if names.setdefault(v.name, v) is v else f"{v.name}.{v.serial}"

    def number(n: int) -> Any:
        return n

    def applied(op: DimFoldOp, a: Any, b: Any) -> Any:
        return [op, a, b]

    def dim_spec(dim: Dim) -> Any:
        return None if is_any(dim) else dim_fold(dim, name_of, number, applied)

    def shape_spec(shape: Shape) -> Any:
        return str(shape.serial) if isinstance(shape, TypeVar) else [dim_spec(d) for d in shape]

    def spec(ty: Type | TypeArg | None) -> dict[str, Any]:
        nonlocal takes_functions
        match ty:
            case TensorType(shape=shape, dtype=dtype):
                base = str(dtype.serial) if isinstance(dtype, TypeVar) else dtype
                return {"kind": "tensor", "shape": shape_spec(shape), "dtype": base}
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
            case FuncType(params=given, ret=ret, type_params=own):
                takes_functions = True
                sizes = [name_of(p) for p in own if isinstance(p, DimVar)]
                return {"kind": "function", "sizes": sizes, "params": [spec(p) for p in given], "result": spec(ret)}
            case str():
                return {"kind": "base type", "dtype": ty}
            case tuple():
                return {"kind": "shape", "shape": shape_spec(ty)}
            case int() | SymDim() | AnyDim():
                return {"kind": "size", "size": dim_spec(ty)}
            case _:
                return {"kind": "other"}

    def define() -> None:
        while pending:
            definition = module.types[pending.pop()]
            serials.update(p.serial for p in definition.params if isinstance(p, DimVar))
            adts[definition.name] = {
                "params": [name_of(p) if isinstance(p, DimVar) else str(p.serial) for p in definition.params],
                "constructors": [
                    {"name": c.name, "fields": [spec(f) for f in c.fields]} for c in definition.constructors
                ],
            }

    params = [{"name": p.name, "type": spec(p.ty)} for p in fn.params]
    define()
    made = {}
    if takes_functions and closures:
        for number_, (target, captures) in closures.items():
            held, ty = _closure_type(module.functions[target], captures)
            made[str(number_)] = {"captured": [spec(t) for t in held], "type": spec(ty)}
    declared = fn.ret_type
    if declared is None and isinstance(fn.ty, FuncType):
        declared = fn.ty.ret  # the user left it to inference
    result = spec(declared)
    define()
    bounds = {name: (v.lo, v.hi) for name, v in names.items() if v.lo > 0 or v.hi is not None}
    info: dict[str, Any] = {"params": params, "result": result, "adts": adts, "bounds": bounds}
    if made:
        info["closures"] = made
    requests = module.functions[name].attrs.get(ANSWERS) if name is not None else None
    if requests is not None:
        attrs = module.functions[many].attrs if many is not None else {}
        each, rows = attrs.get(EACH, ()), attrs.get(ROWS, ())
        apart = str(requests).partition(":")[0] != IN_TURN
        info["requests"] = {"how": requests, "apart": apart, "entry": many, "each": each}
        info["rows"], info["stacked"] = rows, attrs.get(STACKED, ())
    return json.dumps(info, separators=(",", ":"))


def _closure_type(function: Function, captures: int) -> tuple[list[Type | None], FuncType]:
    """The types of what a closure of the function captures, and the closure's own. What its result has of sizes that nothing which it is
    given has is not known before it is called."""
    types = [p.ty for p in function.params]
    uses = DimUses()
    given = {d for t in types for d in uses.of_type(t)}
    ret = function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type
    assert ret is not None, "lowering needs a typed program"
    unknown = [d for d in uses.of_type(ret) if d not in given]
    ret = cast("Type", substitute(ret, unknown, [ANY] * len(unknown)))
    return types[:captures], FuncType(tuple(t for t in types[captures:] if t is not None), ret)
