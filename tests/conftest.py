"""Options of the test run."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """What a shell starts in the background ignores interrupts, and so would the processes that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-programs",
        type=int,
        default=100,
        help="how many generated programs tests/test_fuzz.py runs (1000 in continuous integration)",
    )
    parser.addoption(
        "--programs-from",
        type=int,
        default=0,
        help="another number gives other generated programs than those of continuous integration, to both tests of them",
    )
    parser.addoption(
        "--gradient-examples",
        type=int,
        default=6,
        help="how many operands tests/op/test_gradients.py draws for each operator",
    )
    parser.addoption(
        "--gradient-programs",
        type=int,
        default=60,
        help="how many generated programs tests/ad/test_generated.py differentiates (150 in continuous integration)",
    )
