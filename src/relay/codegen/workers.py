"""Compiling many kernels at once: helper processes beside the calling thread, for the time of one build.

A helper is a fresh interpreter that reads loop nests from its standard input and writes objects to its standard
output. It shares nothing with the caller, so threads, locks and the caller's main module do not matter to it.
The caller compiles meanwhile, so the time helpers take to start is not waited for.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

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


def compile_all(kernels: Sequence[Kernel], target: Target, processes: int, worth: float | None = None) -> list[bytes]:
    """The object of each of some kernels, made by at most ``processes`` processes (this one included), what takes longest first.

    There is a helper for each ``worth`` milliseconds of what the kernels are expected to take (None: as many as pay).
    Raises what compiling a kernel raises; CompileError when a helper ends without an answer.
    """
    expected = [_PER_KERNEL + _PER_STATEMENT * sum(1 for _ in statements(k.body)) for k in kernels]
    waiting = sorted(range(len(kernels)), key=expected.__getitem__)  # the last is next
    done: dict[int, bytes] = {}
    errors: list[BaseException] = []
    changed = threading.Condition()

    def following() -> int | None:
        with changed:
            return waiting.pop() if waiting and not errors else None

    def ask(helper: subprocess.Popen[bytes]) -> None:
        number: int | None = None
        try:
            assert helper.stdin is not None and helper.stdout is not None
            _receive(helper.stdout)  # until then this process is sooner done with a kernel
            while (number := following()) is not None:
                _send(helper.stdin, to_bytes({number: kernels[number]}, target))
                answer = pickle.loads(_receive(helper.stdout))
                with changed:
                    if isinstance(answer, BaseException):
                        errors.append(answer)
                    else:
                        done[number] = answer
                    changed.notify()
        except BaseException as error:
            with changed:
                if number is not None:
                    ended = isinstance(error, OSError | EOFError)
                    errors.append(CompileError("a compiler process ended without an answer") if ended else error)
                changed.notify()

    helpers = _start(_helpers(sum(expected), len(kernels), processes, _WORTH_HELPER if worth is None else worth))
    try:
        for helper in helpers:
            threading.Thread(target=ask, args=(helper,), daemon=True).start()
        while (mine := following()) is not None:
            done[mine] = kernel_object(kernels[mine], target)
        with changed:
            changed.wait_for(lambda: errors or len(done) == len(kernels))
    finally:
        with changed:
            waiting.clear()
        for helper in helpers:
            _end(helper)
    if errors:
        raise errors[0]
    return [done[n] for n in range(len(kernels))]


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
