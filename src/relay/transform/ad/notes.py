"""What became of recursive functions under reverse mode, for those who look (`relay inspect --show gradient`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from relay.ir.expr import Function
from relay.ir.graph import components
from relay.transform.blocks import is_primitive
from relay.transform.uses import globals_used

# The attribute that says it, of the functions that a gradient consists of.
NOTE = "gradient"

AS_LOOP = "as a loop over what the iterations before have kept"
GENERAL = "call by call, each with a way back of its own"


def recursive(functions: Mapping[str, Function]) -> set[str]:
    """The functions that call themselves, through others too."""
    names = {n: globals_used(f) for n, f in functions.items() if not is_primitive(f)}
    return {n for group in components(names) if len(group) > 1 or group[0] in names[group[0]] for n in group}


def noted(function: Function, why: str) -> Function:
    """The function with the reason why what it belongs to is differentiated in the general way."""
    return replace(function, attrs=MappingProxyType({**function.attrs, NOTE: f"{GENERAL}: {why}"}))
