"""What calls of a recursion are all given becomes part of its functions: same values, and it is inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import relay
from relay.executable.disassembler import disassemble
from relay.ir.module import Module
from relay.options import Options
from relay.pipeline import build
from relay.transform import FixInvariants, ToBlocks
from tests.recurrent.support import both, normal

VERSION = '#[version = "0.0.5"]\n'
EXAMPLES = Path(__file__).parents[2] / "examples"


def fixed(module: Module) -> dict[str, str]:
    """The heads of the copies that the pass makes, by name."""
    after = str(FixInvariants()(ToBlocks()(module)))
    return {
        part.split("(")[0].split("[")[0]: part.split("{")[0]
        for part in after.split("def @")[1:]
        if "__fixed" in part.split("(")[0]
    }


def test_a_size_that_comes_out_the_same_again() -> None:
    module = relay.parse(f"""{VERSION}
    def @go[n: Dim](%k: int64, %x: Tensor[(n,), float32]) -> Tensor[(n,), float32] {{
      if (%k == 0i64) {{ %x }} else {{ @go(%k - 1i64, topk(concatenate((%x, %x * 0.5f), axis=0), k=3).0) }}
    }}
    def @main(%k: int64, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {{ @go(%k, %x) }}
    """)
    found = both(module, np.int64(4), normal(3))
    x = normal(3)
    for _ in range(4):
        x = np.sort(np.concatenate((x, x * np.float32(0.5))))[::-1][:3]
    assert np.allclose(found, x)
    (head,) = fixed(module).values()
    assert "(3,)" in head and "Dim" not in head


def test_a_size_that_grows_is_not_one() -> None:
    module = relay.parse(f"""{VERSION}
    def @go[n: Dim](%k: int64, %x: Tensor[(n,), float32]) -> Tensor[(?,), float32] {{
      if (%k == 0i64) {{ %x }} else {{ @go(%k - 1i64, concatenate((%x, %x), axis=0)) }}
    }}
    def @main(%k: int64, %x: Tensor[(3,), float32]) -> Tensor[(?,), float32] {{ @go(%k, %x) }}
    """)
    assert np.array_equal(both(module, np.int64(3), normal(3)), np.tile(normal(3), 8))
    assert not fixed(module)


def test_functions_that_call_each_other() -> None:
    """Weights go round in one order and in the other; what differs between two ways in is no part of a copy."""
    module = relay.parse(f"""{VERSION}
    def @even[d: Dim](%k: int64, %x: Tensor[(1, d), float32], %u: Tensor[(d, d), float32], %v: Tensor[(d, d), float32], %s: float32)
        -> Tensor[(1, d), float32] {{
      if (%k == 0i64) {{ %x }} else {{ @odd(%k - 1i64, nn.dense(%x, %u) * %s, %v, %u, %s) }}
    }}
    def @odd[d: Dim](%k: int64, %x: Tensor[(1, d), float32], %v: Tensor[(d, d), float32], %u: Tensor[(d, d), float32], %s: float32)
        -> Tensor[(1, d), float32] {{
      if (%k == 0i64) {{ %x }} else {{ @even(%k - 1i64, tanh(nn.dense(%x, %v)), %u, %v, %s * 0.5f) }}
    }}
    def @main(%k: int64, %x: Tensor[(1, 4), float32], %u: Tensor[(4, 4), float32], %v: Tensor[(4, 4), float32])
        -> Tensor[(1, 4), float32] {{ @even(%k, %x, %u, %v, 1f) }}
    """)
    u, v, x = normal(4, 4), normal(4, 4) + 1, normal(1, 4)
    module = module.bind({"u": u, "v": v})
    expected, s = x, 1.0
    for k in range(5):
        expected = np.tanh(expected @ v.T) if k % 2 else expected @ u.T * s
        s *= 0.5 if k % 2 else 1
    assert np.allclose(both(module, np.int64(5), x), expected, atol=1e-5)
    heads = fixed(module)
    assert len(heads) == 2
    for head in heads.values():
        assert "%u" not in head and "%v" not in head and "%s" in head and "Dim" not in head


def test_a_part_of_a_tuple_that_changes() -> None:
    """The weight in the state is taken out of it, although the state is made anew in each step."""
    module = relay.parse(f"""{VERSION}
    def @go[d: Dim](%k: int64, %state: (Tensor[(d, d), float32], Tensor[(1, d), float32])) -> Tensor[(1, d), float32] {{
      if (%k == 0i64) {{ %state.1 }} else {{ @go(%k - 1i64, (%state.0, tanh(nn.dense(%state.1, %state.0)))) }}
    }}
    def @main(%k: int64, %w: Tensor[(4, 4), float32], %x: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] {{ @go(%k, (%w, %x)) }}
    """).bind({"w": normal(4, 4)})
    x = normal(1, 4)
    for _ in range(3):
        x = np.tanh(x @ normal(4, 4).T)
    assert np.allclose(both(module, np.int64(3), normal(1, 4)), x, atol=1e-5)
    (head,) = fixed(module).values()
    assert "Tensor[(4, 4)" not in head and "Tensor[(1, 4)" in head


def test_a_tuple_that_is_passed_on_whole() -> None:
    module = relay.parse(f"""{VERSION}
    def @go(%k: int64, %s: (Tensor[(4, 4), float32], (float32, Tensor[(1, 4), float32])), %x: Tensor[(1, 4), float32])
        -> Tensor[(1, 4), float32] {{
      if (%k == 0i64) {{ %x }} else {{ @go(%k - 1i64, %s, nn.dense(%x, %s.0) * %s.1.0 + %s.1.1) }}
    }}
    def @main(%k: int64, %w: Tensor[(4, 4), float32], %b: Tensor[(1, 4), float32], %x: Tensor[(1, 4), float32])
        -> Tensor[(1, 4), float32] {{ @go(%k, (%w, (0.5f, %b)), %x) }}
    """).bind({"w": normal(4, 4)})
    b, x = normal(1, 4) + 1, normal(1, 4)
    expected = x
    for _ in range(3):
        expected = expected @ normal(4, 4).T * np.float32(0.5) + b
    assert np.allclose(both(module, np.int64(3), b, x), expected, atol=1e-5)
    (head,) = fixed(module).values()
    assert "(4, 4)" not in head and head.count("Tensor[(1, 4)") == 3  # two parameters and the result


def test_beam_search_is_a_loop() -> None:
    """Four beams choose four again, so nothing is left to check after the recursive call: it is a jump."""
    v, d, h = 20, 6, 8
    given = {
        "embedding": (v, d),
        "w": (3 * h, d + h),
        "u": (3 * h, h),
        "b": (3 * h,),
        "c": (3 * h,),
        "out": (v, h),
        "bias": (v,),
    }
    module = relay.load_module(EXAMPLES / "seq2seq.relay").bind({n: normal(*s) for n, s in given.items()}, entry="beam")
    made = build(module, Options(entries=("beam",), threads=1))
    search = disassemble(made.image).split("@search")[-1].split("\nfunction")[0]
    assert "Goto" in search and "Invoke  " not in search and "CheckEq" not in search


def test_a_loop_in_a_loop() -> None:
    """The inner loop's copy for the sizes that the outer one tells is given a weight by the outer one's copy: a copy of the copy."""
    module = relay.parse(f"""{VERSION}
    def @inner[n: Dim, h: Dim](%i: int32, %x: Tensor[(n, h), float32], %w: Tensor[(h, h), float32]) -> Tensor[(n, h), float32] {{
      if (%i < 1) {{ %x }} else {{ @inner(%i - 1, tanh(nn.dense(%x, %w)), %w) }}
    }}
    def @outer[b: Dim](%i: int64, %s: Tensor[(b, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(b, 4), float32] {{
      if (%i == 0i64) {{ %s }} else {{ @outer(%i - 1i64, @inner(3, %s, %w) + %s, %w) }}
    }}
    def @main[b: Dim](%s: Tensor[(b, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(b, 4), float32] {{
      @outer(2i64, %s, %w)
    }}
    """)
    w = normal(4, 4)
    found = both(module.bind({"w": w}), normal(2, 4))
    s = normal(2, 4)
    for _ in range(2):
        x = s
        for _ in range(3):
            x = np.tanh(x @ w.T)
        s = x + s
    assert np.allclose(found, s, atol=1e-5)
    heads = fixed(module.bind({"w": w}))
    assert "%w" not in heads["inner__fixed__fixed"]
