"""Matrix products, convolutions and pooling against NumPy, the latter by explicit loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn

_KINDS = ("float32", "float64", "float16", "bfloat16", "int8", "int32")


def _out_dtype(d: Draw, kind: str) -> str:
    return d(st.sampled_from(["", "int32"])) if kind == "int8" else ""


def _product(a: Array, b: Array, out_dtype: str) -> Array:
    kind = h.numpy_dtype(out_dtype) if out_dtype else a.dtype
    held = np.float64 if kind.name in h.FLOATS else kind
    return np.asarray(np.matmul(a.astype(held), b.astype(held))).astype(kind)


def _draw_dense(d: Draw) -> Drawn:
    kind, k, units = h.dtype(d, _KINDS), d(st.integers(0, 5)), d(st.integers(0, 4))
    attrs: dict[str, Any] = {"out_dtype": _out_dtype(d, kind)}
    if d(st.booleans()):
        attrs["units"] = units
    return (h.array(d, (*h.shape(d, 0, 2), k), kind, -2, 2), h.array(d, (units, k), kind, -2, 2)), attrs


def _draw_matmul(d: Draw) -> Drawn:
    kind, m, n, k = h.dtype(d, _KINDS), *(d(st.integers(0, 4)) for _ in range(3))
    ta, tb = d(st.booleans()), d(st.booleans())
    lead = h.shape(d, 0, 1)
    a = h.array(d, (*lead, k, m) if ta else (*lead, m, k), kind, -2, 2)
    b = h.array(d, (n, k) if tb else d(st.sampled_from([(k, n), (k,)])), kind, -2, 2)
    return (a, b), {"transpose_a": ta, "transpose_b": tb, "out_dtype": _out_dtype(d, kind)}


def _draw_batch(d: Draw) -> Drawn:
    kind, m, n, k, b = h.dtype(d, _KINDS), *(d(st.integers(1, 4)) for _ in range(4))
    ta, tb = d(st.booleans()), d(st.booleans())
    one, other = d(st.sampled_from([(b, b), (1, b), (b, 1)]))
    x = h.array(d, (one, k, m) if ta else (one, m, k), kind, -2, 2)
    y = h.array(d, (other, n, k) if tb else (other, k, n), kind, -2, 2)
    return (x, y), {"transpose_a": ta, "transpose_b": tb, "out_dtype": _out_dtype(d, kind)}


def _swapped(x: Array, flag: bool) -> Array:
    return np.swapaxes(x, -1, -2) if flag else x


def _matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool, out_dtype: str) -> Array:
    return _product(_swapped(a, transpose_a), _swapped(b, transpose_b), out_dtype)


def _padded(x: Array, before: tuple[int, ...], after: tuple[int, ...], value: float) -> Array:
    return np.pad(x, ((0, 0), (0, 0), *zip(before, after, strict=True)), constant_values=value)


def _borders(padding: Any, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given = (padding,) * count if isinstance(padding, int) else tuple(padding)
    given = given * count if len(given) == 1 else given
    return (given[:count], given[count:]) if len(given) == 2 * count else (given, given)


def _convolve(x: Array, w: Array, strides: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """NC-space data and OI-space kernels, by loops over results."""
    count = x.ndim - 2
    before, after = _borders(padding, count)
    x = _padded(x, before, after, 0)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    sizes = [max((n - s) // t + 1, 0) for n, s, t in zip(x.shape[2:], spans, strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes), x.dtype)
    for o in range(w.shape[0]):
        first = (o // (w.shape[0] // groups)) * w.shape[1]
        for at in np.ndindex(*sizes):
            window = tuple(slice(i * t, i * t + s, d) for i, t, s, d in zip(at, strides, spans, dilation, strict=True))
            part = x[(slice(None), slice(first, first + w.shape[1]), *window)]
            out[(slice(None), o, *at)] = (part * w[o]).sum(tuple(range(1, count + 2)))
    return out


def _draw_convolution(space: str, layouts: list[tuple[str, str, str]]) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        count, kind = len(space), h.dtype(d, ("float32", "float64", "float16", "int8", "int32"))
        groups = d(st.sampled_from([1, 1, 2, 3]))
        ic, oc = d(st.integers(1, 2)), groups * d(st.integers(1, 2))
        size = {"N": d(st.integers(1, 2)), "C": ic * groups} | {a: d(st.integers(3, 6)) for a in space}
        kernel = {"O": oc, "I": ic} | {a: d(st.integers(1, 3)) for a in space}
        data_layout, kernel_layout, out_layout = d(st.sampled_from(layouts))
        attrs: dict[str, Any] = {
            "strides": tuple(d(st.integers(1, 2)) for _ in range(count)),
            "dilation": tuple(d(st.integers(1, 2)) for _ in range(count)),
            "padding": tuple(d(st.integers(0, 2)) for _ in range(d(st.sampled_from([1, count, 2 * count])))),
            "groups": groups,
            "data_layout": data_layout,
            "kernel_layout": kernel_layout,
            "out_layout": out_layout,
            "out_dtype": _out_dtype(d, kind),
        }
        if d(st.booleans()):
            attrs |= {"channels": oc, "kernel_size": tuple(kernel[a] for a in space)}
        data = h.array(d, [size[a] for a in data_layout], kind, -2, 2)
        return (data, h.array(d, [kernel[a] for a in kernel_layout], kind, -2, 2)), attrs

    return draw


def _convolution(space: str) -> Callable[..., Array]:
    def expect(
        x: Array, w: Array, data_layout: str, kernel_layout: str, out_layout: str, out_dtype: str, **attrs: Any
    ) -> Array:
        attrs = {k: v for k, v in attrs.items() if k in ("strides", "padding", "dilation", "groups")}
        kind = h.numpy_dtype(out_dtype) if out_dtype else x.dtype
        held = np.float64 if kind.name in h.FLOATS else kind
        plain = x.transpose([data_layout.index(a) for a in "NC" + space]).astype(held)
        kernel = w.transpose([kernel_layout.index(a) for a in "OI" + space]).astype(held)
        out = _convolve(plain, kernel, **attrs)
        return out.transpose([("NC" + space).index(a) for a in out_layout or data_layout]).astype(kind)

    return expect


_LAYOUTS_2D = [("NCHW", "OIHW", ""), ("NHWC", "HWIO", ""), ("NHWC", "OHWI", "NCHW"), ("NCHW", "OIHW", "NHWC")]
_LAYOUTS_1D = [("NCW", "OIW", ""), ("NWC", "WIO", "")]
_LAYOUTS_3D = [("NCDHW", "OIDHW", ""), ("NDHWC", "DHWIO", "NCDHW")]


def _draw_pool(mean: bool, space: str = "HW") -> Callable[[Draw], Drawn]:
    count = len(space)

    def draw(d: Draw) -> Drawn:
        layout = d(st.sampled_from([f"NC{space}", f"N{space}C"]))
        kind = h.dtype(d, h.FLOATS if mean else (*h.FLOATS, "int32", "uint8"))
        attrs: dict[str, Any] = {
            "pool_size": tuple(d(st.integers(1, 3)) for _ in range(count)),
            "strides": tuple(d(st.integers(1, 3)) for _ in range(count)),
            "dilation": tuple(d(st.integers(1, 2)) for _ in range(count)),
            "padding": tuple(d(st.integers(0, 1)) for _ in range(d(st.sampled_from([1, count, 2 * count])))),
            "layout": layout,
            "ceil_mode": d(st.booleans()),
        }
        if mean:
            attrs["count_include_pad"] = d(st.booleans())
        size = {"N": 1, "C": d(st.integers(1, 2))} | {a: d(st.integers(5, 7)) for a in space}
        return (h.array(d, [size[a] for a in layout], kind),), attrs

    return draw


def _pool(mean: bool, space: str = "HW") -> Callable[..., Array]:
    count = len(space)

    def expect(
        x: Array,
        pool_size: Any,
        strides: Any,
        dilation: Any,
        padding: Any,
        layout: str,
        ceil_mode: bool,
        count_include_pad: bool = False,
    ) -> Array:
        plain = h.wide(x.transpose([layout.index(a) for a in "NC" + space])).astype(np.float64)
        before, after = _borders(padding, count)
        sizes = []
        for n in range(count):
            room = plain.shape[2 + n] + before[n] + after[n] - (pool_size[n] - 1) * dilation[n] - 1
            sizes.append((math.ceil if ceil_mode else math.floor)(room / strides[n]) + 1)
        out = np.zeros((*plain.shape[:2], *sizes))
        for place in np.ndindex(*sizes):
            values, counted = [], 0
            for k in np.ndindex(*pool_size):
                at = [place[n] * strides[n] + k[n] * dilation[n] - before[n] for n in range(count)]
                inside = all(0 <= p < size for p, size in zip(at, plain.shape[2:], strict=True))
                in_padding = all(p < size + end for p, size, end in zip(at, plain.shape[2:], after, strict=True))
                counted += inside or (count_include_pad and in_padding)
                if inside:
                    values.append(plain[(slice(None), slice(None), *at)])
            here = (slice(None), slice(None), *place)
            if mean:
                out[here] = sum(values, np.zeros(plain.shape[:2])) / max(counted, 1)
            elif values:
                out[here] = np.max(values, axis=0)
            else:
                out[here] = -np.inf if x.dtype.name in h.FLOATS else np.iinfo(x.dtype).min
        return out.transpose([("NC" + space).index(a) for a in layout]).astype(x.dtype)

    return expect


def _draw_image(d: Draw) -> Drawn:
    layout = d(st.sampled_from(["NCHW", "NHWC"]))
    return (h.array(d, h.shape(d, 4, 4, 1, 4), h.dtype(d, h.FLOATS)),), {"layout": layout}


def _over_space(fn: Callable[..., Any]) -> Callable[..., Array]:
    def expect(x: Array, layout: str) -> Array:
        return np.asarray(fn(x.astype(np.float64), axis=(layout.index("H"), layout.index("W")), keepdims=True)).astype(
            x.dtype
        )

    return expect


def _draw_upsampling(d: Draw) -> Drawn:
    operands, attrs = _draw_image(d)
    return operands, {**attrs, "scale_h": d(st.integers(1, 3)), "scale_w": d(st.integers(1, 3))}


def _draw_adaptive(d: Draw) -> Drawn:
    operands, attrs = _draw_image(d)
    return operands, {**attrs, "output_size": (d(st.integers(1, 4)), d(st.integers(1, 4)))}


def _adaptive(fn: Callable[..., Any]) -> Callable[..., Array]:
    def expect(x: Array, layout: str, output_size: tuple[int, int]) -> Array:
        plain = x.transpose([layout.index(a) for a in "NCHW"]).astype(np.float64)
        out = np.empty((*plain.shape[:2], *output_size))
        for at in np.ndindex(*output_size):
            (top, left), (bottom, right) = (
                [math.floor(i * n / s) for i, n, s in zip(at, plain.shape[2:], output_size, strict=True)],
                [math.ceil((i + 1) * n / s) for i, n, s in zip(at, plain.shape[2:], output_size, strict=True)],
            )
            out[(..., *at)] = fn(plain[:, :, top:bottom, left:right], axis=(2, 3))
        return np.asarray(out.transpose(["NCHW".index(a) for a in layout]).astype(x.dtype))

    return expect


def _draw_depth(to_space: bool) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        layout, b, n = d(st.sampled_from(["NCHW", "NHWC"])), d(st.integers(1, 3)), d(st.integers(1, 2))
        c, y, x = (d(st.integers(1, 3)) for _ in range(3))
        size = {"N": n, "C": c * b * b, "H": y, "W": x} if to_space else {"N": n, "C": c, "H": y * b, "W": x * b}
        attrs: dict[str, Any] = {"layout": layout, "block_size": b}
        if to_space:
            attrs["mode"] = d(st.sampled_from(["DCR", "CRD"]))
        return (h.array(d, [size[a] for a in layout], h.dtype(d, h.ALL)),), attrs

    return draw


def _to_depth(x: Array, layout: str, block_size: int) -> Array:
    b = block_size
    n, c, y, z = (x.shape[layout.index(a)] for a in "NCHW")
    plain = x.transpose([layout.index(a) for a in "NCHW"]).reshape(n, c, y // b, b, z // b, b)
    out = plain.transpose(0, 3, 5, 1, 2, 4).reshape(n, b * b * c, y // b, z // b)
    return out.transpose(["NCHW".index(a) for a in layout])


def _to_space(x: Array, layout: str, block_size: int, mode: str) -> Array:
    b = block_size
    n, c, y, z = (x.shape[layout.index(a)] for a in "NCHW")
    c //= b * b
    plain = x.transpose([layout.index(a) for a in "NCHW"])
    if mode == "DCR":
        blocks = plain.reshape(n, b, b, c, y, z).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = plain.reshape(n, c, b, b, y, z).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c, y * b, z * b).transpose(["NCHW".index(a) for a in layout])


CASES = [
    Case("nn.adaptive_avg_pool2d", _draw_adaptive, _adaptive(np.mean)),
    Case("nn.adaptive_max_pool2d", _draw_adaptive, _adaptive(np.max)),
    Case("nn.space_to_depth", _draw_depth(False), _to_depth, symbolic=False),
    Case("nn.depth_to_space", _draw_depth(True), _to_space, symbolic=False),
    Case("nn.dense", _draw_dense, lambda x, w, out_dtype, units=None: _product(x, w.T, out_dtype)),
    Case("nn.matmul", _draw_matmul, _matmul),
    Case("nn.batch_matmul", _draw_batch, _matmul),
    Case("nn.conv2d", _draw_convolution("HW", _LAYOUTS_2D), _convolution("HW"), symbolic=False),
    Case("nn.conv1d", _draw_convolution("W", _LAYOUTS_1D), _convolution("W"), symbolic=False),
    Case("nn.conv3d", _draw_convolution("DHW", _LAYOUTS_3D), _convolution("DHW"), symbolic=False),
    Case("nn.max_pool2d", _draw_pool(False), _pool(False)),
    Case("nn.avg_pool2d", _draw_pool(True), _pool(True)),
    Case("nn.max_pool1d", _draw_pool(False, "W"), _pool(False, "W")),
    Case("nn.avg_pool1d", _draw_pool(True, "W"), _pool(True, "W")),
    Case("nn.max_pool3d", _draw_pool(False, "DHW"), _pool(False, "DHW")),
    Case("nn.avg_pool3d", _draw_pool(True, "DHW"), _pool(True, "DHW")),
    Case("nn.global_avg_pool2d", _draw_image, _over_space(np.mean)),
    Case("nn.global_max_pool2d", _draw_image, _over_space(np.max)),
    Case(
        "nn.upsampling",
        _draw_upsampling,
        lambda x, layout, scale_h, scale_w: x.repeat(scale_h, layout.index("H")).repeat(scale_w, layout.index("W")),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


def test_dense_that_does_not_fit() -> None:
    with pytest.raises(te.DefinitionError, match=r"reduced axes of nn.dense's data and weight must agree: 4 and 5"):
        h.apply("nn.dense", np.ones((2, 4), np.float32), np.ones((3, 5), np.float32))


def test_layouts_are_checked() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    with pytest.raises(te.DefinitionError, match=r"data layout of nn.conv2d must permute NCHW"):
        h.apply("nn.conv2d", x, x, data_layout="NCHX")


def test_large_product_is_exact_in_integers() -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.integers(-3, 4, (70, 90)).astype(np.int32) for _ in range(2))
    np.testing.assert_array_equal(h.apply("nn.dense", a, b), a @ b.T)
