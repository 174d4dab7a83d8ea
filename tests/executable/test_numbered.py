"""Types and sizes by number."""

from __future__ import annotations

from threading import Thread

from relay.executable.numbered import Numbered


class Interrupted(str):
    """A text that lets another thread number something each time it is looked for."""

    __slots__ = ("table", "threads")
    table: Numbered[str]
    threads: list[Thread]

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        name = f"other {len(self.threads)}"
        self.threads.append(Thread(target=self.table.number, args=(name, name)))
        self.threads[-1].start()
        self.threads[-1].join(0.05)
        return str.__hash__(self)


def test_several_threads_give_each_thing_its_own_number() -> None:
    """What two threads meet at once gets two numbers, and neither that of the other."""
    table = Numbered[str]()
    text = Interrupted("one")
    text.table, text.threads = table, []
    number = table.number(text, "one")
    for thread in text.threads:
        thread.join()
    others = [f"other {n}" for n in range(len(text.threads))]
    assert len(others) > 1
    numbers = [number, *(table.number(name, name) for name in others)]
    assert [table[n] for n in numbers] == ["one", *others] and sorted(numbers) == list(range(len(numbers)))
    assert table.known("one") == number and table.known("two") is None
