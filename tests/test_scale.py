"""A program of 25,000 operators goes through every stage: nothing recurses over its depth, and its result is right."""

from __future__ import annotations

import time

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


def test_many_branches_inside_each_other() -> None:
    """Each pass looks at each of them a few times, and not once more for every branch around it (a minute for these)."""
    depth = 3000
    module = relay.parse(
        f"""#[version = "0.0.5"]
def @main(%x: float32) -> float32 {{ {"if (%x < 1f) { 2f } else " * depth} {{ if (%x < 3f) {{ 4f }} else {{ 5f }} }} }}"""
    )
    start = time.process_time()
    exe = relay.compile(module, cache=False)
    assert time.process_time() - start < 40
    assert [float(exe(x)) for x in (0, 2, 3)] == [2, 4, 5]


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
