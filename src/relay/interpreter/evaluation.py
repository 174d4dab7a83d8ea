"""The definitional interpreter: the meaning of the language, after the operational semantics of the Relay papers (appendix of the
2019 paper, and chapter 6.1 of the 2020 dissertation).

Evaluation is strict and goes left to right. It is a machine with an explicit stack of continuations, so neither the length of a
program nor the depth of its own calls uses the Python stack; a call in tail position leaves nothing on it. Frozen nodes are
evaluated as they are; nothing is compiled, and operators are evaluated from their own expressions (`relay.interpreter.operators`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never, cast

import numpy as np

from relay.interpreter.arguments import argument_values, python_value
from relay.interpreter.operators import apply_operator, check_arity, compose
from relay.interpreter.patterns import matches
from relay.interpreter.scopes import ATOMS, analyse
from relay.interpreter.sizes import (
    SizeCheck,
    Unsettled,
    as_precise,
    as_typed,
    check_sizes,
    concrete_attrs,
    dim_value,
    is_known,
    settle,
    size_checks,
)
from relay.interpreter.values import (
    Closure,
    ConstructorValue,
    Environment,
    OperatorValue,
    Reference,
    Value,
    kind_of,
)  # fmt: skip
from relay.ir.diagnostics import ExecutionError, OutOfMemoryError, RelayError, ShapeError
from relay.ir.dim import Dim, DimVar
from relay.ir.effects import CHECK_EQUAL, CLOSURE
from relay.ir.expr import (
    Attrs,
    Block,
    Call,
    Clause,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    If,
    Match,
    OpRef,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import FuncType, mentions_any
from relay.ir.value import AdtValue
from relay.ir.walk import children
from relay.op import registry

RECURSION_LIMIT = 500_000


Watch: TypeAlias = Callable[[Span | None, object], None]


NO_NAMES: Final[Mapping[str, object]] = MappingProxyType({})


def evaluate(
    module: Module,
    *args: object,
    entry: str = "main",
    recursion_limit: int = RECURSION_LIMIT,
    watch: Watch | None = None,
    named: Mapping[str, object] = NO_NAMES,
) -> object:
    """The value of ``@entry`` applied to the arguments, by place and behind these ``named`` ones.

    Arguments are arrays (anything `numpy.asarray` takes; of exactly the parameter's dtype, except plain Python numbers), tuples,
    lists for ``List``, ``None`` or a value for ``Option``, and algebraic values. Results are NumPy arrays (rank 0 for scalars),
    tuples, lists, ``None`` or a value, and `AdtValue`. ``recursion_limit`` bounds the number of pending calls. ``watch`` is told
    the result of every operator, in order, with the place of its call.

    Raises ShapeError and TypeError_ for arguments that do not fit and for sizes that disagree at run time, ExecutionError for a
    match without a matching clause, for `grad`, and for recursion that is too deep.
    """
    function = module.function(entry)
    machine = Machine(module, recursion_limit, watch)
    try:
        values = argument_values(module, function, entry, args, named)
        result = machine.run(machine.global_closure(entry, None), values)
    except RelayError as error:
        error.with_source(module.sources)
        raise
    except MemoryError as error:
        raise OutOfMemoryError(f"out of memory in the interpreter: {error}") from error
    return python_value(result)


@record(slots=True)
class Pending:
    """An expression to evaluate in an environment."""

    expr: Expr
    env: Environment


State: TypeAlias = "Pending | Value"

# -- continuations: what is still to be done with a value


@record(slots=True)
class Operands:
    """Evaluate the remaining children of a node, left to right, then apply the node."""

    node: Expr
    env: Environment
    kids: tuple[Expr, ...]
    done: list[Value]


@record(slots=True)
class Bind:
    """Bind the value to a block's variable number ``index`` and go on."""

    block: Block
    env: Environment
    index: int


@record(slots=True)
class Choose:
    """Go on with a branch of an ``if`` or a clause of a ``match``, by ``value`` once that is there."""

    node: If | Match
    env: Environment
    value: Value | None = None


@record(slots=True)
class Remember:
    """The value is that of a shared node."""

    node: Expr
    env: Environment


@record(slots=True)
class Before:
    """Forget the value (it has been remembered) and evaluate the function that captures it."""

    node: Function
    env: Environment


@record(slots=True)
class Return:
    """The boundary of a call."""

    name: str


@record(slots=True)
class CheckResult:
    """The value is the result of a function whose signature says more about sizes than its body's type does."""

    checks: tuple[SizeCheck, ...]
    env: Environment
    name: str
    span: Span | None


Frame = Operands | Bind | Choose | Remember | Before | Return | CheckResult


class Machine:
    """The machine for one evaluation of a module."""

    def __init__(self, module: Module, recursion_limit: int, watch: Watch | None = None) -> None:
        self.module = module
        self.watch = watch
        self.limit = recursion_limit
        self.depth = 0
        self.stack: list[Frame] = []
        self._globals: dict[str, Closure] = {}
        self._checks: dict[Var, tuple[SizeCheck, ...]] = {}
        self._result_checks: dict[Function, tuple[SizeCheck, ...]] = {}
        self._operator_checks: dict[Call, tuple[SizeCheck, ...]] = {}

    # -- the loop

    def run(self, callee: Value, args: Sequence[Value]) -> Value:
        """Apply a function value and run until its result is there."""
        state = self.apply(callee, list(args), None, None)
        stack = self.stack
        while True:
            # A state is a value, or an expression to evaluate in an environment.
            if isinstance(state, Pending):
                state = self.step(state.expr, state.env)
            elif stack:
                state = self.resume(stack.pop(), state)
            else:
                return state

    def step(self, node: Expr, env: Environment) -> State:
        """Evaluate an expression as far as its first proper subexpression."""
        scopes = env.scopes
        if node in scopes.shared:
            known = env.values.get(node)
            if known is not None:
                return known
        if isinstance(node, Function) and node in scopes.before:
            for shared in scopes.before[node]:
                if shared not in env.values:
                    self.stack.append(Before(node, env))
                    return Pending(shared, env)
        if node in scopes.shared:
            self.stack.append(Remember(node, env))
        match node:
            case Call() | Tuple() | Proj() | RefNew() | RefRead() | RefWrite():
                return self.operands(Operands(node, env, children(node), []))
            case Block():
                if not node.bindings:
                    return Pending(node.result, env)
                self.stack.append(Bind(node, env, 0))
                return Pending(node.bindings[0].value, env)
            case If():
                self.stack.append(Choose(node, env))
                return Pending(node.cond, env)
            case Match():
                self.stack.append(Choose(node, env))
                return Pending(node.data, env)
            case Function():
                return self.closure(node, env)
            case Grad():
                raise ExecutionError(
                    "grad has no value of its own: it stands for the program that differentiation makes of it",
                    node.span,
                    hint="differentiate the module before evaluating it",
                )
            case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
                return self.atom(node, env)
            case _:
                assert_never(node)

    def resume(self, frame: Frame, value: Value) -> State:
        """Give a value to the continuation on top of the stack."""
        match frame:
            case Operands():
                frame.done.append(value)
                return self.operands(frame)
            case Bind():
                return self.bind(frame, value)
            case Choose():
                if frame.value is None:
                    frame.value = value
                return self.choose(frame, frame.value)
            case Remember():
                frame.env.values[frame.node] = value
                return value
            case Before():
                return Pending(frame.node, frame.env)
            case Return():
                self.depth -= 1
                return value
            case CheckResult():
                check_sizes(frame.checks, value, frame.env.dims, f"the result of {frame.name}", frame.span)
                return value
            case _:
                assert_never(frame)

    # -- expressions

    def atom(self, node: Var | GlobalVar | Constant | OpRef | ConstructorRef, env: Environment) -> Value:
        match node:
            case Var():
                value = env.values.get(node)
                if value is None:
                    raise ExecutionError(f"the variable %{node.name} has no value here", node.span)
                return value
            case Constant():
                return np.asarray(node.data)
            case GlobalVar():
                return self.global_closure(node.name, node.span)
            case OpRef():
                return OperatorValue(node.name)
            case ConstructorRef():
                definition = self.module.constructors.get(node.name)
                if definition is None:
                    raise ExecutionError(f"no constructor {node.name} in the module", node.span)
                return ConstructorValue(definition)
            case _:
                assert_never(node)

    def global_closure(self, name: str, span: Span | None) -> Closure:
        found = self._globals.get(name)
        if found is None:
            function = self.module.functions.get(name)
            if function is None:
                raise ExecutionError(f"no function @{name} in the module", span)
            found = self._globals[name] = Closure(function, {}, {}, analyse(function), f"@{name}")
        return found

    def closure(self, node: Function, env: Environment) -> Closure:
        """A closure over its free variables. A function that is being bound by let may mention the variable it is bound to."""
        top = self.stack[-1] if self.stack else None
        own = top.block.bindings[top.index] if isinstance(top, Bind) else None
        itself = own.var if own is not None and own.value is node else None
        captured: dict[Expr, Value] = {}
        for what in env.scopes.captures.get(node, ()):
            if what is itself:
                continue
            value = env.values.get(what)
            if value is None:
                shown = f"the variable %{what.name}" if isinstance(what, Var) else "an expression"
                raise ExecutionError(f"{shown} has no value where a function uses it", what.span)
            captured[what] = value
        name = f"%{itself.name}" if itself is not None else "a function"
        made = Closure(node, captured, env.dims, env.scopes, name)
        if itself is not None:
            captured[itself] = made
        return made

    def operands(self, frame: Operands) -> State:
        """Evaluate operands until one needs a step of its own; apply the node when all are there."""
        kids, done, env = frame.kids, frame.done, frame.env
        for index in range(len(done), len(kids)):
            kid = kids[index]
            if not isinstance(kid, ATOMS):
                self.stack.append(frame)
                return Pending(kid, env)
            done.append(self.atom(kid, env))
        node = frame.node
        match node:
            case Call():
                return self.apply(done[0], done[1:], node, env)
            case Tuple():
                return tuple(done)
            case Proj():
                value = done[0]
                if not isinstance(value, tuple) or not 0 <= node.index < len(value):
                    raise ExecutionError(f"projection .{node.index} of {kind_of(value)}", node.span)
                return value[node.index]
            case RefNew():
                return Reference(done[0])
            case RefRead():
                return self.cell(done[0], node.span).value
            case RefWrite():
                self.cell(done[0], node.span).value = done[1]
                return ()
            case _:
                raise AssertionError(f"not a node with operands: {type(node).__name__}")

    def cell(self, value: Value, span: Span | None) -> Reference:
        if not isinstance(value, Reference):
            raise ExecutionError(f"a reference is expected, not {kind_of(value)}", span)
        return value

    def bind(self, frame: Bind, value: Value) -> State:
        block, env = frame.block, frame.env
        binding = block.bindings[frame.index]
        checks = self.checks(binding.var)
        if checks:
            check_sizes(checks, value, env.dims, f"%{binding.var.name}", binding.value.span or binding.var.span)
        env.values[binding.var] = value
        frame.index += 1
        if frame.index == len(block.bindings):
            return Pending(block.result, env)
        self.stack.append(frame)
        return Pending(block.bindings[frame.index].value, env)

    def choose(self, frame: Choose, value: Value) -> State:
        node, env = frame.node, frame.env
        for shared in env.scopes.before.get(node, ()):
            if shared not in env.values:
                self.stack.append(frame)
                return Pending(shared, env)
        if isinstance(node, If):
            if not isinstance(value, np.ndarray | np.generic) or value.shape != ():
                raise ExecutionError(f"the condition of an if must be a scalar bool, not {kind_of(value)}", node.span)
            return Pending(node.then if value else node.orelse, env)
        clause = self.matching(node.clauses, value, env)
        if clause is None:
            raise ExecutionError(f"no clause matches {kind_of(value)}", node.span, hint="add a clause for it, or `_`")
        return Pending(clause.body, env)

    def matching(self, clauses: tuple[Clause, ...], value: Value, env: Environment) -> Clause | None:
        for clause in clauses:
            bound: list[tuple[Var, Value]] = []
            if matches(clause.pattern, value, bound):
                for var, part in bound:
                    checks = self.checks(var)
                    if checks:
                        check_sizes(checks, part, env.dims, f"%{var.name}", var.span)
                    env.values[var] = part
                return clause
        return None

    def checks(self, var: Var) -> tuple[SizeCheck, ...]:
        found = self._checks.get(var)
        if found is None:
            found = self._checks[var] = size_checks(var.ty if var.ty is not None else var.annotation)
        return found

    def operator_checks(self, node: Call) -> tuple[SizeCheck, ...]:
        """What the type of an operator's result says of sizes that those of its operands leave open."""
        found = self._operator_checks.get(node)
        if found is None:
            loose = any(mentions_any(a.ty) for a in node.args)
            found = self._operator_checks[node] = size_checks(node.ty) if loose else ()
        return found

    # -- application

    def apply(self, callee: Value, args: list[Value], node: Call | None, env: Environment | None) -> State:
        span = node.span if node is not None else None
        match callee:
            case Closure():
                return self.enter(callee, args, node, env)
            case OperatorValue():
                if node is None or env is None:
                    return self.operate(callee.name, args, node.attrs if node is not None else {}, node, env)
                value = self.operate(callee.name, args, node.attrs, node, env)
                checks = self.operator_checks(node)
                if checks and not isinstance(value, Pending):
                    check_sizes(checks, value, env.dims, f"the result of {callee.name}", span)
                return value
            case ConstructorValue():
                definition = callee.definition
                if len(args) != len(definition.fields):
                    raise ExecutionError(
                        f"{definition.name} takes {len(definition.fields)} fields, not {len(args)}", span
                    )
                return AdtValue(definition.adt, definition.name, definition.tag, tuple(args))
            case _:
                raise ExecutionError(f"cannot call {kind_of(callee)}", span)

    def operate(self, name: str, args: list[Value], attrs: Attrs, node: Call | None, env: Environment | None) -> State:
        """Apply an operator, or one of the two internal ones that passes write."""
        span = node.span if node is not None else None
        dims = env.dims if env is not None else {}
        known = concrete_attrs(attrs, dims, span)
        if name == CLOSURE:  # a lambda-lifted function and the values it had captured
            function = args[0]
            if not isinstance(function, Closure):
                raise ExecutionError(f"cannot make a closure of {kind_of(function)}", span)
            return replace(function, first=(*function.first, *args[1:]))
        if name == CHECK_EQUAL:
            left, right, why = known["left"], known["right"], known.get("why", "two sizes")
            if known.get("relation") == "<=":
                if left > right:  # type: ignore[operator]
                    raise ShapeError(f"{why}: {left} is more than {right}", span)
            elif left != right:
                rule, sizes = known.get("rule", "must agree"), cast(Sequence[int], known.get("sizes", (left, right)))
                raise ShapeError(f"{why} {rule}: {sizes[0]} and {sizes[1]}", span)
            return ()
        op = registry.get(name)
        check_arity(op, len(args), span)
        if op.kind != "composition":
            value = apply_operator(op, args, attrs, span, dims)
            if op.kind == "view" and node is not None and isinstance(value, np.ndarray) and not value.size:
                value = as_typed(value, node.ty, dims)
            if self.watch is not None:
                self.watch(span, value)
            return value
        composition, flat = compose(op, args, known, span)
        return self.enter(Closure(composition.function, {}, {}, composition.scopes, name), list(flat), node, env)

    def enter(self, callee: Closure, args: list[Value], node: Call | None, caller: Environment | None) -> State:
        """Start a call: bind the parameters and the sizes that their shapes give."""
        span = node.span if node is not None else None
        function = callee.function
        if callee.first:
            args = [*callee.first, *args]
        if len(args) != len(function.params):
            raise ExecutionError(f"{callee.name} takes {len(function.params)} arguments, not {len(args)}", span)
        env = Environment(dict(callee.captured), dict(callee.dims), callee.scopes)
        for parameter in function.type_params:
            if isinstance(parameter, DimVar):
                env.dims.pop(parameter, None)
        if node is not None and node.type_args and caller is not None:
            for parameter, given in zip(function.type_params, node.type_args, strict=False):
                # A size that is not known here (only data has it) is asked of the arguments, and missed where it is used.
                if isinstance(parameter, DimVar) and is_known(cast(Dim, given), caller.dims):
                    env.dims[parameter] = dim_value(cast(Dim, given), caller.dims, span)
        values = env.values
        unsettled: list[Unsettled] = []
        for param, value in zip(function.params, args, strict=True):
            checks = self.checks(param)
            if checks:
                check_sizes(checks, value, env.dims, f"the argument %{param.name} of {callee.name}", span, unsettled)
            values[param] = value
        settle(unsettled, env.dims, span)
        stack = self.stack
        if not (stack and isinstance(stack[-1], Return)):
            self.depth += 1
            if self.depth > self.limit:
                raise ExecutionError(
                    f"recursion limit: more than {self.limit} calls are pending in {callee.name}",
                    span,
                    hint="is the recursion without end? otherwise give a larger recursion_limit",
                )
            stack.append(Return(callee.name))
        result_checks = self.result_checks(function)
        if result_checks:
            stack.append(CheckResult(result_checks, env, callee.name, function.span))
        return Pending(function.body, env)

    def result_checks(self, function: Function) -> tuple[SizeCheck, ...]:
        found = self._result_checks.get(function)
        if found is None:
            declared = function.ret_type
            if declared is None and isinstance(function.ty, FuncType):
                declared = function.ty.ret
            needed = declared is not None and (function.body.ty is None or not as_precise(function.body.ty, declared))
            found = self._result_checks[function] = size_checks(declared) if needed else ()
        return found
