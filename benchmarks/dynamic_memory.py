"""Peak memory of a program with symbolic sizes beside the same program with its sizes written in.

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


PROGRAMS = {"dense layers": dense_layers, "attention": attention, "pairs": pairs, "recurrent": recurrent, "loop": loop}


def peak(text: str) -> int:
    """Bytes at the peak of a call."""
    module = relay.parse(HEAD + text)
    params = module.function("main").params
    rng = np.random.default_rng(0)
    arrays = []
    for p in params:
        shape = tuple(d if isinstance(d, int) else ROWS for d in p.ty.shape)  # type: ignore[union-attr]
        arrays.append((rng.standard_normal(shape) * 0.05).astype(np.float32))
    weights = {p.name: a for p, a in zip(params[1:], arrays[1:], strict=True)}
    exe = relay.compile(module.bind(weights), threads=1, cache=False)
    exe(arrays[0])
    before = pool_statistics()["live_bytes"]
    pool_reset_peak()
    exe(arrays[0])
    return int(pool_statistics()["peak_bytes"]) - int(before)


def main() -> None:
    print(f"{'peak of a call, KiB':24}{'sizes written in':>18}{'symbolic':>12}{'ratio':>8}")
    for name, make in PROGRAMS.items():
        fixed, symbolic = peak(make(str(ROWS), "")), peak(make("n", "[n: Dim]"))
        print(f"{name:24}{fixed / 1024:18.0f}{symbolic / 1024:12.0f}{symbolic / fixed:8.2f}", flush=True)


if __name__ == "__main__":
    main()
