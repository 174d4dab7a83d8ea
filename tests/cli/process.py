"""The command line in a process of its own: a copy of this one, which has imported everything already."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from relay.cli.main import main

_SECONDS = 120
# What commands import when they run, once for all copies.
for _needed in (
    "cli.bench",
    "cli.debug",
    "cli.inspect",
    "cli.profile",
    "cli.verify",
    "pipeline",
    "view.comparison",
    "view.profiler",
):
    importlib.import_module(f"relay.{_needed}")


@dataclass(frozen=True)
class Done:
    """How a process ended (minus the signal's number if by one) and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(*args: object) -> Done:
    """``relay args...``; a process that takes two minutes is ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _be_relay([str(a) for a in args], out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return Done(code, out.read().decode(), err.read().decode())


def _be_relay(args: Sequence[str], out: int, err: int) -> NoReturn:
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin, sys.stdout, sys.stderr = open(os.devnull), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["relay", *args]
        signal.alarm(_SECONDS)
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
