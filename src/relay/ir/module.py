"""A module: named functions and type definitions. Immutable; passes make new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from relay.ir.diagnostics import RelayError
from relay.ir.expr import Function, GlobalVar
from relay.ir.types import ConstructorDef, TypeDef
from relay.ir.walk import post_order


@dataclass(frozen=True, eq=False)
class Module:
    """``functions`` by global name (without ``@``), ``types`` by name; ``sources`` are the texts that spans point into."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    types: Mapping[str, TypeDef] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def constructors(self) -> Mapping[str, ConstructorDef]:
        """Every constructor by name."""
        return {c.name: c for d in self.types.values() for c in d.constructors}

    def function(self, name: str) -> Function:
        """The function ``@name``. Raises RelayError when there is none."""
        found = self.functions.get(name)
        if found is None:
            known = ", ".join(f"@{n}" for n in list(self.functions)[:8]) or "none"
            raise RelayError(f"no function @{name} in the module", hint=f"it has: {known}")
        return found

    def with_functions(self, functions: Mapping[str, Function] | Iterable[tuple[str, Function]]) -> Module:
        """A module with these functions instead (the same one when every function is the same object)."""
        new = dict(functions)
        if new.keys() == self.functions.keys() and all(new[n] is f for n, f in self.functions.items()):
            return self
        return Module(new, self.types, self.sources)


def reachable(functions: Mapping[str, Function], roots: Iterable[str]) -> list[str]:
    """The names of the functions that ``roots`` call, directly or not, themselves included, in order of discovery."""
    found: dict[str, None] = {name: None for name in roots if name in functions}
    todo = list(found)
    while todo:
        for node in post_order(functions[todo.pop()]):
            if isinstance(node, GlobalVar) and node.name in functions and node.name not in found:
                found[node.name] = None
                todo.append(node.name)
    return list(found)
