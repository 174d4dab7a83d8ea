"""Sums of products of several tensors are made in steps of two."""

from __future__ import annotations

import numpy as np
import pytest

import relay
import relay.pipeline
from relay.options import Options
from relay.transform import SplitEinsums
from tests.generator.compare import difference
from tests.transform.support import Array, operators, run, same_results, typed

SHAPES = {"b": 2, "i": 3, "j": 4, "k": 5, "l": 6}


def program(*shapes: str, equation: str, body: str = "{}") -> str:
    """A program that is an einsum of tensors whose axes are named by letters."""
    dims = ", ".join(f"{d}: Dim" for d in dict.fromkeys("".join(shapes)))
    params = ", ".join(f"%x{n}: Tensor[({', '.join(s)},), float32]" for n, s in enumerate(shapes))
    call = f'einsum(({", ".join(f"%x{n}" for n in range(len(shapes)))}), equation="{equation}")'
    return f"def @main[{dims}]({params}) {{ {body.format(call)} }}"


def arrays(*shapes: str) -> list[Array]:
    rng = np.random.default_rng(3)
    return [np.asarray(rng.standard_normal([SHAPES[d] for d in s]), np.float32) for s in shapes]


@pytest.mark.parametrize(
    ("shapes", "equation", "products"),
    [
        (("ij", "jk", "kl"), "ij,jk,kl->il", 2),
        (("ij", "jk", "kl"), "ij,jk,kl", 2),
        (("ij", "jk", "kl", "li"), "ij,jk,kl,li->", 3),
        (("bi", "ij", "bj"), "bi,ij,bj->b", 2),
        (("bij", "bjk", "kk", "bi"), "...ij,...jk,kk,...i->...k", 2),
        (("ij", "bjk", "kl"), "...ij,...jk,...kl->...il", 2),
        # An outer product first: what it is summed with belongs to the same step.
        (("bi", "bj", "ijk"), "bi,bj,ijk->bk", 1),
        (("bi", "bj", "ijk", "kl"), "bi,bj,ijk,kl->lb", 2),
        (("ij", "jk"), "ij,jk->ki", 1),
    ],
)
def test_cut_behind_each_sum(shapes: tuple[str, ...], equation: str, products: int) -> None:
    before = typed(program(*shapes, equation=equation))
    after = run(before, SplitEinsums())
    assert operators(after) == ["einsum"] * products
    same_results(before, after, *arrays(*shapes))


def test_products_of_one_form_share_a_kernel() -> None:
    text = program("ij", "jk", "kl", "lb", equation="ij,jk,kl,lb->ib")
    built = relay.pipeline.build(typed(text), Options(cache=False, workers=1))
    assert len(built.plan.kernels) == 1


def test_gradients_of_several_factors() -> None:
    shapes = ("ij", "jk", "kl", "li")
    text = program(*shapes, equation="ij,jk,kl,li->i", body="sum(tanh({}))").replace(") {", ") -> float32 {", 1)
    module = relay.value_and_grad(typed(text), argnums=(0, 1, 2, 3))
    given = arrays(*shapes)
    assert difference(relay.evaluate(module, *given), relay.compile(module, threads=1)(*given)) is None


@pytest.mark.parametrize(
    ("shapes", "equation", "first"),
    [
        # 24 times 24 by 24, and 24 by 2 after it: the narrow one first.
        (((24, 24), (24, 24), (24, 2)), "ij,jk,kl->il", "ab,bc->ac"),
        (((2, 24), (24, 24), (24, 24)), "ij,jk,kl->il", None),
        (((24, 24), (24, 24), (24, 24)), "ij,jk,kl->il", None),
        (((3, 24, 24), (24, 24), (24, 2), (2, 24)), "bij,jk,kl,lm->bim", "ab,bc->ac"),
        (((24, 2), (24, 3), (24, 24), (24,)), "ia,ib,ij,j->ab", "ab,b->a"),
    ],
)
def test_known_sizes_say_in_which_order(shapes: tuple[tuple[int, ...], ...], equation: str, first: str | None) -> None:
    params = ", ".join(f"%x{n}: Tensor[{s}, float64]" for n, s in enumerate(shapes))
    names = ", ".join(f"%x{n}" for n in range(len(shapes)))
    before = typed(f'def @main({params}) {{ einsum(({names}), equation="{equation}") }}')
    after = run(before, SplitEinsums())
    text = str(after)
    assert (f"%x{0}, %x{1})" in text) == (first is None)
    if first is not None:
        assert text[text.index("equation=") :].startswith(f'equation="{first}"')
    rng = np.random.default_rng(3)
    same_results(before, after, *(rng.standard_normal(s).astype("float64") for s in shapes))
