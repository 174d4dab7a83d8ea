"""From text to an untyped program with spans: `parse_module`, `parse_expr`, `parse_type`.

The actions below are called by the LALR engine from left to right as rules end, so names are resolved on the way: ``env`` is
the scope at that point, and leaving a scope takes its bindings back. Names of types and constructors are collected before,
because they may be used before their declaration.
"""

from __future__ import annotations

import difflib
import gc
import importlib.resources
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from relay.ir import lalr
from relay.ir.constant import NUMPY_DTYPES, make_constant, numpy_dtype
from relay.ir.diagnostics import FileError, RelayError, SyntaxError_
from relay.ir.expr import (
    NO_ATTRS,
    Attr,
    Attrs,
    Binding,
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
from relay.ir.lexer import VERSION, Tokens, tokenize
from relay.ir.metadata import KEY, ConstantTable
from relay.ir.module import Module, reachable
from relay.ir.parse_types import BaseName, Hole, Named, ShapeForm, Text, TypeActions, Undeclared
from relay.ir.types import ConstructorDef, Kind, Relation, Type, TypeDef, TypeParam, scalar
from relay.ir.walk import free_vars, pattern_vars

INFIX = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal", "==": "equal", "!=": "not_equal",
}  # fmt: skip
_REFERENCE_OPERATORS = frozenset({"ref_read", "ref_write"})
_PRECEDENCE = {"*": 3, "/": 3, "+": 2, "-": 2}
_FLOAT_SUFFIXES = (("bf16", "bfloat16"), ("f16", "float16"), ("f32", "float32"), ("f64", "float64"), ("f", "float32"))


def parse_module(text: str, source_name: str = "<text>", base: Path | None = None) -> Module:
    """The module of a text (which begins with ``#[version = "0.0.5"]``), untyped.

    A text that is an expression becomes ``@main``: itself when it is a function, otherwise a function of its free variables.
    ``base`` is the folder that imports and files of constants are relative to (by default that of ``source_name``, if it is a
    file). Raises SyntaxError_ with the place, and FileError for files it names.
    """
    return _parse_module(text, source_name, base, ())


def parse_expr(text: str, module: Module | None = None, source_name: str = "<text>", base: Path | None = None) -> Expr:
    """The expression of a text, with its free variables where ``free_var %x: T;`` declares them. Untyped.

    Types and constructors are those of ``module``. Raises SyntaxError_.
    """
    expr: Expr = _Parser(tokenize(text, source_name), base, (), module).run("expression")
    return expr


def parse_type(text: str, module: Module | None = None, source_name: str = "<text>") -> Type:
    """The type of a text, such as ``fn[n: Dim](Tensor[(n, 4), float32]) -> int32``, over the types of ``module``.

    Raises SyntaxError_.
    """
    made: Type = _Parser(tokenize(text, source_name), None, (), module).run("type_only")
    return made


def _parse_module(text: str, source_name: str, base: Path | None, importing: tuple[str, ...]) -> Module:
    tokens = tokenize(text, source_name)
    if tokens.version is None:
        hint = f'begin the text with #[version = "{VERSION}"]'
        raise SyntaxError_("the text does not say its version", tokens.span_at(0, 1), hint, text)
    if base is None and Path(source_name).is_file():
        base = Path(source_name).resolve().parent
    module: Module = _Parser(tokens, base, importing).run("module")
    return module


@cache
def prelude_module() -> Module:
    """The prelude, parsed once per process."""
    text = importlib.resources.files("relay.ir").joinpath("prelude.relay").read_text()
    return _parse_module(text, "prelude.relay", None, ("prelude",))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Building a large program makes no garbage, and collecting while it grows costs more than parsing it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Parser(TypeActions):
    """The actions for everything but types. ``importing`` are the texts whose imports led here."""

    def __init__(self, tokens: Tokens, base: Path | None, importing: tuple[str, ...], scope: Module | None = None) -> None:
        super().__init__(tokens, {})
        self.base = base
        self.importing = importing
        self.constants = ConstantTable(tokens.metadata, base)
        self.arity: dict[str, int] = {}  # constructors; for those of this text: 0 or 1, as they have fields or not
        self.literals: dict[str, npt.NDArray[np.generic]] = {}
        self.functions: dict[str, Function] = {}
        self.types: dict[str, TypeDef] = {}
        # Modules in scope; of those with True only what is used becomes part of this one.
        self.imported: list[tuple[Module, bool]] = [] if scope is None else [(scope, True)]
        self.free: list[Var] = []
        self.in_definition = False
        self.declare_types()

    def run(self, start: str) -> Any:
        with _without_collection():
            return lalr.parse(self.tokens, start, self)

    # What is declared where

    def declare_types(self) -> None:
        """Find the text's imports, types and constructors before parsing."""
        kinds = self.tokens.kinds
        if "import" in kinds:
            for n, kind in enumerate(kinds):
                if kind == "import" and kinds[n + 1] in ("STRING", "NAME"):
                    self.import_module(n + 1)
        for module, _ in self.imported:
            for definition in module.types.values():
                self.adts[definition.name] = tuple(Kind.DIM if not hasattr(p, "kind") else p.kind for p in definition.params)
                self.arity.update((c.name, len(c.fields)) for c in definition.constructors)
        if "type" in kinds:
            for n, kind in enumerate(kinds):
                if kind == "type" and kinds[n + 1] == "NAME":
                    self.declare_type(n + 1)

    def declare_type(self, at: int) -> None:
        kinds, texts = self.tokens.kinds, self.texts
        name, n = texts[at], at + 1
        params: list[Kind] = []
        if kinds[n] in ("[", "<"):
            while kinds[n] not in ("]", ">", "$END"):
                if kinds[n] == "NAME" and kinds[n - 1] in ("[", "<", ","):
                    word = texts[n + 2] if kinds[n + 1] == ":" else "Type"
                    params.append(next((k for k in Kind if k.value == word), Kind.TYPE))
                n += 1
            n += kinds[n] != "$END"
        self.adts[name] = tuple(params)
        depth = 0
        while kinds[n] not in ("$END", "def", "extern") and (n == at + 1 or depth or kinds[n] == "{"):
            if kinds[n] in ("{", "(", "["):
                depth += 1
            elif kinds[n] in ("}", ")", "]"):
                depth -= 1
                if not depth:
                    break
            elif depth == 1 and kinds[n] == "NAME" and kinds[n - 1] in ("{", ",", "|"):
                self.arity[texts[n]] = 1 if kinds[n + 1] == "(" else 0
            n += 1

    def import_module(self, token: int) -> None:
        name = self.texts[token].strip('"')
        if name.removesuffix(".rly").removesuffix(".relay") == "prelude":
            if "prelude" not in self.importing:
                self.imported.append((prelude_module(), True))
            return
        path = (self.base or Path()) / name
        key = str(path.resolve())
        if key in self.importing:
            raise self.error(f"{name} imports itself", token, " -> ".join((*self.importing, key)))
        try:
            text = path.read_text()
        except (OSError, UnicodeError) as error:
            raise self.error(f"cannot read the import {name}", token, str(error)) from error
        try:
            self.imported.append((_parse_module(text, str(path), path.parent, (*self.importing, key)), False))
        except FileError as error:
            raise self.error(f"cannot read the import {name}: {error.message}", token) from error

    def import_(self, _keyword: int, _name: int, *_semicolon: int) -> None:
        return None

    # Modules

    def module(self, _items: object) -> Module:
        functions, types = dict(self.functions), dict(self.types)
        sources = {self.tokens.source: self.tokens.text}
        for module, only_used in self.imported:
            for name, definition in module.types.items():
                types.setdefault(name, definition)
            if not only_used:
                for name, function in module.functions.items():
                    functions.setdefault(name, function)
            sources.update(module.sources)
        for module, only_used in self.imported:
            if only_used:
                for name in reachable({**module.functions, **functions}, functions):
                    if name not in functions:
                        functions[name] = module.functions[name]
        return Module(functions, types, sources)

    def expression_module(self, body: Expr) -> Module:
        main = body if isinstance(body, Function) and not self.free else Function(tuple(self.free), body, span=body.span)
        self.functions["main"] = main
        return self.module(None)

    def expression(self, body: Expr) -> Expr:
        return body

    def free_var(self, keyword: int, name: int, *rest: Any) -> None:
        if self.in_definition:
            raise self.error("a definition has no free variables", keyword, f"make {self.texts[name]} a parameter")
        made = self.variable(name, rest)
        self.free.append(made)
        self.bind(self.texts[name], made)

    def variable(self, name: int, annotation: tuple[Any, ...]) -> Var:
        """A new variable with its annotation, if ``annotation`` is ``":" type ...`` of one that says something."""
        type_ = None
        if len(annotation) > 1 and not isinstance(annotation[1], Hole):
            type_ = self.to_type(annotation[1], name)
        return Var(self.texts[name][1:], type_, None, self.tokens.span(name))

    def def_head(self, _keyword: int, name: int) -> tuple[int, int]:
        self.unknown = {}
        self.in_definition = True
        return len(self.undo), name

    def definition(
        self, head: tuple[int, int], type_params: list[TypeParam], _open: int, params: list[Any], _close: int,
        result: Type | None, constraints: list[Relation], body: Expr,
    ) -> None:  # fmt: skip
        token = head[1]
        name = self.texts[token][1:]
        if name in self.functions:
            raise self.error(f"@{name} is defined twice", token)
        self.in_definition = False
        self.functions[name] = self.make_function(head, type_params, params, result, constraints, body)

    def make_function(
        self, head: tuple[int, int], type_params: list[TypeParam], params: list[Any], result: Type | None,
        constraints: list[Relation], body: Expr,
    ) -> Function:  # fmt: skip
        height, token = head
        variables = tuple(p for p in params if not isinstance(p, Named))
        if len({v.name for v in variables}) != len(variables):
            raise self.error("two parameters have the same name", token)
        self.leave(height)
        return Function(
            variables, body, result, tuple(type_params), self.attributes([p for p in params if isinstance(p, Named)]),
            tuple(constraints), None, self.tokens.span(token),
        )  # fmt: skip

    def param(self, name: int, *annotation: Any) -> Var:
        made = self.variable(name, annotation)
        self.bind(self.texts[name], made)
        return made

    def result(self, arrow: int, form: Any) -> Type | None:
        return None if isinstance(form, Hole) else self.to_type(form, arrow)

    # Type definitions

    def type_head(self, _keyword: int, name: int) -> tuple[int, int]:
        return len(self.undo), name

    def constructor(self, name: int) -> tuple[int, list[Any]]:
        return name, []

    def constructor_fields(self, name: int, _open: int, fields: list[Any], _close: int) -> tuple[int, list[Any]]:
        return name, fields

    def type_definition(
        self,
        head: tuple[int, int],
        params: list[TypeParam],
        _open: int,
        constructors: list[tuple[int, list[Any]]],
        _close: int,
    ) -> None:
        height, token = head
        adt = self.texts[token]
        made: list[ConstructorDef] = []
        known = {c.name: d.name for d in self.types.values() for c in d.constructors}
        for tag, (name, fields) in enumerate(constructors):
            text = self.texts[name]
            if text in known:
                raise self.error(f"constructor {text} is already one of type {known[text]}", name)
            known[text] = adt
            made.append(ConstructorDef(text, tuple(self.to_type(f, name) for f in fields), adt, tag))
        self.define_type(token, TypeDef(adt, tuple(params), tuple(made)), height)

    def extern_type(self, _keyword: int, head: tuple[int, int], params: list[TypeParam], *_semicolon: int) -> None:
        self.define_type(head[1], TypeDef(self.texts[head[1]], tuple(params), (), extern=True), head[0])

    def define_type(self, token: int, definition: TypeDef, height: int) -> None:
        if definition.name in self.types:
            raise self.error(f"type {definition.name} is defined twice", token)
        self.leave(height)
        self.types[definition.name] = definition

    # Bodies

    def block(self, opened: tuple[int, int], body: Expr, _close: int) -> Expr:
        self.leave(opened[0])
        return body

    def body(self, statements: list[Binding | None], result: Expr) -> Expr:
        bindings = tuple(b for b in statements if b is not None)
        return Block(bindings, result, None, bindings[0].var.span) if bindings else result

    def let_head(self, _keyword: int, name: int, *rest: Any) -> Var:
        # A function sees its own name; any other value sees what the name meant before, so its variable is bound after.
        made = self.variable(name, rest)
        if self.tokens.kinds[self.position] == "fn":
            self.bind(self.texts[name], made)
        return made

    def let(self, variable: Var, value: Expr, _semicolon: int) -> Binding:
        name = "%" + variable.name
        if self.env.get(name) is not variable:
            self.bind(name, variable)
        elif not isinstance(value, Function) and variable in free_vars(value):
            hint = "only a function (`let %f = fn ...;`) may refer to itself"
            raise SyntaxError_(f"{name} is used in its own value", variable.span, hint, self.tokens.text)
        return Binding(variable, value)

    def graph(self, name: int, _equals: int, value: Expr, _semicolon: int) -> None:
        self.bind(self.texts[name], value)

    def sequence(self, value: Expr, _semicolon: int) -> Binding:
        return Binding(Var("_", None, None, value.span), value)

    # Expressions

    def local(self, token: int) -> Expr:
        text = self.texts[token]
        found = self.env.get(text)
        return self.projected(text, token) if found is None else found

    graph_use = local

    def projected(self, text: str, token: int) -> Expr:
        """``%x.0.1``: the longest beginning that is a name in scope, and projections of it."""
        rest: list[int] = []
        name = text
        while "." in name:
            name, _, last = name.rpartition(".")
            if not last.isdigit():
                break
            rest.append(int(last))
            found = self.env.get(name)
            if found is not None:
                span = self.tokens.span(token)
                for index in reversed(rest):
                    found = Proj(found, index, None, span)
                made: Expr = found
                return made
        near = difflib.get_close_matches(text, [n for n in self.env if n[0] == "%"], 1)
        if near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = "bind it with let or as a parameter" + (
                "" if self.functions or text[1].isdigit() else f", or declare it: free_var {text};"
            )
        raise self.error(f"{text.rstrip('.0123456789') if text[1].isalpha() else text} is not in scope", token, hint)

    def global_(self, token: int) -> GlobalVar:
        return GlobalVar(self.texts[token][1:], None, self.tokens.span(token))

    def name(self, token: int) -> Expr:
        text = self.texts[token]
        arity = self.arity.get(text)
        if arity is None:
            if text[0].isupper() and "." not in text:
                near = difflib.get_close_matches(text, self.arity, 1)
                in_prelude = (
                    ""
                    if "prelude" in self.importing
                    else text in prelude_module().constructors and "it is in the prelude: write `import prelude`"
                )
                hint = in_prelude or (f"did you mean {near[0]}?" if near else "constructors are declared by `type T { ... }`")
                raise self.error(f"unknown constructor {text!r}", token, hint)
            return OpRef(text, None, self.tokens.span(token))
        made = ConstructorRef(text, None, self.tokens.span(token))
        if arity == 0 and self.tokens.kinds[self.position] not in ("(", "["):
            return Call(made, (), NO_ATTRS, (), None, made.span)
        return made

    def call(self, fn: Expr, _open: int, args: list[Any], _close: int) -> Expr:
        for arg in args:
            if arg.__class__ is Named:
                return self.call_with_attributes(fn, args, ())
        if fn.__class__ is OpRef and fn.name in _REFERENCE_OPERATORS:
            return self.reference(fn, args)
        return Call(fn, tuple(args), NO_ATTRS, (), None, fn.span)

    def reference(self, fn: Expr, args: list[Expr]) -> Expr:
        """The released format's spelling of references as calls."""
        match fn, args:
            case OpRef(name="ref_read"), [ref]:
                return RefRead(ref, None, fn.span)
            case OpRef(name="ref_write"), [ref, value]:
                return RefWrite(ref, value, None, fn.span)
            case _:
                return Call(fn, tuple(args), NO_ATTRS, (), None, fn.span)

    def call_typed(self, fn: Expr, opened: int, types: list[Any], _close: int, _open: int, args: list[Any], _end: int) -> Call:
        return self.call_with_attributes(fn, args, tuple(self.to_argument(t, opened) for t in types))

    def call_with_attributes(self, fn: Expr, args: list[Any], type_args: tuple[Any, ...]) -> Call:
        plain = [a for a in args if not isinstance(a, Named)]
        named = [a for a in args if isinstance(a, Named)]
        if len(plain) < len(args) and not isinstance(args[len(plain)], Named):
            raise self.error("an argument follows an attribute", named[0].token, "attributes (name=value) come last")
        return Call(fn, tuple(plain), self.attributes(named), type_args, None, fn.span)

    def attributes(self, named: list[Named]) -> Attrs:
        if not named:
            return NO_ATTRS
        made: dict[str, Attr] = {}
        for item in named:
            if item.name in made:
                raise self.error(f"the attribute {item.name} is given twice", item.token)
            made[item.name] = item.value
        return MappingProxyType(made)

    def project(self, value: Expr, token: int) -> Proj:
        return Proj(value, int(self.texts[token][1:]), None, value.span)

    def chain(self, left: Expr, op: int, right: Expr) -> list[Any]:
        return [left, op, right]

    def chain_add(self, chain: list[Any], op: int, right: Expr) -> list[Any]:
        chain += (op, right)
        return chain

    def infix(self, chain: list[Any]) -> Expr:
        """Operands and operators, in turn, by precedence; all associate to the left."""
        operands: list[Expr] = [chain[0]]
        waiting: list[tuple[int, int]] = []  # precedence and token

        def apply() -> None:
            token = waiting.pop()[1]
            right = operands.pop()
            span = self.tokens.span(token)
            operands[-1] = Call(OpRef(INFIX[self.texts[token]], None, span), (operands[-1], right), NO_ATTRS, (), None, span)

        for n in range(1, len(chain), 2):
            precedence = _PRECEDENCE.get(self.texts[chain[n]], 1)
            while waiting and waiting[-1][0] >= precedence:
                apply()
            waiting.append((precedence, chain[n]))
            operands.append(chain[n + 1])
        while waiting:
            apply()
        return operands[0]

    def negate(self, minus: int, value: Expr) -> Expr:
        span = self.tokens.span(minus)
        if (
            isinstance(value, Constant) and value.data.ndim == 0 and self.position - minus == 2
        ):  # a literal directly behind the minus
            text = "-" + self.texts[minus + 1]
            if self.tokens.kinds[minus + 1] in ("INT", "FLOAT"):
                return self.literal(text, minus)
        return Call(OpRef("negative", None, span), (value,), NO_ATTRS, (), None, span)

    def ref_read(self, bang: int, value: Expr) -> RefRead:
        return RefRead(value, None, self.tokens.span(bang))

    def ref_write(self, ref: Expr, _op: int, value: Expr) -> RefWrite:
        return RefWrite(ref, value, None, ref.span)

    def ref_new(self, token: int, _open: int, value: Expr, _close: int) -> RefNew:
        return RefNew(value, None, self.tokens.span(token))

    def grad(self, token: int, _open: int, value: Expr, _close: int) -> Grad:
        return Grad(value, None, self.tokens.span(token))

    def unit(self, opened: tuple[int, int], _close: int) -> Tuple:
        return Tuple((), None, self.tokens.span(opened[1]))

    def group(self, opened: tuple[int, int], body: Expr, _close: int) -> Expr:
        self.leave(opened[0])
        return body

    def one_tuple(self, opened: tuple[int, int], only: Expr, *_rest: int) -> Tuple:
        return Tuple((only,), None, self.tokens.span(opened[1]))

    def tuple_(self, opened: tuple[int, int], head: Expr, _comma: int, tail: list[Expr], *_rest: int) -> Tuple:
        return Tuple((head, *tail), None, self.tokens.span(opened[1]))

    def if_(self, token: int, _open: int, cond: Expr, _close: int, then: Expr, _else: int, orelse: Expr) -> If:
        return If(cond, then, orelse, None, self.tokens.span(token))

    def fn_head(self, token: int) -> tuple[int, int]:
        return len(self.undo), token

    def function(
        self, head: tuple[int, int], type_params: list[TypeParam], _open: int, params: list[Any], _close: int,
        result: Type | None, constraints: list[Relation], body: Expr,
    ) -> Function:  # fmt: skip
        return self.make_function(head, type_params, params, result, constraints, body)

    # Match

    def match_(self, token: int, _open: int, data: Expr, _close: int, _brace: int, clauses: list[Clause], _end: int) -> Match:
        return Match(data, tuple(clauses), self.texts[token] == "match", None, self.tokens.span(token))

    def clause_head(self, pattern: Pattern, _arrow: int) -> tuple[int, Pattern]:
        bound = pattern_vars(pattern)
        if len({v.name for v in bound}) != len(bound):
            raise SyntaxError_("a pattern binds a variable twice", pattern.span, "", self.tokens.text)
        return len(self.undo) - len(bound), pattern

    def clause(self, head: tuple[int, Pattern], body: Expr) -> Clause:
        self.leave(head[0])
        return Clause(head[1], body)

    def pattern_wild(self, token: int) -> PWild:
        return PWild(self.tokens.span(token))

    def pattern_var(self, token: int, *annotation: Any) -> PVar:
        made = self.param(token, *annotation)
        return PVar(made, made.span)

    def pattern_constructor(self, token: int, *rest: Any) -> PConstructor:
        text = self.texts[token]
        if text not in self.arity:
            near = difflib.get_close_matches(text, self.arity, 1)
            raise self.error(f"unknown constructor {text!r}", token, f"did you mean {near[0]}?" if near else "")
        return PConstructor(text, tuple(rest[1]) if len(rest) > 2 else (), self.tokens.span(token))

    def pattern_tuple(self, token: int, *rest: Any) -> Pattern:
        items = tuple(rest[0]) if len(rest) > 1 else ()
        if len(items) == 1 and len(rest) == 2:
            only: Pattern = items[0]
            return only
        return PTuple(items, self.tokens.span(token))

    # Constants

    def integer(self, token: int) -> Constant:
        return self.literal(self.texts[token], token)

    float_ = integer

    def boolean(self, token: int) -> Constant:
        return make_constant(self.texts[token] == "True", "bool", self.tokens.span(token))

    def literal(self, text: str, token: int) -> Constant:
        """A scalar literal; equal ones share their array."""
        data = self.literals.get(text)
        if data is None:
            data = self.literals[text] = _literal(text, self, token)
        return Constant(data, data.dtype.name, None, self.tokens.span(token))

    def number(self, token: int, *negated: int) -> tuple[int, float | bool]:
        sign, token = (-1, negated[0]) if negated else (1, token)
        text = self.texts[token]
        if self.tokens.kinds[token] == "NAME" and text not in ("inf", "nan"):
            raise self.error(f"{text} is not a number", token, "numbers, inf, nan, True and False stand in a constant")
        if self.tokens.kinds[token] == "BOOL":
            return token, text == "True"
        return token, sign * (int(text) if text.isdigit() else float(_split_float(text)[0]))

    def const_scalar(
        self, _k: int, _open: int, values: list[tuple[int, float]], _comma: int, dtype: int, _close: int
    ) -> Constant:
        return self.make_const(values, (), dtype)

    def const(
        self,
        _k: int,
        _open: int,
        values: list[tuple[int, float]],
        _comma: int,
        shape: Any,
        _comma2: int,
        dtype: int,
        _close: int,
    ) -> Constant:
        dims = self.to_shape(shape, dtype)
        if not isinstance(dims, tuple) or not all(isinstance(d, int) for d in dims):
            raise self.error("the shape of a constant is made of numbers", dtype)
        return self.make_const(values, tuple(d for d in dims if isinstance(d, int)), dtype)

    def make_const(self, values: list[tuple[int, float]], shape: tuple[int, ...], dtype: int) -> Constant:
        name = self.texts[dtype]
        if name not in NUMPY_DTYPES:
            raise self.error(f"no constant of base type {name!r}", dtype, f"one of {', '.join(NUMPY_DTYPES)}")
        try:
            data = np.array([v for _, v in values]).astype(numpy_dtype(name)).reshape(shape)
            if np.dtype(NUMPY_DTYPES[name]).kind in "iu" and any(
                int(v) != int(d) for (_, v), d in zip(values, data.ravel(), strict=True)
            ):
                raise OverflowError(f"a value is out of range for {name}")
        except (ValueError, OverflowError) as error:
            raise self.error(f"not a constant: {error}", dtype) from error
        return make_constant(data, name, self.tokens.span(dtype))

    def meta(self, token: int, _open: int, key: int, _close: int, _open2: int, index: int, _close2: int) -> Constant:
        if self.texts[key] != KEY:
            raise self.error(f"meta[{self.texts[key]}] is not known", key, f"an expression can be meta[{KEY}][n]")
        try:
            return self.constants.constant(self.integer_text(index))
        except FileError as error:
            raise FileError(error.message, self.tokens.span(token), error.hint, self.tokens.text) from error
        except RelayError as error:
            raise self.error(error.message, token, error.hint) from error

    # Attributes

    def attribute(self, name: int, _equals: int, value: Attr) -> Named:
        text = self.texts[name]
        return Named(unquote(text) if text[0] == '"' else text, value, name)

    def attr_int(self, *tokens: int) -> int:
        value = self.integer_text(tokens[-1])
        return -value if len(tokens) > 1 else value

    def attr_float(self, *tokens: int) -> float:
        text = self.texts[tokens[-1]]
        if self.tokens.kinds[tokens[-1]] == "NAME" and text not in ("inf", "nan"):
            raise self.error(f"expected a number, found {text!r}", tokens[-1])
        value = float(_split_float(text)[0])
        return -value if len(tokens) > 1 else value

    def attr_bool(self, token: int) -> bool:
        return self.texts[token] == "True"

    def attr_string(self, token: int) -> str:
        return unquote(self.texts[token])

    def empty_tuple(self, *_tokens: int) -> tuple[Attr, ...]:
        return ()

    def attr_tuple(self, _open: int, items: list[Attr], *_rest: int) -> tuple[Attr, ...]:
        return tuple(items)

    def empty_dict(self, *_tokens: int) -> Attr:
        return MappingProxyType({})

    def attr_item(self, key: int, _colon: int, value: Attr) -> tuple[str, Attr]:
        return unquote(self.texts[key]), value

    def attr_dict(self, _open: int, items: list[tuple[str, Attr]], _close: int) -> Attr:
        return MappingProxyType(dict(items))

    def attr_meta(self, token: int, *_rest: int) -> Attr:
        raise self.error("an attribute cannot be a metadata reference", token, "write the value")

    def attr_type(self, form: Any) -> Attr:
        match form:
            case BaseName():
                return scalar(form.name)
            case ShapeForm():
                return tuple(form.dims)
            case Text():
                return form.value
            case Undeclared() if self.texts[form.token] == "None":
                return None
            case Undeclared() if self.texts[form.token] in ("inf", "nan"):
                return float(self.texts[form.token])
            case Undeclared():
                text = self.texts[form.token]
                raise self.error(f"{text!r} is not a value", form.token, f'a string is written "{text}"')
            case _:
                made: Attr = form
                return made


def unquote(text: str) -> str:
    """The value of a string token: ``\\n``, ``\\t``, ``\\"``, ``\\\\`` and ``\\uXXXX`` are escapes."""
    inside = text[1:-1]
    if "\\" not in inside:
        return inside
    out: list[str] = []
    n = 0
    while n < len(inside):
        if inside[n] != "\\":
            out.append(inside[n])
            n += 1
        elif inside[n + 1] == "u" and len(inside) >= n + 6:
            out.append(chr(int(inside[n + 2 : n + 6], 16)))
            n += 6
        else:
            out.append({"n": "\n", "t": "\t", "r": "\r"}.get(inside[n + 1], inside[n + 1]))
            n += 2
    return "".join(out)


def _split_float(text: str) -> tuple[str, str]:
    """The digits and the base type of a float literal (float32 when it does not say)."""
    for suffix, dtype in _FLOAT_SUFFIXES:
        if text.endswith(suffix) and text != "inf":
            return text[: -len(suffix)], dtype
    return text, "float32"


def _literal(text: str, parser: TypeActions, token: int) -> npt.NDArray[np.generic]:
    digits, dtype = text, "int32"
    for mark, kind in (("i", "int"), ("u", "uint")):
        if mark in text:
            digits, _, bits = text.partition(mark)
            dtype = kind + bits
    if digits is text and not text.lstrip("-").isdigit():
        digits, dtype = _split_float(text)
        made: npt.NDArray[np.generic] = np.array(float(digits)).astype(numpy_dtype(dtype))
    else:
        value = int(digits)
        bounds = ml_dtypes.iinfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
        if not int(bounds.min) <= value <= int(bounds.max):
            hint = "write it with i64" if -(2**63) <= value < 2**63 and dtype == "int32" else ""
            raise parser.error(f"{digits} does not fit in {dtype}", token, hint)
        made = np.array(value, dtype=numpy_dtype(dtype))
    made.flags.writeable = False
    return made
