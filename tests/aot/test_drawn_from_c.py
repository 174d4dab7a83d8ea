"""Drawn programs as object files, linked into one C program: what it computes is what the interpreter does, from several threads at
once and with arguments that are given up, and nothing is left behind (`drawn.c`, under the address sanitizer); what does not fit is
refused."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.aot.library import include_folder, runtime_archive
from relay.ir.diagnostics import FileError
from relay.ir.dtypes import numpy_dtype
from relay.ir.module import Module
from tests.ad.checks import plain as from_runtime
from tests.ad.generator import example
from tests.batching.test_drawn_lists import BY
from tests.batching.test_drawn_lists import requests as lists_of
from tests.generator import program
from tests.generator.compare import difference
from tests.generator.lists import over_lists
from tests.generator.recursions import recursion
from tests.generator.source import Choices, Seeded

HERE = Path(__file__).parent
# How many of each kind there are; each takes a second or more to be compiled.
PLAIN, TREES, LISTS, GRADIENTS = 8, 2, 2, 2

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("objcopy") is None, reason="needs a C compiler"
)


@dataclass(frozen=True)
class Value:
    """What C sees of an algebraic value or a tuple."""

    tag: int
    fields: tuple[object, ...]


def number(n: int) -> bytes:
    return struct.pack("<q", n)


def plain(value: object) -> object:
    """A value of the runtime's as C sees it: arrays and `Value`s."""
    if isinstance(value, _runtime.Value):
        return Value(value.tag, tuple(plain(f) for f in value.fields))
    return np.asarray(value)


def written(value: object) -> bytes:
    if isinstance(value, Value):
        fields = b"".join(written(f) for f in value.fields)
        return b"A" + number(value.tag) + number(len(value.fields)) + fields
    assert isinstance(value, np.ndarray)
    data = np.ascontiguousarray(value).tobytes()
    shape = b"".join(number(n) for n in value.shape)
    dtype = str(value.dtype.name).encode().ljust(16, b"\0")
    return b"T" + dtype + number(value.ndim) + shape + number(len(data)) + data


class Reader:
    """Values from the bytes that C wrote."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "the C program ended early"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        return int(struct.unpack("<q", self.take(8))[0])

    def value(self) -> object:
        kind = self.take(1)
        if kind == b"A":
            tag = self.number()
            return Value(tag, tuple(self.value() for _ in range(self.number())))
        assert kind == b"T", kind
        dtype = numpy_dtype(self.take(16).rstrip(b"\0").decode())
        shape = tuple(self.number() for _ in range(self.number()))
        return np.frombuffer(self.take(self.number()), dtype).reshape(shape)


def unlike(expected: object, found: object, where: str) -> str | None:
    """What differs first between two values as C sees them."""
    if isinstance(expected, Value) and isinstance(found, Value):
        if (expected.tag, len(expected.fields)) != (found.tag, len(found.fields)):
            return f"{where}: tag {expected.tag} of {len(expected.fields)} and {found.tag} of {len(found.fields)}"
        pairs = enumerate(zip(expected.fields, found.fields, strict=True))
        return next((d for n, (e, f) in pairs if (d := unlike(e, f, f"{where}.{n}"))), None)
    if isinstance(expected, Value) or isinstance(found, Value):
        return f"{where}: {expected} and {found}"
    return difference(expected, found, where)


@dataclass(frozen=True)
class Case:
    """A program, and arguments of `@main` with what it gives, or None where they do not fit."""

    what: str
    module: Module
    requests: tuple[tuple[object, ...], ...]


def wrong(args: Sequence[object]) -> list[tuple[object, ...]]:
    """Arguments that do not fit: one too few; one of another dtype; one of another rank; a number where a value is."""
    args = tuple(args)
    made: list[tuple[object, ...]] = [args[:-1]]
    for n, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            other = np.dtype("int16") if arg.dtype != np.int16 else np.dtype("int8")
            changed: tuple[object, ...] = (np.zeros(arg.shape, other), arg[None])
        else:
            changed = (np.zeros((), np.float32), Value(7, ()), Value(-1, (np.zeros((2, 2, 2)),) * 5))
        made += [(*args[:n], c, *args[n + 1 :]) for c in changed]
    return made


def cases(first: int) -> list[Case]:
    made = []
    for seed in range(first, first + PLAIN):
        p = program(seed)
        made.append(Case(f"program {seed}", relay.infer_type(p.module), (p.args,)))
    for seed in range(first, first + TREES):
        drawn = recursion(Choices(Seeded(seed)))
        mod = relay.infer_type(relay.parse(drawn.text))
        random = np.random.default_rng(seed)
        weights = drawn.weight_values(random)
        requests = tuple((*drawn.structures(mod, random, size), *weights) for size in (0, 5, 12))
        made.append(Case(f"recursion {seed}", mod, requests))
    for seed in range(first, first + LISTS):
        mod = relay.value_and_grad(relay.parse(over_lists(Choices(Seeded(seed)))), BY[seed % len(BY)])
        made.append(Case(f"lists {seed}", mod, tuple(map(tuple, lists_of(seed, 1 + seed % 4)))))
    for seed in range(first, first + GRADIENTS):
        e = example(seed)
        made.append(Case(f"gradients {seed}", relay.infer_type(relay.parse(e.text)), (e.args,)))
    return made


def test_drawn_programs_from_c(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    try:
        archive = runtime_archive()
    except FileError:
        pytest.skip("the runtime's library is not built")
    drawn = cases(int(request.config.getoption("--programs-from")))
    for n, case in enumerate(drawn):
        relay.build_library(case.module, tmp_path / f"p{n}.o", workers=1)
    includes = "".join(f'#include "p{n}.h"\n' for n in range(len(drawn)))
    opened = ", ".join(f"p{n}_open" for n in range(len(drawn)))
    table = f"{includes}static relay_executable *(*const opened[])(void) = {{{opened}}};\n"
    (tmp_path / "programs.h").write_text(table)
    objects = [str(tmp_path / f"p{n}.o") for n in range(len(drawn))]
    command = [
        "gcc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-fsanitize=address",
        str(HERE / "drawn.c"),
        *objects,
    ]
    command += [str(archive), "-I", str(tmp_path), "-I", str(include_folder()), "-lstdc++", "-lpthread", "-lm"]
    subprocess.run([*command, "-o", str(tmp_path / "drawn")], check=True)

    given, wanted = b"", []
    for n, case in enumerate(drawn):
        exe = relay.compile(case.module)
        signature = exe.signature()
        for args in case.requests:
            with np.errstate(all="ignore"):
                expected = relay.evaluate(case.module, *args)
            assert (different := difference(expected, from_runtime(exe(*args)), case.what)) is None, different
            # What an option or a list is to C goes by its type, as it does for the runtime.
            given_values = list(map(plain, signature.arguments(args)))
            wanted.append((case, plain(exe.program.run("main", signature.arguments(args)))))
            given += number(n) + number(0) + number(len(given_values)) + b"".join(map(written, given_values))
        for values in wrong(list(map(plain, signature.arguments(case.requests[0])))):
            wanted.append((case, None))
            given += number(n) + number(0) + number(len(values)) + b"".join(map(written, values))
    done = subprocess.run([tmp_path / "drawn"], input=given, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    answers = Reader(done.stdout)
    for case, expected in wanted:
        status = answers.number()
        if status != 0:
            said = answers.take(answers.number()).decode()
            assert expected is None and said, f"{case.what}: {said}\n{case.module.text()}"
            continue
        found = answers.value()
        assert expected is not None, f"{case.what}: arguments that do not fit gave {found}\n{case.module.text()}"
        assert (different := unlike(expected, found, case.what)) is None, f"{different}\n{case.module.text()}"
