"""What the transformation knows of each variable of the program while it writes the lifted one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from relay.ir.expr import Expr
from relay.ir.record import record
from relay.ir.types import Type
from relay.transform.ad.conversions import accumulate, cotangent, zero_ref
from relay.transform.ad.kept_rows import Term
from relay.transform.ad.terms import Code, add, project, tuple_of


@record(slots=True, eq=False)
class Frame:
    """One block: the code that computes it, how to go back through it (in forward order), and the parts of
    cotangents that have been found so far on the way back."""

    forward: Code = field(default_factory=Code)
    tape: list[Callable[[Frame], None]] = field(default_factory=list)
    back: Code = field(default_factory=Code)
    parts: dict[Tensor, list[Expr]] = field(default_factory=dict)

    def here(self) -> Code:
        """Where code stands that only this block's variables are needed for."""
        return self.forward if self.forward.open else self.back

    def give(self, tensor: Tensor, part: Expr) -> None:
        """Add a part to a cotangent, on the way back through this block."""
        if tensor.active:
            self.parts.setdefault(tensor, []).append(part)

    def local(self, tensor: Tensor) -> Expr | None:
        """The sum of the parts found in this block."""
        parts = self.parts.pop(tensor, None)
        if parts is None:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = self.back.bind(add(total, part), "d")
        return total

    def total(self, tensor: Tensor) -> Expr | None:
        """The cotangent of a tensor that this block made; None where it is zero."""
        local = self.local(tensor)
        if tensor.made_ref is None or not tensor.active:
            return local
        return cotangent(self.back, tensor.made_ref, tensor.primal, local)

    def flush(self, tensor: Tensor) -> None:
        """Give what was found of a cotangent in this block to the tensor's reference."""
        local = self.local(tensor)
        if local is not None:
            accumulate(self.back, tensor.ref, local)

    def go_back(self) -> None:
        """Write the way back; afterwards the parts that belong to tensors of other blocks are in their references."""
        self.forward.open = False
        for step in reversed(self.tape):
            step(self)


@record(slots=True, eq=False)
class Tensor:
    """A differentiable tensor, made in the block ``home`` (``given`` is its value) or come from elsewhere as a pair.

    ``active``: it may depend on what the derivative is taken for. Its reference is made when something outside the
    block's own operators wants it, and so is the pair. ``lists`` are references to the rows of terms that are not added to its
    cotangent (`kept_rows`).
    """

    ty: Type
    home: Frame
    given: Expr | None
    pair: Expr | None = None
    active: bool = True
    made_ref: Expr | None = None
    lists: Mapping[Term, Expr] = field(default_factory=dict)
    _foreign_ref: Expr | None = None

    @property
    def primal(self) -> Expr:
        if self.given is None:
            assert self.pair is not None
            self.given = self.home.here().bind(project(self.pair, 0))
        return self.given

    @property
    def ref(self) -> Expr:
        if self.made_ref is not None:
            return self.made_ref
        if self._foreign_ref is None:
            if self.pair is None:
                self.made_ref = zero_ref(self.home.here(), self.ty)
                return self.made_ref
            self._foreign_ref = self.home.here().bind(project(self.pair, 1))
        return self._foreign_ref

    @property
    def whole(self) -> Expr:
        if self.pair is None:
            assert self.given is not None
            ref = self.ref
            self.pair = self.home.here().bind(tuple_of((self.given, ref)))
        return self.pair

    def tensors(self) -> Iterator[Tensor]:
        yield self


@record(slots=True, eq=False)
class Fields:
    """A tuple whose fields are known."""

    ty: Type
    home: Frame
    fields: tuple[Value, ...]
    lifted: Expr | None = None
    plain: Expr | None = None

    @property
    def whole(self) -> Expr:
        if self.lifted is None:
            parts = [f.whole for f in self.fields]
            self.lifted = self.home.here().bind(tuple_of(parts))
        return self.lifted

    @property
    def primal(self) -> Expr:
        """The tuple of the fields' own values."""
        if self.plain is None:
            parts = [f.primal for f in self.fields]
            self.plain = self.home.here().bind(tuple_of(parts))
        return self.plain

    def tensors(self) -> Iterator[Tensor]:
        for f in self.fields:
            yield from f.tensors()


@record(slots=True, eq=False)
class Other:
    """Any other value: an atom of the lifted type (the type itself, where lifting does not change it).

    ``plain`` is the value itself, where that is there: then ``lift`` writes the lifted value when somebody wants it.
    """

    ty: Type
    lifted: Expr | None
    plain: Expr | None = None
    lift: Callable[[], Expr] | None = None

    @property
    def whole(self) -> Expr:
        if self.lifted is None:
            assert self.lift is not None
            self.lifted = self.lift()
        return self.lifted

    @property
    def primal(self) -> Expr:
        return self.whole if self.plain is None else self.plain

    def tensors(self) -> Iterator[Tensor]:
        return iter(())


Value = Tensor | Fields | Other


def is_constant(value: Value) -> bool:
    """Whether nothing in a value depends on what the derivative is taken for, and its ``primal`` is there."""
    match value:
        case Tensor():
            return not value.active
        case Fields():
            return all(map(is_constant, value.fields))
        case Other():
            return value.plain is not None
