"""The parser's actions for types, shapes, dimensions and type parameters.

They share one grammar, because only the place tells ``(n, 4)``, a shape, from ``(A, B)``, a tuple type. Actions give neutral
forms; `to_type`, `to_shape`, `to_dim` and `to_base` turn one into what the place wants, or say what is wrong with it.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from relay.ir.diagnostics import SyntaxError_
from relay.ir.dim import (
    ANY,
    AnyDim,
    Dim,
    DimVar,
    SymDim,
    as_dim,
    attribute_size,
    dim_add,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mod,
    dim_mul,
    dim_sub,
)  # fmt: skip
from relay.ir.expr import Attr
from relay.ir.lexer import Tokens
from relay.ir.record import record
from relay.ir.types import (
    BASE_TYPE,
    MOST_NESTED,
    AdtType,
    BaseType,
    FuncType,
    Kind,
    RefType,
    Relation,
    Shape,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeParam,
    TypeVar,
    nesting,
    scalar,
)  # fmt: skip

# Names of base types without a width, as the released format reads them.
_DEFAULT_WIDTHS = {"int": "int32", "uint": "uint32", "float": "float32"}
_KINDS = {kind.value: kind for kind in Kind}


@record(frozen=True, slots=True)
class BaseName:
    """A base type's name: a scalar type where a type is wanted."""

    name: str


@record(frozen=True, slots=True)
class Undeclared:
    """A name that means nothing in scope (an error wherever it is used)."""

    token: int


@record(frozen=True, slots=True)
class Unknown:
    """``?n``: a size or type that nothing declares, shared by name within a definition."""

    name: str


@record(frozen=True, slots=True)
class Hole:
    """``_``: a type that is left to inference."""


@record(frozen=True, slots=True)
class Group:
    """``(a, b)``: a shape, a tuple type, or parentheses."""

    items: tuple[Any, ...]
    trailing: bool
    token: int
    nesting: int


@record(frozen=True, slots=True)
class ShapeForm:
    """``Shape(n, 4)``: a shape where a type argument could be a tuple type."""

    dims: tuple[Dim, ...]


@record(frozen=True, slots=True)
class Text:
    """A string (the device of a tensor type)."""

    value: str


@record(frozen=True, slots=True)
class Named:
    """``name=value`` among arguments or parameters."""

    name: str
    value: Attr
    token: int


class TypeActions:
    """What the parser does with types. ``env`` maps names in scope; ``adts`` maps type names to the kinds of their parameters."""

    def __init__(self, tokens: Tokens, adts: dict[str, tuple[Kind, ...]]) -> None:
        self.tokens = tokens
        self.texts = tokens.texts
        self.adts = adts
        self.env: dict[str, Any] = {}
        self.undo: list[tuple[str, Any]] = []
        self.position = 0
        self.unknown: dict[str, DimVar | TypeVar] = {}
        self.named: dict[int, frozenset[str]] = {}  # where a function begins: what has a name like ``?n`` already

    # Scope

    def bind(self, name: str, value: object) -> None:
        self.undo.append((name, self.env.get(name)))
        self.env[name] = value

    def leave(self, height: int) -> None:
        """Take back every binding made since ``len(undo)`` was ``height``."""
        undo, env = self.undo, self.env
        while len(undo) > height:
            name, old = undo.pop()
            if old is None:
                del env[name]
            else:
                env[name] = old

    def enter(self, token: int) -> tuple[int, int]:
        """Open a scope: its height and the token that opened it."""
        return len(self.undo), token

    def error(self, message: str, token: int, hint: str = "") -> SyntaxError_:
        return SyntaxError_(message, self.tokens.span(token), hint, self.tokens.text)

    # Lists

    def list_one(self, item: Any) -> list[Any]:
        return [item]

    def list_second(self, _separator: int, item: Any) -> list[Any]:
        return [item]

    def list_add(self, items: list[Any], *rest: Any) -> list[Any]:
        items.append(rest[-1])
        return items

    def empty(self, *_tokens: int) -> list[Any]:
        return []

    def first(self, value: Any, _separator: int) -> Any:
        return value

    def second(self, _open: int, value: Any, *_close: int) -> Any:
        return value

    def nothing(self, *_values: Any) -> None:
        return None

    none = nothing

    # Type parameters

    def type_param(self, name: int, *rest: int) -> TypeParam:
        # Arguments: name, ":", kind, "(", lowest, ",", highest, ")" as far as they are written.
        text = self.texts[name]
        kind = Kind.TYPE
        if rest:
            word = self.texts[rest[1]]
            if word not in _KINDS:
                raise self.error(f"unknown kind {word!r}", rest[1], f"the kinds are {', '.join(_KINDS)}")
            kind = _KINDS[word]
        bounds = [self.integer_text(token) for token in rest[3::2]] if len(rest) > 2 else []
        made: TypeParam
        if kind is Kind.DIM:
            if len(bounds) > 1 and bounds[0] > bounds[1]:
                raise self.error(
                    f"no size is at least {bounds[0]} and at most {bounds[1]}", rest[3], "the lowest comes first"
                )
            made = DimVar(text, bounds[0] if bounds else 0, bounds[1] if len(bounds) > 1 else None)
            self.bind(text, as_dim(made))
        else:
            if bounds:
                raise self.error("only a Dim parameter has bounds", rest[2])
            made = TypeVar(text, kind)
            self.bind(text, made)
        return made

    def integer_text(self, token: int) -> int:
        return self.whole(re.split("[iu]", self.texts[token], maxsplit=1)[0], token)

    def whole(self, digits: str, token: int) -> int:
        """The integer that digits write; Python reads some thousand of them at most."""
        try:
            return int(digits)
        except ValueError:
            raise self.error(f"no integer has {len(digits)} digits here", token) from None

    # Forms

    def dim_int(self, token: int) -> int:
        return self.integer_text(token)

    def dim_any(self, _token: int) -> AnyDim:
        return ANY

    def hole(self, _token: int) -> Hole:
        return Hole()

    def unknown_form(self, token: int) -> Unknown:
        return Unknown(self.texts[token][1:])

    def dim_negate(self, minus: int, value: Any) -> Dim:
        return dim_sub(0, self.to_dim(value, minus))

    def dim_arithmetic(self, left: Any, op: int, right: Any) -> Dim:
        a, b = self.to_dim(left, op), self.to_dim(right, op)
        if self.texts[op] == "*" and _terms(a) * _terms(b) > _MOST_TERMS:
            raise self.error("a size has too many terms", op, "name a part of it: a size parameter of its own")
        try:
            return _ARITHMETIC[self.texts[op]](a, b)
        except ZeroDivisionError as error:
            raise self.error("division of a dimension by zero", op) from error

    def attr_size(self, size: Dim) -> Dim:
        """Arithmetic where an attribute stands."""
        return attribute_size(size)

    def type_string(self, token: int) -> Text:
        return Text(self.texts[token][1:-1])

    def type_group(self, token: int, *rest: Any) -> Group:
        items = tuple(rest[0]) if len(rest) > 1 else ()
        depth = 1 + max((i.nesting if isinstance(i, Group) else nesting(i) for i in items), default=0)
        self.check_nesting(depth, token)
        return Group(items, len(rest) > 2, token, depth)

    def check_nesting(self, depth: int, token: int) -> None:
        if depth > MOST_NESTED:
            raise self.error(
                f"a type is nested more than {MOST_NESTED} deep", token, "name its parts by a type definition"
            )

    def nested(self, made: Any, token: int) -> Any:
        """A type of others, unless it is nested too deeply."""
        self.check_nesting(nesting(made), token)
        return made

    def type_name(self, token: int) -> Any:
        text = self.texts[token]
        found = self.env.get(text)
        if found is not None:
            return found
        if BASE_TYPE.fullmatch(text):
            return BaseName(text)
        kinds = self.adts.get(text)
        if kinds is None:
            return Undeclared(token)
        if kinds:
            raise self.error(f"type {text} needs {len(kinds)} arguments", token, f"write {text}[...]")
        return AdtType(text)

    def type_application(self, token: int, *rest: Any) -> Any:
        text = self.texts[token]
        args: list[Any] = rest[1] if len(rest) > 2 else []
        match text:
            case "Tensor":
                if len(args) not in (2, 3) or (len(args) == 3 and not isinstance(args[2], Text)):
                    raise self.error(
                        "a tensor type has a shape and a base type", token, "for example Tensor[(1, n), float32]"
                    )
                device = args[2].value if len(args) == 3 else None
                return TensorType(self.to_shape(args[0], token), self.to_base(args[1], token), device)
            case "Ref":
                if len(args) != 1:
                    raise self.error("Ref has one argument", token, "for example Ref[Tensor[(4,), float32]]")
                return self.ref_type(token, token, args[0], token)
            case "Tuple":
                return self.nested(TupleType(tuple(self.to_type(a, token) for a in args)), token)
            case "Type" if len(args) == 1:
                return self.to_type(args[0], token)
            case "Dim":
                if len(args) != 1:
                    raise self.error("Dim has one argument", token, "for example Dim[4*n]")
                return attribute_size(self.to_dim(args[0], token))
        kinds = self.adts.get(text)
        if kinds is None:
            raise self.unknown_type(token)
        if len(kinds) != len(args):
            raise self.error(f"type {text} has {len(kinds)} parameters, not {len(args)}", token)
        made = AdtType(text, tuple(self.to_argument(a, token, k) for a, k in zip(args, kinds, strict=True)))
        return self.nested(made, token)

    def type_call(self, token: int, *rest: Any) -> Any:
        text = self.texts[token]
        args: list[Any] = rest[1] if len(rest) > 2 else []
        if text == "Shape":
            return ShapeForm(tuple(self.to_dim(a, token) for a in args))
        if text == "BaseType" and len(args) == 1:
            return self.to_base(args[0], token)
        if text in ("min", "max") and len(args) == 2:
            a, b = self.to_dim(args[0], token), self.to_dim(args[1], token)
            return dim_min(a, b) if text == "min" else dim_max(a, b)
        raise self.error(
            f"{text} with {len(args)} arguments is not a type",
            token,
            "min(a, b), max(a, b), Shape(...) and BaseType(b) are written so",
        )

    def ref_type(self, token: int, _open: int, value: Any, _close: int) -> Any:
        return self.nested(RefType(self.to_type(value, token)), token)

    def function_type(
        self, head: tuple[int, int], type_params: list[TypeParam], _open: int, params: list[Any], _close: int, _arrow: int,
        ret: Any, constraints: list[Relation],
    ) -> Any:  # fmt: skip
        height, token = head
        made = FuncType(
            tuple(self.to_type(p, token) for p in params),
            self.to_type(ret, token),
            tuple(type_params),
            tuple(constraints),
        )
        self.leave(height)
        return self.nested(made, token)

    def where_one(self, _where: int, relation: Relation) -> list[Relation]:
        return [relation]

    def where_group(self, _where: int, _open: int, relations: list[Relation], _close: int) -> list[Relation]:
        return relations

    def relation(self, token: int, _open: int, args: list[Any], _close: int) -> Relation:
        named = [a for a in args if isinstance(a, Named)]
        plain = [self.to_argument(a, token) for a in args if not isinstance(a, Named)]
        return Relation(self.texts[token], tuple(plain), tuple((a.name, a.value) for a in named))

    def type_only(self, value: Any) -> Type:
        return self.to_type(value, 0)

    # What the place wants

    def unknown_type(self, token: int) -> SyntaxError_:
        text = self.texts[token]
        near = difflib.get_close_matches(text, [*self.adts, *(n for n in self.env if n[0] != "%"), "Tensor", "Ref"], 1)
        if near:
            hint = f"did you mean {near[0]}?"
        elif text in ("List", "Option", "Tree"):
            hint = "it is in the prelude: write `import prelude`"
        else:
            hint = f"declare the type parameter [{text}], or a type {text} {{ ... }}"
        return self.error(f"unknown type {text!r}", token, hint)

    def to_type(self, form: Any, token: int) -> Type:
        match form:
            case TypeVar():
                if form.kind not in (Kind.TYPE, Kind.ADT):
                    raise self.error(f"{form.name} is a {form.kind.value}, where a type is wanted", token)
                return form
            case TensorType() | TupleType() | FuncType() | RefType() | AdtType():
                return form
            case BaseName():
                return scalar(form.name)
            case Undeclared() if self.texts[form.token] in _DEFAULT_WIDTHS:
                return scalar(_DEFAULT_WIDTHS[self.texts[form.token]])
            case Hole():
                return TypeVar("_", flexible=True)
            case Group():
                if len(form.items) == 1 and not form.trailing:
                    return self.to_type(form.items[0], form.token)
                return TupleType(tuple(self.to_type(item, form.token) for item in form.items))
            case Unknown():
                return self.unknown_variable(form.name, Kind.TYPE, token)
            case Undeclared():
                raise self.unknown_type(form.token)
            case int() | SymDim() | AnyDim():
                raise self.error("a dimension stands where a type is wanted", token)
            case _:
                raise self.error("a type is wanted here", token)

    def unknown_variable(self, name: str, kind: Kind, token: int) -> TypeVar:
        made = self.unknown.setdefault(name, TypeVar(name, kind, flexible=True))
        if not isinstance(made, TypeVar) or made.kind is not kind:
            raise self.error(f"?{name} is of another kind elsewhere than the {kind.value} that is wanted here", token)
        return made

    def to_dim(self, form: Any, token: int) -> Dim:
        match form:
            case int() | SymDim() | AnyDim():
                return form
            case Group() if len(form.items) == 1 and not form.trailing:
                return self.to_dim(form.items[0], form.token)
            case Unknown():
                made = self.unknown.setdefault(form.name, DimVar(form.name))
                if not isinstance(made, DimVar):
                    raise self.error(f"?{form.name} is a type elsewhere, and a size here", token)
                return as_dim(made)
            case Undeclared():
                name = self.texts[form.token]
                raise self.error(
                    f"dimension variable {name!r} is not declared",
                    form.token,
                    f"declare it as a parameter: [{name}: Dim]",
                )
            case TypeVar():
                raise self.error(
                    f"{form.name} is a {form.kind.value}, where a dimension is wanted",
                    token,
                    f"declare [{form.name}: Dim]",
                )
            case _:
                raise self.error("a dimension is wanted here", token, "for example 4, n, 2*n + 1 or ?")

    def to_shape(self, form: Any, token: int) -> Shape:
        match form:
            case Group():
                dims = tuple(self.to_dim(item, form.token) for item in form.items)
                if any(isinstance(d, int) and d < 0 for d in dims):
                    raise self.error("a dimension cannot be negative", form.token, "an unknown size is written ?")
                return dims
            case ShapeForm():
                return form.dims
            case TypeVar() if form.kind is Kind.SHAPE:
                return form
            case Unknown():
                return self.unknown_variable(form.name, Kind.SHAPE, token)
            case TypeVar():
                raise self.error(
                    f"{form.name} is a {form.kind.value}, where a shape is wanted",
                    token,
                    f"declare [{form.name}: Shape]",
                )
            case Undeclared():
                name = self.texts[form.token]
                raise self.error(
                    f"shape variable {name!r} is not declared",
                    form.token,
                    f"declare it as a parameter: [{name}: Shape]",
                )
            case _:
                raise self.error("a shape is wanted here", token, "for example (1, n) or ()")

    def to_base(self, form: Any, token: int) -> BaseType:
        match form:
            case BaseName():
                return form.name
            case Undeclared() if self.texts[form.token] in _DEFAULT_WIDTHS:
                return _DEFAULT_WIDTHS[self.texts[form.token]]
            case str():
                return form
            case TypeVar() if form.kind is Kind.BASE_TYPE:
                return form
            case Unknown():
                return self.unknown_variable(form.name, Kind.BASE_TYPE, token)
            case TypeVar():
                raise self.error(
                    f"{form.name} is a {form.kind.value}, where a base type is wanted",
                    token,
                    f"declare [{form.name}: BaseType]",
                )
            case Undeclared():
                near = difflib.get_close_matches(
                    self.texts[form.token], ("float32", "float64", "int32", "int64", "bool", "bfloat16"), 1
                )
                raise self.error(
                    f"unknown base type {self.texts[form.token]!r}",
                    form.token,
                    f"did you mean {near[0]}?" if near else "",
                )
            case _:
                raise self.error("a base type is wanted here", token, "for example float32")

    def to_argument(self, form: Any, token: int, kind: Kind | None = None) -> TypeArg:
        """A type argument.

        Without a known kind, parentheses with a dimension in them are a shape, and a base type's name is the scalar type.
        """
        if kind is Kind.SHAPE:
            return self.to_shape(form, token)
        if kind is Kind.BASE_TYPE:
            return self.to_base(form, token)
        if kind is Kind.DIM:
            return self.to_dim(form, token)
        match form:
            case int() | SymDim() | AnyDim() | str():
                return form
            case ShapeForm():
                return form.dims
            case TypeVar():
                return form
            case Group() if any(self.is_dim(item) for item in form.items):
                return self.to_shape(form, token)
            case _:
                return self.to_type(form, token)

    def is_dim(self, form: Any) -> bool:
        return isinstance(form, int | SymDim | AnyDim)


def _terms(dim: Dim) -> int:
    return len(dim.terms) if isinstance(dim, SymDim) else 1


# Products of sums are written out; of two that would have more terms than this a program has no use.
_MOST_TERMS = 1 << 12
_ARITHMETIC = {"+": dim_add, "-": dim_sub, "*": dim_mul, "//": dim_floordiv, "%": dim_mod}
