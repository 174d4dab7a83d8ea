"""The command line: one verb each. Errors are one message on standard error; exit codes 2 (bad input), 1 (failed while running),
130 (interrupted), 143 (terminated).

The modules of the verbs are imported when they are called: the list of verbs needs none."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import relay
from relay.cli.arguments import call
from relay.ir.diagnostics import ExecutionError, RelayError
from relay.starting import started

# Of each verb the module and what it does.
VERBS = {
    "compile": ("verbs", "compile a program to an executable file, or to a library for C"),
    "run": ("verbs", "run a program and print its result"),
    "verify": ("verbs", "compare executors on a program"),
    "bench": ("bench", "time a program, beside other systems and what the machine can do"),
    "profile": ("profile", "show what each kernel of a program takes"),
    "opt": ("verbs", "apply passes to a program and print it"),
    "inspect": ("verbs", "show what the compiler makes of a program"),
}
_AGAIN = 0.01  # seconds until a signal comes again that came where nothing can be raised
_ABOUT = "Relay: compile, run and look into programs that are neural networks."


def main() -> None:
    """Run a command; every error ends in one message and its exit code."""
    _open_streams()
    try:
        started()
        sys.unraisablehook = _unraisable
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)
        try:
            command(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except ExecutionError as error:
        _stop(1, f"error: {error}")
    except RelayError as error:
        _stop(2, f"error: {error}")
    except KeyboardInterrupt:
        _stop(130, "interrupted")
    except BrokenPipeError:
        _discard_output()
        sys.exit(141)
    except OSError as error:  # of the output, or of what nobody thought of
        _discard_output()
        # Of a write that fails the system does not say where it went; files are written by what does say.
        what = str(error) if error.filename is not None else f"cannot write the output: {error.strerror or error}"
        _stop(1, f"error: {what}")
    except MemoryError:
        _stop(1, "error: out of memory")
    except RuntimeError as error:
        # What interrupts the making of a class, as modules are imported, Python before 3.12 hands on as the cause of another error.
        if isinstance(error.__cause__, KeyboardInterrupt):
            _stop(130, "interrupted")
        if isinstance(error.__cause__, SystemExit):
            sys.exit(error.__cause__.code)
        raise


def command(arguments: Sequence[str]) -> None:
    """Run a verb with its arguments. Raises RelayError for a wrong command line too."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if name in ("", "-h", "--help"):
        lines = (f"  {verb:10}{summary}" for verb, (_, summary) in VERBS.items())
        print(f"usage: relay VERB ...\n\n{_ABOUT}\n\n" + "\n".join(lines) + "\n\n`relay VERB --help` says more.")
        sys.exit(0 if name else 2)
    if name == "--version":
        print(f"relay {relay.__version__}")
        return
    if name not in VERBS:
        raise RelayError(f"there is no verb {name!r}", hint=f"there are {', '.join(VERBS)}")
    module, _ = VERBS[name]
    call(getattr(importlib.import_module(f"relay.cli.{module}"), name), name, rest)


def _open_streams() -> None:
    """Streams that were closed when the process started lead nowhere; otherwise the next files opened would be taken for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """What could not be written is not tried again when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    """Ends like Ctrl-C: what was begun is taken back."""
    sys.exit(128 + signal.SIGTERM)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Python prints and forgets what is raised in a finaliser or in the callback of a weak reference. A signal that came there comes again
    when that is over."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(what.exc_type)
    if number is None:
        sys.__unraisablehook__(what)
        return
    again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _stop(code: int, message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
