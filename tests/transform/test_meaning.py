"""Every pass keeps what a program computes: the definitional interpreter before and after."""

from __future__ import annotations

import numpy as np
import pytest

from relay.loop.costs import Machine
from relay.transform import (
    CommonSubexpressions,
    CompileMatch,
    DeadCode,
    DropIdentities,
    DropUnread,
    EtaExpand,
    ExpandCompositions,
    FoldConstants,
    FuseOps,
    Inline,
    Pass,
    Recompute,
    Simplify,
)
from relay.typing import monomorphise
from tests.transform.support import evaluate_primitive, run, same_results, typed

F = np.float32
RNG = np.random.default_rng(7)


def array(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return RNG.uniform(-1, 1, shape).astype(F)


LISTS = "type List[A] { Cons(A, List[A]), Nil, }\n"
PROGRAMS: dict[str, tuple[str, tuple[object, ...]]] = {
    "layer": (
        """def @main[n: Dim](%x: Tensor[(n, 8), float32], %w: Tensor[(16, 8), float32], %b: Tensor[(16), float32]) {
             let %h = nn.gelu(nn.bias_add(nn.dense(%x, %w), %b, axis=1));
             let %m = mean(%h, axis=-1, keepdims=True);
             let %d = subtract(%h, %m);
             let %v = mean(multiply(%d, %d), axis=-1, keepdims=True);
             let %l = divide(%d, sqrt(add(%v, 1e-5f)));
             let %t = transpose(reshape(%l, newshape=[-1, 4, 4]), axes=[1, 0, 2]);
             (nn.softmax(nn.batch_matmul(%t, %t)), nn.silu(%l), concatenate((exp(%l), %h), axis=1))
           }""",
        (array(5, 8), array(16, 8), array(16)),
    ),
    "sharing": (
        """def @main(%x: Tensor[(4), float32], %c: bool, %d: bool) {
             %0 = exp(%x);
             %1 = add(%0, %0);
             if (%c) { if (%d) { (%1, %0) } else { (%1, add(%1, %0)) } } else { (%0, %0) }
           }""",
        (array(4), np.bool_(True), np.bool_(False)),
    ),
    "references": (
        """def @bump(%r: ref(int32)) { let %v = !%r; %r := %v + 1; %v }
           def @main() {
             let %r = ref(3);
             let %a = @bump(%r);
             let %b = @bump(%r);
             let %unused = @bump(%r);
             (%a, %b, !%r)
           }""",
        (),
    ),
    "lists": (
        LISTS
        + """def @go(%n: int32) -> List[int32] { if (%n < 1) { Nil } else { Cons(%n, @go(%n - 1)) } }
           def @zip(%xs: List[int32], %ys: List[int32]) -> int32 {
             match ((%xs, %ys)) {
               (Cons(%a, Cons(%b, _)), Cons(%c, _)) => %a * %b + %c,
               (Cons(%a, _), Nil) => { let %q = %a + %a; %q * %q },
               (Nil, Cons(%a, %r)) => { let %q = @zip(%r, %xs); %q - %a },
               (_, _) => { let %q = 7 * 6; %q - 1 },
             }
           }
           def @main(%n: int32) {
             (@zip(@go(3), @go(2)), @zip(@go(%n), @go(0)), @zip(@go(0), @go(%n)), @zip(@go(1), @go(1)), @zip(Nil, Nil))
           }""",
        (np.int32(2),),
    ),
    "higher_order": (
        LISTS
        + """def @map[A, B](%f: fn(A) -> B, %xs: List[A]) -> List[B] {
             match (%xs) { Cons(%x, %r) => Cons(%f(%x), @map(%f, %r)), Nil => Nil }
           }
           def @main(%k: float32, %x: Tensor[(3), float32]) {
             let %scale = fn (%y: Tensor[(3), float32]) { multiply(%y, %k) };
             let %l = Cons(%x, Cons(add(%x, 1f), Nil));
             (@map(%scale, %l), @map(negative, %l))
           }""",
        (np.float32(2.5), array(3)),
    ),
    "loop": (
        """def @main(%n: int32, %x: Tensor[(2, 2), float32]) {
             let %loop = fn (%i: int32, %acc: Tensor[(2, 2), float32]) -> Tensor[(2, 2), float32] {
               if (%i < %n) { %loop(%i + 1, nn.dense(%acc, %x)) } else { %acc }
             };
             %loop(0, %x)
           }""",
        (np.int32(3), array(2, 2)),
    ),
    "split": (
        """def @main(%x: Tensor[(6, 4), float32]) {
             let %s = split(%x, indices_or_sections=3, axis=0);
             let %t = split(%x, indices_or_sections=2, axis=1);
             (add(%s.0, %s.2), exp(%s.1), %t, add(%t.0, %t.1), multiply(sum(%x), max(%x)))
           }""",
        (array(6, 4),),
    ),
    "batch_norm": (
        """def @main(%x: Tensor[(2, 3, 4, 4), float32], %g: Tensor[(3), float32], %v: Tensor[(3), float32]) {
             let %b = nn.batch_norm(%x, %g, %g, %v, exp(%v));
             (nn.relu(%b.0), %b.1)
           }""",
        (array(2, 3, 4, 4), array(3), array(3)),
    ),
    "constants": (
        """def @main(%x: Tensor[(2, 3), float32]) {
             let %z = zeros(shape=(2, 3), dtype="float32");
             let %s = split(add(%z, 3f), indices_or_sections=[1], axis=0);
             if (less(add(2f, 3f), 6f)) { (add(%x, %s.0), shape_of(%x), ndarray_size(%x)) } else { (%z, shape_of(%z), ndarray_size(%z)) }
           }""",
        (array(2, 3),),
    ),
}
PASSES: tuple[Pass, ...] = (
    EtaExpand(),
    ExpandCompositions(),
    Inline(),
    CommonSubexpressions(),
    Simplify(),
    FoldConstants(evaluate_primitive),
    CompileMatch(),
    DeadCode(),
    FuseOps(),
    FuseOps(max_size=1, outputs=False),
    FuseOps(outputs=False),
    DropIdentities(),
    DropUnread(),
    Recompute(machine=Machine(flops=1e15)),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_pass_keeps_the_results(name: str) -> None:
    text, args = PROGRAMS[name]
    before = monomorphise(typed(text), ["main"])
    same_results(before, run(before), *args)
    for p in PASSES:
        same_results(before, run(before, p), *args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_in_a_row_keep_the_results(name: str) -> None:
    text, args = PROGRAMS[name]
    before = monomorphise(typed(text), ["main"])
    after = run(
        before,
        EtaExpand(),
        ExpandCompositions(),
        Simplify(),
        Inline(),
        CompileMatch(),
        Simplify(),
        FoldConstants(evaluate_primitive),
        Simplify(),
        CommonSubexpressions(),
        DeadCode(),
        FuseOps(),
    )
    same_results(before, after, *args)
