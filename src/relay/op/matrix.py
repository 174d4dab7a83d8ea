"""Matrix products. ``out_dtype`` names the dtype in which is multiplied and summed; by default it is that of the operands."""

from __future__ import annotations

from relay import te
from relay.op.registry import operator
from relay.op.support import SCHEDULER_NOTES, require_number, require_rank, require_same_dtype


def _result_dtype(op: str, a: te.Tensor, b: te.Tensor, out_dtype: str) -> str:
    require_number(a, op)
    return out_dtype if out_dtype and out_dtype != "void" else require_same_dtype(op, a, b)


@operator("nn.dense", ignored=SCHEDULER_NOTES)
def dense(data: te.Tensor, weight: te.Tensor, *, units: int | None = None, out_dtype: str = "") -> te.Tensor:
    """``out[..., j]`` is the sum over k of ``data[..., k] * weight[j, k]``. ``data``: (..., k); ``weight``: (units, k)."""
    te.require(data.ndim >= 1, "the data of nn.dense must have rank 1 or more")
    require_rank(weight, 2, "the weight of nn.dense")
    dtype = _result_dtype("nn.dense", data, weight, out_dtype)
    extent = te.require_equal(data.shape[-1], weight.shape[1], "the reduced axes of nn.dense's data and weight")
    if units is not None:
        te.require_equal(weight.shape[0], units, "the rows of nn.dense's weight and its units")
    k = te.reduce_axis(extent)
    return te.compute(
        (*data.shape[:-1], weight.shape[0]),
        lambda *i: te.sum(te.cast(data[(*i[:-1], k)], dtype) * te.cast(weight[i[-1], k], dtype), k),
        "dense",
    )


@operator("nn.matmul", ignored=SCHEDULER_NOTES)
def matmul(
    tensor_a: te.Tensor,
    tensor_b: te.Tensor,
    *,
    units: int | None = None,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> te.Tensor:
    """The product of (..., m, k) and (k, n), each given with its last two axes swapped where ``transpose_`` says so.

    A vector is multiplied as the only row of the first operand, (k,), or the only column of the second; the result has no axis for it.
    """
    te.require(tensor_a.ndim >= (2 if transpose_a else 1), "the first operand of nn.matmul has too low a rank")
    many = f"the second operand of nn.matmul must have rank 1 or 2, not {tensor_b.ndim}"
    te.require(tensor_b.ndim in (1, 2), f"{many}: nn.batch_matmul and einsum multiply batches of matrices")
    is_vector = tensor_b.ndim == 1
    te.require(
        not (is_vector and transpose_b), "the second operand of nn.matmul is a vector, which transpose_b does not turn"
    )
    te.require(
        not (is_vector and units is not None), "the second operand of nn.matmul is a vector, so the result has no units"
    )
    dtype = _result_dtype("nn.matmul", tensor_a, tensor_b, out_dtype)
    *lead, last = tensor_a.shape
    if transpose_a:
        *lead, k_a, rows = tensor_a.shape
        lead, last = [*lead, rows], k_a
    columns = [] if is_vector else [tensor_b.shape[0 if transpose_b else 1]]
    k_b = tensor_b.shape[1 if transpose_b else 0]
    extent = te.require_equal(last, k_b, "the reduced axes of nn.matmul's operands")
    if units is not None:
        te.require_equal(columns[0], units, "the columns of nn.matmul's result and its units")
    k = te.reduce_axis(extent)

    def body(*i: te.Scalar) -> te.Scalar:
        left, column = (i, ()) if is_vector else (i[:-1], i[-1:])
        a = tensor_a[(*left[:-1], k, left[-1]) if transpose_a else (*left, k)]
        b = tensor_b[(*column, k) if transpose_b else (k, *column)]
        return te.sum(te.cast(a, dtype) * te.cast(b, dtype), k)

    return te.compute((*lead, *columns), body, "matmul")


@operator("nn.batch_matmul", ignored=SCHEDULER_NOTES)
def batch_matmul(
    tensor_a: te.Tensor,
    tensor_b: te.Tensor,
    *,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> te.Tensor:
    """Products of the matrices of two batches: (b, m, k) and (b, n, k) give (b, m, n); batches of size 1 are repeated.

    ``transpose_a``: the first is (b, k, m). Without ``transpose_b`` the second is (b, k, n).
    """
    require_rank(tensor_a, 3, "the first operand of nn.batch_matmul")
    require_rank(tensor_b, 3, "the second operand of nn.batch_matmul")
    dtype = _result_dtype("nn.batch_matmul", tensor_a, tensor_b, out_dtype)
    batch = te.broadcast_dims(tensor_a.shape[0], tensor_b.shape[0], "the batches of nn.batch_matmul's operands")
    rows, k_a = (tensor_a.shape[2], tensor_a.shape[1]) if transpose_a else tensor_a.shape[1:]
    columns, k_b = tensor_b.shape[1:] if transpose_b else (tensor_b.shape[2], tensor_b.shape[1])
    k = te.reduce_axis(te.require_equal(k_a, k_b, "the reduced axes of nn.batch_matmul's operands"))

    def body(b: te.Scalar, i: te.Scalar, j: te.Scalar) -> te.Scalar:
        left = te.broadcast_index(tensor_a, (b, k, i) if transpose_a else (b, i, k))
        right = te.broadcast_index(tensor_b, (b, j, k) if transpose_b else (b, k, j))
        return te.sum(te.cast(left, dtype) * te.cast(right, dtype), k)

    return te.compute((batch, rows, columns), body, "batch_matmul")
