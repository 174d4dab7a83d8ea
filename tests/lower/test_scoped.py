"""Maps whose entries go with their scope."""

from __future__ import annotations

import random
from collections import ChainMap

from relay.lower.scoped import Scoped


def test_as_a_chain_of_maps() -> None:
    random.seed(0)
    found: Scoped[int, int] = Scoped()
    expected: ChainMap[int, int] = ChainMap()
    for _ in range(2000):
        key, value = random.randrange(20), random.randrange(100)
        match random.randrange(5):
            case 0:
                found.enter()
                expected = expected.new_child()
            case 1 if len(expected.maps) > 1:
                found.leave()
                expected = expected.parents
            case 2 if key not in expected:
                found.keep(key, value)
                expected.maps[-1][key] = value
            case _:
                found[key] = value
                expected[key] = value
        assert dict(found) == dict(expected)
