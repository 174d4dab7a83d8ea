"""Numbers put in order by a key that each of them has: counted first, and then each put behind those of its key that came before it (a
counting sort, Knuth, The Art of Computer Programming, volume 3, 5.2). It is one pass over the keys and two over the numbers."""

from __future__ import annotations

from collections.abc import Callable

from relay.ir.dim import Dim, dim_add
from relay.ir.record import record
from relay.loop.ir import Between, Branch, Buffer, For, Stmt, Store, between
from relay.plan.build import Builder, bound, seq
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare, extent_of

# A statement that speaks of the key of a number; it may leave numbers out that have none.
OfKey = Callable[[Axis, Callable[[Scalar], Stmt]], Stmt]


@record(frozen=True, slots=True, eq=False)
class Counting:
    """``numbers`` of which each has one of so many ``keys``: ``order`` has those of key ``k`` from place ``ends[k]`` up to
    ``ends[k + 1]``, as they follow each other."""

    numbers: Dim
    keys: Dim
    order: Buffer
    ends: Buffer

    @staticmethod
    def of(builder: Builder, numbers: Dim, keys: Dim) -> Counting:
        """The buffers of so many numbers and keys."""
        order = Buffer(builder.fresh("order"), (numbers,), "int64", "workspace")
        # One more is where the next key's numbers begin, while they are counted.
        return Counting(numbers, keys, order, Buffer(builder.fresh("ends"), (dim_add(keys, 2),), "int64", "workspace"))

    @property
    def buffers(self) -> list[Buffer]:
        return [self.order, self.ends]

    def made(self, of_key: OfKey, each: Callable[[Scalar, Scalar], Stmt] | None = None) -> Stmt:
        """Put the numbers in order; ``each`` is done for each key that has some, in order: the key, and where its numbers begin."""
        number, key = Axis("number", self.numbers), Axis("key", self.keys)
        place, last = Axis("i", dim_add(self.keys, 2)), binary("add", extent_of(self.keys), 1)
        own, begin = Axis("own", dim_add(self.numbers, 1)), Axis("begin", dim_add(self.numbers, 1))
        end = Between("numbers", self.numbers, low=0, high=(binary("sub", extent_of(self.numbers), 1),))
        clear = For(place, extent_of(place.extent), Store(self.ends, (place,), Const(0, "int64")))
        counted = of_key(
            number, lambda k: self._moved(binary("add", k, 1), binary("add", self._at(binary("add", k, 1)), 1))
        )
        noted = [] if each is None else [Branch(compare("gt", own, 0), each(key, begin))]
        after = binary("add", key, 1)
        summed = bound([(own, self._at(after)), (begin, self._at(last))], seq([
            *noted, self._moved(after, begin), self._moved(last, binary("add", begin, own)),
        ]))  # fmt: skip

        def placed(k: Scalar) -> Stmt:
            mine = binary("add", k, 1)
            moved = self._moved(mine, binary("add", end, 1))
            return bound([between(end, self._at(mine))], seq([Store(self.order, (end,), number), moved]))

        return seq([
            clear,
            For(number, extent_of(self.numbers), counted),
            For(key, extent_of(self.keys), summed),
            For(number, extent_of(self.numbers), of_key(number, placed)),
        ])  # fmt: skip

    def number(self, place: Scalar) -> tuple[Axis, Scalar]:
        """A name for the number at a place of the order, and what is bound to it."""
        last = binary("sub", extent_of(self.numbers), 1)
        return between(Between("number", self.numbers, low=0, high=(last,)), Load(self.order, (place,), "int64"))

    def of_key(self, key: Scalar) -> tuple[Axis, Axis, list[tuple[Axis, Scalar]]]:
        """Names for where a key's numbers begin and how many there are, and what is bound to them."""
        more = dim_add(self.numbers, 1)
        begin = Between("begin", more, low=0, high=(extent_of(self.numbers),))
        count = Between("count", more, low=0, high=(binary("sub", extent_of(self.numbers), begin),))
        several = binary("sub", self._at(binary("add", key, 1)), begin)
        return begin, count, [between(begin, self._at(key)), between(count, several)]

    def _at(self, place: Scalar) -> Scalar:
        return Load(self.ends, (place,), "int64")

    def _moved(self, place: Scalar, to: Scalar) -> Stmt:
        return Store(self.ends, (place,), to)
