"""Loops of numbers that put one behind a vector in each step: one kernel, with the interpreter's results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import relay
from relay.ir.diagnostics import ExecutionError
from relay.options import Options
from relay.pipeline import build

HEAD = '#[version = "0.0.5"]\nimport prelude\n'


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).standard_normal(n).astype("float32")


def recurrences(text: str) -> list[tuple[int, int]]:
    """Of each loop that is a kernel: how many vectors grow, and how many numbers it ends with that are read."""
    module = relay.typing.infer(relay.parse(HEAD + text))
    found = build(module, Options()).plan.recurrences.values()
    return [(len(loop.rows), len(loop.last)) for loop, _ in found]


def check(text: str, *argument_lists: tuple[object, ...]) -> None:
    module = relay.parse(HEAD + text)
    exes = [relay.compile(module, executor=executor, cache=False) for executor in ("vm", "aot")]
    for arguments in argument_lists:
        expected = relay.evaluate(module, *arguments)
        for exe in exes:
            found = exe(*arguments)
            for a, b in zip(flat(found), flat(expected), strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def flat(value: object) -> list[np.ndarray]:
    return [a for v in value for a in flat(v)] if isinstance(value, tuple) else [np.asarray(value)]


# A row of a dynamic program: an element from the left, one from above, and that above to the left, which was read in the step before.
WARPING = """
def @row[m: Dim, k: Dim](%j: int64, %left: float32, %corner: float32, %above: Tensor[(m,), float32], %costs: Tensor[(m,), float32],
    %row: Tensor[(k,), float32]) -> Tensor[(?,), float32] {
  if (%j < Dim[m]) {
    let %up = take(%above, %j, axis=0);
    let %here = take(%costs, %j, axis=0) + minimum(minimum(%left, %up), %corner);
    @row(%j + 1i64, %here, %up, %above, %costs, concatenate((%row, expand_dims(%here, axis=0)), axis=0))
  } else { %row }
}
def @main[m: Dim](%above: Tensor[(m,), float32], %costs: Tensor[(m,), float32]) -> Tensor[(?,), float32] {
  @row(0i64, 10f, 0.5f, %above, %costs, zeros(shape=[0], dtype="float32"))
}"""

# A filter: counted down in int32, behind what is there; what it ends with is read, and the choice is made by a number.
FILTER = """
def @go[n: Dim, k: Dim](%left: int32, %y: float32, %up: bool, %x: Tensor[(n,), float32], %out: Tensor[(k,), float32])
    -> (Tensor[(?,), float32], float32, bool, int32, int64) {
  if (%left <= 0) { (%out, %y * 2f, %up, %left, Dim[k]) } else {
    let %in = take(%x, %left - 1, axis=0);
    let %next = if (%in > 0f) { 0.9f * %y + %in } else { 0.5f * %y - tanh(%in) };
    @go(%left - 1, %next, %next > %y, %x, concatenate((%out, expand_dims(%next, axis=0)), axis=0))
  }
}
def @main[n: Dim, k: Dim](%most: int32, %x: Tensor[(n,), float32], %before: Tensor[(k,), float32]) {
  @go(%most, 0.25f, False, %x, %before)
}"""

# Several vectors; which step comes next is chosen at the end, and numbers are handed on for two steps.
SEVERAL = """
def @go[n: Dim, a: Dim, b: Dim](%i: int64, %one: int64, %two: int64, %sum: int64, %x: Tensor[(n,), int64], %sums: Tensor[(a,), int64],
    %olds: Tensor[(b,), int64]) -> (Tensor[(?,), int64], Tensor[(?,), int64], int64, int64) {
  if (%i >= Dim[n - 1]) { (%sums, %olds, %two, %sum) } else {
    let %here = take(%x, %i, axis=0);
    if (%here > 0i64) {
      @go(%i + 1i64, %here, %one, %sum + %here, %x, concatenate((%sums, expand_dims(%sum, axis=0)), axis=0),
        concatenate((%olds, expand_dims(%two, axis=0)), axis=0))
    } else {
      @go(%i + 1i64, %here, %one, 3i64 * %sum, %x, concatenate((%sums, expand_dims(%sum - 1i64, axis=0)), axis=0),
        concatenate((%olds, expand_dims(%two * 2i64, axis=0)), axis=0))
    }
  }
}
def @main[n: Dim](%x: Tensor[(n,), int64]) {
  @go(0i64, 7i64, 8i64, 1i64, %x, zeros(shape=[0], dtype="int64"), zeros(shape=[0], dtype="int64"))
}"""


def test_a_row_of_a_dynamic_program() -> None:
    assert recurrences(WARPING) == [(1, 0)]
    check(WARPING, *((vector(n), vector(n, 1)) for n in (0, 1, 2, 33)))


def test_a_filter_behind_what_is_there() -> None:
    assert recurrences(FILTER) == [(1, 3)]
    check(FILTER, *((np.int32(n), vector(9), vector(k)) for n, k in ((9, 0), (9, 3), (1, 1), (0, 2), (-3, 0), (12, 0))))


def test_several_vectors_and_numbers_handed_on_twice() -> None:
    assert recurrences(SEVERAL) == [(2, 2)]
    integers = (np.random.default_rng(n).integers(-5, 6, n) for n in (0, 1, 2, 3, 17))
    check(SEVERAL, *((x,) for x in integers))


def test_a_loop_within_a_loop_reads_the_row_before() -> None:
    text = """
    def @main[n: Dim, m: Dim](%a: Tensor[(n,), int32], %b: Tensor[(m,), int32]) -> Tensor[(m,), int32] {
      let %inner = fn[k: Dim] (%j: int64, %x: int32, %corner: int32, %left: int32, %above: Tensor[(m,), int32],
          %row: Tensor[(k,), int32]) -> Tensor[(?,), int32] {
        if (%j < Dim[m]) {
          let %up = take(%above, %j, axis=0);
          let %changed = if (take(%b, %j, axis=0) == %x) { %corner } else { %corner + 1 };
          let %best = minimum(%changed, minimum(%up, %left) + 1);
          %inner(%j + 1i64, %x, %up, %best, %above, concatenate((%row, expand_dims(%best, axis=0)), axis=0))
        } else { %row }
      };
      @for(0i64, Dim[n], fn (%i: int64, %above: Tensor[(m,), int32]) -> Tensor[(m,), int32] {
        let %i = cast(%i, dtype="int32");
        let %row: Tensor[(m,), int32] = %inner(0i64, take(%a, %i, axis=0), %i, %i + 1, %above, zeros(shape=[0], dtype="int32"));
        %row
      }, cumsum(ones_like(%b), axis=0, dtype="int32"))
    }"""
    assert recurrences(text) == [(1, 0)]
    letters = [np.random.default_rng(n).integers(0, 3, n).astype("int32") for n in (1, 6)]
    check(text, *((a, b) for a in letters for b in letters))


def test_what_is_not_chosen_may_divide_by_zero() -> None:
    text = """
    def @go[n: Dim, k: Dim](%i: int32, %s: int64, %x: Tensor[(n,), int64], %out: Tensor[(k,), int64]) -> Tensor[(?,), int64] {
      if (%i < cast(Dim[n], dtype="int32")) {
        let %by = take(%x, %i, axis=0);
        let %next = if (%by == 0i64) { %s } else { floor_divide(100i64 * %s, %by) + floor_mod(%s, %by) };
        @go(%i + 1, %next, %x, concatenate((%out, expand_dims(%next, axis=0)), axis=0))
      } else { %out }
    }
    def @main[n: Dim](%x: Tensor[(n,), int64]) { @go(0, 3i64, %x, zeros(shape=[0], dtype="int64")) }"""
    assert recurrences(text) == [(1, 0)]
    check(text, (np.array([0, 7, 0, -3, 100, 0, 1], "int64"),), (np.zeros(3, "int64"),))


# What chooses between two vectors, either of which may be empty; a vector grows in the second, and a tuple is handed on in the third.
CHOOSING = """
def @main[n: Dim, m: Dim](%a: Tensor[(n,), float32], %b: Tensor[(m,), float32], %steps: int64, %from: int64) {
  let %go = fn (%i: int64, %s: float32) -> float32 {
    if (%i < %steps) { %go(%i + 1i64, %s * 0.5f + CHOICE) } else { %s } };
  let %grow = fn[k: Dim] (%i: int64, %s: float32, %out: Tensor[(k,), float32]) -> (float32, Tensor[(?,), float32]) {
    if (%i < %steps) {
      let %next = tanh(%s) + CHOICE;
      %grow(%i + 1i64, %next, concatenate((%out, expand_dims(%next, axis=0)), axis=0))
    } else { (%s, %out) } };
  let %pair = fn (%i: int64, %s: (float32, float32)) -> (float32, float32) {
    if (%i < %steps) { %pair(%i + 1i64, (%s.1, %s.0 * 0.5f + CHOICE)) } else { %s } };
  (%go(0i64, 1f), %grow(0i64, 1f, zeros(shape=[2])), %pair(0i64, (1f, 2f)))
}"""


@pytest.mark.parametrize(
    "choice",
    [
        "where(%i >= %from, take(%a, %i, axis=0), take(%b, %i, axis=0))",
        "{ let %c = if (%i >= %from) { take(%a, %i, axis=0) } else { take(%b, %i, axis=0) }; %c }",
    ],
)
def test_axes_without_elements_that_a_step_may_choose(choice: str) -> None:
    """Where a step reads one it is an error, and otherwise none."""
    text = CHOOSING.replace("CHOICE", choice)
    assert len(recurrences(text)) == 3
    module = relay.parse(HEAD + text)
    exes = [relay.compile(module, executor=executor, cache=False) for executor in ("vm", "aot")]
    for n, m, steps, first in itertools.product((0, 3), (0, 2), (0, 1, 4), (0, 2, 9)):
        given = vector(n), vector(m, 1), steps, first
        of_a, of_b = (steps, steps) if "where" in choice else (steps > first, steps and first)
        if (of_a and n == 0) or (of_b and m == 0):
            with pytest.raises(ExecutionError):
                relay.evaluate(module, *given)
            for exe in exes:
                with pytest.raises(ExecutionError):
                    exe(*given)
            continue
        expected = flat(relay.evaluate(module, *given))
        for exe in exes:
            for a, b in zip(flat(exe(*given)), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_constants_are_operands() -> None:
    module = relay.parse(HEAD + WARPING).bind({"costs": vector(6, 1)})
    exe = relay.compile(module, cache=False)
    for seed in (0, 2):
        found, expected = exe(vector(6, seed)), relay.evaluate(module, vector(6, seed))
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("state", "following", "element", "more"),
    [
        # A number that depends on what the vector holds.
        ("%p: float32", "%p + 1f", "take(%out, 0i64, axis=0) + %p", "1f"),
        # A vector that changes.
        ("%p: Tensor[(3,), float32]", "%p * 0.5f", "sum(%p)", "const([1, 2, 3], (3,), float32)"),
    ],
)
def test_other_loops_stay_as_they_are(state: str, following: str, element: str, more: str) -> None:
    text = f"""
    def @go[k: Dim](%i: int64, {state}, %out: Tensor[(k,), float32]) -> Tensor[(?,), float32] {{
      if (%i < 5i64) {{ @go(%i + 1i64, {following}, concatenate((%out, expand_dims({element}, axis=0)), axis=0)) }} else {{ %out }}
    }}
    def @main(%first: Tensor[(1,), float32]) {{ @go(0i64, {more}, %first) }}"""
    assert recurrences(text) == []
    check(text, (np.ones(1, "float32"),))


# Numbers that depend on each other: a filter of second order, whose gradient goes back through the steps.
BIQUAD = """
def @go[n: Dim, k: Dim](%i: int64, %s: float32, %r: float32, %x: Tensor[(n,), float32], %a: Tensor[(2,), float32],
    %out: Tensor[(k,), float32]) -> (Tensor[(?,), float32], float32, int64) {
  if (%i < Dim[n]) {
    let %v = take(%x, %i, axis=0);
    let %y = 0.5f * %v + %s;
    @go(%i + 1i64, %v - take(%a, 0, axis=0) * %y + %r, 0.25f * %v - take(%a, 1, axis=0) * %y, %x, %a,
      concatenate((%out, expand_dims(%y, axis=0)), axis=0))
  } else { (%out, %r, %i) }
}
def @main[n: Dim](%x: Tensor[(n,), float32], %a: Tensor[(2,), float32]) { @go(0i64, 0.5f, -1f, %x, %a, zeros(shape=[0])) }"""

# Nothing but numbers, of several types, that are read in the end; one is what another was two steps before.
PENDULUM = """
def @main(%steps: int32, %p: float32, %q: float64) -> (float32, float64, float32, float32, int32, bool) {
  let %loop = fn (%i: int32, %p: float32, %q: float64, %one: float32, %two: float32, %turns: int32, %up: bool)
      -> (float32, float64, float32, float32, int32, bool) {
    if (%i <= 0) { (%p, %q, %one, %two, %turns, %up) } else {
      let %v = 0.99f * cast(%q, dtype="float32") - 0.1f * sin(%p);
      let %next = %p + 0.1f * %v;
      %loop(%i - 1, %next, cast(%v, dtype="float64"), %p, %one, if (%next > 0f) { %turns + 1 } else { %turns }, %v > 0f)
    }
  };
  %loop(%steps, %p, %q, 0f, -1f, 0, False)
}"""


def test_numbers_that_depend_on_each_other() -> None:
    assert recurrences(BIQUAD) == [(1, 2)]
    check(BIQUAD, *((vector(n), vector(2, 1) / 4) for n in (0, 1, 2, 33)))


def test_gradients_of_numbers_that_depend_on_each_other() -> None:
    text = (
        BIQUAD.replace("@main", "@filter")
        + """
    def @main[n: Dim](%x: Tensor[(n,), float32], %a: Tensor[(2,), float32]) -> float32 { mean(tanh(@filter(%x, %a).0)) }"""
    )
    slope = relay.grad(relay.parse(HEAD + text), argnums=(0, 1))
    # The steps forward, with what they keep, and back.
    assert [len(p.rows) for p, _ in build(slope, Options()).plan.recurrences.values()] == [2, 1]
    x, a = vector(33), vector(2, 1) / 4
    found, expected = relay.compile(slope, cache=False)(x, a), relay.evaluate(slope, x, a)
    for one, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_gradients_whose_steps_are_long() -> None:
    """What a step back computes again makes it long; it is a kernel all the same."""
    cell = "log(exp(%left) + exp(%up) + exp(%corner * sin(%left)) + power(%up, 2f))"
    text = WARPING.replace("minimum(minimum(%left, %up), %corner)", cell)
    text = text.replace("-> Tensor[(?,), float32] {\n  @row", "-> float32 {\n  sum(@row").replace(
        '"float32"))\n}', '"float32")))\n}'
    )
    slope = relay.grad(relay.parse(HEAD + text), argnums=(0, 1))
    assert len(build(slope, Options()).plan.recurrences) == 2
    given = vector(20), vector(20, 1)
    found, expected = relay.compile(slope, cache=False)(*given), relay.evaluate(slope, *given)
    for one, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_a_loop_that_puts_nothing_behind_a_vector() -> None:
    assert recurrences(PENDULUM) == [(0, 6)]
    check(PENDULUM, *((np.int32(n), np.float32(1), np.float64(0.5)) for n in (-1, 0, 1, 2, 50)))


def test_numbers_and_vectors_in_tuples() -> None:
    text = """
    def @go[n: Dim, k: Dim](%i: int64, %s: (float32, (float32, Tensor[(k,), float32]), float32), %x: Tensor[(n,), float32])
        -> (Tensor[(?,), float32], float32, (float32, float32)) {
      if (%i < Dim[n]) {
        let %in = %s.1;
        let %next = %s.0 - 0.5f * %in.0 + take(%x, %i, axis=0);
        @go(%i + 1i64, (%next, (%s.0, concatenate((%in.1, expand_dims(%next, axis=0)), axis=0)), %s.2), %x)
      } else { (%s.1.1, %s.1.0, (%s.2, %s.0)) }
    }
    def @main[n: Dim](%x: Tensor[(n,), float32]) { @go(0i64, (1f, (2f, zeros(shape=[1])), 3f), %x) }"""
    assert recurrences(text) == [(1, 2)]
    check(text, *((vector(n),) for n in (0, 1, 2, 33)))


def test_the_state_of_a_loop_of_the_prelude() -> None:
    text = """
    def @main[n: Dim](%y: Tensor[(n,), float32], %a: float32) -> (float32, float32, float32) {
      @for(0i64, Dim[n], fn (%i: int64, %s: (float32, float32, float32)) -> (float32, float32, float32) {
        let %p = %a * %a * %s.1 + 0.1f;
        let %v = take(%y, %i, axis=0) - %a * %s.0;
        let %k = %p / (%p + 0.5f);
        (%a * %s.0 + %k * %v, (1f - %k) * %p, %s.2 - log(%p) - %v * %v)
      }, (0f, 1f, 0f))
    }"""
    assert recurrences(text) == [(0, 3)]
    check(text, *((vector(n), np.float32(0.9)) for n in (0, 1, 33)))


def test_two_loops_that_differ_in_which_number_is_which() -> None:
    def go(name: str, r: str, q: str) -> str:
        return f"""
        def @{name}(%n: int64, %s: float32, %r: float32, %q: float32) -> float32 {{
          if (%n <= 0i64) {{ %s }} else {{ @{name}(%n - 1i64, %s + {r} * 3f - {q}, {r} * 1.1f, {q} * 2f) }}
        }}"""

    text = f"""{go("a", "%r", "%q")}{go("b", "%q", "%r")}
    def @main(%n: int64, %s: float32, %r: float32, %q: float32) {{ (@a(%n, %s, %r, %q), @b(%n, %s, %r, %q)) }}"""
    assert recurrences(text) == [(0, 1), (0, 1)]
    check(text, (np.int64(5), np.float32(2), np.float32(3), np.float32(7)))


# Filters of second order beside each other: the state is two rows of numbers.
CHANNELS = """
def @biquad[t: Dim, c: Dim](%xs: Tensor[(t, c), float32], %b: Tensor[(3, c), float32], %a: Tensor[(2, c), float32]) {
  let %zero = zeros(shape=[Dim[c]]);
  @scan_rows(fn (%s: (Tensor[(c,), float32], Tensor[(c,), float32]), %x: Tensor[(c,), float32])
      -> ((Tensor[(c,), float32], Tensor[(c,), float32]), Tensor[(c,), float32]) {
    let %y = take(%b, 0, axis=0) * %x + %s.0;
    ((take(%b, 1, axis=0) * %x - take(%a, 0, axis=0) * %y + %s.1, take(%b, 2, axis=0) * %x - take(%a, 1, axis=0) * %y), %y)
  }, (%zero, %zero), %zero, %xs)
}
def @main[t: Dim, c: Dim](%xs: Tensor[(t, c), float32], %b: Tensor[(3, c), float32], %a: Tensor[(2, c), float32]) {
  let %all = @biquad(%xs, %b, %a);
  (%all.1, %all.0.0, %all.0.1)
}
def @loss[t: Dim, c: Dim](%xs: Tensor[(t, c), float32], %b: Tensor[(3, c), float32], %a: Tensor[(2, c), float32]) -> float32 {
  let %all = @biquad(%xs, %b, %a);
  sum(tanh(%all.1)) + sum(%all.0.0 * %all.0.1)
}"""


@pytest.mark.parametrize("channels", ["c", "5", "40", "70"])
def test_tensors_whose_elements_are_loops_by_themselves(channels: str) -> None:
    text = CHANNELS.replace("c: Dim", "x: Dim").replace("c)", f"{channels})") if channels != "c" else CHANNELS
    if channels != "c":
        text = text.replace("(c,)", f"({channels},)").replace("Dim[c]", channels)
    widths = (1, 3, 16, 300) if channels == "c" else (int(channels),)
    assert sorted(recurrences(text))[-1][0] == 1
    check(text, *((rows(t, c), rows(3, c), rows(2, c) * 0.2) for c in widths for t in (0, 1, 7)))


def rows(t: int, c: int) -> np.ndarray:
    return vector(t * c, t).reshape(t, c)


def test_gradients_of_tensors_whose_elements_are_loops() -> None:
    module = relay.parse(HEAD + CHANNELS)
    derived = relay.value_and_grad(module, argnums=(0, 1, 2), entry="loss")
    given = rows(6, 20), rows(3, 20), rows(2, 20) * 0.2
    found = relay.compile(derived, entries=["loss"], cache=False, threads=2).run("loss", *given)
    for a, b in zip(flat(found), flat(relay.evaluate(derived, *given, entry="loss")), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


# Of two axes and of several kinds: a count at each place, a choice by a number, rows that are read backward, what does not change read at
# another place, and a weight that all places have.
PARTICLES = """
def @go[b: Dim, d: Dim, n: Dim](%left: int64, %x: Tensor[(b, d), float32], %v: Tensor[(b, d), float32], %hits: Tensor[(b, d), int32],
    %force: Tensor[(n, b, d), float32], %pull: Tensor[(b, d), float32], %w: float32)
    -> (Tensor[(b, d), float32], Tensor[(b, d), int32], int64) {
  if (%left > 0i64) {
    let %f = take(%force, %left - 1i64, axis=0) + %w * reverse(%pull, axis=1);
    let %u = if (%w > 0.5f) { %v + 0.1f * %f } else { %v - %f };
    let %y = %x + 0.1f * %u;
    let %out = abs(%y) > 1f;
    @go(%left - 1i64, where(%out, %x, %y), where(%out, negative(%u), %u), where(%out, %hits + 1, %hits), %force, %pull, %w)
  } else { (%x + %v, %hits, %left) }
}
def @main[b: Dim, d: Dim, n: Dim](%x: Tensor[(b, d), float32], %force: Tensor[(n, b, d), float32], %w: float32) {
  @go(Dim[n], %x, zeros_like(%x), cast(zeros_like(%x), dtype="int32"), %force, %x, %w)
}"""


def test_tensors_of_two_axes() -> None:
    assert recurrences(PARTICLES) == [(0, 4)]
    for b, d, n in ((4, 3, 9), (1, 40, 2), (2, 1, 0)):
        check(PARTICLES, *((vector(b * d).reshape(b, d), vector(n * b * d).reshape(n, b, d), w) for w in (1.0, 0.0)))


@pytest.mark.parametrize(
    "step",
    [
        "%x + reverse(%x, axis=0)",  # of other places
        "%x * sum(%x)",
        'where(equal(arange(stop=Dim[n], dtype="int64"), %i), 2f * %x, %x)',  # of one place: nothing else is touched
    ],
)
def test_steps_that_are_no_loops_of_elements(step: str) -> None:
    text = f"""
def @main[n: Dim](%x: Tensor[(n,), float32], %k: int64) {{
  @for(0i64, %k, fn (%i: int64, %x: Tensor[(n,), float32]) -> Tensor[(n,), float32] {{ {step} }}, %x)
}}"""
    assert recurrences(text) == []
    check(text, (vector(5), 3))


def test_several_rows_are_put_behind_a_tensor_at_a_time() -> None:
    text = """
def @go[k: Dim](%i: int64, %x: Tensor[(2, 3), float32], %out: Tensor[(k, 3), float32]) -> Tensor[(?, 3), float32] {
  if (%i < 3i64) { @go(%i + 1i64, 2f * %x, concatenate((%out, %x), axis=0)) } else { %out }
}
def @main(%x: Tensor[(2, 3), float32]) { @go(0i64, %x, zeros(shape=[0, 3], dtype="float32")) }"""
    assert recurrences(text) == []
    check(text, (rows(2, 3),))


# A step that calls a function four times is long; it stands in the loop all the same, of numbers or of tensors of them.
ORBIT = """
def @slope[b: Dim](%x: Tensor[(b,), float32], %y: Tensor[(b,), float32], %p: Tensor[(4, b), float32])
    -> (Tensor[(b,), float32], Tensor[(b,), float32]) {
  (take(%p, 0, axis=0) * %x - take(%p, 1, axis=0) * %x * %y, take(%p, 3, axis=0) * %x * %y - take(%p, 2, axis=0) * %y)
}
def @main[b: Dim](%x: Tensor[(b,), float32], %p: Tensor[(4, b), float32], %h: float32, %n: int64) {
  @for(0i64, %n, fn (%i: int64, %s: (Tensor[(b,), float32], Tensor[(b,), float32])) -> (Tensor[(b,), float32], Tensor[(b,), float32]) {
    let %a = @slope(%s.0, %s.1, %p);
    let %c = @slope(%s.0 + 0.5f * %h * %a.0, %s.1 + 0.5f * %h * %a.1, %p);
    let %d = @slope(%s.0 + 0.5f * %h * %c.0, %s.1 + 0.5f * %h * %c.1, %p);
    let %e = @slope(%s.0 + %h * %d.0, %s.1 + %h * %d.1, %p);
    let %w = %h / 6f;
    (%s.0 + %w * (%a.0 + 2f * %c.0 + 2f * %d.0 + %e.0), %s.1 + %w * (%a.1 + 2f * %c.1 + 2f * %d.1 + %e.1))
  }, (%x, %x))
}"""


def test_a_step_that_calls_functions() -> None:
    assert recurrences(ORBIT) == [(0, 2)]
    check(ORBIT, (rows(1, 20)[0] + 2, np.abs(rows(4, 20)), np.float32(0.02), 7))


# Rows of several numbers: one number in a row of its own, two put together, and a table of them turned, behind what is there.
ROWS_OF_NUMBERS = """
def @go[n: Dim, k: Dim](%i: int64, %c: float32, %d: float32, %x: Tensor[(n, 2), float32], %one: Tensor[(k, 1), float32],
    %two: Tensor[(k, 3), float32], %four: Tensor[(k, 2, 2), float32])
    -> (Tensor[(?, 1), float32], Tensor[(?, 3), float32], Tensor[(?, 2, 2), float32], float32) {
  if (%i < Dim[n]) {
    let %row = take(%x, %i, axis=0);
    let %next = 0.5f * %c + take(%row, 1i64, axis=0) * take(%row, 0i64, axis=0);
    let %other = if (%next > %d) { 0.25f * %d - %c } else { %next * %d };
    let %pair = stack((%next, %other), axis=0);
    let %table = reshape(concatenate((%pair, reverse(%pair, axis=0)), axis=0), newshape=[2, 2]);
    @go(%i + 1i64, %next, %other, %x, concatenate((%one, reshape(%other, newshape=[1, 1])), axis=0),
      concatenate((%two, expand_dims(concatenate((%pair, expand_dims(%c, axis=0)), axis=0), axis=0)), axis=0),
      concatenate((%four, expand_dims(transpose(%table * 2f), axis=0)), axis=0))
  } else { (%one, %two, %four, %d) }
}
def @main[n: Dim](%x: Tensor[(n, 2), float32], %two: Tensor[(2, 3), float32]) {
  @go(0i64, 0.5f, -1f, %x, zeros(shape=[2, 1]), %two, ones(shape=[2, 2, 2]))
}"""


def test_rows_of_numbers() -> None:
    assert recurrences(ROWS_OF_NUMBERS) == [(3, 1)]
    odd = rows(3, 2)
    odd[0, 0], odd[1, 1] = np.nan, np.inf
    check(ROWS_OF_NUMBERS, *((x, rows(2, 3)) for x in (rows(0, 2), rows(1, 2), rows(33, 2), odd)))


def test_rows_that_a_scan_of_the_prelude_makes_of_numbers() -> None:
    """A tridiagonal system: the way forward makes rows of two numbers, the way back rows of one."""
    text = """
    def @solve[n: Dim](%a: Tensor[(n, 4), float32]) -> float32 {
      let %done = @scan(0i64, Dim[n], fn (%i: int64, %s: (float32, float32)) -> ((float32, float32), Tensor[(2,), float32]) {
        let %w = take(%a, %i, axis=0);
        let %low = take(%w, 0i64, axis=0);
        let %by = 4f + take(%w, 1i64, axis=0) - %low * %s.0;
        let %c = take(%w, 2i64, axis=0) / %by;
        let %d = (take(%w, 3i64, axis=0) - %low * %s.1) / %by;
        ((%c, %d), stack((%c, %d), axis=0))
      }, zeros(shape=[2]), (0f, 0f)).1;
      let %x = @scan(0i64, Dim[n], fn (%i: int64, %x: float32) -> (float32, Tensor[(1,), float32]) {
        let %row = take(%done, Dim[n] - 1i64 - %i, axis=0);
        let %y = take(%row, 1i64, axis=0) - take(%row, 0i64, axis=0) * %x;
        (%y, expand_dims(%y, axis=0))
      }, zeros(shape=[1]), 0f).1;
      sum(%x * %x)
    }
    def @main[n: Dim](%a: Tensor[(n, 4), float32]) { (@solve(%a), grad(@solve)(%a).1.0) }"""
    assert len(recurrences(text)) == 6  # each way, without gradients, and forward and back with them
    check(text, *((rows(n, 4) / 4,) for n in (0, 1, 2, 33)))


@pytest.mark.parametrize("pushed", [False, True])
def test_a_side_that_reads_a_vector_without_elements_fails_where_it_is_taken(pushed: bool) -> None:
    """Whether it is, the state says: nothing before the loop."""
    rows = ", %row: Tensor[(k,), float32]" if pushed else ""
    more = ", concatenate((%row, expand_dims(%t, axis=0)), axis=0)" if pushed else ""
    result = "(float32, Tensor[(?,), float32])" if pushed else "float32"
    text = f"""
def @go[n: Dim, k: Dim](%i: int64, %end: int64, %acc: float32, %x: Tensor[(n,), float32]{rows}) -> {result} {{
  if (%i < %end) {{
    let %t = if (%acc > 0f) {{ take(%x, %i, axis=0) }} else {{ %acc - 1f }};
    @go(%i + 1i64, %end, sin(%t) + 0.1f * %acc, %x{more})
  }} else {{ {"(%acc, %row)" if pushed else "%acc"} }} }}
def @main[n: Dim](%end: int64, %s: float32, %x: Tensor[(n,), float32]) {{
  @go(-2i64, %end, %s, %x{", zeros(shape=[0])" if pushed else ""}) }}"""
    text = text if pushed else text.replace(", k: Dim", "")
    assert len(recurrences(text)) == 1
    module = relay.parse(HEAD + text)
    exe = relay.compile(module)
    for n, end, s in ((3, 4, 0.5), (0, -2, 0.5), (0, 3, -0.5)):
        given = np.int64(end), np.float32(s), vector(n)
        for a, b in zip(flat(exe(*given)), flat(relay.evaluate(module, *given)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.raises(relay.RelayError):
        relay.evaluate(module, np.int64(0), np.float32(0.5), vector(0))
    with pytest.raises(relay.RelayError, match="no element"):
        exe(np.int64(0), np.float32(0.5), vector(0))


@pytest.mark.parametrize("reset", ['zeros(shape=[3], dtype="float32")', "const([1.5, -0.0, 2.0], (3,), float32)"])
def test_a_step_that_chooses_a_constant(reset: str) -> None:
    """Of lines, whether its elements are alike or not, and of rows of numbers; as the next state too."""
    text = f"""
def @go[n: Dim, k: Dim](%i: int64, %h: Tensor[(3,), float32], %x: Tensor[(n, 3), float32], %g: Tensor[(n,), float32],
    %out: Tensor[(k, 3), float32]) -> (Tensor[(3,), float32], Tensor[(?, 3), float32]) {{
  if (%i < Dim[n]) {{
    let %at = take(%g, %i, axis=0);
    let %c = if (%at > 0f) {{ %h * 0.5f + take(%x, %i, axis=0) }} else {{ {reset} }};
    let %next = concatenate((%out, expand_dims(%c, axis=0)), axis=0);
    if (%at > 1f) {{ @go(%i + 1i64, {reset}, %x, %g, %next) }} else {{ @go(%i + 1i64, %c, %x, %g, %next) }}
  }} else {{ (%h, %out) }}
}}
def @main[n: Dim](%h: Tensor[(3,), float32], %x: Tensor[(n, 3), float32], %g: Tensor[(n,), float32]) {{
  @go(0i64, %h, %x, %g, zeros(shape=[0, 3], dtype="float32"))
}}"""
    assert recurrences(text) == [(1, 1)]
    check(text, *((vector(3), vector(3 * n).reshape(n, 3), 2 * vector(n, 1)) for n in (0, 1, 2, 19)))
    rows = f"""
def @go[n: Dim, k: Dim](%i: int64, %h: float32, %x: Tensor[(n,), float32], %out: Tensor[(k, 3), float32])
    -> (float32, Tensor[(?, 3), float32]) {{
  if (%i < Dim[n]) {{
    let %next = %h * 0.5f + take(%x, %i, axis=0);
    let %row = if (%next > 0f) {{ stack((%next, %h, 1f), axis=0) }} else {{ {reset} }};
    @go(%i + 1i64, %next, %x, concatenate((%out, expand_dims(%row, axis=0)), axis=0))
  }} else {{ (%h, %out) }}
}}
def @main[n: Dim](%x: Tensor[(n,), float32]) {{ @go(0i64, 0.25f, %x, zeros(shape=[0, 3], dtype="float32")) }}"""
    assert recurrences(rows) == [(1, 1)]
    check(rows, *((vector(n),) for n in (0, 1, 2, 19)))
