"""relay verify: executors agree, and where one is made wrong the first wrong value is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.cli.verify import Comparison, difference, verify
from relay.ir.diagnostics import RelayError
from relay.ir.value import AdtValue
from relay.pipeline import build
from tests.generator import program
from tests.runtime.programs import object_code

PROGRAM = """#[version = "0.0.5"]
def @step[n: Dim](%k: int64, %x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {
  if (%k == 0i64) {
    %x
  } else {
    let %y = nn.softmax(%x);
    let %z = cumsum(%y, axis=1);
    @step(%k - 1i64, %z)
  }
}
def @main[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] { @step(3i64, %x) }
"""
# Writes 42 to all eight elements of the kernel's output: what memory held before must not decide how the rest prints.
WRONG = """
define i32 @wrong(ptr %ctx, ptr %buffers, ptr %dims) {
  %slot = getelementptr ptr, ptr %buffers, i64 OUTPUT
  %out = load ptr, ptr %slot
  store <8 x float> splat (float 4.2e+01), ptr %out, align 4
  ret i32 0
}
"""
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def comparison(wrong: str, executor: str) -> Comparison:
    """Executors of PROGRAM, of which one runs a wrong kernel in place of the one whose name has that in it."""
    module = relay.parse(PROGRAM)
    options = relay.Options(opt_level=0, cache=False)
    image = build(module, options).image
    made = Comparison(module, "main", [X], image, options)
    (kernel,) = [k for k in image.kernels if wrong in k.name]
    code = object_code(WRONG.replace("OUTPUT", str(len(kernel.operands) - 1)))

    def prepare(name: str, exe: relay.Executable) -> None:
        if name == executor:
            exe.program.replace_kernel(kernel.name, code, "wrong")

    made.prepare = prepare
    return made


def test_executors_agree() -> None:
    options = relay.Options(cache=False)
    assert verify(relay.parse(PROGRAM), "main", [X], ("interpreter", "vm", "aot"), options) is None


@pytest.mark.parametrize("seed", range(8))
def test_executors_agree_on_generated_programs(seed: int) -> None:
    p = program(seed)
    module = relay.infer_type(p.module)
    assert verify(module, "main", p.args, ("interpreter", "vm", "aot"), relay.Options(cache=False)) is None


@pytest.mark.parametrize("reference", ["vm", "interpreter"])
@pytest.mark.parametrize(("wrong", "variable", "line"), [("cumsum", "%z", 7), ("softmax", "%y", 6)])
def test_the_first_wrong_value_is_named(reference: str, wrong: str, variable: str, line: int) -> None:
    found = comparison(wrong, "aot").run((reference, "aot"))
    assert found is not None and (found.first, found.second) == (reference, "aot")
    assert found.where.startswith(f"{variable} in @step at <text>:{line}:"), found
    assert wrong in found.where
    assert "42." in found.found and "42." not in found.expected


def test_the_order_of_executors_is_kept() -> None:
    found = comparison("cumsum", "vm").run(("vm", "interpreter"))
    assert found is not None and "42." in found.expected and "42." not in found.found


def test_failures_are_results() -> None:
    text = '#[version = "0.0.5"]\nimport prelude\ndef @main(%x: int64) -> int64 { let %e: List[int64] = Nil; @hd(%e) + %x }\n'
    options = relay.Options(cache=False)
    assert verify(relay.parse(text), "main", [np.int64(1)], ("interpreter", "vm", "aot"), options) is None


def test_what_counts_as_a_difference() -> None:
    leaf = AdtValue("Tree", "Leaf", 0, (np.float32(1),))
    assert difference((leaf, [X]), (leaf, [X + np.float32(1e-5)]), exact=False) is None
    assert difference((leaf, [X]), (leaf, [X + np.float32(1e-5)]), exact=True) is not None
    found = difference(leaf, AdtValue("Tree", "Leaf", 0, (np.float32(2),)), exact=False)
    assert found is not None and found[0] == "the result.0"
    assert difference(None, X, exact=False) is not None
    assert difference(X, X.astype(np.float64), exact=False) is not None


def test_wrong_names() -> None:
    module = relay.parse(PROGRAM)
    with pytest.raises(RelayError, match="unknown executor 'gpu'"):
        verify(module, "main", [X], ("vm", "gpu"), relay.Options())
    with pytest.raises(RelayError, match="name two executors or more"):
        verify(module, "main", [X], ("vm",), relay.Options())


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "p.relay").write_text(PROGRAM)
    verb = [sys.executable, "-m", "relay", "verify", "p.relay", "--dim", "n=3"]
    done = subprocess.run(verb, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "interpreter, vm, aot agree\n"
    done = subprocess.run([*verb, "--bounds", "--json"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["unproved"] == {}
    done = subprocess.run([*verb, "--executors", "vm,aot", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"agree": True})
