"""From a program to text that parses back to an alpha-equal program: `module_text`, `expr_text`, `type_text`.

Statements are printed as Relay printed them: an operand that is not a name or a literal gets a line of its own,
``%3 = add(%2, 1f);``, and a node that is used more than once exactly one. Such a line stands in the innermost
braces around all its uses, before the first of them. Everything is iterative, and linear in the size of the graph (times the log
of the depth for nodes shared across braces).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from relay.ir.collection import without_collection
from relay.ir.expr import (
    Binding,
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
)
from relay.ir.lexer import VERSION
from relay.ir.metadata import KEY, entry_of
from relay.ir.scopes import Layout
from relay.ir.text_types import NameSpace, TypeText, constant_text, legal_global, legal_local
from relay.ir.types import Type, TypeDef
from relay.ir.walk import free_vars

if TYPE_CHECKING:
    from relay.ir.module import Module

_HEADER = f'#[version = "{VERSION}"]\n'
_WIDEST = 110  # characters of parameters on one line
_DEEPEST = 24  # indentation stops growing here, so that deep nesting prints in linear size

# How the metadata section is written: given the constants, its text ("" for none).
MetadataWriter = Callable[[Sequence[Constant]], str]


def module_text(
    module: Module, *, complete: bool = True, types: bool = False, metadata: MetadataWriter | None = None
) -> str:
    """The text of a module. ``complete``: with the constants' data (otherwise large ones are only mentioned); ``types``: with
    inferred types as comments; ``metadata`` writes the metadata section another way (to a file, say)."""
    printer = _Printer(module.functions, module.types, types, show_constants=not complete)
    with without_collection():
        for definition in module.types.values():
            printer.type_definition(definition)
        for name, function in module.functions.items():
            printer.definition(name, function)
    return _HEADER + printer.text() + printer.metadata((metadata or metadata_section) if complete else None)


def expr_text(expr: Expr, *, complete: bool = True, types: bool = False) -> str:
    """The text of an expression, with ``free_var`` lines for what it leaves open."""
    printer = _Printer({}, {}, types, show_constants=not complete)
    with without_collection():
        printer.open_term(expr)
    return printer.text() + printer.metadata(metadata_section if complete else None)


def type_text(type_: Type) -> str:
    """The text of a type."""
    return TypeText().type(type_)


def metadata_section(constants: Sequence[Constant]) -> str:
    """The metadata section with the constants' data in it."""
    return f"#[metadata]\n{json.dumps({KEY: [entry_of(c) for c in constants]}, indent=1)}\n" if constants else ""


_ATOMS = frozenset({Var, GlobalVar, Constant, OpRef, ConstructorRef})


class _Printer:
    """Pieces of text in order. The work stack holds (method, arguments): what is still to be printed, next on top."""

    def __init__(self, functions: Iterable[str], type_names: Iterable[str], types: bool, show_constants: bool) -> None:
        self.type_names = tuple(type_names)
        self.with_types = types
        self.show_constants = show_constants
        self.out: list[str] = []
        self.constants: list[Constant] = []
        self.constant_names: dict[int, str] = {}
        self.globals: dict[str, str] = {}
        space = NameSpace()
        for name in functions:
            self.globals[name] = space.unique(legal_global(name))
        self.work: list[tuple[Any, ...]] = []
        self.indent = 0
        self.margin = ""
        self.start_definition()

    def start_definition(self) -> None:
        """Fresh names for the variables of one function."""
        self.names: dict[int, str] = {}
        self.space = NameSpace()
        self.type_text = TypeText(self.type_names)
        self.count = 0
        self.layout = Layout()

    def text(self) -> str:
        return "".join(self.out)

    def metadata(self, writer: MetadataWriter | None) -> str:
        return writer(self.constants) if writer is not None else ""

    # Definitions

    def type_definition(self, d: TypeDef) -> None:
        names = TypeText(self.type_names)
        head = f"type {d.name}{names.declare(d.params)}"
        if d.extern:
            self.out.append(f"extern {head}\n\n")
            return
        lines = [
            f"  {c.name}{'(' + ', '.join(map(names.type, c.fields)) + ')' if c.fields else ''},\n"
            for c in d.constructors
        ]
        self.out.append(f"{head} {{\n{''.join(lines)}}}\n\n")

    def definition(self, name: str, function: Function) -> None:
        self.start_definition()
        self.layout = Layout.of(function)
        self.out.append(f"def @{self.globals[name]}{self.signature(function, definition=True)} {{\n")
        self.push((self.raise_indent,), (self.body, function.body), (self.lower_indent,), (self.write, "}\n\n"))
        self.run()

    def open_term(self, expr: Expr) -> None:
        self.layout = Layout.of(expr)
        for v in free_vars(expr):
            self.out.append(f"free_var {self.binder(v)};\n")
        self.push((self.body, expr))
        self.run()

    def push(self, *items: tuple[Any, ...]) -> None:
        self.work.extend(reversed(items))

    def run(self) -> None:
        work = self.work
        while work:
            item = work.pop()
            item[0](*item[1:])

    def write(self, text: str) -> None:
        self.out.append(text)

    def raise_indent(self) -> None:
        self.indent += 1
        self.margin = "  " * min(self.indent, _DEEPEST)

    def lower_indent(self) -> None:
        self.indent -= 1
        self.margin = "  " * min(self.indent, _DEEPEST)
        self.out.append(self.margin)

    # Names and signatures

    def name(self, v: Var) -> str:
        found = self.names.get(id(v))
        if found is None:
            found = self.names[id(v)] = "%" + self.space.unique(legal_local(v.name))
        return found

    def binder(self, v: Var) -> str:
        name = self.name(v)
        if v.annotation is not None:
            name += f": {self.type_text.type(v.annotation)}"
        return name + self.type_comment(v.ty)

    def type_comment(self, ty: Type | None) -> str:
        return f" /* ty={self.type_text.type(ty)} */" if self.with_types and ty is not None else ""

    def signature(self, f: Function, definition: bool) -> str:
        declared = self.type_text.declare(f.type_params)
        params = [*map(self.binder, f.params), *self.type_text.attrs(f.attrs)]
        result = f" -> {self.type_text.type(f.ret_type)}" if f.ret_type is not None else ""
        gap = "" if definition else " "
        wide = sum(map(len, params)) + 2 * len(params) > _WIDEST
        separator = f",\n{self.margin}    " if wide else ", "
        return f"{declared}{gap}({separator.join(params)}){result}{self.type_text.where(f.constraints)}"

    # Bodies: what stands between braces

    def body(self, root: Expr) -> None:
        """Statements and the result, each on its line."""
        if isinstance(root, Block) and id(root) in self.layout.inlined:
            self.lets(root)
        else:
            self.result(root)

    def lets(self, block: Block) -> None:
        self.push((self.result, block.result))
        self.work.extend((self.binding, b) for b in reversed(block.bindings))

    def binding(self, b: Binding) -> None:
        sequence = b.var.name == "_" and b.var.annotation is None and not self.layout.variable_uses.get(id(b.var))
        head = "" if sequence else f"let {self.binder(b.var)} = "
        self.statement(head, b.value, ";")

    def result(self, e: Expr) -> None:
        self.statement("", e, "")

    def statement(self, head: str, e: Expr, tail: str) -> None:
        """A line ``head e tail``, behind the lines it needs."""
        if self.is_named(e):
            self.push((self.need, e), (self.line_of_name, head, e, tail))
        else:
            self.push((self.line, head, e, tail))
            self.require(e)

    def line_of_name(self, head: str, e: Expr, tail: str) -> None:
        self.out.append(f"{self.margin}{head}{self.atom(e)}{tail}\n")

    def line(self, head: str, e: Expr, tail: str) -> None:
        text = self.simple(e)
        if text is not None:
            self.out.append(f"{self.margin}{head}{text}{tail}{self.type_comment(e.ty)}\n")
            return
        self.out.append(f"{self.margin}{head}")
        self.push((self.write, f"{tail}{self.type_comment(e.ty)}\n"))
        self.compound(e)

    def is_named(self, e: Expr) -> bool:
        """An atom, or a node that has (or will have) a name because it is shared."""
        return e.__class__ in _ATOMS or self.layout.shared(e)

    # Operands: what needs a name, a literal, or a line of its own before

    def need(self, e: Expr) -> None:
        """See that `atom` can say ``e``: print the line that binds it, behind the lines that one needs."""
        if e.__class__ in _ATOMS or id(e) in self.names:
            return
        if self.is_inline(e):
            if isinstance(e, Proj):
                self.need(e.tuple)
            return
        self.push((self.graph_line, e))
        self.require(e)

    def require(self, e: Expr) -> None:
        """Push what must be printed before the line of ``e``."""
        items: list[Expr] = []
        items += self.layout.before(e)
        match e:
            case Call():
                items += (e.fn, *e.args)
            case Tuple():
                items += e.fields
            case Proj():
                items.append(e.tuple)
            case If():
                items.append(e.cond)
            case Match():
                items.append(e.data)
            case RefNew():
                items.append(e.value)
            case RefRead():
                items.append(e.ref)
            case RefWrite():
                items += (e.ref, e.value)
            case Grad():
                items.append(e.fn)
            case _:
                pass
        for item in reversed(items):
            if item.__class__ not in _ATOMS and id(item) not in self.names:
                self.work.append((self.need, item))

    def is_inline(self, e: Expr) -> bool:
        """Small enough to be an operand as it is: a projection of a name, a constructor without fields, the empty tuple."""
        if self.layout.shared(e):
            return False
        match e:
            case Proj():
                return not isinstance(e.tuple, Proj) or not self.is_inline(e.tuple)
            case Call():
                return not e.args and not e.attrs and not e.type_args and isinstance(e.fn, ConstructorRef)
            case Tuple():
                return not e.fields
            case _:
                return False

    def graph_line(self, e: Expr) -> None:
        if id(e) in self.names:
            return
        name = f"%{self.count}"
        self.count += 1
        text = self.simple(e)
        if text is not None:
            self.out.append(f"{self.margin}{name} = {text};{self.type_comment(e.ty)}\n")
            self.names[id(e)] = name
            return
        self.out.append(f"{self.margin}{name} = ")
        self.push((self.end_graph_line, e, name))
        self.compound(e)

    def end_graph_line(self, e: Expr, name: str) -> None:
        self.out.append(f";{self.type_comment(e.ty)}\n")
        self.names[id(e)] = name

    def atom(self, e: Expr) -> str:
        """The text of an operand."""
        match e:
            case Var():
                return self.names.get(id(e)) or self.name(e)
            case GlobalVar():
                return "@" + (self.globals.get(e.name) or legal_global(e.name))
            case Constant():
                return self.constant(e)
            case OpRef() | ConstructorRef():
                return e.name
            case _:
                found = self.names.get(id(e))
                if found is not None:
                    return found
                text = self.simple(e)
                if text is None:
                    raise AssertionError(f"{type(e).__name__} is not an operand")
                return text

    def operand(self, e: Expr) -> str:
        """An operand in front of a call's or a projection's suffix, or of ``:=``."""
        text = self.atom(e)
        return f"({text})" if isinstance(e, Constant) else text

    def constant(self, c: Constant) -> str:
        text = self.constant_names.get(id(c))
        if text is None:
            text = constant_text(c)
            if text is None:
                text = f"meta[{KEY}][{len(self.constants)}]"
                if self.show_constants:
                    shape = ", ".join(map(str, c.data.shape)) + ("," if c.data.ndim == 1 else "")
                    text += f" /* Tensor[({shape}), {c.dtype}] */"
                self.constants.append(c)
                self.constant_names[id(c)] = text
        return text

    # Nodes over operands that can be said

    def simple(self, e: Expr) -> str | None:
        """The text of a node without braces; None for one that has them."""
        match e:
            case Call():
                if not e.args and not e.attrs and not e.type_args and isinstance(e.fn, ConstructorRef):
                    return e.fn.name
                args = [self.atom(a) for a in e.args]
                if e.attrs:
                    args += self.type_text.attrs(e.attrs)
                fn = self.operand(e.fn)
                if e.type_args:
                    fn += f"[{', '.join(map(self.type_text.type_argument, e.type_args))}]"
                return f"{fn}({', '.join(args)})"
            case Tuple():
                return f"({', '.join(map(self.atom, e.fields))}{',' if len(e.fields) == 1 else ''})"
            case Proj():
                inner = self.operand(e.tuple)
                if isinstance(e.tuple, GlobalVar | OpRef | ConstructorRef):
                    inner = f"({inner})"
                # %x.0 is the variable of that name, where there is one.
                if f"{inner[1:]}.{e.index}" in self.space.taken:
                    inner = f"({inner})"
                return f"{inner}.{e.index}"
            case RefNew():
                return f"ref({self.atom(e.value)})"
            case RefRead():
                return f"!{self.atom(e.ref)}"
            case RefWrite():
                return f"{self.operand(e.ref)} := {self.atom(e.value)}"
            case Grad():
                return f"{'jvp' if e.forward else 'grad'}({self.atom(e.fn)})"
            case If() | Match() | Function() | Block():
                return None
            case _:
                return self.atom(e)

    def compound(self, e: Expr) -> None:
        """Print a node with braces (the line's head is out, what follows the node is on the work stack)."""
        match e:
            case Function():
                self.out.append(f"fn{self.signature(e, definition=False)} ")
                self.braces(e.body)
            case If():
                self.out.append(f"if ({self.atom(e.cond)}) ")
                self.push((self.braces, e.then), (self.write, " else "), (self.braces, e.orelse))
            case Match():
                self.out.append(f"match{'' if e.complete else '?'} ({self.atom(e.data)}) {{\n")
                items: list[tuple[Any, ...]] = [(self.raise_indent,)]
                for c in e.clauses:
                    items += ((self.clause_head, c.pattern), (self.braces, c.body, True), (self.write, ",\n"))
                self.push(*items, (self.lower_indent,), (self.write, "}"))
            case Block():
                self.out.append("{\n")
                self.push((self.raise_indent,), (self.lets, e), (self.lower_indent,), (self.write, "}"))
            case _:
                raise AssertionError(f"{type(e).__name__} has no braces")

    def clause_head(self, pattern: Pattern) -> None:
        self.out.append(f"{self.margin}{self.pattern(pattern)} => ")

    def braces(self, body: Expr, bare: bool = False) -> None:
        """``{ body }``, on one line when nothing has to stand before it; ``bare`` leaves out the braces then."""
        while isinstance(body, Block) and not body.bindings:
            body = body.result
        if self.fits_line(body):
            text = self.atom(body)
            self.out.append(f"{text}" if bare else f"{{ {text} }}")
            return
        self.out.append("{\n")
        self.push((self.raise_indent,), (self.body, body), (self.lower_indent,), (self.write, "}"))

    def fits_line(self, body: Expr) -> bool:
        if body.__class__ in _ATOMS or id(body) in self.names:
            return True
        operands: Iterable[Expr]
        match body:
            case Call():
                operands = (body.fn, *body.args)
            case Tuple():
                operands = body.fields
            case Proj():
                operands = (body.tuple,)
            case RefRead():
                operands = (body.ref,)
            case _:
                return False
        if self.layout.shared(body) or self.layout.before(body):
            return False
        return all(o.__class__ in _ATOMS or id(o) in self.names or self.is_small(o) for o in operands)

    def is_small(self, e: Expr) -> bool:
        """Inline, and so are its operands."""
        if not self.is_inline(e):
            return False
        return not isinstance(e, Proj) or e.tuple.__class__ in _ATOMS or id(e.tuple) in self.names

    def pattern(self, root: Pattern) -> str:
        out: list[str] = []
        todo: list[str | Pattern] = [root]
        while todo:
            p = todo.pop()
            match p:
                case str():
                    out.append(p)
                case PWild():
                    out.append("_")
                case PVar():
                    out.append(self.binder(p.var))
                case PConstructor() if not p.fields:
                    out.append(p.name)
                case PConstructor() | PTuple():
                    parts: list[str | Pattern] = [f"{p.name}(" if isinstance(p, PConstructor) else "("]
                    for n, f in enumerate(p.fields):
                        parts += (", ", f) if n else (f,)
                    parts.append(",)" if isinstance(p, PTuple) and len(p.fields) == 1 else ")")
                    todo.extend(reversed(parts))
        return "".join(out)
