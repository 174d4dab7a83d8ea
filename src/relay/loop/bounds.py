"""Whether what a kernel reads and writes is inside of its buffers, proved for every size.

Each index becomes a dim (`relay.ir.dim`) in which loop variables are dim variables; that it is neither negative nor beyond the buffer's
shape has to follow (`relay.ir.inequality`) from the loops, branches and switches around it and from the choices that lead to it: of a
`Select` only the chosen side is read. Loops over vectors need nothing else: their last one is masked. What a prefetch asks for may lie
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from relay.ir.dim import (
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    dim_add,
    dim_atoms,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mod,
    dim_mul,
    dim_sub,
    dim_vars,
)
from relay.ir.inequality import Facts, is_count, replaced
from relay.ir.record import record
from relay.ir.types import dtype_bits, is_integer
from relay.loop.ir import (
    TURN,
    WORKERS,
    Behind,
    Between,
    BlockProduct,
    Branch,
    Buffer,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Shared,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.loop.printer import scalar_text
from relay.loop.walk import expressions, parts
from relay.te.scalar import Axis, Binary, Cast, Compare, Const, Load, Named, Scalar, Select, Size, Unary, walk
from relay.te.ways import comparisons, ways

# Ways from an expression to a node in it that are looked at. Every one of them has to exclude what is outside.
_MOST_WAYS: Final = 32
_ARITHMETIC: Final = {"add": dim_add, "sub": dim_sub, "mul": dim_mul, "min": dim_min, "max": dim_max}
_LEAST_INT64: Final = -(1 << 63)
# Variables before one that may be places which it counts from, and what is spent on each question about it.
_RECENT: Final = 2
_CLAIM: Final = 100
# Accesses of a kernel that the whole search is made for in vain; then less is spent on each.
_PATIENCE: Final = 8
_BRIEF: Final = 60


@record(frozen=True, slots=True)
class Access:
    """A place that could not be proved to be inside: the buffer, what is done there, the index (its number and its text) and the size."""

    buffer: Buffer
    what: str
    number: int
    index: Scalar

    def __str__(self) -> str:
        size = self.buffer.shape[self.number]
        return f"{self.buffer.name} of {size} elements is {self.what} at {scalar_text(self.index)}"


def unproved(kernel: Kernel, assumed: Iterable[Dim] = (), only_read: bool = False) -> list[Access]:
    """The accesses of a kernel that may be outside of their buffers, as far as was found, in order; ``only_read``: of those whose index
    depends on what stands in memory. The dims ``assumed`` are known not to be negative."""
    prover = _Prover(only_read)
    for dim in assumed:
        prover.facts.assume(dim)
        prover.where_some += _where_some(dim)
    return prover.kernel(kernel)


def _where_some(fact: Dim) -> list[tuple[tuple[Dim, ...], Dim]]:
    """What a fact with a factor ``min(1, n)`` says where n is 1 or more: it is about what is done n times (`relay.te.reach`)."""
    if not isinstance(fact, SymDim):
        return []
    for atom in dim_atoms(fact):
        if isinstance(atom, DimOp) and atom.op == "min" and 1 in (atom.a, atom.b):
            return [(_factors(atom.b if atom.a == 1 else atom.a), replaced(fact, atom, 1))]
    return []


def _factors(count: Dim) -> tuple[Dim, ...]:
    """Dims of which a dim is the product, times a number of 1 or more."""
    if isinstance(count, SymDim) and len(count.terms) == 1:
        ((monomial, coefficient),) = count.terms
        if coefficient >= 1:
            return tuple(as_dim(atom) for atom, _ in monomial)
    return (count,)


class _Prover:
    def __init__(self, only_read: bool) -> None:
        self.only_read = only_read
        self.facts = Facts()
        self.found: list[Access] = []
        # What variables stand for, and dims of nodes. A variable that is bound to something else voids the latter.
        self.meaning: dict[Axis, Dim] = {}
        self.extent: dict[Axis, Dim] = {}
        self.values: dict[Axis, Scalar] = {}
        self.memo: dict[int, Dim] = {}
        self.reads: dict[tuple[object, ...], Dim] = {}
        self.inputs: frozenset[Buffer] = frozenset()
        # Variables that are no polynomials and never negative, with what they are made of and how many facts there were.
        self.loops: set[DimVar] = set()
        self.counts: list[tuple[int, DimVar, set[DimVar]]] = []
        # Variables that depend on what stands in memory.
        self.read: set[Axis] = set()
        # Facts that hold where some dims are 1 or more, and those of them that hold here, with how many facts there were then.
        self.where_some: list[tuple[tuple[Dim, ...], Dim]] = []
        self.here: list[tuple[int, int]] = []

    def kernel(self, kernel: Kernel) -> list[Access]:
        self.inputs = frozenset(kernel.inputs)
        self.meaning[WORKERS] = as_dim(
            DimVar("workers", 1, WORKERS.extent if isinstance(WORKERS.extent, int) else None)
        )
        self.meaning[TURN] = as_dim(DimVar("turn", 0, 1))
        # A statement to enter, with the conditions that lead to it; a number: the facts to go back to.
        todo: list[tuple[Stmt, tuple[tuple[Scalar, bool], ...], Dim | None] | int] = [(kernel.body, (), None)]
        while todo:
            item = todo.pop()
            if isinstance(item, int):
                self.facts.release(item)
                continue
            stmt, conditions, equal = item
            mark = self.facts.mark()
            for cond, truth in conditions:
                self.assume(cond, truth)
            if equal is not None:
                self.facts.assume(equal)
                self.facts.assume(dim_mul(-1, equal))
            self.enter(stmt)
            todo.append(mark)
            match stmt:
                case Branch():
                    if stmt.orelse is not None:
                        todo.append((stmt.orelse, ((stmt.cond, False),), None))
                    todo.append((stmt.then, ((stmt.cond, True),), None))
                case Switch():
                    value = self.dim(stmt.value)
                    todo.extend((case, (), dim_sub(value, n)) for n, case in enumerate(stmt.cases))
                case _:
                    todo.extend((part, (), None) for part in reversed(parts(stmt)))
        return self.found

    def enter(self, stmt: Stmt) -> None:
        if isinstance(stmt, Prefetch):
            return
        for expr in expressions(stmt):
            self.expression(expr)
        match stmt:
            case For():
                count = self.dim(stmt.extent)
                variable = DimVar(stmt.var.name)
                self.loops.add(variable)
                self.bind(stmt.var, as_dim(variable))
                self.facts.assume(dim_sub(dim_sub(count, 1), self.meaning[stmt.var]))
                self.some(count)
                self.facts.know(count)
                self.settle()
            case LetScalar():
                if self.is_read(stmt.value):
                    self.read.add(stmt.var)
                if isinstance(stmt.var, Between) and _is_between(stmt.var, stmt.value):
                    self.between(stmt.var)
                elif is_integer(stmt.var.dtype):
                    self.bind(stmt.var, self.named(stmt.var, self.dim(stmt.value)))
                elif stmt.var.dtype == "bool":
                    self.memo.clear()
                    self.values[stmt.var] = stmt.value
            case Store():
                self.inside(stmt.buffer, stmt.indices, "written")
            case Transpose():
                self.block(stmt)
            case BlockProduct():
                self.block_product(stmt)
            case _:
                pass

    def between(self, axis: Between) -> None:
        """A variable of which nothing is known but its ends."""
        ends = [self.dim(end) for end in axis.high]
        sure = all(self.facts.implies(dim_sub(end, axis.low), _CLAIM) for end in ends)
        variable = as_dim(DimVar(axis.name, axis.low if sure else _LEAST_INT64))
        self.bind(axis, variable)
        for end in ends:
            self.facts.assume(dim_sub(end, variable))

    def some(self, count: Dim) -> None:
        """Assume what a loop that does anything says of sizes whose product is its number of rounds: none of them is zero."""
        factors = _factors(count)
        if len(factors) > 1 and all(is_count(factor) for factor in factors):
            for factor in factors:
                self.facts.assume(dim_sub(factor, 1))

    def settle(self) -> None:
        """Assume what holds where something is done, in a loop that says that it is."""
        while self.here and self.here[-1][0] > self.facts.mark():
            self.here.pop()
        holding = {number for _, number in self.here}
        for number, (counts, fact) in enumerate(self.where_some):
            if number not in holding and all(self.facts.implies(dim_sub(count, 1), _CLAIM) for count in counts):
                self.facts.assume(fact)
                self.here.append((self.facts.mark(), number))

    def bind(self, axis: Axis, meaning: Dim) -> None:
        if axis in self.meaning:
            self.memo.clear()
        self.meaning[axis] = meaning

    def named(self, axis: Axis, value: Dim) -> Dim:
        """What a variable stands for: a polynomial of others as it is, anything else a variable of its own that equals it."""
        if not isinstance(value, SymDim) or not any(isinstance(atom, DimOp) for atom in dim_atoms(value)):
            return value
        self.facts.know(value)
        count = self.facts.implies(value)
        variable = DimVar(axis.name, 0 if count else _LEAST_INT64)
        atom, *more = dim_atoms(value)
        cases = self.facts.cases(atom) if not more and value == as_dim(atom) else ()
        if cases:  # an extreme is one operand or the other
            self.facts.choose(variable, *cases)
        same = dim_sub(as_dim(variable), value)
        self.facts.assume(same)
        self.facts.assume(dim_mul(-1, same))
        if count:
            self.claim(variable, value)
        return as_dim(variable)

    def claim(self, variable: DimVar, value: Dim) -> None:
        """A place and how many there are from it on, bound one after the other, end within something that they are made of: what many
        accesses need, found out once."""
        while self.counts and self.counts[-1][0] > self.facts.mark():
            self.counts.pop()
        made = {var for var in dim_vars(value) if var not in self.loops}
        for _, other, parts_ in self.counts[-_RECENT:]:
            both = dim_add(as_dim(other), as_dim(variable))
            wholes = sorted((made | parts_) - {other}, key=lambda a: -a.serial)
            for whole in wholes:
                within = dim_sub(as_dim(whole), both)
                if self.facts.implies(within, _CLAIM):
                    self.facts.assume(within)
        self.counts.append((self.facts.mark(), variable, made))

    # -- accesses

    def inside(self, buffer: Buffer, indices: tuple[Scalar, ...], what: str) -> None:
        for number in self.outside(buffer, indices):
            self.note(buffer, indices, number, what)

    def note(self, buffer: Buffer, indices: tuple[Scalar, ...], number: int, what: str) -> None:
        self.found.append(Access(buffer, what, number, indices[number]))

    def outside(self, buffer: Buffer, indices: tuple[Scalar, ...]) -> list[int]:
        """The numbers of the indices that are not known to be inside."""
        out = []
        for number, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
            if self.only_read and not self.is_read(index):
                continue
            at = self.dim(index)
            self.facts.know(at)
            if not self.within(at, size):
                out.append(number)
        return out

    def within(self, at: Dim, size: Dim) -> bool:
        ends = (at, dim_sub(dim_sub(size, 1), at))
        if len(self.found) >= _PATIENCE:
            return all(self.facts.implies(end, _BRIEF) for end in ends)
        return all(self.facts.implies(end) for end in ends)

    def is_read(self, index: Scalar) -> bool:
        """Whether an index depends on what stands in memory."""
        return any(isinstance(n, Load) or (isinstance(n, Axis) and n in self.read) for n in walk(index))

    def block(self, stmt: Transpose) -> None:
        if self.only_read:
            return
        to, pitch, at, stride, rows, columns = (
            self.dim(s) for s in (stmt.to, stmt.pitch, stmt.at, stmt.stride, stmt.rows, stmt.columns)
        )
        i, j = as_dim(DimVar("i")), as_dim(DimVar("j"))
        with self.facts.within():
            self.facts.assume(dim_sub(dim_sub(rows, 1), i))
            self.facts.assume(dim_sub(dim_sub(columns, 1), j))
            places = (
                (stmt.target, stmt.to, dim_add(dim_add(to, dim_mul(j, pitch)), i), "written"),
                (stmt.source, stmt.at, dim_add(dim_add(at, dim_mul(i, stride)), j), "read"),
            )
            for buffer, index, place, what in places:
                if not self.within(place, buffer.shape[0]):
                    self.found.append(Access(buffer, f"{what} in a transposition", 0, index))

    def block_product(self, stmt: BlockProduct) -> None:
        self.inside(stmt.right, stmt.first, "read in a product")
        if self.only_read:
            return
        to, at, stride, rows = (self.dim(s) for s in (stmt.to, stmt.at, stmt.stride, stmt.rows))
        i = as_dim(DimVar("i"))
        with self.facts.within():
            self.facts.assume(dim_sub(dim_sub(rows, 1), i))
            places = (
                (stmt.target, stmt.to, dim_add(to, dim_mul(i, stmt.columns)), stmt.columns, "written"),
                (stmt.left, stmt.at, dim_add(at, dim_mul(i, stride)), stmt.depth, "read"),
            )
            for buffer, index, place, count, what in places:
                if not (
                    self.within(place, buffer.shape[0]) and self.within(dim_add(place, count - 1), buffer.shape[0])
                ):
                    self.found.append(Access(buffer, f"{what} in a product", 0, index))

    def expression(self, root: Scalar) -> None:
        """The reads in an expression: at first as if all of it were computed; what is not inside then, under the choices before it."""
        suspects: dict[int, list[int]] = {}
        for node in walk(root):
            if isinstance(node, Load):
                assert isinstance(node.source, Buffer)
                numbers = self.outside(node.source, node.indices)
                if numbers:
                    suspects[id(node)] = numbers
        if not suspects:
            return
        bad: dict[tuple[int, int], Load] = {}
        for load, conditions in ways(root, suspects, _MOST_WAYS):
            with self.facts.within():
                for cond, truth in conditions:
                    self.assume(cond, truth)
                assert isinstance(load.source, Buffer)
                for number in self.outside(load.source, load.indices):
                    bad.setdefault((id(load), number), load)
        for (_, number), load in bad.items():
            assert isinstance(load.source, Buffer)
            self.note(load.source, load.indices, number, "read")

    # -- conditions

    def assume(self, cond: Scalar, truth: bool) -> None:
        for node, holds in comparisons(((cond, truth),), self.values):
            if is_integer(node.a.dtype):
                for fact in _facts(node.op, self.dim(node.a), self.dim(node.b), holds):
                    self.facts.assume(fact)

    # -- expressions as dims

    def dim(self, root: Scalar) -> Dim:
        """The value of an integer expression; what is not arithmetic is a variable of its own."""
        found = self.memo.get(id(root))
        if found is None:
            for node in walk(root):
                if id(node) not in self.memo:
                    self.memo[id(node)] = self.converted(node)
            found = self.memo[id(root)]
        return found

    def converted(self, node: Scalar) -> Dim:
        if not is_integer(node.dtype):
            return 0  # an operand of something that is no arithmetic on indices
        match node:
            case Const():
                return int(node.value)
            case Size():
                return node.dim
            case Behind() | Shared() if node not in self.meaning:  # the same wherever it is mentioned
                assert isinstance(node.extent, int)
                self.meaning[node] = as_dim(DimVar("t", 0, node.extent - 1))
                return self.meaning[node]
            case Named() if node not in self.meaning:  # the state of a recurrence: any number
                self.meaning[node] = self.fresh(node)
                return self.meaning[node]
            case Axis():
                return self.meaning[node]
            case Unary(op="neg") if node.dtype == "int64":
                return dim_mul(-1, self.memo[id(node.a)])
            case Cast() if is_integer(node.a.dtype) and _holds(node.dtype, node.a.dtype):
                return self.memo[id(node.a)]
            case Binary() if node.dtype == "int64":
                a, b = self.memo[id(node.a)], self.memo[id(node.b)]
                if node.op in _ARITHMETIC:
                    return _ARITHMETIC[node.op](a, b)
                if node.op in ("floordiv", "mod") and b != 0:
                    return dim_floordiv(a, b) if node.op == "floordiv" else dim_mod(a, b)
                return self.fresh(node)
            case Select():
                return self.choice(node)
            case Load() if node.source in self.inputs:
                key = (node.source, *(self.memo[id(i)] for i in node.indices))
                if key not in self.reads:
                    self.reads[key] = self.fresh(node)
                return self.reads[key]
            case _:
                return self.fresh(node)

    def fresh(self, node: Scalar) -> Dim:
        bits = dtype_bits(node.dtype)
        if isinstance(node, Cast) and node.a.dtype == "bool":
            low, high = 0, 1
        elif node.dtype.startswith("uint"):
            low, high = 0, (1 << bits) - 1
        else:
            low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return as_dim(DimVar("t", low, high))

    def choice(self, node: Select) -> Dim:
        sides = ((self.memo[id(node.a)], True), (self.memo[id(node.b)], False))
        cond = node.cond
        if isinstance(cond, Compare) and is_integer(cond.a.dtype):
            for value, truth in sides:  # a choice between what is known is one
                ends = _facts(cond.op, self.memo[id(cond.a)], self.memo[id(cond.b)], truth)
                if ends and all(isinstance(end, int) and end >= 0 for end in ends):
                    return value
        var = DimVar("t", _LEAST_INT64)
        facts = []
        for value, truth in sides:
            given: tuple[Dim, ...] = ()
            if isinstance(cond, Compare) and is_integer(cond.a.dtype):
                given = tuple(_facts(cond.op, self.memo[id(cond.a)], self.memo[id(cond.b)], truth))
            facts.append((value, given))
        self.facts.choose(var, *facts)
        return as_dim(var)


def _is_between(axis: Between, value: Scalar) -> bool:
    """Whether a value is kept between the ends of what it is bound to."""
    for end in reversed(axis.high):
        if not (isinstance(value, Binary) and value.op == "min" and value.b is end):
            return False
        value = value.a
    match value:
        case Const(value=number) | Binary(op="max", a=Const(value=number)) | Binary(op="max", b=Const(value=number)):
            return number >= axis.low
        case _:
            return False


def _facts(op: str, a: Dim, b: Dim, holds: bool) -> list[Dim]:
    """What is not negative where a comparison holds, or where it does not."""
    if not holds:
        op = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}[op]
    match op:
        case "lt":
            return [dim_sub(dim_sub(b, a), 1)]
        case "le":
            return [dim_sub(b, a)]
        case "gt":
            return [dim_sub(dim_sub(a, b), 1)]
        case "ge":
            return [dim_sub(a, b)]
        case "eq":
            return [dim_sub(a, b), dim_sub(b, a)]
        case _:
            return []


def _holds(wide: str, narrow: str) -> bool:
    """Whether every value of one integer dtype is one of another."""
    signed = (wide.startswith("int"), narrow.startswith("int"))
    bits = (dtype_bits(wide), dtype_bits(narrow))
    if signed[0] == signed[1]:
        return bits[0] >= bits[1]
    return signed[0] and bits[0] > bits[1]
