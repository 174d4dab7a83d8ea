"""Why a definition cannot be applied."""

from __future__ import annotations

from relay.ir.dim import DimVar


class Undetermined(Exception):
    """A fact about these unknown dims (about one that is ``?``, where there are none) is needed before the definition can go on."""

    def __init__(self, variables: tuple[DimVar, ...]) -> None:
        super().__init__(f"needs {', '.join(v.name for v in variables) or '?'}")
        self.variables = variables


class DefinitionError(Exception):
    """The operator cannot be applied to these inputs; the message says what was expected and found."""
