"""The loops that measure a machine do what they say, also where nothing divides."""

from __future__ import annotations

import numpy as np
import pytest

from relay.codegen.target import host_target
from relay.view import limits


@pytest.mark.parametrize("threads", [1, 2])
def test_scattered_rows_are_read_from_inside_of_the_table_and_all_written(threads: int) -> None:
    for rows, width, table in ((1, 8, 40), (33, 20, 50), (64, 16, 64)):
        made = np.asarray(limits.scattered(host_target(), threads, rows, width, table)())
        assert made.size >= rows * width - width and np.all(made == 1)
