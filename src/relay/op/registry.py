"""Declaring operators. One declaration is the whole operator.

    @operator("nn.dense")
    def dense(data: te.Tensor, weight: te.Tensor, *, units: int | None = None, out_dtype: str = "") -> te.Tensor:
        ...

Positional parameters are inputs: ``te.Tensor``, or ``tuple[te.Tensor, ...]`` for a tuple of any number of tensors.
Keyword-only parameters are attributes with their defaults. From the body come the type relation and shape function (traced on
symbolic sizes), the fusion class, the interpreter's meaning and the kernels. The four kinds:

    expression    the body returns te tensors (`operator`)
    view          the same, and the result is the first input's memory seen with another shape (`view`)
    composition   the body returns an expression of the language over its argument variables (`composition`)
    routine       a runtime routine with a declared relation and a reference meaning (`routine`)

Shape modes: ``independent`` (sizes follow from sizes), ``data`` (`result_shape`, a definition with the same signature, gives an
int64 vector; its length is the result's rank, and the body gets the result's dims as ``out_shape``), ``upper_bound`` (the body's
last tensor is an int64 vector with the real extents of the first axis of each other output; the caller sees these parts).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from relay import te
from relay.ir.diagnostics import OperatorError, SyntaxError_
from relay.ir.dim import Dim, SymDim
from relay.ir.effects import Effect
from relay.ir.expr import Attr, Attrs, Call, attrs_key
from relay.ir.lexer import tokenize
from relay.ir.record import record
from relay.ir.types import BASE_TYPE, MOST_AXES, TensorType, Type, countable
from relay.op.build import call
from relay.op.elsewhere import ELSEWHERE
from relay.te.autodiff.multiples import over_multiples
from relay.te.circular import laid_round
from relay.te.left_out import leaving_out
from relay.te.zero_sizes import dividing_by_some

OperatorKind = Literal["expression", "view", "composition", "routine"]
ShapeMode = Literal["independent", "data", "upper_bound"]


@record(frozen=True, slots=True)
class Input:
    """An input: one tensor, or (``variadic``) a tuple of tensors."""

    name: str
    variadic: bool = False
    optional: bool = False


@record(frozen=True, slots=True)
class AttrSpec:
    """An attribute: its annotation (as a Python type) and default; ``required`` has none."""

    name: str
    annotation: Any
    default: Attr
    required: bool


@record(frozen=True, slots=True, eq=False)
class Operator:
    """A declared operator. ``define`` is the body; see the module's text for what it returns by kind."""

    name: str
    kind: OperatorKind
    inputs: tuple[Input, ...]
    attrs: tuple[AttrSpec, ...]
    define: Callable[..., Any]
    effects: Effect = Effect.PURE
    shape_mode: ShapeMode = "independent"
    result_shape: Callable[..., te.Tensor] | None = None
    result_rank: Callable[..., int] | None = None
    relation: Callable[[Sequence[Type], Attrs], Type] | None = None
    reference: Callable[..., Any] | None = None
    doc: str = ""
    # Attributes of released texts that are accepted and mean nothing here (hints to a scheduler, say).
    ignored: tuple[str, ...] = ()
    # An expression that the runtime carries out by its routine of the same name, never inside a kernel.
    by_routine: bool = False
    # Of a routine: the result may be the first operand's memory; it is told whether that operand dies there, to write in place.
    aliases: bool = False
    donates: bool = False
    # Of a routine: attributes that only its relation and its reference read.
    static: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """How it is called, and what it says of itself."""
        operands = [("*" if i.variadic else "") + i.name + ("=None" if i.optional else "") for i in self.inputs]
        attrs = [a.name if a.required else f"{a.name}={a.default!r}" for a in self.attrs]
        parts = (*operands, *(("*", *attrs) if attrs else ()))
        return f"{self.name}({', '.join(parts)})" + (f"\n    {self.doc.strip()}" if self.doc else "")

    def __call__(self, *args: object, **attrs: Attr) -> Call:
        """A call of the operator; arguments as in `relay.op.build.as_expr`. Raises OperatorError if it does not take them."""
        needed = sum(not i.optional for i in self.inputs)
        if not needed <= len(args) <= len(self.inputs):
            names = ", ".join(i.name for i in self.inputs) or "none"
            raise OperatorError(f"operator {self.name} takes {len(self.inputs)} operands ({names}), not {len(args)}")
        made = call(self.name, *args, **attrs)
        self.complete_attrs(made.attrs)
        return made

    def complete_attrs(self, given: Attrs) -> dict[str, Attr]:
        """The attributes with defaults filled in. Raises OperatorError for unknown, missing or ill-typed ones."""
        out: dict[str, Attr] = {}
        known = {a.name: a for a in self.attrs}
        for name in given:
            if name not in known and name not in self.ignored:
                if any(i.name == name for i in self.inputs):
                    hint = f"{name} is an operand: write its value behind the other operands, without the name"
                    raise OperatorError(f"operator {self.name} has no attribute {name!r}", hint=hint)
                has = ", ".join(known) or "no attributes"
                raise OperatorError(f"operator {self.name} has no attribute {name!r}", hint=f"it has: {has}")
        for spec in self.attrs:
            if spec.name in given:
                out[spec.name] = _checked(self.name, spec, given[spec.name])
            elif spec.required:
                raise OperatorError(f"operator {self.name} needs the attribute {spec.name!r}")
            else:
                out[spec.name] = spec.default
        return out


def _checked(op: str, spec: AttrSpec, value: Attr) -> Attr:
    if _fits(spec.annotation, value):
        return value
    if _fits(spec.annotation, float(value)) if isinstance(value, int) else False:
        return float(value) if isinstance(value, int) else value
    if isinstance(value, int) and not isinstance(value, bool) and value in (0, 1) and _fits(spec.annotation, True):
        return bool(value)
    if isinstance(value, list):
        return _checked(op, spec, _tuple(value))
    if isinstance(value, int | float) and _fits(spec.annotation, (value,)):
        return (value,)  # one number where a sequence is expected
    if isinstance(value, TensorType) and value.shape == ():
        hint = f'the name of a base type is a string: {spec.name}="{value.dtype}"'
        raise OperatorError(
            f"attribute {spec.name!r} of {op} must be {_type_text(spec.annotation)}, not a type", hint=hint
        )
    raise OperatorError(f"attribute {spec.name!r} of {op} must be {_type_text(spec.annotation)}, not {value!r}")


def _tuple(value: list[Any]) -> tuple[Attr, ...]:
    return tuple(_tuple(v) if isinstance(v, list) else v for v in value)


def _type_text(annotation: Any) -> str:
    """What an attribute may be, in words."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        several = parts[-1] is Ellipsis
        within = ", ".join(_type_text(p) for p in (parts[:1] if several else parts))
        return f"a tuple of {within}" if several else f"a tuple ({within})"
    if parts:
        return " or ".join(map(_type_text, parts))
    if annotation is SymDim:
        return "a size"
    return "None" if annotation is type(None) else str(getattr(annotation, "__name__", annotation))


def _fits(annotation: Any, value: object) -> bool:
    if annotation is Any or annotation is Attr:
        return True
    origin = typing.get_origin(annotation)
    if origin is tuple:
        args = typing.get_args(annotation)
        if not isinstance(value, tuple):
            return False
        if len(args) == 2 and args[1] is Ellipsis:
            return all(_fits(args[0], v) for v in value)
        return len(args) == len(value) and all(_fits(a, v) for a, v in zip(args, value, strict=True))
    if origin is Literal:
        return value in typing.get_args(annotation)
    if origin is not None or not isinstance(annotation, type):  # unions
        return any(_fits(a, value) for a in typing.get_args(annotation))
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


_operators: dict[str, Operator] = {}
# Operators made from others when they are asked for (derivatives), and what makes them.
_derived: dict[str, Operator] = {}
_derivations: list[Callable[[str], Operator | None]] = []


@functools.cache
def _know_own() -> None:
    """Have Relay's own operators declared: not when this module is imported, which each of them imports."""
    importlib.import_module("relay.op.families")


def register(op: Operator) -> Operator:
    """Make an operator known by its name (a later declaration of the same name takes its place).

    Raises OperatorError for a name that no program can write, and for that of one of Relay's own operators.
    """
    if not is_own(op):
        _know_own()
        known = _operators.get(op.name)
        if known is not None and is_own(known):
            raise OperatorError(f"{op.name!r} is one of Relay's own operators", hint=f'another name: "my.{op.name}"')
        if not isinstance(op.name, str) or not _is_name(op.name):
            raise OperatorError(f"{op.name!r} cannot be an operator's name", hint='words joined by dots can: "my.op"')
    _operators[op.name] = op
    _derived.clear()
    return op


def is_own(op: Operator) -> bool:
    """Whether an operator was declared in this package."""
    # What is executed from text may have no module.
    return (op.define.__module__ or "").partition(".")[0] == __name__.partition(".")[0]


def _is_name(text: str) -> bool:
    try:
        found = tokenize(text, "")
    except SyntaxError_:
        return False
    return found.kinds[0] == "NAME" and found.texts[0] == text


def derive_with(make: Callable[[str], Operator | None]) -> None:
    """Have operators made by name from others: ``make`` gives None for a name that is not its own."""
    _derivations.append(make)


def _found(name: str) -> Operator | None:
    _know_own()
    op = _operators.get(name) or _derived.get(name)
    if op is None:
        op = next((made for make in _derivations if (made := make(name)) is not None), None)
        if op is not None:
            _derived[name] = op
    return op


def remove(name: str) -> None:
    """Forget an operator (one that a test or a notebook declared). Raises OperatorError when there is none."""
    del _operators[get(name).name]
    _derived.clear()


def get(name: str) -> Operator:
    """The operator of this name. Raises OperatorError with the nearest names when there is none."""
    found = _found(name)
    if found is None:
        raise OperatorError(f"unknown operator {name!r}", hint=_hint(name))
    return found


def _hint(name: str) -> str:
    """What may have been meant: the same name in another family, what other systems call so, or the nearest names."""
    last = name.rpartition(".")[2]
    if BASE_TYPE.fullmatch(name):
        return f'a conversion is written cast(x, dtype="{name}")'
    near = [n for n in _operators if n.rpartition(".")[2] == last]
    if not near and last in ELSEWHERE:
        return f"here that is {ELSEWHERE[last]}"
    near = near or difflib.get_close_matches(name, _operators, 3)
    return f"did you mean {' or '.join(near)}?" if near else "relay.op.names() lists them"


def exists(name: str) -> bool:
    return _found(name) is not None


def declared(name: str) -> Operator | None:
    """The declared operator of this name, or that a derived one (``my.op.vjp0``) stems from; None where there is none."""
    _know_own()
    while name and name not in _operators:
        name = name.rpartition(".")[0]
    return _operators.get(name)


def names() -> list[str]:
    """The names of all operators, sorted."""
    _know_own()
    return sorted(_operators)


def _signature(fn: Callable[..., Any], skip: tuple[str, ...] = ()) -> tuple[tuple[Input, ...], tuple[AttrSpec, ...]]:
    if isinstance(fn, Operator):
        raise OperatorError(
            f"{fn.name} is an operator already", hint="give the Python function that defines the operator"
        )
    hints = typing.get_type_hints(fn)
    inputs: list[Input] = []
    attrs: list[AttrSpec] = []
    for p in inspect.signature(fn).parameters.values():
        if p.name in skip:
            continue
        if p.kind is inspect.Parameter.KEYWORD_ONLY:
            required = p.default is inspect.Parameter.empty
            attrs.append(AttrSpec(p.name, hints.get(p.name, Any), None if required else p.default, required))
        else:
            variadic = typing.get_origin(hints.get(p.name)) is tuple
            inputs.append(Input(p.name, variadic, p.default is not inspect.Parameter.empty))
    return tuple(inputs), tuple(attrs)


Decorator = Callable[[Callable[..., Any]], Operator]


def operator(
    name: str,
    *,
    effects: Effect = Effect.PURE,
    shape_mode: ShapeMode = "independent",
    result_shape: Callable[..., te.Tensor] | None = None,
    result_rank: Callable[..., int] | None = None,
    ignored: tuple[str, ...] = (),
    by_routine: bool = False,
    donates: bool = False,
) -> Decorator:
    """Declare an operator by a tensor expression. Applying the result to expressions makes a call (see `relay.op.build`).

    ``ignored`` are attributes that released texts give and that mean nothing here. ``by_routine``: the runtime has a routine of
    this name, which does it better than a kernel could (it may use what only the runtime knows); ``donates`` as in `routine`.
    """

    def declare(fn: Callable[..., Any]) -> Operator:
        inputs, attrs = _signature(fn, ("out_shape",))
        return register(
            Operator(
                name,
                "expression",
                inputs,
                attrs,
                fn,
                effects,
                shape_mode,
                result_shape,
                result_rank,
                doc=fn.__doc__ or "",
                ignored=ignored,
                by_routine=by_routine,
                donates=donates,
            )
        )

    return declare


def view(name: str) -> Decorator:
    """Declare an operator whose result is the first input's memory with another shape (same elements in the same order)."""

    def declare(fn: Callable[..., Any]) -> Operator:
        inputs, attrs = _signature(fn)
        return register(Operator(name, "view", inputs, attrs, fn, doc=fn.__doc__ or ""))

    return declare


def composition(name: str) -> Decorator:
    """Declare an operator as a program: the body is given argument expressions and attributes and returns an expression."""

    def declare(fn: Callable[..., Any]) -> Operator:
        inputs, attrs = _signature(fn)
        return register(Operator(name, "composition", inputs, attrs, fn, doc=fn.__doc__ or ""))

    return declare


def routine(
    name: str,
    *,
    relation: Callable[[Sequence[Type], Attrs], Type],
    reference: Callable[..., Any],
    effects: Effect = Effect.PURE,
    aliases: bool = False,
    donates: bool = False,
    static: tuple[str, ...] = (),
) -> Decorator:
    """Declare a runtime routine: ``relation`` types it, ``reference`` (NumPy arrays in, arrays out) is its meaning.

    The decorated function only carries the signature and the documentation. ``aliases``: the result may be the first operand's
    memory; ``donates``: the routine takes one argument more, whether nobody reads the first operand after it. The runtime is not given
    the attributes that are ``static``.
    """

    def declare(fn: Callable[..., Any]) -> Operator:
        inputs, attrs = _signature(fn)
        op = Operator(
            name,
            "routine",
            inputs,
            attrs,
            fn,
            effects,
            "data",
            relation=relation,
            reference=reference,
            doc=fn.__doc__ or "",
            aliases=aliases,
            donates=donates,
            static=static,
        )
        return register(op)

    return declare


@record(frozen=True, slots=True, eq=False)
class Traced:
    """One operator applied to inputs of known rank: its placeholders (flat, variadic inputs in order) and its outputs."""

    inputs: tuple[te.Tensor, ...]
    outputs: tuple[te.Tensor, ...]
    is_tuple: bool
    demands: tuple[te.Demand, ...]


_SEVERAL = tuple[te.Tensor, ...]
_Found = TypeVar("_Found")
_returned: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def returned(define: Callable[..., Any]) -> Any:
    """What a definition says that it returns, None where it does not say. It is asked for each trace, and compiling annotations that are
    texts takes longer than some of these."""
    if define not in _returned:
        _returned[define] = typing.get_type_hints(define).get("return")
    return _returned[define]


def applied(op: Operator, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[te.Tensor, ...], bool]:
    """What a definition gives for tensors, and whether as a tuple. Raises te.DefinitionError where that is something else."""
    result = op.define(*args, **keywords)
    outputs = (result,) if isinstance(result, te.Tensor) else tuple(result) if isinstance(result, tuple | list) else ()
    if not outputs or not all(isinstance(o, te.Tensor) for o in outputs):
        raise te.DefinitionError(
            f"its definition gives {result!r}, expected a tensor (te.compute makes one) or a tuple of tensors"
        )
    several, said = not isinstance(result, te.Tensor), returned(op.define)
    # What is derived from a definition, before there are operands, takes as many cotangents as this says.
    if op.shape_mode != "upper_bound" and said in ((te.Tensor, None) if several else (_SEVERAL,)):
        found, name = ("several tensors", "tuple[te.Tensor, ...]") if several else ("one tensor", "te.Tensor")
        raise te.DefinitionError(
            f"its definition gives {found}, and does not say so: write `-> {name}` behind its parameters"
        )
    return over_multiples(laid_round(leaving_out(dividing_by_some(outputs)))), several


def trace(
    op: Operator,
    inputs: Sequence[tuple[Sequence[Dim], str] | Sequence[tuple[Sequence[Dim], str]]],
    attrs: Attrs,
    collector: te.Trace | None = None,
    out_shape: tuple[Dim, ...] | None = None,
) -> Traced:
    """Run an expression's or view's definition on placeholders. ``inputs``: (shape, dtype) per tensor input, a list of such for a
    variadic one. Within `remembering` the same question has the same answer, so the stages of two may be the same ones. Raises
    te.Undetermined, te.DefinitionError and OperatorError."""
    if collector is not None:
        return _trace(op, inputs, attrs, collector, out_shape)
    key = (op, attrs_key(inputs), attrs_key(attrs), out_shape)
    return remembered(key, lambda: _trace(op, inputs, attrs, te.Trace(), out_shape))


def remembered(key: object, find: Callable[[], _Found]) -> _Found:
    """What is found out about a definition: within `remembering`, what was found for the key before."""
    known = _known.get()
    if known is None:
        return find()
    if key not in known:
        known[key] = find()
    return typing.cast("_Found", known[key])


_known: ContextVar[dict[object, object] | None] = ContextVar("relay_known_of_definitions", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Have definitions run once for the same types and attributes. Not for longer than one compilation: what else a definition
    depends on may change between two."""
    token = _known.set({}) if _known.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _known.reset(token)


def _trace(
    op: Operator,
    inputs: Sequence[tuple[Sequence[Dim], str] | Sequence[tuple[Sequence[Dim], str]]],
    attrs: Attrs,
    collector: te.Trace,
    out_shape: tuple[Dim, ...] | None,
) -> Traced:
    start = len(collector.demands)
    flat: list[te.Tensor] = []
    args: list[Any] = []
    for spec, given in zip(op.inputs, inputs, strict=False):
        if spec.variadic:
            members = typing.cast("Sequence[tuple[Sequence[Dim], str]]", given)
            group = tuple(te.placeholder(f"{spec.name}{n}", s, d) for n, (s, d) in enumerate(members))
            flat += group
            args.append(group)
        else:
            shape, dtype = typing.cast("tuple[Sequence[Dim], str]", given)
            tensor = te.placeholder(spec.name, shape, dtype)
            flat.append(tensor)
            args.append(tensor)
    keywords: Mapping[str, Any] = op.complete_attrs(attrs)
    if op.shape_mode == "data":
        keywords = {**keywords, "out_shape": out_shape}
    with te.tracing(collector):
        outputs, is_tuple = applied(op, args, keywords)
    for output in outputs:
        if len(output.shape) > MOST_AXES:
            raise te.DefinitionError(f"a tensor has {MOST_AXES} axes at the most, not {len(output.shape)}")
        if not countable(output.shape, output.dtype):
            raise te.DefinitionError(f"no memory has room for sizes of {', '.join(map(str, output.shape))}")
    return Traced(tuple(flat), outputs, is_tuple, tuple(collector.demands[start:]))
