"""A module: named functions and type definitions. Immutable; passes make new ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from relay.ir.binding import bind_parameters
from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.expr import Constant, Expr, Function, GlobalVar
from relay.ir.printer import module_text
from relay.ir.saving import save_module
from relay.ir.types import ConstructorDef, TypeDef
from relay.ir.value import Adt
from relay.ir.walk import post_order, rewrite

if TYPE_CHECKING:
    import numpy.typing as npt


def require_module(program: object) -> None:
    """Raises TypeError_ for what is not a module."""
    if not isinstance(program, Module):
        raise TypeError_(
            f"a {type(program).__name__} is not a program",
            hint="give a Module, a Function or Relay text (relay.parse makes a Module of text)",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Module:
    """``functions`` by global name (without ``@``), ``types`` by name; ``sources`` are the texts that spans point into."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    types: Mapping[str, TypeDef] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __copy__(self) -> Module:
        """Itself: a module does not change."""
        return self

    def __deepcopy__(self, memo: object) -> Module:
        return self

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

    def adt(self, name: str) -> Adt:
        """The constructors of a type, to make values: ``mod.adt("List").Cons(x, rest)``. Raises RelayError for an unknown one."""
        found = self.types.get(name)
        if found is None:
            known = ", ".join(self.types) or "none"
            raise RelayError(f"no type {name} in the module", hint=f"it has: {known}")
        return Adt(found)

    def text(self) -> str:
        """The complete text: parsing it gives an alpha-equal module."""
        return module_text(self)

    def __str__(self) -> str:
        """The text with large constants only mentioned."""
        return module_text(self, complete=False)

    __repr__ = __str__

    def bind(self, values: Mapping[str, npt.ArrayLike | Constant], entry: str = "main") -> Module:
        """Parameters of ``@entry`` by name become constants. Arrays of narrower floats are widened to what a parameter takes.

        Raises RelayError for unknown names, TypeError_ and ShapeError for arrays that do not fit the parameter's type.
        """
        function = self.function(entry)
        if any(isinstance(n, GlobalVar) and n.name == entry for f in self.functions.values() for n in post_order(f)):
            hint = "bind a function of the module that calls it"
            raise RelayError(
                f"@{entry} is called inside the module, so its parameters cannot be bound", function.span, hint
            )
        try:
            bound = bind_parameters(function, entry, values)
        except RelayError as error:
            raise error.with_source(self.sources) from error.__cause__
        return self.with_functions({**self.functions, entry: bound})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text to ``path``, with large constants in a safetensors file beside it. Raises FileError."""
        save_module(self, path)


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


def used_of(library: Mapping[str, Function], functions: Mapping[str, Function], prefix: str) -> dict[str, Function]:
    """What some functions use of a library, directly or not. Where the library uses a name itself that these functions give another
    meaning, its own definition is called ``prefix.name``."""
    called = dict.fromkeys(
        node.name for f in functions.values() for node in post_order(f) if isinstance(node, GlobalVar)
    )
    found = reachable(library, [name for name in called if name not in functions])
    names: dict[str, str] = {}
    for name in found:
        if name in functions and functions[name] is not library[name]:
            new, number = f"{prefix}.{name}", 1
            while new in functions or new in library:
                new, number = f"{prefix}.{name}{number}", number + 1
            names[name] = new

    def renamed(node: Expr) -> Expr:
        return replace(node, name=names[node.name]) if isinstance(node, GlobalVar) and node.name in names else node

    out: dict[str, Function] = {}
    for name in found:
        function = rewrite(library[name], renamed) if names else library[name]
        assert isinstance(function, Function)
        out[names.get(name, name)] = function
    return out
