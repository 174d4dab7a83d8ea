"""Folds over the results of maps, as folds over what is mapped.

``let %ys = map(f, %xs); fold(%acc, %ys)`` is a loop over ``%xs`` that makes each item where it is put in, and no list of items:

    fold(%acc, %xs): match (%xs) { Nil => .., Cons(%x, %rest) => let %y = f(%x); .. fold(.., %rest) }

So a recurrent cell over the states of a node's children calls the recursion on a child itself, and is part of it (`batching.left_folds`).
Folds that add, or take the greater or the less, are left: a level sums up what it has as it is (`batching.lists`). But not where what
is mapped is lists that are gone through themselves: those are nodes, and the fold goes from one to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from typing import ClassVar, cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_vars
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Clause, Expr, Function, GlobalVar, Match, PVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import FuncType
from relay.transform.base import Pass
from relay.transform.batching.lists import ListForm, list_form
from relay.transform.blocks import (
    Forward,
    Scope,
    all_blocks,
    as_block,
    body_of,
    is_primitive,
    operands,
    with_each_nested,
)
from relay.transform.build import type_of
from relay.transform.copying import Copier, solve_dims
from relay.transform.list_walks import ListWalk, list_walk
from relay.typing.effects import Effects


@record(frozen=True, slots=True)
class FoldMaps(Pass):
    """Make one function of a recursion over a list and of the map whose result the list is, where nothing else reads that.

    Before: blocks, functions lifted, monomorphic up to dims. After: a call of a recursive function on the list that a map has just made
    is one of a function beside it that is given the map's list. Both are without effects, and not both may fail: items are made between
    the steps that read them.
    """

    name: ClassVar[str] = "fold_maps"

    def __call__(self, module: Module) -> Module:
        fuser = _Fuser(module)
        functions = {n: fuser.rewritten(f) for n, f in module.functions.items()}
        return module.with_functions(functions | fuser.made) if fuser.made else module


@record(slots=True, eq=False)
class _Fuser:
    module: Module
    made: dict[str, Function] = field(default_factory=dict)

    def rewritten(self, function: Function) -> Function:
        """The function with each such pair of calls as one."""
        gone: set[Var] = set()
        refused: set[tuple[Var, Var]] = set()
        while (found := self._pair(function, gone, refused)) is not None:
            source, mapped, folded = found
            fold = cast(Call, folded.value)
            call = self._joined(mapped, fold, source)
            if call is None:
                refused.add((source, folded.var))
                continue

            def visit(scope: Scope, var: Var, value: Expr, fold: Call = fold, call: Call = call) -> Expr:
                return call if value is fold else value

            gone.add(source)
            function = Forward(visit).function(function)
        return replace(function, body=run(_without(body_of(function), gone))) if gone else function

    def _pair(
        self, function: Function, gone: Collection[Var], refused: Collection[tuple[Var, Var]]
    ) -> tuple[Var, Call, Binding] | None:
        """A call whose result only one other call in the same block reads, and that one. Nothing is left of what is ``gone``."""
        if is_primitive(function):
            return None
        blocks = list(all_blocks(body_of(function)))
        uses = Counter(a for k in blocks for b in k.bindings if b.var not in gone for a in operands(b.value))
        uses.update(k.result for k in blocks)
        for block in blocks:
            calls: dict[Expr, Call] = {}
            for b in block.bindings:
                if b.var in gone or not isinstance(b.value, Call) or not isinstance(b.value.fn, GlobalVar):
                    continue
                for a in b.value.args:
                    if isinstance(a, Var) and a in calls and uses[a] == 1 and (a, b.var) not in refused:
                        return a, calls[a], b
                calls[b.var] = b.value
        return None

    def _joined(self, mapped: Call, fold: Call, var: Var) -> Call | None:
        """One call in the place of both; None where they are no map and a recursion over its list, or have effects."""
        mapper, walker = self._function(mapped), self._function(fold)
        if mapper is None or walker is None:
            return None
        names = cast(GlobalVar, mapped.fn).name, cast(GlobalVar, fold.fn).name
        form = list_form(self.module, names[0], mapper)
        source, walk = list_walk(self.module, names[0], mapper), list_walk(self.module, names[1], walker)
        if form is None or not form.is_map or source is None or walk is None or fold.args[walk.at] is not var:
            return None
        if list_form(self.module, names[1], walker) is not None and not self._goes_through_items(form):
            return None
        if not self._may_meet(mapper, walker):
            return None
        return self._made(mapped, mapper, form, source, fold, walker, walk)

    def _goes_through_items(self, form: ListForm) -> bool:
        """Whether what is done to an item is a map or fold itself: items are lists, and a level of them goes through all of these."""
        for value in (b.value for b in form.code):
            called = self._function(value) if isinstance(value, Call) and isinstance(value.fn, GlobalVar) else None
            if (
                called is not None
                and list_form(self.module, cast(GlobalVar, cast(Call, value).fn).name, called) is not None
            ):
                return True
        return False

    def _function(self, call: Call) -> Function | None:
        return self.made.get(cast(GlobalVar, call.fn).name) or self.module.functions.get(cast(GlobalVar, call.fn).name)

    def _may_meet(self, mapper: Function, walker: Function) -> bool:
        """Whether what the two do may be done in turns."""
        effects = Effects(self.module.with_functions({**self.module.functions, **self.made}))
        one, other = effects.latent(mapper), effects.latent(walker)
        apart = one & other & Effect.MAY_FAIL
        return not apart and not (one | other) & ~(Effect.MAY_FAIL | Effect.DIVERGES)

    def _made(
        self,
        mapped: Call,
        mapper: Function,
        form: ListForm,
        source: ListWalk,
        fold: Call,
        walker: Function,
        walk: ListWalk,
    ) -> Call | None:
        """Makes the function, in the caller's sizes first, and the call of it."""
        inner = solve_dims(mapper, mapped, [type_of(a) for a in mapped.args])
        outer = solve_dims(walker, fold, [type_of(a) for a in fold.args])
        if inner is None or outer is None:
            return None
        sizes = list(dict.fromkeys(v for d in (*inner.values(), *outer.values()) for v in dim_vars(d)))
        maps, folds = Copier(dims=dict(inner)), Copier(dims=dict(outer))
        given = [maps.bind(p) for p in mapper.params]
        others = [folds.bind(p) for n, p in enumerate(walker.params) if n != walk.at]
        params = (*others, *given)
        head = (
            maps.copy(Block(form.before, form.value)).bindings + folds.copy(Block(walk.head, walk.whole.var)).bindings
        )
        full, empty = maps.pattern(source.full.pattern), maps.pattern(source.empty.pattern)
        item = maps.copy(Block(form.code, form.value))
        first, rest = walk.pattern.fields[walk.layout.head], source.pattern.fields[source.layout.tail]
        if isinstance(first, PVar):
            folds.atoms[first.var] = item.result
        tail = walk.pattern.fields[walk.layout.tail]
        assert isinstance(tail, PVar) and isinstance(rest, PVar)
        folds.atoms[tail.var] = maps.atom(rest.var)
        ret = folds.type(type_of(walk.whole.var))
        assert ret is not None
        name = f"{cast(GlobalVar, fold.fn).name}__{cast(GlobalVar, mapped.fn).name}"
        while name in self.module.functions or name in self.made:
            name += "_"
        target = GlobalVar(name, FuncType(tuple(type_of(p) for p in params), ret, tuple(sizes)))
        own = tuple(map(as_dim, sizes))
        step = folds.copy(as_block(walk.full.body))
        again = _Again(cast(GlobalVar, fold.fn).name, target, walk.at, given, form.data, own)
        # (What makes an item may go through a list by the same function.)
        body = again.block(step)
        body = replace(body, bindings=(*item.bindings, *body.bindings))
        whole = Var("whole", None, ret)
        clauses = (Clause(full, body), Clause(empty, folds.copy(as_block(walk.empty.body))))
        match = Match(given[form.data], clauses, walk.match.complete, ty=ret)
        made = Function(
            params, Block((*head, Binding(whole, match)), whole, ret), ret, tuple(sizes), ty=target.ty, span=walker.span
        )
        copier = Copier(own_dims=True)
        copied = copier.function(made)
        dims = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(v)))) for v in sizes)
        assert isinstance(copied.ty, FuncType)
        self.made[name] = replace(copied, type_params=dims, ty=replace(copied.ty, type_params=dims))
        args = (*(a for n, a in enumerate(fold.args) if n != walk.at), *mapped.args)
        return Call(target, args, fold.attrs, own, fold.ty, fold.span)


def _without(block: Block, gone: Collection[Var]) -> Step[Block]:
    """The block without the bindings of these variables (which may not end, so that dead code they would not be)."""
    bindings: list[Binding] = []
    for b in block.bindings:
        if b.var not in gone:
            value = yield from with_each_nested(b.value, lambda inner: _without(inner, gone))
            bindings.append(b if value is b.value else Binding(b.var, value))
    return replace(block, bindings=tuple(bindings))


@record(frozen=True, slots=True, eq=False)
class _Again:
    """The calls by which a recursion over a list goes on, as ones of the function that makes its items too."""

    name: str
    target: GlobalVar
    at: int
    given: Sequence[Var]
    data: int
    dims: tuple[Dim, ...]

    def block(self, block: Block) -> Block:
        made = Forward(self._visit).function(Function((), block, None))
        return body_of(made)

    def _visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name != self.name:
            return value
        others = (a for n, a in enumerate(value.args) if n != self.at)
        maps = (value.args[self.at] if n == self.data else p for n, p in enumerate(self.given))
        return Call(self.target, (*others, *maps), value.attrs, self.dims, value.ty, value.span)
