"""Command lines from the signatures of functions: what ``Annotated[type, Option(...)]`` says of a parameter is how it is given."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from relay.ir.diagnostics import RelayError

# What stands for a value in the help.
_METAVARS = {str: "TEXT", int: "N", float: "X", Path: "PATH"}


class Option:
    """A parameter given by one of these flags (none: its name).

    Its type says what is read: a ``bool`` is a flag without a value, a list is given one by one; a default other than None is shown.
    """

    def __init__(self, *flags: str, help: str) -> None:
        self.flags, self.help = flags, help


class Argument:
    """A parameter given by its place."""

    def __init__(self, help: str) -> None:
        self.help = help


class Parser(ArgumentParser):
    """A parser whose errors are RelayErrors and whose options are not abbreviated."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise RelayError(message, hint=f"`{self.prog} --help` lists what there is")


def call(verb: Callable[..., None], name: str, arguments: Sequence[str]) -> None:
    """Call a function with what a command line gives its parameters. Raises RelayError for a wrong command line, SystemExit after
    ``--help``."""
    parser = Parser(f"relay {name}", inspect.cleandoc(verb.__doc__ or ""))
    hints = get_type_hints(verb, include_extras=True)
    for parameter in inspect.signature(verb).parameters.values():
        _add(parser, parameter, hints[parameter.name])
    verb(**vars(parser.parse_args(arguments)))


def _add(parser: Parser, parameter: inspect.Parameter, hint: Any) -> None:
    annotated, given = get_args(hint)
    kind = (
        next((t for t in get_args(annotated) if t is not NoneType), annotated)
        if NoneType in get_args(annotated)
        else annotated
    )
    required = parameter.default is inspect.Parameter.empty
    shown = "" if required or parameter.default in (None, "") else f" [default: {parameter.default}]"
    match given, kind:
        case Argument(), _:
            parser.add_argument(
                parameter.name,
                type=kind,
                nargs=None if required else "?",
                metavar=parameter.name.upper(),
                help=given.help,
            )
        case Option(), _ if kind is bool:
            parser.add_argument(*_flags(given, parameter), action="store_true", dest=parameter.name, help=given.help)
        case Option(), _:
            several = get_origin(kind) is list
            element = get_args(kind)[0] if several else kind
            parser.add_argument(
                *_flags(given, parameter),
                action="append" if several else "store",
                type=element,
                default=parameter.default,
                dest=parameter.name,
                metavar=_METAVARS[element],
                help=given.help + shown,
            )


def _flags(option: Option, parameter: inspect.Parameter) -> tuple[str, ...]:
    return option.flags or (f"--{parameter.name.replace('_', '-')}",)
