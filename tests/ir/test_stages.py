"""What every pass makes prints as text that parses back to it, so that stages can be kept, edited and run on."""

from __future__ import annotations

from pathlib import Path

import pytest

import relay
from relay import typing
from relay.codegen.target import parse_target
from relay.ir.equality import alpha_equal
from relay.options import Options
from relay.pipeline import Runner, passes
from relay.transform import Pipeline, StepReport

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = [
    "charrnn", "child_sum", "collatz", "counter", "dag", "dagrnn", "earlyexit", "experts", "graph_attention", "minilm", "newton", "rnn",
    "seq2seq", "tree_lstm", "treelstm",
]  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_stages_parse_back(name: str) -> None:
    options = Options()
    module = typing.monomorphise(relay.parse((EXAMPLES / f"{name}.relay").read_text()), options.entries)
    checked: list[str] = []
    last = ""

    def observe(step: StepReport) -> None:
        nonlocal last
        text = step.after.text()
        if text == last:
            return
        last = text
        assert alpha_equal(relay.parse(text), step.after), f"after {step.transformation.name}:\n{text}"
        checked.append(step.transformation.name)

    Pipeline(passes(options, Runner(parse_target(options.target), options), module), observe=observe)(module)
    assert "to_blocks" in checked and len(checked) >= 2
