"""Whether what an executable says of an entry (`relay.lower.signature`) can be read: a file may be damaged, and names in it are looked up
while a program runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relay.executable.bytecode import DTYPE_CODES
from relay.executable.sizes import OPERATIONS

# What a parameter of a definition stands for, by what is given for it.
_GIVEN = {"shape": "shape", "base type": "base type", "size": "size"}


def check_description(info: Any, entries: Iterable[str]) -> None:
    """Raises ValueError for the description of an entry that names what it does not say; ``entries``: all of the executable."""
    definitions = _mapping(_of(info, "adts"))
    checker = _Description(definitions)
    for name in definitions:
        checker.definition(name)
    types = []
    for param in _list(_of(info, "params")):
        _string(_of(param, "name"))
        types.append(_of(param, "type"))
    for spec in (*types, _of(info, "result")):
        checker.type(spec)
    for closure in _mapping(info.get("closures", {})).values():
        for spec in (*_list(_of(closure, "captured")), _of(closure, "type")):
            checker.type(spec)
    checker.agree()
    for bounds in _mapping(_of(info, "bounds")).values():
        least, most = _list(bounds)
        _require(_is_number(least) and (most is None or _is_number(most)), bounds)
    _check_requests(info, types, set(entries))


def _check_requests(info: Mapping[str, Any], types: Sequence[Any], entries: set[str]) -> None:
    leaves = _leaves(info["result"])
    rows, stacked = _list(info.get("rows", [])), _list(info.get("stacked", []))
    for n in rows:
        _require(_is_number(n) and 0 <= n < len(types), n)
        _require(types[n]["kind"] == "tensor" and len(types[n]["shape"]) > 0, n)
    for n in stacked:
        _require(_is_number(n) and 0 <= n < leaves, n)
    if "requests" not in info:
        return
    requests = _mapping(info["requests"])
    _string(_of(requests, "how"))
    _require(isinstance(_of(requests, "apart"), bool), requests)
    entry = _of(requests, "entry")
    _require(entry is None or (isinstance(entry, str) and entry in entries), entry)
    _require(requests.keys() == {"how", "apart", "entry", "each"}, requests)
    for n in _list(requests["each"]):
        _require(_is_number(n) and 0 <= n < len(types), n)


def _leaves(root: Any) -> int:
    found, todo = 0, [root]
    while todo:
        spec = todo.pop()
        if spec["kind"] == "tuple":
            todo += spec["fields"]
        else:
            found += 1
    return found


class _Description:
    """The types of one entry. What the parameters of definitions stand for is found from how they are used; that the arguments are of
    these kinds is looked at in the end."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        # By definition and parameter; the parameters that another definition's parameter is given for; what else is given.
        self._kinds: dict[tuple[str, str], str] = {}
        self._passed: list[tuple[tuple[str, str], tuple[str, str]]] = []
        self._given: list[tuple[tuple[str, str], str]] = []
        self._inside = ""
        self._own: Sequence[str] = ()

    def definition(self, name: str) -> None:
        """The definition of a data type."""
        definition, self._inside = self._definitions[name], name
        self._own = _list(_of(definition, "params"))
        for param in self._own:
            _string(param)
        for constructor in _list(_of(definition, "constructors")):
            _string(_of(constructor, "name"))
            for spec in _list(_of(constructor, "fields")):
                self.type(spec)
        self._own = ()

    def type(self, root: Any) -> None:
        """A type, or another argument of a data type."""
        todo = [root]
        while todo:
            spec = todo.pop()
            match _of(spec, "kind"):
                case "tensor":
                    self._shape(_of(spec, "shape"))
                    self._dtype(_of(spec, "dtype"))
                case "shape":
                    self._shape(_of(spec, "shape"))
                case "size":
                    self._size(_of(spec, "size"))
                case "base type":
                    self._dtype(_of(spec, "dtype"))
                case "var":
                    _require(_string(_of(spec, "name")) in self._own, spec)
                case "tuple":
                    todo += _list(_of(spec, "fields"))
                case "ref":
                    todo.append(_of(spec, "value"))
                case "function":
                    for name in _list(_of(spec, "sizes")):
                        _string(name)
                    todo += (*_list(_of(spec, "params")), _of(spec, "result"))
                case "adt":
                    todo += self._applied(spec)
                case kind:
                    _require(kind == "other", spec)

    def _applied(self, spec: Mapping[str, Any]) -> Sequence[Any]:
        name, args = _string(_of(spec, "name")), _list(_of(spec, "args"))
        params = _list(_of(_of(self._definitions, name), "params"))
        _require(len(params) == len(args), spec)
        for param, arg in zip(params, args, strict=True):
            kind = _of(arg, "kind")
            if kind == "var":
                self._passed.append(((name, _string(param)), (self._inside, _string(_of(arg, "name")))))
            else:
                self._given.append(((name, _string(param)), _GIVEN.get(kind, "type")))
        return args

    def agree(self) -> None:
        """Every parameter stands for one kind, and is given such."""
        changed = True
        while changed:
            changed = False
            for inner, outer in self._passed:
                kind = self._kinds.get(inner)
                if kind is not None and self._kinds.get(outer) != kind:
                    self._used(outer, kind)
                    changed = True
        for param, kind in self._given:
            _require(self._kinds.get(param, kind) == kind, param)

    def _used(self, param: tuple[str, str], kind: str) -> None:
        _require(self._kinds.setdefault(param, kind) == kind, param)

    def _dtype(self, dtype: Any) -> None:
        if _string(dtype) in self._own:
            self._used((self._inside, dtype), "base type")
        else:
            _require(dtype in DTYPE_CODES, dtype)

    def _shape(self, shape: Any) -> None:
        if isinstance(shape, str):
            _require(shape in self._own, shape)
            self._used((self._inside, shape), "shape")
        else:
            for size in _list(shape):
                self._size(size)

    def _size(self, root: Any) -> None:
        todo = [root]
        while todo:
            size = todo.pop()
            if isinstance(size, str):
                if size in self._own:
                    self._used((self._inside, size), "size")
            elif isinstance(size, list):
                operation, *operands = size
                _require(isinstance(operation, str) and operation in OPERATIONS and len(operands) == 2, size)
                todo += operands
            else:
                _require(size is None or _is_number(size), size)


def _require(holds: bool, found: object) -> None:
    if not holds:
        raise ValueError(f"{found!r:.80}")


def _checked(found: Any, kind: type) -> Any:
    _require(isinstance(found, kind), found)
    return found


def _of(value: Any, name: str) -> Any:
    """What a value has under a name."""
    found = _mapping(value)
    _require(name in found, name)
    return found[name]


def _mapping(value: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _checked(value, dict)
    return found


def _list(value: Any) -> list[Any]:
    found: list[Any] = _checked(value, list)
    return found


def _string(value: Any) -> str:
    found: str = _checked(value, str)
    return found


def _is_number(value: object) -> bool:
    return type(value) is int
