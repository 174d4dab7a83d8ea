"""Ctrl-C while the command line is still importing: one word and exit status 130, as everywhere else, instead of a traceback.

``python -m relay`` and the script ``relay`` import the package ``relay.cli`` before anything that takes long, and it this module.
Programs that import relay keep the handler of signals that they have.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def is_command_line() -> bool:
    """Whether this process is the command line ``relay``, told before its arguments are read."""
    name, given = (sys.argv or [""])[0], sys.orig_argv
    if name == "-m" or os.path.basename(name) == "__main__.py":  # while the package is imported; then what is run
        return given[given.index("-m") + 1 :][:1] == ["relay"] if "-m" in given else False
    return os.path.basename(name) in ("relay", "relay.exe")


def leave_quietly() -> None:
    """From here on Ctrl-C ends the command line at once; nothing for other programs."""
    mine = is_command_line() and threading.current_thread() is threading.main_thread()
    if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def started() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
