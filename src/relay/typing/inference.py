"""`infer`: a module with the type of every node; `infer_expr` and `op_type`: the same for an expression, an operator.

Global functions are inferred in the order of their calls, those that call each other together; a function whose
parameters and result are annotated is known beforehand. The whole module shares one solver, so a relation that waits in
one function may be solved by a caller of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from relay import te
from relay.ir.collection import without_collection
from relay.ir.diagnostics import DividedByZero, RelayError, TypeError_
from relay.ir.dim import ANY, Dim, DimVar, dim_vars
from relay.ir.expr import NO_ATTRS, Attrs, Expr, Function, GlobalVar, Proj, Var, attrs_key
from relay.ir.graph import components
from relay.ir.module import Module, require_module
from relay.ir.trampoline import Step, run
from relay.ir.types import FuncType, TupleType, Type
from relay.ir.walk import post_order, substitute
from relay.op import registry
from relay.op.registry import Operator
from relay.typing.annotate import Annotator
from relay.typing.constraints import Inference
from relay.typing.exhaustive import check_match
from relay.typing.kinds import KindChecker, variances
from relay.typing.relations import located, solved_signature
from relay.typing.solver import Solver
from relay.typing.substitution import free_variables, variables
from relay.typing.text import type_text

EntryTypes = Mapping[str, Sequence[Type]]


def infer(module: Module, *, entry_types: EntryTypes | None = None) -> Module:
    """The module with `ty` on every node and variable.

    ``entry_types`` gives, by function name, types for parameters that have no annotation. Functions are generalised,
    calls of polymorphic ones carry their type arguments, operators and polymorphic functions used as values are
    expanded to functions. Raises TypeError_, ShapeError or OperatorError with the place in the source.
    """
    require_module(module)
    try:
        with without_collection():
            return _infer(module, entry_types or {})
    except RelayError as e:
        raise e.with_source(module.sources) from e.__cause__
    except RecursionError:
        raise _too_deep() from None


def infer_expr(expr: Expr, module: Module | None = None) -> Expr:
    """A typed expression over the functions (already typed, or annotated in full) and types of ``module``.

    Free variables must have an annotation or a type."""
    module = module or Module()
    try:
        with without_collection():
            return _infer_expr(expr, module)
    except RelayError as e:
        raise e.with_source(module.sources) from e.__cause__
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> TypeError_:
    return TypeError_(
        "a type or an attribute in the program is nested too deeply", hint="name parts of a type by a type definition"
    )


def _start(module: Module, *, open_terms: bool = False) -> Inference:
    _check_types(module)
    return Inference(module, Solver(variances(module.types)), expand, open_terms)


def _check_types(module: Module) -> None:
    owner: dict[str, str] = {}
    for name, d in module.types.items():
        kinds = KindChecker(module.types, lambda p, d=d: p in d.params)  # type: ignore[misc]
        for c in d.constructors:
            if c.name in owner:
                raise TypeError_(f"constructor {c.name} is defined by both {owner[c.name]} and {name}")
            owner[c.name] = name
            for f in c.fields:
                kinds.check(f, None)
                loose = [v for v in free_variables(f) if v not in d.params]
                if loose:
                    raise TypeError_(
                        f"a field of {c.name} is {type_text(f)}, but {name} declares no {loose[0].name}",
                        hint=f"type {name}[...] declares types; a size that any value may have is written ?",
                    )


def _finish(state: Inference) -> Annotator:
    state.solver.queue.finish(state.solver.unknowns)
    done = Annotator(state)
    for match, data in state.matches:
        check_match(match, done.type(data), state.module)
    return done


def _infer_expr(expr: Expr, module: Module) -> Expr:
    state = _start(module, open_terms=True)
    for name, fn in module.functions.items():
        known = fn.ty or state.declared(fn)
        if known is not None:
            state.globals[name] = known
    if isinstance(expr, Function):
        state.types[id(expr)] = run(state.function_value(expr, generalise=True))
        return _finish(state).expr(expr)
    root = Function((), expr)
    state.types[id(root)] = run(state.function(root))
    done = _finish(state).expr(root)
    assert isinstance(done, Function)
    return done.body


# -- modules


def _infer(module: Module, entry_types: EntryTypes) -> Module:
    functions = {name: _prepared(name, fn, entry_types.get(name)) for name, fn in module.functions.items()}
    for name in entry_types:
        module.function(name)
    state = _start(Module(functions, module.types, module.sources))
    solver = state.solver
    open_functions: dict[str, Function] = {}
    for name, fn in functions.items():
        known = state.declared(fn)
        if known is None:
            open_functions[name] = fn
        else:
            state.globals[name] = known
    for group in components(_calls(open_functions)):
        _infer_group(state, {name: open_functions[name] for name in group})
    for name, fn in functions.items():
        if name not in open_functions:
            state.types[id(fn)] = run(_declared_body(state, fn))
    solver.queue.drain()
    done = _finish(state)
    return module.with_functions((name, cast(Function, done.expr(fn))) for name, fn in functions.items())


def _prepared(name: str, fn: Function, given: Sequence[Type] | None) -> Function:
    """With the given parameter types as annotations, and every dim of the annotations a parameter."""
    if given is not None:
        if len(given) != len(fn.params):
            raise TypeError_(f"@{name} takes {len(fn.params)} parameters; {len(given)} types are given", fn.span)
        fresh = {v: Var(v.name, t, None, v.span) for v, t in zip(fn.params, given, strict=True) if v.annotation is None}
        if fresh:
            body = substitute(fn.body, cast("Mapping[Var, Expr]", fresh))
            fn = replace(fn, params=tuple(fresh.get(v, v) for v in fn.params), body=body)
    written = [v.annotation for v in fn.params if v.annotation is not None]
    loose = {v: None for t in written for v in variables(t) if isinstance(v, DimVar) and v not in fn.type_params}
    bound = {v for t in written for v in _bound(t)}
    new = tuple(v for v in loose if v not in bound)
    return replace(fn, type_params=(*fn.type_params, *new)) if new else fn


def _bound(t: Type) -> Iterator[object]:
    if isinstance(t, FuncType):
        yield from t.type_params


def _calls(functions: Mapping[str, Function]) -> dict[str, list[str]]:
    """Which of the functions each mentions."""
    out: dict[str, list[str]] = {}
    for name, fn in functions.items():
        names = {n.name: None for n in post_order(fn.body) if isinstance(n, GlobalVar) and n.name in functions}
        out[name] = list(names)
    return out


def _declared_body(state: Inference, fn: Function) -> Step[FuncType]:
    solver = state.solver
    start = len(solver.queue.pending)
    solver.level += 1
    yield from state.function(fn)
    solver.queue.drain()
    solver.level -= 1
    state.hold(start)
    scheme = state.declared(fn)
    assert scheme is not None
    return scheme


def _infer_group(state: Inference, group: Mapping[str, Function]) -> None:
    """Infer functions that call each other, and generalise them together."""
    solver = state.solver
    start = len(solver.queue.pending)
    solver.level += 1
    for name, fn in group.items():
        if len(group) > 1 and fn.type_params:
            others = ", ".join(f"@{n}" for n in group if n != name)
            raise TypeError_(
                f"@{name} has type parameters and is recursive with {others}, so its type must be written out",
                fn.span,
                "annotate all parameters and the result",
            )
        state.globals[name] = solver.fresh(name)
        state.open_params[name] = fn.type_params
    found: dict[str, FuncType] = {}
    for name, fn in group.items():
        found[name] = run(state.function(fn))
        try:
            state.equal(found[name], state.globals[name], fn.span, f"the calls of @{name}")
        except DividedByZero as e:
            raise located(e, fn.span) from None
    solver.queue.drain()
    solver.level -= 1
    state.hold(start)
    new = state.close(TupleType(tuple(found.values())), lower=False)
    for name, fn in group.items():
        del state.open_params[name]
        scheme = state.scheme(fn, found[name], new)
        state.globals[name] = scheme
        state.types[id(fn)] = scheme


# -- operators


_compositions: dict[object, Function] = {}


def expand(op: Operator, args: tuple[Type, ...], attrs: Attrs) -> Function:
    """The function, typed, that a composition stands for on arguments of these types. Memoised by signature."""
    key = (op, args, attrs_key(attrs))
    found = _compositions.get(key)
    if found is None:
        params = tuple(Var(i.name, t, t) for i, t in zip(op.inputs, args, strict=False))
        given: list[Expr | tuple[Expr, ...]] = []
        for spec, v in zip(op.inputs, params, strict=False):
            if not spec.variadic:
                given.append(v)
            elif isinstance(v.ty, TupleType):
                given.append(tuple(Proj(v, n) for n in range(len(v.ty.fields))))
            else:
                raise TypeError_(
                    f"operator {op.name}: {spec.name} must be a tuple, found {type_text(v.ty or TupleType(()))}"
                )
        try:
            body = op.define(*given, **op.complete_attrs(attrs))
        except te.DefinitionError as e:
            raise TypeError_(f"{op.name}({', '.join(map(type_text, args))}): {e}") from e
        typed = infer_expr(Function(params, body))
        assert isinstance(typed, Function)
        found = _compositions[key] = typed
    return found


def op_type(op_name: str, arg_types: Sequence[Type], attrs: Attrs = NO_ATTRS) -> Type:
    """The type of an operator call on arguments of these solved types: the local relation, memoised.

    Sizes that are neither known to agree nor known to differ are taken to agree (`op_checks` lists them). Raises
    TypeError_, ShapeError or OperatorError.
    """
    op = registry.get(op_name)
    args = tuple(arg_types)
    if op.kind == "composition":
        return cast(FuncType, expand(op, args, attrs).ty).ret
    return solved_signature(op, args, attrs).result


def op_checks(op_name: str, arg_types: Sequence[Type], attrs: Attrs = NO_ATTRS) -> list[te.Demand]:
    """What an operator call demands of its argument dims that their types do not prove.

    A dim that is `?` in its type stands as `?` in the demand, so name the dims first to tell them apart."""
    op = registry.get(op_name)
    if op.kind in ("composition", "routine"):
        return []
    got = solved_signature(op, tuple(arg_types), attrs)
    if not got.gradual:
        return list(got.demands)

    def plain(d: Dim) -> Dim:
        return ANY if any(v in got.gradual for v in dim_vars(d)) else d

    return [
        replace(d, left=plain(d.left), right=plain(d.right), sizes=d.sizes and (plain(d.sizes[0]), plain(d.sizes[1])))
        for d in got.demands
    ]
