"""Programs at the corners of the language and of its values: every executor gives what the interpreter and NumPy give."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import SafetensorError

import relay
from relay.ir import saving
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
        "the greatest and its place in one kernel, where some are nan, equal or of both zeros",
        """def @main[n: Dim](%x: Tensor[(n, 3), float32], %w: Tensor[(3, 3), float32]) {
          let %s = take(%x, 0i64, axis=0);
          let %c = expand_dims(%s, axis=1) + %w;
          (max(%x, axis=[0]), argmax(%x, axis=[0]), argmin(%x, axis=[1]), min(%x, axis=[1]), max(%c, axis=[0]), argmax(%c, axis=[0]))
        }""",
        (
            _f32(0, 1, np.nan, -0.0, 1, np.nan, np.inf, -np.inf, 2).reshape(3, 3),
            _f32(0, -0.0, 1, np.inf, 0, 0, -np.inf, 1, 0).reshape(3, 3),
        ),
        lambda x, w: (
            *(x.max(0), x.argmax(0).astype(np.int32), x.argmin(1).astype(np.int32), x.min(1)),
            *((x[0][:, None] + w).max(0), (x[0][:, None] + w).argmax(0).astype(np.int32)),
        ),
    ),
    Corner(
        "values of int64, which no kernel may take for an index of known range",
        """def @main[n: Dim](%x: Tensor[(n, 3), int64], %w: Tensor[(4, 3), int64], %s: Tensor[(1,), int64]) {
          let %y = nn.dense(%x, %w);
          let %z = %x * 2i64 - %s;
          let %top = max(%x, axis=[1], keepdims=True);
          (less(%y, %s), less(%s, nn.dense(%x, %w) + 1i64), %z, less(%z, 0i64), less(%x, %top), equal(sum(%x, axis=[0]), 0i64),
            where(less(cumsum(%x, axis=0), 0i64), %x, %z))
        }""",
        (
            np.array([[3, -4, 1], [0, 0, 0], [-7, 2, 5]]),
            np.array([[1, -2, 3], [0, 1, 0], [-1, -1, -1], [2, 0, 5]]),
            np.array([-2]),
        ),
        lambda x, w, s: (
            x @ w.T < s,
            s < x @ w.T + 1,
            2 * x - s,
            2 * x - s < 0,
            x < x.max(1, keepdims=True),
            x.sum(0) == 0,
            np.where(np.cumsum(x, 0) < 0, x, 2 * x - s),
        ),
    ),
    Corner(
        "sizes as values, in arithmetic, as a bound and as an index",
        """import prelude
        def @rows[n: Dim, d: Dim](%x: Tensor[(n, d), float32]) -> Tensor[(d,), float32] {
          @for(0i64, Dim[n], fn (%i: int64, %s: Tensor[(d,), float32]) -> Tensor[(d,), float32] { %s + take(%x, %i, axis=0) },
            zeros(shape=[Dim[d]])) / cast(Dim[max(n, 1)], dtype="float32")
        }
        def @main[n: Dim](%x: Tensor[(n, 3), float32]) {
          let %last = Dim[n] - 1i64;
          (@rows(%x), @rows(concatenate((%x, %x), axis=1)), if (Dim[2*n] < 5i64) { Dim[n // 2] } else { %last },
            take(%x, %last, axis=0))
        }""",
        (np.arange(12, dtype=np.float32).reshape(4, 3),),
        lambda x: (x.mean(0), np.tile(x.mean(0), 2), np.array(3), x[-1]),
    ),
    Corner(
        "as many of the greatest as another size says",
        """def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]) {
          (topk(%x, k=Dim[m]).0, topk(%x, k=Dim[n // 2]).1, topk(%x, k=Dim[max(m - n, 0)]).0)
        }""",
        (_f32(3, 1, 4, 1, 5), _f32(0, 0, 0)),
        lambda x, y: (_f32(5, 4, 3), np.array([4, 2], np.int32), _f32()),
    ),
    Corner(
        "one element of an axis that nobody knows broadcasts",
        """def @main[n: Dim](%x: Tensor[(n,), float32]) {
          let %p = split(%x, indices_or_sections=[1]);
          (less(%x, %p.0), take(%x, const([2, 0], (2,), int64), axis=0) - %p.0)
        }""",
        (_f32(-1, -2, 3, 0),),
        lambda x: (x < x[:1], x[[2, 0]] - x[:1]),
    ),
    Corner(
        "bounds that no float is",
        """def @main(%x: Tensor[(3,), int64]) {
          (clip(%x, a_min=-9007199254740993, a_max=9007199254740993), clip(%x, a_min=-inf, a_max=9223372036854775807),
            sequence_mask(reshape(%x, newshape=[3, 1]), const([1], (1,), int64), mask_value=9007199254740993))
        }""",
        (np.array([2**62 + 1, 5, -(2**62) - 1]),),
        lambda x: (
            np.array([2**53 + 1, 5, -(2**53) - 1]),
            x,
            np.array([[2**62 + 1], [2**53 + 1], [2**53 + 1]]),
        ),
    ),
    Corner(
        "where one number is not zero",
        "def @main(%x: float32) { (argwhere(%x), argwhere(%x - %x), nonzero(%x - %x)) }",
        (np.array(2, np.float32),),
        lambda x: (np.zeros((1, 0), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)),
    ),
    Corner(
        "attention with heads of no size weighs all values alike",
        """def @main[m: Dim, n: Dim, d: Dim](%q: Tensor[(m, d), float32], %k: Tensor[(n, d), float32], %v: Tensor[(n, 2), float32]) {
          nn.attention(%q, %k, %v)
        }""",
        (np.zeros((2, 0), np.float32), np.zeros((3, 0), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)),
        lambda q, k, v: np.tile(v.mean(0), (2, 1)),
    ),
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
    Corner(
        "slices that begin before the first element, put together",
        """def @main(%x: Tensor[(4,), float32]) {
          concatenate((strided_slice(%x, begin=[-10], end=[2]), strided_slice(%x, begin=[-8], end=[2])), axis=0)
        }""",
        (_f32(1, 2, 3, 4),),
        lambda x: _f32(1, 2, 1, 2),
    ),
    Corner(
        "nothing is mirrored along an axis without elements, which gets no border",
        """def @main[n: Dim](%x: Tensor[(3, n), float32]) {
          (nn.pad(%x, pad_width=[[1, 2], [0, 0]], pad_mode="reflect"), nn.pad(%x, pad_width=[[1, 0], [0, 0]], pad_mode="edge"))
        }""",
        (np.zeros((3, 0), np.float32),),
        lambda x: (np.zeros((6, 0), np.float32), np.zeros((4, 0), np.float32)),
    ),
    Corner(
        "sums of nothing for a row that is short",
        """def @main(%x: Tensor[(15, 0), float64]) {
          let %y = tanh(nn.dense(%x, %x));
          let %r = reverse(tanh(strided_slice(%y, begin=[0], end=[1], axes=[0])), axis=0);
          (nn.dense(%r, %y), reshape(%r, newshape=[15]))
        }""",
        (np.zeros((15, 0)),),
        lambda x: (np.zeros((1, 15)), np.zeros(15)),
    ),
    Corner(
        "what is put side by side twice fills the last row of a temporary to its end",
        """def @main(%x: Tensor[(2, 5, 100), float32]) {
          let %y = concatenate((%x, tanh(%x)), axis=-1);
          concatenate((%y, tanh(%y)), axis=-1)
        }""",
        (np.linspace(-2, 2, 1000, dtype=np.float32).reshape(2, 5, 100),),
        lambda x: np.concatenate([x, np.tanh(x), np.tanh(x), np.tanh(np.tanh(x))], -1),
    ),
    Corner(
        "one number whose value only the run knows is no constant",
        """def @step[p: Dim](%old: Tensor[(p,), float32]) -> Tensor[(1,), int32] {
          arange(start=Dim[p], stop=Dim[p + 1], dtype="int32")
        }
        def @main[n: Dim](%x: Tensor[(n,), float32]) -> Tensor[(2,), int32] {
          concatenate((@step(%x), @step(concatenate((%x, %x), axis=0))), axis=0)
        }""",
        (_f32(1, 2, 3),),
        lambda x: np.array([len(x), 2 * len(x)], np.int32),
    ),
    Corner(
        "powers of half precision, by two lanes of which one is a half",
        "def @main[n: Dim](%x: Tensor[(n, 3), float16], %w: Tensor[(3,), float16]) { power(%x, %w) }",
        (np.arange(1, 13, dtype=np.float16).reshape(4, 3) / 4, np.array([2.0, -1.0, 0.5], np.float16)),
        lambda x, w: np.power(x, w),
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


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("sum(zeros(shape=[4294967296, 4294967296]))", "no memory has room for sizes of 4294967296, 4294967296"),
        ("ones(shape=[0, 9223372036854775807])", "no memory has room for sizes of 0, 9223372036854775807"),
        ("repeat(ones(shape=[3]), repeats=9223372036854775807)", "no memory has room for sizes of 27670116110564327421"),
        ("nn.pad(ones(shape=[3]), pad_width=[[-5, 1]])", "the size of axis 0 after nn.pad: 0 is more than -1"),
        ("full(1f, shape=[2, -3])", "the size of axis 1 of full: 0 is more than -3"),
        ("let %x: Tensor[(4294967296, 4294967296), float32] = zeros(shape=[2]); 1", "no memory has room for a Tensor"),
        (f"let %x: Tensor[({'1, ' * 33}), float32] = zeros(shape=[2]); 1", "a tensor has 32 axes at the most, not 33"),
        (f"zeros(shape=[{'1, ' * 32}1])", "a tensor has 32 axes at the most, not 33"),
        ("expand_dims(ones(shape=[3]), axis=0, num_newaxis=1000000007)", "32 axes at the most, not 1000000008"),
        ("split(zeros(shape=[0]), indices_or_sections=1000000007)", "split makes at most 65536 sections"),
    ],
)  # fmt: skip
def test_sizes_that_no_tensor_has_are_errors_of_the_program(made: str, message: str) -> None:
    with pytest.raises(relay.RelayError, match=message):
        relay.parse(HEADER + f"def @main() {{ {made} }}")


def test_sizes_that_no_tensor_has_are_errors_when_they_are_known_at_run_time_only() -> None:
    cut = relay.parse(HEADER + "def @main[n: Dim](%x: Tensor[(n,), float32]) { sum(nn.pad(%x, pad_width=[[-5, 1]])) }")
    large = relay.parse(HEADER + 'def @main(%n: Tensor[(2,), int64]) { sum(dyn.full(1f, %n, dtype="float32")) }')
    for module, argument in ((cut, np.ones(3, np.float32)), (large, np.array([1 << 32, 1 << 32]))):
        for run in (
            relay.compile(module),
            relay.compile(module, opt_level=0),
            lambda x, m=module: relay.evaluate(m, x),
        ):
            with pytest.raises(relay.RelayError):
                run(argument)
    with pytest.raises(MemoryError):
        relay.evaluate(large, np.array([1 << 30, 1 << 28]))


def test_a_size_divided_by_zero_is_an_error() -> None:
    text = (
        "def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]) { zeros(shape=[Dim[n // m]]) }"
    )
    module = relay.parse(HEADER + text)
    for run in (relay.compile(module), lambda *x: relay.evaluate(module, *x)):
        with pytest.raises(relay.RelayError, match=r"by zero[^$]*<text>:2|<text>:2[^$]*by zero"):
            run(np.ones(3, np.float32), np.ones(0, np.float32))


def test_a_size_that_int64_does_not_hold_is_an_error_as_a_value() -> None:
    module = relay.parse(HEADER + "def @main[n: Dim](%x: Tensor[(n,), int8]) { Dim[n*n*n*n*n*n] }")
    for run in (relay.compile(module), relay.compile(module, executor="aot"), lambda x: relay.evaluate(module, x)):
        assert int(np.asarray(run(np.zeros(1000, np.int8)))) == 10**18
        with pytest.raises(relay.RelayError, match="a size is more than int64 holds"):
            run(np.zeros(5000, np.int8))


@pytest.mark.parametrize("number", [2**63, -(2**70), 10**400])
def test_integers_that_no_integer_type_holds_are_floating_point_numbers_where_those_do(number: int) -> None:
    for dtype, fits in (("float32", abs(number) < 2**127), ("float64", abs(number) < 2**1000), ("int64", False)):
        module = relay.parse(HEADER + f"def @main(%x: {dtype}) {{ %x }}")
        for run in (relay.compile(module), lambda x, m=module: relay.evaluate(m, x)):
            if fits:
                assert float(np.asarray(run(number))) == float(np.asarray(number, dtype))
            else:
                with pytest.raises(relay.RelayError):
                    run(number)


def test_attributes_given_by_place_are_an_error_that_says_their_names() -> None:
    with pytest.raises(relay.RelayError, match=r"attributes are given by name: start=, stop=, step=, dtype="):
        relay.parse(HEADER + "def @main() { arange(0, 8, 1) }")
    with pytest.raises(relay.RelayError, match=r"dyn\.arange takes operands, for what only a run knows"):
        relay.parse(HEADER + "def @main(%n: int64) { arange(%n) }")


@pytest.mark.parametrize(
    ("requests", "says"), [(None, "the requests to @main"), ([None], "request 0 to @main"), ("ab", "list")]
)
def test_requests_that_are_no_argument_lists(requests: Any, says: str) -> None:
    with pytest.raises(relay.RelayError, match=says):
        relay.compile(HEADER + "def @main(%x: float32) { %x }").run_batch("main", requests)


@pytest.mark.parametrize("bounds", ["start=0f, stop=nan", "start=-inf, stop=3f", "start=0f, stop=3f, step=inf"])
def test_a_range_without_bounds_is_an_error(bounds: str) -> None:
    with pytest.raises(relay.RelayError, match="of arange are finite"):
        relay.parse(HEADER + f"def @main() {{ arange({bounds}) }}")


def test_none_binds_nothing() -> None:
    module = relay.parse(HEADER + "def @main(%x: float32) { %x }")
    with pytest.raises(relay.RelayError, match="'x' of @main must be an array or a number, not None"):
        module.bind({"x": None})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("target", 3), ("threads", "2"), ("threads", 0), ("threads", True), ("workers", 0), ("memory_budget", "1G"), ("entries", ()),
        ("limits", 3), ("machine", 1), ("hot_sizes", "n"), ("hot_sizes", [{"n": -3}]), ("hot_sizes", [{"n": "3"}]),
        ("entries", "main"), ("check_memory", "yes"), ("specialise_hot", "no"), ("tune", 1), ("cache", "x"), ("cache_dir", 5),
        ("hot_sizes", 5), ("opt_level", True), ("opt_level", 2.5),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_errors_that_name_them(option: str, value: object) -> None:
    with pytest.raises(relay.RelayError, match=option):
        keywords: dict[str, Any] = {option: value}
        relay.compile(HEADER + "def @main[n: Dim](%x: Tensor[(n,), float32]) { %x }", **keywords)


@pytest.mark.parametrize(
    "use",
    [
        relay.parse, relay.infer_type, relay.evaluate, relay.grad, relay.jvp, relay.compile,
        lambda wrong: relay.var("x", shape=wrong), lambda wrong: relay.var("x", shape=(-2,)), lambda wrong: relay.var("x", shape="ab"),
        lambda wrong: relay.var("x", shape=(), dtype="float"), lambda wrong: relay.var("x", shape=(True,)),
    ],
)  # fmt: skip
def test_what_is_no_program_or_type_is_an_error(use: Callable[[Any], object]) -> None:
    with pytest.raises(relay.RelayError):
        use(3)


def test_variables_take_numpy_dtypes() -> None:
    x = relay.var("x", shape=(2,), dtype=np.float64)
    exe = relay.compile(relay.Function([x], relay.op.exp(x)))
    np.testing.assert_allclose(np.asarray(exe(np.zeros(2))), [1, 1])


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    exe = relay.compile(HEADER + "def @main(%x: float32) { %x + 1f }")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        exe.save(tmp_path / "pipe")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real.rlx")
    exe.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and float(relay.load(tmp_path / "folder" / "real.rlx")(1.0)) == 2.0
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["real.rlx"]


def test_a_disk_that_is_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = relay.parse(HEADER + "def @main(%w: Tensor[(64, 64), float32]) { %w }").bind(
        {"w": np.ones((64, 64), np.float32)}
    )

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(relay.RelayError, match=r"cannot write .*No space left on device"):
        module.save(tmp_path / "m.relay")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("def @main[n: Dim](%x: Tensor[(n + 2,), float32]) { Dim[n] }", (np.ones(1, np.float32),)),
        ("def @main[n: Dim](%x: Tensor[(2*n + 3, 2), float32]) { (Dim[n], sum(%x)) }", (np.ones((1, 2), np.float32),)),
        (
            "def @f[n: Dim](%x: Tensor[(n + 2,), float32]) -> int64 { Dim[n] }\n"
            "def @main[m: Dim](%x: Tensor[(m,), float32]) { @f(%x) }",
            (np.ones(1, np.float32),),
        ),
        (
            "def @f[n: Dim](%x: Tensor[(n + 2,), float32]) -> int64 { Dim[n] }\n"
            "def @main(%x: Tensor[(3,), float32]) { @f(take(%x, squeeze(argwhere(%x > 0f), axis=[1]), axis=0)) }",
            (_f32(1, -1, -1),),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("level", [0, 3])
def test_a_size_that_an_axis_is_computed_from_is_not_negative(text: str, args: tuple[object, ...], level: int) -> None:
    """Compiled code took ``n`` of an axis of ``n + 2`` for -1."""
    module = relay.parse(HEADER + text)
    with pytest.raises(relay.RelayError):
        relay.evaluate(module, *args)
    exe = relay.compile(module, opt_level=level, cache=False)
    with pytest.raises(relay.RelayError, match=r"at least 0"):
        exe(*args)
    two = np.ones((3, 2) if "2*n" in text else 2 if "(3,)" not in text else 3, np.float32)
    assert int(np.asarray(exe(two)[0] if "2*n" in text else exe(two))) == int(
        np.asarray(relay.evaluate(module, two)[0] if "2*n" in text else relay.evaluate(module, two))  # type: ignore[index]
    )


def test_what_is_greatest_among_numbers_of_four_bits() -> None:
    """The least of them came as a scalar where an array was expected: neither the interpreter nor the compiler knew what to do."""
    module = relay.parse(
        HEADER + "def @main(%c: Tensor[(2, 3), bool], %x: Tensor[(2, 3), int8]) {\n"
        '  cast(max(where(%c, cast(%x, dtype="int4"), cast(-8, dtype="int4")), axis=[1]), dtype="int8") }'
    )
    given = np.array([[True, False, True], [False, False, False]]), np.array([[-3, 7, 2], [1, 2, 3]], np.int8)
    for found in (relay.evaluate(module, *given), relay.compile(module, cache=False)(*given)):
        assert np.asarray(found).tolist() == [2, -8]


@pytest.mark.parametrize(
    ("shape", "newshape", "expected"),
    [
        ("n, 17", "n, -1", lambda n: (n, 17)),
        ("17, n", "-1, n", lambda n: (17, n)),
        ("n, 3, 17", "n, -1, 17", lambda n: (n, 3, 17)),
        ("3*n", "n, -1", lambda n: (n, 3)),
        ("2*n, 5", "-1, 2*n", lambda n: (5, 2 * n)),
    ],
)
def test_what_is_left_of_no_elements(shape: str, newshape: str, expected: Callable[[int], tuple[int, ...]]) -> None:
    """The quotient that -1 stands for is that of the type, where sizes of zero do not tell it."""
    module = relay.parse(
        HEADER + f"def @main[n: Dim](%x: Tensor[({shape},), float32]) {{ reshape(%x, newshape=[{newshape}]) }}"
    )
    exe = relay.compile(module, cache=False)
    for n in (0, 1, 4):
        given = np.ones(expected(n), np.float32).reshape([eval(d, {"n": n}) for d in shape.split(",")])
        for found in (relay.evaluate(module, given), exe(given)):
            assert np.asarray(found).shape == expected(n)
