"""Generated networks whose weights are bfloat16 or int8 numbers: compiled code against the interpreter, on any number of threads.

``--fuzz-programs`` says how many (a twenty-fifth of it), ``--programs-from`` takes others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.pipeline import build
from tests.generator.networks import ROWS, network

# One that is rounded to the other bfloat16 number moves a result by a fraction of its terms.
TOLERANCE = 6e-3


def arrays(value: object) -> list[npt.NDArray[np.float32]]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


def check(seed: int) -> None:
    net = network(seed)
    image = build(net.module, relay.Options(cache=False, workers=1)).image.to_bytes()
    one, two = (relay.Executable.from_bytes(image, threads) for threads in (1, 2))
    random = np.random.default_rng(seed)
    for rows in random.choice(ROWS, 4, replace=False) if net.rows is None else (net.rows,):
        x = random.standard_normal((rows, net.depth)).astype(np.float32)
        found = arrays(one(x))
        for wanted, first, second in zip(arrays(relay.evaluate(net.module, x)), found, arrays(two(x)), strict=True):
            allowed = TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(first, wanted, rtol=0, atol=allowed, err_msg=f"network {seed}, {rows} rows")
            np.testing.assert_array_equal(first, second, err_msg=f"network {seed}, {rows} rows, threads")


def test_networks_of_narrow_weights(request: pytest.FixtureRequest) -> None:
    first = int(request.config.getoption("--programs-from"))
    for seed in range(first, first + max(2, int(request.config.getoption("--fuzz-programs")) // 25)):
        check(seed)
