"""Compiling many kernels at once: helper processes beside the calling thread, for the time of one build.

A helper is a fresh interpreter that reads loop nests from its standard input and writes objects to its standard
output. It shares nothing with the caller, so threads, locks and the caller's main module do not matter to it.
The caller makes more kernels meanwhile, or compiles, so the time helpers take to start is not waited for.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Self

from relay.codegen.kernel_object import kernel_object
from relay.codegen.nest_bytes import from_bytes, to_bytes
from relay.ir.collection import without_collection
from relay.ir.diagnostics import CompileError
from relay.loop.ir import Kernel
from relay.loop.target import Target
from relay.loop.walk import statements

# What a kernel takes, and each statement of it, on Zen 3 (within a factor of two); and how much work is worth another helper, which
# takes half a second to start. Milliseconds.
_PER_KERNEL, _PER_STATEMENT, _WORTH_HELPER = 13.0, 0.5, 500.0
_PROGRAM = "from relay.codegen.workers import serve; serve()"


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Compilers:
    """Kernels that are compiled while more of them are being made: by helpers as soon as there is enough to do for them, and at the end by
    this thread, too.

    There is a helper for each ``worth`` milliseconds of what the kernels are expected to take (None: as many as pay), and at most
    ``processes`` processes, this one included. What takes longest comes first. A context, which ends the helpers.
    """

    def __init__(self, target: Target, processes: int, worth: float | None = None) -> None:
        self._target, self._processes = target, processes
        self._worth = _WORTH_HELPER if worth is None else worth
        self._kernels: list[Kernel] = []
        self._waiting: list[
            tuple[float, int]
        ] = []  # a heap of what none has begun: less what each takes, and its number
        self._work = 0.0
        self._done: dict[int, bytes] = {}
        self._errors: list[BaseException] = []
        self._whole = False  # no more kernels come
        self._changed = threading.Condition()
        self._helpers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._waiting.clear()
            self._whole = True
            self._changed.notify_all()
        for helper in self._helpers:
            _end(helper)

    def add(self, kernel: Kernel) -> None:
        """Take one more kernel."""
        expected = _PER_KERNEL + _PER_STATEMENT * sum(1 for _ in statements(kernel.body))
        with self._changed:
            heapq.heappush(self._waiting, (-expected, len(self._kernels)))
            self._kernels.append(kernel)
            self._changed.notify()
        self._work += expected
        wanted = _helpers(self._work, len(self._kernels), self._processes, self._worth)
        if wanted > len(self._helpers):
            started = _start(wanted - len(self._helpers))
            if not started:
                self._processes = 1  # nor will there be another time
            for helper in started:
                self._helpers.append(helper)
                threading.Thread(target=self._ask, args=(helper,), daemon=True).start()

    def objects(self) -> list[bytes]:
        """The object of each kernel in order, of which no more come.

        Raises what compiling a kernel raises; CompileError when a helper ends without an answer.
        """
        with self._changed:
            self._whole = True
            self._changed.notify_all()
        while (mine := self._following()) is not None:
            made = kernel_object(self._kernels[mine], self._target)
            with self._changed:
                self._done[mine] = made
        with self._changed:
            self._changed.wait_for(lambda: self._errors or len(self._done) == len(self._kernels))
        if self._errors:
            raise self._errors[0]
        return [self._done[n] for n in range(len(self._kernels))]

    def _following(self) -> int | None:
        """The next kernel to compile, when there is one; None when there is none left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._whole or self._errors)
            return heapq.heappop(self._waiting)[1] if self._waiting and not self._errors else None

    def _ask(self, helper: subprocess.Popen[bytes]) -> None:
        number: int | None = None
        try:
            assert helper.stdin is not None and helper.stdout is not None
            _receive(helper.stdout)  # until then this process is sooner done with a kernel
            while (number := self._following()) is not None:
                _send(helper.stdin, to_bytes({number: self._kernels[number]}, self._target))
                answer = pickle.loads(_receive(helper.stdout))
                with self._changed:
                    if isinstance(answer, BaseException):
                        self._errors.append(answer)
                    else:
                        self._done[number] = answer
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                if number is not None:
                    ended = isinstance(error, OSError | EOFError)
                    self._errors.append(CompileError("a compiler process ended without an answer") if ended else error)
                self._changed.notify_all()


def _helpers(work: float, kernels: int, processes: int, worth: float) -> int:
    """How many helpers to start for so much work."""
    most = min(processes, kernels) - 1
    return max(0, most if work > most * worth else int(work / worth))


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


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    return pipe.read(int.from_bytes(head, "little"))


def serve() -> None:
    """A helper's life: compile what comes until the input ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to the error stream, not among the answers
    _send(answers, b"")
    while True:
        try:
            message = _receive(source)
        except EOFError:
            return
        try:
            _send(answers, pickle.dumps(_answer(message)))
        except BrokenPipeError:
            return


def _answer(message: bytes) -> bytes | CompileError:
    """The object of the kernel in a message, or what is wrong with it."""
    try:
        with without_collection():
            target, kernels = from_bytes(message)
            (kernel,) = kernels.values()
            return kernel_object(kernel, target)
    except CompileError as error:
        return CompileError(error.message, hint=error.hint)
    except Exception as error:
        return CompileError(f"compiling a kernel failed: {error!r}")
