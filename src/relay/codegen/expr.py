"""Scalar expressions to instructions, without recursion: each node of the expression's graph once.

A `Select` whose sides load what may be out of bounds becomes a branch, or in vector code masked loads; one of
pure arithmetic becomes an instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.codegen.builder import vec
from relay.codegen.convert import NARROW, held
from relay.codegen.dots import added, dot
from relay.codegen.elementary import FLOAT_FUNCTIONS
from relay.codegen.exponentials import HALF_NORMAL_EXPONENT, NORMAL_EXPONENT, CutExp, exp_from, exp_of_fall
from relay.codegen.frame import Frame
from relay.codegen.memory import Place
from relay.codegen.pairs import DOT, LANES, PairStep, pair_step
from relay.codegen.values import Value, register_type
from relay.codegen.whole_quotients import whole_quotient
from relay.codegen.windows import looked_up, looks_up, span
from relay.ir.dim import known_equal
from relay.ir.types import is_float
from relay.loop.errors import LoopError
from relay.loop.ir import TURN, WORKERS, Behind, Buffer, Shared, Store
from relay.loop.walk import same
from relay.te.scalar import (
    JUMPING,
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    chain,
    children,
    walk,
)

# What has no operands, and what is computed from the values of its operands (a sum may be one with the dot product that it adds).
_LEAVES = (Axis, Const, Size)
_PLAIN = frozenset((Load, Unary, Binary, Compare, Cast, Bits, Dot))

# An expression to compute, what is to be done then, or None: the operands of the node below it are computed.
Task = Scalar | Callable[[], None] | None


class Expressions:
    """Evaluates expressions in a frame. Values are remembered until `forget`, in nested scopes inside branches."""

    def __init__(self, frame: Frame) -> None:
        self.f = frame
        self._scopes: list[dict[int, Value]] = [{}]
        # The expression at hand, and of those with selects which of their nodes are risky.
        self._root: Scalar | None = None
        self._risks: dict[int, frozenset[int]] = {}
        self._pairs: dict[int, tuple[Store, PairStep | None]] = {}

    def forget(self) -> None:
        """Memory has changed, or control has moved: loads are made anew."""
        self._scopes = [{}]

    def value(self, root: Scalar) -> Value:
        """The value of an expression in the current lanes and mask."""
        if type(root) is Const:
            return self._constant(root)
        known = self._find(root)
        if known is not None:
            return known
        if isinstance(root, _LEAVES):
            self._leaf(root)
            return self._get(root)
        self._root = root
        todo: list[Task] = [root]
        while todo:
            task = todo.pop()
            if task is None:
                node = todo.pop()
                assert node is not None and not callable(node)
                self._put(node, self._combine(node))
            elif callable(task):
                task()
            elif self._find(task) is None:
                self._visit(task, todo)
        found = self._find(root)
        assert found is not None
        return found

    def _constant(self, node: Const) -> Value:
        if node.dtype == "int64":
            return self.f.arith.index(int(node.value))
        return self.f.arith.constant(held(node.value, node.dtype), node.dtype)

    def _find(self, node: Scalar) -> Value | None:
        if len(self._scopes) == 1:
            return self._scopes[0].get(id(node))
        for scope in reversed(self._scopes):
            value = scope.get(id(node))
            if value is not None:
                return value
        return None

    def _get(self, node: Scalar) -> Value:
        value = self._find(node)
        assert value is not None
        return value

    def _put(self, node: Scalar, value: Value) -> None:
        self._scopes[-1][id(node)] = value

    @property
    def _risky(self) -> frozenset[int]:
        """Which nodes of the expression at hand have a load below them that only a surrounding select may keep in bounds."""
        root = self._root
        assert root is not None
        known = self._risks.get(id(root))
        if known is not None:
            return known
        found: set[int] = set()
        for node in walk(root):
            if (isinstance(node, Load) and not _in_bounds(node)) or any(id(k) in found for k in children(node)):
                found.add(id(node))
        self._risks[id(root)] = frozenset(found)
        return self._risks[id(root)]

    def _leaf(self, node: Scalar) -> None:
        """The value of what has no operands."""
        f = self.f
        match node:
            case Const():
                self._put(node, self._constant(node))
            case Size():
                self._put(node, f.size(node.dim))
            case Axis():
                if (node is WORKERS or node is TURN) and node not in f.axes:
                    f.axes[node] = f.workers() if node is WORKERS else f.turn()
                elif isinstance(node, Behind) and node not in f.axes:
                    f.axes[node] = f.behind(node)
                elif isinstance(node, Shared) and node not in f.axes:
                    f.axes[node] = f.shared(node)
                if node not in f.axes:
                    raise LoopError(f"the variable {node.name} is used outside of what binds it")
                self._put(node, f.axes[node])

    def _visit(self, node: Scalar, todo: list[Task]) -> None:
        f, kind = self.f, type(node)
        if kind in _PLAIN and not (isinstance(node, Binary) and node.op == "add"):
            todo += (node, None, *reversed(children(node)))
            return
        if isinstance(node, _LEAVES):
            self._leaf(node)
            return
        match node:
            case Reduce():
                raise LoopError("a reduction stands in a loop nest: reductions are loops over an accumulator here")
            case Binary() if (step := added(node)) is not None:
                total, more = step
                todo.append(lambda: self._put(node, self._dot(more, self._get(total))))
                todo += (more.b, more.a, total)
            case Select() if (cut := _cut_exp(node)) is not None:
                function, x, least = cut
                todo.append(lambda: self._put(node, f.math.exp_cut(function, self._get(x), least)))
                todo.append(x)
            case Select() if id(node.a) in self._risky or id(node.b) in self._risky:
                todo.append(lambda: self._guarded(node, todo))
                todo.append(node.cond)
            case _:
                todo += (node, None, *reversed(children(node)))

    def _combine(self, node: Scalar) -> Value:
        """The node's value from its operands'."""
        f = self.f
        match node:
            case Binary():
                a, b = self._get(node.a), self._get(node.b)
                if node.op in FLOAT_FUNCTIONS and is_float(node.dtype):
                    return f.math.binary(node.op, a, b)
                quotient = whole_quotient(f.arith, node, a)
                return f.arith.binary(node.op, a, b) if quotient is None else quotient
            case Load():
                assert isinstance(node.source, Buffer)
                place = f.places.get(node.source)
                if place is None:
                    raise LoopError(f"the buffer {node.source.name} is read outside of its allocation")
                offset = f.memory.offset(place, [self._get(i) for i in node.indices])
                near = self._near(node, place, offset)
                return near or f.memory.load(place, offset, f.lanes, f.mask, f.guarded)
            case Unary():
                return f.math.unary(node.op, (self._rounded if node.op in JUMPING else self._get)(node.a))
            case Compare():
                return f.arith.compare(node.op, self._rounded(node.a), self._rounded(node.b))
            case Cast():
                jumps = not is_float(node.dtype)
                return f.convert.cast((self._rounded if jumps else self._get)(node.a), node.dtype)
            case Bits():
                return f.convert.bits(self._rounded(node.a), node.dtype)
            case Dot():
                return self._dot(node, f.arith.constant(0, node.dtype))
            case Select():
                return f.arith.select(self._get(node.cond), self._get(node.a), self._get(node.b))
            case _:
                raise AssertionError(f"{type(node).__name__} has no operands")

    def _dot(self, node: Dot, total: Value) -> Value:
        return dot(self.f.arith, node.parts, total, self._get(node.a), self._get(node.b))

    def _rounded(self, node: Scalar) -> Value:
        """An operand of what jumps: a narrow float as it would be stored, for what differs by rounding alone is equal."""
        value = self._get(node)
        if node.dtype not in NARROW or isinstance(node, Const | Cast):
            return value
        if isinstance(node, Load) and isinstance(node.source, Buffer) and not self.f.places[node.source].local:
            return value
        return self.f.convert.rounded(value)

    def _near(self, node: Load, place: Place, offset: Value) -> Value | None:
        """What is read from one or two neighbouring vectors, looked up in these; None of other reads."""
        f = self.f
        if len(node.indices) != 1 or not looks_up(f.target, place, offset):
            return None

        def number(e: Scalar) -> int | None:
            value = self._find(e)  # None: in a side of a select, whose values are gone behind it
            known = None if value is None else value.const
            return known if isinstance(known, int) else None

        (index,) = node.indices
        far = span(index, f.axes.get, number, offset.lanes)
        if far is None or far >= 2 * offset.lanes:
            return None
        start, moving = f.arith.index(0), f.arith.index(0)
        for part in map(self._get, chain(index, "add")):
            if part.is_uniform:
                start = f.arith.binary("add", start, part)
            else:
                moving = f.arith.binary("add", moving, part)
        return looked_up(f.memory, place, start, moving, 1 + far // offset.lanes, f.mask)

    # -- selects whose sides must not both be read

    def _guarded(self, node: Select, todo: list[Task]) -> None:
        cond = self._get(node.cond)
        if cond.const is not None:
            chosen = node.a if cond.const else node.b
            todo.append(lambda: self._put(node, self._get(chosen)))
            todo.append(chosen)
        elif cond.is_uniform:
            self._branch(node, cond, todo)
        else:
            self._under_masks(node, cond, todo)

    def _branch(self, node: Select, cond: Value, todo: list[Task]) -> None:
        f, b = self.f, self.f.builder
        then, other, join = b.name("then"), b.name("else"), b.name("join")
        type_ = vec(register_type(node.dtype), f.lanes)
        ends: list[tuple[str, str]] = []

        def open_side(label: str) -> None:
            b.start(label)
            self._scopes.append({})

        def close_side(side: Scalar) -> None:
            ends.append((f.arith.spread(self._get(side), f.lanes).text, b.block))
            self._scopes.pop()
            b.jump(join)

        def finish() -> None:
            b.start(join)
            self._put(node, Value(b.phi(type_, *ends), node.dtype, f.lanes))

        b.branch(cond.text, then, other)
        todo.append(finish)
        for side, label in ((node.b, other), (node.a, then)):
            todo.append(lambda side=side: close_side(side))  # type: ignore[misc]
            todo.append(side)
            todo.append(lambda label=label: open_side(label))  # type: ignore[misc]

    def _under_masks(self, node: Select, cond: Value, todo: list[Task]) -> None:
        f, b = self.f, self.f.builder
        outer, outer_guarded = f.mask, f.guarded
        masks = vec("i1", f.lanes)
        values: list[Value] = []

        def enter(positive: bool) -> None:
            self._scopes.append({})
            mine = cond.text if positive else b.emit(f"xor {masks} {cond.text}, splat (i1 true)")
            f.mask = b.emit(f"and {masks} {outer}, {mine}") if outer else mine
            f.guarded = True

        def leave(side: Scalar) -> None:
            values.append(self._get(side))
            self._scopes.pop()
            f.mask, f.guarded = outer, outer_guarded

        def finish() -> None:
            self._put(node, f.arith.select(cond, values[0], values[1]))

        todo.append(finish)
        for side, positive in ((node.b, False), (node.a, True)):
            todo.append(lambda side=side: leave(side))  # type: ignore[misc]
            todo.append(side)
            todo.append(lambda positive=positive: enter(positive))  # type: ignore[misc]

    # -- multiply and add

    def paired(self, store: Store) -> Value | None:
        """A step of a sum over pairs of neighbours as one instruction (see `relay.codegen.pairs`)."""
        f = self.f
        if f.lanes != LANES or f.mask or not f.places[store.buffer].local:
            return None
        if id(store) not in self._pairs:
            self._pairs[id(store)] = store, pair_step(store, f.target)
        step = self._pairs[id(store)][1]
        if step is None:
            return None
        left, right = (self._pair_offset(load) for load in (step.left, step.right))
        if not left.is_uniform or not right.is_ramp or right.stride != 2:
            return None
        total = f.arith.spread(self.value(step.own), LANES)
        x = f.memory.pair_everywhere(self._pair_place(step.left), left, LANES)
        y = f.memory.pairs(self._pair_place(step.right), right)
        sums, operands = vec("float", LANES), vec("bfloat", 2 * LANES)
        text = f.builder.call(DOT, sums, (sums, total.text), (operands, x), (operands, y))
        return Value(text, "float32", LANES)

    def _pair_place(self, load: Load) -> Place:
        assert isinstance(load.source, Buffer)
        return self.f.places[load.source]

    def _pair_offset(self, load: Load) -> Value:
        return self.f.memory.offset(self._pair_place(load), [self.value(i) for i in load.indices])

    def contracted(self, store: Store) -> Value | None:
        """``acc[c] + x * y`` of floats as one fused operation, where a store accumulates it into local memory."""
        f, value = self.f, store.value
        if not f.target.fma or not f.places[store.buffer].local or not is_float(store.buffer.dtype):
            return None
        if not isinstance(value, Binary) or value.op != "add":
            return None
        for own, product in ((value.a, value.b), (value.b, value.a)):
            if (
                isinstance(own, Load)
                and own.source is store.buffer
                and isinstance(product, Binary)
                and product.op == "mul"
                and all(same(i, j) for i, j in zip(own.indices, store.indices, strict=True))
            ):
                total = self.value(own)
                x, y = self.value(product.a), self.value(product.b)
                lanes, texts = f.arith.together(x, y, total)
                text = f.arith.intrinsic("fma", register_type(value.dtype), lanes, *texts)
                return Value(text, value.dtype, lanes)
        return None


def _in_bounds(load: Load) -> bool:
    """Whether a load is in bounds wherever its variables are: every index runs over just that axis."""
    assert isinstance(load.source, Buffer)
    if load.source.scope in ("register", "stack"):
        return all(isinstance(i, Const | Axis) for i in load.indices)
    for index, dim in zip(load.indices, load.source.shape, strict=True):
        if isinstance(index, Axis):
            if not known_equal(index.extent, dim):
                return False
        elif not (isinstance(index, Const) and isinstance(dim, int) and 0 <= index.value < dim):
            return False
    return True


def _cut_exp(node: Select) -> tuple[CutExp, Scalar, float] | None:
    """How ``select(x < least, 0, exp(x))``, or with ``exp(min(x, 0))``, is computed without asking where x lies, and ``x`` and ``least``;
    where the exponential of ``least`` is far enough from subnormal numbers for it."""
    match node:
        case Select(
            cond=Compare(op="lt", a=x, b=Const(value=least)), a=Const(value=0.0), b=Unary(op="exp", a=exponent)
        ) if node.dtype in ("float32", "float64"):
            element = register_type(node.dtype)
            match exponent:
                case Binary(op="min", a=fall, b=Const(value=0.0)) if same(x, fall):
                    return (exp_of_fall, x, float(least)) if least >= -NORMAL_EXPONENT[element] else None
                case _ if same(x, exponent) and HALF_NORMAL_EXPONENT[element] <= least <= 0:
                    return exp_from, x, float(least)
    return None
