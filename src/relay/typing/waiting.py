"""Relations that wait for news of the variables that they depend on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field

from relay.ir.diagnostics import TypeError_
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TypeArg, TypeParam

# What a deferred relation still needs; None when it is done.
Waiting = tuple[TypeParam, ...] | None


@record(slots=True, eq=False)
class Deferred:
    """A relation in the queue. ``attempt(last)`` solves it, or says what it waits for; ``last`` asks for defaults."""

    attempt: Callable[[bool], Waiting]
    what: Callable[[], str]
    span: Span | None
    types: tuple[TypeArg, ...]
    done: bool = False
    queued: bool = False


@record(slots=True, eq=False)
class Queue:
    """``pending``: relations in the order in which they came, those done included until `finish`."""

    pending: list[Deferred] = field(default_factory=list)
    _watchers: dict[TypeParam, list[Deferred]] = field(default_factory=dict)
    _ready: deque[Deferred] = field(default_factory=deque)

    def defer(
        self,
        attempt: Callable[[bool], Waiting],
        what: Callable[[], str],
        span: Span | None,
        types: tuple[TypeArg, ...],
        waits: tuple[TypeParam, ...],
    ) -> None:
        """Queue a relation that waits for these; ``types``, which it mentions, are not generalised meanwhile."""
        relation = Deferred(attempt, what, span, types)
        self.pending.append(relation)
        self._await(relation, waits)

    def _await(self, relation: Deferred, waits: tuple[TypeParam, ...]) -> None:
        for v in waits:
            self._watchers.setdefault(v, []).append(relation)

    def _try(self, relation: Deferred, *, last: bool) -> bool:
        waits = relation.attempt(last)
        if waits is None:
            relation.done = True
            return True
        self._await(relation, waits)
        return False

    def wake(self, v: TypeParam) -> None:
        """There is news of a variable."""
        for relation in self._watchers.pop(v, ()):
            if not relation.done and not relation.queued:
                relation.queued = True
                self._ready.append(relation)

    def drain(self) -> None:
        """Retry the relations that there is news for, until there is none."""
        while self._ready:
            relation = self._ready.popleft()
            relation.queued = False
            if not relation.done:
                self._try(relation, last=False)

    def finish(self, unknowns: Callable[[TypeArg], list[TypeParam]]) -> None:
        """Solve what is left with defaults. Raises TypeError_ for a relation that still lacks something: what is not known of its types."""
        self.drain()
        while True:
            left = [r for r in self.pending if not r.done]
            if not left:
                self.pending.clear()
                return
            for relation in left:
                if not relation.done:
                    self._try(relation, last=True)
                    self.drain()
            if all(not r.done for r in left):
                names = ", ".join(sorted({v.name for t in left[0].types for v in unknowns(t)}))
                raise TypeError_(
                    f"the types do not determine {left[0].what()}" + (f" (unknown: {names})" if names else ""),
                    left[0].span,
                    "annotate the parameters that it depends on",
                )
            self.pending = [r for r in left if not r.done]
