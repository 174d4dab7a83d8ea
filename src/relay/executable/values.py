"""Values in and out of an executable, by the types that travel with it.

A tensor is anything NumPy or DLPack understands, or a nested list of numbers, which takes the type's dtype if that holds them; a tuple is
a tuple; where a ``List`` is expected a Python list is one; ``None`` is ``None()`` and anything
else ``Some`` where an ``Option`` is expected; other algebraic values are `AdtValue`s. Fields of algebraic values are checked
against their types on the way in (`relay._runtime.Converter`), because compiled code trusts them. Everything is iterative: a list
may be long and a tree deep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.executable.bytecode import DTYPE_CODES
from relay.executable.numbered import Numbered
from relay.executable.runtime import _runtime
from relay.executable.sizes import NamedSizes, Size, names_in, size_text, with_sizes
from relay.ir.call_arguments import placed
from relay.ir.diagnostics import RelayError, ShapeError, TypeError_
from relay.ir.value import AdtValue

Spec = Mapping[str, Any]
# Tuples inside each other up to which results are converted by calls inside each other.
_SHALLOW = 16


class Signature:
    """The types of one entry."""

    def __init__(self, name: str, info: Mapping[str, Any]) -> None:
        self.name = name
        self.params: Sequence[Spec] = info["params"]
        self.result: Spec = info["result"]
        self.adts: Mapping[str, Spec] = info["adts"]
        self._all_tensors = all(p["type"]["kind"] == "tensor" for p in self.params)
        # Whether the result is a tuple that the runtime makes a Python tuple of.
        self.tuples = self.result["kind"] == "tuple" and _of_tensors(self.result, _SHALLOW)
        sizes = NamedSizes(name, info["bounds"])
        self._types = _Types(self.adts, sizes)
        # For each parameter its type's number, of a tensor -1, and what errors call it.
        kinds = [p["type"] for p in self.params]
        self._wanted = tuple(-1 if kind["kind"] == "tensor" else self._types.number(kind) for kind in kinds)
        # The same where many requests are given at once: tensors that are taken row by row may have any number of rows.
        rows: Sequence[int] = info.get("rows", ())
        by_row = {
            n: self._types.number({**kinds[n], "kind": "rows", "shape": [None, *kinds[n]["shape"][1:]]}) for n in rows
        }
        self._listed = tuple(by_row.get(n, number) for n, number in enumerate(self._wanted))
        # Of the tensors and data types of a result, in order: which are tensors of all requests then, which are lists, with the number of
        # an item's type, or none where an item is the list of a tensor's rows.
        self._stacked: Sequence[int] = info.get("stacked", ())
        leaves = dict(enumerate(_leaves(self.result)))
        self._front = [n for n, leaf in leaves.items() if leaf["kind"] != "adt" and n not in self._stacked]
        self._behind = {
            n: None if n in self._stacked else self._types.number(leaf)
            for n, leaf in leaves.items()
            if n not in self._front
        }
        self._called = tuple(f"argument %{p['name']} of @{name}" for p in self.params)
        self._result = self._types.number(self.result)
        self.is_tensor = self.result["kind"] == "tensor"
        # Whether results come from the runtime as Python sees them; whether nothing is to be done about values at all.
        self.made = self.tuples or self.is_tensor
        self.plain = self._all_tensors and self.made
        self._bound = () if self._all_tensors else _bound(kinds, sizes)
        self._all_bound = _bound(kinds, sizes, rows) if rows else self._bound
        self._converter = _runtime.Converter(
            self._types.describe, sizes.computed, sizes.settle, AdtValue, TypeError_, ShapeError, _keeps(info)
        )

    def __repr__(self) -> str:
        """As in a program's text."""
        params = ", ".join(f"%{p['name']}: {_text(p['type'])}" for p in self.params)
        return f"@{self.name}({params}) -> {_text(self.result)}"

    def arguments(self, args: Sequence[object]) -> Sequence[object]:
        """The arguments as the runtime takes them. Raises TypeError_ for a wrong number of them or a wrong kind of value, ShapeError
        for a tensor of another shape inside a tuple or algebraic value."""
        if len(args) != len(self._wanted):
            self.check_count(args)
        return args if self._all_tensors else self._converter.arguments(args, self._wanted, self._called, self._bound)

    def check_count(self, args: Sequence[object]) -> None:
        """Raises TypeError_ for a wrong number of arguments."""
        if len(args) != len(self.params):
            names = ", ".join(f"%{p['name']}" for p in self.params) or "none"
            raise TypeError_(f"@{self.name} takes {len(self.params)} arguments ({names}), not {len(args)}")

    def placed(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """The arguments in the order of the parameters, those given by name behind the others. Raises TypeError_ for a name that no
        parameter has, that is given twice, or that is missing."""
        return placed(self.name, [p["name"] for p in self.params], args, named)

    def about(self, error: RelayError) -> RelayError:
        """An error of the runtime's about an argument, which it knows by its number, as one about the parameter."""
        found = re.fullmatch(r"argument (\d+) of [^:]*: (expected (\w+), found \w+|.*)", str(error), re.DOTALL)
        if found is None:
            return error
        number, what, dtype = found.groups()
        name = self.params[int(number)]["name"]
        wanted = self.params[int(number)]["type"].get("dtype")
        if "another byte order" in what:
            dtype = wanted
        hint = f"convert it: {name}.astype({dtype!r})" if dtype in DTYPE_CODES else ""
        if what.endswith("cannot be used as one"):
            hint = f"give a NumPy array or a DLPack tensor{f' of {wanted}' if wanted else ''}"
        return type(error)(f"argument %{name} of @{self.name}: {what}", hint=hint)

    def argument(self, number: int, args: Sequence[object]) -> object:
        """One of the arguments as the runtime takes it."""
        if self._wanted[number] < 0:
            return args[number]
        return self._converter.convert(args[number], self._wanted[number], self._called[number], args, self._bound)

    def listed(self, requests: list[tuple[object, ...]], each: Sequence[int]) -> object:
        """What differs from request to request, the parameters ``each``, as a list of tuples. Raises what `arguments` does."""
        wanted, called = tuple(self._listed[n] for n in each), tuple(self._called[n] for n in each)
        # Every parameter, mostly: weights are bound.
        varying = requests if len(each) == len(self.params) else [tuple([args[n] for n in each]) for args in requests]
        return self._converter.requests(varying, wanted, called, requests[0], self._all_bound)

    def outcome(self, value: object) -> object:
        """A result, as the runtime gave it, as Python sees it."""
        return value if self.made else self._converter.outward(value, self._result)

    def joined(self, parts: Sequence[Any]) -> list[object]:
        """The results of several requests: ``parts`` are their tensors, with the requests in front, and behind these for each of a
        result's values of data types the list of them, and for each tensor that is given by its rows. None is one that is not known, of no
        rows."""
        columns: dict[int, list[Any]] = {n: t.rows() for n, t in zip(self._front, parts, strict=False)}
        for (n, number), values in zip(self._behind.items(), parts[len(self._front) :], strict=True):
            columns[n] = _stacked(values) if number is None else self._listed_values(values, number)
        rows = zip(*(columns[n] for n in range(len(columns))), strict=True)
        if self.result["kind"] != "tuple":
            return [r[0] for r in rows]
        return [None if any(r[n] is None for n in self._stacked) else _joined(self.result, iter(r)) for r in rows]

    def _listed_values(self, rest: Any, number: int) -> list[object]:
        """The values in a list of such of the type of this number, as Python sees them."""
        out = []
        while rest.tag == 0:
            out.append(self._converter.outward(rest.field(0), number))
            rest = rest.field(1)
        return out


def _keeps(spec: object) -> bool:
    """Whether a call may keep what it is given: there are references or functions among its types."""
    if isinstance(spec, Mapping):
        return spec.get("kind") in ("ref", "function", "other") or any(map(_keeps, spec.values()))
    return isinstance(spec, list) and any(map(_keeps, spec))


def _stacked(rest: Any) -> list[Any]:
    """The tensors whose rows are in the lists of a list. What has no rows is known by what has; None where nothing has."""
    out: list[Any] = []
    while rest.tag == 0:
        out.append(rest.field(0).stacked())
        rest = rest.field(1)
    some = next((t for t in out if t is not None), None)
    return (
        out if some is None else [_runtime.Tensor.from_numpy(some.numpy()[:0].copy()) if t is None else t for t in out]
    )


def _leaves(spec: Spec) -> Iterator[Spec]:
    """The tensors and data types in a result of these and tuples, in order."""
    todo = [spec]
    while todo:
        spec = todo.pop()
        if spec["kind"] == "tuple":
            todo += reversed(spec["fields"])
        else:
            yield spec


def _joined(spec: Spec, leaves: Iterator[object]) -> object:
    # No function in a function: that would refer to itself, and keep the parts until Python looks for cycles.
    if spec["kind"] == "tuple":
        return tuple(_joined(f, leaves) for f in spec["fields"])
    return next(leaves)


def _of_tensors(spec: Spec, depth: int) -> bool:
    """Whether a type is a tensor, or a tuple of such types of which few are inside each other."""
    if spec["kind"] == "tensor":
        return True
    return depth > 0 and spec["kind"] == "tuple" and all(_of_tensors(f, depth - 1) for f in spec["fields"])


class _Types:
    """Types without variables, by number; a data type's parts get theirs when they are asked for, since a type may contain ever
    larger ones."""

    def __init__(self, adts: Mapping[str, Spec], sizes: NamedSizes) -> None:
        self.adts = adts
        self._sizes = sizes
        self._specs = Numbered[Spec]()
        self._described: dict[int, tuple[Any, ...]] = {}

    def number(self, spec: Spec) -> int:
        return self._specs.number(json.dumps(spec, sort_keys=True), spec)

    def describe(self, number: int) -> tuple[Any, ...]:
        """``("tensor", dtype code, codes of sizes)``, ``("rows", ...)`` the same, ``("tuple", fields)``,
        ``("adt", name, ((constructor, fields), ...))``, or what else it is; fields are numbers of types."""
        found = self._described.get(number)
        if found is None:
            found = self._described[number] = self._description(self._specs[number])
        return found

    def _description(self, spec: Spec) -> tuple[Any, ...]:
        match spec["kind"]:
            case "tensor" | "rows" as kind:
                return kind, DTYPE_CODES[spec["dtype"]], tuple(map(self._sizes.code, spec["shape"]))
            case "tuple":
                return "tuple", tuple(self.number(f) for f in spec["fields"])
            case "adt":
                known = constructors(self.adts, spec)
                return "adt", spec["name"], tuple((name, tuple(map(self.number, fields))) for name, fields in known)
            case kind:
                return (kind,)


def constructors(adts: Mapping[str, Spec], spec: Spec) -> list[tuple[str, tuple[Spec, ...]]]:
    """The constructors of a data type, by tag, with the types of their fields."""
    definition = adts[spec["name"]]
    meaning = dict(zip(definition["params"], spec["args"], strict=True))
    return [(c["name"], tuple(_closed(f, meaning) for f in c["fields"])) for c in definition["constructors"]]


def _closed(spec: Spec, types: Mapping[str, Spec]) -> Spec:
    """A type with its variables replaced."""
    match spec["kind"]:
        case "var":
            return types[spec["name"]]
        case "tensor":
            shape, dtype = spec["shape"], spec["dtype"]
            given = types[dtype]["dtype"] if dtype in types else dtype
            return {"kind": "tensor", "shape": _closed_shape(shape, types), "dtype": given}
        case "shape":
            return {"kind": "shape", "shape": _closed_shape(spec["shape"], types)}
        case "size":
            return {"kind": "size", "size": _closed_shape([spec["size"]], types)[0]}
        case "tuple":
            return {**spec, "fields": [_closed(f, types) for f in spec["fields"]]}
        case "adt":
            return {**spec, "args": [_closed(a, types) for a in spec["args"]]}
        case _:
            return spec


def _closed_shape(shape: str | list[Size], types: Mapping[str, Spec]) -> list[Size]:
    if isinstance(shape, str):
        given: list[Size] = types[shape]["shape"]
        return given
    return [with_sizes(size, lambda name: types[name]["size"] if name in types else name) for size in shape]


def _bound(params: Sequence[Spec], sizes: NamedSizes, rows: Sequence[int] = ()) -> tuple[tuple[int, int, int], ...]:
    """What tensors among the arguments, but for those given as ``rows``, say of the names in other arguments' types: argument, axis and
    the size's code. What is computed from a name says something where the name is no axis of a tensor."""
    tensors = {n for n, spec in enumerate(params) if spec["kind"] == "tensor" and n not in rows}
    wanted = {
        name for n, spec in enumerate(params) if n not in tensors for size in sizes_of(spec) for name in names_in(size)
    }
    axes = [
        (number, axis, size)
        for number, spec in enumerate(params)
        if number in tensors
        for axis, size in enumerate(spec["shape"])
    ]
    named = [a for a in axes if isinstance(a[2], str) and a[2] in wanted]
    missing = wanted - {size for _, _, size in named}
    computed = [a for a in axes if isinstance(a[2], list) and not missing.isdisjoint(names_in(a[2]))]
    return tuple((number, axis, sizes.code(size)) for number, axis, size in (*named, *computed))


def sizes_of(spec: Spec) -> Iterator[Size]:
    """The sizes in a type of an entry."""
    match spec["kind"]:
        case "tensor" | "shape":
            yield from spec["shape"]
        case "size":
            yield spec["size"]
        case "tuple" | "adt":
            for part in spec["fields" if spec["kind"] == "tuple" else "args"]:
                yield from sizes_of(part)


def _text(spec: Spec) -> str:
    """A type as text."""
    match spec["kind"]:
        case "tensor":
            return f"Tensor[{_shape_text(spec['shape'])}, {spec['dtype']}]"
        case "shape":
            return _shape_text(spec["shape"])
        case "size":
            return size_text(spec["size"])
        case "base type":
            return str(spec["dtype"])
        case "tuple":
            fields = [_text(f) for f in spec["fields"]]
            return f"({', '.join(fields)}{',' * (len(fields) == 1)})"
        case "adt":
            args = ", ".join(map(_text, spec["args"]))
            return f"{spec['name']}[{args}]" if args else str(spec["name"])
        case "ref":
            return f"Ref[{_text(spec['value'])}]"
        case kind:
            return f"<{kind}>"


def _shape_text(shape: Sequence[Size]) -> str:
    return f"({', '.join(map(size_text, shape))}{',' * (len(shape) == 1)})"
