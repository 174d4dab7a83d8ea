"""Clauses that do the same with parts that lie elsewhere are one clause.

    match (%l) {
      RLeaf(%s) => tanh(nn.dense(%s, %w)),
      RNode(_, _, %s) => tanh(nn.dense(%s, %w)),
    }

A walk reads what a clause asks for wherever its decision tree has found it (`describe`), so the nodes of both are rows of one product, and
not of two with half as many. What reads the state of a part of any of five constructors is one clause so, and what reads those of two such
parts is one and not 25.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from relay.ir.expr import Call, Expr, GlobalVar, Var
from relay.ir.record import record
from relay.ir.types import Type
from relay.transform.batching.decisions import Clause, Elsewhere, Path, Tree
from relay.transform.blocks import is_atom, operands, with_operands
from relay.transform.cse import atom_key, operation_key


@record(slots=True, eq=False)
class Alike:
    """The clauses of one function that differ. What functions that are ``turned`` are given has to lie at the same place in clauses that do
    the same: how they reach it depends on that."""

    turned: frozenset[str]
    clauses: list[Clause] = field(default_factory=list)
    _known: dict[object, tuple[Clause, Sequence[Path]]] = field(default_factory=dict)
    # What variables are called when clauses are compared: parts in order of first use, and what is computed.
    _parts: list[Var] = field(default_factory=list)
    _values: list[Var] = field(default_factory=list)

    def add(self, clause: Clause) -> Tree:
        """The end of a decision tree that stands for this clause: itself, or one that does the same with other parts."""
        key, paths = self._form(clause)
        known = None if key is None else self._known.get(key)
        if known is not None:
            other, places = known
            moved = {p: q for p, q in zip(places, paths, strict=True) if p != q}
            return Elsewhere(other, moved) if moved else other
        if key is not None:
            self._known[key] = clause, paths
        self.clauses.append(clause)
        return clause

    def _form(self, clause: Clause) -> tuple[object | None, list[Path]]:
        """What clauses that do the same have in common (None: this is like no other), and where the parts lie that it reads."""
        at: dict[Path, Var] = {}
        names: dict[Var, Var] = {}
        types: list[Type | None] = []
        fixed: list[Path | None] = []  # where what may lie nowhere else does

        def name(atom: Expr) -> Expr:
            if not isinstance(atom, Var):
                return atom
            if atom not in names and atom in clause.parts:
                path = clause.parts[atom]
                if path not in at:
                    at[path] = _nth(self._parts, len(at))
                    types.append(atom.ty)
                    fixed.append(None if path else path)
                names[atom] = at[path]
            return names.get(atom, atom)

        code: list[object] = []
        for n, binding in enumerate(clause.bindings):
            value = binding.value
            new = [name(a) for a in operands(value)]
            key = atom_key(new[0]) if is_atom(value) else operation_key(with_operands(value, new))
            if key is None:
                return None, []
            code.append(key)
            names[binding.var] = _nth(self._values, n)
        result = atom_key(name(clause.result))
        for b in clause.all_bindings():
            if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name in self.turned:
                fixed += (clause.parts[a] for a in b.value.args if isinstance(a, Var) and a in clause.parts)
        empty = [clause.lists[b.var].empty for b in clause.bindings if b.var in clause.lists]
        return (tuple(code), result, tuple(types), tuple(fixed), tuple(empty)), list(at)


def _nth(names: list[Var], number: int) -> Var:
    while len(names) <= number:
        names.append(Var("same"))
    return names[number]
