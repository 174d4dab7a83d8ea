"""Runs saved executables by the functions for C of a shared library, in a process that has no other Relay: ``from_c.py LIBRARY``.

On standard input a line of JSON for each run: the file of the executable, the name of the entry, and its arguments. An argument is null (a
null pointer), ``{"dtype": ..., "shape": [...]}`` (a tensor of ones), ``[tag, fields...]`` or ``{"entry": ..., "args": [...]}`` (what that
entry of the same executable gives). Prints a line for each: the status, and what
the error says.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import numpy as np

P, N = ctypes.c_void_p, ctypes.c_size_t
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "relay_last_error": (ctypes.c_char_p, []),
    "relay_load": (P, [ctypes.c_char_p]),
    "relay_find": (ctypes.c_int64, [P, ctypes.c_char_p]),
    "relay_tensor_copy": (P, [ctypes.c_char_p, N, P, P]),
    "relay_adt": (P, [ctypes.c_int32, P, N]),
    "relay_value_field": (P, [P, N]),
    "relay_value_kind": (ctypes.c_int, [P]),
    "relay_tensor_rank": (N, [P]),
    "relay_value_field_count": (N, [P]),
    "relay_run": (ctypes.c_int, [P, N, P, N, P, P]),
    "relay_value_free": (None, [P]),
    "relay_executable_free": (None, [P]),
}


def main() -> None:
    c = ctypes.CDLL(sys.argv[1])
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(c, name)
        function.restype, function.argtypes = result, parameters

    def value(given: Any) -> Any:
        if given is None:
            return None
        if isinstance(given, dict) and "entry" in given:
            status, result = call(given["entry"], given["args"])
            assert status == 0, c.relay_last_error()
            return result
        if isinstance(given, dict):
            ones, shape = np.ones(given["shape"], given["dtype"]), given["shape"]
            sizes = (ctypes.c_int64 * len(shape))(*shape)
            return c.relay_tensor_copy(given["dtype"].encode(), len(shape), sizes, ones.ctypes.data)
        fields = [value(f) for f in given[1:]]
        made = c.relay_adt(given[0], (P * len(fields))(*fields), len(fields))
        for field in fields:
            c.relay_value_free(field)
        return made

    def call(entry: str, given: list[Any]) -> tuple[int, Any]:
        result, args = P(), [value(g) for g in given]
        number = max(0, c.relay_find(program, entry.encode()))
        status = c.relay_run(program, number, (P * len(args))(*args), len(args), None, ctypes.byref(result))
        for arg in args:
            c.relay_value_free(arg)
        return status, result

    for line in sys.stdin:
        path, entry, given = json.loads(line)
        program = c.relay_load(path.encode()) if path else None
        status, result = call(entry, given)
        print(json.dumps([status, c.relay_last_error().decode() if status else ""]), flush=True)
        c.relay_value_kind(result), c.relay_tensor_rank(result), c.relay_value_field_count(result)
        c.relay_value_free(result)
        c.relay_executable_free(program)


if __name__ == "__main__":
    main()
