"""Dataclasses that are made in a sixth of the time, and their objects at the speed of ones that are not frozen.

    @record(frozen=True, slots=True, eq=False)
    class Binary: ...

The compiler has five hundred such classes, of which `dataclasses.dataclass` makes one in a millisecond: it compiles each of their methods
by itself. Here one is compiled, the initialiser; comparing and printing go over the fields. A frozen dataclass sets its fields by way of
`object.__setattr__`, too, which makes an object in twenty times the time. Type checkers see `dataclasses.dataclass` here, and refuse an
assignment to a field as ever; when the program runs, nothing does. What users make and could assign to by mistake is a dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from collections.abc import Callable
    from contextlib import suppress
    from dataclasses import MISSING, Field, dataclass, fields
    from operator import attrgetter
    from reprlib import recursive_repr

    def record(
        *, frozen: bool = False, slots: bool, eq: bool = True, repr: bool = True, kw_only: bool = False
    ) -> Callable[[type], type]:
        """The decorator `dataclasses.dataclass` without the guard of fields; equality and hashes are those of a frozen one where it is
        ``frozen``."""
        assert slots, "what has a dictionary is a dataclass"

        def made(cls: type) -> type:
            own = cls.__dict__
            printed, compared, hashed = (name not in own for name in ("__repr__", "__eq__", "__hash__"))
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # or one is made of the signature, which takes as long as all else
            given = cls
            cls = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(given)
            _rebind(given, cls)
            known = fields(cls)
            cls.__init__ = _initialiser(cls, known)
            if repr and printed:
                cls.__repr__ = _repr
            if eq:
                values = _values([f.name for f in known if f.compare])
                if compared:
                    cls.__eq__ = _equality(values)
                if hashed:
                    cls.__hash__ = _hash(values) if frozen else None
            return cls

        return made

    def _rebind(given: type, made: type) -> None:
        """Let `super()` in the methods mean the class with slots, which is another one than that in whose body they were written."""
        for member in vars(made).values():
            for function in (member, *(getattr(member, name, None) for name in ("__func__", "fget"))):
                for cell in getattr(function, "__closure__", None) or ():
                    with suppress(ValueError):  # an empty cell
                        if cell.cell_contents is given:
                            cell.cell_contents = made
                            return  # all methods have the same

    def _initialiser(cls: type, known: tuple[Field, ...]) -> Callable[..., None]:
        """The method that sets the fields."""
        names: dict[str, object] = {"__name__": cls.__module__, "_absent": MISSING}
        parameters: list[str] = []
        named: list[str] = []
        lines: list[str] = []
        for f in known:
            value, default = f.name, ""
            if f.default is not MISSING:
                names[f"_of_{f.name}"] = f.default
                default = f"=_of_{f.name}"
            elif f.default_factory is not MISSING:
                names[f"_of_{f.name}"] = f.default_factory
                default = "=_absent"
            if f.init:
                (named if f.kw_only else parameters).append(f.name + default)
                if default == "=_absent":
                    value = f"_of_{f.name}() if {f.name} is _absent else {f.name}"
            elif default:
                value = f"_of_{f.name}" + ("()" if default == "=_absent" else "")
            else:
                continue  # set later
            lines.append(f" self.{f.name} = {value}\n")
        if hasattr(cls, "__post_init__"):
            lines.append(" self.__post_init__()\n")
        signature = ", ".join(["self", *parameters, *(["*", *named] if named else [])])
        exec(f"def __init__({signature}):\n{''.join(lines) or ' pass'}", names)
        made = names["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        return made

    def _values(names: list[str]) -> Callable[[object], object]:
        """What is compared of an object."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda obj: tuple(getattr(obj, n) for n in names)

    def _equality(values: Callable[[object], object]) -> Callable[[object, object], bool]:
        def __eq__(self: object, other: object) -> bool:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        return __eq__

    def _hash(values: Callable[[object], object]) -> Callable[[object], int]:
        def __hash__(self: object) -> int:
            return hash(values(self))

        return __hash__

    @recursive_repr()
    def _repr(self: object) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({shown})"


__all__ = ["record"]
