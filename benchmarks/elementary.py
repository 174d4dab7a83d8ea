"""The worst error of an elementary function over all float32 numbers, in units in the last place.

Function and reference (the same function of the number as float64, whose own error is a billion times smaller) are one
compiled program that runs over all 2**32 bit patterns, a chunk at a time. ``python benchmarks/elementary.py [exp tanh ...]``
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import relay

CHUNK = 1 << 22
# Relay text of a function of %v, and what the error is counted in units of: the result, or something larger that the function
# computes with and has only to within rounding (gelu and silu multiply their operand by a number below 1).
FUNCTIONS: dict[str, tuple[str, str]] = {
    **{name: (f"{name}(%v)", "%r") for name in (
        "exp", "expm1", "log", "log1p", "log2", "log10", "sigmoid", "tanh", "erf", "sqrt", "rsqrt", "sin", "cos", "tan", "asin",
        "acos", "atan", "sinh", "cosh",
    )},
    "power(x, 1/3)": ("power(%v, cast(0.3333333432674408f, dtype=\"TYPE\"))", "%r"),
    "power(2, x)": ("power(cast(2f, dtype=\"TYPE\"), %v)", "%r"),
    "silu": ("nn.silu(%v)", "%w"),
    "gelu": ("nn.gelu(%v)", "%w"),
}  # fmt: skip


def program(name: str) -> str:
    """Relay text: operands to the largest error and its place."""
    text, scale = FUNCTIONS[name]
    single, double = (text.replace("%v", v).replace("TYPE", t) for v, t in (("%x", "float32"), ("%w", "float64")))
    return f"""#[version = "0.0.5"]
    def @main(%x: Tensor[({CHUNK},), float32]) {{
      let %y = cast({single}, dtype="float64");
      let %w = cast(%x, dtype="float64");
      let %r = {double};
      let %nearest = cast(cast(%r, dtype="float32"), dtype="float64");
      let %size = maximum(abs({scale}), 1.1754943508222875e-38f64);
      let %unit = power(2f64, floor(log2(%size)) - 23f64);
      let %bounded = minimum(maximum(%y, -3.402823669209385e38f64), 3.402823669209385e38f64);
      let %same = logical_or(%y == %nearest, logical_and(isnan(%y), isnan(%r)));
      let %error = where(%same, 0f64, abs(%bounded - %r) / %unit);
      (max(%error), argmax(%error))
    }}"""


def worst(
    name: str, first: int = 0, last: int = 1 << 32, step: int = 1, threads: int | None = None, target: str = "cpu"
) -> tuple[float, float]:
    """The largest error over every ``step``-th bit pattern in the range, and for which operand."""
    run = relay.compile(program(name), threads=threads, target=target)
    found, at = -1.0, 0.0
    for start in range(first, last, CHUNK * step):
        patterns = np.arange(start, min(start + CHUNK * step, last), step, dtype=np.uint64)
        x = np.resize(patterns, CHUNK).astype(np.uint32).view(np.float32)
        result = run(x)
        assert isinstance(result, tuple)
        error, place = (np.asarray(r).item() for r in result)
        if not error <= found:
            found, at = error, float(x[place])
            if np.isnan(found):
                break
    return found, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help=f"of {', '.join(FUNCTIONS)} (all)")
    parser.add_argument("--step", type=int, default=1, help="look at every so many-th bit pattern only")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--target", default="cpu", help="compiled for: x86-64-v3, a machine without AVX-512")
    args = parser.parse_args()
    if unknown := set(args.functions) - FUNCTIONS.keys():
        parser.error(f"no function {', '.join(sorted(unknown))}; there are {', '.join(FUNCTIONS)}")
    print("function        worst error (ulp)   for            seconds")
    for name in args.functions or FUNCTIONS:
        start = time.perf_counter()
        error, at = worst(name, step=args.step, threads=args.threads, target=args.target)
        print(f"{name:15} {error:17.3f}   {at:<14.8g} {time.perf_counter() - start:7.1f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
