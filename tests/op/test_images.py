"""Layouts, resizing, transposed convolution, local normalisation and means of integers, against NumPy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.op import registry
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn

# Pairs of layouts; the sizes of their axes are 2 (N), 8 (C), 3 (H), 2 (W), 4 (O), 8 (I).
_LAYOUTS = [
    ("NCHW", "NHWC"),
    ("NCHW", "NCHW4c"),
    ("NCHW4c", "NHWC"),
    ("NCHW4c", "NCHW2c"),
    ("NCHW2c", "NHW4cC"),
    ("OIHW", "OHWI"),
    ("OIHW", "OIHW2i4o"),
    ("OIHW4i2o2i", "OIHW"),
    ("NC", "CN8c"),
]
_SIZES = {"N": 2, "C": 8, "H": 3, "W": 2, "O": 4, "I": 8}


def _parts(layout: str) -> list[tuple[str, int]]:
    """The axes of a layout with the sizes that they have."""
    out: list[tuple[str, int]] = []
    number = ""
    for letter in layout:
        if letter.isdigit():
            number += letter
        else:
            out.append((letter, int(number or 0)))
            number = ""
    left = {a: _SIZES[a] // math.prod(n for b, n in out if b == a.lower()) for a, _ in out if a.isupper()}
    return [(a, n or left[a]) for a, n in out]


def _draw_layouts(d: Draw) -> Drawn:
    source, wanted = d(st.sampled_from(_LAYOUTS))
    if d(st.booleans()):
        source, wanted = wanted, source
    return (h.array(d, [n for _, n in _parts(source)], h.dtype(d, h.ALL)),), {
        "src_layout": source,
        "dst_layout": wanted,
    }


def _layouts(x: Array, src_layout: str, dst_layout: str) -> Array:
    """By writing every element at its place, found from whole positions."""
    source, wanted = _parts(src_layout), _parts(dst_layout)
    out = np.empty([n for _, n in wanted], x.dtype)
    for at in np.ndindex(*out.shape):
        whole = dict.fromkeys("NCHWOI", 0)
        for outer in (True, False):
            for (a, n), i in zip(wanted, at, strict=True):
                if a.isupper() == outer:
                    whole[a.upper()] = whole[a.upper()] * n + i if not outer else i
        read = [0] * len(source)
        for k in reversed(range(len(source))):
            a, n = source[k]
            if a.islower():
                whole[a.upper()], read[k] = divmod(whole[a.upper()], n)
        for k, (a, _) in enumerate(source):
            if a.isupper():
                read[k] = whole[a]
        out[at] = x[tuple(read)]
    return out


def _draw_transposed(d: Draw) -> Drawn:
    kind, groups = h.dtype(d, ("float32", "float64", "float16", "int32")), d(st.sampled_from([1, 1, 2, 3]))
    per_in, per_out = d(st.integers(1, 2)), d(st.integers(1, 2))
    data_layout, kernel_layout = d(st.sampled_from([("NCHW", "IOHW"), ("NHWC", "HWIO"), ("NCHW", "OIHW")]))
    size = {"N": d(st.integers(1, 2)), "C": per_in * groups, "H": d(st.integers(1, 4)), "W": d(st.integers(1, 4))}
    kernel = {"I": per_in * groups, "O": per_out, "H": d(st.integers(1, 3)), "W": d(st.integers(1, 3))}
    strides = tuple(d(st.integers(1, 3)) for _ in range(2))
    attrs: dict[str, Any] = {
        "strides": strides,
        "dilation": tuple(d(st.integers(1, 2)) for _ in range(2)),
        "padding": tuple(d(st.integers(0, 1)) for _ in range(d(st.sampled_from([1, 2, 4])))),
        "output_padding": tuple(d(st.integers(0, s - 1)) for s in strides),
        "groups": groups,
        "data_layout": data_layout,
        "kernel_layout": kernel_layout,
    }
    if d(st.booleans()):
        attrs |= {"channels": per_out * groups, "kernel_size": (kernel["H"], kernel["W"])}
    data = h.array(d, [size[a] for a in data_layout], kind, -2, 2)
    return (data, h.array(d, [kernel[a] for a in kernel_layout], kind, -2, 2)), attrs


def _transposed(x: Array, w: Array, data_layout: str, kernel_layout: str, groups: int, **attrs: Any) -> Array:
    """By adding the kernel, scaled by each element, into a large image that is cut afterwards."""
    held = np.float64 if x.dtype.kind == "f" else x.dtype
    plain = x.transpose([data_layout.index(a) for a in "NCHW"]).astype(held)
    kernel = w.transpose([kernel_layout.index(a) for a in "IOHW"]).astype(held)
    (sy, sx), (dy, dx), (ey, ex) = attrs["strides"], attrs["dilation"], attrs["output_padding"]
    padding = attrs["padding"]
    top, left, bottom, right = padding if len(padding) == 4 else padding * (4 // len(padding))
    (n, c, rows, columns), (_, per_out, ky, kx) = plain.shape, kernel.shape
    height, width = (rows - 1) * sy + (ky - 1) * dy + 1, (columns - 1) * sx + (kx - 1) * dx + 1
    full = np.zeros((n, per_out * groups, height + ey, width + ex), held)
    for i, y, z in np.ndindex(c, rows, columns):
        first = (i // (c // groups)) * per_out
        for a, b in np.ndindex(ky, kx):
            part = plain[:, i, y, z, None] * kernel[None, i, :, a, b]
            full[:, first : first + per_out, y * sy + a * dy, z * sx + b * dx] += part
    cut = full[:, :, top : max(full.shape[2] - bottom, top), left : max(full.shape[3] - right, left)]
    return cut.transpose(["NCHW".index(a) for a in data_layout]).astype(x.dtype)


def _draw_resize(space: str) -> Any:
    def draw(d: Draw) -> Drawn:
        layout = d(st.sampled_from(["NC" + space, "N" + space + "C"]))
        x = h.array(
            d, h.shape(d, len(layout), len(layout), 1, 5), h.dtype(d, ("float32", "float64", "float16", "uint8"))
        )
        return (x,), {
            "size": tuple(d(st.integers(1, 6)) for _ in space),
            "layout": layout,
            "method": d(st.sampled_from(["linear", "nearest_neighbor"])),
            "coordinate_transformation_mode": d(
                st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
            ),
            "rounding_method": d(st.sampled_from(["", "round", "floor", "ceil", "round_prefer_floor"])),
        }

    return draw


def _weights(old: int, new: int, linear: bool, mode: str, rounding: str) -> Array:
    """The matrix that takes an axis of size ``old`` to one of size ``new``."""
    out = np.zeros((new, old))
    for i in range(new):
        place = {
            "half_pixel": (i + Fraction(1, 2)) * old / new - Fraction(1, 2),
            "pytorch_half_pixel": Fraction(0) if new == 1 else (i + Fraction(1, 2)) * old / new - Fraction(1, 2),
            "align_corners": Fraction(i * (old - 1), max(new - 1, 1)),
            "asymmetric": Fraction(i * old, new),
        }[mode]
        if linear:
            low = math.floor(place)
            for at, share in ((low, 1 - (place - low)), (low + 1, place - low)):
                out[i, min(max(at, 0), old - 1)] += float(share)
        else:
            default = {"align_corners": "round", "asymmetric": "floor"}.get(mode, "round_prefer_floor")
            half = Fraction(1, 2)
            at = {
                "floor": math.floor(place),
                "ceil": math.ceil(place),
                "round": math.floor(place + half),
                "round_prefer_floor": math.ceil(place - half),
            }[rounding or default]
            out[i, min(max(at, 0), old - 1)] = 1
    return out


def _resize(space: str) -> Any:
    def expect(
        x: Array, size: Any, layout: str, method: str, coordinate_transformation_mode: str, rounding_method: str
    ) -> Array:
        out = x.astype(np.float64)
        for a, n in zip(space, size, strict=True):
            axis = layout.index(a)
            matrix = _weights(x.shape[axis], n, method == "linear", coordinate_transformation_mode, rounding_method)
            out = np.moveaxis(np.moveaxis(out, axis, -1) @ matrix.T, -1, axis)
        return (np.floor(out + 0.5 + 1e-9) if x.dtype.kind == "u" else out).astype(x.dtype)

    return expect


def _draw_lrn(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 1, 4, 1), h.dtype(d, h.FLOATS))
    return (x,), {
        "size": d(st.sampled_from([1, 3, 5])),
        "axis": h.axis(d, x.ndim),
        "bias": d(st.sampled_from([1.0, 2.0])),
        "alpha": d(st.sampled_from([1e-5, 0.5])),
        "beta": d(st.sampled_from([0.75, 1.0])),
    }


def _lrn(x: Array, size: int, axis: int, bias: float, alpha: float, beta: float) -> Array:
    plain = np.moveaxis(x.astype(np.float64), axis, 0)
    sums = np.empty_like(plain)
    for i in range(len(plain)):
        sums[i] = (plain[max(i - size // 2, 0) : i + size // 2 + 1] ** 2).sum(0)
    return np.asarray(np.moveaxis(plain / (bias + alpha / size * sums) ** beta, 0, axis).astype(x.dtype))


def _draw_plain(d: Draw) -> Drawn:
    return (h.array(d, h.shape(d), h.dtype(d, h.ALL)),), {}


CASES = [
    Case("layout_transform", _draw_layouts, _layouts, symbolic=False),
    Case("nn.conv2d_transpose", _draw_transposed, _transposed, symbolic=False),
    Case("image.resize1d", _draw_resize("W"), _resize("W")),
    Case("image.resize2d", _draw_resize("HW"), _resize("HW")),
    Case("nn.lrn", _draw_lrn, _lrn),
    Case("annotation.stop_fusion", _draw_plain, lambda x: x),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


@pytest.mark.parametrize(
    ("source", "wanted", "says"),
    [
        ("NCHW", "NCHX", "different axes"),
        ("NCHW", "NCHW3c", "the size of C and its blocks"),
        ("NCHW", "NHW4c", "a block of an axis that it does not have"),
        ("NCHW", "N C H W", "no layout"),
        ("NCCW", "NCHW", "an axis twice"),
        ("NCHW0c", "NCHW", "an empty block"),
        ("NCW", "NCW", "has rank 4"),
    ],
)
def test_layouts_are_checked(source: str, wanted: str, says: str) -> None:
    with pytest.raises(te.DefinitionError, match=says):
        h.apply("layout_transform", np.ones((1, 4, 2, 2), np.float32), src_layout=source, dst_layout=wanted)


def test_means_of_integers_are_rounded_towards_zero() -> None:
    x = np.array([[[[200, 201], [202, 204]]]], np.uint8)
    assert h.apply("nn.avg_pool2d", x, pool_size=(2, 2)).item() == 201
    assert h.apply("nn.avg_pool2d", -x.astype(np.int32), pool_size=(2, 2)).item() == -201


@pytest.mark.parametrize("name", ["nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv2d"])
def test_notes_of_schedulers_mean_nothing(name: str) -> None:
    op = registry.get(name)
    notes = {"auto_scheduler_rewritten_layout": "", "meta_schedule_original_shape": None}
    assert op.complete_attrs(notes) == op.complete_attrs({})
