"""Nested patterns become decision trees: matches that look at one constructor each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, cast

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Expr,
    Function,
    Match,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    Var,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, ConstructorDef, FuncType, TupleType, Type
from relay.ir.walk import pattern_vars
from relay.transform.base import Pass
from relay.transform.blocks import (
    Forward,
    Scope,
    as_block,
    body_of,
    is_primitive,
    map_functions,
    nested_blocks,
    with_each_nested,
)
from relay.transform.copying import Copier
from relay.typing.substitution import substitute


@record(frozen=True, slots=True)
class CompileMatch(Pass):
    """Compile matches to decision trees.

    Before: typed blocks. After: every clause of a match has a constructor pattern whose fields are variables or
    wildcards, or is a wildcard at the end; no constructor occurs twice; tuples are projected. A clause that several
    leaves reach is a local function, called from each (copied where it has no bindings). A complete match stays
    complete; in a partial one what is missing is missing.
    """

    name: ClassVar[str] = "compile_match"

    def __call__(self, module: Module) -> Module:
        def compile_function(function: Function) -> Function:
            if is_primitive(function):
                return function
            body = run(_Compiler(module).block(body_of(function)))
            if body is function.body:
                return function
            # What patterns bound at the top is now another name for the matched value: the driver substitutes it.
            return Forward(_same).function(replace(function, body=body))

        return map_functions(module, compile_function)


def _same(scope: Scope, var: Var, value: Expr) -> Expr:
    return value


def is_flat(match: Match) -> bool:
    """Whether a match looks at one constructor only."""
    seen: set[str] = set()
    for n, clause in enumerate(match.clauses):
        p = clause.pattern
        if isinstance(p, PWild):
            return n == len(match.clauses) - 1
        if not isinstance(p, PConstructor) or p.name in seen or not all(isinstance(f, PVar | PWild) for f in p.fields):
            return False
        seen.add(p.name)
    return True


@record(frozen=True, slots=True, eq=False)
class _Row:
    """What is left to match of a clause: patterns by the variable that they look at, in order, and what has been
    bound."""

    tests: tuple[tuple[Expr, Pattern], ...]
    bound: tuple[tuple[Var, Expr], ...]
    clause: int


@record(frozen=True, slots=True, eq=False)
class _Leaf:
    row: _Row


@record(frozen=True, slots=True, eq=False)
class _Fail:
    """No clause fits."""


@record(frozen=True, slots=True, eq=False)
class _Split:
    """Fields of a tuple, then what looks at them."""

    data: Expr
    fields: tuple[Var, ...]
    tree: _Tree


@record(frozen=True, slots=True, eq=False)
class _Switch:
    """One constructor test. ``default`` is None where every constructor has a case."""

    data: Expr
    cases: tuple[tuple[ConstructorDef, tuple[Var | None, ...], _Tree], ...]
    default: _Tree | None


_Tree = _Leaf | _Fail | _Split | _Switch


@record(slots=True, eq=False)
class _Compiler:
    module: Module

    def block(self, block: Block) -> Step[Block]:
        out: list[Binding] = []
        changed = False
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Match) and not is_flat(value):
                compiled = yield self.match(value)
                out += compiled.bindings
                out.append(Binding(binding.var, compiled.result))
                changed = True
                continue
            if nested_blocks(value):
                value = yield with_each_nested(value, self.block)
            changed |= value is not binding.value
            out.append(binding if value is binding.value else Binding(binding.var, value))
        return Block(tuple(out), block.result, block.ty, block.span) if changed else block

    def match(self, e: Match) -> Step[Block]:
        """The tree for one match, as a block to put in its place."""
        rows = [_row(((e.data, c.pattern),), (), n) for n, c in enumerate(e.clauses)]
        tree = yield self.tree(rows)
        leaves = Counter(_leaf_clauses(tree))
        before: list[Binding] = []
        bodies: list[_Body] = []
        for n, c in enumerate(e.clauses):
            body = yield self.block(as_block(c.body))
            variables = tuple(pattern_vars(c.pattern))
            join: Var | None = None
            if leaves[n] > 1 and body.bindings:
                ty = FuncType(tuple(_typed(v.ty) for v in variables), _typed(e.ty))
                join = Var("clause", None, ty)
                before.append(Binding(join, Function(variables, body, e.ty, ty=ty, span=body.span)))
            bodies.append(_Body(variables, body, join, leaves[n] > 1))
        result = yield self.emit(tree, bodies, e)
        return Block((*before, *result.bindings), result.result, e.ty, e.span)

    def tree(self, rows: Sequence[_Row]) -> Step[_Tree]:
        if not rows:
            return _Fail()
        first = rows[0]
        if not first.tests:
            return _Leaf(first)
        data, pattern = first.tests[0]
        if isinstance(pattern, PTuple):
            assert isinstance(data.ty, TupleType), "a tuple pattern for something that is no tuple"
            fields = tuple(Var(f"f{n}", None, t) for n, t in enumerate(data.ty.fields))
            inner = yield self.tree([_expand(r, data, fields) for r in rows])
            return _Split(data, fields, inner)
        assert isinstance(data.ty, AdtType), "a constructor pattern for something that is no algebraic value"
        definition = self.module.types[data.ty.name]
        tested = {p.name for r in rows for x, p in r.tests if x is data and isinstance(p, PConstructor)}
        cases: list[tuple[ConstructorDef, tuple[Var | None, ...], _Tree]] = []
        for c in definition.constructors:
            if c.name not in tested:
                continue
            chosen = [(r, _test(r, data)) for r in rows]
            chosen = [(r, p) for r, p in chosen if p is None or p.name == c.name]
            wanted = {n for _, p in chosen if p is not None for n, f in enumerate(p.fields) if not isinstance(f, PWild)}
            types = [cast(Type, substitute(f, definition.params, data.ty.args)) for f in c.fields]
            variables = tuple(
                Var(f"{c.name.lower()}{n}", None, t) if n in wanted else None for n, t in enumerate(types)
            )
            inner = yield self.tree([_expand(r, data, variables) for r, _ in chosen])
            cases.append((c, variables, inner))
        default: _Tree | None = None
        if len(cases) < len(definition.constructors):
            default = yield self.tree([r for r in rows if _test(r, data) is None])
        return _Switch(data, tuple(cases), default)

    def emit(self, tree: _Tree, bodies: Sequence[_Body], e: Match) -> Step[Block]:
        match tree:
            case _Leaf():
                return bodies[tree.row.clause].at(dict(tree.row.bound), e.ty)
            case _Split():
                fields = tuple(Binding(v, Proj(tree.data, n, v.ty)) for n, v in enumerate(tree.fields))
                inner = yield self.emit(tree.tree, bodies, e)
                return Block((*fields, *inner.bindings), inner.result, e.ty, e.span)
            case _Switch() | _Fail():
                clauses: list[Clause] = []
                partial = isinstance(tree, _Fail) or isinstance(tree.default, _Fail)
                if isinstance(tree, _Switch):
                    for c, variables, sub in tree.cases:
                        pattern = PConstructor(c.name, tuple(PWild() if v is None else PVar(v) for v in variables))
                        clauses.append(Clause(pattern, (yield self.emit(sub, bodies, e))))
                    if tree.default is not None and not partial:
                        clauses.append(Clause(PWild(), (yield self.emit(tree.default, bodies, e))))
                data = tree.data if isinstance(tree, _Switch) else e.data
                var = Var("m", None, e.ty)
                flat = Match(data, tuple(clauses), e.complete or not partial, e.ty, e.span)
                return Block((Binding(var, flat),), var, e.ty, e.span)


@record(frozen=True, slots=True, eq=False)
class _Body:
    """A clause's body: in place where one leaf reaches it, else a call of ``join``, or a copy when it has no
    bindings."""

    variables: tuple[Var, ...]
    block: Block
    join: Var | None
    copied: bool

    def at(self, bound: dict[Var, Expr], ty: Type | None) -> Block:
        if self.join is not None:
            var = Var("r", None, ty)
            call = Call(self.join, tuple(bound[v] for v in self.variables), ty=ty, span=self.block.span)
            return Block((Binding(var, call),), var, ty)
        if self.copied:
            return Copier(dict(bound)).copy(self.block)
        names = tuple(Binding(v, bound[v]) for v in self.variables)
        return Block((*names, *self.block.bindings), self.block.result, self.block.ty, self.block.span)


def _typed(ty: Type | None) -> Type:
    assert ty is not None, "compiling matches needs a typed program"
    return ty


def _row(tests: Sequence[tuple[Expr, Pattern]], bound: tuple[tuple[Var, Expr], ...], clause: int) -> _Row:
    """A row without the tests that always succeed."""
    kept: list[tuple[Expr, Pattern]] = []
    for data, p in tests:
        if isinstance(p, PVar):
            bound = (*bound, (p.var, data))
        elif not isinstance(p, PWild):
            kept.append((data, p))
    return _Row(tuple(kept), bound, clause)


def _test(row: _Row, data: Expr) -> PConstructor | None:
    """The constructor that a row asks for at this place; None when it takes any."""
    for x, p in row.tests:
        if x is data and isinstance(p, PConstructor):
            return p
    return None


def _expand(row: _Row, data: Expr, fields: Sequence[Var | None]) -> _Row:
    """The row after its test of ``data`` has succeeded: the patterns of the fields come in its place."""
    tests: list[tuple[Expr, Pattern]] = []
    for x, p in row.tests:
        if x is data and isinstance(p, PConstructor | PTuple):
            tests += ((v, f) for v, f in zip(fields, p.fields, strict=True) if v is not None)
        else:
            tests.append((x, p))
    return _row(tests, row.bound, row.clause)


def _leaf_clauses(root: _Tree) -> list[int]:
    """The clause of every leaf."""
    out: list[int] = []
    todo: list[_Tree] = [root]
    while todo:
        match todo.pop():
            case _Leaf(row=row):
                out.append(row.clause)
            case _Split(tree=inner):
                todo.append(inner)
            case _Switch() as switch:
                todo += (sub for _, _, sub in switch.cases)
                if switch.default is not None:
                    todo.append(switch.default)
            case _Fail():
                pass
    return out
