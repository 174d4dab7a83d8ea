"""Accesses are proved to be inside; what is not is named. Seeded faults are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_var, dim_mul, dim_var
from relay.ir.expr import Function
from relay.loop.bounds import unproved
from relay.loop.ir import (
    Alloc,
    Behind,
    Between,
    BlockProduct,
    Branch,
    Buffer,
    For,
    Kernel,
    LetScalar,
    Seq,
    Stmt,
    Store,
    Switch,
    Transpose,
    between,
)
from relay.loop.target import Target
from relay.loop.walk import parts, statements
from relay.options import Options
from relay.pipeline import build
from relay.plan.kernel_plan import make_plan
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, Select, Size, binary, compare, minimum, select, wrap
from tests.plan.harness import HOST, ZEN4, primitive, tensor

N = dim_var("n")
X, Y = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32")
INDEX = Buffer("index", (N,), "int32")
AT, J = Axis("i", N), Axis("j", 16)
ZERO = Const(0.0, "float32")


def var() -> DimVar:
    found = as_var(N)
    assert found is not None
    return found


def kernel(body: Stmt, inputs: tuple[Buffer, ...] = (X,)) -> Kernel:
    return Kernel("k", inputs, (Y,), (var(),), body)


def loop(body: Stmt, extent: Scalar | None = None, axis: Axis = AT) -> For:
    return For(axis, extent if extent is not None else Size(N), body)


def x(index: object) -> Load:
    return Load(X, (wrap(index, "int64"),), "float32")


def put(value: Scalar, at: object = AT) -> Store:
    return Store(Y, (wrap(at, "int64"),), value)


def in_blocks(count: Scalar, lanes: Scalar) -> Kernel:
    at = binary("add", binary("mul", AT, 16), J)
    return kernel(For(AT, count, For(J, lanes, put(x(at), at), "vectorized")))


BLOCKS = binary("floordiv", binary("add", Size(N), 15), 16)
LANES = minimum(16, binary("sub", Size(N), binary("mul", AT, 16)))
READ = Cast(Load(INDEX, (AT,), "int32"), "int64")
INSIDE = binary("and", compare("ge", READ, 0), compare("lt", READ, Size(N)))
V = Axis("v", 1 << 40)

SOUND: dict[str, Kernel] = {
    "one by one": kernel(loop(put(x(AT)))),
    "blocks of lanes": in_blocks(BLOCKS, LANES),
    "a choice": kernel(loop(put(select(compare("lt", AT, binary("sub", Size(N), 1)), x(AT + 1), ZERO)))),
    "a branch": kernel(loop(Branch(compare("ge", AT, 3), put(x(AT - 3))))),
    "the other branch": kernel(loop(Branch(compare("lt", AT, 3), put(ZERO), put(x(AT - 3))))),
    "a switch": kernel(Switch(Size(N) - 1, (put(x(0), 0), put(x(1), 1), put(x(2), 2)))),
    "an index in bounds": kernel(loop(put(select(INSIDE, x(READ), ZERO))), (X, INDEX)),
    "an index that has a name": kernel(loop(LetScalar(V, READ, Branch(INSIDE, put(x(V))))), (X, INDEX)),
    "turned": kernel(loop(put(x(Size(N) - 1 - AT)))),
    "one index for two": kernel(loop(LetScalar(V, binary("floordiv", AT, 3), put(x(V))))),
}


@pytest.mark.parametrize(("op", "size"), [("mod", "m"), ("floordiv", "n")])
def test_a_loop_of_a_product_of_sizes_has_none_that_is_zero(op: Literal["mod", "floordiv"], size: str) -> None:
    """Of ``n * m`` rounds, their remainder by m is less than m, and their quotient less than n."""
    m = dim_var("m")
    of = Buffer("of", (m if size == "m" else N,), "float32")
    axis = Axis("i", dim_mul(N, m))
    inside = For(axis, Size(axis.extent), put(Load(of, (binary(op, axis, Size(m)),), "float32"), 0))
    assert unproved(Kernel("k", (of,), (Y,), (var(),), loop(inside))) == []


@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str) -> None:
    assert [str(a) for a in unproved(SOUND[name])] == []


FAULTS: dict[str, tuple[Kernel, str]] = {
    "one behind the end": (kernel(loop(put(x(AT + 1)))), "x of n elements is read at i + 1"),
    "one before the start": (kernel(loop(put(x(AT - 1)))), "x of n elements is read at i - 1"),
    "a store behind the end": (kernel(loop(put(x(AT), AT + 1))), "y of n elements is written at i + 1"),
    "a tail without a mask": (in_blocks(BLOCKS, Const(16, "int64")), "read at"),
    "a tail that is one too long": (in_blocks(BLOCKS, binary("add", LANES, 1)), "read at"),
    "a block too many": (in_blocks(binary("add", BLOCKS, 1), Const(16, "int64")), "read at"),
    "the wrong side of a choice": (kernel(loop(put(select(compare("lt", AT, 3), x(AT - 3), ZERO)))), "read at i - 3"),
    "a bound that is one too large": (
        kernel(loop(put(select(compare("le", AT + 1, Size(N)), x(AT + 1), ZERO)))),
        "read at i + 1",
    ),
    "a branch the other way round": (kernel(loop(Branch(compare("ge", AT, 3), put(ZERO), put(x(AT - 3))))), "at i - 3"),
    "a case too many": (kernel(Switch(Size(N), (put(x(0), 0),))), "at 0"),
    "an index of nobody knows what": (kernel(loop(put(x(READ))), (X, INDEX)), "read at int64(index[i])"),
    "an index that is bounded on one side": (
        kernel(loop(put(select(compare("lt", READ, Size(N)), x(READ), ZERO))), (X, INDEX)),
        "read at int64(index[i])",
    ),
    "a read before its choice": (
        kernel(loop(LetScalar(Axis("a", 1, "float32"), x(AT + 1), put(ZERO)))),
        "read at i + 1",
    ),
    "something of nothing": (kernel(put(x(0), 0)), "at 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    faulty, message = FAULTS[name]
    found = [str(a) for a in unproved(faulty)]
    assert any(message in text for text in found), found


def test_what_lies_behind_a_line() -> None:
    """By fewer elements than the line has, and by as many wherever that is mentioned."""

    def shifted(length: int) -> Kernel:
        source = Buffer("s", (length,), "float32")
        behind = Behind("s_behind", 16, buffer=source)
        twice = binary("sub", binary("add", binary("add", AT, behind), behind), behind)
        return Kernel(
            "k", (source,), (Y,), (var(),), loop(put(Load(source, (twice,), "float32"), 0), Const(64, "int64"))
        )

    assert [str(a) for a in unproved(shifted(79)) if a.what == "read"] == []
    assert [a.what for a in unproved(shifted(78)) if a.what == "read"] == ["read"]


def test_blocks_that_are_transposed() -> None:
    source, target = Buffer("s", (N * 64,), "float32"), Buffer("t", (64 * N,), "float32")

    def turned(pitch: Scalar, rows: Scalar) -> Kernel:
        zero = Const(0, "int64")
        stmt = Transpose(target, zero, pitch, source, zero, Const(64, "int64"), rows, Const(64, "int64"))
        return Kernel("k", (source,), (target,), (var(),), stmt)

    assert unproved(turned(Size(N), Size(N))) == []
    assert len(unproved(turned(Size(N), binary("add", Size(N), 1)))) == 2
    assert len(unproved(turned(binary("add", Size(N), 1), Size(N)))) == 1


def test_products_of_blocks() -> None:
    rows = binary("mul", Size(N), 40)
    left, right = Buffer("left", (dim_mul(N, 40),), "bfloat16"), Buffer("right", (3, 20, 16, 2), "bfloat16")
    target = Buffer("target", (512,), "float32")

    def multiplied(at: Scalar, height: Scalar, panel: int = 2) -> Kernel:
        zero = Const(0, "int64")
        stmt = BlockProduct(target, zero, left, at, Const(40, "int64"), right, (Const(panel, "int64"),), height, 32)
        return Kernel("k", (left, right), (target,), (var(),), stmt)

    height = minimum(32, Size(N))
    last = binary("sub", rows, binary("mul", height, 40))
    assert unproved(multiplied(Const(0, "int64"), height)) == []
    assert unproved(multiplied(last, height)) == []
    assert len(unproved(multiplied(binary("add", last, 40), height))) == 1
    assert len(unproved(multiplied(last, Size(N)))) == 2
    assert len(unproved(multiplied(last, height, 3))) == 1


PROGRAM = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, m), float32], %d: Tensor[(7, 40), float32]) {
  %0 = nn.softmax(%x);
  %2 = concatenate((%0, tanh(%x)), axis=1);
  %3 = nn.layer_norm(%d, ones(shape=[40], dtype="float32"), zeros(shape=[40], dtype="float32"));
  (%2, transpose(%x), sum(%x, axis=[0]), cumsum(%x, axis=1), argmax(%x, axis=1), %3,
   nn.max_pool2d(reshape(%d, newshape=[1, 1, 14, 20]), pool_size=[3, 3], padding=[1, 1]))
}
"""


def kernels() -> list[Kernel]:
    return [p.kernel for p in build(relay.parse(PROGRAM), Options()).plan.kernels]


def test_kernels_of_a_program() -> None:
    found = {k.name: [str(a) for a in unproved(k)] for k in kernels()}
    assert len(found) > 5
    assert all(not texts for texts in found.values()), found


def dense(dtype: str, rows: Dim, columns: int, depth: int) -> Function:
    types = [tensor((rows, depth), dtype), tensor((columns, depth), dtype)]
    return primitive(types, lambda m, x, w: m("nn.relu", m("nn.dense", x, w, out_dtype="float32")))


MATRICES = replace(ZEN4, features=tuple(sorted({*ZEN4.features, "amx-bf16", "amx-tile"})))
PACKED = frozenset({1})
# Products: any number of rows and a few, packed constants and what comes at run time, pairs of bfloat16, matrix registers.
PRODUCTS: dict[str, tuple[Function, Target, frozenset[int]]] = {
    "few rows": (dense("float32", 4, 130, 200), HOST, PACKED),
    "few rows that are streamed": (
        primitive([tensor((4, 200)), tensor((200, 130))], lambda m, x, w: m("nn.matmul", x, w)), HOST, frozenset()
    ),
    "tiles": (dense("float32", N, 40, 64), parse_target("x86-64"), PACKED),
    "pairs": (dense("bfloat16", N, 64, 64), HOST, PACKED),
    "pairs of what comes at run time": (dense("bfloat16", N, 64, 64), HOST, frozenset()),
    "matrix registers": (dense("bfloat16", N, 96, 128), MATRICES, PACKED),
    "matrix registers and what is left of k": (dense("bfloat16", N, 70, 50), MATRICES, PACKED),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_matrices(name: str) -> None:
    made = make_plan(*PRODUCTS[name], "k").kernel
    assert any(isinstance(s, BlockProduct) for s in statements(made.body)) == name.startswith("matrix registers")
    assert [str(a) for a in unproved(made)] == []


FURTHER: dict[str, Callable[[BlockProduct], BlockProduct]] = {
    "rows of the left": lambda s: replace(s, at=binary("add", s.at, 1)),
    "rows of the result": lambda s: replace(s, to=binary("add", s.to, 1024)),
    "how many rows": lambda s: replace(s, rows=binary("add", s.rows, 1)),
    "the panel": lambda s: replace(s, panel=(binary("add", s.panel[0], 1),)),
}


@pytest.mark.parametrize("what", FURTHER)
def test_faults_in_products_by_blocks(what: str) -> None:
    made = make_plan(*PRODUCTS["matrix registers"], "k").kernel
    body = _last(made.body, lambda stmt: FURTHER[what](stmt) if isinstance(stmt, BlockProduct) else None)
    assert body is not None and unproved(replace(made, body=body))


def _last(stmt: Stmt, change: Callable[[Stmt], Stmt | None]) -> Stmt | None:
    """The statement with the last inner one changed that can be: of lines that go together, the others have one behind them."""
    made = change(stmt)
    if made is not None:
        return made
    inside = parts(stmt)
    for n, part in reversed(list(enumerate(inside))):
        new = _last(part, change)
        if new is None:
            continue
        match stmt:
            case For() | LetScalar() | Alloc():
                return replace(stmt, body=new)
            case Branch():
                return replace(stmt, then=new) if n == 0 else replace(stmt, orelse=new)
            case Seq():
                return Seq((*inside[:n], new, *inside[n + 1 :]))
            case _:
                return None
    return None


def _longer(stmt: Stmt) -> Stmt | None:
    return (
        replace(stmt, extent=binary("add", stmt.extent, 1))
        if isinstance(stmt, For) and stmt.kind == "vectorized"
        else None
    )


def _moved(stmt: Stmt) -> Stmt | None:
    if isinstance(stmt, Store) and stmt.buffer.scope == "operand":
        return Store(stmt.buffer, (*stmt.indices[:-1], binary("add", stmt.indices[-1], 1)), stmt.value)
    return None


def _always(stmt: Stmt) -> Stmt | None:
    if isinstance(stmt, Store) and isinstance(stmt.value, Select) and isinstance(stmt.value.a, Load):
        return Store(stmt.buffer, stmt.indices, stmt.value.a)
    return None


@pytest.mark.parametrize("change", [_longer, _moved, _always])
def test_faults_in_kernels_of_a_program(change: Callable[[Stmt], Stmt | None]) -> None:
    changed = [replace(k, body=body) for k in kernels() if (body := _last(k.body, change)) is not None]
    assert changed
    found = [bool(unproved(k)) for k in changed]
    assert all(found), [k.name for k, f in zip(changed, found, strict=True) if not f]


def test_what_is_kept_between_ends_is_trusted_and_nothing_else() -> None:
    def outside(held: bool, end: Scalar) -> list[str]:
        axis = Between("at", N, low=0, high=(end,))
        place = Cast(Load(INDEX, (AT,), "int32"), "int64")
        value = between(axis, place)[1] if held else place
        read = LetScalar(axis, value, put(x(axis)))
        return [a.what for a in unproved(kernel(loop(read), (X, INDEX)))]

    last = binary("sub", Size(N), 1)
    assert outside(True, last) == []
    assert outside(False, last) == ["read"]
    assert outside(True, Size(N)) == ["read"]
