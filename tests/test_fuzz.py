"""Generated programs: compiled code against the interpreter, and printing against parsing.

How many programs is ``--fuzz-programs`` (1000 in continuous integration). Runs are deterministic; ``--programs-from`` gives other
programs. A failure is shrunk by hypothesis and shows the program's text and arguments.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

import relay
from relay.ir.equality import alpha_equal
from relay.ir.expr import OpRef
from relay.ir.parser import parse_module
from relay.ir.printer import module_text
from relay.ir.walk import post_order
from relay.pipeline import build
from tests.generator import Program, program, programs
from tests.generator.compare import difference
from tests.generator.coverage import Coverage
from tests.generator.mutations import MUTATIONS, Mutation


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz-programs"))


# The programs come in parts, which processes can share.
PARTS = 4
in_parts = pytest.mark.parametrize("part", range(PARTS))


@pytest.fixture
def first(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--programs-from"))


def over_programs(count: int, check: Callable[[Program], None], part: int, first: int) -> None:
    """Run a check on a part of so many programs, shrinking the first that fails."""

    @seed(first + part)
    @settings(max_examples=-(-count // PARTS), database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def run(p: Program) -> None:
        note(module_text(p.module))
        note(f"arguments: {p.args}")
        check(p)

    run()


def round_trip(p: Program) -> None:
    """parse(print(m)) is alpha-equal to m, untyped and typed, and prints the same again."""
    for module in (p.module, relay.infer_type(p.module)):
        text = module_text(module)
        again = parse_module(text)
        assert alpha_equal(module, again)
        assert module_text(again) == text


def same_result(p: Program, **options: Any) -> None:
    """The compiled program gives what the interpreter gives, up to rounding."""
    module = relay.infer_type(p.module)
    expected = relay.evaluate(module, *p.args)
    found = relay.compile(module, **options)(*p.args)
    different = difference(expected, found)
    assert different is None, different


def untyped_result(p: Program) -> None:
    """Types do not change meaning: the program gives the same before and after inference."""
    different = difference(relay.evaluate(p.module, *p.args), relay.evaluate(relay.infer_type(p.module), *p.args))
    assert different is None, different


@in_parts
def test_parsing_what_was_printed(examples: int, part: int, first: int) -> None:
    over_programs(examples, round_trip, part, first)


@in_parts
def test_inference_keeps_the_meaning(examples: int, part: int, first: int) -> None:
    over_programs(examples, untyped_result, part, first)


@in_parts
def test_compiled_code_against_the_interpreter(examples: int, part: int, first: int) -> None:
    over_programs(examples, same_result, part, first)


@in_parts
def test_native_code_against_the_virtual_machine(examples: int, part: int, first: int) -> None:
    """The interpreter, the virtual machine and native code agree; what is inlined does not show."""

    def check(p: Program) -> None:
        same_result(p, executor="aot")
        module = relay.infer_type(p.module)
        exe = relay.compile(module, executor="aot", opt_level=1)
        native = exe(*p.args)
        plain = relay.compile(module, executor="vm", opt_level=1)(*p.args)
        different = difference(plain, native)
        assert different is None, different

    over_programs(max(PARTS, examples // 10), check, part, first)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_lower_optimization_levels(level: int) -> None:
    """A few programs at every level: what the passes do must not show."""
    for number in range(10):
        p = program(10_000 + number)
        module = relay.infer_type(p.module)
        found = relay.compile(module, opt_level=level)(*p.args)
        different = difference(relay.evaluate(module, *p.args), found)
        assert different is None, f"seed {10_000 + number}: {different}"


def test_programs_are_those_of_their_seed() -> None:
    assert alpha_equal(program(7).module, program(7).module)
    assert not alpha_equal(program(7).module, program(8).module)


def test_the_generator_reaches_everything() -> None:
    """Every node kind, pattern, operator family, dtype and kind of size occurs. ``pytest -s`` shows the counts."""
    coverage = Coverage()
    for number in range(1000):
        coverage.add(program(number))
    print(coverage.report())
    assert coverage.missing() == []
    rare = (
        "polymorphic functions",
        "functions of functions",
        "nested patterns",
        "partial matches",
        "functions generic in sizes",
    )
    assert all(coverage.features[name] for name in rare)
    # Not a generator of constants: most programs do something.
    assert coverage.nodes["Call"] > 12 * coverage.programs


WITHIN = 300
ONE_OF_EACH = {m.name.partition(":")[0]: m for m in reversed(MUTATIONS)}.values()
PATIENCE = 5.0  # seconds of the processor: a fault may make a program that never ends


def operators(p: Program) -> set[str]:
    return {n.name for f in p.module.functions.values() for n in post_order(f) if isinstance(n, OpRef)}


def _expired(_signal: int, _frame: object) -> None:
    raise TimeoutError


def compiled_result(p: Program, kernels: Path | None) -> None:
    """The program compiled anew gives what the interpreter gives; kernels are kept in a directory, under all that decides their code."""
    module = relay.infer_type(p.module)
    expected = relay.evaluate(module, *p.args)
    image = build(module, relay.Options(cache=kernels is not None, cache_dir=kernels, workers=1)).image
    different = difference(expected, relay.Executable.from_bytes(image.to_bytes(), None)(*p.args))
    assert different is None, different


def is_wrong(p: Program, mutation: Mutation, kernels: Path | None) -> bool:
    """Whether the mutation's check fails on a program, by a difference, by an error or by not ending."""
    before = signal.signal(signal.SIGVTALRM, _expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
    try:
        if mutation.check == "round trip":
            round_trip(p)
        else:
            compiled_result(p, kernels)
    except Exception:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return False


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_seeded_faults_are_found(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, examples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every fault of `MUTATIONS` is found within 300 programs, and the program that finds it is right without the fault."""
    if examples < 1000 and mutation not in ONE_OF_EACH:
        pytest.skip("one fault of each room is enough here; continuous integration has all")
    # A fault in code generation is none of what the cache knows kernels by. All others may share what is compiled.
    kernels = None if mutation.name.startswith("codegen") else tmp_path_factory.getbasetemp() / "kernels"
    for number in (mutation.first, *range(WITHIN)):
        p = program(number)
        if mutation.needs and operators(p).isdisjoint(mutation.needs):
            continue
        with monkeypatch.context() as patch:
            mutation.apply(patch)
            found = is_wrong(p, mutation, kernels)
        if found:
            assert not is_wrong(p, mutation, kernels), f"program {number} is wrong without the fault"
            print(f"found by program {number}")
            return
    pytest.fail(f"{mutation.name}: not found by {WITHIN} programs")
