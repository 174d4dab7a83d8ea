"""Run kernels natively in tests, through the runtime's loader and a thread pool of one thread."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from relay._runtime import NativeObject
from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.codegen.target import host_target
from relay.ir.dim import DimVar, dim_evaluate
from relay.loop.ir import Kernel
from relay.loop.target import Target

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_BODY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)
_PARALLEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
WORKERS = 3


class Context(ctypes.Structure):
    """relay_kernel_context."""

    _fields_ = [
        ("parallel_for", _PARALLEL),
        ("workspace", ctypes.c_void_p),
        ("num_workers", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("runtime", ctypes.c_void_p),
        ("turn", ctypes.c_int64),
        ("flush_subnormals", ctypes.c_int64),
    ]


def _parallel_for(context: int, body: int, env: int, n: int, grain: int) -> int:
    """Three pieces at multiples of the grain, as three workers would take them, last first."""
    function = _BODY(body)
    pieces = -(-n // grain)
    bounds = sorted({min(n, pieces * part // WORKERS * grain) for part in range(WORKERS + 1)})
    for worker, (begin, end) in reversed(list(enumerate(pairwise(bounds)))):
        code = int(function(context, env, begin, end, worker))
        if code:
            return code
    return 0


class Native:
    """A compiled kernel: call it with arrays for inputs and outputs (outputs are written) and values for its dims."""

    def __init__(self, kernel: Kernel, target: Target | None = None) -> None:
        self.kernel = kernel
        self.target = target or host_target()
        self.text = emit(kernel, self.target)
        self._object = NativeObject(compile_text(self.text, self.target), kernel.name)
        self._function = _KERNEL(self._object.address(kernel.name))
        self._parallel_for = _PARALLEL(_parallel_for)

    def __call__(self, arrays: Sequence[np.ndarray[Any, Any]], dims: Mapping[DimVar, int] | None = None) -> int:
        """Returns the kernel's code. Arrays must be contiguous."""
        values = dims or {}
        assert all(a.flags.c_contiguous for a in arrays)
        shared = dim_evaluate(self.kernel.shared_bytes, values)
        worker = dim_evaluate(self.kernel.worker_bytes, values)
        workspace = np.full(shared + WORKERS * worker + 64, 0xAB, np.uint8)
        start = -workspace.ctypes.data % 64
        context = Context(self._parallel_for, workspace.ctypes.data + start, WORKERS, None, None)
        buffers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        sizes = (ctypes.c_int64 * max(1, len(self.kernel.dims)))(*(values[v] for v in self.kernel.dims))
        return int(self._function(ctypes.byref(context), buffers, sizes))
