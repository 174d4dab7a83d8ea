"""Sums of which several are in registers at once: lines of all lengths, numbers of channels, dtypes and groups."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import te
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim, dim_vars
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr, Function
from relay.ir.types import TensorType
from relay.loop.ir import Alloc, For, Store
from relay.loop.walk import nodes, statements
from relay.op import registry
from relay.te.scalar import Load, Select
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

# Channels, groups, height, width, window, stride.
SHAPES = [
    (6, 6, 14, 14, 3, 1),
    (4, 4, 9, 28, 3, 2),
    (8, 2, 10, 13, 3, 1),
    (12, 3, 7, 16, 1, 1),
    (3, 3, 6, 112, 3, 1),
    (2, 2, 20, 70, 5, 1),
    (3, 3, 14, 28, 5, 1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_grouped_convolutions_and_their_gradients(shape: tuple[int, ...], dtype: str) -> None:
    channels, groups, height, width, window, stride = shape
    out = ((height + 2 - window) // stride + 1, (width + 2 - window) // stride + 1)
    attrs = f"groups={groups}, padding=[1, 1], strides=[{stride}, {stride}]"
    operands = ((2, channels, height, width), (channels, channels // groups, window, window), (2, channels, *out))
    params = ", ".join(f"%{n}: Tensor[{s}, {dtype}]" for n, s in zip("xwg", operands, strict=True))
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(s).astype(dtype) for s in operands]
    tolerance = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
    for call in (f"nn.relu(nn.conv2d(%x, %w, {attrs}) + %g)", f"nn.conv2d.vjp1(%x, %w, %g, {attrs})"):
        program = relay.parse(f'#[version = "0.0.5"]\ndef @main({params}) {{ {call} }}')
        found, wanted = relay.compile(program)(*given), np.asarray(relay.evaluate(program, *given))
        far = np.abs(np.asarray(found).astype("float64") - wanted.astype("float64")).max()
        assert far <= tolerance * np.abs(wanted).max()


def test_lines_of_a_window_share_what_they_read() -> None:
    """The taps above each other are written out: a line that is read is added to the sums of all lines whose windows have it, one after the
    other."""
    images, windows = tensor((8, 3, 28, 28)), tensor((3, 1, 5, 5))
    plan = check(primitive([images, windows], lambda m, x, w: m("nn.conv2d", x, w, groups=3, padding=[2, 2])))
    made = list(statements(plan.kernel.body))
    sums = [s.buffer for s in made if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    (taps,) = (s for s in made if isinstance(s, For) and s.var.name in ("kh", "kw"))
    terms = [sums.index(s.buffer) for s in statements(taps.body) if isinstance(s, Store)]
    assert taps.var.name == "kw"
    assert terms == [n for line in range(len(sums) + 4) for n in range(len(sums)) if 0 <= line - n < 5]


@pytest.mark.parametrize("channels", [3, 12])
def test_rows_of_one_element_each_are_made_several_at_once(channels: int) -> None:
    """Nothing stands before the sums that would make lines of them."""
    images, windows = tensor((2, channels, 16, 30)), tensor((channels, channels // 3, 3, 3))
    plan = check(primitive([images, windows], lambda m, x, w: m("nn.conv2d", x, w, groups=3)))
    sums = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    assert len(sums) >= 7 and {b.scope for b in sums} == {"register"}


SIZES = tuple(DimVar(name) for name in "nhw")
N, H, W = (as_dim(v) for v in SIZES)
LINES = tuple(
    dict(zip(SIZES, sizes, strict=True)) for sizes in ((1, 1, 1), (2, 8, 15), (1, 9, 16), (2, 19, 33), (0, 3, 3))
)


def _of_lines(what: str) -> Function:
    image, like = tensor((N, 4, H, W)), tensor((N, 4, H, W))
    window, same = tensor((4, 1, 3, 3)), {"padding": [1, 1], "groups": 4}
    pool = {"pool_size": [3, 3], "strides": [1, 1], "padding": [1, 1]}
    match what:
        case "depthwise":
            return primitive([image, window], lambda m, x, w: m("nn.conv2d", x, w, **same))
        case "its weights":
            return primitive(
                [image, window, like], lambda m, x, w, g: m("nn.conv2d.vjp1", x, w, g, ty=tensor((4, 1, 3, 3)), **same)
            )
        case "mean":
            return primitive([image], lambda m, x: m("nn.avg_pool2d", x, **pool))
        case "maximum":
            return primitive(
                [tensor((N, 4, 2 * H, 2 * W))],
                lambda m, x: m("nn.max_pool2d", x, pool_size=[2, 2], strides=[2, 2], padding=[0, 0]),
            )
        case _:
            return primitive(
                [tensor((N, 4, 2 * H, 2 * W)), like],
                lambda m, x, g: m("nn.max_pool2d.vjp0", x, g, pool_size=[2, 2], strides=[2, 2], padding=[0, 0]),
            )


@pytest.mark.parametrize("what", ["depthwise", "its weights", "mean", "maximum", "its gradient"])
def test_lines_of_unknown_length_are_summed_in_registers(what: str) -> None:
    """Nothing waits in memory for as many sums as a line may have: a vector of the line at a time goes through all steps."""
    plan = check(_of_lines(what), *LINES)
    made = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc)]
    assert "rows" in plan.variant and any(b.name.startswith("acc") for b in made)
    assert not ZEN4.masked or not any(b.scope == "stack" for b in made)
    check(_of_lines(what), *LINES, target=parse_target("x86-64-v3"))


@pytest.mark.parametrize("sizes", [(2, 8, 112), (N, H, W)])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_few_long_sums_of_a_group_are_made_along_lines(each: int, sizes: tuple[Dim, Dim, Dim]) -> None:
    """Sums go through a line together, a vector of it at a time, and nothing is packed for them."""
    window, (count, *lines) = tensor((16 * each, 1, 3, 3)), sizes

    def build(m: Maker, x: Expr, w: Expr, g: Expr) -> Expr:
        return m("nn.conv2d.vjp1", x, w, g, ty=window, padding=[1, 1], groups=16)

    fn = primitive([tensor((count, 16, *lines)), window, tensor((count, 16 * each, *lines))], build)
    many = LINES if count == N else ({},)
    plan = check(fn, *many, tolerance=1e-4)
    check(fn, *many, tolerance=1e-4, target=parse_target("x86-64-v3"))
    assert "matrix" not in plan.variant.split("+")
    made = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc)]
    sums = [b for b in made if b.name.startswith("acc") and b.shape == (ZEN4.lanes(32),)]
    assert count == N or len(sums) >= 9, "all taps at once, with a register each"


def test_what_all_lanes_look_up_is_looked_up_once() -> None:
    """Masked like what each lane reads by itself, the number of a row would be gathered lane by lane, and so would the row."""
    names = tuple(DimVar(name) for name in ("rows", "width", "bags"))
    rows, width, bags = map(as_dim, names)
    table, numbers = tensor((rows, width)), tensor((bags, 5), "int32")
    bag = primitive([table, numbers], lambda m, t, i: m("sum", m("take", t, i, axis=0), axis=[1]))
    lines = ((1, 1, 1), (7, 15, 3), (4, 33, 2), (3, 0, 2), (5, 16, 0))
    plan = check(bag, *(dict(zip(names, sizes, strict=True)) for sizes in lines))
    chosen = [n.a for n in nodes(plan.kernel.body) if isinstance(n, Select)]
    masked = {n.dtype for n in chosen if isinstance(n, Load)}
    assert masked == ({"float32"} if ZEN4.masked else set())


C = DimVar("c")


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("channels", [32, 40, as_dim(C)], ids=["whole vectors", "a rest", "unknown"])
def test_windows_beside_each_other_are_gone_through_together_with_lanes_along_channels(
    kind: str, channels: Dim
) -> None:
    """Fourteen elements share what their windows have in common."""

    def define(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r, s = te.reduce_axis(3), te.reduce_axis(3)
        reduce = te.sum if kind == "sum" else te.max
        inner = te.compute(x.shape, lambda b, h, v, c: te.exp(x[b, h, v, c]), "inner")
        return te.compute(
            (2, 5, 14, x.shape[3]), lambda b, h, v, c: reduce(inner[b, h + r, v + s, c] * w[r, s, c], (r, s))
        )

    registry.operator("row_tiles.op")(define)
    try:
        fn = primitive([tensor((2, 7, 16, channels)), tensor((3, 3, channels))], lambda m, *a: m("row_tiles.op", *a))
        plan = check(fn, {C: 3}, {C: 32}, {C: 41})
    finally:
        registry.remove("row_tiles.op")
    sums = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    assert {b.scope for b in sums} == {"register"} and len(sums) % 14 == 0


def test_sums_of_which_none_reads_what_another_does_keep_their_long_runs() -> None:
    """Means of several lines of channels: a vector at a time would go through memory by short pieces."""
    fn = primitive([tensor((2, 9, 14, 64))], lambda m, x: m("mean", x, axis=(1,)))
    plan = check(fn)
    sums = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    assert len(sums) == 1


@pytest.mark.parametrize(("taps", "step"), [(5, 1), (4, 1), (2, 1), (3, 2)])
def test_a_line_of_unknown_length_is_summed_some_vectors_at_once(taps: int, step: int) -> None:
    """What is left over of it goes vector by vector: sums of one vector after the other would wait for themselves."""
    n = DimVar("n")
    fn = primitive(
        [tensor((4, 64, as_dim(n))), tensor((64, 1, taps))],
        lambda m, x, w: m("nn.conv1d", x, w, padding=(1,), strides=(step,), groups=64),
    )
    plan = check(fn, *({n: size} for size in (0, 1, 3, 16, 63, 64, 65, 128, 129, 200, 333)))
    sums = {s.buffer.shape for s in statements(plan.kernel.body) if isinstance(s, Alloc) and "acc" in s.buffer.name}
    lanes = ZEN4.lanes(32)
    assert sums == {(lanes,), (4 * lanes,)} or step > 1


@pytest.mark.parametrize("length", [as_dim(DimVar("n")), 256], ids=["unknown", "known"])
def test_few_taps_are_summed_along_lines(length: Dim) -> None:
    """Weights that lie close to each other, four to a channel, are no reason to have lanes across channels, whose results are stored one by
    one then."""
    fn = primitive(
        [tensor((2, 32, length)), tensor((32, 1, 4))], lambda m, x, w: m("nn.conv1d", x, w, padding=(3, 0), groups=32)
    )
    plan = check(fn, *[{v: 70} for v in dim_vars(length)] or [{}])
    lines = [s.buffer.shape for s in statements(plan.kernel.body) if isinstance(s, Alloc) and "acc" in s.buffer.name]
    assert (4 * ZEN4.lanes(32),) in lines


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(
    "side, size, stride, padding", [(28, 3, 1, 1), (14, 3, 2, 1), (14, 2, 2, 0), (7, 5, 1, 2), (6, 2, 2, 0)]
)
def test_windows_of_single_channels(side: int, size: int, stride: int, padding: int, kind: str, known: bool) -> None:
    """Lines of all lengths, also such as fill a part of a vector; a nan is the extreme of every window that has it."""
    sizes, declared = ("2, 8", "") if known else ("n, c", "[n: Dim, c: Dim, h: Dim]")
    lines = f"{side}, {side}" if known else "h, h"
    window = f"pool_size=[{size}, {size}], strides=[{stride}, {stride}], padding=[{padding}, {padding}]"
    program = relay.parse(f"""#[version = "0.0.5"]
def @main{declared}(%x: Tensor[({sizes}, {lines}), float32]) {{ nn.{kind}_pool2d(%x, {window}) }}""")
    x = np.random.default_rng(0).standard_normal((2, 8, side, side)).astype("float32")
    x[0, 0, 3, 2], x[1, 2, 0, 0], x[1, 3, 5, 5] = np.nan, -np.inf, np.inf
    wanted = np.asarray(relay.evaluate(program, x))
    np.testing.assert_allclose(np.asarray(relay.compile(program)(x)), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["here", "x86-64-v3"])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("size, stride, padding", [(2, 1, 0), (3, 1, 1), (3, 2, 1), (3, 2, 0)])
def test_lines_of_windows_are_made_several_at_once_where_nobody_knows_how_many_there_are(
    size: int, stride: int, padding: int, kind: str, arch: str
) -> None:
    """The last of them are those that end where the image does, and fewer go one by one."""
    window = {"pool_size": [size] * 2, "strides": [stride] * 2, "padding": [padding] * 2}
    fn = primitive([tensor((N, 3, H, W))], lambda m, x: m(f"nn.{kind}_pool2d", x, **window))
    sizes = [
        dict(zip(SIZES, each, strict=True))
        for each in [*((1, h, 19) for h in range(2, 20)), (0, 9, 9), (2, 33, 16), (1, 18, 2), (2, 17, 65)]
    ]
    plan = check(fn, *sizes, target=None if arch == "here" else parse_target(arch))
    made = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    assert len(made) >= 8 and {b.scope for b in made} == {"register"}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("known", [True, False])
def test_narrow_elements_apart_are_read_and_written_in_vectors(known: bool, dtype: str) -> None:
    """A window of few bytes, every second or third element, and what two tensors have by turns."""
    sizes, declared = ("3, 5, 28, 44", "") if known else ("n, c, h, w", "[n: Dim, c: Dim, h: Dim, w: Dim]")
    given = np.random.default_rng(0).integers(0, 100, (2, 3, 5, 28, 44)).astype(numpy_dtype(dtype))
    for call in (
        "nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2])",
        "nn.max_pool2d(%x, pool_size=[3, 3], strides=[3, 3])",
        "nn.max_pool2d(%x, pool_size=[2, 2])",
        "strided_slice(%x, begin=[1], end=[40], strides=[3], axes=[3])",
        "stack((%x, %y), axis=4)",
    ):
        program = relay.parse(f"""#[version = "0.0.5"]
def @main{declared}(%x: Tensor[({sizes}), {dtype}], %y: Tensor[({sizes}), {dtype}]) {{ {call} }}""")
        wanted = np.asarray(relay.evaluate(program, *given))
        np.testing.assert_array_equal(np.asarray(relay.compile(program)(*given)), wanted)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_lines_of_narrow_elements_that_fill_little_of_a_vector_have_lanes_across(dtype: str) -> None:
    """A quarter of as many elements as are in a vector of words: one by one they would take many times as long."""
    image = TensorType((8, 3, 28, 28), dtype)
    plan = check(primitive([image], lambda m, x: m("nn.max_pool2d", x, pool_size=[2, 2], strides=[2, 2])))
    assert any(isinstance(s, For) and s.kind == "vectorized" for s in statements(plan.kernel.body))


def test_greatest_elements_of_windows_share_what_they_read() -> None:
    plan = check(
        primitive([tensor((8, 3, 28, 28))], lambda m, x: m("nn.max_pool2d", x, pool_size=[3, 3], padding=[1, 1]))
    )
    sums = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("acc")]
    assert len(sums) >= 4 and {b.scope for b in sums} == {"register"}


def test_a_line_that_fills_a_part_of_a_vector_is_kept_in_a_register() -> None:
    """Its windows are shorter: one after the other nothing would go in vectors."""
    plan = check(
        primitive(
            [tensor((8, 14, 14))],
            lambda m, x: m("nn.max_pool2d", m("expand_dims", x, axis=0), pool_size=[2, 2], strides=[2, 2]),
        )
    )
    (total,) = (s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc))
    assert total.scope == "register" and total.shape == (7,)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "call",
    ["nn.avg_pool2d(%x, pool_size=[3, 3], padding=[1, 1])", "nn.relu(nn.bias_add(CONV, %b)) * %x", "CONV / sum(CONV)"],
)
def test_what_follows_sums_is_made_of_them_in_registers(call: str, known: bool) -> None:
    """Unless others read the sums, too: then they are stored."""
    image, declared = ("2, 4, 19, 28", "") if known else ("n, 4, h, w", "[n: Dim, h: Dim, w: Dim]")
    text = call.replace("CONV", "nn.conv2d(%x, %k, groups=4, padding=[1, 1])")
    program = relay.parse(f"""#[version = "0.0.5"]
def @main{declared}(%x: Tensor[({image}), float32], %k: Tensor[(4, 1, 3, 3), float32], %b: Tensor[(4,), float32]) {{ {text} }}""")
    rng, exe = np.random.default_rng(0), relay.compile(program)
    for height, width in ((19, 28),) if known else ((19, 28), (3, 5), (17, 33), (1, 1)):
        given = [rng.standard_normal(shape).astype("float32") for shape in ((2, 4, height, width), (4, 1, 3, 3), (4,))]
        wanted = np.asarray(relay.evaluate(program, *given))
        np.testing.assert_allclose(np.asarray(exe(*given)), wanted, rtol=1e-3, atol=1e-5)


def test_no_pass_follows_the_sums_of_windows() -> None:
    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.relu", m("nn.bias_add", m("nn.conv2d", x, w, groups=3, padding=[1, 1]), b))

    plan = check(primitive([tensor((2, 3, 16, 28)), tensor((3, 1, 3, 3)), tensor((3,))], build))
    (result,) = plan.kernel.outputs
    assert not any(isinstance(n, Load) and n.source is result for n in nodes(plan.kernel.body))
