"""Bad input: one clear message, the right exit code, nothing written, never a crash of the process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import relay
from relay.cli.main import VERBS
from tests.cli.process import run

HEADER = '#[version = "0.0.5"]\n'
GOOD = HEADER + "def @main[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] { %x + %x }\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def @main(%x: Tensor[(4,), float32] { %x }", "expected"),
        ("def @main(%x: Tensor[(4,), float32]) { add(%x, %y) }", "%y"),
        ("def @main(%x: Tensor[(4,), float32], %y: Tensor[(5,), float32]) { %x + %y }", "4"),
        ("def @main(%x: Tensor[(4,), float32], %y: Tensor[(4,), int32]) { %x + %y }", "int32"),
        ("def @main(%x: Tensor[(4,), float32]) { nn.densee(%x, %x) }", "nn.dense"),
        ("def @main(%x: Tensor[(4,), float32]) { nn.softmax(%x, axes=1) }", "axes"),
        ("def @main(%x: Tensor[(4,), float32]) -> Tensor[(5,), float32] { %x }", "5"),
        ("def @main(%x: Tensor[(4,), float32]) { @missing(%x) }", "@missing"),
        ("def @other(%x: Tensor[(4,), float32]) { %x }", "@main"),
    ],
)
def test_bad_programs(tmp_path: Path, body: str, says: str) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + body)
    done = run("compile", path, "-o", tmp_path / "m.rlx")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.relay"]


@pytest.mark.parametrize("args", [["run", "--interpret"], ["run", "--debug"], ["inspect"], ["verify"], ["opt"]])
def test_what_needs_the_program_says_so_of_a_compiled_one(tmp_path: Path, args: list[str]) -> None:
    relay.compile(GOOD).save(tmp_path / "m.rlx")
    done = run(*args, tmp_path / "m.rlx")
    assert done.returncode == 2, done.stderr
    assert "is a compiled program, and this needs its text\n  hint: give the .relay file" in done.stderr


def test_text_that_is_no_program_is_told_how_one_begins(tmp_path: Path) -> None:
    (tmp_path / "m.relay").write_text('{"layers": 3}')
    done = run("compile", tmp_path / "m.relay")
    assert done.returncode == 2, done.stderr
    assert 'a program begins with #[version = "0.0.5"]' in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "missing.relay"], "no such file"),
        (["run", "missing.rlx"], "no such file"),
        (["frobnicate"], "frobnicate"),
        (["run"], "FILE"),
        (["run", "GOOD", "GOOD"], "unrecognized"),
        (["run", "GOOD", "--inp", "x=1"], "--inp"),
        (["run", "GOOD", "--threads", "two"], "--threads"),
        (["bench", "GOOD", "--seconds"], "--seconds"),
        (["run", "GOOD", "--input", "z=1"], "%z"),
        (["run", "GOOD", "--input", "x=[1, 2"], "cannot read"),
        (["run", "GOOD", "--input", "x=none.npy"], "no such file"),
        (["run", "GOOD", "--input", "x=[[1.0, 2.0]]"], "size 2, expected 4"),
        (["run", "GOOD", "--input", "x=[1.0, 2.0, 3.0, 4.0]"], "must be Tensor"),
        (["run", "GOOD", "--input", "x=[[1, 2, 3, 1j]]"], "cannot read a value"),
        (["run", "GOOD", "--input", "x=" + "[" * 5000], "cannot read a value"),
        (["run", "GOOD", "-i", "x=random", "-i", "x=random"], "given twice"),
        (["run", "GOOD", "-d", "n=" + "9" * 30], "below 2^63"),
        (["run", "GOOD", "-d", "n=" + "9" * 5000], "below 2^63"),
        (["run", "GOOD", "-i", "x=[[1e300, 1, 2, 3]]"], "does not fit in float32, which %x is made of"),
        (["run", "GOOD", "-i", "x=[[1, 2, 3, infinity]]"], "cannot read a value"),
        (["run", "GOOD", "-d", "rows=3"], "no parameter of the entry has an axis of size rows"),
        (["run", "GOOD", "--threads", "9" * 20], "threads must be"),
        (["run", "GOOD", "--entry", "nowhere"], "nowhere"),
        (["run", "GOOD", "--opt-level", "7"], "opt_level"),
        (["run", "GOOD", "--target", "vax"], "vax"),
        (["run", "GOOD", "--weights", "none.safetensors"], "no such file"),
        (["opt", "GOOD", "--passes", "frobnicate"], "frobnicate"),
        (["opt", "GOOD", "--passes", "fuse{max_size=-1}"], "fuse: max_size must not be negative, found -1"),
        (["opt", "GOOD", "--entry", "nowhere"], "no function @nowhere"),
        (["compile", "GOOD", "-o", "out.txt"], ".rlx is an executable, .so, .o, .h are for C"),
        (["compile", "GOOD", "-o", "out"], "cannot write out: its name does not say"),
        (["compile", "GOOD", "--weights", "GOOD"], "named arrays in a .safetensors or .npz file"),
        (["inspect", "GOOD", "--show", "everything"], "everything"),
        (["compile", ""], "Is a directory"),
        (["inspect", "a" * 300], "File name too long"),
        (["run", "GOOD", "--target", "'"], "No closing quotation"),
        (["run", "GOOD", "--target", "cpu -mattr=+avx1024"], "avx1024"),
        (["run", "GOOD", "--seed", "-1"], "must not be negative"),
        (["compile", "GOOD", "-o", "/"], "Is a directory"),
        (["compile", "GOOD", "-o", "GOOD"], "would replace the program"),
        (["compile", "missing.relay", "-o", "GOOD"], "no such file: missing.relay"),
        (["compile", "GOOD/x", "-o", "GOOD"], "no such file"),
        (["profile", "GOOD", "--plot", "r.bmp"], "pictures are .svg files"),
        (["bench", "GOOD", "--plot", "r.png"], "pictures are .svg files"),
        (["bench", "GOOD", "--seconds", "inf"], "must be a positive number"),
        (["profile", "GOOD", "--seconds", "nan"], "must be a positive number"),
        (["opt", "/dev/zero"], "characters"),
    ],
)
def test_bad_command_lines(tmp_path: Path, args: list[str], says: str) -> None:
    path = tmp_path / "m.relay"
    path.write_text(GOOD)
    done = run(*[path if a == "GOOD" else a for a in args])
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',"]
)
def test_a_damaged_array_is_refused(tmp_path: Path, content: bytes) -> None:
    path, data = tmp_path / "m.relay", tmp_path / "x.npy"
    path.write_text(GOOD)
    data.write_bytes(content)
    done = run("run", path, "-i", f"x={data}")
    assert done.returncode == 2 and "cannot read an array" in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + "def @main(%x: Tensor[(2,), int8]) { %x }")
    for text in ("[300, 1]", "[1.5, 1]", "[-129, 1]", f"[{10**30}, 1]", "[1e300, 1]"):
        done = run("run", path, "-i", f"x={text}")
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "127" in run("run", path, "-i", "x=[127, True]").stdout


def test_a_message_shows_the_beginning_of_a_long_text(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + "def @main(%x: int64) -> int64 { %x }")
    done = run("run", path, "-i", "x=" + "[" * 50_000)
    assert done.returncode == 2 and "cannot read a value of %x from '[[[" in done.stderr and len(done.stderr) < 500


def test_infinities_and_nan_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        path.write_text(HEADER + f"def @main(%x: Tensor[(2, 2), {dtype}]) {{ negative(%x) }}")
        done = run("run", path, "-i", "x=[[inf, -inf], [nan, 2.5]]")
        assert done.returncode == 0, done.stderr
        assert re.findall(r"[-.\w]+", done.stdout)[-4:] == ["-inf", "inf", "nan", "-2.5"]
    path.write_text(HEADER + "def @main(%x: Tensor[(2,), int8]) { %x }")
    done = run("run", path, "-i", "x=[inf, 1]")
    assert done.returncode == 2 and "does not fit in int8" in done.stderr, done.stderr


@pytest.mark.parametrize("size", [10**12, 1 << 60, (1 << 63) - 1])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_random_inputs_that_no_memory_holds(tmp_path: Path, size: int, dtype: str) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + f"def @main[n: Dim](%x: Tensor[(n, 64), {dtype}]) {{ %x }}")
    done = run("run", path, "--interpret", "-d", f"n={size}")
    assert done.returncode == 1 and f"out of memory: a random %x of shape ({size}, 64)" in done.stderr, done.stderr


def test_options_of_compiling_do_not_apply_to_a_compiled_program(tmp_path: Path) -> None:
    path, copy = tmp_path / "m.rlx", tmp_path / "copy.rlx"
    relay.compile(relay.parse(GOOD)).save(path)
    given = ["--weights", "none.npz", "--target", "aarch64", "-O", "0"]
    for command, names in (
        (["run", path, *given, "-d", "n=1"], "--weights, --target, --opt-level"),
        (["bench", path, "--precision", "bf16"], "--precision"),
        (["profile", path, *given], "--weights, --target, --opt-level"),
        (["compile", path, "-o", copy, "--entry", "f", "--executor", "aot", "--tune"], "--entry, --executor, --tune"),
        (["compile", path, "-o", copy, "--memory-budget", "9", "--threads", "1"], "--memory-budget, --threads"),
    ):
        done = run(*command)
        assert done.returncode == 2 and f" cannot apply to {path}: it is compiled already" in done.stderr, done.stderr
        assert set(done.stderr.removeprefix("error: ").split(" cannot")[0].split(", ")) == set(names.split(", "))
    assert run("compile", path, "-o", copy).returncode == 0 and copy.read_bytes() == path.read_bytes()


def test_a_damaged_executable_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.rlx"
    relay.compile(relay.parse(GOOD)).save(path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 4
    for content in (whole[:100], bytes(damaged), b"", b"not an executable at all"):
        path.write_bytes(content)
        done = run("run", path)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_a_failure_while_running_is_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(
        HEADER
        + "type T { A, B, }\ndef @main(%n: int32) -> int32 { let %t = if (%n > 0) { A } else { B }; match? (%t) { A => %n } }"
    )
    assert run("run", path, "-i", "n=1").returncode == 0
    done = run("run", path, "-i", "n=-1")
    assert done.returncode == 1 and "match" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(GOOD)
    done = run("compile", path, "-o", tmp_path / "no" / "such" / "m.rlx")
    assert done.returncode == 2 and "there is no folder" in done.stderr, done.stderr


def closed(command: str, path: Path) -> tuple[int, str]:
    """How a shell's command ends in which ``relay`` stands for the command line, and what it says on standard error."""
    relay_ = f"{sys.executable} -m relay"
    done = subprocess.run(
        ["bash", "-c", command.replace("relay", relay_, 1).replace("GOOD", str(path))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("relay run GOOD -d n=2 > /dev/full", 1, "error: cannot write the output: No space left on device"),
        ("relay --help > /dev/full", 1, "error: cannot write the output: No space left on device"),
        ("relay run GOOD -d n=2 -o /dev/full", 2, "No space left on device"),
        ("relay run GOOD -d n=2 <&- >&- 2>&-", 0, ""),
        ("relay run none.relay 2>&-", 2, ""),
        ("set -o pipefail; relay opt --list | true", 141, ""),
        ("relay opt --passes to_blocks", 2, "a program is missing"),
    ],
)
def test_streams_that_are_closed_or_full(tmp_path: Path, command: str, code: int, says: str) -> None:
    path = tmp_path / "m.relay"
    path.write_text(GOOD)
    for _ in range(3):  # a reader that is gone may still be there when the first lines come
        ended, said = closed(command, path)
        assert says in said and "Traceback" not in said and "Exception ignored" not in said, said
        if ended == code:
            break
    assert ended == code


def test_terminated_while_writing(tmp_path: Path) -> None:
    """What was begun is taken back."""
    script = (
        "import time; from pathlib import Path; from relay.cli import main, verbs; from relay.ir.files import write_whole\n"
        "def wait(path):\n path.write_bytes(b'half'); print('writing', flush=True); time.sleep(60)\n"
        f"main.command = lambda _: write_whole(Path({str(tmp_path / 'm.rlx')!r}), wait)\nmain.main()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "writing\n"
    assert len(list(tmp_path.iterdir())) == 1
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 143 and "Traceback" not in said, said
    assert list(tmp_path.iterdir()) == []


def test_verbs_work(tmp_path: Path) -> None:
    path, compiled, out = tmp_path / "m.relay", tmp_path / "m.rlx", tmp_path / "y.npy"
    path.write_text(GOOD)
    assert run("compile", path, "-o", compiled).returncode == 0
    done = run("run", compiled, "-i", "x=[[1.0, 2.0, 3.0, 4.0]]", "--json")
    assert done.returncode == 0 and done.stdout.strip() == "[[2.0, 4.0, 6.0, 8.0]]", done.stderr
    assert run("run", path, "--interpret", "-d", "n=3", "-o", out).returncode == 0
    assert np.load(out).shape == (3, 4)
    assert run("bench", compiled, "-d", "n=8", "--seconds", "0.1", "--json").returncode == 0
    done = run("opt", path, "--passes", "to_blocks,fuse,dce")
    assert done.returncode == 0 and "Primitive=1" in done.stdout, done.stderr
    for show in ("passes", "plans", "loops", "bytecode", "llvm", "asm", "memory", "times"):
        done = run("inspect", path, "--show", show)
        assert done.returncode == 0 and done.stdout, (show, done.stderr)


def test_an_executable_for_another_machine(tmp_path: Path) -> None:
    path, compiled = tmp_path / "m.relay", tmp_path / "m.rlx"
    path.write_text(HEADER + 'def @main(%x: Tensor[(4,), float32]) { %x + tanh(ones(shape=[4], dtype="float32")) }')
    for executor in ("vm", "aot"):
        assert run("compile", path, "-o", compiled, "--target", "aarch64", "--executor", executor).returncode == 0
        done = run("run", compiled)
        assert done.returncode == 2 and "was compiled for 'aarch64-" in done.stderr, done.stderr


def test_help_says_what_there_is() -> None:
    done = run("--help")
    assert done.returncode == 0 and all(f"  {verb} " in done.stdout for verb in VERBS), done.stderr
    assert run().returncode == 2
    assert run("--version").stdout == f"relay {relay.__version__}\n"
    for verb in VERBS:
        done = run(verb, "--help")
        assert done.returncode == 0 and f"usage: relay {verb}" in done.stdout and "--entry" in done.stdout, done.stderr


def test_no_level_is_all_of_it_and_none_for_stepping(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + "def @main(%x: float32) -> float32 { let %y = %x + 1f; %y * 2f }")
    assert "10" in run("run", path, "-i", "x=4").stdout and "10" in run("run", path, "-O0", "-i", "x=4").stdout
    assert "[default: 3; 0 with --debug]" in " ".join(run("run", "--help").stdout.split())


@pytest.mark.parametrize("extra", [[], ["--interpret"]])
def test_ctrl_c_is_exit_code_130(tmp_path: Path, extra: list[str]) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + "def @main(%n: int32) -> int32 { @main(%n + 1) }")
    child = subprocess.Popen(
        [sys.executable, "-c", "from relay.cli.main import main; print('imported', flush=True); main()", "run",
         str(path), "-i", "n=0", *extra],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_listen,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "imported\n"
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in said, said


def test_ctrl_c_while_importing_is_quiet_too() -> None:
    """Lines about imports come while there are more to make: the signal arrives between two of them."""
    child = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "relay", "run", "none.relay"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_listen,
    )  # fmt: skip
    assert child.stderr is not None
    assert any(line.endswith(" relay.ir.diagnostics\n") for line in child.stderr)
    child.send_signal(signal.SIGINT)
    said = child.stderr.read()
    assert child.wait(timeout=60) == 130 and "interrupted" in said and "Traceback" not in said, said


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143), ("ValueError", 1)])
def test_what_interrupts_the_making_of_a_class_is_no_other_error(raised: str, code: int) -> None:
    """Modules are imported as they are needed; Python before 3.12 says ``RuntimeError`` where a class in one was being made."""
    program = f"""
import relay.cli.main as cli
class Field:
    def __set_name__(self, owner, name):
        raise {raised}
def command(arguments):
    class Made:
        field = Field()
cli.command = command
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("Traceback" in done.stderr) == (code == 1) and (done.stderr == "interrupted\n") == (code == 130), (
        done.stderr
    )


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("SystemExit(143)", 143)])
def test_a_signal_that_comes_in_a_callback_is_not_lost(raised: str, code: int) -> None:
    """Python prints and forgets what is raised there."""
    program = f"""
import time, weakref
import relay.cli.main as cli
def gone(_):
    raise {raised}
class Thing:
    pass
def command(arguments):
    thing = Thing()
    seen = weakref.ref(thing, gone)
    del thing
    for _ in range(3000):
        time.sleep(0.01)
cli.command = command
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code and done.stderr == ("interrupted\n" if code == 130 else ""), done.stderr


def _listen() -> None:
    """What starts in the background may have been told to ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_what_is_not_finite_is_json_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + "def @main(%x: Tensor[(4,), float32]) { (1f / %x, %x) }")
    done = run("run", path, "-i", "x=[0, -0.0, nan, 2]", "--json")
    assert done.stdout.strip() == '[["Infinity", "-Infinity", "NaN", 0.5], [0.0, -0.0, "NaN", 2.0]]', done.stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "uint4", "float16", "bool"])
def test_what_is_written_can_be_read(tmp_path: Path, dtype: str) -> None:
    path, out, again = tmp_path / "m.relay", tmp_path / "y.npy", tmp_path / "z.npy"
    path.write_text(HEADER + f"def @main(%x: Tensor[(3,), {dtype}]) {{ %x }}")
    assert run("run", path, "-i", "x=[0, 1, 1]", "-o", out).returncode == 0
    done = run("run", path, "-i", f"x={out}", "-o", again)
    assert done.returncode == 0 and out.read_bytes() == again.read_bytes(), done.stderr


@pytest.mark.parametrize(
    ("body", "command", "says"),
    [
        (  # types as they are written, at the operation
            "def @main[n: Dim](%x: Tensor[(n, 4), float32]) { exp(tanh(%x) + %x) }",
            ["opt", "FILE", "--passes", "to_blocks,name_dims,fuse,rematerialise{budget=1000}"],
            ["m.relay:2:", "a tensor of type Tensor[(n, 4), float32] may be of any"],
        ),
        (
            "def @f[n: Dim, b: BaseType](%x: Tensor[(n,), b]) { shape_of(%x) }\n"
            "def @main(%x: Tensor[(4,), int8]) { @f(%x) }",
            ["opt", "FILE", "--passes", "name_dims"],
            ["m.relay:2:52: operator shape_of: data has the type Tensor[(n,), b]", "shape_of(%x) }"],
        ),
        (
            "def @main[n: Dim](%x: Tensor[(0 - n, 64), float32]) { nn.softmax(%x) }",
            ["compile", "FILE"],
            ["m.relay:2:55: the size n is not known here: no tensor among the arguments has it", "nn.softmax(%x) }"],
        ),
        (
            "def @main[n: Dim](%x: Tensor[(n*n*n*n*n,), float32], %y: Tensor[(n,), int8]) { %x }",
            ["run", "FILE", "-i", "x=[1.0]", "-d", "n=20000"],
            ["the sizes of the arguments of @main: a size is more than int64 holds"],
        ),
        (
            "def @main(%x: Tensor[(4, 6), float32]) { split(%x, indices_or_sections=True, axis=1) }",
            ["compile", "FILE"],
            ["must be int or a tuple of int or a size, not True"],
        ),
        (
            "def @main(%x: Tensor[(4, 6), float32]) { %x }",
            ["compile", "FILE", "--target", "riscv64-unknown-linux-gnu"],
            ["no code is made for riscv64", "there is x86_64 and aarch64"],
        ),
        (
            "def @main[n: Dim(5, 1)](%x: Tensor[(n,), float32]) { %x }",
            ["opt", "FILE"],
            ["m.relay:2:18: no size is at least 5 and at most 1", "the lowest comes first"],
        ),
        (
            f"def @main[n: Dim, m: Dim, k: Dim](%x: Tensor[({'*'.join(['(n+m+k+1)'] * 60)},), float32]) {{ %x }}",
            ["opt", "FILE"],
            ["a size has too many terms", "name a part of it"],
        ),
        (
            f"def @main(%x: float32) {{ %x + {'9' * 5000}.0f }}",
            ["opt", "FILE"],
            ["m.relay:2:31: 99999999999999999999... (of 5002 characters) does not fit in float32"],
        ),
        (
            "def @main(%x: Tensor[(4, 6), float32]) { %x }",
            ["compile", "FILE", "--target", "x86_64-v3"],
            ["the target 'x86_64-v3' is no triple and no level", "the level is called x86-64-v3"],
        ),
    ],
)
def test_messages_speak_the_language_and_say_where(
    tmp_path: Path, body: str, command: list[str], says: list[str]
) -> None:
    path = tmp_path / "m.relay"
    path.write_text(HEADER + body)
    done = run(*[path if word == "FILE" else word for word in command])
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert all(text in done.stderr for text in says), done.stderr


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array(["a", "b"]), "arrays of dtype <U1 have no base type"),
        (np.zeros(2, np.complex64), "arrays of dtype complex64 have no base type"),
        (np.zeros((2, 3), np.float32), "must have rank 1"),
        (np.zeros(2, np.int32), "must be float32, the array is int32"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, array: np.ndarray, says: str) -> None:
    path, weights = tmp_path / "m.relay", tmp_path / "w.npz"
    path.write_text(HEADER + "def @main(%x: float32, %w: Tensor[(2,), float32]) { %x * %w }")
    np.savez(weights, w=array)
    done = run("run", path, "--weights", weights)
    assert done.returncode == 2 and "m.relay:2:24: parameter 'w' of @main" in done.stderr, done.stderr
    assert says in done.stderr and f"(weights of {weights})" in done.stderr, done.stderr
