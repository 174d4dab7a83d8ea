"""The derived derivatives of every operator against PyTorch's, in float64: generated operands, shapes and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import relay
from relay.op import registry
from relay.te.reads import OutsideError
from tests.op import harness as h
from tests.op.harness import Array, Case, Operand
from tests.op.test_compiled import CASES
from tests.op.test_gradients import FAULTS, NO_DERIVATIVE, flat, in_float64, results, smooth, unflat, weighed
from tests.op.torch_operators import TORCH, F, NotInTorchError, torch

DIFFERENTIABLE = [c for c in CASES if c.name not in NO_DERIVATIVE]
# Differentiable operators that PyTorch does not have, by reason.
EXCLUDED_HERE: Mapping[str, tuple[str, ...]] = {
    "torch.arange is made of numbers and has no derivative": ("dyn.arange",),
}


# -- the comparison


def tensor(x: Array) -> Any:
    if x.dtype == np.float64:
        return torch.tensor(x, requires_grad=True)
    return torch.tensor(x if x.dtype == bool else x.astype(np.int64))


def close(got: Array, wanted: Any, what: str) -> None:
    own = wanted.detach().numpy(force=True)  # where it is lazily zero
    assert got.shape == own.shape, f"{what}: shape {got.shape}, in torch {own.shape}"
    largest = np.max(np.abs(own), initial=1.0, where=np.isfinite(own))
    np.testing.assert_allclose(got, own, rtol=1e-9, atol=1e-9 * largest, err_msg=what)


def grads(outputs: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Array]) -> list[Any]:
    """The cotangents of the inputs, zeros of those that do not matter; they can be differentiated again."""
    used = [(o, torch.from_numpy(w)) for o, w in zip(outputs, weights, strict=True) if o.requires_grad]
    if not used:
        return [torch.zeros_like(x) for x in inputs]
    tensors, given_ = zip(*used, strict=True)
    found = torch.autograd.grad(tensors, inputs, given_, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def compare(
    name: str,
    operands: Sequence[Operand],
    attrs: Mapping[str, Any],
    generator: np.random.Generator,
    symbolic: bool,
    second: bool,
) -> int:
    """Compare the value, the cotangents and tangents, or the second derivatives; how many operands have a cotangent."""
    arrays = flat(operands)
    floats = [n for n, x in enumerate(arrays) if x.dtype == np.float64]
    with np.errstate(all="ignore"):
        out, many = results(name, operands, attrs)
    if not any(o.dtype == np.float64 for o in out) or any(np.isnan(o).any() for o in out):
        return 0
    leaves = [tensor(x) for x in arrays]
    made = TORCH[name](*unflat(leaves, operands), **attrs)
    wanted = list(made) if many else [made]
    for n, (o, w) in enumerate(zip(out, wanted, strict=True)):
        close(o, w, f"result {n} of {name}")
    cots = [np.where(np.isfinite(o), generator.standard_normal(o.shape), 0).astype(o.dtype) for o in out]
    given_: Operand = tuple(cots) if many else cots[0]
    directions = [generator.standard_normal(x.shape) if x.dtype == np.float64 else x for x in arrays]
    found = grads(wanted, [leaves[n] for n in floats], cots)
    tangents = unflat(directions, operands)
    if second:
        still: Operand = tuple(map(np.zeros_like, cots)) if many else np.zeros_like(cots[0])
        products = grads(found, [leaves[n] for n in floats], [directions[n] for n in floats])
        for n, product in zip(floats, products, strict=True):  # the Hessian is symmetric
            moved = h.apply(f"{name}.vjp{n}.jvp", *operands, given_, *tangents, still, **dict(attrs))
            close(moved, product, f"the tangent of {name}.vjp{n}")
        return len(floats)
    for n, g in zip(floats, found, strict=True):
        got = h.apply(f"{name}.vjp{n}", *operands, given_, symbolic=symbolic, **dict(attrs))
        close(got, g, f"{name}.vjp{n}")
    if registry.get(name).shape_mode == "independent":
        made = h.apply(f"{name}.jvp", *operands, *tangents, symbolic=symbolic, **dict(attrs))
        moved = sum(
            weighed(t, c) for t, c, o in zip(made if many else [made], cots, out, strict=True) if o.dtype == float
        )
        products = [g.detach().numpy() * directions[n] for n, g in zip(floats, found, strict=True)]
        size = 1 + sum(float(np.abs(p).sum()) for p in products)
        assert abs(moved - sum(float(p.sum()) for p in products)) <= 1e-9 * size, f"{name}.jvp"
    return len(floats)


def compare_case(case: Case, examples: int, second: bool = False) -> tuple[int, Counter[str]]:
    """Compare so many examples: how many cotangents were compared, and why how many examples were not."""
    done = compared = 0
    left_out: Counter[str] = Counter()

    def run(data: st.DataObject) -> None:
        nonlocal done, compared
        operands, attrs = in_float64(*case.draw(data.draw))
        generator = np.random.default_rng(data.draw(st.integers(0, 99)))
        symbolic = data.draw(st.booleans()) and case.symbolic
        size = sum(x.size for x in flat(operands) if x.dtype == np.float64)
        if done == examples or not 0 < size <= 4000:
            return
        try:
            found = compare(case.name, smooth(case.name, operands, generator), attrs, generator, symbolic, second)
        except NotInTorchError as reason:
            left_out[str(reason)] += 1
            return
        compared += found
        done += found > 0

    for n in range(10):  # of some operators few of the drawn operands are floats
        if done < examples:
            h.drawing(17 + n, 2 * examples)(run)()
    return compared, left_out


def test_every_differentiable_operator_is_here() -> None:
    excluded = [name for names in EXCLUDED_HERE.values() for name in names]
    assert sorted([*TORCH, *excluded]) == sorted(c.name for c in DIFFERENTIABLE)


@pytest.mark.parametrize("case", [c for c in DIFFERENTIABLE if c.name in TORCH], ids=lambda c: c.name)
def test_every_derivative(
    case: Case, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    compared, left_out = compare_case(case, request.config.getoption("--gradient-examples"))
    record_property("examples that torch does not have", dict(left_out))
    assert compared > 0, f"nothing was drawn that can be compared: {left_out}"


# Of its second derivatives torch has those of some operands: not those that mix them with the statistics.
FIRST_ONLY = ("nn.batch_norm",)


@pytest.mark.parametrize(
    "case", [c for c in DIFFERENTIABLE if c.name in TORCH and c.name not in FIRST_ONLY], ids=lambda c: c.name
)
def test_every_second_derivative(case: Case) -> None:
    compared, left_out = compare_case(case, 2, second=True)
    assert compared > 0, f"nothing was drawn that can be compared: {left_out}"


# -- programs: also of operators without a derivative of their own, which are compositions or have rules

PROGRAMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum(nn.silu(%x) * %w)": lambda x, w: (F.silu(x) * w).sum(),
    "sum(std(%x, axis=1, keepdims=True) * %w)": lambda x, w: (torch.std(x, 1, correction=0, keepdim=True) * w).sum(),
    "sum(sort(%x * %w, axis=0, is_ascend=False) * %w)": lambda x, w: (
        torch.sort(x * w, 0, descending=True).values * w
    ).sum(),
    "sum(exp(topk(%x * %w, k=2, axis=1).0))": lambda x, w: torch.exp(torch.topk(x * w, 2, 1).values).sum(),
    "sum(nn.log_softmax(tanh(nn.dense(%x, %w)), axis=-1) * nn.matmul(%x, %w, transpose_b=True))": lambda x, w: (
        F.log_softmax(torch.tanh(F.linear(x, w)), -1) * (x @ w.mT)
    ).sum(),
    "sum(nn.attention(%x, %w, %x * %w))": lambda x, w: F.scaled_dot_product_attention(x, w, x * w).sum(),
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_gradients_of_programs(text: str) -> None:
    """Gradients, and products of Hessians and vectors."""
    program = relay.parse(
        f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(3, 4), float64], %w: Tensor[(3, 4), float64]) {{ {text} }}'
    )
    generator = np.random.default_rng(0)
    x, w, dx, dw = (generator.standard_normal((3, 4)) for _ in range(4))
    gradient: Any = relay.grad(program, argnums=(0, 1))
    moved: Any = relay.evaluate(relay.jvp(gradient), x, w, dx, dw)
    gradients, tangents = moved
    leaves = [tensor(x), tensor(w)]
    found = grads([PROGRAMS[text](*leaves)], leaves, [np.array(1.0)])
    for got, wanted in zip(gradients, found, strict=True):
        close(np.asarray(got), wanted, "the gradient")
    for got, wanted in zip(tangents, grads(found, leaves, [dx, dw]), strict=True):
        close(np.asarray(got), wanted, "the product of the Hessian and a vector")


# Faults of the derivation, each of which must show as a cotangent that is not the one of torch.
FOUND = (
    "an index out of range counts", "a residue class without its last element", "the gradient of a maximum to the others",
    "the states of a scan after its steps", "of several uses the last one only", "the other side of a choice",
    "tanh without the square", "exp as if linear", "a product with the element itself",
)  # fmt: skip


@pytest.mark.parametrize("fault", FOUND)
def test_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_it, name = FAULTS[fault]
    case = next(c for c in CASES if c.name == name)
    seed_it(monkeypatch)
    # As many examples as show each of them whatever is drawn: other versions of what draws draw others.
    with pytest.raises((AssertionError, OutsideError), match=rf"{name}\.vjp\d|is read outside"):
        compare_case(case, 100)
