"""Reads whose place rises no faster than vectors do: ``x[(3 * j + 1) // 4]`` for 16 neighbouring ``j`` lies in one vector of x.

What is read so is loaded as a whole, or as two whole vectors, and the lanes are looked up in registers, in place of as many loads as
there are lanes. Images made larger, elements repeated and mirrored parts of a border are read like that.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor

from relay.codegen.builder import vec
from relay.codegen.memory import Memory, Place
from relay.codegen.values import Value, register_type
from relay.ir.inequality import is_count
from relay.ir.record import record
from relay.loop.target import Target
from relay.te.scalar import Axis, Binary, Scalar, Size, children, walk


@record(frozen=True, slots=True)
class _Line:
    """A place that is ``slope`` times the lane's number, and something else between bounds that are ``slack`` apart."""

    slope: Fraction
    slack: Fraction

    def rising(self, lanes: int) -> int | None:
        """By how much the last lane's place is beyond the first's at most; None where a lane's may be less than the one before."""
        return floor(self.slope * (lanes - 1) + self.slack) if self.slope - self.slack > -1 else None


# An integer: a place that never falls from lane to lane, by as much at most.
_Form = _Line | int
_FIXED = _Line(Fraction(0), Fraction(0))
# What counts the bits that are zero from the first lane on, and from the last.
_ZEROS = ("cttz", "ctlz")


def span(
    index: Scalar, value: Callable[[Axis], Value | None], number: Callable[[Scalar], int | None], lanes: int
) -> int | None:
    """How far the last lane's place is from the first's at most, of places that never fall from lane to lane; None of others.
    ``value``: of a variable (None: not known, as in a side of a select that is never evaluated), ``number``: of an expression that is
    one number in all lanes."""
    forms: dict[int, _Form | None] = {}
    for node in walk(index):
        forms[id(node)] = _form(node, forms, value, number, lanes)
    return _rising(forms[id(index)], lanes)


def _form(
    node: Scalar,
    forms: dict[int, _Form | None],
    value: Callable[[Axis], Value | None],
    number: Callable[[Scalar], int | None],
    lanes: int,
) -> _Form | None:
    if isinstance(node, Axis):
        at = value(node)
        if at is not None and at.is_ramp:
            return _Line(Fraction(at.stride), Fraction(0))
        return _FIXED if at is not None and at.is_uniform else None
    mine = [forms[id(k)] for k in children(node)]
    if all(f == _FIXED for f in mine):
        return _FIXED
    if not isinstance(node, Binary) or node.dtype != "int64":
        return None
    a, b = mine
    if a is None or b is None:
        return None
    match node.op:
        case "add" | "sub" if isinstance(a, _Line) and isinstance(b, _Line):
            return _Line(a.slope + b.slope if node.op == "add" else a.slope - b.slope, a.slack + b.slack)
        case "sub":
            return _rising(a, lanes) if b == _FIXED else None
        case "mul":
            form, factor = (a, number(node.b)) if b == _FIXED else (b, number(node.a))
            if factor is None or _FIXED not in (a, b):
                return None
            if isinstance(form, _Line):
                return _Line(form.slope * factor, form.slack * abs(factor))
            return form * factor if factor >= 0 else None
        case "floordiv":
            divisor = number(node.b)
            if divisor is None and isinstance(node.b, Size) and is_count(node.b.dim):
                return _rising(a, lanes)  # the quotient by a size rises no faster, and of none is 0
            if divisor is None or divisor <= 0:
                return None
            if isinstance(a, _Line):
                return _Line(a.slope / divisor, a.slack / divisor + Fraction(divisor - 1, divisor))
            return ceil(Fraction(a, divisor))
        case "add" | "min" | "max":
            first, second = _rising(a, lanes), _rising(b, lanes)
            if first is None or second is None:
                return None
            return first + second if node.op == "add" else max(first, second)
        case _:
            return None


def _rising(form: _Form | None, lanes: int) -> int | None:
    return form.rising(lanes) if isinstance(form, _Line) else form


def looks_up(target: Target, place: Place, offset: Value) -> bool:
    """Whether a machine looks up the lanes of such a vector in vectors by one instruction, and nothing better is known of where they
    are."""
    plain = place.private == 1 and place.dtype in ("float32", "int32", "uint32")
    return (
        plain and not offset.is_ramp and 32 * offset.lanes == 512 == target.vector_bits and "avx512f" in target.features
    )


def looked_up(memory: Memory, place: Place, start: Value, moving: Value, vectors: int, mask: str) -> Value:
    """The elements at ``start`` and what never falls from lane to lane, and reaches over so many vectors (one or two): these, of which
    nothing before the first active lane's element and behind the last one's is read, and the lanes looked up in them."""
    a, emit, lanes = memory.a, memory.b.emit, moving.lanes
    wide, orders, type_ = vec("i64", lanes), vec("i32", lanes), vec(register_type(place.dtype), lanes)
    moving = a.spread(moving, lanes)
    first = emit(f"extractelement {wide} {moving.text}, i64 0")
    away = emit(f"sub {wide} {moving.text}, {a.splat('i64', first, lanes)}")
    order = emit(f"trunc {wide} {away} to {orders}")
    if mask:
        bits = emit(f"bitcast {vec('i1', lanes)} {mask} to i{lanes}")
        active = emit(f"zext i{lanes} {bits} to i32")
        before, after = (memory.b.call(f"llvm.{name}.i32", "i32", ("i32", active), ("i1", "false")) for name in _ZEROS)
        low, high = (_lane(memory, order, which) for which in (before, emit(f"sub i32 31, {after}")))
        order = emit(f"sub {orders} {order}, {a.splat('i32', low, lanes)}")
        first = emit(f"add i64 {first}, {emit(f'sext i32 {low} to i64')}")
        far = emit(f"zext i32 {emit(f'sub i32 {high}, {low}')} to i64")
    else:
        last = emit(f"extractelement {wide} {moving.text}, i64 {lanes - 1}")
        far = emit(f"sub i64 {last}, {first}")
    reached = emit(f"sub i64 {emit(f'shl i64 2, {far}')}, 1")
    if mask:
        reached = emit(f"select i1 {emit(f'icmp ne i32 {active}, 0')}, i64 {reached}, i64 0")
    base = a.binary("add", start, Value(first, "int64"))
    texts: list[str] = []
    for part in range(vectors):
        bits = emit(f"trunc i64 {emit(f'lshr i64 {reached}, {part * lanes}')} to i{lanes}")
        read = emit(f"bitcast i{lanes} {bits} to {vec('i1', lanes)}")
        texts.append(memory.vector_at(place, a.binary("add", base, a.index(part * lanes)), lanes, read))
    floats, given = place.dtype == "float32", [(type_, texts[0]), (orders, order)]
    if vectors == 1:
        text = memory.b.call(f"llvm.x86.avx512.permvar.{'sf' if floats else 'si'}.512", type_, *given)
    else:
        name = f"llvm.x86.avx512.vpermi2var.{'ps' if floats else 'd'}.512"
        text = memory.b.call(name, type_, *given, (type_, texts[1]))
    return Value(a.select_text(mask, text, "zeroinitializer", type_, lanes) if mask else text, place.dtype, lanes)


def _lane(memory: Memory, vector: str, which: str) -> str:
    """A lane of 16 numbers of 32 bits, by its number's lowest four bits."""
    numbers = vec("i32", 16)
    found = memory.b.call(
        "llvm.x86.avx512.permvar.si.512", numbers, (numbers, vector), (numbers, memory.a.splat("i32", which, 16))
    )
    return memory.b.emit(f"extractelement {numbers} {found}, i64 0")
