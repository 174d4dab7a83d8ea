"""A program of 25,000 operators goes through every stage: nothing recurses over its depth, and its result is right."""

from __future__ import annotations

import numpy as np

import relay
from relay.ir.equality import alpha_equal
from relay.transform import ToBlocks

NODES = 25_000  # more than the stacks of Python and C hold


def _chain(form: str) -> str:
    head = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32]) -> Tensor[(2, 3), float32] {\n'
    if form == "graph":
        lines = ["%0 = %x * 1f;"] + [
            f"%{k} = {'-' if k % 2 else ''}%{k - 1}{'' if k % 2 else ' + 1f'};" for k in range(1, NODES)
        ]
        return head + "\n".join(lines) + f"\n%{NODES - 1}\n}}"
    lines = ["let %v0 = %x * 1f;"]
    lines += [f"let %v{k} = {'-' if k % 2 else ''}%v{k - 1}{'' if k % 2 else ' + 1f'};" for k in range(1, NODES)]
    return head + "\n".join(lines) + f"\n%v{NODES - 1}\n}}"


def test_a_long_chain() -> None:
    """Written with graph bindings or with ``let``, it is the same program once it is in blocks; that is compiled and run."""
    module, other = (relay.parse(_chain(form)) for form in ("graph", "let"))
    module = relay.parse(module.text())
    assert alpha_equal(ToBlocks()(module), ToBlocks()(other))
    exe = relay.compile(module, cache=False)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = x.copy()
    for k in range(1, NODES):
        expected = -expected if k % 2 else expected + 1
    np.testing.assert_array_equal(np.asarray(exe(x)), expected)
