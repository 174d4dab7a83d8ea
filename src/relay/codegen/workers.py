"""Compiling many modules at once: helper processes beside the calling thread, for the time of one build.

A helper is a fresh interpreter that reads modules from its standard input and writes objects to its standard
output. It shares nothing with the caller, so threads, locks and the caller's main module do not matter to it.
The caller makes the modules meanwhile, and then compiles too, so the time helpers take to start is not waited for.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from relay.codegen.objects import compile_text
from relay.ir.diagnostics import CompileError
from relay.loop.target import Target

# Helper processes take a third of a second to start: they are worth it for more work than that. Milliseconds, measured.
_PER_MODULE, _PER_KILOBYTE, _WORTH_HELPERS = 6.0, 0.4, 400.0
_PROGRAM = "from relay.codegen.workers import serve; serve()"


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_all(
    texts: Iterable[str], count: int, target: Target, processes: int, worth: float | None = None
) -> list[bytes]:
    """The object of each of ``count`` modules, made by ``processes`` processes (this one included), the longest first.

    Modules may be made while they are asked for: helpers begin with those that there are as soon as these are ``worth`` milliseconds.
    Raises what making and compiling a module raises; CompileError when a helper ends without an answer.
    """
    waiting: list[tuple[int, int, str]] = []  # a heap: the longest first
    done: dict[int, bytes] = {}
    errors: list[BaseException] = []
    more, complete, work = threading.Condition(), False, 0.0
    worth = _WORTH_HELPERS if worth is None else worth

    def following(wait: bool) -> tuple[int, str] | None:
        with more:
            while wait and not waiting and not complete and not errors:
                more.wait()
            if not waiting or errors:
                return None
            _, number, text = heapq.heappop(waiting)
            return number, text

    def failed(error: BaseException) -> None:
        with more:
            errors.append(error)
            more.notify_all()

    def ask(helper: subprocess.Popen[bytes]) -> None:
        assert helper.stdin is not None and helper.stdout is not None
        while (module := following(wait=True)) is not None:
            number, text = module
            try:
                _send(helper.stdin, (text, target))
                answer = _receive(helper.stdout)
            except (OSError, EOFError):
                return failed(CompileError("a compiler process ended without an answer"))
            if isinstance(answer, BaseException):
                return failed(answer)
            assert isinstance(answer, bytes)
            done[number] = answer

    helpers: list[subprocess.Popen[bytes]] = []
    threads: list[threading.Thread] = []
    wanted = min(processes, count) - 1
    try:
        for number, text in enumerate(texts):
            with more:
                heapq.heappush(waiting, (-len(text), number, text))
                more.notify()
            work += _PER_MODULE + _PER_KILOBYTE * len(text) / 1024
            if wanted > 0 and not threads and work > worth:
                helpers = _start(wanted)
                threads = [threading.Thread(target=ask, args=(helper,), daemon=True) for helper in helpers]
                for thread in threads:
                    thread.start()
        with more:
            complete = True
            more.notify_all()
        while (module := following(wait=False)) is not None:
            done[module[0]] = compile_text(module[1], target)
        for thread in threads:
            thread.join()
    finally:
        with more:
            complete = True
            waiting.clear()
            more.notify_all()
        for helper in helpers:
            _end(helper)
    if errors:
        raise errors[0]
    return [done[n] for n in range(count)]


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


def _end(helper: subprocess.Popen[bytes]) -> None:
    helper.kill()
    helper.wait()
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what a thread was about to send, nobody wants
                pipe.close()


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
