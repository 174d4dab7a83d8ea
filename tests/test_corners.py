"""Programs at the corners of the language and of its values: every executor gives what the interpreter and NumPy give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.ir.equality import alpha_equal
from tests.generator.compare import difference

Array = npt.NDArray[np.generic]
HEADER = '#[version = "0.0.5"]\n'


def _f32(*values: float) -> Array:
    return np.array(values, np.float32)


@dataclass(frozen=True)
class Corner:
    name: str
    text: str
    args: tuple[object, ...]
    expected: Callable[..., object]  # of the arguments, by NumPy


CORNERS = [
    Corner(
        "a size of nothing broadcasts with one",
        "def @main(%x: Tensor[(?,), float32], %y: Tensor[(?,), float32]) { (%x + %y, %y * %x, maximum(%x, %x)) }",
        (_f32(), _f32(3)),
        lambda x, y: (x + y, y * x, x),
    ),
    Corner(
        "unknown sizes broadcast either way",
        "def @main(%x: Tensor[(?, ?), float32], %y: Tensor[(?, ?), float32]) { exp(%x + %y) * %y - %x }",
        (np.ones((3, 1), np.float32), np.full((1, 4), 2, np.float32)),
        lambda x, y: np.exp(x + y) * y - x,
    ),
    Corner(
        "references to references, aliased",
        """def @main(%x: Tensor[(3,), float32]) {
          let %a = ref(%x);
          let %b = ref(%a);
          let %old = !(!%b);
          (!%b) := !%a + 1f;
          let %c = %a;
          %c := !%c * 2f;
          %b := ref(%old);
          (%old, !%a, !(!%b), !%c)
        }""",
        (_f32(1, -2, 3),),
        lambda x: (x, (x + 1) * 2, x, (x + 1) * 2),
    ),
    Corner(
        "names in any script",
        """type Größe { Länge(float32), 和(Größe, Größe) }
        def @größe(%t: Größe) -> float32 { match (%t) { Länge(%λ) => %λ, 和(%甲, %乙) => @größe(%甲) + @größe(%乙) } }
        def @main[ñ: Dim](%日本: Tensor[(ñ,), float32]) { %日本 * @größe(和(Länge(2f), Länge(3f))) }""",
        (_f32(1, 2),),
        lambda x: x * 5,
    ),
]


@pytest.mark.parametrize("corner", CORNERS, ids=lambda c: c.name)
def test_corners(corner: Corner, tmp_path: Path) -> None:
    module = relay.parse(HEADER + corner.text)
    assert alpha_equal(relay.parse(module.text()), module)
    expected = corner.expected(*corner.args)
    assert difference(expected, _arrays(relay.evaluate(module, *corner.args))) is None
    ways: list[dict[str, Any]] = [{"opt_level": 0}, {}, {"threads": 1}, {"executor": "aot"}]
    for options in ways:
        exe = relay.compile(module, **options)
        assert difference(expected, _arrays(exe(*corner.args))) is None, options
        exe.save(tmp_path / "corner.rlx")
        assert difference(expected, _arrays(relay.load(tmp_path / "corner.rlx")(*corner.args))) is None, options


def _arrays(value: object) -> object:
    return tuple(np.asarray(v) for v in value) if isinstance(value, tuple) else np.asarray(value)


def test_attributes_given_by_place_are_an_error_that_says_their_names() -> None:
    with pytest.raises(relay.RelayError, match=r"attributes are given by name: start=, stop=, step=, dtype="):
        relay.parse(HEADER + "def @main() { arange(0, 8, 1) }")
