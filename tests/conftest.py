"""Options of the test run."""

from __future__ import annotations

import math
import signal

import hypothesis
import pytest

from relay.codegen import workers

# How long an example takes says nothing on a machine that does other things too.
hypothesis.settings.register_profile("relay", deadline=None)
hypothesis.settings.load_profile("relay")


def pytest_configure(config: pytest.Config) -> None:
    """What a shell starts in the background ignores interrupts, and so would the processes that tests start and interrupt."""
    config.addinivalue_line(
        "markers", "programs(count): run for the seeds of so many programs, and more with --fuzz-programs"
    )
    if hasattr(config, "workerinput"):
        # Processes that share the tests take all cores: one that helped another to compile would only have to be started.
        workers._WORTH_HELPER = math.inf
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Seeds from `--programs-from` on: as many as the mark says up to 1000 programs of `--fuzz-programs`, and so many for each 1000."""
    for mark in metafunc.definition.iter_markers("programs"):
        first, programs = (int(metafunc.config.getoption(name)) for name in ("--programs-from", "--fuzz-programs"))
        count = max(mark.args[0], mark.args[0] * programs // 1000)
        metafunc.parametrize("seed", range(first, first + count))


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
        help="another number gives other generated programs than those of continuous integration, to all tests of such",
    )
    parser.addoption(
        "--gradient-examples",
        type=int,
        default=6,
        help="how many operands tests/op/test_gradients.py and test_gradients_torch.py draw for each operator",
    )
    parser.addoption(
        "--gradient-programs",
        type=int,
        default=60,
        help="how many generated programs tests/ad/test_generated.py differentiates (150 in continuous integration)",
    )
