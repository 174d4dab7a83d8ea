"""A statement once more: its own names, the expressions it was told, the rest shared."""

from relay.loop.ir import Branch, Buffer, For, LetScalar, Prefetch, Seq, Stmt, Store
from relay.loop.walk import again, expressions, free_axes, statements
from relay.te.scalar import Axis, Const, Load, Named, Scalar, Size, binary, compare, walk


def _epilogue(tile: Buffer, out: Buffer, place: Axis) -> tuple[Stmt, Scalar]:
    """`let row = place; for j < 4: if j < 3: let e = tile[0, j]; prefetch; out[row * 4 + j] = e * e`, and the number of the tile row."""
    row, lane, value, number = Axis("row", 8), Axis("j", 4), Named("e", "float32"), Const(0, "int64")
    at = binary("add", binary("mul", row, 4), lane)
    body = Seq((Prefetch(out, (at,), write=True), Store(out, (at,), binary("mul", value, value))))
    inner = LetScalar(value, Load(tile, (number, lane), "float32"), body)
    loop = For(lane, Size(4), Branch(compare("lt", lane, 3), inner), "vectorized")
    return LetScalar(row, place, loop), number


def _axes(stmt: Stmt) -> set[Axis]:
    return {n for s in statements(stmt) for e in expressions(s) for n in walk(e) if isinstance(n, Axis)}


def test_what_a_statement_binds_has_other_names_and_the_rest_is_what_it_was() -> None:
    tile, out, place = Buffer("tile", (2, 4), "float32", "register"), Buffer("out", (32,), "float32"), Axis("place", 8)
    first, number = _epilogue(tile, out, place)
    named: list[str] = []

    def name(axis: Axis) -> Axis:
        named.append(axis.name)
        return Named("e1", axis.dtype) if isinstance(axis, Named) else Axis(axis.name, axis.extent)

    second = again(first, {number: Const(1, "int64")}, name)
    assert named == ["row", "j", "e"]
    assert list(free_axes(second)) == list(free_axes(first)) == [place]
    assert _axes(first) & _axes(second) == {place}
    loads = [n for s in statements(second) for e in expressions(s) for n in walk(e) if isinstance(n, Load)]
    assert [n.indices[0].value for n in loads if isinstance(n.indices[0], Const)] == [1]
    assert [type(s) for s in statements(second)] == [type(s) for s in statements(first)]
