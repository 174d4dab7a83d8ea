"""A kernel as text: readable, and canonical, so that equal text means equal code (the kernel cache is keyed by it).

    kernel rowsum(x: float32[m, n]) -> (y: float32[m]) for m, n
      parallel i < m grain 4
        alloc acc: float32[] in register
          acc[] = 0.0
          vectorized j < n
            acc[] = acc[] + x[i, j]
          y[i] = acc[]

Variables and buffers are told apart by a number after a name that occurs again. An expression that a statement
uses more than once is named by a line ``t1 := ...`` before it.
"""

from __future__ import annotations

from typing import assert_never

from relay.ir.dim import DimVar, dim_text
from relay.loop.ir import (
    Alloc,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    Kernel,
    LetScalar,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.loop.walk import expressions
from relay.te.scalar import (
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
    children,
    walk,
)

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def kernel_text(kernel: Kernel) -> str:
    """The kernel in the form of this module's example."""
    return _Printer().kernel(kernel)


def stmt_text(stmt: Stmt) -> str:
    """A statement by itself."""
    printer = _Printer()
    printer.stmt(stmt, 0)
    return "\n".join(printer.lines)


def scalar_text(root: Scalar) -> str:
    """An expression by itself, after what it uses more than once."""
    printer = _Printer()
    (text,) = printer.expressions(Switch(root, ()), 0)
    return "; ".join([*printer.lines, text])


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[object, str] = {}
        self._taken: dict[str, int] = {}
        self._shared = 0

    def name(self, thing: Axis | Buffer | DimVar) -> str:
        known = self._names.get(thing)
        if known is None:
            count = self._taken.get(thing.name, 0)
            self._taken[thing.name] = count + 1
            known = self._names[thing] = thing.name if count == 0 else f"{thing.name}.{count}"
        return known

    def shape(self, buffer: Buffer) -> str:
        sizes = ", ".join(dim_text(d, self.name) for d in buffer.shape)
        return f"{buffer.dtype}[{sizes}]"

    def kernel(self, kernel: Kernel) -> str:
        sizes = []
        for var in kernel.dims:
            bounds = f"{var.lo}..{'' if var.hi is None else var.hi}"
            sizes.append(self.name(var) + ("" if bounds == "0.." else f" in {bounds}"))

        def operands(buffers: tuple[Buffer, ...]) -> str:
            return ", ".join(f"{self.name(b)}: {self.shape(b)}" for b in buffers)

        head = f"kernel {kernel.name}({operands(kernel.inputs)}) -> ({operands(kernel.outputs)})"
        if sizes:
            head += f" for {', '.join(sizes)}"
        if kernel.in_place:
            head += " in place " + ", ".join(f"{i}={o}" for i, o in kernel.in_place)
        if kernel.streamed:
            head += " streamed " + ", ".join(map(str, kernel.streamed))
        if (kernel.shared_bytes, kernel.worker_bytes) != (0, 0):
            shared, worker = (dim_text(d, self.name) for d in (kernel.shared_bytes, kernel.worker_bytes))
            head += f" workspace {shared} + workers * {worker}"
        self.lines.append(head)
        self.stmt(kernel.body, 1)
        return "\n".join(self.lines) + "\n"

    def stmt(self, root: Stmt, depth: int) -> None:
        todo: list[tuple[Stmt | str, int]] = [(root, depth)]
        while todo:
            stmt, depth = todo.pop()
            if isinstance(stmt, str):
                self.line(stmt, depth)
                continue
            texts = self.expressions(stmt, depth)
            match stmt:
                case Seq():
                    if not stmt.stmts:
                        self.line("pass", depth)
                    todo.extend((part, depth) for part in reversed(stmt.stmts))
                case For():
                    grain = f" grain {stmt.grain}" if stmt.kind == "parallel" else ""
                    self.line(f"{stmt.kind} {self.name(stmt.var)} < {texts[0]}{grain}", depth)
                    todo.append((stmt.body, depth + 1))
                case Store():
                    where = ", ".join(texts[:-1])
                    self.line(f"{self.name(stmt.buffer)}[{where}] = {texts[-1]}", depth)
                case Transpose():
                    to, pitch, at, stride, rows, columns = texts
                    target, source = self.name(stmt.target), self.name(stmt.source)
                    where = f"{target}[{to} by {pitch}] = {source}[{at} by {stride}]"
                    self.line(f"transpose {where} for {rows} x {columns}", depth)
                case BlockProduct():
                    to, at, stride, rows, *rest = texts
                    panel, ahead = rest[: len(stmt.panel)], rest[len(stmt.panel) :]
                    left, right = (
                        f"{self.name(stmt.left)}[{at} by {stride}]",
                        f"{self.name(stmt.right)}[{', '.join(panel)}]",
                    )
                    asked = f" asking for {ahead[1]} lines from {ahead[0]} on" if ahead else ""
                    where = f"{self.name(stmt.target)}[{to} by {stmt.columns}]"
                    self.line(
                        f"multiply {where} = {left} * {right} for {rows} x {stmt.columns} x {stmt.depth}{asked}", depth
                    )
                case Prefetch():
                    self.line(
                        f"prefetch {self.name(stmt.buffer)}[{', '.join(texts)}]{' to write' * stmt.write}{' near' * (stmt.level == 1)}",
                        depth,
                    )
                case LetScalar():
                    self.line(f"let {self.name(stmt.var)}: {stmt.var.dtype} = {texts[0]}", depth)
                    todo.append((stmt.body, depth))
                case Alloc():
                    buffer = stmt.buffer
                    self.line(f"alloc {self.name(buffer)}: {self.shape(buffer)} in {buffer.scope}", depth)
                    todo.append((stmt.body, depth + 1))
                case Branch():
                    self.line(f"if {texts[0]}", depth)
                    if stmt.orelse is not None:
                        todo += [(stmt.orelse, depth + 1), ("else", depth)]
                    todo.append((stmt.then, depth + 1))
                case Switch():
                    self.line(f"switch {texts[0]}", depth)
                    for number, case in reversed(list(enumerate(stmt.cases))):
                        todo += [(case, depth + 2), (f"case {number}", depth + 1)]
                case Fail():
                    self.line(f"fail {stmt.code}", depth)
                case _:
                    assert_never(stmt)

    def line(self, text: str, depth: int) -> None:
        self.lines.append("  " * depth + text)

    def expressions(self, stmt: Stmt, depth: int) -> list[str]:
        """The statement's own expressions; what is used more than once is named in lines before."""
        roots = expressions(stmt)
        uses: dict[int, int] = {}
        order: list[tuple[Scalar, tuple[Scalar, ...]]] = []
        seen: set[int] = set()
        for root in roots:
            uses[id(root)] = uses.get(id(root), 0) + 1
            for node in walk(root, seen):
                operands = children(node)
                order.append((node, operands))
                for kid in operands:
                    uses[id(kid)] = uses.get(id(kid), 0) + 1
        texts: dict[int, str] = {}
        for node, operands in order:
            text = self.node(node, [texts[id(k)] for k in operands])
            if operands and uses[id(node)] > 1:
                self._shared += 1
                self.line(f"t{self._shared} := {text}", depth)
                text = f"t{self._shared}"
            texts[id(node)] = text
        return [_bare(texts[id(root)]) for root in roots]

    def node(self, node: Scalar, given: list[str]) -> str:
        """A node over the texts of its operands. The kinds that there are most of come first."""
        match node:
            case Axis():
                return self.name(node)
            case Binary():
                if node.op in _INFIX:
                    return f"({given[0]} {_INFIX[node.op]} {given[1]})"
                return f"{node.op}({_bare(given[0])}, {_bare(given[1])})"
            case Const():
                value = str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
                return value if node.dtype in ("int64", "float32", "bool") else f"{value}{node.dtype}"
            case Size():
                text = dim_text(node.dim, self.name)
                return text if text.isidentifier() or text.isdecimal() else f"({text})"
            case Load():
                assert isinstance(node.source, Buffer)
                return f"{self.name(node.source)}[{', '.join(_bare(t) for t in given)}]"
            case Unary():
                return f"{node.op}({_bare(given[0])})"
            case Compare():
                return f"({given[0]} {_COMPARE[node.op]} {given[1]})"
            case Select():
                return f"select({', '.join(_bare(t) for t in given)})"
            case Cast():
                return f"{node.dtype}({_bare(given[0])})"
            case Bits():
                return f"bits.{node.dtype}({_bare(given[0])})"
            case Dot():
                return f"dot.{node.parts}({_bare(given[0])}, {_bare(given[1])})"
            case Reduce():
                over = ", ".join(self.name(a) for a in node.axes)
                return f"{node.kind}[{over}]({_bare(given[0])})"
            case _:
                assert_never(node)


def _bare(text: str) -> str:
    """A node's text without parentheses around it: where it begins with one, all of it is in them."""
    return text[1:-1] if text.startswith("(") else text
