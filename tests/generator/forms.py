"""The forms of the language that are not operators: each gives an expression of the wanted type, or None where it does not apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.op.build import call
from tests.generator.kinds import Adt, Fn, G, Ref, T, Tup, fits, sizes_of

if TYPE_CHECKING:
    from tests.generator.generator import Generator, Scope


def _let(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    bindings = []
    for _ in range(g.choices.between(1, 3)):
        kind = g.some_type()
        var = g.var(g.name("v"), kind, g.choices.chance(40) or isinstance(kind, Adt))
        bindings.append(Binding(var, g.expr(kind, scope, depth)))
        scope = (*scope, (var, kind))
    return Block(tuple(bindings), g.expr(want, scope, depth))


def _if(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    return If(g.condition(scope, depth), g.expr(want, scope, depth), g.expr(want, scope, depth))


def _project(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    for var, have in scope:
        if isinstance(have, Tup) and g.choices.chance(50):
            for n, f in enumerate(have.fields):
                if fits(f, want):
                    return Proj(var, n)
    position = g.choices.between(0, 1)
    fields = [g.some_type(), g.some_type()]
    fields[position] = want
    return Proj(Tuple(tuple(g.expr(f, scope, depth) for f in fields)), position)


def _match_option(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    element = g.tensor_type(unknown=False)
    var = Var(g.name("o"))
    some = Clause(PConstructor("Some", (PVar(var),)), g.expr(want, (*scope, (var, element)), depth))
    none = Clause(PConstructor("None"), g.expr(want, scope, depth))
    kind = Adt("Option", (element,))
    data = annotated(g, g.expr(kind, scope, depth), kind)  # it may be None on every path
    clauses = (some, none) if g.choices.chance(50) else (none, some)
    if g.choices.chance(20):
        clauses = (some, Clause(PWild(), none.body))
    return Match(data, clauses)


def annotated(g: Generator, e: Expr, kind: G) -> Expr:
    """``let %c: T = e; %c``: says the type of a constructor without fields."""
    var = g.var("c", kind)
    return Block((Binding(var, e),), var)


def _match_list(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    element = g.like(want)
    kind = Adt("List", (element,))
    first, second, rest = Var(g.name("h")), Var(g.name("h")), Var(g.name("t"))
    data = annotated(g, g.expr(kind, scope, depth), kind)
    nested: Pattern = PConstructor("Cons", (PVar(first), PConstructor("Cons", (PVar(second), PWild()))))
    inner = (*scope, (first, element))
    clauses = [
        Clause(nested, g.expr(want, (*inner, (second, element)), depth)),
        Clause(PConstructor("Cons", (PVar(rest), PWild())), g.expr(want, (*scope, (rest, element)), depth)),
        Clause(PConstructor("Nil"), g.expr(want, scope, depth)),
    ]
    if g.choices.chance(30):
        return Match(data, tuple(clauses[1:]))
    return Match(data, tuple(clauses), complete=g.choices.chance(80))


def _match_tuple(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    kinds: list[G] = [g.like(want), Adt("Option", (g.like(want),))]
    whole = Tup(tuple(kinds))
    a, b = Var(g.name("q")), Var(g.name("q"))
    option = kinds[1]
    assert isinstance(option, Adt)
    data = annotated(g, g.expr(whole, scope, depth), whole)
    some = PTuple((PVar(a), PConstructor("Some", (PVar(b),))))
    clauses = (
        Clause(some, g.expr(want, (*scope, (a, kinds[0]), (b, option.args[0])), depth)),
        Clause(PTuple((PWild(), PWild())), g.expr(want, scope, depth)),
    )
    return Match(data, clauses)


def _match_shape(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    area = Call(GlobalVar("area"), (g.expr(Adt("Shape", ()), scope, depth),))
    small = T((), "float32", False)
    var = Var(g.name("s"))
    value = g.tamed(area, small, 64.0)
    return Block((Binding(var, value),), g.expr(want, (*scope, (var, small)), depth))


def _local_call(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    kind = Fn(
        tuple(g.tensor_type(unknown=False) for _ in range(g.choices.between(0, 2))), want, pure=g.choices.chance(50)
    )
    var = g.var(g.name("f"), kind, annotate=False)
    made = g.function(kind, scope, depth)
    calls = g.choices.between(1, 2)
    args = [tuple(g.expr(p, scope, depth) for p in kind.params) for _ in range(calls)]
    if calls == 1 and g.choices.chance(30):
        return Call(made, args[0])
    first = g.var(g.name("v"), want, annotate=False)
    if calls == 1:
        return Block((Binding(var, made),), Call(var, args[0]))
    inner = (*scope, (first, want))
    return Block(
        (Binding(var, made), Binding(first, Call(var, args[0]))),
        If(g.condition(inner, depth), Call(var, args[1]), first),
    )


def _call_variable(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    found = [
        (v, h) for v, h in scope if isinstance(h, Fn) and fits(h.ret, want) and (h.pure or not g.pure) and not h.fuelled
    ]
    if not found:
        return None
    var, have = g.choices.pick(found)
    return Call(var, tuple(g.expr(p, scope, depth) for p in have.params))


def _reach(scope: Scope, kinds: tuple[G, ...], want: G) -> bool:
    """Whether every symbolic size of a result occurs in the parameters of the function that is to give it."""
    have = {s for k in kinds for s in sizes_of(k)}
    return all(isinstance(s, int) or s in have for s in sizes_of(want))


def _global_call(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    if g.globals_left <= 0:
        return None
    params: tuple[G, ...] = tuple(g.tensor_type() for _ in range(g.choices.between(1, 2)))
    if not _reach(scope, params, want):
        if not isinstance(want, T):
            return None
        params = (*params, want)
    kind = Fn(params, want, fuelled=g.nesting == 0 and g.choices.chance(50), pure=True)
    name = g.global_function(kind, depth)
    args = tuple(g.expr(p, scope, depth) for p in params)
    return Call(GlobalVar(name), (g.count(), *args) if kind.fuelled else args)


def _local_loop(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A recursive closure bound by let, such as front ends make of while loops."""
    if g.nesting:
        return None
    state = g.tensor_type(unknown=False)
    kind = Fn((state,), want, fuelled=True)
    loop = Var(g.name("loop"))
    var = g.var(g.name("p"), state)
    g.pure += 1
    made = g.recursive(kind, [(var, state)], (*scope, (var, state)), depth, loop)
    g.pure -= 1
    return Block((Binding(loop, made),), Call(loop, (g.count(), g.expr(state, scope, depth))))


def _knot(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A closure that calls itself through a reference."""
    if g.nesting or g.pure or not isinstance(want, T):
        return None
    kind = Fn((want,), want, fuelled=True, pure=False)
    cell = Var(g.name("k"))
    start = g.recursive(kind, [(v := g.var("p", want), want)], (*scope, (v, want)), 0, None)
    var = g.var("p", want)
    tied = g.recursive(kind, [(var, want)], (*scope, (var, want)), depth, RefRead(cell))
    return Block(
        (Binding(cell, RefNew(start)), Binding(Var("_"), RefWrite(cell, tied))),
        Call(RefRead(cell), (g.count(), g.expr(want, scope, depth))),
    )


def _new_reference(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    kind = g.tensor_type(unknown=False)
    cell = g.var(g.name("r"), Ref(kind), annotate=g.choices.chance(50))
    inner = (*scope, (cell, Ref(kind)))
    bindings = [Binding(cell, RefNew(g.expr(kind, scope, depth)))]
    for _ in range(g.choices.between(0, 2)):
        if not g.pure:
            bindings.append(Binding(Var("_"), RefWrite(cell, g.expr(kind, inner, depth))))
    return Block(tuple(bindings), g.expr(want, inner, depth))


def _read(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    cells = [v for v, h in scope if isinstance(h, Ref) and fits(h.value, want)]
    return RefRead(g.choices.pick(cells)) if cells and not g.pure else None


def _write_then(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """Write a reference, then go on: the order of evaluation shows."""
    cells = [(v, h.value) for v, h in scope if isinstance(h, Ref)]
    if not cells or g.pure:
        return None
    cell, kind = g.choices.pick(cells)
    write = RefWrite(cell, g.expr(kind, scope, depth))
    if g.choices.chance(50):
        return Proj(Tuple((write, g.expr(want, scope, depth))), 1)
    return Block((Binding(Var("_"), write),), g.expr(want, scope, depth))


def _history(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """Reads of a reference around a write, as operands of one tuple: order shows, and no two reads are the same."""
    if g.pure or not isinstance(want, T):
        return None
    cell, again, result = Var(g.name("r")), Var(g.name("r")), Var(g.name("v"))
    first = g.expr(want, scope, depth)
    inner = (*scope, (cell, Ref(want)))
    written = g.expr(want, inner, depth)
    write: Expr = Block((Binding(Var("_"), RefWrite(cell, written)),), RefRead(again if g.choices.chance(30) else cell))
    parts = (RefRead(cell), write, RefRead(cell))
    bindings = (Binding(cell, RefNew(first)), Binding(again, RefNew(first)), Binding(result, Tuple(parts)))
    picked = g.choices.between(0, 2)
    return Block(bindings, Proj(result, picked))


def _passed_tuple(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A tuple that no pass can see through: it comes out of a branch. Its first fields have one type."""
    if not isinstance(want, T):
        return None
    kind = Tup((want, want, g.tensor_type(unknown=False)))
    var = Var(g.name("u"))
    made = If(g.condition(scope, depth), g.expr(kind, scope, 0), g.expr(kind, scope, depth))
    return Block((Binding(var, made),), Proj(var, g.choices.between(0, 1)))


def _captures(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A closure over two values of one type that no pass can see through: both come out of branches."""
    if not isinstance(want, T):
        return None
    a, b, f = Var(g.name("w")), Var(g.name("w")), Var(g.name("f"))
    g.pure += 1
    values = [Binding(v, If(g.condition(scope, 0), g.expr(want, scope, 0), g.expr(want, scope, depth))) for v in (a, b)]
    inner = (*scope, (a, want), (b, want))
    first = Function((), call("where", g.expr(want.of("bool"), inner, 0), a, b))
    second = Function((), g.expr(want, inner, depth))
    chosen = If(g.condition(inner, 0), first, second)
    g.pure -= 1
    return Block((*values, Binding(f, chosen)), Call(f, ()))


def _ladder(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """Several tensors that no kernel joins, alive together until the last is there."""
    if not isinstance(want, T) or not want.is_float or want.exact or not want.shape:
        return None
    rungs: list[Var] = []
    bindings = []
    below = g.expr(want, scope, depth)
    for n in range(g.choices.between(3, 4)):
        name = g.choices.pick(("nn.softmax", "cumsum", "nn.log_softmax"))
        rung = call(name, below, axis=g.choices.between(0, len(want.shape) - 1))
        var = Var(g.name("l"))
        bindings.append(Binding(var, call("tanh", rung)))
        rungs.append(var)
        below = call("multiply", var, rungs[g.choices.between(0, n)])
    out: Expr = rungs[-1]
    for rung_var in g.choices.shuffled(rungs[:-1]):
        out = call("subtract", out, rung_var)
    return Block(tuple(bindings), g.tamed(out, want, 4.0))


def _shared(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    """A graph binding used on several paths."""
    g.pure += 1
    kind = want if g.choices.chance(60) else g.tensor_type(unknown=False)
    node = g.expr(kind, scope, depth)
    g.pure -= 1
    if not fits(kind, want):
        a, b = Var(g.name("w")), Var(g.name("w"))
        inner = (*scope, (a, kind), (b, kind))
        return Block((Binding(a, node), Binding(b, node)), g.expr(want, inner, depth))
    if g.choices.chance(50):
        return If(g.condition(scope, depth), node, If(g.condition(scope, depth), g.expr(want, scope, depth), node))
    return Proj(Tuple((node, Tuple((node, g.expr(want, scope, depth))))), 0)


def _fold(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    element = g.tensor_type(unknown=False)
    kind = Adt("List", (element,))
    items = annotated(g, g.expr(kind, scope, depth), kind)
    zero = g.expr(want, scope, depth)
    if g.choices.chance(50):
        f = g.function(Fn((want, element), want), scope, depth)
        return Call(GlobalVar("list_fold"), (f, zero, items))
    f = g.function(Fn((element, want), want), scope, depth)
    return Call(GlobalVar("list_foldr"), (f, zero, items))


def _tree_fold(g: Generator, want: G, scope: Scope, depth: int) -> Expr:
    element = g.tensor_type(unknown=False)
    kind = Adt("Tree", (element,))
    leaf = g.function(Fn((element,), want), scope, depth)
    node = g.function(Fn((want, want), want), scope, depth)
    return Call(GlobalVar("tree_fold"), (leaf, node, annotated(g, g.expr(kind, scope, depth), kind)))


def _library(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A call of one of the library's polymorphic functions."""
    element = g.tensor_type(unknown=False)
    match g.choices.between(0, 4):
        case 0 if isinstance(want, Adt) and want.name == "List":
            kind = Adt("List", (element,))
            f = g.function(Fn((element,), want.args[0]), scope, depth)
            return Call(GlobalVar("list_map"), (f, annotated(g, g.expr(kind, scope, depth), kind)))
        case 1 if isinstance(want, T):
            kind = Adt("Option", (want,))
            option = annotated(g, g.expr(kind, scope, depth), kind)
            return Call(GlobalVar("option_or"), (option, g.expr(want, scope, depth)))
        case 2 if isinstance(want, T) and not g.nesting:
            f = g.function(Fn((want,), want), scope, depth)
            return Call(GlobalVar("repeat"), (g.count(), f, g.expr(want, scope, depth)))
        case 3 if isinstance(want, T):
            first = g.function(Fn((element,), want), scope, depth)
            second = g.function(Fn((element,), element), scope, depth)
            made = Call(GlobalVar("compose"), (first, second))
            return Call(made, (g.expr(element, scope, depth),))
        case 4 if isinstance(want, T):
            kind = Adt("List", (want,))
            items = annotated(g, g.expr(kind, scope, depth), kind)
            return Call(GlobalVar("list_head"), (items, g.expr(want, scope, depth)))
        case _:
            return None


def _rows(g: Generator, want: G, scope: Scope, depth: int) -> Expr | None:
    """A function generic in a size, given values whose sizes are unknown: checked at run time."""
    if not isinstance(want, T) or want.shape not in (("?0", 4), ("n", 4)) or want.dtype != "float32" or want.exact:
        return None
    token = want.shape[0]
    loose = token if g.choices.chance(50) else "?0" if token == "?0" else token
    return Call(GlobalVar("rows"), (g.expr(want, scope, depth), g.expr(T((loose,), "float32", False), scope, depth)))


FORMS = (
    _history,
    _passed_tuple,
    _captures,
    _ladder,
    _let, _if, _project, _shared, _match_option, _match_list, _match_tuple, _match_shape, _local_call, _call_variable, _global_call,
    _local_loop, _knot, _new_reference, _read, _write_then, _read, _write_then, _fold, _tree_fold, _library, _rows,
)  # fmt: skip
