"""What evaluating an expression can do besides giving a value, found by a fixpoint over the calls of a module.

The effects of a function value are latent: making it is pure, calling it is not. A callee that is not a known function
(a parameter, a field of a value) has all effects. Recursion may not end, so it diverges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from relay.ir.diagnostics import RelayError
from relay.ir.dim import DimVar, SymDim, dim_bounds
from relay.ir.effects import ALL_EFFECTS, INTERNAL, Effect
from relay.ir.expr import (
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    If,
    Match,
    OpRef,
    RefNew,
    RefRead,
    RefWrite,
    Var,
)  # fmt: skip
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, Type, TypeArg, TypeVar, mentions_any
from relay.ir.walk import children, post_order
from relay.op import registry
from relay.typing.inference import expand
from relay.typing.relations import solved_signature

# What is there already, and functions, whose effects are those of calling them.
_PURE = frozenset((Var, GlobalVar, Constant, OpRef, ConstructorRef, Function))


@record(slots=True, eq=False)
class Effects:
    """Effects of the expressions of a typed module. Answers are kept, so asking for every node of a program is linear.

    A local variable is known to be a function when a block of the module binds it to one; a pass that binds new ones
    says so by `bind`, else a call of them has all effects. ``may_fail`` says of a call of an operator without effects whether it may fail
    all the same. ``checked``: what is demanded of sizes that have names stands as checks beside the calls that demand it, as after
    `relay.transform.name_dims.NameDims`; before, such calls may fail themselves."""

    module: Module
    may_fail: Callable[[Call], bool] | None = None
    checked: bool = True
    _bound: dict[Var, Function] | None = None
    _latent: dict[Function, Effect] = field(default_factory=dict)
    # The nodes are kept with the answers, so that an id stands for one node only.
    _memo: dict[int, tuple[Expr, Effect]] = field(default_factory=dict)

    def bind(self, var: Var, fn: Function) -> None:
        """Say that a variable holds this function."""
        self._variables()[var] = fn

    def of(self, expr: Expr) -> Effect:
        """The effects of evaluating an expression."""
        if type(expr) in _PURE:
            return Effect.PURE
        found = self._memo.get(id(expr))
        if found is not None:
            return found[1]
        return self._evaluate(expr)

    def of_call(self, callee: Expr) -> Effect:
        """The latent effects of calling the value of an expression that is not an operator."""
        out = Effect.PURE
        for fn in self._callees(callee):
            out |= ALL_EFFECTS if fn is None else self.latent(fn)
        return out

    def latent(self, fn: Function) -> Effect:
        """The effects of calling a function."""
        found = self._latent.get(fn)
        if found is None:
            self._solve(fn)
            found = self._latent[fn]
        return found

    # -- functions

    def _variables(self) -> dict[Var, Function]:
        if self._bound is None:
            self._bound = {}
            for fn in self.module.functions.values():
                self._scan(fn)
        return self._bound

    def _scan(self, root: Expr) -> None:
        assert self._bound is not None
        for node in post_order(root):
            if isinstance(node, Block):
                for b in node.bindings:
                    if isinstance(b.value, Function):
                        self._bound[b.var] = b.value

    def _callees(self, callee: Expr) -> list[Function | None]:
        """The functions that an expression may be; None for one that is not known."""
        out: list[Function | None] = []
        todo = [callee]
        while todo:
            match todo.pop():
                case Function() as fn:
                    out.append(fn)
                case GlobalVar() as g:
                    out.append(self.module.functions.get(g.name))
                case Var() as v:
                    out.append(self._variables().get(v))
                case If() as e:
                    todo += (e.then, e.orelse)
                case Match() as e:
                    todo += (c.body for c in e.clauses)
                case Block() as e:
                    todo.append(e.result)
                case Grad() as e:
                    todo.append(e.fn)
                case ConstructorRef() | OpRef():
                    pass
                case _:
                    out.append(None)
        return out

    def _solve(self, root: Function) -> None:
        """The latent effects of a function and of all it reaches: groups that call each other share theirs."""
        own: dict[Function, Effect] = {}
        edges: dict[Function, list[Function]] = {}
        todo = [root]
        while todo:
            fn = todo.pop()
            if fn in own or fn in self._latent:
                continue
            effects, called = Effect.PURE, dict[Function, None]()
            for node in _outside_functions(fn.body):
                effects |= self._direct(node)
                if isinstance(node, Call) and not isinstance(node.fn, OpRef):
                    effects |= self._coercions(node)
                    for callee in self._callees(node.fn):
                        if callee is None:
                            effects |= ALL_EFFECTS
                        else:
                            called[callee] = None
            own[fn], edges[fn] = effects, list(called)
            todo += called
        for group in components({fn: [c for c in called if c in own] for fn, called in edges.items()}):
            recursive = len(group) > 1 or group[0] in edges[group[0]]
            total = Effect.DIVERGES if recursive else Effect.PURE
            for fn in group:
                total |= own[fn]
                for callee in edges[fn]:
                    total |= self._latent.get(callee, Effect.PURE)
            for fn in group:
                self._latent[fn] = total

    # -- expressions

    def _direct(self, node: Expr) -> Effect:
        """What a node does itself, its parts and the functions that it calls left aside."""
        match node:
            case Call() if isinstance(node.fn, OpRef):
                return self._operator(node, node.fn.name)
            case Match():
                return Effect.PURE if node.complete else Effect.MAY_FAIL
            case RefNew():
                return Effect.ALLOCATES
            case RefRead():
                return Effect.READS
            case RefWrite():
                return Effect.WRITES
            case _:
                return Effect.PURE

    def _operator(self, e: Call, name: str) -> Effect:
        internal = INTERNAL.get(name)
        if internal is not None:
            return internal
        found = self.declared(e)
        return Effect.MAY_FAIL if not found and self.may_fail is not None and self.may_fail(e) else found

    def declared(self, e: Call) -> Effect:
        """The effects of a call of an operator, as it declares them and by what it demands of sizes."""
        assert isinstance(e.fn, OpRef)
        op = registry.get(e.fn.name)
        args: list[Type] = []
        for a in e.args:
            if a.ty is None:
                return op.effects | Effect.MAY_FAIL
            args.append(a.ty)
        if op.kind == "composition":
            return op.effects | self.latent(expand(op, tuple(args), e.attrs))
        # A demand about a `?` is checked when the call runs.
        if not any(map(mentions_any, args)) and (self.checked or op.kind == "routine"):
            return op.effects
        try:
            got = solved_signature(op, tuple(args), e.attrs)
        except RelayError:
            return op.effects | Effect.MAY_FAIL
        return op.effects | Effect.MAY_FAIL if got.demands else op.effects

    def _evaluate(self, root: Expr) -> Effect:
        memo = self._memo
        todo: list[tuple[Expr, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if id(node) in memo:
                continue
            kids = [k for k in children(node) if type(k) not in _PURE]
            if not ready and kids:
                todo.append((node, True))
                todo += [(k, False) for k in kids if id(k) not in memo]
                continue
            effects = self._direct(node)
            for kid in kids:
                more = memo[id(kid)][1]
                if more is not effects:  # mostly both are none
                    effects |= more
            if isinstance(node, Call) and not isinstance(node.fn, OpRef):
                effects |= self._coercions(node) | self.of_call(node.fn)
            memo[id(node)] = (node, effects)
        return memo[id(root)][1]

    def _coercions(self, e: Call) -> Effect:
        """An argument of a ``?`` size where a known one is expected is checked at the call, and so are the bounds of a size."""
        t = e.fn.ty
        if isinstance(t, FuncType) and any(a.ty is None or mentions_any(a.ty) for a in e.args):
            return Effect.MAY_FAIL
        if self.checked:
            return Effect.PURE
        callees = [fn for fn in self._callees(e.fn) if fn is not None]
        within = all(_is_within(p, d) for fn in callees for p, d in zip(fn.type_params, e.type_args, strict=False))
        return Effect.PURE if within else Effect.MAY_FAIL


def _is_within(parameter: TypeVar | DimVar, given: TypeArg) -> bool:
    """Whether a size is known to be within the bounds of the parameter that it is given for."""
    if not isinstance(parameter, DimVar) or not isinstance(given, int | SymDim):
        return True
    least, most = dim_bounds(given)
    above = least is not None and least >= parameter.lo
    return above and (parameter.hi is None or (most is not None and most <= parameter.hi))


def _outside_functions(root: Expr) -> list[Expr]:
    """Every node once, the bodies of functions inside left out, and what does nothing."""
    out: list[Expr] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if type(node) not in _PURE and id(node) not in seen:
            seen.add(id(node))
            out.append(node)
            todo += children(node)
    return out
