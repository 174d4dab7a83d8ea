"""What a run holds: during calls and in branches nothing that is not read after them, so that control that the data decides takes no
more memory than the same work in a straight line."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import relay
from relay._runtime import pool_reset_peak, pool_statistics
from relay.executable.bytecode import decode
from relay.executable.program import Executable
from relay.ir.expr import Expr
from relay.lower import escape

HEAD = '#[version = "0.0.5"]\n'
TENSOR = "Tensor[(n, 128), float32]"
WEIGHT = "%w: Tensor[(128, 128), float32]"
BLOCK = (
    f"def @block[n: Dim](%x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{ tanh(nn.dense(nn.relu(nn.dense(%x, %w)), %w)) + %x }}\n"
)
ROWS, DEPTH = 96, 6


def _main(body: str) -> str:
    return f"def @main[n: Dim](%x: {TENSOR}, %k: int64, {WEIGHT}) -> {TENSOR} {{ {body} }}"


def _repeated(times: int, pattern: str) -> str:
    body = "%x"
    for _ in range(times):
        body = pattern.replace("_", body)
    return body


def _exits(level: int) -> str:
    block = f"@block(%x{level - 1}, %w)"
    if level == DEPTH:
        return block
    done = f'max(%x{level}) >= cast(%k, dtype="float32") * 1000f'
    return f"let %x{level} = {block}; if ({done}) {{ %x{level} }} else {{ {_exits(level + 1)} }}"


def _twice(depth: int, given: str) -> str:
    if depth == 0:
        return f"tanh(nn.dense({given}, %w))"
    inner = _twice(depth - 1, f"nn.relu(nn.dense(tanh(nn.dense({given}, %w)), %w))")
    return _twice(depth - 1, f"nn.relu({inner})")


LAYERS = {
    "relu": "nn.relu(nn.dense(tanh(nn.dense(_, %w)), %w))",
    "tanh": "tanh(nn.dense(nn.relu(nn.dense(_, %w)), %w))",
    "softmax": "nn.softmax(nn.dense(_, %w))",
}


def _chain(names: list[str]) -> str:
    body = "%x"
    for name in names:
        body = LAYERS[name].replace("_", body)
    return body


# The program; the same work in a straight line; how often.
PROGRAMS = {
    "exits": (BLOCK + _main(_exits(1).replace("%x0", "%x")), BLOCK + _main(_repeated(DEPTH, "@block(_, %w)"))),
    "a call between": (
        f"""def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
          if (%k == 0i64) {{ %x }} else {{ nn.relu(@go(%k - 1i64, tanh(nn.dense(nn.relu(nn.dense(%x, %w)), %w)), %w)) }}
        }}"""
        + _main("@go(%k, %x, %w)"),
        _main("nn.relu(" + _repeated(DEPTH, "tanh(nn.dense(nn.relu(nn.dense(_, %w)), %w))") + ")"),
    ),
    "two calls, one in tail position": (
        f"""def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
          if (%k == 0i64) {{ tanh(nn.dense(%x, %w)) }} else {{
            let %y = nn.relu(nn.dense(tanh(nn.dense(%x, %w)), %w));
            @go(%k - 1i64, nn.relu(@go(%k - 1i64, %y, %w)), %w)
          }}
        }}"""
        + _main("@go(%k, %x, %w)"),
        _main(_twice(3, "%x")),
    ),
    "branches between, in a loop": (
        f"""def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
          if (%k == 0i64) {{ %x }} else {{
            let %z = nn.relu(nn.dense(tanh(nn.dense(%x, %w)), %w));
            let %y = if (%k > 3i64) {{ nn.relu(nn.dense(tanh(nn.dense(%z, %w)), %w)) }} else {{
              let %q = nn.softmax(nn.dense(%z, %w));
              if (%k > 1i64) {{ tanh(nn.dense(nn.relu(nn.dense(%q, %w)), %w)) }} else {{ %q }}
            }};
            @go(%k - 1i64, nn.relu(nn.dense(tanh(nn.dense(%y, %w)), %w)), %w)
          }}
        }}"""
        + _main("@go(%k, %x, %w)"),
        _main(_chain(["relu"] * 9 + ["relu", "softmax", "tanh", "relu"] * 2 + ["relu", "softmax", "relu"])),
    ),
    "branches at the end of a loop": (
        f"""def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
          if (%k == 0i64) {{ nn.relu(nn.dense(tanh(nn.dense(%x, %w)), %w)) }} else {{
            let %z = nn.relu(nn.dense(tanh(nn.dense(%x, %w)), %w));
            if (%k > 3i64) {{ @go(%k - 1i64, tanh(nn.dense(nn.relu(nn.dense(%z, %w)), %w)), %w) }} else {{
              let %y = nn.softmax(nn.dense(%z, %w));
              @go(%k - 1i64, nn.relu(nn.dense(tanh(nn.dense(%y, %w)), %w)), %w)
            }}
          }}
        }}"""
        + _main("@go(%k, %x, %w)"),
        _main(_chain(["relu", "tanh"] * 3 + ["relu", "softmax", "relu"] * 3 + ["relu"])),
    ),
    "closures": (
        f"""def @go[n: Dim](%f: fn({TENSOR}) -> {TENSOR}, %k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
          if (%k == 0i64) {{ %x }} else {{
            let %y = %f(nn.relu(nn.dense(%x, %w)));
            let %g = if (sum(%y) > 0f) {{ %f }} else {{ fn (%z: {TENSOR}) -> {TENSOR} {{ nn.relu(%z) * 2f }} }};
            nn.softmax(@go(%g, %k - 1i64, tanh(nn.dense(%f(%y), %w)), %w))
          }}
        }}"""
        + _main(f"@go(fn (%z: {TENSOR}) -> {TENSOR} {{ nn.dense(tanh(nn.dense(%z, %w)), %w) }}, %k, %x, %w)"),
        None,
    ),
}


def _peak(exe: Executable, *args: Any) -> tuple[int, Any]:
    exe(*args)
    before = pool_statistics()["live_bytes"]
    pool_reset_peak()
    result = exe(*args)
    return int(pool_statistics()["peak_bytes"] - before), np.asarray(result)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_control_takes_no_more_memory_than_a_straight_line(name: str, executor: Literal["vm", "aot"]) -> None:
    dynamic, straight = PROGRAMS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 128)).astype(np.float32)
    w = (rng.standard_normal((128, 128)) * 0.1).astype(np.float32)
    k = np.int64(3 if "two" in name else DEPTH)
    module = relay.parse(HEAD + dynamic).bind({"w": w})
    peak, found = _peak(relay.compile(module, executor=executor, threads=1), x, k)
    np.testing.assert_allclose(found, np.asarray(relay.evaluate(module, x, k)), rtol=1e-4, atol=1e-5)
    if straight is None:
        assert peak <= 5 * x.nbytes
        return
    fixed = HEAD + straight.replace("[n: Dim]", "").replace("(n,", f"({ROWS},")
    least, same = _peak(relay.compile(relay.parse(fixed).bind({"w": w}), executor=executor, threads=1), x, k)
    np.testing.assert_allclose(found, same, rtol=1e-4, atol=1e-5)
    assert peak <= 1.1 * least, f"{peak} bytes, {least} in a straight line"


def test_loops_without_calls_keep_their_memory() -> None:
    """They overwrite it in the next iteration; with a call in them they give it back before the call."""
    loop = f"""def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHT}) -> {TENSOR} {{
      if (%k == 0i64) {{ %x }} else {{ @go(%k - 1i64, CALL(tanh(nn.dense(nn.relu(nn.dense(%x, %w)), %w))), %w) }}
    }}"""
    other = f"""def @tree[n: Dim](%k: int64, %x: {TENSOR}) -> {TENSOR} {{
      if (%k == 0i64) {{ %x }} else {{ @tree(%k - 1i64, @tree(0i64, %x)) }}
    }}"""
    for call, opcode in (("", "KeepStorage"), ("@tree(%k, ", "AllocStorage")):
        text = loop.replace("CALL(", call or "(") + _main("@go(%k, %x, %w)")
        module = relay.parse(HEAD + other + text).bind({"w": np.eye(128, dtype=np.float32)})
        built = relay.pipeline.build(module, relay.Options(cache=False))
        names = [i.opcode.name for f in built.image.functions for i in decode(f.code)]
        assert opcode in names
        assert ("KeepStorage" in names) == (not call)


def test_blocks_inside_of_others_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may take memory was asked of every block anew for each one around it: conditions inside of each other took quadratic time."""

    def asked(depth: int) -> int:
        count = 0

        def counted(value: Expr) -> bool:
            nonlocal count
            count += 1
            return False

        monkeypatch.setattr(escape, "_makes_tensors", counted)
        conditions = "".join(f"if (%x < {n}i64) {{ {n}i64 }} else {{" for n in range(depth))
        text = f"def @main(%x: int64) -> int64 {{ {conditions} %x {'}' * depth} }}"
        relay.compile('#[version = "0.0.5"]\n' + text, cache=False)
        return count

    assert 0 < asked(80) < 3 * asked(40)
