"""What generated programs contain: node kinds, patterns, operators, dtypes, kinds of sizes. Counted on the programs themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from relay.ir.dim import AnyDim, DimVar, SymDim
from relay.ir.expr import Constant, Expr, Function, Match, OpRef, Pattern, PConstructor, PTuple, PVar, PWild, Var
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type, TypeVar
from relay.ir.walk import bound_vars, post_order
from tests.generator.program import Program

# The node kinds of the language. `grad` has no value until differentiation makes a program of it.
NODES = tuple(sorted(cls.__name__ for cls in get_args(Expr) if cls.__name__ != "Grad"))
PATTERNS = tuple(sorted(cls.__name__ for cls in get_args(Pattern)))
FAMILIES = {
    "elementwise": ("tanh", "exp", "negative", "floor", "cast", "clip", "nn.gelu"),
    "broadcast": ("add", "multiply", "divide", "floor_divide", "maximum", "broadcast_to", "nn.bias_add"),
    "comparison": ("less", "equal", "where", "logical_and"),
    "reduction": ("sum", "mean", "max", "variance", "argmax", "all", "cumsum"),
    "normalisation": ("nn.softmax", "nn.layer_norm", "nn.batch_norm", "nn.l2_normalize"),
    "matrix": ("nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv2d"),
    "pooling": ("nn.max_pool2d", "nn.avg_pool2d"),
    "shape": (
        "reshape",
        "transpose",
        "concatenate",
        "split",
        "squeeze",
        "expand_dims",
        "strided_slice",
        "nn.pad",
        "stack",
    ),
    "creation": ("full", "zeros_like", "arange", "shape_of"),
    "indexing": ("take", "gather", "one_hot", "gather_nd", "segment_sum", "scatter_elements"),
    "data dependent": ("unique", "argwhere", "dyn.arange"),
    "sorting": ("sort", "argsort"),
}


@dataclass(slots=True)
class Coverage:
    """Counts over programs."""

    programs: int = 0
    nodes: Counter[str] = field(default_factory=Counter)
    patterns: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)

    def add(self, program: Program) -> None:
        """Count a program. Typed modules say more about sizes than untyped ones."""
        self.programs += 1
        here: Counter[str] = Counter()
        for name, function in program.module.functions.items():
            for node in post_order(function):
                self.nodes[type(node).__name__] += 1
                self._node(node, here)
            here["global functions"] += name != "main"
        self.features.update(name for name, count in here.items() if count)

    def _node(self, node: Expr, here: Counter[str]) -> None:
        match node:
            case OpRef():
                self.operators[node.name] += 1
            case Constant():
                self.dtypes[node.dtype] += 1
            case Function():
                here["functions of functions"] += any(isinstance(p.annotation, FuncType) for p in node.params)
                here["polymorphic functions"] += any(isinstance(p, TypeVar) for p in node.type_params)
                here["functions generic in sizes"] += any(isinstance(p, DimVar) for p in node.type_params)
            case Match():
                here["partial matches"] += not node.complete
                for clause in node.clauses:
                    self._pattern(clause.pattern, here)
            case _:
                pass
        for var in bound_vars(node):
            self._type(var)

    def _pattern(self, root: Pattern, here: Counter[str]) -> None:
        todo: list[tuple[Pattern, int]] = [(root, 0)]
        while todo:
            p, depth = todo.pop()
            self.patterns[type(p).__name__] += 1
            match p:
                case PConstructor() | PTuple():
                    here["nested patterns"] += depth > 0
                    todo.extend((f, depth + 1) for f in p.fields)
                case PVar() | PWild():
                    pass

    def _type(self, var: Var) -> None:
        todo: list[Type] = [t for t in (var.annotation, var.ty) if t is not None][:1]
        while todo:
            t = todo.pop()
            match t:
                case TensorType():
                    if isinstance(t.dtype, str):
                        self.dtypes[t.dtype] += 1
                    for dim in t.shape if isinstance(t.shape, tuple) else ():
                        kind = "Any" if isinstance(dim, AnyDim) else "symbolic" if isinstance(dim, SymDim) else "static"
                        self.sizes[kind] += 1
                case TupleType():
                    todo.extend(t.fields)
                case AdtType():
                    todo.extend(a for a in t.args if isinstance(a, TensorType | TupleType | AdtType))
                case RefType():
                    todo.append(t.value)
                case _:
                    pass

    def missing(self) -> list[str]:
        """Node kinds, patterns, families' operators, dtypes and kinds of sizes that never occurred."""
        dtypes = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
        wanted: list[tuple[str, Counter[str], tuple[str, ...]]] = [
            ("node", self.nodes, NODES),
            ("pattern", self.patterns, PATTERNS),
            ("dtype", self.dtypes, dtypes),
            ("size", self.sizes, ("static", "symbolic", "Any")),
            *((f"{family} operator", self.operators, names) for family, names in FAMILIES.items()),
        ]
        return [f"{what} {name}" for what, counted, names in wanted for name in names if not counted[name]]

    def report(self) -> str:
        """A table for people."""
        lines = [f"{self.programs} programs"]
        for title in ("nodes", "patterns", "sizes", "dtypes", "features", "operators"):
            counted: Counter[str] = getattr(self, title)
            lines.append(f"{title:10} " + ", ".join(f"{name} {n}" for name, n in counted.most_common()))
        return "\n".join(lines)
