"""The parser's actions for constants and attributes."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from relay.ir.constant import make_constant
from relay.ir.diagnostics import FileError, RelayError
from relay.ir.dtypes import NUMPY_DTYPES, integer_bounds, numpy_dtype
from relay.ir.expr import (
    Attr,
    Constant,
)  # fmt: skip
from relay.ir.lexer import Tokens
from relay.ir.metadata import KEY, ConstantTable
from relay.ir.parse_types import BaseName, Named, ShapeForm, Text, TypeActions, Undeclared
from relay.ir.record import record
from relay.ir.types import scalar

# The type that released printers put behind a constant, ``/* ty=Tensor[(2, 3), float32] span=... */``.
_TYPE_BEHIND = re.compile(r"\s*/\*\s*ty=(?:Tensor\[\(([\d, ]*)\), (\w+)\]|(\w+))[^*\]]*\*/")
# Kinds of tokens behind which a minus is the infix operator.
_OPERAND_ENDS = frozenset({"LOCAL", "GRAPH", "GLOBAL", "NAME", "INT", "FLOAT", "BOOL", "PROJ", "where", ")", "]", "}"})
_INTEGER_TYPE_BEHIND = re.compile(r" /\* ty=(i|u)(?:nt|int)(4|8|16|32|64)(?: [^*]*)?\*/")
_FLOAT_SUFFIXES = (("bf16", "bfloat16"), ("f16", "float16"), ("f32", "float32"), ("f64", "float64"), ("f", "float32"))


@record(frozen=True, slots=True)
class MetaReference:
    """``meta[...][n]`` as the value of an attribute. Only ``virtual_device`` may have it, which is dropped."""

    token: int


class LiteralActions(TypeActions):
    """The actions for constants and attributes."""

    def __init__(self, tokens: Tokens, constants: ConstantTable) -> None:
        super().__init__(tokens, {})
        self.constants = constants
        self.literals: dict[str, npt.NDArray[np.generic]] = {}

    # Constants

    def integer(self, token: int) -> Constant:
        # The least value of a type is a literal only together with its sign, which `negate` puts to it.
        kinds, text = self.tokens.kinds, self.integer_with_type(token)
        if token and kinds[token - 1] == "-" and (token == 1 or kinds[token - 2] not in _OPERAND_ENDS):
            text = "-" + text
        return self.literal(text, token)

    def integer_with_type(self, token: int) -> str:
        """The text of an integer; early printers of the released format put its type behind it, ``2 /* ty=int64 */``."""
        text, end = self.texts[token], self.tokens.offsets[token] + len(self.texts[token])
        if self.tokens.text.startswith(" /*", end) and text.isdigit():
            behind = _INTEGER_TYPE_BEHIND.match(self.tokens.text, end)
            if behind is not None:
                return f"{text}{behind[1]}{behind[2]}"
        return text

    def float_(self, token: int) -> Constant:
        return self.literal(self.texts[token], token)

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
        if self.tokens.kinds[token] == "INT":
            return token, sign * self.whole(_split_integer(text)[0], token)
        value = float(_split_float(text)[0])
        if np.isinf(value) and "inf" not in text:
            raise self.error(f"{_shown(text)} does not fit in float64", token)
        return token, sign * value

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
            data = make_constant([v for _, v in values], name).data.reshape(shape)
        except (ValueError, RelayError) as error:
            raise self.error(f"not a constant: {getattr(error, 'message', error)}", dtype) from error
        return make_constant(data, name, self.tokens.span(dtype))

    def meta(self, token: int, _open: int, key: int, _close: int, _open2: int, index: int, _close2: int) -> Constant:
        if self.texts[key] != KEY:
            raise self.error(f"meta[{self.texts[key]}] is not known", key, f"an expression can be meta[{KEY}][n]")
        try:
            number = self.integer_text(index)
            if not len(self.constants):
                # Printed without its metadata section; the printed type is enough for everything but running.
                behind = _TYPE_BEHIND.match(self.tokens.text, self.tokens.offsets[_close2] + 1)
                if behind is not None:
                    dims, dtype, scalar_dtype = behind.groups()
                    shape = tuple(int(n) for n in (dims or "").split(",") if n.strip())
                    return self.constants.placeholder(number, shape, dtype or scalar_dtype, self.tokens.span(token))
            return self.constants.constant(number)
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

    def attr_meta(self, token: int, *_rest: int) -> MetaReference:
        return MetaReference(token)

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
                truth = text.capitalize()
                hint = f"a truth value is {truth}" if truth in ("True", "False") else f'a string is written "{text}"'
                raise self.error(f"{text!r} is not a value", form.token, hint)
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


def _split_integer(text: str) -> tuple[str, str]:
    """An integer's digits and its type, int32 where none is behind them; of what is no integer all of the text."""
    for mark, kind in (("i", "int"), ("u", "uint")):
        digits, found, bits = text.partition(mark)
        if found and "inf" not in text:
            return digits, kind + (bits or "32")
    return text, "int32"


def _split_float(text: str) -> tuple[str, str]:
    """The digits and the base type of a float literal (float32 when it does not say)."""
    for suffix, dtype in _FLOAT_SUFFIXES:
        if text.endswith(suffix) and text != "inf":
            return text[: -len(suffix)], dtype
    return text, "float32"


def _shown(digits: str) -> str:
    """A number in a message: as it is written, or how it begins."""
    return digits if len(digits) <= 40 else f"{digits[:20]}... (of {len(digits)} characters)"


def _literal(text: str, parser: TypeActions, token: int) -> npt.NDArray[np.generic]:
    digits, dtype = _split_integer(text)
    if digits is text and not text.lstrip("-").isdigit():
        digits, dtype = _split_float(text)
        with np.errstate(over="ignore"):
            made: npt.NDArray[np.generic] = np.array(float(digits)).astype(numpy_dtype(dtype))
        if np.isinf(made) and "inf" not in digits:
            raise parser.error(f"{_shown(digits)} does not fit in {dtype}", token)
    else:
        value = parser.whole(digits, token)
        if digits is text and not -(2**31) <= value < 2**31:
            dtype = "int64"
        least, greatest = integer_bounds(dtype)
        if not least <= value <= greatest:
            hint = "write it with i64" if -(2**63) <= value < 2**63 and dtype == "int32" else ""
            raise parser.error(f"{_shown(digits)} does not fit in {dtype}", token, hint)
        made = np.array(value, dtype=numpy_dtype(dtype))
    made.flags.writeable = False
    return made
