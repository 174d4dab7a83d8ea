"""Which recursive functions follow the structure of a value, and what they do in each clause.

A group of functions that call each other is *structural* when each takes one value of a data type apart, calls the others on parts of
it only, and passes its other arguments on as they are, or computes them without the results of recursive calls. Such calls do not
depend on each other's order: only on the structure. The
body of each function then is a decision tree over the structure with straight-line code at its leaves, the *clauses* (`decisions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from typing import cast

from relay.ir.dim import Dim, DimVar, as_dim, dim_vars, is_any
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    PConstructor,
    Proj,
    PVar,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, AdtType, TensorType, TupleType, Type, leaf_types, mentions_any
from relay.ir.walk import free_vars
from relay.transform.batching.alike import Alike
from relay.transform.batching.decisions import Clause, Path, Switch, Tree
from relay.transform.batching.lists import Items, Layout, ListForm, items_of, layout_of
from relay.transform.blocks import as_block, body_of
from relay.transform.copying import Copier, solve_dims
from relay.transform.dims import DimUses
from relay.typing.text import type_text

# More clauses than this are not worth telling apart.
MAX_CLAUSES = 64
# More cases than this are not read to find out which do the same.
MAX_CASES = 1024


class NotStructural(Exception):
    """Why a function is not batched: a sentence for ``relay inspect``."""


@record(frozen=True, slots=True, eq=False)
class Structural:
    """One function of the group, in the variables and dims of the group's root: ``data`` is the number of its parameter that is
    taken apart, ``positions`` are those of the parameters that change from call to call (``changing``)."""

    name: str
    data: int
    result: Type
    tree: Tree
    positions: tuple[int, ...] = ()
    changing: tuple[Var, ...] = ()


@record(frozen=True, slots=True, eq=False)
class Group:
    """Functions that call each other on parts of one structure; the first is the root, which others call.

    With ``many`` the structure is a list of requests, and the root is what is done with one of them: nothing calls it. Functions that
    are ``turned`` are given lists from the last item on (see `left_folds`). ``differentiated``: what is made of it will be.
    """

    module: Module
    root: Function
    functions: tuple[Structural, ...]
    clauses: tuple[Clause, ...]
    number: dict[str, int]
    many: bool = False
    turned: frozenset[str] = frozenset()
    differentiated: bool = False

    @property
    def hands_down(self) -> bool:
        """Whether arguments change from call to call."""
        return any(f.positions for f in self.functions)

    def data_of(self, name: str) -> int:
        return self.functions[self.number[name]].data

    def part_of(self, name: str, clause: Clause, path: Path, ty: Type) -> Path:
        """What a call of a function in a clause is on, where the part at this path stands there, of this type."""
        if name not in self.turned:
            return path
        layout = layout_of(self.module, ty)
        assert layout is not None
        own = clause.function == self.number[name] and path == (layout.tail,)
        return path if own else (*path, layout)


def group_of(
    module: Module,
    root: str,
    members: Sequence[str],
    table: Mapping[str, Function],
    forms: Mapping[str, tuple[ListForm, Function]],
    requests: Mapping[Var, Path] | None = None,
    turned: frozenset[str] = frozenset(),
    single: bool = False,
) -> Group:
    """The group with this root. ``table`` has the members' functions, ``forms`` the functions over lists that they may call.
    ``requests``: the root is what is done with one of many requests (``single``: of one), these variables of it are parts of the request.
    ``turned``: the members that go through lists from the last item on.

    Raises NotStructural.
    """
    changing: set[tuple[str, int]] = set()
    while True:
        changes: set[tuple[str, int]] = set()
        try:
            group = _group(module, root, members, table, forms, requests, turned, changing, changes)
        except NotStructural:
            if not changes:
                raise
        if not changes:
            break
        # What was read as the same in all calls is not: all is read again.
        changing |= changes
    beside = requests is not None and not single  # many requests are
    if changing and not beside and not any(branches(c, members) for c in group.clauses):
        name, n = min(changing)
        raise NotStructural(
            f"argument %{table[name].params[n].name} of @{name} changes from call to call, and no two calls are side by side"
        )
    return replace(group, turned=turned)


def branches(clause: Clause, members: Sequence[str]) -> bool:
    """Whether a clause has several recursive calls, or one for each item of a list."""
    return len(calls_of(clause, members)) > 1 or any(_calls_in(i.code, members) for i in clause.lists.values())


def _group(
    module: Module,
    root: str,
    members: Sequence[str],
    table: Mapping[str, Function],
    forms: Mapping[str, tuple[ListForm, Function]],
    requests: Mapping[Var, Path] | None,
    turned: frozenset[str],
    changing: Set[tuple[str, int]],
    changes: set[tuple[str, int]],
) -> Group:
    """The group, if only the ``changing`` parameters change from call to call, by their functions and numbers; others that do are put
    into ``changes``. Raises NotStructural."""
    data = {name: _data_parameter(table[name], name) for name in members if requests is None or name != root}
    if requests is not None:
        data[root] = 0
    elif not isinstance(table[root].params[data[root]].ty, AdtType):
        raise NotStructural(f"@{root} takes a tuple apart")
    order = [root]
    place: dict[str, Copier] = {root: Copier()}
    number: dict[str, int] = {root: 0}
    functions: list[Structural] = []
    clauses: list[Clause] = []
    sizes = {*table[root].type_params, *(v for p in table[root].params for v in DimUses().of_type(p.ty))}
    for name in order:  # grows
        function = table[name]
        copier = place[name]
        body = body_of(function) if name == root else copier.copy(body_of(function))
        if name == root and requests is not None:
            parts = dict(requests)
        else:
            param = function.params[data[name]]
            start = param if name == root else copier.atom(param)
            assert isinstance(start, Var)
            parts = {start: ()}
        reader = _Reader(module, number[name], len(clauses), forms, Alike(turned))
        tree = reader.tree(body, parts)
        clauses += reader.alike.clauses
        result = copier.type(body_of(function).ty or function.ret_type)
        if result is None or not made_of_tensors(result, data_types=True):
            raise NotStructural(f"@{name} gives something that is not made of tensors and data types")
        for ty in leaves(result):
            if mentions_any(ty) or not sizes.issuperset(DimUses().of_type(ty)):
                raise NotStructural(
                    f"@{name} gives a tensor whose size may be another one for each node: {type_text(ty)}"
                )
        positions = tuple(n for n in range(len(function.params)) if (name, n) in changing)
        given = [p if name == root else copier.atom(p) for p in (function.params[n] for n in positions)]
        functions.append(Structural(name, data[name], result, tree, positions, tuple(cast("list[Var]", given))))
        for clause in reader.alike.clauses:
            own = _of_request(clause, len(reader.alike.clauses) == 1) if requests is not None and name == root else None
            for call in calls_of(clause, members):
                _check_call(call, clause, data, table, place, number, order, own, changing, changes)
    return Group(module, table[root], tuple(functions), tuple(clauses), number, requests is not None)


def calls_of(clause: Clause, members: Sequence[str]) -> list[Call]:
    """The calls of the group's functions in a clause."""
    return _calls_in(clause.all_bindings(), members)


def _calls_in(code: Sequence[Binding], members: Sequence[str]) -> list[Call]:
    return [
        b.value
        for b in code
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name in members
    ]


def _data_parameter(function: Function, name: str) -> int:
    """The parameter that the function's first match takes apart: a value of a data type, or a tuple with one."""
    whole: dict[Expr, Expr] = {}
    for binding in body_of(function).bindings:
        if isinstance(binding.value, Proj):
            whole[binding.var] = whole.get(binding.value.tuple, binding.value.tuple)
        if isinstance(binding.value, Match):
            data = binding.value.data
            found = [n for n, p in enumerate(function.params) if p is whole.get(data, data)]
            if found and isinstance(data.ty, AdtType):
                return found[0]
            break
    raise NotStructural(f"@{name} does not take an argument apart before anything else")


def made_of_tensors(ty: Type, data_types: bool = False) -> bool:
    """Whether a type is that of tensors and tuples of such, and (``data_types``) of values of data types."""
    match ty:
        case TensorType(shape=tuple(), dtype=str()):
            return True
        case AdtType():
            return data_types
        case TupleType(fields=fields):
            return all(made_of_tensors(f, data_types) for f in fields)
        case _:
            return False


def leaves(ty: Type) -> list[TensorType]:
    """The tensors of a type of tensors, data types and tuples, in order."""
    return [t for t in leaf_types(ty) if isinstance(t, TensorType)]


def data_types(ty: Type) -> list[AdtType]:
    """The data types of a type of tensors, data types and tuples, in order."""
    return [t for t in leaf_types(ty) if isinstance(t, AdtType)]


def _check_call(
    call: Call,
    clause: Clause,
    data: dict[str, int],
    table: Mapping[str, Function],
    place: dict[str, Copier],
    number: dict[str, int],
    order: list[str],
    of_request: Set[Var] | None,
    changing: Set[tuple[str, int]],
    changes: set[tuple[str, int]],
) -> None:
    """A recursive call must go to a part of the structure and hand the other arguments on, but for those that change (those that are not
    known to are put into ``changes``); a function met for the first time is put in the terms of the caller. ``of_request``: where that is
    what is done with one of many requests, what nodes cannot ask it for."""
    assert isinstance(call.fn, GlobalVar)
    name = call.fn.name
    callee = table[name]
    at = data[name]
    arg = call.args[at]
    is_item = any(arg in items.parts() for items in clause.lists.values())
    if not isinstance(arg, Var) or not (clause.parts.get(arg) or is_item):
        if of_request is not None:
            raise NotStructural(f"@{name} goes through what the request has computed")
        raise NotStructural(f"a recursive call of @{name} is not on a part of the value that is taken apart")
    dims = solve_dims(callee, call, [a.ty for a in call.args])
    if dims is None:
        raise NotStructural(f"the sizes of a recursive call of @{name} are not known")
    known = place.get(name)
    if known is None:
        root = table[order[0]]
        fixed = [q for n, q in enumerate(root.params) if (order[0], n) not in changing]
        own = [n for n in range(len(callee.params)) if n == at or (name, n) in changing]
        atoms = {p: a for n, (p, a) in enumerate(zip(callee.params, call.args, strict=True)) if n not in own}
        for n, a in enumerate(call.args):
            first = any(a is q for q in fixed) or (of_request is not None and a not in of_request)
            if n not in own and isinstance(a, Var) and not first:
                changes.add(_change(callee, name, n))
        copier = place[name] = Copier(atoms, dict(dims), own_dims=True)
        for n in own:
            copier.bind(callee.params[n])
        number[name] = len(order)
        order.append(name)
        return
    for n, (p, a) in enumerate(zip(callee.params, call.args, strict=True)):
        if n != at and (name, n) not in changing and a is not known.atom(p):
            changes.add(_change(callee, name, n))
    sizes = known.dims if number[name] else {p: as_dim(p) for p in callee.type_params if isinstance(p, DimVar)}
    if any(sizes.get(v) != d for v, d in dims.items()):
        raise NotStructural(f"a recursive call of @{name} is at other sizes")


def _of_request(clause: Clause, only: bool) -> set[Var]:
    """What nodes cannot ask their request for, of a clause that says what is done with one: what is of the items of its lists, and, unless
    it is the ``only`` clause, all that is not the same in all requests: parts of it, and what follows from them."""
    out = {v for items in clause.lists.values() for v in (*items.parts(), *(b.var for b in items.code))}
    if not only:
        out.update(clause.parts)
        for binding in clause.bindings:
            if any(v in out for v in free_vars(binding.value)):
                out.add(binding.var)
    return out


def _change(callee: Function, name: str, number: int) -> tuple[str, int]:
    """A parameter that is not the same in all calls. Raises NotStructural where that cannot be handed down."""
    param = callee.params[number]
    changes = f"argument %{param.name} of @{name} changes from call to call"
    if param.ty is None or not made_of_tensors(param.ty):
        raise NotStructural(f"{changes} and is not made of tensors")
    for tensor in leaves(param.ty):
        dims = cast("tuple[Dim, ...]", tensor.shape)
        if any(is_any(d) or any(v not in callee.type_params for v in dim_vars(d)) for d in dims):
            raise NotStructural(f"{changes}, and may be of another size in each: {type_text(tensor)}")
        if DTYPE_BITS[cast(str, tensor.dtype)] < 8:
            raise NotStructural(f"{changes}, and rows of {type_text(tensor)} cannot be joined")
    return name, number


@record(slots=True, eq=False)
class _Reader:
    """Reads the decision tree of one function."""

    module: Module
    function: int
    first: int
    forms: Mapping[str, tuple[ListForm, Function]]
    alike: Alike
    cases: int = 0

    def tree(self, body: Block, parts: dict[Var, Path]) -> Tree:
        """The tree of a body over the structure that these variables are parts of. Iterative: trees are built when their arms
        are."""
        root = _Open(body, (), parts, {}, ())
        done: dict[_Open, Tree] = {}
        todo = [root]
        while todo:
            here = todo[-1]
            if not here.read:
                self._read(here)
            if not here.split:
                done[here] = self._clause(here)
                todo.pop()
                continue
            waiting = list(dict.fromkeys(a for a in here.arms if a is not None and a not in done))
            if waiting:
                todo += waiting
                continue
            done[here] = Switch(here.path, tuple(None if a is None else done[a] for a in here.arms))
            todo.pop()
        return done[root]

    def _clause(self, here: _Open) -> Tree:
        self.cases += 1
        tree = self.alike.add(Clause(self.function, tuple(here.code), here.result, here.parts, here.lists))
        if self.first + len(self.alike.clauses) > MAX_CLAUSES or self.cases > MAX_CASES:
            raise NotStructural("there are too many cases to tell apart")
        return tree

    def _read(self, here: _Open) -> None:
        """Go on to the next match, or to the end."""
        here.read = True
        while True:
            for position, binding in enumerate(here.block.bindings):
                value = binding.value
                if isinstance(value, If):
                    raise NotStructural("an `if` decides by computed data")
                if isinstance(value, Function):
                    raise NotStructural("a function is made inside the recursion")
                if isinstance(value, Match):
                    here.split = True
                    after = Block(here.block.bindings[position + 1 :], here.block.result, here.block.ty)
                    self._split(here, value, binding.var, after)
                    return
                if isinstance(value, Proj) and isinstance(value.tuple, Var) and value.tuple in here.parts:
                    here.parts[binding.var] = (*here.parts[value.tuple], value.index)
                elif isinstance(value, Var) and value in here.parts:
                    here.parts[binding.var] = here.parts[value]
                else:
                    if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in self.forms:
                        made, before = self._items(value, value.fn.name)
                        path = here.parts.get(made.source) if isinstance(made.source, Var) else None
                        if path is not None and path not in here.filled:
                            again = Block(here.block.bindings[position:], here.block.result, here.block.ty)
                            self._split_list(here, path, made.layout, again)
                            return
                        source = here.lists.get(made.source) if isinstance(made.source, Var) else None
                        empty = source.empty if source is not None else path is not None and not here.filled[path]
                        here.lists[binding.var] = replace(made, empty=empty)
                        here.code += before
                    here.code.append(binding)
            if not here.rest:
                here.result = here.block.result
                return
            (var, after), *rest = here.rest
            here.code.append(Binding(var, here.block.result))
            here.block, here.rest = after, tuple(rest)

    def _split(self, here: _Open, match: Match, var: Var, after: Block) -> None:
        path = here.parts.get(match.data) if isinstance(match.data, Var) else None
        ty = match.data.ty
        if path is None or not isinstance(ty, AdtType):
            raise NotStructural("a match looks at a computed value")
        definition = self.module.types[ty.name]
        arms: list[_Open | None] = [None] * len(definition.constructors)
        for clause in match.clauses:
            pattern = clause.pattern
            parts = dict(here.parts)
            tags: list[int]
            if isinstance(pattern, PConstructor):
                tags = [self.module.constructors[pattern.name].tag]
                for n, p in enumerate(pattern.fields):
                    if isinstance(p, PVar):
                        parts[p.var] = (*path, n)
            else:
                tags = [n for n, a in enumerate(arms) if a is None]
            arm = _Open(
                as_block(clause.body),
                tuple(here.code),
                parts,
                dict(here.lists),
                ((var, after), *here.rest),
                dict(here.filled),
            )
            for tag in tags:
                if arms[tag] is None:
                    arms[tag] = arm
        here.path, here.arms = path, arms

    def _split_list(self, here: _Open, path: Path, layout: Layout, again: Block) -> None:
        """Tell an empty list from one with items: what is done without items needs no level of its own."""
        full, empty = (
            _Open(again, tuple(here.code), dict(here.parts), dict(here.lists), here.rest, {**here.filled, path: filled})
            for filled in (True, False)
        )
        here.split, here.path = True, path
        here.arms = [full, empty] if layout.cons == 0 else [empty, full]

    def _items(self, call: Call, name: str) -> tuple[Items, tuple[Binding, ...]]:
        found = items_of(*self.forms[name], call)
        if found is None:
            raise NotStructural(f"the sizes of a call of @{name} are not known")
        return found


@record(slots=True, eq=False)
class _Open:
    """A place in the tree: the block to read next, the code so far, what follows the block (with the variable that its result is)."""

    block: Block
    before: tuple[Binding, ...]
    parts: dict[Var, Path]
    lists: dict[Var, Items]
    rest: tuple[tuple[Var, Block], ...]
    filled: dict[Path, bool] = field(default_factory=dict)  # the lists that were looked at: whether they have items
    read: bool = False
    split: bool = False
    path: Path = ()
    arms: list[_Open | None] = field(default_factory=list)
    code: list[Binding] = field(default_factory=list)
    result: Expr = field(default_factory=lambda: Tuple(()))

    def __post_init__(self) -> None:
        self.code = list(self.before)
