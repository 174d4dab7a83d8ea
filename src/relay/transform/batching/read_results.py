"""Values of data types that a recursion makes and reads a tensor of: it gives the tensor beside the value.

A function that annotates a tree reads the annotations of the parts that it has made itself:

    match (@up(%l)) { ALeaf(%a) => %a, ANode(%a, _, _) => %a }

Whatever constructor was chosen, this is a field of it, which whoever made the value had at hand. So beside ``@up`` stands ``@up.read``,
which gives the field and the value as a pair, with no match on what it has computed; ``@up`` calls it. So it is with the items of a list
that a map of ``@up`` has made: beside the map stands one that gives pairs, and beside a function that goes through the list and reads the
field of each item one that goes through these (``@values`` gives the list itself, where it is wanted).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
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
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, Type, TypeArg
from relay.ir.walk import free_vars
from relay.transform.ad.terms import construct
from relay.transform.batching.lists import layout_of, list_form
from relay.transform.blocks import (
    all_bindings,
    as_block,
    body_of,
    is_primitive,
    nested_blocks,
    with_each_nested,
    with_nested_blocks,
)
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.function_types import unused
from relay.transform.uses import globals_used
from relay.typing.substitution import substitute

# What a function of a group gives: a value that is read, a list of these, anything else.
_VALUE, _LIST, _OTHER = "value", "list", "other"


def reading_results(module: Module, but: Collection[str] = ()) -> tuple[Module, list[dict[str, str]]]:
    """The module with such functions beside those that read their own results (``but`` for these); of each group that
    calls each other, by the names of the new functions the old ones'."""
    functions = dict(module.functions)
    made: list[dict[str, str]] = []
    names = {n: globals_used(f) for n, f in module.functions.items()}
    for component in components(names):
        group = [n for n in component if not is_primitive(module.functions[n])]
        if any(n in but for n in group):
            continue
        pairs = _Pairs.of(replace(module, functions=functions), group)
        found = None if pairs is None else run(pairs.functions())
        if pairs is not None and found is not None:
            functions.update(found)
            others = {new: old for (old, _), new in pairs.walkers.items() if new is not None}
            others |= {new: old for old, (new, _) in pairs.values.items()}
            made.append({**others, **{pairs.beside[n]: n for n in group}})
    return (replace(module, functions=functions), made) if made else (module, [])


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


def _reading_first(module: Module, function: Function) -> Function:
    """The function where what is done with a field of a type of one constructor stands behind the match that reads it."""

    def flat(block: Block) -> Step[Block]:
        out: list[Binding] = []
        for b in block.bindings:
            value = yield from with_each_nested(b.value, flat)
            read = _only_field(module, value)
            if read is None:
                out.append(b if value is b.value else Binding(b.var, value))
                continue
            match, at, pattern, body = read
            var = cast(PVar, pattern.fields[at]).var
            own = Var(var.name, None, var.ty)
            fields = tuple(PVar(own) if n == at else p for n, p in enumerate(pattern.fields))
            clause = Clause(replace(pattern, fields=fields), Block((), own, var.ty))
            out.append(Binding(var, Match(match.data, (clause,), match.complete, var.ty, match.span)))
            out += (*body.bindings[:-1], Binding(b.var, body.bindings[-1].value))
        return replace(block, bindings=tuple(out))

    return replace(function, body=run(flat(body_of(function))))


def _only_field(module: Module, value: Expr) -> tuple[Match, int, PConstructor, Block] | None:
    """A match on a type of one constructor that uses one field of it, the number of that, and what it does with it."""
    if not isinstance(value, Match) or len(value.clauses) != 1 or not isinstance(value.data.ty, AdtType):
        return None
    pattern, body = value.clauses[0].pattern, as_block(value.clauses[0].body)
    if len(module.types[value.data.ty.name].constructors) != 1 or not isinstance(pattern, PConstructor):
        return None
    if not body.bindings or body.result is not body.bindings[-1].var:
        return None
    inside = {v for b in body.bindings for v in free_vars(b.value)}
    used = [n for n, p in enumerate(pattern.fields) if isinstance(p, PVar) and p.var in inside]
    return (value, used[0], pattern, body) if len(used) == 1 else None


def _calls_of(bindings: Iterable[Binding], names: Collection[str]) -> set[Expr]:
    """The results of calls of functions of these names."""
    return {
        b.var
        for b in bindings
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name in names
    }


def _items(module: Module, function: Function, at: int) -> set[Expr]:
    """What a function finds in the list that is its parameter of this number, one item after the other."""
    layout = layout_of(module, function.params[at].ty)
    found: set[Expr] = set()
    if layout is None:
        return found
    for b in all_bindings(body_of(function)):
        if isinstance(b.value, Match) and b.value.data is function.params[at]:
            patterns = [c.pattern for c in b.value.clauses]
            heads = [p.fields[layout.head] for p in patterns if isinstance(p, PConstructor) and p.fields]
            found.update(p.var for p in heads if isinstance(p, PVar))
    return found


@record(slots=True, eq=False)
class _Pairs:
    """Makes the functions that give a field beside a value, and those that call them. ``beside`` has the names of the former by those of
    the group, ``kinds`` what these give, ``fields`` the field that is read by the constructor, ``flat`` the functions as they are read."""

    module: Module
    beside: Mapping[str, str]
    kinds: Mapping[str, str]
    fields: Mapping[str, int]
    flat: Mapping[str, Function]
    made: dict[str, Function] = field(default_factory=dict)
    walkers: dict[tuple[str, int], str | None] = field(default_factory=dict)
    values: dict[str, tuple[str, Sequence[int]]] = field(default_factory=dict)

    @staticmethod
    def of(module: Module, group: Sequence[str]) -> _Pairs | None:
        """What makes them for functions that call each other; None where they read no field of what they make, or not always the same."""
        flat = {n: _reading_first(module, module.functions[n]) for n in group}
        types = {r.name for f in flat.values() if isinstance(r := _result(f), AdtType)}
        kinds: dict[str, str] = {}
        for name, function in flat.items():
            kinds[name] = _OTHER
            result = _result(function)
            form = list_form(module, name, function)
            if isinstance(result, AdtType) and form is None:
                kinds[name] = _VALUE
            elif form is not None and form.is_map and isinstance(item := form.value.ty, AdtType) and item.name in types:
                kinds[name] = _LIST
        values, lists = ([n for n in group if kinds[n] == k] for k in (_VALUE, _LIST))
        if len({cast(AdtType, _result(flat[n])).name for n in values}) != 1:
            return None
        bindings = [b for f in flat.values() for b in all_bindings(body_of(f))]
        sources, listed = _calls_of(bindings, values), _calls_of(bindings, lists)
        read = [
            _field_read(module, b.value) for b in bindings if isinstance(b.value, Match) and b.value.data in sources
        ]
        for b in bindings:
            call = b.value
            if not isinstance(call, Call) or not isinstance(call.fn, GlobalVar) or call.fn.name in kinds:
                continue
            for at, arg in enumerate(call.args):
                if arg in listed and not is_primitive(walker := module.functions[call.fn.name]):
                    read += _item_reads(module, walker, at)
        if not read or read[0] is None or any(f != read[0] for f in read):
            return None
        beside = {n: unused(f"{n}.read", module.functions) for n in group}
        return _Pairs(module, beside, kinds, read[0], flat)

    def functions(self) -> Step[dict[str, Function] | None]:
        """All new functions; None where a result is not made where it is given."""
        for name, function in self.flat.items():
            made = yield self._function(function, self.kinds[name], {}, {}, function.params)
            if made is None:
                return None
            self.made[self.beside[name]] = made
        for name in self.flat:
            self.made[name] = self._caller(name)
        return self.made

    # -- types

    def _given(self, ty: Type | None, kind: str) -> Type | None:
        """What is given for a result of this type."""
        if kind == _VALUE:
            return self._pair(ty)
        if kind == _LIST:
            assert isinstance(ty, AdtType)
            (item,) = ty.args
            return AdtType(ty.name, (self._pair(cast(Type, item)),))
        return ty

    def _pair(self, ty: Type | None) -> TupleType:
        """The type of a pair with a value of this data type."""
        assert isinstance(ty, AdtType)
        definition = self.module.types[ty.name]
        constructor = definition.constructors[0]
        read = substitute(constructor.fields[self.fields[constructor.name]], definition.params, ty.args)
        return TupleType((cast(Type, read), ty))

    # -- functions

    def _function(
        self, old: Function, kind: str, pairs: Mapping[Var, Var], lists: Mapping[Var, Var], params: Sequence[Var]
    ) -> Step[Function | None]:
        """A function with these parameters that gives pairs; None where it is not clear what they are."""
        given = self._given(_result(old), kind)
        if kind == _VALUE and not isinstance(cast(TupleType, given).fields[0], TensorType):
            return None
        body = yield self._block(body_of(old), pairs, lists, kind if kind != _OTHER else None)
        if body is None:
            return None
        made = replace(old, params=tuple(params), body=body, ret_type=given)
        # What wants a list of which there are pairs only has none.
        return None if free_vars(made) else replace(made, ty=_function_type(made, cast(Type, given)))

    def _caller(self, name: str) -> Function:
        """What gives what the function of this name gave, with names of its own."""
        old, kind = self.module.functions[name], self.kinds[name]
        result, given = cast(Type, _result(old)), cast(Type, self._given(_result(old), kind))
        dims = tuple(as_dim(cast(DimVar, p)) for p in old.type_params)
        whole, value = Var("given", None, given), Var("value", None, result)
        call = Call(GlobalVar(self.beside[name], _function_type(old, given)), old.params, type_args=dims, ty=given)
        bindings = [Binding(whole, call)]
        if kind != _OTHER:
            bindings.append(Binding(value, self._value_of(whole, kind, name, dims)))
        block = Block(tuple(bindings), bindings[-1].var, result)
        return _with_own_names(replace(old, body=block, ret_type=result, ty=_function_type(old, result)))

    def _value_of(self, given: Var, kind: str, name: str, dims: Sequence[TypeArg]) -> Expr:
        """The value of a pair, or those of a list of pairs, that the function of this name has given at these sizes."""
        if kind == _VALUE:
            return Proj(given, 1, cast(TupleType, given.ty).fields[1])
        target, used = self._values(name)
        assert isinstance(given.ty, AdtType)
        (pair,) = given.ty.args
        ty = AdtType(given.ty.name, (cast(TupleType, pair).fields[1],))
        return Call(GlobalVar(target, self.made[target].ty), (given,), type_args=tuple(dims[n] for n in used), ty=ty)

    def _values(self, name: str) -> tuple[str, Sequence[int]]:
        """The function that gives the list of values for the list of pairs of a map, and which of the map's sizes it has."""
        if name in self.values:
            return self.values[name]
        old = self.flat[name]
        result, given = cast(AdtType, _result(old)), cast(AdtType, self._given(_result(old), _LIST))
        pair = cast(TupleType, given.args[0])
        inside = DimUses().of_type(given)
        used = [n for n, d in enumerate(old.type_params) if d in inside]
        target = unused(f"{name}.values", {**self.module.functions, **self.made})
        self.values[name] = target, used
        layout, definition = layout_of(self.module, result), self.module.types[result.name]
        assert layout is not None
        full, empty = definition.constructors[layout.cons], definition.constructors[1 - layout.cons]
        param, whole = Var("pairs", None, given), Var("values", None, result)
        item, rest = Var("pair", None, pair), Var("rest", None, given)
        value, others = Var("value", None, pair.fields[1]), Var("values", None, result)
        parts: dict[int, Var] = {layout.head: item, layout.tail: rest}
        fields: dict[int, Var] = {layout.head: value, layout.tail: others}
        dims = tuple(old.type_params[n] for n in used)
        ty = FuncType((given,), result, dims)
        again = Call(GlobalVar(target, ty), (rest,), type_args=tuple(as_dim(cast(DimVar, d)) for d in dims), ty=result)
        one, none = Var("more", None, result), Var("end", None, result)
        step = Block(
            (
                Binding(value, Proj(item, 1, value.ty)),
                Binding(others, again),
                Binding(one, construct(definition, full.name, [fields[n] for n in range(2)], result)),
            ),
            one,
            result,
        )
        last = Block((Binding(none, construct(definition, empty.name, (), result)),), none, result)
        clauses = (
            Clause(PConstructor(full.name, tuple(PVar(parts[n]) for n in range(2))), step),
            Clause(PConstructor(empty.name), last),
        )
        body = Block((Binding(whole, Match(param, clauses, True, result)),), whole, result)
        self.made[target] = _with_own_names(Function((param,), body, result, dims, ty=ty))
        return self.values[name]

    def _walker(self, name: str, at: int) -> Step[str | None]:
        """The function that goes through pairs in the place of values, in its parameter of this number; None where it reads no field of
        them, or needs the list itself."""
        if (name, at) in self.walkers:
            return self.walkers[name, at]
        self.walkers[name, at] = None
        old = self.module.functions[name]
        if is_primitive(old) or not _item_reads(self.module, old, at):
            return None
        old = _reading_first(self.module, old)
        target = self.walkers[name, at] = unused(f"{name}.read", {**self.module.functions, **self.made})
        param = old.params[at]
        pairs = Var(param.name, None, self._given(param.ty, _LIST))
        params = [pairs if n == at else p for n, p in enumerate(old.params)]
        made = yield self._function(old, _OTHER, {}, {param: pairs}, params)
        if made is None:
            self.walkers[name, at] = None
            return None
        self.made[target] = _with_own_names(made)
        return target

    # -- blocks

    def _block(
        self, block: Block, pairs: Mapping[Var, Var], lists: Mapping[Var, Var], ending: str | None
    ) -> Step[Block | None]:
        """``pairs`` and ``lists``: what there is beside values, and lists of them. ``ending``: the block's result is the function's, which
        gives this."""
        pairs, lists = dict(pairs), dict(lists)
        out: list[Binding] = []
        spare: set[Var] = set()  # what may not be needed any more
        made: dict[Var, Expr] = {}
        for b in block.bindings:
            value: Expr = b.value
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar):
                name, kind = value.fn.name, self.kinds.get(value.fn.name)
                if kind is not None:
                    given = self._given(b.var.ty, kind)
                    whole = b.var if kind == _OTHER else Var("given", None, given)
                    out.append(Binding(whole, self._called(value, given)))
                    if kind != _OTHER:
                        (pairs if kind == _VALUE else lists)[b.var] = whole
                        spare.add(b.var)
                        out.append(Binding(b.var, self._value_of(whole, kind, name, value.type_args)))
                    continue
                for at, arg in enumerate(value.args):
                    if isinstance(arg, Var) and arg in lists and name in self.module.functions:
                        target = yield self._walker(name, at)
                        if target is not None:
                            args = tuple(lists[arg] if n == at else a for n, a in enumerate(value.args))
                            value = replace(value, fn=self._through(value.fn, target, at), args=args)
                            break
            if isinstance(value, Match) and isinstance(value.data, Var):
                if value.data in pairs and _field_read(self.module, value) == self.fields:
                    out.append(Binding(b.var, Proj(pairs[value.data], 0, b.var.ty)))
                    continue
                if value.data in lists:
                    value = self._of_pairs(value, lists[value.data], pairs, lists)
            ends = ending if b.var is block.result else None
            inner: list[Block] = []
            for nested in nested_blocks(value):
                found = yield self._block(nested, pairs, lists, ends)
                if found is None:
                    return None
                inner.append(found)
            if inner:
                value = with_nested_blocks(value, inner)
            if inner and ends is not None:
                whole = Var("given", None, self._given(b.var.ty, ends))
                (pairs if ends == _VALUE else lists)[b.var] = whole
                out.append(Binding(whole, replace(cast(Match, value), ty=whole.ty)))
                continue
            made[b.var] = value
            if ending == _LIST and isinstance(value, Call) and isinstance(value.fn, ConstructorRef):
                spare.add(b.var)
            out.append(b if value is b.value else Binding(b.var, value))
        result, ty = block.result, block.ty
        if ending is not None:
            known = pairs if ending == _VALUE else lists
            ty = self._given(ty or result.ty, ending)
            if isinstance(result, Var) and result in known:
                result = known[result]
            else:
                value = made.get(result, result) if isinstance(result, Var) else result
                beside = self._made(value, result, ending, pairs, lists)
                if beside is None:
                    return None
                whole = Var("given", None, ty)
                out.append(Binding(whole, beside))
                result = whole
        return Block(tuple(_needed(out, result, spare)), result, ty, block.span)

    def _made(
        self, value: Expr, result: Expr, ending: str, pairs: Mapping[Var, Var], lists: Mapping[Var, Var]
    ) -> Expr | None:
        """What is given where a function makes this value; None where it is not clear what that is."""
        if not isinstance(value, Call) or not isinstance(value.fn, ConstructorRef):
            return None
        given = self._given(value.ty, ending)
        if ending == _VALUE:
            return Tuple((value.args[self.fields[value.fn.name]], result), given)
        assert isinstance(given, AdtType)
        args = [pairs.get(cast(Var, a)) or lists.get(cast(Var, a)) for a in value.args]
        if any(a is None for a in args):
            return None
        return construct(self.module.types[given.name], value.fn.name, cast("list[Var]", args), given)

    def _of_pairs(self, match: Match, data: Var, pairs: dict[Var, Var], lists: dict[Var, Var]) -> Match:
        """A match on a list of pairs in the place of one on a list of values."""
        layout = layout_of(self.module, match.data.ty)
        assert layout is not None and isinstance(data.ty, AdtType)
        clauses: list[Clause] = []
        for clause in match.clauses:
            pattern, body = clause.pattern, as_block(clause.body)
            if not isinstance(pattern, PConstructor) or not pattern.fields:
                clauses.append(clause)
                continue
            fields = list(pattern.fields)
            head, tail = fields[layout.head], fields[layout.tail]
            if isinstance(head, PVar):
                pair = pairs[head.var] = Var("pair", None, cast(Type, data.ty.args[0]))
                fields[layout.head] = PVar(pair)
                if any(head.var in free_vars(b.value) for b in body.bindings) or body.result is head.var:
                    body = replace(body, bindings=(Binding(head.var, Proj(pair, 1, head.var.ty)), *body.bindings))
            if isinstance(tail, PVar):
                rest = lists[tail.var] = Var(tail.var.name, None, data.ty)
                fields[layout.tail] = PVar(rest)
            clauses.append(Clause(replace(pattern, fields=tuple(fields)), body))
        return Match(data, tuple(clauses), match.complete, match.ty, match.span)

    def _through(self, old: GlobalVar, target: str, at: int) -> GlobalVar:
        """What is called with pairs in this place."""
        ty = old.ty
        if isinstance(ty, FuncType):
            params = (cast(Type, self._given(p, _LIST)) if n == at else p for n, p in enumerate(ty.params))
            ty = FuncType(tuple(params), ty.ret, ty.type_params)
        return GlobalVar(target, ty, old.span)

    def _called(self, call: Call, result: Type | None) -> Call:
        assert isinstance(call.fn, GlobalVar)
        ty = call.fn.ty if isinstance(call.fn.ty, FuncType) and result is not None else None
        of = None if ty is None else FuncType(ty.params, cast(Type, result), ty.type_params)
        return replace(call, fn=GlobalVar(self.beside[call.fn.name], of, call.fn.span), ty=result)


def _item_reads(module: Module, function: Function, at: int) -> list[dict[str, int] | None]:
    """What a function reads of each item of a list that is its parameter of this number."""
    flat = _reading_first(module, function)
    items = _items(module, flat, at)
    matches = [b.value for b in all_bindings(body_of(flat)) if isinstance(b.value, Match)]
    return [_field_read(module, m) for m in matches if m.data in items]


def _needed(code: Sequence[Binding], result: Expr, spare: Collection[Var]) -> list[Binding]:
    """The code without what is to spare and nothing reads."""
    used = {result}
    out: list[Binding] = []
    for b in reversed(code):
        if b.var in spare and b.var not in used:
            continue
        used.update(free_vars(b.value))
        out.append(b)
    return out[::-1]


def _with_own_names(function: Function) -> Function:
    copier = Copier(own_dims=True)
    copied = copier.function(function)
    own = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(cast(DimVar, p))))) for p in function.type_params)
    assert isinstance(copied.ty, FuncType)
    return replace(copied, type_params=own, ty=FuncType(copied.ty.params, copied.ty.ret, own))


def _function_type(function: Function, result: Type) -> FuncType:
    types = tuple(cast(Type, p.ty) for p in function.params)
    return FuncType(types, result, function.type_params)
