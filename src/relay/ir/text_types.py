"""The text of types, dimensions, attributes and constants, with names that are legal and unique."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from relay.ir.constant import MissingData
from relay.ir.dim import AnyDim, Dim, DimVar, KnownSize, SymDim, dim_text
from relay.ir.expr import Attr, Attrs, Constant
from relay.ir.types import (
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
)

_ILLEGAL = re.compile(r"\W+")
_LOCAL = re.compile(r"[^\W\d]\w*(?:\.\w+|/[^\W\d]\w*)*")
_GLOBAL = re.compile(r"[^\W\d]\w*(?:\.\w+|/\w+)*")
_KEY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_UNKNOWN = re.compile(r"\?\w+")
_TYPE_NAME = re.compile(r"[^\W\d]\w*")
# Words that mean something where a type or dimension variable could stand.
_RESERVED_TYPES = frozenset(
    ("Tensor", "Ref", "Tuple", "Type", "Dim", "Shape", "BaseType", "bool", "min", "max", "fn", "ref", "let", "def", "type", "if",
     "else",
     "extern", "import", "match", "where", "free_var", "grad", "jvp", "meta", "const", "True", "False", "None", "inf", "nan", "_")
)  # fmt: skip
_BASE_LIKE = re.compile(r"(?:u?int|float|bfloat|bool)\d*(?:x\d+)?")


class NameSpace:
    """Unique names: the wanted one, or with a number behind it."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        if wanted in self.taken:
            n = self._next.get(wanted, 1)
            while f"{wanted}_{n}" in self.taken:
                n += 1
            self._next[wanted] = n + 1
            wanted = f"{wanted}_{n}"
        self.taken.add(wanted)
        return wanted


def legal_name(name: str, pattern: re.Pattern[str]) -> str:
    """The name, or one like it that the pattern matches."""
    if pattern.fullmatch(name):
        return name
    name = _ILLEGAL.sub("_", name)
    return name if name.strip("_") and not name[0].isdecimal() else f"v{name}"


def legal_local(name: str) -> str:
    return legal_name(name, _LOCAL)


def legal_global(name: str) -> str:
    return legal_name(name, _GLOBAL)


class TypeText:
    """Texts of types; remembers the names it gave to type and dimension variables (unique among each other).

    ``unknown`` stands before the name of a variable that nothing declares ("" in messages).
    """

    def __init__(self, type_names: Iterable[str] = (), unknown: str = "?") -> None:
        self._unknown = unknown
        self._space = NameSpace((*_RESERVED_TYPES, *type_names))
        self._names: dict[TypeVar | DimVar, str] = {}
        self._cache: dict[Type, str] = {}

    def declare(self, parameters: Iterable[TypeParam]) -> str:
        """``[A, n: Dim(1, 512)]`` (empty for none), with names given for what follows."""
        parts: list[str] = []
        for p in parameters:
            name = self._names[p] = self._fresh(p.name)
            match p:
                case DimVar():
                    bounds = f"({p.lo}, {p.hi})" if p.hi is not None else f"({p.lo})" if p.lo else ""
                    parts.append(f"{name}: Dim{bounds}")
                case TypeVar():
                    parts.append(name if p.kind is Kind.TYPE else f"{name}: {p.kind.value}")
        return f"[{', '.join(parts)}]" if parts else ""

    def _fresh(self, wanted: str) -> str:
        wanted = legal_name(wanted, _TYPE_NAME)
        return self._space.unique(f"{wanted}_" if _BASE_LIKE.fullmatch(wanted) else wanted)

    def _variable(self, v: TypeVar | DimVar) -> str:
        name = self._names.get(v)
        if name is None:  # nothing declares it: it is unknown here, and known by this name
            name = self._names[v] = f"{self._unknown}{self._fresh(v.name)}"
        return name

    def dim(self, dim: Dim) -> str:
        return str(dim) if isinstance(dim, int) else dim_text(dim, self._variable)

    def shape(self, shape: Shape) -> str:
        if isinstance(shape, TypeVar):
            return self._variable(shape)
        return f"({', '.join(map(self.dim, shape))}{',' if len(shape) == 1 else ''})"

    def base(self, base: BaseType) -> str:
        return base if isinstance(base, str) else self._variable(base)

    def argument(self, arg: TypeArg) -> str | Type:
        """A type argument's text, or the type it is. Shapes, base types and sizes that nothing declares say so where a type could
        stand."""
        match arg:
            case tuple():
                return f"Shape{self.shape(arg)}" if len(arg) != 1 else f"Shape({self.dim(arg[0])})"
            case str():
                return f"BaseType({arg})"
            case int() | AnyDim():
                return self.dim(arg)
            case SymDim():
                text = self.dim(arg)
                # Alone it could be any kind of argument, and in parentheses a shape.
                unclear = _UNKNOWN.fullmatch(text) or (text[0] == "(" and text[-1] == ")")
                return f"Dim[{text}]" if self._unknown and unclear else text
            case TypeVar():
                return self._variable(arg)
            case TensorType() if arg.shape == ():
                return self.tensor(arg, explicit=True)
            case _:
                return arg

    def tensor(self, t: TensorType, explicit: bool = False) -> str:
        if t.shape == () and not explicit and isinstance(t.dtype, str) and t.device is None:
            return t.dtype
        device = f", {quote(t.device)}" if t.device is not None else ""
        return f"Tensor[{self.shape(t.shape)}, {self.base(t.dtype)}{device}]"

    def type(self, root: Type) -> str:
        """The text of a type (iterative; memoised for types without parameters of their own)."""
        found = self._cache.get(root) if root.__class__ is TensorType else None
        if found is not None:
            return found
        out: list[str] = []
        todo: list[str | Type] = [root]
        while todo:
            item = todo.pop()
            match item:
                case str():
                    out.append(item)
                case TensorType():
                    out.append(self.tensor(item))
                case TypeVar():
                    out.append(self._variable(item))
                case TupleType():
                    self._push(todo, "(", item.fields, ",)" if len(item.fields) == 1 else ")")
                case RefType():
                    self._push(todo, "Ref[", (item.value,), "]")
                case AdtType():
                    if item.args:
                        self._push(todo, f"{item.name}[", [self.argument(a) for a in item.args], "]")
                    else:
                        out.append(item.name)
                case FuncType():
                    head = f"fn{self.declare(item.type_params)} ("
                    todo.append(self.where(item.constraints))
                    todo.append(item.ret)
                    self._push(todo, head, item.params, ") -> ")
        text = "".join(out)
        if root.__class__ is TensorType:
            self._cache[root] = text
        return text

    @staticmethod
    def _push(todo: list[str | Type], opening: str, items: Iterable[str | Type], closing: str) -> None:
        parts: list[str | Type] = [opening]
        for n, item in enumerate(items):
            if n:
                parts.append(", ")
            parts.append(item)
        parts.append(closing)
        todo.extend(reversed(parts))

    def where(self, constraints: Iterable[Relation]) -> str:
        """`` where Broadcast(A, B, C)``, in parentheses when there are several (empty for none)."""
        parts: list[str] = []
        for r in constraints:
            args = [self.type_argument(a) for a in r.args]
            parts.append(f"{r.name}({', '.join([*args, *self.attr_items(dict(r.attrs).items())])})")  # type: ignore[arg-type]
        if len(parts) > 1:
            return f" where ({', '.join(parts)})"
        return f" where {parts[0]}" if parts else ""

    def type_argument(self, arg: TypeArg) -> str:
        """The text of a type argument."""
        made = self.argument(arg)
        return made if isinstance(made, str) else self.type(made)

    # Attributes

    def attrs(self, attrs: Attrs) -> list[str]:
        """``name=value`` for each attribute."""
        return self.attr_items(attrs.items())

    def attr_items(self, items: Iterable[tuple[str, Attr]]) -> list[str]:
        return [
            f"{k if _KEY.fullmatch(k) and k not in ('True', 'False', '_') else quote(k)}={self.attr(v)}"
            for k, v in items
        ]

    def attr(self, value: Attr) -> str:
        match value:
            case None | bool():
                return str(value)
            case KnownSize():
                return f"Dim[{value}]"
            case int() | np.integer():
                return str(value)
            case float() | np.floating():
                return number_text(float(value), "f")
            case str():
                return quote(value)
            case tuple() | list():
                return f"[{', '.join(map(self.attr, value))}]"
            case SymDim() | AnyDim():
                return f"Dim[{self.dim(value)}]"
            case Mapping():
                return f"{{{', '.join(f'{quote(k)}: {self.attr(v)}' for k, v in value.items())}}}"
            case TensorType():
                return self.tensor(value, explicit=True)
            case FuncType():
                return self.type(value)
            case _:
                return f"Type[{self.type(value)}]"


def quote(text: str) -> str:
    """A string token: what cannot stand in one is escaped."""
    out: list[str] = []
    for c in text:
        if c in '"\\':
            out.append(f"\\{c}")
        elif c == "\n":
            out.append("\\n")
        elif c == "\t":
            out.append("\\t")
        elif c == "\r":
            out.append("\\r")
        elif c < " " or "\x7f" <= c <= "\xa0" or c in "\u2028\u2029":
            out.append(f"\\u{ord(c):04x}")
        else:
            out.append(c)
    return f'"{"".join(out)}"'


def number_text(value: float, suffix: str) -> str:
    """A Python float as a literal that reads back as the same number; infinities and nan without the suffix."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    text = repr(value)
    return (text[:-2] if text.endswith(".0") else text) + suffix


_SUFFIX = {"float16": "f16", "float32": "f", "float64": "f64", "bfloat16": "bf16", "int32": ""}
_INLINE_ELEMENTS = 8


def _shortest(value: object, dtype: str) -> float:
    """The shortest decimal that rounds to the same number of its own precision."""
    return float(str(value)) if dtype in ("float16", "float32") else float(value)  # type: ignore[arg-type]


def constant_text(constant: Constant) -> str | None:
    """The text of a constant that is written in place: scalars and up to 8 elements. None: it belongs into the metadata."""
    data, dtype = constant.data, constant.dtype
    if data.size > _INLINE_ELEMENTS or isinstance(data, MissingData):
        return None
    if data.ndim == 0:
        value = data[()]
        if dtype == "bool":
            return str(bool(value))
        if dtype not in _SUFFIX and "int" in dtype:
            return f"{int(value)}{'u' if dtype[0] == 'u' else 'i'}{dtype.lstrip('uint')}"
        if dtype == "int32":
            return str(int(value))
        text = number_text(_shortest(value, dtype), _SUFFIX[dtype])
        return text if text[-1] in "f6432" and "nan" not in text and "inf" not in text else f"const({text}, {dtype})"
    if dtype == "bool":
        items = [str(bool(v)) for v in data.ravel()]
    elif "int" in dtype:
        items = [str(int(v)) for v in data.ravel()]
    else:
        items = [number_text(_shortest(v, dtype), "") for v in data.ravel()]
    shape = f"({', '.join(map(str, data.shape))}{',' if data.ndim == 1 else ''})"
    return f"const([{', '.join(items)}], {shape}, {dtype})"
