"""Recursion without the Python stack: write the recursive function as a generator that yields its calls.

def depth(e):
    below = yield depth(e.child)
    return below + 1

run(depth(e))
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Step = Generator[Any, Any, T]


def run(root: Step[T]) -> T:
    """Run a generator that yields the generators it calls, and give what it returns. Depth is bounded by memory only."""
    stack: list[Generator[Any, Any, Any]] = [root]
    value: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as stop:
            stack.pop()
            value = stop.value
        except BaseException as error:
            # Unwind through the callers, so that their `finally` and `except` clauses run.
            stack.pop()
            while stack:
                try:
                    stack.append(stack[-1].throw(error))
                    value = None
                    break
                except StopIteration as stop:
                    stack.pop()
                    value = stop.value
                    break
                except BaseException as again:
                    error = again
                    stack.pop()
            else:
                raise error from None
    result: T = value
    return result
