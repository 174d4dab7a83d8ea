"""Layouts: expressions with the axes of their tensors split and in another order compute the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from relay import te
from relay.ir.dim import DimVar, as_dim
from relay.op import registry
from relay.te.evaluate import evaluate
from relay.te.layout import Layout, Part, inherited, laid_out, layout_of, plain, split_at
from relay.te.numeric import Array
from relay.te.scalar import Load, Reduce, walk
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_bodies


def moved(array: Array, layout: Layout) -> Array:
    """An array as it lies in memory in a layout, by NumPy alone."""
    blocks: dict[int, list[int]] = {}
    for part in layout.parts:
        if part.size is not None:
            assert isinstance(part.size, int)
            blocks.setdefault(part.axis, []).append(part.size)
    shape: list[int] = []
    first: dict[int, int] = {}
    for axis, size in enumerate(array.shape):
        first[axis] = len(shape)
        shape += [size // int(np.prod(blocks.get(axis, [1]))), *blocks.get(axis, [])]
    order: list[int] = []
    seen: dict[int, int] = {}
    for part in layout.parts:
        if part.size is None:
            order.append(first[part.axis])
        else:
            seen[part.axis] = seen.get(part.axis, 0) + 1
            order.append(first[part.axis] + seen[part.axis])
    return np.ascontiguousarray(array.reshape(shape).transpose(order))


def drawn(rng: random.Random, shape: tuple[int, ...], whole: frozenset[int] = frozenset()) -> Layout:
    """Some layout of a shape: divisors as blocks, any order; the axes in ``whole`` are not split."""
    parts = [Part(n) for n in range(len(shape))]
    for axis, size in enumerate(shape):
        left = size
        for _ in range(rng.randrange(3) if axis not in whole else 0):
            size_ = rng.choice([d for d in range(1, left + 1) if left % d == 0] or [1])
            parts.append(Part(axis, size_))
            left //= size_
    rng.shuffle(parts)
    return Layout(tuple(parts))


def test_texts() -> None:
    layout = layout_of("NCHW16c", "NCHW")
    assert layout.text() == "NCHW16c" and layout.rank == 4 and not layout.is_plain
    assert layout.shape((2, 48, 7, 9)) == (2, 3, 7, 9, 16) and layout.whole((2, 3, 7, 9, 16)) == (2, 48, 7, 9)
    assert layout_of("ACDB", "ABCD").text() == "ACDB" and layout_of("ABC", "ABC").is_plain
    assert layout.divides((1, 32, 3, 3)) and not layout.divides((1, 24, 3, 3))
    assert split_at(plain(3), 1, 4).text() == "AB4bC"
    assert split_at(split_at(plain(2), 0, 12), 1, 3).text() == "A4a3aB"


@pytest.mark.parametrize(
    ("text", "says"),
    [("AB", "axes ABC"), ("ABCC", "twice"), ("ABC0c", "empty"), ("ABC2d", "block of an axis"), ("A-BC", "no layout")],
)
def test_what_is_none(text: str, says: str) -> None:
    with pytest.raises(te.DefinitionError, match=says):
        layout_of(text, "ABC")


def test_places_and_indices_are_inverse() -> None:
    rng = random.Random(1)
    for _ in range(40):
        shape = tuple(rng.choice([1, 2, 6, 8, 12]) for _ in range(rng.randrange(1, 4)))
        layout = drawn(rng, shape)
        a = np.arange(np.prod(shape)).reshape(shape)
        x = te.placeholder("x", shape, "int64")
        there = te.compute(layout.shape(shape), lambda *p, x=x, layout=layout: x[layout.index(p)])
        back = te.compute(shape, lambda *i, there=there, layout=layout: there[layout.place(i)])
        first, second = evaluate([there, back], {x: a})
        np.testing.assert_array_equal(first, moved(a, layout))
        np.testing.assert_array_equal(second, a)


CALLS: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("nn.conv2d", [(2, 8, 6, 6), (12, 8, 3, 3)], {"padding": (1, 1)}),
    ("nn.conv2d", [(1, 8, 7, 6), (16, 2, 3, 3)], {"groups": 4, "strides": (2, 2), "padding": (1, 1)}),
    ("nn.conv2d", [(2, 6, 6, 6), (6, 1, 3, 3)], {"groups": 6, "dilation": (2, 1)}),
    ("nn.conv2d.vjp0", [(2, 8, 6, 6), (12, 4, 3, 3), (2, 12, 3, 3)], {"groups": 2, "strides": (2, 2), "padding": (1, 1)}),
    ("nn.conv2d.vjp1", [(2, 8, 6, 6), (12, 4, 3, 3), (2, 12, 6, 6)], {"groups": 2, "padding": (1, 1)}),
    ("nn.max_pool2d", [(2, 4, 6, 6)], {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1)}),
    ("nn.batch_matmul", [(2, 4, 6), (2, 8, 6)], {}),
    ("add", [(2, 4, 6), (4, 1)], {}),
    ("sum", [(4, 6, 8)], {"axis": (1,)}),
    ("argmax", [(4, 6, 8)], {"axis": (1,)}),
    ("nn.pad", [(4, 6, 8)], {"pad_width": ((0, 0), (1, 2), (3, 1)), "pad_mode": "reflect"}),
    ("reshape", [(4, 6, 8)], {"newshape": (8, 24)}),
    ("cumsum", [(4, 6, 8)], {"axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_operators_compute_the_same(number: int) -> None:
    """Any layouts of any of the tensors of an operator's definition, its own stages included."""
    op, shapes, attrs = CALLS[number]
    traced = registry.trace(registry.get(op), [(s, "float64") for s in shapes], attrs)
    rng = random.Random(number)
    data = np.random.default_rng(number)
    # Whole numbers: sums are the same in every order.
    given = [data.integers(-8, 8, s).astype("float64") for s in shapes]
    wanted = evaluate(traced.outputs, dict(zip(traced.inputs, given, strict=True)))
    for _ in range(6):
        layouts: dict[Stage, Layout] = {}
        for stage in te.stages(traced.outputs):
            if rng.random() < 0.7:
                shape = tuple(d for d in stage.shape if isinstance(d, int))
                layouts[stage] = drawn(rng, shape, frozenset({stage.dim} if isinstance(stage, Scan) else ()))
        new = laid_out(traced.outputs, layouts)
        found = evaluate([_new(t, new) for t in traced.outputs], _inputs(traced.inputs, given, layouts, new))
        for tensor, a, b in zip(traced.outputs, wanted, found, strict=True):
            layout = layouts.get(tensor.stage)
            np.testing.assert_array_equal(b, a if layout is None else moved(a, layout))


def _new(tensor: Tensor, new: Mapping[Stage, Stage]) -> Tensor:
    stage = new.get(tensor.stage, tensor.stage)
    return Tensor(stage, tensor.index, stage.shape, tensor.dtype)


def _inputs(
    inputs: tuple[Tensor, ...], given: list[Array], layouts: Mapping[Stage, Layout], new: Mapping[Stage, Stage]
) -> dict[Tensor, Array]:
    used = {s: s for s in new.values()}
    out: dict[Tensor, Array] = {}
    for tensor, array in zip(inputs, given, strict=True):
        layout = layouts.get(tensor.stage)
        stage = new.get(tensor.stage, tensor.stage)
        assert isinstance(stage, Placeholder) and (stage in used or layout is None)
        out[Tensor(stage, 0, stage.shape, tensor.dtype)] = array if layout is None else moved(array, layout)
    return out


def test_blocks_are_read_by_blocks() -> None:
    """A sum over a blocked axis becomes one over blocks and what is in them: no division is left in an index."""
    x, w = te.placeholder("x", (5, 32), "float32"), te.placeholder("w", (16, 32), "float32")
    k = te.reduce_axis(32)
    y = te.compute((5, 16), lambda i, j: te.sum(x[i, k] * w[j, k], k))
    new = laid_out(
        [y], {x.stage: layout_of("AB8b", "AB"), w.stage: layout_of("AB8b4a", "AB"), y.stage: layout_of("BA4b", "AB")}
    )
    made = new[y.stage]
    assert isinstance(made, Compute) and made.shape == (4, 5, 4)
    (body,) = stage_bodies(made)
    assert isinstance(body, Reduce) and [a.extent for a in body.axes] == [4, 8]
    indices = [i for n in walk(body) if isinstance(n, Load) for i in n.indices]
    assert not any(getattr(n, "op", "") in ("floordiv", "mod") for i in indices for n in walk(i))


def test_what_is_read_in_place_lies_as_what_reads_it() -> None:
    """The sums of a mean, and the border around an image, have the layout of the result and of the image."""
    x = te.placeholder("x", (1, 32, 8, 8), "float32")
    (mean,) = registry.trace(registry.get("nn.avg_pool2d"), [(x.shape, x.dtype)], {"pool_size": (3, 3)}).outputs
    layout = layout_of("ABCD16b", "ABCD")
    ordered = te.stages([mean])
    given = {mean.stage: layout}
    lying = inherited([mean], given)
    sums = [s for s in ordered if any(isinstance(b, Reduce) for b in stage_bodies(s))]
    assert sums and all(lying[s] == layout for s in sums)
    assert not any(isinstance(s, Placeholder) for s in lying)


def test_sizes_that_are_not_known() -> None:
    v = DimVar("n")
    n = as_dim(v)
    x = te.placeholder("x", (n * 4, 6), "float32")
    y = te.compute((6, n * 4), lambda i, j: x[j, i] + 1.0)
    layouts: dict[Stage, Layout] = {x.stage: layout_of("AB4a", "AB"), y.stage: layout_of("BA3a", "AB")}
    new = laid_out([y], layouts)
    a = np.random.default_rng(0).integers(-4, 4, (12, 6)).astype("float32")
    found = evaluate([_new(y, new)], {_new(x, new): moved(a, layouts[x.stage])}, {v: 3})
    np.testing.assert_array_equal(found[0], moved(a.T + 1, layouts[y.stage]))
    with pytest.raises(te.DefinitionError, match="its blocks"):
        layout_of("AB4b", "AB").shape((n * 4, 6))


def test_a_scan_keeps_its_axis_whole() -> None:
    traced = registry.trace(registry.get("cumsum"), [((4, 6), "float64")], {"axis": 1})
    scan = next(s for s in te.stages(traced.outputs) if isinstance(s, Scan))
    with pytest.raises(te.DefinitionError, match="cannot be split"):
        laid_out(traced.outputs, {scan: layout_of("AB2b", "AB")})
