"""Peak memory of a program with symbolic sizes beside the same program with its sizes written in, and of programs whose control the
data decides beside the same work in a straight line.

    python benchmarks/dynamic_memory.py

The peak is what the storage pool gives at most during a call, beyond what was alive before it, results included. One call of each,
after one that warms up; the figures do not depend on the machine's speed.
"""

from __future__ import annotations

import numpy as np

import relay
from relay._runtime import pool_reset_peak, pool_statistics

HEAD = '#[version = "0.0.5"]\nimport prelude\nimport nn\n'
ROWS = 384


def dense_layers(n: str, given: str) -> str:
    layers = "%x"
    for k in range(6):
        layers = (
            f"tanh(nn.dense({layers}, %w{k % 2})) * sigmoid(nn.dense({layers}, %w{(k + 1) % 2}))"
            if k < 2
            else (f"nn.relu(nn.dense({layers}, %w{k % 2}))")
        )
    weights = "".join(f", %w{k}: Tensor[(256, 256), float32]" for k in range(2))
    return f"def @main{given}(%x: Tensor[({n}, 256), float32]{weights}) -> Tensor[({n}, 256), float32] {{ {layers} }}"


def attention(n: str, given: str) -> str:
    return f"""def @main{given}(%x: Tensor[({n}, 64), float32], %w0: Tensor[(64, 64), float32], %w1: Tensor[(64, 64), float32])
    -> Tensor[({n}, 64), float32] {{
  let %q = nn.dense(%x, %w0);
  let %scores = nn.softmax(nn.dense(%q, %x) * 0.125f);
  let %y = nn.relu(nn.dense(%scores, transpose(%x))) + %q;
  nn.layer_norm(%y + nn.dense(tanh(%y), %w1), ones(shape=[64], dtype="float32"), zeros(shape=[64], dtype="float32"))
}}"""


def pairs(n: str, given: str) -> str:
    """Sizes that cannot be compared: rows by rows, and rows by features."""
    return f"""def @main{given}(%x: Tensor[({n}, 64), float32], %w0: Tensor[(512, 64), float32], %w1: Tensor[(64, 512), float32])
    -> Tensor[({n}, 64), float32] {{
  let %h = tanh(nn.dense(nn.relu(nn.dense(%x, %w0)), %w1));
  let %s = nn.dense(%h, %x);
  let %u = nn.dense(nn.dense(%s, %s), transpose(%x));
  nn.dense(nn.relu(nn.dense(%u, %w0)), %w1)
}}"""


def recurrent(n: str, given: str) -> str:
    return f"""def @main{given}(%x: Tensor[({n}, 1, 256), float32], %w0: Tensor[(1024, 256), float32], %w1: Tensor[(1024, 256), float32])
    -> Tensor[({n}, 1, 256), float32] {{
  @lstm(%x, (zeros(shape=[1, 256], dtype="float32"), zeros(shape=[1, 256], dtype="float32")), %w0, %w1,
    zeros(shape=[1024], dtype="float32")).0
}}"""


def loop(n: str, given: str) -> str:
    return f"""def @go{given}(%t: int64, %x: Tensor[({n}, 256), float32], %w: Tensor[(256, 256), float32]) -> Tensor[({n}, 256), float32] {{
  if (%t == 0i64) {{ %x }} else {{ @go(%t - 1i64, tanh(nn.dense(tanh(nn.dense(%x, %w)) + %x, %w)), %w) }}
}}
def @main{given}(%x: Tensor[({n}, 256), float32], %w0: Tensor[(256, 256), float32], %w1: Tensor[(256, 256), float32])
    -> Tensor[({n}, 256), float32] {{ @go(20i64, %x, %w0) + nn.dense(%x, %w1) }}"""


TENSOR = "Tensor[(n, 256), float32]"
WEIGHTS = "%w0: Tensor[(256, 256), float32], %w1: Tensor[(256, 256), float32]"
BLOCK = f"""def @block[n: Dim](%x: {TENSOR}, {WEIGHTS}) -> {TENSOR} {{ tanh(nn.dense(nn.relu(nn.dense(%x, %w0)), %w1)) + %x }}
"""
DEPTH = 8  # of recursion; also blocks of the early exit


def whole(body: str) -> str:
    return f"def @main[n: Dim](%x: {TENSOR}, {WEIGHTS}, %k: int64) -> {TENSOR} {{ {body} }}"


def repeated(times: int, pattern: str, body: str = "%x") -> str:
    for _ in range(times):
        body = pattern.replace("_", body)
    return body


def exits(level: int = 1) -> str:
    block = f"@block(%x{level - 1}, %w0, %w1)".replace("%x0", "%x")
    if level == DEPTH:
        return block
    sure = f'max(%x{level}) >= cast(%k, dtype="float32") * 1000f'
    return f"let %x{level} = {block}; if ({sure}) {{ %x{level} }} else {{ {exits(level + 1)} }}"


def recursive(base: str, step: str) -> str:
    return f"""{BLOCK}def @go[n: Dim](%k: int64, %x: {TENSOR}, {WEIGHTS}) -> {TENSOR} {{
  if (%k == 0i64) {{ {base} }} else {{ {step} }}
}}
{whole("@go(%k, %x, %w0, %w1)")}"""


def twice(depth: int, given: str) -> str:
    if depth == 0:
        return f"tanh(nn.dense({given}, %w0))"
    return twice(depth - 1, f"nn.relu({twice(depth - 1, f'@block({given}, %w0, %w1)')})")


# The program, and the same work in a straight line.
CONTROL = {
    "early exit, not taken": (BLOCK + whole(exits()), BLOCK + whole(repeated(DEPTH, "@block(_, %w0, %w1)"))),
    "recursion, work before and after the call": (
        recursive("%x", "@block(@go(%k - 1i64, @block(%x, %w0, %w1), %w0, %w1), %w0, %w1)"),
        BLOCK + whole(repeated(2 * DEPTH, "@block(_, %w0, %w1)")),
    ),
    "recursion, two calls": (
        recursive(
            "tanh(nn.dense(%x, %w0))",
            "@go(%k - 1i64, nn.relu(@go(%k - 1i64, @block(%x, %w0, %w1), %w0, %w1)), %w0, %w1)",
        ).replace("@go(%k, %x", "@go(%k - 4i64, %x"),
        BLOCK + whole(twice(DEPTH - 4, "%x")),
    ),
    "loop, branches at its end": (
        recursive(
            "%x",
            "let %z = @block(%x, %w0, %w1); if (%k > 4i64) { @go(%k - 1i64, @block(tanh(%z), %w1, %w0), %w0, %w1) }"
            " else { let %y = @block(%z, %w1, %w0); @go(%k - 1i64, @block(%y, %w0, %w1), %w0, %w1) }",
        ),
        BLOCK
        + whole(
            repeated(
                DEPTH - 4,
                "@block(@block(@block(_, %w0, %w1), %w1, %w0), %w0, %w1)",
                repeated(4, "@block(tanh(@block(_, %w0, %w1)), %w1, %w0)"),
            )
        ),
    ),
    "loop, branches between": (
        recursive(
            "%x",
            "let %z = @block(%x, %w0, %w1); let %y = if (%k > 4i64) { @block(tanh(%z), %w1, %w0) } else { @block(%z, %w1, %w0) };"
            " @go(%k - 1i64, @block(%y, %w0, %w1), %w0, %w1)",
        ),
        BLOCK
        + whole(
            repeated(
                DEPTH - 4,
                "@block(@block(@block(_, %w0, %w1), %w1, %w0), %w0, %w1)",
                repeated(4, "@block(@block(tanh(@block(_, %w0, %w1)), %w1, %w0), %w0, %w1)"),
            )
        ),
    ),
}

PROGRAMS = {"dense layers": dense_layers, "attention": attention, "pairs": pairs, "recurrent": recurrent, "loop": loop}


def peak(text: str) -> int:
    """Bytes at the peak of a call."""
    module = relay.parse(HEAD + text)
    params = [p for p in module.function("main").params if p.name != "k"]
    rng = np.random.default_rng(0)
    arrays = []
    for p in params:
        shape = tuple(d if isinstance(d, int) else ROWS for d in p.ty.shape)  # type: ignore[union-attr]
        arrays.append((rng.standard_normal(shape) * 0.05).astype(np.float32))
    weights = {p.name: a for p, a in zip(params[1:], arrays[1:], strict=True)}
    exe = relay.compile(module.bind(weights), threads=1, cache=False)
    given = (arrays[0], np.int64(DEPTH))[: len(module.function("main").params) - len(weights)]
    exe(*given)
    before = pool_statistics()["live_bytes"]
    pool_reset_peak()
    exe(*given)
    return int(pool_statistics()["peak_bytes"]) - int(before)


def main() -> None:
    print(f"{'peak of a call, KiB':46}{'static':>10}{'dynamic':>10}{'ratio':>8}")
    for name, make in PROGRAMS.items():
        show(f"{name}, symbolic sizes", peak(make(str(ROWS), "")), peak(make("n", "[n: Dim]")))
    for name, (dynamic, straight) in CONTROL.items():
        show(name, peak(straight.replace("[n: Dim]", "").replace("(n,", f"({ROWS},")), peak(dynamic))


def show(name: str, static: int, dynamic: int) -> None:
    print(f"{name:46}{static / 1024:10.0f}{dynamic / 1024:10.0f}{dynamic / static:8.2f}", flush=True)


if __name__ == "__main__":
    main()
