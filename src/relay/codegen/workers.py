"""Compiling many modules at once: helper processes beside the calling thread, for the time of one build.

A helper is a fresh interpreter that reads modules from its standard input and writes objects to its standard
output. It shares nothing with the caller, so threads, locks and the caller's main module do not matter to it.
The caller compiles too, so the time helpers take to start is not waited for.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from relay.codegen.objects import compile_text
from relay.ir.diagnostics import CompileError
from relay.loop.target import Target

_PROGRAM = "from relay.codegen.workers import serve; serve()"


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_all(texts: Sequence[str], target: Target, processes: int) -> list[bytes]:
    """The object of each module, made by ``processes`` processes (this one included), the longest first.

    Raises what compiling a module raises; CompileError when a helper ends without an answer.
    """
    order = deque(sorted(range(len(texts)), key=lambda n: -len(texts[n])))
    done: dict[int, bytes] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def following() -> int | None:
        with lock:
            return order.popleft() if order and not errors else None

    def ask(helper: subprocess.Popen[bytes]) -> None:
        assert helper.stdin is not None and helper.stdout is not None
        while (number := following()) is not None:
            try:
                _send(helper.stdin, (texts[number], target))
                answer = _receive(helper.stdout)
            except (OSError, EOFError):
                errors.append(CompileError("a compiler process ended without an answer"))
                return
            if isinstance(answer, BaseException):
                errors.append(answer)
                return
            assert isinstance(answer, bytes)
            done[number] = answer

    helpers = _start(min(processes, len(texts)) - 1)
    threads = [threading.Thread(target=ask, args=(helper,), daemon=True) for helper in helpers]
    try:
        for thread in threads:
            thread.start()
        while (number := following()) is not None:
            done[number] = compile_text(texts[number], target)
        for thread in threads:
            thread.join()
    finally:
        with lock:
            order.clear()
        for helper in helpers:
            helper.kill()
            helper.wait()
            for pipe in (helper.stdin, helper.stdout):
                if pipe is not None:
                    pipe.close()
    if errors:
        raise errors[0]
    return [done[n] for n in range(len(texts))]


def _start(count: int) -> list[subprocess.Popen[bytes]]:
    """Helpers; fewer, or none, where processes cannot be started."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    helpers: list[subprocess.Popen[bytes]] = []
    for _ in range(count):
        try:
            helpers.append(
                subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                    start_new_session=True,  # Ctrl-C is the caller's business
                )
            )
        except OSError:
            break
    return helpers


def _send(pipe: IO[bytes], message: object) -> None:
    data = pickle.dumps(message)
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> object:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    data = pipe.read(int.from_bytes(head, "little"))
    return pickle.loads(data)


def serve() -> None:
    """A helper's life: compile what comes until the input ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to the error stream, not among the answers
    while True:
        try:
            message = _receive(source)
        except EOFError:
            return
        assert isinstance(message, tuple)
        text, target = message
        answer: object
        try:
            answer = compile_text(text, target)
        except CompileError as error:
            answer = CompileError(error.message, hint=error.hint)
        except Exception as error:
            answer = CompileError(f"compiling a kernel failed: {error!r}")
        try:
            _send(answers, answer)
        except BrokenPipeError:
            return
