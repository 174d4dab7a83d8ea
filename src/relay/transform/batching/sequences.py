"""Sequences that come as tensors, a row for each step, as lists: so that many requests of different lengths are one batch.

Levels are of structures. An entry that is given a tensor with a size of its own in front, and looks at it row by row, in loops and in
operators that do the same to every row, is an entry that is given the list of the rows. The function that answers many requests is made of
that one; whoever calls it makes the lists (`relay.executable.values`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_vars
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, AdtType, FuncType, TensorType, TupleType, TypeDef, leaf_types
from relay.ir.walk import free_vars
from relay.transform.batching.clauses import NotStructural
from relay.transform.batching.lifted import Emitter
from relay.transform.batching.requests import list_type
from relay.transform.batching.row_loops import Items, RowLoop, fold_of, row_loop, rows_read, unpack
from relay.transform.batching.row_reductions import accumulating, is_over_rows, put_over_rows, spelled
from relay.transform.batching.row_values import Rows, RowValues, row_of
from relay.transform.blocks import body_of, nested_blocks, operands, renamed
from relay.transform.build import constant, op_call, type_of, zeros_of
from relay.transform.copying import Copier, match_dims, with_own_dims
from relay.transform.dims import DimUses
from relay.transform.function_types import unused
from relay.transform.uses import needed
from relay.transform.visited_rows import Sizes
from relay.typing.effects import Effects

_FIRST, _ROWS = MappingProxyType({"axis": 0}), MappingProxyType({"axis": (0,)})


def sequences_of(entry: Function) -> dict[int, DimVar]:
    """The parameters of an entry that are tensors with a size of their own in front, any number, which nothing else that it is given has,
    and other sizes that tensors say which are the same in all requests."""
    uses = DimUses()
    said = [uses.of_type(p.ty) for p in entry.params]
    out: dict[int, DimVar] = {}
    for n, p in enumerate(entry.params if not entry.constraints else ()):
        if not isinstance(p.ty, TensorType) or not isinstance(p.ty.shape, tuple) or not p.ty.shape:
            continue
        size = as_var(p.ty.shape[0])
        others = {v for d in p.ty.shape[1:] for v in dim_vars(d)}.union(*(d for m, d in enumerate(said) if m != n))
        if size is None or size not in entry.type_params or size in others:
            continue
        if size.lo == 0 and size.hi is None and DTYPE_BITS.get(cast(str, p.ty.dtype), 0) >= 8:
            out[n] = size
    while True:
        shared = {v for n, dims in enumerate(said) if n not in out for v in dims}
        unsaid = [n for n, size in out.items() if not shared.issuperset(v for v in said[n] if v is not size)]
        if not unsaid:
            return out
        for n in unsaid:
            del out[n]


@record(frozen=True, slots=True, eq=False)
class Listed:
    """An entry of lists of rows, the last of which comes first: of its parameters ``rows``, and of its result those tensors, in order, that
    are ``stacked`` of them. Whether loops make lists of them (``makes``), the functions that it calls beside those of the module, and the
    type of its lists."""

    entry: Function
    rows: tuple[int, ...]
    stacked: tuple[int, ...]
    makes: bool
    functions: Mapping[str, Function]
    type: TypeDef


def listed_entry(
    module: Module, name: str, entry: Function, effects: Effects, taken: Collection[str], types: Collection[str]
) -> Listed:
    """The entry of this name, with everything inlined but recursion, as one of lists: of the rows of its sequences, the last row first.
    Names of functions and of types that are ``taken`` are not given again. Raises NotStructural."""
    sequences = sequences_of(entry)
    while True:
        if not sequences:
            raise NotStructural("no argument is a structure, or a sequence of rows")
        try:
            return _Lister(module, name, entry, sequences, effects, list_type(types, "Rows"), taken).run()
        except _Whole as why:  # as a table, or a weight, of whatever size
            left = {n: size for n, size in sequences.items() if size not in why.sizes}
            if len(left) == len(sequences) or not left:
                raise NotStructural(str(why)) from None
            sequences = left


class _Whole(NotStructural):
    """An operation looks at all rows of arguments of these sizes at once."""

    def __init__(self, text: str, sizes: Collection[DimVar]) -> None:
        super().__init__(text)
        self.sizes = sizes


@record(frozen=True, slots=True, eq=False)
class _List:
    """A list of the program, and what its items have; whether a loop has ``made`` it."""

    var: Var
    fields: Sequence[Rows]
    made: bool = True


@record(slots=True, eq=False)
class _Lister:
    module: Module
    name: str
    entry: Function
    sequences: Mapping[int, DimVar]
    effects: Effects
    kind: TypeDef
    taken: Collection[str]
    out: Emitter = field(default_factory=Emitter)
    functions: dict[str, Function] = field(default_factory=dict)
    todo: list[Binding] = field(default_factory=list)
    lists: list[_List] = field(default_factory=list)
    values: dict[Var, Expr] = field(default_factory=dict)
    uses: DimUses = field(default_factory=DimUses)
    known: RowValues = field(init=False)

    def __post_init__(self) -> None:
        self.known = RowValues(frozenset(self.sequences.values()))

    def run(self) -> Listed:
        params = list(self.entry.params)
        for n, size in self.sequences.items():
            param = params[n]
            rows = Rows(size, row_of(type_of(param)))
            self.known.rows[param] = rows, False
            listing = AdtType(self.kind.name, (rows.row,))
            params[n] = Var(param.name, listing, listing)
            self.lists.append(_List(params[n], [rows], made=False))
        body = body_of(self.entry)
        self.does(needed(body.bindings, [body.result], self.effects.of))
        while self.todo:
            self.bind(self.todo.pop())
        stacked: list[int] = []
        result = self.given(body.result, stacked, [0])
        bindings = tuple(self.out.bindings)
        left = {d for b in bindings for d in (*self.uses.of_type(b.var.ty), *self.uses.of_value(b.value))}
        if any(map(self.known.is_size, left)):
            raise NotStructural("it looks at the number of rows of an argument")
        ret = type_of(result)
        dims = tuple(d for d in self.entry.type_params if d not in self.sequences.values())
        ty = FuncType(tuple(type_of(p) for p in params), ret, dims)
        block = Block(bindings, result, ret)
        made = replace(self.entry, params=tuple(params), body=block, ret_type=ret, type_params=dims, ty=ty)
        return Listed(
            with_own_dims(made),
            tuple(self.sequences),
            tuple(stacked),
            any(x.made for x in self.lists),
            self.functions,
            self.kind,
        )

    def given(self, result: Expr, stacked: list[int], count: list[int]) -> Expr:
        """What the entry gives, with lists of rows in it; which tensors these are, so many having come before. (As deep as a person writes
        types.)"""
        atom = self.known.atom(result)
        if not self.known.is_of_rows(atom):
            count[0] += sum(1 for _ in leaf_types(type_of(atom)))
            return atom
        assert isinstance(atom, Var)
        if atom in self.known.tuples:
            fields = [self.given(f, stacked, count) for f in self.known.tuples[atom]]
            ty = TupleType(tuple(map(type_of, fields)))
            return self.out.bind("result", Tuple(tuple(fields), ty), ty)
        if atom in self.known.gone or self.known.rows[atom][1]:
            raise NotStructural(
                "it gives the number of rows of an argument"
                if atom in self.known.gone
                else "it gives rows turned round"
            )
        stacked.append(count[0])
        count[0] += 1
        return self.listing(self.known.rows[atom][0])

    def listing(self, rows: Rows) -> Expr:
        """The list of these rows alone."""
        of, fields, known, code = self.items([rows])
        if [*of.fields] == [rows] and of.made:
            return of.var
        nothing = Block((), Tuple(()), TupleType(()))
        loop = RowLoop(self.name, Function((), nothing), True, {}, {}, {}, (), nothing)
        (made,) = self.fold(loop, Call(GlobalVar(self.name), ()), of, Items(fields, code, {}, [known[rows]], []))
        return made

    def items(self, rows: Collection[Rows]) -> tuple[_List, list[Var], dict[Rows, Expr], list[Binding]]:
        """A list whose items say these rows: variables for an item's fields, what rows they are and what follows from them, by this
        code. Raises NotStructural."""
        leaves, computed = self.known.leaves(rows)
        of = next((x for x in reversed(self.lists) if all(r in x.fields for r in leaves)), None)
        if of is None:
            raise NotStructural("what it goes through by row stands in several lists")
        fields = [Var("row", None, r.row) for r in of.fields]
        known: dict[Rows, Expr] = dict(zip(of.fields, fields, strict=True))
        out = Emitter()
        self.known.row_by_row(computed, known, out)
        return of, fields, known, out.bindings

    def fold(self, loop: RowLoop, call: Call, of: _List, items: Items) -> list[Var]:
        """Call a loop as a fold over a list; the parts of what it gives."""
        made = unused(f"{loop.name}.rows", {*self.taken, *self.functions})
        fold = fold_of(loop, call, of.var, items, self.kind, made)
        self.functions[made] = fold.function
        parts = [Var("rows", None, t) for t in fold.parts]
        unpack(self.out, self.out.bind("folded", fold.call, type_of(fold.call)), parts)
        return parts

    def does(self, bindings: Sequence[Binding]) -> None:
        """What is to be done next."""
        self.values.update((b.var, b.value) for b in bindings)
        self.todo += reversed(bindings)

    def bind(self, binding: Binding) -> None:
        var, value = binding.var, binding.value
        match value:
            case Var():
                self.known.names[var] = value
                return
            case Tuple() if any(map(self.known.is_of_rows, value.fields)):
                self.known.tuples[var] = value.fields
                return
            case Proj() if (whole := self.known.atom(value.tuple)) in self.known.tuples:
                self.known.names[var] = self.known.tuples[whole][value.index]
                return
            case Call(fn=OpRef()) if self.operator(var, value):
                return
            case Call(fn=GlobalVar()) if any(map(self.known.is_of_rows, value.args)):
                self.loop(var, value)
                return
        read = [*operands(value), *(v for block in nested_blocks(value) for v in free_vars(block))]
        if any(map(self.known.is_of_rows, read)):
            raise _Whole(f"%{var.name} follows from all rows of an argument at once", self.known.sizes(read))
        names = {v: self.known.atom(v) for v in read if isinstance(v, Var)}
        if nested_blocks(value):
            copied = Copier(names).copy(Block((binding,), var)).bindings
            self.out.bindings += copied
            self.known.names[var] = copied[-1].var
        else:
            self.out.bindings.append(renamed(binding, names))

    def operator(self, var: Var, call: Call) -> bool:
        """Whether a call of an operator is done with: what is known of sizes, and what is the same for each row."""
        assert isinstance(call.fn, OpRef)
        args = [self.known.atom(a) for a in call.args]
        about = any(map(self.known.is_of_rows, args))
        match call.fn.name:
            case "check_equal" if call.attrs.get("relation") in ("==", "<=", ">="):
                return self.known.size(cast(Dim, call.attrs["left"])) == self.known.size(cast(Dim, call.attrs["right"]))
            case "shape_of" | "size_of" if about or any(map(self.known.is_size, self.uses.of_value(call))):
                self.known.gone.add(var)
                return True
            case "take" | "add" | "subtract" | "cast" if any(isinstance(a, Var) and a in self.known.gone for a in args):
                if Sizes(self.values, {}, {}).of(var) is None:
                    return False
                self.known.gone.add(var)
                return True
            case "reverse" if (
                isinstance(args[0], Var) and args[0] in self.known.rows and call.attrs.get("axis") in (0, (0,))
            ):
                rows, backwards = self.known.rows[args[0]]
                self.known.rows[var] = rows, not backwards
                return True
        return about and (self.known.by_row(var, call) or self.reduced(var, call))

    def reduced(self, var: Var, call: Call) -> bool:
        """Whether an operator reduces over rows, or is spelled out as such."""
        data = self.known.atom(call.args[0]) if len(call.args) == 1 else None
        if not isinstance(data, Var) or data not in self.known.rows:
            return False
        if is_over_rows(call, "mean", "nn.softmax"):
            dtype = cast(str, cast(TensorType, call.ty).dtype)
            self.does(spelled(var, call, lambda: self.count(self.known.rows[data][0], dtype)))
            return True
        put, (rows, _) = put_over_rows(call), self.known.rows[data]
        if put is None:
            return False
        assert isinstance(call.fn, OpRef) and isinstance(rows.row.shape, tuple)
        none = zeros_of(TensorType((0, *rows.row.shape), rows.row.dtype))
        of_none = op_call(call.fn.name, (self.out.bind("none", none, type_of(none)),), _ROWS)
        start = self.out.bind("start", of_none, type_of(of_none))
        made = self.accumulated(accumulating(call.fn.name, put, rows.row), rows, start)
        if call.attrs.get("keepdims", False):
            kept = op_call("expand_dims", (made,), _FIRST)
            made = self.out.bind(var.name, kept, type_of(kept))
        self.known.names[var] = made
        return True

    def count(self, rows: Rows, dtype: str) -> Var:
        """How many rows there are, as a number of this dtype."""
        one, none = constant(np.ones((), dtype), dtype), constant(np.zeros((), dtype), dtype)
        return self.accumulated(accumulating("count", "add", TensorType((), dtype)), rows, none, one)

    def accumulated(self, loop: RowLoop, rows: Rows, start: Expr, each: Expr | None = None) -> Var:
        """What a loop gives that puts rows, or the same for ``each`` of them, to a start."""
        of, fields, known, code = self.items([rows])
        items = Items(fields, code, {0: known[rows] if each is None else each}, [], [])
        return self.fold(loop, Call(GlobalVar(self.name), (start, start)), of, items)[0]

    def wanted(self, result: Expr, following: Sequence[Binding]) -> set[Var]:
        """What is known already of that which the rest of the entry needs."""
        given = {b.var: b.value for b in following}
        out: set[Var] = set()
        seen: set[Expr] = set()
        todo: list[Expr] = [result]
        todo += [a for b in following if self.effects.of(b.value) for a in operands(b.value)]
        while todo:
            e = todo.pop()
            if not isinstance(e, Var) or e in seen:
                continue
            seen.add(e)
            value = given.get(e)
            if value is None:
                atom = self.known.atom(e)
                if isinstance(atom, Var):
                    out.add(atom)
                    todo += self.known.tuples.get(atom, ())
                continue
            if isinstance(value, Proj):
                whole: Expr = value.tuple
                while isinstance(whole, Var) and isinstance(given.get(whole), Var):
                    whole = cast(Var, given[whole])
                fields = given.get(whole) if isinstance(whole, Var) else None
                if isinstance(fields, Tuple):
                    todo.append(fields.fields[value.index])
                    continue
            todo += operands(value)
            todo += (v for block in nested_blocks(value) for v in free_vars(block))
        return out

    def loop(self, var: Var, call: Call) -> None:
        """A call of a function that is given rows: a loop over them is a fold over a list."""
        assert isinstance(call.fn, GlobalVar)
        name = call.fn.name
        function = self.module.functions[name]
        type_args = tuple(self.known.size(cast(Dim, a)) for a in call.type_args)
        call = replace(call, args=tuple(map(self.known.atom, call.args)), type_args=type_args)
        read: dict[int, Rows] = {}
        for n, a in enumerate(call.args):
            for rows, backwards in self.known.parts(a) if not (isinstance(a, Var) and a in self.known.gone) else ():
                if backwards or a not in self.known.rows:
                    raise NotStructural(f"@{name} is given rows in another order than the argument has them")
                read[n] = rows
        sizes = {rows.size for rows in read.values()}
        if len(sizes) != 1:
            by_row = {read[n].size for n in rows_read(function, read)}
            raise _Whole(f"@{name} is given rows of several arguments", sizes - by_row)
        (size,) = sizes
        outer = Sizes(self.values, {}, {})
        loop = row_loop(name, function, call, dict.fromkeys(read, as_dim(size)), outer, self.effects)
        read = {n: read[n] for n in loop.reads.values()}
        for n in (*loop.shared(), *loop.states):
            if self.known.is_of_rows(call.args[n]):
                raise NotStructural(f"@{name} is given what follows from all rows of an argument at once")
        # What it gives at its end comes behind it.
        dims = dict(zip(cast("Sequence[DimVar]", function.type_params), cast("Sequence[Dim]", type_args), strict=True))
        dims |= {d: as_dim(size) for n in loop.puts if (d := as_var(_leading(function.params[n]))) is not None}
        end = Copier(dict(zip(function.params, call.args, strict=True)), dims)
        states = [end.bind(function.params[n]) for n in loop.states]
        rows_put = {n: end.bind(function.params[n]) for n in loop.puts}
        last = end.copy(loop.last)
        following = (*last.bindings, Binding(var, last.result))
        for unknown in self.uses.of_type(var.ty):
            found = (
                match_dims((unknown,), [(var.ty, type_of(last.result))])
                if unknown not in self.entry.type_params
                else None
            )
            if found is not None and any(map(self.known.is_size, dim_vars(found[unknown]))):
                self.known.dims[unknown] = found[unknown]
        needs = self.wanted(body_of(self.entry).result, [*following, *reversed(self.todo)])
        puts = [n for n, v in rows_put.items() if v in needs]
        later = [self.known.rows[v][0] for v in needs if v in self.known.rows]
        of, fields, known, code = self.items(read.values())
        kept = [r for r in dict.fromkeys((*later, *self.known.leaves(later)[0])) if r in known] if puts else []
        items = Items(fields, code, {n: known[r] for n, r in read.items()}, [known[r] for r in kept], puts)
        parts = self.fold(loop, call, of, items)
        self.known.names.update(zip(states, parts, strict=False))
        if puts:
            # What was computed for it is a field from now on.
            new = {r: Rows(size, r.row) for r in kept}
            for v, (rows, backwards) in list(self.known.rows.items()):
                if rows in new:
                    self.known.rows[v] = new[rows], backwards
            added = [Rows(size, cast(TensorType, end.type(type_of(loop.puts[n])))) for n in puts]
            self.lists.append(_List(parts[-1], [*new.values(), *added]))
            self.known.rows.update((rows_put[n], (r, not loop.up)) for n, r in zip(puts, added, strict=True))
        self.known.gone.update(v for n, v in rows_put.items() if n not in puts)
        self.does(following)


def _leading(param: Var) -> Dim:
    ty = type_of(param)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return ty.shape[0]
