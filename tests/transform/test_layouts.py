"""Tensors laid out otherwise: the same values, conversions only where they are needed, and only where it takes less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, OpRef
from relay.ir.module import Module
from relay.transform import Layouts, Pipeline, parse_passes
from relay.transform.blocks import all_bindings, body_of
from relay.typing import verify_types

HEAD = '#[version = "0.0.5"]\n'
SEPARABLE = """def @main(%x: Tensor[(1, 64, 14, 14), float32], %a: Tensor[(640, 64, 1, 1), float32], %b: Tensor[(640, 1, 3, 3), float32],
    %s: Tensor[(640, 1, 1), float32], %c: Tensor[(32, 640, 1, 1), float32]) {
  let %y = nn.relu(nn.conv2d(%x, %a));
  let %z = nn.relu(nn.conv2d(%y, %b, padding=[1, 1], strides=[2, 2], groups=640) + %s);
  nn.conv2d(%z, %c) }"""
SEVERAL = """def @main(%x: Tensor[(2, 32, 7, 7), float32], %b: Tensor[(32, 1, 3, 3), float32], %f: Tensor[(32, 8, 3, 3), float32]) {
  let %y = nn.conv2d(%x, %b, padding=[1, 1], groups=32);
  let %z = nn.max_pool2d(%y, pool_size=[3, 3], strides=[2, 2], padding=[1, 1]);
  let %g = nn.conv2d(%y, %f, padding=[1, 1], groups=4);
  let %m = mean(%y, axis=[1], keepdims=True);
  let %r = if (sum(%m) > 0f) { transpose(%y, axes=[0, 2, 3, 1]) } else { transpose(%y + %g, axes=[0, 2, 3, 1]) };
  (%z, nn.softmax(%g, axis=1), %m * %y, %r) }"""


def shapes(module: Module) -> list[Any]:
    """The shapes of the parameters of @main."""
    types: list[Any] = [p.ty for p in module.functions["main"].params]
    return [t.shape for t in types]


def names(module: Module) -> list[str]:
    """The operators of @main, in order."""
    calls = [b.value for b in all_bindings(body_of(module.functions["main"]))]
    return [c.fn.name for c in calls if isinstance(c, Call) and isinstance(c.fn, OpRef)]


def evaluated(module: Module) -> list[Any]:
    rng = np.random.default_rng(0)
    # Whole numbers: sums are the same in every order.
    given = [rng.integers(-3, 4, s).astype("float32") for s in shapes(module)]
    found: Any = relay.evaluate(module, *given)
    return [np.asarray(f) for f in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("text", [SEPARABLE, SEVERAL])
@pytest.mark.parametrize("layout", ["ACDB", "ABCD8b", "ABCD16b", "BCDA", "ACD4b2bB", "DCBA"])
def test_any_layout_computes_the_same(text: str, layout: str) -> None:
    module = relay.parse(HEAD + text)
    after = Pipeline(parse_passes(f"name_dims,layouts{{layout={layout},always=true}}"))(module)
    assert any(n.endswith(".laid_out") for n in names(after))
    assert relay.parse(after.text()).text() == after.text()
    for a, b in zip(evaluated(module), evaluated(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_compiled() -> None:
    module = Pipeline(parse_passes("name_dims,layouts{always=true}"))(relay.parse(HEAD + SEVERAL))
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(s).astype("float32") for s in shapes(module)]
    found: Any = relay.compile(module)(*given)
    wanted: Any = relay.evaluate(module, *given)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


def test_conversions_stand_at_the_ends() -> None:
    """Products read and write either layout: a strided convolution of each channel between two of them needs none."""
    after = Pipeline(parse_passes("name_dims,layouts"))(relay.parse(HEAD + SEPARABLE))
    found = names(after)
    assert found[:2] == ["nn.conv2d.laid_out", "nn.relu.laid_out"] and "nn.conv2d" not in found
    # Of the weights of each channel.
    assert found.count("layout_transform") == 1


def layouts_of(module: Module) -> set[str]:
    """The layouts that calls of @main have their results in."""
    calls = [b.value for b in all_bindings(body_of(module.functions["main"]))]
    given: list[Any] = [c.attrs["layouts"] for c in calls if isinstance(c, Call) and "layouts" in c.attrs]
    return {texts[-1] for texts in given if texts[-1]}


@pytest.mark.parametrize("text", [SEPARABLE, SEVERAL])
@pytest.mark.parametrize("fast", ["ACDB", "ABCD8b", "ABCD16b", ""])
def test_what_is_measured_decides(text: str, fast: str) -> None:
    """Every region is measured alone, as it is and in each layout, and computes the same either way."""
    tried: set[str] = set()

    def measure(modules: Sequence[Module]) -> list[float]:
        plain, laid = modules
        for a, b in zip(evaluated(plain), evaluated(laid), strict=True):
            np.testing.assert_array_equal(a, b)
        (layout,) = layouts_of(laid)
        assert not layouts_of(plain)
        tried.add(layout)
        return [1.0, 0.5 if layout == fast else 0.97]  # less by so little is chance

    module = Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + text))
    after = Layouts(measure=measure)(module)
    verify_types(after)
    assert {"ACDB", "ABCD8b", "ABCD16b", "ABCD32b"} == tried
    assert layouts_of(after) == ({fast} if fast else set())
    assert (after is module) == (not fast)
    for a, b in zip(evaluated(module), evaluated(after), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "text",
    [
        # Long lines, nothing strided.
        """def @main(%x: Tensor[(1, 64, 28, 28), float32], %w: Tensor[(64, 64, 3, 3), float32]) { nn.relu(nn.conv2d(%x, %w)) }""",
        # So many images that to move them takes longer than what is gained.
        """def @main(%x: Tensor[(16, 64, 28, 28), float32]) { nn.avg_pool2d(%x, pool_size=[3, 3], strides=[1, 1]) }""",
        # Products of which several lines are summed at once, lines that meet in few sets of the cache with channels innermost.
        """def @main(%x: Tensor[(1, 64, 28, 28), float32], %w: Tensor[(64, 1, 3, 3), float32]) { nn.conv2d(%x, %w, groups=64) }""",
        """def @main(%x: Tensor[(1, 512, 14, 14), float32], %w: Tensor[(512, 1, 5, 5), float32]) {
             nn.conv2d(%x, %w, padding=[2, 2], groups=512) }""",
        # Sizes that are not known but how many images there are, tensors of another rank.
        """def @main[n: Dim](%x: Tensor[(4, n, 7, 7), float32]) { nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]) }""",
        """def @main[n: Dim](%x: Tensor[(4, 64, n, 7), float32]) { nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]) }""",
        "def @main(%x: Tensor[(8, 64), float32], %w: Tensor[(64, 64), float32]) { nn.dense(%x, %w) }",
    ],
)
def test_what_stays(text: str) -> None:
    module = Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + text))
    assert Layouts()(module) is module


@pytest.mark.parametrize("layout", ["ACDB", "ABCD8b"])
def test_how_many_images_there_are_need_not_be_known(layout: str) -> None:
    """A batch of unknown size took twenty times as long as a known one, whose channels lie innermost."""
    text = """def @main[n: Dim](%x: Tensor[(n, 64, 7, 7), float32], %b: Tensor[(64, 1, 3, 3), float32]) {
      let %y = nn.conv2d(%x, %b, padding=[1, 1], groups=64);
      nn.max_pool2d(nn.relu(%y), pool_size=[3, 3], strides=[2, 2], padding=[1, 1]) }"""
    module = Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + text))
    after = Layouts(layout, always=True)(module)
    verify_types(after)
    assert layouts_of(after) == {layout}
    assert not layouts_of(Layouts("BACD", always=True)(module)), "images do not stay outermost"
    rng, exe = np.random.default_rng(2), relay.compile(after)
    for n in (0, 1, 3):
        given = [rng.integers(-3, 4, s).astype("float32") for s in ((n, 64, 7, 7), (64, 1, 3, 3))]
        wanted: Any = relay.evaluate(module, *given)
        np.testing.assert_array_equal(np.asarray(exe(*given)), np.asarray(wanted))


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_windows_beside_each_other_stay_and_those_that_skip_elements_of_short_lines_move(kind: str) -> None:
    """Of the first several lines are made at once from what is read once."""
    for side, stride, found in ((28, 1, set()), (7, 2, {"ACDB"})):
        text = f"""def @main(%x: Tensor[(1, 512, {side}, {side}), float32]) {{
          nn.{kind}_pool2d(%x, pool_size=[3, 3], strides=[{stride}, {stride}], padding=[1, 1]) }}"""
        assert layouts_of(Layouts()(Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + text)))) == found


def test_without_mask_registers_windows_by_themselves_stay_and_those_between_products_move() -> None:
    """To move what is read and what is made takes longer there than the sums along lines."""
    pools = [
        f"def @main(%x: Tensor[(1, 512, 7, 7), float32]) {{ nn.{kind}_pool2d(%x, pool_size=[5, 5], padding=[2, 2]) }}"
        for kind in ("avg", "max")
    ]
    for text in pools:
        module = Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + text))
        assert layouts_of(Layouts()(module)) == {"ACDB"} and Layouts(mask_registers=False)(module) is module
    module = Pipeline(parse_passes("name_dims"))(relay.parse(HEAD + SEPARABLE))
    assert layouts_of(Layouts(mask_registers=False)(module)) == {"ACDB"}


def test_a_layout_that_is_none() -> None:
    with pytest.raises(relay.RelayError, match="axis twice"):
        Layouts("ACCB")(relay.parse(HEAD + SEPARABLE))


def test_the_derived_operator_checks_its_layouts() -> None:
    call = "nn.relu.laid_out(%x, layouts={})"
    for layouts, says in (
        ('["ACDB"]', "too few"),
        ('["ACDB", "AB"]', "no layout"),
        ('["ABD", ""]', "none of a tensor"),
    ):
        with pytest.raises(relay.RelayError, match=says):
            relay.parse(f"{HEAD}def @main(%x: Tensor[(1, 8, 4, 4), float32]) {{ {call.format(layouts)} }}")


def test_gradients_of_the_derived_operator() -> None:
    text = """def @main(%x: Tensor[(2, 5, 5, 8), float32], %w: Tensor[(4, 8, 3, 3), float32]) {
      sum(nn.conv2d.laid_out(%x, %w, layouts=["ACDB", "", "ACDB"])) }"""
    plain = (
        """def @main(%x: Tensor[(2, 8, 5, 5), float32], %w: Tensor[(4, 8, 3, 3), float32]) { sum(nn.conv2d(%x, %w)) }"""
    )
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 8, 5, 5)).astype("float32"), rng.standard_normal((4, 8, 3, 3)).astype("float32")
    got: Any = relay.evaluate(relay.grad(relay.parse(HEAD + text), argnums=(0, 1)), x.transpose(0, 2, 3, 1), w)
    wanted: Any = relay.evaluate(relay.grad(relay.parse(HEAD + plain), argnums=(0, 1)), x, w)
    (dx, dw), (ex, ew) = map(np.asarray, got), map(np.asarray, wanted)
    np.testing.assert_allclose(dx, ex.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw, ew, rtol=1e-5, atol=1e-5)
