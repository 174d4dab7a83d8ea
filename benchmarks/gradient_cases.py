"""The operators of `gradients.py`: each in Relay's words and in PyTorch's, the chains in JAX's too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
ROWS = 30522  # of an embedding


@dataclass(frozen=True, slots=True)
class Case:
    """``result`` is a Relay expression of the operands %a, %b, ... (``shapes`` of a batch, in order); ``peer`` the same, of an array
    module (torch) and the operands. Operands of integers (indices below ROWS) end with ``i``."""

    name: str
    shapes: Callable[[int], dict[str, Shape]]
    result: str
    peer: Callable[..., Any]
    jax: Callable[..., Any] | None = None


def _dense_chain(m: Any, x: Any, *weights: Any) -> Any:
    for w in weights[:-1]:
        x = m.relu(x @ w.T)
    return x @ weights[-1].T


def _conv_chain(t: Any, x: Any, *weights: Any) -> Any:
    for w in weights:
        x = t.relu(t.nn.functional.conv2d(x, w, padding=1))
    return x


def _chain_text(call: str, weights: Sequence[str], last: bool) -> str:
    text = "%x"
    for n, w in enumerate(weights):
        text = f"{call.format(x=text, w='%' + w)}"
        text = text if last and n == len(weights) - 1 else f"nn.relu({text})"
    return text


def _conv(data: Shape, weight: Shape, attrs: str, **keywords: Any) -> Case:
    size = "x".join(map(str, weight))
    note = "".join(f" {k}={v}" for k, v in keywords.items() if k != "padding")
    return Case(
        f"conv2d {size}{note}",
        lambda b: {"x": (b, *data), "w": weight},
        f"nn.conv2d(%x, %w{attrs})",
        lambda t, x, w: t.nn.functional.conv2d(x, w, **keywords),
    )


def _one(name: str, shape: Shape, result: str, peer: Callable[..., Any]) -> Case:
    return Case(name, lambda b: {"x": (b, *shape)}, result, peer)


def _heads(b: int) -> dict[str, Shape]:
    return {"q": (b, 8, 128, 64), "k": (b, 8, 128, 64), "v": (b, 8, 128, 64)}


def cases() -> list[Case]:
    dense: dict[str, Shape] = {f"w{n}": (512, 512) for n in range(4)}
    convs: dict[str, Shape] = {f"w{n}": (64, 64, 3, 3) for n in range(3)}
    norm: dict[str, Shape] = {"s": (768,), "o": (768,)}
    return [
        Case("dense 512x512", lambda b: {"x": (b, 512), "w": (512, 512)}, "nn.dense(%x, %w)", lambda t, x, w: x @ w.T),
        Case(
            "dense chain", lambda b: {"x": (b, 512)} | dense, _chain_text("nn.dense({x}, {w})", list(dense), True),
            _dense_chain, _dense_chain,
        ),
        _conv((64, 28, 28), (64, 64, 3, 3), ", padding=[1, 1]", padding=1),
        _conv((64, 28, 28), (128, 64, 3, 3), ", padding=[1, 1], strides=[2, 2]", padding=1, stride=2),
        _conv((64, 28, 28), (128, 64, 1, 1), ""),
        _conv((3, 64, 64), (32, 3, 7, 7), ", padding=[3, 3], strides=[2, 2]", padding=3, stride=2),
        _conv((64, 28, 28), (64, 1, 3, 3), ", padding=[1, 1], groups=64", padding=1, groups=64),
        Case(
            "conv chain", lambda b: {"x": (b, 64, 28, 28)} | convs,
            _chain_text("nn.conv2d({x}, {w}, padding=[1, 1])", list(convs), False), _conv_chain,
        ),
        Case(
            "conv2d_transpose", lambda b: {"x": (b, 64, 14, 14), "w": (64, 32, 4, 4)},
            "nn.conv2d_transpose(%x, %w, strides=[2, 2], padding=[1, 1])",
            lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=2, padding=1),
        ),
        _one("max_pool 2x2/2", (64, 28, 28), "nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2])",
             lambda t, x: t.nn.functional.max_pool2d(x, 2, 2)),
        _one("max_pool 3x3/2", (64, 28, 28), "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1])",
             lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1)),
        _one("avg_pool 3x3/2", (64, 28, 28), "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1])",
             lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        _one("global_avg_pool", (256, 14, 14), "nn.global_avg_pool2d(%x)",
             lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1)),
        _one("global_max_pool", (256, 14, 14), "nn.global_max_pool2d(%x)",
             lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 1)),
        _one("softmax", (64, 768), "nn.softmax(%x)", lambda t, x: x.softmax(-1)),
        _one("log_softmax", (64, 768), "nn.log_softmax(%x)", lambda t, x: x.log_softmax(-1)),
        _one("logsumexp", (64, 768), "logsumexp(%x, axis=[-1])", lambda t, x: x.logsumexp(-1)),
        _one("gelu", (64, 768), "nn.gelu(%x)", lambda t, x: t.nn.functional.gelu(x)),
        Case("layer_norm", lambda b: {"x": (b, 64, 768)} | norm, "nn.layer_norm(%x, %s, %o)",
             lambda t, x, s, o: t.nn.functional.layer_norm(x, (768,), s, o)),
        Case("group_norm", lambda b: {"x": (b, 64, 28, 28), "s": (64,), "o": (64,)},
             "nn.group_norm(%x, %s, %o, num_groups=8)", lambda t, x, s, o: t.nn.functional.group_norm(x, 8, s, o)),
        _one("max over rows", (64, 768), "max(%x, axis=[-1])", lambda t, x: x.amax(-1)),
        _one("prod over rows", (64, 768), "prod(%x, axis=[-1])", lambda t, x: x.prod(-1)),
        _one("cumsum", (64, 768), "cumsum(%x, axis=2)", lambda t, x: x.cumsum(2)),
        Case("embedding", lambda b: {"x": (ROWS, 128), "i": (b, 128)}, "take(%x, %i, axis=0)", lambda t, x, i: x[i]),
        Case("attention", _heads, "nn.attention(%q, %k, %v)",
             lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v)),
        _one("resize2d x2", (32, 28, 28), "image.resize2d(%x, size=[56, 56])",
             lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)),
        _one("upsampling x2", (32, 28, 28), "nn.upsampling(%x, scale_h=2f, scale_w=2f)",
             lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="nearest")),
        _one("pad constant", (32, 28, 28), "nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]])",
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2))),
        _one("pad reflect", (32, 28, 28), 'nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]], pad_mode="reflect")',
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")),
        _one("pad edge", (32, 28, 28), 'nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]], pad_mode="edge")',
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")),
        _one("pad wrap", (32, 28, 28), 'nn.pad(%x, pad_width=[[0, 0], [0, 0], [2, 2], [2, 2]], pad_mode="wrap")',
             lambda t, x: t.nn.functional.pad(x, (2, 2, 2, 2), mode="circular")),
        _one("transpose", (64, 768), "transpose(%x, axes=[0, 2, 1])", lambda t, x: x.transpose(1, 2)),
        _one("sort", (64, 768), "sort(%x, axis=-1)", lambda t, x: x.sort(-1).values),
        _one("topk 8", (64, 768), "topk(%x, k=8, axis=-1).0", lambda t, x: x.topk(8, -1).values),
        _one("cumsum, middle axis", (64, 768), "cumsum(%x, axis=1)", lambda t, x: x.cumsum(1)),
        _one("resize2d 28 to 45 x 50", (32, 28, 28), "image.resize2d(%x, size=[45, 50])",
             lambda t, x: t.nn.functional.interpolate(x, size=(45, 50), mode="bilinear", align_corners=False)),
        _one("resize2d 28 to 14", (32, 28, 28), "image.resize2d(%x, size=[14, 14])",
             lambda t, x: t.nn.functional.interpolate(x, size=(14, 14), mode="bilinear", align_corners=False)),
        _one("prod over 20", (64, 20), "prod(%x, axis=[-1])", lambda t, x: x.prod(-1)),
        _one("mean over 64", (64, 768), "mean(%x, axis=[1])", lambda t, x: x.mean(1)),
        _one("variance over rows", (64, 768), "variance(%x, axis=[-1])", lambda t, x: x.var(-1, unbiased=False)),
        _one("softmax, middle axis", (64, 768), "nn.softmax(%x, axis=1)", lambda t, x: x.softmax(1)),
        _one("softmax of 64", (8, 64, 64), "nn.softmax(%x)", lambda t, x: x.softmax(-1)),
        _one("avg_pool 2x2/2", (64, 28, 28), "nn.avg_pool2d(%x, pool_size=[2, 2], strides=[2, 2])",
             lambda t, x: t.nn.functional.avg_pool2d(x, 2)),
        _one("max_pool 3x3", (64, 28, 28), "nn.max_pool2d(%x, pool_size=[3, 3], strides=[1, 1], padding=[1, 1])",
             lambda t, x: t.nn.functional.max_pool2d(x, 3, 1, 1)),
        _one("silu", (64, 768), "%x * sigmoid(%x)", lambda t, x: t.nn.functional.silu(x)),
        _one("tanh", (64, 768), "tanh(%x)", lambda t, x: x.tanh()),
        _one("leaky_relu", (64, 768), "nn.leaky_relu(%x, alpha=0.1f)",
             lambda t, x: t.nn.functional.leaky_relu(x, 0.1)),
        Case("rms_norm", lambda b: {"x": (b, 64, 768), "s": (768,)},
             "%x * rsqrt(mean(%x * %x, axis=[-1], keepdims=True) + 1e-5f) * %s",
             lambda t, x, s: t.nn.functional.rms_norm(x, (768,), s, 1e-5)),
        Case("embedding of 768", lambda b: {"x": (ROWS, 768), "i": (b, 128)}, "take(%x, %i, axis=0)",
             lambda t, x, i: x[i]),
        Case("attention 12 x 64 x 32", lambda b: {n: (b, 12, 64, 32) for n in "qkv"}, "nn.attention(%q, %k, %v)",
             lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v)),
        Case("causal attention", _heads, "nn.attention(%q, %k, %v, causal=True)",
             lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)),
        Case("batches of products", lambda b: {"x": (b, 8, 64, 64), "y": (b, 8, 64, 64)},
             'einsum((%x, %y), equation="bhij,bhjk->bhik")', lambda t, x, y: x @ y),
        _one("concatenate", (64, 768), "concatenate((%x, tanh(%x)), axis=2)", lambda t, x: t.cat([x, x.tanh()], 2)),
        _one("every second column", (64, 768),
             "strided_slice(%x, begin=[0, 0, 1], end=[100000, 64, 768], strides=[1, 1, 2])",
             lambda t, x: x[:, :, 1::2]),
    ]  # fmt: skip
