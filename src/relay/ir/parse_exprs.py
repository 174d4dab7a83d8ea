"""The parser's actions for functions, bodies, expressions and patterns.

Rules end from left to right, so names are resolved on the way: ``env`` is the scope at that point, and leaving a scope takes its
bindings back.
"""

from __future__ import annotations

import difflib
import re
from types import MappingProxyType
from typing import Any

from relay.ir.diagnostics import SyntaxError_
from relay.ir.dim import ANY, DimVar, SymDim
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
from relay.ir.lexer import Tokens
from relay.ir.metadata import ConstantTable
from relay.ir.parse_literals import LiteralActions, MetaReference
from relay.ir.parse_types import Hole, Named
from relay.ir.types import Relation, Type, TypeParam
from relay.ir.walk import free_vars, pattern_vars

INFIX = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal", "==": "equal", "!=": "not_equal",
}  # fmt: skip
_REFERENCE_OPERATORS = frozenset({"ref_read", "ref_write"})
_PRECEDENCE = {"*": 3, "/": 3, "+": 2, "-": 2}
_PRELUDE_CONSTRUCTORS = frozenset({"Cons", "Nil", "Some", "None", "Rose"})


class ExprActions(LiteralActions):
    """The actions for bodies, expressions and patterns. ``arity`` has the constructors in scope, 0 for those without fields."""

    def __init__(self, tokens: Tokens, constants: ConstantTable) -> None:
        super().__init__(tokens, constants)
        self.arity: dict[str, int] = {}
        self.in_definition = False

    # Functions

    def variable(self, name: int, annotation: tuple[Any, ...]) -> Var:
        """A new variable with its annotation, if ``annotation`` is ``":" type ...`` of one that says something."""
        type_ = None
        if len(annotation) > 1 and not isinstance(annotation[1], Hole):
            type_ = self.to_type(annotation[1], name)
        return Var(self.texts[name][1:], type_, None, self.tokens.span(name))

    def param(self, name: int, *annotation: Any) -> Var:
        made = self.variable(name, annotation)
        self.bind(self.texts[name], made)
        return made

    def placed_param(self, name: int, _placement: None, *annotation: Any) -> Var:
        return self.param(name, *annotation)

    def placement(self, _open: int, name: int, _equals: int, _value: object, _close: int) -> None:
        """``{virtual_device=...}`` behind a parameter: where released compilers planned it to be. Planning is done again here."""
        if self.texts[name] != "virtual_device":
            raise self.error(f"a parameter has no {self.texts[name]!r}", name, "only virtual_device=... can stand here")

    def result(self, arrow: int, form: Any) -> Type | None:
        return None if isinstance(form, Hole) else self.to_type(form, arrow)

    def make_function(
        self, head: tuple[int, int], type_params: list[TypeParam], params: list[Any], result: Type | None,
        constraints: list[Relation], body: Expr,
    ) -> Function:  # fmt: skip
        height, token = head
        variables = tuple(p for p in params if not isinstance(p, Named))
        if len({v.name for v in variables}) != len(variables):
            raise self.error("two parameters have the same name", token)
        if len({p.name for p in type_params}) != len(type_params):
            raise self.error("two parameters for types or sizes have the same name", token)
        self.leave(height)
        return Function(
            variables, body, result, tuple(type_params), self.attributes([p for p in params if isinstance(p, Named)]),
            tuple(constraints), None, self.tokens.span(token),
        )  # fmt: skip

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
        divided, _, divisor = text.partition("/")
        near = difflib.get_close_matches(text, [n for n in self.env if n[0] == "%"], 1)
        if divisor and re.sub(r"(\.\d+)+$", "", divided) in self.env:
            hint = f"/ may be part of a name: a quotient of {divided} has spaces around it, {divided} / {divisor}"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = "bind it with let or as a parameter" + (
                "" if self.in_definition or text[1].isdigit() else f", or declare it: free_var {text};"
            )
        raise self.error(f"{text.rstrip('.0123456789') if text[1].isalpha() else text} is not in scope", token, hint)

    def global_(self, token: int) -> GlobalVar:
        return GlobalVar(self.texts[token][1:], None, self.tokens.span(token))

    def name(self, token: int) -> Expr:
        text = self.texts[token]
        arity = self.arity.get(text)
        if arity is None:
            if text == "Dim" and self.tokens.kinds[self.position] == "[":
                return OpRef(text, None, self.tokens.span(token))  # `size_value` takes its place
            if isinstance(self.env.get(text), SymDim) and self.tokens.kinds[self.position] not in ("(", "["):
                raise self.error(f"{text} is a size, where a value is wanted", token, f"as a value it is Dim[{text}]")
            if text[0].isupper() and "." not in text:
                near = difflib.get_close_matches(text, self.arity, 1)
                in_prelude = "it is in the prelude: write `import prelude`" if text in _PRELUDE_CONSTRUCTORS else ""
                if text == "Dim":
                    in_prelude = "a size as a value is written Dim[n]"
                hint = in_prelude or (
                    f"did you mean {near[0]}?" if near else "constructors are declared by `type T { ... }`"
                )
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

    def call_typed(
        self, fn: Expr, opened: int, types: list[Any], _close: int, _open: int, args: list[Any], _end: int
    ) -> Call:
        return self.call_with_attributes(fn, args, tuple(self.to_argument(t, opened) for t in types))

    def size_value(self, fn: Expr, opened: int, types: list[Any], _close: int) -> Call:
        """``Dim[2*n]`` where a value stands: the size, an int64 scalar."""
        if not isinstance(fn, OpRef) or fn.name != "Dim":
            hint = "write f[...](...); an element or a row of a tensor is take(%x, 0, axis=0)"
            raise self.error("type arguments stand before the arguments of a call", opened, hint)
        if len(types) != 1:
            raise self.error("Dim has one argument", opened, "for example Dim[4*n]")
        size = self.to_dim(types[0], opened)
        if size is ANY:
            raise self.error("a size that is a value needs a name", opened, "declare it: [n: Dim], and write Dim[n]")
        return Call(OpRef("size_of", None, fn.span), (), MappingProxyType({"size": size}), (), None, fn.span)

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
            if isinstance(item.value, MetaReference):
                if item.name == "virtual_device":
                    continue  # where a value was planned to be; planning is done again here
                raise self.error("an attribute cannot be a metadata reference", item.value.token, "write the value")
            if item.name in made:
                raise self.error(f"the attribute {item.name} is given twice", item.token)
            made[item.name] = item.value
        return MappingProxyType(made)

    def project(self, value: Expr, token: int) -> Proj:
        return Proj(value, self.whole(self.texts[token][1:], token), None, value.span)

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
            operands[-1] = Call(
                OpRef(INFIX[self.texts[token]], None, span), (operands[-1], right), NO_ATTRS, (), None, span
            )

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
            if self.tokens.kinds[minus + 1] == "INT":
                return self.literal("-" + self.integer_with_type(minus + 1), minus)
            if self.tokens.kinds[minus + 1] == "FLOAT":
                return self.literal("-" + self.texts[minus + 1], minus)
        return Call(OpRef("negative", None, span), (value,), NO_ATTRS, (), None, span)

    def ref_read(self, bang: int, value: Expr) -> RefRead:
        return RefRead(value, None, self.tokens.span(bang))

    def ref_write(self, ref: Expr, _op: int, value: Expr) -> RefWrite:
        return RefWrite(ref, value, None, ref.span)

    def ref_new(self, token: int, _open: int, value: Expr, _close: int) -> RefNew:
        return RefNew(value, None, self.tokens.span(token))

    def grad(self, token: int, _open: int, value: Expr, _close: int) -> Grad:
        return Grad(value, None, self.tokens.span(token))

    def jvp(self, token: int, _open: int, value: Expr, _close: int) -> Grad:
        return Grad(value, None, self.tokens.span(token), forward=True)

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
        self.named[token] = frozenset(self.unknown)
        return len(self.undo), token

    def own_sizes(self) -> frozenset[str]:
        """The names like ``?n`` that there are behind the parameters of a function."""
        return frozenset(self.unknown)

    def function(
        self, head: tuple[int, int], type_params: list[TypeParam], _open: int, params: list[Any], _close: int,
        named: frozenset[str], result: Type | None, constraints: list[Relation], body: Expr,
    ) -> Function:  # fmt: skip
        # A size that its parameters name first is its own, as one that a definition's parameters name is the definition's.
        first = [n for n in self.unknown if n in named - self.named[head[1]]]
        own = [self.unknown.pop(n) for n in first if isinstance(self.unknown[n], DimVar)]
        return self.make_function(head, [*type_params, *own], params, result, constraints, body)

    # Match

    def match_(
        self, token: int, _open: int, data: Expr, _close: int, _brace: int, clauses: list[Clause], _end: int
    ) -> Match:
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
        # Parentheses are always a tuple, of one field too: grouping means nothing in a pattern.
        return PTuple(tuple(rest[0]) if len(rest) > 1 else (), self.tokens.span(token))
