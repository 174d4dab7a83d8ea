"""What fusion groups, and what it must not."""

from __future__ import annotations

from relay.ir.expr import Call, Constant
from relay.transform import DeadCode, FuseOps, NameDims
from relay.transform.blocks import all_bindings, body_of, is_primitive
from tests.transform.support import kernels, operators, run

T = "Tensor[(8, 16), float32]"


def fused(params: str, body: str, **options: int) -> list[list[str]]:
    return kernels(run(f"def @main({params}) {{ {body} }}", FuseOps(**options)))  # type: ignore[arg-type]


def test_a_chain_is_one_kernel() -> None:
    assert fused(f"%x: {T}", "exp(tanh(add(%x, 1f)))") == [["add", "tanh", "exp"]]


def test_a_diamond_is_one_kernel() -> None:
    body = "let %a = exp(%x); multiply(add(%a, 1f), tanh(%a))"
    assert fused(f"%x: {T}", body) == [["exp", "add", "tanh", "multiply"]]


def test_several_outputs() -> None:
    body = "let %a = exp(%x); let %b = tanh(%a); (%a, %b)"
    assert fused(f"%x: {T}", body) == [["exp", "tanh"]]
    assert fused(f"%x: {T}", body, outputs=False) == [["exp"], ["tanh"]]


def test_several_outputs_behind_slices() -> None:
    # A state and what is made of it, each from its own part of one product: the parts come from outside.
    params = "%z: Tensor[(8, 32), float32], %c: Tensor[(8, 16), float32]"
    parts = [f"strided_slice(%z, begin=[{n}], end=[{n + 16}], axes=[1])" for n in (0, 16)]
    body = f"let %s = %c * sigmoid({parts[0]}); let %h = tanh(%s) * sigmoid({parts[1]}); (%s, %h)"
    assert len(fused(params, body)) == 1
    # An index map of what is made inside is another iteration space.
    body = "let %a = exp(%x); let %b = tanh(transpose(%a)); (%a, %b)"
    assert fused("%x: Tensor[(8, 8), float32]", body) == [["exp"], ["transpose", "tanh"]]


def test_what_a_window_reads_lies_in_lines() -> None:
    """An image is turned once, before windows read it many times and after they are written, not in the window's kernel."""
    image = "%x: Tensor[(1, 8, 8, 16), float32]"
    body = "transpose(nn.max_pool2d(transpose(%x, axes=[0, 3, 1, 2]), pool_size=(3, 3)), axes=[0, 2, 3, 1])"
    assert fused(image, body) == [["transpose"], ["nn.max_pool2d"], ["transpose"]]
    # One whose lines stay lines, and windows that read each element once.
    body = "nn.max_pool2d(transpose(%x, axes=[0, 2, 1, 3]), pool_size=(3, 3))"
    assert fused(image, body) == [["transpose", "nn.max_pool2d"]]


def test_reductions_of_one_tensor_are_one_kernel() -> None:
    body = "(max(%x, axis=[0]), argmax(%x, axis=[0]), sum(%x * %x, axis=[0]))"
    assert fused(f"%x: {T}", body) == [["max", "argmax", "multiply", "sum"]]
    # What makes the tensor is in the same kernel, and is a result of it only where somebody else reads it.
    body = "let %s = expand_dims(%v, axis=1) + %w; (max(%s, axis=[0]) + %v, argmax(%s, axis=[0]))"
    params = "%v: Tensor[(9,), float32], %w: Tensor[(9, 9), float32]"
    assert fused(params, body) == [["add", "max", "add", "argmax"]]
    assert fused(f"%x: {T}", "let %e = exp(%x); (sum(%e, axis=[1]), max(%e, axis=[1]), reverse(%e, axis=0))") == [
        ["exp"],
        ["sum", "max"],
        ["reverse"],
    ]
    # A softmax goes through the rows that are reduced; over other axes, or behind one another, nothing is shared.
    assert len(fused(f"%x: {T}", "(nn.softmax(%x), argmax(%x, axis=[1]))")) == 1
    assert len(fused(f"%x: {T}", "(sum(%x, axis=[0]), sum(%x, axis=[1]))")) == 2
    body = (
        "let %m = max(%x, axis=[0]); let %d = nn.dense(expand_dims(%m, axis=0), %x); (%m, sum(%x * sum(%d), axis=[0]))"
    )
    assert fused(f"%x: {T}", body) == [["max"], ["nn.dense"], ["sum"], ["multiply", "sum"]]
    # Over other axes, which leave one element where they were.
    keep = "keepdims=True"
    assert fused(f"%x: {T}", f"(max(%x, axis=[0], {keep}), sum(%x, axis=[0], {keep}))") == [["max", "sum"]]
    body = f"(mean(%x, axis=[0, 1], {keep}), sum(%x, axis=[0, 2], {keep}))"
    assert fused("%x: Tensor[(8, 4, 16), float32]", body) == [["mean"], ["sum"]]


def test_several_outputs_make_no_cycle() -> None:
    # The sum needs all of a before b can start, so a and b cannot be one kernel.
    body = "let %a = exp(%x); let %s = sum(%a); let %b = multiply(%a, %s); (%a, %b)"
    assert fused(f"%x: {T}", body) == [["exp"], ["sum"], ["multiply"]]


def test_an_output_is_ready_for_what_stands_between() -> None:
    body = "let %a = exp(%x); let %m = nn.dense(%a, %a); let %b = tanh(%a); (%a, %b, %m)"
    assert fused(f"%x: {T}", body) == [["exp", "tanh"], ["nn.dense"]]


def test_a_contraction_takes_its_epilogue() -> None:
    body = "add(nn.relu(nn.bias_add(nn.dense(%x, %w), %b, axis=1)), tanh(%r))"
    params = f"%x: {T}, %w: Tensor[(4, 16), float32], %b: Tensor[(4), float32], %r: Tensor[(8, 4), float32]"
    assert fused(params, body) == [["nn.dense", "nn.bias_add", "nn.relu", "tanh", "add"]]


def test_a_contraction_takes_index_maps_but_no_arithmetic_before_it() -> None:
    params = "%x: Tensor[(16, 8), float32], %w: Tensor[(4, 16), float32]"
    assert fused(params, "nn.dense(transpose(%x), %w)") == [["transpose", "nn.dense"]]
    assert fused(params, "nn.dense(transpose(exp(%x)), %w)") == [["exp", "transpose"], ["nn.dense"]]


def test_a_contraction_reads_its_rows_through_an_index() -> None:
    params = f"%x: {T}, %y: Tensor[(9, 4), float32], %w: Tensor[(4, 16), float32], %i: Tensor[(5,), int64]"
    rows = "take(%x, %i, axis=0)"
    body = f"nn.dense({rows}, %w) * take(%y, %i, axis=0)"
    assert fused(params, body) == [["take", "nn.dense", "take", "multiply"]]
    # Not the other operand, whose rows would be looked up again and again, nor what others read too.
    assert fused(params, f"nn.dense(%x, {rows})") == [["take"], ["nn.dense"]]
    assert fused(params, f"let %r = {rows}; (%r, nn.dense(%r, %w))") == [["take"], ["nn.dense"]]
    # An index along the last axis is looked up for every element.
    columns = "Tensor[(16,), int64]"
    assert fused(f"%x: {T}, %w: Tensor[(4, 16), float32], %i: {columns}", "nn.dense(take(%x, %i, axis=1), %w)") == [
        ["take"],
        ["nn.dense"],
    ]


def test_products_with_vectors_read_their_matrices_through_an_index() -> None:
    """Each element of a matrix of a table is read once then, and a copy would be written and read besides."""
    params = "%x: Tensor[(ROWS, 16), float32], %w: Tensor[(5, 16, 16), float32], %n: int32"
    for operator in ("nn.dense", "nn.matmul"):
        body = f"tanh({operator}(%x, take(%w, %n, axis=0)))"
        assert fused(params.replace("ROWS", "1"), body) == [["take", operator, "tanh"]]
        assert fused(params.replace("ROWS", "2"), body) == [["take"], [operator, "tanh"]]
    # The same of a batch; a matrix of single rows is put together before.
    each = "%x: Tensor[(7, 1, 16), float32], %w: Tensor[(5, 16, 16), float32], %n: Tensor[(7,), int32]"
    body = "nn.dense.batched(%x, take(%w, %n, axis=0), mask=[1, 1])"
    assert fused(each, body) == [["take", "nn.dense.batched"]]
    assert len(fused(each.replace("(7, 1", "(7, 2"), body)) == 2
    rows = "%x: Tensor[(1, 16), float32], %w: Tensor[(50, 16), float32], %n: Tensor[(9,), int32]"
    assert fused(rows, "nn.dense(%x, take(%w, %n, axis=0))") == [["take"], ["nn.dense"]]


def test_a_contraction_moves_its_rows_to_where_they_belong() -> None:
    params = "%x: Tensor[(3, 8, 16), float32], %w: Tensor[(3, 4, 16), float32], %y: Tensor[(8, 3, 4), float32]"
    moved = "transpose(nn.batch_matmul(%x, %w), axes=[1, 0, 2])"
    assert fused(params, f"add({moved}, %y)") == [["nn.batch_matmul", "transpose", "add"]]
    assert fused(params, f"reshape({moved}, newshape=[8, 12])") == [["nn.batch_matmul", "transpose"]]
    assert fused(params, "transpose(nn.batch_matmul(%x, %w), axes=[0, 2, 1])") == [["nn.batch_matmul"], ["transpose"]]


def test_two_contractions_are_two_kernels() -> None:
    params = f"%x: {T}, %w: Tensor[(4, 16), float32]"
    groups = fused(params, "add(nn.dense(%x, %w), nn.dense(tanh(%x), %w))")
    assert sorted(len([o for o in g if o == "nn.dense"]) for g in groups if "nn.dense" in g) == [1, 1]


def test_rows_are_one_kernel() -> None:
    body = """let %e = exp(subtract(%x, max(%x, axis=-1, keepdims=True)));
              divide(%e, sum(%e, axis=-1, keepdims=True))"""
    assert fused(f"%x: {T}", body) == [["max", "subtract", "exp", "sum", "divide"]]


def test_columns_are_not_rows() -> None:
    body = "subtract(%x, max(%x, axis=0, keepdims=True))"
    assert fused(f"%x: {T}", body) == [["max"], ["subtract"]]


def test_what_every_row_reads_is_made_before() -> None:
    """Sums by rows that each row of what follows reads all of, where that has as many rows, would be computed again for each."""
    square = "%x: Tensor[(8, 8), float32], %y: Tensor[(8, 16), float32]"
    assert fused(square, "%x + sum(%y, axis=[1])") == [["sum"], ["add"]]
    assert fused(square, "%x + sum(%y, axis=[1], keepdims=True)") == [["sum", "add"]]
    # A softmax over the first axis: of each element, and of all that it is divided by the sum of.
    three = "%x: Tensor[(8, 4, 16), float32]"
    assert fused(three, "nn.softmax(sum(%x, axis=[2]), axis=0)") == [["sum"], ["nn.softmax"]]
    assert fused(three, "nn.softmax(sum(%x, axis=[2]), axis=1)") == [["sum", "nn.softmax"]]
    # Attention that is spelled out along the first axis: what is multiplied is not written, but read with its sums.
    body = "let %w = nn.softmax(sum(%x, axis=[2]), axis=0); sum(expand_dims(%w, axis=2) * %x, axis=[0])"
    assert fused(three, body) == [["sum"], ["nn.softmax"], ["multiply", "sum"]]


def test_what_is_larger_than_it_is_made_from_is_made_where_it_is_reduced() -> None:
    """Sums of rows, and sums by columns of what they are multiplied with: the first are written, the product is not."""
    params = "%a: Tensor[(8, 16), float32], %x: Tensor[(16,), float32]"
    body = "let %y = sum(%a * %x, axis=[1]); sum(%a * expand_dims(tanh(%y), axis=1), axis=[0])"
    assert fused(params, body) == [["multiply", "sum", "tanh"], ["multiply", "sum"]]
    # Rows, which share a kernel; a product that is read elsewhere too; one no larger than what would be written for it.
    assert len(fused(params, body.replace("axis=[0]", "axis=[1]"))) == 1
    body = "let %y = sum(%a * %x, axis=[1]); let %p = %a * expand_dims(%y, axis=1); (sum(%p, axis=[0]), %p)"
    assert fused(params, body) == [["multiply", "sum", "expand_dims", "multiply"], ["sum"]]
    body = "let %e = exp(%a); let %p = %e / sum(%e, axis=[1], keepdims=True); sum(%p, axis=[0])"
    assert fused(params, body) == [["exp", "sum", "divide"], ["sum"]]


def test_what_is_computed_twice_in_a_kernel_is_computed_once() -> None:
    """Two calls of one operation on the same operands, as copies for several readers leave them."""
    body = "let %a = exp(%x); let %b = exp(%x); tanh(%a) + sigmoid(%b) * %b"
    assert fused(f"%x: {T}", body) == [["exp", "tanh", "sigmoid", "multiply", "add"]]


def test_what_is_turned_is_read_along_memory() -> None:
    """A transpose shares a kernel where it is turned by blocks in registers, or where all that is read goes the other way."""
    square = "%x: Tensor[(8, 8), float32]"
    assert fused(square, "%x + tanh(transpose(exp(%x)))") == [["exp", "transpose", "tanh", "add"]]
    assert fused(square, "sum(exp(transpose(%x)), axis=[1])") == [["transpose", "exp", "sum"]]
    assert fused(square, "sum(transpose(%x), axis=[0])") == [["transpose", "sum"]]
    # Two operands of which one goes the other way, a result as large as what is read, places that are not linear.
    assert fused(square, "sum(%x + transpose(%x), axis=[1])") == [["transpose", "add"], ["sum"]]
    assert fused(square, "nn.softmax(transpose(%x))") == [["transpose"], ["nn.softmax"]]
    assert fused(square, "reverse(transpose(%x), axis=0)") == [["transpose"], ["reverse"]]
    assert fused(square, "concatenate((%x, transpose(%x)), axis=1)") == [["transpose"], ["concatenate"]]
    # Of three axes: what lies along memory is summed, or stays the last, or neither.
    three = "%x: Tensor[(8, 4, 16), float32]"
    for axis, groups in ((1, 1), (2, 1), (0, 2)):
        assert len(fused(three, f"sum(transpose(%x, axes=[0, 2, 1]), axis=[{axis}])")) == groups
    assert len(fused(three, "max(transpose(%x, axes=[2, 0, 1]), axis=[0, 1])")) == 2


def test_what_is_found_element_by_element_is_made_of_one_operand() -> None:
    """Columns by an index: of two operands each would be searched; of one, and of a few of many columns, only what is found is made."""
    params = "%x: Tensor[(8, 16), float32], %y: Tensor[(8, 16), float32], %i: Tensor[(16,), int64], %few: Tensor[(2,), int64]"
    assert fused(params, "tanh(take(%x * %y, %i, axis=1))") == [["multiply"], ["take", "tanh"]]
    assert fused(params, "take(exp(%x) * %x, %i, axis=1) + %y") == [["exp", "multiply", "take", "add"]]
    assert fused(params, "take(concatenate((%x, %y), axis=0), %i, axis=1)") == [["concatenate"], ["take"]]
    assert fused(params, "take(%x * %y, %few, axis=1)") == [["multiply", "take"]]
    # Rows lie together.
    assert fused(params, "take(%x * %y, %few, axis=0)") == [["multiply", "take"]]


def test_what_is_found_element_by_element_is_found_once() -> None:
    """Columns by an index stand with what goes through them once, at one place: one loop, whose results have no more elements."""
    params = "%x: Tensor[(8, 16), float32], %i: Tensor[(16,), int64], %z: Tensor[(4, 8, 16), float32], %y: Tensor[(8, 16), float32]"
    found = "let %t = take(%x, %i, axis=1);"
    assert fused(params, f"{found} sum(%t + %y, axis=[1])") == [["take", "add", "sum"]]
    assert fused(params, f"{found} (%t, tanh(%t), %t + %y)") == [["take", "tanh", "add"]]
    assert fused(params, f"{found} reverse(%t + %y, axis=0)") == [["take", "add", "reverse"]]
    assert fused(params, f"{found} (tanh(%t), reverse(%t, axis=0))") == [["take", "tanh"], ["reverse"]]
    for again in ("nn.log_softmax(%t)", "%t - mean(%t, axis=[1], keepdims=True)", "%t + %z"):
        assert fused(params, f"{found} {again}")[0] == ["take"], again


def test_what_is_read_by_many_ways_is_looked_at_once() -> None:
    """Thirty values, each made of the one before twice over: 2**30 ways lead through them."""
    squares = " ".join(f"let %v{n + 1} = %v{n} * tanh(%v{n});" for n in range(30))
    before = "let %v0 = %x * expand_dims(sum(%x, axis=[1]), axis=1); "
    assert fused(f"%x: {T}", f"{before}{squares} sum(%v30, axis=[0])")[0][-1] == "sum"
    columns = f"%x: {T}, %i: Tensor[(16,), int64]"
    (one,) = fused(columns, f"let %v0 = exp(%x); {squares} take(%v30, %i, axis=1)")
    assert one[-1] == "take"


def test_views_alone_stay_views() -> None:
    module = run(
        f"def @main(%x: {T}) {{ exp(reshape(tanh(reshape(%x, newshape=[128])), newshape=[4, 32])) }}", FuseOps()
    )
    assert operators(module) == ["reshape"]
    assert kernels(module) == [["tanh", "reshape", "exp"]]
    module = run(f"def @main(%x: {T}) {{ reshape(exp(%x), newshape=[128]) }}", FuseOps())
    assert operators(module) == ["reshape"] and kernels(module) == [["exp"]]


def test_never_across_blocks() -> None:
    assert fused(f"%x: {T}, %c: bool", "let %a = exp(%x); if (%c) { tanh(%a) } else { %a }") == [["exp"], ["tanh"]]


def test_small_constants_go_inside() -> None:
    module = run(f"def @main(%x: {T}) {{ multiply(add(%x, 2f), full(3f, shape=(1, 1))) }}", FuseOps())
    (binding,) = body_of(module.functions["main"]).bindings
    assert isinstance(binding.value, Call) and len(binding.value.args) == 1
    inner = [a for b in all_bindings(body_of(binding.value.fn)) if isinstance(b.value, Call) for a in b.value.args]  # type: ignore[arg-type]
    assert sum(isinstance(a, Constant) for a in inner) == 2


def test_a_tuple_is_made_inside() -> None:
    params = f"%x: {T}, %t: ({T}, {T})"
    assert fused(params, "concatenate((exp(%x), tanh(%x)), axis=0)") == [["exp", "tanh", "concatenate"]]
    module = run(f"def @main({params}) {{ concatenate(%t, axis=0) }}", FuseOps())
    (call,) = [b.value for b in all_bindings(body_of(module.functions["main"])) if isinstance(b.value, Call)]
    assert is_primitive(call.fn) and len(call.args) == 2


def test_the_size_is_bounded() -> None:
    body = "%x"
    for _ in range(20):
        body = f"exp({body})"
    assert [len(k) for k in fused(f"%x: {T}", body, max_size=8)] == [8, 8, 4]
    assert all(len(k) == 1 for k in fused(f"%x: {T}", body, max_size=1))


def test_effects_and_checks_keep_their_order() -> None:
    text = """def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32], %r: ref(Tensor[(?), float32])) {
                let %a = exp(%x);
                %r := %a;
                let %v = !%r;
                %r := %y;
                (%a, add(%a, %v), add(%a, %y))
              }"""
    module = run(text, NameDims(), DeadCode(), FuseOps())
    order = [type(b.value).__name__ for b in body_of(module.functions["main"]).bindings]
    assert [o for o in order if o.startswith("Ref")] == ["RefWrite", "RefRead", "RefWrite"]
    names = ["check" if o == "check_equal" else o for o in operators(module)]
    assert names == ["check", "check"]
    bindings = body_of(module.functions["main"]).bindings
    last_check = max(n for n, b in enumerate(bindings) if isinstance(b.value, Call) and not is_primitive(b.value.fn))
    adds = [n for n, b in enumerate(bindings) if isinstance(b.value, Call) and is_primitive(b.value.fn)]
    assert adds[-1] > last_check


def test_data_dependent_operators_stand_alone() -> None:
    text = """def @main(%x: Tensor[(8), float32], %n: Tensor[(2), int64]) {
                exp(dyn.reshape(tanh(%x), %n))
              }"""
    assert kernels(run(text, NameDims(), FuseOps())) == [["tanh"], ["dyn.reshape"], ["exp"]]
