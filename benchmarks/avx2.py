"""Any other benchmark as on a machine without AVX-512: Relay compiles for AVX2, and PyTorch's libraries are held to it.

    python benchmarks/avx2.py random_products.py --seed 11 --count 50

onnxruntime, OpenVINO and JAX cannot be held to it and take what the machine has: leave them out.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

# Libraries read these when they are loaded.
os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import relay

TARGET = "x86-64-v3"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(f"which benchmark? python {sys.argv[0]} random_products.py ...")
    here = Path(__file__).parent
    script = here / sys.argv[1]
    if not script.is_file():
        sys.exit(f"there is no benchmark {sys.argv[1]} in {here}")
    compiled = relay.compile

    def compile_for_avx2(*args: Any, **options: Any) -> relay.Executable:
        return compiled(*args, **{"target": TARGET, **options})

    relay.compile = compile_for_avx2
    sys.path[:0] = [str(here), str(here.parent)]
    sys.argv = sys.argv[1:]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
