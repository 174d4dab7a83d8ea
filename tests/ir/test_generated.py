"""Round trips of generated graphs: any sharing, any nesting, with awkward names."""

from __future__ import annotations

import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.builder import const
from relay.ir.equality import alpha_equal, structural_hash
from relay.ir.expr import (
    Attrs,
    Binding,
    Block,
    Call,
    Clause,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.parser import parse_module
from tests.ir.programs import HEADER, LISTS

TYPES = parse_module(f"{HEADER}{LISTS}def @other() {{ 1 }}")
NAMES = ("x", "x", "x.0", "input.1", "a/b", "é", "1", "let", "_", "", "a b", "fn", "x_1")

ATTRIBUTES: tuple[Attrs, ...] = ({}, {"axis": 1}, {"eps": -0.5, "names": ("a", None, True)})
VALUES: tuple[npt.ArrayLike, ...] = (1, -2, 0.5, -1e-9, True, float("inf"), [1.5, 2.0], list(range(12)))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A function over a pool of nodes; each step takes operands from those in scope, so that nodes are shared at random."""

    def grow(scope: list[Expr], depth: int) -> Expr:
        """An expression whose free variables are in ``scope`` (which holds variables and expressions over them)."""
        pool = list(scope)
        bindings: list[Binding] = []

        def pick() -> Expr:
            return pool[draw(st.integers(0, len(pool) - 1))]

        def name() -> str:
            return draw(st.sampled_from(NAMES))

        for _ in range(draw(st.integers(0, 5))):
            kind = draw(
                st.sampled_from(
                    ("call", "tuple", "proj", "if", "match", "fn", "ref", "write", "let", "let", "block", "const")
                )
            )
            if depth <= 0 and kind in ("if", "match", "fn", "block"):
                kind = "call"
            made: Expr
            match kind:
                case "call":
                    attrs: Attrs = draw(st.sampled_from(ATTRIBUTES))
                    made = Call(OpRef("add"), (pick(), pick()), attrs)
                case "tuple":
                    made = Tuple(tuple(pick() for _ in range(draw(st.integers(0, 3)))))
                case "proj":
                    made = Proj(pick(), draw(st.integers(0, 2)))
                case "if":
                    made = If(pick(), grow(pool, depth - 1), grow(pool, depth - 1))
                case "match":
                    x, y = Var(name()), Var(name())
                    patterns: list[tuple[Pattern, list[Expr]]] = [
                        (PConstructor("Cons", (PVar(x), PTuple((PWild(), PVar(y))))), [x, y]),
                        (PConstructor("Nil"), []),
                        (PWild(), []),
                    ]
                    clauses = tuple(Clause(p, grow([*pool, *bound], depth - 1)) for p, bound in patterns)
                    made = Match(pick(), clauses, draw(st.booleans()))
                case "fn":
                    params = tuple(Var(f"{name()}{n}") for n in range(draw(st.integers(0, 2))))
                    made = Function(params, grow([*pool, *params], depth - 1))
                case "ref":
                    made = RefNew(pick()) if draw(st.booleans()) else RefRead(pick())
                case "write":
                    made = RefWrite(pick(), pick())
                case "block":
                    v = Var(name())
                    made = Block((Binding(v, grow(pool, depth - 1)),), grow([*pool, v], depth - 1))
                case "const":
                    made = const(draw(st.sampled_from(VALUES)))
                case _:
                    v = Var(name())
                    bindings.append(Binding(v, pick()))
                    made = v
            pool.append(made)
        result = pool[-1] if draw(st.booleans()) else pick()
        return Block(tuple(bindings), result) if bindings else result

    parameters = (Var("x"), Var("y"))
    nothing = Call(ConstructorRef("Nil"), ())
    main = Function(parameters, grow([*parameters, GlobalVar("other"), nothing, const(1)], 3))
    return Module({"main": main, **TYPES.functions}, TYPES.types)


@settings(max_examples=150, deadline=None)
@given(modules())
def test_round_trip(module: Module) -> None:
    text = module.text()
    again = parse_module(text)
    assert alpha_equal(module, again), text
    assert structural_hash(module) == structural_hash(again)
    assert again.text() == text
    str(module)
