"""How often the variables of a function in blocks are used, and from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.walk import free_vars
from relay.transform.blocks import all_blocks, body_of, is_primitive, nested_blocks, operands


def use_counts(root: Block) -> Counter[Var]:
    """The number of places that mention each variable, in this block and all inside it, results of blocks included."""
    counts: Counter[Var] = Counter()
    for block in all_blocks(root):
        for binding in block.bindings:
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    counts[atom] += 1
        if isinstance(block.result, Var):
            counts[block.result] += 1
    return counts


@record(slots=True, eq=False)
class ClosureUses:
    """How the closures of functions in blocks are used, each function being gone through once: how often variables are mentioned
    (``counts``), the closures that mention themselves (``recursive``) and those whose one mention is a call of them (``called_once``)."""

    counts: Counter[Var] = field(default_factory=Counter)
    recursive: set[Var] = field(default_factory=set)
    called_once: set[Var] = field(default_factory=set)

    def add(self, root: Block) -> None:
        """Go through a function's body."""
        closures: dict[Var, Function] = {}
        called: list[tuple[Var, Call]] = []
        inside: set[Var] = set()  # the closures whose bodies are open
        todo: list[tuple[Block, Var | None] | Var] = [(root, None)]
        while todo:
            top = todo.pop()
            if isinstance(top, Var):
                inside.discard(top)
                continue
            block, of = top
            if of is not None:
                inside.add(of)
                todo.append(of)
            mentioned = [block.result]
            for binding in block.bindings:
                var, value = binding.var, binding.value
                mentioned += operands(value)
                todo += ((inner, var if isinstance(value, Function) else None) for inner in nested_blocks(value))
                if isinstance(value, Function):
                    closures[var] = value
                elif isinstance(value, Call) and isinstance(value.fn, Var):
                    called.append((value.fn, value))
            for atom in mentioned:
                if isinstance(atom, Var):
                    self.counts[atom] += 1
                    if atom in inside:
                        self.recursive.add(atom)
        for var, call in called:
            function = closures.get(var)
            once = self.counts[var] == 1 and var not in self.recursive
            if once and function is not None and not function.type_params and len(function.params) == len(call.args):
                self.called_once.add(var)

    def copied(self, atoms: Mapping[Var, Expr]) -> None:
        """Take note of a copy of blocks: what has become of the variables bound there."""
        for old, new in atoms.items():
            if isinstance(new, Var):
                if old in self.recursive:
                    self.recursive.add(new)
                elif old in self.called_once:
                    self.called_once.add(new)


def needed(
    bindings: Sequence[Binding], results: Iterable[Expr], also: Callable[[Expr], object] | None = None
) -> list[Binding]:
    """The bindings that the results need, in order, and those of values that are kept ``also``."""
    used = {r for r in results if isinstance(r, Var)}
    out: list[Binding] = []
    for b in reversed(bindings):
        if b.var in used or (also is not None and also(b.value)):
            out.append(b)
            used.update(a for a in operands(b.value) if isinstance(a, Var))
            used.update(v for block in nested_blocks(b.value) for v in free_vars(block))
    out.reverse()
    return out


def call_sites(module: Module) -> tuple[dict[str, list[tuple[str, Call]]], set[str]]:
    """The calls of each global function that is called, with the names of their callers; and the names of the functions that stand anywhere
    else than where they are called, and may be called from there."""
    calls: dict[str, list[tuple[str, Call]]] = {}
    values: set[str] = set()
    for name, function in module.functions.items():
        if is_primitive(function):
            continue
        for block in all_blocks(body_of(function)):
            atoms: list[Expr] = [block.result]
            for binding in block.bindings:
                value, found = binding.value, operands(binding.value)
                if isinstance(value, Call) and isinstance(value.fn, GlobalVar):
                    calls.setdefault(value.fn.name, []).append((name, value))
                    found = value.args
                atoms += found
            values.update(a.name for a in atoms if isinstance(a, GlobalVar))
    return calls, values


def globals_used(function: Function) -> list[str]:
    """The names of the global functions that a function in blocks mentions, in order, repetitions included."""
    if is_primitive(function):
        return []
    out: list[str] = []
    assert isinstance(function.body, Block)
    for block in all_blocks(function.body):
        for binding in block.bindings:
            out += (a.name for a in operands(binding.value) if isinstance(a, GlobalVar))
        if isinstance(block.result, GlobalVar):
            out.append(block.result.name)
    return out
