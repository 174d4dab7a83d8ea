"""What recursive functions hand on without ever differentiating by it.

    fn @run(%i, %xs, %state, %w) { ... @run(%i + 1, %xs, Cons(..., %state), %w) ... }

Called under a gradient with a constant for ``%xs``, the recursion never gives it anything else. A constant has no cotangent, so the lifted
function takes it as it is: a tree of inputs is not copied into one of pairs, and no product is made for what nobody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from relay.ir.dim import DimVar
from relay.ir.expr import Call, Constant, ConstructorRef, Expr, Function, GlobalVar, Match, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import AdtType, TensorType, TupleType, Type
from relay.ir.walk import pattern_vars
from relay.transform.ad.duals import Lifting
from relay.transform.blocks import all_blocks, body_of, is_primitive
from relay.transform.build import type_of
from relay.typing.mentions import holds_function, holds_reference, mentioned

# The parameters of a function, by position.
Numbers = frozenset[int]


@record(slots=True, eq=False)
class Activity:
    """Which parameters of global functions are constant in all calls that a call leads to."""

    known: Mapping[str, Function]
    lifting: Lifting
    _found: dict[tuple[str, Numbers], dict[str, Numbers]] = field(default_factory=dict)

    def constant(self, name: str, given: Numbers) -> Numbers:
        """Those of the parameters ``given`` as constants that are so in every call of the function that this call leads to."""
        if not given:
            return given
        key = name, given
        if key not in self._found:
            self._found[key] = self._fixed_point(name, given)
        return self._found[key][name]

    def candidates(self, name: str) -> Numbers:
        """The parameters that can be left as they are: data whose type says what is in them."""
        function = self.known[name]
        if is_primitive(function) or not all(isinstance(p, DimVar) for p in function.type_params):
            return frozenset()
        return frozenset(n for n, p in enumerate(function.params) if self.is_data(type_of(p)))

    def is_data(self, t: Type) -> bool:
        """Whether lifting changes a type, and a value of it can be lifted where it is wanted (`Lifter.argument`)."""
        match t:
            case TensorType():
                return self.lifting.changes(t)
            case TupleType():
                return self.lifting.changes(t) and all(
                    self.is_data(f) or not self.lifting.concerns(f) for f in t.fields
                )
            case AdtType():
                definitions = self.lifting.definitions
                more = holds_reference(t, definitions) or holds_function(t, definitions) or self._stands_for_function(t)
                return self.lifting.changes(t) and not more
            case _:
                return False

    def _stands_for_function(self, t: Type) -> bool:
        functions = self.lifting.functions
        return any(isinstance(p, AdtType) and p.name in functions for p in mentioned(t, self.lifting.definitions))

    def _fixed_point(self, name: str, given: Numbers) -> dict[str, Numbers]:
        masks = {name: given & self.candidates(name)}
        todo = [name]
        while todo:
            caller = todo.pop()
            function = self.known[caller]
            if is_primitive(function):
                continue
            for callee, constant in _calls(function, masks[caller], self.lifting):
                if callee not in self.known:
                    continue
                before = masks.get(callee)
                after = (constant & self.candidates(callee)) if before is None else before & constant
                if after != before:
                    masks[callee] = after
                    todo.append(callee)
        return masks


def _calls(function: Function, given: Numbers, lifting: Lifting) -> Iterator[tuple[str, Numbers]]:
    """The global functions that a function calls, with what is constant in each call, where its parameters ``given`` are. What comes
    out of a branch, a match or a call is taken for what may not be constant, as it is by `Lifter`."""
    constant: set[Var] = {p for n, p in enumerate(function.params) if n in given}

    def is_constant(e: Expr) -> bool:
        return isinstance(e, Constant) or e in constant or not lifting.concerns(type_of(e))

    for block in all_blocks(body_of(function)):
        for b in block.bindings:
            match b.value:
                case Call(fn=GlobalVar(name=name), args=args):
                    yield name, frozenset(n for n, a in enumerate(args) if is_constant(a))
                case Call(fn=OpRef() | ConstructorRef(), args=args) if all(map(is_constant, args)):
                    constant.add(b.var)
                case Tuple(fields=fields) if all(map(is_constant, fields)):
                    constant.add(b.var)
                case Proj(tuple=whole) if is_constant(whole):
                    constant.add(b.var)
                case Var() if is_constant(b.value):
                    constant.add(b.var)
                case Match(data=data, clauses=clauses) if is_constant(data):
                    constant.update(v for c in clauses for v in pattern_vars(c.pattern))
                case _:
                    pass
