"""From text to an untyped program with spans: `parse_module`, `parse_expr`, `parse_type`.

The LALR engine calls the actions as rules end: those for types are in `relay.ir.parse_types`, for constants and attributes in
`relay.ir.parse_literals`, for expressions in `relay.ir.parse_exprs`, for modules here. Names of types and constructors are
collected before parsing, because they may be used before their declaration.
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.ir import lalr
from relay.ir.collection import without_collection
from relay.ir.diagnostics import FileError, SyntaxError_
from relay.ir.expr import Constant, Expr, Function, Var
from relay.ir.files import read_program
from relay.ir.lexer import VERSION, Tokens, tokenize
from relay.ir.metadata import ConstantTable
from relay.ir.module import Module, used_of
from relay.ir.parse_exprs import ExprActions
from relay.ir.types import ConstructorDef, Kind, Relation, Type, TypeDef, TypeParam

if TYPE_CHECKING:
    import numpy.typing as npt


# What definitions, and texts without anything, begin with: these say their version.
_DEFINES = ("def", "type", "extern", "import", "$END")


def parse_module(
    text: str,
    source_name: str = "<text>",
    base: Path | None = None,
    constants: Sequence[npt.ArrayLike | Constant] = (),
) -> Module:
    """The module of a text, untyped. It begins with ``#[version = "0.0.5"]``, which a text that is one expression may leave out.

    A text that is an expression becomes ``@main``: itself when it is a function, otherwise a function of its free variables.
    ``base`` is the folder that imports and files of constants are relative to (by default that of ``source_name``, if it is a
    file). ``constants`` are ``meta[relay.Constant][0]`` and so on of a text without a metadata section. Raises SyntaxError_ with
    the place, and FileError for files it names.
    """
    return _parse_module(text, source_name, base, (), constants)


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


def _parse_module(
    text: str,
    source_name: str,
    base: Path | None,
    importing: tuple[str, ...],
    constants: Sequence[npt.ArrayLike | Constant] = (),
) -> Module:
    tokens = tokenize(text, source_name)
    if tokens.version is None and tokens.kinds[0] in _DEFINES:
        hint = f'begin the text with #[version = "{VERSION}"]'
        raise SyntaxError_("the text does not say its version", tokens.span_at(0, 1), hint, text)
    if base is None and Path(source_name).is_file():
        base = Path(source_name).resolve().parent
    try:
        module: Module = _Parser(tokens, base, importing, constants=constants).run("module")
    except SyntaxError_ as error:
        if tokens.version is None:
            begins = f'a program begins with #[version = "{VERSION}"]'
            error.hint = f"{error.hint}; {begins}" if error.hint else begins
        raise
    return module


LIBRARIES = ("prelude", "nn")


@cache
def library_module(name: str) -> Module:
    """One of the libraries that come with the language, parsed once per process."""
    text = importlib.resources.files("relay.ir").joinpath(f"{name}.relay").read_text()
    return _parse_module(text, f"{name}.relay", None, (name,))


def prelude_module() -> Module:
    """The prelude."""
    return library_module("prelude")


class _Parser(ExprActions):
    """The actions for modules. ``importing`` are the texts whose imports led here."""

    def __init__(
        self,
        tokens: Tokens,
        base: Path | None,
        importing: tuple[str, ...],
        scope: Module | None = None,
        constants: Sequence[npt.ArrayLike | Constant] = (),
    ) -> None:
        super().__init__(tokens, ConstantTable(tokens.metadata, base, constants))
        self.base = base
        self.importing = importing
        self.functions: dict[str, Function] = {}
        self.types: dict[str, TypeDef] = {}
        # Modules in scope; of those with a name only what is used becomes part of this one.
        self.imported: list[tuple[Module, str | None]] = [] if scope is None else [(scope, "scope")]
        self.free: list[Var] = []
        self.declare_types()

    def run(self, start: str) -> Any:
        with without_collection():
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
                self.adts[definition.name] = tuple(
                    Kind.DIM if not hasattr(p, "kind") else p.kind for p in definition.params
                )
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
        library = name.removesuffix(".rly").removesuffix(".relay")
        if library in LIBRARIES:
            if library not in self.importing:
                self.imported.append((library_module(library), library))
            return
        path = (self.base or Path()) / name
        key = str(path.resolve())
        if key in self.importing:
            raise self.error(f"{name} imports itself", token, " -> ".join((*self.importing, key)))
        try:
            if path.exists() and not path.is_file():
                raise FileError(f"{path} is not a regular file")
            text = read_program(path)
            self.imported.append((_parse_module(text, str(path), path.parent, (*self.importing, key)), None))
        except FileError as error:
            near = difflib.get_close_matches(library, LIBRARIES, 1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise self.error(f"cannot read the import {name}: {error.message}", token, hint) from error

    def import_(self, _keyword: int, _name: int, *_semicolon: int) -> None:
        return None

    # Modules

    def module(self, _items: object) -> Module:
        functions, types = dict(self.functions), dict(self.types)
        sources = {self.tokens.source: self.tokens.text}
        for module, library in self.imported:
            for name, definition in module.types.items():
                types.setdefault(name, definition)
            if library is None:
                for name, function in module.functions.items():
                    functions.setdefault(name, function)
            sources.update(module.sources)
        for module, library in self.imported:
            if library is not None:
                for name, function in used_of(module.functions, functions, library).items():
                    functions.setdefault(name, function)
        return Module(functions, types, sources)

    def expression_module(self, body: Expr) -> Module:
        main = (
            body if isinstance(body, Function) and not self.free else Function(tuple(self.free), body, span=body.span)
        )
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

    # Type definitions

    def type_head(self, _keyword: int, name: int) -> tuple[int, int]:
        return len(self.undo), name

    def constructor(self, name: int, *_parentheses: int) -> tuple[int, list[Any]]:
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
        if len({p.name for p in definition.params}) != len(definition.params):
            raise self.error(f"two parameters of type {definition.name} have the same name", token)
        self.leave(height)
        self.types[definition.name] = definition
