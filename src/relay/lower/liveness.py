"""Which variables a block still needs, binding by binding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field

from relay.ir.expr import Block, Call, Expr, Function, If, Match, Var
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.walk import children, pattern_vars
from relay.transform.blocks import operands


@record(slots=True, eq=False)
class Uses:
    """The free variables of every block of a function body, found once bottom-up (a primitive's body is not entered)."""

    of_block: dict[int, frozenset[Var]] = field(default_factory=dict)
    buffers: set[Var] = field(default_factory=set)  # what nothing but kernels reads

    def analyse(self, block: Block) -> Step[frozenset[Var]]:
        """Fill in the table for a block and every block inside it."""
        free: set[Var] = set()
        bound: set[Var] = set()
        for binding in block.bindings:
            for inner in nested_blocks(binding.value):
                yield self.analyse(inner)
            free |= self.of_value(binding.value) - bound
            bound.add(binding.var)
        if isinstance(block.result, Var):
            free |= {block.result} - bound
        self.of_block[id(block)] = frozenset(free)
        return self.of_block[id(block)]

    def find_buffers(self, body: Block, kernels: Collection[int]) -> None:
        """Find the variables of a function body that nothing but calls of these primitives (by their ids) reads."""
        others: set[Expr] = set()
        todo = [body]
        while todo:
            block = todo.pop()
            others.add(block.result)
            for binding in block.bindings:
                self.buffers.add(binding.var)
                value = binding.value
                todo += nested_blocks(value)
                if not isinstance(value, Call) or id(value.fn) not in kernels:
                    others.update(a for a in operands(value) if isinstance(a, Var))
        self.buffers -= others

    def of_value(self, value: Expr) -> set[Var]:
        """The variables a binding's value reads, those of nested blocks included."""
        match value:
            case Var():
                return {value}
            case If():
                assert isinstance(value.then, Block) and isinstance(value.orelse, Block)
                return self._atoms(value.cond) | self.of_block[id(value.then)] | self.of_block[id(value.orelse)]
            case Match():
                out = self._atoms(value.data)
                for clause in value.clauses:
                    assert isinstance(clause.body, Block)
                    out |= self.of_block[id(clause.body)] - set(pattern_vars(clause.pattern))
                return out
            case Function():
                return set()
            case _:
                return {c for c in children(value) if isinstance(c, Var)}

    @staticmethod
    def _atoms(e: Expr) -> set[Var]:
        return {e} if isinstance(e, Var) else set()


def nested_blocks(value: Expr) -> tuple[Block, ...]:
    """The blocks directly inside a binding's value."""
    match value:
        case If():
            return (_block(value.then), _block(value.orelse))
        case Match():
            return tuple(_block(c.body) for c in value.clauses)
        case _:
            return ()


def _block(e: Expr) -> Block:
    assert isinstance(e, Block), "the program is not in blocks"
    return e


def dying(
    block: Block, live_out: frozenset[Var] | set[Var], uses: Uses
) -> tuple[list[set[Var]], dict[int, frozenset[Var]]]:
    """For each binding, the variables read there and by nothing after it (the block's result and ``live_out`` count as after).

    A bound variable that nothing reads dies at its own binding. The second result gives, for the positions of If and Match,
    everything that is read after them.
    """
    live = set(live_out)
    if isinstance(block.result, Var):
        live.add(block.result)
    ends: list[set[Var]] = []
    after: dict[int, frozenset[Var]] = {}
    for position in range(len(block.bindings) - 1, -1, -1):
        binding = block.bindings[position]
        if isinstance(binding.value, If | Match):
            after[position] = frozenset(live)
        read = uses.of_value(binding.value)
        ends.append((read - live) | (set() if binding.var in live else {binding.var}))
        live |= read
        live.discard(binding.var)
    ends.reverse()
    return ends, after
