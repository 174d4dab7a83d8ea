"""Attributes that count elements take sizes (`Dim[...]`): interpreted, compiled, differentiated, and what is wrong with one is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.dim import DimVar, dim_evaluate
from relay.ir.equality import alpha_equal
from relay.ir.types import FuncType, TensorType
from tests.generator.compare import difference

HEAD = '#[version = "0.0.5"]\n'
# The body of a function of x: (n, 6) and w: (k, 1, 3), and what it gives.
PROGRAMS: dict[str, tuple[str, Any]] = {
    "padded to a multiple of 8": (
        "nn.pad(%x, pad_width=[[0, Dim[(n + 7) // 8 * 8 - n]], [0, 0]])",
        lambda x, k: np.pad(x, ((0, -len(x) % 8), (0, 0))),
    ),
    "causal padding": (
        "nn.pad(%x, 2f, pad_width=[[Dim[k - 1], Dim[1 - k]], [0, 0]])",
        lambda x, k: np.concatenate([np.full((k - 1, 6), 2, "float32"), x])[: len(x)],
    ),
    "mirrored": (
        'nn.pad(%x, pad_width=[[0, 0], [Dim[k - 1], Dim[k - 2]]], pad_mode="reflect")',
        lambda x, k: np.pad(x, ((0, 0), (k - 1, k - 2)), mode="reflect"),
    ),
    "split": (
        "split(%x, indices_or_sections=[Dim[min(n, k)], Dim[n]], axis=0).0",
        lambda x, k: x[:k],
    ),
    "repeated": ("repeat(%x, repeats=Dim[k], axis=1)", lambda x, k: np.repeat(x, k, 1)),
    "tiled": ("tile(%x, reps=[Dim[k], 1])", lambda x, k: np.tile(x, (k, 1))),
    "one of k": (
        "nn.matmul(one_hot(argmax(%x, axis=[1]), 1f, 0f, depth=Dim[k + 6]), ones(shape=[Dim[k + 6], 2]) * sum(%x))",
        lambda x, k: np.full((len(x), 2), x.sum()),
    ),
    "a group for each channel": (
        "nn.conv1d(expand_dims(repeat(%x, repeats=Dim[k], axis=0), axis=0), repeat(%w, repeats=Dim[n], axis=0), groups=Dim[k * n])",
        None,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes(name: str) -> None:
    body, expected = PROGRAMS[name]
    ret = {"a group for each channel": "(1, k * n, 4)", "one of k": "(n, 2)"}.get(name)
    module = relay.parse(
        f"""{HEAD}def @main[n: Dim, k: Dim](%x: Tensor[(n, 6), float32], %w: Tensor[(k, 1, 3), float32])
  {f"-> Tensor[{ret}, float32] " if ret else ""}{{ {body} }}"""
    )
    exe = relay.compile(module)
    slope: Any = relay.grad(module)
    derived = relay.compile(slope)
    for n, k in ((1, 2), (5, 3), (8, 4)):
        x = np.random.default_rng(n).standard_normal((n, 6)).astype("float32")
        w = np.random.default_rng(k).standard_normal((k, 1, 3)).astype("float32")
        found = exe(x, w)
        assert difference(relay.evaluate(module, x, w), found) is None
        if expected is not None:
            np.testing.assert_allclose(np.asarray(found), expected(x, k), rtol=1e-5)
        assert difference(relay.evaluate(slope, x, w), derived(x, w)) is None


@pytest.mark.parametrize("run", ["interpreted", "compiled", "differentiated and interpreted", "differentiated"])
def test_what_is_cut_is_there(run: str) -> None:
    """A size that only a run knows and that is too small, said alike wherever it is met."""
    module: Any = relay.parse(
        f"""{HEAD}def @main[n: Dim, k: Dim](%x: Tensor[(n,), float32], %w: Tensor[(k,), float32]) {{
  sum(nn.pad(%x, pad_width=[[Dim[0 - k], 0]])) + sum(%w)
}}"""
    )
    if "differentiated" in run:
        module = relay.grad(module)
    call = relay.compile(module) if run in ("compiled", "differentiated") else lambda *a: relay.evaluate(module, *a)
    call(np.ones(3, "float32"), np.ones(3, "float32"))
    with pytest.raises(relay.RelayError, match=r"the size of axis 0 after nn\.pad"):
        call(np.ones(3, "float32"), np.ones(4, "float32"))


# Attributes where a number of 0 or less has a meaning of its own, which a size of that value has not: a size is never a code.
OF_NOTHING = {
    "a shape": "reshape(%x, newshape=[1, Dim[n]])",
    "the last size of a shape": "reshape(%x, newshape=[3, Dim[n // 3], 1])",
    "a shape that copies another axis where 0 is a code": "reshape(reshape(%x, newshape=[Dim[n], 1, 1]), newshape=[1, Dim[n], 1])",
    "where a slice begins": "strided_slice(%x, begin=[Dim[n - 3]], end=[Dim[n]])",
    "where a slice ends": "strided_slice(%x, begin=[0], end=[Dim[n - 3]])",
    "where a reversed slice ends": "strided_slice(%x, begin=[Dim[n]], end=[Dim[n - 4]], strides=[-1])",
    "how long a slice is": 'strided_slice(%x, begin=[1], end=[Dim[n - 3]], slice_mode="size")',
    "a shape to broadcast to": "broadcast_to(sum(%x), shape=[Dim[n - 3]])",
    "a number of segments": 'segment_sum(%x, cast(zeros_like(%x), dtype="int32"), num_segments=Dim[n - 3])',
    "where a split is": "split(%x, indices_or_sections=[Dim[n - 3]]).0",
    "how often something is repeated": "repeat(%x, repeats=Dim[n - 3])",
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_sizes_of_nothing_and_less(name: str) -> None:
    """The interpreter, which knows the value, and compiled code, which does not, say the same."""
    module = relay.parse(f"{HEAD}def @main[n: Dim](%x: Tensor[(n,), float32]) {{ {OF_NOTHING[name]} }}")
    exe = relay.compile(module)
    for n in (0, 1, 2, 3, 5):
        x = np.arange(1, n + 1, dtype="float32")
        given: list[object] = []
        for run in (lambda x=x: relay.evaluate(module, x), lambda x=x: exe(x)):
            try:
                given.append(run())
            except relay.RelayError:
                given.append(None)
        assert difference(given[0], given[1]) is None, n


@pytest.mark.parametrize("name", OF_NOTHING)
def test_sizes_of_nothing_and_less_that_become_known(name: str) -> None:
    """A function of any size means the same where it is called with a tensor of a known one."""
    for n in (0, 1, 2, 3, 5):
        module = relay.parse(
            f"""{HEAD}def @f[n: Dim](%x: Tensor[(n,), float32]) {{ {OF_NOTHING[name]} }}
def @main(%x: Tensor[({n},), float32]) {{ @f(%x) }}"""
        )
        x = np.arange(1, n + 1, dtype="float32")
        given: list[object] = []
        for run in (lambda m=module, x=x: relay.evaluate(m, x), lambda m=module, x=x: relay.compile(m)(x)):
            try:
                given.append(run())
            except relay.RelayError:
                given.append(None)
        assert difference(given[0], given[1]) is None, n


FAILING = OF_NOTHING | {"what is cut": "nn.pad(%x, pad_width=[[Dim[-3], 0]])"}


@pytest.mark.parametrize("again", ["0f", "@f(tanh(%x), %k - 1)"])
@pytest.mark.parametrize("name", FAILING)
def test_what_sizes_rule_out_need_not_make_sense(name: str, again: str) -> None:
    """A function that asks for its sizes before it does what fails for others is called with known ones of both kinds."""
    module = relay.parse(
        f"""{HEAD}def @f[n: Dim](%x: Tensor[(n,), float32], %k: int32) -> float32 {{
  if (Dim[n] < 3i64) {{ sum(%x) }} else if (%k < 1) {{ sum({FAILING[name]}) }} else {{ {again} }}
}}
def @main(%x: Tensor[(1,), float32], %y: Tensor[(3,), float32]) {{ (@f(%x, 0), @f(%x, 2), @f(%y, 0), @f(%y, 2)) }}"""
    )
    x, y = np.ones(1, "float32"), np.arange(3, dtype="float32")
    assert difference(relay.evaluate(module, x, y), relay.compile(module)(x, y)) is None


def test_a_size_of_nothing_is_written_as_a_size() -> None:
    module = relay.parse(f"{HEAD}def @main(%x: Tensor[(2, 0), float32]) {{ reshape(%x, newshape=[3, Dim[0]]) }}")
    assert "newshape=[3, Dim[0]]" in module.text()
    assert alpha_equal(relay.parse(module.text()), module)
    assert np.asarray(relay.compile(module)(np.zeros((2, 0), "float32"))).shape == (3, 0)
    copied = relay.parse(f"{HEAD}def @main(%x: Tensor[(2, 0), float32]) {{ reshape(%x, newshape=[0, 0]) }}")
    assert np.asarray(relay.compile(copied)(np.zeros((2, 0), "float32"))).shape == (2, 0)


@pytest.mark.parametrize(
    ("begin", "end", "stride"),
    [
        (0, 2**31 - 1, 1), (1, 2**31, 2), (0, 2**63 - 1, 1), (2**31 - 1, -(2**31), -1), (2**62, -(2**62), -1), (2**31 - 1, 2**31 - 1, 1),
        (-(2**31) - 5, 2**31 + 5, 1), (-1, -(2**63), -1), (2**31 + 2, 2**31 + 7, 1), (2**31 - 7, 2**31 + 1, 1),
    ],
)  # fmt: skip
def test_slices_with_ends_of_more_than_32_bits(begin: int, end: int, stride: int) -> None:
    text = f"""{HEAD}def @main[n: Dim](%x: Tensor[(n,), int8]) {{
  strided_slice(%x, begin=[{begin}], end=[{end}], strides=[{stride}])
}}"""
    module = relay.parse(text)
    exe = relay.compile(module)
    for n in (0, 1, 5):
        x = np.arange(n, dtype="int8")
        np.testing.assert_array_equal(np.asarray(exe(x)), x[begin:end:stride])
        np.testing.assert_array_equal(np.asarray(relay.evaluate(module, x)), x[begin:end:stride])
    # Where there are as many elements: the size of the result, from its type.
    (main,) = relay.infer_type(module).functions.values()
    ty = main.ty
    assert isinstance(ty, FuncType) and isinstance(ty.ret, TensorType) and isinstance(ty.ret.shape, tuple)
    if not {begin, end} & {2**31 - 1, -(2**31)}:
        many = 2**31 + 5
        length = dim_evaluate(ty.ret.shape[0], {v: many for v in main.type_params if isinstance(v, DimVar)})
        assert length == len(range(many)[begin:end:stride])
