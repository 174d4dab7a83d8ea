"""Values of data types that a recursion makes and reads a tensor of: it gives the tensor beside the value.

A function that annotates a tree reads the annotations of the parts that it has made itself:

    match (@up(%l)) { ALeaf(%a) => %a, ANode(%a, _, _) => %a }

Whatever constructor was chosen, this is a field of it, which whoever made the value had at hand. So beside ``@up`` stands ``@up.read``,
which gives the field and the value as a pair, with no match on what it has computed; ``@up`` calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Match,
    PConstructor,
    Proj,
    PVar,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, Type
from relay.transform.blocks import all_bindings, as_block, body_of, is_primitive, nested_blocks, with_nested_blocks
from relay.transform.copying import Copier
from relay.transform.function_types import unused
from relay.transform.uses import components, globals_used
from relay.typing.substitution import substitute


def reading_results(module: Module, but: Collection[str] = ()) -> tuple[Module, list[dict[str, str]]]:
    """The module with such functions beside those that read their own results (``but`` for these); of each group that
    calls each other, by the names of the new functions the old ones'."""
    functions = dict(module.functions)
    made: list[dict[str, str]] = []
    names = {n: globals_used(f) for n, f in module.functions.items()}
    for component in components(names):
        group = [n for n in component if not is_primitive(module.functions[n])]
        fields = None if any(n in but for n in group) else _fields_read(module, group)
        if fields is None:
            continue
        beside = {n: unused(f"{n}.read", functions) for n in group}
        readers = {n: _Reader(module, fields, beside, module.functions[n]) for n in group}
        found = {n: run(r.function()) for n, r in readers.items()}
        if all(f is not None for f in found.values()):
            functions.update({beside[n]: f for n, f in found.items() if f is not None})
            functions.update({n: r.caller(beside[n]) for n, r in readers.items()})
            made.append({beside[n]: n for n in group})
    return (replace(module, functions=functions), made) if made else (module, [])


def _fields_read(module: Module, group: Sequence[str]) -> dict[str, int] | None:
    """Which field of its own results a group of functions that call each other reads, by the constructor; None where it reads none, or not
    always the same."""
    results = [_result(module.functions[n]) for n in group]
    if not results or len({r.name if isinstance(r, AdtType) else None for r in results}) > 1:
        return None
    bindings = [b for n in group for b in all_bindings(body_of(module.functions[n]))]
    calls = {
        b.var
        for b in bindings
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name in group
    }
    read = [_field_read(module, b.value) for b in bindings if isinstance(b.value, Match) and b.value.data in calls]
    return read[0] if read and all(f == read[0] for f in read) else None


def _result(function: Function) -> Type | None:
    return body_of(function).ty or function.ret_type


def _field_read(module: Module, match: Match) -> dict[str, int] | None:
    """The field that a match gives, by the constructor; None where it does something else, or not for all of them."""
    out: dict[str, int] = {}
    for clause in match.clauses:
        pattern, body = clause.pattern, as_block(clause.body)
        if not isinstance(pattern, PConstructor) or body.bindings:
            return None
        at = [n for n, p in enumerate(pattern.fields) if isinstance(p, PVar) and p.var is body.result]
        if len(at) != 1:
            return None
        out.setdefault(pattern.name, at[0])
    assert isinstance(match.data.ty, AdtType)
    every = {c.name for c in module.types[match.data.ty.name].constructors}
    return out if set(out) == every else None


@dataclass(slots=True, eq=False)
class _Reader:
    """Makes the function that gives a field beside a value, and the one that calls it; ``beside`` has the names of the former by those of
    the group."""

    module: Module
    fields: Mapping[str, int]
    beside: Mapping[str, str]
    old: Function

    def pair(self, ty: Type | None) -> TupleType:
        """The type of a pair with a value of this data type."""
        assert isinstance(ty, AdtType)
        definition = self.module.types[ty.name]
        constructor = definition.constructors[0]
        field = substitute(constructor.fields[self.fields[constructor.name]], definition.params, ty.args)
        return TupleType((cast(Type, field), ty))

    def function(self) -> Step[Function | None]:
        """The old function with the pair as its result; None where its result is not made in it."""
        pair = self.pair(_result(self.old))
        if not isinstance(pair.fields[0], TensorType):
            return None
        body = yield self._block(body_of(self.old), {}, True)
        return None if body is None else replace(self.old, body=body, ret_type=pair, ty=_function_type(self.old, pair))

    def caller(self, beside: str) -> Function:
        """What gives the value alone, with names of its own."""
        old, whole = self.old, self.pair(_result(self.old))
        result = whole.fields[1]
        dims = tuple(as_dim(cast(DimVar, p)) for p in old.type_params)
        pair, value = Var("pair", None, whole), Var("value", None, result)
        call = Call(GlobalVar(beside, _function_type(old, whole)), old.params, type_args=dims, ty=whole)
        block = Block((Binding(pair, call), Binding(value, Proj(pair, 1, result))), value, result)
        copier = Copier(own_dims=True)
        copied = copier.function(replace(old, body=block, ret_type=result, ty=_function_type(old, result)))
        own = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(cast(DimVar, p))))) for p in old.type_params)
        assert isinstance(copied.ty, FuncType)
        return replace(copied, type_params=own, ty=FuncType(copied.ty.params, copied.ty.ret, own))

    def _block(self, block: Block, known: Mapping[Var, Var], last: bool) -> Step[Block | None]:
        """``known``: the pairs of the results of calls. ``last``: whether the block's result is the function's."""
        pairs = dict(known)
        out: list[Binding] = []
        made: dict[Var, Expr] = {}
        for b in block.bindings:
            value: Expr = b.value
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in self.beside:
                whole = self.pair(b.var.ty)
                pair = pairs[b.var] = Var("pair", None, whole)
                out.append(Binding(pair, replace(value, fn=self._called(value.fn, whole), ty=whole)))
                out.append(Binding(b.var, Proj(pair, 1, b.var.ty)))
                continue
            if isinstance(value, Match) and isinstance(value.data, Var) and value.data in pairs:
                out.append(Binding(b.var, Proj(pairs[value.data], 0, b.var.ty)))
                continue
            ends = last and b.var is block.result
            inner: list[Block] = []
            for nested in nested_blocks(value):
                found = yield self._block(nested, pairs, ends)
                if found is None:
                    return None
                inner.append(found)
            if inner:
                value = with_nested_blocks(value, inner)
            if inner and ends:
                whole = self.pair(b.var.ty)
                pair = pairs[b.var] = Var("pair", None, whole)
                out.append(Binding(pair, replace(value, ty=whole)))
                continue
            made[b.var] = value
            out.append(b if value is b.value else Binding(b.var, value))
        if not last:
            return replace(block, bindings=tuple(out))
        result = block.result
        whole = self.pair(block.ty or _result(self.old))
        if isinstance(result, Var) and result in pairs:
            return Block(tuple(out), pairs[result], whole, block.span)
        value = made.get(result, result) if isinstance(result, Var) else result
        if not isinstance(value, Call) or not isinstance(value.fn, ConstructorRef):
            return None
        read = value.args[self.fields[value.fn.name]]
        pair = Var("pair", None, whole)
        out.append(Binding(pair, Tuple((read, result), whole)))
        return Block(tuple(out), pair, whole, block.span)

    def _called(self, fn: GlobalVar, result: Type) -> GlobalVar:
        ty = fn.ty if isinstance(fn.ty, FuncType) else None
        return GlobalVar(
            self.beside[fn.name], None if ty is None else FuncType(ty.params, result, ty.type_params), fn.span
        )


def _function_type(function: Function, result: Type) -> FuncType:
    types = tuple(cast(Type, p.ty) for p in function.params)
    return FuncType(types, result, function.type_params)
