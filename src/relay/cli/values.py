"""Values for the parameters of an entry: read from a text, or drawn at random.

A tensor is a number, a nested list or FILE.npy; a tuple ``(a, b)``, a ``List`` ``[a, b]``, other values of data types are constructors
applied to such, ``Node(Leaf([[1, 2]]), Leaf(random))``, files inside of them in quotes; ``random`` is a value of any of these types.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from relay.executable.numbered import Numbered
from relay.executable.sizes import with_sizes
from relay.executable.values import Spec, constructors
from relay.ir.diagnostics import FileError, OutOfMemoryError, RelayError, TypeError_
from relay.ir.dtypes import holds, numpy_dtype
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.value import AdtValue, list_value

Array = npt.NDArray[Any]
RANDOM_SIZE = 16  # a dimension that nobody fixes
RANDOM = "random"
# What a message shows of a text.
_LONGEST = 100
# How far below a type its least value is looked for.
_DEEPEST = 8
_FORMS = "give a number, a nested list, a .npy file, or random; of a data type Constructor(...), of a List [...], of a tuple (...)"


@record(frozen=True, slots=True)
class _Fields:
    """The types of a constructor's fields, by number (of a tuple's: without a name): which of them have values of data types in them, and
    how large each is at the least."""

    name: str
    fields: tuple[int, ...]
    takers: tuple[int, ...]
    least: tuple[float, ...]

    @property
    def cost(self) -> float:
        return sum(self.least) + bool(self.takers)


class Values:
    """Values of the types of one entry. ``adts`` are the definitions of the data types, ``sizes`` those of dimensions by name, and how
    large random values of parameters are."""

    def __init__(self, adts: Mapping[str, Spec], sizes: Mapping[str, int], random: np.random.Generator) -> None:
        self._adts = adts
        self._sizes = sizes
        self._random = random
        self._least: dict[tuple[int, int], float] = {}
        self._types = Numbered[Spec]()
        # By the number of a type what its constructors, or a tuple's fields, are.
        self._known: dict[int, list[_Fields]] = {}

    def value(self, name: str, spec: Spec, text: str) -> object:
        """The value of the parameter ``name``. Raises RelayError for a text that is none of its type."""
        if text == RANDOM:
            return self.drawn(name, spec)
        if spec["kind"] == "tensor" and text.endswith(".npy"):
            return _from_file(spec, text)
        try:
            root = _NamedNumbers().visit(ast.parse(text.strip(), mode="eval")).body
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise _unreadable(name, text) from error
        return run(self._read(name, spec, root))

    def drawn(self, name: str, spec: Spec) -> object:
        """A random value: a tensor of numbers, an algebraic value with about as many constructors around others as the size ``name``."""
        return run(self._draw(name, self._number(spec), self._sizes.get(name, RANDOM_SIZE)))

    # -- texts

    def _read(self, name: str, spec: Spec, node: ast.expr) -> Step[object]:
        if isinstance(node, ast.Name) and node.id == RANDOM:
            return self.drawn(name, spec)
        match spec["kind"], node:
            case "tensor", ast.Constant(value=str(path)) if path.endswith(".npy"):
                return _from_file(spec, path)
            case "tensor", _:
                return _tensor(name, spec, node)
            case "tuple", ast.Tuple(elts=items) if len(items) == len(spec["fields"]):
                made = []
                for field, item in zip(spec["fields"], items, strict=True):
                    made.append((yield self._read(name, field, item)))
                return tuple(made)
            case "adt", ast.List(elts=items) if spec["name"] == "List":
                made = []
                for item in items:
                    made.append((yield self._read(name, spec["args"][0], item)))
                return list_value(made)
            case "adt", ast.Call(func=ast.Name(id=constructor), args=items, keywords=[]):
                return (yield self._applied(name, spec, constructor, items))
            case "adt", ast.Name(id=constructor):
                return (yield self._applied(name, spec, constructor, []))
            case "adt", ast.Constant(value=None):
                return (yield self._applied(name, spec, "None", []))
            case (("tuple" | "adt"), _):
                raise _unreadable(name, ast.unparse(node))
            case _:
                raise _refused(name)

    def _applied(self, name: str, spec: Spec, constructor: str, items: Sequence[ast.expr]) -> Step[AdtValue]:
        known = constructors(self._adts, spec)
        tag, fields = next(((n, f) for n, (c, f) in enumerate(known) if c == constructor), (-1, ()))
        if tag < 0:
            raise RelayError(
                f"{spec['name']}, which %{name} is made of, has no constructor {constructor}",
                hint=f"it has: {', '.join(c for c, _ in known)}",
            )
        if len(fields) != len(items):
            raise RelayError(f"{constructor} in the value of %{name} takes {len(fields)} fields, not {len(items)}")
        made = []
        for field, item in zip(fields, items, strict=True):
            made.append((yield self._read(name, field, item)))
        return AdtValue(spec["name"], constructor, tag, tuple(made))

    # -- random values

    def _draw(self, name: str, number: int, size: int) -> Step[object]:
        """A value with about ``size`` constructors that have values of data types in them."""
        spec = self._types[number]
        if spec["kind"] == "tensor":
            return self._random_tensor(name, spec)
        if spec["kind"] not in ("tuple", "adt"):
            raise _refused(name)
        known = self._made_of(number)
        if spec["kind"] == "tuple":
            return tuple((yield self._draw_fields(name, known[0], size)))
        # One around others while there is room for it, then one that ends here, else the least.
        possible = [n for n, c in enumerate(known) if c.takers and c.cost <= size]
        possible = possible or [n for n, c in enumerate(known) if not c.takers and c.cost < math.inf]
        tag = int(self._random.choice(possible)) if possible else min(range(len(known)), key=lambda n: known[n].cost)
        chosen = known[tag]
        made = yield self._draw_fields(name, chosen, size - bool(chosen.takers))
        return AdtValue(spec["name"], chosen.name, tag, tuple(made))

    def _draw_fields(self, name: str, of: _Fields, size: int) -> Step[list[object]]:
        """Values of some fields, among which what is left of the size beyond their least is divided at random."""
        if sum(of.least) == math.inf:
            raise _refused(name)
        rest = max(0, size - int(sum(of.least)))
        cuts = sorted(self._random.integers(0, rest + 1, max(0, len(of.takers) - 1)).tolist())
        shares = {n: b - a for n, a, b in zip(of.takers, [0, *cuts], [*cuts, rest], strict=False)}
        made = []
        for n, field in enumerate(of.fields):
            made.append((yield self._draw(name, field, int(of.least[n]) + shares.get(n, 0))))
        return made

    def _number(self, spec: Spec) -> int:
        return self._types.number(json.dumps(spec, sort_keys=True), spec)

    def _made_of(self, number: int) -> list[_Fields]:
        """What values of a data type are made of, by constructor, or the one way to make a tuple."""
        found = self._known.get(number)
        if found is None:
            spec = self._types[number]
            given = [("", spec["fields"])] if spec["kind"] == "tuple" else constructors(self._adts, spec)
            found = self._known[number] = [self._fields(name, fields) for name, fields in given]
        return found

    def _fields(self, name: str, given: Sequence[Spec]) -> _Fields:
        takers = tuple(n for n, f in enumerate(given) if holds_data(f))
        return _Fields(name, tuple(map(self._number, given)), takers, tuple(map(self._least_size, given)))

    def _least_size(self, spec: Spec, depth: int = _DEEPEST) -> float:
        """The fewest constructors around others in a value of a type; infinite where none is found, or none can be made here."""
        match spec["kind"]:
            case "tensor":
                return 0
            case "tuple":
                return self._together(spec["fields"], depth)
            case "adt" if depth:
                known = [fields for _, fields in constructors(self._adts, spec)]
                if any(not any(map(holds_data, f)) and self._together(f, depth) == 0 for f in known):
                    return 0  # without a look at the others, whose types may grow from level to level
                key = self._number(spec), depth
                if key not in self._least:
                    self._least[key] = min(self._together(f, depth - 1) + any(map(holds_data, f)) for f in known)
                return self._least[key]
            case _:
                return math.inf

    def _together(self, fields: Sequence[Spec], depth: int) -> float:
        return sum(self._least_size(f, depth) for f in fields)

    def _random_tensor(self, name: str, spec: Spec) -> Array:
        dtype, random = numpy_dtype(spec["dtype"]), self._random
        sizes = (with_sizes(d, lambda name: self._sizes.get(name, RANDOM_SIZE)) for d in spec["shape"])
        shape = tuple(RANDOM_SIZE if size is None else cast(int, size) for size in sizes)
        try:
            if dtype.kind == "b":
                return random.random(shape) < 0.5
            if dtype.kind in "iu":
                return random.integers(0, 2, shape).astype(dtype)
            return random.standard_normal(shape).astype(dtype)
        except (MemoryError, ValueError) as error:  # NumPy's ValueError: more than an address holds
            raise OutOfMemoryError(f"out of memory: a random %{name} of shape {shape}") from error


def holds_data(spec: Spec) -> bool:
    """Whether values of data types are in a value of this type."""
    return spec["kind"] == "adt" or (spec["kind"] == "tuple" and any(map(holds_data, spec["fields"])))


def _unreadable(name: str, text: str) -> RelayError:
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return RelayError(f"cannot read a value of %{name} from {shown!r}", hint=_FORMS)


def _refused(name: str) -> TypeError_:
    return TypeError_(
        f"%{name} holds what is no tensor and no data: it cannot be given on the command line",
        hint="call the program from Python",
    )


def _from_file(spec: Spec, path: str) -> Array:
    try:
        loaded: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise FileError(f"no such file: {path}") from error
    except Exception as error:  # NumPy raises many kinds for a damaged file
        raise FileError(f"cannot read an array from {path}: {error}") from error
    if not isinstance(loaded, np.ndarray):
        raise FileError(f"cannot read an array from {path}: it holds several")
    # The format has no name for element types that are not NumPy's own: `relay run -o` leaves their bytes there.
    dtype = numpy_dtype(spec["dtype"])
    nameless = np.dtype((np.void, dtype.itemsize))
    return loaded.view(dtype) if dtype.kind == "V" and loaded.dtype == nameless else loaded


def _tensor(name: str, spec: Spec, node: ast.expr) -> Array:
    try:
        literal = np.asarray(ast.literal_eval(node))
        if literal.dtype.kind not in "biuf":
            raise ValueError("not numbers")
        with np.errstate(all="ignore"):  # what does not fit is refused below
            value: Array = literal.astype(numpy_dtype(spec["dtype"]))
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise _unreadable(name, ast.unparse(node)) from error
    if not holds(value, literal):
        raise RelayError(f"{ast.unparse(node)} does not fit in {spec['dtype']}, which %{name} is made of")
    return value


class _NamedNumbers(ast.NodeTransformer):
    """``inf`` and ``nan`` as the numbers they name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node
