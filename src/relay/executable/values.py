"""Values in and out of an executable, by the types that travel with it.

A tensor is anything NumPy or DLPack understands; a tuple is a tuple; a Python list is a ``List``; ``None`` is ``None()`` and anything
else ``Some`` where an ``Option`` is expected; other algebraic values are `AdtValue`s. Fields of algebraic values are checked
against their types here, because compiled code trusts them. Everything is iterative: a list may be long and a tree deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relay import _runtime
from relay.ir.diagnostics import ShapeError, TypeError_
from relay.ir.trampoline import Step, run
from relay.ir.value import AdtValue

Spec = Mapping[str, Any]
# What algebraic values became, by the identities of the value and of the meaning of its type's parameters.
Met = dict[tuple[int, int], object]


class Signature:
    """The types of one entry."""

    def __init__(self, name: str, info: Mapping[str, Any]) -> None:
        self.name = name
        self.params: Sequence[Spec] = info["params"]
        self.result: Spec = info["result"]
        self.adts: Mapping[str, Spec] = info["adts"]
        self._instances: dict[tuple[int, int], Mapping[str, Spec]] = {}
        self._meanings: dict[str, list[Mapping[str, Spec]]] = {}
        self._none: Mapping[str, Spec] = {}
        self.plain = all(p["type"]["kind"] == "tensor" for p in self.params) and self.result["kind"] == "tensor"

    def arguments(self, args: Sequence[object]) -> list[object]:
        """The arguments as the runtime takes them. Raises TypeError_ for a wrong number of them or a wrong kind of value."""
        if len(args) != len(self.params):
            names = ", ".join(f"%{p['name']}" for p in self.params) or "none"
            raise TypeError_(f"@{self.name} takes {len(self.params)} arguments ({names}), {len(args)} were given")
        out: list[object] = []
        for param, arg in zip(self.params, args, strict=True):
            if param["type"]["kind"] == "tensor":
                out.append(arg)
            else:
                what = f"argument %{param['name']} of @{self.name}"
                out.append(run(self._inward(param["type"], arg, self._none, what, {})))
        return out

    def outcome(self, value: object) -> object:
        """A result as Python sees it."""
        return value if self.result["kind"] == "tensor" else run(self._outward(self.result, value, self._none))

    def _inward(self, spec: Spec, value: object, types: Mapping[str, Spec], what: str, met: Met) -> Step[object]:
        """Parts of a value that are shared stay so: ``met`` has those that have been seen."""
        kind = spec["kind"]
        if kind == "var":
            return (yield self._inward(types[spec["name"]], value, types, what, met))
        if kind == "tensor":
            return _tensor(spec, value, what)
        if kind == "tuple":
            if not isinstance(value, tuple) or len(value) != len(spec["fields"]):
                raise TypeError_(f"{what} must be a tuple of {len(spec['fields'])}, not {_shown(value)}")
            fields = []
            for n, (f, v) in enumerate(zip(spec["fields"], value, strict=True)):
                fields.append((yield self._inward(f, v, types, f"field {n} of {what}", met)))
            return _runtime.Value.tuple(fields)
        if kind == "adt":
            if isinstance(value, _runtime.Value):
                return value
            return (yield self._adt_inward(spec, value, types, what, met))
        if isinstance(value, _runtime.Value):
            return value
        raise TypeError_(f"{what} is a {kind}, which can only be a value that a program returned, not {_shown(value)}")

    def _adt_inward(self, spec: Spec, value: object, types: Mapping[str, Spec], what: str, met: Met) -> Step[object]:
        name = spec["name"]
        definition = self.adts[name]
        inner = self._instantiate(spec, types)
        if name == "List" and isinstance(value, list):
            tail: object = _runtime.Value.adt(1, [])
            for n in range(len(value) - 1, -1, -1):
                head = yield self._inward(
                    {"kind": "var", "name": definition["params"][0]}, value[n], inner, f"item {n} of {what}", met
                )
                tail = _runtime.Value.adt(0, [head, tail])
            return tail
        if name == "Option" and not isinstance(value, AdtValue):
            if value is None:
                return _runtime.Value.adt(1, [])
            some = yield self._inward({"kind": "var", "name": definition["params"][0]}, value, inner, what, met)
            return _runtime.Value.adt(0, [some])
        if not isinstance(value, AdtValue) or value.adt != name:
            raise TypeError_(f"{what} must be a {name}, not {_shown(value)}")
        known = met.get((id(value), id(inner)))
        if known is not None:
            return known
        constructor = definition["constructors"][value.tag]
        if len(value.fields) != len(constructor["fields"]):
            raise TypeError_(
                f"{what}: {constructor['name']} has {len(constructor['fields'])} fields, not {len(value.fields)}"
            )
        fields = []
        for f, v in zip(constructor["fields"], value.fields, strict=True):
            fields.append((yield self._inward(f, v, inner, f"a field of {constructor['name']} in {what}", met)))
        made = met[id(value), id(inner)] = _runtime.Value.adt(value.tag, fields)
        return made

    def _instantiate(self, spec: Spec, types: Mapping[str, Spec]) -> Mapping[str, Spec]:
        """The meaning of a data type's parameters where it is used: the same object for the same meaning. (Arguments are
        closed before they are bound.)"""
        key = (id(spec), id(types))  # both live as long as the signature
        found = self._instances.get(key)
        if found is None:
            args = [self._closed(a, types) for a in spec["args"]]
            made = dict(zip(self.adts[spec["name"]]["params"], args, strict=True))
            alike = self._meanings.setdefault(spec["name"], [])
            found = next((m for m in alike if m == made), None)
            if found is None:
                alike.append(made)
                found = made
            self._instances[key] = found
        return found

    def _closed(self, spec: Spec, types: Mapping[str, Spec]) -> Spec:
        match spec["kind"]:
            case "var":
                return types[spec["name"]]
            case "tuple":
                return {**spec, "fields": [self._closed(f, types) for f in spec["fields"]]}
            case "adt":
                return {**spec, "args": [self._closed(a, types) for a in spec["args"]]}
            case _:
                return spec

    def _outward(self, spec: Spec, value: Any, types: Mapping[str, Spec]) -> Step[object]:
        kind = spec["kind"]
        if kind == "var":
            return (yield self._outward(types[spec["name"]], value, types))
        if kind == "tuple":
            fields = []
            for f, v in zip(spec["fields"], value.fields, strict=True):
                fields.append((yield self._outward(f, v, types)))
            return tuple(fields)
        if kind != "adt":
            return value
        name = spec["name"]
        definition = self.adts[name]
        inner = self._instantiate(spec, types)
        if name == "List":
            item: Spec = {"kind": "var", "name": definition["params"][0]}
            items: list[object] = []
            while value.tag == 0:
                head, value = value.fields
                items.append((yield self._outward(item, head, inner)))
            return items
        if name == "Option":
            if value.tag == 1:
                return None
            return (yield self._outward({"kind": "var", "name": definition["params"][0]}, value.fields[0], inner))
        constructor = definition["constructors"][value.tag]
        out = []
        for f, v in zip(constructor["fields"], value.fields, strict=True):
            out.append((yield self._outward(f, v, inner)))
        return AdtValue(name, constructor["name"], value.tag, tuple(out))


def _tensor(spec: Spec, value: object, what: str) -> object:
    """A tensor inside a tuple or algebraic value, checked against its type."""
    tensor = value if isinstance(value, _runtime.Tensor) else None
    if tensor is None:
        array = np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic) and array.ndim == 0:
            array = array.astype(spec["dtype"])  # a Python number adopts the declared dtype
        tensor = _runtime.Tensor.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    if tensor.dtype != spec["dtype"]:
        raise TypeError_(f"{what} has dtype {tensor.dtype}, expected {spec['dtype']}")
    shape = tuple(tensor.shape)
    wanted = spec["shape"]
    if len(shape) != len(wanted) or any(isinstance(w, int) and w != s for w, s in zip(wanted, shape, strict=True)):
        text = ", ".join("?" if w is None else str(w) for w in wanted)
        raise ShapeError(f"{what} has shape {shape}, expected ({text})")
    return tensor


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__}"
