"""The generator: an expression of a wanted type from what is in scope.

Every value bound to a variable or returned by a function is *tame*: at most `limit` in magnitude. Operator productions
(`tests.generator.operators`) say how far their result can reach, and `tamed` cuts it where that is too far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relay.ir.dim import DimVar
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    OpRef,
    RefNew,
    Tuple,
    Var,
)  # fmt: skip
from relay.op.build import call, constant
from tests.generator import operators
from tests.generator.forms import FORMS
from tests.generator.kinds import (
    DTYPES,
    FLOATS,
    FUEL,
    Adt,
    Fn,
    G,
    Ref,
    Size,
    T,
    Tup,
    fits,
    is_unknown,
    limit,
    names_of,
    sizes_of,
    to_type,
)  # fmt: skip
from tests.generator.source import Choices
from tests.generator.values import array

Scope = tuple[tuple[Var, G], ...]
SHAPES: tuple[tuple[Size, ...], ...] = (
    (), (4,), (3,), (2, 3), (3, 4), (1, 4), ("n", 4), ("n",), ("n", "m"), ("m", 4), ("?0", 4), ("?0",), (2, 3, 4), (1, 2, 3, 3),
)  # fmt: skip


class Generator:
    """Draws one program. ``functions`` are the global functions made on the way."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.functions: dict[str, Function] = {}
        self.dims: dict[str, DimVar] = {}  # the dimension variables of the function that is being made
        self.unknowns: set[str] = set()  # the unknown sizes that its parameters have
        self.budget = 60
        self.pure = 0  # more than 0: no effects on references
        self.nesting = 0  # functions being generated; recursion is not nested
        self.globals_left = 3
        self._names = 0
        self._literals: dict[tuple[tuple[int, ...], str], list[Constant]] = {}

    # -- small pieces

    def var(self, name: str, g: G, annotate: bool = True) -> Var:
        return Var(name, to_type(g, self.dims) if annotate else None)

    def name(self, prefix: str) -> str:
        """A name, not always a new one: the same name for different variables must not matter."""
        self._names += 1
        return f"{prefix}{self._names % 7}"

    def tensor_type(self, unknown: bool = True) -> T:
        """Some tensor type over the sizes that are in reach here."""
        shapes = [
            s
            for s in SHAPES
            if all(isinstance(d, int) or d in self.dims or (unknown and d in self.unknowns) for d in s)
        ]
        shape = self.choices.pick(shapes)
        dtype = self.choices.pick(DTYPES) if self.choices.chance(50) else "float32"
        return T(shape, dtype, dtype not in FLOATS or self.choices.chance(30))

    def like(self, want: G) -> T:
        """Often a tensor type that is wanted, so that what is bound gets used."""
        return (
            want
            if isinstance(want, T) and not want.unknown and self.choices.chance(60)
            else self.tensor_type(unknown=False)
        )

    def some_type(self) -> G:
        """A type for a local variable."""
        kind = self.choices.between(0, 9)
        if kind < 7:
            return self.tensor_type(unknown=False)
        if kind == 7:
            return Tup(tuple(self.tensor_type(unknown=False) for _ in range(self.choices.between(1, 3))))
        if kind == 8:
            return Adt(self.choices.pick(("List", "Option", "Tree")), (self.tensor_type(unknown=False),))
        return Fn((self.tensor_type(unknown=False),), self.tensor_type(unknown=False))

    # -- expressions

    def expr(self, g: G, scope: Scope, depth: int) -> Expr:
        """An expression of a type; tame."""
        self.budget -= 1
        if self.budget <= 0:
            depth = 0
        if depth > 0 and self.choices.chance(30):
            form = self.choices.pick(FORMS)
            made = form(self, g, scope, depth - 1)
            if made is not None:
                return made
        match g:
            case T():
                return self.tensor(g, scope, depth)
            case Tup():
                found = self.variable(g, scope)
                if found is not None and (depth <= 0 or self.choices.chance(30)):
                    return found
                return Tuple(tuple(self.expr(f, scope, depth - 1) for f in g.fields))
            case Adt():
                return self.variable_or(g, scope, depth, self.algebraic)
            case Fn():
                return self.variable_or(g, scope, depth, self.function)
            case Ref():
                return self.variable_or(g, scope, depth, lambda r, s, d: RefNew(self.expr(r.value, s, d)))

    def variable(self, g: G, scope: Scope) -> Var | None:
        """A variable that can stand for a type."""
        candidates = [
            v for v, have in scope if fits(have, g) and not (self.pure and isinstance(have, Fn) and not have.pure)
        ]
        return self.choices.pick(candidates) if candidates else None

    def variable_or(self, g: G, scope: Scope, depth: int, make: Callable[..., Expr]) -> Expr:
        found = self.variable(g, scope)
        if found is not None and (depth <= 0 or self.choices.chance(40)):
            return found
        return make(g, scope, depth - 1)

    def tensor(self, t: T, scope: Scope, depth: int) -> Expr:
        if depth <= 0 or self.choices.chance(15):
            return self.leaf(t, scope)
        production = self.choices.pick(operators.candidates(t))
        made = production.build(self, t, scope, depth - 1)
        if made is None:
            return self.leaf(t, scope)
        e, bound = made
        return self.tamed(e, t, bound)

    def tamed(self, e: Expr, t: T, bound: float) -> Expr:
        """The expression, cut where it could reach further than a tame value may."""
        if t.dtype == "bool" or bound <= limit(t):
            return e
        if t.is_float and not t.exact and self.choices.chance(70):
            return call("tanh", e)
        far = limit(t)
        return call("clip", e, a_min=0.0 if t.dtype == "uint8" else -far, a_max=far)

    def literal(self, t: T) -> Constant:
        """A constant of a static type, now and then one that the program has elsewhere."""
        assert t.static
        shape = tuple(int(s) for s in t.shape)
        before = self._literals.setdefault((shape, t.dtype), [])
        if before and self.choices.chance(40):
            return constant(self.choices.pick(before).data)
        before.append(constant(array(self.choices, shape, t.dtype)))
        return before[-1]

    def leaf(self, t: T, scope: Scope) -> Expr:
        """A variable or constant, or the shortest way to the type from a variable that has the sizes."""
        found = self.variable(t, scope)
        if found is not None and (not t.static or self.choices.chance(80)):
            return found
        if t.static:
            return self.literal(t)
        symbolic = [s for s in t.shape if not isinstance(s, int)]
        parts = [self.ranged(s, t, scope) for s in dict.fromkeys(symbolic)]
        out: Expr | None = None
        for size, part in zip(dict.fromkeys(symbolic), parts, strict=True):
            for axis, s in enumerate(t.shape):
                if s == size:
                    spread = (
                        call("expand_dims", part, axis=1, num_newaxis=len(t.shape) - axis - 1)
                        if axis + 1 < len(t.shape)
                        else part
                    )
                    out = spread if out is None else call(self.join(t.dtype), out, spread)
        assert out is not None
        if any(isinstance(s, int) for s in t.shape):
            ones = tuple(s if isinstance(s, int) else 1 for s in t.shape)
            out = call(self.join(t.dtype), out, self.literal(t.sized(*ones)))
        return out

    @staticmethod
    def join(dtype: str) -> str:
        return "logical_or" if dtype == "bool" else "maximum"

    def ranged(self, size: Size, t: T, scope: Scope) -> Expr:
        """A vector of a symbolic or unknown size, reduced from a variable in scope that has such an axis."""
        sources = [(v, h) for v, h in scope if isinstance(h, T) and size in h.shape]
        assert sources, f"nothing in scope has the size {size}"
        var, have = self.choices.pick(sources)
        axis = have.shape.index(size)
        others = tuple(n for n in range(len(have.shape)) if n != axis)
        e: Expr = var if have.exact or not t.exact else call("zeros_like", var)
        if others:
            e = call("any" if have.dtype == "bool" else "max", e, axis=others)
        return self.converted(e, have.dtype, t.dtype)

    @staticmethod
    def converted(e: Expr, have: str, want: str) -> Expr:
        """A cast that keeps exact values exact: to unsigned goes over the absolute value."""
        if have == want:
            return e
        if want == "uint8" and have != "bool":
            e = call("abs", e)
        return call("cast", e, dtype=want)

    def condition(self, scope: Scope, depth: int) -> Expr:
        """A scalar bool that mostly depends on the arguments."""
        numbers = [(v, h) for v, h in scope if isinstance(h, T) and h.shape == () and h.exact and h.dtype != "bool"]
        if numbers and self.choices.chance(60):
            var, have = self.choices.pick(numbers)
            return call(self.choices.pick(operators.COMPARISONS), var, self.expr(have, scope, depth))
        if self.choices.chance(25):
            return self.expr(T((), "bool"), scope, depth)
        return operators.comparison(self, self.choices.pick(operators.COMPARISONS), (), scope, max(depth, 1))

    def index(self, shape: tuple[Size, ...], below: int, scope: Scope, depth: int, dtype: str = "int32") -> Expr:
        """Integers in ``[0, below)``."""
        e = self.expr(T(shape, dtype), scope, depth)
        return call("clip", e, a_min=0.0, a_max=float(below - 1))

    # -- algebraic values and functions

    def algebraic(self, g: Adt, scope: Scope, depth: int) -> Expr:
        if g.name == "Shape":
            tag = self.choices.between(0, 2)
            fields = tuple(self.expr(T((), "float32", False), scope, depth) for _ in range((0, 1, 2)[tag]))
            return Call(ConstructorRef(("Empty", "Circle", "Rectangle")[tag]), fields)
        (element,) = g.args
        match g.name:
            case "Option":
                if self.choices.chance(60):
                    return Call(ConstructorRef("Some"), (self.expr(element, scope, depth),))
                return Call(ConstructorRef("None"), ())
            case "List":
                out: Expr = Call(ConstructorRef("Nil"), ())
                for _ in range(self.choices.between(0, 3)):
                    out = Call(ConstructorRef("Cons"), (self.expr(element, scope, depth), out))
                return out
            case _:
                if depth > 0 and self.choices.chance(50):
                    sides = (self.algebraic(g, scope, depth - 1), self.algebraic(g, scope, depth - 1))
                    return Call(ConstructorRef("Node"), sides)
                return Call(ConstructorRef("Leaf"), (self.expr(element, scope, depth),))

    def function(self, g: Fn, scope: Scope, depth: int) -> Expr:
        """A function literal that may use what is in scope, or an operator as a value."""
        unary = operators.first_class(g)
        if unary and self.choices.chance(20):
            return OpRef(self.choices.pick(unary))
        params = [(self.var(self.name("p"), p), p) for p in g.params]
        inner = scope + tuple(params)
        self.pure += g.pure
        try:
            if not g.fuelled:
                body = self.expr(g.ret, inner, depth)
                ret = to_type(g.ret, self.dims) if self.choices.chance(50) else None
                return Function(tuple(v for v, _ in params), body, ret)
            return self.recursive(g, params, inner, depth, None)
        finally:
            self.pure -= g.pure

    def recursive(self, g: Fn, params: list[tuple[Var, G]], inner: Scope, depth: int, itself: Expr | None) -> Function:
        """A function of a count and the parameters: at zero the base, otherwise a step around the recursive call."""
        count = self.var("i", FUEL)
        self.nesting += 1
        base = self.expr(g.ret, inner, depth)
        step: Expr
        if itself is None:
            step = self.expr(g.ret, inner, depth)
        else:
            args = tuple(self.expr(p, inner, min(depth, 1)) for p in g.params)
            again = Call(itself, (call("subtract", count, constant(np.array(1, np.int32))), *args))
            if self.choices.chance(50):
                step = again  # a tail call
            else:
                result = self.var("r", g.ret)
                rest = self.expr(g.ret, (*inner, (result, g.ret)), depth)
                step = Block((Binding(result, again),), rest)
        self.nesting -= 1
        done = call("less_equal", count, constant(np.array(0, np.int32)))
        return Function((count, *(v for v, _ in params)), If(done, base, step), to_type(g.ret, self.dims))

    def global_function(self, g: Fn, depth: int) -> str:
        """A new global function of a type, generic in the dimension variables that its parameters mention."""
        outer, self.dims = (
            self.dims,
            {name: DimVar(name) for name in sorted({n for p in g.params for n in names_of(p)})},
        )
        outer_unknowns, self.unknowns = self.unknowns, {str(s) for p in g.params for s in sizes_of(p) if is_unknown(s)}
        outer_pure, self.pure = self.pure, int(g.pure)
        self.globals_left -= 1
        name = f"{self.choices.pick(('f', 'step', 'cell', 'block/a'))}{self.globals_left}"
        params = [(self.var(self.name("a"), p), p) for p in g.params]
        if g.fuelled:
            made = self.recursive(g, params, tuple(params), depth, GlobalVar(name))
        else:
            body = self.expr(g.ret, tuple(params), depth)
            made = Function(tuple(v for v, _ in params), body, to_type(g.ret, self.dims))
        self.functions[name] = Function(made.params, made.body, made.ret_type, tuple(self.dims.values()))
        self.dims, self.unknowns, self.pure = outer, outer_unknowns, outer_pure
        return name

    def main(self) -> tuple[Function, list[G]]:
        """``@main`` and the types of its parameters."""
        self.dims = {"n": DimVar("n"), "m": DimVar("m")}
        self.unknowns = {"?0"}
        types: list[G] = [T(("n", 4)), T(("m",)), T(("?0", 4)), T(()), T((), "int32")]
        for _ in range(self.choices.between(0, 3)):
            types.append(self.argument_type())
        params = [(self.var(self.choices.pick(("x", "y", "state")), g), g) for g in types]
        scope: Scope = tuple(params)
        results = [self.result_type() for _ in range(self.choices.between(1, 2))]
        depth = self.choices.between(2, 5)
        bodies = []
        for g in results:
            self.budget = 40
            bodies.append(self.expr(g, scope, depth))
        body = bodies[0] if len(bodies) == 1 else Tuple(tuple(bodies))
        whole = results[0] if len(results) == 1 else Tup(tuple(results))
        # A list that turns out empty would leave its element type open.
        annotated = any(not isinstance(r, T) for r in results) or self.choices.chance(30)
        ret = to_type(whole, self.dims) if annotated else None
        return Function(tuple(v for v, _ in params), body, ret, tuple(self.dims.values())), types

    def argument_type(self) -> G:
        kind = self.choices.between(0, 6)
        if kind < 3:
            return self.tensor_type().exactly()
        element = self.tensor_type(unknown=False).exactly()
        if kind == 3:
            return Tup((element, self.tensor_type(unknown=False).exactly()))
        return Adt(("List", "Option", "Tree")[kind - 4], (element,))

    def result_type(self) -> G:
        kind = self.choices.between(0, 9)
        if kind < 8:
            return self.tensor_type()
        element = self.tensor_type(unknown=False)
        return Tup((element, self.tensor_type())) if kind == 8 else Adt("List", (element,))

    def count(self) -> Expr:
        """A small number of rounds."""
        return constant(np.array(self.choices.between(0, 3), np.int32))
