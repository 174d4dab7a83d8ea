"""What a compilation can be told. One frozen object, passed down and part of every cache key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from relay._runtime import available_threads
from relay.executable.program import Limits, is_count, require_count, require_flag
from relay.ir.diagnostics import RelayError
from relay.ir.files import cache_directory
from relay.loop.costs import Machine

EXECUTORS = ("vm", "aot")
PRECISIONS = ("float32", "bf16", "int8-weights")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `relay.compile`.

    target      "cpu" (this machine), a level ("x86-64-v3"), or an LLVM triple and features; see `relay.codegen.target`
    executor    "vm": bytecode for the virtual machine; "aot": its functions as native code too (`relay.aot`)
    opt_level   the papers' levels (Figure 10): 0 none, 1 fusion, 2 constant folding, 3 everything
    precision   of matrix products with constant weights: "float32", "bf16" (weights and data rounded to bfloat16, sums in
                float32), "int8-weights" (weights as integers with a scale for each column of the result)
    memory_budget  bytes that a run of an entry may add at its peak (results counted, arguments and constants not): what is needed
                again late is computed again, and MemoryBudgetError raised where that is not enough; None: no limit
    machine     what fusion weighs recomputation against traffic with (None: the target's defaults); measured:
                ``relay.view.machine_limits(1).costs()``
    hot_sizes   sizes of the entries' symbolic dims, by name, to have variants for from the start: of every entry all of whose dims
                are named (`relay.hot`)
    specialise_hot  count the sizes of calls, and compile variants for frequent ones in the background; a size goes to what was faster
    tune        choose the schedules of matrix products and the layouts of images by measuring them on this machine (`relay.tuning`),
                which takes seconds for each kernel; results stay the same bit by bit
    threads     how many threads a run may use (None: one for each core that the process may use); not part of compiled code
    entries     the functions that can be called from outside
    cache       keep compiled kernels and programs on disk and take them from there
    cache_dir   where (None: the user's cache directory)
    limits      what each run may use, unless it is told otherwise; not part of compiled code
    check_memory  run each kernel and routine on copies of its operands between pages nobody may touch: what it touches outside, and
                results made of what nobody has written, are errors. For debugging, many times slower; not part of compiled code
    flush_subnormals  take subnormal numbers for zero, as some frameworks do: gradients that fade away are full of them, and some
                processors compute with them many times slower. Results then differ from the interpreter's by such numbers; not part of
                compiled code
    workers     processes that build kernels (None: one per core)
    """

    target: str = "cpu"
    executor: str = "vm"
    opt_level: int = 3
    precision: str = "float32"
    memory_budget: int | None = None
    machine: Machine | None = None
    hot_sizes: tuple[Mapping[str, int], ...] = ()
    specialise_hot: bool = False
    tune: bool = False
    threads: int | None = None
    entries: tuple[str, ...] = ("main",)
    cache: bool = True
    cache_dir: Path | None = None
    workers: int | None = None
    check_memory: bool = False
    flush_subnormals: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise RelayError(f"target must be a string, not {self.target!r}", hint='"cpu" is this machine')
        if self.executor not in EXECUTORS:
            raise RelayError(f"unknown executor {self.executor!r}", hint=f"executors are {', '.join(EXECUTORS)}")
        if not is_count(self.opt_level, 0) or self.opt_level > 3:
            raise RelayError(f"opt_level must be 0, 1, 2 or 3, not {self.opt_level!r}")
        if self.precision not in PRECISIONS:
            raise RelayError(f"unknown precision {self.precision!r}", hint=f"precisions are {', '.join(PRECISIONS)}")
        require_count("memory_budget", self.memory_budget, "None is no limit")
        require_count("threads", self.threads, "None: one for each core")
        require_count("workers", self.workers, "None: one per core")
        for name in ("check_memory", "flush_subnormals", "specialise_hot", "tune", "cache"):
            require_flag(name, getattr(self, name))
        if isinstance(self.entries, str) or not self.entries or not all(isinstance(e, str) for e in self.entries):
            raise RelayError(f"entries must be names of functions, not {self.entries!r}", hint='for example ("main",)')
        if not isinstance(self.limits, Limits):
            raise RelayError(f"limits must be relay.Limits(...), not {self.limits!r}")
        if self.machine is not None and not isinstance(self.machine, Machine):
            raise RelayError(
                f"machine must be costs of a machine, not {self.machine!r}", hint="relay.view.machine_limits(1).costs()"
            )
        if not isinstance(self.cache_dir, Path | None):
            raise RelayError(f"cache_dir must be a path, not {self.cache_dir!r}")
        if not isinstance(self.hot_sizes, tuple):
            raise RelayError(f"hot_sizes must be a list of sizes by name, not {self.hot_sizes!r}")
        for sizes in self.hot_sizes:
            if not isinstance(sizes, Mapping) or not all(is_count(s, 0) for s in sizes.values()):
                raise RelayError(
                    f"hot_sizes must map names to sizes, not be {sizes!r}", hint='for example [{"n": 128}]'
                )

    @property
    def directory(self) -> Path | None:
        """The cache directory, or None when nothing is to be cached."""
        if not self.cache:
            return None
        return self.cache_dir or cache_directory()

    @property
    def kernel_cache(self) -> Path | bool:
        """The directory of the cache of kernels, or False when nothing is to be cached."""
        return self.directory / "kernels" if self.directory else False

    @property
    def worker_count(self) -> int:
        return self.workers if self.workers is not None else available_threads()


def options_from(given: Options | None, keywords: dict[str, Any]) -> Options:
    """Options from an object and keywords on top of it. Raises RelayError for a keyword that is not an option."""
    known = {f.name for f in fields(Options)}
    for name in keywords:
        if name not in known:
            raise RelayError(f"unknown option {name!r}", hint=f"options are {', '.join(sorted(known))}")
    base = given or Options()
    if isinstance(keywords.get("cache_dir"), str):
        keywords = {**keywords, "cache_dir": Path(keywords["cache_dir"])}
    if isinstance(keywords.get("hot_sizes"), Iterable):
        keywords = {**keywords, "hot_sizes": tuple(keywords["hot_sizes"])}
    if "entries" in keywords and not isinstance(keywords["entries"], str):
        keywords = {**keywords, "entries": tuple(keywords["entries"])}
    return Options(**{**{n: getattr(base, n) for n in known}, **keywords})
